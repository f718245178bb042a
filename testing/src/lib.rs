//! Real Dask for tests: Python environments with pinned releases, and processes
//! that run in them.
//!
//! Only Python 3.11 or newer with its `venv` module must be installed. The first test
//! that uses an environment creates it below `target/python/` from the pins in
//! `python/requirements-*.txt`; later runs reuse it. Without a suitable Python, a test
//! fails with a message that names what to install. It is never skipped.
//!
//! ```no_run
//! let peer = daskwire_testing::echo(Environment::Current);
//! let socket = TcpStream::connect(peer.socket_address())?;
//! ```

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

pub mod bench;
pub mod cluster;
#[cfg(target_os = "linux")]
mod forked;
pub mod process;
mod random;
pub mod release;

pub use random::Random;

/// A release of `distributed`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Environment {
    /// 2026.8.0: the modern message layout.
    Current,
    /// 2.30.1: the classic layout, as the protocol page documents it.
    Documented,
}

impl Environment {
    /// The version of `distributed`.
    pub const fn release(self) -> &'static str {
        match self {
            Self::Current => "2026.8.0",
            Self::Documented => "2.30.1",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Documented => "documented",
        }
    }

    /// The first minor version of Python 3 that the pinned packages do not support.
    const fn python_minor_end(self) -> u32 {
        match self {
            Self::Current => u32::MAX,
            Self::Documented => 14,
        }
    }

    const fn python_versions(self) -> &'static str {
        match self {
            Self::Current => "Python 3.11 or newer",
            Self::Documented => "Python 3.11, 3.12 or 3.13",
        }
    }
}

/// The interpreter of `environment`, which is created if it is missing.
///
/// May be called by any number of tests and processes concurrently.
///
/// # Panics
///
/// If there is no suitable Python, or the packages cannot be installed. The
/// message names what to install.
pub fn python(environment: Environment) -> PathBuf {
    static CURRENT: OnceLock<PathBuf> = OnceLock::new();
    static DOCUMENTED: OnceLock<PathBuf> = OnceLock::new();
    let interpreter = match environment {
        Environment::Current => &CURRENT,
        Environment::Documented => &DOCUMENTED,
    };
    interpreter
        .get_or_init(|| create_environment(environment))
        .clone()
}

static WITH_LIBRARIES: OnceLock<PathBuf> = OnceLock::new();

/// The interpreter of the current release with h5py, polars, pyarrow, scikit-learn and
/// xarray. It is created if it is missing.
///
/// # Panics
///
/// As [`python`].
pub fn python_with_libraries() -> PathBuf {
    let make = || {
        let (base, minor) = base_python(Environment::Current);
        create_environment_for(&base, minor, "libraries")
            .unwrap_or_else(|reason| panic!("no Python environment with libraries: {reason}"))
    };
    WITH_LIBRARIES.get_or_init(make).clone()
}

/// The modules of [`python_with_libraries`] that take long to import.
pub const LIBRARIES: &[&str] = &[
    "distributed",
    "dask.dataframe",
    "sklearn.ensemble",
    "xarray",
];

/// Whether an interpreter is that of [`python_with_libraries`].
#[cfg(target_os = "linux")]
fn has_libraries(interpreter: &Path) -> bool {
    WITH_LIBRARIES.get().is_some_and(|path| path == interpreter)
}

fn create_environment(environment: Environment) -> PathBuf {
    let (base, minor) = base_python(environment);
    create_environment_for(&base, minor, environment.name()).unwrap_or_else(|reason| {
        panic!(
            "no Python environment for distributed {}: {reason}",
            environment.release()
        )
    })
}

/// Creates the environment of `requirements-{name}.txt` for Python 3.`minor`.
fn create_environment_for(base: &OsStr, minor: u32, name: &str) -> Result<PathBuf, String> {
    let requirements = scripts().join(format!("requirements-{name}.txt"));
    let pins = fs::read(&requirements).expect("the list of packages is part of the source");
    // Packages are built for one version of Python, so the path contains the version.
    let directory = target()
        .join("python")
        .join(format!("{name}-3.{minor}-{:016x}", fnv1a(&pins)));
    make_environment(base, &directory, &requirements)
}

/// A Python interpreter with the packages that test peers need.
#[derive(Clone, Debug)]
pub struct Interpreter {
    path: PathBuf,
    /// Whether the current release of Dask is installed, which needs Python 3.11.
    pub has_dask: bool,
}

/// The interpreters for tests of pickles: the Python of [`Environment::Current`], or
/// those named in DASKWIRE_PYTHONS, separated by spaces, of version 3.8 or newer.
/// `peer/tests/pickle_on_every_python.sh` names all relevant versions.
///
/// # Panics
///
/// If one of the named interpreters does not exist.
pub fn interpreters() -> Vec<Interpreter> {
    static NAMED: OnceLock<Option<Vec<Interpreter>>> = OnceLock::new();
    let named = NAMED.get_or_init(|| {
        let names = env::var("DASKWIRE_PYTHONS").ok()?;
        let named = named_pythons(&names).unwrap_or_else(|reason| panic!("{reason}"));
        let interpreters = named.into_iter().map(|(name, minor)| {
            let has_dask = minor >= 11;
            let packages = if has_dask { "current" } else { "before-3.11" };
            let path = create_environment_for(name.as_ref(), minor, packages)
                .unwrap_or_else(|reason| panic!("no environment for {name}: {reason}"));
            Interpreter { path, has_dask }
        });
        Some(interpreters.collect())
    });
    named.clone().unwrap_or_else(|| {
        vec![Interpreter {
            path: python(Environment::Current),
            has_dask: true,
        }]
    })
}

/// Parses DASKWIRE_PYTHONS, and determines the minor versions.
///
/// # Errors
///
/// If an interpreter does not run, or is older than 3.7; the message names it.
pub fn named_pythons(names: &str) -> Result<Vec<(&str, u32)>, String> {
    let minor = |name: &&str| python_minor(name.as_ref()).filter(|minor| *minor >= 7);
    let names: Vec<&str> = names.split_whitespace().collect();
    let missing: Vec<&str> = names
        .iter()
        .filter(|name| minor(name).is_none())
        .copied()
        .collect();
    if names.is_empty() {
        Err("DASKWIRE_PYTHONS names no Python".to_owned())
    } else if missing.is_empty() {
        let minors = names.iter().filter_map(minor);
        Ok(names.iter().copied().zip(minors).collect())
    } else {
        Err(format!(
            "DASKWIRE_PYTHONS: not a working Python 3.7 or newer: {}",
            missing.join(", ")
        ))
    }
}

/// Runs `environment.py`, which creates `directory` unless it exists.
///
/// # Errors
///
/// If `base` does not run, or `environment.py` fails. Its output is printed.
pub fn make_environment(
    base: &OsStr,
    directory: &Path,
    requirements: &Path,
) -> Result<PathBuf, String> {
    let output = Command::new(base)
        .arg(workspace().join("core/tests/vectors/environment.py"))
        .args([directory, requirements])
        .current_dir(workspace())
        .stdin(Stdio::null())
        // Creating an environment may take a minute, so it prints what it does.
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run {}: {error}", base.display()))?;
    if !output.status.success() {
        return Err(format!(
            "environment.py ended with {}; its output is above",
            output.status
        ));
    }
    let interpreter = String::from_utf8_lossy(&output.stdout);
    Ok(PathBuf::from(interpreter.trim_end()))
}

/// The Python interpreter that creates environments, and its minor version.
pub fn base_python(environment: Environment) -> (OsString, u32) {
    const CANDIDATES: [&str; 4] = ["python3.13", "python3.12", "python3.11", "python3"];
    let suitable = |minor: u32| (11..environment.python_minor_end()).contains(&minor);
    if let Some(chosen) = env::var_os("DASKWIRE_PYTHON") {
        match python_minor(&chosen) {
            Some(minor) if suitable(minor) => return (chosen, minor),
            Some(minor) => panic!(
                "DASKWIRE_PYTHON is Python 3.{minor}, but distributed {} needs {}",
                environment.release(),
                environment.python_versions(),
            ),
            None => panic!(
                "DASKWIRE_PYTHON is {}, which is not a working Python 3",
                chosen.display()
            ),
        }
    }
    for candidate in CANDIDATES {
        if let Some(minor) = python_minor(candidate.as_ref())
            && suitable(minor)
        {
            return (candidate.into(), minor);
        }
    }
    panic!(
        "these tests talk to a real Dask and need {} with the venv module: \
         install it (on Debian and Ubuntu: apt install python3 python3-venv) \
         or set DASKWIRE_PYTHON to the interpreter to use; none of {} will do",
        environment.python_versions(),
        CANDIDATES.join(", "),
    );
}

/// The minor version of `interpreter`, if it runs and is a Python 3.
fn python_minor(interpreter: &OsStr) -> Option<u32> {
    let output = Command::new(interpreter)
        .args(["-c", "import sys; print(*sys.version_info[:2])"])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    match version.split_whitespace().collect::<Vec<_>>()[..] {
        ["3", minor] if output.status.success() => minor.parse().ok(),
        _ => None,
    }
}

/// Starts a listener that echoes each message; see `echo_peer.py`.
pub fn echo(environment: Environment) -> Peer {
    Peer::spawn(environment, "echo_peer.py", &[])
}

/// Starts a process that reads and writes messages with the release in
/// `environment`, for [`Peer::ask`]; see `loads_peer.py`.
pub fn loads(environment: Environment) -> Peer {
    Peer::spawn(environment, "loads_peer.py", &[])
}

/// Starts a process that reads and writes msgpack, for [`Peer::ask`]; see
/// `msgpack_peer.py`.
pub fn msgpack() -> Peer {
    Peer::spawn(Environment::Current, "msgpack_peer.py", &[])
}

/// Starts a real `dask scheduler` of the current release, without workers.
pub fn scheduler() -> Peer {
    scheduler_with_workers(0)
}

/// Starts a real `dask scheduler` with `worker_count` registered workers. They have one
/// thread each, are named `worker-0`, `worker-1` and so on, and end with the scheduler.
pub fn scheduler_with_workers(worker_count: usize) -> Peer {
    scheduler_with_workers_over("tcp", worker_count)
}

/// The path of a file in `comm/tests/tls`, such as `ca.pem`; `make.sh` there describes them.
pub fn certificate(name: &str) -> PathBuf {
    workspace().join("comm/tests/tls").join(name)
}

/// The file with the authority, certificate and key of all parties of a TLS cluster.
pub const TLS_PEM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../comm/tests/tls/self-signed.pem"
);

/// The arguments of `dask` and `daskwire` that select [`TLS_PEM`].
pub const TLS_ARGUMENTS: [&str; 6] = [
    "--tls-ca-file",
    TLS_PEM,
    "--tls-cert",
    TLS_PEM,
    "--tls-key",
    TLS_PEM,
];

/// Like [`scheduler_with_workers`], over `tcp` or `ws`, or over `tls` or `wss` with [`TLS_PEM`].
pub fn scheduler_with_workers_over(protocol: &str, worker_count: usize) -> Peer {
    scheduler_in(&python(Environment::Current), protocol, worker_count)
}

/// Like [`scheduler_with_workers_over`], with the Dask release of an interpreter.
pub fn scheduler_in(interpreter: &Path, protocol: &str, worker_count: usize) -> Peer {
    let mut arguments = vec![
        "distributed.cli.dask_scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--protocol",
        protocol,
        "--no-dashboard",
        // The dashboard's HTTP server keeps running, on a random port.
        "--dashboard-address",
        "127.0.0.1:0",
    ];
    if ["tls", "wss"].contains(&protocol) {
        arguments.extend(TLS_ARGUMENTS);
    }
    let mut scheduler = Peer::spawn_dask(interpreter, "dask scheduler", &arguments, |log| {
        address_after(log, "Scheduler at:")
    });
    for index in 0..worker_count {
        let name = format!("worker-{index}");
        let worker = worker_in(interpreter, scheduler.address(), &name);
        // The scheduler logs the registration before the worker does, but the output of
        // two processes may be received in another order.
        scheduler.wait_for_line(&["Register worker", worker.address()]);
        scheduler.workers.push(worker);
    }
    scheduler
}

/// Starts a real `dask worker` with one thread that is registered with the scheduler at
/// the address `scheduler`.
pub fn worker(scheduler: &str, name: &str) -> Peer {
    worker_in(&python(Environment::Current), scheduler, name)
}

/// Like [`worker`], with the Dask release of an interpreter.
pub fn worker_in(interpreter: &Path, scheduler: &str, name: &str) -> Peer {
    // A registered worker logs the scheduler's address, after its own.
    worker_until(interpreter, scheduler, name, |log| {
        address_after(log, "Registered to:").and_then(|_| address_after(log, "Start worker at:"))
    })
}

/// Like [`worker_in`], waiting until `ready` finds the address of the peer in the
/// worker's log.
pub fn worker_until(
    interpreter: &Path,
    scheduler: &str,
    name: &str,
    ready: impl Fn(&str) -> Option<String>,
) -> Peer {
    worker_with(interpreter, scheduler, name, "--no-nanny", ready)
}

/// Like [`worker`], under a nanny, which starts the worker again when it ends. The address
/// is that of the first worker.
pub fn worker_under_nanny(scheduler: &str, name: &str) -> Peer {
    let interpreter = python(Environment::Current);
    worker_with(&interpreter, scheduler, name, "--nanny", |log| {
        address_after(log, "Registered to:").and_then(|_| address_after(log, "Start worker at:"))
    })
}

fn worker_with(
    interpreter: &Path,
    scheduler: &str,
    name: &str,
    nanny: &str,
    ready: impl Fn(&str) -> Option<String>,
) -> Peer {
    let mut arguments = vec![
        "distributed.cli.dask_worker",
        scheduler,
        "--host",
        "127.0.0.1",
        "--nthreads",
        "1",
        nanny,
        "--no-dashboard",
        "--dashboard-address",
        "127.0.0.1:0",
        "--name",
        name,
    ];
    let (protocol, _) = scheduler.split_once("://").unwrap_or(("tcp", scheduler));
    if protocol != "tcp" {
        arguments.extend(["--protocol", protocol]);
    }
    if ["tls", "wss"].contains(&protocol) {
        arguments.extend(TLS_ARGUMENTS);
    }
    Peer::spawn_dask(interpreter, name, &arguments, ready)
}

/// Starts `daskwire worker`, whose program is the file at `program`, and waits until the worker
/// is registered with the scheduler at the address `scheduler`. With an interpreter, the worker
/// runs functions of Python.
pub fn rust_worker(
    program: &str,
    scheduler: &str,
    name: &str,
    interpreter: Option<&Path>,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Peer {
    let mut command = Command::new(program);
    command.args(["worker", scheduler, "--name", name]);
    if let Some(interpreter) = interpreter {
        command.arg("--python").arg(interpreter);
    }
    command.args(arguments).envs(variables.iter().copied());
    let label = format!("worker {name} at");
    Peer::spawn_command(name, &mut command, |log| address_after(log, &label))
}

/// The lines of a log that are warnings or errors, in the format of any release, except those
/// of `distributed.gc`.
///
/// A traceback is one of them unless it belongs to a line of level `INFO`, such as `Batched Comm
/// Closed`, which Dask logs if a worker leaves while the scheduler has a message for it.
pub fn warnings(log: &str) -> Vec<String> {
    warnings_except(log, &[])
}

/// Like [`warnings`], without lines that contain one of `parts`, and the tracebacks that
/// follow them.
pub fn warnings_except(log: &str, parts: &[&str]) -> Vec<String> {
    const MARKS: [&str; 3] = [" - WARNING - ", " - ERROR - ", " - CRITICAL - "];
    let is_expected = |line: &str| {
        line.contains("distributed.gc - ") || parts.iter().any(|part| line.contains(part))
    };
    let mut before = "";
    let mut is_harmless = false;
    let mut warnings = Vec::new();
    for line in log.lines().filter(|line| !line.is_empty()) {
        let is_traceback = line.contains("Traceback (");
        // The traceback of a cause belongs to the same line.
        if is_traceback && !before.contains("above exception") {
            is_harmless = before.contains(" - INFO - ") || is_expected(before);
        }
        let is_marked = MARKS.iter().any(|mark| line.contains(mark)) && !is_expected(line);
        if is_traceback && !is_harmless || is_marked {
            warnings.push(line.to_owned());
        }
        before = line;
    }
    warnings
}

const SCHEMES: [&str; 5] = ["tcp://", "tls://", "quic://", "ws://", "wss://"];

/// The address in the line of `log` that contains `label`.
pub fn address_after(log: &str, label: &str) -> Option<String> {
    // Ignore an incomplete last line.
    let complete = &log[..=log.rfind('\n')?];
    let (_, after) = complete.lines().find_map(|line| line.split_once(label))?;
    after
        .split_whitespace()
        .find(|word| SCHEMES.iter().any(|scheme| word.starts_with(scheme)))
        .map(Into::into)
}

/// Timeout for a process to be ready. Importing Dask on a busy machine takes several
/// seconds.
const READY_TIMEOUT: Duration = Duration::from_secs(240);

/// Timeout of a reply. The process is killed after it, so that a test ends if its
/// cluster has lost a worker.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

/// Kills a process unless it is dropped within [`ANSWER_TIMEOUT`].
struct Deadline {
    _dropped: mpsc::Sender<()>,
}

impl Deadline {
    fn start(process: u32) -> Self {
        let (dropped, end) = mpsc::channel();
        thread::spawn(move || {
            if end.recv_timeout(ANSWER_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("process {process} gave no answer within {ANSWER_TIMEOUT:?}");
                let id = process.to_string();
                let _ = Command::new("kill").args(["-s", "KILL", &id]).status();
            }
        });
        Self { _dropped: dropped }
    }
}

/// A process that was started with a command, or forked from one that has imported Dask.
#[derive(Debug)]
enum Process {
    Spawned(Child),
    #[cfg(target_os = "linux")]
    Forked(forked::Forked),
}

impl Process {
    fn id(&self) -> u32 {
        match self {
            Self::Spawned(child) => child.id(),
            #[cfg(target_os = "linux")]
            Self::Forked(forked) => forked.id(),
        }
    }

    fn kill(&mut self) -> io::Result<()> {
        match self {
            Self::Spawned(child) => child.kill(),
            #[cfg(target_os = "linux")]
            Self::Forked(forked) => forked.kill(),
        }
    }

    /// Waits until the process has ended. Returns whether it succeeded.
    fn wait(&mut self) -> io::Result<bool> {
        match self {
            Self::Spawned(child) => Ok(child.wait()?.success()),
            #[cfg(target_os = "linux")]
            Self::Forked(forked) => forked.wait(),
        }
    }
}

/// A process, most often of Python, which is killed when dropped. Its standard error is
/// printed if the test is failing at that time.
#[derive(Debug)]
pub struct Peer {
    name: String,
    address: String,
    process: Process,
    stdin: Option<PipeWriter>,
    stdout: Option<BufReader<PipeReader>>,
    log: Arc<Log>,
    workers: Vec<Self>,
    directory: PathBuf,
}

impl Peer {
    /// Runs `script` in `testing/python/`, and waits until it prints a line `ready …`.
    ///
    /// # Panics
    ///
    /// If the script ends, or does not become ready in time.
    pub fn spawn(environment: Environment, script: &str, arguments: &[&str]) -> Self {
        Self::run(&python(environment), script, arguments)
    }

    /// Like [`spawn`](Self::spawn), with a given interpreter.
    ///
    /// # Panics
    ///
    /// As [`spawn`](Self::spawn).
    pub fn spawn_with(interpreter: &Path, script: &str, arguments: &[&str]) -> Self {
        Self::run(interpreter, script, arguments)
    }

    /// Like [`spawn`](Self::spawn), with one of the [`interpreters`].
    ///
    /// # Panics
    ///
    /// As [`spawn`](Self::spawn).
    pub fn spawn_in(interpreter: &Interpreter, script: &str) -> Self {
        Self::run(&interpreter.path, script, &[])
    }

    fn run(interpreter: &Path, script: &str, arguments: &[&str]) -> Self {
        let path = scripts().join(script).display().to_string();
        let arguments = [&[path.as_str()], arguments].concat();
        let mut peer = Self::start_python(interpreter, script, &arguments);
        let mut stdout = peer.stdout.take().expect("a new process has its output");
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            let outcome = stdout.read_line(&mut line);
            // Fails only if the timeout has dropped the receiver.
            let _ = sender.send((stdout, line, outcome));
        });
        match receiver.recv_timeout(READY_TIMEOUT) {
            Ok((stdout, line, Ok(_))) if line.starts_with("ready ") && line.ends_with('\n') => {
                line["ready ".len()..]
                    .trim_end()
                    .clone_into(&mut peer.address);
                peer.stdout = Some(stdout);
                peer
            }
            Ok((_, line, outcome)) => {
                panic!("{script} is not ready: it printed {line:?} ({outcome:?})")
            }
            Err(_) => panic!("{script} was not ready within {READY_TIMEOUT:?}"),
        }
    }

    /// Runs a module of Dask with arguments, and waits until `ready` finds an
    /// address in its log.
    pub fn spawn_dask(
        interpreter: &Path,
        name: &str,
        arguments: &[&str],
        ready: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let arguments = [&["-m"], arguments].concat();
        Self::start_python(interpreter, name, &arguments).when_logged(ready)
    }

    /// Runs a command, discarding its standard output, and waits until `ready` finds an
    /// address in its log.
    ///
    /// # Panics
    ///
    /// If the process ends, or does not become ready in time.
    pub fn spawn_command(
        name: &str,
        command: &mut Command,
        ready: impl Fn(&str) -> Option<String>,
    ) -> Self {
        Self::start(name, |directory, (stdin, _, stderr)| {
            let child = isolate(command, directory)
                .current_dir(directory)
                .stdin(stdin)
                .stdout(Stdio::null())
                .stderr(stderr)
                .spawn()?;
            // The command holds the ends of the pipes until they are replaced.
            command.stdin(Stdio::null()).stderr(Stdio::null());
            Ok(Process::Spawned(child))
        })
        .when_logged(ready)
    }

    /// Waits until `ready` finds an address in the log.
    fn when_logged(mut self, ready: impl Fn(&str) -> Option<String>) -> Self {
        // A task that prints fails without a reader, and waits while the pipe is full.
        if let Some(mut stdout) = self.stdout.take() {
            thread::spawn(move || io::copy(&mut stdout, &mut io::sink()));
        }
        self.address = self
            .log
            .wait_for(ready)
            .unwrap_or_else(|reason| panic!("{} is not ready: {reason}", self.name));
        self
    }

    /// Starts `interpreter ARGUMENTS`.
    #[cfg(target_os = "linux")]
    fn start_python(interpreter: &Path, name: &str, arguments: &[&str]) -> Self {
        Self::start(name, |directory, streams| {
            forked::fork(interpreter, arguments, directory, streams).map(Process::Forked)
        })
    }

    /// Starts `interpreter ARGUMENTS`.
    #[cfg(not(target_os = "linux"))]
    fn start_python(interpreter: &Path, name: &str, arguments: &[&str]) -> Self {
        Self::start(name, |directory, (stdin, stdout, stderr)| {
            let child = isolate(&mut Command::new(interpreter), directory)
                .args(arguments)
                .current_dir(directory)
                .stdin(stdin)
                .stdout(stdout)
                .stderr(stderr)
                .spawn()?;
            Ok(Process::Spawned(child))
        })
    }

    /// Starts a process in a directory of its own, with these ends of its standard streams.
    fn start(
        name: &str,
        process: impl FnOnce(&Path, (PipeReader, PipeWriter, PipeWriter)) -> io::Result<Process>,
    ) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let directory = target().join("tmp").join(format!(
            "peer-{}-{}",
            std::process::id(),
            STARTED.fetch_add(1, Ordering::Relaxed)
        ));
        fs::create_dir_all(&directory).expect("a test may write below target/");
        let started = (|| {
            let (their_stdin, stdin) = io::pipe()?;
            let (stdout, their_stdout) = io::pipe()?;
            let (stderr, their_stderr) = io::pipe()?;
            let process = process(&directory, (their_stdin, their_stdout, their_stderr))?;
            Ok((process, stdin, stdout, stderr))
        })();
        let (process, stdin, stdout, stderr) =
            started.unwrap_or_else(|error: io::Error| panic!("cannot start {name}: {error}"));
        Self {
            name: name.to_owned(),
            address: String::new(),
            process,
            stdin: Some(stdin),
            stdout: Some(BufReader::new(stdout)),
            log: Log::follow(stderr),
            workers: Vec::new(),
            directory,
        }
    }

    /// The word that the process has printed after `ready`: the address at which it listens,
    /// such as `tcp://127.0.0.1:PORT`, or the release of a process that replies to
    /// [`ask`](Self::ask).
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The socket address at which the process listens, `127.0.0.1:PORT`.
    pub fn socket_address(&self) -> &str {
        self.address
            .strip_prefix("tcp://")
            .expect("this peer does not listen")
    }

    /// The workers of a scheduler, sorted by name.
    pub fn workers(&self) -> &[Self] {
        &self.workers
    }

    /// The addresses of the workers of a scheduler, sorted by name.
    pub fn worker_addresses(&self) -> Vec<String> {
        self.workers
            .iter()
            .map(|worker| worker.address.clone())
            .collect()
    }

    /// The standard error so far.
    pub fn log(&self) -> String {
        self.log.state().content.clone()
    }

    /// The lines of the log that are warnings or errors, in the format of any release.
    pub fn warnings(&self) -> Vec<String> {
        warnings(&self.log())
    }

    /// Waits until `part` is in the log.
    ///
    /// # Panics
    ///
    /// If the process ends, or does not log `part` in time.
    pub fn wait_for_log(&self, part: &str) {
        let found = self
            .log
            .wait_for(|log| log.contains(part).then(String::new));
        if let Err(reason) = found {
            panic!("{} did not log {part:?}: {reason}", self.name);
        }
    }

    /// Waits until a line of the log contains all of `parts`.
    ///
    /// # Panics
    ///
    /// As [`wait_for_log`](Self::wait_for_log).
    pub fn wait_for_line(&self, parts: &[&str]) {
        let is_line = |line: &str| parts.iter().all(|part| line.contains(part));
        let found = self
            .log
            .wait_for(|log| log.lines().any(is_line).then(String::new));
        if let Err(reason) = found {
            panic!("{} did not log {parts:?}: {reason}", self.name);
        }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal to the process, given by its name without `SIG`.
    pub fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        let asked = Command::new("kill").args(["-s", name, &id]).status();
        assert!(asked.is_ok_and(|status| status.success()), "kill -s {name}");
    }

    /// Sends SIGTERM, and waits until the process has ended. Returns whether it
    /// succeeded.
    pub fn terminate(&mut self) -> bool {
        self.signal("TERM");
        self.ended()
    }

    /// Waits until the process has ended and its log is complete. Returns whether it succeeded.
    pub fn ended(&mut self) -> bool {
        let has_succeeded = self.process.wait().is_ok_and(|success| success);
        self.log.wait_for_end();
        has_succeeded
    }

    /// Kills the scheduler's worker `index`.
    pub fn kill_worker(&mut self, index: usize) {
        drop(self.workers.remove(index));
    }

    /// Sends a request and waits for the reply, each a JSON document and bytes; see
    /// `exchange.py`.
    ///
    /// # Panics
    ///
    /// If the process has ended, does not accept requests, or does not reply in time.
    pub fn ask(&mut self, question: &str, data: &[u8]) -> (String, Vec<u8>) {
        self.try_ask(question, data)
            .unwrap_or_else(|error| panic!("{} does not answer {question}: {error}", self.name))
    }

    fn try_ask(&mut self, question: &str, data: &[u8]) -> io::Result<(String, Vec<u8>)> {
        let len = |part: &[u8]| u32::try_from(part.len()).map_err(io::Error::other);
        let mut record = Vec::with_capacity(8 + question.len() + data.len());
        record.extend(len(question.as_bytes())?.to_le_bytes());
        record.extend(len(data)?.to_le_bytes());
        record.extend(question.as_bytes());
        record.extend(data);
        let missing = || io::Error::other("it has no such stream");
        let stdin = self.stdin.as_mut().ok_or_else(missing)?;
        stdin.write_all(&record)?;
        stdin.flush()?;
        let stdout = self.stdout.as_mut().ok_or_else(missing)?;
        let _deadline = Deadline::start(self.process.id());
        let mut len = || {
            let mut bytes = [0; 4];
            stdout
                .read_exact(&mut bytes)
                .map(|()| u32::from_le_bytes(bytes) as usize)
        };
        let (document_len, data_len) = (len()?, len()?);
        let mut document = vec![0; document_len];
        stdout.read_exact(&mut document)?;
        let mut data = vec![0; data_len];
        stdout.read_exact(&mut data)?;
        Ok((String::from_utf8(document).map_err(io::Error::other)?, data))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Workers first: they would try to reconnect to the scheduler.
        self.workers.clear();
        // Fails only if the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if thread::panicking() {
            self.log.wait_for_end();
            let mut report = String::new();
            let _ = writeln!(report, "---- standard error of {} ----", self.name);
            report.push_str(&self.log());
            eprintln!("{report}----");
        }
        // Remove the directory, so that directories do not accumulate below target/.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The standard error of a process up to now.
#[derive(Debug, Default)]
struct Log {
    state: Mutex<LogState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LogState {
    content: String,
    ended: bool,
}

impl Log {
    fn follow(source: impl Read + Send + 'static) -> Arc<Self> {
        let log = Arc::new(Self::default());
        let follower = Arc::clone(&log);
        thread::spawn(move || {
            let mut source = BufReader::new(source);
            let mut line = Vec::new();
            while source.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
                follower
                    .state()
                    .content
                    .push_str(&String::from_utf8_lossy(&line));
                follower.changed.notify_all();
                line.clear();
            }
            follower.state().ended = true;
            follower.changed.notify_all();
        });
        log
    }

    /// Locks the state, which remains valid after a panic of a test.
    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, find: impl Fn(&str) -> Option<String>) -> Result<String, String> {
        let deadline = Instant::now() + READY_TIMEOUT;
        let mut state = self.state();
        loop {
            if let Some(found) = find(&state.content) {
                return Ok(found);
            }
            if state.ended {
                return Err("it ended".to_owned());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("it took more than {READY_TIMEOUT:?}"));
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Waits briefly for the last output of a process that has ended.
    fn wait_for_end(&self) {
        let state = self.state();
        let ended = self
            .changed
            .wait_timeout_while(state, Duration::from_secs(1), |state| !state.ended);
        drop(ended);
    }
}

/// The variables that make Dask keep its settings and files in `directory`.
const DIRECTORY_VARIABLES: [&str; 3] = [
    "DASK_CONFIG",
    "DASK_ROOT_CONFIG",
    "DASK_TEMPORARY_DIRECTORY",
];

/// Makes a process ignore the user's settings of Python and Dask, and keep its own in
/// `directory`.
fn isolate<'c>(command: &'c mut Command, directory: &Path) -> &'c mut Command {
    for (variable, _) in env::vars_os() {
        let variable = variable.to_string_lossy();
        if variable.starts_with("DASK_") || variable.starts_with("PYTHON") {
            command.env_remove(&*variable);
        }
    }
    command
        .envs(DIRECTORY_VARIABLES.map(|name| (name, directory)))
        // Makes the order of sets deterministic.
        .env("PYTHONHASHSEED", "0")
        .env("PYTHONUNBUFFERED", "1")
}

fn workspace() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package
        .parent()
        .expect("the package is a folder of the workspace")
        .to_owned()
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python")
}

/// Cargo's target directory. Cargo sets no variable with its path for libraries, but marks
/// it: with the first file if Cargo has created it, and with the second one always.
fn target() -> PathBuf {
    const MARKS: [&str; 2] = ["CACHEDIR.TAG", ".rustc_info.json"];
    let program = env::current_exe().expect("the path of the test");
    let folder = program
        .ancestors()
        .find(|folder| MARKS.iter().any(|mark| folder.join(mark).is_file()));
    folder.expect("tests run in Cargo's folder").to_owned()
}

/// Computes an FNV-1a hash, which is stable, unlike the standard library's.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_a_process_that_has_ended_is_complete() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo ready >&2; seq 20000 >&2"]);
        let is_ready = |log: &str| log.contains("ready").then(String::new);
        let mut process = Peer::spawn_command("seq", &mut command, is_ready);
        assert!(process.ended());
        assert!(process.log().ends_with("\n20000\n"));
    }
}
