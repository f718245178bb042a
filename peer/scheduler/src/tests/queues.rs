//! Peers that do not read their messages.

use std::collections::HashSet;

use daskwire_messages::protocol::{TaskState, WorkerStatus};

use super::*;

/// Returns options with a limit on queues, and the notices of the scheduler.
fn limited(limit: usize) -> (Options, Arc<Mutex<Vec<Notice>>>) {
    let notices: Arc<Mutex<Vec<Notice>>> = Arc::default();
    let kept = Arc::clone(&notices);
    let on_notice = move |notice: &Notice| kept.lock().expect("no panic").push(notice.clone());
    let options = Options::default()
        .with_max_queued_len(limit)
        .with_on_notice(Arc::new(on_notice));
    (options, notices)
}

fn not_reading(notices: &Mutex<Vec<Notice>>) -> Vec<String> {
    let notices = notices.lock().expect("no panic");
    let peers = notices.iter().filter_map(|notice| match notice {
        Notice::NotReading { peer, .. } => Some(peer.clone()),
        _ => None,
    });
    peers.collect()
}

fn desires(count: usize, client: Option<&str>) -> ClientDesiresKeys {
    ClientDesiresKeys {
        keys: (0..count).map(|key| format!("unknown-{key}")).collect(),
        client: client.map(str::to_owned),
        ..ClientDesiresKeys::default()
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_closed_and_what_it_holds_is_released() {
    let (options, notices) = limited(256 << 10);
    let scheduler = scheduler_with("inproc://silent-client", options).await;
    let silent = Client::new(scheduler.address(), "silent").await;
    silent.submit([Task::new("x", "operator.add", [1, 2])], &["x"]);
    let mut client = Client::new(scheduler.address(), "me").await;
    for _ in 0..1000 {
        client.send(desires(100, Some("silent")));
        let _: Value = client.call(Ping::default()).await.expect("it replies");
        if !not_reading(&notices).is_empty() {
            break;
        }
    }
    assert_eq!(not_reading(&notices), ["silent"]);
    until(|| scheduler.inspect(State::task_count) == 0).await;
    assert!(scheduler.shared.queued_len() <= 256 << 10);
    // Other clients are still served.
    client.send(desires(1, None));
    let message = client.next().await;
    assert!(matches!(message, ToClient::CancelledKeys(_)), "{message:?}");
}

#[tokio::test]
async fn a_client_that_reads_late_has_all_results() {
    const COUNT: usize = 4_000;
    const LIMIT: usize = 256 << 10;
    let (options, notices) = limited(LIMIT);
    let scheduler = scheduler_with("inproc://late-client", options).await;
    let worker = Worker::new(scheduler.address(), "inproc://late-client-1").await;
    let mut late = Client::new(scheduler.address(), "late").await;
    let keys: Vec<String> = (0..COUNT).map(|number| format!("x-{number}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let task = |key: &&str| match key.ends_with("99") {
        true => Task::new(*key, "operator.truediv", [1, 0]),
        false => Task::new(*key, "operator.add", [1, 2]),
    };
    late.submit(keys.iter().map(task), &keys);
    let names: Vec<Key> = keys.iter().map(|key| Key::from(*key)).collect();
    let is_done = |state: &State| {
        let is_done = |key| {
            matches!(
                state.status(key),
                Some(TaskState::Memory | TaskState::Erred)
            )
        };
        names.iter().rev().all(is_done)
    };
    until(|| scheduler.inspect(is_done)).await;
    assert!(scheduler.shared.queued_len() <= LIMIT / 8 * 5);
    let mut left: HashSet<Key> = names.into_iter().collect();
    while !left.is_empty() {
        let (key, is_failure) = match late.next().await {
            ToClient::KeyInMemory(message) => (message.key, false),
            ToClient::TaskErredForClient(message) => (message.key, true),
            other => panic!("{other:?}"),
        };
        assert_eq!(is_failure, key.to_string().ends_with("99"));
        left.remove(&key);
    }
    assert_eq!(not_reading(&notices), [""; 0]);
    drop(worker);
}

#[tokio::test]
async fn bounds_the_queue_of_a_client() {
    const LIMIT: usize = 256 << 10;
    let peak = async |count: usize| {
        let (options, notices) = limited(LIMIT);
        let at = format!("inproc://silent-{count}");
        let scheduler = scheduler_with(&at, options).await;
        let _silent = Client::new(scheduler.address(), "silent").await;
        let mut client = Client::new(scheduler.address(), "me").await;
        let mut peak = 0;
        for _ in 0..count {
            client.send(desires(100, Some("silent")));
            let _: Value = client.call(Ping::default()).await.expect("it replies");
            peak = peak.max(scheduler.shared.queued_len());
        }
        assert_eq!(not_reading(&notices), ["silent"]);
        peak
    };
    let (once, twice) = (peak(1000).await, peak(2000).await);
    // The message that exceeds the limit is counted too.
    assert!(once > LIMIT / 2 && once < LIMIT / 8 * 9, "{once} bytes");
    assert!(twice < once / 8 * 9, "{once} bytes, then {twice}");
}

#[tokio::test]
async fn replies_to_one_message_do_not_exceed_the_limit() {
    const LIMIT: usize = 256 << 10;
    let (options, notices) = limited(LIMIT);
    let scheduler = scheduler_with("inproc://one-message", options).await;
    let silent = Client::new(scheduler.address(), "silent").await;
    silent.send(UpdateGraph {
        keys: (0..100_000).map(|key| format!("x-{key}")).collect(),
        ..UpdateGraph::default()
    });
    until(|| !not_reading(&notices).is_empty()).await;
    assert_eq!(not_reading(&notices), ["silent"]);
}

#[tokio::test(start_paused = true)]
async fn stops_reading_from_clients_that_do_not_read() {
    const LIMIT: usize = 1 << 20;
    const BATCH: usize = 100;
    let (options, notices) = limited(LIMIT);
    let scheduler = scheduler_with("inproc://backpressure", options).await;
    let mut channel = connect(scheduler.address()).await;
    let register = Request::from(RegisterClient {
        client: "eager".to_owned(),
        reply: Some(false),
        ..RegisterClient::default()
    });
    channel.sender.send(&register).await.expect("it listens");
    let batch = vec![FromClient::from(HeartbeatClient::default()); BATCH];
    let mut sent = 0;
    let mut sender = channel.sender;
    let mut last = loop {
        assert!(sent < 10_000_000, "it reads on and on");
        let mut sending = Box::pin(async {
            sender.send(&batch).await.expect("it listens");
        });
        // Tokio's paused time only advances when all tasks wait.
        let waited = tokio::time::timeout(Duration::from_secs(5), &mut sending).await;
        sent += BATCH;
        if waited.is_err() {
            break sending;
        }
    };
    assert!(scheduler.shared.queued_len() <= LIMIT / 2);
    let mut received = 0;
    let mut is_sent = false;
    while received < sent {
        let batch = channel.receiver.receive_batch::<ToClient>();
        let batch = tokio::select! {
            () = &mut last, if !is_sent => { is_sent = true; continue }
            batch = batch => batch.expect("it is open").expect("it is open"),
        };
        let is_reply =
            |message: &&ToClient| matches!(message, ToClient::AdjustHeartbeatInterval(_));
        received += batch.iter().filter(is_reply).count();
    }
    assert_eq!(received, sent);
    assert!(not_reading(&notices).is_empty());
}

#[tokio::test]
async fn one_failure_of_many_tasks_counts_once() {
    const COUNT: usize = 2000;
    let (options, notices) = limited(2 << 20);
    let scheduler = scheduler_with("inproc://one-failure", options).await;
    let mut client = Client::new(scheduler.address(), "me").await;
    let mut worker = connect(scheduler.address()).await;
    let register = Request::from(RegisterWorker {
        extra_information: rust_worker(),
        address: "inproc://one-failure-1".to_owned(),
        status: WorkerStatus::Running,
        nthreads: 1,
        ..RegisterWorker::default()
    });
    let _: RegisterWorkerReply = worker.call(&register).await.expect("it replies");
    let names: Vec<String> = (0..COUNT).map(|number| format!("y-{number}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let tasks = keys
        .iter()
        .map(|key| Task::new(*key, "operator.neg", [Argument::Result(Key::from("x"))]));
    client.submit(tasks.chain([Task::new("x", "operator.add", [1, 2])]), &keys);
    let batch = worker.receiver.receive_batch::<ToWorker>().await;
    let batch = batch.expect("it is open").expect("it is open");
    let ToWorker::ComputeTask(task) = &batch[0] else {
        panic!("{batch:?}");
    };
    let exception = daskwire_messages::exception::exception("ValueError", &"x".repeat(64 << 10));
    let failed = FromWorker::from(TaskErred {
        key: task.key.clone(),
        run_id: task.run_id,
        exception: Value::Serialized(exception),
        ..TaskErred::default()
    });
    worker.sender.send(&vec![failed]).await.expect("it listens");
    for _ in 0..COUNT {
        let message = client.next().await;
        assert!(
            matches!(message, ToClient::TaskErredForClient(_)),
            "{message:?}"
        );
    }
    assert!(not_reading(&notices).is_empty());
}

#[tokio::test]
async fn a_worker_that_does_not_read_is_closed() {
    let (options, notices) = limited(64 << 10);
    let scheduler = scheduler_with("inproc://silent-worker", options).await;
    let mut worker = connect(scheduler.address()).await;
    let register = Request::from(RegisterWorker {
        extra_information: rust_worker(),
        address: "inproc://silent-worker-1".to_owned(),
        status: WorkerStatus::Running,
        ..RegisterWorker::default()
    });
    let _: RegisterWorkerReply = worker.call(&register).await.expect("it replies");
    let ask = FromWorker::from(RequestRefreshWhoHas {
        keys: (0..100).map(|key| format!("x-{key}")).collect(),
        ..RequestRefreshWhoHas::default()
    });
    let batch = vec![ask; 10];
    for _ in 0..1000 {
        if worker.sender.send(&batch).await.is_err() || !not_reading(&notices).is_empty() {
            break;
        }
    }
    until(|| scheduler.inspect(State::worker_count) == 0).await;
    assert_eq!(not_reading(&notices), ["inproc://silent-worker-1"]);
}
