//! The stories of tasks.

use super::*;

/// The events of these keys, as strings.
fn story(worker: &Worker, keys: &[&str]) -> Vec<String> {
    let keys: Keys = keys.iter().copied().collect();
    let events = worker.0.story(&keys);
    events
        .map(|event| format!("{}: {event}", event.key))
        .collect()
}

#[test]
fn the_story_of_a_task_names_its_inputs_and_their_holders() {
    let mut worker = Worker::new(1);
    let compute = ComputeTask {
        stimulus_id: "client-1".to_owned(),
        ..task_with("z", &[("y", &[A])])
    };
    worker.message(compute);
    worker.fetched(A, Answer::Busy);
    worker.event(WorkerInput::PeerAvailable(A.into()));
    worker.fetched(A, Answer::Gone);
    worker.message(RefreshWhoHas {
        stimulus_id: "scheduler-2".to_owned(),
        ..refresh(&[("y", &[B])])
    });
    worker.received(B, &["y"]);
    worker.executed("z");
    worker.event(WorkerInput::Spilled {
        key: "z".into(),
        len: 28,
    });
    worker.free(&["z"]);
    assert_eq!(
        story(&worker, &["y", "z"]),
        [
            "z: compute-task while released (client-1)",
            "y: released -> missing (client-1)",
            "y: missing -> fetch (client-1)",
            "z: released -> waiting (client-1)",
            "y: fetch -> flight (ensure-communicating-1.5)",
            "y: requested from tcp://127.0.0.1:10 (ensure-communicating-1.5)",
            "y: not sent by tcp://127.0.0.1:10: it is busy (gather-dep-busy-1.5)",
            "y: flight -> fetch (gather-dep-busy-1.5)",
            "y: fetch -> flight (ensure-communicating-1.5)",
            "y: requested from tcp://127.0.0.1:10 (ensure-communicating-1.5)",
            "y: not sent by tcp://127.0.0.1:10: it cannot be reached \
             (gather-dep-network-failure-1.5)",
            "y: flight -> missing (gather-dep-network-failure-1.5)",
            "y: missing -> fetch (scheduler-2)",
            "y: fetch -> flight (ensure-communicating-1.5)",
            "y: requested from tcp://127.0.0.1:11 (ensure-communicating-1.5)",
            "y: flight -> memory (gather-dep-success-1.5)",
            "z: waiting -> ready (gather-dep-success-1.5)",
            "z: ready -> executing (ensure-computing-1.5)",
            "z: executing -> memory (task-finished-1.5)",
            "z: spilled, 28 bytes (spill-1.5)",
            "z: memory -> forgotten (free)",
        ]
    );
    assert_eq!(
        story(&worker, &["scheduler-2"]),
        ["y: missing -> fetch (scheduler-2)"]
    );
}

#[test]
fn a_stuck_task_keeps_its_story_among_many_others() {
    let mut worker = Worker::new(1);
    worker.0.story.limit(100);
    worker.message(task_with("stuck", &[("a", &[])]));
    for n in 0..100 {
        let key = format!("k-{n}");
        worker.message(task(&key));
        worker.executed(&key);
        worker.free(&[&key]);
    }
    let own = [
        "stuck: compute-task while released ()",
        "stuck: released -> waiting ()",
    ];
    assert_eq!(story(&worker, &["stuck"]), own);
    let first = |key: &str| story(&worker, &[key]).first().cloned();
    assert_eq!(first("a").as_deref(), Some("a: released -> missing ()"));
    assert_eq!(first("k-0"), None);
    // Once the task is done, its story ages like any other.
    worker.stored("a");
    worker.executed("stuck");
    assert_eq!(
        story(&worker, &["stuck"])[0],
        "stuck: waiting -> ready (update-data-1.5)"
    );
}

#[test]
fn steps_of_tasks_are_reported_while_they_are_watched() {
    let mut worker = Worker::new(1);
    assert_eq!(worker.message(task("x")), ["execute x"]);
    assert_eq!(worker.event(WorkerInput::Watched(true)), [""; 0]);
    assert_eq!(
        worker.executed("x"),
        [
            "x executing -> memory (task-finished-1.5)",
            "finished x run 0 (compute)"
        ]
    );
    assert_eq!(worker.event(WorkerInput::Watched(false)), [""; 0]);
    assert_eq!(worker.free(&["x"]), ["forget x", "released x for free"]);
}
