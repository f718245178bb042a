//! Threads that run tasks.

use core::time::Duration;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use daskwire_rpc::panic_flag::PanicFlag;

use super::{Job, Shared};

/// Stack size in bytes: enough for recursive functions. Memory is committed only when used.
const STACK_LEN: usize = 8 << 20;

/// The processor time of this thread; zero on systems other than Linux.
pub(super) fn processor_time() -> Duration {
    #[cfg(target_os = "linux")]
    {
        use rustix::time::{ClockId, clock_gettime};
        Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
    }
    #[cfg(not(target_os = "linux"))]
    Duration::ZERO
}

/// A queue of jobs for the threads.
#[derive(Debug)]
pub(super) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    changed: Condvar,
    /// Set if the queue is poisoned; the worker then ends.
    panic_flag: PanicFlag,
}

#[derive(Debug)]
struct Waiting<T> {
    items: VecDeque<T>,
    is_closed: bool,
}

impl<T> Queue<T> {
    pub(super) const fn new(panic_flag: PanicFlag) -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                items: VecDeque::new(),
                is_closed: false,
            }),
            changed: Condvar::new(),
            panic_flag,
        }
    }

    pub(super) fn push(&self, item: T) {
        self.lock().items.push_back(item);
        self.changed.notify_one();
    }

    /// Waits for the next item. Returns `None` once the queue is closed.
    fn pop(&self) -> Option<T> {
        let mut waiting = self.lock();
        loop {
            if waiting.is_closed {
                return None;
            }
            if let Some(item) = waiting.items.pop_front() {
                return Some(item);
            }
            waiting = self.panic_flag.check(self.changed.wait(waiting));
        }
    }

    /// Closes the queue: no more items are returned.
    pub(super) fn close(&self) {
        let mut waiting = self.lock();
        waiting.is_closed = true;
        let rest = core::mem::take(&mut waiting.items);
        drop(waiting);
        drop(rest);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.panic_flag.check(self.waiting.lock())
    }
}

/// Starts the threads of a worker. They end when its queue is closed.
///
/// # Errors
///
/// If the system cannot start the first thread. If it cannot start others, the worker
/// runs with fewer threads.
pub(super) fn start(shared: &Arc<Shared>) -> io::Result<()> {
    for index in 0..shared.nthreads {
        match start_one(shared, &format!("task-{index}")) {
            Err(error) if index == 0 => return Err(error),
            Err(_) => break,
            Ok(_) => {}
        }
    }
    Ok(())
}

pub(super) fn start_one(shared: &Arc<Shared>, name: &str) -> io::Result<()> {
    let own = Arc::clone(shared);
    let builder = thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK_LEN);
    builder.spawn(move || work(&own)).map(drop)
}

thread_local! {
    /// Whether the calling thread ends after its task.
    static IS_REPLACED: Cell<bool> = const { Cell::new(false) };
}

/// Starts a thread that replaces the calling one, which ends after its task.
///
/// # Errors
///
/// If the system refuses the thread; then nothing changes.
#[cfg(target_os = "linux")]
pub(super) fn replace(shared: &Arc<Shared>) -> io::Result<()> {
    if !IS_REPLACED.get() {
        start_one(shared, "task")?;
        IS_REPLACED.set(true);
    }
    Ok(())
}

/// Lets the calling thread end after its task, since [`start_one`] has started another.
pub(super) fn set_replaced() {
    IS_REPLACED.set(true);
}

fn work(shared: &Arc<Shared>) {
    // A panic ends the worker, since the running task would never be reported.
    let _guard = shared.panic_flag.guard();
    let mut own: Option<Job> = None;
    while let Some(job) = own.take().or_else(|| shared.queue.pop()) {
        // Tasks that became ready run next on the same thread.
        let mut next = shared.run(job, false).into_iter();
        let is_replaced = IS_REPLACED.get();
        if !is_replaced {
            own = next.next();
        }
        for job in next {
            shared.queue.push(job);
        }
        if is_replaced {
            return;
        }
    }
}

/// Returns the number of the calling thread, by which Dask's dashboard distinguishes
/// threads.
pub(super) fn number() -> i64 {
    static NEXT: AtomicI64 = AtomicI64::new(1);
    thread_local! {
        static OWN: Cell<i64> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    OWN.get()
}
