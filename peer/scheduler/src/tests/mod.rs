//! The scheduler over comms, with a client and workers that exchange typed
//! messages.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use daskwire_messages::graph::{Argument, Function, Graph, Task, Work};
use daskwire_messages::protocol::*;
use daskwire_messages::protocol::{ReplyStatus, WorkerStatus};
use daskwire_messages::{Key, Serialized, Value};
use daskwire_rpc::RequestError;
use daskwire_rpc::batched::{BatchSender, BatchWriter};
use daskwire_rpc::channel::{Channel, Ends, Receiver};
use daskwire_rpc::net::Connector;

use super::state::{Action, ClientId, SchedulerInput, Submission, WorkerId};
use super::*;

mod journal;
mod journey;
mod listeners;
mod moves;
mod operations;
mod panics;
mod permissions;
mod queues;
mod requests;
mod shared;
mod speed;
mod workers;

async fn scheduler(address: &str) -> Scheduler {
    scheduler_with(address, Options::default()).await
}

async fn scheduler_with(address: &str, options: Options) -> Scheduler {
    let address = address.parse().expect("an address");
    let transports = daskwire_rpc::transports();
    let listener = transports.bind(&address, daskwire_comm::CommOptions::default());
    let listener = listener.await.expect("it is free");
    Scheduler::start([listener], options).expect("worker starts")
}

async fn connect(address: &Address) -> Channel {
    let connector = Connector::new(
        daskwire_rpc::transports(),
        daskwire_comm::CommOptions::default(),
    );
    let comm = connector
        .connect(address, daskwire_comm::Traffic::Normal, None)
        .await
        .expect("it listens");
    Channel::new(comm, Ends::new("test", "scheduler", None))
}

/// A client with its stream, and a comm for requests.
struct Client {
    stream: BatchSender<FromClient>,
    /// The writer of the stream, which ends when this is dropped.
    _writing: BatchWriter,
    receiver: Receiver,
    received: std::collections::VecDeque<ToClient>,
    requests: Channel,
}

impl Client {
    async fn new(scheduler: &Address, name: &str) -> Self {
        let register = RegisterClient {
            client: name.to_owned(),
            reply: Some(false),
            ..RegisterClient::default()
        };
        Self::register(scheduler, register).await
    }

    async fn register(scheduler: &Address, register: RegisterClient) -> Self {
        let mut channel = connect(scheduler).await;
        let register = Request::from(register);
        channel.sender.send(&register).await.expect("it listens");
        let (stream, writing) = BatchSender::new(channel.sender, Duration::ZERO, usize::MAX);
        let mut client = Self {
            stream,
            _writing: writing,
            receiver: channel.receiver,
            received: std::collections::VecDeque::new(),
            requests: connect(scheduler).await,
        };
        let start = client.next().await;
        assert!(matches!(start, ToClient::StreamStart(_)), "{start:?}");
        client
    }

    fn send(&self, message: impl Into<FromClient>) {
        assert!(self.stream.send(message), "the stream has ended");
    }

    fn submit(&self, tasks: impl IntoIterator<Item = Task>, keys: &[&str]) {
        let graph: Graph = tasks.into_iter().collect();
        self.send(UpdateGraph {
            expr_ser: graph.to_expression().expect("plain values"),
            keys: keys.iter().copied().collect(),
            ..UpdateGraph::default()
        });
    }

    async fn next(&mut self) -> ToClient {
        self.try_next().await.expect("the stream is open")
    }

    async fn try_next(&mut self) -> Option<ToClient> {
        while self.received.is_empty() {
            let batch = self.receiver.receive_batch();
            let batch = tokio::time::timeout(Duration::from_secs(30), batch).await;
            let batch = batch.expect("something comes in time").ok().flatten()?;
            self.received.extend(batch);
        }
        self.received.pop_front()
    }

    /// Waits until the results are in memory; each is reported once.
    async fn wait(&mut self, keys: &[&str]) {
        let mut left: Vec<Key> = keys.iter().map(|key| Key::from(*key)).collect();
        while !left.is_empty() {
            match self.next().await {
                ToClient::KeyInMemory(message) => left.retain(|key| *key != message.key),
                other => panic!("{other:?}"),
            }
        }
    }

    async fn call<T: Field>(&mut self, request: impl Into<Request>) -> Result<T, RequestError> {
        self.requests.call(&request.into()).await
    }

    async fn gather(&mut self, key: &str) -> Value {
        let request = Gather {
            keys: Some([key].into_iter().collect()),
            ..Gather::default()
        };
        let reply: DataReply = self.call(request).await.expect("it replies");
        assert_eq!(reply.status, ReplyStatus::Ok, "{reply:?}");
        let data = reply.data.unwrap_or_default();
        data[0].1.open().expect("a plain value")
    }
}

/// A worker whose tasks add numbers, and whose data tests can access.
struct Worker {
    address: Address,
    data: Arc<Mutex<HashMap<Key, Serialized>>>,
    tasks: TaskSet<()>,
}

impl Worker {
    async fn new(scheduler: &Address, listen: &str) -> Self {
        let listen = listen.parse().expect("an address");
        let transports = daskwire_rpc::transports();
        let listener = transports.bind(&listen, daskwire_comm::CommOptions::default());
        let listener = listener.await.expect("it is free");
        let address = listener.local_address().expect("it listens");
        let data: Arc<Mutex<HashMap<Key, Serialized>>> = Arc::default();
        let mut tasks = TaskSet::new();
        tasks.spawn(serve(listener, Arc::clone(&data)));
        let mut channel = connect(scheduler).await;
        let register = Request::from(RegisterWorker {
            extra_information: rust_worker(),
            address: address.to_string(),
            status: WorkerStatus::Running,
            nthreads: 1,
            name: Value::from(address.to_string()),
            reply: Some(false),
            ..RegisterWorker::default()
        });
        let reply: RegisterWorkerReply = channel.call(&register).await.expect("it replies");
        assert_eq!(reply.status, ReplyStatus::Ok);
        tasks.spawn(work(channel, Arc::clone(&data)));
        Self {
            address,
            data,
            tasks,
        }
    }

    fn has(&self, key: &str) -> bool {
        lock(&self.data).contains_key(&Key::from(key))
    }

    async fn kill(mut self) {
        self.tasks.shutdown().await;
    }
}

fn lock<T>(data: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    data.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(listener: Listener, data: Arc<Mutex<HashMap<Key, Serialized>>>) {
    let mut connections = TaskSet::new();
    while let Ok(incoming) = listener.accept().await {
        let data = Arc::clone(&data);
        connections.spawn(async move {
            let comm = incoming.handshake().await.expect("a comm");
            let mut channel = Channel::new(comm, Ends::new("worker", "", None));
            while let Ok(Some(request)) = channel.receiver.receive::<Request>().await {
                match request {
                    Request::GetData(request) => {
                        let held = lock(&data).clone();
                        let found = request.keys.iter();
                        let found =
                            found.filter_map(|key| Some((key.clone(), held.get(key)?.clone())));
                        let reply = DataReply {
                            status: ReplyStatus::Ok,
                            data: Some(found.collect()),
                            ..DataReply::default()
                        };
                        channel.sender.send(&reply).await.expect("it listens");
                        let ok: Option<String> = channel.receiver.receive().await.expect("an OK");
                        assert_eq!(ok.as_deref(), Some("OK"));
                    }
                    Request::Gather(request) => {
                        let connector = Connector::new(
                            daskwire_rpc::transports(),
                            daskwire_comm::CommOptions::default(),
                        );
                        let pool =
                            daskwire_rpc::pool::Pool::new(Arc::new(connector), "worker", None);
                        for (key, holders) in request.who_has.unwrap_or_default() {
                            let holder = holders[0].parse().expect("an address");
                            let reply = pool.get_data(&holder, vec![key], None).await;
                            lock(&data).extend(reply.expect("it has it").data.unwrap_or_default());
                        }
                        let reply = Value::dict([("status", "OK")]);
                        channel.sender.send(&reply).await.expect("it listens");
                    }
                    Request::Echo(request) => {
                        tokio::time::sleep(Duration::from_secs(3600)).await;
                        channel
                            .sender
                            .send(&request.data)
                            .await
                            .expect("it listens");
                    }
                    Request::UpdateData(request) => {
                        let new = request.data.unwrap_or_default();
                        let nbytes = new.iter().map(|(key, value)| (key.clone(), value.len()));
                        let reply = UpdateDataReply {
                            status: ReplyStatus::Ok,
                            nbytes: nbytes.collect(),
                            ..UpdateDataReply::default()
                        };
                        lock(&data).extend(new);
                        channel.sender.send(&reply).await.expect("it listens");
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
    }
}

async fn work(channel: Channel, data: Arc<Mutex<HashMap<Key, Serialized>>>) {
    let (stream, _writing) =
        BatchSender::<FromWorker>::new(channel.sender, Duration::ZERO, usize::MAX);
    let mut receiver = channel.receiver;
    let connector = Arc::new(Connector::new(
        daskwire_rpc::transports(),
        daskwire_comm::CommOptions::default(),
    ));
    let pool = daskwire_rpc::pool::Pool::new(connector, "worker", None);
    while let Ok(Some(batch)) = receiver.receive_batch::<ToWorker>().await {
        for message in batch {
            match message {
                ToWorker::ComputeTask(task) => {
                    for (key, holders) in &task.who_has {
                        if lock(&data).contains_key(key) {
                            continue;
                        }
                        let holder = holders[0].parse().expect("an address");
                        let reply = pool.get_data(&holder, vec![key.clone()], None).await;
                        lock(&data).extend(reply.expect("it has it").data.unwrap_or_default());
                        stream.send(AddKeys {
                            keys: [key].into_iter().collect(),
                            ..AddKeys::default()
                        });
                    }
                    stream.send(run(task, &data));
                }
                ToWorker::FreeKeys(message) => {
                    for key in message.keys {
                        if lock(&data).remove(&key).is_some() {
                            stream.send(ReleaseWorkerData {
                                key,
                                ..ReleaseWorkerData::default()
                            });
                        }
                    }
                }
                ToWorker::RemoveReplicas(message) => {
                    // Later than the scheduler would reply if it did not wait for it.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    for key in message.keys {
                        lock(&data).remove(&key);
                        stream.send(ReleaseWorkerData {
                            key,
                            ..ReleaseWorkerData::default()
                        });
                    }
                }
                ToWorker::Close(_) => return,
                ToWorker::AcquireReplicas(message) => {
                    for (key, holders) in message.who_has {
                        let holder = holders[0].parse().expect("an address");
                        let reply = pool.get_data(&holder, vec![key.clone()], None).await;
                        lock(&data).extend(reply.expect("it has it").data.unwrap_or_default());
                        stream.send(AddKeys {
                            keys: [key].into_iter().collect(),
                            ..AddKeys::default()
                        });
                    }
                }
                _ => {}
            }
        }
    }
}

/// Adds integers; other arguments are errors.
fn run(message: ComputeTask, data: &Mutex<HashMap<Key, Serialized>>) -> FromWorker {
    let task =
        Task::read(message.run_spec.payload().expect("a payload"), &message.key).expect("a task");
    let number = |argument: &Argument| match argument {
        Argument::Value(value) => i64::try_from(value.clone()).ok(),
        Argument::Result(key) => {
            let value = lock(data).get(key).cloned()?;
            i64::try_from(value.open().ok()?).ok()
        }
        _ => None,
    };
    let sum = match &task.work {
        Work::Call {
            function: Function::Python { name, .. },
            arguments,
            ..
        } if name == "add" => arguments.iter().map(number).sum::<Option<i64>>(),
        _ => None,
    };
    match sum {
        Some(sum) => {
            let value = Serialized::of(&Value::from(sum)).expect("a plain value");
            lock(data).insert(message.key.clone(), value);
            FromWorker::from(TaskFinished {
                key: message.key,
                run_id: message.run_id,
                nbytes: 28,
                typename: "int".to_owned(),
                ..TaskFinished::default()
            })
        }
        None => FromWorker::from(TaskErred {
            key: message.key,
            run_id: message.run_id,
            exception: Value::from("this worker only adds"),
            ..TaskErred::default()
        }),
    }
}

async fn until(what: impl Fn() -> bool) {
    let waiting = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), waiting).await;
    waited.expect("it happens in time");
}
