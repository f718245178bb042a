//! MessagePack documents as tagged JSON, which preserves every value.

use std::collections::HashMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use daskwire::message::{EnumMember, Item};
use daskwire::msgpack::{Malformed, Reader, Token};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

/// Maximum length in bytes of byte strings that are shown in full; longer ones are
/// shown as length and hash.
const MAX_BYTES: usize = 4096;

/// The largest magnitude of an integer that all JSON parsers read exactly.
const MAX_PLAIN: u64 = 1 << 53;

/// Whether `__Set__` and `__Enum__` maps become sets and enum members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hooks {
    /// They become sets and enum members.
    SetsAndEnums,
    /// They stay maps.
    None,
}

/// A fault in a document, and its location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaggedError {
    /// The frame of the document.
    pub frame: usize,
    /// The kind of fault, with its offset in the frame.
    pub fault: TaggedFault,
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaggedFault {
    /// The document is not valid MessagePack.
    Malformed(Malformed),
    /// A map that represents a set or an enum member is incomplete.
    Special(&'static str),
}

impl fmt::Display for TaggedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault {
            TaggedFault::Malformed(error) => write!(f, "in frame {}, {error}", self.frame),
            TaggedFault::Special(what) => write!(f, "in frame {}: {what}", self.frame),
        }
    }
}

impl std::error::Error for TaggedError {}

daskwire::kinds! {
    TaggedError: |_| ErrorKind::Value;
}

/// The length and hash of bytes.
pub(super) fn digest(bytes: &[u8]) -> Value {
    let hash: String = Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    json!({ "len": bytes.len(), "sha256": hash })
}

/// Builds a value from items, without recursion.
#[derive(Debug)]
pub(super) struct Builder {
    open: Vec<Open>,
    hooks: Hooks,
    /// Whether to show byte strings of any length in full.
    in_full: bool,
}

#[derive(Debug)]
enum Open {
    Array {
        left: u64,
        items: Vec<Value>,
    },
    Map {
        left: u64,
        key: Option<Value>,
        pairs: Vec<(Value, Value)>,
    },
    Set {
        left: u64,
        members: Vec<Value>,
    },
}

impl Builder {
    pub(super) const fn new(hooks: Hooks, in_full: bool) -> Self {
        Self {
            open: Vec::new(),
            hooks,
            in_full,
        }
    }

    /// Adds an item. Returns the complete value once its last item has been added.
    pub(super) fn item(&mut self, item: Item<'_>) -> Result<Option<Value>, TaggedFault> {
        let value = match item {
            Item::Token(Token::Array(count)) if count != 0 => {
                self.open.push(Open::Array {
                    left: count.into(),
                    items: Vec::new(),
                });
                return Ok(None);
            }
            Item::Token(Token::Map(count)) if count != 0 => {
                self.open.push(Open::Map {
                    left: count.into(),
                    key: None,
                    pairs: Vec::new(),
                });
                return Ok(None);
            }
            Item::Set(count) if count != 0 => {
                self.open.push(Open::Set {
                    left: count.into(),
                    members: Vec::new(),
                });
                return Ok(None);
            }
            Item::Token(token) => self.scalar(token)?,
            Item::Set(_) => json!({ "$set": [] }),
            Item::Enum(member) => enumeration(member),
            Item::Payload(number) => json!({ "$payload": number }),
        };
        self.add(value)
    }

    /// Adds a complete value, and closes the containers that it fills.
    fn add(&mut self, value: Value) -> Result<Option<Value>, TaggedFault> {
        let mut value = value;
        loop {
            let Some(open) = self.open.last_mut() else {
                return Ok(Some(value));
            };
            let complete = match open {
                Open::Array { left, items } => {
                    items.push(value);
                    *left -= 1;
                    *left == 0
                }
                Open::Set { left, members } => {
                    members.push(value);
                    *left -= 1;
                    *left == 0
                }
                Open::Map { left, key, pairs } => match key.take() {
                    None => {
                        *key = Some(value);
                        false
                    }
                    Some(key) => {
                        pairs.push((key, value));
                        *left -= 1;
                        *left == 0
                    }
                },
            };
            if !complete {
                return Ok(None);
            }
            value = match self.open.pop() {
                Some(Open::Array { items, .. }) => Value::Array(items),
                Some(Open::Set { members, .. }) => set(members),
                Some(Open::Map { pairs, .. }) => self.map(pairs)?,
                None => return Ok(None),
            };
        }
    }

    fn map(&self, pairs: Vec<(Value, Value)>) -> Result<Value, TaggedFault> {
        // A repeated key keeps its last value, in the position of the first, as in a
        // Python dict.
        let mut places = HashMap::new();
        let mut unique: Vec<(Value, Value)> = Vec::with_capacity(pairs.len());
        let encoded = encode_each(pairs.iter().map(|(key, _)| key));
        for ((key, value), json) in pairs.into_iter().zip(encoded) {
            let is_nan = key.get("$float").is_some_and(|float| float == "nan");
            let next = unique.len();
            let place = if is_nan {
                next
            } else {
                *places.entry(python_key(&key, json)).or_insert(next)
            };
            match unique.get_mut(place) {
                Some(entry) => entry.1 = value,
                None => unique.push((key, value)),
            }
        }
        let find = |name: &str| {
            unique
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value)
        };
        if self.hooks == Hooks::SetsAndEnums {
            if find("__Enum__").is_some() {
                let string_of = |name| match find(name) {
                    Some(Value::String(string)) => Ok(string.clone()),
                    _ => Err(TaggedFault::Special(
                        "a map with __Enum__ needs strings under name, __module__ and __name__",
                    )),
                };
                let (module, class, name) = (
                    string_of("__module__")?,
                    string_of("__name__")?,
                    string_of("name")?,
                );
                return Ok(json!({ "$enum": { "module": module, "class": class, "name": name } }));
            }
            if find("__Set__").is_some() {
                let members = unique.into_iter().find(|(key, _)| key == "as-list");
                return match members {
                    Some((_, Value::Array(members))) => Ok(set(members)),
                    _ => Err(TaggedFault::Special(
                        "a map with __Set__ needs its members as an array under as-list",
                    )),
                };
            }
            if find("__Serialized__").is_some() && find("data").is_none() {
                return Err(TaggedFault::Special(
                    "a header cannot refer to another frame",
                ));
            }
        }
        let is_plain = |key: &Value| key.as_str().is_some_and(|key| !key.starts_with('$'));
        if unique.iter().all(|(key, _)| is_plain(key)) {
            let plain = unique.into_iter().filter_map(|(key, value)| match key {
                Value::String(key) => Some((key, value)),
                _ => None,
            });
            return Ok(Value::Object(plain.collect::<Map<_, _>>()));
        }
        let pairs = unique.into_iter();
        let pairs = pairs.map(|(key, value)| Value::Array(vec![key, value]));
        Ok(tag("$map", pairs.collect()))
    }

    fn scalar(&self, token: Token<'_>) -> Result<Value, TaggedFault> {
        Ok(match token {
            Token::Nil => Value::Null,
            Token::Bool(value) => Value::Bool(value),
            Token::UInt(value) if value <= MAX_PLAIN => value.into(),
            Token::UInt(value) => json!({ "$int": value.to_string() }),
            Token::Int(value) if value.unsigned_abs() <= MAX_PLAIN => value.into(),
            Token::Int(value) => json!({ "$int": value.to_string() }),
            Token::F32(value) => float(value.into()),
            Token::F64(value) => float(value),
            // Strings of the body were validated by opening the message; those of
            // headers are validated by the caller.
            Token::Str(string) => String::from_utf8_lossy(string.as_bytes()).into(),
            Token::Bin(data) if data.len() > MAX_BYTES && !self.in_full => {
                json!({ "$blob": digest(data) })
            }
            Token::Bin(data) => json!({ "$bytes": BASE64.encode(data) }),
            Token::Ext(code, data) => json!({ "$ext": [code, BASE64.encode(data)] }),
            Token::Array(_) => json!([]),
            Token::Map(_) => json!({}),
        })
    }
}

fn float(value: f64) -> Value {
    if value.is_nan() {
        json!({ "$float": "nan" })
    } else if value.is_infinite() {
        json!({ "$float": if value > 0.0 { "inf" } else { "-inf" } })
    } else if value == 0.0 && value.is_sign_negative() {
        json!({ "$float": "-0.0" })
    } else {
        value.into()
    }
}

fn enumeration(member: EnumMember<'_>) -> Value {
    json!({ "$enum": {
        "module": member.module.to_str(),
        "class": member.class.to_str(),
        "name": member.name.to_str(),
    } })
}

/// The distinct members, sorted by their JSON.
fn set(members: Vec<Value>) -> Value {
    let encoded = encode_each(members.iter());
    let mut members: Vec<(Vec<u8>, Value)> = encoded.into_iter().zip(members).collect();
    members.sort_by(|a, b| a.0.cmp(&b.0));
    members.dedup_by(|a, b| a.0 == b.0);
    let members: Vec<Value> = members.into_iter().map(|(_, member)| member).collect();
    tag("$set", members)
}

/// An object with one entry. `json!` would copy the items, and everything nested
/// in them again on each level.
fn tag(name: &str, items: Vec<Value>) -> Value {
    let mut object = Map::new();
    object.insert(name.to_owned(), Value::Array(items));
    Value::Object(object)
}

/// Encodes values as JSON for comparison. The longest may be truncated, so that
/// nested values are not encoded again on each level.
fn encode_each<'v>(values: impl Iterator<Item = &'v Value>) -> Vec<Vec<u8>> {
    let mut max_len = 64;
    let mut all: Vec<_> = values.map(|value| (value, Vec::new(), false)).collect();
    loop {
        let mut cut_count = 0;
        for (value, json, is_whole) in all.iter_mut().filter(|(.., is_whole)| !is_whole) {
            json.clear();
            *is_whole = serde_json::to_writer(Cut { json, max_len }, value).is_ok();
            cut_count += usize::from(!*is_whole);
        }
        if cut_count <= 1 {
            return all.into_iter().map(|(_, json, _)| json).collect();
        }
        max_len *= 2;
    }
}

/// A writer that fails once it has accepted a number of bytes.
struct Cut<'t> {
    json: &'t mut Vec<u8>,
    max_len: usize,
}

impl std::io::Write for Cut<'_> {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        let len = data.len().min(self.max_len.saturating_sub(self.json.len()));
        self.json.extend_from_slice(&data[..len]);
        #[cfg(test)]
        tests::WRITTEN.set(tests::WRITTEN.get() + len);
        Ok(len)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The identity of a key in a Python dict: numbers of equal value are the same
/// key, regardless of type.
#[derive(PartialEq, Eq, Hash)]
enum PythonKey {
    Number(u64),
    Integer(i128),
    Other(Vec<u8>),
}

fn python_key(key: &Value, json: Vec<u8>) -> PythonKey {
    let number = |value: f64| PythonKey::Number(if value == 0.0 { 0 } else { value.to_bits() });
    match key {
        Value::Bool(value) => number(f64::from(u8::from(*value))),
        Value::Number(value) => match value.as_i64() {
            #[allow(clippy::cast_precision_loss)] // exact below 2^53
            Some(small) if small.unsigned_abs() < MAX_PLAIN => number(small as f64),
            Some(large) => PythonKey::Integer(large.into()),
            None => {
                let value = value.as_f64().expect("a number");
                #[allow(clippy::cast_possible_truncation)] // integral, and below 2^100
                if value.fract() == 0.0
                    && value.abs() >= 9_007_199_254_740_992.0
                    && value.abs() < 1e30
                {
                    PythonKey::Integer(value as i128)
                } else {
                    number(value)
                }
            }
        },
        Value::Object(map) => match map.get("$int").or_else(|| map.get("$float")) {
            Some(Value::String(digits)) if digits == "-0.0" => number(0.0),
            Some(Value::String(digits)) => match digits.parse() {
                Ok(integer) => PythonKey::Integer(integer),
                Err(_) => PythonKey::Other(json),
            },
            _ => PythonKey::Other(json),
        },
        _ => PythonKey::Other(json),
    }
}

/// Converts a MessagePack document to tagged JSON.
///
/// # Errors
///
/// If the document, in frame `frame`, is malformed.
pub fn tagged(
    document: &[u8],
    hooks: Hooks,
    in_full: bool,
    frame: usize,
) -> Result<Value, TaggedError> {
    let fault = |fault| TaggedError { frame, fault };
    let malformed = |error| fault(TaggedFault::Malformed(error));
    // Depth, item count and completeness are checked before building.
    let mut whole = Reader::new(document);
    whole.skip().map_err(malformed)?;
    whole.finish().map_err(malformed)?;
    let mut reader = Reader::new(document);
    let mut builder = Builder::new(hooks, in_full);
    loop {
        let token = match reader.peek().map_err(malformed)? {
            // `str` checks that the string is UTF-8.
            token @ Token::Str(_) => {
                reader.str().map_err(malformed)?;
                token
            }
            _ => reader.token().map_err(malformed)?,
        };
        if let Some(value) = builder.item(Item::Token(token)).map_err(fault)? {
            return Ok(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    thread_local! {
        /// Number of bytes written to compare values.
        pub(super) static WRITTEN: Cell<usize> = const { Cell::new(0) };
    }

    /// Nested sets or maps, each with a long neighbour of the same prefix.
    fn nested(depth: usize, is_set: bool) -> Value {
        (0..depth).fold(json!([["x"]]), |value, level| {
            let neighbour = json!([[format!("{level:01000}")]]);
            if is_set {
                return set(vec![value, neighbour]);
            }
            let builder = Builder::new(Hooks::None, true);
            let pairs = vec![(value, json!(1)), (neighbour, json!(2))];
            builder.map(pairs).expect("no hooks")
        })
    }

    #[test]
    fn nested_keys_and_members_are_compared_in_linear_time() {
        for is_set in [true, false] {
            let written = |depth: usize| {
                WRITTEN.set(0);
                nested(depth, is_set);
                WRITTEN.get()
            };
            let (one, two) = (written(40), written(80));
            assert!(two <= 2 * one + 4096, "{one} bytes, then {two}");
        }
    }

    #[test]
    fn members_are_in_the_order_of_their_texts_and_occur_once() {
        let long = |last: &str| json!([["y".repeat(500)], last]);
        let members = vec![
            long("b"),
            json!(10),
            long("a"),
            json!("z"),
            long("b"),
            json!(9),
        ];
        let mut expected: Vec<String> = members.iter().map(Value::to_string).collect();
        expected.sort();
        expected.dedup();
        let Value::Array(found) = &set(members)["$set"] else {
            panic!("an array")
        };
        let found: Vec<String> = found.iter().map(Value::to_string).collect();
        assert_eq!(found, expected);
    }
}
