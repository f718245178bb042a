//! Conversion of values into any type that implements `serde::Deserialize`.

use core::fmt;
use core::time::Duration;

use serde::de::value::StringDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, EnumAccess, IntoDeserializer as _, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};
use serde::{Deserializer, forward_to_deserialize_any};

use super::object::Origin;
use super::{Items, MAX_DEPTH, Value, ValueError, as_value};

/// The error of converting between values and types with `serde`: what was found
/// and expected, and where.
///
/// ```
/// use daskwire_value::Value;
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

daskwire::kinds! {
    SerdeError: |_| ErrorKind::Value;
}

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
    /// items or, if the names are not known, by their order. Entries that a struct has no
    /// field for are skipped, whatever they hold: also objects without a counterpart in
    /// Rust, unless serde has to keep them, as for `#[serde(flatten)]`. Enums are represented as in
    /// `serde_json`. Arrays of numpy are sequences of their rows. Dates, times, decimal
    /// numbers, UUIDs and paths are strings, time differences are seconds or a
    /// [`Duration`]. A part that is deserialized as a [`Value`] or an [`Array`](super::Array)
    /// is as it was sent; [`as_value`] reads other types as `TryFrom` does.
    ///
    /// ```
    /// use daskwire_value::Value;
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
    /// # Ok::<(), daskwire_value::SerdeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the value, or a part of it that is used, is of another type, has no counterpart in
    /// Rust, or is nested deeper than [`MAX_DEPTH`] levels; or if the value is serialized and
    /// malformed.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, SerdeError> {
        T::deserialize(De {
            value: self.clone(),
            depth: MAX_DEPTH,
        })
    }
}

/// A type that implements the traits of `serde`, as an argument or result of a
/// function of a worker; see `Functions::function`.
///
/// ```
/// use daskwire_value::Value;
/// use daskwire_value::{IntoValue, Serde};
/// # use serde::{Deserialize, Serialize};
/// #[derive(Deserialize, Serialize)]
/// struct Point {
///     x: f64,
///     y: f64,
/// }
/// let mirror = |Serde(Point { x, y }): Serde<Point>| Serde(Point { x: y, y: x });
/// let point = Value::dict([("x", 1.5), ("y", 2.0)]);
/// let mirrored = mirror(point.try_into()?).into_value()?;
/// assert_eq!(mirrored, Value::dict([("x", 2.0), ("y", 1.5)]));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
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
struct De {
    value: Value,
    /// The number of levels of containers that may be opened.
    depth: usize,
}

impl De {
    /// The value that represents an object, an array or a payload; other values
    /// unchanged.
    fn plain(self) -> Result<Self, SerdeError> {
        let depth = self.depth;
        let of = |value| Self { value, depth };
        Ok(of(match self.value {
            Value::Object(object) if object.origin() == Origin::Unread => {
                return Err(de::Error::custom(object.name()));
            }
            Value::Object(object) => match (object.base(), object.text(), object.duration()) {
                (Some(base), _, _) => return of(base.clone()).plain(),
                (_, Some(text), _) => Value::from(text),
                (_, _, Some(nanoseconds)) => Value::Float(nanoseconds as f64 / 1e9),
                _ => Value::Tuple(object.arguments),
            },
            Value::Array(array) => array.to_value().map_err(de::Error::custom)?,
            value @ Value::Serialized(_) => return of(value).opened()?.plain(),
            value => value,
        }))
    }

    /// The value of a payload; other values unchanged.
    fn opened(self) -> Result<Self, SerdeError> {
        let Value::Serialized(serialized) = &self.value else {
            return Ok(self);
        };
        // Parts that Rust cannot read are values in themselves, for fields of type `Value`. With
        // marks in their place, more can be read: containers that are nested too deep.
        let opened = match serialized.open() {
            Err(ValueError::Unknown { .. } | ValueError::TooLarge) => {
                serialized.open_marking_unknown()
            }
            opened => opened,
        };
        let is_unread = match &opened {
            Ok(Value::Object(object)) => object.origin() == Origin::Unread,
            opened => matches!(opened, Err(ValueError::Unknown { .. })),
        };
        // An array of objects or of records is the list of its elements.
        let opened = match is_unread.then(|| serialized.elements()) {
            Some(Ok(elements)) => Ok(Value::List(elements.into())),
            _ => opened,
        };
        match opened.map_err(de::Error::custom)? {
            Value::Serialized(_) => Err(de::Error::custom("an object that is not opened")),
            value => Ok(Self { value, ..self }),
        }
    }

    /// The depth of the parts of a container.
    fn part_depth(&self) -> Result<usize, SerdeError> {
        let left = self.depth.checked_sub(1);
        left.ok_or_else(|| de::Error::custom(ValueError::TooLarge))
    }

    /// Visits an integer. No visitor of serde that keeps values of any type, as for
    /// `#[serde(flatten)]`, accepts more than 64 bits, so `visit_large` gets others.
    fn visit_integer<'de, V: Visitor<'de>>(
        self,
        visitor: V,
        visit_large: impl FnOnce(V, Value) -> Result<V::Value, SerdeError>,
    ) -> Result<V::Value, SerdeError> {
        let this = self.plain()?;
        match &this.value {
            Value::Int(value) => match (i64::try_from(*value), u64::try_from(*value)) {
                (Ok(value), _) => visitor.visit_i64(value),
                (_, Ok(value)) => visitor.visit_u64(value),
                _ => visit_large(visitor, this.value),
            },
            Value::LargeInt(_) => visit_large(visitor, this.value),
            _ => this.deserialize_any(visitor),
        }
    }
}

/// Visits an integer that does not fit into 64 bits as one of 128 bits.
fn visit_wide<'de, V: Visitor<'de>>(visitor: V, large: Value) -> Result<V::Value, SerdeError> {
    match large {
        Value::Int(value) => visitor.visit_i128(value),
        large => {
            let error = |_| de::Error::custom(format_args!("the integer {large} is too large"));
            visitor.visit_u128(u128::try_from(large.clone()).map_err(error)?)
        }
    }
}

/// Visits an integer that does not fit into 64 bits as a float, if that is finite.
fn visit_rounded<'de, V: Visitor<'de>>(visitor: V, large: Value) -> Result<V::Value, SerdeError> {
    match &large {
        Value::Int(value) => visitor.visit_f64(super::convert::float(*value)),
        _ => match large.to_string().parse::<f64>() {
            Ok(value) if value.is_finite() => visitor.visit_f64(value),
            _ => visit_wide(visitor, large),
        },
    }
}

macro_rules! integers {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
            self.visit_integer(visitor, visit_wide)
        }
    )*};
}

impl<'de> Deserializer<'de> for De {
    type Error = SerdeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        let this = self.plain()?;
        match this.value {
            Value::None => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Int(_) | Value::LargeInt(_) => this.visit_integer(visitor, visit_rounded),
            Value::Float(value) => visitor.visit_f64(value),
            Value::Complex(real, imaginary) => {
                let depth = this.part_depth()?;
                let parts = [real, imaginary].map(Value::Float);
                visitor.visit_seq(Seq::new(parts.into(), depth))
            }
            Value::Str(string) => visitor.visit_str(&string),
            Value::Bytes(data) | Value::ByteArray(data) => visitor.visit_bytes(&data),
            Value::List(ref items)
            | Value::Tuple(ref items)
            | Value::Set(ref items)
            | Value::FrozenSet(ref items) => {
                let depth = this.part_depth()?;
                visitor.visit_seq(Seq::new(items.clone(), depth))
            }
            Value::Dict(ref entries) => {
                let depth = this.part_depth()?;
                visitor.visit_map(Map::new(entries.clone(), depth))
            }
            // `plain` has replaced all other variants.
            other => Err(de::Error::custom(format_args!(
                "found {}",
                other.type_name()
            ))),
        }
    }

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
    }

    /// Does not look at the value, which serde asks for to skip a field.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        match self.value {
            Value::None => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, SerdeError> {
        if name == as_value::NAME {
            // What Rust cannot read stays as it is.
            let value = self.value.clone();
            let this = match value.clone().opened() {
                Err(ValueError::Unknown { .. }) => Ok(value),
                opened => opened,
            };
            let value = this.map_err(de::Error::custom)?;
            if let Value::Object(object) = &value
                && object.origin() == Origin::Unread
            {
                // Stands for what was not read, and says why.
                return Err(de::Error::custom(object.name()));
            }
            return as_value::hand_over(value, || visitor.visit_newtype_struct(self));
        }
        visitor.visit_newtype_struct(self)
    }

    /// Integers of any size are floats, as in Python.
    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        match self.value {
            Value::Int(_) | Value::LargeInt(_) => visit_rounded(visitor, self.value),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        self.deserialize_f64(visitor)
    }

    /// Bytes are a sequence of integers too.
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SerdeError> {
        let this = self.plain()?;
        match &this.value {
            Value::Bytes(data) | Value::ByteArray(data) => {
                let items = data.iter().map(|byte| Value::from(*byte));
                visitor.visit_seq(Seq::new(items.collect(), this.part_depth()?))
            }
            _ => this.deserialize_any(visitor),
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
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SerdeError> {
        let this = self.opened()?;
        if name == "Duration"
            && fields == ["secs", "nanos"]
            && let Ok(duration) = Duration::try_from(this.value.clone())
        {
            let entries = [
                (Value::from("secs"), Value::from(duration.as_secs())),
                (Value::from("nanos"), Value::from(duration.subsec_nanos())),
            ];
            return visitor.visit_map(Map::new(entries.into(), this.part_depth()?));
        }
        if let Value::Object(object) = &this.value
            && !object.fields().is_empty()
        {
            let names = object
                .fields()
                .iter()
                .map(|name| Value::from(name.as_str()));
            let entries = names.zip(object.arguments().iter().cloned());
            return visitor.visit_map(Map::new(entries.collect(), this.part_depth()?));
        }
        let this = this.plain()?;
        match &this.value {
            Value::Dict(entries) => {
                let map = Map::new(entries.clone(), this.part_depth()?);
                visitor.visit_map(map.of_struct())
            }
            _ => this.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SerdeError> {
        let this = self.plain()?;
        let (variant, content) = match &this.value {
            Value::Str(variant) => (variant, None),
            Value::Dict(entries) => match &entries[..] {
                [(Value::Str(variant), content)] => {
                    let (value, depth) = (content.clone(), this.part_depth()?);
                    (variant, Some(Self { value, depth }))
                }
                _ => {
                    let wanted = format!(
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
        bool char str string bytes byte_buf unit unit_struct tuple_struct map identifier
    }
}

/// The items of a sequence.
struct Seq {
    items: Items,
    next: usize,
    /// The depth of the items.
    depth: usize,
}

impl Seq {
    const fn new(items: Items, depth: usize) -> Self {
        let next = 0;
        Self { items, next, depth }
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
        let item = seed.deserialize(De {
            value: item.clone(),
            depth: self.depth,
        });
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
    /// The depth of keys and values.
    depth: usize,
    /// Whether a key is the name of a field.
    is_struct: bool,
}

impl Map {
    const fn new(entries: Items<(Value, Value)>, depth: usize) -> Self {
        Self {
            entries,
            next: 0,
            depth,
            is_struct: false,
        }
    }

    /// The same entries as fields of a struct. Keys other than strings are the names of
    /// unknown fields.
    const fn of_struct(mut self) -> Self {
        self.is_struct = true;
        self
    }
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
        let value = match key {
            Value::Str(_) | Value::Bytes(_) => key.clone(),
            key if self.is_struct => Value::from(key.to_string()),
            key => key.clone(),
        };
        let depth = self.depth;
        let found = seed.deserialize(De { value, depth });
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
        let found = seed.deserialize(De {
            value: value.clone(),
            depth: self.depth,
        });
        found.map_err(|error| error.within(key))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len().saturating_sub(self.next))
    }
}

/// A variant of an enum: its name, or a dictionary of its name and content.
struct Enum {
    variant: String,
    content: Option<De>,
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
    content: Option<De>,
}

impl Variant {
    fn content<T>(self, read: impl FnOnce(De) -> Result<T, SerdeError>) -> Result<T, SerdeError> {
        let Some(content) = self.content else {
            let missing = format!("the variant {} without its content", self.name);
            return Err(de::Error::custom(missing));
        };
        read(content).map_err(|error| error.within(&Value::from(self.name)))
    }
}

impl<'de> VariantAccess<'de> for Variant {
    type Error = SerdeError;

    fn unit_variant(self) -> Result<(), SerdeError> {
        match self.content {
            None
            | Some(De {
                value: Value::None, ..
            }) => Ok(()),
            Some(De { value: content, .. }) => Err(de::Error::custom(format_args!(
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
