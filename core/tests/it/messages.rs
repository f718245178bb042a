//! Tests of reading messages: recorded from real releases, split and damaged.

use crate::support;
use crate::support::{
    LIMITS, Random, Vector, Workspaces, in_parallel, is_frame, merged, merged_over, reading_of,
    vector, vectors,
};
use daskwire::compression::Codec;
use daskwire::display;
use daskwire::frame::{Arena, FrameDecoder, FrameErrorKind, FramedMessage, Prefix};
use daskwire::message::{
    EnumMember, Item, ItemList, Layout, Message, MessageError, MessageErrorKind, PathElement,
    Payload, PayloadHeader, PayloadKind, ReadOptions, Scratch, ScratchRef, Serializer, Workspace,
};
use daskwire::msgpack::{MalformedKind, Reader, Token};
use daskwire::{BufferTooSmall, Limits};
use serde_json::Value;

/// Space for the lengths of any vector, in bytes.
const PRELUDE_LEN: usize = 1 << 14;

/// Opens a vector with the options of its release.
fn with_vector<R>(name: &str, use_it: impl FnOnce(Message<'_, &[u8]>, &mut Workspace) -> R) -> R {
    let vector = vector(name);
    let frames = vector.frames();
    let mut workspaces = Workspaces::new();
    let (message, levels) = workspaces
        .open(&frames, vector.layout(), &vector.reading())
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    use_it(message, levels)
}

/// The items of a body as one line.
fn line<'w>(message: &Message<'_, &[u8]>, scratch: impl Into<ScratchRef<'w>>) -> String {
    let mut walk = message.walk(scratch);
    let mut words = Vec::new();
    while let Some(item) = walk.next_item().unwrap() {
        words.push(match item {
            Item::Token(Token::Nil) => "nil".into(),
            Item::Token(Token::Bool(value)) => value.to_string(),
            Item::Token(Token::UInt(value)) => value.to_string(),
            Item::Token(Token::Int(value)) => value.to_string(),
            Item::Token(Token::F64(value)) => format!("{value:?}"),
            Item::Token(Token::Str(string)) => format!("'{}'", string.to_str().unwrap()),
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

/// The frames as one line, payloads included, or the error.
fn read_as(
    frames: &[&[u8]],
    layout: Layout,
    reading: &ReadOptions,
) -> Result<String, MessageError> {
    let mut workspaces = Workspaces::with(8, 8, 64);
    let (message, levels) = workspaces.open(frames, layout, reading)?;
    message.check()?;
    Ok(line(&message, levels))
}

fn modern(frames: &[&[u8]]) -> Result<String, MessageErrorKind> {
    read_as(frames, Layout::Modern, &ReadOptions::default()).map_err(|error| error.kind)
}

fn classic(frames: &[&[u8]]) -> Result<String, MessageErrorKind> {
    read_as(frames, Layout::Classic, &ReadOptions::default()).map_err(|error| error.kind)
}

// PROTOCOL BODY-1, MODERN-1, MODERN-2, MODERN-3, CLASSIC-1, CLASSIC-4 and CLASSIC-8
// PROTOCOL CLASSIC-9, CLASSIC-11, SPLIT-3, SPLIT-4 and SPLIT-5
/// The payloads of each vector match its description: number, kind, compression
/// and logical frames.
#[test]
fn every_vector_is_read_as_by_its_release() {
    let vectors = vectors();
    let counts = in_parallel(&vectors, |vector| {
        let mut workspaces = Workspaces::new();
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
        let opened = workspaces.open(&frames, vector.layout(), &vector.reading());
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
        // A walk visits each payload once, or once per reference.
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
    // Absent in 1.14.0 and 1.14.1, which means no.
    if let Some(bytestring) = payload.bytestring() {
        assert_eq!(expected["bytestring"], bytestring, "{}", context());
    }
    let header = payload.header();
    let names: Vec<Value> = match header.list("compression").unwrap() {
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
    // Without a copy, if nothing is compressed and lengths match.
    let mut count = 0;
    for (logical, frame) in payload.logical_frames().unwrap().zip(&frames) {
        count += 1;
        let logical = match logical {
            Ok(logical) => logical,
            // Only in this layout can frames be regrouped without being split.
            Err(error) => {
                assert_eq!(message.layout(), Layout::Classic, "{}", context());
                let expected = MessageErrorKind::LengthsInsideFrame;
                assert_eq!(error.kind, expected, "{}", context());
                assert!(error.is_caller_fault(), "{}", context());
                return;
            }
        };
        if logical.is_compressed() {
            assert_eq!(logical.as_slice(), None);
            continue;
        }
        let joined: Vec<u8> = logical.parts().concat();
        assert_eq!(&joined, frame, "{}", context());
        match logical.as_slice() {
            Some(slice) => {
                assert_eq!(slice, frame, "{}", context());
                // The same memory, not a copy.
                let received = vector.bytes.as_ptr_range();
                assert!(slice.is_empty() || received.contains(&slice.as_ptr()));
            }
            None => assert!(logical.parts().len() > 1, "{}", context()),
        }
    }
    assert_eq!(count, frames.len(), "{}", context());
}

#[test]
fn former_scratch_contents_have_no_effect() {
    let vectors = vectors();
    let long = vector("classic-2.30.1/many-payloads");
    let long_frames = long.frames();
    in_parallel(&vectors, |vector| {
        let frames = vector.frames();
        let readings = [0xa5, 0x5a].map(|poison| {
            let mut workspaces = Workspaces::new();
            if poison == 0xa5 {
                // Another message, which uses all parts of the memory.
                let used = workspaces.open(&long_frames, long.layout(), &long.reading());
                assert!(used.is_ok() || long.missing_body_codec().is_some());
            }
            let (message, levels) = workspaces
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

/// The split points of a vector: all; for a large one the start, the frame
/// boundaries with their neighbours, and random positions.
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
fn every_vector_is_the_same_at_every_split() {
    let vectors = vectors();
    in_parallel(&vectors, |vector| {
        let framed = FramedMessage::parse(&vector.bytes, vector.prefix(), &LIMITS).unwrap();
        let mut prelude = [0; PRELUDE_LEN];
        let mut buffer = vec![0_u8; vector.bytes.len()];
        let mut arena = Arena::new(&mut buffer);
        let mut decoder = FrameDecoder::new(vector.prefix(), &mut prelude[..], LIMITS);
        let arrived = |decoder: &FrameDecoder<&mut [u8]>, arena: &Arena<'_>| {
            assert!(decoder.is_complete(), "{}", vector.name);
            let lengths = decoder.prelude().unwrap();
            assert!(
                lengths.lengths().eq(framed.prelude.lengths()),
                "{}",
                vector.name
            );
            assert!(arena.filled() == framed.frames, "{}", vector.name);
        };
        for cut in cuts(vector) {
            decoder.reset();
            for part in [&vector.bytes[..cut], &vector.bytes[cut..]] {
                let mut rest = part;
                decoder.push(&mut rest, &mut arena).unwrap();
                assert!(rest.is_empty(), "{} at {cut}", vector.name);
            }
            arrived(&decoder, &arena);
        }
        decoder.reset();
        for byte in &vector.bytes {
            let mut rest = core::slice::from_ref(byte);
            decoder.push(&mut rest, &mut arena).unwrap();
            assert!(rest.is_empty(), "{}", vector.name);
        }
        arrived(&decoder, &arena);
    });
}

#[test]
fn every_truncated_vector_is_refused() {
    let vectors = vectors();
    in_parallel(&vectors, |vector| {
        let len = vector.bytes.len() as u64;
        for cut in cuts(vector) {
            let error = FramedMessage::parse(&vector.bytes[..cut], vector.prefix(), &LIMITS);
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

/// Reads everything in these bytes with bounded buffers. Returns whether that
/// succeeded.
fn read_all(bytes: &[u8], vector: &Vector, workspaces: &mut Workspaces, out: &mut [u8]) -> bool {
    let limits = Limits::HOST
        .with_document_len(1 << 16)
        .with_decompressed_len(1 << 16);
    let Ok(framed) = FramedMessage::parse(bytes, vector.prefix(), &limits) else {
        return false;
    };
    let frames = support::cut(&framed);
    let reading = vector.reading().with_limits(limits);
    let Ok((message, levels)) = workspaces.open(&frames, vector.layout(), &reading) else {
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
    // The child counts of items match the items after them.
    assert_eq!(owed, 0);
    let mut good = message.check().is_ok();
    let mut ends = [0; 64];
    for payload in message.payloads() {
        let Ok(payload) = payload else {
            good = false;
            continue;
        };
        let header = payload.header();
        let _ = (header.serializer(), header.type_name(), header.dtype());
        let _ = (header.shape(), header.strides(), header.writeable());
        let _ = (header.is_collection(), header.list("frame-lengths"));
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

/// A formatter sink that counts the bytes written.
#[derive(Default)]
struct Written(usize);

impl core::fmt::Write for Written {
    fn write_str(&mut self, string: &str) -> core::fmt::Result {
        self.0 += string.len();
        Ok(())
    }
}

#[test]
fn every_bit_flip_is_a_message_or_an_error() {
    let mut vectors = vectors();
    vectors.retain(|vector| vector.bytes.len() <= 4 << 10);
    let mut left = 0;
    vectors.retain(|vector| {
        left += 1;
        vector.bytes.len() <= 400 || left % 4 == 0
    });
    assert!(vectors.len() >= 200, "{} vectors", vectors.len());
    let good = in_parallel(&vectors, |vector| {
        let mut workspaces = Workspaces::with(64, 1 << 10, 1 << 16);
        let mut out = vec![0; 1 << 18];
        let mut good = 0_usize;
        let mut bytes = vector.bytes.clone();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            good += usize::from(read_all(&bytes, vector, &mut workspaces, &mut out));
            let mut written = Written::default();
            let shown = display::Document::new(&bytes);
            core::fmt::write(&mut written, format_args!("{shown}")).unwrap();
            assert!(written.0 > 0 && written.0 <= 64 * bytes.len() + 1024);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        good
    });
    // Most flips change a value, which the codec does not check.
    assert!(good.iter().sum::<usize>() > 10_000);
}

/// Headers of a pickle of one frame.
const HEADER: &[u8] = b"\x82\xaaserializer\xa6pickle\xaenum-sub-frames\x01";
const PICKLED: &[u8] = b"\x83\xabpickled-obj\xc4\x02N.\xabcompression\x90\xaenum-sub-frames\x00";

// PROTOCOL BODY-1
#[test]
fn body_can_be_any_single_value() {
    assert_eq!(line_of("modern-nosplit-2026.8.0/root-none"), "nil");
    assert!(line_of("modern-nosplit-2026.8.0/root-string").starts_with('\''));
    assert!(line_of("modern-nosplit-2026.8.0/batched").starts_with("array"));
    assert!(line_of("classic-2.30.1/root-list-mixed").starts_with("array"));
    assert_eq!(
        line_of("modern-nosplit-2026.8.0/docs-status-ok"),
        "map1 'status' 'OK'"
    );
    let op = |frames: &[&[u8]]| {
        let mut workspaces = Workspaces::with(4, 4, 0);
        let (message, _) = workspaces
            .open(frames, Layout::Modern, &ReadOptions::default())
            .unwrap();
        message.op().map(|op| op.to_str().unwrap().to_owned())
    };
    assert_eq!(op(&[b"\x81\xa2op\xa4ping"]), Some("ping".into()));
    let twice = b"\x82\xa2op\xa4ping\xa2op\xa5close";
    assert_eq!(op(&[twice]), Some("close".into()));
    assert_eq!(op(&[b"\x81\xa2op\x01"]), None);
    assert_eq!(op(&[b"\x91\xa2op"]), None);
}

// PROTOCOL BODY-2
#[test]
fn reserved_keys_apply_in_order_at_any_position() {
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

    // In maps, arrays and sets; a bin is not a reserved key.
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
fn sets_depend_on_the_release() {
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
    let plain = ReadOptions::default().with_sets_and_enums(false);
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
    // Other keys of a set are dropped, with their values.
    let frames: [&[u8]; 3] = [
        b"\x83\xa1x\x81\xae__Serialized__\x01\xa7__Set__\xc3\xa7as-list\x91\x07",
        HEADER,
        b"N.",
    ];
    assert_eq!(modern(&frames).unwrap(), "set1 7");
}

// PROTOCOL BODY-4
#[test]
fn enum_members_have_three_names() {
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

// PROTOCOL CLASSIC-1, CLASSIC-2 and MODERN-1
#[test]
fn the_other_layout_is_recognised() {
    let wrong = |likely| Err(MessageErrorKind::WrongLayout { likely });
    // {"op": "ping"}, a batch, and a payload without frames.
    let pickled: &[u8] = b"\x81\xabpickled-obj\xc4\x01N";
    for frames in [
        &[&b"\x81\xa2op\xa4ping"[..]][..],
        &[b"\x91\x81\xae__Serialized__\x01", HEADER, b"N."],
        &[b"\x81\xa4data\x81\xab__Pickled__\x01", pickled],
    ] {
        assert_eq!(classic(frames), wrong(Layout::Modern));
    }
    // The same message as {"op": "ping"}, and one with a compressed body.
    for header in [&b""[..], b"\x81\xabcompression\xa3lz4"] {
        let frames = [header, b"\x81\xa2op\xa4ping"];
        assert_eq!(modern(&frames), wrong(Layout::Classic));
    }
    // A body without payloads may have such a key.
    modern(&[b"\x81\xabcompression\xa3lz4"]).unwrap();
    // Every recorded message is recognised, or fails for the other layout.
    in_parallel(&vectors(), |vector| {
        let other = match vector.layout() {
            Layout::Modern => Layout::Classic,
            Layout::Classic => Layout::Modern,
        };
        let frames = vector.frames();
        let mut workspaces = Workspaces::with(64, 64, 1 << 16);
        let opened = workspaces.open(&frames, other, &vector.reading());
        if vector.name.contains("/hm-classic-") && opened.is_ok() {
            // An unusual header, which no release writes.
            return;
        }
        let error = opened.map(|_| vector.name.clone()).unwrap_err();
        assert!(!error.is_caller_fault(), "{}: {error}", vector.name);
        if vector.layout() == Layout::Modern && frames.len() == 1 {
            let likely = Layout::Modern;
            assert_eq!(error.kind, MessageErrorKind::WrongLayout { likely });
        }
    });
}

// PROTOCOL MODERN-1
#[test]
fn first_frame_is_the_body_unchanged() {
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
fn placeholders_refer_to_frames_by_index() {
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
fn payload_frames_must_be_within_the_message() {
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
        let expected = "an integer of 0 or more";
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
fn pickles_can_be_inline_in_the_header() {
    with_vector("modern-nosplit-2026.8.0/topickle-buffers", |message, _| {
        let payload = message.payload(0).unwrap();
        assert_eq!(payload.kind(), PayloadKind::Pickled);
        let object = payload.header().pickled_object().unwrap().unwrap();
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
    // Its buffers are never split, so the lists have no effect.
    let header = b"\x84\xabpickled-obj\xc4\x02N.\xaenum-sub-frames\x01\
        \xb4split-num-sub-frames\x91\x09\xadsplit-offsets\x91\x09";
    assert_eq!(read(header).unwrap(), "payload0");
}

// PROTOCOL MODERN-6 and MODERN-8
#[test]
fn payload_frames_can_be_anywhere() {
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
    with_vector("modern-nosplit-2026.8.0/hm-frames-unused", |message, _| {
        let used: usize = message
            .payloads()
            .map(|payload| 1 + payload.unwrap().frames().len())
            .sum();
        assert!(1 + used < message.frames().len());
    });
    assert!(line_of("modern-nosplit-2026.8.0/hm-placeholder-extra-key").contains("payload0"));
    // Other keys are dropped, with the payloads and sets in them.
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

/// The payloads of a message together have at most as many frames as the
/// message, however they refer to them, so that the cost is proportional to the
/// message.
// PROTOCOL MODERN-7
#[test]
fn payloads_cannot_share_frames() {
    let placeholder = |index: usize| {
        let mut bytes = b"\x81\xae__Serialized__\xcd".to_vec();
        bytes.extend_from_slice(&u16::try_from(index).unwrap().to_be_bytes());
        bytes
    };
    let body = |indexes: &[usize]| {
        let mut body = vec![0xdc];
        body.extend_from_slice(&u16::try_from(indexes.len()).unwrap().to_be_bytes());
        body.extend(indexes.iter().flat_map(|index| placeholder(*index)));
        body
    };
    let header = |count: u16| {
        let mut bytes = b"\x81\xaenum-sub-frames\xcd".to_vec();
        bytes.extend_from_slice(&count.to_be_bytes());
        bytes
    };
    let reading = ReadOptions::default();
    for count in [1_000_usize, 2_000] {
        // Many placeholders for one header with as many frames.
        let mut workspaces = Workspaces::with(2, count, 0);
        let many = header(u16::try_from(count).unwrap());
        let shared = body(&vec![1; count]);
        let mut frames = vec![&shared[..], &many];
        frames.resize(count + 2, b"");
        let error = workspaces
            .open(&frames, Layout::Modern, &reading)
            .unwrap_err();
        assert_eq!(
            (error.frame, error.kind),
            (1, MessageErrorKind::FramesShared)
        );

        // Headers that each claim all frames after them, in either order.
        let headers: Vec<Vec<u8>> = (1..=count)
            .map(|index| header(u16::try_from(count - index).unwrap()))
            .collect();
        let forward: Vec<usize> = (1..=count).collect();
        let backward: Vec<usize> = (1..=count).rev().collect();
        for indexes in [forward, backward] {
            let body = body(&indexes);
            let mut frames = vec![&body[..]];
            frames.extend(headers.iter().map(Vec::as_slice));
            let (message, _) = workspaces.open(&frames, Layout::Modern, &reading).unwrap();
            assert_eq!(message.payload_count(), count);
            let taken: usize = message
                .payloads()
                .map(|payload| match payload {
                    Ok(payload) => 1 + payload.frames().len(),
                    Err(error) => {
                        assert_eq!(error.kind, MessageErrorKind::FramesShared);
                        0
                    }
                })
                .sum();
            assert!(taken <= frames.len(), "{taken} of {}", frames.len());
            let error = message.check().unwrap_err();
            assert_eq!(error.kind, MessageErrorKind::FramesShared);
        }
    }
}

// PROTOCOL MODERN-9
#[test]
fn headers_are_single_maps_without_placeholders() {
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
        Err(MessageErrorKind::Malformed(MalformedKind::Truncated { .. }))
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
    // As a value, also in an array, it is a string; in other places it names no
    // payload.
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
    // Forwarding does not check this.
    let header: &[u8] = b"\x82\xaenum-sub-frames\x01\xae__Serialized__\x01";
    let frames: [&[u8]; 3] = [b"\x81\xae__Serialized__\x01", header, b"N."];
    let mut workspaces = Workspaces::with(2, 2, 0);
    let (message, _) = workspaces
        .open(&frames, Layout::Modern, &ReadOptions::default())
        .unwrap();
    assert_eq!(message.payload(0).unwrap().header_bytes(), header);
    assert!(line_of("modern-nosplit-2026.8.0/hm-payload-header-not-minimal").contains("payload0"));
}

/// The payload header of a classic message: headers by path, and their order.
fn payload_header(headers: &[(&[u8], &[u8])], keys: &[&[u8]]) -> Vec<u8> {
    let count = |count: usize| u8::try_from(count).unwrap();
    let mut bytes = b"\x83\xa7headers".to_vec();
    bytes.push(0x80 | count(headers.len()));
    for (path, header) in headers {
        bytes.extend_from_slice(path);
        bytes.extend_from_slice(header);
    }
    bytes.extend_from_slice(b"\xa4keys");
    bytes.push(0x90 | count(keys.len()));
    bytes.extend(keys.concat());
    bytes.extend_from_slice(b"\xabbytestrings\x90");
    bytes
}

/// The header of a payload of one frame with two bytes.
const HEADER_OF_TWO_BYTES: &[u8] = b"\x82\xa5count\x01\xa7lengths\x91\x02";

/// A classic message with payloads of one frame at these paths.
fn with_paths(body: &[u8], paths: &[&[u8]]) -> Result<String, MessageErrorKind> {
    let table: Vec<_> = paths
        .iter()
        .map(|path| (*path, HEADER_OF_TWO_BYTES))
        .collect();
    let header = payload_header(&table, paths);
    let mut frames: Vec<&[u8]> = vec![b"", body, &header];
    frames.extend(paths.iter().map(|_| &b"N."[..]));
    classic(&frames)
}

// PROTOCOL CLASSIC-1, CLASSIC-2 and CLASSIC-3
#[test]
fn classic_messages_have_a_header_and_a_body() {
    assert_eq!(classic(&[]), Err(MessageErrorKind::NoBody));
    assert_eq!(classic(&[b""]), Err(MessageErrorKind::NoBody));
    let body: &[u8] = b"\x07";
    for header in [
        &b""[..],
        b"\x80",
        b"\x81\xabcompression\xc0",
        b"\x81\xabcompression\xc2",
        b"\x82\xa5other\xa3abc\xabcompression\xc0",
    ] {
        assert_eq!(classic(&[header, body]).unwrap(), "7");
    }
    for header in [&b"\x01"[..], b"\xc0"] {
        let found = classic(&[header, body]);
        assert!(
            matches!(
                found,
                Err(MessageErrorKind::Malformed(
                    MalformedKind::Unexpected { .. }
                ))
            ),
            "{found:?}"
        );
    }
    let found = classic(&[b"\x81\xabcompression\x01", body]);
    assert!(matches!(found, Err(MessageErrorKind::EntryKind { .. })));
    let found = classic(&[b"\x81\xabcompression\xa5blosc", body]);
    assert!(matches!(found, Err(MessageErrorKind::UnknownCodec { .. })));
    for name in [
        "docs-status-ok",
        "docs-get-data-ones5",
        "hm-classic-empty-header-map",
        "hm-classic-header-null-compression",
    ] {
        assert!(!line_of(&format!("classic-2.30.1/{name}")).is_empty());
    }
    // An empty body is refused, and a payload header may have no payloads.
    assert!(classic(&[b"", b""]).is_err());
    let none = payload_header(&[], &[]);
    assert_eq!(classic(&[b"", body, &none]).unwrap(), "7");
}

// PROTOCOL CLASSIC-3
#[cfg(feature = "lz4")]
#[test]
fn classic_bodies_are_decompressed_within_limits() {
    // 10 bytes: an array of 9 sevens, in an lz4 block of literals.
    let header: &[u8] = b"\x81\xabcompression\xa3lz4";
    let body: &[u8] = b"\x0a\0\0\0\xa0\x99\x07\x07\x07\x07\x07\x07\x07\x07\x07";
    let frames = [header, body];
    let open = |body_len: usize, decompressed_len: u64, document_len: u64| {
        let reading = ReadOptions::new(
            Limits::HOST
                .with_decompressed_len(decompressed_len)
                .with_document_len(document_len),
        );
        let mut workspaces = Workspaces::with(1, 0, body_len);
        let (message, levels) = workspaces
            .open(&frames, Layout::Classic, &reading)
            .map_err(|error| error.kind)?;
        Ok(line(&message, levels))
    };
    let read = "array9 7 7 7 7 7 7 7 7 7";
    assert_eq!(open(10, 10, 17).unwrap(), read);
    assert_eq!(open(11, 11, 1 << 20).unwrap(), read);
    let short = BufferTooSmall {
        needed: 10,
        available: 9,
    };
    assert_eq!(open(9, 10, 17), Err(MessageErrorKind::BodyBuffer(short)));
    use daskwire::compression::CompressionError::OverLimit;
    let over = |limit| Err(MessageErrorKind::Compression(OverLimit { limit }));
    assert_eq!(open(10, 9, 1 << 20), over(9));
    let too_long = MessageErrorKind::DocumentTooLong { len: 17, limit: 16 };
    assert_eq!(open(10, 10, 16), Err(too_long));
    with_vector("classic-2.30.1/hm-classic-message-lz4", |message, _| {
        assert_ne!(message.body(), message.frames()[1]);
    });
}

// PROTOCOL CLASSIC-4, CLASSIC-7 and CLASSIC-8
#[test]
fn classic_payload_headers_locate_payloads() {
    let (a, b): (&[u8], &[u8]) = (b"\x91\xa1a", b"\x91\xa1b");
    let body: &[u8] = b"\x81\xa1c\x07";
    let read = |header: &[u8], frame_count: usize| {
        let mut frames: Vec<&[u8]> = vec![b"", body, header];
        frames.resize(3 + frame_count, b"N.");
        classic(&frames)
    };
    // `keys` determines the order, not `headers`.
    let both = [(a, HEADER_OF_TWO_BYTES), (b, HEADER_OF_TWO_BYTES)];
    assert_eq!(
        read(&payload_header(&both, &[b, a]), 2).unwrap(),
        "map3 'c' 7 'b' payload0 'a' payload1"
    );
    with_vector("classic-2.30.1/hm-classic-keys-order", |message, _| {
        let tags: Vec<_> = message
            .payloads()
            .map(|payload| payload.unwrap().header().get("tag").unwrap())
            .collect();
        assert_eq!(tags, [b"\xa1b", b"\xa1a"]);
    });
    // Each path must be unique and in `headers`. A header without a key is
    // ignored.
    assert_eq!(
        read(&payload_header(&both, &[a, a]), 2),
        Err(MessageErrorKind::PathTwice)
    );
    let missing = |key| Err(MessageErrorKind::EntryMissing { key });
    assert_eq!(
        read(&payload_header(&[(a, HEADER_OF_TWO_BYTES)], &[b]), 1),
        missing("headers")
    );
    assert_eq!(
        read(&payload_header(&both, &[b]), 1).unwrap(),
        "map2 'c' 7 'b' payload0"
    );
    assert_eq!(read(b"\x81\xa4keys\x90", 0), missing("headers"));
    assert_eq!(read(b"\x81\xa7headers\x80", 0), missing("keys"));
    assert_eq!(
        read(b"\x82\xa4keys\x90\xa7headers\x80", 0).unwrap(),
        "map1 'c' 7"
    );
    let kind = |key, expected| Err(MessageErrorKind::EntryKind { key, expected });
    assert_eq!(
        read(b"\x82\xa4keys\x80\xa7headers\x80", 0),
        kind("keys", "an array")
    );
    assert_eq!(
        read(b"\x82\xa4keys\x90\xa7headers\x90", 0),
        kind("headers", "a map")
    );
    // The counts cover all frames and no more.
    let one = payload_header(&[(a, HEADER_OF_TWO_BYTES)], &[a]);
    assert_eq!(
        read(&one, 0),
        Err(MessageErrorKind::FramesMissing {
            needed: 1,
            available: 0
        })
    );
    assert_eq!(
        read(&one, 2),
        Err(MessageErrorKind::FramesLeftOver { count: 1 })
    );
    let zero: &[u8] = b"\x82\xa5count\x00\xa7lengths\x90";
    assert_eq!(
        read(&payload_header(&[(a, zero)], &[a]), 0).unwrap(),
        "map2 'c' 7 'a' payload0"
    );
    assert_eq!(
        read(&payload_header(&[(a, b"\x80")], &[a]), 1),
        missing("count")
    );
    let negative = payload_header(&[(a, b"\x81\xa5count\xff")], &[a]);
    assert_eq!(read(&negative, 1), kind("count", "an integer of 0 or more"));
    let not_map = payload_header(&[(a, b"\x90")], &[a]);
    assert_eq!(read(&not_map, 1), kind("the header of a payload", "a map"));
    for name in ["hm-classic-count-zero", "many-payloads", "multi-list-root"] {
        assert!(line_of(&format!("classic-2.30.1/{name}")).contains("payload0"));
    }
}

// PROTOCOL CLASSIC-5
#[test]
fn ambiguous_paths_are_refused() {
    // Otherwise n payloads below a key that occurs n times would cost n * n.
    let paths = |body: &[u8]| with_paths(body, &[b"\x92\xa1a\xa1x"]);
    assert!(paths(b"\x81\xa1a\x80").is_ok());
    for body in [
        &b"\x82\xa1a\x80\xa1a\x80"[..],
        b"\x82\xa1a\x81\xa1x\xc0\xa1a\x81\xa1x\xc0",
        b"\x81\xa1a\x82\xa1x\xc0\xa1x\xc0",
    ] {
        assert_eq!(paths(body), Err(MessageErrorKind::PathAmbiguous));
    }
}

// PROTOCOL CLASSIC-5 and CLASSIC-6
#[test]
fn paths_resolve_to_one_value() {
    let body: &[u8] = b"\x82\xa1m\x82\x01\x07\xa1k\xc0\xa1l\x93\xc0\x05\x91\xc0";
    let read = |paths: &[&[u8]]| with_paths(body, paths);
    let whole = "map2 'm' map2 1 7 'k' nil 'l' array3 nil 5 array1 nil";
    assert_eq!(read(&[]).unwrap(), whole);
    // A new entry, or the replacement of a value.
    for (path, line) in [
        (
            &b"\x91\xa1n"[..],
            "map3 'm' map2 1 7 'k' nil 'l' array3 nil 5 array1 nil 'n' payload0",
        ),
        (
            b"\x92\xa1m\xa1n",
            "map2 'm' map3 1 7 'k' nil 'n' payload0 'l' array3 nil 5 array1 nil",
        ),
        (
            b"\x92\xa1m\xa1k",
            "map2 'm' map2 1 7 'k' payload0 'l' array3 nil 5 array1 nil",
        ),
        // A number as a key, however wide; a key that is an array.
        (
            b"\x92\xa1m\xcd\x00\x01",
            "map2 'm' map2 1 payload0 'k' nil 'l' array3 nil 5 array1 nil",
        ),
        (
            b"\x92\xa1m\x92\xa1t\x00",
            "map2 'm' map3 1 7 'k' nil array2 't' 0 payload0 'l' array3 nil 5 array1 nil",
        ),
        (
            b"\x92\xa1m\xc0",
            "map2 'm' map3 1 7 'k' nil nil payload0 'l' array3 nil 5 array1 nil",
        ),
        (
            b"\x92\xa1l\x00",
            "map2 'm' map2 1 7 'k' nil 'l' array3 payload0 5 array1 nil",
        ),
        (
            b"\x93\xa1l\x02\x00",
            "map2 'm' map2 1 7 'k' nil 'l' array3 nil 5 array1 payload0",
        ),
        // A str is a path of one key.
        (b"\xa1m", "map2 'm' payload0 'l' array3 nil 5 array1 nil"),
        (b"\x90", "payload0"),
    ] {
        assert_eq!(read(&[path]).as_deref(), Ok(line), "{path:x?}");
    }
    // The replacement of a set, before another one.
    let sets = b"\x82\xa1a\x82\xa7__Set__\xc3\xa7as-list\x91\x01\xa1b\x82\xa7__Set__\xc3\xa7as-list\x91\x02";
    let replaced = with_paths(sets, &[b"\x91\xa1a"]).unwrap();
    assert_eq!(replaced, "map2 'a' payload0 'b' set1 2");
    assert_eq!(
        read(&[b"\x92\xa1l\x01", b"\x92\xa1l\x00", b"\x91\xa1x"]).unwrap(),
        "map3 'm' map2 1 7 'k' nil 'l' array3 payload1 payload0 array1 nil 'x' payload2"
    );
    // Invalid paths: past the end, from the end, a key in a list, into a
    // scalar.
    for path in [
        &b"\x92\xa1l\x03"[..],
        b"\x92\xa1l\xff",
        b"\x92\xa1l\xa10",
        b"\x92\xa1l\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x93\xa1m\x01\x00",
        b"\x93\xa1x\xa1y\xa1z",
        b"\x93\xa1l\x00\x00",
    ] {
        assert_eq!(read(&[path]), Err(MessageErrorKind::PathMissing));
    }
    // Into a set or an enum member, which are maps only in the encoding.
    for (body, path) in [
        (
            &b"\x82\xa7__Set__\xc3\xa7as-list\x91\xc0"[..],
            &b"\x92\xa7as-list\x00"[..],
        ),
        (b"\x82\xa7__Set__\xc3\xa7as-list\x90", b"\x91\xa1x"),
        (
            b"\x83\xa7__Set__\xc3\xa7as-list\x90\xa1x\x80",
            b"\x92\xa1x\xa1y",
        ),
        (
            b"\x84\xa8__Enum__\xc3\xa4name\xa1a\xaa__module__\xa1b\xa8__name__\xa1c",
            b"\x91\xa4name",
        ),
    ] {
        let error = with_paths(body, &[path]);
        assert_eq!(error, Err(MessageErrorKind::PathMissing), "{path:x?}");
    }
    let set = b"\x82\xa7__Set__\xc3\xa7as-list\x91\xc0";
    assert_eq!(with_paths(set, &[b"\x90"]).as_deref(), Ok("payload0"));
    for paths in [
        [&b"\x91\xa1m"[..], b"\x92\xa1m\xa1k"],
        [b"\x90", b"\x91\xa1l"],
    ] {
        assert_eq!(read(&paths), Err(MessageErrorKind::PathIntoPayload));
    }
    // Two forms of the same path.
    let found = read(&[b"\xa1m", b"\x91\xa1m"]);
    assert_eq!(found, Err(MessageErrorKind::PathTwice));
    for path in [&b"\x01"[..], b"\xc0", b"\xc4\x01m", b"\x80"] {
        assert_eq!(
            read(&[path]),
            Err(MessageErrorKind::EntryKind {
                key: "a path in keys",
                expected: "an array or a str"
            })
        );
    }
    assert_eq!(
        with_paths(b"\x80", &[b"\x91\xa1a", b"\x91\xa1b"]).unwrap(),
        "map2 'a' payload0 'b' payload1"
    );
    for (name, line) in [
        ("hm-classic-plain", "payload0"),
        ("hm-classic-into-list", "array2 payload0 array2 payload1 2"),
        ("hm-classic-over-a-value", "map1 'x' payload0"),
        ("hm-classic-root", "payload0"),
        ("key-not-str", "map2 1 payload0 array2 't' 0 payload1"),
        ("deep-payload", "payload0 0 2 4 6"),
    ] {
        let found = line_of(&format!("classic-2.30.1/{name}"));
        let words: String = found
            .split(' ')
            .filter(|word| *word != "map1" && *word != "array2" || name != "deep-payload")
            .filter(|word| !word.starts_with('\'') || name != "deep-payload")
            .collect::<Vec<_>>()
            .join(" ");
        assert!(words.contains(line), "{name}: {found}");
    }
}

// PROTOCOL CLASSIC-9 and SPLIT-5
#[test]
fn lengths_entry_regroups_bytes() {
    let read = |head: &[u8], wire: &[&[u8]]| -> Result<Vec<Vec<u8>>, MessageErrorKind> {
        let path: &[u8] = b"\x91\xa1a";
        let header = payload_header(&[(path, head)], &[path]);
        let mut frames: Vec<&[u8]> = vec![b"", b"\x80", &header];
        frames.extend(wire);
        let mut workspaces = Workspaces::with(4, 4, 0);
        let reading = ReadOptions::default();
        let (message, _) = workspaces.open(&frames, Layout::Classic, &reading).unwrap();
        let payload = message.payload(0).unwrap();
        let checked = payload.check();
        let merged = merged(&payload);
        // The error is found before merging if possible.
        assert_eq!(checked.err(), merged.as_ref().err().copied());
        merged.map_err(|error| error.kind)
    };
    let (three, two): (&[u8], &[u8]) = (b"abc", b"de");
    let cut = |lengths: &[u8]| {
        let head = [b"\x82\xa5count\x02\xa7lengths", lengths].concat();
        read(&head, &[three, two])
    };
    assert_eq!(cut(b"\x92\x03\x02").unwrap(), [&b"abc"[..], b"de"]);
    assert_eq!(cut(b"\x91\x05").unwrap(), [b"abcde"]);
    assert_eq!(cut(b"\x92\x01\x04").unwrap(), [&b"a"[..], b"bcde"]);
    assert_eq!(
        cut(b"\x95\x00\x03\x00\x02\x00").unwrap(),
        [&b""[..], b"abc", b"", b"de", b""]
    );
    let differ = |declared| {
        Err(MessageErrorKind::LengthsDiffer {
            declared,
            actual: 5,
        })
    };
    assert_eq!(cut(b"\x91\x06"), differ(6));
    assert_eq!(cut(b"\x90"), differ(0));
    // A sum that wraps to the right one.
    let wraps = b"\x92\xcf\xff\xff\xff\xff\xff\xff\xff\xff\x06";
    assert_eq!(cut(wraps), differ(u64::MAX));
    assert!(matches!(
        cut(b"\x91\xff"),
        Err(MessageErrorKind::EntryKind { key: "lengths", .. })
    ));
    let key = "lengths";
    let head = b"\x81\xa5count\x02";
    assert_eq!(
        read(head, &[three, two]),
        Err(MessageErrorKind::EntryMissing { key })
    );
    for name in [
        "hm-classic-lengths-across",
        "hm-classic-lengths-cut",
        "hm-classic-compressed-join",
    ] {
        let name = format!("classic-2.30.1/{name}");
        let missing = vector(&name).missing_codec(0);
        with_vector(&name, |message, _| {
            let merged = merged(&message.payload(0).unwrap());
            match (missing, merged) {
                (None, merged) => assert!(merged.is_ok(), "{name}"),
                (Some(missing), merged) => assert!(missing.explains(&merged.unwrap_err())),
            }
        });
    }
}

// PROTOCOL CLASSIC-10
#[test]
fn one_classic_release_has_split_lists() {
    for name in ["shard-10k-mixed", "pass-through-shards"] {
        with_vector(&format!("classic-total-2021.3.0/{name}"), |message, _| {
            for payload in message.payloads() {
                let header = *payload.unwrap().header();
                assert!(header.list("lengths").unwrap().is_none());
                assert!(header.list("split-num-sub-frames").unwrap().is_some());
            }
        });
    }
    let path: &[u8] = b"\x91\xa1a";
    let header = payload_header(&[(path, b"\x81\xa5count\x01")], &[path]);
    let frames: [&[u8]; 4] = [b"", b"\x80", &header, b"N."];
    let read = |lengths_optional| {
        let reading = ReadOptions::default().with_lengths_optional(lengths_optional);
        read_as(&frames, Layout::Classic, &reading).map_err(|error| error.kind)
    };
    assert_eq!(read(true).unwrap(), "map1 'a' payload0");
    let key = "lengths";
    assert_eq!(read(false), Err(MessageErrorKind::EntryMissing { key }));
}

// PROTOCOL CLASSIC-11 and CLASSIC-12
#[test]
fn bytestrings_moved_out_of_the_body_are_marked() {
    let marks = |name: &str| {
        with_vector(name, |message, _| {
            message
                .payloads()
                .map(|payload| payload.unwrap().bytestring())
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(marks("classic-2.30.1/inband-bytes-65536"), []);
    assert_eq!(marks("classic-2.30.1/inband-bytes-65537"), [Some(true)]);
    assert_eq!(marks("classic-2.30.1/hm-classic-plain"), [Some(false)]);
    assert_eq!(marks("classic-1.14.0/inband-bytes-65537"), [None]);
    assert!(marks("classic-2.30.1/hm-classic-bytestring").contains(&Some(true)));
    assert!(marks("classic-2.30.1/inband-bytes-nested").contains(&Some(true)));
    let path: &[u8] = b"\x91\xa1a";
    let header = payload_header(&[(path, HEADER_OF_TWO_BYTES)], &[path]);
    let wrong = [&header[..header.len() - 1], b"\x01"].concat();
    assert_eq!(
        classic(&[b"", b"\x80", &wrong, b"N."]),
        Err(MessageErrorKind::EntryKind {
            key: "bytestrings",
            expected: "an array"
        })
    );
}

/// The header of the last payload of a vector, mostly the only one.
fn with_header<R>(name: &str, use_it: impl FnOnce(PayloadHeader<'_>, Vec<Vec<u8>>) -> R) -> R {
    with_vector(name, |message, _| {
        let payload = message.payload(message.payload_count() - 1).unwrap();
        use_it(*payload.header(), merged(&payload).unwrap())
    })
}

// PROTOCOL HEADER-1, HEADER-2 and HEADER-3
#[test]
fn headers_name_the_serializer() {
    let serializer = |name: &str| {
        with_header(name, |header, _| {
            format!("{:?}", header.serializer().unwrap())
        })
    };
    for (name, expected) in [
        ("modern-nosplit-2026.8.0/pickle-small", "Pickle"),
        ("classic-2.30.1/serializer-msgpack", "Msgpack"),
        ("modern-nosplit-2026.8.0/serializer-error", "Error"),
        ("modern-nosplit-2026.8.0/docs-get-data-ones5", "Dask"),
        // Without an entry.
        ("classic-1.14.0/pickle-small", "Pickle"),
        ("classic-1.14.0/docs-get-data-ones5", "Dask"),
    ] {
        assert_eq!(serializer(name), expected, "{name}");
    }
    let types = |name: &str| {
        with_header(name, |header, _| {
            let pickle = header.type_serialized().unwrap();
            assert!(pickle.is_none_or(|pickle| pickle.starts_with(b"\x80")));
            (
                header.type_name().unwrap().unwrap().to_owned(),
                pickle.is_some(),
            )
        })
    };
    let array = "numpy.ndarray".to_owned();
    assert_eq!(
        types("classic-1.14.0/docs-get-data-ones5"),
        (array.clone(), false)
    );
    assert_eq!(
        types("classic-1.28.1/docs-get-data-ones5"),
        (array.clone(), true)
    );
    assert_eq!(
        types("modern-nosplit-2026.8.0/docs-get-data-ones5"),
        (array, true)
    );
    with_header(
        "modern-nosplit-2026.8.0/hm-payload-extra-header-keys",
        |header, _| {
            let known = ["serializer", "compression", "num-sub-frames", "writeable"];
            let count = header
                .entries()
                .filter(|(key, value)| {
                    let mut reader = Reader::new(key);
                    let Ok(Token::Str(string)) = reader.token() else {
                        return true;
                    };
                    let string = string.to_str().unwrap();
                    assert_eq!(header.get(string), Some(*value));
                    !known.contains(&string)
                })
                .count();
            assert!(count > 0);
        },
    );
    // The last value of a duplicate key is used; a value of the wrong kind is
    // an error.
    let header: &[u8] = b"\x83\xaaserializer\xa4dask\xaaserializer\xa4cuda\xaenum-sub-frames\x00";
    let frames: [&[u8]; 2] = [b"\x81\xae__Serialized__\x01", header];
    let mut workspaces = Workspaces::with(2, 2, 0);
    let (message, _) = workspaces
        .open(&frames, Layout::Modern, &ReadOptions::default())
        .unwrap();
    let header = *message.payload(0).unwrap().header();
    assert_eq!(header.serializer(), Ok(Serializer::Other("cuda")));
    assert_eq!(header.get("absent"), None);
}

// PROTOCOL HEADER-4 and HEADER-5
#[test]
fn headers_have_class_specific_keys() {
    for name in [
        "modern-nosplit-2026.8.0/docs-get-data-ones5",
        "modern-total-2021.3.1/docs-get-data-ones5",
    ] {
        with_header(name, |header, frames| {
            assert_eq!(
                header.get("sub-header").is_some(),
                name.contains("2026"),
                "{name}"
            );
            assert_eq!(header.dtype(), Ok(Some("<f8")));
            assert!(header.shape().unwrap().unwrap().numbers().eq([Ok(5)]));
            assert_eq!(frames, [1.0_f64.to_le_bytes().repeat(5)]);
        });
    }
    for (name, type_name) in [
        ("modern-nosplit-2026.8.0/bytes-1000-rand-lz4", "bytes"),
        ("classic-2.30.1/bytes-1000-rand-lz4", "builtins.bytes"),
    ] {
        with_header(name, |header, frames| {
            assert_eq!(header.type_name(), Ok(Some(type_name)));
            assert_eq!(frames.concat().len(), 1000);
        });
    }
}

// PROTOCOL HEADER-6 and HEADER-7
#[test]
fn arrays_are_described_by_their_headers() {
    let numbers = |list: Option<ItemList<'_>>| -> Vec<i64> {
        list.unwrap().signed_numbers().map(Result::unwrap).collect()
    };
    for (name, dtype, shape, strides) in [
        ("modern-nosplit-2026.8.0/np-le-f8", Some("<f8"), None, None),
        (
            "modern-nosplit-2026.8.0/np-be-i4",
            Some(">i4"),
            Some(&[6][..]),
            Some(&[4][..]),
        ),
        (
            "classic-1.14.0/np-c-order",
            Some("<i4"),
            Some(&[2, 3, 4]),
            Some(&[48, 16, 4]),
        ),
        (
            "modern-nosplit-2026.8.0/np-structured",
            None,
            Some(&[2]),
            Some(&[14]),
        ),
        (
            "modern-nosplit-2026.8.0/np-broadcast",
            Some("<f8"),
            Some(&[1, 1]),
            Some(&[0, 0]),
        ),
    ] {
        with_header(name, |header, frames| {
            assert_eq!(header.dtype(), Ok(dtype), "{name}");
            assert_eq!(frames.len(), 1, "{name}");
            if let (Some(shape), Some(strides)) = (shape, strides) {
                assert_eq!(numbers(header.shape().unwrap()), shape, "{name}");
                assert_eq!(numbers(header.strides().unwrap()), strides, "{name}");
            }
        });
    }
    // A list of two fields, of releases before 1.17.0, is not a tag and a type.
    let fields: &[u8] = b"\x82\xa5dtype\x92\x92\xa1a\xa3<f8\x92\xa1b\xa3<i4\xaenum-sub-frames\x00";
    let frames = [fields];
    let options = ReadOptions::default();
    let payload = Payload::at(&frames, 0, PayloadKind::Serialized, &options).unwrap();
    assert_eq!(payload.header().dtype(), Ok(None));
    let flags = |name: &str| {
        with_header(name, |header, _| {
            let list = header.writeable().unwrap();
            list.map(|list| list.flags().collect::<Vec<_>>())
        })
    };
    assert_eq!(
        flags("modern-nosplit-2026.8.0/np-le-f8"),
        Some(vec![Some(true)])
    );
    assert_eq!(
        flags("modern-nosplit-2026.8.0/np-readonly"),
        Some(vec![Some(false)])
    );
    assert_eq!(flags("classic-1.14.0/np-c-order"), None);
    with_header("modern-nosplit-2026.8.0/np-broadcast", |header, _| {
        assert!(header.type_header().unwrap().get("broadcast_to").is_some());
    });
    with_header("modern-nosplit-2026.8.0/np-object", |header, frames| {
        assert_eq!(
            header.type_header().unwrap().get("pickle"),
            Some(&b"\xc3"[..])
        );
        assert!(frames[0].ends_with(b"."));
        assert_eq!(header.dtype(), Ok(None));
        assert!(header.shape().unwrap().is_none());
    });
    with_header("modern-nosplit-2026.8.0/np-masked", |header, frames| {
        let own = header.type_header().unwrap();
        assert!(own.get("data-header").is_some() && own.get("mask-header").is_some());
        assert_eq!(frames.len(), 2);
    });
    for name in ["np-f-order", "np-strided", "np-empty"] {
        with_header(
            &format!("modern-nosplit-2026.8.0/{name}"),
            |header, frames| {
                let shape = numbers(header.shape().unwrap());
                let items: i64 = shape.iter().product();
                let dtype = header.dtype().unwrap().unwrap();
                let item_len: i64 = dtype[2..].parse().unwrap();
                assert_eq!(frames[0].len() as i64, items * item_len, "{name}");
            },
        );
    }
}

// PROTOCOL HEADER-8, HEADER-9 and HEADER-10
#[test]
fn other_serializers_have_minimal_headers() {
    for (name, flag_count) in [
        ("modern-nosplit-2026.8.0/df-two-dtypes", 3),
        ("classic-2.30.1/df-two-dtypes", 4),
        ("modern-nosplit-2026.8.0/pickle-small", 0),
    ] {
        with_vector(name, |message, _| {
            let last = message.payload_count() - 1;
            let missing = vector(name).missing_codec(last);
            let payload = message.payload(last).unwrap();
            let flags = payload.header().writeable().unwrap().unwrap();
            assert_eq!(flags.count_left(), flag_count, "{name}");
            match (missing, merged(&payload)) {
                (None, frames) => {
                    let first = frames.unwrap().swap_remove(0);
                    assert!(first.starts_with(b"\x80") && first.ends_with(b"."));
                }
                (Some(missing), frames) => assert!(missing.explains(&frames.unwrap_err())),
            }
        });
    }
    let is_one_value = |joined: &[u8]| {
        let mut reader = Reader::new(joined);
        reader.skip().unwrap();
        reader.finish() == Ok(())
    };
    with_header("classic-2.30.1/serializer-msgpack", |_, frames| {
        assert!(is_one_value(&frames.concat()));
    });
    // Since 2021.4.1 every list and dict is a collection.
    with_header(
        "modern-nosplit-2026.8.0/serializer-msgpack",
        |header, frames| {
            let last = header.sub_headers().unwrap().unwrap().last().unwrap();
            assert_eq!(last.unwrap().serializer(), Ok(Serializer::Msgpack));
            assert!(frames.iter().all(|frame| is_one_value(frame)));
        },
    );
    for (name, text_count) in [
        ("modern-nosplit-2026.8.0/serializer-error", 1),
        ("modern-nosplit-2026.8.0/serializer-error-pickle", 2),
        ("classic-2.30.1/serializer-error", 1),
    ] {
        with_header(name, |_, frames| {
            assert_eq!(frames.len(), text_count, "{name}");
            for frame in frames {
                assert!(!String::from_utf8(frame).unwrap().is_empty());
            }
        });
    }
}

/// The total number of logical frames of a collection's elements.
fn element_frames(header: &PayloadHeader<'_>, depth: usize) -> u64 {
    assert!(depth < 8);
    if !header.is_collection().unwrap() {
        return 0;
    }
    let headers = header.sub_headers().unwrap().unwrap();
    let lengths = header.list("frame-lengths").unwrap().unwrap();
    let mut sum = 0;
    let mut count = 0;
    for (element, length) in headers.zip(lengths.numbers()) {
        let (element, length) = (element.unwrap(), length.unwrap());
        let is_dict = header.type_serialized() == Ok(Some(b"dict"));
        assert_eq!(element.key().is_some(), is_dict);
        if element.is_collection().unwrap() {
            assert_eq!(element_frames(&element, depth + 1), length);
        }
        sum += length;
        count += 1;
    }
    assert_eq!(header.sub_headers().unwrap().unwrap().count(), count);
    sum
}

// PROTOCOL HEADER-11
#[test]
fn collections_have_a_header_per_element() {
    for name in [
        "modern-nosplit-2026.8.0/collection-dict",
        "modern-nosplit-2026.8.0/collection-nested",
        "modern-nosplit-2026.8.0/collection-empty",
        "modern-nosplit-2026.8.0/collection-tuple",
        "classic-2.30.1/collection-dict",
    ] {
        with_header(name, |header, frames| {
            assert_eq!(header.is_collection(), Ok(true), "{name}");
            let word = header.type_serialized().unwrap().unwrap();
            let words: [&[u8]; 4] = [b"list", b"tuple", b"set", b"dict"];
            assert!(words.contains(&word), "{name}");
            assert_eq!(element_frames(&header, 0), frames.len() as u64, "{name}");
        });
    }
    // Offsets in nested headers are those in the frame.
    with_vector("modern-nosplit-2026.8.0/collection-tuple", |message, _| {
        let payload = message.payload(0).unwrap();
        for element in payload.header().sub_headers().unwrap().unwrap() {
            let element = element.unwrap();
            let (frame, at) = element.entry_location("serializer");
            let value = element.get("serializer").unwrap();
            assert!(message.frames()[frame][at..].starts_with(value));
        }
    });
    with_header("modern-nosplit-2026.8.0/pickle-small", |header, _| {
        assert_eq!(header.is_collection(), Ok(false));
        assert!(header.sub_headers().unwrap().is_none());
    });
}

/// The wire frames of the only payload of a vector, and its logical ones.
fn wire_and_logical(name: &str) -> (Vec<usize>, Vec<usize>) {
    with_vector(name, |message, _| {
        let payload = message.payload(0).unwrap();
        let lens = |frames: &[&[u8]]| frames.iter().map(|frame| frame.len()).collect();
        let logical = merged(&payload).unwrap();
        (
            lens(payload.frames()),
            logical.iter().map(Vec::len).collect(),
        )
    })
}

// PROTOCOL SPLIT-1 and SPLIT-2
#[test]
fn long_frames_are_sharded() {
    let latest = |name: &str| wire_and_logical(&format!("modern-nosplit-2026.8.0/{name}"));
    let (wire, logical) = latest("shard-exact");
    assert_eq!((&wire[..], &logical[..]), (&[1024, 1024][..], &[2048][..]));
    let (wire, logical) = latest("shard-plus-one");
    assert_eq!(
        (&wire[..], &logical[..]),
        (&[1024, 1024, 1][..], &[2049][..])
    );
    // 1000 bytes hold 125 doubles and 250 numbers of four bytes.
    for (name, item_len) in [("shard-1000-f8", 8), ("shard-1k-array", 4)] {
        let (wire, logical) = latest(name);
        assert!(wire.len() > 1, "{name}");
        assert_eq!(wire.iter().sum::<usize>(), logical[0]);
        assert!(wire.iter().all(|len| len % item_len == 0), "{name}");
    }
    let (wire, logical) = wire_and_logical("classic-2.30.1/shard-1k-bytes");
    assert!(wire.len() > logical.len());
}

// PROTOCOL SPLIT-3, SPLIT-4, SPLIT-5 and SPLIT-6
#[test]
fn split_frames_are_joined_after_decompression() {
    let read = |lists: &[u8]| {
        let entries = [&b"\x83\xaenum-sub-frames\x03"[..], lists].concat();
        let frames: [&[u8]; 5] = [b"\x81\xae__Serialized__\x01", &entries, b"a", b"bc", b"def"];
        let mut workspaces = Workspaces::with(2, 2, 0);
        let (message, _) = workspaces
            .open(&frames, Layout::Modern, &ReadOptions::default())
            .unwrap();
        let payload = message.payload(0).unwrap();
        let merged = merged(&payload);
        assert_eq!(payload.check().err(), merged.as_ref().err().copied());
        if let Ok(merged) = &merged {
            assert_eq!(payload.logical_count(), Ok(merged.len()));
            let parts: Vec<Vec<u8>> = payload
                .logical_frames()
                .unwrap()
                .map(|frame| frame.unwrap().parts().concat())
                .collect();
            assert_eq!(&parts, merged);
        }
        merged.map_err(|error| error.kind)
    };
    let split = |counts: &[u8], offsets: &[u8]| {
        read(
            &[
                &b"\xb4split-num-sub-frames"[..],
                counts,
                b"\xadsplit-offsets",
                offsets,
            ]
            .concat(),
        )
    };
    assert_eq!(split(b"\x91\x03", b"\x91\x00").unwrap(), [b"abcdef"]);
    assert_eq!(
        split(b"\x92\x01\x02", b"\x92\x00\x01").unwrap(),
        [&b"a"[..], b"bcdef"]
    );
    // In any order, with empty frames and frames that belong to none.
    assert_eq!(
        split(b"\x92\x01\x02", b"\x92\x02\x00").unwrap(),
        [&b"def"[..], b"abc"]
    );
    assert_eq!(
        split(b"\x93\x00\x01\x00", b"\x93\x00\x01\x03").unwrap(),
        [&b""[..], b"bc", b""]
    );
    // An empty list entry takes no frame.
    assert_eq!(
        split(b"\x93\x01\x02\x00", b"\x93\x02\x00\x01").unwrap(),
        [&b"def"[..], b"abc", b""]
    );
    assert_eq!(
        split(b"\x93\x00\x01\x02", b"\x93\x01\x02\x00").unwrap(),
        [&b""[..], b"def", b"abc"]
    );
    assert_eq!(split(b"\x90", b"\x90").unwrap(), [b""; 0]);
    for (counts, offsets) in [
        (&b"\x91\x04"[..], &b"\x91\x00"[..]),
        (b"\x91\x01", b"\x91\x03"),
        (b"\x92\x02\x02", b"\x92\x00\x01"),
        (b"\x92\x01\x03", b"\x92\x02\x00"),
        (b"\x91\x01", b"\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
        (b"\x91\xff", b"\x91\x00"),
        (b"\x91\xc0", b"\x91\x00"),
    ] {
        assert_eq!(
            split(counts, offsets),
            Err(MessageErrorKind::SplitLists),
            "{counts:x?} {offsets:x?}"
        );
    }
    assert_eq!(
        split(b"\x92\x01\x01", b"\x91\x00"),
        Err(MessageErrorKind::ListLength {
            key: "split-offsets",
            found: 1,
            expected: 2
        })
    );
    let missing = |key| Err(MessageErrorKind::EntryMissing { key });
    assert_eq!(
        read(b"\xb4split-num-sub-frames\x91\x03\x01\x02"),
        missing("split-offsets")
    );
    assert_eq!(
        read(b"\xadsplit-offsets\x91\x00\x01\x02"),
        missing("split-num-sub-frames")
    );
    // Without lists each frame is one.
    assert_eq!(
        read(b"\x01\x02\x03\x04").unwrap(),
        [&b"a"[..], b"bc", b"def"]
    );
    for name in [
        "modern-nosplit-2026.8.0/hm-payload-no-compression",
        "modern-nosplit-2026.8.0/pass-through-no-compression-key",
        "modern-nosplit-2026.8.0/shard-several-payloads",
        "modern-nosplit-2026.8.0/shard-collection",
        "modern-nosplit-2026.8.0/hm-payload-split-zero",
        "modern-total-2021.3.1/pass-through-shards",
    ] {
        with_vector(name, |message, _| {
            for payload in message.payloads() {
                let payload = payload.unwrap();
                let frames = merged(&payload).unwrap();
                assert_eq!(payload.logical_count(), Ok(frames.len()), "{name}");
            }
        });
    }
}

#[test]
fn limits_are_exact() {
    // Three levels, seven values, thirteen bytes.
    let body: &[u8] = b"\x82\xa1a\x92\x01\x91\xc0\xa1b\x02";
    let open = |levels: usize, limits: Limits| {
        let reading = ReadOptions::new(limits);
        let frames = [body];
        let mut workspaces = Workspaces::with(levels, 0, 0);
        workspaces
            .open(&frames, Layout::Modern, &reading)
            .map(|(message, levels)| line(&message, levels))
            .map_err(|error| error.kind)
    };
    let whole = "map2 'a' array2 1 array1 nil 'b' 2";
    assert_eq!(open(3, Limits::HOST).unwrap(), whole);
    assert_eq!(open(4, Limits::HOST).unwrap(), whole);
    for available in 0..3 {
        let short = BufferTooSmall {
            needed: 3,
            available,
        };
        let expected = MessageErrorKind::TooFewLevels(short);
        assert_eq!(open(available, Limits::HOST), Err(expected));
    }
    for depth in 0..5 {
        let limits = Limits::HOST.with_depth(depth);
        let expected = if depth >= 3 {
            Ok(whole.to_owned())
        } else {
            let limit = depth;
            Err(MessageErrorKind::Malformed(MalformedKind::TooDeep {
                limit,
            }))
        };
        assert_eq!(open(8, limits), expected, "{depth}");
    }
    let mut least_items = None;
    for items in 0..12 {
        let limits = Limits::HOST.with_items(items);
        match open(8, limits) {
            Ok(line) => {
                assert_eq!(line, whole);
                least_items.get_or_insert(items);
            }
            Err(kind) => {
                let limit = items;
                let expected = MalformedKind::TooManyItems { limit };
                assert_eq!(kind, MessageErrorKind::Malformed(expected));
                assert_eq!(least_items, None);
            }
        }
    }
    // Elements, keys and values.
    assert_eq!(least_items, Some(7));
    for document_len in 0..16 {
        let limits = Limits::HOST.with_document_len(document_len);
        let len = body.len() as u64;
        let expected = if document_len >= len {
            Ok(whole.to_owned())
        } else {
            let limit = document_len;
            Err(MessageErrorKind::DocumentTooLong { len, limit })
        };
        assert_eq!(open(8, limits), expected);
    }
}

#[test]
fn slots_are_needed_for_payloads_sets_and_enum_members() {
    let body: &[u8] = b"\x93\x82\xa7__Set__\xc3\xa7as-list\x90\
        \x81\xae__Serialized__\x01\
        \x84\xa8__Enum__\xc3\xa4name\xa1n\xaa__module__\xa1m\xa8__name__\xa1c";
    let frames: [&[u8]; 3] = [body, HEADER, b"N."];
    let reading = ReadOptions::default();
    for available in 0..5 {
        let mut scratch = Workspace::fixed(2, available, 0);
        let opened = Message::open(&frames, Layout::Modern, &reading, &mut scratch);
        if available >= 3 {
            assert_eq!(opened.unwrap().payload_count(), 1);
            continue;
        }
        let error = opened.unwrap_err();
        assert!(error.is_caller_fault());
        let MessageErrorKind::TooFewSlots(short) = error.kind else {
            panic!("{error}");
        };
        let needed = 3;
        assert_eq!(short, BufferTooSmall { needed, available });
    }
    // A walk needs as many levels as opening did, and says so.
    let mut scratch = Scratch::<2, 3>::new();
    let message = Message::open(&frames, Layout::Modern, &reading, &mut scratch).unwrap();
    let mut none = Scratch::<0>::new();
    let error = message.walk(&mut none).next_item().unwrap_err();
    let (needed, available) = (2, 0);
    let short = BufferTooSmall { needed, available };
    assert_eq!(error.kind, MessageErrorKind::TooFewLevels(short));
    let mut enough = Scratch::<2>::new();
    assert_eq!(line(&message, &mut enough).split(' ').count(), 4);
}

#[test]
fn merging_needs_exactly_the_length_reported() {
    with_vector("modern-nosplit-2026.8.0/shard-10k-mixed", |message, _| {
        let payload = message.payload(0).unwrap();
        let Ok(Some(len)) = payload.merged_len() else {
            // Compressed with a codec that this build lacks.
            let has_lz4 = Codec::Lz4.is_compiled_in();
            assert!(!has_lz4, "its length is known");
            return;
        };
        let len = usize::try_from(len).unwrap();
        let count = payload.logical_count().unwrap();
        let merge = |len: usize, count: usize| {
            payload
                .merge_into(&mut vec![0; len], &mut vec![0; count])
                .map(|frames| frames.iter().len())
                .map_err(|error| {
                    assert!(error.is_caller_fault(), "{error}");
                    error.kind
                })
        };
        assert_eq!(merge(len, count), Ok(count));
        assert_eq!(merge(len + 1, count + 1), Ok(count));
        for available in [0, 1, len / 2, len - 1] {
            let needed = len;
            let short = BufferTooSmall { needed, available };
            let expected = MessageErrorKind::DataBuffer(short);
            assert_eq!(merge(available, count), Err(expected));
        }
        let expected = BufferTooSmall {
            needed: count,
            available: count - 1,
        };
        let expected = MessageErrorKind::TooFewEnds(expected);
        assert_eq!(merge(len, count - 1), Err(expected));
    });
}

/// A caller that starts with empty buffers and supplies the sizes in the errors
/// needs one retry per buffer, and no buffer is larger than necessary.
#[test]
fn retry_with_the_size_reported_succeeds() {
    let vectors = vectors();
    in_parallel(&vectors, |vector| {
        if vector.missing_body_codec().is_some() {
            return;
        }
        let (name, frames) = (&vector.name, vector.frames());
        let (mut levels, mut places, mut body_len) = (0, 0, 0);
        let (mut level_tries, mut place_tries, mut body_tries) = (0, 0, 0);
        let reading = vector.reading();
        loop {
            let mut scratch = Workspace::fixed(levels, places, body_len);
            let short = match Message::open(&frames, vector.layout(), &reading, &mut scratch) {
                Ok(_) => break,
                Err(error) => error,
            };
            match short.kind {
                MessageErrorKind::TooFewLevels(short) => {
                    level_tries += 1;
                    assert_eq!(short.available, levels);
                    levels = short.needed;
                }
                MessageErrorKind::TooFewSlots(short) => {
                    place_tries += 1;
                    assert_eq!(short.available, places);
                    places = short.needed;
                }
                MessageErrorKind::BodyBuffer(short) => {
                    body_tries += 1;
                    // zlib has no declared length.
                    body_len = short.needed.max(2 * short.available);
                }
                _ => panic!("{name}: {short}"),
            }
        }
        // The paths of classic payloads count once there are slots for them.
        let level_limit = if vector.layout() == Layout::Classic {
            2
        } else {
            1
        };
        assert!(level_tries <= level_limit, "{name}: {level_tries}");
        assert!(place_tries <= 1, "{name}: {place_tries}");
        assert!(body_tries <= 24, "{name}: {body_tries}");
        let mut scratch = Workspace::fixed(levels, places, body_len);
        let message = Message::open(&frames, vector.layout(), &reading, &mut scratch).unwrap();
        // A workspace that grows needs no retry.
        let (mut growing, mut walking) = (Workspace::new(), Workspace::new());
        let grown = Message::open(&frames, vector.layout(), &reading, &mut growing).unwrap();
        let mut fixed = Workspace::fixed(levels, 0, 0);
        assert_eq!(
            reading_of(&grown, &mut walking),
            reading_of(&message, &mut fixed)
        );
        for number in 0..message.payload_count() {
            let payload = message.payload(number).unwrap();
            if vector.missing_codec(number).is_some() {
                continue;
            }
            let (mut out, mut ends) = (vec![], vec![]);
            let mut tries = 0;
            while let Err(error) = payload.merge_into(&mut out, &mut ends) {
                tries += 1;
                match error.kind {
                    MessageErrorKind::TooFewEnds(short) => ends.resize(short.needed, 0),
                    MessageErrorKind::DataBuffer(short) => {
                        let known = payload.merged_len().unwrap();
                        assert!(known.is_none_or(|len| len == short.needed as u64));
                        let len = short.needed.max(2 * short.available);
                        out.resize(if known.is_some() { short.needed } else { len }, 0);
                    }
                    _ => panic!("{name}: {error}"),
                }
                assert!(tries <= 30, "{name}");
            }
        }
    });
}

/// The scheduler's description of its workers is the largest message for a
/// small machine.
#[test]
fn microcontroller_limits_admit_50_workers() {
    let worker = include_bytes!("../vectors/identity-worker-2026.8.0.msgpack");
    for count in [6_u32, 50, 100] {
        let mut body = vec![0; 128 << 10];
        let mut writer = daskwire::msgpack::Writer::new(&mut body);
        writer.map(2).str("type").str("Scheduler").str("workers");
        writer.map(count);
        for index in 0..count {
            writer.str(&format!("tcp://192.0.2.{index}:40000"));
            writer.encoded(worker);
        }
        let body = writer.finish().unwrap();
        let prelude = daskwire::frame::prelude_len(Prefix::U64, 1).unwrap();
        let mut bytes = vec![0; prelude];
        let lengths = [body.len() as u64];
        daskwire::frame::encode_prelude(Prefix::U64, lengths, &mut bytes).unwrap();
        bytes.extend_from_slice(body);

        let limits = Limits::MICROCONTROLLER;
        let framed = FramedMessage::parse(&bytes, Prefix::U64, &limits).unwrap();
        let reading = ReadOptions::new(limits);
        let mut workspaces = Workspaces::with(6, 0, 0);
        let frames = [framed.frames];
        let (message, levels) = workspaces.open(&frames, Layout::Modern, &reading).unwrap();
        let mut walk = message.walk(levels);
        while walk.next_item().unwrap().is_some() {}
    }
}

/// The limits of an earlier check hold for paths too: here a key has more items than
/// [`Limits::HOST`] allows.
#[test]
fn paths_have_keys_of_any_length_that_was_accepted() {
    let item_count = Limits::HOST.items + 1;
    let mut body = vec![0x81, 0xdd];
    body.extend(item_count.to_be_bytes());
    body.resize(body.len() + item_count as usize, 0xc0);
    let key = 1..body.len();
    body.push(0xc3);
    let frames = [&body[..]];
    let reading = ReadOptions::new(Limits::HOST.with_items(u32::MAX));
    let mut workspaces = Workspaces::with(4, 4, 0);
    let (message, levels) = workspaces.open(&frames, Layout::Modern, &reading).unwrap();
    let mut walk = message.walk(levels);
    while walk.next_item().unwrap() != Some(Item::Token(Token::Bool(true))) {}
    let path: Vec<PathElement<'_>> = walk.path().collect();
    assert_eq!(path, [PathElement::Key(&body[key])]);
}

/// The path of every item in a body, by keys and indices.
#[test]
fn walk_tracks_its_position() {
    let frames: [&[u8]; 3] = [
        b"\x83\xa1a\x92\x01\x81\x05\xc0\xa1s\x82\xa7__Set__\xc3\xa7as-list\x91\x07\
          \xa1p\x81\xae__Serialized__\x01",
        HEADER,
        b"N.",
    ];
    let mut workspaces = Workspaces::with(4, 4, 0);
    let (message, levels) = workspaces
        .open(&frames, Layout::Modern, &ReadOptions::default())
        .unwrap();
    let mut walk = message.walk(levels);
    let mut found = Vec::new();
    while let Some(item) = walk.next_item().unwrap() {
        let is_value = !matches!(item, Item::Token(Token::Str(_)));
        let path: Vec<String> = walk
            .path()
            .map(|element| match element {
                PathElement::Key(key) => display::Document::new(key).to_string(),
                PathElement::Index(index) => index.to_string(),
            })
            .collect();
        if is_value {
            found.push(path.join("."));
        }
    }
    assert_eq!(
        found,
        [
            "",
            r#""a""#,
            r#""a".0"#,
            r#""a".1"#,
            // The key 5 and its value.
            r#""a".1.5"#,
            r#""a".1.5"#,
            r#""s""#,
            r#""s"."as-list".0"#,
            r#""p""#,
        ]
    );
    // The path of every payload matches the vector's description.
    for vector in vectors() {
        if vector.missing_body_codec().is_some() {
            continue;
        }
        let frames = vector.frames();
        let mut workspaces = Workspaces::new();
        let (message, levels) = workspaces
            .open(&frames, vector.layout(), &vector.reading())
            .unwrap();
        let mut walk = message.walk(levels);
        while let Some(item) = walk.next_item().unwrap() {
            let Item::Payload(number) = item else {
                continue;
            };
            let expected = vector.payloads()[number]["path"].as_array().unwrap();
            let path: Vec<Value> = walk
                .path()
                .map(|element| match element {
                    PathElement::Index(index) => index.into(),
                    PathElement::Key(key) => match Reader::new(key).token().unwrap() {
                        Token::Str(string) => string.to_str().unwrap().into(),
                        Token::UInt(value) => value.into(),
                        // Keys that JSON cannot express.
                        _ => Value::Null,
                    },
                })
                .collect();
            assert_eq!(path.len(), expected.len(), "{} {path:?}", vector.name);
            for (element, expected) in path.iter().zip(expected) {
                let is_plain = expected.is_string() || expected.is_u64();
                assert!(!is_plain || element == expected, "{} {path:?}", vector.name);
            }
        }
    }
}

#[test]
fn a_logical_frame_of_several_frames_is_not_one_slice() {
    let header: &[u8] = b"\x83\xaenum-sub-frames\x04\xb4split-num-sub-frames\x93\x02\x00\x02\
        \xadsplit-offsets\x93\x00\x02\x02";
    let body: &[u8] = b"\x81\xae__Serialized__\x01";
    let frames = [body, header, b"abc", b"de", b"", b"f"];
    let mut workspaces = Workspaces::with(2, 2, 0);
    let (message, _) = workspaces
        .open(&frames, Layout::Modern, &ReadOptions::default())
        .unwrap();
    let payload = message.payload(0).unwrap();
    let logical: Vec<_> = payload
        .logical_frames()
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(logical.len(), 3);
    assert_eq!(logical[0].as_slice(), None);
    assert_eq!(logical[0].parts(), [&b"abc"[..], b"de"]);
    assert_eq!(logical[1].as_slice(), Some(&b""[..]));
    let last = logical[2].as_slice().unwrap();
    assert_eq!(last, b"f");
    assert_eq!(last.as_ptr(), frames[5].as_ptr());
}
