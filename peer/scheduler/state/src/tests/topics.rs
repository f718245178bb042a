use super::*;

/// The topics and messages of the events that a client was sent since the last call.
fn sent(cluster: &mut Cluster, client: ClientId) -> Vec<(String, Value)> {
    let messages = cluster.to_clients.remove(&client).unwrap_or_default();
    let events = messages.into_iter().filter_map(|message| match message {
        ToClient::Event(message) => {
            let Value::Tuple(event) = &message.event else {
                panic!("{message:?}");
            };
            let [Value::Float(_), event] = &event[..] else {
                panic!("{message:?}");
            };
            Some((message.topic, event.clone()))
        }
        _ => None,
    });
    events.collect()
}

fn publish(cluster: &mut Cluster, topics: impl Into<Value>, message: impl Into<Value>) {
    cluster.handle(SchedulerInput::Published {
        topics: topics.into(),
        message: message.into(),
    });
}

fn subscribe(cluster: &mut Cluster, client: ClientId, topic: &str) {
    let topic = topic.to_owned();
    let message = SubscribeTopic {
        topic,
        ..SubscribeTopic::default()
    };
    cluster.send(client, message);
}

fn messages(cluster: &Cluster, topic: &str) -> Vec<Value> {
    let events = cluster.state.events(topic).into_iter();
    let events = events.map(|event| match event {
        Value::Tuple(parts) => parts[1].clone(),
        other => panic!("{other}"),
    });
    events.collect()
}

#[test]
fn subscribers_are_sent_events_until_they_unsubscribe() {
    let mut cluster = Cluster::new();
    let (one, two) = (cluster.client("one"), cluster.client("two"));
    subscribe(&mut cluster, one, "a");
    subscribe(&mut cluster, two, "a");
    subscribe(&mut cluster, two, "b");
    publish(&mut cluster, "a", 1);
    publish(&mut cluster, Value::list(["a", "b", "c"]), 2);
    let event = |topic: &str, message: i64| (topic.to_owned(), Value::from(message));
    assert_eq!(sent(&mut cluster, one), [event("a", 1), event("a", 2)]);
    let expected = [event("a", 1), event("a", 2), event("b", 2)];
    assert_eq!(sent(&mut cluster, two), expected);
    let topic = "a".to_owned();
    let message = UnsubscribeTopic {
        topic,
        ..UnsubscribeTopic::default()
    };
    cluster.send(two, message);
    publish(&mut cluster, "a", 3);
    // Names of topics are strings.
    publish(&mut cluster, 4, 4);
    assert_eq!(sent(&mut cluster, one), [event("a", 3)]);
    assert_eq!(sent(&mut cluster, two), []);
    assert_eq!(messages(&cluster, "a"), [1, 2, 3].map(Value::from));
    assert_eq!(messages(&cluster, "c"), [Value::from(2)]);
    assert_eq!(messages(&cluster, "d"), []);
}

#[test]
fn messages_of_workers_have_their_address() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://w:1", 1);
    let log = |topic: &str, msg: Value| LogEvent {
        topic: Value::from(topic),
        msg,
        ..LogEvent::default()
    };
    let message = || Value::dict([("x", 1)]);
    cluster.report(worker, log("print", message()));
    cluster.report(worker, log("print", Value::from("text")));
    cluster.report(worker, log("tcp://w:1", message()));
    let mut with_worker = vec![("x", Value::from(1))];
    with_worker.push(("worker", Value::from("tcp://w:1")));
    let expected = [Value::dict(with_worker), Value::from("text")];
    assert_eq!(messages(&cluster, "print"), expected);
    assert_eq!(messages(&cluster, "tcp://w:1")[1..], [message()]);
}

#[test]
fn a_worker_is_accepted_before_others_are_told_about_it() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    subscribe(&mut cluster, client, "all");
    cluster.handle(SchedulerInput::ObserveTopics(true));
    // Fails unless the first action accepts it.
    cluster.worker("tcp://w:1", 1);
    let events = sent(&mut cluster, client);
    let actions = events.iter().map(|(_, event)| event.get("action"));
    assert_eq!(actions.collect::<Vec<_>>(), [Some(&"add-worker".into())]);
}

#[test]
fn the_scheduler_publishes_what_happens_to_clients_and_workers() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let worker = cluster.worker("tcp://w:1", 1);
    cluster.submit(client, [add("x", &[])], &["x"]);
    let event = messages(&cluster, "me").pop().expect("it was submitted");
    let metrics = event.get("metrics").expect("it has");
    assert_eq!(metrics.get("tasks"), Some(&Value::from(1)));
    assert_eq!(metrics.get("new_tasks"), Some(&Value::from(1)));
    cluster.lose_worker(worker);
    cluster.handle(SchedulerInput::ClientLeft(client));
    let own = messages(&cluster, "tcp://w:1").pop();
    assert_eq!(own.expect("it has left").get("worker"), None);
    let actions = |topic: &str| {
        let messages = messages(&cluster, topic).into_iter();
        let actions = messages.map(|message| message.get("action").expect("it has").to_string());
        actions.collect::<Vec<_>>().join(" ")
    };
    let all = "'add-client' 'add-worker' 'remove-worker' 'remove-client'";
    assert_eq!(actions("all"), all);
    assert_eq!(actions("tcp://w:1"), "'add-worker' 'remove-worker'");
    assert_eq!(actions("me"), "'add-client' 'update-graph' 'remove-client'");
    assert_eq!(actions("scheduler"), "'update-graph'");
}

#[test]
fn a_topic_keeps_its_last_events_and_all_topics_a_total() {
    let mut cluster = Cluster::new();
    for number in 0..1010 {
        publish(&mut cluster, "a", number);
    }
    let kept = messages(&cluster, "a");
    assert_eq!((kept.len(), &kept[0]), (1000, &Value::from(10)));
    let large = || Value::bytes(vec![0; 20 << 20]);
    for topic in ["b", "c", "d", "e"] {
        publish(&mut cluster, topic, large());
    }
    let topics = cluster.state.all_events().into_iter();
    let topics: Vec<String> = topics.map(|(topic, _)| topic).collect();
    assert_eq!(topics, ["c", "d", "e"]);
    // An event that is too large is sent to subscribers only.
    let client = cluster.client("me");
    subscribe(&mut cluster, client, "f");
    publish(&mut cluster, "f", Value::bytes(vec![0; 65 << 20]));
    assert_eq!(sent(&mut cluster, client).len(), 1);
    assert_eq!(messages(&cluster, "f"), []);
}

#[test]
fn a_client_that_returns_still_has_its_subscriptions() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    subscribe(&mut cluster, client, "a");
    cluster.handle(SchedulerInput::ClientLeft(client));
    publish(&mut cluster, "a", 1);
    let client = cluster.client("me");
    publish(&mut cluster, "a", 2);
    let expected = [("a".to_owned(), Value::from(2))];
    assert_eq!(sent(&mut cluster, client), expected);
    // Those of many clients that do not return are forgotten.
    cluster.handle(SchedulerInput::ClientLeft(client));
    for number in 0..300 {
        let other = cluster.client(&format!("other-{number}"));
        subscribe(&mut cluster, other, "a");
        cluster.handle(SchedulerInput::ClientLeft(other));
    }
    let client = cluster.client("me");
    publish(&mut cluster, "a", 3);
    assert_eq!(sent(&mut cluster, client), []);
}

#[test]
fn a_client_that_does_not_read_misses_events() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    subscribe(&mut cluster, client, "a");
    cluster.handle(SchedulerInput::ClientBehind(client));
    publish(&mut cluster, "a", 1);
    cluster.handle(SchedulerInput::ClientDrained(client));
    publish(&mut cluster, "a", 2);
    let expected = [("a".to_owned(), Value::from(2))];
    assert_eq!(sent(&mut cluster, client), expected);
}

#[test]
fn the_number_of_subscriptions_of_a_client_is_limited() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    for number in 0..1100 {
        let topic = format!("t-{number}");
        let message = SubscribeTopic {
            topic,
            ..SubscribeTopic::default()
        };
        let message = FromClient::from(message);
        let actions = cluster
            .state
            .handle(Duration::ZERO, SchedulerInput::FromClient(client, message));
        cluster.act(actions);
    }
    for topic in ["t-1023", "t-1024", &"t".repeat(2000)] {
        publish(&mut cluster, topic, 1);
    }
    let expected = [("t-1023".to_owned(), Value::from(1))];
    assert_eq!(sent(&mut cluster, client), expected);
}

// ROLES SCHEDULER-11
#[test]
fn the_scheduler_publishes_which_tasks_it_takes_back() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let victim = cluster.worker("tcp://a:1", 1);
    let named = [("workers", Value::list(["tcp://a:1", "tcp://b:1"]))];
    let keys = ["x", "y"];
    cluster.submit_with(client, keys.map(|key| add(key, &[])), &keys, &named);
    cluster.worker("tcp://b:1", 1);
    cluster.pass(600);
    let [ToWorker::StealRequest(request)] = &cluster.to_workers[&victim][2..] else {
        panic!("{:?}", cluster.to_workers);
    };
    let (key, cause) = (request.key.clone(), request.stimulus_id.clone());
    let response = |state: &str| StealResponse {
        key: key.clone(),
        state: Nullable(Some(state.to_owned())),
        stimulus_id: cause.clone(),
        ..StealResponse::default()
    };
    cluster.report(victim, response("executing"));
    cluster.running.remove(&(victim, key.clone()));
    cluster.report(victim, response("ready"));
    cluster.report(victim, response("ready"));
    let [request, executing, confirm, stale] = &messages(&cluster, "stealing")[..] else {
        panic!("{:?}", messages(&cluster, "stealing"));
    };
    let (Value::Tuple(request), key) = (request, key.to_value()) else {
        panic!("{request}");
    };
    let Value::List(requests) = &request[1] else {
        panic!("{request:?}");
    };
    let Value::Tuple(fields) = &requests[0] else {
        panic!("{requests:?}");
    };
    let [_, _, stolen, _, from, _, to, _] = &fields[..] else {
        panic!("{fields:?}");
    };
    let (a, b) = (Value::from("tcp://a:1"), Value::from("tcp://b:1"));
    assert_eq!((&request[0], stolen), (&Value::from("request"), &key));
    assert_eq!((from, to), (&a, &b));
    let event = |parts: [&Value; 6]| Value::tuple(parts.map(Clone::clone));
    let [name, ready, cause] = ["confirm", "ready", &*cause].map(Value::from);
    assert_eq!(*confirm, event([&name, &key, &ready, &a, &b, &cause]));
    let [name, state] = ["already-computing", "executing"].map(Value::from);
    assert_eq!(
        *executing,
        event([&name, &key, &state, &a, &Value::None, &cause])
    );
    let stale_name = Value::from("stale-response");
    let expected = [&stale_name, &key, &ready, &a, &cause].map(Clone::clone);
    assert_eq!(*stale, Value::tuple(expected));
}

#[test]
fn the_scheduler_publishes_which_silent_workers_it_removes() {
    let mut cluster = Cluster::new();
    cluster.worker("tcp://w:1", 1);
    cluster.pass(299_000);
    assert_eq!(messages(&cluster, "scheduler"), []);
    cluster.pass(2_000);
    let expected = Value::dict([
        ("action", Value::from("worker-ttl-timed-out")),
        ("workers", Value::list(["tcp://w:1"])),
        ("ttl", Value::from(300.0)),
    ]);
    assert_eq!(messages(&cluster, "scheduler"), [expected]);
}
