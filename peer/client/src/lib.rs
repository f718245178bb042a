//! A client of a Dask cluster, which submits tasks, tracks their state, and
//! transfers data.
//!
//! ```no_run
//! # async fn example() -> Result<(), daskwire_peer::Error> {
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
//! [`Value`](daskwire_messages::Value)s. Objects without a counterpart in Rust, such as a
//! DataFrame, stay [`Value::Serialized`](daskwire_messages::Value::Serialized), and their
//! futures can be arguments of other tasks. Nothing that a peer sends is ever
//! executed.

use daskwire_messages::dialect::Dialect;
use daskwire_messages::protocol::WorkerStatus;
use daskwire_messages::release::UntestedRelease;
use daskwire_messages::{Key, Release};
use daskwire_rpc::RequestError;
use daskwire_rpc::channel::Observer;
use daskwire_rpc::identity::Identity;

#[cfg(feature = "blocking")]
pub mod blocking;
mod completed;
mod connect;
mod control;
mod coordinate;
mod data;
mod dataset;
mod diagnostics;
mod error;
mod event;
mod future;
mod operation;
mod request;
mod run;
mod session;
mod shared;
pub mod state;
mod submit;
mod topic;
mod typed;
mod update;

use core::time::Duration;
use std::sync::Arc;

use daskwire_comm::runtime;
use daskwire_comm::{Address, CommOptions, Transports};

pub use completed::{AsCompleted, Completed, Results};
pub use connect::{Connection, ConnectionWatch, OnReconnect};
pub use control::{PerformanceReport, Restarted};
pub use coordinate::{Event, Lease, Lock, Queue, Semaphore, SharedValue, Variable};
pub use daskwire_rpc::Meter;
pub use data::{Route, ScatterOptions};
pub use dataset::Dataset;
pub use diagnostics::{
    CallStack, ClusterVersions, LogLine, NodeVersions, Profile, ProfileOptions, Profiled,
    StoryStep, TaskStates,
};
pub use error::{ConnectError, Disconnected, ScatterError, SubmitError, TaskError};
pub use future::TaskFuture;
pub use request::Workers;
pub use run::{PluginKind, RunError, RunResults};
pub use state::{Reconnect, Returned, Status};
pub use submit::{Call, Calls, SubmitOptions};
pub use topic::{Subscription, TopicEvent};
pub use typed::{FromResult, TypedFuture};

use shared::Shared;
use state::{ClientInput, Hold};

/// Interval at which workers are counted, as in Dask.
const WORKERS_INTERVAL: Duration = Duration::from_millis(100);

/// Options of a [`Client`].
#[derive(Clone)]
#[non_exhaustive]
pub struct ClientOptions {
    /// The available transports. Default: [`transports`](daskwire_rpc::transports);
    /// `tls://` and `quic://` need `transports_with_tls`, of the feature `tls`.
    pub transports: Transports,
    /// Options of comms: timeouts, limits, a pool of buffers. Default: those of [`CommOptions`].
    pub comm: CommOptions,
    /// The client's id; a scheduler of Dask knows the client by another one after it has reconnected,
    /// with a number appended. Default: a unique id.
    pub id: Option<String>,
    /// The reaction to a broken connection. Default: the client tries to reconnect for 30 seconds.
    pub reconnect: Reconnect,
    /// What runs after the client has reconnected, before it sends anything else. Default: nothing.
    pub on_reconnect: Option<OnReconnect>,
    /// The default route for data. Default: through the scheduler.
    pub route: Route,
    /// Timeout for replies that the scheduler can send immediately, including the connection
    /// for the request. Default: 5 minutes, because a scheduler in Python may be busy; without
    /// a connection, a request ends earlier, after
    /// [`connect_timeout`](CommOptions::connect_timeout).
    ///
    /// Waiting until the scheduler has read a message of this client, as in
    /// [`Client::scatter`], has no timeout: a scheduler that handles a large graph reads nothing.
    /// The wait ends with the connection.
    pub timeout: Duration,
    /// Minimum interval between batches to the scheduler. Default: 10 ms, as in Dask.
    /// Batches save work in a Python scheduler.
    pub interval: Duration,
    /// An observer that sees each message.
    pub observer: Option<Arc<dyn Observer>>,
    /// A meter that counts the bytes of the comms that transfer data.
    pub meter: Option<Arc<Meter>>,
}

impl ClientOptions {
    daskwire_comm::with_fields! {
        with_transports(transports: Transports);
        with_comm(comm: CommOptions);
        with_id(id: impl Into<Option<String>>);
        with_reconnect(reconnect: Reconnect);
        with_on_reconnect(on_reconnect: impl Into<Option<OnReconnect>>);
        with_route(route: Route);
        with_timeout(timeout: Duration);
        with_interval(interval: Duration);
        with_observer(observer: Arc<dyn Observer>);
        with_meter(meter: impl Into<Option<Arc<Meter>>>);
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            transports: daskwire_rpc::transports(),
            comm: CommOptions::default(),
            id: None,
            reconnect: Reconnect::default(),
            on_reconnect: None,
            route: Route::Scheduler,
            timeout: Duration::from_secs(5 * 60),
            interval: Duration::from_millis(10),
            observer: None,
            meter: None,
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
            .field("on_reconnect", &self.on_reconnect)
            .field("route", &self.route)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// A client of a Dask cluster.
///
/// Clones are the same client: they share its connection, its id and its keys. Dropping the last
/// of them ends the connection, and the cluster forgets the client's keys;
/// [`close`](Self::close) does so for all of them, and notifies the scheduler first.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
    session: Arc<session::Owner>,
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
        let shared = Arc::new(Shared::new(address.clone(), options.clone()));
        let error = match session::start(&shared).await {
            Ok(session) => return Ok(Self::new(shared, session)),
            Err(error) => error,
        };
        let Some(wire) = session::older_wire_format(&error, &options) else {
            return Err(error);
        };
        let mut options = options;
        options.comm.wire = wire;
        let shared = Arc::new(Shared::new(address, options));
        let session = session::start(&shared).await?;
        Ok(Self::new(shared, session))
    }

    fn new(shared: Arc<Shared>, session: session::SessionTask) -> Self {
        let session = Arc::new(session::Owner::new(Arc::clone(&shared), session));
        shared.set_owner(&session);
        Self { shared, session }
    }

    /// The client's id. Once the client has reconnected, its id at the scheduler is a longer one,
    /// which starts with this.
    pub fn id(&self) -> &str {
        self.shared.id()
    }

    /// The address of the scheduler.
    pub fn scheduler(&self) -> &Address {
        self.shared.address()
    }

    /// The scheduler's release of Dask; `None` if it does not run Dask.
    pub fn release(&self) -> Option<Release> {
        self.shared.lock().state.release()
    }

    /// The warning that the scheduler runs a later release than
    /// [`LAST_TESTED`](daskwire_messages::release::LAST_TESTED); `None` if it does not.
    pub fn untested_release(&self) -> Option<UntestedRelease> {
        UntestedRelease::of(self.release())
    }

    /// The dialect of the scheduler's release.
    fn dialect(&self) -> Dialect {
        self.shared.lock().dialect
    }

    /// Asks the scheduler for its identity and its workers.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn identity(&self) -> Result<Identity, RequestError> {
        self.identity_within(self.shared.options.timeout).await
    }

    async fn identity_within(&self, timeout: Duration) -> Result<Identity, RequestError> {
        let request = daskwire_messages::protocol::Identity {
            // ROLES CLIENT-1
            n_workers: self.dialect().limits_identity.then_some(-1),
            reply: Some(true),
            ..daskwire_messages::protocol::Identity::default()
        };
        let what = "the identity of the scheduler";
        let answer = self.shared.call_with_timeout(timeout, what, request);
        Ok(Identity::from_value(&answer.await?)?)
    }

    /// Asks the scheduler for the address of its dashboard; `None` if it has none. See
    /// [`Identity::dashboard_link`].
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn dashboard_link(&self) -> Result<Option<String>, RequestError> {
        Ok(self.identity().await?.dashboard_link())
    }

    /// Asks the scheduler for its workers.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn workers(
        &self,
    ) -> Result<Vec<daskwire_rpc::identity::WorkerIdentity>, RequestError> {
        Ok(self.identity().await?.workers)
    }

    /// Waits until the cluster has at least `count` running workers. Paused and leaving
    /// workers do not count.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Timeout`] if that takes longer than `timeout`;
    /// * other errors if the scheduler cannot be reached.
    pub async fn wait_for_workers(
        &self,
        count: usize,
        timeout: Duration,
    ) -> Result<(), RequestError> {
        let deadline = runtime::later(timeout);
        loop {
            let left = deadline.saturating_duration_since(runtime::now());
            let each = left.min(self.shared.options.timeout);
            let workers = match self.identity_within(each).await {
                Ok(identity) => identity.workers,
                Err(RequestError::Timeout { .. }) if each == left => Vec::new(),
                Err(error) => return Err(error),
            };
            // Older releases report no status.
            let is_running = |status: WorkerStatus| status == WorkerStatus::Running;
            let workers = workers.into_iter();
            let running = workers.filter(|worker| worker.status.clone().is_none_or(is_running));
            if running.count() >= count {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(runtime::now());
            if left.is_zero() {
                let waiting_for = "workers to join the cluster";
                return Err(RequestError::Timeout {
                    waiting_for,
                    timeout,
                });
            }
            runtime::sleep(left.min(WORKERS_INTERVAL)).await;
        }
    }

    /// Returns a future for a key of another client, for example one published by
    /// a Python client.
    ///
    /// # Errors
    ///
    /// [`Disconnected`].
    pub fn future(&self, key: impl Into<Key>) -> Result<TaskFuture, Disconnected> {
        let key = self.dialect().key(&key.into());
        let keys = [key.clone()];
        let mut futures = self.shared.hold(ClientInput::Desire(key), &keys)?;
        futures.pop().ok_or_else(|| self.shared.disconnected())
    }

    /// Holds results under another client id, which need not be connected: they
    /// outlive this client, until [`release_as`](Self::release_as).
    ///
    /// Waits until the results are in memory: a scheduler confuses a request to
    /// hold a task with its submission if it has not read the graph yet. Then waits until the
    /// scheduler has read the request.
    ///
    /// # Errors
    ///
    /// As [`TaskFuture::finished`].
    pub async fn hold_as(&self, holder: &str, futures: &[TaskFuture]) -> Result<(), TaskError> {
        for future in futures {
            future.finished().await?;
        }
        let Some(first) = futures.first() else {
            return Ok(());
        };
        let desired = self.shared.request(ClientInput::DesireAs {
            client: holder.to_owned(),
            keys: futures.iter().map(TaskFuture::key).cloned().collect(),
        });
        desired.map_err(|error| TaskError::disconnected(first.key(), error))?;
        let settled = self.shared.settle::<RequestError>().await;
        settled.map_err(|error| TaskError::request(first.key(), error))
    }

    /// Releases results held under another client id. Keys that it does not hold are ignored.
    /// The scheduler remembers each such id until it ends.
    ///
    /// # Errors
    ///
    /// [`Disconnected`].
    pub fn release_as(
        &self,
        holder: &str,
        keys: impl IntoIterator<Item = impl Into<Key>>,
    ) -> Result<(), Disconnected> {
        let dialect = self.dialect();
        self.shared.request(ClientInput::ReleaseAs {
            client: holder.to_owned(),
            keys: keys
                .into_iter()
                .map(|key| dialect.key(&key.into()))
                .collect(),
        })
    }

    /// Cancels tasks: they are not run any more, and their futures become
    /// [`Status::Cancelled`]. Tasks that other clients want too continue, unless
    /// `force` is set. Futures of other clients are ignored.
    ///
    /// Schedulers from 2023.12.0 on fail an assertion and close the connection if a
    /// task depends on a cancelled one and no client has a future of the dependent
    /// task. Keep the futures of all tasks between the cancelled
    /// tasks and the wanted ones, or connect with [`Reconnect::Within`].
    ///
    /// # Errors
    ///
    /// [`Disconnected`].
    pub fn cancel<'f>(
        &self,
        futures: impl IntoIterator<Item = &'f TaskFuture>,
        force: bool,
    ) -> Result<(), Disconnected> {
        let own = futures.into_iter().filter(|future| self.owns(future));
        let holds: Vec<Hold> = own.map(|future| future.hold().clone()).collect();
        self.shared.request(ClientInput::Cancel { holds, force })
    }

    /// Whether a future belongs to this client.
    fn owns(&self, future: &TaskFuture) -> bool {
        Arc::ptr_eq(future.shared(), &self.shared)
    }

    /// Retries failed tasks, the failed tasks that they depend on, and the failed tasks that
    /// depend on any of these.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn retry<'f>(
        &self,
        futures: impl IntoIterator<Item = &'f TaskFuture>,
    ) -> Result<(), RequestError> {
        let keys = futures.into_iter().map(TaskFuture::key).collect();
        self.shared.retry(keys).await
    }

    /// Waits until all futures are done, successfully or not.
    pub async fn wait<'f>(&self, futures: impl IntoIterator<Item = &'f TaskFuture>) {
        for future in futures {
            future.done().await;
        }
    }

    /// Yields futures in the order in which they are done, with their indexes.
    pub fn as_completed(&self, futures: impl IntoIterator<Item = TaskFuture>) -> AsCompleted {
        AsCompleted::new(futures)
    }

    /// Closes the client and its clones: waits until dropped leases are released and requests of
    /// [`fire_and_forget`](Self::fire_and_forget) are done, notifies the scheduler, which forgets
    /// this client's keys, and closes all connections. Waits for each of
    /// these at most 10 seconds. Later calls of the client and its clones fail with [`Disconnected`],
    /// and so do its futures; to close it once more has no effect. If the call is cancelled, the
    /// client ends, but its last messages may not have arrived.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the client was connected, and its last messages may not
    /// have arrived.
    pub async fn close(&self) -> Result<(), RequestError> {
        self.session.close().await
    }
}

#[cfg(test)]
mod tests;

/// The example in the README, tested as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
