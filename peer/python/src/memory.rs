//! Memory that a worker shares with its Python processes.
//!
//! Long frames are stored in anonymous files in memory (memfd): the system frees them
//! with the last descriptor and mapping, however the processes end. The files are
//! sealed: no process can change their length, or write to them.
//!
//! The exception is the process that has created a file: it keeps a writable mapping, and
//! reuses the file for a later result, since new memory costs more than the copy. It does so
//! only while no other process has the file open or mapped. The system tells (by granting a
//! lease), so this does not rely on messages between the processes. The worker does the same
//! with files that it receives frames into ([`Block`]).

use core::fmt;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use bytes::Bytes;
use daskwire_comm::{FrameBlock, FrameMemory};
use daskwire_messages::value::Serialized;
use daskwire_rpc::panic_flag::lock_counter;
use memmap2::{Mmap, MmapMut};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::process::Resource;

/// Minimum length of a frame in shared memory, in bytes.
pub(crate) const LONG: usize = 64 << 10;

/// Maximum number of regions. Linux limits a process to 65,530 mappings by default.
const MAX_REGIONS: u64 = 30_000;

/// Length of the sub-frames that Dask splits long frames into (`distributed.comm.shard`).
const SHARD: usize = 64 << 20;

/// All regions of shared memory that a worker has mapped.
#[derive(Debug)]
pub struct SharedMemory {
    /// The regions, by the address of the mapping.
    regions: Mutex<BTreeMap<usize, Weak<Region>>>,
    /// The number of blocks, each of which has a descriptor beside that of its region.
    block_count: AtomicUsize,
    /// Maximum number of descriptors of regions and blocks.
    max_count: usize,
    /// Maximum length of a block in bytes.
    max_block_len: u64,
    /// Maximum number of regions in a message.
    pub(crate) max_sent_count: usize,
    len: AtomicU64,
}

/// A file in memory that other processes can only read.
pub(crate) struct Region {
    file: File,
    len: usize,
    mapping: Mapping,
}

/// The owner of the mapping of a region.
enum Mapping {
    /// The region itself.
    Adopted(Adopted),
    /// A [`Block`] with one frame.
    Block,
}

/// The mapping of a file that was filled before.
struct Adopted {
    map: Mmap,
    memory: Arc<SharedMemory>,
    /// Total length of the mapped files that the process which has created this one can reuse.
    lent: Option<Arc<AtomicU64>>,
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a region of {} bytes", self.len)
    }
}

/// The owner of frames in a region.
struct Owner(Arc<Region>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        match &self.0.mapping {
            Mapping::Adopted(adopted) => &adopted.map,
            Mapping::Block => &[],
        }
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        // The file is still mapped, so the entry at this address is that of this region.
        let address = self.map.as_ptr() as usize;
        self.memory.lock().remove(&address);
        let len = self.map.len() as u64;
        self.memory.len.fetch_sub(len, Ordering::Relaxed);
        if let Some(lent) = &self.lent {
            lent.fetch_sub(len, Ordering::Relaxed);
        }
    }
}

impl Region {
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }
}

/// A file that a frame is received into, and that processes can map, so that received
/// frames are not copied for them.
struct Block {
    /// The only descriptor with which the file was opened for writing.
    file: File,
    map: MmapMut,
    /// The region, while the block contains a frame. It holds the file open for reading.
    region: Option<Arc<Region>>,
    memory: Arc<SharedMemory>,
}

/// The allocator of blocks.
struct Blocks(Arc<SharedMemory>);

impl FrameMemory for Blocks {
    fn allocate(&self, len: usize) -> io::Result<Box<dyn FrameBlock>> {
        let memory = &self.0;
        if memory.is_full() || len as u64 > memory.max_block_len {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let made = File::from(rustix::fs::memfd_create("daskwire", flags)?);
        made.set_len(len as u64)?;
        // For leases, the system counts how often a file was opened by its path.
        let file = reopen(&made, OpenOptions::new().read(true).write(true))?;
        drop(made);
        let map = map_for_writing(&file)?;
        memory.len.fetch_add(len as u64, Ordering::Relaxed);
        memory.block_count.fetch_add(1, Ordering::Relaxed);
        let mut block = Block {
            file,
            map,
            region: None,
            memory: Arc::clone(memory),
        };
        // With this seal, only the existing mapping can be written to.
        let seals = lent_seals() | SealFlags::FUTURE_WRITE;
        rustix::fs::fcntl_add_seals(&block.file, seals)?;
        // The reserved region is a second user. If a lease is granted nevertheless, the system
        // does not tell whether others use the file.
        if !block.reserve() || is_unshared(&block.file) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Box::new(block))
    }
}

impl FrameBlock for Block {
    fn release(&mut self) {
        // Remove the region before its address can be reused for other memory.
        self.memory.lock().remove(&(self.map.as_ptr() as usize));
        self.region = None;
    }

    fn reserve(&mut self) -> bool {
        if !is_unshared(&self.file) {
            return false;
        }
        let Ok(file) = reopen(&self.file, OpenOptions::new().read(true)) else {
            return false;
        };
        let region = Arc::new(Region {
            file,
            len: self.map.len(),
            mapping: Mapping::Block,
        });
        let address = self.map.as_ptr() as usize;
        self.memory.lock().insert(address, Arc::downgrade(&region));
        self.region = Some(region);
        true
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl AsMut<[u8]> for Block {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.release();
        let len = self.map.len() as u64;
        self.memory.len.fetch_sub(len, Ordering::Relaxed);
        self.memory.block_count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The maximum length of a block on this system.
fn max_block_len() -> u64 {
    let overcommit = fs::read_to_string("/proc/sys/vm/overcommit_memory");
    if overcommit.is_ok_and(|mode| mode.trim() == "2") {
        // Memory is committed when a block is written to. If there is none, the system ends
        // the process, while an allocation on the heap reports it.
        return 0;
    }
    // The system ends a process that makes a longer file.
    let file_len = rustix::process::getrlimit(Resource::Fsize);
    file_len.current.unwrap_or(u64::MAX)
}

/// Opens a file in memory anew.
fn reopen(file: &File, options: &OpenOptions) -> io::Result<File> {
    options.open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Whether the file that `file` has opened for writing has no other users: the system grants
/// a lease for writing only then. Any other opening of the file counts, in any process, also
/// while it is only mapped, or in a message that is not received yet. Duplicates of this
/// descriptor do not count.
#[expect(unsafe_code, reason = "no crate has leases")]
fn is_unshared(file: &File) -> bool {
    /// `F_SETSIG` of Linux, which the crate libc does not have.
    const F_SETSIG: libc::c_int = 10;
    let control = |operation: libc::c_int, argument: libc::c_int| {
        // SAFETY: the descriptor is open, and the arguments of these operations are numbers.
        unsafe { libc::fcntl(file.as_raw_fd(), operation, argument) == 0 }
    };
    // Another program may open the file while there is a lease. The signal for this would end
    // the process; this one is ignored by default.
    let is_granted = control(F_SETSIG, libc::SIGURG) && control(libc::F_SETLEASE, libc::F_WRLCK);
    if is_granted {
        control(libc::F_SETLEASE, libc::F_UNLCK);
    }
    is_granted
}

/// Maps a new, private file for writing.
#[expect(
    unsafe_code,
    reason = "files can change while they are mapped; not this one"
)]
fn map_for_writing(file: &File) -> io::Result<MmapMut> {
    // SAFETY: no other descriptor exists yet. Later ones are for reading, and with the seals of
    // the file, the system refuses to change its length or to write to it in any other way.
    unsafe { MmapMut::map_mut(file) }
}

/// No regions, with limits that follow from those of this process.
impl Default for SharedMemory {
    fn default() -> Self {
        let limit = rustix::process::getrlimit(Resource::Nofile);
        // Most others are for connections and files.
        let own_quarter = limit.current.unwrap_or(u64::MAX) / 4;
        // A Python process raises its limit to the maximum. Before Python 3.13, it needs two
        // descriptors per region, and it keeps regions of earlier messages.
        let quarter = limit.maximum.unwrap_or(u64::MAX) / 4;
        Self {
            regions: Mutex::default(),
            block_count: AtomicUsize::new(0),
            max_block_len: max_block_len(),
            max_count: usize::try_from(own_quarter.min(MAX_REGIONS)).unwrap_or(usize::MAX),
            max_sent_count: usize::try_from(quarter.min(MAX_REGIONS)).unwrap_or(usize::MAX),
            len: AtomicU64::new(0),
        }
    }
}

impl SharedMemory {
    /// Returns an allocator for received frames, which processes can map.
    pub fn for_frames(self: &Arc<Self>) -> Arc<dyn FrameMemory> {
        Arc::new(Blocks(Arc::clone(self)))
    }

    /// Length of all regions in bytes, including blocks that are kept for reuse.
    pub fn total_len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Maps a file that a process has filled. If there are too many regions, its
    /// contents are copied. `lent` counts the bytes of mapped files that the process can
    /// reuse once they are dropped.
    ///
    /// # Errors
    ///
    /// If the file is not sealed, or cannot be mapped.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        file: OwnedFd,
        lent: Option<&Arc<AtomicU64>>,
    ) -> io::Result<Bytes> {
        let file = File::from(file);
        let (map, is_lent) = map_sealed(&file)?;
        if self.is_full() {
            return Ok(Bytes::copy_from_slice(&map));
        }
        let (address, len) = (map.as_ptr() as usize, map.len());
        let lent = lent.filter(|_| is_lent).cloned();
        self.len.fetch_add(len as u64, Ordering::Relaxed);
        if let Some(lent) = &lent {
            lent.fetch_add(len as u64, Ordering::Relaxed);
        }
        let region = Arc::new(Region {
            file,
            len,
            mapping: Mapping::Adopted(Adopted {
                map,
                memory: Arc::clone(self),
                lent,
            }),
        });
        self.lock().insert(address, Arc::downgrade(&region));
        Ok(Bytes::from_owner(Owner(region)))
    }

    /// Copies the long frames of a payload to shared memory. Returns `None` if they
    /// are in shared memory already, if there are none, or if no shared memory is available.
    pub fn share(self: &Arc<Self>, serialized: &Serialized) -> Option<Serialized> {
        let frames = serialized.frames();
        // Python copies a frame that was split, unless its sub-frames are contiguous.
        let is_split = frames.len() > 1 && frames.iter().any(|frame| frame.len() >= SHARD);
        let is_apart = |region: &Region| matches!(region.mapping, Mapping::Block);
        let needs_copy = |frame: &Bytes| {
            let found = || self.find(frame);
            frame.len() >= LONG && found().is_none_or(|(region, _)| is_split && is_apart(&region))
        };
        if self.is_full() || !frames.iter().any(needs_copy) {
            return None;
        }
        // The sub-frames of a split frame become contiguous: the length of all but the last is
        // a multiple of the alignment.
        let (file, places) = copy(frames.iter().map(|frame| (frame, needs_copy(frame)))).ok()?;
        let region = self.adopt(file, None).ok()?;
        let mut places = places.into_iter();
        Some(serialized.map_frames(|frame| {
            let place = places.next().flatten();
            let copied = place.and_then(|start| region.get(start..start.checked_add(frame.len())?));
            copied.map_or_else(|| frame.clone(), |copied| region.slice_ref(copied))
        }))
    }

    /// Returns the region that contains a frame, and its offset there.
    pub(crate) fn find(&self, frame: &[u8]) -> Option<(Arc<Region>, u64)> {
        let address = frame.as_ptr() as usize;
        let regions = self.lock();
        let (start, region) = regions.range(..=address).next_back()?;
        let (start, region) = (*start, region.upgrade());
        drop(regions);
        let region = region?;
        let offset = address.checked_sub(start)?;
        let is_within = offset.checked_add(frame.len())? <= region.len;
        is_within.then_some((region, offset as u64))
    }

    fn is_full(&self) -> bool {
        self.lock().len() + self.block_count.load(Ordering::Relaxed) >= self.max_count
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Weak<Region>>> {
        // Poisoning is ignored: a missing or stale entry costs no more than a copy.
        lock_counter(&self.regions)
    }
}

/// Copies the frames that are marked with `true` into a new sealed file, and returns the
/// offset of each there, or `None` for a frame that is not copied.
pub(crate) fn copy<'f>(
    frames: impl Iterator<Item = (&'f Bytes, bool)>,
) -> io::Result<(OwnedFd, Vec<Option<usize>>)> {
    const ALIGNMENT: usize = 64;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create("daskwire", flags)?);
    let mut end = 0_usize;
    let mut places = Vec::new();
    for (frame, is_copied) in frames {
        places.push(is_copied.then_some(end));
        if is_copied {
            file.write_all_at(frame, end as u64)?;
            end = end.saturating_add(frame.len().next_multiple_of(ALIGNMENT));
        }
    }
    file.set_len(end as u64)?;
    rustix::fs::fcntl_add_seals(&file, seals() | SealFlags::SEAL)?;
    Ok((file.into(), places))
}

/// Seals of a file that no process can write to.
const fn seals() -> SealFlags {
    lent_seals().union(SealFlags::WRITE)
}

/// Seals of a file that its creator can still write to. `FUTURE_WRITE` is added to them.
const fn lent_seals() -> SealFlags {
    SealFlags::SHRINK.union(SealFlags::GROW)
}

/// Maps a file that does not change while it is mapped. Also returns whether its creator
/// may write to it later.
#[expect(
    unsafe_code,
    reason = "files can change while they are mapped; not this one"
)]
fn map_sealed(file: &File) -> io::Result<(Mmap, bool)> {
    let found = rustix::fs::fcntl_get_seals(file)?;
    let is_sealed = found.contains(seals());
    let is_lent = !is_sealed
        && found.contains(lent_seals() | SealFlags::FUTURE_WRITE)
        && rustix::fs::fcntl_getfl(file)?.intersection(OFlags::RWMODE) == OFlags::RDONLY;
    if !is_lent && !is_sealed {
        let message = "shared memory that is not sealed";
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    // SAFETY: seals cannot be removed, and with these the system refuses to change the
    // file's length, and refuses new ways to write to it. With the seal `WRITE`, no writable
    // mapping exists. Otherwise the process that has created the file has one, to which
    // `worker.py` writes only after the system has granted that process a lease. The system
    // does so only when `file` and this mapping are gone, since `file` was opened for reading.
    // The mapping is not write-protected until then, which would take longer than the copy: a
    // task that writes to arbitrary addresses of its process could change it. This also holds
    // for values of other tasks in the same process, and in a worker of Dask.
    let map = unsafe { Mmap::map(file) }?;
    Ok((map, is_lent))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;
    use daskwire_messages::Value;

    fn payload(len: usize) -> Serialized {
        let data: Vec<u8> = (0..len).map(|index| index.to_le_bytes()[0]).collect();
        Serialized::of(&Value::bytes(data)).expect("bytes")
    }

    #[test]
    fn long_frames_are_copied_once_and_found_again() {
        let memory = Arc::new(SharedMemory::default());
        assert!(memory.share(&payload(LONG - 1)).is_none());
        let before = payload(LONG + 1);
        let shared = memory.share(&before).expect("it is long");
        assert_eq!(shared, before);
        assert!(memory.share(&shared).is_none());
        let frame = &shared.frames()[0];
        let (region, offset) = memory.find(&frame[5..]).expect("it is shared");
        assert_eq!((offset, region.len), (5, LONG + 64));
        assert!(memory.find(&before.frames()[0]).is_none());
        assert_eq!(memory.total_len(), LONG as u64 + 64);
        drop(region);
        drop(shared);
        assert_eq!((memory.total_len(), memory.lock().len()), (0, 0));
    }

    #[test]
    fn only_sealed_files_are_mapped() {
        let memory = Arc::new(SharedMemory::default());
        let file = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("memory");
        let file = File::from(file);
        file.write_all_at(b"abc", 0).expect("memory");
        let copy = file.try_clone().expect("a descriptor");
        let refused = memory.adopt(copy.into(), None).expect_err("it can change");
        assert_eq!(refused.to_string(), "shared memory that is not sealed");
        rustix::fs::fcntl_add_seals(&file, seals()).expect("seals");
        assert!(file.write_all_at(b"d", 0).is_err());
        assert_eq!(
            &memory.adopt(file.into(), None).expect("sealed")[..],
            b"abc"
        );
    }

    #[test]
    fn files_that_only_their_maker_can_write_to_are_counted() {
        let memory = Arc::new(SharedMemory::default());
        let file = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("memory");
        let file = File::from(file);
        file.write_all_at(b"abc", 0).expect("memory");
        let lent = Arc::new(AtomicU64::new(0));
        let open = |file: &File| File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE).expect("a seal");
        let reader = open(&file).expect("it exists");
        assert!(memory.adopt(reader.into(), Some(&lent)).is_err());
        rustix::fs::fcntl_add_seals(&file, lent_seals()).expect("seals");
        // A copy of the writable descriptor is not counted for leases.
        let copy = file.try_clone().expect("a descriptor");
        assert!(memory.adopt(copy.into(), Some(&lent)).is_err());
        let reader = open(&file).expect("it exists");
        let adopted = memory.adopt(reader.into(), Some(&lent)).expect("sealed");
        assert_eq!((&adopted[..], memory.total_len()), (&b"abc"[..], 3));
        assert_eq!(lent.load(Ordering::Relaxed), 3);
        drop(adopted);
        assert_eq!((memory.total_len(), lent.load(Ordering::Relaxed)), (0, 0));
    }

    /// A frame of `len` bytes in a new block.
    fn received(memory: &Arc<SharedMemory>, len: usize) -> Box<dyn FrameBlock> {
        let mut block = memory.for_frames().allocate(len).expect("memory");
        (*block).as_mut().fill(7);
        block
    }

    #[test]
    fn received_frames_are_shared_without_a_copy() {
        let memory = Arc::new(SharedMemory::default());
        let mut block = received(&memory, LONG);
        let place = (*block).as_ref().as_ptr();
        let (region, offset) = memory.find(&(*block).as_ref()[3..]).expect("it is shared");
        assert_eq!(
            (offset, region.len, memory.total_len()),
            (3, LONG, LONG as u64)
        );
        let theirs = region.file().try_clone().expect("a descriptor");
        let process = Arc::new(SharedMemory::default());
        let mapping = process.adopt(theirs.into(), None).expect("it is sealed");
        drop(region);
        block.release();
        assert!(memory.find((*block).as_ref()).is_none());
        assert!(!block.reserve(), "a process has it");
        assert_eq!(mapping.first(), Some(&7));
        drop(mapping);
        assert!(block.reserve(), "only this process has it");
        assert_eq!((*block).as_ref().as_ptr(), place);
        assert!(memory.find((*block).as_ref()).is_some());
        drop(block);
        assert_eq!((memory.total_len(), memory.lock().len()), (0, 0));
    }

    #[test]
    fn blocks_are_limited_by_descriptors_and_by_the_length_of_files() {
        let memory = Arc::new(SharedMemory {
            max_count: 4,
            max_block_len: LONG as u64,
            ..SharedMemory::default()
        });
        let frames = memory.for_frames();
        assert!(frames.allocate(LONG + 1).is_err());
        // Each has two descriptors, and a free one has one.
        let mut blocks = [received(&memory, LONG), received(&memory, LONG)];
        assert!(frames.allocate(LONG).is_err());
        blocks[0].release();
        assert!(frames.allocate(LONG).is_ok());
        drop(blocks);
        assert_eq!(memory.block_count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn others_cannot_write_to_received_frames() {
        let memory = Arc::new(SharedMemory::default());
        let block = received(&memory, LONG);
        let (region, _) = memory.find((*block).as_ref()).expect("it is shared");
        assert!(region.file().write_all_at(b"abc", 0).is_err());
        let again = reopen(region.file(), OpenOptions::new().read(true).write(true));
        let again = again.expect("the same user");
        assert!(again.write_all_at(b"abc", 0).is_err());
        assert!(again.set_len(0).is_err());
        assert!(map_for_writing(&again).is_err());
        assert!((*block).as_ref().iter().all(|byte| *byte == 7));
    }

    #[test]
    fn parts_of_a_received_frame_become_contiguous() {
        let memory = Arc::new(SharedMemory::default());
        let parts = [SHARD, LONG].map(|len| Bytes::from_owner(Frame(received(&memory, len))));
        let body = Serialized::default().message()[0].clone();
        let message = [body, Bytes::new()].into_iter().chain(parts).collect();
        let payload = Serialized::of_message(message).expect("a payload");
        let shared = memory.share(&payload).expect("two parts");
        let [first, second] = shared.frames() else {
            panic!("two parts");
        };
        assert_eq!(first.as_ptr_range().end, second.as_ptr());
    }

    /// A frame in a block.
    struct Frame(Box<dyn FrameBlock>);

    impl AsRef<[u8]> for Frame {
        fn as_ref(&self) -> &[u8] {
            (*self.0).as_ref()
        }
    }

    #[test]
    fn regions_are_limited() {
        let memory = Arc::new(SharedMemory {
            max_count: 1,
            ..SharedMemory::default()
        });
        let first = memory.share(&payload(LONG)).expect("it is long");
        assert!(memory.share(&payload(LONG)).is_none());
        let flags = MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("test", flags).expect("memory"));
        file.write_all_at(b"abc", 0).expect("memory");
        rustix::fs::fcntl_add_seals(&file, seals()).expect("seals");
        let copied = memory.adopt(file.into(), None).expect("sealed");
        assert_eq!(&copied[..], b"abc");
        assert!(memory.for_frames().allocate(LONG).is_err());
        assert!(memory.find(&copied).is_none() && memory.lock().len() == 1);
        drop(first);
        assert!(memory.share(&payload(LONG)).is_some());
    }
}
