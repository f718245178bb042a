//! A `daskwire worker` process.

use std::process::Command;

use daskwire_testing::{Environment, Peer, address_after};

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

/// Starts a `daskwire worker` without a nanny for the scheduler at `scheduler`, with these
/// arguments and environment variables.
pub(crate) fn rust_worker(
    scheduler: &str,
    name: &str,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Peer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    command
        .args(["worker", scheduler, "--no-nanny", "--name", name])
        .args(arguments)
        .envs(variables.iter().copied());
    let label = format!("worker {name} at");
    Peer::spawn_command(name, &mut command, |log| address_after(log, &label))
}

/// Starts a `daskwire worker --python` with two threads and a memory limit of 1 GiB, as
/// [`rust_worker`] does.
pub(crate) fn python_worker(
    scheduler: &str,
    name: &str,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Peer {
    let python = daskwire_testing::python(Environment::Current);
    let python = python.to_str().expect("a UTF-8 path");
    let limits = ["--nthreads", "2", "--memory-limit", "1GiB"];
    let arguments = [&["--python", python][..], &limits, arguments].concat();
    rust_worker(scheduler, name, &arguments, variables)
}
