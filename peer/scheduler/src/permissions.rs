//! What peers may ask for, by their certificates.

use core::fmt;
use std::sync::Arc;

use daskwire_comm::Encryption;
use daskwire_messages::protocol::{Request, RetireWorkers};

use crate::server::installs_routing;

/// Determines what a peer may do from the encryption of its comm, which has its certificates.
pub type Permit = Arc<dyn Fn(Option<&Encryption>) -> Permissions + Send + Sync>;

/// What a peer may do. Dask lets every peer do everything.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Permissions {
    /// The peer in messages, such as `the certificate of "worker-1"`.
    pub subject: String,
    /// Whether the peer may do what clients do: everything but what only workers and nannies do.
    pub is_client: bool,
    /// Whether the peer may do what workers, their nannies, and tasks without a client of their
    /// own do: register, send heartbeats, leave, and use shared objects. It may not submit tasks,
    /// register plugins, call functions on workers, or end others or the scheduler.
    pub is_worker: bool,
}

impl Permissions {
    /// Creates the permissions of a peer that may do nothing but what needs none.
    pub fn new(subject: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            is_client: false,
            is_worker: false,
        }
    }

    daskwire_comm::with_fields! {
        with_is_client(is_client: bool);
        with_is_worker(is_worker: bool);
    }
}

/// The refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    op: String,
    subject: String,
    needed: &'static str,
}

impl Denied {
    pub(crate) fn op(&self) -> &str {
        &self.op
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            op,
            subject,
            needed,
        } = self;
        write!(f, "{subject} may not ask for {op:?}, which is for {needed}")
    }
}

/// What only workers and nannies ask for.
const ONLY_OF_WORKERS: [&str; 7] = [
    "heartbeat_worker",
    "register-worker",
    "register_nanny",
    "shuffle_barrier",
    "shuffle_get",
    "shuffle_get_or_create",
    "shuffle_restrict_task",
];

/// What workers and nannies ask for beside that and shared objects.
const OF_WORKERS: [&str; 6] = [
    "close",
    "identity",
    "log_event",
    "ping",
    "unregister",
    "versions",
];

impl Permissions {
    /// The reason why a request is refused, if it is.
    pub(crate) fn denial(&self, request: &Request) -> Option<Denied> {
        let op = request.op();
        let is_of_worker = ONLY_OF_WORKERS.contains(&op)
            || OF_WORKERS.contains(&op)
            || crate::state::is_shared(request)
            || is_own_retirement(request)
            || matches!(request, Request::Unknown(request) if installs_routing(request));
        let is_of_client = !ONLY_OF_WORKERS.contains(&op);
        if (self.is_worker && is_of_worker) || (self.is_client && is_of_client) {
            return None;
        }
        Some(Denied {
            op: op.to_owned(),
            subject: self.subject.clone(),
            needed: match (is_of_worker, is_of_client) {
                (true, false) => "the certificates of workers",
                (false, _) => "the certificates of clients",
                (true, true) => "the certificates of clients and workers",
            },
        })
    }
}

/// Whether a worker asks to be retired at the end of its lifetime. It ends by itself.
fn is_own_retirement(request: &Request) -> bool {
    let Request::RetireWorkers(request) = request else {
        return false;
    };
    let RetireWorkers {
        workers,
        names,
        close_workers,
        ..
    } = request;
    workers.as_ref().is_some_and(|workers| workers.len() == 1)
        && names.is_none()
        && *close_workers != Some(true)
}
