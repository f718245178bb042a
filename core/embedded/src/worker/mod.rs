//! A worker of one thread, without a heap and without I/O.
//!
//! A [`Worker`] registers with a scheduler, runs functions of a static table on
//! the numbers, bytes and small arrays that Python submits, keeps their results
//! and serves them. Its tasks name their function by
//! `operator.methodcaller("native:NAME")`, which every Python can unpickle:
//!
//! ```python
//! client.submit(operator.methodcaller("native:hypot"), 3, 4, workers=["mcu"]).result()
//! ```
//!
//! The worker is a [`Role`]: connect it to sockets with
//! [`exchange`](crate::role::exchange).

mod plugin;
mod reply;
mod requests;
mod stream;
mod task;

use core::time::Duration;

use crate::fixed_string::FixedString;
use crate::link::{Link, LinkBuffers, MAX_FRAMES};
use crate::role::{Role, Wanted};
use crate::store::{EntryId, Handle, Part, State, Store};
use crate::value::Failure;
use plugin::Plugin;
use reply::DataReply;

pub use task::{Function, MAX_ARGS};

/// The addresses and the name of a worker.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Config<'a> {
    /// The address of the scheduler, such as `tcp://10.0.2.2:8786`.
    pub scheduler: &'a str,
    /// The address at which peers reach this worker.
    pub contact: &'a str,
    /// The name of the worker, unique in the cluster.
    pub name: &'a str,
}

impl<'a> Config<'a> {
    /// A worker with the name `name` of the scheduler at `scheduler`, which peers reach at
    /// `contact`.
    pub const fn new(scheduler: &'a str, contact: &'a str, name: &'a str) -> Self {
        Self {
            scheduler,
            contact,
            name,
        }
    }

    with_fields! {
        with_scheduler(scheduler: &'a str);
        with_contact(contact: &'a str);
        with_name(name: &'a str);
    }
}

/// The number of tasks that a worker reads of one batch. An array that is an argument of
/// a task counts as well. A batch may be longer: later tasks fail with a `MemoryError`.
pub const MAX_BATCH: usize = 159;

/// The memory of a worker: for `KEYS` tasks and values, of `DATA` bytes in all,
/// and for its messages.
///
/// * `KEYS` is the number of tasks that wait or run, of results, and of inputs from other
///   workers, in all. At most 60: the reply to a request for all values begins with 24
///   bytes and 16 for each value, for which there is 1 KiB. A task fails with a
///   `MemoryError` if no key is free and no task can run. It does not wait for results to
///   be released: the scheduler's messages arrive in order, and those that release
///   results come after the task.
/// * `DATA` counts the keys, the tasks that have not run, and the values, in bytes.
/// * `MESSAGE` is the maximum length of a task, in bytes, with its numbers and bytes; of
///   each array that is an argument; and of the keys of its inputs, with the addresses of
///   the workers that have them. A longer task fails with a `MemoryError`.
/// * `PEERS` is the number of connections that peers may have to the worker at a time.
///
/// Its initial value is all zeros, so that a static variable of this type takes no flash.
///
/// The size is about 8.6 kB, 104 bytes for each of `KEYS`, 4.2 kB for each of `PEERS`, `DATA` and
/// `MESSAGE`:
///
/// ```
/// use daskwire_embedded::worker::Memory;
///
/// const LEN: usize = size_of::<Memory<32, 8192, 2048, 3>>();
/// assert!(LEN <= 8_600 + 32 * 104 + 3 * 4_200 + 8192 + 2048);
/// ```
pub struct Memory<const KEYS: usize, const DATA: usize, const MESSAGE: usize, const PEERS: usize> {
    store: Store<KEYS, DATA>,
    stream: LinkBuffers<{ MAX_BATCH + 1 }, MESSAGE, 2560>,
    requests: LinkBuffers<MAX_FRAMES, 1536, 1024>,
    fetch: LinkBuffers<MAX_FRAMES, 2048, 512>,
    // A request for all keys must fit.
    peers: [LinkBuffers<MAX_FRAMES, 3072, 1024>; PEERS],
}

impl<const KEYS: usize, const DATA: usize, const MESSAGE: usize, const PEERS: usize>
    Memory<KEYS, DATA, MESSAGE, PEERS>
{
    /// Unused memory.
    pub const fn new() -> Self {
        const {
            assert!(
                KEYS <= 60,
                "the prelude of a reply has to fit in its buffer"
            );
            assert!(PEERS <= 255, "a value is counted once for each peer")
        }
        Self {
            store: Store::new(),
            stream: LinkBuffers::EMPTY,
            requests: LinkBuffers::EMPTY,
            fetch: LinkBuffers::EMPTY,
            peers: [const { LinkBuffers::EMPTY }; PEERS],
        }
    }
}

impl<const KEYS: usize, const DATA: usize, const MESSAGE: usize, const PEERS: usize> Default
    for Memory<KEYS, DATA, MESSAGE, PEERS>
{
    fn default() -> Self {
        Self::new()
    }
}

/// The status of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Status {
    /// The worker is not registered, and tries to register.
    Connecting,
    /// The release of the scheduler is [not supported](Worker::refused_release). The worker
    /// tries again after a minute.
    Refused,
    /// The worker is registered with the scheduler.
    Running,
    /// The scheduler has closed the worker.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The worker waits for the next attempt to register.
    Pause {
        until: Duration,
    },
    /// The scheduler is asked for its versions.
    Versions {
        deadline: Duration,
        is_requested: bool,
    },
    /// The scheduler is asked to install the plugin.
    Installing {
        deadline: Duration,
        /// The bytes of the request that are sent; `None` before its prelude.
        sent: Option<usize>,
    },
    Registering {
        deadline: Duration,
        is_requested: bool,
    },
    Running,
    /// The last messages are being sent.
    Leaving {
        deadline: Duration,
    },
    Ended,
}

/// The pause before a worker registers again.
const PAUSE: Duration = Duration::from_secs(1);

/// The timeout for registering, for the answer to a heartbeat, for leaving, and
/// for a peer that is in the middle of a message.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The time after which a connection of a peer may be closed for another one.
const PEER_IDLE: Duration = Duration::from_secs(2);

/// A connection to the worker from another worker, the scheduler or a client.
struct Peer<'b, const KEYS: usize> {
    link: Link<'b>,
    reply: Option<DataReply<KEYS>>,
    /// The time at which bytes were last received or sent.
    active: Duration,
}

/// The state of the heartbeats.
#[derive(Clone, Copy, Debug)]
struct Heartbeat {
    interval: Duration,
    next: Duration,
    /// The time at which the reply counts as missing; `None` if no reply is pending.
    answer_due: Option<Duration>,
}

/// A task that has run and is not reported yet.
#[derive(Clone, Copy, Debug)]
struct Finished {
    id: EntryId,
    start: Duration,
    outcome: Result<(), Failure>,
    /// Whether the function was called: if not, another worker may be able to.
    is_called: bool,
}

/// A worker of one thread.
///
/// A task that does not fit in its [`Memory`] fails with a `MemoryError`, however long it
/// is and however many come at once; other tasks and values are not affected. Tasks run
/// in the order in which they arrive; the priorities of the scheduler are not used. While a
/// function runs, nothing else happens. A worker that loses its scheduler
/// forgets everything and registers again.
pub struct Worker<'b, const KEYS: usize, const DATA: usize, const PEERS: usize> {
    config: Config<'b>,
    functions: &'b [(&'b str, Function)],
    /// The batched messages to and from the scheduler.
    stream: Link<'b>,
    /// Requests to the scheduler.
    requests: Link<'b>,
    /// Requests to another worker.
    fetch: Link<'b>,
    fetching: Option<Fetching>,
    peers: [Peer<'b, KEYS>; PEERS],
    store: &'b mut Store<KEYS, DATA>,
    phase: Phase,
    plugin: Plugin,
    /// The release of a scheduler that is not supported.
    refused: FixedString<16>,
    heartbeat: Heartbeat,
    finished: Option<Finished>,
    /// The task whose buffers follow in the batch being received, and their number.
    receiving: Option<(EntryId, u64)>,
    /// The number of handled keys of the message being received.
    answered: usize,
    now: Duration,
    /// The scheduler's time minus the local time, in seconds.
    time_offset: f64,
    /// The time at which to ask again for the holders of values.
    next_holder_request: Duration,
    /// The index of the entry to ask for first.
    next_holder_index: usize,
}

/// A value that is being fetched from another worker.
#[derive(Clone, Copy, Debug)]
struct Fetching {
    value: Handle,
    step: FetchStep,
    /// The time at which the holder is given up, unless bytes are sent or received.
    deadline: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FetchStep {
    Connecting,
    Requested,
    /// The value is not available: the tasks that need it have to fail.
    Failed(Failure),
}

const STREAM: usize = 0;
const REQUESTS: usize = 1;
const FETCH: usize = 2;
const PEER: usize = 3;

impl<'b, const KEYS: usize, const DATA: usize, const PEERS: usize> Worker<'b, KEYS, DATA, PEERS> {
    /// The number of links, for [`Connections`](crate::role::Connections).
    pub const LINKS: usize = PEER + PEERS;

    /// A worker that is not connected, with the functions that tasks may call by
    /// name.
    pub fn new<const MESSAGE: usize>(
        config: Config<'b>,
        functions: &'b [(&'b str, Function)],
        memory: &'b mut Memory<KEYS, DATA, MESSAGE, PEERS>,
    ) -> Self {
        memory.store.clear();
        let mut peers = memory.peers.iter_mut();
        Self {
            config,
            functions,
            stream: memory.stream.link_in_pieces(),
            requests: memory.requests.link(),
            fetch: memory.fetch.link(),
            fetching: None,
            peers: core::array::from_fn(|_| Peer {
                // The numbers of buffers and peers are equal.
                link: match peers.next() {
                    Some(buffers) => buffers.link(),
                    None => Link::new(&mut [], &mut [], &mut []),
                },
                reply: None,
                active: Duration::ZERO,
            }),
            store: &mut memory.store,
            phase: Phase::Pause {
                until: Duration::ZERO,
            },
            plugin: Plugin::FIRST,
            refused: FixedString::new(),
            heartbeat: Heartbeat {
                interval: Duration::from_millis(500),
                next: Duration::ZERO,
                answer_due: None,
            },
            finished: None,
            receiving: None,
            answered: 0,
            now: Duration::ZERO,
            time_offset: 0.0,
            next_holder_request: Duration::ZERO,
            next_holder_index: 0,
        }
    }

    /// The status of the worker.
    pub const fn status(&self) -> Status {
        match self.phase {
            Phase::Pause { .. }
            | Phase::Versions { .. }
            | Phase::Installing { .. }
            | Phase::Registering { .. } => {
                if self.refused.is_empty() {
                    Status::Connecting
                } else {
                    Status::Refused
                }
            }
            Phase::Running | Phase::Leaving { .. } => Status::Running,
            Phase::Ended => Status::Ended,
        }
    }

    /// The release of the scheduler, if it is older than 2025.3.0, the oldest that is
    /// supported.
    pub fn refused_release(&self) -> Option<&str> {
        (!self.refused.is_empty()).then(|| self.refused.as_str())
    }

    /// The number of tasks and values.
    pub fn key_count(&self) -> usize {
        let ids = self.store.ids();
        ids.filter(|id| self.store.get(*id).state != State::Free)
            .count()
    }

    /// Checks the state of the worker, for fuzz targets.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold.
    #[doc(hidden)]
    pub fn check(&self) {
        self.store.check();
    }

    fn link(&self, link: usize) -> Option<&Link<'b>> {
        match link {
            STREAM => Some(&self.stream),
            REQUESTS => Some(&self.requests),
            FETCH => Some(&self.fetch),
            _ => {
                let peer = self.peers.get(link.checked_sub(PEER)?);
                peer.map(|peer| &peer.link)
            }
        }
    }

    fn link_mut(&mut self, link: usize) -> Option<&mut Link<'b>> {
        match link {
            STREAM => Some(&mut self.stream),
            REQUESTS => Some(&mut self.requests),
            FETCH => Some(&mut self.fetch),
            _ => {
                let peer = self.peers.get_mut(link.checked_sub(PEER)?);
                peer.map(|peer| &mut peer.link)
            }
        }
    }

    /// Forgets everything and registers again after a while.
    fn restart(&mut self) {
        if matches!(self.phase, Phase::Leaving { .. } | Phase::Ended) {
            self.phase = Phase::Ended;
            return;
        }
        self.plugin = self.plugin.after(self.phase);
        self.phase = Phase::Pause {
            until: self.now.saturating_add(PAUSE),
        };
        self.store.clear();
        self.fetching = None;
        self.receiving = None;
        self.answered = 0;
        self.finished = None;
        self.stream.fail();
        self.requests.fail();
        self.fetch.fail();
        for peer in &mut self.peers {
            peer.reply = None;
            peer.link.fail();
        }
    }

    /// The scheduler's time, in seconds since 1970.
    fn time(&self, at: Duration) -> f64 {
        at.as_secs_f64() + self.time_offset
    }

    /// Runs a task, if one can run and its report can be sent.
    fn run_task(&mut self) {
        if self.finished.is_some() || !self.stream.has_room(stream::REPORT_LEN) {
            return;
        }
        self.store.update_ready();
        let Some(id) = self.store.first(State::Ready) else {
            return;
        };
        let functions = self.functions;
        let mut is_called = false;
        let outcome = self.store.make_value(id, |view, out| {
            task::run(functions, view, view.spec(id), out, &mut is_called)
        });
        self.finished = Some(Finished {
            id,
            start: self.now,
            outcome,
            is_called,
        });
    }
}

impl<const KEYS: usize, const DATA: usize, const PEERS: usize> Role
    for Worker<'_, KEYS, DATA, PEERS>
{
    fn link_count(&self) -> usize {
        Self::LINKS
    }

    fn wanted(&self, link: usize) -> Wanted<'_> {
        if let Some(wanted) = self.link(link).and_then(Link::wanted) {
            return wanted;
        }
        let is_registered = matches!(self.phase, Phase::Running | Phase::Leaving { .. });
        let scheduler = Wanted::Connection(self.config.scheduler);
        match (link, self.phase) {
            (STREAM, Phase::Registering { .. }) => scheduler,
            (
                REQUESTS,
                Phase::Versions { .. } | Phase::Installing { .. } | Phase::Registering { .. },
            ) => scheduler,
            (STREAM | REQUESTS, _) if is_registered => scheduler,
            (FETCH, Phase::Running) => {
                let fetching = self.fetching;
                let fetching =
                    fetching.filter(|fetching| !matches!(fetching.step, FetchStep::Failed(_)));
                let id = fetching.and_then(|fetching| self.store.resolve(fetching.value));
                let holder = id.map(|id| self.store.part(id, Part::Holder));
                match core::str::from_utf8(holder.unwrap_or_default()) {
                    Ok(holder) if !holder.is_empty() => Wanted::Connection(holder),
                    _ => Wanted::Nothing,
                }
            }
            (PEER.., _) if is_registered => Wanted::Peer,
            _ => Wanted::Nothing,
        }
    }

    fn connected(&mut self, link: usize) {
        if let Some(link) = self.link_mut(link) {
            link.open();
        }
    }

    fn disconnected(&mut self, link: usize) {
        let mut has_failed = false;
        if let Some(link) = self.link_mut(link) {
            has_failed = link.has_failed();
            link.reset();
        }
        match link {
            STREAM | REQUESTS => match self.phase {
                Phase::Pause { .. } | Phase::Ended => {}
                Phase::Leaving { .. } if link == REQUESTS => {}
                _ => self.restart(),
            },
            FETCH => self.fetch_failed(has_failed),
            _ => {
                let peer = link.checked_sub(PEER).and_then(|at| self.peers.get_mut(at));
                if let Some(mut reply) = peer.and_then(|peer| peer.reply.take()) {
                    reply.release(self.store);
                }
            }
        }
    }

    fn space(&mut self, link: usize) -> &mut [u8] {
        self.link_mut(link).map(Link::space).unwrap_or_default()
    }

    fn received(&mut self, link: usize, count: usize) {
        if let Some(link) = self.link_mut(link) {
            link.received(count);
        }
    }

    fn unsent(&self, link: usize) -> &[u8] {
        self.link(link).map(Link::unsent).unwrap_or_default()
    }

    fn sent(&mut self, link: usize, count: usize) {
        if let Some(link) = self.link_mut(link) {
            link.sent(count);
        }
    }

    fn poll(&mut self, now: Duration) {
        self.now = now;
        match self.phase {
            Phase::Pause { until } if now >= until => {
                self.phase = Phase::Versions {
                    deadline: now.saturating_add(TIMEOUT),
                    is_requested: false,
                };
            }
            Phase::Versions { deadline, .. }
            | Phase::Installing { deadline, .. }
            | Phase::Registering { deadline, .. }
                if now >= deadline =>
            {
                self.restart();
            }
            Phase::Versions {
                deadline,
                is_requested,
            } => self.ask_versions(deadline, is_requested),
            Phase::Installing { deadline, sent } => self.install_plugin(deadline, sent),
            Phase::Registering {
                deadline,
                is_requested,
            } => self.register(deadline, is_requested),
            Phase::Running => {
                self.report();
                self.handle_stream();
                self.handle_heartbeat();
                self.handle_peers();
                self.handle_fetch();
                if self.phase == Phase::Running {
                    self.run_task();
                }
            }
            Phase::Leaving { deadline } if now >= deadline => {
                self.stream.fail();
                self.phase = Phase::Ended;
            }
            Phase::Pause { .. } | Phase::Leaving { .. } | Phase::Ended => {}
        }
    }
}
