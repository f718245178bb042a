//! The memory limit of a worker: spilling, pausing and termination.

use core::time::Duration;
use daskwire_comm::runtime::{self, Instant};
use daskwire_messages::Value;
use daskwire_messages::protocol::{LogEvent, WorkerStatus};
use std::fs;
use std::sync::Arc;

use super::state::WorkerInput;
use super::{Ended, Shared};

/// Minimum interval between two warnings about pausing.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Number of times that the memory is measured per interval while tasks are paused.
const PAUSED_RATE: u32 = 10;

/// Thresholds at which a worker moves data to disk or stops running tasks, as fractions
/// of its memory limit, named as in Dask's configuration
/// (`distributed.worker.memory`). Without a limit, none of them applies.
///
/// # Common issues
///
/// `spill` and `pause` are compared to the memory that the system counts for the
/// process, and glibc's allocator does not return all freed memory to the system. Set
/// `GLIBC_TUNABLES=glibc.malloc.mmap_threshold=262144` for a worker with little
/// memory, as Dask's nanny sets `MALLOC_TRIM_THRESHOLD_` for workers in Python;
/// the `daskwire worker` command does so. Adding `:glibc.malloc.hugetlb=1` halves
/// the time needed to spill data and to read it back.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct MemoryThresholds {
    /// If data uses more memory than this, the least recently used data is moved
    /// to disk; `None` for no limit. Default: 0.6, as in Dask.
    pub target: Option<f64>,
    /// If the process uses more memory than this, data is moved to disk until the
    /// process is below `target`. If data alone uses more and can be moved to disk,
    /// no new tasks are started until it has been. `None` for no limit. Default: 0.7,
    /// as in Dask.
    pub spill: Option<f64>,
    /// If the process uses more memory than this, it starts no tasks and
    /// fetches no data; `None` for no limit. Default: 0.8, as in Dask.
    pub pause: Option<f64>,
    /// If the worker uses more memory than this, it leaves the cluster and ends with
    /// [`Ended::OutOfMemory`](super::Ended::OutOfMemory), so that its process can be
    /// restarted. If it would use less without its Python processes, the Python process
    /// that uses the most memory is ended instead, and its task is run again or fails.
    /// `None` for no limit. Default: `None`; the nannies of Dask's workers use 0.95.
    pub terminate: Option<f64>,
    /// If the data requested from peers uses more memory than this, no more is
    /// requested, unless a single datum is larger; `None` for no limit. Default: 0.1,
    /// as in Dask.
    pub transfer: Option<f64>,
    /// The interval at which the memory of the process is measured; while tasks are paused, it
    /// is measured ten times as often. Default: 200 milliseconds, as in Dask.
    pub monitor_interval: Duration,
}

impl MemoryThresholds {
    daskwire_comm::with_fields! {
        with_target(target: impl Into<Option<f64>>);
        with_spill(spill: impl Into<Option<f64>>);
        with_pause(pause: impl Into<Option<f64>>);
        with_terminate(terminate: impl Into<Option<f64>>);
        with_transfer(transfer: impl Into<Option<f64>>);
        with_monitor_interval(monitor_interval: Duration);
    }
}

/// Dask's defaults.
impl Default for MemoryThresholds {
    fn default() -> Self {
        Self {
            target: Some(0.6),
            spill: Some(0.7),
            pause: Some(0.8),
            terminate: None,
            transfer: Some(0.1),
            monitor_interval: Duration::from_millis(200),
        }
    }
}

impl MemoryThresholds {
    /// Whether data is ever moved to disk.
    pub(super) const fn spills(&self) -> bool {
        self.target.is_some() || self.spill.is_some()
    }

    /// Maximum length of the data in memory, in bytes.
    pub(super) fn target_len(&self, limit: u64) -> u64 {
        self.target.map_or(u64::MAX, |target| part(limit, target))
    }

    /// Maximum length of the data that is requested from peers, in bytes.
    pub(super) fn transfer_len(&self, limit: u64) -> u64 {
        self.transfer
            .map_or(u64::MAX, |transfer| part(limit, transfer))
    }

    /// Length of the data in memory above which no new tasks are started, in bytes. At least
    /// [`target_len`](Self::target_len): up to that, no data is moved to disk, and nothing
    /// would start tasks again.
    pub(super) fn full_len(&self, limit: u64) -> u64 {
        let full_len = self.spill.map_or(u64::MAX, |spill| part(limit, spill));
        full_len.max(self.target_len(limit))
    }

    /// Number of bytes to free in a process that uses `len` bytes.
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
    reason = "a fraction of a limit need not be exact, and casts saturate"
)]
fn part(limit: u64, fraction: f64) -> u64 {
    (limit as f64 * fraction) as u64
}

/// Resident memory of the process in bytes, from Linux; 0 elsewhere.
pub(super) fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default().saturating_mul(1024)
}

/// Memory of a worker, in bytes.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// Memory of this process, with the data and the shared memory.
    own: u64,
    /// Memory of the Python processes, without shared memory.
    processes: u64,
    /// The part of `own` that the next data will use.
    free: u64,
}

impl Memory {
    const fn total(self) -> u64 {
        self.own.saturating_add(self.processes)
    }
}

impl Shared {
    /// Memory of the worker in bytes: of this process and its Python processes.
    pub(super) fn memory_len(&self) -> u64 {
        self.measure().total()
    }

    /// Measures the memory of the worker.
    fn measure(&self) -> Memory {
        let buffers = self.buffers.as_ref();
        let free = buffers.map_or(0, |buffers| buffers.kept_len() as u64);
        #[cfg(target_os = "linux")]
        if let Some(python) = &self.python {
            // Resident memory includes those pages of shared memory that this process has
            // touched. To count them once, anonymous memory and shared memory are added.
            let processes = python.memory();
            let own = daskwire_python::anonymous_memory("self");
            return Memory {
                own: own.saturating_add(processes.shared),
                processes: processes.private,
                free: free.saturating_add(processes.spare),
            };
        }
        Memory {
            own: resident(),
            processes: 0,
            free,
        }
    }

    /// Returns memory that is kept for reuse to the system, and asks idle Python processes to do
    /// the same.
    fn return_memory(&self) {
        if let Some(buffers) = &self.buffers {
            buffers.clear();
        }
        #[cfg(target_os = "linux")]
        if let Some(python) = &self.python {
            python.return_memory();
        }
    }

    /// Ends Python processes to free memory, as [`PythonProcesses::relieve`] does.
    ///
    /// [`PythonProcesses::relieve`]: super::python::PythonProcesses::relieve
    #[cfg(target_os = "linux")]
    async fn relieve(self: &Arc<Self>, is_urgent: bool) -> bool {
        let shared = Arc::clone(self);
        let relieve = move || {
            let python = shared.python.as_ref();
            python.is_some_and(|python| python.relieve(is_urgent))
        };
        // Freeing much memory takes the system time.
        runtime::spawn_blocking(relieve).await.unwrap_or(false)
    }

    #[cfg(not(target_os = "linux"))]
    async fn relieve(self: &Arc<Self>, _: bool) -> bool {
        false
    }

    /// Measures the memory of the process at intervals, and pauses, resumes and
    /// spills.
    pub(super) async fn monitor(self: Arc<Self>) -> Ended {
        let thresholds = self.thresholds;
        let Some(limit) = self.memory_limit else {
            return core::future::pending().await;
        };
        let mut warned_at: Option<Instant> = None;
        // The number of measurements since tasks were paused.
        let mut paused_count = 0_u32;
        loop {
            let interval = thresholds.monitor_interval;
            runtime::sleep(match paused_count {
                0 => interval,
                _ => interval / PAUSED_RATE,
            })
            .await;
            // Data may be freed while memory is measured.
            let data_len = self.store.holdings().memory_len;
            let memory = self.measure();
            let data_len = data_len.max(self.store.holdings().memory_len);
            let (own, len) = (memory.own, memory.total());
            if let Some(terminate) = thresholds.terminate
                && len > part(limit, terminate)
            {
                // If Python tasks use too much memory, only the largest process is ended.
                if own <= part(limit, terminate) && self.relieve(true).await {
                    continue;
                }
                self.out_of_memory(limit, len);
                return Ended::OutOfMemory { len };
            }
            let used_len = len.saturating_sub(memory.free);
            let other_len = used_len.saturating_sub(data_len);
            let excess = thresholds.excess(limit, used_len);
            self.store.set_other_memory(other_len, excess);
            if let Some(pause) = thresholds.pause {
                let is_paused = len > part(limit, pause);
                let was_paused = match self.machine().state.status() {
                    WorkerStatus::Paused => true,
                    WorkerStatus::Running => false,
                    _ => {
                        paused_count = 0;
                        continue;
                    }
                };
                paused_count = if is_paused {
                    paused_count.wrapping_add(1)
                } else {
                    0
                };
                let is_long = paused_count.is_multiple_of(PAUSED_RATE);
                if is_paused && was_paused && is_long && own <= part(limit, pause) {
                    // Spilling does not free memory of Python processes.
                    self.relieve(false).await;
                }
                if is_paused {
                    self.return_memory();
                }
                if is_paused != was_paused {
                    self.handle([WorkerInput::Paused(is_paused)]);
                    // A worker that computes faster than its disk writes pauses
                    // and resumes often; report that once.
                    let now = runtime::now();
                    if warned_at
                        .is_some_and(|at| now.saturating_duration_since(at) < WARNING_INTERVAL)
                    {
                        continue;
                    }
                    warned_at = Some(now);
                    self.notice(&format!(
                        "the process uses {} of {} MiB, {} MiB of them for data: {}",
                        len >> 20,
                        limit >> 20,
                        self.store.holdings().memory_len >> 20,
                        if is_paused {
                            "tasks are paused"
                        } else {
                            "tasks resume"
                        }
                    ));
                }
            }
        }
    }
}

impl Shared {
    /// Reports that the worker ends because of its memory, as Dask's nannies do.
    fn out_of_memory(&self, limit: u64, len: u64) {
        self.notice(&format!(
            "the process takes {} of {} MiB of memory: the worker ends",
            len >> 20,
            limit >> 20
        ));
        if let Some(stream) = &self.machine().stream {
            stream.send(LogEvent {
                topic: "worker-restart-memory".into(),
                msg: Value::dict([
                    ("worker", Value::from(self.address.as_str())),
                    ("pid", Value::from(std::process::id())),
                    ("rss", Value::from(len)),
                ]),
                ..LogEvent::default()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frees_down_to_target_once_above_spill() {
        let dask = MemoryThresholds::default();
        assert_eq!(dask.target_len(1000), 600);
        assert_eq!(dask.transfer_len(1000), 100);
        for (len, excess) in [(0, 0), (650, 0), (700, 0), (701, 101), (2000, 1400)] {
            assert_eq!(dask.excess(1000, len), excess, "{len}");
        }
        let none = dask.with_target(None);
        assert_eq!(dask.full_len(1000), 700);
        // Otherwise nothing would be moved to disk, and no task started.
        assert_eq!(none.full_len(1000), u64::MAX);
        assert_eq!(none.target_len(1000), u64::MAX);
        assert_eq!(none.excess(1000, 900), 200);
        let neither = none.with_spill(None);
        assert!(none.spills() && !neither.spills());
        assert_eq!(neither.excess(1000, 5000), 0);
    }
}
