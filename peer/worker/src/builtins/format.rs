//! String forms of values, as in Python.

use core::fmt::{self, Write as _};

use daskwire_messages::Value;

use super::{MAX_LEN, Result, error, not_covered, too_large};

pub(super) fn str_of(value: &Value) -> Result<String> {
    match value {
        Value::Str(string) => Ok(string.as_ref().to_owned()),
        value => {
            check_shown(value)?;
            bounded_repr(value, MAX_LEN)
        }
    }
}

/// The result of `repr()` if it is at most `limit` bytes long. A list may repeat
/// a string many times without using memory for each copy, but its `repr()` contains all
/// copies.
pub(super) fn bounded_repr(value: &Value, limit: usize) -> Result<String> {
    let mut written = Bounded {
        string: String::new(),
        limit,
    };
    match write!(written, "{value}") {
        Ok(()) => Ok(written.string),
        Err(fmt::Error) => Err(error("MemoryError", "the string would be too long")),
    }
}

/// A string that refuses to grow beyond `limit` bytes, or without free memory.
struct Bounded {
    string: String,
    limit: usize,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if more.len() > self.limit.saturating_sub(self.string.len()) {
            return Err(fmt::Error);
        }
        self.string
            .try_reserve(more.len())
            .map_err(|_| fmt::Error)?;
        self.string.push_str(more);
        Ok(())
    }
}

/// Refuses arrays and serialized objects, whose string form only Python can produce.
pub(super) fn check_shown(value: &Value) -> Result<()> {
    match value {
        Value::Array(_) | Value::Serialized(_) => {
            Err(not_covered("the string form of an array or object"))
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
    fn bounds_the_repr_of_repetitive_lists() {
        let string = Value::from("x".repeat(1 << 10));
        let list = |count| Value::from(vec![string.clone(); count]);
        for limit in [1 << 16, 1 << 17] {
            let count = limit >> 10;
            let found = bounded_repr(&list(count - 4), limit).expect("below the limit");
            assert_eq!(found, list(count - 4).to_string());
            for times in [1, 2, 4] {
                let long = bounded_repr(&list(times * count), limit);
                let error = long.expect_err("above the limit").to_string();
                assert!(error.contains("MemoryError"), "{error}");
                let mut written = Bounded {
                    string: String::new(),
                    limit,
                };
                write!(written, "{}", list(times * count)).expect_err("above the limit");
                assert!(written.string.len() <= limit, "{}", written.string.len());
            }
        }
    }
}
