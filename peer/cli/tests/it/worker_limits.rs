//! Tests of `daskwire worker` and `daskwire relay` with peers that send nothing, and of files that
//! do not end.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::command;
use crate::support::scratch::Scratch;
use daskwire_peer::cluster::{ClusterTransport, LocalCluster};

/// A process of `daskwire`. Killed when dropped, with the processes that it has started.
struct Process {
    process: Child,
    lines: mpsc::Receiver<String>,
}

impl Process {
    /// Starts a worker after some commands of the shell.
    fn after(prepare: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::command_after(prepare, &[&["worker"], arguments].concat(), variables)
    }

    /// Starts a command of `daskwire` after some commands of the shell.
    fn command_after(prepare: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new("sh");
        let mut process = command
            .args(["-c", &format!("{prepare}; exec \"$0\" \"$@\"")])
            .arg(env!("CARGO_BIN_EXE_daskwire"))
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("the command starts");
        let stderr = process.stderr.take().expect("it is piped");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                println!("{line}");
                // Most tests do not read all lines.
                let _ = sender.send(line);
            }
        });
        Self { process, lines }
    }

    fn start(arguments: &[&str]) -> Self {
        Self::after("true", arguments, &[])
    }

    /// Waits for the next line that contains `part`, and returns it.
    #[track_caller]
    fn wait_for(&self, part: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(60));
            let line = line.unwrap_or_else(|_| panic!("no line with {part:?}"));
            if line.contains(part) {
                return line;
            }
        }
    }

    /// The host and port of the worker, once it is registered.
    #[track_caller]
    fn address(&self) -> String {
        let line = self.wait_for(" is registered with ");
        let (_, rest) = line.split_once(" at tcp://").expect("its address");
        rest.split(' ').next().expect("an address").to_owned()
    }

    fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.expect("the command kill").success());
    }

    /// Waits until the worker has ended, and returns its exit code.
    #[track_caller]
    fn code(&mut self) -> Option<i32> {
        let mut status = None;
        until(|| {
            status = self.process.try_wait().expect("it was started");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    /// Waits for the process that the nanny has started, and returns its id.
    #[track_caller]
    fn child(&self) -> String {
        let id = self.process.id();
        let mut child = String::new();
        until(|| {
            child.clear();
            for thread in fs::read_dir(format!("/proc/{id}/task")).expect("it runs") {
                let children = thread.expect("a folder").path().join("children");
                child += &fs::read_to_string(children).unwrap_or_default();
            }
            !child.trim().is_empty()
        });
        child.trim().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process group may have ended already.
        let group = format!("-{}", self.process.id());
        let mut kill = Command::new("kill");
        kill.args(["-s", "KILL", "--", &group])
            .stderr(Stdio::null());
        let _ = kill.status();
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits for a condition that must become true.
#[track_caller]
fn until(mut is_met: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_met() {
        assert!(start.elapsed() < Duration::from_secs(60), "too late");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process runs; not one that has ended and whose parent has not taken notice.
fn runs(process: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status
        .lines()
        .any(|line| line.starts_with("State:") && !line.contains("zombie"))
}

async fn scheduler() -> LocalCluster {
    let builder = LocalCluster::builder()
        .transport(ClusterTransport::Tcp)
        .workers(0);
    builder.start().await.expect("a scheduler")
}

/// Connects `count` times to an address, without sending anything.
fn silent(address: &str, count: usize) -> Vec<TcpStream> {
    assert!(daskwire_comm::raise_descriptor_limit() > count + 100);
    let connect = || TcpStream::connect(address).expect("the backlog has room");
    (0..count).map(|_| connect()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_peers_do_not_make_a_worker_unreachable() {
    let cluster = scheduler().await;
    let scheduler = cluster.address().to_string();
    // In the first case, the worker raises its limit. In the other one it cannot.
    for (limit, count) in [("ulimit -S -n 1024", 1_100), ("ulimit -n 256", 400)] {
        // The scheduler may not know yet that the first worker has ended.
        let worker = Process::after(limit, &[&scheduler, "--name", limit], &[]);
        let address = worker.address();
        let mut peers = silent(&address, count);
        // Of those that connect last, no handshake is ended for others.
        for peer in peers.iter_mut().rev().take(30) {
            let timeout = Some(Duration::from_secs(20));
            peer.set_read_timeout(timeout).expect("a timeout");
            let read = peer.read(&mut [0; 8]).expect("the handshake");
            assert_ne!(read, 0, "{limit}");
        }
        let address = format!("tcp://{address}");
        let ran = command::run(&["identity", "--timeout", "10s", &address], None);
        assert_eq!(ran.status, Some(0), "{limit}: {}", ran.err);
    }
    cluster.close().await;
}

/// A relay has two descriptors for each connection.
#[tokio::test(flavor = "multi_thread")]
async fn silent_peers_do_not_make_a_relay_unreachable() {
    let cluster = scheduler().await;
    let scheduler = cluster.address().to_string();
    let arguments = [
        "relay",
        "--listen",
        "tcp://127.0.0.1:0",
        "--connect",
        &scheduler,
    ];
    let relay = Process::command_after("ulimit -S -n 1024", &arguments, &[]);
    let line = relay.wait_for("forwarding from tcp://");
    let (_, rest) = line.split_once("from tcp://").expect("its address");
    let address = rest.split(' ').next().expect("an address");
    let _peers = silent(address, 800);
    let address = format!("tcp://{address}");
    let ran = command::run(&["identity", "--timeout", "10s", &address], None);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_peers_do_not_hold_up_health_checks() {
    let cluster = scheduler().await;
    let scheduler = cluster.address().to_string();
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        free.local_addr().expect("bound").port()
    };
    let dashboard = format!("127.0.0.1:{port}");
    let worker = Process::start(&[&scheduler, "--dashboard-address", &dashboard]);
    worker.address();
    let mut peers = silent(&dashboard, 500);
    let mut probe = TcpStream::connect(&dashboard).expect("the backlog has room");
    probe
        .write_all(b"GET /health HTTP/1.1\r\n\r\n")
        .expect("sent");
    // 500 peers would take the places of 64 for ten seconds each.
    let timeout = Some(Duration::from_secs(20));
    probe.set_read_timeout(timeout).expect("a timeout");
    let mut reply = String::new();
    probe.read_to_string(&mut reply).expect("a reply");
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
    // The others end before long, too.
    let last = peers.last_mut().expect("500 peers");
    last.set_read_timeout(timeout).expect("a timeout");
    assert_eq!(last.read(&mut [0]).expect("its end"), 0);
    cluster.close().await;
}

#[test]
fn a_scheduler_file_that_nobody_writes_delays_no_end() {
    let scratch = Scratch::new("worker-fifo");
    let fifo = scratch.0.join("scheduler.json");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("the command mkfifo").success());
    let fifo = fifo.to_str().expect("UTF-8");
    for nanny in ["--nanny", "--no-nanny"] {
        let arguments = ["--scheduler-file", fifo, nanny];
        let mut worker = Process::start(&[&arguments[..], &["--death-timeout", "300ms"]].concat());
        worker.wait_for("the scheduler has not written it within 0.3 s");
        assert_eq!(worker.code(), Some(1));
        for signal in ["TERM", "INT"] {
            let mut worker = Process::start(&arguments);
            worker.wait_for("waiting for ");
            worker.signal(signal);
            assert_eq!(worker.code(), Some(0), "{nanny} {signal}");
        }
    }
    let mut worker = Process::start(&["--scheduler-file", fifo]);
    worker.wait_for("waiting for ");
    let child = worker.child();
    worker.signal("KILL");
    worker.code();
    until(|| !runs(&child));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_file_may_be_a_fifo_that_stays_open() {
    let cluster = scheduler().await;
    let scratch = Scratch::new("worker-open-fifo");
    let fifo = scratch.0.join("scheduler.json");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("the command mkfifo").success());
    let worker = Process::start(&["--scheduler-file", fifo.to_str().expect("UTF-8")]);
    let document = format!("{{\"address\": \"{}\"}}\n", cluster.address());
    let writer = tokio::task::spawn_blocking(move || {
        let mut writer = fs::File::options().write(true).open(fifo)?;
        writer.write_all(document.as_bytes())?;
        std::io::Result::Ok(writer)
    });
    let writer = writer.await.expect("no panic").expect("it is written");
    worker.address();
    drop(writer);
    cluster.close().await;
}

#[test]
fn files_that_do_not_end_are_refused() {
    let scratch = Scratch::new("worker-endless");
    let spaces = scratch.0.join("spaces.json");
    fs::write(&spaces, " ".repeat(2 << 20)).expect("it is written");
    let spaces = spaces.to_str().expect("UTF-8");
    let file = ["worker", "--death-timeout", "10s", "--scheduler-file"];
    let ran = command::run(&[&file[..], &[spaces]].concat(), None);
    let error = ran.err.lines().last().unwrap_or_default();
    assert!(
        error.ends_with("spaces.json: it has 1 MiB or more"),
        "{error}"
    );
    assert_eq!(ran.status, Some(1));
    // Memory is limited, since the machine's may be large.
    let memory = "ulimit -v 8000000";
    let zeros = ["--scheduler-file", "/dev/zero", "--death-timeout", "500ms"];
    let mut worker = Process::after(memory, &zeros, &[]);
    worker.wait_for("waiting for /dev/zero, which is not JSON");
    assert_eq!(worker.code(), Some(1));
    let scheduler = "tls://127.0.0.1:1";
    let tls = [
        scheduler,
        "--tls-ca-file",
        "/dev/zero",
        "--tls-cert",
        "/dev/zero",
    ];
    let mut worker = Process::after(memory, &tls, &[]);
    worker.wait_for("/dev/zero (ca-file): cannot be read: it has 16 MiB or more");
    assert_eq!(worker.code(), Some(2));
    let mut worker = Process::after(
        memory,
        &["tcp://127.0.0.1:1"],
        &[("DASK_CONFIG", "/dev/zero")],
    );
    worker.wait_for("/dev/zero: it has 1 MiB or more");
    assert_eq!(worker.code(), Some(2));
}

#[test]
fn a_worker_that_reads_files_ends_with_its_nanny() {
    let scratch = Scratch::new("worker-settings");
    let fifo = scratch.0.join("settings.yaml");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("the command mkfifo").success());
    let path = fifo.to_str().expect("UTF-8");
    for signal in ["TERM", "KILL"] {
        let arguments = ["tcp://127.0.0.1:1"];
        let mut worker = Process::after("true", &arguments, &[("DASK_CONFIG", path)]);
        // The nanny's settings. Nobody writes those of its child.
        fs::write(&fifo, "{}").expect("it is written");
        let child = worker.child();
        worker.signal(signal);
        worker.code();
        until(|| !runs(&child));
        // A certificate without a writer.
        let tls = [
            "tls://127.0.0.1:1",
            "--tls-ca-file",
            path,
            "--tls-cert",
            path,
        ];
        let mut worker = Process::start(&tls);
        let child = worker.child();
        worker.signal(signal);
        worker.code();
        until(|| !runs(&child));
    }
}
