//! Conversions between values and Rust types.

use core::convert::Infallible;
use core::fmt;
use core::hash::{BuildHasher, Hash};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::{Array, Items, Serialized, Value, ValueError};

/// The error that a value, or a part of it, is not of the requested type.
///
/// ```
/// use daskwire_value::Value;
/// let value = Value::list([Value::from(1), Value::from("two")]);
/// let error = Vec::<i64>::try_from(value).expect_err("a string is no integer");
/// assert_eq!(error.to_string(), "expected i64, found str at [1]");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WrongType {
    /// The requested type, such as `i64`.
    pub wanted: Cow<'static, str>,
    /// The Python type that was found, such as `str`. A number that is out of range is
    /// followed by its value, and a sequence of another length by its length.
    pub found: Cow<'static, str>,
    /// The location of the value, as subscripts in Python, such as
    /// `[1]['name']`. Empty for the value itself.
    pub path: String,
}

impl WrongType {
    /// Returns the error that `value` is not of the wanted type.
    pub fn new(wanted: impl Into<Cow<'static, str>>, value: &Value) -> Self {
        Self {
            wanted: wanted.into(),
            found: match value {
                Value::Object(object) => object.class().into(),
                Value::Serialized(serialized) => match serialized.described() {
                    Some(what) => what.into(),
                    None => value.type_name().to_owned().into(),
                },
                value => value.type_name().to_owned().into(),
            },
            path: String::new(),
        }
    }

    /// The error that a value would be of the wanted type if it could be read.
    pub(crate) fn of_unreadable(
        wanted: impl Into<Cow<'static, str>>,
        error: &dyn fmt::Display,
    ) -> Self {
        Self {
            wanted: wanted.into(),
            found: format!("bad data: {error}").into(),
            path: String::new(),
        }
    }

    /// Adds the subscript of the container that the part is in.
    pub(crate) fn within(mut self, key: &dyn fmt::Display) -> Self {
        self.path.insert_str(0, &format!("[{key}]"));
        self
    }
}

impl fmt::Display for WrongType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found {}", self.wanted, self.found)?;
        if !self.path.is_empty() {
            write!(f, " at {}", self.path)?;
        }
        Ok(())
    }
}

impl core::error::Error for WrongType {}

daskwire::kinds! {
    WrongType: |_| ErrorKind::Value;
}

/// The error of converting a value to a value, which cannot fail.
impl From<Infallible> for WrongType {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl From<()> for Value {
    fn from((): ()) -> Self {
        Self::None
    }
}

impl From<&String> for Value {
    fn from(string: &String) -> Self {
        Self::from(string.as_str())
    }
}

impl From<char> for Value {
    fn from(character: char) -> Self {
        Self::from(&*character.encode_utf8(&mut [0; 4]))
    }
}

impl From<Cow<'_, str>> for Value {
    fn from(string: Cow<'_, str>) -> Self {
        Self::from(&*string)
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

/// Converts to a dictionary, sorted by the keys as Python shows them, so that tasks with
/// equal maps as arguments have equal keys.
impl<K: Into<Self>, V: Into<Self>, S> From<HashMap<K, V, S>> for Value {
    fn from(map: HashMap<K, V, S>) -> Self {
        let entries = map
            .into_iter()
            .map(|(key, value)| (key.into(), value.into()));
        Self::Dict(sorted_entries(entries.collect()))
    }
}

/// Sorts the entries of a dictionary by their keys as Python shows them.
pub(super) fn sorted_entries(mut entries: Vec<(Value, Value)>) -> Items<(Value, Value)> {
    entries.sort_by_cached_key(|(key, _)| key.to_string());
    entries.into()
}

/// Converts to a dictionary.
impl<K: Into<Self>, V: Into<Self>> From<BTreeMap<K, V>> for Value {
    fn from(map: BTreeMap<K, V>) -> Self {
        Self::dict(map)
    }
}

/// Converts to a set, sorted by the items as Python shows them.
impl<T: Into<Self>, S> From<HashSet<T, S>> for Value {
    fn from(set: HashSet<T, S>) -> Self {
        Self::Set(sorted_items(set.into_iter().map(Into::into).collect()))
    }
}

/// Sorts the items of a set as Python shows them.
pub(super) fn sorted_items(mut items: Vec<Value>) -> Items {
    items.sort_by_cached_key(ToString::to_string);
    items.into()
}

/// Converts to a set.
impl<T: Into<Self>> From<BTreeSet<T>> for Value {
    fn from(set: BTreeSet<T>) -> Self {
        Self::Set(set.into_iter().map(Into::into).collect())
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
                let value = value.into_base();
                let number = match &value {
                    Value::Int(number) => Self::try_from(*number).ok(),
                    Value::Bool(flag) => Some(Self::from(*flag)),
                    _ => None,
                };
                number.ok_or_else(|| wrong_integer(stringify!($type), &value))
            }
        }
    )*};
}

integers! { i8 i16 i32 i64 i128 isize u8 u16 u32 u64 usize }

/// The error for a value that is no integer, or one out of range.
fn wrong_integer(wanted: &'static str, value: &Value) -> WrongType {
    let mut error = WrongType::new(wanted, value);
    if let Value::Int(_) | Value::LargeInt(_) = value {
        error.found = format!("int {value}").into();
    }
    error
}

impl From<u128> for Value {
    fn from(value: u128) -> Self {
        match i128::try_from(value) {
            Ok(value) => Self::Int(value),
            Err(_) => {
                let mut data = value.to_le_bytes().to_vec();
                data.push(0);
                Self::LargeInt(data.into())
            }
        }
    }
}

impl TryFrom<Value> for u128 {
    type Error = WrongType;

    fn try_from(value: Value) -> Result<Self, WrongType> {
        let number = match &value {
            Value::Int(number) => Self::try_from(*number).ok(),
            Value::Bool(flag) => Some(Self::from(*flag)),
            Value::LargeInt(data) => match data.split_first_chunk() {
                Some((low, [0])) => Some(Self::from_le_bytes(*low)),
                _ => None,
            },
            _ => None,
        };
        number.ok_or_else(|| wrong_integer("u128", &value))
    }
}

macro_rules! others {
    ($($type:ty, $($pattern:pat => $result:expr),+;)*) => {$(
        impl TryFrom<Value> for $type {
            type Error = WrongType;

            fn try_from(value: Value) -> Result<Self, WrongType> {
                match value.into_base() {
                    $($pattern => Ok($result),)+
                    other => Err(WrongType::new(stringify!($type), &other)),
                }
            }
        }
    )*};
}

#[expect(clippy::cast_precision_loss, reason = "as Python's float() of an int")]
pub(super) const fn float(value: i128) -> f64 {
    value as f64
}

#[expect(clippy::cast_possible_truncation, reason = "the nearest f32")]
pub(super) const fn narrow(value: f64) -> f32 {
    value as f32
}

others! {
    bool, Value::Bool(value) => value;
    f64, Value::Float(value) => value, Value::Int(value) => float(value);
    f32, Value::Float(value) => narrow(value), Value::Int(value) => narrow(float(value));
    String, Value::Str(string) => string.as_ref().to_owned();
    Arc<str>, Value::Str(string) => string;
    Bytes, Value::Bytes(data) => data, Value::ByteArray(data) => data;
    Array, Value::Array(array) => array;
    (), Value::None => ();
}

impl TryFrom<Value> for char {
    type Error = WrongType;

    fn try_from(value: Value) -> Result<Self, WrongType> {
        let mut characters = value.as_str().unwrap_or_default().chars();
        match (characters.next(), characters.next()) {
            (Some(character), None) => Ok(character),
            _ => Err(WrongType::new("one character", &value)),
        }
    }
}

impl Value {
    /// The items of a sequence or set: of lists, tuples and sets, of bytes as
    /// integers, of an array along its first dimension.
    pub(super) fn into_sequence(self, wanted: &'static str) -> Result<Vec<Self>, WrongType> {
        match self {
            Self::List(items) | Self::Tuple(items) | Self::Set(items) | Self::FrozenSet(items) => {
                Ok(items.into_vec())
            }
            Self::Object(object) if object.is_tuple() => Ok(object.arguments.into_vec()),
            Self::Bytes(data) | Self::ByteArray(data) => {
                Ok(data.iter().map(|byte| Self::from(*byte)).collect())
            }
            Self::Array(array) => match array.to_value() {
                Ok(Self::List(items)) => Ok(items.into_vec()),
                Ok(_) | Err(ValueError::Unknown { .. }) => {
                    Err(WrongType::new(wanted, &Self::Array(array)))
                }
                Err(error) => Err(WrongType::of_unreadable(wanted, &error)),
            },
            Self::Serialized(serialized) => serialized.elements().map_err(|error| match error {
                ValueError::Unknown { .. } => WrongType::new(wanted, &Self::Serialized(serialized)),
                error => WrongType::of_unreadable(wanted, &error),
            }),
            other => Err(WrongType::new(wanted, &other)),
        }
    }

    /// The value of the built-in type that an object extends, or the value
    /// itself.
    fn into_base(self) -> Self {
        match &self {
            Self::Object(object) => match object.base() {
                Some(base) => base.clone(),
                None => self,
            },
            _ => self,
        }
    }

    /// The entries of a dictionary.
    pub(super) fn into_entries(self) -> Result<Vec<(Self, Self)>, WrongType> {
        match self.into_base() {
            Self::Dict(entries) => Ok(entries.into_vec()),
            other => Err(WrongType::new("a dictionary", &other)),
        }
    }
}

/// Converts the items of a sequence.
fn converted<T, C>(items: Vec<Value>) -> Result<C, WrongType>
where
    T: TryFrom<Value, Error: Into<WrongType>>,
    C: FromIterator<T>,
{
    let items = items.into_iter().enumerate();
    items
        .map(|(index, item)| T::try_from(item).map_err(|error| error.into().within(&index)))
        .collect()
}

/// Converts the entries of a dictionary.
fn converted_entries<K, V, C>(entries: Vec<(Value, Value)>) -> Result<C, WrongType>
where
    K: TryFrom<Value, Error: Into<WrongType>>,
    V: TryFrom<Value, Error: Into<WrongType>>,
    C: FromIterator<(K, V)>,
{
    let entries = entries.into_iter();
    entries
        .map(|(key, value)| {
            let value = V::try_from(value).map_err(|error| error.into().within(&key))?;
            let at = key.clone();
            let key = K::try_from(key);
            let key = key.map_err(|error| error.into().within(&format_args!("the key {at}")))?;
            Ok((key, value))
        })
        .collect()
}

/// Converts lists, tuples (also named ones), sets, bytes (to integers), and
/// arrays along their first dimension.
impl<T: TryFrom<Value, Error: Into<WrongType>>> TryFrom<Value> for Vec<T> {
    type Error = WrongType;

    fn try_from(value: Value) -> Result<Self, WrongType> {
        converted(value.into_sequence("a sequence")?)
    }
}

/// Converts sequences of `N` items.
impl<T: TryFrom<Value, Error: Into<WrongType>>, const N: usize> TryFrom<Value> for [T; N] {
    type Error = WrongType;

    fn try_from(value: Value) -> Result<Self, WrongType> {
        let items = of_len(value, N)?;
        let converted: Vec<T> = converted(items)?;
        // Cannot fail: the length has been checked.
        Self::try_from(converted).map_err(|_| WrongType::new("a sequence", &Value::None))
    }
}

/// The items of a sequence of `len` items.
fn of_len(value: Value, len: usize) -> Result<Vec<Value>, WrongType> {
    let wanted = || format!("a sequence of {len}");
    let name = value.type_name().to_owned();
    let items = value.into_sequence("a sequence").map_err(|mut error| {
        error.wanted = wanted().into();
        error
    })?;
    if items.len() == len {
        return Ok(items);
    }
    Err(WrongType {
        wanted: wanted().into(),
        found: format!("{name} of {}", items.len()).into(),
        path: String::new(),
    })
}

impl<T, S> TryFrom<Value> for HashSet<T, S>
where
    T: TryFrom<Value, Error: Into<WrongType>> + Eq + Hash,
    S: BuildHasher + Default,
{
    type Error = WrongType;

    fn try_from(value: Value) -> Result<Self, WrongType> {
        converted(value.into_sequence("a set")?)
    }
}

impl<T: TryFrom<Value, Error: Into<WrongType>> + Ord> TryFrom<Value> for BTreeSet<T> {
    type Error = WrongType;

    fn try_from(value: Value) -> Result<Self, WrongType> {
        converted(value.into_sequence("a set")?)
    }
}

impl<K, V, S> TryFrom<Value> for HashMap<K, V, S>
where
    K: TryFrom<Value, Error: Into<WrongType>> + Eq + Hash,
    V: TryFrom<Value, Error: Into<WrongType>>,
    S: BuildHasher + Default,
{
    type Error = WrongType;

    fn try_from(value: Value) -> Result<Self, WrongType> {
        converted_entries(value.into_entries()?)
    }
}

impl<K, V> TryFrom<Value> for BTreeMap<K, V>
where
    K: TryFrom<Value, Error: Into<WrongType>> + Ord,
    V: TryFrom<Value, Error: Into<WrongType>>,
{
    type Error = WrongType;

    fn try_from(value: Value) -> Result<Self, WrongType> {
        converted_entries(value.into_entries()?)
    }
}

macro_rules! tuples {
    ($($count:literal: $($type:ident $value:ident $index:literal),+;)*) => {$(
        /// Converts to a tuple.
        impl<$($type: Into<Self>),+> From<($($type,)+)> for Value {
            fn from(($($value,)+): ($($type,)+)) -> Self {
                Self::Tuple([$($value.into()),+].into())
            }
        }

        /// Converts a sequence with the same number of items.
        impl<$($type: TryFrom<Value, Error: Into<WrongType>>),+> TryFrom<Value> for ($($type,)+) {
            type Error = WrongType;

            fn try_from(value: Value) -> Result<Self, WrongType> {
                let mut items = of_len(value, $count)?.into_iter();
                // Cannot fail: the number of items has been checked.
                let mut next = || items.next().unwrap_or_default();
                Ok(($(
                    $type::try_from(next()).map_err(|error| error.into().within(&$index))?,
                )+))
            }
        }

        impl<$($type: TryFrom<Value, Error: Into<WrongType>>),+> TryFrom<Value>
            for Option<($($type,)+)>
        {
            type Error = WrongType;

            fn try_from(value: Value) -> Result<Self, WrongType> {
                optional(value)
            }
        }
    )*};
}

tuples! {
    1: A a 0;
    2: A a 0, B b 1;
    3: A a 0, B b 1, C c 2;
    4: A a 0, B b 1, C c 2, D d 3;
    5: A a 0, B b 1, C c 2, D d 3, E e 4;
    6: A a 0, B b 1, C c 2, D d 3, E e 4, F f 5;
    7: A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6;
    8: A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7;
}

impl Value {
    /// Converts `None` to `None`, and other values into a type of the program.
    ///
    /// ```
    /// use daskwire_value::Value;
    /// struct Celsius(f64);
    ///
    /// impl TryFrom<Value> for Celsius {
    ///     type Error = daskwire_value::WrongType;
    ///
    ///     fn try_from(value: Value) -> Result<Self, Self::Error> {
    ///         f64::try_from(value).map(Self)
    ///     }
    /// }
    /// assert!(Value::None.into_option::<Celsius>()?.is_none());
    /// assert!(Value::from("warm").into_option::<Celsius>().is_err());
    /// # Ok::<(), daskwire_value::WrongType>(())
    /// ```
    ///
    /// # Errors
    ///
    /// That of the conversion.
    pub fn into_option<T: TryFrom<Self>>(self) -> Result<Option<T>, T::Error> {
        match self {
            Self::None => Ok(None),
            value => T::try_from(value).map(Some),
        }
    }
}

/// An `Option` of a type of the program, to which a value converts. `Option<T>` itself converts for
/// types of this crate and its features; Rust has no conversion to it for those of other crates.
///
/// ```
/// use daskwire_value::{Optional, Value, WrongType};
/// # #[derive(Debug, PartialEq)]
/// struct Celsius(f64);
///
/// impl TryFrom<Value> for Celsius {
///     type Error = WrongType;
///
///     fn try_from(value: Value) -> Result<Self, WrongType> {
///         f64::try_from(value).map(Self)
///     }
/// }
/// let value = Value::list([Value::from(21.5), Value::None]);
/// let all = Vec::<Optional<Celsius>>::try_from(value)?;
/// assert_eq!(all, [Optional(Some(Celsius(21.5))), Optional(None)]);
/// # Ok::<(), WrongType>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Optional<T>(pub Option<T>);

impl<T: TryFrom<Value>> TryFrom<Value> for Optional<T> {
    type Error = T::Error;

    fn try_from(value: Value) -> Result<Self, T::Error> {
        value.into_option().map(Self)
    }
}

impl<T: Into<Self>> From<Optional<T>> for Value {
    fn from(value: Optional<T>) -> Self {
        value.0.into()
    }
}

/// Converts `None` to `None`, and other values to `Some`.
pub(super) fn optional<T: TryFrom<Value, Error: Into<WrongType>>>(
    value: Value,
) -> Result<Option<T>, WrongType> {
    value.into_option().map_err(Into::into)
}

/// Conversions to `Option`, for each type: std has one for `Option<Value>`,
/// which excludes a general one.
macro_rules! options {
    (@one {$($parameter:tt)*} $type:ty) => {
        impl<$($parameter)*> TryFrom<Value> for Option<$type> {
            type Error = WrongType;

            fn try_from(value: Value) -> Result<Self, WrongType> {
                $crate::convert::optional(value)
            }
        }
    };
    ($($parameters:tt $($type:ty),+;)*) => {
        $($(options! { @one $parameters $type })+)*
    };
}

pub(super) use options;

options! {
    {} i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize;
    {} f32, f64, bool, char, String, Arc<str>, Bytes, Array;
    {T: TryFrom<Value, Error: Into<WrongType>>} Vec<T>;
    {T: TryFrom<Value, Error: Into<WrongType>>, const N: usize} [T; N];
    {T: TryFrom<Value, Error: Into<WrongType>> + Ord} BTreeSet<T>;
    {T: TryFrom<Value, Error: Into<WrongType>> + Eq + Hash, S: BuildHasher + Default} HashSet<T, S>;
    {
        K: TryFrom<Value, Error: Into<WrongType>> + Ord,
        V: TryFrom<Value, Error: Into<WrongType>>
    } BTreeMap<K, V>;
    {
        K: TryFrom<Value, Error: Into<WrongType>> + Eq + Hash,
        V: TryFrom<Value, Error: Into<WrongType>>,
        S: BuildHasher + Default
    } HashMap<K, V, S>;
}
