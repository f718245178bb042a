//! The options of Python beside a scheduler.

use core::num::NonZeroUsize;
use core::time::Duration;
use std::path::PathBuf;

use daskwire_python::Interpreter;

/// The Python interpreter of a scheduler, which converts the graphs of collections to tasks,
/// and assigns the outputs of P2P shuffles to workers, and its limits. Its processes start when they are first needed.
#[derive(Clone, Debug)]
pub struct PythonOptions {
    /// The interpreter, which can import the cluster's `distributed`, and what its graphs need.
    pub interpreter: Interpreter,
    /// Maximum number of graphs that are converted at once, each in a process. Graphs of one
    /// client are converted one after the other. One more process assigns the outputs of P2P
    /// shuffles to workers. Default: 2.
    pub max_processes: NonZeroUsize,
    /// Time that the conversion of a graph may take. Then its process is ended, and the graph
    /// fails. Default: 10 minutes.
    pub time_limit: Duration,
    /// Memory in bytes that a process may use. Then it is ended, and its graph fails.
    /// Default: none.
    pub memory_limit: Option<u64>,
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
            memory_limit: None,
        }
    }
}

const MAX_PROCESSES: NonZeroUsize = NonZeroUsize::new(2).expect("not zero");
