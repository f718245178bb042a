//! Holds of keys, from the first handle to the last.

use core::hash::{Hash, Hasher as _};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::DefaultHasher;
use std::sync::Arc;

use daskwire_messages::Key;
use daskwire_messages::dialect::{Cancellation, Dialect};
use daskwire_messages::protocol::{
    CancelKeys, CancelKeysSilently, ClientDesiresKeys, ClientReleasesKeys, FromClient, Keys,
    Nullable,
};

use super::{
    Action, Awaited, EndedHold, HandleCount, HeldKey, Hold, MAX_RELEASED, State, Status, TypeNumber,
};

/// The reason given for cancelled tasks.
const CANCELLED: &str = "cancelled by the client";

impl State {
    /// Adds a handle on a key. Returns whether the hold is new: the scheduler does
    /// not hold the key yet.
    pub(super) fn add_handle(&mut self, key: &Key) -> bool {
        if let Some(held) = self.keys.get_mut(key) {
            held.handle_count.add();
            return false;
        }
        if self.released.contains(&hash(key)) {
            self.mark();
        }
        // The caller's key may be that of an earlier hold, and would not identify this one.
        let key = key.separate();
        let held = HeldKey {
            handle_count: HandleCount(1),
            type_number: TypeNumber::default(),
            is_finished: false,
            awaited: match self.unanswered.is_empty() {
                true => Awaited::Nothing,
                false => Awaited::Mark,
            },
        };
        if let Some(holds) = self.unanswered.back_mut() {
            holds.push(Hold { key: key.clone() });
        }
        self.keys.insert(key, held);
        true
    }

    pub(super) fn submit(&mut self, keys: &[Key], message: FromClient) {
        let mut failed = Vec::new();
        for key in keys {
            if !self.add_handle(key) && self.has_failed(key) {
                self.set(key, Status::Pending);
                failed.push(key.clone());
            }
        }
        self.keep_graph(&message);
        self.send(message);
        // The scheduler has no task if the graph of an earlier submission failed, and runs
        // the task now. It reports the error of a task that it has once more.
        for key in failed {
            self.await_report(&key);
            self.ask(key);
        }
    }

    /// Whether the task of a held key failed.
    fn has_failed(&self, key: &Key) -> bool {
        !self.errors.is_empty()
            && self
                .hold(key)
                .is_some_and(|hold| self.errors.contains_key(&hold))
    }

    /// Ignores reports of a held key until the last mark is answered.
    pub(super) fn await_mark(&mut self, key: &Key) {
        let Some((key, _)) = self.keys.get_key_value(key) else {
            return;
        };
        let hold = Hold { key: key.clone() };
        if let Some(holds) = self.unanswered.back_mut() {
            holds.push(hold.clone());
            if let Some(held) = self.keys.get_mut(&hold.key) {
                held.awaited = Awaited::Mark;
            }
        }
    }

    /// Notes that the scheduler is asked about a held key, of which it has reported a
    /// status.
    pub(super) fn await_report(&mut self, key: &Key) {
        if let Some(held) = self.keys.get_mut(key)
            && held.awaited == Awaited::Nothing
        {
            held.awaited = Awaited::Report;
        }
    }

    pub(super) fn desire(&mut self, key: Key) {
        if self.add_handle(&key) {
            self.send(ClientDesiresKeys {
                keys: Keys(vec![key.clone()]),
                ..ClientDesiresKeys::default()
            });
            self.ask(key);
        }
    }

    /// The data of the current hold of a key; `None` if the hold has ended.
    pub(super) fn current(&self, hold: &Hold) -> Option<&HeldKey> {
        let (key, held) = self.keys.get_key_value(&hold.key)?;
        key.is_clone_of(&hold.key).then_some(held)
    }

    /// Like [`current`](Self::current), to change the data.
    pub(super) fn current_mut(&mut self, hold: &Hold) -> Option<&mut HeldKey> {
        self.current(hold)?;
        self.keys.get_mut(&hold.key)
    }

    pub(super) fn is_current(&self, hold: &Hold) -> bool {
        self.current(hold).is_some()
    }

    pub(super) fn clone_handle(&mut self, hold: &Hold) {
        if let Some(held) = self.current_mut(hold) {
            held.handle_count.add();
        } else if let Some(ended) = self.ended.get_mut(hold) {
            ended.handle_count.add();
        }
    }

    pub(super) fn drop_handle(&mut self, hold: &Hold) {
        let Some(held) = self.current_mut(hold) else {
            if let Some(ended) = self.ended.get_mut(hold)
                && ended.handle_count.remove()
            {
                remove(&mut self.ended, hold);
            }
            return;
        };
        if !held.handle_count.remove() {
            return;
        }
        remove(&mut self.keys, &hold.key);
        remove(&mut self.errors, hold);
        // Otherwise it is not asked for at the return.
        if self.is_connected() {
            self.send_release(vec![hold.key.clone()]);
            self.remember_released(&hold.key);
        }
    }

    /// Remembers a key whose hold has ended, until the next mark.
    pub(super) fn remember_released(&mut self, key: &Key) {
        if self.released.len() >= MAX_RELEASED {
            self.mark();
        }
        self.released.insert(hash(key));
    }

    pub(super) fn send_release(&mut self, keys: Vec<Key>) {
        self.send_unmarked(ClientReleasesKeys {
            keys: Keys(keys),
            ..ClientReleasesKeys::default()
        });
    }

    pub(super) fn cancel(&mut self, holds: Vec<Hold>, force: bool) {
        let mut keys = Vec::new();
        for hold in holds {
            let status = Status::Cancelled {
                reason: CANCELLED.to_owned(),
            };
            // A scheduler fails an assertion if a key is cancelled that no client
            // wants.
            if self.is_current(&hold) {
                keys.push(hold.key.clone());
                self.end_hold(&hold.key, status);
            } else if let Some(ended) = self.ended.get_mut(&hold)
                && ended.status != status
            {
                ended.status = status.clone();
                self.report(hold, status);
            }
        }
        if keys.is_empty() {
            return;
        }
        // ROLES CLIENT-6
        match Dialect::of(self.release).cancellation {
            Cancellation::WithReason => self.send(CancelKeys {
                keys: Keys(keys.clone()),
                force,
                reason: Nullable(Some(CANCELLED.to_owned())),
                ..CancelKeys::default()
            }),
            Cancellation::Keys => self.send(CancelKeysSilently {
                keys: Keys(keys.clone()),
                force,
                ..CancelKeysSilently::default()
            }),
            // Releasing is enough if no other client wants the tasks.
            Cancellation::Release => {}
        }
        // Tasks that continue for others are no longer held for this client.
        self.send_release(keys);
        // Reports that arrive before the answer are not about the next use of a
        // key.
        self.mark();
    }

    pub(super) fn refresh(&mut self, keys: Vec<Key>) {
        for key in keys {
            if self.keys.contains_key(&key) {
                self.set(&key, Status::Pending);
                self.ask(key);
            }
        }
    }

    /// Sets the status of a held key: pending, finished or an error.
    pub(super) fn set(&mut self, key: &Key, status: Status) {
        let Entry::Occupied(mut entry) = self.keys.entry(key.clone()) else {
            return;
        };
        let hold = Hold {
            key: entry.key().clone(),
        };
        let held = entry.get_mut();
        if held.status(&hold, &self.errors) == status {
            return;
        }
        held.is_finished = status == Status::Finished;
        if held.is_finished && held.awaited == Awaited::Report {
            held.awaited = Awaited::Nothing;
        }
        match &status {
            Status::Error(error) => self.errors.insert(hold.clone(), Arc::clone(error)),
            _ => remove(&mut self.errors, &hold),
        };
        self.report(hold, status);
    }

    pub(super) fn report(&mut self, hold: Hold, status: Status) {
        self.actions.push(Action::Status { hold, status });
    }

    /// Ends the hold of a key that the scheduler no longer holds for this client.
    /// Submitting the key again makes another hold.
    pub(super) fn end_hold(&mut self, key: &Key, status: Status) {
        if let Some((key, held)) = self.keys.remove_entry(key) {
            let hold = Hold { key };
            remove(&mut self.errors, &hold);
            self.report(hold.clone(), status.clone());
            self.keep_ended(hold, &held, status);
        }
    }

    pub(super) fn keep_ended(&mut self, hold: Hold, held: &HeldKey, status: Status) {
        let ended = EndedHold {
            handle_count: held.handle_count,
            status,
        };
        self.ended.insert(hold, ended);
    }
}

fn hash(key: &Key) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// Removes an entry, and frees memory of a map that was much larger.
fn remove<K: Hash + Eq, V>(map: &mut HashMap<K, V>, key: &K) -> Option<V> {
    // Most of the maps are usually empty, and hashing takes longer than this check.
    if map.is_empty() {
        return None;
    }
    let value = map.remove(key);
    if map.capacity() > 1 << 10 && map.len() < map.capacity() / 8 {
        map.shrink_to_fit();
    }
    value
}
