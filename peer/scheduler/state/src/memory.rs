//! The memory of workers, as far as it will stay in use.

use core::time::Duration;
use std::collections::VecDeque;

use daskwire_messages::Value;

use super::model::Worker;

/// The memory of a worker that is not that of its data.
#[derive(Debug, Default)]
pub(super) struct Unmanaged {
    /// The bytes at times at which less was used than at all later times, oldest first.
    minima: VecDeque<(Duration, u64)>,
    /// The size of the data that is not in memory, in bytes.
    spilled: u64,
    /// The size of that data on disk, in bytes.
    on_disk: u64,
    /// The memory of the process, in bytes.
    process: u64,
}

/// What is measured of the memory of workers: the attributes of Dask's `MemoryState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryMeasure {
    /// The memory of the processes.
    Process,
    /// The data in memory.
    Managed,
    /// The data on disk.
    Spilled,
    /// The data in memory and on disk.
    ManagedTotal,
    /// The memory of the processes without that of data.
    Unmanaged,
    /// The least of it in the last 30 seconds.
    UnmanagedOld,
    /// What else of it is in use.
    UnmanagedRecent,
    /// The data in memory, and what else was in use for 30 seconds.
    Optimistic,
}

impl MemoryMeasure {
    /// All measures. Recordings have their places in it.
    pub(crate) const ALL: [Self; 8] = [
        Self::Process,
        Self::Managed,
        Self::Spilled,
        Self::ManagedTotal,
        Self::Unmanaged,
        Self::UnmanagedOld,
        Self::UnmanagedRecent,
        Self::Optimistic,
    ];

    /// The measure with Dask's name.
    pub fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "process" => Self::Process,
            "managed" => Self::Managed,
            "spilled" => Self::Spilled,
            "managed_total" => Self::ManagedTotal,
            "unmanaged" => Self::Unmanaged,
            "unmanaged_old" => Self::UnmanagedOld,
            "unmanaged_recent" => Self::UnmanagedRecent,
            "optimistic" => Self::Optimistic,
            _ => return None,
        })
    }
}

/// The memory of workers in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    process: u64,
    managed: u64,
    spilled: u64,
    unmanaged_old: u64,
}

impl Memory {
    pub(super) fn of(worker: &Worker) -> Self {
        let Unmanaged {
            minima,
            spilled,
            on_disk,
            process,
        } = &worker.unmanaged;
        let managed = u64::try_from(worker.nbytes).unwrap_or(u64::MAX);
        // The process was measured earlier than the data.
        let managed = managed.saturating_sub(*spilled).min(*process);
        let old = minima.front().map_or(0, |(_, least)| *least);
        Self {
            process: *process,
            managed,
            spilled: *on_disk,
            unmanaged_old: old.min(process - managed),
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        let Self {
            process,
            managed,
            spilled,
            unmanaged_old,
        } = self;
        *process = process.saturating_add(other.process);
        *managed = managed.saturating_add(other.managed);
        *spilled = spilled.saturating_add(other.spilled);
        *unmanaged_old = unmanaged_old.saturating_add(other.unmanaged_old);
    }

    pub(super) const fn measure(&self, measure: MemoryMeasure) -> u64 {
        let unmanaged = self.process.saturating_sub(self.managed);
        match measure {
            MemoryMeasure::Process => self.process,
            MemoryMeasure::Managed => self.managed,
            MemoryMeasure::Spilled => self.spilled,
            MemoryMeasure::ManagedTotal => self.managed.saturating_add(self.spilled),
            MemoryMeasure::Unmanaged => unmanaged,
            MemoryMeasure::UnmanagedOld => self.unmanaged_old,
            MemoryMeasure::UnmanagedRecent => unmanaged.saturating_sub(self.unmanaged_old),
            MemoryMeasure::Optimistic => self.managed.saturating_add(self.unmanaged_old),
        }
    }
}

/// The time in which memory that tasks have used is given back. As Dask's
/// `distributed.worker.memory.recent-to-old-time`.
const RECENT: Duration = Duration::from_secs(30);

/// Maximum number of minima. A worker reports more often only if it sends heartbeats more often than
/// it is asked to.
const MAX_COUNT: usize = 256;

impl Unmanaged {
    /// Reads the metrics of a worker whose data has `managed` bytes.
    pub(super) fn update(&mut self, now: Duration, metrics: &Value, managed: u128) {
        let bytes = |value: Option<&Value>| match value {
            Some(Value::Int(bytes)) => u64::try_from(*bytes).unwrap_or(0),
            _ => 0,
        };
        let spilled = metrics.get("spilled_bytes");
        self.spilled = bytes(spilled.and_then(|spilled| spilled.get("memory")));
        self.on_disk = bytes(spilled.and_then(|spilled| spilled.get("disk")));
        let process = bytes(metrics.get("memory"));
        self.process = process;
        let managed = u64::try_from(managed).unwrap_or(u64::MAX);
        let unmanaged = process.saturating_sub(managed.saturating_sub(self.spilled));
        while self
            .minima
            .back()
            .is_some_and(|(_, least)| *least >= unmanaged)
        {
            self.minima.pop_back();
        }
        self.minima.push_back((now, unmanaged));
        let is_old = |(time, _): &(Duration, u64)| now.saturating_sub(*time) > RECENT;
        while self.minima.len() > MAX_COUNT || self.minima.front().is_some_and(is_old) {
            self.minima.pop_front();
        }
    }
}

impl Worker {
    /// What is measured of the worker's memory, in bytes. The data of a worker that has sent no
    /// metrics yet counts.
    pub(super) fn memory(&self, measure: MemoryMeasure) -> u64 {
        match measure {
            MemoryMeasure::Optimistic => self.optimistic_memory(),
            measure => Memory::of(self).measure(measure),
        }
    }

    /// The bytes of memory that the worker uses for its data, and has used otherwise for 30
    /// seconds. Dask's measure `optimistic`.
    pub(super) fn optimistic_memory(&self) -> u64 {
        let managed = u64::try_from(self.nbytes).unwrap_or(u64::MAX);
        let in_memory = managed.saturating_sub(self.unmanaged.spilled);
        let unmanaged = self.unmanaged.minima.front();
        in_memory.saturating_add(unmanaged.map_or(0, |(_, least)| *least))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_use_of_memory_does_not_count() {
        let mut unmanaged = Unmanaged::default();
        let mut at = |seconds: u64, process: i64| {
            let spilled = Value::dict([("memory", 20)]);
            let metrics =
                Value::dict([("memory", Value::from(process)), ("spilled_bytes", spilled)]);
            unmanaged.update(Duration::from_secs(seconds), &metrics, 120);
            unmanaged.minima.front().map(|(_, least)| *least)
        };
        assert_eq!(at(0, 600), Some(500));
        assert_eq!(at(10, 5000), Some(500));
        assert_eq!(at(20, 700), Some(500));
        assert_eq!(at(31, 900), Some(600));
        assert_eq!(at(32, 50), Some(0));
        for second in 0..10_000 {
            at(33, second);
        }
        assert!(unmanaged.minima.len() <= MAX_COUNT);
    }
}
