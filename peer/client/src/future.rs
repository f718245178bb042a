//! Futures: handles on results that may not be available yet.

use core::time::Duration;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use daskwire_comm::{BoxFuture, runtime};
use daskwire_messages::graph::{Argument, Arguments, HeldKey};
use daskwire_messages::protocol::Keys;
use daskwire_messages::{Key, RemoteError, Serialized, Value};
use daskwire_rpc::RequestError;
use tokio::sync::{Notify, mpsc, oneshot};

use super::shared::Shared;
use super::state::{ClientInput, Hold, Status};
use super::{Disconnected, TaskError};

/// Notifies a task that waits for a hold.
pub(super) enum Watcher {
    One(oneshot::Sender<()>),
    /// The index of a future among others.
    Many(usize, mpsc::UnboundedSender<usize>),
    All(Weak<Remaining>),
}

impl Watcher {
    /// Whether the waiting task has been dropped.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::One(sender) => sender.is_closed(),
            Self::Many(_, sender) => sender.is_closed(),
            Self::All(remaining) => remaining.strong_count() == 0,
        }
    }

    /// Notifies the task, if it still waits.
    pub(super) fn notify(self, is_finished: bool) {
        match self {
            Self::One(sender) => drop(sender.send(())),
            Self::Many(index, sender) => drop(sender.send(index)),
            Self::All(remaining) => {
                if let Some(remaining) = remaining.upgrade() {
                    remaining.notify(is_finished);
                }
            }
        }
    }
}

/// The unfinished futures that a task waits for.
pub(super) struct Remaining {
    count: AtomicUsize,
    /// Notified when all futures are finished, or one has failed.
    decided: Notify,
}

impl Remaining {
    fn notify(&self, is_finished: bool) {
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 || !is_finished {
            self.decided.notify_one();
        }
    }
}

/// Waits until all futures are finished or one has failed. Wakes the waiting task only
/// once. Cancel safe.
pub(super) async fn all_finished(futures: impl Iterator<Item = &TaskFuture>) {
    let remaining = Arc::new(Remaining {
        // One more than the futures, so that the count is not zero before all are
        // watched.
        count: AtomicUsize::new(1),
        decided: Notify::new(),
    });
    for future in futures {
        remaining.count.fetch_add(1, Ordering::AcqRel);
        future.watch(Watcher::All(Arc::downgrade(&remaining)));
    }
    remaining.notify(true);
    remaining.decided.notified().await;
}

/// A handle on the result of a task, or on scattered data.
///
/// The cluster keeps the result while there are handles on it, and may forget it
/// when the last is dropped. Clones are handles on the same result. Awaiting a handle
/// fetches the result:
///
/// ```no_run
/// # async fn example(client: &daskwire_peer::Client) -> Result<(), daskwire_peer::Error> {
/// let sum = client.submit("operator.add", (1, 2))?;
/// assert_eq!(i64::try_from(sum.await?)?, 3);
/// # Ok(())
/// # }
/// ```
pub struct TaskFuture {
    hold: Hold,
    shared: Arc<Shared>,
}

impl Clone for TaskFuture {
    fn clone(&self) -> Self {
        self.shared.handle(ClientInput::Clone(self.hold.clone()));
        Self::new(self.hold.clone(), Arc::clone(&self.shared))
    }
}

impl Drop for TaskFuture {
    fn drop(&mut self) {
        self.shared.release_hold(&self.hold);
    }
}

impl TaskFuture {
    /// Returns a handle that the state machine has counted.
    pub(super) const fn new(hold: Hold, shared: Arc<Shared>) -> Self {
        Self { hold, shared }
    }

    pub(super) fn hold(&self) -> &Hold {
        &self.hold
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn watch(&self, watcher: Watcher) {
        self.shared.watch(&self.hold, watcher);
    }

    /// The key of the result.
    pub fn key(&self) -> &Key {
        self.hold.key()
    }

    /// The current status of the task.
    pub fn status(&self) -> Status {
        self.shared.status(&self.hold)
    }

    /// Whether the task is done, successfully or not.
    pub fn is_done(&self) -> bool {
        self.status().is_done()
    }

    /// Python's name of the result's type, such as `int` or `pandas.DataFrame`; `None`
    /// before the scheduler has reported it, and for scattered data.
    pub fn type_name(&self) -> Option<Arc<str>> {
        self.shared.type_name(&self.hold)
    }

    /// Cancels the task, unless other clients want it too; see
    /// [`Client::cancel`](super::Client::cancel).
    ///
    /// # Errors
    ///
    /// [`Disconnected`] if the client is not connected.
    pub fn cancel(&self) -> Result<(), Disconnected> {
        self.shared.request(ClientInput::Cancel {
            holds: vec![self.hold.clone()],
            force: false,
        })
    }

    /// Retries the task if it failed, the failed tasks that it depends on, and the failed tasks
    /// that depend on any of these.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn retry(&self) -> Result<(), RequestError> {
        self.shared.retry(Keys(vec![self.key().clone()])).await
    }

    /// Waits until the task is done, and returns its exception; `None` if the task
    /// succeeded. Cancel safe.
    ///
    /// # Errors
    ///
    /// As [`finished`](Self::finished), except [`TaskError::Failed`].
    pub async fn exception(&self) -> Result<Option<Arc<RemoteError>>, TaskError> {
        match self.finished().await {
            Ok(()) => Ok(None),
            Err(TaskError::Failed { error, .. }) => Ok(Some(error)),
            Err(error) => Err(error),
        }
    }

    /// Waits until the task is done, and returns its status. Cancel safe.
    pub async fn done(&self) -> Status {
        loop {
            let status = self.status();
            if status.is_done() {
                return status;
            }
            let (sender, done) = oneshot::channel();
            self.watch(Watcher::One(sender));
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
            Status::Disconnected { reason } => Err(TaskError::Disconnected {
                key: key(),
                reason,
                is_reconnecting: false,
            }),
        }
    }

    /// Waits for the result and fetches it. An object without a counterpart in
    /// Rust stays [`Value::Serialized`].
    ///
    /// # Errors
    ///
    /// As [`finished`](Self::finished), and [`TaskError::Request`] or
    /// [`TaskError::Value`] if the result cannot be fetched or deserialized.
    pub async fn result(&self) -> Result<Value, TaskError> {
        let serialized = self.serialized().await?;
        super::data::opened(self.key(), serialized, &mut 0)
    }

    /// Waits for the result, fetches it, and converts it into any type that
    /// implements `serde::Deserialize`, as [`Value::deserialize`] does. Cancel
    /// safe.
    ///
    /// ```no_run
    /// # use daskwire_peer::client::{Client, TaskError};
    /// # async fn example(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
    /// #[derive(serde::Deserialize)]
    /// struct Usage {
    ///     total: u64,
    ///     free: u64,
    /// }
    ///
    /// let usage: Usage = client.submit("shutil.disk_usage", "/")?.deserialize().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`result`](Self::result), and [`TaskError::Value`] if the result is of
    /// another type.
    #[cfg(feature = "serde")]
    pub async fn deserialize<T: serde::de::DeserializeOwned>(&self) -> Result<T, TaskError> {
        let result = Value::Serialized(self.serialized().await?);
        result.deserialize().map_err(|error| TaskError::Value {
            key: self.key().clone(),
            error: error.into(),
        })
    }

    /// Like [`result`](Self::result), with a timeout.
    ///
    /// # Errors
    ///
    /// As [`result`](Self::result), and [`TaskError::Timeout`].
    pub async fn result_within(&self, timeout: Duration) -> Result<Value, TaskError> {
        match runtime::timeout(timeout, self.result()).await {
            Ok(result) => result,
            Err(_) => Err(TaskError::Timeout {
                key: self.key().clone(),
                timeout,
            }),
        }
    }

    /// Like [`result`](Self::result), without deserializing.
    ///
    /// # Errors
    ///
    /// As [`result`](Self::result).
    pub async fn serialized(&self) -> Result<Serialized, TaskError> {
        let shared = &self.shared;
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

/// Waits for the result and fetches it, as [`TaskFuture::result`].
impl IntoFuture for TaskFuture {
    type Output = Result<Value, TaskError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.result().await })
    }
}

/// Waits for the result and fetches it, as [`TaskFuture::result`].
impl<'f> IntoFuture for &'f TaskFuture {
    type Output = Result<Value, TaskError>;
    type IntoFuture = BoxFuture<'f, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.result())
    }
}

/// Handles on the same result of the same client are equal.
impl PartialEq for TaskFuture {
    fn eq(&self, other: &Self) -> bool {
        self.hold == other.hold && Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for TaskFuture {}

/// The key of the result.
impl From<&TaskFuture> for Key {
    fn from(future: &TaskFuture) -> Self {
        future.key().clone()
    }
}

/// Uses the task's result as an argument of another task, which holds it.
impl From<&TaskFuture> for Argument {
    fn from(future: &TaskFuture) -> Self {
        Self::from(future.clone())
    }
}

/// The task's result as the only argument of a call.
impl Arguments for &TaskFuture {
    fn into_arguments(self) -> Vec<Argument> {
        vec![self.into()]
    }
}

/// The task's result as the only argument of a call.
impl Arguments for TaskFuture {
    fn into_arguments(self) -> Vec<Argument> {
        vec![self.into()]
    }
}

/// Uses the task's result as an argument of another task, which holds it.
impl From<TaskFuture> for Argument {
    fn from(future: TaskFuture) -> Self {
        Self::Held(HeldKey::new(future.key().clone(), future))
    }
}
