//! Memory that large frames use again.

use core::fmt;
use core::ops::{Deref, DerefMut};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use memmap2::MmapMut;

/// Memory for large frames that is used again when a frame is gone.
///
/// Frames of 4 MiB and more lie in pages of their own. Getting pages from the
/// system and giving them back takes about as long as receiving what is put
/// into them; a pool keeps them instead. It is for peers whose large frames come
/// and go; one that keeps what it receives has nothing to use again.
///
/// Cloning a pool gives another handle to the same one: put it into the
/// [`CommOptions`](crate::CommOptions) of all connections that are to share it.
///
/// ```
/// use daskwire_comm::{BufferPool, CommOptions};
/// let options = CommOptions {
///     // No more than 256 MiB wait for their next use.
///     pool: Some(BufferPool::new(256 << 20)),
///     ..CommOptions::default()
/// };
/// ```
#[derive(Clone)]
pub struct BufferPool(Arc<PoolInner>);

struct PoolInner {
    most_len: usize,
    kept: Mutex<FreeBuffer>,
}

#[derive(Default)]
struct FreeBuffer {
    /// Those that were given back last are last.
    maps: VecDeque<MmapMut>,
    len: usize,
}

impl BufferPool {
    /// A pool that keeps no more than so many bytes that nobody uses. The oldest
    /// go back to the system first.
    pub fn new(most_len: usize) -> Self {
        Self(Arc::new(PoolInner {
            most_len,
            kept: Mutex::default(),
        }))
    }

    /// How many bytes it keeps that nobody uses.
    pub fn kept_len(&self) -> usize {
        self.kept().len
    }

    /// Gives all of these back to the system.
    pub fn clear(&self) {
        *self.kept() = FreeBuffer::default();
    }

    /// Pages for so many bytes that have been used before: the fewest that are
    /// enough, and not more than twice as many, which a frame that is kept would
    /// hold on to.
    pub(crate) fn take(&self, len: usize) -> Option<Pages> {
        let mut kept = self.kept();
        let fitting = kept.maps.iter().enumerate();
        let (at, _) = fitting
            .filter(|(_, map)| (len..=len.saturating_mul(2)).contains(&map.len()))
            .min_by_key(|(_, map)| map.len())?;
        let map = kept.maps.remove(at)?;
        kept.len -= map.len();
        drop(kept);
        Some(Pages {
            map: Some(map),
            len,
            pool: Some(self.clone()),
        })
    }

    fn give_back(&self, map: MmapMut) {
        if map.len() > self.0.most_len {
            return;
        }
        let mut given_up = Vec::new();
        let mut kept = self.kept();
        kept.len += map.len();
        kept.maps.push_back(map);
        while kept.len > self.0.most_len {
            let Some(oldest) = kept.maps.pop_front() else {
                break;
            };
            kept.len -= oldest.len();
            given_up.push(oldest);
        }
        drop(kept);
        // Unmapping takes a while: not while others wait.
        drop(given_up);
    }

    fn kept(&self) -> MutexGuard<'_, FreeBuffer> {
        let kept = &self.0.kept;
        kept.lock().unwrap_or_else(|poisoned| {
            // The length may not be that of the maps any more: keep none of them.
            let mut guard = poisoned.into_inner();
            *guard = FreeBuffer::default();
            kept.clear_poison();
            guard
        })
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("most_len", &self.0.most_len)
            .field("kept_len", &self.kept_len())
            .finish()
    }
}

/// The pages of one frame, huge ones where the system has them.
pub(crate) struct Pages {
    /// There until this is dropped.
    map: Option<MmapMut>,
    /// How many bytes are the frame's.
    len: usize,
    pool: Option<BufferPool>,
}

impl Pages {
    /// Fresh ones, which take memory where they are written to.
    pub(crate) fn new(len: usize, pool: Option<BufferPool>) -> io::Result<Self> {
        let map = MmapMut::map_anon(len)?;
        // A wish: without huge pages it is just slower.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self {
            map: Some(map),
            len,
            pool,
        })
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let map = self.map.as_deref().unwrap_or_default();
        map.get(..self.len).unwrap_or_default()
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        let map = self.map.as_deref_mut().unwrap_or_default();
        map.get_mut(..self.len).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let (Some(map), Some(pool)) = (self.map.take(), self.pool.take()) {
            pool.give_back(map);
        }
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages of {} bytes", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(pool: &BufferPool, len: usize) -> Pages {
        Pages::new(len, Some(pool.clone())).unwrap()
    }

    #[test]
    fn the_smallest_that_fits_is_used_again() {
        let pool = BufferPool::new(100 << 20);
        let all = [5, 3, 9, 4].map(|mebibytes| fresh(&pool, mebibytes << 20));
        let places: Vec<_> = all.iter().map(|pages| pages.as_ptr()).collect();
        assert_eq!(pool.kept_len(), 0);
        drop(all);
        assert_eq!(pool.kept_len(), 21 << 20);
        let pages = pool.take((3 << 20) + 1).unwrap();
        assert_eq!((pages.as_ptr(), pages.len()), (places[3], (3 << 20) + 1));
        assert_eq!(pool.kept_len(), 17 << 20);
        assert!(pool.take((9 << 20) + 1).is_none());
        // Far too many would be held by a frame that is kept.
        assert!(pool.take(1 << 20).is_none());
        drop(pages);
        // It is as long as it was.
        assert_eq!(pool.kept_len(), 21 << 20);
        pool.clear();
        assert_eq!(pool.kept_len(), 0);
    }

    #[test]
    fn no_more_is_kept_than_was_asked_for() {
        let pool = BufferPool::new(10 << 20);
        let first = fresh(&pool, 4 << 20);
        let first_place = first.as_ptr();
        drop(first);
        let others = [fresh(&pool, 4 << 20), fresh(&pool, 3 << 20)];
        drop(others);
        assert_eq!(pool.kept_len(), 7 << 20);
        assert!(
            pool.take(4 << 20)
                .is_some_and(|pages| pages.as_ptr() != first_place)
        );
        drop(fresh(&pool, 11 << 20));
        assert!(pool.kept_len() <= 10 << 20);
    }
}
