//! Tests of semaphores and locks.

use super::*;

fn register(name: &str, max_leases: i64, lease_timeout: Option<f64>) -> SemaphoreRegister {
    SemaphoreRegister {
        name: Key::from(name),
        max_leases,
        lease_timeout,
        ..SemaphoreRegister::default()
    }
}

fn acquire(name: &str, lease: &str, timeout: Option<f64>) -> SemaphoreAcquire {
    SemaphoreAcquire {
        name: Key::from(name),
        lease_id: Key::from(lease),
        timeout,
        ..SemaphoreAcquire::default()
    }
}

fn release(name: &str, lease: &str) -> SemaphoreRelease {
    SemaphoreRelease {
        name: Key::from(name),
        lease_id: Key::from(lease),
        ..SemaphoreRelease::default()
    }
}

fn refresh(name: &str, leases: &[&str]) -> SemaphoreRefreshLeases {
    SemaphoreRefreshLeases {
        name: Key::from(name),
        lease_ids: leases.iter().copied().collect(),
        ..SemaphoreRefreshLeases::default()
    }
}

fn value(name: &str) -> SemaphoreValue {
    SemaphoreValue {
        name: Key::from(name),
        ..SemaphoreValue::default()
    }
}

fn close(name: &str) -> SemaphoreClose {
    SemaphoreClose {
        name: Key::from(name),
        ..SemaphoreClose::default()
    }
}

const UNKNOWN: &str = "RuntimeError: Semaphore or Lock `s` not known.";

#[test]
fn leases_are_granted_in_the_order_of_the_requests() {
    let mut world = World::new();
    assert_eq!(world.ask(register("s", 2, Some(30.0))), "None");
    assert_eq!(world.ask(acquire("s", "a", None)), "True");
    assert_eq!(world.ask(acquire("s", "b", Some(0.0))), "True");
    let third = world.request(acquire("s", "c", None));
    let fourth = world.request(acquire("s", "d", Some(10.0)));
    assert_eq!(world.ask(acquire("s", "e", Some(0.0))), "False");
    assert_eq!(world.ask(value("s")), "2");
    assert_eq!(world.ask(release("s", "a")), "None");
    assert_eq!(world.ask(release("s", "a")), "None");
    assert_eq!(world.reply(third), "True");
    assert!(world.waits(fourth));
    world.pass(10.0);
    assert_eq!(world.reply(fourth), "False");
    world.ask(release("s", "b"));
    world.ask(release("s", "c"));
    assert_eq!(world.ask(value("s")), "0");
    let [semaphore] = &world.extensions.semaphores(2)[..] else {
        panic!("one semaphore");
    };
    let SemaphoreOverview {
        max_leases,
        lease_count,
        waiter_count,
        acquired,
        released,
        mean_wait,
        ..
    } = semaphore;
    assert_eq!((*max_leases, *lease_count, *waiter_count), (2, 0, 0));
    assert_eq!((*acquired, *released), (3, 3));
    // The last wait was ten seconds.
    assert_eq!(*mean_wait, Duration::from_secs(5));
    world.ask(close("s"));
    world.assert_empty();
}

#[test]
fn a_repeated_request_is_granted_again() {
    let mut world = World::new();
    world.ask(register("s", 1, None));
    let lost = world.request(acquire("s", "a", None));
    assert_eq!(world.ask(acquire("s", "a", None)), "True");
    // The first reply was not sent, which does not end the lease of the second.
    world.drop_request(lost);
    assert_eq!(world.ask(value("s")), "1");
    let waiting = world.request(acquire("s", "b", None));
    let repeated = world.request(acquire("s", "b", None));
    world.drop_request(waiting);
    world.ask(release("s", "a"));
    assert_eq!(world.reply(repeated), "True");
    world.ask(close("s"));
    world.assert_empty();
}

#[test]
fn a_lease_is_not_lost_with_the_client_that_asked_for_it() {
    let mut world = World::new();
    world.ask(register("s", 1, None));
    let gone = world.request(acquire("s", "a", None));
    let waiting = world.request(acquire("s", "b", None));
    let left = world.request(acquire("s", "c", None));
    let last = world.request(acquire("s", "d", None));
    world.drop_request(left);
    world.drop_request(gone);
    assert_eq!(world.reply(waiting), "True");
    world.ask(release("s", "b"));
    assert_eq!(world.reply(last), "True");
    world.ask(close("s"));
    world.assert_empty();
}

#[test]
fn leases_that_are_not_refreshed_end() {
    let mut world = World::new();
    world.ask(register("s", 2, Some(30.0)));
    world.ask(acquire("s", "a", None));
    world.ask(acquire("s", "b", None));
    let waiting = world.request(acquire("s", "c", None));
    world.pass(20.0);
    world.ask(refresh("s", &["b"]));
    world.pass(9.9);
    assert!(world.waits(waiting));
    world.pass(0.1);
    assert_eq!(world.reply(waiting), "True");
    assert_eq!(world.ask(value("s")), "2");
    // A holder that refreshes an ended lease still uses it.
    world.ask(refresh("s", &["a"]));
    assert_eq!(world.ask(value("s")), "3");
    assert_eq!(world.ask(acquire("s", "d", Some(0.0))), "False");
    world.ask(release("s", "a"));
    assert_eq!(world.ask(acquire("s", "d", Some(0.0))), "False");
    world.pass(30.0);
    assert_eq!(world.ask(value("s")), "0");
    world.ask(close("s"));
    for timeout in [None, Some(0.0), Some(f64::INFINITY), Some(1e18)] {
        world.ask(register("t", 1, timeout));
        world.ask(acquire("t", "a", None));
        world.pass(1e9);
        assert_eq!(world.ask(value("t")), "1", "{timeout:?}");
        world.ask(close("t"));
    }
    world.assert_empty();
}

#[test]
fn a_semaphore_is_known_from_its_registration_until_it_is_closed() {
    let mut world = World::new();
    assert_eq!(world.ask(acquire("s", "a", None)), UNKNOWN);
    assert_eq!(world.ask(release("s", "a")), "None");
    assert_eq!(world.ask(refresh("s", &["a"])), "None");
    assert_eq!(world.ask(value("s")), "0");
    assert_eq!(world.ask(close("s")), "None");
    world.ask(register("s", 1, None));
    assert_eq!(world.ask(register("s", 1, Some(1.0))), "None");
    let refusal = "ValueError: Inconsistent max leases: 2, expected: 1";
    assert_eq!(world.ask(register("s", 2, None)), refusal);
    world.ask(acquire("s", "a", None));
    let waiting = world.request(acquire("s", "b", None));
    world.ask(close("s"));
    assert_eq!(world.reply(waiting), UNKNOWN);
    assert_eq!(world.ask(acquire("s", "a", None)), UNKNOWN);
    world.ask(register("s", 0, None));
    assert_eq!(world.ask(acquire("s", "a", Some(0.0))), "False");
    world.ask(close("s"));
    world.assert_empty();
}

#[test]
fn leases_are_limited_by_memory() {
    let mut world = World::with_limit(1_200);
    world.ask(register("s", i64::MAX, None));
    let mut granted = 0;
    for number in 0..10 {
        match world.ask(acquire("s", &number.to_string(), None)).as_str() {
            "True" => granted += 1,
            refusal => assert!(refusal.starts_with("MemoryError: "), "{refusal}"),
        }
    }
    assert_eq!(granted, 3);
    world.ask(close("s"));
    world.assert_empty();
}
