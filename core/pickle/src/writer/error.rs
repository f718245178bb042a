//! The error of writing a pickle.

use core::fmt;

use crate::BufferTooSmall;

/// The error of [`Writer::finish`](crate::Writer::finish), a fault of the caller. Offsets
/// are those of the end of the pickle before the call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteError {
    /// The buffer is too small for a pickle that is otherwise valid.
    BufferTooSmall(BufferTooSmall),
    /// Values are missing at the end of the pickle or at a call of
    /// [`Writer::end`](crate::Writer::end).
    Unfinished {
        /// Offset in the pickle.
        at: usize,
        /// The number of values missing, over all open values.
        owed: u64,
    },
    /// More values were written than were declared, or
    /// [`Writer::end`](crate::Writer::end) was called without an open value.
    TooMany {
        /// Offset in the pickle.
        at: usize,
    },
    /// More values were open at a time than the caller supplied levels for.
    TooDeep {
        /// Offset in the pickle.
        at: usize,
        /// The number of levels supplied.
        levels: usize,
    },
    /// An integer is longer than the format allows (2^31 - 1 bytes).
    TooLong {
        /// Offset in the pickle.
        at: usize,
        /// Its length, in bytes.
        len: usize,
    },
    /// The bytes of a string are not UTF-8, even allowing surrogates.
    NotUtf8 {
        /// Offset in the pickle.
        at: usize,
        /// The length of the valid part, in bytes.
        valid_len: usize,
    },
    /// A [`PickleBuffer`](crate::PickleBuffer) was written to a pickle of protocol 4.
    NeedsProtocol5 {
        /// Offset in the pickle.
        at: usize,
    },
    /// There is no value to memoize: none was written, the value is not
    /// complete, or it is memoized already.
    NothingToMemoize {
        /// Offset in the pickle.
        at: usize,
    },
    /// More values were memoized than indices exist (2^32 - 1).
    MemoFull {
        /// Offset in the pickle.
        at: usize,
    },
    /// No value was memoized under this index.
    NotMemoized {
        /// Offset in the pickle.
        at: usize,
        /// The index requested.
        index: u32,
        /// The number of values memoized.
        count: u32,
    },
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::BufferTooSmall(error) => write!(f, "the pickle: {error}"),
            Self::Unfinished { at, owed } => write!(
                f,
                "the pickle is not finished at byte {at}: {owed} more values were declared"
            ),
            Self::TooMany { at } => write!(
                f,
                "more values were written or ended than were declared, at byte {at} of the pickle"
            ),
            Self::TooDeep { at, levels } => write!(
                f,
                "more than {levels} values are open at byte {at} of the pickle: \
                 supply more than {levels} levels to the writer"
            ),
            Self::TooLong { at, len } => write!(
                f,
                "an integer of {len} bytes, at byte {at} of the pickle, is longer than \
                 pickles allow (2147483647)"
            ),
            Self::NotUtf8 { at, valid_len } => write!(
                f,
                "the bytes of a string, at byte {at} of the pickle, are not UTF-8 after the first \
                 {valid_len}"
            ),
            Self::NeedsProtocol5 { at } => write!(
                f,
                "a buffer at byte {at} of the pickle needs protocol 5, and this is protocol 4"
            ),
            Self::NothingToMemoize { at } => write!(
                f,
                "there is no complete value to memoize at byte {at} of the pickle"
            ),
            Self::MemoFull { at } => write!(
                f,
                "more values were memoized than indices exist (4294967295), at byte {at} of the \
                 pickle"
            ),
            Self::NotMemoized { at, index, count } => write!(
                f,
                "no value was memoized under {index} at byte {at} of the pickle, only {count} \
                 values before it"
            ),
        }
    }
}

impl core::error::Error for WriteError {}

impl From<BufferTooSmall> for WriteError {
    fn from(error: BufferTooSmall) -> Self {
        Self::BufferTooSmall(error)
    }
}
