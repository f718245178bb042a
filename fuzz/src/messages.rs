//! Messages of both layouts, their payloads, and handshakes.

use daskwire::compression::CompressionError;
use daskwire::display::Document;
use daskwire::handshake::{Handshake, detect_prefix};
use daskwire::message::{
    BuildError, BuilderBuffers, Item, Layout, Message, MessageBuilder, MessageErrorKind, Payload,
    ReadOptions, Scratch, Workspace,
};
use daskwire::msgpack::{Reader, Token, Writer};

use super::{LIMITS, read_options};

/// Reads any frames as a message of the modern layout.
pub(crate) fn message_modern(input: &[u8]) {
    message(input, Layout::Modern);
}

/// Reads any frames as a message of the classic layout.
pub(crate) fn message_classic(input: &[u8]) {
    message(input, Layout::Classic);
}

/// The frames of the input, each after a length of two bytes.
fn split_frames(input: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    let mut rest = input;
    while let Some((len, after)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_le_bytes(*len)).min(after.len());
        let (frame, after) = after.split_at(len);
        frames.push(frame);
        rest = after;
    }
    frames
}

fn message(input: &[u8], layout: Layout) {
    let frames = split_frames(input);
    let without = read_options()
        .with_sets_and_enums(false)
        .with_lengths_optional(true);
    for options in [read_options(), without] {
        use_message(&frames, layout, &options);
    }
    let mut stream = Vec::new();
    for frame in frames {
        stream.extend_from_slice(frame);
    }
    let _ = Document::new(&stream).to_string();
}

fn use_message(frames: &[&[u8]], layout: Layout, options: &ReadOptions) {
    let mut workspace = Workspace::new();
    let _ = Message::open(frames, layout, options, &mut workspace).map(|message| {
        let payload_count = walk(&message);
        assert!(payload_count <= message.payload_count());
        let checked = message.check();
        for number in 0..message.payload_count() {
            let Ok(payload) = message.payload(number) else {
                assert!(checked.is_err(), "checked, and payload {number} is wrong");
                continue;
            };
            use_payload(&payload);
            for to in [Layout::Modern, Layout::Classic] {
                forward(&payload, to, options);
            }
        }
        let _ = message.op();
    });
}

/// Walks a message and returns the number of payloads.
fn walk(message: &Message<'_, &[u8]>) -> usize {
    let mut workspace = Workspace::new();
    let mut walk = message.walk(&mut workspace);
    let mut owed = 1_u64;
    let mut payloads = 0;
    while let Some(item) = walk.next_item().expect("opening has checked the body") {
        assert_ne!(owed, 0, "more items than announced");
        owed = owed - 1 + item.child_count();
        assert!(walk.path().count() <= 2 * LIMITS.depth as usize);
        payloads += usize::from(matches!(item, Item::Payload(_)));
    }
    assert_eq!(owed, 0, "fewer items than announced");
    payloads
}

/// Checks that merging does not depend on the former contents of buffers.
fn use_payload(payload: &Payload<'_, &[u8]>) {
    let Ok(count) = payload.logical_count() else {
        return;
    };
    if count > 1 << 12 {
        return;
    }
    let len = match payload.merged_len() {
        Ok(Some(len)) if len <= 1 << 22 => usize::try_from(len).expect("it is small"),
        Ok(None) => 1 << 16,
        _ => return,
    };
    let merge = |fill: u8| {
        let (mut out, mut ends) = (vec![fill; len], vec![0; count]);
        let frames = payload.merge_into(&mut out, &mut ends);
        frames.map(|frames| frames.iter().map(<[u8]>::to_vec).collect::<Vec<_>>())
    };
    let merged = merge(0xa5);
    assert_eq!(merged, merge(0x5a), "old bytes show");
    if let Ok(merged) = &merged {
        let (mut out, mut ends) = (Vec::new(), Vec::new());
        match payload.merge_onto(&mut out, &mut ends) {
            Ok(()) => assert_eq!((out, ends), (merged.concat(), ends_of(merged))),
            // All frames together.
            Err(error) => assert!(matches!(
                error.kind,
                MessageErrorKind::Compression(CompressionError::OverLimit { .. })
            )),
        }
    }
    if let (Ok(merged), Ok(frames)) = (merged, payload.logical_frames()) {
        for (frame, whole) in frames.zip(&merged) {
            if let Ok(frame) = frame
                && let Some(bytes) = frame.as_slice()
            {
                assert_eq!(bytes, whole);
            }
        }
    }
}

/// The end of each frame in all of them.
fn ends_of(frames: &[Vec<u8>]) -> Vec<usize> {
    let mut end = 0;
    let ends = frames.iter().map(|frame| {
        end += frame.len();
        end
    });
    ends.collect()
}

/// Checks that forwarded payloads can be read again with the same contents.
fn forward(payload: &Payload<'_, &[u8]>, to: Layout, options: &ReadOptions) {
    let (mut body, mut headers) = (vec![0; 64], vec![0; 1 << 16]);
    let mut slots = vec![&[][..]; payload.frames().len() + 8];
    let mut scratch = Scratch::<4, 1>::new();
    let mut builder = MessageBuilder::new(
        to,
        BuilderBuffers {
            body: &mut body,
            headers: &mut headers,
            slots: &mut slots,
        },
    )
    .with_scratch(&mut scratch);
    builder.body().map(1).str("x");
    match builder.forward(payload) {
        Ok(_) => {}
        Err(BuildError::Headers(_)) => return,
        Err(BuildError::Payload(_) | BuildError::NotConvertible { .. }) => {
            return;
        }
        Err(error) => panic!("{error}"),
    }
    let frames = match builder.finish() {
        Ok(frames) => frames,
        Err(BuildError::Headers(_)) => return,
        Err(error) => panic!("{error}"),
    };
    let mut workspace = Workspace::new();
    let again = Message::open(frames, to, options, &mut workspace).map(|message| {
        let again = message.payload(0).expect("one payload was put in");
        if to == payload.layout() {
            assert_eq!(again.header_bytes(), payload.header_bytes());
            assert_eq!(again.frames(), payload.frames());
        } else {
            again.check().expect("a converted header is right");
        }
    });
    again.expect("what was built can be opened");
}

/// Reads any bytes as the header of a payload.
pub(crate) fn payload_header(input: &[u8]) {
    let Some((&frame_count, header)) = input.split_first() else {
        return;
    };
    let mut frames: Vec<&[u8]> = vec![b"\x81\xa1x\x81\xae__Serialized__\x01", header];
    frames.resize(2 + usize::from(frame_count & 15), b"frame");
    let mut workspace = Workspace::new();
    let options = read_options();
    let opened = Message::open(&frames, Layout::Modern, &options, &mut workspace).map(|message| {
        let Ok(payload) = message.payload(0) else {
            return;
        };
        let header = payload.header();
        let _ = (
            header.serializer(),
            header.type_name(),
            header.type_serialized(),
        );
        let _ = (
            header.number("num-sub-frames"),
            header.number("count"),
            header.pickled_object(),
        );
        let _ = (
            header.is_collection(),
            header.key(),
            header.type_header(),
            header.dtype(),
        );
        let lists = [
            header.list("lengths"),
            header.list("compression"),
            header.list("split-num-sub-frames"),
            header.list("split-offsets"),
            header.writeable(),
            header.list("frame-lengths"),
            header.shape(),
            header.strides(),
        ];
        for list in lists.into_iter().flatten().flatten() {
            let count = list.count_left() as usize;
            assert_eq!(list.clone().count(), count);
            assert_eq!(list.clone().numbers().count(), count);
            assert_eq!(list.clone().signed_numbers().count(), count);
            assert_eq!(list.clone().codec_names().count(), count);
            assert_eq!(list.flags().count(), count);
        }
        if let Ok(Some(sub_headers)) = header.sub_headers() {
            for sub_header in sub_headers.flatten() {
                let _ = sub_header.serializer();
            }
        }
        assert!(header.entries().count() <= header_len(payload.header_bytes()));
        use_payload(&payload);
        forward(&payload, Layout::Modern, &options);
        forward(&payload, Layout::Classic, &options);
    });
    opened.expect("the body is right, and the header is not looked at");
}

fn header_len(header: &[u8]) -> usize {
    Reader::new(header)
        .map()
        .expect("it has been read as a map") as usize
}

/// Reads any bytes as a handshake; checks that a parsed handshake can be
/// written and parsed again.
pub(crate) fn handshake(input: &[u8]) {
    if let Some(first) = input.first_chunk() {
        let _ = detect_prefix(first);
    }
    let frames = split_frames(input);
    let _ = Handshake::from_frames(&frames, &LIMITS);
    let Ok(theirs) = Handshake::parse(input, &LIMITS) else {
        return;
    };
    let mut buffer = vec![0; input.len() + 128];
    let mut writer = Writer::new(&mut buffer);
    theirs.encode(&mut writer);
    let written = writer.finish().expect("a handshake is short").to_vec();
    assert_eq!(Handshake::parse(&written, &LIMITS), Ok(theirs));
    let ours = Handshake::new(Some("lz4"));
    let agreed = ours.negotiate(&theirs);
    assert_eq!(
        agreed,
        theirs.negotiate(&ours),
        "both sides agree on the same"
    );
    assert!(agreed.pickle_protocol <= ours.pickle_protocol);
}

/// Checks that any message can be built again from its items, in its own
/// layout.
pub(crate) fn round_trip(input: &[u8]) {
    let Some((&choice, rest)) = input.split_first() else {
        return;
    };
    let layout = if choice & 1 == 0 {
        Layout::Modern
    } else {
        Layout::Classic
    };
    let frames = split_frames(rest);
    let mut workspace = Workspace::new();
    let _ = Message::open(&frames, layout, &read_options(), &mut workspace).map(|message| {
        if message.check().is_err() {
            return;
        }
        let size = 4 * rest.len() + 2 * message.body().len() + 4096;
        let (mut body, mut headers) = (vec![0; size], vec![0; size]);
        let mut slots = vec![&[][..]; 4 + 2 * message.payload_count() + 16 * frames.len()];
        let (mut scratch, mut walking) = (Workspace::new(), Workspace::new());
        let buffers = BuilderBuffers {
            body: &mut body,
            headers: &mut headers,
            slots: &mut slots,
        };
        let mut builder = MessageBuilder::new(layout, buffers).with_scratch(&mut scratch);
        let mut items = Vec::new();
        let mut walk = message.walk(&mut walking);
        while let Some(item) = walk.next_item().expect("opening has checked the body") {
            match builder.item(item, &message) {
                Ok(_) => items.push(item),
                // A payload with very many references does not fit.
                Err(BuildError::Slots(_)) => return,
                Err(error) => panic!("{error}"),
            }
        }
        let built = match builder.finish() {
            Ok(built) => built,
            Err(BuildError::Headers(_)) => return,
            Err(error) => panic!("{error}"),
        };
        let mut workspace = Workspace::new();
        let again = Message::open(built, layout, &read_options(), &mut workspace).map(|again| {
            let mut walking = Workspace::new();
            let mut walk = again.walk(&mut walking);
            let mut count = 0;
            while let Some(item) = walk.next_item().expect("our own") {
                let before = items.get(count).expect("as many items");
                match (before, &item) {
                    // A payload with two references is now present twice, and
                    // the nil that a payload replaced may be elsewhere.
                    (Item::Payload(one), Item::Payload(other)) => {
                        let one = message.payload(*one).expect("checked");
                        let other = again.payload(*other).expect("our own");
                        assert_eq!(one.header_bytes(), other.header_bytes());
                        assert_eq!(one.frames(), other.frames());
                    }
                    (Item::Token(Token::F64(a)), Item::Token(Token::F64(b))) => {
                        assert_eq!(a.to_bits(), b.to_bits());
                    }
                    (Item::Token(Token::F32(a)), Item::Token(Token::F32(b))) => {
                        assert_eq!(a.to_bits(), b.to_bits());
                    }
                    (before, item) => assert_eq!(*before, *item),
                }
                count += 1;
            }
            assert_eq!(count, items.len());
        });
        match again {
            Ok(()) => {}
            // Placeholders can be longer than the values that they replace.
            Err(error)
                if matches!(
                    error.kind,
                    daskwire::message::MessageErrorKind::DocumentTooLong { .. }
                ) => {}
            Err(error) => panic!("{error}"),
        }
    });
}
