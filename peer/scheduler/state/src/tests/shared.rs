//! Tests of shared objects with tasks: what is held, and what is said about futures.

use super::*;

fn set(name: &str, key: &str) -> VariableSet {
    VariableSet {
        name: Key::from(name),
        key: Some(Key::from(key)),
        timeout: Some(Value::from("1 s")),
        ..VariableSet::default()
    }
}

fn get(name: &str) -> VariableGet {
    VariableGet {
        name: Key::from(name),
        ..VariableGet::default()
    }
}

impl Cluster {
    fn request(&mut self, request: impl Into<Request>) -> RequestId {
        let id = RequestId(self.next_id());
        let request = Box::new(request.into());
        self.handle(SchedulerInput::Requested { id, request });
        id
    }

    fn answer(&mut self, id: RequestId) -> Value {
        let reply = self.replies.remove(&id).expect("it was answered");
        self.handle(SchedulerInput::Replied(id));
        reply.expect("it is not refused")
    }

    fn ask(&mut self, request: impl Into<Request>) -> Value {
        let id = self.request(request);
        self.answer(id)
    }
}

fn field<'v>(record: &'v Value, name: &str) -> &'v str {
    record.get(name).and_then(Value::as_str).expect("a string")
}

#[test]
fn a_variable_keeps_a_task_that_nobody_else_wants() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://w:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[])], &["x"]);
    assert_eq!(cluster.ask(set("v", "x")), Value::None);
    cluster.release(client, &["x"]);
    assert_eq!(field(&cluster.ask(get("v")), "state"), "processing");
    cluster.finish(worker, "x");
    let record = cluster.ask(get("v"));
    assert_eq!(field(&record, "type"), "Future");
    assert_eq!(field(&record, "value"), "x");
    assert_eq!(field(&record, "state"), "memory");
    let reader = cluster.client("reader");
    cluster.send(
        reader,
        VariableReceived {
            name: Key::from("v"),
            key: Key::from("x"),
            token: field(&record, "token").to_owned(),
            ..VariableReceived::default()
        },
    );
    assert_eq!(cluster.sent_to_client(reader), ["key-in-memory x"]);
    let delete = VariableDelete {
        name: Key::from("v"),
        ..VariableDelete::default()
    };
    cluster.send(client, delete);
    cluster.release(reader, &["x"]);
    // The first reader has not confirmed that it holds the result.
    assert_eq!(cluster.status("x"), Some(TaskState::Memory));
    for _ in 0..2 {
        cluster.pass(300_000);
    }
    cluster.assert_empty();
}

#[test]
fn the_error_of_a_future_comes_with_it() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://w:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[])], &["x"]);
    cluster.ask(set("v", "x"));
    cluster.err(worker, "x", "bad");
    let record = cluster.ask(get("v"));
    assert_eq!(field(&record, "state"), "erred");
    assert_eq!(record.get("exception"), Some(&Value::from("bad")));
    assert_eq!(record.get("traceback"), Some(&Value::None));
}

#[test]
fn a_future_whose_task_was_forgotten_is_lost() {
    let mut cluster = Cluster::new();
    cluster.worker("tcp://w:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[])], &["x"]);
    cluster.ask(set("v", "x"));
    cluster.handle(SchedulerInput::Restart);
    assert_eq!(field(&cluster.ask(get("v")), "state"), "lost");
    cluster.submit(client, [add("x", &[])], &["x"]);
    cluster.ask(set("v", "x"));
    let cancel = CancelKeys {
        keys: ["x"].into_iter().collect(),
        force: true,
        ..CancelKeys::default()
    };
    cluster.send(client, cancel);
    assert_eq!(field(&cluster.ask(get("v")), "state"), "lost");
}

#[test]
fn a_future_that_is_cancelled_in_the_batch_of_its_submission_stays_unknown() {
    let mut cluster = Cluster::new();
    cluster.worker("tcp://w:1", 1);
    let client = cluster.client("me");
    let setting = cluster.request(set("v", "x"));
    cluster.submit(client, [add("x", &[])], &["x"]);
    let cancel = CancelKeys {
        keys: ["x"].into_iter().collect(),
        ..CancelKeys::default()
    };
    cluster.send(client, cancel.clone());
    cluster.pass(20);
    assert!(!cluster.replies.contains_key(&setting));
    cluster.submit(client, [add("x", &[])], &["x"]);
    cluster.pass(20);
    assert_eq!(cluster.answer(setting), Value::None);
    // It is set by now, so that only the client's own use is cancelled.
    cluster.send(client, cancel);
    assert_eq!(cluster.status("x"), Some(TaskState::Processing));
    let setting = cluster.request(set("v", "y"));
    cluster.pass(1_000);
    let refusal = cluster.replies.remove(&setting).expect("it is late");
    let expected = RequestRefusal::UnknownTask {
        key: Key::from("y"),
    };
    assert_eq!(refusal, Err(expected));
}

#[test]
fn other_requests_are_refused() {
    let mut cluster = Cluster::new();
    let id = cluster.request(Ping::default());
    let refusal = cluster.replies.remove(&id).expect("it is answered at once");
    let refusal = refusal.expect_err("it is refused");
    assert_eq!(
        refusal.to_string(),
        "this scheduler does not support \"ping\""
    );
    assert_eq!(refusal.class(), "NotImplementedError");
}

/// What an event touches may be handled in slices, between which other events come.
// ROLES SCHEDULER-10
#[test]
fn a_future_is_handed_over_while_work_of_others_is_left() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://w:1", 1);
    let client = cluster.client("me");
    let reader = cluster.client("reader");
    cluster.submit(client, [add("x", &[])], &["x"]);
    cluster.ask(set("v", "x"));
    cluster.release(client, &["x"]);
    cluster.finish(worker, "x");
    let record = cluster.ask(get("v"));
    cluster.state.slice_len = 1;
    let many = (0..10).map(|number| format!("unknown-{number}"));
    let desired = ClientDesiresKeys {
        keys: many.collect(),
        ..ClientDesiresKeys::default()
    };
    let name = Key::from("v");
    let received = VariableReceived {
        name: name.clone(),
        key: Key::from("x"),
        token: field(&record, "token").to_owned(),
        ..VariableReceived::default()
    };
    let delete = VariableDelete {
        name,
        ..VariableDelete::default()
    };
    for event in [
        SchedulerInput::FromClient(client, desired.into()),
        SchedulerInput::FromClient(reader, received.into()),
        SchedulerInput::FromClient(reader, delete.into()),
    ] {
        let actions = cluster.state.handle(cluster.now, event);
        assert!(cluster.state.is_pending());
        cluster.act(actions);
    }
    cluster.pass(20);
    assert_eq!(cluster.status("x"), Some(TaskState::Memory));
    cluster.release(reader, &["x"]);
    cluster.pass(20);
    assert_eq!(cluster.status("x"), None);
}
