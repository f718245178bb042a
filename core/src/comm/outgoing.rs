//! The messages of a comm that are not sent yet.

use super::{CommError, Handshaking, Sender};
use crate::BufferTooSmall;
use crate::copy;
use crate::frame::{EncodeError, Prefix, prelude_len};
use crate::invariant::OrDefaultIfBug as _;

/// The outgoing side of a [`Comm`](super::Comm): messages that are not sent yet, in a
/// buffer of the caller.
#[derive(Debug)]
pub struct Outgoing<'b> {
    buffer: &'b mut [u8],
    /// The unsent part of `buffer`.
    start: usize,
    end: usize,
    /// The number of bytes of a message that has [begun](Self::begin) which were not
    /// appended.
    owed: u64,
    pub(super) sender: Sender,
}

impl<'b> Outgoing<'b> {
    /// Creates the outgoing side of a comm that is between two messages, with nothing
    /// queued.
    pub const fn new(prefix: Prefix, buffer: &'b mut [u8]) -> Self {
        Self {
            buffer,
            start: 0,
            end: 0,
            owed: 0,
            sender: Sender::new(prefix),
        }
    }

    /// Queues our handshake, if this side sends it first.
    ///
    /// # Errors
    ///
    /// As [`Handshaking::greeting`].
    pub fn greet(&mut self, handshaking: &Handshaking<'_>) -> Result<(), CommError> {
        let prefix = self.sender.prefix();
        let (_, out) = self.parts();
        let len = handshaking.greeting(prefix, out)?;
        self.queued(len);
        Ok(())
    }

    /// Queues a message, copied to the buffer.
    ///
    /// # Errors
    ///
    /// As [`Comm::send`](super::Comm::send).
    pub fn send(&mut self, frames: &[&[u8]]) -> Result<(), CommError> {
        let lengths = frames.iter().map(|frame| frame.len());
        let prelude_len = self.sender.prelude_len(frames.len())?;
        let needed = lengths.clone().fold(prelude_len, usize::saturating_add);
        self.sender.check()?;
        if self.room() < needed {
            return Err(self.too_small(needed));
        }
        self.begin(lengths.map(|len| len as u64))?;
        for frame in frames {
            self.append(frame);
        }
        Ok(())
    }

    /// Returns the space for the frame of a message of one frame: in the modern layout, a
    /// body without payloads. It is empty if no message can be sent. Write the frame to its
    /// start, and queue it with [`send_written`](Self::send_written).
    #[inline(never)]
    pub fn body_space(&mut self) -> &mut [u8] {
        self.compact();
        let start = self.end.saturating_add(self.body_prelude_len());
        let is_open = self.sender.check().is_ok();
        let space = self.buffer.get_mut(start..).filter(|_| is_open);
        space.unwrap_or_default()
    }

    /// Queues a message of one frame, whose `len` bytes were written to the start of
    /// [`body_space`](Self::body_space).
    ///
    /// # Errors
    ///
    /// As [`Comm::send`](super::Comm::send).
    #[inline(never)]
    pub fn send_written(&mut self, len: usize) -> Result<(), CommError> {
        let needed = self.body_prelude_len().saturating_add(len);
        self.sender.check()?;
        if self.room() < needed {
            return Err(self.too_small(needed));
        }
        let free = self.buffer.get_mut(self.end..).or_default_if_bug();
        self.sender.encode_prelude([len as u64], free)?;
        self.queued(needed);
        Ok(())
    }

    fn body_prelude_len(&self) -> usize {
        prelude_len(self.sender.prefix(), 1).or_default_if_bug()
    }

    /// Queues the prelude of a message. Its frames follow by [`append`](Self::append), and
    /// other messages only after them.
    ///
    /// # Errors
    ///
    /// As [`Comm::send`](super::Comm::send).
    pub fn begin<I>(&mut self, lengths: I) -> Result<(), CommError>
    where
        I: ExactSizeIterator<Item = u64> + Clone,
    {
        self.sender.check()?;
        self.compact();
        let free = self.buffer.get_mut(self.end..).or_default_if_bug();
        let frame_count = lengths.len();
        let len = self.sender.encode_prelude(lengths, free)?;
        self.queued(len);
        self.owe_last(frame_count);
        Ok(())
    }

    /// Owes the frames of the prelude that was queued last.
    #[inline(never)]
    fn owe_last(&mut self, frame_count: usize) {
        let queued = self.buffer.get(..self.end).or_default_if_bug();
        let (_, words) = queued.as_rchunks::<8>();
        let lengths = words.iter().rev().take(frame_count);
        let lengths = lengths.map(|word| u64::from_le_bytes(*word));
        self.owe(lengths.fold(0, u64::saturating_add));
    }

    /// Queues as many of these bytes, which continue a message, as there is room for, and
    /// returns their number. None beyond the end of the message are queued.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        if self.owed == 0 {
            return 0;
        }
        self.compact();
        let free = self.buffer.get_mut(self.end..).or_default_if_bug();
        let owed = usize::try_from(self.owed).unwrap_or(usize::MAX);
        let len = free.len().min(bytes.len()).min(owed);
        copy(free, bytes.get(..len).or_default_if_bug());
        self.queued(len);
        self.owe(self.owed.saturating_sub(len as u64));
        len
    }

    fn owe(&mut self, owed: u64) {
        self.owed = owed;
        match owed {
            0 => self.sender.wrote_message(),
            _ => self.sender.wrote_part(),
        }
    }

    /// The number of bytes that can be queued.
    pub fn room(&self) -> usize {
        let unsent = self.end.saturating_sub(self.start);
        self.buffer.len().saturating_sub(unsent)
    }

    /// Whether everything was sent.
    pub const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The bytes to send, in order.
    pub fn unsent(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).or_default_if_bug()
    }

    /// Records that the first `count` of the [`unsent`](Self::unsent) bytes
    /// were sent.
    pub fn sent(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Discards what is not sent, and refuses further messages.
    pub(super) const fn fail(&mut self) {
        self.sender.fail();
        (self.start, self.end, self.owed) = (0, 0, 0);
    }

    /// Starts again with a new connection: discards what is not sent.
    pub fn reset(&mut self) {
        (self.start, self.end, self.owed) = (0, 0, 0);
        self.sender = Sender::new(self.sender.prefix());
    }

    /// The sender, and the free space after the unsent bytes.
    pub(super) fn parts(&mut self) -> (&mut Sender, &mut [u8]) {
        (
            &mut self.sender,
            self.buffer.get_mut(self.end..).or_default_if_bug(),
        )
    }

    /// Records that so many bytes were written to the free space.
    pub(super) fn queued(&mut self, len: usize) {
        self.end = self.end.saturating_add(len).min(self.buffer.len());
    }

    fn too_small(&self, needed: usize) -> CommError {
        let available = self.room();
        EncodeError::BufferTooSmall(BufferTooSmall { needed, available }).into()
    }

    /// Moves the unsent bytes to the start of the buffer.
    #[inline(never)]
    fn compact(&mut self) {
        let unsent = self.end.saturating_sub(self.start);
        if self.start != 0 {
            for to in 0..unsent {
                let from = self.buffer.get(self.start.saturating_add(to)).copied();
                if let Some(to) = self.buffer.get_mut(to) {
                    *to = from.or_default_if_bug();
                }
            }
            (self.start, self.end) = (0, unsent);
        }
    }
}
