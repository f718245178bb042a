//! Queues: values that are added and removed in order.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap, VecDeque};

use daskwire_messages::{Key, Value};

use super::context::{Answer, Awaited, Context, HANDOVER, Handed, Record, Timer, TimerId, cost_of};
use super::{RequestId, RequestRefusal};

#[derive(Debug, Default)]
pub(crate) struct Queues {
    by_name: HashMap<Key, Queue>,
    /// The results that are held for queues, by queue and task. They outlive their queue, until
    /// the clients that have removed them hold them.
    held: HashMap<(Key, Key), Held>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Maximum number of values.
    max_len: usize,
    /// The number of clients and tasks that use the queue, which is deleted with the last one.
    user_count: u64,
    values: VecDeque<Record>,
    getters: BTreeMap<RequestId, Getter>,
    /// The requests that wait for room, with their values.
    putters: BTreeMap<RequestId, Record>,
}

/// A request for values.
#[derive(Debug)]
struct Getter {
    /// The number of values that are requested.
    wanted: usize,
    /// Whether the reply is a list.
    is_batch: bool,
    values: Vec<Record>,
}

#[derive(Debug, Default)]
struct Held {
    /// The number of values of the queue with this task, waiting or removed.
    count: usize,
    /// For each value that was removed and not confirmed, the timer that ends the wait for that,
    /// oldest first.
    removed: VecDeque<TimerId>,
}

/// The name of the client that holds the results of a queue.
fn holder(name: &Key) -> String {
    format!("queue-{name}")
}

fn missing(name: &Key) -> RequestRefusal {
    RequestRefusal::Missing {
        what: "queue",
        name: name.clone(),
    }
}

impl Queues {
    pub(crate) fn create(
        &mut self,
        context: &mut Context,
        id: RequestId,
        name: Key,
        max_len: Option<i64>,
    ) {
        if let Some(queue) = self.by_name.get_mut(&name) {
            queue.user_count += 1;
            return context.reply_value(id, ());
        }
        if let Err(refusal) = context.charge(cost_of(&name)) {
            return context.reply(id, Err(refusal));
        }
        let max_len = max_len.filter(|len| *len > 0).unwrap_or(i64::MAX);
        let queue = Queue {
            max_len: usize::try_from(max_len).unwrap_or(usize::MAX),
            user_count: 1,
            ..Queue::default()
        };
        self.by_name.insert(name, queue);
        context.reply_value(id, ());
    }

    /// Removes a user. With the last one, the queue is deleted, and requests that wait are refused.
    pub(crate) fn release(&mut self, context: &mut Context, name: &Key) {
        let Some(queue) = self.by_name.get_mut(name) else {
            return;
        };
        queue.user_count -= 1;
        if queue.user_count > 0 {
            return;
        }
        let Some(queue) = self.by_name.remove(name) else {
            return;
        };
        context.refund(cost_of(name));
        let mut values: Vec<Record> = queue.values.into();
        for (getter, got) in queue.getters {
            context.end_wait(getter);
            context.reply(getter, Err(missing(name)));
            values.extend(got.values);
        }
        for (putter, value) in queue.putters {
            context.end_wait(putter);
            context.reply(putter, Err(missing(name)));
            values.push(value);
        }
        for value in values {
            self.discard(context, name, &value);
        }
    }

    pub(crate) fn put(
        &mut self,
        context: &mut Context,
        id: RequestId,
        name: Key,
        value: Record,
        deadline: Option<Duration>,
    ) {
        if !self.by_name.contains_key(&name) {
            return context.reply(id, Err(missing(&name)));
        }
        let cost = value.cost() + value.key().map_or(0, cost_of);
        if let Err(refusal) = context.charge(cost) {
            return context.reply(id, Err(refusal));
        }
        if let Some(key) = value.key() {
            let held = self.held.entry((name.clone(), key.clone())).or_default();
            held.count += 1;
            context.hold(holder(&name), key);
        }
        if let Some(queue) = self.by_name.get_mut(&name) {
            queue.putters.insert(id, value);
        }
        self.serve(context, &name);
        let queue = self.by_name.get(&name);
        let awaited = Awaited::Room { name: name.clone() };
        if queue.is_some_and(|queue| queue.putters.contains_key(&id))
            && !context.wait(id, awaited, deadline)
        {
            self.leave(context, id, &name);
        }
    }

    pub(crate) fn get(
        &mut self,
        context: &mut Context,
        id: RequestId,
        name: Key,
        batch: Option<Value>,
        deadline: Option<Duration>,
    ) {
        let Some(queue) = self.by_name.get_mut(&name) else {
            return context.reply(id, Err(missing(&name)));
        };
        let wanted = match batch {
            None | Some(Value::None | Value::Bool(false)) => None,
            Some(Value::Bool(true)) => Some(queue.values.len()),
            Some(Value::Int(_)) if deadline.is_some() => {
                return context.reply(id, Err(RequestRefusal::BatchWithTimeout));
            }
            Some(Value::Int(count)) => Some(usize::try_from(count.max(0)).unwrap_or(usize::MAX)),
            Some(other) => {
                let message = format!("batch is {}, not a bool or an int", other.type_name());
                return context.reply(id, Err(RequestRefusal::wrong_type(message)));
            }
        };
        if wanted == Some(0) {
            return context.reply(id, Ok(Answer::Records(Vec::new())));
        }
        let getter = Getter {
            wanted: wanted.unwrap_or(1),
            is_batch: wanted.is_some(),
            values: Vec::new(),
        };
        queue.getters.insert(id, getter);
        self.serve(context, &name);
        let queue = self.by_name.get(&name);
        let awaited = Awaited::Item { name: name.clone() };
        if queue.is_some_and(|queue| queue.getters.contains_key(&id))
            && !context.wait(id, awaited, deadline)
        {
            self.leave(context, id, &name);
        }
    }

    pub(crate) fn len(&self, context: &mut Context, id: RequestId, name: &Key) {
        match self.by_name.get(name) {
            Some(queue) => context.reply_value(id, queue.values.len()),
            None => context.reply(id, Err(missing(name))),
        }
    }

    /// Hands values to the requests that wait for them, and lets values in that wait for room.
    fn serve(&mut self, context: &mut Context, name: &Key) {
        let Self { by_name, held } = self;
        let Some(queue) = by_name.get_mut(name) else {
            return;
        };
        loop {
            while let Some(mut first) = queue.getters.first_entry() {
                let getter = first.get_mut();
                let count = queue.values.len().min(getter.wanted - getter.values.len());
                getter.values.extend(queue.values.drain(..count));
                if getter.values.len() < getter.wanted {
                    break;
                }
                let (id, getter) = first.remove_entry();
                hand_over(held, context, id, name, getter);
            }
            if queue.values.len() >= queue.max_len {
                return;
            }
            let Some((id, value)) = queue.putters.pop_first() else {
                return;
            };
            queue.values.push_back(value);
            context.end_wait(id);
            context.reply_value(id, ());
        }
    }

    /// Ends the use of a value that was not handed over.
    fn discard(&mut self, context: &mut Context, name: &Key, value: &Record) {
        context.refund(value.cost());
        if let Some(key) = value.key() {
            self.release_one(context, name, key);
        }
    }

    fn release_one(&mut self, context: &mut Context, name: &Key, key: &Key) {
        let place = (name.clone(), key.clone());
        if let Some(held) = self.held.get_mut(&place) {
            context.refund(cost_of(key));
            held.count -= 1;
            if held.count == 0 {
                self.held.remove(&place);
                context.release(holder(name), key);
            }
        }
    }

    /// Handles that a client holds a future that it has removed, or has had the time for that.
    pub(crate) fn received(&mut self, context: &mut Context, name: &Key, key: &Key) {
        let place = (name.clone(), key.clone());
        let held = self.held.get_mut(&place);
        if let Some(timer) = held.and_then(|held| held.removed.pop_front()) {
            context.stop_timer(timer);
            self.release_one(context, name, key);
        }
    }

    /// Returns values to the front of a queue, because the reply with them was not sent.
    pub(crate) fn give_back(&mut self, context: &mut Context, name: &Key, values: Vec<Record>) {
        for value in values.into_iter().rev() {
            if let Some(key) = value.key() {
                let held = self.held.get_mut(&(name.clone(), key.clone()));
                let Some(timer) = held.and_then(|held| held.removed.pop_back()) else {
                    // The client has confirmed that it holds the result.
                    context.refund(value.cost());
                    continue;
                };
                context.stop_timer(timer);
            }
            match self.by_name.get_mut(name) {
                Some(queue) => queue.values.push_front(value),
                None => self.discard(context, name, &value),
            }
        }
        self.serve(context, name);
    }

    /// Forgets a request whose wait has ended. The values that it was to get stay first.
    pub(crate) fn leave(&mut self, context: &mut Context, id: RequestId, name: &Key) {
        let Some(queue) = self.by_name.get_mut(name) else {
            return;
        };
        if let Some(getter) = queue.getters.remove(&id) {
            for value in getter.values.into_iter().rev() {
                queue.values.push_front(value);
            }
        }
        if let Some(value) = queue.putters.remove(&id) {
            self.discard(context, name, &value);
        }
        self.serve(context, name);
    }

    /// The memory that all queues count, without what was handed over. Panics if a queue is
    /// inconsistent.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn check(&self, context: &Context) -> usize {
        let mut cost = 0;
        let mut counts: HashMap<(Key, Key), usize> = HashMap::new();
        for (name, queue) in &self.by_name {
            cost += cost_of(name);
            assert!(queue.values.is_empty() || queue.getters.is_empty());
            assert!(queue.values.len() >= queue.max_len || queue.putters.is_empty());
            assert!(queue.user_count > 0);
            for getter in queue.getters.keys() {
                let awaited = context.awaited(*getter);
                assert!(matches!(awaited, Some(Awaited::Item { name: of }) if of == name));
            }
            for putter in queue.putters.keys() {
                let awaited = context.awaited(*putter);
                assert!(matches!(awaited, Some(Awaited::Room { name: of }) if of == name));
            }
            let got = queue.getters.values().flat_map(|getter| &getter.values);
            for value in queue.values.iter().chain(got).chain(queue.putters.values()) {
                cost += value.cost();
                if let Some(key) = value.key() {
                    *counts.entry((name.clone(), key.clone())).or_default() += 1;
                }
            }
        }
        for (place, held) in &self.held {
            let removed = held.removed.len();
            assert_eq!(held.count, counts.remove(place).unwrap_or(0) + removed);
            assert!(held.removed.iter().all(|timer| context.has_timer(*timer)));
            cost += held.count * cost_of(&place.1);
        }
        assert_eq!(counts, HashMap::new());
        cost
    }
}

/// Replies with values that were removed from a queue.
fn hand_over(
    held: &mut HashMap<(Key, Key), Held>,
    context: &mut Context,
    id: RequestId,
    name: &Key,
    getter: Getter,
) {
    context.end_wait(id);
    for key in getter.values.iter().filter_map(Record::key) {
        let (name, key) = (name.clone(), key.clone());
        if let Some(held) = held.get_mut(&(name.clone(), key.clone())) {
            let timer = Timer::Removed { name, key };
            let timer = context.start_timer(context.now + HANDOVER, timer);
            held.removed.push_back(timer);
        }
    }
    let values = getter.values.clone();
    let name = name.clone();
    context.hand_over(id, Handed::Items { name, values });
    let mut values = getter.values;
    let answer = match getter.is_batch {
        true => Answer::Records(values),
        false => Answer::Record(values.pop().unwrap_or(Record::Data(Value::None))),
    };
    context.reply(id, Ok(answer));
}
