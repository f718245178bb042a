//! The frames of a message that has arrived.

use core::fmt;
use core::ops::Deref;
use std::io;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use wire::frame::Prelude;

use crate::pool::Pages;
use crate::{BufferPool, CommError};

/// Frames of this many bytes and more get memory of their own; smaller ones of
/// one message share an allocation.
///
/// A frame that is kept keeps its allocation, so an array that stays in a
/// worker's store must not hold on to the rest of its message, nor the other
/// way round.
const OWN: usize = 64 << 10;

/// What is allocated for a frame before any of it has arrived, at most. More
/// follows as bytes arrive, doubling.
const STEP: usize = 256 << 10;

/// Frames of this many bytes and more lie in pages of their own, huge ones
/// where the system has them: faulting in small pages takes longer than the
/// bytes take to arrive.
const MAPPED: usize = 4 << 20;

/// How much of such a frame has to arrive before that.
const MAPPED_AFTER: usize = 1 << 20;

/// Pages are reserved for this many times of what has arrived, at most. They
/// take memory only where something arrives.
const MAPPED_RATIO: usize = 1 << 10;

/// The frames of one message.
///
/// Each frame is a [`Bytes`]: cloning one is cheap, and a clone lives on when
/// the message is gone. Small frames share one allocation, a frame of 64 KiB
/// or more has its own, one of 4 MiB or more in pages that go back to the
/// system, or to the [`BufferPool`], when the last clone is gone.
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

    /// The frames of a whole message without large ones, which lie side by side
    /// in `bytes`. `None` if it has large ones.
    pub(crate) fn copy(prelude: Prelude<'_>, bytes: &[u8]) -> Option<Self> {
        if prelude.lengths().any(|len| len >= OWN as u64) {
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

/// Lengths only: messages hold what is nobody's business.
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
    Mapped { pages: Pages, filled: usize },
}

impl LargeFrame {
    fn room(
        &mut self,
        len: usize,
        wanted: usize,
        pool: Option<&BufferPool>,
    ) -> Result<FrameSpace<'_>, CommError> {
        let (arrived, has_room) = match self {
            Self::Heap(bytes) => (&bytes[..], bytes.len() < MAPPED_AFTER || len < MAPPED),
            Self::Mapped { pages, filled } => (&pages[..*filled], *filled < pages.len()),
        };
        if !has_room {
            let target = arrived.len().saturating_mul(MAPPED_RATIO).min(len);
            // What is not all of the frame is not for another one either.
            let pool = pool.filter(|_| target == len);
            let mut pages = match pool.and_then(|pool| pool.take(len)) {
                Some(pages) => pages,
                None => Pages::new(target, pool.cloned())
                    .map_err(|_| CommError::OutOfMemory { len: target })?,
            };
            let filled = arrived.len();
            pages[..filled].copy_from_slice(arrived);
            *self = Self::Mapped { pages, filled };
        }
        match self {
            Self::Heap(bytes) => {
                grow(bytes, wanted, len)?;
                Ok(FrameSpace::Heap(bytes))
            }
            Self::Mapped { pages, filled } => Ok(FrameSpace::Mapped { pages, filled }),
        }
    }

    fn finish(self) -> Bytes {
        match self {
            Self::Heap(bytes) => bytes.into(),
            // All of it: the frame is as long as its last pages.
            Self::Mapped { pages, .. } => Bytes::from_owner(pages),
        }
    }
}

/// Where the next bytes of a frame go.
pub(crate) enum FrameSpace<'r> {
    /// Behind what is there. There is some capacity.
    Heap(&'r mut Vec<u8>),
    /// From `filled` on, where there is some room.
    Mapped {
        pages: &'r mut Pages,
        filled: &'r mut usize,
    },
}

impl FrameSpace<'_> {
    /// Takes as many of these bytes as there is room for, which is some.
    pub(crate) fn put(self, bytes: &[u8]) -> usize {
        match self {
            Self::Heap(room) => {
                room.extend_from_slice(bytes);
                bytes.len()
            }
            Self::Mapped { pages, filled } => {
                let free = &mut pages[*filled..];
                let count = free.len().min(bytes.len());
                free[..count].copy_from_slice(&bytes[..count]);
                *filled += count;
                count
            }
        }
    }

    /// Reads once, no more than `missing` bytes. Cancel safe.
    pub(crate) async fn read<R: AsyncRead + Unpin>(
        self,
        io: &mut R,
        missing: usize,
    ) -> io::Result<usize> {
        match self {
            // The limit keeps the next message out of this frame.
            Self::Heap(room) => io.take(missing as u64).read_buf(room).await,
            Self::Mapped { pages, filled } => {
                let free = &mut pages[*filled..];
                let most = free.len().min(missing);
                let count = io.read(&mut free[..most]).await?;
                *filled += count;
                Ok(count)
            }
        }
    }
}

/// Makes room for `wanted` more bytes, and for more than that as it fills, up to
/// `limit` bytes in all. Memory is not initialised.
fn grow(bytes: &mut Vec<u8>, wanted: usize, limit: usize) -> Result<(), CommError> {
    if bytes.capacity() - bytes.len() < wanted {
        let least = bytes.len().saturating_add(wanted);
        let target = bytes
            .len()
            .saturating_mul(2)
            .max(STEP)
            .min(limit)
            .max(least);
        let more = target - bytes.len();
        bytes
            .try_reserve_exact(more)
            .map_err(|_| CommError::OutOfMemory { len: target })?;
    }
    Ok(())
}

/// The frames of a message that is still arriving.
#[derive(Debug)]
pub(crate) struct Arriving {
    /// The small frames, side by side.
    shared: Vec<u8>,
    /// Bytes of all the small frames of this message, once that is known.
    shared_len: Option<usize>,
    /// The large frames, in order.
    own: Vec<LargeFrame>,
    /// Which frame the last of `own` is.
    own_index: Option<usize>,
    /// Where large frames come from and go back to.
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

    /// Where the next bytes of frame `index` go, with room for `wanted` bytes,
    /// or for some.
    ///
    /// `prelude` is asked for once a message.
    pub(crate) fn room<'p>(
        &mut self,
        index: usize,
        len: usize,
        wanted: usize,
        prelude: impl FnOnce() -> Option<Prelude<'p>>,
    ) -> Result<FrameSpace<'_>, CommError> {
        if len < OWN {
            let limit = *self.shared_len.get_or_insert_with(|| {
                let lengths = prelude().into_iter().flat_map(|prelude| prelude.lengths());
                lengths
                    .filter_map(|len| usize::try_from(len).ok())
                    .filter(|len| *len < OWN)
                    .fold(0, usize::saturating_add)
            });
            grow(&mut self.shared, wanted, limit)?;
            return Ok(FrameSpace::Heap(&mut self.shared));
        }
        if self.own_index != Some(index) {
            self.own_index = Some(index);
            self.own.push(LargeFrame::Heap(Vec::new()));
        }
        // There is one: the lines above push the first.
        let last = self.own.len() - 1;
        self.own[last].room(len, wanted, self.pool.as_ref())
    }

    /// The frames, once all of them have arrived.
    pub(crate) fn take(&mut self, prelude: Prelude<'_>) -> Frames {
        let this = core::mem::replace(self, Self::new());
        self.pool = this.pool;
        let mut shared = Bytes::from(this.shared);
        let mut own = this.own.into_iter();
        let frames = prelude.lengths().map(|len| match usize::try_from(len) {
            Ok(0) => Bytes::new(),
            Ok(len) if len < OWN => shared.split_to(len),
            _ => own.next().map(LargeFrame::finish).unwrap_or_default(),
        });
        Frames(frames.collect())
    }

    /// Bytes allocated.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        let own = self.own.iter().map(|own| match own {
            LargeFrame::Heap(bytes) => bytes.capacity(),
            // Pages take memory where they have been touched.
            LargeFrame::Mapped { filled, .. } => *filled,
        });
        self.shared.capacity() + own.sum::<usize>()
    }
}
