//! Errors of exchanges with peers, and the error of all operations.

mod remote;

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use daskwire::message::BuildError;
use daskwire_comm::{Address, AddressError, CommError};

#[cfg(feature = "client")]
use crate::client::{ConnectError, Disconnected, ScatterError, SubmitError, TaskError};
#[cfg(feature = "local-cluster")]
use crate::cluster;
use crate::protocol::ProtocolError;
use crate::release::UnsupportedRelease;
#[cfg(feature = "scheduler")]
use crate::scheduler::{ServeError, StartError};
use crate::value::{ValueError, WrongType};
#[cfg(feature = "worker")]
use crate::worker;

pub use remote::RemoteError;
#[cfg(any(feature = "scheduler", test))]
pub(crate) use remote::{exception, killed_worker};

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
        /// The awaited reply or event.
        what: &'static str,
        /// The timeout.
        after: Duration,
    },
    /// A message cannot be encoded because it is too large for its format.
    Build(BuildError),
    /// A received message is malformed.
    Protocol(ProtocolError),
    /// The peer raised an exception while it handled the request.
    Remote(Box<RemoteError>),
    /// The peer does not read what it is sent; its connection was closed.
    NotReading {
        /// The limit of queued bytes.
        limit: usize,
    },
}

impl RequestError {
    pub(crate) fn parse_address(address: &str) -> Result<Address, Self> {
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
                write!(f, "{address:?} cannot be connected to: {error}")
            }
            Self::Comm(error) => error.fmt(f),
            Self::Closed { peer } => write!(f, "{peer} closed the connection without an answer"),
            Self::Timeout { what, after } => {
                write!(f, "{what}: timed out after {} seconds", after.as_secs_f64())
            }
            Self::Build(error) => write!(f, "the message cannot be sent: {error}"),
            Self::Protocol(error) => error.fmt(f),
            Self::Remote(error) => error.fmt(f),
            Self::NotReading { limit } => write!(
                f,
                "the peer does not read: more than {limit} bytes of messages wait for it"
            ),
        }
    }
}

impl core::error::Error for RequestError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Address { error, .. } => Some(error),
            Self::Comm(error) => Some(&**error),
            Self::Build(error) => Some(error),
            Self::Protocol(error) => Some(error),
            Self::Remote(error) => Some(&**error),
            Self::Closed { .. } | Self::Timeout { .. } | Self::NotReading { .. } => None,
        }
    }
}

/// Any error of a client, worker or scheduler: each operation has an error of its
/// own, and all of them convert to this one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PeerError {
    /// A request to a peer failed.
    Request(RequestError),
    /// A client cannot connect.
    #[cfg(feature = "client")]
    Connect(ConnectError),
    /// A client is not connected any more.
    #[cfg(feature = "client")]
    Disconnected(Disconnected),
    /// A task cannot be submitted.
    #[cfg(feature = "client")]
    Submit(SubmitError),
    /// The result of a task is not available.
    #[cfg(feature = "client")]
    Task(TaskError),
    /// Data cannot be stored on the cluster.
    #[cfg(feature = "client")]
    Scatter(ScatterError),
    /// A value cannot be serialized or deserialized.
    Value(ValueError),
    /// A value is not of the requested type.
    Type(WrongType),
    /// The scheduler's release is not supported.
    Release(UnsupportedRelease),
    /// A worker cannot start.
    #[cfg(feature = "worker")]
    StartWorker(worker::StartError),
    /// A scheduler cannot start.
    #[cfg(feature = "scheduler")]
    StartScheduler(StartError),
    /// A local cluster cannot start.
    #[cfg(feature = "local-cluster")]
    StartCluster(cluster::StartError),
    /// The scheduler in this process has ended.
    #[cfg(feature = "scheduler")]
    Scheduler(ServeError),
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => error.fmt(f),
            #[cfg(feature = "client")]
            Self::Connect(error) => error.fmt(f),
            #[cfg(feature = "client")]
            Self::Disconnected(error) => error.fmt(f),
            #[cfg(feature = "client")]
            Self::Submit(error) => error.fmt(f),
            #[cfg(feature = "client")]
            Self::Task(error) => error.fmt(f),
            #[cfg(feature = "client")]
            Self::Scatter(error) => error.fmt(f),
            Self::Value(error) => error.fmt(f),
            Self::Type(error) => error.fmt(f),
            Self::Release(error) => error.fmt(f),
            #[cfg(feature = "worker")]
            Self::StartWorker(error) => error.fmt(f),
            #[cfg(feature = "scheduler")]
            Self::StartScheduler(error) => error.fmt(f),
            #[cfg(feature = "local-cluster")]
            Self::StartCluster(error) => error.fmt(f),
            #[cfg(feature = "scheduler")]
            Self::Scheduler(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PeerError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Request(error) => error.source(),
            #[cfg(feature = "client")]
            Self::Connect(error) => error.source(),
            #[cfg(feature = "client")]
            Self::Submit(error) => error.source(),
            #[cfg(feature = "client")]
            Self::Task(error) => error.source(),
            #[cfg(feature = "client")]
            Self::Scatter(error) => error.source(),
            #[cfg(feature = "worker")]
            Self::StartWorker(error) => error.source(),
            #[cfg(feature = "scheduler")]
            Self::StartScheduler(error) => error.source(),
            #[cfg(feature = "local-cluster")]
            Self::StartCluster(error) => error.source(),
            #[cfg(feature = "scheduler")]
            Self::Scheduler(error) => error.source(),
            _ => None,
        }
    }
}

/// Implements `From` for error types.
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
#[cfg(any(feature = "client", feature = "worker"))]
pub(crate) use from;

from! {
    RequestError: CommError, error => Self::Comm(Arc::new(error));
    RequestError: BuildError, error => Self::Build(error);
    RequestError: ProtocolError, error => Self::Protocol(error);
    RequestError: RemoteError, error => Self::Remote(Box::new(error));
    PeerError: RequestError, error => Self::Request(error);
    PeerError: CommError, error => Self::Request(error.into());
    #[cfg(feature = "client")]
    PeerError: ConnectError, error => Self::Connect(error);
    #[cfg(feature = "client")]
    PeerError: Disconnected, error => Self::Disconnected(error);
    #[cfg(feature = "client")]
    PeerError: SubmitError, error => Self::Submit(error);
    #[cfg(feature = "client")]
    PeerError: TaskError, error => Self::Task(error);
    #[cfg(feature = "client")]
    PeerError: ScatterError, error => Self::Scatter(error);
    #[cfg(feature = "worker")]
    PeerError: worker::StartError, error => Self::StartWorker(error);
    #[cfg(feature = "scheduler")]
    PeerError: StartError, error => Self::StartScheduler(error);
    #[cfg(feature = "local-cluster")]
    PeerError: cluster::StartError, error => Self::StartCluster(error);
    #[cfg(feature = "scheduler")]
    PeerError: ServeError, error => Self::Scheduler(error);
    PeerError: ValueError, error => Self::Value(error);
    PeerError: WrongType, error => Self::Type(error);
    PeerError: UnsupportedRelease, error => Self::Release(error);
}

// Errors are moved often.
const _: () = assert!(size_of::<RequestError>() <= 64);
