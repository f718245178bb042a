//! Messages of the scheduler.

use core::time::Duration;
use std::sync::Arc;

use daskwire_messages::protocol::{ClientReleasesKeys, Keys, ToClient};
use daskwire_messages::{Key, RemoteError};

use super::{Awaited, Hold, MAX_HEARTBEAT, MIN_HEARTBEAT, State, Status};

/// The reason that a scheduler gives if it forgets a key that clients still want, because
/// the data cannot be computed again.
const FORGOTTEN: &str = "already forgotten";

/// Adds a note to what Python raises for a function of workers in Rust, which it sees as
/// `operator.methodcaller("native:NAME")`.
fn explained(mut error: RemoteError) -> RemoteError {
    let name = match error.class.as_str() {
        "AttributeError" => error
            .message
            .split_once("has no attribute 'native:")
            .and_then(|(_, name)| name.strip_suffix('\'')),
        // It has got more than one argument.
        "TypeError" if error.message.starts_with("methodcaller expected ") => Some("NAME"),
        _ => None,
    };
    if let Some(name) = name {
        let note = format!(
            "native:{name} is a function of workers in Rust, and this task ran in Python: a \
             program that has the function, or `daskwire worker`, has to join the cluster"
        );
        let notes = core::mem::take(&mut error.notes).into_iter();
        error.notes = notes.chain([note]).collect();
    }
    error
}

impl State {
    pub(super) fn receive(&mut self, now: Duration, message: ToClient) {
        match message {
            ToClient::KeyInMemory(message) => {
                if let Some(mark) = self.mark_of(&message.key) {
                    // ROLES CLIENT-12
                    self.send(ClientReleasesKeys {
                        keys: Keys(vec![message.key]),
                        ..ClientReleasesKeys::default()
                    });
                    self.answered(mark);
                    return;
                }
                if self.is_reported(&message.key) {
                    self.set(&message.key, Status::Finished);
                    let class = message.class.as_ref();
                    let number = class.map(|class| self.types.number(class));
                    let held = self.keys.get_mut(&message.key);
                    // Later reports of the same result may lack the class.
                    if let (Some(held), Some(number)) = (held, number) {
                        held.type_number = number;
                    }
                }
            }
            ToClient::TaskErredForClient(message) => self.reported(&message.key, || {
                let traceback = message.traceback.as_ref();
                let error = RemoteError::of_fields(&message.exception, traceback);
                Status::Error(Arc::new(explained(error)))
            }),
            ToClient::LostData(message) => self.reported(&message.key, || Status::Pending),
            ToClient::TaskRetried(message) => self.reported(&message.key, || Status::Pending),
            ToClient::CancelledKeys(message) => {
                let is_lost = message.reason.as_deref() == Some(FORGOTTEN);
                let reason = match (message.reason, message.msg) {
                    (Some(reason), Some(more)) => format!("{reason}: {more}"),
                    (Some(reason), None) | (None, Some(reason)) => reason,
                    (None, None) if self.answered < self.restart_mark => {
                        "the cluster was restarted".to_owned()
                    }
                    (None, None) => String::new(),
                };
                for key in message.keys {
                    if let Some(mark) = self.mark_of(&key) {
                        self.answered(mark);
                    } else if is_lost {
                        self.ended(key, Status::Lost);
                    } else {
                        self.cancelled(key, &reason);
                    }
                }
            }
            // ROLES CLIENT-8
            ToClient::CancelledKey(message) => match self.mark_of(&message.key) {
                Some(mark) => self.answered(mark),
                None => self.cancelled(message.key, ""),
            },
            ToClient::Restart(_) => self.restarted(),
            ToClient::AdjustHeartbeatInterval(message) => {
                if let Ok(interval) = Duration::try_from_secs_f64(message.interval) {
                    self.heartbeat = interval.clamp(MIN_HEARTBEAT, MAX_HEARTBEAT);
                }
            }
            ToClient::Close(message) => {
                let reason = message.reason.unwrap_or_default();
                self.disconnect(now, format!("the scheduler closed: {reason}"));
            }
            ToClient::StreamClosed(_) | ToClient::CloseStream(_) => {
                self.disconnect(now, "the scheduler closed the stream".to_owned());
            }
            ToClient::GraphsAccepted(message) => self.graphs_accepted(message.count),
            ToClient::StreamStart(_) | ToClient::Event(_) | ToClient::Unknown(_) => {}
        }
    }

    /// Handles the report that the scheduler no longer holds a key.
    pub(super) fn cancelled(&mut self, key: Key, reason: &str) {
        if self.is_reported(&key) {
            self.count_lost(reason);
        }
        let kept = self.keeps_error(&key);
        let status = match self.keys.get_key_value(&key) {
            _ if kept.is_some() => kept.unwrap_or(Status::Lost),
            // The scheduler does not know the key that it was asked about.
            Some((key, held)) if held.awaited == Awaited::Report && reason.is_empty() => {
                let error = self.errors.get(&Hold { key: key.clone() });
                error.map_or(Status::Lost, |error| Status::Error(Arc::clone(error)))
            }
            _ => Status::Cancelled {
                reason: reason.to_owned(),
            },
        };
        self.ended(key, status);
    }

    /// Ends the hold of a key because of a report.
    fn ended(&mut self, key: Key, status: Status) {
        if !self.is_reported(&key) {
            return;
        }
        self.end_hold(&key, status);
        // The scheduler may have read the submission after it cancelled the key for another
        // client, and holds it for this one.
        self.send_release(vec![key.clone()]);
        self.remember_released(&key);
    }

    /// Whether a report is about the current hold of its key, rather than about an
    /// earlier one.
    pub(super) fn is_reported(&self, key: &Key) -> bool {
        self.keys
            .get(key)
            .is_some_and(|held| held.awaited != Awaited::Mark)
    }

    pub(super) fn reported(&mut self, key: &Key, status: impl FnOnce() -> Status) {
        if self.is_reported(key) {
            self.set(key, status());
        }
    }

    /// Handles a restart: the scheduler has forgotten all tasks, except those that it
    /// has read since.
    pub(super) fn restarted(&mut self) {
        let mut keys: Vec<Key> = self.keys.keys().cloned().collect();
        // The same events lead to the same actions.
        keys.sort_unstable();
        self.refresh(keys);
        self.mark();
        self.restart_mark = self.marks;
    }
}
