//! The examples that run until Control-C, on a real cluster. Each has a process of its own, which is
//! this program, and runs a single test.

#[path = "../../examples/scheduler.rs"]
#[allow(dead_code, reason = "its main is that of the example")]
mod scheduler_example;

use core::time::Duration;
use std::env;
use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

use daskwire_peer::client::SubmitOptions;
use daskwire_testing::{scheduler_with_workers, worker};
use tokio::runtime::Runtime;

use crate::client_connection::worker_example;
use crate::support::client::client_at;

/// Has the address for an example, in the process that runs it.
const ADDRESS: &str = "DASKWIRE_ADDRESS_OF_EXAMPLE";

/// Timeout of a task. Only a defect causes a timeout.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The process of an example. Killed when dropped.
struct Example {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Example {
    /// Runs a test of this module.
    fn start(test: &str, address: &str) -> Self {
        let test = format!("examples_with_signals::{test}");
        let mut command = Command::new(env::current_exe().expect("a program"));
        command.args(["--exact", &test, "--nocapture", "--test-threads=1"]);
        command.env(ADDRESS, address).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let stdout = child.stdout.take().expect("a pipe");
        let lines = BufReader::new(stdout).lines();
        Self { child, lines }
    }

    /// The address on the first line with `label`. The test program may begin a line.
    fn address(&mut self, label: &str) -> String {
        let line = self
            .lines
            .find_map(|line| line.ok().filter(|line| line.contains(label)));
        let line = line.unwrap_or_else(|| panic!("no line with {label:?}"));
        let address = line.split(' ').find(|word| word.contains("://"));
        address.expect("an address").to_owned()
    }

    /// Sends what Control-C does, and returns whether the example succeeds.
    fn interrupt(mut self) -> bool {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", "INT", &id]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill");
        // It waits for a reader of what it prints.
        for _ in self.lines.by_ref() {}
        self.child.wait().is_ok_and(|status| status.success())
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process of the worker.
#[test]
fn run_worker() {
    if let Ok(address) = env::var(ADDRESS) {
        let runtime = Runtime::new().expect("threads");
        let ended = runtime.block_on(worker_example::work(&address));
        ended.expect("it leaves the cluster");
    }
}

/// The process of the scheduler.
#[test]
fn run_scheduler() {
    if let Ok(address) = env::var(ADDRESS) {
        let runtime = Runtime::new().expect("threads");
        let ended = runtime.block_on(scheduler_example::serve(vec![address]));
        ended.expect("it ends");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_interrupted_leaves_its_data_with_others() {
    let scheduler = scheduler_with_workers(1);
    let mut example = Example::start("run_worker", scheduler.address());
    let address = example.address(" works; Control-C to end");
    let client = client_at(scheduler.address()).await;
    let call = client.call("native:hypot").argument(3.0).argument(4.0);
    let hypot = call
        .with(SubmitOptions::default().workers([address.as_str()]))
        .submit();
    let hypot = hypot.expect("submitted");
    hypot.done().await;
    let holders = async || {
        let holders = client.who_has([hypot.key().clone()]).await;
        holders.expect("an answer")[0].1.clone()
    };
    assert_eq!(holders().await, [address]);
    assert!(tokio::task::block_in_place(|| example.interrupt()));
    assert_eq!(holders().await, [scheduler.workers()[0].address()]);
    let result = hypot.result_within(TIMEOUT).await.expect("a result");
    assert_eq!(f64::try_from(result).ok(), Some(5.0));
    client.close().await.expect("it closes");
    assert_eq!(scheduler.warnings(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_is_interrupted_ends() {
    let mut example = Example::start("run_scheduler", "tcp://127.0.0.1:0");
    let address = example.address("ready ");
    let _worker = tokio::task::block_in_place(|| worker(&address, "python"));
    let client = client_at(&address).await;
    let sum = client.submit("operator.add", [1, 2]).expect("submitted");
    let sum = sum.result_within(TIMEOUT).await.expect("a result");
    assert_eq!(i64::try_from(sum).ok(), Some(3));
    client.close().await.expect("it closes");
    assert!(tokio::task::block_in_place(|| example.interrupt()));
}
