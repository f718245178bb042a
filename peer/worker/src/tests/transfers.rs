//! Data between workers.

use super::*;

#[tokio::test]
async fn forwards_data_between_workers_unchanged() {
    let scheduler = Scheduler::new("inproc").await;
    let (one, mut stream) = scheduler.start(scheduler.worker("one")).await;
    let (other, mut other_stream) = scheduler.start(scheduler.worker("other")).await;
    let x = Key::from("x");
    stream
        .compute(&Task::new("x", "native:bytes", [100_000]))
        .await;
    assert_eq!(stream.finished().await.nbytes, 100_033);
    // An alias does not open its input.
    let alias = Task {
        key: "alias".into(),
        work: daskwire_messages::graph::Work::Argument((&x).into()),
    };
    other_stream.compute_with(&alias, &[(&x, &one)]).await;
    let message = other_stream.next_message().await;
    assert!(matches!(message, FromWorker::AddKeys(_)), "{message:?}");
    let finished = other_stream.finished().await;
    assert_eq!((finished.nbytes, &*finished.typename), (100_000, "bytes"));
    let actions: Vec<&str> = finished
        .startstops
        .iter()
        .map(|s| s.action.as_str())
        .collect();
    assert_eq!(actions, ["transfer", "compute"]);
    assert_eq!(other.counters(), StoreCounters::default());
    // Frame for frame
    let mut seen = Vec::new();
    for worker in [&one, &other] {
        let mut comm = asking(worker).await;
        let reply: DataReply = ask(&mut comm, get_data(&["x"])).await;
        let (_, serialized) = reply.data.expect("data").remove(0);
        seen.push((serialized.header().to_vec(), serialized.frames().to_vec()));
        acknowledge(&mut comm).await;
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(other.counters(), StoreCounters::default());
    // The first worker has left, so the scheduler is asked for other holders.
    let y = Key::from("y");
    stream.compute(&Task::new("y", "native:bytes", [10])).await;
    stream.finished().await;
    let needs = Task::new("needs", "builtins.len", [&y]);
    one.close().await;
    other_stream.compute_with(&needs, &[(&y, &one)]).await;
    let message = other_stream.next_message().await;
    assert!(
        matches!(message, FromWorker::RequestRefreshWhoHas(_)),
        "{message:?}"
    );
}

/// A scripted worker.
struct OtherWorker {
    listener: Listener,
    address: String,
}

impl OtherWorker {
    async fn new() -> Self {
        let at = address(&format!(
            "inproc://{}",
            daskwire_messages::key::identifier()
        ));
        let listener = bind(&at).await;
        Self {
            listener,
            address: at.to_string(),
        }
    }

    /// Accepts a comm and receives a request for data.
    async fn asked(&self) -> (Channel, GetData) {
        let incoming = self.listener.accept().await.expect("incoming comm");
        let mut channel = Channel::new(incoming.handshake().await.expect("a comm"), ends());
        match channel.receiver.receive::<Request>().await {
            Ok(Some(Request::GetData(request))) => (channel, request),
            other => panic!("{other:?}"),
        }
    }
}

/// A task with one dependency, held by `holder`.
fn compute_from(task: &Task, dependency: &str, holder: &OtherWorker) -> ToWorker {
    let ToWorker::ComputeTask(compute) = compute(task, &[]) else {
        panic!("compute-task");
    };
    let key = Key::from(dependency);
    ToWorker::from(ComputeTask {
        who_has: vec![(key.clone(), vec![holder.address.clone()])],
        nbytes: [(key, 10)].into_iter().collect(),
        ..compute
    })
}

fn remove_worker(worker: &str) -> ToWorker {
    ToWorker::from(RemoveWorker {
        worker: worker.to_owned(),
        ..RemoveWorker::default()
    })
}

#[tokio::test]
async fn does_not_wait_for_removed_peers() {
    let scheduler = Scheduler::new("inproc").await;
    let (worker, mut stream) = scheduler.start(scheduler.worker("w")).await;
    let stopped = OtherWorker::new().await;
    let needs = Task::new("needs", "builtins.len", [&Key::from("x")]);
    stream.send([compute_from(&needs, "x", &stopped)]).await;
    let (mut owing, _) = stopped.asked().await;
    // Data is also sent to the peer, which does not acknowledge it.
    let mut taking = asking(&worker).await;
    let request = GetData {
        who: Nullable(Some(stopped.address.clone())),
        ..get_data(&["nothing"])
    };
    let _: DataReply = ask(&mut taking, request).await;
    stream.send([remove_worker(&stopped.address)]).await;
    match stream.next_message().await {
        FromWorker::RequestRefreshWhoHas(refresh) => assert_eq!(*refresh.keys, ["x".into()]),
        other => panic!("{other:?}"),
    }
    for comm in [&mut owing, &mut taking] {
        let end = comm.receiver.receive::<Value>().await;
        assert!(matches!(end, Ok(None)), "{end:?}");
    }
}

#[tokio::test]
async fn failed_request_does_not_end_transfers_to_the_peer() {
    let scheduler = Scheduler::new("inproc").await;
    let (worker, mut stream) = scheduler.start(scheduler.worker("w")).await;
    let other = OtherWorker::new().await;
    let needs = Task::new("needs", "builtins.len", [&Key::from("x")]);
    stream.send([compute_from(&needs, "x", &other)]).await;
    let (owing, _) = other.asked().await;
    let mut taking = asking(&worker).await;
    let request = || GetData {
        who: Nullable(Some(other.address.clone())),
        ..get_data(&["nothing"])
    };
    let _: DataReply = ask(&mut taking, request()).await;
    drop(owing);
    match stream.next_message().await {
        FromWorker::RequestRefreshWhoHas(refresh) => assert_eq!(*refresh.keys, ["x".into()]),
        other => panic!("{other:?}"),
    }
    acknowledge(&mut taking).await;
    let reply: DataReply = ask(&mut taking, request()).await;
    assert_eq!(reply.status, ReplyStatus::Ok);
}

#[tokio::test]
async fn ignores_unrequested_data() {
    let scheduler = Scheduler::new("inproc").await;
    let (worker, mut stream) = scheduler.start(scheduler.worker("w")).await;
    let other = OtherWorker::new().await;
    let needs = Task::new("needs", "operator.neg", [&Key::from("x")]);
    stream.send([compute_from(&needs, "x", &other)]).await;
    let (mut comm, request) = other.asked().await;
    assert_eq!(*request.keys, ["x".into()]);
    let value = |n: i64| Serialized::of(&Value::from(n)).expect("plain");
    let reply = DataReply {
        status: ReplyStatus::Ok,
        data: Some(vec![
            ("y".into(), value(666)),
            ("x".into(), value(1)),
            ("needs".into(), value(666)),
        ]),
        ..DataReply::default()
    };
    comm.sender.send(&reply).await.expect("peer listens");
    let message = stream.next_message().await;
    assert!(matches!(message, FromWorker::AddKeys(_)), "{message:?}");
    assert_eq!(stream.finished().await.key, "needs".into());
    let mut keys = worker.keys();
    keys.sort();
    assert_eq!(keys, ["x".into(), "needs".into()]);
    // Computed results are sent once per reply, however often requested.
    let mut comm = asking(&worker).await;
    let reply: DataReply = ask(&mut comm, get_data(&["needs", "y", "needs"])).await;
    let data = reply.data.expect("data");
    assert_eq!(data.len(), 1);
    assert_eq!(data[0].1.open(), Ok(Value::from(-1)));
}

#[tokio::test]
async fn bounds_the_number_of_outgoing_transfers() {
    let scheduler = Scheduler::new("inproc").await;
    let (worker, _stream) = scheduler.start(scheduler.worker("w")).await;
    // Inproc counts as the same host.
    let mut taken = Vec::new();
    for _ in 0..20 {
        let mut comm = asking(&worker).await;
        let reply: DataReply = ask(&mut comm, get_data(&["x"])).await;
        assert_eq!(reply.status, ReplyStatus::Ok);
        taken.push(comm);
    }
    let mut comm = asking(&worker).await;
    let reply: DataReply = ask(&mut comm, get_data(&["x"])).await;
    assert_eq!(reply.status, ReplyStatus::Busy);
    // One peer acknowledges, another one disconnects.
    acknowledge(&mut taken[0]).await;
    drop(taken.pop());
    for _ in 0..2 {
        let mut free = asking(&worker).await;
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let reply: DataReply = ask(&mut free, get_data(&["x"])).await;
            if reply.status == ReplyStatus::Ok {
                taken.push(free);
                break;
            }
            assert!(Instant::now() < deadline, "{}", reply.status);
        }
    }
    let reply: DataReply = ask(&mut comm, get_data(&["x"])).await;
    assert_eq!(reply.status, ReplyStatus::Busy);
}

#[tokio::test]
async fn transfers_without_acknowledgement_stop_counting() {
    let scheduler = Scheduler::new("inproc").await;
    let builder = scheduler
        .worker("w")
        .transfer_limits(TransferLimits::default().with_sending_count(1));
    let (worker, _stream) = scheduler.start(builder).await;
    // Inproc counts as the same host.
    let mut taken = Vec::new();
    for _ in 0..2 {
        let mut comm = asking(&worker).await;
        let reply: DataReply = ask(&mut comm, get_data(&["x"])).await;
        assert_eq!(reply.status, ReplyStatus::Ok);
        taken.push(comm);
    }
    let mut comm = asking(&worker).await;
    let reply: DataReply = ask(&mut comm, get_data(&["x"])).await;
    assert_eq!(reply.status, ReplyStatus::Busy);
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(31)).await;
    let reply: DataReply = ask(&mut comm, get_data(&["x"])).await;
    assert_eq!(reply.status, ReplyStatus::Ok);
    // A late acknowledgement is read, and the comm stays usable.
    acknowledge(&mut taken[0]).await;
    let _: Value = ask(&mut taken[0], Ping::default()).await;
}

#[tokio::test]
async fn data_that_cannot_be_serialized_is_sent_as_an_error() {
    let scheduler = Scheduler::new("inproc").await;
    let (worker, _stream) = scheduler.start(scheduler.worker("w")).await;
    let part = Value::Serialized(Serialized::not_sent("it is a socket"));
    let made = |value| worker.shared.store.made(value);
    let data = [
        ("bad".into(), made(Value::list([part]))),
        ("good".into(), made(Value::from(7))),
    ];
    worker.shared.store_all(&data);
    for keys in [&["bad"][..], &["good", "bad"]] {
        let mut comm = asking(&worker).await;
        let reply: DataReply = ask(&mut comm, get_data(keys)).await;
        assert_eq!(reply.status, ReplyStatus::Ok);
        let data = reply.data.expect("data");
        assert_eq!(data.len(), keys.len());
        for (key, serialized) in data {
            match serialized.open() {
                Ok(value) => assert_eq!((key, value), ("good".into(), Value::from(7))),
                Err(ValueError::NotSent { reason }) => {
                    assert_eq!(key, "bad".into());
                    assert!(reason.contains("w at "), "{reason}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        acknowledge(&mut comm).await;
    }
    // It stays available to tasks of the worker.
    assert_eq!(worker.keys().len(), 2);
}

#[tokio::test]
async fn data_is_sent_in_a_form_that_the_requester_reads() {
    let scheduler = Scheduler::new("inproc").await;
    let (worker, _stream) = scheduler.start(scheduler.worker("w")).await;
    let store = &worker.shared.store;
    let pickled = |value: Value| store.received(Serialized::of(&value).expect("a payload"));
    let values = [
        Value::from(7),
        Value::list([Value::from("a"), Value::None]),
        Value::from(Object::new("decimal", "Decimal", ["9.50"])),
    ];
    let data: Vec<(Key, _)> = values
        .iter()
        .enumerate()
        .map(|(index, value)| (format!("x{index}").as_str().into(), pickled(value.clone())))
        .collect();
    worker.shared.store_all(&data);
    let request = GetData {
        serializers: Some(vec!["dask".to_owned(), "msgpack".to_owned()]),
        ..get_data(&["x0", "x1", "x2"])
    };
    let mut comm = asking(&worker).await;
    let reply: DataReply = ask(&mut comm, request).await;
    let data = reply.data.expect("data");
    let opened: Vec<_> = data.iter().map(|(_, payload)| payload.open()).collect();
    assert_eq!(opened[..2], [Ok(values[0].clone()), Ok(values[1].clone())]);
    assert!(
        matches!(opened[2], Err(ValueError::NotSent { .. })),
        "{opened:?}"
    );
    let is_pickle = |part: &[u8]| part.windows(6).any(|part| part == b"pickle");
    assert!(
        !data[..2]
            .iter()
            .any(|(_, payload)| is_pickle(payload.header()))
    );
    acknowledge(&mut comm).await;
}
