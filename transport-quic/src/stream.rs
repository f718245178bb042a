//! The two directions of a stream, and how a comm closes and drops them.

use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use core::task::{Context, Poll, ready};
use std::io;
use std::sync::Arc;

use daskwire_comm::{Bytes, Traffic, runtime};
use quinn::{ConnectionError, ReadError, RecvStream, SendStream, StoppedError, VarInt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connection::{CountedComm, Draining};
use crate::error::{self, code};

/// The shared state of the two halves of a comm.
#[derive(Debug)]
struct Shared {
    entry: CountedComm,
    /// Whether the sending half was closed and the peer has received all data.
    is_closed: AtomicBool,
    /// The number of directions that have ended properly.
    ended_count: AtomicU8,
}

impl Shared {
    /// Records that a direction has ended properly. Called once for each.
    fn ended(&self) {
        if self.ended_count.fetch_add(1, Ordering::Relaxed) == 1 {
            self.entry.connection.finish();
        }
    }

    fn closed(&self) {
        if !self.is_closed.swap(true, Ordering::Relaxed) {
            self.ended();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if *self.ended_count.get_mut() == 2 {
            self.entry.connection.forget_finished();
        }
    }
}

/// The sending half.
pub(crate) struct Sender {
    stream: SendStream,
    shared: Arc<Shared>,
    closing: Option<Stopped>,
    priority: Priority,
    /// The current priority of the stream.
    set_priority: i32,
    /// Whether the stream has ended and needs no reset.
    is_over: bool,
}

type Stopped = Pin<Box<dyn Future<Output = Result<Option<VarInt>, StoppedError>> + Send + Sync>>;

/// The priority that a stream gets with the next write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Priority(Arc<AtomicI32>);

impl Priority {
    /// Sets the priority for a traffic class (PROTOCOL QUIC-20).
    pub(crate) fn set(&self, traffic: Traffic) {
        let priority = match traffic {
            Traffic::Control => 1,
            Traffic::Bulk => -1,
            _ => 0,
        };
        self.0.store(priority, Ordering::Relaxed);
    }

    fn get(&self) -> i32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The receiving half.
pub(crate) struct Receiver {
    /// `None` once it was passed to a task that drains it.
    stream: Option<RecvStream>,
    /// Data that [`Receiver::wait`] has taken from the stream.
    early: Bytes,
    shared: Arc<Shared>,
    /// Whether the stream has ended and needs no stop.
    is_over: bool,
    /// Whether received data is discarded until the peer ends the stream.
    is_draining: bool,
}

/// Splits a stream into its two halves.
pub(crate) fn split(
    entry: CountedComm,
    send: SendStream,
    receive: RecvStream,
) -> (Receiver, Sender) {
    let shared = Arc::new(Shared {
        entry,
        is_closed: AtomicBool::new(false),
        ended_count: AtomicU8::new(0),
    });
    let receiver = Receiver {
        stream: Some(receive),
        early: Bytes::new(),
        shared: Arc::clone(&shared),
        is_over: false,
        is_draining: false,
    };
    let sender = Sender {
        stream: send,
        shared,
        closing: None,
        priority: Priority::default(),
        set_priority: 0,
        is_over: false,
    };
    (receiver, sender)
}

impl Sender {
    /// Returns a handle to set the priority.
    pub(crate) fn priority(&self) -> Priority {
        self.priority.clone()
    }

    /// Ends the stream at once.
    pub(crate) fn reset(&mut self, code: VarInt) {
        if !self.is_over {
            self.is_over = true;
            self.shared.entry.connection.record_reset();
            // An error means that the stream has already ended.
            let _ = self.stream.reset(code);
        }
    }
}

impl AsyncWrite for Sender {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let priority = self.priority.get();
        if priority != self.set_priority {
            self.set_priority = priority;
            // An error means that the stream has ended; the write reports it.
            let _ = self.stream.set_priority(priority);
        }
        let outcome = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        Poll::Ready(outcome.map_err(error::of_write))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // quinn sends written data without a flush.
        Poll::Ready(Ok(()))
    }

    /// Ready when the peer has acknowledged everything (PROTOCOL QUIC-9).
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.shared.is_closed.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let closing = match &mut this.closing {
            Some(closing) => closing,
            closing => {
                // An error means that the stream is already finished, or that the peer
                // has stopped reading: the future reports which.
                let _ = this.stream.finish();
                closing.insert(Box::pin(this.stream.stopped()))
            }
        };
        let outcome = ready!(closing.as_mut().poll(cx));
        this.closing = None;
        Poll::Ready(match outcome {
            Ok(None) => {
                this.is_over = true;
                this.shared.closed();
                Ok(())
            }
            Ok(Some(code)) => Err(error::stopped(code)),
            Err(StoppedError::ConnectionLost(reason)) => match reason {
                // This may overtake the acknowledgement, and means the same (PROTOCOL
                // QUIC-15).
                ConnectionError::ApplicationClosed(close) if close.error_code == code::DONE => {
                    this.is_over = true;
                    this.shared.closed();
                    Ok(())
                }
                reason => Err(error::lost(reason)),
            },
            Err(other) => Err(other.into()),
        })
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // PROTOCOL QUIC-10
        self.reset(code::GONE);
    }
}

impl Receiver {
    /// Ends the stream at once.
    pub(crate) fn stop(&mut self, code: VarInt) {
        if let Some(stream) = self.stream.as_mut().filter(|_| !self.is_over) {
            self.is_over = true;
            self.shared.entry.connection.abandon();
            self.shared.entry.connection.record_reset();
            // An error means that the stream has already ended.
            let _ = stream.stop(code);
        }
    }

    /// Waits for the first data of the peer, or the end of the stream. The next read
    /// reports an end or an error again.
    pub(crate) async fn wait(&mut self) -> Result<(), ReadError> {
        if let Some(stream) = &mut self.stream
            && let Some(chunk) = stream.read_chunk(usize::MAX, true).await?
        {
            self.early = chunk.bytes;
        }
        Ok(())
    }
}

impl AsyncRead for Receiver {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Some(stream) = &mut this.stream else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        if !this.early.is_empty() {
            let len = this.early.len().min(into.remaining());
            into.put_slice(&this.early.split_to(len));
            return Poll::Ready(Ok(()));
        }
        let before = into.filled().len();
        let had_room = into.remaining() != 0;
        // Received data is returned before the end (PROTOCOL QUIC-16).
        let outcome = ready!(stream.poll_read_buf(cx, into));
        match outcome {
            Ok(()) => {
                let is_end = had_room && into.filled().len() == before;
                if is_end && !this.is_over {
                    this.is_over = true;
                    this.shared.ended();
                }
            }
            // The peer has reset the stream, so none of its data is missing.
            Err(ReadError::Reset(_)) => this.is_over = true,
            Err(_) => {}
        }
        Poll::Ready(outcome.map_err(error::of_read))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        if self.is_draining || !self.shared.is_closed.load(Ordering::Relaxed) {
            // PROTOCOL QUIC-10
            return self.stop(code::GONE);
        }
        // The local side has closed properly, and the peer may be about to: stopping the
        // stream now would look like a loss to the peer (PROTOCOL QUIC-11).
        if let Some(stream) = self.stream.take() {
            let connection = Arc::clone(&self.shared.entry.connection);
            let receiver = Self {
                stream: Some(stream),
                early: Bytes::new(),
                shared: Arc::clone(&self.shared),
                is_over: false,
                is_draining: true,
            };
            let draining = Draining::new(&connection);
            connection.runtime.spawn(drain(receiver, draining));
        }
    }
}

async fn drain(mut receiver: Receiver, _draining: Draining) {
    let connection = Arc::clone(&receiver.shared.entry.connection);
    let Some(stream) = &mut receiver.stream else {
        return;
    };
    let until_end = async {
        let mut left = connection.drain_len;
        loop {
            match stream.read_chunk(usize::MAX, true).await {
                Ok(Some(chunk)) => left = left.checked_sub(chunk.bytes.len())?,
                Ok(None) | Err(ReadError::Reset(_)) => return Some(()),
                Err(_) => return None,
            }
        }
    };
    match runtime::timeout(connection.drain_timeout, until_end).await {
        Ok(Some(())) => receiver.is_over = true,
        _ => receiver.stop(code::GONE),
    }
}
