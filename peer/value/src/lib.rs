//! Values of Dask clusters, in Rust and in serialized form.
//!
//! A [`Value`] is an argument or result of a task in Rust: a number, a string, an array,
//! a list of values. A [`Serialized`] is a value in wire format, a header and frames,
//! which can be forwarded unopened. Objects without a counterpart in Rust, such as a
//! DataFrame, stay `Serialized`. Reading a pickle never calls the functions that it
//! names.
//!
//! ```
//! use daskwire_value::{Array, Serialized, Value};
//!
//! let array = Array::from_slice(&[2], &[1.5, 2.5])?;
//! let value = Value::list([Value::from("x"), Value::Array(array)]);
//! let serialized = Serialized::of(&value)?; // as Dask would write it
//! assert_eq!(serialized.open()?, value);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Who uses it: `daskwire-messages`, whose messages carry values, and all roles. Programs name
//! this crate as `daskwire_peer::value`, and its most common types as `daskwire_peer::Value`,
//! `Array` and `Serialized`.
//!
//! # Features
//!
//! * `serde`: values from and to any type that implements its traits;
//! * `arrow-60`: record batches from and to tables of pyarrow and data frames of pandas;
//! * `ndarray-017`, `half`, `num-complex-04`: arrays from and to those of ndarray, and
//!   elements of the other two crates;
//! * `chrono-04`, `jiff-02`, `rust_decimal`, `uuid`: dates, times, decimal numbers and
//!   UUIDs from and to those of these crates.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod arguments;
mod array;
#[cfg(feature = "arrow-60")]
mod arrow;
#[cfg(feature = "serde")]
pub mod as_value;
#[doc(hidden)]
pub mod brief;
mod budget;
#[cfg(feature = "chrono-04")]
mod chrono_04;
mod compress;
mod convert;
#[cfg(feature = "serde")]
mod de;
#[cfg(feature = "rust_decimal")]
mod decimal;
mod document;
mod families;
#[cfg(feature = "half")]
mod half;
mod instance;
mod into_value;
mod items;
#[cfg(feature = "jiff-02")]
mod jiff_02;
pub mod memory;
#[cfg(feature = "ndarray-017")]
mod ndarray_017;
#[cfg(feature = "num-complex-04")]
mod num_complex_04;
mod numpy_repr;
mod object;
mod outcome;
#[cfg(feature = "arrow-60")]
mod pandas;
mod part;
mod pickled;
#[doc(hidden)]
pub mod pickling;
#[cfg(feature = "arrow-60")]
mod pyarrow;
mod records;
mod repr;
#[doc(hidden)]
pub mod scratch;
#[cfg(feature = "serde")]
mod ser;
mod serialized;
#[doc(hidden)]
pub mod source;
mod text;
mod time;
#[cfg(feature = "uuid")]
mod uuid;

use core::fmt;
use std::sync::Arc;

use bytes::Bytes;
pub use daskwire::ErrorKind;
use daskwire::Limits;
use daskwire_numpy::NumpyError;
pub use daskwire_numpy::{Datetime64, Timedelta64, unit};

use crate::brief::{Data, bounded};

#[doc(hidden)]
pub use arguments::IntoArguments;
pub use array::Array;
#[cfg(feature = "arrow-60")]
pub use arrow::TableError;
#[doc(hidden)]
pub use budget::Budget;
pub use convert::{Optional, WrongType};
#[cfg(feature = "serde")]
pub use de::{Serde, SerdeError};
pub use into_value::IntoValue;
#[doc(hidden)]
pub use items::Totals;
pub use items::{Item, Items};
pub use object::Object;
pub use outcome::Outcome;
#[doc(hidden)]
pub use pickled::{TreeReader, describe};
#[doc(hidden)]
pub use repr::{quote_of, write_escaped};
pub use serialized::Serialized;

/// Maximum levels of nested containers in a value that is read, and in the result
/// of a task. A program may nest values deeper: those can be written, compared,
/// cloned and dropped, but are not displayed in full.
pub const MAX_DEPTH: usize = 100;

/// Maximum number of values in a value that is read, or in the result of a task,
/// counted at each occurrence: shared values take no memory, but do take time.
pub(crate) const MAX_COUNT: u64 = 1 << 26;

/// A value: an argument or result of a task, scattered data, or a part of a
/// message.
///
/// Convert with `From` and `TryFrom`, or match on the variants. Cloning copies no
/// strings, items or array data:
///
/// ```
/// use daskwire_value::Value;
/// let value = Value::list([Value::from(1), Value::from("two"), Value::from(2.5)]);
/// assert_eq!(value.to_string(), "[1, 'two', 2.5]");
/// let Value::List(items) = value else { panic!("a list") };
/// assert_eq!(i64::try_from(items[0].clone())?, 1);
///
/// // Bytes need their own constructor: a vector of numbers is a list.
/// assert_eq!(Value::bytes(vec![3, 1, 2]).to_string(), r"b'\x03\x01\x02'");
/// assert_eq!(Value::from(vec![3, 1, 2]).to_string(), "[3, 1, 2]");
/// # Ok::<(), daskwire_value::WrongType>(())
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Value {
    /// `None`.
    #[default]
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// An integer of more than 128 bits in two's complement, least significant
    /// byte first.
    LargeInt(Bytes),
    /// A float.
    Float(f64),
    /// A complex number: real and imaginary part.
    Complex(f64, f64),
    /// A string.
    Str(Arc<str>),
    /// `bytes`.
    Bytes(Bytes),
    /// A `bytearray`.
    ByteArray(Bytes),
    /// A list.
    List(Items),
    /// A tuple.
    Tuple(Items),
    /// A set.
    Set(Items),
    /// A frozen set.
    FrozenSet(Items),
    /// A dictionary in insertion order.
    Dict(Items<(Self, Self)>),
    /// A numpy array, or a `memoryview`.
    Array(Array),
    /// An instance of another class, such as a date, a `Counter` or a named tuple.
    Object(Object),
    /// A value in serialized form: an object of an unknown class, also as a part of a
    /// container, or a value that was not opened yet.
    Serialized(Serialized),
}

/// Formats as derived, at most 16 KiB: data and containers are truncated.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let data = |f: &mut fmt::Formatter<'_>, name, data: &[u8]| {
            f.debug_tuple(name).field(&Data(data)).finish()
        };
        bounded(f, |f| match self {
            Self::None => crate::brief_fields!(f, None),
            Self::Bool(value) => crate::brief_fields!(f, Bool(value)),
            Self::Int(value) => crate::brief_fields!(f, Int(value)),
            Self::LargeInt(bytes) => data(f, "LargeInt", bytes),
            Self::Float(value) => crate::brief_fields!(f, Float(value)),
            Self::Complex(real, imaginary) => crate::brief_fields!(f, Complex(real, imaginary)),
            Self::Str(string) => crate::brief_fields!(f, Str(string)),
            Self::Bytes(bytes) => data(f, "Bytes", bytes),
            Self::ByteArray(bytes) => data(f, "ByteArray", bytes),
            Self::List(items) => crate::brief_fields!(f, List(items)),
            Self::Tuple(items) => crate::brief_fields!(f, Tuple(items)),
            Self::Set(items) => crate::brief_fields!(f, Set(items)),
            Self::FrozenSet(items) => crate::brief_fields!(f, FrozenSet(items)),
            Self::Dict(entries) => crate::brief_fields!(f, Dict(entries)),
            Self::Array(array) => crate::brief_fields!(f, Array(array)),
            Self::Object(object) => crate::brief_fields!(f, Object(object)),
            Self::Serialized(serialized) => crate::brief_fields!(f, Serialized(serialized)),
        })
    }
}

/// The treatment of parts that have no counterpart in Rust when a payload is opened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum UnknownParts<'a> {
    /// The whole payload stays unopened.
    Refused,
    /// The items and values of containers stay unopened, with these limits.
    Kept(Option<&'a Arc<Limits>>),
    /// A mark replaces the part, which is an error only where it is used.
    #[cfg(feature = "serde")]
    Marked,
}

impl UnknownParts<'_> {
    /// Whether a mark replaces them.
    const fn are_marked(self) -> bool {
        match self {
            Self::Refused | Self::Kept(_) => false,
            #[cfg(feature = "serde")]
            Self::Marked => true,
        }
    }

    /// The value of a part that cannot be read.
    fn value(self, error: ValueError) -> Result<Value, ValueError> {
        match self {
            Self::Refused | Self::Kept(_) => Err(error),
            #[cfg(feature = "serde")]
            Self::Marked => Ok(Object::unread(error.to_string()).into()),
        }
    }
}

/// The error of converting a payload to a [`Value`], or a [`Value`] to a payload.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ValueError {
    /// The payload does not match its header.
    Payload(NumpyError),
    /// The pickle is malformed.
    Pickle(daskwire_pickle::PickleError),
    /// A Python object has no counterpart in Rust. It can be forwarded as
    /// [`Serialized`].
    Unknown {
        /// The object's type, such as `pandas.DataFrame`, and its place in the value if it is
        /// a part of it: `pandas.DataFrame at [1]['x']`.
        what: String,
    },
    /// The value cannot be used where it is given, or not with the scheduler's release.
    Unsupported {
        /// The value and its place.
        what: String,
    },
    /// A value in Rust cannot be converted, such as a table with a type of column that pandas and
    /// pyarrow do not have.
    Conversion {
        /// The error of the conversion.
        reason: String,
    },
    /// The value cannot be pickled.
    Write(daskwire_pickle::WriteError),
    /// Containers are nested deeper than [`MAX_DEPTH`] levels, or shared so often
    /// that the value consists of more than 67,108,864 values, or an array repeats
    /// so few bytes so often that its copy would take far more memory.
    TooLarge,
    /// The sender could not serialize the value.
    NotSent {
        /// The sender's message and traceback.
        reason: String,
    },
    /// The value is not of the requested type.
    #[cfg(feature = "serde")]
    Type(SerdeError),
}

impl ValueError {
    /// Returns the error of a conversion with [`IntoValue`], with its causes, unless it prints them.
    pub fn of_conversion(error: &(dyn core::error::Error + Send + Sync + 'static)) -> Self {
        match error.downcast_ref::<Self>() {
            Some(error) => error.clone(),
            None => {
                let mut reason = error.to_string();
                let mut cause = error.source();
                while let Some(error) = cause {
                    let text = error.to_string();
                    if !reason.contains(&text) {
                        reason.push_str(": ");
                        reason.push_str(&text);
                    }
                    cause = error.source();
                }
                Self::Conversion { reason }
            }
        }
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Payload(error) => write!(f, "the payload is damaged: {error}"),
            Self::Pickle(error) => write!(f, "the pickle is damaged: {error}"),
            Self::Unknown { what } => write!(
                f,
                "only Python can read {what}; it can be forwarded unopened"
            ),
            Self::Unsupported { what } => write!(f, "{what} is not supported"),
            Self::Conversion { reason } => write!(f, "the value cannot be converted: {reason}"),
            Self::Write(error) => write!(f, "the value cannot be pickled: {error}"),
            Self::TooLarge => write!(
                f,
                "the value is nested deeper than {MAX_DEPTH} levels, shared so often that it \
                 consists of more than {MAX_COUNT} values, or has an array that repeats few bytes"
            ),
            Self::NotSent { reason } => {
                write!(f, "the sender could not serialize the value: {reason}")
            }
            #[cfg(feature = "serde")]
            Self::Type(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ValueError {}

daskwire::kinds! {
    ValueError: |error| match error {
        Self::Payload(_)
        | Self::Pickle(_)
        | Self::Unknown { .. }
        | Self::TooLarge
        | Self::NotSent { .. } => ErrorKind::Value,
        Self::Unsupported { .. } | Self::Conversion { .. } | Self::Write(_) => ErrorKind::Invalid,
        #[cfg(feature = "serde")]
        Self::Type(error) => error.kind(),
    };
}

impl From<NumpyError> for ValueError {
    fn from(error: NumpyError) -> Self {
        Self::Payload(error)
    }
}

impl From<daskwire::message::MessageError> for ValueError {
    fn from(error: daskwire::message::MessageError) -> Self {
        Self::Payload(error.into())
    }
}

impl From<daskwire_pickle::PickleError> for ValueError {
    fn from(error: daskwire_pickle::PickleError) -> Self {
        Self::Pickle(error)
    }
}

impl From<daskwire_pickle::WriteError> for ValueError {
    fn from(error: daskwire_pickle::WriteError) -> Self {
        Self::Write(error)
    }
}

#[cfg(feature = "serde")]
impl From<SerdeError> for ValueError {
    fn from(error: SerdeError) -> Self {
        Self::Type(error)
    }
}

impl Value {
    /// Makes `bytes`. `From` converts a vector of integers to a list instead.
    pub fn bytes(data: impl Into<Bytes>) -> Self {
        Self::Bytes(data.into())
    }

    /// Makes a list.
    pub fn list(items: impl IntoIterator<Item = impl Into<Self>>) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }

    /// Makes a tuple.
    pub fn tuple(items: impl IntoIterator<Item = impl Into<Self>>) -> Self {
        Self::Tuple(items.into_iter().map(Into::into).collect())
    }

    /// Makes a dictionary.
    pub fn dict(entries: impl IntoIterator<Item = (impl Into<Self>, impl Into<Self>)>) -> Self {
        let entries = entries.into_iter();
        Self::Dict(
            entries
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        )
    }

    /// Opens a [`Serialized`]; returns other values unchanged.
    ///
    /// # Errors
    ///
    /// As [`Serialized::open`].
    pub fn opened(self) -> Result<Self, ValueError> {
        match self {
            Self::Serialized(serialized) => serialized.open(),
            value => Ok(value),
        }
    }

    /// The value of a dictionary's string key.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Dict(entries) = self else {
            return None;
        };
        let has_key =
            |entry: &&(Self, Self)| matches!(&entry.0, Self::Str(string) if **string == *key);
        entries.iter().find(has_key).map(|(_, value)| value)
    }

    /// The string, if the value is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(string) => Some(string),
            _ => None,
        }
    }

    /// Returns a string as it is, and any other value as it is displayed.
    ///
    /// ```
    /// use daskwire_value::Value;
    /// assert_eq!(Value::from("x").to_string(), "'x'");
    /// assert_eq!(Value::from("x").to_unquoted(), "x");
    /// assert_eq!(Value::list(["x"]).to_unquoted(), "['x']");
    /// ```
    pub fn to_unquoted(&self) -> String {
        match self {
            Self::Str(string) => string.as_ref().to_owned(),
            other => other.to_string(),
        }
    }

    /// Python's name of the value's type, without its module.
    pub fn type_name(&self) -> &str {
        match self {
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::LargeInt(_) => "int",
            Self::Float(_) => "float",
            Self::Complex(..) => "complex",
            Self::Str(_) => "str",
            Self::Bytes(_) => "bytes",
            Self::ByteArray(_) => "bytearray",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Set(_) => "set",
            Self::FrozenSet(_) => "frozenset",
            Self::Dict(_) => "dict",
            Self::Array(array) if array.is_matrix() => "matrix",
            Self::Array(_) => "ndarray",
            Self::Object(object) => object.short_name(),
            Self::Serialized(_) => "object",
        }
    }

    /// Bytes of memory that the value takes, about as Dask's `sizeof` counts
    /// them. Shared parts count at each occurrence.
    pub fn nbytes(&self) -> u64 {
        let head = match self {
            Self::None | Self::Bool(_) => 16,
            Self::Int(_) | Self::Float(_) | Self::Complex(..) => 32,
            Self::LargeInt(data) | Self::Bytes(data) | Self::ByteArray(data) => {
                33 + data.len() as u64
            }
            Self::Str(string) => 49 + string.len() as u64,
            Self::List(items) | Self::Tuple(items) => 56 + 8 * items.len() as u64,
            Self::Object(object) => 48 + 8 * object.arguments.len() as u64,
            Self::Set(items) | Self::FrozenSet(items) => 216 + 16 * items.len() as u64,
            Self::Dict(entries) => 64 + 24 * entries.len() as u64,
            Self::Array(array) => array.bytes().len() as u64,
            Self::Serialized(serialized) => serialized.len(),
        };
        let totals = self.totals().unwrap_or_default();
        head.saturating_add(totals.nbytes)
    }

    /// The totals of a container's items.
    pub fn totals(&self) -> Option<Totals> {
        match self {
            Self::List(items) | Self::Tuple(items) | Self::Set(items) | Self::FrozenSet(items) => {
                Some(items.totals())
            }
            Self::Dict(entries) => Some(entries.totals()),
            // A mark may stand where a container would be nested too deep.
            #[cfg(feature = "serde")]
            Self::Object(object) if object.origin() == object::Origin::Unread => None,
            Self::Object(object) => Some(Totals {
                has_objects: true,
                ..object.arguments.totals()
            }),
            _ => None,
        }
    }

    /// Whether serializing the value may fail, or has to copy an array. Other values can
    /// always be serialized.
    pub fn needs_check(&self) -> bool {
        match self {
            Self::Array(array) => !pickled::is_contiguous(array),
            Self::Object(object) if !object.is_importable() => true,
            // As a part of another value: a pickle holds what it contains, not its frames.
            Self::Serialized(_) => true,
            container => container.totals().is_some_and(|totals| totals.needs_check),
        }
    }

    /// Levels of nested containers: 0 for a number, 1 for a list of numbers.
    pub(crate) fn depth(&self) -> usize {
        self.totals().map_or(0, |totals| totals.depth)
    }

    /// Returns the value if it can be traversed safely: it is neither nested too
    /// deep nor shared too often.
    ///
    /// # Errors
    ///
    /// If a value cannot be serialized, or a payload cannot be read.
    pub fn checked(self) -> Result<Self, ValueError> {
        match self.totals() {
            Some(totals) if totals.depth > MAX_DEPTH || totals.count > MAX_COUNT => {
                Err(ValueError::TooLarge)
            }
            _ => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests;

/// The example in the README, tested as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
