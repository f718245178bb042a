//! Comms within this process: Dask's `inproc://`.
//!
//! Bytes go through a buffer in memory and are framed as over a network.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::{
    Address, BoxFuture, Closed, CommError, ConnectError, ConnectOptions, Listen, PendingConnection,
    RawConnection, Transport,
};

/// The buffer size of each direction in bytes, similar to that of a socket.
const PIPE_LEN: usize = 256 << 10;

/// The number of connections that wait to be accepted (Dask's backlog).
const BACKLOG: usize = 2048;

/// The listeners by location.
static LISTENERS: Mutex<BTreeMap<String, mpsc::Sender<RawConnection>>> =
    Mutex::new(BTreeMap::new());

/// The number in the address of the next connecting end.
static NEXT: AtomicU64 = AtomicU64::new(1);

fn listeners() -> MutexGuard<'static, BTreeMap<String, mpsc::Sender<RawConnection>>> {
    // Valid after a panic: a holder of the lock changes the map in one call at most, and
    // the comparison of strings in it does not panic.
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The transport of `inproc://`: memory of this process. A location is any string
/// that no other listener of the process uses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inproc;

impl Transport for Inproc {
    fn schemes(&self) -> &[&'static str] {
        &["inproc"]
    }

    fn connect<'a>(
        &'a self,
        address: &'a Address,
        _: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>> {
        Box::pin(async {
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            let listener = listeners().get(address.location()).cloned();
            let listener = listener.ok_or_else(refused)?;
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let location = format!("{}/{number}", std::process::id());
            let local = Address::with_location("inproc", &location);
            let local = local.map_err(|error| CommError::Address {
                address: address.clone(),
                error,
            })?;
            // One pipe for each direction, so that each half ends by itself.
            let (our_writer, their_reader) = tokio::io::duplex(PIPE_LEN);
            let (their_writer, our_reader) = tokio::io::duplex(PIPE_LEN);
            let ends = (address.clone(), local.clone());
            let theirs = RawConnection::new(their_reader, their_writer, ends);
            listener.send(theirs).await.map_err(|_| refused())?;
            let ends = (local, address.clone());
            Ok(RawConnection::new(our_reader, our_writer, ends).into())
        })
    }

    fn bind<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>> {
        Box::pin(async {
            let listener: Box<dyn Listen> = match listeners().entry(address.location().to_owned()) {
                Entry::Occupied(_) => {
                    return Err(CommError::Bind {
                        address: address.clone(),
                        error: io::ErrorKind::AddrInUse.into(),
                    });
                }
                Entry::Vacant(entry) => {
                    let (sender, receiver) = mpsc::channel(BACKLOG);
                    entry.insert(sender);
                    Box::new(InprocListener {
                        address: address.clone(),
                        incoming: tokio::sync::Mutex::new(receiver),
                    })
                }
            };
            Ok(listener)
        })
    }
}

/// Listens at a location until it is dropped.
struct InprocListener {
    address: Address,
    incoming: tokio::sync::Mutex<mpsc::Receiver<RawConnection>>,
}

impl Listen for InprocListener {
    fn accept(&self) -> BoxFuture<'_, Result<PendingConnection, CommError>> {
        Box::pin(async {
            // The sender stays in `LISTENERS` as long as this listener exists.
            let connection = self.incoming.lock().await.recv().await;
            Ok(connection.ok_or(Closed::Locally)?.into())
        })
    }

    fn local_address(&self) -> io::Result<Address> {
        Ok(self.address.clone())
    }
}

impl Drop for InprocListener {
    fn drop(&mut self) {
        listeners().remove(self.address.location());
    }
}
