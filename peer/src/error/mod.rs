//! Errors of exchanges with peers, and an error that covers all operations.

mod exception;
mod remote;

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use daskwire::message::BuildError;
use daskwire_comm::{Address, AddressError, CommError};

#[cfg(feature = "client")]
use crate::client::{ConnectError, Disconnected, RunError, ScatterError, SubmitError, TaskError};
#[cfg(feature = "local-cluster")]
use crate::cluster;
use crate::protocol::ProtocolError;
#[cfg(feature = "scheduler")]
use crate::scheduler::{ServeError, StartError};
use crate::value::{ValueError, WrongType};
#[cfg(feature = "worker")]
use crate::worker;
use crate::{Key, Release};

pub use remote::RemoteError;
#[cfg(any(feature = "scheduler", test))]
pub(crate) use remote::exception;
#[cfg(any(
    feature = "scheduler",
    all(feature = "worker", target_os = "linux"),
    test
))]
pub(crate) use remote::killed_worker;

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
    /// The scheduler does not have all of the results that a request is about.
    Missing {
        /// The op of the request.
        op: &'static str,
        /// The keys of the missing results.
        keys: Vec<Key>,
    },
    /// A value of the request cannot be serialized.
    Value(Box<ValueError>),
    /// The client is not connected to its scheduler any more.
    Disconnected {
        /// The reason.
        reason: String,
    },
    /// The scheduler does not support the operation: it runs an older release, or does
    /// not run Dask.
    Unsupported {
        /// The operation.
        what: &'static str,
        /// The scheduler's release of Dask; `None` if it does not run Dask.
        release: Option<Release>,
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
    #[cfg(feature = "client")]
    pub(crate) fn unserializable(error: ValueError) -> Self {
        Self::Value(Box::new(error))
    }

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
                write!(f, "cannot connect to {address:?}: {error}")
            }
            Self::Comm(error) => error.fmt(f),
            Self::Closed { peer } => write!(f, "{peer} closed the connection without an answer"),
            Self::Timeout { what, after } => {
                let seconds = after.as_secs_f64();
                write!(f, "timed out after {seconds} seconds waiting for {what}")
            }
            Self::Build(error) => write!(f, "the message cannot be sent: {error}"),
            Self::Protocol(error) => error.fmt(f),
            Self::Remote(error) => error.fmt(f),
            Self::Missing { op, keys } => {
                write!(f, "{op}: the scheduler does not have these results:")?;
                keys.iter().try_for_each(|key| write!(f, " {key}"))
            }
            Self::Value(error) => write!(f, "the request cannot be sent: {error}"),
            Self::Disconnected { reason } => {
                write!(f, "not connected to the scheduler: {reason}")
            }
            Self::Unsupported {
                what,
                release: Some(release),
                since,
            } => write!(
                f,
                "the scheduler runs distributed {release}, which this client does not support \
                 for {what}: upgrade the cluster to {since} or later"
            ),
            Self::Unsupported { what, .. } => {
                write!(f, "the scheduler does not run Dask, and has no {what}")
            }
            Self::Reply { op, error } => write!(f, "unexpected reply to {op}: {error}"),
            Self::NotReading { limit } => write!(
                f,
                "the peer does not read its messages: more than {limit} bytes are queued for it"
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
            Self::Reply { error, .. } => Some(&**error),
            Self::Value(error) => Some(&**error),
            Self::Closed { .. }
            | Self::Timeout { .. }
            | Self::Missing { .. }
            | Self::Disconnected { .. }
            | Self::Unsupported { .. }
            | Self::NotReading { .. } => None,
        }
    }
}

/// Defines an error with a variant for each of several errors, which convert to it.
macro_rules! any_of {
    (
        $(#[$meta:meta])*
        $name:ident {
            $(#[doc = $doc:literal] $(#[cfg($cfg:meta)])? $variant:ident($type:ty),)*
        }
    ) => {
        $(#[$meta])*
        pub enum $name {
            $(#[doc = $doc] $(#[cfg($cfg)])? $variant($type),)*
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $($(#[cfg($cfg)])? Self::$variant(error) => error.fmt(f),)*
                }
            }
        }

        impl core::error::Error for $name {
            fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
                match self {
                    $($(#[cfg($cfg)])? Self::$variant(error) => error.source(),)*
                }
            }
        }

        $($(#[cfg($cfg)])? impl From<$type> for $name {
            fn from(error: $type) -> Self {
                Self::$variant(error)
            }
        })*
    };
}

any_of! {
    /// Any error of a client, worker or scheduler, for programs that handle all of
    /// them alike: each operation has an error of its own, which converts to this one.
    #[derive(Clone, Debug)]
    #[non_exhaustive]
    Error {
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
        /// A function outside of tasks failed, or a plugin or file cannot be installed.
        #[cfg(feature = "client")]
        Run(RunError),
        /// Data cannot be stored on the cluster.
        #[cfg(feature = "client")]
        Scatter(ScatterError),
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
        /// A value cannot be serialized or deserialized.
        Value(ValueError),
        /// An exception of a function that ran outside of tasks.
        Remote(RemoteError),
        /// A value is not of the requested type.
        Type(WrongType),
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
    Error: CommError, error => Self::Request(error.into());
}

// Errors are moved often, so they must be small.
const _: () = assert!(size_of::<RequestError>() <= 64);
