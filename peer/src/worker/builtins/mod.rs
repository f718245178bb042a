//! Rust implementations of Python functions, with the results of Python 3.12.

mod container;
mod format;
mod index;
mod number;

use core::cmp::Ordering;
use daskwire::invariant::Ensured;

use super::functions::{Arguments, Functions};
use crate::{RemoteError, Value};

use container::{
    check_comparable, check_hashable, contains, equal, getitem, items, len, order, truth,
};
use format::{bounded_repr, check_shown, str_of};
use index::Index;
use number::{
    Number, abs, add, bad_operand, bits, float, floordiv, int_of_float, invert, modulo, mul, neg,
    number, parse_float, parse_int, pow, shift, sub, truediv,
};

pub(super) use container::distinct;
pub(super) use format::repr;

type Result<T> = core::result::Result<T, RemoteError>;

/// Maximum length of a repeated string, bytes or list, in bytes.
const MAX_LEN: usize = 1 << 30;

/// Python's maximum for `time.sleep`, in seconds.
const MAX_SLEEP: f64 = 9_223_372_036.0;

/// Registers all functions.
pub(super) fn register(functions: Functions) -> Functions {
    let functions = operators(functions);
    let functions = builtins(functions);
    let functions = math(functions).with("time.sleep", |arguments| {
        arguments.exactly(1)?;
        let seconds = real(arguments.get(0).unwrap_or(&Value::None))?;
        if seconds > MAX_SLEEP {
            let message = "timestamp too large to convert to C PyTime_t";
            return Err(error("OverflowError", message));
        }
        let duration = core::time::Duration::try_from_secs_f64(seconds)
            .map_err(|_| error("ValueError", "sleep length must be non-negative"))?;
        std::thread::sleep(duration);
        Ok(Value::None)
    });
    functions.checked(check_builtin)
}

/// Refuses values with instances of classes that are not built in.
fn check_builtin(value: &Value) -> Result<()> {
    match value.totals() {
        Some(totals) if totals.has_objects => Err(not_covered("an instance of a class")),
        _ => Ok(()),
    }
}

fn error(class: &str, message: &str) -> RemoteError {
    RemoteError::new(class, message)
}

fn type_error(message: &str) -> RemoteError {
    error("TypeError", message)
}

/// Returns the error for a feature that Python supports and this worker does not.
fn not_covered(what: &str) -> RemoteError {
    let message =
        format!("{what} is not covered by the functions of this worker, which does not run Python");
    error("NotImplementedError", &message)
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

fn real(value: &Value) -> Result<f64> {
    match number(value) {
        Some(Number::Int(value)) => Ok(float(value)),
        Some(Number::Float(value)) => Ok(value),
        _ => Err(wrong_number(value, "must be real number, not ")),
    }
}

/// Returns the error for a value that is not a number of the required type: a `TypeError`
/// with `message`, or `NotImplementedError` for a value that Python would convert.
fn wrong_number(value: &Value, message: &str) -> RemoteError {
    match value {
        Value::LargeInt(_) => too_large(),
        Value::Array(_) | Value::Serialized(_) => not_covered("a number of arrays and objects"),
        value => type_error(&format!("{message}{}", value.type_name())),
    }
}

/// Converts an argument that is an index.
fn integer(value: &Value) -> Result<i128> {
    match number(value) {
        Some(Number::Int(value)) => Ok(value),
        _ => {
            let message = "an integer is required, which cannot be made of a ";
            Err(wrong_number(value, message))
        }
    }
}

/// Converts bytes that represent a number to a string.
fn ascii(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}

/// Treats an argument of `None` as missing.
fn not_none(argument: Option<&Value>) -> Option<&Value> {
    argument.filter(|value| !matches!(value, Value::None))
}

fn sum(arguments: &Arguments) -> Result<Value> {
    let [all, start] = arguments.bind(["", "start"], 1, 2)?;
    let mut total = start.cloned().unwrap_or(Value::Int(0));
    if let Value::Str(_) | Value::Bytes(_) | Value::ByteArray(_) = total {
        return Err(type_error(&format!(
            "sum() can't sum {} [use join instead]",
            total.type_name()
        )));
    }
    let all = items(all.unwrap_or(&Value::None))?;
    // The rounding error of the sum of floats, which Python 3.12 and later
    // compensate for.
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
    for (keyword, _) in arguments.keywords() {
        if !matches!(keyword, "key" | "default") {
            let message = format!("got an unexpected keyword argument '{keyword}'");
            return Err(arguments.wrong(&message));
        }
    }
    let default = arguments.keyword("default");
    let all = match arguments.len() {
        0 => return Err(arguments.wrong("expected at least 1 argument, got 0")),
        1 => items(arguments.get(0).unwrap_or(&Value::None))?,
        _ if default.is_some() => {
            let message = "cannot have a default with several positional arguments";
            return Err(arguments.wrong(message));
        }
        _ => arguments.iter().cloned().collect(),
    };
    if not_none(arguments.keyword("key")).is_some() {
        return Err(not_covered("a key function"));
    }
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
    match best.or_else(|| default.cloned()) {
        Some(best) => Ok(best),
        None => Err(error(
            "ValueError",
            &format!("{name}() iterable argument is empty"),
        )),
    }
}

fn sorted(arguments: &Arguments) -> Result<Value> {
    let [all, key, reverse] = arguments.bind(["", "key", "reverse"], 1, 1)?;
    let is_reverse = match reverse {
        None => false,
        Some(value) => integer(value)? != 0,
    };
    let all = items(all.unwrap_or(&Value::None))?;
    if not_none(key).is_some() {
        return Err(not_covered("a key function"));
    }
    let wanted = if is_reverse {
        Ordering::Greater
    } else {
        Ordering::Less
    };
    let sorted = merge_sorted(all, |a, b| match order("<", a, b)? {
        Some(order) => Ok(order == wanted),
        None => Err(not_covered("sorting unordered values such as NaN")),
    });
    Ok(Value::List(sorted?.into()))
}

/// Merge sort by a comparison that may fail; it stops at the first failure. Equal
/// items keep their order.
fn merge_sorted(
    items: Vec<Value>,
    is_before: impl Fn(&Value, &Value) -> Result<bool>,
) -> Result<Vec<Value>> {
    let mut items = items;
    let mut width = 1;
    while width < items.len() {
        let mut merged = Vec::with_capacity(items.len());
        let mut rest = items.into_iter();
        while rest.len() != 0 {
            let left: Vec<Value> = rest.by_ref().take(width).collect();
            let right: Vec<Value> = rest.by_ref().take(width).collect();
            let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
            while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
                let next = if is_before(b, a)? {
                    &mut right
                } else {
                    &mut left
                };
                merged.extend(next.next());
            }
            merged.extend(left);
            merged.extend(right);
        }
        items = merged;
        width = width.saturating_mul(2);
    }
    Ok(items)
}

fn int(arguments: &Arguments) -> Result<Value> {
    let [value, base] = arguments.bind(["", "base"], 0, 2)?;
    let Some(value) = value else {
        return match base {
            None => Ok(Value::Int(0)),
            Some(_) => Err(type_error("int() missing string argument")),
        };
    };
    if let Some(base) = base {
        let base = integer(base)?;
        let base = u32::try_from(base)
            .ok()
            .filter(|base| matches!(base, 0 | 2..=36));
        let Some(base) = base else {
            let message = "int() base must be >= 2 and <= 36, or 0";
            return Err(error("ValueError", message));
        };
        let string = match value {
            Value::Str(string) => string[..].to_owned(),
            Value::Bytes(data) | Value::ByteArray(data) => ascii(data),
            _ => {
                let message = "int() can't convert non-string with explicit base";
                return Err(type_error(message));
            }
        };
        return Ok(Value::Int(parse_int(value, &string, base)?));
    }
    Ok(Value::Int(match value {
        Value::Str(string) => parse_int(value, string, 10)?,
        Value::Bytes(data) | Value::ByteArray(data) => parse_int(value, &ascii(data), 10)?,
        value => match number(value) {
            Some(Number::Int(value)) => value,
            Some(Number::Float(value)) => int_of_float(value)?,
            _ => {
                let message = "int() argument must be a string, a bytes-like object or a real \
                            number, not ";
                return Err(wrong_number(value, message));
            }
        },
    }))
}

fn float_of(arguments: &Arguments) -> Result<Value> {
    let [value] = arguments.bind([""], 0, 1)?;
    let Some(value) = value else {
        return Ok(Value::Float(0.0));
    };
    Ok(Value::Float(match value {
        Value::Str(string) => parse_float(value, string)?,
        Value::Bytes(data) | Value::ByteArray(data) => parse_float(value, &ascii(data))?,
        value => match number(value) {
            Some(Number::Int(value)) => float(value),
            Some(Number::Float(value)) => value,
            _ => {
                let message = "float() argument must be a string or a real number, not ";
                return Err(wrong_number(value, message));
            }
        },
    }))
}

/// `str()`, which decodes bytes if an encoding is given.
fn string(arguments: &Arguments) -> Result<Value> {
    let [value, encoding, errors] = arguments.bind(["object", "encoding", "errors"], 0, 3)?;
    for option in [encoding, errors].into_iter().flatten() {
        if !matches!(option, Value::Str(_)) {
            let message = "str() encoding and errors must be str, not ";
            return Err(type_error(&format!("{message}{}", option.type_name())));
        }
    }
    let Some(value) = value else {
        return Ok(Value::from(""));
    };
    if encoding.is_none() && errors.is_none() {
        return Ok(Value::from(str_of(value)?));
    }
    match value {
        Value::Bytes(_) | Value::ByteArray(_) | Value::Array(_) | Value::Serialized(_) => {
            Err(not_covered("str() with an encoding"))
        }
        Value::Str(_) => Err(type_error("decoding str is not supported")),
        value => Err(type_error(&format!(
            "decoding to str: need a bytes-like object, {} found",
            value.type_name()
        ))),
    }
}

fn power(arguments: &Arguments) -> Result<Value> {
    let [base, exponent, modulus] = arguments.bind(["base", "exp", "mod"], 2, 3)?;
    let (base, exponent) = (
        base.unwrap_or(&Value::None),
        exponent.unwrap_or(&Value::None),
    );
    let Some(modulus) = not_none(modulus) else {
        return pow(base, exponent);
    };
    // The first argument that is not an integer determines the error.
    let mut numbers = [base, exponent, modulus].into_iter().filter_map(number);
    let first = numbers.find(|number| !matches!(number, Number::Int(_)));
    if let (Some(Number::Complex(..)), Some(_), Some(_)) = (first, number(base), number(exponent)) {
        return Err(error("ValueError", "complex modulo"));
    }
    for value in [base, exponent, modulus] {
        if !matches!(number(value), Some(Number::Int(_))) {
            let message = "pow() 3rd argument not allowed unless all arguments are integers, not ";
            return Err(wrong_number(value, message));
        }
    }
    let (base, mut exponent, modulus) = (integer(base)?, integer(exponent)?, integer(modulus)?);
    if modulus == 0 {
        return Err(error("ValueError", "pow() 3rd argument cannot be 0"));
    }
    if exponent < 0 || i64::try_from(modulus).is_err() {
        return Err(not_covered("this power with a modulus"));
    }
    // With a modulus below 64 bits, products have at most 127 bits.
    let (mut base, mut result) = (base.rem_euclid(modulus), 1_i128.rem_euclid(modulus));
    while exponent != 0 {
        if exponent & 1 == 1 {
            result = result * base % modulus;
        }
        base = base * base % modulus;
        exponent >>= 1;
    }
    // The result has the sign of the modulus.
    let is_other = modulus < 0 && result != 0;
    Ok(Value::Int(if is_other { result + modulus } else { result }))
}

fn dict(arguments: &Arguments) -> Result<Value> {
    if arguments.len() > 1 {
        return Err(arguments.wrong("expected at most 1 argument"));
    }
    let mut given: Vec<(Value, Value)> = match arguments.get(0) {
        None => Vec::new(),
        Some(Value::Dict(given)) => given.to_vec(),
        Some(pairs) => {
            let pairs = items(pairs)?.into_iter().map(|pair| {
                let pair = <[Value; 2]>::try_from(items(&pair)?);
                let [key, value] = pair.map_err(|_| {
                    let message = "dictionary update sequence element has another length than 2";
                    error("ValueError", message)
                })?;
                check_hashable(&key)?;
                Ok((key, value))
            });
            pairs.collect::<Result<_>>()?
        }
    };
    let keywords = arguments.keywords();
    given.extend(keywords.map(|(name, value)| (Value::from(name), value.clone())));
    // Of equal keys, the first key is kept, with the last value.
    let mut index = Index::default();
    let mut last: Vec<usize> = Vec::new();
    let mut first: Vec<usize> = Vec::new();
    for (at, (key, _)) in given.iter().enumerate() {
        match index.insert(key) {
            (position, false) => last[position] = at,
            (_, true) => {
                first.push(at);
                last.push(at);
            }
        }
    }
    drop(index);
    let entries = first.into_iter().zip(last);
    let entries = entries.map(|(first, last)| (given[first].0.clone(), given[last].1.clone()));
    Ok(Value::Dict(entries.collect()))
}

/// Rounds half to even.
fn round(arguments: &Arguments) -> Result<Value> {
    let [value, digits] = arguments.bind(["number", "ndigits"], 1, 2)?;
    let value = value.unwrap_or(&Value::None);
    if matches!(number(value), None | Some(Number::Complex(..))) {
        let message = "no __round__ method is defined by type ";
        return Err(wrong_number(value, message));
    }
    let digits = not_none(digits).map(integer).transpose()?.map(Number::Int);
    match (number(value), digits.map(Some)) {
        (Some(Number::Int(value)), None) => Ok(Value::Int(value)),
        (Some(Number::Int(value)), Some(Some(Number::Int(0..)))) => Ok(Value::Int(value)),
        (Some(Number::Float(value)), None) => {
            Ok(Value::Int(int_of_float(value.round_ties_even())?))
        }
        (Some(Number::Float(value)), Some(Some(Number::Int(digits @ 0..=300)))) => {
            // Exact: formatting produces every digit of the float.
            let digits = usize::try_from(digits).ensured();
            let message = format!("{value:.digits$}");
            Ok(Value::Float(message.parse().unwrap_or(value)))
        }
        _ => Err(not_covered("rounding to this many digits")),
    }
}

fn builtins(functions: Functions) -> Functions {
    const UNARY: [(&str, Unary); 7] = [
        ("abs", abs),
        ("len", |value| Ok(Value::from(len(value)?))),
        ("repr", |value| {
            check_shown(value)?;
            Ok(Value::from(bounded_repr(value, MAX_LEN)?))
        }),
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
        ("ord", |value| {
            if let Value::Bytes(data) | Value::ByteArray(data) = value
                && let [byte] = data[..]
            {
                return Ok(Value::from(byte));
            }
            let string = value.as_str().unwrap_or_default();
            let mut letters = string.chars();
            match (letters.next(), letters.next()) {
                (Some(letter), None) => Ok(Value::from(u32::from(letter))),
                _ => Err(wrong_number(value, "ord() expected a character, not ")),
            }
        }),
        ("chr", |value| {
            let code = match number(value) {
                Some(Number::Int(code)) if i32::try_from(code).is_err() => {
                    let message = "Python int too large to convert to C int";
                    return Err(error("OverflowError", message));
                }
                Some(Number::Int(code)) => u32::try_from(code).ok().and_then(char::from_u32),
                _ => return Err(bad_operand("chr()", value)),
            };
            match code {
                Some(letter) => Ok(Value::from(String::from(letter))),
                None => Err(error("ValueError", "chr() arg not in range(0x110000)")),
            }
        }),
    ];
    /// A type constructor with an optional argument.
    type Constructor = fn(Option<&Value>) -> Result<Value>;
    const CONSTRUCTORS: [(&str, Constructor); 4] = [
        ("bool", |value| {
            Ok(Value::Bool(value.map_or(Ok(false), truth)?))
        }),
        ("list", |value| {
            Ok(Value::List(items_or_none(value)?.into()))
        }),
        ("tuple", |value| {
            Ok(Value::Tuple(items_or_none(value)?.into()))
        }),
        ("set", |value| {
            Ok(Value::Set(distinct(items_or_none(value)?)?.into()))
        }),
    ];
    let mut functions = functions;
    for (name, function) in UNARY {
        functions = unary(functions, &format!("builtins.{name}"), function);
    }
    for (name, function) in CONSTRUCTORS {
        functions = functions.with(&format!("builtins.{name}"), move |arguments| {
            let [value] = arguments.bind([""], 0, 1)?;
            function(value)
        });
    }
    functions
        .with("builtins.str", |arguments| string(&arguments))
        .with("builtins.int", |arguments| int(&arguments))
        .with("builtins.dict", |arguments| dict(&arguments))
        .with("builtins.float", |arguments| float_of(&arguments))
        .with("builtins.sum", |arguments| sum(&arguments))
        .with("builtins.max", |arguments| {
            extreme(&arguments, "max", Ordering::Greater)
        })
        .with("builtins.min", |arguments| {
            extreme(&arguments, "min", Ordering::Less)
        })
        .with("builtins.sorted", |arguments| sorted(&arguments))
        .with("builtins.round", |arguments| round(&arguments))
        .with("builtins.pow", |arguments| power(&arguments))
        .quick("builtins.abs")
        .quick("builtins.int")
        .quick("builtins.float")
        .quick("builtins.bool")
        .quick("builtins.pow")
}

fn items_or_none(value: Option<&Value>) -> Result<Vec<Value>> {
    value.map_or_else(|| Ok(Vec::new()), items)
}

/// The result of a `math` function, or the exception that Python raises instead.
fn checked(given: f64, result: f64) -> Result<f64> {
    if result.is_nan() && !given.is_nan() || result == f64::NEG_INFINITY {
        return Err(error("ValueError", "math domain error"));
    }
    if result.is_infinite() && given.is_finite() {
        return Err(error("OverflowError", "math range error"));
    }
    Ok(result)
}

fn log(arguments: &Arguments) -> Result<Value> {
    let [value, base] = arguments.bind(["", ""], 1, 2)?;
    let ln = |value: &Value| {
        let given = real(value)?;
        checked(given, given.ln())
    };
    let value = ln(value.unwrap_or(&Value::None))?;
    let Some(base) = base else {
        return Ok(Value::Float(value));
    };
    match ln(base)? {
        0.0 => Err(error("ZeroDivisionError", "division by zero")),
        base => Ok(Value::Float(value / base)),
    }
}

fn math(functions: Functions) -> Functions {
    /// A function of `math`, for the numbers it is defined for.
    type Real = fn(f64) -> f64;
    const REAL: [(&str, Real); 12] = [
        ("sqrt", f64::sqrt),
        ("sin", f64::sin),
        ("cos", f64::cos),
        ("tan", f64::tan),
        ("asin", f64::asin),
        ("acos", f64::acos),
        ("atan", f64::atan),
        ("exp", f64::exp),
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
                let given = real(arguments.get(0).unwrap_or(&Value::None))?;
                let result = checked(given, function(given))?;
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
                    _ => {
                        let given = real(arguments.get(0).unwrap_or(&Value::None))?;
                        Ok(Value::Int(int_of_float(function(given))?))
                    }
                }
            })
            .quick(&name);
    }
    functions
        .with("math.log", |arguments| log(&arguments))
        .quick("math.log")
}
