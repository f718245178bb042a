//! Tasks of any executor.

use core::any::Any;
use core::fmt;
use core::future::poll_fn;
use core::panic::AssertUnwindSafe;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::panic::catch_unwind;

use futures_util::future::{AbortHandle, Abortable, FutureExt as _};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::oneshot;

/// The handle of a started task, and a future of its result.
///
/// Dropping the handle leaves the task running.
#[derive(Debug)]
pub struct Task<T>(Inner<T>);

#[derive(Debug)]
enum Inner<T> {
    #[cfg(feature = "runtime-tokio")]
    Tokio(tokio::task::JoinHandle<T>),
    Other {
        result: oneshot::Receiver<std::thread::Result<T>>,
        /// `None` for blocking functions.
        abort: Option<AbortHandle>,
    },
}

/// The reason why a task has no result.
pub struct TaskError {
    /// `None` if the task was aborted, or its executor has ended.
    panic: Option<Box<dyn Any + Send>>,
}

impl TaskError {
    /// Whether the task panicked; otherwise it was aborted, or its executor has
    /// ended.
    pub const fn is_panic(&self) -> bool {
        self.panic.is_some()
    }

    /// The payload of the panic, for [`std::panic::resume_unwind`].
    pub fn into_panic(self) -> Option<Box<dyn Any + Send>> {
        self.panic
    }
}

impl fmt::Debug for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskError")
            .field("is_panic", &self.is_panic())
            .finish()
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.panic {
            Some(_) => "the task panicked",
            None => "the task was aborted",
        })
    }
}

impl core::error::Error for TaskError {}

daskwire::kinds! {
    TaskError: |error| match error.panic {
        Some(_) => ErrorKind::System,
        None => ErrorKind::Closed,
    };
}

impl<T> Task<T> {
    /// Aborts the task at its next await point, if it has not ended.
    pub fn abort(&self) {
        match &self.0 {
            #[cfg(feature = "runtime-tokio")]
            Inner::Tokio(handle) => handle.abort(),
            Inner::Other { abort, .. } => {
                if let Some(abort) = abort {
                    abort.abort();
                }
            }
        }
    }

    #[cfg(feature = "runtime-tokio")]
    pub(super) const fn tokio(handle: tokio::task::JoinHandle<T>) -> Self {
        Self(Inner::Tokio(handle))
    }

    /// Wraps a future into a task that does not panic, and returns it with its handle.
    pub(super) fn with_handle(task: impl Future<Output = T>) -> (impl Future<Output = ()>, Self) {
        let (sender, result) = oneshot::channel();
        let (abort, registration) = AbortHandle::new_pair();
        let task = async move {
            // Not polled again after a panic.
            let mut task = core::pin::pin!(Abortable::new(task, registration));
            let caught = poll_fn(|context| {
                match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(context))) {
                    Ok(poll) => poll.map(Ok),
                    Err(panic) => Poll::Ready(Err(panic)),
                }
            });
            let result = match caught.await {
                Ok(Ok(value)) => Ok(value),
                // Dropping the sender reports the abort.
                Ok(Err(_)) => return,
                Err(panic) => Err(panic),
            };
            // The handle may have been dropped.
            let _ = sender.send(result);
        };
        let abort = Some(abort);
        (task, Self(Inner::Other { result, abort }))
    }

    /// Wraps a blocking function so that it does not panic, and returns it with its
    /// handle.
    pub(super) fn blocking(function: impl FnOnce() -> T) -> (impl FnOnce(), Self) {
        let (sender, result) = oneshot::channel();
        let function = move || {
            // The handle may have been dropped.
            let _ = sender.send(catch_unwind(AssertUnwindSafe(function)));
        };
        let abort = None;
        (function, Self(Inner::Other { result, abort }))
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, TaskError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            #[cfg(feature = "runtime-tokio")]
            Inner::Tokio(handle) => Pin::new(handle).poll(context).map(|result| {
                result.map_err(|error| TaskError {
                    panic: error.try_into_panic().ok(),
                })
            }),
            Inner::Other { result, .. } => Pin::new(result).poll(context).map(|result| {
                let result = result.map_err(|_| TaskError { panic: None })?;
                result.map_err(|panic| TaskError { panic: Some(panic) })
            }),
        }
    }
}

/// A set of tasks, which are aborted when it is dropped.
#[derive(Debug)]
pub struct TaskSet<T>(FuturesUnordered<Task<T>>);

impl<T> Default for TaskSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> TaskSet<T> {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self(FuturesUnordered::new())
    }

    /// The number of tasks whose results have not been taken by
    /// [`TaskSet::join_next`].
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a started task.
    pub fn push(&mut self, task: Task<T>) {
        self.0.push(task);
    }

    /// Waits for the next task to end; `None` if the set is empty.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: no result is lost.
    ///
    /// # Errors
    ///
    /// [`TaskError`] if the task was aborted or panicked.
    pub async fn join_next(&mut self) -> Option<Result<T, TaskError>> {
        self.0.next().await
    }

    /// The result of a task that has ended, if any has.
    ///
    /// # Errors
    ///
    /// As [`TaskSet::join_next`].
    pub fn try_join_next(&mut self) -> Option<Result<T, TaskError>> {
        self.0.next().now_or_never().flatten()
    }

    /// Waits for all tasks, and returns their results in the order in which they
    /// ended. Aborted tasks have none.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future aborts the tasks, and loses their results.
    ///
    /// # Panics
    ///
    /// With the panic of the first task that panicked.
    pub async fn join_all(mut self) -> Vec<T> {
        let mut results = Vec::with_capacity(self.len());
        while let Some(result) = self.join_next().await {
            match result {
                Ok(result) => results.push(result),
                Err(error) => {
                    if let Some(panic) = error.into_panic() {
                        std::panic::resume_unwind(panic);
                    }
                }
            }
        }
        results
    }

    /// Aborts all tasks at their next await points.
    pub fn abort_all(&self) {
        for task in &self.0 {
            task.abort();
        }
    }

    /// Aborts all tasks and waits until they have ended.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: all tasks are aborted; call it again to wait.
    pub async fn shutdown(&mut self) {
        self.abort_all();
        while self.join_next().await.is_some() {}
    }
}

impl<T: Send + 'static> TaskSet<T> {
    /// Starts a task on the current executor.
    ///
    /// # Panics
    ///
    /// Outside of an executor.
    pub fn spawn(&mut self, task: impl Future<Output = T> + Send + 'static) {
        self.push(super::spawn(task));
    }
}

impl<T> Drop for TaskSet<T> {
    fn drop(&mut self) {
        self.abort_all();
    }
}
