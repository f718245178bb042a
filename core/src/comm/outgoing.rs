//! The messages of a comm that are not sent yet.

use super::{CommError, Sender};
use crate::BufferTooSmall;
use crate::copy;
use crate::frame::{EncodeError, Prefix};
use crate::invariant::Ensured as _;

/// The outgoing side of a [`Comm`](super::Comm): messages that are not sent yet.
#[derive(Debug)]
pub struct Outgoing<'b> {
    buffer: &'b mut [u8],
    /// The unsent part of `buffer`.
    start: usize,
    end: usize,
    pub(super) sender: Sender,
}

impl<'b> Outgoing<'b> {
    pub(super) const fn new(prefix: Prefix, buffer: &'b mut [u8]) -> Self {
        Self {
            buffer,
            start: 0,
            end: 0,
            sender: Sender::new(prefix),
        }
    }

    /// Queues a message, copied to the buffer.
    ///
    /// # Errors
    ///
    /// As [`Comm::send`](super::Comm::send).
    pub fn send(&mut self, frames: &[&[u8]]) -> Result<(), CommError> {
        self.sender.check()?;
        let lengths = frames.iter().map(|frame| frame.len());
        let frames_len = lengths.clone().fold(0_usize, usize::saturating_add);
        let prelude_len = self.sender.prelude_len(frames.len())?;
        self.reserve(prelude_len.saturating_add(frames_len))?;
        let free = self.buffer.get_mut(self.end..).ensured();
        let lengths = lengths.map(|len| len as u64);
        let mut len = self.sender.encode_prelude(lengths, free)?;
        for frame in frames {
            let end = len.saturating_add(frame.len());
            copy(free.get_mut(len..end).ensured(), frame);
            len = end;
        }
        self.queued(len);
        Ok(())
    }

    /// The bytes to send, in order.
    pub fn unsent(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).ensured()
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
        (self.start, self.end) = (0, 0);
    }

    /// The sender and all free space, which is `buffer` if nothing is unsent.
    pub(super) fn parts(&mut self) -> (&mut Sender, &mut [u8]) {
        (&mut self.sender, self.buffer.get_mut(self.end..).ensured())
    }

    /// Records that so many bytes were written to the free space.
    pub(super) fn queued(&mut self, len: usize) {
        self.end = self.end.saturating_add(len).min(self.buffer.len());
    }

    /// Makes room for `needed` bytes after the unsent ones.
    fn reserve(&mut self, needed: usize) -> Result<(), EncodeError> {
        let unsent = self.end.saturating_sub(self.start);
        let available = self.buffer.len().saturating_sub(unsent);
        if available < needed {
            return Err(EncodeError::BufferTooSmall(BufferTooSmall {
                needed,
                available,
            }));
        }
        if self.buffer.len().saturating_sub(self.end) < needed {
            // Move the unsent bytes to the start.
            for to in 0..unsent {
                let from = self.buffer.get(self.start.saturating_add(to)).copied();
                if let Some(to) = self.buffer.get_mut(to) {
                    *to = from.ensured();
                }
            }
            (self.start, self.end) = (0, unsent);
        }
        Ok(())
    }
}
