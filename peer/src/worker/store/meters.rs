//! What a store counts.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;

/// What a store has done with its data so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCounters {
    /// Values that were made of bytes.
    pub deserialized: Tally,
    /// Bytes that were made of values.
    pub serialized: Tally,
    /// Bytes that deserializing had to copy, because they were compressed or
    /// came in pieces.
    pub copied_len: u64,
    /// What was written to disk; lengths are those of files.
    pub spilled: Tally,
    /// What was read from disk; lengths are those of files.
    pub unspilled: Tally,
    /// What went out of memory without being written, as its file was there.
    pub dropped: Tally,
    /// How often writing to disk failed; the data stayed in memory.
    pub spill_failure_count: u64,
    /// Data whose file was damaged or gone when it was needed.
    pub lost_count: u64,
}

/// How often something was done, to how much, and in what time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// How often.
    pub count: u64,
    /// Bytes, as they are serialized.
    pub len: u64,
    /// Time spent.
    pub time: Duration,
}

/// What a store holds now, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holdings {
    /// Bytes of memory that data takes, whatever form it has there.
    pub memory_len: u64,
    /// Bytes that data counts for which is on disk and not in memory.
    pub spilled_len: u64,
    /// Bytes of the files of this data.
    pub disk_len: u64,
}

#[derive(Debug, Default)]
pub(super) struct Meter {
    count: AtomicU64,
    len: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Meter {
    pub(super) fn add(&self, len: u64, since: Instant) {
        let time = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.len.fetch_add(len, Ordering::Relaxed);
        self.nanoseconds.fetch_add(time, Ordering::Relaxed);
    }

    fn read(&self) -> Tally {
        Tally {
            count: self.count.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Meters {
    pub(super) deserialized: Meter,
    pub(super) serialized: Meter,
    pub(super) copied_len: AtomicU64,
    pub(super) spilled: Meter,
    pub(super) unspilled: Meter,
    pub(super) dropped: Meter,
    pub(super) spill_failure_count: AtomicU64,
    pub(super) lost_count: AtomicU64,
}

impl Meters {
    pub(super) fn read(&self) -> StoreCounters {
        StoreCounters {
            deserialized: self.deserialized.read(),
            serialized: self.serialized.read(),
            copied_len: self.copied_len.load(Ordering::Relaxed),
            spilled: self.spilled.read(),
            unspilled: self.unspilled.read(),
            dropped: self.dropped.read(),
            spill_failure_count: self.spill_failure_count.load(Ordering::Relaxed),
            lost_count: self.lost_count.load(Ordering::Relaxed),
        }
    }
}
