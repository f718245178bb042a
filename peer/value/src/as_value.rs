//! Fields of structs that keep their type in Python, with `#[serde(with = ...)]`.
//!
//! With serde alone, a date of `chrono` is a string and an array of `ndarray` a list. With
//! this module, the field is what `From` and `TryFrom` convert it to, in both directions:
//!
//! ```
//! use daskwire_value::{Array, Value};
//! use core::time::Duration;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, PartialEq, Deserialize, Serialize)]
//! struct Run {
//!     #[serde(with = "daskwire_value::as_value")]
//!     took: Duration,
//!     #[serde(with = "daskwire_value::as_value")]
//!     sizes: Option<Array>,
//! }
//! let sizes = Some(Array::from_slice(&[2], &[1.5, 2.5])?);
//! let run = Run { took: Duration::from_millis(1500), sizes };
//! let value = Value::from_serialize(&run)?;
//! assert_eq!(
//!     value.to_string(),
//!     "{'took': datetime.timedelta(seconds=1, microseconds=500000), 'sizes': array([1.5, 2.5])}"
//! );
//! assert_eq!(value.deserialize::<Run>()?, run);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use core::cell::RefCell;
use core::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap as _, SerializeSeq as _, Serializer};

use super::{Array, Value, WrongType};

/// Serializes the value that a field converts to.
///
/// # Errors
///
/// If the field cannot be converted, or the serializer fails.
pub fn serialize<T, S>(field: &T, serializer: S) -> Result<S::Ok, S::Error>
where
    T: Clone + TryInto<Value, Error: fmt::Display>,
    S: Serializer,
{
    let value = field.clone().try_into();
    value
        .map_err(serde::ser::Error::custom)?
        .serialize(serializer)
}

/// Deserializes a value, and converts it to the type of the field.
///
/// # Errors
///
/// If the value cannot be converted, or the deserializer fails.
pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: TryFrom<Value, Error: Into<WrongType>>,
    D: Deserializer<'de>,
{
    let value: Value = Deserialize::deserialize(deserializer)?;
    T::try_from(value).map_err(|error| de::Error::custom(error.into()))
}

/// The name under which a value passes through a serializer: that of this crate takes the
/// value itself, others see the data in it.
pub(super) const NAME: &str = "daskwire_value::Value";

thread_local! {
    /// The value that passes, while it does.
    static PASSED: RefCell<Passed> = const { RefCell::new(Passed::Nothing) };
}

#[derive(Default)]
enum Passed {
    #[default]
    Nothing,
    /// The serializer of this crate expects the value.
    Expected,
    Value(Value),
}

/// The value in the content of a newtype called [`NAME`], if it is one; `serialize`
/// serializes the content.
pub(super) fn take_from<E>(serialize: impl FnOnce() -> Result<Value, E>) -> Result<Value, E> {
    PASSED.set(Passed::Expected);
    let other = serialize();
    match PASSED.take() {
        Passed::Value(value) => Ok(value),
        _ => other,
    }
}

/// Hands a value to a visitor of a newtype called [`NAME`].
pub(super) fn hand_over<T>(value: Value, visit: impl FnOnce() -> T) -> T {
    PASSED.set(Passed::Value(value));
    let visited = visit();
    PASSED.set(Passed::Nothing);
    visited
}

/// The content of the newtype.
struct Content<'v>(&'v Value);

impl Serialize for Content<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_expected = PASSED.with_borrow_mut(|passed| match passed {
            Passed::Expected => {
                *passed = Passed::Value(self.0.clone());
                true
            }
            _ => false,
        });
        if is_expected {
            return serializer.serialize_unit();
        }
        let items = |serializer: S, items: &[Value]| {
            let mut sequence = serializer.serialize_seq(Some(items.len()))?;
            items
                .iter()
                .try_for_each(|item| sequence.serialize_element(item))?;
            sequence.end()
        };
        match self.0 {
            Value::None => serializer.serialize_none(),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Int(number) => match (i64::try_from(*number), u64::try_from(*number)) {
                (Ok(number), _) => serializer.serialize_i64(number),
                (_, Ok(number)) => serializer.serialize_u64(number),
                _ => serializer.serialize_i128(*number),
            },
            Value::Float(value) => serializer.serialize_f64(*value),
            Value::Str(string) => serializer.serialize_str(string),
            Value::Bytes(data) | Value::ByteArray(data) => serializer.serialize_bytes(data),
            Value::List(list) | Value::Tuple(list) | Value::Set(list) | Value::FrozenSet(list) => {
                items(serializer, list)
            }
            Value::Dict(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                entries
                    .iter()
                    .try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                map.end()
            }
            Value::Array(array) => match array.to_value() {
                Ok(value) => value.serialize(serializer),
                Err(error) => Err(serde::ser::Error::custom(error)),
            },
            Value::Complex(real, imaginary) => {
                items(serializer, &[Value::Float(*real), Value::Float(*imaginary)])
            }
            Value::Object(object) => match (object.base(), object.text(), object.duration()) {
                (Some(base), _, _) => base.serialize(serializer),
                (_, Some(text), _) => serializer.serialize_str(&text),
                (_, _, Some(nanoseconds)) => serializer.serialize_f64(nanoseconds as f64 / 1e9),
                _ => items(serializer, object.arguments()),
            },
            other @ (Value::LargeInt(_) | Value::Serialized(_)) => {
                let what = WrongType::new("data that serde has", other);
                Err(serde::ser::Error::custom(what))
            }
        }
    }
}

/// Serializes the data in the value: dates, decimal numbers and UUIDs are strings, time
/// differences are seconds, and arrays are lists. [`Value::from_serialize`] takes the value
/// as it is.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(NAME, &Content(self))
    }
}

/// Serializes the array as [`Value`] does.
impl Serialize for Array {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Value::from(self.clone()).serialize(serializer)
    }
}

/// Deserializes any data. [`Value::deserialize`] returns the value as it is.
impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(NAME, AnyValue)
    }
}

/// Deserializes an array of this crate. Other data is no array.
impl<'de> Deserialize<'de> for Array {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize(deserializer)
    }
}

/// Makes a value of any data.
struct AnyValue;

macro_rules! visits {
    ($($method:ident: $type:ty;)*) => {$(
        fn $method<E>(self, value: $type) -> Result<Value, E> {
            Ok(Value::from(value))
        }
    )*};
}

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    visits! {
        visit_bool: bool;
        visit_i64: i64;
        visit_i128: i128;
        visit_u64: u64;
        visit_u128: u128;
        visit_f64: f64;
        visit_str: &str;
    }

    fn visit_bytes<E>(self, data: &[u8]) -> Result<Value, E> {
        Ok(Value::bytes(data.to_vec()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Deserialize::deserialize(deserializer)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Value, D::Error> {
        match PASSED.take() {
            Passed::Value(value) => Ok(value),
            _ => deserializer.deserialize_any(self),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element::<Value>()? {
            all.push(item);
        }
        Value::List(all.into()).checked().map_err(de::Error::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(entry) = map.next_entry::<Value, Value>()? {
            all.push(entry);
        }
        Value::Dict(all.into()).checked().map_err(de::Error::custom)
    }
}
