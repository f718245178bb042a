//! The end of a role after a panic in one of its parts.
//!
//! A panic may leave the state of a role half changed, or end a thread or task
//! that others wait for. The role then ends: a worker leaves its cluster, which
//! recomputes its data elsewhere; the futures of a client become disconnected.
//! Panics in task functions and in callbacks are caught and do not count.
//!
//! Locks follow the same rule. [`PanicFlag::check`] is for the state of a role, and
//! ends the role after a panic; [`lock_counter`] is for counters, caches and
//! logs, on which no decision depends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::Notify;

/// A flag that is set after a panic in a role. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct PanicFlag(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_set: AtomicBool,
    changed: Notify,
}

impl PanicFlag {
    pub fn set(&self) {
        self.0.is_set.store(true, Ordering::Release);
        self.0.changed.notify_one();
    }

    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Acquire)
    }

    /// Waits until the flag is set. Supports one waiter.
    pub async fn wait(&self) {
        while !self.is_set() {
            self.0.changed.notified().await;
        }
    }

    /// Returns the guard of a lock, and sets the flag if the lock is poisoned.
    pub fn check<G>(&self, locked: Result<G, PoisonError<G>>) -> G {
        locked.unwrap_or_else(|poisoned| {
            self.set();
            poisoned.into_inner()
        })
    }

    /// Returns a guard that sets the flag when a panic drops it. A panic that began
    /// before this call, such as one of the program that drops a handle, does not count.
    #[must_use]
    pub fn guard(&self) -> PanicGuard {
        PanicGuard {
            panic_flag: self.clone(),
            was_panicking: thread::panicking(),
        }
    }
}

/// Locks a counter, a cache or a log. A panic while it was locked may have left it
/// wrong or incomplete, never unsafe, and no decision of a role depends on it.
pub fn lock_counter<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets a [`PanicFlag`] when a panic drops it.
#[derive(Debug)]
pub struct PanicGuard {
    panic_flag: PanicFlag,
    was_panicking: bool,
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if thread::panicking() && !self.was_panicking {
            self.panic_flag.set();
        }
    }
}

/// Poisons a mutex, for tests.
pub fn poison<T: Send>(mutex: &Mutex<T>) {
    let panicked = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _locked = mutex.lock();
            panic!("poisons the mutex");
        });
        thread.join()
    });
    assert!(panicked.is_err() && mutex.is_poisoned());
}
