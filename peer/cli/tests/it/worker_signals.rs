//! Tests of stopping `daskwire worker` at various times.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::support::worker::worker_command;
use daskwire_peer::client::{Route, SubmitOptions};
use daskwire_peer::cluster::{ClusterTransport, LocalCluster};
use daskwire_peer::{Key, Value};

/// A `daskwire worker` process. Killed when dropped.
struct Worker {
    process: Child,
    /// Standard error, unless a test has closed it.
    stderr: Option<BufReader<ChildStderr>>,
}

impl Worker {
    fn start(arguments: &[&str]) -> Self {
        let mut process = worker_command()
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

    /// Reads the next line of standard error.
    fn line(&mut self) -> String {
        let mut line = String::new();
        let stderr = self.stderr.as_mut().expect("it is open");
        stderr.read_line(&mut line).expect("UTF-8");
        line
    }

    /// Sends a signal, given by its name without `SIG`.
    fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.expect("the command kill").success());
    }

    /// Waits until the worker has ended successfully, and returns the rest of its standard error.
    fn ended(mut self) -> String {
        let mut rest = String::new();
        if let Some(stderr) = &mut self.stderr {
            stderr.read_to_string(&mut rest).expect("UTF-8");
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
fn worker_without_a_scheduler_reports_it_and_can_be_stopped() {
    // One port refuses connections, and another accepts them without
    // replying.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let refusing = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addresses = [&silent, &refusing].map(|listener| {
        let address = listener.local_addr().expect("bound address");
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
        assert_eq!(
            line,
            format!("daskwire: no connection to {address} yet, retrying\n")
        );
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
        .transport(ClusterTransport::Tcp)
        .workers(1)
        .start()
        .await
        .expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let scheduler = cluster.address().to_string();
    let mut worker = Worker::start(&[&scheduler, "--name", "one"]);
    let line = worker.line();
    assert!(line.starts_with("daskwire: worker one at "), "{line}");
    // The task can be computed only on this worker.
    let on = SubmitOptions::default().workers(["one"]);
    let sum = client.call("operator.add").argument(1).argument(2).with(on);
    let sum = sum.submit().expect("submitted");
    sum.finished().await.expect("it is computed");
    // The worker's writes to the closed terminal fail.
    worker.stderr = None;
    worker.signal("HUP");
    tokio::task::block_in_place(|| worker.ended());
    let result = sum.result_within(Duration::from_secs(20)).await;
    assert_eq!(i64::try_from(result.expect("a result")), Ok(3));
    client.close().await.expect("it closes");
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_follows_tasks_and_no_key_forges_a_line() {
    // The data exceeds the target, 60 % of the limit. Joining its frames temporarily takes
    // the same amount again, for which a nanny would restart the worker.
    const LEN: usize = 125_000_000;
    let cluster = LocalCluster::builder()
        .transport(ClusterTransport::Tcp)
        .workers(1)
        .start()
        .await
        .expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let hostile = "\x1b[2J\nforged";
    let (x, y) = (format!("x{hostile}"), format!("y{hostile}"));
    let data = (Key::from(x.as_str()), Value::bytes(vec![7; LEN]));
    let x = client
        .scatter_by([data], Route::Scheduler)
        .await
        .expect("scattered");
    let scheduler = cluster.address().to_string();
    let limit = ["--memory-limit", "200MB"];
    let mut worker = Worker::start(&[
        &scheduler,
        "--name",
        "one",
        "--no-nanny",
        "-vv",
        limit[0],
        limit[1],
    ]);
    let (to, lines) = mpsc::channel();
    let stderr = worker.stderr.take().expect("it is open");
    let reading = std::thread::spawn(move || {
        let mut lines = stderr.lines();
        while let Some(Ok(line)) = lines.next() {
            if to.send(line).is_err() {
                break;
            }
        }
    });
    let mut log: Vec<String> = Vec::new();
    let mut read_until = |wanted: &str| -> Vec<String> {
        while !log.iter().any(|line| line.contains(wanted)) {
            let line = lines.recv_timeout(Duration::from_secs(60));
            log.push(line.unwrap_or_else(|_| panic!("no {wanted}: {log:#?}")));
        }
        log.clone()
    };
    read_until("daskwire: worker one at ");
    // The scheduler deletes superfluous copies. Two tasks that wait for a worker keep both.
    let on = SubmitOptions::default().workers(["absent"]);
    let submit_waiting = |key: &str| {
        let call = client.call("builtins.len").argument(&x[0]).key(key);
        call.with(on.clone()).submit().expect("submitted")
    };
    let _waiting = ["first", "second"].map(submit_waiting);
    let on = SubmitOptions::default().workers(["one"]);
    let call = client.call("builtins.len").argument(&x[0]).with(on);
    let len = call.key(y.as_str()).submit().expect("submitted");
    let len = len.result().await.expect("a result");
    assert_eq!(usize::try_from(len), Ok(LEN));
    let log = read_until("spilled, ");
    worker.signal("TERM");
    tokio::task::block_in_place(|| worker.ended());
    reading.join().expect("no panic");
    let printed = log.join("\n");
    println!("{printed}");
    let is_plain = |character: char| character == '\n' || !character.is_control();
    assert!(printed.chars().all(is_plain), "{printed:?}");
    assert!(
        !log.iter().any(|line| line.starts_with("forged")),
        "{printed}"
    );
    let steps = |key: &str| -> Vec<&str> {
        let span = format!("task{{key={key}\\u{{1b}}[2J\\nforged}}: daskwire_peer::worker: ");
        let steps = log
            .iter()
            .filter_map(|line| Some(line.split_once(&span)?.1));
        steps
            .filter_map(|step| Some(step.split_once(" (")?.0))
            .collect()
    };
    let expected = [
        "compute-task while released",
        "released -> waiting",
        "waiting -> ready",
        "ready -> executing",
        "executing -> memory",
    ];
    assert_eq!(steps("y"), expected, "{printed}");
    let steps = steps("x");
    let [
        ..,
        "fetch -> flight",
        requested,
        "flight -> memory",
        spilled,
    ] = steps[..]
    else {
        panic!("{steps:?}: {printed}");
    };
    assert!(
        requested.starts_with("requested from tcp://"),
        "{requested}"
    );
    assert!(spilled.starts_with("spilled, "), "{spilled}");
    assert!(printed.contains("comm{peer=\"tcp://"), "{printed}");
    client.close().await.expect("it closes");
    cluster.close().await;
}

#[test]
fn an_invalid_log_filter_is_an_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    command.env("RUST_LOG", "daskwire_peer=loud").arg("worker");
    let ran = command.arg("--functions").output().expect("it runs");
    let err = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2));
    assert!(
        err.starts_with("daskwire: RUST_LOG=daskwire_peer=loud: "),
        "{err}"
    );
}
