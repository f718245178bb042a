//! Where the bytes of a message go.

/// Room for the frames of one message, supplied by the caller.
///
/// A [`FrameDecoder`](super::FrameDecoder) asks for frame after frame, in
/// order, and for frame `index` only after all frames before it are complete,
/// so that an implementation may look at a payload's header before it decides
/// where the payload goes. Nothing is asked for before the whole prelude has
/// passed the limits. Empty frames are never asked for; the
/// [prelude](super::Prelude) tells which they are.
pub trait FrameBuffers {
    /// Begins a message whose frames take `frames_len` bytes together: what the
    /// store holds is of an earlier message, and may go.
    ///
    /// Called before the first byte of a frame is stored, perhaps several times.
    /// Does nothing unless a store has use for it.
    fn begin(&mut self, frames_len: u64) {
        let _ = frames_len;
    }

    /// Room for the next bytes of frame `index`, which has `len` bytes in all,
    /// of which `filled` have arrived.
    ///
    /// May be less than what is missing: a store that grows with what arrives
    /// hands out one step at a time, so that a peer that announces a gigabyte
    /// and sends a kilobyte costs a kilobyte. Room beyond the end of the frame
    /// is left unused. The same call may come again if the caller reads
    /// nothing; it must give the same place.
    ///
    /// `None`, or no room at all, ends the message with
    /// [`FrameErrorKind::NoBuffer`](super::FrameErrorKind::NoBuffer).
    fn buffer(&mut self, index: usize, len: usize, filled: usize) -> Option<&mut [u8]>;
}

impl<B: FrameBuffers + ?Sized> FrameBuffers for &mut B {
    fn begin(&mut self, frames_len: u64) {
        (**self).begin(frames_len);
    }

    fn buffer(&mut self, index: usize, len: usize, filled: usize) -> Option<&mut [u8]> {
        (**self).buffer(index, len, filled)
    }
}

/// Room for the table of lengths, supplied by the caller: 8 bytes a frame.
///
/// Implemented for arrays and slices, which hold as many frames as they hold,
/// with feature `heapless-09` for the vectors of heapless up to their capacity,
/// and with feature `alloc` for `Vec<u8>`, which grows with what arrives.
pub trait PreludeStorage {
    /// Room for the bytes from `filled` on of a table of `len` bytes; one step
    /// of it if it grows. `None` if it will never hold `len` bytes.
    fn space(&mut self, filled: usize, len: usize) -> Option<&mut [u8]>;

    /// What it holds.
    fn bytes(&self) -> &[u8];

    /// How many bytes it may come to hold, for the error that says that they
    /// are too few. Those it holds, unless it grows.
    fn capacity(&self) -> usize {
        self.bytes().len()
    }
}

impl PreludeStorage for &mut [u8] {
    fn space(&mut self, filled: usize, len: usize) -> Option<&mut [u8]> {
        self.get_mut(filled..len)
    }

    fn bytes(&self) -> &[u8] {
        self
    }
}

impl<const N: usize> PreludeStorage for [u8; N] {
    fn space(&mut self, filled: usize, len: usize) -> Option<&mut [u8]> {
        self.get_mut(filled..len)
    }

    fn bytes(&self) -> &[u8] {
        self
    }
}

/// How much more a growing store takes at least, in bytes.
#[cfg(feature = "alloc")]
const STEP: usize = 4096;

/// The length to grow to, for `len` bytes of which `filled` have arrived:
/// twice what is there.
#[cfg(feature = "alloc")]
fn grown(filled: usize, len: usize) -> usize {
    filled
        .saturating_mul(2)
        .max(filled.saturating_add(STEP))
        .min(len)
}

#[cfg(feature = "alloc")]
impl PreludeStorage for alloc::vec::Vec<u8> {
    fn space(&mut self, filled: usize, len: usize) -> Option<&mut [u8]> {
        if self.len() <= filled {
            self.resize(grown(filled, len), 0);
        }
        let end = len.min(self.len());
        self.get_mut(filled..end)
    }

    fn bytes(&self) -> &[u8] {
        self
    }
}

/// One vector a frame, grown with what arrives.
///
/// Each message begins with no vectors. Empty frames at its end are never asked
/// for, and not added.
#[cfg(feature = "alloc")]
impl FrameBuffers for alloc::vec::Vec<alloc::vec::Vec<u8>> {
    fn begin(&mut self, _: u64) {
        self.clear();
    }

    fn buffer(&mut self, index: usize, len: usize, filled: usize) -> Option<&mut [u8]> {
        if self.len() <= index {
            self.resize_with(index.checked_add(1)?, alloc::vec::Vec::new);
        }
        let frame = self.get_mut(index)?;
        if filled == 0 {
            frame.clear();
        }
        if frame.len() <= filled {
            frame.resize(grown(filled, len), 0);
        }
        frame.get_mut(filled..)
    }
}

/// Frames side by side in one slice.
///
/// The frames of a message end up adjacent, so those that belong together
/// need no copying to be joined, and [`Prelude::split`](super::Prelude::split)
/// finds them again.
///
/// A message that does not fit as a whole is refused before any of it is stored,
/// so that the decoder can go on with a larger arena:
/// [`FrameErrorKind::NoBuffer`](super::FrameErrorKind::NoBuffer) has the length
/// that it takes.
#[derive(Debug)]
pub struct Arena<'a> {
    bytes: &'a mut [u8],
    /// Length of all frames of the message.
    frames_len: u64,
    /// The frame being filled, and where it starts.
    index: usize,
    start: usize,
    /// Where the bytes received so far end.
    end: usize,
}

impl<'a> Arena<'a> {
    /// Fills `bytes` from the front.
    pub const fn new(bytes: &'a mut [u8]) -> Self {
        Self {
            bytes,
            frames_len: 0,
            index: 0,
            start: 0,
            end: 0,
        }
    }

    /// What was handed out for frames so far. All of it has been filled once
    /// the decoder says that the message is complete.
    pub fn filled(&self) -> &[u8] {
        self.bytes.get(..self.end).unwrap_or_default()
    }

    /// Forgets the frames of the last message, as the next one does when it
    /// begins.
    pub const fn clear(&mut self) {
        self.frames_len = 0;
        self.index = 0;
        self.start = 0;
        self.end = 0;
    }
}

impl FrameBuffers for Arena<'_> {
    fn begin(&mut self, frames_len: u64) {
        self.clear();
        self.frames_len = frames_len;
    }

    fn buffer(&mut self, index: usize, len: usize, filled: usize) -> Option<&mut [u8]> {
        if self.frames_len > self.bytes.len() as u64 {
            return None;
        }
        if index != self.index {
            self.index = index;
            self.start = self.end;
        }
        let end = self.start.checked_add(len)?;
        let space = self.bytes.get_mut(self.start..end)?.get_mut(filled..)?;
        self.end = end;
        Some(space)
    }
}
