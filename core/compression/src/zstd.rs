//! zstd frames, with the ruzstd crate, which needs a heap.

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use ruzstd::io::Read as _;

use crate::invariant::OrDefaultIfBug as _;
use crate::{Codec, CompressionError};

fn malformed(at: usize, reason: &'static str) -> CompressionError {
    CompressionError::Malformed {
        codec: Codec::Zstd,
        at,
        reason,
    }
}

/// The declared content size (RFC 8878, section 3.1.1.1). A frame without one
/// is refused, since Dask cannot read it either (PROTOCOL COMPRESS-4).
pub(crate) fn content_size(frame: &[u8]) -> Result<u64, CompressionError> {
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
        0 => Err(malformed(4, "the frame does not declare its content size")),
        1 => Ok(number(bytes(2)?).saturating_add(256)),
        2 => Ok(number(bytes(4)?)),
        _ => Ok(number(bytes(8)?)),
    }
}

/// The window size that RFC 8878, section 3.1.1.1.2, recommends every decoder
/// to support, in bytes.
const WINDOW_LEN: u64 = 8 << 20;

/// The maximum window size, in bytes: the default of the zstd project's
/// decoder.
const MAX_WINDOW_LEN: u64 = 128 << 20;

/// Decompresses to `out`, whose length is the declared one. ruzstd buffers the
/// window on the heap, up to twice the length of the data, and not more than
/// the maximum window needs.
pub(crate) fn decompress(frame: &[u8], out: &mut [u8]) -> Result<(), CompressionError> {
    let mut written = 0_usize;
    decode(frame, out.len() as u64, |decoder| {
        let place = out.get_mut(written..).or_default_if_bug();
        let len = decoder.read(place).unwrap_or_default();
        written = written.saturating_add(len);
        Ok(len)
    })
}

/// Appends the decompressed data to `out`, which grows with it.
pub(crate) fn decompress_onto(
    frame: &[u8],
    out: &mut alloc::vec::Vec<u8>,
    declared: u64,
) -> Result<usize, CompressionError> {
    let declared_len = usize::try_from(declared).unwrap_or(usize::MAX);
    let mut written = 0_usize;
    decode(frame, declared, |decoder| {
        let left = declared_len.saturating_sub(written);
        let len = decoder.can_collect().min(left);
        if out.capacity().saturating_sub(out.len()) < len {
            // Doubles each time, up to the declared length.
            let more = len.max(written).min(left);
            out.try_reserve_exact(more)
                .map_err(|_| CompressionError::OutOfMemory {
                    needed: more as u64,
                })?;
        }
        let start = out.len();
        crate::grow(out, len)?;
        let place = out.get_mut(start..).or_default_if_bug();
        let len = decoder.read(place).unwrap_or_default();
        written = written.saturating_add(len);
        Ok(len)
    })?;
    Ok(written)
}

/// Decodes a frame with a declared length. `take` moves as much of the decoded
/// data as it has room for and returns the number of bytes.
fn decode(
    frame: &[u8],
    declared: u64,
    mut take: impl FnMut(&mut FrameDecoder) -> Result<usize, CompressionError>,
) -> Result<(), CompressionError> {
    let mut decoder = FrameDecoder::new();
    // No window reaches past the start of the data, so writers that know the
    // length do not declare a larger one.
    decoder.set_max_window_size(declared.clamp(WINDOW_LEN, MAX_WINDOW_LEN));
    let mut input = frame;
    if decoder.init(&mut input).is_err() {
        return Err(malformed(
            4,
            "its header is damaged, or its window is too large",
        ));
    }
    let at = |input: &[u8]| frame.len().saturating_sub(input.len());
    let mut written = 0_u64;
    loop {
        // In steps, so that excess data is detected before it takes memory.
        let strategy = BlockDecodingStrategy::UptoBytes(1 << 20);
        if decoder.decode_blocks(&mut input, strategy).is_err() {
            return Err(if input.is_empty() {
                malformed(frame.len(), "it ends too early")
            } else {
                malformed(at(input), "the block up to here is damaged")
            });
        }
        written = written.saturating_add(take(&mut decoder)? as u64);
        if decoder.can_collect() != 0 {
            return Err(malformed(at(input), "it holds more than its content size"));
        }
        if decoder.is_finished() {
            break;
        }
    }
    if !input.is_empty() {
        return Err(malformed(at(input), "bytes follow the end of the frame"));
    }
    if written != declared {
        return Err(malformed(
            frame.len(),
            "it holds less than its content size",
        ));
    }
    if let Some(stored) = decoder.get_checksum_from_data()
        && decoder.get_calculated_checksum() != Some(stored)
    {
        return Err(malformed(frame.len(), "its checksum does not fit the data"));
    }
    Ok(())
}
