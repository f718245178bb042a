//! Queues: values that are added and removed in order.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap, VecDeque};

use daskwire_messages::{Key, Value};

use super::context::{
    Answer, Awaited, Context, HANDOVER, Handed, Item, Record, Timer, TimerId, cost_of, holder_of,
};
use super::{Change, RequestId, RequestRefusal};

#[derive(Debug, Default)]
pub(crate) struct Queues {
    by_name: HashMap<Key, Queue>,
    /// The results that are held for queues, by queue and task. They outlive their queue, until
    /// the clients that have removed them hold them.
    held: HashMap<(Key, Key), Held>,
    /// The number of the last value that was added to a queue.
    last_item: u64,
}

#[derive(Debug, Default)]
struct Queue {
    /// Maximum number of values.
    max_len: usize,
    /// The number of clients and tasks that use the queue, which is deleted with the last one.
    user_count: u64,
    values: VecDeque<Item>,
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
    values: Vec<Item>,
}

#[derive(Debug, Default)]
struct Held {
    /// The number of values of the queue with this task, waiting or removed.
    count: usize,
    /// For the number of each value that was removed and not confirmed, the timer that ends the wait
    /// for that, if the reply with the value was sent.
    sent: BTreeMap<u64, TimerId>,
    /// The same if it was not yet.
    unsent: BTreeMap<u64, TimerId>,
}

/// How the names of the clients that hold results of this kind begin.
pub(crate) const HOLDER: &str = "queue-";

/// The name of the client that holds the results of a queue.
fn holder(name: &Key) -> String {
    holder_of(HOLDER, name)
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
            let count = queue.user_count;
            context.change(|| Change::QueueUsers { name, count });
            return context.reply_value(id, ());
        }
        if let Err(refusal) = context.charge(cost_of(&name)) {
            return context.reply(id, Err(refusal));
        }
        let max_len = max_len.filter(|len| *len > 0).unwrap_or(i64::MAX);
        self.insert(
            context,
            name,
            usize::try_from(max_len).unwrap_or(usize::MAX),
        );
        context.reply_value(id, ());
    }

    fn insert(&mut self, context: &mut Context, name: Key, max_len: usize) {
        let queue = Queue {
            max_len,
            user_count: 1,
            ..Queue::default()
        };
        self.by_name.insert(name.clone(), queue);
        let max_len = Some(max_len);
        context.change(|| Change::Queue { name, max_len });
    }

    /// Creates a queue as it was before the end of a scheduler.
    pub(crate) fn restore(
        &mut self,
        context: &mut Context,
        name: Key,
        max_len: usize,
    ) -> Result<(), RequestRefusal> {
        if self.by_name.contains_key(&name) {
            let message = format!("{name} is created twice");
            return Err(RequestRefusal::wrong_value(message));
        }
        context.charge(cost_of(&name))?;
        self.insert(context, name, max_len);
        Ok(())
    }

    /// Sets the number of users of a queue as it was before the end of a scheduler.
    pub(crate) fn restore_users(
        &mut self,
        context: &mut Context,
        name: Key,
        count: u64,
    ) -> Result<(), RequestRefusal> {
        let queue = self.by_name.get_mut(&name).ok_or_else(|| missing(&name))?;
        // One more may come.
        queue.user_count = count.clamp(1, u64::from(u32::MAX));
        let count = queue.user_count;
        context.change(|| Change::QueueUsers { name, count });
        Ok(())
    }

    /// Adds a value to a queue as it was before the end of a scheduler.
    pub(crate) fn restore_item(
        &mut self,
        context: &mut Context,
        name: Key,
        value: Record,
    ) -> Result<(), RequestRefusal> {
        let Some(queue) = self.by_name.get_mut(&name) else {
            // It was handed over when its queue was deleted.
            return Ok(());
        };
        context.charge(value.cost() + value.key().map_or(0, cost_of))?;
        if let Some(key) = value.key() {
            let held = self.held.entry((name.clone(), key.clone())).or_default();
            held.count += 1;
        }
        let item = accept(&mut self.last_item, context, &name, value);
        queue.values.push_back(item);
        Ok(())
    }

    /// The results that queues use, by the names of their holders.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (String, &Key)> {
        let held = self.held.keys();
        held.map(|(name, key)| (holder(name), key))
    }

    /// The names of the queues, by the names of their holders.
    pub(crate) fn names(&self) -> impl Iterator<Item = (String, &Key)> {
        self.by_name.keys().map(|name| (holder(name), name))
    }

    /// Keeps a result that a client had removed before the end of a scheduler, and that it may not
    /// have confirmed.
    pub(crate) fn restore_removed(
        &mut self,
        context: &mut Context,
        name: Key,
        key: Key,
    ) -> Result<(), RequestRefusal> {
        context.charge(cost_of(&key))?;
        let held = self.held.entry((name.clone(), key.clone())).or_default();
        held.count += 1;
        self.last_item += 1;
        let number = self.last_item;
        let timer = Timer::Removed { name, key, number };
        let timer = context.start_timer(context.now + HANDOVER, timer);
        held.sent.insert(number, timer);
        Ok(())
    }

    /// Removes a user. With the last one, the queue is deleted, and requests that wait are refused.
    pub(crate) fn release(&mut self, context: &mut Context, name: &Key) {
        let Some(queue) = self.by_name.get_mut(name) else {
            return;
        };
        queue.user_count -= 1;
        let count = queue.user_count;
        if count > 0 {
            let name = name.clone();
            return context.change(|| Change::QueueUsers { name, count });
        }
        let Some(queue) = self.by_name.remove(name) else {
            return;
        };
        context.refund(cost_of(name));
        let mut items: Vec<Item> = queue.values.into();
        for (getter, got) in queue.getters {
            context.end_wait(getter);
            context.reply(getter, Err(missing(name)));
            items.extend(got.values);
        }
        let mut values = Vec::with_capacity(items.len());
        for Item { number, value } in items {
            context.change(|| gone(number));
            values.push(value);
        }
        context.change(|| Change::Queue {
            name: name.clone(),
            max_len: None,
        });
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
        let Self {
            by_name,
            held,
            last_item,
        } = self;
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
            let item = accept(last_item, context, name, value);
            queue.values.push_back(item);
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

    /// Handles that a client holds a future that it has removed.
    pub(crate) fn received(&mut self, context: &mut Context, name: &Key, key: &Key) {
        let Some(held) = self.held.get_mut(&(name.clone(), key.clone())) else {
            return;
        };
        // It may be known here before it is known that the reply was sent.
        let numbers = held.sent.keys().chain(held.unsent.keys());
        if let Some(number) = { numbers }.next().copied() {
            self.end_removal(context, name, key, number);
        }
    }

    /// Ends the wait until a client holds a future that it has removed.
    pub(crate) fn end_removal(
        &mut self,
        context: &mut Context,
        name: &Key,
        key: &Key,
        number: u64,
    ) {
        let Some(held) = self.held.get_mut(&(name.clone(), key.clone())) else {
            return;
        };
        let timer = held.sent.remove(&number).or_else(|| {
            let timer = held.unsent.remove(&number)?;
            context.change(|| gone(number));
            Some(timer)
        });
        if let Some(timer) = timer {
            context.stop_timer(timer);
            self.release_one(context, name, key);
        }
    }

    /// Ends values of which the reply was sent. A scheduler that continues puts others back.
    pub(crate) fn sent(&mut self, context: &mut Context, name: &Key, items: &[Item]) {
        for Item { number, value } in items {
            context.refund(value.cost());
            context.change(|| gone(*number));
            if let Some(key) = value.key()
                && let Some(held) = self.held.get_mut(&(name.clone(), key.clone()))
                && let Some(timer) = held.unsent.remove(number)
            {
                held.sent.insert(*number, timer);
            }
        }
    }

    /// Returns values to the front of a queue, because the reply with them was not sent.
    pub(crate) fn give_back(&mut self, context: &mut Context, name: &Key, items: Vec<Item>) {
        for mut item in items.into_iter().rev() {
            if let Some(key) = item.value.key() {
                let held = self.held.get_mut(&(name.clone(), key.clone()));
                let timer = held.and_then(|held| {
                    let own = held.unsent.remove(&item.number);
                    own.or_else(|| {
                        // The client of another value with the task has confirmed.
                        let other = held.unsent.pop_last().or_else(|| held.sent.pop_last());
                        let (number, timer) = other?;
                        context.change(|| gone(number));
                        item = accept(&mut self.last_item, context, name, item.value.clone());
                        Some(timer)
                    })
                });
                let Some(timer) = timer else {
                    // The client has confirmed that it holds the result.
                    context.refund(item.value.cost());
                    continue;
                };
                context.stop_timer(timer);
            }
            match self.by_name.get_mut(name) {
                Some(queue) => queue.values.push_front(item),
                None => {
                    context.change(|| gone(item.number));
                    self.discard(context, name, &item.value);
                }
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

    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn objects(&self, context: &Context) -> Vec<Change> {
        let mut objects = Vec::new();
        let mut items: BTreeMap<u64, (Key, Record)> = BTreeMap::new();
        for (name, queue) in &self.by_name {
            objects.push(Change::Queue {
                name: name.clone(),
                max_len: Some(queue.max_len),
            });
            objects.push(Change::QueueUsers {
                name: name.clone(),
                count: queue.user_count,
            });
            let got = queue.getters.values().flat_map(|getter| &getter.values);
            let handed = context.handed_items(name);
            let handed = handed.filter(|item| {
                let Some(key) = item.value.key() else {
                    return true;
                };
                let held = self.held.get(&(name.clone(), key.clone()));
                held.is_some_and(|held| held.unsent.contains_key(&item.number))
            });
            for Item { number, value } in queue.values.iter().chain(got).chain(handed) {
                items.insert(*number, (name.clone(), value.clone()));
            }
        }
        objects.sort_by_cached_key(|object| format!("{object:?}"));
        let items = items.into_values().zip(1..);
        objects.extend(items.map(|(value, number)| Change::Item {
            number,
            value: Some(value),
        }));
        objects
    }

    /// The memory that all queues count, without what was handed over. Panics if a queue is
    /// inconsistent.
    #[cfg(any(test, feature = "checks"))]
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
            let items = queue.values.iter().chain(got).map(|item| &item.value);
            for value in items.chain(queue.putters.values()) {
                cost += value.cost();
                if let Some(key) = value.key() {
                    *counts.entry((name.clone(), key.clone())).or_default() += 1;
                }
            }
        }
        for (place, held) in &self.held {
            let removed = held.sent.len() + held.unsent.len();
            assert_eq!(held.count, counts.remove(place).unwrap_or(0) + removed);
            let mut timers = held.sent.values().chain(held.unsent.values());
            assert!(timers.all(|timer| context.has_timer(*timer)));
            cost += held.count * cost_of(&place.1);
        }
        assert_eq!(counts, HashMap::new());
        cost
    }
}

/// Numbers a value that a queue accepts.
fn accept(last_item: &mut u64, context: &mut Context, name: &Key, value: Record) -> Item {
    *last_item += 1;
    let number = *last_item;
    context.change(|| Change::Item {
        number,
        value: Some((name.clone(), value.clone())),
    });
    Item { number, value }
}

const fn gone(number: u64) -> Change {
    Change::Item {
        number,
        value: None,
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
    for item in &getter.values {
        let Some(key) = item.value.key() else {
            continue;
        };
        let number = item.number;
        let (name, key) = (name.clone(), key.clone());
        if let Some(held) = held.get_mut(&(name.clone(), key.clone())) {
            let timer = Timer::Removed { name, key, number };
            let timer = context.start_timer(context.now + HANDOVER, timer);
            held.unsent.insert(number, timer);
        }
    }
    let values = getter.values.clone();
    let name = name.clone();
    context.hand_over(id, Handed::Items { name, values });
    let mut values: Vec<Record> = getter.values.into_iter().map(|item| item.value).collect();
    let answer = match getter.is_batch {
        true => Answer::Records(values),
        false => Answer::Record(values.pop().unwrap_or(Record::Data(Value::None))),
    };
    context.reply(id, Ok(answer));
}
