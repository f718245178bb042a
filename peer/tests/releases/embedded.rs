//! Checks of the embedded scheduler with Python workers and Python clients.

use std::path::Path;

use daskwire_peer::Release;
use daskwire_peer::scheduler::FIRST_SERVED;
#[cfg(target_os = "linux")]
use daskwire_peer::scheduler::PythonOptions;
use daskwire_peer::scheduler::{Options, Policy};
use daskwire_scheduler::state::State;
use daskwire_testing::{Peer, worker_until};
use serde_json::json;

use super::mixed::{connect, ensure_warned};
use super::support::Embedded;
use super::{Failure, Outcome, Trial, ensure};

const NAMES: [&str; 2] = ["embedded: worker", "embedded: client"];

/// The first release of the list that is refused with a message that names it. Peers of
/// earlier releases wait for the scheduler's handshake before they send their own. Their
/// layout is therefore unknown, and they do not understand the handshake.
const FIRST_REFUSED: Release = Release::new(2021, 3, 1);

pub(crate) async fn checks(trial: &mut Trial) {
    let release: Release = trial.release.parse().expect("a release");
    if release < FIRST_REFUSED {
        for name in NAMES {
            trial.report.add(name, Outcome::NotMade);
        }
        return;
    }
    let python = trial.interpreter.clone();
    if release < FIRST_SERVED {
        trial.check(NAMES[0], refuses_worker(&python)).await;
        trial.check(NAMES[1], refuses_client(&python)).await;
        return;
    }
    let other = trial.other.clone();
    trial
        .check(NAMES[0], serves_workers(&python, other.as_deref()))
        .await;
    let client = async {
        serves_client(&python).await?;
        #[cfg(target_os = "linux")]
        serves_collections(&python).await?;
        Ok(())
    };
    trial.check(NAMES[1], client).await;
}

fn worker(python: &Path, scheduler: &str, name: &str) -> Peer {
    tokio::task::block_in_place(|| daskwire_testing::worker_in(python, scheduler, name))
}

// ROLES SCHEDULER-1
async fn refuses_worker(python: &Path) -> Result<(), Failure> {
    let embedded = Embedded::start().await;
    let address = embedded.scheduler.address().to_string();
    // A log may contain the message more than once.
    let refusal = |log: &str| {
        let start = log.find("this scheduler does not serve ")?;
        let refusal = &log[start..];
        let end = refusal.find(" or later")? + " or later".len();
        Some(refusal[..end].to_owned())
    };
    let start = || worker_until(python, &address, "old", refusal);
    let refused = tokio::task::block_in_place(start).address().to_owned();
    let count = embedded.scheduler.inspect(State::worker_count);
    ensure!(count == 0, "{count} workers");
    Err(refused.into())
}

// ROLES SCHEDULER-1
async fn refuses_client(python: &Path) -> Result<(), Failure> {
    let embedded = Embedded::start().await;
    let answer = connect(python, &embedded.scheduler.address().to_string())?;
    let error = answer["error"].as_str().unwrap_or_default();
    let refusal = error.strip_prefix("ImportError: ");
    Err(refusal
        .map_or_else(|| answer.to_string(), str::to_owned)
        .into())
}

// ROLES SCHEDULER-2
async fn serves_workers(python: &Path, other: Option<&Path>) -> Result<(), Failure> {
    let embedded = Embedded::start().await;
    let address = embedded.scheduler.address().to_string();
    let worker = worker(python, &address, "worker-0");
    let answer = connect(python, &address)?;
    let expected = json!({"error": null, "warnings": [], "sums": {"worker-0": 3}});
    ensure!(answer == expected, "{answer}");
    if let Some(other) = other {
        let answer = connect(other, &address)?;
        ensure_warned(&answer)?;
        ensure!(answer["sums"] == json!({"worker-0": 3}), "{answer}");
        let start = || daskwire_testing::worker_in(other, &address, "worker-1");
        let second = tokio::task::block_in_place(start);
        second.wait_for_log("Mismatched versions found");
    }
    embedded.close().await;
    worker.wait_for_log("End worker");
    ensure_clean(&worker)
}

// ROLES SCHEDULER-3, SCHEDULER-4, SCHEDULER-5, SCHEDULER-6, SCHEDULER-7, SCHEDULER-8
// ROLES SCHEDULER-9, SCHEDULER-10, SCHEDULER-11
async fn serves_client(python: &Path) -> Result<(), Failure> {
    let steps = [
        "journey",
        "story",
        "data",
        "errors",
        "broadcasts",
        "maps",
        "shares",
        "graphs",
        "nests",
        "interleaves",
        "shares_once",
        "steals",
        "options",
    ];
    serves(Embedded::start().await, python, &steps).await?;
    // ROLES SCHEDULER-18
    let policy = Policy::default().with_client_grace(core::time::Duration::from_secs(60));
    let options = Options::default().with_policy(policy);
    let embedded = Embedded::start_with(options).await;
    serves(embedded, python, &["comes_back"]).await
}

/// Graphs that only Python can convert, and P2P shuffles, with an interpreter of the release.
// ROLES SCHEDULER-12, SCHEDULER-13, SCHEDULER-14, SCHEDULER-15, SCHEDULER-16
// ROLES SCHEDULER-17
#[cfg(target_os = "linux")]
async fn serves_collections(python: &Path) -> Result<(), Failure> {
    let options = Options::default().with_python(PythonOptions::new(python));
    let embedded = Embedded::start_with(options).await;
    serves(embedded, python, &["converts", "exchanges"]).await
}

/// Runs steps of `embedded_client.py` with two workers.
async fn serves(embedded: Embedded, python: &Path, steps: &[&str]) -> Result<(), Failure> {
    let address = embedded.scheduler.address().to_string();
    let workers = ["worker-0", "worker-1"].map(|name| worker(python, &address, name));
    let arguments: Vec<&str> = [&*address]
        .into_iter()
        .chain(steps.iter().copied())
        .collect();
    let spawn = || Peer::spawn_with(python, "embedded_client.py", &arguments);
    let client = tokio::task::block_in_place(spawn);
    ensure!(client.address() == "done", "{}", client.address());
    let left = embedded.scheduler.inspect(State::task_count);
    ensure!(left == 0, "{left} tasks are left");
    let malformed = embedded.close().await;
    ensure!(malformed.is_empty(), "{malformed:?}");
    for worker in &workers {
        worker.wait_for_log("End worker");
        ensure_clean(worker)?;
    }
    Ok(())
}

/// Checks that a worker has logged no warnings but those about tasks that fail on purpose.
/// Some informational messages have a traceback, such as that the scheduler has closed. The
/// client of a task that submits others may report an error when the scheduler closes, and a worker
/// that leaves reports the task that it runs.
fn ensure_clean(worker: &Peer) -> Result<(), Failure> {
    let mut warnings = worker.warnings();
    let expected = [
        "Compute Failed",
        "Traceback",
        "distributed.client - ERROR",
        "ended with CancelledError",
    ];
    warnings.retain(|line| !expected.iter().any(|text| line.contains(text)));
    ensure!(warnings.is_empty(), "{warnings:?}");
    Ok(())
}
