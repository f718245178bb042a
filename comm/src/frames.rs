//! The frames of received messages.

use core::fmt;
use core::ops::Deref;
use std::io;

use bytes::Bytes;
use daskwire::comm::Receiver;
use daskwire::frame::{FrameBuffers, Prelude, Wanted};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::pool::Pages;
use crate::{BufferPool, CommError};

/// Frames of at least this many bytes have their own allocation; smaller frames of a
/// message share one.
///
/// A frame keeps its allocation alive, so an array in a worker's store must not keep
/// the rest of its message, nor a small frame a large array.
const MIN_OWN_LEN: usize = 64 << 10;

/// The maximum number of bytes that are allocated for frames before any of them has
/// arrived. The allocation doubles as bytes arrive.
const MIN_GROWTH_LEN: usize = 256 << 10;

/// Frames of at least this many bytes are stored in mapped pages, huge ones if the
/// system has them: faulting in small pages takes longer than receiving the bytes.
const MIN_MAPPED_LEN: usize = 4 << 20;

/// The number of bytes of a frame of [`MIN_MAPPED_LEN`] or more that must arrive before pages
/// are mapped.
const MIN_ARRIVED_LEN: usize = 1 << 20;

/// The maximum ratio of the mapped length to the number of bytes that have arrived. Pages
/// use memory only once they are written.
const MAX_MAPPED_RATIO: usize = 1 << 10;

/// The frames of one message.
///
/// Each frame is a [`Bytes`]: cloning it is cheap, and a clone can outlive the
/// message. Small frames share one allocation, a frame of 64 KiB or more has its
/// own, and one of 4 MiB or more is stored in pages that return to the system, or to
/// the [`BufferPool`], when the last clone is dropped.
///
/// ```
/// # fn read(frames: daskwire_comm::Frames) {
/// for frame in &frames {
///     println!("{} bytes", frame.len());
/// }
/// let body: &[u8] = &frames[0];
/// # }
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Frames(Vec<Bytes>);

impl Frames {
    /// The frames, each of which is an `AsRef<[u8]>`.
    pub fn as_slices(&self) -> &[Bytes] {
        &self.0
    }

    /// Copies the frames of a complete message, which are stored one after another in
    /// `bytes`. Returns `None` if the message has large frames.
    pub(crate) fn copy(prelude: Prelude<'_>, bytes: &[u8]) -> Option<Self> {
        if prelude.lengths().any(|len| len >= MIN_OWN_LEN as u64) {
            return None;
        }
        let mut shared = Bytes::copy_from_slice(bytes);
        let last = prelude.frame_count().checked_sub(1)?;
        let mut frames = Vec::with_capacity(last + 1);
        for len in prelude.lengths().take(last) {
            frames.push(shared.split_to(usize::try_from(len).ok()?));
        }
        frames.push(shared);
        Some(Self(frames))
    }

    /// The frames as a vector.
    pub fn into_vec(self) -> Vec<Bytes> {
        self.0
    }
}

impl Deref for Frames {
    type Target = [Bytes];

    fn deref(&self) -> &[Bytes] {
        &self.0
    }
}

impl AsRef<[Bytes]> for Frames {
    fn as_ref(&self) -> &[Bytes] {
        &self.0
    }
}

impl IntoIterator for Frames {
    type Item = Bytes;
    type IntoIter = std::vec::IntoIter<Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Frames {
    type Item = &'a Bytes;
    type IntoIter = core::slice::Iter<'a, Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// Prints the lengths only, because messages may hold secrets.
impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frames of ")?;
        f.debug_list().entries(self.iter().map(Bytes::len)).finish()
    }
}

/// A large frame.
#[derive(Debug)]
enum LargeFrame {
    Heap(Vec<u8>),
    Mapped(Pages),
}

impl LargeFrame {
    fn space(
        &mut self,
        len: usize,
        filled: usize,
        wanted: usize,
        pool: Option<&BufferPool>,
    ) -> Result<FrameSpace<'_>, CommError> {
        let (arrived, has_room) = match self {
            Self::Heap(bytes) => (&bytes[..], filled < MIN_ARRIVED_LEN || len < MIN_MAPPED_LEN),
            Self::Mapped(pages) => (&pages[..filled], filled < pages.len()),
        };
        if !has_room {
            let target = filled.saturating_mul(MAX_MAPPED_RATIO).min(len);
            // Pages for a part of the frame are not taken from the pool, and not given to it.
            let pool = pool.filter(|_| target == len);
            let mut pages = match pool.and_then(|pool| pool.take(len)) {
                Some(pages) => pages,
                None => Pages::new(target, pool.cloned())
                    .map_err(|_| CommError::OutOfMemory { len: target })?,
            };
            pages[..filled].copy_from_slice(arrived);
            *self = Self::Mapped(pages);
        }
        match self {
            Self::Heap(bytes) => {
                grow(bytes, wanted, len)?;
                Ok(FrameSpace::Heap(bytes))
            }
            Self::Mapped(pages) => Ok(FrameSpace::Slice(&mut pages[filled..])),
        }
    }

    fn finish(self) -> Bytes {
        match self {
            Self::Heap(bytes) => bytes.into(),
            // The last mapping has exactly the length of the frame.
            Self::Mapped(pages) => Bytes::from_owner(pages),
        }
    }
}

/// Memory for the frames of a message that is arriving.
pub(crate) trait FrameStore {
    /// Copies bytes of the message from the start of `input`, at least one, and advances
    /// `input` past them.
    fn push(
        &mut self,
        receiver: &mut Receiver<Vec<u8>>,
        input: &mut &[u8],
    ) -> Result<(), CommError>;

    /// Returns space for the next bytes of the frame that the receiver wants.
    fn space<'s>(
        &'s mut self,
        receiver: &'s mut Receiver<Vec<u8>>,
    ) -> Result<FrameSpace<'s>, CommError>;
}

/// Buffers of the caller.
impl<B: FrameBuffers> FrameStore for &mut B {
    fn push(
        &mut self,
        receiver: &mut Receiver<Vec<u8>>,
        input: &mut &[u8],
    ) -> Result<(), CommError> {
        receiver.push(input, *self)?;
        Ok(())
    }

    fn space<'s>(
        &'s mut self,
        receiver: &'s mut Receiver<Vec<u8>>,
    ) -> Result<FrameSpace<'s>, CommError> {
        Ok(FrameSpace::Slice(receiver.space(*self)?))
    }
}

/// The space for the next bytes of a frame, which is not empty.
pub(crate) enum FrameSpace<'r> {
    /// The spare capacity of a vector, which is not initialised.
    Heap(&'r mut Vec<u8>),
    Slice(&'r mut [u8]),
}

impl FrameSpace<'_> {
    /// Copies as many of these bytes as fit, at least one.
    pub(crate) fn put(self, bytes: &[u8]) -> usize {
        match self {
            Self::Heap(frame) => {
                frame.extend_from_slice(bytes);
                bytes.len()
            }
            Self::Slice(free) => {
                let count = free.len().min(bytes.len());
                free[..count].copy_from_slice(&bytes[..count]);
                count
            }
        }
    }

    /// Reads once, at most `missing` bytes. Cancel safe.
    pub(crate) async fn read<R: AsyncRead + Unpin>(
        self,
        io: &mut R,
        missing: usize,
    ) -> io::Result<usize> {
        match self {
            // The limit keeps the next message out of this frame.
            Self::Heap(bytes) => io.take(missing as u64).read_buf(bytes).await,
            Self::Slice(free) => {
                let len = free.len().min(missing);
                io.read(&mut free[..len]).await
            }
        }
    }
}

/// Reserves capacity for `wanted` more bytes, doubling the capacity up to `limit`
/// bytes in all. The memory is not initialized.
fn grow(bytes: &mut Vec<u8>, wanted: usize, limit: usize) -> Result<(), CommError> {
    if bytes.capacity() - bytes.len() < wanted {
        let min_len = bytes.len().saturating_add(wanted);
        let target = bytes
            .len()
            .saturating_mul(2)
            .max(MIN_GROWTH_LEN)
            .min(limit)
            .max(min_len);
        let more = target - bytes.len();
        bytes
            .try_reserve_exact(more)
            .map_err(|_| CommError::OutOfMemory { len: target })?;
    }
    Ok(())
}

/// The frames of a message that is arriving, in memory of the reader.
#[derive(Debug)]
pub(crate) struct Arriving {
    /// The small frames, one after another.
    shared: Vec<u8>,
    /// The length of all small frames of this message, once known.
    shared_len: Option<usize>,
    /// The large frames, in order.
    own: Vec<LargeFrame>,
    /// The index of the frame that is last in `own`.
    own_index: Option<usize>,
    /// The pool for the memory of large frames.
    pool: Option<BufferPool>,
}

impl Arriving {
    pub(crate) const fn new() -> Self {
        Self {
            shared: Vec::new(),
            shared_len: None,
            own: Vec::new(),
            own_index: None,
            pool: None,
        }
    }

    pub(crate) fn set_pool(&mut self, pool: Option<BufferPool>) {
        self.pool = pool;
    }

    /// Returns space for at least one byte of the frame that the receiver wants, and if
    /// possible for `wanted`.
    fn space_for(
        &mut self,
        receiver: &Receiver<Vec<u8>>,
        wanted: usize,
    ) -> Result<FrameSpace<'_>, CommError> {
        let Wanted::Frame { index, len, filled } = receiver.wanted()? else {
            return Ok(FrameSpace::Slice(&mut []));
        };
        if len < MIN_OWN_LEN {
            let limit = *self.shared_len.get_or_insert_with(|| {
                let lengths = receiver.prelude().into_iter();
                let lengths = lengths.flat_map(|prelude| prelude.lengths());
                lengths
                    .filter_map(|len| usize::try_from(len).ok())
                    .filter(|len| *len < MIN_OWN_LEN)
                    .fold(0, usize::saturating_add)
            });
            grow(&mut self.shared, wanted, limit)?;
            return Ok(FrameSpace::Heap(&mut self.shared));
        }
        if self.own_index != Some(index) {
            self.own_index = Some(index);
            self.own.push(LargeFrame::Heap(Vec::new()));
        }
        // `own` is not empty: the lines above push its first entry.
        let last = self.own.len() - 1;
        self.own[last].space(len, filled, wanted, self.pool.as_ref())
    }

    /// Whether nothing of a message is stored.
    pub(crate) fn is_empty(&self) -> bool {
        self.shared.is_empty() && self.own.is_empty()
    }

    /// Takes the frames, all of which must have arrived.
    pub(crate) fn take(&mut self, prelude: Prelude<'_>) -> Frames {
        let this = core::mem::replace(self, Self::new());
        self.pool = this.pool;
        let mut shared = Bytes::from(this.shared);
        let mut own = this.own.into_iter();
        let frames = prelude.lengths().map(|len| match usize::try_from(len) {
            Ok(0) => Bytes::new(),
            Ok(len) if len < MIN_OWN_LEN => shared.split_to(len),
            // Each has arrived, and was thereby added.
            _ => own.next().expect("a large frame").finish(),
        });
        Frames(frames.collect())
    }

    /// The number of allocated bytes, if `filled` bytes of the last frame have arrived.
    #[cfg(test)]
    pub(crate) fn capacity(&self, filled: usize) -> usize {
        let own = self.own.iter().map(|own| match own {
            LargeFrame::Heap(bytes) => bytes.capacity(),
            // Pages take memory only once they are written.
            LargeFrame::Mapped(_) => filled,
        });
        self.shared.capacity() + own.sum::<usize>()
    }
}

impl FrameStore for Arriving {
    fn push(
        &mut self,
        receiver: &mut Receiver<Vec<u8>>,
        input: &mut &[u8],
    ) -> Result<(), CommError> {
        let Wanted::Frame { len, filled, .. } = receiver.wanted()? else {
            return Ok(receiver.push_prelude(input)?);
        };
        let bytes = &input[..input.len().min(len - filled)];
        let count = self.space_for(receiver, bytes.len())?.put(bytes);
        *input = &input[count..];
        Ok(receiver.received(count)?)
    }

    fn space<'s>(
        &'s mut self,
        receiver: &'s mut Receiver<Vec<u8>>,
    ) -> Result<FrameSpace<'s>, CommError> {
        self.space_for(receiver, 1)
    }
}
