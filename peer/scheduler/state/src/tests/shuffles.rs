//! P2P shuffles.

use bytes::Bytes;

use super::*;

const ONE: &str = "tcp://a:1";
const TWO: &str = "tcp://b:1";

/// A cluster of two workers with two tasks each that pass data to a shuffle.
struct Shuffling {
    cluster: Cluster,
    client: ClientId,
    workers: [WorkerId; 2],
}

impl Shuffling {
    fn new() -> Self {
        let mut cluster = Cluster::new();
        let workers = [ONE, TWO].map(|address| {
            let worker = RegisterWorker {
                address: address.to_owned(),
                status: WorkerStatus::Running,
                nthreads: 1,
                ..RegisterWorker::default()
            };
            cluster.join(worker).expect("it is new")
        });
        let client = cluster.client("me");
        let mut new = Self {
            cluster,
            client,
            workers,
        };
        new.submit("s", "");
        new
    }

    /// Submits the tasks of a shuffle, whose names end with `end`.
    fn submit(&mut self, shuffle: &str, end: &str) {
        let barrier = format!("shuffle-barrier-{shuffle}");
        let transfers = ["t0", "t1"].map(|name| format!("{name}{end}"));
        let outputs = ["o0", "o1"].map(|name| format!("{name}{end}"));
        let mut tasks: Vec<Node> = transfers.iter().map(|name| add(name, &[])).collect();
        tasks.push(add(&barrier, &transfers.each_ref().map(String::as_str)));
        tasks.extend(outputs.iter().map(|name| add(name, &[&barrier])));
        let keys = outputs.each_ref().map(String::as_str);
        self.cluster.submit(self.client, tasks, &keys);
    }

    fn request(&mut self, request: impl Into<Request>) -> RequestId {
        let id = RequestId(self.cluster.next_id());
        let request = Box::new(request.into());
        self.cluster
            .handle(SchedulerInput::Requested { id, request });
        id
    }

    fn ask(&mut self, key: &str, worker: &str) -> RequestId {
        self.request(ShuffleGetOrCreate {
            shuffle_id: "s".to_owned(),
            key: Key::from(key),
            worker: worker.to_owned(),
            ..ShuffleGetOrCreate::default()
        })
    }

    /// The status and the error of a reply.
    fn reply(&mut self, id: RequestId) -> Option<(String, String)> {
        let reply = self.cluster.replies.remove(&id)?.expect("a status");
        let text = |name| {
            let value = reply.get(name).and_then(Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        Some((text("status"), text("exception_text")))
    }

    /// Creates the run that is asked for, with outputs on both workers.
    fn create(&mut self) -> u64 {
        let new = self.cluster.new_runs.remove(0);
        let run_id = new.run_id;
        self.cluster.handle(SchedulerInput::RunCreated {
            run_id,
            run: Ok(CreatedRun {
                run_spec: Bytes::from(format!("run {run_id}")),
                workers: vec![ONE.to_owned(), TWO.to_owned()],
            }),
        });
        run_id
    }

    /// Runs the tasks up to the outputs, which are sent to workers.
    fn run_to_outputs(&mut self) -> u64 {
        let asked = self.ask("t0", ONE);
        let run_id = self.create();
        assert_eq!(self.reply(asked).expect("a reply").0, "OK");
        for key in ["t0", "t1", "shuffle-barrier-s"] {
            let on = self.cluster.assigned_to(key).expect(key);
            self.cluster.finish(on, key);
        }
        run_id
    }

    fn failed_runs(&mut self, worker: WorkerId) -> Vec<String> {
        let messages = self.cluster.to_workers.remove(&worker).unwrap_or_default();
        let failed = messages.into_iter().filter_map(|message| match message {
            ToWorker::Unknown(message) if message.op == "shuffle-fail" => {
                Some(message.value("message")?.as_str()?.to_owned())
            }
            _ => None,
        });
        failed.collect()
    }
}

// ROLES SCHEDULER-13
#[test]
fn workers_that_ask_at_once_get_the_same_run() {
    let mut shuffling = Shuffling::new();
    let [first, second] = [("t0", ONE), ("t1", TWO)].map(|(key, on)| shuffling.ask(key, on));
    assert_eq!(shuffling.cluster.new_runs.len(), 1);
    assert_eq!(shuffling.reply(first), None);
    let new = &shuffling.cluster.new_runs[0];
    assert_eq!(new.workers.len(), 2);
    shuffling.create();
    for asked in [first, second] {
        assert_eq!(shuffling.reply(asked).expect("a reply").0, "OK");
    }
    let get = |id: &str, worker: &str| ShuffleGet {
        id: id.to_owned(),
        worker: worker.to_owned(),
        ..ShuffleGet::default()
    };
    let known = shuffling.request(get("s", ONE));
    assert_eq!(shuffling.reply(known).expect("a reply").0, "OK");
    let unknown = shuffling.request(get("x", ONE));
    let (status, error) = shuffling.reply(unknown).expect("a reply");
    assert_eq!(status, "error");
    assert_eq!(
        error,
        "P2PConsistencyError(\"No active shuffle with id='x' found\")"
    );
    let unaware = shuffling.request(get("s", "tcp://c:1"));
    assert_eq!(shuffling.reply(unaware).expect("a reply").0, "error");
}

// ROLES SCHEDULER-13
#[test]
fn a_run_is_created_for_a_task_that_runs() {
    let mut shuffling = Shuffling::new();
    let asked = shuffling.ask("shuffle-barrier-s", ONE);
    let (status, error) = shuffling.reply(asked).expect("a reply");
    assert_eq!(status, "error");
    assert!(error.contains("to be processing, is waiting"), "{error}");
    let asked = shuffling.ask("nope", ONE);
    assert_eq!(shuffling.reply(asked).expect("a reply").0, "uncaught-error");
    assert!(shuffling.cluster.new_runs.is_empty());
    // The task is cancelled while the run is created.
    let asked = shuffling.ask("t0", ONE);
    shuffling.cluster.release(shuffling.client, &["o0", "o1"]);
    shuffling.create();
    assert_eq!(shuffling.reply(asked).expect("a reply").0, "error");
    shuffling.cluster.assert_empty();
}

#[test]
fn a_failure_of_python_reaches_all_that_ask() {
    let mut shuffling = Shuffling::new();
    let asked = [("t0", ONE), ("t1", TWO)].map(|(key, on)| shuffling.ask(key, on));
    let run_id = shuffling.cluster.new_runs.remove(0).run_id;
    let run = Err(RunFailure {
        exception: daskwire_messages::exception::exception("ValueError", "bad"),
        text: "ValueError('bad')".to_owned(),
    });
    shuffling
        .cluster
        .handle(SchedulerInput::RunCreated { run_id, run });
    for id in asked {
        let expected = ("uncaught-error".to_owned(), "ValueError('bad')".to_owned());
        assert_eq!(shuffling.reply(id), Some(expected));
    }
    // The next one tries again.
    shuffling.ask("t0", ONE);
    assert_eq!(shuffling.cluster.new_runs.len(), 1);
}

// ROLES SCHEDULER-16
#[test]
fn outputs_move_to_their_workers_until_the_run_ends() {
    let mut shuffling = Shuffling::new();
    let run_id = shuffling.run_to_outputs();
    let on = shuffling.cluster.assigned_to("o0").expect("it runs");
    let (own, other) = match on == shuffling.workers[0] {
        true => (ONE, TWO),
        false => (TWO, ONE),
    };
    let restrict = |run_id, worker: &str| ShuffleRestrictTask {
        id: "s".to_owned(),
        run_id,
        key: Key::from("o0"),
        worker: worker.to_owned(),
        ..ShuffleRestrictTask::default()
    };
    let stale = shuffling.request(restrict(run_id - 1, other));
    assert_eq!(shuffling.reply(stale).expect("a reply").0, "error");
    let restricted = shuffling.request(restrict(run_id, other));
    assert_eq!(shuffling.reply(restricted).expect("a reply").0, "OK");
    // Another shuffle with this output agrees anyway.
    shuffling.request(restrict(run_id, own));
    let message = Reschedule {
        key: Key::from("o0"),
        ..Reschedule::default()
    };
    shuffling.cluster.running.remove(&(on, Key::from("o0")));
    shuffling.cluster.report(on, message);
    let first = shuffling.cluster.assigned_to("o1").expect("it runs");
    shuffling.cluster.finish(first, "o1");
    let now = shuffling.cluster.assigned_to("o0").expect("it runs");
    assert_ne!(now, on);
    shuffling.cluster.to_workers.clear();
    shuffling.cluster.finish(now, "o0");
    let ended = format!("SchedulerShuffleState<s[{run_id}]> forgotten");
    for worker in shuffling.workers {
        assert_eq!(shuffling.failed_runs(worker), [ended.as_str()]);
    }
    let state = &shuffling.cluster.state;
    let id = state.by_key.get(&Key::from("o0")).copied();
    let task = &state.tasks[id.expect("it is known")];
    let run_spec = task.run_spec.as_ref().expect("it is a task");
    assert!(run_spec.demands.workers.is_empty());
    shuffling.cluster.release(shuffling.client, &["o0", "o1"]);
    shuffling.cluster.assert_empty();
}

// ROLES SCHEDULER-15
#[test]
fn a_shuffle_starts_again_without_a_worker_that_has_left() {
    let mut shuffling = Shuffling::new();
    let run_id = shuffling.run_to_outputs();
    let on = shuffling.cluster.assigned_to("o0").expect("it runs");
    let left = shuffling.workers[usize::from(on == shuffling.workers[0])];
    shuffling.cluster.to_workers.clear();
    shuffling.cluster.lose_worker(left);
    let failed = shuffling.failed_runs(on);
    assert_eq!(failed.len(), 1);
    assert!(failed[0].contains("left during active"), "{failed:?}");
    assert_eq!(shuffling.cluster.status("o0"), Some(TaskState::Waiting));
    assert_eq!(shuffling.cluster.assigned_to("t0"), Some(on));
    let notice = shuffling
        .cluster
        .notices
        .iter()
        .find_map(|notice| match notice {
            Notice::ShuffleRestarted { shuffle, .. } => Some(shuffle.as_str()),
            _ => None,
        });
    assert_eq!(notice, Some("s"));
    let address = if on == shuffling.workers[0] { ONE } else { TWO };
    let asked = shuffling.ask("t0", address);
    assert_eq!(shuffling.cluster.new_runs[0].workers, [address]);
    let new = shuffling.cluster.new_runs.remove(0);
    assert!(new.run_id > run_id);
    shuffling.cluster.handle(SchedulerInput::RunCreated {
        run_id: new.run_id,
        run: Ok(CreatedRun {
            run_spec: Bytes::new(),
            workers: new.workers,
        }),
    });
    assert_eq!(shuffling.reply(asked).expect("a reply").0, "OK");
    for key in ["t0", "t1", "shuffle-barrier-s", "o0", "o1"] {
        shuffling.cluster.finish(on, key);
    }
    assert_eq!(shuffling.cluster.status("o1"), Some(TaskState::Memory));
}

/// The losses of workers count for the tasks that they ran, also if the tasks run again because
/// of the shuffle.
#[test]
fn a_transfer_that_kills_its_workers_fails() {
    let mut shuffling = Shuffling::new();
    for number in 0..4 {
        let on = shuffling.cluster.assigned_to("t0").expect("it runs");
        let address = shuffling.cluster.state.workers[&on].address.to_string();
        shuffling.ask("t0", &address);
        let new = shuffling.cluster.new_runs.remove(0);
        shuffling.cluster.handle(SchedulerInput::RunCreated {
            run_id: new.run_id,
            run: Ok(CreatedRun {
                run_spec: Bytes::new(),
                workers: vec![address],
            }),
        });
        shuffling.cluster.lose_worker(on);
        let worker = RegisterWorker {
            address: format!("tcp://c:{number}"),
            status: WorkerStatus::Running,
            nthreads: 1,
            ..RegisterWorker::default()
        };
        shuffling.cluster.join(worker).expect("it is new");
    }
    assert_eq!(shuffling.cluster.status("o0"), Some(TaskState::Erred));
    let events = shuffling.cluster.state.events("p2p");
    assert_eq!(events.len(), 1, "{events:?}");
}

// ROLES SCHEDULER-14
#[test]
fn a_shuffle_with_different_runs_starts_again() {
    let mut shuffling = Shuffling::new();
    let run_id = shuffling.run_to_outputs();
    let restarted = |run_id| SchedulerInput::ShuffleRestarted {
        shuffle: "s".to_owned(),
        run_id,
    };
    shuffling.cluster.handle(restarted(run_id + 1));
    assert!(shuffling.cluster.assigned_to("o0").is_some());
    let workers = shuffling.cluster.state.shuffle_workers("s", run_id);
    assert_eq!(workers.expect("it is current").len(), 2);
    shuffling.cluster.handle(restarted(run_id));
    assert_eq!(shuffling.cluster.assigned_to("o0"), None);
    assert!(shuffling.cluster.assigned_to("t0").is_some());
    let workers = shuffling.cluster.state.shuffle_workers("s", run_id);
    assert_eq!(workers, Err(("KeyError", "s".to_owned())));
}

#[test]
fn a_failed_task_is_published_once() {
    let mut shuffling = Shuffling::new();
    shuffling.ask("t0", ONE);
    shuffling.create();
    let on = shuffling.cluster.assigned_to("t0").expect("it runs");
    shuffling.cluster.err(on, "t0", "bad");
    let events = shuffling.cluster.state.events("p2p");
    assert_eq!(events.len(), 1);
    let event = events[0].to_string();
    assert!(event.contains("p2p-failed"), "{event}");
    assert_eq!(shuffling.cluster.status("o0"), Some(TaskState::Erred));
}

#[test]
fn workers_that_take_part_are_not_closed() {
    let mut shuffling = Shuffling::new();
    let target = CloseOptions {
        target: Some(0),
        ..CloseOptions::default()
    };
    let closed = |shuffling: &Shuffling| shuffling.cluster.state.workers_to_close(&target).len();
    assert_eq!(closed(&shuffling), 2);
    shuffling.run_to_outputs();
    assert_eq!(closed(&shuffling), 0);
}

/// A join needs the outputs of both shuffles on the same workers.
#[test]
fn a_shuffle_with_shared_outputs_gets_the_other_run() {
    let mut shuffling = Shuffling::new();
    let tasks = [
        add("t2", &[]),
        add("shuffle-barrier-other", &["t2"]),
        add("join", &["shuffle-barrier-s", "shuffle-barrier-other"]),
    ];
    shuffling.cluster.submit(shuffling.client, tasks, &["join"]);
    shuffling.ask("t0", ONE);
    let first = shuffling.create();
    let on = shuffling.cluster.assigned_to("t0").expect("it runs");
    shuffling.cluster.finish(on, "t0");
    let on = shuffling.cluster.assigned_to("t2").expect("it runs");
    let address = if on == shuffling.workers[0] { ONE } else { TWO };
    shuffling.request(ShuffleGetOrCreate {
        shuffle_id: "other".to_owned(),
        key: Key::from("t2"),
        worker: address.to_owned(),
        ..ShuffleGetOrCreate::default()
    });
    let new = &shuffling.cluster.new_runs[0];
    assert_eq!(new.others, [Bytes::from(format!("run {first}"))]);
}
