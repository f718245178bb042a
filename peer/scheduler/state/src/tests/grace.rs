//! Clients that disconnect and return.

use super::*;

const GRACE: Duration = Duration::from_secs(60);

fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.state = State::new(Policy {
        client_grace: GRACE,
        ..Policy::default()
    });
    cluster
}

impl Cluster {
    /// Registers a client, and returns the start of its stream.
    fn returns(&mut self, name: &str, returning: Option<bool>) -> (ClientId, StreamStart) {
        let id = ClientId(self.next_id());
        self.handle(SchedulerInput::ClientJoined {
            id,
            name: name.to_owned(),
            versions: Value::None,
            returning,
        });
        let messages = self.to_clients.get_mut(&id).expect("it is accepted");
        match messages.remove(0) {
            ToClient::StreamStart(start) => (id, start),
            other => panic!("{other:?}"),
        }
    }

    fn desire(&mut self, client: ClientId, keys: &[&str]) {
        let message = ClientDesiresKeys {
            keys: keys.iter().copied().collect(),
            ..ClientDesiresKeys::default()
        };
        self.send(client, message);
    }

    fn confirm(&mut self, client: ClientId) {
        self.send(client, KeysConfirmed::default());
    }

    /// The number of accepted graphs of which a client was told last.
    fn accepted(&mut self, client: ClientId) -> Option<u64> {
        let messages = self.to_clients.remove(&client).unwrap_or_default();
        let mut counts = messages.iter().filter_map(|message| match message {
            ToClient::GraphsAccepted(message) => Some(message.count),
            _ => None,
        });
        counts.next_back()
    }

    /// The reasons that a client is given for keys that are cancelled.
    fn reasons(&mut self, client: ClientId) -> Vec<String> {
        let messages = self.to_clients.remove(&client).unwrap_or_default();
        let cancelled = messages.into_iter().filter_map(|message| match message {
            ToClient::CancelledKeys(message) => Some(message),
            _ => None,
        });
        let text = |message: CancelledKeys| {
            let reason = message.reason.unwrap_or_default();
            format!("{reason}: {}", message.msg.unwrap_or_default())
        };
        cancelled.map(text).collect()
    }
}

fn task(key: &str) -> Node {
    Node::new(key, "operator.add", [1, 2])
}

#[test]
fn a_client_that_returns_finds_its_keys() {
    let mut cluster = cluster();
    let worker = cluster.worker("tcp://a:1", 1);
    let (client, start) = cluster.returns("me", Some(false));
    assert_eq!((start.graphs_accepted, start.lost), (None, None));
    cluster.submit(client, [task("x"), task("y"), task("z")], &["x", "y", "z"]);
    cluster.finish(worker, "x");
    cluster.handle(SchedulerInput::ClientLeft(client));
    assert_eq!(cluster.ended_clients, [client]);
    assert_eq!(cluster.state.client_count(), 0);
    assert_eq!(cluster.state.grace_count(), 1);
    let notice = cluster.notices.pop().expect("a notice");
    assert_eq!(
        notice.to_string(),
        "the client me is disconnected; its 3 keys are kept for 60 s"
    );
    // The tasks continue meanwhile, and nothing is sent to the stream.
    cluster.to_clients.clear();
    cluster.finish(worker, "y");
    cluster.pass(59_000);
    assert!(cluster.to_clients.is_empty());
    assert_eq!(cluster.state.task_count(), 3);
    assert!(cluster.assigned_to("z").is_some());

    let (again, start) = cluster.returns("me", Some(true));
    assert_eq!((start.graphs_accepted, start.lost), (Some(1), None));
    assert_eq!(cluster.state.client_count(), 1);
    assert_eq!(cluster.state.grace_count(), 0);
    // It has dropped the future of x meanwhile.
    cluster.desire(again, &["y", "z"]);
    assert_eq!(cluster.sent_to_client(again), ["key-in-memory y"]);
    assert_eq!(cluster.status("x"), Some(TaskState::Memory));
    cluster.confirm(again);
    assert_eq!(cluster.status("x"), None);
    cluster.finish(worker, "z");
    assert_eq!(cluster.sent_to_client(again), ["key-in-memory z"]);
    // What is late of the earlier stream is ignored.
    cluster.release(client, &["y", "z"]);
    cluster.handle(SchedulerInput::ClientLeft(client));
    assert_eq!(cluster.state.task_count(), 2);
    // The grace does not end for a client that is connected.
    cluster.pass(120_000);
    assert_eq!(cluster.state.task_count(), 2);
    cluster.release(again, &["y", "z"]);
    assert_eq!(cluster.state.task_count(), 0);
    cluster.handle(SchedulerInput::ClientLeft(again));
    assert_eq!(cluster.ended_clients, [client, again]);
}

#[test]
fn a_client_returns_before_the_end_of_its_connection_is_noticed() {
    let mut cluster = cluster();
    let worker = cluster.worker("tcp://a:1", 1);
    let (first, _) = cluster.returns("me", Some(false));
    cluster.submit(first, [task("x")], &["x"]);
    let (second, start) = cluster.returns("me", Some(true));
    assert_eq!(start.graphs_accepted, Some(1));
    assert_eq!(cluster.ended_clients, [first]);
    let (third, _) = cluster.returns("me", Some(true));
    assert_eq!(cluster.ended_clients, [first, second]);
    cluster.handle(SchedulerInput::ClientLeft(second));
    cluster.desire(third, &["x"]);
    cluster.confirm(third);
    cluster.finish(worker, "x");
    assert_eq!(cluster.sent_to_client(third), ["key-in-memory x"]);
    assert_eq!(cluster.state.totals().clients_added, 3);
    assert_eq!(cluster.state.totals().clients_removed, 2);
}

#[test]
fn a_client_that_does_not_return_is_removed_and_told_why() {
    let mut cluster = cluster();
    let worker = cluster.worker("tcp://a:1", 1);
    let (client, _) = cluster.returns("me", Some(false));
    cluster.submit(client, [task("x")], &["x"]);
    cluster.finish(worker, "x");
    cluster.handle(SchedulerInput::ClientLeft(client));
    cluster.pass(60_000);
    assert_eq!(cluster.state.task_count(), 0);
    assert_eq!(cluster.state.grace_count(), 0);
    assert_eq!(
        cluster.notices.pop().expect("a notice").to_string(),
        "the client me has not returned within its grace of 60 s; its 1 keys are released"
    );
    let (again, start) = cluster.returns("me", Some(true));
    let over = "the client was disconnected for longer than the 60 s for which the scheduler keeps \
                the keys of clients (client grace)";
    assert_eq!(start.graphs_accepted, None);
    assert_eq!(start.lost.as_deref(), Some(over));
    cluster.desire(again, &["x"]);
    assert_eq!(cluster.reasons(again), [format!("unknown key: {over}")]);
    // Keys that it asks for later are not those that it has lost.
    cluster.confirm(again);
    cluster.desire(again, &["other"]);
    assert_eq!(cluster.reasons(again), ["unknown key: "]);
}

#[test]
fn clients_of_other_schedulers_are_told_what_is_known() {
    let reason = |grace: Duration| {
        let mut cluster = Cluster::new();
        cluster.state = State::new(Policy {
            client_grace: grace,
            ..Policy::default()
        });
        // A client that was connected before, if the state knows it.
        let (client, _) = cluster.returns("other", Some(false));
        cluster.handle(SchedulerInput::ClientLeft(client));
        cluster.returns("me", Some(true)).1.lost.expect("a reason")
    };
    assert_eq!(
        reason(Duration::ZERO),
        "the client was disconnected, and the scheduler does not keep the keys of such clients (it \
         has no client grace)"
    );
    assert_eq!(
        reason(GRACE),
        "the scheduler does not know the client from before: it was restarted since, or the client \
         was disconnected for too long"
    );
}

#[test]
fn a_client_that_announces_its_end_has_no_grace() {
    for is_only_stream in [false, true] {
        let mut cluster = cluster();
        let client = cluster.client("me");
        cluster.submit(client, [task("x")], &["x"]);
        match is_only_stream {
            true => {
                cluster.send(client, CloseStream::default());
                cluster.handle(SchedulerInput::ClientLeft(client));
            }
            false => cluster.send(client, CloseClient::default()),
        }
        assert_eq!(
            (cluster.state.task_count(), cluster.state.grace_count()),
            (0, 0)
        );
        assert_eq!(cluster.ended_clients, [client]);
    }
}

#[test]
fn without_grace_a_client_is_removed_at_once() {
    let mut cluster = Cluster::new();
    let (client, _) = cluster.returns("me", Some(false));
    cluster.submit(client, [task("x")], &["x"]);
    cluster.handle(SchedulerInput::ClientLeft(client));
    assert_eq!(
        (cluster.state.task_count(), cluster.state.grace_count()),
        (0, 0)
    );
    assert!(cluster.notices.is_empty());
    // Nor does another of its name continue for it.
    let (client, _) = cluster.returns("me", Some(false));
    cluster.submit(client, [task("x")], &["x"]);
    let (_, start) = cluster.returns("me", Some(true));
    assert_eq!(
        (start.graphs_accepted, cluster.state.task_count()),
        (None, 0)
    );
}

#[test]
fn a_python_client_finds_results_for_the_grace_after_its_return() {
    let mut cluster = cluster();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("python");
    cluster.submit(client, [task("x"), task("y")], &["x", "y"]);
    cluster.finish(worker, "x");
    cluster.finish(worker, "y");
    cluster.handle(SchedulerInput::ClientLeft(client));
    cluster.pass(50_000);
    let (again, start) = cluster.returns("python", None);
    // It has no fields that Dask does not have.
    assert_eq!((start.graphs_accepted, start.lost), (None, None));
    cluster.pass(50_000);
    // It submits one of its tasks again.
    cluster.submit(again, [task("x")], &["x"]);
    assert_eq!(cluster.sent_to_client(again), ["key-in-memory x"]);
    assert!(cluster.running.is_empty());
    assert_eq!(cluster.state.task_count(), 2);
    cluster.pass(10_000);
    assert_eq!(cluster.status("x"), Some(TaskState::Memory));
    assert_eq!(cluster.status("y"), None);
    // It is not told of acknowledgements.
    assert_eq!(cluster.accepted(again), None);
}

#[test]
fn submissions_are_acknowledged_in_their_order() {
    let mut cluster = cluster();
    let (client, _) = cluster.returns("me", Some(false));
    cluster.submit(client, [task("x")], &["x"]);
    assert_eq!(cluster.accepted(client), None);
    cluster.pass(20);
    assert_eq!(cluster.accepted(client), Some(1));
    // Also one that is refused, in any number of parts, and one without keys.
    let refusal = Refusal::new(
        ["a", "b", "c"].map(Key::from).to_vec(),
        RefusalReason::Cycle,
    );
    for part in refusal.parts(2) {
        cluster.handle(SchedulerInput::SubmissionRefused(client, part));
    }
    for part in Refusal::new(Vec::new(), RefusalReason::Cycle).parts(2) {
        cluster.handle(SchedulerInput::SubmissionRefused(client, part));
    }
    cluster.submit(client, [], &["unknown"]);
    cluster.pass(20);
    assert_eq!(cluster.accepted(client), Some(4));
    cluster.pass(20);
    assert_eq!(cluster.accepted(client), None);
    // The numbers continue after a return, and begin again with another program of the same id.
    cluster.handle(SchedulerInput::ClientLeft(client));
    let (client, start) = cluster.returns("me", Some(true));
    assert_eq!(start.graphs_accepted, Some(4));
    cluster.submit(client, [task("y")], &["y"]);
    cluster.pass(20);
    assert_eq!(cluster.accepted(client), Some(5));
    let (client, _) = cluster.returns("me", Some(false));
    cluster.submit(client, [task("y")], &["y"]);
    cluster.pass(20);
    assert_eq!(cluster.accepted(client), Some(1));
}

#[test]
fn a_graph_that_is_being_inserted_at_the_return_is_not_lost() {
    let mut cluster = cluster();
    cluster.state.slice_len = 1;
    let worker = cluster.worker("tcp://a:1", 1);
    let (first, _) = cluster.returns("me", Some(false));
    let graph: Graph = [task("x"), task("y")].into_iter().collect();
    let message = UpdateGraph {
        expr_ser: graph.to_expression().expect("plain values"),
        keys: ["x", "y"].into_iter().collect(),
        ..UpdateGraph::default()
    };
    let event = SchedulerInput::FromClient(first, message.into());
    let actions = cluster.state.handle(cluster.now, event);
    cluster.act(actions);
    assert!(cluster.state.is_pending());
    // Nothing else is done before the client asks for its keys on a new stream.
    let handle = |cluster: &mut Cluster, event| {
        let actions = cluster.state.handle(cluster.now, event);
        cluster.state.check();
        cluster.act(actions);
    };
    let second = ClientId(99);
    let joined = SchedulerInput::ClientJoined {
        id: second,
        name: "me".to_owned(),
        versions: Value::None,
        returning: Some(true),
    };
    handle(&mut cluster, joined);
    let desired = ClientDesiresKeys {
        keys: ["x"].into_iter().collect(),
        ..ClientDesiresKeys::default()
    };
    handle(
        &mut cluster,
        SchedulerInput::FromClient(second, desired.into()),
    );
    // In the server, it waits for the one before.
    while !cluster.state.is_done(cluster.state.latest_work()) {
        let actions = cluster.state.proceed(cluster.now);
        cluster.act(actions);
    }
    cluster.send(second, KeysConfirmed::default());
    cluster.finish(worker, "x");
    let sent = cluster.sent_to_client(second);
    assert_eq!(sent, ["stream-start", "key-in-memory x"]);
    // The client has dropped the future of y meanwhile.
    assert_eq!(cluster.status("y"), None);
}

#[test]
fn a_restart_of_the_cluster_forgets_the_keys_of_clients_in_grace() {
    let mut cluster = cluster();
    let (client, _) = cluster.returns("me", Some(false));
    cluster.submit(client, [task("x")], &["x"]);
    cluster.handle(SchedulerInput::ClientLeft(client));
    cluster.handle(SchedulerInput::Restart);
    assert_eq!(cluster.state.task_count(), 0);
    let (again, start) = cluster.returns("me", Some(true));
    let restarted = "the cluster was restarted while the client was disconnected";
    assert_eq!(start.lost.as_deref(), Some(restarted));
    cluster.desire(again, &["x"]);
    assert_eq!(
        cluster.reasons(again),
        [format!("unknown key: {restarted}")]
    );
}

#[test]
fn expected_clients_are_in_grace() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let expected = |name: &str| SchedulerInput::ClientExpected {
        name: name.to_owned(),
        graph_count: 7,
    };
    // One that is connected, as far as the state knows, and one that is not known.
    let client = cluster.client("me");
    cluster.submit(client, [task("x")], &["x"]);
    cluster.handle(expected("me"));
    cluster.handle(expected("other"));
    cluster.handle(expected("fire-and-forget"));
    cluster.finish(worker, "x");
    assert_eq!(cluster.ended_clients, [client]);
    assert_eq!(cluster.state.grace_count(), 2);
    // Those that hold nothing are kept, too.
    cluster.pass(1000);
    assert_eq!(cluster.state.grace_count(), 2);
    let (again, start) = cluster.returns("me", Some(true));
    assert_eq!(start.graphs_accepted, Some(7));
    cluster.desire(again, &["x"]);
    cluster.confirm(again);
    assert_eq!(cluster.sent_to_client(again), ["key-in-memory x"]);
    cluster.pass(60_000);
    assert_eq!(cluster.state.grace_count(), 0);
    assert_eq!(cluster.state.task_count(), 1);
}

#[test]
fn subscriptions_last_and_nothing_is_published_to_clients_in_grace() {
    let mut cluster = cluster();
    let (client, _) = cluster.returns("me", Some(false));
    let subscribe = SubscribeTopic {
        topic: "t".to_owned(),
        ..SubscribeTopic::default()
    };
    cluster.send(client, subscribe);
    cluster.handle(SchedulerInput::ClientLeft(client));
    cluster.to_clients.clear();
    let published = || SchedulerInput::Published {
        topics: Value::from("t"),
        message: Value::from(1),
    };
    cluster.handle(published());
    assert!(cluster.to_clients.is_empty());
    let (again, _) = cluster.returns("me", Some(true));
    cluster.handle(published());
    assert_eq!(cluster.sent_to_client(again), ["event"]);
}

#[test]
fn the_number_of_clients_in_grace_is_bounded() {
    let mut cluster = cluster();
    for number in 0..=MAX_IN_GRACE {
        let id = ClientId(cluster.next_id());
        let joined = SchedulerInput::ClientJoined {
            id,
            name: format!("client-{number}"),
            versions: Value::None,
            returning: None,
        };
        for event in [joined, SchedulerInput::ClientLeft(id)] {
            cluster.state.handle(cluster.now, event);
        }
    }
    cluster.state.check();
    assert_eq!(cluster.state.grace_count(), MAX_IN_GRACE);
    assert!(!cluster.state.by_name.contains_key("client-0"));
    // All of them are over at once, and removed in parts.
    cluster.now += GRACE;
    let mut count = 0;
    while cluster.state.grace_count() > 0 {
        let before = cluster.state.grace_count();
        cluster.state.handle(cluster.now, SchedulerInput::Tick);
        assert!(before - cluster.state.grace_count() <= 64);
        count += 1;
        assert!(count < 100);
    }
    cluster.state.check();
}

#[test]
fn a_dump_shows_clients_in_grace() {
    let mut cluster = cluster();
    let client = cluster.client("me");
    cluster.submit(client, [task("x")], &["x"]);
    let dumped = |state: &State| {
        let mut dump = Dump::new(&[]);
        while !state.dump_slice(&mut dump) {}
        let parts = dump.into_parts();
        let (_, clients) = parts
            .into_iter()
            .find(|part| part.0 == "clients")
            .expect("there");
        clients.get("me").expect("there").clone()
    };
    let me = dumped(&cluster.state);
    assert_eq!(me.get("connected"), Some(&Value::from(true)));
    assert_eq!(me.get("grace_until"), None);
    cluster.handle(SchedulerInput::ClientLeft(client));
    let me = dumped(&cluster.state);
    assert_eq!(me.get("connected"), Some(&Value::from(false)));
    assert_eq!(me.get("grace_until"), Some(&Value::from(60.0)));
    assert_eq!(me.get("wants_what"), Some(&Value::list(["x"])));
}

/// A graph in two parts, of which the first one has a task that is sent to a worker.
fn parts(client: ClientId) -> [SchedulerInput; 2] {
    let graph: Graph = [task("x"), add("y", &["x"])].into_iter().collect();
    let message = UpdateGraph {
        expr_ser: graph.to_expression().expect("plain values"),
        keys: ["y"].into_iter().collect(),
        ..UpdateGraph::default()
    };
    let submission = Submission::read(message).expect("plain values");
    let parts = in_parts(client, submission, || 1);
    parts.try_into().expect("two parts")
}

fn refusal() -> Refusal {
    let reason = RefusalReason::Helper {
        error: "it has ended".to_owned(),
    };
    Refusal::new(vec![Key::from("y")], reason)
}

#[test]
fn a_graph_in_parts_counts_once() {
    let mut cluster = cluster();
    let worker = cluster.worker("tcp://a:1", 1);
    let (client, _) = cluster.returns("me", Some(false));
    let [first, last] = parts(client);
    cluster.handle(first);
    cluster.pass(20);
    assert_eq!(cluster.accepted(client), None, "a part is missing");
    cluster.handle(last);
    cluster.pass(20);
    assert_eq!(cluster.accepted(client), Some(1));
    cluster.finish(worker, "x");
    cluster.finish(worker, "y");
    // Refused for its memory, and then because the other part is refused.
    cluster.release(client, &["y"]);
    cluster.sent_to_client(client);
    cluster.state.policy.max_tasks_len = 10;
    let [first, _] = parts(client);
    cluster.handle(first);
    let sent = cluster.sent_to_client(client);
    assert!(
        sent.len() == 1 && sent[0].contains("MemoryError"),
        "{sent:?}"
    );
    cluster.handle(SchedulerInput::SubmissionRefused(client, refusal()));
    assert_eq!(cluster.sent_to_client(client), [""; 0]);
    cluster.pass(20);
    assert_eq!(cluster.accepted(client), Some(2));
    cluster.state.policy.max_tasks_len = usize::MAX;
    // A restart ends it, and the rest is ignored.
    let [first, last] = parts(client);
    cluster.handle(first);
    cluster.handle(SchedulerInput::Restart);
    assert_eq!(cluster.state.task_count(), 0);
    cluster.handle(last);
    assert_eq!(cluster.state.task_count(), 0);
    cluster.pass(20);
    assert_eq!(cluster.accepted(client), Some(3));
    // A client that leaves sends it again.
    let [first, last] = parts(client);
    cluster.handle(first);
    let (returned, start) = cluster.returns("me", Some(true));
    assert_eq!(start.graphs_accepted, Some(3));
    cluster.handle(last);
    assert_eq!(cluster.state.task_count(), 0);
    let [first, last] = parts(returned);
    cluster.handle(first);
    cluster.handle(last);
    cluster.pass(20);
    assert_eq!(cluster.accepted(returned), Some(4));
    cluster.finish(worker, "x");
    cluster.finish(worker, "y");
    assert_eq!(
        cluster.state.status(&Key::from("y")),
        Some(TaskState::Memory)
    );
}
