//! zlib streams, decompressed by the miniz_oxide crate without a heap.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_PARSE_ZLIB_HEADER, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{DecompressorOxide, decompress as inflate};

use super::{Codec, CompressionError};
use crate::BufferTooSmall;

/// Decompresses to the front of `out`; the format does not say how much that
/// will be. Takes about 11 KiB of stack.
pub(super) fn decompress(
    frame: &[u8],
    out: &mut [u8],
    limit: u64,
) -> Result<usize, CompressionError> {
    let available = out.len();
    let limited = usize::try_from(limit).unwrap_or(usize::MAX);
    let space = available.min(limited);
    let out = out.get_mut(..space).unwrap_or_default();
    let mut state = DecompressorOxide::new();
    let flags = TINFL_FLAG_PARSE_ZLIB_HEADER | TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let (status, consumed, written) = inflate(&mut state, frame, out, 0, flags);
    let malformed = |reason| CompressionError::Malformed {
        codec: Codec::Zlib,
        at: consumed,
        reason,
    };
    match status {
        TINFLStatus::Done if consumed == frame.len() => Ok(written),
        TINFLStatus::Done => Err(malformed("bytes follow the end of the stream")),
        TINFLStatus::HasMoreOutput if space < available => {
            Err(CompressionError::OverLimit { limit })
        }
        TINFLStatus::HasMoreOutput => Err(CompressionError::BufferTooSmall(BufferTooSmall {
            needed: available.saturating_add(1),
            available,
        })),
        TINFLStatus::NeedsMoreInput | TINFLStatus::FailedCannotMakeProgress => {
            Err(malformed("it ends too early"))
        }
        TINFLStatus::Adler32Mismatch => Err(malformed("its checksum does not fit the data")),
        _ => Err(malformed("the stream is damaged")),
    }
}
