//! What goes over streams.

use bytes::Bytes;

use super::field::{Keys, Map, Nullable, maps, ops};
use crate::Key;
use crate::value::{Serialized, Value};

ops! {
    /// What a client says on its stream.
    FromClient {
        UpdateGraph = "update-graph",
        ClientDesiresKeys = "client-desires-keys",
        ClientReleasesKeys = "client-releases-keys",
        ReportKey = "report-key",
        CancelKeys = "cancel-keys",
        HeartbeatClient = "heartbeat-client",
        CloseClient = "close-client",
        CloseStream = "close-stream",
    }
}

ops! {
    /// What a scheduler says on the stream of a client.
    ToClient {
        StreamStart = "stream-start",
        KeyInMemory = "key-in-memory",
        TaskErredForClient = "task-erred",
        LostData = "lost-data",
        CancelledKeys = "cancelled-keys",
        TaskRetried = "task-retried",
        Restart = "restart",
        AdjustHeartbeatInterval = "adjust-heartbeat-interval",
        Event = "event",
        StreamClosed = "stream-closed",
        Close = "close",
        CloseStream = "close-stream",
    }
}

ops! {
    /// What a scheduler says on the stream of a worker.
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
    /// What a worker says on its stream.
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
        KeepAlive = "keep-alive",
        CloseStream = "close-stream",
    }
}

maps! {
    /// A client submits tasks.
    UpdateGraph = "update-graph" {
        /// The tasks: the pickle of an expression, see [`graph`](crate::graph).
        expr_ser: Serialized = "expr_ser",
        /// The keys that the client wants to hold.
        keys: Keys = "keys",
        /// An order of the tasks; nil lets the scheduler make one.
        internal_priority: Nullable<Map<Key, i64>> = "internal_priority",
        /// The key of the task that submits these, if one does.
        submitting_task: Nullable<Key> = "submitting_task",
        /// Nil. A map of plain values would spoil the scheduler's spans for all
        /// clients.
        span_metadata: Nullable<Value> = "span_metadata",
        /// The higher the earlier.
        user_priority: Option<f64> = "user_priority",
        /// Annotations of all tasks: `workers`, `resources`, `retries` …
        annotations: Option<Value> = "annotations",
    }

    /// A client wants to hold keys, made by others perhaps.
    ClientDesiresKeys = "client-desires-keys" {
        /// The keys.
        keys: Keys = "keys",
        /// Who wants them, if not the client whose stream it is.
        client: Option<String> = "client",
    }

    /// A client does not hold keys any more.
    ClientReleasesKeys = "client-releases-keys" {
        /// The keys.
        keys: Keys = "keys",
        /// Who held them, if not the client whose stream it is.
        client: Option<String> = "client",
    }

    /// A client wants to be told again what is known of a key.
    ReportKey = "report-key" {
        /// The key.
        key: Key = "key",
    }

    /// A client cancels tasks.
    CancelKeys = "cancel-keys" {
        /// Their keys.
        keys: Keys = "keys",
        /// Whether to cancel what other clients want too.
        force: bool = "force",
        /// Why, for `cancelled-keys`.
        reason: Nullable<String> = "reason",
        /// More about it, for people.
        msg: Nullable<String> = "msg",
    }

    /// A client is there.
    HeartbeatClient = "heartbeat-client" {}

    /// A client leaves.
    CloseClient = "close-client" {}

    /// The stream ends here.
    CloseStream = "close-stream" {}

    /// The first message to a client.
    StreamStart = "stream-start" {
        /// What the client should be warned of.
        warning: Option<String> = "warning",
        /// Why the client is refused; empty if it is not.
        error: Option<String> = "error",
    }

    /// A result is there.
    KeyInMemory = "key-in-memory" {
        /// Its key.
        key: Key = "key",
        /// The pickle of its class.
        class: Option<Value> = "type",
        /// Where it is.
        workers: Option<Vec<String>> = "workers",
    }

    /// A task failed, or one that it depends on.
    TaskErredForClient = "task-erred" {
        /// Its key.
        key: Key = "key",
        /// The exception: see [`RemoteError`](crate::RemoteError).
        exception: Value = "exception",
        /// Where it was raised.
        traceback: Option<Value> = "traceback",
    }

    /// A result was there and is computed again.
    LostData = "lost-data" {
        /// Its key.
        key: Key = "key",
    }

    /// Results that will never be there.
    CancelledKeys = "cancelled-keys" {
        /// Their keys.
        keys: Keys = "keys",
        /// Why.
        reason: Option<String> = "reason",
        /// More about it, for people.
        msg: Option<String> = "msg",
    }

    /// A task that failed is tried again.
    TaskRetried = "task-retried" {
        /// Its key.
        key: Key = "key",
    }

    /// All is forgotten.
    Restart = "restart" {}

    /// How often a client is to say that it is there.
    AdjustHeartbeatInterval = "adjust-heartbeat-interval" {
        /// In seconds.
        interval: f64 = "interval",
    }

    /// Something that was logged under a topic.
    Event = "event" {
        /// The topic.
        topic: String = "topic",
        /// When, and what.
        event: Value = "event",
    }

    /// The scheduler has closed the stream.
    StreamClosed = "stream-closed" {}

    /// Leave.
    Close = "close" {
        /// Why.
        reason: Option<String> = "reason",
    }

    /// A worker is to run a task.
    ComputeTask = "compute-task" {
        /// Its key.
        key: Key = "key",
        /// The number of this run, which comes back with its result.
        run_id: i64 = "run_id",
        /// Three numbers to be compared in order, the lower the earlier.
        priority: Vec<f64> = "priority",
        /// Why, for logs.
        stimulus_id: String = "stimulus_id",
        /// Where the keys are that it depends on.
        who_has: Map<Key, Vec<String>> = "who_has",
        /// How many bytes each of these has: exactly the dependencies.
        nbytes: Map<Key, u64> = "nbytes",
        /// The task: the pickle of a node, see [`graph`](crate::graph).
        run_spec: Serialized = "run_spec",
        /// The resources that it takes while it runs.
        resource_restrictions: Nullable<Value> = "resource_restrictions",
        /// Whether it makes an actor.
        actor: bool = "actor",
        /// Its annotations.
        annotations: Option<Value> = "annotations",
        /// The span that it belongs to.
        span_id: Nullable<String> = "span_id",
    }

    /// Forget keys, in whatever state they are.
    FreeKeys = "free-keys" {
        /// The keys.
        keys: Keys = "keys",
        /// Why, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// Delete copies that are not needed.
    RemoveReplicas = "remove-replicas" {
        /// The keys.
        keys: Keys = "keys",
        /// Why, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// Fetch copies.
    AcquireReplicas = "acquire-replicas" {
        /// Where the keys are.
        who_has: Map<Key, Vec<String>> = "who_has",
        /// How many bytes each of them has.
        nbytes: Option<Map<Key, u64>> = "nbytes",
        /// Why, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// Give a task back, if it does not run.
    StealRequest = "steal-request" {
        /// Its key.
        key: Key = "key",
        /// Comes back with the answer.
        stimulus_id: String = "stimulus_id",
    }

    /// Where keys are now.
    RefreshWhoHas = "refresh-who-has" {
        /// The keys; nowhere if the list is empty.
        who_has: Map<Key, Vec<String>> = "who_has",
        /// Why, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// A worker's status changes, or is to change.
    WorkerStatusChange = "worker-status-change" {
        /// `running`, `paused`, `closing_gracefully`, `closing` …
        status: String = "status",
        /// Why, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// Another worker is gone.
    RemoveWorker = "remove-worker" {
        /// Its address.
        worker: String = "worker",
        /// Why, for logs.
        stimulus_id: Option<String> = "stimulus_id",
    }

    /// A task is not needed any more.
    CancelCompute = "cancel-compute" {
        /// Its key.
        key: Key = "key",
        /// Why, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// A worker has a result.
    TaskFinished = "task-finished" {
        /// Its key.
        key: Key = "key",
        /// The number of the run.
        run_id: i64 = "run_id",
        /// `OK`, for the dashboard.
        status: Option<String> = "status",
        /// Bytes of memory that it takes.
        nbytes: u64 = "nbytes",
        /// The pickle of its class; nil and a text are taken too.
        class: Nullable<Bytes> = "type",
        /// What its class is called.
        typename: String = "typename",
        /// What its function had to say.
        metadata: Map<Value, Value> = "metadata",
        /// What was done for it, and when.
        startstops: Vec<StartStop> = "startstops",
        /// Why, for logs.
        stimulus_id: String = "stimulus_id",
        /// The thread that ran it.
        thread: Option<i64> = "thread",
    }

    /// A worker has an exception instead of a result.
    TaskErred = "task-erred" {
        /// Its key.
        key: Key = "key",
        /// The number of the run.
        run_id: i64 = "run_id",
        /// `error`, for the dashboard.
        status: Option<String> = "status",
        /// The exception; never nil, which clients of Python break over.
        exception: Value = "exception",
        /// Where it was raised.
        traceback: Option<Value> = "traceback",
        /// The exception as text.
        exception_text: Option<String> = "exception_text",
        /// Where it was raised, as text.
        traceback_text: Option<String> = "traceback_text",
        /// What was done for it, and when.
        startstops: Option<Vec<StartStop>> = "startstops",
        /// Why, for logs.
        stimulus_id: String = "stimulus_id",
        /// The thread that ran it.
        thread: Option<i64> = "thread",
    }

    /// A worker has copies.
    AddKeys = "add-keys" {
        /// Their keys.
        keys: Keys = "keys",
        /// Why, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// A worker has deleted a value.
    ReleaseWorkerData = "release-worker-data" {
        /// Its key.
        key: Key = "key",
        /// Why, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// What became of a [`StealRequest`].
    StealResponse = "steal-response" {
        /// The key.
        key: Key = "key",
        /// In which state the task is: given back if it is `waiting`, `ready` or
        /// `constrained`.
        state: Nullable<String> = "state",
        /// The same as in the request.
        stimulus_id: String = "stimulus_id",
    }

    /// A worker does not find keys where they should be.
    RequestRefreshWhoHas = "request-refresh-who-has" {
        /// The keys.
        keys: Keys = "keys",
        /// Why, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// A worker gives a task back that it runs.
    Reschedule = "reschedule" {
        /// Its key.
        key: Key = "key",
        /// Why, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// A task has left the thread pool.
    LongRunning = "long-running" {
        /// Its key.
        key: Key = "key",
        /// The number of the run.
        run_id: i64 = "run_id",
        /// Seconds that it has run.
        compute_duration: Nullable<f64> = "compute_duration",
        /// Why, for logs.
        stimulus_id: String = "stimulus_id",
    }

    /// Something to be logged under a topic.
    LogEvent = "log-event" {
        /// The topic.
        topic: Value = "topic",
        /// What.
        msg: Value = "msg",
    }

    /// A worker is there.
    KeepAlive = "keep-alive" {}

    /// Something that was done for a task.
    StartStop {
        /// `compute`, `transfer`, `disk-read`, `disk-write` or `deserialize`.
        action: String = "action",
        /// When it began, in seconds since 1970.
        start: f64 = "start",
        /// When it ended, in seconds since 1970.
        stop: f64 = "stop",
        /// From which worker it was transferred.
        source: Option<String> = "source",
    }
}
