//! Compression of frames: formats, bounds, and when it pays.
//!
//! Mechanism and policy are apart. [`decompress`] undoes any codec that is
//! compiled in; what a frame claims to become is compared with what it can
//! become ([`Codec::max_ratio`]) and with the [`Limits`] before a byte is
//! written. A [`Compression`] compresses with a table that the caller supplies,
//! and a [`Policy`] decides whether a frame is worth it, as Dask does.
//!
//! | codec | format | without a heap |
//! | --- | --- | --- |
//! | `lz4` | length as `u32`, then one block, as python-lz4 has it | both ways |
//! | `snappy` | raw, without the stream framing | both ways |
//! | `zlib` | a zlib stream | reading; writing with the feature `alloc` |
//! | `zstd` | one frame that says its length | no: feature `zstd` brings `alloc` |
//!
//! Which of them are there is a matter of features. One that is not gives
//! [`CompressionError::NotCompiledIn`]; its frames can still be forwarded.
//!
//! ```
//! # #[cfg(feature = "snappy")] {
//! use daskwire::Limits;
//! use daskwire::compression::{Codec, Compression, Snappy, SnappyTable, decompress};
//!
//! let data = [7; 1000];
//! let (mut table, mut packed) = (SnappyTable::new(), [0; 1500]);
//! let len = Snappy::new(&mut table).compress(&data, &mut packed)?;
//! assert!(len < 100);
//!
//! let mut unpacked = [0; 1000];
//! decompress(Codec::Snappy, &packed[..len], &mut unpacked, &Limits::HOST)?;
//! assert_eq!(unpacked, data);
//! # }
//! # Ok::<(), daskwire::compression::CompressionError>(())
//! ```

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

use crate::{BufferTooSmall, Limits};

#[cfg(feature = "lz4")]
pub use lz4::{Lz4, Lz4Table};
pub use policy::Policy;
#[cfg(feature = "snappy")]
pub use snappy::{Snappy, SnappyTable};
#[cfg(all(feature = "zlib", feature = "alloc"))]
pub use zlib::Zlib;
#[cfg(feature = "zstd")]
pub use zstd::Zstd;

/// A codec that Dask knows by name (PROTOCOL COMPRESS-1, COMPRESS-2, COMPRESS-3
/// and COMPRESS-4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Codec {
    /// lz4 block with its length in front.
    Lz4,
    /// Raw snappy.
    Snappy,
    /// A zlib stream.
    Zlib,
    /// A zstd frame that says its length.
    Zstd,
}

impl Codec {
    /// The codec of this name, in Dask's spelling. `None` for names that are
    /// not known here; `blosc` (up to 2022.4.0) is one.
    pub const fn from_name(name: &[u8]) -> Option<Self> {
        match name {
            b"lz4" => Some(Self::Lz4),
            b"snappy" => Some(Self::Snappy),
            b"zlib" => Some(Self::Zlib),
            b"zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Its name in headers and in the handshake.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Snappy => "snappy",
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
        }
    }

    /// Whether frames of this codec can be decompressed here.
    pub const fn is_compiled_in(self) -> bool {
        match self {
            Self::Lz4 => cfg!(feature = "lz4"),
            Self::Snappy => cfg!(feature = "snappy"),
            Self::Zlib => cfg!(feature = "zlib"),
            Self::Zstd => cfg!(feature = "zstd"),
        }
    }

    /// How many bytes one compressed byte can become at most.
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

/// A compressed frame that cannot be decompressed, or a frame that cannot be
/// compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompressionError {
    /// The buffer is too small: the caller's turn. Where the format does not
    /// say how much is needed, `needed` is one more than there was.
    BufferTooSmall(BufferTooSmall),
    /// The frame is not of this format.
    Malformed {
        /// The codec.
        codec: Codec,
        /// Where, in bytes from the start of the compressed frame.
        at: usize,
        /// What is wrong there.
        reason: &'static str,
    },
    /// The frame claims to become more than so few bytes can.
    Implausible {
        /// Bytes that it claims.
        declared: u64,
        /// Bytes that it has.
        len: usize,
        /// Bytes that one byte can become at most.
        ratio: u64,
    },
    /// The frame becomes more than
    /// [`decompressed_len`](Limits::decompressed_len).
    OverLimit {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The allocator has no memory for what the frame becomes.
    OutOfMemory {
        /// Bytes that were asked for.
        needed: u64,
    },
    /// The codec is known, but not part of this build.
    NotCompiledIn {
        /// The codec, which is also the name of the feature.
        codec: Codec,
    },
}

impl fmt::Display for CompressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BufferTooSmall(error) => error.fmt(f),
            Self::Malformed { codec, at, reason } => {
                write!(f, "not {codec}: at byte {at} of the frame, {reason}")
            }
            Self::Implausible {
                declared,
                len,
                ratio,
            } => write!(
                f,
                "the frame claims {declared} bytes, but {len} compressed bytes become \
                 {ratio} times as many at most"
            ),
            Self::OverLimit { limit } => {
                write!(f, "the frame becomes more than the limit of {limit} bytes")
            }
            Self::OutOfMemory { needed } => write!(
                f,
                "there is no memory for the {needed} bytes that the frame is decompressed to"
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

/// How many bytes a compressed frame becomes, as it says itself.
///
/// `None` if the format does not say (zlib). The number has passed the bound of
/// the codec and the limits, and is still only a claim: [`decompress`] holds
/// the frame to it.
///
/// # Errors
///
/// * [`CompressionError::Implausible`], [`CompressionError::OverLimit`];
/// * [`CompressionError::Malformed`] if the frame does not begin as it must;
/// * [`CompressionError::NotCompiledIn`].
#[cfg_attr(
    not(any(feature = "lz4", feature = "snappy", feature = "zstd")),
    allow(
        unused_variables,
        unreachable_code,
        reason = "no codec says its length"
    )
)]
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

/// Decompresses a frame to the front of `out` and returns how many bytes that
/// was.
///
/// The frame must hold exactly what it says, to its last byte. After an error
/// the content of `out` means nothing.
///
/// # Errors
///
/// * as [`decompressed_len`];
/// * [`CompressionError::Malformed`] if the frame is not of this format;
/// * [`CompressionError::BufferTooSmall`] if `out` does not hold the data.
#[cfg_attr(
    not(any(feature = "lz4", feature = "snappy", feature = "zstd")),
    allow(
        unused_variables,
        unreachable_code,
        reason = "no codec says its length"
    )
)]
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
    let declared = decompressed_len(codec, frame, limits)?.unwrap_or_default();
    let available = out.len();
    let needed = usize::try_from(declared).unwrap_or(usize::MAX);
    let out = out
        .get_mut(..needed)
        .ok_or(BufferTooSmall { needed, available })?;
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

/// Decompresses a frame to the end of `out`, and returns how many bytes that was.
///
/// The vector grows with the bytes that are there, not with what the frame
/// claims, as far as the codec allows: a claim of lz4 or snappy is bounded by
/// [`Codec::max_ratio`], those of zlib and zstd are never trusted. After an error
/// `out` is as it was.
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
            .and_then(|declared| zstd::decompress_onto(frame, out, declared.unwrap_or_default())),
        codec => decompressed_len(codec, frame, limits).and_then(|declared| {
            grow(
                out,
                usize::try_from(declared.unwrap_or_default()).unwrap_or(usize::MAX),
            )?;
            decompress(
                codec,
                frame,
                out.get_mut(start..).unwrap_or_default(),
                limits,
            )
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

/// Compresses frames with a codec, in room that the caller supplied.
pub trait Compression {
    /// The codec.
    fn codec(&self) -> Codec;

    /// Bytes that `len` bytes may take when compressed, at worst. `None` if the
    /// codec does not take so many.
    fn max_compressed_len(&self, len: usize) -> Option<usize>;

    /// Compresses `data` to the front of `out`, and returns how many bytes that
    /// took.
    ///
    /// # Errors
    ///
    /// [`CompressionError::BufferTooSmall`] if `out` is shorter than
    /// [`max_compressed_len`](Self::max_compressed_len).
    fn compress(&mut self, data: &[u8], out: &mut [u8]) -> Result<usize, CompressionError>;
}

/// The part of `out` that compressing `len` bytes may need.
#[cfg(any(
    feature = "lz4",
    feature = "snappy",
    feature = "zstd",
    all(feature = "zlib", feature = "alloc")
))]
fn room(out: &mut [u8], needed: Option<usize>) -> Result<&mut [u8], CompressionError> {
    let available = out.len();
    let needed = needed.unwrap_or(usize::MAX);
    out.get_mut(..needed)
        .ok_or_else(|| BufferTooSmall { needed, available }.into())
}

/// Copies `len` bytes from `offset` bytes back to `at`, which is within `out`,
/// as lz4 and snappy understand it: where the two overlap, what was just
/// written is copied again.
///
/// `None` if there are no such bytes or no such room.
#[cfg(any(feature = "lz4", feature = "snappy"))]
#[inline]
fn copy_back(out: &mut [u8], at: usize, offset: usize, len: usize) -> Option<()> {
    let from = at.checked_sub(offset)?;
    let end = at.checked_add(len)?;
    // Short copies that do not overlap are most of them. What is written
    // beyond the end is written again by what follows, or the frame is too
    // short and refused.
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
        // A run of one byte, as zeros are.
        let byte = *out.get(from)?;
        out.get_mut(at..end)?.fill(byte);
        return Some(());
    }
    // Twice as much each time, whole periods of it.
    let mut done = 0_usize;
    while done < len {
        let step = offset.checked_add(done)?.min(len.checked_sub(done)?);
        let to = at.checked_add(done)?;
        copy_ahead(out, from, to, step)?;
        done = done.checked_add(step)?;
    }
    Some(())
}

/// Copies `len` bytes from `from` to `to`, which is further on; the two do not
/// overlap. In this form no panic is left that the linker could find.
#[cfg(any(feature = "lz4", feature = "snappy"))]
#[inline]
fn copy_ahead(out: &mut [u8], from: usize, to: usize, len: usize) -> Option<()> {
    let (before, behind) = out.split_at_mut_checked(to)?;
    let source = before.get(from..)?.get(..len)?;
    crate::measure::copy(behind.get_mut(..len)?, source);
    Some(())
}

/// Copies `data` to `at`, which is within `out`. `None` if there is no room.
#[cfg(any(feature = "lz4", feature = "snappy"))]
#[inline]
fn copy_literal(out: &mut [u8], at: usize, data: &[u8]) -> Option<()> {
    crate::measure::copy(out.get_mut(at..)?.get_mut(..data.len())?, data);
    Some(())
}

/// The next bytes of a compressed frame.
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
