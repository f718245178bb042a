//! A scheduler, which replaces `dask scheduler`: in the command `daskwire scheduler`, and
//! embedded in programs and tests.
//!
//! [`Scheduler`] serves clients and workers over any transport, including those in
//! Python. [`State`] makes the decisions, following the steps of Dask's "Journey
//! of a Task", and does no I/O.
//!
//! The scheduler never runs tasks, and parses a client's graph as data. Graphs that only
//! Python can convert into tasks, such as those of Dask's collections, are converted in a
//! process of an interpreter, if [`Options::python`] names one, and otherwise
//! refused with an error for each of their keys. Requests that only Python can serve, such as
//! `run_on_scheduler`, are refused with a `NotImplementedError` that names them;
//! `OPERATIONS.md` lists all.
//!
//! Programs name this crate as `daskwire_peer::scheduler`. The features of `daskwire-rpc`
//! enable transports and events for `tracing`.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod error;
mod event;
mod journal;
mod permissions;
#[cfg(target_os = "linux")]
mod python;
mod recording;
mod server;

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use daskwire_comm::runtime::TaskSet;
use daskwire_comm::{Address, CommError, Listener, Transports};

use daskwire_messages::protocol::Request;
use daskwire_messages::{Key, Value};
use daskwire_rpc::batched::MAX_QUEUED_LEN;
use daskwire_rpc::channel::{Observer, max_comms};
use daskwire_scheduler_state::State;
use daskwire_scheduler_state::steps::step;
use server::Shared;

pub use daskwire_scheduler_state::{
    self as state, FIRST_SERVED, LeaveReason, LeftTasks, MemoryMeasure, Notice, Policy,
};
pub use error::{ServeError, StartError};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use journal::fuzzing as journal_files;
pub use journal::{JournalError, JournalOptions, JournalSync};
pub use permissions::{Permissions, Permit};
#[cfg(target_os = "linux")]
pub use python::PythonOptions;
pub use recording::RecordingOptions;

/// Callback for notices. It is called between messages, so it must not block. After it has
/// panicked, it is not called again.
pub type NoticeCallback = Arc<dyn Fn(&Notice) + Send + Sync>;

/// Options of a [`Scheduler`].
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// The scheduling policy.
    pub policy: Policy,
    /// The transports of comms to workers, for gathering and scattering. Default:
    /// [`transports`](daskwire_rpc::transports).
    pub transports: Transports,
    /// Options of the comms to workers.
    pub comm: daskwire_comm::CommOptions,
    /// Minimum interval between batches to a client. With zero, messages are sent at
    /// once, and the messages queued while a batch is written form the next batch.
    /// Default: zero; Dask uses 2 ms.
    pub client_interval: Duration,
    /// Minimum interval between batches to a worker. Default: zero; Dask uses 5
    /// ms.
    pub worker_interval: Duration,
    /// Maximum length in bytes of the messages queued for a client or worker
    /// that reads too slowly. Default: 256 MiB.
    ///
    /// Requests of a client are not read while more than a quarter of the limit is
    /// queued for the client, and once more than half is, it is told of results only after it
    /// has read the rest. If the limit is exceeded all the same, the comm is closed with
    /// [`Notice::NotReading`], and the peer is treated as disconnected. Tasks are not
    /// counted, because tasks are only sent to workers that read.
    pub max_queued_len: usize,
    /// Maximum number of comms that each listener serves at once. Further connections are
    /// closed before their handshake, with [`Notice::TooManyComms`]. Default: three
    /// quarters of [`descriptor_limit`](daskwire_comm::descriptor_limit), and at most 65,536.
    pub max_comms: usize,
    /// The address that [`Scheduler::address`] and `identity` report. Default: that of the first
    /// listener.
    pub contact_address: Option<Address>,
    /// The ops of requests that are refused, for example for security. Default: none.
    pub blocked_ops: Vec<String>,
    /// What a peer may do, by its certificate. Default: `None`, so that each peer that connects may
    /// do everything, as in Dask.
    ///
    /// What is not allowed is refused with a `PermissionError` that names the operation and the
    /// peer, and reported with [`Notice::Denied`].
    pub permit: Option<Permit>,
    /// The ports of other services of the scheduler by their names, which `identity` reports.
    pub services: Vec<(String, u16)>,
    /// Time without tasks that run or wait for a worker, and without any change of a task, after
    /// which the scheduler ends, with [`Notice::Idle`]. Default: none.
    pub idle_timeout: Option<Duration>,
    /// The Python interpreter that converts the graphs of collections to tasks. Without one,
    /// these are refused, and no code of a client is ever run. Default: none.
    #[cfg(target_os = "linux")]
    pub python: Option<PythonOptions>,
    /// The journal, from which the scheduler continues if an earlier one has ended, also if it was
    /// killed. Default: none, so that all tasks are lost with the scheduler, as with Dask.
    ///
    /// Tasks, what clients want of them, failures and metadata are in it. Results are not: workers
    /// keep them, and return with them. If the journal cannot be written, the scheduler goes on, with
    /// [`Notice::JournalFailed`].
    pub journal: Option<JournalOptions>,
    /// The recording of all events, from which others can find out what has happened. Default: none.
    ///
    /// If it cannot be written, it ends, and the scheduler goes on, with
    /// [`Notice::RecordingFailed`].
    pub recording: Option<RecordingOptions>,
    /// An observer that sees all messages.
    pub observer: Option<Arc<dyn Observer>>,
    /// Callback for ignored messages, and for workers that join and leave.
    pub on_notice: Option<NoticeCallback>,
}

impl Options {
    daskwire_comm::with_fields! {
        with_policy(policy: Policy);
        with_transports(transports: Transports);
        with_comm(comm: daskwire_comm::CommOptions);
        with_client_interval(client_interval: Duration);
        with_worker_interval(worker_interval: Duration);
        with_max_queued_len(max_queued_len: usize);
        with_max_comms(max_comms: usize);
        with_contact_address(contact_address: impl Into<Option<Address>>);
        with_blocked_ops(blocked_ops: Vec<String>);
        with_permit(permit: Permit);
        with_services(services: Vec<(String, u16)>);
        with_idle_timeout(idle_timeout: impl Into<Option<Duration>>);
        /// Continues from a journal, and writes to it.
        with_journal(journal: impl Into<Option<JournalOptions>>);
        with_recording(recording: impl Into<Option<RecordingOptions>>);
        #[cfg(target_os = "linux")]
        with_python(python: impl Into<Option<PythonOptions>>);
        with_observer(observer: Arc<dyn Observer>);
        with_on_notice(on_notice: NoticeCallback);
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            transports: daskwire_rpc::transports(),
            comm: daskwire_comm::CommOptions::default(),
            client_interval: Duration::ZERO,
            worker_interval: Duration::ZERO,
            max_queued_len: MAX_QUEUED_LEN,
            max_comms: max_comms(),
            contact_address: None,
            blocked_ops: Vec::new(),
            permit: None,
            services: Vec::new(),
            idle_timeout: None,
            #[cfg(target_os = "linux")]
            python: None,
            journal: None,
            recording: None,
            observer: None,
            on_notice: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("policy", &self.policy)
            .field("comm", &self.comm)
            .field("client_interval", &self.client_interval)
            .field("worker_interval", &self.worker_interval)
            .field("max_queued_len", &self.max_queued_len)
            .field("max_comms", &self.max_comms)
            .finish_non_exhaustive()
    }
}

/// A scheduler in this process.
///
/// The scheduler serves until it is closed or dropped, until a peer sends
/// [`Terminate`](daskwire_messages::protocol::Terminate), or until its last listener fails.
///
/// ```
/// use daskwire_scheduler::{Options, Scheduler};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let transports = daskwire_rpc::transports();
/// let listeners = [
///     transports.bind(&"tcp://127.0.0.1:0".parse()?, Default::default()).await?,
///     transports.bind(&"inproc://an-example".parse()?, Default::default()).await?,
/// ];
/// let scheduler = Scheduler::start(listeners, Options::default())?;
/// println!("dask worker {}", scheduler.address());
/// scheduler.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a scheduler ends when this is dropped"]
pub struct Scheduler {
    shared: Arc<Shared>,
    address: Address,
    addresses: Vec<Address>,
    tasks: TaskSet<()>,
}

impl Scheduler {
    /// Starts serving the listeners. Must be called in a task of the executor.
    ///
    /// # Errors
    ///
    /// * [`StartError::NoListeners`] without listeners;
    /// * [`StartError::LocalAddress`] if the address of a listener cannot be
    ///   determined;
    /// * [`StartError::Python`] if the system cannot provide what processes of Python need;
    /// * [`StartError::Journal`] if the journal is in use, or cannot be read or written;
    /// * [`StartError::Recording`] if the file of the recording cannot be created.
    pub fn start(
        listeners: impl IntoIterator<Item = Listener>,
        options: Options,
    ) -> Result<Self, StartError> {
        let listeners: Vec<Listener> = listeners.into_iter().collect();
        let addresses: Result<Vec<Address>, CommError> =
            listeners.iter().map(Listener::local_address).collect();
        let addresses = addresses.map_err(|error| StartError::LocalAddress(Arc::new(error)))?;
        let Some(first) = addresses.first().cloned() else {
            return Err(StartError::NoListeners);
        };
        let address = options.contact_address.clone().unwrap_or(first);
        let shared = Shared::new(options, address.to_string(), listeners.len());
        let shared = Arc::new(shared?);
        let mut tasks = TaskSet::new();
        for (listener, address) in listeners.into_iter().zip(addresses.clone()) {
            tasks.spawn(Arc::clone(&shared).accept(listener, address));
        }
        let ticking = Arc::clone(&shared);
        tasks.spawn(ticking.tick());
        tasks.spawn(Arc::clone(&shared).work_off());
        if shared.has_journal() {
            tasks.spawn(Arc::clone(&shared).resume());
            tasks.spawn(Arc::clone(&shared).serve_journal());
        }
        tasks.spawn(Arc::clone(&shared).watch_recording());
        #[cfg(target_os = "linux")]
        {
            tasks.spawn(Arc::clone(&shared).create_runs());
            tasks.spawn(Arc::clone(&shared).serve_plugins());
        }
        let failing = Arc::clone(&shared);
        tasks.spawn(async move { failing.close_on_failure().await });
        Ok(Self {
            shared,
            address,
            addresses,
            tasks,
        })
    }

    /// The address for clients and workers: [`Options::contact_address`], or that of the first
    /// listener.
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// The addresses of all listeners.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The id that `identity` reports.
    pub fn id(&self) -> &str {
        self.shared.id()
    }

    /// The time at which the scheduler started, since the Unix epoch.
    pub fn started(&self) -> Duration {
        self.shared.started()
    }

    /// Calls `look` with the state. The scheduler is blocked until it returns.
    pub fn inspect<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        self.shared.inspect(look)
    }

    /// Answers a request as if a client had sent it, from this process, so that no permissions are
    /// needed. Must be called in a task of the executor. Cancel safe, though what is asked for may go on.
    ///
    /// Replies that are no values, such as those of who has which results, are [`Value::None`]: what is
    /// in the state is read by [`inspect`](Self::inspect).
    ///
    /// # Errors
    ///
    /// The text of the exception that a client would have raised.
    pub async fn answer(&self, request: impl Into<Request>) -> Result<Value, String> {
        Box::pin(self.shared.answer(request.into())).await
    }

    /// Cancels tasks for all clients that want them, as `Client.cancel(..., force=True)`. Returns how
    /// many of the keys are known.
    pub async fn cancel(&self, keys: Vec<Key>) -> usize {
        self.shared.cancel(keys).await
    }

    /// Starts or ends the recording of [spans](State::spans).
    pub fn record_spans(&self, is_recording: bool) {
        self.shared.record_spans(is_recording);
    }

    /// The time since the Unix epoch by the clock of the scheduler, which the times in its state are of:
    /// the wall clock at its start, and the time that has passed since.
    pub fn now(&self) -> Duration {
        self.shared.now()
    }

    /// Lets threads have the state that wait for it. Call it between parts of what takes many calls of
    /// [`inspect`](Self::inspect). Blocks the thread for at most some milliseconds.
    pub fn give_way(&self) {
        self.shared.give_way_blocking();
    }

    /// The time for which the state machine has handled no event. It handles one at least twice a
    /// second, so that a longer time means that the scheduler hangs. Does not wait for the state
    /// machine.
    pub fn stalled_for(&self) -> Duration {
        self.shared.stalled_for()
    }

    /// Waits until the modules of [`PythonOptions::preload`] are set up. Cancel safe.
    ///
    /// # Errors
    ///
    /// * [`StartError::Preload`] if one of them cannot be loaded, or the scheduler ends before that.
    #[cfg(target_os = "linux")]
    pub async fn preloaded(&self) -> Result<(), StartError> {
        tokio::select! {
            biased;
            loaded = self.shared.preloaded() => loaded.map_err(StartError::Preload),
            () = self.shared.closed() => {
                Err(StartError::Preload("the scheduler has ended".to_owned()))
            }
        }
    }

    /// Waits until at least `count` workers have joined. Returns `false` if the
    /// scheduler ends before that. Cancel safe.
    pub async fn wait_for_workers(&self, count: usize) -> bool {
        tokio::select! {
            biased;
            () = self.shared.wait_for_workers(count) => true,
            () = self.shared.closed() => false,
        }
    }

    /// Waits until a peer has terminated the scheduler, or an error has ended it.
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// * [`ServeError::Panicked`] if the state machine panicked;
    /// * [`ServeError::ListenerFailed`] if the last listener failed.
    pub async fn closed(&self) -> Result<(), ServeError> {
        self.shared.closed().await;
        self.shared.failure()
    }

    /// Ends the scheduler, and has workers and clients wait for one that continues from the journal: they
    /// are not asked to leave. Takes at most a few seconds.
    ///
    /// Without a journal, those that return find a scheduler that does not know them.
    pub async fn suspend(mut self) {
        self.shared.suspend().await;
        self.tasks.shutdown().await;
        self.shared.end_files();
    }

    /// Asks workers to leave, ends the streams of clients, and ends the scheduler. Takes at most a
    /// few seconds.
    pub async fn close(mut self) {
        self.shared.close().await;
        self.tasks.shutdown().await;
        self.shared.end_files();
    }
}

#[cfg(test)]
use state::{rust_worker, steps::STEPS};

#[cfg(test)]
mod tests;

/// The example in the README, tested as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
