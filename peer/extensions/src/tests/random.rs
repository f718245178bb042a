//! Random requests, time-outs, and clients that go. No value is lost or handed over twice, no
//! lease is granted beyond the limit, and in the end nothing is left.

use daskwire_testing::Random;

use super::*;

const QUEUES: [&str; 2] = ["p", "q"];

/// The extensions with random clients, and what they have got.
struct Storm {
    world: World,
    random: Random,
    /// Requests without a reply that is delivered.
    open: BTreeMap<RequestId, Request>,
    /// Values that were put into each queue, and those that were got.
    put: [Vec<i64>; 2],
    got: [Vec<i64>; 2],
    /// Leases and holders of locks whose clients know of them.
    leases: Vec<Key>,
    holders: Vec<Key>,
    /// Futures that clients have got and not confirmed.
    reads: Vec<FromClient>,
    last_value: i64,
}

impl Storm {
    fn timeout(&mut self) -> Option<f64> {
        [None, Some(0.0), Some(1.0), Some(3.0)][self.random.below(4)]
    }

    fn name(&mut self) -> Key {
        Key::from(["v", "w"][self.random.below(2)])
    }

    fn key(&mut self) -> Key {
        Key::from(["x", "y"][self.random.below(2)])
    }

    fn value(&mut self) -> i64 {
        self.last_value += 1;
        self.last_value
    }

    fn random_request(&mut self) -> Request {
        let (name, timeout) = (self.name(), self.timeout());
        let queue = Key::from(QUEUES[self.random.below(2)]);
        let lease_id = Key::from(self.value());
        match self.random.below(14) {
            0 => VariableSet {
                name,
                key: Some(self.key()),
                timeout: Some(Value::from(1.0)),
                ..VariableSet::default()
            }
            .into(),
            1 => VariableSet {
                name,
                data: Some(Value::from(1)),
                ..VariableSet::default()
            }
            .into(),
            2 => VariableGet {
                name,
                timeout,
                ..VariableGet::default()
            }
            .into(),
            3 | 4 => QueuePut {
                name: queue,
                data: Some(Value::from(self.value())),
                timeout,
                ..QueuePut::default()
            }
            .into(),
            5 => QueuePut {
                name: queue,
                key: Some(self.key()),
                timeout,
                ..QueuePut::default()
            }
            .into(),
            6 | 7 => {
                let batch =
                    [Value::None, Value::from(true), Value::from(2)][self.random.below(3)].clone();
                let timeout = timeout.filter(|_| batch != Value::from(2));
                QueueGet {
                    name: queue,
                    timeout,
                    batch: Some(batch),
                    ..QueueGet::default()
                }
                .into()
            }
            8 => EventWait {
                name,
                timeout,
                ..EventWait::default()
            }
            .into(),
            9 => match self.random.below(2) {
                0 => EventSet {
                    name,
                    ..EventSet::default()
                }
                .into(),
                _ => EventClear {
                    name,
                    ..EventClear::default()
                }
                .into(),
            },
            10 | 11 => SemaphoreAcquire {
                name: Key::from("s"),
                timeout,
                lease_id,
                ..SemaphoreAcquire::default()
            }
            .into(),
            _ => {
                let locks: Vec<Key> = ["a", "b", "c"].map(Key::from).into();
                let count = self.random.below(3) + 1;
                MultiLockAcquire {
                    num_locks: Some(self.random.below(count) as i64 + 1),
                    locks: locks.into_iter().take(count).collect(),
                    id: lease_id,
                    timeout,
                    ..MultiLockAcquire::default()
                }
                .into()
            }
        }
    }

    /// Delivers the reply to a request, and notes what it hands over.
    fn deliver(&mut self, id: RequestId) {
        let request = self.open.remove(&id).expect("it is open");
        let reply = self.world.replies.remove(&id).expect("it was answered");
        self.world.extensions.replied(id);
        self.world.settle();
        let Ok(answer) = reply else {
            return;
        };
        match (request, answer) {
            (Request::QueuePut(request), _) => {
                if let Some(Value::Int(value)) = request.data {
                    let queue = QUEUES
                        .iter()
                        .position(|name| request.name == Key::from(*name));
                    self.put[queue.expect("one of them")].push(value as i64);
                }
            }
            (Request::QueueGet(request), answer) => {
                let values = match answer {
                    Answer::Record(value) => vec![value],
                    Answer::Records(values) => values,
                    other => panic!("{other:?}"),
                };
                let queue = QUEUES
                    .iter()
                    .position(|name| request.name == Key::from(*name));
                for value in values {
                    match value {
                        Record::Data(value) => {
                            let value = i64::try_from(value).expect("a number");
                            self.got[queue.expect("one of them")].push(value);
                        }
                        Record::Future(key) => self.reads.push(
                            QueueReceived {
                                name: request.name.clone(),
                                key,
                                ..QueueReceived::default()
                            }
                            .into(),
                        ),
                    }
                }
            }
            (Request::VariableGet(request), Answer::Read(Record::Future(key), token)) => {
                self.reads.push(
                    VariableReceived {
                        name: request.name,
                        key,
                        token: token.to_string(),
                        ..VariableReceived::default()
                    }
                    .into(),
                );
            }
            (Request::SemaphoreAcquire(request), Answer::Value(Value::Bool(true))) => {
                self.leases.push(request.lease_id);
                assert!(self.leases.len() <= 2, "more leases than the semaphore has");
            }
            (Request::MultiLockAcquire(request), Answer::Value(Value::Bool(true))) => {
                self.holders.push(request.id);
            }
            _ => {}
        }
    }

    fn release_one(&mut self) {
        if !self.leases.is_empty() {
            let index = self.random.below(self.leases.len());
            let lease_id = self.leases.swap_remove(index);
            self.world.ask(SemaphoreRelease {
                name: Key::from("s"),
                lease_id,
                ..SemaphoreRelease::default()
            });
        }
        if !self.holders.is_empty() {
            let index = self.random.below(self.holders.len());
            let id = self.holders.swap_remove(index);
            let reply = self.world.ask(MultiLockRelease {
                id,
                ..MultiLockRelease::default()
            });
            assert_eq!(reply, "None");
        }
    }

    fn step(&mut self) {
        let open: Vec<RequestId> = self.open.keys().copied().collect();
        match self.random.below(10) {
            0..4 => {
                let request = self.random_request();
                let id = self.world.request(request.clone());
                self.open.insert(id, request);
            }
            4..7 if !open.is_empty() => {
                let id = open[self.random.below(open.len())];
                match (self.random.below(3), self.world.waits(id)) {
                    (0, is_waiting) => {
                        let is_put = matches!(self.open[&id], Request::QueuePut(_));
                        // A value that was accepted is in the queue, though its client does not
                        // know that.
                        if is_put && !is_waiting {
                            return self.deliver(id);
                        }
                        self.open.remove(&id);
                        self.world.replies.remove(&id);
                        self.world.drop_request(id);
                    }
                    (_, false) => self.deliver(id),
                    _ => {}
                }
            }
            7 => self.release_one(),
            8 => {
                if !self.reads.is_empty() {
                    let index = self.random.below(self.reads.len());
                    let message = self.reads.swap_remove(index);
                    self.world.message(message);
                }
            }
            _ => {
                let seconds = [0.1, 1.0, 0.5][self.random.below(3)];
                self.world.pass(seconds);
            }
        }
    }

    /// Ends the objects, and makes them again of their changes. Clients have got what was answered,
    /// but not what was to be handed over to them.
    fn kill(&mut self) {
        for (id, request) in self.open.clone() {
            let is_get = matches!(request, Request::QueueGet(_) | Request::VariableGet(_));
            if !is_get && !self.world.waits(id) {
                self.deliver(id);
            }
        }
        self.open.clear();
        self.world.restore();
    }

    fn run(seed: u64) {
        Self::run_with(seed, false);
    }

    fn run_with(seed: u64, is_killed: bool) {
        let mut storm = Self {
            world: World::new(),
            random: Random(seed),
            open: BTreeMap::new(),
            put: Default::default(),
            got: Default::default(),
            leases: Vec::new(),
            holders: Vec::new(),
            reads: Vec::new(),
            last_value: 0,
        };
        storm.world.add_task("x");
        storm.world.ask(SemaphoreRegister {
            name: Key::from("s"),
            max_leases: 2,
            lease_timeout: Some(1e6),
            ..SemaphoreRegister::default()
        });
        for (name, max_len) in QUEUES.into_iter().zip([0, 2]) {
            storm.world.ask(QueueCreate {
                name: Key::from(name),
                maxsize: Some(max_len),
                ..QueueCreate::default()
            });
        }
        for step in 0..300 {
            storm.step();
            if is_killed && storm.random.below(20) == 0 {
                storm.kill();
            }
            if step == 150 {
                storm.world.add_task("y");
            }
        }
        storm.clear(seed, is_killed);
    }

    /// Ends everything, and compares what was put with what was got.
    fn clear(&mut self, seed: u64, is_killed: bool) {
        for id in self.open.keys().copied().collect::<Vec<_>>() {
            match self.world.waits(id) {
                true => {
                    self.open.remove(&id);
                    self.world.drop_request(id);
                }
                false => self.deliver(id),
            }
        }
        while !self.leases.is_empty() || !self.holders.is_empty() {
            self.release_one();
        }
        for (index, name) in QUEUES.into_iter().enumerate() {
            // Values for which there was room after a request was dropped.
            let request = QueueGet {
                name: Key::from(name),
                batch: Some(Value::from(true)),
                ..QueueGet::default()
            };
            let id = self.world.request(request.clone());
            self.open.insert(id, request.into());
            self.deliver(id);
            let (put, got) = (&mut self.put[index], &mut self.got[index]);
            put.sort_unstable();
            got.sort_unstable();
            assert_eq!(put, got, "seed {seed}");
            self.world.message(QueueRelease {
                name: Key::from(name),
                ..QueueRelease::default()
            });
        }
        if is_killed {
            // What earlier objects handed over is not confirmed.
            self.world.pass(301.0);
        }
        for message in core::mem::take(&mut self.reads) {
            self.world.message(message);
        }
        for name in ["v", "w"].map(Key::from) {
            self.world.message(VariableDelete {
                name: name.clone(),
                ..VariableDelete::default()
            });
            self.world.ask(EventClear {
                name,
                ..EventClear::default()
            });
        }
        self.world.ask(SemaphoreClose {
            name: Key::from("s"),
            ..SemaphoreClose::default()
        });
        self.world.assert_empty();
    }
}

#[test]
fn random_requests_lose_nothing() {
    for seed in 1..=300 {
        Storm::run(seed);
    }
}

#[test]
fn objects_that_are_restored_at_any_time_lose_nothing() {
    for seed in 1..=300 {
        Storm::run_with(seed, true);
    }
}
