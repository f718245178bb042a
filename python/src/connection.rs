//! Connections, and attempts to connect.

use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use daskwire::Limits;
use daskwire::frame::Prefix;
use daskwire_comm::{
    Address, CommError, CommReader, CommWriter, Encryption, RawConnection, Traffic,
};
use pyo3::prelude::*;
use pyo3::types::PyList;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;

use crate::error::{ConnectionClosed, to_python};
use crate::frame::{Message, Outgoing};
use crate::notify::{Notifier, Slot, Waiter, Wakeups};
use crate::runtime;
use crate::transports::{Operation, Outcome, Transports, to_duration};

/// The limit for received messages that Python has not read yet, in bytes. Receiving pauses
/// while they exceed it.
const MAX_INBOX_LEN: usize = 1 << 20;

/// The limit for messages queued for sending, in bytes. Writers wait while they exceed it.
const MAX_OUTBOX_LEN: usize = 16 << 20;

/// The largest message that the thread of the event loop sends itself, in bytes, if the queue
/// is empty. Waking a thread for a small message takes longer than sending the message.
const MAX_DIRECT_LEN: usize = 64 << 10;

/// The largest queue that an aborted connection still sends, in bytes.
const MAX_ABORTED_LEN: usize = 64 << 10;

/// The time that an aborted connection has to send its queue.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// An attempt to connect. Dropping it cancels the attempt.
#[pyclass(frozen, module = "daskwire._native")]
pub(crate) struct Connecting {
    outcome: Outcome<Connection>,
    task: AbortHandle,
}

impl Connecting {
    pub(crate) fn start(operation: Operation) -> io::Result<Self> {
        let (outcome, task) = operation.start(async |own| {
            let connecting =
                own.transports
                    .connect_raw(&own.address, &own.options, Traffic::Normal);
            let raw = connecting.await?;
            Ok(Connection::start(raw, own.shard_len, own.wakeups))
        })?;
        Ok(Self { outcome, task })
    }
}

#[pymethods]
impl Connecting {
    /// Returns the connection; if it is not established yet, returns `None` and later wakes
    /// the operation `token`.
    fn take(&self, notifier: &Notifier, token: u64) -> PyResult<Option<Connection>> {
        let waiter = Waiter::new(notifier.wakeups(), token);
        let result = self.outcome.take_or_wait(waiter);
        result.transpose().map_err(to_python)
    }

    /// Cancels the attempt, and drops its connection if it is established.
    fn cancel(&self) {
        self.task.abort();
        self.outcome.abandon();
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A connection that carries messages. Dropping it without closing it aborts it.
#[pyclass(frozen, module = "daskwire._native")]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    /// The writer, which the sending task owns and locks while it sends.
    writer: Weak<tokio::sync::Mutex<CommWriter>>,
    runtime: Handle,
    outbox: mpsc::UnboundedSender<SendCommand>,
    is_closing: AtomicBool,
    receiving: AbortHandle,
    sending: AbortHandle,
    local: Address,
    peer: Address,
    encryption: Option<Arc<Encryption>>,
}

/// State shared by a connection and its tasks.
struct Shared {
    wakeups: Arc<Wakeups>,
    inbox: Mutex<Inbox>,
    /// The reason why no more messages can be sent, once there is one.
    send_end: Mutex<Option<String>>,
    /// Notifies the receiving task that a message was taken from the inbox.
    taken: Notify,
    /// The length of all messages queued for sending, in bytes.
    queued: AtomicUsize,
    /// Writers that wait until `queued` falls to `MAX_OUTBOX_LEN`.
    drained: Mutex<Vec<Waiter>>,
}

/// Received messages that Python has not read yet.
#[derive(Default)]
struct Inbox {
    messages: VecDeque<Message>,
    /// The memory that all messages take, in bytes.
    len: usize,
    /// The reason why no message will follow those in `messages`, once there is one.
    end: Option<String>,
    /// Whether messages received from now on are dropped.
    is_discarded: bool,
    waiter: Option<Waiter>,
}

/// The TLS version, the cipher suite, and the certificate of the peer in DER.
type TlsInfo = (&'static str, Option<&'static str>, Option<Vec<u8>>);

/// The next step of the sending task.
enum SendCommand {
    Send {
        frames: Vec<Outgoing>,
        len: usize,
    },
    /// A message that the thread of the event loop has begun to send.
    Continue(Sending),
    Close(OnClosed),
}

/// A message that is being sent. Holds the lock of the writer.
type Sending = Pin<Box<dyn Future<Output = Result<(), CommError>> + Send>>;

/// A callback for the end of closing a connection.
type OnClosed = Box<dyn FnOnce() + Send>;

impl Connection {
    /// Starts the tasks of a connection. Must be called on the runtime.
    pub(crate) fn start(raw: RawConnection, shard_len: usize, wakeups: Arc<Wakeups>) -> Self {
        let shared = Arc::new(Shared {
            wakeups,
            inbox: Mutex::default(),
            send_end: Mutex::default(),
            taken: Notify::new(),
            queued: AtomicUsize::new(0),
            drained: Mutex::default(),
        });
        let reader = CommReader::new(raw.reader, Prefix::U64, Limits::HOST);
        let writer = CommWriter::new(raw.writer, Prefix::U64);
        let writer = Arc::new(tokio::sync::Mutex::new(writer));
        let (outbox, commands) = mpsc::unbounded_channel();
        let receiver = tokio::spawn(receive(reader, shard_len, Arc::clone(&shared)));
        let receiving = receiver.abort_handle();
        let weak = Arc::downgrade(&writer);
        let sending = send(writer, commands, Arc::clone(&shared), receiver);
        let sending = tokio::spawn(sending);
        Self {
            shared,
            writer: weak,
            runtime: Handle::current(),
            outbox,
            is_closing: AtomicBool::new(false),
            receiving,
            sending: sending.abort_handle(),
            local: raw.local,
            peer: raw.peer,
            encryption: raw.encryption,
        }
    }
}

impl Connection {
    /// Begins to send a message while the queue is empty. Returns what is left for the sending
    /// task, if anything.
    fn begin_sending(&self, frames: Vec<Outgoing>, len: usize) -> PyResult<Option<SendCommand>> {
        let writer = self.writer.upgrade();
        let Some(Ok(mut writer)) = writer.map(tokio::sync::Mutex::try_lock_owned) else {
            return Ok(Some(SendCommand::Send { frames, len }));
        };
        let shared = Arc::clone(&self.shared);
        let mut sending: Sending = Box::pin(async move {
            feed(&mut writer, frames, len, &shared).await?;
            writer.flush().await
        });
        let _runtime = self.runtime.enter();
        // The sending task polls again with a waker of its own.
        match sending
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Pending => Ok(Some(SendCommand::Continue(sending))),
            Poll::Ready(Ok(())) => Ok(None),
            Poll::Ready(Err(error)) => {
                let reason = error.to_string();
                self.shared.end_sending(reason.clone());
                Err(ConnectionClosed::new_err(reason))
            }
        }
    }

    /// Closes the connection once all queued messages are sent.
    fn begin_close(&self, closed: OnClosed) {
        // The receiving task keeps running: the peer takes a refusal of its messages for a
        // lost connection.
        self.is_closing.store(true, Ordering::Release);
        self.shared.discard();
        let reason = "the connection was closed on this side";
        self.shared.end(reason.to_owned());
        if let Err(mpsc::error::SendError(SendCommand::Close(closed))) =
            self.outbox.send(SendCommand::Close(closed))
        {
            self.receiving.abort();
            closed();
        }
    }
}

/// Closes connections, and then the transports with the connections that comms share. Waits
/// for at most `seconds`.
///
/// # Errors
///
/// `ValueError` if `seconds` is not a valid duration.
#[pyfunction]
pub(crate) fn close_all(
    py: Python<'_>,
    connections: Vec<Py<Connection>>,
    transports: Vec<Py<Transports>>,
    seconds: f64,
) -> PyResult<()> {
    let limit = to_duration(seconds)?;
    let transports: Vec<_> = transports.iter().map(|one| one.get().inner()).collect();
    let (sender, all_closed) = std::sync::mpsc::channel::<()>();
    let all_closed = Mutex::new(all_closed);
    for connection in &connections {
        let sender = sender.clone();
        connection.get().begin_close(Box::new(move || drop(sender)));
    }
    drop(sender);
    let runtime = runtime::handle()?;
    py.detach(move || {
        let start = std::time::Instant::now();
        // Nothing is sent: the channel ends when all senders are dropped.
        let all_closed = all_closed
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let _ = all_closed.recv_timeout(limit);
        runtime.block_on(async {
            let closing = async {
                for transports in &transports {
                    transports.close().await;
                }
            };
            let _ = timeout(limit.saturating_sub(start.elapsed()), closing).await;
        });
    });
    Ok(())
}

/// Receives messages until the connection ends.
async fn receive(mut reader: CommReader, shard_len: usize, shared: Arc<Shared>) {
    loop {
        let mut message = Message::new(shard_len);
        match daskwire::transport::CommReader::read_message(&mut reader, &mut message).await {
            Ok(Some(count)) => {
                shared.add(message.finish(count));
            }
            Ok(None) => return shared.end("the peer closed the connection".to_owned()),
            Err(error) => return shared.end(error.to_string()),
        }
        while shared.is_full() {
            shared.taken.notified().await;
        }
    }
}

/// Sends messages until the connection ends. Small messages share a write.
async fn send(
    writer: Arc<tokio::sync::Mutex<CommWriter>>,
    mut commands: mpsc::UnboundedReceiver<SendCommand>,
    shared: Arc<Shared>,
    mut receiving: JoinHandle<()>,
) {
    let mut next = commands.recv().await;
    while let Some(command) = next.take() {
        let sent = match command {
            SendCommand::Send { frames, len } => {
                let mut writer = writer.lock().await;
                let mut sent = feed(&mut writer, frames, len, &shared).await;
                while sent.is_ok() {
                    match commands.try_recv() {
                        Ok(SendCommand::Send { frames, len }) => {
                            sent = feed(&mut writer, frames, len, &shared).await;
                        }
                        Ok(command) => {
                            next = Some(command);
                            break;
                        }
                        Err(_) => {
                            sent = writer.flush().await;
                            break;
                        }
                    }
                }
                sent
            }
            SendCommand::Continue(sending) => sending.await,
            SendCommand::Close(closed) => {
                // Closing delivers all messages written before; the peer may write meanwhile.
                let mut writer = writer.lock().await;
                let mut closing = pin!(writer.close());
                let is_closed = tokio::select! {
                    _ = &mut closing => true,
                    // The peer has closed the connection too, or reading has failed. The
                    // acknowledgement, which QUIC may delay, need not be awaited.
                    _ = &mut receiving => false,
                };
                closed();
                if !is_closed {
                    let _ = closing.await;
                }
                receiving.abort();
                return;
            }
        };
        if let Err(error) = sent {
            // Only sending ends: messages of the peer may still arrive.
            shared.end_sending(error.to_string());
            break;
        }
        if next.is_none() {
            next = commands.recv().await;
        }
    }
    // Completes pending calls of `close`.
    commands.close();
    while let Some(command) = commands.recv().await {
        match command {
            SendCommand::Send { len, .. } => shared.sent(len),
            SendCommand::Continue(_) => {}
            SendCommand::Close(closed) => {
                receiving.abort();
                closed();
            }
        }
    }
}

async fn feed(
    writer: &mut CommWriter,
    frames: Vec<Outgoing>,
    len: usize,
    shared: &Shared,
) -> Result<(), CommError> {
    let sent = writer.feed_message(&frames).await;
    drop(frames);
    shared.sent(len);
    sent
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, message: Message) {
        let mut inbox = self.inbox();
        if inbox.is_discarded {
            return;
        }
        inbox.len += message.memory_len();
        inbox.messages.push_back(message);
        wake(inbox.waiter.take());
    }

    /// Ends both directions. Readers still get the messages that were received before.
    fn end(&self, reason: String) {
        let mut inbox = self.inbox();
        inbox.end.get_or_insert_with(|| reason.clone());
        wake(inbox.waiter.take());
        drop(inbox);
        self.end_sending(reason);
    }

    fn end_sending(&self, reason: String) {
        self.send_end().get_or_insert(reason);
        self.wake_writers();
    }

    /// Drops the messages in the inbox and all messages received from now on.
    fn discard(&self) {
        let mut inbox = self.inbox();
        inbox.is_discarded = true;
        inbox.len = 0;
        let messages = core::mem::take(&mut inbox.messages);
        drop(inbox);
        drop(messages);
        self.taken.notify_one();
    }

    fn send_end(&self) -> MutexGuard<'_, Option<String>> {
        self.send_end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_full(&self) -> bool {
        let inbox = self.inbox();
        !inbox.messages.is_empty() && inbox.len >= MAX_INBOX_LEN
    }

    fn drained(&self) -> MutexGuard<'_, Vec<Waiter>> {
        self.drained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_writers(&self) {
        let waiters = core::mem::take(&mut *self.drained());
        waiters.into_iter().for_each(Waiter::wake);
    }

    fn sent(&self, len: usize) {
        let before = self.queued.fetch_sub(len, Ordering::AcqRel);
        if before.saturating_sub(len) <= MAX_OUTBOX_LEN {
            self.wake_writers();
        }
    }
}

fn wake(waiter: Option<Waiter>) {
    if let Some(waiter) = waiter {
        waiter.wake();
    }
}

#[pymethods]
impl Connection {
    /// Returns the frames of the next message; if none was received yet, returns `None` and
    /// later wakes the operation `token`.
    fn read<'py>(
        &self,
        py: Python<'py>,
        notifier: &Notifier,
        token: u64,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let mut inbox = self.shared.inbox();
        if let Some(message) = inbox.messages.pop_front() {
            inbox.len -= message.memory_len();
            drop(inbox);
            self.shared.taken.notify_one();
            return message.into_list(py).map(Some);
        }
        if let Some(reason) = &inbox.end {
            return Err(ConnectionClosed::new_err(reason.clone()));
        }
        inbox.waiter = Some(Waiter::new(notifier.wakeups(), token));
        Ok(None)
    }

    /// Queues a message for sending. Its frames are contiguous buffers of bytes. Returns
    /// whether the queue exceeds its limit, so that the writer should wait until
    /// `is_drained`.
    fn write(&self, frames: Vec<Bound<'_, PyAny>>) -> PyResult<bool> {
        if let Some(reason) = &*self.shared.send_end() {
            return Err(ConnectionClosed::new_err(reason.clone()));
        }
        let wakeups = &self.shared.wakeups;
        let frames = frames.iter().map(|frame| Outgoing::new(frame, wakeups));
        let frames = frames.collect::<PyResult<Vec<_>>>()?;
        // At least 1, so that the queue counts as empty only if no message is in it.
        let len = frames.iter().map(|frame| frame.as_ref().len()).sum();
        let len = usize::max(len, 1);
        let before = self.shared.queued.fetch_add(len, Ordering::AcqRel);
        let command = if before == 0 && len <= MAX_DIRECT_LEN {
            let Some(rest) = self.begin_sending(frames, len)? else {
                return Ok(false);
            };
            rest
        } else {
            SendCommand::Send { frames, len }
        };
        if self.outbox.send(command).is_err() {
            return Err(ConnectionClosed::new_err("the connection was closed"));
        }
        Ok(before + len > MAX_OUTBOX_LEN)
    }

    /// Returns whether the queue is within its limit, or nothing more will be sent. If not,
    /// the operation `token` is woken later.
    fn is_drained(&self, notifier: &Notifier, token: u64) -> bool {
        let mut drained = self.shared.drained();
        let is_over = || self.shared.send_end().is_some();
        if self.shared.queued.load(Ordering::Acquire) <= MAX_OUTBOX_LEN || is_over() {
            return true;
        }
        drained.push(Waiter::new(notifier.wakeups(), token));
        false
    }

    /// Begins to close the connection. Queued messages are sent first.
    fn close(&self) -> Closing {
        let slot = Arc::new(Slot::default());
        let own = Arc::clone(&slot);
        self.begin_close(Box::new(move || own.set(())));
        Closing(slot)
    }

    /// Ends the connection at once for the local side. A short queue is still sent in the
    /// background for a second, as the operating system does for a socket that is closed.
    fn abort(&self) -> PyResult<()> {
        if self.shared.queued.load(Ordering::Acquire) <= MAX_ABORTED_LEN {
            // A call of `close` may have been cancelled.
            if !self.is_closing.load(Ordering::Acquire) {
                self.begin_close(Box::new(|| {}));
            }
            let (receiving, sending) = (self.receiving.clone(), self.sending.clone());
            runtime::handle()?.spawn(async move {
                tokio::time::sleep(ABORT_TIMEOUT).await;
                receiving.abort();
                sending.abort();
            });
            return Ok(());
        }
        self.receiving.abort();
        self.sending.abort();
        self.shared.discard();
        let reason = "the connection was aborted on this side";
        self.shared.end(reason.to_owned());
        Ok(())
    }

    /// Whether the connection has ended and all messages received before were read.
    #[getter]
    fn closed(&self) -> bool {
        let inbox = self.shared.inbox();
        inbox.end.is_some() && inbox.messages.is_empty()
    }

    /// The local address without its scheme.
    #[getter]
    fn local(&self) -> &str {
        self.local.location()
    }

    /// The address of the peer without its scheme.
    #[getter]
    fn peer(&self) -> &str {
        self.peer.location()
    }

    /// The TLS version, the cipher suite if it is known, and the certificate of the peer in
    /// DER; `None` if the connection is not encrypted.
    #[getter]
    fn encryption(&self) -> Option<TlsInfo> {
        let encryption = self.encryption.as_ref()?;
        let certificate = encryption.peer_certificates.first();
        let certificate = certificate.map(|der| der.to_vec());
        Some((encryption.version, encryption.cipher, certificate))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.is_closing.load(Ordering::Acquire) {
            self.receiving.abort();
        }
    }
}

/// A connection that is being closed.
#[pyclass(frozen, module = "daskwire._native")]
pub(crate) struct Closing(Arc<Slot<()>>);

#[pymethods]
impl Closing {
    /// Returns whether the connection is closed. If not, the operation `token` is woken once
    /// it is.
    fn is_done(&self, notifier: &Notifier, token: u64) -> bool {
        let waiter = Waiter::new(notifier.wakeups(), token);
        self.0.take_or_wait(waiter).is_some()
    }
}
