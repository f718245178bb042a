//! The conversion of QUIC errors to those of comms.

use core::fmt;
use std::io;

use quinn::{ConnectionError, ReadError, TransportErrorCode, VarInt, WriteError};

use crate::ALPN;

/// Codes that end streams and connections (PROTOCOL QUIC-12). QUIC implementations send
/// 0 by themselves, so it has no meaning here.
pub(crate) mod code {
    use quinn::VarInt;

    /// Ends a connection on which all data that the peer sent was received.
    pub(crate) const DONE: VarInt = VarInt::from_u32(1);
    /// Ends a comm, or a connection with all its comms, that its owner has dropped.
    pub(crate) const GONE: VarInt = VarInt::from_u32(2);
    /// Refuses a stream: no more comms are accepted.
    pub(crate) const REFUSED: VarInt = VarInt::from_u32(3);
}

/// The TLS alert `no_application_protocol` (RFC 7301).
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// The error of a lost connection, with a message for users.
#[derive(Clone, Debug)]
pub(crate) struct LostConnection(ConnectionError);

impl LostConnection {
    /// The TLS alert that ended the connection, and whether the peer sent it.
    fn alert(&self) -> Option<(u8, bool)> {
        let (code, is_theirs) = match &self.0 {
            ConnectionError::ConnectionClosed(close) => (close.error_code, true),
            ConnectionError::TransportError(error) => (error.code, false),
            _ => return None,
        };
        // RFC 9001, section 4.8.
        match u64::from(code).checked_sub(0x100) {
            Some(alert) => u8::try_from(alert).ok().map(|alert| (alert, is_theirs)),
            None => None,
        }
    }
}

impl fmt::Display for LostConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.alert() {
            Some((NO_APPLICATION_PROTOCOL, _)) => {
                let alpn = String::from_utf8_lossy(ALPN);
                return write!(
                    f,
                    "the peer speaks QUIC, but not {alpn} (TLS found no application protocol \
                     in common)"
                );
            }
            Some((alert, true)) => {
                return write!(
                    f,
                    "the peer refused the TLS handshake: {}",
                    alert_name(alert)
                );
            }
            _ => {}
        }
        match &self.0 {
            ConnectionError::TransportError(error) => {
                write!(f, "the QUIC connection failed: {error}")
            }
            ConnectionError::ConnectionClosed(close) => {
                write!(f, "the peer ended the QUIC connection: {close}")
            }
            ConnectionError::ApplicationClosed(_) => {
                f.write_str("the peer closed the QUIC connection")
            }
            ConnectionError::Reset => f.write_str("the peer does not know the QUIC connection"),
            ConnectionError::TimedOut => {
                f.write_str("the peer has sent nothing within the idle timeout")
            }
            ConnectionError::LocallyClosed => {
                f.write_str("the QUIC connection was closed on this side")
            }
            other => write!(f, "the QUIC connection failed: {other}"),
        }
    }
}

impl core::error::Error for LostConnection {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// The name of a TLS alert that the peer sent (RFC 8446, section 6).
fn alert_name(alert: u8) -> String {
    let name = match alert {
        40 => "handshake_failure",
        42 => "bad_certificate, about the certificate of this side",
        43 => "unsupported_certificate, about the certificate of this side",
        44 => "certificate_revoked, about the certificate of this side",
        45 => "certificate_expired, about the certificate of this side",
        46 => "certificate_unknown, about the certificate of this side",
        48 => {
            "unknown_ca, since the peer does not trust the authority that signed the certificate of this side"
        }
        49 => "access_denied",
        51 => "decrypt_error",
        70 => "protocol_version",
        112 => "unrecognized_name",
        116 => "certificate_required, since this side sent no certificate",
        _ => return format!("alert {alert}"),
    };
    format!("alert {alert}, {name}")
}

/// Converts the reason for the loss of a connection to an I/O error.
pub(crate) fn lost(error: ConnectionError) -> io::Error {
    use io::ErrorKind;
    let alert = LostConnection(error.clone()).alert();
    let kind = match &error {
        // One end refused the certificate of the other, or the TLS handshake as a whole.
        _ if alert.is_some_and(|(alert, _)| alert != NO_APPLICATION_PROTOCOL) => {
            ErrorKind::PermissionDenied
        }
        ConnectionError::TimedOut => ErrorKind::TimedOut,
        ConnectionError::Reset => ErrorKind::ConnectionReset,
        ConnectionError::ApplicationClosed(_) | ConnectionError::LocallyClosed => {
            ErrorKind::ConnectionAborted
        }
        ConnectionError::ConnectionClosed(close) => match close.error_code {
            TransportErrorCode::CONNECTION_REFUSED => ErrorKind::ConnectionRefused,
            TransportErrorCode::NO_ERROR
            | TransportErrorCode::INTERNAL_ERROR
            | TransportErrorCode::APPLICATION_ERROR => ErrorKind::ConnectionAborted,
            // A protocol error of either end.
            _ => ErrorKind::InvalidData,
        },
        ConnectionError::TransportError(_) | ConnectionError::VersionMismatch => {
            ErrorKind::InvalidData
        }
        ConnectionError::CidsExhausted => ErrorKind::Other,
    };
    io::Error::new(kind, LostConnection(error))
}

/// Whether any other attempt would fail with the same error: TLS settings and versions
/// do not change within a deadline.
pub(crate) fn is_final(error: &ConnectionError) -> bool {
    daskwire_comm::is_permanent(&lost(error.clone()))
}

/// Converts the error of a read.
pub(crate) fn of_read(error: ReadError) -> io::Error {
    match error {
        ReadError::Reset(code::REFUSED) => refused(),
        ReadError::Reset(code) => {
            io::Error::new(io::ErrorKind::ConnectionReset, EndedStream::Reset(code))
        }
        ReadError::ConnectionLost(reason) => lost(reason),
        error => error.into(),
    }
}

/// Converts the error of a write.
pub(crate) fn of_write(error: WriteError) -> io::Error {
    match error {
        WriteError::Stopped(code) => stopped(code),
        WriteError::ConnectionLost(reason) => lost(reason),
        error => error.into(),
    }
}

pub(crate) fn stopped(code: VarInt) -> io::Error {
    match code {
        code::REFUSED => refused(),
        code => io::Error::new(io::ErrorKind::BrokenPipe, EndedStream::Stopped(code)),
    }
}

/// The error of a stream that the peer refused.
pub(crate) fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, EndedStream::Refused)
}

/// The error of a stream that the peer ended, with a message for users.
#[derive(Clone, Copy, Debug)]
enum EndedStream {
    Reset(VarInt),
    Stopped(VarInt),
    Refused,
}

impl fmt::Display for EndedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset(code) => write!(
                f,
                "the peer dropped the comm without closing it (code {code})"
            ),
            Self::Stopped(code) => {
                write!(f, "the peer does not read this comm any more (code {code})")
            }
            Self::Refused => f.write_str("the peer accepts no comms any more"),
        }
    }
}

impl core::error::Error for EndedStream {}
