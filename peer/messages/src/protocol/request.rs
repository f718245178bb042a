//! Requests: messages that the peer replies to.

use super::Unknown;
use super::field::{Keys, Map, Nullable, WorkerNames, maps, ops};
use super::shared::*;
use super::status::WorkerStatus;
use crate::Key;
use crate::value::{Serialized, Value};

ops! {
    /// A request on a comm that is not a stream.
    Request {
        Identity = "identity",
        Ping = "ping",
        Echo = "echo",
        Versions = "versions",
        RegisterClient = "register-client",
        RegisterWorker = "register-worker",
        HeartbeatWorker = "heartbeat_worker",
        Unregister = "unregister",
        Gather = "gather",
        Scatter = "scatter",
        WhoHas = "who_has",
        HasWhat = "has_what",
        NCores = "ncores",
        NCoresRunning = "ncores_running",
        NBytes = "nbytes",
        GetTaskStatus = "get_task_status",
        GetData = "get_data",
        UpdateData = "update_data",
        FreeKeysRequest = "free_keys",
        KeysRequest = "keys",
        GetLogs = "get_logs",
        GetCallStack = "call_stack",
        GetProfile = "profile",
        GetProfileMetadata = "profile_metadata",
        GetMonitorInfo = "get_monitor_info",
        GetStory = "get_story",
        Processing = "processing",
        Logs = "logs",
        WorkerLogs = "worker_logs",
        LogEventRequest = "log_event",
        Events = "events",
        GetMetadata = "get_metadata",
        SetMetadata = "set_metadata",
        Broadcast = "broadcast",
        Retry = "retry",
        RetireWorkers = "retire_workers",
        WorkersToClose = "workers_to_close",
        AdaptiveTarget = "adaptive_target",
        CloseComm = "close",
        Terminate = "terminate",
        Kill = "kill",
        RegisterNanny = "register_nanny",
        RegisterWorkerPlugin = "register_worker_plugin",
        UnregisterWorkerPlugin = "unregister_worker_plugin",
        RegisterNannyPlugin = "register_nanny_plugin",
        UnregisterNannyPlugin = "unregister_nanny_plugin",
        RegisterSchedulerPlugin = "register_scheduler_plugin",
        RestartCluster = "restart",
        RestartWorkers = "restart_workers",
        AmmHandler = "amm_handler",
        VariableSet = "variable_set",
        VariableGet = "variable_get",
        QueueCreate = "queue_create",
        QueuePut = "queue_put",
        QueueGet = "queue_get",
        QueueSize = "queue_qsize",
        EventWait = "event_wait",
        EventSet = "event_set",
        EventClear = "event_clear",
        EventIsSet = "event_is_set",
        SemaphoreRegister = "semaphore_register",
        SemaphoreAcquire = "semaphore_acquire",
        SemaphoreRelease = "semaphore_release",
        SemaphoreRefreshLeases = "semaphore_refresh_leases",
        SemaphoreClose = "semaphore_close",
        SemaphoreValue = "semaphore_value",
        MultiLockAcquire = "multi_lock_acquire",
        MultiLockRelease = "multi_lock_release",
        PublishPut = "publish_put",
        PublishGet = "publish_get",
        PublishDelete = "publish_delete",
        PublishList = "publish_list",
        Proxy = "proxy",
        BenchmarkHardware = "benchmark_hardware",
        ClusterState = "get_cluster_state",
        DumpState = "dump_state",
        SubscribeWorkerStatus = "subscribe_worker_status",
        CheckIdle = "check_idle",
        TaskPrefixStates = "get_task_prefix_states",
        TaskStream = "get_task_stream",
        TaskStreamIndex = "get_task_stream_index",
        StartTaskMetadata = "start_task_metadata",
        StopTaskMetadata = "stop_task_metadata",
        TaskRunSpec = "get_runspec",
        ErrorCause = "get_error_cause",
        AddReplicas = "add_keys",
        Rebalance = "rebalance",
        Replicate = "replicate",
        SetResources = "set_resources",
        SetRestrictions = "set_restrictions",
        ShuffleGet = "shuffle_get",
        ShuffleGetOrCreate = "shuffle_get_or_create",
        ShuffleRestrictTask = "shuffle_restrict_task",
        ShuffleBarrier = "shuffle_barrier",
        UnregisterSchedulerPlugin = "unregister_scheduler_plugin",
        MemorySamplerStart = "memory_sampler_start",
        MemorySamplerStop = "memory_sampler_stop",
    }
}

impl Request {
    /// Whether a peer that executes this request twice is in the same state as after
    /// once, and replies the same.
    pub const fn is_idempotent(&self) -> bool {
        matches!(
            self,
            Self::Identity(_)
                | Self::Ping(_)
                | Self::Echo(_)
                | Self::Versions(_)
                | Self::HeartbeatWorker(_)
                | Self::Gather(_)
                | Self::WhoHas(_)
                | Self::HasWhat(_)
                | Self::NCores(_)
                | Self::NCoresRunning(_)
                | Self::NBytes(_)
                | Self::GetTaskStatus(_)
                | Self::GetData(_)
                | Self::UpdateData(_)
                | Self::FreeKeysRequest(_)
                | Self::KeysRequest(_)
                | Self::GetLogs(_)
                | Self::GetCallStack(_)
                | Self::GetProfile(_)
                | Self::GetProfileMetadata(_)
                | Self::GetMonitorInfo(_)
                | Self::GetStory(_)
                | Self::Processing(_)
                | Self::Logs(_)
                | Self::WorkerLogs(_)
                | Self::Events(_)
                | Self::GetMetadata(_)
                | Self::SetMetadata(_)
                | Self::BenchmarkHardware(_)
                | Self::ClusterState(_)
                | Self::DumpState(_)
                | Self::CheckIdle(_)
                | Self::TaskPrefixStates(_)
                | Self::TaskStream(_)
                | Self::TaskStreamIndex(_)
                | Self::TaskRunSpec(_)
                | Self::ErrorCause(_)
                | Self::SetRestrictions(_)
        )
    }
}

/// Requests, each of which says whether its sender wants a reply.
macro_rules! requests {
    ($($(#[$meta:meta])* $name:ident = $op:literal { $($fields:tt)* })*) => {
        maps! {$(
            $(#[$meta])*
            $name = $op {
                $($fields)*
                /// Whether a reply is sent; false if a stream starts instead.
                reply: Option<bool> = "reply",
            }
        )*}
    };
}

pub(super) use requests;

requests! {
    /// Asks a scheduler or worker for its identity.
    Identity = "identity" {
        /// Maximum number of workers to list; all if negative.
        n_workers: Option<i64> = "n_workers",
    }

    /// Asks for the reply `b"pong"`.
    Ping = "ping" {}

    /// Asks for the same data back.
    Echo = "echo" {
        /// The data.
        data: Value = "data",
    }

    /// Asks for the versions of Python and its packages.
    Versions = "versions" {
        /// Further packages.
        packages: Option<Vec<String>> = "packages",
    }

    /// Registers a client; the comm becomes its stream.
    RegisterClient = "register-client" {
        /// The client's id.
        client: String = "client",
        /// The client's versions, which the scheduler compares with its own.
        versions: Value = "versions",
        /// Whether the client has registered under this id before, and wants to find its keys
        /// again. Schedulers of Dask refuse the field; only those that have
        /// [`PACKAGE`](crate::release::PACKAGE) in their versions know it.
        returning: Option<bool> = "returning",
    }

    /// Registers a worker; the comm becomes its stream. All fields are mandatory: a
    /// scheduler does not answer if one is missing.
    RegisterWorker = "register-worker" {
        /// The worker's address.
        address: String = "address",
        /// `running`, or `init` for a worker that takes no tasks yet. Releases before
        /// 2021.10.0 may leave it out.
        status: WorkerStatus = "status" or WorkerStatus::Running,
        /// The worker's id; since 2022.6.1.
        server_id: Option<String> = "server_id",
        /// Number of tasks that run at once.
        nthreads: u64 = "nthreads",
        /// The worker's name, unique in the cluster.
        name: Value = "name",
        /// The worker's time, in seconds since 1970.
        now: f64 = "now",
        /// The worker's resources.
        resources: Map<String, f64> = "resources",
        /// Memory limit in bytes.
        memory_limit: Nullable<u64> = "memory_limit",
        /// The worker's metrics.
        metrics: Value = "metrics",
        /// Ports of other services.
        services: Value = "services",
        /// The directory of the worker's files.
        local_directory: String = "local_directory",
        /// The worker's versions.
        versions: Value = "versions",
        /// The address of its nanny.
        nanny: Nullable<String> = "nanny",
        /// Extra information.
        extra_information: Value = "extra",
        /// The cause, for logs; since 2022.5.0.
        stimulus_id: Option<String> = "stimulus_id",
        /// The worker's process id.
        pid: Option<i64> = "pid",
    }

    /// Reports a worker's metrics.
    HeartbeatWorker = "heartbeat_worker" {
        /// The worker's address.
        address: String = "address",
        /// The worker's time, in seconds since 1970.
        now: f64 = "now",
        /// The worker's metrics.
        metrics: Value = "metrics",
        /// The executing tasks, and for how many seconds.
        executing: Map<Key, f64> = "executing" or Map::new(),
        /// Data of extensions; since 2022.4.0.
        extensions: Option<Value> = "extensions",
    }

    /// Unregisters a worker that has no stream.
    Unregister = "unregister" {
        /// The worker's address.
        address: String = "address",
        /// The cause, for logs; since 2022.5.0.
        stimulus_id: Option<String> = "stimulus_id",
    }

    /// Asks a scheduler for results, or a worker to fetch them from others.
    Gather = "gather" {
        /// The keys, for a scheduler.
        keys: Option<Keys> = "keys",
        /// The holders of the keys, for a worker.
        who_has: Option<Map<Key, Vec<String>>> = "who_has",
        /// The families of serializers that the client reads, in the order of its preference.
        /// Default: all.
        serializers: Option<Vec<String>> = "serializers",
    }

    /// Distributes data over workers.
    Scatter = "scatter" {
        /// The data.
        data: Map<Key, Serialized> = "data",
        /// The workers to use; nil for any.
        workers: Nullable<WorkerNames> = "workers",
        /// The client that holds the data.
        client: String = "client",
        /// The number of copies; true for one on each worker.
        broadcast: Value = "broadcast",
        /// Timeout for a worker to be available, in seconds.
        timeout: Option<f64> = "timeout",
    }

    /// Asks which workers hold results.
    WhoHas = "who_has" {
        /// The keys; all if absent.
        keys: Option<Keys> = "keys",
    }

    /// Asks which results workers hold.
    HasWhat = "has_what" {
        /// The workers; all if absent.
        workers: Option<WorkerNames> = "workers",
    }

    /// Asks for the number of threads of each worker.
    NCores = "ncores" {
        /// The workers; all if absent.
        workers: Option<WorkerNames> = "workers",
    }

    /// Asks for the number of threads of each running worker.
    NCoresRunning = "ncores_running" {
        /// The workers; all if absent.
        workers: Option<WorkerNames> = "workers",
    }

    /// Asks for the sizes of results in bytes.
    NBytes = "nbytes" {
        /// The keys; all if absent.
        keys: Option<Keys> = "keys",
        /// Whether sizes are summed up for groups of keys, or else listed for each
        /// key.
        summary: Option<bool> = "summary",
    }

    /// Asks for the states of tasks.
    GetTaskStatus = "get_task_status" {
        /// The keys of the tasks.
        keys: Keys = "keys",
    }

    /// Asks a worker for results. The reply is acknowledged by `"OK"`.
    GetData = "get_data" {
        /// The keys.
        keys: Keys = "keys",
        /// The address of the requesting worker, if it is one.
        who: Nullable<String> = "who",
        /// The families of serializers that the requester reads, in the order of its
        /// preference. Default: all.
        serializers: Option<Vec<String>> = "serializers",
    }

    /// Sends data to a worker, or announces data to a scheduler.
    UpdateData = "update_data" {
        /// The data, for a worker.
        data: Option<Map<Key, Serialized>> = "data",
        /// The holders of the data, for a scheduler.
        who_has: Option<Map<Key, Vec<String>>> = "who_has",
        /// The size of the data in bytes, for a scheduler.
        nbytes: Option<Map<Key, u64>> = "nbytes",
        /// The client that holds the data, for a scheduler.
        client: Option<String> = "client",
        /// Whether a worker reports the data to its scheduler; up to 2023.2.0.
        report: Option<bool> = "report",
        /// The cause, for logs.
        stimulus_id: Option<String> = "stimulus_id",
    }

    /// Asks a worker to forget results.
    FreeKeysRequest = "free_keys" {
        /// The keys of the tasks.
        keys: Keys = "keys",
        /// The cause, for logs.
        stimulus_id: Option<String> = "stimulus_id",
    }

    /// Asks a worker for the keys of its data.
    KeysRequest = "keys" {}

    /// Asks a worker for its log, newest line first: level and string of each
    /// line, preceded by the time if requested.
    GetLogs = "get_logs" {
        /// Maximum number of lines; all if absent or 0.
        n: Option<u64> = "n",
        /// The earliest time, in seconds since 1970.
        start: Option<f64> = "start",
        /// Whether lines include the time.
        timestamps: Option<bool> = "timestamps",
    }

    /// Asks a worker for the call stacks of its tasks: some lines for each key.
    GetCallStack = "call_stack" {
        /// The tasks; all executing ones if absent or nil.
        keys: Option<Keys> = "keys",
    }

    /// Asks a worker for the profile of its interpreter, or a scheduler for those of
    /// its workers. A worker in Rust ignores the fields that select time and task.
    GetProfile = "profile" {
        /// The prefix of the tasks; all if absent.
        key: Option<String> = "key",
        /// The workers, for a scheduler; all if absent.
        workers: Option<WorkerNames> = "workers",
        /// The earliest time, in seconds since 1970.
        start: Option<f64> = "start",
        /// The latest time, in seconds since 1970.
        stop: Option<f64> = "stop",
        /// Whether the event loops of the workers are profiled instead of their
        /// tasks.
        server: Option<bool> = "server",
        /// Whether the event loop of the scheduler is profiled, for a scheduler.
        scheduler: Option<bool> = "scheduler",
        /// Whether the profiles of workers become one, for a scheduler. Default: true.
        merge_workers: Option<bool> = "merge_workers",
    }

    /// Asks a worker for the times and numbers of its profiler's samples.
    GetProfileMetadata = "profile_metadata" {}

    /// Asks a worker for the history of its process metrics.
    GetMonitorInfo = "get_monitor_info" {}

    /// Asks a scheduler or worker for the history of tasks.
    GetStory = "get_story" {
        /// Keys of tasks, and stimulus ids.
        keys_or_stimuli: Option<Keys> = "keys_or_stimuli",
    }

    /// Asks a scheduler for the tasks that workers run or are about to run.
    Processing = "processing" {
        /// The workers; all if absent.
        workers: Option<WorkerNames> = "workers",
    }

    /// Asks a scheduler for its log, as [`GetLogs`].
    Logs = "logs" {
        /// Maximum number of lines; all if absent or 0.
        n: Option<u64> = "n",
        /// The earliest time, in seconds since 1970.
        start: Option<f64> = "start",
        /// Whether lines include the time.
        timestamps: Option<bool> = "timestamps",
    }

    /// Asks a scheduler for the logs of workers.
    WorkerLogs = "worker_logs" {
        /// Maximum number of lines of each; all if absent or 0.
        n: Option<u64> = "n",
        /// The workers; all if absent.
        workers: Option<WorkerNames> = "workers",
        /// Whether the logs of nannies are wanted instead.
        nanny: Option<bool> = "nanny",
    }

    /// Publishes an event; since 2022.6.1.
    LogEventRequest = "log_event" {
        /// The topic, or a list of topics.
        topic: Value = "topic",
        /// The event.
        msg: Value = "msg",
    }

    /// Asks for the recent events of a topic: their times and messages.
    Events = "events" {
        /// The topic; all if absent.
        topic: Option<String> = "topic",
    }

    /// Asks a scheduler for metadata that clients and tasks have set.
    GetMetadata = "get_metadata" {
        /// The path in nested dictionaries.
        keys: Vec<Key> = "keys",
        /// The reply if there is no metadata at the path. Default: `__no_default__`, for an error.
        default: Value = "default" or Value::from("__no_default__"),
    }

    /// Sets metadata in a scheduler.
    SetMetadata = "set_metadata" {
        /// The path in nested dictionaries.
        keys: Vec<Key> = "keys",
        /// The value.
        value: Value = "value" or Value::None,
    }

    /// Asks a scheduler to send a request to workers.
    Broadcast = "broadcast" {
        /// The request.
        msg: Unknown = "msg",
        /// Addresses of the workers. Default: all, or those on `hosts`.
        workers: Option<WorkerNames> = "workers",
        /// Hosts, whose workers get the message too.
        hosts: Option<Vec<String>> = "hosts",
        /// Whether the nannies of the workers are asked instead of the workers.
        nanny: Option<bool> = "nanny",
        /// The reaction to workers that do not reply: `raise`, `return`, `return_pickle`
        /// or `ignore`. Default: `raise`.
        on_error: Option<String> = "on_error",
        /// The families of serializers that the requester reads, in the order of its
        /// preference. Default: all.
        serializers: Option<Vec<String>> = "serializers",
    }

    /// Retries failed tasks.
    Retry = "retry" {
        /// The keys of the tasks.
        keys: Keys = "keys",
        /// The requesting client.
        client: Option<String> = "client",
    }

    /// Retires workers, after others have copies of their data. Without addresses and names,
    /// the scheduler chooses the workers, as for [`WorkersToClose`].
    RetireWorkers = "retire_workers" {
        /// The addresses of the workers. `SpecCluster` sends the names of its specification.
        workers: Option<WorkerNames> = "workers",
        /// The names of the workers.
        names: Option<WorkerNames> = "names",
        /// The number of workers to choose.
        n: Option<i64> = "n",
        /// The number of workers to keep.
        target: Option<i64> = "target",
        /// Minimum number of workers to keep.
        minimum: Option<i64> = "minimum",
        /// The memory to keep, as a multiple of the data. Default: 2.
        memory_ratio: Option<f64> = "memory_ratio",
        /// The pickle of a function for the groups that leave together.
        key: Option<Value> = "key",
        /// Whether the workers close.
        close_workers: Option<bool> = "close_workers",
        /// Whether they leave the cluster.
        remove: Option<bool> = "remove",
        /// The cause, for logs.
        stimulus_id: Option<String> = "stimulus_id",
    }

    /// Asks a scheduler which workers can be closed at low cost.
    WorkersToClose = "workers_to_close" {
        /// The number of workers to choose.
        n: Option<i64> = "n",
        /// The number of workers to keep.
        target: Option<i64> = "target",
        /// Minimum number of workers to keep.
        minimum: Option<i64> = "minimum",
        /// The memory to keep, as a multiple of the data. Default: 2.
        memory_ratio: Option<f64> = "memory_ratio",
        /// The pickle of a function for the groups that leave together.
        key: Option<Value> = "key",
        /// The attribute of the workers in the reply: `address` or `name`. Default: `address`.
        attribute: Option<String> = "attribute",
    }

    /// Asks a scheduler for the number of workers that suits its tasks.
    AdaptiveTarget = "adaptive_target" {
        /// The time that all tasks should take, in seconds or as a string with a unit. Default: 5
        /// seconds.
        target_duration: Option<Value> = "target_duration",
    }

    /// Closes the comm.
    CloseComm = "close" {}

    /// Terminates a scheduler or worker.
    Terminate = "terminate" {}

    /// Asks a scheduler for its plugins of nannies. The nanny acknowledges the reply once its
    /// worker has started.
    RegisterNanny = "register_nanny" {
        /// The nanny's address.
        address: Option<String> = "address",
    }

    /// Stores a plugin of workers in a scheduler, which sends it to all workers.
    RegisterWorkerPlugin = "register_worker_plugin" {
        /// The pickle of the plugin.
        plugin: Value = "plugin",
        /// The name of the plugin.
        name: String = "name",
        /// Whether a plugin of this name is kept.
        idempotent: Option<bool> = "idempotent",
    }

    /// Removes a plugin of workers.
    UnregisterWorkerPlugin = "unregister_worker_plugin" {
        /// The name of the plugin.
        name: String = "name",
    }

    /// Stores a plugin of nannies in a scheduler, which sends it to all nannies.
    RegisterNannyPlugin = "register_nanny_plugin" {
        /// The pickle of the plugin.
        plugin: Value = "plugin",
        /// The name of the plugin.
        name: String = "name",
        /// Whether a plugin of this name is kept.
        idempotent: Option<bool> = "idempotent",
    }

    /// Removes a plugin of nannies.
    UnregisterNannyPlugin = "unregister_nanny_plugin" {
        /// The name of the plugin.
        name: String = "name",
    }

    /// Adds a plugin to a scheduler in Python.
    RegisterSchedulerPlugin = "register_scheduler_plugin" {
        /// The pickle of the plugin.
        plugin: Value = "plugin",
        /// The name of the plugin.
        name: Option<String> = "name",
        /// Whether a plugin of this name is kept.
        idempotent: Option<bool> = "idempotent",
    }

    /// Asks a scheduler to forget all tasks, and to restart all workers.
    RestartCluster = "restart" {
        /// Timeout in seconds for the workers to end and to return.
        timeout: Option<f64> = "timeout",
        /// Whether the reply waits for the workers to return. Default: true.
        wait_for_workers: Option<bool> = "wait_for_workers",
        /// The cause, for logs.
        stimulus_id: Option<String> = "stimulus_id",
        /// The name of the client that asks.
        client: Option<String> = "client",
    }

    /// Asks a scheduler to restart workers.
    RestartWorkers = "restart_workers" {
        /// The addresses of the workers. Default: all workers.
        workers: Option<Vec<String>> = "workers",
        /// Timeout in seconds for the workers to end and to return.
        timeout: Option<f64> = "timeout",
        /// Whether the reply waits for the workers to return. Default: true.
        wait_for_workers: Option<bool> = "wait_for_workers",
        /// The reaction to workers that do not return: `raise` or `return`. Default: `raise`.
        on_error: Option<String> = "on_error",
        /// The cause, for logs.
        stimulus_id: Option<String> = "stimulus_id",
        /// The name of the client that asks.
        client: Option<String> = "client",
    }

    /// Sends a request to a worker by way of a scheduler.
    Proxy = "proxy" {
        /// The request.
        msg: Unknown = "msg",
        /// The worker's address.
        worker: String = "worker",
    }

    /// Asks a scheduler for the bandwidths of its workers' memory, disks and network.
    BenchmarkHardware = "benchmark_hardware" {}

    /// Asks a scheduler for its state, and for the states of all workers.
    ClusterState = "get_cluster_state" {
        /// The names of parts that are left out.
        exclude: Vec<String> = "exclude" or Vec::new(),
    }

    /// Asks a scheduler or worker for its state.
    DumpState = "dump_state" {
        /// The names of parts that are left out.
        exclude: Vec<String> = "exclude" or Vec::new(),
    }

    /// Asks a scheduler for its identity, and from then on for the workers that join and leave. The
    /// comm becomes a stream.
    SubscribeWorkerStatus = "subscribe_worker_status" {}

    /// Asks a scheduler since when it has been idle.
    CheckIdle = "check_idle" {}

    /// Asks a scheduler for the numbers of tasks by the prefix of their keys and by state.
    TaskPrefixStates = "get_task_prefix_states" {}

    /// Asks a scheduler for the tasks that have ended, oldest first. The first request starts the
    /// recording.
    TaskStream = "get_task_stream" {
        /// The earliest end, in seconds since 1970, or how long ago, as a string with a unit.
        start: Option<Value> = "start",
        /// The latest end, in seconds since 1970, or how long ago, as a string with a unit.
        stop: Option<Value> = "stop",
        /// Maximum number of tasks.
        count: Option<i64> = "count",
        /// The number of tasks that are skipped, from the start of the recording, in place of the
        /// other fields; since 2026.
        start_index: Option<i64> = "start_index",
    }

    /// Asks a scheduler for the number of tasks that were recorded; since 2026. The first request
    /// starts the recording.
    TaskStreamIndex = "get_task_stream_index" {}

    /// Starts to collect the metadata and the final states of tasks that are submitted.
    StartTaskMetadata = "start_task_metadata" {
        /// A name for the collection.
        name: String = "name",
    }

    /// Ends a collection of metadata, and asks for it.
    StopTaskMetadata = "stop_task_metadata" {
        /// The name of the collection.
        name: Option<String> = "name",
    }

    /// Asks a scheduler for a task, as it is sent to workers.
    TaskRunSpec = "get_runspec" {
        /// The key of the task.
        key: Key = "key",
    }

    /// Asks a scheduler for the task whose failure is that of other tasks.
    ErrorCause = "get_error_cause" {
        /// The keys of the failed tasks.
        keys: Keys = "keys" or Keys::default(),
    }

    /// Tells a scheduler of replicas that a worker has.
    AddReplicas = "add_keys" {
        /// The worker's address.
        worker: String = "worker",
        /// The keys of the replicas.
        keys: Keys = "keys" or Keys::default(),
        /// The cause, for logs.
        stimulus_id: Option<String> = "stimulus_id",
    }

    /// Asks a scheduler to move data from workers with much to workers with little.
    Rebalance = "rebalance" {
        /// The keys that may be moved; all if absent.
        keys: Option<Keys> = "keys",
        /// The addresses of the workers; all if absent.
        workers: Option<WorkerNames> = "workers",
        /// The cause, for logs.
        stimulus_id: Option<String> = "stimulus_id",
    }

    /// Asks a scheduler for copies of data on several workers.
    Replicate = "replicate" {
        /// The keys.
        keys: Keys = "keys",
        /// The number of copies; one on each worker if absent.
        n: Option<i64> = "n",
        /// The addresses or hosts of the workers; all if absent.
        workers: Option<WorkerNames> = "workers",
        /// The number of workers that copy from one holder at once. Default: 2.
        branching_factor: Option<i64> = "branching_factor",
        /// Whether further copies are deleted. Default: true.
        delete: Option<bool> = "delete",
        /// The cause, for logs.
        stimulus_id: Option<String> = "stimulus_id",
    }

    /// Changes the resources of a worker.
    SetResources = "set_resources" {
        /// The worker's address.
        worker: String = "worker",
        /// The amounts of resources, in place of those of the same names.
        resources: Option<Map<String, f64>> = "resources",
    }

    /// Changes on which workers tasks may run.
    SetRestrictions = "set_restrictions" {
        /// The address of a worker or a list of addresses for each task; nil for any worker.
        worker: Map<Key, Value> = "worker",
    }

    /// Asks for the current run of a P2P shuffle, in which the worker then takes part.
    ShuffleGet = "shuffle_get" {
        /// The id of the shuffle.
        id: String = "id",
        /// The address of the worker.
        worker: String = "worker",
    }

    /// Asks for the current run of a P2P shuffle, and creates one if there is none.
    ShuffleGetOrCreate = "shuffle_get_or_create" {
        /// The id of the shuffle.
        shuffle_id: String = "shuffle_id",
        /// The key of the task that passes data to the shuffle.
        key: Key = "key",
        /// The address of the worker that runs the task.
        worker: String = "worker",
    }

    /// Asks to run a task that needs an output of a P2P shuffle on the worker that has it.
    ShuffleRestrictTask = "shuffle_restrict_task" {
        /// The id of the shuffle.
        id: String = "id",
        /// The number of the run that the worker takes part in.
        run_id: u64 = "run_id",
        /// The key of the task.
        key: Key = "key",
        /// The address of the worker that has the output.
        worker: String = "worker",
    }

    /// Reports that all data was passed to a P2P shuffle. The reply is sent once all workers that
    /// take part have sent what they have.
    ShuffleBarrier = "shuffle_barrier" {
        /// The id of the shuffle.
        id: String = "id",
        /// The number of the run that the worker takes part in.
        run_id: u64 = "run_id",
        /// Whether all data was passed to this run. If not, the shuffle starts again.
        consistent: bool = "consistent",
    }

    /// Removes a plugin from a scheduler in Python.
    UnregisterSchedulerPlugin = "unregister_scheduler_plugin" {
        /// The name of the plugin.
        name: String = "name",
    }

    /// Starts to sample the memory of all workers. The reply is the key of the samples.
    MemorySamplerStart = "memory_sampler_start" {
        /// The name of the client. Sampling ends when it leaves.
        client: String = "client",
        /// The measure, an attribute of Dask's `MemoryState`, such as `process`.
        measure: String = "measure",
        /// The interval in seconds.
        interval: f64 = "interval",
    }

    /// Ends the sampling of memory. The reply is a list of times in seconds since 1970 and bytes.
    MemorySamplerStop = "memory_sampler_stop" {
        /// The key of the samples.
        key: String = "key",
    }

    /// Controls the Active Memory Manager.
    AmmHandler = "amm_handler" {
        /// What to do: `start`, `stop`, `run_once`, or `running` to ask whether it runs regularly.
        method: String = "method",
    }

    /// Asks a nanny to end its worker, which it then starts again. The reply is sent
    /// once the scheduler has removed the worker.
    Kill = "kill" {
        /// The reason.
        reason: Option<String> = "reason",
    }
}
