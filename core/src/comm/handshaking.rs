//! The handshake of a comm.

use super::{CommError, HandshakeRole, Receiver, Sender};
use crate::frame::{EncodeError, Prefix, PreludeStorage, encode_prelude, prelude_len};
use crate::handshake::{Handshake, HandshakeError, Negotiated};
use crate::message::Layout;
use crate::msgpack::Writer;
use crate::{BufferTooSmall, Limits};

/// The handshake of a comm, which opens a [`Receiver`] and a [`Sender`].
///
/// 1. [`begin`](Self::begin) it.
/// 2. Send [`greeting`](Self::greeting).
/// 3. Receive the handshake of the peer as any message: the receiver detects its prefix.
/// 4. [`agree`](Self::agree), and send the reply.
/// 5. [`finish`](Self::finish) it.
///
/// A handshake that is abandoned leaves both halves unable to read or send messages.
#[derive(Clone, Copy, Debug)]
pub struct Handshaking<'h> {
    ours: Handshake<'h>,
    role: HandshakeRole,
}

/// The result of the handshake, with the properties of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agreement<'h> {
    /// The codec and the pickle protocol to write.
    pub negotiated: Negotiated<'h>,
    /// The version of Python in the peer's handshake, if any.
    pub peer_python: Option<[u64; 3]>,
    /// The prefix of messages in both directions.
    pub prefix: Prefix,
    /// The layout of the peer's messages.
    pub layout: Layout,
}

impl<'h> Handshaking<'h> {
    /// Creates the handshake of one side.
    pub const fn new(ours: Handshake<'h>, role: HandshakeRole) -> Self {
        Self { ours, role }
    }

    /// Begins the handshake on both halves of a connection that has just been established.
    ///
    /// `limits` apply to the handshake of the peer: [`Limits::HANDSHAKE`], or less.
    ///
    /// # Errors
    ///
    /// [`CommError::Closed`] if one of the halves is closed or has failed.
    pub fn begin<P: PreludeStorage>(
        &self,
        receiver: &mut Receiver<P>,
        sender: &mut Sender,
        limits: Limits,
    ) -> Result<(), CommError> {
        let begun = receiver.begin_handshake(self.role, limits);
        sender.begin_handshake().and(begun)
    }

    /// Writes the message to send first to the start of `out`, and returns its length in
    /// bytes: our handshake, or nothing if this side waits for that of the peer.
    ///
    /// # Errors
    ///
    /// [`CommError::Encode`] if `out` is too small, also for the longest reply.
    pub fn greeting(&self, prefix: Prefix, out: &mut [u8]) -> Result<usize, CommError> {
        match self.role {
            HandshakeRole::SendFirst(layout) => Ok(self.encode(prefix, layout, out)?),
            HandshakeRole::WaitForPeer => {
                self.encode(Prefix::U64, Layout::Classic, out)?;
                Ok(0)
            }
        }
    }

    /// Reads the handshake of the peer from its frames. Writes our reply, if the peer was
    /// first, to the start of `out`, and returns its length in bytes.
    ///
    /// # Errors
    ///
    /// * [`CommError::Handshake`] if the message is not a handshake;
    /// * [`CommError::Encode`] if `out` is too small.
    pub fn agree<T: AsRef<[u8]>>(
        &self,
        prefix: Prefix,
        frames: &[T],
        out: &mut [u8],
    ) -> Result<(Agreement<'h>, usize), CommError> {
        let (theirs, layout) = Handshake::from_frames(frames, &Limits::HANDSHAKE)?;
        let reply_len = match self.role {
            HandshakeRole::SendFirst(_) => 0,
            HandshakeRole::WaitForPeer => self.encode(prefix, layout, out)?,
        };
        let agreement = Agreement {
            negotiated: self.ours.negotiate(&theirs),
            peer_python: theirs.python,
            prefix,
            layout,
        };
        Ok((agreement, reply_len))
    }

    /// As [`agree`](Self::agree), with the frames that `receiver` has stored back to back
    /// in `bytes`, as in an [`Arena`](crate::frame::Arena).
    ///
    /// # Errors
    ///
    /// As [`agree`](Self::agree).
    pub fn agree_stored<P: PreludeStorage>(
        &self,
        receiver: &Receiver<P>,
        bytes: &[u8],
        out: &mut [u8],
    ) -> Result<(Agreement<'h>, usize), CommError> {
        let mut slots = [&[][..]; 2];
        let prelude = receiver.prelude();
        let count = prelude.map_or(0, |prelude| prelude.frame_count());
        let frames = prelude.and_then(|prelude| prelude.split(bytes, &mut slots).ok());
        let frames = frames.ok_or(HandshakeError::FrameCount { count })?;
        self.agree(receiver.prefix(), frames, out)
    }

    /// Opens both halves for messages, to which `limits` apply.
    pub fn finish<P: PreludeStorage>(
        &self,
        receiver: &mut Receiver<P>,
        sender: &mut Sender,
        limits: Limits,
    ) {
        receiver.open(limits);
        sender.open(receiver.prefix());
    }

    /// Writes our handshake: in the classic layout an empty header precedes the document.
    fn encode(&self, prefix: Prefix, layout: Layout, out: &mut [u8]) -> Result<usize, EncodeError> {
        let frame_count = match layout {
            Layout::Classic => 2,
            Layout::Modern => 1,
        };
        let prelude_len = prelude_len(prefix, frame_count).ok_or(EncodeError::TooLong)?;
        let available = out.len();
        let (prelude, document) = out.split_at_mut_checked(prelude_len).unwrap_or_default();
        let space = document.len();
        let mut writer = Writer::new(document);
        self.ours.encode(&mut writer);
        let len = writer.len();
        let needed = prelude_len.saturating_add(len);
        if len > space {
            let short = BufferTooSmall { needed, available };
            return Err(EncodeError::BufferTooSmall(short));
        }
        let lengths = [0, len as u64];
        let lengths = match layout {
            Layout::Classic => &lengths[..],
            Layout::Modern => &lengths[1..],
        };
        encode_prelude(prefix, lengths.iter().copied(), prelude)?;
        Ok(needed)
    }
}
