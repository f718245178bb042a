//! Tests of variables.

use super::*;

fn set(name: &str, data: impl Into<Value>) -> VariableSet {
    VariableSet {
        name: Key::from(name),
        data: Some(data.into()),
        ..VariableSet::default()
    }
}

fn set_future(name: &str, key: &str) -> VariableSet {
    VariableSet {
        name: Key::from(name),
        key: Some(Key::from(key)),
        timeout: Some(Value::from("30 s")),
        ..VariableSet::default()
    }
}

fn get(name: &str, timeout: Option<f64>) -> VariableGet {
    VariableGet {
        name: Key::from(name),
        timeout,
        ..VariableGet::default()
    }
}

fn delete(name: &str) -> VariableDelete {
    VariableDelete {
        name: Key::from(name),
        ..VariableDelete::default()
    }
}

fn confirm(name: &str, key: &str, id: RequestId) -> VariableReceived {
    VariableReceived {
        name: Key::from(name),
        key: Key::from(key),
        token: id.0.to_string(),
        ..VariableReceived::default()
    }
}

#[test]
fn readers_wait_until_a_variable_is_set() {
    let mut world = World::new();
    let first = world.request(get("v", None));
    let second = world.request(get("v", Some(5.0)));
    assert!(world.waits(first) && world.waits(second));
    assert_eq!(world.ask(set("v", 1)), "None");
    assert_eq!(world.reply(first), "1");
    assert_eq!(world.reply(second), "1");
    world.ask(set("v", "two"));
    assert_eq!(world.ask(get("v", Some(0.0))), "'two'");
    world.message(delete("v"));
    world.message(delete("v"));
    world.assert_empty();
}

#[test]
fn a_reader_waits_no_longer_than_its_timeout() {
    let mut world = World::new();
    let late = "asyncio.exceptions.TimeoutError: waited too long for a value of the variable v";
    assert_eq!(world.ask(get("v", Some(0.0))), late);
    assert_eq!(world.ask(get("v", Some(-1.0))), late);
    let short = world.request(get("v", Some(0.5)));
    let long = world.request(get("v", Some(f64::INFINITY)));
    world.pass(0.49);
    assert!(world.waits(short));
    world.pass(0.01);
    assert_eq!(world.reply(short), late);
    world.pass(1e9);
    assert!(world.waits(long));
    world.drop_request(long);
    world.assert_empty();
}

#[test]
fn a_variable_holds_its_future() {
    let mut world = World::new();
    world.add_task("x");
    world.add_task("y");
    world.ask(set_future("v", "x"));
    assert_eq!(world.holders("x"), ["variable-v"]);
    world.ask(set_future("v", "y"));
    assert_eq!(world.holders("x").len() + world.holders("y").len(), 1);
    world.ask(set("v", 1));
    assert_eq!(world.holders("y").len(), 0);
    world.message(delete("v"));
    world.assert_empty();
}

#[test]
fn a_future_is_held_until_its_readers_hold_it() {
    let mut world = World::new();
    world.add_task("x");
    world.ask(set_future("v", "x"));
    let first = world.request(get("v", None));
    let second = world.request(get("v", None));
    assert_eq!(world.reply(first), "*x");
    assert_eq!(world.reply(second), "*x");
    world.message(delete("v"));
    world.message(confirm("v", "x", first));
    world.message(confirm("v", "x", first));
    assert_eq!(world.holders("x"), ["variable-v"]);
    world.message(confirm("v", "x", second));
    world.assert_empty();
}

#[test]
fn a_future_that_is_set_again_stays_held() {
    let mut world = World::new();
    world.add_task("x");
    world.ask(set_future("v", "x"));
    let read = world.request(get("v", None));
    world.reply(read);
    world.ask(set("v", 1));
    world.ask(set_future("v", "x"));
    world.message(confirm("v", "x", read));
    assert_eq!(world.holders("x"), ["variable-v"]);
    world.message(delete("v"));
    world.assert_empty();
}

#[test]
fn readers_that_have_gone_hold_nothing_up() {
    let mut world = World::new();
    world.add_task("x");
    let reader = world.request(get("v", None));
    world.ask(set_future("v", "x"));
    world.message(delete("v"));
    assert_eq!(world.holders("x"), ["variable-v"]);
    // The reply could not be sent.
    world.drop_request(reader);
    world.assert_empty();
    // The client has ended between the reply and the confirmation.
    world.ask(set_future("v", "x"));
    world.ask(get("v", None));
    world.message(delete("v"));
    world.pass(299.0);
    assert_eq!(world.holders("x"), ["variable-v"]);
    world.pass(1.0);
    world.assert_empty();
}

#[test]
fn a_future_waits_for_its_task() {
    let mut world = World::new();
    let setting = world.request(set_future("v", "x"));
    let reader = world.request(get("v", None));
    assert!(world.waits(setting));
    world.add_task("x");
    assert_eq!(world.reply(setting), "None");
    assert_eq!(world.reply(reader), "*x");
    world.message(confirm("v", "x", reader));
    let unknown = world.request(set_future("v", "z"));
    let dropped = world.request(set_future("v", "z"));
    world.drop_request(dropped);
    world.pass(30.0);
    let error = "asyncio.exceptions.TimeoutError: Task z unknown to scheduler.";
    assert_eq!(world.reply(unknown), error);
    // A task that is forgotten before the request continues.
    let setting = world.request(set_future("v", "z"));
    world.extensions.task_added(&Key::from("z"));
    world.settle();
    assert!(world.waits(setting));
    world.add_task("z");
    assert_eq!(world.reply(setting), "None");
    world.message(delete("v"));
    world.assert_empty();
}

#[test]
fn values_beyond_the_limit_are_refused() {
    let mut world = World::with_limit(2_300);
    let data = Value::bytes(vec![0; 1_000]);
    assert_eq!(world.ask(set("v", data.clone())), "None");
    let refusal = world.ask(set("w", data.clone()));
    assert!(refusal.starts_with("MemoryError: "), "{refusal}");
    assert!(refusal.contains("may take 2300 bytes"), "{refusal}");
    // The old value counts until the new one has replaced it.
    let refusal = world.ask(set("v", data));
    assert!(refusal.starts_with("MemoryError: "), "{refusal}");
    let mut readers = Vec::new();
    loop {
        let reader = world.request(get("w", None));
        if !world.waits(reader) {
            assert!(world.reply(reader).starts_with("MemoryError: "));
            break;
        }
        readers.push(reader);
    }
    assert!((1..8).contains(&readers.len()), "{}", readers.len());
    for reader in readers {
        world.drop_request(reader);
    }
    world.message(delete("v"));
    world.assert_empty();
}

#[test]
fn a_number_and_a_string_name_different_objects() {
    let mut world = World::new();
    world.add_task("x");
    let names = [Key::from(1), Key::from("1"), Key::from("\"1\"")];
    for name in &names {
        world.ask(VariableSet {
            name: name.clone(),
            ..set_future("", "x")
        });
        world.ask(QueueCreate {
            name: name.clone(),
            ..QueueCreate::default()
        });
        world.ask(QueuePut {
            name: name.clone(),
            key: Some("x".into()),
            ..QueuePut::default()
        });
    }
    assert_eq!(world.holders("x").len(), 6);
    let of_strings = ["queue-1", "variable-1"];
    assert!(
        of_strings
            .iter()
            .all(|name| world.holders("x").contains(name))
    );
    for name in &names[..1] {
        world.message(VariableDelete {
            name: name.clone(),
            ..VariableDelete::default()
        });
    }
    assert_eq!(world.holders("x").len(), 5);
    assert!(
        of_strings
            .iter()
            .all(|name| world.holders("x").contains(name))
    );
}
