//! The host: the Python process of a worker that answers requests that need Python and
//! holds state, such as that of actors and shuffles.
//!
//! The process runs an object that Dask's extensions use as their worker. Each comm of a
//! peer whose requests need Python has a socket to the host; a task that runs in the
//! host has one, too, and is run by a thread of the host.
//!
//! If the tasks of a worker share a number of processes, all of these are hosts. The first is
//! the one that answers requests.

use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak, mpsc};
use std::thread;
use std::time::Instant;

use bytes::Bytes;
use daskwire_messages::protocol::{
    AddPluginInPython, ClosePython, ForgetInPython, FromPython, Keys, PythonLogged, PythonStream,
    RemovePluginInPython, ReturnMemoryInPython, SocketForPython, StartPython, StreamForPython,
    TransitionForPython, TransitionsForPython, Unknown,
};
use daskwire_messages::{Key, Value};
use daskwire_rpc::panic_flag::PanicFlag;

use super::link::Link;
use super::memory::SharedMemory;
use super::plugins::Plugins;
use super::process::{self, ChildProcess, Executor};
use super::template::Template;

/// Timeout for the host to tear down its plugins, after which it is killed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The host of a worker.
#[derive(Debug)]
pub struct Host {
    /// The process.
    pub child: Arc<ChildProcess>,
    memory: Arc<SharedMemory>,
    /// Set if a lock here is poisoned; the worker then ends.
    panic_flag: PanicFlag,
    /// Channel to the thread that writes to the process.
    commands: mpsc::Sender<Command>,
    /// The number of commands so far that must be handled before tasks that start later.
    command_count: AtomicU64,
    /// Idle executors, at most `nthreads`.
    idle: Mutex<Vec<Executor>>,
    nthreads: usize,
    /// Whether the host runs all tasks, or shares them with others.
    is_shared: bool,
    /// The number of threads started so far.
    thread_count: AtomicI64,
    /// The keys of what only the host has: actors, and results that cannot be pickled.
    kept: Mutex<HashSet<Key>>,
    /// The keys of values that the host may have in its cache.
    cached: Mutex<HashSet<Key>>,
    /// The number of the last change to plugins that was sent.
    plugins: Mutex<u64>,
    /// The last run of each shuffle that the host takes part in, by the id of the shuffle.
    shuffles: Mutex<HashMap<String, u64>>,
    /// Closed when the last message of the process has been handled.
    is_drained: Mutex<mpsc::Receiver<()>>,
}

/// An event of a host that is not the reply to a task.
#[derive(Debug)]
pub enum HostEvent {
    /// A message for the scheduler.
    Stream(PythonStream),
    /// The new amounts of all resources of the worker.
    Resources(Vec<(String, f64)>),
    /// A line for the worker's log.
    Line(PythonLogged),
    /// Whether plugins of the host observe the transitions of tasks.
    Watches(bool),
    /// The process has ended.
    Ended {
        /// A description of how the process ended.
        how: String,
        /// The keys of what only the host had.
        kept: Vec<Key>,
        /// Whether the host took part in shuffles.
        has_shuffles: bool,
    },
}

impl HostEvent {
    /// The event that a message of the process reports, if it reports one.
    fn of_message(message: FromPython) -> Option<Self> {
        Some(match message {
            FromPython::PythonStream(message) => Self::Stream(message),
            FromPython::PythonResources(message) => Self::Resources(message.resources),
            FromPython::PythonLogged(line) => Self::Line(line),
            FromPython::PythonWatches(message) => Self::Watches(message.is_watched),
            _ => return None,
        })
    }
}

/// Callback for the events of a host.
pub type HostCallback = dyn Fn(HostEvent) + Send + Sync;

#[derive(Debug)]
enum Command {
    Socket { socket: UnixStream, is_comm: bool },
    Forget(Vec<Key>),
    Stream(Unknown),
    Transitions(Vec<TransitionForPython>),
    ChangePlugin(String, Option<Bytes>),
    ReturnMemory,
    Close,
}

impl Host {
    /// Starts a host, and waits until its plugins are set up. `plugins` is the number of the
    /// last change to them.
    ///
    /// # Errors
    ///
    /// If no process can be started, or it ends before it is ready.
    pub fn start(
        template: &Template,
        (start, plugins): (&StartPython, u64),
        memory: &Arc<SharedMemory>,
        on: Arc<HostCallback>,
        panic_flag: PanicFlag,
    ) -> io::Result<Arc<Self>> {
        // Plugins may log events while they are set up.
        let is_ready = |message| {
            let is_ready = matches!(message, FromPython::PythonReady(_));
            if let Some(event) = HostEvent::of_message(message) {
                on(event);
            }
            Ok(is_ready)
        };
        let (socket, receiving, child) = process::start(template, start, memory, is_ready)?;
        let (commands, queue) = mpsc::channel();
        let (draining, is_drained) = mpsc::channel();
        let host = Arc::new(Self {
            child,
            memory: Arc::clone(memory),
            panic_flag,
            commands,
            command_count: AtomicU64::new(0),
            idle: Mutex::default(),
            nthreads: usize::try_from(start.nthreads).unwrap_or(usize::MAX),
            is_shared: start.is_shared,
            thread_count: AtomicI64::new(0),
            kept: Mutex::default(),
            cached: Mutex::default(),
            plugins: Mutex::new(plugins),
            shuffles: Mutex::default(),
            is_drained: Mutex::new(is_drained),
        });
        let sending = Link::new(socket, Arc::clone(memory));
        let child = Arc::downgrade(&host.child);
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        named("host-commands").spawn(move || {
            if send_all(sending, &queue).is_err()
                && let Some(child) = child.upgrade()
            {
                // A process that misses a command cannot be used, and another one is started
                // only once it has ended.
                child.end();
            }
        })?;
        let own = Arc::downgrade(&host);
        named("host-events").spawn(move || receive_all(receiving, &own, &*on, draining))?;
        Ok(host)
    }

    /// Opens a socket for a comm.
    ///
    /// # Errors
    ///
    /// If the system cannot create a socket, or the host has ended.
    pub fn open_comm(&self) -> io::Result<UnixStream> {
        self.open(true)
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        self.child.has_ended()
    }

    /// Returns an executor that runs tasks in a thread of the host.
    ///
    /// # Errors
    ///
    /// As [`open_comm`](Self::open_comm).
    pub fn executor(self: &Arc<Self>) -> io::Result<Executor> {
        let idle = self.panic_flag.check(self.idle.lock()).pop();
        if let Some(mut executor) = idle {
            executor.host = Some(Arc::clone(self));
            return Ok(executor);
        }
        let link = Link::new(self.open(false)?, Arc::clone(&self.memory));
        let child = Arc::clone(&self.child);
        let panic_flag = self.panic_flag.clone();
        let mut executor = Executor::new(link, child, Some(Arc::clone(self)), panic_flag);
        let count = self.thread_count.fetch_add(1, Ordering::Relaxed);
        executor.thread = (executor.thread << 32) | count;
        Ok(executor)
    }

    /// Takes back an executor without a task.
    pub fn give_back(&self, mut executor: Executor) {
        // An idle executor must not keep the host alive.
        executor.host = None;
        executor.place = None;
        let mut idle = self.panic_flag.check(self.idle.lock());
        // More threads than the worker has are started while tasks secede. A thread ends when
        // its executor is dropped.
        if idle.len() < self.nthreads {
            idle.push(executor);
        }
    }

    fn open(&self, is_comm: bool) -> io::Result<UnixStream> {
        let (own, socket) = UnixStream::pair()?;
        let command = Command::Socket { socket, is_comm };
        let sent = self.commands.send(command);
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(own)
    }

    /// Forwards a message of the scheduler's stream to the host.
    pub fn stream(&self, message: Unknown) {
        // Sent when a shuffle has failed, and also when it is done.
        if message.op == "shuffle-fail" {
            forget_shuffle(&mut self.lock_shuffles(), &message);
        }
        // If the host has ended, its shuffles have ended too.
        self.send_counted(Command::Stream(message));
    }

    /// Reports transitions of tasks to the plugins.
    pub fn transitions(&self, transitions: Vec<TransitionForPython>) {
        let _ = self.commands.send(Command::Transitions(transitions));
    }

    /// Returns the last run of each shuffle that the host took part in, by id. Blocks until
    /// the host has ended and its messages have been handled.
    pub fn lost_shuffles(&self) -> HashMap<String, u64> {
        // The channel carries nothing: an error means that all messages have been handled.
        let _ = self.panic_flag.check(self.is_drained.lock()).recv();
        self.lock_shuffles().clone()
    }

    /// Records that only the host has an actor, or a result that cannot be pickled.
    pub fn add_kept(&self, key: Key) {
        lock(&self.panic_flag, &self.kept).insert(key);
    }

    /// Removes those of `keys` from the host that only it has.
    pub fn release(&self, keys: &[Key]) {
        self.remove(&self.kept, keys.iter());
    }

    /// Records that the host may have the values of keys in its cache, if it has one.
    pub fn add_cached<'k>(&self, keys: impl IntoIterator<Item = &'k Key>) {
        if self.is_shared {
            let mut cached = lock(&self.panic_flag, &self.cached);
            for key in keys {
                if !cached.contains(key) {
                    cached.insert(key.clone());
                }
            }
        }
    }

    /// The number of `keys` whose values the host may have in its cache.
    pub fn count_cached<'k>(&self, keys: impl IntoIterator<Item = &'k Key>) -> usize {
        let cached = lock(&self.panic_flag, &self.cached);
        keys.into_iter().filter(|key| cached.contains(*key)).count()
    }

    /// Removes values from the cache of the host.
    pub fn forget<'k>(&self, keys: impl IntoIterator<Item = &'k Key>) {
        self.remove(&self.cached, keys);
    }

    fn remove<'k>(&self, from: &Mutex<HashSet<Key>>, keys: impl IntoIterator<Item = &'k Key>) {
        let mut held = lock(&self.panic_flag, from);
        let removed = keys.into_iter().filter_map(|key| held.take(key));
        let removed: Vec<Key> = removed.collect();
        drop(held);
        if !removed.is_empty() {
            self.send_counted(Command::Forget(removed));
        }
    }

    /// Asks the host to drop the values of its cache.
    pub fn return_memory(&self) {
        let _ = self.commands.send(Command::ReturnMemory);
    }

    /// Sends the changes to plugins since the last call, which are handled before tasks that
    /// start later. Not for the host that answers peers, which receives them as requests.
    pub fn update_plugins(&self, plugins: &Plugins) {
        let mut seen = lock(&self.panic_flag, &self.plugins);
        for (name, plugin) in plugins.since(&mut seen) {
            self.send_counted(Command::ChangePlugin(name, plugin));
        }
    }

    /// Whether the host runs all tasks, or shares them with others.
    pub const fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Sends a command that must be handled before tasks that start later.
    fn send_counted(&self, command: Command) {
        self.command_count.fetch_add(1, Ordering::AcqRel);
        let _ = self.commands.send(command);
    }

    /// The number of commands that must be handled before a task that starts now.
    pub fn command_count(&self) -> u64 {
        self.command_count.load(Ordering::Acquire)
    }

    /// Asks the host to tear down its plugins and end.
    pub fn ask_to_end(&self) {
        let _ = self.commands.send(Command::Close);
    }

    /// Waits until the host has ended, and kills it after five seconds.
    pub fn close(&self) {
        /// Interval at which the state of the process is polled.
        const PAUSE: Duration = Duration::from_millis(10);
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        while !self.child.has_ended() && Instant::now() < deadline {
            thread::sleep(PAUSE);
        }
        self.child.end();
    }

    fn lock_shuffles(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.panic_flag.check(self.shuffles.lock())
    }
}

fn lock<'l, T>(panic_flag: &PanicFlag, mutex: &'l Mutex<T>) -> MutexGuard<'l, T> {
    panic_flag.check(mutex.lock())
}

fn send_all(mut link: Link, queue: &mpsc::Receiver<Command>) -> io::Result<()> {
    for command in queue {
        match command {
            Command::Socket { socket, is_comm } => {
                let message = SocketForPython {
                    is_comm,
                    ..SocketForPython::default()
                };
                link.send_with(&message, &[socket.as_fd()])
            }
            Command::Forget(keys) => link.send(&ForgetInPython {
                keys: Keys(keys),
                ..ForgetInPython::default()
            }),
            Command::Stream(message) => link.send(&StreamForPython {
                message,
                ..StreamForPython::default()
            }),
            Command::Transitions(transitions) => link.send(&TransitionsForPython {
                transitions,
                ..TransitionsForPython::default()
            }),
            Command::ChangePlugin(name, Some(plugin)) => link.send(&AddPluginInPython {
                name,
                plugin,
                ..AddPluginInPython::default()
            }),
            Command::ChangePlugin(name, None) => link.send(&RemovePluginInPython {
                name,
                ..RemovePluginInPython::default()
            }),
            Command::ReturnMemory => link.send(&ReturnMemoryInPython::default()),
            Command::Close => link.send(&ClosePython::default()),
        }?;
    }
    Ok(())
}

/// Removes the shuffle of a `shuffle-fail` message, unless the host takes part in a later run:
/// a peer may start that before the scheduler's message about an earlier run arrives.
fn forget_shuffle(shuffles: &mut HashMap<String, u64>, message: &Unknown) {
    let id = message.value("shuffle_id").and_then(Value::as_str);
    let id = id.unwrap_or_default();
    let is_later = |last: &u64| match message.value("run_id") {
        Some(Value::Int(run)) => i128::from(*last) > *run,
        _ => false,
    };
    if !shuffles.get(id).is_some_and(is_later) {
        shuffles.remove(id);
    }
}

fn receive_all(mut link: Link, host: &Weak<Host>, on: &HostCallback, draining: mpsc::Sender<()>) {
    loop {
        let message = link.receive::<FromPython>();
        let Some(host) = host.upgrade() else {
            return;
        };
        match message {
            Ok(FromPython::PythonShuffle(shuffle)) => {
                host.lock_shuffles().insert(shuffle.id, shuffle.run_id);
            }
            Ok(message) => {
                if let Some(event) = HostEvent::of_message(message) {
                    on(event);
                }
            }
            Err(_) => {
                let how = host.child.end();
                drop(draining);
                let kept = core::mem::take(&mut *lock(&host.panic_flag, &host.kept));
                // Unlock before the callback, which reads the shuffles.
                let has_shuffles = !host.lock_shuffles().is_empty();
                on(HostEvent::Ended {
                    how,
                    kept: kept.into_iter().collect(),
                    has_shuffles,
                });
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_messages_about_earlier_runs_of_a_shuffle_change_nothing() {
        let failed = |run: i128| {
            let message = Unknown::new("shuffle-fail").field("shuffle_id", "s");
            message.field("run_id", Value::Int(run))
        };
        let mut shuffles = HashMap::from([("s".to_owned(), 4), ("t".to_owned(), 1)]);
        forget_shuffle(&mut shuffles, &failed(3));
        assert_eq!(shuffles.get("s"), Some(&4));
        forget_shuffle(&mut shuffles, &failed(4));
        assert_eq!(shuffles, HashMap::from([("t".to_owned(), 1)]));
    }
}
