//! The state machine of a scheduler, driven by the messages of clients and workers.

use core::time::Duration;
use std::collections::HashSet;

use crate::message::Message as _;
use daskwire_messages::graph::{Argument, Graph, Task};
use daskwire_messages::protocol::{
    Actors, AddKeys, CancelKeys, ClientDesiresKeys, ClientReleasesKeys, CloseStream, EventClear,
    EventSet, EventWait, FromClient, FromWorker, Keys, KeysConfirmed, LongRunning,
    MultiLockAcquire, MultiLockRelease, Nullable, PublishDelete, PublishFlush, PublishPut,
    QueueCreate, QueueGet, QueuePut, QueueReceived, QueueRelease, RegisterWorker,
    ReleaseWorkerData, ReportKey, Request, RequestRefreshWhoHas, Reschedule, Returned,
    ReturnedResult, ReturnedRun, SemaphoreAcquire, SemaphoreClose, SemaphoreRefreshLeases,
    SemaphoreRegister, SemaphoreRelease, ShuffleGet, ShuffleGetOrCreate, ShuffleRestrictTask,
    StealRequest, StealResponse, TaskErred, TaskFinished, ToWorker, UpdateGraph, VariableDelete,
    VariableGet, VariableReceived, VariableSet, WorkerStatus, WorkerStatusChange,
};
use daskwire_messages::{Key, Value};
use daskwire_scheduler::LeaveReason;
use daskwire_scheduler::state::{
    Action, ClientId, CreatedRun, Live, MemoryMeasure, NewRun, Place, Policy, Prefixes, Refusal,
    RefusalReason, RequestId, Restoring, SchedulerInput, Selection, State, Submission, WorkerId,
    in_parts,
};

use super::{BUDGET, sent};
use crate::input::Choices;

/// Checks that for any messages of clients and workers in any order the scheduler's
/// counters are right, and that no state is left after all of them have left.
///
/// The input: steps.
pub(crate) fn scheduler_machine(input: &[u8]) {
    let choices = Choices(input);
    BUDGET.check(input.len(), || {
        // A quarter of the inputs have a limit of the memory of tasks.
        let max_tasks_len = match input.len() % 4 {
            0 => 8 << 10,
            _ => usize::MAX,
        };
        // In half of them, the keys of clients are kept that disconnect.
        let grace = Duration::from_secs(input.len() as u64 / 4 % 2 * 10);
        let mut cluster = Cluster::new(choices, max_tasks_len, grace);
        while !cluster.choices.is_empty() {
            cluster.step();
        }
        cluster.clear();
    });
}

struct Cluster<'c> {
    choices: Choices<'c>,
    policy: Policy,
    state: State,
    now: Duration,
    clients: Vec<ClientId>,
    workers: Vec<WorkerId>,
    /// The tasks sent to workers: the worker and the run id.
    running: Vec<(WorkerId, Key, i64)>,
    /// Tasks that workers were asked for.
    asked_back: Vec<(WorkerId, StealRequest)>,
    /// The workers whose messages are being written.
    draining: Vec<WorkerId>,
    /// The runs of shuffles that are to be created.
    new_runs: Vec<NewRun>,
    /// The requests that are not known to have ended.
    requests: Vec<RequestId>,
    /// Graphs that were read, but not handled yet.
    read: Vec<(ClientId, SchedulerInput)>,
    graph_count: u64,
    last_id: u64,
    /// What the state has written to its journal.
    journal: Vec<u8>,
}

const CLIENTS: [&str; 3] = ["one", "two", "fire-and-forget"];

impl<'c> Cluster<'c> {
    fn new(choices: Choices<'c>, max_tasks_len: usize, client_grace: Duration) -> Self {
        let policy = Policy::default()
            .with_max_tasks_len(max_tasks_len)
            .with_client_grace(client_grace);
        let mut cluster = Self {
            choices,
            state: State::new(policy.clone()),
            policy,
            now: Duration::ZERO,
            clients: Vec::new(),
            workers: Vec::new(),
            running: Vec::new(),
            asked_back: Vec::new(),
            draining: Vec::new(),
            new_runs: Vec::new(),
            requests: Vec::new(),
            read: Vec::new(),
            graph_count: 0,
            last_id: 0,
            journal: Vec::new(),
        };
        cluster.state.keep_journal();
        cluster.add_client("one");
        cluster.add_worker();
        cluster
    }

    fn handle(&mut self, event: SchedulerInput) {
        let mut actions = self.state.handle(self.now, event);
        self.state.check();
        while self.state.is_pending() {
            actions.extend(self.state.proceed(self.now));
            self.state.check();
        }
        self.state.take_journal(&mut self.journal);
        for action in actions {
            match action {
                Action::ToWorker(worker, message) => {
                    let message = sent(&vec![message]).pop();
                    match message.expect("one message") {
                        ToWorker::ComputeTask(task) => {
                            self.running.push((worker, task.key, task.run_id));
                        }
                        ToWorker::FreeKeys(message) => {
                            let is_freed = |(on, key, _): &(WorkerId, Key, i64)| {
                                *on == worker && message.keys.contains(key)
                            };
                            self.running.retain(|entry| !is_freed(entry));
                        }
                        ToWorker::StealRequest(request) => self.asked_back.push((worker, request)),
                        _ => {}
                    }
                }
                Action::ToClient(_, message) => {
                    sent(&vec![message]);
                }
                Action::RefuseWorker(worker, _) | Action::EndWorker(worker) => {
                    self.workers.retain(|other| *other != worker);
                }
                Action::EndClient(client) => self.clients.retain(|other| *other != client),
                Action::NotifyDrained(worker) => self.draining.push(worker),
                Action::CreateRun(run) => self.new_runs.push(*run),
                _ => {}
            }
        }
    }

    fn add_worker(&mut self) {
        let mut worker = RegisterWorker {
            address: format!("tcp://w{}:1", self.choices.below(4)),
            status: match self.choices.below(4) {
                0 => self.choices.status(),
                _ => WorkerStatus::Running,
            },
            nthreads: match self.choices.below(8) {
                0 => self.choices.u64(),
                number => number as u64 % 3,
            },
            resources: match self.choices.below(3) {
                0 => vec![("GPU".to_owned(), self.choices.number())],
                _ => vec![("GPU".to_owned(), 1.0)],
            },
            ..RegisterWorker::default()
        };
        let kinds: &[&str] = match self.choices.below(6) {
            4 | 5 => &["native", "returning"],
            0 => &["native"],
            1 => &["native", "python"],
            2 => &["native", "embedded"],
            _ => &[],
        };
        if !kinds.is_empty() {
            let kinds = Value::list(kinds.iter().copied());
            worker.extra_information = Value::dict([("daskwire", kinds)]);
        }
        worker.server_id = (self.choices.below(4) != 0).then(|| worker.address.clone());
        self.last_id += 1;
        let id = WorkerId(self.last_id);
        self.workers.push(id);
        let registration = Box::new(worker);
        self.handle(SchedulerInput::WorkerJoined { id, registration });
    }

    fn add_client(&mut self, name: &str) {
        self.last_id += 1;
        let id = ClientId(self.last_id);
        self.clients.push(id);
        let name = name.to_owned();
        self.handle(SchedulerInput::ClientJoined {
            id,
            name,
            versions: Value::None,
            returning: [None, Some(false), Some(true), Some(true)][self.last_id as usize % 4],
        });
    }

    fn client(&mut self) -> Option<ClientId> {
        let index = self.choices.below(self.clients.len());
        self.clients.get(index).copied()
    }

    fn worker(&mut self) -> Option<WorkerId> {
        let index = self.choices.below(self.workers.len());
        self.workers.get(index).copied()
    }

    fn graph(&mut self) -> UpdateGraph {
        let choices = &mut self.choices;
        let count = choices.below(5);
        let mut task = || {
            let key = match choices.below(8) {
                0 => Key::from("shuffle-barrier-s"),
                _ => choices.key(),
            };
            let on = choices.keys().into_iter().map(Argument::Result);
            let function = match choices.below(4) {
                0 => "native:add",
                _ => "operator.add",
            };
            Task::new(key, function, on.collect::<Vec<_>>())
        };
        let graph: Graph = (0..count).map(|_| task()).collect();
        let annotations = match choices.below(7) {
            0 => Some(Value::dict([("retries", i64::from(choices.byte()))])),
            1 => Some(Value::dict([("resources", choices.resources())])),
            2 => Some(Value::dict([("priority", choices.number())])),
            3 => Some(Value::dict([("workers", "tcp://w1:1")])),
            4 => {
                let workers = ("workers", Value::from("tcp://w1:1"));
                let others = ("allow_other_workers", Value::Bool(true));
                Some(Value::dict([workers, others]))
            }
            _ => None,
        };
        let actors = match choices.below(6) {
            0 => Actors::Keys(Keys(choices.keys())),
            _ => Actors::None,
        };
        UpdateGraph {
            actors,
            expr_ser: graph.to_expression().expect("plain keys"),
            keys: Keys(choices.keys()),
            user_priority: (choices.below(4) == 0).then(|| choices.number()),
            annotations,
            ..UpdateGraph::default()
        }
    }

    fn step(&mut self) {
        match self.choices.below(32) {
            0 => {
                let name = CLIENTS[self.choices.below(CLIENTS.len())];
                self.add_client(name);
            }
            1 => {
                if let Some(client) = self.client() {
                    self.handle(SchedulerInput::ClientLeft(client));
                }
            }
            2 | 3 => self.add_worker(),
            4 => {
                if let Some(worker) = self.worker() {
                    self.workers.retain(|other| *other != worker);
                    self.handle(SchedulerInput::WorkerLeft(worker));
                }
            }
            5 => {
                if !self.read.is_empty() {
                    let (_, event) = self.read.remove(0);
                    self.handle(event);
                }
                self.now += Duration::from_millis(self.choices.u16().into());
                self.handle(SchedulerInput::Tick);
            }
            6 => {
                let keys = self.choices.keys();
                self.handle(SchedulerInput::Retry(keys));
            }
            7 => {
                let worker = format!("tcp://w{}:1", self.choices.below(4));
                match self.choices.below(4) {
                    0 => {
                        self.handle(SchedulerInput::RetireWorkers(vec![worker.clone()]));
                        let is_there = self.state.has_worker(&worker);
                        let is_retired = is_there && self.state.is_retired(&worker);
                        let can_retire = self.state.can_retire(&worker);
                        assert!((!can_retire || is_there) && (!is_retired || can_retire));
                    }
                    1 => {
                        let reason = match self.choices.below(2) {
                            0 => LeaveReason::Retired,
                            _ => LeaveReason::Unregistered,
                        };
                        self.handle(SchedulerInput::RemoveWorker {
                            worker,
                            close: true,
                            reason,
                        });
                    }
                    2 => self.handle(SchedulerInput::KeepWorker(worker)),
                    _ => {
                        let keys = self.choices.keys();
                        self.handle(SchedulerInput::DataMissing { worker, keys });
                    }
                }
            }
            8 => {
                let choices = &mut self.choices;
                let key = choices.key();
                let worker = format!("tcp://w{}:1", choices.below(4));
                let stored = SchedulerInput::DataStored {
                    client: Some(CLIENTS[choices.below(CLIENTS.len())].to_owned()),
                    who_has: vec![(key.clone(), vec![worker.clone()])],
                    nbytes: vec![(key.clone(), choices.u64())],
                };
                let keys = vec![key];
                self.handle(SchedulerInput::DataExpected { worker, keys });
                self.handle(stored);
            }
            9..=17 => {
                if let Some(client) = self.client() {
                    // Messages of a client are handled in order.
                    self.handle_read(|by| by == client);
                    for message in self.client_message() {
                        self.client_sent(client, message);
                    }
                }
            }
            18..=24 => {
                // A worker replies to a message.
                let count = self.running.len() + self.asked_back.len();
                let index = self.choices.below(count);
                if let Some(asked) = index.checked_sub(self.running.len())
                    && asked < self.asked_back.len()
                {
                    let (worker, request) = self.asked_back.swap_remove(asked);
                    let message = self.give_back(worker, request);
                    self.handle(SchedulerInput::FromWorker(worker, message));
                } else if index < self.running.len() {
                    let (worker, key, run_id) = self.running.swap_remove(index);
                    let message = self.outcome(key, run_id);
                    for message in sent(&vec![message]) {
                        self.handle(SchedulerInput::FromWorker(worker, message));
                    }
                }
            }
            25 => self.control(),
            26 => self.operate(),
            _ => {
                if let Some(worker) = self.worker() {
                    for message in self.worker_message(worker) {
                        self.handle(SchedulerInput::FromWorker(worker, message));
                    }
                }
            }
        }
    }

    /// Handles the message of a client. Every other graph is read at once, and handled later, after
    /// events of others, and half of these in parts, of which the last may be refused.
    fn client_sent(&mut self, client: ClientId, message: FromClient) {
        let FromClient::UpdateGraph(graph) = message else {
            return self.handle(SchedulerInput::FromClient(client, message));
        };
        self.graph_count += 1;
        if self.graph_count % 2 == 1 {
            return self.handle(SchedulerInput::FromClient(client, graph.into()));
        }
        let keys = graph.keys.0.clone();
        let mut events = match Submission::read(graph) {
            Ok(submission) if self.graph_count.is_multiple_of(4) => {
                in_parts(client, submission, || 2)
            }
            Ok(submission) => vec![SchedulerInput::Submitted(client, submission)],
            Err(refusal) => vec![SchedulerInput::SubmissionRefused(client, refusal)],
        };
        if self.graph_count.is_multiple_of(16) && events.len() > 1 {
            let reason = RefusalReason::Helper {
                error: "it has ended".to_owned(),
            };
            let refusal = Refusal::new(keys, reason);
            events.pop();
            events.push(SchedulerInput::SubmissionRefused(client, refusal));
        }
        self.read
            .extend(events.into_iter().map(|event| (client, event)));
    }

    /// Handles the graphs of some clients that were read.
    fn handle_read(&mut self, is_of: impl Fn(ClientId) -> bool) {
        let all = core::mem::take(&mut self.read).into_iter();
        let (now, later) = all.partition(|(client, _)| is_of(*client));
        self.read = later;
        let now: Vec<_> = now;
        for (_, event) in now {
            self.handle(event);
        }
    }

    /// The events that are not messages on a stream.
    fn control(&mut self) {
        let choices = &mut self.choices;
        let event = match choices.below(32) {
            29 => return self.kill(),
            30 | 31 => SchedulerInput::Resumed,
            28 => SchedulerInput::ClientExpected {
                name: CLIENTS[choices.below(CLIENTS.len())].to_owned(),
                graph_count: choices.byte().into(),
            },
            24..=27 => return self.shuffle(),
            0..=3 => match self.draining.pop() {
                Some(worker) => SchedulerInput::Drained(worker),
                // The worker may have left, or never existed.
                None => SchedulerInput::Drained(WorkerId(choices.byte().into())),
            },
            4 => {
                let client = ClientId(choices.below(8) as u64);
                match choices.below(3) {
                    0 => SchedulerInput::ClientBehind(client),
                    _ => SchedulerInput::ClientDrained(client),
                }
            }
            5..=6 => SchedulerInput::Heartbeat {
                worker: format!("tcp://w{}:1", choices.below(4)),
                metrics: Value::dict([("managed_bytes", choices.number())]),
            },
            7 => SchedulerInput::ReduceReplicas,
            8..=9 => SchedulerInput::WatchTasks(choices.byte() & 1 == 1),
            10 | 11 => {
                // An id that is already in use.
                let name = CLIENTS[choices.below(CLIENTS.len())].to_owned();
                let Some(id) = self.client() else { return };
                SchedulerInput::ClientJoined {
                    id,
                    name,
                    versions: Value::None,
                    returning: None,
                }
            }
            12..=14 => {
                let identities = self.state.identities(None);
                assert_eq!(identities.len(), self.state.worker_count());
                self.check_queries();
                return;
            }
            15 => SchedulerInput::Close,
            16..=21 => {
                let request = Box::new(self.shared_request());
                self.last_id += 1;
                let id = RequestId(self.last_id);
                self.requests.push(id);
                SchedulerInput::Requested { id, request }
            }
            _ => {
                let index = choices.below(self.requests.len());
                let is_replied = choices.byte() & 1 == 1;
                if index >= self.requests.len() {
                    return;
                }
                match (self.requests.swap_remove(index), is_replied) {
                    (id, true) => SchedulerInput::Replied(id),
                    (id, false) => SchedulerInput::RequestDropped(id),
                }
            }
        };
        self.handle(event);
    }

    /// Checks that lists of tasks and lists of the keys of workers, both made in parts, agree.
    fn check_queries(&self) {
        let mut holders = Vec::new();
        for part in 0..self.state.part_count() {
            let held = self.state.who_has(Selection::Part(part));
            holders.extend(held.into_iter().flat_map(|(key, workers)| {
                workers.into_iter().map(move |worker| (worker, key.clone()))
            }));
        }
        let mut held = Vec::new();
        let mut assigned = HashSet::new();
        for (_, worker) in self.state.worker_ids() {
            type List = fn(&State, &str, &mut Place, &mut Vec<Key>) -> bool;
            let list = |list: List| {
                let (mut place, mut keys) = (Place::default(), Vec::new());
                while !list(&self.state, worker, &mut place, &mut keys) {}
                keys
            };
            held.extend(
                list(State::has_what)
                    .into_iter()
                    .map(|key| (worker.to_owned(), key)),
            );
            for key in list(State::processing) {
                assert!(
                    assigned.insert(key),
                    "a task of two workers, or listed twice"
                );
            }
        }
        holders.sort();
        held.sort();
        assert_eq!(holders, held);
    }

    /// The events of requests that change where tasks run and where data is, and of diagnostics.
    fn operate(&mut self) {
        let choices = &mut self.choices;
        let worker = format!("tcp://w{}:1", choices.below(4));
        let name = choices.below(3).to_string();
        let event = match choices.below(17) {
            0 => {
                let keys = Keys(choices.keys());
                SchedulerInput::ReplicasAdded { worker, keys }
            }
            1 => {
                let keys = choices.keys();
                SchedulerInput::ReplicasDropped { worker, keys }
            }
            2 => SchedulerInput::ResourcesSet {
                worker,
                resources: vec![("GPU".to_owned(), choices.number())],
            },
            3 => {
                let keys = choices.keys().into_iter();
                SchedulerInput::Restricted(keys.map(|key| (key, vec![worker.clone()])).collect())
            }
            4 => SchedulerInput::CloseWorker(worker),
            5 => SchedulerInput::SetReducingReplicas(choices.byte() & 1 == 1),
            6 | 7 => {
                let measures = ["process", "managed", "spilled", "unmanaged_recent"];
                let measure = MemoryMeasure::of_name(measures[choices.below(measures.len())]);
                SchedulerInput::MemorySamplerStarted {
                    key: name,
                    client: CLIENTS[choices.below(CLIENTS.len())].to_owned(),
                    measure: measure.expect("a measure of Dask"),
                    interval: Duration::from_millis(choices.u16().into()),
                }
            }
            8 => {
                let samples = self.state.memory_samples(&name).unwrap_or_default();
                assert!(samples.is_sorted_by(|(one, _), (two, _)| one <= two));
                SchedulerInput::MemorySamplerStopped(name)
            }
            9 => SchedulerInput::Restart,
            10 => SchedulerInput::Published {
                topics: Value::list([name.as_str(), "all"]),
                message: Value::from(choices.number()),
            },
            11 => SchedulerInput::MetadataSet {
                path: choices.keys(),
                value: Value::from(choices.number()),
            },
            12 => SchedulerInput::RecordTasks,
            13 => SchedulerInput::CollectionStarted(name),
            14 => SchedulerInput::CollectionEnded(name),
            16 => SchedulerInput::ObserveEnds(choices.byte() & 1 == 1),
            _ => {
                let mut prefixes = Prefixes::new();
                let mut parts = 0..;
                while let Some(part) = parts.next()
                    && self.state.add_prefixes(part, &mut prefixes)
                {}
                let counts = prefixes.values().map(|prefix| prefix.counts.total());
                assert_eq!(counts.sum::<u64>(), self.state.task_count() as u64);
                return;
            }
        };
        self.handle(event);
    }

    /// An event of a P2P shuffle.
    fn shuffle(&mut self) {
        let choices = &mut self.choices;
        let shuffle = ["s", "x"][choices.below(8) / 7].to_owned();
        let worker = format!("tcp://w{}:1", choices.below(4));
        let key = choices.key();
        let run_id = choices.below(8) as u64;
        let request = match choices.below(8) {
            0 => Request::from(ShuffleGet {
                id: shuffle,
                worker,
                ..ShuffleGet::default()
            }),
            1..=3 => {
                let running = choices.below(self.running.len());
                let running = self.running.get(running).map(|(_, key, _)| key.clone());
                Request::from(ShuffleGetOrCreate {
                    shuffle_id: shuffle,
                    key: running.unwrap_or(key),
                    worker,
                    ..ShuffleGetOrCreate::default()
                })
            }
            4 => Request::from(ShuffleRestrictTask {
                id: shuffle,
                run_id,
                key,
                worker,
                ..ShuffleRestrictTask::default()
            }),
            5 => return self.handle(SchedulerInput::ShuffleRestarted { shuffle, run_id }),
            _ => {
                let Some(new) = self.new_runs.pop() else {
                    return;
                };
                let is_known = choices.below(8) > 0;
                let run = CreatedRun {
                    run_spec: vec![0; 4].into(),
                    workers: match is_known {
                        true => new.workers,
                        false => vec![worker],
                    },
                };
                let (run_id, run) = (new.run_id, Ok(run));
                return self.handle(SchedulerInput::RunCreated { run_id, run });
            }
        };
        self.last_id += 1;
        let id = RequestId(self.last_id);
        self.requests.push(id);
        let request = Box::new(request);
        self.handle(SchedulerInput::Requested { id, request });
    }

    /// A request about a shared object. Objects of all kinds have the same few names.
    fn shared_request(&mut self) -> Request {
        let choices = &mut self.choices;
        let name = Key::from(choices.below(2) as i64);
        let lease_id = Key::from(choices.below(4) as i64);
        let key = (choices.below(2) == 0).then(|| choices.key());
        let number = choices.below(4) as i64 - 1;
        let timeout = (choices.below(2) == 0).then(|| choices.number());
        match choices.below(18) {
            0 | 1 => Request::from(VariableSet {
                name,
                key,
                timeout: timeout.map(Value::from),
                ..VariableSet::default()
            }),
            2 => Request::from(VariableGet {
                name,
                timeout,
                ..VariableGet::default()
            }),
            3 => Request::from(QueueCreate {
                name,
                maxsize: Some(number),
                ..QueueCreate::default()
            }),
            4 | 5 => Request::from(QueuePut {
                name,
                key,
                timeout,
                ..QueuePut::default()
            }),
            6 | 7 => Request::from(QueueGet {
                name,
                timeout,
                batch: match number {
                    -1 => Some(Value::from(true)),
                    0 => None,
                    number => Some(Value::from(number)),
                },
                ..QueueGet::default()
            }),
            8 => Request::from(EventWait {
                name,
                timeout,
                ..EventWait::default()
            }),
            9 if number > 0 => Request::from(EventSet {
                name,
                ..EventSet::default()
            }),
            9 => Request::from(EventClear {
                name,
                ..EventClear::default()
            }),
            10 => Request::from(SemaphoreRegister {
                name,
                max_leases: number,
                lease_timeout: timeout,
                ..SemaphoreRegister::default()
            }),
            11 => Request::from(SemaphoreAcquire {
                name,
                timeout,
                lease_id,
                ..SemaphoreAcquire::default()
            }),
            12 => match number {
                -1 => Request::from(SemaphoreClose {
                    name,
                    ..SemaphoreClose::default()
                }),
                0 => Request::from(SemaphoreRefreshLeases {
                    name,
                    lease_ids: [lease_id].into_iter().collect(),
                    ..SemaphoreRefreshLeases::default()
                }),
                _ => Request::from(SemaphoreRelease {
                    name,
                    lease_id,
                    ..SemaphoreRelease::default()
                }),
            },
            13 => Request::from(MultiLockAcquire {
                locks: choices.keys(),
                id: lease_id,
                timeout,
                num_locks: Some(number),
                ..MultiLockAcquire::default()
            }),
            14 => Request::from(MultiLockRelease {
                id: lease_id,
                ..MultiLockRelease::default()
            }),
            15 => Request::from(PublishPut {
                name: Some(name),
                keys: choices.keys(),
                override_existing: Some(number > 0),
                uid: (number < 0).then_some(lease_id),
                ..PublishPut::default()
            }),
            16 => Request::from(PublishDelete {
                name: Some(name),
                uid: (number < 0).then_some(lease_id),
                ..PublishDelete::default()
            }),
            _ => Request::decode(&choices.raw()).unwrap_or_else(|_| EventSet::default().into()),
        }
    }

    /// A message about a shared object, on the stream of a client.
    fn shared_message(&mut self) -> FromClient {
        let choices = &mut self.choices;
        let (name, key) = (Key::from(choices.below(2) as i64), choices.key());
        match choices.below(6) {
            0 => FromClient::from(VariableReceived {
                name,
                key,
                token: choices.byte().to_string(),
                ..VariableReceived::default()
            }),
            1 => FromClient::from(VariableDelete {
                name,
                ..VariableDelete::default()
            }),
            2 => FromClient::from(QueueRelease {
                name,
                ..QueueRelease::default()
            }),
            3 => FromClient::from(PublishFlush {
                uid: name,
                ..PublishFlush::default()
            }),
            _ => FromClient::from(QueueReceived {
                name,
                key,
                ..QueueReceived::default()
            }),
        }
    }

    fn client_message(&mut self) -> Vec<FromClient> {
        let message = match self.choices.below(13) {
            0..=3 => FromClient::from(self.graph()),
            4 => FromClient::from(ClientDesiresKeys {
                keys: Keys(self.choices.keys()),
                ..ClientDesiresKeys::default()
            }),
            5 | 6 => FromClient::from(ClientReleasesKeys {
                keys: Keys(self.choices.keys()),
                ..ClientReleasesKeys::default()
            }),
            7 => FromClient::from(ReportKey {
                key: self.choices.key(),
                ..ReportKey::default()
            }),
            8 => FromClient::from(CancelKeys {
                keys: Keys(self.choices.keys()),
                force: self.choices.byte() & 1 == 1,
                ..CancelKeys::default()
            }),
            9 => self.shared_message(),
            10 => FromClient::from(KeysConfirmed::default()),
            11 => FromClient::from(CloseStream::default()),
            _ => return FromClient::decode_batch(&self.choices.raw()).unwrap_or_default(),
        };
        sent(&vec![message])
    }

    fn outcome(&mut self, key: Key, run_id: i64) -> FromWorker {
        match self.choices.below(8) {
            0 => FromWorker::from(TaskErred {
                key,
                run_id,
                exception: Value::from("an exception"),
                ..TaskErred::default()
            }),
            1 => FromWorker::from(Reschedule {
                key,
                ..Reschedule::default()
            }),
            2 => FromWorker::from(LongRunning {
                key,
                run_id,
                ..LongRunning::default()
            }),
            _ => FromWorker::from(TaskFinished {
                key,
                run_id,
                nbytes: self.choices.byte().into(),
                ..TaskFinished::default()
            }),
        }
    }

    /// The answer of a worker that was asked for a task.
    fn give_back(&mut self, worker: WorkerId, request: StealRequest) -> FromWorker {
        let states = [Some("ready"), Some("waiting"), Some("executing"), None];
        let state = states[self.choices.below(states.len())];
        if matches!(state, Some("ready" | "waiting")) {
            let is_task =
                |(on, key, _): &(WorkerId, Key, i64)| *on == worker && *key == request.key;
            self.running.retain(|entry| !is_task(entry));
        }
        FromWorker::from(StealResponse {
            key: request.key,
            state: Nullable(state.map(str::to_owned)),
            stimulus_id: request.stimulus_id,
            ..StealResponse::default()
        })
    }

    fn worker_message(&mut self, on: WorkerId) -> Vec<FromWorker> {
        let choices = &mut self.choices;
        let message = match choices.below(10) {
            8 | 9 => {
                let results = choices.keys().into_iter().map(|key| ReturnedResult {
                    key,
                    nbytes: 1 << choices.below(64),
                    class: None,
                });
                let results = results.collect();
                let running = choices.keys().into_iter().map(|key| ReturnedRun {
                    key,
                    run_id: choices.byte().into(),
                });
                let running: Vec<ReturnedRun> = running.collect();
                for run in &running {
                    self.running.push((on, run.key.clone(), run.run_id));
                }
                FromWorker::from(Returned {
                    results,
                    running,
                    actors: Keys(choices.keys()),
                    is_last: choices.below(4) != 0,
                    ..Returned::default()
                })
            }
            0 => {
                let (key, run_id) = (choices.key(), choices.byte());
                self.outcome(key, run_id.into())
            }
            1 => FromWorker::from(AddKeys {
                keys: Keys(choices.keys()),
                ..AddKeys::default()
            }),
            2 => FromWorker::from(ReleaseWorkerData {
                key: choices.key(),
                ..ReleaseWorkerData::default()
            }),
            3 => FromWorker::from(RequestRefreshWhoHas {
                keys: Keys(choices.keys()),
                ..RequestRefreshWhoHas::default()
            }),
            4 => FromWorker::from(WorkerStatusChange {
                status: choices.status(),
                ..WorkerStatusChange::default()
            }),
            _ => return FromWorker::decode_batch(&choices.raw()).unwrap_or_default(),
        };
        sent(&vec![message])
    }

    /// Replaces the state by one that continues from its journal.
    fn kill(&mut self) {
        let (mut live, mut selected) = (Live::default(), Vec::new());
        live.note(&self.journal).expect("a state wrote it");
        let selecting = live.select(&self.journal, &mut selected);
        selecting.expect("a state wrote it");
        let mut restoring = Restoring::new(self.policy.clone(), self.now);
        restoring.add(&selected).expect("a state wrote it");
        self.state = restoring.finish();
        self.state.check();
        self.journal.clear();
        self.state.take_journal(&mut self.journal);
        self.clients.clear();
        self.workers.clear();
        self.running.clear();
        self.asked_back.clear();
        self.draining.clear();
        self.new_runs.clear();
        self.requests.clear();
        self.read.clear();
    }

    fn clear(mut self) {
        self.handle(SchedulerInput::Resumed);
        // A client that connects takes the place of one of the same name that holds tasks without
        // a connection.
        for name in self.state.client_names() {
            self.add_client(&name);
        }
        // The clients of some of these have left.
        self.handle_read(|_| true);
        // This includes workers whose streams were to be closed.
        for id in 1..=self.last_id {
            self.handle(SchedulerInput::ClientLeft(ClientId(id)));
            self.handle(SchedulerInput::WorkerLeft(WorkerId(id)));
        }
        assert_eq!(self.state.client_count(), 0);
        // Those that were expected have the longest grace.
        self.now += Duration::from_secs(60);
        self.handle(SchedulerInput::Tick);
        assert_eq!(self.state.grace_count(), 0);
        assert_eq!(self.state.worker_count(), 0);
        assert_eq!(self.state.task_count(), 0);
    }
}
