//! Tests of `daskwire worker --python` with libraries that use Dask.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "tests")]

mod collections;
mod files;
mod results;
mod scheduler_shuffles;
mod shuffles;

use std::path::Path;

use daskwire_testing::Peer;
use daskwire_testing::cluster::Cluster;

/// Starts a worker with a memory limit of 2 GiB, under a nanny.
fn worker(cluster: &Cluster, name: &str, interpreter: Option<&Path>, arguments: &[&str]) -> Peer {
    let program = env!("CARGO_BIN_EXE_daskwire");
    let arguments = [&["--memory-limit", "2GiB"], arguments].concat();
    let scheduler = cluster.scheduler.address();
    daskwire_testing::rust_worker(program, scheduler, name, interpreter, &arguments, &[])
}
