//! What ends a worker when something in it panics.
//!
//! A panic may leave the state machine, the store or the accounts of what is in
//! memory half changed, or end a thread that others wait for. The worker then does
//! nothing more with them and leaves its cluster, which computes elsewhere what it
//! had. Functions of tasks and hooks for notices may panic: those panics are caught.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;

use tokio::sync::Notify;

/// Whether something in a worker has panicked. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Failure(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_set: AtomicBool,
    changed: Notify,
}

impl Failure {
    pub(super) fn set(&self) {
        self.0.is_set.store(true, Ordering::Release);
        self.0.changed.notify_one();
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Acquire)
    }

    /// Waits until it is set. Only one waits.
    pub(super) async fn occurred(&self) {
        while !self.is_set() {
            self.0.changed.notified().await;
        }
    }

    /// What a lock guards. If a panic has left that, the worker ends.
    pub(super) fn check<G>(&self, locked: Result<G, PoisonError<G>>) -> G {
        locked.unwrap_or_else(|poisoned| {
            self.set();
            poisoned.into_inner()
        })
    }

    /// Sets it if what is returned is dropped by a panic.
    #[must_use]
    pub(super) fn guard(&self) -> FailureGuard {
        FailureGuard(self.clone())
    }
}

/// Sets a [`Failure`] if a panic drops it.
#[derive(Debug)]
pub(super) struct FailureGuard(Failure);

impl Drop for FailureGuard {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.set();
        }
    }
}

/// Panics while it holds a lock, for tests.
#[cfg(test)]
pub(super) fn poison<T: Send>(mutex: &std::sync::Mutex<T>) {
    let panicked = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _locked = mutex.lock();
            panic!("as the test wants");
        });
        thread.join()
    });
    assert!(panicked.is_err() && mutex.is_poisoned());
}
