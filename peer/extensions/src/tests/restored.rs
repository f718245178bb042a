//! Objects that are restored after the end of their scheduler.

use super::*;

/// What a change is about. The last change of each place is the one that counts.
fn place(change: &Change) -> String {
    match change {
        Change::Variable { name, .. } => format!("variable {name}"),
        Change::Event { name, .. } => format!("event {name}"),
        Change::Queue { name, .. } => format!("queue {name}"),
        Change::QueueUsers { name, .. } => format!("users {name}"),
        Change::Item { number, .. } => format!("item {number}"),
        Change::Semaphore { name, .. } => format!("semaphore {name}"),
        Change::Lease { name, lease_id, .. } => format!("lease {name} {lease_id}"),
        Change::Locks { holder, .. } => format!("locks {holder}"),
        Change::Dataset { name, .. } => format!("dataset {name}"),
    }
}

/// Whether a change says that something is gone.
fn is_end(change: &Change) -> bool {
    matches!(
        change,
        Change::Variable { value: None, .. }
            | Change::Event { is_set: false, .. }
            | Change::Queue { max_len: None, .. }
            | Change::QueueUsers { count: 1, .. }
            | Change::Item { value: None, .. }
            | Change::Semaphore { terms: None, .. }
            | Change::Lease { is_held: false, .. }
            | Change::Locks { locks: None, .. }
            | Change::Dataset { value: None, .. }
    )
}

impl World {
    /// The changes that make the same objects.
    fn last_changes(&self) -> Vec<Change> {
        let mut last: BTreeMap<String, usize> = BTreeMap::new();
        for (index, change) in self.changes.iter().enumerate() {
            match is_end(change) {
                true => drop(last.remove(&place(change))),
                false => drop(last.insert(place(change), index)),
            }
        }
        let mut indices: Vec<usize> = last.into_values().collect();
        indices.sort_unstable();
        let changes = indices.into_iter();
        changes.map(|index| self.changes[index].clone()).collect()
    }

    /// Ends the objects with all requests and replies, and makes them again of their changes.
    pub(super) fn restore(&mut self) {
        let before = self.extensions.objects();
        let changes = self.last_changes();
        self.extensions = Self::extensions(1 << 20);
        self.replies.clear();
        self.changes.clear();
        self.extensions.advance(self.now);
        for change in changes {
            self.extensions.restore(change).expect("it was there");
        }
        self.extensions.restored(self.held.iter().cloned());
        self.settle();
        self.extensions.start_leases();
        assert_eq!(self.extensions.objects(), before);
        // Its own changes say the same.
        assert_eq!(self.last_changes().len(), self.changes.len());
    }

    fn put(&mut self, value: i64) -> String {
        self.ask(QueuePut {
            name: Key::from("q"),
            data: Some(Value::from(value)),
            ..QueuePut::default()
        })
    }

    fn get(&mut self) -> RequestId {
        self.request(QueueGet {
            name: Key::from("q"),
            ..QueueGet::default()
        })
    }

    fn acquire(&mut self, lease_id: &str) -> RequestId {
        self.request(SemaphoreAcquire {
            name: Key::from("s"),
            lease_id: Key::from(lease_id),
            ..SemaphoreAcquire::default()
        })
    }
}

fn queue(world: &mut World) {
    world.ask(QueueCreate {
        name: Key::from("q"),
        maxsize: Some(0),
        ..QueueCreate::default()
    });
}

fn release() -> QueueRelease {
    QueueRelease {
        name: Key::from("q"),
        ..QueueRelease::default()
    }
}

#[test]
fn values_are_restored_in_their_order_and_those_that_were_not_sent_are_put_back() {
    let mut world = World::new();
    queue(&mut world);
    queue(&mut world);
    for value in 1..=4 {
        world.put(value);
    }
    let sent = world.get();
    assert_eq!(world.reply(sent), "1");
    let unsent = world.get();
    assert!(!world.waits(unsent));
    world.restore();
    for value in 2..=4 {
        let id = world.get();
        assert_eq!(world.reply(id), value.to_string());
    }
    let waiting = world.get();
    assert!(world.waits(waiting));
    world.drop_request(waiting);
    // It has as many users as before.
    world.message(release());
    assert_eq!(world.put(5), "None");
    world.message(release());
    world.assert_empty();
    world.restore();
    world.assert_empty();
}

#[test]
fn values_that_were_handed_over_are_not_in_a_later_queue_of_the_same_name() {
    let mut world = World::new();
    queue(&mut world);
    world.put(1);
    let unsent = world.get();
    assert!(!world.waits(unsent));
    world.message(release());
    world.restore();
    queue(&mut world);
    world.put(2);
    let unsent = world.get();
    assert!(!world.waits(unsent));
    world.message(release());
    queue(&mut world);
    world.put(3);
    let changes = world.last_changes();
    let mut restored = Extensions::new(1 << 20);
    for change in changes {
        restored.restore(change).expect("it was there");
    }
    let items = restored.objects().into_iter();
    let items = items.filter(|object| matches!(object, Change::Item { .. }));
    assert_eq!(items.count(), 1);
}

#[test]
fn results_that_were_handed_over_are_held_until_they_are_confirmed_or_some_time_has_passed() {
    let mut world = World::new();
    world.add_task("x");
    world.add_task("y");
    queue(&mut world);
    for key in ["x", "y"] {
        world.ask(QueuePut {
            name: Key::from("q"),
            key: Some(Key::from(key)),
            ..QueuePut::default()
        });
        let id = world.get();
        assert_eq!(world.reply(id), format!("*{key}"));
    }
    world.ask(VariableSet {
        name: Key::from("v"),
        key: Some(Key::from("x")),
        ..VariableSet::default()
    });
    let get = world.request(VariableGet {
        name: Key::from("v"),
        ..VariableGet::default()
    });
    world.reply(get);
    world.message(VariableDelete {
        name: Key::from("v"),
        ..VariableDelete::default()
    });
    world
        .held
        .insert(("published-d".to_owned(), Key::from("x")));
    world.restore();
    assert_eq!(world.holders("x"), ["queue-q", "variable-v"]);
    world.message(QueueReceived {
        name: Key::from("q"),
        key: Key::from("x"),
        ..QueueReceived::default()
    });
    assert_eq!(world.holders("x"), ["variable-v"]);
    assert_eq!(world.holders("y"), ["queue-q"]);
    world.pass(299.0);
    assert_eq!(world.holders("y"), ["queue-q"]);
    world.pass(2.0);
    assert_eq!(world.held, BTreeSet::new());
    world.message(release());
    world.assert_empty();
}

#[test]
fn leases_live_until_their_time_out_unless_they_are_refreshed() {
    let mut world = World::new();
    world.ask(SemaphoreRegister {
        name: Key::from("s"),
        max_leases: 2,
        lease_timeout: Some(10.0),
        ..SemaphoreRegister::default()
    });
    for lease_id in ["one", "two"] {
        let id = world.acquire(lease_id);
        assert_eq!(world.reply(id), "True");
    }
    world.pass(9.0);
    world.restore();
    let waiting = world.acquire("three");
    world.pass(9.0);
    assert!(world.waits(waiting));
    world.ask(SemaphoreRefreshLeases {
        name: Key::from("s"),
        lease_ids: ["one"].into_iter().collect(),
        ..SemaphoreRefreshLeases::default()
    });
    world.pass(2.0);
    assert_eq!(world.reply(waiting), "True");
    // A client that has lost the reply repeats the request.
    world.restore();
    let again = world.acquire("one");
    assert_eq!(world.reply(again), "True");
    let waiting = world.acquire("four");
    assert!(world.waits(waiting));
    world.ask(SemaphoreClose {
        name: Key::from("s"),
        ..SemaphoreClose::default()
    });
    world.reply(waiting);
    world.restore();
    world.assert_empty();
}

#[test]
fn leases_do_not_end_before_their_holders_can_refresh_them() {
    let mut world = World::new();
    world.ask(SemaphoreRegister {
        name: Key::from("s"),
        max_leases: 1,
        lease_timeout: Some(10.0),
        ..SemaphoreRegister::default()
    });
    let id = world.acquire("one");
    world.reply(id);
    let changes = world.last_changes();
    world.extensions = World::extensions(1 << 20);
    for change in changes {
        world.extensions.restore(change).expect("it was there");
    }
    world.settle();
    world.pass(100.0);
    let waiting = world.acquire("two");
    assert!(world.waits(waiting));
    world.extensions.start_leases();
    world.pass(9.0);
    assert!(world.waits(waiting));
    world.pass(2.0);
    assert_eq!(world.reply(waiting), "True");
}

#[test]
fn locks_stay_with_their_holder() {
    let mut world = World::new();
    let locks = |holder: &str, locks: &[&str]| MultiLockAcquire {
        id: Key::from(holder),
        locks: locks.iter().map(|lock| Key::from(*lock)).collect(),
        ..MultiLockAcquire::default()
    };
    let id = world.request(locks("one", &["a", "b"]));
    assert_eq!(world.reply(id), "True");
    let waiting = world.request(locks("two", &["b"]));
    assert!(world.waits(waiting));
    world.restore();
    let waiting = world.request(locks("two", &["b", "c"]));
    assert!(world.waits(waiting));
    let again = world.request(locks("one", &["a", "b"]));
    assert_eq!(world.reply(again), "True");
    let other = world.request(locks("one", &["c"]));
    assert!(world.reply(other).starts_with("ValueError"));
    for holder in ["one", "two"] {
        world.ask(MultiLockRelease {
            id: Key::from(holder),
            ..MultiLockRelease::default()
        });
    }
    world.restore();
    world.assert_empty();
}

#[test]
fn variables_events_and_datasets_are_restored() {
    let mut world = World::new();
    world.add_task("x");
    for name in ["v", "w"] {
        world.ask(VariableSet {
            name: Key::from(name),
            key: Some(Key::from("x")),
            ..VariableSet::default()
        });
        world.ask(EventSet {
            name: Key::from(name),
            ..EventSet::default()
        });
        world.ask(PublishPut {
            name: Some(Key::from(name)),
            keys: vec![Key::from("x")],
            data: Value::from("data"),
            ..PublishPut::default()
        });
    }
    world.ask(VariableSet {
        name: Key::from("v"),
        data: Some(Value::from(5)),
        ..VariableSet::default()
    });
    world.ask(EventClear {
        name: Key::from("w"),
        ..EventClear::default()
    });
    world.ask(PublishDelete {
        name: Some(Key::from("w")),
        ..PublishDelete::default()
    });
    world.restore();
    assert_eq!(world.holders("x"), ["published-v", "variable-w"]);
    assert_eq!(world.extensions.objects().len(), 4);
    let value = world.ask(VariableGet {
        name: Key::from("v"),
        ..VariableGet::default()
    });
    assert_eq!(value, "5");
}

#[test]
fn the_limit_of_memory_holds_for_restored_objects() {
    let mut world = World::new();
    queue(&mut world);
    world.put(1);
    world.put(2);
    let mut small = Extensions::new(world.extensions.context.used() - 1);
    let mut refusals = Vec::new();
    for change in world.last_changes() {
        refusals.extend(small.restore(change).err());
        small.check();
    }
    assert!(
        matches!(refusals[..], [RequestRefusal::Full { .. }]),
        "{refusals:?}"
    );
}

#[test]
fn changes_that_do_not_agree_are_refused() {
    let mut world = World::new();
    queue(&mut world);
    world.put(1);
    world.ask(SemaphoreRegister {
        name: Key::from("s"),
        max_leases: 1,
        lease_timeout: None,
        ..SemaphoreRegister::default()
    });
    let id = world.acquire("one");
    world.reply(id);
    let id = world.request(MultiLockAcquire {
        id: Key::from("one"),
        locks: vec![Key::from("a")],
        ..MultiLockAcquire::default()
    });
    world.reply(id);
    let changes = world.last_changes();
    assert_eq!(changes.len(), 5);
    for (index, change) in changes.iter().enumerate() {
        let mut restored = Extensions::new(1 << 20);
        for earlier in &changes[..=index] {
            restored.restore(earlier.clone()).expect("it was there");
        }
        // Twice, all but values of queues; alone, those that need others.
        let is_item = matches!(change, Change::Item { .. });
        assert_eq!(restored.restore(change.clone()).is_ok(), is_item);
        restored.check();
        let needs_other = matches!(change, Change::Lease { .. });
        let mut empty = Extensions::new(1 << 20);
        assert_eq!(empty.restore(change.clone()).is_err(), needs_other);
        assert_eq!(empty.objects().is_empty(), is_item || needs_other);
        empty.check();
    }
}
