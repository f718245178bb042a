//! Tests that drive the state machine directly.

mod compute;
mod fetch;
mod growth;
mod random;
mod release;
mod returns;
mod story;

use std::sync::Arc;

use daskwire_messages::Value;
use daskwire_messages::protocol::{
    AcquireReplicas, ComputeTask, FreeKeys, Keys, RefreshWhoHas, RemoveReplicas, RemoveWorker,
    StealRequest, WorkerStatus,
};

use super::task::MAX_HOLDERS;
use super::*;

const HERE: &str = "tcp://127.0.0.1:1";
const A: &str = "tcp://127.0.0.1:10";
const B: &str = "tcp://127.0.0.1:11";
const C: &str = "tcp://127.0.0.1:12";

std::thread_local! {
    /// The steps of work so far: comparisons of priorities, and others that a loop counts.
    pub(super) static STEPS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// A state machine, with short descriptions of events and actions.
struct Worker(State);

impl Worker {
    fn new(nthreads: usize) -> Self {
        let limits = Limits::default().with_nthreads(nthreads);
        let resources = [("GPU".to_owned(), 1.0)];
        Self(State::new(HERE, limits, resources))
    }

    fn events(&mut self, events: Vec<WorkerInput>) -> Vec<String> {
        let actions = self.0.handle_all(Duration::from_millis(1500), events);
        self.0.check();
        actions.iter().map(show).collect()
    }

    fn event(&mut self, event: WorkerInput) -> Vec<String> {
        self.events(vec![event])
    }

    fn message(&mut self, message: impl Into<ToWorker>) -> Vec<String> {
        self.event(WorkerInput::FromScheduler(message.into()))
    }

    /// Handles a batch of messages.
    fn batch(&mut self, messages: Vec<ToWorker>) -> Vec<String> {
        self.events(
            messages
                .into_iter()
                .map(WorkerInput::FromScheduler)
                .collect(),
        )
    }

    fn free(&mut self, keys: &[&str]) -> Vec<String> {
        self.message(free(keys))
    }

    fn executed(&mut self, key: &str) -> Vec<String> {
        self.event(WorkerInput::Executed(Executed {
            key: key.into(),
            outcome: Ok(description(28)),
            start: Duration::from_secs(1),
            stop: Duration::from_secs(2),
            steps: Vec::new(),
            thread: None,
        }))
    }

    fn failed(&mut self, key: &str) -> Vec<String> {
        self.event(WorkerInput::Executed(failure(key)))
    }

    fn unsupported(&mut self, key: &str) -> Vec<String> {
        self.event(WorkerInput::Unsupported {
            executed: failure(key),
            reason: None,
        })
    }

    /// Answers the first pending request to a peer.
    fn fetched(&mut self, peer: &str, answer: Answer) -> Vec<String> {
        let mut requests = self.0.requests.iter();
        let first = requests.find(|(_, request)| *request.peer == *peer);
        self.event(WorkerInput::Fetched(Fetched {
            request: first.map_or(u64::MAX, |(number, _)| *number),
            answer,
            start: Duration::from_secs(1),
            stop: Duration::from_secs(2),
        }))
    }

    fn received(&mut self, peer: &str, keys: &[&str]) -> Vec<String> {
        let data = keys.iter().map(|key| (Key::from(*key), description(10)));
        self.fetched(peer, Answer::Data(data.collect()))
    }

    fn stored(&mut self, key: &str) -> Vec<String> {
        self.event(WorkerInput::Stored(vec![(key.into(), description(10))]))
    }

    fn steal(&mut self, key: &str) -> Vec<String> {
        self.message(StealRequest {
            key: key.into(),
            stimulus_id: "steal".to_owned(),
            ..StealRequest::default()
        })
    }

    fn stages(&self) -> String {
        let counts = self.0.counts();
        let counts: Vec<String> = counts
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        counts.join(", ")
    }
}

fn failure(key: &str) -> Executed {
    Executed {
        key: key.into(),
        outcome: Err(Box::new(Failure {
            exception: Value::from("boom"),
            traceback: Value::None,
            exception_text: "boom".to_owned(),
            traceback_text: String::new(),
        })),
        start: Duration::from_secs(1),
        stop: Duration::from_secs(2),
        steps: Vec::new(),
        thread: None,
    }
}

fn show(action: &Action) -> String {
    let list = |keys: &[Key]| {
        let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
        keys.join(" ")
    };
    match action {
        Action::Report(event) => format!("{} {event}", event.key),
        Action::Execute(run) if run.dependencies.is_empty() => format!("execute {}", run.key),
        Action::Execute(run) => format!("execute {} with {}", run.key, list(&run.dependencies)),
        Action::Fetch { peer, keys, .. } => format!("fetch {} from {}", list(keys), short(peer)),
        Action::Disconnect(peer) => format!("disconnect {}", short(peer)),
        Action::Forget(key) => format!("forget {key}"),
        Action::Rejoin(key) => format!("rejoin {key}"),
        Action::Cancel(key) => format!("cancel {key}"),
        Action::Wake { after, event } => {
            let event = match &**event {
                WorkerInput::PeerAvailable(peer) => format!("{} is available", short(peer)),
                WorkerInput::Search => "search".to_owned(),
                WorkerInput::GiveBack(key) => format!("give back {key}"),
                other => format!("{other:?}"),
            };
            format!("after {after:?}: {event}")
        }
        Action::Send(message) => match &**message {
            FromWorker::TaskFinished(message) => {
                let done: Vec<String> = message
                    .startstops
                    .iter()
                    .map(|startstop| match &startstop.source {
                        Some(source) => format!("{} {}", startstop.action, short(source)),
                        None => startstop.action.clone(),
                    })
                    .collect();
                let run = format!("{} run {}", message.key, message.run_id);
                format!("finished {run} ({})", done.join(", "))
            }
            FromWorker::TaskErred(message) => {
                format!("erred {} run {}", message.key, message.run_id)
            }
            FromWorker::AddKeys(message) => format!("add-keys {}", list(&message.keys)),
            FromWorker::ReleaseWorkerData(message) => {
                format!("released {} for {}", message.key, message.stimulus_id)
            }
            FromWorker::StealResponse(message) => {
                let state = message.state.0.as_deref().unwrap_or("nil");
                format!("{} {}: {state}", message.stimulus_id, message.key)
            }
            FromWorker::RequestRefreshWhoHas(message) => {
                format!("where is {}", list(&message.keys))
            }
            FromWorker::Reschedule(message) => format!("reschedule {}", message.key),
            FromWorker::LongRunning(message) => {
                let time = message.compute_duration.0;
                format!("long {} run {} after {time:?}", message.key, message.run_id)
            }
            FromWorker::WorkerStatusChange(message) => format!("status {}", message.status),
            other => format!("{other:?}"),
        },
    }
}

fn short(peer: &str) -> &str {
    match peer {
        A => "A",
        B => "B",
        C => "C",
        other => other,
    }
}

fn description(nbytes: u64) -> Description {
    Description {
        nbytes,
        ..Description::default()
    }
}

/// A task without dependencies.
fn task(key: &str) -> ComputeTask {
    ComputeTask {
        key: key.into(),
        priority: vec![0.0, 1.0, 0.0],
        ..ComputeTask::default()
    }
}

/// A task with dependencies of 10 bytes, and their holders.
fn task_with(key: &str, dependencies: &[(&str, &[&str])]) -> ComputeTask {
    let who_has = dependencies.iter().map(|(key, holders)| {
        let holders = holders.iter().map(|holder| (*holder).to_owned());
        (Key::from(*key), holders.collect())
    });
    ComputeTask {
        who_has: who_has.collect(),
        nbytes: dependencies
            .iter()
            .map(|(key, _)| (Key::from(*key), 10))
            .collect(),
        ..task(key)
    }
}

fn run(run_id: i64, task: ComputeTask) -> ComputeTask {
    ComputeTask { run_id, ..task }
}

fn free(keys: &[&str]) -> FreeKeys {
    FreeKeys {
        keys: keys.iter().copied().collect(),
        stimulus_id: "free".to_owned(),
        ..FreeKeys::default()
    }
}

fn remove_replicas(keys: &[&str]) -> RemoveReplicas {
    RemoveReplicas {
        keys: keys.iter().copied().collect(),
        stimulus_id: "amm".to_owned(),
        ..RemoveReplicas::default()
    }
}

fn acquire(who_has: &[(&str, &[&str])]) -> AcquireReplicas {
    let task = task_with("", who_has);
    AcquireReplicas {
        who_has: task.who_has,
        nbytes: Some(task.nbytes),
        stimulus_id: "amm".to_owned(),
        ..AcquireReplicas::default()
    }
}

fn refresh(who_has: &[(&str, &[&str])]) -> RefreshWhoHas {
    RefreshWhoHas {
        who_has: task_with("", who_has).who_has,
        ..RefreshWhoHas::default()
    }
}

fn remove_worker(worker: &str) -> RemoveWorker {
    RemoveWorker {
        worker: worker.to_owned(),
        ..RemoveWorker::default()
    }
}

fn status(status: &str) -> WorkerStatusChange {
    WorkerStatusChange {
        status: status.into(),
        ..WorkerStatusChange::default()
    }
}
