//! The tests of comms over TCP, in one program.
#![allow(missing_docs, reason = "tests")]

mod comm;
mod conformance;
mod faults;
mod support;
#[cfg(feature = "ring")]
mod tls;
