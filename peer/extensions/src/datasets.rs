//! Published datasets: objects of clients, and the results that they refer to.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use daskwire_messages::protocol::{
    Field as _, PublishDelete, PublishGet, PublishList, PublishPut, Request,
};
use daskwire_messages::{Key, Value};

use super::context::{Answer, Awaited, Context, HANDOVER, Timer, TimerId, cost_of, holder_of};
use super::{Change, RequestId, RequestRefusal};

#[derive(Debug, Default)]
pub(crate) struct Datasets {
    by_name: BTreeMap<Key, Dataset>,
    /// The messages on streams that were received before the requests with their ids.
    flushed: HashMap<Key, TimerId>,
    /// The requests that wait for such messages.
    waiters: HashMap<Key, BTreeSet<RequestId>>,
}

#[derive(Debug)]
struct Dataset {
    keys: Vec<Key>,
    data: Value,
}

impl Dataset {
    fn cost(&self, name: &Key) -> usize {
        cost_of(name) + self.keys.heap_len() + self.data.heap_len()
    }

    fn change(&self, name: &Key) -> Change {
        Change::Dataset {
            name: name.clone(),
            value: Some((self.keys.clone(), self.data.clone())),
        }
    }

    fn value(&self) -> Value {
        let keys = self.keys.iter().map(Key::to_value);
        Value::dict([("data", self.data.clone()), ("keys", Value::list(keys))])
    }
}

/// How the names of the clients that hold results of this kind begin.
pub(crate) const HOLDER: &str = "published-";

/// The name of the client that holds the results of a dataset.
fn holder(name: &Key) -> String {
    holder_of(HOLDER, name)
}

impl Datasets {
    /// Handles a request that follows a message on the client's stream.
    pub(crate) fn request(&mut self, context: &mut Context, id: RequestId, request: Request) {
        let uid = match &request {
            Request::PublishPut(request) => request.uid.clone(),
            Request::PublishDelete(request) => request.uid.clone(),
            _ => None,
        };
        let Some(uid) = uid else {
            return self.handle(context, id, request);
        };
        if let Some(timer) = self.flushed.remove(&uid) {
            context.stop_timer(timer);
            context.refund(cost_of(&uid));
            return self.handle(context, id, request);
        }
        let awaited = Awaited::Flush {
            uid: uid.clone(),
            request: Box::new(request),
        };
        let deadline = context.now.checked_add(HANDOVER);
        if context.wait(id, awaited, deadline) {
            self.waiters.entry(uid).or_default().insert(id);
        }
    }

    /// Handles the message on a client's stream that a request follows.
    pub(crate) fn flush(&mut self, context: &mut Context, uid: Key) {
        if let Some(waiters) = self.waiters.remove(&uid) {
            for id in waiters {
                if let Some((Awaited::Flush { request, .. }, _)) = context.end_wait(id) {
                    self.handle(context, id, *request);
                }
            }
        } else if !self.flushed.contains_key(&uid) && context.charge(cost_of(&uid)).is_ok() {
            // Without memory for it, the request is refused when it comes.
            let timer = Timer::Flushed { uid: uid.clone() };
            let timer = context.start_timer(context.now + HANDOVER, timer);
            self.flushed.insert(uid, timer);
        }
    }

    /// Forgets a message whose request has not come.
    pub(crate) fn forget_flush(&mut self, context: &mut Context, uid: &Key) {
        if self.flushed.remove(uid).is_some() {
            context.refund(cost_of(uid));
        }
    }

    /// Forgets a request whose wait has ended.
    pub(crate) fn leave(&mut self, id: RequestId, uid: &Key) {
        if let Some(waiters) = self.waiters.get_mut(uid) {
            waiters.remove(&id);
            if waiters.is_empty() {
                self.waiters.remove(uid);
            }
        }
    }

    fn handle(&mut self, context: &mut Context, id: RequestId, request: Request) {
        let result = match request {
            Request::PublishPut(request) => self.put(context, request),
            Request::PublishDelete(request) => Ok(self.delete(context, request)),
            Request::PublishGet(request) => Ok(self.get(&request)),
            Request::PublishList(PublishList { .. }) => Ok(self.list()),
            other => Err(RequestRefusal::unsupported(other.op())),
        };
        context.reply(id, result.map(Answer::Value));
    }

    /// Publishes all datasets of a request or none.
    fn put(&mut self, context: &mut Context, request: PublishPut) -> Result<Value, RequestRefusal> {
        let datasets = read(request)?;
        let mut cost = 0;
        let mut names = BTreeSet::new();
        for (name, dataset, is_override) in &datasets {
            let is_new = names.insert(name) && !self.by_name.contains_key(name);
            if !is_override && !is_new {
                return Err(RequestRefusal::DatasetExists { name: name.clone() });
            }
            cost += dataset.cost(name);
        }
        context.charge(cost)?;
        for (name, dataset, _) in datasets {
            for key in &dataset.keys {
                context.hold(holder(&name), key);
            }
            context.change(|| dataset.change(&name));
            let kept: BTreeSet<Key> = dataset.keys.iter().cloned().collect();
            if let Some(old) = self.by_name.insert(name.clone(), dataset) {
                forget(context, &name, &old, &kept);
            }
        }
        Ok(Value::None)
    }

    /// Publishes a dataset as it was before the end of a scheduler.
    pub(crate) fn restore(
        &mut self,
        context: &mut Context,
        name: Key,
        (keys, data): (Vec<Key>, Value),
    ) -> Result<(), RequestRefusal> {
        if self.by_name.contains_key(&name) {
            return Err(RequestRefusal::DatasetExists { name });
        }
        let dataset = Dataset { keys, data };
        context.charge(dataset.cost(&name))?;
        context.change(|| dataset.change(&name));
        self.by_name.insert(name, dataset);
        Ok(())
    }

    /// The results that datasets use, by the names of their holders.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (String, &Key)> {
        let datasets = self.by_name.iter();
        datasets.flat_map(|(name, dataset)| dataset.keys.iter().map(|key| (holder(name), key)))
    }

    fn delete(&mut self, context: &mut Context, request: PublishDelete) -> Value {
        let names = request.names.unwrap_or_default().into_iter();
        for name in names.chain(request.name) {
            if let Some(old) = self.by_name.remove(&name) {
                context.change(|| Change::Dataset {
                    name: name.clone(),
                    value: None,
                });
                forget(context, &name, &old, &BTreeSet::new());
            }
        }
        Value::None
    }

    fn get(&self, request: &PublishGet) -> Value {
        let find = |name| self.by_name.get(name).map(Dataset::value);
        match (&request.names, &request.name) {
            (Some(names), _) => Value::list(names.iter().map(find)),
            (None, name) => Value::from(name.as_ref().and_then(find)),
        }
    }

    /// The names in the order of their strings.
    fn list(&self) -> Value {
        let mut names: Vec<&Key> = self.by_name.keys().collect();
        names.sort_by_cached_key(|name| name.to_string());
        Value::list(names.into_iter().map(Key::to_value))
    }

    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn objects(&self) -> Vec<Change> {
        let datasets = self.by_name.iter();
        datasets
            .map(|(name, dataset)| dataset.change(name))
            .collect()
    }

    /// The memory that all datasets count. Panics if they are inconsistent.
    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn check(&self, context: &Context) -> usize {
        for (uid, waiters) in &self.waiters {
            assert!(!waiters.is_empty() && !self.flushed.contains_key(uid));
            for waiter in waiters {
                let awaited = context.awaited(*waiter);
                assert!(matches!(awaited, Some(Awaited::Flush { uid: of, .. }) if of == uid));
            }
        }
        assert!(self.flushed.values().all(|timer| context.has_timer(*timer)));
        let datasets = self.by_name.iter();
        let cost: usize = datasets.map(|(name, dataset)| dataset.cost(name)).sum();
        cost + self.flushed.keys().map(cost_of).sum::<usize>()
    }
}

/// Ends the use of a dataset; the results of the keys in `kept` stay held.
fn forget(context: &mut Context, name: &Key, old: &Dataset, kept: &BTreeSet<Key>) {
    context.refund(old.cost(name));
    let released: BTreeSet<&Key> = old.keys.iter().collect();
    for key in released {
        if !kept.contains(key) {
            context.release(holder(name), key);
        }
    }
}

/// The datasets of a request, and whether each replaces one of the same name.
fn read(request: PublishPut) -> Result<Vec<(Key, Dataset, bool)>, RequestRefusal> {
    let is_override = request.override_existing.unwrap_or(false);
    let Some(names) = request.names else {
        let Some(name) = request.name else {
            let message = "a dataset needs a name".to_owned();
            return Err(RequestRefusal::wrong_type(message));
        };
        let dataset = Dataset {
            keys: request.keys,
            data: request.data,
        };
        return Ok(vec![(name, dataset, is_override)]);
    };
    let keys: Option<Vec<Vec<Key>>> = request.keys.iter().map(Key::parts).collect();
    let (Some(keys), Value::List(data) | Value::Tuple(data)) = (keys, request.data) else {
        let message = "each dataset needs a list of keys, and data".to_owned();
        return Err(RequestRefusal::wrong_type(message));
    };
    if keys.len() != names.len() || data.len() != names.len() {
        let message = format!(
            "{} names of datasets, but {} lists of keys and {} values",
            names.len(),
            keys.len(),
            data.len()
        );
        return Err(RequestRefusal::wrong_value(message));
    }
    let datasets = names.into_iter().zip(keys).zip(data.iter());
    let datasets = datasets.map(|((name, keys), data)| {
        let data = data.clone();
        (name, Dataset { keys, data }, is_override)
    });
    Ok(datasets.collect())
}
