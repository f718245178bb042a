//! The emission of events to `tracing`, and the events of messages.
//!
//! Each role has an enum of events, in its module `event`, and emits them through [`emit`]. An event is
//! built only if a subscriber of `tracing` wants it; without the feature `tracing`,
//! none is.
//!
//! What the program itself has to see is not an event: an `Observer`
//! gets messages even if no subscriber is installed.

use core::fmt;

use daskwire_messages::Key;

/// Importance of an event.
#[derive(Clone, Copy, Debug)]
pub enum Level {
    /// A warning for operators.
    Warn,
    /// A role or a comm has started or ended, or a task has failed.
    Info,
    /// A step of a task.
    Debug,
    /// A message.
    Trace,
}

/// A message that was sent or received. The other events of comms are those of
/// `daskwire_comm`.
pub(crate) struct MessageEvent<'a> {
    pub(crate) peer: &'a str,
    pub(crate) is_leaving: bool,
    pub(crate) frame_count: usize,
    pub(crate) len: usize,
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

impl MessageEvent<'_> {
    #[expect(clippy::unused_self, reason = "as the other events")]
    const fn key(&self) -> Option<&Key> {
        None
    }
}

/// An event that can be handed to `tracing`.
pub trait RoleEvent {
    /// Whether a subscriber wants events of this kind and level.
    fn is_enabled(level: Level) -> bool;

    /// Hands the event to the subscriber, in the span of its task.
    fn dispatch(&self, level: Level);
}

/// The crate `tracing`, for the macro `events`.
#[cfg(feature = "tracing")]
pub use tracing;

/// Implements [`RoleEvent`]; a macro, because `tracing` needs targets at compile time.
#[cfg(feature = "tracing")]
#[doc(hidden)]
#[macro_export]
macro_rules! events {
    ($event:ident, $target:literal) => {
        impl $crate::event::RoleEvent for $event<'_> {
            fn is_enabled(level: $crate::event::Level) -> bool {
                use $crate::event::Level;
                use $crate::event::tracing::{Level as To, enabled};
                match level {
                    Level::Warn => enabled!(target: $target, To::WARN),
                    Level::Info => enabled!(target: $target, To::INFO),
                    Level::Debug => enabled!(target: $target, To::DEBUG),
                    Level::Trace => enabled!(target: $target, To::TRACE),
                }
            }

            fn dispatch(&self, level: $crate::event::Level) {
                use $crate::event::{Level, tracing};
                let _task = self.key().map($crate::event::task);
                match level {
                    Level::Warn => tracing::warn!(target: $target, "{self}"),
                    Level::Info => tracing::info!(target: $target, "{self}"),
                    Level::Debug => tracing::debug!(target: $target, "{self}"),
                    Level::Trace => tracing::trace!(target: $target, "{self}"),
                }
            }
        }
    };
}

/// Implements [`RoleEvent`], without `tracing`.
#[cfg(not(feature = "tracing"))]
#[doc(hidden)]
#[macro_export]
macro_rules! events {
    ($event:ident, $target:literal) => {
        impl $crate::event::RoleEvent for $event<'_> {
            fn is_enabled(_: $crate::event::Level) -> bool {
                false
            }

            fn dispatch(&self, _: $crate::event::Level) {
                let _ = self.key();
            }
        }
    };
}

events!(MessageEvent, "daskwire_peer::comm");

/// Emits an event, if a subscriber wants it.
#[inline]
pub fn emit<E: RoleEvent>(level: Level, event: impl FnOnce() -> E) {
    if E::is_enabled(level) {
        event().dispatch(level);
    }
}

/// The span `task{key}`, which ends when this is dropped.
#[must_use = "the span ends when this is dropped"]
pub struct TaskSpan {
    #[cfg(feature = "tracing")]
    _entered: tracing::span::EnteredSpan,
}

/// Enters the span `task{key}`.
#[cfg(feature = "tracing")]
pub fn task(key: &Key) -> TaskSpan {
    TaskSpan {
        _entered: tracing::info_span!(target: "daskwire_peer::span", "task", %key).entered(),
    }
}

/// Enters the span `task{key}`.
#[cfg(not(feature = "tracing"))]
pub const fn task(_: &Key) -> TaskSpan {
    TaskSpan {}
}

/// Runs a future in the span `comm{peer}`.
#[cfg(feature = "tracing")]
pub fn in_comm<F: Future>(peer: &str, future: F) -> tracing::instrument::Instrumented<F> {
    // A root span: the comm is not part of the task that opened it.
    let span = tracing::info_span!(target: "daskwire_peer::span", parent: None, "comm", peer);
    tracing::Instrument::instrument(future, span)
}

/// Runs a future in the span `comm{peer}`.
#[cfg(not(feature = "tracing"))]
pub const fn in_comm<F: Future>(_: &str, future: F) -> F {
    future
}
