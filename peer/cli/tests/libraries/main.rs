//! Tests of `daskwire worker --python` with libraries that use Dask.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "tests")]

mod results;
mod shuffles;

use std::path::Path;
use std::process::Command;

use daskwire_testing::cluster::Cluster;
use daskwire_testing::{Peer, address_after};

/// Starts a worker. Output of its tasks is discarded.
fn worker(cluster: &Cluster, name: &str, interpreter: Option<&Path>, arguments: &[&str]) -> Peer {
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec \"$0\" \"$@\" >/dev/null"])
        .args([env!("CARGO_BIN_EXE_daskwire"), "worker"])
        .arg(cluster.scheduler.address())
        .args(["--name", name])
        .args(["--memory-limit", "2GiB"])
        .args(arguments);
    if let Some(interpreter) = interpreter {
        command.arg("--python").arg(interpreter);
    }
    Peer::spawn_command(name, &mut command, |log| address_after(log, " at "))
}
