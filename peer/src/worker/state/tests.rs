use std::sync::Arc;

use super::task::MAX_HOLDERS;
use super::*;
use crate::Value;
use crate::protocol::{
    AcquireReplicas, ComputeTask, FreeKeys, Keys, RefreshWhoHas, RemoveReplicas, RemoveWorker,
    StealRequest, WorkerStatus,
};

const HERE: &str = "tcp://127.0.0.1:1";
const A: &str = "tcp://127.0.0.1:10";
const B: &str = "tcp://127.0.0.1:11";

/// A state machine, with short descriptions of events and actions.
struct Worker(State);

impl Worker {
    fn new(nthreads: usize) -> Self {
        let limits = Limits {
            nthreads,
            ..Limits::default()
        };
        let resources = [("GPU".to_owned(), 1.0)];
        Self(State::new(HERE, limits, resources))
    }

    fn events(&mut self, events: Vec<Event>) -> Vec<String> {
        let actions = self.0.handle_all(Duration::from_millis(1500), events);
        self.0.check();
        actions.iter().map(show).collect()
    }

    fn event(&mut self, event: Event) -> Vec<String> {
        self.events(vec![event])
    }

    fn message(&mut self, message: impl Into<ToWorker>) -> Vec<String> {
        self.event(Event::FromScheduler(message.into()))
    }

    /// Handles a batch of messages.
    fn batch(&mut self, messages: Vec<ToWorker>) -> Vec<String> {
        self.events(messages.into_iter().map(Event::FromScheduler).collect())
    }

    fn free(&mut self, keys: &[&str]) -> Vec<String> {
        self.message(free(keys))
    }

    fn executed(&mut self, key: &str) -> Vec<String> {
        self.event(Event::Executed(Executed {
            key: key.into(),
            outcome: Ok(description(28)),
            start: Duration::from_secs(1),
            stop: Duration::from_secs(2),
            steps: Vec::new(),
            thread: None,
        }))
    }

    fn failed(&mut self, key: &str) -> Vec<String> {
        self.event(Event::Executed(Executed {
            key: key.into(),
            outcome: Err(Box::new(Failure {
                exception: Value::from("boom"),
                exception_text: "boom".to_owned(),
                traceback_text: String::new(),
            })),
            start: Duration::from_secs(1),
            stop: Duration::from_secs(2),
            steps: Vec::new(),
            thread: None,
        }))
    }

    fn fetched(&mut self, peer: &str, answer: Answer) -> Vec<String> {
        self.event(Event::Fetched(Fetched {
            peer: peer.into(),
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
        self.event(Event::Stored(vec![(key.into(), description(10))]))
    }

    fn steal(&mut self, key: &str) -> Vec<String> {
        self.message(StealRequest {
            key: key.into(),
            stimulus_id: "steal".to_owned(),
            ..StealRequest::default()
        })
    }

    fn phases(&self) -> String {
        let counts = self.0.counts();
        let counts: Vec<String> = counts
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        counts.join(", ")
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
        Action::Fetch { peer, keys } => format!("fetch {} from {}", list(keys), short(peer)),
        Action::Disconnect(peer) => format!("disconnect {}", short(peer)),
        Action::Forget(key) => format!("forget {key}"),
        Action::Wake { after, event } => {
            let event = match &**event {
                Event::PeerAvailable(peer) => format!("{} is available", short(peer)),
                Event::Search => "search".to_owned(),
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
            FromWorker::WorkerStatusChange(message) => format!("status {}", message.status),
            other => format!("{other:?}"),
        },
    }
}

fn short(peer: &str) -> &str {
    match peer {
        A => "A",
        B => "B",
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

/// A task with dependencies of 10 bytes, and where they are.
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

#[test]
fn a_task_runs_and_its_result_is_kept_until_it_is_freed() {
    let mut worker = Worker::new(1);
    assert_eq!(worker.message(run(7, task("x"))), ["execute x"]);
    assert_eq!(worker.phases(), "executing 1");
    assert_eq!(worker.executed("x"), ["finished x run 7 (compute)"]);
    assert_eq!(worker.phases(), "memory 1");
    assert_eq!(
        worker.free(&["x", "unknown"]),
        ["forget x", "released x for free"]
    );
    assert_eq!(worker.phases(), "");
}

/// `Scheduler.stimulus_task_erred` of distributed 2025.4.0 to 2026.3.0 has
/// parameters without defaults: a scheduler removes a worker whose message lacks
/// one of them.
#[test]
fn task_erred_has_all_required_fields() {
    let mut worker = Worker::new(1);
    worker.message(run(1, task("x")));
    let failed = Event::Executed(Executed {
        key: "x".into(),
        outcome: Err(Box::new(
            crate::RemoteError::new("ValueError", "boom").to_failure(),
        )),
        start: Duration::from_secs(1),
        stop: Duration::from_secs(2),
        steps: Vec::new(),
        thread: None,
    });
    let actions = worker.0.handle(Duration::from_millis(1500), failed);
    let message = actions.into_iter().find_map(|action| match action {
        Action::Send(message) => Some(*message),
        _ => None,
    });
    let Some(FromWorker::TaskErred(message)) = message else {
        panic!("{message:?}");
    };
    assert_eq!((message.key, message.run_id), ("x".into(), 1));
    assert!(matches!(message.exception, Value::Serialized(_)));
    assert_eq!(
        message.exception_text.as_deref(),
        Some("ValueError('boom')")
    );
    assert_eq!(message.traceback, Some(Value::None));
    assert_eq!(message.traceback_text.as_deref(), Some(""));
    assert!(message.stimulus_id.starts_with("task-erred-"));
}

#[test]
fn a_task_that_fails_is_reported_and_can_be_tried_again() {
    let mut worker = Worker::new(1);
    worker.message(run(1, task("x")));
    assert_eq!(worker.failed("x"), ["erred x run 1"]);
    assert_eq!(worker.phases(), "error 1");
    assert_eq!(worker.message(run(2, task("x"))), ["execute x"]);
    assert_eq!(worker.executed("x"), ["finished x run 2 (compute)"]);
    worker.message(run(3, task("y")));
    worker.failed("y");
    assert_eq!(worker.free(&["y"]), [""; 0]);
    assert_eq!(worker.phases(), "memory 1");
}

#[test]
fn runs_most_urgent_task_first_and_latest_of_equals() {
    let mut worker = Worker::new(1);
    let priority = |key, numbers: [f64; 3]| {
        ToWorker::from(ComputeTask {
            priority: numbers.into(),
            ..task(key)
        })
    };
    let batch = vec![
        priority("late", [0.0, 2.0, 0.0]),
        priority("early", [0.0, 1.0, 5.0]),
        priority("first", [-1.0, 9.0, 0.0]),
        priority("equal", [0.0, 2.0, 0.0]),
    ];
    assert_eq!(worker.batch(batch), ["execute first"]);
    assert_eq!(worker.executed("first")[1..], ["execute early"]);
    assert_eq!(worker.executed("early")[1..], ["execute equal"]);
    assert_eq!(worker.executed("equal")[1..], ["execute late"]);
}

#[test]
fn runs_as_many_tasks_as_threads() {
    let mut worker = Worker::new(2);
    let batch = ["a", "b", "c"].map(|key| task(key).into()).into();
    assert_eq!(worker.batch(batch), ["execute c", "execute b"]);
    assert_eq!(worker.phases(), "ready 1, executing 2");
    assert_eq!(
        worker.executed("c"),
        ["finished c run 0 (compute)", "execute a"]
    );
}

#[test]
fn tasks_that_need_resources_wait_for_them() {
    let mut worker = Worker::new(3);
    let needing = |key| {
        ToWorker::from(ComputeTask {
            resource_restrictions: Nullable(Some(Value::dict([("GPU", 1.0)]))),
            ..task(key)
        })
    };
    let batch = vec![needing("g"), needing("h"), task("x").into()];
    assert_eq!(worker.batch(batch), ["execute x", "execute h"]);
    assert_eq!(worker.steal("g"), ["steal g: constrained"]);
    assert_eq!(worker.message(needing_gpu("g")), [""; 0]);
    assert_eq!(worker.executed("h")[1..], ["execute g"]);
    assert_eq!(worker.executed("g").len(), 1);
    assert_eq!(worker.message(needing_gpu("again")), ["execute again"]);
}

fn needing_gpu(key: &str) -> ComputeTask {
    ComputeTask {
        resource_restrictions: Nullable(Some(Value::dict([("GPU", 1)]))),
        ..task(key)
    }
}

#[test]
fn fetches_all_dependencies_of_one_peer_at_once() {
    let mut worker = Worker::new(1);
    let batch = vec![
        task_with("x", &[("a", &[A]), ("b", &[A])]).into(),
        task_with("y", &[("b", &[A]), ("c", &[B, HERE])]).into(),
    ];
    let actions = worker.batch(batch);
    assert_eq!(actions, ["fetch b a from A", "fetch c from B"]);
    assert_eq!(worker.phases(), "waiting 2, flight 3");
    assert_eq!(worker.received(B, &["c"]), ["add-keys c"]);
    assert_eq!(
        worker.received(A, &["a", "b"]),
        ["add-keys b a", "execute y with b c"]
    );
    assert_eq!(
        worker.executed("y"),
        [
            "finished y run 0 (transfer B, compute)",
            "execute x with a b"
        ]
    );
    assert_eq!(
        worker.executed("x"),
        ["finished x run 0 (transfer A, transfer A, compute)"]
    );
}

#[test]
fn requests_at_most_fifty_megabytes_at_once() {
    let mut worker = Worker::new(1);
    let mut large = task_with("x", &[("a", &[A]), ("b", &[A]), ("c", &[A])]);
    for (_, nbytes) in &mut large.nbytes {
        *nbytes = 30_000_000;
    }
    let first = worker.message(large);
    assert_eq!(first, ["fetch a from A"]);
    let mut huge = task_with("y", &[("d", &[B])]);
    huge.nbytes[0].1 = 1 << 40;
    assert_eq!(
        worker.message(huge),
        ["fetch d from B"],
        "a datum is not split"
    );
    assert_eq!(worker.received(A, &["a"]), ["add-keys a", "fetch b from A"]);
}

#[test]
fn bounds_the_number_of_concurrent_requests() {
    let mut worker = Worker::new(1);
    worker.0.limits.transfer_count = 2;
    let peers: Vec<String> = (0..3)
        .map(|n| format!("tcp://127.0.0.1:{}", n + 20))
        .collect();
    let keys = ["a", "b", "c"];
    let holders: Vec<[&str; 1]> = peers.iter().map(|peer| [peer.as_str()]).collect();
    let dependencies = keys.iter().zip(&holders);
    let dependencies: Vec<(&str, &[&str])> = dependencies
        .map(|(key, holder)| (*key, &holder[..]))
        .collect();
    assert_eq!(worker.message(task_with("x", &dependencies)).len(), 2);
    assert_eq!(worker.phases(), "waiting 1, fetch 1, flight 2");
    let more = worker.received(&peers[0], &["a"]);
    assert_eq!(more[1], format!("fetch c from {}", peers[2]));
}

#[test]
fn trying_failed_holders_takes_linear_time() {
    let steps = |count: usize| {
        let mut worker = Worker::new(1);
        let peers: Vec<String> = (0..count)
            .map(|n| format!("tcp://127.0.0.1:{}", n + 20))
            .collect();
        let holders: Vec<&str> = peers.iter().map(String::as_str).collect();
        let mut actions = worker.message(task_with("x", &[("a", &holders)]));
        let (mut asked, mut steps) = (0, 0);
        while let Some(peer) = actions
            .iter()
            .find_map(|action| action.strip_prefix("fetch a from "))
        {
            asked += 1;
            // Each transfer looks at all peers, and the key is queued at each.
            steps += worker.0.peers.len();
            actions = worker.fetched(peer, Answer::Gone);
        }
        assert_eq!(asked, count);
        assert_eq!(worker.phases(), "waiting 1, missing 1");
        steps
    };
    let (few, many) = (steps(200), steps(400));
    assert!(
        many <= 2 * few + MAX_HOLDERS * MAX_HOLDERS,
        "{many} steps for twice {few}"
    );
}

#[test]
fn retries_busy_peers_later() {
    let mut worker = Worker::new(1);
    worker.message(task_with("x", &[("a", &[A])]));
    assert_eq!(
        worker.fetched(A, Answer::Busy),
        ["after 150ms: A is available"]
    );
    assert_eq!(worker.phases(), "waiting 1, fetch 1");
    assert_eq!(
        worker.event(Event::PeerAvailable(A.into())),
        ["fetch a from A"]
    );
    // Another holder is asked in the meantime.
    assert_eq!(
        worker.message(task_with("y", &[("b", &[A, B])])),
        ["fetch b from B"]
    );
    worker.fetched(A, Answer::Busy);
    assert_eq!(worker.received(B, &["b"]).len(), 2);
}

#[test]
fn tries_another_holder_if_one_lacks_the_data() {
    let mut worker = Worker::new(1);
    let first = worker.message(task_with("x", &[("a", &[A, B])]));
    let (one, other) = if first == ["fetch a from A"] {
        (A, B)
    } else {
        (B, A)
    };
    let again = worker.received(one, &[]);
    assert_eq!(again, [format!("fetch a from {}", short(other))]);
    assert_eq!(
        worker.received(other, &[]),
        ["where is a", "after 1s: search"]
    );
    assert_eq!(worker.phases(), "waiting 1, missing 1");
    // Once a second, until a holder is known.
    assert_eq!(
        worker.event(Event::Search),
        ["where is a", "after 1s: search"]
    );
    assert_eq!(worker.message(refresh(&[("a", &[])])), [""; 0]);
    assert_eq!(worker.message(refresh(&[("a", &[HERE])])), [""; 0]);
    assert_eq!(worker.message(refresh(&[("a", &[one])])).len(), 1);
    assert_eq!(worker.event(Event::Search), [""; 0]);
    assert_eq!(
        worker.received(one, &["a"]),
        ["add-keys a", "execute x with a"]
    );
}

#[test]
fn unreachable_peers_are_no_holders() {
    let mut worker = Worker::new(1);
    let batch = vec![
        task_with("x", &[("a", &[A])]).into(),
        task_with("y", &[("b", &[A]), ("c", &[A, B])]).into(),
    ];
    worker.batch(batch);
    let actions = worker.fetched(A, Answer::Gone);
    assert!(actions.contains(&"where is a b".to_owned()), "{actions:?}");
    assert_eq!(worker.phases(), "waiting 2, flight 1, missing 2");
}

#[test]
fn does_not_ask_workers_that_left() {
    let mut worker = Worker::new(1);
    worker.0.limits.transfer_count = 1;
    worker.message(task_with("x", &[("a", &[B])]));
    worker.message(task_with("y", &[("b", &[A])]));
    assert_eq!(
        worker.message(remove_worker(A)),
        ["disconnect A", "where is b", "after 1s: search"]
    );
    assert_eq!(
        worker.received(B, &["a"]),
        ["add-keys a", "execute x with a"]
    );
}

#[test]
fn request_to_a_worker_that_left_ends_and_others_are_asked() {
    let mut worker = Worker::new(1);
    let needs = task_with("x", &[("a", &[A]), ("b", &[A])]);
    assert_eq!(worker.message(needs), ["fetch a b from A"]);
    assert_eq!(worker.message(refresh(&[("a", &[A, B])])), [""; 0]);
    assert_eq!(worker.message(remove_worker(A)), ["disconnect A"]);
    assert_eq!(
        worker.fetched(A, Answer::Gone),
        ["fetch a from B", "where is b", "after 1s: search"]
    );
}

#[test]
fn a_dependency_that_is_listed_twice_counts_once() {
    let mut worker = Worker::new(1);
    let needs = task_with("x", &[("a", &[A]), ("a", &[A])]);
    assert_eq!(worker.message(needs), ["fetch a from A"]);
    assert_eq!(
        worker.received(A, &["a"]),
        ["add-keys a", "execute x with a"]
    );
    let needs = task_with("y", &[("a", &[]), ("b", &[B, B]), ("b", &[B]), ("a", &[])]);
    worker.executed("x");
    assert_eq!(worker.message(needs), ["fetch b from B"]);
    assert_eq!(
        worker.received(B, &["b"]),
        ["add-keys b", "execute y with a b"]
    );
}

#[test]
fn reports_results_in_memory_again() {
    let mut worker = Worker::new(1);
    worker.message(run(1, task("x")));
    worker.executed("x");
    assert_eq!(worker.message(run(2, task("x"))), ["finished x run 2 ()"]);
    // In flight: the data that arrives is the result.
    worker.message(task_with("y", &[("a", &[A])]));
    assert_eq!(worker.message(run(5, task("a"))), [""; 0]);
    assert_eq!(worker.steal("a"), ["steal a: resumed"]);
    assert_eq!(
        worker.received(A, &["a"]),
        ["finished a run 5 (transfer A)", "execute y with a"]
    );
}

#[test]
fn computes_requested_data_that_does_not_arrive() {
    let mut worker = Worker::new(1);
    worker.message(task_with("y", &[("a", &[A])]));
    worker.message(run(5, task_with("a", &[("b", &[B])])));
    assert_eq!(worker.received(A, &[]), ["fetch b from B"]);
    assert_eq!(
        worker.received(B, &["b"]),
        ["add-keys b", "execute a with b"]
    );
    assert_eq!(
        worker.executed("a"),
        ["finished a run 5 (transfer B, compute)", "execute y with a"]
    );
}

#[test]
fn reports_the_latest_run_id() {
    let mut worker = Worker::new(1);
    let batch = vec![task("other").into(), task("x").into()];
    assert_eq!(worker.batch(batch), ["execute x"]);
    worker.message(run(1, task("x")));
    worker.message(run(2, task("other")));
    assert_eq!(
        worker.executed("x"),
        ["finished x run 1 (compute)", "execute other"]
    );
    worker.message(run(3, task("other")));
    assert_eq!(worker.executed("other"), ["finished other run 3 (compute)"]);
    worker.message(run(1, task_with("waits", &[("a", &[A])])));
    worker.message(run(4, task_with("waits", &[("a", &[A])])));
    worker.received(A, &["a"]);
    assert_eq!(
        worker.executed("waits"),
        ["finished waits run 4 (transfer A, compute)"]
    );
}

#[test]
fn keys_are_freed_in_any_state() {
    let mut worker = Worker::new(1);
    let batch = vec![
        task("ready").into(),
        task("executing").into(),
        task_with("waiting", &[("flight", &[A]), ("missing", &[])]).into(),
        task_with("waiting too", &[("fetch", &[A])]).into(),
        status("paused").into(),
    ];
    worker.0.limits.transfer_count = 1;
    worker.batch(vec![task_with("w", &[("flight", &[A])]).into()]);
    worker.batch(batch);
    worker.message(status("running"));
    worker.message(task("executing"));
    assert_eq!(
        worker.phases(),
        "waiting 3, ready 1, executing 1, fetch 1, flight 1, missing 1"
    );
    let keys = ["waiting", "waiting too", "w", "ready", "executing"];
    assert_eq!(worker.free(&keys), [""; 0]);
    assert_eq!(worker.phases(), "executing 1, flight 1");
    assert_eq!(worker.received(A, &["flight"]), ["forget flight"]);
    assert_eq!(worker.executed("executing"), ["forget executing"]);
    assert_eq!(worker.phases(), "");
    assert!(worker.0.peers.is_empty());
}

#[test]
fn task_freed_while_executing_may_be_requested_again() {
    let mut worker = Worker::new(1);
    worker.message(run(1, task("x")));
    worker.free(&["x"]);
    assert_eq!(worker.steal("x"), ["steal x: cancelled"]);
    assert_eq!(
        worker.message(run(2, task("x"))),
        [""; 0],
        "already executing"
    );
    assert_eq!(worker.executed("x"), ["finished x run 2 (compute)"]);
    // As a dependency of another task
    worker.message(task("y"));
    worker.free(&["y"]);
    worker.message(task_with("z", &[("y", &[A])]));
    assert_eq!(worker.executed("y"), ["add-keys y", "execute z with y"]);
    worker.executed("z");
    worker.message(task("v"));
    worker.free(&["v"]);
    worker.message(task_with("w", &[("v", &[A])]));
    assert_eq!(worker.failed("v"), ["where is v", "after 1s: search"]);
}

#[test]
fn fetches_freed_data_that_local_tasks_need() {
    let mut worker = Worker::new(1);
    worker.message(task("a"));
    worker.executed("a");
    let batch = vec![
        task("runs").into(),
        task_with("x", &[("a", &[HERE])]).into(),
    ];
    assert_eq!(worker.batch(batch), ["execute x with a"]);
    worker.message(task_with("y", &[("a", &[HERE])]));
    assert_eq!(worker.steal("y"), ["steal y: ready"]);
    worker.message(task_with("y", &[("a", &[HERE])]));
    // The executing task holds its input; the ready one does not.
    assert_eq!(
        worker.free(&["a"]),
        [
            "forget a",
            "released a for free",
            "where is a",
            "after 1s: search"
        ]
    );
    assert_eq!(worker.steal("y"), ["steal y: waiting"]);
    assert_eq!(worker.phases(), "ready 1, executing 1");
}

#[test]
fn answers_steal_requests_with_task_states() {
    let mut worker = Worker::new(1);
    assert_eq!(worker.steal("nobody"), ["steal nobody: nil"]);
    worker.message(task("runs"));
    assert_eq!(worker.steal("runs"), ["steal runs: executing"]);
    worker.message(task("ready"));
    assert_eq!(worker.steal("ready"), ["steal ready: ready"]);
    assert_eq!(worker.steal("ready"), ["steal ready: nil"], "given back");
    worker.message(task_with("waits", &[("a", &[A])]));
    assert_eq!(worker.steal("a"), ["steal a: nil"]);
    assert_eq!(worker.steal("waits"), ["steal waits: waiting"]);
    worker.executed("runs");
    assert_eq!(worker.steal("runs"), ["steal runs: memory"]);
    worker.message(task("fails"));
    worker.failed("fails");
    assert_eq!(worker.steal("fails"), ["steal fails: nil"]);
}

#[test]
fn replicas_are_fetched_and_removed_unless_they_are_needed() {
    let mut worker = Worker::new(1);
    assert_eq!(worker.message(acquire(&[("a", &[A])])), ["fetch a from A"]);
    assert_eq!(worker.received(A, &["a"]), ["add-keys a"]);
    assert_eq!(
        worker.message(acquire(&[("a", &[A])])),
        [""; 0],
        "already in memory"
    );
    worker.message(task("runs"));
    worker.message(task_with("x", &[("a", &[HERE])]));
    assert_eq!(
        worker.message(remove_replicas(&["a", "unknown"])),
        ["add-keys a"]
    );
    worker.free(&["x"]);
    assert_eq!(
        worker.message(remove_replicas(&["a"])),
        ["forget a", "released a for amm"]
    );
    // A key without holders is looked for until it is freed.
    assert_eq!(
        worker.message(acquire(&[("b", &[])])),
        ["where is b", "after 1s: search"]
    );
    worker.free(&["b"]);
    assert_eq!(worker.event(Event::Search), [""; 0]);
    assert_eq!(worker.phases(), "executing 1");
}

#[test]
fn paused_worker_starts_nothing_until_resumed() {
    let mut worker = Worker::new(1);
    worker.message(task("runs"));
    assert_eq!(worker.message(status("paused")), ["status paused"]);
    worker.message(task("ready"));
    assert_eq!(worker.message(task_with("x", &[("a", &[A])])), [""; 0]);
    assert_eq!(worker.executed("runs"), ["finished runs run 0 (compute)"]);
    assert_eq!(worker.phases(), "waiting 1, ready 1, memory 1, fetch 1");
    assert_eq!(
        worker.message(status("running")),
        ["status running", "fetch a from A", "execute ready"]
    );
}

#[test]
fn memory_pressure_pauses_only_a_running_worker() {
    let mut worker = Worker::new(1);
    assert_eq!(worker.event(Event::Paused(false)), [""; 0]);
    assert_eq!(worker.event(Event::Paused(true)), ["status paused"]);
    assert_eq!(worker.event(Event::Paused(true)), [""; 0]);
    worker.message(task("x"));
    assert_eq!(
        worker.event(Event::Paused(false)),
        ["status running", "execute x"]
    );
    worker.message(status("closing_gracefully"));
    assert_eq!(worker.event(Event::Paused(true)), [""; 0]);
    assert_eq!(worker.event(Event::Paused(false)), [""; 0]);
    assert_eq!(*worker.0.status(), WorkerStatus::ClosingGracefully);
}

#[test]
fn sends_a_farewell_and_starts_nothing_after_it() {
    let mut worker = Worker::new(1);
    worker.message(task_with("y", &[("a", &[])]));
    let farewell = worker.event(Event::Close);
    assert_eq!(farewell[0], "status closing");
    assert!(farewell[1].starts_with("CloseStream"), "{farewell:?}");
    assert_eq!(farewell.len(), 2);
    assert_eq!(*worker.0.status(), WorkerStatus::Closing);
    // Neither tasks, nor transfers, nor requests for the holders of data
    assert_eq!(worker.message(task("x")), [""; 0]);
    assert_eq!(worker.message(refresh(&[("a", &[A])])), [""; 0]);
    assert_eq!(worker.event(Event::Search), [""; 0]);
    assert_eq!(worker.message(status("running")), [""; 0]);
}

#[test]
fn starts_nothing_while_the_store_is_full() {
    let mut worker = Worker::new(1);
    assert_eq!(worker.event(Event::StoreFull(true)), [""; 0]);
    assert_eq!(worker.message(task("x")), [""; 0]);
    assert_eq!(worker.message(task_with("y", &[("a", &[A])])), [""; 0]);
    assert_eq!(worker.events(Vec::new()), [""; 0]);
    assert_eq!(
        worker.event(Event::StoreFull(false)),
        ["fetch a from A", "execute x"]
    );
}

#[test]
fn tasks_wait_for_lost_inputs_until_they_are_back() {
    let mut worker = Worker::new(1);
    worker.stored("a");
    worker.stored("b");
    worker.message(task("runs"));
    worker.message(task_with("x", &[("a", &[HERE]), ("b", &[HERE])]));
    let stimulus = "lost-data-1.5";
    assert_eq!(
        worker.event(Event::Lost(vec!["a".into(), "unknown".into()])),
        [
            "forget a".to_owned(),
            format!("released a for {stimulus}"),
            "where is a".to_owned(),
            "after 1s: search".to_owned()
        ]
    );
    assert_eq!(
        worker.phases(),
        "waiting 1, executing 1, memory 1, missing 1"
    );
    assert_eq!(worker.message(refresh(&[("a", &[A])])), ["fetch a from A"]);
    worker.executed("runs");
    assert_eq!(
        worker.received(A, &["a"]),
        ["add-keys a", "execute x with a b"]
    );
}

#[test]
fn a_task_whose_data_is_lost_is_given_back() {
    let mut worker = Worker::new(1);
    worker.stored("a");
    worker.message(task_with("x", &[("a", &[HERE])]));
    let inputs_lost = |key: &str| Event::InputsLost {
        key: key.into(),
        lost: vec!["a".into()],
    };
    assert_eq!(
        worker.event(inputs_lost("x")),
        ["forget a", "released a for lost-data-1.5", "reschedule x"]
    );
    assert_eq!(worker.phases(), "");
    // A task that was freed while it ran is not given back.
    worker.stored("a");
    worker.message(task_with("x", &[("a", &[HERE])]));
    worker.free(&["x"]);
    assert_eq!(
        worker.event(inputs_lost("x")),
        ["forget a", "released a for lost-data-1.5"]
    );
    assert_eq!(worker.phases(), "");
}

#[test]
fn needed_soon_has_the_inputs_of_the_next_tasks() {
    let mut worker = Worker::new(1);
    for key in ["a", "b", "c", "d"] {
        worker.stored(key);
    }
    let needed = |worker: &Worker| {
        let mut needed: Vec<String> = worker
            .0
            .needed_soon()
            .iter()
            .map(ToString::to_string)
            .collect();
        needed.sort_unstable();
        needed.join(" ")
    };
    worker.message(task("runs"));
    assert_eq!(needed(&worker), "");
    worker.message(task_with("later", &[("a", &[HERE])]));
    worker.message(task_with("next", &[("b", &[HERE]), ("c", &[HERE])]));
    assert_eq!(needed(&worker), "b c");
    // Tasks that wait for data in flight need their other inputs.
    worker.message(task_with("waits", &[("d", &[HERE]), ("e", &[A])]));
    assert_eq!(needed(&worker), "b c d e");
    worker.event(Event::Paused(true));
    assert_eq!(needed(&worker), "", "nothing is started");
}

#[test]
fn data_from_clients_replaces_computations() {
    let mut worker = Worker::new(1);
    assert_eq!(worker.stored("a"), [""; 0]);
    assert_eq!(worker.phases(), "memory 1");
    assert_eq!(
        worker.message(task_with("x", &[("a", &[HERE])])),
        ["execute x with a"]
    );
    worker.message(run(3, task_with("y", &[("b", &[A])])));
    assert_eq!(worker.stored("y"), ["finished y run 3 ()"]);
    assert_eq!(worker.received(A, &["b"]), ["forget b"]);
    // While it runs
    assert_eq!(worker.stored("x"), ["finished x run 0 ()"]);
    assert_eq!(worker.executed("x"), [""; 0]);
    assert_eq!(worker.phases(), "memory 3");
}

#[test]
fn a_task_may_depend_on_one_that_is_computed_here_too() {
    let mut worker = Worker::new(1);
    let batch = vec![
        task_with("x", &[("a", &[A])]).into(),
        task_with("y", &[("x", &[B])]).into(),
    ];
    assert_eq!(worker.batch(batch), ["fetch a from A"]);
    // The task is stolen, so its result has to be fetched.
    assert_eq!(
        worker.steal("x"),
        ["steal x: waiting", "where is x", "after 1s: search"]
    );
    assert_eq!(worker.received(A, &["a"]), ["forget a"]);
    assert_eq!(worker.message(refresh(&[("x", &[B])])), ["fetch x from B"]);
    assert_eq!(
        worker.received(B, &["x"]),
        ["add-keys x", "execute y with x"]
    );
}

#[test]
fn a_task_that_lists_itself_is_not_fetched_while_it_is_computed() {
    let mut worker = Worker::new(1);
    // A dependency without holders
    worker.message(task_with("x", &[("y", &[])]));
    assert_eq!(
        worker.message(task_with("y", &[("y", &[A])])),
        ["execute y"],
        "not fetched"
    );
    assert_eq!(
        worker.executed("y"),
        ["finished y run 0 (compute)", "execute x with y"]
    );
}

/// Handles random events: the state stays consistent, and is empty once all keys
/// are freed.
#[test]
fn random_events_leave_a_consistent_state() {
    // Xorshift, with a fixed seed
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |end: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed >> 33).expect("31 bits") % end
    };
    let keys: Vec<String> = (0..12).map(|n| format!("k{n}")).collect();
    let peers = [A, B, HERE];
    for _ in 0..300 {
        let mut worker = Worker::new(2);
        worker.0.limits.transfer_count = 1;
        worker.0.story.limit(20);
        let mut runs: Vec<Key> = Vec::new();
        let mut asked: Vec<(Peer, Vec<Key>)> = Vec::new();
        let mut store: BTreeSet<Key> = BTreeSet::new();
        for _ in 0..200 {
            // Later tasks depend on earlier ones only, so there are no cycles.
            let index = random(keys.len());
            let key = keys[index].as_str();
            let holders = &peers[..random(3)];
            let event = match random(19) {
                0..=3 => {
                    // Some dependencies are listed twice.
                    let dependencies: Vec<(&str, &[&str])> = keys[..index]
                        .iter()
                        .chain(&keys[..index / 2])
                        .filter(|_| random(4) == 0)
                        .map(|key| (key.as_str(), holders))
                        .collect();
                    let run_id = i64::try_from(random(100)).expect("small");
                    Event::FromScheduler(run(run_id, task_with(key, &dependencies)).into())
                }
                4 => Event::FromScheduler(free(&[key]).into()),
                5 => Event::FromScheduler(remove_replicas(&[key]).into()),
                6 => Event::FromScheduler(acquire(&[(key, holders)]).into()),
                7 => Event::FromScheduler(refresh(&[(key, holders)]).into()),
                8 => Event::FromScheduler(ToWorker::StealRequest(StealRequest {
                    key: key.into(),
                    ..StealRequest::default()
                })),
                9 => Event::FromScheduler(remove_worker(peers[random(2)]).into()),
                10 if random(4) == 0 => Event::Stored(vec![(key.into(), description(1))]),
                10 => {
                    let new = ["running", "paused", "running"][random(3)];
                    Event::FromScheduler(status(new).into())
                }
                11 if !runs.is_empty() => {
                    let key = runs.swap_remove(random(runs.len()));
                    let failure = Box::new(Failure {
                        exception: Value::from("boom"),
                        exception_text: String::new(),
                        traceback_text: String::new(),
                    });
                    let is_good = random(3) != 0;
                    Event::Executed(Executed {
                        key,
                        outcome: if is_good {
                            Ok(description(1))
                        } else {
                            Err(failure)
                        },
                        start: Duration::ZERO,
                        stop: Duration::ZERO,
                        steps: Vec::new(),
                        thread: None,
                    })
                }
                14 if !runs.is_empty() => {
                    let lost = keys[..index].iter().map(|key| key.as_str().into());
                    Event::InputsLost {
                        key: runs.swap_remove(random(runs.len())),
                        lost: lost.collect(),
                    }
                }
                15 => Event::Lost(vec![key.into()]),
                16 => Event::Paused(random(2) == 0),
                17 => Event::StoreFull(random(2) == 0),
                18 => Event::Watched(random(2) == 0),
                12..=13 if !asked.is_empty() => {
                    let (peer, keys) = asked.swap_remove(random(asked.len()));
                    let data = keys.into_iter().filter(|_| random(3) != 0);
                    let data = data.map(|key| (key, description(1))).collect();
                    let answer = match random(5) {
                        0 => Answer::Busy,
                        1 => Answer::Gone,
                        _ => Answer::Data(data),
                    };
                    Event::Fetched(Fetched {
                        peer,
                        answer,
                        start: Duration::ZERO,
                        stop: Duration::ZERO,
                    })
                }
                _ => Event::Search,
            };
            let mut events = vec![event];
            while let Some(event) = events.pop() {
                match &event {
                    Event::Executed(Executed {
                        key,
                        outcome: Ok(_),
                        ..
                    }) => {
                        store.insert(key.clone());
                    }
                    Event::Fetched(Fetched {
                        answer: Answer::Data(data),
                        ..
                    })
                    | Event::Stored(data) => store.extend(data.iter().map(|(key, _)| key.clone())),
                    _ => {}
                }
                for action in worker.0.handle(Duration::ZERO, event) {
                    match action {
                        Action::Forget(key) => {
                            store.remove(&key);
                        }
                        Action::Execute(run) => runs.push(run.key),
                        Action::Fetch { peer, keys } => asked.push((peer, keys)),
                        // Timers may fire at any time, or after the end of this
                        // test.
                        Action::Wake { event, .. } if random(2) == 0 => events.push(*event),
                        _ => {}
                    }
                }
                worker.0.check();
                assert_eq!(store, worker.0.in_memory());
            }
            runs.retain(|key| worker.0.executing.contains_key(key));
        }
        // At the end, everything is freed and all pending work completes.
        worker.message(status("paused"));
        let all: Vec<&str> = keys.iter().map(String::as_str).collect();
        worker.free(&all);
        for key in worker.0.executing.keys().cloned().collect::<Vec<_>>() {
            worker.event(Event::Executed(Executed {
                key,
                outcome: Ok(description(1)),
                start: Duration::ZERO,
                stop: Duration::ZERO,
                steps: Vec::new(),
                thread: None,
            }));
        }
        let under_way = worker
            .0
            .peers
            .iter()
            .filter(|(_, state)| state.asked.is_some());
        let under_way: Vec<Peer> = under_way.map(|(peer, _)| Arc::clone(peer)).collect();
        for peer in under_way {
            worker.fetched(&peer, Answer::Gone);
        }
        worker.free(&all);
        assert_eq!(worker.phases(), "");
        assert_eq!(worker.0.free_resources["GPU"], 1.0);
    }
}

/// The events of these keys, as strings.
fn story(worker: &Worker, keys: &[&str]) -> Vec<String> {
    let keys: Keys = keys.iter().copied().collect();
    let events = worker.0.story(&keys);
    events
        .map(|event| format!("{}: {event}", event.key))
        .collect()
}

#[test]
fn the_story_of_a_task_names_its_inputs_and_their_holders() {
    let mut worker = Worker::new(1);
    let compute = ComputeTask {
        stimulus_id: "client-1".to_owned(),
        ..task_with("z", &[("y", &[A])])
    };
    worker.message(compute);
    worker.fetched(A, Answer::Busy);
    worker.event(Event::PeerAvailable(A.into()));
    worker.fetched(A, Answer::Gone);
    worker.message(RefreshWhoHas {
        stimulus_id: "scheduler-2".to_owned(),
        ..refresh(&[("y", &[B])])
    });
    worker.received(B, &["y"]);
    worker.executed("z");
    worker.event(Event::Spilled {
        key: "z".into(),
        len: 28,
    });
    worker.free(&["z"]);
    assert_eq!(
        story(&worker, &["y", "z"]),
        [
            "z: compute-task while released (client-1)",
            "y: released -> missing (client-1)",
            "y: missing -> fetch (client-1)",
            "z: released -> waiting (client-1)",
            "y: fetch -> flight (ensure-communicating-1.5)",
            "y: requested from tcp://127.0.0.1:10 (ensure-communicating-1.5)",
            "y: not sent by tcp://127.0.0.1:10: it is busy (gather-dep-busy-1.5)",
            "y: flight -> fetch (gather-dep-busy-1.5)",
            "y: fetch -> flight (ensure-communicating-1.5)",
            "y: requested from tcp://127.0.0.1:10 (ensure-communicating-1.5)",
            "y: not sent by tcp://127.0.0.1:10: it cannot be reached \
             (gather-dep-network-failure-1.5)",
            "y: flight -> missing (gather-dep-network-failure-1.5)",
            "y: missing -> fetch (scheduler-2)",
            "y: fetch -> flight (ensure-communicating-1.5)",
            "y: requested from tcp://127.0.0.1:11 (ensure-communicating-1.5)",
            "y: flight -> memory (gather-dep-success-1.5)",
            "z: waiting -> ready (gather-dep-success-1.5)",
            "z: ready -> executing (ensure-computing-1.5)",
            "z: executing -> memory (task-finished-1.5)",
            "z: spilled, 28 bytes (spill-1.5)",
            "z: memory -> forgotten (free)",
        ]
    );
    assert_eq!(
        story(&worker, &["scheduler-2"]),
        ["y: missing -> fetch (scheduler-2)"]
    );
}

#[test]
fn a_stuck_task_keeps_its_story_among_many_others() {
    let mut worker = Worker::new(1);
    worker.0.story.limit(100);
    worker.message(task_with("stuck", &[("a", &[])]));
    for n in 0..100 {
        let key = format!("k-{n}");
        worker.message(task(&key));
        worker.executed(&key);
        worker.free(&[&key]);
    }
    let own = [
        "stuck: compute-task while released ()",
        "stuck: released -> waiting ()",
    ];
    assert_eq!(story(&worker, &["stuck"]), own);
    let first = |key: &str| story(&worker, &[key]).first().cloned();
    assert_eq!(first("a").as_deref(), Some("a: released -> missing ()"));
    assert_eq!(first("k-0"), None);
    // Once it is done, its story ages like any other.
    worker.stored("a");
    worker.executed("stuck");
    assert_eq!(
        story(&worker, &["stuck"])[0],
        "stuck: waiting -> ready (update-data-1.5)"
    );
}

#[test]
fn steps_of_tasks_are_reported_while_they_are_watched() {
    let mut worker = Worker::new(1);
    assert_eq!(worker.message(task("x")), ["execute x"]);
    assert_eq!(worker.event(Event::Watched(true)), [""; 0]);
    assert_eq!(
        worker.executed("x"),
        [
            "x executing -> memory (task-finished-1.5)",
            "finished x run 0 (compute)"
        ]
    );
    assert_eq!(worker.event(Event::Watched(false)), [""; 0]);
    assert_eq!(worker.free(&["x"]), ["forget x", "released x for free"]);
}
