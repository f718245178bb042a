//! Events of a client for `tracing`.

use core::fmt;

use daskwire_messages::Key;
use daskwire_messages::release::UntestedRelease;
use daskwire_rpc::events;

use super::state::Returned;

/// An event of a client.
pub(crate) enum ClientEvent<'a> {
    /// The scheduler accepted the client.
    Connected { scheduler: &'a dyn fmt::Display },
    /// The scheduler's release is newer than the tested ones.
    Untested(UntestedRelease),
    /// The connection ended.
    Disconnected { reason: &'a str },
    /// The client has reconnected, and asked for its keys.
    Returned(&'a Returned),
    /// The status of a task changed.
    Task { key: &'a Key, status: &'static str },
    /// A message with an unknown op arrived.
    UnknownOp { op: &'a str },
}

impl fmt::Display for ClientEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected { scheduler } => write!(f, "connected to {scheduler}"),
            Self::Untested(untested) => untested.fmt(f),
            Self::Disconnected { reason } => write!(f, "disconnected: {reason}"),
            Self::Returned(returned) => write!(f, "reconnected, and {returned}"),
            Self::Task { status, .. } => f.write_str(status),
            Self::UnknownOp { op } => write!(f, "ignored a message with unknown op {op:?}"),
        }
    }
}

impl ClientEvent<'_> {
    fn key(&self) -> Option<&Key> {
        match self {
            Self::Task { key, .. } => Some(key),
            _ => None,
        }
    }
}

events!(ClientEvent, "daskwire_peer::client");
