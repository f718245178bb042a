//! Clients with a scripted scheduler.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use daskwire_comm::{CommError, Listener, Traffic};
use daskwire_messages::protocol::{
    CancelledKeys, ClientDesiresKeys, DataReply, FromClient, GraphsAccepted, KeyInMemory,
    RegisterClient, ReplyStatus, Request, StreamStart, TaskErredForClient, ToClient,
    UpdateDataReply,
};
use daskwire_messages::{Serialized, Value};
use daskwire_rpc::ObservedMessage;
use daskwire_rpc::channel::{Channel, Ends};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A scheduler of one client.
struct Scheduler {
    listener: Listener,
    requests: Channel,
    stream: Channel,
    received: VecDeque<FromClient>,
}

/// The relevant part of a Dask scheduler's reply to `versions`.
fn versions(release: &str) -> Value {
    let packages = Value::dict([("distributed", Value::from(release))]);
    Value::dict([("host", Value::Dict([].into())), ("packages", packages)])
}

async fn accept(listener: &Listener) -> Channel {
    let incoming = listener.accept().await.expect("incoming comm");
    let comm = incoming.handshake().await.expect("a comm");
    Channel::new(comm, Ends::new("scheduler", "client", None))
}

impl Scheduler {
    async fn start(options: ClientOptions) -> (Self, Client) {
        Self::of_release("2026.8.0", options).await
    }

    /// A scheduler of a given release, and its client.
    async fn of_release(release: &str, options: ClientOptions) -> (Self, Client) {
        let at = format!("inproc://{}", daskwire_messages::key::identifier());
        let address = at.parse().expect("an address");
        let listener = daskwire_rpc::transports()
            .bind(&address, CommOptions::default())
            .await;
        let listener = listener.expect("it is free");
        let options = options.with_interval(Duration::ZERO);
        let client = tokio::spawn(async move { Client::connect_with(&at, options).await });
        let (requests, stream) = Self::register(&listener, release).await;
        let client = client.await.expect("no panic").expect("it connects");
        let scheduler = Self {
            listener,
            requests,
            stream,
            received: VecDeque::new(),
        };
        (scheduler, client)
    }

    /// The comms of a client, which first asks for the versions: one for
    /// requests, and the stream.
    async fn register(listener: &Listener, release: &str) -> (Channel, Channel) {
        let (requests, stream, _) = Self::register_client(listener, release).await;
        (requests, stream)
    }

    /// Like [`register`](Self::register), with the id that the client registers.
    async fn register_client(listener: &Listener, release: &str) -> (Channel, Channel, String) {
        let mut requests = accept(listener).await;
        let request = requests.receiver.receive::<Request>().await;
        assert!(
            matches!(request, Ok(Some(Request::Versions(_)))),
            "{request:?}"
        );
        let sent = requests.sender.send(&versions(release)).await;
        sent.expect("it listens");
        let mut stream = accept(listener).await;
        let request = stream.receiver.receive::<Request>().await;
        let Ok(Some(Request::RegisterClient(RegisterClient { client, .. }))) = request else {
            panic!("{request:?}")
        };
        let start = vec![ToClient::from(StreamStart::default())];
        stream.sender.send(&start).await.expect("it listens");
        (requests, stream, client)
    }

    /// Like [`register_client`](Self::register_client), of a scheduler that keeps keys, which starts
    /// the stream with `start`. Returns the registration.
    async fn register_kept(
        listener: &Listener,
        start: StreamStart,
    ) -> (Channel, Channel, RegisterClient) {
        let mut requests = accept(listener).await;
        let request = requests.receiver.receive::<Request>().await;
        assert!(
            matches!(request, Ok(Some(Request::Versions(_)))),
            "{request:?}"
        );
        let packages = Value::dict([("daskwire", Value::from("0.1.0"))]);
        let versions = Value::dict([("packages", packages)]);
        requests.sender.send(&versions).await.expect("it listens");
        let mut stream = accept(listener).await;
        let request = stream.receiver.receive::<Request>().await;
        let Ok(Some(Request::RegisterClient(register))) = request else {
            panic!("{request:?}")
        };
        let start = vec![ToClient::from(start)];
        stream.sender.send(&start).await.expect("it listens");
        (requests, stream, register)
    }

    /// A scheduler that keeps the keys of its client.
    async fn that_keeps_keys() -> (Self, Client) {
        let at = format!("inproc://{}", daskwire_messages::key::identifier());
        let address = at.parse().expect("an address");
        let listener = daskwire_rpc::transports()
            .bind(&address, CommOptions::default())
            .await;
        let listener = listener.expect("it is free");
        let options = ClientOptions {
            interval: Duration::ZERO,
            ..reconnecting()
        };
        let client = tokio::spawn(async move { Client::connect_with(&at, options).await });
        let (requests, stream, register) =
            Self::register_kept(&listener, StreamStart::default()).await;
        let client = client.await.expect("no panic").expect("it connects");
        assert_eq!(register.returning, Some(false));
        assert_eq!(register.client, client.id());
        let scheduler = Self {
            listener,
            requests,
            stream,
            received: VecDeque::new(),
        };
        (scheduler, client)
    }

    /// Breaks the connection, and accepts the client again.
    async fn returned(&mut self, client: &Client, start: StreamStart) {
        self.stream.sender.close().await.expect("closed");
        let (requests, stream, register) = Self::register_kept(&self.listener, start).await;
        assert_eq!(register.returning, Some(true));
        assert_eq!(register.client, client.id());
        (self.requests, self.stream) = (requests, stream);
        self.received.clear();
    }

    /// The keys of the next message, which desires them.
    async fn desired(&mut self) -> Vec<Key> {
        match self.next_message().await {
            FromClient::ClientDesiresKeys(message) => message.keys.0,
            other => panic!("{other:?}"),
        }
    }

    /// Breaks the connection, and returns the id under which the client reconnects.
    async fn reconnect(&mut self) -> String {
        self.stream.sender.close().await.expect("closed");
        let (requests, stream, id) = Self::register_client(&self.listener, "2026.8.0").await;
        (self.requests, self.stream) = (requests, stream);
        self.received.clear();
        id
    }

    async fn send(&mut self, message: impl Into<ToClient>) {
        let batch = vec![message.into()];
        self.stream.sender.send(&batch).await.expect("it listens");
    }

    async fn next_message(&mut self) -> FromClient {
        loop {
            match self.received.pop_front() {
                Some(FromClient::HeartbeatClient(_)) => {}
                Some(message) => return message,
                None => {
                    let batch = self.stream.receiver.receive_batch::<FromClient>();
                    let batch = tokio::time::timeout(TIMEOUT, batch).await;
                    let batch = batch.expect("in time").expect("a batch");
                    self.received.extend(batch.expect("exists"));
                }
            }
        }
    }

    /// Answers the next message, which is a mark.
    async fn answer_mark(&mut self) {
        let FromClient::ReportKey(mark) = self.next_message().await else {
            panic!("no mark")
        };
        let unknown = CancelledKeys {
            keys: vec![mark.key].into_iter().collect(),
            ..CancelledKeys::default()
        };
        self.send(unknown).await;
    }

    /// The keys of the next message, which submits tasks.
    async fn submitted(&mut self) -> Vec<Key> {
        match self.next_message().await {
            FromClient::UpdateGraph(message) => message.keys.0,
            other => panic!("{other:?}"),
        }
    }

    /// The keys of the next message, which releases them.
    async fn released(&mut self) -> Vec<Key> {
        match self.next_message().await {
            FromClient::ClientReleasesKeys(message) => message.keys.0,
            other => panic!("{other:?}"),
        }
    }
}

fn in_memory(key: &str) -> KeyInMemory {
    KeyInMemory {
        key: Key::from(key),
        ..KeyInMemory::default()
    }
}

fn submit(client: &Client, key: &str) -> TaskFuture {
    let call = client.call("operator.neg").argument(1).key(key);
    call.submit().expect("submitted")
}

/// Retries until the client has noticed that it is reconnected.
async fn submit_when_connected(client: &Client, key: &str) -> TaskFuture {
    loop {
        match client.call("operator.neg").argument(1).key(key).submit() {
            Ok(future) => return future,
            Err(SubmitError::Reconnecting { .. } | SubmitError::Disconnected(_)) => {
                tokio::task::yield_now().await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

async fn done(future: &TaskFuture) -> Status {
    let done = tokio::time::timeout(TIMEOUT, future.done()).await;
    done.expect("in time")
}

#[tokio::test]
async fn waiting_for_many_results_takes_few_comms() {
    let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let keys = (0..shared::MAX_GATHER_REQUESTS + 10).map(|index| index.to_string());
    let futures: Vec<TaskFuture> = keys.map(|key| submit(&client, &key)).collect();
    for future in &futures {
        scheduler.send(in_memory(&future.key().to_string())).await;
    }
    let results = futures.iter().map(TaskFuture::result);
    let waiting = futures_util::future::join_all(results);
    let accepting = async {
        // The comm for the first request is there already.
        let mut comms = Vec::new();
        while comms.len() < shared::MAX_GATHER_REQUESTS - 1 {
            comms.push(accept(&scheduler.listener).await);
        }
        let more = tokio::time::timeout(Duration::from_millis(100), accept(&scheduler.listener));
        assert!(more.await.is_err(), "one comm more");
    };
    tokio::select! {
        results = waiting => panic!("nothing was sent: {results:?}"),
        () = accepting => {}
    }
}

#[tokio::test]
async fn arguments_are_released_after_their_task_was_submitted() {
    let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let x = submit(&client, "x");
    let y = client.call("operator.add").argument(x.clone()).argument(x);
    let _y = y.key("y").submit().expect("submitted");
    assert_eq!(scheduler.submitted().await, [Key::from("x")]);
    assert_eq!(scheduler.submitted().await, [Key::from("y")]);
    assert_eq!(scheduler.released().await, [Key::from("x")]);
    // A borrowed future is held too, until the call is submitted or dropped.
    let z = submit(&client, "z");
    let call = client.call("operator.neg").argument(&z).key("last");
    drop(z);
    let last = call.submit().expect("submitted");
    assert_eq!(scheduler.submitted().await, [Key::from("z")]);
    assert_eq!(scheduler.submitted().await, [Key::from("last")]);
    assert_eq!(scheduler.released().await, [Key::from("z")]);
    let unused = client.call("operator.neg").argument(&last);
    drop(last);
    drop(unused);
    assert_eq!(scheduler.released().await, [Key::from("last")]);
}

#[tokio::test]
async fn a_key_that_failed_is_pending_when_it_is_submitted_to_another_scheduler() {
    let options = ClientOptions::default().with_reconnect(Reconnect::Within(TIMEOUT));
    let (mut scheduler, client) = Scheduler::start(options).await;
    let [failed, waiting] = ["failed", "waiting"].map(|key| submit(&client, key));
    let error = daskwire_messages::exception::exception("ValueError", "no");
    scheduler
        .send(TaskErredForClient {
            key: Key::from("failed"),
            exception: Value::Serialized(error),
            ..TaskErredForClient::default()
        })
        .await;
    assert_eq!(done(&failed).await.name(), "error");
    scheduler.stream.sender.close().await.expect("closed");
    assert_eq!(done(&waiting).await.name(), "lost");
    (scheduler.requests, scheduler.stream) =
        Scheduler::register(&scheduler.listener, "2026.8.0").await;
    scheduler.received.clear();
    let again = submit_when_connected(&client, "failed").await;
    assert_eq!(again.status().name(), "pending");
    assert_eq!(failed.status().name(), "error");
    assert_eq!(scheduler.submitted().await, [Key::from("failed")]);
    scheduler.send(in_memory("failed")).await;
    assert_eq!(done(&again).await.name(), "finished");
    // Keys held by the earlier scheduler are not released from this one.
    drop((failed, waiting));
    drop(again);
    assert_eq!(scheduler.released().await, [Key::from("failed")]);
    let last = submit(&client, "last");
    assert_eq!(scheduler.submitted().await, [Key::from("last")]);
    drop(last);
}

#[tokio::test]
async fn failures_without_a_connection_do_not_delay_later_requests() {
    let options = ClientOptions::default().with_reconnect(Reconnect::Within(TIMEOUT));
    let (mut scheduler, client) = Scheduler::start(options).await;
    let waiting = submit(&client, "waiting");
    // A release that the scheduler may not have read yet
    drop(submit(&client, "x"));
    scheduler.stream.sender.close().await.expect("closed");
    assert_eq!(done(&waiting).await.name(), "lost");
    let error = client.scatter([1]).await.expect_err("no connection");
    assert!(matches!(error, ScatterError::Disconnected(_)), "{error}");
    (scheduler.requests, scheduler.stream) =
        Scheduler::register(&scheduler.listener, "2026.8.0").await;
    scheduler.received.clear();
    let future = submit_when_connected(&client, "x").await;
    assert_eq!(scheduler.submitted().await, [Key::from("x")]);
    scheduler.send(in_memory("x")).await;
    assert_eq!(done(&future).await.name(), "finished");
}

/// Number of requests and keys that a worker receives when a client gathers
/// `count` keys directly.
async fn asked_of_a_worker(
    count: usize,
    answer: fn(&[Key]) -> Vec<Key>,
) -> (usize, usize, Result<usize, TaskError>) {
    let (scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let at: Address = format!("inproc://{}", daskwire_messages::key::identifier())
        .parse()
        .expect("an address");
    let listener = daskwire_rpc::transports()
        .bind(&at, CommOptions::default())
        .await;
    let listener = listener.expect("it is free");
    let counts = Arc::new(Mutex::new((0, 0)));
    let counted = Arc::clone(&counts);
    let worker = tokio::spawn(async move {
        let mut comm = accept(&listener).await;
        while let Ok(Some(request)) = comm.receiver.receive::<Request>().await {
            let Request::GetData(request) = request else {
                panic!("{request:?}")
            };
            let keys: Vec<Key> = request.keys.into_iter().collect();
            {
                let mut counts = daskwire_rpc::panic_flag::lock_counter(&counted);
                *counts = (counts.0 + 1, counts.1 + keys.len());
            }
            let data = answer(&keys).into_iter().map(|key| {
                let value = Serialized::of(&Value::from(1)).expect("plain");
                (key, value)
            });
            let reply = DataReply {
                status: ReplyStatus::Ok,
                data: Some(data.collect()),
                ..DataReply::default()
            };
            comm.sender.send(&reply).await.expect("it listens");
            let acknowledged = comm.receiver.receive::<Value>().await;
            assert_eq!(acknowledged.expect("it is well"), Some(Value::from("OK")));
        }
    });
    let futures: Vec<TaskFuture> = (0..count)
        .map(|index| submit(&client, &format!("key-{index}")))
        .collect();
    let mut requests = scheduler.requests;
    let serving = tokio::spawn(async move {
        while let Ok(Some(request)) = requests.receiver.receive::<Request>().await {
            let Request::WhoHas(request) = request else {
                panic!("{request:?}")
            };
            let keys = request.keys.unwrap_or_default().into_iter();
            let reply: Vec<(Key, Vec<String>)> =
                keys.map(|key| (key, vec![at.to_string()])).collect();
            requests.sender.send(&reply).await.expect("it listens");
        }
    });
    let mut stream = scheduler.stream;
    let reporting = tokio::spawn(async move {
        while let Ok(Some(batch)) = stream.receiver.receive_batch::<FromClient>().await {
            let keys = batch.into_iter().flat_map(|message| match message {
                FromClient::UpdateGraph(message) => message.keys.0,
                FromClient::ReportKey(message) => vec![message.key],
                _ => vec![],
            });
            let there: Vec<ToClient> = keys
                .map(|key| {
                    ToClient::from(KeyInMemory {
                        key,
                        ..KeyInMemory::default()
                    })
                })
                .collect();
            // The client may have left.
            if !there.is_empty() && stream.sender.send(&there).await.is_err() {
                break;
            }
        }
    });
    let gathered = tokio::time::timeout(TIMEOUT, client.gather_by(&futures, Route::Direct)).await;
    let gathered = gathered.expect("it ends").map(|values| values.len());
    drop((futures, client));
    serving.await.expect("served");
    reporting.await.expect("reported");
    worker.abort();
    let counts = *daskwire_rpc::panic_flag::lock_counter(&counts);
    (counts.0, counts.1, gathered)
}

#[tokio::test]
async fn retries_a_worker_that_sends_other_keys_a_few_times() {
    let other = |keys: &[Key]| {
        let name = |key: &Key| Key::from(format!("other-{}", key.as_str().unwrap_or_default()));
        keys.iter().map(name).collect()
    };
    for count in [1, 100] {
        let (requests, keys, gathered) = asked_of_a_worker(count, other).await;
        assert_eq!((requests, keys), (10, 10 * count));
        assert!(matches!(gathered, Err(TaskError::Lost { .. })));
    }
    let both = |keys: &[Key]| [keys, &[Key::from("unasked"), Key::from("unasked")]].concat();
    let (requests, keys, gathered) = asked_of_a_worker(100, both).await;
    assert_eq!((requests, keys), (1, 100));
    assert_eq!(gathered.expect("results"), 100);
}

#[tokio::test]
async fn gathering_key_by_key_takes_linear_time() {
    let one = |keys: &[Key]| keys[..1].to_vec();
    let (_, few, _) = asked_of_a_worker(100, one).await;
    let (_, many, _) = asked_of_a_worker(200, one).await;
    assert!(many <= 2 * few + few / 4, "{few} and {many}");
}

#[tokio::test]
async fn does_not_register_with_an_old_scheduler() {
    let address = format!("inproc://{}", daskwire_messages::key::identifier());
    let at = address.parse().expect("an address");
    let binding = daskwire_rpc::transports()
        .bind(&at, CommOptions::default())
        .await;
    let listener = binding.expect("it is free");
    let client = tokio::spawn(async move { Client::connect(&address).await });
    let mut requests = accept(&listener).await;
    let request = requests.receiver.receive::<Request>().await;
    assert!(matches!(request, Ok(Some(Request::Versions(_)))));
    let packages = Value::dict([("distributed", "2.30.0")]);
    let versions = Value::dict([("packages", packages)]);
    requests.sender.send(&versions).await.expect("peer listens");
    let error = client.await.expect("no panic").expect_err("too old");
    assert!(matches!(error, ConnectError::Release(_)), "{error:?}");
    assert_eq!(
        error.to_string(),
        "the scheduler runs distributed 2.30.0, which a client in Rust does not support: upgrade \
         the cluster to 2.30.1 or later"
    );
    let message = requests.receiver.receive::<Request>().await;
    assert!(!matches!(message, Ok(Some(_))), "{message:?}");
    // Releases after the last tested one cause a warning.
    for release in ["2.30.1", "2022.1.0", "2027.1.0"] {
        let (_scheduler, client) = Scheduler::of_release(release, ClientOptions::default()).await;
        submit(&client, "x");
        let warning = client.untested_release().map(|warning| warning.found);
        let expected = (release == "2027.1.0").then(|| Release::new(2027, 1, 0));
        assert_eq!(warning, expected, "{release}");
    }
}

#[tokio::test]
async fn operations_of_later_releases_are_refused() {
    let options = ClientOptions::default;
    let (_scheduler, client) = Scheduler::of_release("2024.7.1", options()).await;
    let refusals = [
        (client.lock("a lock").await.map(drop), "locks"),
        (client.semaphore("s", 2).await.map(drop), "semaphores"),
        (client.restart(TIMEOUT).await, "restarts"),
    ];
    for (refused, what) in refusals {
        let error = refused.expect_err("another form").to_string();
        assert_eq!(
            error,
            format!(
                "the scheduler runs distributed 2024.7.1, which this client does not support for \
                 {what}: upgrade the cluster to 2024.8.0 or later"
            )
        );
    }
    assert!(client.variable("v").is_ok());
    let (_scheduler, client) = Scheduler::of_release("2021.10.0", options()).await;
    let retired = client.retire_workers(["a worker"]).await;
    assert!(
        matches!(retired, Err(RequestError::Unsupported { .. })),
        "{retired:?}"
    );
}

#[tokio::test]
async fn reports_the_fault_of_an_address() {
    let error = Client::connect("127.0.0.1").await.expect_err("no port");
    assert_eq!(
        error.to_string(),
        "cannot connect to \"127.0.0.1\": the address has no port, as in tcp://127.0.0.1:8786"
    );
    let error = Client::connect("http://127.0.0.1:8786").await;
    let error = error.expect_err("no transport for it");
    assert_eq!(
        error.to_string(),
        "this program has no transport for http:// addresses"
    );
}

#[tokio::test]
async fn panicking_callback_ends_the_client_and_its_futures() {
    struct Panicking;
    impl Observer for Panicking {
        fn message(&self, seen: &ObservedMessage<'_>) {
            let frame = seen.frames[0];
            assert!(!frame.ends_with(b"boom"), "a panic for the test");
        }
    }
    let options = ClientOptions::default().with_observer(Arc::new(Panicking));
    let (mut scheduler, client) = Scheduler::start(options).await;
    let future = client.future("x").expect("it is connected");
    scheduler.send(in_memory("boom")).await;
    let waiting = tokio::time::timeout(TIMEOUT, future.result());
    let error = waiting.await.expect("it ends").expect_err("no connection");
    assert!(
        matches!(&error, TaskError::Disconnected { reason, .. } if reason == "the client panicked"),
        "{error}"
    );
    assert!(client.future("y").is_err());
}

#[tokio::test]
async fn a_panic_under_a_lock_ends_the_client() {
    let (_scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let future = client.future("x").expect("it is connected");
    daskwire_rpc::panic_flag::poison(&client.shared.machine);
    // The next call that takes the lock ends the client.
    assert!(client.future("y").is_err());
    let waiting = tokio::time::timeout(TIMEOUT, future.result());
    let error = waiting.await.expect("it ends").expect_err("no connection");
    assert!(
        matches!(&error, TaskError::Disconnected { reason, .. } if reason == "the client panicked"),
        "{error}"
    );
}

#[tokio::test]
async fn a_panic_under_the_lock_of_subscriptions_ends_the_client() {
    let (_scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    client.shared.topics.poison();
    // The next call that takes the lock ends the client.
    assert!(client.shared.topics.names().is_empty());
    let ended = async {
        while client.future("x").is_ok() {
            tokio::task::yield_now().await;
        }
    };
    let ended = tokio::time::timeout(TIMEOUT, ended);
    ended.await.expect("it ends");
}

/// Direct transfers have no time-out: the data may be large.
#[tokio::test(start_paused = true)]
async fn stops_waiting_for_a_worker_that_the_scheduler_has_removed() {
    let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let mut listeners = Vec::new();
    for _ in 0..2 {
        let at = format!("inproc://{}", daskwire_messages::key::identifier());
        let at = at.parse().expect("an address");
        let listener = daskwire_rpc::transports()
            .bind(&at, CommOptions::default())
            .await;
        listeners.push((at.to_string(), listener.expect("free")));
    }
    let [(stopped_address, stopped), (address, worker)] =
        <[_; 2]>::try_from(listeners).expect("two");
    let future = submit(&client, "x");
    scheduler.send(in_memory("x")).await;
    assert_eq!(done(&future).await.name(), "finished");
    let serving = async {
        // The worker is removed after the first question.
        let mut holders = vec![stopped_address.clone()];
        while let Ok(Some(Request::WhoHas(request))) = scheduler.requests.receiver.receive().await {
            let keys = request.keys.unwrap_or_default().into_iter();
            let reply: Vec<(Key, Vec<String>)> = keys.map(|key| (key, holders.clone())).collect();
            let sent = scheduler.requests.sender.send(&reply).await;
            sent.expect("the client listens");
            holders = vec![address.clone()];
        }
    };
    let stopping = async {
        let mut comm = accept(&stopped).await;
        let request = comm.receiver.receive::<Request>().await;
        assert!(matches!(request, Ok(Some(Request::GetData(_)))));
        // No answer, until the client gives up.
        comm.receiver.receive::<Request>().await
    };
    let working = async {
        let mut comm = accept(&worker).await;
        let request = comm.receiver.receive::<Request>().await;
        assert!(matches!(request, Ok(Some(Request::GetData(_)))));
        let value = Serialized::of(&Value::from(1)).expect("plain");
        let reply = DataReply {
            status: ReplyStatus::Ok,
            data: Some(vec![(Key::from("x"), value)]),
            ..DataReply::default()
        };
        comm.sender.send(&reply).await.expect("the client listens");
        comm
    };
    let reporting = async {
        while let Ok(Some(batch)) = scheduler
            .stream
            .receiver
            .receive_batch::<FromClient>()
            .await
        {
            for message in batch {
                if let FromClient::ReportKey(_) = message {
                    let batch = vec![ToClient::from(in_memory("x"))];
                    let sent = scheduler.stream.sender.send(&batch).await;
                    sent.expect("the client listens");
                }
            }
        }
    };
    let futures = [future];
    let gathering = client.gather_by(&futures, Route::Direct);
    let all = async { tokio::join!(gathering, stopping, working) };
    let (gathered, left, _comm) = tokio::select! {
        all = tokio::time::timeout(TIMEOUT, all) => all.expect("in time"),
        () = serving => panic!("the client has left"),
        () = reporting => panic!("the client has left"),
    };
    assert!(matches!(left, Ok(None) | Err(_)));
    assert_eq!(gathered.expect("a result"), [Value::from(1)]);
}

/// Listens at an unused address.
async fn listen() -> (String, Listener) {
    let address = format!("inproc://{}", daskwire_messages::key::identifier());
    let at = address.parse().expect("an address");
    let binding = daskwire_rpc::transports()
        .bind(&at, CommOptions::default())
        .await;
    (address, binding.expect("it is free"))
}

async fn receive(channel: &mut Channel) -> Request {
    let request = tokio::time::timeout(TIMEOUT, channel.receiver.receive::<Request>()).await;
    let request = request.expect("in time").expect("a message");
    request.expect("the peer has not left")
}

/// The client has its own thread, because a busy loop would also stop the clock of
/// the test.
#[test]
fn waits_idly_for_a_scheduler_that_does_not_close_the_connection() {
    let (sender, closed) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let closed = runtime.block_on(async {
            let (_scheduler, client) = Scheduler::start(ClientOptions::default()).await;
            client.close().await
        });
        let _ = sender.send(closed);
    });
    let closed = closed.recv_timeout(TIMEOUT).expect("no busy loop");
    assert!(
        matches!(closed, Err(RequestError::Timeout { .. })),
        "{closed:?}"
    );
}

#[tokio::test]
async fn releases_keys_of_other_clients_in_the_form_of_the_release() {
    let block = Key::list([Key::from("x"), Key::from(0)]);
    for (release, expected) in [
        ("2023.8.1", Key::from("('x', 0)")),
        ("2026.8.0", block.clone()),
    ] {
        let (mut scheduler, client) =
            Scheduler::of_release(release, ClientOptions::default()).await;
        client.release_as("other", [&block]).expect("connected");
        // The scheduler may not know the other client.
        let desire = scheduler.next_message().await;
        assert!(
            matches!(&desire, FromClient::ClientDesiresKeys(ClientDesiresKeys {
                keys, client: Some(client), ..
            }) if keys.is_empty() && client == "other"),
            "{desire:?}"
        );
        assert_eq!(scheduler.released().await, [expected]);
    }
}

#[tokio::test]
async fn refuses_empty_keys() {
    let (_scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    for key in [Key::from(""), Key::list([]), Key::list([Key::list([])])] {
        let error = client
            .scatter_by([(&key, 1)], Route::Scheduler)
            .await
            .expect_err("an empty key");
        assert!(matches!(error, ScatterError::EmptyKey), "{error}");
        let call = client.call("operator.neg").argument(1).key(&key);
        let error = call.submit().expect_err("an empty key");
        assert!(matches!(error, SubmitError::EmptyKey), "{error}");
    }
}

/// A value of a program whose conversion fails.
struct Unconvertible;

impl daskwire_value::IntoValue for Unconvertible {
    fn into_value(self) -> Result<Value, Box<dyn core::error::Error + Send + Sync>> {
        Err("column 3 has no name".into())
    }
}

#[tokio::test]
async fn values_that_cannot_be_converted_are_the_error_of_the_call() {
    let (_scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let error = client.submit("mean", (1, Unconvertible));
    let error = error.expect_err("it cannot be converted").to_string();
    let reason = "the value cannot be converted: column 3 has no name";
    assert!(error.contains("mean") && error.ends_with(reason), "{error}");
    let within = daskwire_messages::graph::Argument::list([Unconvertible]);
    assert!(client.submit("mean", [within]).is_err());
    let error = client.scatter([Unconvertible]).await;
    let error = error.expect_err("it cannot be converted").to_string();
    assert!(error.ends_with(reason), "{error}");
    let variable = client.variable("frames").expect("supported");
    let queue = Queue::new(&client.shared, "frames".to_owned());
    for error in [
        client.publish_dataset("frames", Unconvertible).await,
        client.log_event("frames", Unconvertible).await,
        client.set_metadata(["frames"], Unconvertible).await,
        variable.set(Unconvertible).await,
        queue.put(Unconvertible, None).await,
    ] {
        let error = error.expect_err("it cannot be converted");
        assert_eq!(error.kind(), daskwire_rpc::ErrorKind::Invalid);
        assert!(error.to_string().ends_with(reason), "{error}");
    }
}

#[tokio::test]
async fn announces_scattered_data_that_was_stored_if_another_worker_fails() {
    let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let [(failing_address, failing), (address, worker)] = [listen().await, listen().await];
    let data = [(Key::from("x"), 1), (Key::from("y"), 2)];
    let scattering = client.scatter_by(data, Route::Direct);
    let serving = async {
        let request = receive(&mut scheduler.requests).await;
        assert!(matches!(request, Request::NCoresRunning(_)), "{request:?}");
        let workers = vec![(failing_address, 1_u64), (address.clone(), 1)];
        let sent = scheduler.requests.sender.send(&workers).await;
        sent.expect("the client listens");
        let mut failing = accept(&failing).await;
        receive(&mut failing).await;
        drop(failing);
        let mut worker = accept(&worker).await;
        let Request::UpdateData(request) = receive(&mut worker).await else {
            panic!("no data")
        };
        let stored: Vec<Key> = request.data.into_iter().flatten().map(|it| it.0).collect();
        let reply = UpdateDataReply {
            nbytes: stored.iter().map(|key| (key.clone(), 28)).collect(),
            ..UpdateDataReply::default()
        };
        worker
            .sender
            .send(&reply)
            .await
            .expect("the client listens");
        let Request::UpdateData(request) = receive(&mut scheduler.requests).await else {
            panic!("no announcement")
        };
        let who_has: Vec<_> = request.who_has.into_iter().flatten().collect();
        assert_eq!(who_has, [(stored[0].clone(), vec![address])]);
        let sent = scheduler.requests.sender.send(&Value::None).await;
        sent.expect("the client listens");
    };
    let (scattered, ()) = tokio::join!(scattering, serving);
    let error = scattered.expect_err("one worker failed");
    assert!(matches!(error, ScatterError::Request(_)), "{error}");
    // The client releases the keys of the failed call.
    let released = [scheduler.released().await, scheduler.released().await];
    assert_eq!(released.concat().len(), 2);
}

/// Gathers "x" from a worker that fails as `fail` does, and then from the scheduler.
async fn gather_through_the_scheduler<T>(fail: impl AsyncFnOnce(Listener) -> T) {
    let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let future = submit(&client, "x");
    scheduler.send(in_memory("x")).await;
    assert_eq!(done(&future).await.name(), "finished");
    let (address, worker) = listen().await;
    let futures = [future];
    let gathering = client.gather_by(&futures, Route::Direct);
    let serving = async {
        let request = receive(&mut scheduler.requests).await;
        assert!(matches!(request, Request::WhoHas(_)), "{request:?}");
        let reply = vec![(Key::from("x"), vec![address])];
        let sent = scheduler.requests.sender.send(&reply).await;
        sent.expect("the client listens");
        let _failed = fail(worker).await;
        let Request::Gather(request) = receive(&mut scheduler.requests).await else {
            panic!("not through the scheduler")
        };
        let keys = request.keys;
        let keys = keys.unwrap_or_default().0;
        assert_eq!(keys, [Key::from("x")]);
        let value = Serialized::of(&Value::from(1)).expect("plain");
        let reply = DataReply {
            data: Some(vec![(Key::from("x"), value)]),
            ..DataReply::default()
        };
        let sent = scheduler.requests.sender.send(&reply).await;
        sent.expect("the client listens");
    };
    let (gathered, ()) = tokio::join!(gathering, serving);
    assert_eq!(gathered.expect("a result"), [Value::from(1)]);
}

#[tokio::test]
async fn gathers_from_failing_workers_through_the_scheduler() {
    gather_through_the_scheduler(async |worker| {
        // The connection to the worker breaks.
        let mut connection = accept(&worker).await;
        receive(&mut connection).await;
        worker
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn gathers_from_unreachable_workers_without_a_connect_timeout() {
    let start = tokio::time::Instant::now();
    gather_through_the_scheduler(async |worker| {
        // The connection is neither accepted nor refused.
        (worker.accept().await.expect("a connection"), worker)
    })
    .await;
    let took = start.elapsed();
    assert!(
        took < CommOptions::default().connect_timeout / 10,
        "{took:?}"
    );
}

#[tokio::test]
async fn drops_a_connection_that_is_made_after_the_client_ended() {
    let (scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let shared = &client.shared;
    let connecting = shared
        .connector
        .connect(shared.address(), Traffic::Control, None);
    let (comm, _accepted) = tokio::join!(connecting, accept(&scheduler.listener));
    let channel = Channel::new(
        comm.expect("a comm"),
        Ends::new("client", "scheduler", None),
    );
    let (stream, _writing) =
        daskwire_rpc::batched::BatchSender::new(channel.sender, Duration::ZERO, usize::MAX);
    shared.handle(ClientInput::End {
        reason: "the test ends the client".to_owned(),
    });
    shared.connected(stream, "client".into(), None, Dialect::NEWEST, None);
    assert!(shared.lock().stream.is_none());
}

#[tokio::test]
async fn a_panic_of_the_client_on_another_task_ends_it_at_once() {
    let (_scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let future = client.future("x").expect("it is connected");
    // A panic of the program that drops a handle does not count.
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _dropped = client.future("y");
        panic!("a panic for the test");
    }));
    assert!(panicked.is_err() && !client.shared.panic_flag.is_set());
    let events = core::iter::from_fn(|| panic!("a panic for the test"));
    let panicked = catch_unwind(AssertUnwindSafe(|| client.shared.handle_all(events)));
    assert!(panicked.is_err() && client.shared.panic_flag.is_set());
    assert_eq!(done(&future).await.name(), "disconnected");
}

#[tokio::test]
async fn a_subscription_survives_the_end_of_another_of_the_same_topic() {
    let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    for _ in 0..300 {
        let first = client.join_topic("news".to_owned()).expect("subscribed");
        let barrier = std::sync::Barrier::new(2);
        let second = std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                drop(first);
            });
            barrier.wait();
            client.join_topic("news".to_owned()).expect("subscribed")
        });
        let last = client.join_topic("last".to_owned()).expect("subscribed");
        let mut is_subscribed = false;
        loop {
            match scheduler.next_message().await {
                FromClient::SubscribeTopic(message) if message.topic == "last" => break,
                FromClient::SubscribeTopic(_) => is_subscribed = true,
                FromClient::UnsubscribeTopic(_) => is_subscribed = false,
                other => panic!("{other:?}"),
            }
        }
        assert!(is_subscribed);
        drop((second, last));
        for _ in 0..2 {
            let message = scheduler.next_message().await;
            assert!(
                matches!(message, FromClient::UnsubscribeTopic(_)),
                "{message:?}"
            );
        }
    }
}

#[tokio::test]
async fn nothing_is_scattered_without_a_request() {
    let (_scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let scattering = client.scatter(Vec::<i64>::new());
    let scattered = tokio::time::timeout(TIMEOUT, scattering).await;
    let futures = scattered.expect("no request").expect("nothing to store");
    assert_eq!(futures, []);
}

#[tokio::test]
async fn scattering_without_workers_has_an_error_of_its_own() {
    for (class, message, is_expected) in [
        ("TimeoutError", "No valid workers found", true),
        ("TimeoutError", "another", false),
        ("ValueError", "No valid workers found", false),
    ] {
        let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
        let serving = async {
            let request = receive(&mut scheduler.requests).await;
            assert!(matches!(request, Request::Scatter(_)), "{request:?}");
            let exception =
                Value::Serialized(daskwire_messages::exception::exception(class, message));
            let reply = Value::dict([
                ("status", Value::from("uncaught-error")),
                ("exception", exception),
            ]);
            let sent = scheduler.requests.sender.send(&reply).await;
            sent.expect("the client listens");
        };
        let (scattered, ()) = tokio::join!(client.scatter([1]), serving);
        let error = scattered.expect_err("no workers");
        let is_found = matches!(error, ScatterError::NoWorkers);
        assert_eq!(is_found, is_expected, "{error}");
    }
}

/// A Dask scheduler waits for tasks that it does not know, without a limit.
#[tokio::test]
async fn futures_without_a_task_are_not_shared() {
    let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let queue = async {
        let opening = client.queue("a queue", None);
        let serving = async {
            receive(&mut scheduler.requests).await;
            let sent = scheduler.requests.sender.send(&Value::None).await;
            sent.expect("the client listens");
        };
        tokio::join!(opening, serving).0.expect("opened")
    };
    let queue = queue.await;
    let cancelled = submit(&client, "x");
    cancelled.cancel().expect("connected");
    let shared = async {
        let variable = client.variable("a variable").expect("supported");
        [
            queue.put(&cancelled, None).await,
            variable.set(&cancelled).await,
            client
                .publish_futures("a name", core::slice::from_ref(&cancelled))
                .await,
        ]
    };
    let shared = tokio::time::timeout(TIMEOUT, shared).await;
    for shared in shared.expect("no request") {
        let error = shared.expect_err("no task");
        assert!(matches!(error, RequestError::Missing { .. }), "{error}");
    }
}

/// Answers the next request, and returns it.
async fn answer(scheduler: &mut Scheduler, reply: impl Into<Value>) -> Request {
    let request = receive(&mut scheduler.requests).await;
    let sent = scheduler.requests.sender.send(&reply.into()).await;
    sent.expect("the client listens");
    request
}

/// Begins `work`, and drops it when the scheduler has received a request, which it returns.
async fn dropped_during_request<T>(
    scheduler: &mut Scheduler,
    work: impl Future<Output = T>,
) -> Request {
    tokio::select! {
        _ = work => panic!("no answer was sent"),
        request = receive(&mut scheduler.requests) => request,
    }
}

async fn reply(scheduler: &mut Scheduler, reply: impl Into<Value>) {
    let sent = scheduler.requests.sender.send(&reply.into()).await;
    sent.expect("the client listens");
}

/// Receives requests on any comm of the scheduler.
async fn receive_on_any(scheduler: &mut Scheduler) -> Request {
    tokio::select! {
        request = receive(&mut scheduler.requests) => request,
        mut requests = accept(&scheduler.listener) => {
            let request = receive(&mut requests).await;
            scheduler.requests = requests;
            request
        }
    }
}

#[tokio::test]
async fn a_lease_that_is_granted_after_its_caller_left_is_released() {
    let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let opening = client.lock("l");
    let (lock, _) = tokio::join!(opening, answer(&mut scheduler, Value::None));
    let lock = lock.expect("opened");
    let request = dropped_during_request(&mut scheduler, lock.acquire(None)).await;
    assert_eq!(request.op(), "semaphore_acquire");
    reply(&mut scheduler, true).await;
    let request = answer(&mut scheduler, Value::None).await;
    assert_eq!(request.op(), "semaphore_release");
    // A release that was dropped is repeated.
    let (lease, _) = tokio::join!(lock.acquire(None), answer(&mut scheduler, true));
    let releasing = lease.expect("granted").release();
    let request = dropped_during_request(&mut scheduler, releasing).await;
    assert_eq!(request.op(), "semaphore_release");
    scheduler.requests = accept(&scheduler.listener).await;
    let request = receive(&mut scheduler.requests).await;
    assert_eq!(request.op(), "semaphore_release");
}

/// A scheduler that reads the refresh of a lease after its release grants it again.
#[tokio::test(start_paused = true)]
async fn leases_are_released_after_they_were_refreshed() {
    let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let (lock, _) = tokio::join!(client.lock("l"), answer(&mut scheduler, Value::None));
    let lock = lock.expect("opened");
    let (lease, _) = tokio::join!(lock.acquire(None), answer(&mut scheduler, true));
    let lease = lease.expect("granted");
    let request = answer(&mut scheduler, 1).await;
    assert_eq!(request.op(), "semaphore_value");
    let request = receive(&mut scheduler.requests).await;
    assert_eq!(request.op(), "semaphore_refresh_leases");
    drop(lease);
    // A request that does not wait uses another comm.
    let early = Duration::from_millis(100);
    let early = tokio::time::timeout(early, receive_on_any(&mut scheduler)).await;
    assert!(early.is_err(), "{early:?}");
    reply(&mut scheduler, Value::None).await;
    let request = answer(&mut scheduler, Value::None).await;
    assert_eq!(request.op(), "semaphore_release");
}

#[tokio::test(start_paused = true)]
async fn waits_with_a_timeout_end_without_an_answer() {
    let options = ClientOptions::default().with_timeout(Duration::from_secs(5));
    let (mut scheduler, client) = Scheduler::start(options).await;
    let (lock, _) = tokio::join!(client.lock("l"), answer(&mut scheduler, Value::None));
    let lock = lock.expect("opened");
    let after = Some(Duration::from_secs(1));
    let event = client.event("e").expect("supported");
    let variable = client.variable("v").expect("supported");
    let opening = client.queue("q", None);
    let (queue, _) = tokio::join!(opening, answer(&mut scheduler, Value::None));
    let queue = queue.expect("opened");
    let start = tokio::time::Instant::now();
    let (lease, event, value, item, put) = tokio::join!(
        lock.acquire(after),
        event.wait(after),
        variable.get(after),
        queue.get(after),
        queue.put(1, after),
    );
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
    for error in [lease.err(), event.err(), value.err(), item.err(), put.err()] {
        assert!(
            match &error {
                Some(RequestError::Timeout { .. }) => true,
                // Some requests need another comm.
                Some(RequestError::Comm(error)) => matches!(**error, CommError::Timeout { .. }),
                _ => false,
            },
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn the_future_of_a_variable_is_confirmed_after_its_caller_left() {
    let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let variable = client.variable("v").expect("supported");
    let request = dropped_during_request(&mut scheduler, variable.get(None)).await;
    assert_eq!(request.op(), "variable_get");
    let record = [("type", "Future"), ("value", "x"), ("token", "t")];
    let record = record.map(|(name, value)| (name, Value::from(value)));
    reply(&mut scheduler, Value::dict(record)).await;
    let mut ops = Vec::new();
    for _ in 0..4 {
        ops.push(scheduler.next_message().await.op().to_owned());
    }
    assert_eq!(
        ops,
        [
            "client-desires-keys",
            "report-key",
            "variable-future-received-confirm",
            "client-releases-keys"
        ]
    );
}

fn reconnecting() -> ClientOptions {
    ClientOptions::default().with_reconnect(Reconnect::Within(TIMEOUT))
}

// ROLES SCHEDULER-18
#[tokio::test]
async fn a_client_that_returns_asks_for_its_keys_and_sends_what_was_not_accepted() {
    let (mut scheduler, client) = Scheduler::that_keeps_keys().await;
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|key| submit(&client, key));
    for key in ["a", "b", "c", "d"] {
        assert_eq!(scheduler.submitted().await, [Key::from(key)]);
    }
    scheduler.send(in_memory("a")).await;
    assert_eq!(done(&a).await.name(), "finished");
    let accepted = GraphsAccepted {
        count: 1,
        ..GraphsAccepted::default()
    };
    scheduler.send(accepted).await;
    // The second was accepted, too, of which the client did not learn.
    let start = StreamStart {
        graphs_accepted: Some(2),
        ..StreamStart::default()
    };
    let mut connection = client.watch_connection();
    scheduler.returned(&client, start).await;
    assert_eq!(connection.changed().await, Some(Connection::Reconnecting));
    assert_eq!(a.status().name(), "pending");
    scheduler.answer_mark().await;
    assert_eq!(scheduler.desired().await, ["a", "b"].map(Key::from));
    assert_eq!(scheduler.submitted().await, [Key::from("c")]);
    assert_eq!(scheduler.submitted().await, [Key::from("d")]);
    let confirmed = scheduler.next_message().await;
    assert!(
        matches!(confirmed, FromClient::KeysConfirmed(_)),
        "{confirmed:?}"
    );
    // It can submit before it knows what it has found.
    let e = submit(&client, "e");
    assert_eq!(client.connection(), Connection::Reconnecting);
    let lost = CancelledKeys {
        keys: [Key::from("b")].into_iter().collect(),
        reason: Some("unknown key".to_owned()),
        msg: Some("it is gone".to_owned()),
        ..CancelledKeys::default()
    };
    scheduler.send(in_memory("a")).await;
    scheduler.send(lost).await;
    assert_eq!(done(&a).await.name(), "finished");
    let Status::Cancelled { reason } = done(&b).await else {
        panic!("{b:?}")
    };
    assert_eq!(reason, "unknown key: it is gone");
    scheduler.answer_mark().await;
    assert_eq!(connection.changed().await, Some(Connection::Connected));
    let returned = client.last_return().expect("it has returned");
    assert_eq!(connection.last_return().as_ref(), Some(&returned));
    assert_eq!(
        returned.to_string(),
        "found 3 of 4 keys, sent 2 graphs again: unknown key: it is gone"
    );
    // What follows is numbered as by the scheduler: of c, d and e, two were accepted.
    assert_eq!(scheduler.submitted().await, [Key::from("e")]);
    assert_eq!(scheduler.released().await, [Key::from("b")]);
    let start = StreamStart {
        graphs_accepted: Some(4),
        ..StreamStart::default()
    };
    drop((b, c, d));
    for key in ["c", "d"] {
        assert_eq!(scheduler.released().await, [Key::from(key)]);
    }
    scheduler.returned(&client, start).await;
    scheduler.answer_mark().await;
    assert_eq!(scheduler.desired().await, [Key::from("a")]);
    assert_eq!(scheduler.submitted().await, [Key::from("e")]);
    drop((a, e));
}

#[tokio::test]
async fn a_client_gives_up_its_keys_at_a_scheduler_that_keeps_none() {
    let (mut scheduler, client) = Scheduler::that_keeps_keys().await;
    let future = submit(&client, "x");
    assert_eq!(scheduler.submitted().await, [Key::from("x")]);
    let id = scheduler.reconnect().await;
    assert_ne!(id, client.id());
    assert_eq!(done(&future).await.name(), "lost");
    client.connected().await.expect("reconnected");
    let returned = client.last_return().expect("it has reconnected");
    assert_eq!((returned.found, returned.lost), (0, 1));
    assert_eq!(
        returned.to_string(),
        "found 0 of 1 keys: the scheduler keeps no keys of clients that disconnect"
    );
    // Then to one that does, under the first id again.
    let start = StreamStart {
        lost: Some("it was restarted".to_owned()),
        ..StreamStart::default()
    };
    let next = submit(&client, "y");
    assert_eq!(scheduler.submitted().await, [Key::from("y")]);
    scheduler.returned(&client, start).await;
    assert_eq!(done(&next).await.name(), "lost");
    scheduler.answer_mark().await;
    let confirmed = scheduler.next_message().await;
    assert!(
        matches!(confirmed, FromClient::KeysConfirmed(_)),
        "{confirmed:?}"
    );
    scheduler.answer_mark().await;
    client.connected().await.expect("reconnected");
    let returned = client.last_return().expect("it has reconnected");
    assert_eq!(returned.to_string(), "found 0 of 1 keys: it was restarted");
}

#[tokio::test]
async fn a_client_that_is_dropped_leaves() {
    let (mut scheduler, client) = Scheduler::that_keeps_keys().await;
    drop(client);
    let left = scheduler.next_message().await;
    assert!(matches!(left, FromClient::CloseClient(_)), "{left:?}");
}

/// When a scheduler notices that the earlier connection has ended, it forgets everything
/// about the id of it.
#[tokio::test]
async fn each_connection_has_an_id_of_its_own() {
    let (mut scheduler, client) = Scheduler::start(reconnecting()).await;
    let subscription = client.join_topic("news".to_owned()).expect("subscribed");
    let mut before = client.id().to_owned();
    for _ in 0..2 {
        let id = scheduler.reconnect().await;
        assert!(id.starts_with(client.id()) && id != before, "{id}");
        let FromClient::UnsubscribeTopic(message) = scheduler.next_message().await else {
            panic!("the earlier id stays subscribed")
        };
        assert_eq!(message.client, before);
        before.clone_from(&id);
        let FromClient::SubscribeTopic(message) = scheduler.next_message().await else {
            panic!("no subscription")
        };
        assert_eq!(message.client, id);
    }
    client.connected().await.expect("reconnected");
    let id = client.shared.registered_id();
    drop(subscription);
    let FromClient::UnsubscribeTopic(message) = scheduler.next_message().await else {
        panic!("it is subscribed")
    };
    assert_eq!(message.client, *id);
    let serving = async {
        scheduler.answer_mark().await;
        let request = receive(&mut scheduler.requests).await;
        let sent = scheduler.requests.sender.send(&Value::None).await;
        sent.expect("the client listens");
        let Request::Scatter(request) = request else {
            panic!("{request:?}")
        };
        assert_eq!(request.client, *id);
    };
    let (scattered, ()) = tokio::join!(client.scatter([1]), serving);
    scattered.expect("scattered");
}

#[tokio::test]
async fn a_client_ends_if_its_close_is_cancelled() {
    let (_scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let other = client.clone();
    // The release of a lease that is not answered.
    let releases = &client.shared.releases;
    releases
        .lock()
        .expect("no panic")
        .spawn(core::future::pending());
    let closing = tokio::time::timeout(Duration::from_millis(50), client.close());
    closing.await.expect_err("it waits for the release");
    let is_closed = matches!(other.connection(), Connection::Closed { .. });
    assert!(is_closed, "{:?}", other.connection());
}

#[tokio::test]
async fn a_function_runs_before_anything_else_is_sent_after_a_reconnection() {
    let names = async |client: Client| client.identity().await.map(drop);
    let options = reconnecting().with_on_reconnect(OnReconnect::new(names));
    let (mut scheduler, client) = Scheduler::start(options).await;
    let _subscription = client.join_topic("news".to_owned()).expect("subscribed");
    scheduler.reconnect().await;
    let request = receive(&mut scheduler.requests).await;
    assert!(matches!(request, Request::Identity(_)), "{request:?}");
    assert_eq!(client.connection(), Connection::Reconnecting);
    let early = tokio::time::timeout(Duration::from_millis(50), scheduler.next_message());
    early.await.expect_err("nothing is sent");
    let identity = Value::dict([
        ("type", Value::from("Scheduler")),
        ("workers", Value::dict([("", 0); 0])),
    ]);
    let sent = scheduler.requests.sender.send(&identity).await;
    sent.expect("the client listens");
    let FromClient::UnsubscribeTopic(_) = scheduler.next_message().await else {
        panic!("the earlier id stays subscribed")
    };
    client.connected().await.expect("reconnected");
}

/// The client of the function is a part of the session.
#[tokio::test]
async fn a_client_that_is_dropped_ends_the_function_that_runs_after_a_reconnection() {
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let waits = move |client: Client| {
        let started = started.clone();
        async move {
            started.send(()).expect("the test waits");
            core::future::pending::<()>().await;
            drop(client);
            Ok::<(), String>(())
        }
    };
    let options = reconnecting().with_on_reconnect(OnReconnect::new(waits));
    let (mut scheduler, client) = Scheduler::start(options).await;
    scheduler.reconnect().await;
    starts.recv().await.expect("it runs");
    drop(client);
    let ended = scheduler.stream.receiver.receive_batch::<FromClient>();
    let ended = tokio::time::timeout(TIMEOUT / 4, ended).await;
    let ended = ended.expect("the connection ends with the client");
    assert!(!matches!(ended, Ok(Some(_))), "{ended:?}");
    // Nothing else keeps the function, which has the sender.
    let dropped = tokio::time::timeout(TIMEOUT, starts.recv()).await;
    assert_eq!(dropped, Ok(None));
}

/// A scheduler reads nothing while it handles a large graph.
#[tokio::test(start_paused = true)]
async fn waits_for_a_busy_scheduler_as_long_as_it_is_connected() {
    let (mut scheduler, client) = Scheduler::start(reconnecting()).await;
    let subscribing = client.subscribe_topic("news");
    let serving = async {
        scheduler.next_message().await;
        tokio::time::sleep(10 * ClientOptions::default().timeout).await;
        scheduler.answer_mark().await;
    };
    let (subscribed, ()) = tokio::join!(subscribing, serving);
    subscribed.expect("subscribed");
    // A connection that broke meanwhile was replaced.
    let mut subscribing = core::pin::pin!(client.subscribe_topic("more"));
    let mut context = core::task::Context::from_waker(core::task::Waker::noop());
    assert!(subscribing.as_mut().poll(&mut context).is_pending());
    scheduler.reconnect().await;
    client.connected().await.expect("reconnected");
    let error = subscribing.await.expect_err("the message may be lost");
    assert!(
        matches!(error, RequestError::Disconnected { .. }),
        "{error}"
    );
}

/// As after a reset of one direction of a QUIC stream.
#[tokio::test]
async fn a_connection_that_cannot_be_written_is_made_again() {
    let (scheduler, client) = Scheduler::start(reconnecting()).await;
    let Channel {
        sender: _sender,
        receiver,
        ..
    } = scheduler.stream;
    drop(receiver);
    let call = client.call("operator.neg").argument(1).key("x");
    let error = loop {
        match call.clone().submit() {
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SubmitError::Reconnecting { .. }), "{error}");
    assert_eq!(client.connection(), Connection::Reconnecting);
    let registering = Scheduler::register(&scheduler.listener, "2026.8.0");
    let (submitted, _comms) = tokio::join!(call.submit_when_connected(), registering);
    submitted.expect("reconnected");
}

/// The same without a message that fails.
#[tokio::test(start_paused = true)]
async fn a_connection_that_cannot_be_written_ends() {
    let options = ClientOptions::default().with_reconnect(Reconnect::Never);
    let (scheduler, client) = Scheduler::start(options).await;
    let future = submit(&client, "x");
    let Channel {
        sender: _sender,
        receiver,
        ..
    } = scheduler.stream;
    drop(receiver);
    let _lost = client.call("operator.neg").argument(1).submit();
    assert_eq!(done(&future).await.name(), "disconnected");
}

#[tokio::test]
async fn the_reason_of_a_failed_reconnection_is_reported() {
    let (mut scheduler, client) = Scheduler::start(reconnecting()).await;
    let mut connection = client.watch_connection();
    scheduler.stream.sender.close().await.expect("closed");
    let mut requests = accept(&scheduler.listener).await;
    receive(&mut requests).await;
    let sent = requests.sender.send(&versions("2.30.0")).await;
    sent.expect("the client listens");
    let ended = tokio::time::timeout(TIMEOUT / 2, async {
        while connection.changed().await.is_some() {}
    });
    ended.await.expect("at once");
    let Connection::Closed { reason } = connection.current() else {
        panic!("{:?}", connection.current())
    };
    let start = "the scheduler closed the connection, and reconnecting failed: the scheduler runs \
                 distributed 2.30.0";
    assert!(reason.starts_with(start), "{reason}");
}

#[tokio::test]
async fn data_that_is_stored_after_a_reconnection_is_released() {
    let (mut scheduler, client) = Scheduler::start(reconnecting()).await;
    let id = client.id().to_owned();
    let data = [(Key::from("x"), 1)];
    let scattering = client.scatter_by(data, Route::Scheduler);
    let serving = async {
        let request = receive(&mut scheduler.requests).await;
        assert!(matches!(request, Request::Scatter(_)), "{request:?}");
        scheduler.stream.sender.close().await.expect("closed");
        let (_requests, stream, _) =
            Scheduler::register_client(&scheduler.listener, "2026.8.0").await;
        client.connected().await.expect("reconnected");
        scheduler.stream = stream;
        scheduler.received.clear();
        reply(&mut scheduler, Value::None).await;
    };
    let (scattered, ()) = tokio::join!(scattering, serving);
    let error = scattered.expect_err("the future is lost");
    assert!(
        matches!(&error, ScatterError::Disconnected(error) if error.is_reconnecting),
        "{error}"
    );
    scheduler.next_message().await;
    let FromClient::ClientReleasesKeys(release) = scheduler.next_message().await else {
        panic!("no release")
    };
    assert_eq!(release.client.as_deref(), Some(&*id));
    assert_eq!(release.keys.0, [Key::from("x")]);
}

#[tokio::test]
async fn data_that_is_stored_after_its_caller_left_is_released() {
    let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let data = [(Key::from("x"), 1)];
    let scattering = client.scatter_by(data, Route::Scheduler);
    let request = dropped_during_request(&mut scheduler, scattering).await;
    assert!(matches!(request, Request::Scatter(_)), "{request:?}");
    let _next = submit(&client, "next");
    assert_eq!(scheduler.submitted().await, [Key::from("next")]);
    reply(&mut scheduler, Value::None).await;
    assert_eq!(scheduler.released().await, [Key::from("x")]);
}

#[tokio::test]
async fn a_request_to_run_a_task_is_withdrawn_if_the_task_has_ended() {
    let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let future = submit(&client, "x");
    assert_eq!(scheduler.submitted().await, [Key::from("x")]);
    let status = |state: &str| Value::dict([("x", Value::from(state))]);
    let forgetting = async {
        let forgetting = client.fire_and_forget(&future);
        let serving = async {
            answer(&mut scheduler, status("processing")).await;
            // The request is sent, and the caller leaves.
            scheduler.next_message().await
        };
        tokio::select! {
            _ = forgetting => panic!("no answer was sent"),
            message = serving => message,
        }
    };
    let desire = forgetting.await;
    assert_eq!(desire.op(), "client-desires-keys");
    scheduler.answer_mark().await;
    answer(&mut scheduler, status("memory")).await;
    assert_eq!(scheduler.next_message().await.op(), "client-desires-keys");
    assert_eq!(scheduler.released().await, [Key::from("x")]);
}

#[tokio::test]
async fn the_end_of_a_client_is_seen_after_it_was_dropped() {
    let (_scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let mut connection = client.watch_connection();
    let shared = Arc::downgrade(&client.shared);
    drop(client);
    while shared.strong_count() > 0 {
        tokio::task::yield_now().await;
    }
    let closed = connection.changed().await;
    assert!(
        matches!(closed, Some(Connection::Closed { .. })),
        "{closed:?}"
    );
    assert_eq!(connection.changed().await, None);
}

/// A client of a scheduler that has ended since, but not for the client.
async fn client_without_listener() -> (Scheduler, Client) {
    let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    // The client's comm for requests is gone, too.
    scheduler.requests.sender.close().await.expect("closed");
    let nowhere = format!("inproc://{}", daskwire_messages::key::identifier());
    let nowhere = nowhere.parse().expect("an address");
    let transports = daskwire_rpc::transports();
    let bound = transports.bind(&nowhere, CommOptions::default()).await;
    scheduler.listener = bound.expect("it is free");
    (scheduler, client)
}

fn is_refused(error: &RequestError) -> bool {
    matches!(error, RequestError::Comm(_)) && error.to_string().contains("refused")
}

#[tokio::test(start_paused = true)]
async fn the_timeout_of_the_caller_includes_the_connection() {
    let (_scheduler, client) = client_without_listener().await;
    let after = Some(Duration::from_secs(2));
    let event = client.event("e").expect("supported");
    let variable = client.variable("v").expect("supported");
    let queue = Queue::new(&client.shared, "q".to_owned());
    let lock = Lock::new(&client.shared, "l".to_owned());
    let start = tokio::time::Instant::now();
    let (lease, set, value, item, put) = tokio::join!(
        lock.acquire(after),
        event.wait(after),
        variable.get(after),
        queue.get(after),
        queue.put(1, after),
    );
    let took = start.elapsed();
    assert!(
        took >= Duration::from_secs(2) && took < Duration::from_millis(2500),
        "{took:?}"
    );
    for error in [lease.err(), set.err(), value.err(), item.err(), put.err()] {
        let error = error.expect("no connection");
        assert!(is_refused(&error), "{error}");
    }
    // A timeout of zero leaves time for a connection.
    let start = tokio::time::Instant::now();
    let error = variable
        .get(Some(Duration::ZERO))
        .await
        .expect_err("no connection");
    assert!(is_refused(&error), "{error}");
    assert!(start.elapsed() <= Duration::from_secs(1));
    let start = tokio::time::Instant::now();
    let waiting = client.wait_for_workers(1, Duration::from_secs(2)).await;
    let error = waiting.expect_err("no connection");
    assert!(is_refused(&error), "{error}");
    assert!(start.elapsed() < Duration::from_millis(2500));
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_short_timeout_has_the_cause() {
    let options = ClientOptions::default().with_timeout(Duration::from_secs(2));
    let start = tokio::time::Instant::now();
    let nowhere = format!("inproc://{}", daskwire_messages::key::identifier());
    let error = Client::connect_with(&nowhere, options.clone()).await;
    let error = error.expect_err("there is no listener").to_string();
    assert!(error.contains("refused"), "{error}");
    assert!(start.elapsed() < Duration::from_millis(2500));
    // So has that of a failed reconnection.
    let (mut scheduler, client) = Scheduler::start(
        ClientOptions::default().with_reconnect(Reconnect::Within(Duration::from_secs(2))),
    )
    .await;
    scheduler.stream.sender.close().await.expect("closed");
    drop(scheduler);
    let mut connection = client.watch_connection();
    while connection.changed().await.is_some() {}
    let error = client.connected().await.expect_err("there is no listener");
    assert!(error.reason.contains("reconnecting failed"), "{error}");
    assert!(error.reason.contains("refused"), "{error}");
}

/// Accepts the first comm that its peer has not given up, and receives the first request.
async fn accept_waiting(listener: &Listener) -> Channel {
    loop {
        let incoming = listener.accept().await.expect("a connection");
        if let Ok(comm) = incoming.handshake().await {
            let mut channel = Channel::new(comm, Ends::new("scheduler", "client", None));
            if let Ok(Some(_)) = channel.receiver.receive::<Request>().await {
                return channel;
            }
        }
    }
}

/// A scheduler that is busy for longer than an attempt takes, at each step of connecting.
#[tokio::test(start_paused = true)]
async fn clients_wait_for_a_busy_scheduler() {
    const BUSY: Duration = Duration::from_secs(45);
    let at = format!("inproc://{}", daskwire_messages::key::identifier());
    let address = at.parse().expect("an address");
    let transports = daskwire_rpc::transports();
    let listener = transports.bind(&address, CommOptions::default()).await;
    let listener = listener.expect("it is free");
    let connecting = tokio::spawn(async move { Client::connect(&at).await });
    tokio::time::sleep(BUSY).await;
    let mut requests = accept_waiting(&listener).await;
    tokio::time::sleep(BUSY).await;
    requests
        .sender
        .send(&versions("2026.8.0"))
        .await
        .expect("it listens");
    tokio::time::sleep(BUSY).await;
    let mut stream = accept_waiting(&listener).await;
    tokio::time::sleep(BUSY).await;
    let start = vec![ToClient::from(StreamStart::default())];
    stream.sender.send(&start).await.expect("it listens");
    let client = connecting.await.expect("no panic").expect("it connects");
    // Requests wait, too.
    let (workers, ()) = tokio::join!(client.workers(), async {
        // The comm for requests was idle for too long.
        let mut requests = accept_waiting(&listener).await;
        tokio::time::sleep(BUSY).await;
        let identity = Value::dict([("type", "Scheduler")]);
        requests.sender.send(&identity).await.expect("it listens");
    });
    assert_eq!(workers.expect("an answer"), []);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_arrives_late_is_kept_for_the_next_call() {
    let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let queue = Queue::new(&client.shared, "q".to_owned());
    let record = |value: i64| {
        Value::dict([
            ("type", Value::from("msgpack")),
            ("value", Value::from(value)),
        ])
    };
    // The caller is dropped, or its timeout passes, before the value arrives.
    dropped_during_request(&mut scheduler, queue.get(None)).await;
    reply(&mut scheduler, record(1)).await;
    let got = loop {
        tokio::task::yield_now().await;
        if queue.late_count() > 0 {
            break queue.get(None).await;
        }
    };
    assert_eq!(got.expect("a value"), SharedValue::Data(1.into()));
    let (late, _) = tokio::join!(
        queue.get(Some(Duration::from_secs(1))),
        receive(&mut scheduler.requests)
    );
    late.expect_err("no answer in time");
    reply(&mut scheduler, record(2)).await;
    while queue.late_count() == 0 {
        tokio::task::yield_now().await;
    }
    let (values, _) = tokio::join!(
        queue.get_all(),
        answer(&mut scheduler, Value::list([record(3)]))
    );
    let values = values.expect("values");
    assert_eq!(values, [2, 3].map(|value| SharedValue::Data(value.into())));
}

async fn lease(scheduler: &mut Scheduler, client: &Client) -> Lease {
    let lock = Lock::new(&client.shared, "l".to_owned());
    let (lease, _) = tokio::join!(lock.acquire(None), answer(scheduler, true));
    lease.expect("granted")
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_refreshed_is_revoked() {
    let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let lease = lease(&mut scheduler, &client).await;
    // It is refreshed for a while.
    for _ in 0..10 {
        assert_eq!(answer(&mut scheduler, 1).await.op(), "semaphore_value");
        let request = answer(&mut scheduler, Value::None).await;
        assert_eq!(request.op(), "semaphore_refresh_leases");
    }
    assert!(!lease.is_revoked());
    // Then the scheduler answers nothing.
    let start = tokio::time::Instant::now();
    tokio::time::timeout(TIMEOUT * 2, lease.revoked())
        .await
        .expect("in time");
    let took = start.elapsed();
    assert!(
        took > Duration::from_secs(29) && took < Duration::from_secs(31),
        "{took:?}"
    );
    assert!(lease.is_revoked());
    // A revoked lease is not refreshed: the scheduler would grant it again.
    assert_eq!(
        receive(&mut scheduler.requests).await.op(),
        "semaphore_value"
    );
    reply(&mut scheduler, 1).await;
    let later = scheduler.requests.receiver.receive::<Request>();
    let later = tokio::time::timeout(2 * TIMEOUT, later).await;
    assert!(later.is_err(), "{later:?}");
    let released = async {
        loop {
            let request = receive_on_any(&mut scheduler).await;
            reply(&mut scheduler, Value::None).await;
            if request.op() == "semaphore_release" {
                break;
            }
        }
    };
    let (outcome, ()) = tokio::join!(lease.release(), released);
    outcome.expect("released");
}

#[tokio::test(start_paused = true)]
async fn leases_of_a_scheduler_that_knows_none_are_revoked() {
    let (mut scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let lease = lease(&mut scheduler, &client).await;
    let start = tokio::time::Instant::now();
    let ((), request) = tokio::join!(lease.revoked(), answer(&mut scheduler, 0));
    assert_eq!(request.op(), "semaphore_value");
    assert!(start.elapsed() < Duration::from_secs(7));
    assert!(lease.is_revoked());
}

/// What waits for a client ends when the runtime of the client does.
#[test]
fn a_client_ends_with_its_runtime() {
    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    }

    for is_reconnecting in [false, true] {
        let first = runtime();
        let (scheduler, client, lease) = first.block_on(async {
            let mut options = ClientOptions::default();
            if is_reconnecting {
                options = reconnecting();
            }
            let (mut scheduler, client) = Scheduler::start(options).await;
            let lease = lease(&mut scheduler, &client).await;
            (scheduler, client, lease)
        });
        let future = submit(&client, "x");
        let mut completed = client.as_completed([future.clone()]);
        let mut results = client.as_completed([future.clone()]).results();
        let mut connection = client.watch_connection();
        let variable = client.variable("v").expect("supported");
        let queue = Queue::new(&client.shared, "q".to_owned());
        let lock = Lock::new(&client.shared, "l".to_owned());
        // A wait that has begun, and that another thread drives.
        let begun = future.clone();
        let begun = std::thread::spawn(move || runtime().block_on(begun.done()));
        drop(first);
        let ended = |status: Status| {
            let Status::Disconnected { reason } = status else {
                panic!("{status:?}")
            };
            assert!(reason.starts_with("the async runtime on which"), "{reason}");
        };
        ended(begun.join().expect("no panic"));
        let second = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        second.block_on(async {
            ended(future.done().await);
            let disconnected = [
                future
                    .result()
                    .await
                    .map(drop)
                    .map_err(|error| error.to_string()),
                client
                    .gather(core::slice::from_ref(&future))
                    .await
                    .map(drop)
                    .map_err(|error| error.to_string()),
                results
                    .next()
                    .await
                    .expect("one")
                    .1
                    .map(drop)
                    .map_err(|error| error.to_string()),
                client
                    .submit("len", ["x"])
                    .map(drop)
                    .map_err(|error| error.to_string()),
                client
                    .scatter([1])
                    .await
                    .map(drop)
                    .map_err(|error| error.to_string()),
                variable
                    .get(None)
                    .await
                    .map(drop)
                    .map_err(|error| error.to_string()),
                queue
                    .get(None)
                    .await
                    .map(drop)
                    .map_err(|error| error.to_string()),
                lock.acquire(None)
                    .await
                    .map(drop)
                    .map_err(|error| error.to_string()),
                client.connected().await.map_err(|error| error.to_string()),
                client
                    .hold_as("other", core::slice::from_ref(&future))
                    .await
                    .map_err(|error| error.to_string()),
            ];
            for (at, outcome) in disconnected.into_iter().enumerate() {
                let error = outcome.expect_err("the client has ended");
                assert!(
                    error.contains("the async runtime on which"),
                    "{at}: {error}"
                );
            }
            assert_eq!(completed.next().await.map(|done| done.index), Some(0));
            assert!(matches!(
                connection.changed().await,
                Some(Connection::Closed { .. })
            ));
            assert!(!lease.is_revoked());
            lease.revoked().await;
            drop(lease);
            let closed = tokio::time::timeout(TIMEOUT, client.close()).await;
            closed.expect("at once").expect("closed");
        });
        drop(scheduler);
    }
}

#[tokio::test]
async fn a_dropped_client_says_so() {
    let (_scheduler, client) = Scheduler::start(ClientOptions::default()).await;
    let future = submit(&client, "x");
    drop(client);
    let Status::Disconnected { reason } = done(&future).await else {
        panic!("{future:?}")
    };
    assert_eq!(reason, "the client was dropped");
}
