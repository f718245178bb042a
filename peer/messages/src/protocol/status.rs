//! The names of states and outcomes that messages carry.

use core::fmt;

use daskwire::message::{BuildError, MessageBuilder};

use super::field::Field;
use super::{ProtocolError, Source};

/// Defines enums of Dask's names, with one more variant for all other names.
macro_rules! names {
    ($($(#[$meta:meta])* $name:ident default $default:ident {
        $($(#[$doc:meta])* $variant:ident = $string:literal,)+
    })+) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$doc])* $variant,)+
            /// Another name, of a later release or a plugin.
            Other(Box<str>),
        }

        impl $name {
            /// The name on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $string,)+
                    Self::Other(name) => name,
                }
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                match name {
                    $($string => Self::$variant,)+
                    name => Self::Other(name.into()),
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::$default
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl Field for $name {
            fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
                Ok(Self::from(&*source.reader.str()?.to_str()))
            }

            fn heap_len(&self) -> usize {
                match self {
                    Self::Other(name) => name.len(),
                    _ => 0,
                }
            }

            fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
                to.body().str(self.as_str());
                Ok(())
            }
        }
    )+};
}

names! {
    /// The state of a worker. Default: `Running`.
    WorkerStatus default Running {
        /// The worker has registered and takes no tasks yet.
        Init = "init",
        /// The worker takes tasks.
        Running = "running",
        /// The worker takes no tasks because its memory is nearly full.
        Paused = "paused",
        /// The worker leaves as soon as others have its data.
        ClosingGracefully = "closing_gracefully",
        /// The worker leaves.
        Closing = "closing",
        /// The worker has left.
        Closed = "closed",
    }

    /// The outcome of a request. Default: `Ok`.
    ReplyStatus default Ok {
        /// The request succeeded.
        Ok = "OK",
        /// The request failed.
        Error = "error",
        /// The peer is busy; ask again later.
        Busy = "busy",
        /// Part of the data is not available.
        PartialFail = "partial-fail",
        /// The scheduler does not know the worker any more.
        Missing = "missing",
        /// A handler raised an exception.
        UncaughtError = "uncaught-error",
    }

    /// The state of a task at the scheduler. Default: `Released`.
    TaskState default Released {
        /// The task is known, and its result is not needed.
        Released = "released",
        /// The task waits for results of other tasks.
        Waiting = "waiting",
        /// No worker may run the task.
        NoWorker = "no-worker",
        /// The task can run as soon as a worker has a free thread.
        Queued = "queued",
        /// A worker runs the task or is about to.
        Processing = "processing",
        /// The result is in memory.
        Memory = "memory",
        /// The task failed.
        Erred = "erred",
        /// The scheduler does not know the task any more.
        Forgotten = "forgotten",
    }
}

impl WorkerStatus {
    /// Whether the worker leaves or is about to.
    pub const fn is_closing(&self) -> bool {
        matches!(self, Self::Closing | Self::ClosingGracefully)
    }
}
