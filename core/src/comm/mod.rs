//! A comm without I/O, which converts between bytes and messages in both directions.
//!
//! A [`Comm`] is one end of a connection, with its handshake. It reads no
//! stream, waits for nothing and keeps everything in buffers of the caller, so
//! that the interrupt of a UART, a task of smol or embassy and a blocking
//! thread drive the same type:
//!
//! 1. Write received bytes to [`space`](Comm::space) and report them with
//!    [`received`](Comm::received), or [`push`](Comm::push) them.
//! 2. Send [`unsent`](Comm::unsent) and report it with [`sent`](Comm::sent).
//! 3. Take each message with [`take_message`](Comm::take_message), and
//!    [`send`](Comm::send) others once the comm [is open](Comm::is_open).
//!
//! ```
//! use daskwire::comm::{Comm, CommOptions, HANDSHAKE_LEN};
//! use daskwire::message::{Layout, Message, ReadOptions, Scratch};
//!
//! // Two ends, each with memory for messages of 256 bytes and 4 frames.
//! let (mut ours, mut theirs) = ([[0; 256]; 2], [[0; 256]; 2]);
//! let [incoming, outgoing] = &mut ours;
//! let mut client = Comm::<4>::new(CommOptions::CONNECTOR, incoming, outgoing)?;
//! let [incoming, outgoing] = &mut theirs;
//! let mut server = Comm::<4>::new(CommOptions::LISTENER, incoming, outgoing)?;
//!
//! // The wire: all that one end has to send arrives at the other.
//! fn exchange(from: &mut Comm<'_, 4>, to: &mut Comm<'_, 4>) -> Result<(), daskwire::Error> {
//!     let mut bytes = from.unsent();
//!     let len = bytes.len();
//!     to.push(&mut bytes)?;
//!     let count = len - bytes.len();
//!     from.sent(count);
//!     Ok(())
//! }
//! exchange(&mut server, &mut client)?;
//! exchange(&mut client, &mut server)?;
//! assert!(client.is_open() && server.is_open());
//!
//! client.send(&[b"\x81\xa2op\xa4ping"])?;
//! exchange(&mut client, &mut server)?;
//! let mut scratch = Scratch::<4>::new();
//! if let Some((frames, reply)) = server.take_message() {
//!     let message = Message::open(&frames, Layout::Modern, &ReadOptions::default(), &mut scratch)?;
//!     assert!(message.op().is_some_and(|op| op == "ping"));
//!     reply.send(&[b"\xa4pong"])?;
//! }
//! exchange(&mut server, &mut client)?;
//! assert!(client.take_message().is_some_and(|(frames, _)| *frames == [b"\xa4pong"]));
//! # Ok::<(), daskwire::Error>(())
//! ```

use core::fmt;
use core::ops::Deref;

use crate::copy;
use crate::frame::{
    Arena, EncodeError, FrameDecoder, FrameError, FrameErrorKind, Prefix, Prelude, Wanted,
    encode_prelude, prelude_len,
};
use crate::handshake::{Handshake, HandshakeError, Negotiated, detect_prefix};
use crate::invariant::Ensured as _;
use crate::message::Layout;
use crate::msgpack::Writer;
use crate::{BufferTooSmall, Limits};

/// The length of a buffer that holds any handshake of Dask, in bytes: the minimum for
/// each of the two buffers of a [`Comm`].
pub const HANDSHAKE_LEN: usize = 128;

/// The length of a buffer for a message to send, in bytes: its prelude and
/// `frames_len` bytes of frames.
///
/// ```
/// use daskwire::comm::outgoing_len;
/// const PING: usize = outgoing_len(1, 16);
/// assert_eq!(PING, 40);
/// ```
pub const fn outgoing_len(frame_count: usize, frames_len: usize) -> usize {
    match prelude_len(Prefix::U64, frame_count) {
        Some(len) => len.saturating_add(frames_len),
        None => usize::MAX,
    }
}

/// The side that chooses the prefix and the layout of messages, which are not negotiated
/// and differ between releases (PROTOCOL FRAME-13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum HandshakeRole {
    /// Send the handshake immediately, in this layout and with the prefix of the comm,
    /// and refuse a peer with another prefix. Required for listeners: connectors of Dask
    /// up to 2023.7.1 read first (PROTOCOL HANDSHAKE-1). Releases since 2021.3.1
    /// understand [`Layout::Modern`] with [`Prefix::U64`].
    Initiate(Layout),
    /// Wait for the peer's handshake and reply with its prefix and layout. Only
    /// for connectors: the listeners of every release since 2.23.0 send first.
    Respond,
}

/// The result of the handshake, with the properties of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agreement<'a> {
    /// The codec and the pickle protocol to write.
    pub negotiated: Negotiated<'a>,
    /// The version of Python in the peer's handshake, if any.
    pub peer_python: Option<[u64; 3]>,
    /// The prefix of messages in both directions.
    pub prefix: Prefix,
    /// The layout of the peer's messages.
    pub layout: Layout,
}

impl Agreement<'_> {
    /// The same agreement with the names of `ours`, the handshake that was sent,
    /// which may live longer than a comm.
    pub fn with_names<'h>(&self, ours: &Handshake<'h>) -> Agreement<'h> {
        let names = |_| ours.compression;
        Agreement {
            negotiated: Negotiated {
                compression: self.negotiated.compression.and_then(names),
                pickle_protocol: self.negotiated.pickle_protocol,
            },
            peer_python: self.peer_python,
            prefix: self.prefix,
            layout: self.layout,
        }
    }
}

/// Options of a [`Comm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommOptions<'h> {
    /// The side that chooses prefix and layout.
    pub role: HandshakeRole,
    /// The prefix, if this side chooses it. Default: [`Prefix::U64`].
    pub prefix: Prefix,
    /// Our handshake. Default: without compression.
    pub handshake: Handshake<'h>,
    /// The limits for messages after the handshake. A message within
    /// them that is larger than the buffers fails with an error of the caller.
    /// Default: [`Limits::MICROCONTROLLER`].
    pub limits: Limits,
}

impl CommOptions<'_> {
    /// Options for the side that connects: it adapts to a peer of any release.
    pub const CONNECTOR: Self = Self {
        role: HandshakeRole::Respond,
        prefix: Prefix::U64,
        handshake: Handshake::new(None),
        limits: Limits::MICROCONTROLLER,
    };

    /// Options for the side that listens, for peers from 2021.3.1 on.
    pub const LISTENER: Self = Self {
        role: HandshakeRole::Initiate(Layout::Modern),
        ..Self::CONNECTOR
    };
}

/// The error of a [`Comm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum CommError {
    /// The peer sent an invalid message, or one that exceeds the limits or the
    /// buffers.
    Frame(FrameError),
    /// The peer's first message is not a valid handshake.
    Handshake(HandshakeError),
    /// The peer uses another prefix than this side, which chose it
    /// ([`HandshakeRole::Initiate`]).
    Prefix {
        /// The prefix of the peer.
        peer: Prefix,
    },
    /// The stream ended before the peer's handshake.
    EndedInHandshake,
    /// The message cannot be sent: it has no frames, or there is not enough
    /// free space in the buffer. Send what is [unsent](Comm::unsent) and try
    /// again, or use a larger buffer. Nothing was queued.
    Encode(EncodeError),
    /// A message was sent before the comm [is open](Comm::is_open).
    NotOpen,
    /// A message, or a part of it, is in the buffer, and has to arrive and be
    /// [taken](Comm::take_message) first.
    MessageWaiting,
}

impl CommError {
    /// Whether the caller can resolve the error and continue. All other errors are the
    /// peer's and final: every later call returns them again.
    pub const fn is_caller_fault(&self) -> bool {
        match self {
            Self::Frame(error) => error.is_caller_fault(),
            Self::Encode(_) | Self::NotOpen | Self::MessageWaiting => true,
            Self::Handshake(_) | Self::Prefix { .. } | Self::EndedInHandshake => false,
        }
    }
}

impl fmt::Display for CommError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frame(error) => write!(f, "the message cannot be received: {error}"),
            Self::Handshake(error) => write!(f, "the handshake failed: {error}"),
            Self::Prefix { peer: Prefix::None } => f.write_str(
                "the peer sends no leading length, as distributed did up to 2021.2.0, \
                 and this side does",
            ),
            Self::Prefix { peer: Prefix::U64 } => f.write_str(
                "the peer sends a leading length, as distributed does since 2021.3.0, \
                 and this side does not",
            ),
            Self::EndedInHandshake => f.write_str("the stream ended before the peer's handshake"),
            Self::Encode(error) => write!(f, "the message cannot be sent: {error}"),
            Self::NotOpen => f.write_str("the handshake is not complete, so nothing can be sent"),
            Self::MessageWaiting => {
                f.write_str("a message or a part of it is in the buffer, and has to be taken first")
            }
        }
    }
}

impl core::error::Error for CommError {}

impl From<FrameError> for CommError {
    fn from(error: FrameError) -> Self {
        Self::Frame(error)
    }
}

impl From<HandshakeError> for CommError {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

impl From<EncodeError> for CommError {
    fn from(error: EncodeError) -> Self {
        Self::Encode(error)
    }
}

/// One end of a comm, without I/O; see the [module](self).
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
    decoder: FrameDecoder<[[u8; 8]; FRAMES]>,
    arena: Arena<'b>,
    outgoing: Outgoing<'b>,
    options: CommOptions<'b>,
    /// The first bytes of the peer, from which the prefix is detected.
    first: [u8; 8],
    state: State,
    agreement: Option<Agreement<'b>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The number of first bytes that have been received.
    Detect(usize),
    Handshake,
    Open,
    /// The message in the buffer has been taken.
    Taken,
    Failed(CommError),
}

impl<'b, const FRAMES: usize> Comm<'b, FRAMES> {
    const HANDSHAKE: Limits = Self::limits(Limits::HANDSHAKE);

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
    /// sending; both have at least [`HANDSHAKE_LEN`] bytes.
    ///
    /// # Errors
    ///
    /// [`CommError::Encode`] if our handshake does not fit in `outgoing`.
    pub fn new(
        options: CommOptions<'b>,
        incoming: &'b mut [u8],
        outgoing: &'b mut [u8],
    ) -> Result<Self, CommError> {
        let mut comm = Self {
            decoder: FrameDecoder::new(options.prefix, [[0; 8]; FRAMES], Self::HANDSHAKE),
            arena: Arena::new(incoming),
            outgoing: Outgoing {
                buffer: outgoing,
                start: 0,
                end: 0,
                prefix: options.prefix,
                is_open: false,
            },
            options,
            first: [0; 8],
            state: State::Detect(0),
            agreement: None,
        };
        match options.role {
            HandshakeRole::Initiate(layout) => {
                comm.outgoing.handshake(&options.handshake, layout)?;
            }
            HandshakeRole::Respond => {
                // Encode the longest form of the reply, to check now that it fits.
                comm.outgoing.prefix = Prefix::U64;
                comm.outgoing
                    .handshake(&options.handshake, Layout::Classic)?;
                comm.outgoing.end = 0;
            }
        }
        Ok(comm)
    }

    /// Returns the space for the next bytes of the peer; never empty.
    ///
    /// # Errors
    ///
    /// * [`CommError::MessageWaiting`] if a message has not been taken;
    /// * [`CommError::Frame`] with [`FrameErrorKind::NoBuffer`] if the frames
    ///   of the message do not fit in the buffer: it says how long they are,
    ///   see [`set_incoming`](Self::set_incoming);
    /// * the final error of the comm.
    pub fn space(&mut self) -> Result<&mut [u8], CommError> {
        self.discard_taken()?;
        if let State::Detect(filled) = self.state {
            return Ok(self.first.get_mut(filled..).ensured());
        }
        Ok(self.decoder.space(&mut self.arena)?)
    }

    /// Records that `count` bytes were written to the start of
    /// [`space`](Self::space).
    ///
    /// # Errors
    ///
    /// The peer's fault as soon as it is known; see [`CommError`].
    pub fn received(&mut self, count: usize) -> Result<(), CommError> {
        self.discard_taken()?;
        let outcome = self.step(count);
        self.record_failure(outcome)
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
            let (now, later) = input.split_at_checked(len).ensured();
            copy(space.get_mut(..len).ensured(), now);
            *input = later;
            self.received(len)?;
        }
        Ok(self.has_message())
    }

    /// Whether a message has arrived and was not taken.
    pub fn has_message(&self) -> bool {
        self.state == State::Open && self.decoder.is_complete()
    }

    /// Returns the frames of the message that has arrived, with the outgoing
    /// side to reply. The message is discarded when the next bytes arrive.
    pub fn take_message(&mut self) -> Option<(Frames<'_, FRAMES>, &mut Outgoing<'b>)> {
        if !self.has_message() {
            return None;
        }
        self.state = State::Taken;
        let prelude = self.decoder.prelude()?;
        Some((
            Frames::new(prelude, self.arena.filled())?,
            &mut self.outgoing,
        ))
    }

    /// Queues a message. [`unsent`](Self::unsent) then has its bytes.
    ///
    /// # Errors
    ///
    /// [`CommError::Encode`] and [`CommError::NotOpen`]; nothing was queued.
    pub fn send(&mut self, frames: &[&[u8]]) -> Result<(), CommError> {
        self.outgoing.send(frames)
    }

    /// The outgoing side alone.
    pub const fn outgoing(&mut self) -> &mut Outgoing<'b> {
        &mut self.outgoing
    }

    /// The bytes to send, in order.
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
        matches!(self.state, State::Open | State::Taken)
    }

    /// The result of the handshake, once the comm is open.
    pub const fn agreement(&self) -> Option<Agreement<'b>> {
        self.agreement
    }

    /// Checks that the stream of the peer may end here: between two messages.
    ///
    /// # Errors
    ///
    /// [`CommError::EndedInHandshake`], [`CommError::Frame`] with
    /// [`FrameErrorKind::Truncated`], or the final error of the comm.
    pub fn end(&self) -> Result<(), CommError> {
        match self.state {
            State::Detect(_) => Err(CommError::EndedInHandshake),
            State::Handshake | State::Open | State::Taken => Ok(self.decoder.end()?),
            State::Failed(error) => Err(error),
        }
    }

    /// Continues with another buffer for the frames that arrive, after
    /// [`FrameErrorKind::NoBuffer`] or between two messages.
    ///
    /// # Errors
    ///
    /// [`CommError::MessageWaiting`] if part of a message is in the former
    /// buffer, or the final error of the comm.
    pub fn set_incoming(&mut self, incoming: &'b mut [u8]) -> Result<(), CommError> {
        self.discard_taken()?;
        let is_within = matches!(self.decoder.wanted(), Ok(Wanted::Frame { .. }));
        if is_within && self.decoder.about_to_begin().is_none() {
            return Err(CommError::MessageWaiting);
        }
        self.arena = Arena::new(incoming);
        Ok(())
    }

    /// Discards the message that was taken. Fails if a message still has to be taken, or
    /// if the comm has failed.
    fn discard_taken(&mut self) -> Result<(), CommError> {
        match self.state {
            State::Failed(error) => Err(error),
            State::Open if self.decoder.is_complete() => Err(CommError::MessageWaiting),
            State::Taken => {
                self.decoder.reset();
                self.state = State::Open;
                Ok(())
            }
            State::Open | State::Detect(_) | State::Handshake => Ok(()),
        }
    }

    /// Records an error that is final, which every later call returns.
    fn record_failure(&mut self, outcome: Result<(), CommError>) -> Result<(), CommError> {
        if let Err(error) = outcome
            && !error.is_caller_fault()
        {
            self.state = State::Failed(error);
        }
        outcome
    }

    fn step(&mut self, count: usize) -> Result<(), CommError> {
        if let State::Detect(filled) = self.state {
            let space = self.first.len().saturating_sub(filled);
            if count > space {
                let (at, advanced) = (filled as u64, count);
                let kind = FrameErrorKind::Overrun { advanced, space };
                return Err(FrameError { at, kind }.into());
            }
            self.state = State::Detect(filled.saturating_add(count));
            if count == space {
                self.detect()?;
            }
            return Ok(());
        }
        self.decoder.advance(count)?;
        if self.state == State::Handshake && self.decoder.is_complete() {
            self.finish_handshake()?;
        }
        Ok(())
    }

    /// Detects the prefix from the first bytes.
    fn detect(&mut self) -> Result<(), CommError> {
        let ours = self.options.prefix;
        // PROTOCOL FRAME-13: the decoder refuses bytes that fit neither prefix.
        let peer = detect_prefix(&self.first).unwrap_or(ours);
        if matches!(self.options.role, HandshakeRole::Initiate(_)) && peer != ours {
            return Err(CommError::Prefix { peer });
        }
        self.outgoing.prefix = peer;
        self.state = State::Handshake;
        // PROTOCOL HANDSHAKE-6
        self.decoder.restart(peer, Self::HANDSHAKE);
        // The first 8 bytes belong to the prelude, so no buffer is needed.
        self.decoder.push(&mut &self.first[..], &mut self.arena)?;
        Ok(())
    }

    /// Reads the peer's handshake and opens the comm.
    fn finish_handshake(&mut self) -> Result<(), CommError> {
        let prelude = self.decoder.prelude();
        let count = prelude.map_or(0, |prelude| prelude.frame_count());
        let frames: Frames<'_, 2> = prelude
            .and_then(|prelude| Frames::new(prelude, self.arena.filled()))
            .ok_or(HandshakeError::FrameCount { count })?;
        let (theirs, layout) = Handshake::from_frames(&frames, &Limits::HANDSHAKE)?;
        self.agreement = Some(Agreement {
            negotiated: self.options.handshake.negotiate(&theirs),
            peer_python: theirs.python,
            prefix: self.outgoing.prefix,
            layout,
        });
        if self.options.role == HandshakeRole::Respond {
            let ours = self.options.handshake;
            self.outgoing.handshake(&ours, layout)?;
        }
        self.outgoing.is_open = true;
        self.state = State::Open;
        self.decoder.reset_with(Self::limits(self.options.limits));
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
        self.slots.get(..self.count).ensured()
    }
}

/// The outgoing side of a [`Comm`]: messages that are not sent yet.
#[derive(Debug)]
pub struct Outgoing<'b> {
    buffer: &'b mut [u8],
    /// The unsent part of `buffer`.
    start: usize,
    end: usize,
    prefix: Prefix,
    is_open: bool,
}

impl Outgoing<'_> {
    /// Queues a message, copied to the buffer.
    ///
    /// # Errors
    ///
    /// As [`Comm::send`].
    pub fn send(&mut self, frames: &[&[u8]]) -> Result<(), CommError> {
        if !self.is_open {
            return Err(CommError::NotOpen);
        }
        let lengths = frames.iter().map(|frame| frame.len() as u64);
        let frames_len = frames
            .iter()
            .fold(0_usize, |sum, frame| sum.saturating_add(frame.len()));
        let prelude_len = prelude_len(self.prefix, frames.len()).ok_or(EncodeError::TooLong)?;
        let prefix = self.prefix;
        let free = self.free(prelude_len.saturating_add(frames_len))?;
        let mut len = encode_prelude(prefix, lengths, free)?;
        for frame in frames {
            let end = len.saturating_add(frame.len());
            copy(free.get_mut(len..end).ensured(), frame);
            len = end;
        }
        self.end = self.end.saturating_add(len);
        Ok(())
    }

    /// The bytes to send, in order.
    pub fn unsent(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).ensured()
    }

    /// Records that the first `count` of the [`unsent`](Self::unsent) bytes
    /// were sent.
    pub fn sent(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Queues our handshake: in the classic layout an empty header precedes the
    /// document.
    fn handshake(&mut self, ours: &Handshake<'_>, layout: Layout) -> Result<(), CommError> {
        let mut measure = Writer::new(&mut []);
        ours.encode(&mut measure);
        let len = measure.len();
        let lengths = [0, len as u64];
        let lengths = match layout {
            Layout::Classic => &lengths[..],
            Layout::Modern => &lengths[1..],
        };
        let prelude_len = prelude_len(self.prefix, lengths.len()).ok_or(EncodeError::TooLong)?;
        let prefix = self.prefix;
        let free = self.free(prelude_len.saturating_add(len))?;
        let (prelude, document) = free.split_at_mut_checked(prelude_len).ensured();
        encode_prelude(prefix, lengths.iter().copied(), prelude)?;
        ours.encode(&mut Writer::new(document));
        self.end = self.end.saturating_add(prelude_len).saturating_add(len);
        Ok(())
    }

    /// Returns the free space after the unsent bytes, at least `needed` bytes.
    fn free(&mut self, needed: usize) -> Result<&mut [u8], EncodeError> {
        let unsent = self.end.saturating_sub(self.start);
        let available = self.buffer.len().saturating_sub(unsent);
        if available < needed {
            return Err(EncodeError::BufferTooSmall(BufferTooSmall {
                needed,
                available,
            }));
        }
        if self.buffer.len().saturating_sub(self.end) < needed {
            // Move the unsent bytes to the start.
            for to in 0..unsent {
                let from = self.buffer.get(self.start.saturating_add(to)).copied();
                if let Some(to) = self.buffer.get_mut(to) {
                    *to = from.ensured();
                }
            }
            (self.start, self.end) = (0, unsent);
        }
        Ok(self.buffer.get_mut(self.end..).ensured())
    }
}
