//! The error of exchanges with peers.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use daskwire::message::BuildError;
use daskwire_comm::{Address, AddressError, CommError};

use daskwire_messages::protocol::ProtocolError;
use daskwire_messages::value::{ValueError, WrongType};
use daskwire_messages::{Key, Release, RemoteError};

/// The error of a request to a peer, or of a stream of messages.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RequestError {
    /// The address of the peer is invalid.
    Address {
        /// The string given as an address.
        address: String,
        /// The fault in the address.
        error: AddressError,
    },
    /// The connection failed, or could not be made.
    Comm(Arc<CommError>),
    /// The peer closed the connection instead of replying.
    Closed {
        /// The peer's address.
        peer: String,
    },
    /// A reply or an event did not arrive in time.
    Timeout {
        /// The awaited reply or event, as a noun phrase.
        waiting_for: &'static str,
        /// The timeout.
        timeout: Duration,
    },
    /// A message cannot be encoded because it is too large for its format.
    Build(BuildError),
    /// A received message is malformed.
    Protocol(ProtocolError),
    /// The peer raised an exception while it handled the request.
    Remote(Box<RemoteError>),
    /// The scheduler does not have all of the results that a request is about.
    Missing {
        /// The op of the request.
        op: &'static str,
        /// The keys of the missing results.
        keys: Vec<Key>,
    },
    /// A value of the request cannot be serialized.
    Value(Box<ValueError>),
    /// The client is not connected to its scheduler.
    Disconnected {
        /// The reason.
        reason: String,
        /// Whether the client reconnects.
        is_reconnecting: bool,
    },
    /// The scheduler runs a release of Dask that does not support the operation.
    Unsupported {
        /// The operation.
        what: &'static str,
        /// The scheduler's release.
        release: Release,
        /// The first release of Dask for which this client supports the operation.
        since: Release,
    },
    /// The reply is a value of another type than the program asked for.
    Reply {
        /// The op of the request.
        op: Box<str>,
        /// The requested type and the type of the reply.
        error: Box<WrongType>,
    },
    /// The peer does not read its messages, so its connection was closed.
    NotReading {
        /// The limit of queued bytes.
        limit: usize,
    },
}

impl RequestError {
    /// The error of a value of the request.
    #[doc(hidden)]
    pub fn unserializable(error: ValueError) -> Self {
        Self::Value(Box::new(error))
    }

    /// Reads an address.
    #[doc(hidden)]
    pub fn parse_address(address: &str) -> Result<Address, Self> {
        address.parse().map_err(|error| Self::Address {
            address: address.to_owned(),
            error,
        })
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { address, error } => {
                write!(f, "cannot connect to {address:?}: {error}")
            }
            Self::Comm(error) => error.fmt(f),
            Self::Closed { peer } => write!(f, "{peer} closed the connection without an answer"),
            Self::Timeout {
                waiting_for,
                timeout,
            } => {
                let seconds = timeout.as_secs_f64();
                write!(
                    f,
                    "timed out after {seconds} seconds waiting for {waiting_for}"
                )
            }
            Self::Build(error) => write!(f, "the message cannot be sent: {error}"),
            Self::Protocol(error) => error.fmt(f),
            Self::Remote(error) => error.fmt(f),
            Self::Missing { op, keys } => {
                write!(f, "{op}: the scheduler does not have these results:")?;
                keys.iter().try_for_each(|key| write!(f, " {key}"))
            }
            Self::Value(error) => write!(f, "the request cannot be sent: {error}"),
            Self::Disconnected { reason, .. } => {
                write!(f, "not connected to the scheduler: {reason}")
            }
            Self::Unsupported {
                what,
                release,
                since,
            } => write!(
                f,
                "the scheduler runs distributed {release}, which this client does not support \
                 for {what}: upgrade the cluster to {since} or later"
            ),
            Self::Reply { op, error } => write!(f, "unexpected reply to {op}: {error}"),
            Self::NotReading { limit } => write!(
                f,
                "the peer does not read its messages: more than {limit} bytes are queued for it"
            ),
        }
    }
}

daskwire::kinds! {
    RequestError: |error| match error {
        Self::Address { error, .. } => error.kind(),
        Self::Comm(error) => error.kind(),
        Self::Protocol(error) => error.kind(),
        Self::Remote(error) => error.kind(),
        Self::Closed { .. }
        | Self::NotReading { .. }
        | Self::Disconnected { is_reconnecting: true, .. } => ErrorKind::Connection,
        Self::Disconnected { .. } => ErrorKind::Closed,
        Self::Timeout { .. } => ErrorKind::Timeout,
        Self::Build(_) | Self::Value(_) => ErrorKind::Invalid,
        Self::Missing { .. } => ErrorKind::Lost,
        Self::Unsupported { .. } => ErrorKind::Unsupported,
        Self::Reply { error, .. } => error.kind(),
    };
}

impl core::error::Error for RequestError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Comm(error) => error.source(),
            _ => None,
        }
    }
}

/// Implements `From` for error types.
#[doc(hidden)]
#[macro_export]
macro_rules! from {
    ($($(#[$attribute:meta])* $for:ident: $type:ty, $error:ident => $made:expr;)*) => {$(
        $(#[$attribute])*
        impl From<$type> for $for {
            fn from($error: $type) -> Self {
                $made
            }
        }
    )*};
}

from! {
    RequestError: CommError, error => Self::Comm(Arc::new(error));
    RequestError: BuildError, error => Self::Build(error);
    RequestError: ProtocolError, error => Self::Protocol(error);
    RequestError: RemoteError, error => Self::Remote(Box::new(error));
}

// Errors are moved often, so they must be small.
const _: () = assert!(size_of::<RequestError>() <= 64);
