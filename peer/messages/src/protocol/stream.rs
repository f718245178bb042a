//! Messages on streams.

use bytes::Bytes;

use daskwire::message::{BuildError, MessageBuilder};

use super::field::{Field, Keys, Map, Nullable, Sizes, maps, ops};
use super::shared::{PublishFlush, QueueReceived, QueueRelease, VariableDelete, VariableReceived};
use super::status::{ReplyStatus, WorkerStatus};
use super::{ProtocolError, Source};
use crate::Key;
use crate::value::{Serialized, Value};

ops! {
    /// A message from a client on its stream.
    FromClient {
        UpdateGraph = "update-graph",
        UpdateGraphLayers = "update-graph",
        UpdateGraphTasks = "update-graph",
        ClientDesiresKeys = "client-desires-keys",
        ClientReleasesKeys = "client-releases-keys",
        ReportKey = "report-key",
        CancelKeys = "cancel-keys",
        CancelKeysSilently = "cancel-keys",
        SubscribeTopic = "subscribe-topic",
        UnsubscribeTopic = "unsubscribe-topic",
        DataAnnounced = "update-data",
        HeartbeatClient = "heartbeat-client",
        VariableReceived = "variable-future-received-confirm",
        VariableDelete = "variable_delete",
        QueueReceived = "queue-future-release",
        QueueRelease = "queue_release",
        PublishFlush = "publish_flush_batched_send",
        KeysConfirmed = "client-keys-confirmed",
        CloseClient = "close-client",
        CloseStream = "close-stream",
    }
}

ops! {
    /// A message from the scheduler on a client's stream.
    ToClient {
        StreamStart = "stream-start",
        KeyInMemory = "key-in-memory",
        TaskErredForClient = "task-erred",
        LostData = "lost-data",
        CancelledKeys = "cancelled-keys",
        CancelledKey = "cancelled-key",
        TaskRetried = "task-retried",
        Restart = "restart",
        AdjustHeartbeatInterval = "adjust-heartbeat-interval",
        GraphsAccepted = "graphs-accepted",
        Event = "event",
        StreamClosed = "stream-closed",
        Close = "close",
        CloseStream = "close-stream",
    }
}

ops! {
    /// A message from the scheduler on a worker's stream.
    ToWorker {
        ComputeTask = "compute-task",
        FreeKeys = "free-keys",
        RemoveReplicas = "remove-replicas",
        AcquireReplicas = "acquire-replicas",
        StealRequest = "steal-request",
        RefreshWhoHas = "refresh-who-has",
        WorkerStatusChange = "worker-status-change",
        RemoveWorker = "remove-worker",
        CancelCompute = "cancel-compute",
        Close = "close",
        CloseStream = "close-stream",
    }
}

ops! {
    /// A message from a worker on its stream.
    FromWorker {
        TaskFinished = "task-finished",
        TaskErred = "task-erred",
        AddKeys = "add-keys",
        ReleaseWorkerData = "release-worker-data",
        StealResponse = "steal-response",
        RequestRefreshWhoHas = "request-refresh-who-has",
        WorkerStatusChange = "worker-status-change",
        Reschedule = "reschedule",
        LongRunning = "long-running",
        LogEvent = "log-event",
        Returned = "returned",
        KeepAlive = "keep-alive",
        CloseStream = "close-stream",
    }
}

maps! {
    /// Submits tasks, from a client.
    UpdateGraph = "update-graph" {
        /// The tasks: the pickle of an expression, see [`graph`](crate::graph).
        expr_ser: Serialized = "expr_ser",
        /// The keys that the client wants.
        keys: Keys = "keys",
        /// An order of the tasks; if nil, the scheduler determines it.
        internal_priority: Nullable<Map<Key, i64>> = "internal_priority",
        /// The key of the task that submits these, or nil.
        submitting_task: Nullable<Key> = "submitting_task",
        /// Metadata of spans; always nil, because a map of plain values would
        /// break the scheduler's spans for all clients.
        span_metadata: Nullable<Value> = "span_metadata",
        /// Priority; tasks with higher values run earlier.
        user_priority: Option<f64> = "user_priority",
        /// Annotations of all tasks: `workers`, `resources`, `retries` …
        annotations: Option<Value> = "annotations",
        /// The tasks whose results stay on their workers, as actors.
        actors: Actors = "actors",
    }

    /// Submits tasks to a scheduler of 2023.4.0 to 2025.3.1, from a client.
    UpdateGraphLayers = "update-graph" {
        /// The header of the pickle.
        graph_header: Value = "graph_header",
        /// The pickle of a `HighLevelGraph`.
        graph_frames: Vec<Bytes> = "graph_frames",
        /// The keys that the client wants.
        keys: Keys = "keys",
        /// An order of the tasks; if nil, the scheduler determines it.
        internal_priority: Nullable<Map<Key, i64>> = "internal_priority",
        /// The key of the task that submits these, or nil.
        submitting_task: Nullable<Key> = "submitting_task",
        /// Metadata of spans; always nil; since 2024.5.2.
        span_metadata: Option<Value> = "span_metadata",
        /// Priority; tasks with higher values run earlier.
        user_priority: Option<f64> = "user_priority",
        /// Annotations of all tasks: `workers`, `resources`, `retries` …
        annotations: Option<Value> = "annotations",
    }

    /// Submits tasks to a scheduler of 2023.3.2 or earlier, from a client.
    UpdateGraphTasks = "update-graph" {
        /// The tasks.
        tasks: Map<Key, CallPickles> = "tasks",
        /// The keys that tasks depend on, for tasks with dependencies.
        dependencies: Map<Key, Vec<Key>> = "dependencies",
        /// The keys that the client wants.
        keys: Keys = "keys",
        /// An order of the tasks.
        priority: Map<Key, i64> = "priority",
        /// The workers that tasks are restricted to.
        restrictions: Option<Map<Key, Value>> = "restrictions",
        /// The tasks that other workers may run too.
        loose_restrictions: Option<Keys> = "loose_restrictions",
        /// The resources that tasks need.
        resources: Option<Map<Key, Value>> = "resources",
        /// The number of retries of tasks.
        retries: Option<Map<Key, Value>> = "retries",
        /// Priority; tasks with higher values run earlier.
        user_priority: Option<f64> = "user_priority",
    }

    /// A call as the pickles of its parts.
    CallPickles {
        /// The pickle of the function.
        function: Bytes = "function",
        /// The pickle of the tuple of arguments.
        args: Bytes = "args",
        /// The pickle of the dictionary of keyword arguments.
        kwargs: Option<Bytes> = "kwargs",
    }

    /// Declares that a client wants keys, also keys of other clients' tasks.
    ClientDesiresKeys = "client-desires-keys" {
        /// The keys.
        keys: Keys = "keys",
        /// The client, if not the stream's.
        client: Option<String> = "client",
    }

    /// Declares that a client no longer wants keys.
    ClientReleasesKeys = "client-releases-keys" {
        /// The keys.
        keys: Keys = "keys",
        /// The client, if not the stream's.
        client: Option<String> = "client",
    }

    /// Asks for the current state of a key.
    ReportKey = "report-key" {
        /// The key.
        key: Key = "key",
    }

    /// Cancels tasks.
    CancelKeys = "cancel-keys" {
        /// The keys of the tasks.
        keys: Keys = "keys",
        /// Whether to cancel tasks that other clients want too.
        force: bool = "force",
        /// The reason, for `cancelled-keys`.
        reason: Nullable<String> = "reason",
        /// Details, for users.
        msg: Nullable<String> = "msg",
    }

    /// Cancels tasks at a scheduler of 2023.3.1 to 2025.2.0.
    CancelKeysSilently = "cancel-keys" {
        /// The keys of the tasks.
        keys: Keys = "keys",
        /// Whether to cancel tasks that other clients want too.
        force: bool = "force",
    }

    /// Asks for the events of a topic from now on.
    SubscribeTopic = "subscribe-topic" {
        /// The topic.
        topic: String = "topic",
        /// The client.
        client: String = "client",
    }

    /// Ends a subscription.
    UnsubscribeTopic = "unsubscribe-topic" {
        /// The topic.
        topic: String = "topic",
        /// The client.
        client: String = "client",
    }

    /// Announces data that a client has sent to workers.
    DataAnnounced = "update-data" {
        /// The holders of the data.
        who_has: Map<Key, Vec<String>> = "who_has",
        /// The size of the data in bytes.
        nbytes: Sizes = "nbytes",
        /// The client that holds the data.
        client: Option<String> = "client",
    }

    /// Heartbeat of a client.
    HeartbeatClient = "heartbeat-client" {}

    /// Announces that a client which has returned has desired all keys that it wants. The
    /// scheduler releases the others that it had before. Not a message of Dask.
    KeysConfirmed = "client-keys-confirmed" {}

    /// Announces that a client leaves.
    CloseClient = "close-client" {}

    /// Closes the stream.
    CloseStream = "close-stream" {}

    /// The first message to a client.
    StreamStart = "stream-start" {
        /// A warning to the client.
        warning: Option<String> = "warning",
        /// The reason for refusing the client; empty if it is accepted.
        error: Option<String> = "error",
        /// The number of graphs that the scheduler has accepted of a client that returns, whose keys
        /// it has; not in releases of Dask.
        graphs_accepted: Option<u64> = "graphs-accepted",
        /// The reason why a client that returns has lost its keys; not in releases of Dask.
        lost: Option<String> = "lost",
    }

    /// Reports how many graphs of the client were inserted or refused. Not a message of Dask;
    /// sent to clients that register with `returning`.
    GraphsAccepted = "graphs-accepted" {
        /// The number since the client has registered first.
        count: u64 = "count",
    }

    /// Reports that a result is in memory.
    KeyInMemory = "key-in-memory" {
        /// The key of the result.
        key: Key = "key",
        /// The pickle of the result's class.
        class: Option<Value> = "type",
        /// The workers that hold the result.
        workers: Option<Vec<String>> = "workers",
    }

    /// Reports that a task or one of its dependencies failed.
    TaskErredForClient = "task-erred" {
        /// The key of the task.
        key: Key = "key",
        /// The exception: see [`RemoteError`](crate::RemoteError).
        exception: Value = "exception",
        /// The traceback.
        traceback: Option<Value> = "traceback",
    }

    /// Reports that a result was lost and is computed again.
    LostData = "lost-data" {
        /// The key of the task.
        key: Key = "key",
    }

    /// Reports that results will never be available, because their tasks were cancelled.
    CancelledKeys = "cancelled-keys" {
        /// The keys of the tasks.
        keys: Keys = "keys",
        /// The reason.
        reason: Option<String> = "reason",
        /// Details, for users.
        msg: Option<String> = "msg",
    }

    /// Reports that a result will never be available, up to 2023.
    CancelledKey = "cancelled-key" {
        /// The key of the task.
        key: Key = "key",
    }

    /// Reports that a failed task is retried.
    TaskRetried = "task-retried" {
        /// The key of the task.
        key: Key = "key",
    }

    /// Announces that the cluster restarts and forgets everything.
    Restart = "restart" {}

    /// Sets the interval of a client's heartbeats.
    AdjustHeartbeatInterval = "adjust-heartbeat-interval" {
        /// The interval in seconds.
        interval: f64 = "interval",
    }

    /// An event of a topic.
    Event = "event" {
        /// The topic.
        topic: String = "topic",
        /// The time and the event.
        event: Value = "event",
    }

    /// Announces that the scheduler has closed the stream.
    StreamClosed = "stream-closed" {}

    /// Requests the receiver to leave.
    Close = "close" {
        /// The reason.
        reason: Option<String> = "reason",
    }

    /// Requests a worker to run a task.
    ComputeTask = "compute-task" {
        /// The key of the task.
        key: Key = "key",
        /// The number of this run, which is returned with the result; since
        /// 2023.1.1.
        run_id: i64 = "run_id" or 0,
        /// Three numbers, compared in order; lower values run earlier.
        priority: Vec<f64> = "priority",
        /// The cause, for logs.
        stimulus_id: String = "stimulus_id",
        /// The holders of the dependencies.
        who_has: Map<Key, Vec<String>> = "who_has",
        /// The sizes in bytes of the dependencies, and only of them.
        nbytes: Sizes = "nbytes" or Sizes::default(),
        /// The task, see [`graph`](crate::graph).
        run_spec: RunSpec = "run_spec",
        /// The resources that the task holds while it runs.
        resource_restrictions: Nullable<Value> = "resource_restrictions",
        /// Whether the task makes an actor.
        actor: bool = "actor" or false,
        /// The task's annotations.
        annotations: Option<Value> = "annotations",
        /// The task's span.
        span_id: Nullable<String> = "span_id",
    }

    /// Requests a worker to forget keys in any state.
    FreeKeys = "free-keys" {
        /// The keys.
        keys: Keys = "keys",
        /// The cause, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// Requests a worker to delete replicas.
    RemoveReplicas = "remove-replicas" {
        /// The keys.
        keys: Keys = "keys",
        /// The cause, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// Requests a worker to fetch replicas.
    AcquireReplicas = "acquire-replicas" {
        /// The holders of the keys.
        who_has: Map<Key, Vec<String>> = "who_has",
        /// The sizes of the keys in bytes.
        nbytes: Option<Sizes> = "nbytes",
        /// The cause, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// Requests a worker to return a task, unless the task is executing.
    StealRequest = "steal-request" {
        /// The key of the task.
        key: Key = "key",
        /// The id of the request, returned with the response.
        stimulus_id: String = "stimulus_id",
    }

    /// Updates the holders of keys.
    RefreshWhoHas = "refresh-who-has" {
        /// The holders of the keys; an empty list means none.
        who_has: Map<Key, Vec<String>> = "who_has",
        /// The cause, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// Reports or requests a change of a worker's status.
    WorkerStatusChange = "worker-status-change" {
        /// `running`, `paused`, `closing_gracefully`, `closing` …
        status: WorkerStatus = "status",
        /// The cause, for logs; since 2022.5.0.
        stimulus_id: String = "stimulus_id" or String::new(),
    }

    /// Reports that another worker has left.
    RemoveWorker = "remove-worker" {
        /// The worker's address.
        worker: String = "worker",
        /// The cause, for logs.
        stimulus_id: Option<String> = "stimulus_id",
    }

    /// Reports that a task is no longer needed.
    CancelCompute = "cancel-compute" {
        /// The key of the task.
        key: Key = "key",
        /// The cause, for logs; since 2022.5.0.
        stimulus_id: String = "stimulus_id" or String::new(),
    }

    /// Reports a task's result.
    TaskFinished = "task-finished" {
        /// The key of the task.
        key: Key = "key",
        /// The number of the run, from the request.
        run_id: i64 = "run_id",
        /// `OK`, for the dashboard.
        status: Option<ReplyStatus> = "status",
        /// Size of the result in bytes.
        nbytes: u64 = "nbytes",
        /// The pickle of the result's class; nil and a string are accepted too.
        class: Nullable<Bytes> = "type",
        /// The name of the result's class.
        typename: String = "typename",
        /// Metadata set by the task's function.
        metadata: Map<Value, Value> = "metadata",
        /// The steps done for the task, with times.
        startstops: Vec<StartStop> = "startstops",
        /// The cause, for logs.
        stimulus_id: String = "stimulus_id",
        /// The thread that ran the task.
        thread: Option<i64> = "thread",
    }

    /// Reports that a task failed.
    TaskErred = "task-erred" {
        /// The key of the task.
        key: Key = "key",
        /// The number of the run, from the request.
        run_id: i64 = "run_id",
        /// `error`, for the dashboard.
        status: Option<ReplyStatus> = "status",
        /// The exception; never nil, which Python clients cannot handle.
        exception: Value = "exception",
        /// The traceback.
        traceback: Option<Value> = "traceback",
        /// The exception as a string.
        exception_text: Option<String> = "exception_text",
        /// The traceback as a string.
        traceback_text: Option<String> = "traceback_text",
        /// The steps done for the task, with times.
        startstops: Option<Vec<StartStop>> = "startstops",
        /// The cause, for logs.
        stimulus_id: String = "stimulus_id",
        /// The thread that ran the task.
        thread: Option<i64> = "thread",
    }

    /// Reports replicas.
    AddKeys = "add-keys" {
        /// The keys of the tasks.
        keys: Keys = "keys",
        /// The cause, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// Reports that a worker has deleted data.
    ReleaseWorkerData = "release-worker-data" {
        /// The key of the task.
        key: Key = "key",
        /// The cause, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// The response to a [`StealRequest`].
    StealResponse = "steal-response" {
        /// The key.
        key: Key = "key",
        /// The state of the task, which is returned if this is `waiting`,
        /// `ready` or `constrained`.
        state: Nullable<String> = "state",
        /// The id of the request.
        stimulus_id: String = "stimulus_id",
    }

    /// Asks for the holders of keys.
    RequestRefreshWhoHas = "request-refresh-who-has" {
        /// The keys.
        keys: Keys = "keys",
        /// The cause, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// Returns an executing task to the scheduler.
    Reschedule = "reschedule" {
        /// The key of the task.
        key: Key = "key",
        /// The cause, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// Reports that a task has left the thread pool.
    LongRunning = "long-running" {
        /// The key of the task.
        key: Key = "key",
        /// The number of the run, from the request.
        run_id: i64 = "run_id",
        /// The task's run time so far, in seconds.
        compute_duration: Nullable<f64> = "compute_duration",
        /// The cause, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// Publishes an event under a topic.
    LogEvent = "log-event" {
        /// The topic.
        topic: Value = "topic",
        /// The event.
        msg: Value = "msg",
    }

    /// Reports what a worker holds and runs that has registered again, to a scheduler of this
    /// project. One of several parts.
    Returned = "returned" {
        /// Results in the worker's memory.
        results: Vec<ReturnedResult> = "results",
        /// The keys of those results that are actors, and live on this worker.
        actors: Keys = "actors" or Keys::default(),
        /// Tasks that the worker goes on with, or has ended without having reported it.
        running: Vec<ReturnedRun> = "running",
        /// Whether this is the last part.
        is_last: bool = "is_last",
        /// The cause, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// Keeps a worker's connection alive.
    KeepAlive = "keep-alive" {}

    /// A step done for a task.
    StartStop {
        /// `compute`, `transfer`, `disk-read`, `disk-write` or `deserialize`.
        action: String = "action",
        /// Start, in seconds since 1970.
        start: f64 = "start",
        /// End, in seconds since 1970.
        stop: f64 = "stop",
        /// The worker that the data was transferred from.
        source: Option<String> = "source",
    }
}

/// A result of [`Returned`]: a list, of which further items are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReturnedResult {
    /// The key of the task.
    pub key: Key,
    /// Size of the result in bytes.
    pub nbytes: u64,
    /// The pickle of the result's class.
    pub class: Option<Bytes>,
}

impl Field for ReturnedResult {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        let further = further_items(source, 3, "the key, size and type of a result")?;
        let result = Self {
            key: Key::read(&mut source.reader)?,
            nbytes: u64::read(source)?,
            class: Option::read(source)?,
        };
        for _ in 0..further {
            source.reader.skip()?;
        }
        Ok(result)
    }

    fn heap_len(&self) -> usize {
        self.key.heap_len() + self.class.heap_len()
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        to.body().array(3);
        self.key.write(to)?;
        self.nbytes.write(to)?;
        self.class.write(to)
    }
}

/// A running task of [`Returned`]: a list, of which further items are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReturnedRun {
    /// The key of the task.
    pub key: Key,
    /// The number of the run, from the request.
    pub run_id: i64,
}

impl Field for ReturnedRun {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        let further = further_items(source, 2, "the key and run of a task")?;
        let run = Self {
            key: Key::read(&mut source.reader)?,
            run_id: i64::read(source)?,
        };
        for _ in 0..further {
            source.reader.skip()?;
        }
        Ok(run)
    }

    fn heap_len(&self) -> usize {
        self.key.heap_len()
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        to.body().array(2);
        self.key.write(to)?;
        self.run_id.write(to)
    }
}

/// Begins to read a list of at least `count` items. Returns the number of further ones.
fn further_items(
    source: &mut Source<'_>,
    count: u32,
    what: &'static str,
) -> Result<u32, ProtocolError> {
    let len = source.reader.array()?;
    len.checked_sub(count)
        .ok_or_else(|| source.unexpected(what))
}

/// The tasks of an [`UpdateGraph`] that make actors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Actors {
    /// None: false, nil, or absent.
    #[default]
    None,
    /// Those with the keys that the client wants: true.
    Wanted,
    /// Those with these keys.
    Keys(Keys),
}

impl Field for Actors {
    const ABSENT: Option<fn() -> Self> = Some(|| Self::None);

    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        if source.reader.take_nil() {
            return Ok(Self::None);
        }
        let start = source.reader;
        if let Ok(is_wanted) = source.reader.bool() {
            return Ok(if is_wanted { Self::Wanted } else { Self::None });
        }
        source.reader = start;
        Keys::read(source).map(Self::Keys)
    }

    fn is_left_out(&self) -> bool {
        *self == Self::None
    }

    fn heap_len(&self) -> usize {
        match self {
            Self::Keys(keys) => keys.heap_len(),
            _ => 0,
        }
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        match self {
            Self::Keys(keys) => return keys.write(to),
            other => to.body().bool(*other == Self::Wanted),
        };
        Ok(())
    }
}

/// The task of a [`ComputeTask`].
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RunSpec {
    /// Nil or absent. Up to 2023.8.0 the message itself has the fields of
    /// [`CallPickles`], or up to 2022.5 `task`.
    #[default]
    Absent,
    /// The pickle of a graph node, or up to 2024.10 of a tuple.
    Payload(Serialized),
    /// Three pickles, in 2022.6.0.
    Call(Box<CallPickles>),
}

impl RunSpec {
    /// The pickle of the task, of a release with one.
    pub fn payload(&self) -> Option<&Serialized> {
        match self {
            Self::Payload(payload) => Some(payload),
            _ => None,
        }
    }
}

impl Field for RunSpec {
    const ABSENT: Option<fn() -> Self> = Some(|| Self::Absent);

    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        if source.reader.take_nil() {
            return Ok(Self::Absent);
        }
        if let Some(payload) = source.payload()? {
            return Ok(Self::Payload(payload));
        }
        let start = source.reader;
        if let Ok(call) = CallPickles::read(source) {
            return Ok(Self::Call(Box::new(call)));
        }
        source.reader = start;
        Serialized::read(source).map(Self::Payload)
    }

    fn heap_len(&self) -> usize {
        match self {
            Self::Absent => 0,
            Self::Payload(payload) => payload.heap_len(),
            Self::Call(call) => call.heap_len(),
        }
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        match self {
            Self::Absent => {
                to.body().nil();
                Ok(())
            }
            Self::Payload(payload) => payload.write(to),
            Self::Call(call) => Field::write(&**call, to),
        }
    }
}
