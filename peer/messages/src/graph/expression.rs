//! Finds the tasks in expressions of Dask's clients.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

use daskwire_pickle::tree::{self, Node};

use super::GraphError;
use super::error::unexpected;
use super::families::Families;
use super::plan::{Call, Converter, GraphKeys, Part, Planned, Rules};
use super::spec::{key_of, state_of};
use crate::Key;
use crate::value::{Budget, describe};

/// The tasks of an expression, and the annotations of its layers.
#[derive(Debug, Default)]
pub(super) struct Plan<'t, 'p> {
    pub(super) tasks: Vec<Planned<'t, 'p>>,
    /// The annotations of layers: dictionaries.
    pub(super) annotations: Vec<Node<'t, 'p>>,
    /// The places of the tasks by their keys.
    pub(super) index: HashMap<Key, usize>,
}

impl Plan<'_, '_> {
    /// Keeps the last of the tasks with the same key, in the place of the first, as Dask does,
    /// which merges dictionaries. A layer of `delayed` also has the tasks of its arguments.
    // ROLES SCHEDULER-6
    fn merge(&mut self) {
        let mut index = HashMap::with_capacity(self.tasks.len());
        let mut merged: Vec<Planned<'_, '_>> = Vec::with_capacity(self.tasks.len());
        for task in core::mem::take(&mut self.tasks) {
            match index.entry(task.key.clone()) {
                Entry::Occupied(place) => merged[*place.get()] = task,
                Entry::Vacant(place) => {
                    place.insert(merged.len());
                    merged.push(task);
                }
            }
        }
        self.tasks = merged;
        self.index = index;
    }
}

/// Finds the tasks of an expression.
///
/// # Errors
///
/// For expressions that only Python can convert to tasks.
// ROLES SCHEDULER-3
pub(super) fn plan<'t, 'p>(
    root: Node<'t, 'p>,
    converter: &mut Converter<'_>,
    families: &mut Families<'t, 'p>,
    budget: &Budget,
) -> Result<Plan<'t, 'p>, GraphError> {
    let mut reader = Reader {
        graphs: Vec::new(),
        plan: Plan::default(),
        converter,
        budget,
    };
    reader.expression(root, 8)?;
    let Reader {
        graphs,
        mut plan,
        converter,
        ..
    } = reader;
    let keys = GraphKeys::new(graphs.iter().map(|(graph, _)| *graph).collect());
    for (graph, layer) in &graphs {
        for (key, node) in graph.entries() {
            let family = families.find(node, budget)?;
            let planned = Planned {
                key: key_of(key, budget)?,
                work: match family {
                    Some(_) => Part::Node(node),
                    None => converter.convert(node, Rules::Legacy(&keys))?,
                },
                layer: *layer,
                family,
            };
            // ROLES SCHEDULER-5
            if family.is_some() || !planned.work.is_alias_of(&planned.key, budget)? {
                plan.tasks.push(planned);
            }
        }
    }
    plan.merge();
    Ok(plan)
}

struct Reader<'r, 'b, 't, 'p> {
    /// The graphs, dictionaries, each with the number of its layer's annotations.
    graphs: Vec<(Node<'t, 'p>, Option<usize>)>,
    plan: Plan<'t, 'p>,
    converter: &'r mut Converter<'b>,
    budget: &'r Budget,
}

impl<'t, 'p> Reader<'_, '_, 't, 'p> {
    fn expression(&mut self, node: Node<'t, 'p>, depth: usize) -> Result<(), GraphError> {
        let unknown = |node| GraphError::Unknown {
            what: describe(node),
        };
        let depth = depth.checked_sub(1).ok_or_else(|| unknown(node))?;
        let tree::Value::Call {
            callable,
            arguments,
        } = node.value()
        else {
            return Err(unknown(node));
        };
        self.budget.spend(arguments.items().count_left())?;
        let mut operands: Vec<_> = arguments.items().collect();
        let mut cache = None;
        let reconstructs = callable
            .as_global()
            .is_some_and(|name| name.is("dask._expr", "Expr._reconstruct"));
        let class = if reconstructs {
            // The class, its operands, a token and cached properties.
            cache = operands.pop();
            operands.pop();
            if operands.is_empty() {
                return Err(unknown(node));
            }
            operands.remove(0)
        } else {
            callable
        };
        let first = || operands.first().copied().ok_or_else(|| unknown(class));
        let Some(name) = class.as_global() else {
            return Err(unknown(class));
        };
        if name.is("distributed.client", "_MapExpr") {
            return self.map(node, &operands);
        }
        if name.is("dask._expr", "LLGExpr") {
            return match first()? {
                graph if matches!(graph.value(), tree::Value::Dict(_)) => {
                    self.graphs.push((graph, None));
                    Ok(())
                }
                graph => self.layers(graph),
            };
        }
        if name.is("dask._expr", "HLGExpr") || name.is("dask._expr", "_HLGExprGroup") {
            if let Some(optimized) = cache.and_then(|cache| cache.get("_optimized_dsk")) {
                return self.layers(optimized);
            }
            // The optimizer of delayed functions only removes tasks that are not needed.
            let is_known = operands.get(1).is_none_or(|optimizer| {
                let name = optimizer.as_global();
                optimizer.is_none() || name.is_some_and(|name| name.is("dask.delayed", "optimize"))
            });
            return match is_known {
                true => self.layers(first()?),
                false => Err(unknown(operands[1])),
            };
        }
        if name.is("dask._expr", "_HLGExprSequence") || name.is("dask._expr", "_ExprSequence") {
            return operands
                .into_iter()
                .try_for_each(|operand| self.expression(operand, depth));
        }
        Err(unknown(class))
    }

    /// Reads a `HighLevelGraph` whose layers are dictionaries of tasks.
    // ROLES SCHEDULER-6
    fn layers(&mut self, graph: Node<'t, 'p>) -> Result<(), GraphError> {
        let unknown = |node| GraphError::Unknown {
            what: describe(node),
        };
        let is_of = |node: Node<'_, '_>, name| {
            let class = match node.value() {
                tree::Value::New { class, .. } => class,
                tree::Value::Call { callable, .. } => callable,
                _ => return false,
            };
            let class = class.as_global();
            class.is_some_and(|class| class.is("dask.highlevelgraph", name))
        };
        if !is_of(graph, "HighLevelGraph") {
            return Err(unknown(graph));
        }
        let state = state_of(graph, self.budget)?;
        let layers = state.and_then(|state| state.get("layers"));
        let layers = layers.ok_or_else(|| unknown(graph))?;
        for (_, layer) in layers.entries() {
            let state = state_of(layer, self.budget)?.filter(|_| is_of(layer, "MaterializedLayer"));
            let mapping = state.and_then(|state| state.get("mapping"));
            let Some(mapping) = mapping.filter(|it| matches!(it.value(), tree::Value::Dict(_)))
            else {
                return Err(unknown(layer));
            };
            let annotations = state.and_then(|state| state.get("annotations"));
            let annotations = annotations.filter(|node| node.entries().next().is_some());
            let layer = annotations.map(|annotations| {
                self.plan.annotations.push(annotations);
                self.plan.annotations.len() - 1
            });
            self.graphs.push((mapping, layer));
        }
        Ok(())
    }

    /// Reads the calls of `client.map`.
    // ROLES SCHEDULER-4
    fn map(&mut self, node: Node<'t, 'p>, operands: &[Node<'t, 'p>]) -> Result<(), GraphError> {
        let [function, iterables, key, _, _, keywords, rest @ ..] = operands else {
            return Err(unexpected(node, "the operands of client.map"));
        };
        let is_list = |node: &Node<'_, '_>| {
            matches!(node.value(), tree::Value::List(_) | tree::Value::Tuple(_))
        };
        // A client computes the keys before it sends them.
        let Some(keys) = rest
            .first()
            .copied()
            .filter(is_list)
            .or(Some(*key).filter(is_list))
        else {
            return Err(unexpected(node, "the keys of client.map"));
        };
        let keywords = keywords.entries().map(|(name, value)| {
            let value = self.converter.convert(value, Rules::Futures)?;
            Ok((name, value))
        });
        let keywords = keywords.collect::<Result<Vec<_>, GraphError>>()?;
        let keywords: Rc<[_]> = keywords.into();
        let iterables = iterables
            .items()
            .map(|node| Iterable::read(node, self.budget));
        let mut iterables = iterables.collect::<Result<Vec<_>, _>>()?;
        if iterables.is_empty() {
            return Ok(());
        }
        for key in keys.items() {
            let mut arguments = Vec::with_capacity(iterables.len());
            for iterable in &mut iterables {
                match iterable.next() {
                    Some(Part::Node(item)) => {
                        arguments.push(self.converter.convert(item, Rules::Futures)?);
                    }
                    Some(item) => arguments.push(item),
                    // As long as the shortest.
                    None => return Ok(()),
                }
            }
            self.budget.spend(arguments.len())?;
            self.plan.tasks.push(Planned {
                key: key_of(key, self.budget)?,
                work: Part::Call(Box::new(Call {
                    function: *function,
                    arguments,
                    keywords: Rc::clone(&keywords),
                })),
                layer: None,
                family: None,
            });
        }
        Ok(())
    }
}

/// The items of an iterable that is read as data.
enum Iterable<'t, 'p> {
    Items(tree::Items<'t, 'p>),
    Keys(tree::Entries<'t, 'p>),
    Range { next: i64, stop: i64, step: i64 },
    Chars(std::vec::IntoIter<char>),
    Bytes(core::slice::Iter<'p, u8>),
}

impl<'t, 'p> Iterable<'t, 'p> {
    fn read(node: Node<'t, 'p>, budget: &Budget) -> Result<Self, GraphError> {
        let unknown = || GraphError::Iterable {
            what: describe(node),
        };
        Ok(match node.value() {
            tree::Value::List(items)
            | tree::Value::Tuple(items)
            | tree::Value::Set(items)
            | tree::Value::FrozenSet(items) => Self::Items(items),
            tree::Value::Dict(entries) => Self::Keys(entries),
            tree::Value::Str(string) => {
                let string = string.to_str().ok_or_else(unknown)?;
                budget.spend_copy(string.len().saturating_mul(4))?;
                Self::Chars(string.chars().collect::<Vec<_>>().into_iter())
            }
            tree::Value::Bytes(data) | tree::Value::ByteArray { data, .. } => {
                Self::Bytes(data.iter())
            }
            tree::Value::Call {
                callable,
                arguments,
            } if callable
                .as_global()
                .is_some_and(|name| name.is("builtins", "range")) =>
            {
                let [next, stop, step] = arguments.items().exactly().ok_or_else(unknown)?;
                let number = |node: Node<'_, '_>| node.as_i64().ok_or_else(unknown);
                Self::Range {
                    next: number(next)?,
                    stop: number(stop)?,
                    step: number(step)?,
                }
            }
            _ => return Err(unknown()),
        })
    }
}

impl<'t, 'p> Iterator for Iterable<'t, 'p> {
    type Item = Part<'t, 'p>;

    fn next(&mut self) -> Option<Part<'t, 'p>> {
        match self {
            Self::Items(items) => items.next().map(Part::Node),
            Self::Keys(entries) => entries.next().map(|(key, _)| Part::Node(key)),
            Self::Chars(chars) => chars.next().map(Part::Char),
            Self::Bytes(bytes) => bytes.next().map(|byte| Part::Int((*byte).into())),
            Self::Range { next, stop, step } => {
                let this = *next;
                let is_left = match *step > 0 {
                    true => this < *stop,
                    false => this > *stop && *step < 0,
                };
                if !is_left {
                    return None;
                }
                match next.checked_add(*step) {
                    Some(after) => *next = after,
                    None => *stop = this,
                }
                Some(Part::Int(this))
            }
        }
    }
}
