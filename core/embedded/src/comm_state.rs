//! The two halves of a comm without their streams: what an adapter remembers
//! from call to call, and what it decides. No I/O and no types of other crates,
//! so that all adapters share it.

use core::fmt;

use daskwire::Limits;
use daskwire::frame::{
    Arena, EncodeError, FrameDecoder, FrameError, Prefix, Prelude, PreludeStorage, encode_prelude,
};
use daskwire::handshake::{Handshake, HandshakeError, Negotiated, detect_prefix};
use daskwire::message::Layout;
use daskwire::msgpack::{WriteError, Writer};

/// How a comm ended that should have gone on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Closed {
    /// The peer closed it before it had sent its handshake.
    BeforeHandshake,
    /// The peer closed it in the middle of a message.
    WithinMessage(FrameError),
    /// A write was dropped after part of its message had left, so nothing more
    /// can be sent that the peer would understand.
    WriteCancelled,
    /// An earlier error, which was returned then, ended this half of the comm.
    AfterError,
    /// This side closed it.
    Locally,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BeforeHandshake => f.write_str("the peer closed the comm before its handshake"),
            Self::WithinMessage(error) => {
                write!(f, "the peer closed the comm within a message: {error}")
            }
            Self::WriteCancelled => f.write_str(
                "an earlier write was cancelled after part of its message had been sent, \
                 so this comm cannot send any more",
            ),
            Self::AfterError => f.write_str("the comm is closed after an earlier error"),
            Self::Locally => f.write_str("the comm was closed on this side"),
        }
    }
}

impl core::error::Error for Closed {}

/// Who decides on the form of the wire: releases differ in how they frame and
/// lay out messages, and nothing announces it (PROTOCOL FRAME-13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeRole {
    /// Send the handshake at once, in this layout and with the prefix that the
    /// halves were made with, and refuse a peer with another prefix. Listeners
    /// have to: connectors of Dask up to 2023.7.1 read first (PROTOCOL
    /// HANDSHAKE-1). [`Layout::Modern`] with [`Prefix::U64`] is what 2021.3.1 and
    /// later understand.
    Initiate(Layout),
    /// Wait for the peer's handshake, and answer with the prefix and in the
    /// layout that it has. For connectors alone: the listeners of every release
    /// since 2.23.0 send first.
    Respond,
}

/// What the two sides of a comm agreed on, and what was seen of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agreement<'a> {
    /// The codec and the pickle protocol to write.
    pub negotiated: Negotiated<'a>,
    /// The version of Python that the peer names, if it does.
    pub peer_python: Option<[u64; 3]>,
    /// How messages are framed, in both directions.
    pub prefix: Prefix,
    /// How the peer lays out its messages.
    pub layout: Layout,
}

/// The half that messages arrive on.
pub(super) struct Incoming<P> {
    pub(super) decoder: FrameDecoder<P>,
    prefix: Prefix,
    limits: Limits,
    pub(super) state: ReadState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadState {
    /// Between messages or within one, which the decoder knows.
    Ready,
    /// The peer has closed the comm between two messages.
    Ended,
    Failed,
}

impl<P: PreludeStorage> Incoming<P> {
    pub(super) const fn new(prefix: Prefix, storage: P, limits: Limits) -> Self {
        Self {
            decoder: FrameDecoder::new(prefix, storage, limits),
            prefix,
            limits,
            state: ReadState::Ready,
        }
    }

    /// Begins a message, or goes on with the one that is arriving. `false` if
    /// there will be none.
    pub(super) fn start(&mut self) -> Result<bool, Closed> {
        match self.state {
            ReadState::Failed => Err(Closed::AfterError),
            ReadState::Ended => Ok(false),
            ReadState::Ready => {
                if self.decoder.is_complete() {
                    self.decoder.reset();
                }
                Ok(true)
            }
        }
    }

    /// The stream has ended: between two messages or within one.
    pub(super) fn end(&mut self) -> Result<(), Closed> {
        self.decoder.end().map_err(Closed::WithinMessage)?;
        self.state = ReadState::Ended;
        Ok(())
    }

    /// The lengths of the message that has arrived.
    pub(super) fn prelude(&self) -> Option<Prelude<'_>> {
        self.decoder
            .prelude()
            .filter(|_| self.decoder.is_complete())
    }

    /// Frames of the message that has arrived.
    pub(super) fn frame_count(&self) -> Result<usize, Closed> {
        let prelude = self.prelude().ok_or(Closed::AfterError)?;
        Ok(prelude.frame_count())
    }

    /// Begins the handshake. Until it is done this half counts as failed, so
    /// that nothing goes on in the middle of one that was given up.
    pub(super) fn begin_handshake(&mut self) -> Result<(), Closed> {
        if !self.start()? {
            return Err(Closed::BeforeHandshake);
        }
        self.state = ReadState::Failed;
        Ok(())
    }

    /// Takes the first bytes of the peer, and returns the prefix that they
    /// show; `Err` with it if it is not the one wanted.
    pub(super) fn detect(
        &mut self,
        first: &[u8; 8],
        role: HandshakeRole,
    ) -> Result<Prefix, Prefix> {
        // PROTOCOL FRAME-13. What is neither, the decoder will refuse.
        let found = detect_prefix(first).unwrap_or(self.prefix);
        if matches!(role, HandshakeRole::Initiate(_)) && found != self.prefix {
            return Err(found);
        }
        self.prefix = found;
        Ok(found)
    }

    /// Makes the decoder ready for the handshake, of which `first` has arrived.
    pub(super) fn start_handshake(&mut self, first: &[u8; 8]) -> Result<(), FrameError> {
        // PROTOCOL HANDSHAKE-6
        self.decoder.restart(self.prefix, Limits::HANDSHAKE);
        // 8 bytes belong to the prelude, so no frame needs room.
        self.decoder
            .push(&mut &first[..], &mut Arena::new(&mut []))?;
        Ok(())
    }

    /// Reads the peer's handshake, whose frames lie side by side in `frames`.
    pub(super) fn agree<'h>(
        &self,
        frames: &[u8],
        ours: &Handshake<'h>,
    ) -> Result<Agreement<'h>, HandshakeError> {
        let prelude = self.prelude();
        let count = prelude.map_or(0, |prelude| prelude.frame_count());
        let mut slots = [&[][..]; 2];
        let frames = prelude
            .and_then(|prelude| prelude.split(frames, &mut slots).ok())
            .ok_or(HandshakeError::FrameCount { count })?;
        let (theirs, layout) = Handshake::from_frames(frames, &Limits::HANDSHAKE)?;
        Ok(Agreement {
            negotiated: ours.negotiate(&theirs),
            peer_python: theirs.python,
            prefix: self.prefix,
            layout,
        })
    }

    /// The handshake is done: from here on with the caller's limits.
    pub(super) fn established(&mut self) {
        self.decoder.restart(self.prefix, self.limits);
        self.state = ReadState::Ready;
    }
}

/// The half that messages leave by.
pub(super) struct Outgoing<S> {
    pub(super) prefix: Prefix,
    pub(super) buffer: S,
    pub(super) state: WriteState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteState {
    /// Between messages.
    Ready,
    /// Part of a message has left. Seen from outside, the future that was
    /// sending it has been dropped.
    Within,
    Failed,
    /// Closed for messages; what has been written may not have left yet.
    Closing,
    Closed,
}

impl<S: AsMut<[u8]>> Outgoing<S> {
    pub(super) const fn new(prefix: Prefix, buffer: S) -> Self {
        Self {
            prefix,
            buffer,
            state: WriteState::Ready,
        }
    }

    pub(super) const fn check(&self) -> Result<(), Closed> {
        match self.state {
            WriteState::Ready => Ok(()),
            WriteState::Within => Err(Closed::WriteCancelled),
            WriteState::Failed => Err(Closed::AfterError),
            WriteState::Closing | WriteState::Closed => Err(Closed::Locally),
        }
    }

    /// Closes this half for messages. `false` if all of it is done already.
    pub(super) fn begin_close(&mut self) -> Result<bool, Closed> {
        match self.state {
            WriteState::Closed => return Ok(false),
            WriteState::Closing => {}
            _ => self.check()?,
        }
        self.state = WriteState::Closing;
        Ok(true)
    }

    /// Writes the prelude to the front of the buffer, and returns its length.
    pub(super) fn encode(&mut self, frames: &[&[u8]]) -> Result<usize, EncodeError> {
        let lengths = frames.iter().map(|frame| frame.len() as u64);
        encode_prelude(self.prefix, lengths, self.buffer.as_mut())
    }

    /// As [`Incoming::begin_handshake`].
    pub(super) fn begin_handshake(&mut self) -> Result<(), Closed> {
        self.check()?;
        self.state = WriteState::Failed;
        Ok(())
    }
}

/// Copies frames behind the first `filled` bytes of `buffer` while they fit.
/// Returns the bytes to send, the frame to send behind them from where it lies
/// (empty if there is none), and the frames after that.
pub(super) fn gather<'b, 'f, 's>(
    buffer: &'b mut [u8],
    mut filled: usize,
    mut frames: &'s [&'f [u8]],
) -> (&'b [u8], &'f [u8], &'s [&'f [u8]]) {
    let mut large: &[u8] = &[];
    while let Some((frame, behind)) = frames.split_first() {
        if frame.len() > buffer.len() {
            (large, frames) = (frame, behind);
            break;
        }
        let rest = buffer.get_mut(filled..).unwrap_or_default();
        let Some(place) = rest.get_mut(..frame.len()) else {
            break;
        };
        crate::copy(place, frame);
        (filled, frames) = (filled.saturating_add(frame.len()), behind);
    }
    (buffer.get(..filled).unwrap_or_default(), large, frames)
}

/// Writes our handshake into `out`: the document that [`handshake_frames`] makes a message of.
pub(super) fn encode_handshake<'o>(
    handshake: &Handshake<'_>,
    out: &'o mut [u8],
) -> Result<&'o [u8], EncodeError> {
    let mut writer = Writer::new(out);
    handshake.encode(&mut writer);
    writer.finish().map_err(|error| match error {
        WriteError::BufferTooSmall(error) => EncodeError::BufferTooSmall(error),
        // The document is complete; only a name beyond 32 bits is too long.
        _ => EncodeError::TooLong,
    })
}

/// The message of a handshake: in the classic layout an empty header goes
/// before the document.
pub(super) fn handshake_frames<'s, 'f>(
    layout: Layout,
    slots: &'s mut [&'f [u8]; 2],
    document: &'f [u8],
) -> &'s [&'f [u8]] {
    *slots = [&[], document];
    match layout {
        Layout::Classic => slots,
        Layout::Modern => slots.get(1..).unwrap_or_default(),
    }
}
