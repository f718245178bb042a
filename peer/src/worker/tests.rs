//! Workers with a scripted scheduler.

use core::time::Duration;
use std::collections::VecDeque;
use std::time::Instant;

use daskwire_comm::tls::TlsSettings;
use daskwire_comm::{
    BoxFuture, Closed, CommError, CommOptions, ConnectError, ConnectOptions, Listen, Listener,
    PendingConnection, Transport, Transports,
};
use daskwire_testing::TLS_PEM;
use tokio::sync::mpsc;

use super::*;
use crate::channel::{Channel, Ends};
use crate::graph::Task;
use crate::protocol::{
    ComputeTask, DataReply, Echo, Field, FreeKeys, FreeKeysRequest, FromWorker, Gather, GetData,
    Identity, Keys, KeysRequest, Nullable, Ping, RegisterWorkerReply, RemoveWorker, ReplyStatus,
    Request, Status, TaskErred, TaskFinished, Terminate, ToWorker, Unknown, UpdateData,
    UpdateDataReply, WorkerStatus,
};
use crate::value::Serialized;
use crate::{Key, RequestError};

/// A scheduler of one worker.
struct Scheduler {
    listener: Listener,
    address: Address,
}

/// The stream of a registered worker.
struct Stream {
    channel: Channel,
    received: VecDeque<FromWorker>,
}

fn address(address: &str) -> Address {
    address.parse().expect("an address")
}

/// Transports with a certificate, for those that need one.
fn transports() -> Transports {
    let tls = TlsSettings::new(TLS_PEM, TLS_PEM).build();
    crate::transports_with_tls(&tls.expect("a certificate"))
}

async fn bind(at: &Address) -> Listener {
    let transports = transports();
    let listener = transports.bind(at, CommOptions::default()).await;
    listener.expect("free address")
}

fn ends() -> Ends {
    Ends::new("scheduler", "worker", None)
}

impl Scheduler {
    async fn new(scheme: &str) -> Self {
        let at = match scheme {
            "inproc" => format!("inproc://{}", crate::identifier()),
            scheme => format!("{scheme}://127.0.0.1:0"),
        };
        let at = address(&at);
        let listener = bind(&at).await;
        let address = listener.local_address().expect("peer listens");
        Self { listener, address }
    }

    fn worker(&self, name: &str) -> Builder {
        Worker::builder(self.address.clone())
            .name(name)
            .transports(transports())
            .nthreads(2)
            .batch_interval(Duration::ZERO)
            .functions(
                Functions::python()
                    .function("slow", |n: i64| n)
                    .function("bytes", |len: usize| Value::bytes(vec![7; len])),
            )
    }

    async fn accept(&self) -> Channel {
        let incoming = self.listener.accept().await.expect("incoming comm");
        Channel::new(incoming.handshake().await.expect("a comm"), ends())
    }

    /// Starts a worker, and answers its requests until it is registered.
    async fn start(&self, builder: Builder) -> (Worker, Stream) {
        let starting = tokio::spawn(builder.start());
        let mut stream = self.accept().await;
        let mut rpc = self.accept().await;
        let versions = rpc.receiver.receive::<Request>().await;
        assert!(
            matches!(versions, Ok(Some(Request::Versions(_)))),
            "{versions:?}"
        );
        let versions = Value::dict([("host", Value::Dict([].into()))]);
        rpc.sender.send(&versions).await.expect("peer listens");
        let register = stream.receiver.receive::<Request>().await;
        let Ok(Some(Request::RegisterWorker(register))) = register else {
            panic!("{register:?}")
        };
        assert_eq!(register.versions, versions);
        let spilled = register.metrics.get("spilled_bytes");
        assert_eq!(
            spilled.and_then(|spilled| spilled.get("disk")),
            Some(&Value::from(0))
        );
        let reply = RegisterWorkerReply {
            status: ReplyStatus::Ok,
            // Long enough that no heartbeat has to be answered.
            heartbeat_interval: Some(600.0),
            ..RegisterWorkerReply::default()
        };
        stream.sender.send(&reply).await.expect("peer listens");
        let worker = starting.await.expect("no panic").expect("worker starts");
        // The second comm stays open for heartbeats.
        tokio::spawn(async move {
            let closed = rpc.receiver.receive::<Request>().await;
            drop((rpc, closed));
        });
        let stream = Stream {
            channel: stream,
            received: VecDeque::new(),
        };
        (worker, stream)
    }
}

#[tokio::test]
async fn does_not_register_with_an_old_scheduler() {
    let scheduler = Scheduler::new("inproc").await;
    let starting = tokio::spawn(scheduler.worker("early").start());
    let mut stream = scheduler.accept().await;
    let mut rpc = scheduler.accept().await;
    let request = rpc.receiver.receive::<Request>().await;
    assert!(matches!(request, Ok(Some(Request::Versions(_)))));
    let packages = Value::dict([("distributed", "2025.2.0")]);
    let versions = Value::dict([("packages", packages)]);
    rpc.sender.send(&versions).await.expect("peer listens");
    let error = starting.await.expect("no panic").expect_err("too old");
    assert_eq!(
        error.to_string(),
        "the scheduler runs distributed 2025.2.0: a worker in Rust takes 2025.3.0 or later"
    );
    let message = stream.receiver.receive::<Request>().await;
    assert!(!matches!(message, Ok(Some(_))), "{message:?}");
}

impl Stream {
    async fn send(&mut self, messages: impl IntoIterator<Item = ToWorker>) {
        let batch: Vec<ToWorker> = messages.into_iter().collect();
        self.channel
            .sender
            .send(&batch)
            .await
            .expect("peer listens");
    }

    async fn compute(&mut self, task: &Task) {
        self.compute_with(task, &[]).await;
    }

    async fn compute_with(&mut self, task: &Task, who_has: &[(&Key, &Worker)]) {
        self.send([compute(task, who_has)]).await;
    }

    async fn next_message(&mut self) -> FromWorker {
        while self.received.is_empty() {
            let batch = self.channel.receiver.receive_batch::<FromWorker>();
            let batch = tokio::time::timeout(Duration::from_secs(20), batch).await;
            let batch = batch.expect("message in time").expect("valid message");
            self.received.extend(batch.expect("open stream"));
        }
        self.received.pop_front().expect("just checked")
    }

    async fn finished(&mut self) -> TaskFinished {
        match self.next_message().await {
            FromWorker::TaskFinished(finished) => finished,
            other => panic!("{other:?}"),
        }
    }

    async fn erred(&mut self) -> TaskErred {
        match self.next_message().await {
            FromWorker::TaskErred(erred) => erred,
            other => panic!("{other:?}"),
        }
    }
}

fn compute(task: &Task, who_has: &[(&Key, &Worker)]) -> ToWorker {
    let holders = who_has
        .iter()
        .map(|(key, worker)| ((*key).clone(), vec![worker.address().to_owned()]));
    ToWorker::from(ComputeTask {
        key: task.key.clone(),
        run_id: 5,
        priority: vec![0.0; 3],
        who_has: holders.collect(),
        nbytes: who_has
            .iter()
            .map(|(key, _)| ((*key).clone(), 10))
            .collect(),
        run_spec: task.to_run_spec().expect("plain values"),
        ..ComputeTask::default()
    })
}

/// Opens a comm to a worker.
async fn asking(worker: &Worker) -> Channel {
    let (transports, options) = (transports(), CommOptions::default());
    let comm = transports
        .connect(&address(worker.address()), &options)
        .await;
    Channel::new(comm.expect("peer listens"), ends())
}

async fn ask<T: Field>(channel: &mut Channel, request: impl Into<Request>) -> T {
    channel.call(&request.into()).await.expect("a reply")
}

fn get_data(keys: &[&str]) -> GetData {
    GetData {
        keys: keys.iter().copied().collect(),
        ..GetData::default()
    }
}

async fn acknowledge(channel: &mut Channel) {
    channel
        .sender
        .send(&"OK".to_owned())
        .await
        .expect("peer listens");
}

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
        worker.close().await;
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
    }
}

#[tokio::test]
async fn unreadable_and_failing_tasks_report_exceptions() {
    let scheduler = Scheduler::new("inproc").await;
    let (_worker, mut stream) = scheduler.start(scheduler.worker("w")).await;
    let broken = ToWorker::from(ComputeTask {
        key: "broken".into(),
        run_spec: Serialized::pickled(b"\x80\x05]"),
        ..ComputeTask::default()
    });
    stream.send([broken]).await;
    let erred = stream.erred().await;
    let text = erred.exception_text.expect("a text");
    assert!(
        text.starts_with("ValueError('the pickle is damaged"),
        "{text}"
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
    let text = stream.erred().await.exception_text.expect("a text");
    assert!(text.starts_with("ValueError('the data of bad: "), "{text}");
}

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
        work: crate::graph::Work::Is((&x).into()),
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
    // The first worker is gone, so the scheduler is asked for other holders.
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
        let at = address(&format!("inproc://{}", crate::identifier()));
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
        nbytes: vec![(key, 10)],
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
    // The peer has been sent data too, and does not acknowledge it.
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
    for op in ["run", "upload_file", "no such thing"] {
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
    let text = status.exception_text.expect("a text");
    assert!(text.contains("has no field keys"), "{text}");

    assert_eq!(
        ask::<Value>(&mut comm, Terminate::default()).await,
        Value::from("OK")
    );
    assert!(matches!(worker.ended().await, Ended::Closed));
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
            worker.shared.store.poison();
        } else {
            crate::failure::poison(&worker.shared.machine);
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
    let builder = builder.on_notice(|_| panic!("as the test wants"));
    let (worker, mut stream) = scheduler.start(builder).await;
    worker.shared.notice("something");
    let message = stream.next_message().await;
    assert!(matches!(message, FromWorker::LogEvent(_)), "{message:?}");
    stream.compute(&Task::new("x", "native:slow", [3])).await;
    stream.finished().await;
    assert!(!worker.shared.failure.is_set());

    let panicking = worker.shared.failure.clone();
    let thread = std::thread::spawn(move || {
        let _guard = panicking.guard();
        panic!("as the test wants");
    });
    assert!(thread.join().is_err());
    let ended = worker.ended().await;
    assert_eq!(ended.to_string(), "the worker panicked");
}

#[tokio::test]
async fn bounds_the_number_of_outgoing_transfers() {
    let scheduler = Scheduler::new("inproc").await;
    let (worker, _stream) = scheduler.start(scheduler.worker("w")).await;
    // Inproc counts as the same host.
    let mut taken = Vec::new();
    for _ in 0..100 {
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
async fn worker_ends_on_request_or_without_scheduler() {
    let scheduler = Scheduler::new("inproc").await;
    let (worker, mut stream) = scheduler.start(scheduler.worker("w")).await;
    let close = crate::protocol::Close {
        reason: Some("enough".to_owned()),
        ..crate::protocol::Close::default()
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

    // Nothing listens any more.
    let (worker, _stream) = scheduler.start(scheduler.worker("w")).await;
    let at = address(worker.address());
    worker.close().await;
    let options = CommOptions {
        connect_retry: false,
        ..CommOptions::default()
    };
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
    let temporary = CommError::Io(std::io::ErrorKind::ConnectionAborted.into());
    fail.send(temporary).await.expect("the worker accepts");
    let permit = fail.reserve().await.expect("the worker accepts again");
    assert_eq!(worker.status(), WorkerStatus::Running);
    permit.send(Closed::Locally.into());
    let ended = worker.ended().await;
    assert!(
        matches!(&ended, Ended::ListenerFailed(error) if matches!(**error, CommError::Closed(_))),
        "{ended:?}"
    );
    assert!(
        ended
            .to_string()
            .starts_with("the worker accepts no connections any more: "),
        "{ended}"
    );
    // It has left the cluster as usual.
    assert!(matches!(
        stream.next_message().await,
        FromWorker::WorkerStatusChange(change) if change.status == WorkerStatus::Closing
    ));
}
