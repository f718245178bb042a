//! Replies to requests about the cluster as a whole, which are not part of running tasks.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use daskwire_comm::runtime::TaskSet;
use daskwire_messages::protocol::{
    AddReplicas, Broadcast, ClusterState, GetCallStack, GetMetadata, GetProfile, Keys,
    MemorySamplerStart, Proxy, Request, SetMetadata, SetResources, SetRestrictions, TaskStream,
    Unknown,
};
use daskwire_messages::quantity::duration_of;
use daskwire_messages::{Key, Value};
use daskwire_rpc::RequestError;
use daskwire_rpc::channel::Channel;

use super::log::Wanted;
use super::reply::{Reply, refused};
use super::{Shared, profile};
use crate::state::{
    Dump, MemoryMeasure, MetadataError, Prefixes, RecordRange, SchedulerInput, State, WorkerId,
    names,
};

/// Ops that only a scheduler in Python can serve, and why.
const REFUSED: [(&str, &str); 11] = [
    ("run_function", FUNCTIONS),
    ("feed", FUNCTIONS),
    ("register_scheduler_plugin", FUNCTIONS),
    (
        "performance_report",
        "bokeh makes the page; `daskwire scheduler --python` runs it in another process",
    ),
    (
        "dump_cluster_state_to_url",
        "fsspec would write the file; `daskwire scheduler --python` runs it in another process, and \
         Client.dump_cluster_state(write_from_scheduler=False) writes it from the client",
    ),
    ("memory_trace", "it is about memory of Python"),
    ("connection_stream", "it is for extensions of Python"),
    ("shuffle_barrier", SHUFFLES),
    ("shuffle_get", SHUFFLES),
    ("shuffle_get_or_create", SHUFFLES),
    ("shuffle_restrict_task", SHUFFLES),
];

const FUNCTIONS: &str =
    "it would run code of Python; `daskwire scheduler --python` does so in another process";

const SHUFFLES: &str = "Python assigns the outputs of P2P shuffles to workers; `daskwire scheduler \
                        --python` does so, and the method \"tasks\" needs none of it";

/// Returns why this scheduler does not serve an op.
pub(super) fn reason(op: &str) -> String {
    let known = REFUSED.iter().find(|(known, _)| *known == op);
    match known {
        Some((_, why)) => format!("this scheduler runs no Python, and refuses {op:?}: {why}"),
        None => format!("this scheduler does not support {op:?}"),
    }
}

/// Whether a default is Dask's value for none: the string of requests without a default, or the
/// member of `dask.typing` that clients send.
fn is_no_default(default: &Value) -> bool {
    match default.get("__Enum__") {
        Some(_) => default.get("name").and_then(Value::as_str) == Some("no_default"),
        None => default.as_str() == Some("__no_default__"),
    }
}

impl Shared {
    /// Does what a client asks the Active Memory Manager for.
    fn control_replicas(&self, method: &str) -> Reply {
        match method {
            "start" => self.handle(SchedulerInput::SetReducingReplicas(true)),
            "stop" => self.handle(SchedulerInput::SetReducingReplicas(false)),
            "run_once" => self.handle(SchedulerInput::ReduceReplicas),
            "running" => {
                return Reply::Value(Value::from(self.inspect(State::is_reducing_replicas)));
            }
            other => {
                let message = format!(
                    "the method {other:?} is not one of \"start\", \"stop\", \"run_once\" and \
                     \"running\""
                );
                return refused("ValueError", &message);
            }
        }
        Reply::Value(Value::None)
    }

    /// Replies to a request, or returns it if it is of no kind that is handled here.
    pub(super) async fn operate(self: &Arc<Self>, request: Request) -> Result<Reply, Request> {
        Ok(match request {
            Request::GetLogs(request) => Reply::Value(self.log.lines(Wanted {
                count: request.n,
                start: request.start,
                timestamps: request.timestamps.unwrap_or(false),
            })),
            Request::Logs(request) => Reply::Value(self.log.lines(Wanted {
                count: request.n,
                start: request.start,
                timestamps: request.timestamps.unwrap_or(false),
            })),
            Request::SetMetadata(request) => self.set_metadata(request),
            Request::GetMetadata(request) => self.metadata(&request),
            Request::Proxy(request) => self.proxy(request).await,
            Request::GetCallStack(request) => self.call_stack(request).await,
            Request::GetProfile(request) => self.profile(request).await,
            Request::BenchmarkHardware(_) => self.benchmark_hardware().await,
            Request::ClusterState(request) => self.cluster_state(request).await,
            Request::DumpState(request) => Reply::Value(self.dump(&request.exclude).await),
            Request::AmmHandler(request) => self.control_replicas(&request.method),
            Request::CheckIdle(_) => {
                let since = self.inspect(State::idle_since);
                let since = since.map(|since| Value::from(since.as_secs_f64()));
                Reply::Value(since.unwrap_or_default())
            }
            Request::TaskPrefixStates(_) => {
                let prefixes = self.prefixes().await;
                let prefixes = prefixes.iter();
                let states =
                    prefixes.map(|(prefix, totals)| (&**prefix, Value::dict(totals.dask_states())));
                Reply::Value(Value::dict(states))
            }
            Request::TaskStream(request) => self.task_stream(&request),
            Request::TaskStreamIndex(_) => {
                self.handle(SchedulerInput::RecordTasks);
                Reply::Value(Value::from(self.inspect(State::recorded_count)))
            }
            Request::StartTaskMetadata(request) => {
                self.handle(SchedulerInput::CollectionStarted(request.name));
                Reply::Value(Value::None)
            }
            Request::StopTaskMetadata(request) => self.stop_task_metadata(request.name),
            Request::TaskRunSpec(request) => {
                match self.inspect(|state| state.run_spec(&request.key)) {
                    Ok(payload) => Reply::Value(payload.map_or(Value::None, Value::Serialized)),
                    Err(key) => missing(&key),
                }
            }
            Request::ErrorCause(request) => {
                let cause = self.inspect(|state| state.error_cause(&request.keys));
                Reply::Value(cause.map_or(Value::None, |key| key.to_value()))
            }
            Request::AddReplicas(request) => {
                let AddReplicas { worker, keys, .. } = request;
                let is_known = self.inspect(|state| state.has_worker(&worker));
                self.handle(SchedulerInput::ReplicasAdded { worker, keys });
                self.changed.notify_waiters();
                Reply::Value(Value::from(if is_known { "OK" } else { "not found" }))
            }
            Request::SetResources(request) => {
                let SetResources {
                    worker, resources, ..
                } = request;
                if !self.inspect(|state| state.has_worker(&worker)) {
                    return Ok(missing(&Key::from(worker)));
                }
                self.handle(SchedulerInput::ResourcesSet {
                    worker,
                    resources: resources.unwrap_or_default(),
                });
                Reply::Value(Value::from("OK"))
            }
            Request::SetRestrictions(request) => self.set_restrictions(request),
            Request::MemorySamplerStart(request) => self.start_sampler(request),
            Request::MemorySamplerStop(request) => self.stop_sampler(&request.key),
            Request::Rebalance(request) => self.rebalance(request).await,
            Request::Replicate(request) => self.replicate(request).await,
            other => return Err(other),
        })
    }

    /// The numbers of tasks by prefix. They are read in parts, between which others have the lock.
    pub(super) async fn prefixes(&self) -> Prefixes {
        let mut prefixes = Prefixes::new();
        let mut part = 0;
        while self.inspect(|state| state.add_prefixes(part, &mut prefixes)) {
            part += 1;
            self.give_way().await;
        }
        prefixes
    }

    fn set_restrictions(&self, request: SetRestrictions) -> Reply {
        let mut tasks = Vec::with_capacity(request.worker.len());
        for (key, workers) in request.worker {
            let workers = match &workers {
                Value::None => Some(Vec::new()),
                workers => names(workers),
            };
            match workers {
                Some(workers) => tasks.push((key, workers)),
                None => {
                    let message = format!("the workers of {key}: expected addresses");
                    return refused("TypeError", &message);
                }
            }
        }
        let keys = || tasks.iter().map(|(key, _)| key);
        if let Some(unknown) = self.inspect(|state| state.unknown_key(keys()).cloned()) {
            return missing(&unknown);
        }
        self.handle(SchedulerInput::Restricted(tasks));
        Reply::Value(Value::None)
    }

    /// Starts to sample the memory of workers. Returns the key of the samples.
    fn start_sampler(&self, request: MemorySamplerStart) -> Reply {
        let MemorySamplerStart {
            client,
            measure,
            interval,
            ..
        } = request;
        let Some(measure) = MemoryMeasure::of_name(&measure) else {
            let message = format!("'MemoryState' object has no attribute '{measure}'");
            return refused("AttributeError", &message);
        };
        let interval = Duration::try_from_secs_f64(interval).ok();
        let Some(interval) = interval.filter(|interval| !interval.is_zero()) else {
            let message = "Periodic callback must have a positive callback_time";
            return refused("ValueError", message);
        };
        if self.inspect(State::has_all_samplers) {
            return refused("RuntimeError", "too many samplers of memory run");
        }
        let key = daskwire_messages::key::identifier();
        self.handle(SchedulerInput::MemorySamplerStarted {
            key: key.clone(),
            client,
            measure,
            interval,
        });
        Reply::Value(Value::from(key))
    }

    /// Ends the sampling of memory. Returns the samples.
    fn stop_sampler(&self, key: &str) -> Reply {
        let samples = self.with_machine(|machine| {
            // One that is due, since samples are taken with ticks.
            machine.handle(SchedulerInput::Tick);
            let samples = machine.state.memory_samples(key).map(<[_]>::to_vec);
            machine.handle(SchedulerInput::MemorySamplerStopped(key.to_owned()));
            samples
        });
        let Some(samples) = samples else {
            return missing(&Key::from(key));
        };
        let samples = samples.into_iter();
        let samples =
            samples.map(|(time, len)| Value::tuple([Value::from(time), Value::from(len)]));
        Reply::Value(Value::list(samples.collect::<Vec<Value>>()))
    }

    fn set_metadata(&self, request: SetMetadata) -> Reply {
        let SetMetadata { keys, value, .. } = request;
        let refusal = self.with_machine(|machine| {
            let refusal = machine.state.metadata_refusal(&keys, &value);
            let path = keys;
            machine.handle(SchedulerInput::MetadataSet { path, value });
            refusal
        });
        match refusal {
            Some(error) => refused(error.class(), &error.to_string()),
            None => Reply::Value(Value::None),
        }
    }

    fn metadata(&self, request: &GetMetadata) -> Reply {
        match self.inspect(|state| state.metadata(&request.keys)) {
            Ok(value) => Reply::Value(value),
            Err(MetadataError::Missing(_)) if !is_no_default(&request.default) => {
                Reply::Value(request.default.clone())
            }
            Err(MetadataError::Missing(key)) => missing(&key),
            Err(error) => refused(error.class(), &error.to_string()),
        }
    }

    /// Forwards a request to a worker, and its reply.
    async fn proxy(self: &Arc<Self>, request: Proxy) -> Reply {
        let address = self.inspect(|state| state.addresses(std::slice::from_ref(&request.worker)));
        let Some(address) = address.into_iter().next() else {
            return missing(&Key::from(request.worker));
        };
        match self.ask(&address, request.msg.into()).await {
            Ok(reply) => Reply::Value(reply),
            Err(error) => Reply::raised(&request.worker, &error),
        }
    }

    async fn ask(&self, worker: &str, request: Request) -> Result<Value, RequestError> {
        let address = RequestError::parse_address(worker)?;
        self.pool.call::<Value>(&address, &request).await
    }

    /// Sends requests to workers at once. Returns the replies in the same order.
    pub(super) async fn ask_each(
        self: &Arc<Self>,
        requests: impl IntoIterator<Item = (String, Request)>,
    ) -> Vec<(String, Result<Value, RequestError>)> {
        let mut asking = TaskSet::new();
        for (worker, request) in requests {
            let shared = Arc::clone(self);
            asking.spawn(async move {
                let reply = shared.ask(&worker, request).await;
                (worker, reply)
            });
        }
        asking.join_all().await
    }

    /// Returns what the workers of running tasks execute, of all workers without keys.
    async fn call_stack(self: &Arc<Self>, request: GetCallStack) -> Reply {
        let running: BTreeMap<String, Option<Keys>> = match request.keys {
            None => {
                let workers = self.inspect(|state| state.workers_on(None));
                workers.into_iter().map(|worker| (worker, None)).collect()
            }
            Some(keys) => match self.inspect(|state| state.running_for(&keys)) {
                Ok(running) => {
                    let running = running.into_iter();
                    running
                        .map(|(worker, keys)| (worker, Some(Keys(keys))))
                        .collect()
                }
                Err(key) => return missing(&key),
            },
        };
        let requests = running.into_iter().map(|(worker, keys)| {
            let request = GetCallStack {
                keys,
                ..GetCallStack::default()
            };
            (worker, request.into())
        });
        let mut stacks = Vec::new();
        for (worker, reply) in self.ask_each(requests).await {
            match reply {
                Ok(Value::Dict(stack)) if stack.is_empty() => {}
                Ok(stack) => stacks.push((worker, stack)),
                Err(error) => return Reply::raised(&worker, &error),
            }
        }
        Reply::Value(Value::dict(stacks))
    }

    /// Returns the profiles of workers. Those of workers that do not reply are left out.
    async fn profile(self: &Arc<Self>, request: GetProfile) -> Reply {
        if request.scheduler == Some(true) {
            // There is no interpreter in which samples could be taken.
            return Reply::Value(daskwire_rpc::profile::empty());
        }
        let merges = request.merge_workers.unwrap_or(true);
        let workers = self.inspect(|state| match &request.workers {
            None => state.workers_on(None),
            Some(workers) => {
                let known = workers.iter().filter(|worker| state.has_worker(worker));
                known.cloned().collect()
            }
        });
        let requests = workers.into_iter().map(|worker| {
            let request = GetProfile {
                workers: None,
                scheduler: None,
                merge_workers: None,
                ..request.clone()
            };
            (worker, request.into())
        });
        let replies = self.ask_each(requests).await.into_iter();
        let profiles = replies.filter_map(|(worker, reply)| Some((worker, reply.ok()?)));
        let profiles: Vec<(String, Value)> = profiles.collect();
        if !merges {
            return Reply::Value(Value::dict(profiles));
        }
        let profiles: Vec<Value> = profiles.into_iter().map(|(_, profile)| profile).collect();
        Reply::Value(profile::merge(&profiles))
    }

    /// Has workers measure their disks, their memory, and the network between pairs of them.
    /// Returns the average bandwidths by size.
    async fn benchmark_hardware(self: &Arc<Self>) -> Reply {
        let mut workers = self.inspect(|state| state.workers_on(None));
        // Workers that joined one after the other may share a machine.
        for index in (1..workers.len()).rev() {
            let other = usize::try_from(self.random() % (index as u64 + 1)).unwrap_or(0);
            workers.swap(index, other);
        }
        let to_all = |op: &str| {
            let request = |worker: &String| (worker.clone(), Unknown::new(op).into());
            workers.iter().map(request).collect::<Vec<_>>()
        };
        let pairs = workers.chunks_exact(2).map(|pair| {
            let request = Unknown::new("benchmark_network").field("address", pair[1].as_str());
            (pair[0].clone(), request.into())
        });
        let mut results = Vec::new();
        for (kind, requests) in [
            ("disk", to_all("benchmark_disk")),
            ("memory", to_all("benchmark_memory")),
            ("network", pairs.collect()),
        ] {
            // The sum and the number of the values for each size.
            let mut by_size: BTreeMap<String, (f64, f64)> = BTreeMap::new();
            for (worker, reply) in self.ask_each(requests).await {
                let sizes = match reply {
                    Ok(Value::Dict(sizes)) => sizes,
                    Ok(_) => continue,
                    Err(error) => return Reply::raised(&worker, &error),
                };
                for (size, bandwidth) in sizes.iter() {
                    if let (Some(size), Ok(bandwidth)) =
                        (size.as_str(), f64::try_from(bandwidth.clone()))
                    {
                        let (sum, count) = by_size.entry(size.to_owned()).or_default();
                        *sum += bandwidth;
                        *count += 1.0;
                    }
                }
            }
            let averages = by_size.into_iter();
            let averages = averages.map(|(size, (sum, count))| (size, sum / count));
            results.push((kind, Value::dict(averages)));
        }
        Reply::Value(Value::dict(results))
    }

    /// Returns the states of the scheduler and of all workers.
    async fn cluster_state(self: &Arc<Self>, request: ClusterState) -> Reply {
        let exclude = Value::list(request.exclude.iter().map(String::as_str));
        let message = Unknown::new("dump_state").field("exclude", exclude);
        let states = self.broadcast(Broadcast {
            msg: message,
            on_error: Some("return".to_owned()),
            ..Broadcast::default()
        });
        let versions = self.broadcast(Broadcast {
            msg: Unknown::new("versions"),
            on_error: Some("ignore".to_owned()),
            ..Broadcast::default()
        });
        let (states, versions) = tokio::join!(states, versions);
        let (Reply::Value(states), Reply::Value(versions)) = (states, versions) else {
            return refused(
                "RuntimeError",
                "the workers cannot be asked for their state",
            );
        };
        let versions = Value::dict([("scheduler", self.versions(None)), ("workers", versions)]);
        Reply::Value(Value::dict([
            ("scheduler", self.dump(&request.exclude).await),
            ("workers", states),
            ("versions", versions),
        ]))
    }

    /// The state of the scheduler in the form of Dask's dumps. It is read in slices, between which
    /// others have the lock.
    async fn dump(&self, exclude: &[String]) -> Value {
        let Value::Dict(identity) = self.identity(Some(0)) else {
            unreachable!("an identity is a dictionary");
        };
        let mut parts = identity.into_vec();
        parts.push(("status".into(), "running".into()));
        let is_excluded = |name: &Value| {
            let name = name.as_str();
            name == Some("workers") || exclude.iter().any(|excluded| Some(&**excluded) == name)
        };
        parts.retain(|(name, _)| !is_excluded(name));
        let mut dump = Dump::new(exclude);
        while !self.inspect(|state| state.dump_slice(&mut dump)) {
            self.give_way().await;
        }
        let state = dump.into_parts().into_iter();
        parts.extend(state.map(|(name, part)| (name.into(), part)));
        Value::Dict(parts.into())
    }

    fn task_stream(&self, request: &TaskStream) -> Reply {
        let now = self.clock.now();
        let time = |time: &Option<Value>| {
            let time = time.as_ref()?;
            match time {
                Value::Str(_) => {
                    let ago = duration_of(time)?;
                    Some(now.saturating_sub(ago).as_secs_f64())
                }
                number => f64::try_from(number.clone()).ok(),
            }
        };
        let range = RecordRange::default()
            .with_start(time(&request.start))
            .with_stop(time(&request.stop))
            .with_count(request.count)
            .with_start_index(request.start_index);
        self.handle(SchedulerInput::RecordTasks);
        Reply::Value(Value::list(
            self.inspect(|state| state.recorded_tasks(&range)),
        ))
    }

    fn stop_task_metadata(&self, name: Option<String>) -> Reply {
        let name = name.unwrap_or_else(|| "None".to_owned());
        let metadata = self.with_machine(|machine| {
            let metadata = machine.state.collected_metadata(&name);
            machine.handle(SchedulerInput::CollectionEnded(name.clone()));
            metadata
        });
        match metadata {
            Some(metadata) => Reply::Value(metadata),
            None => {
                let message = format!(
                    "Expected to find exactly one CollectTaskMetaDataPlugin with name {name} but \
                     found 0."
                );
                refused("ValueError", &message)
            }
        }
    }

    /// Sends the identity of the scheduler, and then each worker that joins or leaves, until the
    /// comm ends.
    pub(super) async fn watch_workers(self: &Arc<Self>, mut channel: Channel) {
        let mut known: BTreeMap<WorkerId, String> = BTreeMap::new();
        let identity = self.identity(None);
        let Value::Dict(fields) = identity else {
            unreachable!("an identity is a dictionary");
        };
        let mut reply = fields.into_vec();
        reply.retain(|(name, _)| name.as_str() != Some("workers"));
        let workers = self.inspect(|state| {
            let ids = state
                .worker_ids()
                .map(|(id, address)| (id, address.to_owned()));
            known.extend(ids);
            let workers = known.values().filter_map(|address| shown(state, address));
            workers.collect::<Vec<_>>()
        });
        reply.push(("workers".into(), Value::dict(workers)));
        let mut next = Value::Dict(reply.into());
        loop {
            if channel.sender.send(&next).await.is_err() {
                break;
            }
            let changed = self.until(|state| {
                let ids = state.worker_ids().map(|(id, _)| id);
                !ids.eq(known.keys().copied())
            });
            tokio::select! {
                () = changed => {}
                // The subscriber sends nothing.
                _ = channel.receiver.receive::<Value>() => break,
                () = self.closed() => break,
            }
            next = Value::list(self.inspect(|state| {
                let now: BTreeMap<WorkerId, String> = state
                    .worker_ids()
                    .map(|(id, address)| (id, address.to_owned()))
                    .collect();
                let left = known.iter().filter(|(id, _)| !now.contains_key(id));
                let left = left.map(|(_, address)| {
                    Value::tuple([Value::from("remove"), Value::from(address.as_str())])
                });
                let joined = now.iter().filter(|(id, _)| !known.contains_key(id));
                let joined = joined.filter_map(|(_, address)| {
                    let workers = Value::dict([shown(state, address)?]);
                    let message = Value::dict([("workers", workers)]);
                    Some(Value::tuple([Value::from("add"), message]))
                });
                let changes: Vec<Value> = left.chain(joined).collect();
                known = now;
                changes
            }));
        }
        channel.close().await;
    }
}

/// The identity of a worker as its subscribers get it: without what changes all the time.
fn shown(state: &State, address: &str) -> Option<(String, Value)> {
    let (address, identity) = state.identity_of(address)?;
    let Value::Dict(fields) = identity else {
        return None;
    };
    let mut fields = fields.into_vec();
    fields.retain(|(name, _)| !matches!(name.as_str(), Some("metrics" | "last_seen")));
    Some((address, Value::Dict(fields.into())))
}

/// Returns the reply to a request about a key that is not known.
pub(super) fn missing(key: &Key) -> Reply {
    refused("KeyError", &key.to_string())
}
