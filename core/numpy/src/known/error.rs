//! What is wrong with a value of a pickle that is to mean something.

use core::fmt;

use crate::DimensionsError;

/// A value does not mean what was expected, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvertError {
    /// Offset in the pickle, in bytes, of the opcode that made the value.
    pub offset: usize,
    /// What is wrong with it.
    pub kind: ConvertErrorKind,
}

/// Why a value does not mean what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConvertErrorKind {
    /// It is not made of a name that is allowed.
    NotAllowed,
    /// It is of another kind.
    Expected {
        /// What was expected.
        what: &'static str,
    },
    /// It may be right, but is not understood here.
    Unsupported {
        /// What is not understood.
        what: &'static str,
    },
    /// The shape of an array, or that its elements do not take the bytes that
    /// there are.
    Dimensions(DimensionsError),
    /// Its parts contradict one another, or have values that are none.
    Invalid {
        /// What is wrong.
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
            Self::NotAllowed => f.write_str("the value is not made of a name that is allowed"),
            Self::Expected { what } => write!(f, "expected {what}"),
            Self::Unsupported { what } => write!(f, "{what} cannot be converted"),
            Self::Dimensions(error) => error.fmt(f),
            Self::Invalid { what } => write!(f, "{what}"),
        }
    }
}

impl core::error::Error for ConvertError {}
