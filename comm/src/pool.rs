//! A pool for the memory of large frames.

use core::fmt;
use core::ops::{Deref, DerefMut};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use memmap2::MmapMut;

use crate::event::PoolEvent;

/// A pool that reuses the memory of large frames after they are dropped.
///
/// Frames of 4 MiB or more are stored in mapped pages. Mapping and unmapping pages
/// takes about as long as receiving their contents, so a pool keeps them. Pools help
/// programs that drop their large frames; one that keeps them has nothing to reuse.
///
/// Clones of a pool share its memory: set the pool in the
/// [`CommOptions`](crate::CommOptions) of all connections that are to share it.
///
/// ```
/// use daskwire_comm::{BufferPool, CommOptions};
/// // At most 256 MiB of unused memory.
/// let options = CommOptions::default().with_pool(BufferPool::new(256 << 20));
/// ```
#[derive(Clone)]
pub struct BufferPool(Arc<PoolInner>);

/// A source of memory for large frames, such as memory that other processes map too.
///
/// A [`BufferPool`] without a source maps private pages.
pub trait FrameMemory: Send + Sync {
    /// Allocates memory of `len` bytes. It is filled with a frame unless the comm ends
    /// before.
    ///
    /// A comm requests memory for a frame when 1 MiB of it has arrived, and then for up to
    /// 1,024 times the bytes that have arrived: a peer that sends 1 MiB can have 1 GiB
    /// requested. To bound that further, set the limits of
    /// [`CommOptions`](crate::CommOptions).
    ///
    /// # Errors
    ///
    /// If no memory is available. The pool maps private pages then.
    fn allocate(&self, len: usize) -> io::Result<Box<dyn FrameBlock>>;
}

/// Memory from a [`FrameMemory`], which is reused for one large frame after another. Its
/// address and length do not change.
pub trait FrameBlock: AsRef<[u8]> + AsMut<[u8]> + Send + Sync {
    /// Records that the frame in this memory was dropped.
    fn release(&mut self);

    /// Prepares the memory for another frame. Returns `false` if that is not possible,
    /// because the current contents are still in use elsewhere.
    fn reserve(&mut self) -> bool;
}

struct PoolInner {
    max_len: usize,
    memory: Option<Arc<dyn FrameMemory>>,
    kept: Mutex<FreeList>,
}

/// The memory of a frame.
enum Map {
    Anonymous(MmapMut),
    Block(Box<dyn FrameBlock>),
}

impl Map {
    fn len(&self) -> usize {
        self.as_ref().len()
    }

    fn reserve(&mut self) -> bool {
        match self {
            Self::Anonymous(_) => true,
            Self::Block(block) => block.reserve(),
        }
    }
}

impl AsRef<[u8]> for Map {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Anonymous(map) => map,
            Self::Block(block) => (**block).as_ref(),
        }
    }
}

impl AsMut<[u8]> for Map {
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Anonymous(map) => map,
            Self::Block(block) => (**block).as_mut(),
        }
    }
}

/// The unused memory of a pool.
#[derive(Default)]
struct FreeList {
    /// The unused memory, the least recently used first.
    maps: VecDeque<Map>,
    len: usize,
    /// The minimum of `len` since the last trim.
    min_len: usize,
}

impl BufferPool {
    /// Creates a pool that keeps at most `max_len` bytes of unused memory. The memory that
    /// has been unused for the longest time is freed first.
    pub fn new(max_len: usize) -> Self {
        Self(Arc::new(PoolInner {
            max_len,
            memory: None,
            kept: Mutex::default(),
        }))
    }

    /// Creates a pool like [`new`](Self::new) that allocates its memory from a source.
    pub fn with_memory(max_len: usize, memory: Arc<dyn FrameMemory>) -> Self {
        Self(Arc::new(PoolInner {
            max_len,
            memory: Some(memory),
            kept: Mutex::default(),
        }))
    }

    /// The maximum number of unused bytes that the pool keeps.
    pub fn max_len(&self) -> usize {
        self.0.max_len
    }

    /// The number of unused bytes in the pool.
    pub fn kept_len(&self) -> usize {
        self.kept().len
    }

    /// Frees all unused memory.
    pub fn clear(&self) {
        *self.kept() = FreeList::default();
    }

    /// Frees the memory that was not needed since the last call.
    ///
    /// A program that calls this at intervals keeps memory while large frames arrive, and
    /// frees it soon afterwards.
    pub fn trim(&self) {
        let mut kept = self.kept();
        let mut spare = kept.min_len;
        let mut given_up = Vec::new();
        while kept.maps.front().is_some_and(|map| map.len() <= spare) {
            let Some(oldest) = kept.maps.pop_front() else {
                break;
            };
            spare -= oldest.len();
            kept.len -= oldest.len();
            given_up.push(oldest);
        }
        kept.min_len = kept.len;
        drop(kept);
        // Unmap without the lock, because it takes a while.
        drop(given_up);
    }

    /// Returns a frame of `len` bytes that `fill` has written, in unused memory of the pool or
    /// in new memory. The memory returns to the pool when the frame is dropped.
    ///
    /// The contents of the memory that `fill` receives are unspecified.
    ///
    /// # Errors
    ///
    /// That of `fill`, or an I/O error if no memory is available.
    pub fn fill<E: From<io::Error>>(
        &self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Bytes, E> {
        let mut pages = match self.take(len) {
            Some(pages) => pages,
            None => Pages::new(len, Some(self.clone()))?,
        };
        fill(&mut pages)?;
        Ok(Bytes::from_owner(pages))
    }

    /// Takes the smallest unused memory of at least `len` bytes, and of at most twice as
    /// many, since a frame that is kept occupies all of its memory.
    pub(crate) fn take(&self, len: usize) -> Option<Pages> {
        let mut kept = self.kept();
        let fitting = kept.maps.iter_mut().enumerate();
        let mut fitting: Vec<(usize, &mut Map)> = fitting
            .filter(|(_, map)| (len..=len.saturating_mul(2)).contains(&map.len()))
            .collect();
        fitting.sort_by_key(|(_, map)| map.len());
        let mut fitting = fitting.into_iter();
        let found = fitting.find_map(|(at, map)| map.reserve().then_some(at));
        let Some(map) = found.and_then(|at| kept.maps.remove(at)) else {
            drop(kept);
            PoolEvent::Empty { frame_len: len }.emit();
            return None;
        };
        kept.len -= map.len();
        kept.min_len = kept.min_len.min(kept.len);
        drop(kept);
        Some(Pages {
            map: Some(map),
            len,
            pool: Some(self.clone()),
        })
    }

    fn put_back(&self, mut map: Map) {
        if let Map::Block(block) = &mut map {
            block.release();
        }
        if map.len() > self.0.max_len {
            return;
        }
        let mut given_up = Vec::new();
        let mut kept = self.kept();
        kept.len += map.len();
        kept.maps.push_back(map);
        while kept.len > self.0.max_len {
            let Some(oldest) = kept.maps.pop_front() else {
                break;
            };
            kept.len -= oldest.len();
            kept.min_len = kept.min_len.min(kept.len);
            given_up.push(oldest);
        }
        drop(kept);
        if !given_up.is_empty() {
            let freed_len = given_up.iter().map(|map| map.len()).sum();
            PoolEvent::Full { freed_len }.emit();
        }
        // Unmap without the lock, because it takes a while.
        drop(given_up);
    }

    fn kept(&self) -> MutexGuard<'_, FreeList> {
        let kept = &self.0.kept;
        kept.lock().unwrap_or_else(|poisoned| {
            // The length may be wrong after a panic: drop all maps.
            let mut guard = poisoned.into_inner();
            *guard = FreeList::default();
            kept.clear_poison();
            guard
        })
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("max_len", &self.0.max_len)
            .field("kept_len", &self.kept_len())
            .finish()
    }
}

/// The memory of one frame: that of a source, or mapped pages, huge ones if the system has
/// them.
pub(crate) struct Pages {
    /// `Some` until this value is dropped.
    map: Option<Map>,
    /// The length of the frame in bytes.
    len: usize,
    pool: Option<BufferPool>,
}

impl Pages {
    /// Allocates memory from the source of the pool, or maps new pages, which use memory
    /// only once they are written.
    pub(crate) fn new(len: usize, pool: Option<BufferPool>) -> io::Result<Self> {
        let memory = pool.as_ref().and_then(|pool| pool.0.memory.as_ref());
        let block = memory.and_then(|memory| memory.allocate(len).ok());
        let block = block.filter(|block| (**block).as_ref().len() >= len);
        let map = match block {
            Some(block) => Map::Block(block),
            None => {
                let map = MmapMut::map_anon(len)?;
                // Only a hint: an error means that the pages are filled more slowly.
                #[cfg(target_os = "linux")]
                let _ = map.advise(memmap2::Advice::HugePage);
                Map::Anonymous(map)
            }
        };
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
        let map = self.map.as_ref().map(Map::as_ref);
        &map.expect("taken only when dropped")[..self.len]
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        let map = self.map.as_mut().map(Map::as_mut);
        &mut map.expect("taken only when dropped")[..self.len]
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
            pool.put_back(map);
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
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    fn fresh(pool: &BufferPool, len: usize) -> Pages {
        Pages::new(len, Some(pool.clone())).unwrap()
    }

    #[test]
    fn frames_are_filled_in_memory_of_the_pool() {
        let pool = BufferPool::new(100 << 20);
        let filled = |byte: u8| {
            pool.fill::<io::Error>(5 << 20, |bytes| {
                bytes.fill(byte);
                Ok(())
            })
            .unwrap()
        };
        let frame = filled(1);
        assert!(frame.len() == 5 << 20 && frame.iter().all(|byte| *byte == 1));
        let place = frame.as_ptr();
        drop(frame);
        assert_eq!(filled(2).as_ptr(), place);
        let failed = pool.fill(1 << 20, |_| Err(io::Error::other("no disk")));
        assert_eq!(failed.unwrap_err().to_string(), "no disk");
        assert_eq!(pool.kept_len(), 6 << 20);
    }

    #[test]
    fn the_smallest_fitting_memory_is_reused() {
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
        // A frame that is kept would occupy far too many pages.
        assert!(pool.take(1 << 20).is_none());
        drop(pages);
        // The length of the pool is unchanged.
        assert_eq!(pool.kept_len(), 21 << 20);
        pool.clear();
        assert_eq!(pool.kept_len(), 0);
    }

    #[test]
    fn memory_that_was_not_needed_is_returned() {
        let pool = BufferPool::new(100 << 20);
        drop([fresh(&pool, 4 << 20), fresh(&pool, 5 << 20)]);
        // Both were in use after the pool was made.
        pool.trim();
        assert_eq!(pool.kept_len(), 9 << 20);
        drop(pool.take(5 << 20));
        pool.trim();
        assert_eq!(pool.kept_len(), 5 << 20);
        drop(pool.take(5 << 20));
        pool.trim();
        assert_eq!(pool.kept_len(), 5 << 20);
        pool.trim();
        assert_eq!(pool.kept_len(), 0);
    }

    /// A source of memory for which the test decides whether it is in use.
    #[derive(Default)]
    struct TestMemory {
        is_used: AtomicBool,
        released: AtomicUsize,
        is_exhausted: AtomicBool,
    }

    struct TestBlock(Arc<TestMemory>, Vec<u8>);

    impl FrameMemory for Arc<TestMemory> {
        fn allocate(&self, len: usize) -> io::Result<Box<dyn FrameBlock>> {
            if self.is_exhausted.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            Ok(Box::new(TestBlock(Self::clone(self), vec![1; len])))
        }
    }

    impl FrameBlock for TestBlock {
        fn release(&mut self) {
            self.0.released.fetch_add(1, Ordering::Relaxed);
        }

        fn reserve(&mut self) -> bool {
            !self.0.is_used.load(Ordering::Relaxed)
        }
    }

    impl AsRef<[u8]> for TestBlock {
        fn as_ref(&self) -> &[u8] {
            &self.1
        }
    }

    impl AsMut<[u8]> for TestBlock {
        fn as_mut(&mut self) -> &mut [u8] {
            &mut self.1
        }
    }

    #[test]
    fn memory_of_a_source_is_reused_once_it_is_free() {
        let memory = Arc::<TestMemory>::default();
        let pool = BufferPool::with_memory(100 << 20, Arc::new(Arc::clone(&memory)));
        let pages = fresh(&pool, 4 << 20);
        let place = pages.as_ptr();
        assert_eq!((pages.first(), pages.len()), (Some(&1), 4 << 20));
        drop(pages);
        assert_eq!(memory.released.load(Ordering::Relaxed), 1);
        memory.is_used.store(true, Ordering::Relaxed);
        assert!(pool.take(4 << 20).is_none());
        assert_eq!(pool.kept_len(), 4 << 20);
        memory.is_used.store(false, Ordering::Relaxed);
        let again = pool.take(3 << 20).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (place, 3 << 20));
        memory.is_exhausted.store(true, Ordering::Relaxed);
        let own = fresh(&pool, 4 << 20);
        assert_eq!(own.first(), Some(&0));
        drop((own, again));
        assert_eq!(memory.released.load(Ordering::Relaxed), 2);
        assert_eq!(pool.kept_len(), 8 << 20);
    }

    #[test]
    fn at_most_max_len_is_kept() {
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
