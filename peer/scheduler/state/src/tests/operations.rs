use super::growth::{Eager, count, name, names, on};
use super::*;

fn finish(cluster: &mut Cluster, worker: WorkerId, key: &str, stop: f64) {
    let task = cluster.running.remove(&(worker, Key::from(key)));
    let task = task.expect("it runs");
    let step = StartStop {
        action: "compute".to_owned(),
        start: stop - 1.0,
        stop,
        ..StartStop::default()
    };
    let message = TaskFinished {
        key: task.key,
        run_id: task.run_id,
        nbytes: 28,
        metadata: vec![(Value::from("m"), Value::from(key))],
        startstops: vec![step],
        ..TaskFinished::default()
    };
    cluster.report(worker, message);
}

fn keys(records: &[Value]) -> Vec<String> {
    let keys = records.iter().map(|record| record.get("key"));
    keys.map(|key| key.expect("it has one").to_string())
        .collect()
}

#[test]
fn ended_tasks_are_recorded_once_they_were_asked_for() {
    let mut cluster = Cluster::new();
    let (client, worker) = (cluster.client("me"), cluster.worker("tcp://w:1", 1));
    let run = |cluster: &mut Cluster, key: &str, stop: f64| {
        cluster.submit(client, [add(key, &[])], &[key]);
        finish(cluster, worker, key, stop);
    };
    run(&mut cluster, "early", 1.0);
    assert_eq!(cluster.state.recorded_count(), 0);
    cluster.handle(SchedulerInput::RecordTasks);
    for (key, stop) in [("a", 10.0), ("b", 20.0), ("c", 30.0), ("d", 40.0)] {
        run(&mut cluster, key, stop);
    }
    let all = RecordRange::default();
    let of = |range: RecordRange| keys(&cluster.state.recorded_tasks(&range)).join("");
    assert_eq!(of(all), "'a''b''c''d'");
    let (start, stop) = (Some(20.0), Some(40.0));
    assert_eq!(of(RecordRange { start, ..all }), "'b''c''d'");
    assert_eq!(of(RecordRange { start, stop, ..all }), "'b''c'");
    let count = Some(2);
    assert_eq!(of(RecordRange { count, ..all }), "'c''d'");
    assert_eq!(
        of(RecordRange {
            start,
            count,
            ..all
        }),
        "'b''c'"
    );
    assert_eq!(of(RecordRange { stop, count, ..all }), "'b''c'");
    for (index, expected) in [(3, "'d'"), (-3, "'a''b''c''d'"), (i64::MAX, "")] {
        let start_index = Some(index);
        assert_eq!(of(RecordRange { start_index, ..all }), expected);
    }
    let count = Some(i64::MIN);
    assert_eq!(of(RecordRange { count, ..all }), "");
    let record = &cluster.state.recorded_tasks(&all)[0];
    assert_eq!(record.get("worker"), Some(&Value::from("tcp://w:1")));
    assert_eq!(record.get("status"), Some(&Value::from("OK")));
}

#[test]
fn the_number_of_recorded_tasks_is_limited() {
    let mut cluster = Cluster::new();
    cluster.state = State::new(Policy::default().with_task_stream_length(2));
    let (client, worker) = (cluster.client("me"), cluster.worker("tcp://w:1", 1));
    cluster.handle(SchedulerInput::RecordTasks);
    for key in ["a", "b", "c"] {
        cluster.submit(client, [add(key, &[])], &[key]);
        finish(&mut cluster, worker, key, 1.0);
    }
    let all = cluster.state.recorded_tasks(&RecordRange::default());
    assert_eq!(keys(&all), ["'b'", "'c'"]);
    assert_eq!(cluster.state.recorded_count(), 3);
    let start_index = Some(2);
    let last = cluster.state.recorded_tasks(&RecordRange {
        start_index,
        ..RecordRange::default()
    });
    assert_eq!(keys(&last), ["'c'"]);
}

#[test]
fn metadata_of_submitted_tasks_is_collected() {
    let mut cluster = Cluster::new();
    let (client, worker) = (cluster.client("me"), cluster.worker("tcp://w:1", 1));
    cluster.submit(client, [add("early", &[])], &["early"]);
    cluster.handle(SchedulerInput::CollectionStarted("one".to_owned()));
    cluster.submit(client, [add("a", &[])], &["a"]);
    finish(&mut cluster, worker, "early", 1.0);
    finish(&mut cluster, worker, "a", 1.0);
    let metadata = Value::dict([("m", "a")]);
    let expected = Value::dict([
        ("metadata", Value::dict([("a", metadata)])),
        ("state", Value::dict([("a", "memory")])),
    ]);
    assert_eq!(cluster.state.collected_metadata("one"), Some(expected));
    cluster.handle(SchedulerInput::CollectionEnded("one".to_owned()));
    assert_eq!(cluster.state.collected_metadata("one"), None);
}

#[test]
fn tasks_run_once_a_worker_has_their_resources() {
    let mut cluster = Cluster::new();
    let (client, worker) = (cluster.client("me"), cluster.worker("tcp://w:1", 4));
    let gpu = [("resources", Value::dict([("GPU", 2)]))];
    cluster.submit_with(client, [add("a", &[])], &["a"], &gpu);
    cluster.submit_with(client, [add("b", &[])], &["b"], &gpu);
    assert!(cluster.running.is_empty());
    let set = |cluster: &mut Cluster, amount: f64| {
        cluster.handle(SchedulerInput::ResourcesSet {
            worker: "tcp://w:1".to_owned(),
            resources: vec![("GPU".to_owned(), amount)],
        });
    };
    set(&mut cluster, 2.0);
    assert_eq!(cluster.running.len(), 1);
    // The other task waits for the first, until there are none of the resource left.
    set(&mut cluster, 1.0);
    finish(&mut cluster, worker, "a", 1.0);
    assert!(cluster.running.is_empty());
    let status = cluster.state.status(&Key::from("b"));
    assert_eq!(status, Some(TaskState::from("no-worker")));
    set(&mut cluster, 4.0);
    finish(&mut cluster, worker, "b", 1.0);
}

#[test]
fn restrictions_move_tasks_that_wait() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let first = cluster.worker("tcp://one:1", 1);
    let nowhere = [("workers", Value::from("nowhere"))];
    cluster.submit_with(client, [add("a", &[])], &["a"], &nowhere);
    assert!(cluster.running.is_empty());
    let restrict = |cluster: &mut Cluster, workers: &[&str]| {
        let workers = workers.iter().map(|worker| (*worker).to_owned());
        let tasks = vec![(Key::from("a"), workers.collect())];
        cluster.handle(SchedulerInput::Restricted(tasks));
    };
    restrict(&mut cluster, &["tcp://two:1", "elsewhere"]);
    assert!(cluster.running.is_empty());
    let second = cluster.worker("tcp://two:1", 1);
    assert!(cluster.running.contains_key(&(second, Key::from("a"))));
    // A task that runs is not moved.
    restrict(&mut cluster, &["tcp://one:1"]);
    assert_eq!(cluster.running.len(), 1);
    cluster.lose_worker(second);
    assert!(cluster.running.contains_key(&(first, Key::from("a"))));
}

#[test]
fn copies_are_added_and_dropped_but_not_the_last() {
    let mut cluster = Cluster::new();
    let _client = cluster.client("me");
    let one = cluster.worker("tcp://one:1", 1);
    let two = cluster.worker("tcp://two:1", 1);
    cluster.scatter("me", "x", 8, &["tcp://one:1"]);
    cluster.handle(SchedulerInput::ReplicasAdded {
        worker: "tcp://two:1".to_owned(),
        keys: ["x", "unknown"].into_iter().collect(),
    });
    let holders = |cluster: &Cluster| {
        let holders: Vec<String> = cluster
            .state
            .holders(&Key::from("x"))
            .map(str::to_owned)
            .collect();
        holders
    };
    assert_eq!(holders(&cluster).len(), 2);
    let removed = |cluster: &mut Cluster, worker| {
        let messages = cluster.to_workers.remove(&worker).unwrap_or_default();
        let removed = messages.into_iter().filter_map(|message| match message {
            ToWorker::RemoveReplicas(message) => Some(message.keys.0),
            _ => None,
        });
        removed.flatten().collect::<Vec<Key>>()
    };
    assert_eq!(removed(&mut cluster, two), [Key::from("unknown")]);
    for _ in 0..2 {
        for worker in ["tcp://one:1", "tcp://two:1"] {
            cluster.handle(SchedulerInput::ReplicasDropped {
                worker: worker.to_owned(),
                keys: vec![Key::from("x"), Key::from("y")],
            });
        }
    }
    assert_eq!(removed(&mut cluster, one), [Key::from("x")]);
    assert_eq!(removed(&mut cluster, two), []);
    assert_eq!(holders(&cluster), ["tcp://two:1"]);
    // A worker that needs the copy keeps it: its deletion is not ordered.
    cluster.pass(1000);
    assert_eq!(cluster.sent_to_worker(one), [""; 0]);
}

/// A worker with a memory limit of 1000 bytes and this much data.
fn with_data(cluster: &mut Cluster, address: &str, items: &[(&str, u64)]) -> WorkerId {
    let worker = RegisterWorker {
        extra_information: rust_worker(),
        address: address.to_owned(),
        name: Value::from(address),
        status: WorkerStatus::Running,
        nthreads: 1,
        memory_limit: Nullable(Some(1000)),
        ..RegisterWorker::default()
    };
    let id = cluster.join(worker).expect("it is new");
    for (key, nbytes) in items {
        cluster.scatter("me", key, *nbytes, &[address]);
    }
    id
}

#[test]
fn data_is_rebalanced_as_in_dask() {
    let mut cluster = Cluster::new();
    let _client = cluster.client("me");
    let items = [("a", 250), ("b", 250), ("c", 250), ("d", 50)];
    let full = with_data(&mut cluster, "tcp://full:1", &items);
    let empty = with_data(&mut cluster, "tcp://empty:1", &[]);
    let moved = |cluster: &Cluster, keys: Option<&[&str]>, workers: Option<&[WorkerId]>| {
        let keys = keys.map(|keys| keys.iter().copied().map(Key::from).collect());
        let moves = cluster.state.rebalancing(keys.as_ref(), workers);
        for step in &moves {
            assert_eq!((&*step.from, &*step.to), ("tcp://full:1", "tcp://empty:1"));
        }
        let keys = moves.into_iter().map(|step| step.key.to_string());
        keys.collect::<Vec<_>>()
    };
    // Each has 400 bytes on average; one more key would be too much.
    assert_eq!(moved(&cluster, None, None), ["a", "d"]);
    assert_eq!(moved(&cluster, Some(&["b"]), None), ["b"]);
    assert_eq!(moved(&cluster, None, Some(&[full])), [""; 0]);
    assert_eq!(moved(&cluster, None, Some(&[full, empty])), ["a", "d"]);
    // A worker that has a key already does not get it again.
    cluster.handle(SchedulerInput::ReplicasAdded {
        worker: "tcp://empty:1".to_owned(),
        keys: ["a"].into_iter().collect(),
    });
    assert_eq!(moved(&cluster, None, None), ["b"]);
}

#[test]
fn small_differences_are_not_balanced() {
    let mut cluster = Cluster::new();
    let _client = cluster.client("me");
    // Below 30 % of the memory limit, nothing is moved.
    with_data(&mut cluster, "tcp://one:1", &[("a", 100), ("b", 100)]);
    with_data(&mut cluster, "tcp://two:1", &[]);
    assert_eq!(cluster.state.rebalancing(None, None), []);
    assert_eq!(State::new(Policy::default()).rebalancing(None, None), []);
}

#[test]
fn causes_of_failures_and_running_tasks_are_found() {
    let mut cluster = Cluster::new();
    let (client, worker) = (cluster.client("me"), cluster.worker("tcp://w:1", 1));
    let tasks = [add("a", &[]), add("b", &["a"]), add("c", &["b"])];
    cluster.submit(client, tasks, &["c"]);
    let key = Key::from;
    let running = cluster.state.running_for(&[key("c")]).expect("known");
    assert_eq!(running["tcp://w:1"], [key("a")]);
    let unknown = cluster.state.running_for(&[key("c"), key("x")]);
    assert_eq!(unknown, Err(key("x")));
    let mut prefixes = Prefixes::new();
    assert!(!cluster.state.add_prefixes(0, &mut prefixes));
    assert_eq!(prefixes["a"].counts.of("processing"), 1);
    assert_eq!(cluster.state.error_cause(&[key("c")]), None);
    let task = cluster
        .running
        .remove(&(worker, key("a")))
        .expect("it runs");
    let message = TaskErred {
        key: task.key,
        run_id: task.run_id,
        exception: Value::from("bad"),
        ..TaskErred::default()
    };
    cluster.report(worker, message);
    assert_eq!(cluster.state.error_cause(&[key("c")]), Some(key("a")));
    assert!(matches!(cluster.state.run_spec(&key("c")), Ok(Some(_))));
    assert_eq!(cluster.state.run_spec(&key("x")), Err(key("x")));
    let parts = dump(&cluster, &["events"]);
    let names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
    let expected = [
        "tasks",
        "workers",
        "clients",
        "task_groups",
        "extensions",
        "transition_log",
    ];
    assert_eq!(names, expected);
    let c = parts[0].1.get("c").expect("it is known");
    assert_eq!(c.get("state"), Some(&Value::from("erred")));
    // Python's writer of MessagePack has no sets, and the event of a lost worker has.
    cluster.lose_worker(worker);
    let parts = dump(&cluster, &[]);
    let events = parts.iter().find(|(name, _)| *name == "events");
    let Some(Value::List(all)) = events.and_then(|(_, events)| events.get("all")) else {
        panic!("{events:?}");
    };
    let Some(Value::Tuple(event)) = all.last() else {
        panic!("{all:?}");
    };
    assert_eq!(event[1].get("action"), Some(&Value::from("remove-worker")));
    let lost = event[1].get("lost-scattered-tasks");
    assert_eq!(lost, Some(&Value::List([].into())));
}

#[test]
fn the_answers_of_workers_to_deletions_are_awaited() {
    let mut cluster = Cluster::new();
    let (client, names) = (cluster.client("me"), ["tcp://a:1", "tcp://b:1"]);
    let [one, _] = names.map(|name| cluster.worker(name, 1));
    let keys = ["x", "y", "z"].map(Key::from);
    for key in ["x", "y", "z"] {
        cluster.scatter("me", key, 1, &names);
    }
    let drop = || SchedulerInput::ReplicasDropped {
        worker: "tcp://a:1".to_owned(),
        keys: keys.to_vec(),
    };
    cluster.handle(drop());
    let is_left = |cluster: &Cluster, key: usize| {
        let keys = core::slice::from_ref(&keys[key]);
        cluster.state.is_dropping("tcp://a:1", keys)
    };
    assert!((0..3).all(|key| is_left(&cluster, key)));
    let deleted = ReleaseWorkerData {
        key: keys[0].clone(),
        ..ReleaseWorkerData::default()
    };
    cluster.report(one, deleted);
    let kept = AddKeys {
        keys: [keys[1].clone()].into_iter().collect(),
        ..AddKeys::default()
    };
    cluster.report(one, kept);
    assert_eq!(
        [0, 1, 2].map(|key| is_left(&cluster, key)),
        [false, false, true]
    );
    let event = cluster
        .state
        .events("tcp://a:1")
        .pop()
        .expect("it is published");
    let Value::Tuple(event) = event else {
        panic!("{event}");
    };
    let expected = Value::dict([
        ("action", Value::from("remove-worker-data")),
        ("keys", Value::list(["x", "y", "z"])),
    ]);
    assert_eq!(event[1], expected);
    // An answer that does not come is forgotten with a later request.
    cluster.now += Duration::from_secs(61);
    cluster.handle(drop());
    assert_eq!(
        [0, 1, 2].map(|key| is_left(&cluster, key)),
        [false, true, false]
    );
    cluster.lose_worker(one);
    assert!(!is_left(&cluster, 1));
    cluster.release(client, &["x", "y", "z"]);
}

fn dump(cluster: &Cluster, exclude: &[&str]) -> Vec<(&'static str, Value)> {
    let exclude: Vec<String> = exclude.iter().map(|name| (*name).to_owned()).collect();
    let mut dump = Dump::new(&exclude);
    while !cluster.state.dump_slice(&mut dump) {}
    dump.into_parts()
}

#[test]
fn a_dump_has_the_lists_of_tasks_workers_and_clients() {
    let mut cluster = Cluster::new();
    let (client, names) = (cluster.client("me"), ["tcp://a:1", "tcp://b:1"]);
    let [worker, other] = names.map(|name| cluster.worker(name, 1));
    cluster.scatter("me", "x", 1, &names);
    cluster.scatter("me", "y", 1, &names);
    let keys = ["a", "b"];
    let named = [("workers", Value::list(["tcp://a:1"]))];
    cluster.submit_with(client, keys.map(|key| add(key, &["x"])), &keys, &named);
    // Its copy is removed with the next slices.
    cluster.state.slice_len = 1;
    let actions = cluster
        .state
        .handle(cluster.now, SchedulerInput::WorkerLeft(other));
    cluster.act(actions);
    let parts: BTreeMap<&str, Value> = dump(&cluster, &["annotations"]).into_iter().collect();
    let field = |part: &str, name: &str, field: &str| {
        let entry = parts[part].get(name).expect("it is known");
        entry.get(field).cloned()
    };
    let list = |keys: &[&str]| Some(Value::list(keys.iter().copied()));
    assert_eq!(field("tasks", "x", "dependents"), list(&keys));
    assert_eq!(field("tasks", "x", "who_has"), list(&["tcp://a:1"]));
    assert_eq!(field("tasks", "a", "dependencies"), list(&["x"]));
    assert_eq!(field("tasks", "a", "annotations"), None);
    assert_eq!(field("workers", "tcp://a:1", "has_what"), list(&["x", "y"]));
    assert_eq!(field("workers", "tcp://a:1", "processing"), list(&keys));
    assert_eq!(
        field("clients", "me", "wants_what"),
        list(&["x", "y", "a", "b"])
    );
    let events = parts["events"].get("all").expect("something has happened");
    assert!(
        matches!(events, Value::List(events) if events.len() == 3),
        "{events}"
    );
    assert!(cluster.state.workers.contains_key(&worker));
}

#[test]
fn a_slice_of_a_dump_takes_a_bounded_number_of_steps() {
    let most = |tasks: usize| {
        let mut cluster = Eager::new(4);
        // One task with many dependents, a worker with much data, and a client that wants all.
        let first = Node::new("x-0", "operator.add", [1]);
        let rest =
            (1..tasks).map(|number| Node::new(name(number).as_str(), "operator.neg", [on(0)]));
        cluster.submit([first].into_iter().chain(rest), names(tasks));
        cluster.work();
        let mut dump = Dump::new(&[]);
        let mut most = 0;
        loop {
            let mut is_done = false;
            most = most.max(count(|| is_done = cluster.state.dump_slice(&mut dump)));
            if is_done {
                break;
            }
        }
        let parts = dump.into_parts();
        let Value::Dict(dumped) = &parts[0].1 else {
            panic!("tasks are a dictionary");
        };
        assert_eq!(dumped.len(), tasks);
        let dependents = parts[0]
            .1
            .get("x-0")
            .and_then(|first| first.get("dependents"));
        assert!(matches!(dependents, Some(Value::List(keys)) if keys.len() == tasks - 1));
        most
    };
    let (few, many) = (most(8_000), most(16_000));
    assert!(many <= few + 10, "{few}, {many}");
}

#[test]
fn memory_is_sampled_until_the_client_leaves() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let worker = RegisterWorker {
        address: "tcp://a:1".to_owned(),
        nthreads: 1,
        metrics: Value::dict([("memory", 60)]),
        ..RegisterWorker::default()
    };
    cluster.join(worker).expect("it is new");
    let start = |key: &str, measure| SchedulerInput::MemorySamplerStarted {
        key: key.to_owned(),
        client: "me".to_owned(),
        measure,
        interval: Duration::from_millis(50),
    };
    cluster.now = Duration::from_secs(10);
    cluster.handle(start("process", MemoryMeasure::Process));
    let disk = Value::dict([("memory", 20), ("disk", 10)]);
    let metrics = Value::dict([("memory", Value::from(100)), ("spilled_bytes", disk)]);
    cluster.scatter("me", "x", 50, &["tcp://a:1"]);
    cluster.handle(SchedulerInput::Heartbeat {
        worker: "tcp://a:1".to_owned(),
        metrics,
    });
    cluster.pass(40);
    cluster.pass(40);
    cluster.pass(20);
    let samples =
        |cluster: &Cluster, key: &str| cluster.state.memory_samples(key).map(<[_]>::to_vec);
    let expected = vec![(10.0, 60), (10.08, 100)];
    assert_eq!(samples(&cluster, "process"), Some(expected));
    let measures = [
        (MemoryMeasure::Managed, 30),
        (MemoryMeasure::Spilled, 10),
        (MemoryMeasure::ManagedTotal, 40),
        (MemoryMeasure::Unmanaged, 70),
        (MemoryMeasure::UnmanagedOld, 60),
        (MemoryMeasure::UnmanagedRecent, 10),
        (MemoryMeasure::Optimistic, 90),
    ];
    for (index, (measure, expected)) in measures.into_iter().enumerate() {
        let key = index.to_string();
        cluster.handle(start(&key, measure));
        let first = samples(&cluster, &key).expect("it runs")[0];
        assert_eq!(first.1, expected, "{measure:?}");
        cluster.handle(SchedulerInput::MemorySamplerStopped(key));
    }
    cluster.handle(SchedulerInput::ClientLeft(client));
    cluster.pass(50);
    assert_eq!(samples(&cluster, "process"), None);
    cluster.client("me");
    for key in 0..100 {
        cluster.handle(start(&key.to_string(), MemoryMeasure::Process));
    }
    assert!(cluster.state.has_all_samplers());
    assert!(samples(&cluster, "63").is_some() && samples(&cluster, "64").is_none());
}

#[test]
fn tasks_have_the_id_of_their_span() {
    let mut cluster = Cluster::new();
    let (client, worker) = (cluster.client("me"), cluster.worker("tcp://w:1", 4));
    let spans = |ids: &[&str]| Value::dict([("ids", Value::tuple(ids.iter().copied()))]);
    let inner = [("span", spans(&["outer", "inner"]))];
    cluster.submit_with(client, [add("a", &[])], &["a"], &inner);
    cluster.submit_with(client, [add("b", &[])], &["b"], &[("span", spans(&[]))]);
    let sent = |key: &str| &cluster.running[&(worker, Key::from(key))];
    assert_eq!(sent("a").span_id.0.as_deref(), Some("inner"));
    assert_eq!(sent("b").span_id.0, None);
    assert_eq!(sent("a").stimulus_id, "compute-task-0");
}
