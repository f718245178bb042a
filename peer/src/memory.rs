//! How much memory there is, and what a peer may therefore ask of it.

use std::fs;
use std::sync::OnceLock;

use daskwire::Limits;
use daskwire::message::ReadOptions;

/// Bytes of memory that the process can have: what the machine, its control group
/// and its own limit allow. `None` where the system does not say.
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
        .chain(after(&machine, "MemTotal:").map(|kib| kib.saturating_mul(1024)))
        .chain(after(&limits, "Max address space"))
        .min()
}

/// The number behind a name at the beginning of a line.
fn after(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// How payloads are opened: [`Limits::HOST`], but a payload becomes half of the
/// memory at most when it is decompressed and merged, and a frame of it an eighth.
pub fn reading() -> ReadOptions {
    static TOTAL: OnceLock<Option<u64>> = OnceLock::new();
    let mut limits = Limits::HOST;
    if let Some(total) = *TOTAL.get_or_init(total) {
        limits.message_len = limits.message_len.min(total / 2);
        limits.decompressed_len = limits.decompressed_len.min(total / 8);
    }
    ReadOptions {
        limits,
        ..ReadOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_behind_their_names() {
        let meminfo = "MemTotal:       24689868 kB\nMemFree:         9000000 kB\n";
        assert_eq!(after(meminfo, "MemTotal:"), Some(24_689_868));
        let limits = "Limit  Soft Limit\nMax address space  unlimited  unlimited bytes\n";
        assert_eq!(after(limits, "Max address space"), None);
        let limits = "Max address space         6144000000     6144000000     bytes\n";
        assert_eq!(after(limits, "Max address space"), Some(6_144_000_000));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_a_payload_becomes_is_less_than_there_is_memory() {
        let limits = reading().limits;
        let total = total().expect("Linux says it");
        assert!(limits.message_len < total && limits.decompressed_len < total);
    }
}
