//! Caller-supplied buffers for the frames and the prelude of a message.

use crate::invariant::OrDefaultIfBug as _;

/// Buffers for the frames of one message, supplied by the caller.
///
/// A [`FrameDecoder`](super::FrameDecoder) asks for the frames in order, and
/// for frame `index` only after all frames before it are complete, so that an
/// implementation can read a payload's header before it chooses a buffer for
/// the payload. No buffer is requested before the whole prelude has been
/// checked against the limits. No buffer is requested for an empty frame; the
/// [prelude](super::Prelude) has its length.
pub trait FrameBuffers {
    /// Begins a message whose frames take `frames_len` bytes in all. The
    /// contents of the buffers belong to an earlier message and can be
    /// discarded.
    ///
    /// Called before the first byte of a frame is stored, possibly several
    /// times. Default: does nothing.
    fn begin(&mut self, frames_len: u64) {
        let _ = frames_len;
    }

    /// Returns a buffer for the next bytes of frame `index`, which has `len`
    /// bytes in all, of which `filled` have arrived.
    ///
    /// The buffer may be shorter than the missing part: an implementation can
    /// grow with the bytes that arrive, so that a peer that declares a gigabyte
    /// and sends a kilobyte costs a kilobyte. Space beyond the end of the frame
    /// is not used. The call may be repeated if the caller read nothing; it
    /// must then return the same memory.
    ///
    /// `None` or an empty buffer fails the message with
    /// [`FrameErrorKind::NoBuffer`](super::FrameErrorKind::NoBuffer).
    fn buffer(&mut self, index: usize, len: usize, filled: usize) -> Option<&mut [u8]>;
}

/// Storage for the lengths, supplied by the caller: 8 bytes per frame.
///
/// Implemented for arrays and slices, which have a fixed length, with feature
/// `heapless-09` for the vectors of heapless up to their capacity, and with
/// feature `alloc` for `Vec<u8>`, which grows with the bytes that arrive.
pub trait PreludeStorage {
    /// Returns space for the bytes from `filled` on of `len` bytes of lengths,
    /// or for the next part of them. `None` if the storage cannot hold `len`
    /// bytes.
    fn space(&mut self, filled: usize, len: usize) -> Option<&mut [u8]>;

    /// The contents of the storage.
    fn bytes(&self) -> &[u8];

    /// The maximum number of bytes that the storage can hold, for error
    /// messages. Default: the length of [`bytes`](Self::bytes).
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

/// The lengths of `N` frames.
impl<const N: usize> PreludeStorage for [[u8; 8]; N] {
    fn space(&mut self, filled: usize, len: usize) -> Option<&mut [u8]> {
        self.as_flattened_mut().get_mut(filled..len)
    }

    fn bytes(&self) -> &[u8] {
        self.as_flattened()
    }
}

/// The smallest growth step, in bytes.
#[cfg(feature = "alloc")]
const STEP: usize = 4096;

/// The length to grow to: twice `filled`, at least one step more, and at most
/// `len`.
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

/// One vector per frame, which grows with the bytes that arrive.
///
/// Each message begins with no vectors. No vectors are added for empty frames
/// at the end of a message.
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

/// Frames back to back in one slice.
///
/// The frames of a message are adjacent, so the sub-frames of a payload can be
/// joined without copying, and [`Prelude::split`](super::Prelude::split)
/// separates them.
///
/// A message that does not fit is refused before any of it is stored, so that
/// the decoder can continue with a larger arena:
/// [`FrameErrorKind::NoBuffer`](super::FrameErrorKind::NoBuffer) has the length
/// required.
#[derive(Debug)]
pub struct Arena<'a> {
    bytes: &'a mut [u8],
    /// Length of all frames of the message, in bytes.
    frames_len: u64,
    /// The current frame and its offset in `bytes`.
    index: usize,
    start: usize,
    /// The end of the current frame.
    end: usize,
}

impl<'a> Arena<'a> {
    /// Creates an arena that fills `bytes` from the start.
    pub const fn new(bytes: &'a mut [u8]) -> Self {
        Self {
            bytes,
            frames_len: 0,
            index: 0,
            start: 0,
            end: 0,
        }
    }

    /// The part of the slice that was used for frames so far. All of it has
    /// been filled once the message is complete.
    pub fn filled(&self) -> &[u8] {
        self.bytes.get(..self.end).or_default_if_bug()
    }

    /// Discards the frames of the last message. The next message does this when
    /// it begins.
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
