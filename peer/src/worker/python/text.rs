//! Values as Python writes them.

use core::fmt::Write as _;

use super::{Result, not_covered, too_large};
use crate::Value;

/// What `repr()` gives.
pub(in crate::worker) fn repr(value: &Value) -> String {
    let mut text = String::new();
    write_repr(value, &mut text);
    text
}

fn write_repr(value: &Value, to: &mut String) {
    fn many(to: &mut String, open: &str, items: &[Value], close: &str) {
        to.push_str(open);
        for (index, item) in items.iter().enumerate() {
            if index != 0 {
                to.push_str(", ");
            }
            write_repr(item, to);
        }
        to.push_str(close);
    }
    match value {
        Value::Float(number) => write_float(*number, to),
        Value::Complex(real, imaginary) => write_complex(*real, *imaginary, to),
        Value::Str(text) => write_str(text, to),
        Value::Bytes(data) => write_bytes(data, to),
        Value::ByteArray(data) => {
            to.push_str("bytearray(");
            write_bytes(data, to);
            to.push(')');
        }
        Value::List(items) => many(to, "[", items, "]"),
        Value::Tuple(items) if items.len() == 1 => many(to, "(", items, ",)"),
        Value::Tuple(items) => many(to, "(", items, ")"),
        Value::Set(items) if !items.is_empty() => many(to, "{", items, "}"),
        Value::FrozenSet(items) if !items.is_empty() => many(to, "frozenset({", items, "})"),
        Value::Dict(entries) => {
            to.push('{');
            for (index, (key, value)) in entries.iter().enumerate() {
                if index != 0 {
                    to.push_str(", ");
                }
                write_repr(key, to);
                to.push_str(": ");
                write_repr(value, to);
            }
            to.push('}');
        }
        other => {
            // Writing into a String cannot fail.
            let _ = write!(to, "{other}");
        }
    }
}

fn write_float(number: f64, to: &mut String) {
    if !number.is_finite() {
        // Writing into a String cannot fail.
        let _ = write!(to, "{number}").map(|()| to.make_ascii_lowercase());
        return;
    }
    let mut text = format!("{number:e}");
    // Of the shortest texts that mean this number, Python has the nearest, and
    // the even one of two that are equally near.
    let digit_count = text.bytes().take_while(|byte| *byte != b'e').count();
    let digit_count = digit_count - usize::from(number.is_sign_negative());
    let nearest = format!("{number:.0$e}", digit_count.saturating_sub(2));
    if nearest.parse() == Ok(number) {
        text = nearest;
    }
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        // The same digits, and as many of them as are needed.
        let digits = digits.bytes().filter(u8::is_ascii_digit).count();
        let behind = i32::try_from(digits).unwrap_or(0) - 1 - exponent;
        let behind = usize::try_from(behind).unwrap_or(0).max(1);
        let _ = write!(to, "{number:.behind$}");
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(to, "{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
}

fn write_complex(real: f64, imaginary: f64, to: &mut String) {
    let part = |number: f64| {
        let mut text = String::new();
        write_float(number, &mut text);
        text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
    };
    if real == 0.0 && real.is_sign_positive() {
        to.push_str(&part(imaginary));
        to.push('j');
        return;
    }
    let imaginary = part(imaginary);
    let sign = if imaginary.starts_with('-') { "" } else { "+" };
    let _ = write!(to, "({}{sign}{imaginary}j)", part(real));
}

fn write_str(text: &str, to: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    to.push(quote);
    for c in text.chars() {
        match c {
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            '\t' => to.push_str("\\t"),
            '\\' => to.push_str("\\\\"),
            c if c == quote => {
                to.push('\\');
                to.push(c);
            }
            ' '..='~' => to.push(c),
            c => {
                let code = u32::from(c);
                // What Rust escapes behind a letter is not printable for Python
                // either.
                let mut behind_letter = [b'a'; 5];
                let len = c.encode_utf8(&mut behind_letter[1..]).len();
                let behind_letter = core::str::from_utf8(&behind_letter[..=len]);
                let is_printable = code >= 0xa1
                    && behind_letter.is_ok_and(|text| !text.escape_debug().any(|c| c == '\\'));
                let _ = match code {
                    _ if is_printable => write!(to, "{c}"),
                    0..=0xff => write!(to, "\\x{code:02x}"),
                    0x100..=0xffff => write!(to, "\\u{code:04x}"),
                    _ => write!(to, "\\U{code:08x}"),
                };
            }
        }
    }
    to.push(quote);
}

fn write_bytes(data: &[u8], to: &mut String) {
    let quote = if data.contains(&b'\'') && !data.contains(&b'"') {
        '"'
    } else {
        '\''
    };
    to.push('b');
    to.push(quote);
    for byte in data {
        match byte {
            b'\n' => to.push_str("\\n"),
            b'\r' => to.push_str("\\r"),
            b'\t' => to.push_str("\\t"),
            b'\\' => to.push_str("\\\\"),
            byte if char::from(*byte) == quote => {
                to.push('\\');
                to.push(quote);
            }
            b' '..=b'~' => to.push(char::from(*byte)),
            byte => {
                let _ = write!(to, "\\x{byte:02x}");
            }
        }
    }
    to.push(quote);
}

pub(super) fn str_of(value: &Value) -> Result<String> {
    match value {
        Value::Str(text) => Ok(text.clone()),
        value => {
            check_shown(value)?;
            Ok(repr(value))
        }
    }
}

/// Arrays and what is not opened have a text that only Python knows.
pub(super) fn check_shown(value: &Value) -> Result<()> {
    match value {
        Value::Array(_) | Value::Serialized(_) => {
            Err(not_covered("the text of an array or object"))
        }
        Value::LargeInt(_) => Err(too_large()),
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
            items.iter().try_for_each(check_shown)
        }
        Value::Dict(entries) => entries.iter().try_for_each(|(key, value)| {
            check_shown(key)?;
            check_shown(value)
        }),
        _ => Ok(()),
    }
}
