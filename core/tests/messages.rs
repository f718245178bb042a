//! Messages as real releases sent them, however they arrive and whatever
//! happens to them on the way.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use daskwire::BufferTooSmall;
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
fn with_message<R>(
    vector: &Vector,
    room: &mut Room,
    use_it: impl FnOnce(Message<'_, &[u8]>, &mut [Level]) -> R,
) -> R {
    let frames = vector.frames();
    let (message, levels) = room
        .open(&frames, vector.layout(), &vector.reading())
        .unwrap_or_else(|error| panic!("{}: {error}", vector.name));
    use_it(message, levels)
}

/// The same for a vector that is known by name.
fn with_vector<R>(name: &str, use_it: impl FnOnce(Message<'_, &[u8]>, &mut [Level]) -> R) -> R {
    with_message(&vector(name), &mut Room::new(), use_it)
}

/// All items of a body.
fn items<'a>(message: &Message<'a, &[u8]>, levels: &mut [Level]) -> Vec<Item<'a>> {
    let mut walk = message.walk(levels);
    let mut items = Vec::new();
    while let Some(item) = walk.next_item().unwrap() {
        items.push(item);
    }
    items
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
