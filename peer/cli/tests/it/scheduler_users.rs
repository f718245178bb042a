//! Tests of `daskwire scheduler` with what users of Dask do: a client in Python, a worker of Dask
//! and one of this command.

use crate::scheduler_command::scheduler;
use daskwire_testing::{Environment, Peer, python};

/// The steps of `user_steps.py`, which are listed there.
#[test]
fn a_user_does_everything_from_submit_to_shutdown() {
    let mut scheduler = scheduler(&["--dashboard-address", "127.0.0.1:0"], &[]);
    let address = scheduler.address();
    let _dask = daskwire_testing::worker_under_nanny(address, "worker-0");
    let interpreter = python(Environment::Current);
    let program = env!("CARGO_BIN_EXE_daskwire");
    let arguments = ["--nthreads", "1", "--resources", "GPU=2"];
    let _rust = daskwire_testing::rust_worker(
        program,
        address,
        "worker-1",
        Some(&interpreter),
        &arguments,
        &[],
    );
    let client = Peer::spawn(Environment::Current, "user_steps.py", &[address]);
    let count: usize = client.address().parse().expect("a number");
    assert!(count >= 109, "only {count} steps");
    assert!(scheduler.ended(), "{}", scheduler.log());
}

/// `SpecCluster` and `Adaptive`, as dask-jobqueue and `SSHCluster` use them.
#[test]
fn cluster_classes_of_dask_scale_and_adapt() {
    let program = env!("CARGO_BIN_EXE_daskwire");
    Peer::spawn(Environment::Current, "spec_clusters.py", &[program]);
}
