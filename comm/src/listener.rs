//! Listeners, which accept comms.

use core::fmt;
use std::io;

use crate::event::CommEvent;
use crate::handshakes::{Handshakes, PendingHandshake};
use crate::transport::ConnectError;
use crate::{Address, Comm, CommError, CommOptions, Listen, PendingConnection, RawConnection};

/// A listener for comms over any transport.
pub struct Listener {
    listen: Box<dyn Listen>,
    options: CommOptions,
    handshakes: Handshakes,
}

impl Listener {
    /// Creates a listener that accepts comms with these options from a transport's listener.
    pub fn new(listen: Box<dyn Listen>, options: CommOptions) -> Self {
        Self {
            listen,
            handshakes: Handshakes::new(options.max_handshakes),
            options,
        }
    }

    /// Waits for the next connection. Its handshake is done by
    /// [`Incoming::handshake`], which should run in a separate task so that a
    /// silent peer does not block others.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: no connection is lost.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`] if one connection failed, or for a temporary condition such
    /// as too many open files (wait before the next call); the listener still works.
    /// After any other error it does not.
    pub async fn accept(&self) -> Result<Incoming, CommError> {
        let pending = self.listen.accept().await.inspect_err(|error| {
            if matches!(error, CommError::Io(error) if is_out_of_descriptors(error)) {
                self.handshakes.displace_oldest();
            }
        })?;
        CommEvent::Accepted.emit(pending.peer_address());
        Ok(Incoming {
            pending,
            options: self.options.clone(),
            pending_handshake: self.handshakes.register(),
        })
    }

    /// The address of the listener, with the actual port.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`].
    pub fn local_address(&self) -> Result<Address, CommError> {
        self.listen.local_address().map_err(CommError::Io)
    }

    /// Stops accepting over QUIC, and waits until data on the connections that its comms
    /// share has arrived. Over the other transports this does nothing: their listeners
    /// accept connections until they are dropped.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: call it again.
    pub async fn close(&self) {
        self.listen.close().await;
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("address", &self.listen.local_address().ok())
            .finish_non_exhaustive()
    }
}

/// An accepted connection, before its handshake.
#[derive(Debug)]
#[must_use = "a connection is closed when this is dropped"]
pub struct Incoming {
    pending: PendingConnection,
    options: CommOptions,
    pending_handshake: PendingHandshake,
}

impl Incoming {
    /// Does the handshake.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// As [`Comm::establish`], `CommError::Tls` if TLS fails, and [`Closed::Displaced`];
    /// the connection is closed then.
    ///
    /// [`Closed::Displaced`]: crate::Closed::Displaced
    pub async fn handshake(self) -> Result<Comm, CommError> {
        let peer = self.peer_address().clone();
        let handshake = async {
            let outcome = self.pending.handshake(&self.options).await;
            outcome.map_err(ConnectError::into_comm_error)
        };
        let outcome = self.pending_handshake.run(handshake).await;
        outcome.inspect_err(|error| CommEvent::HandshakeFailed { error }.emit(&peer))
    }

    /// Opens the connection without the handshake of Dask. The handshake of the
    /// transport, such as TLS, is done.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// Those of the transport, [`CommError::Timeout`] after
    /// [`CommOptions::handshake_timeout`], and [`Closed::Displaced`].
    ///
    /// [`Closed::Displaced`]: crate::Closed::Displaced
    pub async fn open(self) -> Result<RawConnection, CommError> {
        let peer = self.peer_address().clone();
        let opening = self.pending.open(&self.options);
        let outcome = self.pending_handshake.run(opening).await;
        outcome.inspect_err(|error| CommEvent::HandshakeFailed { error }.emit(&peer))
    }

    /// The address of the peer.
    pub const fn peer_address(&self) -> &Address {
        self.pending.peer_address()
    }
}

/// Whether the process or the system has no file descriptors left: EMFILE or ENFILE,
/// which have no [`io::ErrorKind`], and the same numbers on every Unix.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24))
}
