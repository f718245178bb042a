//! The client's state machine: events in, actions out. It does no I/O and reads no
//! clock, and the same events always lead to the same actions.
//!
//! [`Client`](super::Client) drives it on an asynchronous runtime. Another driver
//! needs a comm to a scheduler, on which it registers a client, and hands the
//! scheduler's messages to [`State::handle`]:
//!
//! ```
//! use core::time::Duration;
//! use daskwire_peer::Key;
//! use daskwire_peer::client::state::{Action, Event, Reconnect, State, Status};
//! use daskwire_peer::graph::{Graph, Task};
//! use daskwire_peer::protocol::{FromClient, KeyInMemory, ToClient, UpdateGraph};
//!
//! let mut client = State::new("Client-1", Reconnect::Never);
//! let now = Duration::ZERO;
//! let wake = client.handle(now, Event::Connected { release: None }).next();
//! assert!(matches!(wake, Some(Action::Wake { .. }))); // for a heartbeat
//!
//! // A task is submitted, and its key held.
//! let key = Key::from("add-1");
//! let add = Task::new(key.clone(), "operator.add", [1, 2]);
//! let keys = vec![key.clone()];
//! let message = FromClient::from(UpdateGraph {
//!     expr_ser: Graph { tasks: vec![add] }.to_expression()?,
//!     keys: keys.iter().collect(),
//!     ..UpdateGraph::default()
//! });
//! let message = Box::new(message);
//! let sent = client.handle(now, Event::Submit { keys, message }).next();
//! assert!(matches!(sent, Some(Action::Send(FromClient::UpdateGraph(_)))));
//! let hold = client.hold(&key).ok_or("not connected")?;
//! assert_eq!(client.status(&hold), Some(Status::Pending));
//!
//! // The scheduler reports the result.
//! let report = ToClient::from(KeyInMemory { key, ..KeyInMemory::default() });
//! for action in client.handle(now, Event::FromScheduler(report)) {
//!     if let Action::Status { hold, status } = action {
//!         println!("{} is {}", hold.key(), status.name());
//!     }
//! }
//! assert_eq!(client.status(&hold), Some(Status::Finished));
//!
//! // The last handle is dropped.
//! let sent = client.handle(now, Event::Release(hold)).next();
//! assert!(matches!(sent, Some(Action::Send(FromClient::ClientReleasesKeys(_)))));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Marks
//!
//! A report of the scheduler names a key, and not which use of the key it is
//! about. A client that releases a key and submits it again therefore has to know
//! which reports are about the earlier use. It sends a *mark* before it uses such a
//! key again: a question for an unknown key, which the scheduler answers at once
//! and in the order of the stream. Reports that arrive before the answer are not
//! about the new [`Hold`].

#[cfg(any(test, feature = "fuzzing"))]
mod check;
mod event;

use core::hash::{Hash as _, Hasher as _};
use core::mem;
use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::hash::DefaultHasher;
use std::sync::Arc;

use super::Disconnected;
use crate::dialect::{Cancellation, Dialect};
use crate::protocol::{
    CancelKeys, CancelKeysSilently, ClientDesiresKeys, ClientReleasesKeys, CloseClient,
    CloseStream, FromClient, HeartbeatClient, Keys, Nullable, ReportKey, ToClient,
};
use crate::{Key, Release, RemoteError};

pub use event::{Action, Event, Hold, Reconnect, Status};

/// Number of released keys that are remembered before a mark is sent, which makes
/// it unnecessary.
const MAX_RELEASED: usize = 4096;

/// Interval of heartbeats until the scheduler sets one.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Limits of the interval that the scheduler sets.
const MIN_HEARTBEAT: Duration = Duration::from_millis(100);
const MAX_HEARTBEAT: Duration = Duration::from_secs(500);

/// The first pause between attempts to reconnect, and the longest.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// The reason given for cancelled tasks.
const CANCELLED: &str = "cancelled by the client";

/// The reason given after [`Event::Close`].
const CLOSED: &str = "the client was closed";

/// The state of a client.
#[derive(Debug)]
pub struct State {
    id: String,
    reconnect: Reconnect,
    connection: Connection,
    /// The scheduler's release, if it runs Dask.
    release: Option<Release>,
    /// The keys that the scheduler holds for this client; none without a
    /// connection.
    keys: HashMap<Key, HeldKey>,
    /// Holds that have ended and still have handles, by their numbers.
    ended: HashMap<u64, EndedHold>,
    next_number: u64,
    /// Number of marks sent, and number of the last that was answered.
    marks: u64,
    answered: u64,
    /// The mark after the last release, after the last restart of the cluster.
    release_mark: u64,
    restart_mark: u64,
    /// Hashes of the keys released since the last mark. Reports about an earlier
    /// use of such a key may still arrive.
    released: HashSet<u64>,
    heartbeat: Duration,
    next_heartbeat: Duration,
    actions: Vec<Action>,
}

#[derive(Debug)]
enum Connection {
    /// There was none yet.
    New,
    Connected,
    /// Broken, and to be made again.
    Broken {
        reason: String,
        until: Duration,
        pause: Duration,
    },
    Ended {
        reason: String,
    },
}

/// A key that the scheduler holds for this client.
#[derive(Debug)]
struct HeldKey {
    number: u64,
    handle_count: usize,
    /// Number of marks sent before this hold existed. Reports that arrive before
    /// they are answered are not about this hold.
    marks: u64,
    /// Whether the key was submitted again while it was held.
    is_resubmitted: bool,
    status: Compact,
}

/// A hold that has ended.
#[derive(Debug)]
struct EndedHold {
    handle_count: usize,
    status: Compact,
}

/// A compact status: there may be millions, most of them pending or finished.
#[derive(Debug)]
enum Compact {
    Pending,
    Finished,
    Other(Box<Status>),
}

impl From<Status> for Compact {
    fn from(status: Status) -> Self {
        match status {
            Status::Pending => Self::Pending,
            Status::Finished => Self::Finished,
            other => Self::Other(Box::new(other)),
        }
    }
}

impl Compact {
    fn status(&self) -> Status {
        match self {
            Self::Pending => Status::Pending,
            Self::Finished => Status::Finished,
            Self::Other(status) => (**status).clone(),
        }
    }

    fn is(&self, other: &Status) -> bool {
        match self {
            Self::Pending => matches!(other, Status::Pending),
            Self::Finished => matches!(other, Status::Finished),
            Self::Other(status) => **status == *other,
        }
    }
}

impl State {
    /// Returns the state of a client that is not connected yet. `id` identifies the
    /// client in the cluster.
    pub fn new(id: impl Into<String>, reconnect: Reconnect) -> Self {
        Self {
            id: id.into(),
            reconnect,
            connection: Connection::New,
            release: None,
            keys: HashMap::new(),
            ended: HashMap::new(),
            next_number: 0,
            marks: 0,
            answered: 0,
            release_mark: 0,
            restart_mark: 0,
            released: HashSet::new(),
            heartbeat: HEARTBEAT,
            next_heartbeat: Duration::ZERO,
            actions: Vec::new(),
        }
    }

    /// Handles an event, and returns the resulting actions, to be done in their
    /// order.
    ///
    /// `now` is the time since any fixed origin; actions with a time refer to the
    /// same one.
    pub fn handle(&mut self, now: Duration, event: Event) -> impl Iterator<Item = Action> {
        // Those that an earlier caller has not taken.
        self.actions.clear();
        self.apply(now, event);
        self.actions.drain(..)
    }

    /// The client's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The scheduler's release of Dask; `None` if it does not run Dask.
    pub const fn release(&self) -> Option<Release> {
        self.release
    }

    /// Whether the client is connected.
    pub const fn is_connected(&self) -> bool {
        matches!(self.connection, Connection::Connected)
    }

    /// The reason why the client is not connected; `None` if it is.
    pub fn disconnected(&self) -> Option<Disconnected> {
        let reason = match &self.connection {
            Connection::Connected => return None,
            Connection::New => "not connected yet",
            Connection::Broken { .. } => "the connection broke",
            Connection::Ended { reason } => reason,
        };
        Some(Disconnected {
            reason: reason.to_owned(),
        })
    }

    /// The current hold of a key; `None` if the key is not held.
    pub fn hold(&self, key: &Key) -> Option<Hold> {
        let held = self.keys.get(key)?;
        Some(Hold {
            key: key.clone(),
            number: held.number,
        })
    }

    /// The status of a hold; `None` if all its handles were released.
    pub fn status(&self, hold: &Hold) -> Option<Status> {
        match self.keys.get(&hold.key) {
            Some(held) if held.number == hold.number => Some(held.status.status()),
            _ => self
                .ended
                .get(&hold.number)
                .map(|ended| ended.status.status()),
        }
    }

    /// The mark that follows the last release of a key; `None` if it is answered.
    /// Until [`Action::Answered`], requests on other comms may overtake the
    /// release. Sent at the latest by [`Event::Settle`].
    pub fn unsettled(&self) -> Option<u64> {
        (self.release_mark > self.answered).then_some(self.release_mark)
    }

    fn apply(&mut self, now: Duration, event: Event) {
        match event {
            Event::Connected { release } => self.connected(now, release),
            Event::ConnectFailed => self.connect_failed(now),
            Event::Disconnected { reason } => self.disconnect(now, reason),
            Event::Close => self.close(),
            Event::End { reason } => self.end(reason),
            Event::Release(hold) => self.drop_handle(&hold),
            _ if !self.is_connected() => {}
            Event::FromScheduler(message) => self.receive(now, message),
            Event::Submit { keys, message } => self.submit(&keys, *message),
            Event::Desire(key) => self.desire(key),
            Event::Store(keys) => {
                for key in &keys {
                    self.add_handle(key);
                }
            }
            Event::Stored(holds) => {
                for hold in holds {
                    if self.is_current(&hold) {
                        self.set(&hold.key, Status::Finished);
                    }
                }
            }
            Event::Cancel { holds, force } => self.cancel(holds, force),
            Event::Refresh(keys) => self.refresh(keys),
            Event::DesireAs { client, keys } => self.send(ClientDesiresKeys {
                keys: Keys(keys),
                client: Some(client),
                ..ClientDesiresKeys::default()
            }),
            Event::ReleaseAs { client, keys } => self.send(ClientReleasesKeys {
                keys: Keys(keys),
                client: Some(client),
                ..ClientReleasesKeys::default()
            }),
            Event::Settle => {
                if self.marks < self.release_mark {
                    self.mark();
                }
            }
            Event::Tick => self.tick(now),
        }
    }

    fn send(&mut self, message: impl Into<FromClient>) {
        self.actions.push(Action::Send(message.into()));
    }

    fn ask(&mut self, key: Key) {
        self.send(ReportKey {
            key,
            ..ReportKey::default()
        });
    }

    /// Sends a mark.
    fn mark(&mut self) {
        self.marks += 1;
        let key = format!("{}-{MARK}-{}", self.id, self.marks);
        // Unknown keys are answered at once, in the order of the stream.
        self.ask(Key::from(key));
        self.released.clear();
    }

    /// The number of the mark that a key represents.
    fn mark_of(&self, key: &Key) -> Option<u64> {
        let name = key.as_str()?.strip_prefix(&self.id)?;
        let number = name.strip_prefix('-')?.strip_prefix(MARK)?;
        let mark = number.strip_prefix('-')?.parse().ok()?;
        (mark <= self.marks).then_some(mark)
    }

    fn answered(&mut self, mark: u64) {
        if mark > self.answered {
            self.answered = mark;
            self.actions.push(Action::Answered { mark });
        }
    }
}

/// The part of a mark's key after the client's id.
const MARK: &str = "mark";

/// Connections.
impl State {
    fn connected(&mut self, now: Duration, release: Option<Release>) {
        if self.is_connected() || matches!(self.connection, Connection::Ended { .. }) {
            return;
        }
        self.connection = Connection::Connected;
        self.release = release;
        self.heartbeat = HEARTBEAT;
        self.restart_mark = 0;
        self.schedule(now);
    }

    fn schedule(&mut self, now: Duration) {
        self.next_heartbeat = now.saturating_add(self.heartbeat);
        self.actions.push(Action::Wake {
            at: self.next_heartbeat,
        });
    }

    fn tick(&mut self, now: Duration) {
        if now >= self.next_heartbeat {
            self.send(HeartbeatClient::default());
            self.schedule(now);
        }
    }

    fn connect_failed(&mut self, now: Duration) {
        let Connection::Broken {
            reason,
            until,
            pause,
        } = &mut self.connection
        else {
            return;
        };
        if now >= *until {
            let reason = mem::take(reason);
            self.end(reason);
            return;
        }
        let (at, until) = (now.saturating_add(*pause).min(*until), *until);
        *pause = (*pause * 2).min(MAX_PAUSE);
        self.actions.push(Action::Connect { at, until });
    }

    fn disconnect(&mut self, now: Duration, reason: String) {
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
        self.connection = Connection::Broken {
            reason,
            until,
            pause: MIN_PAUSE,
        };
        self.end_holds(&Status::Lost);
        self.actions.push(Action::Connect { at: now, until });
    }

    fn close(&mut self) {
        if self.is_connected() {
            self.send(CloseClient::default());
            self.send(CloseStream::default());
        }
        self.end(CLOSED.to_owned());
    }

    fn end(&mut self, reason: String) {
        if matches!(self.connection, Connection::Ended { .. }) {
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
        self.connection = Connection::Ended { reason };
    }

    /// Ends all holds, because the scheduler holds nothing for this client any
    /// more. Failed tasks keep their status.
    fn end_holds(&mut self, status: &Status) {
        let mut all: Vec<(Key, HeldKey)> = mem::take(&mut self.keys).into_iter().collect();
        all.sort_unstable_by_key(|(_, held)| held.number);
        for (key, mut held) in all {
            if !matches!(&held.status, Compact::Other(_)) {
                held.status = status.clone().into();
                self.report(key, held.number, status.clone());
            }
            self.keep_ended(held);
        }
        self.released = HashSet::new();
        // No answers will come, and there is nothing to settle.
        self.answered(self.marks);
        self.release_mark = 0;
    }
}

/// Holds.
impl State {
    /// Adds a handle on a key. Returns whether the hold is new: the scheduler does
    /// not hold the key yet.
    fn add_handle(&mut self, key: &Key) -> bool {
        if let Some(held) = self.keys.get_mut(key) {
            held.handle_count += 1;
            return false;
        }
        if self.released.contains(&hash(key)) {
            self.mark();
        }
        let held = HeldKey {
            number: self.next_number,
            handle_count: 1,
            marks: self.marks,
            is_resubmitted: false,
            status: Compact::Pending,
        };
        self.next_number += 1;
        self.keys.insert(key.clone(), held);
        true
    }

    fn submit(&mut self, keys: &[Key], message: FromClient) {
        for key in keys {
            if !self.add_handle(key)
                && let Some(held) = self.keys.get_mut(key)
            {
                held.is_resubmitted = true;
            }
        }
        self.send(message);
    }

    fn desire(&mut self, key: Key) {
        if self.add_handle(&key) {
            self.send(ClientDesiresKeys {
                keys: Keys(vec![key.clone()]),
                ..ClientDesiresKeys::default()
            });
            self.ask(key);
        }
    }

    fn is_current(&self, hold: &Hold) -> bool {
        let held = self.keys.get(&hold.key);
        held.is_some_and(|held| held.number == hold.number)
    }

    fn drop_handle(&mut self, hold: &Hold) {
        if !self.is_current(hold) {
            if let Some(ended) = self.ended.get_mut(&hold.number) {
                ended.handle_count -= 1;
                if ended.handle_count == 0 {
                    self.ended.remove(&hold.number);
                    shrink(&mut self.ended);
                }
            }
            return;
        }
        if let Some(held) = self.keys.get_mut(&hold.key)
            && held.handle_count > 1
        {
            held.handle_count -= 1;
            return;
        }
        self.keys.remove(&hold.key);
        shrink(&mut self.keys);
        self.send_release(vec![hold.key.clone()]);
        self.remember_released(&hold.key);
    }

    /// Remembers a key whose hold has ended, until the next mark.
    fn remember_released(&mut self, key: &Key) {
        if self.released.len() >= MAX_RELEASED {
            self.mark();
        }
        self.released.insert(hash(key));
    }

    fn send_release(&mut self, keys: Vec<Key>) {
        self.send(ClientReleasesKeys {
            keys: Keys(keys),
            ..ClientReleasesKeys::default()
        });
        self.release_mark = self.marks + 1;
    }

    fn cancel(&mut self, holds: Vec<Hold>, force: bool) {
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
                && !ended.status.is(&status)
            {
                ended.status = status.clone().into();
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
        // Reports about these are not about the next use of a key.
        self.mark();
    }

    fn refresh(&mut self, keys: Vec<Key>) {
        for key in keys {
            if self.keys.contains_key(&key) {
                self.set(&key, Status::Pending);
                self.ask(key);
            }
        }
    }

    /// Sets the status of a held key.
    fn set(&mut self, key: &Key, status: Status) {
        if let Some(held) = self.keys.get_mut(key)
            && !held.status.is(&status)
        {
            held.status = status.clone().into();
            let number = held.number;
            self.report(key.clone(), number, status);
        }
    }

    fn report(&mut self, key: Key, number: u64, status: Status) {
        let hold = Hold { key, number };
        self.actions.push(Action::Status { hold, status });
    }

    /// Ends the hold of a key that the scheduler no longer holds for this client.
    /// Submitting the key again makes another hold.
    fn end_hold(&mut self, key: &Key, status: Status) {
        if let Some(mut held) = self.keys.remove(key) {
            held.status = status.clone().into();
            self.report(key.clone(), held.number, status);
            self.keep_ended(held);
        }
    }

    fn keep_ended(&mut self, held: HeldKey) {
        let HeldKey {
            number,
            handle_count,
            status,
            ..
        } = held;
        let ended = EndedHold {
            handle_count,
            status,
        };
        self.ended.insert(number, ended);
    }
}

/// Messages.
impl State {
    fn receive(&mut self, now: Duration, message: ToClient) {
        match message {
            ToClient::KeyInMemory(message) => self.reported(&message.key, || Status::Finished),
            ToClient::TaskErredForClient(message) => self.reported(&message.key, || {
                let traceback = message.traceback.as_ref();
                Status::Error(Arc::new(RemoteError::of_fields(
                    &message.exception,
                    traceback,
                )))
            }),
            ToClient::LostData(message) => self.reported(&message.key, || Status::Pending),
            ToClient::TaskRetried(message) => self.reported(&message.key, || Status::Pending),
            ToClient::CancelledKeys(message) => {
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
            ToClient::StreamStart(_) | ToClient::Event(_) | ToClient::Unknown(_) => {}
        }
    }

    /// The scheduler does not hold a key any more.
    fn cancelled(&mut self, key: Key, reason: &str) {
        if !self.is_reported(&key) {
            return;
        }
        let status = Status::Cancelled {
            reason: reason.to_owned(),
        };
        let is_resubmitted = self.keys.get(&key).is_some_and(|held| held.is_resubmitted);
        self.end_hold(&key, status);
        if is_resubmitted {
            // The scheduler may have read the later submission after it cancelled the
            // key, and holds it again.
            self.send_release(vec![key.clone()]);
        }
        self.remember_released(&key);
    }

    /// Whether a report is about the current hold of its key, rather than about an
    /// earlier one.
    fn is_reported(&self, key: &Key) -> bool {
        let held = self.keys.get(key);
        held.is_some_and(|held| held.marks <= self.answered)
    }

    fn reported(&mut self, key: &Key, status: impl FnOnce() -> Status) {
        if self.is_reported(key) {
            self.set(key, status());
        }
    }

    /// The scheduler has forgotten all tasks, except those that it has read since.
    fn restarted(&mut self) {
        let mut keys: Vec<(u64, Key)> = self
            .keys
            .iter()
            .map(|(key, held)| (held.number, key.clone()))
            .collect();
        keys.sort_unstable_by_key(|(number, _)| *number);
        self.refresh(keys.into_iter().map(|(_, key)| key).collect());
        self.mark();
        self.restart_mark = self.marks;
    }
}

fn hash(key: &Key) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// Frees memory of a map that was much larger.
fn shrink<K: core::hash::Hash + Eq, V>(map: &mut HashMap<K, V>) {
    if map.capacity() > 1 << 10 && map.len() < map.capacity() / 8 {
        map.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests;
