//! The events, actions and limits of the state machine.

use core::time::Duration;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use daskwire_messages::protocol::{FromWorker, StartStop, ToWorker};
use daskwire_messages::value::Serialized;
use daskwire_messages::{Key, Value};
use daskwire_rpc::story::{Stimulus, TaskEvent};

/// The address of another worker.
pub type Peer = Arc<str>;

/// Limits of a worker.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of tasks that run at once. Default: 1.
    pub nthreads: usize,
    /// Maximum number of pending requests for data, if they are for 10,000,000 bytes or
    /// more; small data is not delayed. A peer that is sending 10,000,000 bytes or more
    /// is asked a second time meanwhile. Default: 50, as in Dask.
    pub transfer_count: usize,
    /// Maximum number of bytes of a request, unless a single datum is larger.
    /// Default: 50,000,000, as in Dask.
    pub transfer_len: u64,
    /// Maximum number of bytes of all pending requests, unless a single datum is
    /// larger. Default: no limit, as in Dask for a worker without a memory limit.
    pub transfer_total_len: u64,
    /// Pause before a busy peer is asked again. Default: 150 milliseconds, as in
    /// Dask.
    pub busy_pause: Duration,
    /// Interval at which the scheduler is asked where missing data is. Default: 1
    /// second, as in Dask.
    pub search_interval: Duration,
}

impl Limits {
    daskwire_comm::with_fields! {
        with_nthreads(nthreads: usize);
        with_transfer_count(transfer_count: usize);
        with_transfer_len(transfer_len: u64);
        with_transfer_total_len(transfer_total_len: u64);
        with_busy_pause(busy_pause: Duration);
        with_search_interval(search_interval: Duration);
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            nthreads: 1,
            transfer_count: 50,
            transfer_len: 50_000_000,
            transfer_total_len: u64::MAX,
            busy_pause: Duration::from_millis(150),
            search_interval: Duration::from_secs(1),
        }
    }
}

/// The size and type of a datum, as reported to the scheduler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description {
    /// Size in bytes as Dask counts it.
    pub nbytes: u64,
    /// The pickle of the datum's class.
    pub class: Option<Bytes>,
    /// The name of the datum's class.
    pub typename: Cow<'static, str>,
}

/// An event that the state machine handles.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WorkerInput {
    /// A message from the scheduler arrived.
    FromScheduler(ToWorker),
    /// A task has run. The result, if there is one, is in the store.
    Executed(Executed),
    /// A task could not run because inputs turned out to be lost.
    InputsLost {
        /// The key of the task.
        key: Key,
        /// The keys of the lost inputs.
        lost: Vec<Key>,
    },
    /// A task did not run to its end, and returns to the scheduler, which may assign it to
    /// another worker: it asked for that, or could not be started.
    Reschedule(Key),
    /// A task could not run because it needs a feature that this worker lacks, such as
    /// Python. It is returned to the scheduler, for other workers, however often it is
    /// assigned. A task that only this worker may run must be reported as failed instead.
    Unsupported {
        /// The task, and how it failed.
        executed: Executed,
        /// The reason, for schedulers whose failure contains it if no worker runs the task. Dask's
        /// do not know the field.
        reason: Option<String>,
    },
    /// The pause before a task is returned to the scheduler is over.
    GiveBack(Key),
    /// An executing task no longer counts towards [`Limits::nthreads`]: it waits for other
    /// tasks, or runs for long.
    Seceded {
        /// The key of the task.
        key: Key,
        /// The time for which the task has run.
        run_time: Duration,
    },
    /// A task that has seceded waits until it counts towards [`Limits::nthreads`] again. Any
    /// other task continues at once.
    Rejoin(Key),
    /// An executing task starts from the beginning. If it had seceded, it counts towards
    /// [`Limits::nthreads`] again as soon as it can.
    Restarted(Key),
    /// Data turned out to be lost.
    Lost(Vec<Key>),
    /// The resources of the worker changed. Contains the amounts of all of them.
    Resources(BTreeMap<String, f64>),
    /// The clock of the scheduler is ahead of this worker's by this number of seconds, which
    /// may be negative. Until the first such event, the clocks are taken to be equal.
    ClockOffset(f64),
    /// The process uses too much memory (`true`), or no longer does. While it
    /// does, the status of the worker is `paused`.
    Paused(bool),
    /// The store is full (`true`), or no longer is. While it is, no task is
    /// started and no data is fetched; this state is too short to be reported to the
    /// scheduler.
    StoreFull(bool),
    /// A request for data has ended.
    Fetched(Fetched),
    /// Data sent by a client was put into the store.
    Stored(Vec<(Key, Description)>),
    /// A busy peer may be asked again.
    PeerAvailable(Peer),
    /// The interval has passed after which the scheduler is asked for missing data again.
    Search,
    /// The data of a key was moved to disk.
    Spilled {
        /// The key of the data.
        key: Key,
        /// Number of bytes of memory freed.
        len: u64,
    },
    /// Observers want [`Action::Report`] (`true`), or no longer do. Default: `false`.
    Watched(bool),
    /// The connection to the scheduler is lost, and the worker tries to register again. What it has
    /// not begun is dropped; tasks that run go on, and their ends are kept. No message is sent until
    /// [`Registered`](Self::Registered).
    Disconnected,
    /// The worker has registered again. The scheduler is told what it holds, and nothing before
    /// that.
    Registered {
        /// Whether the scheduler takes what workers return with, see
        /// [`RegisterWorkerReply::returns`](daskwire_messages::protocol::RegisterWorkerReply). To
        /// others the data is reported as replicas, and running tasks are cancelled.
        returns: bool,
    },
    /// The worker leaves the cluster. The scheduler is notified, and
    /// no task or transfer is started any more.
    Close,
}

impl WorkerInput {
    /// Returns the stimulus of all transitions that this event causes.
    pub(super) fn stimulus(&self, now: Duration) -> Stimulus {
        let what = match self {
            Self::FromScheduler(message) => match stimulus_of(message) {
                Ok(id) => return Stimulus::of_message(id),
                Err(op) => op,
            },
            Self::Executed(executed) if executed.outcome.is_err() => "task-erred",
            Self::Executed(_) => "task-finished",
            Self::Unsupported { .. } | Self::GiveBack(_) => "task-unsupported",
            Self::Seceded { .. } => "secede",
            Self::Rejoin(_) => "rejoin",
            Self::Restarted(_) => "restart",
            Self::InputsLost { .. } | Self::Lost(_) => "lost-data",
            Self::Reschedule(_) => "reschedule",
            Self::Resources(_) => "set-resources",
            Self::Paused(_) | Self::Close => "worker-status-change",
            Self::StoreFull(_) => "store-full",
            Self::Fetched(fetched) => match fetched.answer {
                Answer::Data(_) => "gather-dep-success",
                Answer::Busy => "gather-dep-busy",
                Answer::Gone => "gather-dep-network-failure",
            },
            Self::Stored(_) => "update-data",
            Self::PeerAvailable(_) => "retry-busy-worker",
            Self::Search => "find-missing",
            Self::Spilled { .. } => "spill",
            Self::Disconnected => "worker-disconnect",
            Self::Registered { .. } => "worker-connect",
            Self::Watched(_) => "watch",
            Self::ClockOffset(_) => "clock-offset",
        };
        Stimulus::local(what, now.as_secs_f64())
    }
}

/// The outcome of a task that has run.
#[derive(Clone, Debug)]
pub struct Executed {
    /// The key of the task.
    pub key: Key,
    /// The description of the result, which is in the store, or the exception.
    pub outcome: Result<Description, Box<Failure>>,
    /// Start, as the time since the Unix epoch.
    pub start: Duration,
    /// End, as the time since the Unix epoch.
    pub stop: Duration,
    /// The steps done on data for the task.
    pub steps: Vec<StartStop>,
    /// The number of the thread, by which Dask's dashboard distinguishes threads.
    pub thread: Option<i64>,
}

/// An exception in the form of `task-erred`.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The exception, pickled for clients in Python.
    pub exception: Value,
    /// The traceback, pickled; Python's `None` if there is none.
    pub traceback: Value,
    /// The exception as a string.
    pub exception_text: String,
    /// The traceback as a string.
    pub traceback_text: String,
}

/// The outcome of a request for data.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The number of the request, as in [`Action::Fetch`].
    pub request: u64,
    /// The answer of the peer.
    pub answer: Answer,
    /// Start of the request, as the time since the Unix epoch.
    pub start: Duration,
    /// End of the request, as the time since the Unix epoch.
    pub stop: Duration,
}

/// The answer to a request for data.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The requested data that the peer had, which is in the store.
    Data(Vec<(Key, Description)>),
    /// The peer is busy.
    Busy,
    /// The peer cannot be reached.
    Gone,
}

/// An action for the caller to execute, in the order of the actions.
#[derive(Clone, Debug)]
pub enum Action {
    /// Run a task, then report [`WorkerInput::Executed`], [`WorkerInput::InputsLost`],
    /// [`WorkerInput::Reschedule`] or [`WorkerInput::Unsupported`].
    Execute(Box<Run>),
    /// The result of an executing task is no longer wanted. It may end early; its end is
    /// reported in any case.
    Cancel(Key),
    /// A task that has reported [`WorkerInput::Rejoin`] or [`WorkerInput::Restarted`] counts again. If it
    /// waits for that, let it continue.
    Rejoin(Key),
    /// Request data from a peer, put it into the store, then report
    /// [`WorkerInput::Fetched`].
    Fetch {
        /// The number of the request, which is used once. A peer may have several requests.
        request: u64,
        /// The peer to ask.
        peer: Peer,
        /// The keys of the data.
        keys: Vec<Key>,
    },
    /// Close all comms with a peer that has left the cluster, which ends pending
    /// requests to it.
    Disconnect(Peer),
    /// Send a message to the scheduler.
    Send(Box<FromWorker>),
    /// Remove a datum from the store, if it is stored.
    Forget(Key),
    /// Report an event after a delay.
    Wake {
        /// The delay from now.
        after: Duration,
        /// The event.
        event: Box<WorkerInput>,
    },
    /// Emit an event of a task for observers; only after [`WorkerInput::Watched`].
    Report(TaskEvent),
}

/// A task to run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The key of the task.
    pub key: Key,
    /// The task, as the scheduler sent it.
    pub run_spec: Serialized,
    /// The keys of its inputs, all of which are in the store. They may be
    /// forgotten while the task runs.
    pub dependencies: Vec<Key>,
    /// Whether the task creates an actor.
    pub is_actor: bool,
    /// The annotations of the task, if it has any.
    pub annotations: Option<Value>,
}

/// Returns the stimulus id of a message, or its op as the error if it has none.
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

/// Formats a stimulus id as in Dask's logs.
pub(crate) fn stimulus(what: &str, now: Duration) -> String {
    format!("{what}-{}", now.as_secs_f64())
}
