//! Random events with a scheduler that reads and answers late. After each event,
//! the state is consistent, and no report has changed a hold that the scheduler did
//! not know of when it sent the report. When everything has arrived, the client and
//! the scheduler agree. Every other scheduler keeps the keys of the client when it disconnects, and
//! gets no graph twice.

use core::mem;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use daskwire_messages::exception::exception;
use daskwire_messages::protocol::{GraphsAccepted, TaskRetried};
use daskwire_testing::Random;

use super::*;

/// The scheduler's view of a task that the client wants.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Task {
    Pending,
    Memory,
    Erred,
}

impl Task {
    const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Memory => "finished",
            Self::Erred => "error",
        }
    }
}

struct Simulation {
    seed: u64,
    random: Random,
    now: Duration,
    client: State,
    /// The handles, and for each hold the number of messages sent before it was
    /// known to the scheduler.
    handles: Vec<Hold>,
    known_since: HashMap<Hold, u64>,
    /// The statuses of holds as reported by actions.
    reported: HashMap<Hold, Status>,
    wake_at: Duration,
    attempt: Option<Duration>,
    sent_count: u64,
    read_count: u64,
    inbox: VecDeque<FromClient>,
    outbox: VecDeque<ToClient>,
    tasks: BTreeMap<Key, Task>,
    /// Whether the scheduler keeps keys.
    keeps: bool,
    /// The numbers of the graphs that were submitted, and of those that the scheduler has read.
    submitted: u64,
    accepted: Vec<u64>,
    /// The tasks that the client has not asked for since it has returned, until it confirms its keys.
    unconfirmed: Option<BTreeSet<Key>>,
    /// Whether the cluster was restarted since everything arrived.
    was_restarted: bool,
    history: Vec<String>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut simulation = Self {
            seed,
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            now: Duration::ZERO,
            client: State::new("client", Reconnect::Within(Duration::from_secs(60))),
            handles: Vec::new(),
            known_since: HashMap::new(),
            reported: HashMap::new(),
            wake_at: Duration::MAX,
            attempt: None,
            sent_count: 0,
            read_count: 0,
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            tasks: BTreeMap::new(),
            keeps: seed % 2 == 1,
            submitted: 0,
            accepted: Vec::new(),
            unconfirmed: None,
            was_restarted: false,
            history: Vec::new(),
        };
        simulation.connect(false);
        simulation
    }

    /// The client is connected, to a scheduler that may know it.
    fn connect(&mut self, is_return: bool) {
        let mut kept = None;
        if self.keeps {
            let is_known = is_return && self.random.below(4) != 0;
            if !is_known {
                self.accepted.clear();
                self.tasks.clear();
            }
            self.unconfirmed = is_return.then(|| self.tasks.keys().cloned().collect());
            kept = Some(Kept {
                graphs_accepted: is_known.then_some(self.accepted.len() as u64),
                lost: None,
            });
        }
        let release = None;
        self.handle(ClientInput::Connected { release, kept });
    }

    fn key(&mut self) -> Key {
        match self.hold() {
            Some(hold) if self.random.one_in(4) => hold.key().clone(),
            _ => Key::from(format!("k-{}", self.random.below(5))),
        }
    }

    fn keys(&mut self) -> Vec<Key> {
        (0..self.random.below(4)).map(|_| self.key()).collect()
    }

    fn hold(&mut self) -> Option<Hold> {
        let index = self.random.below(self.handles.len());
        self.handles.get(index).cloned()
    }

    fn handle(&mut self, event: ClientInput) {
        self.history.push(format!("{event:?}"));
        let actions = self.client.handle(self.now, event);
        for action in actions {
            self.history.push(format!("  {action:?}"));
            match action {
                Action::Send(message) => {
                    assert!(self.client.is_connected() || is_close(&message));
                    self.inbox.push_back(message);
                    self.sent_count += 1;
                }
                Action::Status { hold, status } => self.reported(hold, status),
                Action::Wake { at } => self.wake_at = at,
                Action::Connect { at, .. } => self.attempt = Some(at),
                Action::Returned(returned) => {
                    assert!(self.client.is_connected() && !self.client.is_returning());
                    assert!(self.keeps || returned.found == 0);
                }
                Action::Disconnect { .. } | Action::Answered { .. } => {}
            }
        }
        self.client.check();
        for hold in &self.handles {
            let status = self.client.status(hold).expect("it has handles");
            let reported = &self.reported[hold];
            assert_eq!(status, *reported, "{}: {hold:?}", self.seed);
        }
    }

    fn reported(&mut self, hold: Hold, status: Status) {
        // The reports contain the number of messages that the scheduler had read.
        let read_count = match &status {
            Status::Error(error) => error.message.parse::<u64>().ok(),
            Status::Cancelled { reason } => reason.parse().ok(),
            _ => None,
        };
        if let Some(read_count) = read_count {
            let since = self.known_since[&hold];
            assert!(
                read_count >= since,
                "seed {}: {hold:?} is {status:?}, and was submitted by message {since}: {:#?}",
                self.seed,
                self.history
            );
        }
        self.reported.insert(hold, status);
    }

    /// Handles an event that adds a handle for each of the keys.
    fn add_handles(&mut self, event: ClientInput, keys: &[Key]) {
        if !self.client.is_connected() {
            return self.handle(event);
        }
        let sends_questions = !matches!(event, ClientInput::Store(_));
        // The new holds are not among the handles yet.
        self.handle(event);
        // The messages `report-key` that follow do not make the keys known.
        let sent = self.inbox.iter().rev();
        let questions = sent.take_while(|message| matches!(message, FromClient::ReportKey(_)));
        let extra = if sends_questions {
            questions.count() as u64
        } else {
            0
        };
        for key in keys {
            let Some(hold) = self.client.hold(key) else {
                assert!(!self.client.is_connected());
                continue;
            };
            self.known_since
                .entry(hold.clone())
                .or_insert(self.sent_count - extra);
            let status = Status::Pending;
            self.reported.entry(hold.clone()).or_insert(status);
            self.handles.push(hold);
        }
    }

    fn store(&mut self, keys: &[Key]) {
        let first = self.handles.len();
        self.add_handles(ClientInput::Store(keys.to_vec()), keys);
        self.handle(ClientInput::Settle);
        let mark = self.client.unsettled().unwrap_or(0);
        while self.client.answered < mark {
            self.read();
            self.deliver();
        }
        let holds = self.handles[first..].to_vec();
        for hold in &holds {
            // Unless the cluster was restarted meanwhile.
            if self.client.hold(&hold.key).as_ref() == Some(hold) {
                self.tasks.insert(hold.key.clone(), Task::Memory);
                self.known_since.insert(hold.clone(), self.read_count);
            }
        }
        self.handle(ClientInput::Stored(holds));
    }

    /// The scheduler reads a message.
    fn read(&mut self) {
        let Some(message) = self.inbox.pop_front() else {
            return;
        };
        self.read_count += 1;
        match message {
            FromClient::UpdateGraph(message) => {
                let number = message.extra[0].1.clone().try_into();
                let number: u64 = number.expect("a number");
                let seed = self.seed;
                let is_new = !self.accepted.contains(&number);
                assert!(
                    is_new,
                    "seed {seed}: graph {number} is sent twice: {:#?}",
                    self.history
                );
                self.accepted.push(number);
                if self.keeps && self.random.below(2) == 0 {
                    self.outbox.push_back(ToClient::from(GraphsAccepted {
                        count: self.accepted.len() as u64,
                        ..GraphsAccepted::default()
                    }));
                }
                for key in message.keys {
                    self.confirm(&key);
                    self.tasks.entry(key.clone()).or_insert(Task::Pending);
                    self.report(&key);
                }
            }
            FromClient::ClientDesiresKeys(message) => {
                for key in message.keys {
                    self.confirm(&key);
                    if self.unconfirmed.is_some() {
                        self.report(&key);
                        continue;
                    }
                    self.tasks.entry(key).or_insert(Task::Pending);
                }
            }
            FromClient::KeysConfirmed(_) => {
                for key in self.unconfirmed.take().unwrap_or_default() {
                    self.tasks.remove(&key);
                }
            }
            FromClient::ClientReleasesKeys(message) => {
                for key in message.keys {
                    self.tasks.remove(&key);
                }
            }
            FromClient::CancelKeys(message) => {
                for key in message.keys {
                    assert!(
                        self.tasks.remove(&key).is_some() || self.was_restarted || self.keeps,
                        "seed {}: {key} is cancelled and not wanted",
                        self.seed
                    );
                    self.cancelled(key);
                }
            }
            FromClient::ReportKey(message) => self.report(&message.key),
            _ => {}
        }
    }

    fn confirm(&mut self, key: &Key) {
        if let Some(unconfirmed) = &mut self.unconfirmed {
            unconfirmed.remove(key);
        }
    }

    fn cancelled(&mut self, key: Key) {
        self.outbox.push_back(ToClient::from(CancelledKeys {
            keys: Keys(vec![key]),
            reason: Some(self.read_count.to_string()),
            ..CancelledKeys::default()
        }));
    }

    /// The scheduler reports a task, unless it is pending.
    fn report(&mut self, key: &Key) {
        let message = match self.tasks.get(key) {
            None => return self.cancelled(key.clone()),
            Some(Task::Pending) => return,
            Some(Task::Memory) => ToClient::from(in_memory(key.as_str().unwrap_or_default())),
            Some(Task::Erred) => {
                let error = exception("ValueError", &self.read_count.to_string());
                ToClient::from(TaskErredForClient {
                    key: key.clone(),
                    exception: Value::Serialized(error),
                    ..TaskErredForClient::default()
                })
            }
        };
        self.outbox.push_back(message);
    }

    /// A task of the scheduler changes.
    fn compute(&mut self) {
        let index = self.random.below(self.tasks.len());
        let Some((key, task)) = self.tasks.iter().nth(index) else {
            return;
        };
        let (key, task) = (key.clone(), *task);
        let next = match task {
            Task::Pending if self.random.below(2) == 0 => Task::Erred,
            Task::Pending => Task::Memory,
            Task::Memory | Task::Erred => Task::Pending,
        };
        self.tasks.insert(key.clone(), next);
        match task {
            Task::Pending => self.report(&key),
            Task::Memory => self.outbox.push_back(ToClient::from(LostData {
                key,
                ..LostData::default()
            })),
            Task::Erred => self.outbox.push_back(ToClient::from(TaskRetried {
                key,
                ..TaskRetried::default()
            })),
        }
    }

    /// A message arrives at the client.
    fn deliver(&mut self) {
        if let Some(message) = self.outbox.pop_front() {
            self.handle(ClientInput::FromScheduler(message));
        }
    }

    fn disconnect(&mut self) {
        self.inbox.clear();
        self.outbox.clear();
        if !self.keeps {
            self.tasks.clear();
        }
        self.unconfirmed = None;
        self.read_count = self.sent_count;
        let reason = "lost".to_owned();
        self.handle(ClientInput::Disconnected { reason });
    }

    fn step(&mut self) {
        let passed = self.random.below(400);
        self.now += Duration::from_millis(passed as u64);
        if self.now >= self.wake_at {
            self.handle(ClientInput::Tick);
        }
        if let Some(at) = self.attempt.take_if(|at| *at <= self.now) {
            self.now = self.now.max(at);
            match self.random.below(3) {
                0 => self.handle(connect_failed(false)),
                _ => self.connect(true),
            }
        }
        match self.random.below(64) {
            0..6 => {
                let keys = self.keys();
                self.submitted += 1;
                let message = UpdateGraph {
                    keys: Keys(keys.clone()),
                    extra: vec![(Value::from("number"), Value::from(self.submitted))],
                    ..UpdateGraph::default()
                };
                let event = ClientInput::Submit {
                    keys: keys.clone(),
                    message: Box::new(message.into()),
                };
                self.add_handles(event, &keys);
            }
            6..9 => {
                let key = self.key();
                self.add_handles(ClientInput::Desire(key.clone()), &[key]);
            }
            9 if !self.was_restarted => {
                // Reports about a task and its data on another comm may cross.
                let mut keys = self.keys();
                keys.retain(|key| self.client.hold(key).is_none());
                self.store(&keys);
            }
            10..18 => {
                let index = self.random.below(self.handles.len());
                if index < self.handles.len() {
                    let hold = self.handles.swap_remove(index);
                    self.handle(ClientInput::Release(hold.clone()));
                    let is_known = self.handles.contains(&hold);
                    assert_eq!(self.client.status(&hold).is_some(), is_known);
                }
            }
            18..20 => {
                let holds = (0..2).filter_map(|_| self.hold()).collect();
                let force = false;
                self.handle(ClientInput::Cancel { holds, force });
            }
            20..22 => {
                let keys = self.keys();
                self.handle(ClientInput::Refresh(keys));
            }
            22 => match self.hold() {
                Some(hold) if self.random.below(2) == 0 => {
                    self.handle(ClientInput::Clone(hold.clone()));
                    self.handles.push(hold);
                }
                _ => self.handle(ClientInput::Settle),
            },
            23 if self.random.below(4) == 0 => {
                self.tasks.clear();
                self.was_restarted = true;
                self.outbox.push_back(ToClient::from(Restart::default()));
            }
            24 if self.random.below(if self.keeps { 2 } else { 8 }) == 0 => self.disconnect(),
            25..37 => self.compute(),
            37..50 => self.read(),
            _ => self.deliver(),
        }
    }

    /// Delivers everything, and compares the client with the scheduler.
    fn settle(&mut self) {
        while !self.inbox.is_empty() || !self.outbox.is_empty() {
            self.read();
            self.deliver();
        }
        self.was_restarted = false;
        if self.keeps && !self.client.is_connected() {
            return;
        }
        assert!(!self.client.is_returning());
        let held: BTreeMap<Key, &str> = self
            .handles
            .iter()
            .filter(|hold| self.client.hold(&hold.key).as_ref() == Some(hold))
            .map(|hold| {
                let status = self.client.status(hold).map(|status| status.name());
                (hold.key.clone(), status.unwrap_or("none"))
            })
            .collect();
        assert_eq!(held.len(), self.client.keys.len(), "seed {}", self.seed);
        let known: BTreeMap<Key, &str> = self
            .tasks
            .iter()
            .map(|(key, task)| (key.clone(), task.name()))
            .collect();
        assert_eq!(held, known, "seed {}: {:#?}", self.seed, self.history);
    }

    fn run(seed: u64) -> Vec<String> {
        let mut simulation = Self::new(seed);
        for step in 0..500 {
            simulation.step();
            if step % 100 == 99 {
                simulation.settle();
            }
        }
        for hold in mem::take(&mut simulation.handles) {
            simulation.handle(ClientInput::Release(hold));
        }
        simulation.settle();
        assert!(simulation.client.ended.is_empty(), "seed {seed}");
        simulation.handle(ClientInput::Close);
        simulation.history
    }
}

const fn is_close(message: &FromClient) -> bool {
    matches!(
        message,
        FromClient::CloseClient(_) | FromClient::CloseStream(_)
    )
}

#[test]
fn random_events_lead_to_a_consistent_state() {
    for seed in 0..200 {
        Simulation::run(seed);
    }
}

#[test]
fn same_seed_gives_same_actions() {
    assert_eq!(Simulation::run(7), Simulation::run(7));
}
