//! Comms over the blocking streams of embedded-io 0.7: UARTs, sockets, pipes.
//!
//! [`MessageReader`] and [`MessageWriter`] take any [`Read`] and any [`Write`],
//! keep the [promises of every comm](daskwire::transport#what-every-comm-promises) and need
//! no heap: the caller gives the room for preludes and frames. [`handshake`]
//! makes a comm of the two.
//!
//! ```
//! use daskwire::Limits;
//! use daskwire::frame::{Arena, Prefix};
//! use daskwire::handshake::Handshake;
//! use daskwire::message::Layout;
//! use daskwire_embedded::embedded_io_07::{
//!     CommError, MessageReader, MessageWriter, HandshakeRole, handshake,
//! };
//! # use embedded_io_07 as embedded_io;
//! use embedded_io::{Read, Write};
//!
//! /// Sends every message back, until the peer closes the comm.
//! fn echo<R: Read, W: Write<Error = R::Error>>(rx: R, tx: W) -> Result<u32, CommError<R::Error>> {
//!     // Lengths of up to 32 frames; a prelude of as many, or small messages whole.
//!     let limits = Limits::MICROCONTROLLER;
//!     let mut reader = MessageReader::new(rx, Prefix::U64, [0; 32 * 8], limits);
//!     let mut writer = MessageWriter::new(tx, Prefix::U64, [0; 512]);
//!     let mut storage = [0; 4096];
//!
//!     let ours = Handshake::new(None);
//!     handshake(&mut reader, &mut writer, &ours, HandshakeRole::Initiate(Layout::Modern), &mut storage)?;
//!
//!     let mut arena = Arena::new(&mut storage);
//!     let mut count = 0;
//!     while reader.read_message(&mut arena)?.is_some() {
//!         let mut slots = [&[][..]; 32];
//!         let frames = reader.prelude().and_then(|prelude| {
//!             prelude.split(arena.filled(), &mut slots).ok()
//!         });
//!         writer.write_message(frames.unwrap_or_default())?;
//!         count += 1;
//!     }
//!     writer.close()?;
//!     Ok(count)
//! }
//! # struct Tx(Vec<u8>);
//! # impl embedded_io::ErrorType for Tx { type Error = core::convert::Infallible; }
//! # impl Write for Tx {
//! #     fn write(&mut self, bytes: &[u8]) -> Result<usize, Self::Error> {
//! #         self.0.extend_from_slice(bytes);
//! #         Ok(bytes.len())
//! #     }
//! #     fn flush(&mut self) -> Result<(), Self::Error> { Ok(()) }
//! # }
//! # let theirs = b"\x3d\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x2d\0\0\0\0\0\0\0\
//! #     \x83\xabcompression\xa3lz4\xa6python\x93\x03\x0b\x07\xafpickle-protocol\x05";
//! # let messages = b"\x11\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x80".repeat(3);
//! # let mut tx = Tx(Vec::new());
//! # assert_eq!(echo(&[&theirs[..], &messages].concat()[..], &mut tx), Ok(3));
//! # assert!(tx.0.ends_with(&messages));
//! ```
//!
//! # What a stream should do
//!
//! * A reader and a writer are two streams. A driver that is both in one is
//!   split by its own `split`, or shared by reference where it has none.
//! * There is no read-ahead: a message takes one read for the head of the
//!   prelude, one for the lengths, and one for each frame, or more where the
//!   stream gives less. No byte behind a message is taken. A stream for which
//!   reads are dear should buffer.
//! * A read or write that was interrupted
//!   ([`ErrorKind::Interrupted`]) is repeated.
//! * A write of no bytes, which embedded-io rules out, is an error here.
//! * embedded-io has no deadlines. A stream that is to give up on a silent peer
//!   has to fail by itself, with [`ErrorKind::TimedOut`]; during the handshake
//!   it should.

use core::fmt;

use embedded_io_07::{Error, ErrorKind, Read, Write};

use super::comm_state::{
    Incoming, Outgoing, ReadState, WriteState, encode_handshake, gather, handshake_frames,
};
use daskwire::Limits;
use daskwire::frame::{
    Arena, EncodeError, FrameBuffers, FrameError, FrameErrorKind, Prefix, Prelude, PreludeStorage,
};
use daskwire::handshake::{Handshake, HandshakeError};
use daskwire::message::Layout;
use daskwire::transport::{CommReader, CommWriter, TransportError};

pub use super::comm_state::{Agreement, Closed, HandshakeRole};

/// Why a comm cannot be had, or is over. `E` is the error of the stream.
///
/// All but [`CommError::Encode`] end the half of the comm that gives them, and
/// those of [`handshake`] end both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommError<E> {
    /// The comm ended where it should not have.
    Closed(Closed),
    /// The peer sent what is no message, or one beyond the limits, or there was
    /// no room for it.
    Frame(FrameError),
    /// The peer's first message is no handshake.
    Handshake(HandshakeError),
    /// The peer frames its messages in another way than this side speaks
    /// ([`HandshakeRole::Initiate`]).
    Prefix {
        /// What the peer does.
        peer: Prefix,
    },
    /// What was to be sent is no message, or the writer's buffer does not hold
    /// its prelude. Nothing was sent, and the comm is as good as before, unless
    /// it was the handshake.
    Encode(EncodeError),
    /// The stream took no bytes, or says that it took more than it was given.
    WriteCount {
        /// Bytes that it says it took.
        count: usize,
        /// Bytes that it was given.
        len: usize,
    },
    /// The stream failed.
    Io(E),
}

impl<E: Error> CommError<E> {
    /// Whether the connection is simply gone, as it is when a peer stops or is
    /// killed: nobody broke a rule.
    pub fn is_closed(&self) -> bool {
        match self {
            Self::Closed(_) | Self::WriteCount { count: 0, .. } => true,
            Self::Io(error) => matches!(
                error.kind(),
                ErrorKind::BrokenPipe
                    | ErrorKind::ConnectionAborted
                    | ErrorKind::ConnectionReset
                    | ErrorKind::NotConnected
                    | ErrorKind::TimedOut
                    | ErrorKind::WriteZero
            ),
            _ => false,
        }
    }
}

impl<E: fmt::Display> fmt::Display for CommError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(closed) => closed.fmt(f),
            Self::Frame(error) => write!(f, "the message cannot be taken: {error}"),
            Self::Handshake(error) => write!(f, "the handshake failed: {error}"),
            Self::Prefix { peer: Prefix::None } => f.write_str(
                "the peer sends no leading length, as distributed did up to 2021.2.0, \
                 and this side does",
            ),
            Self::Prefix { peer: Prefix::U64 } => f.write_str(
                "the peer sends a leading length, as distributed does since 2021.3.0, \
                 and this side does not",
            ),
            Self::Encode(error) => write!(f, "the message cannot be sent: {error}"),
            Self::WriteCount { count, len } => {
                write!(f, "the stream was given {len} bytes and took {count}")
            }
            Self::Io(error) => write!(f, "the stream failed: {error}"),
        }
    }
}

impl<E: Error> core::error::Error for CommError<E> {}

impl<E: Error> TransportError for CommError<E> {
    fn is_closed(&self) -> bool {
        self.is_closed()
    }
}

impl<E> From<Closed> for CommError<E> {
    fn from(closed: Closed) -> Self {
        Self::Closed(closed)
    }
}

impl<E> From<FrameError> for CommError<E> {
    fn from(error: FrameError) -> Self {
        Self::Frame(error)
    }
}

impl<E> From<HandshakeError> for CommError<E> {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

impl<E> From<EncodeError> for CommError<E> {
    fn from(error: EncodeError) -> Self {
        Self::Encode(error)
    }
}

/// The half of a comm that messages arrive on.
///
/// Frames go from the stream straight into their places.
///
/// As a [`CommReader`] its futures never wait: they block when they are polled.
/// That is for code written against the seam on a thread, or in a program, that
/// has nothing else to do.
pub struct MessageReader<R, P> {
    io: R,
    incoming: Incoming<P>,
}

impl<R: Read, P: PreludeStorage> MessageReader<R, P> {
    /// Reads messages from `io`, which is at the start of one.
    ///
    /// `storage` takes the table of lengths, 8 bytes for each frame of a
    /// message. `limits` are for the messages after the [`handshake`], if there
    /// is one, and for all of them if there is none.
    pub const fn new(io: R, prefix: Prefix, storage: P, limits: Limits) -> Self {
        Self {
            io,
            incoming: Incoming::new(prefix, storage, limits),
        }
    }

    /// Reads the next message into `frames` and returns how many frames it has;
    /// `None` when the peer has closed the comm between two messages.
    ///
    /// [`prelude`](Self::prelude) then tells their lengths. Blocks until the
    /// message is there.
    ///
    /// # Errors
    ///
    /// * [`CommError::Closed`] if the stream ends within a message, or an
    ///   earlier read failed;
    /// * [`CommError::Frame`] if the peer breaks the framing or the limits, or
    ///   there is no room in `frames` or in the storage for lengths;
    /// * [`CommError::Io`] if the stream fails.
    ///
    /// There are no messages after any of them.
    pub fn read_message<B: FrameBuffers + ?Sized>(
        &mut self,
        frames: &mut B,
    ) -> Result<Option<usize>, CommError<R::Error>> {
        if !self.incoming.start()? {
            return Ok(None);
        }
        let outcome = self.receive(frames);
        if outcome.is_err() {
            self.incoming.state = ReadState::Failed;
        }
        outcome
    }

    fn receive<B: FrameBuffers + ?Sized>(
        &mut self,
        frames: &mut B,
    ) -> Result<Option<usize>, CommError<R::Error>> {
        loop {
            let space = self.incoming.decoder.space(frames)?;
            if space.is_empty() {
                return Ok(Some(self.incoming.frame_count()?));
            }
            match read(&mut self.io, space)? {
                0 => {
                    self.incoming.end()?;
                    return Ok(None);
                }
                count => self.incoming.decoder.advance(count)?,
            }
        }
    }

    /// The first bytes of the peer.
    fn first_bytes(&mut self) -> Result<[u8; 8], CommError<R::Error>> {
        let mut first = [0; 8];
        let mut filled = 0_usize;
        while let Some(space) = first.get_mut(filled..).filter(|space| !space.is_empty()) {
            let space_len = space.len();
            match read(&mut self.io, space)? {
                0 => return Err(Closed::BeforeHandshake.into()),
                count => filled = advanced(filled, count, space_len)?,
            }
        }
        Ok(first)
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
    /// The stream. Between two messages it is where the next one begins.
    pub fn into_inner(self) -> R {
        self.io
    }

    /// The stream.
    pub const fn get_ref(&self) -> &R {
        &self.io
    }

    /// The stream. What is read from it is lost to this reader.
    pub const fn get_mut(&mut self) -> &mut R {
        &mut self.io
    }
}

impl<R, P> CommReader for MessageReader<R, P>
where
    R: Read + Send,
    R::Error: Send + Sync + 'static,
    P: PreludeStorage + Send,
{
    type Error = CommError<R::Error>;

    async fn read_message<B: FrameBuffers + Send>(
        &mut self,
        frames: &mut B,
    ) -> Result<Option<usize>, Self::Error> {
        Self::read_message(self, frames)
    }

    fn prelude(&self) -> Option<Prelude<'_>> {
        Self::prelude(self)
    }
}

impl<R, P> fmt::Debug for MessageReader<R, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageReader")
            .field("state", &self.incoming.state)
            .finish_non_exhaustive()
    }
}

/// The half of a comm that messages leave by.
///
/// The buffer takes the prelude, and behind it the frames that fit, so that a
/// small message leaves with one write. Frames that are longer than the buffer
/// leave from where they lie.
///
/// As a [`CommWriter`] its futures never wait: they block when they are polled,
/// so none can be dropped in the middle of a message.
pub struct MessageWriter<W, S> {
    io: W,
    outgoing: Outgoing<S>,
}

impl<W: Write, S: AsMut<[u8]>> MessageWriter<W, S> {
    /// Writes messages to `io`, at the end of which no message is half done.
    ///
    /// `buffer` has to hold the prelude of every message that is written: 8
    /// bytes for each frame and 16 more
    /// ([`prelude_len`](daskwire::frame::prelude_len)).
    pub const fn new(io: W, prefix: Prefix, buffer: S) -> Self {
        Self {
            io,
            outgoing: Outgoing::new(prefix, buffer),
        }
    }

    /// Writes a message and flushes the stream, so that the peer gets it.
    /// Blocks until the stream has taken all of it.
    ///
    /// # Errors
    ///
    /// * [`CommError::Encode`] if there are no frames, or the buffer does not
    ///   hold the prelude; nothing was sent, and the comm is as good as before;
    /// * [`CommError::Closed`] if an earlier write failed, or the comm was
    ///   closed on this side;
    /// * [`CommError::Io`], [`CommError::WriteCount`] if the stream fails. Part
    ///   of the message may have left, so no other can follow.
    pub fn write_message(&mut self, frames: &[&[u8]]) -> Result<(), CommError<W::Error>> {
        self.feed_message(frames)?;
        self.flush()
    }

    /// Writes a message without flushing the stream: for several in a row, with
    /// a [`flush`](Self::flush) behind the last.
    ///
    /// # Errors
    ///
    /// As [`write_message`](Self::write_message).
    pub fn feed_message(&mut self, frames: &[&[u8]]) -> Result<(), CommError<W::Error>> {
        self.outgoing.check()?;
        let prelude_len = self.outgoing.encode(frames)?;
        let outcome = self.send(prelude_len, frames);
        self.outgoing.state = match outcome {
            Ok(()) => WriteState::Ready,
            Err(_) => WriteState::Failed,
        };
        outcome
    }

    /// Has the stream send what it holds back.
    ///
    /// # Errors
    ///
    /// As [`write_message`](Self::write_message), but for encoding.
    pub fn flush(&mut self) -> Result<(), CommError<W::Error>> {
        self.outgoing.check()?;
        self.flush_stream()
    }

    /// Closes this half: flushes the stream, and refuses to write after that.
    /// Closing again is no error.
    ///
    /// embedded-io has no way to tell the peer. Close or drop the stream
    /// ([`into_inner`](Self::into_inner)) for the peer to see the end.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush). What was written before may not have arrived.
    pub fn close(&mut self) -> Result<(), CommError<W::Error>> {
        if self.outgoing.begin_close()? {
            self.flush_stream()?;
            self.outgoing.state = WriteState::Closed;
        }
        Ok(())
    }

    /// Sends the first `filled` bytes of the buffer, and the frames.
    fn send(&mut self, mut filled: usize, frames: &[&[u8]]) -> Result<(), CommError<W::Error>> {
        let mut rest = frames;
        loop {
            let Outgoing { buffer, state, .. } = &mut self.outgoing;
            let (gathered, large, behind) = gather(buffer.as_mut(), filled, rest);
            write(&mut self.io, state, gathered)?;
            write(&mut self.io, state, large)?;
            if behind.is_empty() {
                return Ok(());
            }
            (filled, rest) = (0, behind);
        }
    }

    fn flush_stream(&mut self) -> Result<(), CommError<W::Error>> {
        loop {
            match self.io.flush() {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.outgoing.state = WriteState::Failed;
                    return Err(CommError::Io(error));
                }
            }
        }
    }

    /// Sends our handshake, encoded into `scratch`.
    fn send_handshake(
        &mut self,
        handshake: &Handshake<'_>,
        layout: Layout,
        scratch: &mut [u8],
    ) -> Result<(), CommError<W::Error>> {
        let document = encode_handshake(handshake, scratch)?;
        let mut slots = [&[][..]; 2];
        let frames = handshake_frames(layout, &mut slots, document);
        let prelude_len = self.outgoing.encode(frames)?;
        let outcome = self.send(prelude_len, frames);
        // Until all of the handshake is done.
        self.outgoing.state = WriteState::Failed;
        outcome?;
        self.flush_stream()
    }
}

impl<W, S> MessageWriter<W, S> {
    /// The stream.
    pub fn into_inner(self) -> W {
        self.io
    }

    /// The stream.
    pub const fn get_ref(&self) -> &W {
        &self.io
    }

    /// The stream. What is written to it stands between two messages.
    pub const fn get_mut(&mut self) -> &mut W {
        &mut self.io
    }
}

impl<W, S> CommWriter for MessageWriter<W, S>
where
    W: Write + Send,
    W::Error: Send + Sync + 'static,
    S: AsMut<[u8]> + Send,
{
    type Error = CommError<W::Error>;

    async fn write_message(&mut self, frames: &[&[u8]]) -> Result<(), Self::Error> {
        Self::write_message(self, frames)
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        Self::close(self)
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

/// Does the handshake over two halves that are new.
///
/// The peer's first message is taken under [`Limits::HANDSHAKE`]; the limits of
/// the reader hold from then on. `scratch` takes one handshake after the other;
/// 128 bytes are enough for those of Dask. The handshake that
/// [initiates](HandshakeRole::Initiate) is written before the peer's is read, so the stream
/// has to take some 90 bytes without anybody reading them, as sockets do.
///
/// # Errors
///
/// Both halves have failed after any of these:
///
/// * [`CommError::Closed`] if the peer closes the comm, or one of the halves
///   is over already;
/// * [`CommError::Handshake`], [`CommError::Frame`] or [`CommError::Prefix`] if
///   the peer sends no handshake that this side understands;
/// * [`CommError::Frame`] with
///   [`NoBuffer`](daskwire::frame::FrameErrorKind::NoBuffer), or
///   [`CommError::Encode`], if `scratch` does not hold a handshake;
/// * [`CommError::Io`], [`CommError::WriteCount`] if a stream fails.
pub fn handshake<'h, R, W, P, S>(
    reader: &mut MessageReader<R, P>,
    writer: &mut MessageWriter<W, S>,
    ours: &Handshake<'h>,
    role: HandshakeRole,
    scratch: &mut [u8],
) -> Result<Agreement<'h>, CommError<R::Error>>
where
    R: Read,
    W: Write<Error = R::Error>,
    P: PreludeStorage,
    S: AsMut<[u8]>,
{
    let begun = reader.incoming.begin_handshake();
    writer.outgoing.begin_handshake()?;
    begun?;
    if let HandshakeRole::Initiate(layout) = role {
        writer.send_handshake(ours, layout, scratch)?;
    }
    let first = reader.first_bytes()?;
    let found = reader.incoming.detect(&first, role);
    let prefix = found.map_err(|peer| CommError::Prefix { peer })?;
    reader.incoming.start_handshake(&first)?;
    let mut arena = Arena::new(scratch);
    reader.receive(&mut arena)?;
    let agreement = reader.incoming.agree(arena.filled(), ours)?;
    writer.outgoing.prefix = prefix;
    if role == HandshakeRole::Respond {
        writer.send_handshake(ours, agreement.layout, scratch)?;
    }
    reader.incoming.established();
    writer.outgoing.state = WriteState::Ready;
    Ok(agreement)
}

/// Reads once, however often that is interrupted.
fn read<R: Read>(io: &mut R, space: &mut [u8]) -> Result<usize, CommError<R::Error>> {
    loop {
        match io.read(space) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome.map_err(CommError::Io),
        }
    }
}

/// Writes all of `bytes`.
fn write<W: Write>(
    io: &mut W,
    state: &mut WriteState,
    mut bytes: &[u8],
) -> Result<(), CommError<W::Error>> {
    while !bytes.is_empty() {
        match io.write(bytes) {
            Ok(count) => {
                bytes = behind(bytes, count)?;
                *state = WriteState::Within;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(CommError::Io(error)),
        }
    }
    Ok(())
}

/// `filled` first bytes and `count` more, read into `space_len` bytes.
pub(super) fn advanced(filled: usize, count: usize, space_len: usize) -> Result<usize, FrameError> {
    if count > space_len {
        let (advanced, space) = (count, space_len);
        return Err(FrameError {
            at: filled as u64,
            kind: FrameErrorKind::Overrun { advanced, space },
        });
    }
    Ok(filled.wrapping_add(count))
}

/// What is left after a write of `count` bytes.
pub(super) fn behind<E>(bytes: &[u8], count: usize) -> Result<&[u8], CommError<E>> {
    match bytes.get(count..) {
        Some(rest) if count != 0 => Ok(rest),
        _ => Err(CommError::WriteCount {
            count,
            len: bytes.len(),
        }),
    }
}
