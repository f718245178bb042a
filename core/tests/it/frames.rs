//! Tests of framing: on split, damaged and random streams the incremental
//! decoder and the whole-message parser agree.

use crate::support::Random;
use daskwire::frame::{
    Arena, EncodeError, FrameBuffers, FrameDecoder, FrameError, FrameErrorKind, FramedMessage,
    Prefix, PreludeStorage, ReadHint, SHARD_LEN, SplitError, Wanted, encode_prelude,
    encode_prelude_with, prelude_len,
};
use daskwire::{BufferTooSmall, Limits};

const PREFIXES: [Prefix; 2] = [Prefix::None, Prefix::U64];

/// The handshake of 2026.8.0.
const HANDSHAKE: &[u8] = b"\x3a\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x2a\0\0\0\0\0\0\0\
    \x83\xabcompression\xc0\xa6python\x93\x03\x0b\x07\xafpickle-protocol\x05";

/// Limits that nothing reaches.
const NO_LIMITS: Limits = Limits::HOST
    .with_frame_count(u64::MAX)
    .with_frame_len(u64::MAX)
    .with_message_len(u64::MAX);

/// One buffer per frame, returned in steps, initialised with `poison`. Records
/// the calls.
struct Store {
    frames: Vec<Vec<u8>>,
    step: usize,
    poison: u8,
    asked: usize,
}

impl Store {
    fn new(step: usize, poison: u8) -> Self {
        Self {
            frames: Vec::new(),
            step,
            poison,
            asked: 0,
        }
    }

    /// The frames, including empty ones that were never requested.
    fn finish(mut self, frame_count: usize) -> Vec<Vec<u8>> {
        assert!(self.frames.len() <= frame_count);
        self.frames.resize_with(frame_count, Vec::new);
        self.frames
    }
}

impl FrameBuffers for Store {
    fn buffer(&mut self, index: usize, len: usize, filled: usize) -> Option<&mut [u8]> {
        self.asked += 1;
        assert!(index + 1 >= self.frames.len(), "frames come in order");
        assert!(filled < len, "no call for what is there already");
        self.frames.resize_with(index + 1, Vec::new);
        let frame = &mut self.frames[index];
        frame.resize(filled.saturating_add(self.step).min(len), self.poison);
        frame.get_mut(filled..)
    }
}

/// A message of `frames`; the prefix, if any, ends after `covered` frames.
fn message(prefix: Prefix, frames: &[&[u8]], covered: usize) -> Vec<u8> {
    let mut out = vec![0xa5; prelude_len(prefix, frames.len()).unwrap()];
    let lengths = frames.iter().map(|frame| frame.len() as u64);
    let len = encode_prelude(prefix, lengths, &mut out).unwrap();
    assert_eq!(len, out.len());
    if prefix == Prefix::U64 {
        let covered: usize = frames[..covered].iter().map(|frame| frame.len()).sum();
        let value = (len - 8 + covered) as u64;
        out[..8].copy_from_slice(&value.to_le_bytes());
    }
    for frame in frames {
        out.extend_from_slice(frame);
    }
    out
}

/// A prelude without its frames, as numbers.
fn prelude(numbers: &[u64]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

/// Messages of all shapes, with both prefixes and every valid end of a prefix.
fn messages() -> Vec<(Prefix, Vec<u8>)> {
    let long = [0x77; 300];
    let many: Vec<&[u8]> = (0..40).map(|len| &long[..len % 5]).collect();
    let shapes: [&[&[u8]]; 10] = [
        &[b"\x80"],
        &[b""],
        &[b"", b"\x83"],
        &[b"\x80", b""],
        &[b"", b"", b""],
        &[b"\x81", b"", b"header", b"", b"payload"],
        &[b"", b"first is empty", b"", b"", b"last is", b""],
        &[&long],
        &[&long[..1], &long, &long[..2]],
        &many,
    ];
    let mut messages = vec![(Prefix::U64, HANDSHAKE.to_vec())];
    for frames in shapes {
        messages.push((Prefix::None, message(Prefix::None, frames, 0)));
        for covered in 0..=frames.len() {
            messages.push((Prefix::U64, message(Prefix::U64, frames, covered)));
        }
    }
    messages
}

/// The frames of the first message, by the whole-message parser.
fn parse(bytes: &[u8], prefix: Prefix, limits: &Limits) -> Result<Vec<Vec<u8>>, FrameError> {
    let framed = FramedMessage::parse(bytes, prefix, limits)?;
    assert_eq!(
        framed.message_len() + framed.rest.len() as u64,
        bytes.len() as u64
    );
    let mut slots = vec![&b""[..]; framed.prelude.frame_count()];
    let frames = framed.prelude.split(framed.frames, &mut slots).unwrap();
    Ok(frames.iter().map(|frame| frame.to_vec()).collect())
}

/// Pushes `input` and returns the number of bytes consumed.
fn push<P: PreludeStorage, B: FrameBuffers>(
    decoder: &mut FrameDecoder<P>,
    input: &[u8],
    frames: &mut B,
) -> Result<usize, FrameError> {
    let mut rest = input;
    let is_complete = decoder.push(&mut rest, frames)?;
    assert!(is_complete || rest.is_empty());
    Ok(input.len() - rest.len())
}

/// The frames of the first message, by the decoder from `chunks`.
fn decode<'a>(
    chunks: impl IntoIterator<Item = &'a [u8]>,
    prefix: Prefix,
    limits: Limits,
    step: usize,
) -> Result<Vec<Vec<u8>>, FrameError> {
    let mut decoder = FrameDecoder::new(prefix, [0xa5; 512], limits);
    let mut store = Store::new(step, 0x5a);
    for chunk in chunks {
        let taken = push(&mut decoder, chunk, &mut store)?;
        if taken < chunk.len() {
            assert!(
                decoder.is_complete(),
                "only a complete message leaves bytes"
            );
        }
        if decoder.is_complete() {
            break;
        }
    }
    if !decoder.is_complete() {
        decoder.end()?;
        // Between messages; an empty input is not a message.
        assert!(decoder.is_idle());
        return Ok(Vec::new());
    }
    Ok(store.finish(decoder.prelude().unwrap().frame_count()))
}

// Splits.

// PROTOCOL FRAME-1, FRAME-2, FRAME-3, FRAME-4, FRAME-5, FRAME-6, FRAME-7
#[test]
fn every_split_in_two_gives_the_same_frames() {
    for (prefix, bytes) in messages() {
        let expected = parse(&bytes, prefix, &Limits::HOST).unwrap();
        for at in 0..=bytes.len() {
            let (front, back) = bytes.split_at(at);
            let frames = decode([front, back], prefix, Limits::HOST, 64).unwrap();
            assert_eq!(frames, expected, "cut at {at}");
        }
    }
}

#[test]
fn byte_by_byte_gives_the_same_frames() {
    for (prefix, bytes) in messages() {
        let expected = parse(&bytes, prefix, &Limits::HOST).unwrap();
        for step in [1, 7, usize::MAX] {
            let frames = decode(bytes.chunks(1), prefix, Limits::HOST, step).unwrap();
            assert_eq!(frames, expected, "buffers of {step}");
        }
    }
}

// PROTOCOL FRAME-12
#[test]
fn consecutive_messages_are_separated() {
    for prefix in PREFIXES {
        let all: Vec<Vec<u8>> = messages()
            .into_iter()
            .filter(|(of, _)| *of == prefix)
            .map(|(_, bytes)| bytes)
            .collect();
        let stream = all.concat();
        for chunk_len in [1, 3, 8, 16, 61, stream.len()] {
            let mut decoder = FrameDecoder::new(prefix, [0; 512], Limits::HOST);
            let mut seen = Vec::new();
            let mut store = Store::new(usize::MAX, 0xa5);
            for chunk in stream.chunks(chunk_len) {
                let mut rest = chunk;
                while !rest.is_empty() {
                    let taken = push(&mut decoder, rest, &mut store).unwrap();
                    rest = &rest[taken..];
                    if decoder.is_complete() {
                        let count = decoder.prelude().unwrap().frame_count();
                        let done = core::mem::replace(&mut store, Store::new(usize::MAX, 0xa5));
                        seen.push(done.finish(count));
                        assert_eq!(decoder.end(), Ok(()));
                        decoder.reset();
                        assert!(decoder.is_idle());
                    }
                }
            }
            assert!(decoder.is_idle());
            let expected: Vec<_> = all
                .iter()
                .map(|bytes| parse(bytes, prefix, &Limits::HOST).unwrap())
                .collect();
            assert_eq!(seen, expected, "chunks of {chunk_len}");
        }
    }
}

#[test]
fn every_truncation_is_reported_at_its_offset() {
    for (prefix, bytes) in messages() {
        for len in 0..bytes.len() {
            let cut = &bytes[..len];
            let error = parse(cut, prefix, &Limits::HOST).unwrap_err();
            assert_eq!(error.at, len as u64);
            let FrameErrorKind::Truncated { needed } = error.kind else {
                panic!("{len} of {} bytes: {error}", bytes.len());
            };
            assert!(needed > len as u64 && needed <= bytes.len() as u64);
            if len == 0 {
                // A stream may end between messages.
                assert_eq!(decode([cut], prefix, Limits::HOST, 64), Ok(Vec::new()));
            } else {
                let decoded = decode(cut.chunks(5), prefix, Limits::HOST, 64);
                assert_eq!(decoded, Err(error));
            }
        }
    }
}

// The decoder and `FramedMessage` agree, also about what is wrong.

#[test]
fn parser_and_decoder_agree_on_mutated_messages() {
    let messages = messages();
    let tight = Limits::HOST
        .with_frame_count(6)
        .with_frame_len(100)
        .with_message_len(150);
    let numbers = [
        0,
        1,
        2,
        7,
        8,
        16,
        24,
        1 << 20,
        1 << 31,
        1 << 32,
        1 << 60,
        1 << 61,
        1 << 62,
        1 << 63,
        u64::MAX - 8,
        u64::MAX,
    ];
    let mut random = Random(0x5eed);
    let (mut good, mut truncated, mut bad) = (0, 0, 0);
    for _ in 0..20_000 {
        let (prefix, bytes) = &messages[random.below(messages.len())];
        let mut bytes = bytes.clone();
        for _ in 0..=random.below(2) {
            let words = (bytes.len() / 8).min(12);
            match random.below(4) {
                0 => {
                    let at = random.below(bytes.len());
                    bytes[at] ^= 1 << random.below(8);
                }
                1 => {
                    let at = random.below(words) * 8;
                    let number = numbers[random.below(numbers.len())];
                    bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(number));
                }
                2 => {
                    let at = random.below(words) * 8;
                    bytes[at] = bytes[at]
                        .wrapping_add(random.below(5) as u8)
                        .wrapping_sub(2);
                }
                _ => bytes.truncate(1 + random.below(bytes.len())),
            }
            if bytes.len() < 8 {
                break;
            }
        }
        // The storage of `decode` holds about 60 frames.
        let limits = [
            tight,
            Limits::HOST.with_frame_count(60),
            NO_LIMITS.with_frame_count(60),
        ][random.below(3)];
        let expected = parse(&bytes, *prefix, &limits);
        let chunk_len = 1 + random.below(40);
        let decoded = decode(bytes.chunks(chunk_len), *prefix, limits, 64);
        assert_eq!(decoded, expected, "{prefix:?} {bytes:x?}");
        match expected {
            Ok(_) => good += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                match error.kind {
                    FrameErrorKind::Truncated { .. } => truncated += 1,
                    _ => bad += 1,
                }
            }
        }
    }
    // All three outcomes are frequent, so that the test is meaningful.
    assert!(good > 1000 && truncated > 1000 && bad > 1000);
}

fn error_of(numbers: &[u64], prefix: Prefix, limits: Limits) -> FrameError {
    let bytes = prelude(numbers);
    let error = parse(&bytes, prefix, &limits).unwrap_err();
    // The decoder reports it with the last byte of the faulty number, not
    // earlier, and requested no buffer.
    let mut decoder = FrameDecoder::new(prefix, [0; 512], limits);
    let mut store = Store::new(64, 0);
    let mut outcome = Ok(0);
    for byte in bytes.chunks(1) {
        outcome = push(&mut decoder, byte, &mut store);
        if outcome.is_err() {
            break;
        }
    }
    if let FrameErrorKind::Truncated { .. } = error.kind {
        outcome = decoder.end().map(|()| 0);
    }
    assert_eq!(outcome, Err(error));
    assert_eq!(store.asked, 0);
    error
}

fn fault(at: u64, kind: FrameErrorKind) -> FrameError {
    FrameError { at, kind }
}

// Counts and lengths.

// PROTOCOL FRAME-10
#[test]
fn messages_without_frames_are_refused() {
    let none = FrameErrorKind::NoFrames;
    assert_eq!(error_of(&[0], Prefix::None, Limits::HOST), fault(0, none));
    assert_eq!(error_of(&[8, 0], Prefix::U64, Limits::HOST), fault(8, none));
}

// PROTOCOL FRAME-11
#[test]
fn frame_counts_above_the_limit_are_refused() {
    for count in [
        (1 << 20) + 1,
        1 << 32,
        1 << 60,
        (1 << 61) - 1,
        1 << 61,
        1 << 63,
        u64::MAX,
    ] {
        let kind = FrameErrorKind::TooManyFrames {
            count,
            limit: 1 << 20,
        };
        assert_eq!(
            error_of(&[count], Prefix::None, Limits::HOST),
            fault(0, kind)
        );
        let prefixed = [u64::MAX, count];
        assert_eq!(
            error_of(&prefixed, Prefix::U64, Limits::HOST),
            fault(8, kind)
        );
    }
}

/// Eight times the count wraps to 0 or to a small number.
#[test]
fn frame_counts_beyond_the_address_space_are_refused() {
    for count in [1 << 60, 1 << 61, (1 << 61) + 1, 1 << 63, u64::MAX] {
        let kind = FrameErrorKind::BeyondAddressSpace {
            len: u64::saturating_mul(count, 8),
        };
        assert_eq!(error_of(&[count], Prefix::None, NO_LIMITS), fault(0, kind));
        assert_eq!(
            error_of(&[u64::MAX, count], Prefix::U64, NO_LIMITS),
            fault(8, kind)
        );
    }
}

#[test]
fn frame_lengths_above_the_limit_are_refused() {
    for len in [(1 << 40) + 1, 1 << 60, 1 << 61, 1 << 62, 1 << 63, u64::MAX] {
        let kind = FrameErrorKind::FrameTooLong {
            index: 1,
            len,
            limit: 1 << 40,
        };
        assert_eq!(
            error_of(&[3, 1, len, 1], Prefix::None, Limits::HOST),
            fault(16, kind)
        );
        assert_eq!(
            error_of(&[u64::MAX, 3, 1, len, 1], Prefix::U64, Limits::HOST),
            fault(24, kind)
        );
    }
}

#[test]
fn frame_lengths_beyond_the_address_space_are_refused() {
    for len in [1 << 63, u64::MAX] {
        let kind = FrameErrorKind::BeyondAddressSpace { len };
        assert_eq!(
            error_of(&[2, 1, len], Prefix::None, NO_LIMITS),
            fault(16, kind)
        );
    }
}

// PROTOCOL FRAME-11
#[test]
#[cfg(target_pointer_width = "64")]
fn overflowing_length_sums_are_refused() {
    // 2^62 four times is 0, and with the 5 it would be a message of 5 bytes.
    let kind = FrameErrorKind::MessageTooLong {
        index: 3,
        limit: u64::MAX,
    };
    let quarter = 1 << 62;
    assert_eq!(
        error_of(
            &[5, quarter, quarter, quarter, quarter, 5],
            Prefix::None,
            NO_LIMITS
        ),
        fault(32, kind)
    );
    let kind = FrameErrorKind::MessageTooLong {
        index: 1,
        limit: 1 << 40,
    };
    assert_eq!(
        error_of(&[2, 1 << 40, 1 << 40], Prefix::None, Limits::HOST),
        fault(16, kind)
    );
}

#[test]
fn limits_are_exact() {
    let frames: [&[u8]; 3] = [b"12345", b"1234567", b"123"];
    let limits = |frame_count, frame_len, message_len| {
        Limits::HOST
            .with_frame_count(frame_count)
            .with_frame_len(frame_len)
            .with_message_len(message_len)
    };
    for prefix in PREFIXES {
        let bytes = message(prefix, &frames, 3);
        let head = match prefix {
            Prefix::None => 8,
            Prefix::U64 => 16,
        };
        let check = |limits: Limits, expected: Option<FrameError>| {
            let expected = expected.map_or(Ok(()), Err);
            assert_eq!(parse(&bytes, prefix, &limits).map(|_| ()), expected);
            let decoded = decode([&bytes[..]], prefix, limits, 64);
            assert_eq!(decoded.map(|_| ()), expected);
        };
        check(limits(3, 7, 15), None);
        check(limits(4, 8, 16), None);
        let kind = FrameErrorKind::TooManyFrames { count: 3, limit: 2 };
        check(limits(2, 7, 15), Some(fault(head - 8, kind)));
        let kind = FrameErrorKind::FrameTooLong {
            index: 1,
            len: 7,
            limit: 6,
        };
        check(limits(3, 6, 15), Some(fault(head + 8, kind)));
        let kind = FrameErrorKind::MessageTooLong {
            index: 2,
            limit: 14,
        };
        check(limits(3, 7, 14), Some(fault(head + 16, kind)));
    }
}

// The leading number.

// PROTOCOL FRAME-7, FRAME-8
#[test]
fn prefix_may_end_after_any_frame() {
    let frames: [&[u8]; 4] = [b"body", b"", b"header", b"payload"];
    let expected: Vec<_> = frames.iter().map(|frame| frame.to_vec()).collect();
    let mut ends = Vec::new();
    for covered in 0..=frames.len() {
        let bytes = message(Prefix::U64, &frames, covered);
        let value = u64::from_le_bytes(*bytes.first_chunk().unwrap());
        ends.push(value);
        let framed = FramedMessage::parse(&bytes, Prefix::U64, &Limits::HOST).unwrap();
        assert_eq!(framed.prefix_value, Some(value));
        assert_eq!(parse(&bytes, Prefix::U64, &Limits::HOST).unwrap(), expected);
        let mut decoder = FrameDecoder::new(Prefix::U64, [0; 64], Limits::HOST);
        push(&mut decoder, &bytes, &mut Store::new(64, 0)).unwrap();
    }
    assert_eq!(ends, [40, 44, 44, 50, 57]);

    // It may not end anywhere else.
    let whole = message(Prefix::U64, &frames, 4);
    for value in (0..70).chain([u64::MAX - 1, u64::MAX]) {
        let mut bytes = whole.clone();
        bytes[..8].copy_from_slice(&value.to_le_bytes());
        let kind = match value {
            // Up to 15 it is taken for a count, and the error is the same.
            0..=39 => FrameErrorKind::PrefixTooShort { value, min: 40 },
            41..=43 => FrameErrorKind::PrefixInsideFrame { value, index: 0 },
            45..=49 => FrameErrorKind::PrefixInsideFrame { value, index: 2 },
            51..=56 => FrameErrorKind::PrefixInsideFrame { value, index: 3 },
            58.. => FrameErrorKind::PrefixPastEnd { value, max: 57 },
            _ => {
                assert!(ends.contains(&value));
                assert_eq!(parse(&bytes, Prefix::U64, &Limits::HOST).unwrap(), expected);
                continue;
            }
        };
        let expected = Err(fault(0, kind));
        assert_eq!(parse(&bytes, Prefix::U64, &Limits::HOST), expected);
        assert_eq!(
            decode([&bytes[..]], Prefix::U64, Limits::HOST, 64),
            expected
        );
    }
}

// Buffers.

#[test]
fn former_buffer_contents_have_no_effect() {
    for (prefix, bytes) in messages() {
        let mut outcomes = Vec::new();
        for poison in [0xa5, 0x5a] {
            let mut decoder = FrameDecoder::new(prefix, [poison; 512], Limits::HOST);
            let mut storage = [poison; 1024];
            let mut arena = Arena::new(&mut storage);
            let taken = push(&mut decoder, &bytes, &mut arena).unwrap();
            assert_eq!(taken, bytes.len());
            let lengths: Vec<u64> = decoder.prelude().unwrap().lengths().collect();
            outcomes.push((lengths, arena.filled().to_vec()));
        }
        assert_eq!(outcomes[0], outcomes[1]);
    }
}

#[test]
fn arena_holds_frames_back_to_back() {
    let frames: [&[u8]; 5] = [b"body", b"", b"header", b"payload", b""];
    let bytes = message(Prefix::U64, &frames, 5);
    let mut storage = [0xa5; 17];
    let mut arena = Arena::new(&mut storage);
    let mut decoder = FrameDecoder::new(Prefix::U64, [0; 40], Limits::HOST);
    for _ in 0..3 {
        for byte in bytes.chunks(1) {
            push(&mut decoder, byte, &mut arena).unwrap();
        }
        assert_eq!(arena.filled(), b"bodyheaderpayload");
        let mut slots = [&b""[..]; 8];
        let prelude = decoder.prelude().unwrap();
        assert_eq!(prelude.split(arena.filled(), &mut slots).unwrap(), frames);
        decoder.reset();
    }
}

/// A store is reused for several messages and clears itself.
#[test]
fn each_message_replaces_the_one_before() {
    let shapes: [&[&[u8]]; 6] = [
        &[b"first"],
        &[b"", b"second", b"x"],
        &[b"", b""],
        &[b"a", b"", b"third"],
        &[b"", b"", b"", b"z"],
        &[b""],
    ];
    for one in shapes {
        for other in shapes {
            let stream = [message(Prefix::U64, one, 0), message(Prefix::U64, other, 0)].concat();
            for chunk_len in [1, 7, 48, stream.len()] {
                let mut storage = [0xa5; 16];
                let mut arena = Arena::new(&mut storage);
                let mut decoder = FrameDecoder::new(Prefix::U64, [0; 64], Limits::HOST);
                let mut seen = Vec::new();
                for mut chunk in stream.chunks(chunk_len) {
                    while decoder.push(&mut chunk, &mut arena).unwrap() {
                        let mut slots = [&b""[..]; 4];
                        let prelude = decoder.prelude().unwrap();
                        let frames = prelude.split(arena.filled(), &mut slots).unwrap();
                        seen.push(
                            frames
                                .iter()
                                .map(|frame| frame.to_vec())
                                .collect::<Vec<_>>(),
                        );
                        assert_eq!(arena.filled(), frames.concat());
                        decoder.reset();
                    }
                }
                assert_eq!(seen, [one, other], "chunks of {chunk_len}");
                // The same with reads into the space.
                let mut rest = &stream[..];
                for frames in [one, other] {
                    loop {
                        let space = decoder.space(&mut arena).unwrap();
                        if space.is_empty() {
                            break;
                        }
                        let len = space.len().min(chunk_len);
                        space[..len].copy_from_slice(&rest[..len]);
                        rest = &rest[len..];
                        decoder.advance(len).unwrap();
                    }
                    assert_eq!(arena.filled(), frames.concat());
                    decoder.reset();
                }
            }
        }
    }
}

/// A caller that never resets the decoder gets every message once.
#[test]
fn push_begins_the_next_message() {
    let frames: [&[u8]; 3] = [b"a", b"bc", b""];
    let stream = frames
        .map(|frame| message(Prefix::U64, &[frame], 0))
        .concat();
    for chunk_len in 1..=stream.len() {
        let mut storage = [0; 8];
        let mut arena = Arena::new(&mut storage);
        let mut decoder = FrameDecoder::new(Prefix::U64, [0; 16], Limits::HOST);
        let mut found = Vec::new();
        for mut chunk in stream.chunks(chunk_len) {
            while decoder.push(&mut chunk, &mut arena).unwrap() {
                found.push(arena.filled().to_vec());
                assert!(found.len() <= frames.len());
            }
            assert!(chunk.is_empty());
        }
        assert_eq!(found, frames);
        decoder.end().unwrap();
    }
}

#[test]
fn split_checks_slots_and_bytes() {
    let bytes = message(Prefix::None, &[b"abc", b"de"], 0);
    let framed = FramedMessage::parse(&bytes, Prefix::None, &Limits::HOST).unwrap();
    let error = framed.prelude.split(b"abcde", &mut [b""]).unwrap_err();
    let (needed, available) = (2, 1);
    let short = BufferTooSmall { needed, available };
    assert_eq!(error, SplitError::Slots(short));
    let error = framed.prelude.split(b"abcd", &mut [b"", b""]).unwrap_err();
    let (needed, available) = (5, 4);
    let short = BufferTooSmall { needed, available };
    assert_eq!(error, SplitError::Bytes(short));
    assert_eq!(framed.prelude.length(1), Some(2));
    assert_eq!(framed.prelude.length(2), None);
}

/// A store of fixed size that can be replaced by a larger one.
struct Fixed<'a>(&'a mut [u8]);

impl FrameBuffers for Fixed<'_> {
    fn buffer(&mut self, _: usize, len: usize, filled: usize) -> Option<&mut [u8]> {
        self.0.get_mut(filled..len)
    }
}

#[test]
fn full_storage_can_be_replaced() {
    let bytes = message(Prefix::U64, &[b"abc", b"0123456789"], 2);
    let (mut small, mut big) = ([0xa5; 4], [0xa5; 10]);
    let mut decoder = FrameDecoder::new(Prefix::U64, [0; 16], Limits::HOST);
    let (_, frames) = bytes.split_at(35);
    let kind = FrameErrorKind::NoBuffer {
        index: 1,
        len: 10,
        frames_len: 13,
    };
    let full = fault(35, kind);
    let mut rest = &bytes[..];
    for _ in 0..2 {
        let outcome = decoder.push(&mut rest, &mut Fixed(&mut small));
        assert_eq!(outcome, Err(full), "it is no end of the stream");
        assert_eq!(rest, frames, "what was taken is not in the input");
    }
    let wanted = Wanted::Frame {
        index: 1,
        len: 10,
        filled: 0,
    };
    assert_eq!(decoder.wanted(), Ok(wanted));
    let taken = push(&mut decoder, &frames[..4], &mut Fixed(&mut big)).unwrap();
    assert_eq!(taken, 4);
    assert_eq!(
        decoder.space(&mut Fixed(&mut small)),
        Err(fault(39, full.kind)),
        "within the frame"
    );
    push(&mut decoder, &frames[4..], &mut Fixed(&mut big)).unwrap();
    assert!(decoder.is_complete());
    assert_eq!(&small[..3], b"abc");
    assert_eq!(&big, b"0123456789");

    let mut nothing = Fixed(&mut []);
    decoder.reset();
    let kind = FrameErrorKind::NoBuffer {
        index: 0,
        len: 3,
        frames_len: 13,
    };
    let mut rest = &bytes[..];
    let outcome = decoder.push(&mut rest, &mut nothing);
    assert_eq!(outcome, Err(fault(32, kind)));
    assert_eq!(rest.len(), 13);
    assert_eq!(push(&mut decoder, b"", &mut nothing), Ok(0));
}

/// The sizes in errors are sufficient, and no byte is lost when the frames get
/// the size reported.
#[test]
fn retry_with_the_size_reported_succeeds() {
    for (prefix, bytes) in messages() {
        let expected = FramedMessage::parse(&bytes, prefix, &Limits::HOST).unwrap();
        let mut none = FrameDecoder::new(prefix, [0_u8; 0], Limits::HOST);
        let error = none
            .push(&mut &bytes[..], &mut Arena::new(&mut []))
            .unwrap_err();
        let FrameErrorKind::PreludeStorage(short) = error.kind else {
            panic!("{error}");
        };
        assert_eq!(short.available, 0);
        assert!(error.is_caller_fault());
        for chunk_len in [1, 9, bytes.len()] {
            let mut table = vec![0xa5; short.needed];
            let mut room = Vec::new();
            let mut decoder = FrameDecoder::new(prefix, &mut table[..], Limits::HOST);
            let mut arena = Arena::new(&mut []);
            let mut retries = 0;
            for mut chunk in bytes.chunks(chunk_len) {
                while let Err(error) = decoder.push(&mut chunk, &mut arena) {
                    retries += 1;
                    let FrameErrorKind::NoBuffer { frames_len, .. } = error.kind else {
                        panic!("{error}");
                    };
                    room.push(vec![0xa5; usize::try_from(frames_len).unwrap()].leak());
                    arena = Arena::new(core::mem::take(room.last_mut().unwrap()));
                }
            }
            assert!(retries <= 1, "{retries}");
            assert_eq!(decoder.prelude(), Some(expected.prelude));
            assert_eq!(arena.filled(), expected.frames);
        }
    }
}

#[test]
fn small_prelude_storage_is_a_caller_error() {
    let bytes = message(Prefix::None, &[b"a", b"b", b"c"], 0);
    for (storage_len, fits) in [(0, false), (23, false), (24, true), (25, true)] {
        let mut storage = [0xa5; 25];
        let mut decoder =
            FrameDecoder::new(Prefix::None, &mut storage[..storage_len], Limits::HOST);
        let mut store = Store::new(64, 0);
        let mut rest = &bytes[..];
        let outcome = decoder.push(&mut rest, &mut store);
        if fits {
            assert_eq!(outcome, Ok(true));
        } else {
            assert_eq!(rest, &bytes[8..]);
            let too_small = BufferTooSmall {
                needed: 24,
                available: storage_len,
            };
            let kind = FrameErrorKind::PreludeStorage(too_small);
            assert_eq!(outcome, Err(fault(0, kind)));
        }
    }
}

#[test]
fn overrun_is_final() {
    let bytes = message(Prefix::U64, &[b"abc"], 1);
    for (fed, space, at) in [
        (0, 16, 0),
        (3, 13, 3),
        (16, 8, 16),
        (20, 4, 20),
        (25, 2, 25),
    ] {
        let mut decoder = FrameDecoder::new(Prefix::U64, [0; 8], Limits::HOST);
        let mut store = Store::new(64, 0);
        push(&mut decoder, &bytes[..fed], &mut store).unwrap();
        let room = decoder.space(&mut store).unwrap().len();
        assert_eq!(room, space);
        let advanced = space + 1;
        let error = fault(at, FrameErrorKind::Overrun { advanced, space });
        assert_eq!(decoder.advance(advanced), Err(error));
        // The error is final.
        assert_eq!(decoder.advance(0), Err(error));
        assert_eq!(decoder.space(&mut store), Err(error));
        assert_eq!(decoder.wanted(), Err(error));
        assert_eq!(push(&mut decoder, b"", &mut store), Err(error));
        assert_eq!(decoder.end(), Err(error));
        assert_eq!(decoder.prelude(), None);
        decoder.reset();
        assert!(decoder.is_idle());
    }
    let mut decoder = FrameDecoder::new(Prefix::U64, [0; 8], Limits::HOST);
    let mut store = Store::new(64, 0);
    push(&mut decoder, &bytes, &mut store).unwrap();
    assert_eq!(decoder.advance(0), Ok(()));
    assert!(decoder.advance(usize::MAX).is_err());
}

#[test]
fn limits_can_change_between_messages() {
    let bytes = message(Prefix::U64, &[&[7; 100]], 1);
    let tight = Limits::HOST.with_frame_len(99);
    let mut decoder = FrameDecoder::new(Prefix::U64, [0; 8], tight);
    let mut store = Store::new(usize::MAX, 0);
    let error = push(&mut decoder, &bytes, &mut store).unwrap_err();
    assert!(matches!(error.kind, FrameErrorKind::FrameTooLong { .. }));
    decoder.reset_with(Limits::HOST);
    assert_eq!(push(&mut decoder, &bytes, &mut store), Ok(bytes.len()));
    decoder.reset();
    assert_eq!(push(&mut decoder, &bytes, &mut store), Ok(bytes.len()));
    decoder.reset_with(tight);
    let again = push(&mut decoder, &bytes, &mut store).unwrap_err();
    assert_eq!(again, error);
}

/// A read that is dropped before it reports has no effect: the same space is
/// returned again.
#[test]
fn space_does_not_change_the_decoder() {
    for (prefix, bytes) in messages() {
        let expected = parse(&bytes, prefix, &Limits::HOST).unwrap();
        let mut decoder = FrameDecoder::new(prefix, [0; 512], Limits::HOST);
        let mut store = Store::new(64, 0xa5);
        let mut rest = &bytes[..];
        loop {
            let wanted = decoder.wanted().unwrap();
            let len = decoder.space(&mut store).unwrap().len();
            // As if a read had written something and was then dropped.
            decoder.space(&mut store).unwrap().fill(0x5a);
            assert_eq!(decoder.wanted().unwrap(), wanted);
            let space = decoder.space(&mut store).unwrap();
            assert_eq!(space.len(), len);
            let count = len.min(3).min(rest.len());
            if len == 0 {
                break;
            }
            space[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            decoder.advance(count).unwrap();
        }
        assert_eq!(decoder.wanted(), Ok(Wanted::Nothing));
        let count = decoder.prelude().unwrap().frame_count();
        assert_eq!(store.finish(count), expected);
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn huge_frames_can_be_declared() {
    let len = 5_usize << 30;
    let bytes = prelude(&[2, len as u64, 1 << 40]);
    let mut decoder = FrameDecoder::new(Prefix::None, [0; 16], NO_LIMITS);
    // A store that has a window of 16 bytes and forgets what went through it.
    struct Window([u8; 16]);
    impl FrameBuffers for Window {
        fn buffer(&mut self, _: usize, _: usize, _: usize) -> Option<&mut [u8]> {
            Some(&mut self.0)
        }
    }
    let mut window = Window([0; 16]);
    push(&mut decoder, &bytes, &mut window).unwrap();
    assert_eq!(decoder.space(&mut window).unwrap().len(), 16);
    // Bytes read to other memory are counted as well.
    decoder.advance(len - 10).unwrap();
    assert_eq!(decoder.space(&mut window).unwrap().len(), 10);
    decoder.advance(10).unwrap();
    let wanted = Wanted::Frame {
        index: 1,
        len: 1 << 40,
        filled: 0,
    };
    assert_eq!(decoder.wanted(), Ok(wanted));
    decoder.advance((1 << 40) - 1).unwrap();
    let needed = 24 + (5 << 30) + (1 << 40);
    let truncated = FrameErrorKind::Truncated { needed };
    assert_eq!(decoder.end(), Err(fault(needed - 1, truncated)));
    decoder.advance(1).unwrap();
    assert!(decoder.is_complete());

    let fixed = &mut Fixed(&mut []);
    decoder.reset();
    let kind = FrameErrorKind::NoBuffer {
        index: 0,
        len,
        frames_len: (5 << 30) + (1 << 40),
    };
    assert_eq!(push(&mut decoder, &bytes, fixed), Ok(24));
    assert_eq!(push(&mut decoder, b"x", fixed), Err(fault(24, kind)));
}

// Writing.

// PROTOCOL FRAME-9
#[test]
fn encoded_preludes_match_the_newest_release() {
    let mut out = [0xa5; 24];
    let len = encode_prelude(Prefix::U64, [42], &mut out).unwrap();
    assert_eq!(out[..len], HANDSHAKE[..24]);
    let len = encode_prelude(Prefix::None, [0, 42], &mut out).unwrap();
    assert_eq!(out[..len], prelude(&[2, 0, 42]));
    assert_eq!(prelude_len(Prefix::None, 0), Some(8));
    assert_eq!(prelude_len(Prefix::U64, 2), Some(32));
    assert_eq!(prelude_len(Prefix::U64, usize::MAX / 8), None);
    assert_eq!(prelude_len(Prefix::None, usize::MAX), None);
}

// PROTOCOL FRAME-7, FRAME-9
#[test]
fn large_frames_are_read_apart() {
    const SHARD: u64 = SHARD_LEN as u64;
    // The lengths of frames, and how many of them are read at once.
    let cases: [(&[u64], usize); 11] = [
        (&[0], 1),
        (&[100, 200, 2048], 3),
        (&[100, 1_000_000], 2),
        (&[2048, 1_000_000, 10, 20], 4),
        (&[100, 1_000_000, 10, 1_000_000], 3),
        (&[100, 3000, 3000, 3000], 2),
        // A body that is not small beside the first buffer
        (&[5000, 10_000], 1),
        (&[5000, 100_000], 2),
        (&[5000, 99_999], 1),
        (&[6000], 1),
        // The shards of one buffer stay together.
        (&[100, SHARD, SHARD - 8, 5000, 5000], 4),
    ];
    for (lengths, count) in cases {
        let mut out = vec![0; prelude_len(Prefix::U64, lengths.len()).unwrap()];
        let apart = |out: &mut [u8]| {
            let lengths = lengths.iter().copied();
            encode_prelude_with(Prefix::U64, ReadHint::Apart, lengths, out).unwrap()
        };
        let len = apart(&mut out);
        assert_eq!(len, out.len());
        let first: u64 = lengths[..count].iter().sum();
        let hint = u64::from_le_bytes(out[..8].try_into().unwrap());
        assert_eq!(hint, len as u64 - 8 + first, "{lengths:?}");
        // All else is as with other hints.
        let mut whole = out.clone();
        encode_prelude(Prefix::U64, lengths.iter().copied(), &mut whole).unwrap();
        assert_eq!(out[8..], whole[8..]);
        // Without a prefix there is no hint.
        let mut bare = vec![0; len - 8];
        let lengths = lengths.iter().copied();
        encode_prelude_with(Prefix::None, ReadHint::Apart, lengths, &mut bare).unwrap();
        assert_eq!(bare, out[8..]);
    }
}

#[test]
fn encode_prelude_leaves_a_small_buffer_unchanged() {
    for prefix in PREFIXES {
        let needed = prelude_len(prefix, 3).unwrap();
        for available in 0..needed {
            let mut out = vec![0xa5; available];
            let error = encode_prelude(prefix, [1, 2, 3], &mut out).unwrap_err();
            let too_small = BufferTooSmall { needed, available };
            assert_eq!(error, EncodeError::BufferTooSmall(too_small));
            assert!(out.iter().all(|byte| *byte == 0xa5));
        }
        assert_eq!(
            encode_prelude(prefix, [], &mut [0; 16]),
            Err(EncodeError::NoFrames)
        );
    }
    let mut out = [0xa5; 32];
    let lengths = [u64::MAX - 24, 1];
    assert_eq!(
        encode_prelude(Prefix::U64, lengths, &mut out),
        Err(EncodeError::TooLong)
    );
    assert_eq!(out, [0xa5; 32]);
    let lengths = [u64::MAX - 24, 0];
    assert_eq!(encode_prelude(Prefix::U64, lengths, &mut out), Ok(32));
    assert_eq!(out[..8], u64::MAX.to_le_bytes());
}

#[cfg(feature = "alloc")]
mod alloc {
    use super::*;

    #[test]
    fn vec_storage_holds_every_message() {
        for (prefix, bytes) in messages() {
            let expected = parse(&bytes, prefix, &Limits::HOST).unwrap();
            for chunk_len in [1, 13, bytes.len()] {
                let mut decoder = FrameDecoder::new(prefix, Vec::new(), Limits::HOST);
                let mut frames: Vec<Vec<u8>> = Vec::new();
                // Twice, so that the second time the table exists already.
                for _ in 0..2 {
                    for chunk in bytes.chunks(chunk_len) {
                        push(&mut decoder, chunk, &mut frames).unwrap();
                    }
                    let lengths: Vec<u64> = decoder.prelude().unwrap().lengths().collect();
                    frames.resize_with(lengths.len(), Vec::new);
                    assert_eq!(frames, expected);
                    decoder.reset();
                }
            }
        }
    }

    #[test]
    fn vec_frames_grow_with_the_bytes_that_arrive() {
        let bytes = [prelude(&[2, 1 << 30, 1 << 29]), vec![7; 10]].concat();
        let mut decoder = FrameDecoder::new(Prefix::None, Vec::new(), Limits::HOST);
        let mut frames: Vec<Vec<u8>> = Vec::new();
        push(&mut decoder, &bytes, &mut frames).unwrap();
        decoder.space(&mut frames).unwrap();
        assert_eq!(frames.len(), 1);
        assert!(frames[0].capacity() <= 8192, "{}", frames[0].capacity());

        // Later at most twice the bytes arrived, plus a step.
        let mut arrived = 10;
        for _ in 0..100 {
            let chunk = [7; 5000];
            arrived += push(&mut decoder, &chunk, &mut frames).unwrap();
            let limit = 2 * arrived + 8192;
            assert!(frames[0].capacity() <= limit, "{}", frames[0].capacity());
        }
    }

    #[test]
    fn vec_prelude_grows_with_the_bytes_that_arrive() {
        let bytes = [prelude(&[1 << 20]), vec![0; 80]].concat();
        let mut decoder = FrameDecoder::new(Prefix::None, Vec::new(), Limits::HOST);
        let mut frames: Vec<Vec<u8>> = Vec::new();
        push(&mut decoder, &bytes, &mut frames).unwrap();
        let space = decoder.space(&mut frames).unwrap().len();
        assert!(space <= 4096, "{space}");

        // A million empty frames are a message, and take no buffers.
        let rest = vec![0; (8 << 20) - 80];
        push(&mut decoder, &rest, &mut frames).unwrap();
        assert!(decoder.is_complete());
        assert_eq!(decoder.prelude().unwrap().frame_count(), 1 << 20);
        assert!(frames.is_empty());
    }
}
