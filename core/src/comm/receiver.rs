//! The receiving half of a comm.

use core::fmt;

use super::{Closed, CommError, HandshakeRole};
use crate::Limits;
use crate::copy;
use crate::frame::{
    FrameBuffers, FrameDecoder, FrameError, FrameErrorKind, FramedMessage, Prefix, Prelude,
    PreludeStorage, Wanted,
};
use crate::handshake::detect_prefix;
use crate::invariant::OrDefaultIfBug as _;

/// The receiving half of a comm, without its stream: what to read next, where the bytes
/// are stored, and which errors are final.
///
/// It reads no stream. A loop asks for [`space`](Self::space), reads into it, and reports
/// the number of bytes to [`received`](Self::received), until the space is empty and the
/// message complete. A loop that reads into memory of its own, such as memory that is not
/// initialised, asks for [`wanted`](Self::wanted) instead.
///
/// `P` stores the lengths of the frames of a message. The frames are stored in the
/// [`FrameBuffers`] that each call gets, which have to be the same within a message.
///
/// # Cancel safety
///
/// Only `received` changes what has arrived, so that a read that is dropped before it
/// completes loses nothing.
///
/// # Final errors
///
/// After an error the receiver returns [`Closed::AfterError`], except for
/// [`NoBuffer`](FrameErrorKind::NoBuffer) before anything of a frame was stored: call again
/// with larger buffers, or with others.
pub struct Receiver<P> {
    decoder: FrameDecoder<P>,
    /// The first bytes of a handshake, which show the prefix of the peer.
    first: [u8; 8],
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// So many of the first bytes of the handshake have been received.
    Detect {
        filled: usize,
        expected: Option<Prefix>,
    },
    /// The first message, which is the handshake of the peer.
    Handshake,
    Open,
    /// The peer has closed the comm between two messages.
    Ended,
    Failed,
}

impl<P: PreludeStorage> Receiver<P> {
    /// Creates the half of a comm that is at the beginning of a message, after the
    /// handshake or [before it](super::Handshaking::begin).
    pub const fn new(prefix: Prefix, storage: P, limits: Limits) -> Self {
        Self {
            decoder: FrameDecoder::new(prefix, storage, limits),
            first: [0; 8],
            state: State::Open,
        }
    }

    /// Waits for the handshake of the peer, which detects its prefix.
    pub(super) fn begin_handshake(
        &mut self,
        role: HandshakeRole,
        limits: Limits,
    ) -> Result<(), CommError> {
        if !self.resume()? {
            return Err(Closed::BeforeHandshake.into());
        }
        let expected = match role {
            HandshakeRole::SendFirst(_) => Some(self.prefix()),
            HandshakeRole::WaitForPeer => None,
        };
        // PROTOCOL HANDSHAKE-6
        self.decoder.reset_with(limits);
        let filled = 0;
        self.state = State::Detect { filled, expected };
        Ok(())
    }

    /// Ends the handshake; these limits apply from here on.
    pub(super) fn open(&mut self, limits: Limits) {
        self.decoder.reset_with(limits);
        self.state = State::Open;
    }

    /// The prefix of the messages. Before the handshake of a side that waits, it is
    /// only assumed.
    pub const fn prefix(&self) -> Prefix {
        self.decoder.prefix()
    }

    /// The limits for messages: during the handshake, those for it.
    pub const fn limits(&self) -> &Limits {
        self.decoder.limits()
    }

    /// Begins the next message if the last one is complete; one that has begun continues.
    /// Returns false if the peer has closed the comm.
    ///
    /// # Errors
    ///
    /// [`CommError::NotOpen`] during the handshake, or [`Closed::AfterError`].
    pub fn resume(&mut self) -> Result<bool, CommError> {
        match self.state {
            State::Detect { .. } | State::Handshake => Err(CommError::NotOpen),
            State::Open => {
                if self.decoder.is_complete() {
                    self.decoder.reset();
                }
                Ok(true)
            }
            State::Ended => Ok(false),
            State::Failed => Err(Closed::AfterError.into()),
        }
    }

    /// Returns the space for the next bytes of the peer. It is empty if the message is
    /// complete.
    ///
    /// # Errors
    ///
    /// * [`CommError::Frame`] if the buffers or the storage for lengths are too small;
    /// * [`Closed::AfterError`] after an error or the end of the stream.
    pub fn space<'s, B>(&'s mut self, frames: &'s mut B) -> Result<&'s mut [u8], CommError>
    where
        B: FrameBuffers + ?Sized,
    {
        self.check()?;
        if let State::Detect { filled, .. } = self.state {
            return Ok(self.first.get_mut(filled..).or_default_if_bug());
        }
        let is_unstarted = self.unstarted_frames_len().is_some();
        match self.decoder.space(frames) {
            Ok(space) => Ok(space),
            Err(error) => {
                if !(is_unstarted && is_no_buffer(&error)) {
                    self.state = State::Failed;
                }
                Err(error.into())
            }
        }
    }

    /// Returns the next input, for callers that read into their own memory: read at most
    /// that many bytes, and report them to [`received`](Self::received).
    ///
    /// # Errors
    ///
    /// [`Closed::AfterError`] after an error or the end of the stream.
    pub fn wanted(&self) -> Result<Wanted, CommError> {
        self.check()?;
        if let State::Detect { filled, .. } = self.state {
            let remaining = self.first.len().saturating_sub(filled);
            return Ok(Wanted::Prelude { remaining });
        }
        Ok(self.decoder.wanted()?)
    }

    /// The length of all frames if none of their bytes has arrived, but their lengths have.
    pub const fn unstarted_frames_len(&self) -> Option<u64> {
        self.decoder.unstarted_frames_len()
    }

    /// Records that `count` bytes were written to the start of [`space`](Self::space).
    ///
    /// # Errors
    ///
    /// The fault of the peer, as soon as it is known; [`CommError::Frame`] with
    /// [`Overrun`](FrameErrorKind::Overrun) if there was less space.
    pub fn received(&mut self, count: usize) -> Result<(), CommError> {
        self.check()?;
        let outcome = match self.state {
            State::Detect { filled, expected } => self.detect(filled, count, expected),
            _ => self.decoder.advance(count).map_err(CommError::Frame),
        };
        self.record(outcome)
    }

    /// Detects the prefix of the peer, once its first bytes have arrived.
    fn detect(
        &mut self,
        filled: usize,
        count: usize,
        expected: Option<Prefix>,
    ) -> Result<(), CommError> {
        let space = self.first.len().saturating_sub(filled);
        if count > space {
            let (at, advanced) = (filled as u64, count);
            let kind = FrameErrorKind::Overrun { advanced, space };
            return Err(FrameError { at, kind }.into());
        }
        if count < space {
            let filled = filled.saturating_add(count);
            self.state = State::Detect { filled, expected };
            return Ok(());
        }
        // PROTOCOL FRAME-13: the decoder refuses bytes that fit neither prefix.
        let peer = detect_prefix(&self.first).unwrap_or(self.prefix());
        if expected.is_some_and(|expected| peer != expected) {
            return Err(CommError::Prefix { peer });
        }
        self.state = State::Handshake;
        self.decoder.restart_with(peer, self.first);
        Ok(self.decoder.advance(0)?)
    }

    /// Copies bytes from the start of `input`, up to the end of the message, and advances
    /// `input` past them. Returns whether the message is complete.
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space) and [`received`](Self::received). `input` then begins with
    /// the first byte that was not stored.
    pub fn push<B>(&mut self, input: &mut &[u8], frames: &mut B) -> Result<bool, CommError>
    where
        B: FrameBuffers + ?Sized,
    {
        self.push_first(input)?;
        if input.is_empty() || self.is_complete() {
            return Ok(self.is_complete());
        }
        let outcome = self.decoder.push(input, frames);
        if let Err(error) = outcome
            && !(self.unstarted_frames_len().is_some() && is_no_buffer(&error))
        {
            self.state = State::Failed;
        }
        Ok(outcome?)
    }

    /// Copies bytes of the prelude from the start of `input`, and advances `input` past
    /// them, for callers that read the frames into their own memory.
    ///
    /// # Errors
    ///
    /// As [`received`](Self::received).
    pub fn push_prelude(&mut self, input: &mut &[u8]) -> Result<(), CommError> {
        self.push_first(input)?;
        let outcome = self.decoder.push_prelude(input);
        self.record(outcome.map_err(CommError::Frame))
    }

    /// Copies bytes that show the prefix of the peer, if it is not known yet.
    fn push_first(&mut self, input: &mut &[u8]) -> Result<(), CommError> {
        self.check()?;
        if let State::Detect { filled, .. } = self.state {
            let space = self.first.get_mut(filled..).or_default_if_bug();
            let len = space.len().min(input.len());
            let (first, rest) = input.split_at_checked(len).or_default_if_bug();
            copy(space, first);
            *input = rest;
            self.received(len)?;
        }
        Ok(())
    }

    /// Returns the message at the start of `input`, if it is complete there and nothing of
    /// it has been received. The caller takes its bytes from the input and does not report
    /// them. Errors are left to [`received`](Self::received).
    pub fn whole_message<'i>(&self, input: &'i [u8]) -> Option<FramedMessage<'i>> {
        if self.state != State::Open || !self.decoder.is_idle() {
            return None;
        }
        FramedMessage::parse(input, self.prefix(), self.limits()).ok()
    }

    /// Records an error, which is final.
    fn record(&mut self, outcome: Result<(), CommError>) -> Result<(), CommError> {
        if outcome.is_err() {
            self.state = State::Failed;
        }
        outcome
    }

    /// Records the end of the stream, which may end between two messages.
    ///
    /// # Errors
    ///
    /// [`Closed::BeforeHandshake`], [`Closed::WithinMessage`] or [`Closed::AfterError`].
    pub fn end(&mut self) -> Result<(), CommError> {
        let outcome = match self.state {
            State::Failed => Err(Closed::AfterError),
            State::Detect { .. } => Err(Closed::BeforeHandshake),
            State::Handshake | State::Open | State::Ended => {
                self.decoder.end().map_err(Closed::WithinMessage)
            }
        };
        self.state = match outcome {
            Ok(()) => State::Ended,
            Err(_) => State::Failed,
        };
        Ok(outcome?)
    }

    /// Ends the comm after an error of the stream.
    pub const fn fail(&mut self) {
        self.state = State::Failed;
    }

    /// Whether an error has ended the comm.
    pub const fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed)
    }

    /// Whether the message is complete, the handshake included.
    pub const fn is_complete(&self) -> bool {
        self.decoder.is_complete()
    }

    /// Whether nothing of the next message has been received.
    pub const fn is_idle(&self) -> bool {
        match self.state {
            State::Detect { filled, .. } => filled == 0,
            _ => self.decoder.is_idle(),
        }
    }

    /// Whether a part of the frames has arrived.
    pub fn is_within_frames(&self) -> bool {
        let wanted = self.decoder.wanted();
        matches!(wanted, Ok(Wanted::Frame { .. })) && self.unstarted_frames_len().is_none()
    }

    /// The lengths of the frames, once all of them have arrived and are valid.
    pub fn prelude(&self) -> Option<Prelude<'_>> {
        self.decoder.prelude()
    }

    const fn check(&self) -> Result<(), CommError> {
        match self.state {
            State::Detect { .. } | State::Handshake | State::Open => Ok(()),
            State::Ended | State::Failed => Err(CommError::Closed(Closed::AfterError)),
        }
    }
}

/// Whether the caller has supplied no buffer for a frame.
const fn is_no_buffer(error: &FrameError) -> bool {
    matches!(error.kind, FrameErrorKind::NoBuffer { .. })
}

impl<P> fmt::Debug for Receiver<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
