//! How much memory a worker may use, and what it does about it.

use core::time::Duration;
use std::fs;
use std::sync::Arc;
use std::time::Instant;

use super::state::Event;
use super::{Ended, Shared};

/// How long nothing is said about pausing after something was.
const QUIET: Duration = Duration::from_secs(60);

/// When a worker takes data out of memory, and when it takes no tasks any more:
/// fractions of its memory limit, named as in Dask's configuration
/// (`distributed.worker.memory`). A worker without a limit heeds none of them.
///
/// # Common issues
///
/// What counts for the last two is what the process has from the system, and the
/// allocator of glibc keeps some of what is freed. `daskwire worker` therefore
/// starts itself with `GLIBC_TUNABLES=glibc.malloc.mmap_threshold=262144`, as
/// Dask's nanny sets `MALLOC_TRIM_THRESHOLD_` for workers in Python; so should
/// whoever starts a worker with little memory. `glibc.malloc.hugetlb=1`, after a
/// colon, halves the time that data takes to disk and back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryThresholds {
    /// Data that takes more memory goes to disk, what was not used for longest
    /// first; `None` for whatever it takes. Dask's default is 0.6.
    pub target: Option<f64>,
    /// A process that takes more memory, whatever for, has its data go to disk
    /// until it is below the target; and while data alone takes more, and goes to
    /// disk, no task is started that would make more. `None` for whatever it
    /// takes. Dask's default is 0.7.
    pub spill: Option<f64>,
    /// A process that takes more memory starts no tasks and fetches no data;
    /// `None` for whatever it takes. Dask's default is 0.8.
    pub pause: Option<f64>,
    /// How often it is measured what the process takes: each 200 milliseconds in
    /// Dask.
    pub monitor_interval: Duration,
}

/// Dask's.
impl Default for MemoryThresholds {
    fn default() -> Self {
        Self {
            target: Some(0.6),
            spill: Some(0.7),
            pause: Some(0.8),
            monitor_interval: Duration::from_millis(200),
        }
    }
}

impl MemoryThresholds {
    /// Whether anything ever goes to disk.
    pub(super) const fn spills(&self) -> bool {
        self.target.is_some() || self.spill.is_some()
    }

    /// Bytes of memory that data may take.
    pub(super) fn target_len(&self, limit: u64) -> u64 {
        self.target.map_or(u64::MAX, |target| part(limit, target))
    }

    /// Bytes of data with which no task is started that would make more.
    pub(super) fn full_len(&self, limit: u64) -> u64 {
        self.spill.map_or(u64::MAX, |spill| part(limit, spill))
    }

    /// Bytes that are to be freed in a process that takes `len`.
    fn excess(&self, limit: u64, len: u64) -> u64 {
        match self.spill {
            Some(spill) if len > part(limit, spill) => {
                len.saturating_sub(part(limit, self.target.unwrap_or(spill)))
            }
            _ => 0,
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a fraction of a limit is no exact number, and casts saturate"
)]
fn part(limit: u64, fraction: f64) -> u64 {
    (limit as f64 * fraction) as u64
}

/// Bytes of memory that the process has, as Linux says; 0 elsewhere.
pub(super) fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default().saturating_mul(1024)
}

impl Shared {
    /// Measures what the process takes, again and again, and acts accordingly.
    pub(super) async fn monitor(self: Arc<Self>) -> Ended {
        let thresholds = self.thresholds;
        let Some(limit) = self.memory_limit else {
            return core::future::pending().await;
        };
        let mut told_at: Option<Instant> = None;
        loop {
            tokio::time::sleep(thresholds.monitor_interval).await;
            let len = resident();
            self.store.free(thresholds.excess(limit, len));
            if let Some(pause) = thresholds.pause {
                let is_paused = len > part(limit, pause);
                let was_paused = match self.machine().state.status() {
                    "paused" => true,
                    "running" => false,
                    _ => continue,
                };
                if is_paused != was_paused {
                    self.handle([Event::Paused(is_paused)]);
                    // A worker that computes more than its disk takes does this
                    // again and again, and should.
                    if told_at.is_some_and(|at| at.elapsed() < QUIET) {
                        continue;
                    }
                    told_at = Some(Instant::now());
                    self.notice(&format!(
                        "the process takes {} of {} MiB, of which {} MiB are data: {}",
                        len >> 20,
                        limit >> 20,
                        self.store.holdings().memory_len >> 20,
                        if is_paused {
                            "tasks wait until it takes less"
                        } else {
                            "tasks run again"
                        }
                    ));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_freed_is_what_is_above_the_target_once_it_is_above_the_threshold() {
        let dask = MemoryThresholds::default();
        assert_eq!(dask.target_len(1000), 600);
        for (len, excess) in [(0, 0), (650, 0), (700, 0), (701, 101), (2000, 1400)] {
            assert_eq!(dask.excess(1000, len), excess, "{len}");
        }
        let none = MemoryThresholds {
            target: None,
            ..dask
        };
        assert_eq!(none.target_len(1000), u64::MAX);
        assert_eq!(none.excess(1000, 900), 200);
        let neither = MemoryThresholds {
            spill: None,
            ..none
        };
        assert!(none.spills() && !neither.spills());
        assert_eq!(neither.excess(1000, 5000), 0);
    }
}
