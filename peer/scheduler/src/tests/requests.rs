use daskwire_messages::protocol::ReplyStatus;
use daskwire_messages::protocol::WorkerStatus;

use super::*;
use crate::state::Selection;

async fn cluster(name: &str, worker_count: usize) -> (Scheduler, Vec<Worker>, Client) {
    cluster_with(name, worker_count, Options::default()).await
}

async fn cluster_with(
    name: &str,
    worker_count: usize,
    options: Options,
) -> (Scheduler, Vec<Worker>, Client) {
    let scheduler = scheduler_with(&format!("inproc://{name}"), options).await;
    let mut workers = Vec::new();
    for number in 0..worker_count {
        let listen = format!("inproc://{name}-{number}");
        workers.push(Worker::new(scheduler.address(), &listen).await);
    }
    assert!(scheduler.wait_for_workers(worker_count).await);
    let client = Client::new(scheduler.address(), "me").await;
    (scheduler, workers, client)
}

fn scattered(keys: &[&str]) -> Scatter {
    let data = keys.iter().map(|key| {
        let value = Serialized::of(&Value::from(*key)).expect("a plain value");
        (Key::from(*key), value)
    });
    Scatter {
        data: data.collect(),
        client: "me".to_owned(),
        broadcast: Value::from(false),
        ..Scatter::default()
    }
}

#[tokio::test]
async fn data_is_scattered_in_turn_and_gathered_unopened() {
    let (_scheduler, workers, mut client) = cluster("scatter", 2).await;
    let keys = ["a", "b", "c", "d"];
    let reply: Keys = client.call(scattered(&keys)).await.expect("it is done");
    assert_eq!(reply.len(), 4);
    client.wait(&keys).await;
    for worker in &workers {
        assert_eq!(lock(&worker.data).len(), 2);
    }
    let request = Gather {
        keys: Some(keys.into_iter().collect()),
        ..Gather::default()
    };
    let reply: DataReply = client.call(request).await.expect("it replies");
    let data = reply.data.expect("all of it");
    assert_eq!(data.len(), 4);
    for (key, value) in data {
        let sent = Serialized::of(&Value::from(key.as_str().expect("a string")));
        assert_eq!(value, sent.expect("a plain value"));
    }
    client.send(ClientReleasesKeys {
        keys: keys.into_iter().collect(),
        ..ClientReleasesKeys::default()
    });
    until(|| workers.iter().all(|worker| lock(&worker.data).is_empty())).await;
}

#[tokio::test]
async fn a_retry_names_the_tasks_that_had_failed() {
    let (_scheduler, _workers, mut client) = cluster("retry", 1).await;
    client.submit([Task::new("done", "operator.add", [1, 2])], &["done"]);
    client.wait(&["done"]).await;
    let request = Retry {
        keys: ["done"].into_iter().collect(),
        ..Retry::default()
    };
    let retried: Keys = client.call(request).await.expect("it is done");
    assert_eq!(retried.0, []);
}

#[tokio::test]
async fn data_for_all_is_on_all() {
    let (_scheduler, workers, mut client) = cluster("broadcast", 3).await;
    let mut request = scattered(&["a"]);
    request.broadcast = Value::from(true);
    let _: Keys = client.call(request).await.expect("it is done");
    assert!(workers.iter().all(|worker| worker.has("a")));
    let mut request = scattered(&["b"]);
    request.broadcast = Value::from(2);
    let _: Keys = client.call(request).await.expect("it is done");
    assert_eq!(workers.iter().filter(|worker| worker.has("b")).count(), 2);
    let mut request = scattered(&["c"]);
    request.workers = Nullable(Some(vec![workers[2].address.to_string()].into()));
    let _: Keys = client.call(request).await.expect("it is done");
    assert!(workers[2].has("c"));
}

#[tokio::test]
async fn scattering_waits_for_a_worker_with_a_timeout() {
    let (scheduler, _, mut client) = cluster("patience", 0).await;
    let mut request = scattered(&["a"]);
    request.timeout = Some(0.05);
    let error = client
        .call::<Keys>(request)
        .await
        .expect_err("there is none");
    assert_eq!(error.to_string(), "TimeoutError: No valid workers found");
    let address = scheduler.address().clone();
    let (reply, worker) = tokio::join!(client.call::<Keys>(scattered(&["a"])), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Worker::new(&address, "inproc://patience-late").await
    });
    reply.expect("it is done");
    assert!(worker.has("a"));
}

#[tokio::test]
async fn fetches_from_another_holder_or_reports_missing_keys() {
    let (scheduler, workers, mut client) = cluster("holders", 2).await;
    let mut request = scattered(&["a", "b"]);
    request.broadcast = Value::from(true);
    let _: Keys = client.call(request).await.expect("it is done");
    client.wait(&["a", "b"]).await;
    lock(&workers[0].data).clear();
    for _ in 0..8 {
        assert_eq!(client.gather("a").await, Value::from("a"));
    }
    // A worker that lacked the data is no longer listed as a holder.
    let keys = [Key::from("a")];
    let who_has = scheduler.inspect(|state| state.who_has(Selection::Keys(&keys)));
    assert_eq!(who_has[0].1, [workers[1].address.to_string()]);
    lock(&workers[1].data).clear();
    let request = Gather {
        keys: Some(["a", "b", "c"].into_iter().collect()),
        ..Gather::default()
    };
    let reply: DataReply = client.call(request).await.expect("it replies");
    assert_eq!(reply.status, ReplyStatus::Error);
    assert_eq!(reply.keys.map(|keys| keys.len()), Some(3));
    assert!(reply.data.is_none());
}

#[tokio::test]
async fn skips_unreachable_holders() {
    let (scheduler, workers, mut client) = cluster("silent", 1).await;
    let _: Keys = client.call(scattered(&["a"])).await.expect("it is done");
    // A worker that is registered but does not listen.
    let mut ghost = connect(scheduler.address()).await;
    let register = Request::from(RegisterWorker {
        extra_information: rust_worker(),
        address: "inproc://nowhere".to_owned(),
        name: Value::from("ghost"),
        status: WorkerStatus::Running,
        nthreads: 1,
        ..RegisterWorker::default()
    });
    let reply: RegisterWorkerReply = ghost.call(&register).await.expect("it replies");
    assert_eq!(reply.status, ReplyStatus::Ok);
    let request = UpdateData {
        who_has: Some(vec![(Key::from("a"), vec!["inproc://nowhere".to_owned()])]),
        nbytes: Some(vec![(Key::from("a"), 1)]),
        client: Some("me".to_owned()),
        ..UpdateData::default()
    };
    client.call::<()>(request).await.expect("it is done");
    let holders = scheduler.inspect(|state| state.who_has(Selection::Part(0)));
    assert_eq!(holders[0].1.len(), 2);
    for _ in 0..8 {
        assert_eq!(client.gather("a").await, Value::from("a"));
    }
    assert!(workers[0].has("a"));
}

/// The number of steps of gathering a key that `count` workers claim to hold, none
/// of which can be reached.
async fn steps_of_gathering(count: usize) -> u64 {
    let (scheduler, _workers, mut client) = cluster(&format!("claims-{count}"), 1).await;
    let mut ghosts = Vec::new();
    for number in 0..count {
        let mut ghost = connect(scheduler.address()).await;
        let register = Request::from(RegisterWorker {
            extra_information: rust_worker(),
            // Without a transport, connecting fails at once.
            address: format!("nowhere://{number}"),
            name: Value::from(number),
            status: WorkerStatus::Running,
            nthreads: 1,
            ..RegisterWorker::default()
        });
        let reply: RegisterWorkerReply = ghost.call(&register).await.expect("it replies");
        assert_eq!(reply.status, ReplyStatus::Ok);
        ghosts.push(ghost);
    }
    let holders = (0..count).map(|number| format!("nowhere://{number}"));
    let request = UpdateData {
        who_has: Some(vec![(Key::from("a"), holders.collect())]),
        nbytes: Some(vec![(Key::from("a"), 1)]),
        client: Some("me".to_owned()),
        ..UpdateData::default()
    };
    client.call::<()>(request).await.expect("it is done");
    let holders = scheduler.inspect(|state| state.who_has(Selection::Part(0)));
    assert_eq!(holders[0].1.len(), count);
    STEPS.set(0);
    let request = Gather {
        keys: Some(["a"].into_iter().collect()),
        ..Gather::default()
    };
    let reply: DataReply = client.call(request).await.expect("it replies");
    assert_eq!(reply.keys.expect("it is missing").0, [Key::from("a")]);
    STEPS.get()
}

#[tokio::test]
async fn gathering_from_workers_that_all_fail_takes_linear_time() {
    let (one, two) = (steps_of_gathering(40).await, steps_of_gathering(80).await);
    assert!(one >= 40, "{one} steps");
    assert!(two <= one * 9 / 4, "{one} steps, {two} for twice as many");
}

#[tokio::test]
async fn replies_to_queries() {
    let (scheduler, workers, mut client) = cluster("knows", 2).await;
    let all = Request::from(Identity {
        n_workers: Some(-1),
        ..Identity::default()
    });
    let identity: Value = client.call(all).await.expect("it replies");
    assert_eq!(identity.get("type"), Some(&Value::from("Scheduler")));
    let address = scheduler.address().to_string();
    assert_eq!(identity.get("address"), Some(&Value::from(address)));
    assert_eq!(identity.get("total_threads"), Some(&Value::from(2)));
    let known = identity.get("workers").expect("they are listed");
    let about = known.get(&workers[0].address.to_string()).expect("exists");
    assert_eq!(about.get("nthreads"), Some(&Value::from(1)));
    let none = Request::from(Identity {
        n_workers: Some(0),
        ..Identity::default()
    });
    let identity: Value = client.call(none).await.expect("it replies");
    assert_eq!(identity.get("workers"), Some(&Value::Dict([].into())));

    let _: Keys = client.call(scattered(&["a"])).await.expect("it is done");
    let who_has: Vec<(Key, Vec<String>)> =
        client.call(WhoHas::default()).await.expect("it replies");
    let holder = who_has[0].1[0].clone();
    let has_what: Vec<(String, Keys)> = client
        .call(HasWhat {
            workers: Some(vec![holder.clone(), "nowhere".to_owned()].into()),
            ..HasWhat::default()
        })
        .await
        .expect("it replies");
    let nowhere = ("nowhere".to_owned(), Keys::default());
    let here = (holder.clone(), ["a"].into_iter().collect());
    assert_eq!(has_what, [here, nowhere]);
    let sizes: Vec<(Key, u64)> = client.call(NBytes::default()).await.expect("it replies");
    assert_eq!(sizes[0].0, Key::from("a"));
    assert!(sizes[0].1 > 0);
    let threads: Vec<(String, u64)> = client.call(NCores::default()).await.expect("it replies");
    assert_eq!(threads.len(), 2);
    let running: Vec<(String, u64)> = client
        .call(NCoresRunning::default())
        .await
        .expect("it replies");
    assert_eq!(running, threads);
    let stages: Vec<(Key, Nullable<String>)> = client
        .call(GetTaskStatus {
            keys: ["a", "b"].into_iter().collect(),
            ..GetTaskStatus::default()
        })
        .await
        .expect("it replies");
    assert_eq!(stages[0].1.0.as_deref(), Some("memory"));
    assert_eq!(stages[1].1.0, None);
    let beat = HeartbeatWorker {
        address: holder,
        ..HeartbeatWorker::default()
    };
    let reply: HeartbeatReply = client.call(beat).await.expect("it replies");
    assert_eq!(
        (reply.status.as_str(), reply.heartbeat_interval),
        ("OK", Some(0.5))
    );
    let reply: HeartbeatReply = client
        .call(HeartbeatWorker {
            address: "nowhere".to_owned(),
            ..HeartbeatWorker::default()
        })
        .await
        .expect("it replies");
    assert_eq!(reply.status, ReplyStatus::Missing);
    let pong: Value = client.call(Ping::default()).await.expect("it replies");
    assert_eq!(pong, Value::bytes(&b"pong"[..]));
    let same: Value = client
        .call(Echo {
            data: Value::from("same"),
            ..Echo::default()
        })
        .await
        .expect("it replies");
    assert_eq!(same, Value::from("same"));
}

#[tokio::test]
async fn replies_to_unusual_requests() {
    let (_scheduler, _, mut client) = cluster("unusual", 0).await;
    let unknown = Request::Unknown(Unknown {
        op: "do_something".to_owned(),
        ..Unknown::default()
    });
    match client.call::<Value>(unknown).await {
        Err(RequestError::Remote(error)) => assert_eq!(error.class, "NotImplementedError"),
        reply => panic!("{reply:?}"),
    }
    let incomplete = Value::dict([("op", "get_task_status")]);
    client
        .requests
        .sender
        .send(&incomplete)
        .await
        .expect("it listens");
    let reply: Option<Status> = client
        .requests
        .receiver
        .receive()
        .await
        .expect("it replies");
    let reply = reply.expect("it replies");
    assert_eq!(reply.status, Some(ReplyStatus::UncaughtError));
    let reason = reply.exception_text.expect("a reason");
    assert!(reason.contains("has no field keys"), "{reason}");
    // A request without reply, then one with a reply
    let silent = Request::from(Ping {
        reply: Some(false),
        ..Ping::default()
    });
    client
        .requests
        .sender
        .send(&silent)
        .await
        .expect("it listens");
    let same: Value = client
        .call(Echo {
            data: Value::from(1),
            ..Echo::default()
        })
        .await
        .expect("it replies");
    assert_eq!(same, Value::from(1));
    // An invalid request closes the comm, and so does one with `close`.
    client
        .requests
        .sender
        .send(&Value::list([1]))
        .await
        .expect("it listens");
    assert!(!matches!(
        client.requests.receiver.receive::<Value>().await,
        Ok(Some(_))
    ));
}

#[tokio::test]
async fn closes_a_comm_on_request() {
    let (scheduler, _, mut client) = cluster("ends", 0).await;
    let reply: String = client.call(CloseComm::default()).await.expect("it replies");
    assert_eq!(reply, "OK");
    assert!(!matches!(
        client.requests.receiver.receive::<Value>().await,
        Ok(Some(_))
    ));
    client.requests = connect(scheduler.address()).await;
    let mut last = Value::dict([("op", Value::from("ping")), ("close", Value::from(true))]);
    client
        .requests
        .sender
        .send(&last)
        .await
        .expect("it listens");
    last = client
        .requests
        .receiver
        .receive()
        .await
        .expect("it replies")
        .expect("it replies");
    assert_eq!(last, Value::bytes(&b"pong"[..]));
    assert!(!matches!(
        client.requests.receiver.receive::<Value>().await,
        Ok(Some(_))
    ));
}

#[tokio::test]
async fn ends_when_terminated() {
    let (scheduler, _workers, mut client) = cluster("terminate", 1).await;
    let reply: String = client.call(Terminate::default()).await.expect("it replies");
    assert_eq!(reply, "OK");
    // Two workers never join.
    assert!(!scheduler.wait_for_workers(2).await);
    scheduler.closed().await.expect("it was terminated");
    assert!(client.try_next().await.is_none());
}

#[tokio::test]
async fn retires_a_worker_once_its_data_is_copied() {
    let (scheduler, workers, mut client) = cluster("retires", 1).await;
    client.submit([Task::new("x", "operator.add", [1, 2])], &["x"]);
    client.wait(&["x"]).await;
    let second = Worker::new(scheduler.address(), "inproc://retires-late").await;
    let first = workers[0].address.to_string();
    let request = RetireWorkers {
        workers: Some(vec![first.clone()].into()),
        ..RetireWorkers::default()
    };
    let reply: Value = client.call(request).await.expect("it replies");
    assert!(reply.get(&first).is_some());
    assert_eq!(scheduler.inspect(State::worker_count), 1);
    assert!(second.has("x"));
    assert_eq!(client.gather("x").await, Value::from(3));
}

#[tokio::test]
async fn workers_that_retire_together_copy_nothing_to_each_other() {
    let (scheduler, workers, mut client) = cluster("retire-together", 3).await;
    let keys: Vec<String> = (0..20).map(|n| format!("x{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let tasks = keys
        .iter()
        .map(|key| Task::new(*key, "operator.add", [1, 2]));
    client.submit(tasks, &keys);
    client.wait(&keys).await;
    let leaving = workers[..2].iter().map(|worker| worker.address.to_string());
    let request = RetireWorkers {
        workers: Some(leaving.collect()),
        ..RetireWorkers::default()
    };
    let held = |worker: &Worker| keys.iter().filter(|key| worker.has(key)).count();
    let before: usize = workers[..2].iter().map(held).sum();
    let reply: Value = client.call(request).await.expect("it replies");
    assert!(
        matches!(&reply, Value::Dict(retired) if retired.len() == 2),
        "{reply}"
    );
    assert_eq!(scheduler.inspect(State::worker_count), 1);
    assert_eq!(held(&workers[2]), keys.len());
    assert_eq!(workers[..2].iter().map(held).sum::<usize>(), before);
    assert_eq!(client.gather("x7").await, Value::from(3));
}

#[tokio::test]
async fn workers_to_retire_are_chosen_or_named() {
    let (scheduler, workers, mut client) = cluster("retire-chosen", 4).await;
    client.submit([Task::new("x", "operator.add", [1, 2])], &["x"]);
    client.wait(&["x"]).await;
    let choose = WorkersToClose {
        n: Some(3),
        ..WorkersToClose::default()
    };
    let chosen: Vec<String> = client.call(choose).await.expect("it replies");
    let holder = workers.iter().find(|worker| worker.has("x"));
    let holder = holder.expect("one has it").address.to_string();
    // The worker with data is the last.
    assert!(chosen.len() == 3 && !chosen.contains(&holder), "{chosen:?}");
    let both = RetireWorkers {
        names: Some([&*chosen[0]].into_iter().collect()),
        n: Some(1),
        ..RetireWorkers::default()
    };
    let error = client.call::<Value>(both).await.expect_err("not both");
    assert!(error.to_string().contains("mutually exclusive"), "{error}");
    let grouped = RetireWorkers {
        key: Some(Value::bytes(&b"a pickle"[..])),
        ..RetireWorkers::default()
    };
    let error = client.call::<Value>(grouped).await.expect_err("Python");
    assert!(error.to_string().contains("runs no Python"), "{error}");
    let named = RetireWorkers {
        names: Some([&*chosen[0]].into_iter().collect()),
        ..RetireWorkers::default()
    };
    let _: Value = client.call(named).await.expect("it replies");
    assert_eq!(scheduler.inspect(State::worker_count), 3);
    let keeping = RetireWorkers {
        minimum: Some(2),
        n: Some(3),
        ..RetireWorkers::default()
    };
    let _: Value = client.call(keeping).await.expect("it replies");
    assert_eq!(scheduler.inspect(State::worker_count), 2);
    assert!(scheduler.inspect(|state| state.has_worker(&holder)));
}

#[tokio::test]
async fn malformed_messages_end_a_stream() {
    let notices: Arc<Mutex<Vec<Notice>>> = Arc::default();
    let seen = Arc::clone(&notices);
    let options = Options::default().with_on_notice(Arc::new(move |notice: &Notice| {
        lock(&seen).push(notice.clone())
    }));
    let scheduler = scheduler_with("inproc://malformed", options).await;
    let mut client = Client::new(scheduler.address(), "me").await;
    // A message without a mandatory field
    client.send(FromClient::Unknown(Unknown {
        op: "report-key".to_owned(),
        ..Unknown::default()
    }));
    assert!(client.try_next().await.is_none());
    let notices: Vec<String> = lock(&notices).iter().map(ToString::to_string).collect();
    let expected = "closed the comm with me: the message report-key has no field key";
    assert_eq!(notices, [expected]);
    scheduler.close().await;
}

#[tokio::test(start_paused = true)]
async fn broadcasts_reach_workers_by_address_and_host_and_wait_for_slow_ones() {
    // These workers send no heartbeats.
    let policy = Policy::default().with_worker_ttl(None);
    let options = Options::default().with_policy(policy);
    let (scheduler, _workers, mut client) = cluster_with("broadcasts", 3, options).await;
    let echo = Unknown {
        op: "echo".to_owned(),
        extra: vec![(Value::from("data"), Value::from("hello"))],
    };
    let all = Broadcast {
        msg: echo,
        ..Broadcast::default()
    };
    let address = |number: usize| format!("inproc://broadcasts-{number}");
    // All workers in memory are on the same host.
    let host = scheduler.address().host().to_owned();
    let on = |host: &str| Broadcast {
        hosts: Some(vec![host.to_owned()]),
        ..all.clone()
    };
    let both = |host: &str| Broadcast {
        workers: Some(vec![address(0), address(1), address(0)].into()),
        ..on(host)
    };
    let nannies = Broadcast {
        nanny: Some(true),
        ..all.clone()
    };
    let all_workers = [address(0), address(1), address(2)];
    let cases = [
        (all.clone(), &all_workers[..]),
        (on(&host), &all_workers[..]),
        (on("nowhere"), &[]),
        (both(&host), &all_workers[..]),
        (both("nowhere"), &all_workers[..2]),
        (nannies, &[]),
    ];
    for (request, expected) in cases {
        let reply: Value = client.call(request).await.expect("it replies");
        let expected = expected.iter().map(|worker| (worker.clone(), "hello"));
        let Value::Dict(entries) = reply else {
            panic!("{reply:?}");
        };
        let mut entries: Vec<_> = entries.into_iter().collect();
        entries.sort_by_key(|(worker, _)| worker.to_string());
        assert_eq!(Value::dict(entries), Value::dict(expected));
    }
    // A worker that does not exist
    let absent = |on_error: Option<&str>| Broadcast {
        workers: Some(vec![address(0), address(3)].into()),
        on_error: on_error.map(str::to_owned),
        ..all.clone()
    };
    for (on_error, class) in [(None, "OSError"), (Some("wrong"), "ValueError")] {
        let error = client.call::<Value>(absent(on_error)).await;
        let error = error.expect_err("it is refused").to_string();
        assert!(error.starts_with(class), "{error}");
    }
    let reply: Value = client
        .call(absent(Some("ignore")))
        .await
        .expect("it replies");
    assert_eq!(reply, Value::dict([(address(0), "hello")]));
    for on_error in ["return", "return_pickle"] {
        let reply = client.call::<Value>(absent(Some(on_error))).await;
        let Ok(Value::Dict(entries)) = &reply else {
            panic!("{reply:?}");
        };
        let absent = Value::from(address(3));
        let (_, exception) = entries
            .iter()
            .find(|(worker, _)| *worker == absent)
            .expect("it is not ignored");
        assert_eq!(matches!(exception, Value::Bytes(_)), on_error != "return");
        let error = daskwire_messages::RemoteError::of_fields(exception, None).to_string();
        assert!(
            error.starts_with("OSError: inproc://broadcasts-3"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn terminates_for_a_peer_that_has_left() {
    let scheduler = scheduler("inproc://terminated").await;
    let mut channel = connect(scheduler.address()).await;
    // The reply cannot be sent to a peer without a receiver.
    drop(channel.receiver);
    let request = Request::from(Terminate::default());
    channel.sender.send(&request).await.expect("it listens");
    let closed = tokio::time::timeout(Duration::from_secs(20), scheduler.closed()).await;
    closed.expect("it ends").expect("no error");
}

#[tokio::test]
async fn malformed_requests_are_replied_to_on_demand_only() {
    let scheduler = scheduler("inproc://malformed-requests").await;
    let mut channel = connect(scheduler.address()).await;
    let malformed = |reply| {
        Unknown::new("gather")
            .field("keys", 7)
            .field("reply", reply)
    };
    let silent = Request::Unknown(malformed(false));
    channel.sender.send(&silent).await.expect("it listens");
    let loud = Request::Unknown(malformed(true));
    assert!(channel.call::<Value>(&loud).await.is_err());
    let reply: Value = channel
        .call(&Ping::default().into())
        .await
        .expect("a reply");
    assert_eq!(reply, Value::bytes(&b"pong"[..]));
}

#[tokio::test]
async fn serves_a_limited_number_of_comms() {
    let (notices, mut noticed) = tokio::sync::mpsc::unbounded_channel();
    let options = Options::default()
        .with_max_comms(2)
        .with_on_notice(Arc::new(move |notice: &Notice| {
            let _ = notices.send(notice.clone());
        }));
    let scheduler = scheduler_with("inproc://full", options).await;
    let mut first = connect(scheduler.address()).await;
    let mut second = connect(scheduler.address()).await;
    let ping = Request::from(Ping::default());
    for channel in [&mut first, &mut second] {
        let _: Value = channel.call(&ping).await.expect("a reply");
    }
    let connector = Connector::new(
        daskwire_rpc::transports(),
        daskwire_comm::CommOptions::default().with_connect_retry(false),
    );
    let connecting =
        || connector.connect(scheduler.address(), daskwire_comm::Traffic::Normal, None);
    connecting().await.expect_err("it is full");
    let notice = noticed.recv().await.expect("a notice");
    assert!(
        matches!(notice, Notice::TooManyComms { limit: 2, .. }),
        "{notice}"
    );
    // After a comm has ended, another one is accepted.
    second.close().await;
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while connecting().await.is_err() {
        assert!(std::time::Instant::now() < deadline, "no room");
    }
    let _: Value = first.call(&ping).await.expect("a reply");
}

#[tokio::test]
async fn messages_are_limited_by_the_options_of_the_listener() {
    let limits = daskwire::Limits::HOST.with_items(100);
    let options = daskwire_comm::CommOptions::default().with_limits(limits);
    let at = "inproc://limited".parse().expect("an address");
    let listener = daskwire_rpc::transports().bind(&at, options).await;
    let scheduler = Scheduler::start([listener.expect("it is free")], Options::default());
    let scheduler = scheduler.expect("it starts");
    for (count, is_read) in [(10, true), (200, false)] {
        let mut channel = connect(scheduler.address()).await;
        let echo = Request::from(Echo {
            data: Value::List(vec![Value::from(1); count].into()),
            ..Echo::default()
        });
        assert_eq!(
            channel.call::<Value>(&echo).await.is_ok(),
            is_read,
            "{count}"
        );
    }
}
