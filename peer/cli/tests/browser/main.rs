//! Tests of the dashboard in a real browser, on real clusters. `setup.sh` installs what they need.
//!
//! With `DASKWIRE_SCREENSHOTS=1`, the tests also replace the pictures of the guide.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "tests")]

mod live;
mod modules;
mod names;
mod sizes;
mod views;
mod webdriver;

use std::process::Command;

use daskwire_testing::cluster::Cluster;
use daskwire_testing::{Environment, Peer, address_after, python};

use webdriver::Browser;

const PROGRAM: &str = env!("CARGO_BIN_EXE_daskwire");

/// Starts `daskwire scheduler` at a port, with a dashboard at another one.
fn scheduler(port: &str, dashboard_port: &str, arguments: &[&str]) -> Peer {
    let mut command = Command::new(PROGRAM);
    command.args(["scheduler", "--host", "127.0.0.1", "--port", port]);
    command.arg("--dashboard-address");
    command.arg(format!("127.0.0.1:{dashboard_port}"));
    command.args(arguments);
    // Workers of `load.py` send no heartbeats.
    command.env("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "1 hour");
    Peer::spawn_command("scheduler", &mut command, |log| {
        address_after(log, "Scheduler at:")
    })
}

/// The port of the dashboard of a scheduler.
fn dashboard_port(scheduler: &Peer) -> String {
    let log = scheduler.log();
    let (_, rest) = log.split_once("http://127.0.0.1:").expect("a dashboard");
    rest.chars().take_while(char::is_ascii_digit).collect()
}

/// A scheduler with a dashboard, and a client in Python.
fn cluster() -> Cluster {
    with_client(scheduler("0", "0", &[]))
}

/// A scheduler and a client of it in Python.
fn with_client(scheduler: Peer) -> Cluster {
    let client = Peer::spawn(
        Environment::Current,
        "worker_client.py",
        &[scheduler.address()],
    );
    Cluster { client, scheduler }
}

/// Starts a worker in Rust that runs functions of Python.
fn rust_worker(scheduler: &Peer, name: &str, arguments: &[&str]) -> Peer {
    let interpreter = python(Environment::Current);
    let arguments = [&["--memory-limit", "500MB", "--no-nanny"], arguments].concat();
    daskwire_testing::rust_worker(
        PROGRAM,
        scheduler.address(),
        name,
        Some(&interpreter),
        &arguments,
        &[],
    )
}

/// Starts a browser for the dashboard of a scheduler.
fn browser(scheduler: &Peer, width: u32) -> Browser {
    Browser::start(&dashboard_port(scheduler), width)
}

/// A key as a part of an URL.
fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect()
}
