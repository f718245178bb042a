//! Values of peers as JSON, for people. What has no form there is its text.

use daskwire_messages::Value;
use serde_json::{Map, Value as Json};

use super::cut;

/// Maximum nesting of lists and dictionaries.
const MAX_DEPTH: usize = 16;

/// Maximum number of parts of a value. The identity of a scheduler has some dozens for each worker.
const MAX_PARTS: usize = 1_000_000;

/// A value as JSON. The rest of one that is too deep or too large is left out.
pub(crate) fn to_json(value: &Value) -> Json {
    let mut left = MAX_PARTS;
    convert(value, MAX_DEPTH, &mut left)
}

fn convert(value: &Value, depth: usize, left: &mut usize) -> Json {
    let (Some(depth), Some(rest)) = (depth.checked_sub(1), left.checked_sub(1)) else {
        return Json::from("\u{2026}");
    };
    *left = rest;
    match value {
        Value::None => Json::Null,
        Value::Bool(value) => Json::from(*value),
        // A browser reads numbers as floats.
        Value::Int(number) => match i64::try_from(*number) {
            Ok(number) => Json::from(number),
            Err(_) => Json::from(number.to_string()),
        },
        Value::Float(number) if number.is_finite() => Json::from(*number),
        Value::Str(text) => Json::from(cut(text)),
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
            let items = items.iter().take(MAX_PARTS);
            let mut list = Vec::new();
            for item in items {
                if *left == 0 {
                    break;
                }
                list.push(convert(item, depth, left));
            }
            Json::Array(list)
        }
        Value::Dict(entries) => {
            let mut fields = Map::new();
            for (name, value) in entries.iter() {
                if *left == 0 {
                    break;
                }
                let name = match name.as_str() {
                    Some(name) => cut(name).into_owned(),
                    None => cut(&name.to_string()).into_owned(),
                };
                fields.insert(name, convert(value, depth, left));
            }
            Json::Object(fields)
        }
        Value::Bytes(data) | Value::ByteArray(data) => Json::from(format!("{} bytes", data.len())),
        other => Json::from(cut(&other.to_string())),
    }
}
