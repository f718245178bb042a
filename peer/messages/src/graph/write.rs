//! Writes graphs and tasks.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use bytes::Bytes;
use daskwire_pickle::Writer;

use super::spec::SPEC;
use super::{Argument, Function, Graph, Part, Task, Work, keys_in};
use crate::Key;
use crate::Value;
use crate::pickling::Pickling;
use crate::protocol::CallPickles;
use crate::scratch::{self, PickleScratch};
use crate::value::{Serialized, ValueError};

/// Memo indexes of the names written so far.
#[derive(Default)]
pub(super) struct Names<'n> {
    /// The first names, which are found sooner without hashing. Most pickles have no others.
    first: Vec<((&'n str, &'n str), u32)>,
    others: HashMap<(&'n str, &'n str), u32>,
    pub(super) pickling: Pickling,
}

impl<'n> Names<'n> {
    pub(super) fn new(pickling: Pickling) -> Self {
        Self {
            pickling,
            ..Self::default()
        }
    }

    pub(super) fn write(&mut self, writer: &mut Writer<'_, '_>, module: &'n str, name: &'n str) {
        const FIRST_COUNT: usize = 8;
        let name = (module, name);
        let known = self.first.iter().find(|(known, _)| *known == name);
        let known = known.map(|(_, index)| index);
        match known.or_else(|| self.others.get(&name)) {
            Some(index) => {
                writer.get(*index);
            }
            None => {
                let index = writer.global(module, name.1).memoize();
                match self.first.len() < FIRST_COUNT {
                    true => self.first.push((name, index)),
                    false => drop(self.others.insert(name, index)),
                }
            }
        }
    }
}

impl Graph {
    /// The expression for an `update-graph` message.
    ///
    /// # Errors
    ///
    /// If an argument contains a [`Serialized`] value that cannot be opened:
    /// scatter it, and use its key.
    pub fn to_expression(&self) -> Result<Serialized, ValueError> {
        self.to_expression_for(Pickling::default())
    }

    /// Like [`to_expression`](Self::to_expression), for the readers of a
    /// cluster.
    ///
    /// # Errors
    ///
    /// If a value cannot be serialized, or a payload cannot be read.
    pub fn to_expression_for(&self, pickling: Pickling) -> Result<Serialized, ValueError> {
        let token = crate::key::identifier();
        let pickle = scratch::pickle(pickling.options(), |writer| {
            let mut names = Names::new(pickling);
            // `Expr._reconstruct` takes an optional name; without it, the
            // scheduler would hash the whole graph to make one.
            writer
                .reduce()
                .global("dask._expr", "Expr._reconstruct")
                .tuple(4);
            writer.global("dask._expr", "LLGExpr");
            writer.dict(self.tasks.len());
            for task in &self.tasks {
                task.key.pickle(writer);
                task.write(writer, &mut names)?;
            }
            writer.str(&token).dict(0);
            Ok::<(), ValueError>(())
        })?;
        Ok(Serialized::of_written_pickle(pickle.into()))
    }
}

impl Task {
    /// The `run_spec` for a `compute-task` message.
    ///
    /// # Errors
    ///
    /// As [`Graph::to_expression`].
    pub fn to_run_spec(&self) -> Result<Serialized, ValueError> {
        let pickle = scratch::pickle(Pickling::default().options(), |writer| {
            self.write(writer, &mut Names::default())
        })?;
        Ok(Serialized::pickled(&Bytes::from(pickle)))
    }

    pub(super) fn write<'n>(
        &'n self,
        writer: &mut Writer<'_, '_>,
        names: &mut Names<'n>,
    ) -> Result<(), ValueError> {
        if let Some(plain) = self.without_partial() {
            return plain.write(writer, &mut Names::new(names.pickling));
        }
        match &self.work {
            Work::Call {
                function,
                arguments,
                keywords,
            } if keywords.is_empty() => {
                writer.reduce();
                names.write(writer, SPEC, "Task");
                writer.tuple(arguments.len().saturating_add(2));
                self.key.pickle(writer);
                write_function(function, writer, names)?;
                arguments
                    .iter()
                    .try_for_each(|argument| argument.write(writer, names))
            }
            // REDUCE does not support keyword arguments.
            Work::Call {
                function,
                arguments,
                keywords,
            } => {
                writer.reduce();
                names.write(writer, SPEC, "Task");
                writer.tuple(5);
                self.key.pickle(writer);
                names.write(writer, "dask.utils", "apply");
                write_function(function, writer, names)?;
                write_items("List", arguments, writer, names)?;
                writer.reduce();
                names.write(writer, SPEC, "Dict");
                writer.tuple(1).dict(keywords.len());
                keywords.iter().try_for_each(|(name, argument)| {
                    writer.str(name);
                    argument.write(writer, names)
                })
            }
            Work::Fused {
                tasks,
                output,
                inputs,
            } => {
                writer.reduce();
                names.write(writer, SPEC, "Task");
                writer.tuple(inputs.len().saturating_add(5));
                self.key.pickle(writer);
                names.write(writer, SPEC, "_execute_subgraph");
                writer.dict(tasks.len());
                for task in tasks {
                    task.key.pickle(writer);
                    task.write(writer, names)?;
                }
                output.pickle(writer);
                writer.tuple(inputs.len());
                inputs.iter().for_each(|(name, _)| name.pickle(writer));
                inputs
                    .iter()
                    .try_for_each(|(_, argument)| argument.write(writer, names))
            }
            Work::Argument(argument) => {
                let target = match argument {
                    Argument::Result(key) => Some(key),
                    Argument::Held(held) => Some(held.key()),
                    _ => None,
                };
                let class = target.map_or("DataNode", |_| "Alias");
                writer.reduce();
                names.write(writer, SPEC, class);
                writer.tuple(2);
                self.key.pickle(writer);
                match target {
                    Some(target) => {
                        target.pickle(writer);
                        Ok(())
                    }
                    None => argument.write(writer, names),
                }
            }
        }
    }
}

/// The `run_spec` of a task for a worker of Dask. If the worker cannot open the task's own pickle,
/// that is an error of the task: a worker opens the `run_spec` while it reads the message, and
/// ends if that fails.
///
/// Returns `run_spec` if it is not the pickle of a task.
pub fn opened_safely(room: &mut PickleScratch, run_spec: &Serialized, key: &Key) -> Serialized {
    let Some(inner) = run_spec.plain_pickle() else {
        return run_spec.clone();
    };
    let pickle = room.write(Pickling::default().options(), |writer| {
        let mut names = Names::default();
        // excepts(BaseException, loads, partial(Task, key, reraise))(inner)
        writer.reduce().reduce();
        writer.global("toolz.functoolz", "excepts").tuple(3);
        writer.global("builtins", "BaseException");
        writer.global("pickle", "loads").reduce();
        writer.global("functools", "partial").tuple(3);
        names.write(writer, SPEC, "Task");
        key.pickle(writer);
        writer.global("dask.local", "reraise");
        writer.tuple(1).bytes(&inner);
        Ok::<(), ValueError>(())
    });
    // Cannot fail: the buffer grows as needed.
    Serialized::pickled(pickle.expect("a buffer that grows"))
}

impl Task {
    /// Replaces a partial that needs results by a plain call. Returns `None` if
    /// there is no such partial. Of a keyword that is given twice, the outermost value
    /// is used.
    pub(super) fn without_partial(&self) -> Option<Self> {
        let Work::Call {
            function: function @ Function::Partial { .. },
            arguments,
            keywords,
        } = &self.work
        else {
            return None;
        };
        if keys_in(vec![Part::Function(function)]).is_empty() {
            return None;
        }
        let mut calls = vec![(arguments, keywords)];
        let mut called = function;
        while let Function::Partial {
            function,
            arguments,
            keywords,
        } = called
        {
            calls.push((arguments, keywords));
            called = function;
        }
        // The arguments of the innermost partial come first.
        let calls = || calls.iter().rev();
        let mut indices: HashMap<&String, usize> = HashMap::new();
        let mut keywords: Vec<(String, Argument)> = Vec::new();
        for (name, argument) in calls().flat_map(|(_, all)| *all) {
            match indices.entry(name) {
                Entry::Occupied(index) => keywords[*index.get()].1 = argument.clone(),
                Entry::Vacant(index) => {
                    index.insert(keywords.len());
                    keywords.push((name.clone(), argument.clone()));
                }
            }
        }
        Some(Self {
            key: self.key.clone(),
            work: Work::Call {
                function: called.clone(),
                arguments: calls().flat_map(|(all, _)| *all).cloned().collect(),
                keywords,
            },
        })
    }
}

/// The pickles of a function, a tuple of arguments and a dictionary of keyword
/// arguments.
///
/// # Errors
///
/// If an argument contains a [`Serialized`] value that cannot be opened.
pub fn call_pickles(
    function: &Function,
    arguments: &[Value],
    keywords: &[(String, Value)],
    pickling: Pickling,
) -> Result<CallPickles, ValueError> {
    let function = scratch::pickle(pickling.options(), |writer| {
        write_function(function, writer, &mut Names::new(pickling))
    })?;
    let args = scratch::pickle(pickling.options(), |writer| {
        writer.tuple(arguments.len());
        let mut arguments = arguments.iter();
        arguments.try_for_each(|argument| argument.pickle_in_band(writer, pickling))
    })?;
    let kwargs = scratch::pickle(pickling.options(), |writer| {
        writer.dict(keywords.len());
        keywords.iter().try_for_each(|(name, argument)| {
            writer.str(name);
            argument.pickle_in_band(writer, pickling)
        })
    })?;
    Ok(CallPickles {
        function: function.into(),
        args: args.into(),
        kwargs: Some(kwargs.into()),
        ..CallPickles::default()
    })
}

/// The pickle of a list of the futures with these keys, as Python clients have them.
///
/// # Errors
///
/// If a value cannot be serialized, or a payload cannot be read.
pub fn futures_pickle(keys: &[&Key]) -> Result<Bytes, ValueError> {
    let pickle = scratch::pickle(Pickling::PORTABLE, |writer| {
        writer.list(keys.len());
        for key in keys {
            writer.reduce().global("distributed.client", "Future");
            key.pickle(writer.tuple(1));
        }
        Ok::<(), ValueError>(())
    })?;
    Ok(pickle.into())
}

/// The pickle of an instance: `class(*arguments)`, with these attributes set after.
///
/// # Errors
///
/// As [`call_pickles`].
pub fn instance_pickle(
    class: &Function,
    arguments: Option<&[Value]>,
    state: &[(&str, Value)],
    pickling: Pickling,
) -> Result<Bytes, ValueError> {
    let pickle = scratch::pickle(pickling.options(), |writer| {
        if !state.is_empty() {
            writer.build();
        }
        match arguments {
            Some(_) => writer.reduce(),
            // Without a call of the constructor.
            None => writer.newobj(),
        };
        write_function(class, writer, &mut Names::new(pickling))?;
        let arguments = arguments.unwrap_or_default();
        writer.tuple(arguments.len());
        for argument in arguments {
            argument.pickle_in_band(writer, pickling)?;
        }
        if !state.is_empty() {
            writer.dict(state.len());
            for (name, value) in state {
                writer.str(name);
                value.pickle_in_band(writer, pickling)?;
            }
        }
        Ok::<(), ValueError>(())
    })?;
    Ok(pickle.into())
}

pub(super) fn write_function<'n>(
    function: &'n Function,
    writer: &mut Writer<'_, '_>,
    names: &mut Names<'n>,
) -> Result<(), ValueError> {
    match function {
        Function::Python { module, name } => names.write(writer, module, name),
        Function::Native(name) => {
            writer.reduce();
            names.write(writer, "operator", "methodcaller");
            writer.tuple(1).str(&format!("native:{name}"));
        }
        Function::Partial {
            function,
            arguments,
            keywords,
        } => {
            // partial(f) and its state: (f, arguments, keywords, None)
            writer.build().reduce();
            names.write(writer, "functools", "partial");
            writer.tuple(1);
            write_function(function, writer, names)?;
            writer.tuple(4);
            write_function(function, writer, names)?;
            writer.tuple(arguments.len());
            arguments
                .iter()
                .try_for_each(|argument| argument.write(writer, names))?;
            writer.dict(keywords.len());
            for (name, argument) in keywords {
                writer.str(name);
                argument.write(writer, names)?;
            }
            writer.none();
        }
        Function::Unknown(what) => return Err(ValueError::Unsupported { what: what.clone() }),
    }
    Ok(())
}

fn write_reference(key: &Key, writer: &mut Writer<'_, '_>, names: &mut Names<'_>) {
    writer.reduce();
    names.write(writer, SPEC, "TaskRef");
    writer.tuple(1);
    key.pickle(writer);
}

fn write_items<'n>(
    class: &'static str,
    items: &'n [Argument],
    writer: &mut Writer<'_, '_>,
    names: &mut Names<'n>,
) -> Result<(), ValueError> {
    writer.reduce();
    names.write(writer, SPEC, class);
    // A container as the only argument provides the items. Several arguments
    // would do too, but a single item that is a container would be mistaken for
    // that.
    writer.tuple(1);
    match class {
        "List" => writer.list(items.len()),
        "Tuple" => writer.tuple(items.len()),
        _ => writer.set(items.len()),
    };
    items.iter().try_for_each(|item| item.write(writer, names))
}

impl Argument {
    fn write<'n>(
        &'n self,
        writer: &mut Writer<'_, '_>,
        names: &mut Names<'n>,
    ) -> Result<(), ValueError> {
        match self {
            Self::Value(value) => value.pickle_in_band(writer, names.pickling),
            Self::Result(key) => {
                write_reference(key, writer, names);
                Ok(())
            }
            Self::Held(future) => {
                write_reference(future.key(), writer, names);
                Ok(())
            }
            Self::List(items) => write_items("List", items, writer, names),
            Self::Tuple(items) => write_items("Tuple", items, writer, names),
            Self::Set(items) => write_items("Set", items, writer, names),
            Self::Dict(entries) => {
                writer.reduce();
                names.write(writer, SPEC, "Dict");
                writer.tuple(1).dict(entries.len());
                entries.iter().try_for_each(|(key, value)| {
                    key.write(writer, names)?;
                    value.write(writer, names)
                })
            }
            Self::Task(task) => task.write(writer, names),
            Self::Unknown(what) => Err(ValueError::Unsupported { what: what.clone() }),
        }
    }
}
