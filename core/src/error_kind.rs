//! Kinds of errors, for programs that treat the errors of several crates alike.

/// The kind of an error: who or what is at fault, by which programs decide what to do. The errors of
/// comms, values, messages, clients, workers, schedulers and relays, and [`Error`](crate::Error),
/// have a method `kind`.
///
/// ```
/// use daskwire::handshake::HandshakeError;
/// use daskwire::{Error, ErrorKind};
///
/// let error = Error::from(HandshakeError::Header);
/// assert_eq!(error.kind(), ErrorKind::Protocol);
/// assert!(!error.is_retryable());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ErrorKind {
    /// A peer cannot be reached, the connection to it broke, or no worker is there.
    Connection,
    /// Something took longer than its timeout.
    Timeout,
    /// This client or worker was closed, or has lost its connection permanently.
    Closed,
    /// What the program gave is invalid: an address, a key, a file, a buffer, or a value that cannot
    /// be sent.
    Invalid,
    /// A peer refuses this one, or this one refuses it, for example because of its certificate or its
    /// name.
    Refused,
    /// The peer, for example because of its release, or this system does not support the operation.
    Unsupported,
    /// A function, or a peer that handled a request, raised an exception.
    Exception,
    /// The task was cancelled.
    Cancelled,
    /// A result was lost, or the scheduler does not know it.
    Lost,
    /// A result or a graph cannot be read, or a value is not of the type that the program asked for.
    Value,
    /// A peer sent an invalid message, or is none of Dask.
    Protocol,
    /// The system refused a file, a socket, a thread or memory, or a part of this program failed, such
    /// as a process that helps it.
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
}

/// Implements `kind` and `is_retryable` for error types.
#[doc(hidden)]
#[macro_export]
macro_rules! kinds {
    ($($(#[$attribute:meta])* $type:ty: |$error:pat_param| $kind:expr;)*) => {$(
        $(#[$attribute])*
        impl $type {
            /// The kind of the error.
            pub fn kind(&self) -> $crate::ErrorKind {
                #[allow(unused_imports)] // for errors of which each case has an error in it
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
