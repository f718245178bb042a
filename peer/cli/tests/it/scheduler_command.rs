//! Tests of `daskwire scheduler` and `daskwire cluster`, with workers, nannies and clients in
//! Python.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::command;
use crate::support::http::{get, post_late};
use crate::support::scratch::Scratch;
use daskwire_testing::{Environment, Peer, address_after, python, warnings_except};

/// Starts a command that runs a scheduler, and waits until it listens.
fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Peer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    command.args(arguments).envs(variables.iter().copied());
    Peer::spawn_command(arguments[0], &mut command, |log| {
        address_after(log, "Scheduler at:")
    })
}

/// Starts `daskwire scheduler` at a free port of the loopback interface.
pub(crate) fn scheduler(arguments: &[&str], variables: &[(&str, &str)]) -> Peer {
    let local = ["scheduler", "--host", "127.0.0.1", "--port", "0"];
    start(&[&local[..], arguments].concat(), variables)
}

/// Starts `daskwire scheduler` at a port of the loopback interface.
pub(crate) fn scheduler_at(port: &str, arguments: &[&str]) -> Peer {
    let local = ["scheduler", "--host", "127.0.0.1", "--port", port];
    start(&[&local[..], arguments].concat(), &[])
}

/// Runs checks of a client in Python.
fn client(address: &str, steps: &[&str]) -> Peer {
    let arguments = [&[address][..], steps].concat();
    Peer::spawn(Environment::Current, "embedded_client.py", &arguments)
}

/// The port of the HTTP server in the log of a scheduler.
pub(crate) fn http_port(log: &str) -> String {
    let (_, rest) = log.split_once("http://127.0.0.1:").expect("a server");
    rest.chars().take_while(char::is_ascii_digit).collect()
}

#[test]
fn a_body_may_come_after_the_response() {
    let scheduler = scheduler(&["--dashboard-address", "127.0.0.1:0"], &[]);
    let port = http_port(&scheduler.log());
    let status = post_late(&port, 512 << 10);
    assert_eq!(status, "HTTP/1.1 405 Method Not Allowed");
}

#[test]
fn workers_with_nannies_and_a_client_in_python_are_served() {
    let scratch = Scratch::new("scheduler");
    let [file, pid_file] =
        ["scheduler.json", "pid"].map(|name| format!("{}/{name}", scratch.path()));
    let http = ["--dashboard-address", "127.0.0.1:0"];
    let files = ["--scheduler-file", &file, "--pid-file", &pid_file];
    let mut scheduler = scheduler(&[&http[..], &files].concat(), &[]);
    let address = scheduler.address().to_owned();
    let pid = fs::read_to_string(&pid_file).expect("it is written");
    assert_eq!(pid, scheduler.id().to_string());
    let identity = fs::read_to_string(&file).expect("it is written");
    let identity: serde_json::Value = serde_json::from_str(&identity).expect("JSON");
    assert_eq!(identity["address"], *address);
    let port = http_port(&scheduler.log());
    assert_eq!(identity["services"]["dashboard"].to_string(), port);

    let mut nannies = ["bob", "0"].map(|name| daskwire_testing::worker_under_nanny(&address, name));
    let first = nannies[0].address().to_owned();
    scheduler.wait_for_line(&[&first, "(bob) joined"]);
    // A worker that has joined does not run at once.
    let idle = "\ndask_scheduler_workers{state=\"idle\"} 2.0\n";
    while !get(&port, "/metrics").1.contains(idle) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (status, metrics) = get(&port, "/metrics");
    assert_eq!(status, "HTTP/1.1 200 OK");
    for line in [
        "dask_scheduler_workers_added_total 2.0",
        "dask_scheduler_clients 0.0",
        "dask_scheduler_tasks{state=\"memory\"} 0.0",
        "# TYPE dask_scheduler_desired_workers gauge",
    ] {
        let is_there = metrics.lines().any(|other| other == line);
        assert!(is_there, "{line}: {metrics}");
    }
    assert_eq!(get(&port, "/health").1, "ok");

    let client = client(&address, &["names"]);
    assert_eq!(warnings_except(&client.log(), &[]), [""; 0]);
    scheduler.wait_for_line(&["(0) left: retired"]);
    nannies[1].wait_for_log("End worker");
    assert!(nannies[1].ended());
    assert!(scheduler.terminate(), "{}", scheduler.log());
    nannies[0].wait_for_log("End worker");
    assert!(nannies[0].ended());
    // Of a worker that ends while its process waits for its nanny, or sends a heartbeat.
    let expected = ["Worker process died", "during heartbeat"];
    for nanny in &nannies {
        assert_eq!(warnings_except(&nanny.log(), &expected), [""; 0]);
    }
    assert!(!Path::new(&file).exists() && !Path::new(&pid_file).exists());
    let log = scheduler.log();
    assert!(!log.contains("encrypted"), "{log}");
    assert!(log.trim_end().ends_with("the scheduler has ended"), "{log}");
}

/// Starts a worker of this command that runs Python.
fn rust_worker(address: &str, name: &str) -> Peer {
    let program = env!("CARGO_BIN_EXE_daskwire");
    let interpreter = python(Environment::Current);
    let arguments = ["--nthreads", "1"];
    daskwire_testing::rust_worker(program, address, name, Some(&interpreter), &arguments, &[])
}

/// Clients do not see whether workers are those of Dask or of this command.
#[test]
fn workers_of_both_kinds_run_and_restart() {
    let steps = [
        "journey",
        "buffers",
        "coroutines",
        "costs_itself",
        "maps",
        "shares",
        "graphs",
        "restarts",
    ];
    let scheduler = scheduler(&["--no-dashboard"], &[]);
    let address = scheduler.address();
    let of_dask = daskwire_testing::worker_under_nanny(address, "worker-0");
    let rust = rust_worker(address, "worker-1");
    client(address, &steps);
    drop((of_dask, rust));
    let both = ["worker-0", "worker-1"].map(|name| rust_worker(address, name));
    client(address, &steps);
    drop(both);
}

#[test]
fn settings_of_dask_are_honoured_or_named() {
    let setting = |name| format!("DASK_DISTRIBUTED__SCHEDULER__{name}");
    let names = [
        setting("IDLE_TIMEOUT"),
        setting("WORKER_TTL"),
        setting("REUSE_BROADCAST_COMM"),
        setting("VALIDATE"),
        setting("BANDWIDTH"),
    ];
    // The last is the default, which a process that Dask starts inherits.
    let values = ["1s", "None", "False", "True", "100000000"];
    let variables: Vec<(&str, &str)> = names.iter().map(|name| &**name).zip(values).collect();
    let mut idle = scheduler(&["--no-dashboard"], &variables);
    assert!(idle.ended(), "{}", idle.log());
    let log = idle.log();
    let ignored = "settings of Dask's scheduler that have no effect here: \
                   distributed.scheduler.reuse-broadcast-comm, distributed.scheduler.validate\n";
    assert!(log.contains(ignored), "{log}");
    assert!(log.contains("ends after being idle for 1 s"), "{log}");
    assert!(!log.contains("http://"), "{log}");

    for (arguments, expected) in [
        (
            &["--preload", "x"][..],
            "--preload: only a scheduler with --python loads modules: add --python PYTHON",
        ),
        (&["--jupyter"], "--jupyter: this scheduler runs no Python"),
        (
            &["--port", "1,2,3", "--protocol", "tcp,tls"],
            "--host, --interface, --protocol and --port: expected one item or 3 in each list",
        ),
        (
            &["--host", "tls://127.0.0.1", "--protocol", "tcp"],
            "--host has the scheme tls, but --protocol is tcp",
        ),
        (&["--protocol", "tls"], "tls://0.0.0.0:8786 needs TLS"),
    ] {
        let ran = command::run(&[&["scheduler"], arguments].concat(), None);
        let error = ran.misused(&arguments.join(" ")).to_owned();
        assert!(error.contains(expected), "{error}");
    }
    // The port is in use.
    let other = scheduler(&["--no-dashboard"], &[]);
    let (_, port) = other.address().rsplit_once(':').expect("a port");
    let ran = command::run(&["scheduler", "--host", "127.0.0.1", "--port", port], None);
    assert_eq!(ran.status, Some(1), "{}", ran.err);
    assert!(ran.err.contains("in use"), "{}", ran.err);
}

/// The cause of a worker's end, and its tasks, are in the log.
#[test]
fn a_lost_worker_is_logged_with_its_tasks() {
    let scheduler = scheduler(&["--no-dashboard"], &[]);
    let worker = daskwire_testing::worker(scheduler.address(), "alice");
    client(scheduler.address(), &["held"]);
    worker.signal("KILL");
    scheduler.wait_for_line(&["(alice) left: stream ended; 1 tasks that it ran: endless"]);
}

/// Warns of a scheduler that others can reach.
#[test]
fn a_scheduler_without_encryption_beyond_this_machine_is_warned_of() {
    let arguments = ["scheduler", "--port", "0", "--no-dashboard"];
    let mut scheduler = start(&arguments, &[]);
    let log = scheduler.log();
    assert!(
        log.contains("tcp://0.0.0.0:0 is neither encrypted nor protected"),
        "{log}"
    );
    // The address that it reports can be reached.
    let ran = command::run(&["identity", scheduler.address()], None);
    assert!(ran.good("identity").contains(scheduler.address()));
    scheduler.signal("INT");
    assert!(scheduler.ended());
}

#[cfg(target_os = "linux")]
#[test]
fn a_cluster_for_a_laptop_starts_and_ends_with_its_workers() {
    let interpreter = python(Environment::Current);
    let interpreter = interpreter.to_str().expect("UTF-8");
    let arguments = [
        "cluster",
        "--workers",
        "2",
        "--nthreads",
        "1",
        "--port",
        "0",
    ];
    let python = ["--python", interpreter];
    let mut cluster = start(&[&arguments[..], &python].concat(), &[]);
    client(cluster.address(), &["journey", "laptop"]);
    cluster.signal("INT");
    assert!(cluster.ended(), "{}", cluster.log());
    let log = cluster.log();
    let left = log.lines().filter(|line| line.contains(" left: "));
    assert_eq!(left.count(), 2, "{log}");
}

/// The number of heaps of other threads than the first, for which glibc reserves 64 MiB each.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn heap_count(process: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).expect("a process");
    let regions = maps.lines().map(|line| {
        let (addresses, rest) = line.split_once(' ').expect("addresses");
        let (start, end) = addresses.split_once('-').expect("two addresses");
        let [start, end] = [start, end].map(|it| u64::from_str_radix(it, 16).expect("hexadecimal"));
        (
            start,
            end,
            rest.starts_with("rw-p"),
            rest.starts_with("---p"),
        )
    });
    let regions: Vec<_> = regions.collect();
    let is_heap = |pair: &&[(u64, u64, bool, bool)]| match pair {
        [(start, middle, true, _), (next, end, _, true)] => {
            middle == next && end - start == 64 << 20
        }
        _ => false,
    };
    regions.windows(2).filter(is_heap).count()
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn a_scheduler_has_one_heap_unless_the_user_wants_others() {
    let quiet = ["--no-dashboard"];
    let none = ("GLIBC_TUNABLES", "");
    assert_eq!(heap_count(scheduler(&quiet, &[none]).id()), 0);
    let many = scheduler(&quiet, &[("GLIBC_TUNABLES", "glibc.malloc.arena_max=8")]);
    assert!(heap_count(many.id()) > 0);
}
