//! Multi-locks: several locks that are acquired at once.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use daskwire_messages::Key;

use super::context::{Answer, Awaited, Context, Handed, cost_of};
use super::{Change, RequestId, RequestRefusal};

#[derive(Debug, Default)]
pub(crate) struct MultiLocks {
    /// The holders of each lock and those that wait for it, in the order of their requests. The
    /// first has the lock. Since a request waits for all its locks from the same time on, no two
    /// wait for each other.
    locks: HashMap<Key, BTreeMap<Option<RequestId>, Key>>,
    holders: HashMap<Key, Holder>,
}

#[derive(Debug)]
struct Holder {
    /// `None` if it has got its locks from an earlier scheduler.
    request: Option<RequestId>,
    /// The locks that it has or waits for.
    locks: BTreeSet<Key>,
    /// The number of further locks that it needs.
    missing_count: usize,
}

impl MultiLocks {
    pub(crate) fn acquire(
        &mut self,
        context: &mut Context,
        id: RequestId,
        holder: Key,
        locks: Vec<Key>,
        count: Option<i64>,
        deadline: Option<Duration>,
    ) {
        let given = locks.len();
        let count = count.map_or(Some(given), |count| usize::try_from(count).ok());
        let Some(count) = count.filter(|count| (1..=given).contains(count)) else {
            let message = format!("num_locks must be from 1 to {given}, the number of locks");
            return context.reply(id, Err(RequestRefusal::wrong_value(message)));
        };
        if let Some(known) = self.holders.get(&holder) {
            let has_these = known.locks.iter().all(|lock| locks.contains(lock));
            if known.request.is_none() && has_these && known.locks.len() >= count {
                // Its client repeats a request of which it has lost the reply.
                return context.reply_value(id, true);
            }
            let message = format!("{holder} has acquired its locks, or waits for them");
            return context.reply(id, Err(RequestRefusal::wrong_value(message)));
        }
        let mut locks: BTreeSet<Key> = locks.into_iter().collect();
        // A lock may be named twice.
        let count = count.min(locks.len());
        let is_free = |lock: &&Key| !self.locks.contains_key(*lock);
        let free_count = locks.iter().filter(is_free).count();
        if free_count >= count {
            locks = locks.iter().filter(is_free).take(count).cloned().collect();
        }
        let cost = cost_of(&holder) + locks.iter().map(cost_of).sum::<usize>();
        if let Err(refusal) = context.charge(cost) {
            return context.reply(id, Err(refusal));
        }
        for lock in &locks {
            let waiters = self.locks.entry(lock.clone()).or_default();
            waiters.insert(Some(id), holder.clone());
        }
        let request = Holder {
            request: Some(id),
            locks,
            missing_count: count.saturating_sub(free_count),
        };
        let has_all = request.missing_count == 0;
        self.holders.insert(holder.clone(), request);
        if has_all {
            self.grant(context, holder);
        } else if !context.wait(
            id,
            Awaited::Locks {
                holder: holder.clone(),
            },
            deadline,
        ) {
            self.remove(context, &holder);
        }
    }

    /// Replies to a request that has its locks. It waits for no others.
    fn grant(&mut self, context: &mut Context, holder: Key) {
        let Some(request) = self.holders.get_mut(&holder) else {
            return;
        };
        let Some(id) = request.request else {
            return;
        };
        request.locks.retain(|lock| {
            let Some(waiters) = self.locks.get_mut(lock) else {
                return false;
            };
            let has_lock = waiters.keys().next() == Some(&Some(id));
            if !has_lock {
                waiters.remove(&Some(id));
                context.refund(cost_of(lock));
            }
            has_lock
        });
        context.change(|| Change::Locks {
            holder: holder.clone(),
            locks: Some(request.locks.iter().cloned().collect()),
        });
        context.end_wait(id);
        context.hand_over(id, Handed::Locks { holder });
        context.reply_value(id, true);
    }

    /// Gives a holder locks as it had them before the end of a scheduler.
    pub(crate) fn restore(
        &mut self,
        context: &mut Context,
        holder: Key,
        locks: Vec<Key>,
    ) -> Result<(), RequestRefusal> {
        let locks: BTreeSet<Key> = locks.into_iter().collect();
        let is_taken = |lock: &Key| self.locks.contains_key(lock);
        if self.holders.contains_key(&holder) || locks.is_empty() || locks.iter().any(is_taken) {
            let message = format!("{holder} cannot have its locks");
            return Err(RequestRefusal::wrong_value(message));
        }
        context.charge(cost_of(&holder) + locks.iter().map(cost_of).sum::<usize>())?;
        for lock in &locks {
            let waiters = self.locks.entry(lock.clone()).or_default();
            waiters.insert(None, holder.clone());
        }
        context.change(|| Change::Locks {
            holder: holder.clone(),
            locks: Some(locks.iter().cloned().collect()),
        });
        let request = Holder {
            request: None,
            locks,
            missing_count: 0,
        };
        self.holders.insert(holder, request);
        Ok(())
    }

    pub(crate) fn release(
        &mut self,
        context: &mut Context,
        holder: &Key,
    ) -> Result<Answer, RequestRefusal> {
        match self.remove(context, holder) {
            true => Ok(Answer::Value(().into())),
            false => Err(RequestRefusal::Missing {
                what: "holder of locks",
                name: holder.clone(),
            }),
        }
    }

    /// Removes a holder, whether it has its locks or waits for them. Returns false if it does not
    /// exist.
    pub(crate) fn remove(&mut self, context: &mut Context, holder: &Key) -> bool {
        let Some(request) = self.holders.remove(holder) else {
            return false;
        };
        if let Some(id) = request.request {
            context.end_wait(id);
        }
        if request.missing_count == 0 {
            context.change(|| Change::Locks {
                holder: holder.clone(),
                locks: None,
            });
        }
        context.refund(cost_of(holder));
        for lock in &request.locks {
            context.refund(cost_of(lock));
            let Some(waiters) = self.locks.get_mut(lock) else {
                continue;
            };
            let had_lock = waiters.keys().next() == Some(&request.request);
            waiters.remove(&request.request);
            let next = waiters.values().next().cloned();
            let Some(next) = next else {
                self.locks.remove(lock);
                continue;
            };
            if had_lock && let Some(other) = self.holders.get_mut(&next) {
                other.missing_count -= 1;
                if other.missing_count == 0 {
                    self.grant(context, next);
                }
            }
        }
        true
    }

    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn objects(&self) -> Vec<Change> {
        let holders = self.holders.iter();
        let holders = holders.filter(|(_, holder)| holder.missing_count == 0);
        let changes = holders.map(|(name, holder)| Change::Locks {
            holder: name.clone(),
            locks: Some(holder.locks.iter().cloned().collect()),
        });
        changes.collect()
    }

    /// The memory that all locks count. Panics if a lock is inconsistent.
    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn check(&self, context: &Context) -> usize {
        let mut cost = 0;
        for (name, holder) in &self.holders {
            cost += cost_of(name) + holder.locks.iter().map(cost_of).sum::<usize>();
            let awaited = holder.request.and_then(|id| context.awaited(id));
            let waits = matches!(awaited, Some(Awaited::Locks { holder: of }) if of == name);
            assert_eq!(waits, holder.missing_count > 0);
            let has = |lock: &&Key| self.locks[*lock].values().next() == Some(name);
            let has_count = holder.locks.iter().filter(has).count();
            assert!(waits || has_count == holder.locks.len());
            for lock in &holder.locks {
                assert_eq!(self.locks[lock].get(&holder.request), Some(name));
            }
        }
        for (lock, waiters) in &self.locks {
            assert!(!waiters.is_empty());
            for holder in waiters.values() {
                assert!(self.holders[holder].locks.contains(lock));
            }
        }
        cost
    }
}
