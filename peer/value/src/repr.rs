//! Values formatted like Python's `repr`.

use core::fmt::{self, Write as _};

use super::object::{Kind, Object, date_time_text};
use super::{MAX_DEPTH, Value};

/// Formats like Python's `repr`, and arrays as numpy 2.4 abbreviates them.
///
/// The exceptions are:
///
/// * an array of long doubles or of raw bytes is shown as its type and shape;
/// * an unopened value is shown as its header describes it;
/// * an integer of more than 4300 digits, which Python refuses to convert, is shown as
///   its size;
/// * containers nested deeper than 100 levels are shown as `[...]`, `(...)` or `{...}`;
/// * a named tuple is shown without the names of its items if they are not known;
/// * a member of an enumeration is shown as its value, and any other object with
///   attributes as a data class;
/// * a `pandas.Timestamp` in a time zone with a name is shown in UTC;
/// * an `OrderedDict` is shown as in Python 3.12 and later.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.depth() > MAX_DEPTH {
            return f.write_str(match self {
                Self::Tuple(_) => "(...)",
                Self::List(_) => "[...]",
                Self::Object(_) => "(...)",
                _ => "{...}",
            });
        }
        match self {
            Self::None => f.write_str("None"),
            Self::Bool(value) => f.write_str(if *value { "True" } else { "False" }),
            Self::Int(value) => write!(f, "{value}"),
            Self::LargeInt(data) => write_large_int(f, data),
            Self::Float(value) => write_float(f, *value),
            Self::Complex(real, imaginary) => write_complex(f, *real, *imaginary),
            Self::Str(string) => write_str(f, string),
            Self::Bytes(data) => write_bytes(f, data, false),
            Self::ByteArray(data) => {
                f.write_str("bytearray(")?;
                write_bytes(f, data, true)?;
                f.write_str(")")
            }
            Self::List(items) => write_items(f, "[", items, "]"),
            Self::Tuple(items) if items.len() == 1 => write_items(f, "(", items, ",)"),
            Self::Tuple(items) => write_items(f, "(", items, ")"),
            Self::Set(items) if items.is_empty() => f.write_str("set()"),
            Self::Set(items) => write_items(f, "{", items, "}"),
            Self::FrozenSet(items) if items.is_empty() => f.write_str("frozenset()"),
            Self::FrozenSet(items) => write_items(f, "frozenset({", items, "})"),
            Self::Dict(entries) => write_entries(f, entries),
            Self::Array(array) => match super::numpy_repr::text(array) {
                Some(text) => f.write_str(&text),
                None => write!(f, "<array {} {:?}>", array.dtype(), array.shape()),
            },
            Self::Object(object) => write_object(f, object),
            Self::Serialized(serialized) => serialized.fmt(f),
        }
    }
}

fn write_items(
    f: &mut fmt::Formatter<'_>,
    open: &str,
    items: &[Value],
    close: &str,
) -> fmt::Result {
    f.write_str(open)?;
    for (index, item) in items.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        write!(f, "{separator}{item}")?;
    }
    f.write_str(close)
}

/// The counts of a `Counter` in descending order, as its `repr` shows them.
fn counts(entries: &[(Value, Value)]) -> Vec<&(Value, Value)> {
    let mut sorted: Vec<&(Value, Value)> = entries.iter().collect();
    let is_sortable = entries
        .iter()
        .all(|(_, count)| matches!(count, Value::Int(_)));
    if is_sortable {
        let count = |entry: &&(Value, Value)| match &entry.1 {
            Value::Int(count) => core::cmp::Reverse(*count),
            _ => core::cmp::Reverse(0),
        };
        sorted.sort_by_key(count);
    }
    sorted
}

fn write_entries<'v>(
    f: &mut fmt::Formatter<'_>,
    entries: impl IntoIterator<Item = &'v (Value, Value)>,
) -> fmt::Result {
    f.write_str("{")?;
    for (index, (key, value)) in entries.into_iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        write!(f, "{separator}{key}: {value}")?;
    }
    f.write_str("}")
}

fn write_object(f: &mut fmt::Formatter<'_>, object: &Object) -> fmt::Result {
    let name = object.short_name();
    match (object.kind(), object.arguments()) {
        (Kind::Counter | Kind::OrderedDict, [Value::Dict(entries)]) if entries.is_empty() => {
            write!(f, "{name}()")
        }
        (Kind::Counter, [Value::Dict(entries)]) => {
            write!(f, "{name}(")?;
            write_entries(f, counts(entries))?;
            f.write_str(")")
        }
        (Kind::DefaultDict, [factory, entries]) => match factory {
            Value::Str(factory) => write!(f, "{name}(<class '{factory}'>, {entries})"),
            factory => write!(f, "{name}({factory}, {entries})"),
        },
        (Kind::Time, arguments) => write_clock(f, "datetime.time", arguments, 2),
        (Kind::DateTime, arguments) => write_clock(f, "datetime.datetime", arguments, 5),
        (Kind::Date, arguments) => write_call(f, "datetime.date", arguments),
        (Kind::TimeDelta, arguments) => {
            let parts = arguments.iter().zip(["days", "seconds", "microseconds"]);
            let parts = parts.filter(|(part, _)| !matches!(part, Value::Int(0)));
            f.write_str("datetime.timedelta(")?;
            let mut separator = "";
            for (part, name) in parts {
                write!(f, "{separator}{name}={part}")?;
                separator = ", ";
            }
            f.write_str(if separator.is_empty() { "0)" } else { ")" })
        }
        (Kind::TimeZone, [Value::Object(delta)]) if delta.duration() == Some(0) => {
            f.write_str("datetime.timezone.utc")
        }
        (Kind::TimeZone, arguments) => write_call(f, "datetime.timezone", arguments),
        (Kind::ZoneInfo, [key, ..]) => write!(f, "zoneinfo.ZoneInfo(key={key})"),
        (Kind::Range, [start, stop, Value::Int(1)]) => write!(f, "range({start}, {stop})"),
        (Kind::DateTime64, arguments) => match object.numpy_text() {
            Some(text) => write!(f, "np.datetime64('{text}')"),
            None => write_numpy(f, "np.datetime64", arguments),
        },
        (Kind::Timestamp, arguments) => match timestamp_text(object) {
            Some(text) => write!(f, "Timestamp({text})"),
            None => write_call(f, name, arguments),
        },
        (Kind::Timedelta, arguments) => match object.nanoseconds() {
            Some(nanoseconds) => write!(f, "Timedelta('{}')", timedelta_text(nanoseconds)),
            None => write_call(f, name, arguments),
        },
        (Kind::TimeDelta64, arguments) => write_numpy(f, "np.timedelta64", arguments),
        (_, arguments) if !object.fields().is_empty() => {
            write!(f, "{name}(")?;
            for (index, (field, argument)) in object.fields().iter().zip(arguments).enumerate() {
                let separator = if index == 0 { "" } else { ", " };
                write!(f, "{separator}{field}={argument}")?;
            }
            f.write_str(")")
        }
        (_, arguments) => write_call(f, name, arguments),
    }
}

/// The arguments of a `pandas.Timestamp` as its `repr` shows them.
fn timestamp_text(object: &Object) -> Option<String> {
    let zone = match object.arguments().get(2)? {
        Value::Object(zone) => Some(zone),
        _ => None,
    };
    let offset = zone.and_then(Object::zone_offset);
    let nanoseconds = object.nanoseconds()?;
    let local = nanoseconds.checked_add(i128::from(offset.unwrap_or(0)) * 1_000_000_000)?;
    let mut text = date_time_text(local).replace('T', " ");
    // Milliseconds are shown as microseconds.
    if text.len() == 23 {
        text.push_str("000");
    }
    let Some(zone) = zone else {
        return Some(format!("'{text}'"));
    };
    let seconds = offset.unwrap_or(0);
    let sign = if seconds < 0 { '-' } else { '+' };
    let (hours, minutes) = (
        seconds.unsigned_abs() / 3600,
        seconds.unsigned_abs() / 60 % 60,
    );
    let name = match (zone.kind(), zone.arguments()) {
        (Kind::ZoneInfo, [Value::Str(name)]) | (Kind::TimeZone, [_, Value::Str(name)]) => {
            name.to_string()
        }
        _ if seconds == 0 => "UTC".to_owned(),
        _ => format!("UTC{sign}{hours:02}:{minutes:02}"),
    };
    Some(format!("'{text}{sign}{hours:02}{minutes:02}', tz='{name}'"))
}

/// A time difference as pandas shows it.
fn timedelta_text(nanoseconds: i128) -> String {
    const DAY: i128 = 86_400_000_000_000;
    let (days, rest) = (nanoseconds.div_euclid(DAY), nanoseconds.rem_euclid(DAY));
    // The time of the first day.
    let clock = date_time_text(rest);
    let clock = clock.split_once('T').map_or("", |(_, clock)| clock);
    let sign = if days < 0 { "+" } else { "" };
    let zeros = match clock.len() {
        12 => "000",
        _ => "",
    };
    format!("{days} days {sign}{clock}{zeros}")
}

fn write_call(f: &mut fmt::Formatter<'_>, name: &str, arguments: &[Value]) -> fmt::Result {
    f.write_str(name)?;
    write_items(f, "(", arguments, ")")
}

/// Formats the number or `NaT` of a numpy time, and its unit.
fn write_numpy(f: &mut fmt::Formatter<'_>, name: &str, arguments: &[Value]) -> fmt::Result {
    match arguments {
        [number, Value::Str(unit)] if **unit == *"generic" => write!(f, "{name}({number})"),
        [number, unit] => write!(f, "{name}({number},{unit})"),
        other => write_call(f, name, other),
    }
}

/// Formats a time of day or a date with one: the seconds, which are at index
/// `second`, and the microseconds after them only if they are not zero.
fn write_clock(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    arguments: &[Value],
    second: usize,
) -> fmt::Result {
    let (parts, rest) = arguments
        .split_at_checked(second.saturating_add(2))
        .unwrap_or((arguments, &[]));
    let is_zero = |part: Option<&Value>| matches!(part, Some(Value::Int(0)));
    let shown = match (is_zero(parts.get(second)), is_zero(parts.last())) {
        (true, true) => second,
        (_, true) => second.saturating_add(1),
        _ => parts.len(),
    };
    f.write_str(name)?;
    write_items(f, "(", parts.get(..shown).unwrap_or(parts), "")?;
    if let Some(fold) = rest.get(1) {
        write!(f, ", fold={fold}")?;
    }
    match rest.first() {
        None | Some(Value::None) => {}
        Some(zone) => write!(f, ", tzinfo={zone}")?,
    }
    f.write_str(")")
}

/// The decimal digits of a number in two's complement, least significant byte
/// first.
fn write_large_int(f: &mut fmt::Formatter<'_>, twos_complement: &[u8]) -> fmt::Result {
    /// Python's limit on digits (`sys.set_int_max_str_digits`).
    const MAX_DIGITS: usize = 4300;
    /// The largest power of ten that fits 64 bits.
    const PART: u64 = 10_000_000_000_000_000_000;
    const PART_DIGITS: usize = 19;
    let too_long = |f: &mut fmt::Formatter<'_>| {
        write!(
            f,
            "<int of {} bits>",
            twos_complement.len().saturating_mul(8)
        )
    };
    // Each byte adds more than two digits.
    if twos_complement.len() > MAX_DIGITS / 2 {
        return too_long(f);
    }
    let is_negative = twos_complement.last().is_some_and(|byte| *byte >= 0x80);
    // The magnitude, in words of 64 bits.
    let mut carry = is_negative;
    let bytes: Vec<u8> = twos_complement
        .iter()
        .map(|byte| {
            if !is_negative {
                return *byte;
            }
            let (byte, overflows) = (!byte).overflowing_add(carry.into());
            carry = overflows;
            byte
        })
        .collect();
    let mut words: Vec<u64> = bytes
        .chunks(8)
        .map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        })
        .collect();
    // The magnitude of the most negative number has one more bit.
    if carry {
        words.push(1);
    }
    let mut parts = Vec::new();
    while words.iter().any(|word| *word != 0) {
        let mut rest = 0_u128;
        for word in words.iter_mut().rev() {
            rest = rest << 64 | u128::from(*word);
            #[expect(clippy::cast_possible_truncation, reason = "the rest was below PART")]
            let quotient = (rest / u128::from(PART)) as u64;
            *word = quotient;
            rest %= u128::from(PART);
        }
        while words.last() == Some(&0) {
            words.pop();
        }
        parts.push(rest);
    }
    // Zero has no parts.
    let first = parts.pop().unwrap_or_default();
    let mut string = format!("{first}");
    if string.len() + parts.len() * PART_DIGITS > MAX_DIGITS {
        return too_long(f);
    }
    for part in parts.iter().rev() {
        write!(string, "{part:0PART_DIGITS$}")?;
    }
    if is_negative {
        f.write_str("-")?;
    }
    f.write_str(&string)
}

fn write_float(to: &mut impl fmt::Write, number: f64) -> fmt::Result {
    if number.is_nan() {
        return to.write_str("nan");
    }
    if number.is_infinite() {
        return to.write_str(if number > 0.0 { "inf" } else { "-inf" });
    }
    let mut string = format!("{number:e}");
    // Of the shortest representations of the number, Python uses the nearest, and
    // the even one of two equally near ones.
    let digit_count = string.bytes().take_while(|byte| *byte != b'e').count();
    let digit_count = digit_count - usize::from(number.is_sign_negative());
    let nearest = format!("{number:.0$e}", digit_count.saturating_sub(2));
    if nearest.parse() == Ok(number) {
        string = nearest;
    }
    let (digits, exponent) = string.split_once('e').unwrap_or((&string, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        // The same digits, without trailing zeros.
        let digits = digits.bytes().filter(u8::is_ascii_digit).count();
        let decimals = i32::try_from(digits).unwrap_or(0) - 1 - exponent;
        let decimals = usize::try_from(decimals).unwrap_or(0).max(1);
        write!(to, "{number:.decimals$}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(to, "{digits}e{sign}{:02}", exponent.unsigned_abs())
    }
}

fn write_complex(f: &mut fmt::Formatter<'_>, real: f64, imaginary: f64) -> fmt::Result {
    let part = |number: f64| {
        let mut string = String::new();
        write_float(&mut string, number)?;
        Ok(string
            .strip_suffix(".0")
            .map(str::to_owned)
            .unwrap_or(string))
    };
    if real == 0.0 && real.is_sign_positive() {
        return write!(f, "{}j", part(imaginary)?);
    }
    let imaginary = part(imaginary)?;
    let sign = if imaginary.starts_with('-') { "" } else { "+" };
    write!(f, "({}{sign}{imaginary}j)", part(real)?)
}

fn write_str(f: &mut fmt::Formatter<'_>, string: &str) -> fmt::Result {
    let quote = quote_of(string.as_bytes());
    f.write_char(quote)?;
    for c in string.chars() {
        write_escaped(f, c, quote)?;
    }
    f.write_char(quote)
}

/// The quote around a string or bytes.
pub fn quote_of(data: &[u8]) -> char {
    if data.contains(&b'\'') && !data.contains(&b'"') {
        '"'
    } else {
        '\''
    }
}

/// Writes a character of a string in these quotes.
///
/// # Errors
///
/// If `f` returns one.
pub fn write_escaped(f: &mut impl fmt::Write, c: char, quote: char) -> fmt::Result {
    match c {
        '\n' => f.write_str("\\n"),
        '\r' => f.write_str("\\r"),
        '\t' => f.write_str("\\t"),
        '\\' => f.write_str("\\\\"),
        c if c == quote => write!(f, "\\{c}"),
        ' '..='~' => f.write_char(c),
        c => {
            let code = u32::from(c);
            // Characters that Rust escapes after a letter are not printable
            // in Python either.
            let mut after_letter = [b'a'; 5];
            let len = c.encode_utf8(&mut after_letter[1..]).len();
            let after_letter = core::str::from_utf8(&after_letter[..=len]);
            let is_printable = code >= 0xa1
                && after_letter.is_ok_and(|string| !string.escape_debug().any(|c| c == '\\'));
            match code {
                _ if is_printable => f.write_char(c),
                0..=0xff => write!(f, "\\x{code:02x}"),
                0x100..=0xffff => write!(f, "\\u{code:04x}"),
                _ => write!(f, "\\U{code:08x}"),
            }
        }
    }
}

/// A `bytearray` has single quotes escaped even between double ones.
fn write_bytes(f: &mut fmt::Formatter<'_>, data: &[u8], is_bytearray: bool) -> fmt::Result {
    let quote = quote_of(data);
    write!(f, "b{quote}")?;
    for byte in data {
        match byte {
            b'\n' => f.write_str("\\n")?,
            b'\r' => f.write_str("\\r")?,
            b'\t' => f.write_str("\\t")?,
            b'\\' => f.write_str("\\\\")?,
            b'\'' if is_bytearray => f.write_str("\\'")?,
            byte if char::from(*byte) == quote => write!(f, "\\{quote}")?,
            b' '..=b'~' => f.write_char(char::from(*byte))?,
            byte => write!(f, "\\x{byte:02x}")?,
        }
    }
    f.write_char(quote)
}
