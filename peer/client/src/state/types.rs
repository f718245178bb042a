//! The names of the types of results, each stored once.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use daskwire_messages::Value;
use daskwire_pickle::tree::{Tree, Value as TreeValue};

/// Maximum number of types that are remembered, and maximum length of the pickle of
/// one, in bytes. Results of types beyond either limit have no
/// type name.
const MAX_TYPES: usize = 1024;
const MAX_LEN: usize = 1024;

/// The number of a type: one more than its index; 0 if the type is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TypeNumber(u16);

/// The types that were reported.
#[derive(Debug, Default)]
pub(super) struct Types {
    names: Vec<Option<Arc<str>>>,
    by_pickle: HashMap<Bytes, TypeNumber>,
}

impl Types {
    /// The number of a reported type: the pickle of a class.
    pub(super) fn number(&mut self, class: &Value) -> TypeNumber {
        let pickle = match class {
            Value::Bytes(pickle) => pickle.clone(),
            Value::Serialized(serialized) => serialized.pickle().unwrap_or_default().0,
            _ => return TypeNumber::default(),
        };
        if let Some(number) = self.by_pickle.get(&pickle) {
            return *number;
        }
        if self.names.len() >= MAX_TYPES || pickle.len() > MAX_LEN {
            return TypeNumber::default();
        }
        self.names.push(name(&pickle));
        let number = u16::try_from(self.names.len()).map_or_else(|_| TypeNumber(0), TypeNumber);
        self.by_pickle.insert(pickle, number);
        number
    }

    pub(super) fn name(&self, number: TypeNumber) -> Option<Arc<str>> {
        let index = usize::from(number.0.checked_sub(1)?);
        self.names.get(index)?.clone()
    }
}

/// The name of a pickled class, as Python shows it.
fn name(pickle: &[u8]) -> Option<Arc<str>> {
    let tree = Tree::new(pickle).ok()?;
    let TreeValue::Global(class) = tree.root().value() else {
        return None;
    };
    let name = class.to_string();
    Some(name.strip_prefix("builtins.").unwrap_or(&name).into())
}
