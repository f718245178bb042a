//! Connections, and making them.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use daskwire_comm::{
    Address, CommError, CommOptions, CommReader, CommWriter, Encryption, RawConnection, Traffic,
    Transports,
};
use pyo3::prelude::*;
use pyo3::types::PyList;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use wire::Limits;
use wire::frame::Prefix;

use crate::error::{ConnectionClosed, to_python};
use crate::frame::{Message, Outgoing};
use crate::notify::{Notifier, Slot, Waiter, Wakeups};
use crate::runtime;

/// The bytes of received messages that wait to be read, beyond which no more are received.
const INBOX_MAX: usize = 1 << 20;

/// The bytes of messages that wait to be sent, beyond which writers wait.
const OUTBOX_MAX: usize = 16 << 20;

/// A connection that is being made. Dropping it gives it up.
#[pyclass(frozen, module = "daskwire._native")]
pub(crate) struct Connecting {
    slot: Arc<Slot<Result<Connection, CommError>>>,
    task: AbortHandle,
}

impl Connecting {
    pub(crate) fn start(
        transports: Arc<Transports>,
        wakeups: Arc<Wakeups>,
        shard_len: usize,
        address: Address,
        options: CommOptions,
    ) -> io::Result<Self> {
        let slot = Arc::new(Slot::default());
        let own = Arc::clone(&slot);
        let task = runtime::handle()?.spawn(async move {
            let connected = transports.connect_raw(&address, &options, Traffic::Normal);
            let connected = connected.await;
            own.set(connected.map(|raw| Connection::start(raw, shard_len, wakeups)));
        });
        Ok(Self {
            slot,
            task: task.abort_handle(),
        })
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

/// A connection that carries messages. Dropping it ends it once everything is sent.
#[pyclass(frozen, module = "daskwire._native")]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    outbox: mpsc::UnboundedSender<Order>,
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
    /// Tells the receiving task that a message was taken.
    taken: Notify,
    /// The bytes that wait to be sent.
    queued: AtomicUsize,
    /// Who waits for that to become less.
    drained: Mutex<Option<Waiter>>,
}

#[derive(Default)]
struct Inbox {
    messages: VecDeque<Message>,
    /// The bytes of all messages.
    len: usize,
    /// Why no more messages come.
    end: Option<String>,
    waiter: Option<Waiter>,
}

/// The version, the cipher suite and the certificate of the peer.
type TlsInfo = (&'static str, Option<&'static str>, Option<Vec<u8>>);

/// What the sending task does next.
enum Order {
    Send { frames: Vec<Outgoing>, len: usize },
    Close(Arc<Slot<()>>),
}

impl Connection {
    /// Starts the tasks of a connection. Called on the runtime.
    pub(crate) fn start(raw: RawConnection, shard_len: usize, wakeups: Arc<Wakeups>) -> Self {
        let shared = Arc::new(Shared {
            wakeups,
            inbox: Mutex::default(),
            taken: Notify::new(),
            queued: AtomicUsize::new(0),
            drained: Mutex::default(),
        });
        let reader = CommReader::new(raw.reader, Prefix::U64, Limits::HOST);
        let writer = CommWriter::new(raw.writer, Prefix::U64);
        let (outbox, orders) = mpsc::unbounded_channel();
        let receiving = tokio::spawn(receive(reader, shard_len, Arc::clone(&shared)));
        let sending = tokio::spawn(send(writer, orders, Arc::clone(&shared)));
        Self {
            shared,
            outbox,
            receiving: receiving.abort_handle(),
            sending: sending.abort_handle(),
            local: raw.local,
            peer: raw.peer,
            encryption: raw.encryption,
        }
    }
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
                // The peer has to get what was written before.
                let _ = writer.close().await;
                closed.set(());
                return;
            }
        };
        let sent = match (sent, orders.try_recv()) {
            (Ok(()), Ok(order)) => {
                next = Some(order);
                continue;
            }
            (Ok(()), Err(_)) => writer.flush().await,
            (error, _) => error,
        };
        if let Err(error) = sent {
            shared.end(error.to_string());
            break;
        }
        next = orders.recv().await;
    }
    // Whoever still wants to close this is answered.
    orders.close();
    while let Some(order) = orders.recv().await {
        match order {
            Order::Send { len, .. } => shared.sent(len),
            Order::Close(closed) => closed.set(()),
        }
    }
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, message: Message) {
        let mut inbox = self.inbox();
        inbox.len += message.len();
        inbox.messages.push_back(message);
        wake(inbox.waiter.take());
    }

    /// Ends the connection, for readers once they have read what came before.
    fn end(&self, reason: String) {
        let mut inbox = self.inbox();
        inbox.end.get_or_insert(reason);
        wake(inbox.waiter.take());
        drop(inbox);
        wake(self.drained().take());
    }

    fn is_full(&self) -> bool {
        let inbox = self.inbox();
        !inbox.messages.is_empty() && inbox.len >= INBOX_MAX
    }

    fn drained(&self) -> MutexGuard<'_, Option<Waiter>> {
        self.drained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sent(&self, len: usize) {
        let before = self.queued.fetch_sub(len, Ordering::AcqRel);
        if before.saturating_sub(len) <= OUTBOX_MAX {
            wake(self.drained().take());
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
        if let Some(reason) = &self.shared.inbox().end {
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
        let is_over = || self.shared.inbox().end.is_some();
        if self.shared.queued.load(Ordering::Acquire) <= OUTBOX_MAX || is_over() {
            return true;
        }
        *drained = Some(Waiter::new(notifier.wakeups(), token));
        false
    }

    /// Begins to close the connection: what was written is sent first.
    fn close(&self) -> Closing {
        self.receiving.abort();
        let reason = "the connection was closed on this side";
        self.shared.end(reason.to_owned());
        let slot = Arc::new(Slot::default());
        if self.outbox.send(Order::Close(Arc::clone(&slot))).is_err() {
            slot.set(());
        }
        Closing(slot)
    }

    /// Ends the connection at once.
    fn abort(&self) {
        self.receiving.abort();
        self.sending.abort();
        let reason = "the connection was aborted on this side";
        self.shared.end(reason.to_owned());
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
        self.receiving.abort();
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
