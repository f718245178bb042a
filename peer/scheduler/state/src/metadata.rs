//! Metadata: values that clients store under paths in nested dictionaries.

use core::fmt;
use std::collections::BTreeMap;

use daskwire_messages::protocol::Field as _;
use daskwire_messages::{Key, Value};

/// The metadata of a scheduler.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    root: BTreeMap<Key, Node>,
    /// The size of all keys and values in bytes.
    len: usize,
}

#[derive(Debug)]
enum Node {
    /// A dictionary with a path through it.
    Dict(BTreeMap<Key, Self>),
    Value(Value),
}

/// Maximum size of all metadata, in bytes.
const MAX_LEN: usize = 64 << 20;

/// Maximum number of keys of a path.
const MAX_DEPTH: usize = 64;

/// The size of an entry without its key and value, in bytes.
const OVERHEAD: usize = 128;

/// The reason why metadata cannot be read or stored. `Display` formats the message of Dask's
/// exception.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetadataError {
    /// There is nothing at the path: the first key of it that is missing.
    Missing(Key),
    /// The path leads through a value that is not a dictionary.
    NotADict {
        /// The name of the value's type in Python.
        found: String,
        /// The name of the key's type in Python.
        key: String,
    },
    /// The path is empty, or has an index past the end of a list.
    EmptyPath,
    /// The path has more than 64 keys, or all metadata would take more than 64 MiB.
    TooLarge,
}

impl MetadataError {
    /// The name of Dask's exception.
    pub const fn class(&self) -> &'static str {
        match self {
            Self::Missing(_) => "KeyError",
            Self::NotADict { .. } => "TypeError",
            Self::EmptyPath => "IndexError",
            Self::TooLarge => "MemoryError",
        }
    }
}

impl fmt::Display for MetadataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(key) => write!(f, "{key}"),
            // Python reads lists in messages as tuples.
            Self::NotADict { found, key } if matches!(&**found, "list" | "tuple") => {
                write!(f, "tuple indices must be integers or slices, not {key}")
            }
            Self::NotADict { found, .. } => write!(f, "'{found}' object is not subscriptable"),
            Self::EmptyPath => f.write_str("tuple index out of range"),
            Self::TooLarge => write!(
                f,
                "the scheduler stores at most {MAX_LEN} bytes of metadata, under paths of at most \
                 {MAX_DEPTH} keys"
            ),
        }
    }
}

impl core::error::Error for MetadataError {}

daskwire::kinds! {
    MetadataError: |error| match error {
        Self::Missing(_) | Self::NotADict { .. } | Self::EmptyPath => ErrorKind::Invalid,
        Self::TooLarge => ErrorKind::System,
    };
}

impl Metadata {
    /// Stores a value. Values on the path that are not dictionaries are replaced.
    pub(super) fn set(&mut self, path: &[Key], value: Value) -> Result<(), MetadataError> {
        self.check(path, &value)?;
        let (last, path) = path.split_last().ok_or(MetadataError::EmptyPath)?;
        let mut dict = &mut self.root;
        for key in path {
            let node = dict.entry(key.clone()).or_insert_with(|| {
                self.len += key.as_msgpack().len() + OVERHEAD;
                Node::Dict(BTreeMap::new())
            });
            if let Node::Value(value) = node {
                self.len -= value.heap_len();
                let entries = entries_of(value);
                let lens = entries.iter().map(|(key, value)| entry_len(key, value));
                self.len += lens.sum::<usize>();
                let entries = entries.into_iter();
                *node = Node::Dict(
                    entries
                        .map(|(key, value)| (key, Node::Value(value)))
                        .collect(),
                );
            }
            let Node::Dict(next) = node else {
                unreachable!("values were replaced by dictionaries");
            };
            dict = next;
        }
        self.len += entry_len(last, &value);
        if let Some(old) = dict.insert(last.clone(), Node::Value(value)) {
            self.len -= last.as_msgpack().len() + OVERHEAD + old.len();
        }
        Ok(())
    }

    /// Returns an error if a value cannot be stored.
    pub(super) fn check(&self, path: &[Key], value: &Value) -> Result<(), MetadataError> {
        let (last, path) = path.split_last().ok_or(MetadataError::EmptyPath)?;
        let keys = path.iter().map(|key| key.as_msgpack().len() + OVERHEAD);
        let new_len = keys.sum::<usize>() + entry_len(last, value);
        if path.len() >= MAX_DEPTH || self.len.saturating_add(new_len) > MAX_LEN {
            return Err(MetadataError::TooLarge);
        }
        Ok(())
    }

    /// Forgets the metadata under a key, such as that of a task. Returns whether there is any.
    pub(super) fn forget(&mut self, key: &Key) -> bool {
        let node = self.root.remove(key);
        if let Some(node) = &node {
            self.len -= key.as_msgpack().len() + OVERHEAD + node.len();
        }
        node.is_some()
    }

    /// Returns the value at a path.
    pub(super) fn get(&self, path: &[Key]) -> Result<Value, MetadataError> {
        let mut dict = &self.root;
        for (index, key) in path.iter().enumerate() {
            match dict.get(key) {
                None => return Err(MetadataError::Missing(key.clone())),
                Some(Node::Dict(next)) => dict = next,
                Some(Node::Value(value)) => return within(value, &path[index + 1..]),
            }
        }
        Ok(to_value(dict))
    }
}

impl Node {
    /// The size of the values, and of the keys below.
    fn len(&self) -> usize {
        let mut len = 0;
        let mut left = vec![self];
        while let Some(node) = left.pop() {
            match node {
                Self::Value(value) => len += value.heap_len(),
                Self::Dict(entries) => {
                    let keys = entries.keys().map(|key| key.as_msgpack().len() + OVERHEAD);
                    len += keys.sum::<usize>();
                    left.extend(entries.values());
                }
            }
        }
        len
    }
}

fn entry_len(key: &Key, value: &Value) -> usize {
    key.as_msgpack().len() + OVERHEAD + value.heap_len()
}

/// The entries of a dictionary whose keys can be those of paths; none of another value.
fn entries_of(value: &Value) -> Vec<(Key, Value)> {
    let Value::Dict(entries) = value else {
        return Vec::new();
    };
    let entries = entries.iter();
    let entries = entries.filter_map(|(key, value)| Some((to_key(key)?, value.clone())));
    entries.collect()
}

fn to_key(value: &Value) -> Option<Key> {
    match value {
        Value::Str(text) => Some(Key::from(&**text)),
        Value::Int(number) => i64::try_from(*number).ok().map(Key::from),
        Value::Float(number) => Some(Key::from(*number)),
        Value::Bytes(bytes) => Some(Key::from(&bytes[..])),
        _ => None,
    }
}

/// The value at a path within a value.
fn within(value: &Value, path: &[Key]) -> Result<Value, MetadataError> {
    let mut value = value.clone();
    for key in path {
        if let (Value::List(items) | Value::Tuple(items), Value::Int(index)) =
            (&value, key.to_value())
        {
            let index = usize::try_from(index).ok();
            let item = index.and_then(|index| items.get(index));
            value = item.ok_or(MetadataError::EmptyPath)?.clone();
            continue;
        }
        if !matches!(value, Value::Dict(_)) {
            return Err(MetadataError::NotADict {
                found: value.type_name().to_owned(),
                key: key.to_value().type_name().to_owned(),
            });
        }
        let mut entries = entries_of(&value).into_iter();
        let found = entries.find(|(known, _)| known == key);
        value = found.ok_or_else(|| MetadataError::Missing(key.clone()))?.1;
    }
    Ok(value)
}

/// The dictionary as a value. Recursion is bounded by [`MAX_DEPTH`].
fn to_value(dict: &BTreeMap<Key, Node>) -> Value {
    let entries = dict.iter().map(|(key, node)| {
        let value = match node {
            Node::Value(value) => value.clone(),
            Node::Dict(dict) => to_value(dict),
        };
        (key.to_value(), value)
    });
    Value::Dict(entries.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(names: &str) -> Vec<Key> {
        names.split_whitespace().map(Key::from).collect()
    }

    /// The size of the metadata as counted from its nodes.
    fn counted(metadata: &Metadata) -> usize {
        let lens = metadata.root.iter();
        let lens = lens.map(|(key, node)| key.as_msgpack().len() + OVERHEAD + node.len());
        lens.sum()
    }

    #[test]
    fn values_are_set_and_found_as_in_dask() {
        let mut metadata = Metadata::default();
        let get = |metadata: &Metadata, names: &str| metadata.get(&path(names));
        let missing = |name: &str| Err(MetadataError::Missing(name.into()));
        assert_eq!(get(&metadata, "a"), missing("a"));
        let mut set = |names: &str, value: Value| {
            metadata.set(&path(names), value).expect("it is small");
            assert_eq!(metadata.len, counted(&metadata));
        };
        set("a b", Value::from(1));
        set("x", Value::dict([("y", Value::dict([("z", 2)]))]));
        set("x y q", Value::from(3));
        assert_eq!(get(&metadata, "a"), Ok(Value::dict([("b", 1)])));
        assert_eq!(get(&metadata, "x y z"), Ok(Value::from(2)));
        let both = Value::dict([("q", 3), ("z", 2)]);
        assert_eq!(get(&metadata, "x y"), Ok(both));
        assert_eq!(get(&metadata, "x n"), missing("n"));
        let error = get(&metadata, "a b c").expect_err("it is a number");
        assert_eq!(error.to_string(), "'int' object is not subscriptable");
        // A value on the path is replaced.
        let mut set = |names: &str, value: Value| {
            metadata.set(&path(names), value).expect("it is small");
            assert_eq!(metadata.len, counted(&metadata));
        };
        set("a b c", Value::dict([("d", 4)]));
        set("x", Value::None);
        assert_eq!(get(&metadata, "a b c d"), Ok(Value::from(4)));
        assert_eq!(get(&metadata, "x"), Ok(Value::None));
        assert!(matches!(get(&metadata, ""), Ok(Value::Dict(all)) if all.len() == 2));
        for (name, is_there) in [("a", true), ("n", false)] {
            assert_eq!(metadata.forget(&Key::from(name)), is_there);
            assert_eq!(metadata.len, counted(&metadata));
        }
        assert_eq!(get(&metadata, "a"), missing("a"));
        let empty = metadata.set(&[], Value::None);
        assert_eq!(empty, Err(MetadataError::EmptyPath));
    }

    #[test]
    fn the_size_is_limited() {
        let mut metadata = Metadata::default();
        let large = || Value::bytes(vec![0; 40 << 20]);
        metadata.set(&path("a"), large()).expect("it fits");
        let refused = metadata.set(&path("b"), large());
        assert_eq!(refused, Err(MetadataError::TooLarge));
        metadata.set(&path("a"), Value::None).expect("it fits");
        metadata.set(&path("b"), large()).expect("it fits now");
        let deep = vec![Key::from("d"); MAX_DEPTH + 1];
        let refused = metadata.set(&deep, Value::None);
        assert_eq!(refused, Err(MetadataError::TooLarge));
    }
}
