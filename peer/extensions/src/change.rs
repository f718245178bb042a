//! Changes of objects, for those who keep them beyond the end of the scheduler.

use core::time::Duration;

use daskwire_messages::{Key, Value};

use super::context::Record;

/// A change of an object. The last one of each variable, event, queue, value of a queue, semaphore,
/// lease, holder of locks and dataset is the one that counts.
///
/// Requests that wait are not among them.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A variable was set, or deleted.
    Variable {
        /// Its name.
        name: Key,
        /// Its value; `None` if it was deleted.
        value: Option<Record>,
    },
    /// An event was set or cleared.
    Event {
        /// Its name.
        name: Key,
        /// Whether it is set.
        is_set: bool,
    },
    /// A queue was created, or deleted. It has one user at first.
    Queue {
        /// Its name.
        name: Key,
        /// Its maximum number of values; `None` if it was deleted, after its values.
        max_len: Option<usize>,
    },
    /// A queue has another number of users.
    QueueUsers {
        /// The name of the queue.
        name: Key,
        /// The number; 1 also when it is deleted, so that this change of it says nothing any more.
        count: u64,
    },
    /// A value was added to a queue, or was sent to a client or deleted.
    Item {
        /// Its number, which no other value of any queue has. Values are added in ascending order.
        number: u64,
        /// The name of the queue, and the value; `None` if it is gone.
        value: Option<(Key, Record)>,
    },
    /// A semaphore was registered, or closed.
    Semaphore {
        /// Its name.
        name: Key,
        /// The maximum number of leases, and the time after which one ends that is not refreshed; `None`
        /// if it was closed, after its leases.
        terms: Option<(i64, Option<Duration>)>,
    },
    /// A lease was granted, or has ended.
    Lease {
        /// The name of the semaphore.
        name: Key,
        /// The id of the lease.
        lease_id: Key,
        /// Whether it was granted.
        is_held: bool,
    },
    /// A holder has got locks, or has released them.
    Locks {
        /// The id of the holder.
        holder: Key,
        /// The names of the locks; `None` if it has released them.
        locks: Option<Vec<Key>>,
    },
    /// A dataset was published, or deleted.
    Dataset {
        /// Its name.
        name: Key,
        /// The keys of its tasks, and its data; `None` if it was deleted.
        value: Option<(Vec<Key>, Value)>,
    },
}
