//! Errors of reading a message.

use core::fmt;

use super::Layout;
use crate::BufferTooSmall;
use crate::compression::CompressionError;
use crate::msgpack::{Malformed, MalformedKind};

/// A fault in a message and its location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct MessageError {
    /// Index of the faulty frame.
    pub frame: usize,
    /// Offset in that frame, in bytes; in a compressed body, the offset in the
    /// decompressed body.
    pub at: usize,
    /// The kind of fault.
    pub kind: MessageErrorKind,
}

/// The kind of a [`MessageError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum MessageErrorKind {
    /// A frame is not a valid MessagePack document.
    Malformed(MalformedKind),
    /// A document is longer than [`document_len`](crate::Limits::document_len).
    DocumentTooLong {
        /// The length of the document, in bytes.
        len: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The message has too few frames to have a body.
    NoBody,
    /// The message has the other layout than the one it was opened in.
    WrongLayout {
        /// The layout that it seems to have.
        likely: Layout,
    },
    /// A placeholder does not refer to a frame after the body.
    PlaceholderNotFrame,
    /// A placeholder refers to a frame past the end of the message.
    PlaceholderPastEnd {
        /// Index of the frame.
        index: u64,
        /// The number of frames in the message.
        frame_count: usize,
    },
    /// A placeholder is a key of a map or inside one.
    PlaceholderInKey,
    /// The header of a payload has a placeholder, which only the body may.
    PlaceholderInHeader,
    /// A `__Set__` map has no list of members.
    SetWithoutList,
    /// An `__Enum__` map lacks one of its three names.
    EnumWithoutName,
    /// A required entry of a header is missing.
    EntryMissing {
        /// The key of the entry.
        key: &'static str,
    },
    /// An entry of a header is of the wrong kind.
    EntryKind {
        /// The key of the entry.
        key: &'static str,
        /// The expected kind.
        expected: &'static str,
    },
    /// A header declares more frames than follow.
    FramesMissing {
        /// The number of frames that the header declares.
        needed: u64,
        /// The number of frames that follow.
        available: usize,
    },
    /// Some frames belong to no payload, in the classic layout.
    FramesLeftOver {
        /// The number of those frames.
        count: usize,
    },
    /// Two payloads claim the same frame.
    FramesShared,
    /// A list in a header has the wrong length.
    ListLength {
        /// The key of the entry.
        key: &'static str,
        /// The number of entries.
        found: u64,
        /// The expected number of entries.
        expected: u64,
    },
    /// The split lists use a sub-frame twice or one that does not exist, or have
    /// more than 64 logical frames that are out of order.
    SplitLists,
    /// The `lengths` end inside a frame. The caller can use
    /// [`merge_into`](super::Payload::merge_into).
    LengthsInsideFrame,
    /// The sum of `lengths` differs from the length of the frames.
    LengthsDiffer {
        /// The sum of the lengths, in bytes.
        declared: u64,
        /// The length of the frames, in bytes.
        actual: u64,
    },
    /// Two payloads have the same path.
    PathTwice,
    /// The path of one payload leads into another payload.
    PathIntoPayload,
    /// The path of a payload does not exist in the body.
    PathMissing,
    /// The path of a payload is ambiguous: a map in the body has a duplicate
    /// key.
    PathAmbiguous,
    /// A compressed frame cannot be decompressed.
    Compression(CompressionError),
    /// The frames of a payload, or of the payloads of a message, decompress to more than
    /// [`decompressed_message_len`](crate::Limits::decompressed_message_len). Nothing was
    /// requested for the frame that exceeds it.
    DecompressedTooLong {
        /// The length of the decompressed frames up to this one, in bytes; at least this
        /// many if the frame does not declare its length.
        len: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A frame is compressed with an unknown codec, such as blosc. The payload
    /// can still be forwarded.
    UnknownCodec {
        /// The name in the header.
        name: CodecName,
    },
    /// The body is nested deeper than the `DEPTH` of the
    /// [`Scratch`](super::Scratch), in levels. In the classic layout more are
    /// needed if `PAYLOADS` is too small as well.
    TooFewLevels(BufferTooSmall),
    /// The message has more payloads, sets and enum members than the
    /// `PAYLOADS` of the [`Scratch`](super::Scratch).
    TooFewSlots(BufferTooSmall),
    /// The decompressed body is longer than the `BODY` of the
    /// [`Scratch`](super::Scratch), in bytes.
    BodyBuffer(BufferTooSmall),
    /// The buffer for the data of a payload is too small. The caller can supply
    /// a larger one.
    DataBuffer(BufferTooSmall),
    /// The caller supplied fewer ends than the payload has logical frames;
    /// counted in ends. The caller can supply more.
    TooFewEnds(BufferTooSmall),
    /// The build cannot read messages of the layout: the feature `classic` is
    /// off.
    NotCompiledIn {
        /// The layout.
        layout: Layout,
    },
    /// There is no payload with this index.
    NoSuchPayload {
        /// The number of payloads.
        count: usize,
    },
}

impl MessageError {
    pub(crate) const fn new(frame: usize, at: usize, kind: MessageErrorKind) -> Self {
        Self { frame, at, kind }
    }

    /// Adds the frame index to an error of the MessagePack reader.
    pub(crate) fn malformed(frame: usize) -> impl Fn(Malformed) -> Self {
        move |error| Self::new(frame, error.at, MessageErrorKind::Malformed(error.kind))
    }

    /// Whether the caller can resolve the error, mostly by supplying larger
    /// buffers. All other errors are the peer's.
    pub const fn is_caller_fault(&self) -> bool {
        if let MessageErrorKind::Compression(error) = self.kind {
            return error.is_caller_fault();
        }
        matches!(
            self.kind,
            MessageErrorKind::TooFewLevels(_)
                | MessageErrorKind::TooFewSlots(_)
                | MessageErrorKind::BodyBuffer(_)
                | MessageErrorKind::DataBuffer(_)
                | MessageErrorKind::TooFewEnds(_)
                | MessageErrorKind::LengthsInsideFrame
                | MessageErrorKind::NotCompiledIn { .. }
                | MessageErrorKind::NoSuchPayload { .. }
        )
    }
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in frame {}, ", self.frame)?;
        if let MessageErrorKind::Malformed(kind) = self.kind {
            return Malformed { at: self.at, kind }.fmt(f);
        }
        write!(f, "at byte {}: ", self.at)?;
        self.kind.fmt(f)
    }
}

impl fmt::Display for MessageErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(kind) => Malformed { at: 0, kind: *kind }.fmt(f),
            Self::DocumentTooLong { len, limit } => {
                write!(f, "a document of {len} bytes; the limit is {limit}")
            }
            Self::NoBody => f.write_str("the message has no body"),
            Self::WrongLayout {
                likely: Layout::Classic,
            } => f.write_str(
                "the message seems to have the classic layout, of distributed up to 2021.3.0, \
                 but was opened in the modern one",
            ),
            Self::WrongLayout {
                likely: Layout::Modern,
            } => f.write_str(
                "the message seems to have the modern layout, of distributed since 2021.3.1, \
                 but was opened in the classic one",
            ),
            Self::PlaceholderNotFrame => {
                f.write_str("a placeholder must refer to a frame by an index of 1 or more")
            }
            Self::PlaceholderPastEnd { index, frame_count } => write!(
                f,
                "a placeholder refers to frame {index}, but the message has {frame_count} frames"
            ),
            Self::PlaceholderInKey => {
                f.write_str("a payload cannot be a key of a map or inside one")
            }
            Self::PlaceholderInHeader => {
                f.write_str("the header of a payload cannot refer to a frame")
            }
            Self::SetWithoutList => {
                f.write_str("a map with __Set__ needs its members as an array under as-list")
            }
            Self::EnumWithoutName => {
                f.write_str("a map with __Enum__ needs strings under name, __module__ and __name__")
            }
            Self::EntryMissing { key } => write!(f, "the header lacks {key}"),
            Self::EntryKind { key, expected } => {
                write!(f, "{key} in the header must be {expected}")
            }
            Self::FramesMissing { needed, available } => write!(
                f,
                "the header declares {needed} frames, but {available} follow"
            ),
            Self::FramesLeftOver { count } => {
                write!(f, "{count} frames belong to no payload")
            }
            Self::FramesShared => f.write_str("two payloads claim the same frame"),
            Self::ListLength {
                key,
                found,
                expected,
            } => write!(f, "{key} has {found} entries, expected {expected}"),
            Self::SplitLists => f.write_str(
                "split-num-sub-frames and split-offsets must use each existing sub-frame at \
                 most once, and may list at most 64 logical frames out of order",
            ),
            Self::LengthsInsideFrame => {
                f.write_str("lengths end inside a frame, so the frames must be merged")
            }
            Self::LengthsDiffer { declared, actual } => write!(
                f,
                "the sum of lengths is {declared} bytes, but the frames have {actual}"
            ),
            Self::PathTwice => f.write_str("two payloads have the same path"),
            Self::PathIntoPayload => {
                f.write_str("the path of a payload leads into another payload")
            }
            Self::PathMissing => f.write_str("the path of a payload does not exist in the message"),
            Self::PathAmbiguous => {
                f.write_str("the path of a payload is ambiguous: a key occurs twice")
            }
            Self::Compression(error) => error.fmt(f),
            Self::DecompressedTooLong { len, limit } => write!(
                f,
                "the frames up to this one decompress to {len} bytes, more than the limit of \
                 {limit}: a program that expects this much raises decompressed_message_len"
            ),
            Self::UnknownCodec { name } => {
                write!(
                    f,
                    "the frame is compressed with {name:?}, which is not a codec known here"
                )
            }
            Self::TooFewLevels(error) => write!(f, "levels of nesting (DEPTH): {error}"),
            Self::TooFewSlots(error) => {
                write!(f, "payloads, sets and enum members (PAYLOADS): {error}")
            }
            Self::BodyBuffer(error) => write!(f, "the decompressed body (BODY): {error}"),
            Self::DataBuffer(error) => write!(f, "the data of a payload: {error}"),
            Self::TooFewEnds(error) => write!(f, "ends of logical frames: {error}"),
            Self::NotCompiledIn { .. } => f.write_str(
                "reading messages of the classic layout needs the feature classic of daskwire",
            ),
            Self::NoSuchPayload { count } => {
                write!(
                    f,
                    "there is no payload with this index; the message has {count}"
                )
            }
        }
    }
}

impl core::error::Error for MessageError {}

/// The name of a codec in a header, truncated to 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CodecName {
    bytes: [u8; 16],
    len: usize,
}

impl CodecName {
    pub(crate) fn new(name: &[u8]) -> Self {
        let mut bytes = [0; 16];
        let len = name.len();
        for (place, byte) in bytes.iter_mut().zip(name) {
            *place = *byte;
        }
        Self { bytes, len }
    }

    /// The first 16 bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for CodecName {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{=[u8]:a}", self.as_bytes());
    }
}

impl fmt::Debug for CodecName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.len > self.bytes.len() {
            "…"
        } else {
            ""
        };
        write!(f, "\"{}\"{more}", self.as_bytes().escape_ascii())
    }
}
