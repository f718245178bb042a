//! The traits of comms and their guarantees.
//!
//! A *comm* is a bidirectional connection for messages. It has a reader and a writer, so
//! that one task can read while another writes. Code that uses [`CommReader`]
//! and [`CommWriter`] runs over TCP, TLS, QUIC, a pipe or a UART. This module
//! does no I/O: transports implement the traits, each as a thin loop over a
//! [`Receiver`](crate::comm::Receiver) and a [`Sender`](crate::comm::Sender). The crate
//! `daskwire-embedded` has two such loops, over the streams of embedded-io, and
//! `daskwire-comm` one over those of tokio.
//!
//! # What every comm guarantees
//!
//! * **Whole messages, in order, once.** A message is delivered completely or
//!   not at all.
//! * **Reading is cancel-safe.** The comm keeps the received part of a message,
//!   not the future. Drop the future, call again with the same buffers, and
//!   nothing is lost.
//! * **A cancelled write poisons the comm.** If a write is dropped after part
//!   of its message was sent, the stream is no longer valid: every later write
//!   of this side fails, and the peer sees the comm end within a message. A
//!   write that is dropped earlier has no effect.
//! * **One outcome for a lost connection.** Whether it was closed, reset,
//!   killed or timed out, [`is_closed`](TransportError::is_closed) of the error
//!   is true. An end between two messages is not an error but `None`. A comm
//!   never reconnects by itself.
//! * **Errors are final.** A side that has failed fails again immediately; it never
//!   continues within a message.
//! * **Closing loses nothing.** [`close`](CommWriter::close) returns when
//!   everything written before has been handed over, so that a peer that reads to
//!   the end receives it; QUIC also waits for the acknowledgement. Messages
//!   from the peer can still be read. A socket that is dropped with unread data
//!   is reset, which discards data that has not arrived: a transport over
//!   sockets continues to read for a while after a comm was closed and dropped,
//!   as daskwire-tcp does while its runtime runs, or requires its users to read
//!   to the end first, as the reader and writer of daskwire-embedded do.
//!   Dropping a comm without closing it may lose the last messages written.
//! * **Memory is bounded** by the [`Limits`](crate::Limits) of the comm, and what it
//!   uses grows with the bytes that arrive, not with declared lengths. daskwire-comm
//!   reserves more for a large frame: after its first MiB, up to 1,024 times the bytes
//!   that have arrived. Set lower limits where reserved memory counts as used.
//! * **Connection setup is bounded in time:** connecting and the handshake have
//!   deadlines. After that a comm may be idle indefinitely, as in Dask; the
//!   transport detects a dead peer by its own means (keep-alive). embedded-io has no
//!   deadlines, so the streams given to daskwire-embedded have to detect a silent peer,
//!   also during the handshake.
//!
//! # A relay, for any pair of transports
//!
//! ```
//! use daskwire::frame::Arena;
//! use daskwire::transport::{CommReader, CommWriter};
//!
//! /// Forwards messages of up to 64 frames and 4 KiB until one side ends.
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

/// The common interface of transport errors.
pub trait TransportError: core::error::Error {
    /// Whether the connection is closed, for example because the peer stopped,
    /// was killed or unplugged, or because this side closed it. `false` for a
    /// violation of the protocol or a limit.
    fn is_closed(&self) -> bool;
}

/// The reader of a comm.
///
/// See the [module](self) for its guarantees.
pub trait CommReader {
    /// The error of reading.
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
    /// The connection ended within the message, the peer violated the framing
    /// or the limits, or `frames` is too small. Errors are final.
    fn read_message<B: FrameBuffers + Send>(
        &mut self,
        frames: &mut B,
    ) -> impl Future<Output = Result<Option<usize>, Self::Error>> + Send;

    /// The lengths of the frames that the last call read; `None` before the
    /// first one and while a message is arriving.
    fn prelude(&self) -> Option<Prelude<'_>>;
}

/// The writer of a comm.
///
/// See the [module](self) for its guarantees.
pub trait CommWriter {
    /// The error of writing.
    type Error: TransportError + Send + Sync + 'static;

    /// Writes a message. Returns when the transport has accepted all of it;
    /// waits while the peer does not read.
    ///
    /// Frames are sent from the caller's memory without copying.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: a future that is dropped within a message poisons this
    /// side.
    ///
    /// # Errors
    ///
    /// The comm is closed or poisoned, or the frames do not form a message
    /// (there are none, or the sum of their lengths overflows 64 bits).
    fn write_message(
        &mut self,
        frames: &[&[u8]],
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Closes the comm; see the [guarantees](self#what-every-comm-guarantees).
    /// Closing again is not an error.
    ///
    /// # Errors
    ///
    /// Messages written before may not have arrived.
    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send;
}
