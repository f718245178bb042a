//! Values as Python writes them.

use super::{Result, not_covered, too_large};
use crate::Value;

/// What `repr()` gives.
pub(in crate::worker) fn repr(value: &Value) -> String {
    value.to_string()
}

pub(super) fn str_of(value: &Value) -> Result<String> {
    match value {
        Value::Str(text) => Ok(text.as_ref().to_owned()),
        value => {
            check_shown(value)?;
            Ok(repr(value))
        }
    }
}

/// Arrays and what is not opened have a text that only Python knows.
pub(super) fn check_shown(value: &Value) -> Result<()> {
    match value {
        Value::Array(_) | Value::Serialized(_) => {
            Err(not_covered("the text of an array or object"))
        }
        Value::LargeInt(_) => Err(too_large()),
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
            items.iter().try_for_each(check_shown)
        }
        Value::Dict(entries) => entries.iter().try_for_each(|(key, value)| {
            check_shown(key)?;
            check_shown(value)
        }),
        _ => Ok(()),
    }
}
