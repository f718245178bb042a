//! Workers that run functions in Rust as tasks of a Dask scheduler.
//!
//! A [`Worker`] registers with a scheduler, runs the tasks assigned to it on its
//! threads, fetches their inputs from other workers (in Rust or Python), and
//! serves its own data to workers and clients. Functions that tasks call are
//! looked up by name in the worker's [`Functions`]; parsing pickles never executes
//! code in this process.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use daskwire_peer::worker::{Functions, Worker};
//!
//! let functions = Functions::builtins().function("hypot", |x: f64, y: f64| x.hypot(y));
//! let worker = Worker::builder("tcp://10.0.0.7:8786".parse()?)
//!     .functions(functions)
//!     .nthreads(4)
//!     .start()
//!     .await?;
//! println!("{} serves", worker.address());
//! println!("{}", worker.ended().await);
//! # Ok(())
//! # }
//! ```
//!
//! A client in Python calls the function by its name:
//!
//! ```python
//! client.submit(operator.methodcaller("native:hypot"), 3, 4).result()
//! ```
//!
//! On Linux, a worker with a [Python interpreter](Builder::python) also runs all other
//! functions, in processes of that interpreter.
//!
//! Programs name this crate as `daskwire_peer::worker`, as in the examples here. The state
//! machine, [`state`], is for programs that drive it themselves; it changes with the messages
//! of Dask's releases. The features of `daskwire-rpc` enable transports and events for
//! `tracing`.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod arguments;
mod builder;
mod builtins;
mod context;
mod diagnostics;
mod driver;
mod error;
mod evaluate;
mod event;
mod exception;
mod fetch;
mod functions;
mod handle;
mod memory;
mod metrics;
#[cfg(target_os = "linux")]
mod nanny_plugins;
#[cfg(target_os = "linux")]
mod python;
mod rejoin;
mod run;
mod scheduler_plugin;
mod server;
mod session;
mod signature;
mod start;
pub mod state;
mod threads;

use core::fmt;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use daskwire_comm::runtime::Spawner;
use daskwire_comm::{Address, BufferPool};
use daskwire_messages::Value;
use daskwire_messages::dialect::Dialect;
use daskwire_messages::protocol::LogEvent;
use daskwire_rpc::channel::Observer;
use daskwire_rpc::clock::unix_time as now;
use daskwire_rpc::event::emit;
use daskwire_rpc::panic_flag::PanicFlag;
use daskwire_rpc::pool::Pool;
use tokio::sync::Notify;

pub use arguments::{Arguments, FromArguments, Keywords};
pub use builder::{Builder, TransferLimits};
pub use context::{Cancellation, Context};
pub use daskwire_messages::value::Outcome;
pub use daskwire_store::{Holdings, StoreCounters, Tally};
pub use error::StartError;
pub use functions::{AsyncFunction, Function, Functions};
pub use handle::{Ended, Worker};
pub use memory::MemoryThresholds;
pub use metrics::{TaskCounters, TransferCounters};
pub use signature::Signature;

use daskwire_store::Store;
use diagnostics::{Level, Log, Notifier};
use driver::WorkerMachine;
use metrics::{TasksDone, Transfers};
use run::Job;
use scheduler_plugin::OtherWorkers;
use threads::Queue;

/// State shared by all parts of a worker.
struct Shared {
    id: String,
    address: String,
    name: String,
    /// The name, if it is a number to the scheduler.
    number: Option<i64>,
    /// Name and address, for log lines and error messages.
    title: String,
    /// Another one after the worker has registered again, if its scheduler has moved.
    scheduler: Mutex<Address>,
    nthreads: usize,
    memory_limit: Option<u64>,
    thresholds: MemoryThresholds,
    local_directory: PathBuf,
    functions: Functions,
    /// The Python processes, which run tasks that do not call native functions.
    #[cfg(target_os = "linux")]
    python: Option<python::PythonProcesses>,
    versions: Value,
    /// The messages and fields that the scheduler's release supports.
    dialect: Dialect,
    gives_back: scheduler_plugin::GivesBack,
    /// Whether the scheduler, or the plugin in it, knows the reason for which a task is given back.
    sends_reasons: bool,
    others: OtherWorkers,
    store: Store,
    tasks_done: TasksDone,
    log: Log,
    notify: Notifier,
    machine: Mutex<WorkerMachine>,
    queue: Queue<Job>,
    pool: Pool,
    /// The client of tasks that ask for one.
    #[cfg(feature = "client")]
    client: tokio::sync::Mutex<Option<daskwire_client::Client>>,
    #[cfg(feature = "client")]
    client_options: daskwire_client::ClientOptions,
    /// The pool of memory for large frames.
    buffers: Option<BufferPool>,
    observer: Option<Arc<dyn Observer>>,
    transfers: Transfers,
    /// Maximum number of peers that are sent data at once.
    sending_count: u64,
    /// Maximum number of comms that are served at once.
    max_comms: usize,
    services: BTreeMap<String, u16>,
    is_restartable: bool,
    /// The names of the scheduler's plugins of nannies whose variables Python processes have.
    #[cfg(target_os = "linux")]
    environ_plugins: Vec<String>,
    /// The reason for a restart, if one was requested.
    restart: OnceLock<String>,
    /// Read-locked while a request is answered that the worker must answer before it ends.
    answering: tokio::sync::RwLock<()>,
    panic_flag: PanicFlag,
    runtime: Spawner,
    stop: Notify,
    /// Locked from when a heartbeat is sent until its reply, and while the worker leaves.
    heartbeat: tokio::sync::Mutex<()>,
    /// Whether the worker has asked the scheduler to retire it.
    is_retiring: AtomicBool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.title)
    }
}

impl Shared {
    /// Whether the worker runs Python functions.
    const fn runs_python(&self) -> bool {
        #[cfg(target_os = "linux")]
        let runs_python = self.python.is_some();
        #[cfg(not(target_os = "linux"))]
        let runs_python = false;
        runs_python
    }

    /// The address of the scheduler.
    fn scheduler(&self) -> Address {
        let scheduler = self.scheduler.lock();
        scheduler.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The name in the form in which it is registered: a number or a string.
    fn name_value(&self) -> Value {
        name_value(&self.name, self.number)
    }

    /// Reports a warning to the callback of the builder, the log, and the
    /// subscribers to the scheduler's events.
    fn notice(&self, message: &str) {
        self.log.add(Level::Warning, message);
        emit(daskwire_rpc::event::Level::Warn, || {
            event::WorkerEvent::Notice { message }
        });
        self.notify.notify(message);
        if let Some(stream) = &self.machine().stream {
            stream.send(LogEvent {
                topic: "worker-notice".into(),
                msg: Value::dict([("worker", self.title.as_str()), ("text", message)]),
                ..LogEvent::default()
            });
        }
    }
}

/// A name in the form in which it is registered: the number, if there is one, or the string.
fn name_value(name: &str, number: Option<i64>) -> Value {
    number.map_or_else(|| Value::from(name), Value::from)
}

#[cfg(test)]
mod tests;

/// The example in the README, tested as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
