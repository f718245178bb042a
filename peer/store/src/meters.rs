//! Counters of a store.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;

/// Counters of a store's work on its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCounters {
    /// Values deserialized.
    pub deserialized: Tally,
    /// Values serialized.
    pub serialized: Tally,
    /// Number of bytes that deserializing copied, because they were compressed or split
    /// into frames.
    pub copied_len: u64,
    /// Data written to disk; lengths are file lengths.
    pub spilled: Tally,
    /// Data read from disk; lengths are file lengths.
    pub unspilled: Tally,
    /// Data dropped from memory without writing, because its file existed.
    pub dropped: Tally,
    /// Number of failed writes; the data stayed in memory.
    pub spill_failure_count: u64,
    /// Number of data lost because their files were damaged or missing.
    pub lost_count: u64,
}

/// Number, size and duration of operations of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Number of operations.
    pub count: u64,
    /// Serialized length in bytes.
    pub len: u64,
    /// Time spent.
    pub time: Duration,
}

/// The amount of data in a store, by location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holdings {
    /// Memory that data uses, in any form, in bytes.
    pub memory_len: u64,
    /// Size of the data that is only on disk, in bytes as Dask counts them.
    pub spilled_len: u64,
    /// Length of the files of the data that is only on disk, in bytes.
    pub disk_len: u64,
    /// Number of data that are only on disk.
    pub disk_count: u64,
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
