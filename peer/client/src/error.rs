//! The errors of a client, one type for each operation.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use daskwire_comm::CommError;
use daskwire_messages::release::UnsupportedRelease;
use daskwire_messages::value::ValueError;
use daskwire_messages::{Key, RemoteError};
use daskwire_rpc::RequestError;

use daskwire_rpc::{from, kinds};

const EMPTY_KEY: &str = "a key must not be empty";

/// The error of [`Client::connect`](super::Client::connect).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The scheduler cannot be reached, or its answer is invalid.
    Request(RequestError),
    /// The scheduler is too old for this client to connect.
    Release(UnsupportedRelease),
    /// The scheduler file cannot be read, or names no scheduler.
    File {
        /// The path.
        path: String,
        /// The fault.
        reason: String,
    },
    /// Neither `DASK_SCHEDULER_ADDRESS` nor `DASK_SCHEDULER_FILE` is set.
    NotNamed,
    /// The runtime of a blocking client cannot be started.
    Runtime(Arc<std::io::Error>),
    /// The scheduler refused the client.
    Refused {
        /// The scheduler's reason.
        reason: String,
    },
    /// The function of [`OnReconnect`](super::OnReconnect) failed. Connecting for the first time does
    /// not call it.
    OnReconnect {
        /// The error.
        reason: String,
    },
}

/// The error of operations that need the client's stream to the scheduler: the
/// client was closed, or its connection is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Disconnected {
    /// The reason.
    pub reason: String,
    /// Whether the client reconnects, see [`Client::connected`](super::Client::connected).
    pub is_reconnecting: bool,
}

/// The error of [`Client::submit`](super::Client::submit) and related methods.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SubmitError {
    /// An argument cannot be pickled.
    Value {
        /// The key of the task, or the name of its function.
        task: String,
        /// The fault.
        error: ValueError,
    },
    /// A key [is empty](Key::is_empty).
    EmptyKey,
    /// The number of keys differs from the number of tasks.
    KeyCount {
        /// Number of keys.
        keys: usize,
        /// Number of tasks.
        tasks: usize,
    },
    /// The connection broke, and the client reconnects: the task may be submitted again
    /// after [`Client::connected`](super::Client::connected).
    Reconnecting {
        /// The reason.
        reason: String,
    },
    /// The client is not connected any more.
    Disconnected(Disconnected),
}

/// The error of waiting for, or fetching, the result of a task.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TaskError {
    /// The task, or one that it depends on, failed.
    Failed {
        /// The task's key.
        key: Key,
        /// The exception.
        error: Arc<RemoteError>,
    },
    /// The task was cancelled.
    Cancelled {
        /// The task's key.
        key: Key,
        /// The scheduler's reason; empty if it sent none.
        reason: String,
    },
    /// The result was lost and cannot be computed again, or the scheduler forgot it because
    /// the client lost its connection.
    Lost {
        /// The result's key.
        key: Key,
    },
    /// The result was not available in time.
    Timeout {
        /// The task's key.
        key: Key,
        /// The timeout.
        timeout: Duration,
    },
    /// The result was fetched and cannot be deserialized.
    Value {
        /// The result's key.
        key: Key,
        /// The fault.
        error: ValueError,
    },
    /// The result is not of the type that the program asked for.
    Type {
        /// The result's key.
        key: Key,
        /// The error of the conversion.
        error: Arc<dyn core::error::Error + Send + Sync>,
    },
    /// The result cannot be fetched.
    Request {
        /// The result's key; of several that are fetched together, the first.
        key: Key,
        /// The cause.
        error: RequestError,
    },
    /// The client is not connected.
    Disconnected {
        /// The task's key.
        key: Key,
        /// The reason.
        reason: String,
        /// Whether the client reconnects.
        is_reconnecting: bool,
    },
}

/// The error of [`Client::scatter`](super::Client::scatter) and related methods.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ScatterError {
    /// A value cannot be serialized.
    Value {
        /// The value's key.
        key: Key,
        /// The fault.
        error: ValueError,
    },
    /// A key [is empty](Key::is_empty).
    EmptyKey,
    /// The cluster has no workers, and no worker has joined in time.
    NoWorkers,
    /// The data cannot be transferred.
    Request(RequestError),
    /// The data was stored on one worker, but cannot be copied to the others.
    Copy(Box<TaskError>),
    /// The client is not connected.
    Disconnected(Disconnected),
}

impl TaskError {
    /// The key of the task.
    pub const fn key(&self) -> &Key {
        match self {
            Self::Failed { key, .. }
            | Self::Cancelled { key, .. }
            | Self::Lost { key }
            | Self::Timeout { key, .. }
            | Self::Value { key, .. }
            | Self::Type { key, .. }
            | Self::Request { key, .. }
            | Self::Disconnected { key, .. } => key,
        }
    }

    pub(super) fn disconnected(key: &Key, error: Disconnected) -> Self {
        Self::Disconnected {
            key: key.clone(),
            reason: error.reason,
            is_reconnecting: error.is_reconnecting,
        }
    }

    pub(super) fn request(key: &Key, error: RequestError) -> Self {
        Self::Request {
            key: key.clone(),
            error,
        }
    }

    /// The exception of the task, or of a peer that was asked for its result.
    pub fn remote(&self) -> Option<&RemoteError> {
        match self {
            Self::Failed { error, .. } => Some(error),
            Self::Request {
                error: RequestError::Remote(error),
                ..
            } => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => error.fmt(f),
            Self::Release(error) => error.fmt(f),
            Self::File { path, reason } => {
                write!(f, "cannot read the scheduler file {path}: {reason}")
            }
            Self::OnReconnect { reason } => {
                write!(f, "the function that runs before anything else is sent failed: {reason}")
            }
            Self::NotNamed => f.write_str(
                "no scheduler is configured: set the environment variable DASK_SCHEDULER_ADDRESS or \
                 DASK_SCHEDULER_FILE",
            ),
            Self::Runtime(error) => write!(f, "the client cannot start a thread: {error}"),
            Self::Refused { reason } => write!(f, "the scheduler refused the client: {reason}"),
        }
    }
}

impl fmt::Display for Disconnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not connected to the scheduler: {}", self.reason)
    }
}

impl From<Disconnected> for RequestError {
    fn from(error: Disconnected) -> Self {
        Self::Disconnected {
            reason: error.reason,
            is_reconnecting: error.is_reconnecting,
        }
    }
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value { task, error } => {
                write!(f, "the task {task} cannot be submitted: {error}")
            }
            Self::EmptyKey => f.write_str(EMPTY_KEY),
            Self::KeyCount { keys, tasks } => write!(
                f,
                "got {keys} keys for {tasks} tasks: give each task one key"
            ),
            Self::Reconnecting { reason } => {
                write!(f, "reconnecting to the scheduler: {reason}")
            }
            Self::Disconnected(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { key, error } => write!(f, "the task {key} failed: {error}"),
            Self::Cancelled { key, reason } if reason.is_empty() => {
                write!(f, "the task {key} was cancelled")
            }
            Self::Cancelled { key, reason } => write!(f, "the task {key} was cancelled: {reason}"),
            Self::Lost { key } => write!(f, "the result {key} is lost"),
            Self::Timeout { key, timeout } => {
                write!(
                    f,
                    "timed out after {} seconds waiting for the result of the task {key}",
                    timeout.as_secs_f64()
                )
            }
            Self::Value { key, error } => write!(f, "the result {key} cannot be read: {error}"),
            Self::Type { key, error } => {
                write!(f, "the result {key} is not of the requested type: {error}")
            }
            Self::Request { key, error } => {
                write!(f, "the result {key} cannot be fetched: {error}")
            }
            Self::Disconnected { key, reason, .. } => {
                write!(
                    f,
                    "no result of the task {key}: not connected to the scheduler: {reason}"
                )
            }
        }
    }
}

impl fmt::Display for ScatterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value { key, error } => write!(f, "{key} cannot be scattered: {error}"),
            Self::EmptyKey => f.write_str(EMPTY_KEY),
            Self::NoWorkers => {
                f.write_str("data cannot be scattered: no worker has joined the cluster in time")
            }
            Self::Request(error) => write!(f, "data cannot be scattered: {error}"),
            Self::Copy(error) => write!(f, "data cannot be copied to all workers: {error}"),
            Self::Disconnected(error) => error.fmt(f),
        }
    }
}

kinds! {
    ConnectError: |error| match error {
        Self::Request(error) => error.kind(),
        Self::Release(error) => error.kind(),
        Self::File { .. } | Self::Runtime(_) => ErrorKind::System,
        Self::NotNamed => ErrorKind::Invalid,
        Self::Refused { .. } => ErrorKind::Refused,
        Self::OnReconnect { .. } => ErrorKind::Closed,
    };
    Disconnected: |error| match error.is_reconnecting {
        true => ErrorKind::Connection,
        false => ErrorKind::Closed,
    };
    SubmitError: |error| match error {
        Self::Value { .. } | Self::EmptyKey | Self::KeyCount { .. } => ErrorKind::Invalid,
        Self::Reconnecting { .. } => ErrorKind::Connection,
        Self::Disconnected(error) => error.kind(),
    };
    TaskError: |error| match error {
        Self::Failed { error, .. } => error.kind(),
        Self::Cancelled { .. } => ErrorKind::Cancelled,
        Self::Lost { .. } => ErrorKind::Lost,
        Self::Timeout { .. } => ErrorKind::Timeout,
        Self::Value { .. } | Self::Type { .. } => ErrorKind::Value,
        Self::Request { error, .. } => error.kind(),
        Self::Disconnected { is_reconnecting: true, .. } => ErrorKind::Connection,
        Self::Disconnected { .. } => ErrorKind::Closed,
    };
    ScatterError: |error| match error {
        Self::Value { .. } | Self::EmptyKey => ErrorKind::Invalid,
        Self::NoWorkers => ErrorKind::Connection,
        Self::Request(error) => error.kind(),
        Self::Copy(error) => error.kind(),
        Self::Disconnected(error) => error.kind(),
    };
}

impl core::error::Error for Disconnected {}

impl core::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Request(error) => error.source(),
            _ => None,
        }
    }
}

impl core::error::Error for SubmitError {}

impl core::error::Error for TaskError {}

impl core::error::Error for ScatterError {}

from! {
    ConnectError: RequestError, error => Self::Request(error);
    ConnectError: CommError, error => Self::Request(error.into());
    ConnectError: UnsupportedRelease, error => Self::Release(error);
    SubmitError: Disconnected, error => match error.is_reconnecting {
        true => Self::Reconnecting { reason: error.reason },
        false => Self::Disconnected(error),
    };
    ScatterError: RequestError, error => Self::Request(error);
    ScatterError: Disconnected, error => Self::Disconnected(error);
}
