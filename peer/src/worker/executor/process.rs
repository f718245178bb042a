//! A Python process that runs tasks.

use core::time::Duration;
use std::collections::HashMap;
use std::io::{self, PipeWriter, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};

use super::link::Link;
use super::memory::SharedMemory;
use crate::Key;
use crate::failure::lock_counter;
use crate::protocol::{ForgetInPython, FromPython, Keys, StartPython};
use crate::worker::store::{Datum, WeakDatum};

/// The module that the process runs.
const MODULE: &str = include_str!("../../../python/daskwire/worker.py");

/// Reads the module from standard input, which is the socket, and runs it. Dask cuts
/// frames of `distributed/worker` off tracebacks.
const BOOTSTRAP: &str = r#"
def main():
    import os, socket, struct, sys, types
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

/// Timeout for importing distributed.
const START_TIMEOUT: Duration = Duration::from_secs(300);

/// Timeout for a process that does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// A process that runs no task, or whose task the caller waits for.
#[derive(Debug)]
pub(super) struct Executor {
    pub(super) link: Link,
    pub(super) process: Arc<Process>,
}

/// What is shared with those who end a process or free its memory.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) id: u32,
    child: Mutex<Child>,
    /// When this is closed, also by the end of this process, the system kills the
    /// other one.
    _lifeline: PipeWriter,
    values: Mutex<Values>,
}

/// The values that a process keeps.
#[derive(Debug, Default)]
struct Values {
    kept: HashMap<Key, WeakDatum>,
    /// Keys of those that it does not need any more.
    stale: Vec<Key>,
}

impl Executor {
    /// Starts a process, and waits until it is ready.
    pub(super) fn start(
        interpreter: &Path,
        start: &StartPython,
        memory: &Arc<SharedMemory>,
    ) -> io::Result<Self> {
        let (socket, other) = UnixStream::pair()?;
        let (end, lifeline) = io::pipe()?;
        // Without a buffer, so that what tasks print is not lost when it is killed; in
        // a process group of its own, so that Ctrl-C is left to the worker.
        let child = Command::new(interpreter)
            .args(["-u", "-c", BOOTSTRAP])
            .stdin(Stdio::from(OwnedFd::from(other)))
            .process_group(0)
            .spawn()?;
        let process = Arc::new(Process {
            id: child.id(),
            child: Mutex::new(child),
            _lifeline: lifeline,
            values: Mutex::default(),
        });
        socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let mut link = Link::new(socket.try_clone()?, Arc::clone(memory));
        let ready = (|| {
            (&socket).write_all(&(MODULE.len() as u64).to_le_bytes())?;
            (&socket).write_all(MODULE.as_bytes())?;
            link.send_with(start, end.as_fd())?;
            link.set_timeout(Some(START_TIMEOUT))?;
            let ready: FromPython = link.receive()?;
            link.set_timeout(None)?;
            Ok(ready)
        })();
        match ready {
            Ok(FromPython::PythonReady(_)) => Ok(Self { link, process }),
            Ok(message) => {
                let what = format!("{:?} came before it was ready", message.op());
                Err(io::Error::other(what))
            }
            Err::<_, io::Error>(error) => {
                let ended = process.end();
                Err(io::Error::new(
                    error.kind(),
                    format!("it did not start ({ended}); its errors are above: {error}"),
                ))
            }
        }
    }

    /// Whether the process keeps the value of a datum.
    pub(super) fn keeps(&self, key: &Key, datum: &Datum) -> bool {
        let values = self.process.values();
        values.kept.get(key).is_some_and(|kept| kept.is(datum))
    }

    /// Notes that the process keeps the value of a datum.
    pub(super) fn keep(&self, key: &Key, datum: &Datum) {
        let mut values = self.process.values();
        values.kept.insert(key.clone(), datum.downgrade());
        values.stale.retain(|stale| stale != key);
    }

    /// Notes that the process does not keep values any more.
    pub(super) fn is_without(&self, keys: &Keys) {
        let mut values = self.process.values();
        for key in keys {
            values.kept.remove(key);
        }
    }

    /// Has the process forget values that are not needed any more. `used` are keys
    /// whose data may have been removed while a task used them.
    pub(super) fn forget_stale(&mut self, used: &[Key]) -> io::Result<()> {
        let mut values = self.process.values();
        for key in used {
            if values.kept.get(key).is_some_and(WeakDatum::is_gone) {
                values.kept.remove(key);
                values.stale.push(key.clone());
            }
        }
        let stale = core::mem::take(&mut values.stale);
        drop(values);
        if stale.is_empty() {
            return Ok(());
        }
        self.link.send(&ForgetInPython {
            keys: Keys(stale),
            ..ForgetInPython::default()
        })
    }
}

impl Process {
    /// Notes that a value is not needed any more.
    pub(super) fn forget(&self, key: &Key) {
        let mut values = self.values();
        if values.kept.remove(key).is_some() {
            values.stale.push(key.clone());
        }
    }

    /// Kills the process, and says how it ended: if it had ended before, by itself.
    pub(super) fn end(&self) -> String {
        let mut child = self.child();
        let _ = child.kill();
        let ended = child.wait();
        drop(child);
        let id = self.id;
        match ended {
            Ok(status) => format!("the Python process {id} ended with {status}"),
            Err(error) => format!("the Python process {id} ended: {error}"),
        }
    }

    /// Whether the process has ended.
    pub(super) fn has_ended(&self) -> bool {
        let status: io::Result<Option<ExitStatus>> = self.child().try_wait();
        !matches!(status, Ok(None))
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        lock_counter(&self.child)
    }

    fn values(&self) -> MutexGuard<'_, Values> {
        lock_counter(&self.values)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
