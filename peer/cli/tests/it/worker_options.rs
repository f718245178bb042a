//! Tests of the options of `daskwire worker`, with a real scheduler.

use crate::support::command;
use crate::support::http::get;
use crate::support::worker::worker_command;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use daskwire_testing::cluster::{Cluster, until};
use daskwire_testing::{Environment, TLS_PEM, python};

/// A folder that does not exist, in which workers search for settings.
const NO_SETTINGS: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/no-settings");

/// A `daskwire worker` process. Killed when dropped.
struct Worker {
    process: Child,
    lines: mpsc::Receiver<String>,
    log: Vec<String>,
}

impl Worker {
    fn start(arguments: &[&str]) -> Self {
        Self::with(arguments, &[])
    }

    /// Starts the worker with these variables, and without other variables of Dask.
    fn with(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = worker_command();
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("DASK_") {
                command.env_remove(variable);
            }
        }
        let mut process = command
            .args(arguments)
            // Ignore settings of this machine.
            .env("DASK_ROOT_CONFIG", NO_SETTINGS)
            .env("HOME", NO_SETTINGS)
            .env_remove("CONDA_PREFIX")
            .env_remove("VIRTUAL_ENV")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let stderr = process.stderr.take().expect("it is piped");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                // Most tests do not read all lines.
                let _ = sender.send(line);
            }
        });
        Self {
            process,
            lines,
            log: Vec::new(),
        }
    }

    /// Waits for the next line that contains `part`, and returns it.
    #[track_caller]
    fn wait_for(&mut self, part: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(60));
            let Ok(line) = line else {
                panic!("no {part:?}: {:#?}", self.log);
            };
            self.log.push(line.clone());
            if line.contains(part) {
                return line;
            }
        }
    }

    /// Waits until the worker is registered, and returns its address.
    #[track_caller]
    fn address(&mut self) -> String {
        let line = self.wait_for(" is registered with ");
        let (_, rest) = line.split_once(" at ").expect("name and address");
        let (address, _) = rest.split_once(" is registered with ").expect("an address");
        address.to_owned()
    }

    fn signal(&self, name: &str) {
        kill(name, self.process.id());
    }

    /// Waits until the worker has ended, and returns its exit code.
    fn code(mut self) -> Option<i32> {
        let status = self.process.wait().expect("it was started");
        status.code()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Other programs wait for lines of the log of Dask's workers, and look processes up by their
/// names.
#[test]
fn a_worker_looks_as_one_of_dask_to_other_programs() {
    let cluster = Cluster::new(0);
    let mut worker = Worker::start(&[cluster.scheduler.address()]);
    let address = worker.address();
    let after = |line: &str, mark: &str| {
        let (_, rest) = line.split_once(mark).expect("the mark");
        rest.trim().to_owned()
    };
    let line = worker.wait_for("worker at:");
    assert_eq!(after(&line, "Start worker at:"), address);
    let line = worker.wait_for("Registered to:");
    assert_eq!(after(&line, "Registered to:"), cluster.scheduler.address());
    let process = worker.process.id();
    // Each thread has a list of the processes that it has started.
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let children = threads.map(|thread| {
        let children = thread.expect("it runs").path().join("children");
        fs::read_to_string(children).expect("Linux lists them")
    });
    let children: String = children.collect();
    for id in [&process.to_string(), children.trim()] {
        let name = fs::read_to_string(format!("/proc/{id}/comm")).expect("it runs");
        assert_eq!(name, "daskwire\n");
        let command = fs::read(format!("/proc/{id}/cmdline")).expect("it runs");
        let command = String::from_utf8_lossy(&command);
        let first = command.split('\0').next().unwrap_or_default();
        assert!(first.ends_with("daskwire"), "{command}");
    }
}

fn kill(signal: &str, process: u32) {
    let id = process.to_string();
    let sent = Command::new("kill").args(["-s", signal, &id]).status();
    assert!(sent.expect("the command kill").success());
}

/// A directory. Removed with its contents when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("{name}-{}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("a test may write below target/");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        let path = self.0.join(name);
        path.to_str().expect("a UTF-8 path").to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Failing to remove it is harmless: it is in the build directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Functions that read the scheduler's state of workers. The client's copy may be older.
const INFO: &str = "def ask(function):\n    \
    return client.run_on_scheduler(lambda dask_scheduler: function(list(dask_scheduler.workers.values())))\n\
    info = lambda name: ask(lambda workers: next(w.identity() for w in workers if w.name == name))\n\
    names = lambda: ask(lambda workers: sorted(str(w.name) for w in workers))\n\
    address = lambda name: ask(lambda workers: next(w.address for w in workers if w.name == name))\n\
    pid = lambda name: ask(lambda workers: next(w.pid for w in workers if w.name == name))\n";

fn cluster(python_workers: usize) -> Cluster {
    let mut cluster = Cluster::new(python_workers);
    cluster.python(INFO);
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn resources_threads_memory_and_names_are_as_dask_has_them() {
    let mut cluster = cluster(1);
    let scheduler = cluster.scheduler.address().to_owned();
    let mut worker = Worker::start(&[
        &scheduler,
        "--name",
        "7",
        "--nthreads",
        "0",
        "--resources",
        "GPU=2,MEM=1e9",
    ]);
    worker.address();
    let code = "from distributed.worker_memory import parse_memory_limit\n\
                from dask.system import CPU_COUNT\n\
                limit = lambda text, nthreads: parse_memory_limit(text, nthreads, logger=None)\n\
                i = info(7)\n\
                (i['resources'], i['nthreads'] == CPU_COUNT, i['memory_limit'] == limit('auto', CPU_COUNT))";
    assert_eq!(
        cluster.python(code),
        "({'GPU': 2.0, 'MEM': 1000000000.0}, True, True)"
    );
    // The scheduler assigns tasks that need resources only to workers that have them.
    let code = "xs = [client.submit(operator.add, 1, i, resources={'GPU': 1}) for i in range(20)]\n\
                wait(xs)\n\
                y = client.submit(operator.add, 1, 1, resources={'GPU': 3}, key='too-much')\n\
                state = lambda dask_scheduler: dask_scheduler.tasks['too-much'].state\n\
                (worker_names(client.who_has(xs)), client.run_on_scheduler(state))";
    assert_eq!(cluster.python(code), "([7], 'no-worker')");
    cluster.python("del y");
    for (limit, nthreads) in [
        ("auto", "1"),
        ("0.5", "1"),
        ("4GB", "1"),
        ("0", "1"),
        ("1e18", "1"),
    ] {
        let arguments = [
            &scheduler,
            "--name",
            "limited",
            "--nthreads",
            nthreads,
            "--memory-limit",
            limit,
            "--no-nanny",
        ];
        let mut worker = Worker::start(&arguments);
        worker.address();
        let code = format!(
            "import logging\n\
             expected = parse_memory_limit('{limit}', {nthreads}, logger=logging.getLogger('x')) or 0\n\
             (info('limited')['memory_limit'] - expected, info('limited')['nanny'])"
        );
        assert_eq!(cluster.python(&code), "(0, None)", "{limit}");
        worker.signal("TERM");
        assert_eq!(worker.code(), Some(0), "{limit}");
    }
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_listen_where_they_are_told_to() {
    let mut cluster = cluster(1);
    let scheduler = cluster.scheduler.address().to_owned();
    // The first port of the range is in use.
    let held = TcpListener::bind("127.0.0.1:0").expect("a port");
    let first = held.local_addr().expect("bound address").port();
    let first = first.min(u16::MAX - 40);
    let range = format!("{first}:{}", first + 40);
    let ports = first..=first + 40;
    let port = |address: &str| -> u16 {
        let (_, port) = address.rsplit_once(':').expect("a port");
        port.parse().expect("a number")
    };
    let mut workers: Vec<Worker> = Vec::new();
    for (name, arguments) in [
        ("range", vec!["--worker-port", &*range]),
        (
            "interface",
            vec!["--interface", "lo", "--worker-port", &*range],
        ),
        ("host", vec!["--host", "127.0.0.1", "--protocol", "tcp"]),
        (
            "contact",
            vec![
                "--listen-address",
                "tcp://0.0.0.0:0",
                "--contact-address",
                "tcp://127.0.0.2:0",
            ],
        ),
    ] {
        let mut worker = Worker::start(&[&[&*scheduler, "--name", name], &arguments[..]].concat());
        let address = worker.address();
        let host = match name {
            "contact" => "tcp://127.0.0.2:",
            _ => "tcp://127.0.0.1:",
        };
        assert!(address.starts_with(host), "{name}: {address}");
        if matches!(name, "range" | "interface") {
            assert!(ports.contains(&port(&address)), "{name}: {address}");
            assert_ne!(port(&address), held.local_addr().expect("bound").port());
        }
        let code = format!(
            "x = client.submit(operator.add, 1, 1, workers='{name}', pure=False)\n\
             (address('{name}'), client.submit(operator.neg, x, workers='worker-0', pure=False).result())"
        );
        assert_eq!(
            cluster.python(&code),
            format!("('{address}', -2)"),
            "{name}"
        );
        workers.push(worker);
    }
    cluster.python("del x");
    let nowhere = command::run(&["worker", &*scheduler, "--interface", "no0"], None);
    let error = nowhere.misused("--interface no0");
    assert!(error.contains("no such network interface"), "{error}");
    for worker in workers {
        worker.signal("TERM");
        assert_eq!(worker.code(), Some(0));
    }
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scheduler_is_found_by_a_file_and_by_a_variable() {
    let mut cluster = cluster(0);
    let scheduler = cluster.scheduler.address().to_owned();
    let scratch = Scratch::new("scheduler-file");
    let (file, pid_file) = (scratch.path("scheduler.json"), scratch.path("pid"));
    let arguments = [
        "--scheduler-file",
        &file,
        "--name",
        "file",
        "--pid-file",
        &pid_file,
    ];
    let mut by_file = Worker::start(&arguments);
    by_file.wait_for("waiting for ");
    fs::write(&file, "{\"type\": \"Sched").expect("it is written");
    let document = format!("{{\"type\": \"Scheduler\", \"address\": \"{scheduler}\"}}");
    fs::write(&file, document).expect("it is written");
    by_file.address();
    let pid = fs::read_to_string(&pid_file).expect("the file of --pid-file");
    assert_eq!(pid, by_file.process.id().to_string());
    let without_scheme = scheduler.trim_start_matches("tcp://");
    let variables = [("DASK_SCHEDULER_ADDRESS", without_scheme)];
    let mut by_variable = Worker::with(&["--name", "variable"], &variables);
    by_variable.address();
    assert_eq!(cluster.python("names()"), "['file', 'variable']");
    by_file.signal("TERM");
    assert_eq!(by_file.code(), Some(0));
    assert!(
        fs::metadata(&pid_file).is_err(),
        "the file of --pid-file is left"
    );

    // A worker gives up after the timeout if there is no scheduler.
    let missing = scratch.path("missing.json");
    for arguments in [
        ["--scheduler-file", &*missing, "--death-timeout", "200ms"],
        [
            "tcp://127.0.0.1:1",
            "--no-nanny",
            "--death-timeout",
            "200ms",
        ],
    ] {
        let ran = command::run(&[&["worker"], &arguments[..]].concat(), None);
        assert_eq!(ran.status, Some(1), "{}", ran.err);
    }
    // The reason is reported if a file is there.
    fs::write(&file, "address: tcp://127.0.0.1:1").expect("it is written");
    for (file, reason) in [(&*file, "not JSON"), (&*scratch.path(""), "Is a directory")] {
        let arguments = [
            "worker",
            "--scheduler-file",
            file,
            "--death-timeout",
            "200ms",
        ];
        let ran = command::run(&arguments, None);
        assert!(ran.err.contains(reason), "{}", ran.err);
        assert_eq!(ran.status, Some(1), "{}", ran.err);
    }
    let ran = command::run(&["worker"], None);
    let error = ran.misused("no scheduler");
    assert!(error.contains("DASK_SCHEDULER_ADDRESS"), "{error}");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_ends_or_restarts_after_its_lifetime() {
    let mut cluster = cluster(1);
    let scheduler = cluster.scheduler.address().to_owned();
    let lifetime = ["--lifetime", "3s", "--lifetime-stagger", "1 s"];
    let arguments = [&[&*scheduler, "--name", "mortal"], &lifetime[..]].concat();
    let mut mortal = Worker::start(&arguments);
    mortal.address();
    let code = "x = client.submit(operator.add, 1, 1, workers='mortal', allow_other_workers=True)\n\
                x.result()";
    assert_eq!(cluster.python(code), "2");
    mortal.wait_for("the lifetime of the worker is over");
    mortal.wait_for("other workers have copies of all data");
    assert_eq!(mortal.code(), Some(0));
    // The scheduler may remove the worker after its process has ended.
    let holders = "worker_names(client.who_has([x]))";
    until("the worker leaves", || {
        cluster.python(holders) == "['worker-0']"
    })
    .await;
    assert_eq!(cluster.python("x.result()"), "2");
    let variables = [
        ("DASK_DISTRIBUTED__WORKER__LIFETIME__DURATION", "500 ms"),
        ("DASK_DISTRIBUTED__WORKER__LIFETIME__RESTART", "True"),
    ];
    let mut reborn = Worker::with(&[&scheduler, "--name", "reborn"], &variables);
    let first = reborn.address();
    reborn.wait_for("the worker starts again");
    let second = reborn.address();
    assert_ne!(first, second);
    reborn.signal("TERM");
    assert_eq!(reborn.code(), Some(0));
    // Without a nanny, the exit code asks the supervisor for a restart.
    let arguments = [
        &scheduler,
        "--no-nanny",
        "--lifetime",
        "100ms",
        "--lifetime-restart",
    ];
    let code = tokio::task::block_in_place(|| Worker::start(&arguments).code());
    assert_eq!(code, Some(3));
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_restarts_workers_and_crashed_ones_start_again() {
    let mut cluster = cluster(0);
    let scheduler = cluster.scheduler.address().to_owned();
    let mut worker = Worker::start(&[&scheduler, "--name", "rust", "--nthreads", "2"]);
    let first = worker.address();
    cluster.python("before = pid('rust')\nx = client.submit(operator.add, 1, 1)\nx.result()");
    // All data and tasks are lost, and a new process has registered with the name.
    let code = "client.restart(timeout=30)\n\
                (x.status, names(), pid('rust') != before)";
    assert_eq!(cluster.python(code), "('cancelled', ['rust'], True)");
    worker.wait_for("the worker starts again");
    let second = worker.address();
    assert_ne!(first, second);
    assert_eq!(
        cluster.python("client.submit(operator.add, 1, 2).result()"),
        "3"
    );
    let code = "client.restart_workers([address('rust')], timeout=30)";
    assert_eq!(cluster.python(code), format!("{{'{second}': 'OK'}}"));
    let third = worker.address();

    // A killed worker process is restarted.
    let process: u32 = cluster.python("pid('rust')").parse().expect("a number");
    assert_ne!(process, worker.process.id());
    kill("KILL", process);
    worker.wait_for(" has crashed (signal: 9 (SIGKILL))");
    let fourth = worker.address();
    assert_eq!(BTreeSet::from([first, second, third, fourth]).len(), 4);
    assert_eq!(
        cluster.python("client.submit(operator.add, 1, 3).result()"),
        "4"
    );

    // The worker process ends with its nanny.
    worker.signal("KILL");
    until("the worker leaves", || cluster.python("names()") == "[]").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_memory_restarts_and_its_task_is_not_tried_for_ever() {
    let mut cluster = cluster(0);
    let scheduler = cluster.scheduler.address().to_owned();
    // Disable every reaction to memory use except termination.
    let variables = [
        ("DASK_DISTRIBUTED__WORKER__MEMORY__TARGET", "False"),
        ("DASK_DISTRIBUTED__WORKER__MEMORY__SPILL", "False"),
        ("DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE", "False"),
        ("DASK_DISTRIBUTED__WORKER__MEMORY__MONITOR_INTERVAL", "10ms"),
    ];
    let arguments = [
        &*scheduler,
        "--name",
        "rust",
        "--nthreads",
        "1",
        "--memory-limit",
        "200MB",
    ];
    let mut worker = Worker::with(&arguments, &variables);
    let address = worker.address();
    let code = "x = client.submit(operator.mul, b'x', 300_000_000)\n\
                wait(x)\n\
                y = client.submit(len, x)";
    cluster.python(code);
    worker.wait_for("the worker starts again");
    worker.address();
    let code = "events = client.get_events('worker-restart-memory')\n\
                (events[0][1]['worker'], events[0][1]['rss'] > 190_000_000)";
    assert_eq!(cluster.python(code), format!("('{address}', True)"));
    cluster.python("del x, y");
    worker.signal("TERM");
    assert_eq!(worker.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nanny_has_several_workers_and_their_exit_codes() {
    let mut cluster = cluster(0);
    let scheduler = cluster.scheduler.address().to_owned();
    let arguments = [
        &*scheduler,
        "--nworkers",
        "2",
        "--name",
        "w",
        "--nthreads",
        "1",
    ];
    let mut two = Worker::start(&arguments);
    two.address();
    two.address();
    assert_eq!(cluster.python("names()"), "['w-0', 'w-1']");
    two.signal("HUP");
    assert_eq!(two.code(), Some(0));
    assert_eq!(cluster.python("names()"), "[]");
    let arguments = [&*scheduler, "--nworkers", "2", "--worker-port", "9000"];
    let ran = command::run(&[&["worker"], &arguments[..]].concat(), None);
    assert!(
        ran.misused("one port").contains("expected at least"),
        "{}",
        ran.err
    );

    // The exit code is 0 if the scheduler retires the worker.
    for nanny in ["--nanny", "--no-nanny"] {
        let mut retired = Worker::start(&[&scheduler, "--name", "retired", nanny]);
        retired.address();
        cluster.python("client.retire_workers(names=['retired'])");
        let code = tokio::task::block_in_place(|| retired.code());
        assert_eq!(code, Some(0), "{nanny}");
    }
    cluster.check_logs();

    // The exit code is 1 if the scheduler is lost.
    let workers = ["--nanny", "--no-nanny"].map(|nanny| {
        let mut worker = Worker::start(&[&scheduler, nanny]);
        worker.address();
        worker
    });
    cluster.scheduler.signal("KILL");
    for worker in workers {
        let code = tokio::task::block_in_place(|| worker.code());
        assert_eq!(code, Some(1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_metrics_have_the_names_of_dask() {
    let mut cluster = cluster(0);
    let scheduler = cluster.scheduler.address().to_owned();
    let arguments = [
        &scheduler,
        "--name",
        "rust",
        "--nthreads",
        "3",
        "--dashboard-address",
        "127.0.0.1:0",
    ];
    let mut worker = Worker::start(&arguments);
    worker.address();
    let port = cluster.python("info('rust')['services']['dashboard']");
    cluster.python("x = client.submit(operator.mul, b'x', 1_000_000)\nx.result() and None");
    assert_eq!(
        get(&port, "/health"),
        ("HTTP/1.1 200 OK".to_owned(), "ok".to_owned())
    );
    assert_eq!(get(&port, "/status").0, "HTTP/1.1 404 Not Found");
    let (status, metrics) = get(&port, "/metrics");
    assert_eq!(status, "HTTP/1.1 200 OK");
    for line in [
        "dask_worker_threads 3.0",
        "dask_worker_tasks{state=\"memory\"} 1.0",
        "dask_worker_transfer_outgoing_count_total 1.0",
        "# TYPE dask_worker_memory_bytes gauge",
        "# TYPE dask_worker_spill_bytes_total counter",
    ] {
        assert!(
            metrics.lines().any(|other| other == line),
            "{line}: {metrics}"
        );
    }
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        let line = line.unwrap_or_else(|| panic!("{name}: {metrics}"));
        line.trim().parse().expect("a number")
    };
    assert!(value("dask_worker_memory_bytes{type=\"managed\"}") >= 1e6);
    assert!(value("dask_worker_transfer_outgoing_bytes_total") >= 1e6);
}

#[tokio::test(flavor = "multi_thread")]
async fn dask_s_configuration_is_read_and_the_command_line_wins() {
    let mut cluster = cluster(0);
    let scheduler = cluster.scheduler.address().to_owned();
    let scratch = Scratch::new("configuration");
    let folder = scratch.path(".config/dask");
    fs::create_dir_all(&folder).expect("a folder");
    let yaml = format!(
        "scheduler-address: {scheduler}\n\
         temporary-directory: {}\n\
         distributed:\n  worker:\n    resources: {{GPU: 4, MEM: 1.5}}\n    memory:\n      \
         max_spill: 10 GB\n    connections: {{incoming: 3, outgoing: 4}}\n  \
         comm:\n    timeouts: {{connect: 20s}}\n  dashboard:\n    prometheus: {{namespace: mine}}\n",
        scratch.path("spilled")
    );
    fs::write(scratch.path(".config/dask/distributed.yaml"), yaml).expect("it is written");
    let home = scratch.path("");
    let arguments = ["--name", "file", "--dashboard-address", "127.0.0.1:0"];
    let mut by_file = Worker::with(&arguments, &[("HOME", &home)]);
    by_file.address();
    let code = "i = info('file')\n(i['resources'], i['local_directory'])";
    let info = cluster.python(code);
    let expected = format!("({{'GPU': 4.0, 'MEM': 1.5}}, '{}/", scratch.path("spilled"));
    assert!(info.starts_with(&expected), "{info}");
    let port = cluster.python("i['services']['dashboard']");
    assert!(get(&port, "/metrics").1.contains("\nmine_worker_threads "));
    let variables = [
        ("HOME", &*home),
        ("DASK_DISTRIBUTED__WORKER__RESOURCES", "{'GPU': 5}"),
    ];
    let mut by_variable = Worker::with(&["--name", "variable"], &variables);
    by_variable.address();
    assert_eq!(
        cluster.python("info('variable')['resources']"),
        "{'GPU': 5.0, 'MEM': 1.5}"
    );
    let spilled = scratch.path("elsewhere");
    let arguments = [
        "--name",
        "line",
        "--resources",
        "CPU=1",
        "--local-directory",
        &spilled,
    ];
    let mut by_line = Worker::with(&arguments, &variables);
    by_line.address();
    let info = cluster.python("i = info('line')\n(i['resources'], i['local_directory'])");
    assert!(
        info.starts_with(&format!("({{'CPU': 1.0}}, '{spilled}/")),
        "{info}"
    );
    for (variable, value) in [
        ("DASK_DISTRIBUTED__WORKER__MEMORY__TARGET", "most"),
        ("DASK_DISTRIBUTED__WORKER__LIFETIME__DURATION", "5 parsecs"),
        ("DASK_DISTRIBUTED__WORKER__CONNECTIONS__OUTGOING", "0"),
        ("DASK_DISTRIBUTED__WORKER__RESOURCES", "{'GPU': 'many'}"),
        ("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "-1"),
    ] {
        let mut refused = Worker::with(&[], &[("HOME", &home), (variable, value)]);
        let line = refused.wait_for("daskwire: ");
        let name = variable
            .trim_start_matches("DASK_")
            .to_lowercase()
            .replace("__", ".");
        assert!(line.contains(&name.replace('_', "-")), "{line}");
        assert_eq!(refused.code(), Some(2));
    }
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_come_from_dask_s_configuration() {
    let scheduler = daskwire_testing::scheduler_with_workers_over("tls", 0);
    let variables = [
        ("DASK_DISTRIBUTED__COMM__TLS__CA_FILE", TLS_PEM),
        ("DASK_DISTRIBUTED__COMM__TLS__WORKER__CERT", TLS_PEM),
        ("DASK_DISTRIBUTED__COMM__TLS__WORKER__KEY", TLS_PEM),
        ("DASK_DISTRIBUTED__COMM__TLS__MIN_VERSION", "1.3"),
    ];
    let certificates = ["CA_FILE", "CLIENT__CERT"]
        .map(|name| (format!("DASK_DISTRIBUTED__COMM__TLS__{name}"), TLS_PEM));
    let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    let ran = command
        .envs(certificates)
        .args(["identity", scheduler.address()])
        .output();
    let ran = ran.expect("the command runs");
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    // Addresses without a scheme get that of the scheduler.
    let scratch = Scratch::new("tls-scheduler-file");
    let file = scratch.path("scheduler.json");
    let document = format!("{{\"address\": \"{}\"}}", scheduler.address());
    fs::write(&file, document).expect("it is written");
    let by_file = ["--scheduler-file", &file];
    for arguments in [
        &[scheduler.address()][..],
        &[&by_file[..], &["--host", "127.0.0.1"]].concat(),
        &[
            &by_file[..],
            &["--listen-address", "127.0.0.1:0"],
            &["--contact-address", "127.0.0.1:0"],
        ]
        .concat(),
        &[
            &by_file[..],
            &["--listen-address", "tcp://127.0.0.1:0"],
            &["--contact-address", "127.0.0.1:0"],
        ]
        .concat(),
    ] {
        let mut worker = Worker::with(arguments, &variables);
        let address = worker.address();
        let is_tcp = arguments.contains(&"tcp://127.0.0.1:0");
        let scheme = if is_tcp { "tcp://" } else { "tls://" };
        assert!(address.starts_with(scheme), "{arguments:?}: {address}");
        scheduler.wait_for_line(&["Register worker", &address]);
        worker.signal("INT");
        assert_eq!(worker.code(), Some(0));
    }
}

/// Certificates of the command line replace those of the configuration, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn versions_and_ciphers_of_dask_s_configuration_hold_for_all_certificates() {
    let scheduler = daskwire_testing::scheduler_with_workers_over("tls", 0);
    let arguments = [&[scheduler.address()][..], &daskwire_testing::TLS_ARGUMENTS].concat();
    let certificates = [
        ("DASK_DISTRIBUTED__COMM__TLS__CA_FILE", TLS_PEM),
        ("DASK_DISTRIBUTED__COMM__TLS__WORKER__CERT", TLS_PEM),
    ];
    for (name, value, reason) in [
        ("MIN_VERSION", "1.1", "neither 1.2 nor 1.3"),
        ("MAX_VERSION", "1.4", "neither 1.2 nor 1.3"),
        ("CIPHERS", "'NO-SUCH'", "NO-SUCH"),
    ] {
        let name = format!("DASK_DISTRIBUTED__COMM__TLS__{name}");
        let variables = [&[(&*name, value)][..], &certificates].concat();
        for (arguments, variables) in [
            (&arguments[..], &variables[..1]),
            (&arguments[..1], &variables[..]),
        ] {
            let mut refused = Worker::with(arguments, variables);
            let line = refused.wait_for("daskwire: ");
            assert!(line.contains(reason), "{line}");
            assert_eq!(refused.code(), Some(2), "{line}");
        }
    }
    let variables = [
        ("DASK_DISTRIBUTED__COMM__TLS__MAX_VERSION", "1.2"),
        (
            "DASK_DISTRIBUTED__COMM__TLS__CIPHERS",
            "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES256-GCM-SHA384",
        ),
    ];
    let mut worker = Worker::with(&arguments, &variables);
    let address = worker.address();
    scheduler.wait_for_line(&["Register worker", &address]);
    // The worker refuses what it does not negotiate itself.
    let connected = |version: &str| {
        let code = format!(
            "import socket, ssl, sys\n\
             context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)\n\
             context.check_hostname = False\n\
             context.load_verify_locations({TLS_PEM:?})\n\
             context.load_cert_chain({TLS_PEM:?})\n\
             context.minimum_version = context.maximum_version = ssl.TLSVersion.{version}\n\
             host, port = sys.argv[1].removeprefix('tls://').split(':')\n\
             try: print(*context.wrap_socket(socket.create_connection((host, int(port)))).cipher()[:2])\n\
             except ssl.SSLError as error: print(error.reason)"
        );
        let python = python(Environment::Current);
        let ran = Command::new(python).args(["-c", &code, &address]).output();
        String::from_utf8(ran.expect("python").stdout).expect("UTF-8")
    };
    let negotiated = connected("TLSv1_2");
    assert!(
        negotiated.contains("AES256-GCM-SHA384 TLSv1.2"),
        "{negotiated}"
    );
    let refused = connected("TLSv1_3");
    assert!(refused.contains("PROTOCOL_VERSION"), "{refused}");
    worker.signal("INT");
    assert_eq!(worker.code(), Some(0));
}

/// The time after which a connection to a silent peer ends decides when it is probed.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn connections_have_the_timeout_of_dask_s_configuration() {
    /// The `timer_active` of Linux for a connection that waits for its next keepalive probe.
    const KEEPALIVE: &str = "02:";
    for scheme in ["tcp", "tls"] {
        let scheduler = daskwire_testing::scheduler_with_workers_over(scheme, 0);
        let mut arguments = vec![scheduler.address()];
        if scheme == "tls" {
            arguments.extend(daskwire_testing::TLS_ARGUMENTS);
        }
        let (_, port) = scheduler.address().rsplit_once(':').expect("a port");
        let port: u16 = port.parse().expect("a port");
        // The seconds until the next probes of connections to the scheduler.
        let probes = || {
            let table = fs::read_to_string("/proc/net/tcp").expect("Linux");
            let entries = table.lines().skip(1).map(|line| line.split_whitespace());
            let mut seconds = Vec::new();
            for mut entry in entries {
                let peer = entry.nth(2).expect("an address");
                let timer = entry.nth(2).expect("a timer");
                if let Some(left) = timer.strip_prefix(KEEPALIVE)
                    && peer.ends_with(&format!(":{port:04X}"))
                {
                    seconds.push(u64::from_str_radix(left, 16).expect("a number") / 100);
                }
            }
            seconds
        };
        let timeout = "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP";
        for (variables, range) in [
            (&[][..], 0..=10),
            (&[(timeout, "1 day")][..], 21_000..=21_600),
        ] {
            let mut worker = Worker::with(&arguments, variables);
            let address = worker.address();
            scheduler.wait_for_line(&["Register worker", &address]);
            until("a probe that is due in time", || {
                let probes = probes();
                !probes.is_empty() && probes.iter().all(|seconds| range.contains(seconds))
            })
            .await;
            worker.signal("INT");
            assert_eq!(worker.code(), Some(0));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_encryption_is_refused_if_dask_s_configuration_requires_it() {
    let scratch = Scratch::new("encryption");
    let file = scratch.path("scheduler.json");
    fs::write(&file, r#"{"address": "tcp://127.0.0.1:1"}"#).expect("it is written");
    let requires = ("DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION", "True");
    for arguments in [
        &["tcp://127.0.0.1:1"][..],
        &["127.0.0.1:1"],
        &[
            "tls://127.0.0.1:1",
            "--contact-address",
            "tcp://127.0.0.1:0",
        ],
        &["tls://127.0.0.1:1", "--listen-address", "tcp://127.0.0.1:0"],
        &["--scheduler-file", &file],
        &["--scheduler-file", &file, "--no-nanny"],
    ] {
        let mut refused = Worker::with(arguments, &[requires]);
        let line = refused.wait_for("daskwire: ");
        assert!(
            line.contains("tcp://127.0.0.1:") && line.contains("is not encrypted"),
            "{line}"
        );
        assert_eq!(refused.code(), Some(2), "{arguments:?}");
    }
    let scheduler = daskwire_testing::scheduler_with_workers_over("tls", 0);
    let arguments = [&[scheduler.address()][..], &daskwire_testing::TLS_ARGUMENTS].concat();
    let mut worker = Worker::with(&arguments, &[requires]);
    let address = worker.address();
    assert!(address.starts_with("tls://"), "{address}");
    worker.signal("INT");
    assert_eq!(worker.code(), Some(0));
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    for (arguments, reason) in [
        (
            "--listen-address tcp://127.0.0.1:0 --protocol tls",
            "--listen-address has the scheme tcp, but --protocol is tls",
        ),
        (
            "--host tcp://127.0.0.1 --protocol tls",
            "--host has the scheme tcp, but --protocol is tls",
        ),
        (
            "--nworkers 2 --contact-address tcp://127.0.0.1:1",
            "--contact-address is for one worker only",
        ),
    ] {
        let arguments = ["worker", "tcp://127.0.0.1:1"]
            .into_iter()
            .chain(arguments.split(' '));
        let ran = command::run(&arguments.collect::<Vec<_>>(), None);
        let error = ran.misused(reason);
        assert!(error.contains(reason), "{error}");
    }
    let arguments = [
        "worker",
        "tcp://127.0.0.1:1",
        "--dashboard-address",
        "localhost",
    ];
    let ran = command::run(&arguments, None);
    assert_eq!(ran.status, Some(2), "{}", ran.err);
    assert!(
        ran.err.contains("expected HOST:PORT, :PORT or PORT"),
        "{}",
        ran.err
    );
}

#[test]
fn options_that_only_python_can_have_are_refused_with_a_reason() {
    for (option, value, reason) in [
        ("--preload", "module", "only a worker with --python"),
        ("--preload-nanny", "module", "loads no Python modules"),
        ("--worker-class", "a.Worker", "daskwire-peer"),
        ("--scheduler-sni", "name", "are not compared"),
    ] {
        let ran = command::run(&["worker", "tcp://127.0.0.1:1", option, value], None);
        let error = ran.misused(option);
        assert!(error.contains(reason), "{error}");
    }
}

/// Extracts options, such as `--name`, from a text.
fn options(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let is_option = |word: &&str| {
        let name = word.strip_prefix("--").unwrap_or_default();
        name.starts_with(|c: char| c.is_ascii_lowercase())
    };
    words.filter(is_option).map(str::to_owned).collect()
}

#[test]
fn the_guide_has_every_option_of_dask_s_commands() {
    check_options("worker", 30);
    check_options("scheduler", 20);
}

/// Checks that the page of the guide lists every option of Dask's command, of which there are more
/// than `count`, and only options that ours has.
fn check_options(name: &str, count: usize) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src");
    let page = format!("{folder}/replace-dask-{name}.md");
    let page = fs::read_to_string(page).expect("the page");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `--"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let column = |index: usize| {
        options(
            &rows
                .iter()
                .map(|row| row[index])
                .collect::<Vec<_>>()
                .join(" "),
        )
    };
    let help = Command::new(python(Environment::Current))
        .args(["-m", "dask", name, "--help"])
        .env("COLUMNS", "400")
        .output()
        .expect("the help of Dask");
    let help = String::from_utf8(help.stdout).expect("UTF-8");
    // The names start their lines, indented by two spaces.
    let names = help.lines().filter_map(|line| {
        let line = line
            .strip_prefix("  ")
            .filter(|line| line.starts_with('-'))?;
        Some(line.split("  ").next().unwrap_or(line))
    });
    let theirs = options(&names.collect::<Vec<_>>().join(" "));
    assert!(theirs.len() > count, "{theirs:?}");
    assert_eq!(column(1), theirs);
    let own = command::run(&[name, "--help"], None);
    let own = options(own.good(name));
    let unknown: Vec<String> = column(2).difference(&own).cloned().collect();
    assert_eq!(unknown, ["--version"; 1]);
}
