//! A real Dask cluster with a scripted client.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::{Environment, Peer, READY_TIMEOUT, warnings_except};

/// A Python scheduler and Python workers, and a client.
#[derive(Debug)]
pub struct Cluster {
    /// The client, `worker_client.py`.
    pub client: Peer,
    /// The scheduler and its workers.
    pub scheduler: Peer,
}

impl Cluster {
    /// Starts a scheduler and Python workers named `worker-0`, `worker-1` and so
    /// on.
    pub fn new(worker_count: usize) -> Self {
        Self::with(&crate::python(Environment::Current), worker_count)
    }

    /// Like [`new`](Self::new), with the Dask release of an interpreter.
    pub fn with(interpreter: &Path, worker_count: usize) -> Self {
        let scheduler = crate::scheduler_in(interpreter, "tcp", worker_count);
        let client = Peer::spawn_with(interpreter, "worker_client.py", &[scheduler.address()]);
        Self { client, scheduler }
    }

    /// Runs Python code in the client, and returns its output.
    ///
    /// # Panics
    ///
    /// If the code raises an exception.
    pub fn python(&mut self, code: &str) -> String {
        self.try_python(code)
            .unwrap_or_else(|error| panic!("{code}: {error}"))
    }

    /// Like [`python`](Self::python), returning the exception.
    ///
    /// # Errors
    ///
    /// The type and text of the exception that the code raised.
    pub fn try_python(&mut self, code: &str) -> Result<String, String> {
        let question = serde_json::json!({"op": "do", "code": code}).to_string();
        let asked = tokio::task::block_in_place(|| self.client.try_ask(&question, &[]));
        let (answer, _) = asked.unwrap_or_else(|error| {
            let peers = [&self.scheduler].into_iter();
            let peers = peers.chain(self.scheduler.workers());
            let logs: Vec<String> = peers.map(Peer::log).collect();
            panic!("{code}: {error}; the logs:\n{}", logs.join("\n"));
        });
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("a document");
        match answer["value"].as_str() {
            Some(value) => Ok(value.to_owned()),
            None => Err(answer["error"].as_str().unwrap_or_default().to_owned()),
        }
    }

    /// Asserts that the scheduler and its Python workers have logged no warnings. Two
    /// warnings are allowed: a heartbeat that arrives just after its worker was retired,
    /// and Dask's messages at the start and end of each P2P shuffle.
    ///
    /// # Panics
    ///
    /// If there are warnings.
    pub fn check_logs(&self) {
        self.check_logs_except(&[]);
    }

    /// Like [`check_logs`](Self::check_logs), and also allows lines that contain one of `parts`,
    /// with the tracebacks that follow them.
    ///
    /// # Panics
    ///
    /// If there are other warnings.
    pub fn check_logs_except(&self, parts: &[&str]) {
        if let Some((line, log)) = self.warning_except(parts) {
            panic!("{line}: the whole log:\n{log}");
        }
    }

    /// The first unexpected warning and its log, as in [`check_logs`](Self::check_logs).
    pub fn warning(&self) -> Option<(String, String)> {
        self.warning_except(&[])
    }

    fn warning_except(&self, parts: &[&str]) -> Option<(String, String)> {
        let workers = self.scheduler.workers().iter();
        let routine: Vec<String> = workers
            .map(|worker| format!("heartbeat from unregistered worker '{}'", worker.address()))
            .chain(ROUTINE.map(str::to_owned))
            .collect();
        let routine = routine.iter().map(String::as_str);
        let expected: Vec<&str> = routine.chain(parts.iter().copied()).collect();
        let peers = [&self.scheduler].into_iter();
        for peer in peers.chain(self.scheduler.workers()) {
            let log = peer.log();
            if let Some(line) = warnings_except(&log, &expected).into_iter().next() {
                return Some((line, log));
            }
        }
        None
    }
}

/// Waits until a condition holds.
///
/// # Panics
///
/// If the condition does not hold within the timeout.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + READY_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Parts of harmless lines that Dask logs as warnings.
const ROUTINE: [&str; 3] = [
    "Scheduler was unaware of this worker",
    " initialized by task ",
    " deactivated due to stimulus 'task-",
];
