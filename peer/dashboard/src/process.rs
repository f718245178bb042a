//! The metrics of the process, as the libraries of Prometheus name them.

use std::fs;

use crate::metrics::Metrics;

/// The metrics of this process; none where the system has no `/proc`.
pub(crate) fn metrics() -> String {
    let mut to = Metrics::without_prefix();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let number = line.trim().strip_suffix(" kB")?;
        Some(number.parse::<f64>().ok()? * 1024.0)
    };
    if let Some(bytes) = bytes("VmSize:") {
        let name = "process_virtual_memory_bytes";
        to.gauge(name, "Virtual memory size in bytes.", bytes);
    }
    if let Some(bytes) = bytes("VmRSS:") {
        let name = "process_resident_memory_bytes";
        to.gauge(name, "Resident memory size in bytes.", bytes);
    }
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may have spaces.
    let (_, fields) = stat.rsplit_once(')').unwrap_or_default();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let seconds = |index: usize| Some(fields.get(index)?.parse::<f64>().ok()? / TICKS);
    if let (Some(start), Some(boot)) = (seconds(19), boot_time()) {
        let name = "process_start_time_seconds";
        let help = "Start time of the process since unix epoch in seconds.";
        to.gauge(name, help, boot + start);
    }
    if let (Some(user), Some(system)) = (seconds(11), seconds(12)) {
        let name = "process_cpu_seconds_total";
        let help = "Total user and system CPU time spent in seconds.";
        to.counter(name, help, user + system);
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        // One is open to read the directory.
        let count = u32::try_from(files.count().saturating_sub(1)).unwrap_or(u32::MAX);
        let help = "Number of open file descriptors.";
        to.gauge("process_open_fds", help, f64::from(count));
    }
    if let Some(limit) = max_files() {
        let help = "Maximum number of open file descriptors.";
        to.gauge("process_max_fds", help, limit);
    }
    to.into_text()
}

/// Units of time in `/proc`, a second has 100 of them on all architectures that Rust supports.
const TICKS: f64 = 100.0;

/// The time at which the system was started, in seconds since 1970.
fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let time = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    time.trim().parse().ok()
}

/// The soft limit of the number of open files.
fn max_files() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let mut lines = limits.lines();
    let limit = lines.find_map(|line| line.strip_prefix("Max open files"))?;
    limit.split_whitespace().next()?.parse().ok()
}
