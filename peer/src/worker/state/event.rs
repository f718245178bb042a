//! The events, actions and limits of the state machine.

use core::time::Duration;
use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use crate::protocol::{FromWorker, StartStop, ToWorker};
use crate::story::{Stimulus, TaskEvent};
use crate::value::Serialized;
use crate::{Key, Value};

/// The address of another worker.
pub(crate) type Peer = Arc<str>;

/// Limits of a worker.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Maximum number of tasks that run at once.
    pub(crate) nthreads: usize,
    /// Maximum number of peers asked for data at once.
    pub(crate) transfer_count: usize,
    /// Maximum number of bytes requested from a peer at once, unless a single
    /// datum is larger.
    pub(crate) transfer_len: u64,
    /// Pause before a busy peer is asked again.
    pub(crate) busy_pause: Duration,
    /// Interval at which the scheduler is asked where missing data is.
    pub(crate) search_interval: Duration,
}

impl Default for Limits {
    /// Dask's defaults, for one thread.
    fn default() -> Self {
        Self {
            nthreads: 1,
            transfer_count: 10,
            transfer_len: 50_000_000,
            busy_pause: Duration::from_millis(150),
            search_interval: Duration::from_secs(1),
        }
    }
}

/// The size and type of a datum.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Description {
    /// Size in bytes as Dask counts it.
    pub(crate) nbytes: u64,
    /// The pickle of the datum's class.
    pub(crate) class: Option<Bytes>,
    /// The name of the datum's class.
    pub(crate) typename: Cow<'static, str>,
}

/// An event that the state machine handles.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A message from the scheduler.
    FromScheduler(ToWorker),
    /// A task has run.
    Executed(Executed),
    /// A task could not run because inputs turned out to be lost.
    InputsLost { key: Key, lost: Vec<Key> },
    /// Data turned out to be lost.
    Lost(Vec<Key>),
    /// The process takes too much memory, or no longer does.
    Paused(bool),
    /// A request for data has ended.
    Fetched(Fetched),
    /// Data sent by a client was put into the store.
    Stored(Vec<(Key, Description)>),
    /// A busy peer may be asked again.
    PeerAvailable(Peer),
    /// It is time to ask the scheduler for missing data again.
    Search,
    /// The data of a key went to disk, which freed `len` bytes of memory.
    Spilled { key: Key, len: u64 },
}

impl Event {
    /// Stimulus of everything that follows from this event.
    pub(super) fn stimulus(&self, now: f64) -> Stimulus {
        let what = match self {
            Self::FromScheduler(message) => match stimulus_of(message) {
                Ok(text) => return Stimulus::of_message(text),
                Err(op) => op,
            },
            Self::Executed(executed) if executed.outcome.is_err() => "task-erred",
            Self::Executed(_) => "task-finished",
            Self::InputsLost { .. } | Self::Lost(_) => "lost-data",
            Self::Paused(_) => "worker-status-change",
            Self::Fetched(fetched) => match fetched.answer {
                Answer::Data(_) => "gather-dep-success",
                Answer::Busy => "gather-dep-busy",
                Answer::Gone => "gather-dep-network-failure",
            },
            Self::Stored(_) => "update-data",
            Self::PeerAvailable(_) => "retry-busy-worker",
            Self::Search => "find-missing",
            Self::Spilled { .. } => "spill",
        };
        Stimulus::here(what, now)
    }
}

/// The outcome of a task that has run.
#[derive(Clone, Debug)]
pub(crate) struct Executed {
    pub(crate) key: Key,
    /// The description of the result, which is in the store, or the exception.
    pub(crate) outcome: Result<Description, Box<Failure>>,
    /// Start and end, in seconds since 1970.
    pub(crate) start: f64,
    pub(crate) stop: f64,
    /// The steps done on data for the task.
    pub(crate) steps: Vec<StartStop>,
    pub(crate) thread: Option<i64>,
}

/// An exception in the form of `task-erred`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) exception: Value,
    pub(crate) exception_text: String,
    pub(crate) traceback_text: String,
}

/// The outcome of a request for data.
#[derive(Clone, Debug)]
pub(crate) struct Fetched {
    pub(crate) peer: Peer,
    pub(crate) answer: Answer,
    /// Start and end of the request, in seconds since 1970.
    pub(crate) start: f64,
    pub(crate) stop: f64,
}

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// The data that the peer had is in the store.
    Data(Vec<(Key, Description)>),
    /// The peer is busy.
    Busy,
    /// The peer cannot be reached.
    Gone,
}

/// An action for the caller to do.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Run a task, then report [`Event::Executed`].
    Execute(Box<Run>),
    /// Request data from a peer, put it into the store, then report
    /// [`Event::Fetched`].
    Fetch { peer: Peer, keys: Vec<Key> },
    /// Close all comms with a peer that has left the cluster, which ends pending
    /// requests to it.
    Disconnect(Peer),
    /// Send a message to the scheduler.
    Send(Box<FromWorker>),
    /// Remove a datum from the store.
    Forget(Key),
    /// Report this event after a delay.
    Wake { after: Duration, event: Box<Event> },
    /// Emit an event of a task; only after [`State::watch_tasks`](super::State::watch_tasks).
    Report(TaskEvent),
}

/// A task to run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) key: Key,
    pub(crate) run_spec: Serialized,
    /// The keys of its inputs, all of which are in the store.
    pub(crate) dependencies: Vec<Key>,
    pub(crate) is_actor: bool,
}

/// The stimulus id of a message; its op if it has none.
fn stimulus_of(message: &ToWorker) -> Result<&str, &'static str> {
    match message {
        ToWorker::ComputeTask(message) => Ok(&message.stimulus_id),
        ToWorker::FreeKeys(message) => Ok(&message.stimulus_id),
        ToWorker::RemoveReplicas(message) => Ok(&message.stimulus_id),
        ToWorker::AcquireReplicas(message) => Ok(&message.stimulus_id),
        ToWorker::StealRequest(message) => Ok(&message.stimulus_id),
        ToWorker::RefreshWhoHas(message) => Ok(&message.stimulus_id),
        ToWorker::WorkerStatusChange(message) => Ok(&message.stimulus_id),
        ToWorker::RemoveWorker(message) => message.stimulus_id.as_deref().ok_or("remove-worker"),
        ToWorker::CancelCompute(message) => Ok(&message.stimulus_id),
        ToWorker::Close(_) | ToWorker::CloseStream(_) | ToWorker::Unknown(_) => Err("close"),
    }
}

/// A stimulus id in the form of Dask's logs.
pub(in crate::worker) fn stimulus(what: &str, now: f64) -> String {
    format!("{what}-{now}")
}
