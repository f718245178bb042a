//! Kinds of errors, for programs that treat the errors of several operations alike.

use daskwire_comm::CommError;

use crate::RequestError;

/// The kind of an error: who or what is at fault, by which programs decide what to do. The errors of
/// clients, workers, schedulers, relays and requests have a method `kind`.
///
/// ```
/// use daskwire_rpc::{ErrorKind, RequestError};
///
/// let error = RequestError::Disconnected {
///     reason: "the scheduler was stopped".to_owned(),
///     is_reconnecting: true,
/// };
/// assert_eq!(error.kind(), ErrorKind::Connection);
/// assert!(error.is_retryable());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A peer cannot be reached, the connection to it broke, or no worker is there.
    Connection,
    /// Something took longer than its timeout.
    Timeout,
    /// This client or worker was closed, or has lost its connection permanently.
    Closed,
    /// What the program gave is invalid: an address, a key, a file, or a value that cannot be sent.
    Invalid,
    /// A peer refuses this one, for example because of its certificate or its name.
    Refused,
    /// The release of the peer does not support the operation.
    Unsupported,
    /// A function, or a peer that handled a request, raised an exception.
    Exception,
    /// The task was cancelled.
    Cancelled,
    /// A result was lost, or the scheduler does not know it.
    Lost,
    /// A result cannot be read, or is not of the type that the program asked for.
    Value,
    /// A peer sent an invalid message, or is none of Dask.
    Protocol,
    /// The system refused a file, a socket, a thread or memory.
    System,
}

impl ErrorKind {
    /// Whether the same operation may succeed if it is repeated later: for
    /// [`Connection`](Self::Connection), [`Timeout`](Self::Timeout) and [`Lost`](Self::Lost).
    ///
    /// To repeat it means to submit the task again: a future whose result is lost, or that belongs to
    /// a connection that broke, does not change any more.
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Connection | Self::Timeout | Self::Lost)
    }

    /// The kind of an error without a connection.
    #[doc(hidden)]
    pub const fn of_disconnected(is_reconnecting: bool) -> Self {
        match is_reconnecting {
            true => Self::Connection,
            false => Self::Closed,
        }
    }

    /// The kind of an error of a comm.
    #[doc(hidden)]
    pub const fn of_comm(error: &CommError) -> Self {
        match error {
            CommError::Closed(_) | CommError::Connect { .. } | CommError::Io(_) => Self::Connection,
            CommError::Timeout { .. } => Self::Timeout,
            CommError::Encode(_)
            | CommError::Scheme { .. }
            | CommError::Address { .. }
            | CommError::NoTls { .. } => Self::Invalid,
            CommError::Bind { .. } | CommError::OutOfMemory { .. } => Self::System,
            #[cfg(feature = "tls")]
            CommError::Tls(_) => Self::Refused,
            _ => Self::Protocol,
        }
    }
}

impl RequestError {
    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Comm(error) => ErrorKind::of_comm(error),
            Self::Closed { .. } | Self::NotReading { .. } => ErrorKind::Connection,
            Self::Timeout { .. } => ErrorKind::Timeout,
            Self::Disconnected {
                is_reconnecting, ..
            } => ErrorKind::of_disconnected(*is_reconnecting),
            Self::Address { .. } | Self::Build(_) | Self::Value(_) => ErrorKind::Invalid,
            Self::Protocol(_) => ErrorKind::Protocol,
            Self::Remote(_) => ErrorKind::Exception,
            Self::Missing { .. } => ErrorKind::Lost,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Reply { .. } => ErrorKind::Value,
        }
    }

    /// Whether the same operation may succeed if it is repeated later, see
    /// [`ErrorKind::is_retryable`].
    pub fn is_retryable(&self) -> bool {
        self.kind().is_retryable()
    }
}

/// Implements `kind` and `is_retryable` for error types.
#[doc(hidden)]
#[macro_export]
macro_rules! kinds {
    ($($(#[$attribute:meta])* $type:ty: |$error:ident| $kind:expr;)*) => {$(
        $(#[$attribute])*
        impl $type {
            /// The kind of the error.
            pub fn kind(&self) -> $crate::ErrorKind {
                use $crate::ErrorKind;
                let $error = self;
                $kind
            }

            /// Whether the same operation may succeed if it is repeated later, see
            /// [`ErrorKind::is_retryable`]($crate::ErrorKind::is_retryable).
            pub fn is_retryable(&self) -> bool {
                self.kind().is_retryable()
            }
        }
    )*};
}
