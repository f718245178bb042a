//! Variables: one value each, a future or plain data.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use daskwire_messages::Key;

use super::context::{
    Answer, Awaited, Context, HANDOVER, Handed, Record, Timer, TimerId, cost_of, holder_of,
};
use super::{Change, RequestId, RequestRefusal};

/// The variables by their names.
#[derive(Debug, Default)]
pub(crate) struct Variables(HashMap<Key, Variable>);

/// A variable that is set, is waited for, or has futures that are not confirmed.
#[derive(Debug, Default)]
struct Variable {
    record: Option<Record>,
    /// The requests that wait for a value.
    readers: BTreeSet<RequestId>,
    /// The futures that were read and are not confirmed, by their tokens. The scheduler holds their
    /// results until then, also if the variable has another value by now.
    reads: BTreeMap<u64, (Key, TimerId)>,
    /// The number of such reads for each task.
    read_counts: HashMap<Key, usize>,
}

/// How the names of the clients that hold results of this kind begin.
pub(crate) const HOLDER: &str = "variable-";

/// The name of the client that holds the result of a variable.
fn holder(name: &Key) -> String {
    holder_of(HOLDER, name)
}

impl Variables {
    pub(crate) fn set(&mut self, context: &mut Context, id: RequestId, name: Key, record: Record) {
        let result = self.try_set(context, &name, record);
        let is_set = result.is_ok();
        context.reply(id, result.map(|()| Answer::Value(().into())));
        if is_set {
            let variable = self.0.get_mut(&name);
            let readers = variable.map(|variable| core::mem::take(&mut variable.readers));
            for reader in readers.into_iter().flatten() {
                context.end_wait(reader);
                self.read(context, reader, &name);
            }
        }
    }

    fn try_set(
        &mut self,
        context: &mut Context,
        name: &Key,
        record: Record,
    ) -> Result<(), RequestRefusal> {
        context.charge(record.cost())?;
        if let Err(refusal) = self.create(context, name) {
            context.refund(record.cost());
            return Err(refusal);
        }
        if let Some(key) = record.key() {
            context.hold(holder(name), key);
        }
        context.change(|| Change::Variable {
            name: name.clone(),
            value: Some(record.clone()),
        });
        let variable = self.0.get_mut(name);
        let old = variable.and_then(|variable| variable.record.replace(record));
        if let Some(old) = old {
            self.discard(context, name, &old);
        }
        Ok(())
    }

    fn create(&mut self, context: &mut Context, name: &Key) -> Result<(), RequestRefusal> {
        if !self.0.contains_key(name) {
            context.charge(cost_of(name))?;
            self.0.insert(name.clone(), Variable::default());
        }
        Ok(())
    }

    /// Ends the use of a former value.
    fn discard(&mut self, context: &mut Context, name: &Key, old: &Record) {
        context.refund(old.cost());
        if let Some(key) = old.key() {
            self.release_unused(context, name, key);
        }
    }

    /// Releases the result of a task, unless it is the value or has reads that are not confirmed.
    fn release_unused(&self, context: &mut Context, name: &Key, key: &Key) {
        let is_used = self.0.get(name).is_some_and(|variable| {
            let value = variable.record.as_ref().and_then(Record::key);
            value == Some(key) || variable.read_counts.contains_key(key)
        });
        if !is_used {
            context.release(holder(name), key);
        }
    }

    pub(crate) fn get(
        &mut self,
        context: &mut Context,
        id: RequestId,
        name: Key,
        deadline: Option<Duration>,
    ) {
        if self
            .0
            .get(&name)
            .is_some_and(|variable| variable.record.is_some())
        {
            return self.read(context, id, &name);
        }
        if let Err(refusal) = self.create(context, &name) {
            return context.reply(id, Err(refusal));
        }
        let awaited = Awaited::Variable { name: name.clone() };
        if context.wait(id, awaited, deadline)
            && let Some(variable) = self.0.get_mut(&name)
        {
            variable.readers.insert(id);
        }
        self.remove_unused(context, &name);
    }

    /// Replies with the value of a variable that is set.
    fn read(&mut self, context: &mut Context, id: RequestId, name: &Key) {
        let Some(variable) = self.0.get_mut(name) else {
            return;
        };
        let Some(record) = variable.record.clone() else {
            return;
        };
        let token = id.0;
        if let Some(key) = record.key() {
            if let Err(refusal) = context.charge(cost_of(key)) {
                return context.reply(id, Err(refusal));
            }
            let name = name.clone();
            let timer = Timer::Read {
                name: name.clone(),
                token,
            };
            let timer = context.start_timer(context.now + HANDOVER, timer);
            variable.reads.insert(token, (key.clone(), timer));
            *variable.read_counts.entry(key.clone()).or_default() += 1;
            context.hand_over(id, Handed::Read { name, token });
        }
        context.reply(id, Ok(Answer::Read(record, token)));
    }

    /// Sets a variable as it was before the end of a scheduler.
    pub(crate) fn restore(
        &mut self,
        context: &mut Context,
        name: Key,
        record: Record,
    ) -> Result<(), RequestRefusal> {
        if self.0.contains_key(&name) {
            return Err(RequestRefusal::wrong_value(format!("{name} is set twice")));
        }
        context.charge(record.cost())?;
        if let Err(refusal) = self.create(context, &name) {
            context.refund(record.cost());
            return Err(refusal);
        }
        if let Some(variable) = self.0.get_mut(&name) {
            variable.record = Some(record.clone());
        }
        context.change(|| Change::Variable {
            name,
            value: Some(record),
        });
        Ok(())
    }

    /// The results that variables use, by the names of their holders, and the names of the variables.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (String, &Key, Option<&Key>)> {
        let variables = self.0.iter();
        variables.map(|(name, variable)| {
            let value = variable.record.as_ref();
            (holder(name), name, value.and_then(Record::key))
        })
    }

    /// Keeps a result that a client had read before the end of a scheduler, and that is not the value
    /// any more, or may not be confirmed.
    pub(crate) fn restore_read(
        &mut self,
        context: &mut Context,
        name: Key,
        key: &Key,
    ) -> Result<(), RequestRefusal> {
        context.charge(cost_of(key))?;
        if let Err(refusal) = self.create(context, &name) {
            context.refund(cost_of(key));
            return Err(refusal);
        }
        if let Some(variable) = self.0.get_mut(&name) {
            // Those of requests count from below.
            let token = u64::MAX - variable.reads.len() as u64;
            let timer = Timer::Read { name, token };
            let timer = context.start_timer(context.now + HANDOVER, timer);
            variable.reads.insert(token, (key.clone(), timer));
            *variable.read_counts.entry(key.clone()).or_default() += 1;
        }
        Ok(())
    }

    /// Ends a read: it is confirmed, or its reader has gone.
    pub(crate) fn end_read(&mut self, context: &mut Context, name: &Key, token: u64) {
        let Some(variable) = self.0.get_mut(name) else {
            return;
        };
        let Some((key, timer)) = variable.reads.remove(&token) else {
            return;
        };
        context.stop_timer(timer);
        context.refund(cost_of(&key));
        if let Some(count) = variable.read_counts.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                variable.read_counts.remove(&key);
                self.release_unused(context, name, &key);
            }
        }
        self.remove_unused(context, name);
    }

    /// Forgets a request whose wait has ended.
    pub(crate) fn leave(&mut self, context: &mut Context, id: RequestId, name: &Key) {
        if let Some(variable) = self.0.get_mut(name) {
            variable.readers.remove(&id);
            self.remove_unused(context, name);
        }
    }

    /// Unsets a variable. Requests that wait for it continue to wait.
    pub(crate) fn delete(&mut self, context: &mut Context, name: &Key) {
        let variable = self.0.get_mut(name);
        if let Some(old) = variable.and_then(|variable| variable.record.take()) {
            context.change(|| Change::Variable {
                name: name.clone(),
                value: None,
            });
            self.discard(context, name, &old);
            self.remove_unused(context, name);
        }
    }

    fn remove_unused(&mut self, context: &mut Context, name: &Key) {
        let is_unused = self.0.get(name).is_some_and(|variable| {
            let is_read = !variable.readers.is_empty() || !variable.reads.is_empty();
            variable.record.is_none() && !is_read
        });
        if is_unused {
            self.0.remove(name);
            context.refund(cost_of(name));
        }
    }

    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn objects(&self) -> Vec<Change> {
        let set = self
            .0
            .iter()
            .filter(|(_, variable)| variable.record.is_some());
        let changes = set.map(|(name, variable)| Change::Variable {
            name: name.clone(),
            value: variable.record.clone(),
        });
        changes.collect()
    }

    /// The memory that all variables count, and their numbers of waiting requests, timers and
    /// holders. Panics if a variable is inconsistent.
    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn check(&self, context: &Context) -> usize {
        let mut cost = 0;
        for (name, variable) in &self.0 {
            cost += cost_of(name) + variable.record.as_ref().map_or(0, Record::cost);
            for reader in &variable.readers {
                let awaited = context.awaited(*reader);
                assert!(matches!(awaited, Some(Awaited::Variable { name: of }) if of == name));
            }
            assert!(variable.record.is_none() || variable.readers.is_empty());
            let mut counts: HashMap<Key, usize> = HashMap::new();
            for (key, timer) in variable.reads.values() {
                cost += cost_of(key);
                assert!(context.has_timer(*timer));
                *counts.entry(key.clone()).or_default() += 1;
            }
            assert_eq!(counts, variable.read_counts);
            assert!(
                variable.record.is_some()
                    || !variable.readers.is_empty()
                    || !variable.reads.is_empty()
            );
        }
        cost
    }
}
