//! Evaluation of tasks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use daskwire_messages::graph::{Argument, Function, GraphError, Task, Work};
use daskwire_messages::{Key, RemoteError, Value};

use super::arguments::{Arg, Arguments};
use super::context::Execution;
use super::functions::Functions;
use daskwire_store::{Datum, DatumError, Steps, Store};

/// The environment that a task is evaluated in.
#[derive(Clone, Copy)]
pub(super) struct TaskContext<'a> {
    pub(super) functions: &'a Functions,
    /// The worker's name and address, for error messages.
    pub(super) worker: &'a str,
    pub(super) store: &'a Store,
    /// The task's inputs.
    pub(super) data: &'a HashMap<Key, Datum>,
    /// The steps done on data for the task.
    pub(super) steps: &'a Steps,
    pub(super) execution: &'a Arc<Execution>,
    /// What Dask has fused with the task that is evaluated.
    pub(super) fused_with: &'a FusedWith,
}

/// The functions in a group of tasks that Dask has made one task of.
#[derive(Default)]
pub(super) struct FusedWith {
    /// One of the functions in Rust.
    native: Option<String>,
    /// One of the other functions, which workers in Python may run.
    other: Option<String>,
}

/// The result of a task.
pub(super) enum Evaluated {
    Value(Value),
    /// Existing data of another key.
    Datum(Datum),
}

/// The reason why a task has no result.
#[derive(Debug)]
pub(super) enum Fault {
    /// The task raised an exception.
    Raised(RemoteError),
    /// The task needs a feature that this worker lacks, but other workers may have.
    Unsupported(RemoteError),
}

impl Fault {
    pub(super) const fn error(&self) -> &RemoteError {
        match self {
            Self::Raised(error) | Self::Unsupported(error) => error,
        }
    }
}

impl From<RemoteError> for Fault {
    fn from(error: RemoteError) -> Self {
        Self::Raised(error)
    }
}

impl From<DatumError> for Fault {
    fn from(error: DatumError) -> Self {
        Self::Raised(error.into())
    }
}

/// A task that cannot be parsed is a Python task.
impl From<GraphError> for Fault {
    fn from(error: GraphError) -> Self {
        Self::Unsupported(error.into())
    }
}

/// Maximum length of the inputs of a task that is run on the calling thread, in bytes.
const QUICK_LEN: u64 = 256;

/// Whether running a task with these inputs takes less time than passing it to a thread.
pub(super) fn is_quick(task: &Task, functions: &Functions, data: &HashMap<Key, Datum>) -> bool {
    let Work::Call {
        function,
        arguments,
        keywords,
    } = &task.work
    else {
        return false;
    };
    keywords.is_empty()
        && name_of(function).is_some_and(|name| functions.is_quick(&name))
        && arguments.iter().all(|argument| match argument {
            Argument::Value(value) => is_number(value),
            Argument::Result(key) => {
                data.get(key)
                    .is_some_and(|datum| match (datum.value(), datum.serialized()) {
                        (Some(value), _) => is_number(&value),
                        (None, Some(serialized)) => serialized.len() <= QUICK_LEN,
                        (None, None) => false,
                    })
            }
            _ => false,
        })
}

impl TaskContext<'_> {
    pub(super) fn evaluate(&self, task: Task) -> Result<Evaluated, Fault> {
        match task.work {
            Work::Argument(Argument::Result(key)) => {
                Ok(Evaluated::Datum(self.datum(&key)?.clone()))
            }
            Work::Fused {
                tasks,
                output,
                inputs,
            } => self.fused(tasks, output, inputs).map(Evaluated::Datum),
            work => self.work(work).map(Evaluated::Value),
        }
    }

    fn work(&self, work: Work) -> Result<Value, Fault> {
        let value = match work {
            Work::Argument(argument) => self.argument(argument).map(Arg::into_value),
            Work::Call {
                function,
                arguments,
                keywords,
            } => self.call(function, arguments, keywords),
            Work::Fused {
                tasks,
                output,
                inputs,
            } => {
                let datum = self.fused(tasks, output, inputs)?;
                let opened = datum.open(self.steps)?;
                Ok(Arg::Shared(opened).into_value())
            }
        }?;
        value.checked().map_err(|error| {
            let message = format!("the worker {} cannot keep the result: {error}", self.worker);
            RemoteError::new("RecursionError", &message).into()
        })
    }

    /// Runs the tasks that `output` needs, each once.
    fn fused(
        &self,
        tasks: Vec<Task>,
        output: Key,
        inputs: Vec<(Key, Argument)>,
    ) -> Result<Datum, Fault> {
        let mut data = HashMap::with_capacity(tasks.len().saturating_add(inputs.len()));
        for (name, input) in inputs {
            let datum = match input {
                Argument::Result(key) => self.datum(&key)?.clone(),
                input => self.store.made(self.value(input)?),
            };
            data.insert(name, datum);
        }
        let functions = || tasks.iter().filter_map(function_of);
        let native = functions().find(|function| is_native(function));
        let other = functions().find(|function| !is_native(function));
        // A group may be a part of another one.
        let outer = self.fused_with;
        let fused_with = FusedWith {
            native: native.map_or_else(|| outer.native.clone(), |it| Some(it.to_string())),
            other: other.map_or_else(|| outer.other.clone(), |it| Some(it.to_string())),
        };
        let mut left: HashMap<Key, Task> = tasks
            .into_iter()
            .map(|task| (task.key.clone(), task))
            .collect();
        // An explicit stack instead of recursion: chains may be long.
        let mut open = vec![output.clone()];
        let mut begun = HashSet::new();
        while let Some(key) = open.last().cloned() {
            if data.contains_key(&key) {
                open.pop();
                continue;
            }
            let task = left.get(&key).ok_or_else(|| missing(&key))?;
            let needed = task.dependencies().into_iter();
            let needed: Vec<Key> = needed.filter(|key| !data.contains_key(key)).collect();
            if !needed.is_empty() {
                if !begun.insert(key.clone()) {
                    let message = format!("the fused task {key} depends on itself");
                    return Err(RemoteError::new("ValueError", &message).into());
                }
                open.extend(needed);
                continue;
            }
            let Some(task) = left.remove(&key) else {
                continue;
            };
            let within = TaskContext {
                data: &data,
                fused_with: &fused_with,
                ..*self
            };
            let datum = match within.evaluate(task)? {
                Evaluated::Value(value) => self.store.made(value),
                Evaluated::Datum(datum) => datum,
            };
            data.insert(key, datum);
        }
        Ok(data.remove(&output).ok_or_else(|| missing(&output))?)
    }

    fn call(
        &self,
        function: Function,
        arguments: Vec<Argument>,
        keywords: Vec<(String, Argument)>,
    ) -> Result<Value, Fault> {
        if let Function::Partial {
            function,
            arguments: mut all,
            keywords: given_before,
        } = function
        {
            all.extend(arguments);
            let replaced: HashSet<&str> = keywords.iter().map(|(name, _)| name.as_str()).collect();
            let mut all_keywords: Vec<_> = given_before
                .into_iter()
                .filter(|(name, _)| !replaced.contains(name.as_str()))
                .collect();
            all_keywords.extend(keywords);
            return self.call(*function, all, all_keywords);
        }
        let Some(name) = name_of(&function) else {
            return Err(self.unsupported_function(&function));
        };
        if is_native(&function) {
            let positional = || {
                let mut all = arguments.iter().enumerate();
                all.find_map(|(index, argument)| {
                    let what = unreadable_in(argument)?;
                    Some((format!("argument {}", index.saturating_add(1)), what))
                })
            };
            let given_by_keyword = || {
                keywords.iter().find_map(|(name, argument)| {
                    let what = unreadable_in(argument)?;
                    Some((format!("argument '{name}'"), what))
                })
            };
            if let Some((place, what)) = positional().or_else(given_by_keyword) {
                let place = format!("{place} of {function}");
                return Err(Fault::Unsupported(self.unreadable(&place, what, true)));
            }
        }
        let positional = arguments
            .into_iter()
            .map(|argument| self.argument(argument));
        let positional = positional.collect::<Result<_, _>>()?;
        let keywords = keywords
            .into_iter()
            .map(|(name, argument)| Ok((name, self.argument(argument)?)));
        let keywords = keywords.collect::<Result<_, Fault>>()?;
        let arguments = Arguments::new(positional, keywords).of(self.execution);
        let Some(result) = self.functions.call(&name, arguments) else {
            return Err(self.unsupported_function(&function));
        };
        let is_python = matches!(function, Function::Python { .. });
        result.map_err(|error| match &*error.class {
            // Arguments that only Python supports.
            "NotImplementedError" if is_python => Fault::Unsupported(error),
            _ => Fault::Raised(error),
        })
    }

    /// The fault of a task that calls a function which this worker does not have.
    fn unsupported_function(&self, function: &Function) -> Fault {
        let worker = self.worker;
        let what = match function {
            Function::Unknown(what) if what.starts_with("cloudpickle.") => {
                "a lambda, a function of __main__ or another function that only Python can run"
                    .to_owned()
            }
            // One with keyword arguments is pickled as a partial.
            Function::Unknown(what)
                if what == "operator.methodcaller" || what == "functools.partial" =>
            {
                format!(
                    "{what}, which is an object of Python; a function in Rust is \
                     methodcaller(\"native:NAME\"), with keyword arguments only, as in \
                     methodcaller(\"native:scale\", by=2.0)"
                )
            }
            Function::Unknown(what) => format!("{what}, which is an object of Python"),
            function => format!("{function}, which is not registered with it"),
        };
        Fault::Unsupported(RemoteError::new(
            "NotImplementedError",
            &format!(
                "the worker {worker} only runs functions in Rust, and cannot call {what}{}",
                self.how_to_part(is_native(function))
            ),
        ))
    }

    /// The error of a task with an argument that Python only can read. `is_native` says that it is
    /// an argument of a function in Rust.
    fn unreadable(&self, place: &str, what: &str, is_native: bool) -> RemoteError {
        let worker = self.worker;
        let hint = match what.split_once('.') {
            Some(("pandas" | "pyarrow" | "polars", _)) => {
                "; scatter it, as in client.scatter(table), and pass its future"
            }
            _ => "",
        };
        let message = format!(
            "the worker {worker} only runs functions in Rust, and cannot read {place}: {what}, which \
             is an object of Python{hint}{}",
            self.how_to_part(is_native)
        );
        RemoteError::new("TypeError", &message)
    }

    /// How to part functions in Rust from others that Dask has made one task of. `is_native` says
    /// whether the call that fails is one of a function in Rust.
    fn how_to_part(&self, is_native: bool) -> String {
        let FusedWith {
            native: Some(native),
            other: Some(other),
        } = self.fused_with
        else {
            return String::new();
        };
        let name = if is_native { other } else { native };
        format!(
            "; Dask has fused it with a call of {name} into one task: compute with \
             optimize_graph=False, or persist a data frame with fuse=False, so that each call is \
             a task of its own"
        )
    }

    fn datum(&self, key: &Key) -> Result<&Datum, RemoteError> {
        self.data.get(key).ok_or_else(|| missing(key))
    }

    /// Evaluates an argument of a call. The value of a result is shared, not copied.
    fn argument(&self, argument: Argument) -> Result<Arg, Fault> {
        if let Argument::Result(key) = &argument {
            let opened = self.datum(key)?.open(self.steps);
            return opened
                .map(Arg::Shared)
                .map_err(|error| damaged(key, &error).into());
        }
        self.value(argument).map(Arg::Owned)
    }

    /// Evaluates an argument to a value. The nesting of arguments was limited when the
    /// task was parsed.
    fn value(&self, argument: Argument) -> Result<Value, Fault> {
        let many = |items: Vec<Argument>| {
            items
                .into_iter()
                .map(|item| self.value(item))
                .collect::<Result<Vec<_>, _>>()
        };
        Ok(match argument {
            Argument::Value(value) => value,
            Argument::Result(_) => self.argument(argument)?.into_value(),
            // Parsing a task never produces held keys.
            Argument::Held(held) => {
                let result = Argument::Result(held.key().clone());
                self.argument(result)?.into_value()
            }
            Argument::List(items) => Value::List(many(items)?.into()),
            Argument::Tuple(items) => Value::Tuple(many(items)?.into()),
            Argument::Set(items) => Value::Set(super::builtins::distinct(many(items)?)?.into()),
            Argument::Dict(entries) => {
                let entries = entries
                    .into_iter()
                    .map(|(key, value)| Ok((self.value(key)?, self.value(value)?)));
                Value::Dict(entries.collect::<Result<_, Fault>>()?)
            }
            Argument::Task(task) => self.work(task.work)?,
            Argument::Unknown(what) => {
                let place = "an argument of this task";
                return Err(Fault::Unsupported(self.unreadable(place, &what, false)));
            }
            // Parsing a task never produces it.
            Argument::Unconverted(error) => return Err(GraphError::from(error).into()),
            other => {
                let what = format!("an argument of this task ({other:?}) is not supported");
                return Err(Fault::Unsupported(RemoteError::new(
                    "NotImplementedError",
                    &what,
                )));
            }
        })
    }
}

/// The first object in an argument that only Python can read.
fn unreadable_in(argument: &Argument) -> Option<&str> {
    match argument {
        Argument::Unknown(what) => Some(what),
        Argument::List(items) | Argument::Tuple(items) | Argument::Set(items) => {
            items.iter().find_map(unreadable_in)
        }
        Argument::Dict(entries) => {
            let items = entries.iter().flat_map(|(key, value)| [key, value]);
            items.into_iter().find_map(unreadable_in)
        }
        _ => None,
    }
}

/// The function that a task calls, without arguments that are bound to it.
fn function_of(task: &Task) -> Option<&Function> {
    let Work::Call { function, .. } = &task.work else {
        return None;
    };
    let mut function = function;
    while let Function::Partial {
        function: inner, ..
    } = function
    {
        function = inner;
    }
    Some(function)
}

const fn is_native(function: &Function) -> bool {
    matches!(function, Function::Native(_))
}

fn missing(key: &Key) -> RemoteError {
    let message = format!("the task needs {key}, which is not among its dependencies");
    RemoteError::new("KeyError", &message)
}

/// The name under which a function is registered.
fn name_of(function: &Function) -> Option<String> {
    match function {
        Function::Native(name) => Some(name.clone()),
        Function::Python { module, name } => Some(format!("{module}.{name}")),
        _ => None,
    }
}

const fn is_number(value: &Value) -> bool {
    matches!(
        value,
        Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Complex(..)
    )
}

fn damaged(key: &Key, error: &DatumError) -> RemoteError {
    RemoteError::new(
        "ValueError",
        &format!("the data of {key} cannot be used: {error}"),
    )
}
