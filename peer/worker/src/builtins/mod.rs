//! Rust implementations of Python functions, with the results of Python 3.12.

mod container;
mod format;
mod index;
mod number;

use core::cmp::Ordering;

use daskwire_messages::{RemoteError, Value};

use super::arguments::Arguments;
use super::functions::Functions;

use container::{check_comparable, contains, equal, getitem, items, len, order, truth};
use format::str_of;
use number::{
    Number, abs, add, float, floordiv, int_of_float, modulo, mul, neg, number, pow, sub, truediv,
};

pub(super) use container::distinct;

type Result<T> = core::result::Result<T, RemoteError>;

/// Maximum length of a repeated string, bytes or list, in bytes.
const MAX_LEN: usize = 1 << 30;

/// Python's maximum for `time.sleep`, in seconds.
const MAX_SLEEP: f64 = 9_223_372_036.0;

/// Registers all functions.
pub(super) fn register(functions: Functions) -> Functions {
    let functions = operators(functions);
    let functions = builtins(functions);
    let functions = functions.with("math.sqrt", |arguments| {
        arguments.exactly(1)?;
        let value = real(arguments.get(0).unwrap_or(&Value::None))?;
        if value < 0.0 {
            return Err(error("ValueError", "math domain error"));
        }
        Ok(Value::Float(value.sqrt()))
    });
    let functions = functions
        .quick("math.sqrt")
        .with("time.sleep", |arguments| {
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
        Some(totals) if totals.has_objects => Err(not_covered("instances of classes")),
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
        format!("this worker does not run Python, and its functions in Rust do not support {what}");
    error("NotImplementedError", &message)
}

fn too_large() -> RemoteError {
    not_covered("integers of more than 127 bits")
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
    const BINARY: [(&str, Binary); 15] = [
        ("add", add),
        ("sub", sub),
        ("mul", mul),
        ("truediv", truediv),
        ("floordiv", floordiv),
        ("mod", modulo),
        ("pow", pow),
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
    ];
    const UNARY: [(&str, Unary); 4] = [
        ("neg", neg),
        ("abs", abs),
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
    functions
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
        Value::Array(_) | Value::Serialized(_) => {
            not_covered("converting arrays and objects to numbers")
        }
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
        return Err(not_covered("key functions"));
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
        return Err(not_covered("key functions"));
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

fn int(value: &Value) -> Result<Value> {
    match number(value) {
        Some(Number::Int(value)) => Ok(Value::Int(value)),
        Some(Number::Float(value)) => Ok(Value::Int(int_of_float(value)?)),
        _ => {
            let message =
                "int() argument must be a string, a bytes-like object or a real number, not ";
            Err(not_a_number(value, message))
        }
    }
}

fn float_of(value: &Value) -> Result<Value> {
    match number(value) {
        Some(Number::Int(value)) => Ok(Value::Float(float(value))),
        Some(Number::Float(value)) => Ok(Value::Float(value)),
        _ => Err(not_a_number(
            value,
            "float() argument must be a string or a real number, not ",
        )),
    }
}

/// Returns the error for an argument that is not a number, but may be the digits of one.
fn not_a_number(value: &Value, message: &str) -> RemoteError {
    match value {
        Value::Str(_) | Value::Bytes(_) | Value::ByteArray(_) => {
            not_covered("reading a number from a string")
        }
        value => wrong_number(value, message),
    }
}

fn builtins(functions: Functions) -> Functions {
    const UNARY: [(&str, Unary); 2] = [("abs", abs), ("len", |value| Ok(Value::from(len(value)?)))];
    /// A type, the names of its arguments, and its value without arguments. Only the first
    /// argument is supported.
    type Constructor = (&'static str, Unary, [&'static str; 3], usize, Value);
    let constructors: [Constructor; 6] = [
        (
            "bool",
            |value| Ok(Value::Bool(truth(value)?)),
            [""; 3],
            1,
            Value::Bool(false),
        ),
        ("int", int, ["", "base", ""], 2, Value::Int(0)),
        ("float", float_of, [""; 3], 1, Value::Float(0.0)),
        (
            "str",
            |value| Ok(Value::from(str_of(value)?)),
            ["object", "encoding", "errors"],
            3,
            Value::from(""),
        ),
        (
            "list",
            |value| Ok(Value::List(items(value)?.into())),
            [""; 3],
            1,
            Value::List([].into()),
        ),
        (
            "tuple",
            |value| Ok(Value::Tuple(items(value)?.into())),
            [""; 3],
            1,
            Value::Tuple([].into()),
        ),
    ];
    let mut functions = functions;
    for (name, function) in UNARY {
        functions = unary(functions, &format!("builtins.{name}"), function);
    }
    for (name, function, names, max_count, empty) in constructors {
        functions = functions.with(format!("builtins.{name}"), move |arguments| {
            let [value, second, third] = arguments.bind(names, 0, max_count)?;
            if second.or(third).is_some() {
                return Err(not_covered(&format!("{name}() with several arguments")));
            }
            value.map_or_else(|| Ok(empty.clone()), function)
        });
    }
    functions
        .with("builtins.pow", |arguments| {
            let [base, exponent, modulus] = arguments.bind(["base", "exp", "mod"], 2, 3)?;
            if not_none(modulus).is_some() {
                return Err(not_covered("pow() with a modulus"));
            }
            pow(
                base.unwrap_or(&Value::None),
                exponent.unwrap_or(&Value::None),
            )
        })
        .with("builtins.sum", |arguments| sum(&arguments))
        .with("builtins.max", |arguments| {
            extreme(&arguments, "max", Ordering::Greater)
        })
        .with("builtins.min", |arguments| {
            extreme(&arguments, "min", Ordering::Less)
        })
        .with("builtins.sorted", |arguments| sorted(&arguments))
        .quick("builtins.abs")
        .quick("builtins.int")
        .quick("builtins.float")
        .quick("builtins.bool")
        .quick("builtins.pow")
}
