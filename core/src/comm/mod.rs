//! A comm without I/O, which converts between bytes and messages in both directions.
//!
//! A [`Comm`] is one end of a connection, with its handshake. It reads no
//! stream, waits for nothing and keeps everything in buffers of the caller, so
//! that the interrupt of a UART, a task of smol or embassy and a blocking
//! thread drive the same type:
//!
//! 1. Write received bytes to [`space`](Comm::space) and report them with
//!    [`received`](Comm::received), or [`push`](Comm::push) them.
//! 2. Send [`unsent`](Comm::unsent) and report it with [`sent`](Comm::sent).
//! 3. Take each message with [`take_message`](Comm::take_message), and
//!    [`send`](Comm::send) others once the comm [is open](Comm::is_open).
//!
//! [`drive`](Comm::drive) and [`drive_async`](Comm::drive_async) do the first two for a
//! stream.
//!
//! ```
//! use daskwire::comm::{Comm, CommOptions, HANDSHAKE_LEN};
//! use daskwire::message::{Layout, Message, ReadOptions, Scratch};
//!
//! // Two ends, each with memory for messages of 256 bytes and 4 frames.
//! let (mut ours, mut theirs) = ([[0; 256]; 2], [[0; 256]; 2]);
//! let [incoming, outgoing] = &mut ours;
//! let mut client = Comm::<4>::new(CommOptions::CONNECTOR, incoming, outgoing)?;
//! let [incoming, outgoing] = &mut theirs;
//! let mut server = Comm::<4>::new(CommOptions::LISTENER, incoming, outgoing)?;
//!
//! // The wire: all that one end has to send arrives at the other.
//! fn exchange(from: &mut Comm<'_, 4>, to: &mut Comm<'_, 4>) -> Result<(), daskwire::Error> {
//!     let mut bytes = from.unsent();
//!     let len = bytes.len();
//!     to.push(&mut bytes)?;
//!     let count = len - bytes.len();
//!     from.sent(count);
//!     Ok(())
//! }
//! exchange(&mut server, &mut client)?;
//! exchange(&mut client, &mut server)?;
//! assert!(client.is_open() && server.is_open());
//!
//! client.send(&[b"\x81\xa2op\xa4ping"])?;
//! exchange(&mut client, &mut server)?;
//! let mut scratch = Scratch::<4>::new();
//! if let Some((frames, reply)) = server.take_message() {
//!     let message = Message::open(&frames, Layout::Modern, &ReadOptions::default(), &mut scratch)?;
//!     assert!(message.op().is_some_and(|op| op == "ping"));
//!     reply.send(&[b"\xa4pong"])?;
//! }
//! exchange(&mut server, &mut client)?;
//! assert!(client.take_message().is_some_and(|(frames, _)| *frames == [b"\xa4pong"]));
//! # Ok::<(), daskwire::Error>(())
//! ```
//!
//! # For streams with a reader and a writer
//!
//! A `Comm` keeps messages in two fixed buffers, and consists of parts that every comm of
//! this workspace uses, with other buffers:
//!
//! * [`Receiver`]: what to read next, where the bytes are stored, and how the stream may
//!   end;
//! * [`Sender`]: what may be sent, and the prelude of each message;
//! * [`Handshaking`]: opens both. They are then apart, so that one task can read while
//!   another one writes.

mod end;
mod error;
mod handshaking;
mod outgoing;
mod receiver;
mod sender;

use crate::Limits;
use crate::frame::{Prefix, prelude_len};
use crate::handshake::Handshake;
use crate::message::Layout;

pub use end::{Comm, Frames};
pub use error::{Closed, CommError, DriveError};
pub use handshaking::{Agreement, Handshaking};
pub use outgoing::Outgoing;
pub use receiver::Receiver;
pub use sender::Sender;

/// The length of a buffer that holds any handshake of Dask, in bytes: the minimum for
/// each of the two buffers of a [`Comm`].
pub const HANDSHAKE_LEN: usize = 128;

/// The length of a buffer for a message to send, in bytes: its prelude and
/// `frames_len` bytes of frames.
///
/// ```
/// use daskwire::comm::outgoing_len;
/// const PING: usize = outgoing_len(1, 16);
/// assert_eq!(PING, 40);
/// ```
pub const fn outgoing_len(frame_count: usize, frames_len: usize) -> usize {
    match prelude_len(Prefix::U64, frame_count) {
        Some(len) => len.saturating_add(frames_len),
        None => usize::MAX,
    }
}

/// The side that chooses the prefix and the layout of messages, which are not negotiated
/// and differ between releases (PROTOCOL FRAME-13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum HandshakeRole {
    /// Send the handshake immediately, in this layout and with the prefix of the comm,
    /// and refuse a peer with another prefix. Required for listeners: connectors of Dask
    /// up to 2023.7.1 read first (PROTOCOL HANDSHAKE-1). Releases since 2021.3.1
    /// understand [`Layout::Modern`] with [`Prefix::U64`].
    SendFirst(Layout),
    /// Wait for the peer's handshake and reply with its prefix and layout. Only
    /// for connectors: the listeners of every release since 2.23.0 send first.
    WaitForPeer,
}

/// Options of a [`Comm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommOptions<'h> {
    /// The side that chooses prefix and layout.
    pub role: HandshakeRole,
    /// The prefix, if this side chooses it. Default: [`Prefix::U64`].
    pub prefix: Prefix,
    /// Our handshake. Default: without compression.
    pub handshake: Handshake<'h>,
    /// The limits for messages after the handshake. A message within
    /// them that is larger than the buffers fails with an error of the caller.
    /// Default: [`Limits::MICROCONTROLLER`].
    pub limits: Limits,
}

impl<'h> CommOptions<'h> {
    with_fields! {
        with_role(role: HandshakeRole);
        with_prefix(prefix: Prefix);
        with_handshake(handshake: Handshake<'h>);
        with_limits(limits: Limits);
    }
}

impl CommOptions<'_> {
    /// Options for the side that connects: it adapts to a peer of any release.
    pub const CONNECTOR: Self = Self {
        role: HandshakeRole::WaitForPeer,
        prefix: Prefix::U64,
        handshake: Handshake::new(None),
        limits: Limits::MICROCONTROLLER,
    };

    /// Options for the side that listens, for peers from 2021.3.1 on.
    pub const LISTENER: Self = Self {
        role: HandshakeRole::SendFirst(Layout::Modern),
        ..Self::CONNECTOR
    };
}
