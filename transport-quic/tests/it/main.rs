//! The tests of comms over QUIC, in one program.
#![allow(missing_docs, reason = "tests")]

mod bad_link;
mod conformance;
mod liveness;
mod quic;
mod spec;
mod support;
