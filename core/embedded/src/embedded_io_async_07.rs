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

use super::comm_state::{
    Incoming, Outgoing, ReadState, WriteState, begin_handshake, gather, without_io,
};
use super::embedded_io_07::{closed_in_handshake, rest_after};
use daskwire::Limits;
use daskwire::comm::{Comm, HANDSHAKE_LEN};
use daskwire::frame::{FrameBuffers, Prefix, Prelude, PreludeStorage};
use daskwire::handshake::Handshake;

pub use super::embedded_io_07::{
    Agreement, Closed, CommError, HandshakeResult, HandshakeRole, StreamError,
};

without_io!();

/// The reader of a comm.
///
/// Frames are read from the stream directly into the caller's buffers.
pub struct MessageReader<R, P> {
    io: R,
    incoming: Incoming<P>,
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
    /// * [`CommError::Closed`] if the stream ends within a message, or an
    ///   earlier read failed;
    /// * [`CommError::Frame`] if the peer violates the framing or the limits,
    ///   or `frames` or the storage for lengths is too small;
    /// * [`CommError::Io`] if the stream fails.
    ///
    /// All errors are final but one:
    /// [`NoBuffer`](daskwire::frame::FrameErrorKind::NoBuffer) before anything of
    /// the message is in `frames`, as of an [`Arena`](daskwire::frame::Arena). It
    /// says how many bytes are enough: call again with larger `frames`.
    pub async fn read_message<B: FrameBuffers + ?Sized>(
        &mut self,
        frames: &mut B,
    ) -> Result<Option<usize>, CommError<R::Error>> {
        if !self.incoming.start()? {
            return Ok(None);
        }
        let outcome = self.receive(frames).await;
        if let Err(error) = &outcome
            && !matches!(error, CommError::Frame(error) if self.incoming.can_retry(error))
        {
            self.incoming.state = ReadState::Failed;
        }
        outcome
    }

    async fn receive<B: FrameBuffers + ?Sized>(
        &mut self,
        frames: &mut B,
    ) -> Result<Option<usize>, CommError<R::Error>> {
        loop {
            let space = self.incoming.decoder.space(frames)?;
            if space.is_empty() {
                return Ok(Some(self.incoming.frame_count()?));
            }
            match read(&mut self.io, space).await? {
                0 => {
                    self.incoming.end()?;
                    return Ok(None);
                }
                count => self.incoming.decoder.advance(count)?,
            }
        }
    }
}

/// The writer of a comm.
///
/// The buffer holds the prelude and after it the frames that fit, so that a
/// small message takes one write. Longer frames are written without copying.
pub struct MessageWriter<W, S> {
    io: W,
    outgoing: Outgoing<S>,
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
    /// * [`CommError::Encode`] if there are no frames, or the buffer is too
    ///   small for the prelude; nothing was sent, and the comm is still usable;
    /// * [`CommError::Closed`] if an earlier write failed or was dropped, or
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
        self.outgoing.check()?;
        let prelude_len = self.outgoing.encode(frames)?;
        let outcome = self.send(prelude_len, frames).await;
        self.outgoing.state = match outcome {
            Ok(()) => WriteState::Ready,
            Err(_) => WriteState::Failed,
        };
        outcome
    }

    /// Flushes the stream.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: call it again.
    ///
    /// # Errors
    ///
    /// As [`write_message`](Self::write_message), except [`CommError::Encode`].
    pub async fn flush(&mut self) -> Result<(), CommError<W::Error>> {
        self.outgoing.check()?;
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
        if self.outgoing.begin_close()? {
            self.flush_stream().await?;
            self.outgoing.state = WriteState::Closed;
        }
        Ok(())
    }

    /// Sends the first `filled` bytes of the buffer, and the frames.
    async fn send(
        &mut self,
        mut filled: usize,
        frames: &[&[u8]],
    ) -> Result<(), CommError<W::Error>> {
        let mut rest = frames;
        loop {
            let Outgoing { buffer, state, .. } = &mut self.outgoing;
            let (gathered, large, rest_after) = gather(buffer.as_mut(), filled, rest);
            write(&mut self.io, state, gathered).await?;
            write(&mut self.io, state, large).await?;
            if rest_after.is_empty() {
                return Ok(());
            }
            (filled, rest) = (0, rest_after);
        }
    }

    async fn flush_stream(&mut self) -> Result<(), CommError<W::Error>> {
        loop {
            match self.io.flush().await {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.outgoing.state = WriteState::Failed;
                    return Err(CommError::Io(error));
                }
            }
        }
    }
}

/// Does the handshake over a new reader and writer.
///
/// [`Limits::HANDSHAKE`] apply to the peer's handshake, the limits of the
/// reader to later messages. `scratch` holds the peer's handshake;
/// [`HANDSHAKE_LEN`] bytes are enough for Dask's. The
/// [initiating](HandshakeRole::Initiate) side writes its handshake before it
/// reads the peer's, so the stream must buffer about 90 bytes, as sockets do.
///
/// # Cancel safety
///
/// Not cancel safe: if the handshake is dropped, both fail.
///
/// # Errors
///
/// All errors are final for both:
///
/// * [`CommError::Closed`] if the peer closes the comm, or one of the two is already
///   closed;
/// * [`CommError::Handshake`], [`CommError::Frame`] or [`CommError::Prefix`] if
///   the peer sends no valid handshake, or one with another prefix;
/// * [`CommError::Frame`] with
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
    let options = begin_handshake(&mut reader.incoming, &mut writer.outgoing, ours, role)?;
    let mut outgoing = [0; HANDSHAKE_LEN];
    let mut comm = Comm::<16>::new(options, scratch, &mut outgoing)?;
    let agreement = loop {
        if !comm.unsent().is_empty() {
            let mut state = WriteState::Failed;
            let sent = write(&mut writer.io, &mut state, comm.unsent()).await;
            sent.map_err(CommError::writing)?;
            comm.sent(comm.unsent().len());
            writer.flush_stream().await.map_err(CommError::writing)?;
        }
        if let Some(agreement) = comm.agreement() {
            break agreement;
        }
        match read(&mut reader.io, comm.space()?)
            .await
            .map_err(CommError::reading)?
        {
            0 => return Err(closed_in_handshake(&comm)),
            count => comm.received(count)?,
        }
    };
    reader.incoming.established(agreement.prefix);
    writer.outgoing.established(agreement.prefix);
    Ok(agreement.with_names(ours))
}

/// Reads once; repeats interrupted reads.
async fn read<R: Read>(io: &mut R, space: &mut [u8]) -> Result<usize, CommError<R::Error>> {
    loop {
        match io.read(space).await {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome.map_err(CommError::Io),
        }
    }
}

/// Writes all of `bytes`.
async fn write<W: Write>(
    io: &mut W,
    state: &mut WriteState,
    mut bytes: &[u8],
) -> Result<(), CommError<W::Error>> {
    while !bytes.is_empty() {
        match io.write(bytes).await {
            Ok(count) => {
                bytes = rest_after(bytes, count)?;
                *state = WriteState::Within;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(CommError::Io(error)),
        }
    }
    Ok(())
}
