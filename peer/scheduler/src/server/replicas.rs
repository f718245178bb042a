//! Copies and moves of data between workers.

use core::time::Duration;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use daskwire_comm::runtime::{self, TaskSet};
use daskwire_messages::protocol::{
    Gather, Keys, Rebalance, Replicate, ReplyStatus, Request, Status,
};
use daskwire_messages::{Key, Value};
use daskwire_rpc::RequestError;

use super::Shared;
use super::operations::missing;
use super::reply::{Reply, refused};
use crate::state::SchedulerInput;

/// The keys that workers are to fetch, with their holders, by the address of the worker.
type Fetches = BTreeMap<String, Vec<(Key, Vec<String>)>>;

/// The keys of copies, by the address of the worker that has them.
type Copies = BTreeMap<String, Vec<Key>>;

/// The time in which a worker deletes copies of results, or says that it needs them.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);

impl Shared {
    /// Copies results to other workers until each is on as many as wanted, and deletes further
    /// copies. The number of workers with copies grows by a factor in each round.
    pub(super) async fn replicate(self: &Arc<Self>, request: Replicate) -> Reply {
        let factor = request.branching_factor.unwrap_or(2);
        let Ok(factor @ 1..) = usize::try_from(factor) else {
            return refused("AssertionError", "branching_factor must be at least 1");
        };
        let keys = request.keys.0;
        let _alone = self.moving.write().await;
        if let Some(unknown) = self.inspect(|state| state.unknown_key(&keys).cloned()) {
            return missing(&unknown);
        }
        // The workers that may have copies, in any order.
        let workers = self.inspect(|state| {
            let named = request.workers.map(|names| {
                let hosts = state.workers_on(Some(&names));
                let mut named = state.addresses(&names);
                named.extend(hosts);
                named
            });
            let running = state.thread_counts(named.as_deref(), true).into_iter();
            running.map(|(worker, _)| worker).collect::<Vec<_>>()
        });
        let count = match request.n {
            None => workers.len(),
            Some(count) => usize::try_from(count).unwrap_or(0).min(workers.len()),
        };
        if count == 0 {
            return refused("ValueError", "Can not use replicate to delete data");
        }
        let lost: Vec<Key> = self.inspect(|state| {
            let lost = keys
                .iter()
                .filter(|key| state.holders(key).next().is_none());
            lost.cloned().collect()
        });
        if !lost.is_empty() {
            return partial(lost);
        }
        if request.delete.unwrap_or(true) {
            let surplus = self.surplus(&keys, &workers, count);
            self.drop_copies(surplus).await;
        }
        let key_count = keys.len();
        let mut left = keys;
        // The copies that were asked for. They may have been deleted since, such as by the regular
        // deletion of superfluous copies.
        let mut asked: HashSet<(String, Key)> = HashSet::new();
        loop {
            let fetches = self.inspect(|state| {
                let mut fetches = Fetches::new();
                left.retain(|key| {
                    let holders: Vec<String> = state.holders(key).map(str::to_owned).collect();
                    let (with, mut without): (Vec<&String>, Vec<&String>) =
                        workers.iter().partition(|worker| holders.contains(worker));
                    let missing = count.saturating_sub(with.len());
                    without.retain(|worker| !asked.contains(&((*worker).clone(), key.clone())));
                    let copies = missing.min(factor * holders.len());
                    for worker in self.sample(without, copies) {
                        asked.insert((worker.clone(), key.clone()));
                        let fetch = (key.clone(), holders.clone());
                        fetches.entry(worker.clone()).or_default().push(fetch);
                    }
                    // Data that was forgotten since needs no copies.
                    copies > 0
                });
                fetches
            });
            if fetches.is_empty() {
                return Reply::Value(Value::None);
            }
            let failed = self.fetch_all(fetches.clone()).await;
            let fetch_count: usize = fetches.values().map(Vec::len).sum();
            self.publish_fetches("replicate-add", &fetches);
            let fields = [
                ("workers", Value::list(workers.iter().map(String::as_str))),
                ("key-count", Value::from(key_count)),
                ("branching-factor", Value::from(factor)),
            ];
            self.publish(&["all"], "replicate", fields);
            if failed.len() == fetch_count {
                let failed: HashSet<Key> = failed.into_iter().map(|(_, key)| key).collect();
                return partial(failed);
            }
        }
    }

    /// The copies to delete of results that are on more than `count` of the workers.
    fn surplus(&self, keys: &[Key], workers: &[String], count: usize) -> Copies {
        let mut surplus = Copies::new();
        self.inspect(|state| {
            for key in keys {
                let holders = workers.iter().filter(|worker| state.is_holder(key, worker));
                let holders: Vec<&String> = holders.collect();
                let copies = holders.len().saturating_sub(count);
                for worker in self.sample(holders, copies) {
                    surplus.entry(worker.clone()).or_default().push(key.clone());
                }
            }
        });
        surplus
    }

    /// Has workers delete copies of results, and waits until they have done so or said that they
    /// need them.
    async fn drop_copies(&self, copies: Copies) {
        for (worker, keys) in &copies {
            let (worker, keys) = (worker.clone(), keys.clone());
            self.handle(SchedulerInput::ReplicasDropped { worker, keys });
        }
        let dropped = self.until(|state| {
            let mut copies = copies.iter();
            copies.all(|(worker, keys)| !state.is_dropping(worker, keys))
        });
        // A worker that does not answer may have lost the data itself.
        let _ = runtime::timeout(DROP_TIMEOUT, dropped).await;
    }

    /// Publishes which data workers were to fetch from which, each in its topic.
    fn publish_fetches(&self, action: &str, fetches: &Fetches) {
        for (worker, fetches) in fetches {
            let who_has = fetches.iter().map(|(key, holders)| {
                let holders = holders.iter().map(String::as_str);
                (key.to_value(), Value::list(holders))
            });
            let who_has = Value::Dict(who_has.collect::<Vec<_>>().into());
            self.publish(&[worker], action, [("who_has", who_has)]);
        }
    }

    /// Chooses some of the items at random.
    fn sample<T>(&self, mut items: Vec<T>, count: usize) -> Vec<T> {
        let mut chosen = Vec::with_capacity(count.min(items.len()));
        while chosen.len() < count && !items.is_empty() {
            let index = self.random() % items.len() as u64;
            chosen.push(items.swap_remove(usize::try_from(index).unwrap_or(0)));
        }
        chosen
    }

    /// Moves results from workers with much memory in use to workers with little.
    pub(super) async fn rebalance(self: &Arc<Self>, request: Rebalance) -> Reply {
        let ok = || Reply::Value(Value::dict([("status", "OK")]));
        let _alone = self.moving.write().await;
        let workers = match &request.workers {
            None => None,
            Some(names) => {
                let ids = self.inspect(|state| {
                    let ids = names.iter();
                    ids.map(|name| state.worker_id(name).ok_or_else(|| name.clone()))
                        .collect::<Result<Vec<_>, String>>()
                });
                match ids {
                    Ok(ids) => Some(ids),
                    Err(unknown) => return missing(&Key::from(unknown)),
                }
            }
        };
        let keys = request.keys.map(|keys| keys.0);
        if let Some(keys) = &keys {
            let lost: Vec<Key> = self.inspect(|state| {
                let lost = keys
                    .iter()
                    .filter(|key| state.holders(key).next().is_none());
                lost.cloned().collect()
            });
            if !lost.is_empty() {
                return partial(lost);
            }
        }
        let is_limited = keys.is_some();
        let keys = keys.map(|keys| keys.into_iter().collect::<HashSet<Key>>());
        let moves = self.inspect(|state| state.rebalancing(keys.as_ref(), workers.as_deref()));
        let count = Value::from(moves.len());
        let mut fetches = Fetches::new();
        for step in &moves {
            let fetch = (step.key.clone(), vec![step.from.clone()]);
            fetches.entry(step.to.clone()).or_default().push(fetch);
        }
        let failed = self.fetch_all(fetches.clone()).await;
        let mut moved = Copies::new();
        for step in moves {
            if !failed.contains(&(step.to, step.key.clone())) {
                moved.entry(step.from).or_default().push(step.key);
            }
        }
        self.publish_fetches("rebalance", &fetches);
        let sent = moved
            .iter()
            .map(|(worker, keys)| (worker.as_str(), keys.len()));
        let senders = Value::dict(sent.collect::<Vec<_>>());
        let taken = fetches
            .iter()
            .map(|(worker, keys)| (worker.as_str(), keys.len()));
        let recipients = Value::dict(taken.collect::<Vec<_>>());
        self.drop_copies(moved).await;
        let fields = [
            ("senders", senders),
            ("recipients", recipients),
            ("moved_keys", count),
        ];
        self.publish(&["all"], "rebalance", fields);
        // Without a choice of keys, those that were lost meanwhile do not matter.
        if failed.is_empty() || !is_limited {
            return ok();
        }
        let failed: HashSet<Key> = failed.into_iter().map(|(_, key)| key).collect();
        partial(failed)
    }

    /// Has workers fetch results from others. Returns the fetches that failed.
    async fn fetch_all(self: &Arc<Self>, fetches: Fetches) -> HashSet<(String, Key)> {
        let mut fetching = TaskSet::new();
        for (worker, who_has) in fetches {
            let shared = Arc::clone(self);
            fetching.spawn(async move {
                let keys: Vec<Key> = who_has.iter().map(|(key, _)| key.clone()).collect();
                let failed = match shared.fetch(&worker, who_has).await {
                    Ok(failed) => failed,
                    Err(_) => keys,
                };
                failed.into_iter().map(move |key| (worker.clone(), key))
            });
        }
        fetching.join_all().await.into_iter().flatten().collect()
    }

    /// Has a worker fetch results. Returns those that it could not fetch.
    async fn fetch(
        &self,
        worker: &str,
        who_has: Vec<(Key, Vec<String>)>,
    ) -> Result<Vec<Key>, RequestError> {
        let mut keys: Vec<Key> = who_has.iter().map(|(key, _)| key.clone()).collect();
        self.expect_data(worker, keys.clone()).await?;
        let address = RequestError::parse_address(worker)?;
        let request = Request::from(Gather {
            who_has: Some(who_has),
            reply: Some(true),
            ..Gather::default()
        });
        let reply: Status = self.pool.call(&address, &request).await?;
        let failed = match reply.status {
            Some(ReplyStatus::Ok) => Vec::new(),
            _ => reply.keys.map_or_else(|| keys.clone(), |failed| failed.0),
        };
        let lost: HashSet<&Key> = failed.iter().collect();
        keys.retain(|key| !lost.contains(key));
        self.handle(SchedulerInput::ReplicasAdded {
            worker: worker.to_owned(),
            keys: Keys(keys),
        });
        self.changed.notify_waiters();
        Ok(failed)
    }
}

/// The reply about keys of which some have failed.
fn partial(keys: impl IntoIterator<Item = Key>) -> Reply {
    let keys = keys.into_iter().map(|key| key.to_value());
    Reply::Value(Value::dict([
        ("status", Value::from("partial-fail")),
        ("keys", Value::list(keys)),
    ]))
}
