//! Limits for opening payloads, from the memory that is available to the process.

use std::fs;
use std::sync::OnceLock;

use daskwire::Limits;
use daskwire::message::ReadOptions;

/// Bytes of memory that the process may use, limited by the machine, its control
/// group and its own limits. `None` if the system does not report them.
fn total() -> Option<u64> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let groups = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ];
    let machine = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    groups
        .into_iter()
        .filter_map(number)
        .chain(number_after(&machine, "MemTotal:").map(|kib| kib.saturating_mul(1024)))
        .chain(number_after(&limits, "Max address space"))
        .min()
}

/// The number that follows a name at the beginning of a line.
fn number_after(status: &str, name: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Limits for opening payloads: [`Limits::HOST`], except that a decompressed and
/// merged payload, and the decompressed payloads of a message together, may take at most
/// half of the memory, and each frame an eighth.
pub fn read_options() -> ReadOptions {
    static TOTAL: OnceLock<Option<u64>> = OnceLock::new();
    let mut limits = Limits::HOST;
    if let Some(total) = *TOTAL.get_or_init(total) {
        limits.message_len = limits.message_len.min(total / 2);
        limits.decompressed_len = limits.decompressed_len.min(total / 8);
        limits.decompressed_message_len = limits.decompressed_message_len.min(total / 2);
    }
    ReadOptions::new(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_numbers_after_their_names() {
        let meminfo = "MemTotal:       24689868 kB\nMemFree:         9000000 kB\n";
        assert_eq!(number_after(meminfo, "MemTotal:"), Some(24_689_868));
        let limits = "Limit  Soft Limit\nMax address space  unlimited  unlimited bytes\n";
        assert_eq!(number_after(limits, "Max address space"), None);
        let limits = "Max address space         6144000000     6144000000     bytes\n";
        assert_eq!(
            number_after(limits, "Max address space"),
            Some(6_144_000_000)
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn payloads_are_limited_to_a_part_of_memory() {
        let limits = read_options().limits;
        let total = total().expect("Linux");
        assert!(limits.message_len < total && limits.decompressed_len < total);
        assert!(limits.decompressed_message_len < total);
    }
}
