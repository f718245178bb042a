//! The threads that do I/O.

use core::mem::ManuallyDrop;
use std::io;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

/// The number of threads: one copies large frames while the other keeps other connections
/// going.
const THREADS: usize = 2;

/// The runtime of this process, which starts at first use and is never dropped.
///
/// # Errors
///
/// Those of the system, if a thread cannot be started.
pub(crate) fn handle() -> io::Result<Handle> {
    static RUNTIME: Mutex<Option<(u32, ManuallyDrop<Runtime>)>> = Mutex::new(None);
    // Only threads with the GIL come here, one of which forks: the lock is free in the child.
    let mut found = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((process, runtime)) = &*found
        && *process == std::process::id()
    {
        return Ok(runtime.handle().clone());
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("daskwire")
        .enable_all()
        .build()?;
    let handle = runtime.handle().clone();
    // A runtime of the process that this one was forked from has no threads, and is left alone.
    *found = Some((std::process::id(), ManuallyDrop::new(runtime)));
    Ok(handle)
}

/// Leaves an object to the process that this one was forked from: what is done to its
/// connections, also to drop them, could wait for threads that are not here.
#[pyfunction]
pub(crate) fn forget(object: Py<PyAny>) {
    core::mem::forget(object);
}
