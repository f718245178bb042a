//! The tests of the codec, in one program.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]
#![allow(clippy::std_instead_of_alloc, reason = "a test has std")]

mod builder;
mod comm;
// Without both codecs most of it would have nothing to test.
#[cfg(all(feature = "lz4", feature = "snappy"))]
mod compression;
mod display;
mod frames;
mod handshake;
mod hostile;
mod messages;
mod msgpack;
mod spec;
mod support;
