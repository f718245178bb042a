//! Holds of keys, from the first handle to the last.

use core::hash::{Hash, Hasher as _};
use std::collections::HashMap;
use std::hash::DefaultHasher;
use std::sync::Arc;

use super::{
    Action, EndedHold, HandleCount, HeldKey, Hold, MAX_RELEASED, State, Status, TypeNumber,
};
use crate::Key;
use crate::dialect::{Cancellation, Dialect};
use crate::protocol::{
    CancelKeys, CancelKeysSilently, ClientDesiresKeys, ClientReleasesKeys, FromClient, Keys,
    Nullable,
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
        let held = HeldKey {
            number: self.next_number,
            handle_count: HandleCount(1),
            type_number: TypeNumber::default(),
            is_finished: false,
        };
        self.next_number += 1;
        self.keys.insert(key.clone(), held);
        true
    }

    pub(super) fn submit(&mut self, keys: &[Key], message: FromClient) {
        for key in keys {
            self.add_handle(key);
        }
        self.send(message);
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

    pub(super) fn is_current(&self, hold: &Hold) -> bool {
        let held = self.keys.get(&hold.key);
        held.is_some_and(|held| held.number == hold.number)
    }

    pub(super) fn clone_handle(&mut self, hold: &Hold) {
        let held = self.keys.get_mut(&hold.key);
        if let Some(held) = held.filter(|held| held.number == hold.number) {
            held.handle_count.add();
        } else if let Some(ended) = self.ended.get_mut(&hold.number) {
            ended.handle_count.add();
        }
    }

    pub(super) fn drop_handle(&mut self, hold: &Hold) {
        if !self.is_current(hold) {
            if let Some(ended) = self.ended.get_mut(&hold.number)
                && ended.handle_count.remove()
            {
                self.ended.remove(&hold.number);
                shrink(&mut self.ended);
            }
            return;
        }
        if let Some(held) = self.keys.get_mut(&hold.key)
            && !held.handle_count.remove()
        {
            return;
        }
        self.keys.remove(&hold.key);
        shrink(&mut self.keys);
        self.errors.remove(&hold.number);
        shrink(&mut self.errors);
        self.send_release(vec![hold.key.clone()]);
        self.remember_released(&hold.key);
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
            } else if let Some(ended) = self.ended.get_mut(&hold.number)
                && ended.status != status
            {
                ended.status = status.clone();
                self.report(hold.key, hold.number, status);
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
        let Some(held) = self.keys.get_mut(key) else {
            return;
        };
        if held.status(&self.errors) == status {
            return;
        }
        let number = held.number;
        held.is_finished = status == Status::Finished;
        match &status {
            Status::Error(error) => self.errors.insert(number, Arc::clone(error)),
            _ => self.errors.remove(&number),
        };
        self.report(key.clone(), number, status);
    }

    pub(super) fn report(&mut self, key: Key, number: u64, status: Status) {
        let hold = Hold { key, number };
        self.actions.push(Action::Status { hold, status });
    }

    /// Ends the hold of a key that the scheduler no longer holds for this client.
    /// Submitting the key again makes another hold.
    pub(super) fn end_hold(&mut self, key: &Key, status: Status) {
        if let Some(held) = self.keys.remove(key) {
            self.errors.remove(&held.number);
            self.report(key.clone(), held.number, status.clone());
            self.keep_ended(&held, status);
        }
    }

    pub(super) fn keep_ended(&mut self, held: &HeldKey, status: Status) {
        let ended = EndedHold {
            handle_count: held.handle_count,
            status,
        };
        self.ended.insert(held.number, ended);
    }
}

fn hash(key: &Key) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// Frees the unused capacity of a map that was much larger.
fn shrink<K: Hash + Eq, V>(map: &mut HashMap<K, V>) {
    if map.capacity() > 1 << 10 && map.len() < map.capacity() / 8 {
        map.shrink_to_fit();
    }
}
