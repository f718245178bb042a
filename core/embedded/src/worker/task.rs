//! The execution of a task.

use daskwire::invariant::OrDefaultIfBug as _;
use daskwire::msgpack::Writer;

use crate::pickle_tree::{Id, Node, Tree};
use crate::store::{MAX_KEY, StoreView};
use crate::value::{Args, Failure, MAX_BUFFERS, NO_ROOM, Out, SPEC, Value, write_key};

/// A function that tasks can call. It takes its arguments, and writes its result.
pub type Function = fn(&Args<'_>, &mut Out<'_>) -> Result<(), Failure>;

/// The maximum number of arguments of a function.
pub const MAX_ARGS: usize = 8;

/// The prefix of functions that are not Python's: the name of the method in
/// `operator.methodcaller("native:hypot")`, which every Python can unpickle.
const NATIVE: &str = "native:";

const OPERATOR: &[&str] = &["operator", "_operator"];

/// Runs a stored task. `is_called` says whether its function was called.
pub(super) fn run(
    functions: &[(&str, Function)],
    view: &StoreView<'_>,
    spec: &[u8],
    out: &mut Out<'_>,
    is_called: &mut bool,
) -> Result<(), Failure> {
    let refused = Failure::type_error("this worker does not understand the task");
    // The pickle and its buffers, each after its length.
    let mut parts = [&[][..]; 1 + MAX_BUFFERS];
    let mut count = 0_usize;
    let mut rest = spec;
    while let Some((len, after)) = rest.split_first_chunk() {
        let len = usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX);
        let (part, after) = after.split_at_checked(len).ok_or(refused)?;
        *parts.get_mut(count).ok_or(NO_ROOM)? = part;
        count = count.wrapping_add(1);
        rest = after;
    }
    let parts = parts.get(..count).or_default_if_bug();
    let (pickle, buffers) = parts.split_first().ok_or(refused)?;
    let mut tree = Tree::new();
    tree.read(pickle, buffers)?;

    let input = |tree: &Tree<'_>, id: Id| {
        let mut key = [0; MAX_KEY];
        let mut writer = Writer::new(&mut key);
        write_key(tree, id, &mut writer)?;
        view.value(writer.finish().ok()?)
    };
    let Node::Call(task) = tree.get(tree.root()) else {
        return Err(refused);
    };
    let is = |name| tree.is_global(task.callable, SPEC, name);
    if is("Alias") {
        return Value::from_pickle(&tree, tree.root(), &input, &mut out.refused)?.store(out);
    }
    if is("DataNode") {
        // A key and a value.
        let value = tree.items(task.arguments).last().ok_or(refused)?;
        return Value::from_pickle(&tree, value, &input, &mut out.refused)?.store(out);
    }
    if !is("Task") {
        return Err(refused);
    }
    // The function, the tuple of arguments, and how many others come before them.
    let (function, (arguments, skipped)) = match task.state {
        // The slots of the class in alphabetical order.
        Some(state) => {
            let slots = tree.exactly::<9>(state).ok_or(refused)?;
            let [_, _, _, _, _, args, func, _, kwargs] = slots;
            if tree.items(kwargs).len() != 0 {
                return Err(Failure::type_error(
                    "functions here take no keyword arguments",
                ));
            }
            (func, (args, 0))
        }
        None => {
            let mut items = tree.items(task.arguments);
            let func = items.nth(1).ok_or(refused)?;
            (func, (task.arguments, 2))
        }
    };
    let function = find(functions, &tree, function)?;
    let arguments = tree.items(arguments).skip(skipped);
    let mut values = [Value::None; MAX_ARGS];
    let values = values
        .get_mut(..arguments.len())
        .ok_or(Failure::type_error(
            "the function has more arguments than this worker allows",
        ))?;
    for (place, id) in values.iter_mut().zip(arguments) {
        *place = Value::from_pickle(&tree, id, &input, &mut out.refused)?;
    }
    *is_called = true;
    function(&Args { values }, out)
}

/// The function of a task.
fn find(functions: &[(&str, Function)], tree: &Tree<'_>, id: Id) -> Result<Function, Failure> {
    let unknown = Failure {
        class: "NotImplementedError",
        message: "this worker does not have the function: it is no Python, \
                  and has only those of operator.methodcaller(\"native:NAME\")",
    };
    let Node::Call(call) = tree.get(id) else {
        return Err(unknown);
    };
    if !tree.is_global(call.callable, OPERATOR, "methodcaller") {
        return Err(unknown);
    }
    let [name] = tree.exactly(call.arguments).ok_or(unknown)?;
    let Node::Str(name) = tree.get(name) else {
        return Err(unknown);
    };
    let name = name.strip_prefix(NATIVE).ok_or(unknown)?;
    let mut functions = functions.iter();
    let found = functions.find(|(known, _)| *known == name);
    found.map(|(_, function)| *function).ok_or(unknown)
}
