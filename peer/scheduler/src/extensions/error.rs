//! Refusals of requests about shared objects.

use core::fmt;

use daskwire_messages::Key;

/// The reason why a request is refused. [`class`](Self::class) and `Display` are those of the
/// exception that Dask raises, if Dask has one.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RequestRefusal {
    /// The time-out of the request has passed.
    Timeout {
        /// The awaited event, as a noun phrase.
        what: &'static str,
        /// The name of the object.
        name: Key,
    },
    /// The task of a future has not become known in time.
    UnknownTask {
        /// The key of the task.
        key: Key,
    },
    /// The objects take all the memory that they may.
    Full {
        /// The limit in bytes, [`Policy::max_shared_len`](crate::Policy::max_shared_len).
        limit: usize,
    },
    /// The request has an argument that is not supported.
    Argument {
        /// The class of the exception.
        class: &'static str,
        /// The message of the exception.
        message: String,
    },
}

impl RequestRefusal {
    pub(crate) fn unsupported(op: &str) -> Self {
        Self::Argument {
            class: "NotImplementedError",
            message: format!("this scheduler does not support {op:?}"),
        }
    }

    /// The class of the exception, with the name of its module unless it is builtin.
    pub const fn class(&self) -> &'static str {
        match self {
            // The class that all releases of Python know, which is builtin in some of them.
            Self::Timeout { .. } | Self::UnknownTask { .. } => "asyncio.exceptions.TimeoutError",
            Self::Full { .. } => "MemoryError",
            Self::Argument { class, .. } => class,
        }
    }
}

impl fmt::Display for RequestRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout { what, name } => write!(f, "waited too long for {what} {name}"),
            Self::UnknownTask { key } => write!(f, "Task {key} unknown to scheduler."),
            Self::Full { limit } => write!(
                f,
                "variables, queues, events, locks and datasets, and the requests that wait for \
                 them, take {limit} bytes; delete some, scatter large data and share its future, \
                 or raise the scheduler's limit `max_shared_len`"
            ),
            Self::Argument { message, .. } => f.write_str(message),
        }
    }
}

impl core::error::Error for RequestRefusal {}
