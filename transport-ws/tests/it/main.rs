//! The tests of WebSockets, in one program.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod peers;
mod support;
