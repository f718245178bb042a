//! The journey of a task on an embedded cluster, over every transport.

use core::time::Duration;
use std::sync::Arc;

use daskwire_cli::journey::{Form, Recorder, Step, journey};
use daskwire_peer::Value;
use daskwire_peer::cluster::{ClusterTransport, LocalCluster};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Checks each step, in the order of the documentation.
async fn the_journey_over(transport: ClusterTransport) {
    let recorder = Arc::new(Recorder::new(true));
    let cluster = LocalCluster::builder()
        .transport(transport)
        .observer(Arc::<Recorder>::clone(&recorder))
        .start()
        .await
        .expect("a cluster");
    let client = cluster.client().await.expect("a client");
    recorder.set_name(&cluster.address().to_string(), "scheduler");
    recorder.set_name(client.id(), "client");
    for worker in cluster.workers() {
        recorder.set_name(worker.address(), worker.name());
    }
    let mut text = String::new();
    let mut show = |line: &str| text.push_str(line);
    let outcome = journey(&client, &recorder, Form::Text { verbose: false }, &mut show)
        .await
        .expect("it ends well");
    assert_eq!(outcome.result, Value::from(10));
    let followed = text.split("# we follow z").nth(1).expect("z is followed");
    let mut from = 0;
    for step in [
        Step::Client,
        Step::Transmit,
        Step::Execute,
        Step::Aftermath,
        Step::Gather,
        Step::Collection,
    ] {
        let at = followed[from..].find(&step.to_string());
        from += at.unwrap_or_else(|| panic!("{step} is missing, or too early\n{text}"));
    }
    for (op, count) in [
        ("compute-task z", 1),
        ("task-finished z", 1),
        ("key-in-memory z", 1),
    ] {
        assert_eq!(followed.matches(op).count(), count, "{op}\n{text}");
    }
    assert!(followed.contains("free-keys"), "{text}");
    // The cluster must end without tasks.
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while cluster
        .workers()
        .iter()
        .any(|worker| !worker.keys().is_empty())
    {
        assert!(tokio::time::Instant::now() < deadline, "data is left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    client.close().await.expect("closed");
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_makes_its_journey_through_memory() {
    the_journey_over(ClusterTransport::Memory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_makes_its_journey_over_tcp() {
    the_journey_over(ClusterTransport::Tcp).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_makes_its_journey_over_tls() {
    the_journey_over(ClusterTransport::Tls).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_makes_its_journey_over_quic() {
    the_journey_over(ClusterTransport::Quic).await;
}
