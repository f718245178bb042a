//! A real Dask for tests: Python environments with pinned releases, and
//! processes that run in them.
//!
//! Nothing needs to be installed beforehand but Python 3.11 or newer with its
//! `venv` module. The first test that asks for an environment creates it below
//! `target/python/` from the pins in `python/requirements-*.txt`; later runs
//! find it there. A test that cannot have one fails and says what to do: it
//! never passes for want of Python.
//!
//! ```no_run
//! let peer = daskwire_testing::echo(Environment::Current);
//! let socket = TcpStream::connect(peer.socket_address())?;
//! ```

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

pub mod bench;
pub mod cluster;

/// Which release of `distributed` to have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Environment {
    /// 2026.8.0: the modern message layout.
    Current,
    /// 2.30.1: the classic layout, as the protocol page documents it.
    Documented,
}

impl Environment {
    /// The version of `distributed` in it.
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

    /// The first minor version of Python 3 that its packages do not run on.
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

/// The interpreter of `environment`, which is made if it is not there yet.
///
/// Any number of tests and test processes may ask at the same time.
///
/// # Panics
///
/// When there is no suitable Python, or when the packages cannot be installed;
/// the message says what to do.
pub fn python(environment: Environment) -> PathBuf {
    static CURRENT: OnceLock<PathBuf> = OnceLock::new();
    static DOCUMENTED: OnceLock<PathBuf> = OnceLock::new();
    let interpreter = match environment {
        Environment::Current => &CURRENT,
        Environment::Documented => &DOCUMENTED,
    };
    interpreter.get_or_init(|| make(environment)).clone()
}

fn make(environment: Environment) -> PathBuf {
    let (base, minor) = base_python(environment);
    make_for(&base, minor, environment.name()).unwrap_or_else(|reason| {
        panic!(
            "no Python environment for distributed {}: {reason}",
            environment.release()
        )
    })
}

/// The environment of `requirements-{name}.txt` for Python 3.`minor`.
fn make_for(base: &OsStr, minor: u32, name: &str) -> Result<PathBuf, String> {
    let requirements = scripts().join(format!("requirements-{name}.txt"));
    let pins = fs::read(&requirements).expect("the list of packages is part of the source");
    // Packages are built for one version of Python, so it is part of the name.
    let directory = target()
        .join("python")
        .join(format!("{name}-3.{minor}-{:016x}", fnv1a(&pins)));
    make_environment(base, &directory, &requirements)
}

/// A Python with the packages that peers need.
#[derive(Clone, Debug)]
pub struct Interpreter {
    path: PathBuf,
    /// Whether the current release of Dask is among the packages: it does not run
    /// on Python before 3.11.
    pub has_dask: bool,
}

/// What the tests of pickles ask: the Python of [`Environment::Current`], or each
/// of those that DASKWIRE_PYTHONS names, separated by spaces, from 3.8 on.
/// `peer/tests/pickle_on_every_python.sh` names all that matter.
///
/// # Panics
///
/// When one that is named is not there: all of them have to be asked.
pub fn interpreters() -> Vec<Interpreter> {
    static NAMED: OnceLock<Option<Vec<Interpreter>>> = OnceLock::new();
    let named = NAMED.get_or_init(|| {
        let names = env::var("DASKWIRE_PYTHONS").ok()?;
        let named = named_pythons(&names).unwrap_or_else(|reason| panic!("{reason}"));
        let interpreters = named.into_iter().map(|(name, minor)| {
            let has_dask = minor >= 11;
            let packages = if has_dask { "current" } else { "before-3.11" };
            let path = make_for(name.as_ref(), minor, packages)
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

/// What DASKWIRE_PYTHONS names, with their minor versions: all of it or an error.
pub fn named_pythons(names: &str) -> Result<Vec<(&str, u32)>, String> {
    let minor = |name: &&str| python_minor(name.as_ref()).filter(|minor| *minor >= 8);
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
            "DASKWIRE_PYTHONS names what is no Python 3.8 or newer that runs: {}",
            missing.join(", ")
        ))
    }
}

/// Runs `environment.py`, which makes `directory` unless it is there.
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
        // What takes a minute must be seen while it happens, not afterwards.
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run {}: {error}", base.display()))?;
    if !output.status.success() {
        return Err(format!(
            "environment.py ended with {}; what it said stands above",
            output.status
        ));
    }
    let interpreter = String::from_utf8_lossy(&output.stdout);
    Ok(PathBuf::from(interpreter.trim_end()))
}

/// A Python to make environments with, and its minor version.
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
                "DASKWIRE_PYTHON is {}, which is no Python 3 that runs",
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

/// `x` if `interpreter` is Python 3.x and runs.
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

/// A listener of the release in `environment` that sends back each message it
/// gets; `echo_peer.py` says more.
pub fn echo(environment: Environment) -> Peer {
    Peer::spawn(environment, "echo_peer.py", &[])
}

/// What the release in `environment` reads and writes, to [`Peer::ask`];
/// `loads_peer.py` lists the questions.
pub fn loads(environment: Environment) -> Peer {
    Peer::spawn(environment, "loads_peer.py", &[])
}

/// What msgpack-python reads and writes, to [`Peer::ask`]; `msgpack_peer.py`
/// lists the questions.
pub fn msgpack() -> Peer {
    Peer::spawn(Environment::Current, "msgpack_peer.py", &[])
}

/// A real `dask scheduler` of the current release, without workers.
pub fn scheduler() -> Peer {
    scheduler_with_workers(0)
}

/// A real `dask scheduler` with `worker_count` real workers of one thread each,
/// named `worker-0`, `worker-1`, and so on, all registered. They end with it.
pub fn scheduler_with_workers(worker_count: usize) -> Peer {
    scheduler_with_workers_over("tcp", worker_count)
}

/// Authority, certificate and key of everybody in a cluster over TLS.
pub const TLS_PEM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../comm/tests/tls/self-signed.pem"
);

/// What tells `dask` and `daskwire` of it.
pub const TLS_ARGUMENTS: [&str; 6] = [
    "--tls-ca-file",
    TLS_PEM,
    "--tls-cert",
    TLS_PEM,
    "--tls-key",
    TLS_PEM,
];

/// The same over `tcp` or `tls`, with [`TLS_PEM`].
pub fn scheduler_with_workers_over(protocol: &str, worker_count: usize) -> Peer {
    let mut arguments = vec![
        "scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--protocol",
        protocol,
        "--no-dashboard",
        // It still serves its state over HTTP; not where others find it.
        "--dashboard-address",
        "127.0.0.1:0",
    ];
    if protocol == "tls" {
        arguments.extend(TLS_ARGUMENTS);
    }
    let mut scheduler = Peer::spawn_dask("dask scheduler", &arguments, |log| {
        address_after(log, "Scheduler at:")
    });
    for index in 0..worker_count {
        let worker = worker(scheduler.address(), &format!("worker-{index}"));
        // The scheduler logs it before it tells the worker, but what two
        // processes write need not arrive here in that order.
        scheduler.wait_for_log(&format!("Register worker addr: {} name:", worker.address()));
        scheduler.workers.push(worker);
    }
    scheduler
}

/// A real `dask worker` of one thread, registered with whatever scheduler is at
/// that address.
pub fn worker(scheduler: &str, name: &str) -> Peer {
    let mut arguments = vec![
        "worker",
        scheduler,
        "--host",
        "127.0.0.1",
        "--nthreads",
        "1",
        "--no-nanny",
        "--no-dashboard",
        "--dashboard-address",
        "127.0.0.1:0",
        "--name",
        name,
    ];
    if scheduler.starts_with("tls://") {
        arguments.extend(["--protocol", "tls"]);
        arguments.extend(TLS_ARGUMENTS);
    }
    // Registered once it says with whom, which is after its own address.
    Peer::spawn_dask(name, &arguments, |log| {
        address_after(log, "Registered to:").and_then(|_| address_after(log, "Start worker at:"))
    })
}

/// The address in the line of `log` that contains `label`.
pub fn address_after(log: &str, label: &str) -> Option<String> {
    // A line is complete only once its end is there.
    let complete = &log[..=log.rfind('\n')?];
    let (_, after) = complete.lines().find_map(|line| line.split_once(label))?;
    after
        .split_whitespace()
        .find(|word| word.starts_with("tcp://") || word.starts_with("tls://"))
        .map(Into::into)
}

/// How long a process may take until it is ready. Importing Dask on a busy
/// machine takes seconds.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// A Python process. It is killed when this is dropped; if the test is failing
/// then, what the process said on standard error is shown.
#[derive(Debug)]
pub struct Peer {
    name: String,
    address: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
    log: Arc<Log>,
    workers: Vec<Self>,
    directory: PathBuf,
}

impl Peer {
    /// Runs `script` from `testing/python/` and waits for its line `ready …`.
    ///
    /// # Panics
    ///
    /// When the script ends, or takes too long, before it is ready.
    pub fn spawn(environment: Environment, script: &str, arguments: &[&str]) -> Self {
        Self::run(&python(environment), script, arguments)
    }

    /// The same in one of the [`interpreters`].
    ///
    /// # Panics
    ///
    /// As [`spawn`](Self::spawn).
    pub fn spawn_in(interpreter: &Interpreter, script: &str) -> Self {
        Self::run(&interpreter.path, script, &[])
    }

    fn run(interpreter: &Path, script: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(interpreter);
        command.arg(scripts().join(script)).args(arguments);
        let mut peer = Self::start(script, &mut command);
        let mut stdout = BufReader::new(peer.child.stdout.take().expect("it is piped"));
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            let outcome = stdout.read_line(&mut line);
            // Nobody waits for it any more after the timeout.
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
                panic!("{script} did not get ready: it said {line:?} ({outcome:?})")
            }
            Err(_) => panic!("{script} was not ready within {READY_TIMEOUT:?}"),
        }
    }

    /// Runs `python -m dask` and waits until `ready` finds an address in what it logs.
    fn spawn_dask(name: &str, arguments: &[&str], ready: impl Fn(&str) -> Option<String>) -> Self {
        let mut command = Command::new(python(Environment::Current));
        command.args(["-m", "dask"]).args(arguments);
        Self::spawn_command(name, &mut command, ready)
    }

    /// Runs a command whose standard output nobody reads, and waits until `ready`
    /// finds an address in what it logs.
    ///
    /// # Panics
    ///
    /// When the process ends, or takes too long, before it is ready.
    pub fn spawn_command(
        name: &str,
        command: &mut Command,
        ready: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let mut peer = Self::start(name, command);
        // A full pipe would stop it.
        drop(peer.child.stdout.take());
        peer.address = peer
            .log
            .wait_for(ready)
            .unwrap_or_else(|reason| panic!("{name} did not get ready: {reason}"));
        peer
    }

    fn start(name: &str, command: &mut Command) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let directory = target().join("tmp").join(format!(
            "peer-{}-{}",
            std::process::id(),
            STARTED.fetch_add(1, Ordering::Relaxed)
        ));
        fs::create_dir_all(&directory).expect("a test may write below target/");
        // Nobody's own settings of Python or Dask.
        for (variable, _) in env::vars_os() {
            let variable = variable.to_string_lossy();
            if variable.starts_with("DASK_") || variable.starts_with("PYTHON") {
                command.env_remove(&*variable);
            }
        }
        let mut child = command
            .current_dir(&directory)
            .env("DASK_CONFIG", &directory)
            .env("DASK_ROOT_CONFIG", &directory)
            .env("DASK_TEMPORARY_DIRECTORY", &directory)
            // The order of a set's members depends on it.
            .env("PYTHONHASHSEED", "0")
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let log = Log::follow(child.stderr.take().expect("it is piped"));
        Self {
            name: name.to_owned(),
            address: String::new(),
            stdin: child.stdin.take(),
            stdout: None,
            child,
            log,
            workers: Vec::new(),
            directory,
        }
    }

    /// Where it listens, `tcp://127.0.0.1:PORT`; of a peer to ask, its release.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Where it listens, as the standard library wants it: `127.0.0.1:PORT`.
    pub fn socket_address(&self) -> &str {
        self.address
            .strip_prefix("tcp://")
            .expect("this peer does not listen")
    }

    /// The workers of a scheduler, in the order of their names.
    pub fn workers(&self) -> &[Self] {
        &self.workers
    }

    /// All that it has said on standard error.
    pub fn log(&self) -> String {
        self.log.state().text.clone()
    }

    /// What it has complained about: the lines of its log that no `INFO` begins,
    /// and those that follow them, but for what only says how busy it is.
    pub fn complaints(&self) -> Vec<String> {
        let log = self.log();
        // 2026-08-01 12:00:00,000 - distributed.core - WARNING - What happened.
        let level = |line: &str| {
            let mut parts = line.splitn(4, " - ").skip(1);
            let (logger, level) = (parts.next()?, parts.next()?);
            let is_level = level.chars().all(|letter| letter.is_ascii_uppercase());
            is_level.then(|| level == "INFO" || logger == "distributed.gc")
        };
        let mut is_fine = false;
        let complaints = log.lines().filter(|line| {
            is_fine = level(line).unwrap_or(is_fine);
            !is_fine
        });
        complaints.map(Into::into).collect()
    }

    /// Waits until it has said `text` on standard error.
    ///
    /// # Panics
    ///
    /// When it ends, or takes too long, before it says so.
    pub fn wait_for_log(&self, text: &str) {
        let found = self
            .log
            .wait_for(|log| log.contains(text).then(String::new));
        if let Err(reason) = found {
            panic!("{} did not say {text:?}: {reason}", self.name);
        }
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends the process a signal, by its name without `SIG`.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let asked = Command::new("kill").args(["-s", name, &id]).status();
        assert!(asked.is_ok_and(|status| status.success()), "kill -s {name}");
    }

    /// Asks the process to end as service managers do, and waits until it has.
    /// Returns whether it ended well.
    pub fn terminate(&mut self) -> bool {
        self.signal("TERM");
        self.ended()
    }

    /// Waits until the process has ended. Returns whether it ended well.
    pub fn ended(&mut self) -> bool {
        self.child.wait().is_ok_and(|status| status.success())
    }

    /// Kills worker number `index` of a scheduler, as a crash would.
    pub fn kill_worker(&mut self, index: usize) {
        drop(self.workers.remove(index));
    }

    /// Asks one question and waits for the answer: a JSON document and bytes,
    /// both ways. `exchange.py` describes the exchange.
    ///
    /// # Panics
    ///
    /// When the process has ended, or is not one that answers.
    pub fn ask(&mut self, question: &str, data: &[u8]) -> (String, Vec<u8>) {
        self.try_ask(question, data)
            .unwrap_or_else(|error| panic!("{} does not answer {question}: {error}", self.name))
    }

    fn try_ask(&mut self, question: &str, data: &[u8]) -> std::io::Result<(String, Vec<u8>)> {
        let len = |part: &[u8]| u32::try_from(part.len()).map_err(std::io::Error::other);
        let mut record = Vec::with_capacity(8 + question.len() + data.len());
        record.extend(len(question.as_bytes())?.to_le_bytes());
        record.extend(len(data)?.to_le_bytes());
        record.extend(question.as_bytes());
        record.extend(data);
        let missing = || std::io::Error::other("it has no such stream");
        let stdin = self.stdin.as_mut().ok_or_else(missing)?;
        stdin.write_all(&record)?;
        stdin.flush()?;
        let stdout = self.stdout.as_mut().ok_or_else(missing)?;
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
        Ok((
            String::from_utf8(document).map_err(std::io::Error::other)?,
            data,
        ))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Workers first: they would try to find the scheduler again.
        self.workers.clear();
        // Either fails only when the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            self.log.wait_for_end();
            let mut report = String::new();
            let _ = writeln!(report, "---- {} said on standard error ----", self.name);
            report.push_str(&self.log());
            eprintln!("{report}----");
        }
        // Left behind, it would only be in the way below target/.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// What a process writes to standard error, as far as it has.
#[derive(Debug, Default)]
struct Log {
    state: Mutex<LogState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LogState {
    text: String,
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
                    .text
                    .push_str(&String::from_utf8_lossy(&line));
                follower.changed.notify_all();
                line.clear();
            }
            follower.state().ended = true;
            follower.changed.notify_all();
        });
        log
    }

    /// A test that failed while it held the lock leaves text that is still good.
    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, find: impl Fn(&str) -> Option<String>) -> Result<String, String> {
        let deadline = Instant::now() + READY_TIMEOUT;
        let mut state = self.state();
        loop {
            if let Some(found) = find(&state.text) {
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

    /// Waits, but not long, for the last words of a process that has ended.
    fn wait_for_end(&self) {
        let state = self.state();
        let ended = self
            .changed
            .wait_timeout_while(state, Duration::from_secs(1), |state| !state.ended);
        drop(ended);
    }
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

/// The folder that Cargo builds into, wherever that is. A library is not told
/// where by a variable, as tests are; Cargo marks the folder.
fn target() -> PathBuf {
    let program = env::current_exe().expect("the path of the test");
    let folder = program
        .ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").is_file());
    folder.expect("tests run in Cargo's folder").to_owned()
}

/// FNV-1a, because it must be the same in each version of the standard library.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
