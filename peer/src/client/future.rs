//! Futures: handles on results that may not be available yet.

use core::time::Duration;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use daskwire_comm::runtime;
use tokio::sync::{Notify, mpsc, oneshot};

use super::{Disconnected, Shared, TaskError};
use crate::event::{ClientEvent, Level, emit};
use crate::{Key, RemoteError, Serialized, Value};

/// The status of a task.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Status {
    /// The task waits or is executing.
    Pending,
    /// The result is in memory.
    Finished,
    /// The task, or one that it depends on, failed.
    Error(Arc<RemoteError>),
    /// The task was cancelled.
    Cancelled {
        /// The reason, as far as it is known.
        reason: String,
    },
    /// The result is lost and cannot be computed again.
    Lost,
    /// The client is not connected any more.
    Disconnected {
        /// The reason.
        reason: String,
    },
}

impl Status {
    /// Whether the status is final.
    pub const fn is_done(&self) -> bool {
        !matches!(self, Self::Pending)
    }

    /// Dask's name of the status.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Finished => "finished",
            Self::Error(_) => "error",
            Self::Cancelled { .. } => "cancelled",
            Self::Lost => "lost",
            Self::Disconnected { .. } => "disconnected",
        }
    }
}

/// The state of a key, shared by all handles on it.
pub(super) struct Entry {
    pub(super) key: Key,
    /// Number of marks sent on the stream before this entry existed. What arrives
    /// before they are answered is not about this entry.
    pub(super) marks: u64,
    shared: Arc<Shared>,
    state: Mutex<State>,
}

/// A compact status: there may be millions, most of them pending or finished.
enum State {
    Pending(Vec<Watcher>),
    Finished,
    /// Any other final status.
    Ended(Box<Status>),
}

enum Watcher {
    One(oneshot::Sender<()>),
    /// The index of a future among others.
    Many(usize, mpsc::UnboundedSender<usize>),
    All(Weak<Remaining>),
}

impl Watcher {
    /// Whether all waiting tasks have been dropped.
    fn is_closed(&self) -> bool {
        match self {
            Self::One(sender) => sender.is_closed(),
            Self::Many(_, sender) => sender.is_closed(),
            Self::All(remaining) => remaining.strong_count() == 0,
        }
    }

    fn tell(self, is_finished: bool) {
        // The waiter may be gone.
        match self {
            Self::One(sender) => drop(sender.send(())),
            Self::Many(index, sender) => drop(sender.send(index)),
            Self::All(remaining) => {
                if let Some(remaining) = remaining.upgrade() {
                    remaining.tell(is_finished);
                }
            }
        }
    }
}

/// Number of unfinished futures that are waited for.
struct Remaining {
    count: AtomicUsize,
    /// Notified when none is left, or when one has failed.
    decided: Notify,
}

impl Remaining {
    fn tell(&self, is_finished: bool) {
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 || !is_finished {
            self.decided.notify_one();
        }
    }
}

/// Waits until all are finished or one has failed. Wakes the waiter once, however
/// many there are. Cancel safe.
pub(super) async fn all_finished(futures: impl Iterator<Item = &TaskFuture>) {
    let remaining = Arc::new(Remaining {
        // One more, so that the count is not zero before all are watched.
        count: AtomicUsize::new(1),
        decided: Notify::new(),
    });
    for future in futures {
        remaining.count.fetch_add(1, Ordering::AcqRel);
        future.0.watch(Watcher::All(Arc::downgrade(&remaining)));
    }
    remaining.tell(true);
    remaining.decided.notified().await;
}

impl Entry {
    pub(super) const fn new(key: Key, shared: Arc<Shared>, marks: u64) -> Self {
        Self {
            key,
            marks,
            shared,
            state: Mutex::new(State::Pending(Vec::new())),
        }
    }

    pub(super) fn set(&self, status: Status) {
        let is_finished = matches!(status, Status::Finished);
        emit(Level::Debug, || ClientEvent::Task {
            key: &self.key,
            status: status.name(),
        });
        let next = match status {
            Status::Pending => State::Pending(Vec::new()),
            Status::Finished => State::Finished,
            other => State::Ended(Box::new(other)),
        };
        let before = {
            let mut state = self.shared.lock(&self.state);
            // Waiters continue to wait.
            if let (State::Pending(_), State::Pending(_)) = (&*state, &next) {
                return;
            }
            core::mem::replace(&mut *state, next)
        };
        if let State::Pending(watchers) = before {
            for watcher in watchers {
                watcher.tell(is_finished);
            }
        }
    }

    /// Ends the entry unless it failed or was cancelled: its result cannot be
    /// fetched any more.
    pub(super) fn end(&self, status: Status) {
        if !matches!(self.status(), Status::Error(_) | Status::Cancelled { .. }) {
            self.set(status);
        }
    }

    fn status(&self) -> Status {
        match &*self.shared.lock(&self.state) {
            State::Pending(_) => Status::Pending,
            State::Finished => Status::Finished,
            State::Ended(status) => (**status).clone(),
        }
    }

    /// Notifies the watcher when the task is done, at once if it is.
    fn watch(&self, watcher: Watcher) {
        let mut state = self.shared.lock(&self.state);
        if let State::Pending(watchers) = &mut *state {
            if watchers.len() == watchers.capacity() {
                watchers.retain(|watcher| !watcher.is_closed());
            }
            if watchers.is_empty() {
                // Most entries have one watcher.
                watchers.reserve_exact(1);
            }
            watchers.push(watcher);
            return;
        }
        let is_finished = matches!(*state, State::Finished);
        drop(state);
        watcher.tell(is_finished);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shared.release(&self.key);
    }
}

/// A handle on the result of a task, or on scattered data.
///
/// The cluster keeps the result while there are handles on it, and may forget it
/// when the last is dropped. Clones are handles on the same result.
#[derive(Clone)]
pub struct TaskFuture(Arc<Entry>);

impl TaskFuture {
    pub(super) const fn new(entry: Arc<Entry>) -> Self {
        Self(entry)
    }

    pub(super) const fn entry(&self) -> &Arc<Entry> {
        &self.0
    }

    /// The key of the result.
    pub fn key(&self) -> &Key {
        &self.0.key
    }

    /// The current status of the task.
    pub fn status(&self) -> Status {
        self.0.status()
    }

    /// Whether the task is done, successfully or not.
    pub fn is_done(&self) -> bool {
        self.status().is_done()
    }

    /// Waits until the task is done, and returns its status. Cancel safe.
    pub async fn done(&self) -> Status {
        loop {
            let status = self.status();
            if status.is_done() {
                return status;
            }
            let (sender, done) = oneshot::channel();
            self.0.watch(Watcher::One(sender));
            // The status has the outcome.
            let _ = done.await;
        }
    }

    /// Waits until the result is in memory, without fetching it. Cancel safe.
    ///
    /// # Errors
    ///
    /// If the result will never be available: [`TaskError::Failed`],
    /// [`TaskError::Cancelled`], [`TaskError::Lost`] or [`TaskError::Disconnected`].
    pub async fn finished(&self) -> Result<(), TaskError> {
        let key = || self.key().clone();
        match self.done().await {
            Status::Finished | Status::Pending => Ok(()),
            Status::Error(error) => Err(TaskError::Failed { key: key(), error }),
            Status::Cancelled { reason } => Err(TaskError::Cancelled { key: key(), reason }),
            Status::Lost => Err(TaskError::Lost { key: key() }),
            Status::Disconnected { reason } => Err(Disconnected { reason }.into()),
        }
    }

    /// Waits for the result and fetches it. An object without a counterpart in
    /// Rust stays [`Value::Serialized`].
    ///
    /// # Errors
    ///
    /// As [`finished`](Self::finished), and errors of fetching.
    pub async fn result(&self) -> Result<Value, TaskError> {
        let serialized = self.serialized().await?;
        super::data::opened(self.key(), serialized)
    }

    /// Like [`result`](Self::result), with a timeout.
    ///
    /// # Errors
    ///
    /// As [`result`](Self::result), and [`TaskError::Timeout`].
    pub async fn result_within(&self, after: Duration) -> Result<Value, TaskError> {
        match runtime::timeout(after, self.result()).await {
            Ok(result) => result,
            Err(_) => Err(TaskError::Timeout {
                key: self.key().clone(),
                after,
            }),
        }
    }

    /// Like [`result`](Self::result), without deserializing.
    ///
    /// # Errors
    ///
    /// As [`result`](Self::result).
    pub async fn serialized(&self) -> Result<Serialized, TaskError> {
        let shared = &self.0.shared;
        let mut all = shared
            .gather(core::slice::from_ref(self), shared.route())
            .await?;
        all.pop().ok_or(TaskError::Lost {
            key: self.key().clone(),
        })
    }
}

impl core::fmt::Debug for TaskFuture {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "<Future: {}, key: {}>", self.status().name(), self.key())
    }
}

/// Yields futures in the order in which they are done.
#[derive(Debug)]
pub struct AsCompleted {
    futures: Vec<Option<TaskFuture>>,
    done: mpsc::UnboundedReceiver<usize>,
}

impl AsCompleted {
    pub(super) fn new(futures: impl IntoIterator<Item = TaskFuture>) -> Self {
        let (sender, done) = mpsc::unbounded_channel();
        let futures: Vec<Option<TaskFuture>> = futures.into_iter().map(Some).collect();
        for (index, future) in futures.iter().flatten().enumerate() {
            future.0.watch(Watcher::Many(index, sender.clone()));
        }
        Self { futures, done }
    }

    /// The next future that is done, successfully or not; `None` after the last.
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<TaskFuture> {
        loop {
            let index = self.done.recv().await?;
            if let Some(future) = self.futures.get_mut(index).and_then(Option::take) {
                return Some(future);
            }
        }
    }
}

/// Handles on the same result of the same client are equal.
impl PartialEq for TaskFuture {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for TaskFuture {}

/// Uses the task's result as an argument of another task, which holds it.
impl From<&TaskFuture> for crate::graph::Argument {
    fn from(future: &TaskFuture) -> Self {
        Self::Future(future.clone())
    }
}

/// Uses the task's result as an argument of another task, which holds it.
impl From<TaskFuture> for crate::graph::Argument {
    fn from(future: TaskFuture) -> Self {
        Self::Future(future)
    }
}
