//! Clusters over WebSocket, of Dask and of this repository.

use crate::scheduler_command::scheduler;
use crate::support::client::client_at;
use crate::support::relay::Relay;
use crate::support::worker::rust_worker;
use daskwire_peer::Value;
use daskwire_testing::cluster::Cluster;
use daskwire_testing::{Environment, Peer, TLS_ARGUMENTS, TLS_PEM, scheduler_with_workers_over};

/// Submits a task, and transfers 64 MB in both directions: larger than the parts into which Dask
/// splits frames here (`distributed.comm.websockets.shard`).
async fn computes(address: &str) {
    let client = client_at(address).await;
    let sum = client.submit("operator.add", [1, 2]).expect("a task");
    assert_eq!(
        i64::try_from(sum.result().await.expect("a result")).ok(),
        Some(3)
    );
    let bytes: Vec<u8> = (0..64_000_000_u32).map(|at| (at / 7) as u8).collect();
    let sent = client.scatter([Value::bytes(bytes.clone())]).await;
    let sent = sent.expect("it is stored");
    let call = client.call("operator.add").argument(&sent[0]);
    let more = call
        .argument(Value::bytes(vec![1]))
        .submit()
        .expect("a task");
    let Value::Bytes(back) = more.result().await.expect("a result") else {
        panic!("no bytes");
    };
    assert!(back[..bytes.len()] == bytes && back[bytes.len()..] == [1]);
    client.close().await.expect("it closes");
}

/// A Dask client with these certificates does the same.
fn client_in_python(address: &str) -> Peer {
    match address.starts_with("wss://") {
        true => Peer::spawn(
            Environment::Current,
            "operator_client.py",
            &[address, TLS_PEM, "computes"],
        ),
        false => Peer::spawn(Environment::Current, "client.py", &[address, "20000000"]),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_rust_uses_a_cluster_of_dask() {
    for scheme in ["ws", "wss"] {
        let scheduler = tokio::task::block_in_place(|| scheduler_with_workers_over(scheme, 1));
        let address = scheduler.address();
        assert!(address.starts_with(&format!("{scheme}://")), "{address}");
        let worker = scheduler.workers()[0].address();
        assert!(worker.starts_with(&format!("{scheme}://")), "{worker}");
        computes(address).await;
        assert_eq!(scheduler.warnings(), [""; 0]);
        assert_eq!(scheduler.workers()[0].warnings(), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_in_rust_joins_a_cluster_of_dask() {
    let mut scheduler = tokio::task::block_in_place(|| scheduler_with_workers_over("ws", 1));
    let worker = rust_worker(scheduler.address(), "rust", None, &["--nthreads", "1"], &[]);
    assert!(
        worker.address().starts_with("ws://"),
        "{}",
        worker.address()
    );
    let client = Peer::spawn(
        Environment::Current,
        "worker_client.py",
        &[scheduler.address()],
    );
    let mut cluster = Cluster { client, scheduler };
    // Each worker reads the data of the other.
    let program = "data = {name: client.submit(operator.mul, b'ab', 10_000_000, workers=[name], pure=False) \
                   for name in ('rust', 'worker-0')}\n\
                   sums = [client.submit(operator.add, data['rust'], data['worker-0'], workers=[name], \
                   pure=False) for name in data]\n\
                   [s.result() == b'ab' * 20_000_000 for s in sums]";
    assert_eq!(cluster.python(program), "[True, True]");
    cluster.check_logs();
    scheduler = cluster.scheduler;
    drop((worker, scheduler));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_in_rust_serves_dask() {
    for (scheme, certificates) in [("ws", &[][..]), ("wss", &TLS_ARGUMENTS)] {
        let arguments = [&["--protocol", scheme][..], certificates].concat();
        let scheduler = scheduler(&arguments, &[]);
        let address = scheduler.address();
        assert!(address.starts_with(&format!("{scheme}://")), "{address}");
        let worker = daskwire_testing::worker(address, "python");
        let _client = client_in_python(address);
        computes(address).await;
        assert_eq!(worker.warnings(), [""; 0]);
    }
}

/// Between a Dask cluster over TCP and its clients, and the other way round.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_translates() {
    for (inner, outer) in [("tcp", "ws"), ("ws", "tcp")] {
        let scheduler = tokio::task::block_in_place(|| scheduler_with_workers_over(inner, 1));
        let relay = Relay::start(&format!("{outer}://127.0.0.1:0"), scheduler.address());
        assert!(
            relay.address.starts_with(&format!("{outer}://")),
            "{}",
            relay.address
        );
        let client = client_in_python(&relay.address);
        assert_eq!(client.address(), "5050");
    }
}

#[test]
fn encrypted_addresses_need_certificates() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_daskwire"))
        .args(["identity", "wss://127.0.0.1:1"])
        .output()
        .expect("the command runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--tls-ca-file"), "{said}");
}
