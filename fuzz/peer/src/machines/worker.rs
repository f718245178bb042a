//! The state machine of a worker, driven by the messages of a scheduler, tasks
//! that end, and the answers of peers.

use core::time::Duration;
use std::collections::BTreeSet;

use crate::message::Message as _;
use daskwire_messages::protocol::{
    AcquireReplicas, CancelCompute, ComputeTask, FreeKeys, Keys, Nullable, RefreshWhoHas,
    RemoveReplicas, RemoveWorker, StealRequest, ToWorker, WorkerStatus, WorkerStatusChange,
};
use daskwire_messages::{Key, Value};
use daskwire_worker::state::{
    Action, Answer, Description, Executed, Failure, Fetched, Limits, Peer, State, WorkerInput,
};

use super::{BUDGET, sent};
use crate::input::Choices;

const HERE: &str = "tcp://127.0.0.1:1";
const PEERS: [&str; 4] = ["tcp://127.0.0.1:10", "tcp://127.0.0.1:11", HERE, "nowhere"];

/// Checks that for any messages of the scheduler and replies of peers in any
/// order the worker's state is consistent after each event, that tasks start only
/// with their inputs in the store and within the limits, and that nothing is left
/// when everything is freed.
///
/// The input: the numbers of threads and transfers, then steps.
pub(crate) fn worker_machine(input: &[u8]) {
    let mut choices = Choices(input);
    BUDGET.check(input.len(), || {
        let nthreads = choices.below(3) + 1;
        // One request at a time, or any number of such small ones.
        let transfer_total_len = [0, 1 << 40][choices.below(3).min(1)];
        let limits = Limits::default()
            .with_nthreads(nthreads)
            .with_transfer_total_len(transfer_total_len);
        let mut worker = Worker {
            state: State::new(HERE, limits, [("GPU".to_owned(), 1.0)]),
            now: Duration::from_secs(1),
            running: Vec::new(),
            asked: Vec::new(),
            timers: Vec::new(),
            store: BTreeSet::new(),
            is_closed: false,
        };
        while !choices.is_empty() {
            worker.step(&mut choices);
        }
        worker.clear();
    });
}

impl Choices<'_> {
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
}

/// A worker's state machine, and its pending work.
struct Worker {
    state: State,
    now: Duration,
    running: Vec<Key>,
    asked: Vec<(u64, Peer, Vec<Key>)>,
    timers: Vec<WorkerInput>,
    /// The keys in the store.
    store: BTreeSet<Key>,
    is_closed: bool,
}

impl Worker {
    fn handle(&mut self, events: impl IntoIterator<Item = WorkerInput>) {
        for action in self.state.handle_all(self.now, events) {
            match action {
                Action::Execute(run) => {
                    assert!(!self.is_closed, "a task starts on a closed worker");
                    let mut inputs = run.dependencies.iter();
                    assert!(inputs.all(|key| self.store.contains(key)), "{}", run.key);
                    self.running.push(run.key);
                }
                Action::Fetch {
                    request,
                    peer,
                    keys,
                } => {
                    assert!(!self.is_closed, "a closed worker asks a peer");
                    assert!(!keys.is_empty() && *peer != *HERE);
                    assert!(self.asked.iter().all(|(other, ..)| *other != request));
                    let asked = self.asked.iter().filter(|(_, other, _)| *other == peer);
                    assert!(asked.count() < 2, "a peer has too many requests");
                    self.asked.push((request, peer, keys));
                }
                Action::Wake { event, .. } => self.timers.push(*event),
                Action::Send(message) => {
                    sent(&vec![*message]);
                }
                Action::Forget(key) => {
                    self.store.remove(&key);
                }
                // Pending requests may end at any time anyway.
                Action::Cancel(_)
                | Action::Disconnect(_)
                | Action::Report(_)
                | Action::Rejoin(_) => {}
            }
        }
        self.state.check();
        assert_eq!(self.state.in_memory(), self.store);
        let running: BTreeSet<&Key> = self.running.iter().collect();
        assert_eq!(running.len(), self.running.len(), "a task executes twice");
        assert!(self.state.executing().map(|(key, _)| key).eq(running));
    }

    fn batch(&mut self, batch: Vec<ToWorker>) {
        self.handle(batch.into_iter().map(WorkerInput::FromScheduler));
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        let message = match choices.below(24) {
            0..=3 => {
                let dependencies = choices.who_has();
                let sizes = dependencies.iter().map(|(key, _)| key.clone());
                // A peer that sends much may be asked for more.
                let nbytes = sizes.map(|key| (key, u64::from(choices.byte()) * 100_000));
                let nbytes = nbytes.collect();
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
                nbytes: Some([(choices.key(), choices.u64())].into_iter().collect()),
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
                self.executed(index, choices.below(4) != 0);
                return;
            }
            14 => {
                let index = choices.byte().into();
                let lost = choices.keys();
                if let Some(key) = take(&mut self.running, index) {
                    self.handle([match lost.is_empty() {
                        true => WorkerInput::Reschedule(key),
                        false => WorkerInput::InputsLost { key, lost },
                    }]);
                }
                return;
            }
            15..=17 => {
                let index = choices.byte().into();
                let answer = match choices.below(6) {
                    0 => Reply::Busy,
                    1 => Reply::Gone,
                    _ => Reply::Data(choices.byte()),
                };
                self.answered(index, answer);
                return;
            }
            18 => {
                let timer = take(&mut self.timers, choices.byte().into());
                return self.handle(timer);
            }
            19 => return self.handle([WorkerInput::Lost(choices.keys())]),
            20 => {
                let stored = self.store(choices.keys());
                return self.handle([WorkerInput::Stored(stored)]);
            }
            21 => {
                let choice = choices.byte();
                let is_on = choice & 1 == 1;
                let event = match choice {
                    0..=191 => WorkerInput::Paused(is_on),
                    192..=207 => WorkerInput::Watched(is_on),
                    208..=223 => WorkerInput::Spilled {
                        key: choices.key(),
                        len: choices.u64(),
                    },
                    224..=227 => WorkerInput::ClockOffset(f64::from(choices.u16())),
                    228..=251 => {
                        self.now += Duration::from_millis(choices.u16().into());
                        return;
                    }
                    _ => return self.close(),
                };
                return self.handle([event]);
            }
            22 => return self.handle([WorkerInput::StoreFull(choices.byte() & 1 == 1)]),
            _ => {
                if let Ok(batch) = ToWorker::decode_batch(&choices.raw()) {
                    self.batch(batch);
                }
                return;
            }
        };
        self.batch(sent(&vec![message]));
    }

    fn close(&mut self) {
        self.handle([WorkerInput::Close]);
        self.is_closed = true;
    }

    /// Ends one of the executing tasks. Returns `false` if there is none.
    fn executed(&mut self, index: usize, is_good: bool) -> bool {
        let Some(key) = take(&mut self.running, index) else {
            return false;
        };
        let outcome = match is_good {
            true => {
                self.store.insert(key.clone());
                Ok(description())
            }
            false => Err(Box::new(Failure {
                exception: Value::from("an exception"),
                traceback: Value::None,
                exception_text: String::new(),
                traceback_text: String::new(),
            })),
        };
        self.handle([WorkerInput::Executed(Executed {
            key,
            outcome,
            start: Duration::ZERO,
            stop: self.now,
            steps: Vec::new(),
            thread: None,
        })]);
        true
    }

    /// Answers one of the requests for data. Returns `false` if there is none.
    fn answered(&mut self, index: usize, reply: Reply) -> bool {
        let Some((request, _, keys)) = take(&mut self.asked, index) else {
            return false;
        };
        let answer = match reply {
            Reply::Busy => Answer::Busy,
            Reply::Gone => Answer::Gone,
            Reply::Data(which) => {
                let keys = keys.into_iter().enumerate();
                let found = keys.filter(|(position, _)| which >> (position % 8) & 1 == 1);
                Answer::Data(self.store(found.map(|(_, key)| key)))
            }
        };
        self.handle([WorkerInput::Fetched(Fetched {
            request,
            answer,
            start: Duration::ZERO,
            stop: self.now,
        })]);
        true
    }

    /// Puts data into the store.
    fn store(&mut self, keys: impl IntoIterator<Item = Key>) -> Vec<(Key, Description)> {
        let keys: Vec<Key> = keys.into_iter().collect();
        self.store.extend(keys.iter().cloned());
        keys.into_iter().map(|key| (key, description())).collect()
    }

    /// Frees everything and completes all operations.
    fn clear(mut self) {
        let closing = WorkerStatusChange {
            status: WorkerStatus::Closing,
            ..WorkerStatusChange::default()
        };
        self.batch(vec![closing.into()]);
        for _ in 0..2 {
            let message = FreeKeys {
                keys: Keys(self.state.keys()),
                ..FreeKeys::default()
            };
            self.batch(vec![message.into()]);
            while self.executed(0, true) {}
            while self.answered(0, Reply::Gone) {}
        }
        assert_eq!(self.state.counts().collect::<Vec<_>>(), []);
        assert!(self.store.is_empty());
    }
}

/// A peer's answer to a request for data.
enum Reply {
    /// The data of the keys whose bits are set.
    Data(u8),
    Busy,
    Gone,
}

fn take<T>(from: &mut Vec<T>, index: usize) -> Option<T> {
    let len = from.len();
    (len != 0).then(|| from.swap_remove(index % len))
}

fn description() -> Description {
    Description {
        nbytes: 1,
        ..Description::default()
    }
}
