//! The messages to send.

use daskwire::comm;
use daskwire::frame::Prefix;
use daskwire::msgpack::Writer;

/// The messages to send. Nothing is sent where there is no room.
pub(crate) struct Outgoing<'b>(pub(super) comm::Outgoing<'b>);

impl<'b> Outgoing<'b> {
    pub(super) const fn new(buffer: &'b mut [u8]) -> Self {
        Self(comm::Outgoing::new(Prefix::U64, buffer))
    }

    /// Whether everything is sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Free space, in bytes.
    pub(crate) fn room(&self) -> usize {
        self.0.room()
    }

    /// Sends a message without payloads. Returns false if there is no room for it.
    pub(crate) fn send(&mut self, write: impl FnOnce(&mut Writer<'_>)) -> bool {
        let mut writer = Writer::new(self.0.body_space());
        write(&mut writer);
        let len = writer.finish().map(<[u8]>::len);
        len.is_ok_and(|len| self.0.send_written(len).is_ok())
    }

    /// Sends a message. Returns false if there is no room for it.
    pub(crate) fn send_frames(&mut self, frames: &[&[u8]]) -> bool {
        self.0.send(frames).is_ok()
    }

    /// Sends the prelude of a message whose frames follow by [`append`](Self::append).
    /// Returns false if there is no room for it.
    pub(crate) fn send_prelude<I>(&mut self, lengths: I) -> bool
    where
        I: ExactSizeIterator<Item = u64> + Clone,
    {
        self.0.begin(lengths).is_ok()
    }

    /// Sends as many bytes of a frame as there is room for, and returns their number.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> usize {
        self.0.append(bytes)
    }
}
