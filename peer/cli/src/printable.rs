//! JSON without unprintable characters.

use std::io::{self, Write};

use daskwire::display::is_printable;
use serde::Serialize as _;
use serde_json::ser::{CompactFormatter, Formatter};

/// Formats JSON in one line. Unprintable characters are escaped as `\uXXXX`,
/// which parses to the same value.
pub(crate) fn json(value: &serde_json::Value) -> String {
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, PrintableJson);
    // Serializing a value and writing to a vector cannot fail.
    let _ = value.serialize(&mut serializer);
    String::from_utf8(out).expect("JSON is UTF-8")
}

struct PrintableJson;

impl Formatter for PrintableJson {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(|character| !is_printable(character)) {
            let (plain, escaped) = rest.split_at(at);
            CompactFormatter.write_string_fragment(writer, plain)?;
            let mut characters = escaped.chars();
            let character = characters.next().expect("the escaped one");
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = characters.as_str();
        }
        CompactFormatter.write_string_fragment(writer, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_is_printable_or_escaped() {
        let all: Vec<char> = ('\0'..=char::MAX).collect();
        for some in all.chunks(4096) {
            let value = serde_json::Value::from(some.iter().collect::<String>());
            let shown = json(&value);
            assert!(shown.chars().all(is_printable), "{shown}");
            assert_eq!(serde_json::from_str(&shown).ok(), Some(value));
        }
    }

    #[test]
    fn printable_characters_are_unchanged() {
        let value = serde_json::json!({"a\"\\": [1, -2.5, null, true, "naïve ☃ 🦀"]});
        assert_eq!(json(&value), value.to_string());
    }
}
