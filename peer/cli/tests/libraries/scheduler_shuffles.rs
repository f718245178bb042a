//! P2P shuffles with `daskwire scheduler --python`.

use std::path::Path;
use std::process::Command;

use daskwire_testing::{Peer, address_after, rust_worker, warnings_except, worker_in};

const PROGRAM: &str = env!("CARGO_BIN_EXE_daskwire");

/// The checks of `shuffles_client.py` in which no worker is lost.
const CHECKS: [[&str; 3]; 2] = [
    ["shuffle", "merge", "set_index"],
    ["rechunk", "at_once", "kept"],
];

#[derive(Clone, Copy)]
enum Kind {
    Python,
    Rust,
}

fn scheduler(interpreter: &Path) -> Peer {
    let mut command = Command::new(PROGRAM);
    command
        .args(["scheduler", "--host", "127.0.0.1", "--port", "0"])
        .arg("--no-dashboard")
        .arg("--python")
        .arg(interpreter);
    Peer::spawn_command("scheduler", &mut command, |log| {
        address_after(log, "Scheduler at:")
    })
}

fn worker(interpreter: &Path, scheduler: &str, name: &str, kind: Kind) -> Peer {
    let arguments = ["--memory-limit", "2GiB", "--nthreads", "2", "--no-nanny"];
    match kind {
        Kind::Python => worker_in(interpreter, scheduler, name),
        Kind::Rust => rust_worker(PROGRAM, scheduler, name, Some(interpreter), &arguments, &[]),
    }
}

/// Runs checks of a client in Python.
fn check(interpreter: &Path, scheduler: &str, checks: &[&str]) {
    let arguments = [&[scheduler][..], checks].concat();
    let script = "shuffles_client.py";
    drop(Peer::spawn_with(interpreter, script, &arguments));
}

/// Runs all checks on three workers.
fn shuffle_on(kinds: [Kind; 3]) {
    let interpreter = daskwire_testing::python_with_libraries();
    let scheduler = scheduler(&interpreter);
    let address = scheduler.address();
    let workers = ["a", "b", "c"];
    let workers: Vec<Peer> = workers
        .iter()
        .zip(kinds)
        .map(|(name, kind)| worker(&interpreter, address, name, kind))
        .collect();
    let check = |checks: &[&str]| check(&interpreter, address, checks);
    for checks in CHECKS {
        check(&checks);
    }
    for peer in workers.iter().chain([&scheduler]) {
        assert_eq!(warnings_except(&peer.log(), &[]), [""; 0]);
    }
    check(&["cancelled", "failed"]);
    let [first, second] = [0, 1].map(|index: usize| workers[index].id());
    check(&[
        &format!("lost_transfers:{first}"),
        &format!("lost_outputs:{second}"),
        "shuffle",
    ]);
    // The outputs may be done when the second worker is lost, and the shuffle with them.
    let log = scheduler.log();
    assert!(log.contains("starts again"), "{log}");
}

#[test]
fn workers_in_python_shuffle() {
    shuffle_on([Kind::Python; 3]);
}

#[test]
fn workers_in_rust_with_python_shuffle() {
    shuffle_on([Kind::Rust; 3]);
}

#[test]
fn workers_of_both_kinds_shuffle() {
    shuffle_on([Kind::Python, Kind::Rust, Kind::Rust]);
}
