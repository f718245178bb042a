//! What goes wrong on a WebSocket.

use core::fmt;
use std::io;

use daskwire_comm::CommError;

/// The error of a WebSocket. A comm returns it within [`CommError::Io`]; see [`WsError::of`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WsError {
    /// The peer does not speak HTTP.
    NotHttp,
    /// The request or the answer that opens a WebSocket is longer than 32 KiB.
    HeadTooLong,
    /// The server has refused to open a WebSocket.
    Refused {
        /// The status of its answer, such as 404.
        status: u16,
    },
    /// The request or the answer that opens a WebSocket is invalid.
    Upgrade {
        /// What is wrong with it.
        reason: Box<str>,
    },
    /// The page of a browser has asked for a WebSocket.
    Origin {
        /// The origin of the page.
        origin: Box<str>,
    },
    /// The peer has sent a text message. Frames of Dask are binary messages.
    Text,
    /// The first message, with the number of frames, has not 8 bytes.
    CountLen {
        /// The number of bytes; at least so many if the message was not complete.
        len: u64,
    },
    /// The peer has broken the WebSocket protocol.
    Protocol {
        /// What is wrong.
        reason: Box<str>,
    },
    /// A message is longer than the limit.
    MessageTooLong {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The peer has closed the WebSocket with an error.
    ClosedByPeer {
        /// The status of the close message, such as 1009 for a message that is too long.
        code: u16,
        /// The reason that the peer gives, possibly empty.
        reason: Box<str>,
    },
    /// The connection has ended without a close message.
    NoClose,
}

impl WsError {
    /// The error of a WebSocket in the error of a comm, if it is one.
    pub fn of(error: &CommError) -> Option<&Self> {
        match error {
            CommError::Io(error) | CommError::Connect { error, .. } => {
                error.get_ref()?.downcast_ref()
            }
            _ => None,
        }
    }

    /// The status of the close message that reports this error to the peer (RFC 6455, section
    /// 7.4.1).
    pub(crate) const fn close_code(&self) -> u16 {
        match self {
            Self::Text => 1003,
            Self::MessageTooLong { .. } => 1009,
            // The status of the peer, if it is one that is sent.
            Self::ClosedByPeer { code, .. } if matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) => {
                *code
            }
            _ => 1002,
        }
    }

    const fn io_kind(&self) -> io::ErrorKind {
        match self {
            // A proxy answers so while its server restarts, so another attempt may succeed.
            Self::Refused {
                status: 429 | 500..,
            } => io::ErrorKind::ConnectionRefused,
            Self::Refused { status: 401 | 403 } => io::ErrorKind::PermissionDenied,
            // Another attempt would fail with the same error.
            Self::NotHttp
            | Self::HeadTooLong
            | Self::Refused { .. }
            | Self::Upgrade { .. }
            | Self::Origin { .. } => io::ErrorKind::Unsupported,
            Self::ClosedByPeer { .. } => io::ErrorKind::ConnectionAborted,
            Self::NoClose => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::InvalidData,
        }
    }
}

impl fmt::Display for WsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHttp => f.write_str(
                "the peer does not speak WebSocket; is its address one of tcp:// or tls://?",
            ),
            Self::HeadTooLong => f.write_str("the HTTP headers of the peer are longer than 32 KiB"),
            Self::Refused { status: 404 } => f.write_str(
                "there is no WebSocket at this path (HTTP status 404); Dask listens at /",
            ),
            Self::Refused {
                status: status @ (401 | 403),
            } => write!(
                f,
                "the server has refused the WebSocket (HTTP status {status}); does it need a \
                 header, such as a token?"
            ),
            Self::Refused { status } => {
                write!(
                    f,
                    "the server has refused the WebSocket (HTTP status {status})"
                )
            }
            Self::Upgrade { reason } => write!(f, "this is no WebSocket of Dask: {reason}"),
            Self::Origin { origin } => {
                write!(f, "a web page of {origin} has asked for a WebSocket")
            }
            Self::Text => f.write_str(
                "the peer has sent a text message, and frames of Dask are binary messages",
            ),
            Self::CountLen { len } => write!(
                f,
                "expected the number of frames in a message of 8 bytes, found {len} bytes"
            ),
            Self::Protocol { reason } => {
                write!(f, "the peer has broken the WebSocket protocol: {reason}")
            }
            Self::MessageTooLong { limit } => {
                write!(f, "the message is longer than the limit of {limit} bytes")
            }
            Self::ClosedByPeer { code, reason } => {
                write!(f, "the peer has closed the WebSocket with status {code}")?;
                match &**reason {
                    "" => Ok(()),
                    reason => write!(f, ": {reason}"),
                }
            }
            Self::NoClose => {
                f.write_str("the connection has ended without the close message of a WebSocket")
            }
        }
    }
}

impl core::error::Error for WsError {}

daskwire::kinds! {
    WsError: |error| daskwire_comm::kind_of_io(&error.io_kind().into());
}

impl From<WsError> for io::Error {
    fn from(error: WsError) -> Self {
        Self::new(error.io_kind(), error)
    }
}

impl From<WsError> for CommError {
    fn from(error: WsError) -> Self {
        Self::Io(error.into())
    }
}

/// A breach of the protocol.
pub(crate) fn protocol(reason: impl Into<Box<str>>) -> WsError {
    WsError::Protocol {
        reason: reason.into(),
    }
}

/// An invalid request or answer.
pub(crate) fn upgrade(reason: impl Into<Box<str>>) -> WsError {
    WsError::Upgrade {
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use daskwire_comm::ErrorKind;

    use super::*;

    #[test]
    fn an_error_has_the_same_kind_within_the_error_of_a_comm() {
        let cases = [
            (WsError::Refused { status: 503 }, ErrorKind::Connection),
            (WsError::Refused { status: 403 }, ErrorKind::Refused),
            (WsError::Refused { status: 404 }, ErrorKind::Unsupported),
            (WsError::NotHttp, ErrorKind::Unsupported),
            (WsError::Text, ErrorKind::Protocol),
            (WsError::NoClose, ErrorKind::Connection),
        ];
        for (error, kind) in cases {
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(error.is_retryable(), kind == ErrorKind::Connection);
            assert_eq!(CommError::from(error).kind(), kind);
        }
    }
}
