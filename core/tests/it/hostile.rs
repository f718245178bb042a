//! Tests with hostile messages: each is refused with the right error, in memory
//! that does not depend on declared sizes.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    clippy::std_instead_of_core,
    clippy::std_instead_of_alloc
)]

use crate::support;
use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::cell::Cell;
use std::collections::BTreeMap;

use crate::support::Hostile;
use daskwire::Limits;
use daskwire::compression::{Codec, CompressionError};
use daskwire::display;
use daskwire::frame::{FrameDecoder, FrameError, FrameErrorKind, FramedMessage, Prefix};
use daskwire::message::{self, Message, MessageError, MessageErrorKind, ReadOptions, Workspace};
use daskwire::msgpack::MalformedKind;

/// One decision in `PROTOCOL.md` depends on this limit.
const LIMITS: Limits = Limits::HOST.with_decompressed_len(16 << 20);

/// An allocator that counts the bytes requested by this thread.
struct Counting;

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: forwards to the system's allocator; the counter allocates nothing.
#[allow(unsafe_code, reason = "only an allocator sees what a library asks for")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, memory: Memory) -> *mut u8 {
        let _ = ASKED.try_with(|asked| asked.set(asked.get().saturating_add(memory.size())));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(memory) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, memory: Memory) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, memory) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of bytes allocated during `work`.
fn asked_for<R>(work: impl FnOnce() -> R) -> (R, usize) {
    let before = ASKED.get();
    let result = work();
    (result, ASKED.get() - before)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Frame(FrameError),
    Message(MessageError),
}

impl From<FrameError> for Fault {
    fn from(error: FrameError) -> Self {
        Self::Frame(error)
    }
}

impl From<MessageError> for Fault {
    fn from(error: MessageError) -> Self {
        Self::Message(error)
    }
}

/// The buffers of a reader, allocated before counting.
struct Buffers {
    open: Workspace,
    walk: Workspace,
    out: Vec<u8>,
    ends: Vec<usize>,
}

impl Buffers {
    fn new() -> Self {
        Self {
            open: Workspace::fixed(1 << 10, 64, 1 << 16),
            walk: Workspace::fixed(1 << 10, 0, 0),
            out: vec![0; (16 << 20) + 1],
            ends: vec![0; 64],
        }
    }
}

/// Reads everything in the first message and returns the bytes after it.
fn read_first<'a>(hostile: &'a Hostile, buffers: &mut Buffers) -> Result<&'a [u8], Fault> {
    let framed = FramedMessage::parse(&hostile.bytes, hostile.prefix(), &LIMITS)?;
    let mut slots = [&[][..]; 8];
    let frames: &[&[u8]] = framed.prelude.split(framed.frames, &mut slots).unwrap();
    let reading = ReadOptions::new(LIMITS);
    let message = Message::open(frames, hostile.layout(), &reading, &mut buffers.open)?;
    let mut walk = message.walk(&mut buffers.walk);
    while walk.next_item()?.is_some() {}
    message.check()?;
    for payload in message.payloads() {
        payload?.merge_into(&mut buffers.out, &mut buffers.ends)?;
    }
    Ok(framed.rest)
}

/// The table of decisions of `PROTOCOL.md`: whether to accept, by name.
fn decisions() -> BTreeMap<&'static str, bool> {
    include_str!("../../PROTOCOL.md")
        .lines()
        .filter_map(|line| {
            let (name, row) = line.strip_prefix("| `hostile/")?.split_once("` | ")?;
            let accept = match row.split_once(" |")?.0 {
                "accept" => true,
                "refuse" => false,
                other => panic!("{name}: {other}"),
            };
            Some((name, accept))
        })
        .collect()
}

// PROTOCOL FRAME-8, FRAME-11, FRAME-12, MSGPACK-12, MODERN-7, SPLIT-6 and COMPRESS-11
#[test]
fn all_are_refused_except_those_listed_as_accepted() {
    let decisions = decisions();
    let mut buffers = Buffers::new();
    let mut accepted = 0;
    let mut undecided = 0;
    for hostile in support::hostile() {
        let name = hostile.name.as_str();
        let accept = match hostile.level() {
            "policy" => *decisions
                .get(name)
                .unwrap_or_else(|| panic!("{name} is not decided on")),
            "must" | "incomplete" => {
                assert!(!decisions.contains_key(name), "{name} has no verdict");
                undecided += 1;
                false
            }
            level => panic!("{name}: {level}"),
        };
        match (read_first(&hostile, &mut buffers), accept) {
            (Err(_), false) => {}
            (Ok(rest), true) => {
                accepted += 1;
                // Bytes after a message belong to the next one.
                assert_eq!(!rest.is_empty(), name.contains("trailing"), "{name}");
                if !rest.is_empty() {
                    let next = FramedMessage::parse(rest, hostile.prefix(), &LIMITS);
                    assert!(next.is_err(), "{name}");
                }
            }
            (outcome, _) => panic!("{name}: {:?}", outcome.map(<[u8]>::len)),
        }
    }
    let expected = decisions.values().filter(|accept| **accept).count();
    assert_eq!(accepted, expected);
    assert!(undecided > 150, "{undecided}");
}

// PROTOCOL COMPRESS-11
#[test]
fn bombs_are_stopped_by_the_limit() {
    let bomb = support::hostile()
        .into_iter()
        .find(|hostile| hostile.name == "nosplit--zlib-bomb")
        .unwrap();
    let framed = FramedMessage::parse(&bomb.bytes, Prefix::U64, &LIMITS).unwrap();
    let frames = support::cut(&framed);
    let mut workspaces = support::Workspaces::new();
    let mut out = vec![0; (32 << 20) + 1];
    let mut merge = |decompressed_len: u64| {
        let reading = ReadOptions::new(Limits::HOST.with_decompressed_len(decompressed_len));
        let (message, _) = workspaces.open(&frames, bomb.layout(), &reading).unwrap();
        let payload = message.payload(0).unwrap();
        payload
            .merge_into(&mut out, &mut [0])
            .map(|frames| frames.bytes().len() as u64)
            .map_err(|error| error.kind)
    };
    if !Codec::Zlib.is_compiled_in() {
        let codec = Codec::Zlib;
        let expected = CompressionError::NotCompiledIn { codec };
        assert_eq!(merge(1), Err(MessageErrorKind::Compression(expected)));
        return;
    }
    let len = merge(32 << 20).unwrap();
    assert!(len > 16 << 20);
    assert_eq!(merge(len), Ok(len));
    for limit in [0, 1, 16 << 20, len - 1] {
        let expected = CompressionError::OverLimit { limit };
        assert_eq!(merge(limit), Err(MessageErrorKind::Compression(expected)));
    }
}

/// The header of a payload of `count` frames.
#[cfg(all(feature = "alloc", any(feature = "lz4", feature = "zlib")))]
fn header(codec: &str, count: u32) -> Vec<u8> {
    let mut header = vec![0; 64 + 8 * count as usize];
    let mut writer = daskwire::msgpack::Writer::new(&mut header);
    writer.map(2).str("compression").array(count);
    for _ in 0..count {
        writer.str(codec);
    }
    writer.str("num-sub-frames").u64(u64::from(count));
    let len = writer.finish().unwrap().len();
    header.truncate(len);
    header
}

/// Each frame is within the limit of a frame; it is their number that makes them large.
// PROTOCOL COMPRESS-11
#[cfg(all(feature = "alloc", feature = "lz4"))]
#[test]
fn many_compressed_frames_are_stopped_by_the_limit_of_a_message() {
    use daskwire::compression::{Compression as _, Lz4};
    const MIB: u64 = 1 << 20;
    let mut lz4 = Lz4::new();
    let mut packed = vec![0; lz4.max_compressed_len(1 << 20).unwrap()];
    let len = lz4.compress(&[0; 1 << 20], &mut packed).unwrap();
    packed.truncate(len);
    let reading = ReadOptions::new(Limits::HOST.with_decompressed_message_len(10 * MIB));
    // One payload of 500 frames, and 500 payloads of one.
    let (many, one) = (header("lz4", 500), header("lz4", 1));
    let mut frames = vec![&b"\x81\xae__Serialized__\x01"[..], &many];
    frames.extend([&packed[..]; 500]);
    let mut workspace = Workspace::new();
    let message = Message::open(&frames, message::Layout::Modern, &reading, &mut workspace);
    let message = message.unwrap();
    let payload = message.payload(0).unwrap();
    let kind = MessageErrorKind::DecompressedTooLong {
        len: 11 * MIB,
        limit: 10 * MIB,
    };
    let error = Err(MessageError {
        frame: 2 + 10,
        at: 0,
        kind,
    });
    let (mut out, mut ends) = (vec![7], Vec::new());
    let (merged, asked) = asked_for(|| payload.merge_onto(&mut out, &mut ends));
    assert_eq!((merged, out.len()), (error, 1));
    assert!(asked < 80 << 20, "{asked} bytes");
    assert_eq!(payload.merged_len().map(drop), error);
    assert_eq!(message.decompressed_len().map(drop), error);

    let mut body = vec![0; 16 << 10];
    let mut writer = daskwire::msgpack::Writer::new(&mut body);
    writer.array(500);
    for payload in 0..500 {
        writer.map(1).str("__Serialized__").u64(1 + 2 * payload);
    }
    let mut frames = vec![writer.finish().unwrap()];
    for _ in 0..500 {
        frames.extend([&one[..], &packed]);
    }
    let message = Message::open(&frames, message::Layout::Modern, &reading, &mut workspace);
    let message = message.unwrap();
    for payload in message.payloads() {
        assert_eq!(payload.unwrap().merged_len(), Ok(Some(MIB)));
    }
    let frame = 2 * (1 + 10);
    assert_eq!(
        message.decompressed_len().map(drop),
        error.map_err(|error| MessageError { frame, ..error })
    );
    let shown = message.decompressed_len().unwrap_err().to_string();
    assert!(
        shown.contains("in frame 22") && shown.contains("decompressed_message_len"),
        "{shown}"
    );
}

/// zlib declares no length: decompression ends at the limit.
// PROTOCOL COMPRESS-11
#[cfg(all(feature = "alloc", feature = "zlib"))]
#[test]
fn frames_without_a_length_are_stopped_by_the_limit_of_a_message() {
    let bomb = support::hostile()
        .into_iter()
        .find(|hostile| hostile.name == "nosplit--zlib-bomb")
        .unwrap();
    let framed = FramedMessage::parse(&bomb.bytes, Prefix::U64, &LIMITS).unwrap();
    let bomb = *support::cut(&framed).last().unwrap();
    let limit = 60 << 20;
    let reading = ReadOptions::new(Limits::HOST.with_decompressed_message_len(limit));
    let header = header("zlib", 100);
    let mut frames = vec![&b"\x81\xae__Serialized__\x01"[..], &header];
    frames.extend([bomb; 100]);
    let mut workspace = Workspace::new();
    let message = Message::open(&frames, message::Layout::Modern, &reading, &mut workspace);
    let payload = message.unwrap().payload(0).unwrap();
    let (mut out, mut ends) = (Vec::new(), Vec::new());
    let error = payload.merge_onto(&mut out, &mut ends).unwrap_err();
    let len = limit + 1;
    let kind = MessageErrorKind::DecompressedTooLong { len, limit };
    assert_eq!((error.frame, error.kind), (2 + 2, kind));
}

// PROTOCOL FRAME-11, MSGPACK-12 and COMPRESS-11
#[test]
fn declared_lengths_allocate_nothing() {
    let mut buffers = Buffers::new();
    for hostile in support::hostile() {
        let name = hostile.name.as_str();
        let (_, asked) = asked_for(|| read_first(&hostile, &mut buffers));
        // Only zstd allocates: the decoder's tables, for any frame.
        let most = if name.contains("zstd") { 2 << 20 } else { 0 };
        assert!(asked <= most, "{name}: {asked} bytes");

        #[cfg(feature = "alloc")]
        {
            let (_, asked) = asked_for(|| {
                let mut frames = Vec::<Vec<u8>>::new();
                let mut decoder = FrameDecoder::new(hostile.prefix(), Vec::new(), LIMITS);
                decoder.push(&mut &hostile.bytes[..], &mut frames)
            });
            // It grows by doubling, in steps of a page for each buffer.
            let most = 4 * hostile.bytes.len() + 8 * 4096;
            assert!(asked <= most, "{name}: {asked} bytes");
        }
    }
}

// PROTOCOL COMPRESS-11
#[cfg(all(feature = "alloc", feature = "zstd"))]
#[test]
fn zstd_memory_follows_content_not_declared_size() {
    use daskwire::compression::decompress_onto;
    // Blocks of 128 KiB of zeros, and many empty ones.
    let frame = |declared: u64, block_count: usize| {
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xc0, 13 << 3];
        frame.extend_from_slice(&declared.to_le_bytes());
        frame.extend_from_slice(&[0x02, 0, 0x10, 0].repeat(block_count));
        frame.resize(64 << 10, 0);
        frame
    };
    let asked = |declared: u64, block_count: usize| {
        let frame = frame(declared, block_count);
        let mut out = Vec::new();
        let (result, asked) = asked_for(|| {
            decompress_onto(Codec::Zstd, &frame, &mut out, Limits::HOST.decompressed_len).map_err(
                |error| {
                    let is_malformed = matches!(error, CompressionError::Malformed { .. });
                    assert!(is_malformed, "{error}");
                },
            )
        });
        assert!(result.is_err() && out.is_empty());
        asked
    };
    for doublings in 0..8 {
        assert_eq!(asked(4 << 20 << doublings, 8), asked(4 << 20, 8));
    }
    for block_count in [8, 16, 32, 64, 128] {
        // All reallocations together, of the data and of the window.
        let most = (4 << 20) + 6 * (block_count << 17);
        let asked = asked(1 << 30, block_count);
        assert!(asked <= most, "{block_count} blocks: {asked} bytes");
    }
}

#[test]
fn all_can_be_displayed() {
    for hostile in support::hostile() {
        let text = display::Document::new(&hostile.bytes).to_string();
        assert!(text.len() <= 64 * hostile.bytes.len() + 1024);
    }
}

// PROTOCOL FRAME-12
/// Once with a reader that waits for more, once at the end of the stream.
#[test]
fn truncated_streams_are_incomplete_not_malformed() {
    let mut count = 0;
    for hostile in support::hostile() {
        if hostile.level() != "incomplete" {
            continue;
        }
        count += 1;
        let mut prelude = [0; 64];
        let mut decoder = FrameDecoder::new(hostile.prefix(), &mut prelude[..], LIMITS);
        let mut buffer = [0; 1 << 10];
        let mut frames = daskwire::frame::Arena::new(&mut buffer);
        let mut rest = &hostile.bytes[..];
        let pushed = decoder.push(&mut rest, &mut frames);
        if hostile.name == "nosplit--nosplit-past-the-end" {
            // Dask would wait here; we report the fault.
            assert!(pushed.is_err());
            continue;
        }
        assert_eq!(pushed, Ok(false), "{}", hostile.name);
        assert!(rest.is_empty() && !decoder.is_complete());
        let at_start = hostile.bytes.is_empty();
        assert_eq!(decoder.is_idle(), at_start);
        assert_eq!(decoder.end().is_ok(), at_start, "{}", hostile.name);
    }
    assert!(count >= 20, "{count}");
}

/// The expected fault.
#[derive(Debug)]
enum Expected {
    /// In the framing, at this byte.
    Frame(u64, FrameErrorKind),
    /// In this frame, at this byte of it.
    Message(usize, usize, MessageErrorKind),
    /// In frame 2, at this byte of the compressed data.
    Compressed(Codec, usize),
}

use Expected::{Compressed, Frame, Message as In};
use MessageErrorKind::{EntryKind, EntryMissing, FramesMissing, ListLength, Malformed};

const HOST_FRAMES: u64 = Limits::HOST.frame_count;
const HOST_LEN: u64 = Limits::HOST.frame_len;

const fn kind(key: &'static str, expected: &'static str) -> MessageErrorKind {
    EntryKind { key, expected }
}

const fn missing(key: &'static str) -> MessageErrorKind {
    EntryMissing { key }
}

const fn frames_missing(needed: u64, available: usize) -> MessageErrorKind {
    FramesMissing { needed, available }
}

const fn list_length(key: &'static str, found: u64, expected: u64) -> MessageErrorKind {
    ListLength {
        key,
        found,
        expected,
    }
}

const fn truncated(needed: u64, available: usize) -> MessageErrorKind {
    Malformed(MalformedKind::Truncated { needed, available })
}

const fn count_too_large(count: u64, available: usize) -> MessageErrorKind {
    Malformed(MalformedKind::CountTooLarge { count, available })
}

const fn too_many(count: u64) -> FrameErrorKind {
    FrameErrorKind::TooManyFrames {
        count,
        limit: HOST_FRAMES,
    }
}

const fn too_long(index: u64, len: u64) -> FrameErrorKind {
    FrameErrorKind::FrameTooLong {
        index,
        len,
        limit: HOST_LEN,
    }
}

const fn implausible(declared: u64, len: usize, ratio: u64) -> MessageErrorKind {
    MessageErrorKind::Compression(CompressionError::Implausible {
        declared,
        len,
        ratio,
    })
}

/// A message for each kind of fault, with its location.
const FAULTS: &[(&str, Expected)] = &[
    // PROTOCOL FRAME-8, FRAME-10 and FRAME-11
    ("nosplit--nframes-0", Frame(8, FrameErrorKind::NoFrames)),
    ("classic--nframes-0", Frame(0, FrameErrorKind::NoFrames)),
    ("nosplit--nframes-2p61", Frame(8, too_many(1 << 61))),
    ("classic--nframes-u64max", Frame(0, too_many(u64::MAX))),
    ("nosplit--big-endian", Frame(8, too_many(1 << 56))),
    ("nosplit--length-2p63", Frame(16, too_long(0, 1 << 63))),
    (
        "nosplit--lengths-sum-wraps",
        Frame(16, too_long(0, u64::MAX)),
    ),
    ("classic--length-u64max", Frame(16, too_long(1, u64::MAX))),
    (
        "nosplit--prefix-2p62",
        Frame(
            0,
            FrameErrorKind::PrefixPastEnd {
                value: 1 << 62,
                max: 22,
            },
        ),
    ),
    (
        "nosplit--prefix-4",
        Frame(0, FrameErrorKind::PrefixTooShort { value: 4, min: 16 }),
    ),
    (
        "nosplit--nosplit-inside-frame-1",
        Frame(
            0,
            FrameErrorKind::PrefixInsideFrame {
                value: 45,
                index: 1,
            },
        ),
    ),
    (
        "nosplit--nosplit-past-the-end",
        Frame(0, FrameErrorKind::PrefixPastEnd { value: 57, max: 56 }),
    ),
    (
        "nosplit--truncated-at-11",
        Frame(11, FrameErrorKind::Truncated { needed: 16 }),
    ),
    (
        "total--total-one-short",
        Frame(
            0,
            FrameErrorKind::PrefixInsideFrame {
                value: 43,
                index: 1,
            },
        ),
    ),
    // PROTOCOL MSGPACK-1, MSGPACK-6, MSGPACK-10, MSGPACK-11 and MSGPACK-12
    (
        "nosplit--msg-array32-4g",
        In(0, 0, count_too_large(u32::MAX as u64, 15)),
    ),
    (
        "nosplit--msg-map32-4g",
        In(0, 0, count_too_large(2 * (u32::MAX as u64), 15)),
    ),
    (
        "nosplit--msg-array32-nested-claims",
        In(0, 0, count_too_large((1 << 31) - 1, 25)),
    ),
    (
        "nosplit--msg-bin32-4g",
        In(0, 0, truncated((1 << 32) + 4, 20)),
    ),
    ("nosplit--msg-empty", In(0, 0, truncated(1, 0))),
    (
        "nosplit--msg-c1",
        In(0, 2, Malformed(MalformedKind::Reserved)),
    ),
    (
        "nosplit--msg-trailing",
        In(0, 6, Malformed(MalformedKind::Trailing { len: 1 })),
    ),
    (
        "nosplit--msg-utf8-in-key",
        In(0, 1, Malformed(MalformedKind::NotUtf8 { valid_len: 1 })),
    ),
    (
        "nosplit--msg-deep-arrays-100000",
        In(0, 1024, Malformed(MalformedKind::TooDeep { limit: 1024 })),
    ),
    // PROTOCOL BODY-3, BODY-4 and BODY-5
    (
        "nosplit--msg-set-no-list",
        In(0, 3, MessageErrorKind::SetWithoutList),
    ),
    (
        "nosplit--msg-enum-no-name",
        In(0, 3, MessageErrorKind::EnumWithoutName),
    ),
    (
        "nosplit--ref-true",
        In(0, 3, MessageErrorKind::PlaceholderNotFrame),
    ),
    // PROTOCOL MODERN-2, MODERN-3, MODERN-4, MODERN-7 and MODERN-9
    (
        "nosplit--ref-zero",
        In(0, 3, MessageErrorKind::PlaceholderNotFrame),
    ),
    (
        "nosplit--ref-past-end",
        In(
            0,
            3,
            MessageErrorKind::PlaceholderPastEnd {
                index: 3,
                frame_count: 3,
            },
        ),
    ),
    (
        "nosplit--hdr-count-missing",
        In(1, 0, missing("num-sub-frames")),
    ),
    (
        "nosplit--hdr-count-negative",
        In(1, 98, kind("num-sub-frames", "an integer of 0 or more")),
    ),
    (
        "nosplit--hdr-count-u64max",
        In(1, 0, frames_missing(u64::MAX, 1)),
    ),
    (
        "nosplit--ref-pickled-no-object",
        In(1, 0, missing("pickled-obj")),
    ),
    (
        "nosplit--ref-pickled-object-is-str",
        In(1, 13, kind("pickled-obj", "a bin")),
    ),
    (
        "nosplit--ref-overlap",
        In(2, 0, MessageErrorKind::FramesShared),
    ),
    (
        "nosplit--ref-twice",
        In(1, 0, MessageErrorKind::FramesShared),
    ),
    (
        "nosplit--ref-points-to-payload",
        In(2, 1, Malformed(MalformedKind::Trailing { len: 4 })),
    ),
    (
        "nosplit--ref-header-is-array",
        In(1, 0, kind("the header of a payload", "a map")),
    ),
    (
        "nosplit--ref-header-holds-placeholder",
        In(1, 106, MessageErrorKind::PlaceholderInHeader),
    ),
    // PROTOCOL SPLIT-6 and COMPRESS-6
    (
        "nosplit--hdr-split-no-offsets",
        In(1, 0, missing("split-offsets")),
    ),
    (
        "nosplit--hdr-split-lists-differ",
        In(1, 0, list_length("split-offsets", 1, 2)),
    ),
    (
        "nosplit--hdr-split-past-end",
        In(1, 0, MessageErrorKind::SplitLists),
    ),
    (
        "nosplit--hdr-split-sum-wraps",
        In(1, 0, MessageErrorKind::SplitLists),
    ),
    (
        "nosplit--hdr-split-overlap",
        In(1, 0, MessageErrorKind::SplitLists),
    ),
    (
        "nosplit--hdr-split-string",
        In(1, 51, kind("split-num-sub-frames", "an array")),
    ),
    (
        "nosplit--hdr-compression-short",
        In(1, 0, list_length("compression", 0, 1)),
    ),
    (
        "nosplit--hdr-compression-is-str",
        In(1, 81, kind("compression", "an array")),
    ),
    // PROTOCOL COMPRESS-1, COMPRESS-2, COMPRESS-3, COMPRESS-4 and COMPRESS-11
    (
        "nosplit--lz4-claims-4g",
        In(2, 0, implausible(u32::MAX as u64, 20, 255)),
    ),
    (
        "nosplit--lz4-claims-2g",
        In(2, 0, implausible((1 << 31) - 1, 20, 255)),
    ),
    ("nosplit--lz4-offset-zero", Compressed(Codec::Lz4, 9)),
    ("nosplit--lz4-truncated", Compressed(Codec::Lz4, 49)),
    ("nosplit--lz4-size-too-large", Compressed(Codec::Lz4, 55)),
    (
        "nosplit--snappy-claims-4g",
        In(2, 0, implausible(u32::MAX as u64, 29, 22)),
    ),
    (
        "nosplit--snappy-copy-before-start",
        Compressed(Codec::Snappy, 5),
    ),
    (
        "nosplit--snappy-varint-33-bits",
        Compressed(Codec::Snappy, 5),
    ),
    ("nosplit--zlib-bad-adler", Compressed(Codec::Zlib, 16)),
    ("nosplit--zlib-gzip", Compressed(Codec::Zlib, 2)),
    ("nosplit--zlib-truncated", Compressed(Codec::Zlib, 11)),
    ("nosplit--zstd-no-content-size", Compressed(Codec::Zstd, 4)),
    ("nosplit--zstd-bad-magic", Compressed(Codec::Zstd, 0)),
    // PROTOCOL CLASSIC-1, CLASSIC-2, CLASSIC-3 and CLASSIC-4
    ("classic--nframes-1", In(1, 0, MessageErrorKind::NoBody)),
    (
        "classic--header-is-array",
        In(
            0,
            0,
            MessageErrorKind::WrongLayout {
                likely: message::Layout::Modern,
            },
        ),
    ),
    (
        "classic--message-lz4-4g",
        In(1, 0, implausible(u32::MAX as u64, 20, 255)),
    ),
    ("classic--cl-no-headers", In(2, 0, missing("headers"))),
    ("classic--cl-no-keys", In(2, 0, missing("keys"))),
    (
        "classic--cl-header-of-key-missing",
        In(2, 16, missing("headers")),
    ),
    // PROTOCOL CLASSIC-5, CLASSIC-7, CLASSIC-8, CLASSIC-9 and CLASSIC-10
    (
        "classic--cl-path-missing",
        In(2, 10, MessageErrorKind::PathMissing),
    ),
    (
        "classic--cl-path-index-out",
        In(2, 10, MessageErrorKind::PathMissing),
    ),
    (
        "classic--cl-path-index-negative",
        In(2, 10, MessageErrorKind::PathMissing),
    ),
    (
        "classic--cl-path-into-scalar",
        In(2, 10, MessageErrorKind::PathMissing),
    ),
    (
        "classic--cl-duplicate-path",
        In(2, 84, MessageErrorKind::PathTwice),
    ),
    ("classic--cl-count-missing", In(2, 13, missing("count"))),
    (
        "classic--cl-count-huge",
        In(2, 13, frames_missing(1 << 63, 1)),
    ),
    (
        "classic--cl-frames-left-over",
        In(4, 0, MessageErrorKind::FramesLeftOver { count: 2 }),
    ),
    ("classic--cl-lengths-missing", In(2, 13, missing("lengths"))),
    (
        "classic--cl-lengths-too-large",
        In(
            2,
            13,
            MessageErrorKind::LengthsDiffer {
                declared: 6,
                actual: 5,
            },
        ),
    ),
];

#[test]
fn each_fault_is_reported_at_its_location() {
    let hostile: BTreeMap<String, Hostile> = support::hostile()
        .into_iter()
        .map(|hostile| (hostile.name.clone(), hostile))
        .collect();
    let mut buffers = Buffers::new();
    for (name, expected) in FAULTS {
        let fault = read_first(&hostile[*name], &mut buffers)
            .map(<[u8]>::len)
            .unwrap_err();
        let found = match (expected, fault) {
            (Frame(at, kind), Fault::Frame(error)) => {
                error
                    == FrameError {
                        at: *at,
                        kind: *kind,
                    }
            }
            (In(frame, at, kind), Fault::Message(error)) => match (kind, error.kind) {
                (
                    MessageErrorKind::Compression(_),
                    MessageErrorKind::Compression(CompressionError::NotCompiledIn { codec }),
                ) => !codec.is_compiled_in(),
                _ => (error.frame, error.at, error.kind) == (*frame, *at, *kind),
            },
            (Compressed(codec, at), Fault::Message(error)) => match error.kind {
                MessageErrorKind::Compression(CompressionError::NotCompiledIn {
                    codec: lacking,
                }) => lacking == *codec && !codec.is_compiled_in(),
                MessageErrorKind::Compression(CompressionError::Malformed {
                    codec: of,
                    at: byte,
                    ..
                }) => error.frame == 2 && of == *codec && byte == *at,
                _ => false,
            },
            _ => false,
        };
        assert!(found, "{name}: {fault:?}, not {expected:?}");
        // The message for users, too.
        let text = match fault {
            Fault::Frame(error) => error.to_string(),
            Fault::Message(error) => error.to_string(),
        };
        assert!(
            text.contains("at byte ") && !text.contains('\n'),
            "{name}: {text}"
        );
    }
    for name in ["cl-compression-unknown", "message-compression-unknown"] {
        let fault = read_first(&hostile[&format!("classic--{name}")], &mut buffers);
        let Err(Fault::Message(error)) = fault.map(<[u8]>::len) else {
            panic!("{name}");
        };
        assert!(matches!(error.kind, MessageErrorKind::UnknownCodec { .. }));
    }
}
