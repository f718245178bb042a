//! Events of a worker for `tracing`.

use core::fmt;

use daskwire_messages::Key;
use daskwire_rpc::TaskEvent;
use daskwire_rpc::events;

/// An event of a worker.
pub(crate) enum WorkerEvent<'a> {
    /// The scheduler accepted the worker.
    Started {
        worker: &'a str,
        scheduler: &'a dyn fmt::Display,
    },
    /// A warning for operators.
    Notice { message: &'a str },
    /// A task failed.
    Failed { key: &'a Key, error: &'a str },
    /// A step of a task.
    Task(&'a TaskEvent),
    /// The worker ended.
    Ended { reason: &'a dyn fmt::Display },
}

impl fmt::Display for WorkerEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { worker, scheduler } => {
                write!(f, "{worker} is registered with {scheduler}")
            }
            Self::Notice { message } => f.write_str(message),
            Self::Failed { error, .. } => write!(f, "failed: {error}"),
            Self::Task(event) => event.fmt(f),
            Self::Ended { reason } => reason.fmt(f),
        }
    }
}

impl WorkerEvent<'_> {
    fn key(&self) -> Option<&Key> {
        match self {
            Self::Task(event) => Some(&event.key),
            Self::Failed { key, .. } => Some(key),
            _ => None,
        }
    }
}

events!(WorkerEvent, "daskwire_peer::worker");
