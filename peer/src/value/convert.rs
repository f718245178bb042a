//! Conversions between values and Rust types.

use core::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::{Array, Serialized, Value};

/// An error: a value is not of the requested type.
#[derive(Clone, Debug, PartialEq)]
pub struct WrongType {
    /// The requested Rust type.
    pub wanted: &'static str,
    /// The value's Python type.
    pub found: &'static str,
}

impl fmt::Display for WrongType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found {}", self.wanted, self.found)
    }
}

impl core::error::Error for WrongType {}

impl From<()> for Value {
    fn from((): ()) -> Self {
        Self::None
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&str> for Value {
    fn from(string: &str) -> Self {
        Self::Str(string.into())
    }
}

impl From<String> for Value {
    fn from(string: String) -> Self {
        Self::Str(string.into())
    }
}

impl From<Arc<str>> for Value {
    fn from(string: Arc<str>) -> Self {
        Self::Str(string)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<f32> for Value {
    fn from(value: f32) -> Self {
        Self::Float(value.into())
    }
}

/// Converts to `bytes`.
impl From<Bytes> for Value {
    fn from(data: Bytes) -> Self {
        Self::Bytes(data)
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Self::Array(array)
    }
}

impl From<Serialized> for Value {
    fn from(serialized: Serialized) -> Self {
        Self::Serialized(serialized)
    }
}

/// Converts to a list, also from bytes; see [`Value::bytes`].
impl<T: Into<Self>> From<Vec<T>> for Value {
    fn from(items: Vec<T>) -> Self {
        Self::list(items)
    }
}

/// Converts to a list, also from bytes; see [`Value::bytes`].
impl<T: Clone + Into<Self>> From<&[T]> for Value {
    fn from(items: &[T]) -> Self {
        Self::list(items.iter().cloned())
    }
}

/// Converts to a list, also from bytes; see [`Value::bytes`].
impl<T: Into<Self>, const N: usize> From<[T; N]> for Value {
    fn from(items: [T; N]) -> Self {
        Self::list(items)
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl From<$type> for Value {
            fn from(value: $type) -> Self {
                // All these types fit into 128 bits.
                Self::Int(value as i128)
            }
        }

        impl TryFrom<Value> for $type {
            type Error = WrongType;

            fn try_from(value: Value) -> Result<Self, WrongType> {
                let number = match value {
                    Value::Int(number) => Self::try_from(number).ok(),
                    Value::Bool(flag) => Some(Self::from(flag)),
                    _ => None,
                };
                number.ok_or_else(|| wrong(stringify!($type), &value))
            }
        }
    )*};
}

integers! { i8 i16 i32 i64 i128 isize u8 u16 u32 u64 usize }

fn wrong(wanted: &'static str, value: &Value) -> WrongType {
    WrongType {
        wanted,
        found: value.type_name(),
    }
}

macro_rules! others {
    ($($type:ty, $($pattern:pat => $result:expr),+;)*) => {$(
        impl TryFrom<Value> for $type {
            type Error = WrongType;

            fn try_from(value: Value) -> Result<Self, WrongType> {
                match value {
                    $($pattern => Ok($result),)+
                    other => Err(wrong(stringify!($type), &other)),
                }
            }
        }
    )*};
}

#[expect(clippy::cast_precision_loss, reason = "as Python's float() of an int")]
const fn float(value: i128) -> f64 {
    value as f64
}

others! {
    bool, Value::Bool(value) => value;
    f64, Value::Float(value) => value, Value::Int(value) => float(value);
    String, Value::Str(string) => string.as_ref().to_owned();
    Arc<str>, Value::Str(string) => string;
    Bytes, Value::Bytes(data) => data, Value::ByteArray(data) => data;
    Array, Value::Array(array) => array;
    Vec<Value>, Value::List(items) => items.into_vec(), Value::Tuple(items) => items.into_vec();
    (), Value::None => ();
}
