//! The wire protocol of Dask `distributed` as a codec: frames, headers and
//! messages, into and out of buffers that the caller supplies.
//!
//! Schedulers, workers and clients of [Dask] exchange messages: a MessagePack
//! map, and payloads that travel in frames of their own. This crate reads and
//! writes them as every release from 1.14.0 (2016) to 2026.8.0 does. It does no
//! I/O, needs no heap and no unsafe code, and does not panic, whatever the
//! input. The rules of the wire, each with its number, are in `PROTOCOL.md`
//! beside this crate; the code cites them.
//!
//! From the bytes up:
//!
//! | module | what it is about |
//! | --- | --- |
//! | [`frame`] | messages on a stream of bytes: the prelude, incremental decoding |
//! | [`msgpack`] | documents: a pull reader and a measuring writer |
//! | [`message`] | both layouts in one model: a body with payloads at places |
//! | [`compression`] | lz4, snappy, zlib and zstd frames, and when compressing pays |
//! | [`handshake`] | the first message of a comm, and what follows from it |
//! | [`display`] | any bytes as text, for people |
//! | [`transport`] | what a comm promises, whatever carries it |
//!
//! What is accepted from a peer is bounded by [`Limits`], everywhere. Errors
//! say whose turn it is: [`BufferTooSmall`] is the caller's; an error with an
//! offset is the peer's.
//!
//! # From a stream to a value
//!
//! ```
//! use daskwire::Limits;
//! use daskwire::frame::{FramedMessage, Prefix};
//! use daskwire::message::{Layout, Level, Message, PayloadSlot, ReadOptions};
//!
//! // What a scheduler sends: {"op": "ping", "reply": true}
//! let stream = b"\x20\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\
//!     \x82\xa2op\xa4ping\xa5reply\xc3";
//!
//! let framed = FramedMessage::parse(stream, Prefix::U64, &Limits::HOST)?;
//! let mut slots = [&[][..]; 4];
//! let frames = framed.prelude.split(framed.frames, &mut slots)?;
//!
//! let (mut levels, mut places) = ([Level::EMPTY; 8], [PayloadSlot::EMPTY; 4]);
//! let message = Message::open(
//!     frames, Layout::Modern, &ReadOptions::default(), &mut levels, &mut places, &mut [],
//! )?;
//! assert!(message.op().is_some_and(|op| op == "ping"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! `lz4` and `snappy` (both on by default, without a heap), `zlib` (reading
//! without a heap, writing with `alloc`), `zstd` (brings `alloc`), `alloc`
//! (storage that grows), `heapless-09` (storage in the vectors of heapless 0.9,
//! without a heap). Features add items and never change what the others do; types
//! of a crate before its 1.0 stand in no signature outside the feature with its
//! version.
//!
//! Beside this crate: `daskwire-pickle` (pickles, taken apart and written, never
//! run), `daskwire-numpy` (payloads as values) and `daskwire-embedded` (comms over
//! embedded-io).
//!
//! [Dask]: https://docs.dask.org
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::std_instead_of_core,
    clippy::std_instead_of_alloc
)]

#[cfg(feature = "alloc")]
extern crate alloc;

pub mod compression;
pub mod display;
mod error;
pub mod frame;
pub mod handshake;
mod limits;
mod measure;
pub mod message;
pub mod msgpack;
#[cfg(test)]
#[path = "../tests/unit/steps.rs"]
mod steps;
pub mod transport;

pub use error::BufferTooSmall;
pub use limits::Limits;

/// The example in the README, which is tested with those above.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
