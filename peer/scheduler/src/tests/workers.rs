//! Workers that send invalid messages, join, retire and leave.

use daskwire_messages::protocol::{AddKeys, ReplyStatus, WorkerStatus};

use super::*;
use crate::state::Selection;

/// A registered worker that listens, and whose replies and messages the test sends.
struct ManualWorker {
    listener: Listener,
    address: String,
    stream: Channel,
}

impl ManualWorker {
    async fn new(scheduler: &Address, at: &str) -> Self {
        let at = at.parse().expect("an address");
        let listener = daskwire_rpc::transports()
            .bind(&at, daskwire_comm::CommOptions::default())
            .await;
        let listener = listener.expect("it is free");
        let address = listener.local_address().expect("it listens").to_string();
        let mut stream = connect(scheduler).await;
        let register = Request::from(RegisterWorker {
            extra_information: rust_worker(),
            address: address.clone(),
            status: WorkerStatus::Running,
            nthreads: 1,
            ..RegisterWorker::default()
        });
        let reply: RegisterWorkerReply = stream.call(&register).await.expect("it replies");
        assert_eq!(reply.status, ReplyStatus::Ok);
        Self {
            listener,
            address,
            stream,
        }
    }

    /// Replies to one request on a new comm.
    async fn reply(&self, reply: impl Field) -> Channel {
        let incoming = self.listener.accept().await.expect("a connection");
        let comm = incoming.handshake().await.expect("a comm");
        let mut channel = Channel::new(comm, Ends::new("worker", "scheduler", None));
        let request = channel.receiver.receive::<Request>().await;
        request.expect("a request").expect("a request");
        channel.sender.send(&reply).await.expect("it listens");
        channel
    }
}

fn value(string: &str) -> Serialized {
    Serialized::of(&Value::from(string)).expect("a plain value")
}

#[tokio::test]
async fn unrequested_results_do_not_reach_clients() {
    let scheduler = scheduler("inproc://unrequested").await;
    let worker = ManualWorker::new(scheduler.address(), "inproc://unrequested-1").await;
    let mut client = Client::new(scheduler.address(), "me").await;
    let data = |names: &[&str]| {
        let data = names.iter().map(|name| (Key::from(*name), value(name)));
        Some(data.collect::<Vec<_>>())
    };
    let request = Scatter {
        data: data(&["a"]).unwrap_or_default(),
        client: "me".to_owned(),
        ..Scatter::default()
    };
    // Reports of data that was not sent are ignored too.
    let sizes = ["a", "b", "a", "c"].map(|name| (Key::from(name), 1));
    let reply = UpdateDataReply {
        status: ReplyStatus::Ok,
        nbytes: sizes.into(),
        ..UpdateDataReply::default()
    };
    let (put, channel) = tokio::join!(client.call::<Keys>(request), worker.reply(reply));
    assert_eq!(*put.expect("it is done"), [Key::from("a")]);
    drop(channel);
    assert_eq!(scheduler.inspect(State::task_count), 1);
    let reply = DataReply {
        status: ReplyStatus::Ok,
        data: data(&["b", "a", "c", "a"]),
        ..DataReply::default()
    };
    let request = Gather {
        keys: Some(["a"].into_iter().collect()),
        ..Gather::default()
    };
    let (gathered, _channel) = tokio::join!(client.call::<DataReply>(request), worker.reply(reply));
    let data = gathered.expect("it replies").data.expect("all of it");
    assert_eq!(data, [(Key::from("a"), value("a"))]);
}

/// Number of requests and keys that a worker receives if it sends some of the
/// keys that a client gathers, and number of keys reported as missing to the
/// client.
async fn requests_for_data(count: usize, sent: usize) -> (usize, usize, usize) {
    let address = format!("inproc://gather-{count}-{sent}");
    let scheduler = scheduler(&address).await;
    let worker = ManualWorker::new(scheduler.address(), &format!("{address}-1")).await;
    let mut client = Client::new(scheduler.address(), "me").await;
    let names: Vec<String> = (0..count).map(|number| format!("x-{number}")).collect();
    let sizes = names.iter().map(|name| (Key::from(name.as_str()), 1));
    let scattered = Scatter {
        data: names
            .iter()
            .map(|name| (Key::from(name.as_str()), value(name)))
            .collect(),
        client: "me".to_owned(),
        ..Scatter::default()
    };
    let reply = UpdateDataReply {
        status: ReplyStatus::Ok,
        nbytes: sizes.collect(),
        ..UpdateDataReply::default()
    };
    let (put, mut channel) = tokio::join!(client.call::<Keys>(scattered), worker.reply(reply));
    assert_eq!(put.expect("it is done").len(), count);
    let counts = Arc::new(Mutex::new((0, 0)));
    let counted = Arc::clone(&counts);
    let replying = tokio::spawn(async move {
        while let Ok(Some(Request::GetData(request))) = channel.receiver.receive().await {
            {
                let mut counts = lock(&counted);
                *counts = (counts.0 + 1, counts.1 + request.keys.len());
            }
            let data = request.keys.iter().take(sent);
            let data = data.map(|key| (key.clone(), value("x")));
            let reply = DataReply {
                status: ReplyStatus::Ok,
                data: Some(data.collect()),
                ..DataReply::default()
            };
            channel.sender.send(&reply).await.expect("it listens");
            let acknowledged = channel.receiver.receive::<String>().await;
            assert_eq!(acknowledged.expect("an OK").as_deref(), Some("OK"));
        }
    });
    let request = Gather {
        keys: Some(names.iter().map(String::as_str).collect()),
        ..Gather::default()
    };
    let reply: DataReply = client.call(request).await.expect("it replies");
    let missing = reply.keys.map_or(0, |keys| keys.len());
    replying.abort();
    let (requests, keys) = *lock(&counts);
    (requests, keys, missing)
}

#[tokio::test]
async fn a_worker_that_sends_few_keys_gets_one_request_for_each() {
    for count in [100, 200] {
        assert_eq!(requests_for_data(count, 1).await, (1, count, count - 1));
        assert_eq!(requests_for_data(count, count).await, (1, count, 0));
    }
}

#[tokio::test]
async fn impossible_reports_leave_no_state() {
    let scheduler = scheduler("inproc://claims").await;
    let mut worker = ManualWorker::new(scheduler.address(), "inproc://claims-1").await;
    let other = Worker::new(scheduler.address(), "inproc://claims-2").await;
    let mut client = Client::new(scheduler.address(), "me").await;
    let graph: Graph = [Task::new("x", "operator.add", [1, 2])]
        .into_iter()
        .collect();
    let here = Value::from(other.address.to_string());
    client.send(UpdateGraph {
        expr_ser: graph.to_expression().expect("plain values"),
        keys: ["x"].into_iter().collect(),
        annotations: Some(Value::dict([("workers", here)])),
        ..UpdateGraph::default()
    });
    client.wait(&["x"]).await;
    let (x, keys) = (Key::from("x"), || ["x", "never"].into_iter().collect());
    let claims = vec![
        FromWorker::from(TaskFinished {
            key: x.clone(),
            run_id: 1,
            nbytes: u64::MAX,
            ..TaskFinished::default()
        }),
        FromWorker::from(TaskErred {
            key: x.clone(),
            run_id: 1,
            ..TaskErred::default()
        }),
        FromWorker::from(ReleaseWorkerData {
            key: x.clone(),
            ..ReleaseWorkerData::default()
        }),
        FromWorker::from(Reschedule {
            key: x.clone(),
            ..Reschedule::default()
        }),
        FromWorker::from(LongRunning {
            key: x.clone(),
            run_id: 1,
            ..LongRunning::default()
        }),
        FromWorker::from(RequestRefreshWhoHas {
            keys: keys(),
            ..RequestRefreshWhoHas::default()
        }),
    ];
    worker
        .stream
        .sender
        .send(&claims)
        .await
        .expect("it listens");
    loop {
        let batch = worker.stream.receiver.receive_batch::<ToWorker>().await;
        let batch = batch.expect("it is open").expect("it is open");
        if batch
            .iter()
            .any(|message| matches!(message, ToWorker::RefreshWhoHas(_)))
        {
            break;
        }
    }
    let keys = [x];
    let (who_has, sizes) = scheduler.inspect(|state| {
        (
            state.who_has(Selection::Keys(&keys)),
            state.nbytes(Selection::Keys(&keys)),
        )
    });
    assert_eq!(who_has[0].1, [other.address.to_string()]);
    assert_eq!(sizes[0].1, 28);
    scheduler.inspect(State::check);
    // A heartbeat of an unknown worker
    let heartbeat = HeartbeatWorker {
        address: "inproc://claims-3".to_owned(),
        ..HeartbeatWorker::default()
    };
    let reply: HeartbeatReply = client.call(heartbeat).await.expect("it replies");
    assert_eq!(reply.status, ReplyStatus::Missing);
    assert_eq!(client.gather("x").await, Value::from(3));
    assert_eq!(worker.address, "inproc://claims-1");
}

#[tokio::test]
async fn keeps_nothing_of_workers_that_left() {
    let scheduler = scheduler("tcp://127.0.0.1:0").await;
    let mut client = Client::new(scheduler.address(), "me").await;
    for number in 0..50 {
        let worker = Worker::new(scheduler.address(), "tcp://127.0.0.1:0").await;
        let key = format!("x-{number}");
        client.submit([Task::new(key.as_str(), "operator.add", [1, 2])], &[&key]);
        client.wait(&[&key]).await;
        assert_eq!(client.gather(&key).await, Value::from(3));
        assert_eq!(scheduler.shared.pool_len(), 1);
        client.send(ClientReleasesKeys {
            keys: [key].into_iter().collect(),
            ..ClientReleasesKeys::default()
        });
        // A result that is lost before would be computed again.
        until(|| scheduler.inspect(State::task_count) == 0).await;
        worker.kill().await;
        until(|| scheduler.shared.pool_len() == 0).await;
    }
    assert_eq!(scheduler.inspect(State::worker_count), 0);
    until(|| scheduler.inspect(State::task_count) == 0).await;
}

#[tokio::test(start_paused = true)]
async fn retired_worker_is_disconnected_even_if_it_does_not_read() {
    let scheduler = scheduler("inproc://let-go").await;
    let mut worker = ManualWorker::new(scheduler.address(), "inproc://let-go-1").await;
    let ask = FromWorker::from(RequestRefreshWhoHas {
        keys: (0..1000).map(|key| format!("x-{key}")).collect(),
        ..RequestRefreshWhoHas::default()
    });
    let batch = vec![ask; 100];
    worker.stream.sender.send(&batch).await.expect("it listens");
    scheduler.shared.handle(SchedulerInput::RemoveWorker {
        worker: "inproc://let-go-1".to_owned(),
        close: true,
        reason: LeaveReason::Retired,
    });
    until(|| scheduler.shared.member_comm_count() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn worker_with_endless_task_retires() {
    let scheduler = scheduler("inproc://retires-busy").await;
    let mut busy = ManualWorker::new(scheduler.address(), "inproc://retires-busy-1").await;
    let mut client = Client::new(scheduler.address(), "me").await;
    client.submit([Task::new("x", "operator.add", [1, 2])], &["x"]);
    let batch = busy.stream.receiver.receive_batch::<ToWorker>().await;
    let batch = batch.expect("it is open").expect("it is open");
    assert!(matches!(batch[0], ToWorker::ComputeTask(_)), "{batch:?}");
    let _worker = Worker::new(scheduler.address(), "inproc://retires-busy-2").await;
    let request = RetireWorkers {
        workers: Some(vec![busy.address.clone()].into()),
        ..RetireWorkers::default()
    };
    let reply: Value = client.call(request).await.expect("it replies");
    assert!(reply.get(&busy.address).is_some(), "{reply}");
    client.wait(&["x"]).await;
    assert_eq!(client.gather("x").await, Value::from(3));
}

#[tokio::test(start_paused = true)]
async fn worker_stays_if_its_data_cannot_be_copied() {
    let scheduler = scheduler("inproc://stays").await;
    let worker = Worker::new(scheduler.address(), "inproc://stays-1").await;
    let mut client = Client::new(scheduler.address(), "me").await;
    client.submit([Task::new("x", "operator.add", [1, 2])], &["x"]);
    client.wait(&["x"]).await;
    let request = || RetireWorkers {
        workers: Some(vec![worker.address.to_string()].into()),
        ..RetireWorkers::default()
    };
    let reply: Value = client.call(request()).await.expect("it replies");
    assert_eq!(reply, Value::Dict(Vec::new().into()));
    client.submit([Task::new("y", "operator.add", [3, 4])], &["y"]);
    client.wait(&["y"]).await;
    // Another one that ignores the request
    let other = ManualWorker::new(scheduler.address(), "inproc://stays-2").await;
    let start = tokio::time::Instant::now();
    let request = tokio::spawn({
        let mut requests = connect(scheduler.address()).await;
        let request = Request::from(request());
        async move { requests.call::<Value>(&request).await }
    });
    let late = Duration::from_secs(3);
    tokio::time::timeout(late, core::future::pending::<()>())
        .await
        .expect_err("time passes");
    // One that copies the data
    let _third = Worker::new(scheduler.address(), "inproc://stays-3").await;
    let reply = request.await.expect("no panic").expect("it replies");
    assert!(reply.get(&worker.address.to_string()).is_some(), "{reply}");
    assert!(start.elapsed() < Duration::from_secs(30));
    assert_eq!(client.gather("x").await, Value::from(3));
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn worker_retires_as_long_as_its_data_is_copied() {
    let scheduler = scheduler("inproc://slow").await;
    let worker = Worker::new(scheduler.address(), "inproc://slow-1").await;
    let mut client = Client::new(scheduler.address(), "me").await;
    let keys = ["x", "y", "z"];
    let tasks = keys.map(|key| Task::new(key, "operator.add", [1, 2]));
    client.submit(tasks, &keys);
    client.wait(&keys).await;
    let mut other = ManualWorker::new(scheduler.address(), "inproc://slow-2").await;
    let address = worker.address.to_string();
    let request = tokio::spawn({
        let mut requests = connect(scheduler.address()).await;
        let request = Request::from(RetireWorkers {
            workers: Some(vec![address.clone()].into()),
            ..RetireWorkers::default()
        });
        async move { requests.call::<Value>(&request).await }
    });
    for key in keys {
        tokio::time::sleep(Duration::from_secs(20)).await;
        let copied = FromWorker::from(AddKeys {
            keys: [key].into_iter().collect(),
            ..AddKeys::default()
        });
        let sent = other.stream.sender.send(&vec![copied]).await;
        sent.expect("it listens");
    }
    let reply = request.await.expect("no panic").expect("it replies");
    assert!(reply.get(&address).is_some(), "{reply}");
}

/// A worker in Python sends heartbeats until it has read the request to close, and
/// reports an error if one has no reply.
#[tokio::test]
async fn heartbeats_have_replies_until_the_workers_have_left() {
    let scheduler = scheduler("tcp://127.0.0.1:0").await;
    let mut worker = ManualWorker::new(scheduler.address(), "tcp://127.0.0.1:0").await;
    let mut requests = connect(scheduler.address()).await;
    let heartbeat = Request::from(HeartbeatWorker {
        address: worker.address.clone(),
        ..HeartbeatWorker::default()
    });
    let reply: HeartbeatReply = requests.call(&heartbeat).await.expect("it replies");
    assert_eq!(reply.status, ReplyStatus::Ok);
    let closing = tokio::spawn(scheduler.close());
    let receiver = &mut worker.stream.receiver;
    while let Ok(Some(_)) = receiver.receive_batch::<ToWorker>().await {}
    drop(worker);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let reply: HeartbeatReply = requests.call(&heartbeat).await.expect("it replies");
    assert_eq!(reply.status, ReplyStatus::Ok);
    drop(requests);
    closing.await.expect("no panic");
}

/// The nanny of a worker that hangs is asked to start it again.
#[tokio::test(start_paused = true)]
async fn the_nanny_of_a_silent_worker_kills_it() {
    let scheduler = scheduler("inproc://silent-nanny").await;
    let at = "inproc://silent-nanny-1".parse().expect("an address");
    let nanny = daskwire_rpc::transports()
        .bind(&at, daskwire_comm::CommOptions::default())
        .await;
    let nanny = nanny.expect("it is free");
    let mut stream = connect(scheduler.address()).await;
    let register = Request::from(RegisterWorker {
        address: "inproc://silent-nanny-2".to_owned(),
        nanny: Nullable(Some(at.to_string())),
        nthreads: 1,
        ..RegisterWorker::default()
    });
    let reply: RegisterWorkerReply = stream.call(&register).await.expect("it replies");
    assert_eq!(reply.status, ReplyStatus::Ok);
    let incoming = nanny.accept().await.expect("a connection");
    let comm = incoming.handshake().await.expect("a comm");
    let mut channel = Channel::new(comm, Ends::new("nanny", "scheduler", None));
    let request = channel.receiver.receive::<Request>().await;
    let request = request.expect("a request").expect("a request");
    assert!(matches!(&request, Request::Kill(_)), "{request:?}");
    assert_eq!(scheduler.inspect(State::worker_count), 0);
}
