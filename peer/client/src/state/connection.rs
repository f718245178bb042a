//! Connections to the scheduler, and heartbeats.

use core::mem;
use core::time::Duration;
use std::collections::{HashSet, VecDeque};

use daskwire_messages::protocol::{CloseClient, CloseStream, HeartbeatClient};
use daskwire_messages::{Key, Release};

use super::{Action, ConnectionState, HEARTBEAT, HeldKey, Hold, Kept, Reconnect, State, Status};

/// The first and the longest pause between attempts to reconnect.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// The reason given after [`ClientInput::Close`](super::ClientInput::Close).
const CLOSED: &str = "the client was closed";

impl State {
    pub(super) fn connected(
        &mut self,
        now: Duration,
        release: Option<Release>,
        kept: Option<Kept>,
    ) {
        if self.is_connected() || matches!(self.connection, ConnectionState::Ended { .. }) {
            return;
        }
        let is_return = matches!(self.connection, ConnectionState::Broken { .. });
        self.connection = ConnectionState::Connected;
        self.release = release;
        self.heartbeat = HEARTBEAT;
        self.restart_mark = 0;
        self.schedule(now);
        self.keeps_keys = kept.is_some();
        match kept {
            Some(kept) if is_return => self.ask_again(kept),
            None if is_return => self.give_up_holds(),
            _ => {}
        }
    }

    pub(super) fn schedule(&mut self, now: Duration) {
        self.next_heartbeat = now.saturating_add(self.heartbeat);
        self.actions.push(Action::Wake {
            at: self.next_heartbeat,
        });
    }

    pub(super) fn tick(&mut self, now: Duration) {
        if now >= self.next_heartbeat {
            self.send(HeartbeatClient::default());
            self.schedule(now);
        }
    }

    pub(super) fn connect_failed(&mut self, now: Duration, failure: &str, is_permanent: bool) {
        let ConnectionState::Broken {
            reason,
            until,
            pause,
        } = &mut self.connection
        else {
            return;
        };
        if is_permanent || now >= *until {
            let reason = format!("{reason}, and reconnecting failed: {failure}");
            self.end(reason);
            return;
        }
        let (at, until) = (now.saturating_add(*pause).min(*until), *until);
        *pause = (*pause * 2).min(MAX_PAUSE);
        self.actions.push(Action::Connect { at, until });
    }

    pub(super) fn disconnect(&mut self, now: Duration, reason: String) {
        if !self.is_connected() {
            return;
        }
        let Reconnect::Within(time) = self.reconnect else {
            self.end(reason);
            return;
        };
        self.actions.push(Action::Disconnect {
            reason: reason.clone(),
        });
        let until = now.saturating_add(time);
        self.connection = ConnectionState::Broken {
            reason,
            until,
            pause: MIN_PAUSE,
        };
        match self.keeps_keys {
            true => self.keep_holds(),
            false => {
                self.lost_count = self.keys.len();
                self.end_holds(&Status::Lost);
            }
        }
        self.actions.push(Action::Connect { at: now, until });
    }

    pub(super) fn close(&mut self) {
        if self.is_connected() {
            self.leave();
        }
        self.end(CLOSED.to_owned());
    }

    /// Announces that the client leaves.
    pub(super) fn leave(&mut self) {
        self.send(CloseClient::default());
        self.send(CloseStream::default());
    }

    pub(super) fn end(&mut self, reason: String) {
        if matches!(self.connection, ConnectionState::Ended { .. }) {
            return;
        }
        if self.is_connected() {
            self.actions.push(Action::Disconnect {
                reason: reason.clone(),
            });
        }
        self.end_holds(&Status::Disconnected {
            reason: reason.clone(),
        });
        self.graphs = VecDeque::new();
        self.returning = None;
        self.connection = ConnectionState::Ended { reason };
    }

    /// Ends all holds, because the scheduler holds nothing for this client any
    /// more. Failed tasks keep their status.
    pub(super) fn end_holds(&mut self, status: &Status) {
        let mut all: Vec<(Key, HeldKey)> = mem::take(&mut self.keys).into_iter().collect();
        // The same events lead to the same actions.
        all.sort_unstable_by(|(key, _), (other, _)| key.cmp(other));
        let mut errors = mem::take(&mut self.errors);
        for (key, held) in all {
            let hold = Hold { key };
            if let Some(error) = errors.remove(&hold) {
                self.keep_ended(hold, &held, Status::Error(error));
            } else {
                self.report(hold.clone(), status.clone());
                self.keep_ended(hold, &held, status.clone());
            }
        }
        self.forget_marks();
    }

    /// Handles that the marks will never be answered, and that no release needs to be settled.
    pub(super) fn forget_marks(&mut self) {
        self.returning = None;
        self.released = HashSet::new();
        self.answered(self.marks);
        self.release_mark = 0;
    }
}
