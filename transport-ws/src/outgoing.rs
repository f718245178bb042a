//! The writing half of a WebSocket.

use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use daskwire::frame::{FrameDecoder, Prefix, Wanted};
use daskwire_comm::runtime::poll_now;
use daskwire_comm::{Limits, WriteHalf};
use tokio::io::AsyncWrite;
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

use crate::mask::{self, Masks};
use crate::parser::Side;

/// The bytes of messages in the framing of TCP, which are sent as messages of the WebSocket.
pub(crate) struct Outgoing(Arc<Shared>);

/// The outgoing side of a connection, which the reading half also uses: it answers pings.
pub(crate) struct Shared {
    sender: Mutex<Sender>,
    /// Whether an answer of the reading half may not be sent.
    has_answer: AtomicBool,
}

struct Sender {
    /// `None` after the stream was ended.
    io: Option<WriteHalf>,
    /// What to send next, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// Reads the prelude of what the comm writes.
    decoder: FrameDecoder<Vec<u8>>,
    /// The number of frames of the message whose WebSocket messages have begun.
    begun: usize,
    /// Whether the payload of a WebSocket frame is not complete.
    is_within_frame: bool,
    /// For clients.
    masks: Option<Masks>,
    mask: Option<[u8; 4]>,
    /// The payload of the answer to the last ping.
    pong: Option<Vec<u8>>,
    /// The status of the close message to send.
    close: Option<u16>,
    /// Whether the close message was put into `out`, or the stream has ended.
    is_closing: bool,
    /// Whether the comm has closed this half.
    is_closed: bool,
    /// The status of the close message of the peer, with which this end answers it.
    answer_status: Option<u16>,
    waiting: Waiting,
}

/// The tasks that wait for the connection, which keeps one waker only: that of the reading half
/// with an answer, and that of the writing half. Either may stop to wait at any time, without notice.
#[derive(Clone, Default)]
struct Waiting([Option<Waker>; 2]);

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.0.iter().flatten().for_each(Waker::wake_by_ref);
    }
}

/// A half of the connection that uses the outgoing side.
#[derive(Clone, Copy)]
enum Half {
    Reader = 0,
    Writer = 1,
}

impl Outgoing {
    pub(crate) fn new(io: WriteHalf, side: Side) -> (Self, Arc<Shared>) {
        let sender = Sender {
            io: Some(io),
            out: Vec::new(),
            sent: 0,
            decoder: FrameDecoder::new(Prefix::U64, Vec::new(), UNLIMITED),
            begun: 0,
            is_within_frame: false,
            masks: (side == Side::Client).then(Masks::default),
            mask: None,
            pong: None,
            close: None,
            is_closing: false,
            is_closed: false,
            answer_status: None,
            waiting: Waiting::default(),
        };
        let shared = Arc::new(Shared {
            sender: Mutex::new(sender),
            has_answer: AtomicBool::new(false),
        });
        (Self(Arc::clone(&shared)), shared)
    }
}

impl Shared {
    fn sender(&self) -> MutexGuard<'_, Sender> {
        // A panic within the lock leaves bytes that the peer refuses at worst.
        let sender = self.sender.lock();
        sender.unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a ping, at once or as soon as the frame that is being sent is complete.
    pub(crate) fn answer(&self, payload: Vec<u8>, context: &mut Context<'_>) {
        let mut sender = self.sender();
        sender.pong = Some(payload);
        self.send_answer(&mut sender, context);
    }

    /// Records that the peer has closed the WebSocket, with this status.
    pub(crate) fn closed_by_peer(&self, status: Option<u16>) {
        self.sender().answer_status = status;
    }

    /// Closes the WebSocket with an error.
    pub(crate) fn refuse(&self, code: u16, context: &mut Context<'_>) {
        let mut sender = self.sender();
        sender.close.get_or_insert(code);
        self.send_answer(&mut sender, context);
    }

    /// Continues to send an answer for which the connection had no room.
    pub(crate) fn continue_answer(&self, context: &mut Context<'_>) {
        if self.has_answer.load(Ordering::Relaxed) {
            self.send_answer(&mut self.sender(), context);
        }
    }

    /// Sends an answer, unless it has to wait for the end of a frame.
    fn send_answer(&self, sender: &mut Sender, context: &mut Context<'_>) {
        sender.queue_control();
        let is_sent = !sender.is_within_frame
            // The writing half reports an error.
            && sender.poll_as(Half::Reader, context, Sender::poll_flush).is_ready();
        self.has_answer.store(!is_sent, Ordering::Relaxed);
    }
}

impl Sender {
    /// Polls for one half, so that the connection wakes the other one, too, if that waits.
    fn poll_as<T>(
        &mut self,
        half: Half,
        context: &mut Context<'_>,
        poll: impl FnOnce(&mut Self, &mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let own = half as usize;
        self.waiting.0[own] = Some(context.waker().clone());
        let outcome = match self.waiting.0[1 - own] {
            None => poll(self, context),
            Some(_) => {
                let both = Waker::from(Arc::new(self.waiting.clone()));
                poll(self, &mut Context::from_waker(&both))
            }
        };
        if outcome.is_ready() {
            self.waiting.0[own] = None;
        }
        outcome
    }

    /// Puts control frames into `out` between the frames of messages.
    fn queue_control(&mut self) {
        if self.is_within_frame || self.is_closing {
            return;
        }
        // A peer that reads nothing gets no more answers: those to later pings replace this one.
        if self.out.len() < MAX_BUFFERED_LEN
            && let Some(payload) = self.pong.take()
        {
            self.begin_frame(OpCode::Control(Control::Pong), payload.len() as u64);
            self.put(&payload, 0);
        }
        if let Some(code) = self.close {
            self.begin_frame(OpCode::Control(Control::Close), 2);
            self.put(&code.to_be_bytes(), 0);
            self.is_closing = true;
        }
    }

    /// Puts the header of a WebSocket frame into `out`.
    fn begin_frame(&mut self, opcode: OpCode, len: u64) {
        self.mask = self.masks.as_mut().map(Masks::next);
        let header = FrameHeader {
            opcode,
            mask: self.mask,
            ..FrameHeader::default()
        };
        // Writing to a vector does not fail.
        let _ = header.format(len, &mut self.out);
    }

    /// Puts bytes of a payload into `out`, which begin at this position of it.
    fn put(&mut self, bytes: &[u8], position: u64) {
        let at = self.out.len();
        self.out.extend_from_slice(bytes);
        if let Some(mask) = self.mask {
            mask::apply(&mut self.out[at..], mask, position);
        }
    }

    /// Begins the messages of the frames before `end` that have not begun. All but the last are
    /// empty.
    ///
    /// # Errors
    ///
    /// If the WebSocket was closed meanwhile: nothing may follow the close message.
    fn begin_frames(&mut self, end: usize) -> io::Result<()> {
        while self.begun < end {
            let Some(len) = (self.decoder.prelude()).and_then(|prelude| prelude.length(self.begun))
            else {
                break;
            };
            self.queue_control();
            if self.is_closing {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.begin_frame(OpCode::Data(Data::Binary), len);
            self.is_within_frame = len != 0;
            self.begun += 1;
        }
        Ok(())
    }

    /// Begins what comes next, after bytes of the comm.
    fn begin_next(&mut self) -> io::Result<()> {
        match self.decoder.wanted().map_err(invalid)? {
            Wanted::Frame {
                index, filled: 0, ..
            } => {
                self.is_within_frame = false;
                self.begin_frames(index + 1)?;
            }
            Wanted::Nothing => {
                self.is_within_frame = false;
                let prelude = self.decoder.prelude();
                self.begin_frames(prelude.map_or(0, |prelude| prelude.frame_count()))?;
                self.queue_control();
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes bytes of the comm into `out`, and returns how many.
    fn take(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() && self.out.len() < MAX_BUFFERED_LEN {
            match self.decoder.wanted().map_err(invalid)? {
                Wanted::Frame { len, filled, .. } => {
                    let space = MAX_BUFFERED_LEN - self.out.len();
                    let (now, later) = rest.split_at((len - filled).min(space).min(rest.len()));
                    self.put(now, filled as u64);
                    self.decoder.advance(now.len()).map_err(invalid)?;
                    rest = later;
                    self.begin_next()?;
                }
                Wanted::Nothing => {
                    self.decoder.reset();
                    self.begun = 0;
                }
                _ => {
                    self.decoder.push_prelude(&mut rest).map_err(invalid)?;
                    if let Some(prelude) = self.decoder.prelude() {
                        let count = prelude.frame_count() as u64;
                        self.queue_control();
                        if self.is_closing {
                            return Err(io::ErrorKind::BrokenPipe.into());
                        }
                        self.begin_frame(OpCode::Data(Data::Binary), 8);
                        self.put(&count.to_le_bytes(), 0);
                        self.begin_next()?;
                    }
                }
            }
        }
        Ok(bytes.len() - rest.len())
    }

    /// The part of `bytes` that belongs to the current frame and is sent without a copy.
    fn direct<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        match self.decoder.wanted() {
            Ok(Wanted::Frame { len, filled, .. }) if self.masks.is_none() => {
                let part = &bytes[..bytes.len().min(len - filled)];
                (part.len() >= MIN_DIRECT_LEN).then_some(part)
            }
            _ => None,
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_closing || self.io.is_none() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let Some(part) = self.direct(bytes) else {
            if self.out.len() >= MAX_BUFFERED_LEN {
                ready!(self.poll_send(context))?;
            }
            return Poll::Ready(self.take(bytes));
        };
        ready!(self.poll_send(context))?;
        let io = self.io.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let count = ready!(Pin::new(io).poll_write(context, part))?;
        self.decoder.advance(count).map_err(invalid)?;
        if count != 0 {
            self.begin_next()?;
        }
        Poll::Ready(Ok(count))
    }

    /// Sends `out`.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let io = self.io.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        while self.sent < self.out.len() {
            let rest = &self.out[self.sent..];
            match ready!(Pin::new(&mut *io).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
        }
        self.out.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.queue_control();
            ready!(self.poll_send(context))?;
            if self.pong.is_none() || self.is_within_frame || self.is_closing {
                break;
            }
        }
        if self.out.capacity() > MAX_KEPT_LEN {
            self.out = Vec::new();
        }
        let io = self.io.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        Pin::new(io).poll_flush(context)
    }

    /// Whether no message was begun that is not complete.
    fn is_between_messages(&self) -> bool {
        self.decoder.is_idle() || self.decoder.is_complete()
    }

    /// Sends the close message, or ends the stream within a message.
    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.io.is_some() && !self.is_between_messages() {
            if self.is_closing {
                // The close message says why.
                ready!(self.poll_send(context))?;
            }
            self.is_closing = true;
        }
        let is_between_messages = self.is_between_messages();
        let Some(io) = &mut self.io else {
            return Poll::Ready(Ok(()));
        };
        if !is_between_messages {
            return Pin::new(io).poll_shutdown(context);
        }
        // The connection stays open: an HTTP proxy ends both directions with the first one that
        // ends, and the close message ends this one.
        self.close
            .get_or_insert(self.answer_status.unwrap_or(NORMAL));
        ready!(self.poll_flush(context))?;
        self.is_closed = true;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Outgoing {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut sender = self.0.sender();
        sender.poll_as(Half::Writer, context, |sender, context| {
            sender.poll_write(context, bytes)
        })
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut sender = self.0.sender();
        sender.poll_as(Half::Writer, context, Sender::poll_flush)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut sender = self.0.sender();
        sender.poll_as(Half::Writer, context, Sender::poll_close)
    }
}

/// Ends the stream: between messages with a close message if there is room for it, otherwise
/// without, which is an error for the peer.
impl Drop for Outgoing {
    fn drop(&mut self) {
        let mut sender = self.0.sender();
        if sender.is_closed {
            return;
        }
        if sender.is_between_messages() {
            let status = sender.answer_status.unwrap_or(GOING_AWAY);
            sender.close.get_or_insert(status);
            if poll_now(|context| sender.poll_flush(context)).is_ready() {
                return;
            }
        }
        sender.io = None;
    }
}

/// Ends the connection after a proper close, when both halves were dropped.
impl Drop for Sender {
    fn drop(&mut self) {
        if let Some(io) = self.io.as_mut().filter(|_| self.is_closed) {
            let _ = poll_now(|context| Pin::new(&mut *io).poll_shutdown(context));
        }
    }
}

/// The error of bytes that are no message. A relay may forward such bytes of its peer.
fn invalid(error: impl core::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// What a comm sends is not limited. The lengths take memory as they are written.
const UNLIMITED: Limits = Limits::HOST
    .with_frame_count(u64::MAX)
    .with_frame_len(u64::MAX)
    .with_message_len(u64::MAX);

/// The number of bytes that are masked and sent together.
const MAX_BUFFERED_LEN: usize = 64 << 10;

/// A part of a frame of at least this length is sent without a copy, if it needs no mask.
const MIN_DIRECT_LEN: usize = 16 << 10;

/// A larger buffer is not kept for the next message.
const MAX_KEPT_LEN: usize = 4 << 10;

/// Status of a close message: no error.
const NORMAL: u16 = 1000;

/// Status of a close message: the comm was dropped.
const GOING_AWAY: u16 = 1001;

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that has no room.
    struct Full;

    impl AsyncWrite for Full {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    /// A connection that has room when it is told so, and keeps one waker.
    #[derive(Clone, Default)]
    struct Gate(Arc<Mutex<Room>>);

    /// Whether there is room, what was written, and who waits.
    type Room = (bool, Vec<u8>, Option<Waker>);

    impl AsyncWrite for Gate {
        fn poll_write(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let (is_open, written, waker) = &mut *self.0.lock().unwrap();
            if *is_open {
                written.extend_from_slice(bytes);
                return Poll::Ready(Ok(bytes.len()));
            }
            *waker = Some(context.waker().clone());
            Poll::Pending
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A message of one empty frame.
    const MESSAGE: [u8; 24] = {
        let mut message = [0; 24];
        message[0] = 16;
        message[8] = 1;
        message
    };

    #[test]
    fn a_flush_that_was_cancelled_holds_back_no_answers() {
        let gate = Gate::default();
        let (mut outgoing, shared) = Outgoing::new(Box::new(gate.clone()), Side::Server);
        let mut noop = Context::from_waker(Waker::noop());
        let mut outgoing = Pin::new(&mut outgoing);
        assert!(outgoing.as_mut().poll_write(&mut noop, &MESSAGE).is_ready());
        assert!(outgoing.as_mut().poll_flush(&mut noop).is_pending());
        gate.0.lock().unwrap().0 = true;
        shared.answer(b"ping".to_vec(), &mut noop);
        let (_, written, _) = &*gate.0.lock().unwrap();
        assert!(written.ends_with(b"\x8a\x04ping"), "{written:?}");
    }

    #[test]
    fn room_on_the_connection_wakes_both_halves() {
        for reader_first in [false, true] {
            let gate = Gate::default();
            let (mut outgoing, shared) = Outgoing::new(Box::new(gate.clone()), Side::Server);
            let [reader, writer] = [(); 2].map(|()| Arc::new(Woken::default()));
            let wakers = [&reader, &writer].map(|woken| Waker::from(Arc::clone(woken)));
            let answer = || {
                shared.answer(b"ping".to_vec(), &mut Context::from_waker(&wakers[0]));
            };
            let mut flush = || {
                let mut context = Context::from_waker(&wakers[1]);
                let mut outgoing = Pin::new(&mut outgoing);
                assert!(
                    outgoing
                        .as_mut()
                        .poll_write(&mut context, &MESSAGE)
                        .is_ready()
                );
                assert!(outgoing.as_mut().poll_flush(&mut context).is_pending());
            };
            match reader_first {
                true => (answer(), flush()),
                false => (flush(), answer()),
            };
            let waker = gate.0.lock().unwrap().2.take();
            waker.expect("a task waits").wake();
            for woken in [reader, writer] {
                assert!(woken.0.load(Ordering::Relaxed), "{reader_first}");
            }
        }
    }

    #[test]
    fn pings_of_a_peer_that_does_not_read_take_bounded_memory() {
        let (_outgoing, shared) = Outgoing::new(Box::new(Full), Side::Server);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..10_000 {
            shared.answer(vec![0; 125], &mut context);
        }
        assert!(shared.sender().out.len() <= MAX_BUFFERED_LEN + 127);
        assert!(shared.sender().pong.is_some());
    }
}
