//! Messages as real releases sent them, however they arrive and whatever
//! happens to them on the way.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use daskwire::Limits;
use daskwire::display;
use daskwire::frame::{Arena, Envelope, FrameDecoder, FrameErrorKind};
use daskwire::message::{
    EnumMember, Item, Layout, Level, Message, MessageError, MessageErrorKind, PathElement,
    PayloadKind, Place, Reading, Serializer,
};
use daskwire::msgpack::{MalformedKind, Reader, Token};
use serde_json::Value;
use support::{
    LIMITS, Random, Room, Vector, in_parallel, is_frame, merged, merged_over, reading_of, vector,
    vectors,
};

/// Room for the table of lengths of any vector.
const PRELUDE_LEN: usize = 1 << 14;

/// Opens a vector as its release reads it, and hands it on.
fn with_vector<R>(name: &str, use_it: impl FnOnce(Message<'_, &[u8]>, &mut [Level]) -> R) -> R {
    let vector = vector(name);
    let frames = vector.frames();
    let mut room = Room::new();
    let (message, levels) = room
        .open(&frames, vector.layout(), &vector.reading())
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    use_it(message, levels)
}

/// The items of a body as one line.
fn line(message: &Message<'_, &[u8]>, levels: &mut [Level]) -> String {
    let mut walk = message.walk(levels);
    let mut words = Vec::new();
    while let Some(item) = walk.next_item().unwrap() {
        words.push(match item {
            Item::Token(Token::Nil) => "nil".into(),
            Item::Token(Token::Bool(value)) => value.to_string(),
            Item::Token(Token::UInt(value)) => value.to_string(),
            Item::Token(Token::Int(value)) => value.to_string(),
            Item::Token(Token::F64(value)) => format!("{value:?}"),
            Item::Token(Token::Str(text)) => format!("'{}'", text.to_str().unwrap()),
            Item::Token(Token::Bin(data)) => format!("bin{}", data.len()),
            Item::Token(Token::Array(count)) => format!("array{count}"),
            Item::Token(Token::Map(count)) => format!("map{count}"),
            Item::Token(token) => format!("{token:?}"),
            Item::Set(count) => format!("set{count}"),
            Item::Enum(EnumMember {
                module,
                class,
                name,
            }) => format!(
                "enum:{}.{}.{}",
                module.to_str(),
                class.to_str(),
                name.to_str()
            ),
            Item::Payload(number) => format!("payload{number}"),
        });
    }
    words.join(" ")
}

fn line_of(name: &str) -> String {
    with_vector(name, |message, levels| line(&message, levels))
}

/// These frames as one line, or what is wrong with them, payloads included.
fn read_as(frames: &[&[u8]], layout: Layout, reading: &Reading) -> Result<String, MessageError> {
    let mut room = Room::with(8, 8, 64);
    let (message, levels) = room.open(frames, layout, reading)?;
    message.check()?;
    Ok(line(&message, levels))
}

fn modern(frames: &[&[u8]]) -> Result<String, MessageErrorKind> {
    read_as(frames, Layout::Modern, &Reading::default()).map_err(|error| error.kind)
}

fn classic(frames: &[&[u8]]) -> Result<String, MessageErrorKind> {
    read_as(frames, Layout::Classic, &Reading::default()).map_err(|error| error.kind)
}

// PROTOCOL BODY-1, MODERN-1, MODERN-2, MODERN-3, CLASSIC-1, CLASSIC-4 and CLASSIC-8
// PROTOCOL CLASSIC-9, CLASSIC-11, SPLIT-3, SPLIT-4 and SPLIT-5
/// What a vector says is what is read: how many payloads, of what kind, how
/// compressed, and which logical frames they become.
#[test]
fn every_vector_reads_as_its_release_read_it() {
    let vectors = vectors();
    let counts = in_parallel(&vectors, |vector| {
        let mut room = Room::new();
        let frames = vector.frames();
        let expected = vector.json["frames"].as_array().unwrap();
        assert_eq!(frames.len(), expected.len(), "{}", vector.name);
        assert!(
            frames
                .iter()
                .zip(expected)
                .all(|(frame, expected)| is_frame(frame, expected)),
            "{}",
            vector.name
        );
        let opened = room.open(&frames, vector.layout(), &vector.reading());
        if let Some(codec) = vector.missing_body_codec() {
            let error = opened.unwrap_err();
            assert!(support::Missing::NotCompiledIn(codec).explains(&error));
            return 0;
        }
        let (message, levels) = opened.unwrap_or_else(|error| panic!("{}: {error}", vector.name));
        assert_eq!(message.layout(), vector.layout());
        assert_eq!(
            message.payload_count(),
            vector.payloads().len(),
            "{}",
            vector.name
        );
        message
            .check()
            .unwrap_or_else(|error| panic!("{}: {error}", vector.name));
        // Each payload is met once on a walk, or wherever it is named again.
        let mut met = vec![false; message.payload_count()];
        let mut walk = message.walk(levels);
        while let Some(item) = walk.next_item().unwrap() {
            if let Item::Payload(number) = item {
                met[number] = true;
            }
        }
        assert!(met.iter().all(|met| *met), "{}", vector.name);
        for (number, expected) in vector.payloads().iter().enumerate() {
            check_payload(vector, &message, number, expected);
        }
        message.payload_count()
    });
    assert!(counts.iter().sum::<usize>() > 500, "{counts:?}");
}

fn check_payload(vector: &Vector, message: &Message<'_, &[u8]>, number: usize, expected: &Value) {
    let context = || format!("{} payload {number}", vector.name);
    let payload = message.payload(number).unwrap();
    let kind = match payload.kind() {
        PayloadKind::Serialized => "serialized",
        PayloadKind::Pickled => "pickled",
    };
    assert_eq!(expected["kind"], kind, "{}", context());
    // 1.14.0 and 1.14.1 do not say; their reader took that for no.
    if let Some(bytestring) = payload.bytestring() {
        assert_eq!(expected["bytestring"], bytestring, "{}", context());
    }
    let header = payload.header().unwrap();
    let names: Vec<Value> = match header.compression().unwrap() {
        None => Vec::new(),
        Some(list) => list
            .codec_names()
            .map(|name| match name.unwrap() {
                None => Value::Null,
                Some(name) => name.check().unwrap().to_str().into(),
            })
            .collect(),
    };
    let expected_names: Vec<Value> = expected["compression"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| {
            if name == &Value::Bool(false) {
                Value::Null
            } else {
                name.clone()
            }
        })
        .collect();
    assert_eq!(names, expected_names, "{}", context());
    if !names.is_empty() {
        assert_eq!(names.len(), payload.frames().len());
    }

    let frames = merged(&payload);
    if let Some(missing) = vector.missing_codec(number) {
        assert!(missing.explains(&frames.unwrap_err()), "{}", context());
        return;
    }
    let frames = frames.unwrap_or_else(|error| panic!("{}: {error}", context()));
    let expected = expected["frames"].as_array().unwrap();
    assert_eq!(frames.len(), expected.len(), "{}", context());
    for (frame, expected) in frames.iter().zip(expected) {
        assert!(is_frame(frame, expected), "{}", context());
    }
    // Without a copy, where nothing is compressed and lengths line up.
    let mut count = 0;
    for (logical, frame) in payload.logical_frames().unwrap().zip(&frames) {
        count += 1;
        let logical = match logical {
            Ok(logical) => logical,
            // Only in this layout can a frame be cut where it is not split.
            Err(error) => {
                assert_eq!(message.layout(), Layout::Classic, "{}", context());
                assert_eq!(error.kind, MessageErrorKind::SplitLists, "{}", context());
                return;
            }
        };
        if logical.is_compressed() {
            assert_eq!(logical.as_slice(), None);
            assert_eq!(logical.join_in(&vector.bytes), None);
            continue;
        }
        let joined: Vec<u8> = logical.parts().concat();
        assert_eq!(&joined, frame, "{}", context());
        let in_place = logical.join_in(&vector.bytes).unwrap();
        assert_eq!(in_place, frame, "{}", context());
        // The very bytes that arrived, not others that are equal.
        if !frame.is_empty() {
            assert!(vector.bytes.as_ptr_range().contains(&in_place.as_ptr()));
        }
        match logical.as_slice() {
            Some(slice) if !slice.is_empty() => assert_eq!(slice.as_ptr(), in_place.as_ptr()),
            Some(_) => assert!(frame.is_empty()),
            None => assert!(logical.parts().len() > 1, "{}", context()),
        }
    }
    assert_eq!(count, frames.len(), "{}", context());
}

#[test]
fn what_a_buffer_held_before_does_not_matter() {
    let vectors = vectors();
    in_parallel(&vectors, |vector| {
        let frames = vector.frames();
        let readings = [0xa5, 0x5a].map(|poison| {
            let mut room = Room::new();
            room.scratch.fill(poison);
            let (message, levels) = room
                .open(&frames, vector.layout(), &vector.reading())
                .ok()?;
            let body = message.body().to_vec();
            let items = reading_of(&message, levels);
            let payloads: Vec<_> = message
                .payloads()
                .map(|payload| merged_over(&payload.unwrap(), poison))
                .collect();
            Some((body, items, payloads))
        });
        assert_eq!(readings[0], readings[1], "{}", vector.name);
        assert_eq!(readings[0].is_none(), vector.missing_body_codec().is_some());
    });
}

/// Where to cut a vector: everywhere; of a large one the start, the boundaries
/// of frames with what is next to them, and other places as they come.
fn cuts(vector: &Vector) -> Vec<usize> {
    let len = vector.bytes.len();
    if len <= 64 << 10 {
        return (0..len).collect();
    }
    let mut cuts: Vec<usize> = (0..4 << 10).collect();
    let frames = vector.frames();
    let total: usize = frames.iter().map(|frame| frame.len()).sum();
    let mut at = len - total;
    for frame in frames {
        cuts.extend(at.saturating_sub(1)..=at + 1);
        at += frame.len();
    }
    cuts.push(len - 1);
    let mut random = Random(len as u64);
    cuts.extend((0..200).map(|_| random.below(len)));
    cuts.retain(|cut| *cut < len);
    cuts
}

// PROTOCOL FRAME-3
#[test]
fn every_vector_arrives_the_same_however_it_is_cut() {
    let vectors = vectors();
    in_parallel(&vectors, |vector| {
        let envelope = Envelope::parse(&vector.bytes, vector.prefix(), &LIMITS).unwrap();
        let mut prelude = [0; PRELUDE_LEN];
        let mut buffer = vec![0_u8; vector.bytes.len()];
        let mut arena = Arena::new(&mut buffer);
        let mut decoder = FrameDecoder::new(vector.prefix(), &mut prelude[..], LIMITS);
        let arrived = |decoder: &FrameDecoder<&mut [u8]>, arena: &Arena<'_>| {
            assert!(decoder.is_complete(), "{}", vector.name);
            assert_eq!(decoder.prefix_value(), envelope.prefix_value);
            let lengths = decoder.prelude().unwrap();
            assert!(
                lengths.lengths().eq(envelope.prelude.lengths()),
                "{}",
                vector.name
            );
            assert!(arena.filled() == envelope.frames, "{}", vector.name);
        };
        for cut in cuts(vector) {
            decoder.reset();
            arena.clear();
            for part in [&vector.bytes[..cut], &vector.bytes[cut..]] {
                let taken = decoder.push(part, &mut arena).unwrap();
                assert_eq!(taken, part.len(), "{} at {cut}", vector.name);
            }
            arrived(&decoder, &arena);
        }
        decoder.reset();
        arena.clear();
        for byte in &vector.bytes {
            let taken = decoder.push(core::slice::from_ref(byte), &mut arena);
            assert_eq!(taken, Ok(1), "{}", vector.name);
        }
        arrived(&decoder, &arena);
    });
}

#[test]
fn every_vector_cut_short_is_an_error_that_says_so() {
    let vectors = vectors();
    in_parallel(&vectors, |vector| {
        let len = vector.bytes.len() as u64;
        for cut in cuts(vector) {
            let error = Envelope::parse(&vector.bytes[..cut], vector.prefix(), &LIMITS);
            let error = error.map(|_| ()).unwrap_err();
            assert_eq!(error.at, cut as u64, "{}", vector.name);
            match error.kind {
                FrameErrorKind::Truncated { needed } => {
                    assert!(needed > cut as u64 && needed <= len, "{}", vector.name);
                }
                kind => panic!("{} cut at {cut}: {kind:?}", vector.name),
            }
        }
    });
}

/// Reads everything that there is to read in these bytes, in bounded room.
/// Whether that went well to the end.
fn read_all(bytes: &[u8], vector: &Vector, room: &mut Room, out: &mut [u8]) -> bool {
    let limits = Limits {
        document_len: 1 << 16,
        decompressed_len: 1 << 16,
        ..Limits::HOST
    };
    let Ok(envelope) = Envelope::parse(bytes, vector.prefix(), &limits) else {
        return false;
    };
    let frames = support::cut(&envelope);
    let reading = Reading {
        limits,
        ..vector.reading()
    };
    let Ok((message, levels)) = room.open(&frames, vector.layout(), &reading) else {
        return false;
    };
    let mut walk = message.walk(levels);
    let mut owed = 1_u64;
    let mut steps = 0_usize;
    while let Some(item) = walk.next_item().unwrap() {
        owed = owed - 1 + item.child_count();
        steps += 1;
        assert!(steps <= 1 << 17, "a walk ends");
        let _ = walk.path().count();
    }
    // What an item says about the items behind it is true.
    assert_eq!(owed, 0);
    let mut good = message.check().is_ok();
    let mut ends = [0; 64];
    for payload in message.payloads() {
        let Ok(payload) = payload else {
            good = false;
            continue;
        };
        let header = payload.header().unwrap();
        let _ = (header.serializer(), header.type_name(), header.dtype());
        let _ = (header.shape(), header.strides(), header.writeable());
        let _ = (header.is_collection(), header.frame_lengths());
        if let Ok(Some(headers)) = header.sub_headers() {
            for header in headers {
                let _ = header.map(|header| header.type_serialized());
            }
        }
        let _ = payload.merged_len();
        good &= payload.merge_into(out, &mut ends).is_ok();
        if let Ok(frames) = payload.logical_frames() {
            for frame in frames {
                let _ = frame.map(|frame| frame.as_slice().map(<[u8]>::len));
            }
        }
    }
    good
}

/// A page that counts what is written to it.
#[derive(Default)]
struct Written(usize);

impl core::fmt::Write for Written {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

#[test]
fn every_vector_with_a_bit_flipped_is_a_message_or_an_error() {
    let mut vectors = vectors();
    vectors.retain(|vector| vector.bytes.len() <= 4 << 10);
    let mut left = 0;
    vectors.retain(|vector| {
        left += 1;
        vector.bytes.len() <= 400 || left % 4 == 0
    });
    assert!(vectors.len() >= 200, "{} vectors", vectors.len());
    let good = in_parallel(&vectors, |vector| {
        let mut room = Room::with(64, 1 << 10, 1 << 16);
        let mut out = vec![0; 1 << 18];
        let mut good = 0_usize;
        let mut bytes = vector.bytes.clone();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            good += usize::from(read_all(&bytes, vector, &mut room, &mut out));
            let mut written = Written::default();
            let shown = display::Stream::new(&bytes, vector.prefix());
            core::fmt::write(&mut written, format_args!("{shown}")).unwrap();
            assert!(written.0 > 0 && written.0 <= 64 * bytes.len() + 1024);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        good
    });
    // Most flips change a value and are no concern of a codec.
    assert!(good.iter().sum::<usize>() > 10_000);
}

/// Headers of a pickle of one frame.
const HEADER: &[u8] = b"\x82\xaaserializer\xa6pickle\xaenum-sub-frames\x01";
const PICKLED: &[u8] = b"\x83\xabpickled-obj\xc4\x02N.\xabcompression\x90\xaenum-sub-frames\x00";

// PROTOCOL BODY-1
#[test]
fn a_body_is_any_one_value() {
    assert_eq!(line_of("modern-nosplit-2026.8.0/root-none"), "nil");
    assert!(line_of("modern-nosplit-2026.8.0/root-string").starts_with('\''));
    assert!(line_of("modern-nosplit-2026.8.0/batched").starts_with("array"));
    assert!(line_of("classic-2.30.1/root-list-mixed").starts_with("array"));
    assert_eq!(
        line_of("modern-nosplit-2026.8.0/docs-status-ok"),
        "map1 'status' 'OK'"
    );
    let op = |frames: &[&[u8]]| {
        let mut room = Room::with(4, 4, 0);
        let (message, _) = room
            .open(frames, Layout::Modern, &Reading::default())
            .unwrap();
        message.op().map(|op| op.to_str().unwrap().to_owned())
    };
    assert_eq!(op(&[b"\x81\xa2op\xa4ping"]), Some("ping".into()));
    assert_eq!(op(&[b"\x81\xa2op\x01"]), None);
    assert_eq!(op(&[b"\x91\xa2op"]), None);
}

// PROTOCOL BODY-2
#[test]
fn reserved_keys_count_in_their_order_and_wherever_the_map_stands() {
    let first = |keys: &[&str]| {
        let mut body = vec![0x80 | u8::try_from(keys.len()).unwrap()];
        for key in keys {
            body.push(0xa0 | u8::try_from(key.len()).unwrap());
            body.extend_from_slice(key.as_bytes());
            match *key {
                "__Serialized__" => body.push(1),
                "__Pickled__" => body.push(3),
                "as-list" => body.push(0x90),
                "__Set__" | "__Enum__" => body.push(0xc3),
                _ => body.extend_from_slice(b"\xa1n"),
            }
        }
        let frames: [&[u8]; 4] = [&body, HEADER, b"N.", PICKLED];
        modern(&frames).unwrap()
    };
    let (set, names) = (["__Set__", "as-list"], ["__module__", "__name__", "name"]);
    let of = |keys: &[&[&'static str]]| -> Vec<&'static str> { keys.concat() };
    let all = of(&[&set, &names, &["__Enum__", "__Pickled__", "__Serialized__"]]);
    assert_eq!(first(&all), "payload0");
    let pickled = of(&[&set, &names, &["__Enum__", "__Pickled__"]]);
    assert_eq!(first(&pickled), "payload0");
    assert_eq!(first(&of(&[&set, &names, &["__Enum__"]])), "enum:n.n.n");
    assert_eq!(first(&of(&[&set, &names])), "set0");
    assert!(first(&names).starts_with("map3"));

    // In maps, arrays and sets; and a bin is no reserved key.
    let frames: [&[u8]; 3] = [
        b"\x92\x82\xa7__Set__\xc3\xa7as-list\x91\x81\xae__Serialized__\x01\x81\xc4\x07__Set__\xc3",
        HEADER,
        b"N.",
    ];
    assert_eq!(
        modern(&frames).unwrap(),
        "array2 set1 payload0 map1 bin7 true"
    );
    assert!(line_of("modern-nosplit-2026.8.0/payload-beside-set").contains("payload0"));
    assert!(line_of("modern-nosplit-2026.8.0/set-mixed").contains("array1 set4 "));
    assert_eq!(
        line_of("modern-nosplit-2026.8.0/topickle-and-serialize"),
        "map3 'a' payload0 'b' payload1 'c' payload2"
    );
}

// PROTOCOL BODY-3
#[test]
fn sets_are_sets_to_those_who_know_them() {
    for name in [
        "modern-nosplit-2026.8.0/set",
        "modern-nosplit-2026.8.0/hm-set-key-order",
        "classic-total-2021.3.0/set",
        "classic-2021.1.1/set",
    ] {
        assert!(line_of(name).contains(" set"), "{name}");
    }
    let body: &[u8] = b"\x82\xa7as-list\x92\x01\x80\xa7__Set__\xc0";
    assert_eq!(modern(&[body]).unwrap(), "set2 1 map0");
    let plain = Reading {
        sets_and_enums: false,
        ..Reading::default()
    };
    for layout in [Layout::Modern, Layout::Classic] {
        let frames: &[&[u8]] = match layout {
            Layout::Modern => &[body],
            Layout::Classic => &[b"", body],
        };
        let line = read_as(frames, layout, &plain).unwrap();
        assert_eq!(line, "map2 'as-list' array2 1 map0 '__Set__' nil");
    }
    for body in [
        &b"\x81\xa7__Set__\xc3"[..],
        b"\x82\xa7__Set__\xc3\xa7as-list\x01",
    ] {
        assert_eq!(modern(&[body]), Err(MessageErrorKind::SetWithoutList));
        assert!(read_as(&[body], Layout::Modern, &plain).is_ok());
    }
    // What a set has beside its members is dropped, with what it holds.
    let frames: [&[u8]; 3] = [
        b"\x83\xa1x\x81\xae__Serialized__\x01\xa7__Set__\xc3\xa7as-list\x91\x07",
        HEADER,
        b"N.",
    ];
    assert_eq!(modern(&frames).unwrap(), "set1 7");
}

// PROTOCOL BODY-4
#[test]
fn enum_members_are_three_names() {
    assert!(
        line_of("modern-nosplit-2026.8.0/enum")
            .contains("'status' enum:distributed.core.Status.init")
    );
    assert!(line_of("modern-nosplit-2026.8.0/hm-enum-by-hand").contains("enum:"));
    // 2.30.1 reads them as the maps that they are.
    assert!(line_of("classic-2.30.1/enum").contains("'__Enum__' true"));
    let lacking: [&[u8]; 3] = [
        b"\x81\xa8__Enum__\xc3",
        b"\x84\xa8__Enum__\xc3\xa4name\x01\xaa__module__\xa1m\xa8__name__\xa1c",
        b"\x83\xa8__Enum__\xc3\xa4name\xa1n\xaa__module__\xa1m",
    ];
    for body in lacking {
        assert_eq!(modern(&[body]), Err(MessageErrorKind::EnumWithoutName));
    }
}

// PROTOCOL BODY-5 and CLASSIC-13
#[test]
fn classic_messages_have_no_placeholders() {
    for name in [
        "classic-total-2021.3.0/serialize-in-tuple",
        "classic-2020.12.0/serialize-in-tuple",
    ] {
        let line = line_of(name);
        assert!(
            line.contains("'__Serialized__' true 'data' array2 map"),
            "{line}"
        );
    }
    let body: &[u8] = b"\x81\xae__Serialized__\x01";
    assert_eq!(classic(&[b"", body]).unwrap(), "map1 '__Serialized__' 1");
    let body: &[u8] = b"\x81\xab__Pickled__\x09";
    assert_eq!(classic(&[b"", body]).unwrap(), "map1 '__Pickled__' 9");
    let body: &[u8] = b"\x81\xae__Serialized__\xc3";
    let expected = MessageErrorKind::PlaceholderNotFrame;
    assert_eq!(modern(&[body, HEADER, b"N."]), Err(expected));
    assert!(line_of("classic-2021.1.1/set").contains("set"));
}

// PROTOCOL MODERN-1
#[test]
fn the_first_frame_is_the_body_as_it_is() {
    with_vector(
        "modern-nosplit-2026.8.0/msgpack-frame-12000-zlib",
        |message, _| {
            assert_eq!(message.frames().len(), 1);
            assert_eq!(message.body().as_ptr(), message.frames()[0].as_ptr());
            assert!(message.body().len() > 10_000);
        },
    );
    assert!(line_of("modern-nosplit-2026.8.0/inband-bytes-65537").contains("bin65537"));
    assert_eq!(modern(&[]), Err(MessageErrorKind::NoBody));
}

// PROTOCOL MODERN-2
#[test]
fn a_placeholder_names_a_frame_by_its_number() {
    let read = |value: &[u8]| {
        let body = [b"\x92\x07\x81\xae__Serialized__", value].concat();
        modern(&[&body, HEADER, b"N."])
    };
    let widths: [&[u8]; 9] = [
        b"\x01",
        b"\xcc\x01",
        b"\xcd\0\x01",
        b"\xce\0\0\0\x01",
        b"\xcf\0\0\0\0\0\0\0\x01",
        b"\xd0\x01",
        b"\xd1\0\x01",
        b"\xd2\0\0\0\x01",
        b"\xd3\0\0\0\0\0\0\0\x01",
    ];
    for width in widths {
        assert_eq!(read(width).unwrap(), "array2 7 payload0");
    }
    let wrong: [&[u8]; 7] = [
        b"\x00",
        b"\xff",
        b"\xcb\x3f\xf0\0\0\0\0\0\0",
        b"\xa11",
        b"\xc0",
        b"\xc3",
        b"\x91\x01",
    ];
    for value in wrong {
        assert_eq!(read(value), Err(MessageErrorKind::PlaceholderNotFrame));
    }
    for (value, index) in [
        (&b"\x03"[..], 3),
        (b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", u64::MAX),
        (b"\xcf\0\0\0\x01\0\0\0\x01", (1 << 32) + 1),
    ] {
        let expected = MessageErrorKind::PlaceholderPastEnd {
            index,
            frame_count: 3,
        };
        assert_eq!(read(value), Err(expected));
    }
    // Never as a key, nor in one.
    for body in [
        &b"\x81\x81\xae__Serialized__\x01\x07"[..],
        b"\x81\x91\x81\xae__Serialized__\x01\x07",
    ] {
        let expected = MessageErrorKind::PlaceholderInKey;
        assert_eq!(modern(&[body, HEADER, b"N."]), Err(expected));
    }
    for name in [
        "payload-in-tuple",
        "deep-payload",
        "hm-placeholder-offset-u64",
    ] {
        assert!(line_of(&format!("modern-nosplit-2026.8.0/{name}")).contains("payload0"));
    }
}

// PROTOCOL MODERN-3
#[test]
fn a_run_lies_within_the_message() {
    let read = |header: &[u8]| {
        let body: &[u8] = b"\x81\xae__Serialized__\x01";
        modern(&[body, header, b"N."])
    };
    assert!(read(b"\x81\xaenum-sub-frames\x00").is_ok());
    assert!(read(b"\x81\xaenum-sub-frames\x01").is_ok());
    for (value, needed) in [
        (&b"\x02"[..], 2),
        (b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", u64::MAX),
    ] {
        let header = [b"\x81\xaenum-sub-frames", value].concat();
        let expected = MessageErrorKind::FramesMissing {
            needed,
            available: 1,
        };
        assert_eq!(read(&header), Err(expected));
    }
    let key = "num-sub-frames";
    assert_eq!(read(b"\x80"), Err(MessageErrorKind::EntryMissing { key }));
    for value in [&b"\xff"[..], b"\xc0", b"\xa11", b"\xca\0\0\0\0"] {
        let header = [b"\x81\xaenum-sub-frames", value].concat();
        let expected = "an integer";
        assert_eq!(
            read(&header),
            Err(MessageErrorKind::EntryKind { key, expected })
        );
    }
    with_vector(
        "modern-nosplit-2026.8.0/hm-payload-zero-frames",
        |message, _| {
            assert_eq!(message.payload(0).unwrap().frames().len(), 0);
            assert_eq!(message.payload(0).unwrap().logical_count(), Ok(0));
        },
    );
    with_vector("modern-nosplit-2026.8.0/shard-10k-mixed", |message, _| {
        let payload = message.payload(0).unwrap();
        assert_eq!(payload.first_frame(), 2);
        assert_eq!(
            payload.frames(),
            &message.frames()[2..2 + payload.frames().len()]
        );
    });
    let expected = MessageErrorKind::NoSuchPayload { count: 0 };
    with_vector("modern-nosplit-2026.8.0/docs-status-ok", |message, _| {
        assert_eq!(message.payload(0).unwrap_err().kind, expected);
    });
}

// PROTOCOL MODERN-4
#[test]
fn a_pickle_stands_in_its_header() {
    with_vector("modern-nosplit-2026.8.0/topickle-buffers", |message, _| {
        let payload = message.payload(0).unwrap();
        assert_eq!(payload.kind(), PayloadKind::Pickled);
        let object = payload.header().unwrap().pickled_object().unwrap().unwrap();
        assert!(object.starts_with(b"\x80\x05") && object.ends_with(b"."));
        let buffers = merged(&payload).unwrap();
        assert_eq!(buffers.iter().map(Vec::len).collect::<Vec<_>>(), [48, 0]);
    });
    for name in ["topickle", "fallback-pickle", "hm-pickled-no-compression"] {
        with_vector(&format!("modern-nosplit-2026.8.0/{name}"), |message, _| {
            for payload in message.payloads() {
                assert_eq!(payload.unwrap().kind(), PayloadKind::Pickled, "{name}");
            }
        });
    }
    let read = |header: &[u8]| modern(&[b"\x81\xab__Pickled__\x01", header, b"N."]);
    assert_eq!(read(PICKLED).unwrap(), "payload0");
    let key = "pickled-obj";
    assert_eq!(read(HEADER), Err(MessageErrorKind::EntryMissing { key }));
    let expected = MessageErrorKind::EntryKind {
        key,
        expected: "a bin",
    };
    let header = b"\x82\xabpickled-obj\xa2N.\xaenum-sub-frames\x00";
    assert_eq!(read(header), Err(expected));
    // Its buffers are never split, so that the lists mean nothing.
    let header = b"\x84\xabpickled-obj\xc4\x02N.\xaenum-sub-frames\x01\
        \xb4split-num-sub-frames\x91\x09\xadsplit-offsets\x91\x09";
    assert_eq!(read(header).unwrap(), "payload0");
}

// PROTOCOL MODERN-6 and MODERN-8
#[test]
fn runs_may_lie_anywhere() {
    let first_frames = |name: &str| {
        with_vector(&format!("modern-nosplit-2026.8.0/{name}"), |message, _| {
            message.check().unwrap();
            message
                .payloads()
                .map(|payload| payload.unwrap().first_frame())
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(first_frames("hm-placeholder-order"), [4, 2]);
    assert_eq!(first_frames("hm-placeholder-twice"), [2, 2]);
    with_vector("modern-nosplit-2026.8.0/hm-frames-unused", |message, _| {
        let used: usize = message
            .payloads()
            .map(|payload| 1 + payload.unwrap().frames().len())
            .sum();
        assert!(1 + used < message.frames().len());
    });
    assert!(line_of("modern-nosplit-2026.8.0/hm-placeholder-extra-key").contains("payload0"));
    // Other keys go, with the payloads and sets in them.
    let frames: [&[u8]; 3] = [
        b"\x92\x83\xa1a\x81\xae__Serialized__\x01\xa1b\x82\xa7__Set__\xc3\xa7as-list\x90\
          \xae__Serialized__\x01\x07",
        HEADER,
        b"N.",
    ];
    assert_eq!(modern(&frames).unwrap(), "array2 payload0 7");
    // Overlaps are found wherever they are, in order or not.
    let header = b"\x81\xaenum-sub-frames\x01";
    for body in [
        &b"\x92\x81\xae__Serialized__\x01\x81\xae__Serialized__\x02"[..],
        b"\x92\x81\xae__Serialized__\x02\x81\xae__Serialized__\x01",
    ] {
        let found = modern(&[body, header, header, b"N."]);
        assert_eq!(found, Err(MessageErrorKind::FramesShared));
    }
}

// PROTOCOL MODERN-9
#[test]
fn a_header_is_one_map_without_placeholders() {
    let read = |header: &[u8]| {
        let body: &[u8] = b"\x81\xae__Serialized__\x01";
        modern(&[body, header, b"N."])
    };
    let not_map = MessageErrorKind::EntryKind {
        key: "the header of a payload",
        expected: "a map",
    };
    for header in [&b"\x91\x01"[..], b"\x01", b"\xa1a"] {
        assert_eq!(read(header), Err(not_map));
    }
    assert!(matches!(
        read(b""),
        Err(MessageErrorKind::Malformed(MalformedKind::End { .. }))
    ));
    let with = |value: &[u8]| {
        let header = [b"\x82\xaenum-sub-frames\x01\xa1x", value].concat();
        read(&header)
    };
    for value in [
        &b"\x81\xae__Serialized__\x01"[..],
        b"\x81\xab__Pickled__\x01",
        b"\x92\x01\x81\x01\x91\x81\xae__Serialized__\x09",
    ] {
        assert_eq!(with(value), Err(MessageErrorKind::PlaceholderInHeader));
    }
    // As a value it is text; in an array too; with anything else it names none.
    for value in [
        &b"\x92\xae__Serialized__\x01"[..],
        b"\x81\x01\xae__Serialized__",
        b"\x82\xae__Serialized__\xc3\xa4data\x90",
        b"\x82\xa7__Set__\xc3\xa7as-list\x90",
    ] {
        assert!(with(value).is_ok(), "{value:x?}");
    }
    // At the top of the header, too.
    let header = b"\x82\xaenum-sub-frames\x01\xae__Serialized__\x01";
    assert_eq!(read(header), Err(MessageErrorKind::PlaceholderInHeader));
    // Passing on does not look.
    let header: &[u8] = b"\x82\xaenum-sub-frames\x01\xae__Serialized__\x01";
    let frames: [&[u8]; 3] = [b"\x81\xae__Serialized__\x01", header, b"N."];
    let mut room = Room::with(2, 2, 0);
    let (message, _) = room
        .open(&frames, Layout::Modern, &Reading::default())
        .unwrap();
    assert_eq!(message.payload(0).unwrap().header_bytes(), header);
    assert!(line_of("modern-nosplit-2026.8.0/hm-payload-header-not-minimal").contains("payload0"));
}
