use super::*;

/// Submits a task `a` that makes an actor, and tasks that use it.
fn submit(cluster: &mut Cluster, client: ClientId) {
    let users = ["b", "c", "d", "e"].map(|key| add(key, &["a"]));
    let graph: Graph = [add("a", &[])].into_iter().chain(users).collect();
    let message = UpdateGraph {
        expr_ser: graph.to_expression().expect("plain values"),
        keys: ["a", "b", "c", "d", "e"].into_iter().collect(),
        actors: Actors::Keys(["a"].into_iter().collect()),
        ..UpdateGraph::default()
    };
    cluster.send(client, message);
}

fn statuses(cluster: &Cluster) -> [Option<TaskState>; 2] {
    ["a", "b"].map(|key| cluster.state.status(&Key::from(key)))
}

#[test]
fn an_actor_is_lost_with_its_worker() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let first = cluster.worker("tcp://one:1", 1);
    submit(&mut cluster, client);
    assert!(cluster.running[&(first, Key::from("a"))].actor);
    cluster.finish(first, "a");
    assert!(!cluster.running[&(first, Key::from("b"))].actor);
    // Another worker has a handle for it.
    let _second = cluster.worker("tcp://two:1", 1);
    cluster.handle(SchedulerInput::ReplicasAdded {
        worker: "tcp://two:1".to_owned(),
        keys: ["a"].into_iter().collect(),
    });
    assert!(!cluster.state.can_retire("tcp://one:1"));
    assert!(cluster.state.can_retire("tcp://two:1"));
    cluster.to_clients.clear();
    cluster.lose_worker(first);
    assert_eq!(
        statuses(&cluster),
        [Some(TaskState::Erred), Some(TaskState::Erred)]
    );
    let failed = cluster.to_clients[&client].iter().filter(|message| {
        let ToClient::TaskErredForClient(message) = message else {
            return false;
        };
        let error = RemoteError::of_fields(&message.exception, None);
        assert_eq!(
            error.to_string(),
            "RuntimeError: Worker holding Actor was lost"
        );
        true
    });
    assert_eq!(failed.count(), 5);
    // A client may have it made again.
    cluster.handle(SchedulerInput::Retry(vec![Key::from("a")]));
    assert_eq!(statuses(&cluster)[0], Some(TaskState::Processing));
}

#[test]
fn an_actor_that_is_not_needed_is_released_like_other_results() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let worker = cluster.worker("tcp://one:1", 1);
    submit(&mut cluster, client);
    for key in ["a", "b", "c", "d", "e"] {
        cluster.finish(worker, key);
    }
    cluster.release(client, &["a", "b", "c", "d", "e"]);
    assert_eq!(cluster.state.task_count(), 0);
    assert!(cluster.state.can_retire("tcp://one:1"));
}

#[test]
fn the_loss_of_a_handle_is_not_that_of_the_actor() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let first = cluster.worker("tcp://one:1", 1);
    submit(&mut cluster, client);
    cluster.finish(first, "a");
    let second = cluster.worker("tcp://two:1", 1);
    cluster.handle(SchedulerInput::ReplicasAdded {
        worker: "tcp://two:1".to_owned(),
        keys: ["a"].into_iter().collect(),
    });
    cluster.lose_worker(second);
    assert_eq!(statuses(&cluster)[0], Some(TaskState::Memory));
}

/// Submits tasks that make actors of one input.
fn submit_many(cluster: &mut Cluster, client: ClientId, keys: &[&str], annotations: Value) {
    let graph: Graph = keys.iter().map(|key| add(key, &["input"])).collect();
    let message = UpdateGraph {
        expr_ser: graph.to_expression().expect("plain values"),
        keys: keys.iter().copied().collect(),
        actors: Actors::Wanted,
        annotations: Some(annotations),
        ..UpdateGraph::default()
    };
    cluster.send(client, message);
}

#[test]
fn actors_are_placed_evenly() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let workers = [
        "tcp://a:1",
        "tcp://b:1",
        "tcp://c:1",
        "tcp://d:1",
        "tcp://e:1",
    ];
    let workers = workers.map(|address| cluster.worker(address, 1));
    cluster.scatter("me", "input", 1 << 20, &["tcp://b:1"]);
    let keys = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    submit_many(&mut cluster, client, &keys, Value::None);
    let mut counts = [0; 5];
    while let Some((on, key)) = cluster.running.keys().next().cloned() {
        cluster.finish(on, &key.to_string());
        let index = workers.iter().position(|worker| *worker == on);
        counts[index.expect("it has joined")] += 1;
    }
    assert_eq!(counts, [2; 5]);
    // Those that are released do not count.
    cluster.release(client, &keys);
    cluster.pass(100);
    let named = Value::dict([("workers", Value::list(["tcp://b:1", "tcp://d:1"]))]);
    submit_many(&mut cluster, client, &["x", "y"], named);
    let places: BTreeSet<WorkerId> = cluster.running.keys().map(|(on, _)| *on).collect();
    assert_eq!(places, BTreeSet::from([workers[1], workers[3]]));
    // An idle worker takes none over.
    cluster.lose_worker(workers[3]);
    let named = Value::dict([("workers", Value::list(["tcp://b:1", "tcp://d:1"]))]);
    submit_many(&mut cluster, client, &["z"], named);
    cluster.worker("tcp://d:1", 1);
    cluster.pass(600);
    assert_eq!(cluster.state.workers[&workers[1]].actors.len(), 3);
}

#[test]
fn actors_of_a_graph_in_parts_are_made_once_it_is_whole() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let worker = cluster.worker("tcp://one:1", 1);
    let graph: Graph = [add("a", &[]), add("b", &["a"])].into_iter().collect();
    let message = UpdateGraph {
        expr_ser: graph.to_expression().expect("plain values"),
        keys: ["a", "b"].into_iter().collect(),
        actors: Actors::Keys(["a"].into_iter().collect()),
        ..UpdateGraph::default()
    };
    let submission = Submission::read(message).expect("plain values");
    for part in in_parts(client, submission, || 1) {
        assert_eq!(cluster.sent_to_worker(worker), [""; 0]);
        cluster.handle(part);
    }
    assert!(cluster.running[&(worker, Key::from("a"))].actor);
}
