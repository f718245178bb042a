//! Writes graphs and tasks.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use bytes::Bytes;
use daskwire_pickle::{Framing, Writer, WriterLevel};

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
/// `inner` is the pickle of the task.
pub fn opened_safely(room: &mut PickleScratch, inner: &[u8], key: &Key) -> Serialized {
    // A scheduler does this for each task that it sends.
    if let Some(opened) = opened_short(inner, key) {
        return opened;
    }
    // Cannot fail: the buffer grows as needed.
    let pickle = opening_pickle(room, inner, key).expect("a buffer that grows");
    Serialized::pickled(pickle)
}

/// The pickle of `excepts(BaseException, loads, partial(Task, key, reraise))(inner)`.
fn opening_pickle<'r>(
    room: &'r mut PickleScratch,
    inner: &[u8],
    key: &Key,
) -> Result<&'r [u8], ValueError> {
    room.write(Pickling::default().options(), |writer| {
        let mut names = Names::default();
        writer.reduce().reduce();
        writer.global("toolz.functoolz", "excepts").tuple(3);
        writer.global("builtins", "BaseException");
        writer.global("pickle", "loads").reduce();
        writer.global("functools", "partial").tuple(3);
        names.write(writer, SPEC, "Task");
        key.pickle(writer);
        writer.global("dask.local", "reraise");
        writer.tuple(1).bytes(inner);
        Ok(())
    })
}

/// The payload of [`opening_pickle`], made of its parts, if key and pickle are short.
fn opened_short(inner: &[u8], key: &Key) -> Option<Serialized> {
    const BEFORE_KEY: &[u8] = b"\x8c\x0ftoolz.functoolz\x8c\x07excepts\x93\
        \x8c\x08builtins\x8c\x0dBaseException\x93\x8c\x06pickle\x8c\x05loads\x93\
        \x8c\x09functools\x8c\x07partial\x93\x8c\x0fdask._task_spec\x8c\x04Task\x93\x94";
    const AFTER_KEY: &[u8] = b"\x8c\x0adask.local\x8c\x07reraise\x93\x87R\x87R";
    const END: &[u8] = b"\x85R.";
    // All of it is in one frame.
    const MAX_INNER_LEN: usize = 32 << 10;
    const MAX_KEY_LEN: usize = 128;
    let mut buffer = [0; MAX_KEY_LEN];
    let mut levels = [WriterLevel::EMPTY; 4];
    let options = Pickling::default().options().with_framing(Framing::None);
    let mut writer = Writer::with_options(&mut buffer, &mut levels, options);
    key.pickle(&mut writer);
    // Between the protocol and STOP.
    let [_, _, key @ .., _] = writer.finish().ok()? else {
        return None;
    };
    let len = u32::try_from(inner.len()).ok()?;
    let [a, b, c, d] = len.to_le_bytes();
    let bytes: &[u8] = match inner.len() {
        0..=0xff => &[b'C', a],
        0x100..=MAX_INNER_LEN => &[b'B', a, b, c, d],
        _ => return None,
    };
    let parts = [BEFORE_KEY, key, AFTER_KEY, bytes, inner, END];
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let [a, b, c, d, e, f, g, h] = (len as u64).to_le_bytes();
    let head = &[0x80, 5, 0x95, a, b, c, d, e, f, g, h];
    let [one, two, three, four, five, six] = parts;
    Some(Serialized::pickled_parts(&[
        head, one, two, three, four, five, six,
    ]))
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
            Self::Unconverted(error) => Err(error.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_tasks_are_opened_safely_by_the_same_pickle() {
        let mut room = PickleScratch::default();
        let block = Key::list([Key::from("x"), Key::from(0), Key::from(1 << 40)]);
        let names = ["x".repeat(123), "x".repeat(124), "x".repeat(300)];
        let mut keys = vec![
            Key::from("add-1"),
            Key::from(7),
            Key::from(1.5),
            block.clone(),
        ];
        keys.push(Key::list([Key::from("x"), Key::list([block])]));
        keys.extend(names.map(Key::from));
        let mut short_count = 0;
        for key in &keys {
            for len in [0, 5, 255, 256, 32 << 10, (32 << 10) + 1, 1 << 17] {
                let inner = vec![7; len];
                let pickle = opening_pickle(&mut room, &inner, key).expect("a buffer that grows");
                let pickle = Serialized::pickled(pickle);
                let opened = opened_safely(&mut PickleScratch::default(), &inner, key);
                assert_eq!(opened, pickle, "{key}, {len}");
                short_count += usize::from(opened_short(&inner, key).is_some());
            }
        }
        assert_eq!(short_count, 5 * (keys.len() - 2));
    }
}
