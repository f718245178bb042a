//! What `daskwire worker` does when it is asked to end, at any time.
#![cfg(unix)]

#[path = "support/command.rs"]
mod command;

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use daskwire_peer::client::Submission;
use daskwire_peer::cluster::{LocalCluster, Transport};

/// A `daskwire worker`, which is killed when this is dropped.
struct Worker {
    process: Child,
    /// Until it is closed.
    stderr: Option<BufReader<ChildStderr>>,
}

impl Worker {
    fn start(arguments: &[&str]) -> Self {
        let daskwire = env!("CARGO_BIN_EXE_daskwire");
        let mut command = if cfg!(target_os = "linux") {
            // The worker must not inherit that SIGHUP is ignored, as under `nohup`.
            let mut command = Command::new("env");
            command.args(["--default-signal=HUP", daskwire]);
            command
        } else {
            Command::new(daskwire)
        };
        let mut process = command
            .arg("worker")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let stderr = process.stderr.take().expect("it is piped");
        Self {
            process,
            stderr: Some(BufReader::new(stderr)),
        }
    }

    /// The next line that it writes.
    fn line(&mut self) -> String {
        let mut line = String::new();
        let stderr = self.stderr.as_mut().expect("it is open");
        stderr.read_line(&mut line).expect("text");
        line
    }

    /// Sends it a signal, by its name without `SIG`.
    fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.expect("the command kill").success());
    }

    /// Waits until it has ended well, and returns what else can be read from it.
    fn ended(mut self) -> String {
        let mut rest = String::new();
        if let Some(stderr) = &mut self.stderr {
            stderr.read_to_string(&mut rest).expect("text");
        }
        let status = self.process.wait().expect("it was started");
        assert!(status.success(), "{status}: {rest}");
        rest
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_worker_without_a_scheduler_says_so_and_ends_when_asked_to() {
    // One port that refuses, one where connections are made and nothing is said.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let refusing = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addresses = [&silent, &refusing].map(|listener| {
        let address = listener.local_addr().expect("it is bound");
        format!("tcp://{address}")
    });
    drop(refusing);
    let workers: Vec<(String, &str, Worker)> = addresses
        .iter()
        .flat_map(|address| ["TERM", "INT", "HUP"].map(|signal| (address, signal)))
        .map(|(address, signal)| (address.clone(), signal, Worker::start(&[address])))
        .collect();
    for (address, signal, mut worker) in workers {
        let line = worker.line();
        let expected = format!("daskwire: no connection to {address} yet, retrying until 2");
        assert!(line.starts_with(&expected), "{line}");
        worker.signal(signal);
        assert_eq!(
            worker.ended(),
            format!("daskwire: stopped before registering with {address}\n")
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_terminal_is_closed_hands_over_its_data() {
    let cluster = LocalCluster::builder()
        .transport(Transport::Tcp)
        .workers(1)
        .start()
        .await
        .expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let scheduler = cluster.address().to_string();
    let mut worker = Worker::start(&[&scheduler, "--name", "one"]);
    let line = worker.line();
    assert!(line.starts_with("daskwire: worker one at "), "{line}");
    // It can be made nowhere else.
    let on = Submission::default().workers(["one"]);
    let sum = client.call("operator.add").argument(1).argument(2).with(on);
    let sum = sum.submit().expect("submitted");
    sum.finished().await.expect("it is computed");
    // A terminal that is gone takes no words either.
    worker.stderr = None;
    worker.signal("HUP");
    tokio::task::block_in_place(|| worker.ended());
    let result = sum.result_within(Duration::from_secs(20)).await;
    assert_eq!(i64::try_from(result.expect("a result")), Ok(3));
    client.close().await.expect("it closes");
    cluster.close().await;
}

#[test]
fn a_worker_without_threads_is_an_error_of_usage() {
    let arguments = ["worker", "tcp://127.0.0.1:1", "--nthreads", "0"];
    let ran = command::run(&arguments, None);
    assert_eq!(ran.status, Some(2));
    assert!(ran.err.contains("expected at least 1"), "{}", ran.err);
}
