//! Events of interest to operators.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use daskwire_comm::{Address, CommError};

use daskwire_messages::protocol::ProtocolError;
use daskwire_messages::{Key, Value};
use daskwire_rpc::event::Level;

/// An event of interest to operators.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Notice {
    /// A peer sent a message with an unknown op, which was refused if it was a request, and ignored
    /// on a stream. Reported once of each op of a stream or comm, for at most 16 ops.
    UnknownOp {
        /// The client or worker.
        peer: String,
        /// The op of the message.
        op: String,
    },
    /// A peer sent a malformed message, and its comm was closed.
    Malformed {
        /// The client or worker.
        peer: String,
        /// The reason why the message is malformed.
        error: ProtocolError,
    },
    /// A peer asked for something that its certificate does not allow. Reported once of each op of
    /// a comm, for at most 16 ops.
    Denied {
        /// The client, worker or other peer.
        peer: String,
        /// The reason, which names the operation and the certificate.
        reason: String,
    },
    /// A peer did not read its messages, and its comm was closed.
    NotReading {
        /// The client or worker.
        peer: String,
        /// The limit of queued bytes.
        limit: usize,
    },
    /// Accepting a connection failed, mostly for lack of file descriptors. The listener
    /// retries; further failures are reported only after a connection was accepted.
    AcceptFailed {
        /// The address of the listener.
        address: Address,
        /// The reason for the failure.
        error: Arc<CommError>,
    },
    /// A connection was closed because its listener serves the maximum number of comms.
    /// Further ones are reported only after a connection was accepted.
    TooManyComms {
        /// The address of the listener.
        address: Address,
        /// The limit, `Options::max_comms` of the scheduler.
        limit: usize,
    },
    /// A listener failed, and accepts no more connections. Other listeners, and
    /// existing connections, are unaffected; without other listeners, the
    /// scheduler ends.
    ListenerFailed {
        /// The address of the listener.
        address: Address,
        /// The reason for the failure.
        error: Arc<CommError>,
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
    /// The scheduler ends, because it was idle for this time.
    Idle {
        /// `Options::idle_timeout` of the scheduler.
        timeout: Duration,
    },
    /// A function or a plugin of a client has logged something or has failed, or their process
    /// has ended.
    Plugins {
        /// What has happened.
        message: String,
    },
    /// A task waits, because it calls a function of a worker in Rust, and the cluster has only other
    /// workers. Reported once until such a worker joins.
    NoWorkerInRust {
        /// The key of the task.
        key: Key,
    },
    /// A P2P shuffle starts again.
    ShuffleRestarted {
        /// The id of the shuffle.
        shuffle: String,
        /// The reason.
        cause: String,
    },
    /// The connection of a client broke. Its keys are kept until its grace is over.
    ClientDisconnected {
        /// The client.
        client: String,
        /// The number of its keys.
        key_count: usize,
        /// The time for which they are kept.
        grace: Duration,
    },
    /// A client has returned within its grace.
    ClientReturned {
        /// The client.
        client: String,
        /// The number of its keys.
        key_count: usize,
    },
    /// A client has not returned within its grace, and its keys are released.
    ClientGraceOver {
        /// The client.
        client: String,
        /// The number of its keys.
        key_count: usize,
        /// The time for which they were kept, unless the scheduler has too many such clients.
        grace: Duration,
    },
    /// A scheduler continues from its journal. It waits for the workers that had joined.
    JournalRead {
        /// The directory.
        directory: String,
        /// The number of tasks.
        task_count: usize,
        /// The number of workers that had joined, and can return.
        worker_count: usize,
    },
    /// Plugins were registered with the scheduler that wrote a journal. They have to be registered again.
    PluginsMissing {
        /// Their names, each with the kind of process that it is for.
        plugins: Vec<String>,
    },
    /// The end of a journal was not written whole, and is ignored.
    JournalTorn {
        /// The directory.
        directory: String,
        /// Its length in bytes.
        len: u64,
    },
    /// The journal cannot be written. The cluster goes on.
    JournalFailed {
        /// The reason.
        reason: String,
        /// Whether writing is no longer tried.
        is_over: bool,
    },
    /// The disk of the journal has not answered for some seconds.
    JournalSlow {
        /// The time so far.
        waited: Duration,
        /// Whether nothing is answered meanwhile.
        delays_all: bool,
    },
    /// Older parts of the journal cannot be merged. It grows until they can.
    JournalUnmerged {
        /// The reason.
        reason: String,
    },
    /// The journal is written again.
    JournalWritten,
    /// The recording cannot be written, and ends. The cluster goes on.
    RecordingFailed {
        /// The reason.
        reason: String,
    },
    /// A worker has joined.
    WorkerJoined {
        /// The worker's address.
        worker: String,
        /// The worker's name.
        name: String,
    },
    /// A worker has left.
    WorkerLeft {
        /// The worker's address.
        worker: String,
        /// The worker's name.
        name: String,
        /// The reason for leaving.
        reason: LeaveReason,
        /// The tasks that the worker had.
        tasks: LeftTasks,
    },
}

/// The tasks of a worker that has left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftTasks {
    /// Tasks that the worker was processing.
    pub processing: Vec<Key>,
    /// Results that only the worker had, and that can be computed again.
    pub recomputed: Vec<Key>,
    /// Data that only the worker had, and that is lost.
    pub lost: Vec<Key>,
}

/// The reason why a worker is no longer part of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaveReason {
    /// The stream of the worker ended.
    StreamEnded,
    /// The worker sent nothing for longer than
    /// [`Policy::worker_ttl`](super::Policy::worker_ttl).
    Silent,
    /// The worker was retired.
    Retired,
    /// The worker or its nanny has unregistered it.
    Unregistered,
    /// The worker was removed by a restart of workers.
    Restarted,
}

impl LeaveReason {
    /// All reasons. Recordings have their places in it.
    pub(crate) const ALL: [Self; 5] = [
        Self::StreamEnded,
        Self::Silent,
        Self::Retired,
        Self::Unregistered,
        Self::Restarted,
    ];
}

impl Notice {
    /// The importance of the notice in logs.
    pub const fn level(&self) -> Level {
        match self {
            Self::Event { .. }
            | Self::Idle { .. }
            | Self::ClientDisconnected { .. }
            | Self::ClientReturned { .. }
            | Self::ClientGraceOver { .. }
            | Self::JournalRead { .. }
            | Self::JournalWritten
            | Self::WorkerJoined { .. }
            | Self::WorkerLeft { .. } => Level::Info,
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
            Self::Malformed { peer, error } => write!(f, "closed the comm with {peer}: {error}"),
            Self::Denied { peer, reason } => write!(f, "refused a request of {peer}: {reason}"),
            Self::NotReading { peer, limit } => write!(
                f,
                "closed the comm with {peer}, which did not read its messages: more than {limit} \
                 bytes were queued"
            ),
            Self::AcceptFailed { address, error } => {
                write!(
                    f,
                    "{address} cannot accept connections, and will retry: {error}"
                )
            }
            Self::TooManyComms { address, limit } => {
                write!(
                    f,
                    "{address} refuses connections: it already serves {limit} comms, the maximum"
                )
            }
            Self::ListenerFailed { address, error } => {
                write!(f, "{address} accepts no more connections: {error}")
            }
            Self::Panicked { reason } => write!(f, "the scheduler panicked: {reason}"),
            Self::Event {
                peer,
                topic,
                message,
            } => write!(f, "{peer} logged on topic {topic}: {message}"),
            Self::Idle { timeout } => write!(
                f,
                "the scheduler ends after being idle for {} s",
                timeout.as_secs_f64()
            ),
            Self::Plugins { message } => f.write_str(message),
            Self::NoWorkerInRust { key } => write!(
                f,
                "the task {key} waits: it calls `native:NAME`, a function of workers in Rust, and \
                 the cluster has none; a program that has the function, or `daskwire worker`, has \
                 to join it"
            ),
            Self::ShuffleRestarted { shuffle, cause } => {
                write!(f, "the shuffle {shuffle} starts again: {cause}")
            }
            Self::ClientDisconnected {
                client,
                key_count,
                grace,
            } => write!(
                f,
                "the client {client} is disconnected; its {key_count} keys are kept for {} s",
                grace.as_secs_f64()
            ),
            Self::ClientReturned { client, key_count } => {
                write!(
                    f,
                    "the client {client} has returned to its {key_count} keys"
                )
            }
            Self::ClientGraceOver {
                client,
                key_count,
                grace,
            } => write!(
                f,
                "the client {client} has not returned within its grace of {} s; its {key_count} keys \
                 are released",
                grace.as_secs_f64()
            ),
            Self::JournalRead {
                directory,
                task_count,
                worker_count,
            } => write!(
                f,
                "continues with {task_count} tasks from the journal {directory}, and waits for \
                 {worker_count} workers"
            ),
            Self::PluginsMissing { plugins } => write!(
                f,
                "these plugins were registered, and have to be registered again: {}",
                plugins.join(", ")
            ),
            Self::JournalTorn { directory, len } => write!(
                f,
                "the last {len} bytes of the journal {directory} were not written whole, and are \
                 ignored"
            ),
            Self::JournalFailed { reason, is_over } => {
                let next = match is_over {
                    true => {
                        "a scheduler that continues from it will not know what happens from \
                             now on"
                    }
                    false => "writing is tried again",
                };
                write!(f, "the journal cannot be written: {reason}; {next}")
            }
            Self::JournalSlow { waited, delays_all } => {
                let meanwhile = match delays_all {
                    true => "nothing is answered until it does, or too much waits to be written",
                    false => "the cluster goes on",
                };
                let seconds = waited.as_secs();
                write!(
                    f,
                    "the disk of the journal has not answered for {seconds} s; {meanwhile}"
                )
            }
            Self::JournalUnmerged { reason } => write!(
                f,
                "older parts of the journal cannot be merged, and it grows until they can: \
                 {reason}; merging is tried again"
            ),
            Self::JournalWritten => f.write_str("the journal is written again"),
            Self::RecordingFailed { reason } => {
                write!(
                    f,
                    "the recording ends, because it cannot be written: {reason}"
                )
            }
            Self::WorkerJoined { worker, name } => {
                write!(f, "the worker {worker}{} joined", Named(worker, name))
            }
            Self::WorkerLeft {
                worker,
                name,
                reason,
                tasks,
            } => {
                let named = Named(worker, name);
                write!(f, "the worker {worker}{named} left: {reason}{tasks}")
            }
        }
    }
}

impl fmt::Display for LeaveReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StreamEnded => "stream ended",
            Self::Silent => "silent for too long",
            Self::Retired => "retired",
            Self::Unregistered => "unregistered by itself or its nanny",
            Self::Restarted => "restarted",
        })
    }
}

/// The tasks as the end of a sentence about the worker; nothing without tasks.
impl fmt::Display for LeftTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Maximum number of keys that are listed.
        const LISTED: usize = 5;
        for (keys, what) in [
            (&self.processing, "tasks that it ran"),
            (&self.recomputed, "results that have to be computed again"),
            (&self.lost, "lost pieces of data that nothing can compute"),
        ] {
            for (index, key) in keys.iter().take(LISTED).enumerate() {
                match index {
                    0 => write!(f, "; {} {what}: {key}", keys.len())?,
                    _ => write!(f, ", {key}")?,
                }
            }
            if keys.len() > LISTED {
                f.write_str(", ...")?;
            }
        }
        Ok(())
    }
}

/// The name of a worker in parentheses, unless it is the address.
struct Named<'a>(&'a str, &'a str);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 == self.1 {
            true => Ok(()),
            false => write!(f, " ({})", self.1),
        }
    }
}
