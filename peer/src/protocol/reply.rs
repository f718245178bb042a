//! Replies to requests.

use super::field::{Keys, Map, maps};
use crate::Key;
use crate::value::{Serialized, Value};

maps! {
    /// Any reply that says how it went.
    Status {
        /// `OK`, `error`, `busy`, `missing`, `uncaught-error` …
        status: Option<String> = "status",
        /// The exception, if one was raised.
        exception: Option<Value> = "exception",
        /// Where it was raised.
        traceback: Option<Value> = "traceback",
        /// The exception as text.
        exception_text: Option<String> = "exception_text",
        /// Where it was raised, as text.
        traceback_text: Option<String> = "traceback_text",
        /// What went wrong, where there is no exception.
        message: Option<String> = "message",
    }

    /// To [`GetData`](super::GetData) and [`Gather`](super::Gather).
    DataReply {
        /// `OK`; `busy` if it is to be asked later; `error` or `partial-fail`.
        status: String = "status",
        /// What is there.
        data: Option<Map<Key, Serialized>> = "data",
        /// What is missing.
        keys: Option<Keys> = "keys",
    }

    /// To [`UpdateData`](super::UpdateData) of a worker.
    UpdateDataReply {
        /// `OK`.
        status: String = "status",
        /// How many bytes each has.
        nbytes: Map<Key, u64> = "nbytes",
    }

    /// To [`RegisterWorker`](super::RegisterWorker); the stream follows.
    RegisterWorkerReply {
        /// `OK`, or `error`.
        status: String = "status",
        /// Why it is refused.
        message: Option<String> = "message",
        /// The scheduler's time.
        time: Option<f64> = "time",
        /// How often to say how it is, in seconds.
        heartbeat_interval: Option<f64> = "heartbeat-interval",
    }

    /// To [`HeartbeatWorker`](super::HeartbeatWorker).
    HeartbeatReply {
        /// `OK`; `missing` if the scheduler has forgotten the worker.
        status: String = "status",
        /// The scheduler's time.
        time: Option<f64> = "time",
        /// How often to say how it is, in seconds.
        heartbeat_interval: Option<f64> = "heartbeat-interval",
    }
}
