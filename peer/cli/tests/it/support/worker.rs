//! A `daskwire worker` process.

use std::path::Path;
use std::process::Command;

use daskwire_testing::{Environment, Peer};

/// The command `daskwire worker`, which does not inherit an ignored SIGHUP, as under `nohup`.
pub(crate) fn worker_command() -> Command {
    let daskwire = env!("CARGO_BIN_EXE_daskwire");
    let mut command = if cfg!(target_os = "linux") {
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", daskwire]);
        command
    } else {
        Command::new(daskwire)
    };
    command.arg("worker");
    command
}

/// Starts a `daskwire worker` for the scheduler at `scheduler`, with these arguments and
/// environment variables. With an interpreter, the worker runs functions of Python.
pub(crate) fn rust_worker(
    scheduler: &str,
    name: &str,
    interpreter: Option<&Path>,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Peer {
    let program = env!("CARGO_BIN_EXE_daskwire");
    daskwire_testing::rust_worker(program, scheduler, name, interpreter, arguments, variables)
}

/// Starts a `daskwire worker --python` with two threads, a memory limit of 1 GiB and no nanny, as
/// [`rust_worker`] does.
pub(crate) fn python_worker(
    scheduler: &str,
    name: &str,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Peer {
    let limits = ["--no-nanny", "--nthreads", "2", "--memory-limit", "1GiB"];
    let arguments = [&limits[..], arguments].concat();
    let interpreter = daskwire_testing::python(Environment::Current);
    rust_worker(scheduler, name, Some(&interpreter), &arguments, variables)
}
