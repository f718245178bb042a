//! Reads tasks of releases before 2024.11, whose arguments contain the keys of results.
//!
//! Such a task is a tuple `(function, args, kwargs)`, three pickles of these (up to
//! 2023.8.0), or an old-style task: a tuple whose first item is callable, with
//! arguments that may be tasks themselves.

use bytes::Bytes;
use daskwire_pickle::tree::{self, Node, Tree};
use daskwire_pickle::{Writer, WriterOptions};

use super::error::unexpected;
use super::read::{DEPTH, TaskReader, function, plain};
use super::spec::key_of;
use super::{Argument, Function, GraphError, Task, Work};
use crate::protocol::{ComputeTask, RunSpec};
use crate::scratch;
use crate::value::{Serialized, TreeReader, ValueError};
use crate::{Key, Value};

/// A predicate that is true for the keys whose results a task gets.
type IsInput<'i> = &'i dyn Fn(&Key) -> bool;

impl ComputeTask {
    /// Takes the task out of the message. Three pickles are put into one, as byte
    /// strings.
    // ROLES WORKER-3
    pub fn take_run_spec(&mut self) -> Serialized {
        let field = |name: &str| {
            let mut fields = self.extra.iter();
            let found = fields.find(|(field, _)| field.as_str() == Some(name));
            found.map(|(_, value)| value)
        };
        let parts = match core::mem::take(&mut self.run_spec) {
            RunSpec::Payload(payload) => return payload,
            RunSpec::Call(call) => [Some(call.function), Some(call.args), call.kwargs],
            RunSpec::Absent => {
                if let Some(Value::Serialized(task)) = field("task") {
                    return task.clone();
                }
                ["function", "args", "kwargs"].map(|name| match field(name) {
                    Some(Value::Bytes(pickle)) => Some(pickle.clone()),
                    _ => None,
                })
            }
        };
        let pickle = scratch::pickle(WriterOptions::default(), |writer: &mut Writer<'_, '_>| {
            writer.tuple(parts.len());
            for part in &parts {
                writer.bytes(part.as_deref().unwrap_or_default());
            }
            Ok::<(), ValueError>(())
        });
        // Cannot fail: the buffer grows as needed.
        Serialized::pickled(&pickle.expect("a buffer that grows"))
    }
}

/// Reads a task that is not an object of `dask._task_spec`; `None` if it is one.
pub(super) fn task(
    reading: &TreeReader<'_>,
    root: Node<'_, '_>,
    is_call: bool,
    is_input: IsInput<'_>,
) -> Result<Option<Work>, GraphError> {
    if super::spec::is_spec(root) {
        return Ok(None);
    }
    let reader = TupleReader { reading, is_input };
    let tree::Value::Tuple(items) = root.value() else {
        return reader.nested(root).map(Some);
    };
    match items.exactly() {
        Some([function, args, kwargs]) if is_call => {
            let pickles = [function, args, kwargs].map(|node| match node.value() {
                tree::Value::Bytes(pickle) => Some(Bytes::copy_from_slice(pickle)),
                _ => None,
            });
            match pickles {
                [Some(function), Some(args), Some(kwargs)] => {
                    call_of_pickles(&function, &args, &kwargs, is_input)
                }
                _ => reader.call(function, args, kwargs),
            }
        }
        _ => reader.nested(root),
    }
    .map(Some)
}

/// Reads a call from three pickles; the last two may be empty.
fn call_of_pickles(
    function: &Bytes,
    args: &Bytes,
    kwargs: &Bytes,
    is_input: IsInput<'_>,
) -> Result<Work, GraphError> {
    let function_tree = Tree::new(function)?;
    let args_tree = tree_of(args)?;
    let kwargs_tree = tree_of(kwargs)?;
    let readings = [function, args, kwargs].map(|pickle| TreeReader::new(pickle, &[]));
    let [of_function, of_args, of_kwargs] = readings
        .each_ref()
        .map(|reading| TupleReader { reading, is_input });
    let called = function_tree.root();
    if is_execute_task(called)
        && let Some(args) = &args_tree
        && let Some([task]) = args.root().items().exactly()
    {
        return of_args.nested(task);
    }
    let arguments = match &args_tree {
        Some(args) => of_args.all(args.root().items(), false)?,
        None => Vec::new(),
    };
    let keywords = match &kwargs_tree {
        Some(kwargs) => of_kwargs.keywords(kwargs.root())?,
        None => Vec::new(),
    };
    of_function.work(called, arguments, keywords)
}

/// The tree of a pickle; `None` if the pickle is empty, that is, absent from the
/// message.
fn tree_of(pickle: &Bytes) -> Result<Option<Tree<'_>>, GraphError> {
    if pickle.is_empty() {
        return Ok(None);
    }
    Ok(Some(Tree::new(pickle)?))
}

/// Whether a function runs a task given as its only argument.
fn is_execute_task(function: Node<'_, '_>) -> bool {
    function
        .as_global()
        .is_some_and(|global| global.name == *"execute_task" || global.name == *"_execute_task")
}

/// The data of a `dask.core.literal`, an object that returns its data when called.
fn literal<'t, 'p>(node: Node<'t, 'p>) -> Option<Node<'t, 'p>> {
    let (callable, arguments) = node.as_call()?;
    let is_literal = callable
        .as_global()
        .is_some_and(|global| global.is("dask.core", "literal"));
    let [data] = arguments.exactly()?;
    is_literal.then_some(data)
}

/// Whether a tuple that begins with this node is a task.
fn is_callable(node: Node<'_, '_>) -> bool {
    const CALLABLE: [&str; 7] = [
        "SubgraphCallable",
        "_make_function",
        "attrgetter",
        "itemgetter",
        "literal",
        "methodcaller",
        "partial",
    ];
    let class = match node.value() {
        tree::Value::Global(_) => return true,
        tree::Value::Call { callable, .. } => callable,
        tree::Value::New { class, .. } => class,
        _ => return false,
    };
    let name = class.as_global();
    name.is_some_and(|global| CALLABLE.iter().any(|name| global.name == **name))
}

/// The items of a list of arguments.
fn list_of(argument: Argument) -> Option<Vec<Argument>> {
    match argument {
        Argument::List(items) | Argument::Tuple(items) => Some(items),
        Argument::Value(Value::List(items) | Value::Tuple(items)) => {
            Some(items.into_vec().into_iter().map(Argument::Value).collect())
        }
        _ => None,
    }
}

/// The entries of a dictionary of arguments.
fn entries_of(argument: Argument) -> Option<Vec<(Argument, Argument)>> {
    match argument {
        Argument::Dict(entries) => Some(entries),
        Argument::Value(Value::Dict(entries)) => {
            let entries = entries.into_vec().into_iter();
            Some(
                entries
                    .map(|(key, value)| (key.into(), value.into()))
                    .collect(),
            )
        }
        _ => None,
    }
}

/// A task as an argument. A task that makes a container, such as `(list, [..])` or
/// `(dict, [[k, v], ..])`, is converted to that container.
fn task_or_container(work: Work) -> Argument {
    let Work::Call {
        function: Function::Python { module, name },
        arguments,
        keywords,
    } = &work
    else {
        return nested_task(work);
    };
    let class = if module == "builtins" { &**name } else { "" };
    let [only] = &arguments[..] else {
        return nested_task(work);
    };
    if !keywords.is_empty() {
        return nested_task(work);
    }
    let Some(items) = list_of(only.clone()) else {
        return nested_task(work);
    };
    match class {
        "list" => Argument::List(items),
        "tuple" => Argument::Tuple(items),
        "set" => Argument::Set(items),
        "dict" => {
            let pairs = items.into_iter().map(|item| {
                let mut pair = list_of(item)?.into_iter();
                let pair = (pair.next()?, pair.next()?);
                Some(pair)
            });
            match pairs.collect::<Option<Vec<_>>>() {
                Some(pairs) => Argument::Dict(pairs),
                None => nested_task(work),
            }
        }
        _ => nested_task(work),
    }
}

fn nested_task(work: Work) -> Argument {
    Argument::Task(Box::new(Task {
        key: Key::default(),
        work,
    }))
}

struct TupleReader<'r, 'b> {
    reading: &'r TreeReader<'b>,
    is_input: IsInput<'r>,
}

impl TupleReader<'_, '_> {
    /// Reads a call whose arguments are not tasks.
    fn call(
        &self,
        function: Node<'_, '_>,
        args: Node<'_, '_>,
        kwargs: Node<'_, '_>,
    ) -> Result<Work, GraphError> {
        if is_execute_task(function)
            && let Some([task]) = args.items().exactly()
        {
            return self.nested(task);
        }
        let arguments = self.all(args.items(), false)?;
        self.work(function, arguments, self.keywords(kwargs)?)
    }

    /// Reads a task whose arguments may be tasks.
    fn nested(&self, task: Node<'_, '_>) -> Result<Work, GraphError> {
        Ok(match self.argument(task, true, DEPTH)? {
            Argument::Task(task) => task.work,
            argument => Work::Argument(argument),
        })
    }

    fn all<'t, 'p: 't>(
        &self,
        mut items: impl Iterator<Item = Node<'t, 'p>>,
        has_tasks: bool,
    ) -> Result<Vec<Argument>, GraphError> {
        self.some(&mut items, has_tasks, DEPTH)
    }

    fn some<'t, 'p: 't>(
        &self,
        items: &mut dyn Iterator<Item = Node<'t, 'p>>,
        has_tasks: bool,
        depth: usize,
    ) -> Result<Vec<Argument>, GraphError> {
        items
            .map(|item| self.argument(item, has_tasks, depth))
            .collect()
    }

    fn keywords(&self, entries: Node<'_, '_>) -> Result<Vec<(String, Argument)>, GraphError> {
        let entries = entries.entries().map(|(name, value)| {
            let wrong = || unexpected(name, "the name of an argument");
            let name = name.as_str().ok_or_else(wrong)?;
            self.reading.budget.spend_copy(name.len())?;
            Ok((name.to_owned(), self.argument(value, false, DEPTH)?))
        });
        entries.collect()
    }

    /// The call of a function, or of a graph that is one function.
    fn work(
        &self,
        called: Node<'_, '_>,
        arguments: Vec<Argument>,
        keywords: Vec<(String, Argument)>,
    ) -> Result<Work, GraphError> {
        if let tree::Value::Call {
            callable,
            arguments: parts,
        } = called.value()
            && callable
                .as_global()
                .is_some_and(|global| global.is("dask.optimization", "SubgraphCallable"))
        {
            return self.fused(parts, arguments);
        }
        Ok(Work::Call {
            function: function(&TaskReader::new(self.reading), called, DEPTH)?,
            arguments,
            keywords,
        })
    }

    /// Reads `SubgraphCallable(graph, output, inputs, ..)`.
    fn fused(&self, parts: Node<'_, '_>, arguments: Vec<Argument>) -> Result<Work, GraphError> {
        let budget = &self.reading.budget;
        let mut nodes = parts.items();
        let mut next = || nodes.next().ok_or_else(|| unexpected(parts, "a graph"));
        let (graph, output, names) = (next()?, next()?, next()?);
        let key = |node| key_of(node, budget);
        let names: Vec<Key> = names.items().map(key).collect::<Result<_, _>>()?;
        let own: Result<Vec<Key>, _> = graph.entries().map(|(node, _)| key(node)).collect();
        let mut inner = own?;
        inner.extend(names.iter().cloned());
        inner.sort_unstable();
        let is_inner = |key: &Key| inner.binary_search(key).is_ok();
        let reader = TupleReader {
            reading: self.reading,
            is_input: &is_inner,
        };
        let tasks = graph.entries().map(|(name, task)| {
            Ok(Task {
                key: key(name)?,
                work: reader.nested(task)?,
            })
        });
        Ok(Work::Fused {
            tasks: tasks.collect::<Result<_, GraphError>>()?,
            output: key(output)?,
            inputs: names.into_iter().zip(arguments).collect(),
        })
    }

    /// The key of a result that a node stands for.
    fn input(&self, node: Node<'_, '_>) -> Result<Option<Key>, GraphError> {
        let can_be_key = matches!(
            node.value(),
            tree::Value::Str(_)
                | tree::Value::Int(_)
                | tree::Value::Float(_)
                | tree::Value::Bytes(_)
                | tree::Value::Tuple(_)
        );
        if !can_be_key {
            return Ok(None);
        }
        // Not every tuple is a key.
        let key = key_of(node, &self.reading.budget);
        Ok(key.ok().filter(|key| (self.is_input)(key)))
    }

    // ROLES WORKER-4
    fn argument(
        &self,
        node: Node<'_, '_>,
        has_tasks: bool,
        depth: usize,
    ) -> Result<Argument, GraphError> {
        let wrong = || unexpected(node, "fewer levels of arguments");
        let depth = depth.checked_sub(1).ok_or_else(wrong)?;
        self.reading.budget.spend(1)?;
        if let Some(key) = self.input(node)? {
            return Ok(Argument::Result(key));
        }
        match node.value() {
            tree::Value::Tuple(mut nodes) => {
                let mut rest = node.items();
                if has_tasks
                    && let Some(called) = rest.next()
                    && is_callable(called)
                {
                    return self.task_argument(called, rest.collect(), depth);
                }
                let items = self.some(&mut nodes, has_tasks, depth)?;
                Ok(plain(items, Argument::Tuple, |values| {
                    Value::Tuple(values.into())
                }))
            }
            tree::Value::List(mut nodes) => {
                let items = self.some(&mut nodes, has_tasks, depth)?;
                Ok(plain(items, Argument::List, |values| {
                    Value::List(values.into())
                }))
            }
            tree::Value::Set(mut nodes) => {
                let items = self.some(&mut nodes, has_tasks, depth)?;
                Ok(plain(items, Argument::Set, |values| {
                    Value::Set(values.into())
                }))
            }
            tree::Value::Dict(entries) => {
                let mut is_plain = true;
                let mut pairs = Vec::new();
                for (key, value) in entries {
                    // Tasks in dictionaries are not run.
                    let value = self.argument(value, false, depth)?;
                    is_plain &= matches!(value, Argument::Value(_));
                    pairs.push((self.value(key)?, value));
                }
                if is_plain {
                    return self.value(node);
                }
                Ok(Argument::Dict(pairs))
            }
            _ => self.value(node),
        }
    }

    fn value(&self, node: Node<'_, '_>) -> Result<Argument, GraphError> {
        match self.reading.value(node, DEPTH) {
            Ok(value) => Ok(Argument::Value(value)),
            Err(ValueError::Unknown { what }) => {
                self.reading.budget.spend_copy(what.len())?;
                Ok(Argument::Unknown(what))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a task among arguments.
    fn task_argument(
        &self,
        called: Node<'_, '_>,
        nodes: Vec<Node<'_, '_>>,
        depth: usize,
    ) -> Result<Argument, GraphError> {
        if let Some(data) = literal(called) {
            return self.value(data);
        }
        let is_apply = called
            .as_global()
            .is_some_and(|global| global.is("dask.utils", "apply"));
        if is_apply && let [called, rest @ ..] = &nodes[..] {
            // (apply, function, arguments, keywords)
            let wrong = || unexpected(*called, "arguments in a list and a dictionary");
            let mut rest = self
                .some(&mut rest.iter().copied(), true, depth)?
                .into_iter();
            let arguments = rest.next().and_then(list_of).ok_or_else(wrong)?;
            let entries = match rest.next() {
                Some(entries) => entries_of(entries).ok_or_else(wrong)?,
                None => Vec::new(),
            };
            let keywords = entries.into_iter().map(|(name, value)| match name {
                Argument::Value(Value::Str(name)) => Ok((name.as_ref().to_owned(), value)),
                _ => Err(wrong()),
            });
            let keywords = keywords.collect::<Result<_, _>>()?;
            return Ok(nested_task(self.work(*called, arguments, keywords)?));
        }
        let arguments = self.some(&mut nodes.into_iter(), true, depth)?;
        Ok(task_or_container(self.work(
            called,
            arguments,
            Vec::new(),
        )?))
    }
}
