//! What can go wrong with a comm.

use core::fmt;
use core::time::Duration;
use std::io;

use wire::frame::{EncodeError, FrameError, Prefix};
use wire::handshake::HandshakeError;
use wire::transport::TransportError;

#[cfg(feature = "tls")]
use crate::tls::TlsFailure;
use crate::{Address, AddressError};

/// Why a comm cannot be had, or is over.
///
/// All but [`CommError::Encode`] end the comm.
#[derive(Debug)]
#[non_exhaustive]
pub enum CommError {
    /// The connection ended where it should not have.
    Closed(Closed),
    /// Something took longer than [`CommOptions`](crate::CommOptions) allow.
    Timeout {
        /// What took so long.
        phase: Phase,
        /// How long it was given.
        after: Duration,
    },
    /// The peer sent what is no message, or one beyond the limits.
    Frame(FrameError),
    /// The peer's first message is no handshake.
    Handshake(HandshakeError),
    /// The peer frames its messages in another way than this side was told to
    /// ([`WireFormat`](crate::WireFormat)).
    Prefix {
        /// What the peer does.
        peer: Prefix,
    },
    /// What was to be sent is no message. The comm is as good as before.
    Encode(EncodeError),
    /// There is no memory for what arrived.
    OutOfMemory {
        /// How many bytes were needed at once.
        len: usize,
    },
    /// No connection could be made.
    Connect {
        /// Where to.
        address: Address,
        /// What the system said.
        error: io::Error,
    },
    /// The address cannot be listened on.
    Bind {
        /// Which one.
        address: Address,
        /// What the system said.
        error: io::Error,
    },
    /// No transport carries comms of this scheme.
    Scheme {
        /// The scheme of the address.
        scheme: Box<str>,
    },
    /// The transport of the scheme does not understand the rest of the address.
    Address {
        /// Which one.
        address: Address,
        /// What is wrong with it.
        error: AddressError,
    },
    /// The transport of this address needs TLS, and its options have none.
    NoTls {
        /// Which address.
        address: Address,
    },
    /// The two sides cannot agree on TLS, as when one refuses the certificate of
    /// the other.
    #[cfg(feature = "tls")]
    Tls(Box<TlsFailure>),
    /// The peer speaks TLS, which was not expected of its address.
    PeerSpeaksTls,
    /// The connection broke.
    Io(io::Error),
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Closed {
    /// The peer closed it before it had sent its handshake.
    BeforeHandshake,
    /// The peer closed it in the middle of the handshake of TLS.
    WithinTlsHandshake,
    /// The peer closed it in the middle of a message.
    WithinMessage(FrameError),
    /// A write was dropped after part of a message had left, so nothing more
    /// can be sent that the peer would understand.
    WriteCancelled,
    /// A message that has begun to arrive in the buffers of one call was to go
    /// on in those of another: the two ways of reading cannot be mixed within a
    /// message. Nothing is lost; read on in the way that it began.
    OtherBuffers,
    /// An earlier error, which was returned then, ended this half of the comm.
    AfterError,
    /// This side closed it.
    Locally,
    /// This side closed it before its handshake had finished, in favour of newer
    /// connections: there were more than
    /// [`CommOptions::max_handshakes`](crate::CommOptions::max_handshakes).
    Displaced,
}

/// What a deadline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Making the connection.
    Connect,
    /// The handshake.
    Handshake,
}

impl CommError {
    /// Whether the connection is simply gone, as it is when a peer stops or is
    /// killed: nobody broke a rule.
    pub fn is_closed(&self) -> bool {
        match self {
            Self::Closed(_) => true,
            Self::Io(error) => matches!(
                error.kind(),
                io::ErrorKind::BrokenPipe
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkDown
                    | io::ErrorKind::NetworkUnreachable
                    | io::ErrorKind::NotConnected
                    | io::ErrorKind::TimedOut
                    | io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::WriteZero
            ),
            _ => false,
        }
    }
}

impl fmt::Display for CommError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(closed) => closed.fmt(f),
            Self::Timeout { phase, after } => {
                let what = match phase {
                    Phase::Connect => "no connection was made",
                    Phase::Handshake => "the peer did not finish the handshake",
                };
                write!(f, "{what} within {after:?}")
            }
            Self::Frame(error) => write!(f, "the peer breaks the framing: {error}"),
            Self::Handshake(error) => write!(f, "the handshake failed: {error}"),
            Self::Prefix { peer: Prefix::None } => f.write_str(
                "the peer sends no leading length, as distributed did up to 2021.2.0, \
                 and this side does (see CommOptions::wire)",
            ),
            Self::Prefix { peer: Prefix::U64 } => f.write_str(
                "the peer sends a leading length, as distributed does since 2021.3.0, \
                 and this side does not (see CommOptions::wire)",
            ),
            Self::Encode(error) => write!(f, "the message cannot be sent: {error}"),
            Self::OutOfMemory { len } => {
                write!(f, "no memory for {len} bytes of a message that is arriving")
            }
            Self::Connect { address, error } => {
                write!(f, "cannot connect to {address}: {error}")
            }
            Self::Bind { address, error } => write!(f, "cannot listen on {address}: {error}"),
            Self::Scheme { scheme } => {
                write!(
                    f,
                    "no transport for {scheme}:// addresses is available here"
                )
            }
            Self::Address { address, error } => write!(f, "{address}: {error}"),
            Self::NoTls { address } => write!(
                f,
                "{address} needs TLS, for which there are no settings: a ca-file, a cert and \
                 its key"
            ),
            #[cfg(feature = "tls")]
            Self::Tls(failure) => failure.fmt(f),
            Self::PeerSpeaksTls => f.write_str(
                "the peer speaks TLS, and this side was told not to: \
                 use a tls:// address",
            ),
            Self::Io(error) => write!(f, "the connection failed: {error}"),
        }
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BeforeHandshake => {
                f.write_str("the peer closed the connection before its handshake")
            }
            Self::WithinTlsHandshake => f.write_str(
                "the peer closed the connection during the handshake of TLS; \
                 it may not speak TLS, or refuse the certificate of this side",
            ),
            Self::WithinMessage(error) => {
                write!(
                    f,
                    "the peer closed the connection within a message: {error}"
                )
            }
            Self::WriteCancelled => f.write_str(
                "an earlier write was cancelled after part of its message had been sent, \
                 so this comm cannot send any more",
            ),
            Self::OtherBuffers => f.write_str(
                "a message is arriving in the buffers of an earlier call, and has to go on there",
            ),
            Self::AfterError => f.write_str("the comm is closed after an earlier error"),
            Self::Locally => f.write_str("the comm was closed on this side"),
            Self::Displaced => f.write_str(
                "this side ended the handshake in favour of newer connections, of which \
                 there were too many",
            ),
        }
    }
}

impl core::error::Error for CommError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Frame(error) => Some(error),
            Self::Handshake(error) => Some(error),
            Self::Encode(error) => Some(error),
            #[cfg(feature = "tls")]
            Self::Tls(failure) => failure.source(),
            Self::Connect { error, .. } | Self::Bind { error, .. } | Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl TransportError for CommError {
    fn is_closed(&self) -> bool {
        self.is_closed()
    }
}

impl From<Closed> for CommError {
    fn from(closed: Closed) -> Self {
        Self::Closed(closed)
    }
}

impl From<FrameError> for CommError {
    fn from(error: FrameError) -> Self {
        Self::Frame(error)
    }
}

impl From<HandshakeError> for CommError {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

impl From<EncodeError> for CommError {
    fn from(error: EncodeError) -> Self {
        Self::Encode(error)
    }
}
