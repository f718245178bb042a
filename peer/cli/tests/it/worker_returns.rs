//! Tests of `daskwire worker` when its scheduler is killed.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::scratch::Scratch;
use daskwire_testing::cluster::Cluster;
use daskwire_testing::process::children;
use daskwire_testing::{Environment, Peer, address_after, python, rust_worker};

const PROGRAM: &str = env!("CARGO_BIN_EXE_daskwire");

/// What a worker says when its connection is lost.
const LOST: &str = "tries to register again for";

fn scheduler(port: &str, arguments: &[&str]) -> Peer {
    let mut command = Command::new(PROGRAM);
    command.args(["scheduler", "--host", "127.0.0.1", "--port", port]);
    command.args(arguments);
    Peer::spawn_command("scheduler", &mut command, |log| {
        address_after(log, "Scheduler at:")
    })
}

fn client(scheduler: Peer) -> Cluster {
    let python = python(Environment::Current);
    let client = Peer::spawn_with(&python, "worker_client.py", &[scheduler.address()]);
    Cluster { client, scheduler }
}

fn port(scheduler: &Peer) -> String {
    let (_, port) = scheduler.address().rsplit_once(':').expect("an address");
    port.to_owned()
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_a_nanny_outlives_its_scheduler() {
    let scratch = Scratch::new("worker-returns");
    let begun = scratch.0.join("begun");
    let first = scheduler("0", &[]);
    let (address, port) = (first.address().to_owned(), port(&first));
    let python = python(Environment::Current);
    let worker = rust_worker(
        PROGRAM,
        &address,
        "rust",
        Some(&python),
        &["--nthreads", "2"],
        &[],
    );
    let processes = children(worker.id());
    assert_eq!(processes.len(), 1, "the worker of the nanny");
    let mut cluster = client(first);
    let code = format!(
        "def work(path):\n    \
             open(path, 'a').write('x')\n    \
             time.sleep(3)\n    \
             return 5\n\
         x = client.submit(operator.add, 1, 2)\n\
         y = client.submit(work, {:?})\n\
         x.result(timeout=60)",
        begun.display().to_string()
    );
    assert_eq!(cluster.python(&code), "3");
    until("the task runs", || begun.exists());
    // The client and the scheduler are killed.
    drop(cluster);
    worker.wait_for_log(LOST);
    let mut cluster = client(scheduler(&port, &[]));
    worker.wait_for_log("again, and keeps its data");
    cluster.python("client.wait_for_workers(1, timeout=60)");
    // The scheduler does not know the tasks.
    let data = "sum(client.nbytes(summary=False).values())";
    assert_eq!(cluster.python(data), "0");
    let keys = "sum(map(len, client.run(lambda dask_worker: list(dask_worker.data)).values()))";
    let deadline = Instant::now() + Duration::from_secs(60);
    while cluster.python(keys) != "0" {
        assert!(Instant::now() < deadline, "data is left");
        thread::sleep(Duration::from_millis(100));
    }
    let code = "client.submit(lambda x: x * 2, 21).result(timeout=60)";
    assert_eq!(cluster.python(code), "42");
    assert_eq!(children(worker.id()), processes, "it was not restarted");
    assert_eq!(fs::read_to_string(&begun).expect("a file"), "x");
}

#[test]
fn a_worker_finds_its_scheduler_by_a_file() {
    let scratch = Scratch::new("worker-follows");
    let file = scratch.0.join("scheduler.json");
    let file = file.to_str().expect("UTF-8");
    let first = scheduler("0", &["--scheduler-file", file]);
    let mut command = Command::new(PROGRAM);
    command.args([
        "worker",
        "--scheduler-file",
        file,
        "--name",
        "rust",
        "--nthreads",
        "1",
    ]);
    let worker = Peer::spawn_command("worker", &mut command, |log| {
        address_after(log, "worker rust at")
    });
    let before = first.address().to_owned();
    drop(first);
    worker.wait_for_log(LOST);
    let second = scheduler("0", &["--scheduler-file", file]);
    assert_ne!(second.address(), before);
    second.wait_for_line(&["(rust) joined", worker.address()]);
    worker.wait_for_line(&["again, and keeps its data", second.address()]);
}

#[test]
fn a_worker_without_a_scheduler_ends_after_a_time_or_a_signal() {
    for nanny in ["--nanny", "--no-nanny"] {
        let first = scheduler("0", &[]);
        let address = first.address().to_owned();
        let arguments = ["--nthreads", "1", nanny];
        let limited = [&arguments[..], &["--death-timeout", "2s"]].concat();
        let mut ends = rust_worker(PROGRAM, &address, "ends", None, &limited, &[]);
        let mut stopped = rust_worker(PROGRAM, &address, "stopped", None, &arguments, &[]);
        drop(first);
        for worker in [&ends, &stopped] {
            worker.wait_for_log(LOST);
        }
        stopped.wait_for_log("for 60 s");
        let asked = Instant::now();
        assert!(stopped.terminate(), "{}", stopped.log());
        assert!(
            asked.elapsed() < Duration::from_secs(10),
            "{:?}",
            asked.elapsed()
        );
        assert!(!ends.ended(), "{}", ends.log());
        // What it has written may not be read yet.
        let expected = "daskwire: the connection to the scheduler was lost: ";
        let is_last = |log: &str| {
            let last = log.lines().rfind(|line| line.starts_with("daskwire: "));
            last.is_some_and(|line| line.starts_with(expected))
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_last(&ends.log()) {
            assert!(Instant::now() < deadline, "{}", ends.log());
            thread::sleep(Duration::from_millis(10));
        }
    }
}
