//! The reading half of a WebSocket.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use daskwire_comm::{Limits, ReadHalf};
use tokio::io::{AsyncRead, ReadBuf};

use crate::error::WsError;
use crate::outgoing::Shared;
use crate::parser::{Event, Parser, Side};

/// The bytes of the messages that the peer sends, in the framing of TCP.
pub(crate) struct Incoming {
    io: ReadHalf,
    input: Input,
    parser: Parser,
    /// The limits of a message and of its frames, which the comm sets after its handshake.
    limits: Arc<[AtomicU64; 2]>,
    /// The writing half, which answers pings.
    shared: Arc<Shared>,
    end: Option<End>,
}

/// Why nothing more is received.
enum End {
    /// The peer has closed the WebSocket.
    Closed,
    /// The stream ends within a message, which its reader can see.
    Truncated,
    Failed(WsError),
}

impl Incoming {
    /// Creates the half of a connection, of which `received` was read already.
    pub(crate) fn new(
        io: ReadHalf,
        received: Vec<u8>,
        side: Side,
        limits: Arc<[AtomicU64; 2]>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            io,
            input: Input::new(received),
            parser: Parser::new(side, &Limits::HOST),
            limits,
            shared,
            end: None,
        }
    }

    /// Parses what was read. Returns whether this has changed anything.
    fn parse(&mut self, context: &mut Context<'_>) -> bool {
        let mut rest = self.input.bytes();
        let before = rest.len();
        let outcome = self.parser.push(&mut rest);
        let count = before - rest.len();
        self.input.take(count);
        match outcome {
            Ok(Some(Event::Ping(payload))) => self.shared.answer(payload, context),
            // Within fragments of the first message of several.
            Ok(Some(Event::Close(_))) if !self.parser.is_end_visible() => {
                self.end = Some(End::Failed(WsError::NoClose));
            }
            Ok(Some(Event::Close(status))) => {
                self.shared.closed_by_peer(status);
                self.end = Some(End::Closed);
            }
            Ok(None) => return count != 0,
            Err(error) => {
                self.shared.refuse(error.close_code(), context);
                self.end = Some(End::Failed(error));
            }
        }
        true
    }

    /// Reads from the connection.
    fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let io = Pin::new(&mut self.io);
        let count = if self.parser.direct_len() >= into.remaining().max(MIN_DIRECT_LEN) as u64 {
            let filled = into.filled().len();
            core::task::ready!(io.poll_read(context, into))?;
            let bytes = &mut into.filled_mut()[filled..];
            self.parser.passed_directly(bytes)?;
            bytes.len()
        } else {
            core::task::ready!(self.input.poll_fill(io, context))?
        };
        if count == 0 {
            self.end = Some(match self.parser.is_between_messages() {
                false if self.parser.is_end_visible() => End::Truncated,
                _ => End::Failed(WsError::NoClose),
            });
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Incoming {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.shared.continue_answer(context);
        let [message, frame] = &*this.limits;
        this.parser.set_limits(
            message.load(Ordering::Relaxed),
            frame.load(Ordering::Relaxed),
        );
        let filled = into.filled().len();
        loop {
            this.parser.pass_on(into);
            if into.remaining() == 0 || (this.end.is_none() && this.parse(context)) {
                if into.remaining() == 0 {
                    return Poll::Ready(Ok(()));
                }
                continue;
            }
            if into.filled().len() != filled {
                return Poll::Ready(Ok(()));
            }
            match &this.end {
                None => core::task::ready!(this.poll_receive(context, into))?,
                Some(End::Closed | End::Truncated) => return Poll::Ready(Ok(())),
                Some(End::Failed(error)) => return Poll::Ready(Err(error.clone().into())),
            }
        }
    }
}

/// The read buffer.
struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    const fn new(received: Vec<u8>) -> Self {
        let end = received.len();
        Self {
            bytes: received,
            start: 0,
            end,
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn take(&mut self, count: usize) {
        self.start += count;
    }

    /// Reads once. What is left in the buffer is less than the header of a frame.
    fn poll_fill(
        &mut self,
        io: Pin<&mut ReadHalf>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        // Grow after a full read, shrink after a short one.
        let last = self.end;
        let len = match self.bytes.len() {
            len if last >= len => (len * 2).clamp(MIN_INPUT_LEN, MAX_INPUT_LEN),
            len if last < len / 16 => (len / 2).max(MIN_INPUT_LEN),
            len => len,
        };
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if len != self.bytes.len() && self.end < len {
            let mut bytes = vec![0; len];
            bytes[..self.end].copy_from_slice(&self.bytes[..self.end]);
            self.bytes = bytes;
        }
        let mut space = ReadBuf::new(&mut self.bytes[self.end..]);
        core::task::ready!(io.poll_read(context, &mut space))?;
        let count = space.filled().len();
        self.end += count;
        Poll::Ready(Ok(count))
    }
}

/// The size of the read buffer: small, since thousands of idle comms may have one each, and
/// large if much arrives.
const MIN_INPUT_LEN: usize = 2 << 10;
const MAX_INPUT_LEN: usize = 64 << 10;

/// A smaller part of a frame is read with what follows it.
const MIN_DIRECT_LEN: usize = 4 << 10;
