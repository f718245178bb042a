//! Comparison, truth, length, iteration and indexing.

use core::cmp::Ordering;

use daskwire_messages::Value;

use super::format::bounded_repr;
use super::index::Index;
use super::number::{Number, number};
use super::{MAX_LEN, Result, error, not_covered, too_large, type_error};

fn compare_numbers(a: Number, b: Number) -> Option<Ordering> {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
        (Number::Int(a), Number::Float(b)) => compare_int(a, b),
        (Number::Float(a), Number::Int(b)) => compare_int(b, a).map(Ordering::reverse),
        (a, b) => match (a.to_complex(), b.to_complex()) {
            ((a, 0.0), (b, 0.0)) => a.partial_cmp(&b),
            (a, b) => (a == b).then_some(Ordering::Equal),
        },
    }
}

/// Compares an integer of any size with a float, exactly.
#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn compare_int(a: i128, b: f64) -> Option<Ordering> {
    const END: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;
    if b.is_nan() {
        return None;
    }
    if b >= END {
        return Some(Ordering::Less);
    }
    if b < -END {
        return Some(Ordering::Greater);
    }
    let whole = b.trunc();
    Some(a.cmp(&(whole as i128)).then(whole.total_cmp(&b)))
}

/// Whether two values are equal in Python.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    let all =
        |a: &[Value], b: &[Value]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b));
    match (a, b) {
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => all(a, b),
        (Value::Set(a) | Value::FrozenSet(a), Value::Set(b) | Value::FrozenSet(b)) => {
            let index = Index::of(b.iter());
            a.len() == b.len() && a.iter().all(|item| index.find(item).is_some())
        }
        (Value::Dict(a), Value::Dict(b)) => {
            let index = Index::of(b.iter().map(|(key, _)| key));
            a.len() == b.len()
                && a.iter().all(|(key, value)| {
                    let other = index.find(key).and_then(|position| b.get(position));
                    other.is_some_and(|(_, other)| equal(value, other))
                })
        }
        (Value::Bytes(a) | Value::ByteArray(a), Value::Bytes(b) | Value::ByteArray(b)) => a == b,
        (a, b) => match (number(a), number(b)) {
            (Some(a), Some(b)) => compare_numbers(a, b) == Some(Ordering::Equal),
            _ => a == b,
        },
    }
}

pub(super) fn contains_item(items: &[Value], item: &Value) -> bool {
    items.iter().any(|other| equal(other, item))
}

/// The items without duplicates, as in a set.
///
/// # Errors
///
/// A `TypeError` if an item is not hashable.
pub(crate) fn distinct(items: Vec<Value>) -> Result<Vec<Value>> {
    items.iter().try_for_each(check_hashable)?;
    let mut index = Index::default();
    let is_first: Vec<bool> = items.iter().map(|item| index.insert(item).1).collect();
    drop(index);
    let mut is_first = is_first.into_iter();
    let mut items = items;
    items.retain(|_| is_first.next().expect("one for each item"));
    Ok(items)
}

/// The order of two values; `Ok(None)` if they are unordered, as NaN is.
pub(super) fn order(symbol: &str, a: &Value, b: &Value) -> Result<Option<Ordering>> {
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => return Ok(Some(a.cmp(b))),
        (Value::Bytes(a) | Value::ByteArray(a), Value::Bytes(b) | Value::ByteArray(b)) => {
            return Ok(Some(a.cmp(b)));
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            for (a, b) in a.iter().zip(b) {
                if !equal(a, b) {
                    return order(symbol, a, b);
                }
            }
            return Ok(Some(a.len().cmp(&b.len())));
        }
        _ => {}
    }
    match (number(a), number(b)) {
        (Some(Number::Complex(..)), _) | (_, Some(Number::Complex(..))) => {}
        (Some(a), Some(b)) => return Ok(compare_numbers(a, b)),
        _ => {}
    }
    for value in [a, b] {
        match value {
            Value::LargeInt(_) => return Err(too_large()),
            Value::Array(_) => return Err(not_covered("comparing arrays")),
            Value::Set(_) | Value::FrozenSet(_) => return Err(not_covered("comparing sets")),
            _ => {}
        }
    }
    Err(type_error(&format!(
        "'{symbol}' not supported between instances of '{}' and '{}'",
        a.type_name(),
        b.type_name()
    )))
}

pub(super) fn check_comparable(a: &Value, b: &Value) -> Result<()> {
    for value in [a, b] {
        if let Value::Array(_) | Value::Serialized(_) = value {
            return Err(not_covered("comparing arrays and objects"));
        }
    }
    Ok(())
}

pub(super) fn truth(value: &Value) -> Result<bool> {
    Ok(match value {
        Value::None => false,
        Value::Bool(value) => *value,
        Value::Int(value) => *value != 0,
        Value::LargeInt(_) => true,
        Value::Float(value) => *value != 0.0,
        Value::Complex(real, imaginary) => *real != 0.0 || *imaginary != 0.0,
        Value::Array(_) | Value::Serialized(_) => {
            return Err(not_covered("the truth value of arrays and objects"));
        }
        other => len(other)? != 0,
    })
}

pub(super) fn len(value: &Value) -> Result<usize> {
    Ok(match value {
        Value::Str(string) => string.chars().count(),
        Value::Bytes(data) | Value::ByteArray(data) => data.len(),
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
            items.len()
        }
        Value::Dict(entries) => entries.len(),
        Value::Array(array) => match array.shape().first() {
            Some(len) => *len,
            None => return Err(type_error("len() of unsized object")),
        },
        Value::Serialized(what) => return Err(not_covered(&format!("the length of {what}"))),
        other => {
            let message = format!("object of type '{}' has no len()", other.type_name());
            return Err(type_error(&message));
        }
    })
}

/// The items that iterating over a value yields.
pub(super) fn items(value: &Value) -> Result<Vec<Value>> {
    Ok(match value {
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
            items.to_vec()
        }
        Value::Dict(entries) => entries.iter().map(|(key, _)| key.clone()).collect(),
        Value::Str(string) => string
            .chars()
            .map(|c| Value::from(String::from(c)))
            .collect(),
        Value::Bytes(data) | Value::ByteArray(data) => {
            data.iter().map(|byte| Value::from(*byte)).collect()
        }
        Value::Array(_) => return Err(not_covered("iterating over arrays")),
        Value::Serialized(what) => return Err(not_covered(&format!("iterating over {what}"))),
        other => {
            let message = format!("'{}' object is not iterable", other.type_name());
            return Err(type_error(&message));
        }
    })
}

pub(super) fn getitem(from: &Value, index: &Value) -> Result<Value> {
    if let Value::Dict(entries) = from {
        check_hashable(index)?;
        let found = entries.iter().find(|(key, _)| equal(key, index));
        return match found {
            Some((_, value)) => Ok(value.clone()),
            None => Err(error("KeyError", &bounded_repr(index, MAX_LEN)?)),
        };
    }
    let Some(Number::Int(index)) = number(index) else {
        if let Value::Serialized(what) = index {
            return Err(not_covered(&format!("the index {what}")));
        }
        let message = format!(
            "{} indices must be integers or slices, not {}",
            from.type_name(),
            index.type_name()
        );
        return Err(type_error(&message));
    };
    let what = match from {
        Value::Str(_) => "string",
        other => other.type_name(),
    };
    let position = |len: usize| {
        let len = len as i128;
        let index = if index < 0 {
            index.saturating_add(len)
        } else {
            index
        };
        usize::try_from(index)
            .ok()
            .filter(|index| (*index as i128) < len)
            .ok_or_else(|| error("IndexError", &format!("{what} index out of range")))
    };
    match from {
        Value::List(items) | Value::Tuple(items) => Ok(items[position(items.len())?].clone()),
        Value::Bytes(data) | Value::ByteArray(data) => Ok(Value::from(data[position(data.len())?])),
        Value::Str(string) => {
            let index = position(string.chars().count())?;
            let found = string.chars().nth(index);
            Ok(Value::from(String::from(
                found.expect("a position in the string"),
            )))
        }
        Value::Array(_) => Err(not_covered("items of arrays")),
        Value::Serialized(what) => Err(not_covered(&format!("an item of {what}"))),
        other => {
            let message = format!("'{}' object is not subscriptable", other.type_name());
            Err(type_error(&message))
        }
    }
}

pub(super) fn contains(all: &Value, item: &Value) -> Result<bool> {
    match (all, item) {
        (Value::Str(all), Value::Str(part)) => Ok(all.contains(&**part)),
        (Value::Str(_), other) => Err(type_error(&format!(
            "'in <string>' requires string as left operand, not {}",
            other.type_name()
        ))),
        (Value::Bytes(all), Value::Bytes(part)) => {
            Ok(part.is_empty() || all.windows(part.len()).any(|window| window == part))
        }
        (Value::Bytes(all) | Value::ByteArray(all), item) => match item {
            Value::Int(byte) => match u8::try_from(*byte) {
                Ok(byte) => Ok(all.contains(&byte)),
                Err(_) => Err(error("ValueError", "byte must be in range(0, 256)")),
            },
            Value::Bool(byte) => Ok(all.contains(&u8::from(*byte))),
            other => Err(type_error(&format!(
                "a bytes-like object is required, not '{}'",
                other.type_name()
            ))),
        },
        // Python looks a set up as a frozen set.
        (Value::Set(all) | Value::FrozenSet(all), Value::Set(_)) => Ok(contains_item(all, item)),
        (Value::Dict(_) | Value::Set(_) | Value::FrozenSet(_), item) => {
            check_hashable(item)?;
            Ok(contains_item(&items(all)?, item))
        }
        _ => Ok(contains_item(&items(all)?, item)),
    }
}

pub(super) fn check_hashable(value: &Value) -> Result<()> {
    match value {
        Value::List(_) | Value::Dict(_) | Value::Set(_) | Value::ByteArray(_) => Err(type_error(
            &format!("unhashable type: '{}'", value.type_name()),
        )),
        Value::Tuple(items) => items.iter().try_for_each(check_hashable),
        Value::Array(_) => Err(type_error("unhashable type: 'numpy.ndarray'")),
        Value::Serialized(what) => Err(not_covered(&format!("the hash of {what}"))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_compared_with_integers_exactly() {
        let big = (1_i128 << 53) + 1;
        assert_eq!(
            compare_int(big, 9_007_199_254_740_992.0),
            Some(Ordering::Greater)
        );
        assert_eq!(compare_int(0, -0.0), Some(Ordering::Equal));
        assert_eq!(compare_int(2, 2.5), Some(Ordering::Less));
        assert_eq!(compare_int(-2, -2.5), Some(Ordering::Greater));
        assert_eq!(compare_int(i128::MAX, f64::INFINITY), Some(Ordering::Less));
        assert_eq!(compare_int(0, f64::NAN), None);
    }
}
