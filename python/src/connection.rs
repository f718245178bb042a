//! Connections, and making them.

use core::pin::pin;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use daskwire_comm::{Address, CommReader, CommWriter, Encryption, RawConnection, Traffic};
use pyo3::prelude::*;
use pyo3::types::PyList;
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;
use wire::Limits;
use wire::frame::Prefix;

use crate::error::{ConnectionClosed, to_python};
use crate::frame::{Message, Outgoing};
use crate::notify::{Notifier, Slot, Waiter, Wakeups};
use crate::runtime;
use crate::transports::{Operation, Outcome, Transports, to_duration};

/// The bytes of received messages that wait to be read, beyond which no more are received.
const INBOX_MAX: usize = 1 << 20;

/// The bytes of messages that wait to be sent, beyond which writers wait.
const OUTBOX_MAX: usize = 16 << 20;

/// The bytes that are still sent by a connection that was aborted, and for how long.
const ABORTED_MAX: usize = 64 << 10;
const ABORTED_TIME: Duration = Duration::from_secs(1);

/// A connection that is being made. Dropping it gives it up.
#[pyclass(frozen, module = "daskwire._native")]
pub(crate) struct Connecting {
    slot: Outcome<Connection>,
    task: AbortHandle,
}

impl Connecting {
    pub(crate) fn start(operation: Operation) -> io::Result<Self> {
        let (slot, task) = operation.start(async |own| {
            let connecting =
                own.transports
                    .connect_raw(&own.address, &own.options, Traffic::Normal);
            let raw = connecting.await?;
            Ok(Connection::start(raw, own.shard_len, own.wakeups))
        })?;
        Ok(Self { slot, task })
    }
}

#[pymethods]
impl Connecting {
    /// Returns the connection, or `None` until the operation `token` is woken.
    fn take(&self, notifier: &Notifier, token: u64) -> PyResult<Option<Connection>> {
        let waiter = Waiter::new(notifier.wakeups(), token);
        let result = self.slot.take_or_wait(waiter);
        result.transpose().map_err(to_python)
    }

    /// Gives the attempt up.
    fn cancel(&self) {
        self.task.abort();
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A connection that carries messages. Dropping it without closing it is like aborting it.
#[pyclass(frozen, module = "daskwire._native")]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    outbox: mpsc::UnboundedSender<Order>,
    is_closing: AtomicBool,
    receiving: AbortHandle,
    sending: AbortHandle,
    local: Address,
    peer: Address,
    encryption: Option<Arc<Encryption>>,
}

/// What a connection and its tasks have in common.
struct Shared {
    wakeups: Arc<Wakeups>,
    inbox: Mutex<Inbox>,
    /// Why no more messages can be sent.
    send_end: Mutex<Option<String>>,
    /// Tells the receiving task that a message was taken.
    taken: Notify,
    /// The bytes that wait to be sent.
    queued: AtomicUsize,
    /// Who waits for that to become less.
    drained: Mutex<Vec<Waiter>>,
}

#[derive(Default)]
struct Inbox {
    messages: VecDeque<Message>,
    /// The bytes of all messages.
    len: usize,
    /// Why no more messages come, after those that are here.
    end: Option<String>,
    /// Messages that still come are dropped.
    is_discarded: bool,
    waiter: Option<Waiter>,
}

/// The version, the cipher suite and the certificate of the peer.
type TlsInfo = (&'static str, Option<&'static str>, Option<Vec<u8>>);

/// What the sending task does next.
enum Order {
    Send { frames: Vec<Outgoing>, len: usize },
    Close(OnClosed),
}

/// Called once a connection is closed.
type OnClosed = Box<dyn FnOnce() + Send>;

impl Connection {
    /// Starts the tasks of a connection. Called on the runtime.
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
        let (outbox, orders) = mpsc::unbounded_channel();
        let receiver = tokio::spawn(receive(reader, shard_len, Arc::clone(&shared)));
        let receiving = receiver.abort_handle();
        let sending = send(writer, orders, Arc::clone(&shared), receiver);
        let sending = tokio::spawn(sending);
        Self {
            shared,
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
    /// Closes the connection once what was written is sent.
    fn begin_close(&self, closed: OnClosed) {
        // Receiving goes on: to stop the peer would look like a loss to it.
        self.is_closing.store(true, Ordering::Release);
        self.shared.discard();
        let reason = "the connection was closed on this side";
        self.shared.end(reason.to_owned());
        if let Err(mpsc::error::SendError(Order::Close(closed))) =
            self.outbox.send(Order::Close(closed))
        {
            self.receiving.abort();
            closed();
        }
    }
}

/// Closes connections, and then what comms share, for at most `seconds`.
///
/// # Errors
///
/// `ValueError` for a number of seconds that is no duration.
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
        // Ends when all senders are dropped.
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
        match wire::transport::CommReader::read_message(&mut reader, &mut message).await {
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

/// Sends messages, several with one write if they are small, until the connection ends.
async fn send(
    mut writer: CommWriter,
    mut orders: mpsc::UnboundedReceiver<Order>,
    shared: Arc<Shared>,
    mut receiving: JoinHandle<()>,
) {
    let mut next = orders.recv().await;
    while let Some(order) = next {
        let sent = match order {
            Order::Send { frames, len } => {
                let sent = writer.feed_message(&frames).await;
                drop(frames);
                shared.sent(len);
                sent
            }
            Order::Close(closed) => {
                // The peer has to get what was written before, and may write meanwhile.
                let mut closing = pin!(writer.close());
                let is_closed = tokio::select! {
                    _ = &mut closing => true,
                    // The peer has closed the connection too, and so reads no more. There is
                    // no need to wait for its acknowledgement, which QUIC may delay.
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
        let sent = match sent {
            Ok(()) => match orders.try_recv() {
                Ok(order) => {
                    next = Some(order);
                    continue;
                }
                Err(_) => writer.flush().await,
            },
            error => error,
        };
        if let Err(error) = sent {
            // Messages of the peer may still be under way.
            shared.end_sending(error.to_string());
            break;
        }
        next = orders.recv().await;
    }
    // Whoever still wants to close this is answered.
    orders.close();
    while let Some(order) = orders.recv().await {
        match order {
            Order::Send { len, .. } => shared.sent(len),
            Order::Close(closed) => {
                receiving.abort();
                closed();
            }
        }
    }
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
        inbox.len += message.len();
        inbox.messages.push_back(message);
        wake(inbox.waiter.take());
    }

    /// Ends both directions, for readers once they have read what came before.
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

    /// Drops the messages that are here and those that still come.
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
        !inbox.messages.is_empty() && inbox.len >= INBOX_MAX
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
        if before.saturating_sub(len) <= OUTBOX_MAX {
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
    /// Returns the frames of the next message, or `None` until the operation `token` is
    /// woken.
    fn read<'py>(
        &self,
        py: Python<'py>,
        notifier: &Notifier,
        token: u64,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let mut inbox = self.shared.inbox();
        if let Some(message) = inbox.messages.pop_front() {
            inbox.len -= message.len();
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

    /// Puts a message of these frames, contiguous buffers of bytes, at the end of what is to
    /// be sent. Returns whether the writer should wait until less is left.
    fn write(&self, frames: Vec<Bound<'_, PyAny>>) -> PyResult<bool> {
        if let Some(reason) = &*self.shared.send_end() {
            return Err(ConnectionClosed::new_err(reason.clone()));
        }
        let wakeups = &self.shared.wakeups;
        let frames = frames.iter().map(|frame| Outgoing::new(frame, wakeups));
        let frames = frames.collect::<PyResult<Vec<_>>>()?;
        let len = frames.iter().map(|frame| frame.as_ref().len()).sum();
        let before = self.shared.queued.fetch_add(len, Ordering::AcqRel);
        let order = Order::Send { frames, len };
        if self.outbox.send(order).is_err() {
            return Err(ConnectionClosed::new_err("the connection was closed"));
        }
        Ok(before + len > OUTBOX_MAX)
    }

    /// Whether little enough is left to send, or nothing more will be sent; otherwise the
    /// operation `token` is woken then.
    fn is_drained(&self, notifier: &Notifier, token: u64) -> bool {
        let mut drained = self.shared.drained();
        let is_over = || self.shared.send_end().is_some();
        if self.shared.queued.load(Ordering::Acquire) <= OUTBOX_MAX || is_over() {
            return true;
        }
        drained.push(Waiter::new(notifier.wakeups(), token));
        false
    }

    /// Begins to close the connection: what was written is sent first.
    fn close(&self) -> Closing {
        let slot = Arc::new(Slot::default());
        let own = Arc::clone(&slot);
        self.begin_close(Box::new(move || own.set(())));
        Closing(slot)
    }

    /// Ends the connection at once for this side. A little that was written is still sent,
    /// for a while, as the system does for a socket that is closed.
    fn abort(&self) -> PyResult<()> {
        let is_little = self.shared.queued.load(Ordering::Acquire) <= ABORTED_MAX;
        if is_little && !self.is_closing.load(Ordering::Acquire) {
            self.begin_close(Box::new(|| {}));
            let (receiving, sending) = (self.receiving.clone(), self.sending.clone());
            runtime::handle()?.spawn(async move {
                tokio::time::sleep(ABORTED_TIME).await;
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

    /// Whether the connection has ended and all messages that came before were read.
    #[getter]
    fn closed(&self) -> bool {
        let inbox = self.shared.inbox();
        inbox.end.is_some() && inbox.messages.is_empty()
    }

    /// The location of this end, without its scheme.
    #[getter]
    fn local(&self) -> &str {
        self.local.location()
    }

    /// The location of the other end, without its scheme.
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
    /// Whether the connection is closed; otherwise the operation `token` is woken then.
    fn is_done(&self, notifier: &Notifier, token: u64) -> bool {
        let waiter = Waiter::new(notifier.wakeups(), token);
        self.0.take_or_wait(waiter).is_some()
    }
}
