//! Workers that do not start, and those that end.

use super::*;

#[tokio::test]
async fn does_not_register_with_an_old_scheduler() {
    let scheduler = Scheduler::new("inproc").await;
    let starting = tokio::spawn(scheduler.worker("early").start());
    let mut stream = scheduler.accept().await;
    let mut rpc = scheduler.accept().await;
    let request = rpc.receiver.receive::<Request>().await;
    assert!(matches!(request, Ok(Some(Request::Versions(_)))));
    let packages = Value::dict([("distributed", "2021.12.0")]);
    let versions = Value::dict([("packages", packages)]);
    rpc.sender.send(&versions).await.expect("peer listens");
    let error = starting.await.expect("no panic").expect_err("too old");
    assert_eq!(
        error.to_string(),
        "the scheduler runs distributed 2021.12.0, which a worker in Rust does not support: upgrade \
         the cluster to 2022.1.0 or later"
    );
    let message = stream.receiver.receive::<Request>().await;
    assert!(!matches!(message, Ok(Some(_))), "{message:?}");
}

#[tokio::test]
async fn panic_during_a_state_change_ends_the_worker() {
    let scheduler = Scheduler::new("inproc").await;
    for is_store in [false, true] {
        let (worker, mut stream) = scheduler.start(scheduler.worker("w")).await;
        stream
            .compute(&Task::new("x", "operator.add", [1, 2]))
            .await;
        stream.finished().await;
        if is_store {
            let lock = Mutex::default();
            daskwire_rpc::panic_flag::poison::<()>(&lock);
            drop(worker.shared.store.panic_flag().check(lock.lock()));
        } else {
            daskwire_rpc::panic_flag::poison(&worker.shared.machine);
        }
        stream
            .compute(&Task::new("y", "operator.add", [1, 2]))
            .await;
        assert!(matches!(worker.ended().await, Ended::Panicked));
        // The scheduler gets no report of the task.
        loop {
            match stream.next_message().await {
                FromWorker::WorkerStatusChange(change) => {
                    assert_eq!(change.status, WorkerStatus::Closing);
                    break;
                }
                FromWorker::TaskFinished(finished) if is_store => {
                    assert_eq!(finished.key, "y".into());
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(
            stream.next_message().await,
            FromWorker::CloseStream(_)
        ));
    }
}

#[tokio::test]
async fn panic_of_a_thread_ends_the_worker_and_panic_of_a_callback_does_not() {
    let scheduler = Scheduler::new("inproc").await;
    let builder = scheduler.worker("w");
    let builder = builder.on_notice(|_| panic!("a panic for the test"));
    let (worker, mut stream) = scheduler.start(builder).await;
    worker.shared.notice("something");
    let message = stream.next_message().await;
    assert!(matches!(message, FromWorker::LogEvent(_)), "{message:?}");
    stream.compute(&Task::new("x", "native:slow", [3])).await;
    stream.finished().await;
    assert!(!worker.shared.panic_flag.is_set());

    let panicking = worker.shared.panic_flag.clone();
    let thread = std::thread::spawn(move || {
        let _guard = panicking.guard();
        panic!("a panic for the test");
    });
    assert!(thread.join().is_err());
    let ended = worker.ended().await;
    assert_eq!(ended.to_string(), "the worker panicked");
}

#[tokio::test]
async fn worker_ends_on_request_or_without_scheduler() {
    let scheduler = Scheduler::new("inproc").await;
    let (worker, mut stream) = scheduler.start(scheduler.worker("w")).await;
    let close = Close {
        reason: Some("enough".to_owned()),
        ..Close::default()
    };
    stream.send([ToWorker::from(close)]).await;
    let ended = worker.ended().await;
    assert_eq!(ended.to_string(), "the scheduler closed the worker: enough");
    assert_eq!(worker.status(), WorkerStatus::Closed);
    assert!(matches!(
        stream.next_message().await,
        FromWorker::WorkerStatusChange(_)
    ));

    let (worker, stream) = scheduler.start(scheduler.worker("w")).await;
    drop(stream);
    assert!(matches!(worker.ended().await, Ended::Lost(_)));

    // Dropping the worker makes it leave.
    let (worker, mut stream) = scheduler.start(scheduler.worker("w")).await;
    drop(worker);
    assert!(matches!(
        stream.next_message().await,
        FromWorker::WorkerStatusChange(_)
    ));

    // After the end, the address does not accept connections.
    let (worker, _stream) = scheduler.start(scheduler.worker("w")).await;
    let at = address(worker.address());
    worker.close().await;
    let options = CommOptions::default().with_connect_retry(false);
    let refused = transports()
        .connect(&at, &options)
        .await
        .expect_err("closed listener");
    assert!(matches!(refused, CommError::Connect { .. }), "{refused:?}");
}

/// A transport whose listener accepts nothing, and fails with errors of the test.
struct Faulty(Mutex<Option<mpsc::Receiver<CommError>>>);

impl Transport for Faulty {
    fn schemes(&self) -> &[&'static str] {
        &["faulty"]
    }

    fn connect<'a>(
        &'a self,
        _: &'a Address,
        _: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>> {
        Box::pin(async { Err(ConnectError::NoAnswer) })
    }

    fn bind<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>> {
        let errors = self.0.lock().expect("no panic").take();
        let listener = FaultyListener(errors.expect("one listener").into());
        Box::pin(async { Ok::<Box<dyn Listen>, _>(Box::new(listener)) })
    }
}

struct FaultyListener(tokio::sync::Mutex<mpsc::Receiver<CommError>>);

impl Listen for FaultyListener {
    fn accept(&self) -> BoxFuture<'_, Result<PendingConnection, CommError>> {
        Box::pin(async {
            let error = self.0.lock().await.recv().await;
            Err(error.expect("the test keeps the sender"))
        })
    }

    fn local_address(&self) -> std::io::Result<Address> {
        Ok(address("faulty://here"))
    }
}

#[tokio::test]
async fn worker_ends_when_its_listener_fails_for_good() {
    let scheduler = Scheduler::new("inproc").await;
    let (fail, errors) = mpsc::channel(1);
    let faulty = Faulty(Mutex::new(Some(errors)));
    let builder = scheduler
        .worker("w")
        .transports(transports().with(faulty))
        .listen(address("faulty://here"));
    let (worker, mut stream) = scheduler.start(builder).await;
    // Temporary: the listener is used again.
    for _ in 0..2 {
        let temporary = CommError::Io(std::io::ErrorKind::ConnectionAborted.into());
        fail.send(temporary).await.expect("the worker accepts");
    }
    let permit = fail.reserve().await.expect("the worker accepts again");
    assert_eq!(worker.status(), WorkerStatus::Running);
    // A run of failures is reported once.
    let FromWorker::LogEvent(notice) = stream.next_message().await else {
        panic!("no notice");
    };
    let message = format!("{:?}", notice.msg);
    assert!(message.contains("cannot accept connections"), "{message}");
    permit.send(Closed::Locally.into());
    let ended = worker.ended().await;
    assert!(
        matches!(&ended, Ended::ListenerFailed(error) if matches!(**error, CommError::Closed(_))),
        "{ended:?}"
    );
    assert!(
        ended
            .to_string()
            .starts_with("the worker cannot accept connections any more: "),
        "{ended}"
    );
    // The worker has left the cluster as usual.
    assert!(matches!(
        stream.next_message().await,
        FromWorker::WorkerStatusChange(change) if change.status == WorkerStatus::Closing
    ));
}

#[tokio::test]
async fn worker_that_cannot_listen_does_not_start() {
    let scheduler = Scheduler::new("inproc").await;
    let taken = scheduler.address.clone();
    let starting = scheduler.worker("w").listen(taken.clone()).start();
    let (started, _stream) = tokio::join!(starting, scheduler.accept());
    let error = started.expect_err("the address is in use");
    assert!(matches!(error, StartError::Listen(_)), "{error:?}");
    let error = error.to_string();
    assert!(error.starts_with("the worker cannot listen: "), "{error}");
    assert!(error.contains(&taken.to_string()), "{error}");
}

#[tokio::test(start_paused = true)]
async fn sends_no_heartbeats_after_announcing_its_end() {
    let scheduler = Scheduler::new("inproc").await;
    let builder = scheduler.worker("w").batch_interval(Duration::from_secs(1));
    let (worker, mut stream, mut rpc) = scheduler.start_with_heartbeats(builder, 0.1).await;
    Scheduler::heartbeat(&mut rpc).await;
    scheduler.answer_heartbeat(&mut rpc).await;
    // Messages after this one are delayed for a second.
    let steal = StealRequest {
        key: "x".into(),
        ..StealRequest::default()
    };
    stream.send([ToWorker::from(steal)]).await;
    let answer = stream.next_message().await;
    assert!(matches!(answer, FromWorker::StealResponse(_)), "{answer:?}");
    let ((), last) = tokio::join!(worker.close(), rpc.receiver.receive::<Request>());
    assert!(
        !matches!(last, Ok(Some(Request::HeartbeatWorker(_)))),
        "{last:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn asks_to_be_retired_once_its_heartbeat_is_answered() {
    let scheduler = Scheduler::new("inproc").await;
    let builder = scheduler.worker("w");
    let (worker, _stream, mut rpc) = scheduler.start_with_heartbeats(builder, 0.1).await;
    Scheduler::heartbeat(&mut rpc).await;
    let retiring = async {
        let _ = worker.retire().await;
    };
    let asked = async {
        let early = scheduler.accept();
        let early = tokio::time::timeout(Duration::from_millis(500), early).await;
        assert!(early.is_err(), "a request before the heartbeat is answered");
        scheduler.answer_heartbeat(&mut rpc).await;
        let request = rpc.receiver.receive::<Request>().await;
        assert!(
            matches!(request, Ok(Some(Request::RetireWorkers(_)))),
            "{request:?}"
        );
        // No heartbeats follow soon: the scheduler may have removed the worker already.
        let next = rpc.receiver.receive::<Request>();
        let next = tokio::time::timeout(Duration::from_millis(500), next).await;
        assert!(next.is_err(), "{next:?}");
        let retired = Value::dict([(worker.address(), Value::None)]);
        rpc.sender.send(&retired).await.expect("peer listens");
    };
    tokio::join!(retiring, asked);
}

#[tokio::test(start_paused = true)]
async fn sends_heartbeats_again_while_it_retires_for_long() {
    const INTERVAL: f64 = 0.1;
    let scheduler = Scheduler::new("inproc").await;
    let builder = scheduler.worker("w");
    let (worker, mut stream, mut rpc) = scheduler.start_with_heartbeats(builder, INTERVAL).await;
    let retire = |status| {
        ToWorker::from(WorkerStatusChange {
            status,
            ..WorkerStatusChange::default()
        })
    };
    stream.send([retire(WorkerStatus::ClosingGracefully)]).await;
    stream.next_message().await;
    let missing = HeartbeatReply {
        status: ReplyStatus::Missing,
        ..HeartbeatReply::default()
    };
    for _ in 0..2 {
        let start = tokio::time::Instant::now();
        let heartbeat = rpc.receiver.receive::<Request>().await;
        // A scheduler may remove a worker after ten intervals.
        let silence = start.elapsed().as_secs_f64() / INTERVAL;
        assert!((5.0..10.0).contains(&silence), "{silence}");
        assert!(
            matches!(heartbeat, Ok(Some(Request::HeartbeatWorker(_)))),
            "{heartbeat:?}"
        );
        // The scheduler may have removed the worker, with its last messages still in flight.
        rpc.sender.send(&missing).await.expect("peer listens");
    }
    assert_eq!(worker.status(), WorkerStatus::ClosingGracefully);
    stream.send([retire(WorkerStatus::Running)]).await;
    stream.next_message().await;
    Scheduler::heartbeat(&mut rpc).await;
    rpc.sender.send(&missing).await.expect("peer listens");
    assert!(matches!(worker.ended().await, Ended::Forgotten));
}

#[tokio::test(start_paused = true)]
async fn a_worker_to_be_restarted_has_left_before_it_answers() {
    let scheduler = Scheduler::new("inproc").await;
    let builder = scheduler.worker("w").restartable();
    let (worker, mut stream, mut rpc) = scheduler.start_with_heartbeats(builder, 600.0).await;
    let mut nanny = asking(&worker).await;
    let request = Kill {
        reason: Some("restart".into()),
        reply: Some(true),
        ..Kill::default()
    };
    nanny
        .sender
        .send(&Request::from(request))
        .await
        .expect("peer listens");
    let request = rpc.receiver.receive::<Request>().await;
    let Ok(Some(Request::Unregister(request))) = request else {
        panic!("{request:?}");
    };
    assert_eq!(request.address, worker.address());
    // A scheduler closes the worker that it removes.
    stream.send([ToWorker::from(Close::default())]).await;
    let answered = nanny.receiver.receive::<Value>();
    let mut answered = core::pin::pin!(answered);
    let early = tokio::time::timeout(Duration::from_millis(100), &mut answered).await;
    assert!(early.is_err(), "{early:?}");
    rpc.sender
        .send(&Value::from("OK"))
        .await
        .expect("peer listens");
    let answer = answered.await.expect("a reply");
    assert_eq!(answer, Some(Value::None));
    let ended = worker.ended().await;
    assert!(
        matches!(&ended, Ended::Restart { reason } if reason == "restart"),
        "{ended}"
    );
}

// Other systems do not report the memory of a process.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_process_above_its_limit_ends_the_worker() {
    let scheduler = Scheduler::new("inproc").await;
    let thresholds = MemoryThresholds::default()
        .with_target(None)
        .with_spill(None)
        .with_pause(None)
        // This process uses more than a kilobyte.
        .with_terminate(0.95)
        .with_transfer(None)
        .with_monitor_interval(Duration::from_millis(1));
    let builder = scheduler.worker("w").memory_limit(1000);
    let builder = builder.memory_thresholds(thresholds);
    let (worker, mut stream) = scheduler.start(builder).await;
    let ended = worker.ended().await;
    assert!(
        matches!(ended, Ended::OutOfMemory { len } if len > 1000),
        "{ended}"
    );
    let mut topics = Vec::new();
    while topics.len() < 2 {
        if let FromWorker::LogEvent(event) = stream.next_message().await {
            topics.push(event.topic);
        }
    }
    assert_eq!(topics[1], Value::from("worker-restart-memory"));
}

#[tokio::test]
async fn warns_of_schedulers_without_the_plugin_and_of_later_releases() {
    let scheduler = Scheduler::new("inproc").await;
    let (notices, mut noticed) = mpsc::unbounded_channel();
    let builder = scheduler.worker("w").on_notice(move |message| {
        // The test may have ended.
        let _ = notices.send(message.to_owned());
    });
    let starting = tokio::spawn(builder.start());
    let mut stream = scheduler.accept().await;
    let mut rpc = scheduler.accept().await;
    let request = rpc.receiver.receive::<Request>().await;
    assert!(matches!(request, Ok(Some(Request::Versions(_)))));
    let packages = Value::dict([("distributed", "2027.1.0")]);
    let versions = Value::dict([("packages", packages)]);
    rpc.sender.send(&versions).await.expect("peer listens");
    match rpc.receiver.receive::<Request>().await {
        Ok(Some(Request::Unknown(request))) => assert_eq!(request.op, "run_function"),
        other => panic!("{other:?}"),
    }
    let refusal = Value::dict([("status", "error"), ("exception", "no pickles here")]);
    rpc.sender.send(&refusal).await.expect("peer listens");
    let register = stream.receiver.receive::<Request>().await;
    assert!(
        matches!(register, Ok(Some(Request::RegisterWorker(_)))),
        "{register:?}"
    );
    let reply = RegisterWorkerReply {
        status: ReplyStatus::Ok,
        heartbeat_interval: Some(600.0),
        ..RegisterWorkerReply::default()
    };
    stream.sender.send(&reply).await.expect("peer listens");
    let worker = starting.await.expect("no panic").expect("worker starts");
    let first = noticed.recv().await.expect("a notice");
    assert!(
        first.starts_with("the plugin that keeps Python tasks away")
            && first.contains("no pickles here"),
        "{first}"
    );
    assert_eq!(
        noticed.recv().await.as_deref(),
        Some(
            "the scheduler runs distributed 2027.1.0, but this program was tested only with \
             releases up to 2026.8.0"
        )
    );
    drop((worker, stream));
}

#[tokio::test]
async fn terminates_for_a_peer_that_has_left() {
    let scheduler = Scheduler::new("inproc").await;
    let (worker, _stream) = scheduler.start(scheduler.worker("w")).await;
    let mut channel = asking(&worker).await;
    // The reply cannot be sent to a peer without a receiver.
    drop(channel.receiver);
    let request = Request::from(Terminate::default());
    channel.sender.send(&request).await.expect("peer listens");
    let ended = tokio::time::timeout(Duration::from_secs(20), worker.ended()).await;
    assert!(matches!(ended, Ok(Ended::Closed)), "{ended:?}");
}

#[tokio::test]
async fn malformed_requests_are_replied_to_on_demand_only() {
    let scheduler = Scheduler::new("inproc").await;
    let (worker, _stream) = scheduler.start(scheduler.worker("w")).await;
    let mut channel = asking(&worker).await;
    let malformed = |reply| {
        Unknown::new("gather")
            .field("who_has", 7)
            .field("reply", reply)
    };
    let silent = Request::Unknown(malformed(false));
    channel.sender.send(&silent).await.expect("peer listens");
    let loud = Request::Unknown(malformed(true));
    assert!(channel.call::<Value>(&loud).await.is_err());
    let reply: Value = ask(&mut channel, Ping::default()).await;
    assert_eq!(reply, Value::bytes(&b"pong"[..]));
}

#[tokio::test]
async fn serves_a_limited_number_of_comms() {
    let scheduler = Scheduler::new("inproc").await;
    let builder = scheduler.worker("w").max_comms(1);
    let (worker, mut stream) = scheduler.start(builder).await;
    let mut first = asking(&worker).await;
    let _: Value = ask(&mut first, Ping::default()).await;
    let at = address(worker.address());
    let options = CommOptions::default().with_connect_retry(false);
    let transports = transports();
    transports
        .connect(&at, &options)
        .await
        .expect_err("it is full");
    match stream.next_message().await {
        FromWorker::LogEvent(event) => {
            let message = format!("{event:?}");
            assert!(message.contains("it already serves 1 comms"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    first.close().await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while transports.connect(&at, &options).await.is_err() {
        assert!(Instant::now() < deadline, "no room");
    }
}
