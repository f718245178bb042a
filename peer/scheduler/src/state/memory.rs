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
        self.spilled = bytes(
            metrics
                .get("spilled_bytes")
                .and_then(|spilled| spilled.get("memory")),
        );
        let process = bytes(metrics.get("memory"));
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
