//! A `daskwire worker` process.

use std::process::Command;

use daskwire_testing::{Peer, address_after};

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
