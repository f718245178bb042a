//! Errors of converting values of a pickle.

use core::fmt;

use crate::DimensionsError;

/// The error of converting a value: a fault in its pickle, or a name that the
/// caller does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConvertError {
    /// Offset in the pickle of the opcode that created the value, in bytes.
    pub offset: usize,
    /// The kind of error.
    pub kind: ConvertErrorKind,
}

/// The kind of a [`ConvertError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConvertErrorKind {
    /// The value is not an object with an allowed name.
    NotAllowed,
    /// The value is of another kind.
    Expected {
        /// The expected value.
        what: &'static str,
    },
    /// The value may be valid but is not supported.
    Unsupported {
        /// The unsupported part.
        what: &'static str,
    },
    /// The shape of an array is invalid or does not match its bytes.
    Dimensions(DimensionsError),
    /// The parts of the value are inconsistent or out of range.
    Invalid {
        /// The reason, for error messages.
        what: &'static str,
    },
}

impl fmt::Display for ConvertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: {}", self.offset, self.kind)
    }
}

impl fmt::Display for ConvertErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAllowed => f.write_str("the value is not an object with an allowed name"),
            Self::Expected { what } => write!(f, "expected {what}"),
            Self::Unsupported { what } => write!(f, "{what} cannot be converted"),
            Self::Dimensions(error) => error.fmt(f),
            Self::Invalid { what } => write!(f, "{what}"),
        }
    }
}

impl core::error::Error for ConvertError {}
