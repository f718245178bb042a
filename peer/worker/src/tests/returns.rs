//! Workers that lose their connection, and register again.

use std::sync::atomic::AtomicU16;
use std::sync::mpsc as sync_mpsc;

use daskwire_messages::protocol::RegisterWorker;

use super::*;

/// How a scheduler replies to a worker that registers again.
enum Answer {
    Returns(bool),
    Refused(&'static str),
}

impl Scheduler {
    /// Answers the requests of a worker until it is registered again, or refused.
    async fn register_again(&self, answer: Answer) -> (RegisterWorker, Stream) {
        let mut stream = self.accept().await;
        let mut rpc = self.accept().await;
        let asked = rpc.receiver.receive::<Request>().await;
        assert!(matches!(asked, Ok(Some(Request::Versions(_)))), "{asked:?}");
        let versions = Value::dict([("host", Value::Dict([].into()))]);
        rpc.sender.send(&versions).await.expect("peer listens");
        let register = stream.receiver.receive::<Request>().await;
        let Ok(Some(Request::RegisterWorker(register))) = register else {
            panic!("{register:?}")
        };
        let reply = RegisterWorkerReply {
            time: Some(self.time()),
            heartbeat_interval: Some(600.0),
            ..RegisterWorkerReply::default()
        };
        let reply = match answer {
            Answer::Returns(returns) => RegisterWorkerReply {
                status: ReplyStatus::Ok,
                returns: returns.then_some(true),
                ..reply
            },
            Answer::Refused(reason) => RegisterWorkerReply {
                status: ReplyStatus::Error,
                message: Some(reason.to_owned()),
                ..reply
            },
        };
        stream.sender.send(&reply).await.expect("peer listens");
        let is_refused = reply.status != ReplyStatus::Ok;
        tokio::spawn(async move {
            if !is_refused {
                let closed = rpc.receiver.receive::<Request>().await;
                drop((rpc, closed));
            }
        });
        let stream = Stream {
            channel: stream,
            received: VecDeque::new(),
        };
        (register, stream)
    }
}

/// A worker with a function that ends when the test says so, and how to say it.
fn patient(scheduler: &Scheduler) -> (Builder, sync_mpsc::Sender<()>) {
    let (go, waiting) = sync_mpsc::channel();
    let waiting = Mutex::new(waiting);
    let functions = Functions::builtins().function("wait", move |n: i64| {
        let waiting = waiting.lock().expect("no panic");
        waiting.recv().expect("the test goes on");
        n
    });
    let builder = scheduler
        .worker("w")
        .functions(functions)
        .reconnect_timeout(Duration::from_secs(30));
    (builder, go)
}

fn kinds(register: &RegisterWorker) -> String {
    format!("{:?}", register.extra_information.get("daskwire"))
}

async fn disconnected(worker: &Worker) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while worker.shared.machine().state.is_connected() {
        assert!(Instant::now() < deadline, "it does not notice");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

// ROLES SCHEDULER-17
#[tokio::test]
async fn returns_with_its_data_and_finishes_its_tasks() {
    for scheme in ["inproc", "tcp"] {
        let scheduler = Scheduler::new(scheme).await;
        let (builder, go) = patient(&scheduler);
        let (worker, mut stream) = scheduler.start(builder).await;
        stream
            .compute(&Task::new("x", "operator.add", [1, 2]))
            .await;
        stream.finished().await;
        for key in ["ends", "runs", "waits"] {
            stream.compute(&Task::new(key, "native:wait", [3])).await;
        }
        while worker.shared.machine().state.executing().count() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(stream);
        disconnected(&worker).await;
        // Others still fetch its data.
        let mut peer = asking(&worker).await;
        let data: DataReply = ask(&mut peer, get_data(&["x"])).await;
        assert_eq!(data.data.expect("data").len(), 1);
        acknowledge(&mut peer).await;
        go.send(()).expect("a task waits");
        while worker.keys().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (register, mut stream) = scheduler.register_again(Answer::Returns(true)).await;
        assert_eq!(register.address, worker.address());
        assert!(
            kinds(&register).contains("returning"),
            "{}",
            kinds(&register)
        );
        let FromWorker::Returned(part) = stream.next_message().await else {
            panic!("nothing comes before");
        };
        assert_eq!(part.running.len(), 2);
        assert!(part.running.iter().all(|run| run.run_id == 5));
        assert!(part.results.is_empty() && !part.is_last);
        let FromWorker::Returned(part) = stream.next_message().await else {
            panic!("nothing comes before");
        };
        assert_eq!(part.results[0].key, "x".into());
        assert!(part.results[0].nbytes > 0 && part.is_last);
        let ended = stream.finished().await;
        assert!(stream.next_message().await.op() == "worker-status-change");
        go.send(()).expect("a task waits");
        let later = stream.finished().await;
        let mut both = [ended.key.to_string(), later.key.to_string()];
        both.sort_unstable();
        assert_eq!(both, ["ends", "runs"]);
        stream
            .compute(&Task::new("new", "operator.add", [1, 2]))
            .await;
        assert_eq!(stream.finished().await.key, "new".into());
        worker.close().await;
    }
}

#[tokio::test]
async fn reports_its_data_to_a_scheduler_that_does_not_take_it() {
    let scheduler = Scheduler::new("inproc").await;
    let (builder, go) = patient(&scheduler);
    let (worker, mut stream) = scheduler.start(builder).await;
    stream
        .compute(&Task::new("x", "operator.add", [1, 2]))
        .await;
    stream.finished().await;
    stream.compute(&Task::new("y", "native:wait", [3])).await;
    while worker.shared.machine().state.executing().count() < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(stream);
    let (_, mut stream) = scheduler.register_again(Answer::Returns(false)).await;
    match stream.next_message().await {
        FromWorker::AddKeys(message) => assert_eq!(message.keys.0, ["x".into()]),
        other => panic!("{other:?}"),
    }
    assert!(stream.next_message().await.op() == "worker-status-change");
    let replicas = daskwire_messages::protocol::RemoveReplicas {
        keys: ["x"].into_iter().collect(),
        ..Default::default()
    };
    stream.send([ToWorker::from(replicas)]).await;
    assert_eq!(stream.next_message().await.op(), "release-worker-data");
    go.send(()).expect("a task waits");
    stream
        .compute(&Task::new("new", "operator.add", [1, 2]))
        .await;
    assert_eq!(stream.finished().await.key, "new".into());
    while worker.shared.machine().state.executing().count() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(worker.keys(), ["new".into()]);
}

#[tokio::test]
async fn tries_again_while_its_name_is_taken_and_ends_if_it_is_not_wanted() {
    let scheduler = Scheduler::new("inproc").await;
    let builder = scheduler
        .worker("w")
        .reconnect_timeout(Duration::from_secs(30));
    let (worker, stream) = scheduler.start(builder).await;
    drop(stream);
    for reason in ["name taken, w", "Worker already exists tcp://a:1"] {
        scheduler.register_again(Answer::Refused(reason)).await;
    }
    let (_, stream) = scheduler.register_again(Answer::Returns(true)).await;
    drop(stream);
    scheduler
        .register_again(Answer::Refused("no workers here"))
        .await;
    let ended = worker.ended().await;
    assert!(matches!(ended, Ended::Lost(_)), "{ended}");
}

#[tokio::test(start_paused = true)]
async fn ends_after_the_time_or_on_request() {
    let scheduler = Scheduler::new("inproc").await;
    let builder = scheduler
        .worker("w")
        .reconnect_timeout(Duration::from_secs(7));
    let (worker, stream) = scheduler.start(builder).await;
    // Nobody answers.
    drop(stream);
    let lost = tokio::time::Instant::now();
    let ended = worker.ended().await;
    assert!(matches!(ended, Ended::Lost(_)), "{ended}");
    let after = lost.elapsed().as_secs_f64();
    assert!((6.5..8.5).contains(&after), "{after}");

    let scheduler = Scheduler::new("inproc").await;
    let builder = scheduler
        .worker("w")
        .reconnect_timeout(Duration::from_secs(3600));
    let (worker, stream) = scheduler.start(builder).await;
    drop(stream);
    while worker.shared.machine().state.is_connected() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Its data cannot be handed over.
    let asked = tokio::time::Instant::now();
    assert!(worker.retire().await.is_err());
    assert!(matches!(worker.ended().await, Ended::Closed));
    assert!(
        asked.elapsed() < Duration::from_secs(30),
        "{:?}",
        asked.elapsed()
    );
}

#[tokio::test]
async fn looks_for_the_scheduler_before_each_attempt() {
    let scheduler = Scheduler::new("tcp").await;
    let next = Scheduler::new("tcp").await;
    let asked = Arc::new(AtomicU16::new(0));
    let (count, address) = (Arc::clone(&asked), next.address.clone());
    let builder = scheduler
        .worker("w")
        .reconnect_timeout(Duration::from_secs(30))
        .find_scheduler(move || {
            // The first time, the file is not written yet.
            let is_later = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 0;
            is_later.then(|| address.clone())
        });
    let (worker, stream) = scheduler.start(builder).await;
    drop((stream, scheduler));
    let (register, mut stream) = next.register_again(Answer::Returns(true)).await;
    assert_eq!(register.address, worker.address());
    assert_eq!(stream.next_message().await.op(), "returned");
    assert!(asked.load(std::sync::atomic::Ordering::Relaxed) >= 2);
    assert_eq!(worker.shared.scheduler(), next.address);
}
