//! Gathering data from workers, and scattering it over them.

use core::time::Duration;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use daskwire_comm::runtime::TaskSet;
use daskwire_messages::protocol::{
    DataReply, FreeKeysRequest, GetData, Keys, ReplyStatus, Request, Scatter, UpdateData,
    UpdateDataReply, WorkerNames,
};
use daskwire_messages::{Key, Serialized, Value};
use daskwire_rpc::RequestError;
use daskwire_rpc::channel::with_timeout;
use daskwire_rpc::gather::{Gathering, Holders, ask_all};

use super::Shared;
use super::reply::{Reply, refused};
use super::spread::spread;
use crate::state::{REPLACED, SchedulerInput, State, next_random};

impl Shared {
    /// Returns a random number.
    pub(super) fn random(&self) -> u64 {
        // Relaxed: the order in which numbers are drawn does not matter.
        let mut state = self
            .random
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        next_random(&mut state)
    }

    /// Fetches results from workers, each from any of its holders, and from
    /// another holder if that fails. Payloads are forwarded in serialized form.
    /// `serializers` are the families that the client reads, if it does not read all.
    pub(super) async fn gather(
        self: &Arc<Self>,
        keys: Keys,
        serializers: Option<Vec<String>>,
    ) -> DataReply {
        let count = Value::from(keys.len());
        let mut data: Vec<(Key, Serialized)> = Vec::with_capacity(keys.len());
        let mut gathering = Gathering::new(keys.0);
        loop {
            let requests = self.inspect(|state| {
                gathering.requests_by(|key, holders, _| self.any_holder(state, key, holders))
            });
            if requests.is_empty() {
                break;
            }
            let replies = ask_all(requests, |worker, keys| {
                let shared = Arc::clone(self);
                let request = GetData {
                    keys: Keys(keys),
                    serializers: serializers.clone(),
                    ..GetData::default()
                };
                async move {
                    let address = RequestError::parse_address(&worker)?;
                    let asked = shared
                        .pool
                        .get_data_with_extra_count(&address, request, None);
                    asked.await.map(|(reply, _)| reply)
                }
            });
            for (worker, keys, reply) in replies.await {
                match reply {
                    Ok(reply) if reply.status == ReplyStatus::Busy => {
                        gathering.busy(&worker, &keys);
                    }
                    Ok(reply) => {
                        let found = reply.data.unwrap_or_default();
                        let keys = gathering.answered(keys, found.iter().map(|(key, _)| key));
                        if !keys.is_empty() {
                            self.handle(SchedulerInput::DataMissing { worker, keys });
                        }
                        data.extend(found);
                    }
                    Err(_) => {
                        gathering.answered(keys, []);
                    }
                }
            }
            gathering.pause().await;
        }
        self.publish(&["all"], "gather", [("count", count)]);
        let missing = gathering.into_missing();
        let is_all = missing.is_empty();
        DataReply {
            status: if is_all {
                ReplyStatus::Ok
            } else {
                ReplyStatus::Error
            },
            data: is_all.then_some(data),
            keys: (!is_all).then_some(Keys(missing)),
            ..DataReply::default()
        }
    }

    /// Takes a random holder of a key that was not asked for the key yet. Looks up the
    /// holders at the first call, and again once all of them have failed. Skips a holder
    /// that has lost the key since.
    fn any_holder(&self, state: &State, key: &Key, holders: &mut Holders) -> Option<String> {
        loop {
            if holders.count() == 0 {
                holders.add(state.holders(key));
            }
            let chosen = self.random().checked_rem(holders.count() as u64)?;
            let holder = holders.take(usize::try_from(chosen).ok()?)?;
            if state.is_holder(key, &holder) {
                return Some(holder);
            }
            holders.forget(&holder);
        }
    }

    /// Distributes data over workers in turn, weighted by their number of threads.
    pub(super) async fn scatter(self: &Arc<Self>, request: Scatter) -> Reply {
        const TIMEOUT: Duration = Duration::from_secs(30);
        let patience = request.timeout.map(Duration::try_from_secs_f64);
        let patience = patience.and_then(Result::ok).unwrap_or(TIMEOUT);
        let chosen = request.workers.0.filter(|workers| !workers.is_empty());
        let Ok(workers) = with_timeout(patience, "a running worker", self.running(chosen)).await
        else {
            return refused("TimeoutError", "No valid workers found");
        };
        let copies = match request.broadcast {
            Value::Bool(true) => workers.len(),
            Value::Int(count) => usize::try_from(count).unwrap_or(1),
            _ => 1,
        };
        let keys: Vec<Key> = request.data.iter().map(|(key, _)| key.clone()).collect();
        let client = request.client.clone();
        let threads: Vec<u64> = workers.iter().map(|(_, threads)| *threads).collect();
        let parts = spread(request.data, &threads, copies, self.random());
        let mut sending = TaskSet::new();
        for ((worker, _), data) in workers.into_iter().zip(parts) {
            if data.is_empty() {
                continue;
            }
            let shared = Arc::clone(self);
            sending.spawn(async move {
                let nbytes = shared.put(&worker, data).await;
                (worker, nbytes)
            });
        }
        let mut who_has: BTreeMap<Key, Vec<String>> = BTreeMap::new();
        let mut nbytes = Vec::new();
        let mut failure = None;
        for (worker, outcome) in sending.join_all().await {
            match outcome {
                Ok(sizes) => {
                    for (key, _) in &sizes {
                        let holders = who_has.entry(key.clone()).or_default();
                        holders.push(worker.clone());
                    }
                    nbytes.extend(sizes);
                }
                Err(error) => failure = Some(error),
            }
        }
        let is_all = keys.iter().all(|key| who_has.contains_key(key));
        let who_has: Vec<(Key, Vec<String>)> = who_has.into_iter().collect();
        self.complete(SchedulerInput::DataStored {
            client: Some(request.client),
            who_has,
            nbytes,
        })
        .await;
        match failure {
            Some(error) if !is_all => refused("OSError", &error.to_string()),
            _ => {
                let fields = [
                    ("client", Value::from(client.as_str())),
                    ("count", Value::from(keys.len())),
                ];
                self.publish(&[&client, "all"], "scatter", fields);
                Reply::Keys(Keys(keys))
            }
        }
    }

    /// Sends data to a worker. Returns the sizes of the data, for the requested
    /// keys only.
    async fn put(
        &self,
        worker: &str,
        data: Vec<(Key, Serialized)>,
    ) -> Result<Vec<(Key, u64)>, RequestError> {
        let mut names: HashSet<Key> = data.iter().map(|(key, _)| key.clone()).collect();
        self.expect_data(worker, names.iter().cloned().collect())
            .await?;
        let address = RequestError::parse_address(worker)?;
        let request = Request::from(UpdateData {
            data: Some(data),
            stimulus_id: Some("scatter".to_owned()),
            reply: Some(true),
            ..UpdateData::default()
        });
        let mut reply: UpdateDataReply = self.pool.call(&address, &request).await?;
        reply.nbytes.retain(|(key, _)| names.remove(key));
        Ok(reply.nbytes)
    }

    /// Has a worker delete old data under these keys, if it was to be deleted anyway, before new data
    /// is sent.
    pub(super) async fn expect_data(
        &self,
        worker: &str,
        keys: Vec<Key>,
    ) -> Result<(), RequestError> {
        let stale = self.with_machine(|machine| {
            let stale = machine.state.pending_deletions(worker, &keys);
            let worker = worker.to_owned();
            machine.handle(SchedulerInput::DataExpected { worker, keys });
            stale
        });
        let address = RequestError::parse_address(worker)?;
        if !stale.is_empty() {
            let request = Request::from(FreeKeysRequest {
                keys: Keys(stale.clone()),
                stimulus_id: Some(REPLACED.to_owned()),
                reply: Some(true),
                ..FreeKeysRequest::default()
            });
            if let Err(error) = self.pool.call::<Value>(&address, &request).await {
                self.handle(SchedulerInput::DataNotDeleted {
                    worker: worker.to_owned(),
                    keys: stale,
                });
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits until one of the given workers, or any worker, is running.
    async fn running(
        &self,
        among: Option<WorkerNames>,
    ) -> Result<Vec<(String, u64)>, RequestError> {
        loop {
            let mut changed = core::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let running = self.inspect(|state| {
                let among = among.as_ref().map(|names| state.addresses(names));
                state.thread_counts(among.as_deref(), true)
            });
            if !running.is_empty() {
                return Ok(running);
            }
            changed.await;
        }
    }
}
