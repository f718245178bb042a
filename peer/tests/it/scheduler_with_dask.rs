//! Tests of the embedded scheduler with real Dask workers and a real Dask client.

use std::sync::{Arc, Mutex};

use daskwire_peer::scheduler::state::State;
use daskwire_peer::scheduler::{Notice, Options, Scheduler};
use daskwire_testing::{Environment, Peer};

/// A scheduler, its notices, and its runtime.
struct Embedded {
    scheduler: Option<Scheduler>,
    notices: Arc<Mutex<Vec<Notice>>>,
    runtime: tokio::runtime::Runtime,
}

impl Embedded {
    fn new() -> Self {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let notices = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&notices);
        let on_notice = Arc::new(move |notice: &Notice| {
            seen.lock().expect("no panic").push(notice.clone());
        });
        let options = Options {
            on_notice: Some(on_notice),
            ..Options::default()
        };
        let scheduler = runtime.block_on(async {
            let address = "tcp://127.0.0.1:0".parse().expect("an address");
            let listener = daskwire_peer::transports()
                .bind(&address, Default::default())
                .await;
            Scheduler::start([listener.expect("it is free")], options)
        });
        Self {
            scheduler: Some(scheduler.expect("it listens")),
            notices,
            runtime,
        }
    }

    fn scheduler(&self) -> &Scheduler {
        self.scheduler.as_ref().expect("it has not been closed")
    }

    fn address(&self) -> String {
        self.scheduler().address().to_string()
    }

    fn client(&self, steps: &[&str]) -> Peer {
        let address = self.address();
        let mut arguments = vec![address.as_str()];
        arguments.extend(steps);
        Peer::spawn(Environment::Current, "embedded_client.py", &arguments)
    }

    fn close(&mut self) {
        if let Some(scheduler) = self.scheduler.take() {
            self.runtime.block_on(scheduler.close());
        }
    }
}

/// Returns the unexpected warnings and errors in a log.
fn complaints(log: &str) -> Vec<&str> {
    let is_complaint = |line: &&str| {
        let is_meant = line.contains("Compute Failed");
        (line.contains("ERROR") || line.contains("WARNING")) && !is_meant
    };
    log.lines().filter(is_complaint).collect()
}

#[test]
fn python_computes_for_python() {
    let mut embedded = Embedded::new();
    let workers =
        ["worker-0", "worker-1"].map(|name| daskwire_testing::worker(&embedded.address(), name));
    let client = embedded.client(&[
        "journey",
        "story",
        "data",
        "errors",
        "broadcasts",
        "options",
    ]);
    assert_eq!(complaints(&client.log()), [""; 0]);
    // The client has disconnected, which releases its keys.
    let left = embedded.scheduler().inspect(State::task_count);
    assert_eq!(left, 0);
    embedded.close();
    for worker in &workers {
        worker.wait_for_log("End worker");
        assert_eq!(complaints(&worker.log()), [""; 0]);
    }
    let notices = embedded.notices.lock().expect("no panic");
    let malformed = |notice: &&Notice| {
        matches!(
            notice,
            Notice::Malformed { .. } | Notice::UnknownClient { .. }
        )
    };
    assert_eq!(notices.iter().filter(malformed).count(), 0, "{notices:?}");
}

#[test]
fn a_task_that_kills_its_workers_fails_as_python_expects() {
    let embedded = Embedded::new();
    let _workers: Vec<Peer> = (0..4)
        .map(|number| daskwire_testing::worker(&embedded.address(), &format!("worker-{number}")))
        .collect();
    embedded.client(&["killed"]);
}
