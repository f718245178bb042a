//! The host: the Python process of a worker that answers requests for Python and holds
//! what has state, such as actors and shuffles.
//!
//! The process runs an object that Dask's extensions take for a worker. Each comm of a
//! peer whose requests need Python has a socket to the host; a task that runs in the
//! host has one, too, and is run by a thread of the host.

use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread;
use std::time::Instant;

use super::Interpreter;
use super::link::Link;
use super::memory::SharedMemory;
use super::process::{self, Executor, Running};
use crate::Key;
use crate::failure::lock_counter;
use crate::protocol::{
    ClosePython, ForgetInPython, FromPython, Keys, LogEvent, SocketForPython, StartPython,
    StreamForPython, TransitionForPython, TransitionsForPython, Unknown,
};

/// Time for plugins to be torn down.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The host of a worker.
#[derive(Debug)]
pub(in crate::worker) struct Host {
    pub(super) running: Arc<Running>,
    memory: Arc<SharedMemory>,
    /// To the thread that writes to the process.
    commands: mpsc::Sender<Command>,
    idle: Mutex<Vec<Executor>>,
    /// The keys of actors.
    actors: Mutex<HashSet<Key>>,
    /// The ids of shuffles, and their last runs.
    shuffles: Mutex<HashMap<String, u64>>,
    /// Closed when the last message of the process is handled.
    is_drained: Mutex<mpsc::Receiver<()>>,
}

/// A message from a host, which is not the answer to a task.
#[derive(Debug)]
pub(in crate::worker) enum HostEvent {
    /// An event for subscribers of the scheduler.
    Log(LogEvent),
    /// Whether its plugins want the changes of tasks.
    Watches(bool),
    /// The process has ended.
    Ended {
        /// How it ended.
        how: String,
        /// The actors that were in it.
        actors: Vec<Key>,
        /// Whether it took part in shuffles.
        has_shuffles: bool,
    },
}

/// Callback for the events of a host.
pub(in crate::worker) type OnHost = dyn Fn(HostEvent) + Send + Sync;

#[derive(Debug)]
enum Command {
    Socket { socket: UnixStream, is_comm: bool },
    Forget(Vec<Key>),
    Stream(Unknown),
    Transitions(Vec<TransitionForPython>),
    Close,
}

impl Host {
    /// Starts a host, and waits until its plugins are set up.
    pub(super) fn start(
        interpreter: &Interpreter,
        start: &StartPython,
        memory: &Arc<SharedMemory>,
        on: Arc<OnHost>,
    ) -> io::Result<Arc<Self>> {
        // Its plugins may log events.
        let early = |message| {
            match message {
                FromPython::LogEvent(event) => on(HostEvent::Log(event)),
                FromPython::PythonWatches(message) => on(HostEvent::Watches(message.is_watched)),
                _ => {}
            }
            Ok(())
        };
        let (socket, receiving, running) = process::start(interpreter, start, memory, early)?;
        let (commands, queue) = mpsc::channel();
        let (draining, is_drained) = mpsc::channel();
        let host = Arc::new(Self {
            running,
            memory: Arc::clone(memory),
            commands,
            idle: Mutex::default(),
            actors: Mutex::default(),
            shuffles: Mutex::default(),
            is_drained: Mutex::new(is_drained),
        });
        let sending = Link::new(socket, Arc::clone(memory));
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        named("host-commands").spawn(move || send_all(sending, &queue))?;
        let own = Arc::downgrade(&host);
        named("host-events").spawn(move || receive_all(receiving, &own, &*on, draining))?;
        Ok(host)
    }

    /// Opens a socket for a comm.
    ///
    /// # Errors
    ///
    /// The system's, and if the host has ended.
    pub(in crate::worker) fn open_comm(&self) -> io::Result<UnixStream> {
        self.open(true)
    }

    /// Whether the process has ended.
    pub(in crate::worker) fn has_ended(&self) -> bool {
        self.running.has_ended()
    }

    /// An executor that runs tasks in the host.
    pub(super) fn executor(self: &Arc<Self>) -> io::Result<Executor> {
        let idle = lock_counter(&self.idle).pop();
        if let Some(mut executor) = idle {
            executor.host = Some(Arc::clone(self));
            return Ok(executor);
        }
        let link = Link::new(self.open(false)?, Arc::clone(&self.memory));
        let running = Arc::clone(&self.running);
        Ok(Executor::new(link, running, Some(Arc::clone(self))))
    }

    /// Takes back an executor without a task.
    pub(super) fn give_back(&self, mut executor: Executor) {
        // It must not keep the host alive.
        executor.host = None;
        lock_counter(&self.idle).push(executor);
    }

    fn open(&self, is_comm: bool) -> io::Result<UnixStream> {
        let (own, socket) = UnixStream::pair()?;
        let command = Command::Socket { socket, is_comm };
        let sent = self.commands.send(command);
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(own)
    }

    /// Hands a message of the scheduler's stream to the host.
    pub(in crate::worker) fn stream(&self, message: Unknown) {
        // A shuffle that has failed or is done.
        if message.op == "shuffle-fail" {
            let id = message.value("shuffle_id").and_then(|id| id.as_str());
            lock_counter(&self.shuffles).remove(id.unwrap_or_default());
        }
        // If the host has ended, so have its shuffles.
        let _ = self.commands.send(Command::Stream(message));
    }

    /// Tells the plugins of changes of tasks.
    pub(in crate::worker) fn transitions(&self, transitions: Vec<TransitionForPython>) {
        let _ = self.commands.send(Command::Transitions(transitions));
    }

    /// The shuffles that a host which has ended took part in, and their last runs.
    pub(super) fn lost_shuffles(&self) -> HashMap<String, u64> {
        // An error means that all is handled.
        let _ = lock_counter(&self.is_drained).recv();
        lock_counter(&self.shuffles).clone()
    }

    /// Notes that the host holds an actor.
    pub(super) fn holds(&self, key: Key) {
        lock_counter(&self.actors).insert(key);
    }

    /// Has the host forget actors.
    pub(super) fn release(&self, keys: &[Key]) {
        let mut actors = lock_counter(&self.actors);
        let held = keys.iter().filter(|key| actors.remove(*key));
        let held: Vec<Key> = held.cloned().collect();
        drop(actors);
        if !held.is_empty() {
            let _ = self.commands.send(Command::Forget(held));
        }
    }

    /// Has the host tear down its plugins, and ends it.
    pub(super) fn close(&self) {
        /// Interval at which the process is looked at.
        const PAUSE: Duration = Duration::from_millis(10);
        let _ = self.commands.send(Command::Close);
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        while !self.running.has_ended() && Instant::now() < deadline {
            thread::sleep(PAUSE);
        }
        self.running.end();
    }
}

fn send_all(mut link: Link, queue: &mpsc::Receiver<Command>) {
    for command in queue {
        let sent = match command {
            Command::Socket { socket, is_comm } => {
                let message = SocketForPython {
                    is_comm,
                    ..SocketForPython::default()
                };
                link.send_with(&message, socket.as_fd())
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
            Command::Close => link.send(&ClosePython::default()),
        };
        if sent.is_err() {
            return;
        }
    }
}

fn receive_all(mut link: Link, host: &Weak<Host>, on: &OnHost, draining: mpsc::Sender<()>) {
    loop {
        let message = link.receive::<FromPython>();
        let Some(host) = host.upgrade() else {
            return;
        };
        match message {
            Ok(FromPython::LogEvent(event)) => on(HostEvent::Log(event)),
            Ok(FromPython::PythonWatches(message)) => on(HostEvent::Watches(message.is_watched)),
            Ok(FromPython::PythonShuffle(shuffle)) => {
                lock_counter(&host.shuffles).insert(shuffle.id, shuffle.run_id);
            }
            // Others are answers.
            Ok(_) => {}
            Err(_) => {
                let how = host.running.end();
                drop(draining);
                let actors = core::mem::take(&mut *lock_counter(&host.actors));
                // Unlocked before the callback, which reads the shuffles.
                let has_shuffles = !lock_counter(&host.shuffles).is_empty();
                on(HostEvent::Ended {
                    how,
                    actors: actors.into_iter().collect(),
                    has_shuffles,
                });
                return;
            }
        }
    }
}
