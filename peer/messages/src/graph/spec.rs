//! Keys and Dask's classes of nodes in the pickle of a graph.

use daskwire_pickle::tree::{self, Global, Node, Operation};

use super::GraphError;
use super::error::unexpected;
use crate::Key;
use crate::value::Budget;

/// Dask's module of tasks.
pub(super) const SPEC: &str = "dask._task_spec";

/// The key that a node represents.
pub(super) fn key_of(node: Node<'_, '_>, budget: &Budget) -> Result<Key, GraphError> {
    key_within(node, budget, 16)
}

fn key_within(node: Node<'_, '_>, budget: &Budget, depth: usize) -> Result<Key, GraphError> {
    let wrong = || unexpected(node, "a key");
    let depth = depth.checked_sub(1).ok_or_else(wrong)?;
    budget.spend(1)?;
    Ok(match node.value() {
        tree::Value::Str(string) => {
            let string = string.to_str().ok_or_else(wrong)?;
            budget.spend_copy(string.len())?;
            Key::from(string.as_ref())
        }
        tree::Value::Int(value) => Key::from(value.to_i64().ok_or_else(wrong)?),
        tree::Value::Float(value) => Key::from(value),
        tree::Value::Bytes(data) => {
            budget.spend_copy(data.len())?;
            Key::from(data)
        }
        tree::Value::Tuple(items) => {
            let parts = items.map(|item| key_within(item, budget, depth));
            Key::list(parts.collect::<Result<Vec<Key>, _>>()?)
        }
        _ => return Err(wrong()),
    })
}

/// The key that a node represents, unless it is `None`.
pub(super) fn optional_key(node: Node<'_, '_>, budget: &Budget) -> Result<Option<Key>, GraphError> {
    match node.value() {
        tree::Value::None => Ok(None),
        _ => key_of(node, budget).map(Some),
    }
}

/// A node of a graph: its class, and its arguments or state.
pub(super) struct Spec<'t, 'p> {
    pub(super) class: &'static str,
    /// The arguments of the call, or the object's state.
    pub(super) parts: Vec<Node<'t, 'p>>,
    pub(super) is_state: bool,
}

const CLASSES: [&str; 8] = [
    "Task", "Alias", "TaskRef", "DataNode", "List", "Tuple", "Set", "Dict",
];

/// The class of a graph node, and the arguments of the call that makes it.
pub(super) fn class_of<'t, 'p>(node: Node<'t, 'p>) -> Option<(&'static str, Node<'t, 'p>)> {
    let (made_of, arguments) = match node.value() {
        tree::Value::Call {
            callable,
            arguments,
        } => (callable, arguments),
        tree::Value::New {
            class, arguments, ..
        } => (class, arguments),
        _ => return None,
    };
    let global: Global<'_> = made_of.as_global()?;
    let class = if global.module == *SPEC {
        CLASSES.into_iter().find(|name| global.name == **name)?
    } else if global.is("distributed.client", "Future") {
        // A future is a reference to its key; nothing else of it is pickled.
        "TaskRef"
    } else {
        return None;
    };
    Some((class, arguments))
}

pub(super) fn is_spec(node: Node<'_, '_>) -> bool {
    class_of(node).is_some()
}

/// Reads a node of a graph; `None` if it is something else.
pub(super) fn spec<'t, 'p>(
    node: Node<'t, 'p>,
    budget: &Budget,
) -> Result<Option<Spec<'t, 'p>>, GraphError> {
    let Some((class, arguments)) = class_of(node) else {
        return Ok(None);
    };
    let state = state_of(node, budget)?;
    let parts = state.unwrap_or(arguments).items();
    budget.spend(parts.count_left())?;
    if let Some(state) = state
        && let Some(parts) = named_slots(class, state)
    {
        return Ok(Some(Spec {
            class,
            parts,
            is_state: true,
        }));
    }
    Ok(Some(Spec {
        class,
        parts: parts.collect(),
        is_state: state.is_some(),
    }))
}

/// The parts of an object whose state is `(attributes, {slot: value})`, as up to
/// Dask 2025.2, in the order of a state without names.
// ROLES WORKER-2
fn named_slots<'t, 'p>(class: &str, state: Node<'t, 'p>) -> Option<Vec<Node<'t, 'p>>> {
    let [attributes, slots] = state.items().exactly()?;
    let is_dict = |node: Node<'_, '_>| matches!(node.value(), tree::Value::Dict(_));
    if !is_dict(slots) || !(attributes.is_none() || is_dict(attributes)) {
        return None;
    }
    // A placeholder for slots that are not needed.
    let none = attributes;
    let slot = |name: &str| slots.get(name).unwrap_or(none);
    Some(match class {
        "TaskRef" => vec![slot("key")],
        "Alias" => vec![slot("key"), slot("target")],
        "DataNode" => vec![slot("key"), slot("value")],
        "Task" => {
            let mut parts = vec![none; TASK_STATE];
            for (index, name) in [(5, "args"), (6, "func"), (7, "key"), (8, "kwargs")] {
                if let Some(part) = parts.get_mut(index) {
                    *part = slot(name);
                }
            }
            parts
        }
        _ => {
            let mut parts = vec![none; CONTAINER_STATE];
            if let Some(part) = parts.get_mut(5) {
                *part = slot("args");
            }
            parts
        }
    })
}

/// Whether a node's state has named slots.
pub(super) fn has_named_slots(node: Node<'_, '_>, budget: &Budget) -> Result<bool, GraphError> {
    let (Some((class, _)), Some(state)) = (class_of(node), state_of(node, budget)?) else {
        return Ok(false);
    };
    Ok(named_slots(class, state).is_some())
}

/// The state that is set on an object.
pub(super) fn state_of<'t, 'p>(
    node: Node<'t, 'p>,
    budget: &Budget,
) -> Result<Option<Node<'t, 'p>>, GraphError> {
    for operation in node.operations() {
        budget.spend(1)?;
        if let Operation::State(state) = operation {
            return Ok(Some(state.node()));
        }
    }
    Ok(None)
}

/// The slots in a task's state that Python pickles, in alphabetical order.
pub(super) const TASK_STATE: usize = 9;
pub(super) const CONTAINER_STATE: usize = 11;

pub(super) const NINE_SLOTS: &str = "a task with nine slots, as of Dask 2025.4 and later";
pub(super) const ELEVEN_SLOTS: &str = "a container with eleven slots";
