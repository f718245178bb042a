//! Tests of the extensions without a scheduler: which requests are answered, in which order, and
//! which results are held.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use daskwire_messages::protocol::*;
use daskwire_messages::{Key, Value};

use super::*;

mod datasets;
mod events;
mod multi_locks;
mod queues;
mod random;
mod restored;
mod semaphores;
mod variables;

/// The extensions, the tasks that are known, and the effects.
struct World {
    extensions: Extensions,
    now: Duration,
    tasks: BTreeSet<Key>,
    /// The holders of results.
    held: BTreeSet<(String, Key)>,
    replies: BTreeMap<RequestId, Result<Answer, RequestRefusal>>,
    last_id: u64,
    /// The changes since the objects were restored.
    changes: Vec<Change>,
}

impl World {
    fn new() -> Self {
        Self::with_limit(1 << 20)
    }

    fn with_limit(max_len: usize) -> Self {
        Self {
            extensions: Self::extensions(max_len),
            now: Duration::from_secs(1_000),
            tasks: BTreeSet::new(),
            held: BTreeSet::new(),
            replies: BTreeMap::new(),
            last_id: 0,
            changes: Vec::new(),
        }
    }

    fn extensions(max_len: usize) -> Extensions {
        let mut extensions = Extensions::new(max_len);
        extensions.keep_changes();
        extensions
    }

    fn settle(&mut self) {
        self.extensions.resume(|key| self.tasks.contains(key));
        for effect in self.extensions.effects() {
            match effect {
                Effect::Reply(id, reply) => {
                    assert!(self.replies.insert(id, reply).is_none(), "{id:?} twice");
                }
                Effect::Hold { holder, key } => {
                    self.held.insert((holder, key));
                }
                Effect::Changed(change) => self.changes.push(change),
                Effect::Release { holder, key } => {
                    assert!(self.held.remove(&(holder, key)), "it was not held");
                }
            }
        }
        self.extensions.check();
    }

    fn request(&mut self, request: impl Into<Request>) -> RequestId {
        self.last_id += 1;
        let id = RequestId(self.last_id);
        let request = request.into();
        self.extensions.advance(self.now);
        match task_of(&request).filter(|key| !self.tasks.contains(*key)) {
            Some(key) => self.extensions.await_task(id, key.clone(), request),
            None => self.extensions.request(id, request),
        }
        self.settle();
        id
    }

    fn add_task(&mut self, key: &str) {
        let key = Key::from(key);
        self.extensions.task_added(&key);
        self.tasks.insert(key);
        self.settle();
    }

    fn message(&mut self, message: impl Into<FromClient>) {
        self.extensions.advance(self.now);
        self.extensions.message(message.into());
        self.settle();
    }

    fn drop_request(&mut self, id: RequestId) {
        self.extensions.advance(self.now);
        self.extensions.dropped(id);
        self.settle();
    }

    fn pass(&mut self, seconds: f64) {
        self.now += Duration::from_secs_f64(seconds);
        self.extensions.advance(self.now);
        self.settle();
    }

    fn waits(&self, id: RequestId) -> bool {
        !self.replies.contains_key(&id)
    }

    /// The reply to a request, which is delivered: data, or a key with a `*`.
    fn reply(&mut self, id: RequestId) -> String {
        let text = |record: &Record| match record {
            Record::Future(key) => format!("*{key}"),
            Record::Data(data) => data.to_string(),
        };
        let reply = self.replies.remove(&id).expect("it was answered");
        self.extensions.replied(id);
        self.settle();
        match reply {
            Ok(Answer::Value(value)) => value.to_string(),
            Ok(Answer::Record(record) | Answer::Read(record, _)) => text(&record),
            Ok(Answer::Records(records)) => {
                let records: Vec<String> = records.iter().map(text).collect();
                format!("[{}]", records.join(", "))
            }
            Err(refusal) => format!("{}: {refusal}", refusal.class()),
        }
    }

    fn ask(&mut self, request: impl Into<Request>) -> String {
        let id = self.request(request);
        self.reply(id)
    }

    fn holders(&self, key: &str) -> Vec<&str> {
        let key = Key::from(key);
        let held = self.held.iter().filter(|(_, held)| *held == key);
        held.map(|(holder, _)| holder.as_str()).collect()
    }

    /// Asserts that nothing takes memory.
    fn assert_empty(&self) {
        assert_eq!(self.extensions.context.used(), 0);
        assert_eq!(self.held, BTreeSet::new());
    }
}
