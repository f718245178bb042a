//! Tests of the reader: pickles of CPython compared with `pickletools`, and
//! hostile pickles.

use std::path::Path;

use daskwire_pickle::{
    ArgumentForm, Data, Limits, Opcode, OutOfBandReader, PickleError, PickleErrorKind, Reader,
    Token,
};
use serde_json::Value;

/// One pickle of `vectors/pickles`.
pub(crate) struct Vector {
    pub(crate) name: String,
    pub(crate) pickle: Vec<u8>,
    tokens: Vec<String>,
    /// The out-of-band buffers, if any.
    pub(crate) buffers: Option<Vec<Vec<u8>>>,
    read_only: Vec<bool>,
}

pub(crate) fn vectors() -> Vec<Vector> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/pickles");
    let mut vectors = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder of pickles") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a readable file");
        for line in text.lines() {
            let json: Value = serde_json::from_str(line).expect("JSON lines");
            let list = |value: &Value| value.as_array().cloned();
            let text = |value: &Value| value.as_str().expect("text").to_owned();
            vectors.push(Vector {
                name: format!(
                    "{} {}, protocol {}",
                    path.display(),
                    json["name"],
                    json["protocol"]
                ),
                pickle: unhex(&text(&json["pickle"])),
                tokens: json["tokens"]
                    .as_array()
                    .expect("a list")
                    .iter()
                    .map(text)
                    .collect(),
                buffers: list(&json["buffers"])
                    .map(|buffers| buffers.iter().map(|hex| unhex(&text(hex))).collect()),
                read_only: list(&json["readonly"])
                    .unwrap_or_default()
                    .iter()
                    .map(|value| value.as_bool().expect("a boolean"))
                    .collect(),
            });
        }
    }
    assert!(vectors.len() >= 550, "only {} pickles", vectors.len());
    vectors
}

fn unhex(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    digits
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("ASCII");
            u8::from_str_radix(pair, 16).expect("hex")
        })
        .collect()
}

/// All opcodes, and the error if there was one.
fn read(mut reader: Reader<'_>) -> (Vec<Token<'_>>, Option<PickleError>) {
    let mut tokens = Vec::new();
    loop {
        match reader.next_token() {
            Ok(Some(token)) => tokens.push(token),
            Ok(None) => return (tokens, None),
            Err(error) => {
                assert_eq!(reader.next_token(), Err(error), "it fails again");
                assert_eq!(reader.position(), error.offset, "it stays where it was");
                return (tokens, Some(error));
            }
        }
    }
}

fn reader(pickle: &[u8]) -> Reader<'_> {
    Reader::new(pickle).text_opcodes(true)
}

#[test]
fn opcodes_and_arguments_match_pickletools() {
    let mut seen = std::collections::HashSet::new();
    for vector in vectors() {
        let (tokens, error) = read(reader(&vector.pickle));
        assert_eq!(error, None, "{}", vector.name);
        let lines: Vec<String> = tokens.iter().map(crate::tokens::line).collect();
        assert_eq!(lines, vector.tokens, "{}", vector.name);
        let mut end = 0;
        for token in &tokens {
            assert_eq!(token.offset, end, "{}", vector.name);
            end += token.len;
            seen.insert(token.opcode);
        }
        assert_eq!(end, vector.pickle.len(), "{}", vector.name);
    }
    // Current versions of Python do not write these; other tests cover them.
    let unwritten = [
        Opcode::BinString,
        Opcode::ShortBinString,
        Opcode::BinBytes8,
        Opcode::BinUnicode8,
        Opcode::Dup,
        Opcode::Inst,
        Opcode::Obj,
        Opcode::PersId,
        Opcode::BinPersId,
        Opcode::String,
    ];
    for opcode in Opcode::ALL {
        assert_ne!(
            unwritten.contains(opcode),
            seen.contains(opcode),
            "{opcode}"
        );
    }
}

#[test]
fn every_truncation_is_an_error_after_the_same_tokens() {
    for vector in vectors() {
        for pickle in [&vector.pickle, &without_frames(&vector.pickle)] {
            cut(&vector.name, pickle);
        }
    }
}

/// A truncated frame is an error at once; without frames, other errors occur.
fn without_frames(pickle: &[u8]) -> Vec<u8> {
    let (tokens, _) = read(reader(pickle));
    let others = tokens.iter().filter(|token| token.opcode != Opcode::Frame);
    others
        .flat_map(|token| &pickle[token.offset..token.offset + token.len])
        .copied()
        .collect()
}

fn cut(name: &str, pickle: &[u8]) {
    let (whole, _) = read(reader(pickle));
    let step = if pickle.len() > 4096 { 61 } else { 1 };
    for len in (0..pickle.len()).step_by(step) {
        let (tokens, error) = read(reader(&pickle[..len]));
        let error = error.unwrap_or_else(|| panic!("{name} cut at {len}"));
        let lines = |tokens: &[Token<'_>]| -> Vec<_> {
            // Not the arguments: NaN is not equal to itself.
            let parts = tokens
                .iter()
                .map(|token| (token.offset, token.len, token.opcode));
            parts.collect()
        };
        assert!(tokens.len() < whole.len());
        assert_eq!(lines(&tokens), lines(&whole[..tokens.len()]));
        assert_eq!(
            error.offset,
            tokens.iter().map(|token| token.len).sum::<usize>()
        );
        match error.kind {
            PickleErrorKind::MissingStop => assert_eq!(error.offset, len),
            PickleErrorKind::Truncated {
                needed, available, ..
            } => {
                assert_eq!(available, len - error.offset);
                assert!(needed > available as u64);
                assert!(needed <= whole[tokens.len()].len as u64);
            }
            PickleErrorKind::MissingLineFeed { opcode } => assert!(opcode.is_text()),
            PickleErrorKind::FrameTooLong {
                len: frame_len,
                available,
            } => {
                assert_eq!(available, len - error.offset - 9);
                assert!(frame_len > available as u64);
            }
            kind => panic!("{name} cut at {len}: {kind}"),
        }
    }
}

#[test]
fn bytes_after_stop_are_left_to_the_caller() {
    let mut reader = Reader::new(b"N.N.");
    assert_eq!(reader.trailing(), b"");
    assert!(reader.next_token().expect("NONE").is_some());
    assert_eq!(
        (reader.trailing(), reader.remaining()),
        (&b""[..], &b".N."[..])
    );
    assert!(reader.next_token().expect("STOP").is_some() && reader.is_finished());
    for _ in 0..2 {
        assert_eq!(reader.next_token(), Ok(None));
        assert_eq!((reader.trailing(), reader.position()), (&b"N."[..], 2));
    }
}

#[test]
fn text_opcodes_are_refused_by_default() {
    let argument = |opcode: Opcode| match opcode {
        Opcode::String => &b"'a'\n"[..],
        Opcode::Global | Opcode::Inst => b"os\nsystem\n",
        _ => b"1\n",
    };
    for &opcode in Opcode::ALL {
        let mut pickle = vec![b'N', opcode.byte()];
        let is_text = matches!(
            opcode.argument_form(),
            ArgumentForm::Line | ArgumentForm::TwoLines
        );
        assert_eq!(is_text, opcode.is_text());
        if is_text {
            pickle.extend_from_slice(argument(opcode));
            pickle.push(b'.');
            let (tokens, error) = read(Reader::new(&pickle));
            assert_eq!(tokens.len(), 1);
            let kind = PickleErrorKind::TextOpcode { opcode };
            assert_eq!(error, Some(PickleError { offset: 1, kind }));
            assert_eq!(read(reader(&pickle)).1, None);
        }
    }
}

/// The error of a pickle with a faulty first opcode.
fn fault(pickle: &[u8]) -> PickleErrorKind {
    let (tokens, error) = read(reader(pickle));
    let error = error.unwrap_or_else(|| panic!("{pickle:?} is read as {tokens:?}"));
    assert_eq!((tokens.len(), error.offset), (0, 0), "{error}");
    error.kind
}

#[test]
fn hostile_pickles_give_the_expected_error() {
    use PickleErrorKind as K;
    let end = |opcode, needed, available| K::Truncated {
        opcode,
        needed,
        available,
    };
    let u64_max = [0xff; 8];
    let with = |head: &[u8], tail: &[u8]| [head, tail].concat();
    for (pickle, kind) in [
        (b"".to_vec(), K::MissingStop),
        (b"\xff".to_vec(), K::UnknownOpcode { byte: 0xff }),
        (b"\x80\x06.".to_vec(), K::UnknownProtocol { version: 6 }),
        (b"\x80".to_vec(), end(Opcode::Proto, 2, 1)),
        (b"J\0\0\0".to_vec(), end(Opcode::BinInt, 5, 4)),
        (b"C\x05abc".to_vec(), end(Opcode::ShortBinBytes, 7, 5)),
        (
            b"X\xff\xff\xff\xff.".to_vec(),
            end(Opcode::BinUnicode, 5 + 0xffff_ffff, 6),
        ),
        (
            with(b"\x96", &u64_max),
            end(Opcode::ByteArray8, u64::MAX, 9),
        ),
        (
            with(b"\x8d", &u64_max),
            end(Opcode::BinUnicode8, u64::MAX, 9),
        ),
        (with(b"\x8e", &u64_max), end(Opcode::BinBytes8, u64::MAX, 9)),
        (
            with(b"\x95", &u64_max),
            K::FrameTooLong {
                len: u64::MAX,
                available: 0,
            },
        ),
        (
            b"\x95\x02\0\0\0\0\0\0\0.".to_vec(),
            K::FrameTooLong {
                len: 2,
                available: 1,
            },
        ),
        (
            b"\x8b\xff\xff\xff\xff.".to_vec(),
            K::NegativeCount {
                opcode: Opcode::Long4,
                count: -1,
            },
        ),
        (
            b"T\0\0\0\x80.".to_vec(),
            K::NegativeCount {
                opcode: Opcode::BinString,
                count: i32::MIN,
            },
        ),
        (
            b"\x8c\x03a\xed\xa0.".to_vec(),
            K::NotUtf8 {
                opcode: Opcode::ShortBinUnicode,
                valid_len: 1,
            },
        ),
        (
            b"I1".to_vec(),
            K::MissingLineFeed {
                opcode: Opcode::Int,
            },
        ),
        (
            b"cos\nsystem".to_vec(),
            K::MissingLineFeed {
                opcode: Opcode::Global,
            },
        ),
        (
            b"I\n.".to_vec(),
            K::NotAnInteger {
                opcode: Opcode::Int,
            },
        ),
        (
            b"L1LL\n.".to_vec(),
            K::NotAnInteger {
                opcode: Opcode::Long,
            },
        ),
        (b"F1e\n.".to_vec(), K::NotAFloat),
        (
            b"p-1\n.".to_vec(),
            K::MemoIndex {
                opcode: Opcode::Put,
            },
        ),
        (
            b"g18446744073709551616\n.".to_vec(),
            K::MemoIndex {
                opcode: Opcode::Get,
            },
        ),
        (b"Sabc\n.".to_vec(), K::NotQuoted),
        (b"S\"'\n.".to_vec(), K::NotQuoted),
        (
            b"S'\\xzz'\n.".to_vec(),
            K::BadEscape {
                opcode: Opcode::String,
            },
        ),
        (
            b"S'\\'\n.".to_vec(),
            K::BadEscape {
                opcode: Opcode::String,
            },
        ),
        (
            b"S'\\377'\n.".to_vec(),
            K::NotAscii {
                opcode: Opcode::String,
            },
        ),
        (
            b"V\\u12\n.".to_vec(),
            K::BadEscape {
                opcode: Opcode::Unicode,
            },
        ),
        (
            b"P\xff\n.".to_vec(),
            K::NotAscii {
                opcode: Opcode::PersId,
            },
        ),
        (
            b"i\xc3\xa9\na\n.".to_vec(),
            K::NotAscii {
                opcode: Opcode::Inst,
            },
        ),
        (
            b"c\xff\na\n.".to_vec(),
            K::NotUtf8 {
                opcode: Opcode::Global,
                valid_len: 0,
            },
        ),
    ] {
        assert_eq!(fault(&pickle), kind, "{pickle:?}");
        assert!(!kind.to_string().is_empty());
    }
}

#[test]
fn unusual_but_valid_pickles_are_read() {
    for (pickle, line) in [
        // An index that makes CPython ask for 3 GB is a number here.
        (&b"r\x00\xc2\xeb\x0b."[..], "0 LONG_BINPUT 200000000"),
        (b"\x84\xff\xff\xff\xff.", "0 EXT4 -1"),
        (b"I01\n.", "0 INT True"),
        (b"I 00\n.", "0 INT 0"),
        (b"I-0_12\n.", "0 INT -12"),
        (b"S'\n.", "0 STRING 27"),
        (b"S'\\400'\n.", "0 STRING 275c34303027"),
        (b"g01\n.", "0 GET 1"),
        (b"\x8c\x03\xed\xa0\x80.", "0 SHORT_BINUNICODE eda080"),
        (b"c\xc3\xa9\n\\\n.", "0 GLOBAL c3a9 5c"),
        (b"\x8a\0.", "0 LONG1 -"),
        (b"U\x01\xff.", "0 SHORT_BINSTRING ff"),
        (b"V\\\\u12\n.", "0 UNICODE 5c5c753132"),
    ] {
        let (tokens, error) = read(reader(pickle));
        assert_eq!(error, None, "{pickle:?}");
        assert_eq!(crate::tokens::line(&tokens[0]), line);
    }
}

#[test]
fn opcode_limit_is_enforced() {
    let limits = Limits::MICROCONTROLLER.with_opcode_count(2);
    let tight = |pickle| read(Reader::with_limits(pickle, &limits));
    assert_eq!(tight(b"N.").1, None);
    let (tokens, error) = tight(b"NN.");
    let kind = PickleErrorKind::TooManyOpcodes { limit: 2 };
    assert_eq!(
        (tokens.len(), error),
        (2, Some(PickleError { offset: 2, kind }))
    );
    // An unknown opcode is reported with and without a limit.
    assert_eq!(
        tight(b"NN\xff").1.map(|error| error.kind),
        Some(PickleErrorKind::UnknownOpcode { byte: 0xff })
    );
}

/// All data of a pickle, and the error if there was one.
fn data<'p>(pickle: &'p [u8], buffers: &'p [&[u8]]) -> (Vec<Data<'p>>, Option<PickleError>) {
    let mut items = OutOfBandReader::new(reader(pickle), buffers);
    let mut found = Vec::new();
    loop {
        match items.next_item() {
            Ok(Some(item)) => found.extend(item.data),
            Ok(None) => {
                assert_eq!(items.used_count(), buffers.len());
                return (found, None);
            }
            Err(error) => {
                assert_eq!(items.next_item(), Err(error), "it fails again");
                return (found, Some(error));
            }
        }
    }
}

#[test]
fn buffers_are_matched_in_order_and_not_copied() {
    let mut buffer_count = 0;
    for vector in vectors() {
        let Some(buffers) = &vector.buffers else {
            assert_eq!(data(&vector.pickle, &[]).1, None, "{}", vector.name);
            continue;
        };
        let buffers: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
        let (found, error) = data(&vector.pickle, &buffers);
        assert_eq!(error, None, "{}", vector.name);
        let out_of_band: Vec<&Data<'_>> =
            found.iter().filter(|data| data.buffer.is_some()).collect();
        assert_eq!(out_of_band.len(), buffers.len(), "{}", vector.name);
        for (index, data) in out_of_band.into_iter().enumerate() {
            assert_eq!(data.buffer, Some(index), "{}", vector.name);
            assert_eq!(data.read_only, vector.read_only[index], "{}", vector.name);
            // The same memory, not a copy.
            assert!(std::ptr::eq(data.bytes, buffers[index]), "{}", vector.name);
            buffer_count += 1;
        }
        for data in found.iter().filter(|data| data.buffer.is_none()) {
            assert!(vector.pickle.as_ptr_range().contains(&data.bytes.as_ptr()));
        }

        // One less, and one more.
        if let Some((_, fewer)) = buffers.split_last() {
            let error = data(&vector.pickle, fewer).1.expect("one is missing");
            let kind = PickleErrorKind::TooFewBuffers {
                buffer_count: fewer.len(),
            };
            assert_eq!(error.kind, kind);
            assert_eq!(vector.pickle[error.offset], Opcode::NextBuffer.byte());
        }
        let more = [buffers.as_slice(), &[b"more"]].concat();
        let error = data(&vector.pickle, &more).1.expect("one is left over");
        let kind = PickleErrorKind::TooManyBuffers {
            used_count: buffers.len(),
            buffer_count: more.len(),
        };
        assert_eq!((error.kind, error.offset), (kind, vector.pickle.len() - 1));
    }
    assert!(buffer_count >= 25, "only {buffer_count} buffers");
}

#[test]
fn readonly_buffer_applies_only_to_known_buffers() {
    let pickle = b"\x80\x05(\x97\x97\x98C\x01a\x96\x01\0\0\0\0\0\0\0b\x96\x01\0\0\0\0\0\0\0c\x98l.";
    let (found, error) = data(pickle, &[b"x", b"y"]);
    assert_eq!(error, None);
    let found: Vec<_> = found
        .iter()
        .map(|data| (data.bytes, data.read_only, data.buffer))
        .collect();
    let expected = [
        (&b"x"[..], false, Some(0)),
        (b"y", true, Some(1)),
        (b"a", true, None),
        (b"b", false, None),
        (b"c", true, None),
    ];
    assert_eq!(found, expected);

    // After these opcodes the top of the stack may be a buffer: accepted.
    for pickle in [
        &b"\x97\x94\x98."[..],
        b"\x97\x94N0\x98.",
        b"\x97\x94Nh\0\x98.",
        b"\x97)R\x98.",
    ] {
        let (found, error) = data(pickle, &[b"x"]);
        assert_eq!((found.len(), error), (1, None), "{pickle:?}");
        assert!(!found[0].read_only, "the memo may keep it as it was");
    }
    for pickle in [
        &b"\x98."[..],
        b"\x80\x05\x98.",
        b"N\x98.",
        b"\x8c\x01a\x94\x98.",
        b"K\x01\x85\x98.",
    ] {
        let (_, error) = data(pickle, &[]);
        let error = error.unwrap_or_else(|| panic!("{pickle:?}"));
        assert_eq!(error.kind, PickleErrorKind::NoBuffer);
        assert!(!error.is_caller_fault());
        assert_eq!(error.offset, pickle.len() - 2);
    }
}

/// CPython's pickles of the example in its documentation; `pep_574.rs` tests
/// the PEP itself.
#[test]
fn zero_copy_bytearrays_of_cpython_are_read() {
    // `ZeroCopyByteArray`: in band a bytearray in the stream, out of band a
    // buffer, and the same data both ways.
    let found: Vec<Vector> = vectors()
        .into_iter()
        .filter(|vector| vector.name.contains("\"pep-574\", protocol 5"))
        .collect();
    assert_eq!(found.len(), 3);
    let wanted = [&b"abc"[..], &b"defg".repeat(10)];
    for vector in &found {
        let buffers = vector.buffers.as_deref().unwrap_or_default();
        let buffers: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
        let (data, error) = data(&vector.pickle, &buffers);
        assert_eq!(error, None);
        assert!(data.iter().all(|data| !data.read_only));
        let bytes: Vec<&[u8]> = data.iter().map(|data| data.bytes).collect();
        assert_eq!(bytes, wanted);
    }
    let out_of_band = |vector: &Vector| vector.buffers.as_ref().map_or(0, Vec::len);
    assert_eq!(found.iter().map(out_of_band).collect::<Vec<_>>(), [0, 2, 1]);
}
