//! Exceptions as strings.

#[cfg(test)]
mod tests;

use core::fmt::Write;

use crate::fixed_string::FixedString;
use crate::pickle_tree::{Id, Node, Tree};

/// Writes the class of an exception and its first argument, if that is a string.
pub(super) fn describe<const N: usize>(tree: &Tree<'_>, out: &mut FixedString<N>) -> Option<()> {
    let Node::Call(call) = tree.get(tree.root()) else {
        return None;
    };
    // A class and its arguments; or, in the two forms of tblib, a function with a
    // class and its arguments or a dict of them.
    let mut arguments = tree.items(call.arguments);
    let is_tblib = |name| tree.is_global(call.callable, &["tblib.pickling_support"], name);
    let (class, arguments) = if is_tblib("unpickle_exception") {
        (arguments.next()?, arguments.next()?)
    } else if is_tblib("unpickle_exception_with_attrs") {
        let class = arguments.next()?;
        (class, entry(tree, arguments.next()?, "args")?)
    } else {
        (call.callable, call.arguments)
    };
    let Node::Global { name, .. } = tree.get(class) else {
        return None;
    };
    out.write_str(name).ok()?;
    let first = tree.items(arguments).next();
    if let Some(Node::Str(message)) = first.map(|first| tree.get(first)) {
        // A message that is too long is left out.
        if message.len().saturating_add(2) <= out.space() {
            let _ = write!(out, ": {message}");
        }
    }
    Some(())
}

/// The value of a key of a dict.
fn entry(tree: &Tree<'_>, dict: Id, key: &str) -> Option<Id> {
    let mut items = tree.items(dict);
    while let (Some(found), Some(value)) = (items.next(), items.next()) {
        if tree.get(found) == Node::Str(key) {
            return Some(value);
        }
    }
    None
}
