//! Comms over the streams of embedded-io-async 0.7, as in embassy.
//!
//! The async equivalent of [`embedded_io_07`](super::embedded_io_07), with the
//! same errors.
//!
//! ```
//! use daskwire::frame::Arena;
//! use daskwire_embedded::embedded_io_async_07::{CommError, MessageReader, MessageWriter};
//! # use embedded_io_async_07 as embedded_io_async;
//! use embedded_io_async::{Read, Write};
//!
//! /// Sends every message of up to 32 frames and 4 KiB back.
//! async fn echo<R: Read, W: Write<Error = R::Error>>(
//!     reader: &mut MessageReader<R, [u8; 32 * 8]>,
//!     writer: &mut MessageWriter<W, [u8; 512]>,
//! ) -> Result<(), CommError<R::Error>> {
//!     let mut storage = [0; 4096];
//!     let mut arena = Arena::new(&mut storage);
//!     while reader.read_message(&mut arena).await?.is_some() {
//!         let mut slots = [&[][..]; 32];
//!         let frames = reader.prelude().and_then(|prelude| {
//!             prelude.split(arena.filled(), &mut slots).ok()
//!         });
//!         writer.write_message(frames.unwrap_or_default()).await?;
//!     }
//!     writer.close().await
//! }
//! ```
//!
//! # What a stream should do
//!
//! The requirements for [blocking
//! streams](super::embedded_io_07#what-a-stream-should-do) apply. In addition a
//! read or write that is dropped before it returns should have no effect.
//! embedded-io-async recommends that but does not require it. With a driver
//! that does not guarantee it, for example one that reads by DMA into the
//! caller's buffer, run each future to completion, and do not use a comm after
//! a future was dropped.
//!
//! # Panics
//!
//! Nothing here panics, except that a future panics if it is polled again after it has
//! completed, as every `async fn` does; executors do not do that.
//!
//! # Implementing the comm traits
//!
//! [`CommReader`](daskwire::transport::CommReader) and
//! [`CommWriter`](daskwire::transport::CommWriter) require futures that are [`Send`],
//! which embedded-io-async does not guarantee for a generic stream. So the methods here
//! are inherent, with the names of the trait methods. For a concrete stream the compiler
//! can check it, and the traits can be implemented in a few lines:
//!
//! ```
//! # use embedded_io_async_07 as embedded_io_async;
//! # struct Uart;
//! # impl embedded_io_async::ErrorType for Uart { type Error = embedded_io_async::ErrorKind; }
//! # impl embedded_io_async::Read for Uart {
//! #     async fn read(&mut self, _: &mut [u8]) -> Result<usize, Self::Error> { Ok(0) }
//! # }
//! use daskwire::frame::{FrameBuffers, Prelude};
//! use daskwire::transport::CommReader;
//! use daskwire_embedded::embedded_io_async_07::{CommError, MessageReader};
//!
//! struct UartReader(MessageReader<Uart, [u8; 256]>);
//!
//! impl CommReader for UartReader {
//!     type Error = CommError<embedded_io_async::ErrorKind>;
//!
//!     async fn read_message<B: FrameBuffers + Send>(
//!         &mut self,
//!         frames: &mut B,
//!     ) -> Result<Option<usize>, Self::Error> {
//!         self.0.read_message(frames).await
//!     }
//!
//!     fn prelude(&self) -> Option<Prelude<'_>> {
//!         self.0.prelude()
//!     }
//! }
//! ```

use core::fmt;

use embedded_io_async_07::{Error as _, ErrorKind, Read, Write};

use super::comm_state::{gather, without_io};
use super::embedded_io_07::rest_after;
use daskwire::Limits;
use daskwire::comm::{Comm, DriveError, HANDSHAKE_LEN, Handshaking, Receiver, Sender};
use daskwire::frame::{Arena, FrameBuffers, Prefix, Prelude, PreludeStorage};
use daskwire::handshake::Handshake;
use daskwire::invariant::OrDefaultIfBug as _;

pub use super::embedded_io_07::{
    Agreement, Closed, CommError, HandshakeResult, HandshakeRole, StreamError,
};

without_io!();

/// The reader of a comm.
///
/// Frames are read from the stream directly into the caller's buffers.
pub struct MessageReader<R, P> {
    io: R,
    receiver: Receiver<P>,
}

impl<R: Read, P: PreludeStorage> MessageReader<R, P> {
    /// Reads the next message into `frames` and returns how many frames it has;
    /// `None` when the peer has closed the comm between two messages.
    ///
    /// [`prelude`](Self::prelude) then has their lengths.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe if the next call gets the same `frames` and the reads of the
    /// [stream](self#what-a-stream-should-do) are cancel safe.
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
    pub async fn read_message<B: FrameBuffers + ?Sized>(
        &mut self,
        frames: &mut B,
    ) -> Result<Option<usize>, CommError<R::Error>> {
        match self.receiver.resume()? {
            true => receive(&mut self.io, &mut self.receiver, frames).await,
            false => Ok(None),
        }
    }
}

/// The writer of a comm.
///
/// The buffer holds the prelude and after it the frames that fit, so that a
/// small message takes one write. Longer frames are written without copying.
pub struct MessageWriter<W, S> {
    io: W,
    sender: Sender,
    buffer: S,
    /// Whether everything was flushed after the writer was closed.
    is_flushed: bool,
}

impl<W: Write, S: AsMut<[u8]>> MessageWriter<W, S> {
    /// Writes a message and flushes the stream.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe, but a cancelled write is detected. A future that is dropped
    /// before the first byte is written has no effect. If it is dropped after the
    /// last byte, the message is written but not flushed. If it is dropped in
    /// between, every later write returns [`Closed::WriteCancelled`], and the peer
    /// sees the comm end within a message when the stream is closed.
    ///
    /// # Errors
    ///
    /// * [`Encode`](daskwire::comm::CommError::Encode) if there are no frames, or the buffer is too
    ///   small for the prelude; nothing was sent, and the comm is still usable;
    /// * [`Closed`](daskwire::comm::CommError::Closed) if an earlier write failed or was dropped, or
    ///   the comm was closed on this side;
    /// * [`CommError::Io`], [`CommError::WriteCount`] if the stream fails. Part
    ///   of the message may have been sent, so the comm is no longer usable.
    pub async fn write_message(&mut self, frames: &[&[u8]]) -> Result<(), CommError<W::Error>> {
        self.feed_message(frames).await?;
        self.flush().await
    }

    /// Writes a message without flushing the stream. Call
    /// [`flush`](Self::flush) after the last message.
    ///
    /// # Cancel safety
    ///
    /// As [`write_message`](Self::write_message).
    ///
    /// # Errors
    ///
    /// As [`write_message`](Self::write_message).
    pub async fn feed_message(&mut self, frames: &[&[u8]]) -> Result<(), CommError<W::Error>> {
        let lengths = frames.iter().map(|frame| frame.len() as u64);
        let prelude_len = self.sender.encode_prelude(lengths, self.buffer.as_mut())?;
        self.send(prelude_len, frames).await?;
        self.sender.wrote_message();
        Ok(())
    }

    /// Flushes the stream.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: call it again.
    ///
    /// # Errors
    ///
    /// As [`write_message`](Self::write_message), except [`Encode`](daskwire::comm::CommError::Encode).
    pub async fn flush(&mut self) -> Result<(), CommError<W::Error>> {
        self.sender.check()?;
        self.flush_stream().await
    }

    /// Closes the writer: flushes the stream and refuses further writes. Closing
    /// again is not an error.
    ///
    /// embedded-io cannot close a stream. Close or drop the stream
    /// ([`into_inner`](Self::into_inner)) for the peer to see the end.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: call it again. Writes fail from the first call on.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush). Messages written before may not have arrived.
    pub async fn close(&mut self) -> Result<(), CommError<W::Error>> {
        self.sender.close()?;
        if !self.is_flushed {
            self.flush_stream().await?;
            self.is_flushed = true;
        }
        Ok(())
    }

    /// Sends the first `filled` bytes of the buffer, and the frames.
    async fn send(
        &mut self,
        mut filled: usize,
        frames: &[&[u8]],
    ) -> Result<(), CommError<W::Error>> {
        let (io, sender, mut rest) = (&mut self.io, &mut self.sender, frames);
        loop {
            let (gathered, large, rest_after) = gather(self.buffer.as_mut(), filled, rest);
            write(io, sender, gathered).await?;
            write(io, sender, large).await?;
            if rest_after.is_empty() {
                return Ok(());
            }
            (filled, rest) = (0, rest_after);
        }
    }

    /// Sends the first `len` bytes of `out`, if any, and flushes the stream.
    async fn send_handshake<R>(
        &mut self,
        out: &[u8],
        len: usize,
    ) -> Result<(), CommError<StreamError<R, W::Error>>> {
        let bytes = out.get(..len).or_default_if_bug();
        if !bytes.is_empty() {
            let sent = write(&mut self.io, &mut self.sender, bytes).await;
            sent.map_err(CommError::writing)?;
            self.flush_stream().await.map_err(CommError::writing)?;
        }
        Ok(())
    }

    async fn flush_stream(&mut self) -> Result<(), CommError<W::Error>> {
        loop {
            match self.io.flush().await {
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

/// Sends what `comm` has queued and receives, as [`Comm::drive_async`] does, over one stream for
/// both directions.
///
/// # Cancel safety
///
/// As [`Comm::drive_async`].
///
/// # Errors
///
/// As [`Comm::drive_async`].
pub async fn drive<S: Read + Write, const FRAMES: usize>(
    comm: &mut Comm<'_, FRAMES>,
    stream: &mut S,
) -> Result<bool, DriveError<S::Error>> {
    let read = async |stream: &mut S, space: &mut [u8]| stream.read(space).await;
    let write = async |stream: &mut S, bytes: &[u8]| {
        let count = stream.write(bytes).await?;
        stream.flush().await?;
        Ok(count)
    };
    comm.drive_async(stream, read, write).await
}

/// Does the handshake over a new reader and writer.
///
/// [`Limits::HANDSHAKE`] apply to the peer's handshake, the limits of the
/// reader to later messages. `scratch` holds the peer's handshake;
/// [`HANDSHAKE_LEN`] bytes are enough for Dask's. The side that [sends
/// first](HandshakeRole::SendFirst) writes its handshake before it reads the peer's, so the stream must buffer about 90 bytes, as sockets do.
///
/// # Cancel safety
///
/// Not cancel safe: if the handshake is dropped, both fail.
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
pub async fn handshake<'h, R, W, P, S>(
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
    let outcome = shake(reader, writer, ours, role, scratch).await;
    if outcome.is_err() {
        reader.receiver.fail();
        writer.sender.fail();
    }
    outcome
}

async fn shake<'h, R, W, P, S>(
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
    writer.send_handshake(&out, len).await?;
    let received = receive(&mut reader.io, receiver, &mut arena).await;
    received.map_err(CommError::reading)?;
    let (agreement, len) = shaking.agree_stored(receiver, arena.filled(), &mut out)?;
    writer.send_handshake(&out, len).await?;
    shaking.finish(&mut reader.receiver, &mut writer.sender, limits);
    Ok(agreement)
}

/// Receives a message. Returns the number of its frames, or `None` if the stream ends
/// before it.
async fn receive<R: Read, P: PreludeStorage, B: FrameBuffers + ?Sized>(
    io: &mut R,
    receiver: &mut Receiver<P>,
    frames: &mut B,
) -> Result<Option<usize>, CommError<R::Error>> {
    loop {
        let space = receiver.space(frames)?;
        if space.is_empty() {
            return Ok(receiver.prelude().map(|prelude| prelude.frame_count()));
        }
        match io.read(space).await {
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
async fn write<W: Write>(
    io: &mut W,
    sender: &mut Sender,
    mut bytes: &[u8],
) -> Result<(), CommError<W::Error>> {
    while !bytes.is_empty() {
        let outcome = match io.write(bytes).await {
            Ok(count) => rest_after(bytes, count),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => Err(CommError::Io(error)),
        };
        bytes = outcome.inspect_err(|_| sender.fail())?;
        sender.wrote_part();
    }
    Ok(())
}
