//! The parts of a graph that a scheduler needs: keys, dependencies, and a `run_spec` for each
//! task, made of what the client wrote.

use std::collections::HashMap;
use std::sync::Arc;

use daskwire_pickle::Writer;
use daskwire_pickle::tree::{self, Node, Tree};

use super::annotations::Layers;
use super::copy::{Copier, Copy, Effects};
use super::depends::{Calls, Dependencies};
use super::expression::plan;
use super::families::Families;
use super::payload::{Bases, Payload};
use super::plan::{Call, Container, Converter, Part, Planned};
use super::read::native_name;
use super::spec::{SPEC, TASK_STATE, class_of};
use super::write::Names;
use super::{Graph, GraphError};
use crate::Key;
use crate::key::identifier;
use crate::value::{Budget, Serialized, TreeReader, Value};

/// The minimum budget of values and bytes, however short the pickle is. Each task is
/// copied with everything that it refers to, so what several tasks share is counted for
/// each of them.
const SHARED: (usize, usize) = (1 << 20, 1 << 28);

/// Length in bytes from which an object that several tasks refer to is a task of its own.
pub(super) const LARGE: usize = 32 << 10;

/// The part of a task that a scheduler needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// The key of the task.
    pub key: Key,
    /// The keys that the task depends on, sorted.
    pub dependencies: Vec<Key>,
    /// The functions that the task calls.
    pub calls: Calls,
    /// The pickle of the task, for workers.
    pub run_spec: Payload,
    /// The annotations of the task's layer, a dictionary.
    pub annotations: Option<Arc<Value>>,
    /// Whether the client does not know the task: other tasks share its value.
    pub is_shared: bool,
}

impl Graph {
    /// Reads the parts of a graph that a scheduler needs: for each task its key, its
    /// dependencies, each once, and the `run_spec` for a worker, copied as the client
    /// wrote it. With `wanted`, tasks that these keys do not need are left out, and the keys are sorted in
    /// the order of the tasks; those of no task come last.
    ///
    /// Large objects that several tasks refer to become tasks of their own, after the others.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and if a task cannot be copied.
    pub fn read_outline(
        expression: &Serialized,
        wanted: Option<&mut Vec<Key>>,
    ) -> Result<Vec<Outline>, GraphError> {
        Self::read_outline_in(expression, wanted, true)
    }

    /// As [`read_outline`](Self::read_outline). Tests compare it with and without families of tasks.
    pub(super) fn read_outline_in(
        expression: &Serialized,
        wanted: Option<&mut Vec<Key>>,
        has_families: bool,
    ) -> Result<Vec<Outline>, GraphError> {
        let (pickle, buffers) = expression.pickle()?;
        let tree = Tree::with_buffers(&pickle, &buffers)?;
        let len = buffers.iter().map(bytes::Bytes::len).sum::<usize>();
        let len = len.saturating_add(pickle.len());
        let own = TreeReader::new(&pickle, &buffers)
            .input_len()
            .saturating_mul(16);
        let (values, bytes) = SHARED;
        let budget = Budget::new(own.saturating_add(values), own.saturating_add(bytes));
        let effects = Effects::of(&tree, &pickle);
        let mut families = match has_families {
            true => Families::new(&effects),
            false => Families::default(),
        };
        let mut converter = Converter::new(&tree, &budget);
        let plan = plan(tree.root(), &mut converter, &mut families, &budget)?;
        let index = plan.index;
        let values = TreeReader::new(&pickle, &buffers);
        let mut layers = Layers::new(&values, &budget);
        let annotations = plan.annotations.iter().map(|node| layers.layer(*node));
        let annotations = annotations.collect::<Result<Vec<_>, _>>()?;
        let mut dependencies = Dependencies::new(&tree);
        let mut tasks = Vec::with_capacity(plan.tasks.len());
        for task in plan.tasks {
            let (keys, calls) = match (&task.work, task.family) {
                (Part::Node(node), Some(family)) => {
                    families.dependencies(family, *node, &mut dependencies, &budget)?
                }
                _ => dependencies.of_part(&task.work, &budget)?,
            };
            tasks.push((task, keys, calls));
        }
        if let Some(wanted) = wanted {
            cull(&mut tasks, &index, wanted);
        }
        let mut copier = Copier::new(&tree);
        let shared = match len >= LARGE {
            true => share(&mut tasks, &mut families, &mut copier, &effects, &budget)?,
            false => Shared::new(),
        };
        let mut bases = Bases::default();
        let mut alike = Vec::new();
        let outlines = tasks.into_iter().map(|(task, mut dependencies, calls)| {
            if !shared.is_empty() {
                task.work.push_shared(&shared, &mut dependencies);
                dependencies.sort_unstable();
                dependencies.dedup();
            }
            let is_copied = match (&task.work, task.family) {
                (Part::Node(node), Some(family)) => {
                    let copying = (&mut copier, &effects);
                    families.copy(family, *node, copying, &budget, &mut alike)?
                }
                _ => false,
            };
            let pickle = match is_copied {
                true => &alike,
                false => copier.write(&effects, &budget, |copy, writer| {
                    let names = Names::default();
                    let mut output = Output {
                        copy,
                        names,
                        shared: &shared,
                    };
                    output.task(&task, &dependencies, writer)
                })?,
            };
            let layer = task.layer.and_then(|layer| annotations.get(layer));
            let annotations = layer.map(|layer| layers.of_task(layer, &task.key));
            let annotations = annotations.transpose()?;
            Ok(Outline {
                run_spec: bases.payload(pickle),
                key: task.key,
                calls,
                dependencies,
                annotations,
                is_shared: false,
            })
        });
        let mut outlines = outlines.collect::<Result<Vec<_>, GraphError>>()?;
        let mut shared: Vec<_> = shared.into_values().collect();
        shared.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        outlines.extend(shared.into_iter().map(|(key, run_spec)| Outline {
            key,
            run_spec: run_spec.into(),
            dependencies: Vec::new(),
            calls: Calls::default(),
            annotations: None,
            is_shared: true,
        }));
        Ok(outlines)
    }
}

type Tasks<'t, 'p> = Vec<(Planned<'t, 'p>, Vec<Key>, Calls)>;

/// Sorts the wanted keys, and removes the tasks that they do not need. `index` has the places of the tasks.
// ROLES SCHEDULER-7
fn cull(tasks: &mut Tasks<'_, '_>, index: &HashMap<Key, usize>, wanted: &mut Vec<Key>) {
    let place = |key: Key| (index.get(&key).copied().unwrap_or(usize::MAX), key);
    let mut placed: Vec<(usize, Key)> = wanted.drain(..).map(place).collect();
    placed.sort_by_key(|(place, _)| *place);
    let mut left: Vec<usize> = placed.iter().map(|(place, _)| *place).collect();
    wanted.extend(placed.into_iter().map(|(_, key)| key));
    let mut is_needed = vec![false; tasks.len()];
    while let Some(place) = left.pop() {
        if let Some(is_needed) = is_needed.get_mut(place)
            && !core::mem::replace(is_needed, true)
        {
            let keys = tasks[place].1.iter();
            left.extend(keys.filter_map(|key| index.get(key)));
        }
    }
    let mut is_needed = is_needed.into_iter();
    tasks.retain(|_| is_needed.next() == Some(true));
}

/// The objects that tasks share, by their number in the pickle: their keys and tasks.
type Shared = HashMap<usize, (Key, Serialized)>;

/// Finds the large objects that several tasks refer to.
// ROLES SCHEDULER-9
fn share<'t, 'p>(
    tasks: &mut Tasks<'t, 'p>,
    families: &mut Families<'t, 'p>,
    copier: &mut Copier<'t, 'p>,
    effects: &Effects<'t, 'p>,
    budget: &Budget,
) -> Result<Shared, GraphError> {
    // The search among those that were seen is quadratic.
    const MAX_SEEN: usize = 64;
    let mut uses: HashMap<usize, (Node<'t, 'p>, usize)> = HashMap::new();
    let mut seen = Vec::new();
    for (task, ..) in &*tasks {
        seen.clear();
        let mut count = |node: Node<'t, 'p>| {
            if seen.len() < MAX_SEEN && is_shareable(node) && !seen.contains(&node.index()) {
                seen.push(node.index());
                uses.entry(node.index()).or_insert((node, 0)).1 += 1;
            }
        };
        match (&task.work, task.family) {
            (Part::Node(node), Some(family)) => {
                families.shareable(family, *node, budget)?.for_each(count);
            }
            _ => task.work.visit_called(budget, &mut count)?,
        }
    }
    let mut shared = Shared::new();
    for (index, (node, count)) in uses {
        if count < 2 {
            continue;
        }
        let key = Key::from(format!("shared-{}", identifier()));
        let pickle = copier.write(effects, budget, |copy, writer| {
            writer.reduce().global(SPEC, "DataNode").tuple(2);
            key.pickle(writer);
            copy.write(node, writer)
        })?;
        if pickle.len() >= LARGE {
            shared.insert(index, (key, Serialized::pickled(pickle)));
        }
    }
    if shared.is_empty() {
        return Ok(shared);
    }
    for (task, ..) in tasks {
        let mut has_shared = false;
        let visit = |node: Node<'_, '_>| has_shared |= shared.contains_key(&node.index());
        match (&task.work, task.family) {
            (Part::Node(node), Some(family)) => {
                families.shareable(family, *node, budget)?.for_each(visit);
            }
            _ => task.work.visit_called(budget, visit)?,
        }
        if has_shared && let Some(call) = task.work.called(budget)? {
            task.work = Part::Call(Box::new(call));
            task.family = None;
        }
    }
    Ok(shared)
}

/// Whether a part of a call can be a task of its own, and may be large.
pub(super) fn is_shareable(node: Node<'_, '_>) -> bool {
    let may_be_large = match node.value() {
        tree::Value::Str(string) => string.to_bytes().len() >= LARGE,
        tree::Value::Bytes(data) | tree::Value::ByteArray { data, .. } => data.len() >= LARGE,
        tree::Value::List(_)
        | tree::Value::Tuple(_)
        | tree::Value::Set(_)
        | tree::Value::FrozenSet(_)
        | tree::Value::Dict(_)
        | tree::Value::Buffer { .. }
        | tree::Value::Call { .. }
        | tree::Value::New { .. } => true,
        _ => false,
    };
    may_be_large && class_of(node).is_none() && native_name(node).is_none()
}

impl<'t, 'p> Call<'t, 'p> {
    /// The parts that are copied.
    pub(super) fn parts(&self) -> impl Iterator<Item = Node<'t, 'p>> {
        let keywords = self.keywords.iter().map(|(_, value)| value);
        let parts = self.arguments.iter().chain(keywords);
        let nodes = parts.filter_map(|part| match part {
            Part::Node(node) => Some(*node),
            _ => None,
        });
        core::iter::once(self.function).chain(nodes)
    }
}

impl Part<'_, '_> {
    /// Adds the keys of the shared objects that a task refers to.
    fn push_shared(&self, shared: &Shared, keys: &mut Vec<Key>) {
        if let Self::Call(call) = self {
            let found = call.parts().filter_map(|node| shared.get(&node.index()));
            keys.extend(found.map(|(key, _)| key.clone()));
        }
    }
}

/// An expression for `eval` that calls a shared function. It can be pickled for tasks that a worker
/// runs in other processes, as a function of its own could not.
///
/// A worker of Dask sees from a task's function whether that is a coroutine function, but a shared one is
/// known only when the task runs. Workers in Rust await what a task returns.
const CALL: &str = "(lambda result: \
    __import__('distributed.utils').utils.sync(\
    __import__('distributed').get_worker().loop, lambda: result) \
    if __import__('inspect').iscoroutine(result) \
    and not type(__import__('distributed').get_worker()).__module__.startswith('daskwire') \
    else result)(function(*arguments, **keywords))";

/// Writes tasks.
struct Output<'o, 'c, 't, 'p> {
    copy: &'o mut Copy<'c, 't, 'p>,
    names: Names<'static>,
    shared: &'o Shared,
}

impl<'t, 'p> Output<'_, '_, 't, 'p> {
    fn task(
        &mut self,
        task: &Planned<'t, 'p>,
        dependencies: &[Key],
        writer: &mut Writer<'_, '_>,
    ) -> Result<(), GraphError> {
        match &task.work {
            Part::Node(node) if class_of(*node).is_some() => self.copy.write(*node, writer),
            Part::Result(target) => {
                self.class("Alias", 2, writer);
                task.key.pickle(writer);
                target.pickle(writer);
                Ok(())
            }
            Part::Container(container, items) => {
                // As `convert_legacy_task` makes it.
                self.state(dependencies, writer);
                writer.tuple(items.len());
                for item in items {
                    self.part(item, writer)?;
                }
                self.names.write(writer, SPEC, "_identity_cast");
                task.key.pickle(writer);
                writer.dict(1).str("typ");
                let (_, class) = container.classes();
                self.names.write(writer, "builtins", class);
                Ok(())
            }
            Part::Call(call) if self.is_shared(call.function) => {
                // eval(CALL, {"function": .., "arguments": [..], "keywords": {..}})
                self.class("Task", 4, writer);
                task.key.pickle(writer);
                self.names.write(writer, "builtins", "eval");
                writer.str(CALL);
                self.class("Dict", 1, writer);
                writer.dict(3).str("function");
                self.node(call.function, writer)?;
                writer.str("arguments");
                self.class("List", 1, writer);
                writer.list(call.arguments.len());
                self.parts(&call.arguments, writer)?;
                writer.str("keywords");
                self.class("Dict", 1, writer);
                self.keywords(call, writer)
            }
            Part::Call(call) if !call.keywords.is_empty() => {
                self.state(dependencies, writer);
                writer.tuple(call.arguments.len());
                self.parts(&call.arguments, writer)?;
                self.node(call.function, writer)?;
                task.key.pickle(writer);
                self.keywords(call, writer)
            }
            Part::Call(call) => self.call(Some(&task.key), call, writer),
            work => {
                self.class("DataNode", 2, writer);
                task.key.pickle(writer);
                self.part(work, writer)
            }
        }
    }

    /// Begins a node of Dask's classes with this many arguments.
    fn class(&mut self, class: &'static str, count: usize, writer: &mut Writer<'_, '_>) {
        writer.reduce();
        self.names.write(writer, SPEC, class);
        writer.tuple(count);
    }

    /// Writes a reference. In the state of a task, Dask 2025.4 knows no `TaskRef`.
    fn reference(&mut self, key: &Key, writer: &mut Writer<'_, '_>) {
        self.class("Alias", 1, writer);
        key.pickle(writer);
    }

    /// Begins a task in the form that Python writes, up to the arguments, the function, the key
    /// and the keyword arguments.
    fn state(&mut self, dependencies: &[Key], writer: &mut Writer<'_, '_>) {
        writer.build().newobj();
        self.names.write(writer, SPEC, "Task");
        writer.tuple(0).tuple(TASK_STATE).bool(false);
        writer.frozenset(dependencies.len());
        dependencies.iter().for_each(|key| key.pickle(writer));
        writer.none().none().none();
    }

    fn call(
        &mut self,
        key: Option<&Key>,
        call: &Call<'t, 'p>,
        writer: &mut Writer<'_, '_>,
    ) -> Result<(), GraphError> {
        self.class("Task", call.arguments.len() + 2, writer);
        match key {
            Some(key) => key.pickle(writer),
            None => {
                writer.none();
            }
        }
        self.node(call.function, writer)?;
        self.parts(&call.arguments, writer)
    }

    fn keywords(
        &mut self,
        call: &Call<'t, 'p>,
        writer: &mut Writer<'_, '_>,
    ) -> Result<(), GraphError> {
        writer.dict(call.keywords.len());
        for (name, value) in call.keywords.iter() {
            self.copy.write(*name, writer)?;
            self.part(value, writer)?;
        }
        Ok(())
    }

    fn parts(
        &mut self,
        parts: &[Part<'t, 'p>],
        writer: &mut Writer<'_, '_>,
    ) -> Result<(), GraphError> {
        parts.iter().try_for_each(|part| self.part(part, writer))
    }

    fn part(&mut self, part: &Part<'t, 'p>, writer: &mut Writer<'_, '_>) -> Result<(), GraphError> {
        match part {
            Part::Node(node) => self.node(*node, writer),
            Part::Result(key) => {
                self.reference(key, writer);
                Ok(())
            }
            Part::Int(value) => {
                writer.i64(*value);
                Ok(())
            }
            Part::Char(value) => {
                writer.str(value.encode_utf8(&mut [0; 4]));
                Ok(())
            }
            Part::Container(container, items) => match container.classes() {
                // An item of a set may be a node of Dask, which has no hash. A single item is
                // not a set.
                (Some(class), _) if *container == Container::Set => {
                    self.class(class, items.len(), writer);
                    self.parts(items, writer)
                }
                (Some(class), _) => {
                    self.class(class, 1, writer);
                    match container {
                        Container::Tuple => writer.tuple(items.len()),
                        _ => writer.list(items.len()),
                    };
                    self.parts(items, writer)
                }
                (None, class) => {
                    self.class("Task", 3, writer);
                    writer.none();
                    self.names.write(writer, "builtins", class);
                    self.class("List", 1, writer);
                    writer.list(items.len());
                    self.parts(items, writer)
                }
            },
            Part::Dict(entries) => {
                self.class("Dict", 1, writer);
                writer.dict(entries.len());
                for (key, value) in entries {
                    self.copy.write(*key, writer)?;
                    self.part(value, writer)?;
                }
                Ok(())
            }
            Part::Call(call) => self.call(None, call, writer),
        }
    }

    fn is_shared(&self, node: Node<'_, '_>) -> bool {
        self.shared.contains_key(&node.index())
    }

    /// Writes a part of the pickle, or a reference to it.
    fn node(&mut self, node: Node<'t, 'p>, writer: &mut Writer<'_, '_>) -> Result<(), GraphError> {
        match self.shared.get(&node.index()) {
            Some((key, _)) => {
                self.reference(key, writer);
                Ok(())
            }
            None => self.copy.write(node, writer),
        }
    }
}
