//! The executor of the running task, if it is neither tokio nor smol.

use core::cell::RefCell;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;

use super::Runtime;

thread_local! {
    /// The executor of the scope that is being polled on this thread.
    static CURRENT: RefCell<Option<Arc<dyn Runtime>>> = const { RefCell::new(None) };
}

/// Runs a future on `runtime`: its tasks, and theirs, its timers and its sockets are those of
/// this executor, also within a task of tokio. The future itself runs where it is awaited.
///
/// # Cancel safety
///
/// That of `future`, which is dropped within the scope.
pub fn scope<F: Future>(runtime: impl Runtime, future: F) -> impl Future<Output = F::Output> {
    Scoped::new(Arc::new(runtime), Box::pin(future))
}

/// The executor of the current scope.
pub(super) fn current() -> Option<Arc<dyn Runtime>> {
    CURRENT.try_with(|current| current.borrow().clone()).ok()?
}

/// Enters the scope of an executor on this thread until the result is dropped.
pub(super) fn enter(runtime: Arc<dyn Runtime>) -> Entered {
    Entered(replace(Some(runtime)))
}

/// A scope that the thread is in.
#[derive(Debug)]
pub(super) struct Entered(Option<Arc<dyn Runtime>>);

impl Drop for Entered {
    fn drop(&mut self) {
        replace(self.0.take());
    }
}

fn replace(runtime: Option<Arc<dyn Runtime>>) -> Option<Arc<dyn Runtime>> {
    // Fails while the thread ends, when nothing is polled any more.
    let replaced = CURRENT.try_with(|current| current.replace(runtime));
    replaced.ok().flatten()
}

/// A future that is polled and dropped in the scope of an executor.
pub(super) struct Scoped<F> {
    runtime: Arc<dyn Runtime>,
    /// `None` once it was dropped.
    future: Option<F>,
}

impl<F: Future + Unpin> Scoped<F> {
    pub(super) const fn new(runtime: Arc<dyn Runtime>, future: F) -> Self {
        Self {
            runtime,
            future: Some(future),
        }
    }
}

impl<F: Future + Unpin> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _scope = enter(Arc::clone(&self.runtime));
        match &mut self.future {
            Some(future) => Pin::new(future).poll(context),
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Scoped<F> {
    fn drop(&mut self) {
        let _scope = enter(Arc::clone(&self.runtime));
        self.future = None;
    }
}
