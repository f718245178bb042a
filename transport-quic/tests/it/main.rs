//! The tests of comms over QUIC, in one program.
#![allow(missing_docs, reason = "tests")]

mod bad_link;
mod liveness;
#[cfg(feature = "ring")]
mod quic;
mod spec;
mod support;
