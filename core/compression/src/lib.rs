//! Compression as in frames of Dask `distributed`: lz4, snappy, zlib and zstd, in
//! buffers supplied by the caller.
//!
//! [`decompress`] handles every codec that is compiled in. It checks the
//! declared length of a frame against the maximum ratio of its codec
//! ([`Codec::max_ratio`]) and against a limit of the caller before it writes a
//! byte. A [`Compression`] compresses with memory of a fixed size, and a
//! [`Policy`] decides whether to compress a frame, with Dask's rules.
//!
//! The crate does no I/O, needs no heap and no unsafe code, and does not panic on
//! any input. It knows nothing of messages: the crate `daskwire`, which has it as
//! its module `compression`, applies it to their frames. `PROTOCOL.md` of that
//! crate has the numbered rules that the code cites.
//!
//! | codec | format | without a heap |
//! | --- | --- | --- |
//! | `lz4` | length as `u32`, then one block, as python-lz4 has it | both ways |
//! | `snappy` | raw, without the stream framing | both ways |
//! | `zlib` | a zlib stream | reading only; writing with `alloc` |
//! | `zstd` | one frame that declares its length | no; reading only, with `alloc` |
//!
//! Each codec is a feature. A codec that is not enabled returns
//! [`CompressionError::NotCompiledIn`]; its frames can still be forwarded.
//!
//! ```
//! # #[cfg(feature = "snappy")] {
//! use daskwire_compression::{Codec, Compression, Snappy, decompress};
//!
//! let data = [7; 1000];
//! let mut packed = [0; 1500];
//! let len = Snappy::new().compress(&data, &mut packed)?;
//! assert!(len < 100);
//!
//! let mut unpacked = [0; 1000];
//! decompress(Codec::Snappy, &packed[..len], &mut unpacked, 1 << 20)?;
//! assert_eq!(unpacked, data);
//! # }
//! # Ok::<(), daskwire_compression::CompressionError>(())
//! ```

#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::std_instead_of_core,
    clippy::std_instead_of_alloc
)]
#![cfg_attr(
    not(any(feature = "lz4", feature = "snappy", feature = "zstd")),
    allow(
        unused_variables,
        unreachable_code,
        reason = "no codec declares the length"
    )
)]

/// Methods that set a public field of options, for structs that will get more fields.
macro_rules! with_fields {
    ($($method:ident($field:ident: $type:ty);)*) => {$(
        #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
        #[must_use]
        pub const fn $method(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )*};
}

mod buffer;
mod copy;
#[cfg(any(feature = "lz4", feature = "snappy"))]
mod input;
#[doc(hidden)]
pub mod invariant;
#[cfg(feature = "lz4")]
mod lz4;
#[doc(hidden)]
pub mod measure;
mod policy;
#[cfg(feature = "snappy")]
mod snappy;
#[cfg(feature = "zlib")]
mod zlib;
#[cfg(feature = "zstd")]
mod zstd;

#[cfg(feature = "alloc")]
extern crate alloc;

#[cfg(feature = "alloc")]
use alloc::boxed::Box;
#[cfg(feature = "alloc")]
use alloc::vec::Vec;
use core::fmt;

use crate::invariant::OrDefaultIfBug as _;

pub use buffer::BufferTooSmall;
// Used by the other crates of this workspace.
#[doc(hidden)]
pub use copy::copy;
#[cfg(feature = "lz4")]
pub use lz4::Lz4;
pub use policy::Policy;
#[cfg(feature = "snappy")]
pub use snappy::Snappy;
#[cfg(all(feature = "alloc", feature = "zlib"))]
pub use zlib::Zlib;

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

    /// Creates a compressor of this codec on the heap. `None` for zstd, which is only read,
    /// and for a codec that is not compiled in.
    #[cfg(feature = "alloc")]
    pub fn compressor(self) -> Option<Box<dyn Compression + Send>> {
        match self {
            #[cfg(feature = "lz4")]
            Self::Lz4 => Some(Box::new(Lz4::new())),
            #[cfg(feature = "snappy")]
            Self::Snappy => Some(Box::new(Snappy::new())),
            #[cfg(feature = "zlib")]
            Self::Zlib => Some(Box::new(Zlib::new())),
            _ => None,
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
    /// The decompressed length exceeds the limit of the caller.
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
/// checked against the maximum ratio and against `max_len`, the maximum
/// decompressed length in bytes; only [`decompress`] verifies that the data
/// matches it.
///
/// # Errors
///
/// * [`CompressionError::Implausible`], [`CompressionError::OverLimit`];
/// * [`CompressionError::Malformed`] if the frame has no valid header;
/// * [`CompressionError::NotCompiledIn`].
pub fn decompressed_len(
    codec: Codec,
    frame: &[u8],
    max_len: u64,
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
    if declared > max_len {
        return Err(CompressionError::OverLimit { limit: max_len });
    }
    Ok(Some(declared))
}

/// Decompresses a frame to the start of `out` and returns the decompressed
/// length in bytes.
///
/// The frame must have exactly its declared length, without trailing bytes, and
/// may decompress to `max_len` bytes at most. After an error the contents of
/// `out` are unspecified.
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
    max_len: u64,
) -> Result<usize, CompressionError> {
    #[cfg(feature = "zlib")]
    if codec == Codec::Zlib {
        return zlib::decompress(frame, out, max_len);
    }
    let declared = decompressed_len(codec, frame, max_len)?.or_default_if_bug();
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
/// A frame may decompress to `max_len` bytes at most. The vector does not grow by
/// an unchecked declared length: for lz4 and snappy
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
    max_len: u64,
) -> Result<usize, CompressionError> {
    let start = out.len();
    let result = match codec {
        #[cfg(feature = "zlib")]
        Codec::Zlib => zlib::decompress_onto(frame, out, max_len),
        #[cfg(feature = "zstd")]
        Codec::Zstd => decompressed_len(codec, frame, max_len)
            .and_then(|declared| zstd::decompress_onto(frame, out, declared.or_default_if_bug())),
        codec => decompressed_len(codec, frame, max_len).and_then(|declared| {
            grow(
                out,
                usize::try_from(declared.or_default_if_bug()).unwrap_or(usize::MAX),
            )?;
            decompress(
                codec,
                frame,
                out.get_mut(start..).or_default_if_bug(),
                max_len,
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

/// The example in the README, which is tested with those above.
#[cfg(all(doctest, feature = "snappy"))]
#[doc = include_str!("../README.md")]
struct Readme;
