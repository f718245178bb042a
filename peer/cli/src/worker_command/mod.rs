//! `daskwire worker`: a worker with demonstration functions.

mod functions;

use core::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use daskwire::display::Printable;
use daskwire_comm::{Address, BufferPool, CommOptions};
use daskwire_peer::worker::{Ended, Tally, TaskCounters, Worker};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};

use crate::connect::{address, connecting};
use crate::failure::Result;
use crate::{TlsArguments, terminal};

/// The refresh interval of the terminal.
const REFRESH: Duration = Duration::from_millis(200);

/// Freed memory of received data that is kept for reuse, in bytes: getting memory
/// from the system takes several times as long.
const POOL_LEN: usize = 256 << 20;

/// Timeout for handing data over.
const HANDOVER: Duration = Duration::from_secs(60);

/// The arguments of `daskwire worker`.
#[derive(Debug, Args)]
pub(crate) struct WorkerArguments {
    /// The scheduler, as tcp://HOST:PORT, tls://HOST:PORT or, for a relay,
    /// quic://HOST:PORT
    #[arg(required_unless_present = "functions")]
    scheduler: Option<String>,
    /// Number of tasks that run at once, at least 1 [default: number of
    /// processors]
    #[arg(long, value_name = "COUNT", value_parser = nthreads)]
    nthreads: Option<usize>,
    /// Memory limit, such as 4GiB or 500MB: data is spilled to disk above 60 % of
    /// it. Without a limit, data stays in memory, and up to 256 MiB of freed
    /// memory are kept for new data
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory_limit: Option<u64>,
    /// The directory for spilled data, in which the worker makes a directory of
    /// its own
    #[arg(long, value_name = "DIRECTORY")]
    local_directory: Option<PathBuf>,
    /// A name that is unique in the cluster [default: the worker's address]
    #[arg(long)]
    name: Option<String>,
    /// The address to listen on, as tcp://HOST:PORT or of another scheme
    /// [default: a free port of the interface that reaches the scheduler]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// List the worker's functions, and exit
    #[arg(long)]
    functions: bool,
    /// Log what the worker does; twice: each step of a task; three times: each
    /// message
    #[cfg(feature = "tracing")]
    #[arg(short, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(flatten)]
    tls: TlsArguments,
}

/// Parses a size as Dask does: `500MB`, `4GiB`, `1e9`.
fn size(input: &str) -> Result<u64, String> {
    const UNITS: [(&str, f64); 10] = [
        ("", 1.0),
        ("b", 1.0),
        ("kb", 1e3),
        ("mb", 1e6),
        ("gb", 1e9),
        ("tb", 1e12),
        ("kib", 1024.0),
        ("mib", 1_048_576.0),
        ("gib", 1_073_741_824.0),
        ("tib", 1_099_511_627_776.0),
    ];
    let input = input.trim().to_lowercase();
    let is_unit = |letter: char| letter.is_ascii_alphabetic();
    let number = input.trim_end_matches(is_unit);
    let unit = &input[number.len()..];
    let factor = UNITS.iter().find(|(name, _)| *name == unit);
    let number: Option<f64> = number.trim().parse().ok();
    match (number, factor) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is positive, and casts saturate"
        )]
        (Some(number), Some((_, factor))) if number.is_finite() && number * factor >= 1.0 => {
            Ok((number * factor) as u64)
        }
        _ => Err("expected a size such as 4GiB or 500MB".to_owned()),
    }
}

fn nthreads(input: &str) -> Result<usize, String> {
    match input.parse() {
        Ok(0) => Err("expected at least 1".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("expected a number of threads".to_owned()),
    }
}

/// Restarts this process with settings for glibc's allocator, which it reads from
/// the environment when a process starts. Large buffers are returned to the
/// system when freed, without which a memory limit means little, and are
/// allocated in huge pages, which makes up for the cost of allocating them more
/// often.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn tune_allocator(arguments: &WorkerArguments) {
    use std::os::unix::process::CommandExt as _;
    const NAME: &str = "GLIBC_TUNABLES";
    const OWN: &str = "glibc.malloc.mmap_threshold";
    let mut tunables = std::env::var(NAME).unwrap_or_default();
    if arguments.memory_limit.is_none() || tunables.contains(OWN) {
        return;
    }
    if !tunables.is_empty() {
        tunables.push(':');
    }
    tunables.push_str(OWN);
    tunables.push_str("=262144:glibc.malloc.hugetlb=1");
    if let Ok(own) = std::env::current_exe() {
        // Returns only if it fails; then this process continues unchanged.
        let _ = std::process::Command::new(own)
            .args(std::env::args_os().skip(1))
            .env(NAME, tunables)
            .exec();
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn tune_allocator(_: &WorkerArguments) {}

pub(crate) fn run(arguments: &WorkerArguments) -> Result {
    tune_allocator(arguments);
    crate::on_cluster(worker(arguments))
}

async fn worker(arguments: &WorkerArguments) -> Result {
    let Some(scheduler) = arguments
        .scheduler
        .as_ref()
        .filter(|_| !arguments.functions)
    else {
        return list();
    };
    let scheduler = address(scheduler)?;
    let listen = arguments.listen.as_deref().map(address).transpose()?;
    let addresses: Vec<&Address> = core::iter::once(&scheduler).chain(&listen).collect();
    let options = CommOptions {
        // With a limit, memory is returned at once.
        pool: arguments
            .memory_limit
            .is_none()
            .then(|| BufferPool::new(POOL_LEN)),
        ..CommOptions::default()
    };
    // Nothing is drawn unless standard error is a terminal.
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
        bar.set_style(style);
    }
    let notices = bar.clone();
    let transports = arguments.tls.transports(&addresses)?;
    let mut builder = Worker::builder(scheduler.clone())
        .functions(functions::functions())
        .transports(transports.clone())
        .options(options)
        .on_notice(move |message| {
            // The log has it.
            if !is_logging() {
                notices.suspend(|| terminal::note(message));
            }
        });
    if let Some(nthreads) = arguments.nthreads {
        builder = builder.nthreads(nthreads);
    }
    if let Some(limit) = arguments.memory_limit {
        builder = builder.memory_limit(limit);
    }
    if let Some(directory) = &arguments.local_directory {
        builder = builder.local_directory(directory);
    }
    if let Some(name) = &arguments.name {
        builder = builder.name(name);
    }
    if let Some(listen) = listen {
        builder = builder.listen(listen);
    }
    let mut stop = core::pin::pin!(crate::stop_requested()?);
    let starting = async {
        let started = builder.start().await;
        started.map_err(|error| format!("{scheduler}: {error}"))
    };
    let worker = tokio::select! {
        started = connecting(&scheduler, &transports, starting) => started?,
        () = &mut stop => {
            terminal::note(format_args!("stopped before registering with {scheduler}"));
            return Ok(());
        }
    };
    terminal::note(format_args!(
        "worker {} at {} works for {scheduler}",
        worker.name(),
        worker.address()
    ));
    let showing = async {
        // A log and a progress line do not go together.
        while std::io::stderr().is_terminal() && !is_logging() {
            bar.set_message(progress(&worker));
            bar.tick();
            tokio::time::sleep(REFRESH).await;
        }
        core::future::pending().await
    };
    let ended = tokio::select! {
        ended = worker.ended() => Some(ended),
        () = &mut stop => None,
        () = showing => None,
    };
    bar.finish_and_clear();
    let outcome = match ended {
        Some(ended @ (Ended::Lost(_) | Ended::ListenerFailed(_) | Ended::Panicked)) => {
            Err(ended.to_string().into())
        }
        Some(ended) => {
            terminal::note(ended);
            Ok(())
        }
        None => leave(&worker).await,
    };
    terminal::note(progress(&worker));
    terminal::tell(table(worker.task_counters()));
    outcome
}

/// Whether warnings go to the log.
#[cfg(feature = "tracing")]
fn is_logging() -> bool {
    crate::log::has_warnings()
}

/// Whether warnings go to the log.
#[cfg(not(feature = "tracing"))]
const fn is_logging() -> bool {
    false
}

fn list() -> Result {
    terminal::print(
        "Functions besides those of Python's operator and math, and builtins.\n\
         Python calls them with operator.methodcaller(\"native:NAME\").\n",
    )?;
    for (name, what) in functions::LIST {
        terminal::print(format_args!("  {name:<34}  {what}"))?;
    }
    Ok(())
}

/// Hands the worker's data over, until a timeout or a second request to stop.
async fn leave(worker: &Worker) -> Result {
    terminal::note("handing over data; stop again to exit at once");
    let again = crate::stop_requested()?;
    tokio::select! {
        retired = worker.retire() => match retired {
            Ok(true) => terminal::note("other workers have copies of all data"),
            Ok(false) => terminal::note("no other worker can take the data"),
            Err(error) => terminal::note(format_args!("cannot hand over data: {error}")),
        },
        () = again => worker.close().await,
        () = tokio::time::sleep(HANDOVER) => {
            terminal::note("handing over data timed out");
            worker.close().await;
        }
    }
    Ok(())
}

/// The worker's state in one line.
fn progress(worker: &Worker) -> String {
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

/// Maximum number of lines in the table.
const LINES: usize = 20;

/// A table of the work done by kind of task, those that took longest first; empty
/// if there were none.
fn table(tasks: BTreeMap<String, TaskCounters>) -> String {
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
        table.push_str(&format!("  and {} kinds more\n", tasks.len() - LINES));
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
        assert!(many.ends_with("  and 5 kinds more\n"), "{many}");
    }

    #[test]
    fn at_least_one_thread_is_asked_for() {
        assert_eq!(nthreads("2"), Ok(2));
        for input in ["0", "-1", "two", "", "99999999999999999999999"] {
            assert!(nthreads(input).is_err(), "{input}");
        }
    }

    #[test]
    fn sizes_are_as_dask_reads_them() {
        for (input, len) in [
            ("1", 1),
            ("500MB", 500_000_000),
            ("4GiB", 4 << 30),
            ("1.5 kib", 1536),
            ("1e9", 1_000_000_000),
        ] {
            assert_eq!(size(input), Ok(len), "{input}");
        }
        for input in ["", "GiB", "-1", "0", "4 apples", "nan"] {
            assert!(size(input).is_err(), "{input}");
        }
    }
}
