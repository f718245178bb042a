//! Properties for any input, one function per fuzz target.
//!
//! The targets in `fuzz_targets/` call these functions with inputs of
//! libFuzzer, and `cargo test -p daskwire-fuzz` calls them with every committed
//! seed. A function panics if a property does not hold or the input uses more
//! memory or steps than its budget (see `budget.rs`).

pub mod budget;
pub mod corpus;
mod embedded;
pub mod meter;
mod pickles;
mod surface;
mod values;

use daskwire::Limits;
use daskwire::compression::{
    Codec, Compression, Lz4, Lz4Table, Snappy, SnappyTable, decompress, decompressed_len,
};
use daskwire::display::Document;
use daskwire::frame::{
    FrameBuffers, FrameDecoder, FrameErrorKind, FramedMessage, Prefix, encode_prelude, prelude_len,
};
use daskwire::handshake::{Handshake, detect_prefix};
use daskwire::message::{
    BuildError, BuilderScratch, Item, Layout, Message, MessageBuilder, ReadOptions, Scratch,
    Workspace,
};
use daskwire::msgpack::{Reader, Token, Writer};
use daskwire_pickle::{
    Argument, Form, Opcode, OutOfBandReader, PickleErrorKind, Reader as PickleReader,
    Token as PickleToken, Unescaped,
};

use budget::{Budget, Linear};
use embedded::embedded;
use pickles::{pickle_tree, pickle_writer};
use values::typed;

pub use surface::Surface;

surfaces! {
    prelude: CORE,
    msgpack: CORE,
    // Its output is not proportional to the length of the input.
    pickle_writer: None,
    message_modern: DECOMPRESSING,
    message_classic: DECOMPRESSING,
    payload_header: DECOMPRESSING,
    lz4: DECOMPRESSING,
    snappy: DECOMPRESSING,
    zlib: DECOMPRESSING,
    zstd: DECOMPRESSING,
    handshake: CORE,
    embedded: CORE,
    round_trip: DECOMPRESSING,
    rmp: CORE,
    pickle: CORE,
    pickle_tree: CORE,
    typed: DECOMPRESSING,
}

/// The budget for the decoders of core, including the checks of these
/// functions.
pub const CORE: Option<Budget> = Some(Budget {
    memory_len: Linear {
        base: 8 << 20,
        per_byte: 1 << 10,
    },
    allocated_len: Linear {
        base: 32 << 20,
        per_byte: 16 << 10,
    },
    steps: Linear {
        base: 1 << 20,
        per_byte: 1 << 10,
    },
});

/// The budget with decompression: a zstd frame of about 20 bytes may decompress
/// to `decompressed_len` of [`LIMITS`], and is read more than once.
const DECOMPRESSING: Option<Budget> = Some(Budget {
    memory_len: Linear {
        base: 64 << 20,
        per_byte: 1 << 10,
    },
    allocated_len: Linear {
        base: 256 << 20,
        per_byte: 1 << 20,
    },
    steps: Linear {
        base: 64 << 20,
        per_byte: 1 << 20,
    },
});

/// Small limits, so that an input of some kilobytes costs some kilobytes.
const LIMITS: Limits = Limits {
    frame_count: 1 << 10,
    frame_len: 1 << 20,
    message_len: 1 << 22,
    document_len: 1 << 20,
    depth: 128,
    items: 1 << 16,
    decompressed_len: 1 << 20,
};

/// Small limits for pickles.
const PICKLE_LIMITS: daskwire_pickle::Limits = daskwire_pickle::Limits {
    opcode_count: 1 << 16,
    value_count: 1 << 16,
    stack_count: 1 << 16,
    memo_count: 1 << 16,
};

fn read_options() -> ReadOptions {
    ReadOptions {
        limits: LIMITS,
        sets_and_enums: true,
        lengths_optional: false,
    }
}

/// A prefix, and the rest of the input.
fn prefix(input: &[u8]) -> Option<(Prefix, &[u8])> {
    let (&choice, rest) = input.split_first()?;
    let prefix = if choice & 1 == 0 {
        Prefix::U64
    } else {
        Prefix::None
    };
    Some((prefix, rest))
}

/// Frames in vectors, which check the order and sizes of requests.
#[derive(Default)]
struct Frames(Vec<Vec<u8>>);

impl FrameBuffers for Frames {
    fn buffer(&mut self, index: usize, len: usize, filled: usize) -> Option<&mut [u8]> {
        assert!(filled < len, "asked for a frame that is complete");
        assert!(
            len as u64 <= LIMITS.frame_len,
            "asked before the limits were checked"
        );
        assert!(
            index >= self.0.len().saturating_sub(1),
            "frames come in order"
        );
        self.0.resize_with(index + 1, Vec::new);
        let frame = self.0.last_mut()?;
        frame.resize((filled + 64).min(len), 0);
        frame.get_mut(filled..)
    }
}

/// Checks that any split of a stream gives the same messages and error as the
/// whole.
fn prelude(input: &[u8]) {
    let Some((prefix, rest)) = prefix(input) else {
        return;
    };
    let Some((&step, stream)) = rest.split_first() else {
        return;
    };
    let step = usize::from(step).max(1);

    let mut decoder = FrameDecoder::new(prefix, Vec::new(), LIMITS);
    let mut frames = Frames::default();
    let mut rest = stream;
    loop {
        // As a stream of pieces.
        let mut pieces = rest.chunks(step);
        let mut consumed = 0;
        let failed = loop {
            let Some(mut piece) = pieces.next() else {
                break None;
            };
            let len = piece.len();
            let pushed = decoder.push(&mut piece, &mut frames);
            consumed += len - piece.len();
            if let Err(error) = pushed {
                break Some(error);
            }
            if decoder.is_complete() {
                break None;
            }
        };
        let outcome = match failed {
            Some(error) => Err(error),
            None => decoder.end().map(|()| decoder.is_complete()),
        };
        // As a whole.
        match (FramedMessage::parse(rest, prefix, &LIMITS), outcome) {
            (Ok(framed), Ok(true)) => {
                let lengths: Vec<u64> = framed.prelude.lengths().collect();
                let prelude = decoder.prelude().expect("a complete message has a prelude");
                assert!(prelude.lengths().eq(lengths.iter().copied()));
                assert_eq!(consumed as u64, framed.message_len());
                let mut slots = vec![&[][..]; lengths.len()];
                let cut = framed
                    .prelude
                    .split(framed.frames, &mut slots)
                    .expect("all are there");
                for (index, frame) in cut.iter().enumerate() {
                    let got = frames.0.get(index).map_or(&[][..], Vec::as_slice);
                    assert_eq!(got, *frame, "frame {index}");
                }
                // A rewritten message has the same frames.
                let mut out = vec![0; prelude_len(prefix, cut.len()).expect("it fits")];
                encode_prelude(prefix, lengths.iter().copied(), &mut out).expect("it fits");
                out.extend_from_slice(framed.frames);
                let again = FramedMessage::parse(&out, prefix, &LIMITS).expect("our own");
                assert_eq!(again.frames, framed.frames);
                rest = framed.rest;
                decoder.reset();
                frames.0.clear();
            }
            (Err(whole), Err(pieces)) => {
                assert_eq!(whole, pieces);
                return;
            }
            (Err(whole), Ok(_)) => {
                assert!(rest.is_empty(), "{whole:?} in one piece, none in many");
                assert!(matches!(whole.kind, FrameErrorKind::Truncated { .. }));
                return;
            }
            (Ok(_), other) => panic!("one piece is a message, many are {other:?}"),
        }
    }
}

/// Checks that tokens, skipping and writing agree for every document.
fn msgpack(input: &[u8]) {
    let mut reader = Reader::with_limits(input, &LIMITS);
    let skipped = reader.skip();
    let mut tokens = Reader::with_limits(input, &LIMITS);
    // Large enough for any document of this length in its shortest form.
    let mut buffer = vec![0xa5; input.len() + 16];
    let mut writer = Writer::new(&mut buffer);
    let walked = loop {
        let before = tokens;
        match tokens.token() {
            Ok(token) => {
                writer.token(token);
                // As strings, since a NaN is not equal to itself.
                assert_eq!(format!("{:?}", before.peek()), format!("Ok({token:?})"));
            }
            Err(error) => {
                assert_eq!(before.position(), tokens.position(), "moved on failure");
                break Err(error);
            }
        }
        if writer.owed() == 0 {
            break Ok(());
        }
    };
    match (skipped, walked) {
        (Ok(bytes), Ok(())) => {
            assert_eq!(bytes.len(), tokens.position());
            let len = writer.len();
            assert!(len <= bytes.len(), "the shortest form is longer");
            let written = writer.finish().expect("complete, and it fits").to_vec();
            assert_eq!(written.len(), len);
            // Writing it again changes nothing.
            let mut reader = Reader::with_limits(&written, &LIMITS);
            let mut again = vec![0x5a; written.len()];
            let mut writer = Writer::new(&mut again);
            while writer.owed() != 0 {
                writer.token(reader.token().expect("our own document"));
            }
            assert_eq!(writer.finish().expect("it fits"), written);
        }
        // Only skipping knows about depth.
        (Err(error), Ok(())) => {
            assert!(matches!(
                error.kind,
                daskwire::msgpack::MalformedKind::TooDeep { .. }
            ));
        }
        (Ok(_), Err(error)) => panic!("skipped, but {error}"),
        (Err(_), Err(_)) => assert_eq!(reader.position(), 0, "moved on failure"),
    }
    let mut find = Reader::with_limits(input, &LIMITS);
    if let Ok(true) = find.find("op") {
        assert!(find.position() > 3 && find.position() <= input.len());
    }
    let _ = Document::new(input).to_string();
}

/// Any frames as a message of the modern layout.
fn message_modern(input: &[u8]) {
    message(input, Layout::Modern);
}

/// Any frames as a message of the classic layout.
fn message_classic(input: &[u8]) {
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
    let mut workspace = Workspace::new();
    let _ = Message::open(&frames, layout, &read_options(), &mut workspace).map(|message| {
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
                forward(&payload, to);
            }
        }
        let _ = message.op();
    });
    let mut stream = Vec::new();
    for frame in frames {
        stream.extend_from_slice(frame);
    }
    let _ = Document::new(&stream).to_string();
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
fn use_payload(payload: &daskwire::message::Payload<'_, &[u8]>) {
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

/// Checks that forwarded payloads can be read again with the same contents.
fn forward(payload: &daskwire::message::Payload<'_, &[u8]>, to: Layout) {
    let (mut body, mut headers) = (vec![0; 64], vec![0; 1 << 16]);
    let mut slots = vec![&[][..]; payload.frames().len() + 8];
    let mut scratch = Scratch::<4, 1>::new();
    let mut builder = MessageBuilder::new(
        to,
        BuilderScratch {
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
    let again = Message::open(frames, to, &read_options(), &mut workspace).map(|message| {
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

/// Any bytes as the header of a payload.
fn payload_header(input: &[u8]) {
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
            header.own(),
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
        forward(&payload, Layout::Modern);
        forward(&payload, Layout::Classic);
    });
    opened.expect("the body is right, and the header is not looked at");
}

fn header_len(header: &[u8]) -> usize {
    Reader::new(header)
        .map()
        .expect("it has been read as a map") as usize
}

/// Decompressing any bytes, and compressing them and back.
fn lz4(input: &[u8]) {
    codec(Codec::Lz4, input);
    let mut table = Lz4Table::new();
    compress(&mut Lz4::new(&mut table), input, |packed| {
        let (len, block) = packed.split_first_chunk().expect("a length");
        let len = u32::from_le_bytes(*len) as usize;
        let mut out = vec![0; len];
        let written = lz4_flex::block::decompress_into(block, &mut out).expect("lz4_flex reads it");
        out.truncate(written);
        out
    });
    // lz4_flex accepts what we accept.
    let mut ours = vec![0; 1 << 16];
    if let Ok(len) = decompress(Codec::Lz4, input, &mut ours, &LIMITS) {
        let block = input.get(4..).expect("we read its length");
        let mut theirs = vec![0; len];
        if !block.is_empty() {
            let written = lz4_flex::block::decompress_into(block, &mut theirs);
            assert_eq!(written.ok(), Some(len));
        }
        assert_eq!(ours.get(..len), Some(&theirs[..]));
    }
}

/// Decompressing any bytes, and compressing them and back.
fn snappy(input: &[u8]) {
    codec(Codec::Snappy, input);
    let mut table = SnappyTable::new();
    compress(&mut Snappy::new(&mut table), input, |packed| {
        snap::raw::Decoder::new()
            .decompress_vec(packed)
            .expect("snap reads it")
    });
    // snap accepts what we accept, and the other way round within the limits.
    let mut ours = vec![0; 1 << 16];
    let theirs = match snap::raw::decompress_len(input) {
        Ok(len) if len <= ours.len() => snap::raw::Decoder::new().decompress_vec(input).ok(),
        _ => return,
    };
    let ours = decompress(Codec::Snappy, input, &mut ours, &LIMITS)
        .ok()
        .map(|len| ours.get(..len).unwrap_or_default().to_vec());
    assert_eq!(
        ours,
        theirs.filter(|data| data.len() as u64 <= 22 * input.len() as u64)
    );
}

/// Decompressing any bytes, and those that miniz_oxide compressed.
fn zlib(input: &[u8]) {
    codec(Codec::Zlib, input);
    let packed = miniz_oxide::deflate::compress_to_vec_zlib(input, 1);
    let mut out = vec![0xa5; input.len()];
    let limits = Limits {
        decompressed_len: u64::MAX,
        ..LIMITS
    };
    let len = decompress(Codec::Zlib, &packed, &mut out, &limits);
    assert_eq!(len, Ok(input.len()));
    assert_eq!(out, input);
}

/// Decompressing any bytes.
fn zstd(input: &[u8]) {
    codec(Codec::Zstd, input);
}

/// Checks that the result does not depend on the former contents of the buffer,
/// and that nothing is written past the end.
fn codec(codec: Codec, input: &[u8]) {
    let declared = decompressed_len(codec, input, &LIMITS);
    let run = |fill: u8| {
        let mut out = vec![fill; 1 << 16];
        let result = decompress(codec, input, &mut out, &LIMITS);
        result.map(|len| {
            // miniz_oxide may write ahead in its buffer.
            assert!(
                codec == Codec::Zlib || out.iter().skip(len).all(|byte| *byte == fill),
                "written past the end"
            );
            out.truncate(len);
            out
        })
    };
    let data = run(0xa5);
    assert_eq!(data, run(0x5a), "old bytes show");
    if let Ok(data) = data {
        let says = codec != Codec::Zlib;
        assert_eq!(declared, Ok(says.then_some(data.len() as u64)));
    }
}

fn compress(compression: &mut dyn Compression, input: &[u8], theirs: impl Fn(&[u8]) -> Vec<u8>) {
    let room = compression
        .max_compressed_len(input.len())
        .expect("short enough");
    let mut packed = vec![0; room];
    let len = compression
        .compress(input, &mut packed)
        .expect("there is room");
    packed.truncate(len);
    let mut out = vec![0xa5; input.len()];
    let limits = Limits {
        decompressed_len: u64::MAX,
        ..LIMITS
    };
    let len = decompress(compression.codec(), &packed, &mut out, &limits);
    assert_eq!(len, Ok(input.len()));
    assert_eq!(out, input);
    assert_eq!(theirs(&packed), input);
}

/// Any bytes as a handshake; a parsed handshake can be written and parsed
/// again.
fn handshake(input: &[u8]) {
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

/// Any message can be built again from its items, in its own layout.
fn round_trip(input: &[u8]) {
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
        let buffers = BuilderScratch {
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

/// Checks that rmpv reads the same values from the same bytes.
fn rmp(input: &[u8]) {
    // rmpv reserves memory for declared counts, so implausible counts are not
    // passed to it.
    let mut reader = Reader::with_limits(input, &LIMITS);
    let Ok(document) = reader.skip() else {
        return;
    };
    let mut rest = document;
    let theirs = match rmpv::decode::read_value_ref_with_max_depth(&mut rest, 1024) {
        Ok(value) => value,
        Err(error) => panic!("rmpv refuses what we read: {error}"),
    };
    assert!(rest.is_empty(), "rmpv read less");
    let mut ours = Reader::with_limits(document, &LIMITS);
    compare(&mut ours, &theirs);
    assert!(ours.is_empty());
    // Both write the same shortest form.
    let mut buffer = vec![0; document.len() + 16];
    let mut writer = Writer::new(&mut buffer);
    let mut ours = Reader::with_limits(document, &LIMITS);
    let mut is_utf8 = true;
    while writer.owed() != 0 {
        let token = ours.token().expect("read before");
        if let Token::Str(string) = token {
            is_utf8 &= string.check().is_ok();
        }
        writer.token(token);
    }
    if !is_utf8 {
        // rmpv writes strings that are not UTF-8 as byte strings.
        return;
    }
    let mut written = Vec::new();
    rmpv::encode::write_value_ref(&mut written, &theirs).expect("writing to memory");
    assert_eq!(writer.finish().expect("it fits"), written);
}

/// Compares a value with the next of `ours`. Recursive, within the depth limit
/// that both have passed.
fn compare(ours: &mut Reader<'_>, theirs: &rmpv::ValueRef<'_>) {
    use rmpv::ValueRef;
    let token = ours.token().expect("rmpv has a value here");
    match (token, theirs) {
        (Token::Nil, ValueRef::Nil) => {}
        (Token::Bool(a), ValueRef::Boolean(b)) => assert_eq!(a, *b),
        (Token::UInt(a), ValueRef::Integer(b)) => assert_eq!(Some(a), b.as_u64()),
        (Token::Int(a), ValueRef::Integer(b)) => assert_eq!(Some(a), b.as_i64()),
        (Token::F32(a), ValueRef::F32(b)) => assert_eq!(a.to_bits(), b.to_bits()),
        (Token::F64(a), ValueRef::F64(b)) => assert_eq!(a.to_bits(), b.to_bits()),
        (Token::Str(a), ValueRef::String(b)) => {
            assert_eq!(a.as_bytes(), b.as_bytes());
            assert_eq!(a.check().is_ok(), b.as_str().is_some());
        }
        (Token::Bin(a), ValueRef::Binary(b)) => assert_eq!(a, *b),
        (Token::Ext(a, x), ValueRef::Ext(b, y)) => assert_eq!((a, x), (*b, *y)),
        (Token::Array(count), ValueRef::Array(items)) => {
            assert_eq!(count as usize, items.len());
            for item in items {
                compare(ours, item);
            }
        }
        (Token::Map(count), ValueRef::Map(pairs)) => {
            assert_eq!(count as usize, pairs.len());
            for (key, value) in pairs {
                compare(ours, key);
                compare(ours, value);
            }
        }
        (ours, theirs) => panic!("{ours:?} is {theirs:?} for rmpv"),
    }
}

/// Checks that the opcodes of a pickle are contiguous, with the lengths of the
/// opcode table; that arguments are parts of the input; that the result is the
/// same with and without text opcodes, whole and truncated; and that buffers
/// are borrowed in order.
///
/// The first byte of the input is the number of buffers.
fn pickle(input: &[u8]) {
    let Some((&buffer_count, input)) = input.split_first() else {
        return;
    };
    let reader = PickleReader::with_limits(input, &PICKLE_LIMITS);
    let (tokens, error) = pickle_tokens(reader.text_opcodes(true));
    let mut end = 0;
    for token in &tokens {
        assert_eq!(token.offset, end);
        let rest = &input[end..];
        assert_eq!(Opcode::from_byte(rest[0]), Some(token.opcode));
        assert_eq!(token.len, pickle_len(token.opcode, &rest[1..]));
        if let Argument::Bytes(bytes)
        | Argument::ByteString(bytes)
        | Argument::ByteArray(bytes)
        | Argument::Line(bytes) = token.argument
        {
            let start = bytes.as_ptr().addr() - input.as_ptr().addr();
            assert!(end < start && start + bytes.len() <= end + token.len);
        }
        match (token.opcode, token.argument) {
            (Opcode::String, Argument::Line(line)) => {
                let bytes: Vec<u8> = Unescaped::string(line).collect();
                assert!(bytes.is_ascii() && bytes.len() <= line.len());
            }
            (Opcode::Unicode, Argument::Line(line)) => {
                let max_len = Unescaped::unicode(line).size_hint().1;
                let mut string: Vec<u8> = Unescaped::unicode(line).collect();
                assert!(max_len >= Some(string.len()));
                // Without the surrogates it is UTF-8.
                while let Err(error) = str::from_utf8(&string) {
                    let half: Vec<u8> = string.drain(error.valid_up_to()..).collect();
                    assert!(half[0] == 0xed && half[1] >= 0xa0, "{half:x?}");
                    string.extend(&half[3..]);
                }
            }
            _ => {}
        }
        end += token.len;
    }
    match error {
        None => assert_eq!(tokens.last().map(|token| token.opcode), Some(Opcode::Stop)),
        Some(error) => {
            assert_eq!(error.offset, end);
            assert!(error.to_string().starts_with("at byte "));
        }
    }
    assert!(
        tokens
            .iter()
            .rev()
            .skip(1)
            .all(|token| token.opcode != Opcode::Stop)
    );

    // A truncated pickle has the same opcodes up to the end.
    let cut = end.saturating_sub(1 + usize::from(buffer_count));
    let (fewer, cut_error) =
        pickle_tokens(PickleReader::with_limits(&input[..cut], &PICKLE_LIMITS).text_opcodes(true));
    assert!(cut_error.is_some());
    assert!(fewer.len() <= tokens.len() && same(&fewer, &tokens[..fewer.len()]));

    // Without text opcodes, up to the first of them.
    let (binary, binary_error) = pickle_tokens(reader);
    assert!(same(&binary, &tokens[..binary.len()]));
    assert!(binary.iter().all(|token| !token.opcode.is_text()));
    if let Some(token) = tokens.get(binary.len()) {
        let kind = PickleErrorKind::TextOpcode {
            opcode: token.opcode,
        };
        assert_eq!(binary_error.map(|error| error.kind), Some(kind));
    }

    let frames: Vec<[u8; 1]> = (0..buffer_count).map(|index| [index]).collect();
    let mut items = OutOfBandReader::new(reader.text_opcodes(true), &frames);
    let mut count = 0;
    let mut taken = 0;
    let matched = loop {
        match items.next_item() {
            Ok(Some(item)) => {
                assert!(same(&[item.token], &tokens[count..=count]));
                if let Some(index) = item.data.and_then(|data| data.buffer) {
                    assert_eq!(index, taken);
                    let data = item.data.expect("it has an index");
                    assert!(std::ptr::eq(data.bytes, frames[index].as_slice()));
                    taken += 1;
                }
                count += 1;
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    assert_eq!(items.used_count(), taken);
    match matched {
        None => assert!(error.is_none() && taken == frames.len()),
        Some(matched) => match matched.kind {
            PickleErrorKind::TooFewBuffers { .. } => assert_eq!(taken, frames.len()),
            PickleErrorKind::TooManyBuffers { used_count, .. } => {
                assert!(taken < frames.len() && used_count == taken);
            }
            PickleErrorKind::NoBuffer => {
                assert_eq!(tokens[count].opcode, Opcode::ReadOnlyBuffer);
            }
            _ => assert_eq!(Some(matched), error),
        },
    }
}

/// All opcodes of a pickle, and the error if there was one.
fn pickle_tokens(
    mut reader: PickleReader<'_>,
) -> (Vec<PickleToken<'_>>, Option<daskwire_pickle::PickleError>) {
    let mut tokens = Vec::new();
    loop {
        let before = reader.position();
        match reader.next_token() {
            Ok(Some(token)) => tokens.push(token),
            Ok(None) => return (tokens, None),
            Err(error) => {
                assert_eq!(before, reader.position(), "moved on failure");
                return (tokens, Some(error));
            }
        }
    }
}

/// Whether two tokens are equal, including NaNs.
fn same(one: &[PickleToken<'_>], other: &[PickleToken<'_>]) -> bool {
    let is_nan = |token: &PickleToken<'_>| matches!(token.argument, Argument::Float(value) if value.is_nan());
    one.len() == other.len()
        && one.iter().zip(other).all(|(one, other)| {
            let place = |token: &PickleToken<'_>| (token.offset, token.len, token.opcode);
            place(one) == place(other)
                && (one.argument == other.argument || is_nan(one) && is_nan(other))
        })
}

/// The length of an opcode according to its form, in bytes.
fn pickle_len(opcode: Opcode, rest: &[u8]) -> usize {
    let line = |rest: &[u8]| 1 + rest.iter().position(|&byte| byte == b'\n').expect("a line");
    1 + match opcode.form() {
        Form::None => 0,
        Form::Bytes(len) => usize::from(len),
        Form::Counted(len) => {
            let count = rest[..usize::from(len)].iter().rev();
            usize::from(len) + count.fold(0, |count, &byte| count << 8 | usize::from(byte))
        }
        Form::Line => line(rest),
        Form::TwoLines => line(rest) + line(&rest[line(rest)..]),
        form => panic!("a form that is not known here: {form:?}"),
    }
}
