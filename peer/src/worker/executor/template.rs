//! The process from which the Python processes of a worker are forked.
//!
//! It has imported Dask, so that a fork of it is ready in milliseconds and shares the memory of
//! the modules. It runs no tasks and has one thread. It is started with the first process, and
//! again if it has ended.

use core::time::Duration;
use std::io::{self, Write as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Interpreter;
use super::link::{Link, WRITE_TIMEOUT};
use super::memory::SharedMemory;
use crate::failure::Failure;
use crate::protocol::{ForkPython, KillPython, Nullable, PythonEnded, PythonForked, WaitForPython};

/// The module that the process runs.
const MODULE: &str = include_str!("../../../python/daskwire/worker.py");

/// Python code that reads the module from standard input, which is the socket, and runs it.
/// Dask omits stack frames in `distributed/worker` from tracebacks, hence the file name.
const BOOTSTRAP: &str = r#"
def main():
    import sys
    # Python's own modules precede those in the current directory.
    sys.path.sort(key=lambda path: not path)
    import os, socket, struct, types
    sock = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    (left,) = struct.unpack("<Q", sock.recv(8, socket.MSG_WAITALL))
    source = b""
    while len(source) < left:
        source += sock.recv(left - len(source)) or sys.exit(1)
    module = types.ModuleType("daskwire.worker")
    sys.modules[module.__name__] = module
    exec(compile(source, "daskwire/distributed/worker.py", "exec"), module.__dict__)
    return module.main(sock)
main()
"#;

/// Timeout for a process to become ready, which includes the import of distributed.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(300);

/// Starts Python processes with an interpreter.
#[derive(Debug)]
pub(super) struct Template {
    interpreter: Interpreter,
    memory: Arc<SharedMemory>,
    /// The failure state of the worker, which ends if the lock here is poisoned.
    failure: Failure,
    /// The last process that was started.
    process: Mutex<Option<Arc<TemplateProcess>>>,
}

/// A process that forks others, and ends them. It is killed on drop.
#[derive(Debug)]
pub(super) struct TemplateProcess {
    link: Mutex<Link>,
    child: Mutex<Child>,
}

impl Template {
    pub(super) fn new(
        interpreter: Interpreter,
        memory: Arc<SharedMemory>,
        failure: Failure,
    ) -> Self {
        Self {
            interpreter,
            memory,
            failure,
            process: Mutex::default(),
        }
    }

    /// Forks a process that reads its messages from `socket`, in a process group of its own.
    /// Returns its id and its parent.
    pub(super) fn fork(&self, socket: BorrowedFd<'_>) -> io::Result<(u32, Arc<TemplateProcess>)> {
        let mut last = self.failure.check(self.process.lock());
        // An error means that the process has ended.
        if let Some(process) = &*last
            && let Ok(forked) = process.fork(socket)
        {
            return Ok((forked?, Arc::clone(process)));
        }
        let process = Arc::new(TemplateProcess::start(&self.interpreter, &self.memory)?);
        let forked = process.fork(socket);
        let forked = forked.map_err(|error| not_ready(&process.end(), &error))?;
        *last = Some(Arc::clone(&process));
        Ok((forked?, process))
    }
}

impl TemplateProcess {
    fn start(interpreter: &Interpreter, memory: &Arc<SharedMemory>) -> io::Result<Self> {
        let (socket, other) = UnixStream::pair()?;
        // Unbuffered (`-u`), so that the output of tasks is not lost when a process is killed;
        // in a process group of its own, so that Ctrl-C reaches the worker only.
        let child = Command::new(&interpreter.path)
            .args(["-u", "-c", BOOTSTRAP])
            .envs(interpreter.variables.iter().cloned())
            .stdin(Stdio::from(OwnedFd::from(other)))
            .process_group(0)
            .spawn()?;
        socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
        socket.set_read_timeout(Some(START_TIMEOUT))?;
        let process = Self {
            link: Mutex::new(Link::new(socket.try_clone()?, Arc::clone(memory))),
            child: Mutex::new(child),
        };
        // An error means that it has ended, which its first request reports.
        let _ = (&socket)
            .write_all(&(MODULE.len() as u64).to_le_bytes())
            .and_then(|()| (&socket).write_all(MODULE.as_bytes()));
        Ok(process)
    }

    /// The outer error is that of the process, the inner one that of the system.
    fn fork(&self, socket: BorrowedFd<'_>) -> io::Result<io::Result<u32>> {
        let mut link = self.link();
        link.send_with(&ForkPython::default(), socket)?;
        let forked = link.receive::<PythonForked>()?;
        let Some(id) = forked.id.0 else {
            return Ok(Err(io::Error::other(forked.error)));
        };
        u32::try_from(id).map(Ok).map_err(io::Error::other)
    }

    /// Kills a forked process and its process group.
    pub(super) fn kill(&self, id: u32) -> io::Result<()> {
        self.link().send(&KillPython {
            id: id.into(),
            ..KillPython::default()
        })
    }

    /// The status of a forked process that has ended. The system may use the id again after
    /// this call.
    pub(super) fn status(&self, id: u32) -> io::Result<Option<ExitStatus>> {
        let mut link = self.link();
        link.send(&WaitForPython {
            id: id.into(),
            ..WaitForPython::default()
        })?;
        let Nullable(status) = link.receive::<PythonEnded>()?.status;
        let status = status.map(i32::try_from).transpose();
        Ok(status.map_err(io::Error::other)?.map(ExitStatus::from_raw))
    }

    /// Kills the process, and returns a description of how it ended.
    fn end(&self) -> String {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        describe_end(child.id(), child.wait())
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        // After a panic, at worst the next reply is not the expected one, and then all
        // further requests fail.
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TemplateProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// A description of how a process ended.
pub(super) fn describe_end(id: u32, status: io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => format!("the Python process {id} ended with {status}"),
        Err(error) => format!("the Python process {id} ended: {error}"),
    }
}

/// The error for a process that has ended before it was ready.
pub(super) fn not_ready(ended: &str, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("it did not become ready ({ended}); its errors are above: {error}"),
    )
}
