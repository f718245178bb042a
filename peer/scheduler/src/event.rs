//! Events of a scheduler for `tracing`.

use core::fmt;

use daskwire_messages::Key;
use daskwire_rpc::TaskEvent;
use daskwire_rpc::events;

use super::Notice;

/// An event of a scheduler.
pub(crate) enum SchedulerEvent<'a> {
    /// A warning for operators, or a worker has joined or left.
    Notice(&'a Notice),
    /// A step of a task.
    Task(&'a TaskEvent),
}

impl fmt::Display for SchedulerEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Notice(notice) => notice.fmt(f),
            Self::Task(event) => event.fmt(f),
        }
    }
}

impl SchedulerEvent<'_> {
    fn key(&self) -> Option<&Key> {
        match self {
            Self::Task(event) => Some(&event.key),
            Self::Notice(_) => None,
        }
    }
}

events!(SchedulerEvent, "daskwire_peer::scheduler");
