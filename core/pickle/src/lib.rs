//! Pickles, read and written without Python: protocols 0 to 5, with out-of-band
//! buffers ([PEP 574]).
//!
//! A pickle is a program for a small stack machine, and loading one runs it: it
//! may import and call anything. Nothing here does. What is here takes the
//! program apart, and writes programs that build plain values.
//!
//! * [`Reader`] takes a pickle apart opcode by opcode, with borrowed arguments.
//! * [`Buffers`] reads a pickle with its out-of-band buffers.
//! * [`Writer`] writes what CPython would for the same value, into a caller's
//!   buffer; [`PickleBuffer`]s go in the pickle or out of band.
//! * `tree`, with the feature `alloc`, builds inert values of it, and gives
//!   meaning to names that the caller allows.
//!
//! Reading is safe, whatever the pickle. It does not make loading it safe: a
//! pickle that reads well can still do anything when Python loads it.
//!
//! [PEP 574]: https://peps.python.org/pep-0574/
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

mod buffers;
mod error;
mod escapes;
mod limits;
mod measure;
mod opcode;
mod pickle_buffer;
mod reader;
mod text;
#[cfg(feature = "alloc")]
pub mod tree;
mod writer;

pub use buffers::{Buffers, Data, Item};
pub use error::{BufferTooSmall, Operand, PickleError, PickleErrorKind};
pub use escapes::Unescaped;
pub use limits::Limits;
pub use opcode::{Form, Opcode};
pub use pickle_buffer::{Mutability, PickleBuffer, PickleBufferError, Placement};
pub use reader::{Argument, Reader, Token};
pub use text::{BigInt, Decimal, FloatText, Text};
pub use writer::{Framing, Level, Options, Protocol, WriteError, Writer};

/// The example in the README, which is tested with the others.
#[cfg(all(doctest, feature = "alloc"))]
#[doc = include_str!("../README.md")]
struct Readme;
