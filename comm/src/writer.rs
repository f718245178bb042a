//! The writing half of a comm.

use core::fmt;
use std::io::{self, IoSlice};

use daskwire::comm::Sender;
use daskwire::frame::{Prefix, ReadHint};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::comm::SetTraffic;
use crate::event::{CommEvent, HalfLog};
use crate::{CommError, Traffic, WriteHalf};

/// Frames below this many bytes are copied into the buffer after the prelude and sent
/// with it; larger ones are sent without a copy.
const MAX_COPIED_LEN: usize = 16 << 10;

/// The number of buffered bytes that are sent together.
const MAX_GATHERED_LEN: usize = 64 << 10;

/// The maximum number of bytes of a frame in one write. Over loopback TCP, a frame of 64 MiB
/// takes a third longer if all of it is offered at once, as in tokio's `write_all`, and of the
/// lengths from 512 KiB to 4 MiB, 1 MiB is the fastest.
const MAX_WRITE_LEN: usize = 1 << 20;

/// Buffers larger than this are not kept for the next message.
const MAX_KEPT_LEN: usize = 4 << 10;

/// The writing half of a comm.
///
/// A small message is sent with one write, or together with others
/// ([`feed_message`](Self::feed_message)). Large frames are not copied.
pub struct CommWriter<W = WriteHalf> {
    io: W,
    pub(crate) sender: Sender,
    /// Bytes to send together.
    buffer: Vec<u8>,
    /// The length of the complete messages in the buffer, which are kept even if the
    /// next write is dropped.
    fed_len: usize,
    set_traffic: Option<Box<SetTraffic>>,
    pub(crate) log: HalfLog,
}

impl<W: AsyncWrite + Unpin> CommWriter<W> {
    /// Creates a writer of messages to `io`, which must not be within a message.
    pub const fn new(io: W, prefix: Prefix) -> Self {
        Self {
            io,
            sender: Sender::new(prefix),
            buffer: Vec::new(),
            fed_len: 0,
            set_traffic: None,
            log: HalfLog::new(),
        }
    }

    /// Sets the traffic class of the following messages. Transports that cannot
    /// prioritize comms ignore it.
    pub fn set_traffic(&self, traffic: Traffic) {
        if let Some(set) = &self.set_traffic {
            set(traffic);
        }
    }

    /// Sets the read hint of the following messages: [`ReadHint::Apart`] for peers of Dask
    /// 2023.11.0 and later, for which each large frame then gets a buffer of its own. Default:
    /// [`ReadHint::Whole`].
    pub const fn set_read_hint(&mut self, hint: ReadHint) {
        self.sender.set_read_hint(hint);
    }

    pub(crate) fn set_traffic_hook(&mut self, hook: Option<Box<SetTraffic>>) {
        self.set_traffic = hook;
    }

    /// Writes a message of these frames.
    ///
    /// On return the message was handed to the operating system; the peer may not have
    /// received it yet. Over TCP on Linux, a peer that does not acknowledge data for the
    /// timeout of the transport (default: 30 seconds) is considered gone, as in Dask.
    ///
    /// # Cancel safety
    ///
    /// This method is not cancel safe, but fails safely. If the future is dropped
    /// before the first byte was sent, the message is not sent. If it is dropped
    /// later, part of a message was sent, which no other may follow: every later
    /// write returns [`Closed::WriteCancelled`](crate::Closed::WriteCancelled), and the peer sees the connection end
    /// within a message when this half is dropped or closed.
    ///
    /// # Errors
    ///
    /// * [`CommError::Encode`] if there are no frames; nothing was sent, and
    ///   the comm can still be used;
    /// * [`CommError::Closed`] if an earlier write failed or was dropped, or
    ///   the comm was closed on this side;
    /// * [`CommError::Io`].
    pub async fn write_message<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> Result<(), CommError> {
        self.prepare(frames)?;
        let outcome = self.send_message(frames).await;
        self.record_failure(outcome)?;
        self.shrink();
        Ok(())
    }

    /// Buffers a message to send it together with the following ones, which is much
    /// cheaper for many small messages: up to 64 KiB are sent with one write.
    ///
    /// Buffered messages are sent, in order, by the next
    /// [`write_message`](Self::write_message), [`flush`](Self::flush) or
    /// [`close`](Self::close). They are lost if the writer is dropped before.
    ///
    /// # Cancel safety
    ///
    /// As [`write_message`](Self::write_message). Messages that were buffered before
    /// are kept.
    ///
    /// # Errors
    ///
    /// As [`write_message`](Self::write_message).
    pub async fn feed_message<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> Result<(), CommError> {
        self.prepare(frames)?;
        let outcome = self.gather(frames).await;
        self.record_failure(outcome)?;
        self.fed_len = self.buffer.len();
        Ok(())
    }

    /// Sends the messages that [`feed_message`](Self::feed_message) has buffered.
    ///
    /// # Cancel safety
    ///
    /// As [`write_message`](Self::write_message).
    ///
    /// # Errors
    ///
    /// As [`write_message`](Self::write_message).
    pub async fn flush(&mut self) -> Result<(), CommError> {
        self.sender.check()?;
        self.buffer.truncate(self.fed_len);
        let outcome = self.send_rest().await;
        self.record_failure(outcome)?;
        self.shrink();
        Ok(())
    }

    /// Sends buffered messages and ends the stream, so that the peer sees that no more
    /// messages follow. A second call does nothing more.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: call it again. Writes fail from the first call on.
    /// While it sends messages that [`feed_message`](Self::feed_message) has
    /// buffered, it is only as safe as [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// * [`CommError::Io`];
    /// * [`CommError::Closed`] if a buffered message was not sent, because an earlier
    ///   write, flush or close failed or was dropped.
    ///
    /// The stream is ended in each case.
    pub async fn close(&mut self) -> Result<(), CommError> {
        let flushed = match self.sender.check() {
            Ok(()) if self.fed_len != 0 => self.flush().await,
            _ => Ok(()),
        };
        let closed = self.sender.close().map_err(CommError::from);
        // The call that buffered a lost message has succeeded, so fail here.
        let lost = flushed.err().or(closed.err().filter(|_| self.fed_len != 0));
        let outcome = match self.io.shutdown().await {
            // The peer has already closed the connection.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            outcome => outcome.map_err(CommError::Io),
        };
        let outcome = lost.map_or(outcome, Err);
        self.log.end(&CommEvent::Closed {
            error: outcome.as_ref().err(),
        });
        outcome
    }

    /// Sends our handshake, if it is not empty.
    pub(crate) async fn send_handshake(&mut self, handshake: &[u8]) -> Result<(), CommError> {
        if !handshake.is_empty() {
            self.buffer.extend_from_slice(handshake);
            self.send_rest().await.map_err(CommError::Io)?;
        }
        Ok(())
    }

    /// Writes the prelude of a message to the buffer.
    fn prepare<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> Result<(), CommError> {
        self.sender.check()?;
        let prelude_len = self.sender.prelude_len(frames.len())?;
        // Bytes after `fed_len` are of a write that was dropped before it sent any.
        self.buffer.truncate(self.fed_len);
        self.buffer.resize(self.fed_len + prelude_len, 0);
        let lengths = frames.iter().map(|frame| frame.as_ref().len() as u64);
        let prelude = &mut self.buffer[self.fed_len..];
        self.sender.encode_prelude(lengths, prelude)?;
        Ok(())
    }

    fn record_failure(&mut self, outcome: io::Result<()>) -> Result<(), CommError> {
        match outcome {
            Ok(()) => self.sender.wrote_message(),
            Err(_) => self.sender.fail(),
        }
        outcome.map_err(CommError::Io)
    }

    /// Frees a buffer that is larger than most messages need.
    fn shrink(&mut self) {
        if self.buffer.capacity() > MAX_KEPT_LEN {
            self.buffer = Vec::new();
        }
    }

    /// Sends the buffer, which ends with the prelude, and the frames.
    async fn send_message<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> io::Result<()> {
        self.gather(frames).await?;
        self.send_rest().await
    }

    async fn send_rest(&mut self) -> io::Result<()> {
        self.send_with(b"").await?;
        self.io.flush().await
    }

    /// Appends small frames to the buffer, and sends large ones after it.
    async fn gather<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> io::Result<()> {
        for frame in frames {
            let frame = frame.as_ref();
            if frame.len() < MAX_COPIED_LEN {
                self.buffer.extend_from_slice(frame);
                if self.buffer.len() >= MAX_GATHERED_LEN {
                    self.send_with(b"").await?;
                }
            } else {
                self.send_with(frame).await?;
            }
        }
        Ok(())
    }

    /// Sends the buffer, then `frame`.
    async fn send_with(&mut self, frame: &[u8]) -> io::Result<()> {
        let (mut first, mut second) = (&self.buffer[..], frame);
        while !first.is_empty() || !second.is_empty() {
            let part = second.get(..MAX_WRITE_LEN).unwrap_or(second);
            let count = if first.is_empty() {
                self.io.write(part).await?
            } else if part.is_empty() {
                self.io.write(first).await?
            } else {
                let slices = [IoSlice::new(first), IoSlice::new(part)];
                self.io.write_vectored(&slices).await?
            };
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.sender.wrote_part();
            let of_first = count.min(first.len());
            first = &first[of_first..];
            second = &second[count - of_first..];
        }
        self.buffer.clear();
        self.fed_len = 0;
        Ok(())
    }

    /// Returns the stream. Buffered messages are lost.
    pub fn into_inner(mut self) -> W {
        self.log.stop();
        self.io
    }

    /// The underlying stream.
    pub const fn get_ref(&self) -> &W {
        &self.io
    }
}

impl<W: AsyncWrite + Send + Unpin> daskwire::transport::CommWriter for CommWriter<W> {
    type Error = CommError;

    async fn write_message(&mut self, frames: &[&[u8]]) -> Result<(), CommError> {
        Self::write_message(self, frames).await
    }

    async fn close(&mut self) -> Result<(), CommError> {
        Self::close(self).await
    }
}

impl<W> fmt::Debug for CommWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommWriter")
            .field("sender", &self.sender)
            .finish_non_exhaustive()
    }
}
