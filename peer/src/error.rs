//! An error that covers all operations of all roles.

use core::fmt;
use std::sync::Arc;

use daskwire_comm::CommError;

#[cfg(feature = "client")]
use crate::client::{ConnectError, Disconnected, RunError, ScatterError, SubmitError, TaskError};
#[cfg(feature = "local-cluster")]
use crate::cluster;
use crate::identity::IdentityError;
use crate::relay::RelayError;
#[cfg(feature = "scheduler")]
use crate::scheduler::{ServeError, StartError};
use crate::value::{ValueError, WrongType};
#[cfg(feature = "worker")]
use crate::worker;
use crate::{RemoteError, RequestError};

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

        daskwire_rpc::kinds! {
            $name: |error| match error {
                $($(#[cfg($cfg)])? Self::$variant(error) => error.kind(),)*
            };
        }

        $($(#[cfg($cfg)])? impl From<$type> for $name {
            fn from(error: $type) -> Self {
                Self::$variant(error)
            }
        })*
    };
}

any_of! {
    /// Any error of a client, worker, scheduler or relay, for programs that handle all of
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
        /// A scheduler does not say what it is.
        Identity(Arc<IdentityError>),
        /// A relay cannot forward.
        Relay(Arc<RelayError>),
        /// A value cannot be serialized or deserialized.
        Value(ValueError),
        /// An exception of a function that ran outside of tasks.
        Remote(RemoteError),
        /// A value is not of the requested type.
        Type(WrongType),
    }
}

impl From<CommError> for Error {
    fn from(error: CommError) -> Self {
        Self::Request(error.into())
    }
}

impl From<IdentityError> for Error {
    fn from(error: IdentityError) -> Self {
        Self::Identity(Arc::new(error))
    }
}

impl From<RelayError> for Error {
    fn from(error: RelayError) -> Self {
        Self::Relay(Arc::new(error))
    }
}
