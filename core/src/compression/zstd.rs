//! zstd frames, decompressed by the ruzstd crate, which needs a heap.

use ruzstd::decoding::FrameDecoder;

use super::{Codec, CompressionError};

fn malformed(at: usize, reason: &'static str) -> CompressionError {
    CompressionError::Malformed {
        codec: Codec::Zstd,
        at,
        reason,
    }
}

/// The content size that the frame says. Dask's reader needs it, so a frame
/// without is refused (RFC 8878, section 3.1.1.1).
pub(super) fn content_size(frame: &[u8]) -> Result<u64, CompressionError> {
    let ends = || malformed(frame.len(), "it ends within its header");
    let Some((&[0x28, 0xb5, 0x2f, 0xfd], rest)) = frame.split_first_chunk() else {
        return Err(malformed(0, "it does not begin as a zstd frame"));
    };
    let (&descriptor, rest) = rest.split_first().ok_or_else(ends)?;
    let is_single_segment = descriptor & 0x20 != 0;
    let window_len = usize::from(!is_single_segment);
    let dictionary_len = match descriptor & 3 {
        0 => 0,
        1 => 1,
        2 => 2,
        _ => 4_usize,
    };
    let field = rest
        .get(window_len.saturating_add(dictionary_len)..)
        .ok_or_else(ends)?;
    let bytes = |len| field.get(..len).ok_or_else(ends);
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    match descriptor >> 6 {
        0 if is_single_segment => Ok(number(bytes(1)?)),
        0 => Err(malformed(4, "the frame does not say its content size")),
        1 => Ok(number(bytes(2)?).saturating_add(256)),
        2 => Ok(number(bytes(4)?)),
        _ => Ok(number(bytes(8)?)),
    }
}

/// Fills `out`, which is as long as the frame declares.
pub(super) fn decompress(frame: &[u8], out: &mut [u8]) -> Result<(), CompressionError> {
    let len = out.len();
    match FrameDecoder::new().decode_all(frame, out) {
        Ok(written) if written == len => Ok(()),
        Ok(_) => Err(malformed(
            frame.len(),
            "it holds less than its content size says",
        )),
        Err(_) => Err(malformed(
            0,
            "the frame is damaged, or holds more than its content size says",
        )),
    }
}
