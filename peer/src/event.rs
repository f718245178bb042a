//! Events of the roles and of their comms, and their emission to `tracing`.
//!
//! Each role has one enum of events and emits them through [`emit`]. An event is
//! built only if a subscriber of `tracing` wants it; without the feature `tracing`,
//! none is.
//!
//! What the program itself has to see is not an event: an [`Observer`](crate::Observer)
//! gets messages even if no subscriber is installed.

use core::fmt;

use crate::Key;

/// Importance of an event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Level {
    /// A warning for operators.
    Warn,
    /// A role or a comm has started or ended, or a task has failed.
    Info,
    /// A step of a task.
    Debug,
    /// A message.
    Trace,
}

/// An event of a client.
pub(crate) enum ClientEvent<'a> {
    /// The scheduler accepted the client.
    Connected { scheduler: &'a dyn fmt::Display },
    /// The scheduler's release is newer than the tested ones.
    Untested(crate::release::UntestedRelease),
    /// The connection ended.
    Disconnected { reason: &'a str },
    /// The status of a task changed.
    Task { key: &'a Key, status: &'static str },
    /// A message with an unknown op arrived.
    UnknownOp { op: &'a str },
}

/// An event of a worker.
#[cfg(feature = "worker")]
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
    Task(&'a crate::TaskEvent),
    /// The worker ended.
    Ended { reason: &'a dyn fmt::Display },
}

/// An event of a scheduler.
#[cfg(feature = "scheduler")]
pub(crate) enum SchedulerEvent<'a> {
    /// A warning for operators, or a worker has joined or left.
    Notice(&'a crate::scheduler::Notice),
    /// A step of a task.
    Task(&'a crate::TaskEvent),
}

/// A message that was sent or received. The other events of comms are those of
/// `daskwire_comm`.
pub(crate) struct MessageEvent<'a> {
    pub(crate) peer: &'a str,
    pub(crate) is_leaving: bool,
    pub(crate) frame_count: usize,
    pub(crate) len: usize,
}

impl fmt::Display for ClientEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected { scheduler } => write!(f, "connected to {scheduler}"),
            Self::Untested(untested) => untested.fmt(f),
            Self::Disconnected { reason } => write!(f, "disconnected: {reason}"),
            Self::Task { status, .. } => f.write_str(status),
            Self::UnknownOp { op } => write!(f, "ignored a message with unknown op {op:?}"),
        }
    }
}

#[cfg(feature = "worker")]
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

#[cfg(feature = "scheduler")]
impl fmt::Display for SchedulerEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Notice(notice) => notice.fmt(f),
            Self::Task(event) => event.fmt(f),
        }
    }
}

impl fmt::Display for MessageEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            peer,
            is_leaving,
            frame_count,
            len,
        } = self;
        let direction = if *is_leaving {
            "sent to"
        } else {
            "received from"
        };
        write!(f, "{direction} {peer}: {frame_count} frames, {len} bytes")
    }
}

impl ClientEvent<'_> {
    fn key(&self) -> Option<&Key> {
        match self {
            Self::Task { key, .. } => Some(key),
            _ => None,
        }
    }
}

#[cfg(feature = "worker")]
impl WorkerEvent<'_> {
    fn key(&self) -> Option<&Key> {
        match self {
            Self::Task(event) => Some(&event.key),
            Self::Failed { key, .. } => Some(key),
            _ => None,
        }
    }
}

#[cfg(feature = "scheduler")]
impl SchedulerEvent<'_> {
    fn key(&self) -> Option<&Key> {
        match self {
            Self::Task(event) => Some(&event.key),
            Self::Notice(_) => None,
        }
    }
}

impl MessageEvent<'_> {
    #[expect(clippy::unused_self, reason = "as the other events")]
    const fn key(&self) -> Option<&Key> {
        None
    }
}

/// An event that can be handed to `tracing`.
pub(crate) trait Event {
    /// Whether a subscriber wants events of this kind and level.
    fn is_enabled(level: Level) -> bool;

    /// Hands the event to the subscriber, in the span of its task.
    fn dispatch(&self, level: Level);
}

/// Implements [`Event`]; a macro, because `tracing` needs targets at compile time.
macro_rules! events {
    ($event:ident, $target:literal) => {
        impl Event for $event<'_> {
            #[cfg(feature = "tracing")]
            fn is_enabled(level: Level) -> bool {
                use tracing::{Level as To, enabled};
                match level {
                    Level::Warn => enabled!(target: $target, To::WARN),
                    Level::Info => enabled!(target: $target, To::INFO),
                    Level::Debug => enabled!(target: $target, To::DEBUG),
                    Level::Trace => enabled!(target: $target, To::TRACE),
                }
            }

            #[cfg(feature = "tracing")]
            fn dispatch(&self, level: Level) {
                let _task = self.key().map(task);
                match level {
                    Level::Warn => tracing::warn!(target: $target, "{self}"),
                    Level::Info => tracing::info!(target: $target, "{self}"),
                    Level::Debug => tracing::debug!(target: $target, "{self}"),
                    Level::Trace => tracing::trace!(target: $target, "{self}"),
                }
            }

            #[cfg(not(feature = "tracing"))]
            fn is_enabled(_: Level) -> bool {
                false
            }

            #[cfg(not(feature = "tracing"))]
            fn dispatch(&self, _: Level) {
                let _ = self.key();
            }
        }
    };
}

events!(ClientEvent, "daskwire_peer::client");
#[cfg(feature = "worker")]
events!(WorkerEvent, "daskwire_peer::worker");
#[cfg(feature = "scheduler")]
events!(SchedulerEvent, "daskwire_peer::scheduler");
events!(MessageEvent, "daskwire_peer::comm");

/// Emits an event, if a subscriber wants it.
#[inline]
pub(crate) fn emit<E: Event>(level: Level, event: impl FnOnce() -> E) {
    if E::is_enabled(level) {
        event().dispatch(level);
    }
}

/// The span `task{key}`, which ends when this is dropped.
#[must_use = "the span ends when this is dropped"]
pub(crate) struct TaskSpan {
    #[cfg(feature = "tracing")]
    _entered: tracing::span::EnteredSpan,
}

/// Enters the span `task{key}`.
#[cfg(feature = "tracing")]
pub(crate) fn task(key: &Key) -> TaskSpan {
    TaskSpan {
        _entered: tracing::info_span!(target: "daskwire_peer::span", "task", %key).entered(),
    }
}

/// Enters the span `task{key}`.
#[cfg(not(feature = "tracing"))]
pub(crate) const fn task(_: &Key) -> TaskSpan {
    TaskSpan {}
}

/// Runs a future in the span `comm{peer}`.
#[cfg(feature = "tracing")]
pub(crate) fn in_comm<F: Future>(peer: &str, future: F) -> tracing::instrument::Instrumented<F> {
    // A root span: the comm is not part of the task that opened it.
    let span = tracing::info_span!(target: "daskwire_peer::span", parent: None, "comm", peer);
    tracing::Instrument::instrument(future, span)
}

/// Runs a future in the span `comm{peer}`.
#[cfg(not(feature = "tracing"))]
pub(crate) const fn in_comm<F: Future>(_: &str, future: F) -> F {
    future
}
