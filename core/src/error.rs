//! The error for a caller's buffer that is too small.
//!
//! Errors in this crate distinguish three causes. [`BufferTooSmall`] is for the
//! caller: supply `needed` bytes and call again, no state was changed. Faults
//! in the peer's data are in the error type of the module that found them, with
//! an offset. An exceeded limit is reported with its value. An error type with
//! several causes has a method `is_callers`; all others name their one cause.

use core::fmt;

/// A buffer supplied by the caller is too small.
///
/// The contents of the buffer are unspecified; call again with at least `needed`
/// items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferTooSmall {
    /// The number of items (default: bytes) required in all. Exact, except for
    /// data without a declared length (zlib), for which it is only a lower
    /// bound.
    pub needed: usize,
    /// The number of items supplied.
    pub available: usize,
}

impl fmt::Display for BufferTooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the buffer supplied is too small: {} needed, {} available",
            self.needed, self.available
        )
    }
}

impl core::error::Error for BufferTooSmall {}
