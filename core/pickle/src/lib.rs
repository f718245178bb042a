//! Reader and writer for Python pickles, protocols 0 to 5, with out-of-band
//! buffers ([PEP 574]).
//!
//! A pickle is a program for a small stack machine, and loading one runs it: it
//! may import and call anything. This crate never imports or calls anything. It
//! parses such programs, and writes programs that build plain values.
//!
//! * [`Reader`] reads a pickle opcode by opcode, with borrowed arguments.
//! * [`OutOfBandReader`] reads a pickle together with its out-of-band buffers.
//! * [`Writer`] writes the same bytes as CPython for the same value, into the
//!   caller's buffer; [`PickleBuffer`]s go in band or out of band.
//! * `tree`, with the feature `alloc`, builds a tree of inert values, and maps
//!   the names that the caller allows to the caller's data.
//!
//! ```
//! use daskwire_pickle::{Argument, Reader, Writer, WriterLevel};
//!
//! let (mut out, mut levels) = ([0; 64], [WriterLevel::EMPTY; 2]);
//! let mut writer = Writer::new(&mut out, &mut levels);
//! writer.tuple(2).str("answer").i64(42); // ("answer", 42)
//! let pickle = writer.finish()?;
//!
//! let mut reader = Reader::new(pickle);
//! let mut integers = 0;
//! while let Some(token) = reader.next_token()? {
//!     if let Argument::Int(integer) = token.argument {
//!         integers += integer;
//!     }
//! }
//! assert_eq!(integers, 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Reading any pickle is safe. That does not make it safe to load: a pickle
//! that this crate accepts can still do anything when Python loads it.
//!
//! The feature `alloc` adds the module `tree`; everything else needs no heap.
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

mod buffers;
mod error;
mod escapes;
mod limits;
mod opcode;
mod pickle_buffer;
mod reader;
#[cfg(test)]
#[path = "../../tests/unit/steps.rs"]
mod steps;
mod string;
#[cfg(feature = "alloc")]
pub mod tree;
mod writer;

pub use buffers::{Data, Item, OutOfBandReader};
pub use daskwire_compression::BufferTooSmall;
pub use error::{Operand, PickleError, PickleErrorKind};
pub use escapes::Unescaped;
pub use limits::Limits;
pub use opcode::{ArgumentForm, Opcode};
pub use pickle_buffer::{Mutability, PickleBuffer, PickleBufferError, Placement};
pub use reader::{Argument, Reader, Token};
pub use string::{BigInt, Decimal, DecimalFloat, PyStr};
pub use writer::{Framing, Protocol, WriteError, Writer, WriterLevel, WriterOptions};

/// The example in the README, which is tested with the others.
#[cfg(all(doctest, feature = "alloc"))]
#[doc = include_str!("../README.md")]
struct Readme;
