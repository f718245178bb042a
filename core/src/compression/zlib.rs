//! Decompression of zlib streams, with the miniz_oxide crate. No heap is needed.
//! A peer that does not name zlib in its handshake never has to write it.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_PARSE_ZLIB_HEADER, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{DecompressorOxide, decompress as inflate};

use super::{Codec, CompressionError};
use crate::BufferTooSmall;
use crate::invariant::Ensured as _;

/// Decompresses to the start of `out`. The format has no declared length. Uses
/// about 11 KiB of stack.
pub(super) fn decompress(
    frame: &[u8],
    out: &mut [u8],
    limit: u64,
) -> Result<usize, CompressionError> {
    let available = out.len();
    let limited = usize::try_from(limit).unwrap_or(usize::MAX);
    let space = available.min(limited);
    let out = out.get_mut(..space).ensured();
    let mut stream = Stream::new(frame);
    match stream.fill(out)? {
        Progress::Done => Ok(stream.written),
        Progress::Full if space < available => Err(CompressionError::OverLimit { limit }),
        Progress::Full => Err(CompressionError::BufferTooSmall(BufferTooSmall {
            needed: available.saturating_add(1),
            available,
        })),
    }
}

/// Appends the decompressed data to `out`, which grows with it.
#[cfg(feature = "alloc")]
pub(super) fn decompress_onto(
    frame: &[u8],
    out: &mut alloc::vec::Vec<u8>,
    limit: u64,
) -> Result<usize, CompressionError> {
    /// A decompression ratio that most data does not exceed.
    const USUAL_RATIO: usize = 4;
    let start = out.len();
    let limited = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut stream = Stream::new(frame);
    let mut space = frame.len().saturating_mul(USUAL_RATIO).min(limited);
    loop {
        super::grow(out, space.saturating_sub(stream.written))?;
        match stream.fill(out.get_mut(start..).ensured())? {
            Progress::Done => {
                out.truncate(start.saturating_add(stream.written));
                return Ok(stream.written);
            }
            Progress::Full if space >= limited => {
                return Err(CompressionError::OverLimit { limit });
            }
            Progress::Full => space = space.saturating_mul(2).min(limited),
        }
    }
}

/// The state of a decompression, possibly in several steps.
struct Stream<'f> {
    state: DecompressorOxide,
    frame: &'f [u8],
    consumed: usize,
    written: usize,
}

/// The result of a decompression step.
enum Progress {
    /// The stream has ended.
    Done,
    /// The output buffer is full.
    Full,
}

impl<'f> Stream<'f> {
    fn new(frame: &'f [u8]) -> Self {
        Self {
            state: DecompressorOxide::new(),
            frame,
            consumed: 0,
            written: 0,
        }
    }

    /// Continues after the data already written to `out`.
    fn fill(&mut self, out: &mut [u8]) -> Result<Progress, CompressionError> {
        let flags = TINFL_FLAG_PARSE_ZLIB_HEADER | TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        let rest = self.frame.get(self.consumed..).ensured();
        let (status, consumed, written) = inflate(&mut self.state, rest, out, self.written, flags);
        self.consumed = self.consumed.saturating_add(consumed);
        self.written = self.written.saturating_add(written);
        let malformed = |reason| CompressionError::Malformed {
            codec: Codec::Zlib,
            at: self.consumed,
            reason,
        };
        match status {
            TINFLStatus::Done if self.consumed == self.frame.len() => Ok(Progress::Done),
            TINFLStatus::Done => Err(malformed("bytes follow the end of the stream")),
            TINFLStatus::HasMoreOutput => Ok(Progress::Full),
            TINFLStatus::NeedsMoreInput | TINFLStatus::FailedCannotMakeProgress => {
                Err(malformed("it ends too early"))
            }
            TINFLStatus::Adler32Mismatch => Err(malformed("its checksum does not fit the data")),
            // The header is two bytes.
            _ if self.consumed <= 2 => Err(malformed("it does not begin as a zlib stream")),
            _ => Err(malformed("the stream is damaged")),
        }
    }
}
