//! The error of starting a worker.

use core::fmt;
use std::io;
use std::sync::Arc;

use daskwire_comm::CommError;
use daskwire_messages::release::UnsupportedRelease;
use daskwire_rpc::RequestError;

use daskwire_rpc::{from, kinds};

/// The error of [`Builder::start`](super::Builder::start).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The scheduler cannot be reached, does not answer, or its answer is invalid.
    Request(RequestError),
    /// The worker cannot listen for its peers.
    Listen(Arc<CommError>),
    /// The scheduler is too old for this worker, which is not registered then.
    Release(UnsupportedRelease),
    /// The scheduler refused the worker, for example because its name is taken.
    Refused {
        /// The scheduler's reason.
        reason: String,
    },
    /// The directory for spilled data cannot be created.
    Directory(Arc<io::Error>),
    /// A thread cannot be started.
    Thread(Arc<io::Error>),
    /// Python cannot be started, or has no `distributed`.
    Python(Arc<io::Error>),
}

kinds! {
    StartError: |error| match error {
        Self::Request(error) => error.kind(),
        Self::Listen(error) => error.kind(),
        Self::Release(error) => error.kind(),
        Self::Directory(_) | Self::Thread(_) | Self::Python(_) => ErrorKind::System,
        Self::Refused { .. } => ErrorKind::Refused,
    };
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => error.fmt(f),
            Self::Listen(error) => write!(f, "the worker cannot listen: {error}"),
            Self::Release(error) => error.fmt(f),
            Self::Refused { reason } => write!(f, "the scheduler refused the worker: {reason}"),
            Self::Directory(error) => {
                write!(
                    f,
                    "the directory for spilled data cannot be created: {error}"
                )
            }
            Self::Thread(error) => write!(f, "a thread of the worker cannot be started: {error}"),
            Self::Python(error) => write!(
                f,
                "a Python process of the worker cannot be started: {error}"
            ),
        }
    }
}

impl core::error::Error for StartError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Request(error) => error.source(),
            _ => None,
        }
    }
}

from! {
    StartError: RequestError, error => Self::Request(error);
    StartError: UnsupportedRelease, error => Self::Release(error);
}
