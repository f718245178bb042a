//! Processors and memory that workers may use on this machine.

use std::fs;
use std::path::Path;

/// The number of processors that this process may use, limited by its affinity and its
/// control group.
pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// The bytes of memory that this process may use: the least of the machine's memory, the
/// limits of its control group, and `RLIMIT_RSS`. `None` on systems other than Linux.
pub(super) fn memory() -> Option<u64> {
    memory_below(Path::new("/"))
}

fn memory_below(root: &Path) -> Option<u64> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let words = |content: &str, name: &str, at: usize| -> Option<u64> {
        let line = content.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().nth(at)?.parse().ok()
    };
    let total = words(&read("proc/meminfo"), "MemTotal:", 0)?.saturating_mul(1024);
    // The files that Dask reads. "max" is not a number, and is skipped.
    let groups = [
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
        "sys/fs/cgroup/memory/memory.soft_limit_in_bytes",
        "sys/fs/cgroup/memory.max",
        "sys/fs/cgroup/memory.high",
        "sys/fs/cgroup/memory.low",
    ];
    let groups = groups
        .iter()
        .filter_map(|path| read(path).trim().parse().ok());
    // The line has the soft limit, the hard limit, and the unit.
    let resident = words(&read("proc/self/limits"), "Max resident set", 1);
    groups
        .chain(resident)
        .filter(|limit: &u64| *limit > 0)
        .chain([total])
        .min()
}

/// The default number of processes, and of threads in each. Up to four processors get one
/// process each; more are divided into about as many processes as threads per process.
pub(super) fn processes_and_threads(processors: usize) -> (usize, usize) {
    let processes = match processors {
        0..=4 => processors.max(1),
        many => (1..=many)
            .find(|count| many % count == 0 && count.saturating_mul(*count) >= many)
            .unwrap_or(1),
    };
    (processes, processors / processes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_counts() {
        let root = std::env::temp_dir().join(format!("daskwire-machine-{}", std::process::id()));
        let write = |path: &str, content: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, content).expect("it is written");
        };
        assert_eq!(memory_below(&root), None);
        write("proc/meminfo", "MemFree: 3 kB\nMemTotal:       8000 kB\n");
        assert_eq!(memory_below(&root), Some(8_192_000));
        write("sys/fs/cgroup/memory.max", "max\n");
        write("sys/fs/cgroup/memory.low", "0\n");
        assert_eq!(memory_below(&root), Some(8_192_000));
        write("sys/fs/cgroup/memory.high", "5000000\n");
        assert_eq!(memory_below(&root), Some(5_000_000));
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max resident set          1000000              4000000              bytes\n";
        write("proc/self/limits", limits);
        assert_eq!(memory_below(&root), Some(4_000_000));
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n");
        assert_eq!(memory_below(&root), Some(3_000_000));
        fs::remove_dir_all(&root).expect("it is removed");
    }

    #[test]
    fn processes_and_threads_are_as_in_dask() {
        for (processors, expected) in [(1, (1, 1)), (4, (4, 1)), (8, (4, 2)), (32, (8, 4))] {
            assert_eq!(processes_and_threads(processors), expected, "{processors}");
        }
    }
}
