//! Values as Python writes them.

use core::fmt::{self, Write as _};

use super::{LONGEST, Result, error, not_covered, too_large};
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
            bounded_repr(value, LONGEST)
        }
    }
}

/// What `repr()` gives, if that is not too long: a list may repeat a text often
/// without taking memory for it, but what it is written as does.
pub(super) fn bounded_repr(value: &Value, limit: usize) -> Result<String> {
    let mut text = Bounded {
        text: String::new(),
        limit,
    };
    match write!(text, "{value}") {
        Ok(()) => Ok(text.text),
        Err(fmt::Error) => Err(error("MemoryError", "the text would be too long")),
    }
}

/// A text that is refused beyond `limit` bytes, or if there is no memory for it.
struct Bounded {
    text: String,
    limit: usize,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if more.len() > self.limit.saturating_sub(self.text.len()) {
            return Err(fmt::Error);
        }
        self.text.try_reserve(more.len()).map_err(|_| fmt::Error)?;
        self.text.push_str(more);
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_list_that_repeats_another_text_is_bounded() {
        const LIMIT: usize = 1 << 16;
        let text = Value::from("x".repeat(1 << 10));
        let list = |count| Value::from(vec![text.clone(); count]);
        let found = bounded_repr(&list(60), LIMIT).expect("it is short enough");
        assert_eq!(found, repr(&list(60)));
        let long = bounded_repr(&list(70), LIMIT).expect_err("it is too long");
        assert!(long.to_string().contains("MemoryError"), "{long}");
    }
}
