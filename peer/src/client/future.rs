//! Futures: handles on results that may not be there yet.

use core::time::Duration;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{Notify, mpsc, oneshot};

use super::Shared;
use crate::channel::within;
use crate::event::{ClientEvent, Level, emit};
use crate::{Key, PeerError, RemoteError, Serialized, Value};

/// What is known of a task.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Status {
    /// It waits, or runs.
    Pending,
    /// Its result is there.
    Finished,
    /// It failed, or one that it depends on.
    Error(Arc<RemoteError>),
    /// It was cancelled.
    Cancelled {
        /// Why, as far as that was said.
        reason: String,
    },
    /// Its result is lost, with nobody to compute it again.
    Lost,
    /// The client has no connection any more.
    Disconnected {
        /// Why not.
        reason: String,
    },
}

impl Status {
    /// Whether nothing more is to be expected.
    pub const fn is_done(&self) -> bool {
        !matches!(self, Self::Pending)
    }

    /// What it is called, as Dask does.
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

/// What is known of a key, shared by all handles on it.
pub(super) struct Entry {
    pub(super) key: Key,
    /// How many marks came before it in the stream to the scheduler: what arrives
    /// before their answers is not about this.
    pub(super) marks: u64,
    shared: Arc<Shared>,
    state: Mutex<State>,
}

/// A status in little room: there may be millions, most of them pending or finished.
enum State {
    Pending(Vec<Watcher>),
    Finished,
    /// Another end.
    Ended(Box<Status>),
}

enum Watcher {
    One(oneshot::Sender<()>),
    /// The number of a future among others.
    Many(usize, mpsc::UnboundedSender<usize>),
    All(Weak<Remaining>),
}

impl Watcher {
    /// Nobody wants to know any more.
    fn is_closed(&self) -> bool {
        match self {
            Self::One(sender) => sender.is_closed(),
            Self::Many(_, sender) => sender.is_closed(),
            Self::All(remaining) => remaining.strong_count() == 0,
        }
    }

    fn tell(self, is_finished: bool) {
        // Whoever does not wait any more needs no answer.
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

/// How many futures are not finished of those that somebody waits for.
struct Remaining {
    count: AtomicUsize,
    /// None is left, or one of them failed.
    decided: Notify,
}

impl Remaining {
    fn tell(&self, is_finished: bool) {
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 || !is_finished {
            self.decided.notify_one();
        }
    }
}

/// Waits until all are finished, or one cannot be: woken once, however many there
/// are. Cancel safe.
pub(super) async fn all_finished(futures: impl Iterator<Item = &TaskFuture>) {
    let remaining = Arc::new(Remaining {
        // One more, so that it is not decided before all of them are watched.
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
            // Who waits goes on waiting.
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

    /// Ends it, unless it has failed or was cancelled: its result cannot be fetched any
    /// more.
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

    /// Calls the watcher when it is done, at once if it is.
    fn watch(&self, watcher: Watcher) {
        let mut state = self.shared.lock(&self.state);
        if let State::Pending(watchers) = &mut *state {
            if watchers.len() == watchers.capacity() {
                watchers.retain(|watcher| !watcher.is_closed());
            }
            if watchers.is_empty() {
                // Mostly there is one.
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

/// A handle on the result of a task, or on data that was scattered.
///
/// While there is one the cluster keeps the result; when the last is dropped it
/// may forget it. A clone is another handle on the same.
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

    /// What is known of it now.
    pub fn status(&self) -> Status {
        self.0.status()
    }

    /// Whether it is done, however it ended.
    pub fn is_done(&self) -> bool {
        self.status().is_done()
    }

    /// Waits until it is done, and says how it ended. Cancel safe.
    pub async fn done(&self) -> Status {
        loop {
            let status = self.status();
            if status.is_done() {
                return status;
            }
            let (sender, done) = oneshot::channel();
            self.0.watch(Watcher::One(sender));
            // Whatever happened, the status says it.
            let _ = done.await;
        }
    }

    /// Waits until the result is there, without fetching it. Cancel safe.
    ///
    /// # Errors
    ///
    /// If it will never be there: [`PeerError::Remote`] if the task failed,
    /// [`PeerError::Cancelled`], [`PeerError::Lost`] or
    /// [`PeerError::Disconnected`].
    pub async fn finished(&self) -> Result<(), PeerError> {
        let key = || self.key().clone();
        match self.done().await {
            Status::Finished | Status::Pending => Ok(()),
            Status::Error(error) => Err((*error).clone().into()),
            Status::Cancelled { reason } => Err(PeerError::Cancelled { key: key(), reason }),
            Status::Lost => Err(PeerError::Lost { key: key() }),
            Status::Disconnected { reason } => Err(PeerError::Disconnected { reason }),
        }
    }

    /// Waits for the result and fetches it. What has no counterpart in Rust stays
    /// [`Value::Serialized`].
    ///
    /// # Errors
    ///
    /// As [`finished`](Self::finished), and what goes wrong on the way.
    pub async fn result(&self) -> Result<Value, PeerError> {
        let serialized = self.serialized().await?;
        super::data::opened(serialized)
    }

    /// The same, for no longer than `after`.
    ///
    /// # Errors
    ///
    /// As [`result`](Self::result), and [`PeerError::Timeout`].
    pub async fn result_within(&self, after: Duration) -> Result<Value, PeerError> {
        within(after, "the result of a task", self.result()).await
    }

    /// Waits for the result and fetches it as it travels.
    ///
    /// # Errors
    ///
    /// As [`result`](Self::result).
    pub async fn serialized(&self) -> Result<Serialized, PeerError> {
        let shared = &self.0.shared;
        let mut all = shared
            .gather(core::slice::from_ref(self), shared.route())
            .await?;
        all.pop().ok_or(PeerError::Lost {
            key: self.key().clone(),
        })
    }
}

impl core::fmt::Debug for TaskFuture {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "<Future: {}, key: {}>", self.status().name(), self.key())
    }
}

/// Futures in the order in which they are done.
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

    /// The next that is done, however it ended; `None` when there are no more.
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

/// Handles are equal that are on the same result of the same client.
impl PartialEq for TaskFuture {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for TaskFuture {}

/// The result of the task as an argument of another, which holds it.
impl From<&TaskFuture> for crate::graph::Argument {
    fn from(future: &TaskFuture) -> Self {
        Self::Future(future.clone())
    }
}

/// The result of the task as an argument of another, which holds it.
impl From<TaskFuture> for crate::graph::Argument {
    fn from(future: TaskFuture) -> Self {
        Self::Future(future)
    }
}
