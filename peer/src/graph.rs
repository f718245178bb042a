//! Tasks and graphs of them, as they are written into pickles and read from
//! them.
//!
//! A client sends a graph as the pickle of an expression of `dask`, which maps
//! keys to tasks; a scheduler sends each worker the pickle of one task. Both are
//! written here as the smallest form that the scheduler and workers of Dask
//! 2026.8.0 take, and read in that form and in those that Python writes. What
//! is called is known by its name only, and is never called here.

mod copy;
mod depends;
mod read;
mod write;

use core::fmt;

#[cfg(feature = "client")]
use crate::client::TaskFuture;
use crate::{Key, Value};

pub use read::GraphError;
#[cfg(feature = "scheduler")]
pub(crate) use read::Outline;

/// What a task calls.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Function {
    /// A function of Python. The scheduler has to be able to import it, even if
    /// only workers call it.
    Python {
        /// The module, such as `operator`.
        module: String,
        /// The name in it, such as `add`.
        name: String,
    },
    /// A function of a worker in Rust, by the name that it is registered under.
    ///
    /// Python sees `operator.methodcaller("native:NAME")`, which it can import
    /// everywhere and call nowhere.
    Native(String),
    /// `functools.partial` of a function. One that needs results is written as a
    /// plain call: Dask does not look for results in a partial.
    Partial {
        /// The function.
        function: Box<Self>,
        /// What it is called with before the task's own arguments.
        arguments: Vec<Argument>,
        /// Arguments by name.
        keywords: Vec<(String, Argument)>,
    },
    /// Something that cannot be called here, such as a lambda of Python.
    Unknown(String),
}

impl Function {
    /// A function of Python by its full name, such as `operator.add`; one
    /// without a module is a builtin, such as `len`. For one that belongs to a
    /// class, a colon ends the module: `builtins:str.split`.
    pub fn python(name: &str) -> Self {
        let parts = name.split_once(':').or_else(|| name.rsplit_once('.'));
        let (module, name) = parts.unwrap_or(("builtins", name));
        Self::Python {
            module: module.to_owned(),
            name: name.to_owned(),
        }
    }

    /// A function of a worker in Rust.
    pub fn native(name: &str) -> Self {
        Self::Native(name.to_owned())
    }

    /// The last part of its name, of which keys are made.
    pub fn short_name(&self) -> &str {
        match self {
            Self::Python { name, .. } => name.rsplit('.').next().unwrap_or(name),
            Self::Native(name) => name,
            Self::Partial { function, .. } => function.short_name(),
            Self::Unknown(_) => "task",
        }
    }
}

/// `operator.add` is a function of Python, `native:hypot` one of Rust.
impl From<&str> for Function {
    /// As [`Function::python`] and [`Function::native`] read it.
    fn from(name: &str) -> Self {
        match name.strip_prefix("native:") {
            Some(name) => Self::native(name),
            None => Self::python(name),
        }
    }
}

impl From<String> for Function {
    fn from(name: String) -> Self {
        Self::from(name.as_str())
    }
}

impl From<&Self> for Function {
    fn from(function: &Self) -> Self {
        function.clone()
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Python { module, name } if module == "builtins" => f.write_str(name),
            Self::Python { module, name } => write!(f, "{module}.{name}"),
            Self::Native(name) => write!(f, "native:{name}"),
            Self::Partial { function, .. } => write!(f, "partial({function})"),
            Self::Unknown(what) => f.write_str(what),
        }
    }
}

/// What a task is called with.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Argument {
    /// A value that goes with the task.
    Value(Value),
    /// The result of another task, or data that was scattered.
    Result(Key),
    /// The same by its future. The cluster keeps the result at least until this
    /// argument is dropped: after its task was submitted.
    #[cfg(feature = "client")]
    Future(TaskFuture),
    /// A list with results in it.
    List(Vec<Self>),
    /// A tuple with results in it.
    Tuple(Vec<Self>),
    /// A set with results in it.
    Set(Vec<Self>),
    /// A dictionary with results in it.
    Dict(Vec<(Self, Self)>),
    /// The result of a task that is done on the spot.
    Task(Box<Task>),
    /// Something of Python that is not known here.
    Unknown(String),
}

impl<T: Into<Value>> From<T> for Argument {
    fn from(value: T) -> Self {
        Self::Value(value.into())
    }
}

impl From<&Key> for Argument {
    fn from(key: &Key) -> Self {
        Self::Result(key.clone())
    }
}

impl From<Key> for Argument {
    fn from(key: Key) -> Self {
        Self::Result(key)
    }
}

impl Argument {
    /// A list, in which results may be.
    pub fn list(items: impl IntoIterator<Item = impl Into<Self>>) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }
}

/// A call that has a key.
///
/// ```
/// use daskwire_peer::graph::{Argument, Task};
/// use daskwire_peer::Key;
///
/// let x = Key::from("x");
/// let task = Task::new("z", "operator.add", [Argument::from(&x), Argument::from(1)]);
/// assert_eq!(task.dependencies(), [x]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// What its result is known as.
    pub key: Key,
    /// What it does.
    pub work: Work,
}

/// What there is to do for a key.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Work {
    /// A call.
    Call {
        /// What is called.
        function: Function,
        /// With what.
        arguments: Vec<Argument>,
        /// And with what by name.
        keywords: Vec<(String, Argument)>,
    },
    /// Nothing: it is the result of another key, or a value.
    Is(Argument),
    /// Several tasks that were made one, so that what goes from one to the next
    /// need not be stored: Dask fuses chains of them.
    Fused {
        /// The tasks.
        tasks: Vec<Task>,
        /// The one whose result it is.
        output: Key,
        /// What comes from outside, under the keys that it has within.
        inputs: Vec<(Key, Argument)>,
    },
}

impl Task {
    /// A call.
    pub fn new(
        key: impl Into<Key>,
        function: impl Into<Function>,
        arguments: impl IntoIterator<Item = impl Into<Argument>>,
    ) -> Self {
        Self {
            key: key.into(),
            work: Work::Call {
                function: function.into(),
                arguments: arguments.into_iter().map(Into::into).collect(),
                keywords: Vec::new(),
            },
        }
    }

    /// The same call with an argument by name.
    #[must_use]
    pub fn keyword(mut self, name: &str, argument: impl Into<Argument>) -> Self {
        if let Work::Call { keywords, .. } = &mut self.work {
            keywords.push((name.to_owned(), argument.into()));
        }
        self
    }

    /// The keys whose results it needs, each once, in order.
    pub fn dependencies(&self) -> Vec<Key> {
        let mut parts = Vec::new();
        self.work.push_parts(&mut parts);
        let mut keys = keys_in(parts);
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

/// The keys of the results that these parts of a task need.
fn keys_in(mut left: Vec<Part<'_>>) -> Vec<Key> {
    let mut keys = Vec::new();
    // Without recursion: arguments may be nested to any depth.
    while let Some(part) = left.pop() {
        match part {
            Part::Argument(argument) => match argument {
                Argument::Result(key) => keys.push(key.clone()),
                #[cfg(feature = "client")]
                Argument::Future(future) => keys.push(future.key().clone()),
                Argument::List(items) | Argument::Tuple(items) | Argument::Set(items) => {
                    left.extend(items.iter().map(Part::Argument));
                }
                Argument::Dict(entries) => {
                    for (key, value) in entries {
                        left.extend([Part::Argument(key), Part::Argument(value)]);
                    }
                }
                Argument::Task(task) => task.work.push_parts(&mut left),
                Argument::Value(_) | Argument::Unknown(_) => {}
            },
            Part::Function(Function::Partial {
                function,
                arguments,
                keywords,
            }) => push_call(function, arguments, keywords, &mut left),
            Part::Function(_) => {}
        }
    }
    keys
}

/// A part of a task that may need results.
enum Part<'t> {
    Function(&'t Function),
    Argument(&'t Argument),
}

fn push_call<'t>(
    function: &'t Function,
    arguments: &'t [Argument],
    keywords: &'t [(String, Argument)],
    parts: &mut Vec<Part<'t>>,
) {
    parts.push(Part::Function(function));
    parts.extend(arguments.iter().map(Part::Argument));
    parts.extend(
        keywords
            .iter()
            .map(|(_, argument)| Part::Argument(argument)),
    );
}

impl Work {
    fn push_parts<'t>(&'t self, parts: &mut Vec<Part<'t>>) {
        match self {
            Self::Call {
                function,
                arguments,
                keywords,
            } => push_call(function, arguments, keywords, parts),
            Self::Is(argument) => parts.push(Part::Argument(argument)),
            Self::Fused { inputs, .. } => {
                parts.extend(inputs.iter().map(|(_, argument)| Part::Argument(argument)));
            }
        }
    }
}

/// Tasks that are submitted together.
///
/// ```
/// use daskwire_peer::graph::{Argument, Graph, Task};
/// use daskwire_peer::Key;
///
/// let graph: Graph = (0..10_i64)
///     .map(|i| Task::new(Key::list(["sum".into(), i.into()]), "operator.add", [i, i]))
///     .collect();
/// assert_eq!(Graph::read(&graph.to_expression()?)?, graph);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// The tasks, in any order.
    pub tasks: Vec<Task>,
}

impl FromIterator<Task> for Graph {
    fn from_iter<I: IntoIterator<Item = Task>>(tasks: I) -> Self {
        Self {
            tasks: tasks.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests;
