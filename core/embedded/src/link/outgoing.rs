//! The messages to send.

use daskwire::frame::{Prefix, encode_prelude};
use daskwire::invariant::Ensured as _;
use daskwire::msgpack::Writer;

use super::shift;

/// The messages to send.
pub(crate) struct Outgoing<'b> {
    pub(super) bytes: &'b mut [u8],
    /// The unsent part of `bytes`.
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Outgoing<'_> {
    /// Whether everything is sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Free space, in bytes.
    pub(crate) fn room(&self) -> usize {
        let unsent = self.end.wrapping_sub(self.start);
        self.bytes.len().saturating_sub(unsent)
    }

    /// Sends a message without payloads. Returns false, and sends nothing, if
    /// there is no room for it.
    pub(crate) fn send(&mut self, write: impl FnOnce(&mut Writer<'_>)) -> bool {
        const PRELUDE_LEN: usize = 24;
        let Some((prelude, body)) = self.free().split_at_mut_checked(PRELUDE_LEN) else {
            return false;
        };
        let mut writer = Writer::new(body);
        write(&mut writer);
        let Ok(body) = writer.finish() else {
            return false;
        };
        let len = body.len();
        if encode_prelude(Prefix::U64, [len as u64], prelude).is_err() {
            return false;
        }
        self.wrote(PRELUDE_LEN.saturating_add(len));
        true
    }

    /// Sends the prelude of a message whose frames follow by
    /// [`append`](Self::append). Returns false if there is no room for it.
    pub(crate) fn send_prelude<I>(&mut self, lengths: I) -> bool
    where
        I: ExactSizeIterator<Item = u64> + Clone,
    {
        let Ok(len) = encode_prelude(Prefix::U64, lengths, self.free()) else {
            return false;
        };
        self.wrote(len);
        true
    }

    /// Sends as many bytes of a frame as there is room for, and returns their
    /// number.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> usize {
        let free = self.free();
        let len = free.len().min(bytes.len());
        crate::copy(free, bytes);
        self.wrote(len);
        len
    }

    /// The free space, in one piece.
    fn free(&mut self) -> &mut [u8] {
        if self.start != 0 {
            shift(self.bytes, self.start, self.end, 0);
            self.end = self.end.wrapping_sub(self.start);
            self.start = 0;
        }
        self.bytes.get_mut(self.end..).ensured()
    }

    fn wrote(&mut self, len: usize) {
        self.end = self.end.saturating_add(len).min(self.bytes.len());
    }
}
