//! The transport passes the conformance checks, and carries a client and a relay.

use daskwire_comm::conformance::{Settings, check_transport};
use daskwire_comm::{Address, CommOptions, Transports};
use daskwire_example_serial::Serial;
use daskwire_peer::Client;
use daskwire_peer::client::ClientOptions;
use daskwire_peer::cluster::LocalCluster;

fn address(address: &str) -> Address {
    address.parse().expect("an address")
}

#[tokio::test]
async fn it_passes_the_conformance_checks() {
    check_transport(
        Serial::default(),
        &address("serial:///dev/one"),
        Settings::small(),
    )
    .await;
}

#[test]
fn it_passes_the_conformance_checks_on_smol() {
    let line = address("serial:///dev/one");
    smol::block_on(check_transport(Serial::default(), &line, Settings::small()));
}

/// What a graph of two tasks comes to, for a client at this address.
async fn seven_times_six(at: &Address, transports: &Transports) -> i64 {
    let options = ClientOptions::default().with_transports(transports.clone());
    let client = Client::connect_with(&at.to_string(), options).await;
    let client = client.expect("a scheduler");
    let x = client.submit("operator.add", [1, 6]).expect("sent");
    let y = client.call("operator.mul").argument(&x).argument(6);
    let y = y.submit().expect("sent");
    let result = y.result().await.expect("a result");
    client.close().await.expect("closed");
    i64::try_from(result).expect("a number")
}

#[tokio::test]
async fn a_client_runs_a_graph_over_it() {
    let transports = daskwire_peer::transports().with(Serial::default());
    let line = address("serial:///dev/ttyUSB0");
    let cluster = LocalCluster::builder()
        .transports(transports.clone())
        .listen(line.clone());
    let cluster = cluster.start().await.expect("a cluster");
    assert_eq!(seven_times_six(&line, &transports).await, 42);

    // And one that has TCP alone, through a relay.
    let relay = relay(&transports, &address("tcp://127.0.0.1:0"), line).await;
    let front = relay.1.clone();
    assert_eq!(
        seven_times_six(&front, &daskwire_peer::transports()).await,
        42
    );
    relay.0.abort();
    cluster.close().await;
}

/// A client on the one end of a line uses a cluster of Dask, to which a relay on the other end
/// forwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_reaches_a_cluster_of_dask_over_it() {
    let scheduler = tokio::task::block_in_place(|| daskwire_testing::scheduler_with_workers(1));
    let transports = daskwire_peer::transports().with(Serial::default());
    let line = address("serial:///dev/ttyS1");
    let relay = relay(&transports, &line, address(scheduler.address())).await;
    assert_eq!(seven_times_six(&line, &transports).await, 42);
    assert_eq!(scheduler.warnings(), [""; 0]);
    relay.0.abort();
}

/// Starts a relay between two addresses, and returns its task and where it listens.
async fn relay(
    transports: &Transports,
    listen: &Address,
    target: Address,
) -> (tokio::task::JoinHandle<()>, Address) {
    let listener = transports.bind(listen, CommOptions::default());
    let listener = listener.await.expect("it can listen");
    let front = listener.local_address().expect("bound");
    let transports = transports.clone();
    let task = tokio::spawn(async move {
        let options = daskwire_peer::relay::Options::default();
        let never = std::future::pending();
        let served = daskwire_peer::relay::serve;
        let _ = served(&listener, &transports, &target, options, |_, _| {}, never).await;
    });
    (task, front)
}
