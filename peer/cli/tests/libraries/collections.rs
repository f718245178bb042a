//! Data frames and labelled arrays with `daskwire scheduler --python`.

use std::process::Command;

use daskwire_testing::{Peer, address_after, rust_worker, warnings_except, worker_in};

#[test]
fn data_frames_and_labelled_arrays_are_computed_by_workers_of_both_kinds() {
    let interpreter = daskwire_testing::python_with_libraries();
    let program = env!("CARGO_BIN_EXE_daskwire");
    let mut command = Command::new(program);
    command
        .args(["scheduler", "--host", "127.0.0.1", "--port", "0"])
        .arg("--no-dashboard")
        .arg("--python")
        .arg(&interpreter);
    let scheduler = Peer::spawn_command("scheduler", &mut command, |log| {
        address_after(log, "Scheduler at:")
    });
    let address = scheduler.address();
    let _python = worker_in(&interpreter, address, "python");
    let arguments = ["--memory-limit", "2GiB"];
    let _rust = rust_worker(
        program,
        address,
        "rust",
        Some(&interpreter),
        &arguments,
        &[],
    );
    let arguments = [address, "frame", "labelled", "array"];
    drop(Peer::spawn_with(
        &interpreter,
        "collections_client.py",
        &arguments,
    ));
    assert_eq!(warnings_except(&scheduler.log(), &[]), [""; 0]);
}
