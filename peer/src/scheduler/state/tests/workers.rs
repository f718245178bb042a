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

// ROLES SCHEDULER-1, SCHEDULER-2
#[test]
fn old_workers_and_clients_are_refused_and_versions_compared() {
    let mut cluster = Cluster::new();
    let versions = |release: &str, python: &str| {
        let packages = Value::dict([("distributed", release), ("python", python)]);
        Value::dict([("packages", packages)])
    };
    let worker = |address: &str, versions| RegisterWorker {
        address: address.to_owned(),
        versions,
        ..RegisterWorker::default()
    };
    let refused = cluster.join(worker("tcp://a:1", versions("2025.3.1", "3.12")));
    let refused = refused.expect_err("it is too old").to_string();
    assert_eq!(
        refused,
        "this scheduler does not serve a worker with distributed 2025.3.1: upgrade it to 2025.4.0 \
         or later"
    );
    assert_eq!(cluster.state.worker_count(), 0);
    cluster
        .join(worker("tcp://a:1", versions("2025.4.0", "3.12")))
        .expect("it is served");
    cluster.state.check();

    let mut join = |id, versions| {
        let id = ClientId(id);
        let name = format!("client {id:?}");
        let joined = Event::ClientJoined { id, name, versions };
        let mut actions = cluster.state.handle(Duration::ZERO, joined).into_iter();
        let Some(Action::ToClient(to, ToClient::StreamStart(start))) = actions.next() else {
            panic!("a client's stream has a start");
        };
        assert_eq!(to, id);
        let is_ended = matches!(actions.next(), Some(Action::EndClient(ended)) if ended == id);
        (
            start.error.unwrap_or_default(),
            start.warning.unwrap_or_default(),
            is_ended,
        )
    };
    let (error, warning, is_ended) = join(1001, versions("2022.1.0", "3.12"));
    assert_eq!(
        error,
        "this scheduler does not serve a client with distributed 2022.1.0: upgrade it to 2025.4.0 \
         or later"
    );
    assert!(warning.is_empty() && is_ended);
    let none = (String::new(), String::new(), false);
    assert_eq!(join(1002, versions("2025.4.0", "3.12")), none);
    assert_eq!(join(1003, Value::None), none);
    let (error, warning, is_ended) = join(1004, versions("2026.8.0", "3.13"));
    assert!(error.is_empty() && !is_ended);
    assert!(warning.contains("| distributed | 2026.8.0 | 2025.4.0 |\n"));
    assert!(warning.contains("| python      | 3.13     | 3.12     |\n"));
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
