//! Events and actions of a client's state machine, and the statuses of its keys.

use core::hash::{Hash, Hasher};
use core::time::Duration;
use std::sync::Arc;

use daskwire_messages::protocol::{FromClient, ToClient};
use daskwire_messages::{Key, Release, RemoteError};

use super::{Kept, Returned};

/// The status of a task.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Status {
    /// The task waits or is executing.
    Pending,
    /// The result is in memory.
    Finished,
    /// The task, or one that it depends on, failed.
    Error(Arc<RemoteError>),
    /// The task was cancelled.
    Cancelled {
        /// The reason; empty if it is not known.
        reason: String,
    },
    /// The result is lost and cannot be computed again, or a scheduler of Dask has forgotten it
    /// because the client lost its connection.
    Lost,
    /// The client is not connected any more.
    Disconnected {
        /// The reason.
        reason: String,
    },
}

impl Status {
    /// Whether the status is final.
    pub const fn is_done(&self) -> bool {
        !matches!(self, Self::Pending)
    }

    /// Dask's name of the status.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Finished => "finished",
            Self::Error(_) => "error",
            Self::Cancelled { .. } => "cancelled",
            Self::Lost => "lost",
            Self::Disconnected { .. } => "disconnected",
        }
    }
}

/// The reaction of a client to a broken connection to the scheduler. Default: it tries to reconnect
/// for 30 seconds, as a client in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reconnect {
    /// Does not reconnect: all futures end as [`Status::Disconnected`], and nothing
    /// can be submitted any more.
    Never,
    /// Tries to reconnect for this long; new tasks can be submitted then.
    ///
    /// Dask's schedulers have forgotten the client's keys, so all futures end as [`Status::Lost`], also
    /// finished ones, except those of failed and cancelled tasks. With a scheduler of this
    /// repository, futures are pending until the client has returned. Those whose keys the
    /// scheduler has kept (its client grace) go on or are finished then, also if the keys were
    /// submitted right before and had not arrived; others end as [`Status::Cancelled`] with the
    /// reason.
    Within(Duration),
}

impl Default for Reconnect {
    fn default() -> Self {
        Self::Within(Duration::from_secs(30))
    }
}

/// One use of a key: from the event that made the scheduler hold the key, to the
/// release of the last handle on it. A later use of the same key is another hold, which
/// does not equal this one. A hold is of use to the state machine that made it only;
/// others ignore it.
#[derive(Clone, Debug)]
pub struct Hold {
    /// The key, a clone of that in the state machine. No other hold has a clone of it, so
    /// its address identifies the hold.
    pub(super) key: Key,
}

impl Hold {
    /// The key.
    pub const fn key(&self) -> &Key {
        &self.key
    }
}

impl PartialEq for Hold {
    fn eq(&self, other: &Self) -> bool {
        self.key.is_clone_of(&other.key)
    }
}

impl Eq for Hold {}

impl Hash for Hold {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.key.address());
    }
}

/// An event that the state machine handles.
///
/// Events that make holds, and others with effects on the scheduler, are ignored
/// while [`State::is_connected`](super::State::is_connected) is false.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ClientInput {
    /// The scheduler accepted the client on a new stream.
    Connected {
        /// The scheduler's release, if it runs Dask.
        release: Option<Release>,
        /// What a scheduler says that keeps the keys of clients which disconnect. `None` for others,
        /// to which a client must not return under the same id.
        kept: Option<Kept>,
    },
    /// An attempt to connect, asked for by [`Action::Connect`], failed.
    ConnectFailed {
        /// The reason.
        reason: String,
        /// Whether further attempts would fail, too.
        is_permanent: bool,
    },
    /// The connection broke.
    Disconnected {
        /// The reason.
        reason: String,
    },
    /// A message from the scheduler arrived.
    FromScheduler(ToClient),
    /// Tasks are to be submitted. Adds a handle for each of the keys.
    Submit {
        /// The keys that are wanted.
        keys: Vec<Key>,
        /// The message with the tasks, in the form of the scheduler's release, such
        /// as [`UpdateGraph`](daskwire_messages::protocol::UpdateGraph).
        message: Box<FromClient>,
    },
    /// The program asks for a result of another client. Adds a handle.
    Desire(Key),
    /// Data is about to be stored on the cluster, by a request. Adds a handle for
    /// each key.
    Store(Vec<Key>),
    /// The data of these holds was stored.
    Stored(Vec<Hold>),
    /// A handle was cloned. Adds a handle.
    Clone(Hold),
    /// A handle was dropped. The scheduler may forget the result after the last, unless
    /// there were 2³² - 1 handles at once: such a hold lasts as long as the connection.
    Release(Hold),
    /// Tasks are to be cancelled.
    Cancel {
        /// The tasks.
        holds: Vec<Hold>,
        /// Whether to cancel tasks that other clients want too.
        force: bool,
    },
    /// The statuses of held keys are out of date, for example because a result
    /// could not be fetched. The keys are pending until the scheduler reports them.
    Refresh(Vec<Key>),
    /// Results are to be held for another client, which need not be connected.
    DesireAs {
        /// The id of the other client.
        client: String,
        /// The keys.
        keys: Vec<Key>,
    },
    /// Results held for another client are to be released.
    ReleaseAs {
        /// The id of the other client.
        client: String,
        /// The keys.
        keys: Vec<Key>,
    },
    /// A message that changes no hold is to be sent, such as a subscription.
    Send(Box<FromClient>),
    /// A request on another comm is about to use keys again, or depends on
    /// [`Send`](Self::Send): the scheduler must read all releases and these messages
    /// before. See [`State::unsettled`](super::State::unsettled).
    Settle,
    /// The time of [`Action::Wake`] has come.
    Tick,
    /// The client is to be closed.
    Close,
    /// The client ends, for example because it was dropped. Unlike after
    /// [`Close`](Self::Close), no call waits until the scheduler knows.
    End {
        /// The reason.
        reason: String,
    },
}

/// An action for the caller to perform.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[expect(
    clippy::large_enum_variant,
    reason = "the actions are in a buffer that is used again"
)]
pub enum Action {
    /// Send a message on the stream to the scheduler.
    Send(FromClient),
    /// Notify the tasks that wait for a hold: its status has changed.
    Status {
        /// The hold.
        hold: Hold,
        /// The new status.
        status: Status,
    },
    /// Notify the tasks that wait for a mark: the scheduler has read everything that
    /// was sent before it, and the resulting reports have arrived.
    Answered {
        /// The number of the last mark that needs no answer any more.
        mark: u64,
    },
    /// Report [`ClientInput::Tick`] at a time. Replaces an earlier one.
    Wake {
        /// The time.
        at: Duration,
    },
    /// Close the stream once everything was sent. No event has to follow.
    Disconnect {
        /// The reason.
        reason: String,
    },
    /// Connect at a time, then report [`ClientInput::Connected`] or
    /// [`ClientInput::ConnectFailed`].
    Connect {
        /// The time.
        at: Duration,
        /// The deadline of the attempt.
        until: Duration,
    },
    /// The client has reconnected, and knows which keys it has found.
    Returned(Returned),
}
