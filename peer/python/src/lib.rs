//! Processes of a Python interpreter, for the roles of a Dask cluster: for code that only
//! Python can run. Linux only; on other systems, this crate is empty.
//!
//! A [`Template`] starts an [`Interpreter`], which imports Dask once, and forks it for each
//! further process. The module that the processes run is `daskwire/worker.py`, compiled into
//! the program. There are four kinds of them:
//!
//! * an [`Executor`] runs one task at a time, in a process of its own or in a thread of a
//!   host;
//! * a [`Host`] runs code with state, such as plugins and actors, and answers requests over
//!   comms. It reports [`HostEvent`]s;
//! * a [`Helper`] answers requests of a scheduler, with the module `daskwire/scheduler.py`;
//! * the process that [`start_plugins`] starts runs functions and plugins of a scheduler's clients, with
//!   the module `daskwire/plugins.py`.
//!
//! A process whose program ends, or drops its `Executor`, `Host` or `Helper`, is killed, with the
//! processes that it has started. Long frames of messages are in [`SharedMemory`], which
//! processes can only read. Nothing is deserialized here.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use daskwire_messages::protocol::StartPython;
//! use daskwire_python::{Executor, Interpreter, SharedMemory, Template};
//!
//! # fn main() -> std::io::Result<()> {
//! let interpreter = Interpreter {
//!     path: "/usr/bin/python3".into(),
//!     ..Interpreter::default()
//! };
//! let memory = Arc::new(SharedMemory::default());
//! let template = Template::new(interpreter, Arc::clone(&memory), Default::default())?;
//! let start = StartPython::default();
//! let executor = Executor::start(&template, &start, &memory, Default::default())?;
//! println!("the process {} is ready", executor.process.child.id);
//! # Ok(())
//! # }
//! ```
//!
//! Who uses it: `daskwire-worker` and `daskwire-scheduler`. Programs name these as
//! `daskwire_peer::worker`, whose `Builder::python` sets the interpreter, and
//! `daskwire_peer::scheduler`, whose `Options::python` does. The messages of the processes are those of
//! `daskwire_messages::protocol`, and change with this crate.
#![cfg(target_os = "linux")]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "fuzzing")]
mod fuzzing;
mod helper;
mod host;
mod link;
mod memory;
mod plugins;
mod process;
mod template;

use std::fs;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use fuzzing::read_from_python;
pub use helper::{Helper, start_plugins};
pub use host::{Host, HostCallback, HostEvent};
pub use link::Link;
pub use memory::SharedMemory;
pub use plugins::Plugins;
pub use process::{ChildProcess, Executor, Process};
pub use template::{Interpreter, Template};

/// Returns the anonymous memory of a process in bytes, or 0 if it is unknown. `process` is its
/// id, or `self`.
pub fn anonymous_memory(process: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default().saturating_mul(1024)
}

/// The example in the README, tested as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
