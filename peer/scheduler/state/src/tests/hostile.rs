//! Inconsistent messages, which must be ignored and must not change the state.

use daskwire_messages::protocol::TaskState;
use daskwire_messages::protocol::WorkerStatus;

use super::*;
use crate::choose::next_random;

/// Few keys and names, so that messages refer to the same ones.
struct Chaos(u64);

impl Chaos {
    fn number(&mut self, below: u64) -> u64 {
        next_random(&mut self.0) % below
    }

    fn key(&mut self) -> Key {
        match self.number(6) {
            0 => Key::list([Key::from("x"), Key::from(self.number(2) as i64)]),
            number => Key::from(format!("k-{number}")),
        }
    }

    fn keys(&mut self) -> Keys {
        (0..self.number(4)).map(|_| self.key()).collect()
    }

    fn name(&mut self) -> Option<String> {
        let names = [None, Some("one"), Some("fire-and-forget"), Some("nowhere")];
        names[self.number(4) as usize].map(str::to_owned)
    }

    fn worker(&mut self) -> String {
        format!("tcp://w{}:1", self.number(4))
    }

    fn odd(&mut self) -> f64 {
        let odd = [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300, 1.0];
        odd[self.number(6) as usize]
    }

    fn client_message(&mut self) -> FromClient {
        match self.number(8) {
            0..3 => {
                let tasks = (0..self.number(4)).map(|_| {
                    let dependencies = self.keys().into_iter().map(Argument::Result);
                    Node::new(self.key(), "operator.add", dependencies.collect::<Vec<_>>())
                });
                let graph: Graph = tasks.collect::<Vec<_>>().into_iter().collect();
                let annotations = match self.number(4) {
                    0 => Some(Value::dict([("retries", Value::Int(i128::from(self.0)))])),
                    1 => Some(Value::dict([
                        ("resources", Value::dict([("GPU", self.odd())])),
                        ("priority", Value::from(self.odd())),
                    ])),
                    2 => Some(Value::dict([("workers", Value::from(self.worker()))])),
                    _ => Some(Value::from("none")),
                };
                FromClient::from(UpdateGraph {
                    expr_ser: graph.to_expression().expect("plain values"),
                    keys: self.keys(),
                    user_priority: Some(self.odd()),
                    annotations: annotations.filter(|_| self.0.is_multiple_of(2)),
                    ..UpdateGraph::default()
                })
            }
            3 => FromClient::from(ClientDesiresKeys {
                keys: self.keys(),
                client: self.name(),
                ..ClientDesiresKeys::default()
            }),
            4 => FromClient::from(ClientReleasesKeys {
                keys: self.keys(),
                client: self.name(),
                ..ClientReleasesKeys::default()
            }),
            5 => FromClient::from(ReportKey {
                key: self.key(),
                ..ReportKey::default()
            }),
            6 => FromClient::from(CancelKeys {
                keys: self.keys(),
                force: self.number(2) == 0,
                ..CancelKeys::default()
            }),
            _ => FromClient::Unknown(Unknown::default()),
        }
    }

    fn worker_message(&mut self) -> FromWorker {
        let (key, keys) = (self.key(), self.keys());
        let run_id = self.number(30) as i64;
        match self.number(12) {
            10.. => FromWorker::from(Returned {
                results: (0..self.number(4))
                    .map(|_| ReturnedResult {
                        key: self.key(),
                        nbytes: u64::MAX - self.number(2),
                        class: None,
                    })
                    .collect(),
                actors: keys,
                running: (0..self.number(4))
                    .map(|_| ReturnedRun {
                        key: self.key(),
                        run_id: [run_id, -1, i64::MAX][self.number(3) as usize],
                    })
                    .collect(),
                is_last: self.number(3) == 0,
                ..Returned::default()
            }),
            0..3 => FromWorker::from(TaskFinished {
                key,
                run_id,
                nbytes: u64::MAX - self.number(2),
                startstops: vec![StartStop {
                    action: "compute".to_owned(),
                    start: self.odd(),
                    stop: self.odd(),
                    ..StartStop::default()
                }],
                ..TaskFinished::default()
            }),
            3 => FromWorker::from(TaskErred {
                key,
                run_id,
                ..TaskErred::default()
            }),
            4 => FromWorker::from(AddKeys {
                keys,
                ..AddKeys::default()
            }),
            5 => FromWorker::from(ReleaseWorkerData {
                key,
                ..ReleaseWorkerData::default()
            }),
            6 => FromWorker::from(RequestRefreshWhoHas {
                keys,
                ..RequestRefreshWhoHas::default()
            }),
            7 => {
                let status = ["running", "paused", "closing", "what", ""];
                FromWorker::from(WorkerStatusChange {
                    status: status[self.number(5) as usize].into(),
                    ..WorkerStatusChange::default()
                })
            }
            8 => FromWorker::from(Reschedule {
                key,
                ..Reschedule::default()
            }),
            _ => FromWorker::from(LongRunning {
                key,
                run_id,
                ..LongRunning::default()
            }),
        }
    }
}

#[test]
fn random_messages_neither_panic_nor_leak() {
    for seed in 0..150 {
        let mut chaos = Chaos(seed);
        let mut cluster = Cluster::new();
        let mut clients = vec![cluster.client("one"), cluster.client("two")];
        let mut workers = Vec::new();
        for _ in 0..150 {
            match chaos.number(12) {
                0 => {
                    let kinds: &[&str] = match chaos.number(2) {
                        0 => &["python"],
                        _ => &["python", "returning"],
                    };
                    let worker = RegisterWorker {
                        extra_information: Value::dict([(
                            "daskwire",
                            Value::list(kinds.iter().copied()),
                        )]),
                        server_id: Some("one".to_owned()),
                        address: chaos.worker(),
                        status: WorkerStatus::Running,
                        nthreads: [0, 1, u64::MAX][chaos.number(3) as usize],
                        resources: vec![("GPU".to_owned(), chaos.odd())],
                        ..RegisterWorker::default()
                    };
                    workers.extend(cluster.join(worker));
                }
                1 => {
                    if let Some(worker) = workers.get(chaos.number(4) as usize) {
                        cluster.handle(SchedulerInput::WorkerLeft(*worker));
                    }
                }
                2 => {
                    let who_has = vec![(chaos.key(), vec![chaos.worker(), chaos.worker()])];
                    let nbytes = vec![(chaos.key(), u64::MAX)];
                    cluster.handle(SchedulerInput::DataStored {
                        client: chaos.name(),
                        who_has,
                        nbytes,
                    });
                }
                3 => {
                    let keys = chaos.keys();
                    cluster.handle(SchedulerInput::Retry(keys.0));
                }
                4 => {
                    cluster.handle(SchedulerInput::RetireWorkers(vec![chaos.worker()]));
                }
                5 => {
                    cluster.handle(SchedulerInput::DataMissing {
                        keys: vec![chaos.key()],
                        worker: chaos.worker(),
                    });
                    cluster.pass(chaos.number(1000));
                }
                6..9 => {
                    let client = clients[chaos.number(2) as usize];
                    let message = chaos.client_message();
                    cluster.send(client, message);
                }
                _ => {
                    // Including workers that have left.
                    if let Some(worker) = workers.get(chaos.number(8) as usize) {
                        let message = chaos.worker_message();
                        cluster.report(*worker, message);
                    }
                }
            }
        }
        // Tasks without futures are completed first.
        for holder in ["fire-and-forget", "nowhere"] {
            let forgotten = ClientReleasesKeys {
                keys: cluster.state.by_key.keys().collect(),
                client: Some(holder.to_owned()),
                ..ClientReleasesKeys::default()
            };
            cluster.send(clients[0], forgotten);
        }
        for client in clients.drain(..) {
            cluster.handle(SchedulerInput::ClientLeft(client));
        }
        cluster.assert_empty_but_for_running(&workers);
    }
}

impl Cluster {
    fn assert_empty_but_for_running(&mut self, workers: &[WorkerId]) {
        self.assert_empty();
        for worker in workers {
            self.handle(SchedulerInput::WorkerLeft(*worker));
        }
        assert_eq!(self.state.worker_count(), 0);
    }
}

#[test]
fn unknown_ops_are_reported_and_ignored() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.notices.clear();
    let unknown = |op: &str| Unknown {
        op: op.to_owned(),
        ..Unknown::default()
    };
    cluster.send(client, FromClient::Unknown(unknown("subscribe-topic")));
    cluster.report(worker, FromWorker::Unknown(unknown("shuffle")));
    let notices = cluster.notices.iter().map(|notice| match notice {
        Notice::UnknownOp { peer, op } => (peer.as_str(), op.as_str()),
        other => panic!("{other:?}"),
    });
    let expected = [("me", "subscribe-topic"), ("tcp://a:1", "shuffle")];
    assert!(notices.eq(expected), "{:?}", cluster.notices);
}

#[test]
fn ignores_results_of_other_workers_and_repeated_ones() {
    let mut cluster = Cluster::new();
    let (first, second) = (
        cluster.worker("tcp://a:1", 1),
        cluster.worker("tcp://b:1", 1),
    );
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[])], &["x"]);
    let on = cluster.assigned_to("x").expect("it was sent");
    let other = if on == first { second } else { first };
    let run_id = cluster.running[&(on, Key::from("x"))].run_id;
    let finished = |run_id| TaskFinished {
        key: Key::from("x"),
        run_id,
        ..TaskFinished::default()
    };
    cluster.report(other, finished(run_id));
    assert_eq!(cluster.sent_to_worker(other), ["free-keys x"]);
    assert_eq!(cluster.status("x"), Some(TaskState::Processing));
    cluster.finish(on, "x");
    cluster.sent_to_worker(on);
    // Repeated reports count once.
    cluster.report(on, finished(run_id));
    assert!(cluster.sent_to_worker(on).is_empty());
    assert_eq!(cluster.sent_to_client(client), ["key-in-memory x"]);
}

#[test]
fn runs_a_task_again_after_a_report_of_an_earlier_run() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let key = || Key::from("x");
    let submit = |cluster: &mut Cluster| {
        cluster.submit(client, [add("x", &[])], &["x"]);
        cluster.running[&(worker, key())].run_id
    };
    let first = submit(&mut cluster);
    cluster.release(client, &["x"]);
    let second = submit(&mut cluster);
    cluster.sent_to_worker(worker);
    // A worker in Python cannot stop the first run, and reports only that.
    let seceded = LongRunning {
        key: key(),
        run_id: first,
        ..LongRunning::default()
    };
    cluster.report(worker, seceded);
    assert!(cluster.sent_to_worker(worker).is_empty());
    let finished = TaskFinished {
        key: key(),
        run_id: first,
        ..TaskFinished::default()
    };
    cluster.report(worker, finished);
    let again = ["free-keys x", "compute-task x"];
    assert_eq!(cluster.sent_to_worker(worker), again);
    let erred = TaskErred {
        key: key(),
        run_id: second,
        ..TaskErred::default()
    };
    cluster.report(worker, erred);
    assert_eq!(cluster.sent_to_worker(worker), again);
    assert!(cluster.sent_to_client(client).is_empty());
    cluster.finish(worker, "x");
    assert_eq!(cluster.sent_to_client(client), ["key-in-memory x"]);
}

#[test]
fn an_error_without_an_exception_gets_one() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[])], &["x"]);
    let message = TaskErred {
        key: Key::from("x"),
        run_id: cluster.running[&(worker, Key::from("x"))].run_id,
        ..TaskErred::default()
    };
    cluster.report(worker, message);
    let sent = cluster.sent_to_client(client);
    assert_eq!(
        sent,
        ["task-erred x Exception: the worker reported no exception"]
    );
}
