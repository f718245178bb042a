//! A client of a Dask cluster: it submits tasks, knows what becomes of them, and
//! moves data there and back.
//!
//! ```no_run
//! # async fn example() -> Result<(), daskwire_peer::PeerError> {
//! use daskwire_peer::Client;
//!
//! let client = Client::connect("tcp://10.0.0.7:8786").await?;
//! let x = client.submit("operator.add", [1, 2])?;
//! let y = client.submit("operator.mul", [7, 6])?;
//! let z = client.submit("operator.add", [&x, &y])?; // on the workers
//! assert_eq!(i64::try_from(z.result().await?)?, 45);
//! client.close().await
//! # }
//! ```
//!
//! Functions are named, not sent: those of Python by their module, such as
//! `numpy.linalg.norm`, those of workers in Rust as `native:NAME`. Results are
//! [`Value`](crate::Value)s; what has no counterpart in Rust, as a DataFrame, stays
//! [`Value::Serialized`](crate::Value::Serialized) and can be an argument of other
//! tasks by its future. Nothing that a peer sends is ever executed.

mod data;
mod future;
mod session;
mod submit;

use core::time::Duration;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use daskwire_tcp::{Address, Options};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::batched::Batched;
use crate::channel::{Observer, within};
use crate::identity::Identity;
use crate::net::Connector;
use crate::pool::Pool;
use crate::protocol::{
    CancelKeys, ClientReleasesKeys, FromClient, Keys, Nullable, ReportKey, Request, Retry, Unknown,
};
use crate::{Key, PeerError};

pub use crate::meter::Meter;
pub use data::Route;
pub use future::{AsCompleted, Status, TaskFuture};
pub use submit::{Call, Submission};

use future::Entry;

/// What a client does when its connection to the scheduler breaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reconnect {
    /// It is over: all futures end with [`PeerError::Disconnected`], and so does
    /// whatever is asked for.
    #[default]
    Never,
    /// It tries again for so long. The scheduler has forgotten what this client
    /// held, so futures that are not done end as [`Status::Lost`]; new tasks can
    /// be submitted.
    Within(Duration),
}

/// Is called with each message that is not known here.
pub type UnknownHook = Arc<dyn Fn(&Unknown) + Send + Sync>;

/// How to connect.
#[derive(Clone)]
pub struct ClientOptions {
    /// Of the transport: timeouts, TLS, limits, a pool of buffers.
    pub transport: Options,
    /// The client's name for itself; made up if there is none.
    pub id: Option<String>,
    /// What to do when the connection breaks.
    pub reconnect: Reconnect,
    /// How to fetch and spread data unless it is said otherwise.
    pub route: Route,
    /// How long to wait for an answer of the scheduler that it has at hand.
    pub timeout: Duration,
    /// How much time passes between batches to the scheduler at least: 10 ms as in
    /// Dask, which spares a scheduler in Python work.
    pub interval: Duration,
    /// Whoever wants to see each message.
    pub observer: Option<Arc<dyn Observer>>,
    /// What counts the bytes of the comms that move data.
    pub meter: Option<Arc<Meter>>,
    /// Whoever wants to know of messages that are not known here.
    pub unknown: Option<UnknownHook>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            transport: Options::default(),
            id: None,
            reconnect: Reconnect::Never,
            route: Route::Scheduler,
            timeout: Duration::from_secs(30),
            interval: Duration::from_millis(10),
            observer: None,
            meter: None,
            unknown: None,
        }
    }
}

impl core::fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ClientOptions")
            .field("transport", &self.transport)
            .field("id", &self.id)
            .field("reconnect", &self.reconnect)
            .field("route", &self.route)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// A client of a Dask cluster.
///
/// Dropping it ends the connection, and the cluster forgets what it held;
/// [`close`](Self::close) says so first.
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    session: JoinHandle<()>,
}

/// What clients and their futures have in common.
pub(crate) struct Shared {
    id: String,
    address: Address,
    options: ClientOptions,
    pool: Pool,
    connector: Arc<Connector>,
    /// All keys that are held.
    entries: Mutex<HashMap<Key, Weak<Entry>>>,
    /// The stream to the scheduler, while there is one.
    stream: Mutex<Option<Batched<FromClient>>>,
    /// Where what goes on in the background is done.
    runtime: Handle,
    /// Why there is no stream any more, and never will be.
    ended: OnceLock<String>,
    is_closing: AtomicBool,
    /// Whether something was released since the scheduler was last known to have
    /// read all of the stream.
    has_released: AtomicBool,
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.id)
            .field("scheduler", &format_args!("{}", self.address))
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whoever panicked did not leave it half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn send(&self, message: impl Into<FromClient>) -> Result<(), PeerError> {
        let sent = lock(&self.stream)
            .as_ref()
            .is_some_and(|stream| stream.send(message));
        if sent {
            Ok(())
        } else {
            Err(self.disconnected())
        }
    }

    fn disconnected(&self) -> PeerError {
        let reason = self
            .ended
            .get()
            .map_or("the connection broke", String::as_str);
        PeerError::Disconnected {
            reason: reason.to_owned(),
        }
    }

    /// The entry of a key, and whether it is new.
    fn entry(self: &Arc<Self>, key: &Key) -> (Arc<Entry>, bool) {
        let mut entries = lock(&self.entries);
        if let Some(entry) = entries.get(key).and_then(Weak::upgrade) {
            return (entry, false);
        }
        let entry = Arc::new(Entry::new(key.clone(), Arc::clone(self)));
        entries.insert(key.clone(), Arc::downgrade(&entry));
        (entry, true)
    }

    /// The entry of a key, if somebody holds it.
    fn held(&self, key: &Key) -> Option<Arc<Entry>> {
        lock(&self.entries).get(key).and_then(Weak::upgrade)
    }

    /// All entries that somebody holds.
    fn all(&self) -> Vec<Arc<Entry>> {
        lock(&self.entries)
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// The last handle on a key is gone.
    fn release(&self, key: &Key) {
        let mut entries = lock(&self.entries);
        match entries.get(key) {
            // It was asked for again in the meantime.
            Some(entry) if entry.strong_count() != 0 => return,
            Some(_) => entries.remove(key),
            None => return,
        };
        if entries.capacity() > 1 << 10 && entries.len() < entries.capacity() / 8 {
            entries.shrink_to_fit();
        }
        // While the entries are locked, so that nobody asks for the key again before
        // the scheduler is told.
        self.has_released.store(true, Ordering::Release);
        // Without a connection the scheduler has released it already.
        let _ = self.send(ClientReleasesKeys {
            keys: Keys(vec![key.clone()]),
            ..ClientReleasesKeys::default()
        });
    }

    /// Waits until the scheduler has read every release that was sent. Requests
    /// go another way than these, and a key that is used again right after it was
    /// released could be forgotten otherwise.
    async fn settle(self: &Arc<Self>) -> Result<(), PeerError> {
        if !self.has_released.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        // What is not there is answered at once, in the order of the stream.
        let key = Key::unique("settled");
        let (entry, _) = self.entry(&key);
        self.send(ReportKey {
            key,
            ..ReportKey::default()
        })?;
        let settled = TaskFuture::new(entry);
        within(
            self.options.timeout,
            "the scheduler to read what was sent",
            async {
                settled.done().await;
                Ok(())
            },
        )
        .await?;
        drop(settled);
        self.has_released.store(false, Ordering::Release);
        Ok(())
    }

    async fn call<T: crate::protocol::Field>(
        &self,
        what: &'static str,
        request: impl Into<Request>,
    ) -> Result<T, PeerError> {
        let request = request.into();
        within(
            self.options.timeout,
            what,
            self.pool.call(&self.address, &request),
        )
        .await
    }
}

impl Client {
    /// Connects to a scheduler at an address such as `tcp://10.0.0.7:8786`.
    ///
    /// # Errors
    ///
    /// [`PeerError`] if it is not there, or refuses the client.
    pub async fn connect(address: &str) -> Result<Self, PeerError> {
        Self::connect_with(address, ClientOptions::default()).await
    }

    /// Connects with options, which `tls://` and `quic://` need.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub async fn connect_with(address: &str, options: ClientOptions) -> Result<Self, PeerError> {
        let address: Address = address.parse().map_err(|error| PeerError::Refused {
            reason: format!("{address}: {error}"),
        })?;
        let connector = Arc::new(Connector::new(options.transport.clone()));
        let id = options
            .id
            .clone()
            .unwrap_or_else(|| format!("Client-daskwire-{}", crate::identifier()));
        let shared = Arc::new(Shared {
            id,
            pool: Pool::new(Arc::clone(&connector), "client", options.observer.clone())
                .metered(options.meter.clone(), options.transport.clone()),
            connector,
            entries: Mutex::default(),
            stream: Mutex::default(),
            runtime: Handle::current(),
            ended: OnceLock::new(),
            is_closing: AtomicBool::new(false),
            has_released: AtomicBool::new(false),
            address,
            options,
        });
        let session = session::start(&shared).await?;
        Ok(Self { shared, session })
    }

    /// The client's name for itself.
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// The address of the scheduler.
    pub fn scheduler(&self) -> &Address {
        &self.shared.address
    }

    /// Who the scheduler is, and which workers it has.
    ///
    /// # Errors
    ///
    /// [`PeerError`] if it does not answer.
    pub async fn identity(&self) -> Result<Identity, PeerError> {
        let request = crate::protocol::Identity {
            n_workers: Some(-1),
            reply: Some(true),
            ..crate::protocol::Identity::default()
        };
        self.shared
            .call("the identity of the scheduler", request)
            .await
    }

    /// The workers of the cluster.
    ///
    /// # Errors
    ///
    /// [`PeerError`] if the scheduler does not answer.
    pub async fn workers(&self) -> Result<Vec<crate::identity::Worker>, PeerError> {
        Ok(self.identity().await?.workers)
    }

    /// Waits until the cluster has at least so many workers.
    ///
    /// # Errors
    ///
    /// [`PeerError::Timeout`] if it does not in time.
    pub async fn wait_for_workers(&self, count: usize, after: Duration) -> Result<(), PeerError> {
        within(after, "workers of the cluster", async {
            while self.workers().await?.len() < count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        })
        .await
    }

    /// A future for a key that this client did not make, such as one that a
    /// client of Python has published the name of.
    ///
    /// # Errors
    ///
    /// [`PeerError::Disconnected`].
    pub fn future(&self, key: impl Into<Key>) -> Result<TaskFuture, PeerError> {
        let key = key.into();
        let (entry, is_new) = self.shared.entry(&key);
        if is_new {
            self.shared.send(crate::protocol::ClientDesiresKeys {
                keys: Keys(vec![key.clone()]),
                ..crate::protocol::ClientDesiresKeys::default()
            })?;
            self.shared.send(ReportKey {
                key,
                ..ReportKey::default()
            })?;
        }
        Ok(TaskFuture::new(entry))
    }

    /// Makes somebody else hold results too, who need not be there: they stay when
    /// this client has gone, until [`release_as`](Self::release_as).
    ///
    /// Waits until the results are there: a scheduler that is asked to hold a task
    /// before it has read the graph with it mixes the two up.
    ///
    /// # Errors
    ///
    /// As [`TaskFuture::finished`].
    pub async fn hold_as(&self, holder: &str, futures: &[TaskFuture]) -> Result<(), PeerError> {
        for future in futures {
            future.finished().await?;
        }
        self.shared.send(crate::protocol::ClientDesiresKeys {
            keys: futures.iter().map(TaskFuture::key).collect(),
            client: Some(holder.to_owned()),
            ..crate::protocol::ClientDesiresKeys::default()
        })
    }

    /// Releases what was held for somebody else.
    ///
    /// # Errors
    ///
    /// [`PeerError::Disconnected`].
    pub fn release_as(
        &self,
        holder: &str,
        keys: impl IntoIterator<Item = impl Into<Key>>,
    ) -> Result<(), PeerError> {
        self.shared.send(ClientReleasesKeys {
            keys: keys.into_iter().collect(),
            client: Some(holder.to_owned()),
            ..ClientReleasesKeys::default()
        })
    }

    /// Cancels tasks: they are not run any more, and their futures are
    /// [`Status::Cancelled`]. Tasks that other clients want too go on, unless
    /// `force` is set.
    ///
    /// # Errors
    ///
    /// [`PeerError::Disconnected`].
    pub fn cancel<'f>(
        &self,
        futures: impl IntoIterator<Item = &'f TaskFuture>,
        force: bool,
    ) -> Result<(), PeerError> {
        let entries: Vec<&Arc<Entry>> = futures.into_iter().map(TaskFuture::entry).collect();
        self.shared.send(CancelKeys {
            keys: entries.iter().map(|entry| &entry.key).collect(),
            force,
            reason: Nullable(Some("the client asked for it".to_owned())),
            ..CancelKeys::default()
        })?;
        for entry in entries {
            entry.set(Status::Cancelled {
                reason: "the client asked for it".to_owned(),
            });
        }
        Ok(())
    }

    /// Runs tasks again that failed, and those that they failed for.
    ///
    /// # Errors
    ///
    /// [`PeerError`] if the scheduler does not answer.
    pub async fn retry<'f>(
        &self,
        futures: impl IntoIterator<Item = &'f TaskFuture>,
    ) -> Result<(), PeerError> {
        let request = Retry {
            keys: futures.into_iter().map(TaskFuture::key).collect(),
            client: Some(self.shared.id.clone()),
            reply: Some(true),
            ..Retry::default()
        };
        let retried: Keys = self.shared.call("trying tasks again", request).await?;
        for key in retried {
            // It may have failed again already: the scheduler says so once more.
            if let Some(entry) = self.shared.held(&key) {
                entry.set(Status::Pending);
                self.shared.send(ReportKey {
                    key,
                    ..ReportKey::default()
                })?;
            }
        }
        Ok(())
    }

    /// Waits until all futures are done, however they end.
    pub async fn wait<'f>(&self, futures: impl IntoIterator<Item = &'f TaskFuture>) {
        for future in futures {
            future.done().await;
        }
    }

    /// Futures in the order in which they are done.
    pub fn as_completed(&self, futures: impl IntoIterator<Item = TaskFuture>) -> AsCompleted {
        AsCompleted::new(futures)
    }

    /// Leaves: says so to the scheduler, which forgets what this client held, and
    /// closes all connections.
    ///
    /// # Errors
    ///
    /// [`PeerError`] if the last messages may not have arrived.
    pub async fn close(mut self) -> Result<(), PeerError> {
        session::close(&self.shared, &mut self.session).await
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::Release);
        self.session.abort();
        let _ = self.shared.ended.set("the client was dropped".to_owned());
        lock(&self.shared.stream).take();
        let error = self.shared.disconnected();
        for entry in self.shared.all() {
            entry.end(&error);
        }
    }
}
