//! Compressed frames.

use daskwire::compression::{Codec, Compression, Lz4, Snappy, decompress, decompressed_len};

use super::LIMITS;

/// Decompresses any bytes, and compresses them and back.
pub(crate) fn lz4(input: &[u8]) {
    codec(Codec::Lz4, input);
    compress(&mut Lz4::new(), input, |packed| {
        let (len, block) = packed.split_first_chunk().expect("a length");
        let len = u32::from_le_bytes(*len) as usize;
        let mut out = vec![0; len];
        let written = lz4_flex::block::decompress_into(block, &mut out).expect("lz4_flex reads it");
        out.truncate(written);
        out
    });
    // lz4_flex accepts all that this crate accepts.
    let mut ours = vec![0; 1 << 16];
    if let Ok(len) = decompress(Codec::Lz4, input, &mut ours, LIMITS.decompressed_len) {
        let block = input.get(4..).expect("we read its length");
        let mut theirs = vec![0; len];
        if !block.is_empty() {
            let written = lz4_flex::block::decompress_into(block, &mut theirs);
            assert_eq!(written.ok(), Some(len));
        }
        assert_eq!(ours.get(..len), Some(&theirs[..]));
    }
}

/// Decompresses any bytes, and compresses them and back.
pub(crate) fn snappy(input: &[u8]) {
    codec(Codec::Snappy, input);
    compress(&mut Snappy::new(), input, |packed| {
        snap::raw::Decoder::new()
            .decompress_vec(packed)
            .expect("snap reads it")
    });
    // snap accepts all that this crate accepts, and vice versa within the
    // limits.
    let mut ours = vec![0; 1 << 16];
    let theirs = match snap::raw::decompress_len(input) {
        Ok(len) if len <= ours.len() => snap::raw::Decoder::new().decompress_vec(input).ok(),
        _ => return,
    };
    let ours = decompress(Codec::Snappy, input, &mut ours, LIMITS.decompressed_len)
        .ok()
        .map(|len| ours.get(..len).unwrap_or_default().to_vec());
    assert_eq!(
        ours,
        theirs.filter(|data| data.len() as u64 <= 22 * input.len() as u64)
    );
}

/// Decompresses any bytes, and those that miniz_oxide compressed.
pub(crate) fn zlib(input: &[u8]) {
    codec(Codec::Zlib, input);
    let packed = miniz_oxide::deflate::compress_to_vec_zlib(input, 1);
    let mut out = vec![0xa5; input.len()];
    let len = decompress(Codec::Zlib, &packed, &mut out, u64::MAX);
    assert_eq!(len, Ok(input.len()));
    assert_eq!(out, input);
}

/// Decompresses any bytes.
pub(crate) fn zstd(input: &[u8]) {
    codec(Codec::Zstd, input);
}

/// Checks that the result does not depend on the former contents of the buffer,
/// and that nothing is written past the end.
fn codec(codec: Codec, input: &[u8]) {
    let declared = decompressed_len(codec, input, LIMITS.decompressed_len);
    let run = |fill: u8| {
        let mut out = vec![fill; 1 << 16];
        let result = decompress(codec, input, &mut out, LIMITS.decompressed_len);
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
    let len = decompress(compression.codec(), &packed, &mut out, u64::MAX);
    assert_eq!(len, Ok(input.len()));
    assert_eq!(out, input);
    assert_eq!(theirs(&packed), input);
}
