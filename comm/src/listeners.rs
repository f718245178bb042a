//! The listeners of a transport whose connections are handed over within the process.

use core::fmt;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::{Address, BoxFuture, Closed, CommError, Listen, PendingConnection};

/// The number of connections that wait to be accepted (Dask's backlog).
const BACKLOG: usize = 2048;

type Senders = BTreeMap<String, mpsc::Sender<PendingConnection>>;

/// The listeners of a transport whose connections another part of the program accepts or makes, by
/// the location of their addresses: pipes within the process, or streams that a web server has
/// upgraded.
///
/// [`Transport::bind`](crate::Transport::bind) is then [`bind`](Self::bind), and each connection
/// that arrives is [offered](Self::offer) to the listener at its address.
pub struct Listeners(Mutex<Senders>);

impl Listeners {
    /// Creates an empty map.
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    fn senders(&self) -> MutexGuard<'_, Senders> {
        // Valid after a panic: a holder of the lock changes the map in one call at a time, and the
        // comparison of strings in it does not panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens at an address until the listener is dropped.
    ///
    /// # Errors
    ///
    /// [`CommError::Bind`] if there is a listener at the address.
    pub fn bind(&self, address: &Address) -> Result<Box<dyn Listen>, CommError> {
        let mut senders = self.senders();
        // Those of listeners that were dropped.
        senders.retain(|_, sender| !sender.is_closed());
        match senders.entry(address.location().to_owned()) {
            Entry::Occupied(_) => Err(CommError::Bind {
                address: address.clone(),
                error: io::ErrorKind::AddrInUse.into(),
            }),
            Entry::Vacant(entry) => {
                let (sender, receiver) = mpsc::channel(BACKLOG);
                entry.insert(sender);
                Ok(Box::new(Bound {
                    address: address.clone(),
                    incoming: tokio::sync::Mutex::new(receiver),
                }))
            }
        }
    }

    /// Hands a connection to the listener at an address, and waits while too many connections wait
    /// to be accepted there. Dropping the future drops the connection.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::ConnectionRefused`] if there is no listener at the address.
    pub async fn offer(
        &self,
        address: &Address,
        connection: impl Into<PendingConnection>,
    ) -> io::Result<()> {
        let connection = connection.into();
        let sender = self.senders().get(address.location()).cloned();
        let sender = sender.ok_or(io::ErrorKind::ConnectionRefused)?;
        let sent = sender.send(connection).await;
        sent.map_err(|_| io::ErrorKind::ConnectionRefused.into())
    }
}

impl Default for Listeners {
    /// Creates an empty map.
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.senders().keys()).finish()
    }
}

/// Listens at a location until it is dropped.
struct Bound {
    address: Address,
    incoming: tokio::sync::Mutex<mpsc::Receiver<PendingConnection>>,
}

impl Listen for Bound {
    fn accept(&self) -> BoxFuture<'_, Result<PendingConnection, CommError>> {
        Box::pin(async {
            // The map has the sender as long as this listener exists.
            let connection = self.incoming.lock().await.recv().await;
            Ok(connection.ok_or(Closed::Locally)?)
        })
    }

    fn local_address(&self) -> io::Result<Address> {
        Ok(self.address.clone())
    }
}
