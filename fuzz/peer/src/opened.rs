//! Payloads deserialized to values.

use core::fmt::{self, Write as _};
use core::hash::Hasher as _;
use std::hash::DefaultHasher;

use crate::message::{Message as _, pickle_payload};
use bytes::Bytes;
use daskwire::compression::Codec;
use daskwire_messages::{Array, Serialized, Value};

use crate::input::{Choices, repeated, wire_len};
use crate::messages;
use daskwire_fuzz::budget::{Budget, Linear};

/// The budget for opening an uncompressed payload and using its value. The base
/// covers the expansion of shared nodes of a short pickle.
pub(crate) const BUDGET: Budget = Budget {
    memory_len: Linear {
        base: 192 << 20,
        per_byte: 2 << 10,
    },
    allocated_len: Linear {
        base: 512 << 20,
        per_byte: 16 << 10,
    },
    steps: Linear {
        base: 1 << 28,
        per_byte: 1 << 12,
    },
};

/// Opens the payloads of a message and checks their values.
///
/// The input: an unused byte, then the frames of a message.
pub(crate) fn values(input: &[u8]) {
    let mut choices = Choices(input);
    choices.byte();
    let frames = choices.frames();
    let value = messages::BUDGET.check(wire_len(&frames), || {
        let value = Value::decode(&frames).ok();
        value.inspect(hold)
    });
    let Some(value) = value else { return };
    let mut payloads = Vec::new();
    collect(&value, &mut payloads);
    for payload in payloads {
        let len = payload.header().len() + wire_len(payload.frames());
        budget(payload).check(len, || {
            let _ = payload.to_string();
            if let Ok(value) = payload.open() {
                hold(&value);
                write_again(&value);
            }
            // An array of objects.
            if let Ok(items) = Vec::<Value>::try_from(Value::Serialized(payload.clone())) {
                items.iter().for_each(hold);
            }
        });
    }
}

/// The budget for a payload: compressed data may expand by the ratio of its
/// codec.
fn budget(payload: &Serialized) -> Budget {
    let has = |name: &[u8]| {
        let mut windows = payload.header().windows(name.len());
        windows.any(|window| window == name)
    };
    let factor = |codec: Codec| match codec {
        Codec::Zstd => 256,
        Codec::Zlib => 8,
        _ => 2,
    };
    let codecs = [Codec::Lz4, Codec::Snappy, Codec::Zlib, Codec::Zstd];
    let factors = codecs
        .into_iter()
        .filter(|codec| has(codec.name().as_bytes()))
        .map(factor);
    BUDGET.times(factors.max().unwrap_or(1))
}

fn collect<'v>(value: &'v Value, into: &mut Vec<&'v Serialized>) {
    match value {
        Value::Serialized(payload) => into.push(payload),
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
            items.iter().for_each(|item| collect(item, into));
        }
        Value::Dict(entries) => entries.iter().for_each(|(key, value)| {
            collect(key, into);
            collect(value, into);
        }),
        _ => {}
    }
}

/// A formatter sink that discards its input.
struct Discard(usize);

impl fmt::Write for Discard {
    fn write_str(&mut self, string: &str) -> fmt::Result {
        self.0 += string.len();
        Ok(())
    }
}

/// Checks that any value can be printed, measured, cloned and dropped.
pub(crate) fn hold(value: &Value) {
    let mut discard = Discard(0);
    write!(discard, "{value}").expect("nothing fails");
    let copy = value.clone();
    assert_eq!(copy.nbytes(), value.nbytes());
    assert_eq!(copy.type_name(), value.type_name());
}

/// Checks that a value round-trips.
pub(crate) fn write_again(value: &Value) {
    // A serialized value is unchanged.
    if matches!(value, Value::Serialized(_)) {
        return;
    }
    let Ok(written) = Serialized::of(value) else {
        return;
    };
    let read = |written: &Serialized| {
        let read = written.open().expect("what was written can be read");
        Serialized::of(&read).expect("what was read can be written")
    };
    // The arrays of payloads in it are in the first pickle and out of band in
    // the second.
    let second = read(&written);
    let third = read(&second);
    // Sharing may differ. NaN is not equal to itself but prints the same.
    let shown = |written: &Serialized| {
        let mut digest = Digest(DefaultHasher::new());
        let value = written.open().expect("it was read before");
        write!(digest, "{value}").expect("nothing fails");
        digest.0.finish()
    };
    assert_eq!(shown(&third), shown(&second));
}

/// A formatter sink that hashes its input.
struct Digest(DefaultHasher);

impl fmt::Write for Digest {
    fn write_str(&mut self, string: &str) -> fmt::Result {
        self.0.write(string.as_bytes());
        Ok(())
    }
}

/// Checks that pickled values round-trip, and that any pickle can be read.
///
/// The input: a flag, then a pickle or choices for a value.
pub(crate) fn pickled(input: &[u8]) {
    let mut choices = Choices(input);
    let kind = choices.byte();
    match kind % 4 {
        0 => {
            let mut value_count = 0;
            let value = value(&mut choices, 8, &mut value_count);
            BUDGET.check(input.len() + 16 * value_count, || {
                hold(&value);
                write_again(&value);
            });
        }
        kind => {
            let pickle: Bytes = match kind {
                1 => Bytes::copy_from_slice(choices.0),
                _ => repeated(choices.0).into(),
            };
            BUDGET.check(pickle.len(), || {
                if let Ok(value) = pickle_payload(pickle.clone()).open() {
                    hold(&value);
                    write_again(&value);
                }
            });
        }
    }
}

/// A value from choices; counts its parts.
pub(crate) fn value(choices: &mut Choices<'_>, depth: usize, count: &mut usize) -> Value {
    *count += 1;
    let kind = choices.below(if depth == 0 { 14 } else { 22 });
    let mut items = |choices: &mut Choices<'_>| -> Vec<Value> {
        let len = choices.below(8);
        (0..len).map(|_| value(choices, depth - 1, count)).collect()
    };
    match kind {
        0 => Value::None,
        1 => Value::Bool(choices.byte() & 1 == 1),
        2 => Value::Int(i128::from(choices.byte())),
        3 => Value::Int(i128::from(choices.u64().cast_signed()) << (choices.byte() % 64)),
        4 => {
            let len = choices.below(40);
            Value::LargeInt(Bytes::copy_from_slice(choices.bytes(len)))
        }
        5 => Value::Float(f64::from_bits(choices.u64())),
        6 => Value::Complex(f64::from_bits(choices.u64()), f64::from_bits(choices.u64())),
        7 | 8 => {
            let len = choices.below(300);
            Value::from(String::from_utf8_lossy(choices.bytes(len)).into_owned())
        }
        9 => {
            let len = choices.below(300);
            Value::Bytes(Bytes::copy_from_slice(choices.bytes(len)))
        }
        10 => {
            let len = choices.below(300);
            Value::ByteArray(Bytes::copy_from_slice(choices.bytes(len)))
        }
        11..=13 => array(choices),
        14 | 15 => Value::List(items(choices).into()),
        16 => Value::Tuple(items(choices).into()),
        17 => Value::Set(items(choices).into()),
        18 => Value::FrozenSet(items(choices).into()),
        19 => {
            let len = choices.below(6);
            let mut next = || value(choices, depth - 1, count);
            Value::Dict((0..len).map(|_| (next(), next())).collect())
        }
        20 => {
            // A payload in a value, which is opened for pickling.
            let inner = value(choices, depth - 1, count);
            Serialized::of(&inner).map_or(Value::None, Value::Serialized)
        }
        _ => Value::Serialized(pickle_payload(Bytes::copy_from_slice({
            let len = choices.below(64);
            choices.bytes(len)
        }))),
    }
}

fn array(choices: &mut Choices<'_>) -> Value {
    let shape: Vec<usize> = (0..choices.below(4)).map(|_| choices.below(5)).collect();
    let count = shape.iter().product();
    let array = match choices.below(3) {
        0 => {
            let elements: Vec<u8> = (0..count).map(|_| choices.byte()).collect();
            Array::from_slice(&shape, &elements)
        }
        1 => {
            let elements: Vec<i64> = (0..count).map(|_| choices.byte().into()).collect();
            Array::from_slice(&shape, &elements)
        }
        _ => {
            let elements: Vec<f64> = (0..count).map(|_| f64::from_bits(choices.u64())).collect();
            Array::from_vec(&shape, elements)
        }
    };
    let array = array.expect("as many elements as the shape says");
    Value::Array(array.with_writeable(choices.byte() & 1 == 1))
}
