//! Tests of events.

use super::*;

fn wait(name: &str, timeout: Option<f64>) -> EventWait {
    EventWait {
        name: Key::from(name),
        timeout,
        ..EventWait::default()
    }
}

fn set(name: &str) -> EventSet {
    EventSet {
        name: Key::from(name),
        ..EventSet::default()
    }
}

fn clear(name: &str) -> EventClear {
    EventClear {
        name: Key::from(name),
        ..EventClear::default()
    }
}

fn is_set(name: &str) -> EventIsSet {
    EventIsSet {
        name: Key::from(name),
        ..EventIsSet::default()
    }
}

#[test]
fn an_event_wakes_all_that_wait_for_it() {
    let mut world = World::new();
    let first = world.request(wait("e", None));
    let second = world.request(wait("e", Some(10.0)));
    let other = world.request(wait("f", None));
    assert_eq!(world.ask(is_set("e")), "False");
    assert_eq!(world.ask(set("e")), "None");
    assert_eq!(world.reply(first), "True");
    assert_eq!(world.reply(second), "True");
    assert!(world.waits(other));
    assert_eq!(world.ask(is_set("e")), "True");
    assert_eq!(world.ask(wait("e", Some(0.0))), "True");
    assert_eq!(world.ask(clear("e")), "None");
    assert_eq!(world.ask(is_set("e")), "False");
    assert_eq!(world.ask(wait("e", Some(0.0))), "False");
    world.drop_request(other);
    world.assert_empty();
}

#[test]
fn an_event_that_comes_too_late_is_false() {
    let mut world = World::new();
    let early = world.request(wait("e", Some(1.0)));
    let late = world.request(wait("e", Some(2.0)));
    world.pass(1.5);
    assert_eq!(world.reply(early), "False");
    assert_eq!(world.ask(clear("e")), "None");
    world.ask(set("e"));
    assert_eq!(world.reply(late), "True");
    world.ask(clear("e"));
    world.assert_empty();
}

#[test]
fn an_event_beyond_the_limit_is_refused() {
    let mut world = World::with_limit(300);
    assert_eq!(world.ask(set("e")), "None");
    for refusal in [world.ask(set("f")), world.ask(wait("f", None))] {
        assert!(refusal.starts_with("MemoryError: "), "{refusal}");
    }
    assert_eq!(world.ask(wait("e", None)), "True");
    world.ask(clear("e"));
    world.assert_empty();
}
