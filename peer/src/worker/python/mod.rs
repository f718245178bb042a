//! Functions of Python, done in Rust with the results that Python 3.12 has.

mod container;
mod number;
mod text;

use core::cmp::Ordering;

use super::functions::{Arguments, Functions};
use crate::{RemoteError, Value};

use container::{
    check_comparable, check_hashable, contains, equal, getitem, items, len, order, truth,
};
use number::{
    Number, abs, add, bad_operand, bits, float, floordiv, int_of_float, invert, modulo, mul, neg,
    number, parse_float, parse_int, pow, shift, sub, truediv,
};
use text::{check_shown, str_of};

pub(super) use container::distinct;
pub(super) use text::repr;

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

fn int(arguments: &Arguments) -> Result<Value> {
    let Some(value) = arguments.get(0) else {
        return Ok(Value::Int(0));
    };
    if arguments.len() > 1 || arguments.keyword("base").is_some() {
        return Err(not_covered("int() with a base"));
    }
    Ok(Value::Int(match value {
        Value::Str(text) => parse_int(text)?,
        Value::Bytes(_) | Value::ByteArray(_) => return Err(not_covered("int() of bytes")),
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

fn dict(arguments: &Arguments) -> Result<Value> {
    let mut entries: Vec<(Value, Value)> = Vec::new();
    let mut set = |key: Value, value: Value| {
        check_hashable(&key)?;
        match entries.iter_mut().find(|(other, _)| equal(other, &key)) {
            Some((_, place)) => *place = value,
            None => entries.push((key, value)),
        }
        Ok::<(), RemoteError>(())
    };
    match arguments.get(0) {
        None => {}
        Some(Value::Dict(given)) => {
            for (key, value) in given {
                set(key.clone(), value.clone())?;
            }
        }
        Some(pairs) => {
            for pair in items(pairs)? {
                let [key, value] = <[Value; 2]>::try_from(items(&pair)?).map_err(|_| {
                    let text = "dictionary update sequence element has another length than 2";
                    error("ValueError", text)
                })?;
                set(key, value)?;
            }
        }
    }
    for (name, value) in arguments.keywords() {
        set(Value::from(name), value.clone())?;
    }
    Ok(Value::Dict(entries))
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
        ("set", |value| {
            let items = items(value)?;
            items.iter().try_for_each(check_hashable)?;
            Ok(Value::Set(distinct(items)))
        }),
        ("ord", |value| {
            if let Value::Bytes(data) | Value::ByteArray(data) = value
                && let [byte] = data[..]
            {
                return Ok(Value::from(byte));
            }
            let text = value.as_str().unwrap_or_default();
            let mut letters = text.chars();
            match (letters.next(), letters.next()) {
                (Some(letter), None) => Ok(Value::from(u32::from(letter))),
                _ => Err(type_error("ord() expected a character")),
            }
        }),
        ("chr", |value| {
            let code = match number(value) {
                Some(Number::Int(code)) if i32::try_from(code).is_err() => {
                    let text = "Python int too large to convert to C int";
                    return Err(error("OverflowError", text));
                }
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
        .with("builtins.dict", |arguments| dict(&arguments))
        .with("builtins.float", |arguments| {
            arguments.between(0, 1)?;
            Ok(Value::Float(match arguments.get(0) {
                None => 0.0,
                Some(Value::Str(text)) => parse_float(text)?,
                Some(Value::Bytes(_) | Value::ByteArray(_)) => {
                    return Err(not_covered("float() of bytes"));
                }
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
