//! Comms over the streams of embedded-io-async 0.7, as in embassy.
//!
//! What [`embedded_io_07`](super::embedded_io_07) has, with futures in the place
//! of blocking; the errors are the same.
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
//! Beside what is said for [blocking
//! streams](super::embedded_io_07#what-a-stream-should-do): a read or write that
//! is dropped before it has returned should not have happened. embedded-io-async
//! encourages that and does not require it. Where a driver does not say so, as
//! one that reads by DMA into the caller's buffer may not, run each future to
//! its end, and do not use a comm again of which one was dropped.
//!
//! # Not the traits of the seam
//!
//! [`CommReader`](daskwire::transport::CommReader) and [`CommWriter`](daskwire::transport::CommWriter)
//! promise futures that are [`Send`], and embedded-io-async leaves open whether
//! its futures are; for a stream that is a type parameter nobody can know. So
//! the methods here are inherent, with the names of the traits. For one stream
//! the compiler knows, and the traits are a few lines:
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
    Incoming, Outgoing, ReadState, WriteState, encode_handshake, gather, handshake_frames,
};
use super::embedded_io_07::{advanced, behind};
use daskwire::Limits;
use daskwire::frame::{Arena, FrameBuffers, Prefix, Prelude, PreludeStorage};
use daskwire::handshake::Handshake;
use daskwire::message::Layout;

pub use super::embedded_io_07::{Agreement, Closed, CommError, HandshakeRole};

/// The half of a comm that messages arrive on.
///
/// Frames go from the stream straight into their places.
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
    /// [`prelude`](Self::prelude) then tells their lengths.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, if the next call gets the same `frames` and the reads of the
    /// [stream](self#what-a-stream-should-do) are.
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
    pub async fn read_message<B: FrameBuffers + ?Sized>(
        &mut self,
        frames: &mut B,
    ) -> Result<Option<usize>, CommError<R::Error>> {
        if !self.incoming.start()? {
            return Ok(None);
        }
        let outcome = self.receive(frames).await;
        if outcome.is_err() {
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

    /// The first bytes of the peer.
    async fn first_bytes(&mut self) -> Result<[u8; 8], CommError<R::Error>> {
        let mut first = [0; 8];
        let mut filled = 0_usize;
        while let Some(space) = first.get_mut(filled..).filter(|space| !space.is_empty()) {
            let space_len = space.len();
            match read(&mut self.io, space).await? {
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
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe, but it fails safe. If it is dropped before the first
    /// byte has left, nothing has happened. If it is dropped after the last, the
    /// message is as good as written, and only not flushed. If it is dropped in
    /// between, every later write gives [`Closed::WriteCancelled`], and the peer
    /// sees the comm end within a message when the stream is closed.
    ///
    /// # Errors
    ///
    /// * [`CommError::Encode`] if there are no frames, or the buffer does not
    ///   hold the prelude; nothing was sent, and the comm is as good as before;
    /// * [`CommError::Closed`] if an earlier write failed or was dropped, or
    ///   the comm was closed on this side;
    /// * [`CommError::Io`], [`CommError::WriteCount`] if the stream fails. Part
    ///   of the message may have left, so no other can follow.
    pub async fn write_message(&mut self, frames: &[&[u8]]) -> Result<(), CommError<W::Error>> {
        self.feed_message(frames).await?;
        self.flush().await
    }

    /// Writes a message without flushing the stream: for several in a row, with
    /// a [`flush`](Self::flush) behind the last.
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

    /// Has the stream send what it holds back.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: call it again.
    ///
    /// # Errors
    ///
    /// As [`write_message`](Self::write_message), but for encoding.
    pub async fn flush(&mut self) -> Result<(), CommError<W::Error>> {
        self.outgoing.check()?;
        self.flush_stream().await
    }

    /// Closes this half: flushes the stream, and refuses to write after that.
    /// Closing again is no error.
    ///
    /// embedded-io has no way to tell the peer. Close or drop the stream
    /// ([`into_inner`](Self::into_inner)) for the peer to see the end.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: call it again. Writes fail from the first call on.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush). What was written before may not have arrived.
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
            let (gathered, large, behind) = gather(buffer.as_mut(), filled, rest);
            write(&mut self.io, state, gathered).await?;
            write(&mut self.io, state, large).await?;
            if behind.is_empty() {
                return Ok(());
            }
            (filled, rest) = (0, behind);
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

    /// Sends our handshake, encoded into `scratch`.
    async fn send_handshake(
        &mut self,
        handshake: &Handshake<'_>,
        layout: Layout,
        scratch: &mut [u8],
    ) -> Result<(), CommError<W::Error>> {
        let document = encode_handshake(handshake, scratch)?;
        let mut slots = [&[][..]; 2];
        let frames = handshake_frames(layout, &mut slots, document);
        let prelude_len = self.outgoing.encode(frames)?;
        let outcome = self.send(prelude_len, frames).await;
        // Until all of the handshake is done.
        self.outgoing.state = WriteState::Failed;
        outcome?;
        self.flush_stream().await
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
/// # Cancel safety
///
/// Not cancel safe: after a handshake that was dropped both halves have failed.
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
pub async fn handshake<'h, R, W, P, S>(
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
        writer.send_handshake(ours, layout, scratch).await?;
    }
    let first = reader.first_bytes().await?;
    let found = reader.incoming.detect(&first, role);
    let prefix = found.map_err(|peer| CommError::Prefix { peer })?;
    reader.incoming.start_handshake(&first)?;
    let mut arena = Arena::new(scratch);
    reader.receive(&mut arena).await?;
    let agreement = reader.incoming.agree(arena.filled(), ours)?;
    writer.outgoing.prefix = prefix;
    if role == HandshakeRole::Respond {
        writer
            .send_handshake(ours, agreement.layout, scratch)
            .await?;
    }
    reader.incoming.established();
    writer.outgoing.state = WriteState::Ready;
    Ok(agreement)
}

/// Reads once, however often that is interrupted.
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
                bytes = behind(bytes, count)?;
                *state = WriteState::Within;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(CommError::Io(error)),
        }
    }
    Ok(())
}
