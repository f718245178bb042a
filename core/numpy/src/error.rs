//! Errors of reading and writing values.

use core::fmt;

use super::{DType, DTypeError, DimensionsError};
use daskwire::BufferTooSmall;
use daskwire::message::{BuildError, MessageError, MessageErrorKind};
use daskwire_pickle::{PickleError, PickleErrorKind};

/// An error of reading a payload as a value, with its location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NumpyError {
    /// Index of the faulty frame in the message.
    pub frame: usize,
    /// Offset in that frame, in bytes.
    pub at: usize,
    /// The kind of error.
    pub kind: NumpyErrorKind,
}

/// The kind of a [`NumpyError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NumpyErrorKind {
    /// A fault in the header or the grouping of frames.
    Message(MessageErrorKind),
    /// A fault in a pickle, that of the class or of the value.
    Pickle {
        /// Offset in the pickle, in bytes.
        offset: usize,
        /// The kind of fault.
        kind: PickleErrorKind,
    },
    /// `type-serialized` is not the pickle of a class.
    NotAClass {
        /// Offset in the pickle of the unexpected opcode, in bytes.
        offset: usize,
    },
    /// The type of the elements is invalid.
    DType(DTypeError),
    /// The type of the elements is known only to Python, or is not plain where
    /// required.
    NotPlain,
    /// A fault in the shape or strides.
    Dimensions(DimensionsError),
    /// The elements or records have another type than the one requested.
    OtherType {
        /// The type requested.
        wanted: DType,
        /// The type found.
        found: DType,
    },
    /// The value has another class than the one requested.
    OtherClass {
        /// The class requested.
        wanted: &'static str,
    },
    /// The payload has the wrong number of logical frames for the value.
    FrameCount {
        /// The number of logical frames.
        found: usize,
        /// The expected number.
        expected: usize,
    },
    /// The data is compressed and must be copied.
    Compressed,
    /// The data is in several frames and must be copied or read in parts.
    InParts,
    /// The elements have the other byte order or are not aligned for this
    /// machine.
    NotNative,
    /// A buffer is too small. The length is in bytes, or in elements for a
    /// buffer of elements. The caller can supply a larger one.
    BufferTooSmall(BufferTooSmall),
}

impl NumpyError {
    /// Creates an error about the caller's data, outside a message.
    pub(super) const fn of_value(kind: NumpyErrorKind) -> Self {
        Self {
            frame: 0,
            at: 0,
            kind,
        }
    }
}

impl NumpyError {
    /// Whether the caller can resolve the error: with a larger buffer, a copy,
    /// or a request for the type of the payload. All other errors are faults in
    /// the payload.
    pub const fn is_caller_fault(&self) -> bool {
        let (frame, at) = (self.frame, self.at);
        match self.kind {
            NumpyErrorKind::Message(kind) => MessageError { frame, at, kind }.is_caller_fault(),
            NumpyErrorKind::Pickle { offset, kind } => {
                PickleError { offset, kind }.is_caller_fault()
            }
            NumpyErrorKind::OtherType { .. }
            | NumpyErrorKind::OtherClass { .. }
            | NumpyErrorKind::Compressed
            | NumpyErrorKind::InParts
            | NumpyErrorKind::NotNative
            | NumpyErrorKind::Dimensions(
                DimensionsError::NotContiguous | DimensionsError::Repetitive { .. },
            )
            | NumpyErrorKind::BufferTooSmall(_) => true,
            _ => false,
        }
    }
}

impl From<MessageError> for NumpyError {
    fn from(error: MessageError) -> Self {
        Self {
            frame: error.frame,
            at: error.at,
            kind: NumpyErrorKind::Message(error.kind),
        }
    }
}

impl From<DimensionsError> for NumpyErrorKind {
    fn from(error: DimensionsError) -> Self {
        Self::Dimensions(error)
    }
}

impl From<PickleError> for NumpyErrorKind {
    fn from(error: PickleError) -> Self {
        Self::Pickle {
            offset: error.offset,
            kind: error.kind,
        }
    }
}

impl fmt::Display for NumpyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "in frame {}, at byte {}: {}",
            self.frame, self.at, self.kind
        )
    }
}

impl fmt::Display for NumpyErrorKind {
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
                write!(f, "the value is of another class; expected {wanted}")
            }
            Self::FrameCount { found, expected } => {
                write!(f, "the value has {found} frames; expected {expected}")
            }
            Self::Compressed => f.write_str("the data is compressed; copy it"),
            Self::InParts => {
                f.write_str("the data is in several frames; copy it or read it in parts")
            }
            Self::NotNative => {
                f.write_str("the elements have the other byte order or are not aligned; copy them")
            }
            Self::BufferTooSmall(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for NumpyError {}

/// The error of writing a value as a payload, a fault of the caller except for
/// [`BuildError::Payload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PayloadWriteError {
    /// An error of the message builder.
    Build(BuildError),
    /// The value cannot be written as a payload.
    Value(NumpyErrorKind),
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
