//! Schedulers that are killed, and others that continue from their journals.

use std::collections::HashMap;
use std::fs;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daskwire_peer::client::SubmitOptions;
use daskwire_peer::graph::{Argument, Graph, Task};
use daskwire_peer::worker::{Context, Functions, Worker};
use daskwire_peer::{Client, Key};
use daskwire_testing::cluster::Cluster;
use daskwire_testing::{Environment, Peer, address_after, python};

use crate::support::scratch::Scratch;

/// Number of tasks of the graph, and of schedulers that are killed while it runs. With
/// `DASKWIRE_KILLS=200`, as many are killed, and the graph has 10,000 tasks.
fn sizes() -> (usize, usize) {
    let kills = std::env::var("DASKWIRE_KILLS").ok();
    match kills.and_then(|kills| kills.parse().ok()) {
        Some(kills) => (10_000, kills),
        None => (1_000, 4),
    }
}

/// How often each task was run.
type Runs = Arc<Mutex<HashMap<Key, usize>>>;

/// The result of a task, which does not grow with the number of tasks.
fn sum(values: &[i64]) -> i64 {
    values.iter().sum::<i64>() % 1_000_003
}

/// `node` adds its arguments, takes some milliseconds, and counts its runs.
fn functions(runs: &Runs) -> Functions {
    let runs = Arc::clone(runs);
    Functions::builtins().function("node", move |context: Context, values: Vec<i64>| {
        let mut runs = runs.lock().unwrap_or_else(PoisonError::into_inner);
        *runs.entry(context.key().clone()).or_default() += 1;
        drop(runs);
        std::thread::sleep(Duration::from_millis(2));
        sum(&values)
    })
}

/// Starts a scheduler at an address, or a free port of the loopback interface.
fn scheduler(directory: &Scratch, address: Option<&str>, sync: &str) -> Peer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    let port = address.and_then(|address| address.rsplit(':').next());
    command.args(["scheduler", "--host", "127.0.0.1", "--no-dashboard"]);
    command.args(["--port", port.unwrap_or("0"), "--journal-sync", sync]);
    command.arg("--journal").arg(directory.path());
    Peer::spawn_command("scheduler", &mut command, |log| {
        address_after(log, "Scheduler at:")
    })
}

/// A graph in rows of 50, whose tasks add two of the row before.
fn graph(task_count: usize) -> (Graph, Vec<Key>, Vec<i64>) {
    const ROW: usize = 50;
    let key = |number: usize| Key::from(format!("node-{number}"));
    let mut values: Vec<i64> = Vec::new();
    let mut tasks = Vec::new();
    for number in 0..task_count {
        let above: Vec<usize> = match number.checked_sub(ROW) {
            None => Vec::new(),
            Some(above) => vec![above, above - above % ROW + (above + 1) % ROW],
        };
        let own = number as i64;
        let added: Vec<i64> = above.iter().map(|above| values[*above]).collect();
        values.push(sum(&[&added[..], &[own]].concat()));
        let arguments = above.iter().map(|above| Argument::from(&key(*above)));
        let arguments = arguments.chain([Argument::from(own)]);
        tasks.push((number, arguments.collect::<Vec<Argument>>()));
    }
    let graph = tasks.into_iter().map(|(number, arguments)| {
        Task::new(key(number), "native:node", [Argument::list(arguments)])
    });
    let last = task_count - ROW..task_count;
    let wanted = last.clone().map(key).collect();
    (graph.collect(), wanted, values[last].to_vec())
}

/// Numbers below `end` in ascending order, as random as the hash of their places.
fn random_numbers(count: usize, end: usize) -> Vec<usize> {
    let numbers = (0..count).map(|place| {
        let hash = (place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> 33) as usize % end
    });
    let mut numbers: Vec<usize> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_and_nothing_runs_twice_when_schedulers_are_killed() {
    for sync in ["always", "interval", "never"] {
        kill_schedulers(sync).await;
    }
}

async fn kill_schedulers(sync: &str) {
    let directory = Scratch::new(&format!("journal-kills-{sync}"));
    let (task_count, kill_count) = sizes();
    let runs = Runs::default();
    let mut killed = scheduler(&directory, None, sync);
    let address = killed.address().to_owned();
    let mut workers = Vec::new();
    for name in ["one", "two"] {
        let worker = Worker::builder(address.parse().expect("an address"));
        let worker = worker.name(name).nthreads(2).functions(functions(&runs));
        workers.push(worker.start().await.expect("it starts"));
    }
    let client = Client::connect(&address).await.expect("it connects");
    let (graph, keys, expected) = graph(task_count);
    let futures = client.submit_graph(&graph, keys, &SubmitOptions::default());
    let futures = futures.expect("it is connected");
    let ran = |runs: &Runs| runs.lock().unwrap_or_else(PoisonError::into_inner).len();
    let mut points = random_numbers(kill_count, task_count);
    match sync {
        // Before the graph is accepted.
        "always" => points[0] = 0,
        // Tasks that have run before their graph is on disk run again.
        _ => points.retain(|point| *point > task_count / 10),
    }
    for until in points {
        while ran(&runs) < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::task::block_in_place(|| {
            killed.signal("KILL");
            killed.ended();
            killed = scheduler(&directory, Some(&address), sync);
        });
    }
    let results = client.gather(&futures).await.expect("all are computed");
    let results: Result<Vec<i64>, _> = results.into_iter().map(i64::try_from).collect();
    assert_eq!(results.expect("numbers"), expected);
    let runs = runs.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert_eq!(runs.len(), task_count);
    let again: Vec<_> = runs.iter().filter(|(_, count)| **count != 1).collect();
    assert!(again.is_empty(), "{again:?}\n{}", killed.log());
    let log = killed.log();
    assert!(log.contains("continues with"), "{log}");

    // Nothing of it is left in memory, and nothing that the next scheduler would read.
    drop(futures);
    while !client.task_states().await.expect("it replies").is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // What was answered is on disk at most 50 ms later.
    tokio::time::sleep(Duration::from_millis(200)).await;
    // A signal that ends it in order has workers and clients wait for the next one, too.
    tokio::task::block_in_place(|| {
        killed.signal("TERM");
        assert!(killed.ended(), "{}", killed.log());
        killed = scheduler(&directory, Some(&address), sync);
    });
    client.connected().await.expect("it connects again");
    let sum = client.submit("native:node", [vec![1, 2]]);
    let sum = sum.expect("it is connected").result_as::<i64>().await;
    assert_eq!(sum.expect("it is computed"), 3);
    let log = killed.log();
    assert!(!log.contains("continues with"), "{log}");
    let files = fs::read_dir(directory.path()).expect("it exists");
    let len = files.map(|file| {
        file.and_then(|file| file.metadata())
            .map_or(0, |file| file.len())
    });
    let len: u64 = len.sum();
    assert!(len < 64 << 10, "{len} bytes for {task_count} tasks");
    client.close().await.expect("it is connected");
    for worker in workers {
        worker.close().await;
    }
}

/// A disk is full, as for a limit of the length of files, which needs no disk of its own.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_reported_once_and_written_to_again() {
    let directory = Scratch::new("journal-full");
    let runs = Runs::default();
    let mut command = Command::new("sh");
    // In units of 512 or 1024 bytes.
    let limited = "trap '' XFSZ; ulimit -S -f 64; exec \"$0\" \"$@\"";
    command.args(["-c", limited, env!("CARGO_BIN_EXE_daskwire")]);
    command.args(["scheduler", "--host", "127.0.0.1", "--no-dashboard"]);
    command.args(["--port", "0", "--journal-sync", "always", "--journal"]);
    command.arg(directory.path());
    let mut full = Peer::spawn_command("scheduler", &mut command, |log| {
        address_after(log, "Scheduler at:")
    });
    let address = full.address().to_owned();
    let worker = Worker::builder(address.parse().expect("an address"));
    let worker = worker.nthreads(1).functions(functions(&runs));
    let worker = worker.start().await.expect("it starts");
    let client = Client::connect(&address).await.expect("it connects");
    let mut futures = Vec::new();
    let mut expected = Vec::new();
    // The second does not fit, and the third comes while the disk is full.
    for (part, len) in [10, 2000, 10].into_iter().enumerate() {
        let keys = (0..20).map(|number| Key::from(format!("part-{part}-{number}")));
        let keys: Vec<Key> = keys.collect();
        let tasks = keys.iter().map(|key| {
            let arguments = Argument::list(vec![1; len]);
            Task::new(key.clone(), "native:node", [arguments])
        });
        let graph: Graph = tasks.collect();
        let submitted = client.submit_graph(&graph, keys.clone(), &SubmitOptions::default());
        let submitted = submitted.expect("it is connected");
        client.gather(&submitted).await.expect("all are computed");
        futures.extend(submitted);
        expected.extend(keys);
    }
    const FAILS: &str = "the journal cannot be written: ";
    full.wait_for_line(&[FAILS, "File too large", "writing is tried again"]);
    let id = full.id().to_string();
    let raised = Command::new("prlimit")
        .args(["--pid", &id, "--fsize=unlimited"])
        .status();
    assert!(raised.expect("util-linux has it").success());
    full.wait_for_log("the journal is written again");
    let log = full.log();
    assert_eq!(log.matches(FAILS).count(), 1, "{log}");
    tokio::task::block_in_place(|| {
        full.signal("KILL");
        full.ended();
        full = scheduler(&directory, Some(&address), "always");
    });
    client.gather(&futures).await.expect("all are there");
    let log = full.log();
    assert!(log.contains("continues with 60 tasks"), "{log}");
    let runs = runs.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(runs.values().all(|count| *count == 1), "{runs:?}");
    assert_eq!(runs.len(), expected.len());
    client.close().await.expect("it is connected");
    worker.close().await;
}

/// Clients in Python cancel their futures when the connection breaks, and workers of Dask end. What
/// was submitted is computed again on the workers that join, and is there for those who submit it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_python_finds_what_it_submits_again() {
    let directory = Scratch::new("journal-python");
    let noted = Scratch::new("journal-python-runs");
    let first = scheduler(&directory, None, "always");
    let address = first.address().to_owned();
    let worker = daskwire_testing::worker(&address, "first");
    let interpreter = python(Environment::Current);
    let mut cluster = Cluster {
        client: Peer::spawn_with(&interpreter, "worker_client.py", &[&address]),
        scheduler: first,
    };
    let submit = format!(
        "import os, uuid\n\
         def noted(i):\n    open(f'{}/{{i}}-{{uuid.uuid4()}}', 'w').close()\n    return i\n\n\
         keys = [f'noted-{{i}}' for i in range(20)]\n\
         submit = lambda: [client.submit(noted, i, key=key) for i, key in enumerate(keys)]\n\
         futures = submit()\nsum(client.gather(futures))",
        noted.path()
    );
    assert_eq!(cluster.python(&submit), "190");
    cluster.scheduler.signal("KILL");
    tokio::task::block_in_place(|| {
        cluster.scheduler.ended();
        cluster.scheduler = scheduler(&directory, Some(&address), "always");
    });
    drop(worker);
    let _worker = daskwire_testing::worker(&address, "second");
    let scheduler = &cluster.scheduler;
    tokio::task::block_in_place(|| scheduler.wait_for_log("has returned to its 20 keys"));
    assert_eq!(
        cluster.python("{future.status for future in futures}"),
        "{'cancelled'}"
    );
    assert_eq!(cluster.python("sum(client.gather(submit()))"), "190");
    // Each ran once before and once after, for the journal or the client.
    let count = format!("len(os.listdir('{}'))", noted.path());
    assert_eq!(cluster.python(&count), "40");
}
