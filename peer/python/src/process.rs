//! A Python process that runs tasks, or is the host.

use core::time::Duration;
use std::collections::HashMap;
use std::io::{self, PipeWriter};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use daskwire_messages::Key;
use daskwire_messages::protocol::{
    AddPluginInPython, Field, ForgetInPython, FromPython, Keys, RemovePluginInPython,
    ReturnMemoryInPython, StartPython,
};
use daskwire_rpc::panic_flag::{PanicFlag, lock_counter};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::host::Host;
use super::link::{Link, WRITE_TIMEOUT};
use super::memory::SharedMemory;
use super::plugins::Plugins;
use super::template::{START_TIMEOUT, Template, TemplateProcess, not_ready};

/// Time for which an idle process keeps memory for reuse, as in `worker.py`.
const MEMORY_KEPT: Duration = Duration::from_secs(2);

/// Maximum number of keys in a message that must fit into the buffer of the socket.
const MAX_FORGOTTEN: usize = 100;

/// Interval at which the state of a process without a pidfd is polled.
const WAIT_PAUSE: Duration = Duration::from_millis(10);

/// Stack size in bytes of a thread that waits for the end of a process.
const WATCH_STACK_LEN: usize = 64 << 10;

/// Exclusive access to a process, or to a thread of the host, to run one task at a time.
#[derive(Debug)]
pub struct Executor {
    /// The link over which tasks are sent and their results received.
    pub link: Link,
    /// What the pool can access while a task runs.
    pub process: Arc<Process>,
    /// The host, if this is one of its threads.
    pub host: Option<Arc<Host>>,
    /// The number by which Dask's dashboard distinguishes threads.
    pub thread: i64,
    /// For a host, its place among those that share the tasks, while this executor has one.
    pub place: Option<Arc<()>>,
    /// The number of the last change to plugins that was sent to the process.
    plugins: u64,
    /// When the process was asked to return memory, if it has run no task since.
    pub asked_at: Option<Instant>,
}

/// The part of an executor that the pool can access while a task runs.
#[derive(Debug)]
pub struct Process {
    /// The process, which other executors share if it is a host.
    pub child: Arc<ChildProcess>,
    panic_flag: PanicFlag,
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
pub struct ChildProcess {
    /// The id that the system gave it.
    pub id: u32,
    parent: Arc<TemplateProcess>,
    /// The pidfd; `None` if the system provides none, as before Linux 5.3.
    handle: Option<OwnedFd>,
    /// A description of how the process ended, if its parent was asked. Until then, or until
    /// the parent has ended, the system cannot reuse the id.
    ended: Mutex<Option<String>>,
    /// Pipe whose end makes the system kill the Python process, even if the worker crashes.
    lifeline: Mutex<Option<PipeWriter>>,
}

/// The values that a process caches.
#[derive(Debug, Default)]
struct Values {
    /// The numbers of the values, by key.
    kept: HashMap<Key, u64>,
    /// Keys of values that are to be removed from the cache of the process.
    stale: Vec<Key>,
}

/// Starts a process with its first message, and waits until it is ready. `is_ready` is called
/// with each message of the process until it returns `true`.
pub(crate) fn start<T: Field>(
    template: &Template,
    start: &impl Field,
    memory: &Arc<SharedMemory>,
    mut is_ready: impl FnMut(T) -> io::Result<bool>,
) -> io::Result<(UnixStream, Link, Arc<ChildProcess>)> {
    let (end, lifeline) = io::pipe()?;
    let (socket, id, parent) = template.fork()?;
    let child = Arc::new(ChildProcess {
        id,
        parent,
        handle: open(id),
        ended: Mutex::default(),
        lifeline: Mutex::new(Some(lifeline)),
    });
    child.watch_end(socket.try_clone()?);
    socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let mut link = Link::new(socket.try_clone()?, Arc::clone(memory));
    let ready = (|| {
        link.send_with(start, &[end.as_fd(), template.locks.as_fd()])?;
        link.set_timeout(Some(START_TIMEOUT))?;
        while !is_ready(link.receive()?)? {}
        link.set_timeout(None)
    })();
    match ready {
        Ok(()) => Ok((socket, link, child)),
        Err(error) => Err(not_ready(&child.end(), &error)),
    }
}

/// The error for a message that a process sent too early.
pub(crate) fn too_early(op: &str) -> io::Error {
    io::Error::other(format!("it sent {op:?} before it was ready"))
}

impl Executor {
    /// Starts a process that runs tasks, and waits until it is ready. A poisoned lock sets
    /// `panic_flag`.
    ///
    /// # Errors
    ///
    /// If the system starts no process, or it ends or sends anything before it is ready.
    pub fn start(
        template: &Template,
        message: &StartPython,
        memory: &Arc<SharedMemory>,
        panic_flag: PanicFlag,
    ) -> io::Result<Self> {
        let is_ready = |message: FromPython| match message {
            FromPython::PythonReady(_) => Ok(true),
            other => Err(too_early(other.op())),
        };
        let (_, link, child) = start(template, message, memory, is_ready)?;
        Ok(Self::new(link, child, None, panic_flag))
    }

    /// Creates an executor for the link to a process, or to a thread of the host.
    /// A poisoned lock sets `panic_flag`.
    pub(crate) fn new(
        link: Link,
        child: Arc<ChildProcess>,
        host: Option<Arc<Host>>,
        panic_flag: PanicFlag,
    ) -> Self {
        let process = Process {
            child,
            panic_flag,
            values: Mutex::default(),
            lent: Arc::clone(&link.lent),
            segments: Mutex::new(Segments {
                len: 0,
                since: Instant::now(),
            }),
        };
        Self {
            link,
            thread: process.child.id.into(),
            process: Arc::new(process),
            host,
            place: None,
            plugins: 0,
            asked_at: None,
        }
    }

    /// Sends the changes to plugins since the last call, and returns whether there are any. Does
    /// nothing for the host, which receives them as requests.
    ///
    /// The process reads further messages once the plugins are set up, which may take
    /// long: some plugins install packages.
    ///
    /// # Errors
    ///
    /// If the process has ended.
    pub fn update_plugins(&mut self, plugins: &Plugins) -> io::Result<bool> {
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

    /// Whether the process caches the value with a number under a key.
    pub fn keeps(&self, key: &Key, number: u64) -> bool {
        let values = self.process.values();
        values.kept.get(key) == Some(&number)
    }

    /// Records that the process caches the value with a number under a key. A number is that of
    /// one value only; a key can have several values in turn.
    pub fn keep(&self, key: &Key, number: u64) {
        // All threads of a host use its cache, and the worker sends all inputs.
        if self.host.is_some() {
            return;
        }
        let mut values = self.process.values();
        values.kept.insert(key.clone(), number);
        values.stale.retain(|stale| stale != key);
    }

    /// Records that the process no longer caches values.
    pub fn remove_kept(&self, keys: &Keys) {
        let mut values = self.process.values();
        for key in keys {
            values.kept.remove(key);
        }
    }

    /// Removes values that are no longer needed from the cache of the process.
    ///
    /// # Errors
    ///
    /// As [`Link::send`].
    pub fn forget_stale(&mut self) -> io::Result<()> {
        let stale = core::mem::take(&mut self.process.values().stale);
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
    ///
    /// # Errors
    ///
    /// As [`Link::try_send`].
    pub fn try_forget_stale(&mut self) -> io::Result<()> {
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

    /// Asks an idle process, once until its next task, to return all memory that it keeps: the
    /// values of its cache, and what it would reuse. Never blocks: a process that does not read
    /// is not asked.
    ///
    /// # Errors
    ///
    /// As [`Link::try_send`].
    pub fn return_memory(&mut self) -> io::Result<()> {
        let is_asked = self.asked_at.is_some();
        if !is_asked && self.link.try_send(&ReturnMemoryInPython::default())? {
            self.asked_at = Some(Instant::now());
            self.process.set_kept_memory(0);
            *self.process.values() = Values::default();
        }
        Ok(())
    }

    /// Asks the process to end after its current work.
    pub fn ask_to_end(&self) {
        // An error means that it has ended.
        let _ = self.link.close();
    }

    /// Waits until the process has ended, and kills it after a timeout by dropping it.
    pub fn wait(mut self, timeout: Duration) {
        let timeout = timeout.max(Duration::from_millis(1));
        if self.link.set_timeout(Some(timeout)).is_ok() {
            while self.link.receive::<FromPython>().is_ok() {}
        }
    }
}

impl Process {
    /// Marks a value for removal from the cache of the process.
    pub fn forget(&self, key: &Key) {
        let mut values = self.values();
        if values.kept.remove(key).is_some() {
            values.stale.push(key.clone());
        }
    }

    /// Records the length in bytes of the shared memory that the process keeps for reuse,
    /// including what is still mapped here.
    pub fn set_kept_memory(&self, len: u64) {
        let since = Instant::now();
        *lock_counter(&self.segments) = Segments { len, since };
    }

    /// Length in bytes of the shared memory that the process keeps and that is not mapped
    /// here.
    pub fn spare_len(&self, is_idle: bool) -> u64 {
        let segments = lock_counter(&self.segments);
        if is_idle && segments.since.elapsed() > MEMORY_KEPT {
            return 0;
        }
        let lent = self.lent.load(Ordering::Relaxed);
        segments.len.saturating_sub(lent)
    }

    fn values(&self) -> MutexGuard<'_, Values> {
        self.panic_flag.check(self.values.lock())
    }
}

impl ChildProcess {
    /// Kills the process and its process group, and returns a description of how it ended.
    /// If it had ended before, this is the description of that end.
    pub fn end(&self) -> String {
        self.end_with("")
    }

    /// Like [`end`](Self::end), and appends `why` to the description.
    pub fn end_with(&self, why: &str) -> String {
        let mut ended = self.ended();
        if let Some(how) = &*ended {
            return how.clone();
        }
        self.kill();
        let how = self.describe_end(self.wait()) + why;
        *ended = Some(how.clone());
        how
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        let mut ended = self.ended();
        if ended.is_some() {
            return true;
        }
        if let Some(handle) = &self.handle {
            let mut end = [PollFd::new(handle, PollFlags::IN)];
            return !matches!(poll(&mut end, Some(&Timespec::default())), Ok(0));
        }
        let status = match self.parent.status(self.id) {
            Ok(None) => return false,
            Ok(status) => status,
            Err(_) => {
                self.kill();
                None
            }
        };
        *ended = Some(self.describe_end(status));
        true
    }

    /// Kills the process and its process group.
    fn kill(&self) {
        // Valid after a panic: dropping the pipe is all that is done with it. The system kills
        // the process group.
        let lifeline = self.lifeline.lock();
        drop(lifeline.unwrap_or_else(PoisonError::into_inner).take());
        // The process may have left its group, and may have closed the pipe.
        if let Some(handle) = &self.handle {
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
        let _ = self.parent.kill(self.id);
    }

    /// Waits until the process has ended. Returns its status, if its parent reports it.
    fn wait(&self) -> Option<ExitStatus> {
        loop {
            match &self.handle {
                Some(handle) => wait_for_end(handle),
                None => thread::sleep(WAIT_PAUSE),
            }
            match self.parent.status(self.id) {
                Ok(None) => {}
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }

    fn describe_end(&self, status: Option<ExitStatus>) -> String {
        let id = self.id;
        match status {
            Some(status) => format!("the Python process {id} ended with {status}"),
            None => format!(
                "the Python process {id} ended with an unknown status, since the process that \
                 had started it has ended, too"
            ),
        }
    }

    /// Shuts down the socket when the process ends, since processes that it has forked may
    /// hold the other end open.
    fn watch_end(&self, socket: UnixStream) {
        // Without a pidfd, the end is noticed when the last process closes the socket.
        let Some(handle) = self
            .handle
            .as_ref()
            .and_then(|handle| handle.try_clone().ok())
        else {
            return;
        };
        let watching = move || {
            wait_for_end(&handle);
            // Bytes that the process has sent can still be received.
            let _ = socket.shutdown(Shutdown::Both);
        };
        let builder = thread::Builder::new().name("python-end".to_owned());
        let _ = builder.stack_size(WATCH_STACK_LEN).spawn(watching);
    }

    fn ended(&self) -> MutexGuard<'_, Option<String>> {
        // Valid after a panic: it changes in one assignment, for a process that has been
        // waited for.
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a pidfd.
fn open(id: u32) -> Option<OwnedFd> {
    let id = Pid::from_raw(i32::try_from(id).ok()?)?;
    pidfd_open(id, PidfdFlags::empty()).ok()
}

/// Waits until the process of a pidfd has ended.
fn wait_for_end(handle: &OwnedFd) {
    let mut end = [PollFd::new(handle, PollFlags::IN)];
    // Fails only without memory for one descriptor.
    let _ = retry_on_intr(|| poll(&mut end, None));
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.end();
    }
}
