//! The errors of comms.

use core::fmt;

use crate::frame::{EncodeError, FrameError, Prefix};
use crate::handshake::HandshakeError;

/// The error of a comm without I/O.
///
/// Errors for which [`is_caller_fault`](Self::is_caller_fault) is false are final: the comm
/// receives and sends nothing more, and returns [`Closed::AfterError`] from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum CommError {
    /// The comm is closed.
    Closed(Closed),
    /// The peer sent an invalid message, or one that exceeds the limits or the
    /// buffers.
    Frame(FrameError),
    /// The peer's first message is not a valid handshake.
    Handshake(HandshakeError),
    /// The peer uses another prefix than this side, which chose it
    /// ([`HandshakeRole::SendFirst`](super::HandshakeRole::SendFirst)).
    Prefix {
        /// The prefix of the peer.
        peer: Prefix,
    },
    /// The message cannot be sent: it has no frames, or there is not enough
    /// free space in the buffer. Nothing was sent or queued.
    Encode(EncodeError),
    /// A message was read or sent before the handshake was complete.
    NotOpen,
    /// A message, or a part of it, is in the buffer, and has to arrive and be
    /// [taken](super::Comm::take_message) first.
    MessageWaiting,
}

/// The error of [`Comm::drive`](super::Comm::drive) over a stream whose error is `E`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum DriveError<E> {
    /// The comm failed.
    Comm(CommError),
    /// The stream accepted no bytes.
    WriteZero,
    /// The stream failed. What was received and queued before is kept.
    Io(E),
}

/// The reason why a comm is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Closed {
    /// The peer closed the comm before its handshake.
    BeforeHandshake,
    /// The peer closed the comm within a message.
    WithinMessage(FrameError),
    /// A write was dropped after part of its message had been sent, so the
    /// stream is no longer valid.
    WriteCancelled,
    /// An earlier error, which has been returned, ended this side of the comm.
    AfterError,
    /// This side closed the comm.
    Locally,
}

impl CommError {
    /// Whether the caller can resolve the error and continue. All other errors are
    /// final.
    pub const fn is_caller_fault(&self) -> bool {
        match self {
            Self::Frame(error) => error.is_caller_fault(),
            Self::Encode(_) | Self::NotOpen | Self::MessageWaiting => true,
            Self::Closed(_) | Self::Handshake(_) | Self::Prefix { .. } => false,
        }
    }
}

impl fmt::Display for CommError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(closed) => closed.fmt(f),
            Self::Frame(error) => write!(f, "the message cannot be received: {error}"),
            Self::Handshake(error) => write!(f, "the handshake failed: {error}"),
            Self::Prefix { peer: Prefix::None } => f.write_str(
                "the peer sends no leading length, as distributed did up to 2021.2.0, \
                 and this side does",
            ),
            Self::Prefix { peer: Prefix::U64 } => f.write_str(
                "the peer sends a leading length, as distributed does since 2021.3.0, \
                 and this side does not",
            ),
            Self::Encode(error) => write!(f, "the message cannot be sent: {error}"),
            Self::NotOpen => {
                f.write_str("the handshake is not complete, so no message can be read or sent")
            }
            Self::MessageWaiting => {
                f.write_str("a message or a part of it is in the buffer, and has to be taken first")
            }
        }
    }
}

impl core::error::Error for CommError {}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BeforeHandshake => f.write_str("the peer closed the comm before its handshake"),
            Self::WithinMessage(error) => {
                write!(f, "the peer closed the comm within a message: {error}")
            }
            Self::WriteCancelled => f.write_str(
                "an earlier write was cancelled after part of its message had been sent, \
                 so this comm cannot send any more",
            ),
            Self::AfterError => f.write_str("the comm is closed after an earlier error"),
            Self::Locally => f.write_str("the comm was closed on this side"),
        }
    }
}

impl core::error::Error for Closed {}

impl<E: fmt::Display> fmt::Display for DriveError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Comm(error) => error.fmt(f),
            Self::WriteZero => f.write_str("the stream accepted no bytes"),
            Self::Io(error) => write!(f, "the stream failed: {error}"),
        }
    }
}

impl<E: core::error::Error> core::error::Error for DriveError<E> {}

impl<E> From<CommError> for DriveError<E> {
    fn from(error: CommError) -> Self {
        Self::Comm(error)
    }
}

macro_rules! from {
    ($($variant:ident: $error:ty),+ $(,)?) => {
        $(impl From<$error> for CommError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })+
    };
}

from! {
    Closed: Closed,
    Frame: FrameError,
    Handshake: HandshakeError,
    Encode: EncodeError,
}
