//! Requests, each of which has a reply.

use daskwire_comm::Traffic;

use super::field::{Keys, Map, Nullable, maps, ops};
use crate::Key;
use crate::value::{Serialized, Value};

ops! {
    /// What a comm is asked for before it is a stream.
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
        Retry = "retry",
        RetireWorkers = "retire_workers",
        CloseComm = "close",
        Terminate = "terminate",
    }
}

impl Request {
    /// What a comm is for that carries this request and its reply.
    pub(crate) const fn traffic(&self) -> Traffic {
        match self {
            Self::HeartbeatWorker(_) | Self::RegisterClient(_) | Self::RegisterWorker(_) => {
                Traffic::Control
            }
            Self::Gather(_) | Self::GetData(_) | Self::Scatter(_) | Self::UpdateData(_) => {
                Traffic::Bulk
            }
            _ => Traffic::Normal,
        }
    }
}

maps! {
    /// Who a scheduler or worker is.
    Identity = "identity" {
        /// How many workers to list; all if it is less than 0.
        n_workers: Option<i64> = "n_workers",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// Whether somebody is there: `b"pong"`.
    Ping = "ping" {
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// The same data back.
    Echo = "echo" {
        /// The data.
        data: Value = "data",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// The versions of Python and its packages.
    Versions = "versions" {
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// Makes the comm the stream of a client.
    RegisterClient = "register-client" {
        /// The client's name for itself.
        client: String = "client",
        /// Its versions, which the scheduler compares with its own.
        versions: Value = "versions",
        /// False: the stream begins instead.
        reply: Option<bool> = "reply",
    }

    /// Makes the comm the stream of a worker. All fields are required: a
    /// scheduler that misses one does not answer at all.
    RegisterWorker = "register-worker" {
        /// Where others reach the worker.
        address: String = "address",
        /// `running`, or `init` for one that takes no tasks yet.
        status: String = "status",
        /// Its name for itself.
        server_id: Nullable<String> = "server_id",
        /// How many tasks it runs at once.
        nthreads: u64 = "nthreads",
        /// Its name; unique in the cluster.
        name: Value = "name",
        /// The time.
        now: f64 = "now",
        /// The resources that it has.
        resources: Map<String, f64> = "resources",
        /// Bytes of memory that it may use.
        memory_limit: Nullable<u64> = "memory_limit",
        /// How it is.
        metrics: Value = "metrics",
        /// Other ports.
        services: Value = "services",
        /// Where it keeps files.
        local_directory: String = "local_directory",
        /// Its versions.
        versions: Value = "versions",
        /// The address of its nanny.
        nanny: Nullable<String> = "nanny",
        /// Anything.
        extra_information: Value = "extra",
        /// Why, for logs.
        stimulus_id: String = "stimulus_id",
        /// The number of its process.
        pid: Option<i64> = "pid",
        /// Whether to reply other than by the stream.
        reply: Option<bool> = "reply",
    }

    /// How a worker is.
    HeartbeatWorker = "heartbeat_worker" {
        /// Its address.
        address: String = "address",
        /// The time.
        now: f64 = "now",
        /// How it is.
        metrics: Value = "metrics",
        /// What it runs, and for how many seconds.
        executing: Map<Key, f64> = "executing",
        /// What plugins have to say.
        extensions: Value = "extensions",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// A worker leaves without a stream.
    Unregister = "unregister" {
        /// Its address.
        address: String = "address",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// Asks a scheduler for results that are there, or a worker to fetch them.
    Gather = "gather" {
        /// The keys, for a scheduler.
        keys: Option<Keys> = "keys",
        /// Where they are, for a worker.
        who_has: Option<Map<Key, Vec<String>>> = "who_has",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// Spreads data over workers.
    Scatter = "scatter" {
        /// The data.
        data: Map<Key, Serialized> = "data",
        /// The workers it is for; nil for any.
        workers: Nullable<Vec<String>> = "workers",
        /// Who holds it.
        client: String = "client",
        /// On how many workers; true for all.
        broadcast: Value = "broadcast",
        /// How long to wait for a worker, in seconds.
        timeout: Option<f64> = "timeout",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// Where results are.
    WhoHas = "who_has" {
        /// The keys; all if there are none.
        keys: Option<Keys> = "keys",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// What workers have.
    HasWhat = "has_what" {
        /// The workers; all if there are none.
        workers: Option<Vec<String>> = "workers",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// How many tasks each worker runs at once.
    NCores = "ncores" {
        /// The workers; all if there are none.
        workers: Option<Vec<String>> = "workers",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// The same of workers that take tasks now.
    NCoresRunning = "ncores_running" {
        /// The workers; all if there are none.
        workers: Option<Vec<String>> = "workers",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// How many bytes results have.
    NBytes = "nbytes" {
        /// The keys; all if there are none.
        keys: Option<Keys> = "keys",
        /// False: for each key, not for groups of them.
        summary: Option<bool> = "summary",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// In which state tasks are.
    GetTaskStatus = "get_task_status" {
        /// Their keys.
        keys: Keys = "keys",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// Asks a worker for results. Its reply is acknowledged by `"OK"`.
    GetData = "get_data" {
        /// The keys.
        keys: Keys = "keys",
        /// The address of the worker that asks, if one does.
        who: Nullable<String> = "who",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// Gives data to a worker, or tells a scheduler of it.
    UpdateData = "update_data" {
        /// The data, for a worker.
        data: Option<Map<Key, Serialized>> = "data",
        /// Where it is, for a scheduler.
        who_has: Option<Map<Key, Vec<String>>> = "who_has",
        /// How many bytes it has, for a scheduler.
        nbytes: Option<Map<Key, u64>> = "nbytes",
        /// Who holds it, for a scheduler.
        client: Option<String> = "client",
        /// Why, for logs.
        stimulus_id: Option<String> = "stimulus_id",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// A worker is to forget results.
    FreeKeysRequest = "free_keys" {
        /// Their keys.
        keys: Keys = "keys",
        /// Why, for logs.
        stimulus_id: Option<String> = "stimulus_id",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// Which keys a worker has.
    KeysRequest = "keys" {
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// What a worker has in its log, the newest first: level and text of each, and
    /// before them the time if that is asked for.
    GetLogs = "get_logs" {
        /// How many at most; all if there is none, or 0.
        n: Option<u64> = "n",
        /// In seconds since 1970, from when on.
        start: Option<f64> = "start",
        /// Whether to say when.
        timestamps: Option<bool> = "timestamps",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// Where tasks are that run on a worker: for each key, some lines.
    GetCallStack = "call_stack" {
        /// The tasks; all that run if this is absent or nil.
        keys: Option<Keys> = "keys",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// Where the interpreter of a worker has spent its time; which time, and of
    /// which task, is in fields that are not read here.
    GetProfile = "profile" {
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// When the profiler of a worker took samples, and how many.
    GetProfileMetadata = "profile_metadata" {
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// How the process of a worker was, at several times.
    GetMonitorInfo = "get_monitor_info" {
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// What a worker remembers of the states of tasks.
    GetStory = "get_story" {
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// Tries failed tasks again.
    Retry = "retry" {
        /// Their keys.
        keys: Keys = "keys",
        /// Who asks.
        client: Option<String> = "client",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// Lets workers go, after others have what they had.
    RetireWorkers = "retire_workers" {
        /// The workers.
        workers: Option<Vec<String>> = "workers",
        /// Whether they are to end.
        close_workers: Option<bool> = "close_workers",
        /// Whether they leave the cluster.
        remove: Option<bool> = "remove",
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// The comm ends here.
    CloseComm = "close" {
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }

    /// A scheduler or worker is to end.
    Terminate = "terminate" {
        /// Whether to reply.
        reply: Option<bool> = "reply",
    }
}
