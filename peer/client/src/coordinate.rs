//! Objects in the scheduler that clients and tasks share by name: variables, queues,
//! locks, semaphores and events. They are shared with Python clients.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use daskwire_comm::runtime::{self, Instant, Task};
use daskwire_messages::protocol::Unknown;
use daskwire_messages::value::{IntoValue, ValueError, WrongType};
use daskwire_messages::{Release, Value};
use daskwire_rpc::RequestError;
use daskwire_rpc::channel::with_timeout;
use daskwire_rpc::pool::Deadlines;
use tokio::sync::watch;

use super::operation::Operation;
use super::request::{converted, key_of};
use super::shared::Shared;
use super::state::ClientInput;
use super::{Client, TaskFuture};

/// Time after which the scheduler revokes a lease that is not refreshed, as in Dask.
const LEASE: Duration = Duration::from_secs(30);

/// The time by which a wait may exceed the timeout of the caller, if the scheduler does not
/// answer. A timeout of zero needs a connection and a reply, too.
const MARGIN: Duration = Duration::from_secs(1);

/// The class of the exception that a scheduler raises when a wait times out.
pub(super) const TIMEOUT_ERROR: &str = "TimeoutError";

/// A value in a [`Variable`] or [`Queue`]: a future, or plain data that the scheduler
/// keeps: numbers, strings, bytes, lists and dictionaries of them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SharedValue {
    /// The result of a task, or scattered data, which workers keep.
    Future(TaskFuture),
    /// Plain data. Tuples and sets arrive as lists.
    Data(Value),
    /// A value in Rust that could not be converted, so that it cannot be sent.
    Unconverted(ValueError),
}

impl<T: IntoValue> From<T> for SharedValue {
    /// Converts a value. If that fails, the error is that of the call that sends it.
    fn from(value: T) -> Self {
        match value.into_value() {
            Ok(value) => Self::Data(value),
            Err(error) => Self::Unconverted(ValueError::of_conversion(&*error)),
        }
    }
}

impl From<TaskFuture> for SharedValue {
    fn from(future: TaskFuture) -> Self {
        Self::Future(future)
    }
}

impl From<&TaskFuture> for SharedValue {
    fn from(future: &TaskFuture) -> Self {
        Self::Future(future.clone())
    }
}

/// Converts plain data. The error is the value, if it is anything else.
impl TryFrom<SharedValue> for Value {
    type Error = SharedValue;

    fn try_from(value: SharedValue) -> Result<Self, SharedValue> {
        match value {
            SharedValue::Data(value) => Ok(value),
            other => Err(other),
        }
    }
}

/// A wait in the scheduler, with the timeout of the caller.
#[derive(Clone, Copy)]
struct Wait {
    /// The awaited event, as a noun phrase.
    what: &'static str,
    timeout: Option<Duration>,
    /// The time for the connection and for the reply, beyond the timeout.
    margin: Duration,
}

impl Wait {
    const fn new(what: &'static str, timeout: Option<Duration>) -> Self {
        Self {
            what,
            timeout,
            margin: MARGIN,
        }
    }

    /// The deadline for the connection. The request itself waits for a reply, which must not
    /// be lost.
    fn deadlines(&self) -> Deadlines {
        let connect = |timeout: Duration| runtime::later(timeout.max(self.margin / 2));
        Deadlines {
            connect: self.timeout.map(connect),
            reply: None,
        }
    }

    /// Waits for the reply at most until the timeout and the margin have passed.
    async fn limit<T>(
        &self,
        reply: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<T, RequestError> {
        let reply = Box::pin(reply);
        match self.timeout {
            Some(timeout) => {
                with_timeout(timeout.saturating_add(self.margin), self.what, reply).await
            }
            None => reply.await,
        }
    }
}

fn seconds(time: Option<Duration>) -> Value {
    Value::from(time.map(|time| time.as_secs_f64()))
}

impl Shared {
    /// Sends a request without a timeout, and converts the reply.
    async fn ask<T>(&self, message: Unknown) -> Result<T, RequestError>
    where
        T: TryFrom<Value>,
        T::Error: Into<WrongType>,
    {
        self.ask_until(message, Deadlines::default()).await
    }

    async fn ask_until<T>(&self, message: Unknown, deadlines: Deadlines) -> Result<T, RequestError>
    where
        T: TryFrom<Value>,
        T::Error: Into<WrongType>,
    {
        let request = message.into();
        let reply = self.reply_until(&request, deadlines).await?;
        converted(request.op(), reply)
    }

    /// Like [`ask`](Self::ask), for a request with a timeout in the scheduler.
    async fn ask_within<T>(&self, message: Unknown, wait: Wait) -> Result<T, RequestError>
    where
        T: TryFrom<Value>,
        T::Error: Into<WrongType>,
    {
        let message = message.field("timeout", seconds(wait.timeout));
        match (
            self.ask_until(message, wait.deadlines()).await,
            wait.timeout,
        ) {
            (Err(RequestError::Remote(error)), Some(timeout))
                if error.class.rsplit('.').next() == Some(TIMEOUT_ERROR) =>
            {
                Err(RequestError::Timeout {
                    waiting_for: wait.what,
                    timeout,
                })
            }
            (reply, _) => reply,
        }
    }

    /// Adds the fields of a value to a message.
    fn with_value(message: Unknown, value: &SharedValue) -> Result<Unknown, RequestError> {
        match value {
            SharedValue::Future(future) => Ok(message.field("key", future.key().to_value())),
            SharedValue::Data(value) => Ok(message.field("data", value.clone())),
            SharedValue::Unconverted(error) => Err(RequestError::unserializable(error.clone())),
        }
    }

    /// Reads a value that the scheduler stored. For a future, `received` makes the
    /// message that confirms that the client holds it.
    fn shared_value(
        self: &Arc<Self>,
        op: &str,
        record: &Value,
        received: impl FnOnce(Value) -> Unknown,
    ) -> Result<SharedValue, RequestError> {
        let value = record.get("value").cloned().unwrap_or_default();
        if record.get("type").and_then(Value::as_str) != Some("Future") {
            return Ok(SharedValue::Data(value));
        }
        let key = key_of(op, &value)?;
        let keys = [key.clone()];
        let mut futures = self.hold(ClientInput::Desire(key), &keys)?;
        let future = futures.pop().ok_or_else(|| self.disconnected())?;
        // Sent on the stream after the message that makes the client hold the key.
        self.tell(received(value))?;
        Ok(SharedValue::Future(future))
    }

    /// Reads a value that was removed from a queue.
    fn received(
        self: &Arc<Self>,
        queue: &str,
        record: &Value,
    ) -> Result<SharedValue, RequestError> {
        self.shared_value("queue_get", record, |key| {
            Unknown::new("queue-future-release")
                .field("name", queue)
                .field("key", key)
        })
    }
}

fn lock_late(late: &Mutex<VecDeque<SharedValue>>) -> MutexGuard<'_, VecDeque<SharedValue>> {
    // Nothing under the lock panics.
    late.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A variable in the scheduler, see [`Client::variable`].
#[derive(Clone, Debug)]
pub struct Variable {
    shared: Arc<Shared>,
    name: String,
}

impl Variable {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the value. The scheduler keeps the result of a future until the variable is
    /// set again or deleted.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Missing`] if the task of the future was cancelled or lost;
    /// * [`RequestError::Value`] if the value does not convert;
    /// * other errors if the scheduler does not answer.
    pub async fn set(&self, value: impl Into<SharedValue>) -> Result<(), RequestError> {
        let value = value.into();
        if let SharedValue::Future(future) = &value {
            self.shared.known("variable_set", future).await?;
        }
        let message = Unknown::new("variable_set").field("name", self.name.as_str());
        let mut message = Shared::with_value(message, &value)?;
        let release = self.shared.lock().state.release();
        if release.is_none_or(|release| release >= VARIABLE_TIMEOUT_SINCE) {
            // The scheduler's timeout for the task of the future to become known.
            let timeout = self.shared.options.timeout.min(KNOWN_TIMEOUT);
            message = message.field("timeout", timeout.as_secs_f64());
        }
        self.shared.ask::<Value>(message).await?;
        Ok(())
    }

    /// Waits until the variable is set, and returns its value. Takes at most a second longer
    /// than `timeout` if the scheduler does not answer.
    ///
    /// Cancel safe. Until the variable is set, or the client ends, the request of a dropped
    /// future occupies a comm.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Timeout`] if it is not set in time;
    /// * other errors if the scheduler cannot be reached in time.
    pub async fn get(&self, timeout: Option<Duration>) -> Result<SharedValue, RequestError> {
        self.get_within(Wait::new("a variable to be set", timeout))
            .await
    }

    async fn get_within(&self, wait: Wait) -> Result<SharedValue, RequestError> {
        const OP: &str = "variable_get";
        let message = Unknown::new(OP)
            .field("name", self.name.as_str())
            .field("client", &*self.shared.registered_id());
        let variable = self.clone();
        // The scheduler keeps the result until the confirmation, also if it replies after the
        // caller is dropped.
        let getting = async move {
            let shared = &variable.shared;
            let record: Value = shared.ask_within(message, wait).await?;
            let token = record.get("token").cloned().unwrap_or_default();
            shared.shared_value(OP, &record, |key| {
                Unknown::new("variable-future-received-confirm")
                    .field("name", variable.name.as_str())
                    .field("key", key)
                    .field("token", token)
            })
        };
        wait.limit(self.shared.run_to_end(getting, drop)).await
    }

    /// Deletes the variable, for all clients.
    ///
    /// A variable that has a future is set to `None` before, which a client that waits for the
    /// variable may read. A client that is reading the future at this time may get one that was
    /// cancelled. Not cancel safe: the variable may stay, set to `None`.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer, or the client is not connected.
    pub async fn delete(self) -> Result<(), RequestError> {
        Box::pin(self.delete_unboxed()).await
    }

    async fn delete_unboxed(self) -> Result<(), RequestError> {
        // To delete a future, the scheduler waits until all clients that have read it confirm
        // that. Meanwhile it reads nothing else from this client, not even a confirmation.
        let wait = Wait {
            margin: self.shared.options.timeout,
            ..Wait::new("the value of a variable", Some(AT_ONCE))
        };
        match self.get_within(wait).await {
            Ok(SharedValue::Future(future)) => {
                drop(future);
                self.shared.settle::<RequestError>().await?;
                self.set(Value::None).await?;
            }
            Ok(_) => {}
            // The scheduler has answered that the variable is not set.
            Err(RequestError::Timeout { timeout, .. }) if timeout == AT_ONCE => {}
            Err(error) => return Err(error),
        }
        let message = Unknown::new("variable_delete").field("name", self.name.as_str());
        self.shared.tell(message)?;
        self.shared.settle().await
    }
}

/// The timeout of a request that is answered at once, or not at all.
const AT_ONCE: Duration = Duration::from_millis(1);

/// Maximum time in which the task of a future in a variable must become known.
const KNOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// The first release whose `variable_set` takes a timeout.
const VARIABLE_TIMEOUT_SINCE: Release = Release::new(2024, 12, 0);

/// A queue in the scheduler, see [`Client::queue`].
///
/// The scheduler counts its users. It deletes the queue when all have
/// [closed](Self::close) it, and never otherwise.
#[derive(Debug)]
pub struct Queue {
    shared: Arc<Shared>,
    name: String,
    /// Values that arrived after their callers had stopped to wait.
    late: Arc<Mutex<VecDeque<SharedValue>>>,
}

impl Queue {
    pub(super) fn new(shared: &Arc<Shared>, name: String) -> Self {
        Self {
            shared: Arc::clone(shared),
            name,
            late: Arc::default(),
        }
    }

    /// The number of values that arrived too late for their callers.
    #[cfg(test)]
    pub(super) fn late_count(&self) -> usize {
        lock_late(&self.late).len()
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a value; waits while the queue is full, and at most a second longer than `timeout`
    /// if the scheduler does not answer.
    ///
    /// Not cancel safe: the value may be added after the future was dropped.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Timeout`] if the queue is full for too long. If the scheduler has not
    ///   answered, it may add the value later;
    /// * [`RequestError::Missing`] if the task of the future was cancelled or lost;
    /// * [`RequestError::Value`] if the value does not convert;
    /// * other errors if the scheduler cannot be reached in time.
    pub async fn put(
        &self,
        value: impl Into<SharedValue>,
        timeout: Option<Duration>,
    ) -> Result<(), RequestError> {
        let value = value.into();
        if let SharedValue::Future(future) = &value {
            self.shared.known("queue_put", future).await?;
        }
        let message = Unknown::new("queue_put").field("name", self.name.as_str());
        let message = Shared::with_value(message, &value)?;
        let wait = Wait::new("room in a queue", timeout);
        let put = self.shared.ask_within::<Value>(message, wait);
        wait.limit(put).await?;
        Ok(())
    }

    /// Removes the oldest value; waits while the queue is empty, and at most a second longer
    /// than `timeout` if the scheduler does not answer.
    ///
    /// Cancel safe: a value that arrives after the future was dropped, or after the timeout, is
    /// returned by the next call on this object, and is lost if there is none.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Timeout`] if the queue is empty for too long;
    /// * other errors if the scheduler cannot be reached in time.
    pub async fn get(&self, timeout: Option<Duration>) -> Result<SharedValue, RequestError> {
        if let Some(value) = lock_late(&self.late).pop_front() {
            return Ok(value);
        }
        let wait = Wait::new("a value in a queue", timeout);
        let message = Unknown::new("queue_get").field("name", self.name.as_str());
        let (shared, name) = (Arc::clone(&self.shared), self.name.clone());
        let getting = async move {
            let record: Value = shared.ask_within(message, wait).await?;
            shared.received(&name, &record)
        };
        let late = Arc::clone(&self.late);
        let keep = move |value| lock_late(&late).push_back(value);
        wait.limit(self.shared.run_to_end(getting, keep)).await
    }

    /// Removes all values that are in the queue. Not cancel safe: the values may be removed
    /// after the future was dropped.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn get_all(&self) -> Result<Vec<SharedValue>, RequestError> {
        let message = Unknown::new("queue_get")
            .field("name", self.name.as_str())
            .field("batch", true);
        let records: Vec<Value> = self.shared.ask(message).await?;
        let mut values: Vec<SharedValue> = lock_late(&self.late).drain(..).collect();
        for record in &records {
            values.push(self.shared.received(&self.name, record)?);
        }
        Ok(values)
    }

    /// Asks for the number of values. `qsize` in Dask.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn len(&self) -> Result<u64, RequestError> {
        let message = Unknown::new("queue_qsize").field("name", self.name.as_str());
        self.shared.ask(message).await
    }

    /// Whether the queue is empty.
    ///
    /// # Errors
    ///
    /// As [`len`](Self::len).
    pub async fn is_empty(&self) -> Result<bool, RequestError> {
        Ok(self.len().await? == 0)
    }

    /// Ends this use of the queue. The last one deletes it.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the client is not connected.
    pub async fn close(self) -> Result<(), RequestError> {
        let message = Unknown::new("queue_release").field("name", self.name.as_str());
        self.shared.tell(message)?;
        self.shared.settle().await
    }
}

/// A semaphore in the scheduler, see [`Client::semaphore`].
#[derive(Clone, Debug)]
pub struct Semaphore(Arc<SemaphoreInner>);

#[derive(Debug)]
struct SemaphoreInner {
    shared: Arc<Shared>,
    name: String,
    /// The leases of this client that are refreshed.
    leases: Mutex<Vec<HeldLease>>,
    /// Locked during requests that refresh or release leases: a scheduler that reads a refresh
    /// after the release grants the lease again.
    requests: tokio::sync::RwLock<()>,
    /// The task that refreshes the leases; it ends with the semaphore.
    refreshing: Mutex<Option<Task<()>>>,
}

/// A lease that is refreshed.
#[derive(Debug)]
struct HeldLease {
    id: String,
    /// The time until which the scheduler keeps the lease at least; `None` once it is revoked.
    until: watch::Sender<Option<Instant>>,
}

impl HeldLease {
    fn is_valid(&self) -> bool {
        self.until
            .borrow()
            .is_some_and(|until| until > runtime::now())
    }
}

impl Drop for SemaphoreInner {
    fn drop(&mut self) {
        if let Some(task) = self.shared.panic_flag.check(self.refreshing.get_mut()) {
            task.abort();
        }
    }
}

impl SemaphoreInner {
    /// Refreshes the leases periodically, so that the scheduler does not revoke them.
    async fn refresh(shared: Arc<Shared>, inner: std::sync::Weak<Self>) {
        loop {
            runtime::sleep(LEASE / 5).await;
            let Some(inner) = inner.upgrade() else {
                return;
            };
            let _requesting = inner.requests.write().await;
            // Errors are ignored: leases are refreshed five times before one expires.
            let _ = inner.refresh_once(&shared).await;
        }
    }

    /// Refreshes the leases that the scheduler has not revoked: it would grant the others again,
    /// which other clients may have meanwhile.
    async fn refresh_once(&self, shared: &Shared) -> Result<(), RequestError> {
        const WHAT: &str = "the scheduler to refresh leases";
        if self.valid_leases().is_empty() {
            return Ok(());
        }
        // A scheduler that was restarted knows no lease, nor one that has closed the semaphore.
        let count = Unknown::new("semaphore_value").field("name", self.name.as_str());
        let count: Value = shared.call_with_timeout(LEASE, WHAT, count).await?;
        if matches!(count, Value::Int(0)) {
            self.revoke(|_| true);
        }
        let leases = self.valid_leases();
        if leases.is_empty() {
            return Ok(());
        }
        let until = runtime::now() + LEASE;
        let message = Unknown::new("semaphore_refresh_leases")
            .field("name", self.name.as_str())
            .field("lease_ids", Value::list(leases.iter().map(String::as_str)));
        let _: Value = shared.call_with_timeout(LEASE, WHAT, message).await?;
        for lease in self.lock_leases().iter() {
            if leases.contains(&lease.id) && lease.is_valid() {
                lease.until.send_replace(Some(until));
            }
        }
        Ok(())
    }

    /// The ids of the leases that are valid. The others are revoked.
    fn valid_leases(&self) -> Vec<String> {
        self.revoke(|lease| !lease.is_valid());
        let leases = self.lock_leases();
        leases.iter().map(|lease| lease.id.clone()).collect()
    }

    /// Notes that the scheduler has revoked leases, which are not refreshed any more.
    fn revoke(&self, is_revoked: impl Fn(&HeldLease) -> bool) {
        let mut leases = self.lock_leases();
        for lease in leases.extract_if(.., |lease| is_revoked(lease)) {
            lease.until.send_replace(None);
        }
    }

    /// Forgets a lease, and releases it.
    async fn release(&self, lease: &str) -> Result<(), RequestError> {
        self.lock_leases().retain(|other| other.id != lease);
        let message = Unknown::new("semaphore_release")
            .field("name", self.name.as_str())
            .field("lease_id", lease);
        let _requesting = self.requests.read().await;
        let _: Value = self
            .shared
            .call("the scheduler to release a lease", message)
            .await?;
        Ok(())
    }

    fn lock_leases(&self) -> MutexGuard<'_, Vec<HeldLease>> {
        self.shared.panic_flag.check(self.leases.lock())
    }
}

impl Semaphore {
    fn new(shared: &Arc<Shared>, name: String) -> Self {
        Self(Arc::new(SemaphoreInner {
            shared: Arc::clone(shared),
            name,
            leases: Mutex::default(),
            requests: tokio::sync::RwLock::default(),
            refreshing: Mutex::default(),
        }))
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Waits for a lease, at most a second longer than `timeout` if the scheduler does not
    /// answer. Cancel safe: a lease that is granted after the future was dropped is released.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Timeout`] if no lease is granted in time;
    /// * other errors if the scheduler cannot be reached in time.
    pub async fn acquire(&self, timeout: Option<Duration>) -> Result<Lease, RequestError> {
        let wait = Wait::new("a lease of a semaphore", timeout);
        let id = daskwire_messages::key::identifier();
        let message = Unknown::new("semaphore_acquire")
            .field("name", self.name())
            .field("timeout", seconds(timeout))
            .field("lease_id", id.as_str());
        let semaphore = self.clone();
        let acquiring = async move {
            let asked = semaphore.0.shared.ask_until(message, wait.deadlines());
            let is_granted: bool = asked.await?;
            Ok(is_granted.then(|| semaphore.granted(id)))
        };
        let lease = wait.limit(self.0.shared.run_to_end(acquiring, drop));
        lease.await?.ok_or_else(|| RequestError::Timeout {
            waiting_for: wait.what,
            timeout: timeout.unwrap_or_default(),
        })
    }

    /// The lease with this id, which is refreshed from now on.
    fn granted(self, id: String) -> Lease {
        let inner = &self.0;
        let (sender, until) = watch::channel(Some(runtime::now() + LEASE));
        inner.lock_leases().push(HeldLease {
            id: id.clone(),
            until: sender,
        });
        let mut refreshing = inner.shared.panic_flag.check(inner.refreshing.lock());
        if refreshing.is_none() {
            let shared = Arc::clone(&inner.shared);
            let work = SemaphoreInner::refresh(shared, Arc::downgrade(inner));
            *refreshing = Some(inner.shared.runtime.spawn(work));
        }
        drop(refreshing);
        Lease {
            semaphore: self,
            id,
            until,
        }
    }

    /// Asks for the number of leases that all clients have. `get_value` in Dask.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn lease_count(&self) -> Result<u64, RequestError> {
        let message = Unknown::new("semaphore_value").field("name", self.name());
        self.0.shared.ask(message).await
    }

    /// Deletes the semaphore, for all clients.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn close(self) -> Result<(), RequestError> {
        let message = Unknown::new("semaphore_close").field("name", self.name());
        self.0.shared.ask::<Value>(message).await?;
        Ok(())
    }
}

/// A lease of a [`Semaphore`] or [`Lock`].
///
/// The client refreshes the lease until it is released. Dropping the lease releases it
/// in the background; [`release`](Self::release) and [`Client::close`] wait for the reply.
///
/// The scheduler revokes a lease that was not refreshed for 30 seconds, because this process or
/// the network stood still, or the runtime of the client has ended; then others may get it.
/// It also revokes all leases when it is restarted, or the semaphore is closed. A holder for
/// whom that matters waits for [`revoked`](Self::revoked) beside its work:
///
/// ```no_run
/// # async fn work() {}
/// # async fn example(client: &daskwire_peer::Client) -> Result<(), daskwire_peer::Error> {
/// let lease = client.lock("printer").await?.acquire(None).await?;
/// tokio::select! {
///     () = work() => lease.release().await?,
///     () = lease.revoked() => eprintln!("another client may have the lock now"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a lease is released when it is dropped"]
pub struct Lease {
    semaphore: Semaphore,
    /// The id of the lease; empty after the release.
    id: String,
    /// See [`HeldLease`].
    until: watch::Receiver<Option<Instant>>,
}

impl Lease {
    /// Whether the scheduler has revoked the lease, or may have, because it was not refreshed
    /// in time. A revoked lease stays revoked.
    pub fn is_revoked(&self) -> bool {
        let until = *self.until.borrow();
        until.is_none_or(|until| until <= runtime::now())
    }

    /// Waits until the scheduler has revoked the lease, or may have, because it was not
    /// refreshed in time; at least 30 seconds after the last refresh. That a semaphore was
    /// closed or its scheduler restarted is noticed with the next refresh, after 6 seconds. Cancel
    /// safe.
    pub async fn revoked(&self) {
        let mut revoked = self.until.clone();
        loop {
            let Some(until) = *revoked.borrow_and_update() else {
                return;
            };
            tokio::select! {
                changed = revoked.changed(), if revoked.has_changed().is_ok() => drop(changed),
                () = runtime::sleep_until(until) => {
                    // It may have been refreshed just now.
                    if self.is_revoked() {
                        return;
                    }
                }
            }
        }
    }

    /// Releases the lease. Cancel safe: a lease whose release was not confirmed is released
    /// in the background.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn release(mut self) -> Result<(), RequestError> {
        let id = self.id.as_str();
        self.semaphore.0.release(id).await?;
        self.id.clear();
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.id.is_empty() {
            let (inner, id) = (Arc::clone(&self.semaphore.0), core::mem::take(&mut self.id));
            let releasing = async move {
                // An error is ignored: the lease expires.
                let _ = inner.release(&id).await;
            };
            self.semaphore.0.shared.finish(releasing);
        }
    }
}

/// A lock in the scheduler, see [`Client::lock`].
#[derive(Clone, Debug)]
pub struct Lock(Semaphore);

impl Lock {
    /// The lock with this name, which the scheduler knows already.
    #[cfg(test)]
    pub(super) fn new(shared: &Arc<Shared>, name: String) -> Self {
        Self(Semaphore::new(shared, name))
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Waits for the lock, which is free again when the lease is released or dropped.
    /// Cancel safe, as [`Semaphore::acquire`].
    ///
    /// # Errors
    ///
    /// As [`Semaphore::acquire`].
    pub async fn acquire(&self, timeout: Option<Duration>) -> Result<Lease, RequestError> {
        self.0.acquire(timeout).await
    }

    /// Asks whether a client has the lock. `locked` in Dask.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn is_locked(&self) -> Result<bool, RequestError> {
        Ok(self.0.lease_count().await? > 0)
    }
}

/// An event in the scheduler: a flag that clients and tasks can wait for. See
/// [`Client::event`].
#[derive(Clone, Debug)]
pub struct Event {
    shared: Arc<Shared>,
    name: String,
}

impl Event {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    async fn ask<T>(&self, op: &str) -> Result<T, RequestError>
    where
        T: TryFrom<Value>,
        T::Error: Into<WrongType>,
    {
        let message = Unknown::new(op).field("name", self.name.as_str());
        self.shared.ask(message).await
    }

    /// Waits until the event is set. Returns false if that takes longer than `timeout`.
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Timeout`] if the scheduler does not answer within a second after
    ///   `timeout`;
    /// * other errors if the scheduler cannot be reached in time.
    pub async fn wait(&self, timeout: Option<Duration>) -> Result<bool, RequestError> {
        let message = Unknown::new("event_wait")
            .field("name", self.name.as_str())
            .field("timeout", seconds(timeout));
        let wait = Wait::new("an event to be set", timeout);
        let waiting = self.shared.ask_until(message, wait.deadlines());
        wait.limit(waiting).await
    }

    /// Sets the event, which wakes all waiters.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn set(&self) -> Result<(), RequestError> {
        self.ask::<Value>("event_set").await?;
        Ok(())
    }

    /// Unsets the event.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn clear(&self) -> Result<(), RequestError> {
        self.ask::<Value>("event_clear").await?;
        Ok(())
    }

    /// Asks whether the event is set.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn is_set(&self) -> Result<bool, RequestError> {
        self.ask("event_is_set").await
    }
}

impl Client {
    /// Returns the variable with this name, which all clients share. It need not exist.
    ///
    /// ```no_run
    /// # async fn example(client: &daskwire_peer::Client) -> Result<(), daskwire_peer::Error> {
    /// let rate = client.variable("rate")?;
    /// rate.set(0.25).await?;
    /// println!("{:?}", rate.get(None).await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::Unsupported`] before 2022.1.0.
    pub fn variable(&self, name: impl Into<String>) -> Result<Variable, RequestError> {
        self.shared.needs(Operation::VARIABLES)?;
        Ok(Variable {
            shared: Arc::clone(&self.shared),
            name: name.into(),
        })
    }

    /// Opens the queue with this name, which all clients share. Creates it if it does not
    /// exist, for at most `max_len` values, or any number.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Unsupported`] before 2022.1.0;
    /// * other errors if the scheduler does not answer.
    pub async fn queue(
        &self,
        name: impl Into<String>,
        max_len: Option<u64>,
    ) -> Result<Queue, RequestError> {
        self.shared.needs(Operation::QUEUES)?;
        let name = name.into();
        let message = Unknown::new("queue_create")
            .field("name", name.as_str())
            .field("maxsize", max_len.unwrap_or(0));
        self.shared.ask::<Value>(message).await?;
        Ok(Queue::new(&self.shared, name))
    }

    /// Opens the semaphore with this name, which all clients share. Creates it if it does
    /// not exist, with at most `max_leases` leases at once.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Unsupported`] before 2024.8.0;
    /// * [`RequestError::Remote`] if it exists with another number of leases;
    /// * other errors if the scheduler does not answer.
    pub async fn semaphore(
        &self,
        name: impl Into<String>,
        max_leases: u64,
    ) -> Result<Semaphore, RequestError> {
        self.shared.needs(Operation::SEMAPHORES)?;
        self.register_semaphore(name.into(), max_leases).await
    }

    async fn register_semaphore(
        &self,
        name: String,
        max_leases: u64,
    ) -> Result<Semaphore, RequestError> {
        let message = Unknown::new("semaphore_register")
            .field("name", name.as_str())
            .field("max_leases", max_leases)
            .field("lease_timeout", LEASE.as_secs_f64());
        self.shared.ask::<Value>(message).await?;
        Ok(Semaphore::new(&self.shared, name))
    }

    /// Opens the lock with this name, which all clients share: a semaphore with one
    /// lease.
    ///
    /// # Errors
    ///
    /// As [`semaphore`](Self::semaphore).
    pub async fn lock(&self, name: impl Into<String>) -> Result<Lock, RequestError> {
        self.shared.needs(Operation::LOCKS)?;
        Ok(Lock(self.register_semaphore(name.into(), 1).await?))
    }

    /// Returns the event with this name, which all clients share. It is not set at first.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unsupported`] before 2022.1.0.
    pub fn event(&self, name: impl Into<String>) -> Result<Event, RequestError> {
        self.shared.needs(Operation::EVENTS)?;
        Ok(Event {
            shared: Arc::clone(&self.shared),
            name: name.into(),
        })
    }
}
