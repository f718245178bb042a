//! The tests of comms over TCP, in one program.
#![allow(missing_docs, reason = "tests")]

mod comm;
mod faults;
mod support;
#[cfg(feature = "ring")]
mod tls;
