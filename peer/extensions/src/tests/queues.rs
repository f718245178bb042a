//! Tests of queues.

use super::*;

fn create(name: &str, max_len: i64) -> QueueCreate {
    QueueCreate {
        name: Key::from(name),
        maxsize: Some(max_len),
        ..QueueCreate::default()
    }
}

fn put(name: &str, data: impl Into<Value>, timeout: Option<f64>) -> QueuePut {
    QueuePut {
        name: Key::from(name),
        data: Some(data.into()),
        timeout,
        ..QueuePut::default()
    }
}

fn put_future(name: &str, key: &str) -> QueuePut {
    QueuePut {
        name: Key::from(name),
        key: Some(Key::from(key)),
        ..QueuePut::default()
    }
}

fn get(name: &str, timeout: Option<f64>) -> QueueGet {
    QueueGet {
        name: Key::from(name),
        timeout,
        batch: Some(Value::from(false)),
        ..QueueGet::default()
    }
}

fn get_batch(name: &str, batch: impl Into<Value>) -> QueueGet {
    QueueGet {
        name: Key::from(name),
        batch: Some(batch.into()),
        ..QueueGet::default()
    }
}

fn len(name: &str) -> QueueSize {
    QueueSize {
        name: Key::from(name),
        ..QueueSize::default()
    }
}

fn release(name: &str) -> QueueRelease {
    QueueRelease {
        name: Key::from(name),
        ..QueueRelease::default()
    }
}

fn received(name: &str, key: &str) -> QueueReceived {
    QueueReceived {
        name: Key::from(name),
        key: Key::from(key),
        ..QueueReceived::default()
    }
}

const MISSING: &str = "KeyError: no queue has the name q";

#[test]
fn values_leave_in_the_order_in_which_they_came() {
    let mut world = World::new();
    world.ask(create("q", 0));
    for number in 0..5 {
        assert_eq!(world.ask(put("q", number, None)), "None");
    }
    assert_eq!(world.ask(len("q")), "5");
    assert_eq!(world.ask(get("q", None)), "0");
    assert_eq!(world.ask(get_batch("q", 2)), "[1, 2]");
    assert_eq!(world.ask(get_batch("q", true)), "[3, 4]");
    assert_eq!(world.ask(get_batch("q", true)), "[]");
    assert_eq!(world.ask(get_batch("q", 0)), "[]");
    assert_eq!(world.ask(get_batch("q", -1)), "[]");
    world.message(release("q"));
    world.assert_empty();
}

#[test]
fn requests_for_values_are_served_in_order() {
    let mut world = World::new();
    world.ask(create("q", 0));
    let first = world.request(get("q", None));
    let batch = world.request(get_batch("q", 3));
    let last = world.request(get("q", None));
    for number in 0..3 {
        world.ask(put("q", number, None));
    }
    assert_eq!(world.reply(first), "0");
    assert!(world.waits(batch) && world.waits(last));
    assert_eq!(world.ask(len("q")), "0");
    world.ask(put("q", 3, None));
    assert_eq!(world.reply(batch), "[1, 2, 3]");
    world.ask(put("q", 4, None));
    assert_eq!(world.reply(last), "4");
    world.message(release("q"));
    world.assert_empty();
}

#[test]
fn requests_for_room_are_served_in_order() {
    let mut world = World::new();
    world.ask(create("q", 2));
    world.ask(put("q", 0, None));
    world.ask(put("q", 1, None));
    let second = world.request(put("q", 2, None));
    let third = world.request(put("q", 3, None));
    let late = world.request(put("q", 4, Some(1.0)));
    assert!(world.waits(second) && world.waits(third));
    assert_eq!(world.ask(len("q")), "2");
    let error = "asyncio.exceptions.TimeoutError: waited too long for room in the queue q";
    assert_eq!(world.ask(put("q", 5, Some(0.0))), error);
    world.pass(1.0);
    assert_eq!(world.reply(late), error);
    assert_eq!(world.ask(get("q", None)), "0");
    assert_eq!(world.reply(second), "None");
    assert!(world.waits(third));
    // Values that come while a request collects a batch never wait for room.
    assert_eq!(world.ask(get_batch("q", 3)), "[1, 2, 3]");
    assert_eq!(world.reply(third), "None");
    world.message(release("q"));
    world.assert_empty();
}

#[test]
fn a_request_for_a_value_ends_at_its_timeout() {
    let mut world = World::new();
    world.ask(create("q", 0));
    let error = "asyncio.exceptions.TimeoutError: waited too long for a value in the queue q";
    assert_eq!(world.ask(get("q", Some(0.0))), error);
    let waiting = world.request(get("q", Some(2.0)));
    world.pass(1.9);
    assert!(world.waits(waiting));
    world.pass(0.1);
    assert_eq!(world.reply(waiting), error);
    world.ask(put("q", 1, None));
    assert_eq!(world.ask(get("q", Some(0.0))), "1");
    let refusal = world.ask(QueueGet {
        timeout: Some(1.0),
        ..get_batch("q", 2)
    });
    assert!(refusal.starts_with("NotImplementedError: "), "{refusal}");
    let refusal = world.ask(get_batch("q", "all"));
    assert_eq!(refusal, "TypeError: batch is str, not a bool or an int");
    world.message(release("q"));
    world.assert_empty();
}

#[test]
fn a_value_is_not_lost_with_the_client_that_asked_for_it() {
    let mut world = World::new();
    world.ask(create("q", 1));
    let gone = world.request(get("q", None));
    let batch = world.request(get_batch("q", 2));
    world.drop_request(gone);
    world.ask(put("q", 1, None));
    // The value that the batch has is returned.
    world.drop_request(batch);
    let waiting = world.request(put("q", 2, None));
    let first = world.request(get("q", None));
    let second = world.request(get("q", None));
    assert!(!world.waits(waiting) && !world.waits(first) && !world.waits(second));
    // The replies were not sent; the second is noticed first.
    let third = world.request(get("q", None));
    world.drop_request(second);
    assert_eq!(world.reply(third), "2");
    world.drop_request(first);
    assert_eq!(world.ask(get("q", Some(0.0))), "1");
    let dropped = world.request(put("q", 3, None));
    assert!(!world.waits(dropped));
    let dropped = world.request(put("q", 4, None));
    world.drop_request(dropped);
    assert_eq!(world.ask(get_batch("q", true)), "[3]");
    world.message(release("q"));
    world.assert_empty();
}

#[test]
fn a_queue_is_deleted_with_its_last_user() {
    let mut world = World::new();
    assert_eq!(world.ask(get("q", None)), MISSING);
    assert_eq!(world.ask(put("q", 1, None)), MISSING);
    assert_eq!(world.ask(len("q")), MISSING);
    world.message(release("q"));
    world.ask(create("q", 1));
    world.ask(create("q", 5));
    world.message(release("q"));
    world.ask(put("q", 1, None));
    let putting = world.request(put("q", 2, None));
    assert!(world.waits(putting), "the first user has chosen the length");
    world.message(release("q"));
    assert_eq!(world.reply(putting), MISSING);
    world.ask(create("q", 0));
    let batch = world.request(get_batch("q", 2));
    let getting = world.request(get("q", None));
    world.ask(put("q", 3, None));
    world.message(release("q"));
    assert_eq!(world.reply(batch), MISSING);
    assert_eq!(world.reply(getting), MISSING);
    world.assert_empty();
}

#[test]
fn futures_are_held_until_their_receivers_hold_them() {
    let mut world = World::new();
    world.add_task("x");
    world.ask(create("q", 1));
    world.ask(put_future("q", "x"));
    let waiting = world.request(put_future("q", "x"));
    assert_eq!(world.holders("x"), ["queue-q"]);
    assert_eq!(world.ask(get("q", None)), "*x");
    assert_eq!(world.reply(waiting), "None");
    assert_eq!(world.ask(get_batch("q", true)), "[*x]");
    world.message(received("q", "x"));
    assert_eq!(world.holders("x"), ["queue-q"]);
    // The queue is deleted before the second receiver holds its future.
    world.message(release("q"));
    assert_eq!(world.holders("x"), ["queue-q"]);
    world.message(received("q", "x"));
    world.message(received("q", "x"));
    world.assert_empty();
}

#[test]
fn futures_of_receivers_that_have_gone_are_released() {
    let mut world = World::new();
    world.add_task("x");
    world.ask(create("q", 1));
    world.ask(put_future("q", "x"));
    world.ask(get("q", None));
    world.pass(299.0);
    assert_eq!(world.holders("x"), ["queue-q"]);
    world.pass(1.0);
    assert_eq!(world.holders("x").len(), 0);
    // A future whose reply was not sent is the next again.
    world.ask(put_future("q", "x"));
    let gone = world.request(get("q", None));
    world.drop_request(gone);
    assert_eq!(world.ask(len("q")), "1");
    assert_eq!(world.ask(get("q", Some(0.0))), "*x");
    world.message(received("q", "x"));
    // One that waits for room is released with its request.
    world.ask(put("q", 1, None));
    let waiting = world.request(put_future("q", "x"));
    assert_eq!(world.holders("x"), ["queue-q"]);
    world.drop_request(waiting);
    assert_eq!(world.holders("x").len(), 0);
    // So is one whose queue is deleted before its reply is known to be lost.
    world.ask(get("q", None));
    world.ask(put_future("q", "x"));
    let gone = world.request(get("q", None));
    world.message(release("q"));
    world.drop_request(gone);
    world.assert_empty();
}

#[test]
fn a_future_in_a_queue_waits_for_its_task() {
    let mut world = World::new();
    world.ask(create("q", 0));
    let putting = world.request(QueuePut {
        timeout: Some(2.0),
        ..put_future("q", "x")
    });
    let deleted = world.request(put_future("r", "x"));
    assert!(world.waits(putting) && world.waits(deleted));
    world.ask(put("q", 1, None));
    world.add_task("x");
    assert_eq!(world.reply(putting), "None");
    assert!(world.reply(deleted).starts_with("KeyError: "));
    assert_eq!(world.ask(get_batch("q", 2)), "[1, *x]");
    world.message(received("q", "x"));
    // The time-out counts from the request on, also for room.
    world.message(release("q"));
    world.ask(create("q", 1));
    world.ask(put("q", 1, None));
    let putting = world.request(QueuePut {
        timeout: Some(2.0),
        ..put_future("q", "y")
    });
    world.pass(1.5);
    world.add_task("y");
    assert!(world.waits(putting));
    world.pass(0.5);
    assert!(world.reply(putting).contains("TimeoutError"));
    world.message(release("q"));
    world.assert_empty();
}

#[test]
fn values_of_queues_are_limited() {
    let mut world = World::with_limit(10_000);
    world.ask(create("q", 0));
    let mut count = 0;
    loop {
        let reply = world.ask(put("q", Value::bytes(vec![0; 1_000]), None));
        if reply.starts_with("MemoryError: ") {
            break;
        }
        assert_eq!(reply, "None");
        count += 1;
    }
    assert_eq!(count, 7);
    // What was removed counts until the reply is sent.
    let removed = world.request(get("q", None));
    let refusal = world.ask(put("q", Value::bytes(vec![0; 1_000]), None));
    assert!(refusal.starts_with("MemoryError: "), "{refusal}");
    world.reply(removed);
    assert_eq!(
        world.ask(put("q", Value::bytes(vec![0; 1_000]), None)),
        "None"
    );
    world.message(release("q"));
    world.assert_empty();
}
