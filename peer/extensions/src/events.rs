//! Events: flags that requests wait for.

use core::time::Duration;
use std::collections::{BTreeSet, HashMap};

use daskwire_messages::Key;

use super::context::{Awaited, Context, cost_of};
use super::{Change, RequestId, RequestRefusal};

/// The events by their names. Those that are not set and not waited for take no memory.
#[derive(Debug, Default)]
pub(crate) struct Events(HashMap<Key, Flag>);

#[derive(Debug, Default)]
struct Flag {
    is_set: bool,
    waiters: BTreeSet<RequestId>,
}

impl Events {
    pub(crate) fn wait(
        &mut self,
        context: &mut Context,
        id: RequestId,
        name: Key,
        deadline: Option<Duration>,
    ) {
        if self.is_set(&name) {
            return context.reply_value(id, true);
        }
        if let Err(refusal) = self.create(context, &name) {
            return context.reply(id, Err(refusal));
        }
        let awaited = Awaited::Event { name: name.clone() };
        if context.wait(id, awaited, deadline)
            && let Some(flag) = self.0.get_mut(&name)
        {
            flag.waiters.insert(id);
        }
        self.remove_unused(context, &name);
    }

    fn create(&mut self, context: &mut Context, name: &Key) -> Result<(), RequestRefusal> {
        if !self.0.contains_key(name) {
            context.charge(cost_of(name))?;
            self.0.insert(name.clone(), Flag::default());
        }
        Ok(())
    }

    /// Sets an event, and replies to all that wait for it.
    pub(crate) fn set(&mut self, context: &mut Context, id: RequestId, name: &Key) {
        if let Err(refusal) = self.create(context, name) {
            return context.reply(id, Err(refusal));
        }
        context.reply_value(id, ());
        if let Some(flag) = self.0.get_mut(name) {
            if !core::mem::replace(&mut flag.is_set, true) {
                let name = name.clone();
                context.change(|| Change::Event { name, is_set: true });
            }
            for waiter in core::mem::take(&mut flag.waiters) {
                context.end_wait(waiter);
                context.reply_value(waiter, true);
            }
        }
    }

    pub(crate) fn clear(&mut self, context: &mut Context, id: RequestId, name: &Key) {
        if let Some(flag) = self.0.get_mut(name) {
            if core::mem::replace(&mut flag.is_set, false) {
                let name = name.clone();
                context.change(|| Change::Event {
                    name,
                    is_set: false,
                });
            }
            self.remove_unused(context, name);
        }
        context.reply_value(id, ());
    }

    /// Sets an event as it was before the end of a scheduler.
    pub(crate) fn restore(
        &mut self,
        context: &mut Context,
        name: Key,
    ) -> Result<(), RequestRefusal> {
        self.create(context, &name)?;
        if let Some(flag) = self.0.get_mut(&name) {
            flag.is_set = true;
        }
        context.change(|| Change::Event { name, is_set: true });
        Ok(())
    }

    pub(crate) fn is_set(&self, name: &Key) -> bool {
        self.0.get(name).is_some_and(|flag| flag.is_set)
    }

    /// Forgets a request whose wait has ended.
    pub(crate) fn leave(&mut self, context: &mut Context, id: RequestId, name: &Key) {
        if let Some(flag) = self.0.get_mut(name) {
            flag.waiters.remove(&id);
            self.remove_unused(context, name);
        }
    }

    fn remove_unused(&mut self, context: &mut Context, name: &Key) {
        let is_unused = |flag: &Flag| !flag.is_set && flag.waiters.is_empty();
        if self.0.get(name).is_some_and(is_unused) {
            self.0.remove(name);
            context.refund(cost_of(name));
        }
    }

    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn objects(&self) -> Vec<Change> {
        let set = self.0.iter().filter(|(_, flag)| flag.is_set);
        let changes = set.map(|(name, _)| Change::Event {
            name: name.clone(),
            is_set: true,
        });
        changes.collect()
    }

    /// The memory that all events count. Panics if an event is inconsistent.
    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn check(&self, context: &Context) -> usize {
        for (name, flag) in &self.0 {
            assert_ne!(flag.is_set, !flag.waiters.is_empty());
            for waiter in &flag.waiters {
                let awaited = context.awaited(*waiter);
                assert!(matches!(awaited, Some(Awaited::Event { name: of }) if of == name));
            }
        }
        self.0.keys().map(cost_of).sum()
    }
}
