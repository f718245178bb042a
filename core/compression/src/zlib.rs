//! zlib streams, with the miniz_oxide crate. Decompression needs no heap, compression does.

#[cfg(feature = "alloc")]
use miniz_oxide::DataFormat;
#[cfg(feature = "alloc")]
use miniz_oxide::deflate::CompressionLevel;
#[cfg(feature = "alloc")]
use miniz_oxide::deflate::core::{CompressorOxide, TDEFLFlush, TDEFLStatus, compress as deflate};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_PARSE_ZLIB_HEADER, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{DecompressorOxide, decompress as inflate};

#[cfg(feature = "alloc")]
use crate::Compression;
use crate::invariant::OrDefaultIfBug as _;
use crate::{BufferTooSmall, Codec, CompressionError};

/// The zlib compressor (PROTOCOL COMPRESS-3), at the level of Python's default, 6. It has
/// some hundreds of KiB of memory on the heap, which is reused for each frame.
#[cfg(feature = "alloc")]
pub struct Zlib {
    compressor: CompressorOxide,
}

#[cfg(feature = "alloc")]
impl Zlib {
    /// Creates a compressor.
    pub fn new() -> Self {
        let level = CompressionLevel::DefaultLevel;
        Self {
            compressor: CompressorOxide::with_format_and_level(DataFormat::Zlib, level),
        }
    }
}

#[cfg(feature = "alloc")]
impl Default for Zlib {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(feature = "alloc")]
impl core::fmt::Debug for Zlib {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Zlib")
    }
}

#[cfg(feature = "alloc")]
impl Compression for Zlib {
    fn codec(&self) -> Codec {
        Codec::Zlib
    }

    fn max_compressed_len(&self, len: usize) -> Option<usize> {
        // `mz_deflateBound` of miniz.
        len.checked_add(len / 10)?.checked_add(144)
    }

    fn compress(&mut self, data: &[u8], out: &mut [u8]) -> Result<usize, CompressionError> {
        let needed = self.max_compressed_len(data.len()).unwrap_or(usize::MAX);
        let out = BufferTooSmall::check(out, needed)?;
        self.compressor.reset();
        match deflate(&mut self.compressor, data, out, TDEFLFlush::Finish) {
            (TDEFLStatus::Done, _, len) => Ok(len),
            // Cannot happen: the buffer has the length that any stream fits in.
            (_, at, _) => Err(CompressionError::Malformed {
                codec: Codec::Zlib,
                at,
                reason: "the data could not be compressed",
            }),
        }
    }
}

/// Decompresses to the start of `out`. The format has no declared length. Uses
/// about 11 KiB of stack.
pub(crate) fn decompress(
    frame: &[u8],
    out: &mut [u8],
    limit: u64,
) -> Result<usize, CompressionError> {
    let available = out.len();
    let limited = usize::try_from(limit).unwrap_or(usize::MAX);
    let space = available.min(limited);
    let out = out.get_mut(..space).or_default_if_bug();
    let mut stream = Stream::new(frame);
    if stream.fill(out)? {
        return Ok(stream.written);
    }
    if space < available {
        return Err(CompressionError::OverLimit { limit });
    }
    let needed = available.saturating_add(1);
    Err(BufferTooSmall { needed, available }.into())
}

/// Appends the decompressed data to `out`, which grows with it.
#[cfg(feature = "alloc")]
pub(crate) fn decompress_onto(
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
        crate::grow(out, space.saturating_sub(stream.written))?;
        if stream.fill(out.get_mut(start..).or_default_if_bug())? {
            out.truncate(start.saturating_add(stream.written));
            return Ok(stream.written);
        }
        if space >= limited {
            return Err(CompressionError::OverLimit { limit });
        }
        space = space.saturating_mul(2).min(limited);
    }
}

/// The state of a decompression, possibly in several steps.
struct Stream<'f> {
    state: DecompressorOxide,
    frame: &'f [u8],
    consumed: usize,
    written: usize,
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

    /// Continues after the data already written to `out`, until the stream ends or
    /// `out` is full. Returns whether it has ended.
    fn fill(&mut self, out: &mut [u8]) -> Result<bool, CompressionError> {
        let flags = TINFL_FLAG_PARSE_ZLIB_HEADER | TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        let rest = self.frame.get(self.consumed..).or_default_if_bug();
        let (status, consumed, written) = inflate(&mut self.state, rest, out, self.written, flags);
        self.consumed = self.consumed.saturating_add(consumed);
        self.written = self.written.saturating_add(written);
        let malformed = |reason| CompressionError::Malformed {
            codec: Codec::Zlib,
            at: self.consumed,
            reason,
        };
        match status {
            TINFLStatus::Done if self.consumed == self.frame.len() => Ok(true),
            TINFLStatus::Done => Err(malformed("bytes follow the end of the stream")),
            TINFLStatus::HasMoreOutput => Ok(false),
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
