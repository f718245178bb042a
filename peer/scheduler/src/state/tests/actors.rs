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
    cluster.handle(Event::ReplicasAdded {
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
    cluster.handle(Event::Retry(vec![Key::from("a")]));
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
    cluster.handle(Event::ReplicasAdded {
        worker: "tcp://two:1".to_owned(),
        keys: ["a"].into_iter().collect(),
    });
    cluster.lose_worker(second);
    assert_eq!(statuses(&cluster)[0], Some(TaskState::Memory));
}
