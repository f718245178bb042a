//! Functions in Rust that `daskwire worker` offers in addition to
//! [`Functions::builtins`].
//!
//! Bytes and arrays are borrowed; no function copies its arguments.

use std::collections::HashMap;

use bytes::Bytes;
use daskwire::compression::{Compression, Lz4, Snappy};
use daskwire_numpy::Element;
use daskwire_peer::worker::{Arguments, Functions};
use daskwire_peer::{Array, RemoteError, Value};
use sha2::{Digest as _, Sha256};
use twox_hash::XxHash3_64;

/// The names and descriptions listed by `daskwire worker --functions`.
pub(super) const LIST: &[(&str, &str)] = &[
    (
        "crc32(data)",
        "checksum of bytes or an array; also as zlib.crc32",
    ),
    (
        "sha256(data)",
        "SHA-256 of bytes or an array, in hexadecimal",
    ),
    ("xxh3(data)", "XXH3-64 of bytes or an array"),
    (
        "lz4_len(data)",
        "bytes that data takes, compressed with lz4",
    ),
    (
        "snappy_len(data)",
        "bytes that data takes, compressed with snappy",
    ),
    ("count_bytes(data)", "length in bytes"),
    ("count_lines(string)", "number of lines"),
    ("count_words(string)", "number of words"),
    (
        "words(string)",
        "number of occurrences of each word, as a dictionary",
    ),
    (
        "parse_csv(string)",
        "comma-separated numbers as a two-dimensional array",
    ),
    ("parse_json(string)", "a JSON document as a value"),
    (
        "sum(array)",
        "sum of all elements; also of lists and other iterables, as Python's",
    ),
    ("mean(array)", "mean of all elements"),
    ("minimum(array)", "smallest element"),
    ("maximum(array)", "largest element"),
    ("norm(array)", "square root of the sum of squares"),
    ("dot(a, b)", "sum of products of the elements of two arrays"),
    (
        "histogram(array, bins, low, high)",
        "number of elements in each of equal bins",
    ),
    (
        "linspace(start, stop, count)",
        "an array of equally spaced numbers",
    ),
    (
        "noise(seed, count)",
        "an array of pseudorandom numbers from 0 to 1",
    ),
];

/// Returns the functions in Rust that `daskwire worker` offers, with
/// [`Functions::builtins`].
pub(super) fn functions() -> Functions {
    Functions::builtins()
        .with("crc32", |arguments| Ok(crc32(&data(&arguments)?).into()))
        .with("zlib.crc32", |arguments| {
            Ok(crc32(&data(&arguments)?).into())
        })
        .with("sha256", |arguments| {
            let digest = Sha256::digest(data(&arguments)?);
            let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            Ok(digits.into())
        })
        .with("xxh3", |arguments| {
            Ok(XxHash3_64::oneshot(&data(&arguments)?).into())
        })
        .with("lz4_len", |arguments| {
            compressed_len(&mut Lz4::new(), &data(&arguments)?)
        })
        .with("snappy_len", |arguments| {
            compressed_len(&mut Snappy::new(), &data(&arguments)?)
        })
        .with("count_bytes", |arguments| {
            Ok(data(&arguments)?.len().into())
        })
        .with("count_lines", |arguments| {
            let data = data(&arguments)?;
            let ends = data.iter().filter(|byte| **byte == b'\n').count();
            let is_open = data.last().is_some_and(|byte| *byte != b'\n');
            Ok((ends + usize::from(is_open)).into())
        })
        .with("count_words", |arguments| {
            Ok(string(&arguments)?.split_whitespace().count().into())
        })
        .with("words", |arguments| Ok(words(&string(&arguments)?)))
        .with("parse_csv", |arguments| parse_csv(&string(&arguments)?))
        .with("parse_json", |arguments| {
            crate::command::json::parse(&string(&arguments)?)
                .map_err(|error| RemoteError::new("ValueError", &error.to_string()))
        })
        .function("mean", |array: Array| -> Result<f64, RemoteError> {
            let mut sum = 0.0;
            each(&array, |x| sum += x)?;
            Ok(sum / count(&array)?)
        })
        .function("minimum", |array: Array| -> Result<f64, RemoteError> {
            count(&array)?;
            let mut min = f64::INFINITY;
            each(&array, |x| min = min.min(x))?;
            Ok(min)
        })
        .function("maximum", |array: Array| -> Result<f64, RemoteError> {
            count(&array)?;
            let mut greatest = f64::NEG_INFINITY;
            each(&array, |x| greatest = greatest.max(x))?;
            Ok(greatest)
        })
        .function("norm", |array: Array| -> Result<f64, RemoteError> {
            let mut sum = 0.0;
            each(&array, |x| sum += x * x)?;
            Ok(sum.sqrt())
        })
        .with("sum", sum)
        .function("dot", dot)
        .function("histogram", histogram)
        .function("linspace", linspace)
        .function("noise", noise)
}

fn wrong(what: &str) -> RemoteError {
    RemoteError::new("ValueError", what)
}

/// The bytes of the only argument.
fn data(arguments: &Arguments) -> Result<Bytes, RemoteError> {
    arguments.exactly(1)?;
    match arguments.get(0) {
        Some(Value::Bytes(data) | Value::ByteArray(data)) => Ok(data.clone()),
        Some(Value::Array(array)) => Ok(array.bytes().clone()),
        Some(Value::Str(string)) => Ok(Bytes::copy_from_slice(string.as_bytes())),
        other => Err(RemoteError::new(
            "TypeError",
            &format!(
                "a {} has no bytes",
                other.map_or("NoneType", Value::type_name)
            ),
        )),
    }
}

/// The only argument as a string; bytes are decoded as UTF-8.
fn string(arguments: &Arguments) -> Result<String, RemoteError> {
    arguments.exactly(1)?;
    if let Some(Value::Str(string)) = arguments.get(0) {
        return Ok(string.as_ref().to_owned());
    }
    let data = data(arguments)?;
    let string = str::from_utf8(&data)
        .map_err(|error| RemoteError::new("UnicodeDecodeError", &format!("not UTF-8: {error}")))?;
    Ok(string.to_owned())
}

/// zlib's CRC-32 (ISO 3309, ITU-T V.42), computed eight bits at a time.
fn crc32(data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let mut value = index as u32;
            let mut bit = 0;
            while bit < 8 {
                let carry = value & 1;
                value >>= 1;
                if carry != 0 {
                    value ^= 0xedb8_8320;
                }
                bit += 1;
            }
            table[index] = value;
            index += 1;
        }
        table
    };
    !data.iter().fold(u32::MAX, |crc, byte| {
        let [low, ..] = (crc ^ u32::from(*byte)).to_le_bytes();
        TABLE[usize::from(low)] ^ (crc >> 8)
    })
}

fn compressed_len(codec: &mut dyn Compression, data: &[u8]) -> Result<Value, RemoteError> {
    let room = codec
        .max_compressed_len(data.len())
        .ok_or_else(|| wrong("too long for the codec"))?;
    let len = codec
        .compress(data, &mut vec![0; room])
        .map_err(|error| wrong(&error.to_string()))?;
    Ok(len.into())
}

fn words(string: &str) -> Value {
    let mut counts: HashMap<&str, u64> = HashMap::new();
    for word in string.split_whitespace() {
        *counts.entry(word).or_default() += 1;
    }
    let mut counts: Vec<(&str, u64)> = counts.into_iter().collect();
    counts.sort_unstable();
    Value::dict(counts)
}

fn parse_csv(csv: &str) -> Result<Value, RemoteError> {
    let mut numbers = Vec::new();
    let (mut row_count, mut column_count) = (0, 0);
    for (index, line) in csv.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let before = numbers.len();
        for field in line.split(',') {
            let number: f64 = field
                .trim()
                .parse()
                .map_err(|_| wrong(&format!("line {}: {field:?} is not a number", index + 1)))?;
            numbers.push(number);
        }
        let found = numbers.len() - before;
        if row_count == 0 {
            column_count = found;
        } else if found != column_count {
            return Err(wrong(&format!(
                "line {} has {found} fields, but the first has {column_count}",
                index + 1
            )));
        }
        row_count += 1;
    }
    Ok(Array::from_vec(&[row_count, column_count], numbers)?.into())
}

/// The number of elements of an array, which must not be empty.
#[expect(clippy::cast_precision_loss, reason = "a divisor")]
fn count(array: &Array) -> Result<f64, RemoteError> {
    if array.is_empty() {
        return Err(wrong("the array is empty"));
    }
    Ok(array.len() as f64)
}

/// Calls `f` with each element, in unspecified order.
fn each(array: &Array, mut f: impl FnMut(f64)) -> Result<(), RemoteError> {
    let view = array.view()?;
    macro_rules! try_types {
        ($($type:ty)*) => {$(
            if <$type>::is_of(array.dtype()) {
                // Iterating in memory order is faster, but visits repeated elements only once.
                match view.memory_elements::<$type>() {
                    Ok(elements) if !view.is_broadcast() => elements.for_each(|x| f(x as f64)),
                    _ => view.elements::<$type>()?.for_each(|x| f(x as f64)),
                }
                return Ok(());
            }
        )*};
    }
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_lossless,
        trivial_numeric_casts,
        reason = "all numbers as floats"
    )]
    {
        try_types!(f64 f32 i64 i32 i16 i8 u64 u32 u16 u8);
    }
    Err(RemoteError::new(
        "TypeError",
        &format!("an array of {} has no numbers", array.dtype()),
    ))
}

fn sum(arguments: Arguments) -> Result<Value, RemoteError> {
    if let (1, Some(Value::Array(array))) = (arguments.len(), arguments.get(0)) {
        let mut sum = 0.0;
        each(array, |x| sum += x)?;
        return Ok(sum.into());
    }
    // Other values are summed as in Python.
    match Functions::builtins().call("builtins.sum", arguments) {
        Some(result) => result,
        None => Err(RemoteError::new("NotImplementedError", "sum")),
    }
}

fn dot(a: Array, b: Array) -> Result<f64, RemoteError> {
    if a.shape() != b.shape() {
        let message = format!("shapes {:?} and {:?} differ", a.shape(), b.shape());
        return Err(wrong(&message));
    }
    let (a, b) = (a.view()?, b.view()?);
    // With equal strides, elements can be combined in memory order, which is several
    // times faster.
    if a.strides() == b.strides()
        && !a.is_broadcast()
        && let (Ok(a), Ok(b)) = (a.memory_elements::<f64>(), b.memory_elements::<f64>())
    {
        return Ok(a.zip(b).map(|(a, b)| a * b).sum());
    }
    let products = a.elements::<f64>()?.zip(b.elements::<f64>()?);
    Ok(products.map(|(a, b)| a * b).sum())
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number of a bin, which is checked"
)]
fn histogram(array: Array, bins: usize, low: f64, high: f64) -> Result<Array, RemoteError> {
    /// Maximum number of bins.
    const MAX_BINS: usize = 1 << 24;
    if bins == 0 || bins > MAX_BINS || low.partial_cmp(&high) != Some(core::cmp::Ordering::Less) {
        return Err(wrong("expected 1 to 16777216 bins, and low less than high"));
    }
    let mut counts = vec![0_i64; bins];
    let per_bin = bins as f64 / (high - low);
    each(&array, |x| {
        if (low..=high).contains(&x) {
            // The last bin includes both its ends, as in numpy.
            let bin = (((x - low) * per_bin) as usize).min(bins - 1);
            counts[bin] += 1;
        }
    })?;
    Ok(Array::from_vec(&[bins], counts)?)
}

/// Maximum number of elements of a created array, which take 8 GiB.
const MAX_ELEMENTS: usize = 1 << 30;

#[expect(clippy::cast_precision_loss, reason = "a step")]
fn linspace(start: f64, stop: f64, count: usize) -> Result<Array, RemoteError> {
    if count > MAX_ELEMENTS {
        return Err(wrong("too many elements"));
    }
    let step = (stop - start) / count.saturating_sub(1).max(1) as f64;
    let numbers: Vec<f64> = (0..count).map(|i| start + step * i as f64).collect();
    Ok(Array::from_vec(&[count], numbers)?)
}

#[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
fn noise(seed: u64, count: usize) -> Result<Array, RemoteError> {
    if count > MAX_ELEMENTS {
        return Err(wrong("too many elements"));
    }
    // SplitMix64
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    };
    let numbers: Vec<f64> = (0..count).map(|_| next()).collect();
    Ok(Array::from_vec(&[count], numbers)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, values: Vec<Value>) -> Result<Value, String> {
        let result = functions().call(name, values.into_iter().collect());
        let result = result.expect("function is registered");
        result.map_err(|error| error.to_string())
    }

    fn array(numbers: &[f64]) -> Value {
        Array::from_slice(&[numbers.len()], numbers)
            .expect("short")
            .into()
    }

    #[test]
    fn results_are_those_of_python() {
        let data = || Value::bytes(&b"123456789"[..]);
        let numbers = || array(&[3.0, -4.0, 0.5]);
        for (name, values, result) in [
            ("crc32", vec![data()], Value::from(0xcbf4_3926_u32)),
            ("zlib.crc32", vec![Value::bytes(&b""[..])], 0.into()),
            (
                "sha256",
                vec!["abc".into()],
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".into(),
            ),
            ("count_bytes", vec![numbers()], 24.into()),
            ("count_lines", vec!["a\nb\n".into()], 2.into()),
            ("count_lines", vec!["a\nb".into()], 2.into()),
            ("count_words", vec![" a b\tc\n".into()], 3.into()),
            (
                "words",
                vec!["b a b".into()],
                Value::dict([("a", 1), ("b", 2)]),
            ),
            (
                "parse_json",
                vec!["[1, null]".into()],
                Value::List([1.into(), Value::None].into()),
            ),
            ("sum", vec![numbers()], Value::from(-0.5)),
            ("sum", vec![Value::list([1, 2])], 3.into()),
            ("mean", vec![array(&[1.0, 2.0])], Value::from(1.5)),
            ("minimum", vec![numbers()], Value::from(-4.0)),
            ("maximum", vec![numbers()], Value::from(3.0)),
            ("norm", vec![array(&[3.0, 4.0])], Value::from(5.0)),
            ("dot", vec![numbers(), numbers()], Value::from(25.25)),
        ] {
            assert_eq!(call(name, values), Ok(result), "{name}");
        }
    }

    #[test]
    fn compressed_lengths_are_those_of_what_can_be_read_again() {
        let zeros = || vec![Value::bytes(vec![0; 100_000])];
        for name in ["lz4_len", "snappy_len"] {
            let len = call(name, zeros()).expect("bytes");
            let len = usize::try_from(len).expect("an int");
            assert!((10..10_000).contains(&len), "{name}: {len}");
        }
    }

    #[test]
    fn arrays_are_made_and_parsed() {
        let Ok(Value::Array(parsed)) = call("parse_csv", vec!["1, 2\n3,4e1\n\n".into()]) else {
            panic!("an array")
        };
        assert_eq!(parsed.shape(), [2, 2]);
        assert_eq!(parsed.to_vec::<f64>(), Ok(vec![1.0, 2.0, 3.0, 40.0]));
        assert_eq!(
            call("linspace", vec![0.0.into(), 1.0.into(), 3.into()]),
            Ok(array(&[0.0, 0.5, 1.0]))
        );
        let values = array(&[0.0, 0.5, 1.0, 2.0, 4.0, 5.0]);
        let counts = call("histogram", vec![values, 2.into(), 0.0.into(), 4.0.into()]);
        let expected = Array::from_slice(&[2], &[3_i64, 2]).expect("two");
        assert_eq!(counts, Ok(expected.into()));
        let Ok(Value::Array(noise)) = call("noise", vec![1.into(), 1000.into()]) else {
            panic!("an array")
        };
        let noise = noise.to_vec::<f64>().expect("floats");
        assert!(noise.iter().all(|x| (0.0..1.0).contains(x)));
    }

    #[test]
    fn errors_name_their_cause() {
        for (name, values, expected) in [
            ("crc32", vec![1.into()], "TypeError: a int has no bytes"),
            ("mean", vec![array(&[])], "ValueError: the array is empty"),
            (
                "parse_csv",
                vec!["1\nx".into()],
                "ValueError: line 2: \"x\" is not a number",
            ),
            (
                "parse_csv",
                vec!["1\n2,3".into()],
                "ValueError: line 2 has 2 fields",
            ),
            ("parse_json", vec!["{".into()], "ValueError: EOF"),
            ("dot", vec![array(&[1.0]), array(&[])], "ValueError: shapes"),
            (
                "histogram",
                vec![array(&[1.0]), 0.into(), 0.0.into(), 1.0.into()],
                "ValueError: expected 1 to",
            ),
            (
                "noise",
                vec![0.into(), usize::MAX.into()],
                "ValueError: too many elements",
            ),
        ] {
            let error = call(name, values).expect_err(name);
            assert!(error.starts_with(expected), "{name}: {error}");
        }
    }

    #[test]
    fn the_list_names_what_there_is() {
        let functions = functions();
        let names: Vec<&str> = functions.names().collect();
        for (name, _) in LIST {
            let name = name.split('(').next().unwrap_or_default();
            assert!(names.contains(&name), "{name}");
        }
    }
}
