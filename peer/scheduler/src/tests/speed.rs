//! Timings, which are printed but not checked, because other tests run at the
//! same time.

use daskwire_messages::protocol::WorkerStatus;
use std::time::Instant;

use super::*;

async fn journeys(at: &str, worker: &str) {
    const COUNT: usize = 2000;
    let scheduler = scheduler(at).await;
    let _worker = Worker::new(scheduler.address(), worker).await;
    let mut client = Client::new(scheduler.address(), "me").await;
    let mut times = Vec::new();
    for number in 0..COUNT {
        let key = format!("x-{number}");
        let task = Task::new(key.as_str(), "operator.add", [1, 2]);
        let start = Instant::now();
        client.submit([task], &[&key]);
        client.wait(&[&key]).await;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    assert_eq!(times.len(), COUNT);
    println!(
        "{at}: half of the journeys take less than {:?}",
        times[COUNT / 2]
    );
}

async fn ten_thousand(at: &str, worker: &str) {
    const COUNT: usize = 10_000;
    let scheduler = scheduler(at).await;
    let _worker = Worker::new(scheduler.address(), worker).await;
    let mut client = Client::new(scheduler.address(), "me").await;
    let names: Vec<String> = (0..COUNT).map(|number| format!("t-{number}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let tasks = keys
        .iter()
        .map(|key| Task::new(*key, "operator.add", [1, 2]));
    let start = Instant::now();
    client.submit(tasks, &keys);
    let mut seen = std::collections::HashSet::new();
    while seen.len() < COUNT {
        match client.next().await {
            ToClient::KeyInMemory(message) => assert!(seen.insert(message.key)),
            other => panic!("{other:?}"),
        }
    }
    println!("{at}: {COUNT} tasks take {:?}", start.elapsed());
}

/// The state machine alone, without comms and encoding.
#[test]
fn ten_thousand_tasks_by_the_state_alone() {
    const COUNT: usize = 10_000;
    let mut state = State::new(Policy::default());
    let (client, worker) = (ClientId(1), WorkerId(1));
    let registration = RegisterWorker {
        extra_information: rust_worker(),
        address: "tcp://10.0.0.1:1".to_owned(),
        status: WorkerStatus::Running,
        nthreads: 4,
        ..RegisterWorker::default()
    };
    let joined = [
        SchedulerInput::WorkerJoined {
            id: worker,
            registration: Box::new(registration),
        },
        SchedulerInput::ClientJoined {
            id: client,
            name: "me".to_owned(),
            versions: Value::None,
            returning: None,
        },
    ];
    for event in joined {
        assert_ne!(state.handle(Duration::ZERO, event).len(), 0);
    }
    let names: Vec<String> = (0..COUNT).map(|number| format!("t-{number}")).collect();
    let graph: Graph = names
        .iter()
        .map(|key| Task::new(key.as_str(), "operator.add", [1, 2]))
        .collect();
    let message = UpdateGraph {
        expr_ser: graph.to_expression().expect("plain values"),
        keys: names.iter().map(String::as_str).collect(),
        ..UpdateGraph::default()
    };
    let start = Instant::now();
    let submission = Submission::read(message).expect("a graph");
    let read = start.elapsed();
    let start = Instant::now();
    let submitted = SchedulerInput::Submitted(client, submission);
    let mut actions = state.handle(Duration::ZERO, submitted);
    while state.is_pending() {
        actions.extend(state.proceed(Duration::ZERO));
    }
    let submitted = start.elapsed();
    let start = Instant::now();
    let mut count = 0;
    while !actions.is_empty() {
        for action in core::mem::take(&mut actions) {
            if let Action::ToWorker(_, ToWorker::ComputeTask(task)) = action {
                count += 1;
                let message = TaskFinished {
                    key: task.key,
                    run_id: task.run_id,
                    ..TaskFinished::default()
                };
                let finished = SchedulerInput::FromWorker(worker, message.into());
                actions.extend(state.handle(Duration::ZERO, finished));
            }
        }
    }
    assert_eq!(count, COUNT);
    let done = start.elapsed();
    println!(
        "the state alone: {COUNT} tasks are read in {read:?}, submitted in {submitted:?}, done in {done:?}"
    );
}

#[tokio::test]
async fn journeys_in_memory() {
    journeys("inproc://speed", "inproc://speed-1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn journeys_over_tcp() {
    journeys("tcp://127.0.0.1:0", "tcp://127.0.0.1:0").await;
}

#[tokio::test]
async fn ten_thousand_tasks_in_memory() {
    ten_thousand("inproc://many", "inproc://many-1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_tasks_over_tcp() {
    ten_thousand("tcp://127.0.0.1:0", "tcp://127.0.0.1:0").await;
}
