//! Errors of a scheduler.

use core::fmt;
use std::io;
use std::sync::Arc;

use daskwire_comm::{Address, CommError};
use daskwire_rpc::kinds;

use super::JournalError;

/// The error of [`Scheduler::start`](super::Scheduler::start).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StartError {
    /// No listener was given.
    NoListeners,
    /// The address of a listener cannot be determined.
    LocalAddress(Arc<CommError>),
    /// The system does not provide what processes of Python need.
    Python(Arc<io::Error>),
    /// The scheduler cannot continue from its journal, or not write to it.
    Journal(Arc<JournalError>),
    /// The file of the recording cannot be created.
    Recording(Arc<io::Error>),
    /// A module of `PythonOptions::preload` cannot be loaded, for this reason.
    Preload(String),
}

kinds! {
    StartError: |error| match error {
        Self::NoListeners | Self::Preload(_) => ErrorKind::Invalid,
        Self::LocalAddress(error) => error.kind(),
        Self::Python(_) | Self::Recording(_) => ErrorKind::System,
        Self::Journal(error) => error.kind(),
    };
    ServeError: |error| match error {
        Self::Panicked { .. } | Self::ListenerFailed { .. } => ErrorKind::System,
    };
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoListeners => f.write_str("a scheduler needs at least one listener"),
            Self::LocalAddress(error) => {
                write!(f, "the address of a listener cannot be determined: {error}")
            }
            Self::Python(error) => write!(f, "no processes of Python can be started: {error}"),
            Self::Journal(error) => error.fmt(f),
            Self::Recording(error) => write!(f, "the recording cannot be created: {error}"),
            Self::Preload(why) => write!(f, "the preloaded modules cannot be loaded: {why}"),
        }
    }
}

impl core::error::Error for StartError {}

/// The error that ended a scheduler. Workers have been notified, and the streams of
/// clients have ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// The state machine panicked, and its state is lost.
    Panicked {
        /// The message of the panic.
        reason: String,
    },
    /// The last listener failed, so that no peer could connect any more.
    ListenerFailed {
        /// The address of the listener.
        address: Address,
        /// The reason for the failure.
        error: Arc<CommError>,
    },
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked { reason } => write!(f, "the scheduler panicked: {reason}"),
            Self::ListenerFailed { address, error } => {
                write!(f, "{address} accepts no more connections: {error}")
            }
        }
    }
}

impl core::error::Error for ServeError {}
