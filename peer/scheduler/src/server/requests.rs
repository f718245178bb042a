//! Replies to requests.

use core::fmt;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use daskwire_comm::{Incoming, runtime};
use daskwire_messages::protocol::{
    Broadcast, HeartbeatReply, Keys, Nullable, RegisterNannyPlugin, RegisterWorkerPlugin,
    ReplyStatus, Request, Unknown, WorkerNames,
};
use daskwire_messages::quantity::seconds_of;
use daskwire_messages::release::PACKAGE;
use daskwire_messages::{Key, Value};
use daskwire_rpc::channel::{Channel, Ends};
use daskwire_rpc::event;
use daskwire_rpc::request::IncomingRequest;

use super::Shared;
use super::operations::{missing, reason};
use super::pending::Ended;
use super::plugins::PluginKind;
use super::reply::{Reply, refused, uncaught};
use super::streams::MemberComm;
use crate::state::{Place, SchedulerInput, Selection, State, UnknownOps, is_about_run, is_shared};

/// Maximum number of keys that are looked up at once.
const MAX_QUERIED: usize = 512;
use crate::{LeaveReason, Notice, Permissions};

/// Requests that are answered while the workers of an earlier scheduler are waited for.
const PRECEDES: [&str; 11] = [
    "identity",
    "ping",
    "echo",
    "versions",
    // Waits by itself.
    "register-client",
    "register-worker",
    "heartbeat_worker",
    "unregister",
    "register_nanny",
    "subscribe_worker_status",
    "terminate",
];

/// Requests that a process of Python answers.
#[cfg(target_os = "linux")]
const RUN_BY_PYTHON: [&str; 3] = [
    "run_function",
    "performance_report",
    "dump_cluster_state_to_url",
];

impl Shared {
    pub(super) async fn handshake(self: Arc<Self>, incoming: Incoming) {
        // An error is reported as an event of the comm already.
        let Ok(comm) = incoming.handshake().await else {
            return;
        };
        let peer = comm.peer_address().to_string();
        let permissions = self.options.permit.as_ref();
        let permissions = permissions.map(|permit| permit(comm.encryption()));
        let ends = Ends::new("scheduler", &peer, self.options.observer.clone());
        let mut channel = Channel::new(comm, ends);
        channel.set_read_hint(self.pool.read_hint());
        let serving = self.serve(channel, permissions);
        event::in_comm(&peer, serving).await;
    }

    /// Replies to requests until a registration turns the comm into a stream, or the
    /// comm ends.
    async fn serve(self: Arc<Self>, mut channel: Channel, permissions: Option<Permissions>) {
        let mut heartbeats = None;
        let mut unknown_ops = UnknownOps::default();
        let mut denied_ops = UnknownOps::default();
        let mut next = None;
        loop {
            let incoming = match next.take() {
                Some(incoming) => incoming,
                None => match channel.receiver.receive::<IncomingRequest>().await {
                    Ok(Some(incoming)) => incoming,
                    Ok(None) | Err(_) => return,
                },
            };
            if self.failure.borrow().is_some() {
                return;
            }
            if let Ok(request) = &incoming.request {
                channel.set_traffic(daskwire_rpc::request::traffic(request));
            }
            let denied = match (&permissions, &incoming.request) {
                (Some(permissions), Ok(request)) => permissions.denial(request),
                _ => None,
            };
            if let Some(denied) = &denied
                && denied_ops.is_new(denied.op())
            {
                self.notify(&Notice::Denied {
                    peer: channel.peer.to_string(),
                    reason: denied.to_string(),
                });
            }
            let mut pending = None;
            if let Ok(request) = &incoming.request
                && !PRECEDES.contains(&request.op())
            {
                self.resumed().await;
            }
            let reply = match (denied, incoming.request) {
                (Some(denied), Ok(Request::RegisterClient(_))) => {
                    return self.refuse_client(channel, &denied).await;
                }
                (Some(denied), Ok(Request::RegisterWorker(_))) => {
                    return self.refuse_worker(channel.sender, &denied).await;
                }
                (Some(denied), _) => refused("PermissionError", &denied.to_string()),
                (None, request) => match request {
                    Ok(request) if self.is_blocked(request.op()) => {
                        let message = format!(
                            "The '{}' handler has been explicitly disallowed in Scheduler, possibly \
                         due to security concerns.",
                            request.op()
                        );
                        refused("ValueError", &message)
                    }
                    Ok(Request::RegisterClient(register)) => {
                        return self.client_stream(channel, register).await;
                    }
                    Ok(Request::SubscribeWorkerStatus(_)) => {
                        return self.watch_workers(channel).await;
                    }
                    Ok(Request::RegisterNanny(_)) => return self.start_nanny(channel).await,
                    Ok(Request::RegisterWorker(register)) => {
                        return self.worker_stream(channel, register).await;
                    }
                    #[cfg(target_os = "linux")]
                    Ok(Request::Unknown(request))
                        if request.op == "feed" && self.python.is_some() =>
                    {
                        return self.feed(channel, request).await;
                    }
                    Ok(request) if self.lacks_python(&request) => {
                        refused("NotImplementedError", &reason(request.op()))
                    }
                    Ok(request) if is_shared(&request) || is_about_run(&request) => {
                        let pending = pending.insert(self.request(request));
                        match pending.reply(&mut channel.receiver, &mut next).await {
                            Ok(reply) => reply,
                            Err(Ended) => return,
                        }
                    }
                    Ok(request) => {
                        if let Request::HeartbeatWorker(_) = request {
                            heartbeats.get_or_insert_with(|| MemberComm::new(&self));
                        }
                        self.reply_to(request, &channel.peer, &mut unknown_ops)
                            .await
                    }
                    Err(error) => Reply::Status(Box::new(uncaught(&error.to_string()))),
                },
            };
            let is_end = matches!(reply, Reply::Terminate);
            let is_closing = is_end || incoming.is_last || matches!(reply, Reply::CloseComm);
            if incoming.wants_reply && self.has_journal() {
                self.stored().await;
            }
            let is_sent = !incoming.wants_reply || channel.sender.send(&reply).await.is_ok();
            if let Some(pending) = pending.filter(|_| is_sent) {
                pending.sent();
            }
            if is_closing || !is_sent {
                channel.close().await;
                drop(heartbeats);
                if is_end {
                    self.close().await;
                }
                return;
            }
            // A peer whose requests have arrived and whose replies fit into the buffers of the
            // system would otherwise keep a thread of the executor for itself.
            runtime::yield_now().await;
        }
    }

    fn is_blocked(&self, op: &str) -> bool {
        self.options.blocked_ops.iter().any(|blocked| blocked == op)
    }

    pub(super) async fn reply_to(
        self: &Arc<Self>,
        request: Request,
        peer: &(dyn fmt::Display + Sync),
        unknown_ops: &mut UnknownOps,
    ) -> Reply {
        match request {
            Request::Identity(request) => Reply::Value(self.identity(request.n_workers)),
            Request::Ping(_) => Reply::Value(Value::bytes(&b"pong"[..])),
            Request::Echo(request) => Reply::Value(request.data),
            Request::Versions(request) => Reply::Value(self.versions(request.packages)),
            Request::HeartbeatWorker(request) => {
                let is_closing = self.is_closing.load(Ordering::Acquire);
                let interval = self.with_machine(|machine| {
                    let is_known = is_closing || machine.state.answers_heartbeats(&request.address);
                    machine.handle(SchedulerInput::Heartbeat {
                        worker: request.address,
                        metrics: request.metrics,
                    });
                    is_known.then(|| machine.state.heartbeat_interval())
                });
                Reply::Heartbeat(HeartbeatReply {
                    status: interval.map_or(ReplyStatus::Missing, |_| ReplyStatus::Ok),
                    time: interval.map(|_| self.clock.now().as_secs_f64()),
                    heartbeat_interval: interval,
                    ..HeartbeatReply::default()
                })
            }
            Request::Unregister(request) => {
                let is_known = self.inspect(|state| state.has_worker(&request.address));
                self.handle(SchedulerInput::RemoveWorker {
                    worker: request.address,
                    close: false,
                    reason: LeaveReason::Unregistered,
                });
                self.changed.notify_waiters();
                Reply::Value(Value::from(if is_known { "OK" } else { "already-removed" }))
            }
            Request::Gather(request) => {
                let keys = request.keys.unwrap_or_default();
                Reply::Data(self.gather(keys, request.serializers).await)
            }
            Request::Scatter(request) => self.scatter(request).await,
            Request::WhoHas(request) => {
                let mut who_has = Vec::new();
                let keys = request.keys.as_ref().map(|keys| &keys[..]);
                self.for_tasks(keys, |state, part| who_has.extend(state.who_has(part)))
                    .await;
                Reply::WhoHas(who_has)
            }
            Request::NBytes(request) => {
                let keys = request.keys.as_ref().map(|keys| &keys[..]);
                let mut unknown = None;
                self.for_tasks(Some(keys.unwrap_or_default()), |state, part| {
                    if let (None, Selection::Keys(keys)) = (&unknown, part) {
                        unknown = state.unknown_key(keys).cloned();
                    }
                })
                .await;
                if let Some(unknown) = unknown {
                    return missing(&unknown);
                }
                if request.summary.unwrap_or(true) {
                    let Some(keys) = keys else {
                        let prefixes = self.prefixes().await.into_iter();
                        let sums = prefixes.filter(|(_, totals)| totals.counts.of("memory") > 0);
                        let sums = sums.map(|(prefix, totals)| {
                            let sum = u64::try_from(totals.nbytes).unwrap_or(u64::MAX);
                            (Value::from(&*prefix), Value::from(sum))
                        });
                        return Reply::Value(Value::Dict(sums.collect()));
                    };
                    let mut sums = BTreeMap::new();
                    self.for_tasks(Some(keys), |state, part| {
                        if let Selection::Keys(keys) = part {
                            state.add_nbytes(keys, &mut sums);
                        }
                    })
                    .await;
                    return Reply::Value(Value::dict(sums));
                }
                let mut sizes = Vec::new();
                self.for_tasks(keys, |state, part| sizes.extend(state.nbytes(part)))
                    .await;
                Reply::Sizes(sizes)
            }
            Request::HasWhat(request) => {
                let workers = self.addresses(request.workers);
                Reply::HasWhat(self.keys_of_workers(workers, State::has_what).await)
            }
            Request::Processing(request) => {
                let workers = self.addresses(request.workers);
                let unknown = self.inspect(|state| {
                    let mut workers = workers.iter();
                    workers.find(|worker| !state.has_worker(worker)).cloned()
                });
                match unknown {
                    Some(unknown) => missing(&Key::from(unknown)),
                    None => Reply::HasWhat(self.keys_of_workers(workers, State::processing).await),
                }
            }
            Request::NCores(request) => Reply::Counts(self.thread_counts(request.workers, false)),
            Request::NCoresRunning(request) => {
                Reply::Counts(self.thread_counts(request.workers, true))
            }
            Request::GetTaskStatus(request) => {
                let mut stages = Vec::new();
                self.for_tasks(Some(&request.keys), |state, part| {
                    let Selection::Keys(keys) = part else {
                        return;
                    };
                    let part = keys.iter();
                    stages.extend(part.map(|key| (key.clone(), Nullable(state.status(key)))));
                })
                .await;
                Reply::Stages(stages)
            }
            Request::GetStory(request) => {
                let wanted = request.keys_or_stimuli.unwrap_or_default();
                Reply::Value(self.inspect(|state| state.story_value(&wanted)))
            }
            Request::Broadcast(request) => self.broadcast(request).await,
            Request::WorkerLogs(request) => {
                let count = request.n.map_or(Value::None, Value::from);
                self.broadcast(Broadcast {
                    msg: Unknown::new("get_logs").field("n", count),
                    workers: request.workers,
                    nanny: request.nanny,
                    ..Broadcast::default()
                })
                .await
            }
            Request::UpdateData(request) => {
                self.complete(SchedulerInput::DataStored {
                    client: request.client,
                    who_has: request.who_has.unwrap_or_default(),
                    nbytes: request.nbytes.unwrap_or_default(),
                })
                .await;
                self.changed.notify_waiters();
                Reply::Value(Value::None)
            }
            Request::Retry(request) => {
                let keys = request.keys.0;
                if let Some(unknown) = self.inspect(|state| state.unknown_key(&keys).cloned()) {
                    return missing(&unknown);
                }
                // A client takes the tasks in the reply for pending.
                let failed = self.inspect(|state| state.failed(&keys));
                if let Some(client) = request.client.filter(|client| !client.is_empty()) {
                    let count = [("count", Value::from(keys.len()))];
                    self.publish(&[&client], "retry", count);
                }
                self.complete(SchedulerInput::Retry(keys)).await;
                Reply::Keys(Keys(failed))
            }
            Request::RetireWorkers(request) => self.retire(request).await,
            Request::WorkersToClose(request) => self.to_close(&request),
            Request::AdaptiveTarget(request) => {
                let duration = request.target_duration.as_ref().and_then(seconds_of);
                let count = self.inspect(|state| state.desired_worker_count(duration));
                Reply::Value(Value::from(count))
            }
            Request::RegisterWorkerPlugin(request) => {
                let RegisterWorkerPlugin {
                    plugin,
                    name,
                    idempotent,
                    ..
                } = request;
                self.add_plugin(PluginKind::Worker, name, plugin, idempotent)
                    .await
            }
            Request::RegisterNannyPlugin(request) => {
                let RegisterNannyPlugin {
                    plugin,
                    name,
                    idempotent,
                    ..
                } = request;
                self.add_plugin(PluginKind::Nanny, name, plugin, idempotent)
                    .await
            }
            Request::UnregisterWorkerPlugin(request) => {
                self.remove_plugin(PluginKind::Worker, request.name).await
            }
            Request::UnregisterNannyPlugin(request) => {
                self.remove_plugin(PluginKind::Nanny, request.name).await
            }
            #[cfg(target_os = "linux")]
            Request::RegisterSchedulerPlugin(request) if self.python.is_some() => {
                self.register_plugin(request).await
            }
            #[cfg(target_os = "linux")]
            Request::UnregisterSchedulerPlugin(request) if self.python.is_some() => {
                let call = Unknown::new("unregister_scheduler_plugin");
                self.call_python(call.field("name", request.name)).await
            }
            Request::RegisterSchedulerPlugin(request) => self.add_scheduler_plugin(&request),
            Request::UnregisterSchedulerPlugin(request) => {
                self.remove_scheduler_plugin(&request.name)
            }
            Request::RestartCluster(request) => self.restart(request).await,
            Request::RestartWorkers(request) => self.restart_workers(request).await,
            Request::LogEventRequest(request) => {
                if !matches!(
                    request.topic,
                    Value::Str(_)
                        | Value::List(_)
                        | Value::Tuple(_)
                        | Value::Set(_)
                        | Value::FrozenSet(_)
                ) {
                    let message = format!("'{}' object is not iterable", request.topic.type_name());
                    return refused("TypeError", &message);
                }
                self.handle(SchedulerInput::Published {
                    topics: request.topic.clone(),
                    message: request.msg.clone(),
                });
                self.notify(&Notice::Event {
                    peer: peer.to_string(),
                    topic: request.topic,
                    message: request.msg,
                });
                Reply::Value(Value::None)
            }
            Request::Events(request) => Reply::Value(self.inspect(|state| match request.topic {
                Some(topic) => Value::tuple(state.events(&topic)),
                None => {
                    let topics = state.all_events().into_iter();
                    Value::dict(topics.map(|(topic, events)| (topic, Value::tuple(events))))
                }
            })),
            Request::ShuffleBarrier(request) => self.shuffle_barrier(request).await,
            Request::CloseComm(_) => Reply::CloseComm,
            Request::Terminate(_) => Reply::Terminate,
            Request::Unknown(request) if installs_routing(&request) => {
                Reply::Value(Value::dict([("status", "OK")]))
            }
            #[cfg(target_os = "linux")]
            Request::Unknown(request)
                if self.python.is_some() && RUN_BY_PYTHON.contains(&request.op.as_str()) =>
            {
                self.call_python(request).await
            }
            other => {
                let other = match self.operate(other).await {
                    Ok(reply) => return reply,
                    Err(other) => other,
                };
                let op = other.op();
                if unknown_ops.is_new(op) {
                    self.notify(&Notice::UnknownOp {
                        peer: peer.to_string(),
                        op: op.to_owned(),
                    });
                }
                // Dask replies with nil, which looks like success to a client.
                refused("NotImplementedError", &reason(op))
            }
        }
    }

    /// The addresses of workers that are given by addresses or names, each once; of all workers if
    /// none are given.
    fn addresses(&self, workers: Option<WorkerNames>) -> Vec<String> {
        let mut addresses = self.inspect(|state| match workers {
            Some(names) => state.addresses(&names),
            None => state.workers_on(None),
        });
        let mut seen = HashSet::new();
        addresses.retain(|address| seen.insert(address.clone()));
        addresses
    }

    /// Queries all tasks in parts, or those with the given keys. Others have the lock between parts.
    pub(super) async fn for_tasks(
        &self,
        keys: Option<&[Key]>,
        mut query: impl FnMut(&State, Selection<'_>) + Send,
    ) {
        let Some(keys) = keys else {
            return self
                .for_all_tasks(|state, part| query(state, Selection::Part(part)))
                .await;
        };
        for part in keys.chunks(MAX_QUERIED) {
            self.inspect(|state| query(state, Selection::Keys(part)));
            self.give_way().await;
        }
    }

    /// Queries all tasks in parts, between which others have the lock.
    pub(super) async fn for_all_tasks(&self, mut query: impl FnMut(&State, usize) + Send) {
        for part in 0.. {
            let exists = self.inspect(|state| {
                let exists = part < state.part_count();
                if exists {
                    query(state, part);
                }
                exists
            });
            if !exists {
                return;
            }
            self.give_way().await;
        }
    }

    /// Lists keys of workers in parts, between which others have the lock.
    async fn keys_of_workers(
        &self,
        workers: Vec<String>,
        query: fn(&State, &str, &mut Place, &mut Vec<Key>) -> bool,
    ) -> Vec<(String, Vec<Key>)> {
        let mut listed = Vec::with_capacity(workers.len());
        for worker in workers {
            let (mut place, mut keys) = (Place::default(), Vec::new());
            let mut is_whole = true;
            while !self.inspect(|state| query(state, &worker, &mut place, &mut keys)) {
                is_whole = false;
                self.give_way().await;
            }
            if !is_whole {
                // A task that was sent to the worker meanwhile may be listed twice.
                let mut seen = HashSet::new();
                keys.retain(|key| seen.insert(key.clone()));
            }
            listed.push((worker, keys));
            self.give_way().await;
        }
        listed
    }

    fn thread_counts(&self, workers: Option<WorkerNames>, running: bool) -> Vec<(String, u64)> {
        self.inspect(|state| {
            let workers = workers.map(|names| state.addresses(&names));
            state.thread_counts(workers.as_deref(), running)
        })
    }

    /// The versions in the form of Dask's. The scheduler has no packages of Python, and none of
    /// their versions matters to it, so that it reports those on which the workers agree: a check
    /// of a client then warns only of clients and workers that differ.
    // ROLES SCHEDULER-2
    pub(super) fn versions(&self, further: Option<Vec<String>>) -> Value {
        const PACKAGES: [&str; 10] = [
            "python",
            "dask",
            "distributed",
            "msgpack",
            "cloudpickle",
            "tornado",
            "toolz",
            "numpy",
            "pandas",
            "lz4",
        ];
        let packages = PACKAGES.map(str::to_owned).into_iter();
        let packages = packages.chain(further.unwrap_or_default());
        let own = (PACKAGE.to_owned(), Value::from(env!("CARGO_PKG_VERSION")));
        let packages: Vec<(String, Value)> = self.inspect(|state| {
            let packages = packages.map(|package| {
                let version = state.common_version(&package);
                let version = version.map_or(Value::None, Value::from);
                (package, version)
            });
            packages.chain([own]).collect()
        });
        Value::dict([("host", host()), ("packages", Value::dict(packages))])
    }

    pub(super) fn identity(&self, count: Option<i64>) -> Value {
        // A negative count means all; without a count, Dask lists five.
        let count = usize::try_from(count.unwrap_or(5)).ok();
        self.inspect(|state| {
            let workers = Value::dict(state.identities(count));
            Value::dict([
                ("type", Value::from("Scheduler")),
                ("id", Value::from(self.id.as_str())),
                ("address", Value::from(self.address.as_str())),
                (
                    "services",
                    Value::dict(self.options.services.iter().cloned()),
                ),
                ("started", Value::from(self.clock.start.as_secs_f64())),
                ("n_workers", Value::from(state.worker_count())),
                ("total_threads", Value::from(state.thread_count())),
                ("total_memory", Value::from(state.memory_limit())),
                ("workers", workers),
            ])
        })
    }
}

/// Whether a worker in Rust asks for the plugin that makes Dask's scheduler place tasks by the
/// functions of workers. This scheduler does so itself.
// ROLES WORKER-8
pub(crate) fn installs_routing(request: &Unknown) -> bool {
    const INSTALL: &[u8] = b"names['install'](dask_scheduler)";
    let function = || match request.value("function") {
        Some(Value::Bytes(function)) => function.windows(INSTALL.len()).any(|part| part == INSTALL),
        _ => false,
    };
    request.op == "run_function" && function()
}

/// What the scheduler says about its machine, in the form of Dask's.
fn host() -> Value {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| "None".to_owned());
    let os = match std::env::consts::OS {
        "linux" => "Linux",
        "macos" => "Darwin",
        "windows" => "Windows",
        other => other,
    };
    Value::dict([
        ("python", Value::None),
        ("python-bits", Value::from(usize::BITS)),
        ("OS", Value::from(os)),
        ("machine", Value::from(std::env::consts::ARCH)),
        (
            "byteorder",
            Value::from(if cfg!(target_endian = "big") {
                "big"
            } else {
                "little"
            }),
        ),
        ("LC_ALL", Value::from(variable("LC_ALL"))),
        ("LANG", Value::from(variable("LANG"))),
    ])
}
