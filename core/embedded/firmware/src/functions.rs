//! The functions that tasks can call, by `operator.methodcaller("native:NAME")`.

use daskwire_embedded::value::{Args, Failure, Out, Value};
use daskwire_embedded::worker::Function;

use super::clock;

/// All functions, by name.
pub const FUNCTIONS: &[(&str, Function)] = &[
    ("hypot", hypot),
    ("div", div),
    ("sum", sum),
    ("scale", scale),
    ("reversed", reversed),
    ("uptime", uptime),
    ("spin", spin),
];

/// The hypotenuse of a triangle with two sides.
fn hypot(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    let [x, y] = args.floats()?;
    out.float(libm::hypot(x, y))
}

/// A quotient.
fn div(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    let [x, y] = args.floats()?;
    if y == 0.0 {
        return Err(Failure {
            class: "ZeroDivisionError",
            message: "float division by zero",
        });
    }
    out.float(x / y)
}

/// The sum of an array or of bytes.
fn sum(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    match args.exactly()? {
        [Value::Array(array)] => out.float(array.to_f64s().sum()),
        [Value::Bytes(bytes)] => out.int(bytes.iter().map(|byte| i64::from(*byte)).sum()),
        _ => Err(Failure::type_error("sum takes an array or bytes")),
    }
}

/// An array times a number.
fn scale(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    let [Value::Array(array), by] = args.exactly()? else {
        return Err(Failure::type_error("scale takes an array and a number"));
    };
    let by = by.to_f64();
    let by = by.ok_or(Failure::type_error("scale takes an array and a number"))?;
    out.floats(array.to_f64s().map(|x| x * by))
}

/// Bytes in reverse order.
fn reversed(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    let [Value::Bytes(bytes)] = args.exactly()? else {
        return Err(Failure::type_error("reversed takes bytes"));
    };
    out.bytes(bytes)?;
    out.as_mut_bytes().reverse();
    Ok(())
}

/// Milliseconds since the board was started.
fn uptime(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    let [] = args.exactly()?;
    out.int(clock::milliseconds().into())
}

/// Does nothing for some seconds, as a long computation would.
fn spin(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    let [Value::Int(seconds @ 0..=3600)] = args.exactly()? else {
        return Err(Failure::type_error("spin takes up to 3600 seconds"));
    };
    let start = clock::milliseconds();
    while i64::from(clock::milliseconds().wrapping_sub(start)) < seconds.saturating_mul(1000) {
        clock::sleep();
    }
    out.int(*seconds)
}
