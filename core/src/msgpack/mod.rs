//! MessagePack: a borrowed pull reader and a measuring writer.
//!
//! The body of a message and the header of every payload are MessagePack
//! documents. This module reads and writes the whole format (the
//! [specification] of 2013 with `bin`, `ext` and timestamps), not only the part
//! that Dask uses today (PROTOCOL MSGPACK-2).
//!
//! * [`Reader`] reads a document token by token. Strings, byte strings and
//!   extension data are slices of the input; it copies and allocates nothing.
//!   [`Reader::skip`] scans past a value, [`Reader::find`] finds one key of a
//!   map without decoding the others, and [`Reader::fields`] reads a map with
//!   known keys.
//! * [`Writer`] writes the same bytes as msgpack-python for the same value: the
//!   shortest head, `f64` for every float. It keeps counting past the end of
//!   the buffer, so that the same code also measures.
//!
//! ```
//! use daskwire::msgpack::{Reader, Writer};
//!
//! let mut buffer = [0; 64];
//! let mut writer = Writer::new(&mut buffer);
//! writer.map(2).str("op").str("heartbeat").str("nthreads").u64(4);
//! let document = writer.finish()?;
//!
//! let mut reader = Reader::new(document);
//! assert!(reader.find("op")?);
//! assert_eq!(reader.str()?, "heartbeat");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [specification]: https://github.com/msgpack/msgpack/blob/master/spec.md

mod reader;
mod string;
mod writer;

use core::fmt;

pub(crate) use reader::pick;
pub use reader::{Fields, Reader};
pub use string::{RawStr, Str};
pub use writer::{WriteError, Writer};

/// One token of a document: a whole scalar, or the head of an array or map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    /// `nil`; Python's `None`.
    Nil,
    /// A boolean.
    Bool(bool),
    /// A non-negative integer of any encoded width.
    UInt(u64),
    /// A negative integer of any encoded width.
    Int(i64),
    /// A single-precision float.
    F32(f32),
    /// A double-precision float.
    F64(f64),
    /// A string whose UTF-8 has not been validated, see [`RawStr`].
    Str(RawStr<'a>),
    /// A byte string.
    Bin(&'a [u8]),
    /// The head of an array with its number of elements.
    Array(u32),
    /// The head of a map with its number of key-value pairs.
    Map(u32),
    /// The type code and the data of an extension value.
    Ext(i8, &'a [u8]),
}

impl Token<'_> {
    /// The kind of the value.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Nil => Kind::Nil,
            Self::Bool(_) => Kind::Bool,
            Self::UInt(_) | Self::Int(_) => Kind::Integer,
            Self::F32(_) | Self::F64(_) => Kind::Float,
            Self::Str(_) => Kind::Str,
            Self::Bin(_) => Kind::Bin,
            Self::Array(_) => Kind::Array,
            Self::Map(_) => Kind::Map,
            Self::Ext(..) => Kind::Ext,
        }
    }

    /// The number of values that follow as children of this one: the elements
    /// of an array, the keys and values of a map, otherwise 0.
    pub const fn child_count(&self) -> u64 {
        match self {
            Self::Array(count) => *count as u64,
            Self::Map(count) => (*count as u64).wrapping_mul(2),
            _ => 0,
        }
    }
}

/// The kinds of MessagePack values, as the specification names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Kind {
    /// `nil`.
    Nil,
    /// `true` or `false`.
    Bool,
    /// An integer of any width, signed or unsigned.
    Integer,
    /// A float of either width.
    Float,
    /// A string.
    Str,
    /// A byte string.
    Bin,
    /// An array.
    Array,
    /// A map.
    Map,
    /// An extension value.
    Ext,
}

impl Kind {
    /// The name with its article, for error messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool => "a boolean",
            Self::Integer => "an integer",
            Self::Float => "a float",
            Self::Str => "a str",
            Self::Bin => "a bin",
            Self::Array => "an array",
            Self::Map => "a map",
            Self::Ext => "an ext",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A fault of the peer in a MessagePack document, and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Malformed {
    /// Offset in the document of the faulty value, in bytes.
    pub at: usize,
    /// The kind of fault.
    pub kind: MalformedKind,
}

/// The kind of a [`Malformed`] error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum MalformedKind {
    /// The document ends inside a value.
    Truncated {
        /// The length of the value as far as it is known, in bytes.
        needed: u64,
        /// The number of bytes left.
        available: usize,
    },
    /// The document contains the byte 0xc1, which MessagePack never uses.
    Reserved,
    /// An array or map declares more values than there are bytes left.
    CountTooLarge {
        /// The number of values declared; keys and values of a map count one
        /// each.
        count: u64,
        /// The number of bytes left; a value takes at least one.
        available: usize,
    },
    /// Arrays and maps are nested deeper than [`depth`](crate::Limits::depth).
    TooDeep {
        /// The limit, in levels.
        limit: u32,
    },
    /// There are more values than [`items`](crate::Limits::items).
    TooManyItems {
        /// The limit, in values.
        limit: u32,
    },
    /// A string is not valid UTF-8.
    NotUtf8 {
        /// The length of the valid part, in bytes.
        valid_len: usize,
    },
    /// A value is not of the kind that was read.
    Unexpected {
        /// The kind that was read.
        expected: Kind,
        /// The kind found in the document.
        found: Kind,
    },
    /// An integer does not fit in the type that was read.
    OutOfRange,
    /// Bytes follow the end of the document.
    Trailing {
        /// The number of those bytes.
        len: usize,
    },
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: ", self.at)?;
        match self.kind {
            MalformedKind::Truncated { needed, available } => write!(
                f,
                "the document ends inside a value that takes {needed} bytes; {available} are left"
            ),
            MalformedKind::Reserved => f.write_str("the byte 0xc1, which MessagePack never uses"),
            MalformedKind::CountTooLarge { count, available } => write!(
                f,
                "a container declares {count} values, but only {available} bytes are left"
            ),
            MalformedKind::TooDeep { limit } => {
                write!(f, "containers are nested deeper than the limit of {limit}")
            }
            MalformedKind::TooManyItems { limit } => {
                write!(f, "the document has more values than the limit of {limit}")
            }
            MalformedKind::NotUtf8 { valid_len } => write!(
                f,
                "a string is not UTF-8: its first {valid_len} bytes are valid, the next is not"
            ),
            MalformedKind::Unexpected { expected, found } => {
                write!(f, "expected {expected}, found {found}")
            }
            MalformedKind::OutOfRange => f.write_str("an integer is out of the expected range"),
            MalformedKind::Trailing { len } => {
                write!(f, "{len} bytes follow the end of the document")
            }
        }
    }
}

impl core::error::Error for Malformed {}
