//! Tests of published datasets.

use super::*;

fn put(names: &[&str], keys: &[&[&str]], uid: Option<&str>) -> PublishPut {
    let lists = keys
        .iter()
        .map(|keys| Key::list(keys.iter().copied().map(Key::from)));
    PublishPut {
        names: Some(names.iter().copied().map(Key::from).collect()),
        keys: lists.collect(),
        data: Value::list(
            names
                .iter()
                .map(|name| Value::from(format!("data of {name}"))),
        ),
        override_existing: Some(false),
        uid: uid.map(Key::from),
        ..PublishPut::default()
    }
}

fn get(names: &[&str]) -> PublishGet {
    PublishGet {
        names: Some(names.iter().copied().map(Key::from).collect()),
        ..PublishGet::default()
    }
}

fn delete(names: &[&str], uid: Option<&str>) -> PublishDelete {
    PublishDelete {
        names: Some(names.iter().copied().map(Key::from).collect()),
        uid: uid.map(Key::from),
        ..PublishDelete::default()
    }
}

fn flush(uid: &str) -> PublishFlush {
    PublishFlush {
        uid: Key::from(uid),
        ..PublishFlush::default()
    }
}

#[test]
fn datasets_hold_their_results() {
    let mut world = World::new();
    assert_eq!(world.ask(put(&["b", "a"], &[&["x"], &[]], None)), "None");
    assert_eq!(world.holders("x"), ["published-b"]);
    assert_eq!(world.ask(PublishList::default()), "['a', 'b']");
    let expected = "[{'data': 'data of b', 'keys': ['x']}, None]";
    assert_eq!(world.ask(get(&["b", "c"])), expected);
    assert_eq!(world.ask(delete(&["a", "b", "c"], None)), "None");
    assert_eq!(world.ask(PublishList::default()), "[]");
    world.assert_empty();
}

#[test]
fn a_dataset_is_replaced_only_on_request() {
    let mut world = World::new();
    world.ask(put(&["a"], &[&["x", "y"]], None));
    let exists = "KeyError: Dataset a already exists";
    // All datasets of a request are published, or none.
    assert_eq!(world.ask(put(&["b", "a"], &[&["z"], &["z"]], None)), exists);
    assert_eq!(
        world.ask(put(&["c", "c"], &[&[], &[]], None)),
        "KeyError: Dataset c already exists"
    );
    assert_eq!(world.ask(PublishList::default()), "['a']");
    let replacing = PublishPut {
        override_existing: Some(true),
        ..put(&["a"], &[&["y", "z"]], None)
    };
    assert_eq!(world.ask(replacing), "None");
    let holders = ["x", "y", "z"].map(|key| world.holders(key).len());
    assert_eq!(holders, [0, 1, 1]);
    world.ask(delete(&["a"], None));
    world.assert_empty();
}

#[test]
fn one_dataset_is_published_by_older_clients() {
    let mut world = World::new();
    let putting = PublishPut {
        name: Some(Key::from("a")),
        keys: vec![Key::list([Key::from("x"), Key::from(0)])],
        data: Value::from(1),
        ..PublishPut::default()
    };
    assert_eq!(world.ask(putting), "None");
    assert_eq!(world.held.len(), 1);
    let getting = |name| PublishGet {
        name: Some(Key::from(name)),
        ..PublishGet::default()
    };
    assert_eq!(world.ask(getting("a")), "{'data': 1, 'keys': [['x', 0]]}");
    assert_eq!(world.ask(getting("b")), "None");
    let deleting = PublishDelete {
        name: Some(Key::from("a")),
        ..PublishDelete::default()
    };
    assert_eq!(world.ask(deleting), "None");
    world.assert_empty();
}

#[test]
fn a_request_follows_the_message_on_the_stream() {
    let mut world = World::new();
    let putting = world.request(put(&["a"], &[&["x"]], Some("1")));
    let dropped = world.request(put(&["b"], &[&["x"]], Some("2")));
    assert!(world.waits(putting));
    world.drop_request(dropped);
    world.message(flush("1"));
    assert_eq!(world.reply(putting), "None");
    world.message(flush("3"));
    assert_eq!(world.ask(delete(&["a"], Some("3"))), "None");
    // A message counts for one request, and for five minutes.
    let late = world.request(delete(&["a"], Some("3")));
    world.message(flush("4"));
    world.message(flush("4"));
    world.pass(300.0);
    let reply = world.reply(late);
    assert!(
        reply.starts_with("asyncio.exceptions.TimeoutError: "),
        "{reply}"
    );
    world.assert_empty();
}

#[test]
fn malformed_datasets_are_refused() {
    let mut world = World::new();
    let refusal = world.ask(put(&["a"], &[], None));
    let expected = "ValueError: 1 names of datasets, but 0 lists of keys and 1 values";
    assert_eq!(refusal, expected);
    let keys = vec![Key::from("x")];
    let refusal = world.ask(PublishPut {
        keys: keys.clone(),
        ..put(&["a"], &[], None)
    });
    assert!(refusal.starts_with("TypeError: "), "{refusal}");
    let refusal = world.ask(PublishPut {
        keys,
        ..PublishPut::default()
    });
    assert_eq!(refusal, "TypeError: a dataset needs a name");
    world.assert_empty();
}

#[test]
fn datasets_are_limited_by_memory() {
    let mut world = World::with_limit(600);
    assert_eq!(world.ask(put(&["a"], &[&["x"]], None)), "None");
    let refusal = world.ask(put(&["b"], &[&["x"]], None));
    assert!(refusal.starts_with("MemoryError: "), "{refusal}");
    assert_eq!(world.ask(PublishList::default()), "['a']");
    world.ask(delete(&["a"], None));
    world.assert_empty();
}
