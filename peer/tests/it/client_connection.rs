//! Tests of broken connections that are restored, and of the examples, on a real cluster.

#[path = "../../examples/blocking.rs"]
#[allow(dead_code, reason = "its main is that of the example")]
mod blocking;
#[path = "../../examples/fit.rs"]
#[allow(dead_code, reason = "its main is that of the example")]
mod fit;
#[path = "../../examples/graph.rs"]
#[allow(dead_code, reason = "its main is that of the example")]
mod graph;
#[path = "../../examples/local_cluster.rs"]
#[allow(dead_code, reason = "its main is that of the example")]
mod local_cluster;
#[path = "../../examples/own_module.rs"]
#[allow(dead_code, reason = "its main is that of the example")]
mod own_module;
#[path = "../../examples/progress.rs"]
#[allow(dead_code, reason = "its main is that of the example")]
mod progress;
#[path = "../../examples/service.rs"]
#[allow(dead_code, reason = "its main is that of the example")]
mod service;
#[path = "../../examples/word_count.rs"]
#[allow(dead_code, reason = "its main is that of the example")]
mod word_count;
#[path = "../../examples/worker.rs"]
#[allow(dead_code, reason = "its main is that of the example")]
pub(crate) mod worker_example;

use core::time::Duration;
use std::process::Command;
use std::sync::Arc;

use daskwire_peer::client::{
    ClientOptions, ConnectError, Connection, Reconnect, SubmitError, SubmitOptions, Workers,
};
use daskwire_peer::cluster::{ClusterTransport, LocalCluster};
use daskwire_peer::graph::{Graph, Task};
use daskwire_peer::worker::Worker;
use daskwire_peer::{Array, Client, Key, Value};
use daskwire_testing::{Environment, Peer, address_after, python, scheduler_with_workers, worker};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Starts a scheduler at a port; `0` selects a free one.
fn scheduler_at(port: &str) -> Peer {
    scheduler_with(&["--port", port])
}

fn scheduler_with(arguments: &[&str]) -> Peer {
    let mut command = Command::new(python(Environment::Current));
    command.args([
        "-m",
        "distributed.cli.dask_scheduler",
        "--host",
        "127.0.0.1",
        "--no-dashboard",
        "--dashboard-address",
        "127.0.0.1:0",
    ]);
    Peer::spawn_command("dask scheduler", command.args(arguments), |log| {
        address_after(log, "Scheduler at:")
    })
}

/// Uses a client: a call, and a result that requests fetch at the same time.
async fn adds(client: &Client) {
    let x = client.submit("operator.add", [1, 2]).expect("it is sent");
    assert_eq!(x.result().await.expect("a sum"), Value::from(3));
    let more = client.submit("operator.neg", [4]).expect("it is sent");
    let (one, other) = tokio::join!(x.result(), more.result());
    assert_eq!(
        (one.expect("a sum"), other.expect("a number")),
        (3.into(), (-4).into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_uses_streams_that_the_program_opens() {
    let cluster = scheduler_with_workers(1);
    let at = cluster.address().trim_start_matches("tcp://").to_owned();
    let open = move || {
        let at = at.clone();
        async move { Ok(tokio::net::TcpStream::connect(at).await?.into_split()) }
    };
    let client = Client::over(open, ClientOptions::default())
        .await
        .expect("it connects");
    adds(&client).await;
    client.close().await.expect("the scheduler is there");
    assert_eq!(cluster.warnings(), [""; 0]);

    let refused = || async {
        let error = std::io::Error::other("the tunnel is closed");
        Err::<(tokio::io::Empty, tokio::io::Sink), _>(error)
    };
    let mut options = ClientOptions::default();
    options.comm.connect_retry = false;
    let error = Client::over(refused, options).await.expect_err("no stream");
    let expected = "cannot connect to stream://scheduler: the tunnel is closed";
    assert_eq!(error.to_string(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_uses_a_quic_connection_that_the_program_has() {
    let tls = super::relay::tls();
    let cluster = LocalCluster::builder()
        .transport(ClusterTransport::Quic)
        .transports(daskwire_peer::transports_with_tls(&tls));
    let cluster = cluster.start().await.expect("it starts");
    let mut config = rustls::ClientConfig::clone(tls.client_config());
    config.alpn_protocols = vec![daskwire_quic::ALPN.to_vec()];
    let config = quinn::crypto::rustls::QuicClientConfig::try_from(config).expect("TLS 1.3");
    let mut endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).expect("a port");
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(config)));
    let at = cluster.address().location().parse().expect("an address");
    let connecting = endpoint.connect(at, "localhost").expect("a name");
    let connection = connecting.await.expect("it is accepted");
    let open = move || {
        let connection = connection.clone();
        async move {
            let (send, receive) = connection.open_bi().await?;
            Ok((receive, send))
        }
    };
    let client = Client::over(open, ClientOptions::default())
        .await
        .expect("it connects");
    adds(&client).await;
    client.close().await.expect("the scheduler is there");
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_work_with_a_real_cluster() {
    let cluster = scheduler_with_workers(2);
    run_examples(cluster.address()).await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn examples_work_with_a_local_cluster() {
    let cluster = crate::support::local::cluster_with_python().await;
    run_examples(&cluster.address().to_string()).await;
    let client = service::connect(&cluster.address().to_string()).await;
    let client = client.expect("it connects");
    let computed = service::compute(&client, 21).await;
    assert_eq!(computed.expect("a result"), Value::from(42));
    client.close().await.expect("closed");
    cluster.close().await;
}

async fn run_examples(address: &str) {
    let lines = graph::run(address).await.expect("the example works");
    assert_eq!(lines[..3], ["x: 42", "y: 0", "good: 0"]);
    assert!(
        lines[3].starts_with("bad: ZeroDivisionError, raised in"),
        "{}",
        lines[3]
    );
    assert!(
        lines[4].starts_with("after-bad: ZeroDivisionError"),
        "{}",
        lines[4]
    );
    let (seen, cancelled) = progress::run(address).await.expect("the example works");
    assert_eq!(seen + cancelled, 200);
    assert!(seen > 25 && cancelled > 0, "{seen}");
    let words = own_module::run(address).await.expect("the example works");
    assert_eq!(words.to_string(), "['a', 'is', 'rose']");
    let fitted = fit::fit(address).await.expect("the example works");
    for (found, expected) in fitted.coefficients.into_iter().zip([3.0, -2.0, 1.0]) {
        assert!((found - expected).abs() < 0.01, "{fitted:?}");
    }
    let texts = ["a b a", "b a c", "a"].map(str::to_owned).to_vec();
    let counted = word_count::most_common(address, texts).await;
    let expected = [("a", 4), ("b", 2), ("c", 1)].map(|(word, count)| (word.to_owned(), count));
    assert_eq!(counted.expect("the example works"), expected);
    uses_worker_of_the_example(address).await;
    let run = || blocking::run(address).expect("the example works");
    assert_eq!(
        tokio::task::block_in_place(|| std::thread::scope(|scope| scope.spawn(run).join()))
            .expect("no panic"),
        285
    );
}

async fn uses_worker_of_the_example(address: &str) {
    let builder = Worker::builder(address.parse().expect("an address"));
    let builder = builder.nthreads(1).functions(worker_example::functions());
    let worker = builder.start().await.expect("it starts");
    let client = Client::connect(address).await.expect("it connects");
    let hypot = client
        .submit("native:hypot", [3.0, 4.0])
        .expect("submitted");
    assert_eq!(hypot.result_as::<f64>().await.expect("a number"), 5.0);
    let array = Array::from_slice(&[2], &[1.0, 2.0]).expect("two numbers");
    for (by, expected) in [(None, [2.0, 4.0]), (Some(3.0), [3.0, 6.0])] {
        let mut scaled = client.call("native:scale").argument(array.clone());
        if let Some(by) = by {
            scaled = scaled.keyword("by", by);
        }
        let scaled = scaled.submit().expect("submitted");
        let scaled: Vec<f64> = scaled.result_as().await.expect("an array");
        assert_eq!(scaled, expected);
    }
    let factor = client.submit("native:factor", 91).expect("submitted");
    assert_eq!(factor.result_as::<u64>().await.expect("a number"), 7);
    // A prime, for which the function takes years.
    let slow = client.submit("native:factor", (1_u64 << 61) - 1);
    let slow = slow.expect("submitted");
    let runs = async {
        loop {
            let processing = client.processing(Workers::All).await.expect("a reply");
            let mut keys = processing.iter().flat_map(|(_, keys)| keys);
            if keys.any(|key| key == slow.key()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let runs = tokio::time::timeout(TIMEOUT, runs).await;
    runs.expect("it is given to the worker");
    slow.cancel().expect("connected");
    // The function ends, so that its thread is free.
    let next = client
        .submit("native:hypot", [6.0, 8.0])
        .expect("submitted");
    let next = next.result_within(TIMEOUT).await.expect("a number");
    assert_eq!(next, Value::from(10.0));
    client.close().await.expect("closed");
    worker.close().await;
}

#[tokio::test]
async fn the_example_with_a_cluster_of_its_own_works() {
    assert_eq!(local_cluster::run().await.expect("it works"), 9_592);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_survives_a_restart_of_its_scheduler() {
    let first = scheduler_at("0");
    let address = first.address().to_owned();
    let port = address.rsplit(':').next().expect("a port").to_owned();
    let first_worker = worker(&address, "first");
    let client = service::connect(&address).await.expect("it connects");
    let mut connection = client.watch_connection();
    assert_eq!(connection.current(), Connection::Connected);
    assert_eq!(
        service::compute(&client, 1)
            .await
            .expect("a result")
            .to_string(),
        "2"
    );
    let waiting = client.submit("time.sleep", [100]).expect("submitted");
    drop((first_worker, first));
    assert_eq!(connection.changed().await, Some(Connection::Reconnecting));
    assert_eq!(waiting.done().await.name(), "lost");
    let error = client
        .submit("operator.neg", [1])
        .expect_err("it reconnects");
    assert!(matches!(error, SubmitError::Reconnecting { .. }), "{error}");
    // The example waits for the connection, and then computes.
    let computing = async {
        service::compute(&client, 2)
            .await
            .expect("a result")
            .to_string()
    };
    let tasks = [
        Task::new("x", "operator.add", [40, 2]),
        Task::new("y", "operator.neg", [Key::from("x")]),
    ];
    let submitting = async {
        let graph: Graph = tasks.into_iter().collect();
        let keys = vec![Key::from("y")];
        let options = SubmitOptions::default();
        let submitted = client.submit_graph_when_connected(&graph, keys, &options);
        let futures = submitted.await.expect("submitted");
        futures[0].result_within(TIMEOUT).await.expect("a result")
    };
    let starting = tokio::task::spawn_blocking(move || {
        let second = scheduler_at(&port);
        let worker = worker(second.address(), "second");
        (second, worker)
    });
    let (result, of_graph, second) = tokio::join!(computing, submitting, starting);
    assert_eq!(result, "4");
    assert_eq!(of_graph, Value::from(-42));
    assert_eq!(connection.changed().await, Some(Connection::Connected));
    assert_eq!(client.connection(), Connection::Connected);
    client.close().await.expect("closed");
    let closed = connection.changed().await;
    assert!(
        matches!(closed, Some(Connection::Closed { .. })),
        "{closed:?}"
    );
    assert_eq!(connection.changed().await, None);
    drop(second);
}

#[tokio::test(flavor = "multi_thread")]
async fn schedulers_are_found_by_file() {
    let path = std::env::temp_dir().join(format!("daskwire-scheduler-{}", std::process::id()));
    let file = path.to_str().expect("a UTF-8 path");
    let scheduler = scheduler_with(&["--port", "0", "--scheduler-file", file]);
    let connecting = || Client::connect_to_file(&path, ClientOptions::default());
    let mut connected = connecting().await;
    // The scheduler writes the file after it has logged its address.
    let deadline = std::time::Instant::now() + TIMEOUT;
    while connected.is_err() && std::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
        connected = connecting().await;
    }
    let client = connected.expect("it connects");
    assert_eq!(client.scheduler().to_string(), scheduler.address());
    client.connected().await.expect("it is connected");
    client.close().await.expect("closed");
    std::fs::remove_file(&path).expect("removed");
    let error = connecting().await.expect_err("there is no file");
    assert!(matches!(error, ConnectError::File { .. }), "{error}");
    let error = Client::from_env(ClientOptions::default()).await;
    let error = error.expect_err("nothing is set");
    assert!(matches!(error, ConnectError::NotNamed), "{error}");
}

/// The runtime of the test would wait for the end of tasks that it runs on threads.
#[cfg(unix)]
#[tokio::test]
async fn a_scheduler_file_that_nobody_writes_is_an_error() {
    let path = std::env::temp_dir().join(format!("daskwire-fifo-{}", std::process::id()));
    let made = Command::new("mkfifo").arg(&path).status();
    assert!(made.expect("the command mkfifo").success());
    let mut options = ClientOptions::default();
    options.comm.connect_timeout = Duration::from_millis(100);
    let error = Client::connect_to_file(&path, options).await;
    let error = error.expect_err("nobody writes").to_string();
    assert!(error.ends_with(": it was not read within 100ms"), "{error}");
    std::fs::remove_file(&path).expect("removed");
    let error = Client::connect_to_file("/dev/zero", ClientOptions::default()).await;
    let error = error.expect_err("it does not end").to_string();
    assert!(error.ends_with(": it has 1 MiB or more"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_gives_up_says_so() {
    let scheduler = scheduler_at("0");
    let options =
        ClientOptions::default().with_reconnect(Reconnect::Within(Duration::from_millis(300)));
    let client = Client::connect_with(scheduler.address(), options).await;
    let client = client.expect("it connects");
    drop(scheduler);
    let mut connection = client.watch_connection();
    let mut last = connection.current();
    while let Some(state) = connection.changed().await {
        last = state;
    }
    assert!(matches!(last, Connection::Closed { .. }), "{last:?}");
    let call = client.call("operator.neg").argument(1);
    let error = call
        .submit_when_connected()
        .await
        .expect_err("it is closed");
    assert!(matches!(error, SubmitError::Disconnected(_)), "{error}");
}

/// A scheduler that runs Python code does no handshakes meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_waits_for_a_busy_scheduler() {
    let scheduler = scheduler_at("0");
    let client = Client::connect(scheduler.address()).await;
    let client = client.expect("it connects");
    let mut options = ClientOptions::default();
    options.comm.connect_timeout = Duration::from_millis(500);
    options.comm.handshake_timeout = Duration::from_millis(500);
    let busy = client.run_on_scheduler("time.sleep", (4,));
    let connecting = async {
        // The scheduler has begun to sleep when it has read the request.
        tokio::time::sleep(Duration::from_millis(500)).await;
        Client::connect_with(scheduler.address(), options).await
    };
    let (slept, other) = tokio::join!(busy, connecting);
    slept.expect("it slept");
    let other = other.expect("it connects");
    assert_eq!(other.workers().await.expect("an answer"), []);
}

/// Programs create a runtime for each test, and share a client among them.
#[test]
fn what_waits_for_a_client_ends_with_the_runtime_of_the_client() {
    let cluster = scheduler_with_workers(1);
    let runtime = || tokio::runtime::Runtime::new().expect("a runtime");
    let first = runtime();
    let (client, future, variable) = first.block_on(async {
        let client = Client::connect(cluster.address()).await;
        let client = client.expect("it connects");
        let future = client.submit("time.sleep", [60]).expect("submitted");
        let variable = client.variable("never set").expect("supported");
        (client, future, variable)
    });
    // These wait already when the runtime ends.
    let second = runtime();
    let done = second.spawn({
        let future = future.clone();
        async move { future.done().await }
    });
    let result = second.spawn(future.clone().into_future());
    let got = second.spawn(async move { variable.get(None).await });
    let mut completed = client.as_completed([future.clone()]);
    let completed = second.spawn(async move { completed.next().await });
    drop(first);
    second.block_on(async {
        let ended = tokio::time::timeout(TIMEOUT, async {
            let status = done.await.expect("no panic");
            assert_eq!(status.name(), "disconnected");
            let error = result.await.expect("no panic").expect_err("no result");
            assert!(
                error.to_string().contains("the async runtime on which"),
                "{error}"
            );
            let error = got.await.expect("no panic").expect_err("no value");
            let error = error.to_string();
            // A call that begins while the runtime ends may meet only its broken connection.
            let reasons = ["the async runtime on which", "the connection broke"];
            assert!(
                reasons.iter().any(|reason| error.contains(reason)),
                "{error}"
            );
            assert!(completed.await.expect("no panic").is_some());
            future.done().await;
        });
        ended.await.expect("in time");
    });
    assert!(matches!(client.connection(), Connection::Closed { .. }));
}

/// The scheduler revokes leases that are not refreshed, for example because it is busy
/// itself, and those of a semaphore that is closed.
#[tokio::test(flavor = "multi_thread")]
async fn the_holder_of_a_lease_learns_that_it_was_revoked() {
    let scheduler = scheduler_at("0");
    let client = Client::connect(scheduler.address()).await;
    let client = client.expect("it connects");
    let lock = client.lock("l").await.expect("opened");
    let lease = lock.acquire(Some(TIMEOUT)).await.expect("acquired");
    let semaphore = client.semaphore("s", 1).await.expect("opened");
    let closed = semaphore.acquire(Some(TIMEOUT)).await.expect("acquired");
    semaphore.close().await.expect("closed");
    let revoked = tokio::time::timeout(TIMEOUT / 3, closed.revoked());
    revoked.await.expect("with the next refresh");
    // The other lease was refreshed meanwhile.
    assert!(!lease.is_revoked());
    assert!(closed.is_revoked());
    let busy = client.run_on_scheduler("time.sleep", (45,));
    let revoked = async {
        let revoked = tokio::time::timeout(Duration::from_secs(42), lease.revoked());
        revoked.await.expect("while the scheduler is busy");
    };
    let (slept, ()) = tokio::join!(busy, revoked);
    slept.expect("it slept");
    // Another client gets the lock, and this one does not take it again.
    let other = Client::connect(scheduler.address()).await;
    let other = other.expect("it connects");
    let lock = other.lock("l").await.expect("opened");
    let theirs = lock.acquire(Some(TIMEOUT)).await.expect("acquired");
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(lease.is_revoked() && !theirs.is_revoked());
    theirs.release().await.expect("released");
    assert!(!lock.is_locked().await.expect("an answer"));
}
