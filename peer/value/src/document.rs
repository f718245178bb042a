//! Values as parts of a message's body in MessagePack.

use daskwire::message::{BuildError, MessageBuilder};
use daskwire::msgpack::{Token, Writer};

use super::source::{ProtocolError, Source};
use super::{MAX_DEPTH, Value};

/// Maximum capacity reserved in advance: a few bytes can announce many items.
const MAX_RESERVED: u32 = 1 << 8;

impl Value {
    /// Reads the next value of a body; payloads stay unopened.
    ///
    /// # Errors
    ///
    /// If the message is malformed.
    pub fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        Self::read_within(source, MAX_DEPTH + 1)
    }

    fn read_within(source: &mut Source<'_>, depth: usize) -> Result<Self, ProtocolError> {
        let depth = depth.checked_sub(1).ok_or(ProtocolError::TooDeep)?;
        Ok(match source.reader.peek()? {
            Token::Nil => {
                source.reader.nil()?;
                Self::None
            }
            Token::Bool(_) => Self::Bool(source.reader.bool()?),
            Token::UInt(value) => {
                source.reader.token()?;
                Self::Int(value.into())
            }
            Token::Int(value) => {
                source.reader.token()?;
                Self::Int(value.into())
            }
            Token::F32(_) | Token::F64(_) => Self::Float(source.reader.f64()?),
            Token::Str(_) => Self::Str(source.reader.str()?.to_str().into()),
            Token::Bin(_) => Self::Bytes(source.bytes()?),
            Token::Ext(..) => return Err(source.unexpected("a value")),
            Token::Array(_) => {
                let count = source.reader.array()?;
                let mut items = Vec::with_capacity(count.min(MAX_RESERVED) as usize);
                for _ in 0..count {
                    items.push(Self::read_within(source, depth)?);
                }
                Self::List(items.into())
            }
            Token::Map(_) => {
                if let Some(serialized) = source.payload()? {
                    return Ok(Self::Serialized(serialized));
                }
                if source.is_set()? {
                    let Self::List(items) = Self::read_within(source, depth)? else {
                        return Err(source.unexpected("the items of a set"));
                    };
                    return Ok(Self::Set(items));
                }
                let count = source.reader.map()?;
                let mut entries = Vec::with_capacity(count.min(MAX_RESERVED) as usize);
                for _ in 0..count {
                    let key = Self::read_within(source, depth)?.hashable();
                    entries.push((key, Self::read_within(source, depth)?));
                }
                Self::Dict(entries.into())
            }
        })
    }

    /// Reads the key of a dictionary, in which an array is a tuple: Python has
    /// no lists as keys.
    pub(super) fn read_key(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        Self::read(source).map(Self::hashable)
    }

    pub(super) fn hashable(self) -> Self {
        match self {
            // The depth of the recursion is bounded by that of values that are
            // read.
            Self::List(items) => Self::Tuple(items.into_iter().map(Self::hashable).collect()),
            value => value,
        }
    }

    /// Writes the value into a body. Lists and tuples become arrays; what
    /// MessagePack lacks, such as integers beyond 64 bits, is written as a
    /// string.
    #[doc(hidden)]
    pub fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        // Without recursion: programs may nest values to any depth.
        let mut left = Vec::new();
        let mut next = Some(self);
        while let Some(value) = next {
            match value {
                Self::Serialized(serialized) => serialized.write(to)?,
                Self::List(items) | Self::Tuple(items) => {
                    to.body().array(count(items.len()));
                    left.extend(items.iter().rev());
                }
                Self::Set(items) | Self::FrozenSet(items) => {
                    to.body().map(2).str("__Set__").bool(true);
                    to.body().str("as-list").array(count(items.len()));
                    left.extend(items.iter().rev());
                }
                Self::Dict(entries) => {
                    to.body().map(count(entries.len()));
                    left.extend(entries.iter().rev().flat_map(|(key, value)| [value, key]));
                }
                plain => plain.write_plain(to.body()),
            }
            next = left.pop();
        }
        Ok(())
    }

    fn write_plain(&self, writer: &mut Writer<'_>) {
        match self {
            Self::None => writer.nil(),
            Self::Bool(value) => writer.bool(*value),
            Self::Int(value) => match (u64::try_from(*value), i64::try_from(*value)) {
                (Ok(value), _) => writer.u64(value),
                (_, Ok(value)) => writer.i64(value),
                _ => writer.str(&value.to_string()),
            },
            Self::Float(value) => writer.f64(*value),
            Self::Str(string) => writer.str(string),
            Self::Bytes(data) | Self::ByteArray(data) => writer.bin(data),
            other => writer.str(&other.to_string()),
        };
    }
}
