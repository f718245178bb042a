//! Compressed payloads of recorded and hostile messages. `core/compression/tests`
//! has the tests of the codecs alone.

use crate::support;
use daskwire::Limits;
use daskwire::compression::{Codec, CompressionError, decompress};
use daskwire::frame::{FramedMessage, Prefix};
use daskwire::message::{Layout, Message, MessageErrorKind, ReadOptions, Scratch};

/// The codecs alone on the payloads of recorded and hostile messages;
/// `messages.rs` and `hostile.rs` read the whole messages.
// PROTOCOL COMPRESS-1, COMPRESS-2, COMPRESS-3 and COMPRESS-4
#[test]
fn hostile_frames_are_refused() {
    let malformed = |at, reason| (Some(at), reason);
    let mut seen = 0;
    for hostile in support::hostile() {
        let Some(codec) = ["lz4", "snappy", "zlib", "zstd"]
            .into_iter()
            .find(|name| hostile.name.starts_with(&format!("nosplit--{name}-")))
            .and_then(|name| Codec::from_name(name.as_bytes()))
        else {
            continue;
        };
        seen += 1;
        let framed = FramedMessage::parse(&hostile.bytes, Prefix::U64, &Limits::HOST).unwrap();
        let frame = *support::cut(&framed).last().unwrap();
        let mut out = vec![0; 100_000];
        let limit = Limits::HOST.decompressed_len;
        let found = decompress(codec, frame, &mut out, limit).unwrap_err();
        if !codec.is_compiled_in() {
            assert_eq!(found, CompressionError::NotCompiledIn { codec });
            continue;
        }
        let expected = match hostile.name.trim_start_matches("nosplit--") {
            "lz4-claims-2g" | "lz4-claims-4g" | "lz4-not-lz4" => (None, "implausible"),
            "snappy-claims-4g" | "snappy-length-too-large" => (None, "implausible"),
            "lz4-empty" | "lz4-no-prefix" => malformed(0, "ends within the declared length"),
            "lz4-length-run-endless" => malformed(65, "ends too early"),
            "lz4-literal-overrun" => malformed(6, "ends too early"),
            "lz4-offset-before-start" | "lz4-offset-zero" => malformed(9, "before the data"),
            "lz4-size-too-large" => malformed(55, "holds less"),
            "lz4-size-too-small" => malformed(37, "holds more"),
            // The two zeros that follow the block are where an offset would be.
            "lz4-trailing" => malformed(57, "before the data"),
            "lz4-truncated" => malformed(49, "ends too early"),
            "snappy-copy-before-start" => malformed(5, "before the data"),
            "snappy-copy-offset-zero" => malformed(5, "before the data"),
            "snappy-empty" => malformed(0, "within its length"),
            "snappy-length-too-small" => malformed(13, "holds more"),
            "snappy-literal-overrun" => malformed(2, "ends too early"),
            "snappy-truncated" => malformed(24, "ends too early"),
            "snappy-varint-33-bits" => malformed(5, "32 bits"),
            "snappy-varint-cut" => malformed(1, "within its length"),
            "snappy-varint-overflow" => malformed(5, "5 bytes"),
            "zlib-bad-adler" => malformed(16, "checksum"),
            "zlib-bad-block" => malformed(3, "is damaged"),
            "zlib-bad-header" | "zlib-gzip" => malformed(2, "does not begin as"),
            "zlib-bomb" => (None, "too small"),
            "zlib-empty" => malformed(0, "ends too early"),
            "zlib-truncated" => malformed(11, "ends too early"),
            "zstd-bad-magic" | "zstd-empty" => malformed(0, "does not begin as"),
            "zstd-no-content-size" => malformed(4, "does not declare its content size"),
            "zstd-reserved-block" => malformed(10, "is damaged"),
            "zstd-truncated" => malformed(24, "ends too early"),
            _ => panic!("{} is not expected here: {found:?}", hostile.name),
        };
        match found {
            CompressionError::Malformed {
                codec: of,
                at,
                reason,
            } => {
                assert_eq!(of, codec);
                assert!(
                    Some(at) == expected.0 && reason.contains(expected.1),
                    "{}: {at}, {reason}",
                    hostile.name
                );
            }
            CompressionError::Implausible { .. } => assert_eq!(expected, (None, "implausible")),
            CompressionError::BufferTooSmall(error) => {
                assert_eq!(expected, (None, "too small"));
                assert_eq!((error.needed, error.available), (100_001, 100_000));
            }
            _ => panic!("{}: {found:?}", hostile.name),
        }
    }
    assert_eq!(seen, 36);
}

// PROTOCOL COMPRESS-5
#[test]
fn codecs_not_compiled_in_are_reported() {
    let requested = [
        (Codec::Lz4, true),
        (Codec::Snappy, true),
        (Codec::Zlib, cfg!(feature = "zlib")),
        (Codec::Zstd, cfg!(feature = "zstd")),
    ];
    for (codec, requested) in requested {
        let compiled_in = codec.is_compiled_in();
        // Another package of the same build may request it, too.
        assert!(compiled_in || !requested, "{codec}");
        assert_eq!(Codec::from_name(codec.name().as_bytes()), Some(codec));
        let found = decompress(codec, &[], &mut [], Limits::HOST.decompressed_len).unwrap_err();
        assert_eq!(
            found == CompressionError::NotCompiledIn { codec },
            !compiled_in
        );
    }
    for name in [
        "", "LZ4", "lz4 ", "blosc", "auto", "gzip", "none", "zlibzlib",
    ] {
        assert_eq!(Codec::from_name(name.as_bytes()), None);
    }
}

/// The merged first payload of a message, or the error.
fn first_payload(bytes: &[u8], reading: &ReadOptions, layout: Layout, prefix: Prefix) -> Opened {
    let framed = FramedMessage::parse(bytes, prefix, &support::LIMITS).unwrap();
    let frames = support::cut(&framed);
    let mut workspaces = support::Workspaces::new();
    let (message, _) = workspaces.open(&frames, layout, reading).unwrap();
    let payload = message.payload(0).map_err(|error| error.kind)?;
    support::merged(&payload).map_err(|error| error.kind)
}

type Opened = Result<Vec<Vec<u8>>, MessageErrorKind>;

fn vector(name: &str) -> Opened {
    let vector = support::vector(name);
    let (layout, prefix) = (vector.layout(), vector.prefix());
    first_payload(&vector.bytes, &vector.reading(), layout, prefix)
}

fn hostile_vector(name: &str) -> Opened {
    let hostile = support::hostile();
    let hostile = hostile.iter().find(|hostile| hostile.name == name).unwrap();
    let (layout, prefix) = (hostile.layout(), hostile.prefix());
    first_payload(&hostile.bytes, &ReadOptions::default(), layout, prefix)
}

// PROTOCOL COMPRESS-5
#[test]
fn unknown_codecs_are_named() {
    let unknown = |opened: Opened, expected: &str| match opened {
        Err(MessageErrorKind::UnknownCodec { name }) => {
            assert_eq!(name.as_bytes(), expected.as_bytes())
        }
        opened => panic!("{expected}: {opened:?}"),
    };
    unknown(vector("classic-1.20.2-blosc/blosc-f8"), "blosc");
    unknown(vector("modern-total-2021.12.0-blosc/blosc-f8"), "blosc");
    unknown(hostile_vector("nosplit--hdr-compression-unknown"), "lzma");
    unknown(hostile_vector("nosplit--hdr-compression-upper"), "LZ4");
    unknown(hostile_vector("nosplit--hdr-compression-empty-name"), "");
}

// PROTOCOL COMPRESS-6
#[test]
fn every_wire_frame_has_its_codec() {
    let lens = |name: &str| -> Vec<usize> {
        let opened = vector(&format!("modern-nosplit-2026.8.0/{name}"));
        opened.unwrap().iter().map(Vec::len).collect()
    };
    assert_eq!(lens("hm-payload-compression-false"), [5]);
    assert_eq!(lens("hm-payload-no-compression"), [5]);
    #[cfg(feature = "zlib")]
    assert_eq!(lens("hm-payload-mixed-codecs"), [12]);
    // PROTOCOL COMPRESS-6: one for each wire frame.
    for (name, (found, expected)) in [
        ("nosplit--hdr-compression-short", (0, 1)),
        ("nosplit--hdr-compression-long", (2, 1)),
    ] {
        let key = "compression";
        assert_eq!(
            hostile_vector(name),
            Err(MessageErrorKind::ListLength {
                key,
                found,
                expected
            })
        );
    }
    let opened = hostile_vector("nosplit--hdr-compression-is-str");
    assert!(
        matches!(
            opened,
            Err(MessageErrorKind::EntryKind {
                key: "compression",
                ..
            })
        ),
        "{opened:?}"
    );
    // nil stands for a frame without a codec, not for the whole list.
    let header: &[u8] = b"\x82\xabcompression\xc0\xaenum-sub-frames\x00";
    let frames: [&[u8]; 2] = [b"\x81\xae__Serialized__\x01", header];
    let mut scratch = Scratch::<2, 1>::new();
    let reading = ReadOptions::default();
    let message = Message::open(&frames, Layout::Modern, &reading, &mut scratch).unwrap();
    let payload = message.payload(0).unwrap();
    let kind = MessageErrorKind::EntryKind {
        key: "compression",
        expected: "an array",
    };
    assert_eq!(payload.check().map_err(|error| error.kind), Err(kind));
}

// PROTOCOL COMPRESS-10
#[test]
fn frames_are_decompressed_regardless_of_the_handshake() {
    // Forwarded by a process without compression.
    for release in ["modern-nosplit-2026.8.0", "classic-2.30.1"] {
        let opened = vector(&format!("{release}/pass-through-compressed")).unwrap();
        assert_eq!(
            support::sha256(&opened.concat()),
            "2160be9715b7de1c274257b0ecaa795dc27f043d997d0ebf03efd004c663f2ab"
        );
    }
}
