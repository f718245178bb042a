//! Field types, and the macros that define messages from them.

use core::ops::{Deref, DerefMut};
use std::borrow::Cow;
use std::collections::HashSet;

use bytes::Bytes;
use daskwire::message::{BuildError, MessageBuilder};
use daskwire::msgpack::Token;

use super::{ProtocolError, Source};
use crate::Key;
use crate::value::{Serialized, Value};

/// A type that can be a field of a message.
pub trait Field: Sized {
    /// The value of an absent field; `None` if the field is mandatory.
    const ABSENT: Option<fn() -> Self> = None;

    /// Reads the field as the next value of a body.
    ///
    /// # Errors
    ///
    /// If the message is malformed.
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError>;

    /// Whether the field is omitted from the message.
    fn is_left_out(&self) -> bool {
        false
    }

    /// Bytes of heap memory, for limits on queues. Shared memory counts in full.
    fn heap_len(&self) -> usize {
        0
    }

    /// Writes the field as the next value of a body.
    ///
    /// # Errors
    ///
    /// If the message is too large for its format or for the buffers.
    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError>;
}

/// A mandatory field that may be nil.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nullable<T>(pub Option<T>);

/// A list or set of keys. Of repeated keys, the first is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys(pub Vec<Key>);

/// The sizes of data in bytes, in the order of the message. Sizes that the scheduler does not
/// know, which Dask writes as -1, are read as 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes(pub Vec<(Key, u64)>);

/// Addresses or names of workers. A name that is a number is read as a string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerNames(pub Vec<String>);

impl<S: Into<String>> FromIterator<S> for WorkerNames {
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }
}

impl From<Vec<String>> for WorkerNames {
    fn from(names: Vec<String>) -> Self {
        Self(names)
    }
}

impl Deref for WorkerNames {
    type Target = Vec<String>;

    fn deref(&self) -> &Vec<String> {
        &self.0
    }
}

impl Field for WorkerNames {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        let names: Vec<Value> = Vec::read(source)?;
        let names = names.into_iter().map(|name| match name {
            Value::Str(name) => Ok(name.as_ref().to_owned()),
            Value::Int(number) => Ok(number.to_string()),
            _ => Err(source.unexpected("the address or name of a worker")),
        });
        names.collect::<Result<_, _>>().map(Self)
    }

    fn heap_len(&self) -> usize {
        self.0.heap_len()
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        self.0.write(to)
    }
}

/// A map in the order of the message.
pub(crate) type Map<K, V> = Vec<(K, V)>;

impl<K: Into<Key>> FromIterator<K> for Keys {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        Self(keys.into_iter().map(Into::into).collect())
    }
}

impl FromIterator<(Key, u64)> for Sizes {
    fn from_iter<I: IntoIterator<Item = (Key, u64)>>(sizes: I) -> Self {
        Self(sizes.into_iter().collect())
    }
}

impl Deref for Sizes {
    type Target = Vec<(Key, u64)>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Sizes {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Deref for Keys {
    type Target = Vec<Key>;

    fn deref(&self) -> &Vec<Key> {
        &self.0
    }
}

impl DerefMut for Keys {
    fn deref_mut(&mut self) -> &mut Vec<Key> {
        &mut self.0
    }
}

impl IntoIterator for Keys {
    type Item = Key;
    type IntoIter = std::vec::IntoIter<Key>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Keys {
    type Item = &'a Key;
    type IntoIter = core::slice::Iter<'a, Key>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl Field for Keys {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        source.is_set()?;
        let mut keys: Vec<Key> = Vec::read(source)?;
        if keys.len() > 1 {
            let mut seen = HashSet::with_capacity(keys.len());
            keys.retain(|key| seen.insert(key.clone()));
        }
        Ok(Self(keys))
    }

    fn heap_len(&self) -> usize {
        self.0.heap_len()
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        self.0.write(to)
    }
}

macro_rules! plain {
    ($($type:ty, $method:ident, |$this:ident| $write:expr;)*) => {$(
        impl Field for $type {
            fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
                Ok(source.reader.$method()?)
            }

            fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
                let $this = self;
                to.body().$method($write);
                Ok(())
            }
        }
    )*};
}

plain! {
    bool, bool, |this| *this;
    u64, u64, |this| *this;
    i64, i64, |this| *this;
}

/// No value: nil.
impl Field for () {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        Ok(source.reader.nil()?)
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        to.body().nil();
        Ok(())
    }
}

/// A float. Python writes a float as an integer if the program passed an integer.
impl Field for f64 {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        #[expect(clippy::cast_precision_loss, reason = "as Python's float() of an int")]
        Ok(match source.reader.peek()? {
            Token::UInt(value) => {
                source.reader.token()?;
                value as Self
            }
            Token::Int(value) => {
                source.reader.token()?;
                value as Self
            }
            _ => source.reader.f64()?,
        })
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        to.body().f64(*self);
        Ok(())
    }
}

impl Field for String {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        Ok(source.reader.str()?.to_str().to_owned())
    }

    fn heap_len(&self) -> usize {
        self.len()
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        to.body().str(self);
        Ok(())
    }
}

impl Field for Bytes {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        source.bytes()
    }

    fn heap_len(&self) -> usize {
        self.len()
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        to.body().bin(self);
        Ok(())
    }
}

impl Field for Key {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        Ok(Self::read(&mut source.reader)?)
    }

    fn heap_len(&self) -> usize {
        self.as_msgpack().len()
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        to.body().encoded(self.as_msgpack());
        Ok(())
    }
}

impl Field for Value {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        Self::read(source)
    }

    fn heap_len(&self) -> usize {
        let mut len = 0;
        let mut next = Some(self);
        let mut left: Vec<&Self> = Vec::new();
        while let Some(value) = next {
            len += match value {
                Self::List(items)
                | Self::Tuple(items)
                | Self::Set(items)
                | Self::FrozenSet(items) => {
                    left.extend(items);
                    size_of_val(&**items)
                }
                Self::Dict(entries) => {
                    left.extend(entries.iter().flat_map(|(key, value)| [key, value]));
                    size_of_val(&**entries)
                }
                Self::Serialized(serialized) => serialized.heap_len(),
                scalar => usize::try_from(scalar.nbytes()).unwrap_or(usize::MAX),
            };
            next = left.pop();
        }
        len
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        self.write(to)
    }
}

impl Field for Serialized {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        match source.payload()? {
            Some(serialized) => Ok(serialized),
            // Dask accepts a plain value wherever it accepts a payload.
            None => {
                let value = Value::read(source)?;
                Self::of(&value).map_err(|_| source.unexpected("a value"))
            }
        }
    }

    fn heap_len(&self) -> usize {
        let frames = self.frames().iter().map(Bytes::len);
        self.header().len() + size_of_val(self.frames()) + frames.sum::<usize>()
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        self.write(to)
    }
}

impl<T: Field> Field for Option<T> {
    const ABSENT: Option<fn() -> Self> = Some(|| None);

    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        if source.reader.take_nil() {
            return Ok(None);
        }
        T::read(source).map(Some)
    }

    fn is_left_out(&self) -> bool {
        self.is_none()
    }

    fn heap_len(&self) -> usize {
        self.as_ref().map_or(0, T::heap_len)
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        match self {
            Some(value) => value.write(to),
            None => {
                to.body().nil();
                Ok(())
            }
        }
    }
}

impl<T: Field> Field for Nullable<T> {
    const ABSENT: Option<fn() -> Self> = Some(|| Self(None));

    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        Option::read(source).map(Self)
    }

    fn heap_len(&self) -> usize {
        self.0.heap_len()
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        self.0.write(to)
    }
}

/// Maximum capacity that is reserved for the items that a message announces.
const MAX_RESERVED: u32 = 1 << 12;

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

impl<T: Field> Field for Vec<T> {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        let count = source.reader.array()?;
        let mut items = Self::with_capacity(count.min(MAX_RESERVED) as usize);
        for _ in 0..count {
            items.push(T::read(source)?);
        }
        Ok(items)
    }

    fn heap_len(&self) -> usize {
        size_of_val(&**self) + self.iter().map(T::heap_len).sum::<usize>()
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        to.body().array(count(self.len()));
        self.iter().try_for_each(|item| item.write(to))
    }
}

impl<K: Field, V: Field> Field for Map<K, V> {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        let count = source.map()?;
        let mut entries = Self::with_capacity(count.min(MAX_RESERVED) as usize);
        for _ in 0..count {
            let key = K::read(source)?;
            entries.push((key, V::read(source)?));
        }
        Ok(entries)
    }

    fn heap_len(&self) -> usize {
        let entries = self.iter();
        let entries = entries.map(|(key, value)| key.heap_len() + value.heap_len());
        size_of_val(&**self) + entries.sum::<usize>()
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        to.body().map(count(self.len()));
        self.iter().try_for_each(|(key, value)| {
            key.write(to)?;
            value.write(to)
        })
    }
}

impl Field for Sizes {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        let count = source.map()?;
        let mut sizes = Vec::with_capacity(count.min(MAX_RESERVED) as usize);
        for _ in 0..count {
            let key = Field::read(source)?;
            let reader = &mut source.reader;
            let size = match reader.u64() {
                Ok(size) => size,
                Err(error) => {
                    reader.i64().map_err(|_| error)?;
                    0
                }
            };
            sizes.push((key, size));
        }
        Ok(Self(sizes))
    }

    fn heap_len(&self) -> usize {
        self.0.heap_len()
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        self.0.write(to)
    }
}

/// Reads an unknown field and appends it to `extra`.
pub(super) fn keep(
    source: &mut Source<'_>,
    extra: &mut Map<Value, Value>,
) -> Result<(), ProtocolError> {
    let key = Value::read(source)?;
    extra.push((key, Value::read(source)?));
    Ok(())
}

/// The `op` of the map that is the next value; empty for other values.
pub(super) fn op_of<'a>(source: &Source<'a>) -> Cow<'a, str> {
    let mut ahead = source.reader;
    match (ahead.find("op"), ahead.peek()) {
        (Ok(true), Ok(Token::Str(op))) => String::from_utf8_lossy(op.as_bytes()),
        _ => Cow::Borrowed(""),
    }
}

/// Defines structs that are maps in messages: `name: type = "name on the wire"`.
///
/// A field that older releases leave out ends with `or` and its default value. Each
/// struct gets a field `extra` for unknown fields. A struct with an op writes the op as
/// the first entry.
macro_rules! maps {
    ($(
        $(#[$meta:meta])*
        $name:ident $(= $op:literal)? {
            $($(#[$field_meta:meta])* $field:ident: $type:ty = $wire:literal $(or $default:expr)?,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Default, PartialEq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
            /// Unknown fields, unchanged.
            pub extra: Vec<(crate::Value, crate::Value)>,
        }

        daskwire_value::brief_debug!(struct $name { $($field,)* extra, });

        impl crate::protocol::Field for $name {
            fn read(
                source: &mut crate::protocol::Source<'_>,
            ) -> Result<Self, crate::protocol::ProtocolError> {
                #[allow(unused_imports)]
                use crate::protocol::Field as _;
                #[allow(dead_code, reason = "of messages whose fields may all be absent")]
                const MESSAGE: &str =
                    crate::protocol::field::first(&[$($op,)? stringify!($name)]);
                $(let mut $field: Option<$type> = None;)*
                let mut extra = Vec::new();
                let count = source.map()?;
                for _ in 0..count {
                    let mut ahead = source.reader;
                    let Ok(key) = ahead.raw_str() else {
                        crate::protocol::field::keep(source, &mut extra)?;
                        continue;
                    };
                    $(if key == $wire {
                        source.reader = ahead;
                        $field = Some(crate::protocol::Field::read(source)?);
                        continue;
                    })*
                    $(if key == "op" && !$op.is_empty() {
                        source.reader = ahead;
                        // The first `op` selected the message; skip a repeated
                        // one.
                        source.reader.skip()?;
                        continue;
                    })?
                    crate::protocol::field::keep(source, &mut extra)?;
                }
                $($(let $field = $field.or_else(|| Some($default));)?)*
                Ok(Self {
                    $($field: match ($field, <$type as crate::protocol::Field>::ABSENT) {
                        (Some(value), _) => value,
                        (None, Some(absent)) => absent(),
                        (None, None) => {
                            return Err(crate::protocol::ProtocolError::Missing {
                                message: MESSAGE,
                                field: $wire,
                            });
                        }
                    },)*
                    extra,
                })
            }

            fn heap_len(&self) -> usize {
                #[allow(unused_imports)]
                use crate::protocol::Field as _;
                self.extra.heap_len() $(+ self.$field.heap_len())*
            }

            fn write<'a>(
                &'a self,
                to: &mut daskwire::message::MessageBuilder<'_, 'a>,
            ) -> Result<(), daskwire::message::BuildError> {
                #[allow(unused_imports)]
                use crate::protocol::Field as _;
                #[allow(unused_mut)]
                let mut count = self.extra.len();
                $(count += usize::from(!$op.is_empty());)?
                $(count += usize::from(!self.$field.is_left_out());)*
                to.body().map(u32::try_from(count).unwrap_or(u32::MAX));
                $(to.body().str("op").str($op);)?
                $(if !self.$field.is_left_out() {
                    to.body().str($wire);
                    self.$field.write(to)?;
                })*
                for (key, value) in &self.extra {
                    key.write(to)?;
                    value.write(to)?;
                }
                Ok(())
            }
        }
    )*};
}

/// Defines an enum of messages that are distinguished by their op.
macro_rules! ops {
    ($(#[$meta:meta])* $name:ident { $($variant:ident = $op:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        #[allow(clippy::large_enum_variant, reason = "most messages are of the large variants")]
        pub enum $name {
            $(
                #[doc = concat!("`", $op, "`.")]
                $variant($variant),
            )*
            /// A message with an unknown op.
            Unknown(crate::protocol::Unknown),
        }

        impl $name {
            /// The op of the message on the wire.
            pub fn op(&self) -> &str {
                match self {
                    $(Self::$variant(_) => $op,)*
                    Self::Unknown(unknown) => &unknown.op,
                }
            }
        }

        impl $name {
            /// The op, unless it is unknown.
            #[allow(dead_code, reason = "used for some of the enums")]
            pub const fn known_op(&self) -> Option<&'static str> {
                match self {
                    $(Self::$variant(_) => Some($op),)*
                    Self::Unknown(_) => None,
                }
            }
        }

        impl From<crate::protocol::Unknown> for $name {
            fn from(message: crate::protocol::Unknown) -> Self {
                Self::Unknown(message)
            }
        }

        $(impl From<$variant> for $name {
            fn from(message: $variant) -> Self {
                Self::$variant(message)
            }
        })*

        impl crate::protocol::Field for $name {
            fn read(
                source: &mut crate::protocol::Source<'_>,
            ) -> Result<Self, crate::protocol::ProtocolError> {
                let op = crate::protocol::field::op_of(source);
                // If several variants have the same op, the first is read; the others
                // are only written, to peers with older releases.
                #[allow(unreachable_patterns)]
                Ok(match &*op {
                    $($op => Self::$variant(crate::protocol::Field::read(source)?),)*
                    _ => Self::Unknown(crate::protocol::Field::read(source)?),
                })
            }

            fn heap_len(&self) -> usize {
                match self {
                    $(Self::$variant(message) => message.heap_len(),)*
                    Self::Unknown(unknown) => unknown.heap_len(),
                }
            }

            fn write<'a>(
                &'a self,
                to: &mut daskwire::message::MessageBuilder<'_, 'a>,
            ) -> Result<(), daskwire::message::BuildError> {
                match self {
                    $(Self::$variant(message) => message.write(to),)*
                    Self::Unknown(unknown) => unknown.write(to),
                }
            }
        }
    };
}

pub(super) use {maps, ops};

/// The name of a message in errors: its op, or else its Rust name.
pub(super) const fn first(names: &[&'static str]) -> &'static str {
    names[0]
}

impl Field for super::Unknown {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        let op = op_of(source).into_owned();
        let mut extra = match Value::read(source)? {
            Value::Dict(entries) => entries.into_vec(),
            other => vec![(Value::from("value"), other)],
        };
        extra.retain(|(key, _)| key.as_str() != Some("op"));
        Ok(Self { op, extra })
    }

    fn heap_len(&self) -> usize {
        self.op.len() + self.extra.heap_len()
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        to.body().map(count(self.extra.len() + 1));
        to.body().str("op").str(&self.op);
        self.extra.iter().try_for_each(|(key, value)| {
            key.write(to)?;
            value.write(to)
        })
    }
}
