//! The process from which the Python processes of a worker are forked.
//!
//! It has imported Dask, and other modules if the worker names them, so that a fork of it is ready
//! without these imports and shares the memory of the modules. It runs no tasks and starts no threads; libraries with threads stop them for a
//! fork. It is started with the first process, and again if it has ended.

use core::time::Duration;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use daskwire_messages::protocol::{
    ForkPython, KillPython, PythonEnded, PythonForked, WaitForPython,
};
use daskwire_rpc::panic_flag::PanicFlag;
use rustix::fs::{MemfdFlags, memfd_create};

use super::link::{Link, WRITE_TIMEOUT};
use super::memory::SharedMemory;

/// The module that the process runs.
const MODULE: &str = include_str!("../daskwire/worker.py");

/// Python code that reads the module from standard input, which is the socket, and runs it.
/// Dask omits stack frames in `distributed/worker` from tracebacks, hence the file name.
const BOOTSTRAP: &str = r#"
def main():
    import sys
    # Python's own modules precede those in the current directory.
    sys.path.sort(key=lambda path: not path)
    import os, socket, struct, types
    try:
        import distributed
    except ImportError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(NO_DISTRIBUTED)
    sock = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    # The worker may have ended meanwhile.
    left = sock.recv(8, socket.MSG_WAITALL)
    (left,) = struct.unpack("<Q", left) if len(left) == 8 else sys.exit(1)
    source = b""
    while len(source) < left:
        source += sock.recv(left - len(source)) or sys.exit(1)
    module = types.ModuleType("daskwire.worker")
    sys.modules[module.__name__] = module
    exec(compile(source, "daskwire/distributed/worker.py", "exec"), module.__dict__)
    return module.main(sock)
main()
"#;

/// The exit code of a process that cannot import distributed.
const NO_DISTRIBUTED: i32 = 78;

/// Time for a process to end once it has closed its socket.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout for a process to become ready, which includes the import of distributed.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(300);

/// Timeout for a reply of a template that has replied before.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// The interpreter and the environment of Python processes.
#[derive(Clone, Debug, Default)]
pub struct Interpreter {
    /// The path of the interpreter, which can import distributed.
    pub path: PathBuf,
    /// Variables added to the environment.
    pub variables: Vec<(String, String)>,
    /// The modules that are imported before processes are forked.
    pub imports: Vec<String>,
}

/// Starts Python processes with an interpreter.
#[derive(Debug)]
pub struct Template {
    interpreter: Interpreter,
    memory: Arc<SharedMemory>,
    /// The empty file whose bytes the processes lock to exclude each other.
    pub(crate) locks: OwnedFd,
    /// Set if the lock here is poisoned; the worker then ends.
    panic_flag: PanicFlag,
    /// The process to fork, if one was started. Locked while it starts, so that only one is
    /// started at a time.
    process: Mutex<Option<Arc<TemplateProcess>>>,
}

/// A process that forks others, and ends them. It is killed on drop.
#[derive(Debug)]
pub(crate) struct TemplateProcess {
    /// The link; `None` after the first error, since a late reply would be taken for that of
    /// the next request.
    link: Mutex<Option<Link>>,
    child: Mutex<Child>,
}

impl Template {
    /// Describes processes without starting any. A poisoned lock sets `panic_flag`.
    ///
    /// # Errors
    ///
    /// If the system provides no file in memory.
    pub fn new(
        interpreter: Interpreter,
        memory: Arc<SharedMemory>,
        panic_flag: PanicFlag,
    ) -> io::Result<Self> {
        Ok(Self {
            interpreter,
            memory,
            locks: memfd_create("daskwire-locks", MemfdFlags::CLOEXEC)?,
            panic_flag,
            process: Mutex::default(),
        })
    }

    /// Starts the process that is forked, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// If it cannot be started, or ends before it is ready.
    pub fn start(&self) -> io::Result<()> {
        let mut current = self.panic_flag.check(self.process.lock());
        let process = Arc::new(TemplateProcess::start(&self.interpreter, &self.memory)?);
        // The process asked for is none of its own, so the reply says nothing else.
        let asked = process.status(std::process::id());
        asked.map_err(|error| process.not_ready(&error))?;
        *current = Some(process);
        Ok(())
    }

    /// Forks a process in a process group of its own. Returns a socket to it, its id, and its
    /// parent.
    pub(crate) fn fork(&self) -> io::Result<(UnixStream, u32, Arc<TemplateProcess>)> {
        let mut current = self.panic_flag.check(self.process.lock());
        if let Some(process) = &*current
            && let Ok(forked) = process.fork()
        {
            let (socket, id) = forked?;
            return Ok((socket, id, Arc::clone(process)));
        }
        let process = Arc::new(TemplateProcess::start(&self.interpreter, &self.memory)?);
        let forked = process.fork();
        let forked = forked.map_err(|error| process.not_ready(&error))?;
        *current = Some(Arc::clone(&process));
        let (socket, id) = forked?;
        Ok((socket, id, process))
    }
}

impl TemplateProcess {
    fn start(interpreter: &Interpreter, memory: &Arc<SharedMemory>) -> io::Result<Self> {
        let (socket, other) = UnixStream::pair()?;
        // Unbuffered (`-u`), so that the output of tasks is not lost when a process is killed;
        // in a process group of its own, so that Ctrl-C reaches the worker only.
        let child = Command::new(&interpreter.path)
            .args(["-u", "-c"])
            .arg(BOOTSTRAP.replace("NO_DISTRIBUTED", &NO_DISTRIBUTED.to_string()))
            .args(&interpreter.imports)
            .envs(interpreter.variables.iter().cloned())
            .stdin(Stdio::from(OwnedFd::from(other)))
            .process_group(0)
            .spawn()?;
        socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
        socket.set_read_timeout(Some(START_TIMEOUT))?;
        let process = Self {
            link: Mutex::new(Some(Link::new(socket.try_clone()?, Arc::clone(memory)))),
            child: Mutex::new(child),
        };
        // An error means that it has ended, which its first request reports.
        let _ = (&socket)
            .write_all(&(MODULE.len() as u64).to_le_bytes())
            .and_then(|()| (&socket).write_all(MODULE.as_bytes()));
        Ok(process)
    }

    /// Forks a process. Returns a socket to it, and its id.
    ///
    /// After the outer error, this process cannot be used any more. The inner error is that of
    /// the system, which refuses another process.
    fn fork(&self) -> io::Result<io::Result<(UnixStream, u32)>> {
        let (socket, other) = UnixStream::pair()?;
        let forked: PythonForked = self.request(|link| {
            link.send_with(&ForkPython::default(), &[other.as_fd()])?;
            let forked = link.receive()?;
            link.set_timeout(Some(REPLY_TIMEOUT))?;
            Ok(forked)
        })?;
        let Some(id) = forked.id.0 else {
            return Ok(Err(io::Error::other(forked.error)));
        };
        let id = u32::try_from(id).map_err(io::Error::other)?;
        Ok(Ok((socket, id)))
    }

    /// Kills a forked process and its process group.
    pub(crate) fn kill(&self, id: u32) -> io::Result<()> {
        let message = KillPython {
            id: id.into(),
            ..KillPython::default()
        };
        self.request(|link| link.send(&message))
    }

    /// The status of a forked process; `None` if it has not ended. The system may use the id
    /// again after this call has returned a status.
    pub(crate) fn status(&self, id: u32) -> io::Result<Option<ExitStatus>> {
        let message = WaitForPython {
            id: id.into(),
            ..WaitForPython::default()
        };
        let ended: PythonEnded = self.request(|link| {
            link.send(&message)?;
            link.receive()
        })?;
        let status = ended.status.0.map(i32::try_from).transpose();
        Ok(status.map_err(io::Error::other)?.map(ExitStatus::from_raw))
    }

    /// Sends a request and receives its reply. After an error, no further request is sent.
    fn request<T>(&self, request: impl FnOnce(&mut Link) -> io::Result<T>) -> io::Result<T> {
        // Valid after a panic: the link is put back only after a request that succeeded.
        let mut current = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let mut link = current.take().ok_or(io::ErrorKind::NotConnected)?;
        let reply = request(&mut link)?;
        *current = Some(link);
        Ok(reply)
    }

    /// The error for this process, whose first reply failed with `error`.
    fn not_ready(&self, error: &io::Error) -> io::Error {
        let start = Instant::now();
        let has_ended = || {
            let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
            child.try_wait()
        };
        // The exit status says more than that of a process that was killed.
        let mut status = has_ended();
        while matches!(status, Ok(None)) && start.elapsed() < END_TIMEOUT {
            std::thread::sleep(END_TIMEOUT / 100);
            status = has_ended();
        }
        match status {
            Ok(Some(status)) if status.code() == Some(NO_DISTRIBUTED) => io::Error::new(
                io::ErrorKind::NotFound,
                "distributed cannot be imported there; the error is above",
            ),
            _ => not_ready(&self.end(), error),
        }
    }

    /// Kills the process, and returns a description of how it ended.
    fn end(&self) -> String {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let id = child.id();
        match child.wait() {
            Ok(status) => format!("the Python process {id} ended with {status}"),
            Err(error) => format!("the Python process {id} ended: {error}"),
        }
    }
}

impl Drop for TemplateProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// The error for a process that has ended before it was ready.
pub(crate) fn not_ready(ended: &str, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("it did not become ready ({ended}); its errors are above: {error}"),
    )
}
