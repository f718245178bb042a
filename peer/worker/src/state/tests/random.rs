//! Consistency of the state under random events.

use daskwire_testing::Random;

use super::*;

/// Handles random events: the state stays consistent, and is empty once all keys
/// are freed.
#[test]
fn random_events_leave_a_consistent_state() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut random = move |end: usize| random.below(end);
    let keys: Vec<String> = (0..12).map(|n| format!("k{n}")).collect();
    let peers = [A, B, HERE];
    for round in 0..300 {
        let mut worker = Worker::new(2);
        // One request at a time, or several to a peer
        worker.0.limits.transfer_total_len = [0, u64::MAX][round % 2];
        let nbytes = [10, 20_000_000][round / 2 % 2];
        worker.0.story.limit(20);
        let mut runs: Vec<Key> = Vec::new();
        let mut asked: Vec<(u64, Vec<Key>)> = Vec::new();
        let mut store: BTreeSet<Key> = BTreeSet::new();
        for _ in 0..200 {
            // Later tasks depend on earlier ones only, so there are no cycles.
            let index = random(keys.len());
            let key = keys[index].as_str();
            let holders = &peers[..random(3)];
            let event = match random(25) {
                23 if random(4) == 0 => WorkerInput::Disconnected,
                24 => WorkerInput::Registered {
                    returns: random(2) == 0,
                },
                // No scheduler sends messages then.
                0..=10 if !worker.0.is_connected() => WorkerInput::Search,
                0..=3 => {
                    // Some dependencies are listed twice.
                    let dependencies: Vec<(&str, &[&str])> = keys[..index]
                        .iter()
                        .chain(&keys[..index / 2])
                        .filter(|_| random(4) == 0)
                        .map(|key| (key.as_str(), holders))
                        .collect();
                    let run_id = i64::try_from(random(100)).expect("small");
                    let mut task = run(run_id, task_with(key, &dependencies));
                    task.nbytes.iter_mut().for_each(|(_, len)| *len = nbytes);
                    WorkerInput::FromScheduler(task.into())
                }
                4 => WorkerInput::FromScheduler(free(&[key]).into()),
                5 => WorkerInput::FromScheduler(remove_replicas(&[key]).into()),
                6 => WorkerInput::FromScheduler(acquire(&[(key, holders)]).into()),
                7 => WorkerInput::FromScheduler(refresh(&[(key, holders)]).into()),
                8 => WorkerInput::FromScheduler(ToWorker::StealRequest(StealRequest {
                    key: key.into(),
                    ..StealRequest::default()
                })),
                9 => WorkerInput::FromScheduler(remove_worker(peers[random(2)]).into()),
                10 if random(4) == 0 => WorkerInput::Stored(vec![(key.into(), description(1))]),
                10 => {
                    let new = ["running", "paused", "running"][random(3)];
                    WorkerInput::FromScheduler(status(new).into())
                }
                11 if !runs.is_empty() => {
                    let key = runs.swap_remove(random(runs.len()));
                    let failure = Box::new(Failure {
                        exception: Value::from("boom"),
                        traceback: Value::None,
                        exception_text: String::new(),
                        traceback_text: String::new(),
                    });
                    let is_good = random(3) != 0;
                    WorkerInput::Executed(Executed {
                        key,
                        outcome: if is_good {
                            Ok(description(1))
                        } else {
                            Err(failure)
                        },
                        start: Duration::ZERO,
                        stop: Duration::ZERO,
                        steps: Vec::new(),
                        thread: None,
                    })
                }
                14 if !runs.is_empty() => {
                    let lost = keys[..index].iter().map(|key| key.as_str().into());
                    WorkerInput::InputsLost {
                        key: runs.swap_remove(random(runs.len())),
                        lost: lost.collect(),
                    }
                }
                19 if !runs.is_empty() => {
                    let key = runs.swap_remove(random(runs.len()));
                    WorkerInput::Unsupported {
                        executed: failure(&key.to_string()),
                        reason: None,
                    }
                }
                15 => WorkerInput::Lost(vec![key.into()]),
                16 => WorkerInput::Paused(random(2) == 0),
                17 => WorkerInput::StoreFull(random(2) == 0),
                18 => WorkerInput::Watched(random(2) == 0),
                20 if !runs.is_empty() => WorkerInput::Seceded {
                    key: runs[random(runs.len())].clone(),
                    run_time: Duration::ZERO,
                },
                21 if !runs.is_empty() => WorkerInput::Rejoin(runs[random(runs.len())].clone()),
                22 if !runs.is_empty() => WorkerInput::Restarted(runs[random(runs.len())].clone()),
                12..=13 if !asked.is_empty() => {
                    let (request, keys) = asked.swap_remove(random(asked.len()));
                    let data = keys.into_iter().filter(|_| random(3) != 0);
                    let data = data.map(|key| (key, description(1))).collect();
                    let answer = match random(5) {
                        0 => Answer::Busy,
                        1 => Answer::Gone,
                        _ => Answer::Data(data),
                    };
                    WorkerInput::Fetched(Fetched {
                        request,
                        answer,
                        start: Duration::ZERO,
                        stop: Duration::ZERO,
                    })
                }
                _ => WorkerInput::Search,
            };
            let mut events = vec![event];
            while let Some(event) = events.pop() {
                match &event {
                    WorkerInput::Executed(Executed {
                        key,
                        outcome: Ok(_),
                        ..
                    }) => {
                        store.insert(key.clone());
                    }
                    WorkerInput::Fetched(Fetched {
                        answer: Answer::Data(data),
                        ..
                    })
                    | WorkerInput::Stored(data) => {
                        store.extend(data.iter().map(|(key, _)| key.clone()))
                    }
                    _ => {}
                }
                for action in worker.0.handle(Duration::ZERO, event) {
                    match action {
                        Action::Forget(key) => {
                            store.remove(&key);
                        }
                        Action::Execute(run) => {
                            assert!(!runs.contains(&run.key), "executes twice");
                            runs.push(run.key);
                        }
                        Action::Fetch { request, keys, .. } => asked.push((request, keys)),
                        // Timers may fire at any time, or after the end of this
                        // test.
                        Action::Wake { event, .. } if random(2) == 0 => events.push(*event),
                        _ => {}
                    }
                }
                worker.0.check();
                assert_eq!(store, worker.0.in_memory());
            }
            runs.retain(|key| worker.0.executing.contains_key(key));
        }
        // At the end, all keys are freed and all pending work completes.
        worker.event(WorkerInput::Registered { returns: true });
        worker.message(status("paused"));
        let all: Vec<&str> = keys.iter().map(String::as_str).collect();
        worker.free(&all);
        for key in worker.0.executing.keys().cloned().collect::<Vec<_>>() {
            worker.event(WorkerInput::Executed(Executed {
                key,
                outcome: Ok(description(1)),
                start: Duration::ZERO,
                stop: Duration::ZERO,
                steps: Vec::new(),
                thread: None,
            }));
        }
        while let Some(request) = worker.0.requests.values().next() {
            let peer = Arc::clone(&request.peer);
            worker.fetched(&peer, Answer::Gone);
        }
        worker.free(&all);
        assert_eq!(worker.stages(), "");
        assert_eq!(worker.0.free_resources["GPU"], 1.0);
    }
}
