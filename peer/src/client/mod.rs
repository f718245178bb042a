//! A client of a Dask cluster, which submits tasks, tracks their state, and
//! transfers data.
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
//! client.close().await?;
//! Ok(())
//! # }
//! ```
//!
//! Functions are referred to by name: Python functions by their module, such as
//! `numpy.linalg.norm`, those of Rust workers as `native:NAME`. Results are
//! [`Value`](crate::Value)s. Objects without a counterpart in Rust, such as a
//! DataFrame, stay [`Value::Serialized`](crate::Value::Serialized), and their
//! futures can be arguments of other tasks. Nothing that a peer sends is ever
//! executed.

mod data;
mod error;
mod future;
mod session;
mod submit;
mod update;

use core::hash::BuildHasher as _;
use core::time::Duration;
use daskwire_comm::runtime::{self, Spawner, Task};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use daskwire_comm::{Address, CommOptions, Transports};
use tokio::sync::watch;

use crate::batched::BatchSender;
use crate::channel::{Observer, within};
use crate::dialect::{Cancellation, Dialect};
use crate::failure::Failure;
use crate::identity::Identity;
use crate::net::Connector;
use crate::pool::Pool;
use crate::protocol::{
    CancelKeys, CancelKeysSilently, ClientReleasesKeys, FromClient, Keys, Nullable, ReportKey,
    Request, Retry, Unknown,
};
use crate::{Key, Release, RequestError};

pub use crate::meter::Meter;
pub use data::Route;
pub use error::{ConnectError, Disconnected, ScatterError, SubmitError, TaskError};
pub use future::{AsCompleted, Status, TaskFuture};
pub use submit::{Call, Submission};

use future::Entry;

/// What a client does when its connection to the scheduler breaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reconnect {
    /// Gives up: all futures end as [`Status::Disconnected`], and nothing can be
    /// submitted any more.
    #[default]
    Never,
    /// Tries to reconnect for this long. The scheduler has forgotten the client's
    /// keys, so unfinished futures end as [`Status::Lost`]; new tasks can be
    /// submitted.
    Within(Duration),
}

/// Callback for messages with an unknown op.
pub type UnknownHook = Arc<dyn Fn(&Unknown) + Send + Sync>;

/// Options of a [`Client`].
#[derive(Clone)]
pub struct ClientOptions {
    /// The available transports. Default: [`transports`](crate::transports);
    /// `tls://` and `quic://` need
    /// [`transports_with_tls`](crate::transports_with_tls).
    pub transports: Transports,
    /// Options of comms: timeouts, limits, a pool of buffers.
    pub comm: CommOptions,
    /// The client's id. Default: a unique one.
    pub id: Option<String>,
    /// What to do when the connection breaks. Default: give up.
    pub reconnect: Reconnect,
    /// The route for data. Default: through the scheduler.
    pub route: Route,
    /// Timeout for replies that the scheduler can give at once.
    pub timeout: Duration,
    /// Minimum interval between batches to the scheduler. Default: 10 ms, as in
    /// Dask, which saves a scheduler in Python work.
    pub interval: Duration,
    /// An observer that sees each message.
    pub observer: Option<Arc<dyn Observer>>,
    /// Counts the bytes of the comms that transfer data.
    pub meter: Option<Arc<Meter>>,
    /// Callback for messages with an unknown op.
    pub unknown: Option<UnknownHook>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            transports: crate::transports(),
            comm: CommOptions::default(),
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
            .field("transports", &self.transports)
            .field("comm", &self.comm)
            .field("id", &self.id)
            .field("reconnect", &self.reconnect)
            .field("route", &self.route)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// A client of a Dask cluster.
///
/// Dropping it ends the connection, and the cluster forgets its keys;
/// [`close`](Self::close) notifies the scheduler first.
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    session: Task<()>,
}

/// State shared by a client and its futures.
pub(crate) struct Shared {
    id: String,
    address: Address,
    options: ClientOptions,
    pool: Pool,
    connector: Arc<Connector>,
    /// The keys that the scheduler holds for this client.
    entries: Mutex<Entries>,
    /// The stream to the scheduler, while connected.
    stream: Mutex<Option<BatchSender<FromClient>>>,
    /// The scheduler's release, if it runs Dask.
    release: Mutex<Option<Release>>,
    /// What that release says.
    dialect: Mutex<Dialect>,
    /// The runtime of background work.
    runtime: Spawner,
    /// The reason why the client has ended.
    ended: OnceLock<String>,
    is_closing: AtomicBool,
    failure: Failure,
    /// Number of marks sent, and number of marks that the scheduler has answered.
    marks: AtomicU64,
    answered_marks: watch::Sender<u64>,
    /// Number of messages that released keys, and number of these that the
    /// scheduler is known to have read.
    releases: AtomicU64,
    settled_releases: AtomicU64,
    /// Hashes of the keys released since the last mark. Reports about an earlier
    /// use of such a key may still arrive.
    released: Mutex<HashSet<u64>>,
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.id)
            .field("scheduler", &format_args!("{}", self.address))
            .finish_non_exhaustive()
    }
}

type Entries = HashMap<Key, Weak<Entry>>;

/// How many released keys are remembered before a mark is sent that makes it
/// unnecessary.
const MAX_RELEASED: usize = 4096;

/// What the keys of marks have in their names.
const MARK: &str = "mark";

impl Shared {
    /// A part of the state. If a panic has left it half changed, the client ends.
    fn lock<'m, T>(&self, mutex: &'m Mutex<T>) -> MutexGuard<'m, T> {
        self.failure.check(mutex.lock())
    }

    fn send(&self, message: impl Into<FromClient>) -> Result<(), Disconnected> {
        if self.failure.is_set() {
            return Err(self.disconnected());
        }
        let sent = self
            .lock(&self.stream)
            .as_ref()
            .is_some_and(|stream| stream.send(message));
        if sent {
            Ok(())
        } else {
            Err(self.disconnected())
        }
    }

    fn disconnected(&self) -> Disconnected {
        Disconnected {
            reason: self.reason(),
        }
    }

    /// What becomes of futures without a connection.
    fn when_disconnected(&self) -> Status {
        Status::Disconnected {
            reason: self.reason(),
        }
    }

    fn reason(&self) -> String {
        let reason = self.ended.get().map(String::as_str);
        reason.unwrap_or("the connection broke").to_owned()
    }

    /// The entry of a key, and whether it is new: the scheduler does not hold the key
    /// yet. `entries` stays locked until the scheduler has been told to, so that what
    /// others send about the same key comes before or after both.
    fn entry(self: &Arc<Self>, entries: &mut Entries, key: &Key) -> (TaskFuture, bool) {
        if let Some(entry) = entries.get(key).and_then(Weak::upgrade) {
            return (TaskFuture::new(entry), false);
        }
        let hash = entries.hasher().hash_one(key);
        let is_used_again = self.lock(&self.released).contains(&hash);
        if is_used_again {
            // Without a connection there are no reports.
            let _ = self.mark(entries);
        }
        let marks = self.marks.load(Ordering::Acquire);
        let entry = Arc::new(Entry::new(key.clone(), Arc::clone(self), marks));
        entries.insert(key.clone(), Arc::downgrade(&entry));
        (TaskFuture::new(entry), true)
    }

    /// Makes futures for keys that the scheduler holds because of `message`, or
    /// of a later request.
    fn hold<'k>(
        self: &Arc<Self>,
        keys: impl IntoIterator<Item = &'k Key>,
        message: Option<FromClient>,
    ) -> Result<Vec<TaskFuture>, Disconnected> {
        let mut entries = self.lock(&self.entries);
        let futures: Vec<TaskFuture> = keys
            .into_iter()
            .map(|key| self.entry(&mut entries, key).0)
            .collect();
        let sent = message.map_or(Ok(()), |message| self.send(message));
        // Dropping futures locks the entries.
        drop(entries);
        sent.map(|()| futures)
    }

    /// The entry of a key, if it has handles.
    fn held(&self, key: &Key) -> Option<Arc<Entry>> {
        self.lock(&self.entries).get(key).and_then(Weak::upgrade)
    }

    /// The entry that a report of the scheduler is about; `None` if the report is
    /// about an earlier use of the key.
    fn reported(&self, key: &Key) -> Option<Arc<Entry>> {
        let answered = *self.answered_marks.borrow();
        self.held(key).filter(|entry| entry.marks <= answered)
    }

    /// All entries that have handles.
    fn all(&self) -> Vec<Arc<Entry>> {
        self.lock(&self.entries)
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Ends all entries, because the scheduler holds nothing for this client any
    /// more.
    fn end_all(&self, status: impl Fn() -> Status) {
        let mut entries = self.lock(&self.entries);
        let all = core::mem::take(&mut *entries);
        // No answers will come.
        let marks = self.marks.load(Ordering::Acquire);
        self.answered_marks.send_replace(marks);
        self.lock(&self.released).clear();
        // Dropping entries locks them.
        drop(entries);
        for entry in all.into_values().filter_map(|entry| entry.upgrade()) {
            entry.end(status());
        }
    }

    /// Ends an entry whose key the scheduler no longer holds for this client.
    /// Submitting the key again makes another entry.
    fn end(&self, entry: &Arc<Entry>, status: Status) {
        let mut entries = self.lock(&self.entries);
        self.detach(&mut entries, entry);
        drop(entries);
        entry.set(status);
    }

    /// Whether the entry was attached.
    fn detach(&self, entries: &mut Entries, entry: &Arc<Entry>) -> bool {
        let is_attached = entries
            .get(&entry.key)
            .is_some_and(|current| core::ptr::eq(current.as_ptr(), Arc::as_ptr(entry)));
        if is_attached {
            entries.remove(&entry.key);
        }
        is_attached
    }

    /// Releases a key after its last handle was dropped.
    fn release(&self, key: &Key) {
        let mut entries = self.lock(&self.entries);
        match entries.get(key) {
            // The key was requested again in the meantime.
            Some(entry) if entry.strong_count() != 0 => return,
            Some(_) => entries.remove(key),
            None => return,
        };
        if entries.capacity() > 1 << 10 && entries.len() < entries.capacity() / 8 {
            entries.shrink_to_fit();
        }
        // Without a connection, the scheduler has released the key already.
        if self.send_release(Keys(vec![key.clone()])).is_ok() {
            self.remember_released(&entries, key);
        }
    }

    /// Remembers a released key until the next mark.
    fn remember_released(&self, entries: &Entries, key: &Key) {
        if self.lock(&self.released).len() >= MAX_RELEASED {
            // Without a connection there are no reports.
            let _ = self.mark(entries);
            self.lock(&self.released).clear();
        }
        let hash = entries.hasher().hash_one(key);
        self.lock(&self.released).insert(hash);
    }

    fn send_release(&self, keys: Keys) -> Result<(), Disconnected> {
        self.releases.fetch_add(1, Ordering::AcqRel);
        self.send(ClientReleasesKeys {
            keys,
            ..ClientReleasesKeys::default()
        })
    }

    /// Sends a mark on the stream, and returns its number. Once it is answered,
    /// the scheduler has read everything before it, and the resulting reports
    /// have arrived.
    ///
    /// `_entries` stay locked, so that no key is submitted between counting and
    /// sending the mark: reports about the key would be ignored.
    fn mark(&self, _entries: &Entries) -> Result<u64, Disconnected> {
        let mark = self.marks.load(Ordering::Acquire) + 1;
        // Unknown keys are answered at once, in the order of the stream.
        self.send(ReportKey {
            key: Key::from(format!("{}-{MARK}-{mark}", self.id)),
            ..ReportKey::default()
        })?;
        // Only marks that were sent are answered.
        self.marks.store(mark, Ordering::Release);
        self.lock(&self.released).clear();
        Ok(mark)
    }

    /// The number of the mark that a key represents.
    fn mark_of(&self, key: &Key) -> Option<u64> {
        let name = key.as_str()?.strip_prefix(&self.id)?;
        let number = name.strip_prefix('-')?.strip_prefix(MARK)?;
        number.strip_prefix('-')?.parse().ok()
    }

    /// Waits until the scheduler has read all releases. Requests use other comms
    /// than the stream; a key that is used again right after its release could be
    /// forgotten otherwise.
    async fn settle(&self) -> Result<(), ScatterError> {
        let releases = self.releases.load(Ordering::Acquire);
        if self.settled_releases.load(Ordering::Acquire) >= releases {
            return Ok(());
        }
        let mark = self.mark(&self.lock(&self.entries))?;
        let mut answered = self.answered_marks.subscribe();
        within(
            self.options.timeout,
            "the scheduler to read what was sent",
            async {
                // The sender lives as long as `self`.
                let _ = answered.wait_for(|answered| *answered >= mark).await;
                Ok::<(), RequestError>(())
            },
        )
        .await?;
        self.settled_releases.fetch_max(releases, Ordering::AcqRel);
        Ok(())
    }

    async fn call<T: crate::protocol::Field>(
        &self,
        what: &'static str,
        request: impl Into<Request>,
    ) -> Result<T, RequestError> {
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
    /// Connects to a scheduler at an address such as `tcp://10.0.0.7:8786`;
    /// `tcp://` may be omitted.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the scheduler cannot be reached, is too old, or refuses the
    /// client.
    pub async fn connect(address: &str) -> Result<Self, ConnectError> {
        Self::connect_with(address, ClientOptions::default()).await
    }

    /// Connects with options, which `tls://` and `quic://` need.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub async fn connect_with(address: &str, options: ClientOptions) -> Result<Self, ConnectError> {
        let address = RequestError::parse_address(address)?;
        let connector = Connector::new(options.transports.separate(), options.comm.clone());
        let connector = Arc::new(connector);
        let id = options
            .id
            .clone()
            .unwrap_or_else(|| format!("Client-daskwire-{}", crate::identifier()));
        let shared = Arc::new(Shared {
            id,
            pool: Pool::new(Arc::clone(&connector), "client", options.observer.clone())
                .metered(options.meter.clone(), options.comm.clone()),
            connector,
            entries: Mutex::default(),
            stream: Mutex::default(),
            release: Mutex::default(),
            dialect: Mutex::new(Dialect::NEWEST),
            runtime: Spawner::current(),
            ended: OnceLock::new(),
            is_closing: AtomicBool::new(false),
            failure: Failure::default(),
            marks: AtomicU64::new(0),
            answered_marks: watch::Sender::new(0),
            releases: AtomicU64::new(0),
            settled_releases: AtomicU64::new(0),
            released: Mutex::default(),
            address,
            options,
        });
        let session = session::start(&shared).await?;
        Ok(Self { shared, session })
    }

    /// The client's id.
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// The address of the scheduler.
    pub fn scheduler(&self) -> &Address {
        &self.shared.address
    }

    /// The scheduler's release of Dask; `None` if it does not run Dask.
    pub fn release(&self) -> Option<Release> {
        *self.shared.lock(&self.shared.release)
    }

    /// The dialect of the scheduler's release.
    fn dialect(&self) -> Dialect {
        *self.shared.lock(&self.shared.dialect)
    }

    /// Asks the scheduler for its identity and its workers.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn identity(&self) -> Result<Identity, RequestError> {
        let request = crate::protocol::Identity {
            // ROLES CLIENT-1
            n_workers: self.dialect().limits_identity.then_some(-1),
            reply: Some(true),
            ..crate::protocol::Identity::default()
        };
        let answer = self.shared.call("the identity of the scheduler", request);
        Ok(Identity::from_value(&answer.await?)?)
    }

    /// Asks the scheduler for its workers.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn workers(&self) -> Result<Vec<crate::identity::Worker>, RequestError> {
        Ok(self.identity().await?.workers)
    }

    /// Waits until the cluster has at least `count` workers.
    ///
    /// # Errors
    ///
    /// [`RequestError::Timeout`] if that takes longer than `after`.
    pub async fn wait_for_workers(
        &self,
        count: usize,
        after: Duration,
    ) -> Result<(), RequestError> {
        within(after, "workers of the cluster", async {
            while self.workers().await?.len() < count {
                runtime::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        })
        .await
    }

    /// Returns a future for a key of another client, for example one published by
    /// a Python client.
    ///
    /// # Errors
    ///
    /// [`Disconnected`].
    pub fn future(&self, key: impl Into<Key>) -> Result<TaskFuture, Disconnected> {
        let key = self.dialect().key(&key.into());
        let mut entries = self.shared.lock(&self.shared.entries);
        let (future, is_new) = self.shared.entry(&mut entries, &key);
        let sent = if is_new {
            let desires = crate::protocol::ClientDesiresKeys {
                keys: Keys(vec![key.clone()]),
                ..crate::protocol::ClientDesiresKeys::default()
            };
            let report = ReportKey {
                key,
                ..ReportKey::default()
            };
            self.shared
                .send(desires)
                .and_then(|()| self.shared.send(report))
        } else {
            Ok(())
        };
        // Dropping the future locks the entries.
        drop(entries);
        sent.map(|()| future)
    }

    /// Holds results under another client id, which need not be connected: they
    /// outlive this client, until [`release_as`](Self::release_as).
    ///
    /// Waits until the results are in memory: a scheduler confuses a request to
    /// hold a task with its submission if it has not read the graph yet.
    ///
    /// # Errors
    ///
    /// As [`TaskFuture::finished`].
    pub async fn hold_as(&self, holder: &str, futures: &[TaskFuture]) -> Result<(), TaskError> {
        for future in futures {
            future.finished().await?;
        }
        self.shared.send(crate::protocol::ClientDesiresKeys {
            keys: futures.iter().map(TaskFuture::key).collect(),
            client: Some(holder.to_owned()),
            ..crate::protocol::ClientDesiresKeys::default()
        })?;
        Ok(())
    }

    /// Releases results held under another client id.
    ///
    /// # Errors
    ///
    /// [`Disconnected`].
    pub fn release_as(
        &self,
        holder: &str,
        keys: impl IntoIterator<Item = impl Into<Key>>,
    ) -> Result<(), Disconnected> {
        self.shared.send(ClientReleasesKeys {
            keys: keys.into_iter().collect(),
            client: Some(holder.to_owned()),
            ..ClientReleasesKeys::default()
        })
    }

    /// Cancels tasks: they are not run any more, and their futures become
    /// [`Status::Cancelled`]. Tasks that other clients want too continue, unless
    /// `force` is set.
    ///
    /// # Errors
    ///
    /// [`Disconnected`].
    pub fn cancel<'f>(
        &self,
        futures: impl IntoIterator<Item = &'f TaskFuture>,
        force: bool,
    ) -> Result<(), Disconnected> {
        let shared = &self.shared;
        let futures: Vec<&Arc<Entry>> = futures.into_iter().map(TaskFuture::entry).collect();
        let reason = "cancelled by the client";
        let mut entries = shared.lock(&shared.entries);
        // A scheduler fails an assertion if a key is cancelled that no client
        // wants.
        let keys: Vec<Key> = futures
            .iter()
            .filter(|entry| shared.detach(&mut entries, entry))
            .map(|entry| entry.key.clone())
            .collect();
        let sent = if keys.is_empty() {
            Ok(())
        } else {
            // ROLES CLIENT-6
            let cancelled = match self.dialect().cancellation {
                Cancellation::WithReason => shared.send(CancelKeys {
                    keys: Keys(keys.clone()),
                    force,
                    reason: Nullable(Some(reason.to_owned())),
                    ..CancelKeys::default()
                }),
                Cancellation::Keys => shared.send(CancelKeysSilently {
                    keys: Keys(keys.clone()),
                    force,
                    ..CancelKeysSilently::default()
                }),
                // Releasing is enough if no other client wants the tasks.
                Cancellation::Release => Ok(()),
            };
            cancelled
                // Tasks that continue for others are no longer held for this
                // client.
                .and_then(|()| shared.send_release(Keys(keys)))
                // Reports about these are not about the next use of a key.
                .and_then(|()| shared.mark(&entries))
                .map(|_| ())
        };
        drop(entries);
        for entry in futures {
            entry.set(Status::Cancelled {
                reason: reason.to_owned(),
            });
        }
        sent
    }

    /// Retries failed tasks, and the failed tasks that they depend on.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn retry<'f>(
        &self,
        futures: impl IntoIterator<Item = &'f TaskFuture>,
    ) -> Result<(), RequestError> {
        let request = Retry {
            keys: futures.into_iter().map(TaskFuture::key).collect(),
            client: Some(self.shared.id.clone()),
            reply: Some(true),
            ..Retry::default()
        };
        let retried: Keys = self.shared.call("retrying tasks", request).await?;
        for key in retried {
            // It may have failed again already; the scheduler then reports it
            // once more.
            if let Some(entry) = self.shared.held(&key) {
                entry.set(Status::Pending);
                // Without a connection, its future has ended.
                let _ = self.shared.send(ReportKey {
                    key,
                    ..ReportKey::default()
                });
            }
        }
        Ok(())
    }

    /// Waits until all futures are done, successfully or not.
    pub async fn wait<'f>(&self, futures: impl IntoIterator<Item = &'f TaskFuture>) {
        for future in futures {
            future.done().await;
        }
    }

    /// Yields futures in the order in which they are done.
    pub fn as_completed(&self, futures: impl IntoIterator<Item = TaskFuture>) -> AsCompleted {
        AsCompleted::new(futures)
    }

    /// Notifies the scheduler, which forgets this client's keys, and closes all
    /// connections.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the last messages may not have arrived.
    pub async fn close(mut self) -> Result<(), RequestError> {
        session::close(&self.shared, &mut self.session).await
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::Release);
        self.session.abort();
        let _ = self.shared.ended.set("the client was dropped".to_owned());
        self.shared.lock(&self.shared.stream).take();
        self.shared.end_all(|| self.shared.when_disconnected());
    }
}

#[cfg(test)]
mod tests;
