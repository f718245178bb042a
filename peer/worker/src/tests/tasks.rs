//! Tasks and requests.

use super::*;

#[tokio::test]
async fn runs_tasks_and_serves_their_results() {
    for scheme in ["inproc", "tcp", "tls", "quic"] {
        let scheduler = Scheduler::new(scheme).await;
        let (worker, mut stream) = scheduler.start(scheduler.worker("w")).await;
        assert_eq!(
            address(worker.address()).scheme(),
            scheduler.address.scheme()
        );
        for (key, function) in [("x", "operator.add"), ("y", "native:slow")] {
            let arguments = if key == "x" { vec![1, 2] } else { vec![3] };
            stream.compute(&Task::new(key, function, arguments)).await;
            let finished = stream.finished().await;
            assert_eq!(finished.key, key.into());
            assert_eq!((finished.run_id, &*finished.typename), (5, "int"));
            assert_eq!(finished.startstops.len(), 1);
        }
        let mut comm = asking(&worker).await;
        for _ in 0..2 {
            let reply: DataReply = ask(&mut comm, get_data(&["x", "y", "nothing"])).await;
            assert_eq!(reply.status, ReplyStatus::Ok);
            let data = reply.data.expect("data");
            assert_eq!(data.len(), 2);
            for (_, serialized) in data {
                assert_eq!(serialized.open(), Ok(Value::from(3)));
            }
            acknowledge(&mut comm).await;
        }
        assert_eq!(worker.counters().serialized.count, 2);
        drop(comm);
        // Over QUIC, the worker waits for the peers to close their comms.
        let reading = async move {
            assert!(matches!(
                stream.next_message().await,
                FromWorker::WorkerStatusChange(_)
            ));
            assert!(matches!(
                stream.next_message().await,
                FromWorker::CloseStream(_)
            ));
            let end = stream.channel.receiver.receive_batch::<FromWorker>().await;
            assert!(matches!(end, Ok(None)), "{end:?}");
        };
        tokio::join!(worker.close(), reading);
    }
}

#[tokio::test]
async fn a_name_in_the_contact_address_is_resolved_as_the_scheduler_does() {
    let scheduler = Scheduler::new("tcp").await;
    let contact = address("tcp://localhost:0");
    let builder = scheduler.worker("w").contact(contact);
    let (worker, _stream) = scheduler.start(builder).await;
    let (host, _) = worker.address().rsplit_once(':').expect("a port");
    assert_eq!(host, "tcp://127.0.0.1");
}

#[tokio::test]
async fn heartbeats_report_the_time_of_functions_and_transfers() {
    let scheduler = Scheduler::new("inproc").await;
    let builder = scheduler.worker("w");
    let (worker, mut stream, mut rpc) = scheduler.start_with_heartbeats(builder, 0.1).await;
    stream
        .compute(&Task::new("x-1", "operator.add", [1, 2]))
        .await;
    stream.finished().await;
    let mut comm = asking(&worker).await;
    let _: DataReply = ask(&mut comm, get_data(&["x-1"])).await;
    acknowledge(&mut comm).await;
    let mut seen: Vec<Vec<Value>> = Vec::new();
    let has = |seen: &[Vec<Value>], names: &[&str]| {
        let names: Vec<Value> = names.iter().copied().map(Value::from).collect();
        seen.contains(&names)
    };
    // The transfer ends when the worker has read that it arrived.
    for _ in 0..100 {
        if has(&seen, &["get-data", "network", "seconds"]) {
            break;
        }
        let heartbeat = Scheduler::heartbeat(&mut rpc).await;
        let digests = heartbeat.metrics.get("digests_total_since_heartbeat");
        let Some(Value::Dict(digests)) = digests else {
            panic!("{digests:?}")
        };
        seen.extend(digests.iter().map(|(names, _)| match names {
            Value::List(names) | Value::Tuple(names) => names.to_vec(),
            other => panic!("{other}"),
        }));
        scheduler.answer_heartbeat(&mut rpc).await;
    }
    assert!(has(&seen, &["get-data", "network", "seconds"]), "{seen:?}");
    let of_x = |label| has(&seen, &["execute", "x", label, "seconds"]);
    assert!(of_x("thread-cpu") || of_x("thread-noncpu"), "{seen:?}");
}

#[tokio::test]
async fn times_are_reported_by_the_clock_of_the_scheduler() {
    let mut scheduler = Scheduler::new("inproc").await;
    scheduler.ahead = 1e3;
    let builder = scheduler.worker("w");
    let (_worker, mut stream, mut rpc) = scheduler.start_with_heartbeats(builder, 0.1).await;
    // The test may wait long for a processor.
    let is_ahead = |start: f64, by: f64| (start - now().as_secs_f64() - by).abs() < 100.0;
    stream
        .compute(&Task::new("x", "operator.add", [1, 2]))
        .await;
    let finished = stream.finished().await;
    assert!(is_ahead(finished.startstops[0].start, 1e3));

    scheduler.ahead = 2e3;
    Scheduler::heartbeat(&mut rpc).await;
    scheduler.answer_heartbeat(&mut rpc).await;
    // Once the next heartbeat is sent, the reply to the first one was handled.
    Scheduler::heartbeat(&mut rpc).await;
    stream
        .compute(&Task::new("y", "operator.truediv", [1, 0]))
        .await;
    let erred = stream.erred().await;
    let steps = erred.startstops.expect("times");
    assert!(is_ahead(steps[0].start, 2e3));
    assert!(steps[0].stop >= steps[0].start);
}

#[tokio::test]
async fn tasks_are_given_back_while_the_scheduler_does_not_answer() {
    let scheduler = Scheduler::new("inproc").await;
    let packages = Value::dict([("distributed", "2026.8.0")]);
    let versions = Value::dict([("packages", packages)]);
    let builder = scheduler.worker("w").scheduler_plugin(false);
    let (_worker, mut stream, rpc) = scheduler.start_as(builder, 600.0, versions).await;
    drop(rpc);
    stream
        .compute(&Task::new("x", "no.such_function", [1]))
        .await;
    let mut rpc = scheduler.accept().await;
    let asked = rpc.receiver.receive::<Request>().await;
    assert!(matches!(asked, Ok(Some(Request::Identity(_)))), "{asked:?}");
    drop(rpc);
    // The worker reports a pause, so that the task is not assigned to it again at once.
    let paused = stream.next_message().await;
    assert!(
        matches!(paused, FromWorker::WorkerStatusChange(_)),
        "{paused:?}"
    );
    let answer = stream.next_message().await;
    assert!(
        matches!(&answer, FromWorker::Reschedule(task) if task.key == "x".into()),
        "{answer:?}"
    );
}

#[tokio::test]
async fn unreadable_and_failing_tasks_report_exceptions() {
    let scheduler = Scheduler::new("inproc").await;
    let (_worker, mut stream) = scheduler.start(scheduler.worker("w")).await;
    let broken = ToWorker::from(ComputeTask {
        key: "broken".into(),
        run_spec: RunSpec::Payload(Serialized::pickled(b"\x80\x05]")),
        ..ComputeTask::default()
    });
    stream.send([broken]).await;
    let erred = stream.erred().await;
    let message = erred.exception_text.expect("a message");
    assert!(
        message.starts_with("ValueError('the pickle is damaged"),
        "{message}"
    );
    // Damaged data is detected when it is needed.
    let mut comm = asking(&_worker).await;
    let bad = Serialized::of_written_pickle(bytes::Bytes::from_static(b"\x80\x05]"));
    let update = UpdateData {
        data: Some(vec![("bad".into(), bad)]),
        ..UpdateData::default()
    };
    let _: UpdateDataReply = ask(&mut comm, update).await;
    let needs = Task::new("needs", "builtins.len", [&Key::from("bad")]);
    stream
        .compute_with(&needs, &[(&"bad".into(), &_worker)])
        .await;
    let message = stream.erred().await.exception_text.expect("a message");
    assert!(
        message.starts_with("ValueError('the data of bad cannot be used: "),
        "{message}"
    );
}

#[tokio::test]
async fn runs_and_frees_many_tasks_of_one_batch() {
    const COUNT: i64 = 2000;
    let scheduler = Scheduler::new("inproc").await;
    let (worker, mut stream) = scheduler.start(scheduler.worker("w")).await;
    for function in ["operator.add", "native:slow"] {
        let task = |n: i64| {
            let key = Key::list([Key::from(function), n.into()]);
            let arguments = if function == "operator.add" {
                vec![n, n]
            } else {
                vec![n]
            };
            Task::new(key, function, arguments)
        };
        stream
            .send((0..COUNT).map(|n| compute(&task(n), &[])))
            .await;
        for _ in 0..COUNT {
            stream.finished().await;
        }
        let free = FreeKeys {
            keys: (0..COUNT).map(|n| task(n).key).collect(),
            ..FreeKeys::default()
        };
        stream.send([free.into()]).await;
        for _ in 0..COUNT {
            let message = stream.next_message().await;
            assert!(
                matches!(message, FromWorker::ReleaseWorkerData(_)),
                "{message:?}"
            );
        }
    }
    assert_eq!(worker.keys(), []);
    assert_eq!(worker.task_counts(), []);
}

#[tokio::test]
async fn results_are_sent_at_once_when_no_task_is_left() {
    let scheduler = Scheduler::new("inproc").await;
    let (finish, finished) = std::sync::mpsc::channel();
    let finished = Mutex::new(finished);
    let wait = move |n: i64| {
        finished
            .lock()
            .expect("not poisoned")
            .recv()
            .map_or(n, |()| n)
    };
    let builder = scheduler
        .worker("w")
        .batch_interval(Duration::from_secs(3600))
        .functions(Functions::builtins().function("wait", wait));
    let (worker, mut stream) = scheduler.start(builder).await;
    for key in ["a", "b", "c"] {
        stream.compute(&Task::new(key, "operator.neg", [1])).await;
        assert_eq!(stream.finished().await.key, key.into());
    }
    // While another task runs, results wait for those that follow.
    stream.compute(&Task::new("slow", "native:wait", [1])).await;
    stream.compute(&Task::new("d", "operator.neg", [1])).await;
    let mut comm = asking(&worker).await;
    let stored = async {
        loop {
            let reply: DataReply = ask(&mut comm, get_data(&["d"])).await;
            acknowledge(&mut comm).await;
            if reply.data.is_some_and(|data| !data.is_empty()) {
                break;
            }
        }
    };
    let stored = tokio::time::timeout(Duration::from_secs(20), stored).await;
    stored.expect("the result in time");
    finish.send(()).expect("the task waits");
    let batch = stream.channel.receiver.receive_batch::<FromWorker>();
    let batch = tokio::time::timeout(Duration::from_secs(20), batch).await;
    let batch = batch.expect("results in time").expect("valid messages");
    let keys = batch.iter().flatten().map(|message| match message {
        FromWorker::TaskFinished(finished) => finished.key.clone(),
        other => panic!("{other:?}"),
    });
    assert_eq!(keys.collect::<Vec<_>>(), ["d".into(), "slow".into()]);
}

#[tokio::test]
async fn requests_are_answered_or_refused() {
    let scheduler = Scheduler::new("inproc").await;
    let (worker, mut stream) = scheduler.start(scheduler.worker("w")).await;
    let mut comm = asking(&worker).await;
    let pong: Value = ask(&mut comm, Ping::default()).await;
    assert_eq!(pong, Value::bytes(&b"pong"[..]));
    let data = Value::list([1, 2]);
    let echo = Echo {
        data: data.clone(),
        ..Echo::default()
    };
    assert_eq!(ask::<Value>(&mut comm, echo).await, data);
    let identity: Value = ask(&mut comm, Identity::default()).await;
    assert_eq!(identity.get("type"), Some(&Value::from("Worker")));
    assert_eq!(identity.get("name"), Some(&Value::from("w")));

    let key = Key::list(["x".into(), 0.into()]);
    let update = UpdateData {
        data: Some(vec![(key.clone(), Serialized::of(&data).expect("plain"))]),
        ..UpdateData::default()
    };
    let updated: UpdateDataReply = ask(&mut comm, update).await;
    assert_eq!(updated.nbytes[0].0, key);
    let keys: Value = ask(&mut comm, KeysRequest::default()).await;
    assert_eq!(keys.to_string(), "[['x', 0]]");
    let free = FreeKeysRequest {
        keys: Keys(vec![key]),
        ..FreeKeysRequest::default()
    };
    assert_eq!(ask::<Value>(&mut comm, free).await, Value::None);
    let message = stream.next_message().await;
    assert!(
        matches!(message, FromWorker::ReleaseWorkerData(_)),
        "{message:?}"
    );

    // Without holders
    let gather = Gather {
        who_has: Some(vec![("y".into(), vec![worker.address().to_owned()])]),
        ..Gather::default()
    };
    let reply: DataReply = ask(&mut comm, gather).await;
    assert_eq!(reply.status, ReplyStatus::PartialFail);
    assert_eq!(*reply.keys.expect("keys"), ["y".into()]);

    // Unsupported operations, and an unknown one
    for op in ["run", "actor_execute", "no such thing"] {
        let unknown = Request::Unknown(Unknown {
            op: op.to_owned(),
            extra: vec![],
        });
        let Err(RequestError::Remote(error)) = comm.call::<Value>(&unknown).await else {
            panic!("expected a refusal");
        };
        assert_eq!(error.class, "NotImplementedError");
        assert!(error.message.contains(op), "{error}");
        assert!(error.message.contains("w at inproc://"), "{error}");
    }
    comm.sender
        .send(&Value::dict([("op", "get_data")]))
        .await
        .expect("peer listens");
    let status = comm.receiver.receive::<Status>().await.expect("a reply");
    let status = status.expect("a reply");
    assert_eq!(status.status, Some(ReplyStatus::UncaughtError));
    let message = status.exception_text.expect("a message");
    assert!(message.contains("has no field keys"), "{message}");

    assert_eq!(
        ask::<Value>(&mut comm, Terminate::default()).await,
        Value::from("OK")
    );
    assert!(matches!(worker.ended().await, Ended::Closed));
}

#[tokio::test]
async fn a_result_that_cannot_be_serialized_is_an_error_of_the_task() {
    let scheduler = Scheduler::new("inproc").await;
    let part = || Value::Serialized(Serialized::not_sent("it is a socket"));
    let local = || Value::from(Object::new("__main__", "Point", [1]));
    let functions = Functions::builtins()
        .function("part", part)
        .function("parts", move || Value::list([part(), part()]))
        .function("deep", move || Value::dict([("a", Value::tuple([part()]))]))
        .function("local", local)
        .function("locals", move || Value::tuple([local()]));
    let builder = scheduler.worker("w").functions(functions);
    let (worker, mut stream) = scheduler.start(builder).await;
    for name in ["parts", "deep", "local", "locals"] {
        let function = format!("native:{name}");
        stream
            .compute(&Task::new(name, function.as_str(), [0; 0]))
            .await;
        let erred = stream.erred().await;
        assert_eq!(erred.key, name.into());
        let text = erred.exception_text.expect("a text");
        assert!(text.starts_with("TypeError"), "{text}");
        assert!(text.contains("cannot serialize the result"), "{text}");
    }
    // By itself, it is forwarded as it is.
    stream
        .compute(&Task::new("part", "native:part", [0; 0]))
        .await;
    assert_eq!(stream.finished().await.key, "part".into());
    assert_eq!(worker.keys(), ["part".into()]);
}

#[tokio::test]
async fn errors_say_how_to_part_functions_in_rust_from_others() {
    use crate::context::Execution;
    use crate::run::Spec;
    use daskwire_messages::graph::{Argument, Function, Work};

    let scheduler = Scheduler::new("inproc").await;
    let (worker, _stream) = scheduler.start(scheduler.worker("w")).await;
    let error = |task: Task| {
        let shared = &worker.shared;
        let key = task.key.clone();
        let execution = Execution::new(Arc::clone(shared), key.clone(), Duration::ZERO, false);
        let (data, steps) = (Default::default(), Default::default());
        let spec = Spec::Read(task);
        let evaluated = shared.evaluate(&key, spec, &data, false, &steps, &Arc::new(execution));
        let Err(fault) = evaluated else {
            panic!("there is no such function")
        };
        fault.error().message.clone()
    };
    let of_a = || Argument::Result("a".into());
    let fused = |first: Task, second: &str| Task {
        key: "b".into(),
        work: Work::Fused {
            tasks: vec![first, Task::new("b", second, [of_a()])],
            output: "b".into(),
            inputs: Vec::new(),
        },
    };
    let unregistered = "cannot call native:none, which is not registered with it";
    for (task, end) in [
        // Nothing to part.
        (Task::new("a", "native:none", [1]), unregistered.to_owned()),
        (
            fused(Task::new("a", "native:slow", [1]), "native:none"),
            unregistered.to_owned(),
        ),
        // The other function is named.
        (
            fused(Task::new("a", "operator.neg", [1]), "native:none"),
            format!(
                "{unregistered}; Dask has fused it with a call of operator.neg into one task: \
                 compute with optimize_graph=False, or persist a data frame with fuse=False, so \
                 that each call is a task of its own"
            ),
        ),
        (
            fused(Task::new("a", "native:slow", [1]), "no.function"),
            "cannot call no.function, which is not registered with it; Dask has fused it with a \
             call of native:slow into one task: compute with optimize_graph=False, or persist a \
             data frame with fuse=False, so that each call is a task of its own"
                .to_owned(),
        ),
    ] {
        let message = error(task);
        assert!(message.ends_with(&end), "{message}");
    }
    for what in ["operator.methodcaller", "functools.partial"] {
        let message = error(Task::new("a", Function::Unknown(what.to_owned()), [1]));
        let expected = format!(
            "cannot call {what}, which is an object of Python; a function in Rust is \
             methodcaller(\"native:NAME\"), with keyword arguments only, as in \
             methodcaller(\"native:scale\", by=2.0)"
        );
        assert!(message.ends_with(&expected), "{message}");
    }
}
