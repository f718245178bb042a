//! Transfers of data to and from a cluster.

use core::error::Error;
use core::time::Duration;
use daskwire_comm::runtime::{self, Task};
use daskwire_messages::protocol::{
    DataReply, Gather, GetTaskStatus, Keys, NBytes, NCores, NCoresRunning, Nullable, ReplyStatus,
    Request, Scatter, TaskState, UpdateData, UpdateDataReply, WhoHas,
};
use daskwire_messages::{Key, Serialized, Value};
use daskwire_rpc::RequestError;
use daskwire_rpc::gather::{self, least_requested};
use daskwire_value::{IntoValue, ValueError};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::join_all;

use super::coordinate::TIMEOUT_ERROR;
use super::future::all_finished;
use super::shared::Shared;
use super::state::ClientInput;
use super::{Client, Disconnected, ScatterError, TaskError, TaskFuture, WORKERS_INTERVAL, Workers};
use daskwire_comm::BoxFuture;

/// Maximum number of attempts to fetch a result before it counts as lost.
const ATTEMPTS: usize = 10;

/// Interval at which the scheduler is asked during a direct transfer whether the
/// worker still holds the data.
const HOLDER_CHECK: Duration = Duration::from_secs(5);

/// Timeout for connecting to a worker, after which its results are fetched through the
/// scheduler. An address behind a firewall may never answer.
const REACH_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time for which data that is scattered waits for a worker, as in Dask.
const WORKERS_TIMEOUT: Duration = Duration::from_secs(30);

/// The end of the message of the exception that a scheduler raises if it has no worker to
/// store data: "No valid workers found", or "No workers found" in older releases.
const NO_WORKERS: &str = "workers found";

/// The route of data between the client and workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// Data is transferred through the scheduler, which every client can reach.
    #[default]
    Scheduler,
    /// Data is transferred directly between the client and several workers at once,
    /// which must be reachable at the addresses that they use among each other. Results
    /// of workers that cannot be reached within a second are fetched through the
    /// scheduler.
    Direct,
}

/// The workers that store scattered data, and the route to them.
///
/// ```
/// use daskwire_peer::client::{Route, ScatterOptions};
/// let everywhere = ScatterOptions::default().broadcast().route(Route::Direct);
/// let there = ScatterOptions::default().workers("tcp://10.0.0.8:40331");
/// ```
#[derive(Clone, Debug, Default)]
pub struct ScatterOptions {
    route: Option<Route>,
    workers: Workers,
    is_broadcast: bool,
}

impl ScatterOptions {
    /// Sets the route. Default: that of the client.
    #[must_use]
    pub const fn route(mut self, route: Route) -> Self {
        self.route = Some(route);
        self
    }

    /// Sets the workers that store data. Default: all running workers, in turn.
    #[must_use]
    pub fn workers(mut self, workers: impl Into<Workers>) -> Self {
        self.workers = workers.into();
        self
    }

    /// Stores all data on each of the workers. Default: on one of them.
    #[must_use]
    pub const fn broadcast(mut self) -> Self {
        self.is_broadcast = true;
        self
    }
}

/// The error of data that the scheduler was asked to store.
fn through_scheduler(error: RequestError) -> ScatterError {
    match error {
        RequestError::Remote(error)
            if error.class.rsplit('.').next() == Some(TIMEOUT_ERROR)
                && error.message.contains(NO_WORKERS) =>
        {
            ScatterError::NoWorkers
        }
        error => ScatterError::Request(error),
    }
}

/// Aborts a task when dropped.
struct AbortOnDrop<T>(Task<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The value of a payload; an object without a counterpart in Rust stays serialized.
/// `copied_len` counts as in [`Serialized::open_measuring`].
pub(super) fn opened(
    key: &Key,
    serialized: Serialized,
    copied_len: &mut u64,
) -> Result<Value, TaskError> {
    match serialized.open_measuring(copied_len) {
        Ok(value) => Ok(value),
        Err(ValueError::Unknown { .. }) => Ok(Value::Serialized(serialized)),
        Err(error) => Err(TaskError::Value {
            key: key.clone(),
            error,
        }),
    }
}

impl Shared {
    /// The states of tasks in the scheduler; `None` for unknown tasks.
    pub(super) async fn task_status(
        &self,
        keys: Keys,
    ) -> Result<Vec<(Key, Option<TaskState>)>, RequestError> {
        let request = GetTaskStatus {
            keys,
            reply: Some(true),
            ..GetTaskStatus::default()
        };
        self.call("the states of tasks", request).await
    }

    /// The time for which data waits for the first worker.
    fn workers_timeout(&self) -> Duration {
        self.options.timeout.min(WORKERS_TIMEOUT)
    }

    pub(super) const fn route(&self) -> Route {
        self.options.route
    }

    /// Waits for results and fetches them, in order.
    ///
    /// Outside of a runtime task, as under `block_on`, the waiting is done in a
    /// spawned task, so that the runtime wakes the waiting thread only once.
    pub(super) fn gather<'a>(
        self: &'a Arc<Self>,
        futures: &'a [TaskFuture],
        route: Route,
    ) -> BoxFuture<'a, Result<Vec<Serialized>, TaskError>> {
        Box::pin(self.gather_on_runtime(futures, route))
    }

    async fn gather_on_runtime(
        self: &Arc<Self>,
        futures: &[TaskFuture],
        route: Route,
    ) -> Result<Vec<Serialized>, TaskError> {
        if self.runtime.wakes_caller_cheaply() {
            return self.gather_unboxed(futures, route).await;
        }
        let (shared, all) = (Arc::clone(self), futures.to_vec());
        let gathering = async move { shared.gather_unboxed(&all, route).await };
        let mut gathering = AbortOnDrop(self.runtime.spawn(gathering));
        match (&mut gathering.0).await {
            Ok(result) => result,
            Err(error) => match error.into_panic() {
                Some(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                None => {
                    let key = futures.first().map(|future| future.key().clone());
                    let error = self.disconnected();
                    Err(TaskError::disconnected(&key.unwrap_or_default(), error))
                }
            },
        }
    }

    async fn gather_unboxed(
        &self,
        futures: &[TaskFuture],
        route: Route,
    ) -> Result<Vec<Serialized>, TaskError> {
        let mut found: HashMap<Key, Serialized> = HashMap::with_capacity(futures.len());
        for attempt in 1..=ATTEMPTS {
            let missing = |future: &&TaskFuture| !found.contains_key(future.key());
            all_finished(futures.iter().filter(missing)).await;
            // If a task has failed, do not wait for the others.
            for future in futures.iter().filter(|future| future.is_done()) {
                future.finished().await?;
            }
            for future in futures.iter().filter(missing) {
                future.finished().await?;
            }
            let mut missing: Vec<Key> = futures
                .iter()
                .map(TaskFuture::key)
                .filter(|key| !found.contains_key(key))
                .cloned()
                .collect();
            missing.sort_unstable();
            missing.dedup();
            if missing.is_empty() {
                break;
            }
            // The semaphore is never closed.
            let permit = self.gather_permits.acquire().await;
            let data = match route {
                Route::Scheduler => self.gather_from_scheduler(missing.clone()).await,
                Route::Direct => self.gather_from_workers(missing.clone()).await,
            };
            drop(permit);
            let data = match data {
                // The connection to a scheduler that keeps keys has broken. Waits for the return.
                Err(RequestError::Comm(_) | RequestError::Closed { .. })
                    if attempt < ATTEMPTS && self.lock().state.keeps_keys() =>
                {
                    Vec::new()
                }
                data => data.map_err(|error| TaskError::request(&missing[0], error))?,
            };
            // Peers may send keys that were not requested.
            let asked = |key: &Key| missing.binary_search(key).is_ok();
            found.extend(data.into_iter().filter(|(key, _)| asked(key)));
            // Missing data was lost. `Refresh` asks the scheduler for the new status.
            missing.retain(|key| !found.contains_key(key));
            if !missing.is_empty() {
                let first = missing[0].clone();
                match self.request(ClientInput::Refresh(missing)) {
                    Err(error) if error.is_reconnecting && self.lock().state.keeps_keys() => {}
                    refreshed => {
                        refreshed.map_err(|error| TaskError::disconnected(&first, error))?;
                    }
                }
            }
        }
        futures
            .iter()
            .map(|future| {
                let lost = || TaskError::Lost {
                    key: future.key().clone(),
                };
                found.get(future.key()).cloned().ok_or_else(lost)
            })
            .collect()
    }

    async fn gather_from_scheduler(
        &self,
        keys: Vec<Key>,
    ) -> Result<Vec<(Key, Serialized)>, RequestError> {
        let request = Request::Gather(Gather {
            keys: Some(Keys(keys)),
            reply: Some(true),
            ..Gather::default()
        });
        // No timeout: the data may take long.
        let reply: DataReply = self.reply(&request).await?;
        Ok(reply.data.unwrap_or_default())
    }

    async fn gather_from_workers(
        &self,
        keys: Vec<Key>,
    ) -> Result<Vec<(Key, Serialized)>, RequestError> {
        let request = WhoHas {
            keys: Some(Keys(keys)),
            reply: Some(true),
            ..WhoHas::default()
        };
        let who_has: Vec<(Key, Vec<String>)> =
            self.call("the locations of results", request).await?;
        let mut gathering = gather::Gathering::new(who_has.iter().map(|(key, _)| key.clone()));
        gathering.locate(who_has.iter().map(|(key, holders)| (key, &holders[..])));
        drop(who_has);
        let mut all = Vec::new();
        let mut unreachable = HashSet::new();
        loop {
            let requests = gathering.requests(least_requested);
            if requests.is_empty() {
                break;
            }
            let transfers = requests.into_iter().map(|(address, keys)| async move {
                let reply = self.fetch_while_held(&address, &keys).await;
                (address, keys, reply)
            });
            for (address, keys, reply) in join_all(transfers).await {
                let data = match reply {
                    Ok(reply) if reply.status == ReplyStatus::Busy => {
                        gathering.busy(&address, &keys);
                        continue;
                    }
                    Ok(reply) => reply.data.unwrap_or_default(),
                    Err(_) => {
                        unreachable.extend(keys.iter().cloned());
                        Vec::new()
                    }
                };
                gathering.answered(keys, data.iter().map(|(key, _)| key));
                all.extend(data);
            }
            gathering.pause().await;
        }
        // The scheduler may reach workers that the client cannot, and notices workers
        // that have left. Other missing data is requested again.
        let mut unreachable_keys = gathering.into_missing();
        unreachable_keys.retain(|key| unreachable.contains(key));
        if !unreachable_keys.is_empty() {
            all.extend(self.gather_from_scheduler(unreachable_keys).await?);
        }
        Ok(all)
    }

    /// Fetches keys from one worker, until the scheduler no longer lists it as a
    /// holder: a stopped process never replies. The reply is then without data.
    async fn fetch_while_held(
        &self,
        address: &String,
        keys: &[Key],
    ) -> Result<DataReply, RequestError> {
        let worker = RequestError::parse_address(address)?;
        let fetching = self
            .pool
            .get_data(&worker, keys.to_vec(), Some(REACH_TIMEOUT));
        let mut fetching = core::pin::pin!(fetching);
        loop {
            tokio::select! {
                reply = &mut fetching => return reply,
                () = runtime::sleep(HOLDER_CHECK) => {}
            }
            let request = WhoHas {
                keys: Some(Keys(keys.to_vec())),
                reply: Some(true),
                ..WhoHas::default()
            };
            let asking = self.call("the locations of results", request);
            let who_has: Result<Vec<(Key, Vec<String>)>, RequestError> = tokio::select! {
                reply = &mut fetching => return reply,
                who_has = asking => who_has,
            };
            // Without an answer, assume that the worker still holds the data.
            let is_holder = who_has.map_or(true, |who_has| {
                who_has.iter().any(|(_, holders)| holders.contains(address))
            });
            if !is_holder {
                return Ok(DataReply::default());
            }
        }
    }

    /// Stores data, and returns its futures.
    async fn store(
        self: &Arc<Self>,
        pieces: Vec<(Key, Serialized)>,
        route: Route,
        options: &ScatterOptions,
    ) -> Result<Vec<TaskFuture>, ScatterError> {
        // Make the futures first, so that no report about them is missed.
        let keys: Vec<Key> = pieces.iter().map(|(key, _)| key.clone()).collect();
        let futures = self.hold(ClientInput::Store(keys.clone()), &keys)?;
        // No release of these keys is sent from now on; earlier ones must be read
        // first.
        self.settle::<ScatterError>().await?;
        let client = self.registered_id();
        let stored = match route {
            Route::Scheduler => {
                let stored = self.scatter_through_scheduler(pieces, &client, options);
                stored.await.map_err(through_scheduler)
            }
            Route::Direct => self.scatter_to_workers(pieces, &client, options).await,
        };
        if let Err(error) = stored {
            self.not_stored(keys, client);
            return Err(error);
        }
        let holds = futures.iter().map(|future| future.hold().clone());
        self.stored(holds.collect(), client)?;
        Ok(futures)
    }

    async fn scatter_through_scheduler(
        &self,
        data: Vec<(Key, Serialized)>,
        client: &str,
        options: &ScatterOptions,
    ) -> Result<(), RequestError> {
        let request = Request::Scatter(Scatter {
            data,
            workers: Nullable(options.workers.clone().into_field()),
            client: client.to_string(),
            broadcast: Value::Bool(options.is_broadcast),
            timeout: Some(self.workers_timeout().as_secs_f64()),
            reply: Some(true),
            ..Scatter::default()
        });
        let _: Value = self.reply(&request).await?;
        Ok(())
    }

    /// Asks for the running workers and their numbers of threads, until there is at
    /// least one.
    async fn running_workers(&self, request: &Request) -> Result<Vec<(String, u64)>, ScatterError> {
        loop {
            let workers: Vec<_> = self.call("the list of workers", request.clone()).await?;
            if !workers.is_empty() {
                return Ok(workers);
            }
            runtime::sleep(WORKERS_INTERVAL).await;
        }
    }

    async fn scatter_to_workers(
        &self,
        data: Vec<(Key, Serialized)>,
        client: &str,
        options: &ScatterOptions,
    ) -> Result<(), ScatterError> {
        let workers = options.workers.clone().into_field();
        // ROLES CLIENT-11
        let request: Request = match self.lock().dialect.has_running_workers {
            true => NCoresRunning {
                workers,
                reply: Some(true),
                ..NCoresRunning::default()
            }
            .into(),
            false => NCores {
                workers,
                reply: Some(true),
                ..NCores::default()
            }
            .into(),
        };
        let workers = self.running_workers(&request);
        // The scheduler waits for workers, too, when it stores data.
        let workers = runtime::timeout(self.workers_timeout(), workers).await;
        let workers = workers.unwrap_or(Err(ScatterError::NoWorkers))?;
        // Each piece goes to the worker with the fewest bytes so far.
        let mut parts: Vec<(u64, Vec<(Key, Serialized)>)> =
            workers.iter().map(|_| (0, Vec::new())).collect();
        for (key, piece) in data {
            if let Some((len, pieces)) = parts
                .iter_mut()
                .min_by_key(|(len, pieces)| (*len, pieces.len()))
            {
                *len = len.saturating_add(piece.len());
                pieces.push((key, piece));
            }
        }
        let transfers = workers
            .into_iter()
            .zip(parts)
            .filter(|(_, (_, pieces))| !pieces.is_empty())
            .map(|((address, _), (_, pieces))| self.put(address, pieces));
        let mut who_has = Vec::new();
        let mut nbytes = Vec::new();
        let mut failure = None;
        for stored in join_all(transfers).await {
            match stored {
                Ok((address, sizes)) => {
                    for (key, len) in sizes {
                        who_has.push((key.clone(), vec![address.clone()]));
                        nbytes.push((key, len));
                    }
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        // Stored data is announced even if other workers failed: the scheduler can only
        // release data that it knows.
        let announced = if who_has.is_empty() {
            Ok(())
        } else {
            self.announce(who_has, nbytes, client).await
        };
        Ok(failure.map_or(announced, Err)?)
    }

    /// Reports to the scheduler the workers that store the data.
    async fn announce(
        &self,
        who_has: Vec<(Key, Vec<String>)>,
        nbytes: Vec<(Key, u64)>,
        client: &str,
    ) -> Result<(), RequestError> {
        let request = UpdateData {
            who_has: Some(who_has),
            nbytes: Some(nbytes),
            client: Some(client.to_string()),
            reply: Some(true),
            ..UpdateData::default()
        };
        let _: Value = self
            .call("the scheduler to accept the data", request)
            .await?;
        Ok(())
    }

    /// Sends pieces to one worker, which replies with their sizes.
    async fn put(
        &self,
        address: String,
        data: Vec<(Key, Serialized)>,
    ) -> Result<(String, Vec<(Key, u64)>), RequestError> {
        let request = Request::UpdateData(UpdateData {
            data: Some(data),
            // ROLES CLIENT-7: the scheduler would have the worker delete data
            // that was not announced yet.
            report: self.lock().dialect.reports_updates.then_some(false),
            reply: Some(true),
            ..UpdateData::default()
        });
        let worker = RequestError::parse_address(&address)?;
        let reply: UpdateDataReply = self.pool.call(&worker, &request).await?;
        Ok((address, reply.nbytes))
    }
}

impl Client {
    /// Waits for results and fetches them, in the order of the futures.
    ///
    /// # Errors
    ///
    /// As [`TaskFuture::result`], for the first result that is not available.
    pub async fn gather(&self, futures: &[TaskFuture]) -> Result<Vec<Value>, TaskError> {
        self.gather_by(futures, self.shared.route()).await
    }

    /// Like [`gather`](Self::gather), over a given route.
    ///
    /// # Errors
    ///
    /// As [`gather`](Self::gather).
    pub async fn gather_by(
        &self,
        futures: &[TaskFuture],
        route: Route,
    ) -> Result<Vec<Value>, TaskError> {
        let serialized = self.shared.gather(futures, route).await?;
        let keys = futures.iter().map(TaskFuture::key);
        let mut copied_len = 0;
        keys.zip(serialized)
            .map(|(key, serialized)| opened(key, serialized, &mut copied_len))
            .collect()
    }

    /// Like [`gather`](Self::gather), without deserializing, to store or forward
    /// the results.
    ///
    /// # Errors
    ///
    /// As [`gather`](Self::gather).
    pub async fn gather_serialized(
        &self,
        futures: &[TaskFuture],
        route: Route,
    ) -> Result<Vec<Serialized>, TaskError> {
        self.shared.gather(futures, route).await
    }

    /// Stores data on the cluster, each value under a unique key.
    ///
    /// Not cancel safe: if the future is dropped, the transfer continues, and the data is
    /// released after it.
    ///
    /// # Errors
    ///
    /// [`ScatterError`] if the data cannot be serialized or transferred.
    pub async fn scatter(
        &self,
        data: impl IntoIterator<Item = impl IntoValue>,
    ) -> Result<Vec<TaskFuture>, ScatterError> {
        let data = data.into_iter().map(|value| {
            let value = value.into_value();
            let name = value.as_ref().map_or("value", Value::type_name);
            (Key::unique(name), value)
        });
        let pieces = self.pieces(data)?;
        self.scatter_pieces(pieces, &ScatterOptions::default())
            .await
    }

    /// Stores data on the cluster under given keys, over a given route. Not cancel
    /// safe, as [`scatter`](Self::scatter).
    ///
    /// Do not use a key whose last future was just dropped: Dask's scheduler tells the worker
    /// of the old data to delete the key, which may happen after the new data has arrived.
    ///
    /// # Errors
    ///
    /// [`ScatterError`] if a key is empty, or the data cannot be serialized or transferred.
    pub async fn scatter_by(
        &self,
        data: impl IntoIterator<Item = (impl Into<Key>, impl IntoValue)>,
        route: Route,
    ) -> Result<Vec<TaskFuture>, ScatterError> {
        let options = ScatterOptions::default().route(route);
        self.scatter_with(data, &options).await
    }

    /// Stores data on the cluster under given keys, on given workers or all. Not cancel
    /// safe, and with the same warning about keys that were just released, as
    /// [`scatter_by`](Self::scatter_by).
    ///
    /// # Errors
    ///
    /// [`ScatterError`] if a key is empty, or the data cannot be serialized or transferred.
    pub async fn scatter_with(
        &self,
        data: impl IntoIterator<Item = (impl Into<Key>, impl IntoValue)>,
        options: &ScatterOptions,
    ) -> Result<Vec<TaskFuture>, ScatterError> {
        let data = data.into_iter();
        let pieces = self.pieces(data.map(|(key, value)| (key.into(), value.into_value())))?;
        self.scatter_pieces(pieces, options).await
    }

    fn pieces(
        &self,
        data: impl Iterator<Item = (Key, Result<Value, Box<dyn Error + Send + Sync>>)>,
    ) -> Result<Vec<(Key, Serialized)>, ScatterError> {
        let dialect = self.dialect();
        data.map(|(key, value)| {
            let key = dialect.key(&key);
            let value = value.map_err(|error| ValueError::of_conversion(&*error));
            match value.and_then(|value| Serialized::with_pickling(&value, dialect.pickling)) {
                // PROTOCOL HEADER-4
                Ok(piece) if !dialect.nests_headers => Ok((key, piece.flat())),
                Ok(piece) => Ok((key, piece)),
                Err(error) => Err(ScatterError::Value { key, error }),
            }
        })
        .collect()
    }

    fn scatter_pieces<'a>(
        &'a self,
        pieces: Vec<(Key, Serialized)>,
        options: &'a ScatterOptions,
    ) -> BoxFuture<'a, Result<Vec<TaskFuture>, ScatterError>> {
        Box::pin(self.scatter_unboxed(pieces, options))
    }

    async fn scatter_unboxed(
        &self,
        pieces: Vec<(Key, Serialized)>,
        options: &ScatterOptions,
    ) -> Result<Vec<TaskFuture>, ScatterError> {
        if pieces.is_empty() {
            // Dask's scheduler fails if it gets no data.
            return Ok(Vec::new());
        }
        // Dask's scheduler would remove the workers that store such data.
        if pieces.iter().any(|(key, _)| key.is_empty()) {
            return Err(ScatterError::EmptyKey);
        }
        let route = options.route.unwrap_or(self.shared.route());
        // If the caller is dropped, the data is released after it was stored.
        let (shared, all_options) = (Arc::clone(&self.shared), options.clone());
        let storing = async move { shared.store(pieces, route, &all_options).await };
        let futures = self.shared.run_to_end(storing, drop).await?;
        if options.is_broadcast && route == Route::Direct {
            // The copies are transferred from worker to worker.
            let copied = self
                .replicate(&futures, None, options.workers.clone())
                .await;
            copied.map_err(|error| match error {
                TaskError::Request { error, .. } => ScatterError::Request(error),
                TaskError::Disconnected {
                    reason,
                    is_reconnecting,
                    ..
                } => ScatterError::Disconnected(Disconnected {
                    reason,
                    is_reconnecting,
                }),
                error => ScatterError::Copy(Box::new(error)),
            })?;
        }
        Ok(futures)
    }

    /// The workers that hold each of these results, given by futures or keys.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn who_has(
        &self,
        keys: impl IntoIterator<Item = impl Into<Key>>,
    ) -> Result<Vec<(Key, Vec<String>)>, RequestError> {
        let dialect = self.dialect();
        let keys = keys.into_iter().map(|key| dialect.key(&key.into()));
        let request = WhoHas {
            keys: Some(keys.collect()),
            reply: Some(true),
            ..WhoHas::default()
        };
        self.shared.call("the locations of results", request).await
    }

    /// The sizes of these results in bytes, as reported by their workers. The results
    /// are given by futures or keys.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer, or does not know a key.
    pub async fn nbytes(
        &self,
        keys: impl IntoIterator<Item = impl Into<Key>>,
    ) -> Result<Vec<(Key, u64)>, RequestError> {
        let dialect = self.dialect();
        let keys = keys.into_iter().map(|key| dialect.key(&key.into()));
        let request = NBytes {
            keys: Some(keys.collect()),
            summary: Some(false),
            reply: Some(true),
            ..NBytes::default()
        };
        self.shared.call("the sizes of results", request).await
    }

    /// The states of tasks in the scheduler; `None` for unknown tasks.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn task_status(
        &self,
        keys: impl IntoIterator<Item = impl Into<Key>>,
    ) -> Result<Vec<(Key, Option<TaskState>)>, RequestError> {
        let dialect = self.dialect();
        let keys = keys.into_iter().map(|key| dialect.key(&key.into()));
        self.shared.task_status(keys.collect()).await
    }
}
