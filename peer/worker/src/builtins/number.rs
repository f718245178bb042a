//! Arithmetic on numbers, as Python does it.

use daskwire_messages::{RemoteError, Value};

use super::{MAX_LEN, Result, error, not_covered, too_large, type_error};

#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
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

pub(super) fn number(value: &Value) -> Option<Number> {
    Some(match value {
        Value::Bool(value) => Number::Int((*value).into()),
        Value::Int(value) => Number::Int(*value),
        Value::Float(value) => Number::Float(*value),
        Value::Complex(real, imaginary) => Number::Complex(*real, *imaginary),
        _ => return None,
    })
}

#[expect(clippy::cast_precision_loss, reason = "as Python's float() of an int")]
pub(super) const fn float(value: i128) -> f64 {
    value as f64
}

impl Number {
    pub(super) const fn to_complex(self) -> (f64, f64) {
        match self {
            Self::Int(value) => (float(value), 0.0),
            Self::Float(value) => (value, 0.0),
            Self::Complex(real, imaginary) => (real, imaginary),
        }
    }
}

/// The integer that equals a float.
#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
pub(super) fn whole(value: f64) -> Option<i128> {
    const END: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;
    let is_whole = (-END..END).contains(&value) && value.fract() == 0.0;
    is_whole.then_some(value as i128)
}

/// Two numbers, converted to a common type.
enum Pair {
    Int(i128, i128),
    Float(f64, f64),
}

/// The error for operands that an operator does not support.
fn unsupported(symbol: &str, a: &Value, b: &Value) -> RemoteError {
    for value in [a, b] {
        match value {
            Value::LargeInt(_) => return too_large(),
            Value::Array(_) => return not_covered("arithmetic with arrays"),
            Value::Set(_) | Value::FrozenSet(_) => return not_covered("arithmetic with sets"),
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

pub(super) fn add(a: &Value, b: &Value) -> Result<Value> {
    Ok(match (a, b) {
        (Value::Str(a), Value::Str(b)) => {
            check_len::<u8>(a.len().saturating_add(b.len()))?;
            Value::from([&**a, &**b].concat())
        }
        (Value::Bytes(a), Value::Bytes(b)) => Value::bytes(joined(a, b)?),
        (Value::List(a), Value::List(b)) => Value::List(joined(a, b)?.into()),
        (Value::Tuple(a), Value::Tuple(b)) => Value::Tuple(joined(a, b)?.into()),
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
        },
    })
}

/// The concatenation of two slices.
fn joined<T: Clone>(a: &[T], b: &[T]) -> Result<Vec<T>> {
    check_len::<T>(a.len().saturating_add(b.len()))?;
    Ok([a, b].concat())
}

/// Refuses a result with so many items that it would use too much memory.
fn check_len<T>(count: usize) -> Result<()> {
    if count.saturating_mul(size_of::<T>()) > MAX_LEN {
        let message = "the result would take more than 1 GiB";
        return Err(error("MemoryError", message));
    }
    Ok(())
}

fn numbers(symbol: &str, a: &Value, b: &Value) -> Result<Pair> {
    match (number(a), number(b)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => Ok(Pair::Int(a, b)),
        (Some(Number::Complex(..)), Some(_)) | (Some(_), Some(Number::Complex(..))) => {
            Err(not_covered("arithmetic with complex numbers"))
        }
        (Some(a), Some(b)) => Ok(Pair::Float(a.to_complex().0, b.to_complex().0)),
        _ => Err(unsupported(symbol, a, b)),
    }
}

pub(super) fn sub(a: &Value, b: &Value) -> Result<Value> {
    Ok(match numbers("-", a, b)? {
        Pair::Int(a, b) => Value::Int(a.checked_sub(b).ok_or_else(too_large)?),
        Pair::Float(a, b) => Value::Float(a - b),
    })
}

pub(super) fn mul(a: &Value, b: &Value) -> Result<Value> {
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
    })
}

fn repeat(sequence: &Value, count: i128) -> Result<Value> {
    if i64::try_from(count).is_err() {
        let message = "cannot fit 'int' into an index-sized integer";
        return Err(error("OverflowError", message));
    }
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    Ok(match sequence {
        Value::Str(string) => {
            check_len::<u8>(string.len().saturating_mul(count))?;
            Value::from(string.repeat(count))
        }
        Value::Bytes(data) => {
            check_len::<u8>(data.len().saturating_mul(count))?;
            Value::bytes(data.repeat(count))
        }
        Value::List(items) => {
            check_len::<Value>(items.len().saturating_mul(count))?;
            Value::List(repeated(items, count).into())
        }
        Value::Tuple(items) => {
            check_len::<Value>(items.len().saturating_mul(count))?;
            Value::Tuple(repeated(items, count).into())
        }
        _ => Value::None,
    })
}

fn repeated(items: &[Value], count: usize) -> Vec<Value> {
    // Repeating an empty list any number of times gives an empty list.
    let count = if items.is_empty() { 0 } else { count };
    core::iter::repeat_n(items, count)
        .flatten()
        .cloned()
        .collect()
}

pub(super) fn truediv(a: &Value, b: &Value) -> Result<Value> {
    Ok(match numbers("/", a, b)? {
        Pair::Int(_, 0) => return Err(error("ZeroDivisionError", "division by zero")),
        Pair::Int(a, b) => Value::Float(quotient(a, b)),
        Pair::Float(_, 0.0) => {
            return Err(error("ZeroDivisionError", "float division by zero"));
        }
        Pair::Float(a, b) => Value::Float(a / b),
    })
}

/// The float nearest to the quotient of two integers.
#[expect(clippy::cast_precision_loss, reason = "rounding is what it is about")]
fn quotient(a: i128, b: i128) -> f64 {
    const EXACT: u128 = 1 << 53;
    let is_negative = (a < 0) != (b < 0);
    let (a, b) = (a.unsigned_abs(), b.unsigned_abs());
    let magnitude = if a <= EXACT && b <= EXACT {
        a as f64 / b as f64
    } else {
        // Compute two more bits than a float has, bit by bit; the last of them
        // tells whether any remainder follows.
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

pub(super) fn floordiv(a: &Value, b: &Value) -> Result<Value> {
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
    })
}

pub(super) fn modulo(a: &Value, b: &Value) -> Result<Value> {
    if matches!(a, Value::Str(_) | Value::Bytes(_)) {
        return Err(not_covered("formatting with %"));
    }
    Ok(match numbers("%", a, b)? {
        Pair::Int(_, 0) => return Err(error("ZeroDivisionError", "integer modulo by zero")),
        Pair::Int(a, b) => Value::Int(int_divmod(a, b)?.1),
        Pair::Float(_, 0.0) => return Err(error("ZeroDivisionError", "float modulo by zero")),
        Pair::Float(a, b) => Value::Float(float_divmod(a, b).1),
    })
}

/// Integer division, rounding towards minus infinity as Python does.
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

/// Follows CPython's algorithm, to get the same rounding errors.
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
pub(super) fn pow(a: &Value, b: &Value) -> Result<Value> {
    let out_of_range = || error("OverflowError", "(34, 'Numerical result out of range')");
    let float_pow = |a: f64, b: f64| {
        if a == 0.0 && b < 0.0 {
            let message = "0.0 cannot be raised to a negative power";
            return Err(error("ZeroDivisionError", message));
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
    }
}

pub(super) fn neg(value: &Value) -> Result<Value> {
    Ok(match number(value) {
        Some(Number::Int(value)) => Value::Int(value.checked_neg().ok_or_else(too_large)?),
        Some(Number::Float(value)) => Value::Float(-value),
        Some(Number::Complex(real, imaginary)) => Value::Complex(-real, -imaginary),
        None => return Err(bad_operand("unary -", value)),
    })
}

pub(super) fn bad_operand(what: &str, value: &Value) -> RemoteError {
    match value {
        Value::Array(_) | Value::Serialized(_) => not_covered("arithmetic with arrays and objects"),
        Value::LargeInt(_) => too_large(),
        value => type_error(&format!(
            "bad operand type for {what}: '{}'",
            value.type_name()
        )),
    }
}

pub(super) fn abs(value: &Value) -> Result<Value> {
    Ok(match number(value) {
        Some(Number::Int(value)) => Value::Int(value.checked_abs().ok_or_else(too_large)?),
        Some(Number::Float(value)) => Value::Float(value.abs()),
        Some(Number::Complex(real, imaginary)) => Value::Float(real.hypot(imaginary)),
        None => return Err(bad_operand("abs()", value)),
    })
}

#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
pub(super) fn int_of_float(value: f64) -> Result<i128> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divides_integers_to_the_nearest_float() {
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
}
