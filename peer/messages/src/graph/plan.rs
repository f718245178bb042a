//! Tasks as a scheduler makes them from an expression: parts of its pickle, and new nodes
//! around them.

use core::cell::OnceCell;
use core::fmt;
use std::collections::HashSet;
use std::rc::Rc;

use daskwire_pickle::tree::{self, Node, Tree};

use super::GraphError;
use super::error::unexpected;
use super::read::{DEPTH, is_alias_of, target};
use super::spec::{SPEC, Spec, TASK_STATE, class_of, key_of, spec};
use crate::Key;
use crate::value::{Budget, describe};

/// A part of a task.
#[derive(Clone, Debug)]
pub(super) enum Part<'t, 'p> {
    /// A part of the pickle, copied as it is.
    Node(Node<'t, 'p>),
    /// The result of a task.
    Result(Key),
    /// An integer, of a range or of bytes.
    Int(i64),
    /// A character of a string.
    Char(char),
    /// A container with results.
    Container(Container, Vec<Self>),
    /// A dictionary with results as values.
    Dict(Vec<(Node<'t, 'p>, Self)>),
    /// A call.
    Call(Box<Call<'t, 'p>>),
}

/// A type of containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Container {
    List,
    Tuple,
    Set,
    FrozenSet,
}

impl Container {
    /// Dask's class for containers of results, and Python's class.
    pub(super) const fn classes(self) -> (Option<&'static str>, &'static str) {
        match self {
            Self::List => (Some("List"), "list"),
            Self::Tuple => (Some("Tuple"), "tuple"),
            Self::Set => (Some("Set"), "set"),
            Self::FrozenSet => (None, "frozenset"),
        }
    }
}

/// A call of a function.
#[derive(Clone, Debug)]
pub(super) struct Call<'t, 'p> {
    pub(super) function: Node<'t, 'p>,
    pub(super) arguments: Vec<Part<'t, 'p>>,
    /// The keyword arguments, shared by all calls of a map.
    pub(super) keywords: Rc<[(Node<'t, 'p>, Part<'t, 'p>)]>,
}

/// A task of an expression.
#[derive(Debug)]
pub(super) struct Planned<'t, 'p> {
    pub(super) key: Key,
    pub(super) work: Part<'t, 'p>,
    /// The layer of the task, if it has annotations.
    pub(super) layer: Option<usize>,
    /// The tasks that it is like, if there are any; then it is a [`Part::Node`].
    pub(super) family: Option<usize>,
}

/// What in a value stands for a result.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rules<'k> {
    /// Futures, as in the arguments of `client.map`.
    Futures,
    /// Futures and the keys of the graph, and tuples that begin with a callable are tasks, as
    /// in graphs without Dask's classes.
    Legacy(&'k GraphKeys<'k>),
}

/// The keys of graphs, to which values may refer, also to those of other layers. They are only read
/// for graphs without Dask's classes.
pub(super) struct GraphKeys<'k> {
    graphs: Vec<Node<'k, 'k>>,
    keys: OnceCell<HashSet<Key>>,
}

impl<'k> GraphKeys<'k> {
    /// The keys of these dictionaries.
    pub(super) fn new(graphs: Vec<Node<'k, 'k>>) -> Self {
        Self {
            graphs,
            keys: OnceCell::new(),
        }
    }

    fn contains(&self, key: &Key, budget: &Budget) -> Result<bool, GraphError> {
        if let Some(keys) = self.keys.get() {
            return Ok(keys.contains(key));
        }
        let entries = self.graphs.iter().flat_map(|graph| graph.entries());
        let keys = entries.map(|(key, _)| key_of(key, budget));
        let keys = keys.collect::<Result<HashSet<Key>, GraphError>>()?;
        Ok(self.keys.get_or_init(|| keys).contains(key))
    }
}

impl fmt::Debug for GraphKeys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the keys of {} graphs", self.graphs.len())
    }
}

/// Converts values with references into nodes, as `parse_input` and `convert_legacy_task` of
/// Dask do.
#[derive(Debug)]
pub(super) struct Converter<'b> {
    /// Whether a node is known to have no references.
    is_plain: Vec<bool>,
    budget: &'b Budget,
}

impl<'b> Converter<'b> {
    pub(super) fn new(tree: &Tree<'_>, budget: &'b Budget) -> Self {
        Self {
            is_plain: vec![false; tree.nodes().len()],
            budget,
        }
    }

    // ROLES SCHEDULER-5
    pub(super) fn convert<'t, 'p>(
        &mut self,
        node: Node<'t, 'p>,
        rules: Rules<'_>,
    ) -> Result<Part<'t, 'p>, GraphError> {
        self.convert_within(node, rules, DEPTH)
    }

    fn convert_within<'t, 'p>(
        &mut self,
        node: Node<'t, 'p>,
        rules: Rules<'_>,
        depth: usize,
    ) -> Result<Part<'t, 'p>, GraphError> {
        self.budget.spend(1)?;
        if self.is_plain.get(node.index()) == Some(&true) {
            return Ok(Part::Node(node));
        }
        let depth = depth
            .checked_sub(1)
            .ok_or_else(|| unexpected(node, "fewer levels of arguments"))?;
        if class_of(node).is_some() {
            return self.reference(node);
        }
        if let Rules::Legacy(keys) = rules {
            if let tree::Value::Tuple(mut items) = node.value()
                && let Some(function) = items.next()
                && self.is_callable(function)?
            {
                let arguments = items.map(|item| match item.value() {
                    tree::Value::Dict(_) => self.dict(item, None, depth),
                    _ => self.convert_within(item, rules, depth),
                });
                return Ok(Part::Call(Box::new(Call {
                    function,
                    arguments: arguments.collect::<Result<_, _>>()?,
                    keywords: Rc::new([]),
                })));
            }
            let can_be_key = matches!(
                node.value(),
                tree::Value::Str(_)
                    | tree::Value::Int(_)
                    | tree::Value::Float(_)
                    | tree::Value::Tuple(_)
            );
            if can_be_key
                && let Ok(key) = key_of(node, self.budget)
                && keys.contains(&key, self.budget)?
            {
                return Ok(Part::Result(key));
            }
        }
        let (container, items) = match (node.value(), rules) {
            (tree::Value::List(items), _) => (Container::List, items),
            (tree::Value::Tuple(items), _) => (Container::Tuple, items),
            (tree::Value::Set(items), _) => (Container::Set, items),
            (tree::Value::FrozenSet(items), Rules::Legacy(_)) => (Container::FrozenSet, items),
            (tree::Value::Dict(_), Rules::Futures) => return self.dict(node, Some(rules), depth),
            _ => return Ok(self.plain(node)),
        };
        let items = items.map(|item| self.convert_within(item, rules, depth));
        let items = items.collect::<Result<Vec<_>, _>>()?;
        Ok(match items.iter().all(Part::is_plain) {
            true => self.plain(node),
            false => Part::Container(container, items),
        })
    }

    /// Converts a node of Dask's classes: a reference to its key, others to themselves.
    fn reference<'t, 'p>(&self, node: Node<'t, 'p>) -> Result<Part<'t, 'p>, GraphError> {
        if class_of(node).is_none_or(|(class, _)| class != "TaskRef") {
            return Ok(Part::Node(node));
        }
        Ok(match spec(node, self.budget)? {
            Some(reference) => Part::Result(target(node, &reference, self.budget)?),
            None => Part::Node(node),
        })
    }

    /// Converts the values of a dictionary; without rules, only nodes and futures.
    fn dict<'t, 'p>(
        &mut self,
        node: Node<'t, 'p>,
        rules: Option<Rules<'_>>,
        depth: usize,
    ) -> Result<Part<'t, 'p>, GraphError> {
        let entries = node.entries().map(|(key, value)| {
            self.budget.spend(1)?;
            let value = match rules {
                Some(rules) => self.convert_within(value, rules, depth)?,
                None if class_of(value).is_some() => self.reference(value)?,
                None => Part::Node(value),
            };
            Ok((key, value))
        });
        let entries = entries.collect::<Result<Vec<_>, GraphError>>()?;
        Ok(match entries.iter().all(|(_, value)| value.is_plain()) {
            true if rules.is_some() => self.plain(node),
            true => Part::Node(node),
            false => Part::Dict(entries),
        })
    }

    fn plain<'t, 'p>(&mut self, node: Node<'t, 'p>) -> Part<'t, 'p> {
        if let Some(flag) = self.is_plain.get_mut(node.index()) {
            *flag = true;
        }
        Part::Node(node)
    }

    /// Whether a tuple that begins with this node is a task.
    ///
    /// # Errors
    ///
    /// For objects of unknown classes, of which only Python knows whether they are callable.
    fn is_callable(&self, node: Node<'_, '_>) -> Result<bool, GraphError> {
        const CALLABLE: [&str; 18] = [
            "Compose",
            "SubgraphCallable",
            "_builtin_type",
            "_make_function",
            "_make_skeleton_class",
            "_make_skeleton_enum",
            "_restore_curry",
            "attrgetter",
            "compose",
            "curry",
            "getattr",
            "itemgetter",
            "juxt",
            "literal",
            "methodcaller",
            "partial",
            "_lookup_module_and_qualname",
            "vectorize",
        ];
        const DATA: [&str; 13] = [
            "_codecs",
            "array",
            "builtins",
            "collections",
            "copyreg",
            "datetime",
            "decimal",
            "fractions",
            "numpy",
            "pandas",
            "pathlib",
            "pyarrow",
            "uuid",
        ];
        let class = match node.value() {
            tree::Value::Global(_) => return Ok(true),
            tree::Value::Call { callable, .. } => callable,
            tree::Value::New { class, .. } => class,
            _ => return Ok(false),
        };
        if let Some(global) = class.as_global() {
            if CALLABLE.iter().any(|name| global.name == **name) {
                return Ok(true);
            }
            let module = global.module.to_bytes();
            let package = module.split(|byte| *byte == b'.').next();
            if DATA.iter().any(|name| package == Some(name.as_bytes())) {
                return Ok(false);
            }
        }
        Err(GraphError::Callable {
            what: describe(node),
        })
    }
}

impl<'t, 'p> Part<'t, 'p> {
    /// Whether the part is a value without references.
    fn is_plain(&self) -> bool {
        match self {
            Self::Node(node) => class_of(*node).is_none(),
            Self::Int(_) | Self::Char(_) => true,
            _ => false,
        }
    }

    /// Whether a task does nothing but refer to this key.
    pub(super) fn is_alias_of(&self, key: &Key, budget: &Budget) -> Result<bool, GraphError> {
        Ok(match self {
            Self::Result(target) => target == key,
            Self::Node(node) => is_alias_of(*node, key, budget)?,
            _ => false,
        })
    }

    /// The call of a task that Python or a client has written, with its parts.
    pub(super) fn called(&self, budget: &Budget) -> Result<Option<Call<'t, 'p>>, GraphError> {
        let mut parts = Vec::new();
        let Some(keywords) = self.visit_written(budget, |node| parts.push(node))? else {
            return Ok(None);
        };
        let [function, arguments @ ..] = &parts[..] else {
            return Ok(None);
        };
        let keywords = keywords.map(|node| node.entries()).into_iter().flatten();
        let keywords = keywords.map(|(name, value)| (name, Self::Node(value)));
        let keywords: Rc<[_]> = keywords.collect();
        budget.spend(keywords.len())?;
        Ok(Some(Call {
            function: *function,
            arguments: arguments.iter().copied().map(Self::Node).collect(),
            keywords,
        }))
    }

    /// Visits the parts that are copied of a call: the function, the arguments, and the values of
    /// keyword arguments.
    pub(super) fn visit_called(
        &self,
        budget: &Budget,
        mut visit: impl FnMut(Node<'t, 'p>),
    ) -> Result<(), GraphError> {
        if let Self::Call(call) = self {
            budget.spend(call.arguments.len().saturating_add(call.keywords.len()))?;
            call.parts().for_each(visit);
        } else if let Some(Some(keywords)) = self.visit_written(budget, &mut visit)? {
            budget.spend(keywords.entries().count_left())?;
            keywords.entries().for_each(|(_, value)| visit(value));
        }
        Ok(())
    }

    /// Visits the function and the arguments of a call that Python or a client has written. Returns
    /// its keyword arguments, if there may be some; `None` if it is no such call.
    fn visit_written(
        &self,
        budget: &Budget,
        mut visit: impl FnMut(Node<'t, 'p>),
    ) -> Result<Option<Option<Node<'t, 'p>>>, GraphError> {
        let Self::Node(node) = self else {
            return Ok(None);
        };
        let Some(Spec {
            class: "Task",
            parts,
            is_state,
        }) = spec(*node, budget)?
        else {
            return Ok(None);
        };
        // Their first arguments are tasks and keys, not values.
        let is_of_dask = |function: Node<'_, '_>| {
            let name = function.as_global();
            name.is_some_and(|name| name.module == *SPEC)
        };
        match (parts.as_slice(), is_state) {
            (&[.., args, function, _, keywords], true)
                if parts.len() == TASK_STATE && !is_of_dask(function) =>
            {
                budget.spend(args.items().count_left())?;
                visit(function);
                args.items().for_each(visit);
                Ok(Some(Some(keywords)))
            }
            ([_, function, arguments @ ..], false) if !is_of_dask(*function) => {
                visit(*function);
                arguments.iter().copied().for_each(visit);
                Ok(Some(None))
            }
            _ => Ok(None),
        }
    }
}
