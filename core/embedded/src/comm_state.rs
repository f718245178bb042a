//! The state of the reader and the writer of a comm, without their streams. No I/O and no
//! types of other crates, so that all adapters share it.

use core::fmt;

use daskwire::Limits;
use daskwire::comm::{CommOptions, HandshakeRole};
use daskwire::frame::{
    EncodeError, FrameDecoder, FrameError, FrameErrorKind, Prefix, Prelude, PreludeStorage,
    encode_prelude, prelude_len,
};
use daskwire::handshake::Handshake;
use daskwire::invariant::Ensured as _;

/// The reason why a comm is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
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

/// The state of the reader.
pub(super) struct Incoming<P> {
    pub(super) decoder: FrameDecoder<P>,
    pub(super) prefix: Prefix,
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

    /// Whether the error can be resolved by larger buffers for frames: the current ones
    /// contain nothing of the message.
    pub(super) fn can_retry(&self, error: &FrameError) -> bool {
        let prelude = self.decoder.prelude();
        let prelude_len = prelude.and_then(|it| prelude_len(self.prefix, it.frame_count()));
        matches!(error.kind, FrameErrorKind::NoBuffer { .. })
            && prelude_len.is_some_and(|len| error.at == len as u64)
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
    fn begin_handshake(&mut self) -> Result<(), Closed> {
        if !self.start()? {
            return Err(Closed::BeforeHandshake);
        }
        self.state = ReadState::Failed;
        Ok(())
    }

    /// Ends the handshake; the caller's limits apply from here on.
    pub(super) fn established(&mut self, prefix: Prefix) {
        self.prefix = prefix;
        self.decoder.restart(prefix, self.limits);
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

    /// Begins the handshake, as [`Incoming::begin_handshake`].
    fn begin_handshake(&mut self) -> Result<(), Closed> {
        self.check()?;
        self.state = WriteState::Failed;
        Ok(())
    }

    /// Ends the handshake.
    pub(super) fn established(&mut self, prefix: Prefix) {
        self.prefix = prefix;
        self.state = WriteState::Ready;
    }
}

/// Begins the handshake on both sides, and returns its options.
pub(super) fn begin_handshake<'h, P: PreludeStorage, S: AsMut<[u8]>>(
    incoming: &mut Incoming<P>,
    outgoing: &mut Outgoing<S>,
    ours: &Handshake<'h>,
    role: HandshakeRole,
) -> Result<CommOptions<'h>, Closed> {
    let begun = incoming.begin_handshake();
    outgoing.begin_handshake()?;
    begun?;
    Ok(CommOptions {
        role,
        prefix: incoming.prefix,
        handshake: *ours,
        limits: Limits::HANDSHAKE,
    })
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
        let rest = buffer.get_mut(filled..).ensured();
        let Some(place) = rest.get_mut(..frame.len()) else {
            break;
        };
        crate::copy(place, frame);
        (filled, frames) = (filled.saturating_add(frame.len()), after);
    }
    (buffer.get(..filled).ensured(), large, frames)
}

/// The methods of `MessageReader` and `MessageWriter` that do no I/O, which are the same for
/// blocking and async streams.
macro_rules! without_io {
    () => {
        impl<R: Read, P: PreludeStorage> MessageReader<R, P> {
            /// Creates a reader for `io`, which is at the start of a message.
            ///
            /// `storage` holds the lengths, 8 bytes per frame. `limits` apply
            /// to all messages except the [`handshake`].
            pub const fn new(io: R, prefix: Prefix, storage: P, limits: Limits) -> Self {
                Self {
                    io,
                    incoming: Incoming::new(prefix, storage, limits),
                }
            }
        }

        impl<R, P: PreludeStorage> MessageReader<R, P> {
            /// The lengths of the frames that the last call read; `None` before the
            /// first one, while a message is arriving, and after an end or an error.
            pub fn prelude(&self) -> Option<Prelude<'_>> {
                self.incoming.prelude()
            }
        }

        impl<R, P> MessageReader<R, P> {
            /// Returns the stream. Between two messages it is at the start of the next
            /// one.
            pub fn into_inner(self) -> R {
                self.io
            }

            /// The underlying stream.
            pub const fn get_ref(&self) -> &R {
                &self.io
            }

            /// The underlying stream. Bytes read from it are lost to this reader.
            pub const fn get_mut(&mut self) -> &mut R {
                &mut self.io
            }
        }

        impl<R, P> fmt::Debug for MessageReader<R, P> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct("MessageReader")
                    .field("state", &self.incoming.state)
                    .finish_non_exhaustive()
            }
        }

        impl<W: Write, S: AsMut<[u8]>> MessageWriter<W, S> {
            /// Creates a writer to `io`, which is between two messages.
            ///
            /// `buffer` must hold the prelude of every message: 8 bytes per frame plus
            /// 16 ([`prelude_len`](daskwire::frame::prelude_len)).
            pub const fn new(io: W, prefix: Prefix, buffer: S) -> Self {
                Self {
                    io,
                    outgoing: Outgoing::new(prefix, buffer),
                }
            }
        }

        impl<W, S> MessageWriter<W, S> {
            /// The underlying stream.
            pub fn into_inner(self) -> W {
                self.io
            }

            /// The underlying stream.
            pub const fn get_ref(&self) -> &W {
                &self.io
            }

            /// The underlying stream. Bytes written to it are sent between two
            /// messages.
            pub const fn get_mut(&mut self) -> &mut W {
                &mut self.io
            }
        }

        impl<W, S> fmt::Debug for MessageWriter<W, S> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct("MessageWriter")
                    .field("prefix", &self.outgoing.prefix)
                    .field("state", &self.outgoing.state)
                    .finish_non_exhaustive()
            }
        }
    };
}
pub(super) use without_io;
