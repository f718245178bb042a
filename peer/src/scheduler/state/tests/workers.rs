//! Tests of the registration of workers.

use super::*;

#[test]
fn worker_names_and_addresses_are_unique() {
    let mut cluster = Cluster::new();
    cluster.worker("tcp://a:1", 1);
    let mut other = RegisterWorker {
        address: "tcp://a:1".to_owned(),
        name: Value::from("b"),
        ..RegisterWorker::default()
    };
    let refusal = cluster.join(other.clone()).expect_err("exists");
    assert_eq!(refusal.to_string(), "worker already exists tcp://a:1");
    other.address = "tcp://b:1".to_owned();
    other.name = Value::from("tcp://a:1");
    let refusal = cluster.join(other.clone()).expect_err("exists");
    assert_eq!(refusal.to_string(), "name taken, tcp://a:1");
    other.name = Value::list(["b"]);
    let refusal = cluster.join(other.clone()).expect_err("a list");
    assert!(matches!(refusal, WorkerRefusal::InvalidName { .. }));
    // The stream of the first worker is unaffected.
    cluster.last_id = 0;
    other.name = Value::from("b");
    assert_eq!(cluster.join(other), Err(WorkerRefusal::IdTaken));
    assert_eq!(cluster.state.worker_count(), 1);
    assert_eq!(cluster.ended_workers, []);
}

#[test]
fn heartbeat_interval_grows_with_the_number_of_workers() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    assert_eq!(cluster.state.heartbeat_interval(), 0.5);
    cluster.send(client, HeartbeatClient::default());
    assert_eq!(
        cluster.sent_to_client(client),
        ["adjust-heartbeat-interval"]
    );
    for number in 0..11 {
        cluster.worker(&format!("tcp://w{number}:1"), 1);
    }
    assert_eq!(cluster.state.heartbeat_interval(), 1.0);
}

#[test]
fn workers_are_found_by_host() {
    let mut cluster = Cluster::new();
    for address in ["tcp://10.0.0.1:1", "tcp://10.0.0.1:2", "tcp://10.0.0.2:1"] {
        cluster.worker(address, 1);
    }
    let on = |hosts: &[&str]| {
        let hosts: Vec<String> = hosts.iter().copied().map(str::to_owned).collect();
        cluster.state.workers_on(Some(&hosts))
    };
    assert_eq!(cluster.state.workers_on(None).len(), 3);
    assert_eq!(on(&[]), [""; 0]);
    assert_eq!(on(&["10.0.0.1"]), ["tcp://10.0.0.1:1", "tcp://10.0.0.1:2"]);
    assert_eq!(on(&["10.0.0.2", "10.0.0.3"]), ["tcp://10.0.0.2:1"]);
}
