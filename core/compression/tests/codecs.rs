//! Tests of the codecs against the libraries that peers use, and with damaged
//! frames.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use daskwire_compression::{
    BufferTooSmall, Codec, Compression, CompressionError, Lz4, Policy, Snappy, Zlib, decompress,
    decompress_onto, decompressed_len,
};

/// The limit of decompressed data where it does not matter, in bytes.
const MAX_LEN: u64 = 1 << 31;

/// A generator of pseudo-random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % (bound.max(1) as u64)).unwrap()
    }
}

/// `len` bytes of one of six kinds, some similar to arrays.
fn payload(random: &mut Random, len: usize) -> Vec<u8> {
    match random.below(6) {
        0 => (0..len).map(|_| random.next() as u8).collect(),
        1 => {
            let period = 1 + random.below(40);
            let cycle: Vec<u8> = (0..period).map(|_| random.next() as u8).collect();
            cycle.into_iter().cycle().take(len).collect()
        }
        2 => (0..len as u64)
            .flat_map(u64::to_le_bytes)
            .take(len)
            .collect(),
        3 => (0..len).map(|_| b"abcd"[random.below(4)]).collect(),
        4 => {
            // Repeated pieces of earlier data, near and far, between new bytes.
            let mut bytes = Vec::new();
            while bytes.len() < len {
                let count = 1 + random.below(90);
                if bytes.is_empty() || random.below(3) == 0 {
                    bytes.extend((0..count).map(|_| random.next() as u8));
                } else {
                    let from = bytes.len() - 1 - random.below(bytes.len());
                    for at in from..from + count {
                        bytes.push(bytes[at]);
                    }
                }
            }
            bytes.truncate(len);
            bytes
        }
        _ => (0..len.div_ceil(8))
            .flat_map(|_| (random.below(1000) as f64).to_le_bytes())
            .take(len)
            .collect(),
    }
}

fn payloads(seed: u64, count: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut random = Random(seed);
    let small = 0..300;
    let mut lens: Vec<usize> = small.collect();
    lens.extend([65_534, 65_535, 65_536, 65_537, 70_000, 131_072, 300_001]);
    while lens.len() < count {
        lens.push(random.below(20_000));
    }
    lens.into_iter().map(move |len| payload(&mut random, len))
}

fn compress(compression: &mut dyn Compression, payload: &[u8]) -> Vec<u8> {
    let room = compression.max_compressed_len(payload.len()).unwrap();
    // Exactly the length requested.
    let mut out = vec![0xee; room];
    let len = compression.compress(payload, &mut out).unwrap();
    out.truncate(len);
    let mut short = vec![0xee; room - 1];
    let error = compression.compress(payload, &mut short).unwrap_err();
    let too_small = BufferTooSmall {
        needed: room,
        available: room - 1,
    };
    assert_eq!(error, CompressionError::BufferTooSmall(too_small));
    assert!(error.is_caller_fault());
    assert!(!CompressionError::OverLimit { limit: 1 }.is_caller_fault());
    assert!(short.iter().all(|byte| *byte == 0xee));
    out
}

fn to_lz4(payload: &[u8]) -> Vec<u8> {
    compress(&mut Lz4::new(), payload)
}

fn to_snappy(payload: &[u8]) -> Vec<u8> {
    compress(&mut Snappy::new(), payload)
}

/// Decompresses twice, into buffers with different former contents, and checks
/// that the results agree.
fn from(codec: Codec, src: &[u8], room: usize) -> Result<Vec<u8>, CompressionError> {
    let outcomes = [0xa5, 0x5a].map(|filler| {
        let mut dst = vec![filler; room];
        let written = decompress(codec, src, &mut dst, MAX_LEN)?;
        if codec != Codec::Zlib {
            // No byte after the payload is written.
            assert!(dst[written..].iter().all(|byte| *byte == filler));
        }
        dst.truncate(written);
        Ok(dst)
    });
    let [first, second] = outcomes;
    assert_eq!(first, second, "bytes from before show");
    first
}

// PROTOCOL COMPRESS-1
#[test]
fn lz4_agrees_with_the_c_library_and_with_lz4_flex() {
    for payload in payloads(0x1234_5678, 1500) {
        let ours = to_lz4(&payload);
        let len = payload.len();
        assert_eq!(
            decompressed_len(Codec::Lz4, &ours, MAX_LEN),
            Ok(Some(len as u64))
        );
        assert_eq!(from(Codec::Lz4, &ours, len).unwrap(), payload);
        assert_eq!(from(Codec::Lz4, &ours, len + 100).unwrap(), payload);
        assert_eq!(::lz4::block::decompress(&ours, None).unwrap(), payload);
        let mut flex = vec![0; len];
        assert_eq!(
            lz4_flex::block::decompress_into(&ours[4..], &mut flex).ok(),
            Some(len)
        );
        assert_eq!(flex, payload);

        let theirs = ::lz4::block::compress(&payload, None, true).unwrap();
        assert_eq!(from(Codec::Lz4, &theirs, len).unwrap(), payload);
        let high = ::lz4::block::CompressionMode::HIGHCOMPRESSION(9);
        let theirs = ::lz4::block::compress(&payload, Some(high), true).unwrap();
        assert_eq!(from(Codec::Lz4, &theirs, len).unwrap(), payload);
        let mut flex = vec![0; 24 + len * 11 / 10];
        let flex_len = lz4_flex::block::compress_into(&payload, &mut flex[4..]).unwrap();
        flex[..4].copy_from_slice(&(len as u32).to_le_bytes());
        assert_eq!(
            from(Codec::Lz4, &flex[..4 + flex_len], len).unwrap(),
            payload
        );
    }
}

// PROTOCOL COMPRESS-2
#[test]
fn snappy_agrees_with_the_snap_crate() {
    for payload in payloads(0x8765_4321, 1500) {
        let ours = to_snappy(&payload);
        let len = payload.len();
        let theirs = snap::raw::Encoder::new().compress_vec(&payload).unwrap();
        assert_eq!(from(Codec::Snappy, &theirs, len).unwrap(), payload);
        let read = snap::raw::Decoder::new().decompress_vec(&ours).unwrap();
        assert_eq!(read, payload);
        assert_eq!(
            decompressed_len(Codec::Snappy, &ours, MAX_LEN),
            Ok(Some(len as u64))
        );
        assert_eq!(from(Codec::Snappy, &ours, len).unwrap(), payload);
        assert_eq!(from(Codec::Snappy, &ours, len + 100).unwrap(), payload);
    }
}

#[test]
fn small_tables_compress_data_of_any_length() {
    fn check<const SLOTS: usize>(payload: &[u8]) {
        let ours = compress(&mut Snappy::<SLOTS>::sized(), payload);
        let read = snap::raw::Decoder::new().decompress_vec(&ours).unwrap();
        assert_eq!(read, payload);
        // Data that is as short as the table uses as much of a larger one.
        if payload.len() <= SLOTS {
            assert_eq!(ours, to_snappy(payload));
        }
    }
    for payload in payloads(0x5eed, 400) {
        check::<256>(&payload);
        check::<1024>(&payload);
        check::<8192>(&payload);
    }
}

#[test]
fn compressors_are_reusable() {
    let (mut used_lz4, mut used_snappy) = (Lz4::default(), Snappy::default());
    for payload in payloads(0xfeed, 400) {
        // Earlier use of a compressor makes no difference.
        let lz4 = compress(&mut used_lz4, &payload);
        assert!(lz4 == to_lz4(&payload));
        let snappy = compress(&mut used_snappy, &payload);
        assert!(snappy == to_snappy(&payload));
    }
}

/// Every truncation, and every single bit flipped, of small frames.
fn damaged(frame: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let cut = (0..frame.len()).map(|len| frame[..len].to_vec());
    let flipped = (0..frame.len() * 8).map(|bit| {
        let mut frame = frame.to_vec();
        frame[bit / 8] ^= 1 << (bit % 8);
        frame
    });
    cut.chain(flipped)
}

fn small_payloads() -> Vec<Vec<u8>> {
    let mut random = Random(99);
    let lens = [0, 1, 5, 12, 13, 17, 40, 64, 100, 300];
    lens.iter()
        .flat_map(|len| [*len; 6])
        .map(|len| payload(&mut random, len))
        .collect()
}

#[test]
fn damaged_snappy_is_read_as_by_the_snap_crate() {
    let mut read = 0;
    for payload in small_payloads() {
        for frame in damaged(&to_snappy(&payload)) {
            let ours = from(Codec::Snappy, &frame, 2000);
            // We refuse an implausible length before allocating.
            if matches!(ours, Err(CompressionError::Implausible { .. })) {
                continue;
            }
            let theirs = snap::raw::Decoder::new().decompress_vec(&frame);
            // snap accepts an empty input as an empty payload; Python does not.
            assert!(ours.as_ref().ok() == theirs.as_ref().ok() || frame.is_empty());
            read += usize::from(ours.is_ok());
        }
    }
    assert!(read > 1000, "{read}");
}

#[test]
fn damaged_lz4_is_read_as_by_lz4_flex() {
    let mut read = 0;
    for payload in small_payloads() {
        for frame in damaged(&to_lz4(&payload)) {
            let ours = from(Codec::Lz4, &frame, 2000);
            let Some((declared, block)) = frame.split_first_chunk() else {
                assert!(matches!(ours, Err(CompressionError::Malformed { .. })));
                continue;
            };
            let declared = u32::from_le_bytes(*declared) as usize;
            if declared > 2000 {
                assert!(ours.is_err());
                continue;
            }
            let mut theirs = vec![0xa5; declared];
            let written = lz4_flex::block::decompress_into(block, &mut theirs).ok();
            match &ours {
                Ok(ours) => {
                    assert_eq!(written, Some(declared));
                    assert_eq!(*ours, theirs);
                    read += 1;
                }
                // lz4_flex accepts an offset of 0, which the format forbids.
                Err(CompressionError::Malformed { reason, .. })
                    if *reason == "a match begins before the data" => {}
                Err(_) => assert_ne!(written, Some(declared)),
            }
        }
    }
    assert!(read > 1000, "{read}");
}

/// A frame of `declared` bytes: a literal, then copies of maximum length.
fn lz4_run(declared: u32, block_len: usize) -> Vec<u8> {
    let mut frame = declared.to_le_bytes().to_vec();
    frame.extend([0x1f, 0, 1, 0]);
    frame.resize(4 + block_len, 255);
    frame
}

#[test]
fn implausible_declared_lengths_are_refused() {
    let check = |codec: Codec, frame: &[u8], declared: u64, most: u64| {
        let expected = match declared <= most {
            true => Ok(Some(declared)),
            false => Err(CompressionError::Implausible {
                declared,
                len: frame.len(),
                ratio: codec.max_ratio(),
            }),
        };
        assert_eq!(decompressed_len(codec, frame, MAX_LEN), expected);
        let mut dst = [0x5a; 50_000];
        let outcome = decompress(codec, frame, &mut dst, MAX_LEN);
        if declared > most {
            assert_eq!(outcome.map(|_| None), expected);
            assert_eq!(dst, [0x5a; 50_000], "written before the check");
        } else {
            assert!(matches!(outcome, Err(CompressionError::Malformed { .. })));
        }
    };
    for block_len in [5, 17, 100] {
        let most = 255 * (4 + block_len) as u64;
        for declared in [most - 1, most, most + 1] {
            let frame = lz4_run(declared as u32, block_len);
            check(Codec::Lz4, &frame, declared, most);
        }
        let most = 22 * (2 + block_len) as u64;
        for declared in [most - 1, most, most + 1] {
            let mut frame = Vec::new();
            let mut rest = declared;
            while rest >= 128 {
                frame.push(rest as u8 | 128);
                rest >>= 7;
            }
            frame.push(rest as u8);
            assert!(frame.len() <= 2);
            frame.resize(2 + block_len, 0xff);
            check(Codec::Snappy, &frame, declared, most);
        }
    }
    // An empty frame is not a payload; an empty payload is.
    assert!(from(Codec::Lz4, &lz4_run(1, 0), 1).is_err());
    assert_eq!(from(Codec::Lz4, &[0; 5], 0), Ok(vec![]));
    assert_eq!(from(Codec::Snappy, &[0], 0), Ok(vec![]));
}

#[test]
fn compressors_stay_within_the_maximum_ratio() {
    // The best case of the formats: one long run.
    let zeros = vec![0; 1 << 20];
    for (codec, frame) in [
        (Codec::Lz4, to_lz4(&zeros)),
        (Codec::Snappy, to_snappy(&zeros)),
    ] {
        assert_eq!(from(codec, &frame, zeros.len()).unwrap(), zeros);
        let ratio = zeros.len() as u64 / frame.len() as u64;
        let most = codec.max_ratio();
        assert!(ratio < most && ratio + 3 > most, "{codec} {ratio}");
    }
}

#[test]
fn decompress_onto_agrees_with_decompress() {
    let payload: Vec<u8> = (0..300_000_u32).map(|n| (n / 7000) as u8).collect();
    let frames = [
        (Codec::Lz4, to_lz4(&payload)),
        (Codec::Snappy, to_snappy(&payload)),
        (
            Codec::Zlib,
            miniz_oxide::deflate::compress_to_vec_zlib(&payload, 6),
        ),
        (Codec::Zstd, to_zstd(&payload)),
    ];
    for (codec, frame) in frames {
        let mut out = b"before".to_vec();
        let len = decompress_onto(codec, &frame, &mut out, MAX_LEN);
        assert_eq!(len, Ok(payload.len()), "{codec}");
        assert_eq!(out, [b"before", &payload[..]].concat(), "{codec}");
        let limit = payload.len() as u64;
        let mut out = b"before".to_vec();
        assert_eq!(
            decompress_onto(codec, &frame, &mut out, limit),
            Ok(payload.len()),
            "{codec}"
        );
        let mut out = b"before".to_vec();
        assert_eq!(
            decompress_onto(codec, &frame, &mut out, limit - 1),
            Err(CompressionError::OverLimit { limit: limit - 1 }),
            "{codec}"
        );
        let cut = &frame[..frame.len() - 1];
        let error = decompress_onto(codec, cut, &mut out, MAX_LEN);
        assert!(
            matches!(error, Err(CompressionError::Malformed { .. })),
            "{codec}: {error:?}"
        );
        assert_eq!(out, b"before", "{codec}");
    }
}

#[test]
fn the_limit_and_the_buffer_are_checked_before_anything_is_written() {
    let payload = [7; 1000];
    for (codec, frame) in [
        (Codec::Lz4, to_lz4(&payload)),
        (Codec::Snappy, to_snappy(&payload)),
    ] {
        let mut dst = [0xa5; 1000];
        let over = Err(CompressionError::OverLimit { limit: 999 });
        assert_eq!(decompress(codec, &frame, &mut dst, 999), over);
        assert_eq!(decompressed_len(codec, &frame, 999).map(|_| 0), over);
        let needed = BufferTooSmall {
            needed: 1000,
            available: 999,
        };
        assert_eq!(
            decompress(codec, &frame, &mut dst[..999], 1000),
            Err(CompressionError::BufferTooSmall(needed))
        );
        assert_eq!(dst, [0xa5; 1000]);
        assert_eq!(decompress(codec, &frame, &mut dst, 1000), Ok(1000));
        assert_eq!(dst, payload);
    }
}

#[test]
fn faults_are_reported_with_their_offset() {
    const ENDS: &str = "it ends too early";
    const NO_LENGTH: &str = "it ends within the declared length";
    const MATCH: &str = "a match begins before the data";
    const MORE: &str = "the block holds more than the declared length";
    const LESS: &str = "the block holds less than the declared length";
    // PROTOCOL COMPRESS-1
    let lz4: &[(&[u8], usize, &str)] = &[
        (&[], 0, NO_LENGTH),
        (&[1, 0, 0], 0, NO_LENGTH),
        (&[5, 0, 0, 0, 0x50, 1, 2], 5, ENDS),
        (&[20, 0, 0, 0, 0x10, 1, 0, 0, 0], 8, MATCH),
        (&[20, 0, 0, 0, 0x10, 1, 2, 0, 0], 8, MATCH),
        (&[20, 0, 0, 0, 0x10, 1, 1, 0], 8, ENDS),
        (&[20, 0, 0, 0, 0x10, 1, 1], 6, ENDS),
        (&[20, 0, 0, 0, 0x1f, 1, 1, 0, 255], 9, ENDS),
        (&[4, 0, 0, 0, 0x10, 1, 1, 0, 0], 8, MORE),
        (&[6, 0, 0, 0, 0x10, 1, 1, 0, 0], 9, LESS),
        (&[1, 0, 0, 0, 0x20, 1, 2], 7, MORE),
        (&[0, 0, 0, 0, 0, 0], 5, ENDS),
    ];
    const NO_VARINT: &str = "it ends within its length";
    const COPY: &str = "a copy begins before the data";
    const LONG: &str = "it holds more than the declared length";
    const SHORT: &str = "it holds less than the declared length";
    // PROTOCOL COMPRESS-2
    let snappy: &[(&[u8], usize, &str)] = &[
        (&[], 0, NO_VARINT),
        (&[0x80, 0x80], 2, NO_VARINT),
        (
            &[255, 255, 255, 255, 0x10, 0],
            5,
            "its length takes more than 32 bits",
        ),
        (
            &[128, 128, 128, 128, 128, 0],
            5,
            "its length takes more than 5 bytes",
        ),
        (&[5, 0x00, 1, 0x01, 0], 5, COPY),
        (&[5, 0x00, 1, 0x01, 2], 5, COPY),
        (&[4, 0x00, 1, 0x01, 1], 5, LONG),
        (&[5, 0x00, 1, 0x01], 4, ENDS),
        (&[5, 0x00, 1, 0x0e, 1], 4, ENDS),
        (&[5, 0x00, 1, 0x0f, 1, 0, 0], 4, ENDS),
        (&[5, 0x10, 1, 2], 2, ENDS),
        (&[5, 0xf0], 2, ENDS),
        (&[2, 0x04, 1, 2, 0x00, 3], 6, LONG),
        (&[3, 0x04, 1, 2], 4, SHORT),
    ];
    for (codec, cases) in [(Codec::Lz4, lz4), (Codec::Snappy, snappy)] {
        for &(frame, at, reason) in cases {
            assert_eq!(
                from(codec, frame, 100),
                Err(CompressionError::Malformed { codec, at, reason }),
                "{codec} {frame:02x?}"
            );
        }
    }
}

/// A codec that records its calls and returns scripted lengths.
struct Scripted {
    results: Vec<usize>,
    asked: Vec<Vec<u8>>,
}

impl Compression for Scripted {
    fn codec(&self) -> Codec {
        Codec::Lz4
    }
    fn max_compressed_len(&self, len: usize) -> Option<usize> {
        (len <= 1_000_000).then_some(len + 10)
    }
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CompressionError> {
        assert!(dst.len() >= src.len() + 10);
        self.asked.push(src.to_vec());
        let len = self.results.remove(0);
        dst[..len].fill(0xcc);
        Ok(len)
    }
}

/// The result of the policy, and the data that was compressed.
fn decide(
    policy: Policy,
    payload: &[u8],
    results: &[usize],
    random: &mut dyn FnMut(u64) -> u64,
) -> (Option<usize>, Vec<Vec<u8>>) {
    let mut scripted = Scripted {
        results: results.to_vec(),
        asked: vec![],
    };
    let needed = policy.scratch_len(&scripted, payload.len());
    if let Some(short) = needed.checked_sub(1) {
        let too_small = BufferTooSmall {
            needed,
            available: short,
        };
        let mut scratch = vec![0; short];
        let outcome = policy.maybe_compress(&mut scripted, payload, &mut scratch, random);
        assert_eq!(outcome, Err(CompressionError::BufferTooSmall(too_small)));
    }
    let mut scratch = vec![0; needed];
    let outcome = policy
        .maybe_compress(&mut scripted, payload, &mut scratch, random)
        .unwrap();
    assert!(outcome.is_none_or(|sent| sent.iter().all(|byte| *byte == 0xcc)));
    (outcome.map(<[u8]>::len), scripted.asked)
}

fn no_draw(_: u64) -> u64 {
    panic!("no sample is to be taken")
}

/// What Dask's protocol page says: more than 1 kB, a gain of 10 %.
const DOCUMENTED: Policy = Policy::DASK
    .with_min_len(1001)
    .with_max_len(u64::MAX)
    .with_max_percent(90);

// PROTOCOL COMPRESS-7
#[test]
fn only_frames_within_the_length_bounds_are_compressed() {
    let always = |policy: Policy| policy.with_sample_count(0);
    let sent = |policy, len: usize| {
        let results = &[1][..];
        decide(always(policy), &vec![0; len], results, &mut no_draw)
            .0
            .is_some()
    };
    assert!(!sent(Policy::DASK, 9_999));
    assert!(sent(Policy::DASK, 10_000));
    assert!(!sent(DOCUMENTED, 1_000));
    assert!(sent(DOCUMENTED, 1_001));
    let short = Policy::DASK.with_max_len(20_000);
    assert!(sent(short, 20_000));
    assert!(!sent(short, 20_001));
    // The codec's own limit is not an error either.
    assert!(sent(Policy::DASK, 1_000_000));
    assert!(!sent(Policy::DASK, 1_000_001));
    assert_eq!(Policy::DASK.max_len, 2_147_483_648);
    assert_eq!(Policy::default(), Policy::DASK);
    assert!(!sent(Policy::DASK, 0));
}

// PROTOCOL COMPRESS-8
#[test]
fn results_above_the_maximum_ratio_are_discarded() {
    let sent = |policy, result: usize| decide(policy, &vec![0; 10_000], &[result], &mut no_draw).0;
    assert_eq!(sent(Policy::DASK, 7_000), Some(7_000));
    assert_eq!(sent(Policy::DASK, 7_001), None);
    assert_eq!(sent(DOCUMENTED, 9_000), Some(9_000));
    assert_eq!(sent(DOCUMENTED, 9_001), None);
}

#[test]
fn samples_decide_whether_the_frame_is_compressed() {
    let payload = vec![0; 65_536];
    let decide = |results: &[usize]| {
        let mut places = [0, 12_000, 24_000, 36_000, 48_000].into_iter().cycle();
        let mut draw = |bound: u64| {
            // All positions with 10 kB after them: Dask's randint(0, n - size),
            // inclusive.
            assert_eq!(bound, 65_536 - 10_000 + 1);
            places.next().unwrap()
        };
        decide(Policy::DASK, &payload, results, &mut draw)
    };
    let (sent, asked) = decide(&[35_001]);
    assert_eq!((sent, asked.len()), (None, 1));
    assert_eq!(asked[0].len(), 50_000);
    let (sent, asked) = decide(&[35_000, 45_875]);
    assert_eq!((sent, asked.len()), (Some(45_875), 2));
    assert_eq!(asked[1], payload);
    // 0.7 of 65536 is 45875.2.
    let (sent, asked) = decide(&[35_000, 45_876]);
    assert_eq!((sent, asked.len()), (None, 2));
    // A payload that is not longer than a sample is compressed at once.
    let (sent, asked) = self::decide(Policy::DASK, &payload[..10_000], &[1], &mut no_draw);
    assert_eq!((sent, asked.len()), (Some(1), 1));
}

/// A port of `byte_sample` of distributed/protocol/compression.py.
fn byte_sample(b: &[u8], size: usize, n: usize, places: &[usize]) -> Vec<u8> {
    let mut places = places.iter().copied();
    let mut parts = Vec::new();
    let mut start = places.next().unwrap();
    for _ in 0..n - 1 {
        let next_start = places.next().unwrap();
        let end = (start + size).min(next_start);
        parts.extend_from_slice(b.get(start..end).unwrap_or_default());
        start = next_start;
    }
    parts.extend_from_slice(&b[start..start + size]);
    parts
}

// PROTOCOL COMPRESS-8
#[test]
fn samples_match_dask_at_the_same_positions() {
    let mut random = Random(5);
    let payload: Vec<u8> = (0..90_000u32).map(|at| (at / 7) as u8 ^ at as u8).collect();
    for (size, count, len) in [
        (10_000_usize, 5, 90_000),
        (100, 3, 500),
        (7, 1, 8),
        (40, 9, 41),
    ] {
        let policy = Policy::DASK
            .with_min_len(0)
            .with_sample_len(size as u32)
            .with_sample_count(count as u32);
        for _ in 0..50 {
            let payload = &payload[..len];
            let places: Vec<usize> = (0..count).map(|_| random.below(len - size + 1)).collect();
            let mut place = places.iter().cycle();
            // A random number beyond the bound is reduced modulo the bound.
            let mut draw = |bound: u64| *place.next().unwrap() as u64 + bound;
            let (_, asked) = decide(policy, payload, &[0, 1], &mut draw);
            assert_eq!(asked[0], byte_sample(payload, size, count, &places));
        }
    }
    // A payload shorter than one sample is a sample of itself.
    let (_, asked) = decide(DOCUMENTED, &payload[..2_000], &[1], &mut no_draw);
    assert_eq!(asked, [&payload[..2_000]]);
}

#[test]
fn real_payloads_are_compressed_if_worthwhile() {
    let mut lz4 = Lz4::new();
    let mut random = Random(11);
    let mut draws = Random(12);
    let noise: Vec<u8> = (0..200_000).map(|_| random.next() as u8).collect();
    let counts: Vec<u8> = (0..25_000u64).flat_map(u64::to_le_bytes).collect();
    let mut scratch = vec![0xa5; 300_000];
    let mut decide = |payload: &[u8]| {
        let draw = &mut |bound| draws.next() % bound;
        let sent = Policy::DASK
            .maybe_compress(&mut lz4, payload, &mut scratch, draw)
            .unwrap();
        sent.map(<[u8]>::to_vec)
    };
    assert_eq!(decide(&noise), None);
    let sent = decide(&counts).unwrap();
    assert_eq!(from(Codec::Lz4, &sent, counts.len()).unwrap(), counts);
}

#[test]
fn error_messages_are_readable() {
    let text = |error: CompressionError| error.to_string();
    assert_eq!(
        text(from(Codec::Lz4, &[20, 0, 0, 0, 0x10, 1, 0, 0, 0], 20).unwrap_err()),
        "not lz4: at byte 8 of the frame, a match begins before the data"
    );
    assert_eq!(
        text(from(Codec::Lz4, &[255, 255, 255, 255, 0], 20).unwrap_err()),
        "the frame declares 4294967295 bytes, but 5 compressed bytes become 255 times as many at most"
    );
    assert_eq!(
        text(CompressionError::NotCompiledIn { codec: Codec::Zstd }),
        "the frame is compressed with zstd, which needs the feature zstd of daskwire"
    );
}

mod zlib {
    use super::*;

    /// zlib.compress(b"daskwire" * 40) of Python 3.11.
    const PYTHON: &[u8] = &[
        0x78, 0x9c, 0x4b, 0x49, 0x2c, 0xce, 0x2e, 0xcf, 0x2c, 0x4a, 0x4d, 0x19, 0xa5, 0xc9, 0xa2,
        0x01, 0x0d, 0x6c, 0x86, 0x11,
    ];

    // PROTOCOL COMPRESS-3
    #[test]
    fn frames_by_python_decompress_into_exact_buffers() {
        let payload = b"daskwire".repeat(40);
        assert_eq!(decompressed_len(Codec::Zlib, PYTHON, MAX_LEN), Ok(None));
        assert_eq!(from(Codec::Zlib, PYTHON, 320).unwrap(), payload);
        assert_eq!(from(Codec::Zlib, PYTHON, 1000).unwrap(), payload);
        let too_small = BufferTooSmall {
            needed: 320,
            available: 319,
        };
        assert_eq!(
            from(Codec::Zlib, PYTHON, 319),
            Err(CompressionError::BufferTooSmall(too_small))
        );
        let mut dst = [0; 1000];
        assert_eq!(decompress(Codec::Zlib, PYTHON, &mut dst, 320), Ok(320));
        assert_eq!(
            decompress(Codec::Zlib, PYTHON, &mut dst, 319),
            Err(CompressionError::OverLimit { limit: 319 })
        );
        let trailing = [PYTHON, b"x"].concat();
        assert_eq!(
            from(Codec::Zlib, &trailing, 1000),
            Err(CompressionError::Malformed {
                codec: Codec::Zlib,
                at: PYTHON.len(),
                reason: "bytes follow the end of the stream"
            })
        );
    }

    #[test]
    fn damaged_frames_are_refused() {
        let payload = b"daskwire".repeat(40);
        for frame in damaged(PYTHON) {
            // A change of the window size in the header can have no effect.
            if let Ok(read) = from(Codec::Zlib, &frame, 1000) {
                assert_eq!(read, payload);
                assert_eq!(frame[2..], PYTHON[2..]);
            }
        }
    }

    #[test]
    fn a_compressor_is_reused_and_fits_its_bound() {
        let mut zlib = Zlib::new();
        let mut random = Random(0x515);
        let noise: Vec<u8> = (0..1 << 18).map(|_| random.next() as u8).collect();
        let noises = [31 << 10, (64 << 10) + 1, 1 << 18].map(|len| noise[..len].to_vec());
        for payload in payloads(0x515, 320).chain(noises) {
            let frame = compress(&mut zlib, &payload);
            assert_eq!(from(Codec::Zlib, &frame, payload.len()).unwrap(), payload);
        }
    }

    #[test]
    fn frames_of_every_level_decompress() {
        for level in [0, 1, 6, 9] {
            for payload in payloads(0x515, 320) {
                let frame = miniz_oxide::deflate::compress_to_vec_zlib(&payload, level);
                assert_eq!(from(Codec::Zlib, &frame, payload.len()).unwrap(), payload);
            }
        }
    }
}

/// A frame of ruzstd with its content size, as Dask's writer states it: ruzstd
/// leaves it out, so it goes between the header and the blocks.
fn to_zstd(data: &[u8]) -> Vec<u8> {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    let frame = compress_to_vec(data, CompressionLevel::Fastest);
    let (head, blocks) = frame.split_at(6);
    assert_eq!(head[4] & 0xe3, 0, "another header than was expected");
    let len = (data.len() as u64).to_le_bytes();
    [&head[..4], &[head[4] | 0xc0, head[5]], &len, blocks].concat()
}

mod zstd {
    use super::*;

    // PROTOCOL COMPRESS-4
    #[test]
    fn ruzstd_frames_are_decompressed() {
        {
            for payload in payloads(0x515, 310) {
                let frame = to_zstd(&payload);
                let len = payload.len() as u64;
                assert_eq!(
                    decompressed_len(Codec::Zstd, &frame, MAX_LEN),
                    Ok(Some(len))
                );
                assert_eq!(from(Codec::Zstd, &frame, payload.len()).unwrap(), payload);
                let trailing = [&frame[..], b"x"].concat();
                assert_eq!(
                    from(Codec::Zstd, &trailing, payload.len()),
                    Err(CompressionError::Malformed {
                        codec: Codec::Zstd,
                        at: frame.len(),
                        reason: "bytes follow the end of the frame"
                    })
                );
            }
        }
    }

    #[test]
    fn damaged_frames_never_expose_former_buffer_contents() {
        let mut read = 0;
        for payload in small_payloads() {
            for frame in damaged(&to_zstd(&payload)) {
                read += usize::from(from(Codec::Zstd, &frame, 5000).is_ok());
            }
        }
        assert!(read > 100, "{read}");
    }

    /// A window of 32 GiB, content of 10 bytes, and blocks of 4 bytes that
    /// decompress to 128 KiB each.
    #[test]
    fn a_window_larger_than_the_content_takes_no_memory() {
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x80, 25 << 3, 10, 0, 0, 0];
        for _ in 0..1000 {
            frame.extend([0x02, 0x00, 0x10, 7]);
        }
        assert_eq!(
            from(Codec::Zstd, &frame, 10),
            Err(CompressionError::Malformed {
                codec: Codec::Zstd,
                at: 4,
                reason: "its header is damaged, or its window is too large"
            })
        );
        // With the smallest window the blocks are too large.
        frame[5] = 0;
        assert!(from(Codec::Zstd, &frame, 10).is_err());
    }

    #[test]
    fn concatenated_and_skippable_frames_are_refused() {
        let frame = to_zstd(b"payload");
        let two = [&frame[..], &frame[..]].concat();
        assert!(from(Codec::Zstd, &two, 100).is_err());
        let skippable = [0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 9];
        assert_eq!(
            from(Codec::Zstd, &skippable, 100),
            Err(CompressionError::Malformed {
                codec: Codec::Zstd,
                at: 0,
                reason: "it does not begin as a zstd frame"
            })
        );
    }
}
