//! The worker and that of Python, both in one real cluster.
//!
//! `cargo bench -p daskwire-cli --bench worker -- PYTHON [ROUNDS [WORK...]]`
//!
//! PYTHON is an interpreter that has `distributed` 2026.8.0, such as those that
//! the tests make in `target/python`; WORK is some of `tasks`, `chain`, `keys`,
//! `transfer` and `spill`, otherwise all of them. A scheduler is started with it,
//! two workers in Python and two `daskwire worker`, of one thread each; then in
//! every round both kinds do the same work one after the other, for the client in
//! Rust:
//!
//! * `tasks`: 10,000 additions in one graph, until the last of them is done;
//! * `chain`: 1,000 additions, each of the result of the one before it;
//! * `keys`: 30,000 results of graphs of 10,000 tasks that stay on a worker, and
//!   the growth of its process; those of all rounds stay until the end, since
//!   freed memory would be used again;
//! * `transfer`: 8 arrays of 64 MiB, made by one worker and needed by another, for
//!   each pair of kinds;
//! * `spill`: 4 GiB of arrays made by a worker with a limit of 1 GiB, then each of
//!   them summed, beside files of the same length that this process writes and
//!   reads in the same directory. None of the three waits for the disk itself: the
//!   system caches the files of all of them.
//!
//! A figure is the median over the rounds of the ratio of Rust to Python, with the
//! least and the greatest; processor time is that of the processes of the workers.
#![allow(missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use daskwire_peer::client::{SubmitOptions, TaskFuture};
use daskwire_peer::graph::{Argument, Graph, Task};
use daskwire_peer::{Client, Key};
use daskwire_testing::bench::{Process, dask, heading, memory, processor_time, show};

const PATIENCE: Duration = Duration::from_secs(60);

/// The kind of a worker, and its names of functions that both kinds have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Rust,
    Python,
}

impl Kind {
    const BOTH: [Self; 2] = [Self::Rust, Self::Python];

    const fn linspace(self) -> &'static str {
        match self {
            Self::Rust => "native:linspace",
            Self::Python => "numpy.linspace",
        }
    }

    const fn sum(self) -> &'static str {
        match self {
            Self::Rust => "native:sum",
            Self::Python => "numpy.sum",
        }
    }
}

/// A worker of one thread, in a process of its own.
struct Worker {
    kind: Kind,
    name: String,
    process: Process,
}

impl Worker {
    fn start(kind: Kind, name: &str, python: &Path, scheduler: &str, more: &[&str]) -> Self {
        let common = ["worker", scheduler, "--nthreads", "1", "--name", name];
        let process = match kind {
            Kind::Rust => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
                Process::start(command.args(common).arg("--no-nanny").args(more))
            }
            Kind::Python => {
                let own = ["--no-nanny", "--host", "127.0.0.1"];
                let arguments = common.iter().chain(&own).chain(more).copied();
                dask(python, &arguments.collect::<Vec<_>>())
            }
        };
        Self {
            kind,
            name: name.to_owned(),
            process,
        }
    }

    fn memory(&self) -> f64 {
        memory(&self.process.id())
    }

    /// Restricts a submission to this worker.
    fn only(&self) -> SubmitOptions {
        SubmitOptions::default().workers([self.name.as_str()])
    }
}

fn processor_times(workers: &[&Worker]) -> f64 {
    let ids = workers.iter().map(|worker| worker.process.id());
    ids.map(|id| processor_time(&id)).sum()
}

/// Time, and processor time of these workers, in seconds.
struct Stopwatch<'w> {
    workers: &'w [&'w Worker],
    processor: f64,
    started: Instant,
}

impl<'w> Stopwatch<'w> {
    fn start(workers: &'w [&'w Worker]) -> Self {
        Self {
            workers,
            processor: processor_times(workers),
            started: Instant::now(),
        }
    }

    fn stop(self) -> (f64, f64) {
        let time = self.started.elapsed().as_secs_f64();
        (time, processor_times(self.workers) - self.processor)
    }
}

struct Bench {
    client: Client,
    python: PathBuf,
    scheduler: String,
    rounds: usize,
    count: i64,
}

impl Bench {
    /// A number that no call has used.
    fn fresh(&mut self) -> i64 {
        self.count += 1;
        self.count
    }

    fn key(&mut self, index: i64) -> Key {
        Key::list([Key::from("add"), Key::from(self.count), Key::from(index)])
    }

    /// Waits until all are finished, and checks that none has failed.
    async fn done(&self, futures: &[TaskFuture]) {
        self.client.wait(futures).await;
        for future in futures {
            future.finished().await.expect("a result");
        }
    }

    /// Submits additions on a worker: of numbers, or each of the result of the one
    /// before it.
    async fn additions(&mut self, worker: &Worker, count: i64, is_chain: bool) -> Vec<TaskFuture> {
        let offset = self.fresh();
        let keys: Vec<Key> = (0..count).map(|index| self.key(index)).collect();
        let mut before: Option<&Key> = None;
        let mut graph = Graph::default();
        for (key, index) in keys.iter().zip(0..) {
            let first = match before.filter(|_| is_chain) {
                Some(before) => Argument::from(before),
                None => Argument::from(index),
            };
            let arguments = [first, Argument::from(offset)];
            graph
                .tasks
                .push(Task::new(key.clone(), "operator.add", arguments));
            before = Some(key);
        }
        let wanted = if is_chain {
            keys[keys.len() - 1..].to_vec()
        } else {
            keys.clone()
        };
        let futures = self.client.submit_graph(&graph, wanted, &worker.only());
        let futures = futures.expect("submitted");
        self.done(&futures).await;
        futures
    }

    /// Waits until the scheduler and the workers have released unneeded keys.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }

    async fn tasks(&mut self, workers: &[Worker], count: i64, is_chain: bool) {
        let (mut times, mut processor) = (Vec::new(), Vec::new());
        for _ in 0..self.rounds {
            let mut costs = [(0.0, 0.0); 2];
            for (kind, cost) in Kind::BOTH.into_iter().zip(&mut costs) {
                let worker = of(kind, workers)[0];
                let taking_part = [worker];
                let watch = Stopwatch::start(&taking_part);
                let futures = self.additions(worker, count, is_chain).await;
                *cost = watch.stop();
                drop(futures);
                self.settle().await;
            }
            times.push((costs[0].0, costs[1].0));
            processor.push((costs[0].1, costs[1].1));
        }
        let what = if is_chain {
            "1,000 tasks, one after the other"
        } else {
            "10,000 tasks in one graph"
        };
        let scale = 1e6 / f64::from(u32::try_from(count).expect("it is small"));
        show(&format!("{what}, for each"), "µs", scale, &times);
        show("  processor time of the worker", "µs", scale, &processor);
    }

    async fn keys(&mut self, workers: &[Worker]) {
        const GRAPHS: usize = 3;
        let mut held = Vec::new();
        let mut grown = Vec::new();
        for _ in 0..self.rounds {
            let mut costs = [0.0; 2];
            for (kind, cost) in Kind::BOTH.into_iter().zip(&mut costs) {
                let worker = of(kind, workers)[0];
                let before = worker.memory();
                for _ in 0..GRAPHS {
                    held.extend(self.additions(worker, 10_000, false).await);
                }
                *cost = (worker.memory() - before) / 3e4;
            }
            grown.push((costs[0], costs[1]));
        }
        show("memory of the worker for a stored key", "B", 1.0, &grown);
        drop(held);
        self.settle().await;
    }

    async fn transfer(&mut self, workers: &[Worker]) {
        const GIB: f64 = 0.5;
        let rust = of(Kind::Rust, workers);
        let python = of(Kind::Python, workers);
        let pairs = [
            ("from its own kind to its own kind", [rust[0], rust[1]]),
            ("from Python", [python[0], rust[1]]),
            ("to Python", [rust[0], python[1]]),
        ];
        let among_python = [python[0], python[1]];
        let mut times = [const { Vec::new() }; 3];
        let mut processor = [const { Vec::new() }; 3];
        for _ in 0..self.rounds {
            let theirs = self.moved(&among_python).await;
            for (((_, pair), times), processor) in pairs.iter().zip(&mut times).zip(&mut processor)
            {
                let ours = self.moved(pair).await;
                times.push((ours.0 / GIB, theirs.0 / GIB));
                processor.push((ours.1 / GIB, theirs.1 / GIB));
            }
        }
        for (((what, _), times), processor) in pairs.iter().zip(&times).zip(&processor) {
            let what = format!("1 GiB in arrays of 64 MiB, {what}");
            show(&what, "s", 1.0, times);
            show("  processor time of both workers", "s", 1.0, processor);
        }
    }

    /// Transfers 8 arrays from the first worker to the second.
    async fn moved(&mut self, pair: &[&Worker; 2]) -> (f64, f64) {
        let arrays = self.arrays(pair[0], 8, 8 << 20).await;
        let watch = Stopwatch::start(pair);
        let lengths = self.each(&arrays, "builtins.len", pair[1]).await;
        let cost = watch.stop();
        drop((arrays, lengths));
        self.settle().await;
        cost
    }

    /// Submits `count` arrays of `len` numbers on a worker.
    async fn arrays(&mut self, worker: &Worker, count: usize, len: i64) -> Vec<TaskFuture> {
        let mut arrays = Vec::new();
        for _ in 0..count {
            #[expect(clippy::cast_precision_loss, reason = "it is small")]
            let end = self.fresh() as f64;
            let call = self.client.call(worker.kind.linspace());
            let call = call.argument(0.0).argument(end).argument(len);
            arrays.push(call.with(worker.only()).submit().expect("submitted"));
        }
        self.done(&arrays).await;
        arrays
    }

    /// Submits a function of each array on a worker, and gathers the results.
    async fn each(
        &self,
        arrays: &[TaskFuture],
        function: &str,
        worker: &Worker,
    ) -> Vec<TaskFuture> {
        let calls = arrays.iter().map(|array| {
            let call = self.client.call(function).argument(array).impure();
            call.with(worker.only()).submit().expect("submitted")
        });
        let futures: Vec<TaskFuture> = calls.collect();
        self.done(&futures).await;
        futures
    }

    async fn spill(&mut self) {
        const COUNT: usize = 128;
        const GIB: f64 = 4.0;
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-spill");
        let mut rows = [const { Vec::new() }; 4];
        let mut plain = Vec::new();
        let mut on_disk = [0.0; 2];
        let mut resident = [0.0_f64; 2];
        for round in 0..self.rounds {
            plain.push(plain_files(&directory, COUNT, 32 << 20));
            let mut costs = [[0.0; 4]; 2];
            for (index, kind) in Kind::BOTH.into_iter().enumerate() {
                let own = directory.join(format!("{kind:?}-{round}"));
                let path = own.to_str().expect("a path of text").to_owned();
                let more = ["--memory-limit", "1GiB", "--local-directory", &path];
                let name = format!("small-{kind:?}-{round}");
                let worker = Worker::start(kind, &name, &self.python, &self.scheduler, &more);
                let count = self.client.workers().await.expect("an answer").len();
                let more = self.client.wait_for_workers(count + 1, PATIENCE).await;
                more.expect("a worker more");
                let taking_part = [&worker];
                let watch = Stopwatch::start(&taking_part);
                let arrays = self.arrays(&worker, COUNT, 4 << 20).await;
                let made = watch.stop();
                on_disk[index] = bytes_below(&own);
                let watch = Stopwatch::start(&taking_part);
                let sums = self.each(&arrays, kind.sum(), &worker).await;
                let read = watch.stop();
                resident[index] = resident[index].max(worker.memory());
                costs[index] = [made.0 / GIB, made.1 / GIB, read.0 / GIB, read.1 / GIB];
                drop((arrays, sums));
                self.settle().await;
                drop(worker);
                let fewer = async {
                    while self.client.workers().await.expect("an answer").len() > count {
                        self.settle().await;
                    }
                };
                fewer.await;
                let _ = fs::remove_dir_all(&own);
            }
            for (index, row) in rows.iter_mut().enumerate() {
                row.push((costs[0][index], costs[1][index]));
            }
        }
        let what = "1 GiB of 4 made";
        show(
            &format!("{what}, the most part spilled"),
            "s",
            1.0,
            &rows[0],
        );
        show("  processor time of the worker", "s", 1.0, &rows[1]);
        show("1 GiB of 4 summed, read from disk", "s", 1.0, &rows[2]);
        show("  processor time of the worker", "s", 1.0, &rows[3]);
        let writing: Vec<_> = ratios(&rows[0], &plain, |plain| plain.0);
        let reading: Vec<_> = ratios(&rows[2], &plain, |plain| plain.1);
        show("  making, over plain files written", "", 1.0, &writing);
        show("  summing, over plain files read", "", 1.0, &reading);
        println!(
            "  on disk {:.2} and {:.2} GiB, resident {:.2} and {:.2} GiB at the end",
            on_disk[0] / f64::from(1 << 30),
            on_disk[1] / f64::from(1 << 30),
            resident[0] / f64::from(1 << 30),
            resident[1] / f64::from(1 << 30),
        );
        let _ = fs::remove_dir_all(&directory);
    }
}

/// The time of both kinds over that of plain files, for a GiB each.
fn ratios(
    rows: &[(f64, f64)],
    plain: &[(f64, f64)],
    of: impl Fn(&(f64, f64)) -> f64,
) -> Vec<(f64, f64)> {
    let pairs = rows.iter().zip(plain);
    pairs
        .map(|((rust, python), plain)| (rust / of(plain), python / of(plain)))
        .collect()
}

/// Seconds to write and to read a GiB in files of `len` bytes.
fn plain_files(directory: &Path, count: usize, len: usize) -> (f64, f64) {
    let directory = directory.join("plain");
    fs::create_dir_all(&directory).expect("a directory");
    #[expect(clippy::cast_precision_loss, reason = "a length in GiB")]
    let gib = (count * len) as f64 / f64::from(1 << 30);
    let mut data = vec![0x5A_u8; len];
    let started = Instant::now();
    for index in 0..count {
        fs::write(directory.join(index.to_string()), &data).expect("it is written");
    }
    let written = started.elapsed().as_secs_f64();
    let started = Instant::now();
    for index in 0..count {
        let file = fs::File::open(directory.join(index.to_string()));
        std::io::Read::read_exact(&mut file.expect("exists"), &mut data).expect("it is read");
    }
    let read = started.elapsed().as_secs_f64();
    let _ = fs::remove_dir_all(&directory);
    (written / gib, read / gib)
}

/// Bytes of all files below a directory.
fn bytes_below(directory: &Path) -> f64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let lengths = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        #[expect(clippy::cast_precision_loss, reason = "a length in GiB")]
        Ok(metadata) => metadata.len() as f64,
        // It was removed in the meantime.
        Err(_) => 0.0,
    });
    lengths.sum()
}

fn of(kind: Kind, workers: &[Worker]) -> Vec<&Worker> {
    let ours = workers.iter().filter(|worker| worker.kind == kind);
    ours.collect()
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench");
    let Some(python) = arguments.next().map(PathBuf::from) else {
        println!("give an interpreter that has `distributed`");
        return;
    };
    let rounds = arguments
        .next()
        .map_or(5, |rounds| rounds.parse().expect("how many rounds"));
    let only: Vec<String> = arguments.collect();
    let wants = |work: &str| only.is_empty() || only.iter().any(|only| only == work);
    let (_process, scheduler) = daskwire_testing::bench::scheduler(&python);
    let client = Client::connect(&scheduler).await.expect("a scheduler");
    let workers = [
        Worker::start(Kind::Rust, "rust-0", &python, &scheduler, &[]),
        Worker::start(Kind::Rust, "rust-1", &python, &scheduler, &[]),
        Worker::start(Kind::Python, "python-0", &python, &scheduler, &[]),
        Worker::start(Kind::Python, "python-1", &python, &scheduler, &[]),
    ];
    let all = client.wait_for_workers(workers.len(), PATIENCE).await;
    all.expect("four workers");
    let mut bench = Bench {
        client,
        python,
        scheduler,
        rounds,
        count: 0,
    };
    // Both have imported their modules.
    for worker in &workers {
        bench.arrays(worker, 1, 1000).await;
        bench.additions(worker, 100, false).await;
    }
    heading("in a real cluster");
    if wants("tasks") {
        bench.tasks(&workers, 10_000, false).await;
    }
    if wants("chain") {
        bench.tasks(&workers, 1_000, true).await;
    }
    if wants("transfer") {
        bench.transfer(&workers).await;
    }
    if wants("spill") {
        bench.spill().await;
    }
    if wants("keys") {
        bench.keys(&workers).await;
    }
    bench.client.close().await.expect("closed");
}
