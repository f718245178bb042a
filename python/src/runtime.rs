//! The runtime, whose threads do I/O.

use core::mem::ManuallyDrop;
use core::num::NonZero;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;

use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

/// The maximum number of threads. With two, other connections make progress while one thread
/// copies large frames. A machine with two processors has one thread, as Python needs the other
/// processor.
const MAX_THREADS: usize = 2;

/// The runtime of this process, which starts at first use and is never dropped.
///
/// # Errors
///
/// The error of the operating system if a thread cannot be started.
pub(crate) fn handle() -> io::Result<Handle> {
    static RUNTIME: Mutex<Option<(u32, ManuallyDrop<Runtime>)>> = Mutex::new(None);
    // Only threads that hold the GIL take the lock, and so does the one that forks: the lock
    // is free in the child.
    let mut found = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((process, runtime)) = &*found
        && *process == std::process::id()
    {
        return Ok(runtime.handle().clone());
    }
    let processors = available_parallelism().map_or(1, NonZero::get);
    let runtime = Builder::new_multi_thread()
        .worker_threads((processors - 1).clamp(1, MAX_THREADS))
        .thread_name("daskwire")
        .enable_all()
        .build()?;
    let handle = runtime.handle().clone();
    // A runtime inherited by a fork has no threads in this process, and is never dropped.
    *found = Some((std::process::id(), ManuallyDrop::new(runtime)));
    Ok(handle)
}

/// Leaks an object inherited by a fork. Using or dropping its connections could wait for
/// threads that exist in the parent process only.
#[pyfunction]
pub(crate) fn forget(object: Py<PyAny>) {
    core::mem::forget(object);
}
