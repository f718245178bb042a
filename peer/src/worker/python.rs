//! Functions of Python, done in Rust with the results that Python 3.12 has.

use core::cmp::Ordering;
use core::fmt::Write as _;

use super::functions::{Arguments, Functions};
use crate::{RemoteError, Value};

type Result<T> = core::result::Result<T, RemoteError>;

/// The longest text, bytes or list that repeating makes.
const LONGEST: usize = 1 << 30;

/// Adds all of them.
pub(super) fn register(functions: Functions) -> Functions {
    let functions = operators(functions);
    let functions = builtins(functions);
    math(functions).with("time.sleep", |arguments| {
        arguments.exactly(1)?;
        let seconds = real(&arguments, 0)?;
        let duration = core::time::Duration::try_from_secs_f64(seconds)
            .map_err(|_| error("ValueError", "sleep length must be non-negative"))?;
        std::thread::sleep(duration);
        Ok(Value::None)
    })
}

fn error(class: &str, text: &str) -> RemoteError {
    RemoteError::new(class, text)
}

fn type_error(text: &str) -> RemoteError {
    error("TypeError", text)
}

/// What Python can do and this cannot.
fn not_covered(what: &str) -> RemoteError {
    let text = format!("{what} is not covered by the functions of this worker, which is no Python");
    error("NotImplementedError", &text)
}

fn too_large() -> RemoteError {
    not_covered("an integer of more than 127 bits")
}

// Numbers

#[derive(Clone, Copy, Debug)]
enum Number {
    Int(i128),
    Float(f64),
    Complex(f64, f64),
}

impl From<Number> for Value {
    fn from(number: Number) -> Self {
        match number {
            Number::Int(value) => Self::Int(value),
            Number::Float(value) => Self::Float(value),
            Number::Complex(real, imaginary) => Self::Complex(real, imaginary),
        }
    }
}

fn number(value: &Value) -> Option<Number> {
    Some(match value {
        Value::Bool(value) => Number::Int((*value).into()),
        Value::Int(value) => Number::Int(*value),
        Value::Float(value) => Number::Float(*value),
        Value::Complex(real, imaginary) => Number::Complex(*real, *imaginary),
        _ => return None,
    })
}

#[expect(clippy::cast_precision_loss, reason = "as Python's float() of an int")]
const fn float(value: i128) -> f64 {
    value as f64
}

impl Number {
    const fn to_complex(self) -> (f64, f64) {
        match self {
            Self::Int(value) => (float(value), 0.0),
            Self::Float(value) => (value, 0.0),
            Self::Complex(real, imaginary) => (real, imaginary),
        }
    }
}

/// Two numbers of one type.
enum Pair {
    Int(i128, i128),
    Float(f64, f64),
    Complex((f64, f64), (f64, f64)),
}

fn pair(a: Number, b: Number) -> Pair {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => Pair::Int(a, b),
        (Number::Complex(..), _) | (_, Number::Complex(..)) => {
            Pair::Complex(a.to_complex(), b.to_complex())
        }
        (a, b) => Pair::Float(a.to_complex().0, b.to_complex().0),
    }
}

/// Why two values have no such result.
fn unsupported(symbol: &str, a: &Value, b: &Value) -> RemoteError {
    for value in [a, b] {
        match value {
            Value::LargeInt(_) => return too_large(),
            Value::Array(_) => return not_covered("arithmetic with arrays"),
            Value::Serialized(what) => return not_covered(&format!("arithmetic with {what}")),
            _ => {}
        }
    }
    type_error(&format!(
        "unsupported operand type(s) for {symbol}: '{}' and '{}'",
        a.type_name(),
        b.type_name()
    ))
}

fn add(a: &Value, b: &Value) -> Result<Value> {
    Ok(match (a, b) {
        (Value::Str(a), Value::Str(b)) => Value::Str([a.as_str(), b].concat()),
        (Value::Bytes(a), Value::Bytes(b)) => Value::from([&a[..], &b[..]].concat()),
        (Value::List(a), Value::List(b)) => Value::List([&a[..], &b[..]].concat()),
        (Value::Tuple(a), Value::Tuple(b)) => Value::Tuple([&a[..], &b[..]].concat()),
        (Value::Str(_), other) => {
            return Err(type_error(&format!(
                "can only concatenate str (not \"{}\") to str",
                other.type_name()
            )));
        }
        (Value::List(_), other) => {
            return Err(type_error(&format!(
                "can only concatenate list (not \"{}\") to list",
                other.type_name()
            )));
        }
        _ => match numbers("+", a, b)? {
            Pair::Int(a, b) => Value::Int(a.checked_add(b).ok_or_else(too_large)?),
            Pair::Float(a, b) => Value::Float(a + b),
            Pair::Complex(a, b) => Value::Complex(a.0 + b.0, a.1 + b.1),
        },
    })
}

fn numbers(symbol: &str, a: &Value, b: &Value) -> Result<Pair> {
    match (number(a), number(b)) {
        (Some(a), Some(b)) => Ok(pair(a, b)),
        _ => Err(unsupported(symbol, a, b)),
    }
}

fn sub(a: &Value, b: &Value) -> Result<Value> {
    if let (Value::Set(a), Value::Set(b)) = (a, b) {
        let rest = a.iter().filter(|item| !contains_item(b, item));
        return Ok(Value::Set(rest.cloned().collect()));
    }
    Ok(match numbers("-", a, b)? {
        Pair::Int(a, b) => Value::Int(a.checked_sub(b).ok_or_else(too_large)?),
        Pair::Float(a, b) => Value::Float(a - b),
        Pair::Complex(a, b) => Value::Complex(a.0 - b.0, a.1 - b.1),
    })
}

fn mul(a: &Value, b: &Value) -> Result<Value> {
    let (sequence, count) = match (a, b) {
        (Value::Int(_) | Value::Bool(_), Value::Str(_) | Value::Bytes(_)) => (b, a),
        (Value::Int(_) | Value::Bool(_), Value::List(_) | Value::Tuple(_)) => (b, a),
        _ => (a, b),
    };
    if let (
        Value::Str(_) | Value::Bytes(_) | Value::List(_) | Value::Tuple(_),
        Some(Number::Int(count)),
    ) = (sequence, number(count))
    {
        return repeat(sequence, count);
    }
    Ok(match numbers("*", a, b)? {
        Pair::Int(a, b) => Value::Int(a.checked_mul(b).ok_or_else(too_large)?),
        Pair::Float(a, b) => Value::Float(a * b),
        Pair::Complex(a, b) => Value::Complex(a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0),
    })
}

fn repeat(sequence: &Value, count: i128) -> Result<Value> {
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    let check = |len: usize| {
        if len.saturating_mul(count) > LONGEST {
            return Err(error(
                "MemoryError",
                "the result would have more than a GiB",
            ));
        }
        Ok(())
    };
    Ok(match sequence {
        Value::Str(text) => {
            check(text.len())?;
            Value::Str(text.repeat(count))
        }
        Value::Bytes(data) => {
            check(data.len())?;
            Value::from(data.repeat(count))
        }
        Value::List(items) => {
            check(items.len().saturating_mul(size_of::<Value>()))?;
            Value::List(repeated(items, count))
        }
        Value::Tuple(items) => {
            check(items.len().saturating_mul(size_of::<Value>()))?;
            Value::Tuple(repeated(items, count))
        }
        _ => Value::None,
    })
}

fn repeated(items: &[Value], count: usize) -> Vec<Value> {
    core::iter::repeat_n(items, count)
        .flatten()
        .cloned()
        .collect()
}

fn truediv(a: &Value, b: &Value) -> Result<Value> {
    Ok(match numbers("/", a, b)? {
        Pair::Int(_, 0) => return Err(error("ZeroDivisionError", "division by zero")),
        Pair::Int(a, b) => Value::Float(quotient(a, b)),
        Pair::Float(_, 0.0) => {
            return Err(error("ZeroDivisionError", "float division by zero"));
        }
        Pair::Float(a, b) => Value::Float(a / b),
        Pair::Complex(a, b) => {
            // The larger part of the divisor is divided by, as CPython does.
            if b.0 == 0.0 && b.1 == 0.0 {
                return Err(error("ZeroDivisionError", "complex division by zero"));
            }
            if b.0.abs() >= b.1.abs() {
                let ratio = b.1 / b.0;
                let divisor = b.0 + b.1 * ratio;
                Value::Complex((a.0 + a.1 * ratio) / divisor, (a.1 - a.0 * ratio) / divisor)
            } else {
                let ratio = b.0 / b.1;
                let divisor = b.0 * ratio + b.1;
                Value::Complex((a.0 * ratio + a.1) / divisor, (a.1 * ratio - a.0) / divisor)
            }
        }
    })
}

/// The float that is nearest to a quotient of integers.
#[expect(clippy::cast_precision_loss, reason = "rounding is what it is about")]
fn quotient(a: i128, b: i128) -> f64 {
    const EXACT: u128 = 1 << 53;
    let is_negative = (a < 0) != (b < 0);
    let (a, b) = (a.unsigned_abs(), b.unsigned_abs());
    let magnitude = if a <= EXACT && b <= EXACT {
        a as f64 / b as f64
    } else {
        // Bit by bit, until there are two more than a float has; the last of
        // them says whether anything comes behind.
        let (mut bits, mut rest) = (a / b, a % b);
        let mut scale = 0_i32;
        while bits >> 56 == 0 && rest != 0 {
            rest <<= 1;
            bits <<= 1;
            if rest >= b {
                rest -= b;
                bits |= 1;
            }
            scale -= 1;
        }
        bits |= u128::from(rest != 0);
        bits as f64 * 2.0_f64.powi(scale)
    };
    if is_negative { -magnitude } else { magnitude }
}

fn floordiv(a: &Value, b: &Value) -> Result<Value> {
    Ok(match numbers("//", a, b)? {
        Pair::Int(_, 0) => {
            return Err(error(
                "ZeroDivisionError",
                "integer division or modulo by zero",
            ));
        }
        Pair::Int(a, b) => Value::Int(int_divmod(a, b)?.0),
        Pair::Float(_, 0.0) => {
            return Err(error("ZeroDivisionError", "float floor division by zero"));
        }
        Pair::Float(a, b) => Value::Float(float_divmod(a, b).0),
        Pair::Complex(..) => return Err(unsupported("//", a, b)),
    })
}

fn modulo(a: &Value, b: &Value) -> Result<Value> {
    if matches!(a, Value::Str(_) | Value::Bytes(_)) {
        return Err(not_covered("formatting with %"));
    }
    Ok(match numbers("%", a, b)? {
        Pair::Int(_, 0) => return Err(error("ZeroDivisionError", "integer modulo by zero")),
        Pair::Int(a, b) => Value::Int(int_divmod(a, b)?.1),
        Pair::Float(_, 0.0) => return Err(error("ZeroDivisionError", "float modulo by zero")),
        Pair::Float(a, b) => Value::Float(float_divmod(a, b).1),
        Pair::Complex(..) => return Err(unsupported("%", a, b)),
    })
}

/// Towards minus infinity, as Python divides.
fn int_divmod(a: i128, b: i128) -> Result<(i128, i128)> {
    let (Some(quotient), Some(rest)) = (a.checked_div(b), a.checked_rem(b)) else {
        return Err(too_large());
    };
    Ok(if rest != 0 && (rest < 0) != (b < 0) {
        (quotient - 1, rest + b)
    } else {
        (quotient, rest)
    })
}

/// As CPython does it, so that the same is lost.
fn float_divmod(a: f64, b: f64) -> (f64, f64) {
    let mut rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest == 0.0 {
        rest = 0.0_f64.copysign(b);
    } else if (b < 0.0) != (rest < 0.0) {
        rest += b;
        quotient -= 1.0;
    }
    let floor = if quotient == 0.0 {
        0.0_f64.copysign(a / b)
    } else {
        let floor = quotient.floor();
        if quotient - floor > 0.5 {
            floor + 1.0
        } else {
            floor
        }
    };
    (floor, rest)
}

#[expect(clippy::float_cmp, reason = "zero is zero")]
fn pow(a: &Value, b: &Value) -> Result<Value> {
    let out_of_range = || error("OverflowError", "(34, 'Numerical result out of range')");
    let float_pow = |a: f64, b: f64| {
        if a == 0.0 && b < 0.0 {
            let text = "0.0 cannot be raised to a negative power";
            return Err(error("ZeroDivisionError", text));
        }
        if a < 0.0 && a.is_finite() && b.is_finite() && b != b.floor() {
            let (length, angle) = (a.abs().powf(b), core::f64::consts::PI * b);
            return Ok(Value::Complex(length * angle.cos(), length * angle.sin()));
        }
        let power = a.powf(b);
        if power.is_infinite() && a.is_finite() && b.is_finite() {
            return Err(out_of_range());
        }
        Ok(Value::Float(power))
    };
    match numbers("** or pow()", a, b)? {
        Pair::Int(a, b) if b >= 0 => {
            let power = match (a, u32::try_from(b)) {
                (0 | 1, Err(_)) => Some(a),
                (-1, Err(_)) => Some(if b % 2 == 0 { 1 } else { -1 }),
                (_, Ok(b)) => a.checked_pow(b),
                (_, Err(_)) => None,
            };
            Ok(Value::Int(power.ok_or_else(too_large)?))
        }
        Pair::Int(a, b) => float_pow(float(a), float(b)),
        Pair::Float(a, b) => float_pow(a, b),
        Pair::Complex(..) => Err(not_covered("a power of complex numbers")),
    }
}

fn bits(
    symbol: &str,
    a: &Value,
    b: &Value,
    of_ints: impl Fn(i128, i128) -> Option<i128>,
    of_bools: Option<fn(bool, bool) -> bool>,
) -> Result<Value> {
    match (a, b, of_bools) {
        (Value::Bool(a), Value::Bool(b), Some(of_bools)) => {
            return Ok(Value::Bool(of_bools(*a, *b)));
        }
        (Value::Set(_) | Value::FrozenSet(_) | Value::Dict(_), _, _) => {
            return Err(not_covered(&format!("{symbol} of sets")));
        }
        _ => {}
    }
    match (number(a), number(b)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => {
            Ok(Value::Int(of_ints(a, b).ok_or_else(too_large)?))
        }
        _ => Err(unsupported(symbol, a, b)),
    }
}

fn shifted_left(a: i128, b: i128) -> Option<i128> {
    if a == 0 {
        return Some(0);
    }
    let factor = 1_i128.checked_shl(u32::try_from(b).ok()?)?;
    // The highest bit is the sign.
    (factor > 0).then(|| a.checked_mul(factor)).flatten()
}

fn shift(a: &Value, b: &Value, is_left: bool) -> Result<Value> {
    let symbol = if is_left { "<<" } else { ">>" };
    if let Some(Number::Int(count)) = number(b)
        && count < 0
        && matches!(number(a), Some(Number::Int(_)))
    {
        return Err(error("ValueError", "negative shift count"));
    }
    let right = |a: i128, b: i128| {
        let count = u32::try_from(b).unwrap_or(u32::MAX).min(127);
        Some(a >> count)
    };
    if is_left {
        bits(symbol, a, b, shifted_left, None)
    } else {
        bits(symbol, a, b, right, None)
    }
}

// Comparing

fn compare_numbers(a: Number, b: Number) -> Option<Ordering> {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
        (Number::Int(a), Number::Float(b)) => compare_int(a, b),
        (Number::Float(a), Number::Int(b)) => compare_int(b, a).map(Ordering::reverse),
        (a, b) => match (a.to_complex(), b.to_complex()) {
            ((a, 0.0), (b, 0.0)) => a.partial_cmp(&b),
            (a, b) => (a == b).then_some(Ordering::Equal),
        },
    }
}

/// Exactly, however large.
#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn compare_int(a: i128, b: f64) -> Option<Ordering> {
    const END: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;
    if b.is_nan() {
        return None;
    }
    if b >= END {
        return Some(Ordering::Less);
    }
    if b < -END {
        return Some(Ordering::Greater);
    }
    let whole = b.trunc();
    Some(a.cmp(&(whole as i128)).then(whole.total_cmp(&b)))
}

/// Whether two values are equal for Python.
fn equal(a: &Value, b: &Value) -> bool {
    let all =
        |a: &[Value], b: &[Value]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b));
    match (a, b) {
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => all(a, b),
        (Value::Set(a) | Value::FrozenSet(a), Value::Set(b) | Value::FrozenSet(b)) => {
            a.len() == b.len() && a.iter().all(|item| contains_item(b, item))
        }
        (Value::Dict(a), Value::Dict(b)) => {
            a.len() == b.len()
                && a.iter().all(|(key, value)| {
                    let other = b.iter().find(|(other, _)| equal(key, other));
                    other.is_some_and(|(_, other)| equal(value, other))
                })
        }
        (Value::Bytes(a) | Value::ByteArray(a), Value::Bytes(b) | Value::ByteArray(b)) => a == b,
        (a, b) => match (number(a), number(b)) {
            (Some(a), Some(b)) => compare_numbers(a, b) == Some(Ordering::Equal),
            _ => a == b,
        },
    }
}

fn contains_item(items: &[Value], item: &Value) -> bool {
    items.iter().any(|other| equal(other, item))
}

/// Each of them once, as sets have them.
pub(super) fn distinct(items: Vec<Value>) -> Vec<Value> {
    let mut kept: Vec<Value> = Vec::with_capacity(items.len());
    for item in items {
        if !contains_item(&kept, &item) {
            kept.push(item);
        }
    }
    kept
}

/// How two values are ordered; `Ok(None)` if one is not a number.
fn order(symbol: &str, a: &Value, b: &Value) -> Result<Option<Ordering>> {
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => return Ok(Some(a.cmp(b))),
        (Value::Bytes(a) | Value::ByteArray(a), Value::Bytes(b) | Value::ByteArray(b)) => {
            return Ok(Some(a.cmp(b)));
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            for (a, b) in a.iter().zip(b) {
                if !equal(a, b) {
                    return order(symbol, a, b);
                }
            }
            return Ok(Some(a.len().cmp(&b.len())));
        }
        _ => {}
    }
    match (number(a), number(b)) {
        (Some(Number::Complex(..)), _) | (_, Some(Number::Complex(..))) => {}
        (Some(a), Some(b)) => return Ok(compare_numbers(a, b)),
        _ => {}
    }
    for value in [a, b] {
        match value {
            Value::LargeInt(_) => return Err(too_large()),
            Value::Array(_) => return Err(not_covered("comparing arrays")),
            Value::Set(_) | Value::FrozenSet(_) => return Err(not_covered("comparing sets")),
            _ => {}
        }
    }
    Err(type_error(&format!(
        "'{symbol}' not supported between instances of '{}' and '{}'",
        a.type_name(),
        b.type_name()
    )))
}

fn check_comparable(a: &Value, b: &Value) -> Result<()> {
    for value in [a, b] {
        if let Value::Array(_) | Value::Serialized(_) = value {
            return Err(not_covered("comparing arrays and objects"));
        }
    }
    Ok(())
}

fn truth(value: &Value) -> Result<bool> {
    Ok(match value {
        Value::None => false,
        Value::Bool(value) => *value,
        Value::Int(value) => *value != 0,
        Value::LargeInt(_) => true,
        Value::Float(value) => *value != 0.0,
        Value::Complex(real, imaginary) => *real != 0.0 || *imaginary != 0.0,
        Value::Array(_) | Value::Serialized(_) => {
            return Err(not_covered("whether an array or object is true"));
        }
        other => len(other)? != 0,
    })
}

fn len(value: &Value) -> Result<usize> {
    Ok(match value {
        Value::Str(text) => text.chars().count(),
        Value::Bytes(data) | Value::ByteArray(data) => data.len(),
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
            items.len()
        }
        Value::Dict(entries) => entries.len(),
        Value::Array(array) => match array.shape().first() {
            Some(len) => *len,
            None => return Err(type_error("len() of unsized object")),
        },
        Value::Serialized(what) => return Err(not_covered(&format!("the length of {what}"))),
        other => {
            let text = format!("object of type '{}' has no len()", other.type_name());
            return Err(type_error(&text));
        }
    })
}

/// What iterating over it gives.
fn items(value: &Value) -> Result<Vec<Value>> {
    Ok(match value {
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
            items.clone()
        }
        Value::Dict(entries) => entries.iter().map(|(key, _)| key.clone()).collect(),
        Value::Str(text) => text.chars().map(|c| Value::Str(c.into())).collect(),
        Value::Bytes(data) | Value::ByteArray(data) => {
            data.iter().map(|byte| Value::from(*byte)).collect()
        }
        Value::Array(_) => return Err(not_covered("iterating over arrays")),
        Value::Serialized(what) => return Err(not_covered(&format!("iterating over {what}"))),
        other => {
            let text = format!("'{}' object is not iterable", other.type_name());
            return Err(type_error(&text));
        }
    })
}

fn getitem(from: &Value, index: &Value) -> Result<Value> {
    if let Value::Dict(entries) = from {
        let found = entries.iter().find(|(key, _)| equal(key, index));
        return match found {
            Some((_, value)) => Ok(value.clone()),
            None => Err(error("KeyError", &repr(index))),
        };
    }
    let Some(Number::Int(index)) = number(index) else {
        if let Value::Serialized(what) = index {
            return Err(not_covered(&format!("the index {what}")));
        }
        let text = format!(
            "{} indices must be integers or slices, not {}",
            from.type_name(),
            index.type_name()
        );
        return Err(type_error(&text));
    };
    let what = match from {
        Value::Str(_) => "string",
        other => other.type_name(),
    };
    let place = |len: usize| {
        let len = len as i128;
        let index = if index < 0 {
            index.saturating_add(len)
        } else {
            index
        };
        usize::try_from(index)
            .ok()
            .filter(|index| (*index as i128) < len)
            .ok_or_else(|| error("IndexError", &format!("{what} index out of range")))
    };
    match from {
        Value::List(items) | Value::Tuple(items) => Ok(items[place(items.len())?].clone()),
        Value::Bytes(data) | Value::ByteArray(data) => Ok(Value::from(data[place(data.len())?])),
        Value::Str(text) => {
            let index = place(text.chars().count())?;
            let found = text.chars().nth(index);
            Ok(Value::Str(found.map(String::from).unwrap_or_default()))
        }
        Value::Array(_) => Err(not_covered("an item of an array")),
        Value::Serialized(what) => Err(not_covered(&format!("an item of {what}"))),
        other => {
            let text = format!("'{}' object is not subscriptable", other.type_name());
            Err(type_error(&text))
        }
    }
}

fn contains(all: &Value, item: &Value) -> Result<bool> {
    match (all, item) {
        (Value::Str(all), Value::Str(part)) => Ok(all.contains(part.as_str())),
        (Value::Str(_), other) => Err(type_error(&format!(
            "'in <string>' requires string as left operand, not {}",
            other.type_name()
        ))),
        (Value::Bytes(all), Value::Bytes(part)) => {
            Ok(part.is_empty() || all.windows(part.len()).any(|window| window == part))
        }
        _ => Ok(contains_item(&items(all)?, item)),
    }
}

// Texts

/// What `repr()` gives.
pub(super) fn repr(value: &Value) -> String {
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
    if number.is_nan() {
        to.push_str("nan");
        return;
    }
    // The same digits; Python writes exponents with a sign and two digits.
    let text = format!("{number:?}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            let _ = write!(to, "{digits}e{sign}{exponent:0>2}");
        }
        None => to.push_str(&text),
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
                // What is escaped for Rust is not printable for Python either,
                // but for marks that join a letter before them.
                let is_printable = code >= 0xa1 && code != 0xad && {
                    let mut escaped = c.escape_debug();
                    escaped.next() != Some('\\') || !c.is_control() && c.is_alphanumeric()
                };
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

fn str_of(value: &Value) -> Result<String> {
    match value {
        Value::Str(text) => Ok(text.clone()),
        value => {
            check_shown(value)?;
            Ok(repr(value))
        }
    }
}

/// Arrays and what is not opened have a text that only Python knows.
fn check_shown(value: &Value) -> Result<()> {
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

// What is registered

type Unary = fn(&Value) -> Result<Value>;
type Binary = fn(&Value, &Value) -> Result<Value>;

fn unary(functions: Functions, name: &str, function: Unary) -> Functions {
    functions.with(name, move |arguments| {
        arguments.exactly(1)?;
        function(arguments.get(0).unwrap_or(&Value::None))
    })
}

fn binary(functions: Functions, name: &str, function: Binary) -> Functions {
    functions.with(name, move |arguments| {
        arguments.exactly(2)?;
        let (a, b) = (arguments.get(0), arguments.get(1));
        function(a.unwrap_or(&Value::None), b.unwrap_or(&Value::None))
    })
}

fn neg(value: &Value) -> Result<Value> {
    Ok(match number(value) {
        Some(Number::Int(value)) => Value::Int(value.checked_neg().ok_or_else(too_large)?),
        Some(Number::Float(value)) => Value::Float(-value),
        Some(Number::Complex(real, imaginary)) => Value::Complex(-real, -imaginary),
        None => return Err(bad_operand("unary -", value)),
    })
}

fn bad_operand(what: &str, value: &Value) -> RemoteError {
    match value {
        Value::Array(_) | Value::Serialized(_) => not_covered("arithmetic with arrays and objects"),
        Value::LargeInt(_) => too_large(),
        value => type_error(&format!(
            "bad operand type for {what}: '{}'",
            value.type_name()
        )),
    }
}

fn abs(value: &Value) -> Result<Value> {
    Ok(match number(value) {
        Some(Number::Int(value)) => Value::Int(value.checked_abs().ok_or_else(too_large)?),
        Some(Number::Float(value)) => Value::Float(value.abs()),
        Some(Number::Complex(real, imaginary)) => Value::Float(real.hypot(imaginary)),
        None => return Err(bad_operand("abs()", value)),
    })
}

fn invert(value: &Value) -> Result<Value> {
    match number(value) {
        Some(Number::Int(value)) => Ok(Value::Int(!value)),
        _ => Err(bad_operand("unary ~", value)),
    }
}

fn operators(functions: Functions) -> Functions {
    const BINARY: [(&str, Binary); 23] = [
        ("add", add),
        ("sub", sub),
        ("mul", mul),
        ("truediv", truediv),
        ("floordiv", floordiv),
        ("mod", modulo),
        ("pow", pow),
        ("and_", |a, b| {
            bits("&", a, b, |a, b| Some(a & b), Some(|a, b| a & b))
        }),
        ("or_", |a, b| {
            bits("|", a, b, |a, b| Some(a | b), Some(|a, b| a | b))
        }),
        ("xor", |a, b| {
            bits("^", a, b, |a, b| Some(a ^ b), Some(|a, b| a ^ b))
        }),
        ("lshift", |a, b| shift(a, b, true)),
        ("rshift", |a, b| shift(a, b, false)),
        ("eq", |a, b| {
            check_comparable(a, b)?;
            Ok(Value::Bool(equal(a, b)))
        }),
        ("ne", |a, b| {
            check_comparable(a, b)?;
            Ok(Value::Bool(!equal(a, b)))
        }),
        ("lt", |a, b| {
            Ok(Value::Bool(order("<", a, b)? == Some(Ordering::Less)))
        }),
        ("gt", |a, b| {
            Ok(Value::Bool(order(">", a, b)? == Some(Ordering::Greater)))
        }),
        ("le", |a, b| {
            let order = order("<=", a, b)?;
            Ok(Value::Bool(order.is_some_and(Ordering::is_le)))
        }),
        ("ge", |a, b| {
            let order = order(">=", a, b)?;
            Ok(Value::Bool(order.is_some_and(Ordering::is_ge)))
        }),
        ("getitem", getitem),
        ("contains", |a, b| Ok(Value::Bool(contains(a, b)?))),
        ("concat", |a, b| match a {
            Value::Str(_) | Value::Bytes(_) | Value::List(_) | Value::Tuple(_) => add(a, b),
            other => Err(type_error(&format!(
                "'{}' object can't be concatenated",
                other.type_name()
            ))),
        }),
        ("countOf", |a, b| {
            let all = items(a)?;
            Ok(Value::from(
                all.iter().filter(|item| equal(item, b)).count(),
            ))
        }),
        ("is_", |a, b| match (a, b) {
            (Value::None, Value::None) => Ok(Value::Bool(true)),
            (Value::Bool(a), Value::Bool(b)) => Ok(Value::Bool(a == b)),
            (Value::None | Value::Bool(_), _) | (_, Value::None | Value::Bool(_)) => {
                Ok(Value::Bool(false))
            }
            _ => Err(not_covered("the identity of objects")),
        }),
    ];
    const UNARY: [(&str, Unary); 6] = [
        ("neg", neg),
        ("pos", |value| match number(value) {
            Some(number) => Ok(number.into()),
            None => Err(bad_operand("unary +", value)),
        }),
        ("abs", abs),
        ("inv", invert),
        ("not_", |value| Ok(Value::Bool(!truth(value)?))),
        ("truth", |value| Ok(Value::Bool(truth(value)?))),
    ];
    let mut functions = functions;
    for (name, function) in BINARY {
        let name = format!("operator.{name}");
        functions = binary(functions, &name, function).quick(&name);
    }
    for (name, function) in UNARY {
        let name = format!("operator.{name}");
        functions = unary(functions, &name, function).quick(&name);
    }
    unary(functions, "operator.invert", invert).quick("operator.invert")
}

fn real(arguments: &Arguments, index: usize) -> Result<f64> {
    let value = arguments.get(index).unwrap_or(&Value::None);
    match number(value) {
        Some(Number::Int(value)) => Ok(float(value)),
        Some(Number::Float(value)) => Ok(value),
        _ => Err(type_error(&format!(
            "must be real number, not {}",
            value.type_name()
        ))),
    }
}

fn sum(arguments: &Arguments) -> Result<Value> {
    let start = arguments.keyword("start").or_else(|| arguments.get(1));
    let mut total = start.cloned().unwrap_or(Value::Int(0));
    if let Value::Str(_) = total {
        return Err(type_error(
            "sum() can't sum strings [use ''.join(seq) instead]",
        ));
    }
    let all = items(arguments.get(0).unwrap_or(&Value::None))?;
    // What rounding has lost of a sum of floats, as Python 3.12 and later make
    // good for.
    let mut lost = 0.0;
    for item in &all {
        match (&total, number(item)) {
            (Value::Float(sum), Some(Number::Float(_) | Number::Int(_))) => {
                let item = match number(item) {
                    Some(Number::Int(item)) => float(item),
                    Some(Number::Float(item)) => item,
                    _ => 0.0,
                };
                let next = sum + item;
                lost += if sum.abs() >= item.abs() {
                    (sum - next) + item
                } else {
                    (item - next) + sum
                };
                total = Value::Float(next);
            }
            _ => total = add(&total, item)?,
        }
    }
    Ok(match total {
        Value::Float(sum) if lost != 0.0 && f64::is_finite(lost) => Value::Float(sum + lost),
        total => total,
    })
}

fn extreme(arguments: &Arguments, name: &str, wanted: Ordering) -> Result<Value> {
    if arguments
        .keyword("key")
        .is_some_and(|key| *key != Value::None)
    {
        return Err(not_covered("a key function"));
    }
    let all = match arguments.len() {
        0 => return Err(arguments.wrong("expected at least 1 argument, got 0")),
        1 => items(arguments.get(0).unwrap_or(&Value::None))?,
        _ => arguments.iter().cloned().collect(),
    };
    let symbol = if wanted == Ordering::Less { "<" } else { ">" };
    let mut best: Option<Value> = None;
    for item in all {
        let is_better = match &best {
            Some(best) => order(symbol, &item, best)? == Some(wanted),
            None => true,
        };
        if is_better {
            best = Some(item);
        }
    }
    match best.or_else(|| arguments.keyword("default").cloned()) {
        Some(best) => Ok(best),
        None => Err(error(
            "ValueError",
            &format!("{name}() iterable argument is empty"),
        )),
    }
}

fn sorted(arguments: &Arguments) -> Result<Value> {
    if arguments
        .keyword("key")
        .is_some_and(|key| *key != Value::None)
    {
        return Err(not_covered("a key function"));
    }
    let mut all = items(arguments.get(0).unwrap_or(&Value::None))?;
    let is_reverse = arguments.keyword("reverse").map_or(Ok(false), truth)?;
    let mut failure = None;
    all.sort_by(|a, b| {
        let order = order("<", a, b).unwrap_or_else(|error| {
            failure.get_or_insert(error);
            None
        });
        let order = order.unwrap_or(Ordering::Equal);
        if is_reverse { order.reverse() } else { order }
    });
    match failure {
        Some(error) => Err(error),
        None => Ok(Value::List(all)),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn int_of_float(value: f64) -> Result<i128> {
    const END: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;
    if value.is_nan() {
        return Err(error("ValueError", "cannot convert float NaN to integer"));
    }
    if value.is_infinite() {
        return Err(error(
            "OverflowError",
            "cannot convert float infinity to integer",
        ));
    }
    if value.abs() >= END {
        return Err(too_large());
    }
    Ok(value.trunc() as i128)
}

fn int(arguments: &Arguments) -> Result<Value> {
    let Some(value) = arguments.get(0) else {
        return Ok(Value::Int(0));
    };
    if arguments.len() > 1 || arguments.keyword("base").is_some() {
        return Err(not_covered("int() with a base"));
    }
    Ok(Value::Int(match value {
        Value::Str(text) => parse_int(text)?,
        Value::LargeInt(_) => return Err(too_large()),
        value => match number(value) {
            Some(Number::Int(value)) => value,
            Some(Number::Float(value)) => int_of_float(value)?,
            _ => {
                return Err(type_error(&format!(
                    "int() argument must be a string, a bytes-like object or a real number, \
                     not '{}'",
                    value.type_name()
                )));
            }
        },
    }))
}

fn parse_int(text: &str) -> Result<i128> {
    let trimmed = text.trim();
    let digits = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
    // Single underscores may stand between digits.
    let is_number = !digits.is_empty()
        && digits
            .split('_')
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    if !is_number {
        let literal = repr(&Value::from(text));
        let text = format!("invalid literal for int() with base 10: {literal}");
        return Err(error("ValueError", &text));
    }
    trimmed.replace('_', "").parse().map_err(|_| too_large())
}

fn parse_float(text: &str) -> Result<f64> {
    let trimmed = text.trim();
    let wrong = || {
        let literal = repr(&Value::from(text));
        error(
            "ValueError",
            &format!("could not convert string to float: {literal}"),
        )
    };
    let is_separated = trimmed.split('_').count() > 1;
    let between_digits = trimmed
        .as_bytes()
        .windows(3)
        .filter(|part| part[1] == b'_' && part[0].is_ascii_digit() && part[2].is_ascii_digit());
    if is_separated && between_digits.count() != trimmed.matches('_').count() {
        return Err(wrong());
    }
    trimmed.replace('_', "").parse().map_err(|_| wrong())
}

/// Half to even.
fn round(arguments: &Arguments) -> Result<Value> {
    let value = arguments.get(0).unwrap_or(&Value::None);
    let digits = arguments.keyword("ndigits").or_else(|| arguments.get(1));
    let digits = digits.filter(|digits| **digits != Value::None);
    match (number(value), digits.map(number)) {
        (Some(Number::Int(value)), None) => Ok(Value::Int(value)),
        (Some(Number::Int(value)), Some(Some(Number::Int(0..)))) => Ok(Value::Int(value)),
        (Some(Number::Float(value)), None) => {
            Ok(Value::Int(int_of_float(value.round_ties_even())?))
        }
        (Some(Number::Float(value)), Some(Some(Number::Int(digits @ 0..=300)))) => {
            // Exactly: formatting knows every digit that the float has.
            let digits = usize::try_from(digits).unwrap_or_default();
            let text = format!("{value:.digits$}");
            Ok(Value::Float(text.parse().unwrap_or(value)))
        }
        (Some(Number::Float(_) | Number::Int(_)), Some(Some(Number::Int(_)))) => {
            Err(not_covered("rounding to so many digits"))
        }
        _ => Err(type_error(&format!(
            "type {} doesn't define __round__ method",
            value.type_name()
        ))),
    }
}

fn builtins(functions: Functions) -> Functions {
    const UNARY: [(&str, Unary); 11] = [
        ("abs", abs),
        ("len", |value| Ok(Value::from(len(value)?))),
        ("repr", |value| {
            check_shown(value)?;
            Ok(Value::Str(repr(value)))
        }),
        ("bool", |value| Ok(Value::Bool(truth(value)?))),
        ("any", |value| {
            for item in items(value)? {
                if truth(&item)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }),
        ("all", |value| {
            for item in items(value)? {
                if !truth(&item)? {
                    return Ok(Value::Bool(false));
                }
            }
            Ok(Value::Bool(true))
        }),
        ("list", |value| Ok(Value::List(items(value)?))),
        ("tuple", |value| Ok(Value::Tuple(items(value)?))),
        ("set", |value| Ok(Value::Set(distinct(items(value)?)))),
        ("ord", |value| {
            let text = value.as_str().unwrap_or_default();
            let mut letters = text.chars();
            match (letters.next(), letters.next()) {
                (Some(letter), None) => Ok(Value::from(u32::from(letter))),
                _ => Err(type_error("ord() expected a character")),
            }
        }),
        ("chr", |value| {
            let code = match number(value) {
                Some(Number::Int(code)) => u32::try_from(code).ok().and_then(char::from_u32),
                _ => return Err(bad_operand("chr()", value)),
            };
            match code {
                Some(letter) => Ok(Value::Str(letter.into())),
                None => Err(error("ValueError", "chr() arg not in range(0x110000)")),
            }
        }),
    ];
    let mut functions = functions;
    for (name, function) in UNARY {
        functions = unary(functions, &format!("builtins.{name}"), function);
    }
    functions
        .with("builtins.str", |arguments| {
            arguments.between(0, 1)?;
            let value = arguments.get(0);
            Ok(Value::Str(
                value.map(str_of).transpose()?.unwrap_or_default(),
            ))
        })
        .with("builtins.int", |arguments| int(&arguments))
        .with("builtins.float", |arguments| {
            arguments.between(0, 1)?;
            Ok(Value::Float(match arguments.get(0) {
                None => 0.0,
                Some(Value::Str(text)) => parse_float(text)?,
                Some(value) => match number(value) {
                    Some(Number::Int(value)) => float(value),
                    Some(Number::Float(value)) => value,
                    _ => {
                        return Err(type_error(&format!(
                            "float() argument must be a string or a real number, not '{}'",
                            value.type_name()
                        )));
                    }
                },
            }))
        })
        .with("builtins.sum", |arguments| sum(&arguments))
        .with("builtins.max", |arguments| {
            extreme(&arguments, "max", Ordering::Greater)
        })
        .with("builtins.min", |arguments| {
            extreme(&arguments, "min", Ordering::Less)
        })
        .with("builtins.sorted", |arguments| sorted(&arguments))
        .with("builtins.round", |arguments| round(&arguments))
        .with("builtins.pow", |arguments| {
            arguments.exactly(2)?;
            let (a, b) = (arguments.get(0), arguments.get(1));
            pow(a.unwrap_or(&Value::None), b.unwrap_or(&Value::None))
        })
        .quick("builtins.abs")
        .quick("builtins.int")
        .quick("builtins.float")
        .quick("builtins.bool")
        .quick("builtins.pow")
}

fn math(functions: Functions) -> Functions {
    /// Its result for numbers that it is defined for.
    type Real = fn(f64) -> f64;
    const REAL: [(&str, Real); 13] = [
        ("sqrt", f64::sqrt),
        ("sin", f64::sin),
        ("cos", f64::cos),
        ("tan", f64::tan),
        ("asin", f64::asin),
        ("acos", f64::acos),
        ("atan", f64::atan),
        ("exp", f64::exp),
        ("log", f64::ln),
        ("log2", f64::log2),
        ("log10", f64::log10),
        ("fabs", f64::abs),
        ("degrees", |radians| {
            radians * (180.0 / core::f64::consts::PI)
        }),
    ];
    const WHOLE: [(&str, Real); 3] = [
        ("floor", f64::floor),
        ("ceil", f64::ceil),
        ("trunc", f64::trunc),
    ];
    let mut functions = functions;
    for (name, function) in REAL {
        let name = format!("math.{name}");
        functions = functions
            .with(&name, move |arguments| {
                arguments.exactly(1)?;
                let given = real(&arguments, 0)?;
                let result = function(given);
                if result.is_nan() && !given.is_nan() || result == f64::NEG_INFINITY {
                    return Err(error("ValueError", "math domain error"));
                }
                if result.is_infinite() && given.is_finite() {
                    return Err(error("OverflowError", "math range error"));
                }
                Ok(Value::Float(result))
            })
            .quick(&name);
    }
    for (name, function) in WHOLE {
        let name = format!("math.{name}");
        functions = functions
            .with(&name, move |arguments| {
                arguments.exactly(1)?;
                match arguments.get(0).and_then(number) {
                    Some(Number::Int(value)) => Ok(Value::Int(value)),
                    _ => Ok(Value::Int(int_of_float(function(real(&arguments, 0)?))?)),
                }
            })
            .quick(&name);
    }
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_divided_to_the_nearest_float() {
        for (a, b, expected) in [
            (1, 3, 1.0 / 3.0),
            (-7, 2, -3.5),
            (1_i128 << 100, 1 << 90, 1024.0),
            // Python: 123456789012345678901234567890 / 987654321098765432109
            (
                123_456_789_012_345_678_901_234_567_890,
                987_654_321_098_765_432_109,
                124_999_998.860_937_5,
            ),
            (i128::MAX, 3, 5.671_372_782_015_641e37),
            (1, i128::MAX, 5.877_471_754_111_438e-39),
        ] {
            assert_eq!(
                quotient(a, b).to_bits(),
                f64::to_bits(expected),
                "{a} / {b}"
            );
        }
    }

    #[test]
    fn floats_are_compared_with_integers_exactly() {
        let big = (1_i128 << 53) + 1;
        assert_eq!(
            compare_int(big, 9_007_199_254_740_992.0),
            Some(Ordering::Greater)
        );
        assert_eq!(compare_int(0, -0.0), Some(Ordering::Equal));
        assert_eq!(compare_int(2, 2.5), Some(Ordering::Less));
        assert_eq!(compare_int(-2, -2.5), Some(Ordering::Greater));
        assert_eq!(compare_int(i128::MAX, f64::INFINITY), Some(Ordering::Less));
        assert_eq!(compare_int(0, f64::NAN), None);
    }
}
