//! Replies to requests.

use super::field::{Keys, Map, maps};
use super::status::ReplyStatus;
use crate::Key;
use crate::value::{Serialized, Value};

maps! {
    /// A reply with a status.
    Status {
        /// `OK`, `error`, `busy`, `missing`, `uncaught-error` …
        status: Option<ReplyStatus> = "status",
        /// The exception, if the request failed.
        exception: Option<Value> = "exception",
        /// The traceback.
        traceback: Option<Value> = "traceback",
        /// The exception as a string.
        exception_text: Option<String> = "exception_text",
        /// The traceback as a string.
        traceback_text: Option<String> = "traceback_text",
        /// The error message, if there is no exception.
        message: Option<String> = "message",
        /// The keys that are missing, if the request is about several.
        keys: Option<Keys> = "keys",
    }

    /// The reply to [`GetData`](super::GetData) and [`Gather`](super::Gather).
    DataReply {
        /// `OK`, `error`, `partial-fail`, or `busy` to be asked again later.
        status: ReplyStatus = "status",
        /// The available data.
        data: Option<Map<Key, Serialized>> = "data",
        /// The missing keys.
        keys: Option<Keys> = "keys",
    }

    /// A worker's reply to [`UpdateData`](super::UpdateData).
    UpdateDataReply {
        /// `OK`.
        status: ReplyStatus = "status",
        /// The size of each datum in bytes.
        nbytes: Map<Key, u64> = "nbytes",
    }

    /// The reply to [`RegisterWorker`](super::RegisterWorker), before the stream
    /// starts.
    RegisterWorkerReply {
        /// `OK`, or `error`.
        status: ReplyStatus = "status",
        /// The reason for a refusal.
        message: Option<String> = "message",
        /// The scheduler's time, in seconds since 1970.
        time: Option<f64> = "time",
        /// The interval of heartbeats, in seconds.
        heartbeat_interval: Option<f64> = "heartbeat-interval",
        /// The plugins of workers: their names and pickles.
        worker_plugins: Option<Value> = "worker-plugins",
        /// Whether the scheduler takes what a worker returns with, see
        /// [`Returned`](super::Returned). Dask's do not.
        returns: Option<bool> = "returns",
    }

    /// The reply to [`HeartbeatWorker`](super::HeartbeatWorker).
    HeartbeatReply {
        /// `OK`; `missing` if the scheduler has forgotten the worker.
        status: ReplyStatus = "status",
        /// The scheduler's time, in seconds since 1970.
        time: Option<f64> = "time",
        /// The interval of heartbeats, in seconds.
        heartbeat_interval: Option<f64> = "heartbeat-interval",
    }
}
