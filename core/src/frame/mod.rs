//! Message framing on a byte stream: the prelude and the incremental decoder.
//!
//! A message is a list of frames. On a stream it begins with the *prelude*: the
//! number of frames and the length of each, as little-endian `u64`
//! (PROTOCOL FRAME-1, FRAME-2); the frames follow back to back
//! (PROTOCOL FRAME-3). An empty frame has a length like any other
//! (PROTOCOL FRAME-4). Since release 2021.3.0 another `u64` precedes the
//! prelude, see [`Prefix`].
//!
//! * [`FrameDecoder`] decodes messages from a stream that arrives in pieces of
//!   any size. It is the only part of this crate that handles incomplete input;
//!   every other module works on whole frames. It does no I/O: it returns the
//!   buffer for the next bytes and the caller reads into it, so a large frame
//!   goes from the socket directly into its final buffer.
//! * [`FramedMessage`] parses one message from a slice that holds all of it, without
//!   copying.
//! * [`encode_prelude`] writes the prelude; the caller sends the frames after
//!   it, unchanged.
//!
//! ```
//! use daskwire::frame::{Arena, FrameDecoder, Prefix};
//! use daskwire::Limits;
//!
//! // What a socket delivers, in pieces of any size.
//! let stream = b"\x1b\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x0b\0\0\0\0\0\0\0\x81\xa6status\xa2OK";
//! let mut decoder = FrameDecoder::new(Prefix::U64, [0; 64], Limits::MICROCONTROLLER);
//! let mut storage = [0; 256];
//! let mut frames = Arena::new(&mut storage);
//!
//! let mut message_count = 0;
//! for mut input in stream.repeat(2).chunks(5) {
//!     // The input may hold the end of one message and the start of the next.
//!     while decoder.push(&mut input, &mut frames)? {
//!         let prelude = decoder.prelude().expect("a complete message has one");
//!         assert_eq!(prelude.frame_count(), 1);
//!         assert_eq!(frames.filled(), b"\x81\xa6status\xa2OK");
//!         message_count += 1;
//!     }
//! }
//! decoder.end()?; // not within a message
//! assert_eq!(message_count, 2);
//! # Ok::<(), daskwire::frame::FrameError>(())
//! ```

mod decoder;
#[cfg(feature = "heapless-09")]
mod heapless_09;
mod storage;

use core::fmt;

use crate::invariant::OrDefaultIfBug as _;
use crate::{BufferTooSmall, Limits};

pub use decoder::{FrameDecoder, Wanted};
pub use storage::{Arena, FrameBuffers, PreludeStorage};

/// Whether a `u64` precedes the prelude.
///
/// The prefix is not negotiated; it depends on the release of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Prefix {
    /// No prefix: the documented protocol, distributed up to 2021.2.0
    /// (PROTOCOL FRAME-5).
    None,
    /// A `u64` with one of two meanings; the decoder accepts both.
    ///
    /// From 2021.3.0 to 2023.10.1 it is the length of everything after it
    /// (PROTOCOL FRAME-6). Since 2023.11.0 it is a read hint: the number of
    /// bytes to read at once, which ends at a frame boundary, but not always at
    /// the end of the message (PROTOCOL FRAME-7). In both cases the lengths in
    /// the prelude are authoritative. This crate writes the total length, which
    /// every release since 2021.3.0 reads.
    U64,
}

impl Prefix {
    /// Length of the prefix and the frame count together, in bytes.
    const fn head_len(self) -> usize {
        match self {
            Self::None => 8,
            Self::U64 => 16,
        }
    }

    /// Offset of the frame count in the message, in bytes.
    const fn count_at(self) -> u64 {
        (self.head_len() as u64).wrapping_sub(8)
    }
}

/// The frame lengths of one message, as a view of the bytes received.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Prelude<'a> {
    lengths: &'a [[u8; 8]],
}

impl<'a> Prelude<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let (lengths, _) = bytes.as_chunks();
        Self { lengths }
    }

    /// The number of frames in the message.
    pub const fn frame_count(&self) -> usize {
        self.lengths.len()
    }

    /// The length of each frame, in bytes.
    pub fn lengths(&self) -> impl ExactSizeIterator<Item = u64> + Clone + use<'a> {
        self.lengths.iter().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// The length of frame `index`, in bytes.
    pub fn length(&self, index: usize) -> Option<u64> {
        let bytes = self.lengths.get(index)?;
        Some(u64::from_le_bytes(*bytes))
    }

    /// Splits `bytes`, which holds the frames back to back, into `slots`.
    ///
    /// # Errors
    ///
    /// * [`SplitError::Slots`] if there are fewer slots than frames;
    /// * [`SplitError::Bytes`] if there are fewer bytes than the frames take.
    pub fn split<'f, 's>(
        &self,
        bytes: &'f [u8],
        slots: &'s mut [&'f [u8]],
    ) -> Result<&'s [&'f [u8]], SplitError> {
        let slots = BufferTooSmall::check(slots, self.frame_count()).map_err(SplitError::Slots)?;
        let mut rest = bytes;
        for (slot, length) in slots.iter_mut().zip(self.lengths()) {
            let cut = usize::try_from(length)
                .ok()
                .and_then(|length| rest.split_at_checked(length));
            let Some((frame, after)) = cut else {
                let total = self
                    .lengths()
                    .fold(0_u64, |sum, length| sum.saturating_add(length));
                return Err(SplitError::Bytes(BufferTooSmall {
                    needed: usize::try_from(total).unwrap_or(usize::MAX),
                    available: bytes.len(),
                }));
            };
            *slot = frame;
            rest = after;
        }
        Ok(slots)
    }
}

impl fmt::Debug for Prelude<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.lengths()).finish()
    }
}

/// The error of [`Prelude::split`], a fault of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum SplitError {
    /// There are fewer slots than frames; counted in frames.
    Slots(BufferTooSmall),
    /// There are fewer bytes than the frames take, so these are not the bytes of
    /// this message.
    Bytes(BufferTooSmall),
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slots(error) => write!(f, "slots for frames: {error}"),
            Self::Bytes(error) => write!(f, "the bytes of the frames: {error}"),
        }
    }
}

impl core::error::Error for SplitError {}

/// The length of a prelude for `frame_count` frames, in bytes, prefix included.
///
/// `None` if it does not fit the address space.
pub const fn prelude_len(prefix: Prefix, frame_count: usize) -> Option<usize> {
    match frame_count.checked_mul(8) {
        Some(len) => len.checked_add(prefix.head_len()),
        None => None,
    }
}

/// Writes the prelude for frames of these lengths to the start of `out` and
/// returns its length in bytes.
///
/// With [`Prefix::U64`] the prefix is the length of everything after it, which
/// every release since 2021.3.0 reads (PROTOCOL FRAME-9). The frames do
/// not depend on the prefix (PROTOCOL FORWARD-4).
///
/// ```
/// use daskwire::frame::{encode_prelude, Prefix};
/// let mut out = [0; 32];
/// let frames: [&[u8]; 2] = [b"\x81", b"frame"];
/// let len = encode_prelude(Prefix::U64, frames.iter().map(|frame| frame.len() as u64), &mut out)?;
/// assert_eq!(len, 32);
/// assert_eq!(out[0], 8 + 2 * 8 + 1 + 5);
/// # Ok::<(), daskwire::frame::EncodeError>(())
/// ```
///
/// # Errors
///
/// * [`EncodeError::NoFrames`]: `lengths` is empty, which every peer rejects;
/// * [`EncodeError::BufferTooSmall`]: the prelude does not fit in `out`;
/// * [`EncodeError::TooLong`]: the sum of the lengths overflows a `u64`.
pub fn encode_prelude<I>(prefix: Prefix, lengths: I, out: &mut [u8]) -> Result<usize, EncodeError>
where
    I: IntoIterator<Item = u64>,
    I::IntoIter: ExactSizeIterator + Clone,
{
    encode_prelude_with(prefix, ReadHint::Whole, lengths, out)
}

/// As [`encode_prelude`], with another read hint for [`Prefix::U64`].
///
/// # Errors
///
/// As [`encode_prelude`].
pub fn encode_prelude_with<I>(
    prefix: Prefix,
    hint: ReadHint,
    lengths: I,
    out: &mut [u8],
) -> Result<usize, EncodeError>
where
    I: IntoIterator<Item = u64>,
    I::IntoIter: ExactSizeIterator + Clone,
{
    let lengths = lengths.into_iter();
    if lengths.len() == 0 {
        return Err(EncodeError::NoFrames);
    }
    let len = prelude_len(prefix, lengths.len()).ok_or(EncodeError::TooLong)?;
    let out = BufferTooSmall::check(out, len).map_err(EncodeError::BufferTooSmall)?;
    let (words, _) = out.as_chunks_mut::<8>();
    let mut words = words.iter_mut();
    let mut put = |value: u64| {
        if let Some(word) = words.next() {
            *word = value.to_le_bytes();
        }
    };
    if prefix == Prefix::U64 {
        let prelude = (len as u64).wrapping_sub(8);
        let total = lengths
            .clone()
            .try_fold(prelude, u64::checked_add)
            .ok_or(EncodeError::TooLong)?;
        put(match hint {
            ReadHint::Whole => total,
            ReadHint::Apart => prelude.wrapping_add(read_at_once(lengths.clone())),
        });
    }
    put(lengths.len() as u64);
    lengths.for_each(put);
    Ok(len)
}

/// Dask's maximum length of a payload frame before splitting, in bytes: 64 MiB
/// (`distributed.comm.shard`, PROTOCOL SPLIT-1).
pub const SHARD_LEN: usize = 64 << 20;

/// What the u64 before the prelude asks a Dask process to read at once (PROTOCOL FRAME-7). It reads
/// all of that into one buffer, which stays in memory as long as any part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ReadHint {
    /// All frames, for peers of any release.
    #[default]
    Whole,
    /// The first frames, up to the second large one, so that each other large frame gets a
    /// buffer of its own. Releases before 2023.11.0 lose the frames after these (PROTOCOL
    /// FRAME-9).
    Apart,
}

/// Returns the number of bytes of the first frames that Dask should read at once.
// PROTOCOL FRAME-9
fn read_at_once(lengths: impl Iterator<Item = u64>) -> u64 {
    /// Frames up to this length, in bytes, stay with those before them: to read each by itself
    /// takes longer than their memory is worth.
    const MAX_SMALL: u64 = 2048;
    /// The shards of a buffer are of this length, less a part of an item; all but the last.
    const SHARDS: core::ops::RangeInclusive<u64> =
        (SHARD_LEN as u64).saturating_sub(4096)..=SHARD_LEN as u64;
    let (mut sum, mut last, mut large_count) = (0_u64, 0, 0_u32);
    for (index, len) in lengths.enumerate() {
        // The first frame is the body, to which nothing refers after the message was opened.
        if index > 0 && len > MAX_SMALL && !SHARDS.contains(&last) {
            // As in Dask, the pickle of a large buffer is kept with it if it is small.
            if large_count > 0 || sum > MAX_SMALL.max(len / 20) {
                break;
            }
            large_count = 1;
        }
        sum = sum.saturating_add(len);
        last = len;
    }
    sum
}

/// The error of [`encode_prelude`], a fault of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum EncodeError {
    /// The message has no frames; every message has at least one.
    NoFrames,
    /// The prelude does not fit in the buffer.
    BufferTooSmall(BufferTooSmall),
    /// The length of the message does not fit in a `u64`, or the length of the
    /// prelude in a `usize`.
    TooLong,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFrames => {
                f.write_str("the message has no frames; every message has at least one")
            }
            Self::BufferTooSmall(error) => write!(f, "the prelude: {error}"),
            Self::TooLong => f.write_str("the message is too long for its prelude"),
        }
    }
}

impl core::error::Error for EncodeError {}

/// One message in a slice that holds all of it, and the bytes after it.
///
/// For recorded streams and transports that deliver whole messages. For a byte
/// stream use a [`FrameDecoder`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct FramedMessage<'a> {
    /// The value of the prefix, if the stream has one.
    pub prefix_value: Option<u64>,
    /// The lengths of the frames.
    pub prelude: Prelude<'a>,
    /// The frames, back to back; [`Prelude::split`] separates them.
    pub frames: &'a [u8],
    /// The bytes after the message.
    pub rest: &'a [u8],
}

impl<'a> FramedMessage<'a> {
    /// Parses the first message in `bytes`.
    ///
    /// # Errors
    ///
    /// The error that [`FrameDecoder`] returns for the same bytes, or
    /// [`FrameErrorKind::Truncated`] if the message is incomplete.
    pub fn parse(bytes: &'a [u8], prefix: Prefix, limits: &Limits) -> Result<Self, FrameError> {
        let (checker, lengths, after) = Checker::whole(prefix, bytes, limits)?;
        let (frames, rest) = usize::try_from(checker.frames_len)
            .ok()
            .and_then(|len| after.split_at_checked(len))
            .ok_or_else(|| truncated(bytes, checker.message_len()))?;
        Ok(Self {
            prefix_value: checker.hint,
            prelude: Prelude::new(lengths),
            frames,
            rest,
        })
    }

    /// The length of the message on the stream, in bytes, prelude included.
    pub fn message_len(&self) -> u64 {
        let words = self.prelude.frame_count().saturating_add(1);
        let words = words.saturating_add(usize::from(self.prefix_value.is_some()));
        (words as u64)
            .saturating_mul(8)
            .saturating_add(self.frames.len() as u64)
    }
}

/// A violation of the framing rules and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FrameError {
    /// Offset of the fault from the start of the message, in bytes.
    pub at: u64,
    /// The kind of fault.
    pub kind: FrameErrorKind,
}

/// The kind of a [`FrameError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum FrameErrorKind {
    /// The message has no frames; every message has at least one.
    NoFrames,
    /// The message has more frames than [`frame_count`](Limits::frame_count).
    TooManyFrames {
        /// The number of frames that the message declares.
        count: u64,
        /// The limit.
        limit: u64,
    },
    /// A frame is longer than [`frame_len`](Limits::frame_len).
    FrameTooLong {
        /// Index of the frame.
        index: u64,
        /// Its length, in bytes.
        len: u64,
        /// The limit.
        limit: u64,
    },
    /// A frame or the lengths do not fit in the address space. Only
    /// occurs on machines with 32-bit addresses, or for lengths of 2^63 and
    /// more.
    BeyondAddressSpace {
        /// The length, in bytes.
        len: u64,
    },
    /// The frames together are longer than
    /// [`message_len`](Limits::message_len).
    MessageTooLong {
        /// Index of the frame that exceeds the limit.
        index: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The prefix is smaller than the length of the prelude.
    PrefixTooShort {
        /// The value of the prefix.
        value: u64,
        /// The smallest valid value.
        min: u64,
    },
    /// The prefix ends inside a frame instead of at a frame boundary.
    PrefixInsideFrame {
        /// The value of the prefix.
        value: u64,
        /// Index of the frame that it ends in.
        index: u64,
    },
    /// The prefix is larger than the whole message.
    PrefixPastEnd {
        /// The value of the prefix.
        value: u64,
        /// The largest valid value.
        max: u64,
    },
    /// The storage for the lengths is too small. The caller can supply
    /// a larger one.
    PreludeStorage(BufferTooSmall),
    /// The caller's [`FrameBuffers`] returned no buffer for a frame. The caller
    /// can supply one and continue.
    NoBuffer {
        /// Index of the frame.
        index: usize,
        /// Its length, in bytes.
        len: usize,
        /// The length of all frames of the message, in bytes.
        frames_len: u64,
    },
    /// The caller reported more bytes than the buffer had room for.
    Overrun {
        /// The number of bytes reported.
        advanced: usize,
        /// The length of the buffer, in bytes.
        space: usize,
    },
    /// The stream ended within a message.
    Truncated {
        /// The smallest possible length of the message, in bytes.
        needed: u64,
    },
}

impl FrameError {
    /// Whether the caller is at fault: buffers that are too small, or a wrong
    /// count. All other errors are the peer's.
    pub const fn is_caller_fault(&self) -> bool {
        matches!(
            self.kind,
            FrameErrorKind::PreludeStorage(_)
                | FrameErrorKind::NoBuffer { .. }
                | FrameErrorKind::Overrun { .. }
        )
    }
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {} of the message: ", self.at)?;
        self.kind.fmt(f)
    }
}

impl FrameErrorKind {
    /// The error of this kind at an offset in the message.
    const fn at(self, at: u64) -> FrameError {
        FrameError { at, kind: self }
    }
}

impl fmt::Display for FrameErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoFrames => {
                f.write_str("the message has no frames; every message has at least one")
            }
            Self::TooManyFrames { count, limit } => {
                write!(
                    f,
                    "the message declares {count} frames; the limit is {limit}"
                )
            }
            Self::FrameTooLong { index, len, limit } => {
                write!(
                    f,
                    "frame {index} has a declared length of {len} bytes; the limit is {limit}"
                )
            }
            Self::BeyondAddressSpace { len } => {
                write!(f, "{len} bytes do not fit in the address space")
            }
            Self::MessageTooLong { index, limit } => write!(
                f,
                "with frame {index} the message exceeds the limit of {limit} bytes"
            ),
            Self::PrefixTooShort { value, min } => write!(
                f,
                "the leading length is {value}, but the prelude alone takes {min}"
            ),
            Self::PrefixInsideFrame { value, index } => write!(
                f,
                "the leading length of {value} ends inside frame {index}, not at a frame boundary"
            ),
            Self::PrefixPastEnd { value, max } => write!(
                f,
                "the leading length is {value}, but the message ends after {max}"
            ),
            Self::PreludeStorage(error) => {
                write!(f, "the lengths of the frames: {error}")
            }
            Self::NoBuffer {
                index,
                len,
                frames_len,
            } => write!(
                f,
                "no buffer was supplied for frame {index} of {len} bytes; \
                 all frames take {frames_len} bytes"
            ),
            Self::Overrun { advanced, space } => write!(
                f,
                "{advanced} bytes were reported as read into a buffer of {space}"
            ),
            Self::Truncated { needed } => write!(
                f,
                "the stream ends here, but the message is at least {needed} bytes long"
            ),
        }
    }
}

impl core::error::Error for FrameError {}

/// The error for a message that ends with `bytes`.
#[cold]
const fn truncated(bytes: &[u8], needed: u64) -> FrameError {
    FrameErrorKind::Truncated { needed }.at(bytes.len() as u64)
}

/// Validates the frame count and the lengths as they arrive. Shared by
/// [`FrameDecoder`] and [`FramedMessage`], so that both accept the same input.
#[derive(Clone, Copy, Debug)]
struct Checker {
    prefix: Prefix,
    hint: Option<u64>,
    frame_count: u64,
    /// The number of lengths checked so far.
    seen: u64,
    /// The sum of those lengths, in bytes.
    frames_len: u64,
    /// Whether the prefix is known to end at a frame boundary.
    hint_met: bool,
}

impl Checker {
    /// A checker before anything has arrived.
    const fn unused(prefix: Prefix) -> Self {
        Self {
            prefix,
            hint: None,
            frame_count: 0,
            seen: 0,
            frames_len: 0,
            hint_met: true,
        }
    }

    /// Checks the prefix and the frame count. `head` holds [`Prefix::head_len`]
    /// bytes.
    fn new(prefix: Prefix, head: &[u8], limits: &Limits) -> Result<Self, FrameError> {
        let (words, _) = head.as_chunks();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let hint = match prefix {
            Prefix::None => None,
            Prefix::U64 => words.next(),
        };
        let frame_count = words.next().or_default_if_bug();
        let fault = |at, kind: FrameErrorKind| Err(kind.at(at));
        // The frame count can be as large as 2^64 - 1 if the limit allows it.
        let min = frame_count.saturating_add(1).saturating_mul(8);
        // First, since these are likely the count and a length of a message
        // without a prefix.
        if let Some(value @ 1..16) = hint
            && (value, frame_count) != (8, 0)
        {
            return fault(0, FrameErrorKind::PrefixTooShort { value, min });
        }
        // PROTOCOL FRAME-10
        if frame_count == 0 {
            return fault(prefix.count_at(), FrameErrorKind::NoFrames);
        }
        // PROTOCOL FRAME-11
        if frame_count > limits.frame_count {
            let kind = FrameErrorKind::TooManyFrames {
                count: frame_count,
                limit: limits.frame_count,
            };
            return fault(prefix.count_at(), kind);
        }
        let mut checker = Self {
            hint,
            frame_count,
            hint_met: hint.is_none(),
            ..Self::unused(prefix)
        };
        if let Some(value) = hint {
            if value < min {
                return fault(0, FrameErrorKind::PrefixTooShort { value, min });
            }
            checker.hint_met = value == min;
        }
        Ok(checker)
    }

    /// Checks the prelude at the start of `bytes`. Returns the lengths and
    /// the bytes after it.
    fn whole<'a>(
        prefix: Prefix,
        bytes: &'a [u8],
        limits: &Limits,
    ) -> Result<(Self, &'a [u8], &'a [u8]), FrameError> {
        let head_len = prefix.head_len();
        let Some((head, after)) = bytes.split_at_checked(head_len) else {
            return Err(truncated(bytes, head_len as u64));
        };
        let mut checker = Self::new(prefix, head, limits)?;
        let split = after.split_at_checked(checker.lengths_len()?);
        let (lengths, _) = split.map_or(after, |(lengths, _)| lengths).as_chunks();
        checker.lengths(lengths, limits)?;
        let (lengths, rest) = split.ok_or_else(|| truncated(bytes, checker.message_len()))?;
        checker.finish()?;
        Ok((checker, lengths, rest))
    }

    /// The space that the lengths take, in bytes.
    fn lengths_len(&self) -> Result<usize, FrameError> {
        self.frame_count
            .checked_mul(8)
            .and_then(|len| usize::try_from(len).ok())
            .filter(|len| isize::try_from(*len).is_ok())
            .ok_or_else(|| {
                let len = self.frame_count.saturating_mul(8);
                FrameErrorKind::BeyondAddressSpace { len }.at(self.prefix.count_at())
            })
    }

    /// The bytes covered by the prefix so far: the prelude and the frames whose
    /// lengths were checked.
    fn counted(&self) -> u64 {
        // `lengths_len` has checked that the lengths fit in the address space.
        self.frame_count
            .wrapping_add(1)
            .wrapping_mul(8)
            .saturating_add(self.frames_len)
    }

    /// The length of the message up to the last frame whose length was checked.
    fn message_len(&self) -> u64 {
        self.counted().saturating_add(self.prefix.count_at())
    }

    fn lengths(&mut self, lengths: &[[u8; 8]], limits: &Limits) -> Result<(), FrameError> {
        for length in lengths {
            let len = u64::from_le_bytes(*length);
            let index = self.seen;
            let at = (self.prefix.head_len() as u64).wrapping_add(index.wrapping_mul(8));
            let fault = |kind: FrameErrorKind| Err(kind.at(at));
            // PROTOCOL FRAME-11
            if len > limits.frame_len {
                return fault(FrameErrorKind::FrameTooLong {
                    index,
                    len,
                    limit: limits.frame_len,
                });
            }
            if isize::try_from(len).is_err() {
                return fault(FrameErrorKind::BeyondAddressSpace { len });
            }
            match self.frames_len.checked_add(len) {
                Some(sum) if sum <= limits.message_len => self.frames_len = sum,
                _ => {
                    return fault(FrameErrorKind::MessageTooLong {
                        index,
                        limit: limits.message_len,
                    });
                }
            }
            self.seen = self.seen.saturating_add(1);
            if let Some(value) = self.hint
                && !self.hint_met
            {
                let counted = self.counted();
                if value < counted {
                    return Err(FrameErrorKind::PrefixInsideFrame { value, index }.at(0));
                }
                self.hint_met = value == counted;
            }
        }
        Ok(())
    }

    /// Checks the prefix once all lengths have been checked.
    fn finish(&self) -> Result<(), FrameError> {
        // PROTOCOL FRAME-8
        match self.hint {
            Some(value) if !self.hint_met => {
                let max = self.counted();
                Err(FrameErrorKind::PrefixPastEnd { value, max }.at(0))
            }
            _ => Ok(()),
        }
    }
}
