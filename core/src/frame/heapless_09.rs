//! Storage in the vectors of heapless 0.9, which grow up to a capacity that is
//! part of their type.

use heapless_09::vec::{VecInner, VecStorage};
use heapless_09::{LenType, Vec};

use super::{FrameBuffers, PreludeStorage};

/// Storage up to the capacity of the vector; 8 bytes per frame. Also
/// implemented for [`VecView<u8>`](heapless_09::VecView), whose type does not
/// name the capacity.
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

/// One vector per frame, up to the capacity of the outer vector and of each
/// inner one.
///
/// Each message begins with no vectors. No vectors are added for empty frames
/// at the end of a message: use [`resize`](VecInner::resize) to get one for
/// each frame.
///
/// To store the frames back to back, use an [`Arena`](super::Arena).
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
