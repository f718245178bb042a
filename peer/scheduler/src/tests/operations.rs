//! The table of operations, and operations over comms.

use super::*;

const TABLES: &str = include_str!("../../OPERATIONS.md");

/// The ops of a table, and whether they are served.
fn rows(heading: &str) -> Vec<(&'static str, bool)> {
    let (_, after) = TABLES.split_once(heading).expect("the heading exists");
    let section = after.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.map(|row| {
        let (op, rest) = row.split_once("` | ").expect("an op");
        let is_served = match rest.split(' ').next() {
            Some("served") => true,
            Some("refused") => false,
            other => panic!("{op}: {other:?}"),
        };
        (op, is_served)
    });
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() > 20, "{rows:?}");
    rows
}

/// The class of the exception of the reply to a request without fields, if it has one.
async fn class_of_refusal(scheduler: &Scheduler, op: &str) -> Option<String> {
    let mut channel = connect(scheduler.address()).await;
    let request = match op {
        // Only plugins of some classes are refused.
        "register_scheduler_plugin" => Unknown::new(op).field("plugin", Value::from("x")),
        _ => Unknown::new(op),
    };
    let request = Request::Unknown(request);
    match channel.call::<Value>(&request).await {
        Err(RequestError::Remote(error)) => Some(error.class.clone()),
        _ => None,
    }
}

/// Requests that the scheduler of these tests refuses, since it has no Python.
const NEED_PYTHON: [&str; 5] = [
    "dump_cluster_state_to_url",
    "run_function",
    "feed",
    "performance_report",
    "register_scheduler_plugin",
];

#[tokio::test]
async fn requests_are_served_as_the_table_says() {
    let scheduler = scheduler("inproc://operations").await;
    for (op, is_served) in rows("## Requests") {
        if op == "terminate" {
            continue;
        }
        let class = class_of_refusal(&scheduler, op).await;
        let is_refused = class.as_deref() == Some("NotImplementedError");
        let is_served = is_served && !NEED_PYTHON.contains(&op);
        assert_eq!(!is_refused, is_served, "{op}: {class:?}");
    }
}

#[tokio::test]
async fn messages_on_streams_are_served_as_the_table_says() {
    let unknown: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&unknown);
    let options = Options::default().with_on_notice(Arc::new(move |notice| {
        if let Notice::UnknownOp { op, .. } = notice {
            lock(&seen).push(op.clone());
        }
    }));
    let scheduler = scheduler_with("inproc://stream-operations", options).await;
    let is_unknown = |op: &str| lock(&unknown).iter().any(|known| known == op);
    for (op, is_served) in rows("## Messages on streams") {
        let mut client = Client::new(scheduler.address(), "me").await;
        client.send(Unknown::new(op));
        client.send(HeartbeatClient::default());
        // The stream ends if the message lacks a field.
        while let Some(message) = client.try_next().await {
            if matches!(message, ToClient::AdjustHeartbeatInterval(_)) {
                break;
            }
        }
        if is_unknown(op) {
            lock(&unknown).clear();
            let mut channel = connect(scheduler.address()).await;
            let register = Request::from(RegisterWorker {
                extra_information: rust_worker(),
                address: "inproc://nowhere".to_owned(),
                nthreads: 1,
                ..RegisterWorker::default()
            });
            let _: RegisterWorkerReply = channel.call(&register).await.expect("it replies");
            let messages = vec![
                FromWorker::from(Unknown::new(op)),
                FromWorker::from(CloseStream::default()),
            ];
            channel.sender.send(&messages).await.expect("it listens");
            until(|| scheduler.inspect(State::worker_count) == 0).await;
        }
        assert_eq!(!is_unknown(op), is_served, "{op}");
        lock(&unknown).clear();
    }
}

#[tokio::test]
async fn an_unknown_op_is_reported_once_of_each_comm() {
    let count = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&count);
    let options = Options::default().with_on_notice(Arc::new(move |notice| {
        *lock(&seen) += u32::from(matches!(notice, Notice::UnknownOp { .. }));
    }));
    let scheduler = scheduler_with("inproc://unknown-ops", options).await;
    let mut client = Client::new(scheduler.address(), "me").await;
    for _ in 0..3 {
        let request = Request::Unknown(Unknown::new("nonsense"));
        let reply = client.call::<Value>(request).await;
        assert!(reply.is_err(), "{reply:?}");
        client.send(Unknown::new("nonsense"));
    }
    client.send(HeartbeatClient::default());
    client.next().await;
    assert_eq!(*lock(&count), 2);
}

#[tokio::test]
async fn blocked_ops_are_refused() {
    let options =
        Options::default().with_blocked_ops(vec!["identity".to_owned(), "run_function".to_owned()]);
    let scheduler = scheduler_with("inproc://blocked", options).await;
    for (op, expected) in [
        ("identity", Some("ValueError")),
        ("run_function", Some("ValueError")),
        ("feed", Some("NotImplementedError")),
        ("ping", None),
    ] {
        let class = class_of_refusal(&scheduler, op).await;
        assert_eq!(class.as_deref(), expected, "{op}");
    }
}

#[tokio::test]
async fn subscribers_are_told_of_workers_that_join_and_leave() {
    let scheduler = scheduler("inproc://watched").await;
    let first = Worker::new(scheduler.address(), "inproc://watched-0").await;
    let mut channel = connect(scheduler.address()).await;
    let subscribe = Request::from(SubscribeWorkerStatus::default());
    let identity: Value = channel.call(&subscribe).await.expect("it replies");
    let known = identity.get("workers").expect("they are listed");
    let address = first.address.to_string();
    let about = known.get(&address).expect("it has joined");
    assert_eq!(about.get("metrics"), None);
    let second = Worker::new(scheduler.address(), "inproc://watched-1").await;
    let changes: Option<Value> = channel.receiver.receive().await.expect("it is open");
    let Some(Value::List(changes)) = changes else {
        panic!("{changes:?}");
    };
    let Value::List(change) = &changes[0] else {
        panic!("{changes:?}");
    };
    assert_eq!(change[0], Value::from("add"));
    let workers = change[1].get("workers").expect("they are listed");
    assert!(workers.get(&second.address.to_string()).is_some());
    first.kill().await;
    let changes: Option<Value> = channel.receiver.receive().await.expect("it is open");
    let expected = Value::list([Value::list(["remove", &address])]);
    assert_eq!(changes, Some(expected));
}
