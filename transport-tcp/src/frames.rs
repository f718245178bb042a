//! The frames of a message that has arrived.

use core::fmt;
use core::ops::Deref;

use bytes::Bytes;
use wire::frame::Prelude;

use crate::CommError;

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

/// The frames of one message.
///
/// Each frame is a [`Bytes`]: cloning one is cheap, and a clone lives on when
/// the message is gone. Small frames share one allocation, a frame of 64 KiB
/// or more has its own.
///
/// ```
/// # fn read(frames: daskwire_tcp::Frames) {
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

/// The frames of a message that is still arriving.
#[derive(Debug)]
pub(crate) struct Arriving {
    /// The small frames, side by side.
    shared: Vec<u8>,
    /// Bytes of all the small frames of this message, once that is known.
    shared_len: Option<usize>,
    /// The large frames, in order.
    own: Vec<Vec<u8>>,
    /// Which frame the last of `own` is.
    own_index: Option<usize>,
}

impl Arriving {
    pub(crate) const fn new() -> Self {
        Self {
            shared: Vec::new(),
            shared_len: None,
            own: Vec::new(),
            own_index: None,
        }
    }

    /// Where the next bytes of frame `index` go, behind what is there, with
    /// room for `wanted` bytes. Memory is not initialised.
    ///
    /// `prelude` is asked for once a message.
    pub(crate) fn room<'p>(
        &mut self,
        index: usize,
        len: usize,
        wanted: usize,
        prelude: impl FnOnce() -> Option<Prelude<'p>>,
    ) -> Result<&mut Vec<u8>, CommError> {
        let (room, limit) = if len < OWN {
            let limit = *self.shared_len.get_or_insert_with(|| {
                let lengths = prelude().into_iter().flat_map(|prelude| prelude.lengths());
                lengths
                    .filter_map(|len| usize::try_from(len).ok())
                    .filter(|len| *len < OWN)
                    .fold(0, usize::saturating_add)
            });
            (&mut self.shared, limit)
        } else {
            if self.own_index != Some(index) {
                self.own_index = Some(index);
                self.own.push(Vec::new());
            }
            // There is one: the lines above push the first.
            let last = self.own.len() - 1;
            (&mut self.own[last], len)
        };
        if room.capacity() - room.len() < wanted {
            let least = room.len().saturating_add(wanted);
            let target = room.len().saturating_mul(2).max(STEP).min(limit).max(least);
            let more = target - room.len();
            room.try_reserve_exact(more)
                .map_err(|_| CommError::OutOfMemory { len: target })?;
        }
        Ok(room)
    }

    /// The frames, once all of them have arrived.
    pub(crate) fn finish(self, prelude: Prelude<'_>) -> Frames {
        let mut shared = Bytes::from(self.shared);
        let mut own = self.own.into_iter();
        let frames = prelude.lengths().map(|len| match usize::try_from(len) {
            Ok(0) => Bytes::new(),
            Ok(len) if len < OWN => shared.split_to(len),
            _ => Bytes::from(own.next().unwrap_or_default()),
        });
        Frames(frames.collect())
    }

    /// Bytes allocated.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.shared.capacity() + self.own.iter().map(Vec::capacity).sum::<usize>()
    }
}
