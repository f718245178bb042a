//! Random graphs, replies, delays and losses, for tests and a fuzz target. In the end every wanted key is
//! in memory or has failed, and when no keys are wanted, the state is empty.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use daskwire_messages::graph::{Argument, Graph, Task as Node};
use daskwire_messages::protocol::*;
use daskwire_messages::{Key, Value};

use super::*;
use crate::choose::next_random;

mod compared;
mod killed;
mod recorded;
mod returns;
mod shared;
mod shuffles;

pub use compared::compare_killed;
pub use killed::kill_and_finish;

const NAMES: [&str; 2] = ["one", "two"];

/// The workers are on so many hosts.
const HOST_COUNT: u64 = 3;

/// A worker with delayed messages: messages to and from it are queued and
/// delivered at random.
#[derive(Default)]
struct Slow {
    address: String,
    resources: Vec<(String, f64)>,
    inbox: VecDeque<ToWorker>,
    outbox: VecDeque<FromWorker>,
    data: BTreeSet<Key>,
    tasks: BTreeMap<Key, ComputeTask>,
    /// The runs with which executions began. As in Python, a task that is freed continues,
    /// and is reported as the run with which it began if it was sent again meanwhile.
    executing: BTreeMap<Key, i64>,
}

impl Slow {
    fn read(&mut self) {
        match self.inbox.pop_front() {
            Some(ToWorker::ComputeTask(task)) => {
                if self.data.contains(&task.key) {
                    self.outbox.push_back(finished(&task, task.run_id));
                } else {
                    self.tasks.insert(task.key.clone(), task);
                }
            }
            Some(ToWorker::FreeKeys(message)) => {
                for key in message.keys {
                    self.tasks.remove(&key);
                    self.delete(key);
                }
            }
            Some(ToWorker::StealRequest(message)) => {
                let state = match self.tasks.contains_key(&message.key) {
                    true if self.executing.contains_key(&message.key) => Some("executing"),
                    true => Some("ready"),
                    false => None,
                };
                if state == Some("ready") {
                    self.tasks.remove(&message.key);
                }
                self.outbox.push_back(FromWorker::from(StealResponse {
                    key: message.key,
                    state: Nullable(state.map(str::to_owned)),
                    stimulus_id: message.stimulus_id,
                    ..StealResponse::default()
                }));
            }
            Some(ToWorker::RemoveReplicas(message)) => {
                for key in message.keys {
                    let mut needs = self.tasks.values().flat_map(|task| task.nbytes.iter());
                    if needs.any(|(needed, _)| *needed == key) {
                        self.outbox.push_back(added(&key));
                    } else {
                        self.delete(key);
                    }
                }
            }
            Some(ToWorker::RefreshWhoHas(message)) => {
                for task in self.tasks.values_mut() {
                    for (key, holders) in &mut task.who_has {
                        let fresh = message.who_has.iter().find(|(fresh, _)| fresh == key);
                        if let Some((_, fresh)) = fresh {
                            holders.clone_from(fresh);
                        }
                    }
                }
            }
            _ => {}
        }
    }

    fn delete(&mut self, key: Key) {
        if self.data.remove(&key) {
            self.outbox.push_back(FromWorker::from(ReleaseWorkerData {
                key,
                ..ReleaseWorkerData::default()
            }));
        }
    }
}

fn added(key: &Key) -> FromWorker {
    FromWorker::from(AddKeys {
        keys: [key].into_iter().collect(),
        ..AddKeys::default()
    })
}

fn finished(task: &ComputeTask, run_id: i64) -> FromWorker {
    FromWorker::from(TaskFinished {
        key: task.key.clone(),
        run_id,
        nbytes: 1000,
        ..TaskFinished::default()
    })
}

/// A client's view of the keys that it wants.
#[derive(Clone, Copy, Debug, PartialEq)]
enum View {
    Pending,
    InMemory,
    Erred,
    Cancelled,
}

/// The choices that a fuzz target gives, one in each byte, and then pseudo-random ones.
#[derive(Debug)]
struct Choices {
    given: VecDeque<u8>,
    random: u64,
}

impl Choices {
    fn number(&mut self, below: usize) -> usize {
        let number = match self.given.pop_front() {
            Some(number) => u64::from(number),
            None => next_random(&mut self.random),
        };
        (number % below.max(1) as u64) as usize
    }
}

impl From<u64> for Choices {
    fn from(random: u64) -> Self {
        let given = VecDeque::new();
        Self { given, random }
    }
}

impl From<&[u8]> for Choices {
    fn from(given: &[u8]) -> Self {
        Self {
            given: given.iter().copied().collect(),
            random: 0,
        }
    }
}

struct Simulation {
    state: State,
    choices: Choices,
    now: Duration,
    workers: BTreeMap<WorkerId, Slow>,
    clients: BTreeMap<ClientId, BTreeMap<Key, View>>,
    names: BTreeMap<ClientId, String>,
    worker_count: u64,
    shared: shared::Shared,
    shuffles: shuffles::Shuffles,
    client_count: u64,
    /// Work of events of clients that is possibly pending.
    work: BTreeMap<ClientId, WorkId>,
    /// The parts of graphs that clients have sent and Python has not made yet.
    parts: BTreeMap<ClientId, VecDeque<SchedulerInput>>,
    /// The same as `work` for events of workers.
    worker_work: BTreeMap<WorkerId, WorkId>,
    /// The records of the journal, if the state keeps one.
    journal: Vec<Vec<u8>>,
    /// Whether there are no shuffles, which journals do not have.
    is_plain: bool,
    /// What the state has recorded, if it records.
    recorded: Option<recorded::Done>,
    /// What is the same in another run of a script, if there is one.
    script: Option<compared::Script>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        Self::begin(seed, None)
    }

    /// Begins a simulation whose events are recorded, with or without payloads, or not at all.
    fn begin(seed: u64, has_payloads: Option<bool>) -> Self {
        let policy = Policy::default()
            .with_seed(seed)
            // Tasks do not fail because of random losses.
            .with_allowed_failures(u32::MAX)
            .with_topic_length(5)
            .with_task_stream_length(5)
            .with_client_grace(Duration::from_secs(seed % 2));
        let mut simulation = Self {
            state: State::new(policy),
            choices: Choices::from(seed),
            now: Duration::ZERO,
            workers: BTreeMap::new(),
            clients: BTreeMap::new(),
            names: BTreeMap::new(),
            worker_count: 0,
            shared: shared::Shared::default(),
            shuffles: shuffles::Shuffles::default(),
            client_count: 0,
            work: BTreeMap::new(),
            parts: BTreeMap::new(),
            worker_work: BTreeMap::new(),
            journal: Vec::new(),
            is_plain: false,
            recorded: has_payloads.map(|_| recorded::Done::default()),
            script: None,
        };
        // Nearly all events take several slices.
        simulation.state.slice_len = simulation.number(4) + 1;
        if let Some(has_payloads) = has_payloads {
            simulation.state.keep_recording(has_payloads);
        }
        for name in NAMES {
            simulation.add_client(name, None);
        }
        simulation.open_shared();
        simulation
    }

    fn add_client(&mut self, name: &str, returning: Option<bool>) -> ClientId {
        let id = ClientId(self.client_count);
        self.client_count += 1;
        self.clients.insert(id, BTreeMap::new());
        self.names.insert(id, name.to_owned());
        let name = name.to_owned();
        self.handle(SchedulerInput::ClientJoined {
            id,
            name,
            versions: Value::None,
            returning,
        });
        id
    }

    /// A client connects again under its name, before or after the end of its connection was noticed.
    fn reconnect(&mut self) {
        let client = self.pick_client();
        let name = self.names[&client].clone();
        if self.number(8) == 0 {
            let message = CloseStream::default();
            self.handle(SchedulerInput::FromClient(client, message.into()));
        }
        if self.number(2) == 0 {
            self.handle(SchedulerInput::ClientLeft(client));
        }
        match self.number(8) {
            0 => {
                self.now += Duration::from_millis(1500);
                self.handle(SchedulerInput::Tick);
            }
            1 => self.handle(SchedulerInput::ClientExpected {
                name: name.clone(),
                graph_count: 0,
            }),
            2 => self.handle(SchedulerInput::Restart),
            _ => {}
        }
        let views = self.clients.remove(&client).expect("exists");
        self.parts.remove(&client);
        match [None, Some(false), Some(true), Some(true)][self.number(4)] {
            Some(true) => self.return_client(&name, views),
            returning => drop(self.add_client(&name, returning)),
        }
    }

    /// A client connects again, and desires some of the keys that it had.
    fn return_client(&mut self, name: &str, mut views: BTreeMap<Key, View>) {
        let client = self.add_client(name, Some(true));
        views.retain(|_, _| self.number(4) != 0);
        let keys: Keys = views.keys().collect();
        let views = views.into_keys().map(|key| (key, View::Pending)).collect();
        self.clients.insert(client, views);
        for part in keys.chunks(5) {
            let message = ClientDesiresKeys {
                keys: Keys(part.to_vec()),
                ..ClientDesiresKeys::default()
            };
            self.handle(SchedulerInput::FromClient(client, message.into()));
        }
        if self.number(4) != 0 {
            let message = KeysConfirmed::default();
            self.handle(SchedulerInput::FromClient(client, message.into()));
        }
    }

    fn number(&mut self, below: usize) -> usize {
        self.choices.number(below)
    }

    fn handle(&mut self, event: SchedulerInput) {
        let client = match &event {
            SchedulerInput::FromClient(client, _) | SchedulerInput::ClientLeft(client) => {
                Some(*client)
            }
            SchedulerInput::DataStored { client, .. } => {
                let mut names = self.names.iter();
                let is_named = |name: &(_, _)| Some(name.1) == client.as_ref();
                names.rfind(is_named).map(|(client, _)| *client)
            }
            _ => None,
        };
        if let Some(client) = client {
            if matches!(event, SchedulerInput::ClientLeft(_)) {
                self.parts.remove(&client);
            }
            self.complete_work_of(client);
        }
        let of_part = match &event {
            SchedulerInput::Submitted(client, _)
            | SchedulerInput::SubmissionContinued(client, _) => Some(*client),
            _ => None,
        };
        if let Some(client) = of_part {
            self.complete_event_of(client);
        }
        let client = client.or(of_part);
        let worker = match &event {
            SchedulerInput::FromWorker(worker, _) => Some(*worker),
            _ => None,
        };
        while let Some(work) = worker.and_then(|worker| self.worker_work.get(&worker))
            && !self.state.is_done(*work)
        {
            self.proceed();
        }
        let before = self.state.latest_work();
        let actions = self.state.handle(self.now, event);
        self.state.check();
        self.keep_journal();
        self.note(&actions);
        if let Some(client) = client
            && self.state.latest_work() != before
        {
            self.work.insert(client, self.state.latest_work());
        }
        if let Some(worker) = worker
            && self.state.latest_work() != before
        {
            self.worker_work.insert(worker, self.state.latest_work());
        }
        self.act(actions);
    }

    /// The events of a client keep their order. They wait for all parts of a graph.
    fn complete_work_of(&mut self, client: ClientId) {
        while self.next_part(client) {}
        self.complete_event_of(client);
    }

    /// Handles the next part of a graph of a client. Returns whether there was one.
    fn next_part(&mut self, client: ClientId) -> bool {
        let parts = self.parts.get_mut(&client);
        let Some(part) = parts.and_then(VecDeque::pop_front) else {
            return false;
        };
        self.handle(part);
        true
    }

    /// Handles a graph of a client: as a message, or in parts, as one that Python converts.
    fn submit_graph(&mut self, client: ClientId, message: UpdateGraph) {
        if self.number(2) == 0 || !matches!(message.actors, Actors::None) {
            return self.handle(SchedulerInput::FromClient(client, message.into()));
        }
        self.complete_work_of(client);
        let submission = Submission::read(message).expect("plain values");
        let parts = in_parts(client, submission, || self.number(3) + 1);
        self.parts.insert(client, parts.into());
        self.next_part(client);
    }

    fn complete_event_of(&mut self, client: ClientId) {
        while let Some(work) = self.work.get(&client)
            && !self.state.is_done(*work)
        {
            self.proceed();
        }
    }

    fn proceed(&mut self) {
        let actions = self.state.proceed(self.now);
        self.state.check();
        self.keep_journal();
        self.note(&actions);
        self.act(actions);
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::ToWorker(id, message) => {
                    if let Some(worker) = self.workers.get_mut(&id) {
                        worker.inbox.push_back(message);
                    }
                }
                Action::ToClient(id, message) => {
                    let Some(views) = self.clients.get_mut(&id) else {
                        continue;
                    };
                    if let ToClient::Restart(_) = message {
                        views.clear();
                    }
                    let (keys, view) = match message {
                        ToClient::KeyInMemory(message) => (vec![message.key], View::InMemory),
                        ToClient::TaskErredForClient(message) => (vec![message.key], View::Erred),
                        ToClient::LostData(message) => (vec![message.key], View::Pending),
                        ToClient::TaskRetried(message) => (vec![message.key], View::Pending),
                        ToClient::CancelledKeys(message) => (message.keys.0, View::Cancelled),
                        ToClient::GraphsAccepted(message) => {
                            self.accept(id, message.count);
                            continue;
                        }
                        ToClient::StreamStart(message) => {
                            self.accept(id, message.graphs_accepted.unwrap_or(0));
                            continue;
                        }
                        _ => continue,
                    };
                    for key in keys {
                        // The key may have been released meanwhile.
                        if let Some(known) = views.get_mut(&key) {
                            *known = view;
                        }
                    }
                }
                Action::CreateRun(run) => self.shuffles.request_run(*run),
                Action::Reply(id, reply) if self.shuffles.is_reply(id, &reply) => {}
                Action::Reply(id, reply) => {
                    self.shared.replies.insert(id, reply);
                }
                _ => {}
            }
        }
    }

    fn add_worker(&mut self) {
        self.worker_count += 1;
        let host = self.worker_count % HOST_COUNT;
        let address = format!("tcp://host-{host}:{}", self.worker_count);
        let worker = RegisterWorker {
            // Tasks are converted for workers in Python.
            extra_information: match self.script {
                Some(_) => rust_worker(),
                None => Value::default(),
            },
            address: address.clone(),
            server_id: Some(address.clone()),
            status: WorkerStatus::Running,
            nthreads: self.number(3) as u64 + 1,
            resources: match self.number(4) {
                0 => Vec::new(),
                amount => vec![("GPU".to_owned(), amount as f64)],
            },
            ..RegisterWorker::default()
        };
        let slow = Slow {
            address,
            resources: worker.resources.clone(),
            ..Slow::default()
        };
        let id = WorkerId(self.worker_count);
        self.workers.insert(id, slow);
        let registration = Box::new(worker);
        self.handle(SchedulerInput::WorkerJoined { id, registration });
    }

    fn pick_worker(&mut self) -> Option<WorkerId> {
        let index = self.number(self.workers.len());
        self.workers.keys().nth(index).copied()
    }

    fn pick_client(&mut self) -> ClientId {
        let index = self.number(self.clients.len());
        *self.clients.keys().nth(index).expect("there are two")
    }

    fn key(&mut self) -> String {
        match self.number(12) {
            0 => "bad-0".to_owned(),
            _ => format!("t-{:02}", self.number(40)),
        }
    }

    fn submit(&mut self) {
        let count = self.number(12) + 1;
        let mut names: Vec<String> = (0..count).map(|_| self.key()).collect();
        names.sort_unstable();
        names.dedup();
        // Dependencies have lower numbers, so that no two graphs form a cycle.
        let mut tasks = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let lower = names.get(..index).unwrap_or_default();
            let count = self.number(4).min(lower.len());
            let dependencies: Vec<&str> = (0..count)
                .map(|_| lower[self.number(lower.len())].as_str())
                .collect();
            tasks.push(add(name, &dependencies));
        }
        if !self.is_plain && self.number(3) == 0 {
            let (shuffled, outputs) = shuffles::tasks(&names);
            tasks.extend(shuffled);
            names.extend(outputs);
        }
        let wanted: Vec<String> = names
            .iter()
            .filter(|_| self.number(2) == 0)
            .cloned()
            .collect();
        let client = self.pick_client();
        for key in &wanted {
            let views = self.clients.get_mut(&client).expect("exists");
            views.insert(Key::from(key.as_str()), View::Pending);
        }
        let host = format!("host-{}", self.number(HOST_COUNT as usize));
        let others = self.number(2) == 0;
        let named = [
            ("workers", Value::list([host.as_str(), "other"])),
            ("allow_other_workers", Value::Bool(others)),
        ];
        let annotations = match self.number(6) {
            0 => Value::dict([("resources", Value::dict([("GPU", 1)]))]),
            1 => Value::dict([("retries", 1)]),
            2 => Value::dict(named),
            3 => {
                let resources = ("resources", Value::dict([("GPU", 1)]));
                Value::dict(named.into_iter().chain([resources]))
            }
            _ => Value::None,
        };
        let graph: Graph = tasks.into_iter().collect();
        let message = UpdateGraph {
            expr_ser: graph.to_expression().expect("plain values"),
            keys: wanted.iter().map(String::as_str).collect(),
            annotations: Some(annotations),
            actors: match self.number(5) {
                0 => Actors::Wanted,
                _ => Actors::None,
            },
            ..UpdateGraph::default()
        };
        self.submit_graph(client, message);
    }

    fn scatter(&mut self) {
        let Some(worker) = self.pick_worker() else {
            return;
        };
        let key = Key::from(self.key());
        let client = self.pick_client();
        self.scatter_to(worker, client, key);
    }

    fn scatter_to(&mut self, worker: WorkerId, client: ClientId, key: Key) {
        let name = self.names[&client].clone();
        let slow = self.workers.get_mut(&worker).expect("exists");
        slow.data.insert(key.clone());
        // Data under the key of a task is its result.
        slow.tasks.remove(&key);
        slow.executing.remove(&key);
        let address = slow.address.clone();
        self.handle(SchedulerInput::DataExpected {
            worker: address.clone(),
            keys: vec![key.clone()],
        });
        let views = self.clients.get_mut(&client).expect("exists");
        views.insert(key.clone(), View::Pending);
        // Else an earlier release of the key would come after the storage.
        self.complete_work_of(client);
        self.handle(SchedulerInput::DataStored {
            client: Some(name),
            who_has: vec![(key.clone(), vec![address])],
            nbytes: vec![(key, 8)],
        });
    }

    /// Some of the client's keys.
    fn some(&mut self, client: ClientId) -> Vec<Key> {
        let all: Vec<Key> = self.clients[&client].keys().cloned().collect();
        all.into_iter().filter(|_| self.number(3) == 0).collect()
    }

    /// Advances a random task of a worker.
    fn work(&mut self, id: WorkerId) {
        if self.number(10) == 0 {
            // Results of freed tasks are dropped.
            let worker = self.workers.get_mut(&id).expect("exists");
            let tasks = &worker.tasks;
            worker.executing.retain(|key, _| tasks.contains_key(key));
        }
        let index = self.workers[&id].tasks.len();
        let index = self.number(index);
        let outcome = self.number(20);
        let Some(task) = self.workers[&id].tasks.values().nth(index).cloned() else {
            return;
        };
        for (key, holders) in &task.who_has {
            if self.workers[&id].data.contains(key) {
                continue;
            }
            let has =
                |worker: &Slow| holders.contains(&worker.address) && worker.data.contains(key);
            let is_there = self.workers.values().any(has);
            let worker = self.workers.get_mut(&id).expect("exists");
            worker.outbox.push_back(if is_there {
                worker.data.insert(key.clone());
                added(key)
            } else {
                FromWorker::from(RequestRefreshWhoHas {
                    keys: [key].into_iter().collect(),
                    ..RequestRefreshWhoHas::default()
                })
            });
            if !is_there {
                return;
            }
        }
        let worker = self.workers.get_mut(&id).expect("exists");
        let key = task.key.clone();
        let begun = worker.executing.entry(key.clone()).or_insert(task.run_id);
        let run_id = *begun;
        if (1..10).contains(&outcome) {
            worker.executing.remove(&key);
        }
        match outcome {
            0 => worker.outbox.push_back(FromWorker::from(LongRunning {
                key,
                run_id: task.run_id,
                ..LongRunning::default()
            })),
            1 => {
                worker.tasks.remove(&key);
                worker.outbox.push_back(FromWorker::from(Reschedule {
                    key,
                    ..Reschedule::default()
                }));
            }
            10.. => {}
            _ if key.prefix() == "bad" || (outcome == 2 && self.script.is_none()) => {
                worker.tasks.remove(&key);
                worker.outbox.push_back(FromWorker::from(TaskErred {
                    key,
                    run_id,
                    exception: Value::from("bad"),
                    ..TaskErred::default()
                }));
            }
            _ => {
                worker.tasks.remove(&key);
                worker.data.insert(key);
                worker.outbox.push_back(finished(&task, run_id));
                if let Some(script) = &mut self.script {
                    script.computed(&task);
                }
            }
        }
    }

    fn deliver(&mut self, id: WorkerId) {
        let worker = self.workers.get_mut(&id).expect("exists");
        if let Some(message) = worker.outbox.pop_front() {
            self.handle(SchedulerInput::FromWorker(id, message));
        }
    }

    fn step(&mut self) {
        if self.number(2) == 0 {
            self.proceed();
        }
        if self.number(4) == 0 {
            let client = self.pick_client();
            self.next_part(client);
        }
        let worker = self.pick_worker();
        match (self.number(40), worker) {
            (0..3, _) => self.submit(),
            (3, _) => self.scatter(),
            (4..6, _) => {
                let client = self.pick_client();
                let keys = self.some(client);
                let views = self.clients.get_mut(&client).expect("exists");
                views.retain(|key, _| !keys.contains(key));
                let message = ClientReleasesKeys {
                    keys: Keys(keys),
                    ..ClientReleasesKeys::default()
                };
                self.handle(SchedulerInput::FromClient(client, message.into()));
            }
            (6, _) => {
                let client = self.pick_client();
                let keys: Keys = self.some(client).into_iter().take(1).collect();
                let message = CancelKeys {
                    keys,
                    force: self.number(4) == 0,
                    ..CancelKeys::default()
                };
                self.handle(SchedulerInput::FromClient(client, message.into()));
            }
            (7, _) if self.workers.len() < 5 => self.add_worker(),
            (8, Some(worker)) if self.number(3) == 0 => {
                self.workers.remove(&worker);
                self.handle(SchedulerInput::WorkerLeft(worker));
            }
            (8, Some(worker)) => self.return_worker(worker),
            (9, _) => {
                self.now += Duration::from_millis(300);
                self.handle(SchedulerInput::Tick);
            }
            (10, Some(worker)) => {
                let status = ["running", "paused"][self.number(2)];
                let message = WorkerStatusChange {
                    status: status.into(),
                    ..WorkerStatusChange::default()
                };
                self.handle(SchedulerInput::FromWorker(worker, message.into()));
            }
            (11, _) => {
                let client = self.pick_client();
                let keys = self.some(client);
                self.handle(SchedulerInput::Retry(keys));
            }
            (32, _) => self.operate(worker),
            (36, _) if self.is_plain => {}
            (33..35, _) => self.share(),
            (36, _) => self.shuffle(),
            (38, _) if self.number(5) == 0 => self.reconnect(),
            (39, _) if self.number(20) == 0 => self.handle(SchedulerInput::Restart),
            (35, _) => self.handle(SchedulerInput::ReduceReplicas),
            (12..22, Some(worker)) => self.work(worker),
            (22..32, Some(worker)) => self.deliver(worker),
            (_, Some(worker)) => {
                if let Some(worker) = self.workers.get_mut(&worker) {
                    worker.read();
                }
            }
            _ => {}
        }
    }

    /// Calls an operation that is not about tasks.
    fn operate(&mut self, worker: Option<WorkerId>) {
        let client = self.pick_client();
        let topic = ["a", "b", "tcp://w1:1"][self.number(3)].to_owned();
        let key = Key::from(self.key());
        let address = worker.map(|id| self.workers[&id].address.clone());
        let address = address.unwrap_or_default();
        match (self.number(16), worker) {
            (15, _) => {
                let mut dump = Dump::new(&[]);
                while !self.state.dump_slice(&mut dump) {}
                assert_eq!(dump.into_parts().len(), 7);
            }
            (12, _) => self.handle(SchedulerInput::CloseWorker(address)),
            (13, _) => self.handle(SchedulerInput::MemorySamplerStarted {
                key: topic,
                client: self.names[&client].clone(),
                measure: MemoryMeasure::Process,
                interval: Duration::from_millis(10),
            }),
            (14, _) => self.handle(SchedulerInput::MemorySamplerStopped(topic)),
            (4, Some(worker)) => {
                // As after a request to fetch it.
                let holds = self.workers.values().any(|other| other.data.contains(&key));
                if holds && !self.workers[&worker].tasks.contains_key(&key) {
                    let worker = self.workers.get_mut(&worker).expect("exists");
                    worker.data.insert(key.clone());
                    self.handle(SchedulerInput::DataExpected {
                        worker: address.clone(),
                        keys: vec![key.clone()],
                    });
                    self.handle(SchedulerInput::ReplicasAdded {
                        worker: address,
                        keys: Keys(vec![key]),
                    });
                }
            }
            (5, _) => self.handle(SchedulerInput::ReplicasDropped {
                worker: address,
                keys: vec![key],
            }),
            (6, _) => {
                let amount = self.number(3) as f64;
                self.handle(SchedulerInput::ResourcesSet {
                    worker: address,
                    // All workers have the resource again in the end.
                    resources: vec![("GPU".to_owned(), amount.max(1.0))],
                });
            }
            (7, _) => {
                let workers = match self.number(2) {
                    0 => vec![address],
                    _ => Vec::new(),
                };
                self.handle(SchedulerInput::Restricted(vec![(key, workers)]));
            }
            (8, _) => self.handle(SchedulerInput::RecordTasks),
            (9, _) => self.handle(SchedulerInput::CollectionStarted(topic)),
            (10, _) => self.handle(SchedulerInput::CollectionEnded(topic)),
            (11, _) => self.handle(SchedulerInput::MetadataSet {
                path: vec![Key::from(topic), key],
                value: Value::from(1),
            }),
            (0, _) => {
                let message = SubscribeTopic {
                    topic,
                    ..SubscribeTopic::default()
                };
                self.handle(SchedulerInput::FromClient(client, message.into()));
            }
            (1, _) => {
                let message = UnsubscribeTopic {
                    topic,
                    ..UnsubscribeTopic::default()
                };
                self.handle(SchedulerInput::FromClient(client, message.into()));
            }
            (2, Some(worker)) => {
                let message = LogEvent {
                    topic: Value::from(topic),
                    msg: Value::dict([("x", 1)]),
                    ..LogEvent::default()
                };
                self.handle(SchedulerInput::FromWorker(worker, message.into()));
            }
            _ => self.handle(SchedulerInput::Published {
                topics: Value::list([topic.as_str(), "all"]),
                message: Value::from(1),
            }),
        }
    }

    /// Delivers all messages and completes all tasks.
    fn complete(&mut self) {
        for client in self.clients.keys().copied().collect::<Vec<_>>() {
            self.complete_work_of(client);
        }
        // Whatever the tasks demand, a worker has it.
        let has = |state: &State, host: u64| {
            let host = format!("host-{host}");
            let mut workers = state.workers.values();
            workers.any(|worker| worker.host == host && !worker.resources.is_empty())
        };
        while (0..HOST_COUNT).any(|host| !has(&self.state, host)) {
            self.add_worker();
        }
        // Workers to which tasks were restricted may have left.
        let tasks = self.state.by_key.keys();
        let tasks = tasks.map(|key| (key.clone(), Vec::new())).collect();
        self.handle(SchedulerInput::Restricted(tasks));
        for worker in self.workers.keys().copied().collect::<Vec<_>>() {
            let running = WorkerStatusChange {
                status: WorkerStatus::Running,
                ..WorkerStatusChange::default()
            };
            self.handle(SchedulerInput::FromWorker(worker, running.into()));
        }
        for _ in 0..10_000 {
            let mut is_idle = !self.state.is_pending();
            let mut count = 0;
            while self.state.is_pending() {
                self.proceed();
                count += 1;
                assert!(count < 10_000, "work does not end");
            }
            for id in self.workers.keys().copied().collect::<Vec<_>>() {
                let mut count = 0;
                while self.workers[&id].inbox.len() + self.workers[&id].outbox.len() != 0 {
                    is_idle = false;
                    count += 1;
                    assert!(count < 10_000, "messages do not end");
                    self.workers.get_mut(&id).expect("exists").read();
                    self.deliver(id);
                }
                if !self.workers[&id].tasks.is_empty() {
                    is_idle = false;
                    self.work(id);
                }
            }
            if is_idle {
                return;
            }
        }
        panic!("tasks do not end");
    }

    /// Completes all tasks, and checks what clients know of them and what is left without clients.
    fn finish(&mut self, seed: u64) {
        let simulation = self;
        simulation.complete();
        for (client, views) in &simulation.clients {
            let own = simulation.state.of_stream(*client).expect("connected");
            for (key, view) in views {
                let status = simulation.state.status(key);
                let wants = simulation
                    .state
                    .by_key
                    .get(key)
                    .is_some_and(|id| simulation.state.tasks[*id].wanted_by.contains(&own));
                match view {
                    View::InMemory => {
                        assert_eq!(
                            (status, wants),
                            (Some(TaskState::Memory), true),
                            "seed {seed}: {key}"
                        )
                    }
                    View::Erred => {
                        assert_eq!(
                            (status, wants),
                            (Some(TaskState::Erred), true),
                            "seed {seed}: {key}"
                        )
                    }
                    View::Cancelled => assert!(!wants, "seed {seed}: {key}"),
                    View::Pending => panic!("seed {seed}: {key} is {status:?}"),
                }
            }
        }
        for client in simulation.clients.keys().copied().collect::<Vec<_>>() {
            simulation.handle(SchedulerInput::ClientLeft(client));
        }
        simulation.close_shared();
        simulation.create_runs();
        for _ in 0..4 {
            simulation.now += Duration::from_millis(500);
            simulation.handle(SchedulerInput::Tick);
            simulation.complete();
        }
        assert_eq!(simulation.state.task_count(), 0, "seed {seed}");
        for (id, worker) in &simulation.workers {
            assert!(worker.data.is_empty(), "seed {seed}: {:?}", worker.data);
            assert!(worker.tasks.is_empty(), "seed {seed}");
            assert!(simulation.state.workers[id].has.is_empty());
        }
    }
}

/// A task that adds the values of keys.
pub(crate) fn add(key: &str, dependencies: &[&str]) -> Node {
    let keys = dependencies
        .iter()
        .map(|key| Argument::Result(Key::from(*key)));
    Node::new(key, "operator.add", keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seed: u64) {
        let mut simulation = Simulation::new(seed);
        simulation.add_worker();
        for _ in 0..400 {
            simulation.step();
        }
        simulation.finish(seed);
    }

    #[test]
    fn random_events_lead_to_a_consistent_state() {
        for seed in 0..100 {
            run(seed);
        }
    }

    #[test]
    fn same_seed_gives_same_actions() {
        let history = |seed| {
            let mut simulation = Simulation::new(seed);
            let mut history = Vec::new();
            for _ in 0..300 {
                simulation.step();
                let inboxes = simulation
                    .workers
                    .values()
                    .map(|worker| format!("{:?}", worker.inbox));
                history.extend(inboxes);
            }
            history
        };
        // The token of each expression is random, and is not compared.
        assert_eq!(history(7), history(7));
    }
}
