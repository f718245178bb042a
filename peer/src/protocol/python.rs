//! Messages between a worker and its Python processes, which have the layout of
//! Dask's. Their other side is `python/daskwire/worker.py`.
#![allow(unreachable_pub, reason = "the macros make public types")]

use bytes::Bytes;

use super::LogEvent;
use super::field::{Keys, Map, Nullable, maps, ops};
use crate::Key;
use crate::value::Serialized;

maps! {
    /// Describes the worker; the first message to a process.
    StartPython = "start" {
        /// The id of the worker.
        id: String = "id",
        /// Its name.
        name: String = "name",
        /// Its address.
        address: String = "address",
        /// The address of the scheduler.
        scheduler: String = "scheduler",
        /// Number of tasks that the worker runs at once.
        nthreads: u64 = "nthreads",
        /// The directory of the worker's files.
        local_directory: String = "local_directory",
        /// The worker's memory limit in bytes.
        memory_limit: Nullable<u64> = "memory_limit",
        /// Maximum length of the values that the process keeps, in bytes.
        cache_len: u64 = "cache_len",
    }

    /// Asks for a task, and is answered by [`PythonFinished`], [`PythonErred`] or
    /// [`PythonReschedule`].
    RunInPython = "run-task" {
        /// The key of the task.
        key: Key = "key",
        /// The task, as the scheduler sent it.
        run_spec: Serialized = "run_spec",
        /// Its inputs; nil for those that the process has.
        data: Map<Key, Nullable<Serialized>> = "data",
    }

    /// Asks to forget values.
    ForgetInPython = "forget" {
        /// Their keys.
        keys: Keys = "keys",
    }

    /// Reports that the process is ready for tasks.
    PythonReady = "ready" {}

    /// Returns the result of a task. The process keeps it.
    PythonFinished = "task-finished" {
        /// The result.
        result: Serialized = "result",
        /// Size of the result in bytes, as Dask counts it.
        nbytes: u64 = "nbytes",
        /// The pickle of its class.
        class: Nullable<Bytes> = "type",
        /// The name of its class.
        typename: String = "typename",
        /// Start, in seconds since 1970.
        start: f64 = "start",
        /// End, in seconds since 1970.
        stop: f64 = "stop",
        /// The keys of values that the process does not keep any more.
        gone: Keys = "gone",
    }

    /// Returns the exception of a task.
    PythonErred = "task-erred" {
        /// The pickle of the exception.
        exception: Bytes = "exception",
        /// The pickle of its traceback, unless that is too long.
        traceback: Nullable<Bytes> = "traceback",
        /// The exception as a string.
        exception_text: String = "exception_text",
        /// The traceback as a string.
        traceback_text: String = "traceback_text",
        /// Start, in seconds since 1970.
        start: f64 = "start",
        /// End, in seconds since 1970.
        stop: f64 = "stop",
        /// The keys of values that the process does not keep any more.
        gone: Keys = "gone",
    }

    /// Reports that a task wants to run elsewhere or later.
    PythonReschedule = "reschedule" {
        /// The keys of values that the process does not keep any more.
        gone: Keys = "gone",
    }

    /// Reports that the running task does not count as one of the worker's threads
    /// any more.
    PythonSeceded = "long-running" {
        /// The key of the task.
        key: Key = "key",
        /// The task's run time so far, in seconds.
        compute_duration: f64 = "compute_duration",
    }
}

ops! {
    /// A message from a Python process.
    FromPython {
        PythonReady = "ready",
        PythonFinished = "task-finished",
        PythonErred = "task-erred",
        PythonReschedule = "reschedule",
        PythonSeceded = "long-running",
        LogEvent = "log-event",
    }
}
