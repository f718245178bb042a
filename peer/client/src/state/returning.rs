//! What a client does after it has returned to a scheduler that keeps its keys.
//!
//! The client keeps each graph until the scheduler has said that it has read it. After a new
//! registration, the scheduler says how many of its graphs it has. The client then sends, in this
//! order:
//!
//! 1. a mark: reports before the answer are not about what follows;
//! 2. the keys of all futures, except those that only graphs of 3. make known;
//! 3. the graphs that the scheduler has not, and the release of their keys without futures;
//! 4. that these were all keys, so that the scheduler releases the others;
//! 5. another mark: after its answer, the client knows which keys were found.

use core::fmt;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use daskwire_messages::protocol::{ClientDesiresKeys, FromClient, Keys, KeysConfirmed};
use daskwire_messages::{Key, RemoteError};

use super::{Action, Hold, State, Status};

/// Maximum number of keys in a message.
const PART: usize = 1 << 12;

/// The reason why nothing is found at a scheduler that keeps no keys of clients.
const NOT_KEPT: &str = "the scheduler keeps no keys of clients that disconnect";

/// What a scheduler that keeps the keys of clients says in reply to a registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The number of graphs that it has accepted; `None` if it does not know the client from before.
    pub graphs_accepted: Option<u64>,
    /// The reason why the client will not find its keys.
    pub lost: Option<String>,
}

/// What a client has found after a reconnection. `Display` describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Returned {
    /// The number of keys that the scheduler still has. Their tasks go on, or have ended.
    pub found: usize,
    /// The number of keys that are lost. Their futures are cancelled or lost.
    pub lost: usize,
    /// The number of graphs that were sent again, because they had not arrived.
    pub sent_again: usize,
    /// The reason why keys are lost, if the scheduler knows one.
    pub reason: Option<String>,
}

impl fmt::Display for Returned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.found + self.lost;
        write!(f, "found {} of {all} keys", self.found)?;
        if self.sent_again > 0 {
            write!(f, ", sent {} graphs again", self.sent_again)?;
        }
        match &self.reason {
            Some(reason) if self.lost > 0 => write!(f, ": {reason}"),
            _ => Ok(()),
        }
    }
}

/// A return that is under way.
#[derive(Debug)]
pub(super) struct Returning {
    /// The mark after whose answer it is complete.
    mark: u64,
    /// The number of keys that were asked for, and that of those that are not known.
    asked: usize,
    lost: usize,
    sent_again: usize,
    reason: Option<String>,
    /// The errors of keys that had failed. They may be tried again meanwhile.
    errors: HashMap<Hold, Arc<RemoteError>>,
}

impl State {
    /// Whether the client is connected again, and does not know yet which keys it has found.
    pub const fn is_returning(&self) -> bool {
        self.returning.is_some()
    }

    /// Whether the scheduler that the client is connected to, or was, keeps the keys of clients that
    /// disconnect, as far as it has said so.
    pub const fn keeps_keys(&self) -> bool {
        self.keeps_keys
    }

    /// Keeps a graph until the scheduler has accepted it.
    pub(super) fn keep_graph(&mut self, message: &FromClient) {
        if self.keeps_keys && matches!(message, FromClient::UpdateGraph(_)) {
            self.graphs.push_back(message.clone());
        }
    }

    /// Handles that the scheduler has accepted so many graphs.
    pub(super) fn graphs_accepted(&mut self, count: u64) {
        while self.accepted < count {
            self.accepted += 1;
            self.graphs.pop_front();
            if self.graphs.is_empty() {
                self.accepted = count;
            }
        }
        if self.graphs.is_empty() {
            self.graphs.shrink_to(1 << 10);
        }
    }

    /// Keeps all holds while there is no connection. What is known of results may be wrong at the
    /// return.
    pub(super) fn keep_holds(&mut self) {
        if let Some(returning) = self.returning.take() {
            let errors = returning.errors.into_iter();
            let mut errors: Vec<_> = errors.filter(|(hold, _)| self.is_pending(hold)).collect();
            errors.sort_unstable_by(|(hold, _), (other, _)| hold.key.cmp(&other.key));
            for (hold, error) in errors {
                self.set(&hold.key, Status::Error(error));
            }
        }
        let finished = self.keys.iter().filter(|(_, held)| held.is_finished);
        let mut finished: Vec<Key> = finished.map(|(key, _)| key.clone()).collect();
        // The same events lead to the same actions.
        finished.sort_unstable();
        for key in finished {
            self.set(&key, Status::Pending);
        }
        self.forget_marks();
    }

    fn is_pending(&self, hold: &Hold) -> bool {
        let held = self.current(hold);
        held.is_some_and(|held| matches!(held.status(hold, &self.errors), Status::Pending))
    }

    /// Ends what was kept for a scheduler that keeps keys, at one that does not.
    pub(super) fn give_up_holds(&mut self) {
        let lost = self.keys.len() + core::mem::take(&mut self.lost_count);
        self.end_holds(&Status::Lost);
        self.graphs.clear();
        self.accepted = 0;
        self.actions.push(Action::Returned(Returned {
            lost,
            reason: (lost > 0).then(|| NOT_KEPT.to_owned()),
            ..Returned::default()
        }));
    }

    /// Asks for all keys again after a reconnection.
    pub(super) fn ask_again(&mut self, kept: Kept) {
        match kept.graphs_accepted {
            Some(count) => {
                self.graphs_accepted(count);
                // A scheduler that has lost its last events has accepted less than it has said.
                self.accepted = count;
            }
            None => self.accepted = 0,
        }
        let mut keys: Vec<Key> = self.keys.keys().cloned().collect();
        // The same events lead to the same actions.
        keys.sort_unstable();
        let errors = self.errors.clone();
        self.mark();
        for key in &keys {
            self.await_mark(key);
            self.set(key, Status::Pending);
        }
        let is_wanted = |state: &Self, graph: &FromClient| {
            let mut keys = keys_of(graph).iter();
            keys.any(|key| state.keys.contains_key(key))
        };
        // The numbers of the others are those of the graphs that follow.
        let mut graphs = core::mem::take(&mut self.graphs);
        graphs.retain(|graph| is_wanted(self, graph));
        let submitted: HashSet<Key> = graphs.iter().flat_map(keys_of).cloned().collect();
        let asked = keys.len();
        let lost = core::mem::take(&mut self.lost_count);
        keys.retain(|key| !submitted.contains(key));
        for part in keys.chunks(PART) {
            self.send(ClientDesiresKeys {
                keys: Keys(part.to_vec()),
                ..ClientDesiresKeys::default()
            });
        }
        let mut unwanted: Vec<Key> = Vec::new();
        for graph in &graphs {
            self.send(graph.clone());
            let keys = keys_of(graph).iter();
            unwanted.extend(keys.filter(|key| !self.keys.contains_key(*key)).cloned());
        }
        unwanted.sort_unstable();
        unwanted.dedup();
        if !unwanted.is_empty() {
            for key in &unwanted {
                self.remember_released(key);
            }
            self.send_release(unwanted);
        }
        let sent_again = graphs.len();
        self.graphs = graphs;
        self.send(KeysConfirmed::default());
        self.mark();
        // That the keys are all is a release of the others.
        self.release_mark = self.marks;
        self.returning = Some(Returning {
            mark: self.marks,
            asked: asked + lost,
            lost,
            sent_again,
            reason: kept.lost,
            errors,
        });
    }

    /// Notes that the scheduler does not know a key that it was asked for.
    pub(super) fn count_lost(&mut self, reason: &str) {
        if let Some(returning) = &mut self.returning {
            returning.lost += 1;
            if returning.reason.is_none() && !reason.is_empty() {
                returning.reason = Some(reason.to_owned());
            }
        }
    }

    /// Ends a return whose last question is answered.
    pub(super) fn end_return(&mut self) {
        let answered = self.answered;
        if let Some(returning) = self.returning.take_if(|it| it.mark <= answered) {
            self.actions.push(Action::Returned(Returned {
                found: returning.asked.saturating_sub(returning.lost),
                lost: returning.lost,
                sent_again: returning.sent_again,
                reason: returning.reason.filter(|_| returning.lost > 0),
            }));
        }
    }

    /// Whether a key had failed when the connection broke. Its error stays if the scheduler does not
    /// know it any more.
    pub(super) fn keeps_error(&self, key: &Key) -> Option<Status> {
        let (key, _) = self.keys.get_key_value(key)?;
        let errors = &self.returning.as_ref()?.errors;
        let error = errors.get(&Hold { key: key.clone() })?;
        Some(Status::Error(Arc::clone(error)))
    }
}

/// The keys that a graph is submitted for.
fn keys_of(graph: &FromClient) -> &[Key] {
    match graph {
        FromClient::UpdateGraph(message) => &message.keys,
        _ => &[],
    }
}
