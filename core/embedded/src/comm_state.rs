//! The state of the reader and the writer of a comm, without their streams. No I/O and no
//! types of other crates, so that all adapters share it.

use core::fmt;

use daskwire::Limits;
use daskwire::frame::{
    Arena, EncodeError, FrameDecoder, FrameError, Prefix, Prelude, PreludeStorage, encode_prelude,
};
use daskwire::handshake::{Handshake, HandshakeError, Negotiated, detect_prefix};
use daskwire::message::Layout;
use daskwire::msgpack::{WriteError, Writer};

/// The reason why a comm is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Closed {
    /// The peer closed the comm before its handshake was complete.
    BeforeHandshake,
    /// The peer closed the comm within a message.
    WithinMessage(FrameError),
    /// A write was dropped after part of its message had been sent, so the
    /// stream is no longer valid.
    WriteCancelled,
    /// An earlier error, which has been returned, ended this side of the comm.
    AfterError,
    /// This side closed the comm.
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

/// Which side chooses the prefix and the layout of messages, which are not
/// negotiated and differ between releases (PROTOCOL FRAME-13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeRole {
    /// Send the handshake at once, in this layout and with the prefix of the
    /// comm, and refuse a peer with another prefix. Required for listeners:
    /// connectors of Dask up to 2023.7.1 read first (PROTOCOL HANDSHAKE-1).
    /// Releases since 2021.3.1 understand [`Layout::Modern`] with
    /// [`Prefix::U64`].
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

/// The state of the reader.
pub(super) struct Incoming<P> {
    pub(super) decoder: FrameDecoder<P>,
    prefix: Prefix,
    limits: Limits,
    pub(super) state: ReadState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadState {
    /// Between messages or within one; the decoder has the details.
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

    /// Begins a message or continues the current one. Returns false if the peer
    /// has closed the comm.
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

    /// Handles the end of the stream, between two messages or within one.
    pub(super) fn end(&mut self) -> Result<(), Closed> {
        self.decoder.end().map_err(Closed::WithinMessage)?;
        self.state = ReadState::Ended;
        Ok(())
    }

    /// The frame lengths of the complete message.
    pub(super) fn prelude(&self) -> Option<Prelude<'_>> {
        self.decoder
            .prelude()
            .filter(|_| self.decoder.is_complete())
    }

    /// The number of frames of the complete message.
    pub(super) fn frame_count(&self) -> Result<usize, Closed> {
        let prelude = self.prelude().ok_or(Closed::AfterError)?;
        Ok(prelude.frame_count())
    }

    /// Begins the handshake. The reader is in the failed state until the
    /// handshake is done, so that it cannot be used after an abandoned
    /// handshake.
    pub(super) fn begin_handshake(&mut self) -> Result<(), Closed> {
        if !self.start()? {
            return Err(Closed::BeforeHandshake);
        }
        self.state = ReadState::Failed;
        Ok(())
    }

    /// Detects the prefix from the first bytes of the peer. The error is the
    /// detected prefix if it is not the expected one.
    pub(super) fn detect(
        &mut self,
        first: &[u8; 8],
        role: HandshakeRole,
    ) -> Result<Prefix, Prefix> {
        // PROTOCOL FRAME-13: the decoder refuses bytes that fit neither prefix.
        let found = detect_prefix(first).unwrap_or(self.prefix);
        if matches!(role, HandshakeRole::Initiate(_)) && found != self.prefix {
            return Err(found);
        }
        self.prefix = found;
        Ok(found)
    }

    /// Prepares the decoder for the handshake and pushes its first bytes.
    pub(super) fn start_handshake(&mut self, first: &[u8; 8]) -> Result<(), FrameError> {
        // PROTOCOL HANDSHAKE-6
        self.decoder.restart(self.prefix, Limits::HANDSHAKE);
        // The first 8 bytes belong to the prelude, so no frame buffer is
        // needed.
        self.decoder
            .push(&mut &first[..], &mut Arena::new(&mut []))?;
        Ok(())
    }

    /// Parses the peer's handshake, whose frames are back to back in `frames`.
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

    /// Ends the handshake; the caller's limits apply from here on.
    pub(super) fn established(&mut self) {
        self.decoder.restart(self.prefix, self.limits);
        self.state = ReadState::Ready;
    }
}

/// The state of the writer.
pub(super) struct Outgoing<S> {
    pub(super) prefix: Prefix,
    pub(super) buffer: S,
    pub(super) state: WriteState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteState {
    /// Between messages.
    Ready,
    /// Part of a message was sent. If this is observed between calls, the
    /// future that sent it was dropped.
    Within,
    Failed,
    /// Closed for messages; data written before may not have been flushed.
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

    /// Closes the writer for messages. Returns false if closing is complete.
    pub(super) fn begin_close(&mut self) -> Result<bool, Closed> {
        match self.state {
            WriteState::Closed => return Ok(false),
            WriteState::Closing => {}
            _ => self.check()?,
        }
        self.state = WriteState::Closing;
        Ok(true)
    }

    /// Writes the prelude to the start of the buffer and returns its length.
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

/// Copies frames to `buffer` after the first `filled` bytes while they fit.
/// Returns the bytes to send, the frame to send after them without copying
/// (empty if there is none), and the remaining frames.
pub(super) fn gather<'b, 'f, 's>(
    buffer: &'b mut [u8],
    mut filled: usize,
    mut frames: &'s [&'f [u8]],
) -> (&'b [u8], &'f [u8], &'s [&'f [u8]]) {
    let mut large: &[u8] = &[];
    while let Some((frame, after)) = frames.split_first() {
        if frame.len() > buffer.len() {
            (large, frames) = (frame, after);
            break;
        }
        let rest = buffer.get_mut(filled..).unwrap_or_default();
        let Some(place) = rest.get_mut(..frame.len()) else {
            break;
        };
        crate::copy(place, frame);
        (filled, frames) = (filled.saturating_add(frame.len()), after);
    }
    (buffer.get(..filled).unwrap_or_default(), large, frames)
}

/// Writes our handshake to `out`: the document for [`handshake_frames`].
pub(super) fn encode_handshake<'o>(
    handshake: &Handshake<'_>,
    out: &'o mut [u8],
) -> Result<&'o [u8], EncodeError> {
    let mut writer = Writer::new(out);
    handshake.encode(&mut writer);
    writer.finish().map_err(|error| match error {
        WriteError::BufferTooSmall(error) => EncodeError::BufferTooSmall(error),
        // The document is complete, so the only other error is a name longer
        // than 32 bits.
        _ => EncodeError::TooLong,
    })
}

/// The frames of a handshake: in the classic layout an empty header precedes
/// the document.
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
