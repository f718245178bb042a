//! Reads the dependencies of tasks from a graph without converting its values.

use daskwire_pickle::tree::{self, Node, Tree};

use super::GraphError;
use super::error::unexpected;
use super::read::{DEPTH, is_container, target};
use super::spec::{CONTAINER_STATE, ELEVEN_SLOTS, NINE_SLOTS, spec, state_of};
use crate::Key;
use crate::value::Budget;

/// Finds the keys that tasks of one graph depend on.
#[derive(Debug)]
pub(super) struct Dependencies {
    /// For each node, the number of the task that it was last visited for. A node
    /// that a task refers to repeatedly is visited once.
    visited: Vec<u32>,
    task_number: u32,
}

impl Dependencies {
    pub(super) fn new(tree: &Tree<'_>) -> Self {
        Self {
            visited: vec![0; tree.nodes().len()],
            task_number: 0,
        }
    }

    /// The keys that a task depends on, each once, in order; the same as
    /// [`Task::dependencies`](super::Task::dependencies).
    pub(super) fn of_task(
        &mut self,
        node: Node<'_, '_>,
        budget: &Budget,
    ) -> Result<Vec<Key>, GraphError> {
        self.task_number = self.task_number.wrapping_add(1);
        let mut walk = Walk {
            dependencies: self,
            budget,
            keys: Vec::new(),
        };
        walk.visit(node, DEPTH)?;
        let mut keys = walk.keys;
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }
}

struct Walk<'w> {
    dependencies: &'w mut Dependencies,
    budget: &'w Budget,
    keys: Vec<Key>,
}

impl Walk<'_> {
    /// Whether a node is visited for the first time.
    fn is_new(&mut self, node: Node<'_, '_>) -> Result<bool, GraphError> {
        self.budget.spend(1)?;
        let Dependencies {
            visited,
            task_number,
        } = &mut *self.dependencies;
        let last = visited.get_mut(node.index());
        Ok(last.is_some_and(|last| core::mem::replace(last, *task_number) != *task_number))
    }

    fn visit(&mut self, node: Node<'_, '_>, depth: usize) -> Result<(), GraphError> {
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
                self.keys.push(target(node, &spec, self.budget)?);
                Ok(())
            }
            ("DataNode", [.., value]) => self.visit(*value, depth),
            ("Task", parts) if spec.is_state => {
                let [_, _, _, _, _, args, func, _, kwargs] = parts else {
                    return Err(unexpected(node, NINE_SLOTS));
                };
                self.visit_all(args.items(), depth)?;
                self.visit_function(*func, depth)?;
                self.visit_all(kwargs.entries().map(|(_, value)| value), depth)
            }
            ("Task", [_, func, args @ ..]) => {
                self.visit_function(*func, depth)?;
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

    fn visit_all<'t, 'p: 't>(
        &mut self,
        mut nodes: impl Iterator<Item = Node<'t, 'p>>,
        depth: usize,
    ) -> Result<(), GraphError> {
        nodes.try_for_each(|node| self.visit(node, depth))
    }

    /// Visits the arguments of a `functools.partial`, also of nested ones.
    fn visit_function(&mut self, function: Node<'_, '_>, depth: usize) -> Result<(), GraphError> {
        let depth = depth
            .checked_sub(1)
            .ok_or_else(|| unexpected(function, "fewer levels of functions"))?;
        let is_partial = match function.value() {
            tree::Value::Call { callable, .. } => callable
                .as_global()
                .is_some_and(|global| global.is("functools", "partial")),
            _ => false,
        };
        if !is_partial || !self.is_new(function)? {
            return Ok(());
        }
        let state = state_of(function, self.budget)?;
        let state = state.and_then(|state| state.items().exactly());
        let Some([inner, arguments, keywords, _]) = state else {
            return Ok(());
        };
        self.visit_all(arguments.items(), depth)?;
        self.visit_all(keywords.entries().map(|(_, value)| value), depth)?;
        self.visit_function(inner, depth)
    }
}
