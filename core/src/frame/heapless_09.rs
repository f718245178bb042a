//! Storage in the vectors of heapless 0.9: as long as it has to be, up to a
//! capacity that is part of its type.

use heapless_09::vec::{VecInner, VecStorage};
use heapless_09::{LenType, Vec};

use super::{FrameBuffers, PreludeStorage};

/// Up to its capacity; 8 bytes a frame. Also for
/// [`VecView<u8>`](heapless_09::VecView), which does not name the capacity.
///
/// ```
/// use daskwire::Limits;
/// use daskwire::frame::{FrameDecoder, Prefix};
/// # use heapless_09 as heapless;
/// use heapless::Vec;
///
/// // Two vectors for frames of up to 16 bytes, and room for their lengths.
/// let mut frames: Vec<Vec<u8, 16>, 2> = Vec::new();
/// let mut decoder = FrameDecoder::new(Prefix::None, Vec::<u8, 16>::new(), Limits::HOST);
/// let mut input = &b"\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x80"[..];
/// assert!(decoder.push(&mut input, &mut frames)?);
/// assert_eq!(frames, [b"\x80"]);
/// # Ok::<(), daskwire::frame::FrameError>(())
/// ```
impl<L: LenType, S: VecStorage<u8> + ?Sized> PreludeStorage for VecInner<u8, L, S> {
    fn space(&mut self, filled: usize, len: usize) -> Option<&mut [u8]> {
        if self.len() < len {
            self.resize(len, 0).ok()?;
        }
        self.get_mut(filled..len)
    }

    fn bytes(&self) -> &[u8] {
        self
    }

    fn capacity(&self) -> usize {
        Self::capacity(self)
    }
}

/// One vector a frame, while there are vectors and each holds its frame.
///
/// Each message begins with no vectors. Empty frames at its end are never asked
/// for, and not added: [`resize`](VecInner::resize) it to the number of frames.
///
/// For frames side by side give an [`Arena`](super::Arena) any slice.
impl<const LEN: usize, L, M, S> FrameBuffers for VecInner<Vec<u8, LEN, L>, M, S>
where
    L: LenType,
    M: LenType,
    S: VecStorage<Vec<u8, LEN, L>> + ?Sized,
{
    fn begin(&mut self, _: u64) {
        self.clear();
    }

    fn buffer(&mut self, index: usize, len: usize, filled: usize) -> Option<&mut [u8]> {
        if self.len() <= index {
            self.resize(index.checked_add(1)?, Vec::new()).ok()?;
        }
        let frame = self.get_mut(index)?;
        if filled == 0 {
            frame.clear();
        }
        if frame.len() < len {
            frame.resize(len, 0).ok()?;
        }
        frame.get_mut(filled..len)
    }
}
