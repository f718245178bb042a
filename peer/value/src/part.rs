//! Parts of a pickle as pickles of their own.

use std::collections::{HashMap, HashSet};

use daskwire_pickle::tree::{self, Node, Operation, Tree};
use daskwire_pickle::{Mutability, PickleBuffer, Placement, Protocol, Writer};

use super::{Budget, ValueError};

/// A value in a tree that can be written as a pickle.
pub(super) struct Part<'t, 'p> {
    root: Node<'t, 'p>,
    /// The indices of nodes that occur more than once.
    repeated: Vec<usize>,
}

impl<'t, 'p> Part<'t, 'p> {
    /// The part with this node as its root; `None` if a pickle of it would have another
    /// value. `changed` are the nodes of [`changed_by_dropped_calls`].
    ///
    /// # Errors
    ///
    /// [`ValueError::TooLarge`] if the part has more nodes or bytes than the budget.
    pub(super) fn of(
        root: Node<'t, 'p>,
        changed: &HashSet<usize>,
        budget: &Budget,
    ) -> Result<Option<Self>, ValueError> {
        let mut seen: HashMap<usize, bool> = HashMap::new();
        let mut left = vec![root];
        while let Some(node) = left.pop() {
            budget.spend(1)?;
            if let Some(is_repeated) = seen.get_mut(&node.index()) {
                *is_repeated = true;
                continue;
            }
            seen.insert(node.index(), false);
            if changed.contains(&node.index()) {
                return Ok(None);
            }
            let len = match node.value() {
                tree::Value::Bytes(data)
                | tree::Value::ByteArray {
                    data,
                    read_only: false,
                } => data.len(),
                tree::Value::Str(string) => string.to_bytes().len(),
                tree::Value::Int(tree::Int::Big(number)) => number.as_bytes().len(),
                // Not written by Python 3, or not by a value alone.
                tree::Value::ByteString(_)
                | tree::Value::Extension(_)
                | tree::Value::Persistent(_)
                | tree::Value::PersistentLine(_)
                | tree::Value::Instance { .. }
                | tree::Value::InstanceOf { .. }
                | tree::Value::ReadOnly(_)
                | tree::Value::ByteArray {
                    read_only: true, ..
                } => return Ok(None),
                tree::Value::Int(number) if number.to_i128().is_none() => return Ok(None),
                tree::Value::Global(global) => {
                    match (global.module.to_str(), global.name.to_str()) {
                        (Some(module), Some(name)) => module.len().saturating_add(name.len()),
                        _ => return Ok(None),
                    }
                }
                _ => 0,
            };
            budget.spend_copy(len.saturating_add(NODE_LEN))?;
            let mut is_known = true;
            for_each_part(node, |part| left.push(part));
            for operation in node.operations() {
                is_known &= matches!(
                    operation,
                    Operation::Append(_) | Operation::Set(_) | Operation::State(_)
                );
            }
            if !is_known {
                return Ok(None);
            }
        }
        let repeated = seen.into_iter().filter(|(_, is_repeated)| *is_repeated);
        let repeated = repeated.map(|(index, _)| index).collect();
        Ok(Some(Self { root, repeated }))
    }

    /// Writes the part as the next value of a pickle. `place` gets each buffer and says
    /// whether it is out of band.
    ///
    /// # Errors
    ///
    /// [`ValueError::Unknown`] for an object that contains itself other than by its state
    /// or items.
    pub(super) fn write(
        &self,
        writer: &mut Writer<'_, '_>,
        protocol: Protocol,
        mut place: impl FnMut(PickleBuffer<'p>) -> Placement,
    ) -> Result<(), ValueError> {
        let new = self.repeated.iter().map(|index| (*index, Memo::New));
        let mut memo: HashMap<usize, Memo> = new.collect();
        let mut left = vec![Step::Value(self.root)];
        writer.end_complete();
        while let Some(step) = left.pop() {
            let node = match step {
                Step::Value(node) => node,
                Step::End(depth, memoized) => {
                    for _ in depth..writer.depth() {
                        writer.end();
                    }
                    if let Some(memo) = memoized.and_then(|index| memo.get_mut(&index)) {
                        *memo = Memo::Stored(writer.memoize());
                    }
                    continue;
                }
            };
            let index = node.index();
            match memo.get_mut(&index) {
                Some(Memo::Stored(stored)) => {
                    writer.get(*stored);
                    continue;
                }
                Some(Memo::Open) => {
                    let what = "an object that contains itself".to_owned();
                    return Err(ValueError::Unknown { what });
                }
                Some(memo) => *memo = Memo::Open,
                None => {}
            }
            let depth = writer.depth();
            let operations: Vec<Operation<'t, 'p>> = node.operations().collect();
            // The operations are written from the outside in.
            for operation in operations.iter().rev() {
                match operation {
                    Operation::Set(entries) => writer.update(entries.count_left()),
                    Operation::Append(items) | Operation::Add(items) => {
                        writer.extend(items.count_left())
                    }
                    _ => writer.build(),
                };
            }
            let mut open = writer.depth();
            let can_contain_itself = write_head(node, writer, protocol, &mut place);
            let mut memoized = memo.contains_key(&index).then_some(index);
            if can_contain_itself && memoized.take().is_some() {
                memo.insert(index, Memo::Stored(writer.memoize()));
            }
            let mut steps = Vec::new();
            for_each_operand(node, |part| steps.push(Step::Value(part)));
            steps.push(Step::End(open, memoized));
            for operation in operations {
                for_each_item(operation, |part| steps.push(Step::Value(part)));
                open = open.saturating_sub(1).max(depth);
                steps.push(Step::End(open, None));
            }
            left.extend(steps.into_iter().rev());
        }
        Ok(())
    }
}

/// The bytes of the opcodes of a value, at most.
const NODE_LEN: usize = 16;

/// Whether a node that occurs more than once is in the memo.
enum Memo {
    New,
    /// The value is incomplete and cannot be referenced yet.
    Open,
    Stored(u32),
}

/// A step of writing.
enum Step<'t, 'p> {
    Value(Node<'t, 'p>),
    /// Ends a value at this depth of the pickle, and memoizes it if it occurs again.
    End(usize, Option<usize>),
}

/// Writes a value without parts, or begins one with parts. Returns whether parts may
/// reference the value.
fn write_head<'p>(
    node: Node<'_, 'p>,
    writer: &mut Writer<'_, '_>,
    protocol: Protocol,
    place: &mut impl FnMut(PickleBuffer<'p>) -> Placement,
) -> bool {
    match node.value() {
        tree::Value::Bool(value) => writer.bool(value),
        tree::Value::Int(tree::Int::Big(number)) => writer.int_bytes(number.as_bytes()),
        tree::Value::Int(number) => writer.i128(number.to_i128().unwrap_or_default()),
        tree::Value::Float(value) => writer.f64(value),
        tree::Value::Str(string) => writer.str_bytes(&string.to_bytes()),
        tree::Value::Bytes(data) => writer.bytes(data),
        tree::Value::ByteArray { data, .. } => writer.bytearray(data),
        tree::Value::Buffer {
            data, read_only, ..
        } => {
            let mutability = match read_only {
                true => Mutability::ReadOnly,
                false => Mutability::Writable,
            };
            match protocol {
                Protocol::V4 if read_only => writer.bytes(data),
                Protocol::V4 => writer.bytearray(data),
                _ => writer.buffer(PickleBuffer::new(data, mutability), place),
            }
        }
        tree::Value::Global(global) => {
            let module = global.module.to_str().unwrap_or_default();
            writer.global(&module, &global.name.to_str().unwrap_or_default())
        }
        tree::Value::Tuple(items) => writer.tuple(items.count_left()),
        tree::Value::FrozenSet(items) => writer.frozenset(items.count_left()),
        tree::Value::List(items) => {
            writer.list(items.count_left());
            return true;
        }
        tree::Value::Set(items) => {
            writer.set(items.count_left());
            return true;
        }
        tree::Value::Dict(entries) => {
            writer.dict(entries.count_left());
            return true;
        }
        tree::Value::Call { .. } => writer.reduce(),
        tree::Value::New { keywords: None, .. } => writer.newobj(),
        tree::Value::New { .. } => writer.newobj_ex(),
        _ => writer.none(),
    };
    false
}

fn for_each_operand<'t, 'p>(node: Node<'t, 'p>, mut each: impl FnMut(Node<'t, 'p>)) {
    match node.value() {
        tree::Value::Tuple(items)
        | tree::Value::List(items)
        | tree::Value::Set(items)
        | tree::Value::FrozenSet(items) => items.for_each(each),
        tree::Value::Dict(entries) => entries.for_each(|(key, value)| {
            each(key);
            each(value);
        }),
        tree::Value::Call {
            callable: first,
            arguments,
        }
        | tree::Value::InstanceOf {
            class: first,
            arguments,
        } => [first, arguments].into_iter().for_each(each),
        tree::Value::New {
            class,
            arguments,
            keywords,
        } => [class, arguments]
            .into_iter()
            .chain(keywords)
            .for_each(each),
        tree::Value::Instance {
            arguments: inner, ..
        }
        | tree::Value::Persistent(inner)
        | tree::Value::ReadOnly(inner) => each(inner),
        _ => {}
    }
}

fn for_each_item<'t, 'p>(operation: Operation<'t, 'p>, mut each: impl FnMut(Node<'t, 'p>)) {
    match operation {
        Operation::Append(items) | Operation::Add(items) => items.for_each(each),
        Operation::Set(entries) => entries.for_each(|(key, value)| {
            each(key);
            each(value);
        }),
        Operation::State(state) => each(state.node()),
        _ => {}
    }
}

/// Visits all parts of a value.
fn for_each_part<'t, 'p>(node: Node<'t, 'p>, mut each: impl FnMut(Node<'t, 'p>)) {
    for_each_operand(node, &mut each);
    for operation in node.operations() {
        for_each_item(operation, &mut each);
    }
}

/// The nodes that calls change whose results the pickle drops: cloudpickle defines
/// functions and classes by such calls. A part with one of them needs the call, which is
/// not a part of it.
pub(super) fn changed_by_dropped_calls(tree: &Tree<'_>) -> HashSet<usize> {
    let mut is_used = vec![false; tree.value_count()];
    let mut left = vec![tree.root()];
    while let Some(node) = left.pop() {
        match is_used.get_mut(node.index()) {
            Some(is_used) if !*is_used => *is_used = true,
            _ => continue,
        }
        for_each_part(node, |part| left.push(part));
    }
    let mut changed = HashSet::new();
    for (node, is_used) in tree.nodes().zip(is_used) {
        if !is_used && node.is_object() {
            for_each_operand(node, |operand| {
                changed.insert(operand.index());
                for item in operand.items() {
                    changed.insert(item.index());
                }
            });
        }
    }
    changed
}
