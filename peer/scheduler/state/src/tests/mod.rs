//! Tests of single steps with typed messages.

use core::time::Duration;
use std::collections::BTreeMap;

use daskwire_messages::graph::{Argument, Graph, Task as Node};
use daskwire_messages::protocol::TaskState;
use daskwire_messages::protocol::WorkerStatus;
use daskwire_messages::protocol::*;
use daskwire_messages::{Key, RemoteError, Serialized, Value};

use super::event::SchedulerInput;
use super::simulation::add;
use super::*;

mod actors;
mod grace;
mod growth;
mod hostile;
mod journey;
mod loss;
mod no_worker;
mod operations;
mod order;
mod refusals;
mod replicas;
mod restored;
mod returns;
mod rules;
mod scaling;
mod shared;
mod shuffles;
mod submissions;
mod topics;
mod workers;

/// A state machine, and its actions.
struct Cluster {
    state: State,
    now: Duration,
    to_clients: BTreeMap<ClientId, Vec<ToClient>>,
    to_workers: BTreeMap<WorkerId, Vec<ToWorker>>,
    ended_clients: Vec<ClientId>,
    ended_workers: Vec<WorkerId>,
    notices: Vec<Notice>,
    /// Workers that get no more tasks until their messages are written.
    undrained: Vec<WorkerId>,
    new_runs: Vec<NewRun>,
    replies: BTreeMap<RequestId, Result<Value, RequestRefusal>>,
    /// Tasks that were sent and neither answered nor withdrawn.
    running: BTreeMap<(WorkerId, Key), ComputeTask>,
    last_id: u64,
}

impl Cluster {
    fn new() -> Self {
        Self {
            state: State::new(Policy::default()),
            now: Duration::ZERO,
            to_clients: BTreeMap::new(),
            to_workers: BTreeMap::new(),
            ended_clients: Vec::new(),
            ended_workers: Vec::new(),
            notices: Vec::new(),
            undrained: Vec::new(),
            new_runs: Vec::new(),
            replies: BTreeMap::new(),
            running: BTreeMap::new(),
            last_id: 0,
        }
    }

    /// Handles an event, collects the actions, and checks the state.
    fn handle(&mut self, event: SchedulerInput) {
        let actions = self.state.handle(self.now, event);
        self.state.check();
        self.act(actions);
        self.proceed();
    }

    /// Completes what was left of events.
    fn proceed(&mut self) {
        while self.state.is_pending() {
            let actions = self.state.proceed(self.now);
            self.state.check();
            self.act(actions);
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::NotifyDrained(id) => self.undrained.push(id),
                Action::ToClient(id, message) => {
                    self.to_clients.entry(id).or_default().push(message);
                }
                Action::ToWorker(id, message) => {
                    match &message {
                        ToWorker::ComputeTask(task) => {
                            self.running.insert((id, task.key.clone()), task.clone());
                        }
                        ToWorker::FreeKeys(message) => {
                            for key in &message.keys {
                                self.running.remove(&(id, key.clone()));
                            }
                        }
                        _ => {}
                    }
                    self.to_workers.entry(id).or_default().push(message);
                }
                Action::Reply(id, reply) => {
                    assert!(self.replies.insert(id, reply).is_none());
                }
                Action::CreateRun(run) => self.new_runs.push(*run),
                Action::Notice(notice) => self.notices.push(notice),
                Action::EndClient(id) => self.ended_clients.push(id),
                Action::EndWorker(id) => self.ended_workers.push(id),
                Action::AcceptWorker { .. }
                | Action::RefuseWorker(..)
                | Action::NotifyClientDrained(_)
                | Action::Published { .. }
                | Action::Task(_)
                | Action::TaskEnded(_) => {}
            }
        }
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Registers a worker.
    fn join(&mut self, registration: RegisterWorker) -> Result<WorkerId, WorkerRefusal> {
        let id = WorkerId(self.next_id());
        let registration = Box::new(registration);
        let joined = SchedulerInput::WorkerJoined { id, registration };
        let mut actions = self.state.handle(self.now, joined);
        self.state.check();
        match actions.remove(0) {
            Action::AcceptWorker { .. } => {
                self.act(actions);
                self.proceed();
                Ok(id)
            }
            Action::RefuseWorker(_, refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    fn worker(&mut self, address: &str, threads: u64) -> WorkerId {
        self.worker_with(address, threads, &[])
    }

    fn worker_with(&mut self, address: &str, threads: u64, has: &[(&str, f64)]) -> WorkerId {
        let worker = RegisterWorker {
            extra_information: rust_worker(),
            address: address.to_owned(),
            name: Value::from(address),
            status: WorkerStatus::Running,
            nthreads: threads,
            resources: has
                .iter()
                .map(|(name, amount)| ((*name).to_owned(), *amount))
                .collect(),
            ..RegisterWorker::default()
        };
        self.join(worker).expect("it is new")
    }

    fn lose_worker(&mut self, id: WorkerId) {
        self.running.retain(|(on, _), _| *on != id);
        self.handle(SchedulerInput::WorkerLeft(id));
    }

    fn client(&mut self, name: &str) -> ClientId {
        let id = ClientId(self.next_id());
        let name = name.to_owned();
        self.handle(SchedulerInput::ClientJoined {
            id,
            name,
            versions: Value::None,
            returning: None,
        });
        self.to_clients.clear();
        id
    }

    fn send(&mut self, client: ClientId, message: impl Into<FromClient>) {
        self.handle(SchedulerInput::FromClient(client, message.into()));
    }

    fn report(&mut self, worker: WorkerId, message: impl Into<FromWorker>) {
        self.handle(SchedulerInput::FromWorker(worker, message.into()));
    }

    fn submit(&mut self, client: ClientId, tasks: impl IntoIterator<Item = Node>, keys: &[&str]) {
        self.submit_with(client, tasks, keys, &[]);
    }

    fn submit_with(
        &mut self,
        client: ClientId,
        tasks: impl IntoIterator<Item = Node>,
        keys: &[&str],
        annotations: &[(&str, Value)],
    ) {
        let graph: Graph = tasks.into_iter().collect();
        let message = UpdateGraph {
            expr_ser: graph.to_expression().expect("plain values"),
            keys: keys.iter().copied().collect(),
            annotations: Some(Value::dict(annotations.iter().cloned())),
            ..UpdateGraph::default()
        };
        self.send(client, message);
    }

    fn release(&mut self, client: ClientId, keys: &[&str]) {
        let message = ClientReleasesKeys {
            keys: keys.iter().copied().collect(),
            ..ClientReleasesKeys::default()
        };
        self.send(client, message);
    }

    fn scatter(&mut self, client: &str, key: &str, nbytes: u64, workers: &[&str]) {
        let key = Key::from(key);
        let workers = workers.iter().map(|worker| (*worker).to_owned());
        self.handle(SchedulerInput::DataStored {
            client: Some(client.to_owned()),
            who_has: vec![(key.clone(), workers.collect())],
            nbytes: vec![(key, nbytes)],
        });
    }

    fn finish(&mut self, worker: WorkerId, key: &str) {
        self.finish_with(worker, key, 28);
    }

    fn finish_with(&mut self, worker: WorkerId, key: &str, nbytes: u64) {
        let key = Key::from(key);
        let task = self.running.remove(&(worker, key.clone()));
        let run_id = task.expect("it was sent there").run_id;
        let message = TaskFinished {
            key,
            run_id,
            nbytes,
            ..TaskFinished::default()
        };
        self.report(worker, message);
    }

    /// Reports a result of a task that has run for this time.
    fn finish_after(&mut self, worker: WorkerId, key: &str, seconds: f64) {
        let key = Key::from(key);
        let task = self.running.remove(&(worker, key.clone()));
        let message = TaskFinished {
            key,
            run_id: task.expect("it was sent there").run_id,
            startstops: vec![StartStop {
                action: "compute".to_owned(),
                start: 10.0,
                stop: 10.0 + seconds,
                ..StartStop::default()
            }],
            ..TaskFinished::default()
        };
        self.report(worker, message);
    }

    fn err(&mut self, worker: WorkerId, key: &str, message: &str) {
        let key = Key::from(key);
        let task = self.running.remove(&(worker, key.clone()));
        let message = TaskErred {
            key,
            run_id: task.expect("it was sent there").run_id,
            exception: Value::from(message),
            ..TaskErred::default()
        };
        self.report(worker, message);
    }

    fn pass(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
        self.handle(SchedulerInput::Tick);
    }

    /// The worker that a pending task was sent to.
    fn assigned_to(&self, key: &str) -> Option<WorkerId> {
        let key = Key::from(key);
        let mut places = self.running.keys().filter(|(_, running)| *running == key);
        let place = places.next().map(|(on, _)| *on);
        assert!(places.next().is_none(), "{key} runs twice");
        place
    }

    fn status(&self, key: &str) -> Option<TaskState> {
        self.state.status(&Key::from(key))
    }

    /// Returns the messages to a client since the last call: op and keys.
    fn sent_to_client(&mut self, client: ClientId) -> Vec<String> {
        let messages = self.to_clients.remove(&client).unwrap_or_default();
        let lines = messages.into_iter().map(|message| {
            let op = message.op().to_owned();
            match message {
                ToClient::KeyInMemory(message) => format!("{op} {}", message.key),
                ToClient::TaskErredForClient(message) => {
                    let error = RemoteError::of_fields(&message.exception, None);
                    format!("{op} {} {error}", message.key)
                }
                ToClient::LostData(message) => format!("{op} {}", message.key),
                ToClient::TaskRetried(message) => format!("{op} {}", message.key),
                ToClient::CancelledKeys(message) => {
                    let keys: Vec<String> = message.keys.iter().map(ToString::to_string).collect();
                    format!(
                        "{op} {} {}",
                        keys.join(" "),
                        message.reason.unwrap_or_default()
                    )
                }
                _ => op,
            }
        });
        lines.collect()
    }

    /// Returns the messages to a worker since the last call.
    fn sent_to_worker(&mut self, worker: WorkerId) -> Vec<String> {
        let messages = self.to_workers.remove(&worker).unwrap_or_default();
        let lines = messages.into_iter().map(|message| {
            let op = message.op().to_owned();
            let all = |keys: &Keys| {
                let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
                format!("{op} {}", keys.join(" "))
            };
            match message {
                ToWorker::ComputeTask(message) => format!("{op} {}", message.key),
                ToWorker::FreeKeys(message) => all(&message.keys),
                ToWorker::RemoveReplicas(message) => all(&message.keys),
                ToWorker::RemoveWorker(message) => format!("{op} {}", message.worker),
                ToWorker::StealRequest(message) => format!("{op} {}", message.key),
                _ => op,
            }
        });
        lines.collect()
    }

    /// Asserts that no tasks are left, here and on workers.
    fn assert_empty(&mut self) {
        self.pass(500);
        assert_eq!(self.state.task_count(), 0);
        assert!(self.state.by_key.len() == 0 && self.state.no_worker_count == 0);
        for worker in self.state.workers.values() {
            assert!(worker.has.is_empty() && worker.processing.is_empty());
            assert!(worker.deletions.is_empty() && worker.queue.is_empty());
        }
    }
}
