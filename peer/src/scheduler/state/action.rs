//! Outputs of the state machine.

use core::fmt;

use super::{ClientId, WorkerId};
use crate::event::Level;
use crate::protocol::{ToClient, ToWorker};
use crate::{TaskEvent, Value};

/// An output of the state machine, for the caller to handle.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Output {
    /// A message for a client's stream.
    Client(ClientId, ToClient),
    /// A message for a worker's stream.
    Worker(WorkerId, ToWorker),
    /// Close a client's stream after the messages so far.
    EndClient(ClientId),
    /// Close a worker's stream after the messages so far.
    EndWorker(WorkerId),
    /// Call [`State::drained`] once the messages for a worker so far have been
    /// written. Until then the worker gets no more tasks.
    NotifyDrained(WorkerId),
    /// An event of interest to operators.
    Notice(Notice),
    /// A step of a task; only after [`State::watch_tasks`].
    Task(TaskEvent),
}

/// An event of interest to operators.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// A peer sent a message with an unknown op, which was ignored.
    UnknownOp {
        /// The client or worker.
        peer: String,
        /// The op of the message.
        op: String,
    },
    /// A peer sent an inconsistent message, which was ignored.
    Ignored {
        /// The client or worker.
        peer: String,
        /// The fault.
        reason: String,
    },
    /// A peer did not read its messages, and its comm was closed.
    NotReading {
        /// The client or worker.
        peer: String,
        /// The limit of queued bytes.
        limit: usize,
    },
    /// The state machine panicked; the scheduler ends.
    Panicked {
        /// The message of the panic.
        reason: String,
    },
    /// A worker published an event.
    Event {
        /// The worker.
        peer: String,
        /// The topic.
        topic: Value,
        /// The event.
        message: Value,
    },
    /// A worker has joined.
    WorkerJoined {
        /// The worker's address.
        worker: String,
    },
    /// A worker has left.
    WorkerLeft {
        /// The worker's address.
        worker: String,
        /// The reason, as far as it is known.
        reason: &'static str,
    },
}

impl Notice {
    /// The importance of the notice in logs.
    pub(in crate::scheduler) const fn level(&self) -> Level {
        match self {
            Self::Event { .. } | Self::WorkerJoined { .. } | Self::WorkerLeft { .. } => Level::Info,
            _ => Level::Warn,
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownOp { peer, op } => {
                write!(f, "ignored a message of {peer} with unknown op {op:?}")
            }
            Self::Ignored { peer, reason } => write!(f, "ignored a message of {peer}: {reason}"),
            Self::NotReading { peer, limit } => write!(
                f,
                "closed the comm with {peer}, which did not read: more than {limit} bytes waited"
            ),
            Self::Panicked { reason } => write!(f, "the scheduler panicked: {reason}"),
            Self::Event {
                peer,
                topic,
                message,
            } => write!(f, "{peer} logged on topic {topic}: {message}"),
            Self::WorkerJoined { worker } => write!(f, "the worker {worker} joined"),
            Self::WorkerLeft { worker, reason } => write!(f, "the worker {worker} left: {reason}"),
        }
    }
}
