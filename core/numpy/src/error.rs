//! What can be wrong with a payload that is to become a value.

use core::fmt;

use super::{DType, DTypeError, DimensionsError};
use daskwire::BufferTooSmall;
use daskwire::message::{BuildError, MessageError, MessageErrorKind};
use daskwire_pickle::{PickleError, PickleErrorKind};

/// A payload that is not what it says it is, or not what was asked for, and
/// where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypedError {
    /// The frame of the message that is at fault, counted from 0.
    pub frame: usize,
    /// The offset in that frame, in bytes.
    pub at: usize,
    /// What is wrong.
    pub kind: TypedErrorKind,
}

/// What is wrong with a payload that is to become a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TypedErrorKind {
    /// The header, or how the frames belong together.
    Message(MessageErrorKind),
    /// A pickle: the one that names the class, or the value itself. The offset
    /// is that in the pickle.
    Pickle {
        /// Offset in the pickle, in bytes.
        offset: usize,
        /// What is wrong there.
        kind: PickleErrorKind,
    },
    /// `type-serialized` is not the pickle of a class.
    NotAClass {
        /// Offset in the pickle, in bytes, of what should not be there.
        offset: usize,
    },
    /// The type of the elements is none that is known.
    DType(DTypeError),
    /// The type of the elements is one that only Python knows, or not plain where
    /// it has to be.
    NotPlain,
    /// The shape, or where the elements lie.
    Dimensions(DimensionsError),
    /// Elements of another type were asked for, or a field of other records.
    OtherType {
        /// What was asked for.
        wanted: DType,
        /// What there is.
        found: DType,
    },
    /// The value is of another class than was asked for.
    OtherClass {
        /// What was asked for.
        wanted: &'static str,
    },
    /// The payload has another number of logical frames than such a value.
    FrameCount {
        /// How many it has.
        found: usize,
        /// How many it should have.
        expected: usize,
    },
    /// The data is compressed, so that there are no slices of it: copy it.
    Compressed,
    /// The data is in several frames, so that there is no slice of it: copy it,
    /// or take it in parts.
    InParts,
    /// Bytes do not lie as this machine needs the elements: they have the other
    /// byte order, or begin at an address that does not fit.
    NotInPlace,
    /// A buffer is too small. Its length is meant in bytes, or in elements if it
    /// is one of elements. The caller's turn.
    BufferTooSmall(BufferTooSmall),
}

impl TypedError {
    /// An error about data of the caller, not in a message.
    pub(super) const fn of_value(kind: TypedErrorKind) -> Self {
        Self {
            frame: 0,
            at: 0,
            kind,
        }
    }
}

impl From<MessageError> for TypedError {
    fn from(error: MessageError) -> Self {
        Self {
            frame: error.frame,
            at: error.at,
            kind: TypedErrorKind::Message(error.kind),
        }
    }
}

impl From<DimensionsError> for TypedErrorKind {
    fn from(error: DimensionsError) -> Self {
        Self::Dimensions(error)
    }
}

impl From<PickleError> for TypedErrorKind {
    fn from(error: PickleError) -> Self {
        Self::Pickle {
            offset: error.offset,
            kind: error.kind,
        }
    }
}

impl fmt::Display for TypedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "in frame {}, at byte {}: {}",
            self.frame, self.at, self.kind
        )
    }
}

impl fmt::Display for TypedErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(kind) => kind.fmt(f),
            Self::Pickle { offset, kind } => write!(f, "in the pickle, at byte {offset}: {kind}"),
            Self::NotAClass { offset } => write!(
                f,
                "in type-serialized, at byte {offset}: expected the pickle of one class by its name"
            ),
            Self::DType(error) => error.fmt(f),
            Self::NotPlain => f.write_str(
                "the elements are records or of a type that only Python knows; \
                 expected a plain type such as <f8",
            ),
            Self::Dimensions(error) => error.fmt(f),
            Self::OtherType { wanted, found } => {
                write!(f, "the elements are {found}; expected {wanted}")
            }
            Self::OtherClass { wanted } => {
                write!(f, "the value is something else; expected {wanted}")
            }
            Self::FrameCount { found, expected } => {
                write!(f, "the value has {found} frames; expected {expected}")
            }
            Self::Compressed => f.write_str("the data is compressed; it has to be copied"),
            Self::InParts => {
                f.write_str("the data is in several frames; copy it, or take it in parts")
            }
            Self::NotInPlace => f.write_str(
                "the elements do not lie as this machine has them; they have to be copied",
            ),
            Self::BufferTooSmall(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for TypedError {}

/// Why a value was not written as a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PayloadWriteError {
    /// The message builder refused it.
    Build(BuildError),
    /// The value cannot be put into a payload as it is.
    Value(TypedErrorKind),
}

impl From<BuildError> for PayloadWriteError {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

impl fmt::Display for PayloadWriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Build(error) => error.fmt(f),
            Self::Value(kind) => write!(f, "the value: {kind}"),
        }
    }
}

impl core::error::Error for PayloadWriteError {}
