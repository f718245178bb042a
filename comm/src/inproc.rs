//! Comms within this process: Dask's `inproc://`.
//!
//! Bytes go through a buffer in memory, framed as they are everywhere, so that
//! what works here works over a network.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::io::DuplexStream;
use tokio::sync::mpsc;

use crate::{Address, Scheme};

/// Bytes that may be under way in each direction before a writer waits: what
/// a socket has, about.
const UNDER_WAY: usize = 256 << 10;

/// Connections that may wait for a listener (the backlog of Dask's listeners).
const BACKLOG: usize = 2048;

/// Who listens, by path.
static LISTENERS: Mutex<BTreeMap<String, mpsc::Sender<InprocStream>>> = Mutex::new(BTreeMap::new());

/// Tells the connecting ends apart.
static NEXT: AtomicU64 = AtomicU64::new(1);

fn listeners() -> MutexGuard<'static, BTreeMap<String, mpsc::Sender<InprocStream>>> {
    // Whoever panicked did not leave it half done.
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One end of a connection.
#[derive(Debug)]
pub struct InprocStream {
    /// What comes. One pipe for each direction, so that the end of a half is
    /// the end of its pipe.
    pub reader: DuplexStream,
    /// What goes.
    pub writer: DuplexStream,
    /// The address of this end.
    pub local: Address,
    /// The address of the other end.
    pub peer: Address,
}

impl InprocStream {
    /// Connects to a listener of this process.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::ConnectionRefused`] if nobody listens there.
    pub async fn connect(address: &Address) -> io::Result<Self> {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let listener = listeners().get(address.path()).cloned();
        let listener = listener.ok_or_else(refused)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = format!("{}/{number}", std::process::id());
        let local = Address::with_path(Scheme::Inproc, &path);
        let (our_writer, their_reader) = tokio::io::duplex(UNDER_WAY);
        let (their_writer, our_reader) = tokio::io::duplex(UNDER_WAY);
        let theirs = Self {
            reader: their_reader,
            writer: their_writer,
            local: address.clone(),
            peer: local.clone(),
        };
        listener.send(theirs).await.map_err(|_| refused())?;
        Ok(Self {
            reader: our_reader,
            writer: our_writer,
            local,
            peer: address.clone(),
        })
    }
}

/// Listens at a path until it is dropped.
#[derive(Debug)]
pub struct InprocListener {
    address: Address,
    incoming: tokio::sync::Mutex<mpsc::Receiver<InprocStream>>,
}

impl InprocListener {
    /// Listens at the path of `address`.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::AddrInUse`].
    pub fn bind(address: &Address) -> io::Result<Self> {
        use std::collections::btree_map::Entry;
        match listeners().entry(address.path().to_owned()) {
            Entry::Occupied(_) => Err(io::ErrorKind::AddrInUse.into()),
            Entry::Vacant(place) => {
                let (sender, receiver) = mpsc::channel(BACKLOG);
                place.insert(sender);
                Ok(Self {
                    address: address.clone(),
                    incoming: tokio::sync::Mutex::new(receiver),
                })
            }
        }
    }

    /// Waits for the next connection. Cancel safe.
    pub async fn accept(&self) -> InprocStream {
        let mut incoming = self.incoming.lock().await;
        match incoming.recv().await {
            Some(stream) => stream,
            // The other end of the channel is in the list as long as this is.
            None => core::future::pending().await,
        }
    }

    /// Where it listens.
    pub const fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for InprocListener {
    fn drop(&mut self) {
        listeners().remove(self.address.path());
    }
}
