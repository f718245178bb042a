//! The threads that do I/O.

use std::io;
use std::sync::OnceLock;

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
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime.handle().clone());
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("daskwire")
        .enable_all()
        .build()?;
    // Two threads of Python may have made one each; one of the two is dropped.
    match RUNTIME.set(runtime) {
        Ok(()) => {}
        Err(second) => second.shutdown_background(),
    }
    match RUNTIME.get() {
        Some(runtime) => Ok(runtime.handle().clone()),
        None => Err(io::Error::other("no runtime")),
    }
}
