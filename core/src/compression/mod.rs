//! Compression of frames: codecs, bounds and the sampling policy.
//!
//! [`decompress`] handles every codec that is compiled in. It checks the
//! declared length of a frame against the maximum ratio of its codec
//! ([`Codec::max_ratio`]) and against the [`Limits`] before it writes a byte. A
//! [`Compression`] compresses with memory of a fixed size, and a [`Policy`]
//! decides whether to compress a frame, with Dask's rules.
//!
//! | codec | format | without a heap |
//! | --- | --- | --- |
//! | `lz4` | length as `u32`, then one block, as python-lz4 has it | both ways |
//! | `snappy` | raw, without the stream framing | both ways |
//! | `zlib` | a zlib stream | reading only |
//! | `zstd` | one frame that declares its length | no; reading only, with `alloc` |
//!
//! Each codec is a feature. A codec that is not enabled returns
//! [`CompressionError::NotCompiledIn`]; its frames can still be forwarded.
//!
//! ```
//! # #[cfg(feature = "snappy")] {
//! use daskwire::Limits;
//! use daskwire::compression::{Codec, Compression, Snappy, decompress};
//!
//! let data = [7; 1000];
//! let mut packed = [0; 1500];
//! let len = Snappy::new().compress(&data, &mut packed)?;
//! assert!(len < 100);
//!
//! let mut unpacked = [0; 1000];
//! decompress(Codec::Snappy, &packed[..len], &mut unpacked, &Limits::HOST)?;
//! assert_eq!(unpacked, data);
//! # }
//! # Ok::<(), daskwire::compression::CompressionError>(())
//! ```

#![cfg_attr(
    not(any(feature = "lz4", feature = "snappy", feature = "zstd")),
    allow(
        unused_variables,
        unreachable_code,
        reason = "no codec declares the length"
    )
)]

#[cfg(feature = "lz4")]
mod lz4;
mod policy;
#[cfg(feature = "snappy")]
mod snappy;
#[cfg(feature = "zlib")]
mod zlib;
#[cfg(feature = "zstd")]
mod zstd;

#[cfg(feature = "alloc")]
use alloc::vec::Vec;
use core::fmt;

use crate::invariant::Ensured as _;
use crate::{BufferTooSmall, Limits};

#[cfg(feature = "lz4")]
pub use lz4::Lz4;
pub use policy::Policy;
#[cfg(feature = "snappy")]
pub use snappy::Snappy;

/// A codec of Dask (PROTOCOL COMPRESS-1, COMPRESS-2, COMPRESS-3 and
/// COMPRESS-4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Codec {
    /// An lz4 block after its decompressed length.
    Lz4,
    /// Raw snappy.
    Snappy,
    /// A zlib stream.
    Zlib,
    /// A zstd frame that declares its content size.
    Zstd,
}

impl Codec {
    /// The codec with this name, in Dask's spelling. `None` for unknown names,
    /// for example `blosc` (up to 2022.4.0).
    pub fn from_name(name: &[u8]) -> Option<Self> {
        let all = [Self::Lz4, Self::Snappy, Self::Zlib, Self::Zstd];
        all.into_iter()
            .find(|codec| codec.name().as_bytes() == name)
    }

    /// The name of the codec in headers and in the handshake.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Snappy => "snappy",
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
        }
    }

    /// Whether this build can decompress frames of this codec.
    pub const fn is_compiled_in(self) -> bool {
        match self {
            Self::Lz4 => cfg!(feature = "lz4"),
            Self::Snappy => cfg!(feature = "snappy"),
            Self::Zlib => cfg!(feature = "zlib"),
            Self::Zstd => cfg!(feature = "zstd"),
        }
    }

    /// The maximum number of bytes that one compressed byte can decompress to.
    pub const fn max_ratio(self) -> u64 {
        match self {
            // A length byte of 255 in a match.
            Self::Lz4 => 255,
            // A copy of 64 bytes takes 3.
            Self::Snappy => 22,
            // A match of 258 bytes takes 2 bits.
            Self::Zlib => 1032,
            // A block of 128 KiB that repeats one byte takes 4.
            Self::Zstd => 32 << 10,
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An error of compression or decompression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum CompressionError {
    /// The caller's buffer is too small. For a format without a declared
    /// length, `needed` is one more than the length of the buffer.
    BufferTooSmall(BufferTooSmall),
    /// The frame is not valid in this format.
    Malformed {
        /// The codec.
        codec: Codec,
        /// Offset of the fault in the compressed frame, in bytes.
        at: usize,
        /// The reason, for error messages.
        reason: &'static str,
    },
    /// The declared length is more than the compressed bytes can decompress to.
    Implausible {
        /// The declared length, in bytes.
        declared: u64,
        /// The length of the compressed frame, in bytes.
        len: usize,
        /// The maximum ratio of the codec, see [`Codec::max_ratio`].
        ratio: u64,
    },
    /// The decompressed length exceeds
    /// [`decompressed_len`](Limits::decompressed_len).
    OverLimit {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The allocator has no memory for the decompressed data.
    OutOfMemory {
        /// The number of bytes requested.
        needed: u64,
    },
    /// The codec is not part of this build.
    NotCompiledIn {
        /// The codec, which is also the name of the feature.
        codec: Codec,
    },
}

impl CompressionError {
    /// Whether this side is at fault: its buffer, its memory or its build. All
    /// other errors are the peer's.
    pub const fn is_caller_fault(&self) -> bool {
        matches!(
            self,
            Self::BufferTooSmall(_) | Self::OutOfMemory { .. } | Self::NotCompiledIn { .. }
        )
    }
}

impl fmt::Display for CompressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BufferTooSmall(error) => write!(f, "the output of the codec: {error}"),
            Self::Malformed { codec, at, reason } => {
                write!(f, "not {codec}: at byte {at} of the frame, {reason}")
            }
            Self::Implausible {
                declared,
                len,
                ratio,
            } => write!(
                f,
                "the frame declares {declared} bytes, but {len} compressed bytes become \
                 {ratio} times as many at most"
            ),
            Self::OverLimit { limit } => {
                write!(
                    f,
                    "the frame decompresses to more than the limit of {limit} bytes"
                )
            }
            Self::OutOfMemory { needed } => write!(
                f,
                "there is no memory for the {needed} bytes that the frame decompresses to"
            ),
            Self::NotCompiledIn { codec } => write!(
                f,
                "the frame is compressed with {codec}, which needs the feature {codec} of daskwire"
            ),
        }
    }
}

impl core::error::Error for CompressionError {}

impl From<BufferTooSmall> for CompressionError {
    fn from(error: BufferTooSmall) -> Self {
        Self::BufferTooSmall(error)
    }
}

/// The decompressed length that a compressed frame declares, in bytes.
///
/// `None` if the format has no declared length (zlib). The value has been
/// checked against the maximum ratio and the limits; only [`decompress`]
/// verifies that the data matches it.
///
/// # Errors
///
/// * [`CompressionError::Implausible`], [`CompressionError::OverLimit`];
/// * [`CompressionError::Malformed`] if the frame has no valid header;
/// * [`CompressionError::NotCompiledIn`].
pub fn decompressed_len(
    codec: Codec,
    frame: &[u8],
    limits: &Limits,
) -> Result<Option<u64>, CompressionError> {
    let declared = match codec {
        #[cfg(feature = "lz4")]
        Codec::Lz4 => lz4::split_len(frame)?.0,
        #[cfg(feature = "snappy")]
        Codec::Snappy => snappy::split_len(frame)?.0,
        #[cfg(feature = "zlib")]
        Codec::Zlib => return Ok(None),
        #[cfg(feature = "zstd")]
        Codec::Zstd => zstd::content_size(frame)?,
        #[allow(unreachable_patterns)] // with all features
        codec => return Err(CompressionError::NotCompiledIn { codec }),
    };
    // PROTOCOL COMPRESS-11
    let ratio = codec.max_ratio();
    if declared > (frame.len() as u64).saturating_mul(ratio) {
        return Err(CompressionError::Implausible {
            declared,
            len: frame.len(),
            ratio,
        });
    }
    if declared > limits.decompressed_len {
        return Err(CompressionError::OverLimit {
            limit: limits.decompressed_len,
        });
    }
    Ok(Some(declared))
}

/// Decompresses a frame to the start of `out` and returns the decompressed
/// length in bytes.
///
/// The frame must have exactly its declared length, without trailing bytes.
/// After an error the contents of `out` are unspecified.
///
/// # Errors
///
/// * as [`decompressed_len`];
/// * [`CompressionError::Malformed`] if the frame is not valid in this format;
/// * [`CompressionError::BufferTooSmall`] if the data does not fit in `out`.
pub fn decompress(
    codec: Codec,
    frame: &[u8],
    out: &mut [u8],
    limits: &Limits,
) -> Result<usize, CompressionError> {
    #[cfg(feature = "zlib")]
    if codec == Codec::Zlib {
        return zlib::decompress(frame, out, limits.decompressed_len);
    }
    let declared = decompressed_len(codec, frame, limits)?.ensured();
    let needed = usize::try_from(declared).unwrap_or(usize::MAX);
    let out = BufferTooSmall::check(out, needed)?;
    match codec {
        #[cfg(feature = "lz4")]
        Codec::Lz4 => lz4::decompress(frame, out)?,
        #[cfg(feature = "snappy")]
        Codec::Snappy => snappy::decompress(frame, out)?,
        #[cfg(feature = "zstd")]
        Codec::Zstd => zstd::decompress(frame, out)?,
        codec => return Err(CompressionError::NotCompiledIn { codec }),
    }
    Ok(needed)
}

/// Decompresses a frame, appends the data to `out` and returns its length in
/// bytes.
///
/// The vector does not grow by an unchecked declared length: for lz4 and snappy
/// the length is bounded by [`Codec::max_ratio`], for zlib and zstd the vector
/// grows with the decompressed data. After an error `out` has its former
/// contents.
///
/// # Errors
///
/// * as [`decompress`], except for [`CompressionError::BufferTooSmall`];
/// * [`CompressionError::OutOfMemory`] if the allocator refuses.
#[cfg(feature = "alloc")]
pub fn decompress_onto(
    codec: Codec,
    frame: &[u8],
    out: &mut Vec<u8>,
    limits: &Limits,
) -> Result<usize, CompressionError> {
    let start = out.len();
    let result = match codec {
        #[cfg(feature = "zlib")]
        Codec::Zlib => zlib::decompress_onto(frame, out, limits.decompressed_len),
        #[cfg(feature = "zstd")]
        Codec::Zstd => decompressed_len(codec, frame, limits)
            .and_then(|declared| zstd::decompress_onto(frame, out, declared.ensured())),
        codec => decompressed_len(codec, frame, limits).and_then(|declared| {
            grow(
                out,
                usize::try_from(declared.ensured()).unwrap_or(usize::MAX),
            )?;
            decompress(codec, frame, out.get_mut(start..).ensured(), limits)
        }),
    };
    if result.is_err() {
        out.truncate(start);
    }
    result
}

/// Appends `more` zeros, if there is memory for them.
#[cfg(feature = "alloc")]
pub(crate) fn grow(out: &mut Vec<u8>, more: usize) -> Result<(), CompressionError> {
    let refused = CompressionError::OutOfMemory {
        needed: more as u64,
    };
    let len = out.len().checked_add(more).ok_or(refused)?;
    out.try_reserve_exact(more).map_err(|_| refused)?;
    out.resize(len, 0);
    Ok(())
}

/// A compressor for frames, which it writes to a buffer of the caller.
pub trait Compression {
    /// The codec.
    fn codec(&self) -> Codec;

    /// The maximum compressed length of `len` bytes. `None` if the codec does
    /// not accept input of that length.
    fn max_compressed_len(&self, len: usize) -> Option<usize>;

    /// Compresses `data` to the start of `out` and returns the compressed
    /// length in bytes.
    ///
    /// # Errors
    ///
    /// [`CompressionError::BufferTooSmall`] if `out` is shorter than
    /// [`max_compressed_len`](Self::max_compressed_len).
    fn compress(&mut self, data: &[u8], out: &mut [u8]) -> Result<usize, CompressionError>;
}

/// Copies `len` bytes from `at - offset` to `at`, both in `out`. If the ranges
/// overlap, bytes that were just written are copied again, as lz4 and snappy
/// define.
///
/// `None` if the source or the target is outside `out`.
#[cfg(any(feature = "lz4", feature = "snappy"))]
#[inline]
fn copy_back(out: &mut [u8], at: usize, offset: usize, len: usize) -> Option<()> {
    let from = at.checked_sub(offset)?;
    let end = at.checked_add(len)?;
    // Most copies are short and do not overlap. Bytes written past `end` are
    // overwritten by later elements; without these the frame is too short and
    // refused.
    if offset >= 16 && len <= 16 {
        let source = *out.get(from..)?.first_chunk::<16>()?;
        if let Some(place) = out.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<16>) {
            *place = source;
            return (end <= out.len()).then_some(());
        }
    }
    if end > out.len() || offset == 0 {
        return None;
    }
    if offset >= len {
        return copy_ahead(out, from, at, len);
    }
    if offset == 1 {
        // A run of one byte, for example zeros.
        let byte = *out.get(from)?;
        out.get_mut(at..end)?.fill(byte);
        return Some(());
    }
    // Doubles the copied part each time, in whole periods.
    let mut done = 0_usize;
    while done < len {
        let step = offset.checked_add(done)?.min(len.checked_sub(done)?);
        let to = at.checked_add(done)?;
        copy_ahead(out, from, to, step)?;
        done = done.checked_add(step)?;
    }
    Some(())
}

/// Copies `len` bytes forward from `from` to `to`; the ranges do not overlap.
/// Written without panicking operations, which the bare-metal test checks.
#[cfg(any(feature = "lz4", feature = "snappy"))]
#[inline]
fn copy_ahead(out: &mut [u8], from: usize, to: usize, len: usize) -> Option<()> {
    let (before, after) = out.split_at_mut_checked(to)?;
    let source = before.get(from..)?.get(..len)?;
    crate::measure::copy(after.get_mut(..len)?, source);
    Some(())
}

/// Copies `data` to `out[at..]`. `None` if it does not fit.
#[cfg(any(feature = "lz4", feature = "snappy"))]
#[inline]
fn copy_literal(out: &mut [u8], at: usize, data: &[u8]) -> Option<()> {
    crate::measure::copy(out.get_mut(at..)?.get_mut(..data.len())?, data);
    Some(())
}

/// A cursor over a compressed frame.
#[cfg(any(feature = "lz4", feature = "snappy"))]
#[derive(Clone, Copy)]
struct Input<'a> {
    rest: &'a [u8],
    len: usize,
    codec: Codec,
}

#[cfg(any(feature = "lz4", feature = "snappy"))]
impl<'a> Input<'a> {
    const fn new(codec: Codec, rest: &'a [u8]) -> Self {
        Self {
            rest,
            len: rest.len(),
            codec,
        }
    }

    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    #[inline]
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*bytes)
    }

    #[inline]
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (data, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(data)
    }

    /// Copies a literal of `len` bytes to `out[at..]`. `too_long` is the error if
    /// it does not fit.
    #[inline(always)]
    fn literal(
        &mut self,
        out: &mut [u8],
        at: usize,
        len: usize,
        too_long: fn(&Self) -> CompressionError,
    ) -> Result<(), CompressionError> {
        // Copies 16 bytes at once if there are as many; the excess is
        // overwritten by later elements.
        if len <= 16
            && let Some(source) = self.rest.first_chunk::<16>()
            && let Some(place) = out.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<16>)
        {
            *place = *source;
            return self.take(len).map(drop).ok_or_else(|| self.ends());
        }
        let literal = self.take(len).ok_or_else(|| self.ends())?;
        copy_literal(out, at, literal).ok_or_else(|| too_long(self))
    }

    #[cold]
    fn fault(&self, reason: &'static str) -> CompressionError {
        CompressionError::Malformed {
            codec: self.codec,
            at: self.len.wrapping_sub(self.rest.len()),
            reason,
        }
    }

    #[cold]
    fn ends(&self) -> CompressionError {
        self.fault("it ends too early")
    }
}
