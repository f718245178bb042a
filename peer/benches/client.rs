//! The client beside that of Python on one real cluster, and the journey of a
//! task on an embedded one.
//!
//! `cargo bench -p daskwire-peer --bench client -- PYTHON [ROUNDS [WORK...]]`
//!
//! PYTHON is an interpreter that has `distributed` 2026.8.0, such as those that
//! the tests make in `target/python`; WORK is some of `latency`, `graph`, `reports`,
//! `singles`, `gather`, `raw`, `pool` and `futures`, otherwise all of them. A scheduler and two
//! workers are started with it, then in every round the two clients do the same
//! work one after the other. A figure is the median over the rounds of what Rust
//! takes, over what Python does, with the least and the most; processor time is
//! that of the client's process. `reports` and `raw` are what receiving costs with nothing but
//! sockets: reading what the scheduler sends to a client of the graph, and receiving the arrays
//! into fresh memory. The memory of futures is what both clients have
//! allocated and not freed, by a counting allocator here and by `tracemalloc` in a
//! round of its own there, since that slows Python down.
//!
//! A journey is `z = add(x, y)` from `submit` to its result, in this process; the
//! floor is 100 bytes to a peer and an answer over the same transport. It is made
//! on a runtime of one thread, which needs no wake-ups, and on one of many.
#![allow(missing_docs)]

#[allow(dead_code, reason = "not every program reads all counters")]
#[path = "../../testing/src/counting.rs"]
mod counting;
mod raw;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use daskwire::msgpack::Writer;
use daskwire_comm::{BufferPool, CommOptions};
use daskwire_peer::client::{ClientOptions, Route, SubmitOptions, TaskFuture};
use daskwire_peer::cluster::{ClusterTransport, LocalCluster};
use daskwire_peer::graph::{Argument, Graph, Task};
use daskwire_peer::{Client, Key};
use daskwire_testing::bench::{Process, dask, heading, median, processor_time, show};
use futures_util::future::join_all;

use counting::HELD;
use raw::{RawComm, Reports};

/// The client of Python.
struct Python {
    _process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Seconds, seconds of processor, bytes that stay allocated.
#[derive(Clone, Copy, Debug)]
struct Cost {
    time: f64,
    cpu: f64,
    memory: f64,
}

impl Python {
    fn start(python: &Path, address: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/client_bench.py");
        let mut child = Command::new(python)
            .arg(script)
            .arg(address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python with distributed");
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut this = Self {
            _process: Process(child),
            input,
            output,
        };
        this.line();
        this
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        assert!(!line.is_empty(), "the client of Python has ended");
        line
    }

    fn work(&mut self, word: &str) -> Cost {
        writeln!(self.input, "{word}").expect("it reads");
        let line = self.line();
        let mut numbers = line
            .split_whitespace()
            .map(|number| number.parse().expect("a number"));
        let mut next = || numbers.next().expect("three numbers");
        Cost {
            time: next(),
            cpu: next(),
            memory: next(),
        }
    }
}

/// The client of Rust, and what it keeps between rounds.
struct Rust {
    client: Client,
    count: i64,
    arrays: Vec<TaskFuture>,
    /// A client that receives into memory which it has used before.
    pooled: Client,
    pooled_arrays: Vec<TaskFuture>,
    scheduler: String,
    /// Comms to the workers, with the keys of the arrays that each of them has.
    raw: Vec<(RawComm, Vec<Key>)>,
}

impl Rust {
    async fn work(&mut self, word: &str) -> Cost {
        if ["gather", "pool", "raw"].contains(&word) && self.arrays.is_empty() {
            for index in 0..16 {
                let call = self.client.call("numpy.full").argument(8 << 20);
                self.arrays.push(
                    call.argument(f64::from(index) + 0.5)
                        .submit()
                        .expect("submitted"),
                );
            }
            self.client.wait(&self.arrays).await;
        }
        if word == "pool" && self.pooled_arrays.is_empty() {
            let futures = self.arrays.iter();
            let futures = futures.map(|array| self.pooled.future(array.key().clone()));
            self.pooled_arrays = futures.collect::<Result<_, _>>().expect("futures");
            let all = self.pooled.gather_by(&self.pooled_arrays, Route::Direct);
            all.await.expect("arrays");
        }
        if word == "raw" && self.raw.is_empty() {
            let holders = self.client.who_has(&self.arrays).await.expect("answered");
            let mut keys = BTreeMap::<String, Vec<Key>>::new();
            for (key, holders) in holders {
                keys.entry(holders[0].clone()).or_default().push(key);
            }
            for (worker, keys) in keys {
                self.raw.push((RawComm::connect(&worker).await, keys));
            }
        }
        self.count += 1;
        let run = Key::unique("run").to_string();
        let mut reports = None;
        let allocated_before = HELD.load(Ordering::Relaxed);
        let (cpu_before, started) = (processor_time("self"), Instant::now());
        let mut held = Vec::new();
        match word {
            "latency" => {
                for _ in 0..100 {
                    self.count += 1;
                    let call = self.client.call("operator.add").argument(self.count);
                    let future = call.argument(0.25).submit().expect("submitted");
                    future.result().await.expect("a result");
                }
            }
            "graph" | "reports" => {
                held = self.graph(&run).await;
                if word == "reports" {
                    self.known(held[held.len() - 1].key()).await;
                    reports = Some(self.reports(&run).await);
                }
                self.client.gather(&held).await.expect("results");
                held.clear();
            }
            "singles" => {
                for index in 0..10_000_i64 {
                    let call = self
                        .client
                        .call("operator.sub")
                        .argument(index)
                        .argument(self.count);
                    held.push(call.impure().submit().expect("submitted"));
                }
                self.client.gather(&held).await.expect("results");
                held.clear();
            }
            "gather" => {
                let all = self.client.gather_by(&self.arrays, Route::Direct).await;
                assert_eq!(all.expect("arrays").len(), 16);
            }
            "raw" => {
                let received = join_all(self.raw.iter_mut().map(receive_raw)).await;
                assert!(received.iter().map(Vec::len).sum::<usize>() > 1 << 30);
            }
            "pool" => {
                let all = self.pooled.gather_by(&self.pooled_arrays, Route::Direct);
                assert_eq!(all.await.expect("arrays").len(), 16);
            }
            _ => {
                held = self.waiting(FUTURES).await;
            }
        }
        let (time, mut cpu) = (
            started.elapsed().as_secs_f64(),
            processor_time("self") - cpu_before,
        );
        if let Some(reports) = reports {
            let (reads, reading) = reports.stop();
            println!("  {reads} reads");
            cpu = reading;
        }
        let cost = Cost {
            time,
            cpu,
            memory: HELD.load(Ordering::Relaxed) as f64 - allocated_before as f64,
        };
        drop(held);
        cost
    }

    /// Futures of tasks that wait for one which no worker can run, once the scheduler
    /// has them.
    async fn waiting(&self, count: i64) -> Vec<TaskFuture> {
        let impossible = SubmitOptions::default().resource("UNOBTAINIUM", 1.0);
        let call = self.client.call("operator.neg").argument(1).impure();
        let first = call.with(impossible).submit().expect("submitted");
        let keys: Vec<Key> = (0..count).map(|_| Key::unique("sub")).collect();
        let tasks = keys.iter().zip(0..);
        let graph: Graph = tasks
            .map(|(key, index)| {
                let arguments = [Argument::from(&first), Argument::from(index)];
                Task::new(key.clone(), "operator.sub", arguments)
            })
            .collect();
        let last = keys.last().expect("there are some").clone();
        let mut futures = self
            .client
            .submit_graph(&graph, keys, &SubmitOptions::default())
            .expect("submitted");
        drop(graph);
        self.known(&last).await;
        // Without spare capacity, like the list of Python.
        futures.reserve_exact(1);
        futures.push(first);
        futures
    }

    /// Waits until the scheduler knows a task.
    async fn known(&self, key: &Key) {
        loop {
            let status = self.client.task_status([key.clone()]).await;
            if status.expect("a status")[0].1.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A client without a program that wants the tasks of [`graph`](Self::graph).
    async fn reports(&self, run: &str) -> Reports {
        let keys = |body: &mut Writer<'_>| {
            body.array(TASKS);
            for index in 0..TASKS {
                body.array(2).str(run).u64(index.into());
            }
        };
        Reports::start(&self.scheduler, keys).await
    }

    async fn graph(&self, run: &str) -> Vec<TaskFuture> {
        let key = |index: i64| Key::list([Key::from(run), Key::from(index)]);
        let graph: Graph = (0..i64::from(TASKS))
            .map(|index| Task::new(key(index), "operator.add", [index, self.count]))
            .collect();
        let keys = (0..i64::from(TASKS)).map(key).collect();
        let futures = self
            .client
            .submit_graph(&graph, keys, &SubmitOptions::default());
        futures.expect("submitted")
    }
}

/// Receives results from a worker.
async fn receive_raw((comm, keys): &mut (RawComm, Vec<Key>)) -> Vec<u8> {
    comm.send(|body| {
        body.map(3).str("op").str("get_data");
        body.str("reply").bool(true);
        body.str("keys").array(keys.len() as u32);
        for key in &*keys {
            body.str(key.as_str().expect("a string"));
        }
    })
    .await;
    let data = comm.receive().await;
    comm.send(|body| {
        body.str("OK");
    })
    .await;
    data
}

/// The number of tasks of one graph.
const TASKS: u32 = 10_000;

/// So many futures are held at the same time.
const FUTURES: i64 = 100_000;

async fn beside_python(python: &Path, rounds: usize, only: &[String]) {
    let (_scheduler, address) = daskwire_testing::bench::scheduler(python);
    let worker = ["worker", &address, "--nthreads", "1", "--no-nanny"];
    let _workers = [dask(python, &worker), dask(python, &worker)];
    let client = Client::connect(&address).await.expect("a scheduler");
    let timeout = Duration::from_secs(60);
    client
        .wait_for_workers(2, timeout)
        .await
        .expect("two workers");
    let mut theirs = Python::start(python, &address);
    let options = ClientOptions::default()
        .with_comm(CommOptions::default().with_pool(BufferPool::new(1 << 30)));
    let pooled = Client::connect_with(&address, options).await;
    let mut ours = Rust {
        client,
        count: 0,
        arrays: Vec::new(),
        pooled: pooled.expect("a scheduler"),
        pooled_arrays: Vec::new(),
        raw: Vec::new(),
        scheduler: address.clone(),
    };
    heading("on a real cluster");
    for (word, what, unit, scale, per) in [
        (
            "latency",
            "submit to result, one tiny task",
            "ms",
            1e3,
            100.0,
        ),
        ("graph", "10,000 tasks in one graph", "s", 1.0, 1.0),
        ("reports", "the same, read without a client", "s", 1.0, 1.0),
        ("singles", "10,000 tasks one by one", "s", 1.0, 1.0),
        (
            "gather",
            "1 GiB of arrays gathered from workers",
            "s",
            1.0,
            1.0,
        ),
        ("raw", "the same, received without a client", "s", 1.0, 1.0),
        ("pool", "the same into memory of a pool", "s", 1.0, 1.0),
        ("futures", "100,000 futures, waiting", "s", 1.0, 1.0),
    ] {
        if !only.is_empty() && !only.iter().any(|work| work == word) {
            continue;
        }
        let (mut times, mut cpus) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let rust = ours.work(word).await;
            let python = theirs.work(match word {
                "pool" | "raw" => "gather",
                "reports" => "graph",
                word => word,
            });
            times.push((rust.time / per, python.time / per));
            cpus.push((rust.cpu / per, python.cpu / per));
        }
        show(what, unit, scale, &times);
        show("  processor time of the client", unit, scale, &cpus);
        if word == "futures" {
            let count = FUTURES as f64;
            let (rust, python) = (ours.work(word).await, theirs.work("traced"));
            let memory = (rust.memory / count, python.memory / count);
            show("  memory per future", "B", 1.0, &[memory]);
        }
    }
    ours.arrays.clear();
    ours.pooled_arrays.clear();
    ours.pooled.close().await.expect("closed");
    ours.client.close().await.expect("closed");
}

async fn journey(transport: ClusterTransport, count: i64) {
    let cluster = LocalCluster::builder().transport(transport).start().await;
    let cluster = cluster.expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let x = client.submit("operator.add", [1, 2]).expect("submitted");
    let y = client.submit("operator.add", [3, 4]).expect("submitted");
    client.wait([&x, &y]).await;
    let mut times = Vec::new();
    for index in 0..count {
        let started = Instant::now();
        let call = client.call("operator.add").argument(&x).argument(&y);
        let z = call.key(Key::from(index)).submit().expect("submitted");
        z.result().await.expect("a result");
        times.push(started.elapsed().as_secs_f64() * 1e6);
    }
    drop((x, y));
    // 100 bytes there and one back, over a comm of the same kind.
    let scheme = cluster.address().scheme().to_string();
    let address = match transport {
        ClusterTransport::Memory => "inproc://the-floor".to_owned(),
        _ => format!("{scheme}://127.0.0.1:0"),
    };
    let (transports, options) = (cluster.client_options().transports, CommOptions::default());
    let address = address.parse().expect("an address");
    let listener = transports
        .bind(&address, options.clone())
        .await
        .expect("sent");
    let address = listener.local_address().expect("an address");
    let answering = tokio::spawn(async move {
        let incoming = listener.accept().await.expect("a comm");
        let mut comm = incoming.handshake().await.expect("a handshake");
        while let Ok(Some(_)) = comm.read_message().await {
            comm.write_message(&[[1]]).await.expect("taken");
        }
    });
    let comm = transports.connect(&address, &options).await;
    let mut comm = comm.expect("a comm");
    let mut floors = Vec::new();
    for _ in 0..count {
        let started = Instant::now();
        comm.write_message(&[[0; 100]]).await.expect("taken");
        comm.read_message()
            .await
            .expect("an answer")
            .expect("an answer");
        floors.push(started.elapsed().as_secs_f64() * 1e6);
    }
    let _ = comm.close().await;
    answering.abort();
    client.close().await.expect("closed");
    cluster.close().await;
    let (time, least, _) = median(times);
    let floor = median(floors).0;
    println!(
        "{:<10} {time:>8.0} µs (least {least:.0}), {:>5.1} round trips of {floor:.0} µs",
        format!("{transport:?}"),
        time / floor
    );
}

fn main() {
    let runtime = |mut builder: tokio::runtime::Builder| {
        let runtime = builder.enable_all().build();
        runtime.expect("a runtime")
    };
    let one_thread = runtime(tokio::runtime::Builder::new_current_thread());
    let many_threads = runtime(tokio::runtime::Builder::new_multi_thread());
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench");
    let python = arguments.next().map(PathBuf::from);
    let rounds = arguments
        .next()
        .map_or(5, |rounds| rounds.parse().expect("how many rounds"));
    let only: Vec<String> = arguments.collect();
    if only.is_empty() {
        for (name, runtime) in [
            ("one thread", &one_thread),
            ("all processors", &many_threads),
        ] {
            println!("one journey on an embedded cluster, median of 2,000, on {name}");
            for &transport in ClusterTransport::ALL {
                runtime.block_on(journey(transport, 2_000));
            }
            println!();
        }
    }
    match python {
        Some(python) => many_threads.block_on(beside_python(&python, rounds, &only)),
        None => println!("give an interpreter that has `distributed` for the rest"),
    }
}
