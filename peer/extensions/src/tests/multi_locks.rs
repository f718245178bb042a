//! Tests of multi-locks.

use super::*;

fn acquire(holder: &str, locks: &[&str], count: i64, timeout: Option<f64>) -> MultiLockAcquire {
    MultiLockAcquire {
        locks: locks.iter().map(|lock| Key::from(*lock)).collect(),
        id: Key::from(holder),
        timeout,
        num_locks: Some(count),
        ..MultiLockAcquire::default()
    }
}

fn release(holder: &str) -> MultiLockRelease {
    MultiLockRelease {
        id: Key::from(holder),
        ..MultiLockRelease::default()
    }
}

#[test]
fn holders_get_all_their_locks_in_the_order_of_their_requests() {
    let mut world = World::new();
    assert_eq!(world.ask(acquire("one", &["a", "b"], 2, None)), "True");
    let two = world.request(acquire("two", &["b", "c"], 2, None));
    let three = world.request(acquire("three", &["c"], 1, None));
    let four = world.request(acquire("four", &["a", "c"], 2, Some(5.0)));
    assert!(world.waits(two) && world.waits(three) && world.waits(four));
    assert_eq!(world.ask(acquire("five", &["c"], 1, Some(0.0))), "False");
    world.ask(release("one"));
    assert_eq!(world.reply(two), "True");
    world.ask(release("two"));
    assert_eq!(world.reply(three), "True");
    assert!(world.waits(four));
    world.pass(5.0);
    assert_eq!(world.reply(four), "False");
    assert_eq!(world.ask(acquire("six", &["a"], 1, Some(0.0))), "True");
    world.ask(release("six"));
    world.ask(release("three"));
    world.assert_empty();
}

#[test]
fn some_of_the_locks_are_enough() {
    let mut world = World::new();
    world.ask(acquire("one", &["a"], 1, None));
    // Those that are free are taken.
    assert_eq!(world.ask(acquire("two", &["a", "b", "c"], 2, None)), "True");
    let three = world.request(acquire("three", &["a", "b", "c"], 1, None));
    let four = world.request(acquire("four", &["a", "c"], 2, None));
    world.ask(release("one"));
    assert_eq!(world.reply(three), "True");
    // The third does not wait for further locks.
    world.ask(release("two"));
    assert!(world.waits(four));
    assert_eq!(world.ask(acquire("five", &["b"], 1, Some(0.0))), "True");
    world.ask(release("three"));
    assert_eq!(world.reply(four), "True");
    world.ask(release("four"));
    world.ask(release("five"));
    world.assert_empty();
}

#[test]
fn locks_of_clients_that_have_gone_are_free() {
    let mut world = World::new();
    let gone = world.request(acquire("one", &["a", "b"], 2, None));
    let waiting = world.request(acquire("two", &["a", "c"], 2, None));
    let left = world.request(acquire("three", &["c"], 1, None));
    world.drop_request(left);
    // The reply was not sent.
    world.drop_request(gone);
    assert_eq!(world.reply(waiting), "True");
    world.ask(release("two"));
    world.assert_empty();
}

#[test]
fn impossible_requests_are_refused() {
    let mut world = World::new();
    for count in [0, -1, 3] {
        let refusal = world.ask(acquire("one", &["a", "b"], count, None));
        let expected = "ValueError: num_locks must be from 1 to 2, the number of locks";
        assert_eq!(refusal, expected);
    }
    assert!(
        world
            .ask(acquire("one", &[], 0, None))
            .starts_with("ValueError: ")
    );
    let refusal = world.ask(release("one"));
    assert_eq!(refusal, "KeyError: no holder of locks has the name one");
    assert_eq!(world.ask(acquire("one", &["a", "a"], 2, None)), "True");
    let refusal = world.ask(acquire("one", &["b"], 1, None));
    let expected = "ValueError: one has acquired its locks, or waits for them";
    assert_eq!(refusal, expected);
    world.ask(release("one"));
    world.assert_empty();
}

#[test]
fn locks_are_limited_by_memory() {
    let mut world = World::with_limit(1_200);
    let refusal = world.ask(acquire("one", &["a", "b", "c", "d", "e"], 5, None));
    assert!(refusal.starts_with("MemoryError: "), "{refusal}");
    assert_eq!(world.ask(acquire("two", &["a", "b"], 2, None)), "True");
    let refusal = world.ask(acquire("three", &["a"], 1, None));
    assert!(refusal.starts_with("MemoryError: "), "{refusal}");
    world.ask(release("two"));
    world.assert_empty();
}
