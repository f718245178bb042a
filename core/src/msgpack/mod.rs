//! MessagePack: a borrowed pull reader and a measuring writer.
//!
//! The body of a message and the header of every payload are MessagePack
//! documents. This module reads and writes the whole format (the
//! [specification] of 2013 with `bin`, `ext` and timestamps), whatever of it
//! Dask happens to use today (PROTOCOL MSGPACK-2).
//!
//! * [`Reader`] takes a document apart token by token. Text, byte strings and
//!   extension data are slices of the input; nothing is copied and nothing is
//!   built. A value is skipped at the cost of scanning it ([`Reader::skip`]),
//!   and one key of a map is found without decoding the others
//!   ([`Reader::find`]); a map with known keys is read by [`Reader::fields`].
//! * [`Writer`] writes what msgpack-python would write for the same value: the
//!   shortest head, `f64` for every float. It keeps counting past the end of
//!   the buffer, so that the same code that writes also measures.
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
mod text;
mod writer;

use core::fmt;

pub use reader::{Fields, Reader};
pub use text::{RawStr, Text};
pub use writer::{WriteError, Writer};

/// The code of the extension type that holds a timestamp.
pub const TIMESTAMP: i8 = -1;

/// One token of a document: a whole scalar, or the head of an array or map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    /// Nothing; Python's `None`.
    Nil,
    /// A boolean.
    Bool(bool),
    /// An integer of zero or more, whichever width it was written with.
    UInt(u64),
    /// A negative integer, whichever width it was written with.
    Int(i64),
    /// A number of single precision.
    F32(f32),
    /// A number of double precision.
    F64(f64),
    /// Text as bytes that have not been checked yet, see [`RawStr`].
    Str(RawStr<'a>),
    /// A byte string.
    Bin(&'a [u8]),
    /// The head of an array; so many values follow.
    Array(u32),
    /// The head of a map; so many pairs of key and value follow.
    Map(u32),
    /// An extension type with its data; [`TIMESTAMP`] among them.
    Ext(i8, &'a [u8]),
}

impl Token<'_> {
    /// Which kind of value this is.
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

    /// How many values follow that belong to this one: the elements of an
    /// array, the keys and values of a map, 0 for everything else.
    pub const fn child_count(&self) -> u64 {
        match self {
            Self::Array(count) => *count as u64,
            Self::Map(count) => (*count as u64).wrapping_mul(2),
            _ => 0,
        }
    }
}

/// The kinds of MessagePack values, in the words of its specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// `nil`.
    Nil,
    /// `true` or `false`.
    Bool,
    /// An integer of any width, with or without sign.
    Integer,
    /// A float of either width.
    Float,
    /// Text.
    Str,
    /// A byte string.
    Bin,
    /// An array.
    Array,
    /// A map.
    Map,
    /// An extension type.
    Ext,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nil => "nil",
            Self::Bool => "a boolean",
            Self::Integer => "an integer",
            Self::Float => "a float",
            Self::Str => "a str",
            Self::Bin => "a bin",
            Self::Array => "an array",
            Self::Map => "a map",
            Self::Ext => "an ext",
        })
    }
}

/// A document that breaks the rules, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Offset in the document, in bytes, of the value that is at fault.
    pub at: usize,
    /// What is wrong with it.
    pub kind: MalformedKind,
}

/// What is wrong with a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MalformedKind {
    /// The document ends inside a value.
    End {
        /// How many bytes the value needs in all, as far as it is known.
        needed: u64,
        /// How many there are.
        available: usize,
    },
    /// The byte 0xc1, which MessagePack never uses.
    Reserved,
    /// An array or map announces more values than there are bytes left.
    Claim {
        /// The values announced; keys and values of a map count one each.
        count: u64,
        /// The bytes left, each of which could hold one value at best.
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
    /// Text that is not UTF-8.
    NotUtf8 {
        /// How many bytes of the text are good.
        valid_len: usize,
    },
    /// A value of another kind than the reader asked for.
    Unexpected {
        /// What was asked for.
        expected: Kind,
        /// What is there.
        found: Kind,
    },
    /// An integer that does not fit the type that the reader asked for.
    OutOfRange,
    /// Bytes after the end of the document.
    Trailing {
        /// How many.
        len: usize,
    },
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: ", self.at)?;
        match self.kind {
            MalformedKind::End { needed, available } => write!(
                f,
                "the document ends inside a value that takes {needed} bytes; {available} are left"
            ),
            MalformedKind::Reserved => f.write_str("the byte 0xc1, which MessagePack never uses"),
            MalformedKind::Claim { count, available } => write!(
                f,
                "a container announces {count} values, but only {available} bytes are left"
            ),
            MalformedKind::TooDeep { limit } => {
                write!(f, "containers are nested deeper than the limit of {limit}")
            }
            MalformedKind::TooManyItems { limit } => {
                write!(f, "more values than the limit of {limit}")
            }
            MalformedKind::NotUtf8 { valid_len } => write!(
                f,
                "text is not UTF-8: the first {valid_len} bytes of it are good, the next is not"
            ),
            MalformedKind::Unexpected { expected, found } => {
                write!(f, "expected {expected}, found {found}")
            }
            MalformedKind::OutOfRange => {
                f.write_str("an integer that is out of the range expected here")
            }
            MalformedKind::Trailing { len } => {
                write!(f, "{len} bytes follow the end of the document")
            }
        }
    }
}

impl core::error::Error for Malformed {}
