//! The worker's state machine for fuzz targets.

use core::time::Duration;
use std::collections::BTreeSet;

use super::state::{
    Action, Answer, Description, Event, Executed, Failure, Fetched, Limits, Peer, State,
};
use crate::protocol::{FromWorker, ToWorker};
use crate::{Key, Value};

/// A peer's answer to a request for data.
#[derive(Clone, Copy, Debug)]
pub enum Reply {
    /// The data of the keys whose bits are set.
    Data(u32),
    /// The peer is busy.
    Busy,
    /// The peer cannot be reached.
    Gone,
}

/// The worker's state machine, and its pending work. After each event, all
/// redundant state is checked for consistency.
#[derive(Debug)]
pub struct WorkerMachine {
    state: State,
    running: Vec<Key>,
    asked: Vec<(Peer, Vec<Key>)>,
    timers: Vec<Event>,
    sent: Vec<FromWorker>,
    /// The keys in the store.
    store: BTreeSet<Key>,
}

impl WorkerMachine {
    /// Returns a worker at an address, with one GPU.
    pub fn new(address: &str, nthreads: usize, transfer_count: usize) -> Self {
        let limits = Limits {
            nthreads,
            transfer_count,
            ..Limits::default()
        };
        Self {
            state: State::new(address, limits, [("GPU".to_owned(), 1.0)]),
            running: Vec::new(),
            asked: Vec::new(),
            timers: Vec::new(),
            sent: Vec::new(),
            store: BTreeSet::new(),
        }
    }

    fn events(&mut self, events: impl IntoIterator<Item = Event>) {
        for action in self.state.handle_all(Duration::from_secs(1), events) {
            match action {
                Action::Execute(run) => self.running.push(run.key),
                Action::Fetch { peer, keys } => self.asked.push((peer, keys)),
                Action::Wake { event, .. } => self.timers.push(*event),
                Action::Send(message) => self.sent.push(*message),
                Action::Forget(key) => {
                    self.store.remove(&key);
                }
                // Pending requests may end at any time anyway.
                Action::Disconnect(_) => {}
                Action::Report(_) => {}
            }
        }
        self.state.check();
        assert_eq!(self.store, self.state.in_memory());
    }

    /// The messages sent since the last call.
    pub fn sent(&mut self) -> Vec<FromWorker> {
        core::mem::take(&mut self.sent)
    }

    /// Handles a batch of messages from the scheduler.
    pub fn batch(&mut self, batch: Vec<ToWorker>) {
        self.events(batch.into_iter().map(Event::FromScheduler));
    }

    /// Ends one of the executing tasks. Returns `false` if there is none.
    pub fn executed(&mut self, index: usize, is_good: bool) -> bool {
        let Some(key) = take(&mut self.running, index) else {
            return false;
        };
        let failure = || Failure {
            exception: Value::from("an exception"),
            exception_text: String::new(),
            traceback_text: String::new(),
        };
        let outcome = match is_good {
            true => {
                self.store.insert(key.clone());
                Ok(description())
            }
            false => Err(Box::new(failure())),
        };
        self.events([Event::Executed(Executed {
            key,
            outcome,
            start: Duration::ZERO,
            stop: Duration::from_secs(1),
            steps: Vec::new(),
            thread: None,
        })]);
        true
    }

    /// Fails one of the executing tasks because its inputs were lost.
    pub fn inputs_lost(&mut self, index: usize, lost: Vec<Key>) {
        if let Some(key) = take(&mut self.running, index) {
            self.events([Event::InputsLost { key, lost }]);
        }
    }

    /// Answers one of the requests for data. Returns `false` if there is none.
    pub fn answered(&mut self, index: usize, reply: Reply) -> bool {
        let Some((peer, keys)) = take(&mut self.asked, index) else {
            return false;
        };
        let answer = match reply {
            Reply::Busy => Answer::Busy,
            Reply::Gone => Answer::Gone,
            Reply::Data(which) => {
                let keys = keys.into_iter().enumerate();
                let found = keys.filter(|(position, _)| which >> (position % 32) & 1 == 1);
                let found = found.map(|(_, key)| (key, description()));
                Answer::Data(self.store(found))
            }
        };
        self.events([Event::Fetched(Fetched {
            peer,
            answer,
            start: Duration::ZERO,
            stop: Duration::from_secs(1),
        })]);
        true
    }

    fn store(&mut self, data: impl Iterator<Item = (Key, Description)>) -> Vec<(Key, Description)> {
        let data: Vec<(Key, Description)> = data.collect();
        self.store.extend(data.iter().map(|(key, _)| key.clone()));
        data
    }

    /// Fires one of the timers. Returns `false` if there is none.
    pub fn time_passed(&mut self, index: usize) -> bool {
        let timer = take(&mut self.timers, index);
        let is_some = timer.is_some();
        self.events(timer);
        is_some
    }

    /// Marks data as lost.
    pub fn lost(&mut self, keys: Vec<Key>) {
        self.events([Event::Lost(keys)]);
    }

    /// Stores data sent by a client.
    pub fn stored(&mut self, keys: Vec<Key>) {
        let data = self.store(keys.into_iter().map(|key| (key, description())));
        self.events([Event::Stored(data)]);
    }

    /// Pauses or resumes the worker because of the memory its process takes.
    pub fn paused(&mut self, is_paused: bool) {
        self.events([Event::Paused(is_paused)]);
    }

    /// Sets whether the store is full.
    pub fn full(&mut self, is_full: bool) {
        self.events([Event::StoreFull(is_full)]);
    }

    /// The keys that the worker knows.
    pub fn keys(&self) -> Vec<Key> {
        self.state.keys()
    }

    /// The number of tasks in each state.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.state.counts().collect()
    }
}

fn take<T>(from: &mut Vec<T>, index: usize) -> Option<T> {
    let len = from.len();
    (len != 0).then(|| from.swap_remove(index % len))
}

fn description() -> Description {
    Description {
        nbytes: 1,
        ..Description::default()
    }
}
