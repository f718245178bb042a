//! What a worker has done, as text.

use core::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use daskwire::display::Printable;
use daskwire_peer::worker::{Tally, TaskCounters, Worker};
use indicatif::{HumanBytes, HumanCount};

/// Maximum number of lines in the table.
const LINES: usize = 20;

/// Formats the worker's state in one line.
pub(super) fn progress(worker: &Worker) -> String {
    let run = worker.total_task_counters().count;
    let executing = worker.task_counts();
    let executing = executing.iter().find(|(state, _)| *state == "executing");
    let executing = executing.map_or(0, |(_, count)| *count);
    let transfers = worker.transfers();
    let holdings = worker.holdings();
    let counters = worker.counters();
    format!(
        "{}, {} tasks run, {executing} running, {} in, {} out, {} deserialized, {} serialized, \
         {} in memory, {} on disk, {} spilled, {} unspilled",
        worker.status(),
        HumanCount(run),
        HumanBytes(transfers.received_len),
        HumanBytes(transfers.sent_len),
        HumanBytes(counters.deserialized.len),
        HumanBytes(counters.serialized.len),
        HumanBytes(holdings.memory_len),
        HumanBytes(holdings.disk_len),
        HumanBytes(counters.spilled.len),
        HumanBytes(counters.unspilled.len),
    )
}

/// Formats a table of the tasks run, grouped by prefix, longest total time first; empty if
/// none were run.
pub(super) fn table(tasks: BTreeMap<String, TaskCounters>) -> String {
    let mut tasks: Vec<(String, TaskCounters)> = tasks.into_iter().collect();
    tasks.sort_by_key(|(_, done)| Reverse(done.time));
    if tasks.is_empty() {
        return String::new();
    }
    let bytes = |tally: Tally| match tally.count {
        0 => "-".to_owned(),
        _ => format!("{} in {}", HumanBytes(tally.len), seconds(tally.time)),
    };
    let mut table = format!(
        "\n  {:<32} {:>9} {:>9}  {:<24}  {:<24}  read from disk\n",
        "tasks", "run", "took", "deserialized", "serialized"
    );
    for (prefix, done) in tasks.iter().take(LINES) {
        table.push_str(&format!(
            "  {:<32} {:>9} {:>9}  {:<24}  {:<24}  {}\n",
            Printable(prefix).to_string(),
            HumanCount(done.count).to_string(),
            seconds(done.time),
            bytes(done.deserialized),
            bytes(done.serialized),
            bytes(done.unspilled),
        ));
    }
    if tasks.len() > LINES {
        table.push_str(&format!("  and {} more prefixes\n", tasks.len() - LINES));
    }
    table
}

/// Formats a duration.
fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        short if short < 0.001 => format!("{:.0} µs", short * 1e6),
        short if short < 1.0 => format!("{:.1} ms", short * 1e3),
        long => format!("{long:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_longest_first_and_bounds_the_table() {
        assert_eq!(table(BTreeMap::new()), "");
        let mut add = TaskCounters::default();
        add.count = 1200;
        add.time = Duration::from_micros(900);
        let mut sum = TaskCounters::default();
        sum.count = 3;
        sum.time = Duration::from_millis(1500);
        sum.deserialized.count = 3;
        sum.deserialized.len = 3 << 20;
        sum.deserialized.time = Duration::from_millis(2);
        let tasks = BTreeMap::from([("add".to_owned(), add), ("sum".to_owned(), sum)]);
        let lines: Vec<String> = table(tasks).lines().map(str::to_owned).collect();
        let [_, head, first, second] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert!(head.starts_with("  tasks") && head.ends_with("read from disk"));
        let words: Vec<&str> = first.split_whitespace().collect();
        let expected = [
            "sum", "3", "1.5", "s", "3.00", "MiB", "in", "2.0", "ms", "-", "-",
        ];
        assert_eq!(words, expected);
        let words: Vec<&str> = second.split_whitespace().collect();
        assert_eq!(words, ["add", "1,200", "900", "µs", "-", "-", "-"]);
        let many = (0..25).map(|index| (format!("task-{index}"), add));
        let many = table(many.collect());
        assert!(many.ends_with("  and 5 more prefixes\n"), "{many}");
    }
}
