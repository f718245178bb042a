//! Steps of work for inputs of different sizes.

use super::*;

/// A worker, and what it waits for.
struct Many {
    state: State,
    /// The pending requests: their numbers, peers and keys.
    asked: Vec<(u64, Peer, Vec<Key>)>,
    running: Vec<Key>,
}

impl Many {
    fn new(nthreads: usize) -> Self {
        Self {
            state: Worker::new(nthreads).0,
            asked: Vec::new(),
            running: Vec::new(),
        }
    }

    fn event(&mut self, event: WorkerInput) {
        for action in self.state.handle(Duration::from_secs(1), event) {
            match action {
                Action::Fetch {
                    request,
                    peer,
                    keys,
                } => self.asked.push((request, peer, keys)),
                Action::Execute(run) => self.running.push(run.key),
                _ => {}
            }
        }
    }

    fn message(&mut self, message: impl Into<ToWorker>) {
        self.event(WorkerInput::FromScheduler(message.into()));
    }

    /// Asks for a task with these inputs.
    fn compute(&mut self, key: &str, inputs: Vec<(Key, Vec<String>)>) {
        self.message(ComputeTask {
            nbytes: inputs.iter().map(|(key, _)| (key.clone(), 10)).collect(),
            who_has: inputs,
            ..task(key)
        });
    }

    /// Answers all pending requests.
    fn answer(&mut self, answer: fn(Vec<Key>) -> Answer) {
        for (request, _, keys) in core::mem::take(&mut self.asked) {
            self.event(WorkerInput::Fetched(Fetched {
                request,
                answer: answer(keys),
                start: Duration::ZERO,
                stop: Duration::ZERO,
            }));
        }
    }

    fn free(&mut self, count: usize) {
        self.message(FreeKeys {
            keys: Keys((0..count).map(data).collect()),
            ..FreeKeys::default()
        });
    }
}

fn all(keys: Vec<Key>) -> Answer {
    let data = keys.into_iter().map(|key| (key, description(10)));
    Answer::Data(data.collect())
}

fn peer(number: usize) -> String {
    format!("tcp://10.0.{}.{}:4000", number / 250, number % 250)
}

fn data(number: usize) -> Key {
    Key::from(format!("d{number}").as_str())
}

/// As many keys as peers, each at a different peer and at the next one.
fn inputs(count: usize) -> Vec<(Key, Vec<String>)> {
    let input = |number| (data(number), vec![peer(number), peer(number + 1)]);
    (0..count).map(input).collect()
}

/// Runs a scenario with inputs of two sizes, and compares the steps.
fn check_growth(name: &str, scenario: fn(usize)) {
    let steps = |count| {
        STEPS.set(0);
        scenario(count);
        STEPS.get()
    };
    let (few, many) = (steps(500), steps(1000));
    assert!(
        few > 500 && many <= few * 5 / 2,
        "{name}: {few} steps, {many} for twice as much"
    );
}

#[test]
fn steps_are_almost_linear_in_the_number_of_peers_and_keys() {
    check_growth("inputs at many peers", |count| {
        let mut many = Many::new(1);
        many.compute("x", inputs(count));
        assert_eq!(many.asked.len(), count);
        many.answer(all);
        assert_eq!(many.running, ["x".into()]);
    });
    check_growth("inputs at one peer", |count| {
        let mut many = Many::new(1);
        many.state.limits.transfer_len = 15;
        let inputs = inputs(count).into_iter();
        let inputs = inputs.map(|(key, _)| (key, vec![peer(0)]));
        many.compute("x", inputs.collect());
        for _ in 0..count {
            many.answer(all);
        }
        assert_eq!(many.running, ["x".into()]);
    });
    check_growth("busy peers", |count| {
        let mut many = Many::new(1);
        many.compute("x", inputs(count));
        many.answer(|_| Answer::Busy);
        (0..=count).for_each(|number| many.event(WorkerInput::PeerAvailable(peer(number).into())));
        many.answer(all);
        assert_eq!(many.running, ["x".into()]);
    });
    check_growth("peers that cannot be reached", |count| {
        let mut many = Many::new(1);
        many.compute("x", inputs(count));
        while !many.asked.is_empty() {
            many.answer(|_| Answer::Gone);
        }
        assert_eq!(many.state.missing.len(), count);
    });
    check_growth("peers that leave", |count| {
        let mut many = Many::new(1);
        many.compute("x", inputs(count));
        (0..=count).for_each(|number| many.message(remove_worker(&peer(number))));
        many.answer(|_| Answer::Gone);
        assert_eq!((many.state.missing.len(), many.asked.len()), (count, 0));
    });
    check_growth("peers that leave while the worker is paused", |count| {
        let mut many = Many::new(1);
        many.message(status("paused"));
        many.compute("x", inputs(count));
        (0..=count).for_each(|number| many.message(remove_worker(&peer(number))));
        assert_eq!(many.state.missing.len(), count);
    });
    check_growth("tasks with one input each", |count| {
        let mut many = Many::new(1);
        for (number, input) in inputs(count).into_iter().enumerate() {
            many.compute(&format!("x{number}"), vec![input]);
        }
        many.answer(all);
        assert_eq!(many.state.ready.len(), count - 1);
    });
    check_growth("tasks that need the same input", |count| {
        let mut many = Many::new(1);
        for number in 0..count {
            many.compute(&format!("x{number}"), inputs(1));
        }
        many.answer(all);
        assert_eq!(many.state.ready.len(), count - 1);
    });
    check_growth("replicas", |count| {
        let mut many = Many::new(1);
        many.message(AcquireReplicas {
            nbytes: Some((0..count).map(|number| (data(number), 10)).collect()),
            who_has: inputs(count),
            ..AcquireReplicas::default()
        });
        many.answer(all);
        many.free(count);
        assert!(many.state.tasks.is_empty());
    });
    check_growth("holders that are found", |count| {
        let mut many = Many::new(1);
        let nowhere = |(key, _)| (key, Vec::new());
        many.compute("x", inputs(count).into_iter().map(nowhere).collect());
        many.message(RefreshWhoHas {
            who_has: inputs(count),
            ..RefreshWhoHas::default()
        });
        assert_eq!(many.asked.len(), count);
        many.free(count);
        many.answer(all);
        assert_eq!(many.running, ["x".into()]);
    });
    check_growth("tasks that secede", |count| {
        let mut many = Many::new(1);
        for number in 0..count {
            many.message(task(&format!("x{number}")));
        }
        for number in 0..count {
            let key = many.running[number].clone();
            let run_time = Duration::ZERO;
            many.event(WorkerInput::Seceded { key, run_time });
        }
        let running = core::mem::take(&mut many.running);
        assert_eq!(running.len(), count);
        running
            .iter()
            .for_each(|key| many.event(WorkerInput::Rejoin(key.clone())));
        for _ in 0..count {
            let executing = many.state.executing.iter();
            let mut busy = executing.filter(|(_, running)| !running.has_seceded);
            let key = busy.next().expect("one has rejoined").0.to_string();
            drop(busy);
            many.event(WorkerInput::Executed(Executed {
                outcome: Ok(description(10)),
                ..failure(&key)
            }));
        }
        assert!(many.state.executing.is_empty());
    });
}
