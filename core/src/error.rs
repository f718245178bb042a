//! The one error that is always the caller's own: a buffer that is too small.
//!
//! Errors in this crate say whose turn it is. [`BufferTooSmall`] is the
//! caller's: supply `needed` bytes and call again, nothing was changed. What a
//! peer did wrong is in the error type of the module that found it, with the
//! offset at which it was found. A limit that was exceeded names the limit.

use core::fmt;

/// A buffer that the caller supplied does not hold what has to go into it.
///
/// The contents of the buffer are unspecified; call again with at least `needed`
/// items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferTooSmall {
    /// How many items (bytes, unless the call says otherwise) are needed in all.
    /// Exact, except for data that does not say its length (zlib), of which it is
    /// more than there was room for.
    pub needed: usize,
    /// How many the caller supplied.
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
