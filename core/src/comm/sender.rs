//! The sending half of a comm.

use super::{Closed, CommError};
use crate::frame::{EncodeError, Prefix, ReadHint, encode_prelude_with, prelude_len};

/// The sending half of a comm, without its stream: what may be sent, and the prelude of
/// each message. The frames follow the prelude unchanged.
///
/// It sends nothing itself. A loop encodes the [prelude](Self::encode_prelude), and reports
/// [`wrote_part`](Self::wrote_part) after each write and [`wrote_message`](Self::wrote_message)
/// after the last one. A write that is dropped in between is thereby detected: nothing can
/// be sent after a part of a message ([`Closed::WriteCancelled`]).
#[derive(Debug)]
pub struct Sender {
    prefix: Prefix,
    hint: ReadHint,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Handshake,
    /// Between messages.
    Ready,
    /// Part of a message was sent. If this is observed before a message, the future that
    /// sent it was dropped.
    Within,
    Failed,
    Closed,
}

impl Sender {
    /// Creates the half of a comm that is between two messages, after the handshake or
    /// [before it](super::Handshaking::begin).
    pub const fn new(prefix: Prefix) -> Self {
        Self {
            prefix,
            hint: ReadHint::Whole,
            state: State::Ready,
        }
    }

    /// Sends nothing but our handshake from here on.
    pub(super) fn begin_handshake(&mut self) -> Result<(), CommError> {
        self.check()?;
        self.state = State::Handshake;
        Ok(())
    }

    /// Ends the handshake.
    pub(super) const fn open(&mut self, prefix: Prefix) {
        self.prefix = prefix;
        self.state = State::Ready;
    }

    /// The prefix of the messages.
    pub const fn prefix(&self) -> Prefix {
        self.prefix
    }

    /// Sets the read hint of the following messages, which depends on the peer's release.
    /// Default: [`ReadHint::Whole`].
    pub const fn set_read_hint(&mut self, hint: ReadHint) {
        self.hint = hint;
    }

    /// Checks that a message may be sent.
    ///
    /// # Errors
    ///
    /// [`CommError::NotOpen`] during the handshake; [`Closed::WriteCancelled`],
    /// [`Closed::AfterError`] or [`Closed::Locally`].
    pub const fn check(&self) -> Result<(), CommError> {
        Err(CommError::Closed(match self.state {
            State::Ready => return Ok(()),
            State::Handshake => return Err(CommError::NotOpen),
            State::Within => Closed::WriteCancelled,
            State::Failed => Closed::AfterError,
            State::Closed => Closed::Locally,
        }))
    }

    /// The length of the prelude of a message with so many frames, in bytes.
    ///
    /// # Errors
    ///
    /// [`EncodeError::TooLong`] if it does not fit in the address space.
    pub fn prelude_len(&self, frame_count: usize) -> Result<usize, CommError> {
        let len = prelude_len(self.prefix, frame_count);
        Ok(len.ok_or(EncodeError::TooLong)?)
    }

    /// Writes the prelude for frames of these lengths to the start of `out`, and returns
    /// its length in bytes. Changes nothing.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check) and [`encode_prelude`](crate::frame::encode_prelude).
    pub fn encode_prelude<I>(&self, lengths: I, out: &mut [u8]) -> Result<usize, CommError>
    where
        I: IntoIterator<Item = u64>,
        I::IntoIter: ExactSizeIterator + Clone,
    {
        self.check()?;
        Ok(encode_prelude_with(self.prefix, self.hint, lengths, out)?)
    }

    /// Records that a part of a message was written.
    pub const fn wrote_part(&mut self) {
        self.state = State::Within;
    }

    /// Records that a message was written to its end.
    pub const fn wrote_message(&mut self) {
        self.state = State::Ready;
    }

    /// Ends the half after an error of the stream or of the receiver.
    pub const fn fail(&mut self) {
        self.state = State::Failed;
    }

    /// Refuses further messages. Closing again is not an error.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), except [`Closed::Locally`]: earlier messages may not have
    /// been sent.
    pub const fn close(&mut self) -> Result<(), CommError> {
        if matches!(self.state, State::Closed) {
            return Ok(());
        }
        let checked = self.check();
        if checked.is_ok() {
            self.state = State::Closed;
        }
        checked
    }
}
