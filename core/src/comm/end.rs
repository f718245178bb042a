//! Both halves of a comm, in fixed buffers.

use core::ops::Deref;

use super::{Agreement, CommError, CommOptions, DriveError, Handshaking, Outgoing, Receiver};
use crate::Limits;
use crate::copy;
use crate::frame::{Arena, Prelude};
use crate::invariant::OrDefaultIfBug as _;

/// One end of a comm, without I/O; see the [module](super).
///
/// `FRAMES` is the largest number of frames of a message that arrives: 1 for
/// messages without payloads, and for each payload one for its header and one
/// for each of its frames. A handshake in the classic layout has 2.
///
/// # Memory
///
/// The frames of one message are in the buffer `incoming`, and messages that
/// are not sent yet in `outgoing`; [`memory`](crate::memory) has the sizes.
#[derive(Debug)]
pub struct Comm<'b, const FRAMES: usize> {
    receiver: Receiver<[[u8; 8]; FRAMES]>,
    arena: Arena<'b>,
    outgoing: Outgoing<'b>,
    handshaking: Handshaking<'b>,
    limits: Limits,
    agreement: Option<Agreement<'b>>,
    /// Whether the message that has arrived was taken.
    is_taken: bool,
    /// Whether a call of `drive` has begun before the handshake was complete, and did not
    /// end since.
    drives_handshake: bool,
}

impl<'b, const FRAMES: usize> Comm<'b, FRAMES> {
    /// Limits the number of frames to `FRAMES`. A message with more frames is a fault
    /// of the peer, since the caller cannot supply more room later.
    const fn limits(mut limits: Limits) -> Limits {
        if limits.frame_count > FRAMES as u64 {
            limits.frame_count = FRAMES as u64;
        }
        limits
    }

    /// Creates an end of a connection that has just been established.
    ///
    /// `incoming` holds the frames of one message, `outgoing` the messages queued for
    /// sending; both have at least [`HANDSHAKE_LEN`](super::HANDSHAKE_LEN) bytes.
    ///
    /// # Errors
    ///
    /// [`CommError::Encode`] if our handshake does not fit in `outgoing`.
    pub fn new(
        options: CommOptions<'b>,
        incoming: &'b mut [u8],
        outgoing: &'b mut [u8],
    ) -> Result<Self, CommError> {
        let limits = const { Self::limits(Limits::HANDSHAKE) };
        let mut receiver = Receiver::new(options.prefix, [[0; 8]; FRAMES], limits);
        let mut outgoing = Outgoing::new(options.prefix, outgoing);
        let handshaking = Handshaking::new(options.handshake, options.role);
        handshaking.begin(&mut receiver, &mut outgoing.sender, limits)?;
        outgoing.greet(&handshaking)?;
        Ok(Self {
            receiver,
            arena: Arena::new(incoming),
            outgoing,
            handshaking,
            limits: Self::limits(options.limits),
            agreement: None,
            is_taken: false,
            drives_handshake: false,
        })
    }

    /// Returns the space for the next bytes of the peer; never empty.
    ///
    /// # Errors
    ///
    /// * [`CommError::MessageWaiting`] if a message has not been taken;
    /// * [`CommError::Frame`] with
    ///   [`NoBuffer`](crate::frame::FrameErrorKind::NoBuffer) if the frames
    ///   of the message do not fit in the buffer: it says how long they are,
    ///   see [`set_incoming`](Self::set_incoming);
    /// * [`Closed::AfterError`](super::Closed::AfterError) after a final error.
    pub fn space(&mut self) -> Result<&mut [u8], CommError> {
        self.discard_taken()?;
        self.receiver.space(&mut self.arena)
    }

    /// Records that `count` bytes were written to the start of
    /// [`space`](Self::space).
    ///
    /// # Errors
    ///
    /// The peer's fault as soon as it is known; see [`CommError`].
    pub fn received(&mut self, count: usize) -> Result<(), CommError> {
        self.discard_taken()?;
        let outcome = self.receive(count);
        if outcome.is_err() {
            self.receiver.fail();
            self.outgoing.fail();
        }
        outcome
    }

    fn receive(&mut self, count: usize) -> Result<(), CommError> {
        self.receiver.received(count)?;
        if self.agreement.is_none() && self.receiver.is_complete() {
            let (sender, out) = self.outgoing.parts();
            let (receiver, frames) = (&mut self.receiver, self.arena.filled());
            let (agreement, reply_len) = self.handshaking.agree_stored(receiver, frames, out)?;
            self.handshaking.finish(receiver, sender, self.limits);
            self.outgoing.queued(reply_len);
            self.agreement = Some(agreement);
        }
        Ok(())
    }

    /// Copies bytes of the peer from the start of `input` up to the end of a
    /// message, and advances `input` past them. Returns whether a message has
    /// arrived: take it, and push the rest of the input. Without a message all
    /// input was consumed.
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space) and [`received`](Self::received); `input` then
    /// begins with the first byte that was not stored.
    pub fn push(&mut self, input: &mut &[u8]) -> Result<bool, CommError> {
        while !input.is_empty() && !self.has_message() {
            let space = self.space()?;
            let len = space.len().min(input.len());
            let (now, later) = input.split_at_checked(len).or_default_if_bug();
            copy(space.get_mut(..len).or_default_if_bug(), now);
            *input = later;
            self.received(len)?;
        }
        Ok(self.has_message())
    }

    /// Sends what is queued and receives, until the handshake is complete or, if it was,
    /// until a message has arrived. Returns false if the peer closes the comm before.
    ///
    /// `read` and `write` are called for each operation: `Read::read` and `Write::write` for
    /// a stream of std or of embedded-io. Another call continues after an error of the
    /// stream, such as an interruption.
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use daskwire::comm::{Comm, CommOptions, DriveError, HANDSHAKE_LEN};
    ///
    /// /// Sends a request and prints the length of the reply.
    /// fn ask<S: Read + Write>(stream: &mut S) -> Result<(), DriveError<std::io::Error>> {
    ///     let (mut incoming, mut outgoing) = ([0; 4096], [0; HANDSHAKE_LEN]);
    ///     let mut comm = Comm::<1>::new(CommOptions::CONNECTOR, &mut incoming, &mut outgoing)?;
    ///     comm.drive(stream, Read::read, Write::write)?; // the handshake
    ///     comm.send(&[b"\x82\xa2op\xa8identity\xa5reply\xc3"])?;
    ///     comm.drive(stream, Read::read, Write::write)?; // the reply
    ///     if let Some((frames, _)) = comm.take_message() {
    ///         println!("{} bytes", frames[0].len());
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`space`](Self::space), [`received`](Self::received) and
    /// [`end`](Self::end), and those of the stream.
    pub fn drive<S: ?Sized, E>(
        &mut self,
        stream: &mut S,
        mut read: impl FnMut(&mut S, &mut [u8]) -> Result<usize, E>,
        mut write: impl FnMut(&mut S, &[u8]) -> Result<usize, E>,
    ) -> Result<bool, DriveError<E>> {
        self.drives_handshake |= !self.is_open();
        loop {
            while !self.unsent().is_empty() {
                self.wrote(write(stream, self.unsent()))?;
            }
            if self.has_event() {
                return Ok(true);
            }
            let read = read(stream, self.space()?);
            if self.has_ended(read)? {
                return Ok(false);
            }
        }
    }

    /// As [`drive`](Self::drive), for a stream that is not blocking.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe if the operations of the stream are.
    ///
    /// # Errors
    ///
    /// As [`drive`](Self::drive).
    pub async fn drive_async<S: ?Sized, E>(
        &mut self,
        stream: &mut S,
        mut read: impl AsyncFnMut(&mut S, &mut [u8]) -> Result<usize, E>,
        mut write: impl AsyncFnMut(&mut S, &[u8]) -> Result<usize, E>,
    ) -> Result<bool, DriveError<E>> {
        self.drives_handshake |= !self.is_open();
        loop {
            while !self.unsent().is_empty() {
                let written = write(stream, self.unsent()).await;
                self.wrote(written)?;
            }
            if self.has_event() {
                return Ok(true);
            }
            let read = read(stream, self.space()?).await;
            if self.has_ended(read)? {
                return Ok(false);
            }
        }
    }

    /// Whether a message has arrived, or the handshake that is driven is complete.
    fn has_event(&mut self) -> bool {
        let has_opened = self.is_open() && core::mem::take(&mut self.drives_handshake);
        has_opened || self.has_message()
    }

    fn wrote<E>(&mut self, written: Result<usize, E>) -> Result<(), DriveError<E>> {
        match written.map_err(DriveError::Io)? {
            0 => Err(DriveError::WriteZero),
            count => {
                self.sent(count);
                Ok(())
            }
        }
    }

    /// Records the outcome of a read, and returns whether the stream has ended.
    fn has_ended<E>(&mut self, read: Result<usize, E>) -> Result<bool, DriveError<E>> {
        let count = read.map_err(DriveError::Io)?;
        match count {
            0 => self.end()?,
            _ => self.received(count)?,
        }
        Ok(count == 0)
    }

    /// Whether a message has arrived and was not taken.
    pub const fn has_message(&self) -> bool {
        !self.is_taken && self.agreement.is_some() && self.receiver.is_complete()
    }

    /// Returns the frames of the message that has arrived, with the outgoing
    /// side to reply. The message is discarded when the next bytes arrive.
    pub fn take_message(&mut self) -> Option<(Frames<'_, FRAMES>, &mut Outgoing<'b>)> {
        if !self.has_message() {
            return None;
        }
        self.is_taken = true;
        let frames = Frames::new(self.receiver.prelude()?, self.arena.filled())?;
        Some((frames, &mut self.outgoing))
    }

    /// Queues a message. [`unsent`](Self::unsent) then has its bytes.
    ///
    /// # Errors
    ///
    /// [`CommError::Encode`] and [`CommError::NotOpen`], with nothing queued, or
    /// [`Closed::AfterError`](super::Closed::AfterError) after a final error.
    pub fn send(&mut self, frames: &[&[u8]]) -> Result<(), CommError> {
        self.outgoing.send(frames)
    }

    /// The outgoing side alone.
    pub const fn outgoing(&mut self) -> &mut Outgoing<'b> {
        &mut self.outgoing
    }

    /// The bytes to send, in order; none after a final error.
    pub fn unsent(&self) -> &[u8] {
        self.outgoing.unsent()
    }

    /// Records that the first `count` of the [`unsent`](Self::unsent) bytes
    /// were sent.
    pub fn sent(&mut self, count: usize) {
        self.outgoing.sent(count);
    }

    /// Whether the handshake is complete and messages can be sent.
    pub const fn is_open(&self) -> bool {
        self.outgoing.sender.check().is_ok()
    }

    /// The result of the handshake, once the comm is open.
    pub const fn agreement(&self) -> Option<Agreement<'b>> {
        self.agreement
    }

    /// Records the end of the peer's stream, which may end between two messages. Messages
    /// can still be sent then.
    ///
    /// # Errors
    ///
    /// [`Closed`](super::Closed) with the reason, which is final.
    pub fn end(&mut self) -> Result<(), CommError> {
        let ended = self.receiver.end();
        ended.inspect_err(|_| self.outgoing.fail())
    }

    /// Continues with another buffer for the frames that arrive, after
    /// [`NoBuffer`](crate::frame::FrameErrorKind::NoBuffer) or between two messages.
    ///
    /// # Errors
    ///
    /// [`CommError::MessageWaiting`] if part of a message is in the former
    /// buffer, or [`Closed::AfterError`](super::Closed::AfterError) after a final error.
    pub fn set_incoming(&mut self, incoming: &'b mut [u8]) -> Result<(), CommError> {
        self.discard_taken()?;
        if self.receiver.is_within_frames() {
            return Err(CommError::MessageWaiting);
        }
        self.arena = Arena::new(incoming);
        Ok(())
    }

    /// Discards the message that was taken. Fails if a message still has to be taken.
    fn discard_taken(&mut self) -> Result<(), CommError> {
        if self.has_message() {
            return Err(CommError::MessageWaiting);
        }
        if core::mem::take(&mut self.is_taken) {
            self.receiver.resume()?;
        }
        Ok(())
    }
}

/// The frames of a message that has arrived, as a slice of slices.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'m, const FRAMES: usize> {
    slots: [&'m [u8]; FRAMES],
    count: usize,
}

impl<'m, const FRAMES: usize> Frames<'m, FRAMES> {
    fn new(prelude: Prelude<'_>, bytes: &'m [u8]) -> Option<Self> {
        let mut slots = [&[][..]; FRAMES];
        let count = prelude.split(bytes, &mut slots).ok()?.len();
        Some(Self { slots, count })
    }
}

impl<'m, const FRAMES: usize> Deref for Frames<'m, FRAMES> {
    type Target = [&'m [u8]];

    fn deref(&self) -> &Self::Target {
        self.slots.get(..self.count).or_default_if_bug()
    }
}
