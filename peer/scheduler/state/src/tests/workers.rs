//! Tests of the registration of workers.

use super::*;

#[test]
fn worker_names_and_addresses_are_unique() {
    let mut cluster = Cluster::new();
    cluster.worker("tcp://a:1", 1);
    let mut other = RegisterWorker {
        address: "tcp://a:1".to_owned(),
        name: Value::from("b"),
        ..RegisterWorker::default()
    };
    let refusal = cluster.join(other.clone()).expect_err("exists");
    assert_eq!(refusal.to_string(), "worker already exists tcp://a:1");
    other.address = "tcp://b:1".to_owned();
    other.name = Value::from("tcp://a:1");
    let refusal = cluster.join(other.clone()).expect_err("exists");
    assert_eq!(refusal.to_string(), "name taken, tcp://a:1");
    other.name = Value::list(["b"]);
    let refusal = cluster.join(other.clone()).expect_err("a list");
    assert!(matches!(refusal, WorkerRefusal::InvalidName { .. }));
    // The stream of the first worker is unaffected.
    cluster.last_id = 0;
    other.name = Value::from("b");
    assert_eq!(cluster.join(other), Err(WorkerRefusal::IdTaken));
    assert_eq!(cluster.state.worker_count(), 1);
    assert_eq!(cluster.ended_workers, []);
}

// ROLES SCHEDULER-1, SCHEDULER-2
#[test]
fn old_workers_and_clients_are_refused_and_versions_compared() {
    let mut cluster = Cluster::new();
    let versions = |release: &str, python: &str| {
        let packages = Value::dict([("distributed", release), ("python", python)]);
        Value::dict([("packages", packages)])
    };
    let worker = |address: &str, versions| RegisterWorker {
        address: address.to_owned(),
        versions,
        ..RegisterWorker::default()
    };
    let refused = cluster.join(worker("tcp://a:1", versions("2025.3.1", "3.12")));
    let refused = refused.expect_err("it is too old").to_string();
    assert_eq!(
        refused,
        "this scheduler does not serve a worker with distributed 2025.3.1: upgrade it to 2025.4.0 \
         or later"
    );
    assert_eq!(cluster.state.worker_count(), 0);
    cluster
        .join(worker("tcp://a:1", versions("2025.4.0", "3.12")))
        .expect("it is served");
    cluster.state.check();

    let mut join = |id, versions| {
        let id = ClientId(id);
        let name = format!("client {id:?}");
        let joined = SchedulerInput::ClientJoined {
            id,
            name,
            versions,
            returning: None,
        };
        let mut actions = cluster.state.handle(Duration::ZERO, joined).into_iter();
        let Some(Action::ToClient(to, ToClient::StreamStart(start))) = actions.next() else {
            panic!("a client's stream has a start");
        };
        assert_eq!(to, id);
        let is_ended = matches!(actions.next(), Some(Action::EndClient(ended)) if ended == id);
        (
            start.error.unwrap_or_default(),
            start.warning.unwrap_or_default(),
            is_ended,
        )
    };
    let (error, warning, is_ended) = join(1001, versions("2022.1.0", "3.12"));
    assert_eq!(
        error,
        "this scheduler does not serve a client with distributed 2022.1.0: upgrade it to 2025.4.0 \
         or later"
    );
    assert!(warning.is_empty() && is_ended);
    let none = (String::new(), String::new(), false);
    assert_eq!(join(1002, versions("2025.4.0", "3.12")), none);
    assert_eq!(join(1003, Value::None), none);
    let (error, warning, is_ended) = join(1004, versions("2026.8.0", "3.13"));
    assert!(error.is_empty() && !is_ended);
    assert!(warning.contains("| distributed | 2026.8.0 | 2025.4.0 |\n"));
    assert!(warning.contains("| python      | 3.13     | 3.12     |\n"));
}

/// `Client.write_scheduler_file` writes identities as JSON.
#[test]
fn identities_have_strings_as_keys() {
    let mut cluster = Cluster::new();
    cluster.worker("tcp://a:1", 1);
    let digest = (
        Value::tuple(["execute", "inc"].map(Value::from)),
        Value::from(0.1),
    );
    let metrics = Value::dict([
        ("cpu", Value::from(2.0)),
        ("digests_total_since_heartbeat", Value::dict([digest])),
    ]);
    cluster.handle(SchedulerInput::Heartbeat {
        worker: "tcp://a:1".to_owned(),
        metrics,
    });
    let (_, identity) = cluster.state.identities(None).remove(0);
    let expected = Value::dict([("cpu", Value::from(2.0))]);
    assert_eq!(identity.get("metrics"), Some(&expected));
}

#[test]
fn heartbeat_interval_grows_with_the_number_of_workers() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    assert_eq!(cluster.state.heartbeat_interval(), 0.5);
    cluster.send(client, HeartbeatClient::default());
    assert_eq!(
        cluster.sent_to_client(client),
        ["adjust-heartbeat-interval"]
    );
    for number in 0..11 {
        cluster.worker(&format!("tcp://w{number}:1"), 1);
    }
    assert_eq!(cluster.state.heartbeat_interval(), 1.0);
    // That of clients grows with the number of clients.
    let interval = |cluster: &mut Cluster| {
        cluster.send(client, HeartbeatClient::default());
        match cluster
            .to_clients
            .remove(&client)
            .and_then(|mut sent| sent.pop())
        {
            Some(ToClient::AdjustHeartbeatInterval(message)) => message.interval,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(interval(&mut cluster), 5.0);
    for number in 0..10 {
        cluster.client(&format!("client {number}"));
    }
    assert_eq!(interval(&mut cluster), 10.0);
}

#[test]
fn workers_are_found_by_host() {
    let mut cluster = Cluster::new();
    for address in ["tcp://10.0.0.1:1", "tcp://10.0.0.1:2", "tcp://10.0.0.2:1"] {
        cluster.worker(address, 1);
    }
    let on = |hosts: &[&str]| {
        let hosts: Vec<String> = hosts.iter().copied().map(str::to_owned).collect();
        cluster.state.workers_on(Some(&hosts))
    };
    assert_eq!(cluster.state.workers_on(None).len(), 3);
    assert_eq!(on(&[]), [""; 0]);
    assert_eq!(on(&["10.0.0.1"]), ["tcp://10.0.0.1:1", "tcp://10.0.0.1:2"]);
    assert_eq!(on(&["10.0.0.2", "10.0.0.3"]), ["tcp://10.0.0.2:1"]);
}

/// Registers a worker of these kinds, or one of Dask.
fn worker_of(cluster: &mut Cluster, address: &str, kinds: &[&str]) -> WorkerId {
    let extra = Value::dict([("daskwire", Value::list(kinds.iter().copied()))]);
    let worker = RegisterWorker {
        address: address.to_owned(),
        status: WorkerStatus::Running,
        nthreads: 4,
        extra_information: match kinds {
            [] => Value::None,
            _ => extra,
        },
        ..RegisterWorker::default()
    };
    cluster.join(worker).expect("it is new")
}

#[test]
fn a_task_that_waits_for_a_worker_in_rust_is_reported_once() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let calls = |key: &str, function: &str| Node::new(key, function, [1, 2]);
    let reports = |cluster: &Cluster| -> Vec<Key> {
        let notices = cluster.notices.iter();
        let keys = notices.filter_map(|notice| match notice {
            Notice::NoWorkerInRust { key } => Some(key.clone()),
            _ => None,
        });
        keys.collect()
    };
    // Without any worker, all tasks wait.
    cluster.submit(client, [calls("early", "native:hypot")], &["early"]);
    assert_eq!(reports(&cluster), []);
    worker_of(&mut cluster, "tcp://python:1", &["python"]);
    for key in ["first", "second"] {
        cluster.submit(client, [calls(key, "native:hypot")], &[key]);
        assert_eq!(cluster.status(key), Some(TaskState::NoWorker));
        assert_eq!(reports(&cluster), [Key::from("first")]);
    }
    cluster.submit(client, [calls("other", "operator.add")], &["other"]);
    let native = worker_of(&mut cluster, "tcp://native:1", &["native"]);
    assert!(cluster.assigned_to("first").is_some());
    cluster.lose_worker(native);
    cluster.submit(client, [calls("third", "native:hypot")], &["third"]);
    assert_eq!(reports(&cluster).len(), 2);
}

// ROLES WORKER-8
#[test]
fn tasks_run_where_their_functions_are() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let calls = |key: &str, function: &str| Node::new(key, function, [1, 2]);
    // Workers in Rust have some functions of Python.
    let native = worker_of(&mut cluster, "tcp://native:1", &["native"]);
    let small = worker_of(&mut cluster, "tcp://small:1", &["native", "embedded"]);
    cluster.submit(client, [calls("first", "operator.add")], &["first"]);
    assert_eq!(cluster.assigned_to("first"), Some(native));
    cluster.finish(native, "first");
    // Not once there is a worker that has all of them.
    let python = worker_of(&mut cluster, "tcp://python:1", &[]);
    let keys: Vec<String> = (0..20).map(|number| format!("p-{number}")).collect();
    let wanted: Vec<&str> = keys.iter().map(String::as_str).collect();
    let tasks = wanted.iter().map(|key| calls(key, "operator.add"));
    cluster.submit(client, tasks, &wanted);
    assert!(cluster.running.keys().all(|(on, _)| *on == python));
    cluster.submit(client, [calls("rust", "native:hypot")], &["rust"]);
    let on = cluster.assigned_to("rust").expect("two workers have it");
    assert!(on == native || on == small);
    // By name, each worker gets any task, as with Dask.
    let named = [("workers", Value::list(["tcp://small:1"]))];
    cluster.submit_with(client, [calls("named", "operator.add")], &["named"], &named);
    assert_eq!(cluster.assigned_to("named"), Some(small));
    // A task of both kinds needs a worker of both.
    let inner = Argument::Task(Box::new(calls("inner", "operator.add")));
    let both = Node::new("both", "native:hypot", [inner.clone(), inner]);
    cluster.submit(client, [both], &["both"]);
    assert_eq!(cluster.status("both"), Some(TaskState::NoWorker));
    let full = worker_of(&mut cluster, "tcp://full:1", &["native", "python"]);
    // The worker shares the other tasks, which were submitted earlier.
    while cluster.status("both") == Some(TaskState::Queued) {
        let running = cluster.running.keys().find(|(on, _)| *on == full);
        let (_, key) = running.cloned().expect("the worker has tasks");
        cluster.finish(full, &key.to_string());
    }
    assert_eq!(cluster.assigned_to("both"), Some(full));
    // Tasks in Python wait for the next worker that runs them.
    for worker in [python, full] {
        cluster.lose_worker(worker);
    }
    assert_eq!(cluster.status("p-0"), Some(TaskState::NoWorker));
}

#[test]
fn payloads_are_opened_within_tasks_of_workers_of_dask() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let run_spec = |cluster: &Cluster, on: WorkerId, key: &str| {
        let task = &cluster.running[&(on, Key::from(key))];
        task.run_spec.payload().expect("a payload").clone()
    };
    let rust = worker_of(&mut cluster, "tcp://rust:1", &["native", "python"]);
    cluster.submit(client, [add("x", &[]), add("y", &["x"])], &["y"]);
    let sent = run_spec(&cluster, rust, "x");
    assert_eq!(Node::read(&sent, &Key::from("x")), Ok(add("x", &[])));
    cluster.lose_worker(rust);
    let dask = worker_of(&mut cluster, "tcp://dask:1", &[]);
    cluster.finish(dask, "x");
    let sent = run_spec(&cluster, dask, "y");
    // What the worker opens holds the pickle of the task, and makes a task of its error.
    let task = &cluster.state.tasks[cluster.state.by_key.id("y")];
    let own = task
        .run_spec
        .as_ref()
        .expect("a task")
        .payload
        .to_serialized();
    assert_eq!(Node::read(&own, &Key::from("y")), Ok(add("y", &["x"])));
    let own = own.plain_pickle().expect("a pickle");
    let (opened, _) = sent.pickle().expect("a pickle");
    assert!(opened.windows(own.len()).any(|part| *part == own[..]));
    for name in ["excepts", "BaseException", "loads", "reraise"] {
        let name = name.as_bytes();
        assert!(opened.windows(name.len()).any(|part| part == name));
    }
}

#[test]
fn a_worker_that_ends_unasked_counts_for_its_tasks() {
    let close = FromWorker::from(CloseStream::default());
    let closing = FromWorker::from(WorkerStatusChange {
        status: WorkerStatus::Closing,
        ..WorkerStatusChange::default()
    });
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[])], &["x"]);
    for number in 0..4 {
        let worker = cluster.worker(&format!("tcp://w{number}:1"), 1);
        assert_eq!(cluster.assigned_to("x"), Some(worker));
        cluster.report(worker, closing.clone());
        cluster.report(worker, close.clone());
        cluster.lose_worker(worker);
    }
    assert_eq!(cluster.status("x"), Some(TaskState::Erred));
    let [message] = &cluster.sent_to_client(client)[..] else {
        panic!("one message");
    };
    assert!(message.contains("KilledWorker"), "{message}");
    // A worker that was asked to leave does not count, whatever it sends.
    cluster.submit(client, [add("y", &[])], &["y"]);
    for number in 10..20 {
        let address = format!("tcp://w{number}:1");
        let worker = cluster.worker(&address, 1);
        cluster.handle(SchedulerInput::RetireWorkers(vec![address]));
        cluster.report(worker, closing.clone());
        cluster.lose_worker(worker);
    }
    assert_eq!(cluster.status("y"), Some(TaskState::NoWorker));
}

// ROLES WORKER-7
#[test]
fn a_task_that_a_worker_gives_back_runs_on_another_or_fails() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let first = worker_of(&mut cluster, "tcp://a:1", &["native"]);
    let second = worker_of(&mut cluster, "tcp://b:1", &["native"]);
    worker_of(&mut cluster, "tcp://c:1", &[]);
    let give_back = |cluster: &mut Cluster, on, key: &str, stimulus: &str| {
        let found = cluster.running.remove(&(on, Key::from(key)));
        found.expect("it was sent there");
        let message = Reschedule {
            key: Key::from(key),
            stimulus_id: stimulus.to_owned(),
            extra: vec![(Value::from("reason"), Value::from("no hypot"))],
        };
        cluster.report(on, message);
    };
    let submit = |cluster: &mut Cluster, key| {
        cluster.submit(client, [Node::new(key, "native:hypot", [3, 4])], &[key]);
        cluster.assigned_to(key).expect("two workers run it")
    };
    let other = |on| if on == first { second } else { first };
    // For another reason, a worker may get the task again, after another.
    let on = submit(&mut cluster, "x");
    give_back(&mut cluster, on, "x", "reschedule-1");
    assert_eq!(cluster.assigned_to("x"), Some(other(on)));
    give_back(&mut cluster, other(on), "x", "reschedule-2");
    assert_eq!(cluster.assigned_to("x"), Some(on));
    give_back(&mut cluster, on, "x", "task-unsupported-1");
    assert_eq!(cluster.assigned_to("x"), Some(other(on)));
    cluster.finish(other(on), "x");
    assert!(cluster.state.retried.is_empty());
    let on = submit(&mut cluster, "y");
    give_back(&mut cluster, on, "y", "task-unsupported-1");
    let on = other(on);
    assert_eq!(cluster.assigned_to("y"), Some(on));
    // A worker that has paused may have the function.
    let third = worker_of(&mut cluster, "tcp://d:1", &["native"]);
    let status = |status| WorkerStatusChange {
        status,
        ..WorkerStatusChange::default()
    };
    cluster.report(third, status(WorkerStatus::Paused));
    give_back(&mut cluster, on, "y", "task-unsupported-1");
    assert_eq!(cluster.status("y"), Some(TaskState::NoWorker));
    cluster.report(third, status(WorkerStatus::Running));
    assert_eq!(cluster.assigned_to("y"), Some(third));
    cluster.sent_to_client(client);
    give_back(&mut cluster, third, "y", "task-unsupported-1");
    let [erred] = &cluster.sent_to_client(client)[..] else {
        panic!("no worker is left");
    };
    assert!(
        erred.starts_with("task-erred y NotImplementedError"),
        "{erred}"
    );
    assert!(erred.contains("workers asked: 3): no hypot"), "{erred}");
    // If it is retried, the workers are asked again.
    cluster.handle(SchedulerInput::Retry(vec![Key::from("y")]));
    let on = cluster.assigned_to("y").expect("any of them");
    cluster.finish(on, "y");
}

#[test]
fn heartbeats_are_answered_until_a_worker_that_was_asked_to_end_has_done_so() {
    let mut cluster = Cluster::new();
    cluster.worker("tcp://a:1", 1);
    let answers = |cluster: &Cluster| cluster.state.answers_heartbeats("tcp://a:1");
    assert!(answers(&cluster));
    cluster.handle(SchedulerInput::RemoveWorker {
        worker: "tcp://a:1".to_owned(),
        close: true,
        reason: LeaveReason::Retired,
    });
    assert!(answers(&cluster) && !cluster.state.has_worker("tcp://a:1"));
    cluster.pass(5_001);
    assert!(!answers(&cluster));
}

#[test]
fn tasks_may_name_the_first_worker_in_python_before_it_joins() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let workers = [("workers", Value::list(["tcp://a:1"]))];
    cluster.submit_with(client, [add("x", &[])], &["x"], &workers);
    let worker = cluster.worker("tcp://a:1", 1);
    assert_eq!(cluster.assigned_to("x"), Some(worker));
}
