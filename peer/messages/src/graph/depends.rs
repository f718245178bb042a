//! Reads the dependencies of tasks, and the kinds of functions that they call, from a graph
//! without converting its values.

use daskwire_pickle::tree::{self, Node, Tree};

use super::GraphError;
use super::error::unexpected;
use super::plan::Part;
use super::read::{
    DEPTH, is_container, native_name, native_with_keywords, replaced_by, target_node,
};
use super::spec::{CONTAINER_STATE, ELEVEN_SLOTS, NINE_SLOTS, SPEC, key_of, spec, state_of};
use crate::Key;
use crate::value::Budget;

/// The kinds of functions that a task calls. A task that calls none of these, such as one that
/// is a value, runs on any worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Calls {
    /// Functions of workers in Rust, `native:NAME`.
    pub native: bool,
    /// Functions of Python.
    pub python: bool,
    /// Functions of Python that a worker in Rust may replace by its own.
    pub replaceable: bool,
}

/// Finds the keys that tasks of one graph depend on, and what the tasks call.
#[derive(Debug)]
pub(super) struct Dependencies<'t, 'p> {
    /// For each node, the number of the task that it was last visited for. A node
    /// that a task refers to repeatedly is visited once.
    visited: Vec<u32>,
    task_number: u32,
    /// The nodes with the keys that the last task depends on, apart from [`Part::Result`].
    pub(super) targets: Vec<Node<'t, 'p>>,
}

impl<'t, 'p: 't> Dependencies<'t, 'p> {
    pub(super) fn new(tree: &Tree<'_>) -> Self {
        Self {
            visited: vec![0; tree.nodes().len()],
            task_number: 0,
            targets: Vec::new(),
        }
    }

    /// The keys that a task depends on, each once, in order; the same as
    /// [`Task::dependencies`](super::Task::dependencies). And what the task calls.
    pub(super) fn of_part(
        &mut self,
        part: &Part<'t, 'p>,
        budget: &Budget,
    ) -> Result<(Vec<Key>, Calls), GraphError> {
        self.task_number = self.task_number.wrapping_add(1);
        self.targets.clear();
        let mut walk = Walk {
            dependencies: self,
            budget,
            keys: Vec::new(),
            calls: Calls::default(),
            inner: Vec::new(),
        };
        walk.visit_part(part, DEPTH)?;
        let mut keys = core::mem::take(&mut walk.keys);
        // Last, since a part of a fused task may also be a part of the task around it.
        while let Some((task, depth)) = walk.inner.pop() {
            walk.visit(task, depth)?;
        }
        let calls = walk.calls;
        keys.sort_unstable();
        keys.dedup();
        Ok((keys, calls))
    }
}

struct Walk<'w, 't, 'p> {
    dependencies: &'w mut Dependencies<'t, 'p>,
    budget: &'w Budget,
    keys: Vec<Key>,
    calls: Calls,
    /// The tasks within fused ones, which get their inputs from the arguments of these, and what is
    /// left of the depth.
    inner: Vec<(Node<'t, 'p>, usize)>,
}

impl<'t, 'p: 't> Walk<'_, 't, 'p> {
    /// Whether a node is visited for the first time.
    fn is_new(&mut self, node: Node<'_, '_>) -> Result<bool, GraphError> {
        self.budget.spend(1)?;
        let Dependencies {
            visited,
            task_number,
            ..
        } = &mut *self.dependencies;
        let last = visited.get_mut(node.index());
        Ok(last.is_some_and(|last| core::mem::replace(last, *task_number) != *task_number))
    }

    fn visit_part(&mut self, part: &Part<'t, 'p>, depth: usize) -> Result<(), GraphError> {
        self.budget.spend(1)?;
        // The parts were made with bounded depth.
        match part {
            Part::Node(node) => self.visit(*node, depth),
            Part::Result(key) => {
                self.keys.push(key.clone());
                self.budget.spend_copy(key.as_msgpack().len())?;
                Ok(())
            }
            Part::Int(_) | Part::Char(_) => Ok(()),
            Part::Container(_, items) => {
                let mut items = items.iter();
                items.try_for_each(|item| self.visit_part(item, depth))
            }
            Part::Dict(entries) => {
                let mut values = entries.iter().map(|(_, value)| value);
                values.try_for_each(|value| self.visit_part(value, depth))
            }
            Part::Call(call) => {
                let keywords = call.keywords.iter().map(|(_, value)| value);
                let mut parts = call.arguments.iter().chain(keywords);
                parts.try_for_each(|part| self.visit_part(part, depth))?;
                let nodes = call.arguments.iter().filter_map(|part| match part {
                    Part::Node(node) => Some(*node),
                    _ => None,
                });
                self.visit_call(call.function, nodes, depth)
            }
        }
    }

    fn visit(&mut self, node: Node<'t, 'p>, depth: usize) -> Result<(), GraphError> {
        let depth = depth
            .checked_sub(1)
            .ok_or_else(|| unexpected(node, "fewer levels of arguments"))?;
        // A node may be a value in one place and a partial function in another;
        // it is not visited as a function here.
        let Some(spec) = spec(node, self.budget)? else {
            return Ok(());
        };
        if !self.is_new(node)? {
            return Ok(());
        }
        match (spec.class, spec.parts.as_slice()) {
            ("TaskRef" | "Alias", _) => {
                let target = target_node(node, &spec, self.budget)?;
                self.dependencies.targets.push(target);
                self.keys.push(key_of(target, self.budget)?);
                Ok(())
            }
            ("DataNode", [.., value]) => self.visit(*value, depth),
            ("Task", parts) if spec.is_state => {
                let [_, _, _, _, _, args, func, _, kwargs] = parts else {
                    return Err(unexpected(node, NINE_SLOTS));
                };
                self.visit_all(args.items(), depth)?;
                self.visit_call(*func, args.items(), depth)?;
                self.visit_all(kwargs.entries().map(|(_, value)| value), depth)
            }
            ("Task", [_, func, args @ ..]) => {
                self.visit_call(*func, args.iter().copied(), depth)?;
                self.visit_all(args.iter().copied(), depth)
            }
            ("Task", _) => Err(unexpected(node, "a key and a function")),
            (_, parts) if spec.is_state => {
                let args = parts.get(5).filter(|_| parts.len() == CONTAINER_STATE);
                let args = args.ok_or_else(|| unexpected(node, ELEVEN_SLOTS))?;
                self.visit_all(args.items(), depth)
            }
            ("Dict", [only]) => {
                let entries = only.entries().flat_map(|(key, value)| [key, value]);
                self.visit_all(entries, depth)
            }
            (class, [only]) if is_container(*only, class) => self.visit_all(only.items(), depth),
            (_, parts) => self.visit_all(parts.iter().copied(), depth),
        }
    }

    fn visit_all(
        &mut self,
        mut nodes: impl Iterator<Item = Node<'t, 'p>>,
        depth: usize,
    ) -> Result<(), GraphError> {
        nodes.try_for_each(|node| self.visit(node, depth))
    }

    /// Visits the function of a task. Functions of Dask that call another function, or run
    /// tasks, have it among their arguments.
    fn visit_call(
        &mut self,
        func: Node<'t, 'p>,
        mut args: impl Iterator<Item = Node<'t, 'p>>,
        depth: usize,
    ) -> Result<(), GraphError> {
        let global = func.as_global();
        let is = |module, name| global.is_some_and(|global| global.is(module, name));
        if is("dask.utils", "apply") {
            return match args.next() {
                Some(called) => self.visit_function(called, depth),
                None => Ok(()),
            };
        }
        if is(SPEC, "_execute_subgraph") {
            let inner = args.next().into_iter().flat_map(|inner| inner.entries());
            self.inner.extend(inner.map(|(_, task)| (task, depth)));
            return Ok(());
        }
        if is(SPEC, "_identity_cast") {
            return Ok(());
        }
        self.visit_function(func, depth)
    }

    /// Visits a function, and the arguments of a `functools.partial`, also of nested ones.
    fn visit_function(&mut self, function: Node<'t, 'p>, depth: usize) -> Result<(), GraphError> {
        let depth = depth
            .checked_sub(1)
            .ok_or_else(|| unexpected(function, "fewer levels of functions"))?;
        // Those that need a closer look are objects.
        if function.as_global().is_some() {
            self.calls.python = true;
            return Ok(());
        }
        if native_name(function).is_some() {
            self.calls.native = true;
            return Ok(());
        }
        if let Some((_, keywords)) = native_with_keywords(function, self.budget)? {
            self.calls.native = true;
            return match self.is_new(function)? {
                true => self.visit_all(keywords.entries().map(|(_, value)| value), depth),
                false => Ok(()),
            };
        }
        let is_partial = match function.value() {
            tree::Value::Call { callable, .. } => callable
                .as_global()
                .is_some_and(|global| global.is("functools", "partial")),
            _ => false,
        };
        let state = match is_partial {
            true => state_of(function, self.budget)?,
            false => None,
        };
        let state = state.and_then(|state| state.items().exactly());
        let Some([inner, arguments, keywords, attributes]) = state else {
            self.calls.python = true;
            return Ok(());
        };
        let is_empty = arguments.items().next().is_none() && keywords.entries().next().is_none();
        if is_empty && replaced_by(attributes).is_some() {
            self.calls.replaceable = true;
            return Ok(());
        }
        if !self.is_new(function)? {
            return Ok(());
        }
        self.visit_all(arguments.items(), depth)?;
        self.visit_all(keywords.entries().map(|(_, value)| value), depth)?;
        self.visit_function(inner, depth)
    }
}
