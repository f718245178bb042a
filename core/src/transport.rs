//! The seam between messages and what carries them: what a comm promises.
//!
//! A *comm* is a connection with messages on it, in both directions. It comes
//! as two halves, so that one task can read while another writes. Whatever is
//! written against [`CommReader`] and [`CommWriter`] runs over TCP, TLS, QUIC,
//! a pipe or a UART alike. There is no I/O here: transports implement these
//! traits, each as a thin loop over [`FrameDecoder`](crate::frame::FrameDecoder)
//! and [`encode_prelude`](crate::frame::encode_prelude). Two such loops
//! are in the crate `daskwire-embedded`, over the streams of embedded-io.
//!
//! # What every comm promises
//!
//! * **Whole messages, in order, once.** A message is delivered when all of it
//!   has arrived, or not at all.
//! * **Reading is cancel-safe.** What has arrived of a message is kept by the
//!   comm, not by the future. Drop the future, call again with the same
//!   buffers, and nothing is lost.
//! * **A cancelled write poisons.** If a write is dropped after part of its
//!   message has left, nothing can follow that the peer would understand: every
//!   later write of this half fails, and the peer sees the comm end within a
//!   message. A write that is dropped before that has not happened.
//! * **One outcome for an end.** However the connection was lost — closed,
//!   reset, killed, timed out — the error says so by
//!   [`is_closed`](TransportError::is_closed). An end between two messages is
//!   not an error but `None`. Nobody reconnects behind the caller's back.
//! * **After an error there is nothing.** The half that failed fails again at
//!   once; it never goes on in the middle of something.
//! * **Closing loses nothing.** [`close`](CommWriter::close) returns when what
//!   was written before has been handed over for good; what the peer has sent
//!   can still be read. A socket that is dropped with something unread in it is
//!   reset, and takes along what has not arrived yet: a transport over sockets
//!   goes on reading for a while after a comm was closed and dropped, as
//!   daskwire-tcp does as long as its runtime runs, or asks its users to read to the end first, as the
//!   halves in daskwire-embedded do, which know nothing of each other. Dropping a comm
//!   without closing it may lose what was written last.
//! * **Memory is bounded** by the [`Limits`](crate::Limits) that the comm was
//!   made with, and by what arrives, not by what is announced.
//! * **Time is bounded** before the comm is there: connecting and the handshake
//!   have their deadlines. Afterwards a comm may be silent for as long as it
//!   likes, as Dask's are; that the peer is still there is checked by whatever
//!   the transport has for that (keep-alive).
//!
//! # A relay, for any pair of transports
//!
//! ```
//! use daskwire::frame::Arena;
//! use daskwire::transport::{CommReader, CommWriter};
//!
//! /// Hands on messages of up to 64 frames and 4 KiB until one side ends.
//! async fn relay<R: CommReader, W: CommWriter>(
//!     reader: &mut R,
//!     writer: &mut W,
//! ) -> Result<(), (Option<R::Error>, Option<W::Error>)> {
//!     let mut storage = [0; 4096];
//!     let mut arena = Arena::new(&mut storage);
//!     while let Some(_count) =
//!         reader.read_message(&mut arena).await.map_err(|error| (Some(error), None))?
//!     {
//!         let mut slots = [&[][..]; 64];
//!         let frames = reader.prelude().and_then(|prelude| {
//!             prelude.split(arena.filled(), &mut slots).ok()
//!         });
//!         let frames = frames.unwrap_or_default();
//!         writer.write_message(frames).await.map_err(|error| (None, Some(error)))?;
//!     }
//!     writer.close().await.map_err(|error| (None, Some(error)))
//! }
//! ```

use crate::frame::{FrameBuffers, Prelude};

/// What the errors of transports have in common.
pub trait TransportError: core::error::Error {
    /// Whether the connection is simply gone, as when a peer stops, is killed
    /// or unplugged, or when this side has closed it. `false` means that
    /// somebody broke a rule or a limit.
    fn is_closed(&self) -> bool;
}

/// The half of a comm that messages arrive on.
///
/// See the [module](self) for what it promises.
pub trait CommReader {
    /// Why there are no more messages.
    type Error: TransportError + Send + Sync + 'static;

    /// Reads the next message into `frames` and returns how many frames it has;
    /// `None` when the peer has closed the comm between two messages.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, if the next call gets the same `frames`.
    ///
    /// # Errors
    ///
    /// The connection ended within the message, the peer broke the framing or
    /// the limits, or `frames` has no room. There are no messages after that.
    fn read_message<B: FrameBuffers + Send>(
        &mut self,
        frames: &mut B,
    ) -> impl Future<Output = Result<Option<usize>, Self::Error>> + Send;

    /// The lengths of the frames that the last call read; `None` before the
    /// first one and while a message is arriving.
    fn prelude(&self) -> Option<Prelude<'_>>;
}

/// The half of a comm that messages leave by.
///
/// See the [module](self) for what it promises.
pub trait CommWriter {
    /// Why nothing more can be written.
    type Error: TransportError + Send + Sync + 'static;

    /// Writes a message. Returns when all of it has been handed to the
    /// transport; that waits while the peer does not read.
    ///
    /// Frames are taken from where they lie.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: a future that is dropped in the middle of a message
    /// poisons this half.
    ///
    /// # Errors
    ///
    /// The comm is closed or poisoned, or the frames are no message (there are
    /// none, or their lengths add up to more than 64 bits hold).
    fn write_message(
        &mut self,
        frames: &[&[u8]],
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Closes the comm; see [what is promised](self#what-every-comm-promises).
    /// Closing again is no error.
    ///
    /// # Errors
    ///
    /// What was written before may not have arrived.
    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

impl<R: CommReader + ?Sized> CommReader for &mut R {
    type Error = R::Error;

    fn read_message<B: FrameBuffers + Send>(
        &mut self,
        frames: &mut B,
    ) -> impl Future<Output = Result<Option<usize>, Self::Error>> + Send {
        (**self).read_message(frames)
    }

    fn prelude(&self) -> Option<Prelude<'_>> {
        (**self).prelude()
    }
}

impl<W: CommWriter + ?Sized> CommWriter for &mut W {
    type Error = W::Error;

    fn write_message(
        &mut self,
        frames: &[&[u8]],
    ) -> impl Future<Output = Result<(), Self::Error>> + Send {
        (**self).write_message(frames)
    }

    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        (**self).close()
    }
}
