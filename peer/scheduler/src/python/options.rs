//! The options of Python beside a scheduler.

use core::num::NonZeroUsize;
use core::time::Duration;
use std::path::PathBuf;

use daskwire_python::Interpreter;

/// The Python interpreter of a scheduler, and its limits. It converts the graphs of collections to
/// tasks, assigns the outputs of P2P shuffles to workers, and runs functions and plugins of
/// clients. Its processes start when they are first needed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PythonOptions {
    /// The interpreter, which can import the cluster's `distributed`, and what its graphs need.
    pub interpreter: Interpreter,
    /// Maximum number of graphs that are converted at once, each in a process. Graphs of one
    /// client are converted one after the other. One more process assigns the outputs of P2P
    /// shuffles to workers, and another one runs functions and plugins. Default: 2.
    pub max_processes: NonZeroUsize,
    /// Time that the conversion of a graph may take, and a function or a hook of a plugin that does
    /// not await. Then its process is ended, and the graph or the function fails.
    /// Default: 10 minutes.
    pub time_limit: Duration,
    /// The modules that the process of functions and plugins loads, as `dask scheduler --preload`
    /// does: names of modules, files that end in `.py`, and URLs. Their functions `dask_setup` and
    /// `dask_teardown` are called with what functions and plugins get as the scheduler. With them the
    /// process starts with the scheduler, see [`Scheduler::preloaded`](crate::Scheduler::preloaded).
    /// Default: none.
    pub preload: Vec<String>,
    /// The arguments of those whose `dask_setup` is a command of click. Default: those of the setting
    /// `distributed.scheduler.preload-argv` of Dask's configuration.
    pub preload_argv: Vec<String>,
    /// Memory in bytes that a process may use. Then it is ended, and what it does fails.
    /// Default: none.
    pub memory_limit: Option<u64>,
}

impl PythonOptions {
    daskwire_comm::with_fields! {
        with_interpreter(interpreter: Interpreter);
        with_max_processes(max_processes: NonZeroUsize);
        with_time_limit(time_limit: Duration);
        with_preload(preload: Vec<String>);
        with_preload_argv(preload_argv: Vec<String>);
        with_memory_limit(memory_limit: impl Into<Option<u64>>);
    }
}

impl PythonOptions {
    /// Creates options with the path of an interpreter, and the defaults.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            interpreter: Interpreter {
                path: path.into(),
                ..Interpreter::default()
            },
            max_processes: MAX_PROCESSES,
            time_limit: Duration::from_secs(600),
            preload: Vec::new(),
            preload_argv: Vec::new(),
            memory_limit: None,
        }
    }
}

const MAX_PROCESSES: NonZeroUsize = NonZeroUsize::new(2).expect("not zero");
