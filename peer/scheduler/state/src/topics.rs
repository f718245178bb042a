//! Topics: events that clients, workers and the scheduler publish, and their subscribers.

use core::ops::Bound;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use daskwire_messages::protocol::{Event as EventMessage, Field as _};
use daskwire_messages::{Key, Value};

use super::{Action, ClientId, LeftTasks, State};

/// The last events of topics, and the clients that are sent new ones.
#[derive(Debug)]
pub(super) struct Topics {
    topics: BTreeMap<Arc<str>, Topic>,
    /// The topics of all stored events by the number of the event, oldest first.
    order: BTreeMap<u64, Arc<str>>,
    event_count: u64,
    /// The size of the stored events in bytes.
    len: usize,
    /// The topics of each client with subscriptions, by its name.
    of_clients: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// Clients with subscriptions that have left, oldest first. They may return.
    left: VecDeque<Arc<str>>,
}

#[derive(Debug, Default)]
struct Topic {
    events: VecDeque<Published>,
    /// The names of clients.
    subscribers: BTreeSet<Arc<str>>,
}

#[derive(Debug)]
struct Published {
    number: u64,
    len: usize,
    /// The time and the message.
    event: Value,
}

/// Maximum size of the stored events of all topics, in bytes. The oldest are dropped for new ones.
const MAX_LEN: usize = 64 << 20;

/// The size of an event without its message, in bytes.
const OVERHEAD: usize = 256;

/// Maximum length of the name of a topic. Events of topics with longer ones are ignored.
const MAX_NAME_LEN: usize = 1 << 10;

/// Maximum number of topics that an event is published in, and that a client subscribes to.
const MAX_TOPICS: usize = 1 << 10;

/// Maximum number of clients that have left and whose subscriptions are kept.
const MAX_LEFT: usize = 256;

impl Topics {
    pub(super) const fn new() -> Self {
        Self {
            topics: BTreeMap::new(),
            order: BTreeMap::new(),
            event_count: 0,
            len: 0,
            of_clients: BTreeMap::new(),
            left: VecDeque::new(),
        }
    }

    /// Stores an event, of which a topic keeps at most `max_count`.
    fn store(&mut self, name: &str, event: Value, max_count: usize) {
        let len = event.heap_len() + name.len() + OVERHEAD;
        if max_count == 0 || len > MAX_LEN {
            return;
        }
        let name: Arc<str> = match self.topics.get_key_value(name) {
            Some((name, _)) => Arc::clone(name),
            None => name.into(),
        };
        let topic = self.topics.entry(Arc::clone(&name)).or_default();
        self.event_count += 1;
        let number = self.event_count;
        topic.events.push_back(Published { number, len, event });
        let is_full = topic.events.len() > max_count;
        self.order.insert(number, Arc::clone(&name));
        self.len += len;
        if is_full {
            self.drop_oldest(&name);
        }
        while self.len > MAX_LEN
            && let Some((_, name)) = self.order.first_key_value()
        {
            let name = Arc::clone(name);
            self.drop_oldest(&name);
        }
    }

    /// Drops the oldest event of a topic, and the topic if nothing is left of it.
    fn drop_oldest(&mut self, name: &str) {
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        if let Some(oldest) = topic.events.pop_front() {
            self.len -= oldest.len;
            self.order.remove(&oldest.number);
        }
        self.drop_empty(name);
    }

    fn drop_empty(&mut self, name: &str) {
        let topic = self.topics.get(name);
        if topic.is_some_and(|topic| topic.events.is_empty() && topic.subscribers.is_empty()) {
            self.topics.remove(name);
        }
    }

    fn subscribe(&mut self, client: &Arc<str>, topic: &str) {
        let topics = self.of_clients.entry(Arc::clone(client)).or_default();
        if topic.len() > MAX_NAME_LEN || topics.len() >= MAX_TOPICS {
            return;
        }
        let name: Arc<str> = match self.topics.get_key_value(topic) {
            Some((name, _)) => Arc::clone(name),
            None => topic.into(),
        };
        topics.insert(Arc::clone(&name));
        let topic = self.topics.entry(name).or_default();
        topic.subscribers.insert(Arc::clone(client));
    }

    fn unsubscribe(&mut self, client: &str, topic: &str) {
        if let Some(topics) = self.of_clients.get_mut(client) {
            topics.remove(topic);
            if topics.is_empty() {
                self.of_clients.remove(client);
            }
        }
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.subscribers.remove(client);
        }
        self.drop_empty(topic);
    }

    /// Keeps the subscriptions of a client that has left. As in Dask, it may return, and does not
    /// subscribe again.
    pub(super) fn client_left(&mut self, client: &Arc<str>) {
        if !self.of_clients.contains_key(client) {
            return;
        }
        self.left.push_back(Arc::clone(client));
        if self.left.len() > MAX_LEFT
            && let Some(oldest) = self.left.pop_front()
        {
            for topic in self.of_clients.remove(&oldest).unwrap_or_default() {
                if let Some(topic) = self.topics.get_mut(&topic) {
                    topic.subscribers.remove(&oldest);
                }
                self.drop_empty(&topic);
            }
        }
    }

    pub(super) fn client_joined(&mut self, client: &str) {
        self.left.retain(|left| **left != *client);
    }
}

impl State {
    /// Subscribes a client to a topic, or ends the subscription.
    pub(super) fn subscribe(&mut self, client: ClientId, topic: &str, is_wanted: bool) {
        if let Some(client) = self.clients.get(&client) {
            match is_wanted {
                true => self.topics.subscribe(&client.name, topic),
                false => self.topics.unsubscribe(&client.name, topic),
            }
        }
    }

    /// Publishes a message in a topic, or in several of them, which may be given as a list.
    /// Messages in topics whose names are not strings are ignored.
    pub(super) fn publish(&mut self, topics: &Value, message: &Value) {
        match topics {
            Value::Str(name) => self.publish_in(name, message, false),
            Value::List(names)
            | Value::Tuple(names)
            | Value::Set(names)
            | Value::FrozenSet(names) => {
                let names = names.iter().take(MAX_TOPICS);
                for name in names.filter_map(Value::as_str) {
                    self.publish_in(name, message, false);
                }
            }
            _ => {}
        }
    }

    /// Publishes a message of a worker, to which its address is added.
    pub(super) fn publish_of_worker(&mut self, worker: &str, topics: &Value, message: Value) {
        let message = match message {
            Value::Dict(entries) if topics.as_str() != Some(worker) => {
                let mut entries = entries.into_vec();
                entries.retain(|(name, _)| name.as_str() != Some("worker"));
                entries.push((Value::from("worker"), Value::from(worker)));
                Value::Dict(entries.into())
            }
            message => message,
        };
        self.publish(topics, &message);
    }

    /// Publishes an action of the scheduler.
    pub(super) fn log<const N: usize>(
        &mut self,
        topics: &[&str],
        action: &str,
        fields: [(&str, Value); N],
    ) {
        let action = [("action", Value::from(action))];
        let message = Value::dict(action.into_iter().chain(fields));
        for topic in topics {
            self.publish_in(topic, &message, true);
        }
    }

    /// Publishes that a worker has left, with the tasks that it had.
    pub(super) fn log_left(&mut self, worker: &str, tasks: &LeftTasks, is_expected: bool) {
        let keys = |keys: &[Key]| Value::Set(keys.iter().map(Key::to_value).collect());
        let fields = [
            ("processing-tasks", keys(&tasks.processing)),
            ("lost-computed-tasks", keys(&tasks.recomputed)),
            ("lost-scattered-tasks", keys(&tasks.lost)),
            ("stimulus_id", Value::from(self.stimulus.to_string())),
            ("expected", Value::from(is_expected)),
        ];
        self.log(&[worker], "remove-worker", fields.clone());
        let [tasks, recomputed, lost, stimulus, expected] = fields;
        let own = ("worker", Value::from(worker));
        let fields = [tasks, recomputed, lost, stimulus, expected, own];
        self.log(&["all"], "remove-worker", fields);
    }

    fn publish_in(&mut self, name: &str, message: &Value, is_own: bool) {
        if name.len() > MAX_NAME_LEN {
            return;
        }
        if self.is_observed {
            self.actions.push(Action::Published {
                topic: name.to_owned(),
                message: message.clone(),
                is_own,
            });
        }
        let time = Value::from(self.now.as_secs_f64());
        let event = Value::tuple([time, message.clone()]);
        let topic = self.topics.topics.get(name);
        let subscribers = topic.iter().flat_map(|topic| &topic.subscribers);
        let clients = subscribers.filter_map(|name| self.by_name.get(name).copied());
        for client in clients.collect::<Vec<_>>() {
            let message = EventMessage {
                topic: name.to_owned(),
                event: event.clone(),
                ..EventMessage::default()
            };
            // A client that does not read its messages misses events.
            self.send_result(client, message);
        }
        self.topics.store(name, event, self.policy.topic_length);
    }

    /// The events of a topic, each a tuple of its time and message, oldest first.
    pub fn events(&self, topic: &str) -> Vec<Value> {
        self.last_events(topic, usize::MAX)
    }

    /// At most `max` of the last [`events`](Self::events) of a topic.
    pub fn last_events(&self, topic: &str, max: usize) -> Vec<Value> {
        let Some(topic) = self.topics.topics.get(topic) else {
            return Vec::new();
        };
        let excess = topic.events.len().saturating_sub(max);
        let events = topic.events.range(excess..);
        events.map(|published| published.event.clone()).collect()
    }

    /// The names of topics with events, with their number, at most 1,000.
    pub fn topic_counts(&self) -> Vec<(String, usize)> {
        let topics = self.topics.topics.iter();
        let topics = topics.filter(|(_, topic)| !topic.events.is_empty());
        let topics = topics.take(1000);
        topics
            .map(|(name, topic)| (name.to_string(), topic.events.len()))
            .collect()
    }

    /// The name of the first topic with events after a bound.
    pub(super) fn topic_after(&self, after: Bound<&String>) -> Option<&str> {
        let after = (after.map(String::as_str), Bound::Unbounded);
        let mut topics = self.topics.topics.range::<str, _>(after);
        let mut topics = topics
            .by_ref()
            .filter(|(_, topic)| !topic.events.is_empty());
        topics.next().map(|(name, _)| &**name)
    }

    /// The last events of all topics, by topic.
    pub fn all_events(&self) -> Vec<(String, Vec<Value>)> {
        let topics = self.topics.topics.iter();
        let topics = topics.filter(|(_, topic)| !topic.events.is_empty());
        topics
            .map(|(name, _)| (name.to_string(), self.events(name)))
            .collect()
    }

    #[cfg(any(test, feature = "checks"))]
    pub(super) fn check_topics(&self) {
        let Topics {
            topics,
            order,
            len,
            of_clients,
            left,
            ..
        } = &self.topics;
        let mut found_len = 0;
        let mut found_count = 0;
        for (name, topic) in topics {
            assert!(!topic.events.is_empty() || !topic.subscribers.is_empty());
            assert!(topic.events.len() <= self.policy.topic_length);
            for event in &topic.events {
                assert_eq!(order.get(&event.number), Some(name));
                found_len += event.len;
                found_count += 1;
            }
            for client in &topic.subscribers {
                assert!(of_clients[client].contains(name));
            }
        }
        assert_eq!((found_count, found_len), (order.len(), *len));
        assert!(*len <= MAX_LEN && left.len() <= MAX_LEFT);
        for (client, subscribed) in of_clients {
            assert!(!subscribed.is_empty() || self.by_name.contains_key(client));
            for topic in subscribed {
                assert!(topics[topic].subscribers.contains(client));
            }
            let is_there = self.by_name.contains_key(client);
            assert!(is_there || left.contains(client), "{client}");
        }
    }
}
