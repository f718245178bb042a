//! The listeners of a transport whose connections are handed over within the process.

use core::fmt;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::{Address, BoxFuture, Closed, CommError, Listen, PendingConnection};

/// The number of connections that wait to be accepted (Dask's backlog).
const BACKLOG: usize = 2048;

type Senders = BTreeMap<String, mpsc::Sender<PendingConnection>>;

/// The listeners of transports whose connections another part of the program accepts or makes, by
/// their addresses: pipes within the process, or streams that a web server has upgraded. Clones
/// have the same listeners.
///
/// [`Transport::bind`](crate::Transport::bind) is then [`bind`](Self::bind), and each connection
/// that arrives is [offered](Self::offer) to the listener at its address.
#[derive(Clone, Default)]
pub struct Listeners(Arc<Mutex<Senders>>);

/// Locks the map, which is valid after a panic: a holder of the lock changes it in one call, and
/// the comparison of strings in it does not panic. Nothing is dropped under the lock: connections
/// are code of others.
fn lock(senders: &Mutex<Senders>) -> MutexGuard<'_, Senders> {
    senders.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listeners {
    /// Creates an empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Listens at an address until the listener is dropped.
    ///
    /// # Errors
    ///
    /// [`CommError::Bind`] if there is a listener at the address.
    pub fn bind(&self, address: &Address) -> Result<Box<dyn Listen>, CommError> {
        match lock(&self.0).entry(address.to_string()) {
            Entry::Occupied(_) => Err(CommError::Bind {
                address: address.clone(),
                error: io::ErrorKind::AddrInUse.into(),
            }),
            Entry::Vacant(entry) => {
                let (sender, receiver) = mpsc::channel(BACKLOG);
                entry.insert(sender);
                Ok(Box::new(Bound {
                    listeners: self.clone(),
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
        let sender = lock(&self.0).get(&address.to_string()).cloned();
        let sender = sender.ok_or(io::ErrorKind::ConnectionRefused)?;
        let sent = sender.send(connection).await;
        sent.map_err(|_| io::ErrorKind::ConnectionRefused.into())
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(lock(&self.0).keys()).finish()
    }
}

/// Listens at an address until it is dropped.
struct Bound {
    listeners: Listeners,
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

impl Drop for Bound {
    fn drop(&mut self) {
        // The entry is its own: none is replaced. With the last sender, connections that were
        // offered too late are dropped.
        let sender = lock(&self.listeners.0).remove(&self.address.to_string());
        drop(sender);
    }
}

#[cfg(all(test, feature = "runtime-tokio"))]
mod tests {
    use super::*;
    use crate::RawConnection;

    fn end(address: &Address) -> (RawConnection, tokio::io::DuplexStream) {
        let (near, far) = tokio::io::duplex(16);
        let ends = (address.clone(), address.clone());
        (RawConnection::new(tokio::io::empty(), near, ends), far)
    }

    #[tokio::test]
    async fn a_connection_reaches_the_listener_at_its_address_only() {
        let listeners = Listeners::new();
        let [here, other]: [Address; 2] =
            ["pipe://here", "tube://here"].map(|address| address.parse().expect("an address"));
        let listener = listeners.bind(&here).expect("it is free");
        let taken = listeners.bind(&here).err().expect("it is taken");
        assert!(matches!(taken, CommError::Bind { .. }), "{taken}");
        let refused = listeners.offer(&other, end(&other).0).await;
        let refused = refused.expect_err("none is there").kind();
        assert_eq!(refused, io::ErrorKind::ConnectionRefused);
        listeners
            .offer(&here, end(&here).0)
            .await
            .expect("it listens");
        let accepted = listener.accept().await.expect("a connection");
        assert_eq!(accepted.peer_address(), &here);
    }

    #[tokio::test]
    async fn a_dropped_listener_ends_the_connections_that_wait() {
        use tokio::io::AsyncReadExt as _;

        let listeners = Listeners::new();
        let here: Address = "pipe://here".parse().expect("an address");
        let listener = listeners.bind(&here).expect("it is free");
        let (connection, mut far) = end(&here);
        listeners
            .offer(&here, connection)
            .await
            .expect("it listens");
        drop(listener);
        assert_eq!(far.read(&mut [0]).await.expect("the end"), 0);
        let refused = listeners.offer(&here, end(&here).0).await;
        assert!(refused.is_err());
        listeners.bind(&here).expect("it is free again");
    }
}
