//! Conversions to values that may fail.

use core::error::Error;
use core::time::Duration;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::arguments::one_argument;
use super::convert::{sorted_entries, sorted_items};
use super::{Array, Object, Optional, Serialized, Value};

/// A conversion to a [`Value`] that may fail: what functions of a worker return, and what calls
/// take.
///
/// Besides the types that convert with `From`, arrays of `ndarray`, a `RecordBatch` of
/// Arrow and `Serde<T>` have it (with their features), and so have options, vectors,
/// arrays, sets, maps and tuples of any of these. Implement it for a type of your own to
/// return it from functions and pass it to them, also within those containers:
///
/// ```
/// use daskwire_value::Value;
/// use daskwire_value::IntoValue;
///
/// struct Point(f64, f64);
///
/// impl IntoValue for Point {
///     fn into_value(self) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
///         (self.0, self.1).into_value()
///     }
/// }
///
/// let corners = vec![Point(0.0, 0.0), Point(1.5, 2.0)].into_value()?;
/// assert_eq!(corners.to_string(), "[(0.0, 0.0), (1.5, 2.0)]");
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not convert to a `Value`",
    note = "with features of `daskwire-value`, types of other crates do, and `Serde(value)` of any type with \
            `Serialize`",
    note = "implement `IntoValue` for a type of your own"
)]
pub trait IntoValue {
    /// Converts to a value.
    ///
    /// # Errors
    ///
    /// That of the type's conversion, such as `NumpyError` for an array with more than 64
    /// dimensions. In a container, that of the first item that does not convert.
    fn into_value(self) -> Result<Value, Box<dyn Error + Send + Sync>>;
}

/// Implements [`IntoValue`] for types with a conversion by `TryFrom` or `From`, of which a value is
/// one argument of a call.
macro_rules! into_value {
    (@one {$($parameter:tt)*} $type:ty) => {
        impl<$($parameter)*> $crate::IntoValue for $type {
            fn into_value(
                self,
            ) -> Result<Value, Box<dyn core::error::Error + Send + Sync>> {
                Ok(Value::try_from(self)?)
            }
        }

        $crate::arguments::one_argument! { {$($parameter)*} $type }
    };
    ($($parameters:tt $($type:ty),+;)*) => {
        $($(into_value! { @one $parameters $type })+)*
    };
}

pub(super) use into_value;

into_value! {
    {} i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize;
    {} f32, f64, bool, char, Duration;
    {} &str, &String, String, Cow<'_, str>, Arc<str>, Bytes;
    {} Array, Object, Serialized, Value;
}

one_argument! { {T} Option<T> }
one_argument! { {T} Optional<T> }
one_argument! { {T} BTreeSet<T> }
one_argument! { {T, S} HashSet<T, S> }
one_argument! { {K, V} BTreeMap<K, V> }
one_argument! { {K, V, S} HashMap<K, V, S> }

impl IntoValue for () {
    fn into_value(self) -> Result<Value, Box<dyn Error + Send + Sync>> {
        Ok(Value::None)
    }
}

impl<T: IntoValue> IntoValue for Option<T> {
    fn into_value(self) -> Result<Value, Box<dyn Error + Send + Sync>> {
        self.map_or(Ok(Value::None), T::into_value)
    }
}

impl<T: IntoValue> IntoValue for Optional<T> {
    fn into_value(self) -> Result<Value, Box<dyn Error + Send + Sync>> {
        self.0.into_value()
    }
}

/// Converts the items of a sequence or set.
fn items<T: IntoValue, C: FromIterator<Value>>(
    items: impl IntoIterator<Item = T>,
) -> Result<C, Box<dyn Error + Send + Sync>> {
    items.into_iter().map(T::into_value).collect()
}

/// Converts the entries of a map.
fn entries<K: IntoValue, V: IntoValue>(
    entries: impl IntoIterator<Item = (K, V)>,
) -> Result<Vec<(Value, Value)>, Box<dyn Error + Send + Sync>> {
    let entries = entries.into_iter();
    entries
        .map(|(key, value)| Ok((key.into_value()?, value.into_value()?)))
        .collect()
}

impl<T: IntoValue> IntoValue for Vec<T> {
    fn into_value(self) -> Result<Value, Box<dyn Error + Send + Sync>> {
        Ok(Value::List(items(self)?))
    }
}

impl<T: Clone + IntoValue> IntoValue for &[T] {
    fn into_value(self) -> Result<Value, Box<dyn Error + Send + Sync>> {
        Ok(Value::List(items(self.iter().cloned())?))
    }
}

impl<T: IntoValue, const N: usize> IntoValue for [T; N] {
    fn into_value(self) -> Result<Value, Box<dyn Error + Send + Sync>> {
        Ok(Value::List(items(self)?))
    }
}

impl<T: IntoValue> IntoValue for BTreeSet<T> {
    fn into_value(self) -> Result<Value, Box<dyn Error + Send + Sync>> {
        Ok(Value::Set(items(self)?))
    }
}

impl<T: IntoValue, S> IntoValue for HashSet<T, S> {
    fn into_value(self) -> Result<Value, Box<dyn Error + Send + Sync>> {
        Ok(Value::Set(sorted_items(items(self)?)))
    }
}

impl<K: IntoValue, V: IntoValue> IntoValue for BTreeMap<K, V> {
    fn into_value(self) -> Result<Value, Box<dyn Error + Send + Sync>> {
        Ok(Value::Dict(entries(self)?.into()))
    }
}

impl<K: IntoValue, V: IntoValue, S> IntoValue for HashMap<K, V, S> {
    fn into_value(self) -> Result<Value, Box<dyn Error + Send + Sync>> {
        Ok(Value::Dict(sorted_entries(entries(self)?)))
    }
}

macro_rules! tuples {
    ($($($type:ident $value:ident),+;)*) => {$(
        impl<$($type: IntoValue),+> IntoValue for ($($type,)+) {
            fn into_value(self) -> Result<Value, Box<dyn Error + Send + Sync>> {
                let ($($value,)+) = self;
                Ok(Value::Tuple([$($value.into_value()?),+].into()))
            }
        }
    )*};
}

tuples! {
    A a;
    A a, B b;
    A a, B b, C c;
    A a, B b, C c, D d;
    A a, B b, C c, D d, E e;
    A a, B b, C c, D d, E e, F f;
    A a, B b, C c, D d, E e, F f, G g;
    A a, B b, C c, D d, E e, F f, G g, H h;
}
