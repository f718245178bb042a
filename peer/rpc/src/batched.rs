//! Streams of messages that are sent in batches.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use daskwire_comm::runtime::{self, Task};
use daskwire_messages::protocol::{Field, ProtocolError, Source};
use std::sync::{Arc, OnceLock};

use tokio::sync::{Notify, mpsc, oneshot};

use crate::RequestError;
use crate::channel::Sender;

/// Default limit of the bytes of messages queued for one peer.
pub const MAX_QUEUED_LEN: usize = 256 << 20;

/// Maximum number of messages in a batch. Other tasks of the thread wait until a batch is encoded,
/// which takes a millisecond or two.
const BATCH: usize = 1_000;

/// Number of bytes at which a batch is full.
const BATCH_LEN: usize = 32 << 20;

/// Timeout for writing the queued messages once the writer is dropped.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// The sending half of a stream. Messages sent within an interval form one batch; the
/// first message after an idle interval is sent at once, as are messages before a flush.
#[derive(Debug)]
pub struct BatchSender<T> {
    messages: mpsc::UnboundedSender<Queued<T>>,
    queue: Arc<OpenGuard>,
}

impl<T> Clone for BatchSender<T> {
    fn clone(&self) -> Self {
        Self {
            messages: self.messages.clone(),
            queue: Arc::clone(&self.queue),
        }
    }
}

/// State shared by both ends of a queue.
#[derive(Debug)]
struct Queue {
    limit: usize,
    /// Bytes of unwritten messages.
    len: AtomicUsize,
    has_overflowed: AtomicBool,
    overflow: Notify,
    /// Whether the writer has ended, so that queued messages are dropped.
    has_ended: AtomicBool,
    /// The error that has ended the writer.
    failure: OnceLock<RequestError>,
    /// Notified when the last sender is dropped.
    closing: Notify,
    /// Notified when messages were written, or when the writer has ended.
    written: Notify,
    wants_drained: AtomicBool,
    drained: Notify,
    /// Whether the queued messages are to be written without waiting for the interval.
    is_urgent: AtomicBool,
    /// Notified when `is_urgent` is set.
    urgent: Notify,
    /// Notified when the owner of the writer is dropped.
    orphaned: Notify,
}

impl Queue {
    /// Subtracts `len` bytes, which have been written.
    fn remove(&self, len: usize) {
        let left = self.len.fetch_sub(len, Ordering::AcqRel) - len;
        self.written.notify_waiters();
        if left == 0 && self.wants_drained.swap(false, Ordering::AcqRel) {
            self.drained.notify_one();
        }
    }
}

/// A queued message, and the bytes that it counts for.
#[derive(Debug)]
struct Queued<T> {
    message: T,
    len: usize,
}

impl<T: Field> Field for Queued<T> {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        let message = T::read(source)?;
        Ok(Self { message, len: 0 })
    }

    fn write<'a>(
        &'a self,
        to: &mut daskwire::message::MessageBuilder<'_, 'a>,
    ) -> Result<(), daskwire::message::BuildError> {
        self.message.write(to)
    }
}

/// A handle on the task that writes a stream. The task ends at most 10 seconds
/// after the handle is dropped.
#[derive(Debug)]
pub struct BatchWriter {
    /// The handle of the task; `None` after its result has been taken.
    task: Option<Task<()>>,
    failure: Option<oneshot::Receiver<RequestError>>,
    queue: Arc<Queue>,
}

impl Drop for BatchWriter {
    fn drop(&mut self) {
        self.queue.orphaned.notify_one();
    }
}

/// A guard that wakes the tasks that wait for the writer when it is dropped, also by a
/// panic.
struct EndGuard(Arc<Queue>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Release);
        self.0.written.notify_waiters();
    }
}

/// Notifies when the last sender is dropped.
#[derive(Debug)]
struct OpenGuard(Arc<Queue>);

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.closing.notify_one();
    }
}

/// The backlog of a stream; does not keep the stream open.
#[derive(Clone, Debug)]
pub struct Backlog(Arc<Queue>);

impl Backlog {
    /// Bytes of unwritten messages.
    pub fn queued_len(&self) -> usize {
        self.0.len.load(Ordering::Acquire)
    }

    /// Whether the limit was exceeded.
    pub fn has_overflowed(&self) -> bool {
        self.0.has_overflowed.load(Ordering::Acquire)
    }

    /// Waits until at most a quarter of the limit is queued. The peer's next request is
    /// answered only then, so a peer that does not read its replies gets no more of them.
    /// Cancel safe.
    pub async fn has_room(&self) {
        loop {
            let mut written = core::pin::pin!(self.0.written.notified());
            written.as_mut().enable();
            let is_over = self.0.has_ended.load(Ordering::Acquire);
            if is_over || self.0.len.load(Ordering::Acquire) <= self.0.limit / 4 {
                return;
            }
            written.await;
        }
    }

    /// Waits until the last sender is dropped, though messages may still be
    /// queued. Supports one waiter. Cancel safe.
    pub async fn closing(&self) {
        self.0.closing.notified().await;
    }

    /// Waits until everything has been written, once for each call of
    /// [`BatchSender::ask_drained`]. Cancel safe.
    pub async fn drained(&self) {
        self.0.drained.notified().await;
    }
}

impl<T: Field + Send + Sync + 'static> BatchSender<T> {
    /// Writes to `sender` in the background. After all clones are dropped, the
    /// remaining messages are sent and the comm is closed.
    ///
    /// If more than `limit` bytes are queued, as for a peer that does not read,
    /// the messages are discarded and the comm ends with
    /// [`RequestError::NotReading`].
    pub fn new(sender: Sender, interval: Duration, limit: usize) -> (Self, BatchWriter) {
        Self::after(None::<()>, sender, interval, limit)
    }

    /// Like [`new`](Self::new), after a single message such as the reply to a
    /// registration.
    pub fn after<G: Field + Send + Sync + 'static>(
        greeting: Option<G>,
        mut sender: Sender,
        interval: Duration,
        limit: usize,
    ) -> (Self, BatchWriter) {
        let (sending, mut messages) = mpsc::unbounded_channel();
        let queue = Arc::new(Queue {
            limit,
            len: AtomicUsize::new(0),
            has_overflowed: AtomicBool::new(false),
            overflow: Notify::new(),
            has_ended: AtomicBool::new(false),
            failure: OnceLock::new(),
            closing: Notify::new(),
            written: Notify::new(),
            wants_drained: AtomicBool::new(false),
            drained: Notify::new(),
            is_urgent: AtomicBool::new(false),
            urgent: Notify::new(),
            orphaned: Notify::new(),
        });
        let (failed, failure) = oneshot::channel();
        let end = EndGuard(Arc::clone(&queue));
        let task = runtime::spawn(async move {
            let shared = &end.0;
            let writing = async {
                if let Some(greeting) = greeting {
                    sender.send(&greeting).await?;
                }
                write(&mut sender, &mut messages, interval, shared).await
            };
            // After the owner is dropped, the last messages are still written, for a
            // limited time.
            let last_messages = async {
                shared.orphaned.notified().await;
                runtime::sleep(FLUSH_TIMEOUT).await;
            };
            let result = tokio::select! {
                result = writing => result,
                () = shared.overflow.notified() => Err(RequestError::NotReading { limit }),
                () = last_messages => Ok(()),
            };
            if let Err(error) = result {
                let _ = shared.failure.set(error.clone());
                let _ = failed.send(error);
            }
        });
        let writing = BatchWriter {
            task: Some(task),
            failure: Some(failure),
            queue: Arc::clone(&queue),
        };
        let stream = Self {
            messages: sending,
            queue: Arc::new(OpenGuard(queue)),
        };
        (stream, writing)
    }

    /// Queues a message. Returns `false` if the stream has ended.
    pub fn send(&self, message: impl Into<T>) -> bool {
        self.send_shared(message, 0)
    }

    /// Like [`send`](Self::send), for a message of which `shared` bytes do not
    /// count because they are bounded elsewhere.
    pub fn send_shared(&self, message: impl Into<T>, shared: usize) -> bool {
        let queue = &self.queue.0;
        if queue.has_overflowed.load(Ordering::Acquire) {
            return false;
        }
        let message = message.into();
        let len = (size_of::<Queued<T>>() + message.heap_len()).saturating_sub(shared);
        // A single message may exceed the limit.
        if queue.len.fetch_add(len, Ordering::AcqRel) > queue.limit {
            queue.has_overflowed.store(true, Ordering::Release);
            queue.overflow.notify_one();
            return false;
        }
        self.messages.send(Queued { message, len }).is_ok()
    }

    /// Writes the queued messages without waiting for the interval.
    pub fn flush(&self) {
        let queue = &self.queue.0;
        queue.is_urgent.store(true, Ordering::Release);
        queue.urgent.notify_one();
    }

    /// The error that has ended the stream; `None` if it has none, or has not ended.
    pub fn failure(&self) -> Option<&RequestError> {
        self.queue.0.failure.get()
    }

    /// Whether more than half of the limit is queued.
    pub fn is_half_full(&self) -> bool {
        let queue = &self.queue.0;
        queue.len.load(Ordering::Acquire) > queue.limit / 2
    }

    /// Returns a handle on the backlog.
    pub fn backlog(&self) -> Backlog {
        Backlog(Arc::clone(&self.queue.0))
    }

    /// Makes [`Backlog::drained`] return as soon as everything has been written.
    pub fn ask_drained(&self) {
        let queue = &self.queue.0;
        queue.wants_drained.store(true, Ordering::Release);
        // Everything may have been written meanwhile.
        queue.remove(0);
    }
}

/// Writes batches until all senders are dropped, and closes the comm.
async fn write<T: Field + Send + Sync + 'static>(
    sender: &mut Sender,
    messages: &mut mpsc::UnboundedReceiver<Queued<T>>,
    interval: Duration,
    queue: &Queue,
) -> Result<(), RequestError> {
    let mut batch: Vec<Queued<T>> = Vec::new();
    let mut next = runtime::now();
    while let Some(first) = messages.recv().await {
        // Tasks that are ready now may send further messages, which belong to the same batch.
        runtime::yield_now().await;
        // Like Dask's BatchedSend: not earlier than an interval after the last
        // batch.
        while runtime::now() < next && !queue.is_urgent.load(Ordering::Acquire) {
            tokio::select! {
                () = runtime::sleep_until(next) => {}
                () = queue.urgent.notified() => {}
            }
        }
        // Cleared before the messages are taken, so that a flush meanwhile counts for the
        // next batch.
        queue.is_urgent.store(false, Ordering::Release);
        let mut len = first.len;
        batch.push(first);
        while batch.len() < BATCH
            && len < BATCH_LEN
            && let Ok(message) = messages.try_recv()
        {
            len += message.len;
            batch.push(message);
        }
        next = runtime::now() + interval;
        sender.send(&batch).await?;
        queue.remove(len);
        batch.clear();
        batch.shrink_to(1 << 10);
    }
    sender.close().await
}

impl BatchWriter {
    /// Waits until everything has been sent and the comm is closed. Cancel safe;
    /// an error is returned once.
    pub async fn finished(&mut self) -> Result<(), RequestError> {
        self.ended().await;
        match self.failure.take() {
            Some(mut failure) => failure.try_recv().map_or(Ok(()), Err),
            None => Ok(()),
        }
    }

    /// Waits as [`finished`](Self::finished), without returning the error. Cancel safe.
    pub async fn ended(&mut self) {
        if let Some(task) = &mut self.task {
            let _ = task.await;
            self.task = None;
        }
    }

    /// The error that has ended the stream; `None` if it has none, or has not ended.
    pub fn failure(&self) -> Option<&RequestError> {
        self.queue.failure.get()
    }

    /// Whether messages were not written, or not yet.
    pub fn has_unwritten(&self) -> bool {
        self.queue.len.load(Ordering::Acquire) > 0
    }

    /// Aborts writing.
    pub fn abort(&self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
