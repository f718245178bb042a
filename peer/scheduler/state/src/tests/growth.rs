//! Complexity tests, which compare the number of steps for one size and twice
//! that size.

use daskwire_messages::protocol::WorkerStatus;

use super::*;
use crate::steps::STEPS;

/// Asserts that doubling the size at most roughly doubles the number of steps.
#[track_caller]
fn assert_linear(size: usize, steps: impl Fn(usize) -> u64) {
    let (one, two) = (steps(size), steps(2 * size));
    assert!(
        two <= one * 9 / 4 + 100,
        "{one} steps for {size}, {two} for twice as much"
    );
}

pub(super) fn count(act: impl FnOnce()) -> u64 {
    STEPS.set(0);
    act();
    STEPS.get()
}

pub(super) fn name(number: usize) -> String {
    format!("x-{number}")
}

/// A state whose workers handle all messages at once. Its consistency is not
/// checked, because the checks count as steps, too.
pub(super) struct Eager {
    pub(super) state: State,
    pub(super) client: ClientId,
    pub(super) workers: Vec<WorkerId>,
    tasks: Vec<(WorkerId, ComputeTask)>,
    /// The most steps that a call has taken.
    pub(super) longest: u64,
}

impl Eager {
    pub(super) fn new(worker_count: usize) -> Self {
        let mut cluster = Self {
            state: State::new(Policy::default()),
            client: ClientId(0),
            workers: (0..worker_count as u64).map(WorkerId).collect(),
            tasks: Vec::new(),
            longest: 0,
        };
        for number in 0..worker_count {
            cluster.join_with(number, Vec::new());
        }
        cluster.add_client(0, "me");
        cluster
    }

    /// The keys that a worker holds.
    pub(super) fn held(&self, worker: &str) -> Vec<Key> {
        let (mut place, mut keys) = (Place::default(), Vec::new());
        while !self.state.has_what(worker, &mut place, &mut keys) {}
        keys
    }

    pub(super) fn handle(&mut self, event: SchedulerInput) {
        let mut before = STEPS.get();
        let mut actions = self.state.handle(Duration::ZERO, event);
        self.longest = self.longest.max(STEPS.get() - before);
        while self.state.is_pending() {
            before = STEPS.get();
            actions.extend(self.state.proceed(Duration::ZERO));
            self.longest = self.longest.max(STEPS.get() - before);
        }
        for action in actions {
            if let Action::ToWorker(worker, ToWorker::ComputeTask(task)) = action {
                self.tasks.push((worker, task));
            }
        }
    }

    /// Registers a worker of two threads with resources, on a host `w` and its number.
    pub(super) fn join_with(&mut self, number: usize, resources: Vec<(String, f64)>) {
        let worker = RegisterWorker {
            address: format!("tcp://w{number}:1"),
            status: WorkerStatus::Running,
            nthreads: 2,
            resources,
            ..RegisterWorker::default()
        };
        self.join(number as u64, worker);
    }

    pub(super) fn join(&mut self, id: u64, worker: RegisterWorker) {
        self.handle(SchedulerInput::WorkerJoined {
            id: WorkerId(id),
            registration: Box::new(worker),
        });
    }

    pub(super) fn add_client(&mut self, id: u64, name: &str) {
        self.handle(SchedulerInput::ClientJoined {
            id: ClientId(id),
            name: name.to_owned(),
            versions: Value::None,
            returning: None,
        });
    }

    pub(super) fn submit(&mut self, tasks: impl IntoIterator<Item = Node>, keys: Keys) {
        let annotations = Value::Dict([].into());
        self.submit_with(tasks, keys, annotations);
    }

    pub(super) fn submit_with(
        &mut self,
        tasks: impl IntoIterator<Item = Node>,
        keys: Keys,
        annotations: Value,
    ) {
        let graph: Graph = tasks.into_iter().collect();
        let message = UpdateGraph {
            expr_ser: graph.to_expression().expect("plain values"),
            keys,
            annotations: Some(annotations),
            ..UpdateGraph::default()
        };
        self.handle(SchedulerInput::FromClient(self.client, message.into()));
    }

    /// Runs all tasks; those whose key begins with `bad` fail.
    pub(super) fn work(&mut self) {
        self.work_on(usize::MAX);
    }

    /// Like [`work`](Self::work), until this number of tasks has run.
    pub(super) fn work_on(&mut self, mut count: usize) {
        while count > 0 && !self.tasks.is_empty() {
            let tasks = core::mem::take(&mut self.tasks);
            for (worker, task) in tasks.into_iter().take(count) {
                count -= 1;
                let (key, run_id) = (task.key, task.run_id);
                let is_bad = key.as_str().is_some_and(|key| key.starts_with("bad"));
                let message = if is_bad {
                    FromWorker::from(TaskErred {
                        key,
                        run_id,
                        ..TaskErred::default()
                    })
                } else {
                    FromWorker::from(TaskFinished {
                        key,
                        run_id,
                        nbytes: 28,
                        ..TaskFinished::default()
                    })
                };
                self.handle(SchedulerInput::FromWorker(worker, message));
            }
        }
    }

    pub(super) fn scatter(&mut self, count: usize, worker: usize) {
        let address = format!("tcp://w{worker}:1");
        let keys = (0..count).map(|number| Key::from(name(number)));
        let who_has: Vec<_> = keys.map(|key| (key, vec![address.clone()])).collect();
        self.handle(SchedulerInput::DataStored {
            client: Some("me".to_owned()),
            who_has,
            nbytes: Vec::new(),
        });
    }

    pub(super) fn release(&mut self, keys: Keys) {
        let message = ClientReleasesKeys {
            keys,
            ..ClientReleasesKeys::default()
        };
        self.handle(SchedulerInput::FromClient(self.client, message.into()));
        self.work();
    }
}

pub(super) fn on(key: usize) -> Argument {
    Argument::Result(Key::from(name(key)))
}

pub(super) fn constant(key: String) -> Node {
    Node::new(key.as_str(), "operator.add", [1, 2])
}

/// One task with `count` dependencies.
fn fan_in(count: usize) -> Vec<Node> {
    let last = Node::new("z", "builtins.sum", (0..count).map(on).collect::<Vec<_>>());
    let tasks = (0..count).map(|number| constant(name(number)));
    tasks.chain([last]).collect()
}

/// `count` tasks that depend on the task `first`.
fn fan_out(count: usize, first: &str) -> Vec<Node> {
    let on = Argument::Result(Key::from(first));
    let tasks =
        (0..count).map(|number| Node::new(name(number).as_str(), "operator.neg", [on.clone()]));
    [constant(first.to_owned())]
        .into_iter()
        .chain(tasks)
        .collect()
}

pub(super) fn names(count: usize) -> Keys {
    (0..count).map(name).collect()
}

#[test]
fn graphs_take_linear_time() {
    let chain = |count: usize| -> Vec<Node> {
        let next = |number| Node::new(name(number).as_str(), "operator.neg", [on(number - 1)]);
        let first = constant(name(0));
        [first].into_iter().chain((1..count).map(next)).collect()
    };
    type Shape<'s> = &'s dyn Fn(usize) -> (Vec<Node>, Keys);
    let shapes: [Shape<'_>; 5] = [
        &|count| (fan_in(count), ["z"].into_iter().collect()),
        &|count| (fan_out(count, "a"), names(count)),
        &|count| (fan_out(count, "bad"), names(count)),
        &|count| (chain(count), [name(count - 1)].into_iter().collect()),
        &|count| (chain(count), names(count)),
    ];
    for shape in shapes {
        assert_linear(500, |size| {
            let mut cluster = Eager::new(3);
            let (tasks, keys) = shape(size);
            count(|| {
                cluster.submit(tasks, keys.clone());
                cluster.work();
                cluster.release(keys);
                assert_eq!(cluster.state.task_count(), 0);
            })
        });
    }
}

#[test]
fn losing_a_worker_takes_linear_time() {
    assert_linear(500, |size| {
        let mut cluster = Eager::new(1);
        cluster.submit(fan_in(size), names(size));
        cluster.work();
        let late = RegisterWorker {
            address: "tcp://late:1".to_owned(),
            status: WorkerStatus::Running,
            ..RegisterWorker::default()
        };
        cluster.join(1, late);
        count(|| {
            cluster.handle(SchedulerInput::WorkerLeft(cluster.workers[0]));
            cluster.work();
        })
    });
}

#[test]
fn releasing_dependencies_takes_linear_time() {
    assert_linear(500, |size| {
        let mut cluster = Eager::new(2);
        cluster.scatter(size, 0);
        let arguments: Vec<Argument> = (0..size).map(on).collect();
        cluster.submit(
            [Node::new("z", "builtins.sum", arguments)],
            ["z"].into_iter().collect(),
        );
        cluster.work();
        let steps = count(|| {
            for number in 0..size {
                cluster.release([name(number)].into_iter().collect());
            }
        });
        // The result stays in memory.
        assert_eq!(cluster.state.task_count(), 1);
        cluster.state.check();
        steps
    });
}

#[test]
fn worker_restrictions_take_logarithmic_time() {
    assert_linear(500, |size| {
        let mut cluster = Eager::new(3);
        let workers = (0..size).map(|number| Value::from(format!("other-{number}")));
        let workers = workers.chain([Value::from("tcp://w0:1")]).collect();
        let annotations = Value::dict([("workers", Value::List(workers))]);
        let tasks = (0..size).map(|number| constant(name(number)));
        let steps = count(|| {
            cluster.submit_with(tasks, names(size), annotations);
            cluster.work();
        });
        assert_eq!(cluster.held("tcp://w0:1").len(), size);
        // Ignoring the logarithm
        steps / u64::from(size.ilog2())
    });
}

#[test]
fn stealing_skips_unsuitable_tasks_in_linear_time() {
    assert_linear(200, |size| {
        let mut cluster = Eager::new(size);
        let workers = Value::list(["tcp://w0:1"]);
        let annotations = Value::dict([("workers", workers)]);
        let tasks = (0..10).map(|number| constant(name(number)));
        cluster.submit_with(tasks, names(10), annotations);
        let worker = cluster.workers[1];
        count(|| {
            cluster.handle(SchedulerInput::FromWorker(
                worker,
                KeepAlive::default().into(),
            ))
        })
    });
}

#[test]
fn retiring_checks_each_result_a_few_times() {
    assert_linear(500, |size| {
        let mut cluster = Eager::new(2);
        cluster.scatter(size, 0);
        count(|| {
            let mut left = Vec::new();
            cluster.handle(SchedulerInput::RetireWorkers(vec!["tcp://w0:1".to_owned()]));
            for number in 0..size {
                let state = &cluster.state;
                state.update_keys_without_copy("tcp://w0:1", &mut left);
                assert_ne!(left, []);
                let message = AddKeys {
                    keys: [name(number)].into_iter().collect(),
                    ..AddKeys::default()
                };
                cluster.handle(SchedulerInput::FromWorker(
                    cluster.workers[1],
                    message.into(),
                ));
            }
            let state = &cluster.state;
            state.update_keys_without_copy("tcp://w0:1", &mut left);
            assert_eq!(left, []);
        })
    });
}

#[test]
fn queries_of_many_tasks_are_answered_in_parts() {
    const COUNT: usize = 3000;
    let mut cluster = Eager::new(1);
    cluster.scatter(COUNT, 0);
    let state = &cluster.state;
    let (mut place, mut held, mut calls) = (Place::default(), Vec::new(), 0);
    while !state.has_what("tcp://w0:1", &mut place, &mut held) {
        calls += 1;
        assert!(held.len() <= calls * SLICE, "{}", held.len());
    }
    assert_eq!((held.len(), calls), (COUNT, COUNT / SLICE));
    let mut who_has = Vec::new();
    let mut sums = BTreeMap::new();
    let mut prefixes = Prefixes::new();
    for part in 0..state.part_count() {
        let before = who_has.len();
        who_has.extend(state.who_has(Selection::Part(part)));
        assert!(who_has.len() - before <= 2 * SLICE);
    }
    state.add_nbytes(&held, &mut sums);
    assert!(!state.add_prefixes(0, &mut prefixes));
    assert_eq!(
        (who_has.len(), state.state_counts().of("memory")),
        (COUNT, COUNT as u64)
    );
    assert!(
        who_has
            .iter()
            .all(|(_, holders)| holders == &["tcp://w0:1"])
    );
    let counted = prefixes.values().map(|prefix| prefix.counts.of("memory"));
    assert_eq!(counted.sum::<u64>(), COUNT as u64);
    let sizes = state.nbytes(Selection::Keys(&held));
    let total = sizes.iter().map(|(_, len)| len).sum::<u64>();
    assert_eq!(sums.values().sum::<u64>(), total);
    let in_prefixes = prefixes.values().map(|prefix| prefix.nbytes);
    assert_eq!(in_prefixes.sum::<u128>(), u128::from(total));
    let after = Selection::Part(state.part_count());
    assert_eq!(state.who_has(after), []);
}

#[test]
fn tasks_of_a_worker_are_listed_in_parts() {
    const COUNT: usize = 3000;
    let mut cluster = Eager::new(1);
    // Two groups of tasks wait for the worker.
    for (number, demand) in ["tcp://w0:1", "w0"].into_iter().enumerate() {
        let (from, to) = (number * COUNT / 2, (number + 1) * COUNT / 2);
        let annotations = Value::dict([("workers", Value::list([demand]))]);
        let tasks = (from..to).map(|number| constant(name(number)));
        let keys = (from..to).map(name).collect();
        cluster.submit_with(tasks, keys, annotations);
    }
    let (mut place, mut keys, mut calls) = (Place::default(), Vec::new(), 0);
    while !(cluster.state).processing("tcp://w0:1", &mut place, &mut keys) {
        calls += 1;
        assert!(keys.len() <= calls * SLICE, "{}", keys.len());
    }
    assert_eq!((keys.len(), calls), (COUNT, COUNT / SLICE));
    let all: BTreeSet<Key> = keys.into_iter().collect();
    assert_eq!(all.len(), COUNT);
    // The place of a task that has ended meanwhile is no obstacle.
    let (mut place, mut keys) = (Place::default(), Vec::new());
    (cluster.state).processing("tcp://w0:1", &mut place, &mut keys);
    cluster.work();
    while !(cluster.state).processing("tcp://w0:1", &mut place, &mut keys) {}
    assert_eq!(keys.len(), SLICE);

    // A task that is sent between two parts is not left out.
    let mut cluster = Eager::new(1);
    let workers = ("workers", Value::list(["tcp://w0:1"]));
    let tasks = (0..COUNT).map(|number| constant(name(number)));
    cluster.submit_with(tasks, names(COUNT), Value::dict([workers.clone()]));
    let (mut place, mut keys) = (Place::default(), Vec::new());
    (cluster.state).processing("tcp://w0:1", &mut place, &mut keys);
    let priority = ("priority", Value::from(1));
    let annotations = Value::dict([workers, priority]);
    cluster.submit_with(
        [constant("urgent".to_owned())],
        ["urgent"].into_iter().collect(),
        annotations,
    );
    // One of the tasks that the worker runs is done.
    cluster.work_on(1);
    let sent = cluster
        .tasks
        .iter()
        .any(|(_, task)| task.key == Key::from("urgent"));
    assert!(sent);
    while !(cluster.state).processing("tcp://w0:1", &mut place, &mut keys) {}
    assert!(keys.contains(&Key::from("urgent")));
    let mut none = Vec::new();
    assert!((cluster.state).processing("tcp://other:1", &mut Place::default(), &mut none));
}

#[test]
fn lists_repeated_workers_once() {
    let cluster = Eager::new(2);
    let twice = vec!["tcp://w0:1".to_owned(); 100];
    assert_eq!(cluster.state.thread_counts(Some(&twice), false).len(), 1);
}

#[test]
fn keeps_nothing_of_removed_tasks_workers_and_clients() {
    let mut cluster = Eager::new(1);
    let mut places = Vec::new();
    for round in 0..200 {
        let key = format!("prefix{round}-1");
        let annotations = Value::dict([("resources", Value::dict([(key.as_str(), 0.0)]))]);
        cluster.submit_with(
            [constant(key.clone())],
            [key.as_str()].into_iter().collect(),
            annotations,
        );
        cluster.work();
        cluster.release([key].into_iter().collect());
        cluster.add_client(round + 1, &format!("client-{round}"));
        cluster.handle(SchedulerInput::ClientLeft(ClientId(round + 1)));
        let worker = RegisterWorker {
            address: format!("tcp://late-{round}:1"),
            ..RegisterWorker::default()
        };
        cluster.join(round + 1, worker);
        cluster.handle(SchedulerInput::WorkerLeft(WorkerId(round + 1)));
        let now = Duration::from_secs(round + 1);
        assert_eq!(cluster.state.handle(now, SchedulerInput::Tick).len(), 1);
        cluster.work();
        let state = &cluster.state;
        places.push((
            state.tasks.slot_count(),
            state.tasks.free.len(),
            state.by_key.len() + state.groups.slot_count(),
            (state.clients.len(), state.by_name.len()),
            (state.workers.len(), state.by_address.len()),
            state.worker_names.len(),
            state
                .workers
                .values()
                .map(|worker| worker.used.len())
                .sum::<usize>(),
            state
                .workers
                .values()
                .map(|worker| worker.deletions.len())
                .sum::<usize>(),
        ));
    }
    assert_eq!(places.first(), places.last());
}

#[test]
fn counts_repeated_dependencies_once() {
    let mut cluster = Cluster::new();
    let me = cluster.client("me");
    let worker = cluster.worker("tcp://w0:1", 1);
    let x = || Argument::Result(Key::from("x"));
    let tasks = [
        constant("x".to_owned()),
        Node::new("z", "operator.add", [x(), x()]),
    ];
    let graph: Graph = tasks.into_iter().collect();
    let message = UpdateGraph {
        expr_ser: graph.to_expression().expect("plain values"),
        keys: ["z"].into_iter().collect(),
        ..UpdateGraph::default()
    };
    let mut submission = Submission::read(message).expect("a graph");
    for task in &mut submission.part.tasks {
        let twice = task.dependencies.clone();
        task.dependencies.extend(twice);
    }
    cluster.handle(SchedulerInput::Submitted(me, submission));
    cluster.finish(worker, "x");
    let task = &cluster.running[&(worker, Key::from("z"))];
    assert_eq!((task.who_has.len(), task.nbytes.len()), (1, 1));
    cluster.finish(worker, "z");
    assert_eq!(cluster.sent_to_client(me), ["key-in-memory z"]);
}

#[test]
fn what_people_look_at_takes_no_longer_with_more_tasks() {
    let looked_at = |size: usize| {
        let mut cluster = Eager::new(4);
        let annotations = Value::dict([("resources", Value::dict([("GPU", 1)]))]);
        let unmet = (0..size).map(|number| constant(format!("gpu-{number}")));
        let keys = (0..size).map(|number| Key::from(format!("gpu-{number}")));
        cluster.submit_with(unmet, keys.collect(), annotations);
        let tasks = (0..size).map(|number| constant(name(number)));
        cluster.submit(tasks, names(size));
        cluster.work_on(size / 2);
        let state = &cluster.state;
        let steps = count(|| {
            let mut prefixes = Prefixes::new();
            assert!(!state.add_prefixes(0, &mut prefixes));
            assert_eq!(prefixes["gpu"].counts.of("no-worker"), size as u64);
            assert_eq!(prefixes["x"].counts.of("memory"), size as u64 / 2);
            assert_eq!(state.state_counts().total(), 2 * size as u64);
            assert_eq!(state.finished_count(), size as u64 / 2);
            assert_eq!(state.overview_workers(None, SLICE).len(), 4);
            assert_eq!(state.worker_counts().saturated, 4);
            let unmet = state.unmet_demands(20);
            assert_eq!((unmet.len(), unmet[0].count), (1, size));
            assert_eq!((unmet[0].keys.len(), unmet[0].resources["GPU"]), (20, 1.0));
            assert!(state.running_tasks("tcp://w0:1", 32).len() <= 32);
            let details = state.task_details(&Key::from("gpu-1"), 20);
            assert_eq!(details.expect("known").overview.state, "no-worker");
        });
        let searched = count(|| {
            let (found, next) = state.find_tasks(0, 20, |key, _| *key == Key::from("no"));
            assert_eq!((found.len(), next), (0, Some(1024)));
            let (nodes, next) = state.graph_of_tasks(0, Some("x"));
            assert_eq!((nodes.len(), next), (0, Some(1024)));
        });
        (steps, searched)
    };
    assert_eq!(looked_at(2_000), looked_at(16_000));
}

#[test]
fn spans_are_recorded_only_while_they_are_wanted() {
    let mut cluster = Eager::new(1);
    let run = |cluster: &mut Eager, first: usize, size: usize| {
        let numbers = first..first + size;
        let tasks = numbers.clone().map(|number| constant(name(number)));
        let keys = numbers.map(|number| Key::from(name(number))).collect();
        cluster.submit(tasks, keys);
        while let Some((worker, task)) = cluster.tasks.pop() {
            let step = |action: &str, start: f64| StartStop {
                action: action.to_owned(),
                start,
                stop: start + 0.5,
                ..StartStop::default()
            };
            let message = TaskFinished {
                key: task.key,
                run_id: task.run_id,
                thread: Some(7),
                startstops: vec![
                    step("transfer", 1.0),
                    step("compute", 2.0),
                    step("compute", f64::NAN),
                ],
                ..TaskFinished::default()
            };
            cluster.handle(SchedulerInput::FromWorker(worker, message.into()));
        }
    };
    run(&mut cluster, 0, 3);
    assert_eq!(cluster.state.span_count(), 0);
    cluster.state.record_spans(true);
    run(&mut cluster, 3, 3);
    let (first, spans) = cluster.state.spans(0, 100);
    assert_eq!((first, spans.len(), cluster.state.span_count()), (0, 6, 6));
    let compute = &spans[1];
    assert_eq!((compute.start, compute.stop, compute.thread), (2.0, 2.5, 7));
    assert_eq!((compute.kind, &*compute.prefix), (SpanKind::Compute, "x"));
    assert_eq!(spans[0].kind, SpanKind::Transfer);
    assert_eq!(cluster.state.spans(4, 1).1.len(), 1);
    assert_eq!(cluster.state.spans(100, 1), (6, Vec::new()));
    run(&mut cluster, 6, 5_000);
    let (first, spans) = cluster.state.spans(0, usize::MAX);
    assert_eq!((first, spans.len()), (10_006 - 8_192, 8_192));
    cluster.state.record_spans(false);
    run(&mut cluster, 5_006, 3);
    assert_eq!(cluster.state.spans(0, 100), (10_006, Vec::new()));
}
