//! Freed, stolen, replicated and lost data.

use super::*;

#[test]
fn keys_are_freed_in_any_state() {
    let mut worker = Worker::new(1);
    let batch = vec![
        task("ready").into(),
        task("executing").into(),
        task_with("waiting", &[("flight", &[A]), ("missing", &[])]).into(),
        task_with("waiting too", &[("fetch", &[A])]).into(),
        status("paused").into(),
    ];
    worker.0.limits.transfer_count = 1;
    worker.batch(vec![task_with("w", &[("flight", &[A])]).into()]);
    worker.batch(batch);
    worker.message(status("running"));
    worker.message(task("executing"));
    assert_eq!(
        worker.stages(),
        "waiting 3, ready 1, executing 1, fetch 1, flight 1, missing 1"
    );
    let keys = ["waiting", "waiting too", "w", "ready", "executing"];
    assert_eq!(worker.free(&keys), ["cancel executing"]);
    assert!(!worker.0.is_wanted(&"executing".into()));
    assert_eq!(worker.stages(), "executing 1, flight 1");
    assert_eq!(worker.received(A, &["flight"]), ["forget flight"]);
    assert_eq!(worker.executed("executing"), ["forget executing"]);
    assert_eq!(worker.stages(), "");
    assert_eq!(worker.0.peers.iter().count(), 0);
}

#[test]
fn task_freed_while_executing_may_be_requested_again() {
    let mut worker = Worker::new(1);
    worker.message(run(1, task("x")));
    worker.free(&["x"]);
    assert_eq!(worker.steal("x"), ["steal x: cancelled"]);
    assert_eq!(
        worker.message(run(2, task("x"))),
        [""; 0],
        "already executing"
    );
    assert_eq!(worker.executed("x"), ["forget x", "execute x"]);
    assert_eq!(worker.executed("x"), ["finished x run 2 (compute)"]);
    // As a dependency of another task
    worker.message(task("y"));
    worker.free(&["y"]);
    worker.message(task_with("z", &[("y", &[A])]));
    assert_eq!(worker.executed("y"), ["add-keys y", "execute z with y"]);
    worker.executed("z");
    worker.message(task("v"));
    worker.free(&["v"]);
    worker.message(task_with("w", &[("v", &[A])]));
    assert_eq!(worker.failed("v"), ["where is v", "after 1s: search"]);
}

#[test]
fn a_task_that_has_seceded_is_reported_again_to_who_requests_it_again() {
    let mut worker = Worker::new(1);
    worker.message(run(1, task("x")));
    let seceded = WorkerInput::Seceded {
        key: "x".into(),
        run_time: Duration::from_secs(3),
    };
    assert_eq!(
        worker.event(seceded.clone()),
        ["long x run 1 after Some(3.0)"]
    );
    worker.free(&["x"]);
    let again = worker.message(run(2, task("x")));
    assert_eq!(again, ["long x run 2 after None"]);
    let again = worker.message(run(3, task("x")));
    assert_eq!(again, ["long x run 3 after None"]);
    // A run is reported once.
    assert_eq!(worker.executed("x"), ["forget x", "execute x"]);
    assert_eq!(worker.event(seceded), [""; 0]);
    assert_eq!(worker.executed("x"), ["finished x run 3 (compute)"]);
}

#[test]
fn a_task_that_has_seceded_counts_again_once_it_restarts() {
    let mut worker = Worker::new(1);
    worker.message(task("x"));
    let run_time = Duration::from_secs(3);
    let seceded = |key: &str| WorkerInput::Seceded {
        key: key.into(),
        run_time,
    };
    worker.event(seceded("x"));
    assert_eq!(
        worker.event(WorkerInput::Restarted("x".into())),
        ["rejoin x"]
    );
    assert_eq!(worker.message(task("y")), [""; 0]);
    assert_eq!(worker.event(seceded("x")), ["execute y"]);
    // A task that was freed is not restarted.
    assert!(worker.0.is_computing(&"x".into()));
    worker.free(&["x"]);
    assert!(!worker.0.is_computing(&"x".into()));
    assert!(!worker.0.is_computing(&"unknown".into()));
}

#[test]
fn tasks_that_have_seceded_rejoin_before_others_start() {
    let mut worker = Worker::new(1);
    let rejoin = |key: &str| WorkerInput::Rejoin(key.into());
    for key in ["x", "y"] {
        worker.message(task(key));
        worker.event(WorkerInput::Seceded {
            key: key.into(),
            run_time: Duration::ZERO,
        });
    }
    worker.message(task("runs"));
    worker.message(task("next"));
    assert_eq!(worker.event(rejoin("x")), [""; 0]);
    assert_eq!(worker.event(rejoin("y")), [""; 0]);
    assert_eq!(
        worker.executed("runs"),
        ["finished runs run 0 (compute)", "rejoin x"]
    );
    // Also on a worker that starts no tasks.
    worker.message(status("paused"));
    assert_eq!(
        worker.executed("x"),
        ["finished x run 0 (compute)", "rejoin y"]
    );
    worker.message(status("running"));
    assert_eq!(
        worker.executed("y"),
        ["finished y run 0 (compute)", "execute next"]
    );
    // Tasks that have not seceded do not wait.
    assert_eq!(worker.event(rejoin("next")), ["rejoin next"]);
    assert_eq!(worker.event(rejoin("unknown")), ["rejoin unknown"]);
}

#[test]
fn fetches_freed_data_that_local_tasks_need() {
    let mut worker = Worker::new(1);
    worker.message(task("a"));
    worker.executed("a");
    let batch = vec![
        task("runs").into(),
        task_with("x", &[("a", &[HERE])]).into(),
    ];
    assert_eq!(worker.batch(batch), ["execute x with a"]);
    worker.message(task_with("y", &[("a", &[HERE])]));
    assert_eq!(worker.steal("y"), ["steal y: ready"]);
    worker.message(task_with("y", &[("a", &[HERE])]));
    // The executing task holds its input; the ready one does not.
    assert_eq!(
        worker.free(&["a"]),
        [
            "forget a",
            "released a for free",
            "where is a",
            "after 1s: search"
        ]
    );
    assert_eq!(worker.steal("y"), ["steal y: waiting"]);
    assert_eq!(worker.stages(), "ready 1, executing 1");
}

#[test]
fn answers_steal_requests_with_task_states() {
    let mut worker = Worker::new(1);
    assert_eq!(worker.steal("unknown"), ["steal unknown: nil"]);
    worker.message(task("runs"));
    assert_eq!(worker.steal("runs"), ["steal runs: executing"]);
    worker.message(task("ready"));
    assert_eq!(worker.steal("ready"), ["steal ready: ready"]);
    assert_eq!(worker.steal("ready"), ["steal ready: nil"], "given back");
    worker.message(task_with("waits", &[("a", &[A])]));
    assert_eq!(worker.steal("a"), ["steal a: nil"]);
    assert_eq!(worker.steal("waits"), ["steal waits: waiting"]);
    worker.executed("runs");
    assert_eq!(worker.steal("runs"), ["steal runs: memory"]);
    worker.message(task("fails"));
    worker.failed("fails");
    assert_eq!(worker.steal("fails"), ["steal fails: nil"]);
}

#[test]
fn replicas_are_fetched_and_removed_unless_they_are_needed() {
    let mut worker = Worker::new(1);
    assert_eq!(worker.message(acquire(&[("a", &[A])])), ["fetch a from A"]);
    assert_eq!(worker.received(A, &["a"]), ["add-keys a"]);
    assert_eq!(
        worker.message(acquire(&[("a", &[A])])),
        [""; 0],
        "already in memory"
    );
    worker.message(task("runs"));
    worker.message(task_with("x", &[("a", &[HERE])]));
    assert_eq!(
        worker.message(remove_replicas(&["a", "unknown"])),
        ["add-keys a"]
    );
    worker.free(&["x"]);
    assert_eq!(
        worker.message(remove_replicas(&["a"])),
        ["forget a", "released a for amm"]
    );
    // The scheduler is asked for a key without holders until the key is freed.
    assert_eq!(
        worker.message(acquire(&[("b", &[])])),
        ["where is b", "after 1s: search"]
    );
    worker.free(&["b"]);
    assert_eq!(worker.event(WorkerInput::Search), [""; 0]);
    assert_eq!(worker.stages(), "executing 1");
}

#[test]
fn tasks_wait_for_lost_inputs_until_they_are_back() {
    let mut worker = Worker::new(1);
    worker.stored("a");
    worker.stored("b");
    worker.message(task("runs"));
    worker.message(task_with("x", &[("a", &[HERE]), ("b", &[HERE])]));
    let stimulus = "lost-data-1.5";
    assert_eq!(
        worker.event(WorkerInput::Lost(vec!["a".into(), "unknown".into()])),
        [
            "forget a".to_owned(),
            format!("released a for {stimulus}"),
            "where is a".to_owned(),
            "after 1s: search".to_owned()
        ]
    );
    assert_eq!(
        worker.stages(),
        "waiting 1, executing 1, memory 1, missing 1"
    );
    assert_eq!(worker.message(refresh(&[("a", &[A])])), ["fetch a from A"]);
    worker.executed("runs");
    assert_eq!(
        worker.received(A, &["a"]),
        ["add-keys a", "execute x with a b"]
    );
}

#[test]
fn a_task_whose_data_is_lost_is_given_back() {
    let mut worker = Worker::new(1);
    worker.stored("a");
    worker.message(task_with("x", &[("a", &[HERE])]));
    let inputs_lost = |key: &str| WorkerInput::InputsLost {
        key: key.into(),
        lost: vec!["a".into()],
    };
    assert_eq!(
        worker.event(inputs_lost("x")),
        ["forget a", "released a for lost-data-1.5", "reschedule x"]
    );
    assert_eq!(worker.stages(), "");
    // A task that was freed while it ran is not returned.
    worker.stored("a");
    worker.message(task_with("x", &[("a", &[HERE])]));
    worker.free(&["x"]);
    assert_eq!(
        worker.event(inputs_lost("x")),
        ["forget a", "released a for lost-data-1.5"]
    );
    assert_eq!(worker.stages(), "");
}

#[test]
fn a_task_may_ask_to_be_assigned_again() {
    let mut worker = Worker::new(1);
    worker.message(task("x"));
    let now = Duration::from_millis(1500);
    let actions = worker.0.handle(now, WorkerInput::Reschedule("x".into()));
    let [Action::Send(message)] = &*actions else {
        panic!("{actions:?}")
    };
    let FromWorker::Reschedule(message) = &**message else {
        panic!("{message:?}")
    };
    assert_eq!(
        (&message.key, &*message.stimulus_id),
        (&"x".into(), "reschedule-1.5")
    );
    assert_eq!(worker.stages(), "");
}

// ROLES WORKER-1, WORKER-7
#[test]
fn tasks_that_cannot_run_here_are_given_back() {
    let mut worker = Worker::new(1);
    let pauses = [5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000];
    for pause in pauses.map(Duration::from_millis) {
        assert_eq!(worker.message(task("x")), ["execute x"]);
        let waking = format!("after {pause:?}: give back x");
        assert_eq!(worker.unsupported("x"), [waking]);
        assert_eq!(worker.stages(), "waiting 1");
        // Meanwhile others run.
        assert_eq!(worker.message(task("y")), ["execute y"]);
        worker.executed("y");
        worker.free(&["y"]);
        assert_eq!(
            worker.event(WorkerInput::GiveBack("x".into())),
            ["status paused", "reschedule x", "status running"]
        );
        assert_eq!(worker.stages(), "");
    }
}

#[test]
fn a_task_to_give_back_may_be_freed_or_stolen() {
    let mut worker = Worker::new(1);
    for key in ["freed", "stolen"] {
        worker.message(task(key));
        worker.unsupported(key);
    }
    worker.free(&["freed"]);
    assert_eq!(worker.steal("stolen"), ["steal stolen: waiting"]);
    for key in ["freed", "stolen"] {
        assert_eq!(worker.event(WorkerInput::GiveBack(key.into())), [""; 0]);
    }
    // Freed before it is found that the task cannot run.
    worker.message(task("x"));
    worker.free(&["x"]);
    assert_eq!(worker.unsupported("x"), [""; 0]);
    assert_eq!(worker.stages(), "");
    // While the worker is paused, its status stays so.
    worker.message(task("y"));
    worker.message(status("paused"));
    worker.unsupported("y");
    assert_eq!(
        worker.event(WorkerInput::GiveBack("y".into())),
        ["reschedule y"]
    );
}

#[test]
fn no_result_is_wanted_once_the_worker_leaves() {
    let mut worker = Worker::new(1);
    worker.message(task("x"));
    assert!(worker.0.is_wanted(&"x".into()));
    worker.event(WorkerInput::Close);
    assert!(!worker.0.is_wanted(&"x".into()));
}
