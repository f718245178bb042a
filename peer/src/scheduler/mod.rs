//! An embedded scheduler: what `dask scheduler` is for a cluster, for one process
//! and its tests.
//!
//! [`Scheduler`] serves clients and workers over any transport, those of Python
//! included; [`State`] decides, step by step as the "Journey of a Task" of Dask
//! tells it, and does no I/O.
//!
//! Nothing is ever run here. The graph that a client sends is read as data; one
//! that only Python can make tasks of, as those of its collections, is refused
//! with an error for each of its keys.

mod answer;
mod server;
mod spread;
mod state;
mod submission;

/// Counts one step of work in tests, which compare how many it takes for inputs of
/// several sizes.
fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

#[cfg(test)]
std::thread_local! {
    static STEPS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

use core::fmt;
use core::time::Duration;
use daskwire_comm::runtime::TaskSet;
use std::sync::Arc;

use daskwire_comm::{Address, CommError, Listener, Transports};

use crate::PeerError;
use crate::batched::MAX_QUEUED_LEN;
use crate::channel::Observer;
use server::Shared;

pub use state::{ClientId, Notice, Output, Policy, State, WorkerId};
pub use submission::{Refusal, Submission};

/// Callback for what people may want to know. Any closure does.
pub trait EventSink: Send + Sync {
    /// Something has happened. Called between messages, so it must not block. One
    /// that panics is not called again.
    fn notice(&self, notice: &Notice);
}

impl<F: Fn(&Notice) + Send + Sync> EventSink for F {
    fn notice(&self, notice: &Notice) {
        self(notice);
    }
}

/// What can be chosen about a [`Scheduler`].
#[derive(Clone)]
pub struct Options {
    /// How it decides.
    pub policy: Policy,
    /// What carries the comms with workers, for gathering and scattering. Default:
    /// [`transports`](crate::transports).
    pub transports: Transports,
    /// How these comms are made.
    pub comm: daskwire_comm::CommOptions,
    /// How much time passes between batches to a client at least. With none, which
    /// is the default, what is there leaves at once, and batches form of what
    /// comes while the last one is being written. Dask has 2 ms.
    pub client_interval: Duration,
    /// The same to a worker. Dask has 5 ms.
    pub worker_interval: Duration,
    /// How many bytes of messages may wait for a client or worker that reads
    /// slower than it is written to, as they are in memory. Default: 256 MiB.
    ///
    /// A quarter of it may wait before no more requests are read from a client.
    /// One for which more than all of it waits does not read: its comm is closed
    /// with [`Notice::NotReading`], and what it had is treated as if it had
    /// disconnected. Tasks are not sent to a worker faster than it reads, and do
    /// not count.
    pub max_queued_len: usize,
    /// Sees all messages.
    pub observer: Option<Arc<dyn Observer>>,
    /// Hears of what is passed over, and of who comes and goes.
    pub on_notice: Option<Arc<dyn EventSink>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            transports: crate::transports(),
            comm: daskwire_comm::CommOptions::default(),
            client_interval: Duration::ZERO,
            worker_interval: Duration::ZERO,
            max_queued_len: MAX_QUEUED_LEN,
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
            .finish_non_exhaustive()
    }
}

/// A scheduler that runs in this process.
///
/// It serves until it is closed or dropped, or a peer asks it to
/// [`Terminate`](crate::protocol::Terminate).
///
/// ```
/// use daskwire_peer::scheduler::{Options, Scheduler};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let transports = daskwire_peer::transports();
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
    addresses: Vec<Address>,
    tasks: TaskSet<()>,
}

impl Scheduler {
    /// Serves whoever comes to these listeners. To be called in a runtime of tokio.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`] if a listener does not know where it listens.
    pub fn start(
        listeners: impl IntoIterator<Item = Listener>,
        options: Options,
    ) -> Result<Self, CommError> {
        let listeners: Vec<Listener> = listeners.into_iter().collect();
        let addresses: Result<Vec<Address>, CommError> =
            listeners.iter().map(Listener::local_address).collect();
        let addresses = addresses?;
        let first = addresses.first().map(ToString::to_string);
        let shared = Arc::new(Shared::new(options, first.unwrap_or_default()));
        let mut tasks = TaskSet::new();
        for listener in listeners {
            tasks.spawn(Arc::clone(&shared).accept(listener));
        }
        let ticking = Arc::clone(&shared);
        tasks.spawn(async move { ticking.tick().await });
        let failing = Arc::clone(&shared);
        tasks.spawn(async move { failing.close_on_failure().await });
        Ok(Self {
            shared,
            addresses,
            tasks,
        })
    }

    /// Where it listens: the address of the first listener.
    ///
    /// # Panics
    ///
    /// If it was started without listeners.
    pub fn address(&self) -> &Address {
        self.addresses.first().expect("it has a listener")
    }

    /// Where all of its listeners listen.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Looks at what it knows. All wait until `look` returns.
    pub fn inspect<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        self.shared.inspect(look)
    }

    /// Waits until so many workers have joined. Cancel safe.
    pub async fn wait_for_workers(&self, count: usize) {
        self.shared.wait_for_workers(count).await;
    }

    /// Waits until a peer has terminated it. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`PeerError::Panicked`] if it has ended because its state machine panicked.
    /// Clients and workers have been told then, and nothing of what it knew is left.
    pub async fn closed(&self) -> Result<(), PeerError> {
        self.shared.closed().await;
        self.shared.failure()
    }

    /// Tells workers to leave and clients that it is over, and ends. Takes no more
    /// than a few seconds, whatever they do.
    pub async fn close(mut self) {
        self.shared.close().await;
        self.tasks.shutdown().await;
    }
}

#[cfg(test)]
mod tests;
