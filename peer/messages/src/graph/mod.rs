//! Tasks and graphs, and their form in pickles.
//!
//! A client sends a graph as the pickle of a `dask` expression, which maps keys to
//! tasks; a scheduler sends each worker the pickle of one task. Both are written here in
//! the smallest form that the scheduler and workers of Dask 2026.8.0 accept, and read in
//! that form and in the forms that Python writes. Functions are represented by their
//! names, and are never called.

mod annotations;
mod copy;
mod depends;
mod error;
mod expression;
mod families;
mod outline;
mod payload;
mod plan;
mod read;
mod read_tuple;
mod spec;
mod tuple;
mod write;

use core::fmt;
use std::sync::Arc;

use daskwire_value::{IntoArguments, IntoValue, ValueError, brief_debug};

use crate::{Key, Value};

pub use copy::split_tuple;
pub use depends::Calls;
pub use error::GraphError;
pub use outline::Outline;
pub use payload::Payload;
pub use read::REPLACED_BY;
#[doc(hidden)]
pub use tuple::Tasks;
pub use write::opened_safely;
pub use write::{call_pickles, futures_pickle, instance_pickle};

/// A function that a task calls.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum Function {
    /// A Python function. The scheduler must be able to import it, even if only
    /// workers call it.
    Python {
        /// The module, such as `operator`.
        module: String,
        /// The function's name in the module, such as `add`.
        name: String,
    },
    /// A function of a Rust worker, by its registered name.
    ///
    /// Python sees `operator.methodcaller("native:NAME")`, which it can import
    /// everywhere but not call.
    Native(String),
    /// `functools.partial` of a function. A partial that needs results is written as a
    /// plain call, because Dask does not look for results in partials.
    Partial {
        /// The function.
        function: Box<Self>,
        /// Arguments that precede the task's own.
        arguments: Vec<Argument>,
        /// Keyword arguments.
        keywords: Vec<(String, Argument)>,
    },
    /// A function that has no importable name, such as a Python lambda, described by a
    /// string.
    Unknown(String),
}

brief_debug!(enum Function {
    Python { module, name },
    Native(name),
    Partial { function, arguments, keywords },
    Unknown(what),
});

impl Function {
    /// Returns a Python function by its full name, such as `operator.add`. A name
    /// without a module is a builtin, such as `len`. For a class's member, a
    /// colon ends the module: `builtins:str.split`.
    pub fn python(name: &str) -> Self {
        let parts = name.split_once(':').or_else(|| name.rsplit_once('.'));
        let (module, name) = parts.unwrap_or(("builtins", name));
        Self::Python {
            module: module.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Returns a function of a Rust worker.
    pub fn native(name: &str) -> Self {
        Self::Native(name.to_owned())
    }

    /// The last part of the function's name, which keys are made from.
    pub fn short_name(&self) -> &str {
        match self {
            Self::Python { name, .. } => name.rsplit('.').next().unwrap_or(name),
            Self::Native(name) => name,
            Self::Partial { function, .. } => function.short_name(),
            Self::Unknown(_) => "task",
        }
    }
}

/// Converts a name: `operator.add` is a Python function, `native:hypot` a Rust one.
impl From<&str> for Function {
    /// Uses [`Function::native`] for names that start with `native:`, and
    /// [`Function::python`] for others.
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

/// An argument of a task.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum Argument {
    /// A value that is sent with the task.
    Value(Value),
    /// The result of another task, or scattered data.
    Result(Key),
    /// The result of another task, such as that of a future, which the cluster keeps at
    /// least until this argument is dropped, that is, until the task was submitted.
    Held(HeldKey),
    /// A list that contains results.
    List(Vec<Self>),
    /// A tuple that contains results.
    Tuple(Vec<Self>),
    /// A set that contains results.
    Set(Vec<Self>),
    /// A dictionary that contains results.
    Dict(Vec<(Self, Self)>),
    /// The result of a task that runs as part of this one.
    Task(Box<Task>),
    /// A Python object without a counterpart in Rust, described by a string.
    Unknown(String),
    /// A value in Rust that could not be converted, so that a task with it cannot be written.
    Unconverted(ValueError),
}

brief_debug!(
    enum Argument {
        Value(value),
        Result(key),
        Held(key),
        List(items),
        Tuple(items),
        Set(items),
        Dict(entries),
        Task(task),
        Unknown(what),
        Unconverted(error),
    }
);

/// The key of a result, with a guard that has the result kept until the last clone is
/// dropped.
#[derive(Clone)]
pub struct HeldKey {
    key: Key,
    _guard: Arc<dyn Send + Sync>,
}

impl HeldKey {
    /// Returns a key with its guard.
    pub fn new(key: Key, guard: impl Send + Sync + 'static) -> Self {
        Self {
            key,
            _guard: Arc::new(guard),
        }
    }

    /// The key.
    pub const fn key(&self) -> &Key {
        &self.key
    }
}

/// Keys are equal, whatever holds them.
impl PartialEq for HeldKey {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl fmt::Debug for HeldKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}

impl<T: IntoValue> From<T> for Argument {
    /// Converts a value. If that fails, the error is that of the submission.
    fn from(value: T) -> Self {
        match value.into_value() {
            Ok(value) => Self::Value(value),
            Err(error) => Self::Unconverted(ValueError::of_conversion(&*error)),
        }
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
    /// Returns a list that may contain results.
    pub fn list(items: impl IntoIterator<Item = impl Into<Self>>) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }
}

/// The positional arguments of a call: a tuple of values, futures and keys of any types, an array,
/// slice or vector of one type, or a single argument of any other type that converts, such as a
/// number, a string, a table or a future.
///
/// ```
/// use daskwire_messages::Key;
/// use daskwire_messages::graph::{Argument, Arguments};
///
/// let x = Key::from("x");
/// let arguments = (&x, 2, "three").into_arguments();
/// assert_eq!(arguments, [Argument::from(x), Argument::from(2), Argument::from("three")]);
/// assert_eq!([1, 2].into_arguments().len(), 2);
/// assert_eq!(2.0.into_arguments(), [Argument::from(2.0)]);
/// assert!(().into_arguments().is_empty());
/// // A list or a tuple that is one argument.
/// assert_eq!(([1, 2],).into_arguments(), [Argument::from([1, 2])]);
/// ```
///
/// Single arguments are numbers, `bool`, `char`, strings, `Bytes`, `Duration`, options, maps, sets,
/// `Serde<T>`, the types of `daskwire-value`, and those of other crates that convert with its
/// features, such as an array of ndarray or a `RecordBatch`. Vectors and arrays of any of these are
/// several arguments: two record batches in a vector are two tables, and
/// `Value::from_record_batches` makes one table of them.
///
/// A type of a program that implements [`IntoValue`] is a single argument as `(argument,)`:
///
/// ```compile_fail,E0277
/// use daskwire_messages::Value;
/// use daskwire_messages::graph::Arguments;
/// use daskwire_messages::value::IntoValue;
///
/// struct Point(f64, f64);
///
/// impl IntoValue for Point {
///     fn into_value(self) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
///         (self.0, self.1).into_value()
///     }
/// }
///
/// fn call(arguments: impl Arguments) {}
/// call(Point(0.0, 1.0)); // an error; `call((Point(0.0, 1.0),))` is none
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the arguments of a call",
    note = "arguments are a tuple such as `(&future, 2, \"three\")`, an array or a vector of one type, \
            or a single number, string, array, table, `Value` or future; for one argument of another \
            type, write `(argument,)`"
)]
pub trait Arguments {
    /// Converts to a list of arguments.
    fn into_arguments(self) -> Vec<Argument>;
}

impl<T: IntoArguments<Argument>> Arguments for T {
    fn into_arguments(self) -> Vec<Argument> {
        self.into_list()
    }
}

macro_rules! single {
    ($($type:ty)*) => {$(
        /// One argument.
        impl Arguments for $type {
            fn into_arguments(self) -> Vec<Argument> {
                vec![self.into()]
            }
        }
    )*};
}

single! { Argument Key &Key }

/// A task: a key and the work that produces its result.
///
/// ```
/// use daskwire_messages::graph::{Argument, Task};
/// use daskwire_messages::Key;
///
/// let x = Key::from("x");
/// let task = Task::new("z", "operator.add", [Argument::from(&x), Argument::from(1)]);
/// assert_eq!(task.dependencies(), [x]);
/// ```
#[derive(Clone, PartialEq)]
pub struct Task {
    /// The key of the result.
    pub key: Key,
    /// The work that produces the result.
    pub work: Work,
}

brief_debug!(struct Task { key, work, });

/// The work of a task.
#[derive(Clone, PartialEq)]
pub enum Work {
    /// A function call.
    Call {
        /// The function.
        function: Function,
        /// The positional arguments.
        arguments: Vec<Argument>,
        /// The keyword arguments.
        keywords: Vec<(String, Argument)>,
    },
    /// No call: the result is that of another key, or a value.
    Argument(Argument),
    /// Several tasks combined into one, so that intermediate results need not be
    /// stored: Dask fuses chains of tasks.
    Fused {
        /// The tasks.
        tasks: Vec<Task>,
        /// The key of the task whose result is the overall result.
        output: Key,
        /// Arguments from outside, under their keys inside.
        inputs: Vec<(Key, Argument)>,
    },
}

brief_debug!(enum Work {
    Call { function, arguments, keywords },
    Argument(argument),
    Fused { tasks, output, inputs },
});

impl Task {
    /// Returns a task that calls a function.
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

    /// Adds a keyword argument to the call.
    #[must_use]
    pub fn keyword(mut self, name: &str, argument: impl Into<Argument>) -> Self {
        if let Work::Call { keywords, .. } = &mut self.work {
            keywords.push((name.to_owned(), argument.into()));
        }
        self
    }

    /// The keys whose results the task needs, each once, in order.
    pub fn dependencies(&self) -> Vec<Key> {
        let mut parts = Vec::new();
        self.work.push_parts(&mut parts);
        let mut keys = keys_in(parts);
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

/// The keys of the results that parts of a task need.
fn keys_in(mut left: Vec<Part<'_>>) -> Vec<Key> {
    let mut keys = Vec::new();
    // Without recursion: arguments may be nested to any depth.
    while let Some(part) = left.pop() {
        match part {
            Part::Argument(argument) => match argument {
                Argument::Result(key) => keys.push(key.clone()),
                Argument::Held(held) => keys.push(held.key().clone()),
                Argument::List(items) | Argument::Tuple(items) | Argument::Set(items) => {
                    left.extend(items.iter().map(Part::Argument));
                }
                Argument::Dict(entries) => {
                    for (key, value) in entries {
                        left.extend([Part::Argument(key), Part::Argument(value)]);
                    }
                }
                Argument::Task(task) => task.work.push_parts(&mut left),
                Argument::Value(_) | Argument::Unknown(_) | Argument::Unconverted(_) => {}
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
            Self::Argument(argument) => parts.push(Part::Argument(argument)),
            Self::Fused { inputs, .. } => {
                parts.extend(inputs.iter().map(|(_, argument)| Part::Argument(argument)));
            }
        }
    }
}

/// Tasks that are submitted together.
///
/// ```
/// use daskwire_messages::graph::{Argument, Graph, Task};
/// use daskwire_messages::Key;
///
/// let graph: Graph = (0..10_i64)
///     .map(|i| Task::new(Key::list(["sum".into(), i.into()]), "operator.add", [i, i]))
///     .collect();
/// assert_eq!(Graph::read(&graph.to_expression()?)?, graph);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default, PartialEq)]
pub struct Graph {
    /// The tasks, in any order.
    pub tasks: Vec<Task>,
}

brief_debug!(struct Graph { tasks, });

impl FromIterator<Task> for Graph {
    fn from_iter<I: IntoIterator<Item = Task>>(tasks: I) -> Self {
        Self {
            tasks: tasks.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests;
