//! [`Error`], the sum of all errors of the crate.
//!
//! Errors in this crate distinguish three causes. [`BufferTooSmall`] is for the
//! caller: supply `needed` bytes and call again, no state was changed. Faults
//! in the peer's data are in the error type of the module that found them, with
//! an offset. An exceeded limit is reported with its value. An error type with
//! several causes has a method `is_caller_fault`; all others name their one cause.

use core::fmt;

use crate::BufferTooSmall;
use crate::comm::CommError;
use crate::compression::CompressionError;
use crate::frame::{EncodeError, FrameError, FrameErrorKind, SplitError};
use crate::handshake::HandshakeError;
use crate::message::{BuildError, MessageError, MessageErrorKind};
use crate::msgpack::{Malformed, WriteError};

/// Any error of this crate, for programs that handle all of them alike.
///
/// Every error type converts to it, so that one function can use `?` for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Error {
    /// A comm failed.
    Comm(CommError),
    /// A message on a stream is invalid or does not fit.
    Frame(FrameError),
    /// The frames of a message do not fit in a list of slices.
    Split(SplitError),
    /// A prelude cannot be written.
    Encode(EncodeError),
    /// The peer's first message is not a handshake.
    Handshake(HandshakeError),
    /// A message is invalid, or needs a larger scratch.
    Message(MessageError),
    /// A message cannot be built.
    Build(BuildError),
    /// A document is invalid.
    Document(Malformed),
    /// A document cannot be written.
    Write(WriteError),
    /// A frame cannot be compressed or decompressed.
    Compression(CompressionError),
    /// A buffer is too small.
    Buffer(BufferTooSmall),
}

impl Error {
    /// Whether the caller is at fault, usually because of a buffer that is too
    /// small. All other errors are faults in the peer's data.
    pub const fn is_caller_fault(&self) -> bool {
        match self {
            Self::Comm(error) => error.is_caller_fault(),
            Self::Frame(error) => error.is_caller_fault(),
            Self::Message(error) | Self::Build(BuildError::Payload(error)) => {
                error.is_caller_fault()
            }
            Self::Compression(error) => error.is_caller_fault(),
            Self::Handshake(_) | Self::Document(_) => false,
            Self::Split(_)
            | Self::Encode(_)
            | Self::Build(_)
            | Self::Write(_)
            | Self::Buffer(_) => true,
        }
    }

    /// The sufficient size of the buffer that is too small, in the unit of the error;
    /// `None` for other errors. Supply as much and call again.
    pub fn needed(&self) -> Option<u64> {
        let short = match *self {
            Self::Comm(CommError::Frame(error)) => return Self::Frame(error).needed(),
            Self::Frame(FrameError {
                kind: FrameErrorKind::NoBuffer { frames_len, .. },
                ..
            }) => return Some(frames_len),
            Self::Frame(FrameError {
                kind: FrameErrorKind::PreludeStorage(short),
                ..
            }) => short,
            Self::Message(MessageError {
                kind:
                    MessageErrorKind::TooFewLevels(short)
                    | MessageErrorKind::TooFewSlots(short)
                    | MessageErrorKind::BodyBuffer(short)
                    | MessageErrorKind::DataBuffer(short)
                    | MessageErrorKind::TooFewEnds(short),
                ..
            }) => short,
            Self::Build(
                BuildError::Headers(short)
                | BuildError::Slots(short)
                | BuildError::TooFewPayloads(short)
                | BuildError::TooFewLevels(short)
                | BuildError::Compression(CompressionError::BufferTooSmall(short))
                | BuildError::Body(WriteError::BufferTooSmall(short)),
            ) => short,
            Self::Compression(CompressionError::BufferTooSmall(short))
            | Self::Comm(CommError::Encode(EncodeError::BufferTooSmall(short)))
            | Self::Encode(EncodeError::BufferTooSmall(short))
            | Self::Write(WriteError::BufferTooSmall(short))
            | Self::Split(SplitError::Slots(short) | SplitError::Bytes(short))
            | Self::Buffer(short) => short,
            _ => return None,
        };
        Some(short.needed as u64)
    }
}

macro_rules! from {
    ($($variant:ident: $error:ty),+ $(,)?) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })+

        impl fmt::Display for Error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant(error) => error.fmt(f),)+
                }
            }
        }
    };
}

from! {
    Comm: CommError,
    Frame: FrameError,
    Split: SplitError,
    Encode: EncodeError,
    Handshake: HandshakeError,
    Message: MessageError,
    Build: BuildError,
    Document: Malformed,
    Write: WriteError,
    Compression: CompressionError,
    Buffer: BufferTooSmall,
}

impl core::error::Error for Error {}

crate::kinds! {
    Error: |error| match error {
        Self::Comm(CommError::Closed(_)) => ErrorKind::Connection,
        error if error.is_caller_fault() => ErrorKind::Invalid,
        _ => ErrorKind::Protocol,
    };
}
