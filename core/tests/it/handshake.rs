//! Tests of the handshake with recorded messages of real releases and with
//! damaged ones.

use daskwire::Limits;
use daskwire::frame::{FrameErrorKind, FramedMessage, Prefix};
use daskwire::handshake::{self, Handshake, HandshakeError, Negotiated};
use daskwire::message::Layout;
use daskwire::msgpack::{Kind, Malformed, MalformedKind, WriteError, Writer};

/// The handshakes of distributed, by release.
const RECORDED: [(&str, &[u8], Prefix, Layout, Handshake<'_>); 6] = [
    (
        "2.30.1 to 2021.2.0, lz4",
        b"\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x2d\0\0\0\0\0\0\0\
          \x83\xabcompression\xa3lz4\xa6python\x93\x03\x0b\x07\xafpickle-protocol\x05",
        Prefix::None,
        Layout::Classic,
        LZ4,
    ),
    (
        "2.30.1 on Python 3.8.20, none",
        b"\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x2a\0\0\0\0\0\0\0\
          \x83\xabcompression\xc0\xa6python\x93\x03\x08\x14\xafpickle-protocol\x04",
        Prefix::None,
        Layout::Classic,
        NONE_ON_3_8,
    ),
    (
        "2021.3.0, lz4",
        b"\x45\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x2d\0\0\0\0\0\0\0\
          \x83\xabcompression\xa3lz4\xa6python\x93\x03\x0b\x07\xafpickle-protocol\x05",
        Prefix::U64,
        Layout::Classic,
        LZ4,
    ),
    (
        "2021.3.1 to 2026.8.0, lz4",
        b"\x3d\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x2d\0\0\0\0\0\0\0\
          \x83\xabcompression\xa3lz4\xa6python\x93\x03\x0b\x07\xafpickle-protocol\x05",
        Prefix::U64,
        Layout::Modern,
        LZ4,
    ),
    (
        "2026.8.0 on Python 3.8.20, none",
        b"\x3a\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x2a\0\0\0\0\0\0\0\
          \x83\xabcompression\xc0\xa6python\x93\x03\x08\x14\xafpickle-protocol\x04",
        Prefix::U64,
        Layout::Modern,
        NONE_ON_3_8,
    ),
    (
        "a session of 2026.8.0",
        b"\x3a\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x2a\0\0\0\0\0\0\0\
          \x83\xabcompression\xc0\xa6python\x93\x03\x0b\x07\xafpickle-protocol\x05",
        Prefix::U64,
        Layout::Modern,
        NONE,
    ),
];

const NONE: Handshake<'_> = Handshake {
    compression: None,
    python: Some([3, 11, 7]),
    pickle_protocol: 5,
};
const LZ4: Handshake<'_> = Handshake {
    compression: Some("lz4"),
    ..NONE
};
const NONE_ON_3_8: Handshake<'_> = Handshake {
    compression: None,
    python: Some([3, 8, 20]),
    pickle_protocol: 4,
};

const DOCUMENT: &[u8] =
    b"\x83\xabcompression\xa3lz4\xa6python\x93\x03\x0b\x07\xafpickle-protocol\x05";

fn parse(document: &[u8]) -> Result<Handshake<'_>, HandshakeError> {
    Handshake::parse(document, &Limits::HANDSHAKE)
}

fn encode<'b>(handshake: &Handshake<'_>, out: &'b mut [u8]) -> Result<&'b [u8], WriteError> {
    let mut writer = Writer::new(out);
    handshake.encode(&mut writer);
    writer.finish()
}

/// Frames of a recorded message.
fn frames<'a>(bytes: &'a [u8], slots: &'a mut [&'a [u8]]) -> &'a [&'a [u8]] {
    let prefix = handshake::detect_prefix(bytes.first_chunk().unwrap()).unwrap();
    let framed = FramedMessage::parse(bytes, prefix, &Limits::HANDSHAKE).unwrap();
    assert_eq!(framed.rest, b"");
    framed.prelude.split(framed.frames, slots).unwrap()
}

// PROTOCOL HANDSHAKE-1, HANDSHAKE-2
#[test]
fn recorded_handshakes_round_trip_exactly() {
    for (name, bytes, prefix, layout, expected) in RECORDED {
        let detected = handshake::detect_prefix(bytes.first_chunk().unwrap());
        assert_eq!(detected, Some(prefix), "{name}");
        let mut slots = [&b""[..]; 2];
        let frames = frames(bytes, &mut slots);
        let (read, detected) = Handshake::from_frames(frames, &Limits::HANDSHAKE).unwrap();
        assert_eq!((read, detected), (expected, layout), "{name}");

        let mut out = [0xa5; 64];
        assert_eq!(
            encode(&expected, &mut out).unwrap(),
            *frames.last().unwrap()
        );
    }
}

#[test]
fn the_usual_message_has_66_bytes() {
    let mut out = [0; 64];
    let document_len = encode(&NONE, &mut out).unwrap().len();
    let mut prelude = [0; 32];
    let lengths = [document_len as u64];
    let prelude_len = daskwire::frame::encode_prelude(Prefix::U64, lengths, &mut prelude).unwrap();
    assert_eq!(prelude_len + document_len, 66);
}

#[test]
fn every_truncation_of_a_document_is_malformed() {
    for len in 0..DOCUMENT.len() {
        match parse(&DOCUMENT[..len]) {
            Err(HandshakeError::Malformed(error)) => assert!(error.at <= len),
            other => panic!("{len} bytes: {other:?}"),
        }
    }
    let longer = [DOCUMENT, b"\xc0"].concat();
    let trailing = Malformed {
        at: DOCUMENT.len(),
        kind: MalformedKind::Trailing { len: 1 },
    };
    assert_eq!(parse(&longer), Err(HandshakeError::Malformed(trailing)));
}

#[test]
fn every_truncation_of_a_message_is_truncated() {
    for (name, bytes, prefix, ..) in RECORDED {
        for len in 0..bytes.len() {
            let error =
                FramedMessage::parse(&bytes[..len], prefix, &Limits::HANDSHAKE).unwrap_err();
            assert_eq!(error.at, len as u64, "{name}");
            assert!(matches!(error.kind, FrameErrorKind::Truncated { .. }));
        }
    }
}

#[test]
fn every_bit_flip_is_a_handshake_or_a_typed_error() {
    let at = |needle: &[u8]| {
        let mut windows = DOCUMENT.windows(needle.len());
        windows.position(|window| window == needle).unwrap()
    };
    let name = at(b"lz4");
    let version = at(b"\x03\x0b\x07");
    let last = DOCUMENT.len() - 1;
    for index in 0..DOCUMENT.len() {
        for bit in 0..8 {
            let mut flipped = DOCUMENT.to_vec();
            flipped[index] ^= 1 << bit;
            let outcome = parse(&flipped);
            let case = format!("byte {index}, bit {bit}: {outcome:?}");
            if let Err(error) = outcome {
                assert!(!error.to_string().is_empty());
            }
            // The effect of flipped bits in plain values is known.
            let expected = if bit == 7 && (name..name + 3).contains(&index) {
                let kind = MalformedKind::NotUtf8 {
                    valid_len: index - name,
                };
                Some(Err(HandshakeError::Malformed(Malformed {
                    at: name - 1,
                    kind,
                })))
            } else if (name..name + 3).contains(&index) {
                let name = str::from_utf8(&flipped[name..name + 3]).unwrap();
                Some(Ok(Handshake {
                    compression: Some(name),
                    ..LZ4
                }))
            } else if bit < 7 && (version..version + 3).contains(&index) {
                let mut python = [3, 11, 7];
                python[index - version] ^= 1 << bit;
                Some(Ok(Handshake {
                    python: Some(python),
                    ..LZ4
                }))
            } else if bit < 7 && index == last {
                Some(Ok(Handshake {
                    pickle_protocol: 5 ^ (1 << bit),
                    ..LZ4
                }))
            } else {
                None
            };
            if let Some(expected) = expected {
                assert_eq!(outcome, expected, "{case}");
            }
            if let Ok(read) = outcome {
                let mut out = [0; 64];
                assert_eq!(parse(encode(&read, &mut out).unwrap()), Ok(read), "{case}");
            }
        }
    }
}

#[test]
fn every_bit_flip_of_a_message_is_a_handshake_or_a_typed_error() {
    for (name, bytes, ..) in RECORDED {
        let mut accepted = 0;
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let Some(prefix) = handshake::detect_prefix(flipped.first_chunk().unwrap()) else {
                continue;
            };
            let Ok(framed) = FramedMessage::parse(&flipped, prefix, &Limits::HANDSHAKE) else {
                continue;
            };
            let mut slots = [&b""[..]; 16];
            let frames = framed.prelude.split(framed.frames, &mut slots).unwrap();
            if let Ok((read, _)) = Handshake::from_frames(frames, &Limits::HANDSHAKE) {
                accepted += 1;
                let mut out = [0; 64];
                assert_eq!(parse(encode(&read, &mut out).unwrap()), Ok(read), "{name}");
            }
        }
        // The values of python and pickle-protocol, at least.
        assert!(accepted >= 4 * 7, "{name}: {accepted}");
    }
}

// PROTOCOL HANDSHAKE-5
#[test]
fn missing_keys_are_refused() {
    let missing = |key| Err(HandshakeError::Missing { key });
    assert_eq!(parse(b"\x80"), missing("compression"));
    assert_eq!(
        parse(b"\x81\xabcompression\xc0"),
        missing("pickle-protocol")
    );
    assert_eq!(
        parse(b"\x81\xafpickle-protocol\x05"),
        missing("compression")
    );
    // The first message of a release before 2.23.0.
    assert_eq!(
        parse(b"\x82\xa2op\xafregister-worker\xa5reply\xc2"),
        missing("compression")
    );
    let text = missing("pickle-protocol").unwrap_err().to_string();
    assert!(
        text.contains("`pickle-protocol`") && text.contains("2.23.0"),
        "{text}"
    );
}

#[test]
fn python_key_is_optional_and_never_an_error() {
    let plain = b"\x82\xabcompression\xc0\xafpickle-protocol\x05";
    let without = Handshake {
        python: None,
        ..NONE
    };
    assert_eq!(parse(plain), Ok(without));
    let mut out = [0; 64];
    assert_eq!(encode(&without, &mut out).unwrap(), plain);

    for odd in [
        &b"\xc0"[..],
        b"\xa43.11",
        b"\x92\x03\x0b",
        b"\x94\x03\x0b\x07\x00",
        b"\x93\x03\x0b\xff",
        b"\x93\x03\x0b\xa17",
        b"\x80",
    ] {
        let head = &b"\x83\xafpickle-protocol\x05\xabcompression\xc0\xa6python"[..];
        assert_eq!(parse(&[head, odd].concat()), Ok(without), "{odd:x?}");
    }
    let widest = [
        &b"\x83\xafpickle-protocol\x05\xabcompression\xc0\xa6python\x93\xcf"[..],
        &[0xff; 8],
        b"\x00\x00",
    ]
    .concat();
    assert_eq!(parse(&widest).unwrap().python, Some([u64::MAX, 0, 0]));
}

#[test]
fn pickle_protocols_from_0_to_255_are_accepted() {
    let with = |value: &[u8]| [&b"\x82\xabcompression\xc0\xafpickle-protocol"[..], value].concat();
    let at = 30;
    for (value, number) in [
        (&b"\x00"[..], 0),
        (b"\x05", 5),
        (b"\x63", 99),
        (b"\xcc\xff", 255),
        (b"\xcf\0\0\0\0\0\0\0\x04", 4),
        (b"\xd0\x04", 4),
        (b"\xd3\0\0\0\0\0\0\0\x04", 4),
    ] {
        assert_eq!(parse(&with(value)).unwrap().pickle_protocol, number);
    }
    let key = "pickle-protocol";
    for value in [
        &b"\xff"[..],
        b"\xd0\x80",
        b"\xd3\x80\0\0\0\0\0\0\0",
        b"\xcd\x01\x00",
        b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let expected = Err(HandshakeError::OutOfRange { key, at });
        assert_eq!(parse(&with(value)), expected, "{value:x?}");
    }
    for (value, found) in [
        (&b"\xc0"[..], Kind::Nil),
        (b"\xc3", Kind::Bool),
        (b"\xa15", Kind::Str),
        (b"\xc4\x01\x05", Kind::Bin),
        (b"\xcb\x40\x14\0\0\0\0\0\0", Kind::Float),
        (b"\x91\x05", Kind::Array),
        (b"\x80", Kind::Map),
        (b"\xd4\x00\x05", Kind::Ext),
    ] {
        let expected = Err(HandshakeError::WrongKind { key, at, found });
        assert_eq!(parse(&with(value)), expected, "{value:x?}");
    }
}

#[test]
fn compression_is_a_name_or_none() {
    let with = |value: &[u8]| [&b"\x82\xafpickle-protocol\x05\xabcompression"[..], value].concat();
    // Releases up to 2023.4.1 with `distributed.comm.compression: false`.
    for value in [&b"\xc0"[..], b"\xc2"] {
        assert_eq!(parse(&with(value)).unwrap().compression, None);
    }
    for (value, name) in [
        (&b"\xa0"[..], ""),
        (b"\xa6snappy", "snappy"),
        (b"\xd9\x06snappy", "snappy"),
        (b"\xa5blosc", "blosc"),
        (b"\xa2\xc3\xa9", "é"),
    ] {
        assert_eq!(parse(&with(value)).unwrap().compression, Some(name));
    }
    let (key, at) = ("compression", 30);
    for (value, found) in [
        (&b"\xc3"[..], Kind::Bool),
        (b"\x01", Kind::Integer),
        (b"\xc4\x03lz4", Kind::Bin),
        (b"\x91\xa3lz4", Kind::Array),
    ] {
        let expected = Err(HandshakeError::WrongKind { key, at, found });
        assert_eq!(parse(&with(value)), expected, "{value:x?}");
    }
}

#[test]
fn only_maps_are_accepted() {
    for (document, found) in [
        (&b"\xc0"[..], Kind::Nil),
        (b"\x90", Kind::Array),
        (b"\x91\x80", Kind::Array),
        (b"\xa2OK", Kind::Str),
        (b"\xc4\x02OK", Kind::Bin),
        (b"\x05", Kind::Integer),
    ] {
        assert_eq!(parse(document), Err(HandshakeError::NotAMap { found }));
    }
}

// PROTOCOL HANDSHAKE-5
#[test]
fn unknown_keys_of_any_kind_are_ignored() {
    let document = b"\x86\xc0\xa1x\x92\x01\x02\x81\xa1y\x90\xa5extra\x82\xa1a\x01\xa1b\x02\
          \xabcompression\xa3lz4\xa4vers\xcb\0\0\0\0\0\0\0\0\xafpickle-protocol\x04";
    let read = parse(document).unwrap();
    assert_eq!((read.compression, read.pickle_protocol), (Some("lz4"), 4));
    // A bin is not a str, so this key is not `compression`.
    let bin = b"\x82\xc4\x0bcompression\xc0\xafpickle-protocol\x04";
    let key = "compression";
    assert_eq!(parse(bin), Err(HandshakeError::Missing { key }));
}

#[test]
fn last_of_duplicate_keys_is_used() {
    let document = b"\x84\xabcompression\x01\xafpickle-protocol\xc0\
          \xabcompression\xa3lz4\xafpickle-protocol\x04";
    let read = parse(document).unwrap();
    assert_eq!((read.compression, read.pickle_protocol), (Some("lz4"), 4));
}

// PROTOCOL HANDSHAKE-6
#[test]
fn limits_are_enforced() {
    let long = Limits::HANDSHAKE.with_document_len(DOCUMENT.len() as u64);
    assert_eq!(Handshake::parse(DOCUMENT, &long), Ok(LZ4));
    let short = long.with_document_len(DOCUMENT.len() as u64 - 1);
    let (len, limit) = (45, 44);
    let expected = Err(HandshakeError::TooLong { len, limit });
    assert_eq!(Handshake::parse(DOCUMENT, &short), expected);

    let deep = [
        &b"\x83\xabcompression\xc0\xafpickle-protocol\x05\xa1x"[..],
        &[0x91; 17],
        b"\xc0",
    ]
    .concat();
    let kind = MalformedKind::TooDeep { limit: 16 };
    match parse(&deep) {
        Err(HandshakeError::Malformed(error)) => assert_eq!(error.kind, kind),
        other => panic!("{other:?}"),
    }
    let many = b"\x83\xabcompression\xc0\xafpickle-protocol\x05\xa1x\xdc\x01\x00";
    let many = [&many[..], &[0xc0; 256]].concat();
    let kind = MalformedKind::TooManyItems { limit: 256 };
    match parse(&many) {
        Err(HandshakeError::Malformed(error)) => assert_eq!(error.kind, kind),
        other => panic!("{other:?}"),
    }
}

// PROTOCOL HANDSHAKE-3, COMPRESS-9
#[test]
fn negotiation_takes_the_lower_protocol_and_the_common_codec() {
    let with = |compression, pickle_protocol| Handshake {
        compression,
        python: None,
        pickle_protocol,
    };
    for (ours, theirs, compression, pickle_protocol) in [
        (with(None, 5), with(None, 5), None, 5),
        (with(Some("lz4"), 5), with(Some("lz4"), 4), Some("lz4"), 4),
        (with(Some("lz4"), 4), with(Some("snappy"), 5), None, 4),
        (with(Some("lz4"), 5), with(None, 5), None, 5),
        (with(None, 5), with(Some("lz4"), 255), None, 5),
        (with(Some("lz4"), 5), with(Some("LZ4"), 0), None, 0),
        (with(None, 5), with(Some("a codec of 2030"), 9), None, 5),
    ] {
        let expected = Negotiated {
            compression,
            pickle_protocol,
        };
        assert_eq!(ours.negotiate(&theirs), expected);
        assert_eq!(theirs.negotiate(&ours), expected);
    }
}

// PROTOCOL HANDSHAKE-4
#[test]
fn no_codec_is_used_if_one_side_names_none() {
    assert_eq!(Handshake::new(None).negotiate(&LZ4).compression, None);
}

#[test]
fn layout_is_detected_by_the_frame_count() {
    let from = |frames: &[&'static [u8]]| {
        let frames: Vec<&[u8]> = frames.to_vec();
        Handshake::from_frames(&frames, &Limits::HANDSHAKE)
            .map(|(read, layout)| (read.pickle_protocol, layout))
    };
    assert_eq!(from(&[DOCUMENT]), Ok((5, Layout::Modern)));
    assert_eq!(from(&[b"", DOCUMENT]), Ok((5, Layout::Classic)));
    assert_eq!(from(&[b"\x80", DOCUMENT]), Ok((5, Layout::Classic)));
    assert_eq!(
        from(&[b"\x81\xa1x\x01", DOCUMENT]),
        Ok((5, Layout::Classic))
    );
    assert_eq!(
        from(&[b"\x81\xabcompression\xc0", DOCUMENT]),
        Ok((5, Layout::Classic))
    );
    assert_eq!(
        from(&[b"\x81\xabcompression\xa3lz4", DOCUMENT]),
        Err(HandshakeError::Compressed)
    );
    for header in [&b"\xc0"[..], b"\x90", b"\x81", b"\x80\x80", b"\xc1"] {
        assert_eq!(from(&[header, DOCUMENT]), Err(HandshakeError::Header));
    }
    assert_eq!(from(&[]), Err(HandshakeError::FrameCount { count: 0 }));
    let count = 3;
    assert_eq!(
        from(&[b"", DOCUMENT, b""]),
        Err(HandshakeError::FrameCount { count })
    );
    assert!(matches!(
        from(&[b"", b""]),
        Err(HandshakeError::Malformed(_))
    ));
    assert!(matches!(from(&[b""]), Err(HandshakeError::Malformed(_))));
}

// PROTOCOL FRAME-13
#[test]
fn prefix_is_detected_by_the_first_8_bytes() {
    for (first, prefix) in [
        (0, None),
        (1, Some(Prefix::None)),
        (2, Some(Prefix::None)),
        (15, Some(Prefix::None)),
        (16, Some(Prefix::U64)),
        (58, Some(Prefix::U64)),
        (u64::MAX, Some(Prefix::U64)),
    ] {
        assert_eq!(handshake::detect_prefix(&u64::to_le_bytes(first)), prefix);
    }
    // Other protocols fail at the frame count.
    let http = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let prefix = handshake::detect_prefix(http.first_chunk().unwrap()).unwrap();
    let error = FramedMessage::parse(http, prefix, &Limits::HANDSHAKE).unwrap_err();
    assert!(matches!(error.kind, FrameErrorKind::TooManyFrames { .. }));
}
