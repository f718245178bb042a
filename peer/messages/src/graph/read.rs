//! Reads graphs and tasks, as written here and as written by Python.

use bytes::Bytes;
use daskwire_pickle::tree::{self, Node, Tree};

use super::error::unexpected;
use super::spec::has_named_slots;
use super::spec::{
    CONTAINER_STATE, ELEVEN_SLOTS, NINE_SLOTS, SPEC, Spec, TASK_STATE, class_of, is_spec, key_of,
    optional_key, spec, state_of,
};
use super::{Argument, Function, Graph, GraphError, Task, Work};
use crate::Key;
use crate::value::{Budget, Serialized, TreeReader, Value, ValueError, describe};

/// Maximum nesting of arguments.
pub(super) const DEPTH: usize = 100;

impl Graph {
    /// Reads the expression of an `update-graph` message.
    ///
    /// # Errors
    ///
    /// [`GraphError::Unknown`] for expressions of collections, which only Python
    /// can convert into tasks, and errors that name other parts that only Python can convert.
    pub fn read(expression: &Serialized) -> Result<Self, GraphError> {
        if let Some(tasks) = Self::read_nodes(expression)? {
            return Ok(Self { tasks });
        }
        let outlines = Self::read_outline(expression, None)?.into_iter();
        let tasks =
            outlines.map(|outline| Task::read(&outline.run_spec.to_serialized(), &outline.key));
        Ok(Self {
            tasks: tasks.collect::<Result<_, _>>()?,
        })
    }

    /// Reads a graph whose values are all nodes of Dask's classes; `None` for others.
    fn read_nodes(expression: &Serialized) -> Result<Option<Vec<Task>>, GraphError> {
        let (pickle, buffers) = expression.pickle()?;
        let tree = Tree::with_buffers(&pickle, &buffers)?;
        let reading = TreeReader::new(&pickle, &buffers);
        let Some((callable, mut arguments)) = tree.root().as_call() else {
            return Ok(None);
        };
        let is = |node: Node<'_, '_>, name| {
            node.as_global()
                .is_some_and(|global| global.is("dask._expr", name))
        };
        let class = match is(callable, "Expr._reconstruct") {
            true => arguments.next(),
            false => Some(callable),
        };
        let graph = arguments.next().map(Node::value);
        let Some(tree::Value::Dict(entries)) =
            graph.filter(|_| class.is_some_and(|class| is(class, "LLGExpr")))
        else {
            return Ok(None);
        };
        if !entries.map(|(_, node)| node).all(is_spec) {
            return Ok(None);
        }
        let reader = TaskReader::new(&reading);
        let mut tasks = Vec::with_capacity(entries.count_left());
        for (key, node) in entries {
            let key = key_of(key, &reading.budget)?;
            // ROLES SCHEDULER-5
            if !is_alias_of(node, &key, &reading.budget)? {
                tasks.push(task(&reader, node, Some(key), DEPTH)?);
            }
        }
        Ok(Some(tasks))
    }
}

/// Whether a node does nothing but refer to this key.
pub(super) fn is_alias_of(
    node: Node<'_, '_>,
    key: &Key,
    budget: &Budget,
) -> Result<bool, GraphError> {
    if !class_of(node).is_some_and(|(class, _)| class == "Alias" || class == "TaskRef") {
        return Ok(false);
    }
    Ok(match spec(node, budget)? {
        Some(alias) => target(node, &alias, budget)? == *key,
        None => false,
    })
}

impl Task {
    /// Reads the `run_spec` of a `compute-task` message.
    ///
    /// # Errors
    ///
    /// If it is not a task. Functions and arguments that are not understood are
    /// not errors, but [`Function::Unknown`] and [`Argument::Unknown`].
    pub fn read(run_spec: &Serialized, key: &Key) -> Result<Self, GraphError> {
        let (pickle, buffers) = run_spec.pickle()?;
        Self::read_pickle(&pickle, &buffers, key)
    }

    /// Like [`read`](Self::read), for the tasks of all releases: those before 2024.11
    /// have the keys of inputs among their arguments.
    ///
    /// # Errors
    ///
    /// If the graph or a pickle in it is malformed, or has parts that cannot be read.
    pub fn read_with_inputs(
        run_spec: &Serialized,
        key: &Key,
        is_input: &dyn Fn(&Key) -> bool,
    ) -> Result<Self, GraphError> {
        let (pickle, buffers) = run_spec.pickle()?;
        let tree = Tree::with_buffers(&pickle, &buffers)?;
        let reading = TreeReader::new(&pickle, &buffers);
        let is_call = run_spec.is_pickled();
        match super::read_tuple::task(&reading, tree.root(), is_call, is_input)? {
            Some(work) => Ok(Self {
                key: key.clone(),
                work,
            }),
            None => {
                let reading = TaskReader {
                    has_plain_containers: has_named_slots(tree.root(), &reading.budget)?,
                    ..TaskReader::new(&reading)
                };
                task(&reading, tree.root(), Some(key.clone()), DEPTH)
            }
        }
    }

    fn read_pickle(pickle: &Bytes, buffers: &[Bytes], key: &Key) -> Result<Self, GraphError> {
        let tree = Tree::with_buffers(pickle, buffers)?;
        let reading = TreeReader::new(pickle, buffers);
        task(
            &TaskReader::new(&reading),
            tree.root(),
            Some(key.clone()),
            DEPTH,
        )
    }
}

/// Reads the tasks of a pickle.
pub(super) struct TaskReader<'r, 'b> {
    pub(super) values: &'r TreeReader<'b>,
    /// Whether results in plain containers are arguments, as up to Dask 2024.11.
    /// Later releases have classes for containers of results, and pass others to
    /// the function as they are.
    has_plain_containers: bool,
}

impl<'r, 'b> TaskReader<'r, 'b> {
    pub(super) fn new(values: &'r TreeReader<'b>) -> Self {
        Self {
            values,
            has_plain_containers: false,
        }
    }
}

pub(super) fn task(
    reading: &TaskReader<'_, '_>,
    node: Node<'_, '_>,
    key: Option<Key>,
    depth: usize,
) -> Result<Task, GraphError> {
    let depth = depth
        .checked_sub(1)
        .ok_or_else(|| unexpected(node, "fewer levels of arguments"))?;
    let budget = &reading.values.budget;
    budget.spend(1)?;
    let spec = match spec(node, budget)? {
        Some(spec) if spec.class == "Task" => spec,
        _ => {
            let key = key.ok_or_else(|| unexpected(node, "a task"))?;
            return Ok(Task {
                work: Work::Argument(argument(reading, node, depth)?),
                key,
            });
        }
    };
    if spec.is_state {
        let parts: [Node<'_, '_>; TASK_STATE] = spec
            .parts
            .try_into()
            .map_err(|_| unexpected(node, NINE_SLOTS))?;
        let [_, _, _, _, _, args, func, own_key, kwargs] = parts;
        let own_key = optional_key(own_key, budget)?;
        if let Some(container) = cast(reading, func, args, kwargs, depth)? {
            return Ok(Task {
                key: key.or(own_key).unwrap_or_default(),
                work: Work::Argument(container),
            });
        }
        let keywords = kwargs.entries().map(|(name, value)| {
            let name = name
                .as_str()
                .ok_or_else(|| unexpected(name, "the name of an argument"))?;
            budget.spend_copy(name.len())?;
            Ok((name.to_owned(), argument(reading, value, depth)?))
        });
        return Ok(Task {
            key: key.or(own_key).unwrap_or_default(),
            work: call(
                reading,
                func,
                &args.items().collect::<Vec<_>>(),
                keywords.collect::<Result<_, GraphError>>()?,
                depth,
            )?,
        });
    }
    let [own_key, func, args @ ..] = spec.parts.as_slice() else {
        return Err(unexpected(node, "a key and a function"));
    };
    let own_key = optional_key(*own_key, budget)?;
    Ok(Task {
        key: key.or(own_key).unwrap_or_default(),
        work: call(reading, *func, args, Vec::new(), depth)?,
    })
}

/// A list, tuple or set as Dask writes it for old-style graphs (dictionaries of
/// tuples): `_identity_cast(*items, typ=list)`.
fn cast(
    reading: &TaskReader<'_, '_>,
    func: Node<'_, '_>,
    args: Node<'_, '_>,
    kwargs: Node<'_, '_>,
    depth: usize,
) -> Result<Option<Argument>, GraphError> {
    let is_cast = func
        .as_global()
        .is_some_and(|name| name.is(SPEC, "_identity_cast"));
    let class = match kwargs.get("typ") {
        Some(class) if is_cast => Some(data_of(class, &reading.values.budget)?),
        _ => None,
    };
    let container = class.and_then(|class| class.as_global());
    let make: fn(Vec<Argument>) -> Argument = match container {
        _ if !is_cast => return Ok(None),
        Some(class) if class.is("builtins", "list") => Argument::List,
        Some(class) if class.is("builtins", "tuple") => Argument::Tuple,
        Some(class) if class.is("builtins", "set") => Argument::Set,
        _ => return Ok(None),
    };
    let items = args.items().map(|item| argument(reading, item, depth));
    Ok(Some(make(items.collect::<Result<_, _>>()?)))
}

/// The target of a reference: an alias names it after its own key, or has only
/// one key.
pub(super) fn target(
    node: Node<'_, '_>,
    spec: &Spec<'_, '_>,
    budget: &Budget,
) -> Result<Key, GraphError> {
    key_of(target_node(node, spec, budget)?, budget)
}

/// The node with the key of the target of a reference.
pub(super) fn target_node<'t, 'p>(
    node: Node<'t, 'p>,
    spec: &Spec<'t, 'p>,
    budget: &Budget,
) -> Result<Node<'t, 'p>, GraphError> {
    let (first, last) = (spec.parts.first().copied(), spec.parts.last().copied());
    let last = last.ok_or_else(|| unexpected(node, "a key"))?;
    let target = first.filter(|_| last.is_none()).unwrap_or(last);
    let inner = self::spec(target, budget)?.and_then(|inner| inner.parts.first().copied());
    Ok(inner.unwrap_or(target))
}

/// Reads a call. A call with keyword arguments may be written as `apply(f, [..],
/// {..})`.
fn call<'t, 'p>(
    reading: &TaskReader<'_, '_>,
    func: Node<'t, 'p>,
    arguments: &[Node<'t, 'p>],
    keywords: Vec<(String, Argument)>,
    depth: usize,
) -> Result<Work, GraphError> {
    let budget = &reading.values.budget;
    let many = |nodes: &[Node<'_, '_>]| -> Result<Vec<Argument>, GraphError> {
        nodes
            .iter()
            .map(|node| argument(reading, *node, depth))
            .collect()
    };
    let is_fused = func
        .as_global()
        .is_some_and(|name| name.is(SPEC, "_execute_subgraph"))
        && keywords.is_empty();
    // ROLES WORKER-5
    if is_fused
        && let [inner, output, explicit, implicit] = arguments
        && let (Some(explicit), Some(implicit)) = (
            entries_of(*explicit, budget)?,
            entries_of(*implicit, budget)?,
        )
    {
        let depth = depth
            .checked_sub(1)
            .ok_or_else(|| unexpected(func, "fewer levels of tasks"))?;
        let inner = data_of(*inner, budget)?;
        let tasks = inner
            .entries()
            .map(|(key, node)| task(reading, node, Some(key_of(key, budget)?), depth));
        let inputs = explicit
            .into_iter()
            .chain(implicit)
            .map(|(name, input)| Ok((key_of(name, budget)?, argument(reading, input, depth)?)));
        return Ok(Work::Fused {
            tasks: tasks.collect::<Result<_, _>>()?,
            output: key_of(*output, budget)?,
            inputs: inputs.collect::<Result<_, GraphError>>()?,
        });
    }
    if is_fused && let [inner, output, names, inputs @ ..] = arguments {
        let depth = depth
            .checked_sub(1)
            .ok_or_else(|| unexpected(func, "fewer levels of tasks"))?;
        let tasks = inner
            .entries()
            .map(|(key, node)| task(reading, node, Some(key_of(key, budget)?), depth));
        let inputs = names
            .items()
            .zip(inputs)
            .map(|(name, input)| Ok((key_of(name, budget)?, argument(reading, *input, depth)?)));
        return Ok(Work::Fused {
            tasks: tasks.collect::<Result<_, _>>()?,
            output: key_of(*output, budget)?,
            inputs: inputs.collect::<Result<_, GraphError>>()?,
        });
    }
    let is_apply = func
        .as_global()
        .is_some_and(|name| name.is("dask.utils", "apply"));
    if is_apply
        && keywords.is_empty()
        && let [inner, positional, named] = arguments
        && let Argument::List(positional) = argument(reading, *positional, depth)?
        && let Argument::Dict(named) = argument(reading, *named, depth)?
    {
        let named = named.into_iter().map(|(name, argument)| match name {
            Argument::Value(Value::Str(name)) => Ok((name.as_ref().to_owned(), argument)),
            _ => Err(unexpected(*inner, "names of arguments")),
        });
        return Ok(Work::Call {
            function: function(reading, *inner, depth)?,
            arguments: positional,
            keywords: named.collect::<Result<_, _>>()?,
        });
    }
    Ok(Work::Call {
        function: function(reading, func, depth)?,
        arguments: many(arguments)?,
        keywords,
    })
}

pub(super) fn function(
    reading: &TaskReader<'_, '_>,
    node: Node<'_, '_>,
    depth: usize,
) -> Result<Function, GraphError> {
    let budget = &reading.values.budget;
    budget.spend(1)?;
    let unknown = |what: String| {
        budget.spend_copy(what.len())?;
        Ok(Function::Unknown(what))
    };
    if let Some(global) = node.as_global() {
        let (Some(module), Some(name)) = (global.module.as_str(), global.name.as_str()) else {
            return unknown(global.to_string());
        };
        // Dask calls these functions itself, and `call` reads the function that they
        // call. In another place, for example in a partial, they are unknown: when
        // written again, a call of them would be read as a call of the other function.
        if global.is(SPEC, "_execute_subgraph") || global.is("dask.utils", "apply") {
            return unknown(global.to_string());
        }
        budget.spend_copy(module.len().saturating_add(name.len()))?;
        // The internal names of some Python modules.
        let module = match module {
            "_operator" => "operator",
            "posix" | "nt" => "os",
            "__builtin__" => "builtins",
            module => module,
        };
        return Ok(Function::Python {
            module: module.to_owned(),
            name: name.to_owned(),
        });
    }
    let tree::Value::Call { callable, .. } = node.value() else {
        return unknown(describe(node));
    };
    if let Some(name) = native_name(node) {
        budget.spend_copy(name.len())?;
        return Ok(Function::native(name));
    }
    if let Some((name, keywords)) = native_with_keywords(node, budget)? {
        let depth = depth
            .checked_sub(1)
            .ok_or_else(|| unexpected(node, "fewer levels of arguments"))?;
        budget.spend_copy(name.len())?;
        let keywords = keywords.entries().map(|(name, value)| {
            let name = name.as_str().unwrap_or_default().to_owned();
            budget.spend_copy(name.len())?;
            Ok((name, argument(reading, value, depth)?))
        });
        return Ok(Function::Partial {
            function: Box::new(Function::native(name)),
            arguments: Vec::new(),
            keywords: keywords.collect::<Result<_, GraphError>>()?,
        });
    }
    let called = callable.as_global();
    if called.is_some_and(|global| global.is("functools", "partial")) {
        let state = state_of(node, budget)?;
        let depth = depth
            .checked_sub(1)
            .ok_or_else(|| unexpected(node, "fewer levels of arguments"))?;
        if let Some([inner, args, keywords, attributes]) =
            state.and_then(|state| state.items().exactly())
        {
            if let Some(name) = replaced_by(attributes)
                && args.items().next().is_none()
                && keywords.entries().next().is_none()
            {
                budget.spend_copy(name.len())?;
                return Ok(Function::native(name));
            }
            let keywords = keywords.entries().map(|(name, value)| {
                let name = name.as_str().unwrap_or_default().to_owned();
                budget.spend_copy(name.len())?;
                Ok((name, argument(reading, value, depth)?))
            });
            let arguments = args.items().map(|item| argument(reading, item, depth));
            return Ok(Function::Partial {
                function: Box::new(function(reading, inner, depth)?),
                arguments: arguments.collect::<Result<_, _>>()?,
                keywords: keywords.collect::<Result<_, GraphError>>()?,
            });
        }
    }
    unknown(describe(node))
}

/// The name of a function of a worker in Rust, `operator.methodcaller("native:NAME")`.
pub(super) fn native_name<'p>(node: Node<'_, 'p>) -> Option<&'p str> {
    let (callable, arguments) = node.as_call()?;
    let global = callable.as_global()?;
    if !global.is("operator", "methodcaller") && !global.is("_operator", "methodcaller") {
        return None;
    }
    let [method] = arguments.exactly()?;
    method.as_str()?.strip_prefix("native:")
}

/// The name and the keyword arguments of `operator.methodcaller("native:NAME", by=2)`, which Python
/// pickles as a call of a partial: `partial(methodcaller, "native:NAME", by=2)()`.
pub(super) fn native_with_keywords<'t, 'p>(
    node: Node<'t, 'p>,
    budget: &Budget,
) -> Result<Option<(&'p str, Node<'t, 'p>)>, GraphError> {
    let Some((partial, arguments)) = node.as_call() else {
        return Ok(None);
    };
    let is_partial = partial.as_call().is_some_and(|(callable, _)| {
        let global = callable.as_global();
        global.is_some_and(|global| global.is("functools", "partial"))
    });
    if !is_partial || arguments.exactly::<0>().is_none() {
        return Ok(None);
    }
    let state = state_of(partial, budget)?.and_then(|state| state.items().exactly());
    let Some([caller, method, keywords, _]) = state else {
        return Ok(None);
    };
    let is_caller = caller.as_global().is_some_and(|global| {
        global.is("operator", "methodcaller") || global.is("_operator", "methodcaller")
    });
    let method = method.items().exactly().filter(|_| is_caller);
    let name = method.and_then(|[method]| method.as_str()?.strip_prefix("native:"));
    Ok(name.map(|name| (name, keywords)))
}

/// The name of the native function that a partial stands for, from the partial's
/// attributes. A worker that does not have the function calls the partial, in Python.
pub(super) fn replaced_by<'p>(attributes: Node<'_, 'p>) -> Option<&'p str> {
    let mut attributes = attributes.entries();
    let (attribute, name) = attributes.next()?;
    if attribute.as_str()? != REPLACED_BY || attributes.next().is_some() {
        return None;
    }
    name.as_str()?.strip_prefix("native:")
}

fn argument(
    reading: &TaskReader<'_, '_>,
    node: Node<'_, '_>,
    depth: usize,
) -> Result<Argument, GraphError> {
    let depth = depth
        .checked_sub(1)
        .ok_or_else(|| unexpected(node, "fewer levels of arguments"))?;
    let budget = &reading.values.budget;
    budget.spend(1)?;
    let Some(spec) = spec(node, budget)? else {
        if reading.has_plain_containers
            && let Some(argument) = in_container(reading, node, depth)?
        {
            return Ok(argument);
        }
        return match reading.values.value(node, DEPTH) {
            Ok(value) => Ok(Argument::Value(value)),
            Err(ValueError::Unknown { what }) => {
                budget.spend_copy(what.len())?;
                Ok(Argument::Unknown(what))
            }
            Err(error) => Err(error.into()),
        };
    };
    let many =
        |nodes: &mut dyn Iterator<Item = Node<'_, '_>>| -> Result<Vec<Argument>, GraphError> {
            nodes.map(|node| argument(reading, node, depth)).collect()
        };
    match spec.class {
        "Task" => Ok(Argument::Task(Box::new(task(
            reading,
            node,
            Some(Key::default()),
            depth,
        )?))),
        "TaskRef" | "Alias" => Ok(Argument::Result(target(node, &spec, budget)?)),
        "DataNode" => argument(reading, spec.parts.last().copied().unwrap_or(node), depth),
        class => {
            let items = if spec.is_state {
                let parts: [Node<'_, '_>; CONTAINER_STATE] = spec
                    .parts
                    .try_into()
                    .map_err(|_| unexpected(node, ELEVEN_SLOTS))?;
                let args = parts[5];
                many(&mut args.items())?
            } else if class == "Dict"
                && let [only] = spec.parts.as_slice()
            {
                let mut pairs = Vec::new();
                for (key, value) in only.entries() {
                    pairs.push(argument(reading, key, depth)?);
                    pairs.push(argument(reading, value, depth)?);
                }
                pairs
            } else {
                match spec.parts.as_slice() {
                    // As in the constructors, a single container provides the items.
                    [only] if is_container(*only, class) => many(&mut only.items())?,
                    parts => many(&mut parts.iter().copied())?,
                }
            };
            Ok(match class {
                "List" => Argument::List(items),
                "Tuple" => Argument::Tuple(items),
                "Set" => Argument::Set(items),
                // Pairs in 2024.12.
                _ if items.iter().all(is_pair) => Argument::Dict(
                    items
                        .into_iter()
                        .filter_map(|item| match item {
                            Argument::Tuple(pair) => <[Argument; 2]>::try_from(pair).ok(),
                            _ => None,
                        })
                        .map(|[key, value]| (key, value))
                        .collect(),
                ),
                _ => {
                    let mut pairs = Vec::with_capacity(items.len() / 2);
                    let mut items = items.into_iter();
                    while let (Some(key), Some(value)) = (items.next(), items.next()) {
                        pairs.push((key, value));
                    }
                    Argument::Dict(pairs)
                }
            })
        }
    }
}

/// The value of a `DataNode`, or the node itself.
fn data_of<'t, 'p>(node: Node<'t, 'p>, budget: &Budget) -> Result<Node<'t, 'p>, GraphError> {
    match spec(node, budget)? {
        Some(spec) if spec.class == "DataNode" => Ok(spec.parts.last().copied().unwrap_or(node)),
        _ => Ok(node),
    }
}

/// A key and a value.
type Entry<'t, 'p> = (Node<'t, 'p>, Node<'t, 'p>);

/// The entries of a dictionary, or of a `Dict` of 2024.12.
fn entries_of<'t, 'p>(
    node: Node<'t, 'p>,
    budget: &Budget,
) -> Result<Option<Vec<Entry<'t, 'p>>>, GraphError> {
    if let tree::Value::Dict(entries) = node.value() {
        return Ok(Some(entries.collect()));
    }
    let Some(dict) = spec(node, budget)?.filter(|spec| spec.class == "Dict" && spec.is_state)
    else {
        return Ok(None);
    };
    let mut entries = Vec::new();
    for pair in dict.parts.get(5).into_iter().flat_map(|args| args.items()) {
        let items = match spec(pair, budget)? {
            Some(tuple) if tuple.class == "Tuple" => tuple.parts.get(5).map(|args| args.items()),
            None => Some(pair.items()),
            Some(_) => None,
        };
        let Some([key, value]) = items.and_then(|items| items.exactly()) else {
            return Ok(None);
        };
        entries.push((key, value));
    }
    Ok(Some(entries))
}

/// Reads a plain container, whose items may be results; `None` for other nodes.
// ROLES WORKER-2
fn in_container(
    reading: &TaskReader<'_, '_>,
    node: Node<'_, '_>,
    depth: usize,
) -> Result<Option<Argument>, GraphError> {
    let items = || -> Result<Vec<Argument>, GraphError> {
        let items = node.items();
        items.map(|item| argument(reading, item, depth)).collect()
    };
    Ok(Some(match node.value() {
        tree::Value::List(_) => plain(items()?, Argument::List, |values| {
            Value::List(values.into())
        }),
        tree::Value::Tuple(_) => plain(items()?, Argument::Tuple, |values| {
            Value::Tuple(values.into())
        }),
        tree::Value::Set(_) => plain(items()?, Argument::Set, |values| Value::Set(values.into())),
        tree::Value::Dict(entries) => {
            let entries = entries.map(|(key, value)| {
                Ok((
                    argument(reading, key, depth)?,
                    argument(reading, value, depth)?,
                ))
            });
            plain_dict(entries.collect::<Result<_, GraphError>>()?)
        }
        _ => return Ok(None),
    }))
}

/// A value if all items are values, or else a container of arguments.
pub(super) fn plain(
    items: Vec<Argument>,
    container: fn(Vec<Argument>) -> Argument,
    value: fn(Vec<Value>) -> Value,
) -> Argument {
    if !items.iter().all(|item| matches!(item, Argument::Value(_))) {
        return container(items);
    }
    let values = items.into_iter().filter_map(|item| match item {
        Argument::Value(value) => Some(value),
        _ => None,
    });
    Argument::Value(value(values.collect()))
}

/// A value if all entries are values, or else a dictionary of arguments.
fn plain_dict(entries: Vec<(Argument, Argument)>) -> Argument {
    let is_value = |argument: &Argument| matches!(argument, Argument::Value(_));
    if !entries
        .iter()
        .all(|(key, value)| is_value(key) && is_value(value))
    {
        return Argument::Dict(entries);
    }
    let entries = entries.into_iter().filter_map(|entry| match entry {
        (Argument::Value(key), Argument::Value(value)) => Some((key, value)),
        _ => None,
    });
    Argument::Value(Value::Dict(entries.collect()))
}

/// Whether an item of a dictionary is a pair with results. Of a flat list of keys
/// and values, keys are values.
fn is_pair(item: &Argument) -> bool {
    matches!(item, Argument::Tuple(pair) if pair.len() == 2)
}

pub(super) fn is_container(node: Node<'_, '_>, class: &str) -> bool {
    match node.value() {
        tree::Value::List(_) => class == "List",
        tree::Value::Tuple(_) => class == "Tuple",
        tree::Value::Set(_) => class == "Set",
        _ => false,
    }
}

/// The attribute of a partial that names the native function in its place.
pub const REPLACED_BY: &str = "daskwire_native";
