//! The errors of comms.

use core::fmt;
use core::time::Duration;
use std::io;

use daskwire::ErrorKind;
use daskwire::frame::{EncodeError, FrameError, Prefix};
use daskwire::handshake::HandshakeError;
use daskwire::transport::TransportError;

#[cfg(feature = "tls")]
use crate::tls::TlsFailure;
use crate::{Address, AddressError};

/// The error of a comm, or of making one.
///
/// Every error ends the comm, or the half of it that returned the error, except for
/// [`CommError::Encode`], and [`NoBuffer`](daskwire::frame::FrameErrorKind::NoBuffer) if nothing
/// of a message was stored.
#[derive(Debug)]
#[non_exhaustive]
pub enum CommError {
    /// The connection ended early, or was closed before.
    Closed(Closed),
    /// A timeout of [`CommOptions`](crate::CommOptions) has passed.
    Timeout {
        /// The operation that timed out.
        phase: Phase,
        /// The timeout.
        timeout: Duration,
    },
    /// The peer sent an invalid message, or one beyond the limits.
    Frame(FrameError),
    /// The peer's first message is not a handshake.
    Handshake(HandshakeError),
    /// The peer frames its messages differently from the configured
    /// [`WireFormat`](crate::WireFormat).
    Prefix {
        /// The framing of the peer.
        peer: Prefix,
    },
    /// The message to send is invalid. The comm can still be used.
    Encode(EncodeError),
    /// The memory for an arriving message cannot be allocated.
    OutOfMemory {
        /// The size of the allocation, in bytes.
        len: usize,
    },
    /// The connection could not be made.
    Connect {
        /// The address of the peer.
        address: Address,
        /// The error of the system.
        error: io::Error,
    },
    /// The listener could not be bound.
    Bind {
        /// The address.
        address: Address,
        /// The error of the system.
        error: io::Error,
    },
    /// No transport has this scheme.
    Scheme {
        /// The scheme of the address.
        scheme: Box<str>,
    },
    /// The transport of the scheme cannot use the location of the address.
    Address {
        /// The address.
        address: Address,
        /// The error of the address.
        error: AddressError,
    },
    /// The transport of this address needs TLS settings, and has none.
    NoTls {
        /// The address.
        address: Address,
    },
    /// The TLS handshake failed, for example because one end refused the certificate
    /// of the other.
    #[cfg(feature = "tls")]
    Tls(Box<TlsFailure>),
    /// The peer uses TLS, but the scheme of its address does not.
    PeerSpeaksTls,
    /// The peer answers in HTTP, as a dashboard does.
    PeerSpeaksHttp,
    /// An I/O error of the connection.
    Io(io::Error),
}

/// The way in which a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Closed {
    /// The peer closed the connection before its handshake.
    BeforeHandshake,
    /// The peer closed the connection within the TLS handshake.
    WithinTlsHandshake,
    /// The peer closed the connection within a message.
    WithinMessage(FrameError),
    /// A write was dropped after part of a message was sent, so no more messages can
    /// be sent.
    WriteCancelled,
    /// An earlier error ended this half of the comm.
    AfterError,
    /// This side closed the comm.
    Locally,
    /// This side ended the handshake because newer connections exceeded
    /// [`CommOptions::max_handshakes`](crate::CommOptions::max_handshakes).
    Displaced,
}

/// The operation that a timeout limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Making the connection.
    Connect,
    /// The handshake.
    Handshake,
}

impl CommError {
    /// Whether the connection is gone, as when a peer stops or is killed, and no
    /// protocol error has occurred.
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
            Self::Timeout { phase, timeout } => {
                let what = match phase {
                    Phase::Connect => "no connection was made",
                    Phase::Handshake => "the peer did not finish the handshake",
                };
                write!(f, "{what} within {timeout:?}")
            }
            Self::Frame(error) => daskwire::comm::CommError::Frame(*error).fmt(f),
            Self::Handshake(error) => daskwire::comm::CommError::Handshake(*error).fmt(f),
            Self::Prefix { peer } => {
                let error = daskwire::comm::CommError::Prefix { peer: *peer };
                write!(f, "{error} (see CommOptions::wire)")
            }
            Self::Encode(error) => daskwire::comm::CommError::Encode(*error).fmt(f),
            Self::OutOfMemory { len } => {
                write!(
                    f,
                    "there is no memory for {len} bytes of the message that is arriving"
                )
            }
            Self::Connect { address, error } => {
                write!(f, "cannot connect to {address}: {error}")
            }
            Self::Bind { address, error } => write!(f, "cannot listen on {address}: {error}"),
            Self::Scheme { scheme } => {
                write!(f, "this program has no transport for {scheme}:// addresses")
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
                "the peer speaks TLS, and the scheme of this address does not: \
                 use a tls:// address, or wss:// instead of ws://",
            ),
            Self::PeerSpeaksHttp => f.write_str(
                "this is an HTTP server, such as the dashboard; did you mean the scheduler's \
                 own port, by default 8786?",
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
                "the peer closed the connection during the TLS handshake; \
                 it may not use TLS, or may refuse the certificate of this side",
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
            Self::AfterError => f.write_str("the comm is closed after an earlier error"),
            Self::Locally => f.write_str("the comm was closed on this side"),
            Self::Displaced => f.write_str(
                "this side ended the handshake in favour of newer connections, of which \
                 there were too many",
            ),
        }
    }
}

daskwire::kinds! {
    CommError: |error| match error {
        Self::Closed(_) => ErrorKind::Connection,
        Self::Timeout { .. } => ErrorKind::Timeout,
        Self::Connect { error, .. } | Self::Io(error) => kind_of_io(error),
        Self::Encode(_) | Self::Scheme { .. } | Self::NoTls { .. } => ErrorKind::Invalid,
        Self::Address { error, .. } => error.kind(),
        Self::Bind { .. } | Self::OutOfMemory { .. } => ErrorKind::System,
        #[cfg(feature = "tls")]
        Self::Tls(failure) => failure.kind(),
        Self::Frame(_)
        | Self::Handshake(_)
        | Self::Prefix { .. }
        | Self::PeerSpeaksTls
        | Self::PeerSpeaksHttp => ErrorKind::Protocol,
    };
}

/// The kind of an I/O error of a connection. Those of transports, such as a WebSocket that a proxy
/// refuses, tell by theirs what happened.
#[doc(hidden)]
pub fn kind_of_io(error: &io::Error) -> ErrorKind {
    // Too many files are open, in the process or in the system, which has no kind in std.
    if cfg!(unix) && matches!(error.raw_os_error(), Some(23 | 24)) {
        return ErrorKind::System;
    }
    match error.kind() {
        io::ErrorKind::TimedOut => ErrorKind::Timeout,
        io::ErrorKind::OutOfMemory => ErrorKind::System,
        io::ErrorKind::InvalidInput => ErrorKind::Invalid,
        io::ErrorKind::PermissionDenied => ErrorKind::Refused,
        io::ErrorKind::Unsupported => ErrorKind::Unsupported,
        io::ErrorKind::InvalidData => ErrorKind::Protocol,
        _ => ErrorKind::Connection,
    }
}

impl core::error::Error for CommError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        #[cfg(feature = "tls")]
        if let Self::Tls(failure) = self {
            return failure.source();
        }
        None
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

impl From<daskwire::comm::CommError> for CommError {
    fn from(error: daskwire::comm::CommError) -> Self {
        use daskwire::comm::{Closed as Reason, CommError as Error};
        Self::Closed(match error {
            Error::Frame(error) => return Self::Frame(error),
            Error::Handshake(error) => return Self::Handshake(error),
            Error::Prefix { peer } => return Self::Prefix { peer },
            Error::Encode(error) => return Self::Encode(error),
            Error::Closed(Reason::BeforeHandshake) => Closed::BeforeHandshake,
            Error::Closed(Reason::WithinMessage(error)) => Closed::WithinMessage(error),
            Error::Closed(Reason::WriteCancelled) => Closed::WriteCancelled,
            Error::Closed(Reason::Locally) => Closed::Locally,
            _ => Closed::AfterError,
        })
    }
}
