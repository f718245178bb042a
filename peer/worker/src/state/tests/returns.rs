//! The loss of the connection to the scheduler, and the return.

use super::*;

/// What the worker says that it returns with, and what follows.
fn returned(actions: &[Action]) -> Vec<String> {
    let messages = actions.iter().filter_map(|action| match action {
        Action::Send(message) => Some((&**message, action)),
        _ => None,
    });
    let lines = messages.map(|(message, action)| match message {
        FromWorker::Returned(part) => {
            let results = part.results.iter();
            let results = results.map(|result| format!("{}:{}", result.key, result.nbytes));
            let running = part.running.iter();
            let running = running.map(|run| format!("{}#{}", run.key, run.run_id));
            let actors = part.actors.iter().map(|key| format!("actor {key}"));
            let all: Vec<String> = results.chain(running).chain(actors).collect();
            let is_last = if part.is_last { "last" } else { "more" };
            format!("returned {}, {is_last}", all.join(" "))
        }
        _ => show(action),
    });
    lines.collect()
}

impl Worker {
    fn raw(&mut self, event: WorkerInput) -> Vec<Action> {
        let actions = self.0.handle(Duration::from_secs(5), event);
        self.0.check();
        actions
    }

    fn register(&mut self, returns: bool) -> Vec<String> {
        returned(&self.raw(WorkerInput::Registered { returns }))
    }
}

#[test]
fn drops_what_it_has_not_begun_and_keeps_the_rest() {
    let mut worker = Worker::new(2);
    worker.message(run(1, task("done")));
    worker.executed("done");
    worker.message(run(2, task("a")));
    worker.message(run(3, task("b")));
    worker.message(run(4, task("ready")));
    worker.message(run(
        5,
        task_with("waiting", &[("far", &[A]), ("lost", &[])]),
    ));
    worker.message(run(6, task_with("after", &[("a", &[])])));
    worker.message(acquire(&[("copy", &[B])]));
    let dropped = worker.event(WorkerInput::Disconnected);
    assert!(dropped.is_empty(), "{dropped:?}");
    // Requests for data that are under way are not waited for.
    assert_eq!(worker.stages(), "executing 2, memory 1, flight 2");
    for peer in [A, B] {
        let key = if peer == A { "far" } else { "copy" };
        let data = Answer::Data(vec![(key.into(), description(7))]);
        assert_eq!(worker.fetched(peer, data), [format!("forget {key}")]);
    }
    assert!(worker.executed("a").is_empty());
    assert_eq!(worker.stages(), "executing 1, memory 2");
    assert_eq!(
        worker.register(true),
        [
            "returned a#2 b#3, more",
            "returned done:28, last",
            "finished a run 2 (compute)",
            "status running",
        ]
    );
    assert_eq!(worker.executed("b"), ["finished b run 3 (compute)"]);
    // Nothing is reported twice.
    assert!(worker.register(true).is_empty());
}

#[test]
fn says_that_it_has_nothing() {
    let mut worker = Worker::new(1);
    worker.event(WorkerInput::Disconnected);
    assert_eq!(worker.register(true), ["returned , last", "status running"]);
}

#[test]
fn reports_replicas_to_a_scheduler_that_knows_no_returns() {
    let mut worker = Worker::new(2);
    worker.message(run(1, task("done")));
    worker.executed("done");
    worker.message(run(2, task("a")));
    worker.message(run(3, task("b")));
    worker.message(run(4, task("bad")));
    worker.event(WorkerInput::Disconnected);
    worker.executed("a");
    let actions = worker.raw(WorkerInput::Registered { returns: false });
    let shown: Vec<String> = actions.iter().map(show).collect();
    assert_eq!(shown, ["cancel b", "add-keys a done", "status running"]);
    assert_eq!(worker.executed("b"), ["forget b"]);
    assert_eq!(worker.stages(), "memory 2");
}

#[test]
fn a_failure_is_reported_later() {
    for returns in [true, false] {
        let mut worker = Worker::new(2);
        worker.message(run(1, task("early")));
        worker.message(run(2, task("late")));
        worker.event(WorkerInput::Executed(failure("early")));
        worker.event(WorkerInput::Disconnected);
        // The scheduler runs the other task again, if it was not told.
        assert_eq!(worker.stages(), "executing 1");
        assert!(
            worker
                .event(WorkerInput::Executed(failure("late")))
                .is_empty()
        );
        let reported = worker.register(returns);
        match returns {
            true => assert_eq!(
                reported,
                [
                    "returned late#2, last",
                    "erred late run 2",
                    "status running"
                ]
            ),
            false => assert_eq!(reported, ["status running"]),
        }
        worker.free(&["late"]);
        assert_eq!(worker.stages(), "");
    }
}

#[test]
fn a_result_that_was_lost_meanwhile_is_not_reported() {
    let mut worker = Worker::new(1);
    worker.message(run(1, task("a")));
    worker.event(WorkerInput::Disconnected);
    worker.executed("a");
    assert_eq!(
        worker.event(WorkerInput::Lost(vec!["a".into()])),
        ["forget a"]
    );
    assert_eq!(worker.register(true), ["returned , last", "status running"]);
}

#[test]
fn a_run_that_was_asked_for_again_or_freed_does_not_go_on() {
    let mut worker = Worker::new(2);
    worker.message(run(1, task("again")));
    worker.message(run(2, task("freed")));
    worker.free(&["again", "freed"]);
    worker.message(run(3, task("again")));
    worker.event(WorkerInput::Disconnected);
    assert_eq!(worker.register(true), ["returned , last", "status running"]);
    assert_eq!(worker.executed("again"), ["forget again"]);
    assert_eq!(worker.executed("freed"), ["forget freed"]);
}

#[test]
fn a_task_that_has_seceded_is_reported_as_such_again() {
    let mut worker = Worker::new(1);
    worker.message(run(1, task("a")));
    worker.event(WorkerInput::Seceded {
        key: "a".into(),
        run_time: Duration::from_secs(1),
    });
    worker.event(WorkerInput::Disconnected);
    let reported = worker.register(true);
    assert_eq!(reported[0], "returned a#1, last");
    assert!(
        reported[1].starts_with("long a run 1 after Some("),
        "{reported:?}"
    );
    assert_eq!(reported.len(), 3);
}

#[test]
fn an_actor_is_reported_as_one_and_the_status_is_that_of_now() {
    let mut worker = Worker::new(1);
    worker.message(ComputeTask {
        actor: true,
        ..run(1, task("a"))
    });
    worker.executed("a");
    worker.message(status("closing_gracefully"));
    worker.event(WorkerInput::Disconnected);
    worker.event(WorkerInput::Paused(true));
    assert_eq!(
        worker.register(true),
        ["returned a:28 actor a, last", "status paused"]
    );
}

#[test]
fn says_what_it_has_in_parts() {
    let mut worker = Worker::new(1);
    let keys: Vec<String> = (0..5000).map(|n| format!("k-{n:04}")).collect();
    let data = keys
        .iter()
        .map(|key| (Key::from(key.as_str()), description(1)));
    worker.event(WorkerInput::Stored(data.collect()));
    worker.event(WorkerInput::Disconnected);
    let actions = worker.raw(WorkerInput::Registered { returns: true });
    let parts = actions.iter().filter_map(|action| match action {
        Action::Send(message) => match &**message {
            FromWorker::Returned(part) => Some((part.results.len(), part.is_last)),
            _ => None,
        },
        _ => None,
    });
    let parts: Vec<(usize, bool)> = parts.collect();
    assert_eq!(parts, [(4096, false), (904, true)]);
}
