//! A cluster of a real Dask with a client that does what a test says.

use std::time::{Duration, Instant};

use crate::{Environment, Peer};

/// A scheduler and workers of Python, and a client.
#[derive(Debug)]
pub struct Cluster {
    /// The client, `worker_client.py`.
    pub client: Peer,
    /// The scheduler and its workers.
    pub scheduler: Peer,
}

impl Cluster {
    /// A scheduler with workers in Python, named `worker-0` …
    pub fn new(worker_count: usize) -> Self {
        let scheduler = crate::scheduler_with_workers(worker_count);
        let client = Peer::spawn(
            Environment::Current,
            "worker_client.py",
            &[scheduler.address()],
        );
        Self { client, scheduler }
    }

    /// What Python says to this code.
    ///
    /// # Panics
    ///
    /// If that is an exception.
    pub fn python(&mut self, code: &str) -> String {
        self.try_python(code)
            .unwrap_or_else(|error| panic!("{code}: {error}"))
    }

    /// The same, or the exception.
    pub fn try_python(&mut self, code: &str) -> Result<String, String> {
        let question = serde_json::json!({"op": "do", "code": code}).to_string();
        let (answer, _) = tokio::task::block_in_place(|| self.client.ask(&question, &[]));
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("a document");
        match answer["value"].as_str() {
            Some(value) => Ok(value.to_owned()),
            None => Err(answer["error"].as_str().unwrap_or_default().to_owned()),
        }
    }

    /// Fails if the scheduler or a worker in Python has warned of anything, but for
    /// what Dask does to itself: the heartbeat of a worker in Python may arrive when
    /// it has just been retired.
    ///
    /// # Panics
    ///
    /// Then.
    pub fn check_logs(&self) {
        let workers = self.scheduler.workers().iter();
        let late: Vec<String> = workers
            .map(|worker| format!("heartbeat from unregistered worker '{}'", worker.address()))
            .chain(["Scheduler was unaware of this worker".to_owned()])
            .collect();
        let peers = [&self.scheduler].into_iter();
        for peer in peers.chain(self.scheduler.workers()) {
            let log = peer.log();
            let bad = [
                " - WARNING - ",
                " - ERROR - ",
                " - CRITICAL - ",
                "Traceback",
            ];
            let line = log
                .lines()
                .filter(|line| !late.iter().any(|text| line.contains(text)))
                .find(|line| bad.iter().any(|word| line.contains(word)));
            assert_eq!(line, None, "the whole log:\n{log}");
        }
    }
}

/// Waits until something is so.
///
/// # Panics
///
/// If that takes too long.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
