//! Values as programs have them, and as they travel.
//!
//! A [`Value`] is what a Rust program passes to a task or gets from one: a
//! number, a text, an array, a list of such. A [`Serialized`] is the same on its
//! way: a header and frames, which nobody needs to open. What is not one of the
//! values known here (a DataFrame, an object of a class) stays a `Serialized`
//! and can be passed on; nothing is ever made by calling what a pickle names.

mod array;
mod budget;
mod convert;
mod document;
mod pickled;
mod serialized;

use core::fmt;

use bytes::Bytes;
use daskwire::typed::TypedError;

pub use array::Array;
pub(crate) use budget::Budget;
pub use convert::WrongType;
pub(crate) use pickled::{Reading, describe};
pub use serialized::Serialized;

/// How deep values may be nested that come from a peer, in levels.
pub(crate) const DEPTH: usize = 100;

/// A value: an argument of a task, its result, a piece of scattered data, or a
/// part of a message.
///
/// Made with `From`, taken apart with `TryFrom` or by matching:
///
/// ```
/// use daskwire_peer::Value;
/// let value = Value::list([Value::from(1), Value::from("two"), Value::from(2.5)]);
/// assert_eq!(value.to_string(), "[1, 'two', 2.5]");
/// let Value::List(items) = value else { panic!("a list") };
/// assert_eq!(i64::try_from(items[0].clone())?, 1);
/// # Ok::<(), daskwire_peer::value::WrongType>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// `None`.
    #[default]
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// An integer that needs more than 128 bits: the two's complement, the least
    /// significant byte first.
    LargeInt(Bytes),
    /// A float.
    Float(f64),
    /// A complex number: real and imaginary part.
    Complex(f64, f64),
    /// A text.
    Str(String),
    /// `bytes`.
    Bytes(Bytes),
    /// A `bytearray`.
    ByteArray(Bytes),
    /// A list.
    List(Vec<Self>),
    /// A tuple.
    Tuple(Vec<Self>),
    /// A set.
    Set(Vec<Self>),
    /// A frozen set.
    FrozenSet(Vec<Self>),
    /// A dictionary, in its order.
    Dict(Vec<(Self, Self)>),
    /// An array of numpy, or a `memoryview`.
    Array(Array),
    /// Something that is not opened: a value of a class that is not known here,
    /// or one that was never asked for.
    Serialized(Serialized),
}

/// Why a payload has no [`Value`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ValueError {
    /// The payload is not what its header says.
    Payload(TypedError),
    /// The pickle is wrong.
    Pickle(daskwire::pickle::PickleError),
    /// It is a value of Python that has no counterpart here; it can be passed on
    /// as [`Serialized`].
    Unknown {
        /// What it is, such as `pandas.DataFrame`.
        what: String,
    },
    /// A pickle cannot be written.
    Write(daskwire::pickle::WriteError),
    /// It is nested deeper than 100 levels, or shared so often that it would
    /// take more memory than its payload allows.
    TooLarge,
    /// Its sender could not serialize it; this is what it said.
    NotSent {
        /// The sender's message and traceback.
        reason: String,
    },
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Payload(error) => write!(f, "the payload is damaged: {error}"),
            Self::Pickle(error) => write!(f, "the pickle is damaged: {error}"),
            Self::Unknown { what } => write!(
                f,
                "{what} is known to Python only; it can be passed on, but not be read here"
            ),
            Self::Write(error) => write!(f, "the value cannot be pickled: {error}"),
            Self::TooLarge => f.write_str("the value is nested too deep, or shared too often"),
            Self::NotSent { reason } => write!(f, "the sender could not serialize it: {reason}"),
        }
    }
}

impl core::error::Error for ValueError {}

impl From<TypedError> for ValueError {
    fn from(error: TypedError) -> Self {
        Self::Payload(error)
    }
}

impl From<daskwire::message::MessageError> for ValueError {
    fn from(error: daskwire::message::MessageError) -> Self {
        Self::Payload(error.into())
    }
}

impl From<daskwire::pickle::PickleError> for ValueError {
    fn from(error: daskwire::pickle::PickleError) -> Self {
        Self::Pickle(error)
    }
}

impl From<daskwire::pickle::WriteError> for ValueError {
    fn from(error: daskwire::pickle::WriteError) -> Self {
        Self::Write(error)
    }
}

impl Value {
    /// A list.
    pub fn list(items: impl IntoIterator<Item = impl Into<Self>>) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }

    /// A tuple.
    pub fn tuple(items: impl IntoIterator<Item = impl Into<Self>>) -> Self {
        Self::Tuple(items.into_iter().map(Into::into).collect())
    }

    /// A dictionary.
    pub fn dict(entries: impl IntoIterator<Item = (impl Into<Self>, impl Into<Self>)>) -> Self {
        let entries = entries.into_iter();
        Self::Dict(
            entries
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        )
    }

    /// Opens it, if it is a [`Serialized`].
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

    /// The value of an entry of a dictionary with this key.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Dict(entries) = self else {
            return None;
        };
        let has_key = |entry: &&(Self, Self)| matches!(&entry.0, Self::Str(text) if text == key);
        entries.iter().find(has_key).map(|(_, value)| value)
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// What Python calls the type of it.
    pub fn type_name(&self) -> &'static str {
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
            Self::Serialized(_) => "object",
        }
    }

    /// Bytes of memory that the value takes, about as Python counts them:
    /// what `sizeof` is in `dask`.
    pub fn nbytes(&self) -> u64 {
        let many = |items: &[Self]| items.iter().map(Self::nbytes).sum::<u64>();
        match self {
            Self::None | Self::Bool(_) => 16,
            Self::Int(_) | Self::Float(_) | Self::Complex(..) => 32,
            Self::LargeInt(data) | Self::Bytes(data) | Self::ByteArray(data) => {
                33 + data.len() as u64
            }
            Self::Str(text) => 49 + text.len() as u64,
            Self::List(items) | Self::Tuple(items) => 56 + 8 * items.len() as u64 + many(items),
            Self::Set(items) | Self::FrozenSet(items) => {
                216 + 16 * items.len() as u64 + many(items)
            }
            Self::Dict(entries) => {
                let sizes = entries
                    .iter()
                    .map(|(key, value)| key.nbytes() + value.nbytes());
                64 + 24 * entries.len() as u64 + sizes.sum::<u64>()
            }
            Self::Array(array) => array.bytes().len() as u64,
            Self::Serialized(serialized) => serialized.len(),
        }
    }
}

/// As Python shows it. An array as its type and shape, something that is not
/// opened as what its header says.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn items(
            f: &mut fmt::Formatter<'_>,
            (open, items, close): (&str, &[Value], &str),
        ) -> fmt::Result {
            f.write_str(open)?;
            for (index, item) in items.iter().enumerate() {
                let separator = if index == 0 { "" } else { ", " };
                write!(f, "{separator}{item}")?;
            }
            f.write_str(close)
        }
        match self {
            Self::None => f.write_str("None"),
            Self::Bool(value) => f.write_str(if *value { "True" } else { "False" }),
            Self::Int(value) => write!(f, "{value}"),
            Self::LargeInt(data) => write!(f, "<int of {} bits>", data.len() * 8),
            Self::Float(value) if value.is_nan() => f.write_str("nan"),
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Complex(real, imaginary) => write!(f, "({real}{imaginary:+}j)"),
            Self::Str(text) => write!(f, "'{}'", text.escape_debug()),
            Self::Bytes(data) => write!(f, "b'{}'", data.escape_ascii()),
            Self::ByteArray(data) => write!(f, "bytearray(b'{}')", data.escape_ascii()),
            Self::List(list) => items(f, ("[", list, "]")),
            Self::Tuple(list) if list.len() == 1 => items(f, ("(", list, ",)")),
            Self::Tuple(list) => items(f, ("(", list, ")")),
            Self::Set(list) if list.is_empty() => f.write_str("set()"),
            Self::Set(list) => items(f, ("{", list, "}")),
            Self::FrozenSet(list) if list.is_empty() => f.write_str("frozenset()"),
            Self::FrozenSet(list) => items(f, ("frozenset({", list, "})")),
            Self::Dict(entries) => {
                f.write_str("{")?;
                for (index, (key, value)) in entries.iter().enumerate() {
                    let separator = if index == 0 { "" } else { ", " };
                    write!(f, "{separator}{key}: {value}")?;
                }
                f.write_str("}")
            }
            Self::Array(array) => {
                write!(f, "<array {} {:?}>", array.dtype(), array.shape())
            }
            Self::Serialized(serialized) => serialized.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests;
