//! One comm of a role without its stream: the handshake, a buffer for the message
//! being received, and a buffer for the messages to send.

mod incoming;
mod outgoing;
mod skip;
#[cfg(test)]
mod tests;

use daskwire::comm::{HandshakeRole, Handshaking};
use daskwire::frame::Prefix;
use daskwire::handshake::Handshake;
use daskwire::invariant::OrDefaultIfBug as _;
use daskwire::message::Layout;

use crate::role::Wanted;

pub(crate) use incoming::{Incoming, MAX_FRAMES, Piece, Received, field, items, str_field};
pub(crate) use outgoing::Outgoing;

/// The handshake of both roles, each of which sends it first.
const HANDSHAKE: Handshaking<'static> = Handshaking::new(
    Handshake::new(None),
    HandshakeRole::SendFirst(Layout::Modern),
);

/// The buffers of one link, which receives messages with up to `FRAMES` frames.
pub(crate) struct LinkBuffers<const FRAMES: usize, const IN: usize, const OUT: usize> {
    lengths: [u32; FRAMES],
    incoming: [u8; IN],
    outgoing: [u8; OUT],
}

impl<const FRAMES: usize, const IN: usize, const OUT: usize> LinkBuffers<FRAMES, IN, OUT> {
    /// Unused buffers.
    pub(crate) const EMPTY: Self = Self {
        lengths: [0; FRAMES],
        incoming: [0; IN],
        outgoing: [0; OUT],
    };

    /// A link with messages that fit in the buffers.
    pub(crate) fn link(&mut self) -> Link<'_> {
        Link::new(&mut self.lengths, &mut self.incoming, &mut self.outgoing)
    }

    /// A link with messages that are read in pieces.
    pub(crate) fn link_in_pieces(&mut self) -> Link<'_> {
        Link::in_pieces(&mut self.lengths, &mut self.incoming, &mut self.outgoing)
    }
}

/// A comm without I/O: the caller moves its bytes.
pub(crate) struct Link<'b> {
    state: State,
    /// Whether bytes were received or sent since the last call of
    /// [`take_progress`](Self::take_progress).
    has_progress: bool,
    /// The message being received.
    pub(crate) incoming: Incoming<'b>,
    /// The messages to send.
    pub(crate) outgoing: Outgoing<'b>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no connection.
    Closed,
    Handshake,
    Open,
    /// Nothing more is read, and the connection is closed once everything is
    /// sent.
    Closing,
    /// This side has [failed](Link::fail) the comm.
    Failed,
}

impl<'b> Link<'b> {
    /// A closed link with its buffers: for the lengths of the frames of a
    /// received message, for these frames, and for the messages to send.
    pub(crate) const fn new(
        lengths: &'b mut [u32],
        incoming: &'b mut [u8],
        outgoing: &'b mut [u8],
    ) -> Self {
        Self {
            state: State::Closed,
            has_progress: false,
            incoming: Incoming::new(lengths, incoming),
            outgoing: Outgoing::new(outgoing),
        }
    }

    /// A closed link whose messages are read in pieces, so that they may be
    /// longer than the buffer and have more frames than there are lengths.
    pub(crate) const fn in_pieces(
        lengths: &'b mut [u32],
        incoming: &'b mut [u8],
        outgoing: &'b mut [u8],
    ) -> Self {
        let mut link = Self::new(lengths, incoming, outgoing);
        link.incoming.in_pieces = true;
        link
    }

    /// Begins a comm on a connection that has just been established. Both sides
    /// send their handshakes first (PROTOCOL HANDSHAKE-1).
    pub(crate) fn open(&mut self) {
        self.reset();
        self.state = State::Handshake;
        self.has_progress = true;
        if self.outgoing.0.greet(&HANDSHAKE).is_err() {
            self.state = State::Failed;
        }
    }

    /// Forgets the connection, with everything received and unsent.
    pub(crate) fn reset(&mut self) {
        self.state = State::Closed;
        self.incoming.restart();
        self.outgoing.0.reset();
    }

    /// Closes the comm after the unsent messages.
    pub(crate) fn close(&mut self) {
        if matches!(self.state, State::Handshake | State::Open) {
            self.state = State::Closing;
        }
    }

    /// Closes the comm immediately, without sending the rest: the peer sent an invalid
    /// message, takes too long, or is not needed any more.
    pub(crate) fn fail(&mut self) {
        if !self.is_closed() {
            self.state = State::Failed;
        }
    }

    /// Whether this side has [failed](Self::fail) the comm.
    pub(crate) fn has_failed(&self) -> bool {
        self.state == State::Failed
    }

    /// Whether bytes were received or sent since the last call.
    pub(crate) fn take_progress(&mut self) -> bool {
        core::mem::take(&mut self.has_progress)
    }

    /// Whether there is no connection.
    pub(crate) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// The connection that is wanted now, if this side has closed or
    /// [failed](Self::fail) the comm.
    pub(crate) fn wanted(&self) -> Option<Wanted<'static>> {
        match self.state {
            State::Failed => Some(Wanted::Abort),
            State::Closing if self.outgoing.is_empty() => Some(Wanted::Nothing),
            State::Closing => Some(Wanted::Draining),
            State::Closed | State::Handshake | State::Open => None,
        }
    }

    /// Whether there is a connection whose handshake is not done.
    pub(crate) fn is_in_handshake(&self) -> bool {
        self.state == State::Handshake
    }

    /// Whether the handshake is done and messages may be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether the comm is open and between messages in both directions.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_open() && self.incoming.is_idle() && self.outgoing.is_empty()
    }

    /// Whether messages of this length can be sent now.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.is_open() && self.outgoing.room() >= len
    }

    /// Space for the next bytes of the peer. Empty while a message waits to be
    /// [discarded](Incoming::discard_message).
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if !matches!(self.state, State::Handshake | State::Open) {
            return &mut [];
        }
        let space = self.incoming.space();
        if space.is_empty() && self.state == State::Handshake {
            // A handshake that is longer than the buffer.
            self.state = State::Failed;
        }
        space
    }

    /// Records that `count` bytes were written to [`space`](Self::space).
    pub(crate) fn received(&mut self, count: usize) {
        self.has_progress |= count != 0;
        let incoming = &mut self.incoming;
        if incoming.received(count).is_none() {
            self.state = State::Failed;
        } else if self.state == State::Handshake && incoming.is_complete() {
            self.finish_handshake();
        }
    }

    /// Reads the handshake of the peer. Its codec does not matter: our handshake names
    /// none, so that nothing is compressed (PROTOCOL HANDSHAKE-3).
    fn finish_handshake(&mut self) {
        let mut slots = [&[][..]; 2];
        let frames = self.incoming.frames(&mut slots).unwrap_or_default();
        self.state = match HANDSHAKE.agree(Prefix::U64, frames, &mut []) {
            Ok((agreement, _)) if agreement.layout == Layout::Modern => State::Open,
            _ => State::Failed,
        };
        self.incoming.discard_message();
    }

    /// Whether a message has arrived.
    pub(crate) fn has_message(&self) -> bool {
        self.is_open() && self.incoming.is_complete()
    }

    /// The bytes to send.
    pub(crate) fn unsent(&self) -> &[u8] {
        self.outgoing.0.unsent()
    }

    /// Records that `count` bytes were sent.
    pub(crate) fn sent(&mut self, count: usize) {
        self.has_progress |= count != 0;
        self.outgoing.0.sent(count);
    }
}

/// Moves `bytes[from..end]` to an earlier offset `to`.
pub(crate) fn shift(bytes: &mut [u8], from: usize, end: usize, to: usize) {
    let gap = from.saturating_sub(to);
    if gap == 0 {
        return;
    }
    for at in from..end {
        let byte = bytes.get(at).copied().or_default_if_bug();
        if let Some(target) = bytes.get_mut(at.wrapping_sub(gap)) {
            *target = byte;
        }
    }
}
