//! Workers with a scripted scheduler.

mod contexts;
mod ends;
mod returns;
mod tasks;
mod transfers;

use core::time::Duration;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Instant;

use daskwire_comm::tls::{Tls, TlsSettings};
use daskwire_comm::{
    BoxFuture, Closed, CommError, CommOptions, ConnectError, ConnectOptions, Listen, Listener,
    PendingConnection, Transport, Transports,
};
use daskwire_messages::Key;
use daskwire_messages::graph::Task;
use daskwire_messages::protocol::{
    Close, ComputeTask, DataReply, Echo, Field, FreeKeys, FreeKeysRequest, FromWorker, Gather,
    GetData, HeartbeatReply, HeartbeatWorker, Identity, Keys, KeysRequest, Kill, Nullable, Ping,
    RegisterWorkerReply, RemoveWorker, ReplyStatus, Request, RunSpec, Status, StealRequest,
    TaskErred, TaskFinished, Terminate, ToWorker, Unknown, UpdateData, UpdateDataReply,
    WorkerStatus, WorkerStatusChange,
};
use daskwire_messages::value::{Object, Serialized, ValueError};
use daskwire_rpc::RequestError;
use daskwire_rpc::channel::{Channel, Ends};
use daskwire_testing::TLS_PEM;
use tokio::sync::mpsc;

use super::*;

/// A scheduler of one worker.
struct Scheduler {
    listener: Listener,
    address: Address,
    /// Seconds by which the clock of the scheduler is ahead.
    ahead: f64,
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
    // Both ends present it, and trust it.
    static TLS: LazyLock<Tls> = LazyLock::new(|| {
        let file = Path::new(TLS_PEM);
        let settings = TlsSettings::new(file, file).with_key(file);
        settings.build().expect("a certificate")
    });
    daskwire_rpc::transports_with_tls(&TLS)
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
            "inproc" => format!("inproc://{}", daskwire_messages::key::identifier()),
            scheme => format!("{scheme}://127.0.0.1:0"),
        };
        let at = address(&at);
        let listener = bind(&at).await;
        let address = listener.local_address().expect("peer listens");
        Self {
            listener,
            address,
            ahead: 0.0,
        }
    }

    /// The time by the clock of the scheduler, in seconds since 1970.
    fn time(&self) -> f64 {
        now().as_secs_f64() + self.ahead
    }

    fn worker(&self, name: &str) -> Builder {
        Worker::builder(self.address.clone())
            .name(name)
            .transports(transports())
            .nthreads(2)
            .batch_interval(Duration::ZERO)
            // Most tests end with the scheduler.
            .reconnect_timeout(Duration::ZERO)
            .functions(
                Functions::builtins()
                    .function("slow", |n: i64| n)
                    .function("bytes", |len: usize| Value::bytes(vec![7; len])),
            )
    }

    async fn accept(&self) -> Channel {
        let incoming = self.listener.accept().await.expect("incoming comm");
        Channel::new(incoming.handshake().await.expect("a comm"), ends())
    }

    /// Receives the next heartbeat.
    async fn heartbeat(rpc: &mut Channel) -> HeartbeatWorker {
        match rpc.receiver.receive::<Request>().await {
            Ok(Some(Request::HeartbeatWorker(heartbeat))) => heartbeat,
            other => panic!("{other:?}"),
        }
    }

    /// Answers a heartbeat, so that the next one follows after 0.1 seconds.
    async fn answer_heartbeat(&self, rpc: &mut Channel) {
        let reply = HeartbeatReply {
            status: ReplyStatus::Ok,
            time: Some(self.time()),
            heartbeat_interval: Some(0.1),
            ..HeartbeatReply::default()
        };
        rpc.sender.send(&reply).await.expect("peer listens");
    }

    /// Starts a worker, and answers its requests until it is registered.
    async fn start(&self, builder: Builder) -> (Worker, Stream) {
        // The interval is so long that no heartbeat has to be answered.
        let (worker, stream, mut rpc) = self.start_with_heartbeats(builder, 600.0).await;
        // The second comm stays open for heartbeats.
        tokio::spawn(async move {
            let closed = rpc.receiver.receive::<Request>().await;
            drop((rpc, closed));
        });
        (worker, stream)
    }

    /// Like [`start`](Self::start), with an interval of heartbeats in seconds. Also
    /// returns the comm of the heartbeats.
    async fn start_with_heartbeats(
        &self,
        builder: Builder,
        interval: f64,
    ) -> (Worker, Stream, Channel) {
        let versions = Value::dict([("host", Value::Dict([].into()))]);
        self.start_as(builder, interval, versions).await
    }

    /// Like [`start_with_heartbeats`](Self::start_with_heartbeats), with the versions
    /// of the scheduler.
    async fn start_as(
        &self,
        builder: Builder,
        interval: f64,
        versions: Value,
    ) -> (Worker, Stream, Channel) {
        let starting = tokio::spawn(builder.start());
        let mut stream = self.accept().await;
        let mut rpc = self.accept().await;
        let asked = rpc.receiver.receive::<Request>().await;
        assert!(matches!(asked, Ok(Some(Request::Versions(_)))), "{asked:?}");
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
            time: Some(self.time()),
            heartbeat_interval: Some(interval),
            ..RegisterWorkerReply::default()
        };
        stream.sender.send(&reply).await.expect("peer listens");
        let worker = starting.await.expect("no panic").expect("worker starts");
        let stream = Stream {
            channel: stream,
            received: VecDeque::new(),
        };
        (worker, stream, rpc)
    }
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
        run_spec: RunSpec::Payload(task.to_run_spec().expect("plain values")),
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
