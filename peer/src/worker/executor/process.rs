//! A Python process that runs tasks, or is the host.

use core::time::Duration;
use std::collections::HashMap;
use std::io::{self, PipeWriter, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use rustix::io::retry_on_intr;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};

use super::Interpreter;
use super::host::Host;
use super::link::{Link, WRITE_TIMEOUT};
use super::memory::SharedMemory;
use super::plugins::Plugins;
use crate::Key;
use crate::failure::{Failure, lock_counter};
use crate::protocol::{
    AddPluginInPython, ForgetInPython, FromPython, Keys, RemovePluginInPython, StartPython,
};
use crate::worker::store::{Datum, WeakDatum};

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
const START_TIMEOUT: Duration = Duration::from_secs(300);

/// Time for which an idle process keeps shared memory for reuse, as in `worker.py`.
const SEGMENTS_KEPT: Duration = Duration::from_secs(2);

/// Maximum number of keys in a message that must fit into the buffer of the socket.
const MAX_FORGOTTEN: usize = 100;

/// Stack size in bytes of a thread that waits for the end of a process.
const WATCH_STACK_LEN: usize = 64 << 10;

/// Exclusive access to a process, or to a thread of the host, to run one task at a time.
#[derive(Debug)]
pub(super) struct Executor {
    pub(super) link: Link,
    pub(super) process: Arc<Process>,
    /// The host, if this is one of its threads.
    pub(super) host: Option<Arc<Host>>,
    /// The number of the last change to plugins that was sent to the process.
    plugins: u64,
}

/// The part of an executor that the pool can access while a task runs.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) running: Arc<Running>,
    failure: Failure,
    values: Mutex<Values>,
    /// Length in bytes of the regions that the process can reuse once this one unmaps them.
    lent: Arc<AtomicU64>,
    segments: Mutex<Segments>,
}

/// The shared memory that a process keeps for reuse.
#[derive(Debug)]
struct Segments {
    len: u64,
    since: Instant,
}

/// An operating-system process, killed on drop.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) id: u32,
    child: Mutex<State>,
    /// Pipe whose end makes the system kill the Python process, even if the worker crashes.
    _lifeline: PipeWriter,
}

#[derive(Debug)]
enum State {
    /// Not waited for yet, so the system cannot reuse the id.
    Started(Child),
    /// Waited for. The string describes how the process ended.
    Ended(String),
}

/// The values that a process caches.
#[derive(Debug, Default)]
struct Values {
    kept: HashMap<Key, WeakDatum>,
    /// Keys of values that are to be removed from the cache of the process.
    stale: Vec<Key>,
}

/// Starts a process, and waits until it is ready. `on` is called with each message that
/// the process sends before that.
pub(super) fn start(
    interpreter: &Interpreter,
    start: &StartPython,
    memory: &Arc<SharedMemory>,
    mut on: impl FnMut(FromPython) -> io::Result<()>,
) -> io::Result<(UnixStream, Link, Arc<Running>)> {
    let (socket, other) = UnixStream::pair()?;
    let (end, lifeline) = io::pipe()?;
    // Unbuffered (`-u`), so that the output of tasks is not lost when the process is killed;
    // in a process group of its own, so that Ctrl-C reaches the worker only.
    let child = Command::new(&interpreter.path)
        .args(["-u", "-c", BOOTSTRAP])
        .envs(interpreter.variables.iter().cloned())
        .stdin(Stdio::from(OwnedFd::from(other)))
        .process_group(0)
        .spawn()?;
    watch_end(&child, socket.try_clone()?);
    let running = Arc::new(Running {
        id: child.id(),
        child: Mutex::new(State::Started(child)),
        _lifeline: lifeline,
    });
    socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let mut link = Link::new(socket.try_clone()?, Arc::clone(memory));
    let ready = (|| {
        (&socket).write_all(&(MODULE.len() as u64).to_le_bytes())?;
        (&socket).write_all(MODULE.as_bytes())?;
        link.send_with(start, end.as_fd())?;
        link.set_timeout(Some(START_TIMEOUT))?;
        loop {
            match link.receive()? {
                FromPython::PythonReady(_) => break,
                message => on(message)?,
            }
        }
        link.set_timeout(None)
    })();
    match ready {
        Ok(()) => Ok((socket, link, running)),
        Err(error) => {
            let ended = running.end();
            Err(io::Error::new(
                error.kind(),
                format!("it did not become ready ({ended}); its errors are above: {error}"),
            ))
        }
    }
}

impl Executor {
    /// Creates an executor for the link to a process, or to a thread of the host.
    /// A poisoned lock sets `failure`.
    pub(super) fn new(
        link: Link,
        running: Arc<Running>,
        host: Option<Arc<Host>>,
        failure: Failure,
    ) -> Self {
        let process = Process {
            running,
            failure,
            values: Mutex::default(),
            lent: Arc::clone(&link.lent),
            segments: Mutex::new(Segments {
                len: 0,
                since: Instant::now(),
            }),
        };
        Self {
            link,
            process: Arc::new(process),
            host,
            plugins: 0,
        }
    }

    /// Sends the changes to plugins since the last call, and returns whether there are any. Does
    /// nothing for the host, which receives them as requests.
    ///
    /// The process reads further messages once the plugins are set up, which may take
    /// long: some plugins install packages.
    pub(super) fn update_plugins(&mut self, plugins: &Plugins) -> io::Result<bool> {
        if self.host.is_some() {
            return Ok(false);
        }
        let mut is_changed = false;
        for (name, plugin) in plugins.since(&mut self.plugins) {
            is_changed = true;
            match plugin {
                Some(plugin) => self.link.send_without_timeout(&AddPluginInPython {
                    name,
                    plugin,
                    ..AddPluginInPython::default()
                })?,
                None => self.link.send_without_timeout(&RemovePluginInPython {
                    name,
                    ..RemovePluginInPython::default()
                })?,
            }
        }
        Ok(is_changed)
    }

    /// Whether the process caches the value of a datum.
    pub(super) fn keeps(&self, key: &Key, datum: &Datum) -> bool {
        let values = self.process.values();
        values.kept.get(key).is_some_and(|kept| kept.is(datum))
    }

    /// Records that the process caches the value of a datum.
    pub(super) fn keep(&self, key: &Key, datum: &Datum) {
        let mut values = self.process.values();
        values.kept.insert(key.clone(), datum.downgrade());
        values.stale.retain(|stale| stale != key);
    }

    /// Records that the process no longer caches values.
    pub(super) fn remove_kept(&self, keys: &Keys) {
        let mut values = self.process.values();
        for key in keys {
            values.kept.remove(key);
        }
    }

    /// Removes values that are no longer needed from the cache of the process. `used` are
    /// keys whose data may have been removed while a task used them.
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

    /// Like [`forget_stale`](Self::forget_stale), but never blocks: keys that cannot be sent
    /// are kept for a later call.
    pub(super) fn try_forget_stale(&mut self) -> io::Result<()> {
        loop {
            let mut values = self.process.values();
            let kept = values.stale.len().saturating_sub(MAX_FORGOTTEN);
            let stale = values.stale.split_off(kept);
            drop(values);
            if stale.is_empty() {
                return Ok(());
            }
            let message = ForgetInPython {
                keys: Keys(stale),
                ..ForgetInPython::default()
            };
            if !self.link.try_send(&message)? {
                self.process.values().stale.extend(message.keys.0);
                return Ok(());
            }
        }
    }

    /// Asks the process to end after its current work.
    pub(super) fn ask_to_end(&self) {
        // An error means that it has ended.
        let _ = self.link.close();
    }

    /// Waits until the process has ended, and kills it after a timeout by dropping it.
    pub(super) fn wait(mut self, timeout: Duration) {
        let timeout = timeout.max(Duration::from_millis(1));
        if self.link.set_timeout(Some(timeout)).is_ok() {
            while self.link.receive::<FromPython>().is_ok() {}
        }
    }
}

impl Process {
    /// Marks a value for removal from the cache of the process.
    pub(super) fn forget(&self, key: &Key) {
        let mut values = self.values();
        if values.kept.remove(key).is_some() {
            values.stale.push(key.clone());
        }
    }

    /// Records the length in bytes of the shared memory that the process keeps for reuse,
    /// including what is still mapped here.
    pub(super) fn set_kept_memory(&self, len: u64) {
        let since = Instant::now();
        *lock_counter(&self.segments) = Segments { len, since };
    }

    /// Length in bytes of the shared memory that the process keeps and that is not mapped
    /// here.
    pub(super) fn spare_len(&self, is_idle: bool) -> u64 {
        let segments = lock_counter(&self.segments);
        if is_idle && segments.since.elapsed() > SEGMENTS_KEPT {
            return 0;
        }
        let lent = self.lent.load(Ordering::Relaxed);
        segments.len.saturating_sub(lent)
    }

    fn values(&self) -> MutexGuard<'_, Values> {
        self.failure.check(self.values.lock())
    }
}

impl Running {
    /// Kills the process and its process group, and returns a description of how it ended.
    /// If it had ended before, this is the description of that end.
    pub(super) fn end(&self) -> String {
        self.end_with("")
    }

    /// Like [`end`](Self::end), and appends `why` to the description.
    pub(super) fn end_with(&self, why: &str) -> String {
        let mut state = self.child();
        let child = match &mut *state {
            State::Started(child) => child,
            State::Ended(how) => return how.clone(),
        };
        let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
        // The process may have left its group.
        let _ = child.kill();
        let id = self.id;
        let how = match child.wait() {
            Ok(status) => format!("the Python process {id} ended with {status}{why}"),
            Err(error) => format!("the Python process {id} ended: {error}{why}"),
        };
        *state = State::Ended(how.clone());
        how
    }

    /// Whether the process has ended.
    pub(super) fn has_ended(&self) -> bool {
        match &*self.child() {
            State::Started(child) => {
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
                let id = WaitId::Pid(Pid::from_child(child));
                !matches!(waitid(id, options | WaitIdOptions::NOHANG), Ok(None))
            }
            State::Ended(_) => true,
        }
    }

    fn child(&self) -> MutexGuard<'_, State> {
        // Valid after a panic: the state changes in one assignment, to a process that has
        // been waited for, and nothing follows under the lock.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shuts down the socket when the process ends, since processes that it has forked may
/// hold the other end open.
fn watch_end(child: &Child, socket: UnixStream) {
    // Without a pidfd, the end is noticed when the last process closes the socket.
    let Ok(process) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else {
        return;
    };
    let watching = move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let id = || WaitId::PidFd(process.as_fd());
        // Fails if the process has been waited for already.
        let _ = retry_on_intr(|| waitid(id(), options));
        // Bytes that the process has sent can still be received.
        let _ = socket.shutdown(Shutdown::Both);
    };
    let builder = thread::Builder::new().name("python-end".to_owned());
    let _ = builder.stack_size(WATCH_STACK_LEN).spawn(watching);
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
