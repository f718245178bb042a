//! Keys: the names of results in a cluster.

mod prefix;

use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::str::FromStr;
use std::borrow::Cow;
use std::sync::OnceLock;

use bytes::Bytes;
use daskwire::msgpack::{Malformed, Reader, Token, Writer};
use daskwire_pickle as pickle;
use triomphe::ThinArc;

use crate::Value;
use crate::value::source::Source;

/// Maximum nesting of a key's parts. Dask's own keys have two levels.
const DEPTH: u32 = 16;

/// Maximum length of a short key in bytes. Most keys are shorter.
const SHORT: usize = 64;

/// The key of a task or a datum: a string, a number, bytes, or a list of keys (a
/// tuple in Python), such as `"add-1"` or `("x", 0)`.
///
/// Keys are global in a cluster: submitting a task under an existing key returns
/// the existing result. Cloning a key is cheap.
///
/// ```
/// use daskwire_messages::Key;
/// let key = Key::from("add-1");
/// assert_eq!(key.as_str(), Some("add-1"));
/// let block = Key::list([Key::from("x"), Key::from(0)]);
/// assert_eq!(block.to_string(), "('x', 0)");
/// assert_ne!(key, block);
/// ```
#[derive(Clone)]
pub struct Key(
    /// The encoding as a MessagePack value. The pointer takes one word, because a
    /// program may hold millions of keys.
    ThinArc<(), u8>,
);

/// The empty string.
impl Default for Key {
    fn default() -> Self {
        static EMPTY: OnceLock<Key> = OnceLock::new();
        EMPTY.get_or_init(|| Self::from("")).clone()
    }
}

impl Key {
    /// Returns a list of keys, as used for the blocks of collections.
    pub fn list(parts: impl IntoIterator<Item = Self>) -> Self {
        let parts: Vec<Self> = parts.into_iter().collect();
        Self::written(|writer| {
            writer.array(u32::try_from(parts.len()).unwrap_or(u32::MAX));
            for part in &parts {
                writer.encoded(part.as_msgpack());
            }
        })
    }

    /// Returns a unique key: `prefix`, a dash, and 128 random bits.
    pub fn unique(prefix: &str) -> Self {
        Self::from(format!("{prefix}-{}", identifier()))
    }

    /// Reads a key as the next value of a body.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if the value is not a key: a map, nil, or nested deeper than
    /// 16 levels.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let raw = reader.skip()?;
        // Nearly all keys are short strings. For those, and for small numbers,
        // this is the shortest encoding.
        if matches!(
            raw,
            [0x00..=0x7f | 0xa0..=0xbf | 0xe0..=0xff, ..] | [0xd9, 0x20..=0xff, ..]
        ) {
            return Ok(Self::encoded(raw));
        }
        if let Ok(number @ (Token::UInt(_) | Token::Int(_))) = Reader::new(raw).token() {
            return Ok(Self::written(|writer| {
                writer.token(number);
            }));
        }
        let at = reader.position().wrapping_sub(raw.len());
        canonical(raw).map_err(|error| Malformed {
            at: at.wrapping_add(error.at),
            ..error
        })
    }

    /// The key as a MessagePack value.
    pub fn as_msgpack(&self) -> &[u8] {
        &self.0.slice
    }

    /// The key as a value.
    pub fn to_value(&self) -> Value {
        let document = [Bytes::copy_from_slice(self.as_msgpack())];
        let value = Source::new(&document).and_then(|mut source| Value::read(&mut source));
        value.expect("a key is a document")
    }

    /// The parts, if the key is a list.
    ///
    /// ```
    /// use daskwire_messages::Key;
    /// let parts = [Key::from("x"), Key::from(0)];
    /// assert_eq!(Key::list(parts.clone()).parts(), Some(parts.into()));
    /// ```
    pub fn parts(&self) -> Option<Vec<Self>> {
        let mut reader = Reader::new(self.as_msgpack());
        let count = reader.array().ok()?;
        (0..count).map(|_| Self::read(&mut reader).ok()).collect()
    }

    /// The string, if the key is one.
    pub fn as_str(&self) -> Option<&str> {
        Reader::new(self.as_msgpack())
            .str()
            .ok()
            .map(|string| string.to_str())
    }

    /// Whether the key is an empty string or list, or a list that begins with an empty list,
    /// such as `[[]]`. Dask's scheduler fails with such keys.
    pub fn is_empty(&self) -> bool {
        let mut reader = Reader::new(self.as_msgpack());
        match reader.token() {
            Ok(Token::Str(string)) => string.as_bytes().is_empty(),
            Ok(Token::Bin(data)) => data.is_empty(),
            mut part => {
                while let Ok(Token::Array(1..)) = part {
                    part = reader.token();
                }
                matches!(part, Ok(Token::Array(0)))
            }
        }
    }

    /// The part that related keys share, by which Dask groups tasks: `add` for
    /// `add-3f…`, `x` for `('x', 0)`, `data` for a bare hash. Equals the result
    /// of `dask.utils.key_split`.
    ///
    /// ```
    /// use daskwire_messages::Key;
    /// let key = Key::from("inc-5f0c3e6a-1b7d-4d3e-9a59-0242ac120002");
    /// assert_eq!(key.prefix(), "inc");
    /// ```
    pub fn prefix(&self) -> Cow<'_, str> {
        let mut reader = Reader::new(self.as_msgpack());
        loop {
            let name = match reader.token() {
                Ok(Token::Array(1..)) => continue,
                Ok(Token::Str(string)) => string.as_bytes(),
                Ok(Token::Bin(data)) => data,
                _ => return prefix::OTHER.into(),
            };
            return core::str::from_utf8(name).map_or(prefix::OTHER.into(), prefix::split);
        }
    }

    /// The name of the collection that the task belongs to, which is longer than its
    /// [`prefix`](Self::prefix): `x-3f…` for `('x-3f…', 0)`. Equals the result of
    /// `distributed.utils.key_split_group`.
    ///
    /// ```
    /// use daskwire_messages::Key;
    /// let key = Key::list([Key::from("x-3f"), Key::from(0)]);
    /// assert_eq!((key.prefix(), key.group()), ("x".into(), "x-3f".into()));
    /// assert_eq!(Key::from("('x-3f', 0)").group(), "x-3f");
    /// assert_eq!(Key::from("inc-3f").group(), "inc");
    /// ```
    pub fn group(&self) -> Cow<'_, str> {
        let mut reader = Reader::new(self.as_msgpack());
        let (name, is_list) = match reader.token() {
            Ok(Token::Array(1..)) => (reader.token(), true),
            first => (first, false),
        };
        let name = match name {
            Ok(Token::Str(string)) => core::str::from_utf8(string.as_bytes()),
            Ok(Token::Bin(data)) => core::str::from_utf8(data),
            _ => return self.prefix(),
        };
        match name {
            Ok(name) if is_list => name.into(),
            Ok(name) if name.starts_with('(') => {
                let first = name.split(',').next().unwrap_or(name);
                first.trim_matches(['(', ')', '"', '\'']).into()
            }
            _ => self.prefix(),
        }
    }

    /// Writes the key in its Python form, with lists as tuples.
    pub fn pickle(&self, writer: &mut pickle::Writer<'_, '_>) {
        let mut reader = Reader::new(self.as_msgpack());
        while !reader.is_empty() {
            match reader.token() {
                Ok(Token::Array(count)) => writer.tuple(count as usize),
                Ok(Token::Str(string)) => writer.str_bytes(string.as_bytes()),
                Ok(Token::Bin(data)) => writer.bytes(data),
                Ok(Token::UInt(value)) => writer.u64(value),
                Ok(Token::Int(value)) => writer.i64(value),
                Ok(Token::F64(value)) => writer.f64(value),
                Ok(Token::Bool(value)) => writer.bool(value),
                // Keys contain nothing else.
                _ => return,
            };
        }
    }

    /// Whether both keys are clones of one key.
    pub fn is_clone_of(&self, other: &Self) -> bool {
        self.address() == other.address()
    }

    /// The address of the memory that the key shares with its clones.
    pub fn address(&self) -> usize {
        self.as_msgpack().as_ptr().addr()
    }

    /// An equal key that is a clone of no other.
    pub fn separate(&self) -> Self {
        Self::encoded(self.as_msgpack())
    }

    fn encoded(bytes: &[u8]) -> Self {
        Self(ThinArc::from_header_and_slice((), bytes))
    }

    fn written(write: impl Fn(&mut Writer<'_>)) -> Self {
        let mut short = [0; SHORT];
        let mut writer = Writer::new(&mut short);
        write(&mut writer);
        let len = writer.len();
        if let Some(bytes) = short.get(..len) {
            return Self::encoded(bytes);
        }
        let mut bytes = vec![0; len];
        write(&mut Writer::new(&mut bytes));
        Self::encoded(&bytes)
    }
}

/// The key in its shortest encoding, which Dask uses too, so that equal keys have
/// equal bytes.
fn canonical(raw: &[u8]) -> Result<Key, Malformed> {
    let limits = daskwire::Limits::HOST.with_depth(DEPTH);
    let mut check = Reader::with_limits(raw, &limits);
    while !check.is_empty() {
        let before = check.position();
        match check.token()? {
            Token::Map(_) | Token::Nil | Token::Ext(..) => {
                return Err(Malformed {
                    at: before,
                    kind: daskwire::msgpack::MalformedKind::Unexpected {
                        expected: daskwire::msgpack::Kind::Str,
                        found: daskwire::msgpack::Kind::Map,
                    },
                });
            }
            _ => {}
        }
    }
    Ok(Key::written(|writer| {
        let mut reader = Reader::with_limits(raw, &limits);
        while !reader.is_empty() {
            match reader.token() {
                Ok(Token::F32(value)) => writer.f64(value.into()),
                Ok(token) => writer.token(token),
                Err(_) => return,
            };
        }
    }))
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.as_msgpack() == other.as_msgpack()
    }
}

impl Eq for Key {}

/// Orders keys by their encodings.
impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_msgpack().cmp(other.as_msgpack())
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.as_msgpack());
    }
}

impl From<&str> for Key {
    fn from(string: &str) -> Self {
        Self::written(|writer| {
            writer.str(string);
        })
    }
}

impl From<String> for Key {
    fn from(string: String) -> Self {
        Self::from(string.as_str())
    }
}

impl From<&Self> for Key {
    fn from(key: &Self) -> Self {
        key.clone()
    }
}

impl From<i64> for Key {
    fn from(number: i64) -> Self {
        Self::written(|writer| {
            writer.i64(number);
        })
    }
}

impl From<f64> for Key {
    fn from(number: f64) -> Self {
        Self::written(|writer| {
            writer.f64(number);
        })
    }
}

impl From<&[u8]> for Key {
    fn from(data: &[u8]) -> Self {
        Self::written(|writer| {
            writer.bin(data);
        })
    }
}

impl FromStr for Key {
    type Err = core::convert::Infallible;

    fn from_str(string: &str) -> Result<Self, Self::Err> {
        Ok(Self::from(string))
    }
}

/// Formats as Python does, but without quotes if the key is a single string.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(string) = self.as_str() {
            return write!(f, "{}", string.escape_debug());
        }
        let mut reader = Reader::new(self.as_msgpack());
        // For each open list, the number of items left and in total.
        let mut open: Vec<(u32, u32)> = Vec::new();
        while let Ok(token) = reader.token() {
            match token {
                Token::Array(count) => {
                    f.write_str("(")?;
                    open.push((count, count));
                    if count != 0 {
                        continue;
                    }
                }
                Token::Str(string) => {
                    let string = String::from_utf8_lossy(string.as_bytes());
                    write!(f, "'{}'", string.escape_debug())?;
                }
                Token::Bin(data) => write!(f, "b'{}'", data.escape_ascii())?,
                Token::UInt(value) => write!(f, "{value}")?,
                Token::Int(value) => write!(f, "{value}")?,
                Token::F64(value) => write!(f, "{value:?}")?,
                Token::Bool(value) => f.write_str(if value { "True" } else { "False" })?,
                _ => f.write_str("?")?,
            }
            // A value is complete, and so may be the lists around it.
            while let Some((left, count)) = open.last_mut() {
                *left = left.saturating_sub(1);
                if *left != 0 && *count != 0 {
                    f.write_str(", ")?;
                    break;
                }
                f.write_str(if *count == 1 { ",)" } else { ")" })?;
                open.pop();
            }
            if open.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// Returns 128 random bits as a string.
pub fn identifier() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    // Each state is keyed by the operating system's random bits and a counter.
    let bits = |word: u64| RandomState::new().hash_one(word);
    format!("{:016x}{:016x}", bits(0), bits(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_format_as_in_python() {
        let part = Key::list([Key::from("x"), Key::from(0)]);
        assert_eq!(part.to_string(), "('x', 0)");
        let nested = Key::list([
            part.clone(),
            Key::list([]),
            Key::from(-3),
            Key::list([part]),
        ]);
        assert_eq!(nested.to_string(), "(('x', 0), (), -3, (('x', 0),))");
        assert_eq!(Key::from("a'b").to_string(), "a\\'b");
    }

    #[test]
    fn equal_keys_have_equal_bytes() {
        let long = [0xda, 0, 1, b'x'];
        let read = Key::read(&mut Reader::new(&long)).expect("a key");
        assert_eq!(read, Key::from("x"));
        let read = Key::read(&mut Reader::new(&[0xd9, 1, b'x'])).expect("a key");
        assert_eq!(read, Key::from("x"));
        let wide = [0xdc, 0, 2, 0xa1, b'x', 0xcd, 0, 0];
        let read = Key::read(&mut Reader::new(&wide)).expect("a key");
        assert_eq!(read, Key::list([Key::from("x"), Key::from(0)]));
    }

    #[test]
    fn rejects_values_that_are_not_keys() {
        for bad in [&b"\xc0"[..], b"\x80", b"\x91\xc0", b"\xd9", &[0x91; 40]] {
            Key::read(&mut Reader::new(bad)).expect_err("not a key");
        }
    }

    #[test]
    fn keys_without_a_first_part_are_empty() {
        let empty = Key::list([]);
        for key in [Key::from(""), empty.clone(), Key::list([empty.clone()])] {
            assert!(key.is_empty(), "{key}");
        }
        for key in [
            Key::from("x"),
            Key::from(0),
            Key::list([Key::from(0), empty]),
            Key::list([Key::from(""), Key::from(0)]),
        ] {
            assert!(!key.is_empty(), "{key}");
        }
    }

    #[test]
    fn prefixes_omit_distinct_parts() {
        assert_eq!(Key::from("add-12ab").prefix(), "add");
        assert_eq!(Key::from("add").prefix(), "add");
        assert_eq!(Key::list([Key::from("x-1"), Key::from(0)]).prefix(), "x");
        for other in [Key::list([]), Key::from(1), Key::from(""), Key::from("-x")] {
            assert_eq!(other.prefix(), "Other", "{other}");
        }
    }
}
