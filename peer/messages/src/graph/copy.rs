//! Copies parts of a pickle into new pickles without interpreting them. A
//! scheduler sends each task of a graph to a worker this way, including functions
//! and objects that only Python can make.

use std::collections::{HashMap, HashSet};

use daskwire_pickle::tree::{Int, Node, Operation, Str, Tree, Value};
use daskwire_pickle::{Writer, WriterOptions};

use super::GraphError;
use super::error::unexpected;
use super::payload::{Bases, Payload};
use crate::scratch;
use crate::value::{Budget, describe};

/// Maximum nesting of values.
const DEPTH: usize = 200;

/// Maximum number of values, and of bytes, that the pickles of a split tuple have.
const SPLIT: (usize, usize) = (1 << 22, 1 << 28);

/// Calls that change an object after it was made, by the object's index.
///
/// A class may have such a function in place of a state, as those of `cloudpickle` do. Its result is
/// dropped, so nothing in the tree refers to the call.
#[derive(Debug, Default)]
pub(super) struct Effects<'t, 'p>(HashMap<usize, Vec<Node<'t, 'p>>>);

impl<'t, 'p> Effects<'t, 'p> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn of(tree: &'t Tree<'p>, pickle: &[u8]) -> Self {
        let mut effects = Self::default();
        for node in tree.nodes() {
            // REDUCE and POP. An object that is needed is memoized before anything else, unless it is a
            // part of its own arguments: then it was made before, and is made once more.
            let is_dropped = pickle.get(node.offset().saturating_add(1)) == Some(&b'0');
            if is_dropped
                && let Value::Call { arguments, .. } = node.value()
                && let Some(object) = arguments.items().next()
            {
                effects.0.entry(object.index()).or_default().push(node);
            }
        }
        effects
    }
}

/// Copies each item of a pickled tuple into a pickle of its own, with everything that it refers to.
///
/// The pickle is that of Python's `pickle`, without buffers out of band.
///
/// # Errors
///
/// [`GraphError`] if the pickle is damaged, is not a tuple, or has values that cannot be copied, or if
/// the copies have more than 2^22 values or 2^28 bytes, since each has what all of them share.
pub fn split_tuple(pickle: &[u8]) -> Result<Vec<Payload>, GraphError> {
    let tree = Tree::new(pickle)?;
    let Value::Tuple(items) = tree.root().value() else {
        return Err(unexpected(tree.root(), "a tuple"));
    };
    let (values, bytes) = SPLIT;
    let budget = Budget::new(values, bytes);
    let effects = Effects::of(&tree, pickle);
    let mut copier = Copier::new(&tree);
    let mut bases = Bases::default();
    let copies = items.map(|item| {
        let copy = copier.write(&effects, &budget, |copy, writer| copy.write(item, writer))?;
        Ok(bases.payload(copy))
    });
    copies.collect()
}

/// Copies parts of one tree.
#[derive(Debug)]
pub(super) struct Copier<'t, 'p> {
    room: scratch::PickleScratch,
    /// For each node, the copy in which it was written last, and its memo entry
    /// there.
    memo: Vec<(u32, u32)>,
    copy_count: u32,
    /// Objects that are parts of what they are made of, such as a tuple with a list that contains it.
    recursive: HashSet<usize>,
    /// The numbers, strings and bytes of the last copy, with their ends in it.
    pub(super) leaves: Vec<(usize, Node<'t, 'p>)>,
}

impl<'t, 'p> Copier<'t, 'p> {
    pub(super) fn new(tree: &Tree<'_>) -> Self {
        Self {
            room: scratch::PickleScratch::default(),
            memo: vec![(0, 0); tree.nodes().len()],
            copy_count: 0,
            recursive: HashSet::new(),
            leaves: Vec::new(),
        }
    }

    /// Whether objects were copied that are parts of what they are made of.
    pub(super) fn has_recursive(&self) -> bool {
        !self.recursive.is_empty()
    }

    /// Writes a pickle with copies of nodes and everything that they refer to.
    ///
    /// Tasks may share parts, and each copy contains all of them, so everything
    /// copied is charged to the budget, data by length.
    pub(super) fn write(
        &mut self,
        effects: &Effects<'t, 'p>,
        budget: &Budget,
        mut write: impl FnMut(&mut Copy<'_, 't, 'p>, &mut Writer<'_, '_>) -> Result<(), GraphError>,
    ) -> Result<&[u8], GraphError> {
        let Self {
            room,
            memo,
            copy_count,
            recursive,
            leaves,
        } = self;
        loop {
            let known_count = recursive.len();
            let written = room.write(WriterOptions::default(), |writer| {
                *copy_count = copy_count.wrapping_add(1);
                leaves.clear();
                let mut copy = Copy {
                    memo,
                    number: *copy_count,
                    effects,
                    budget,
                    recursive,
                    leaves,
                };
                write(&mut copy, writer)
            });
            let len = written?.len();
            // Objects are found to be recursive when they end, all of them in one pass.
            if recursive.len() == known_count {
                return Ok(room.written(len));
            }
        }
    }
}

/// The error for a node that cannot be copied.
fn unknown(node: Node<'_, '_>) -> GraphError {
    GraphError::Unknown {
        what: describe(node),
    }
}

/// Length of a node's own data.
fn copied_len(value: &Value<'_, '_>) -> usize {
    match value {
        Value::Str(string) => string.to_bytes().len(),
        Value::Bytes(data) | Value::ByteArray { data, .. } | Value::Buffer { data, .. } => {
            data.len()
        }
        Value::Int(Int::Big(value)) => value.as_bytes().len(),
        Value::Global(global) => {
            let (module, name) = (global.module.to_bytes(), global.name.to_bytes());
            module.len().saturating_add(name.len())
        }
        _ => 0,
    }
}

/// A pickle into which nodes are copied.
pub(super) struct Copy<'c, 't, 'p> {
    memo: &'c mut [(u32, u32)],
    number: u32,
    effects: &'c Effects<'t, 'p>,
    budget: &'c Budget,
    recursive: &'c mut HashSet<usize>,
    leaves: &'c mut Vec<(usize, Node<'t, 'p>)>,
}

impl<'t, 'p> Copy<'_, 't, 'p> {
    /// Writes a node, completely: every container that this begins on the writer is
    /// ended.
    pub(super) fn write(
        &mut self,
        node: Node<'t, 'p>,
        writer: &mut Writer<'_, '_>,
    ) -> Result<(), GraphError> {
        self.write_within(node, writer, DEPTH)
    }

    fn write_within(
        &mut self,
        node: Node<'t, 'p>,
        writer: &mut Writer<'_, '_>,
        depth: usize,
    ) -> Result<(), GraphError> {
        let what = || unknown(node);
        if let Some((number, index)) = self.memo.get(node.index())
            && *number == self.number
        {
            writer.get(*index);
            return self.budget.spend(1).map_err(Into::into);
        }
        self.budget.spend(1)?;
        let value = node.value();
        self.budget.spend_copy(copied_len(&value))?;
        let depth = depth.checked_sub(1).ok_or_else(what)?;
        if !self.recursive.is_empty() && self.recursive.contains(&node.index()) {
            // getitem((another one, the object that a part of it has made), 1)
            self.budget.spend(8)?;
            writer
                .reduce()
                .global("operator", "getitem")
                .tuple(2)
                .tuple(2);
            self.write_new(node, value, writer, depth)?;
            if let Some((_, index)) = self.memo.get(node.index()) {
                writer.get(*index);
            }
            writer.end().i64(1).end().end();
            return Ok(());
        }
        self.write_new(node, value, writer, depth)
    }

    /// Writes a node that was not written yet.
    fn write_new(
        &mut self,
        node: Node<'t, 'p>,
        value: Value<'t, 'p>,
        writer: &mut Writer<'_, '_>,
        depth: usize,
    ) -> Result<(), GraphError> {
        let what = || unknown(node);
        match value {
            Value::None => writer.none(),
            Value::Bool(value) => writer.bool(value),
            Value::Int(value) => {
                match value {
                    Int::Big(value) => writer.int_bytes(value.as_bytes()),
                    value => writer.i64(value.to_i64().ok_or_else(what)?),
                };
                self.leaves.push((writer.len(), node));
                return Ok(());
            }
            Value::Float(value) => {
                writer.f64(value);
                self.leaves.push((writer.len(), node));
                return Ok(());
            }
            Value::Str(string) => {
                match string {
                    Str::Utf8(string) => writer.py_str(string),
                    string => writer.str_bytes(&string.to_bytes()),
                };
                self.leaves.push((writer.len(), node));
                self.memoize(node, writer);
                return Ok(());
            }
            Value::Bytes(data)
            | Value::Buffer {
                data,
                read_only: true,
                ..
            } => {
                writer.bytes(data);
                self.leaves.push((writer.len(), node));
                self.memoize(node, writer);
                return Ok(());
            }
            Value::ByteArray {
                data,
                read_only: false,
            }
            | Value::Buffer { data, .. } => {
                writer.bytearray(data);
                self.memoize(node, writer);
                return Ok(());
            }
            Value::List(items) => {
                writer.list(items.count_left());
                self.memoize(node, writer);
                self.write_all(items, writer, depth)?;
                writer.end();
                return Ok(());
            }
            Value::Set(items) => {
                writer.set(items.count_left());
                self.memoize(node, writer);
                self.write_all(items, writer, depth)?;
                writer.end();
                return Ok(());
            }
            Value::Dict(entries) => {
                writer.dict(entries.count_left());
                self.memoize(node, writer);
                self.write_entries(entries, writer, depth)?;
                writer.end();
                return Ok(());
            }
            Value::Tuple(items) => {
                let count = items.count_left();
                writer.tuple(count);
                self.write_all(items, writer, depth)?;
                writer.end();
                if count != 0 {
                    self.memoize_whole(node, writer);
                }
                return Ok(());
            }
            Value::FrozenSet(items) => {
                writer.frozenset(items.count_left());
                self.write_all(items, writer, depth)?;
                writer.end();
                self.memoize_whole(node, writer);
                return Ok(());
            }
            Value::Global(global) => {
                let module = global.module.as_str().ok_or_else(what)?;
                writer.global(module, global.name.as_str().ok_or_else(what)?);
                self.memoize(node, writer);
                return Ok(());
            }
            Value::Call { .. } | Value::New { .. } => return self.object(node, writer, depth),
            _ => return Err(what()),
        };
        Ok(())
    }

    /// Writes an object and the operations on it. The object may be a part of its
    /// own state, like recursive functions.
    fn object(
        &mut self,
        node: Node<'t, 'p>,
        writer: &mut Writer<'_, '_>,
        depth: usize,
    ) -> Result<(), GraphError> {
        let effects = self.effects.0.get(&node.index());
        if effects.is_some() {
            // getitem((object, results of calls...), 0): the object, after the
            // calls.
            writer.reduce().global("operator", "getitem").tuple(2);
            writer.tuple(effects.map_or(0, Vec::len) + 1);
        }
        self.object_alone(node, writer, depth)?;
        if let Some(effects) = effects {
            for call in effects {
                self.write_within(*call, writer, depth)?;
            }
            writer.end().i64(0).end().end();
        }
        Ok(())
    }

    fn object_alone(
        &mut self,
        node: Node<'t, 'p>,
        writer: &mut Writer<'_, '_>,
        depth: usize,
    ) -> Result<(), GraphError> {
        // Nearly all objects have one, their state.
        let mut operations = node.operations();
        let first = operations.next();
        let others: Vec<Operation<'t, 'p>> = operations.collect();
        // The last operation begins first, because it takes the results of the
        // others.
        for operation in others.iter().rev().chain(&first) {
            match operation {
                Operation::State(_) => writer.build(),
                Operation::Append(items) => writer.extend(items.count_left()),
                Operation::Set(entries) => writer.update(entries.count_left()),
                _ => {
                    return Err(unknown(node));
                }
            };
        }
        match node.value() {
            Value::Call {
                callable,
                arguments,
            } => {
                writer.reduce();
                self.write_within(callable, writer, depth)?;
                self.write_within(arguments, writer, depth)?;
            }
            Value::New {
                class,
                arguments,
                keywords,
            } => {
                match keywords {
                    None => writer.newobj(),
                    Some(_) => writer.newobj_ex(),
                };
                self.write_within(class, writer, depth)?;
                self.write_within(arguments, writer, depth)?;
                if let Some(keywords) = keywords {
                    self.write_within(keywords, writer, depth)?;
                }
            }
            _ => {}
        }
        writer.end();
        self.memoize_whole(node, writer);
        for operation in first.into_iter().chain(others) {
            match operation {
                Operation::State(state) => self.write_within(state.node(), writer, depth)?,
                Operation::Append(items) => self.write_all(items, writer, depth)?,
                Operation::Set(entries) => self.write_entries(entries, writer, depth)?,
                _ => {}
            }
            writer.end();
        }
        Ok(())
    }

    fn write_all(
        &mut self,
        nodes: impl Iterator<Item = Node<'t, 'p>>,
        writer: &mut Writer<'_, '_>,
        depth: usize,
    ) -> Result<(), GraphError> {
        for node in nodes {
            self.write_within(node, writer, depth)?;
        }
        Ok(())
    }

    fn write_entries(
        &mut self,
        entries: impl Iterator<Item = (Node<'t, 'p>, Node<'t, 'p>)>,
        writer: &mut Writer<'_, '_>,
        depth: usize,
    ) -> Result<(), GraphError> {
        for (key, value) in entries {
            self.write_within(key, writer, depth)?;
            self.write_within(value, writer, depth)?;
        }
        Ok(())
    }

    /// Memoizes an object that exists once its parts do, unless one of these has made it.
    fn memoize_whole(&mut self, node: Node<'t, 'p>, writer: &mut Writer<'_, '_>) {
        let made = self.memo.get(node.index());
        match made.is_some_and(|(number, _)| *number == self.number) {
            true => {
                self.recursive.insert(node.index());
            }
            false => self.memoize(node, writer),
        }
    }

    fn memoize(&mut self, node: Node<'t, 'p>, writer: &mut Writer<'_, '_>) {
        if let Some(entry) = self.memo.get_mut(node.index()) {
            *entry = (self.number, writer.memoize());
        }
    }
}
