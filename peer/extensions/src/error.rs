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
        /// The limit in bytes, see [`Extensions::new`](crate::Extensions::new).
        limit: usize,
    },
    /// No object has this name.
    Missing {
        /// The kind of the object.
        what: &'static str,
        /// The name.
        name: Key,
    },
    /// No semaphore or lock has this name.
    UnknownSemaphore {
        /// The name.
        name: Key,
    },
    /// The semaphore exists with another number of leases.
    InconsistentLeases {
        /// The number of its leases.
        expected: i64,
        /// The number in the request.
        requested: i64,
    },
    /// A dataset of this name is published.
    DatasetExists {
        /// The name.
        name: Key,
    },
    /// A number of values is requested, with a time-out.
    BatchWithTimeout,
    /// An argument has a wrong type, or a wrong value.
    Argument {
        /// The class of the exception.
        class: &'static str,
        /// The message of the exception.
        message: String,
    },
    /// The request is not about shared objects.
    Unsupported {
        /// The op of the request.
        op: String,
    },
}

impl RequestRefusal {
    pub(crate) fn unsupported(op: &str) -> Self {
        Self::Unsupported { op: op.to_owned() }
    }

    pub(crate) const fn wrong_type(message: String) -> Self {
        let class = "TypeError";
        Self::Argument { class, message }
    }

    pub(crate) const fn wrong_value(message: String) -> Self {
        let class = "ValueError";
        Self::Argument { class, message }
    }

    /// The class of the exception, with the name of its module unless it is builtin.
    pub const fn class(&self) -> &'static str {
        match self {
            // The class that all releases of Python know, which is builtin in some of them.
            Self::Timeout { .. } | Self::UnknownTask { .. } => "asyncio.exceptions.TimeoutError",
            Self::Full { .. } => "MemoryError",
            Self::Missing { .. } | Self::DatasetExists { .. } => "KeyError",
            Self::UnknownSemaphore { .. } => "RuntimeError",
            Self::InconsistentLeases { .. } => "ValueError",
            Self::BatchWithTimeout | Self::Unsupported { .. } => "NotImplementedError",
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
                 them, may take {limit} bytes; delete some, or scatter large data and share its \
                 future"
            ),
            Self::Missing { what, name } => write!(f, "no {what} has the name {name}"),
            Self::UnknownSemaphore { name } => {
                write!(f, "Semaphore or Lock `{name}` not known.")
            }
            Self::InconsistentLeases {
                expected,
                requested,
            } => write!(
                f,
                "Inconsistent max leases: {requested}, expected: {expected}"
            ),
            Self::DatasetExists { name } => write!(f, "Dataset {name} already exists"),
            Self::BatchWithTimeout => f.write_str(
                "Dask queues don't support simultaneous use of integer batch sizes and timeouts",
            ),
            Self::Argument { message, .. } => f.write_str(message),
            Self::Unsupported { op } => write!(f, "this scheduler does not support {op:?}"),
        }
    }
}

impl core::error::Error for RequestRefusal {}

daskwire_messages::kinds! {
    RequestRefusal: |error| match error {
        Self::Timeout { .. } | Self::UnknownTask { .. } => ErrorKind::Timeout,
        Self::Full { .. } => ErrorKind::System,
        Self::Missing { .. }
        | Self::UnknownSemaphore { .. }
        | Self::InconsistentLeases { .. }
        | Self::DatasetExists { .. }
        | Self::Argument { .. } => ErrorKind::Invalid,
        Self::BatchWithTimeout | Self::Unsupported { .. } => ErrorKind::Unsupported,
    };
}
