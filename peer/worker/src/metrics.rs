//! Metrics that a worker reports to its scheduler.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::BTreeMap;
use std::fs;
use std::process;
use std::sync::{Mutex, MutexGuard};

use daskwire::msgpack::Reader;
use daskwire_comm::runtime::{self, Instant};
use daskwire_messages::dialect::SpillMetric;
use daskwire_messages::protocol::StartStop;
use daskwire_messages::{Key, Value};
use daskwire_rpc::panic_flag::lock_counter;

use super::exception::class_of;
#[cfg(target_os = "linux")]
use super::python::PythonProcesses;
use super::state::Description;
use super::state::startstop;
use super::{Shared, StoreCounters, Tally, now};
use daskwire_store::Datum;
use daskwire_store::{Done, Step};

/// Describes data for the state machine, without deserializing it.
pub(super) fn describe_all(data: &[(Key, Datum)]) -> Vec<(Key, Description)> {
    let described = data
        .iter()
        .map(|(key, datum)| (key.clone(), describe(datum)));
    described.collect()
}

/// Describes a datum without deserializing it.
pub(super) fn describe(datum: &Datum) -> Description {
    let nbytes = datum.nbytes();
    if let Some(value) = datum.value()
        && !matches!(*value, Value::Serialized(_))
    {
        return Description {
            nbytes,
            class: class_of(&value),
            typename: value.type_name().to_owned().into(),
        };
    }
    let header = datum.header().unwrap_or_default();
    let find = |name: &str| {
        let mut reader = Reader::new(&header);
        matches!(reader.find(name), Ok(true)).then_some(reader)
    };
    // For collections this is a string, not the pickle of a class.
    let class = find("type-serialized").and_then(|mut reader| reader.bin().ok());
    let typename = find("type").and_then(|mut reader| reader.str().ok());
    Description {
        nbytes,
        class: class.map(bytes::Bytes::copy_from_slice),
        typename: match typename {
            Some(name) => name.to_str().to_owned().into(),
            None => "object".into(),
        },
    }
}

/// Counters of the tasks whose keys share a prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskCounters {
    /// Number of tasks that ran, including failed ones.
    pub count: u64,
    /// Total run time of the functions.
    pub time: Duration,
    /// Processor time of the threads that ran the functions; for functions in Rust, with the
    /// steps below. Only on Linux.
    pub processor_time: Duration,
    /// Inputs that were read from disk; lengths are file lengths.
    pub unspilled: Tally,
    /// Inputs that were deserialized.
    pub deserialized: Tally,
    /// Data that was serialized.
    pub serialized: Tally,
}

/// Maximum number of prefixes with their own counters. A client that uses a new
/// prefix for each task would otherwise fill the memory of its workers and of the
/// scheduler.
const MAX_PREFIXES: usize = 500;

/// The name under which tasks with all other prefixes are counted.
const OTHER: &str = "other";

/// Task counters by key prefix.
#[derive(Debug, Default)]
pub(super) struct TasksDone(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    total: TaskCounters,
    by_prefix: BTreeMap<String, Progress>,
    /// Prefixes whose counters have changed since the last heartbeat.
    changed: Vec<String>,
}

#[derive(Debug, Default)]
struct Progress {
    now: TaskCounters,
    /// The counters at the last heartbeat.
    before: TaskCounters,
}

impl TaskCounters {
    /// Counts a task whose function took `times`: by the clock, and on a processor.
    fn add(&mut self, times: (Duration, Duration), steps: &[Done]) {
        self.count += 1;
        self.time = self.time.saturating_add(times.0);
        self.processor_time = self.processor_time.saturating_add(times.1);
        for done in steps {
            let tally = match done.step {
                Step::DiskRead => &mut self.unspilled,
                Step::Deserialize => &mut self.deserialized,
                Step::Serialize => &mut self.serialized,
            };
            tally.count += 1;
            tally.len = tally.len.saturating_add(done.len);
            tally.time = tally.time.saturating_add(done.time());
        }
    }
}

impl TasksDone {
    /// Counts a task whose function took `times`: by the clock, and on a processor.
    pub(super) fn add(&self, prefix: &str, times: (Duration, Duration), steps: &[Done]) {
        let mut done = self.lock();
        let Counted {
            total,
            by_prefix,
            changed,
        } = &mut *done;
        total.add(times, steps);
        let is_full = by_prefix.len() >= MAX_PREFIXES;
        let prefix = match by_prefix.contains_key(prefix) {
            false if is_full => OTHER,
            _ => prefix,
        };
        if !by_prefix.contains_key(prefix) {
            by_prefix.insert(prefix.to_owned(), Progress::default());
        }
        if let Some(Progress { now, before }) = by_prefix.get_mut(prefix) {
            if now == before {
                changed.push(prefix.to_owned());
            }
            now.add(times, steps);
        }
    }

    pub(super) fn total(&self) -> TaskCounters {
        self.lock().total
    }

    pub(super) fn counters(&self) -> BTreeMap<String, TaskCounters> {
        let done = self.lock();
        let counters = done.by_prefix.iter();
        let counters = counters.map(|(prefix, progress)| (prefix.clone(), progress.now));
        counters.collect()
    }

    /// Returns the previous and current counters of the prefixes that changed since the last
    /// call.
    fn since(&self) -> Vec<(String, (TaskCounters, TaskCounters))> {
        let mut done = self.lock();
        let Counted {
            by_prefix, changed, ..
        } = &mut *done;
        let changed = core::mem::take(changed).into_iter();
        changed
            .filter_map(|prefix| {
                let progress = by_prefix.get_mut(&prefix)?;
                let before = core::mem::replace(&mut progress.before, progress.now);
                Some((prefix, (before, progress.now)))
            })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        lock_counter(&self.0)
    }
}

/// Dask's fine performance metrics: the work done since the last heartbeat, by
/// context, activity and unit.
#[derive(Default)]
struct Digests(Vec<(Value, Value)>);

impl Digests {
    fn put(&mut self, names: &[&str], unit: &str, value: impl Into<Value>) {
        let names = names.iter().copied().chain([unit]);
        self.0.push((Value::list(names), value.into()));
    }

    fn seconds(&mut self, names: &[&str], time: Duration) {
        if time != Duration::ZERO {
            self.put(names, "seconds", time.as_secs_f64());
        }
    }

    /// Adds the difference between two tallies.
    fn add(&mut self, names: &[&str], (before, now): (Tally, Tally)) {
        if now == before {
            return;
        }
        self.seconds(names, now.time.saturating_sub(before.time));
        self.put(names, "count", now.count.saturating_sub(before.count));
        self.put(names, "bytes", now.len.saturating_sub(before.len));
    }
}

/// Minimum duration of a step that is reported with its task, in seconds.
const MIN_REPORTED: f64 = 0.001;

/// The steps of a task in the form that is reported to the scheduler.
pub(super) fn to_startstops(steps: &[Done]) -> Vec<StartStop> {
    let startstops = steps.iter().filter_map(|done| {
        let action = match done.step {
            Step::DiskRead => "disk-read",
            Step::Deserialize if done.stop - done.start >= MIN_REPORTED => "deserialize",
            // Dask's dashboard fails for actions that it does not know.
            Step::Deserialize | Step::Serialize => return None,
        };
        Some(startstop(action, done.start, done.stop, None))
    });
    startstops.collect()
}

/// The time at which the function of a task that ran in `times` was called. As in Dask,
/// reading the inputs from disk and deserializing them does not count as computation, by
/// which schedulers estimate the durations of tasks.
pub(super) fn start_of_function(times: (Duration, Duration), steps: &[Done]) -> Duration {
    let (start, stop) = times;
    let reading = steps.iter().filter(|done| done.step != Step::Serialize);
    let reading: Duration = reading.map(Done::time).sum();
    start.saturating_add(reading).min(stop)
}

/// Counters of transfers between a worker and its peers. They count data only,
/// not the rest of the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferCounters {
    /// Number of requests for data sent to peers.
    pub received_count: u64,
    /// Bytes of data received.
    pub received_len: u64,
    /// Number of requests for data answered.
    pub sent_count: u64,
    /// Bytes of data sent.
    pub sent_len: u64,
    /// Number of peers that are currently asked for data.
    pub receiving_count: u64,
    /// Bytes of the data that is currently requested.
    pub receiving_len: u64,
    /// Number of requests for data that are currently answered.
    pub sending_count: u64,
    /// Bytes of the data that is being sent.
    pub sending_len: u64,
}

/// Counters and rates of transfers.
#[derive(Debug)]
pub(super) struct Transfers {
    received_len: AtomicU64,
    sent_len: AtomicU64,
    incoming_total: AtomicU64,
    outgoing_count: AtomicU64,
    outgoing_total: AtomicU64,
    outgoing_len: AtomicU64,
    /// Total time of the requests for data, and of the replies to those of peers, in
    /// nanoseconds.
    incoming_time: AtomicU64,
    outgoing_time: AtomicU64,
    /// Latency of the scheduler in nanoseconds.
    latency: AtomicU64,
    rates: Mutex<Rates>,
}

#[derive(Debug)]
struct Rates {
    /// Recent bandwidth, in bytes per second.
    bandwidth: f64,
    /// Sum and number of the rates measured for each peer since the last
    /// heartbeat.
    peers: BTreeMap<String, (f64, u64)>,
    before: Measurements,
}

/// Measurements at the last heartbeat.
#[derive(Debug)]
struct Measurements {
    at: Instant,
    /// The processor time of each process in hundredths of a second, by its id.
    processor_ticks: BTreeMap<u32, u64>,
    network: (u64, u64),
    disk: (u64, u64),
    counters: StoreCounters,
    /// Total time of transfers, incoming and outgoing.
    transfer_times: (Duration, Duration),
}

impl Default for Transfers {
    fn default() -> Self {
        Self {
            received_len: AtomicU64::new(0),
            sent_len: AtomicU64::new(0),
            incoming_total: AtomicU64::new(0),
            outgoing_count: AtomicU64::new(0),
            outgoing_total: AtomicU64::new(0),
            outgoing_len: AtomicU64::new(0),
            incoming_time: AtomicU64::new(0),
            outgoing_time: AtomicU64::new(0),
            latency: AtomicU64::new(0),
            rates: Mutex::new(Rates {
                // Dask's initial assumption.
                bandwidth: 100e6,
                peers: BTreeMap::new(),
                before: Measurements {
                    at: runtime::now(),
                    processor_ticks: processor_ticks([]),
                    network: network(),
                    disk: disk(),
                    counters: StoreCounters::default(),
                    transfer_times: (Duration::ZERO, Duration::ZERO),
                },
            }),
        }
    }
}

/// Adds the time since `since` to a total in nanoseconds, and returns it.
fn add_time(total: &AtomicU64, since: Instant) -> Duration {
    let time = runtime::now().saturating_duration_since(since);
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    total.fetch_add(nanos, Ordering::Relaxed);
    time
}

/// An incoming transfer in progress.
pub(super) struct Receiving<'t> {
    transfers: &'t Transfers,
    since: Instant,
}

impl Receiving<'_> {
    pub(super) fn received(self, peer: &str, len: u64) {
        /// Smaller transfers are too short to measure the bandwidth.
        const MIN_REPORTED: u64 = 1_000_000;
        self.transfers
            .received_len
            .fetch_add(len, Ordering::Relaxed);
        let time = add_time(&self.transfers.incoming_time, self.since);
        if len < MIN_REPORTED {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = len as f64 / time.as_secs_f64().max(1e-9);
        let mut rates = self.transfers.lock();
        rates.bandwidth = 0.95 * rates.bandwidth + 0.05 * rate;
        let (sum, count) = rates.peers.entry(peer.to_owned()).or_default();
        *sum += rate;
        *count += 1;
    }
}

/// An outgoing transfer in progress.
pub(super) struct Sending<'t> {
    transfers: &'t Transfers,
    since: Instant,
    len: u64,
}

impl Sending<'_> {
    pub(super) fn add_len(&mut self, len: u64) {
        self.transfers
            .outgoing_len
            .fetch_add(len, Ordering::Relaxed);
        self.len += len;
        self.transfers.sent_len.fetch_add(len, Ordering::Relaxed);
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        add_time(&self.transfers.outgoing_time, self.since);
        self.transfers
            .outgoing_count
            .fetch_sub(1, Ordering::Relaxed);
        self.transfers
            .outgoing_len
            .fetch_sub(self.len, Ordering::Relaxed);
    }
}

impl Transfers {
    pub(super) fn receiving(&self) -> Receiving<'_> {
        self.incoming_total.fetch_add(1, Ordering::Relaxed);
        Receiving {
            transfers: self,
            since: runtime::now(),
        }
    }

    pub(super) fn counters(&self) -> TransferCounters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TransferCounters {
            received_count: read(&self.incoming_total),
            received_len: read(&self.received_len),
            sent_count: read(&self.outgoing_total),
            sent_len: read(&self.sent_len),
            sending_count: read(&self.outgoing_count),
            sending_len: read(&self.outgoing_len),
            ..TransferCounters::default()
        }
    }

    /// Records how long the scheduler took to answer.
    pub(super) fn set_latency(&self, time: Duration) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.latency.store(time, Ordering::Relaxed);
    }

    pub(super) fn latency(&self) -> Duration {
        Duration::from_nanos(self.latency.load(Ordering::Relaxed))
    }

    /// Starts an outgoing transfer. Returns `None` if `limit` transfers are already in
    /// progress.
    pub(super) fn sending(&self, limit: u64) -> Option<Sending<'_>> {
        let count = &self.outgoing_count;
        let more = |count| (count < limit).then_some(count + 1);
        count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok()?;
        self.outgoing_total.fetch_add(1, Ordering::Relaxed);
        Some(Sending {
            transfers: self,
            since: runtime::now(),
            len: 0,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Rates> {
        lock_counter(&self.rates)
    }
}

fn empty() -> Value {
    Value::Dict([].into())
}

impl Shared {
    // ROLES WORKER-6
    /// The metrics in heartbeats. `spilled_bytes` is mandatory: without it, the
    /// scheduler's active memory manager stops for all workers.
    pub(super) fn metrics(&self) -> Value {
        let (counts, transfer_count, transfer_len) = {
            let machine = self.machine();
            let state = &machine.state;
            let counts: Vec<_> = state.counts().collect();
            (counts, state.transfer_count(), state.transfer_len())
        };
        let transfers = &self.transfers;
        let read = |count: &AtomicU64| Value::from(count.load(Ordering::Relaxed));
        let transfer = Value::dict([
            ("incoming_bytes", Value::from(transfer_len)),
            ("incoming_count", Value::from(transfer_count)),
            ("incoming_count_total", read(&transfers.incoming_total)),
            ("outgoing_bytes", read(&transfers.outgoing_len)),
            ("outgoing_count", read(&transfers.outgoing_count)),
            ("outgoing_count_total", read(&transfers.outgoing_total)),
        ]);
        let mut rates = transfers.lock();
        let peers = core::mem::take(&mut rates.peers).into_iter();
        let peers = peers.map(|(peer, (sum, count))| {
            let rate = Value::List([sum.into(), count.into()].into());
            (Value::from(peer), rate)
        });
        let bandwidth = Value::dict([
            ("total", Value::from(rates.bandwidth)),
            ("workers", Value::Dict(peers.collect())),
            ("types", empty()),
        ]);
        let after = Measurements {
            at: runtime::now(),
            processor_ticks: processor_ticks(self.python_processes()),
            network: network(),
            disk: disk(),
            counters: self.store.counters(),
            transfer_times: {
                let time = |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Ordering::Relaxed));
                (
                    time(&transfers.incoming_time),
                    time(&transfers.outgoing_time),
                )
            },
        };
        let before = core::mem::replace(&mut rates.before, after);
        let after = &rates.before;
        let seconds = (after.at - before.at).as_secs_f64().max(1e-3);
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = |after: u64, before: u64| after.saturating_sub(before) as f64 / seconds;
        let io = |after: (u64, u64), before: (u64, u64)| {
            Value::dict([
                ("read_bps", rate(after.0, before.0)),
                ("write_bps", rate(after.1, before.1)),
            ])
        };
        // A tick is 10 milliseconds, so ticks per second are percent.
        let processor = rate(
            ticks_since(&before.processor_ticks, &after.processor_ticks),
            0,
        );
        let mut digests = Digests::default();
        let counters = (before.counters, after.counters);
        let of = |tally: fn(StoreCounters) -> Tally| (tally(counters.0), tally(counters.1));
        digests.add(
            &["get-data", "serialize"],
            of(|counters| counters.serialized),
        );
        digests.add(
            &["memory-monitor", "disk-write"],
            of(|counters| counters.spilled),
        );
        let (times, times_before) = (after.transfer_times, before.transfer_times);
        digests.seconds(
            &["gather-dep", "network"],
            times.0.saturating_sub(times_before.0),
        );
        digests.seconds(
            &["get-data", "network"],
            times.1.saturating_sub(times_before.1),
        );
        for (prefix, done) in self.tasks_done.since() {
            let time = done.1.time.saturating_sub(done.0.time);
            let on_processor = done.1.processor_time.saturating_sub(done.0.processor_time);
            digests.seconds(&["execute", &prefix, "thread-cpu"], on_processor.min(time));
            digests.seconds(
                &["execute", &prefix, "thread-noncpu"],
                time.saturating_sub(on_processor),
            );
            let tallies = |tally: fn(&TaskCounters) -> Tally| (tally(&done.0), tally(&done.1));
            digests.add(
                &["execute", &prefix, "disk-read"],
                tallies(|done| done.unspilled),
            );
            digests.add(
                &["execute", &prefix, "deserialize"],
                tallies(|done| done.deserialized),
            );
            digests.add(
                &["execute", &prefix, "serialize"],
                tallies(|done| done.serialized),
            );
        }
        let digests = Value::Dict(digests.0.into());
        let holdings = self.store.holdings();
        let lens = || {
            Value::dict([
                ("memory", holdings.spilled_len),
                ("disk", holdings.disk_len),
            ])
        };
        let (spilled_name, spilled) = match self.dialect.spill_metric {
            SpillMetric::Number => ("spilled_nbytes", Value::from(holdings.spilled_len)),
            SpillMetric::Nbytes => ("spilled_nbytes", lens()),
            SpillMetric::Bytes => ("spilled_bytes", lens()),
        };
        Value::dict([
            ("task_counts", Value::dict(counts)),
            ("bandwidth", bandwidth),
            ("digests_total_since_heartbeat", digests),
            ("managed_bytes", Value::from(self.store.nbytes())),
            (spilled_name, spilled),
            ("transfer", transfer),
            ("event_loop_interval", Value::from(0.02)),
            ("cpu", Value::from(processor)),
            (
                "memory",
                Value::from(self.memory_len().max(holdings.memory_len)),
            ),
            ("time", Value::from(now().as_secs_f64())),
            ("host_net_io", io(after.network, before.network)),
            ("host_disk_io", io(after.disk, before.disk)),
            ("num_fds", Value::from(descriptor_count())),
        ])
    }
}

impl Shared {
    /// The ids of the Python processes.
    fn python_processes(&self) -> Vec<u32> {
        #[cfg(target_os = "linux")]
        return self
            .python
            .as_ref()
            .map_or_else(Vec::new, PythonProcesses::ids);
        #[cfg(not(target_os = "linux"))]
        Vec::new()
    }
}

// Measurements of processes from Linux's /proc; zero or empty on other systems.

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Processor time of this process and of `others`, in hundredths of a second, by their ids.
fn processor_ticks(others: impl IntoIterator<Item = u32>) -> BTreeMap<u32, u64> {
    let ids = [process::id()].into_iter().chain(others);
    ids.map(|id| (id, processor_ticks_of(id))).collect()
}

/// The processor time between two measurements. The time of a process after its last measurement is
/// not counted.
fn ticks_since(before: &BTreeMap<u32, u64>, after: &BTreeMap<u32, u64>) -> u64 {
    let since = after.iter().map(|(id, ticks)| {
        let before = before.get(id).copied().unwrap_or_default();
        ticks.saturating_sub(before)
    });
    since.sum()
}

fn processor_ticks_of(id: u32) -> u64 {
    let stat = read(&format!("/proc/{id}/stat"));
    // The process name, in parentheses, may contain spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_whitespace().skip(11);
    let mut next = || {
        fields
            .next()
            .and_then(|field| field.parse().ok())
            .unwrap_or(0_u64)
    };
    next().saturating_add(next())
}

/// Bytes that this machine has received and sent.
fn network() -> (u64, u64) {
    let mut total = (0_u64, 0_u64);
    for line in read("/proc/net/dev").lines() {
        let Some((_, counts)) = line.split_once(':') else {
            continue;
        };
        let counts: Vec<u64> = counts
            .split_whitespace()
            .filter_map(|count| count.parse().ok())
            .collect();
        if let (Some(received), Some(sent)) = (counts.first(), counts.get(8)) {
            total.0 = total.0.saturating_add(*received);
            total.1 = total.1.saturating_add(*sent);
        }
    }
    total
}

/// Bytes that the process has read from and written to disk.
fn disk() -> (u64, u64) {
    let io = read("/proc/self/io");
    let field = |name: &str| {
        let line = io.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().parse().ok()).unwrap_or(0)
    };
    (field("read_bytes:"), field("write_bytes:"))
}

fn descriptor_count() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(900));

    #[test]
    fn reading_the_inputs_is_not_computation() {
        let done = |step, start, stop| Done {
            step,
            len: 1,
            start,
            stop,
        };
        let steps = [
            done(Step::DiskRead, 10.0, 11.5),
            done(Step::Deserialize, 11.5, 12.0),
            done(Step::Serialize, 13.0, 14.0),
        ];
        let from_10_to = |stop| (Duration::from_secs(10), Duration::from_secs(stop));
        let start = |stop, steps| start_of_function(from_10_to(stop), steps);
        assert_eq!(start(14, &steps), Duration::from_secs(12));
        assert_eq!(start(14, &[]), Duration::from_secs(10));
        // The clock was set back.
        assert_eq!(start(11, &steps), Duration::from_secs(11));
    }

    #[test]
    fn processor_time_of_processes_that_start_and_end_is_counted_once() {
        let before = BTreeMap::from([(1, 100), (2, 500), (3, 7)]);
        let after = BTreeMap::from([(1, 103), (3, 7), (4, 20)]);
        assert_eq!(ticks_since(&before, &after), 23);
    }

    #[test]
    fn bounds_the_number_of_counted_prefixes() {
        let done = TasksDone::default();
        done.add("first", SECOND, &[]);
        for round in 1..=2 {
            for n in 0..40_000 {
                done.add(
                    &format!("prefix-{n}"),
                    (Duration::from_millis(500), Duration::ZERO),
                    &[],
                );
            }
            done.add("first", SECOND, &[]);
            let counters = done.counters();
            assert_eq!(counters.len(), MAX_PREFIXES + 1);
            assert_eq!(counters["first"].count, 1 + round);
            let sum: u64 = counters.values().map(|done| done.count).sum();
            assert_eq!(sum, 1 + round * 40_001);
            assert_eq!(done.total().count, sum);
            let all: Duration = counters.values().map(|done| done.time).sum();
            assert_eq!(done.total().time, all);
        }
    }

    #[test]
    fn heartbeats_report_changes_since_the_last() {
        let done = TasksDone::default();
        let step = Done {
            step: Step::Deserialize,
            len: 10,
            start: 1.0,
            stop: 1.5,
        };
        done.add("x", SECOND, &[step]);
        done.add("y", SECOND, &[]);
        done.add("x", SECOND, &[step]);
        let since = done.since();
        let prefixes: Vec<&str> = since.iter().map(|(prefix, _)| prefix.as_str()).collect();
        assert_eq!(prefixes, ["x", "y"]);
        let (before, now) = since[0].1;
        assert_eq!(before, TaskCounters::default());
        assert_eq!((now.count, now.deserialized.len), (2, 20));
        assert_eq!(done.since(), []);
        done.add("y", SECOND, &[]);
        let since = done.since();
        assert_eq!(since.len(), 1);
        let (before, now) = since[0].1;
        assert_eq!((before.count, now.count), (1, 2));
    }
}
