//! Events and actions of the state machine.

use core::fmt;
use core::time::Duration;

use daskwire_messages::protocol::{
    FromClient, FromWorker, Keys, RegisterWorker, Request, ToClient, ToWorker,
};
use daskwire_messages::release::UnsupportedPeer;
use daskwire_messages::{Key, Value};
use daskwire_rpc::TaskEvent;

use super::{
    ClientId, CreatedRun, MemoryMeasure, NewRun, Refusal, RequestId, RequestRefusal, RunFailure,
    Submission, SubmissionPart, WorkerId,
};
use crate::{LeaveReason, Notice};

/// An event for [`State::handle`](super::State::handle).
///
/// Events with the id of a client or worker that has not joined, or has left, are
/// ignored. So are those with the address of an unknown worker.
#[derive(Debug)]
#[non_exhaustive]
pub enum SchedulerInput {
    /// Time has passed. Must be reported at least once per [`Policy::deletion_interval`]:
    /// sends deletions, and removes workers that have been silent for too long.
    ///
    /// [`Policy::deletion_interval`]: super::Policy::deletion_interval
    Tick,
    /// A client has registered. It is sent `stream-start`, and its stream is closed if this
    /// message contains an error. An earlier client of the same name is removed, or continues as
    /// this one, see [`Policy::client_grace`](super::Policy::client_grace). Ignored if the id is
    /// taken.
    ClientJoined {
        /// A new id.
        id: ClientId,
        /// The name in the client's messages.
        name: String,
        /// The client's versions, from its registration. They are compared with those
        /// of workers; a client of an unsupported release is refused.
        versions: Value,
        /// The field of its registration, see
        /// [`RegisterClient`](daskwire_messages::protocol::RegisterClient).
        returning: Option<bool>,
    },
    /// A client's stream has ended. Tasks that only this client wanted are released, at once or when
    /// its grace is over, see [`Policy::client_grace`](super::Policy::client_grace).
    ClientLeft(ClientId),
    /// A client was connected to an earlier scheduler of which this one continues the work, and may
    /// return. Its keys are kept for [`Policy::client_grace`](super::Policy::client_grace), or for 60
    /// seconds if that is zero. A client of this name that has a stream loses it.
    ClientExpected {
        /// The name in the client's messages.
        name: String,
        /// The number of its graphs that were accepted.
        graph_count: u64,
    },
    /// A client does not read its messages, of which many are queued. It is sent no results until
    /// [`ClientDrained`](Self::ClientDrained), which is requested with
    /// [`Action::NotifyClientDrained`].
    ClientBehind(ClientId),
    /// All messages to a client have been written. It is sent what it missed.
    ClientDrained(ClientId),
    /// A message on a client's stream.
    FromClient(ClientId, FromClient),
    /// An `update-graph` message of a client, parsed by the caller, so that the state is not
    /// blocked meanwhile.
    Submitted(ClientId, Submission),
    /// More tasks of the last submission of a client, of which there was only a part.
    SubmissionContinued(ClientId, SubmissionPart),
    /// An `update-graph` message of a client that cannot be parsed. If a part of it was submitted, the rest
    /// does not follow.
    SubmissionRefused(ClientId, Refusal),
    /// A worker has registered. [`Action::AcceptWorker`] or
    /// [`Action::RefuseWorker`] is the first action.
    WorkerJoined {
        /// A new id.
        id: WorkerId,
        /// The worker's request.
        registration: Box<RegisterWorker>,
    },
    /// A worker's stream has ended. Its tasks are assigned to other workers; results that
    /// only it had are recomputed if they are needed.
    WorkerLeft(WorkerId),
    /// A message on a worker's stream.
    FromWorker(WorkerId, FromWorker),
    /// All messages to a worker have been written. Requested with
    /// [`Action::NotifyDrained`].
    Drained(WorkerId),
    /// A heartbeat of the worker with this address.
    Heartbeat {
        /// The worker's address.
        worker: String,
        /// The worker's metrics, for [`State::identities`](super::State::identities).
        metrics: Value,
    },
    /// Workers have stored data that is not the result of a task.
    DataStored {
        /// The name of the client that holds the data, if it is registered.
        client: Option<String>,
        /// The addresses of the workers that have each key.
        who_has: Vec<(Key, Vec<String>)>,
        /// The sizes in bytes.
        nbytes: Vec<(Key, u64)>,
    },
    /// Data under these keys is about to be sent to a worker. Read
    /// [`pending_deletions`](super::State::pending_deletions) and report this event in one step,
    /// then let the worker delete those keys, then send the data.
    DataExpected {
        /// The worker's address.
        worker: String,
        /// The keys.
        keys: Vec<Key>,
    },
    /// A worker could not be asked to delete data, after [`DataExpected`](Self::DataExpected). It is
    /// asked later.
    DataNotDeleted {
        /// The worker's address.
        worker: String,
        /// The keys.
        keys: Vec<Key>,
    },
    /// A worker lacks results that it should have.
    DataMissing {
        /// The worker's address.
        worker: String,
        /// The keys of the results.
        keys: Vec<Key>,
    },
    /// A worker has fetched copies of results. It is told to delete those that are not needed.
    ReplicasAdded {
        /// The worker's address.
        worker: String,
        /// The keys of the results.
        keys: Keys,
    },
    /// A worker is to delete its copies of results, except those that no other worker has.
    ReplicasDropped {
        /// The worker's address.
        worker: String,
        /// The keys of the results.
        keys: Vec<Key>,
    },
    /// A worker has other resources. Resources that are not named are as before.
    ResourcesSet {
        /// The worker's address.
        worker: String,
        /// The amounts of the resources.
        resources: Vec<(String, f64)>,
    },
    /// Tasks may run on these workers only, given by addresses, names or hosts; on any if there are
    /// none. Tasks that run already are not moved.
    Restricted(Vec<(Key, Vec<String>)>),
    /// Failed tasks are to be retried, with the failed tasks that they depend on, and
    /// the failed tasks that depend on any of these. Other tasks are ignored.
    Retry(Vec<Key>),
    /// The workers with these addresses are to be retired: they get no more tasks, and
    /// other workers copy the results that only they have. If repeated for the same workers,
    /// other workers are asked again for the copies that are still missing.
    RetireWorkers(Vec<String>),
    /// The retirement of the worker with this address is cancelled.
    KeepWorker(String),
    /// The worker with this address is to be removed.
    RemoveWorker {
        /// The worker's address.
        worker: String,
        /// Whether to ask the worker to end.
        close: bool,
        /// The reason. For any but [`LeaveReason::Retired`], the loss counts for the tasks that the
        /// worker was running, towards [`Policy::allowed_failures`](super::Policy::allowed_failures).
        reason: LeaveReason,
    },
    /// The worker with this address is to be asked to end, and stays until it has done so.
    CloseWorker(String),
    /// A request has arrived that the state replies to with [`Action::Reply`], at once or later:
    /// any about variables, queues, events, semaphores, multi-locks, published datasets, and runs of
    /// P2P shuffles except for `shuffle_barrier`. Others are refused.
    Requested {
        /// A new id, higher than all before.
        id: RequestId,
        /// The request.
        request: Box<Request>,
    },
    /// The reply to a request has been sent.
    Replied(RequestId),
    /// The client of a request has gone before the reply was sent. What the reply hands over is
    /// not lost.
    RequestDropped(RequestId),
    /// The run of [`Action::CreateRun`] was created, or why not. Ignored if it is not awaited.
    RunCreated {
        /// [`NewRun::run_id`].
        run_id: u64,
        /// The run.
        run: Result<CreatedRun, RunFailure>,
    },
    /// A P2P shuffle is to start again, because data was passed to different runs of it. Ignored
    /// unless the run is the current one.
    ShuffleRestarted {
        /// The id of the shuffle.
        shuffle: String,
        /// The number of the run.
        run_id: u64,
    },
    /// Starts or stops the regular deletion of superfluous copies of results, see
    /// [`Policy::replica_interval`](super::Policy::replica_interval).
    SetReducingReplicas(bool),
    /// Workers are to delete superfluous copies of results once.
    ReduceReplicas,
    /// The memory of all workers is to be sampled until the client leaves, for
    /// [`State::memory_samples`](super::State::memory_samples). The first sample is taken at once, the
    /// others with [`Tick`](Self::Tick). Ignored if
    /// [too many](super::State::has_all_samplers) run, or the key is taken.
    MemorySamplerStarted {
        /// A new key.
        key: String,
        /// The name of the client.
        client: String,
        /// What is measured.
        measure: MemoryMeasure,
        /// The interval of the samples, at least a millisecond.
        interval: Duration,
    },
    /// The samples under this key are to be forgotten.
    MemorySamplerStopped(String),
    /// All tasks are to be forgotten. Clients are informed.
    Restart,
    /// A message is published in topics. Their subscribers are sent it, and it is kept for
    /// [`State::events`](super::State::events).
    Published {
        /// The name of a topic, or a list of names.
        topics: Value,
        /// The message.
        message: Value,
    },
    /// A client sets metadata. Ignored if it is refused, see
    /// [`State::metadata_refusal`](super::State::metadata_refusal).
    MetadataSet {
        /// The path in nested dictionaries.
        path: Vec<Key>,
        /// The value.
        value: Value,
    },
    /// The ends of tasks are to be recorded from now on, for
    /// [`State::recorded_tasks`](super::State::recorded_tasks).
    RecordTasks,
    /// The metadata of tasks that clients submit is to be collected under a name, for
    /// [`State::collected_metadata`](super::State::collected_metadata).
    CollectionStarted(String),
    /// The collection of this name is to be forgotten.
    CollectionEnded(String),
    /// Turns [`Action::Task`] on or off. Default: off.
    WatchTasks(bool),
    /// Turns [`Action::TaskEnded`] on or off. Default: off.
    ObserveEnds(bool),
    /// Turns [`Action::Published`] on or off. Default: off.
    ObserveTopics(bool),
    /// A plugin was registered, or is not any more. The journal has only its name, so that a scheduler
    /// that continues can say that it is missing.
    PluginRegistered {
        /// Its name.
        name: String,
        /// Whether it is registered.
        is_registered: bool,
    },
    /// The time for workers to return is over: the tasks of a state that was restored from a journal
    /// may run, see [`Restoring`](super::Restoring).
    Resumed,
    /// The scheduler is closing: asks workers to leave, and ends all streams.
    Close,
}

/// An action for the caller of [`State::handle`](super::State::handle).
#[derive(Clone, Debug)]
pub enum Action {
    /// Send a message on a client's stream.
    ToClient(ClientId, ToClient),
    /// Send a message on a worker's stream.
    ToWorker(WorkerId, ToWorker),
    /// Reply to a registration that the worker was accepted.
    AcceptWorker {
        /// The worker's id.
        id: WorkerId,
        /// The interval of its heartbeats in seconds.
        heartbeat_interval: f64,
        /// A warning about versions of packages that differ from those of other
        /// workers; empty if there are none.
        warning: String,
    },
    /// Reply to a registration that the worker was refused.
    RefuseWorker(WorkerId, WorkerRefusal),
    /// Close a client's stream after the messages so far.
    EndClient(ClientId),
    /// Close a worker's stream after the messages so far.
    EndWorker(WorkerId),
    /// Report [`SchedulerInput::Drained`] once all earlier messages to a worker have been
    /// written. Until then the worker gets no more tasks.
    NotifyDrained(WorkerId),
    /// Report [`SchedulerInput::ClientDrained`] once all earlier messages to a client have been written.
    NotifyClientDrained(ClientId),
    /// Reply to a request, and report [`SchedulerInput::Replied`] or [`SchedulerInput::RequestDropped`].
    Reply(RequestId, Result<Value, RequestRefusal>),
    /// Have Python create a run of a P2P shuffle, and report [`SchedulerInput::RunCreated`]. Further runs
    /// are created one after the other.
    CreateRun(Box<NewRun>),
    /// Report an event to operators.
    Notice(Notice),
    /// Report a transition of a task; only after [`SchedulerInput::WatchTasks`].
    Task(TaskEvent),
    /// Report what a worker says about a task that it has run, before the transition of the task: a
    /// dictionary as in [`State::recorded_tasks`](super::State::recorded_tasks). Only after
    /// [`SchedulerInput::ObserveEnds`].
    TaskEnded(Value),
    /// Report an event of a topic; only after [`SchedulerInput::ObserveTopics`].
    Published {
        /// The name of the topic.
        topic: String,
        /// The event.
        message: Value,
        /// Whether the scheduler itself has published it.
        is_own: bool,
    },
}

/// The reason why a worker is refused. `Display` formats it as in Dask's reply, if Dask
/// has one.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum WorkerRefusal {
    /// Another worker has this address.
    AddressTaken {
        /// The address.
        address: String,
    },
    /// Another worker has this name.
    NameTaken {
        /// The name.
        name: String,
    },
    /// The name is neither a string nor a number.
    InvalidName {
        /// The name.
        name: Value,
    },
    /// Another worker has the id that the caller has chosen.
    IdTaken,
    /// The worker's release is not supported.
    Release(UnsupportedPeer),
}

impl fmt::Display for WorkerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddressTaken { address } => write!(f, "worker already exists {address}"),
            Self::NameTaken { name } => write!(f, "name taken, {name}"),
            Self::InvalidName { name } => write!(f, "the name {name} is not a string"),
            Self::IdTaken => f.write_str("the id is taken"),
            Self::Release(unsupported) => unsupported.fmt(f),
        }
    }
}

impl core::error::Error for WorkerRefusal {}

daskwire::kinds! {
    WorkerRefusal: |error| match error {
        Self::AddressTaken { .. } | Self::NameTaken { .. } | Self::IdTaken => ErrorKind::Refused,
        Self::InvalidName { .. } => ErrorKind::Invalid,
        Self::Release(error) => error.kind(),
    };
}
