//! Conversion of values into any type that implements `serde::Deserialize`.

use core::fmt;

use serde::de::value::StringDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, EnumAccess, IntoDeserializer as _, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};
use serde::{Deserializer, forward_to_deserialize_any};

use super::{Items, MAX_DEPTH, Value};

/// The error of converting between values and types with `serde`: what was found
/// and expected, and where.
///
/// ```
/// use daskwire_peer::Value;
/// let value = Value::dict([("sizes", vec![Value::from(1), Value::from("two")])]);
/// let error = value
///     .deserialize::<std::collections::HashMap<String, Vec<u8>>>()
///     .expect_err("a string is no integer");
/// assert_eq!(
///     error.to_string(),
///     "invalid type: string \"two\", expected u8 at ['sizes'][1]"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SerdeError {
    message: String,
    path: String,
}

impl SerdeError {
    /// The location of the faulty part, as subscripts in Python, such as `['sizes'][1]`.
    /// Empty for the value itself.
    pub fn path(&self) -> &str {
        &self.path
    }

    fn within(mut self, key: &dyn fmt::Display) -> Self {
        self.path.insert_str(0, &format!("[{key}]"));
        self
    }
}

impl fmt::Display for SerdeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.path.is_empty() {
            write!(f, " at {}", self.path)?;
        }
        Ok(())
    }
}

impl core::error::Error for SerdeError {}

impl de::Error for SerdeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self {
            message: message.to_string(),
            path: String::new(),
        }
    }
}

impl serde::ser::Error for SerdeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        de::Error::custom(message)
    }
}

impl Value {
    /// Converts into any type that implements `serde::Deserialize`.
    ///
    /// Structs are read from dictionaries, and from named tuples by the names of their
    /// items or, if the names are not known, by their order. Enums are represented as in
    /// `serde_json`. Arrays of numpy are sequences of their rows. Dates, times, decimal
    /// numbers, UUIDs and paths are strings, time differences are seconds.
    ///
    /// ```
    /// use daskwire_peer::Value;
    /// # use serde::Deserialize;
    /// #[derive(Deserialize)]
    /// struct Fit {
    ///     slope: f64,
    ///     points: Vec<(i32, i32)>,
    /// }
    /// let points = Value::list([Value::tuple([1, 2])]);
    /// let value = Value::dict([("slope", Value::from(2)), ("points", points)]);
    /// let fit: Fit = value.deserialize()?;
    /// assert_eq!((fit.slope, fit.points[0]), (2.0, (1, 2)));
    /// # Ok::<(), daskwire_peer::value::SerdeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the value, or a part of it, is of another type; if it is serialized
    /// and cannot be opened; or if it is nested deeper than
    /// [`MAX_DEPTH`] levels.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, SerdeError> {
        if self.depth() > MAX_DEPTH {
            return Err(de::Error::custom(super::ValueError::TooLarge));
        }
        T::deserialize(De(self.clone()))
    }
}

/// A type that implements the traits of `serde`, as an argument or result of a
/// function of a worker; see `Functions::function`.
///
/// ```
/// # #[cfg(feature = "worker")] {
/// use daskwire_peer::value::Serde;
/// use daskwire_peer::worker::Functions;
/// # use serde::{Deserialize, Serialize};
/// #[derive(Deserialize, Serialize)]
/// struct Point {
///     x: f64,
///     y: f64,
/// }
/// let functions = Functions::new()
///     .function("mirror", |Serde(Point { x, y }): Serde<Point>| Serde(Point { x: y, y: x }));
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serde<T>(pub T);

impl<T: DeserializeOwned> TryFrom<Value> for Serde<T> {
    type Error = SerdeError;

    fn try_from(value: Value) -> Result<Self, SerdeError> {
        value.deserialize().map(Self)
    }
}

/// A value as a source of data. Cloning values copies no data.
struct De(Value);

impl De {
    /// The value that represents an object, an array or a payload; other values
    /// unchanged.
    fn plain(self) -> Result<Value, SerdeError> {
        Ok(match self.0 {
            Value::Object(object) => match (object.base(), object.text(), object.duration()) {
                (Some(base), _, _) => return Self(base.clone()).plain(),
                (_, Some(text), _) => Value::from(text),
                (_, _, Some(nanoseconds)) => Value::Float(nanoseconds as f64 / 1e9),
                _ => Value::Tuple(object.arguments),
            },
            Value::Array(array) => array.to_value().map_err(de::Error::custom)?,
            Value::Serialized(serialized) => {
                let opened = serialized.open().map_err(de::Error::custom)?;
                return match opened {
                    Value::Serialized(_) => Err(de::Error::custom("an object that is not opened")),
                    opened => Self(opened).plain(),
                };
            }
            value => value,
        })
    }
}

impl<'de> Deserializer<'de> for De {
    type Error = SerdeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        match self.plain()? {
            Value::None => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Int(value) => match (i64::try_from(value), u64::try_from(value)) {
                (Ok(value), _) => visitor.visit_i64(value),
                (_, Ok(value)) => visitor.visit_u64(value),
                _ => visitor.visit_i128(value),
            },
            large @ Value::LargeInt(_) => {
                let error = |_| de::Error::custom(format_args!("the integer {large} is too large"));
                visitor.visit_u128(u128::try_from(large.clone()).map_err(error)?)
            }
            Value::Float(value) => visitor.visit_f64(value),
            Value::Complex(real, imaginary) => {
                let parts = [real, imaginary].map(Value::Float);
                visitor.visit_seq(Seq::new(parts.into()))
            }
            Value::Str(string) => visitor.visit_str(&string),
            Value::Bytes(data) | Value::ByteArray(data) => visitor.visit_bytes(&data),
            Value::List(items)
            | Value::Tuple(items)
            | Value::Set(items)
            | Value::FrozenSet(items) => visitor.visit_seq(Seq::new(items)),
            Value::Dict(entries) => visitor.visit_map(Map { entries, next: 0 }),
            // `plain` has replaced all other variants.
            other => Err(de::Error::custom(format_args!(
                "found {}",
                other.type_name()
            ))),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        match self.0 {
            Value::None => visitor.visit_none(),
            value => visitor.visit_some(Self(value)),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, SerdeError> {
        visitor.visit_newtype_struct(self)
    }

    /// Integers of any size are floats, as in Python.
    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        match self.0 {
            Value::Int(value) => visitor.visit_f64(super::convert::float(value)),
            value => Self(value).deserialize_any(visitor),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        self.deserialize_f64(visitor)
    }

    /// Bytes are a sequence of integers too.
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        match self.plain()? {
            Value::Bytes(data) | Value::ByteArray(data) => {
                let items = data.iter().map(|byte| Value::from(*byte));
                visitor.visit_seq(Seq::new(items.collect()))
            }
            value => Self(value).deserialize_any(visitor),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, SerdeError> {
        self.deserialize_seq(visitor)
    }

    /// A named tuple has its items by name, if the names are known.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SerdeError> {
        match self.0 {
            Value::Object(object) if !object.fields().is_empty() => {
                let names = object
                    .fields()
                    .iter()
                    .map(|name| Value::from(name.as_str()));
                let entries = names.zip(object.arguments().iter().cloned());
                visitor.visit_map(Map {
                    entries: entries.collect(),
                    next: 0,
                })
            }
            value => Self(value).deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SerdeError> {
        let value = self.plain()?;
        let (variant, content) = match &value {
            Value::Str(variant) => (variant, None),
            Value::Dict(entries) => match &entries[..] {
                [(Value::Str(variant), content)] => (variant, Some(content.clone())),
                _ => {
                    let wanted = format_args!(
                        "found a dict of {}, expected one of a single string for the enum {name}",
                        entries.len()
                    );
                    return Err(de::Error::custom(wanted));
                }
            },
            other => {
                return Err(de::Error::custom(format_args!(
                    "found {}, expected a string or a dict for the enum {name}",
                    other.type_name()
                )));
            }
        };
        visitor.visit_enum(Enum {
            variant: variant.as_ref().to_owned(),
            content,
        })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 char str string bytes byte_buf unit
        unit_struct tuple_struct map identifier ignored_any
    }
}

/// The items of a sequence.
struct Seq {
    items: Items,
    next: usize,
}

impl Seq {
    const fn new(items: Items) -> Self {
        Self { items, next: 0 }
    }
}

impl<'de> SeqAccess<'de> for Seq {
    type Error = SerdeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, SerdeError> {
        let index = self.next;
        let Some(item) = self.items.get(index) else {
            return Ok(None);
        };
        self.next = index.saturating_add(1);
        let item = seed.deserialize(De(item.clone()));
        item.map(Some).map_err(|error| error.within(&index))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len().saturating_sub(self.next))
    }
}

/// The entries of a dictionary.
struct Map {
    entries: Items<(Value, Value)>,
    next: usize,
}

impl<'de> MapAccess<'de> for Map {
    type Error = SerdeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, SerdeError> {
        let Some((key, _)) = self.entries.get(self.next) else {
            return Ok(None);
        };
        let found = seed.deserialize(De(key.clone()));
        let found = found.map_err(|error| error.within(&format_args!("the key {key}")));
        found.map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, SerdeError> {
        let Some((key, value)) = self.entries.get(self.next) else {
            return Err(de::Error::custom("a value without a key"));
        };
        self.next = self.next.saturating_add(1);
        let found = seed.deserialize(De(value.clone()));
        found.map_err(|error| error.within(key))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len().saturating_sub(self.next))
    }
}

/// A variant of an enum: its name, or a dictionary of its name and content.
struct Enum {
    variant: String,
    content: Option<Value>,
}

impl<'de> EnumAccess<'de> for Enum {
    type Error = SerdeError;
    type Variant = Variant;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Variant), SerdeError> {
        let name: StringDeserializer<SerdeError> = self.variant.clone().into_deserializer();
        let found = seed.deserialize(name)?;
        Ok((
            found,
            Variant {
                name: self.variant,
                content: self.content,
            },
        ))
    }
}

/// The content of a variant.
struct Variant {
    name: String,
    content: Option<Value>,
}

impl Variant {
    fn content<T>(self, read: impl FnOnce(De) -> Result<T, SerdeError>) -> Result<T, SerdeError> {
        let Some(content) = self.content else {
            let missing = format_args!("the variant {} without its content", self.name);
            return Err(de::Error::custom(missing));
        };
        read(De(content)).map_err(|error| error.within(&Value::from(self.name)))
    }
}

impl<'de> VariantAccess<'de> for Variant {
    type Error = SerdeError;

    fn unit_variant(self) -> Result<(), SerdeError> {
        match self.content {
            None | Some(Value::None) => Ok(()),
            Some(content) => Err(de::Error::custom(format_args!(
                "found {}, expected nothing for the variant {}",
                content.type_name(),
                self.name
            ))),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(
        self,
        seed: T,
    ) -> Result<T::Value, SerdeError> {
        self.content(|content| seed.deserialize(content))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, SerdeError> {
        self.content(|content| content.deserialize_tuple(len, visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SerdeError> {
        self.content(|content| content.deserialize_struct("", fields, visitor))
    }
}
