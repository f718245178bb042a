//! A codec for the wire protocol of Dask `distributed`: frames, headers and
//! messages, in buffers supplied by the caller.
//!
//! Schedulers, workers and clients of [Dask] exchange messages: a MessagePack
//! map, and payloads in separate frames. This crate reads and writes the
//! messages of every release from 1.14.0 (2016) to 2026.8.0. It does no I/O,
//! needs no heap and no unsafe code, and does not panic on any input.
//! `PROTOCOL.md` has the numbered rules of the protocol, which the code cites.
//!
//! The modules, from the bytes up:
//!
//! | module | contents |
//! | --- | --- |
//! | [`comm`] | one end of a connection without I/O: the place to start |
//! | [`frame`] | messages on a stream of bytes: the prelude, incremental decoding |
//! | [`msgpack`] | documents: a pull reader and a measuring writer |
//! | [`message`] | messages of both layouts: a body with placeholders for payloads |
//! | [`compression`] | lz4, snappy, zlib and zstd frames, and when to compress |
//! | [`handshake`] | the first message of a comm and the negotiation |
//! | [`display`] | formatting of any bytes as readable text |
//! | [`transport`] | the traits and guarantees of comms |
//! | [`memory`] | how much memory a program needs |
//!
//! [`Limits`] bound all input from a peer. Errors distinguish the caller from
//! the peer: [`BufferTooSmall`] is for the caller to handle; an error with an
//! offset is a fault in the peer's data. [`Error`] is the sum of all of them.
//!
//! # From a stream to a value
//!
//! ```
//! use daskwire::Limits;
//! use daskwire::frame::{FramedMessage, Prefix};
//! use daskwire::message::{Layout, Message, ReadOptions, Scratch};
//!
//! // What a scheduler sends: {"op": "ping", "reply": true}
//! let stream = b"\x20\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\
//!     \x82\xa2op\xa4ping\xa5reply\xc3";
//!
//! let framed = FramedMessage::parse(stream, Prefix::U64, &Limits::HOST)?;
//! let mut slots = [&[][..]; 4];
//! let frames = framed.prelude.split(framed.frames, &mut slots)?;
//!
//! let mut scratch = Scratch::<8, 4>::new(); // up to 8 levels and 4 payloads
//! let message = Message::open(frames, Layout::Modern, &ReadOptions::default(), &mut scratch)?;
//! assert!(message.op().is_some_and(|op| op == "ping"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! `classic` (messages of releases up to 2021.3.0), `lz4` and `snappy` (all on
//! by default, without a heap), `zlib` (reading without a heap, writing with one), `zstd`
//! (reading only, turns `alloc` on), `alloc` (storage that grows),
//! `heapless-09` (storage in the vectors of heapless 0.9, without a heap),
//! `defmt` (`defmt::Format` for errors, without a heap).
//! Features only add items. Types of a crate before its 1.0 are only in the
//! signatures of the feature with its version.
//!
//! Related crates: `daskwire-compression` (the module [`compression`], also
//! without the rest), `daskwire-pickle` (reads and writes pickles without running
//! them), `daskwire-numpy` (payloads as values) and `daskwire-embedded` (comms
//! over embedded-io).
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

/// Methods that set a public field of options, for structs that will get more fields.
macro_rules! with_fields {
    ($($method:ident($field:ident: $type:ty);)*) => {$(
        #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
        #[must_use]
        pub const fn $method(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )*};
}

pub mod comm;
pub mod display;
mod error;
mod error_kind;
pub mod frame;
pub mod handshake;
mod limits;
pub mod memory;
pub mod message;
pub mod msgpack;
#[cfg(test)]
#[path = "../tests/unit/steps.rs"]
mod steps;
pub mod transport;

#[doc(inline)]
pub use daskwire_compression as compression;
pub use daskwire_compression::BufferTooSmall;
// Used by the other crates of this workspace.
#[doc(hidden)]
pub use daskwire_compression::{copy, invariant};
pub use error::Error;
pub use error_kind::ErrorKind;
pub use limits::Limits;

/// The example in the README, which is tested with those above.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
