//! JSON values with integers of any length.

use core::fmt;

use daskwire_peer::Value;
use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

/// Maximum nesting of documents, the same as in `serde_json`.
const DEPTH: usize = 128;

/// Maximum number of digits of an integer, the same as in Python: parsing takes
/// quadratic time.
const MAX_DIGITS: usize = 4300;

/// Parses a document.
///
/// # Errors
///
/// A message with the expected syntax and the offset.
pub(crate) fn parse(json: &str) -> Result<Value, String> {
    // `from_str` only validates the document, so that its offsets are those of `json`.
    let raw = serde_json::from_str(json).map_err(|error| message(json, &error))?;
    // A valid document may still be too deep, or have an integer that is too long.
    value(raw, DEPTH).map_err(|error| error.to_string())
}

/// Formats an error in `json`, with the offset in bytes.
fn message(json: &str, error: &serde_json::Error) -> String {
    let lines = json.split_inclusive('\n');
    let before: usize = lines.take(error.line() - 1).map(str::len).sum();
    // The column counts the bytes read, including the wrong byte unless the input ended.
    let wrong = usize::from(!error.is_eof());
    let offset = before + error.column().saturating_sub(wrong);
    let message = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    let what = message.strip_suffix(&position).unwrap_or(&message);
    format!("{what} at byte {offset}")
}

fn value(raw: &RawValue, depth: usize) -> Result<Value, serde_json::Error> {
    let json = raw.get();
    let depth = depth
        .checked_sub(1)
        .ok_or_else(|| serde::de::Error::custom("nested too deep"))?;
    Ok(match json.as_bytes() {
        [b'[', ..] => {
            let items: Vec<&RawValue> = serde_json::from_str(json)?;
            let items = items.into_iter().map(|item| value(item, depth));
            Value::List(items.collect::<Result<_, _>>()?)
        }
        [b'{', ..] => {
            let entries = serde_json::Deserializer::from_str(json).deserialize_map(Entries)?;
            let entries = entries
                .into_iter()
                .map(|(key, item)| Ok((Value::from(key), value(item, depth)?)));
            Value::Dict(entries.collect::<Result<_, serde_json::Error>>()?)
        }
        [b'-' | b'0'..=b'9', ..] if !json.contains(['.', 'e', 'E']) => integer(json)?,
        [b'-' | b'0'..=b'9', ..] => Value::from(serde_json::from_str::<f64>(json)?),
        [b'"', ..] => Value::from(serde_json::from_str::<String>(json)?),
        _ => match serde_json::from_str::<Option<bool>>(json)? {
            Some(value) => Value::from(value),
            None => Value::None,
        },
    })
}

/// Visitor that collects the entries of an object in order. A repeated name keeps its
/// last value.
struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut places = std::collections::HashMap::new();
        let mut entries: Self::Value = Vec::new();
        while let Some((key, item)) = map.next_entry::<String, &RawValue>()? {
            let place = *places.entry(key.clone()).or_insert(entries.len());
            match entries.get_mut(place) {
                Some(entry) => entry.1 = item,
                None => entries.push((key, item)),
            }
        }
        Ok(entries)
    }
}

/// Parses a JSON integer: digits with an optional sign.
fn integer(number: &str) -> Result<Value, serde_json::Error> {
    /// Number of digits parsed at once, and the corresponding factor.
    const DIGITS: usize = 9;
    const BASE: u64 = 1_000_000_000;
    if let Ok(value) = number.parse::<i128>() {
        return Ok(Value::Int(value));
    }
    let digits = number.trim_start_matches('-');
    if digits.len() > MAX_DIGITS {
        return Err(serde::de::Error::custom(format_args!(
            "an integer of {} digits; Python reads up to {MAX_DIGITS}",
            digits.len()
        )));
    }
    // Least significant word first. The first chunk takes the digits that remain.
    let mut words: Vec<u32> = Vec::new();
    let (first, rest) = digits.split_at(digits.len() % DIGITS);
    let chunks = rest.as_bytes().chunks(DIGITS);
    for chunk in core::iter::once(first.as_bytes()).chain(chunks) {
        let number = chunk
            .iter()
            .fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
        let mut carry = number;
        for word in &mut words {
            let product = u64::from(*word) * BASE + carry;
            *word = (product & u64::from(u32::MAX)) as u32;
            carry = product >> 32;
        }
        if carry != 0 {
            words.push(carry as u32);
        }
    }
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    // Room for the sign bit.
    bytes.push(0);
    if number.starts_with('-') {
        let mut carry = true;
        for byte in &mut bytes {
            (*byte, carry) = (!*byte).overflowing_add(carry.into());
        }
    }
    // The shortest form, the same as Python's.
    while let [.., next, last] = bytes[..]
        && last == if next < 0x80 { 0 } else { 0xff }
    {
        bytes.pop();
    }
    Ok(Value::LargeInt(bytes.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_tell_where_and_what() {
        for (text, expected) in [
            ("[1, 2", "EOF while parsing a list at byte 5"),
            ("[1 2]", "expected `,` or `]` at byte 3"),
            ("{a: 1}", "key must be a string at byte 1"),
            ("[1,\n 2,\n 2 3]", "expected `,` or `]` at byte 11"),
            ("2026-11-22", "trailing characters at byte 4"),
            ("-", "invalid number at byte 0"),
            ("\"ab", "EOF while parsing a string at byte 3"),
            ("[é 1]", "expected value at byte 1"),
        ] {
            assert_eq!(parse(text).unwrap_err(), expected, "{text}");
        }
        let digits = "1".repeat(5000);
        let error = parse(&digits).unwrap_err();
        assert!(error.contains("5000 digits"), "{error}");
    }
}
