//! Messages about the objects that clients share by name: variables, queues, events,
//! semaphores and locks, multi-locks, and published datasets.
//!
//! A time-out is in seconds; without one, the request waits until it can be answered.

use super::field::{Keys, maps};
use super::request::requests;
use crate::Key;
use crate::value::Value;

requests! {
    /// Sets a variable: to the result of a task, or to plain data.
    VariableSet = "variable_set" {
        /// The name of the variable.
        name: Key = "name",
        /// The key of the task, for a future.
        key: Option<Key> = "key",
        /// The data, without a key.
        data: Option<Value> = "data",
        /// Time in which the task has to become known: seconds, or a string with a unit; since
        /// 2024.12.0.
        timeout: Option<Value> = "timeout",
    }

    /// Asks for the value of a variable, once it is set.
    VariableGet = "variable_get" {
        /// The name of the variable.
        name: Key = "name",
        /// The client that reads the variable.
        client: Option<String> = "client",
        /// Time-out for the variable to be set.
        timeout: Option<f64> = "timeout",
    }

    /// Creates a queue, or adds a user to it if it exists.
    QueueCreate = "queue_create" {
        /// The name of the queue.
        name: Key = "name",
        /// Maximum number of values in the queue; any number if absent, 0 or negative.
        maxsize: Option<i64> = "maxsize",
    }

    /// Adds a value to a queue, once it has room.
    QueuePut = "queue_put" {
        /// The name of the queue.
        name: Key = "name",
        /// The key of the task, for a future.
        key: Option<Key> = "key",
        /// The data, without a key.
        data: Option<Value> = "data",
        /// Time-out for the task to become known, and for room in the queue.
        timeout: Option<f64> = "timeout",
    }

    /// Removes values from a queue, once it has some.
    QueueGet = "queue_get" {
        /// The name of the queue.
        name: Key = "name",
        /// Time-out for a value.
        timeout: Option<f64> = "timeout",
        /// The number of values, or true for those that are there. Default: false, for one value
        /// instead of a list.
        batch: Option<Value> = "batch",
    }

    /// Asks for the number of values in a queue.
    QueueSize = "queue_qsize" {
        /// The name of the queue.
        name: Key = "name",
    }

    /// Waits until an event is set. The reply is false after the time-out.
    EventWait = "event_wait" {
        /// The name of the event.
        name: Key = "name",
        /// Time-out for the event.
        timeout: Option<f64> = "timeout",
    }

    /// Sets an event.
    EventSet = "event_set" {
        /// The name of the event.
        name: Key = "name",
    }

    /// Unsets an event.
    EventClear = "event_clear" {
        /// The name of the event.
        name: Key = "name",
    }

    /// Asks whether an event is set.
    EventIsSet = "event_is_set" {
        /// The name of the event.
        name: Key = "name",
    }

    /// Creates a semaphore, unless it exists. A lock is a semaphore with one lease.
    SemaphoreRegister = "semaphore_register" {
        /// The name of the semaphore.
        name: Key = "name",
        /// Maximum number of leases at once.
        max_leases: i64 = "max_leases",
        /// Seconds after which a lease ends that is not refreshed; if absent, leases never end.
        lease_timeout: Option<f64> = "lease_timeout",
    }

    /// Acquires a lease, once there is one. The reply is false after the time-out. A repeated
    /// request for a lease that was granted is granted again.
    SemaphoreAcquire = "semaphore_acquire" {
        /// The name of the semaphore.
        name: Key = "name",
        /// Time-out for the lease.
        timeout: Option<f64> = "timeout",
        /// The id of the lease, chosen by its holder.
        lease_id: Key = "lease_id",
    }

    /// Ends a lease.
    SemaphoreRelease = "semaphore_release" {
        /// The name of the semaphore.
        name: Key = "name",
        /// The id of the lease.
        lease_id: Key = "lease_id",
    }

    /// Prolongs leases.
    SemaphoreRefreshLeases = "semaphore_refresh_leases" {
        /// The name of the semaphore.
        name: Key = "name",
        /// The ids of the leases.
        lease_ids: Keys = "lease_ids",
    }

    /// Removes a semaphore with all its leases.
    SemaphoreClose = "semaphore_close" {
        /// The name of the semaphore.
        name: Key = "name",
    }

    /// Asks for the number of leases.
    SemaphoreValue = "semaphore_value" {
        /// The name of the semaphore.
        name: Key = "name",
    }

    /// Acquires several locks at once. The reply is false after the time-out.
    MultiLockAcquire = "multi_lock_acquire" {
        /// The names of the locks.
        locks: Vec<Key> = "locks",
        /// The id of the holder, chosen by the client.
        id: Key = "id",
        /// Time-out for the locks.
        timeout: Option<f64> = "timeout",
        /// How many of the locks are needed. Default: all.
        num_locks: Option<i64> = "num_locks",
    }

    /// Releases the locks of a holder.
    MultiLockRelease = "multi_lock_release" {
        /// The id of the holder.
        id: Key = "id",
    }

    /// Publishes datasets: objects with the keys of the futures in them. Before 2026.6.0, one.
    PublishPut = "publish_put" {
        /// The name of the only dataset, before 2026.6.0.
        name: Option<Key> = "name",
        /// The names of the datasets.
        names: Option<Vec<Key>> = "names",
        /// The keys of each dataset; before 2026.6.0, those of the only one.
        keys: Vec<Key> = "keys",
        /// The objects; before 2026.6.0, the only one.
        data: Value = "data",
        /// Whether published datasets of the same names are replaced. Default: false.
        override_existing: Option<bool> = "override",
        /// The client that publishes them.
        client: Option<String> = "client",
        /// The id of the message on the client's stream after which the request is handled.
        uid: Option<Key> = "uid",
    }

    /// Asks for published datasets. Before 2026.6.0, for one.
    PublishGet = "publish_get" {
        /// The name of the only dataset, before 2026.6.0.
        name: Option<Key> = "name",
        /// The names of the datasets.
        names: Option<Vec<Key>> = "names",
    }

    /// Removes published datasets. Before 2026.6.0, one.
    PublishDelete = "publish_delete" {
        /// The name of the only dataset, before 2026.6.0.
        name: Option<Key> = "name",
        /// The names of the datasets.
        names: Option<Vec<Key>> = "names",
        /// The client that removes them.
        client: Option<String> = "client",
        /// The id of the message on the client's stream after which the request is handled.
        uid: Option<Key> = "uid",
    }

    /// Asks for the names of all published datasets.
    PublishList = "publish_list" {}
}

maps! {
    /// Confirms that a client holds the future that it has read from a variable.
    VariableReceived = "variable-future-received-confirm" {
        /// The name of the variable.
        name: Key = "name",
        /// The key of the future.
        key: Key = "key",
        /// The token in the reply to the request.
        token: String = "token",
    }

    /// Deletes a variable.
    VariableDelete = "variable_delete" {
        /// The name of the variable.
        name: Key = "name",
    }

    /// Confirms that a client holds a future that it has removed from a queue.
    QueueReceived = "queue-future-release" {
        /// The name of the queue.
        name: Key = "name",
        /// The key of the future.
        key: Key = "key",
    }

    /// Removes a user of a queue, which is deleted with the last one.
    QueueRelease = "queue_release" {
        /// The name of the queue.
        name: Key = "name",
    }

    /// Marks a place in the stream of a client for the request with the same id.
    PublishFlush = "publish_flush_batched_send" {
        /// The id.
        uid: Key = "uid",
    }
}
