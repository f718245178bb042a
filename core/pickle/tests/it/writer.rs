//! Tests of the writer against CPython.

use std::collections::BTreeMap;
use std::path::Path;

use daskwire_pickle::BufferTooSmall;
use daskwire_pickle::{
    Framing, Mutability, PickleBuffer, PickleBufferError, Placement, Protocol, WriteError, Writer,
    WriterLevel, WriterOptions,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const READ_ONLY: Mutability = Mutability::ReadOnly;
const WRITABLE: Mutability = Mutability::Writable;

fn written_as(options: WriterOptions, mut write: impl FnMut(&mut Writer<'_, '_>)) -> Vec<u8> {
    let mut levels = [WriterLevel::EMPTY; 16];
    let mut measure = Writer::with_options(&mut [], &mut levels, options);
    write(&mut measure);
    let len = measure.measure().expect("a pickle");
    let mut pickles = [0xa5, 0x5a].map(|poison| {
        let mut out = vec![poison; len + 3];
        let mut writer = Writer::with_options(&mut out, &mut levels, options);
        write(&mut writer);
        let (pickle, rest) = writer.finish_mut().expect("it fits");
        assert_eq!(pickle.len(), len, "another length was measured");
        assert_eq!(rest, [poison; 3], "it wrote after the end");
        pickle.to_vec()
    });
    assert_eq!(
        pickles[0], pickles[1],
        "what was there before is in the pickle"
    );
    std::mem::take(&mut pickles[0])
}

fn written(write: impl FnMut(&mut Writer<'_, '_>)) -> Vec<u8> {
    written_as(WriterOptions::default(), write)
}

fn unframed(write: impl FnMut(&mut Writer<'_, '_>)) -> Vec<u8> {
    let options = WriterOptions::default().with_framing(Framing::None);
    written_as(options, write)
}

fn failed(write: impl Fn(&mut Writer<'_, '_>)) -> WriteError {
    let (mut out, mut levels) = ([0; 256], [WriterLevel::EMPTY; 4]);
    let mut writer = Writer::new(&mut out, &mut levels);
    write(&mut writer);
    let error = writer.finish().expect_err("it must fail");
    // A writer that measures returns the same error.
    let mut writer = Writer::new(&mut [], &mut levels);
    write(&mut writer);
    assert_eq!(writer.measure(), Err(error));
    error
}

/// `sign * 2^bits + add` in two's complement of maximum length, and its
/// magnitude.
fn power(negative: bool, bits: usize, add: i64) -> (Vec<u8>, Vec<u8>) {
    let mut value = vec![0_u8; 300];
    value[bits / 8] = 1 << (bits % 8);
    let negate = |value: &[u8]| {
        let mut value: Vec<u8> = value.iter().map(|byte| !byte).collect();
        for byte in &mut value {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                break;
            }
        }
        value
    };
    if negative {
        value = negate(&value);
    }
    let mut carry = 0;
    for (index, byte) in value.iter_mut().enumerate() {
        let other = i128::from(add).to_le_bytes()[index.min(15)];
        let sum = u16::from(*byte) + u16::from(other) + carry;
        *byte = (sum & 0xff) as u8;
        carry = sum >> 8;
    }
    let magnitude = if value[299] < 0x80 {
        value.clone()
    } else {
        negate(&value)
    };
    (value, magnitude)
}

type Write = Box<dyn Fn(&mut Writer<'_, '_>)>;

/// Test cases, each with a function that writes it.
#[derive(Default)]
struct Cases(BTreeMap<String, Vec<Write>>);

impl Cases {
    fn add(&mut self, name: impl Into<String>, write: impl Fn(&mut Writer<'_, '_>) + 'static) {
        self.0.entry(name.into()).or_default().push(Box::new(write));
    }
}

fn entries(writer: &mut Writer<'_, '_>, count: usize) {
    for key in 0..count as u64 {
        writer.u64(key).none();
    }
}

fn numbers(writer: &mut Writer<'_, '_>, count: usize) {
    for number in 0..count as u64 {
        writer.u64(number);
    }
}

/// `type(self)._reconstruct` of the PEP's example.
fn reconstruct(writer: &mut Writer<'_, '_>) {
    writer.reduce();
    writer.reduce().global("builtins", "getattr");
    writer
        .tuple(2)
        .global("example", "ZeroCopyByteArray")
        .str("_reconstruct");
    writer.tuple(1);
}

fn cases() -> Cases {
    let mut cases = Cases::default();
    scalars(&mut cases);
    containers(&mut cases);
    frames(&mut cases);
    objects(&mut cases);
    shared(&mut cases);
    buffers(&mut cases);
    cases
}

fn scalars(cases: &mut Cases) {
    cases.add("None", |writer| {
        writer.none();
    });
    cases.add("True", |writer| {
        writer.bool(true);
    });
    cases.add("False", |writer| {
        writer.bool(false);
    });
    for bits in [
        0, 7, 8, 15, 16, 31, 32, 63, 64, 119, 120, 127, 128, 2031, 2032, 2039, 2040,
    ] {
        for (negative, add) in [false, true]
            .into_iter()
            .flat_map(|sign| [-1, 0, 1].map(|add| (sign, add)))
        {
            let sign = if negative { '-' } else { '+' };
            let name = format!("int {sign}1*2^{bits}{add:+}");
            let (value, magnitude) = power(negative, bits, add);
            let is_negative = value[299] >= 0x80;
            let small: [u8; 16] = value[..16].try_into().unwrap();
            if value[16..].iter().all(|byte| *byte == value[299])
                && (small[15] >= 0x80) == is_negative
            {
                let value = i128::from_le_bytes(small);
                cases.add(&name, move |writer| {
                    writer.i128(value);
                });
                if let Ok(value) = i64::try_from(value) {
                    cases.add(&name, move |writer| {
                        writer.i64(value);
                    });
                }
                if let Ok(value) = u64::try_from(value) {
                    cases.add(&name, move |writer| {
                        writer.u64(value);
                    });
                }
                if value == 0 {
                    cases.add(&name, |writer| {
                        writer.int_bytes(&[]);
                    });
                    cases.add(&name, |writer| {
                        writer.int_magnitude(true, &[]);
                    });
                }
            }
            cases.add(&name, move |writer| {
                writer.int_bytes(&value);
            });
            cases.add(&name, move |writer| {
                writer.int_magnitude(is_negative, &magnitude);
            });
        }
    }
    for (name, value) in [
        ("0.0", 0.0),
        ("-0.0", -0.0),
        ("1.5", 1.5),
        ("-1e+300", -1e300),
        ("inf", f64::INFINITY),
        ("nan", f64::NAN),
    ] {
        cases.add(format!("float {name}"), move |writer| {
            writer.f64(value);
        });
    }
    cases.add("str ''", |writer| {
        writer.str("");
    });
    cases.add(r"str '\xe4\u20ac\U0001f600'", |writer| {
        writer.str("ä€😀");
    });
    cases.add(r"str '\xe4\u20ac\U0001f600'", |writer| {
        writer.str_bytes("ä€😀".as_bytes());
    });
    cases.add(r"str '\ud800'", |writer| {
        writer.str_bytes(b"\xed\xa0\x80");
    });
    cases.add(r"str 'a\udfffb\udc00\ud800'", |writer| {
        writer.str_bytes(b"a\xed\xbf\xbfb\xed\xb0\x80\xed\xa0\x80");
    });
    for count in [1, 255, 256, 65530, 65531, 65532, 65536, 70000] {
        cases.add(format!("str of {count}"), move |writer| {
            writer.str(&"x".repeat(count));
        });
    }
    for count in [0, 1, 255, 256, 65530, 65531, 65532, 65536, 70000] {
        cases.add(format!("bytes of {count}"), move |writer| {
            writer.bytes(&b"x".repeat(count));
        });
        cases.add(format!("bytes of {count}"), move |writer| {
            let data = b"x".repeat(count);
            writer.buffer(PickleBuffer::new(&data, READ_ONLY), |_| Placement::InBand);
        });
    }
    for count in [0, 1, 255, 256, 65526, 65527, 65528, 65536, 70000] {
        cases.add(format!("bytearray of {count}"), move |writer| {
            writer.bytearray(&b"x".repeat(count));
        });
        cases.add(format!("bytearray of {count}"), move |writer| {
            let data = b"x".repeat(count);
            writer.buffer(PickleBuffer::new(&data, WRITABLE), |_| Placement::InBand);
        });
    }
    for count in [0, 1, 255, 256, 65531, 65532] {
        cases.add(format!("bytearray of {count} in 4"), move |writer| {
            writer.bytearray(&b"x".repeat(count));
        });
        cases.add(format!("bytes of {count} in 4"), move |writer| {
            writer.bytes(&b"x".repeat(count));
        });
    }
}

fn containers(cases: &mut Cases) {
    for count in [0, 1, 2, 3, 4, 5, 999, 1000, 1001, 2000, 2001] {
        cases.add(format!("tuple of {count}"), move |writer| {
            numbers(writer.tuple(count), count);
        });
        cases.add(format!("list of {count}"), move |writer| {
            numbers(writer.list(count), count);
        });
        cases.add(format!("set of {count}"), move |writer| {
            numbers(writer.set(count), count);
        });
        cases.add(format!("frozenset of {count}"), move |writer| {
            numbers(writer.frozenset(count), count);
        });
        cases.add(format!("dict of {count}"), move |writer| {
            entries(writer.dict(count), count);
        });
        cases.add(format!("deque of {count}"), move |writer| {
            writer.extend(count).reduce();
            numbers(writer.global("collections", "deque").tuple(0), count);
        });
        cases.add(format!("OrderedDict of {count}"), move |writer| {
            writer.update(count).reduce();
            entries(writer.global("collections", "OrderedDict").tuple(0), count);
        });
    }
    cases.add("deep tuples", |writer| {
        writer.tuple(2);
        writer.tuple(2).tuple(2).tuple(0).tuple(1).i64(1);
        writer.tuple(2).i64(1).tuple(2).i64(2).i64(3);
        writer.tuple(4);
        numbers_from(writer, 1, 3);
        writer.tuple(2).i64(4).tuple(4);
        numbers_from(writer, 5, 4);
    });
    cases.add("deep lists", |writer| {
        writer.list(4).list(0);
        writer.list(2).list(1).i64(1);
        writer.list(2).i64(2).list(2).i64(3).list(1).i64(4);
        writer.dict(1).i64(1).dict(1).i64(2).dict(1).i64(3).dict(0);
        writer.list(2).set(0).set(1).i64(5);
    });
    // Explicit `end` calls make no difference.
    cases.add("deep lists", |writer| {
        writer.list(4).list(0).end();
        writer.list(2).list(1).i64(1).end();
        writer.list(2).i64(2).list(2).i64(3).list(1).i64(4);
        writer.end().end().end().end();
        writer.dict(1).i64(1).dict(1).i64(2).dict(1).i64(3).dict(0);
        writer.end().end().end().end();
        writer.list(2).set(0).end().set(1).i64(5).end().end().end();
    });
}

fn numbers_from(writer: &mut Writer<'_, '_>, first: i64, count: i64) {
    for number in first..first + count {
        writer.i64(number);
    }
}

fn frames(cases: &mut Cases) {
    for count in [16, 17, 100] {
        cases.add(format!("{count} strings of 4096"), move |writer| {
            writer.list(count);
            for letter in (b'A'..=b'Z').cycle().take(count) {
                writer.str_bytes(&[letter; 4096]);
            }
        });
    }
    cases.add("long between short", |writer| {
        writer.list(6).i64(1).bytes(&[b'a'; 70000]).i64(2);
        writer.bytes(&[b'b'; 70000]).bytes(&[b'c'; 70000]);
        writer.bytes(&[b'd'; 100]);
    });
    cases.add("frame before the end", |writer| {
        writer.tuple(65_536);
        for _ in 0..65_536 {
            writer.i64(300);
        }
    });
    cases.add("long at once", |writer| {
        writer.tuple(1).bytes(&[b'a'; 70000]);
    });
    cases.add("frames of tuples", |writer| {
        writer.list(10_000);
        for number in 20_000..30_000 {
            writer.tuple(2).i64(number);
            writer.tuple(2).i64(number).i64(number);
        }
    });
}

fn objects(cases: &mut Cases) {
    for name in ["global", "global in 4"] {
        cases.add(name, |writer| {
            writer.global("builtins", "int");
        });
        cases.add(name, |writer| {
            writer.stack_global().str("builtins").str("int");
        });
    }
    cases.add("dotted global", |writer| {
        writer.reduce().global("builtins", "getattr").tuple(2);
        writer.global("collections", "OrderedDict").str("fromkeys");
    });
    cases.add("type of None", |writer| {
        writer.reduce().global("builtins", "type").tuple(1).none();
    });
    cases.add("exception", |writer| {
        writer.reduce().global("builtins", "ValueError");
        writer.tuple(1).str("boom");
    });
    cases.add("state", |writer| {
        writer.build().newobj().global("example", "State").tuple(0);
        writer.dict(2).str("ab").i64(1).str("cd").none();
    });
    cases.add("new with keywords", |writer| {
        writer.newobj_ex().global("example", "NewEx");
        writer.tuple(1).i64(1).dict(1).str("name").i64(2);
    });
    cases.add("defaultdict", |writer| {
        writer.update(1);
        writer.reduce().global("collections", "defaultdict");
        writer.tuple(1).global("builtins", "list");
        writer.i64(1).list(1).i64(2);
    });
    cases.add("range", |writer| {
        writer.reduce().global("builtins", "range");
        writer.tuple(3).i64(1).i64(5).i64(2);
    });
    cases.add("complex", |writer| {
        writer.reduce().global("builtins", "complex");
        writer.tuple(2).f64(1.5).f64(-2.0);
    });
}

fn shared(cases: &mut Cases) {
    cases.add("shared list", |writer| {
        writer.list(2).list(1);
        let list = writer.memoize();
        writer.str("same").get(list);
    });
    cases.add("shared tuple", |writer| {
        writer.dict(2).i64(1).tuple(2).str("one").str("two").end();
        let pair = writer.memoize();
        writer.i64(2).get(pair);
    });
    cases.add("list in itself", |writer| {
        writer.list(1);
        let list = writer.memoize();
        writer.get(list);
    });
    cases.add("300 shared strings", |writer| {
        writer.list(2).list(300);
        for number in 0..300 {
            writer.str(&format!("value {number}"));
            assert_eq!(writer.memoize(), number);
        }
        writer.list(300);
        for index in (0..300).rev() {
            writer.get(index);
        }
    });
}

fn buffers(cases: &mut Cases) {
    cases.add("PEP bytearray in band", |writer| {
        reconstruct(writer);
        let buffer = PickleBuffer::new(b"datadata", WRITABLE);
        writer.buffer(buffer, |_| Placement::InBand);
    });
    cases.add("PEP bytearray in 4", |writer| {
        reconstruct(writer);
        writer.bytearray(b"datadata");
    });
    cases.add("PEP bytearray out of band", |writer| {
        reconstruct(writer);
        write_out_of_band(writer, b"datadata", WRITABLE);
    });
    cases.add("writable out of band", |writer| {
        write_out_of_band(writer, b"abc", WRITABLE);
    });
    cases.add("read-only out of band", |writer| {
        write_out_of_band(writer, b"abc", READ_ONLY);
    });
    cases.add("both out of band", |writer| {
        writer.list(4);
        write_out_of_band(writer, b"ab", READ_ONLY);
        writer.i64(1);
        write_out_of_band(writer, b"cd", WRITABLE);
        write_out_of_band(writer, b"", READ_ONLY);
    });
}

fn write_out_of_band(writer: &mut Writer<'_, '_>, data: &[u8], mutability: Mutability) {
    let mut asked = None;
    writer.buffer(PickleBuffer::new(data, mutability), |buffer| {
        asked = Some(buffer);
        Placement::OutOfBand
    });
    let asked = asked.expect("the callback was called");
    assert_eq!(asked.as_bytes().as_ptr(), data.as_ptr(), "it was copied");
    assert_eq!(asked.mutability(), mutability);
}

fn hex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2));
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// Whether a pickle has the length and the digest of a case.
fn is_pickle(pickle: &[u8], case: &Value) -> bool {
    let digest = Sha256::digest(pickle);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    case["len"] == pickle.len() && case["sha256"] == digest.as_str()
}

#[test]
fn output_matches_cpython() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/pickles-written/pickles.json");
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let expected: Vec<Value> = serde_json::from_str(&text).unwrap();
    let Cases(mut cases) = cases();
    for case in &expected {
        let name = case["name"].as_str().unwrap();
        let options = WriterOptions::default().with_protocol(match case["protocol"].as_u64() {
            Some(4) => Protocol::V4,
            _ => Protocol::V5,
        });
        let writes = cases
            .remove(name)
            .unwrap_or_else(|| panic!("no case writes {name}"));
        for write in writes {
            let pickle = written_as(options, &write);
            if let Some(expected) = case["pickle"].as_str() {
                assert_eq!(pickle, hex(expected), "{name}");
            } else {
                assert!(is_pickle(&pickle, case), "{name}: {}", pickle.len());
            }
        }
    }
    assert!(cases.is_empty(), "not in the file: {:?}", cases.keys());
    assert!(expected.len() > 250, "{} cases", expected.len());
}

#[test]
fn buffers_of_every_length_are_too_small_or_sufficient() {
    let mut levels = [WriterLevel::EMPTY; 8];
    for (name, writes) in cases().0 {
        // Long ones at the lengths where an opcode begins or ends.
        for write in writes {
            let options = WriterOptions::default().with_protocol(if name.ends_with("in 4") {
                Protocol::V4
            } else {
                Protocol::V5
            });
            let whole = written_as(options, &write);
            let lengths: Vec<usize> = if whole.len() < 600 {
                (0..=whole.len()).collect()
            } else {
                (0..20)
                    .chain(65_530..65_560)
                    .chain(whole.len() - 20..=whole.len())
                    .filter(|len| *len <= whole.len())
                    .collect()
            };
            for available in lengths {
                let mut out = vec![0xa5; available];
                let mut writer = Writer::with_options(&mut out, &mut levels, options);
                write(&mut writer);
                let expected = if available == whole.len() {
                    Ok(&whole[..])
                } else {
                    Err(WriteError::BufferTooSmall(BufferTooSmall {
                        needed: whole.len(),
                        available,
                    }))
                };
                assert_eq!(writer.finish(), expected, "{name} in {available} bytes");
            }
        }
    }
}

#[test]
fn without_frames_the_opcodes_are_the_same() {
    for (name, writes) in cases().0 {
        for write in writes {
            if name.ends_with("in 4") {
                continue;
            }
            let (framed, bare) = (written(&write), unframed(&write));
            if framed.len() < 1000 {
                // One frame at most, right after the first opcode.
                let start = if bare.len() < 6 { 2 } else { 11 };
                assert_eq!(framed[start..], bare[2..], "{name}");
            } else {
                assert!(framed.len() >= bare.len(), "{name}");
            }
            assert_eq!(framed[..2], bare[..2], "{name}");
        }
    }
}

#[test]
fn frame_lengths_are_correct() {
    // Values of 3 bytes: the frame is 1 byte longer than 64 KiB.
    let pickle = written(|writer| {
        writer.tuple(65_536);
        for _ in 0..65_536 {
            writer.i64(300);
        }
    });
    let mut rest = &pickle[2..];
    let mut lengths = Vec::new();
    while let [0x95, a, b, c, 0, 0, 0, 0, 0, after @ ..] = rest {
        let len = u32::from_le_bytes([*a, *b, *c, 0]) as usize;
        lengths.push(len);
        rest = &after[len..];
    }
    assert_eq!(lengths, [65_536, 65_538, 65_536]);
    assert_eq!(rest, b".", "too little for a frame");
}

#[test]
fn excess_values_are_errors() {
    let too_many = |write: fn(&mut Writer<'_, '_>), at| {
        assert_eq!(failed(write), WriteError::TooMany { at });
    };
    too_many(
        |writer| {
            writer.none().none();
        },
        3,
    );
    too_many(
        |writer| {
            writer.list(1).i64(1).i64(2);
        },
        // The list has been ended, and there is a header.
        9 + 6,
    );
    too_many(
        |writer| {
            writer.none().end();
        },
        3,
    );
    too_many(
        |writer| {
            writer.tuple(0).end().end();
        },
        3,
    );
    // Calls after an error have no effect.
    let first = failed(|writer| {
        writer.none().none();
        writer.get(9).memoize();
        writer.list(3).end().end().end().str_bytes(b"\xff");
        for _ in 0..20 {
            writer.tuple(1);
        }
    });
    assert_eq!(first, WriteError::TooMany { at: 3 });
}

#[test]
fn missing_values_are_errors() {
    let owed = |write: fn(&mut Writer<'_, '_>)| match failed(write) {
        WriteError::Unfinished { owed, .. } => owed,
        other => panic!("{other:?}"),
    };
    assert_eq!(owed(|_| {}), 1);
    assert_eq!(
        owed(|writer| {
            writer.list(3).i64(1);
        }),
        2
    );
    assert_eq!(
        owed(|writer| {
            writer.dict(2).i64(1);
        }),
        3
    );
    assert_eq!(
        owed(|writer| {
            writer.tuple(5).dict(3000).reduce().global("a", "b");
        }),
        4 + 5999 + 1
    );
    assert_eq!(
        owed(|writer| {
            writer.list(2).tuple(3).i64(1).end();
        }),
        2,
        "of what is ended"
    );
    assert_eq!(
        owed(|writer| {
            writer.dict(usize::MAX).i64(1);
        }),
        usize::MAX as u64 - 1
    );
    assert_eq!(
        owed(|writer| {
            writer.tuple(usize::MAX).list(usize::MAX);
        }),
        (usize::MAX as u64 - 1).saturating_add(usize::MAX as u64)
    );
    for begin in [
        |writer: &mut Writer<'_, '_>| writer.build().owed(),
        |writer: &mut Writer<'_, '_>| writer.reduce().owed(),
        |writer: &mut Writer<'_, '_>| writer.newobj().owed(),
        |writer: &mut Writer<'_, '_>| writer.stack_global().owed(),
        |writer: &mut Writer<'_, '_>| writer.newobj_ex().owed() - 1,
        |writer: &mut Writer<'_, '_>| writer.extend(1).owed(),
        |writer: &mut Writer<'_, '_>| writer.update(1).owed() - 1,
    ] {
        let mut levels = [WriterLevel::EMPTY; 1];
        assert_eq!(begin(&mut Writer::new(&mut [], &mut levels)), 2);
    }
}

#[test]
fn levels_bound_the_depth() {
    for levels in 0..4 {
        let mut levels = vec![WriterLevel::EMPTY; levels];
        let supplied = levels.len();
        let mut writer = Writer::new(&mut [], &mut levels);
        writer.list(1).tuple(1).dict(0);
        let expected = match supplied {
            0 => Err(WriteError::TooDeep { at: 3, levels: 0 }),
            1 => Err(WriteError::TooDeep { at: 3, levels: 1 }),
            2 => Err(WriteError::TooDeep { at: 4, levels: 2 }),
            _ => Ok(16),
        };
        assert_eq!(writer.measure(), expected);
    }
    // Complete values take no level.
    let mut levels = [WriterLevel::EMPTY; 2];
    let mut writer = Writer::new(&mut [], &mut levels);
    writer.list(3).tuple(1).i64(1).tuple(0).set(0);
    assert!(writer.measure().is_ok());
}

#[test]
fn only_complete_values_can_be_memoized() {
    let nothing = |write: fn(&mut Writer<'_, '_>)| {
        let error = failed(write);
        assert!(
            matches!(error, WriteError::NothingToMemoize { .. }),
            "{error:?}"
        );
    };
    nothing(|writer| {
        writer.memoize();
    });
    nothing(|writer| {
        writer.none().memoize();
        writer.memoize();
    });
    // Not complete.
    nothing(|writer| {
        writer.tuple(1).memoize();
    });
    nothing(|writer| {
        writer.frozenset(0).memoize();
    });
    nothing(|writer| {
        writer.reduce().memoize();
    });
    nothing(|writer| {
        writer.extend(0).memoize();
    });
    let missing = failed(|writer| {
        writer.list(2).none().memoize();
        writer.get(1);
    });
    assert_eq!(
        missing,
        WriteError::NotMemoized {
            at: 15,
            index: 1,
            count: 1
        }
    );
    // The last value and the container that it completes are separate values.
    let pickle = unframed(|writer| {
        writer.list(3).tuple(1).str("x");
        let text = writer.memoize();
        let tuple = writer.end().memoize();
        assert_eq!((text, tuple), (0, 1));
        writer.get(tuple).get(text);
    });
    assert_eq!(pickle, b"\x80\x05](\x8c\x01x\x94\x85\x94h\x01h\x00e.");
}

#[test]
fn strings_are_utf_8_with_surrogates() {
    for (bytes, valid_len) in [
        (&b"\xff"[..], 0),
        (b"ab\x80", 2),
        (b"\xed\xa0\x80\xed\xa0", 3),
        (b"\xed\xbf\xbf\xc0\x80", 3),
        ("ä\u{d7ff}".as_bytes().split_last().unwrap().1, 2),
    ] {
        let expected = WriteError::NotUtf8 { at: 2, valid_len };
        assert_eq!(
            failed(|writer| {
                writer.str_bytes(bytes);
            }),
            expected
        );
    }
}

#[test]
fn protocol_4_refuses_buffers() {
    for mutability in [READ_ONLY, WRITABLE] {
        for placement in [Placement::InBand, Placement::OutOfBand] {
            let options = WriterOptions::default().with_protocol(Protocol::V4);
            let mut levels = [WriterLevel::EMPTY; 1];
            let mut writer = Writer::with_options(&mut [], &mut levels, options);
            let mut asked = false;
            let buffer = PickleBuffer::new(b"abc", mutability);
            writer.tuple(1).buffer(buffer, |_| {
                asked = true;
                placement
            });
            assert!(!asked);
            assert_eq!(
                writer.measure(),
                Err(WriteError::NeedsProtocol5 { at: 2 }),
                "{buffer:?}"
            );
        }
    }
}

#[test]
fn buffers_are_contiguous() {
    let data = [0; 24];
    let of = |shape: &[usize], strides: &[isize]| {
        PickleBuffer::with_strides(&data, WRITABLE, 4, shape, strides).map(|buffer| {
            assert_eq!(buffer.as_bytes().as_ptr(), data.as_ptr());
            buffer.as_bytes().len()
        })
    };
    let apart = |axis| Err(PickleBufferError::NotContiguous { axis });
    assert_eq!(of(&[6], &[4]), Ok(24));
    assert_eq!(of(&[2, 3], &[12, 4]), Ok(24));
    assert_eq!(of(&[2, 3], &[4, 8]), Ok(24));
    assert_eq!(
        of(&[2, 1, 3], &[12, 999, 4]),
        Ok(24),
        "nothing is out of band"
    );
    assert_eq!(of(&[1, 6, 1], &[-7, 4, 0]), Ok(24));
    assert_eq!(of(&[6], &[8]), apart(0));
    assert_eq!(of(&[6], &[-4]), apart(0));
    assert_eq!(of(&[6], &[0]), apart(0));
    assert_eq!(of(&[2, 3], &[24, 4]), apart(0));
    assert_eq!(of(&[2, 3], &[12, 8]), apart(1));
    assert_eq!(of(&[3, 2, 1], &[4, 4, 4]), apart(0));
    let length = |described| {
        Err(PickleBufferError::Length {
            described,
            available: 24,
        })
    };
    assert_eq!(of(&[5], &[4]), length(Some(20)));
    assert_eq!(of(&[0], &[4]), length(Some(0)));
    assert_eq!(of(&[], &[]), length(Some(4)));
    assert_eq!(of(&[usize::MAX, 2], &[8, 4]), length(None));
    let strides = PickleBufferError::StrideCount {
        axes: 2,
        strides: 1,
    };
    assert_eq!(of(&[2, 3], &[4]), Err(strides));
    let empty = PickleBuffer::with_strides(&[], READ_ONLY, 8, &[3, 0], &[-5, 7]);
    assert_eq!(empty, Ok(PickleBuffer::new(&[], READ_ONLY)));
}

#[test]
fn error_messages_name_the_remedy() {
    let texts = [
        WriteError::from(BufferTooSmall {
            needed: 9,
            available: 3,
        })
        .to_string(),
        WriteError::Unfinished { at: 7, owed: 2 }.to_string(),
        WriteError::TooMany { at: 7 }.to_string(),
        WriteError::TooDeep { at: 7, levels: 4 }.to_string(),
        WriteError::NotMemoized {
            at: 7,
            index: 3,
            count: 1,
        }
        .to_string(),
        PickleBufferError::NotContiguous { axis: 1 }.to_string(),
    ];
    assert_eq!(
        texts,
        [
            "the pickle: the buffer supplied is too small: 9 needed, 3 available",
            "the pickle is not finished at byte 7: 2 more values were declared",
            "more values were written or ended than were declared, at byte 7 of the pickle",
            "more than 4 values are open at byte 7 of the pickle: supply more than 4 levels to the \
             writer",
            "no value was memoized under 3 at byte 7 of the pickle, only 1 values before it",
            "the buffer is not contiguous: the stride of axis 1 leaves gaps or repeats; copy it \
             first",
        ]
    );
}
