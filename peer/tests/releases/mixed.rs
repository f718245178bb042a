//! Checks with two minor versions of Python in one cluster, which Dask warns about.

use std::path::Path;

use daskwire_peer::worker::Functions;
use daskwire_testing::{Peer, scheduler_in, worker_in};
use serde_json::{Value, json};

use super::worker::rust;
use super::{Failure, Outcome, Trial, ensure};

const NAME: &str = "mixed Python";

pub(crate) async fn checks(trial: &mut Trial) {
    let Some(other) = trial.other.clone() else {
        trial.report.add(NAME, Outcome::NotMade);
        return;
    };
    let Some(scheduler) = trial.start(&[NAME], |python| scheduler_in(python, "tcp", 1)) else {
        return;
    };
    let python = trial.interpreter.clone();
    trial.check(NAME, mixed(&scheduler, &python, &other)).await;
}

/// Connects a Python client with an interpreter, and returns its report.
pub(crate) fn connect(interpreter: &Path, scheduler: &str) -> Result<Value, Failure> {
    let spawn = || Peer::spawn_with(interpreter, "connect.py", &[scheduler]);
    let client = tokio::task::block_in_place(spawn);
    Ok(serde_json::from_str(client.address())?)
}

/// Fails unless there is exactly one warning, with a line about Python.
pub(crate) fn ensure_warned(answer: &Value) -> Result<(), Failure> {
    let warning = answer["warnings"][0].as_str().unwrap_or_default();
    let mut lines = warning.lines();
    ensure!(
        lines.next() == Some("Mismatched versions found")
            && lines.any(|line| line.starts_with("| python "))
            && answer["warnings"][1].is_null(),
        "{answer}"
    );
    Ok(())
}

// ROLES SCHEDULER-2
async fn mixed(scheduler: &Peer, python: &Path, other: &Path) -> Result<(), Failure> {
    let address = scheduler.address();
    let before = connect(other, address)?;
    ensure_warned(&before)?;
    ensure!(before["sums"] == json!({"worker-0": 3}), "{before}");
    // A Rust worker has no Python version, so the warning does not change.
    let worker = rust(address, "rust", Functions::builtins()).await?;
    let after = connect(other, address)?;
    ensure!(after["warnings"] == before["warnings"], "{after}");
    let sums = json!({"rust": 3, "worker-0": 3});
    ensure!(after["sums"] == sums, "{after}");
    let own = connect(python, address)?;
    ensure!(own["warnings"] == json!([]) && own["sums"] == sums, "{own}");
    // A worker with another Python is warned, and so are clients from then on.
    let start = || worker_in(other, address, "other");
    let third = tokio::task::block_in_place(start);
    third.wait_for_log("Mismatched versions found");
    let own = connect(python, address)?;
    ensure_warned(&own)?;
    let sums = json!({"other": 3, "rust": 3, "worker-0": 3});
    ensure!(own["sums"] == sums, "{own}");
    worker.close().await;
    let mut errors = scheduler.warnings();
    errors.retain(|line| !line.contains(" - WARNING - "));
    ensure!(errors.is_empty(), "{errors:?} in {}", scheduler.log());
    Ok(())
}
