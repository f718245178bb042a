//! Tests of the message builder: new messages, and messages forwarded in both
//! layouts and with both prefixes.

use crate::support;
use std::collections::{BTreeMap, BTreeSet};

use crate::support::{
    LIMITS, Random, Vector, Workspaces, cut, in_parallel, is_frame, merged, vector, vectors,
};
use daskwire::BufferTooSmall;
use daskwire::compression::{Codec, Compression, CompressionError, Policy};
use daskwire::frame::{FramedMessage, Prefix, encode_prelude, prelude_len};
use daskwire::message::{
    BuildError, BuilderBuffers, FrameCompressor, HeaderEntries, Item, ItemList, Layout, Message,
    MessageBuilder, MessageError, MessageErrorKind, Payload, PayloadHeader, PayloadKind,
    ReadOptions, SHARD_LEN, Serializer, Workspace, shards,
};
use daskwire::msgpack::{Reader, Token, WriteError, Writer};

const LAYOUTS: [Layout; 2] = [Layout::Modern, Layout::Classic];

const fn other(layout: Layout) -> Layout {
    match layout {
        Layout::Modern => Layout::Classic,
        Layout::Classic => Layout::Modern,
    }
}

/// The options of 2026.8.0 for the modern layout and of 2021.2.0 for the
/// classic one.
const READING: ReadOptions = ReadOptions::new(LIMITS)
    .with_sets_and_enums(true)
    .with_lengths_optional(false);

/// The sizes of a builder's buffers, in bytes and in items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    body: usize,
    headers: usize,
    slots: usize,
    pending: usize,
    levels: usize,
}

/// Larger than any message of these tests needs.
const AMPLE: Size = Size {
    body: 1 << 18,
    headers: 1 << 16,
    slots: 1 << 10,
    pending: 1 << 7,
    levels: 1 << 10,
};

/// The buffers that the frames of a built message borrow.
struct Store {
    body: Vec<u8>,
    headers: Vec<u8>,
    compressed: Vec<u8>,
    size: Size,
}

impl Store {
    fn new(size: Size) -> Self {
        Self {
            // Not zeros, so that unwritten bytes are noticed.
            body: vec![0xa5; size.body],
            headers: vec![0x5a; size.headers],
            compressed: vec![0xee; size.body],
            size,
        }
    }

    fn ample() -> Self {
        Self::new(AMPLE)
    }

    /// Builds a message and returns its frames.
    fn build<'f>(
        &'f mut self,
        layout: Layout,
        write: impl FnOnce(&mut MessageBuilder<'_, 'f>) -> Result<(), BuildError>,
    ) -> Result<Vec<&'f [u8]>, BuildError> {
        self.build_compressed(layout, None, write)
    }

    /// As `build`, and compresses every frame of at least `min_len` bytes as one
    /// literal.
    fn build_compressed<'f>(
        &'f mut self,
        layout: Layout,
        codec: Option<(Codec, u64)>,
        write: impl FnOnce(&mut MessageBuilder<'_, 'f>) -> Result<(), BuildError>,
    ) -> Result<Vec<&'f [u8]>, BuildError> {
        let mut slots = vec![&[][..]; self.size.slots];
        let mut scratch = Workspace::fixed(self.size.levels, self.size.pending, 0);
        let mut builder = MessageBuilder::new(
            layout,
            BuilderBuffers {
                body: &mut self.body,
                headers: &mut self.headers,
                slots: &mut slots,
            },
        )
        .with_scratch(&mut scratch);
        let (mut literals, mut random);
        if let Some((codec, min_len)) = codec {
            (literals, random) = (Literals(codec), |_| 0);
            builder = builder.with_compression(FrameCompressor {
                compression: &mut literals,
                policy: Policy::DASK
                    .with_min_len(min_len)
                    .with_max_percent(u32::MAX),
                out: &mut self.compressed,
                random: &mut random,
            });
        }
        write(&mut builder)?;
        Ok(builder.finish()?.to_vec())
    }

    /// Forwards a message item by item.
    fn pass_on<'f>(
        &'f mut self,
        message: &Message<'f, &'f [u8]>,
        levels: &mut Workspace,
        layout: Layout,
    ) -> Result<Vec<&'f [u8]>, BuildError> {
        self.build(layout, |builder| {
            let mut walk = message.walk(levels);
            while let Some(item) = walk.next_item().unwrap() {
                builder.item(item, message)?;
            }
            Ok(())
        })
    }
}

/// The items of a message as text, and the indices of its payloads in the order
/// of the walk. The text has no indices, since they follow `keys` in the
/// classic layout and the order of placeholders in the modern one.
fn read(message: &Message<'_, &[u8]>, levels: &mut Workspace) -> (Vec<String>, Vec<usize>) {
    let mut walk = message.walk(levels);
    let (mut items, mut numbers) = (Vec::new(), Vec::new());
    while let Some(item) = walk.next_item().unwrap() {
        if let Item::Payload(number) = item {
            numbers.push(number);
        }
        items.push(shown(&item));
    }
    (items, numbers)
}

fn shown(item: &Item<'_>) -> String {
    match item {
        Item::Payload(_) => "payload".into(),
        item => format!("{item:?}"),
    }
}

/// The items of a message, and the logical frames of each payload.
type Meaning = (Vec<String>, Vec<Vec<Vec<u8>>>);

/// Opens frames and reads them, payloads merged.
fn meaning(
    frames: &[&[u8]],
    layout: Layout,
    reading: &ReadOptions,
) -> Result<Meaning, MessageError> {
    let mut workspaces = Workspaces::with(1 << 10, 1 << 12, 1 << 14);
    let (message, levels) = workspaces.open(frames, layout, reading)?;
    message.check()?;
    let (items, numbers) = read(&message, levels);
    let payloads = numbers
        .iter()
        .map(|number| merged(&message.payload(*number)?));
    Ok((items, payloads.collect::<Result<_, _>>()?))
}

/// Whether both slices are the same memory.
fn is_same_slice(one: &[u8], other: &[u8]) -> bool {
    one.as_ptr() == other.as_ptr() && one.len() == other.len()
}

fn are_same_slices(some: &[&[u8]], others: &[&[u8]]) -> bool {
    some.len() == others.len()
        && some
            .iter()
            .zip(others)
            .all(|(one, other)| is_same_slice(one, other))
}

/// The value of an entry that is a list of numbers.
fn numbers_of(list: Option<ItemList<'_>>) -> Option<Vec<u64>> {
    list.map(|list| list.numbers().map(Result::unwrap).collect())
}

/// Encodes one value.
fn encoded(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut buffer = [0; 1 << 12];
    let mut writer = Writer::new(&mut buffer);
    write(&mut writer);
    writer.finish().unwrap().to_vec()
}

// Forwarding.

/// Messages that are not forwarded byte for byte.
const NOT_BYTE_FOR_BYTE: &[(&str, &[&str])] = &[
    (
        "the message was compressed, and is not any more",
        &[
            "classic-1.14.0/msgpack-frame-10000",
            "classic-1.28.1/hm-classic-message-zlib",
            "classic-1.28.1/msgpack-frame-12000-snappy",
            "classic-1.28.1/msgpack-frame-mix80",
            "classic-2.30.1/case-text-over-10-kB",
            "classic-2.30.1/hm-classic-message-lz4",
            "classic-2.30.1/hm-classic-message-snappy",
            "classic-2.30.1/hm-classic-message-zstd",
            "classic-2.30.1/inband-bytes-65535",
            "classic-2.30.1/inband-bytes-in-tuple",
            "classic-2.30.1/msgpack-frame-10001",
            "classic-2.30.1/msgpack-frame-12000-zlib",
            "classic-2.30.1/msgpack-frame-12000-zstd",
        ],
    ),
    (
        "the header was not empty, but says nothing",
        &[
            "classic-2.30.1/hm-classic-empty-header-map",
            "classic-2.30.1/hm-classic-header-null-compression",
        ],
    ),
    (
        "its numbers or lengths were longer than they have to be",
        &[
            "classic-1.28.1/hm-negint-not-minimal",
            "classic-2.30.1/hm-array-not-minimal",
            "classic-2.30.1/hm-bin-not-minimal",
            "classic-2.30.1/hm-ext-all-heads",
            "classic-2.30.1/hm-int-not-minimal",
            "classic-2.30.1/hm-map-not-minimal",
            "classic-2.30.1/hm-map32-three",
            "classic-2.30.1/hm-root-str32",
            "classic-2.30.1/hm-root-u8",
            "classic-2.30.1/hm-str-not-minimal",
            "modern-nosplit-2026.8.0/hm-array-not-minimal",
            "modern-nosplit-2026.8.0/hm-bin-not-minimal",
            "modern-nosplit-2026.8.0/hm-ext-all-heads",
            "modern-nosplit-2026.8.0/hm-int-not-minimal",
            "modern-nosplit-2026.8.0/hm-map-not-minimal",
            "modern-nosplit-2026.8.0/hm-map32-three",
            "modern-nosplit-2026.8.0/hm-negint-not-minimal",
            "modern-nosplit-2026.8.0/hm-placeholder-offset-u64",
            "modern-nosplit-2026.8.0/hm-root-str32",
            "modern-nosplit-2026.8.0/hm-root-u8",
            "modern-nosplit-2026.8.0/hm-str-not-minimal",
            "modern-total-2021.12.0/hm-str-not-minimal",
        ],
    ),
    (
        "its map of a set or placeholder had another order, or more in it",
        &[
            "modern-nosplit-2026.8.0/hm-placeholder-extra-key",
            "modern-nosplit-2026.8.0/hm-set-key-order",
            "modern-total-2021.12.0/hm-placeholder-extra-key",
        ],
    ),
    (
        "its frames were not in the order of the payloads",
        &[
            "modern-nosplit-2026.8.0/hm-frames-unused",
            "modern-nosplit-2026.8.0/hm-placeholder-order",
            "modern-total-2021.12.0/hm-placeholder-order",
        ],
    ),
];

// PROTOCOL FORWARD-1, FORWARD-2 and FORWARD-3
#[test]
fn every_vector_is_forwarded_without_decoding() {
    let vectors = vectors();
    let changed = in_parallel(&vectors, |vector| {
        let name = &vector.name;
        let frames = vector.frames();
        let layout = vector.layout();
        let mut workspaces = Workspaces::new();
        if vector.missing_body_codec().is_some() {
            return None;
        }
        let (message, levels) = workspaces.open(&frames, layout, &vector.reading()).unwrap();
        let (items, numbers) = read(&message, levels);
        let mut store = Store::ample();
        // Same layout: no header is written but the classic payload header.
        if layout == Layout::Modern {
            store.headers.clear();
        }
        let built = store
            .pass_on(&message, levels, layout)
            .unwrap_or_else(|error| panic!("{name}: {error}"));

        let mut workspaces = Workspaces::new();
        let (again, levels) = workspaces
            .open(&built, layout, &vector.reading())
            .unwrap_or_else(|error| panic!("{name}, passed on: {error}"));
        let (items_again, numbers_again) = read(&again, levels);
        assert_eq!(items_again, items, "{name}");
        assert_eq!(numbers_again.len(), numbers.len(), "{name}");
        let mut sent = Vec::new();
        for (&number, &number_again) in numbers.iter().zip(&numbers_again) {
            let before = message.payload(number).unwrap();
            let after = again.payload(number_again).unwrap();
            assert_eq!(after.kind(), before.kind(), "{name}");
            assert_eq!(after.header_bytes(), before.header_bytes(), "{name}");
            let was_bytes = before.bytestring().unwrap_or_default();
            assert_eq!(after.bytestring().unwrap_or_default(), was_bytes, "{name}");
            assert!(are_same_slices(after.frames(), before.frames()), "{name}");
            if layout == Layout::Modern {
                // Not even the header is copied.
                assert!(is_same_slice(after.header_bytes(), before.header_bytes()));
                sent.push(after.header_bytes());
            }
            sent.extend(after.frames());
        }
        // The output has these frames in order, and no others.
        let heads = match (layout, numbers.len()) {
            (Layout::Modern, _) => 1,
            (Layout::Classic, 0) => 2,
            (Layout::Classic, _) => 3,
        };
        assert!(are_same_slices(&built[heads..], &sent), "{name}");
        // A classic body has nil at the new entries.
        let is_rewritten = layout == Layout::Classic && !numbers.is_empty();
        Some(!is_rewritten && built != frames)
    });
    let named: BTreeSet<&str> = NOT_BYTE_FOR_BYTE
        .iter()
        .flat_map(|(_, names)| names.iter().copied())
        .collect();
    let mut same_count = 0;
    for (vector, changed) in vectors.iter().zip(changed) {
        let name = vector.name.as_str();
        match changed {
            Some(changed) => {
                assert_eq!(changed, named.contains(name), "{name}");
                same_count += usize::from(!changed);
            }
            None => assert!(named.contains(name), "{name} is compressed"),
        }
    }
    assert!(
        named
            .iter()
            .all(|name| vectors.iter().any(|v| v.name == *name))
    );
    assert!(same_count >= 700, "{same_count}");
}

/// The reasons why vectors cannot be converted, with the number of vectors.
const NOT_CONVERTED: [(Layout, &str, usize); 7] = [
    (
        Layout::Classic,
        "it is a masked array with headers of its own",
        2,
    ),
    (Layout::Classic, "its lengths end inside a frame", 2),
    (
        Layout::Classic,
        "the body has a key that is reserved there",
        3,
    ),
    (
        Layout::Modern,
        "it is a collection with a header for each element",
        28,
    ),
    (
        Layout::Modern,
        "it is a masked array with headers of its own",
        2,
    ),
    (Layout::Modern, "its frames are not in order", 1),
    (
        Layout::Modern,
        "a compressed frame does not declare its length",
        19,
    ),
];

/// The result of converting a vector to the other layout.
#[derive(Debug, PartialEq, Eq)]
enum Crossing {
    Arrived {
        payload_count: usize,
    },
    NotConvertible(&'static str),
    /// Compressed with a codec that is unknown or not in this build.
    MissingCodec,
}

// PROTOCOL FORWARD-5, FORWARD-6 and FORWARD-7
#[test]
fn every_vector_converts_to_the_other_layout_or_gives_the_reason() {
    let vectors = vectors();
    let crossings = in_parallel(&vectors, cross);
    let mut reasons: BTreeMap<(bool, &str), usize> = BTreeMap::new();
    let (mut arrived, mut payload_count, mut unknown) = (0, 0, 0);
    for (vector, crossing) in vectors.iter().zip(&crossings) {
        match crossing {
            Crossing::Arrived {
                payload_count: count,
            } => {
                arrived += 1;
                payload_count += count;
            }
            Crossing::NotConvertible(reason) => {
                let key = (vector.layout() == Layout::Classic, *reason);
                *reasons.entry(key).or_default() += 1;
            }
            Crossing::MissingCodec => unknown += 1,
        }
    }
    let has_all = [Codec::Lz4, Codec::Snappy, Codec::Zlib, Codec::Zstd]
        .iter()
        .all(|codec| codec.is_compiled_in());
    let expected: BTreeMap<(bool, &str), usize> = NOT_CONVERTED
        .into_iter()
        .map(|(layout, reason, count)| ((layout == Layout::Classic, reason), count))
        .collect();
    if has_all {
        assert_eq!(reasons, expected);
        // All of them blosc.
        assert_eq!(unknown, 5);
    } else {
        assert!(reasons.keys().all(|reason| expected.contains_key(reason)));
    }
    let min_count = if has_all { 730 } else { 600 };
    assert!(arrived >= min_count, "{arrived}");
    assert!(payload_count >= min_count, "{payload_count}");
}

fn cross(vector: &Vector) -> Crossing {
    let name = &vector.name;
    if vector.missing_body_codec().is_some() {
        return Crossing::MissingCodec;
    }
    let frames = vector.frames();
    let (from, to) = (vector.layout(), other(vector.layout()));
    let mut workspaces = Workspaces::new();
    let (message, levels) = workspaces.open(&frames, from, &vector.reading()).unwrap();
    let (items, numbers) = read(&message, levels);
    let mut store = Store::ample();
    let built = match store.pass_on(&message, levels, to) {
        Ok(built) => built,
        Err(BuildError::NotConvertible { reason }) => return Crossing::NotConvertible(reason),
        Err(BuildError::Payload(error)) => {
            let explained = (0..message.payload_count())
                .filter_map(|number| vector.missing_codec(number))
                .any(|missing| missing.explains(&error));
            assert!(explained, "{name}: {error}");
            return Crossing::MissingCodec;
        }
        Err(error) => panic!("{name}: {error}"),
    };

    let reading = vector.reading().with_lengths_optional(false);
    let mut workspaces = Workspaces::new();
    let (again, levels) = workspaces
        .open(&built, to, &reading)
        .unwrap_or_else(|error| panic!("{name}, in the other layout: {error}"));
    again
        .check()
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let (items_again, numbers_again) = read(&again, levels);
    assert_eq!(items_again, items, "{name}");
    assert_eq!(numbers_again.len(), numbers.len(), "{name}");
    for (&number, &number_again) in numbers.iter().zip(&numbers_again) {
        let before = message.payload(number).unwrap();
        let after = again.payload(number_again).unwrap();
        crossed(vector, number, &before, &after);
    }
    Crossing::Arrived {
        payload_count: numbers.len(),
    }
}

/// Checks a payload after its conversion to the other layout.
fn crossed(
    vector: &Vector,
    number: usize,
    before: &Payload<'_, &[u8]>,
    after: &Payload<'_, &[u8]>,
) {
    let name = &vector.name;
    let (old, new) = (before.header(), after.header());
    assert_eq!(after.kind(), PayloadKind::Serialized, "{name}");
    let mut frames = after.frames();
    let mut object_count = 0;
    if before.kind() == PayloadKind::Pickled {
        // The pickle is the first frame now, in the header's own bytes.
        let object = old.pickled_object().unwrap().unwrap();
        assert!(is_same_slice(frames[0], object), "{name}");
        object_count = 1;
        frames = &frames[1..];
        assert_eq!(new.serializer(), Ok(Serializer::Pickle), "{name}");
        assert!(new.get("pickled-obj").is_none(), "{name}");
    } else if new.is_collection().unwrap() {
        assert_eq!(new.get("type-serialized"), old.get("type-serialized"));
        let list = old.writeable().unwrap();
        let mut flags: Vec<_> = list.into_iter().flat_map(ItemList::flags).collect();
        crossed_elements(name, old, new, &mut flags);
        assert!(flags.is_empty(), "{name}: {flags:?}");
    } else {
        assert_eq!(new.serializer(), old.serializer(), "{name}");
        // The class is preserved by name and pickle, with its specific keys.
        assert_eq!(new.type_name(), old.type_name(), "{name}");
        if old.get("type-serialized").is_some() {
            assert_eq!(new.get("type-serialized"), old.get("type-serialized"));
        }
        assert_eq!(new.dtype(), old.dtype(), "{name}");
        for key in ["shape", "strides", "broadcast_to", "pickle", "matrix"] {
            let value = old.type_header().unwrap().get(key);
            assert_eq!(new.type_header().unwrap().get(key), value, "{name}: {key}");
        }
    }
    // No frame is decompressed, merged or copied.
    assert!(are_same_slices(frames, before.frames()), "{name}");
    // The logical frames are those that the release which wrote them expects.
    match (merged(after), vector.missing_codec(number)) {
        (Ok(logical), None) => {
            let expected = vector.payloads()[number]["frames"].as_array().unwrap();
            assert_eq!(logical.len(), object_count + expected.len(), "{name}");
            let frames = &logical[object_count..];
            for (frame, expected) in frames.iter().zip(expected) {
                assert!(is_frame(frame, expected), "{name}");
            }
        }
        (Err(error), Some(missing)) => assert!(missing.explains(&error), "{name}: {error}"),
        (logical, missing) => panic!("{name}: {missing:?}, {logical:?}"),
    }
    if new.is_collection().unwrap() {
        let wire_count = after.frames().len() as u64;
        assert_eq!(new.number("num-sub-frames"), Ok(Some(wire_count)), "{name}");
        return;
    }
    let logical_count = after.logical_count().unwrap();
    // The classic layout has one flag per frame, the pickle included; the
    // modern one has one per buffer, if a reader needs it.
    let flags = |header: &PayloadHeader<'_>| -> Vec<Option<bool>> {
        let list = header.writeable().unwrap();
        list.into_iter().flat_map(ItemList::flags).collect()
    };
    let is_pickle = new.serializer() == Ok(Serializer::Pickle);
    let mut expected = flags(old);
    match after.layout() {
        Layout::Modern => {
            if is_pickle && expected.len() == logical_count {
                expected.remove(0);
            }
            let count = match new.serializer() {
                Ok(Serializer::Pickle) => logical_count - 1,
                Ok(Serializer::Dask) => logical_count,
                _ => 0,
            };
            expected.resize(count, Some(true));
        }
        Layout::Classic => {
            if is_pickle {
                expected.insert(0, None);
            }
            expected.resize(logical_count, None);
        }
    }
    assert_eq!(flags(new), expected, "{name}");
    let wire_count = after.frames().len() as u64;
    match after.layout() {
        Layout::Modern => {
            assert_eq!(new.number("num-sub-frames"), Ok(Some(wire_count)), "{name}");
            let counts = numbers_of(new.list("split-num-sub-frames").unwrap()).unwrap();
            assert_eq!(counts.len(), logical_count, "{name}");
            // Since 2021.11.0 a reader of this family fails without.
            let is_dask = new.serializer() == Ok(Serializer::Dask);
            assert_eq!(new.get("sub-header").is_some(), is_dask, "{name}");
            if is_dask {
                assert!(new.type_serialized().unwrap().is_some(), "{name}");
            }
        }
        Layout::Classic => {
            assert_eq!(new.number("count"), Ok(Some(wire_count)), "{name}");
            let lengths = numbers_of(new.list("lengths").unwrap()).unwrap();
            assert_eq!(lengths.len(), logical_count, "{name}");
            assert!(new.get("sub-header").is_none(), "{name}");
        }
    }
}

/// Checks the elements of a collection after its conversion to the modern layout;
/// takes the flags of their frames from those of all.
fn crossed_elements(
    name: &str,
    old: &PayloadHeader<'_>,
    new: &PayloadHeader<'_>,
    flags: &mut Vec<Option<bool>>,
) {
    let counts = numbers_of(old.list("frame-lengths").unwrap()).unwrap();
    assert_eq!(new.get("frame-lengths"), old.get("frame-lengths"), "{name}");
    let elements =
        |header: &PayloadHeader<'_>| -> usize { header.sub_headers().unwrap().unwrap().count() };
    assert_eq!(elements(new), elements(old), "{name}");
    assert_eq!(counts.len(), elements(old), "{name}");
    let both = old.sub_headers().unwrap().unwrap();
    let both = both.zip(new.sub_headers().unwrap().unwrap());
    for ((old, new), count) in both.zip(counts) {
        let (old, new) = (old.unwrap(), new.unwrap());
        assert_eq!(new.key(), old.key(), "{name}");
        assert_eq!(new.is_collection(), old.is_collection(), "{name}");
        if old.is_collection().unwrap() {
            crossed_elements(name, &old, &new, flags);
            continue;
        }
        assert_eq!(new.serializer(), old.serializer(), "{name}");
        assert_eq!(new.type_name(), old.type_name(), "{name}");
        assert_eq!(new.dtype(), old.dtype(), "{name}");
        for key in ["shape", "strides"] {
            let value = old.type_header().unwrap().get(key);
            assert_eq!(new.type_header().unwrap().get(key), value, "{name}: {key}");
        }
        let is_dask = new.serializer() == Ok(Serializer::Dask);
        assert_eq!(new.get("sub-header").is_some(), is_dask, "{name}");
        if is_dask {
            assert!(new.type_serialized().unwrap().is_some(), "{name}");
        }
        // 2.3.0 to 2.22.0 have no flags.
        let count = usize::try_from(count).unwrap().min(flags.len());
        let mut expected: Vec<_> = flags.drain(..count).collect();
        let found = new.writeable().unwrap();
        let found: Option<Vec<_>> = found.map(|list| list.flags().collect());
        if expected.is_empty() || old.get("writeable").is_some() {
            continue;
        }
        if new.serializer() == Ok(Serializer::Pickle) {
            expected.remove(0);
        }
        assert_eq!(found, Some(expected), "{name}");
    }
}

// PROTOCOL FORWARD-5, HEADER-11
/// The header of a collection, with a pickle that has a buffer in a list in it.
#[test]
fn elements_of_collections_are_converted_to_the_modern_layout() {
    let class = b"\x80\x04\x8c\x05numpy\x8c\x07ndarray\x93.";
    let header = encoded(|writer| {
        writer.map(8).str("is-collection").bool(true);
        writer.str("sub-headers").array(2);
        writer.map(7).str("dtype").array(2).u64(0).str("<f8");
        writer.str("shape").array(1).u64(1);
        writer.str("lengths").array(1).u64(8);
        writer.str("type").str("numpy.ndarray");
        writer.str("type-serialized").bin(class);
        writer.str("serializer").str("dask").str("key").str("a");
        writer.map(5).str("is-collection").bool(true);
        writer.str("sub-headers").array(1);
        writer.map(1).str("serializer").str("pickle");
        writer.str("frame-lengths").array(1).u64(2);
        writer.str("type-serialized").str("list");
        writer.str("key").u64(7);
        writer.str("frame-lengths").array(2).u64(1).u64(2);
        writer.str("type-serialized").str("dict");
        writer.str("writeable").array(3).bool(true).bool(false);
        writer.bool(true);
        writer.str("lengths").array(3).u64(8).u64(4).u64(4);
        writer.str("compression").array(3).nil().nil().nil();
        writer.str("count").u64(3);
    });
    let expected = encoded(|writer| {
        writer.map(8).str("type-serialized").str("dict");
        writer.str("is-collection").bool(true);
        writer.str("frame-lengths").array(2).u64(1).u64(2);
        writer.str("split-num-sub-frames").array(3);
        writer.u64(1).u64(1).u64(1);
        writer.str("split-offsets").array(3).u64(0).u64(1).u64(2);
        writer.str("compression").array(3).nil().nil().nil();
        writer.str("num-sub-frames").u64(3);
        writer.str("sub-headers").array(2);
        writer.map(5).str("serializer").str("dask");
        writer.str("type").str("numpy.ndarray");
        writer.str("type-serialized").bin(class);
        writer.str("key").str("a");
        writer.str("sub-header").map(3);
        writer.str("dtype").array(2).u64(0).str("<f8");
        writer.str("shape").array(1).u64(1);
        writer.str("writeable").array(1).bool(true);
        writer.map(5).str("type-serialized").str("list");
        writer.str("key").u64(7);
        writer.str("is-collection").bool(true);
        writer.str("frame-lengths").array(1).u64(2);
        writer.str("sub-headers").array(1);
        writer.map(2).str("serializer").str("pickle");
        writer.str("writeable").array(1).bool(true);
    });
    let found = collection_converted(&header, &[&[0; 8], b"\x80\x05N.", &[1; 4]]);
    assert_eq!(found, Ok(expected));
}

// PROTOCOL FORWARD-7
#[test]
fn collections_that_cannot_be_converted_are_refused() {
    type Write<'w> = &'w dyn Fn(&mut Writer<'_>);
    let whole = |count: u64, elements: Write<'_>| {
        encoded(|writer| {
            writer.map(6).str("is-collection").bool(true);
            writer.str("type-serialized").str("list");
            writer.str("lengths").array(1).u64(4);
            writer.str("count").u64(1);
            writer.str("frame-lengths").array(1).u64(count);
            writer.str("sub-headers");
            elements(writer);
        })
    };
    let pickle = |writer: &mut Writer<'_>| {
        writer.map(1).str("serializer").str("pickle");
    };
    let nested = |depth: usize| {
        whole(1, &|writer| {
            writer.array(1);
            for _ in 1..depth {
                writer.map(4).str("is-collection").bool(true);
                writer.str("type-serialized").str("list");
                writer.str("frame-lengths").array(1).u64(1);
                writer.str("sub-headers").array(1);
            }
            pickle(writer);
        })
    };
    let found = |header: &[u8]| collection_converted(header, &[b"\x80\x05N."]);
    assert!(found(&nested(16)).is_ok());
    for (header, reason) in [
        (nested(17), "it is a collection that is nested too deeply"),
        (
            whole(2, &|writer| {
                writer.array(1);
                pickle(writer);
            }),
            "its elements have more frames than the collection",
        ),
        (
            whole(1, &|writer| {
                writer.array(0);
            }),
            "it is a collection with lists of different lengths",
        ),
        (
            whole(1, &|writer| {
                writer.array(1).map(2).str("serializer").str("dask");
                writer.str("data-header").map(0);
            }),
            "it is a masked array with headers of its own",
        ),
        (
            whole(1, &|writer| {
                writer.array(1).map(1).str("serializer").str("dask");
            }),
            "its type is missing",
        ),
        (
            encoded(|writer| {
                writer.map(3).str("is-collection").bool(true);
                writer.str("lengths").array(1).u64(4);
                writer.str("count").u64(1);
            }),
            "it is a collection without lists of its elements",
        ),
    ] {
        assert_eq!(found(&header), Err(BuildError::NotConvertible { reason }));
    }
}

/// The header of a collection of the classic layout, converted to the modern one.
fn collection_converted(header: &[u8], frames: &[&[u8]]) -> Result<Vec<u8>, BuildError> {
    let mut store = Store::ample();
    let built = store
        .build(Layout::Classic, |builder| {
            builder.payload_as_is(PayloadKind::Serialized, header, frames, false)?;
            Ok(())
        })
        .unwrap();
    let mut workspaces = Workspaces::new();
    let (message, levels) = workspaces.open(&built, Layout::Classic, &READING).unwrap();
    let mut store = Store::ample();
    let built = store.pass_on(&message, levels, Layout::Modern)?;
    Ok(built[1].to_vec())
}

// PROTOCOL FORWARD-6, FORWARD-7 and HEADER-8
/// Every entry of some headers, converted to the other layout.
#[test]
fn headers_are_converted_to_the_other_layout() {
    let class =
        b"\xc4\x20\x80\x05\x95\x15\0\0\0\0\0\0\0\x8c\x05numpy\x94\x8c\x07ndarray\x94\x93\x94.";
    let array = encoded(|writer| {
        writer.map(10).str("serializer").str("dask");
        writer.str("type").str("numpy.ndarray");
        writer.str("type-serialized").encoded(class);
        writer.str("dtype").array(2).u64(0).str("<f8");
        writer.str("shape").array(1).u64(5);
        writer.str("strides").array(1).u64(8);
        writer.str("writeable").array(1).bool(true);
        writer.str("lengths").array(1).u64(40);
        writer.str("compression").array(1).nil();
        writer.str("count").u64(1);
    });
    let class = b"\x80\x04\x8c\x05numpy\x8c\x07ndarray\x93.";
    // 1.14.0 has only the name of the type, and a bare element type.
    let named = encoded(|writer| {
        writer.map(8).str("serializer").str("dask");
        writer.str("type").str("numpy.ndarray");
        writer.str("type-serialized").bin(class);
        writer.str("sub-header").map(4);
        writer.str("dtype").array(2).u64(0).str("<f8");
        writer.str("strides").array(1).u64(8);
        writer.str("shape").array(1).u64(5);
        writer.str("writeable").array(1).bool(true);
        writer.str("split-num-sub-frames").array(1).u64(1);
        writer.str("split-offsets").array(1).u64(0);
        writer.str("compression").array(1).nil();
        writer.str("num-sub-frames").u64(1);
    });
    for (name, expected) in [
        ("modern-nosplit-2026.8.0/docs-get-data-ones5", array),
        ("classic-1.14.0/docs-get-data-ones5", named),
    ] {
        let vector = vector(name);
        let frames = vector.frames();
        let mut workspaces = Workspaces::new();
        let (message, levels) = workspaces
            .open(&frames, vector.layout(), &vector.reading())
            .unwrap();
        let to = other(vector.layout());
        let mut store = Store::ample();
        let built = store.pass_on(&message, levels, to).unwrap();
        let mut workspaces = Workspaces::new();
        let (message, _) = workspaces.open(&built, to, &READING).unwrap();
        let header = message.payload(0).unwrap().header_bytes();
        assert_eq!(
            header.escape_ascii().to_string(),
            expected.escape_ascii().to_string(),
            "{name}"
        );
    }
}

// By hand.

type Entries<'e> = [(&'e str, &'e [u8])];

/// `{serializer: "dask", type: "bytes"}` and its pickle, as Dask orders them.
const BYTES: &Entries<'static> = &[
    ("type", b"\xa5bytes"),
    (
        "type-serialized",
        b"\xc4\x15\x80\x04\x8c\x08builtins\x8c\x05bytes\x93.",
    ),
    ("serializer", b"\xa4dask"),
];

/// `{serializer: "pickle", writeable: []}`
const PICKLE: &Entries<'static> = &[("serializer", b"\xa6pickle"), ("writeable", b"\x90")];

/// `{pickled-obj: ...}`
const PICKLED: &Entries<'static> = &[("pickled-obj", b"\xc4\x05\x80\x04K\x07.")];

/// Writes a payload of these frames in place of a value.
fn put<'f>(builder: &mut MessageBuilder<'_, 'f>, frames: &[&'f [u8]]) -> Result<(), BuildError> {
    builder.payload(PayloadKind::Serialized, BYTES, frames, SHARD_LEN)?;
    Ok(())
}

/// The items and payloads of what was built, as its own reader sees it.
fn meaning_of(
    layout: Layout,
    write: impl for<'f> FnOnce(&mut MessageBuilder<'_, 'f>) -> Result<(), BuildError>,
) -> Meaning {
    let mut store = Store::ample();
    let built = store.build(layout, |builder| write(builder)).unwrap();
    meaning(&built, layout, &READING).unwrap()
}

fn items(items: &[Item<'_>]) -> Vec<String> {
    items.iter().map(shown).collect()
}

// PROTOCOL HEADER-1, MODERN-2 and CLASSIC-4
#[test]
fn payload_headers_get_the_entries_about_frames() {
    fn write<'f>(
        builder: &mut MessageBuilder<'_, 'f>,
        frames: &[&'f [u8]],
    ) -> Result<(), BuildError> {
        builder.body().map(1).str("x");
        builder.payload(PayloadKind::Serialized, PICKLE, frames, 6)?;
        Ok(())
    }
    let frames: [&[u8]; 3] = [b"0123456789abcdef", b"", b"xyz"];
    let mut store = Store::ample();
    let built = store
        .build(Layout::Modern, |builder| write(builder, &frames))
        .unwrap();
    let header = encoded(|writer| {
        writer.map(6).str("serializer").str("pickle");
        writer.str("writeable").array(0);
        writer
            .str("split-num-sub-frames")
            .array(3)
            .u64(3)
            .u64(1)
            .u64(1);
        writer.str("split-offsets").array(3).u64(0).u64(3).u64(4);
        writer.str("compression").array(5);
        (0..5).for_each(|_| {
            writer.nil();
        });
        writer.str("num-sub-frames").u64(5);
    });
    let body = b"\x81\xa1x\x81\xae__Serialized__\x01";
    let shards: [&[u8]; 5] = [b"012345", b"6789ab", b"cdef", b"", b"xyz"];
    assert_eq!(built[..2], [body, &header[..]]);
    assert_eq!(built[2..], shards);
    // Split, not copied.
    assert!(is_same_slice(built[3], &frames[0][6..12]));
    assert!(is_same_slice(built[6], frames[2]));

    let mut store = Store::ample();
    let built = store
        .build(Layout::Classic, |builder| write(builder, &frames))
        .unwrap();
    let header = encoded(|writer| {
        writer.map(3).str("headers").map(1).array(1).str("x");
        writer.map(5).str("serializer").str("pickle");
        writer.str("writeable").array(0);
        writer.str("lengths").array(3).u64(16).u64(0).u64(3);
        writer.str("compression").array(5);
        (0..5).for_each(|_| {
            writer.nil();
        });
        writer.str("count").u64(5);
        writer.str("keys").array(1).array(1).str("x");
        writer.str("bytestrings").array(0);
    });
    assert_eq!(built[..3], [b"", &b"\x81\xa1x\xc0"[..], &header]);
    assert_eq!(built[3..], shards);

    // Readers of 2.23.0 to 2021.2.0 require `writeable` for every frame.
    let mut store = Store::ample();
    let built = store
        .build(Layout::Classic, |builder| {
            builder
                .payload(PayloadKind::Serialized, BYTES, &frames, SHARD_LEN)
                .map(|_| ())
        })
        .unwrap();
    let mut workspaces = Workspaces::new();
    let (message, _) = workspaces.open(&built, Layout::Classic, &READING).unwrap();
    let header = *message.payload(0).unwrap().header();
    assert_eq!(header.get("writeable"), Some(&b"\x93\xc0\xc0\xc0"[..]));
    assert_eq!(header.get("lengths"), Some(&b"\x93\x10\x00\x03"[..]));
}

// PROTOCOL SPLIT-1 and SPLIT-2
#[test]
fn frames_are_split_by_shard_length() {
    let data: Vec<u8> = (0..=255).collect();
    for len in [0, 1, 9, 10, 11, 20, 21, 256] {
        for layout in LAYOUTS {
            let frame = &data[..len];
            let mut store = Store::ample();
            let built = store
                .build(layout, |builder| {
                    builder
                        .payload(PayloadKind::Serialized, BYTES, &[frame, b"next"], 10)
                        .map(|_| ())
                })
                .unwrap();
            let heads = if layout == Layout::Modern { 2 } else { 3 };
            let (last, parts) = built[heads..].split_last().unwrap();
            assert_eq!(parts.len(), len.div_ceil(10).max(1), "{len}");
            assert!(parts.iter().all(|part| part.len() <= 10));
            assert_eq!(parts.concat(), frame);
            assert_eq!(*last, b"next");
            let (_, payloads) = meaning(&built, layout, &READING).unwrap();
            assert_eq!(payloads, [[frame, &b"next"[..]]], "{len} {layout:?}");
        }
    }
    // Whole items and the remainder; at least one item.
    let lens = |shard_len, item_len| -> Vec<usize> {
        shards(&data[..50], shard_len, item_len)
            .map(<[u8]>::len)
            .collect()
    };
    assert_eq!(lens(20, 8), [16, 16, 16, 2]);
    assert_eq!(lens(5, 8), [8, 8, 8, 8, 8, 8, 2]);
    assert_eq!(lens(0, 0), [1; 50]);
    assert_eq!(lens(49, 50), [50]);
    assert_eq!(lens(50, 8), [50]);
    assert_eq!(shards(&[], 0, 8).map(<[u8]>::len).collect::<Vec<_>>(), [0]);
}

/// A compressor that finds no repetition, for builds without codecs too: data of
/// up to 59 bytes becomes one literal.
struct Literals(Codec);

impl Compression for Literals {
    fn codec(&self) -> Codec {
        self.0
    }

    fn max_compressed_len(&self, len: usize) -> Option<usize> {
        Some(len + 6)
    }

    fn compress(&mut self, data: &[u8], out: &mut [u8]) -> Result<usize, CompressionError> {
        let packed = literal(self.0, data);
        out[..packed.len()].copy_from_slice(&packed);
        Ok(packed.len())
    }
}

fn literal(codec: Codec, data: &[u8]) -> Vec<u8> {
    let len = u8::try_from(data.len()).unwrap();
    let head = match codec {
        Codec::Lz4 if len < 15 => vec![len, 0, 0, 0, len << 4],
        Codec::Lz4 => vec![len, 0, 0, 0, 0xf0, len - 15],
        Codec::Snappy if len == 0 => vec![0],
        _ => vec![len, (len - 1) << 2],
    };
    [&head, data].concat()
}

// PROTOCOL COMPRESS-6 and SPLIT-3
#[test]
fn pieces_are_compressed_where_the_policy_says() {
    let frames: [&[u8]; 3] = [b"compressed, not", b"", b"compressed"];
    for (layout, codec) in LAYOUTS
        .into_iter()
        .flat_map(|layout| [(layout, Codec::Lz4), (layout, Codec::Snappy)])
    {
        let mut store = Store::ample();
        let built = store
            .build_compressed(layout, Some((codec, 10)), |builder| {
                let kind = PayloadKind::Serialized;
                builder.payload(kind, BYTES, &frames, 10).map(drop)
            })
            .unwrap();
        let heads = if layout == Layout::Modern { 2 } else { 3 };
        let packed = literal(codec, b"compressed");
        assert_eq!(built[heads..], [&packed, &b", not"[..], b"", &packed]);
        assert!(is_same_slice(built[heads + 1], &frames[0][10..]));
        let mut workspaces = Workspaces::new();
        let (message, _) = workspaces.open(&built, layout, &READING).unwrap();
        let payload = message.payload(0).unwrap();
        let names = payload.header().list("compression").unwrap().unwrap();
        let names = names.codec_names().map(|name| name.unwrap());
        let names: Vec<_> = names.map(|name| name.map(|name| name.as_bytes())).collect();
        let name = Some(codec.name().as_bytes());
        assert_eq!(names, [name, None, None, name]);
        if codec.is_compiled_in() {
            assert_eq!(merged(&payload), Ok(frames.map(<[u8]>::to_vec).to_vec()));
        }
    }
}

// PROTOCOL MODERN-4
#[test]
fn pickled_buffers_are_not_compressed() {
    let frames: [&[u8]; 1] = [b"compressed"];
    let mut store = Store::ample();
    let built = store
        .build_compressed(Layout::Modern, Some((Codec::Snappy, 10)), |builder| {
            let kind = PayloadKind::Pickled;
            builder.payload(kind, PICKLED, &frames, SHARD_LEN).map(drop)
        })
        .unwrap();
    assert!(is_same_slice(built[2], frames[0]));
}

#[test]
fn the_buffer_for_compressed_frames_is_sufficient_as_the_errors_say() {
    let frames: [&[u8]; 2] = [&[7; 20], &[8; 20]];
    let mut store = Store::ample();
    store.compressed = vec![0xee; 26];
    let kind = PayloadKind::Serialized;
    let short = store
        .build_compressed(Layout::Modern, Some((Codec::Snappy, 10)), |builder| {
            builder.payload(kind, BYTES, &frames, 100).map(drop)
        })
        .unwrap_err();
    let used = literal(Codec::Snappy, frames[0]).len();
    let (needed, available) = (used + 26, 26);
    let expected = CompressionError::BufferTooSmall(BufferTooSmall { needed, available });
    assert_eq!(short, BuildError::Compression(expected));
    store.compressed = vec![0xee; needed];
    store
        .build_compressed(Layout::Modern, Some((Codec::Snappy, 10)), |builder| {
            builder.payload(kind, BYTES, &frames, 100).map(drop)
        })
        .unwrap();
}

// PROTOCOL COMPRESS-6 and SPLIT-5
#[test]
fn frames_can_have_different_compression() {
    let codecs = [Codec::Lz4, Codec::Snappy].map(|codec| codec.is_compiled_in().then_some(codec));
    let piece = |codec: Option<Codec>, data: &[u8]| match codec {
        Some(codec) => literal(codec, data),
        None => data.to_vec(),
    };
    let (lz4, snappy) = (
        piece(codecs[0], b"compressed"),
        piece(codecs[1], b", snappily"),
    );
    let (no_lz4, no_snappy) = (piece(codecs[0], b""), piece(codecs[1], b""));
    let sent: [&[u8]; 7] = [b"not ", &lz4, &snappy, b"", &no_lz4, &no_snappy, &lz4];
    let logical: [&[u8]; 5] = [b"not compressed, snappily", b"", b"", b"", b"compressed"];
    for layout in LAYOUTS {
        let header = encoded(|writer| {
            match layout {
                Layout::Modern => {
                    writer.map(4).str("split-num-sub-frames").array(5);
                    writer.u64(3).u64(1).u64(1).u64(1).u64(1);
                    writer.str("split-offsets").array(5);
                    writer.u64(0).u64(3).u64(4).u64(5).u64(6);
                    writer.str("num-sub-frames").u64(7);
                }
                Layout::Classic => {
                    writer.map(3).str("lengths").array(5);
                    writer.u64(24).u64(0).u64(0).u64(0).u64(10);
                    writer.str("count").u64(7);
                }
            }
            writer.str("compression").array(7);
            let [lz4, snappy] = codecs;
            for codec in [None, lz4, snappy, None, lz4, snappy, lz4] {
                match codec {
                    Some(codec) => writer.str(codec.name()),
                    None => writer.nil(),
                };
            }
        });
        let mut store = Store::ample();
        let built = store
            .build(layout, |builder| {
                let kind = PayloadKind::Serialized;
                builder.payload_as_is(kind, &header, &sent, false).map(drop)
            })
            .unwrap();
        let (_, payloads) = meaning(&built, layout, &READING).unwrap();
        assert_eq!(payloads, [logical], "{layout:?}");
        // Conversion to the other layout.
        let mut workspaces = Workspaces::new();
        let (message, levels) = workspaces.open(&built, layout, &READING).unwrap();
        let mut store = Store::ample();
        let crossed = store.pass_on(&message, levels, other(layout)).unwrap();
        let (_, payloads) = meaning(&crossed, other(layout), &READING).unwrap();
        assert_eq!(payloads, [logical], "from {layout:?}");
    }
}

#[test]
fn encoded_headers_are_written_unchanged() {
    let frames: [&[u8]; 2] = [b"one", b"two"];
    let modern = b"\x82\xa3any\xa3key\xaenum-sub-frames\x02";
    let mut store = Store::ample();
    let built = store
        .build(Layout::Modern, |builder| {
            builder
                .payload_as_is(PayloadKind::Serialized, modern, &frames, false)
                .map(|_| ())
        })
        .unwrap();
    assert_eq!(built[0], b"\x81\xae__Serialized__\x01");
    assert!(is_same_slice(built[1], modern));
    assert!(are_same_slices(&built[2..], &frames));

    // PROTOCOL CLASSIC-11: the paths of what was bytes.
    let classic = b"\x82\xa5count\x02\xa7lengths\x92\x03\x03";
    let mut store = Store::ample();
    let built = store
        .build(Layout::Classic, |builder| {
            builder.body().array(2);
            for bytestring in [false, true] {
                let kind = PayloadKind::Serialized;
                builder.payload_as_is(kind, classic, &frames, bytestring)?;
            }
            Ok(())
        })
        .unwrap();
    let head = encoded(|writer| {
        writer.map(3).str("headers").map(2);
        writer.array(1).u64(0).encoded(classic);
        writer.array(1).u64(1).encoded(classic);
        writer.str("keys").array(2).array(1).u64(0).array(1).u64(1);
        writer.str("bytestrings").array(1).array(1).u64(1);
    });
    assert_eq!(built[1..3], [b"\x92\xc0\xc0", &head[..]]);
    let mut workspaces = Workspaces::new();
    let (message, _) = workspaces.open(&built, Layout::Classic, &READING).unwrap();
    let flags: Vec<_> = message
        .payloads()
        .map(|payload| payload.unwrap().bytestring())
        .collect();
    assert_eq!(flags, [Some(false), Some(true)]);
}

// PROTOCOL MODERN-5
#[test]
fn payload_frames_follow_the_order_of_placeholders() {
    let shared: &[u8] = b"the same object";
    let mut store = Store::ample();
    let built = store
        .build(Layout::Modern, |builder| {
            builder.body().map(3).str("twice").array(2);
            put(builder, &[shared])?;
            put(builder, &[shared])?;
            builder.body().str("none");
            put(builder, &[])?;
            builder.body().str("pickled");
            builder.payload(PayloadKind::Pickled, PICKLED, &[b"a", b"b"], SHARD_LEN)?;
            Ok(())
        })
        .unwrap();
    let body = encoded(|writer| {
        writer.map(3).str("twice").array(2);
        writer.map(1).str("__Serialized__").u64(1);
        writer.map(1).str("__Serialized__").u64(3);
        writer.str("none").map(1).str("__Serialized__").u64(5);
        writer.str("pickled").map(1).str("__Pickled__").u64(6);
    });
    assert_eq!(built[0], body);
    assert_eq!(built.len(), 1 + 2 + 2 + 1 + 3);
    // The same object twice gives two runs of the same memory.
    assert!(is_same_slice(built[2], shared) && is_same_slice(built[4], shared));
    assert_eq!(built[7..], [b"a", b"b"]);
    // Dask uses the same order: its messages are reproduced byte for byte.
    for name in ["many-payloads", "multi", "same-object-twice"] {
        let vector = vector(&format!("modern-nosplit-2026.8.0/{name}"));
        let frames = vector.frames();
        let mut workspaces = Workspaces::new();
        let (message, levels) = workspaces
            .open(&frames, Layout::Modern, &vector.reading())
            .unwrap();
        let mut store = Store::ample();
        let built = store.pass_on(&message, levels, Layout::Modern).unwrap();
        assert_eq!(built, frames, "{name}");
    }
}

// PROTOCOL MODERN-4
#[test]
fn pickle_buffers_are_never_split() {
    let buffers: [&[u8]; 2] = [b"0123456789", b""];
    let mut store = Store::ample();
    let built = store
        .build(Layout::Modern, |builder| {
            let kind = PayloadKind::Pickled;
            builder.payload(kind, PICKLED, &buffers, 4).map(|_| ())
        })
        .unwrap();
    assert!(are_same_slices(&built[2..], &buffers));
    let header = encoded(|writer| {
        writer.map(3).str("pickled-obj").bin(b"\x80\x04K\x07.");
        writer.str("compression").array(2).nil().nil();
        writer.str("num-sub-frames").u64(2);
    });
    assert_eq!(built[1], header);

    // The classic layout cannot express them.
    let mut store = Store::ample();
    let built = store.build(Layout::Classic, |builder| {
        let kind = PayloadKind::Pickled;
        let none = HeaderEntries {
            count: 0,
            has_writeable: false,
            write: &|_| (),
        };
        for error in [
            builder.payload(kind, PICKLED, &buffers, 4).map(|_| ()),
            builder
                .payload_from_pieces(kind, none, 0, core::iter::empty())
                .map(|_| ()),
            builder.payload_as_is(kind, b"\x80", &[], false).map(|_| ()),
        ] {
            let reason = "the classic layout has no __Pickled__";
            assert_eq!(error, Err(BuildError::NotConvertible { reason }));
        }
        builder.body().nil();
        Ok(())
    });
    assert_eq!(built.unwrap(), [&b""[..], b"\xc0"]);
}

// PROTOCOL MODERN-2, CLASSIC-5 and CLASSIC-6
#[test]
fn payloads_are_accepted_wherever_a_value_is() {
    let token = |token| Item::Token(token);
    let bytes = |bytes: &[u8]| vec![bytes.to_vec()];
    for layout in LAYOUTS {
        // The whole message.
        let (found, payloads) = meaning_of(layout, |builder| put(builder, &[b"root"]));
        assert_eq!(found, ["payload"], "{layout:?}");
        assert_eq!(payloads, [bytes(b"root")], "{layout:?}");

        // Adjacent, in tuples and next to empty containers.
        let (found, payloads) = meaning_of(layout, |builder| {
            builder.body().array(5).array(0);
            put(builder, &[b"1"])?;
            builder.body().map(0).array(2);
            put(builder, &[b"2"])?;
            builder.body().nil();
            put(builder, &[b"3"])
        });
        let expected = items(&[
            token(Token::Array(5)),
            token(Token::Array(0)),
            Item::Payload(0),
            token(Token::Map(0)),
            token(Token::Array(2)),
            Item::Payload(1),
            token(Token::Nil),
            Item::Payload(2),
        ]);
        assert_eq!(found, expected, "{layout:?}");
        assert_eq!(payloads, [bytes(b"1"), bytes(b"2"), bytes(b"3")]);

        // Under keys of every kind, some of which have values in them.
        let keys: [&[u8]; 9] = [
            b"\xa1k",
            b"\xc0",
            b"\xc3",
            b"\x07",
            b"\xe0",
            b"\xcb\x3f\xf8\0\0\0\0\0\0",
            b"\xc4\x01k",
            b"\x92\xa1k\x93\x00\x01\x02",
            b"\x81\xa1k\x90",
        ];
        let (found, payloads) = meaning_of(layout, |builder| {
            builder.body().array(2).nil().map(9);
            for key in keys {
                builder.body().encoded(key);
                put(builder, &[b"under"])?;
            }
            Ok(())
        });
        let mut expected = items(&[
            token(Token::Array(2)),
            token(Token::Nil),
            token(Token::Map(9)),
        ]);
        for key in keys {
            let mut reader = Reader::new(key);
            while !reader.is_empty() {
                expected.push(shown(&token(reader.token().unwrap())));
            }
            expected.push("payload".into());
        }
        assert_eq!(found, expected, "{layout:?}");
        assert_eq!(payloads, vec![bytes(b"under"); 9], "{layout:?}");

        // Deep down, past indices that take more than one byte.
        let (found, payloads) = meaning_of(layout, |builder| {
            for _ in 0..100 {
                builder.body().array(1).map(1).str("d");
            }
            builder.body().array(70_000);
            (1..70_000).for_each(|_| {
                builder.body().nil();
            });
            put(builder, &[b"deep"])
        });
        assert_eq!(found.len(), 300 + 70_000 + 1);
        assert_eq!(found.last().unwrap(), "payload", "{layout:?}");
        assert_eq!(payloads, [bytes(b"deep")], "{layout:?}");
    }
    // In a set; the classic layout has no path into one.
    let set = |builder: &mut MessageBuilder<'_, '_>| {
        builder.body().map(2).str("__Set__").bool(true);
        builder.body().str("as-list").array(2).nil();
        put(builder, &[b"member"])
    };
    let (found, payloads) = meaning_of(Layout::Modern, |builder| set(builder));
    let expected = items(&[Item::Set(2), token(Token::Nil), Item::Payload(0)]);
    assert_eq!(found, expected);
    assert_eq!(payloads, [bytes(b"member")]);
}

/// A payload in a set would be lost: a reader of the classic layout converts
/// the list to a set before it inserts payloads.
#[test]
fn classic_layout_refuses_payloads_in_sets() {
    let mut store = Store::ample();
    let built = store
        .build(Layout::Modern, |builder| {
            builder.body().array(3);
            builder.body().map(2).str("__Set__").bool(true);
            builder.body().str("as-list").array(2).array(1).u64(1);
            put(builder, &[b"member"])?;
            // After the set there is a path again.
            builder.body().array(2).nil();
            put(builder, &[b"after"])?;
            builder.body().map(2).str("__Set__").bool(true);
            builder.body().str("as-list").array(0);
            Ok(())
        })
        .unwrap();
    let mut workspaces = Workspaces::new();
    let (message, levels) = workspaces.open(&built, Layout::Modern, &READING).unwrap();
    let mut refused = 0;
    let mut store = Store::ample();
    let crossed = store
        .build(Layout::Classic, |builder| {
            let mut walk = message.walk(levels);
            while let Some(item) = walk.next_item().unwrap() {
                match builder.item(item, &message) {
                    Ok(_) => {}
                    Err(BuildError::NotConvertible { reason }) => {
                        assert_eq!(reason, "it is in a set, and paths cannot lead into sets");
                        refused += 1;
                        // Nothing was written, so another item can be.
                        builder.item(Item::Token(Token::Bool(false)), &message)?;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(refused, 1);
    let (found, payloads) = meaning(&crossed, Layout::Classic, &READING).unwrap();
    let expected = items(&[
        Item::Token(Token::Array(3)),
        Item::Set(2),
        Item::Token(Token::Array(1)),
        Item::Token(Token::UInt(1)),
        Item::Token(Token::Bool(false)),
        Item::Token(Token::Array(2)),
        Item::Token(Token::Nil),
        Item::Payload(0),
        Item::Set(0),
    ]);
    assert_eq!(found, expected);
    assert_eq!(payloads, [[b"after"]]);
}

// PROTOCOL BODY-5, CLASSIC-13
/// In a modern body the key of an inline payload would be a placeholder.
#[test]
fn modern_layout_refuses_inline_payloads() {
    for generation in [
        "classic-2020.12.0",
        "classic-2021.1.1",
        "classic-total-2021.3.0",
    ] {
        let vector = vector(&format!("{generation}/serialize-in-tuple"));
        assert_eq!(
            cross(&vector),
            Crossing::NotConvertible("the body has a key that is reserved there")
        );
    }
    // The same for `__Pickled__`, which 2.30.1 takes for any key.
    let classic: [&[u8]; 2] = [b"", b"\x81\xab__Pickled__\x01"];
    let mut workspaces = Workspaces::new();
    let (message, levels) = workspaces
        .open(&classic, Layout::Classic, &READING)
        .unwrap();
    let mut store = Store::ample();
    let built = store.pass_on(&message, levels, Layout::Classic);
    assert_eq!(built.unwrap(), classic);
    let mut store = Store::ample();
    let reason = "the body has a key that is reserved there";
    let error = store.pass_on(&message, levels, Layout::Modern);
    assert_eq!(error, Err(BuildError::NotConvertible { reason }));
}

// PROTOCOL CLASSIC-10 and FORWARD-5
/// 2021.3.0 has the lists of the modern layout; they are forwarded unchanged.
#[test]
fn unordered_split_lists_are_preserved() {
    let header = encoded(|writer| {
        writer.map(4).str("serializer").str("pickle");
        writer
            .str("split-num-sub-frames")
            .array(3)
            .u64(1)
            .u64(2)
            .u64(0);
        writer.str("split-offsets").array(3).u64(2).u64(0).u64(3);
        writer.str("count").u64(3);
    });
    let frames: [&[u8]; 3] = [b"b", b"uffer", b"pickle"];
    let mut store = Store::ample();
    let classic = store
        .build(Layout::Classic, |builder| {
            let kind = PayloadKind::Serialized;
            builder.payload_as_is(kind, &header, &frames, false)?;
            Ok(())
        })
        .unwrap();
    let before = meaning(&classic, Layout::Classic, &READING).unwrap();
    let logical: [&[u8]; 3] = [b"pickle", b"buffer", b""];
    assert_eq!(before.1, [logical]);
    let mut workspaces = Workspaces::new();
    let (message, levels) = workspaces
        .open(&classic, Layout::Classic, &READING)
        .unwrap();
    let mut store = Store::ample();
    let modern = store.pass_on(&message, levels, Layout::Modern).unwrap();
    assert_eq!(meaning(&modern, Layout::Modern, &READING).unwrap(), before);
}

// PROTOCOL FORWARD-5
/// `lengths` do not assign empty frames; the last entry takes the remaining
/// ones, so that every frame belongs to one.
#[test]
fn trailing_empty_frames_belong_to_the_last_length() {
    let frames: [&[u8]; 5] = [b"first", b"", b"second", b"", b""];
    let header = encoded(|writer| {
        writer.map(3).str("serializer").str("pickle");
        writer.str("lengths").array(2).u64(5).u64(6);
        writer.str("count").u64(5);
    });
    let mut store = Store::ample();
    let classic = store
        .build(Layout::Classic, |builder| {
            let kind = PayloadKind::Serialized;
            builder.payload_as_is(kind, &header, &frames, false)?;
            Ok(())
        })
        .unwrap();
    let before = meaning(&classic, Layout::Classic, &READING).unwrap();
    let mut workspaces = Workspaces::new();
    let (message, levels) = workspaces
        .open(&classic, Layout::Classic, &READING)
        .unwrap();
    let mut store = Store::ample();
    let modern = store.pass_on(&message, levels, Layout::Modern).unwrap();
    assert_eq!(meaning(&modern, Layout::Modern, &READING).unwrap(), before);
    let mut workspaces = Workspaces::new();
    let (message, levels) = workspaces.open(&modern, Layout::Modern, &READING).unwrap();
    let header = *message.payload(0).unwrap().header();
    let counts = numbers_of(header.list("split-num-sub-frames").unwrap()).unwrap();
    assert_eq!(counts, [1, 4]);
    let mut store = Store::ample();
    let home = store.pass_on(&message, levels, Layout::Classic).unwrap();
    assert_eq!(meaning(&home, Layout::Classic, &READING).unwrap(), before);
}

#[test]
fn message_without_payloads_is_its_body() {
    for (layout, expected) in [
        (Layout::Modern, &[&b"\x81\xa6status\xa2OK"[..]][..]),
        (Layout::Classic, &[b"", b"\x81\xa6status\xa2OK"]),
    ] {
        let mut store = Store::new(Size {
            body: 11,
            headers: 0,
            slots: expected.len(),
            pending: 0,
            levels: 0,
        });
        let built = store.build(layout, |builder| {
            builder.body().map(1).str("status").str("OK");
            Ok(())
        });
        assert_eq!(built.unwrap(), expected);
        // A message without a body is refused.
        let mut store = Store::ample();
        assert_eq!(
            store.build(layout, |_| Ok(())),
            Err(BuildError::Body(WriteError::Unfinished { owed: 1 }))
        );
    }
}

// PROTOCOL HEADER-4, HEADER-6 and MODERN-5
#[test]
fn documented_array_message_matches_dask() {
    let data = [1.0_f64; 5].map(f64::to_le_bytes).concat();
    let class = |protocol| {
        let mut pickle = vec![0x80, protocol];
        pickle.extend(b"\x95\x15\0\0\0\0\0\0\0\x8c\x05numpy\x94\x8c\x07ndarray\x94\x93\x94.");
        encoded(|writer| {
            writer.bin(&pickle);
        })
    };
    let golden = vector("modern-nosplit-2026.8.0/docs-get-data-ones5");
    let own = encoded(|writer| {
        writer.map(4).str("dtype").array(2).u64(0).str("<f8");
        writer.str("shape").array(1).u64(5);
        writer.str("strides").array(1).u64(8);
        writer.str("writeable").array(1).bool(true);
    });
    let class_pickle = class(5);
    let entries: &Entries<'_> = &[
        ("sub-header", &own),
        ("type", b"\xadnumpy.ndarray"),
        ("type-serialized", &class_pickle),
        ("serializer", b"\xa4dask"),
    ];
    let mut store = Store::ample();
    let built = store
        .build(Layout::Modern, |builder| {
            builder.body().map(2).str("op").str("get-data").str("data");
            builder
                .payload(PayloadKind::Serialized, entries, &[&data], SHARD_LEN)
                .map(|_| ())
        })
        .unwrap();
    assert_eq!(sent(Prefix::U64, &built), golden.bytes);

    // In the classic layout an encoded header gives Dask's order of entries;
    // Dask's body lacks `data`, where ours has nil.
    let golden = vector("classic-2.30.1/docs-get-data-ones5");
    let recorded = golden.frames();
    let class_pickle = class(4);
    let header = encoded(|writer| {
        writer.map(10).str("dtype").array(2).u64(0).str("<f8");
        writer.str("shape").array(1).u64(5);
        writer.str("strides").array(1).u64(8);
        writer.str("lengths").array(1).u64(40);
        writer.str("type").str("numpy.ndarray");
        writer.str("type-serialized").encoded(&class_pickle);
        writer.str("serializer").str("dask");
        writer.str("writeable").array(1).bool(true);
        writer.str("compression").array(1).nil();
        writer.str("count").u64(1);
    });
    let mut store = Store::ample();
    let built = store
        .build(Layout::Classic, |builder| {
            builder.body().map(2).str("op").str("get-data").str("data");
            builder
                .payload_as_is(PayloadKind::Serialized, &header, &[&data], false)
                .map(|_| ())
        })
        .unwrap();
    assert_eq!(recorded[1], b"\x81\xa2op\xa8get-data");
    assert_eq!(built[1], b"\x82\xa2op\xa8get-data\xa4data\xc0");
    assert_eq!(
        [built[0], built[2], built[3]],
        [recorded[0], recorded[2], recorded[3]]
    );
    let expected = meaning(&recorded, Layout::Classic, &golden.reading()).unwrap();
    assert_eq!(
        meaning(&built, Layout::Classic, &READING).unwrap(),
        expected
    );

    // From entries the order differs, with the same meaning.
    let entries: &Entries<'_> = &[
        ("dtype", b"\x92\x00\xa3<f8"),
        ("shape", b"\x91\x05"),
        ("strides", b"\x91\x08"),
        ("type", b"\xadnumpy.ndarray"),
        ("type-serialized", &class_pickle),
        ("serializer", b"\xa4dask"),
        ("writeable", b"\x91\xc3"),
    ];
    let mut store = Store::ample();
    let built = store
        .build(Layout::Classic, |builder| {
            builder.body().map(2).str("op").str("get-data").str("data");
            builder
                .payload(PayloadKind::Serialized, entries, &[&data], SHARD_LEN)
                .map(|_| ())
        })
        .unwrap();
    assert_eq!(
        meaning(&built, Layout::Classic, &READING).unwrap(),
        expected
    );
    let sorted = |frames: &[&[u8]]| {
        let mut workspaces = Workspaces::new();
        let (message, _) = workspaces.open(frames, Layout::Classic, &READING).unwrap();
        let header = *message.payload(0).unwrap().header();
        let mut entries: Vec<(Vec<u8>, Vec<u8>)> = header
            .entries()
            .map(|(key, value)| (key.to_vec(), value.to_vec()))
            .collect();
        entries.sort();
        entries
    };
    assert_eq!(sorted(&built), sorted(&recorded));
}

// Preludes.

/// The bytes of a message on a stream.
fn sent(prefix: Prefix, frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![0; prelude_len(prefix, frames.len()).unwrap()];
    let lengths = frames.iter().map(|frame| frame.len() as u64);
    let len = encode_prelude(prefix, lengths, &mut bytes).unwrap();
    assert_eq!(len, bytes.len());
    bytes.extend(frames.concat());
    bytes
}

// PROTOCOL FORWARD-4
#[test]
fn conversion_between_prefixes_changes_only_the_prefix() {
    let names = [
        "modern-nosplit-2026.8.0/hm-nosplit-0",
        "modern-nosplit-2026.8.0/hm-nosplit-3",
        "modern-nosplit-2026.8.0/topickle-buffers",
        "modern-total-2021.12.0/pass-through",
        "classic-2.30.1/pass-through",
        "classic-total-2021.3.0/pass-through-shards",
    ];
    let mut hints = 0;
    for name in names {
        let vector = vector(name);
        let frames = vector.frames();
        let layout = vector.layout();
        let mut workspaces = Workspaces::new();
        let (message, levels) = workspaces.open(&frames, layout, &vector.reading()).unwrap();
        let mut store = Store::ample();
        let built = store.pass_on(&message, levels, layout).unwrap();
        let (bare, with_total) = (sent(Prefix::None, &built), sent(Prefix::U64, &built));
        // Only the prefix differs.
        assert_eq!(with_total[8..], bare, "{name}");
        let total = (bare.len() as u64).to_le_bytes();
        assert_eq!(with_total[..8], total, "{name}");
        for (prefix, bytes) in [(Prefix::None, &bare), (Prefix::U64, &with_total)] {
            let framed = FramedMessage::parse(bytes, prefix, &LIMITS).unwrap();
            assert!(framed.rest.is_empty(), "{name}");
            let arrived = cut(&framed);
            assert_eq!(arrived, built, "{name}");
            let meant = meaning(&frames, layout, &vector.reading()).unwrap();
            let means = meaning(&arrived, layout, &vector.reading()).unwrap();
            assert_eq!(means, meant, "{name}");
        }
        // A read hint that was smaller becomes the total.
        if layout == Layout::Modern {
            assert_eq!(with_total[8..], vector.bytes[8..], "{name}");
            hints += usize::from(vector.bytes[..8] != total);
        }
    }
    assert_eq!(hints, 3);
}

// Errors.

/// Messages to vary, and the layout that each is forwarded in.
const VARIED: [(&str, Layout); 9] = [
    ("modern-nosplit-2026.8.0/many-payloads", Layout::Modern),
    ("modern-nosplit-2026.8.0/deep-payload", Layout::Classic),
    ("modern-nosplit-2026.8.0/shard-10k-mixed", Layout::Classic),
    ("modern-nosplit-2026.8.0/topickle-buffers", Layout::Classic),
    ("modern-nosplit-2026.8.0/np-structured", Layout::Modern),
    ("classic-2.30.1/multi", Layout::Classic),
    ("classic-2.30.1/multi", Layout::Modern),
    ("classic-2.30.1/key-not-str", Layout::Modern),
    ("classic-2.30.1/many-payloads", Layout::Classic),
];

/// The sizes that a built message needed.
fn taken(built: &[&[u8]], layout: Layout, was: Layout) -> Size {
    let mut workspaces = Workspaces::new();
    let (message, levels) = workspaces.open(built, layout, &READING).unwrap();
    let rewritten: usize = message
        .payloads()
        .map(|payload| payload.unwrap().header_bytes().len())
        .sum();
    let (items, payloads) = (items_of(&message, levels), message.payload_count());
    let rewritten = if layout == was { 0 } else { rewritten };
    match layout {
        Layout::Modern => Size {
            body: built[0].len(),
            headers: rewritten,
            slots: built.len(),
            pending: 0,
            levels: 0,
        },
        Layout::Classic => Size {
            body: built[1].len(),
            headers: rewritten + built[2].len(),
            slots: built.len() + payloads,
            pending: payloads,
            levels: nesting(&items),
        },
    }
}

/// The child count of each item of a message, and whether the item is a
/// payload.
fn items_of(message: &Message<'_, &[u8]>, levels: &mut Workspace) -> Vec<(u64, bool)> {
    let mut walk = message.walk(levels);
    let mut items = Vec::new();
    while let Some(item) = walk.next_item().unwrap() {
        assert!(!matches!(item, Item::Set(_) | Item::Enum(_)));
        items.push((item.child_count(), matches!(item, Item::Payload(_))));
    }
    items
}

/// The depth of nesting up to the last payload.
fn nesting(items: &[(u64, bool)]) -> usize {
    let last = items.iter().rposition(|(_, is_payload)| *is_payload);
    let mut open: Vec<u64> = Vec::new();
    let mut deepest = 0;
    for (child_count, _) in &items[..=last.unwrap()] {
        if let Some(owed) = open.last_mut() {
            *owed -= 1;
        }
        if *child_count != 0 {
            open.push(*child_count);
        }
        deepest = deepest.max(open.len());
        while open.last() == Some(&0) {
            open.pop();
        }
    }
    deepest
}

#[test]
fn exact_buffer_sizes_succeed_and_one_less_fails() {
    let mut varied = 0;
    for (name, layout) in VARIED {
        let vector = vector(name);
        if layout != vector.layout() && vector.missing_codec(0).is_some() {
            // This build cannot determine the lengths of its frames.
            continue;
        }
        let frames = vector.frames();
        let mut workspaces = Workspaces::new();
        let (message, levels) = workspaces
            .open(&frames, vector.layout(), &vector.reading())
            .unwrap();
        let mut store = Store::ample();
        let built = store.pass_on(&message, levels, layout).unwrap();
        varied += 1;
        let exact = taken(&built, layout, vector.layout());
        assert!(exact.body != 0 && exact.slots > 2, "{name}");
        let mut in_room = |size: Size| {
            let mut store = Store::new(size);
            let frames = store.pass_on(&message, levels, layout);
            frames.map(|frames| {
                frames
                    .iter()
                    .map(|frame| frame.to_vec())
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(in_room(exact).unwrap(), built, "{name} {exact:?}");

        let short = |needed: usize| BufferTooSmall {
            needed,
            available: needed - 1,
        };
        let mut too_small = vec![
            (
                Size {
                    body: exact.body - 1,
                    ..exact
                },
                BuildError::Body(WriteError::BufferTooSmall(short(exact.body))),
            ),
            (
                Size {
                    slots: exact.slots - 1,
                    ..exact
                },
                BuildError::Slots(short(exact.slots)),
            ),
        ];
        if exact.headers != 0 {
            too_small.push((
                Size {
                    headers: exact.headers - 1,
                    ..exact
                },
                BuildError::Headers(short(exact.headers)),
            ));
        }
        if layout == Layout::Classic {
            let available = exact.levels - 1;
            too_small.push((
                Size {
                    levels: available,
                    ..exact
                },
                BuildError::TooFewLevels(short(exact.levels)),
            ));
            too_small.push((
                Size {
                    pending: exact.pending - 1,
                    ..exact
                },
                BuildError::TooFewPayloads(short(exact.pending)),
            ));
        }
        for (size, error) in too_small {
            assert_eq!(in_room(size), Err(error), "{name} {size:?}");
        }
        // Starting with empty buffers, one error after the other.
        let nothing = Size {
            body: 0,
            headers: 0,
            slots: 0,
            pending: 0,
            levels: 0,
        };
        for size in [
            nothing,
            Size {
                slots: AMPLE.slots,
                ..nothing
            },
            Size {
                pending: AMPLE.pending,
                ..nothing
            },
        ] {
            assert!(in_room(size).is_err(), "{name} {size:?}");
        }
    }
    assert!(varied >= 5, "{varied}");
    // Also without payloads: the body and the empty header.
    for (layout, needed) in [(Layout::Modern, 1), (Layout::Classic, 2)] {
        for available in 0..needed {
            let mut store = Store::new(Size {
                slots: available,
                ..AMPLE
            });
            let built = store.build(layout, |builder| {
                builder.body().nil();
                Ok(())
            });
            let error = BuildError::Slots(BufferTooSmall { needed, available });
            assert_eq!(built, Err(error));
        }
    }
}

#[test]
fn nothing_is_written_if_a_buffer_is_too_small() {
    let large: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    for layout in LAYOUTS {
        // The classic layout keeps the header of the payload in a slot, too.
        let heads = if layout == Layout::Modern { 2 } else { 4 };
        let size = Size {
            slots: heads + 1,
            headers: 300,
            pending: 1,
            ..AMPLE
        };
        let mut store = Store::new(size);
        let long = encoded(|writer| {
            writer.bin(&[0; 400]);
        });
        let built = store
            .build(layout, |builder| {
                builder.body().array(2);
                let error = put(builder, &large).unwrap_err();
                let (needed, available) = (heads + 4, heads + 1);
                let short = BufferTooSmall { needed, available };
                assert_eq!(error, BuildError::Slots(short));
                let kind = PayloadKind::Serialized;
                let entries: &Entries<'_> = &[("long", &long)];
                let error = builder.payload(kind, entries, &large[..1], SHARD_LEN);
                assert!(matches!(
                    error,
                    Err(BuildError::Headers(BufferTooSmall {
                        needed: 401..,
                        available: 300
                    }))
                ));
                put(builder, &large[..1])?;
                let error = put(builder, &[]).unwrap_err();
                if layout == Layout::Classic {
                    let short = BufferTooSmall {
                        needed: 2,
                        available: 1,
                    };
                    assert_eq!(error, BuildError::TooFewPayloads(short));
                } else {
                    let short = BufferTooSmall {
                        needed: 4,
                        available: 3,
                    };
                    assert_eq!(error, BuildError::Slots(short));
                }
                builder.body().nil();
                Ok(())
            })
            .unwrap();
        let (found, payloads) = meaning(&built, layout, &READING).unwrap();
        let expected = items(&[
            Item::Token(Token::Array(2)),
            Item::Payload(0),
            Item::Token(Token::Nil),
        ]);
        assert_eq!(found, expected, "{layout:?}");
        assert_eq!(payloads, [[b"a"]]);
    }
}

/// A pickle that moves out of its header takes another slot.
#[test]
fn converting_an_inline_pickle_needs_a_buffer() {
    let mut store = Store::ample();
    let modern = store
        .build(Layout::Modern, |builder| {
            builder.payload(PayloadKind::Pickled, PICKLED, &[b"a", b"b"], SHARD_LEN)?;
            Ok(())
        })
        .unwrap();
    let mut workspaces = Workspaces::new();
    let (message, _) = workspaces.open(&modern, Layout::Modern, &READING).unwrap();
    let payload = message.payload(0).unwrap();
    let mut store = Store::new(Size { slots: 6, ..AMPLE });
    let built = store.build(Layout::Classic, |builder| {
        let short = BufferTooSmall {
            needed: 7,
            available: 6,
        };
        let error = builder.forward(&payload).map(|_| ());
        assert_eq!(error, Err(BuildError::Slots(short)));
        builder.body().nil();
        Ok(())
    });
    assert_eq!(built.unwrap(), [&b""[..], b"\xc0"]);
}

#[test]
fn invalid_bodies_are_refused() {
    for layout in LAYOUTS {
        let mut store = Store::ample();
        let built = store.build(layout, |builder| {
            builder.body().array(3);
            put(builder, &[b"one"])
        });
        assert_eq!(
            built,
            Err(BuildError::Body(WriteError::Unfinished { owed: 2 }))
        );
        let mut store = Store::ample();
        let built = store.build(layout, |builder| {
            put(builder, &[b"one"])?;
            put(builder, &[b"one too many"])
        });
        assert_eq!(built, Err(BuildError::Body(WriteError::TooMany)));
    }
}

#[test]
fn header_entries_must_be_one_value() {
    for layout in LAYOUTS {
        let wrong: [&[u8]; 5] = [b"", b"\xc1", b"\xa3no", b"\x01\x02", b"\x92\x01"];
        let mut store = Store::ample();
        let built = store.build(layout, |builder| {
            for value in wrong {
                let kind = PayloadKind::Serialized;
                let entries: &Entries<'_> = &[("good", b"\x01"), ("bad", value)];
                let error = builder.payload(kind, entries, &[b"x"], SHARD_LEN);
                assert_eq!(error.map(|_| ()), Err(BuildError::Entry), "{value:?}");
            }
            builder.body().nil();
            Ok(())
        });
        let heads = if layout == Layout::Modern { 1 } else { 2 };
        assert_eq!(built.unwrap().len(), heads);
    }
}

// PROTOCOL FORWARD-1 and FORWARD-6
#[test]
fn invalid_headers_are_forwarded_but_not_converted() {
    let mut found = BTreeSet::new();
    for hostile in support::hostile() {
        let Ok(framed) = FramedMessage::parse(&hostile.bytes, hostile.prefix(), &LIMITS) else {
            continue;
        };
        let frames = cut(&framed);
        let layout = hostile.layout();
        let mut workspaces = Workspaces::new();
        let Ok((message, levels)) = workspaces.open(&frames, layout, &READING) else {
            continue;
        };
        let fault = message.check();
        if message.payloads().any(|payload| payload.is_err()) {
            // Locating the frames of a payload requires this much.
            let mut store = Store::ample();
            let built = store.pass_on(&message, levels, layout);
            assert!(
                matches!(built, Err(BuildError::Payload(_))),
                "{}",
                hostile.name
            );
            found.insert("no payload");
            continue;
        }
        let mut store = Store::ample();
        let same = store.pass_on(&message, levels, layout);
        assert!(same.is_ok(), "{}: {same:?}", hostile.name);
        let mut store = Store::ample();
        match (fault, store.pass_on(&message, levels, other(layout))) {
            // Forwarding repairs unused and shared frames.
            (Ok(()), _)
            | (
                Err(MessageError {
                    kind: MessageErrorKind::FramesShared,
                    ..
                }),
                _,
            ) => {}
            (Err(fault), Err(BuildError::Payload(error))) => {
                assert_eq!(error, fault, "{}", hostile.name);
                found.insert("other layout");
            }
            (Err(fault), built) => panic!("{}: {fault}, but {built:?}", hostile.name),
        }
    }
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn errors_name_the_sizes_needed() {
    let short = BufferTooSmall {
        needed: 77,
        available: 66,
    };
    let payload = MessageError {
        frame: 3,
        at: 5,
        kind: MessageErrorKind::Compression(CompressionError::NotCompiledIn { codec: Codec::Zlib }),
    };
    for (error, words) in [
        (
            BuildError::Body(WriteError::BufferTooSmall(short)),
            &["body", "77", "66"][..],
        ),
        (BuildError::Headers(short), &["headers", "77", "66"]),
        (BuildError::Slots(short), &["slots", "77", "66"]),
        (BuildError::TooFewPayloads(short), &["payloads", "77", "66"]),
        (BuildError::TooFewLevels(short), &["levels", "77", "66"]),
        (BuildError::Entry, &["entry"]),
        (BuildError::Payload(payload), &["frame 3", "zlib"]),
        (
            BuildError::NotConvertible { reason: "because" },
            &["other layout", "because"],
        ),
    ] {
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
    assert_eq!(BuildError::from(payload), BuildError::Payload(payload));
}

// Random messages.

/// A random body.
enum Node {
    Token(Token<'static>),
    Str(String),
    Array(Vec<Self>),
    Map(Vec<(Self, Self)>),
    Set(Vec<Self>),
    Enum(&'static str),
    /// The payload with this index.
    Payload(usize),
}

/// A random payload: the pieces of each frame.
struct Made {
    kind: PayloadKind,
    frames: Vec<Vec<Vec<u8>>>,
}

impl Made {
    fn logical(&self) -> Vec<Vec<u8>> {
        self.frames.iter().map(|pieces| pieces.concat()).collect()
    }
}

const NAMES: [&str; 4] = ["running", "closing", "closed", "failed"];

struct Maker {
    random: Random,
    payloads: Vec<Made>,
    /// The payloads without a path, which the classic layout cannot express.
    in_sets: bool,
    pickled: bool,
    lost_in_sets: bool,
}

impl Maker {
    fn node(&mut self, depth: usize, in_set: bool) -> Node {
        let choice = self.random.below(if depth == 0 { 9 } else { 14 });
        match choice {
            0 => Node::Token(Token::Nil),
            1 => Node::Token(Token::Bool(self.random.below(2) == 0)),
            2 => Node::Token(Token::UInt(u64::MAX >> self.random.below(64))),
            3 => Node::Token(Token::Int(i64::MIN >> self.random.below(60))),
            4 => Node::Token(Token::F64(0.1)),
            5 => Node::Str("text".repeat(self.random.below(12))),
            6 => Node::Enum(NAMES[self.random.below(4)]),
            7 | 8 if !in_set || self.in_sets => {
                self.lost_in_sets |= in_set;
                self.payload()
            }
            7 | 8 => Node::Token(Token::Bin(b"bytes")),
            9 | 10 => {
                let count = self.random.below(20);
                Node::Array((0..count).map(|_| self.node(depth - 1, in_set)).collect())
            }
            11 => {
                let count = self.random.below(5);
                Node::Set((0..count).map(|_| self.node(depth - 1, true)).collect())
            }
            _ => {
                let count = self.random.below(18);
                let pairs = (0..count).map(|index| {
                    let key = self.key(index);
                    (key, self.node(depth - 1, in_set))
                });
                Node::Map(pairs.collect())
            }
        }
    }

    /// A key that is unique to the index.
    fn key(&mut self, index: usize) -> Node {
        let number = index as u64;
        match self.random.below(5) {
            0 => Node::Token(Token::UInt(number * 100)),
            1 => Node::Token(Token::Int(-1 - index as i64)),
            2 => Node::Array(vec![
                Node::Str("key".into()),
                Node::Token(Token::UInt(number)),
                Node::Array(vec![]),
            ]),
            _ => Node::Str(format!("key-{index}")),
        }
    }

    fn payload(&mut self) -> Node {
        let pickled = self.pickled && self.random.below(4) == 0;
        let frame_count = self.random.below(4);
        let frames = (0..frame_count).map(|_| {
            let piece_count = if pickled { 1 } else { 1 + self.random.below(3) };
            let pieces = (0..piece_count).map(|_| {
                let len = self.random.below(40);
                (0..len).map(|_| self.random.below(256) as u8).collect()
            });
            pieces.collect()
        });
        let frames = frames.collect();
        let kind = if pickled {
            PayloadKind::Pickled
        } else {
            PayloadKind::Serialized
        };
        self.payloads.push(Made { kind, frames });
        Node::Payload(self.payloads.len() - 1)
    }
}

/// Writes a random node and records the expected items.
fn write<'f>(
    node: &Node,
    payloads: &'f [Made],
    builder: &mut MessageBuilder<'_, 'f>,
    items: &mut Vec<String>,
) -> Result<(), BuildError> {
    let count = |len: usize| u32::try_from(len).unwrap();
    match node {
        Node::Token(token) => {
            builder.body().token(*token);
            items.push(shown(&Item::Token(*token)));
        }
        Node::Str(string) => {
            builder.body().str(string);
            items.push(format!("Token(Str(\"{string}\"))"));
        }
        Node::Array(nodes) => {
            builder.body().array(count(nodes.len()));
            items.push(shown(&Item::Token(Token::Array(count(nodes.len())))));
            for node in nodes {
                write(node, payloads, builder, items)?;
            }
        }
        Node::Map(pairs) => {
            builder.body().map(count(pairs.len()));
            items.push(shown(&Item::Token(Token::Map(count(pairs.len())))));
            for (key, value) in pairs {
                write(key, payloads, builder, items)?;
                write(value, payloads, builder, items)?;
            }
        }
        Node::Set(nodes) => {
            builder.body().map(2).str("__Set__").bool(true);
            builder.body().str("as-list").array(count(nodes.len()));
            items.push(shown(&Item::Set(count(nodes.len()))));
            for node in nodes {
                write(node, payloads, builder, items)?;
            }
        }
        Node::Enum(name) => {
            builder.body().map(4).str("__Enum__").bool(true);
            builder.body().str("name").str(name);
            builder.body().str("__module__").str("distributed.core");
            builder.body().str("__name__").str("Status");
            items.push(format!(
                "Enum(EnumMember {{ module: \"distributed.core\", class: \"Status\", \
                 name: \"{name}\" }})"
            ));
        }
        Node::Payload(number) => {
            let made = &payloads[*number];
            let pieces = made.frames.iter().enumerate();
            let pieces = pieces
                .flat_map(|(index, pieces)| pieces.iter().map(move |piece| (index, &piece[..])));
            let entries = match made.kind {
                PayloadKind::Serialized => BYTES,
                PayloadKind::Pickled => PICKLED,
            };
            let write = |writer: &mut Writer<'_>| {
                for (key, value) in entries {
                    writer.str(key).encoded(value);
                }
            };
            let entries = HeaderEntries {
                count: entries.len() as u32,
                has_writeable: false,
                write: &write,
            };
            builder.payload_from_pieces(made.kind, entries, made.frames.len(), pieces)?;
            items.push("payload".into());
        }
    }
    Ok(())
}

// PROTOCOL FORWARD-2, FORWARD-3, FORWARD-5, FORWARD-6 and MODERN-5
#[test]
fn random_messages_survive_every_conversion() {
    let seeds: Vec<u64> = (1..=400).collect();
    let counts = in_parallel(&seeds, |&seed| random_message(seed));
    let payload_count: usize = counts.iter().map(|(count, _)| count).sum();
    let refused = counts.iter().filter(|(_, refused)| *refused).count();
    assert!(payload_count > 5_000, "{payload_count}");
    assert!(refused > 10, "{refused}");
}

/// Returns the number of payloads and whether the classic layout refused the
/// message.
fn random_message(seed: u64) -> (usize, bool) {
    let layout = LAYOUTS[(seed % 2) as usize];
    let mut maker = Maker {
        random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        payloads: Vec::new(),
        in_sets: layout == Layout::Modern && seed.is_multiple_of(3),
        pickled: layout == Layout::Modern,
        lost_in_sets: false,
    };
    let root = (0..3).map(|_| maker.node(4, false)).collect();
    let root = Node::Array(root);
    // In the order of the body, which is the order of creation.
    let logical: Vec<_> = maker.payloads.iter().map(Made::logical).collect();
    let mut items = Vec::new();
    let mut store = Store::new(Size {
        headers: 1 << 20,
        slots: 1 << 13,
        pending: 1 << 11,
        ..AMPLE
    });
    let ample = store.size;
    // A third of the messages has no compression.
    let codec = [None, Some(Codec::Lz4), Some(Codec::Snappy)][maker.random.below(3)];
    let codec = codec.filter(|codec| codec.is_compiled_in());
    let codec = codec.map(|codec| (codec, maker.random.below(30) as u64));
    let built = store
        .build_compressed(layout, codec, |builder| {
            write(&root, &maker.payloads, builder, &mut items)
        })
        .unwrap();
    let expected = (items, logical);
    let reads = |frames: &[&[u8]], layout| meaning(frames, layout, &READING).unwrap();
    assert_eq!(reads(&built, layout), expected, "seed {seed}");

    let mut workspaces = Workspaces::new();
    let (message, levels) = workspaces.open(&built, layout, &READING).unwrap();
    let mut store = Store::new(ample);
    let again = store.pass_on(&message, levels, layout).unwrap();
    // Forwarding our own output reproduces it.
    assert_eq!(again, built, "seed {seed}");

    let payload_count = expected.1.len();
    let mut store = Store::new(ample);
    let crossed = store.pass_on(&message, levels, other(layout));
    if maker.lost_in_sets {
        let reason = "it is in a set, and paths cannot lead into sets";
        assert_eq!(crossed, Err(BuildError::NotConvertible { reason }));
        return (payload_count, true);
    }
    let crossed = crossed.unwrap();
    let (mut items, mut payloads) = reads(&crossed, other(layout));
    for (payload, made) in payloads.iter_mut().zip(&maker.payloads) {
        if made.kind == PayloadKind::Pickled {
            assert_eq!(payload.remove(0), b"\x80\x04K\x07.", "seed {seed}");
        }
    }
    assert_eq!(payloads, expected.1, "seed {seed}");
    assert_eq!(items, expected.0, "seed {seed}");

    // Conversion back.
    let mut workspaces = Workspaces::new();
    let (message, levels) = workspaces.open(&crossed, other(layout), &READING).unwrap();
    let mut store = Store::new(ample);
    let home = store.pass_on(&message, levels, layout).unwrap();
    (items, payloads) = reads(&home, layout);
    for (payload, made) in payloads.iter_mut().zip(&maker.payloads) {
        if made.kind == PayloadKind::Pickled {
            payload.remove(0);
        }
    }
    assert_eq!((items, payloads), expected, "seed {seed}");
    (payload_count, false)
}
