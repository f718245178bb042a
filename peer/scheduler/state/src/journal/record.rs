//! The kinds of records of a journal.

use super::shared::has_place;
use crate::record::{Content, LATER, RecordError};

/// The kinds of records, each with the content that follows its first number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(super) enum Kind {
    /// A client has joined, or holds results in its name: the name.
    Client = 1,
    /// A client has left, and wants nothing any more.
    ClientLeft = 2,
    /// Demands that tasks share: their fields.
    Demands = 3,
    /// A task: its fields, the numbers of its dependencies and of its demands.
    Task = 4,
    /// A task is forgotten.
    Forgotten = 5,
    /// A task is wanted: the number of the client.
    Wanted = 6,
    /// A task is wanted no more: the number of the client.
    Unwanted = 7,
    /// A failure that tasks share: its fields.
    Failure = 8,
    /// A task has failed: the number of the failure.
    Failed = 9,
    /// A failed task is to run again.
    Retried = 10,
    /// A task has other demands: their number.
    Moved = 11,
    /// A task makes an actor.
    Actor = 12,
    /// A worker has joined that can return: its address.
    Worker = 13,
    /// A worker has left.
    WorkerLeft = 14,
    /// Metadata was set; there is no number, but the path and the value. Without a value, it is
    /// forgotten.
    Metadata = 15,
    /// A client may return: the number of its graphs that were handled.
    Graphs = 16,
    // The others begin with the place of what they are about, see `shared`.
    /// A variable: its value.
    Variable = 17,
    /// An event that is set.
    Event = 18,
    /// A queue: its maximum number of values.
    Queue = 19,
    /// A queue with several users: their number.
    QueueUsers = 20,
    /// A value of a queue: the name of the queue, and the value. Its place is its number.
    Item = 21,
    /// A semaphore: its maximum number of leases, and their time-out.
    Semaphore = 22,
    /// A lease: its place is the name of the semaphore, and its id.
    Lease = 23,
    /// A holder of locks: their names.
    Locks = 24,
    /// A dataset: the keys of its tasks, and its data.
    Dataset = 25,
    /// A plugin that was registered: its place is its name.
    Plugin = 26,
}

impl Kind {
    const ALL: [Self; 26] = [
        Self::Client,
        Self::ClientLeft,
        Self::Demands,
        Self::Task,
        Self::Forgotten,
        Self::Wanted,
        Self::Unwanted,
        Self::Failure,
        Self::Failed,
        Self::Retried,
        Self::Moved,
        Self::Actor,
        Self::Worker,
        Self::WorkerLeft,
        Self::Metadata,
        Self::Graphs,
        Self::Variable,
        Self::Event,
        Self::Queue,
        Self::QueueUsers,
        Self::Item,
        Self::Semaphore,
        Self::Lease,
        Self::Locks,
        Self::Dataset,
        Self::Plugin,
    ];

    fn read(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }
}

/// A record, whose content is read field by field.
pub(super) struct Record<'r> {
    pub(super) kind: Kind,
    /// The number that the record is about; 0 if it is about something that has none.
    pub(super) number: u64,
    pub(super) content: Content<'r>,
    /// The record as it was written.
    pub(super) raw: &'r [u8],
}

/// Reads the records of a journal.
pub(super) struct Records<'r> {
    content: Content<'r>,
}

impl<'r> Records<'r> {
    pub(super) const fn new(records: &'r [u8]) -> Self {
        Self {
            content: Content::of(records),
        }
    }

    /// Returns the next record; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Record<'r>>, RecordError> {
        let before = self.content;
        let Some(record) = self.content.record()? else {
            return Ok(None);
        };
        let kind = Kind::read(record.code).ok_or_else(|| before.expected(LATER))?;
        let mut content = record.content;
        let number = match kind {
            Kind::Metadata => 0,
            kind if has_place(kind) => 0,
            _ => content.number()?,
        };
        Ok(Some(Record {
            kind,
            number,
            content,
            raw: record.raw,
        }))
    }
}
