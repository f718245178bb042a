//! Comms over the blocking streams of embedded-io 0.7: UARTs, sockets, pipes.
//!
//! [`MessageReader`] and [`MessageWriter`] work on any [`Read`] and any
//! [`Write`], give the [guarantees of every
//! comm](daskwire::transport#what-every-comm-guarantees) and need no heap: the
//! caller supplies the buffers for preludes and frames. [`handshake`] does the
//! handshake over both.
//!
//! ```
//! use daskwire::Limits;
//! use daskwire::frame::{Arena, Prefix};
//! use daskwire::handshake::Handshake;
//! use daskwire::message::Layout;
//! use daskwire_embedded::embedded_io_07::{
//!     CommError, HandshakeRole, MessageReader, MessageWriter, StreamError, handshake,
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
//!     let role = HandshakeRole::SendFirst(Layout::Modern);
//!     handshake(&mut reader, &mut writer, &ours, role, &mut storage)
//!         .map_err(|error| error.map_io(StreamError::into_inner))?;
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
//! * The reader and the writer need separate streams. Split a driver that is
//!   both with its own `split`, or share it by reference.
//! * There is no read-ahead: a message takes one read for the head of the
//!   prelude, one for the lengths, and one per frame, or more if the stream
//!   returns less. No byte after a message is read. Buffer a stream whose reads
//!   are expensive.
//! * An interrupted read or write ([`ErrorKind::Interrupted`]) is repeated.
//! * A write of no bytes, which embedded-io forbids, is an error.
//! * embedded-io has no deadlines. To detect a silent peer the stream itself
//!   has to fail with [`ErrorKind::TimedOut`]; it should do so during the
//!   handshake.

use core::fmt;

use embedded_io_07::{Error, ErrorKind, Read, Write};

use super::comm_state::{gather, without_io};
use daskwire::Limits;
use daskwire::comm::{self, Comm, DriveError, HANDSHAKE_LEN, Handshaking, Receiver, Sender};
use daskwire::frame::{Arena, FrameBuffers, Prefix, Prelude, PreludeStorage};
use daskwire::handshake::Handshake;
use daskwire::invariant::OrDefaultIfBug as _;
use daskwire::transport::{CommReader, CommWriter, TransportError};

pub use daskwire::comm::{Agreement, Closed, HandshakeRole};

/// The error of a comm. `E` is the error of the stream.
///
/// All but [`Encode`](daskwire::comm::CommError::Encode) are final for the reader or writer that
/// returns them, and so is an error of [`handshake`] for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum CommError<E> {
    /// The comm is closed, or was used against its protocol by this side or the peer.
    Comm(comm::CommError),
    /// The stream accepted no bytes, or reported more bytes than it was given.
    WriteCount {
        /// The number of bytes reported.
        count: usize,
        /// The number of bytes given.
        len: usize,
    },
    /// The stream failed.
    Io(E),
}

impl<E: Error> CommError<E> {
    /// Whether the connection is closed, for example because the peer stopped
    /// or was killed.
    pub fn is_closed(&self) -> bool {
        match self {
            // A handshake that was dropped cannot be repeated.
            Self::Comm(comm::CommError::Closed(_) | comm::CommError::NotOpen) => true,
            Self::WriteCount { count: 0, .. } => true,
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

impl<E> CommError<E> {
    /// Converts the error of the stream.
    pub fn map_io<F>(self, convert: impl FnOnce(E) -> F) -> CommError<F> {
        match self {
            Self::Comm(error) => CommError::Comm(error),
            Self::WriteCount { count, len } => CommError::WriteCount { count, len },
            Self::Io(error) => CommError::Io(convert(error)),
        }
    }

    pub(super) fn reading<W>(self) -> CommError<StreamError<E, W>> {
        self.map_io(StreamError::Read)
    }

    pub(super) fn writing<R>(self) -> CommError<StreamError<R, E>> {
        self.map_io(StreamError::Write)
    }
}

/// The error of one of the two streams of a comm, whose error types may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum StreamError<R, W> {
    /// The stream that is read failed.
    Read(R),
    /// The stream that is written failed.
    Write(W),
}

/// The result of a handshake over streams with these error types.
pub type HandshakeResult<'h, R, W> = Result<Agreement<'h>, CommError<StreamError<R, W>>>;

impl<E> StreamError<E, E> {
    /// Returns the error, of streams with one error type.
    pub fn into_inner(self) -> E {
        match self {
            Self::Read(error) | Self::Write(error) => error,
        }
    }
}

impl<R: fmt::Display, W: fmt::Display> fmt::Display for StreamError<R, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => error.fmt(f),
            Self::Write(error) => error.fmt(f),
        }
    }
}

impl<R: Error, W: Error> core::error::Error for StreamError<R, W> {}

impl<R: Error, W: Error> Error for StreamError<R, W> {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Read(error) => error.kind(),
            Self::Write(error) => error.kind(),
        }
    }
}

impl<E> From<comm::CommError> for CommError<E> {
    fn from(error: comm::CommError) -> Self {
        Self::Comm(error)
    }
}

impl<E: fmt::Display> fmt::Display for CommError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Comm(error) => error.fmt(f),
            Self::WriteCount { count, len } => {
                write!(f, "the stream was given {len} bytes and accepted {count}")
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

without_io!();

/// The reader of a comm.
///
/// Frames are read from the stream directly into the caller's buffers.
///
/// The futures of its [`CommReader`] implementation block when they are polled.
/// Use them only on a thread with nothing else to do.
pub struct MessageReader<R, P> {
    io: R,
    receiver: Receiver<P>,
}

impl<R: Read, P: PreludeStorage> MessageReader<R, P> {
    /// Reads the next message into `frames` and returns how many frames it has;
    /// `None` when the peer has closed the comm between two messages.
    ///
    /// [`prelude`](Self::prelude) then has their lengths. Blocks until the
    /// message is complete.
    ///
    /// # Errors
    ///
    /// * [`Closed`](daskwire::comm::CommError::Closed) if the stream ends within a message, or an
    ///   earlier read failed;
    /// * [`Frame`](daskwire::comm::CommError::Frame) if the peer violates the framing or the limits,
    ///   or `frames` or the storage for lengths is too small;
    /// * [`CommError::Io`] if the stream fails.
    ///
    /// Errors are final, except [`NoBuffer`](daskwire::frame::FrameErrorKind::NoBuffer) from
    /// an [`Arena`] that is too small: nothing was stored, so call again with `frames_len`
    /// bytes.
    pub fn read_message<B: FrameBuffers + ?Sized>(
        &mut self,
        frames: &mut B,
    ) -> Result<Option<usize>, CommError<R::Error>> {
        match self.receiver.resume()? {
            true => receive(&mut self.io, &mut self.receiver, frames),
            false => Ok(None),
        }
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

/// The writer of a comm.
///
/// The buffer holds the prelude and after it the frames that fit, so that a
/// small message takes one write. Longer frames are written without copying.
///
/// The futures of its [`CommWriter`] implementation block when they are polled,
/// so they cannot be dropped within a message.
pub struct MessageWriter<W, S> {
    io: W,
    sender: Sender,
    buffer: S,
    /// Whether everything was flushed after the writer was closed.
    is_flushed: bool,
}

impl<W: Write, S: AsMut<[u8]>> MessageWriter<W, S> {
    /// Writes a message and flushes the stream. Blocks until the stream has
    /// accepted all of it.
    ///
    /// # Errors
    ///
    /// * [`Encode`](daskwire::comm::CommError::Encode) if there are no frames, or the buffer is too
    ///   small for the prelude; nothing was sent, and the comm is still usable;
    /// * [`Closed`](daskwire::comm::CommError::Closed) if an earlier write failed, or the comm was
    ///   closed on this side;
    /// * [`CommError::Io`], [`CommError::WriteCount`] if the stream fails. Part
    ///   of the message may have been sent, so the comm is no longer usable.
    pub fn write_message(&mut self, frames: &[&[u8]]) -> Result<(), CommError<W::Error>> {
        self.feed_message(frames)?;
        self.flush()
    }

    /// Writes a message without flushing the stream. Call
    /// [`flush`](Self::flush) after the last message.
    ///
    /// # Errors
    ///
    /// As [`write_message`](Self::write_message).
    pub fn feed_message(&mut self, frames: &[&[u8]]) -> Result<(), CommError<W::Error>> {
        let lengths = frames.iter().map(|frame| frame.len() as u64);
        let prelude_len = self.sender.encode_prelude(lengths, self.buffer.as_mut())?;
        self.send(prelude_len, frames)?;
        self.sender.wrote_message();
        Ok(())
    }

    /// Flushes the stream.
    ///
    /// # Errors
    ///
    /// As [`write_message`](Self::write_message), except [`Encode`](daskwire::comm::CommError::Encode).
    pub fn flush(&mut self) -> Result<(), CommError<W::Error>> {
        self.sender.check()?;
        self.flush_stream()
    }

    /// Closes the writer: flushes the stream and refuses further writes. Closing
    /// again is not an error.
    ///
    /// embedded-io cannot close a stream. Close or drop the stream
    /// ([`into_inner`](Self::into_inner)) for the peer to see the end.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush). Messages written before may not have arrived.
    pub fn close(&mut self) -> Result<(), CommError<W::Error>> {
        self.sender.close()?;
        if !self.is_flushed {
            self.flush_stream()?;
            self.is_flushed = true;
        }
        Ok(())
    }

    /// Sends the first `filled` bytes of the buffer, and the frames.
    fn send(&mut self, mut filled: usize, frames: &[&[u8]]) -> Result<(), CommError<W::Error>> {
        let (io, sender, mut rest) = (&mut self.io, &mut self.sender, frames);
        loop {
            let (gathered, large, rest_after) = gather(self.buffer.as_mut(), filled, rest);
            write(io, sender, gathered)?;
            write(io, sender, large)?;
            if rest_after.is_empty() {
                return Ok(());
            }
            (filled, rest) = (0, rest_after);
        }
    }

    /// Sends the first `len` bytes of `out`, if any, and flushes the stream.
    fn send_handshake<R>(
        &mut self,
        out: &[u8],
        len: usize,
    ) -> Result<(), CommError<StreamError<R, W::Error>>> {
        let bytes = out.get(..len).or_default_if_bug();
        if !bytes.is_empty() {
            let sent = write(&mut self.io, &mut self.sender, bytes);
            sent.map_err(CommError::writing)?;
            self.flush_stream().map_err(CommError::writing)?;
        }
        Ok(())
    }

    fn flush_stream(&mut self) -> Result<(), CommError<W::Error>> {
        loop {
            match self.io.flush() {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.sender.fail();
                    return Err(CommError::Io(error));
                }
            }
        }
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

/// Sends what `comm` has queued and receives, as [`Comm::drive`] does, over one stream for
/// both directions.
///
/// # Errors
///
/// As [`Comm::drive`].
pub fn drive<S: Read + Write, const FRAMES: usize>(
    comm: &mut Comm<'_, FRAMES>,
    stream: &mut S,
) -> Result<bool, DriveError<S::Error>> {
    let read = |stream: &mut S, space: &mut [u8]| stream.read(space);
    let write = |stream: &mut S, bytes: &[u8]| {
        let count = stream.write(bytes)?;
        stream.flush()?;
        Ok(count)
    };
    comm.drive(stream, read, write)
}

/// Does the handshake over a new reader and writer.
///
/// [`Limits::HANDSHAKE`] apply to the peer's handshake, the limits of the
/// reader to later messages. `scratch` holds the peer's handshake;
/// [`HANDSHAKE_LEN`] bytes are enough for Dask's. The side that [sends
/// first](HandshakeRole::SendFirst) writes its handshake before it reads the peer's, so the stream must buffer about 90 bytes, as sockets do.
///
/// # Errors
///
/// All errors are final for both:
///
/// * [`Closed`](daskwire::comm::CommError::Closed) if the peer closes the comm, or one of the two is already
///   closed;
/// * [`Handshake`](daskwire::comm::CommError::Handshake), [`Frame`](daskwire::comm::CommError::Frame) or [`Prefix`](daskwire::comm::CommError::Prefix) if
///   the peer sends no valid handshake, or one with another prefix;
/// * [`Frame`](daskwire::comm::CommError::Frame) with
///   [`NoBuffer`](daskwire::frame::FrameErrorKind::NoBuffer) if `scratch` is
///   too small for the peer's handshake;
/// * [`CommError::Io`], [`CommError::WriteCount`] if a stream fails.
pub fn handshake<'h, R, W, P, S>(
    reader: &mut MessageReader<R, P>,
    writer: &mut MessageWriter<W, S>,
    ours: &Handshake<'h>,
    role: HandshakeRole,
    scratch: &mut [u8],
) -> HandshakeResult<'h, R::Error, W::Error>
where
    R: Read,
    W: Write,
    P: PreludeStorage,
    S: AsMut<[u8]>,
{
    let outcome = shake(reader, writer, ours, role, scratch);
    if outcome.is_err() {
        reader.receiver.fail();
        writer.sender.fail();
    }
    outcome
}

fn shake<'h, R, W, P, S>(
    reader: &mut MessageReader<R, P>,
    writer: &mut MessageWriter<W, S>,
    ours: &Handshake<'h>,
    role: HandshakeRole,
    scratch: &mut [u8],
) -> HandshakeResult<'h, R::Error, W::Error>
where
    R: Read,
    W: Write,
    P: PreludeStorage,
    S: AsMut<[u8]>,
{
    let (receiver, sender) = (&mut reader.receiver, &mut writer.sender);
    let (shaking, limits) = (Handshaking::new(*ours, role), *receiver.limits());
    shaking.begin(receiver, sender, Limits::HANDSHAKE)?;
    let (mut arena, mut out) = (Arena::new(scratch), [0; HANDSHAKE_LEN]);
    let len = shaking.greeting(sender.prefix(), &mut out)?;
    writer.send_handshake(&out, len)?;
    let received = receive(&mut reader.io, receiver, &mut arena);
    received.map_err(CommError::reading)?;
    let (agreement, len) = shaking.agree_stored(receiver, arena.filled(), &mut out)?;
    writer.send_handshake(&out, len)?;
    shaking.finish(&mut reader.receiver, &mut writer.sender, limits);
    Ok(agreement)
}

/// Receives a message. Returns the number of its frames, or `None` if the stream ends
/// before it.
fn receive<R: Read, P: PreludeStorage, B: FrameBuffers + ?Sized>(
    io: &mut R,
    receiver: &mut Receiver<P>,
    frames: &mut B,
) -> Result<Option<usize>, CommError<R::Error>> {
    loop {
        let space = receiver.space(frames)?;
        if space.is_empty() {
            return Ok(receiver.prelude().map(|prelude| prelude.frame_count()));
        }
        match io.read(space) {
            Ok(0) => {
                receiver.end()?;
                return Ok(None);
            }
            Ok(count) => receiver.received(count)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                receiver.fail();
                return Err(CommError::Io(error));
            }
        }
    }
}

/// Writes all of `bytes`.
fn write<W: Write>(
    io: &mut W,
    sender: &mut Sender,
    mut bytes: &[u8],
) -> Result<(), CommError<W::Error>> {
    while !bytes.is_empty() {
        let outcome = match io.write(bytes) {
            Ok(count) => rest_after(bytes, count),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => Err(CommError::Io(error)),
        };
        bytes = outcome.inspect_err(|_| sender.fail())?;
        sender.wrote_part();
    }
    Ok(())
}

/// The bytes left after a write of `count` bytes.
pub(super) fn rest_after<E>(bytes: &[u8], count: usize) -> Result<&[u8], CommError<E>> {
    match bytes.get(count..) {
        Some(rest) if count != 0 => Ok(rest),
        _ => Err(CommError::WriteCount {
            count,
            len: bytes.len(),
        }),
    }
}
