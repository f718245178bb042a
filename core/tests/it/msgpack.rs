//! The whole of MessagePack, as Dask uses it and as anyone may write it.

use daskwire::msgpack::{
    Kind, Malformed, MalformedKind, RawStr, Reader, Token, WriteError, Writer,
};
use daskwire::{BufferTooSmall, Limits};
use rmpv::Value;

mod differential;

use differential::{Exact, walk};

fn one(bytes: &[u8]) -> Result<Token<'_>, Malformed> {
    let mut reader = Reader::new(bytes);
    let token = reader.token()?;
    assert_eq!(reader.position(), bytes.len());
    Ok(token)
}

fn written(write: impl Fn(&mut Writer<'_>)) -> Vec<u8> {
    let mut measure = Writer::new(&mut []);
    write(&mut measure);
    let mut out = vec![0xa5; measure.len()];
    let mut writer = Writer::new(&mut out);
    write(&mut writer);
    writer.finish().expect("measured").to_vec()
}

fn str_of(bytes: &[u8]) -> Token<'_> {
    Token::Str(RawStr::new(bytes))
}

fn error(at: usize, kind: MalformedKind) -> Malformed {
    Malformed { at, kind }
}

/// One document for each of the 256 head bytes, but for 0xc1.
fn every_head() -> Vec<Vec<u8>> {
    (0..=0xff_u8)
        .filter(|head| *head != 0xc1)
        .map(|head| {
            let mut bytes = vec![head];
            bytes.extend(match head {
                0x80..=0x8f => vec![0xc0; usize::from(head & 0x0f) * 2],
                0x90..=0x9f => vec![0xc0; usize::from(head & 0x0f)],
                0xa0..=0xbf => vec![b'x'; usize::from(head & 0x1f)],
                0xc4 | 0xd9 => vec![2, b'a', b'b'],
                0xc5 | 0xda => vec![0, 2, b'a', b'b'],
                0xc6 | 0xdb => vec![0, 0, 0, 2, b'a', b'b'],
                0xc7 => vec![3, 5, b'a', b'b', b'c'],
                0xc8 => vec![0, 3, 5, b'a', b'b', b'c'],
                0xc9 => vec![0, 0, 0, 3, 5, b'a', b'b', b'c'],
                0xcc | 0xd0 => vec![0x81],
                0xcd | 0xd1 => vec![0x81, 2],
                0xca | 0xce | 0xd2 => vec![0x81, 2, 3, 4],
                0xcb | 0xcf | 0xd3 => vec![0x81, 2, 3, 4, 5, 6, 7, 8],
                0xd4..=0xd8 => {
                    let mut ext = vec![b'e'; 1 << (head - 0xd4)];
                    ext.insert(0, 0xfe);
                    ext
                }
                0xdc => vec![0, 2, 1, 2],
                0xdd => vec![0, 0, 0, 2, 1, 2],
                0xde => vec![0, 1, 1, 2],
                0xdf => vec![0, 0, 0, 1, 1, 2],
                _ => vec![],
            });
            bytes
        })
        .collect()
}

#[test]
fn heads_match_the_specification() {
    // PROTOCOL MSGPACK-2
    for value in 0..=0x7f {
        assert_eq!(one(&[value]), Ok(Token::UInt(u64::from(value))));
    }
    for value in -32..=-1_i8 {
        assert_eq!(one(&value.to_be_bytes()), Ok(Token::Int(i64::from(value))));
    }
    assert_eq!(one(b"\xc0"), Ok(Token::Nil));
    assert_eq!(one(b"\xc2"), Ok(Token::Bool(false)));
    assert_eq!(one(b"\xc3"), Ok(Token::Bool(true)));
    // PROTOCOL MSGPACK-3
    assert_eq!(one(b"\xcc\x81"), Ok(Token::UInt(0x81)));
    assert_eq!(one(b"\xcd\x81\x02"), Ok(Token::UInt(0x8102)));
    assert_eq!(one(b"\xce\x81\x02\x03\x04"), Ok(Token::UInt(0x8102_0304)));
    assert_eq!(
        one(b"\xcf\x81\x02\x03\x04\x05\x06\x07\x08"),
        Ok(Token::UInt(0x8102_0304_0506_0708))
    );
    assert_eq!(one(b"\xd0\x81"), Ok(Token::Int(-127)));
    assert_eq!(one(b"\xd1\x81\x02"), Ok(Token::Int(-32_510)));
    assert_eq!(one(b"\xd2\x81\x02\x03\x04"), Ok(Token::Int(-2_130_574_588)));
    assert_eq!(
        one(b"\xd3\x81\x02\x03\x04\x05\x06\x07\x08"),
        Ok(Token::Int(i64::from_be_bytes([0x81, 2, 3, 4, 5, 6, 7, 8])))
    );
    // Signed heads with numbers that need no sign.
    assert_eq!(one(b"\xd0\x01"), Ok(Token::UInt(1)));
    assert_eq!(one(b"\xd1\x00\x01"), Ok(Token::UInt(1)));
    assert_eq!(one(b"\xd2\x00\x00\x00\x01"), Ok(Token::UInt(1)));
    assert_eq!(one(b"\xd3\0\0\0\0\0\0\0\x01"), Ok(Token::UInt(1)));
    // PROTOCOL MSGPACK-4
    assert_eq!(one(b"\xca\x3f\x80\0\0"), Ok(Token::F32(1.0)));
    assert_eq!(one(b"\xcb\x3f\xf0\0\0\0\0\0\0"), Ok(Token::F64(1.0)));
    // PROTOCOL MSGPACK-5
    for head in [
        &b"\xa2ab"[..],
        b"\xd9\x02ab",
        b"\xda\0\x02ab",
        b"\xdb\0\0\0\x02ab",
    ] {
        assert_eq!(one(head), Ok(str_of(b"ab")));
    }
    for head in [&b"\xc4\x02ab"[..], b"\xc5\0\x02ab", b"\xc6\0\0\0\x02ab"] {
        assert_eq!(one(head), Ok(Token::Bin(b"ab")));
    }
    for (head, token) in [
        (&b"\x91"[..], Token::Array(1)),
        (b"\xdc\0\x01", Token::Array(1)),
        (b"\xdd\0\0\0\x01", Token::Array(1)),
        (b"\x81", Token::Map(1)),
        (b"\xde\0\x01", Token::Map(1)),
        (b"\xdf\0\0\0\x01", Token::Map(1)),
    ] {
        let document = [head, b"\xc0\xc0"].concat();
        let mut reader = Reader::new(&document);
        assert_eq!(reader.token(), Ok(token));
        assert_eq!(reader.position(), head.len());
    }
    // PROTOCOL MSGPACK-9
    for (head, data) in [
        (&b"\xd4\xfe"[..], &b"e"[..]),
        (b"\xd5\xfe", b"ee"),
        (b"\xd6\xfe", b"eeee"),
        (b"\xd7\xfe", b"eeeeeeee"),
        (b"\xd8\xfe", b"eeeeeeeeeeeeeeee"),
        (b"\xc7\x03\xfe", b"eee"),
        (b"\xc8\0\x03\xfe", b"eee"),
        (b"\xc9\0\0\0\x03\xfe", b"eee"),
        (b"\xc7\x00\xfe", b""),
    ] {
        assert_eq!(one(&[head, data].concat()), Ok(Token::Ext(-2, data)));
    }
}

#[test]
fn every_head_is_read_as_by_rmpv_with_every_method() {
    let heads = every_head();
    assert_eq!(heads.len(), 255);
    for document in heads {
        differential::check(&document);
        let mut reader = Reader::new(&document);
        assert_eq!(reader.skip(), Ok(&document[..]), "{document:02x?}");
        assert_eq!(reader.finish(), Ok(()));
    }
}

#[test]
fn reserved_byte_is_refused_as_a_head() {
    // PROTOCOL MSGPACK-10
    assert_eq!(one(b"\xc1"), Err(error(0, MalformedKind::Reserved)));
    let document = b"\x93\x01\xc1\x02";
    assert_eq!(
        Reader::new(document).skip(),
        Err(error(2, MalformedKind::Reserved))
    );
    assert_eq!(
        Reader::new(b"\xc1").nil(),
        Err(error(0, MalformedKind::Reserved))
    );
}

#[test]
fn integers_are_written_in_the_shortest_form_and_read_back() {
    // PROTOCOL MSGPACK-3
    let unsigned = [
        (0, 1),
        (126, 1),
        (127, 1),
        (128, 2),
        (254, 2),
        (255, 2),
        (256, 3),
        (65_534, 3),
        (65_535, 3),
        (65_536, 5),
        (u64::from(u32::MAX) - 1, 5),
        (u64::from(u32::MAX), 5),
        (u64::from(u32::MAX) + 1, 9),
        (u64::MAX - 1, 9),
        (u64::MAX, 9),
    ];
    for (value, len) in unsigned {
        let bytes = written(|writer| {
            writer.u64(value);
        });
        assert_eq!(bytes.len(), len, "{value}");
        assert_eq!(Reader::new(&bytes).u64(), Ok(value));
        assert_eq!(one(&bytes), Ok(Token::UInt(value)));
        let mut theirs = Vec::new();
        rmp::encode::write_uint(&mut theirs, value).expect("written");
        assert_eq!(bytes, theirs);
        match i64::try_from(value) {
            Ok(signed) => {
                assert_eq!(Reader::new(&bytes).i64(), Ok(signed));
                assert_eq!(
                    bytes,
                    written(|writer| {
                        writer.i64(signed);
                    })
                );
            }
            Err(_) => assert_eq!(
                Reader::new(&bytes).i64(),
                Err(error(0, MalformedKind::OutOfRange))
            ),
        }
    }
    let signed = [
        (-1, 1),
        (-31, 1),
        (-32, 1),
        (-33, 2),
        (-127, 2),
        (-128, 2),
        (-129, 3),
        (-32_767, 3),
        (-32_768, 3),
        (-32_769, 5),
        (i64::from(i32::MIN) + 1, 5),
        (i64::from(i32::MIN), 5),
        (i64::from(i32::MIN) - 1, 9),
        (i64::MIN + 1, 9),
        (i64::MIN, 9),
    ];
    for (value, len) in signed {
        let bytes = written(|writer| {
            writer.i64(value);
        });
        assert_eq!(bytes.len(), len, "{value}");
        assert_eq!(Reader::new(&bytes).i64(), Ok(value));
        assert_eq!(one(&bytes), Ok(Token::Int(value)));
        let mut theirs = Vec::new();
        rmp::encode::write_sint(&mut theirs, value).expect("written");
        assert_eq!(bytes, theirs);
        assert_eq!(
            Reader::new(&bytes).u64(),
            Err(error(0, MalformedKind::OutOfRange))
        );
    }
}

#[test]
fn floats_round_trip_bit_for_bit() {
    // PROTOCOL MSGPACK-4
    for bits in [
        0,
        1,
        0x8000_0000_0000_0000,
        0x3ff0_0000_0000_0000,
        0x7fef_ffff_ffff_ffff,
        0x7ff0_0000_0000_0000,
        0xfff0_0000_0000_0000,
        0x7ff8_0000_0000_0000,
        0x7ff8_0000_dead_beef,
        0xfff8_0000_0000_0001,
    ] {
        let value = f64::from_bits(bits);
        let bytes = written(|writer| {
            writer.f64(value);
        });
        assert_eq!(bytes[0], 0xcb);
        assert_eq!(bytes[1..], bits.to_be_bytes());
        assert_eq!(Reader::new(&bytes).f64().map(f64::to_bits), Ok(bits));
        assert_eq!(one(&bytes).map(Exact::from), Ok(Exact::F64(bits)));
    }
    for bits in [
        0,
        1,
        0x8000_0000,
        0x3f80_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0x7fc0_beef,
        0xffc0_0001,
    ] {
        let value = f32::from_bits(bits);
        let bytes = written(|writer| {
            writer.f32(value);
        });
        assert_eq!(bytes[0], 0xca);
        assert_eq!(bytes[1..], bits.to_be_bytes());
        assert_eq!(one(&bytes).map(Exact::from), Ok(Exact::F32(bits)));
        let wide = Reader::new(&bytes).f64().expect("a float");
        assert!(wide == f64::from(value) || wide.is_nan() && value.is_nan());
    }
    let integer = Reader::new(b"\x01").f64();
    assert_eq!(
        integer,
        Err(error(
            0,
            MalformedKind::Unexpected {
                expected: Kind::Float,
                found: Kind::Integer
            }
        ))
    );
}

/// `len` at each boundary of the heads, and around it.
const LENGTHS: [usize; 15] = [
    0, 1, 30, 31, 32, 33, 63, 64, 65, 254, 255, 256, 65_534, 65_535, 65_536,
];

#[test]
fn strings_and_bytes_have_the_shortest_head_at_every_length() {
    // PROTOCOL MSGPACK-5
    for len in (0..=300).chain(LENGTHS) {
        let string: String = ('a'..='z').cycle().take(len).collect();
        let bytes = written(|writer| {
            writer.str(&string);
        });
        let mut theirs = Vec::new();
        rmp::encode::write_str(&mut theirs, &string).expect("written");
        assert!(bytes == theirs, "{len} bytes of text");
        assert_eq!(
            Reader::new(&bytes).str().expect("a string"),
            string.as_str()
        );
        assert_eq!(one(&bytes), Ok(str_of(string.as_bytes())));

        let bytes = written(|writer| {
            writer.bin(string.as_bytes());
        });
        let mut theirs = Vec::new();
        rmp::encode::write_bin(&mut theirs, string.as_bytes()).expect("written");
        assert!(bytes == theirs, "{len} bytes");
        assert_eq!(Reader::new(&bytes).bin(), Ok(string.as_bytes()));
        assert_eq!(one(&bytes), Ok(Token::Bin(string.as_bytes())));
    }
}

#[test]
fn containers_have_the_shortest_head_at_every_count() {
    // PROTOCOL MSGPACK-5, MSGPACK-7
    for count in [0_u32, 1, 14, 15, 16, 17, 255, 256, 65_534, 65_535, 65_536] {
        let nils = |writer: &mut Writer<'_>, count| {
            for _ in 0..count {
                writer.nil();
            }
        };
        let array = written(|writer| {
            writer.array(count);
            nils(writer, count);
        });
        let mut theirs = Vec::new();
        rmp::encode::write_array_len(&mut theirs, count).expect("written");
        assert_eq!(array[..theirs.len()], theirs);
        assert_eq!(array.len(), theirs.len() + count as usize);
        assert_eq!(Reader::new(&array).array(), Ok(count));
        assert_eq!(Reader::new(&array).skip(), Ok(&array[..]));

        let map = written(|writer| {
            writer.map(count);
            nils(writer, 2 * count);
        });
        let mut theirs = Vec::new();
        rmp::encode::write_map_len(&mut theirs, count).expect("written");
        assert_eq!(map[..theirs.len()], theirs);
        assert_eq!(map.len(), theirs.len() + 2 * count as usize);
        assert_eq!(Reader::new(&map).map(), Ok(count));
        assert_eq!(Reader::new(&map).skip(), Ok(&map[..]));
    }
}

#[test]
fn extensions_have_the_shortest_head_at_every_length() {
    // PROTOCOL MSGPACK-9
    for len in (0..=20).chain([254, 255, 256, 65_534, 65_535, 65_536]) {
        for code in [i8::MIN, -1, 0, i8::MAX] {
            let data = vec![0x5a; len];
            let bytes = written(|writer| {
                writer.extension(code, &data);
            });
            let mut theirs = Vec::new();
            rmp::encode::write_ext_meta(&mut theirs, len as u32, code).expect("written");
            theirs.extend(&data);
            assert!(bytes == theirs, "{len} bytes of extension {code}");
            assert_eq!(Reader::new(&bytes).extension(), Ok((code, &data[..])));
        }
    }
}

#[test]
fn strings_are_utf8_and_not_bytes() {
    // PROTOCOL MSGPACK-6
    for (bytes, valid_len) in [
        (&b"\xa3ab\xff"[..], 2),
        (b"\xa2\xc0\xaf", 0),
        (b"\xa3\xed\xa0\x80", 0),
        (b"\xa4abc\xc3", 3),
        (b"\xaaabcdefgh\xe2\x82", 8),
        (b"\xd9\x02a\x80", 1),
        (b"\xda\0\x02a\x80", 1),
    ] {
        let mut reader = Reader::new(bytes);
        assert_eq!(
            reader.str(),
            Err(error(0, MalformedKind::NotUtf8 { valid_len }))
        );
        assert_eq!(reader.position(), 0);
        assert!(reader.raw_str().is_ok(), "left alone, it passes");
        assert!(reader.is_empty());
    }
    for string in ["", "x", "é", "naïve", "日本語", "🦀🦀🦀", "aaaaaaaaaaaaé"] {
        let bytes = written(|writer| {
            writer.str(string);
        });
        let read = Reader::new(&bytes).str().expect("a string");
        assert_eq!(read.to_str(), string);
        assert_eq!(read.len(), string.len());
        assert_eq!(read.is_empty(), string.is_empty());
        assert_eq!(read.to_string(), string);
    }
    assert_eq!(
        Reader::new(b"\xc4\x01a").str(),
        Err(error(
            0,
            MalformedKind::Unexpected {
                expected: Kind::Str,
                found: Kind::Bin
            }
        ))
    );
    assert_eq!(
        Reader::new(b"\xa1a").bin(),
        Err(error(
            0,
            MalformedKind::Unexpected {
                expected: Kind::Bin,
                found: Kind::Str
            }
        ))
    );
}

#[test]
fn unexpected_kinds_are_named() {
    let samples: [(&[u8], Kind); 9] = [
        (b"\xc0", Kind::Nil),
        (b"\xc3", Kind::Bool),
        (b"\x05", Kind::Integer),
        (b"\xcb\0\0\0\0\0\0\0\0", Kind::Float),
        (b"\xa1a", Kind::Str),
        (b"\xc4\x01a", Kind::Bin),
        (b"\x91\x01", Kind::Array),
        (b"\x81\x01\x02", Kind::Map),
        (b"\xd4\x01a", Kind::Ext),
    ];
    for (bytes, found) in samples {
        assert_eq!(
            Reader::new(bytes).peek().map(|token| token.kind()),
            Ok(found)
        );
        for expected in [
            Kind::Nil,
            Kind::Bool,
            Kind::Integer,
            Kind::Float,
            Kind::Str,
            Kind::Bin,
            Kind::Array,
            Kind::Map,
            Kind::Ext,
        ] {
            let mut reader = Reader::new(bytes);
            let outcome = match expected {
                Kind::Nil => reader.nil().err(),
                Kind::Bool => reader.bool().err(),
                Kind::Integer => reader.u64().err(),
                Kind::Float => reader.f64().err(),
                Kind::Str => reader.str().err(),
                Kind::Bin => reader.bin().err(),
                Kind::Array => reader.array().err(),
                Kind::Map => reader.map().err(),
                _ => reader.extension().err(),
            };
            if expected == found {
                assert_eq!(outcome, None);
            } else {
                let kind = MalformedKind::Unexpected { expected, found };
                assert_eq!(outcome, Some(error(0, kind)));
                assert_eq!(reader.position(), 0);
            }
        }
    }
}

#[test]
fn every_truncated_document_is_refused_at_its_end() {
    // PROTOCOL MSGPACK-12
    let mut documents = every_head();
    documents.extend(messages().map(|(_, message)| message.to_vec()));
    for document in documents {
        // Where each token starts, where it ends, what it announces.
        let mut tokens = Vec::new();
        let mut reader = Reader::new(&document);
        while !reader.is_empty() {
            let start = reader.position();
            let token = reader.token().expect("whole");
            tokens.push((start, reader.position(), token.child_count() as usize));
        }
        for len in 0..document.len() {
            if document.len() > 2000 && len % 97 != 0 {
                continue;
            }
            let cut = &document[..len];
            let mut reader = Reader::new(cut);
            let (start, end, child_count) = *tokens
                .iter()
                .find(|(_, end, child_count)| len < end + child_count)
                .expect("one is cut");
            let walked = walk(&mut reader, |_| {}).expect_err("cut");
            assert_eq!(reader.position(), start, "{cut:02x?}");
            assert_eq!(walked.at, start);
            match walked.kind {
                MalformedKind::Truncated { needed, available } => {
                    assert!(len < end);
                    assert_eq!(available, len - start);
                    assert!(needed > available as u64);
                    assert!(needed <= (end - start) as u64);
                }
                MalformedKind::CountTooLarge { count, available } => {
                    assert!(end <= len);
                    assert_eq!(count, child_count as u64);
                    assert_eq!(available, len - end);
                }
                kind => panic!("{kind:?}"),
            }
            assert_eq!(Reader::new(cut).skip(), Err(walked));
        }
    }
}

#[test]
fn needed_length_is_reported_once_known() {
    for (bytes, needed) in [
        (&b""[..], 1),
        (b"\xcd", 3),
        (b"\xce\0\0\0", 5),
        (b"\xcf\0", 9),
        (b"\xca", 5),
        (b"\xcb\0\0\0\0\0\0\0", 9),
        (b"\xa5abc", 6),
        (b"\xd9", 2),
        (b"\xd9\x05abc", 7),
        (b"\xda\0", 3),
        (b"\xda\x01\x00", 259),
        (b"\xdb\x01\0\0\0", 0x0100_0005),
        (b"\xc4\xff", 257),
        (b"\xc6\xff\xff\xff\xff", 0x1_0000_0004),
        (b"\xd4", 2),
        (b"\xd8\x05", 18),
        (b"\xc7\x03", 3),
        (b"\xc7\x03\x05ab", 6),
        (b"\xc8\x01\0", 4),
        (b"\xc9\0\0\0\x01\x05", 7),
        (b"\xdc\0", 3),
        (b"\xdf\0\0\0", 5),
    ] {
        let kind = MalformedKind::Truncated {
            needed,
            available: bytes.len(),
        };
        assert_eq!(one(bytes), Err(error(0, kind)), "{bytes:02x?}");
        assert_eq!(Reader::new(bytes).skip(), Err(error(0, kind)));
    }
}

#[test]
fn counts_beyond_the_bytes_left_are_refused_at_once() {
    // PROTOCOL MSGPACK-12
    for (bytes, count, available) in [
        (&b"\x91"[..], 1, 0),
        (b"\x81\xc0", 2, 1),
        (b"\xdc\xff\xff\xc0", 0xffff, 1),
        (b"\xdd\xff\xff\xff\xff", 0xffff_ffff, 0),
        (b"\xdf\xff\xff\xff\xff\xc0\xc0", 0x1_ffff_fffe, 2),
    ] {
        let fault = error(0, MalformedKind::CountTooLarge { count, available });
        assert_eq!(one(bytes), Err(fault));
        assert_eq!(Reader::new(bytes).skip(), Err(fault));
        if matches!(bytes[0], 0x91 | 0xdc | 0xdd) {
            assert_eq!(Reader::new(bytes).array(), Err(fault));
        } else {
            assert_eq!(Reader::new(bytes).map(), Err(fault));
            assert_eq!(Reader::new(bytes).find("op"), Err(fault));
        }
    }
    // Each count alone would fit, but not both together.
    let nested = b"\x92\xdc\x00\x03\xc0\xc0";
    let fault = MalformedKind::CountTooLarge {
        count: 3,
        available: 2,
    };
    assert_eq!(Reader::new(nested).skip(), Err(error(1, fault)));
}

fn nested(levels: usize, maps: bool) -> Vec<u8> {
    let level: &[u8] = if maps { b"\x81\x01" } else { b"\x91" };
    let mut document = level.repeat(levels);
    document.push(0xc0);
    document
}

#[test]
fn nesting_is_bounded() {
    // PROTOCOL MSGPACK-11
    for limit in [0, 1, 2, 31, 32, 33, 100, 1023, 1024, 5000, u32::MAX] {
        let limits = Limits::HOST.with_depth(limit);
        let depth = limit.min(Limits::MAX_DEPTH) as usize;
        for maps in [false, true] {
            for levels in [depth.saturating_sub(1), depth] {
                let document = nested(levels, maps);
                let mut reader = Reader::with_limits(&document, &limits);
                assert_eq!(reader.skip(), Ok(&document[..]));
            }
            for levels in [depth + 1, depth + 2, 100_000] {
                let document = nested(levels, maps);
                let mut reader = Reader::with_limits(&document, &limits);
                let too_deep = error(
                    depth * (1 + usize::from(maps)),
                    MalformedKind::TooDeep {
                        limit: depth as u32,
                    },
                );
                assert_eq!(reader.skip(), Err(too_deep), "{limit}, {levels}");
                assert_eq!(reader.position(), 0);
            }
        }
    }
    for (levels, fits) in [(1023, true), (1024, true), (1025, false)] {
        assert_eq!(Reader::new(&nested(levels, false)).skip().is_ok(), fits);
    }
    // An empty array holds nothing, so it is no level: as in Python.
    let mut document = nested(1024, false);
    *document.last_mut().expect("not empty") = 0x90;
    assert!(Reader::new(&document).skip().is_ok());
}

#[test]
fn many_shallow_containers_pass_the_depth_limit() {
    // PROTOCOL MSGPACK-11
    let count = 5000_u32;
    let document = written(|writer| {
        writer.array(count);
        for value in 0..count {
            writer.array(1).map(1).str("a").u64(u64::from(value));
        }
    });
    for depth in [3, 4, 1024] {
        let limits = Limits::HOST.with_depth(depth);
        let mut reader = Reader::with_limits(&document, &limits);
        assert_eq!(reader.skip(), Ok(&document[..]));
    }
    let limits = Limits::HOST.with_depth(2);
    let too_deep = error(4, MalformedKind::TooDeep { limit: 2 });
    let mut reader = Reader::with_limits(&document, &limits);
    assert_eq!(reader.skip(), Err(too_deep));
}

#[test]
fn item_limit_is_enforced() {
    let limits = Limits::HOST.with_items(10);
    let too_many = MalformedKind::TooManyItems { limit: 10 };
    let array = |count: u32| {
        written(|writer| {
            writer.array(count);
            for _ in 0..count {
                writer.nil();
            }
        })
    };
    for count in [9, 10] {
        let document = array(count);
        let mut reader = Reader::with_limits(&document, &limits);
        assert_eq!(reader.skip(), Ok(&document[..]));
        assert_eq!(Reader::with_limits(&document, &limits).array(), Ok(count));
    }
    for count in [11, 16] {
        let document = array(count);
        let mut reader = Reader::with_limits(&document, &limits);
        assert_eq!(reader.skip(), Err(error(0, too_many)));
        assert_eq!(reader.array(), Err(error(0, too_many)));
        assert_eq!(reader.token(), Err(error(0, too_many)));
        assert_eq!(reader.position(), 0);
    }
    // What one array takes is not there for the next: 2 + 4 + 4, then 2 + 4 + 5.
    let pair = |second: u8| {
        let mut document = b"\x92\x94\xc0\xc0\xc0\xc0".to_vec();
        document.push(0x90 | second);
        document.extend(vec![0xc0; usize::from(second)]);
        document
    };
    assert!(Reader::with_limits(&pair(4), &limits).skip().is_ok());
    let document = pair(5);
    let mut reader = Reader::with_limits(&document, &limits);
    assert_eq!(reader.skip(), Err(error(6, too_many)));
    assert_eq!(reader.array(), Ok(2));
    assert!(reader.skip().is_ok());
    assert_eq!(reader.skip(), Err(error(6, too_many)));
    // A map's pairs count two each.
    let map = b"\x86\xc0\xc0\xc0\xc0\xc0\xc0\xc0\xc0\xc0\xc0\xc0\xc0";
    assert_eq!(
        Reader::with_limits(map, &limits).map(),
        Err(error(0, too_many))
    );
}

#[test]
fn trailing_bytes_are_refused() {
    // PROTOCOL MSGPACK-1
    let mut reader = Reader::new(b"\xc0\xc0\xc0");
    assert_eq!(reader.nil(), Ok(()));
    assert_eq!(
        reader.finish(),
        Err(error(1, MalformedKind::Trailing { len: 2 }))
    );
    let mut reader = Reader::new(b"\xc0");
    assert!(!reader.is_empty());
    assert_eq!(reader.nil(), Ok(()));
    assert_eq!(reader.finish(), Ok(()));
    let end = MalformedKind::Truncated {
        needed: 1,
        available: 0,
    };
    assert_eq!(Reader::new(b"").token(), Err(error(0, end)));
}

#[test]
fn find_works_among_keys_of_any_kind() {
    // PROTOCOL MSGPACK-8
    let document = written(|writer| {
        writer.map(8);
        writer.array(2).str("op").u64(0).str("no");
        writer.u64(7).str("op");
        writer.nil().str("op");
        writer.bin(b"op").str("no");
        writer.f64(0.5).map(1).str("op").str("no");
        writer.str("o").str("no");
        writer.encoded(b"\xda\0\x02op").str("yes");
        writer.str("after").str("op");
    });
    let mut reader = Reader::new(&document);
    assert_eq!(reader.find("op"), Ok(true));
    assert_eq!(reader.str().expect("a string"), "yes");
    assert_eq!(reader.str().expect("a string"), "after");

    let mut reader = Reader::new(&document);
    assert_eq!(reader.find("other"), Ok(false));
    assert_eq!(reader.finish(), Ok(()));

    // Under each head that text of this length can have.
    for key in [
        &b"\xa2op"[..],
        b"\xd9\x02op",
        b"\xda\0\x02op",
        b"\xdb\0\0\0\x02op",
    ] {
        let document = [b"\x82\xa2oq\x01", key, b"\x07"].concat();
        let mut reader = Reader::new(&document);
        assert_eq!(reader.find("op"), Ok(true), "{key:02x?}");
        assert_eq!(reader.u64(), Ok(7));
        let mut reader = Reader::new(&document);
        let mut found = None;
        let mut fields = reader.fields().expect("a map");
        while fields.more().expect("whole") {
            if let Some(value) = fields.take("op") {
                found = Some(value.u64());
            }
        }
        assert_eq!(found, Some(Ok(7)));
    }

    // Keys of every length around the boundaries of the heads.
    for len in [0, 1, 30, 31, 32, 255, 256, 65_535, 65_536] {
        let key = "k".repeat(len);
        let document = written(|writer| {
            writer.map(2).str("other").nil().str(&key).u64(1);
        });
        let mut reader = Reader::new(&document);
        assert_eq!(reader.find(&key), Ok(true), "{len}");
        assert_eq!(reader.u64(), Ok(1));
    }

    // The first of equal keys; `fields` takes both, so that the last one wins.
    let twice = b"\x82\xa1a\x01\xa1a\x02";
    let mut reader = Reader::new(twice);
    assert_eq!(reader.find("a"), Ok(true));
    assert_eq!(reader.u64(), Ok(1));
    let mut reader = Reader::new(twice);
    let mut last = None;
    let mut fields = reader.fields().expect("a map");
    while fields.more().expect("whole") {
        if let Some(value) = fields.take("a") {
            last = Some(value.u64().expect("a number"));
        }
    }
    assert_eq!(last, Some(2));

    assert_eq!(Reader::new(b"\x80").find("op"), Ok(false));
}

#[test]
fn failed_find_does_not_move_the_reader() {
    for document in [
        &b"\x82\xa1a\xc1\xa2op\x01"[..],
        b"\x82\xa1a\x01\xa2o",
        b"\x82\xc1\x01\xa2op\x01",
        b"\x82\xa1a\x92\x01\xa2op",
    ] {
        let mut reader = Reader::new(document);
        assert!(reader.find("op").is_err());
        assert_eq!(reader.position(), 0);
        assert_eq!(reader.remaining(), document);
    }
}

#[test]
fn fields_are_taken_in_any_order() {
    // PROTOCOL MSGPACK-8
    let keys = ["a", "bb", "ccc", "dddd"];
    let mut orders = Vec::new();
    for a in 0..4 {
        for b in 0..4 {
            for c in 0..4 {
                let d = 6_usize.wrapping_sub(a + b + c);
                let mut order = [a, b, c, d];
                order.sort_unstable();
                if order == [0, 1, 2, 3] {
                    orders.push([a, b, c, d]);
                }
            }
        }
    }
    assert_eq!(orders.len(), 24);
    for order in orders {
        // After each map comes a string that is one of its keys.
        let document = written(|writer| {
            writer.array(2).map(6).u64(1).u64(2);
            for index in order {
                writer.str(keys[index]).u64(index as u64 + 10);
            }
            writer.str("unknown").map(1).str("a").nil();
            writer.str("a");
        });
        let mut reader = Reader::new(&document);
        assert_eq!(reader.array(), Ok(2));
        let mut found = [0; 4];
        let mut fields = reader.fields().expect("a map");
        while fields.more().expect("whole") {
            for (key, place) in keys.iter().zip(&mut found) {
                if let Some(value) = fields.take(key) {
                    *place = value.u64().expect("a number");
                }
            }
        }
        assert_eq!(fields.take("a").map(|_| ()), None, "not of this map");
        assert_eq!(fields.more(), Ok(false));
        assert_eq!(found, [10, 11, 12, 13]);
        assert_eq!(reader.str().expect("a string"), "a");
        assert_eq!(reader.finish(), Ok(()));
    }
    // An error in a pair that is not taken.
    let mut reader = Reader::new(b"\x81\xa1a\xc1");
    let mut fields = reader.fields().expect("a map");
    assert_eq!(fields.more(), Ok(true));
    assert_eq!(fields.more(), Err(error(3, MalformedKind::Reserved)));
    let mut reader = Reader::new(b"\x80\xa1a");
    let mut fields = reader.fields().expect("a map");
    assert_eq!(fields.more(), Ok(false));
    assert_eq!(fields.take("a").map(|_| ()), None);
}

#[test]
fn writer_reports_missing_and_excess_values() {
    let mut out = [0; 64];
    let writer = Writer::new(&mut out);
    assert_eq!(writer.finish(), Err(WriteError::Unfinished { owed: 1 }));

    let mut writer = Writer::new(&mut out);
    writer.map(2).str("a");
    assert_eq!(writer.owed(), 3);
    assert_eq!(writer.finish(), Err(WriteError::Unfinished { owed: 3 }));

    let mut writer = Writer::new(&mut out);
    writer.array(u32::MAX).map(u32::MAX);
    let owed = u64::from(u32::MAX) - 1 + 2 * u64::from(u32::MAX);
    assert_eq!(writer.owed(), owed);
    assert_eq!(writer.finish(), Err(WriteError::Unfinished { owed }));

    let mut writer = Writer::new(&mut out);
    writer.nil().nil();
    assert_eq!(writer.owed(), 0);
    assert_eq!(writer.finish(), Err(WriteError::TooMany));

    // A container cannot make good for a value that was too much.
    for write in [
        |writer: &mut Writer<'_>| {
            writer.nil().array(1);
        },
        |writer: &mut Writer<'_>| {
            writer.nil().array(1).nil();
        },
        |writer: &mut Writer<'_>| {
            writer.array(1).nil().nil().map(5).nil();
        },
        |writer: &mut Writer<'_>| {
            writer.array(0).array(3).nil().nil().nil();
        },
    ] {
        let mut writer = Writer::new(&mut out);
        write(&mut writer);
        assert_eq!(writer.finish(), Err(WriteError::TooMany));
    }

    let mut writer = Writer::new(&mut out);
    writer.array(2).array(0).map(1).nil().nil();
    assert_eq!(writer.finish(), Ok(&b"\x92\x90\x81\xc0\xc0"[..]));
}

#[test]
fn the_writer_measures_what_it_writes() {
    let writes: [fn(&mut Writer<'_>); 15] = [
        |writer| {
            writer.nil();
        },
        |writer| {
            writer.bool(true);
        },
        |writer| {
            writer.u64(5);
        },
        |writer| {
            writer.u64(200);
        },
        |writer| {
            writer.u64(60_000);
        },
        |writer| {
            writer.u64(u64::MAX);
        },
        |writer| {
            writer.i64(-5);
        },
        |writer| {
            writer.i64(i64::MIN);
        },
        |writer| {
            writer.f32(1.5);
        },
        |writer| {
            writer.f64(1.5);
        },
        |writer| {
            writer.str("text");
        },
        |writer| {
            writer.str(&"long".repeat(30));
        },
        |writer| {
            writer.bin(&[7; 300]);
        },
        |writer| {
            writer.extension(3, &[7; 5]);
        },
        |writer| {
            writer.array(1).map(1).str("k").encoded(b"\x92\x01\x02");
        },
    ];
    for write in writes {
        let mut measure = Writer::new(&mut []);
        assert!(measure.is_empty());
        write(&mut measure);
        let needed = measure.len();
        assert_eq!(
            measure.finish(),
            Err(WriteError::BufferTooSmall(BufferTooSmall {
                needed,
                available: 0
            }))
        );
        // The contents of the buffer make no difference, and the bytes after
        // the document are left alone.
        for poison in [0xa5, 0x5a] {
            for available in 0..needed + 3 {
                let mut out = vec![poison; available];
                let mut writer = Writer::new(&mut out);
                write(&mut writer);
                assert_eq!(writer.len(), needed);
                match writer.finish() {
                    Ok(document) => {
                        assert!(available >= needed);
                        assert_eq!(document, written(write));
                        assert!(out[needed..].iter().all(|byte| *byte == poison));
                    }
                    Err(error) => {
                        assert!(available < needed);
                        let expected = BufferTooSmall { needed, available };
                        assert_eq!(error, WriteError::BufferTooSmall(expected));
                    }
                }
            }
        }
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn data_longer_than_the_format_allows_is_refused() {
    // Untouched pages: only the length is read.
    let len = u32::MAX as usize + 1;
    let data = vec![0; len];
    let too_long = Err(WriteError::TooLong { len: len as u64 });
    let mut writer = Writer::new(&mut []);
    writer.bin(&data);
    assert_eq!(writer.finish(), too_long);
    let mut writer = Writer::new(&mut []);
    writer.str_bytes(&data);
    assert_eq!(writer.finish(), too_long);
    let mut writer = Writer::new(&mut []);
    writer.extension(1, &data);
    assert_eq!(writer.finish(), too_long);
    let mut writer = Writer::new(&mut []);
    writer.bin(&data[1..]);
    assert_eq!(writer.len(), len - 1 + 5);
}

fn messages() -> impl Iterator<Item = (&'static str, &'static [u8])> {
    [
        (
            "compute-task",
            &include_bytes!("../../benches/messages/compute-task.msgpack")[..],
        ),
        (
            "task-finished",
            include_bytes!("../../benches/messages/task-finished.msgpack"),
        ),
        (
            "heartbeat_worker",
            include_bytes!("../../benches/messages/heartbeat.msgpack"),
        ),
        (
            "register-worker",
            include_bytes!("../../benches/messages/register-worker.msgpack"),
        ),
        (
            "",
            include_bytes!("../../benches/messages/batch-100-task-finished.msgpack"),
        ),
    ]
    .into_iter()
}

#[test]
fn dask_messages_round_trip_byte_for_byte() {
    // PROTOCOL MSGPACK-2, MSGPACK-3, MSGPACK-4, MSGPACK-5
    for (op, message) in messages() {
        differential::check(message);
        let again = written(|writer| {
            walk(&mut Reader::new(message), |token| {
                writer.token(token);
            })
            .expect("whole");
        });
        assert!(again == message, "{op}");
        if !op.is_empty() {
            let mut reader = Reader::new(message);
            assert_eq!(reader.find("op"), Ok(true));
            assert_eq!(reader.str().expect("a string"), op);
        }
    }
}

/// xorshift64*: enough for tests, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn length(&mut self) -> usize {
        let most = [4, 4, 40, 40, 300][self.below(5) as usize];
        self.below(most) as usize
    }

    fn data(&mut self) -> Vec<u8> {
        let len = self.length();
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// A number of any magnitude.
    fn bits(&mut self) -> u64 {
        let bits = self.next() << 32 ^ self.next();
        bits >> self.below(64)
    }

    fn value(&mut self, depth: u32) -> Value {
        let kinds = if depth == 0 { 9 } else { 12 };
        match self.below(kinds) {
            0 => Value::Nil,
            1 => Value::from(self.below(2) == 0),
            2 => Value::from(self.bits()),
            3 => Value::from(self.bits().cast_signed().wrapping_neg()),
            4 => Value::F32(f32::from_bits(self.bits() as u32)),
            5 => Value::F64(f64::from_bits(self.bits())),
            6 => Value::Binary(self.data()),
            7 => Value::Ext(self.next() as i8, self.data()),
            8 => {
                let len = self.length();
                let string: String = (0..len)
                    .map(|_| char::from_u32(self.below(0x250) as u32).unwrap_or('é'))
                    .collect();
                Value::from(string)
            }
            9 => {
                let count = self.below(20);
                Value::Array((0..count).map(|_| self.value(depth - 1)).collect())
            }
            _ => {
                let count = self.below(18);
                Value::Map(
                    (0..count)
                        .map(|_| (self.value(depth - 1), self.value(depth - 1)))
                        .collect(),
                )
            }
        }
    }

    /// Some bytes changed, cut out, put in, or all that follows cut off.
    fn mutate(&mut self, document: &mut Vec<u8>) {
        for _ in 0..=self.below(3) {
            if document.is_empty() {
                document.push(self.next() as u8);
            }
            let at = self.below(document.len() as u64) as usize;
            match self.below(6) {
                0 => document.truncate(at),
                1 => {
                    document.remove(at);
                }
                2 => document.insert(at, self.next() as u8),
                3 => document[at] ^= 1 << self.below(8),
                4 => document[at] = [0xc1, 0xdf, 0xdd, 0xc9, 0x9f, 0x8f][self.below(6) as usize],
                _ => document[at] = self.next() as u8,
            }
        }
    }
}

fn write_value(writer: &mut Writer<'_>, value: &Value) {
    match value {
        Value::Nil => writer.nil(),
        Value::Boolean(value) => writer.bool(*value),
        Value::Integer(value) => match (value.as_u64(), value.as_i64()) {
            (Some(value), _) => writer.u64(value),
            (None, value) => writer.i64(value.expect("one of both")),
        },
        Value::F32(value) => writer.f32(*value),
        Value::F64(value) => writer.f64(*value),
        Value::String(string) => writer.str_bytes(string.as_bytes()),
        Value::Binary(data) => writer.bin(data),
        Value::Ext(code, data) => writer.extension(*code, data),
        Value::Array(values) => {
            writer.array(values.len() as u32);
            for value in values {
                write_value(writer, value);
            }
            writer
        }
        Value::Map(pairs) => {
            writer.map(pairs.len() as u32);
            for (key, value) in pairs {
                write_value(writer, key);
                write_value(writer, value);
            }
            writer
        }
    };
}

#[test]
fn random_and_damaged_documents_match_rmpv() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut out = vec![0; 1 << 20];
    let mut whole = 0;
    let mut ruined_but_read = 0;
    for round in 0..60_000 {
        let depth = [0, 1, 1, 1, 2, 2][round % 6];
        let value = random.value(depth);
        let mut theirs = Vec::new();
        rmpv::encode::write_value(&mut theirs, &value).expect("written");
        let mut writer = Writer::new(&mut out);
        write_value(&mut writer, &value);
        assert!(writer.finish().expect("room") == theirs, "{value}");
        if theirs.len() > 4000 {
            continue;
        }
        differential::check(&theirs);
        whole += 1;

        random.mutate(&mut theirs);
        differential::check(&theirs);
        ruined_but_read += usize::from(Reader::new(&theirs).skip().is_ok());
    }
    // Bytes out of nowhere.
    for _ in 0..20_000 {
        differential::check(&random.data());
    }
    assert!(whole > 50_000, "{whole}");
    assert!(ruined_but_read > 10_000, "{ruined_but_read}");
}

/// Validation compares whole words, so every byte at every length counts.
#[test]
fn every_byte_of_a_string_is_validated() {
    let good = [b'a'; 40];
    for len in 0..good.len() {
        assert!(RawStr::new(&good[..len]).check().is_ok());
        for place in 0..len {
            let mut bytes = good;
            bytes[place] = 0x80;
            assert!(
                RawStr::new(&bytes[..len]).check().is_err(),
                "{place} of {len}"
            );
        }
    }
}
