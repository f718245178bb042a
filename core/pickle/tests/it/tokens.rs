//! The opcodes of a pickle, one line each, in the format of
//! `core/tests/vectors/pickle_tokens.py`.

use daskwire_pickle::{Argument, Token};
use sha2::{Digest as _, Sha256};

/// One line, without a line feed.
#[allow(unreachable_pub, reason = "a module of several tests")]
pub fn line(token: &Token<'_>) -> String {
    let line = format!(
        "{} {} {}",
        token.offset,
        token.opcode,
        argument(&token.argument)
    );
    line.trim_end().to_owned()
}

fn argument(argument: &Argument<'_>) -> String {
    match *argument {
        Argument::None => String::new(),
        Argument::Bool(value) => if value { "True" } else { "False" }.to_owned(),
        Argument::Int(value) => value.to_string(),
        Argument::BigInt(value) => shown(value.as_bytes()),
        Argument::Decimal(value) => {
            let digits = value.as_bytes().iter().filter(|byte| byte.is_ascii_digit());
            let digits: String = digits.map(|&byte| char::from(byte)).collect();
            let digits = digits.trim_start_matches('0');
            match (value.as_bytes().first(), digits) {
                (_, "") => "0".to_owned(),
                (Some(b'-'), digits) => format!("-{digits}"),
                (_, digits) => digits.to_owned(),
            }
        }
        Argument::Float(value) => float(value),
        Argument::DecimalFloat(number) => float(number.to_f64().expect("it is short")),
        Argument::Bytes(bytes)
        | Argument::ByteString(bytes)
        | Argument::ByteArray(bytes)
        | Argument::Line(bytes) => shown(bytes),
        Argument::Str(text) => shown(text.as_bytes()),
        Argument::Global { module, name } => {
            format!("{} {}", shown(module.as_bytes()), shown(name.as_bytes()))
        }
        Argument::Index(value) | Argument::Length(value) => value.to_string(),
        Argument::Code(value) => value.to_string(),
        Argument::Version(value) => value.to_string(),
        _ => unreachable!("an argument that these tests do not know"),
    }
}

fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    format!("{:016x}", value.to_bits())
}

fn shown(bytes: &[u8]) -> String {
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    match bytes.len() {
        0 => "-".to_owned(),
        1..=40 => hex(bytes),
        len => format!("{len}:{}", hex(&Sha256::digest(bytes))),
    }
}
