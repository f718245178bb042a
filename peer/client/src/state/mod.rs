//! The client's state machine: events in, actions out. It does no I/O and reads no
//! clock, and the same events always lead to the same actions.
//!
//! [`Client`](super::Client) drives it on an asynchronous runtime. Another driver
//! needs a comm to a scheduler, on which it registers a client, and hands the
//! scheduler's messages to [`State::handle`]:
//!
//! ```
//! use core::time::Duration;
//! use daskwire_client::state::{Action, ClientInput, Reconnect, State, Status};
//! use daskwire_messages::Key;
//! use daskwire_messages::graph::{Graph, Task};
//! use daskwire_messages::protocol::{FromClient, KeyInMemory, ToClient, UpdateGraph};
//!
//! let mut client = State::new("Client-1", Reconnect::Never);
//! let now = Duration::ZERO;
//! let wake = client.handle(now, ClientInput::Connected { release: None, kept: None });
//! assert!(matches!(wake[..], [Action::Wake { .. }])); // for a heartbeat
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
//! let sent = client.handle(now, ClientInput::Submit { keys, message });
//! assert!(matches!(sent[..], [Action::Send(FromClient::UpdateGraph(_))]));
//! let hold = client.hold(&key).ok_or("not connected")?;
//! assert_eq!(client.status(&hold), Some(Status::Pending));
//!
//! // The scheduler reports the result.
//! let report = ToClient::from(KeyInMemory { key, ..KeyInMemory::default() });
//! for action in client.handle(now, ClientInput::FromScheduler(report)) {
//!     if let Action::Status { hold, status } = action {
//!         println!("{} is {}", hold.key(), status.name());
//!     }
//! }
//! assert_eq!(client.status(&hold), Some(Status::Finished));
//!
//! // The last handle is dropped.
//! let sent = client.handle(now, ClientInput::Release(hold));
//! assert!(matches!(sent[..], [Action::Send(FromClient::ClientReleasesKeys(_))]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Marks
//!
//! A report of the scheduler names a key, but not the use of the key that it is about. A
//! client that releases a key and submits it again therefore has to know which reports
//! are about the earlier use. It sends a *mark* before it uses such a key again: a
//! question for an unknown key, which the scheduler answers at once and in the order of
//! the stream. Reports that arrive before the answer are not about the new [`Hold`].

use daskwire_messages::dialect::Dialect;
use daskwire_messages::protocol::{
    ClientDesiresKeys, ClientReleasesKeys, FromClient, Keys, ReportKey, Unknown,
};
use daskwire_messages::{Key, Release, RemoteError, Value};

#[cfg(any(test, feature = "fuzzing"))]
mod check;
mod connection;
mod event;
mod holds;
mod messages;
mod returning;
mod types;

use core::time::Duration;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::Disconnected;

pub use event::{Action, ClientInput, Hold, Reconnect, Status};
use returning::Returning;
pub use returning::{Kept, Returned};
use types::{TypeNumber, Types};

/// Number of released keys that are remembered before a mark is sent, which makes
/// it unnecessary.
const MAX_RELEASED: usize = 4096;

/// Interval of heartbeats until the scheduler sets one.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Limits of the interval that the scheduler sets.
const MIN_HEARTBEAT: Duration = Duration::from_millis(100);
const MAX_HEARTBEAT: Duration = Duration::from_secs(500);

/// The part of a mark's key after the client's id.
const MARK: &str = "mark";

/// The state of a client.
#[derive(Debug)]
pub struct State {
    id: String,
    reconnect: Reconnect,
    connection: ConnectionState,
    /// The scheduler's release, if it runs Dask.
    release: Option<Release>,
    /// The keys that the scheduler holds for this client; none without a
    /// connection, unless the scheduler keeps them.
    keys: HashMap<Key, HeldKey>,
    /// The errors of current holds whose tasks failed.
    errors: HashMap<Hold, Arc<RemoteError>>,
    /// Holds that have ended and still have handles.
    ended: HashMap<Hold, EndedHold>,
    /// Number of marks sent, and number of the last that was answered.
    marks: u64,
    answered: u64,
    /// For each mark that is not answered, the holds that were made after it and before
    /// the next mark.
    unanswered: VecDeque<Vec<Hold>>,
    /// The mark after the last release or other message that may have to be read
    /// before a request, and the mark after the last restart of the cluster.
    release_mark: u64,
    restart_mark: u64,
    /// Hashes of the keys released since the last mark. Reports about an earlier
    /// use of such a key may still arrive.
    released: HashSet<u64>,
    heartbeat: Duration,
    next_heartbeat: Duration,
    types: Types,
    /// Whether the last scheduler keeps the keys of clients that disconnect.
    keeps_keys: bool,
    /// The graphs that it has not accepted yet, and the number of those that it has.
    graphs: VecDeque<FromClient>,
    accepted: u64,
    /// The number of holds that ended with the last connection.
    lost_count: usize,
    returning: Option<Returning>,
    actions: Vec<Action>,
}

#[derive(Debug)]
enum ConnectionState {
    /// Not connected yet.
    New,
    Connected,
    /// The connection broke, and the client reconnects.
    Broken {
        reason: String,
        until: Duration,
        pause: Duration,
    },
    Ended {
        reason: String,
    },
}

/// A key that the scheduler holds for this client. It is small, because there may be
/// millions.
#[derive(Debug)]
struct HeldKey {
    handle_count: HandleCount,
    /// The number of the type of the result.
    type_number: TypeNumber,
    /// Whether the task is finished. Otherwise it is pending, unless it has an error in
    /// [`State::errors`].
    is_finished: bool,
    /// The answer that the hold waits for.
    awaited: Awaited,
}

/// An answer of the scheduler that a hold waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Nothing,
    /// That to a mark. The hold is in [`State::unanswered`]: reports may be about an earlier
    /// use of the key.
    Mark,
    /// A report of the key, which the scheduler held before. A scheduler that does not know
    /// the key any more has lost the result.
    Report,
}

const _: () = assert!(size_of::<(Key, HeldKey)>() <= 16);

impl HeldKey {
    fn status(&self, hold: &Hold, errors: &HashMap<Hold, Arc<RemoteError>>) -> Status {
        if self.is_finished {
            return Status::Finished;
        }
        match errors.get(hold) {
            Some(error) => Status::Error(Arc::clone(error)),
            None => Status::Pending,
        }
    }
}

/// A hold that has ended.
#[derive(Debug)]
struct EndedHold {
    handle_count: HandleCount,
    status: Status,
}

/// The number of handles on a hold. At [`u32::MAX`] it is not exact any more and stays
/// there, so that the hold is never released too early.
#[derive(Clone, Copy, Debug)]
struct HandleCount(u32);

impl HandleCount {
    const fn add(&mut self) {
        self.0 = self.0.saturating_add(1);
    }

    /// Removes a handle. Returns whether it was the last.
    const fn remove(&mut self) -> bool {
        if self.0 != u32::MAX {
            self.0 = self.0.saturating_sub(1);
        }
        self.0 == 0
    }
}

impl State {
    /// Returns the state of a client that is not connected yet. `id` identifies the
    /// client in the cluster.
    pub fn new(id: impl Into<String>, reconnect: Reconnect) -> Self {
        Self {
            id: id.into(),
            reconnect,
            connection: ConnectionState::New,
            release: None,
            keys: HashMap::new(),
            errors: HashMap::new(),
            ended: HashMap::new(),
            marks: 0,
            answered: 0,
            unanswered: VecDeque::new(),
            release_mark: 0,
            restart_mark: 0,
            released: HashSet::new(),
            heartbeat: HEARTBEAT,
            next_heartbeat: Duration::ZERO,
            types: Types::default(),
            keeps_keys: false,
            graphs: VecDeque::new(),
            accepted: 0,
            lost_count: 0,
            returning: None,
            actions: Vec::new(),
        }
    }

    /// Handles an event, and returns the resulting actions, to be performed in order.
    ///
    /// `now` is the time since any fixed origin; actions with a time refer to the
    /// same one.
    pub fn handle(&mut self, now: Duration, event: ClientInput) -> Vec<Action> {
        self.apply(now, event);
        core::mem::take(&mut self.actions)
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
        matches!(self.connection, ConnectionState::Connected)
    }

    /// Whether the client reconnects when its connection breaks.
    pub const fn reconnects(&self) -> bool {
        matches!(self.reconnect, Reconnect::Within(_))
    }

    /// Whether the client was closed, or has lost its connection permanently.
    pub const fn has_ended(&self) -> bool {
        matches!(self.connection, ConnectionState::Ended { .. })
    }

    /// The reason why the client is not connected; `None` if it is.
    pub fn disconnected(&self) -> Option<Disconnected> {
        let reason = match &self.connection {
            ConnectionState::Connected => return None,
            ConnectionState::New => "not connected yet",
            ConnectionState::Broken { reason, .. } | ConnectionState::Ended { reason } => reason,
        };
        Some(Disconnected {
            reason: reason.to_owned(),
            is_reconnecting: matches!(self.connection, ConnectionState::Broken { .. }),
        })
    }

    /// The current hold of a key; `None` if the key is not held.
    pub fn hold(&self, key: &Key) -> Option<Hold> {
        let (key, _) = self.keys.get_key_value(key)?;
        Some(Hold { key: key.clone() })
    }

    /// The status of a hold; `None` if all its handles were released.
    pub fn status(&self, hold: &Hold) -> Option<Status> {
        match self.current(hold) {
            Some(held) => Some(held.status(hold, &self.errors)),
            None => self.ended.get(hold).map(|ended| ended.status.clone()),
        }
    }

    /// The name of the type of a hold's result, such as `int` or `numpy.ndarray`, if
    /// the scheduler has reported it.
    pub fn type_name(&self, hold: &Hold) -> Option<Arc<str>> {
        self.types.name(self.current(hold)?.type_number)
    }

    /// The number of the mark that follows the last release of a key, or the last message
    /// of [`ClientInput::Send`]; `None` if it is answered. Until [`Action::Answered`], requests
    /// on other comms may overtake these messages. [`ClientInput::Settle`] sends the mark if it
    /// is not sent yet.
    pub fn unsettled(&self) -> Option<u64> {
        (self.release_mark > self.answered).then_some(self.release_mark)
    }

    fn apply(&mut self, now: Duration, event: ClientInput) {
        match event {
            ClientInput::Connected { release, kept } => self.connected(now, release, kept),
            ClientInput::ConnectFailed {
                reason,
                is_permanent,
            } => self.connect_failed(now, &reason, is_permanent),
            ClientInput::Disconnected { reason } => self.disconnect(now, reason),
            ClientInput::Close => self.close(),
            ClientInput::End { reason } => {
                // The keys are not kept for a client that does not return.
                if self.is_connected() {
                    self.leave();
                }
                self.end(reason);
            }
            ClientInput::Clone(hold) => self.clone_handle(&hold),
            ClientInput::Release(hold) => self.drop_handle(&hold),
            _ if !self.is_connected() => {}
            ClientInput::FromScheduler(message) => self.receive(now, message),
            ClientInput::Submit { keys, message } => self.submit(&keys, *message),
            ClientInput::Desire(key) => self.desire(key),
            ClientInput::Store(keys) => {
                for key in &keys {
                    self.add_handle(key);
                }
            }
            ClientInput::Stored(holds) => {
                for hold in holds {
                    if self.is_current(&hold) {
                        self.set(&hold.key, Status::Finished);
                    } else if self.ended.contains_key(&hold) && !self.keys.contains_key(&hold.key) {
                        // The cluster was restarted meanwhile, and has the data now.
                        self.send_release(vec![hold.key.clone()]);
                        self.remember_released(&hold.key);
                    }
                }
            }
            ClientInput::Cancel { holds, force } => self.cancel(holds, force),
            ClientInput::Refresh(keys) => {
                for key in &keys {
                    self.await_report(key);
                }
                self.refresh(keys);
            }
            ClientInput::DesireAs { client, keys } => self.send_unmarked(ClientDesiresKeys {
                keys: Keys(keys),
                client: Some(client),
                ..ClientDesiresKeys::default()
            }),
            ClientInput::ReleaseAs { client, keys } => {
                // The scheduler closes the connection if it does not know the other client.
                self.send_unmarked(ClientDesiresKeys {
                    client: Some(client.clone()),
                    ..ClientDesiresKeys::default()
                });
                self.send_unmarked(ClientReleasesKeys {
                    keys: Keys(keys),
                    client: Some(client),
                    ..ClientReleasesKeys::default()
                });
            }
            ClientInput::Send(message) => self.send_unmarked(*message),
            ClientInput::Settle => {
                if self.marks < self.release_mark {
                    self.mark();
                }
            }
            ClientInput::Tick => self.tick(now),
        }
    }

    fn send(&mut self, message: impl Into<FromClient>) {
        self.actions.push(Action::Send(message.into()));
    }

    /// Sends a message that [`ClientInput::Settle`] waits for.
    fn send_unmarked(&mut self, message: impl Into<FromClient>) {
        self.send(message);
        self.release_mark = self.marks + 1;
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
        self.unanswered.push_back(Vec::new());
        let key = Key::from(format!("{}-{MARK}-{}", self.id, self.marks));
        if Dialect::of(self.release).answers_unknown_keys {
            // Unknown keys are answered at once, in the order of the stream.
            self.ask(key);
        } else {
            // ROLES CLIENT-12
            let holders = Value::Dict([(key.to_value(), Value::list([0; 0]))].into());
            let data = Unknown::new("update-data")
                .field("who_has", holders)
                .field("nbytes", Value::Dict([].into()));
            self.send(data);
        }
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
        if mark <= self.answered {
            return;
        }
        while self.answered < mark {
            self.answered += 1;
            for hold in self.unanswered.pop_front().unwrap_or_default() {
                if let Some(held) = self.current_mut(&hold) {
                    held.awaited = Awaited::Nothing;
                }
            }
        }
        self.actions.push(Action::Answered { mark });
        self.end_return();
    }
}

#[cfg(test)]
mod tests;
