//! Writing messages.

use core::fmt;
use std::io::{self, IoSlice};

use tokio::io::{AsyncWrite, AsyncWriteExt};
use wire::frame::{EncodeError, Prefix, encode_prelude, prelude_len};

use crate::comm::SetTraffic;
use crate::{Closed, CommError, Traffic, WriteHalf};

/// Frames below this many bytes are copied behind the prelude, so that they
/// leave with it; larger ones are sent from where they are.
const COPIED: usize = 16 << 10;

/// How many bytes are gathered before they are sent.
const GATHERED: usize = 64 << 10;

/// A buffer larger than this is not kept for the next message.
const KEPT: usize = 4 << 10;

/// The half of a comm that messages leave on.
///
/// A small message leaves with one write, or with others
/// ([`feed_message`](Self::feed_message)). Large frames are not copied.
pub struct CommWriter<W = WriteHalf> {
    io: W,
    prefix: Prefix,
    /// What is gathered to leave together.
    buffer: Vec<u8>,
    /// How much of it is whole messages, which stay whatever becomes of the next.
    fed_len: usize,
    state: State,
    set_traffic: Option<Box<SetTraffic>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Between messages.
    Ready,
    /// Part of what is to leave has left. Seen from outside, the future that
    /// was sending it has been dropped.
    Within,
    Failed,
    Closed,
}

impl<W: AsyncWrite + Unpin> CommWriter<W> {
    /// Writes messages to `io`, at the end of which no message is half done.
    pub const fn new(io: W, prefix: Prefix) -> Self {
        Self {
            io,
            prefix,
            buffer: Vec::new(),
            fed_len: 0,
            state: State::Ready,
            set_traffic: None,
        }
    }

    /// Says what the messages to come are for. Transports on which some comms
    /// can go before others heed it; to all others it means nothing.
    pub fn set_traffic(&self, traffic: Traffic) {
        if let Some(set) = &self.set_traffic {
            set(traffic);
        }
    }

    pub(crate) fn set_traffic_hook(&mut self, hook: Option<Box<SetTraffic>>) {
        self.set_traffic = hook;
    }

    /// Writes a message of these frames.
    ///
    /// When it returns the message is with the operating system; whether the
    /// peer has it, nobody knows. Over TCP a peer that takes nothing for 30
    /// seconds counts as gone, as it does for Dask.
    ///
    /// # Cancel safety
    ///
    /// This method is not cancel safe, but it fails safe. If it is dropped
    /// before the first byte has left, nothing has happened. If it is dropped
    /// later, part of a message is on its way that no other may follow: every
    /// later write gives [`Closed::WriteCancelled`], and the peer sees the
    /// connection end within a message when this half is dropped or closed.
    ///
    /// # Errors
    ///
    /// * [`CommError::Encode`] if there are no frames; nothing was sent, and
    ///   the comm is as good as before;
    /// * [`CommError::Closed`] if an earlier write failed or was dropped, or
    ///   the comm was closed on this side;
    /// * [`CommError::Io`].
    pub async fn write_message<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> Result<(), CommError> {
        self.prepare(frames)?;
        let outcome = self.send_message(frames).await;
        self.settle(outcome)?;
        self.shrink();
        Ok(())
    }

    /// Takes a message that may leave together with those that follow, which
    /// is much cheaper for many small ones: 64 KiB of them leave with one write.
    ///
    /// Those that have not left do so with the next
    /// [`write_message`](Self::write_message), [`flush`](Self::flush) or
    /// [`close`](Self::close), in order; without any of these they do not, and
    /// are lost when this is dropped.
    ///
    /// # Cancel safety
    ///
    /// As [`write_message`](Self::write_message). A message that was taken
    /// stays taken.
    ///
    /// # Errors
    ///
    /// As [`write_message`](Self::write_message).
    pub async fn feed_message<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> Result<(), CommError> {
        self.prepare(frames)?;
        let outcome = self.gather(frames).await;
        self.settle(outcome)?;
        self.fed_len = self.buffer.len();
        Ok(())
    }

    /// Sends what [`feed_message`](Self::feed_message) has taken.
    ///
    /// # Cancel safety
    ///
    /// As [`write_message`](Self::write_message).
    ///
    /// # Errors
    ///
    /// As [`write_message`](Self::write_message).
    pub async fn flush(&mut self) -> Result<(), CommError> {
        self.check()?;
        self.buffer.truncate(self.fed_len);
        let outcome = self.send_rest().await;
        self.settle(outcome)?;
        self.shrink();
        Ok(())
    }

    /// Sends what has been taken, and says that no more messages follow, so that
    /// the peer sees the end of the stream. Closing twice is closing once.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: call it again. Writes fail from the first
    /// call on. Only while it sends what [`feed_message`](Self::feed_message)
    /// has taken, it is as [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// * [`CommError::Io`];
    /// * [`CommError::Closed`] if something that was fed did not leave, because
    ///   an earlier write, flush or close failed or was dropped.
    ///
    /// The peer sees the end of the stream all the same.
    pub async fn close(&mut self) -> Result<(), CommError> {
        let flushed = match self.state {
            State::Ready if self.fed_len != 0 => self.flush().await,
            _ => Ok(()),
        };
        // Whoever fed was told that all is well, and learns here that it is not.
        let lost = match (flushed, self.state) {
            (Err(error), _) => Some(error),
            (Ok(()), State::Within) if self.fed_len != 0 => Some(Closed::WriteCancelled.into()),
            (Ok(()), State::Failed) if self.fed_len != 0 => Some(Closed::AfterError.into()),
            _ => None,
        };
        if self.state == State::Ready {
            self.state = State::Closed;
        }
        let outcome = match self.io.shutdown().await {
            // The peer was faster.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            outcome => outcome.map_err(CommError::Io),
        };
        lost.map_or(outcome, Err)
    }

    fn check(&self) -> Result<(), CommError> {
        match self.state {
            State::Ready => Ok(()),
            State::Within => Err(Closed::WriteCancelled.into()),
            State::Failed => Err(Closed::AfterError.into()),
            State::Closed => Err(Closed::Locally.into()),
        }
    }

    /// Puts the prelude of a message into the buffer.
    fn prepare<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> Result<(), CommError> {
        self.check()?;
        let prelude_len = prelude_len(self.prefix, frames.len()).ok_or(EncodeError::TooLong)?;
        // What is behind was of a write that was dropped before it began.
        self.buffer.truncate(self.fed_len);
        self.buffer.resize(self.fed_len + prelude_len, 0);
        let lengths = frames.iter().map(|frame| frame.as_ref().len() as u64);
        let place = self.buffer.get_mut(self.fed_len..).unwrap_or_default();
        encode_prelude(self.prefix, lengths, place)?;
        Ok(())
    }

    fn settle(&mut self, outcome: io::Result<()>) -> Result<(), CommError> {
        self.state = match outcome {
            Ok(()) => State::Ready,
            Err(_) => State::Failed,
        };
        outcome.map_err(CommError::Io)
    }

    /// Gives back what the next message will not need.
    fn shrink(&mut self) {
        if self.buffer.capacity() > KEPT {
            self.buffer = Vec::new();
        }
    }

    /// Sends what is in the buffer, where the prelude is the last, and the frames.
    async fn send_message<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> io::Result<()> {
        self.gather(frames).await?;
        self.send_rest().await
    }

    async fn send_rest(&mut self) -> io::Result<()> {
        self.send_with(b"").await?;
        self.io.flush().await
    }

    /// Puts the frames behind the prelude in the buffer, or sends them with it.
    async fn gather<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> io::Result<()> {
        for frame in frames {
            let frame = frame.as_ref();
            if frame.len() < COPIED {
                self.buffer.extend_from_slice(frame);
                if self.buffer.len() >= GATHERED {
                    self.send_with(b"").await?;
                }
            } else {
                self.send_with(frame).await?;
            }
        }
        Ok(())
    }

    /// Sends the buffer and `frame` behind it.
    async fn send_with(&mut self, frame: &[u8]) -> io::Result<()> {
        let (mut first, mut second) = (&self.buffer[..], frame);
        while !first.is_empty() || !second.is_empty() {
            let count = if first.is_empty() {
                self.io.write(second).await?
            } else if second.is_empty() {
                self.io.write(first).await?
            } else {
                let slices = [IoSlice::new(first), IoSlice::new(second)];
                self.io.write_vectored(&slices).await?
            };
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.state = State::Within;
            let of_first = count.min(first.len());
            first = first.get(of_first..).unwrap_or_default();
            second = second.get(count - of_first..).unwrap_or_default();
        }
        self.buffer.clear();
        self.fed_len = 0;
        Ok(())
    }

    pub(crate) const fn set_prefix(&mut self, prefix: Prefix) {
        self.prefix = prefix;
    }

    /// The stream.
    pub fn into_inner(self) -> W {
        self.io
    }

    /// The stream.
    pub const fn get_ref(&self) -> &W {
        &self.io
    }
}

impl<W: AsyncWrite + Send + Unpin> wire::transport::CommWriter for CommWriter<W> {
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
            .field("prefix", &self.prefix)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
