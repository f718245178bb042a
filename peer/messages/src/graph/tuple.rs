//! Writes graphs for releases before `dask._task_spec`, where a task is a tuple of
//! a function and its arguments.
//!
//! In such a graph, an argument that equals a key stands for the result of that key,
//! also inside lists, tuples and dictionaries. A value that could be mistaken for a
//! result is written as a nested task: a `dask.core.literal`, which returns the value
//! when it is called.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use daskwire_pickle::Writer;

use super::write::{Names, write_function};
use super::{Argument, Graph, Task, Work};
use crate::dialect::{Dialect, TaskForm};
use crate::protocol::CallPickles;
use crate::scratch;
use crate::value::ValueError;
use crate::{Key, Value};

/// The form of references to results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reference {
    /// The key of the result.
    Key,
    /// An object that holds the key, which the scheduler replaces.
    Object(&'static str, &'static str),
}

struct TupleWriter<'g> {
    dialect: Dialect,
    reference: Reference,
    /// The keys that arguments may be mistaken for.
    keys: HashSet<Key>,
    has_number_keys: bool,
    names: Names<'g>,
}

/// A graph as the fields of `update-graph` up to 2023.3.
#[derive(Debug)]
pub struct Tasks {
    /// The tasks.
    pub tasks: Vec<(Key, CallPickles)>,
    /// The dependencies of the tasks that have any.
    pub dependencies: Vec<(Key, Vec<Key>)>,
    /// An order in which tasks come after their dependencies.
    pub priority: Vec<(Key, i64)>,
}

impl Graph {
    /// The pickle of this graph as a `HighLevelGraph`, in a `ToPickle`.
    ///
    /// # Errors
    ///
    /// If a value cannot be serialized, or a payload cannot be read.
    pub fn to_layers(&self, dialect: &Dialect, form: TaskForm) -> Result<Bytes, ValueError> {
        let reference = match form {
            TaskForm::WrappedKeys => Reference::Object("distributed.utils_comm", "WrappedKey"),
            TaskForm::References | TaskForm::Nodes => {
                Reference::Object("dask._task_spec", "TaskRef")
            }
        };
        let name = crate::key::identifier();
        let pickle = scratch::pickle(dialect.pickling.options(), |writer| {
            let mut tuples = TupleWriter::new(*dialect, reference, self);
            writer
                .reduce()
                .global("distributed.protocol.serialize", "ToPickle")
                .tuple(1)
                .reduce()
                .global("dask.highlevelgraph", "HighLevelGraph")
                .tuple(2)
                .dict(1)
                .str(&name)
                .dict(self.tasks.len());
            for task in &self.tasks {
                dialect.key(&task.key).pickle(writer);
                match form {
                    TaskForm::Nodes => task.write(writer, &mut tuples.names)?,
                    _ => tuples.task(task, writer)?,
                }
            }
            writer.dict(1).str(&name).set(0);
            Ok::<(), ValueError>(())
        })?;
        Ok(pickle.into())
    }

    /// The tasks as the fields of `update-graph` up to 2023.3.
    ///
    /// # Errors
    ///
    /// If a value cannot be serialized, or a payload cannot be read.
    pub fn to_tasks(&self, dialect: &Dialect) -> Result<Tasks, ValueError> {
        let mut tasks = Vec::with_capacity(self.tasks.len());
        let mut dependencies = Vec::new();
        for task in &self.tasks {
            let keys: Vec<Key> = task
                .dependencies()
                .iter()
                .map(|key| dialect.key(key))
                .collect();
            let tuples = || TupleWriter::with_keys(*dialect, Reference::Key, keys.clone());
            let key = dialect.key(&task.key);
            tasks.push((key.clone(), tuples().call(task)?));
            if !keys.is_empty() {
                dependencies.push((key, keys));
            }
        }
        Ok(Tasks {
            priority: order(&tasks, &dependencies),
            tasks,
            dependencies,
        })
    }
}

/// Numbers tasks so that each follows its dependencies, and is close to them.
fn order<T>(tasks: &[(Key, T)], dependencies: &[(Key, Vec<Key>)]) -> Vec<(Key, i64)> {
    let dependencies: HashMap<&Key, &Vec<Key>> =
        dependencies.iter().map(|(key, keys)| (key, keys)).collect();
    let own: HashSet<&Key> = tasks.iter().map(|(key, _)| key).collect();
    let mut visited: HashSet<&Key> = HashSet::with_capacity(tasks.len());
    let mut order = Vec::with_capacity(tasks.len());
    for (key, _) in tasks {
        // A key is finished after the keys that were pushed above it.
        let mut stack = vec![(key, false)];
        while let Some((key, is_left)) = stack.pop() {
            if is_left {
                order.push((key.clone(), i64::try_from(order.len()).unwrap_or(i64::MAX)));
            } else if own.contains(key) && visited.insert(key) {
                stack.push((key, true));
                let inputs = dependencies.get(key).into_iter().copied().flatten();
                stack.extend(inputs.rev().map(|input| (input, false)));
            }
        }
    }
    order
}

impl<'g> TupleWriter<'g> {
    fn new(dialect: Dialect, reference: Reference, graph: &Graph) -> Self {
        let own = graph.tasks.iter().map(|task| task.key.clone());
        let all = own.chain(graph.tasks.iter().flat_map(Task::dependencies));
        let keys = all.map(|key| dialect.key(&key));
        Self::with_keys(dialect, reference, keys.collect::<HashSet<Key>>())
    }

    fn with_keys(
        dialect: Dialect,
        reference: Reference,
        keys: impl IntoIterator<Item = Key>,
    ) -> Self {
        let keys: HashSet<Key> = keys.into_iter().collect();
        // The first byte of msgpack's strings, bytes and lists.
        let is_number = |key: &Key| {
            !matches!(
                key.as_msgpack(),
                [0x90..=0xbf | 0xc4..=0xc6 | 0xd9..=0xdd, ..]
            )
        };
        Self {
            has_number_keys: keys.iter().any(is_number),
            dialect,
            reference,
            keys,
            names: Names::new(dialect.pickling),
        }
    }

    // ROLES CLIENT-9
    /// Whether a value could be mistaken for a result.
    fn is_ambiguous(&self, value: &Value) -> bool {
        match value {
            _ if self.keys.is_empty() => false,
            Value::None => false,
            Value::Str(string) => self.keys.contains(&Key::from(string.as_ref())),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) => self.has_number_keys,
            _ => true,
        }
    }

    /// The pickles of a call that runs a task. A worker reads them when it runs the
    /// task, so that one that it cannot read fails the task only.
    fn call(mut self, task: &'g Task) -> Result<CallPickles, ValueError> {
        let options = self.names.pickling.options();
        let pickle = |write: &mut dyn FnMut(&mut Writer<'_, '_>) -> Result<(), ValueError>| {
            scratch::pickle(options, |writer| write(writer)).map(Bytes::from)
        };
        if let Work::Call {
            function,
            arguments,
            keywords,
        } = &task.work
            && keywords.is_empty()
            && task.without_partial().is_none()
            && arguments.iter().all(|argument| self.is_plain(argument))
        {
            let pickling = self.names.pickling;
            return Ok(CallPickles {
                function: pickle(&mut |writer| {
                    write_function(function, writer, &mut Names::new(pickling))
                })?,
                args: pickle(&mut |writer| {
                    writer.tuple(arguments.len());
                    self.all(arguments, writer)
                })?,
                ..CallPickles::default()
            });
        }
        Ok(CallPickles {
            function: pickle(&mut |writer| {
                writer.global("distributed.worker", "execute_task");
                Ok(())
            })?,
            args: pickle(&mut |writer| {
                writer.tuple(1);
                self.task(task, writer)
            })?,
            ..CallPickles::default()
        })
    }

    /// Whether an argument is written without nested tasks.
    fn is_plain(&self, argument: &Argument) -> bool {
        match argument {
            Argument::Value(value) => !self.is_ambiguous(value),
            Argument::Result(_) | Argument::Held(_) => true,
            _ => false,
        }
    }

    fn task(&mut self, task: &'g Task, writer: &mut Writer<'_, '_>) -> Result<(), ValueError> {
        if let Some(plain) = task.without_partial() {
            // A writer of its own, because the new task does not live as long as
            // the graph.
            let mut inner = TupleWriter {
                dialect: self.dialect,
                reference: self.reference,
                keys: core::mem::take(&mut self.keys),
                has_number_keys: self.has_number_keys,
                names: Names::new(self.names.pickling),
            };
            let written = inner.task(&plain, writer);
            self.keys = inner.keys;
            return written;
        }
        match &task.work {
            Work::Call {
                function,
                arguments,
                keywords,
            } if keywords.is_empty() => {
                writer.tuple(arguments.len().saturating_add(1));
                write_function(function, writer, &mut self.names)?;
                self.all(arguments, writer)
            }
            Work::Call {
                function,
                arguments,
                keywords,
            } => {
                writer.tuple(4);
                self.names.write(writer, "dask.utils", "apply");
                write_function(function, writer, &mut self.names)?;
                writer.list(arguments.len());
                self.all(arguments, writer)?;
                writer.tuple(2);
                self.names.write(writer, "builtins", "dict");
                writer.list(keywords.len());
                keywords.iter().try_for_each(|(name, argument)| {
                    writer.list(2);
                    self.literal(&Value::from(name.as_str()), writer)?;
                    self.argument(argument, writer)
                })
            }
            Work::Argument(Argument::Value(value)) => self.quote(value, writer),
            Work::Argument(argument) => self.argument(argument, writer),
            Work::Fused { .. } => Err(ValueError::Unsupported {
                what: "a fused task with a scheduler before 2024.12".to_owned(),
            }),
        }
    }

    fn all(
        &mut self,
        arguments: &'g [Argument],
        writer: &mut Writer<'_, '_>,
    ) -> Result<(), ValueError> {
        arguments
            .iter()
            .try_for_each(|argument| self.argument(argument, writer))
    }

    /// Writes a call of a class with a list of items, which may be results.
    fn container(
        &mut self,
        class: &'static str,
        items: &'g [Argument],
        writer: &mut Writer<'_, '_>,
    ) -> Result<(), ValueError> {
        writer.tuple(2);
        self.names.write(writer, "builtins", class);
        writer.list(items.len());
        self.all(items, writer)
    }

    fn argument(
        &mut self,
        argument: &'g Argument,
        writer: &mut Writer<'_, '_>,
    ) -> Result<(), ValueError> {
        match argument {
            Argument::Value(value) => self.literal(value, writer),
            Argument::Result(key) => {
                self.result(key, writer);
                Ok(())
            }
            Argument::Held(held) => {
                self.result(held.key(), writer);
                Ok(())
            }
            Argument::List(items) => {
                writer.list(items.len());
                self.all(items, writer)
            }
            Argument::Tuple(items) => self.container("tuple", items, writer),
            Argument::Set(items) => self.container("set", items, writer),
            Argument::Dict(entries) => {
                writer.tuple(2);
                self.names.write(writer, "builtins", "dict");
                writer.list(entries.len());
                entries.iter().try_for_each(|(key, value)| {
                    writer.list(2);
                    self.argument(key, writer)?;
                    self.argument(value, writer)
                })
            }
            Argument::Task(task) => self.task(task, writer),
            Argument::Unknown(what) => Err(ValueError::Unsupported { what: what.clone() }),
            Argument::Unconverted(error) => Err(error.clone()),
        }
    }

    fn result(&mut self, key: &Key, writer: &mut Writer<'_, '_>) {
        let key = self.dialect.key(key);
        if let Reference::Object(module, class) = self.reference {
            writer.reduce();
            self.names.write(writer, module, class);
            writer.tuple(1);
        }
        key.pickle(writer);
    }

    fn literal(&mut self, value: &Value, writer: &mut Writer<'_, '_>) -> Result<(), ValueError> {
        if self.is_ambiguous(value) {
            self.quote(value, writer)
        } else {
            value.pickle_in_band(writer, self.names.pickling)
        }
    }

    /// Writes a task that returns a value.
    fn quote(&mut self, value: &Value, writer: &mut Writer<'_, '_>) -> Result<(), ValueError> {
        writer.tuple(1).reduce();
        self.names.write(writer, "dask.core", "literal");
        writer.tuple(1);
        value.pickle_in_band(writer, self.names.pickling)
    }
}
