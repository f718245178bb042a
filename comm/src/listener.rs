//! Accepting comms.

use core::fmt;
use std::io;

use crate::handshakes::{Handshakes, UnderWay};
use crate::transport::ConnectError;
use crate::{Address, Comm, CommError, CommOptions, Listen, PendingConnection, RawConnection};

/// Waits for connections, of any transport.
pub struct Listener {
    listen: Box<dyn Listen>,
    options: CommOptions,
    handshakes: Handshakes,
}

impl Listener {
    /// For comms with these options.
    pub fn new(listen: Box<dyn Listen>, options: CommOptions) -> Self {
        Self {
            listen,
            handshakes: Handshakes::new(options.max_handshakes),
            options,
        }
    }

    /// Waits for the next connection. The handshake is still to be done, by
    /// [`Incoming::handshake`]: in a task of its own, or a peer that says
    /// nothing keeps all others waiting.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: no connection is lost.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`] where the listener goes on: most errors here are about one
    /// connection, or pass (too many open files: wait before the next call). Any
    /// other error is the end of the listener.
    pub async fn accept(&self) -> Result<Incoming, CommError> {
        let pending = self.listen.accept().await.inspect_err(|error| {
            if matches!(error, CommError::Io(error) if is_out_of_descriptors(error)) {
                self.handshakes.displace_oldest();
            }
        })?;
        Ok(Incoming {
            pending,
            options: self.options.clone(),
            under_way: self.handshakes.begin(),
        })
    }

    /// Where it listens, with the port that it got.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`].
    pub fn local_address(&self) -> Result<Address, CommError> {
        self.listen.local_address().map_err(CommError::Io)
    }

    /// Accepts nothing more, and waits until everything has arrived that went over
    /// connections which several comms share. Listeners without such connections
    /// end when they are dropped, which is all that they need.
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

/// A connection that was accepted, before its handshake.
#[derive(Debug)]
#[must_use = "a connection is closed when this is dropped"]
pub struct Incoming {
    pending: PendingConnection,
    options: CommOptions,
    under_way: UnderWay,
}

impl Incoming {
    /// Does the handshake.
    ///
    /// # Errors
    ///
    /// As [`Comm::establish`], and `CommError::Tls` if TLS fails; the connection
    /// is closed then.
    pub async fn handshake(self) -> Result<Comm, CommError> {
        let handshake = async {
            let outcome = self.pending.handshake(&self.options).await;
            outcome.map_err(ConnectError::into_comm_error)
        };
        self.under_way.limit(handshake).await
    }

    /// The connection without the handshake of Dask; that of the transport, such as
    /// TLS, is done.
    ///
    /// # Errors
    ///
    /// Those of the transport.
    pub async fn open(self) -> Result<RawConnection, CommError> {
        let opening = self.pending.open(&self.options);
        self.under_way.limit(opening).await
    }

    /// The address of the other end.
    pub const fn peer_address(&self) -> &Address {
        self.pending.peer_address()
    }
}

/// Whether the process or the system has no descriptors left: EMFILE and ENFILE,
/// which have no kind, and these numbers on every Unix.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24))
}
