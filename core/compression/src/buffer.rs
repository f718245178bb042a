//! Buffers of the caller that are too small.

use core::fmt;

/// The error for a buffer of the caller that is too small.
///
/// The contents of the buffer are unspecified. Call again with at least `needed`
/// items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BufferTooSmall {
    /// The number of items (default: bytes) required in all. Exact, except for
    /// data without a declared length (zlib), for which it is only a lower
    /// bound.
    pub needed: usize,
    /// The number of items supplied.
    pub available: usize,
}

impl BufferTooSmall {
    /// Checks the size of a buffer and returns its first `needed` items.
    ///
    /// # Errors
    ///
    /// This error if the buffer has fewer.
    pub fn check<T>(buffer: &mut [T], needed: usize) -> Result<&mut [T], Self> {
        let available = buffer.len();
        let short = Self { needed, available };
        buffer.get_mut(..needed).ok_or(short)
    }
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
