//! The state machines of a worker and of a scheduler, driven by messages.

use core::time::Duration;

use bytes::Bytes;
use daskwire_peer::fuzzing::{self, Message, Reply, WorkerMachine};
use daskwire_peer::graph::{Argument, Graph, Task};
use daskwire_peer::protocol::{
    AcquireReplicas, AddKeys, CancelCompute, CancelKeys, ClientDesiresKeys, ClientReleasesKeys,
    ComputeTask, FreeKeys, FromClient, FromWorker, Keys, LongRunning, Nullable, RefreshWhoHas,
    RegisterWorker, ReleaseWorkerData, RemoveReplicas, RemoveWorker, ReportKey,
    RequestRefreshWhoHas, Reschedule, StealRequest, TaskErred, TaskFinished, ToWorker, UpdateGraph,
    WorkerStatus, WorkerStatusChange,
};
use daskwire_peer::scheduler::state::{Action, ClientId, Event, Policy, State, WorkerId};
use daskwire_peer::{Key, Value};

use crate::input::Choices;
use daskwire_fuzz::budget::{Budget, Linear};

/// The budget for steps of a machine with a full check after each.
const BUDGET: Budget = Budget {
    memory_len: Linear {
        base: 4 << 20,
        per_byte: 16 << 10,
    },
    allocated_len: Linear {
        base: 16 << 20,
        per_byte: 512 << 10,
    },
    steps: Linear {
        base: 1 << 22,
        per_byte: 1 << 16,
    },
};

const HERE: &str = "tcp://127.0.0.1:1";
const PEERS: [&str; 4] = ["tcp://127.0.0.1:10", "tcp://127.0.0.1:11", HERE, "nowhere"];

impl Choices<'_> {
    /// One of few keys, so that they collide.
    fn key(&mut self) -> Key {
        match self.below(12) {
            number @ 0..10 => Key::from(format!("k-{number}")),
            _ => Key::list([Key::from("t"), Key::from(i64::from(self.byte() % 2))]),
        }
    }

    fn keys(&mut self) -> Vec<Key> {
        (0..self.below(4)).map(|_| self.key()).collect()
    }

    fn peer(&mut self) -> String {
        PEERS[self.below(PEERS.len())].to_owned()
    }

    fn who_has(&mut self) -> Vec<(Key, Vec<String>)> {
        let count = self.below(4);
        let mut entry = || {
            let key = self.key();
            (key, (0..self.below(3)).map(|_| self.peer()).collect())
        };
        (0..count).map(|_| entry()).collect()
    }

    fn number(&mut self) -> f64 {
        match self.below(8) {
            0 => f64::from_bits(self.u64()),
            1 => f64::NAN,
            2 => f64::INFINITY,
            3 => -1.0,
            number => number as f64 - 4.0,
        }
    }

    fn resources(&mut self) -> Value {
        match self.below(4) {
            0 => Value::dict([("GPU", self.number())]),
            1 => Value::dict([("GPU", 1.0), ("TPU", self.number())]),
            _ => Value::None,
        }
    }

    fn status(&mut self) -> WorkerStatus {
        let all = ["running", "paused", "closing_gracefully", "init", "odd"];
        WorkerStatus::from(all[self.below(all.len())])
    }

    /// A message with a document from the input, which is its last frame.
    fn raw(&mut self) -> Vec<Bytes> {
        let len = self.byte();
        vec![Bytes::copy_from_slice(self.bytes(len.into()))]
    }
}

/// Passes a message through encoding and decoding.
fn sent<T: Message>(messages: &Vec<T>) -> Vec<T>
where
    Vec<T>: Message,
{
    let frames = messages.encode().expect("it can be written");
    T::decode_batch(&frames).expect("it can be read")
}

/// Checks that for any messages of the scheduler and replies of peers in any
/// order the worker's counters are right, and that nothing is left when
/// everything is freed.
///
/// The input: the numbers of threads and transfers, then steps.
pub(crate) fn worker_machine(input: &[u8]) {
    let mut choices = Choices(input);
    BUDGET.check(input.len(), || {
        let (threads, transfers) = (choices.below(3) + 1, choices.below(3) + 1);
        let mut worker = WorkerMachine::new(HERE, threads, transfers);
        while !choices.is_empty() {
            worker_step(&mut worker, &mut choices);
            for message in worker.sent() {
                sent(&vec![message]);
            }
        }
        clear(&mut worker);
    });
}

fn worker_step(worker: &mut WorkerMachine, choices: &mut Choices<'_>) {
    let message = match choices.below(24) {
        0..=3 => {
            let dependencies = choices.who_has();
            let sizes = dependencies.iter().map(|(key, _)| key.clone());
            let nbytes = sizes.map(|key| (key, choices.byte().into())).collect();
            ToWorker::from(ComputeTask {
                key: choices.key(),
                run_id: choices.byte().into(),
                priority: (0..choices.below(5)).map(|_| choices.number()).collect(),
                who_has: match choices.below(4) {
                    0 => choices.who_has(),
                    _ => dependencies,
                },
                nbytes,
                resource_restrictions: Nullable(Some(choices.resources())),
                actor: choices.below(8) == 0,
                ..ComputeTask::default()
            })
        }
        4 => ToWorker::from(FreeKeys {
            keys: Keys(choices.keys()),
            ..FreeKeys::default()
        }),
        5 => ToWorker::from(RemoveReplicas {
            keys: Keys(choices.keys()),
            ..RemoveReplicas::default()
        }),
        6 => ToWorker::from(AcquireReplicas {
            who_has: choices.who_has(),
            nbytes: Some(vec![(choices.key(), choices.u64())]),
            ..AcquireReplicas::default()
        }),
        7 => ToWorker::from(RefreshWhoHas {
            who_has: choices.who_has(),
            ..RefreshWhoHas::default()
        }),
        8 => ToWorker::from(StealRequest {
            key: choices.key(),
            ..StealRequest::default()
        }),
        9 => ToWorker::from(CancelCompute {
            key: choices.key(),
            ..CancelCompute::default()
        }),
        10 => ToWorker::from(RemoveWorker {
            worker: choices.peer(),
            ..RemoveWorker::default()
        }),
        11 => ToWorker::from(WorkerStatusChange {
            status: choices.status(),
            ..WorkerStatusChange::default()
        }),
        12 | 13 => {
            let index = choices.byte().into();
            worker.executed(index, choices.below(4) != 0);
            return;
        }
        14 => return worker.inputs_lost(choices.byte().into(), choices.keys()),
        15..=17 => {
            let index = choices.byte().into();
            let reply = match choices.below(6) {
                0 => Reply::Busy,
                1 => Reply::Gone,
                _ => Reply::Data(choices.byte().into()),
            };
            worker.answered(index, reply);
            return;
        }
        18 => {
            worker.time_passed(choices.byte().into());
            return;
        }
        19 => return worker.lost(choices.keys()),
        20 => return worker.stored(choices.keys()),
        21 => return worker.paused(choices.byte() & 1 == 1),
        22 => return worker.full(choices.byte() & 1 == 1),
        _ => {
            if let Ok(batch) = ToWorker::decode_batch(&choices.raw()) {
                worker.batch(batch);
            }
            return;
        }
    };
    worker.batch(sent(&vec![message]));
}

/// Frees everything and completes all operations.
fn clear(worker: &mut WorkerMachine) {
    let closing = WorkerStatusChange {
        status: WorkerStatus::Closing,
        ..WorkerStatusChange::default()
    };
    worker.batch(vec![closing.into()]);
    for _ in 0..2 {
        let message = FreeKeys {
            keys: Keys(worker.keys()),
            ..FreeKeys::default()
        };
        worker.batch(vec![message.into()]);
        while worker.executed(0, true) {}
        while worker.answered(0, Reply::Gone) {}
    }
    assert_eq!(worker.counts(), []);
}

/// Checks that for any messages of clients and workers in any order the
/// scheduler's counters are right, and that nothing is left when they are gone.
///
/// The input: steps.
pub(crate) fn scheduler_machine(input: &[u8]) {
    let choices = Choices(input);
    BUDGET.check(input.len(), || {
        let mut cluster = Cluster::new(choices);
        while !cluster.choices.is_empty() {
            cluster.step();
        }
        cluster.clear();
    });
}

struct Cluster<'c> {
    choices: Choices<'c>,
    state: State,
    now: Duration,
    clients: Vec<ClientId>,
    workers: Vec<WorkerId>,
    /// The tasks sent to workers: the worker and the run id.
    running: Vec<(WorkerId, Key, i64)>,
    last_id: u64,
}

const CLIENTS: [&str; 3] = ["one", "two", "fire-and-forget"];

impl<'c> Cluster<'c> {
    fn new(choices: Choices<'c>) -> Self {
        let mut cluster = Self {
            choices,
            state: State::new(Policy::default()),
            now: Duration::ZERO,
            clients: Vec::new(),
            workers: Vec::new(),
            running: Vec::new(),
            last_id: 0,
        };
        cluster.add_client("one");
        cluster.add_worker();
        cluster
    }

    fn handle(&mut self, event: Event) {
        let actions = self.state.handle(self.now, event);
        fuzzing::check_scheduler(&self.state);
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
                _ => {}
            }
        }
    }

    fn add_worker(&mut self) {
        let worker = RegisterWorker {
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
        self.last_id += 1;
        let id = WorkerId(self.last_id);
        self.workers.push(id);
        let registration = Box::new(worker);
        self.handle(Event::WorkerJoined { id, registration });
    }

    fn add_client(&mut self, name: &str) {
        self.last_id += 1;
        let id = ClientId(self.last_id);
        self.clients.push(id);
        let name = name.to_owned();
        self.handle(Event::ClientJoined { id, name });
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
            let key = choices.key();
            let on = choices.keys().into_iter().map(Argument::Result);
            Task::new(key, "operator.add", on.collect::<Vec<_>>())
        };
        let graph: Graph = (0..count).map(|_| task()).collect();
        let annotations = match choices.below(6) {
            0 => Some(Value::dict([("retries", i64::from(choices.byte()))])),
            1 => Some(Value::dict([("resources", choices.resources())])),
            2 => Some(Value::dict([("priority", choices.number())])),
            3 => Some(Value::dict([("workers", "tcp://w1:1")])),
            _ => None,
        };
        UpdateGraph {
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
                    self.handle(Event::ClientLeft(client));
                }
            }
            2 | 3 => self.add_worker(),
            4 => {
                if let Some(worker) = self.worker() {
                    self.workers.retain(|other| *other != worker);
                    self.handle(Event::WorkerLeft(worker));
                }
            }
            5 => {
                self.now += Duration::from_millis(self.choices.u16().into());
                self.handle(Event::Tick);
            }
            6 => {
                let keys = self.choices.keys();
                self.handle(Event::Retry(keys));
            }
            7 => {
                let worker = format!("tcp://w{}:1", self.choices.below(4));
                match self.choices.below(4) {
                    0 => {
                        self.handle(Event::RetireWorker(worker.clone()));
                        let is_there = self.state.has_worker(&worker);
                        let is_retired = is_there && self.state.is_retired(&worker);
                        let can_retire = self.state.can_retire(&worker);
                        assert!((!can_retire || is_there) && (!is_retired || can_retire));
                    }
                    1 => self.handle(Event::RemoveWorker {
                        worker,
                        close: true,
                    }),
                    2 => self.handle(Event::KeepWorker(worker)),
                    _ => {
                        let keys = self.choices.keys();
                        self.handle(Event::DataMissing { worker, keys });
                    }
                }
            }
            8 => {
                let choices = &mut self.choices;
                let key = choices.key();
                let worker = format!("tcp://w{}:1", choices.below(4));
                let stored = Event::DataStored {
                    client: Some(CLIENTS[choices.below(CLIENTS.len())].to_owned()),
                    who_has: vec![(key.clone(), vec![worker.clone()])],
                    nbytes: vec![(key.clone(), choices.u64())],
                };
                let keys = vec![key];
                self.handle(Event::DataExpected { worker, keys });
                self.handle(stored);
            }
            9..=17 => {
                if let Some(client) = self.client() {
                    for message in self.client_message() {
                        self.handle(Event::FromClient(client, message));
                    }
                }
            }
            18..=24 => {
                // A worker replies to a message.
                let index = self.choices.below(self.running.len());
                if index < self.running.len() {
                    let (worker, key, run_id) = self.running.swap_remove(index);
                    let message = self.outcome(key, run_id);
                    for message in sent(&vec![message]) {
                        self.handle(Event::FromWorker(worker, message));
                    }
                }
            }
            _ => {
                if let Some(worker) = self.worker() {
                    for message in self.worker_message() {
                        self.handle(Event::FromWorker(worker, message));
                    }
                }
            }
        }
    }

    fn client_message(&mut self) -> Vec<FromClient> {
        let message = match self.choices.below(10) {
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

    fn worker_message(&mut self) -> Vec<FromWorker> {
        let choices = &mut self.choices;
        let message = match choices.below(8) {
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

    fn clear(mut self) {
        // Under the name of the client for tasks without futures too.
        for name in CLIENTS {
            self.add_client(name);
        }
        for client in self.clients.clone() {
            self.handle(Event::ClientLeft(client));
        }
        for worker in self.workers.clone() {
            self.handle(Event::WorkerLeft(worker));
        }
        assert_eq!(self.state.worker_count(), 0);
        assert_eq!(self.state.task_count(), 0);
    }
}
