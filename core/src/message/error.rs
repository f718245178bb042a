//! What can be wrong with a message.

use core::fmt;

use crate::BufferTooSmall;
use crate::compression::CompressionError;
use crate::msgpack::{Kind, Malformed, MalformedKind};

/// A message that breaks the rules, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageError {
    /// The frame that is at fault, counted from 0.
    pub frame: usize,
    /// The offset in that frame, in bytes. Where the body was compressed, in
    /// the decompressed body.
    pub at: usize,
    /// What is wrong.
    pub kind: MessageErrorKind,
}

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageErrorKind {
    /// A frame that has to be a MessagePack document is none.
    Malformed(MalformedKind),
    /// A document longer than [`document_len`](crate::Limits::document_len).
    DocumentTooLong {
        /// Its length, in bytes.
        len: u64,
        /// The limit.
        limit: u64,
    },
    /// The message has too few frames to have a body.
    NoBody,
    /// A placeholder names something else than a frame behind the body.
    PlaceholderNotFrame,
    /// A placeholder names a frame that the message does not have.
    PlaceholderPastEnd {
        /// The frame named.
        index: u64,
        /// How many frames the message has.
        frame_count: usize,
    },
    /// A placeholder is a key of a map, or stands in one.
    PlaceholderInKey,
    /// The header of a payload refers to a frame, as only the body may.
    PlaceholderInHeader,
    /// A `__Set__` without the list of its members.
    SetWithoutList,
    /// An `__Enum__` without one of its three names.
    EnumWithoutName,
    /// A header lacks an entry that it must have.
    EntryMissing {
        /// Its key.
        key: &'static str,
    },
    /// An entry of a header is not of the kind that it must be.
    EntryKind {
        /// Its key.
        key: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// A header speaks of more frames than there are.
    FramesMissing {
        /// Frames that the header speaks of.
        needed: u64,
        /// Frames that follow.
        available: usize,
    },
    /// Frames that no payload claims, in the classic layout.
    FramesLeftOver {
        /// How many.
        count: usize,
    },
    /// Two payloads claim the same frame.
    FramesShared,
    /// A list in a header has another length than what it is about.
    ListLength {
        /// Its key.
        key: &'static str,
        /// How many entries it has.
        found: u64,
        /// How many it must have.
        expected: u64,
    },
    /// The split lists do not take each sub-frame once.
    SplitLists,
    /// `lengths` do not add up to what the frames hold.
    LengthsDiffer {
        /// What the lengths add up to, in bytes.
        declared: u64,
        /// What the frames hold, in bytes.
        actual: u64,
    },
    /// Two payloads have the same path.
    PathTwice,
    /// The path of one payload goes into another.
    PathIntoPayload,
    /// The path of a payload leads to no place in the body.
    PathMissing,
    /// The path of a payload leads to two places in the body: a map in it has a
    /// key twice.
    PathAmbiguous,
    /// A compressed frame that cannot be decompressed.
    Compression(CompressionError),
    /// A frame is compressed with a codec that is not known here, such as
    /// blosc. The payload can still be forwarded.
    UnknownCodec {
        /// What the header calls it.
        name: CodecName,
    },
    /// More levels of nesting than the caller supplied. The caller's turn.
    TooFewLevels {
        /// How many were supplied.
        available: usize,
    },
    /// More payloads, sets and enum members than the caller supplied places
    /// for; counted in places. The caller's turn.
    TooFewPlaces(BufferTooSmall),
    /// The body is compressed, and the buffer for it is too small. The
    /// caller's turn.
    BodyBuffer(BufferTooSmall),
    /// The buffer for the data of a payload is too small. The caller's turn.
    DataBuffer(BufferTooSmall),
    /// There are fewer ends than the payload has logical frames; counted in
    /// ends. The caller's turn.
    TooFewEnds(BufferTooSmall),
    /// There is no payload of that number.
    NoSuchPayload {
        /// How many there are.
        count: usize,
    },
}

impl MessageError {
    pub(crate) const fn new(frame: usize, at: usize, kind: MessageErrorKind) -> Self {
        Self { frame, at, kind }
    }

    /// Places an error of the MessagePack reader in `frame`.
    pub(crate) fn malformed(frame: usize) -> impl Fn(Malformed) -> Self {
        move |error| Self::new(frame, error.at, MessageErrorKind::Malformed(error.kind))
    }

    /// Whether the caller can do something about it: supply more room.
    pub const fn is_callers(&self) -> bool {
        matches!(
            self.kind,
            MessageErrorKind::TooFewLevels { .. }
                | MessageErrorKind::TooFewPlaces(_)
                | MessageErrorKind::BodyBuffer(_)
                | MessageErrorKind::DataBuffer(_)
                | MessageErrorKind::TooFewEnds(_)
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
            Self::PlaceholderNotFrame => {
                f.write_str("a placeholder must name a frame by a number of 1 or more")
            }
            Self::PlaceholderPastEnd { index, frame_count } => write!(
                f,
                "a placeholder names frame {index}, but the message has {frame_count} frames"
            ),
            Self::PlaceholderInKey => {
                f.write_str("a payload cannot be a key of a map, nor stand in one")
            }
            Self::PlaceholderInHeader => {
                f.write_str("the header of a payload cannot refer to a frame")
            }
            Self::SetWithoutList => {
                f.write_str("a map with __Set__ needs its members as an array under as-list")
            }
            Self::EnumWithoutName => {
                f.write_str("a map with __Enum__ needs texts under name, __module__ and __name__")
            }
            Self::EntryMissing { key } => write!(f, "the header lacks {key}"),
            Self::EntryKind { key, expected } => {
                write!(f, "{key} in the header must be {expected}")
            }
            Self::FramesMissing { needed, available } => write!(
                f,
                "the header speaks of {needed} frames, but {available} follow"
            ),
            Self::FramesLeftOver { count } => {
                write!(f, "{count} frames are left that no payload claims")
            }
            Self::FramesShared => f.write_str("two payloads claim the same frame"),
            Self::ListLength {
                key,
                found,
                expected,
            } => write!(f, "{key} has {found} entries where {expected} are needed"),
            Self::SplitLists => f.write_str(
                "split-num-sub-frames and split-offsets must take each sub-frame at most once, \
                 and none that is not there",
            ),
            Self::LengthsDiffer { declared, actual } => write!(
                f,
                "lengths add up to {declared} bytes, but the frames hold {actual}"
            ),
            Self::PathTwice => f.write_str("two payloads have the same path"),
            Self::PathIntoPayload => {
                f.write_str("the path of a payload goes on into another payload")
            }
            Self::PathMissing => {
                f.write_str("the path of a payload leads to no place in the message")
            }
            Self::PathAmbiguous => {
                f.write_str("the path of a payload leads to two places: a key occurs twice")
            }
            Self::Compression(error) => error.fmt(f),
            Self::UnknownCodec { name } => write!(
                f,
                "the frame is compressed with {name:?}, a codec that is not known here"
            ),
            Self::TooFewLevels { available } => write!(
                f,
                "the body is nested deeper than the {available} levels supplied"
            ),
            Self::TooFewPlaces(error) => write!(f, "places: {error}"),
            Self::BodyBuffer(error) => write!(f, "decompressing the body: {error}"),
            Self::DataBuffer(error) => write!(f, "the data of a payload: {error}"),
            Self::TooFewEnds(error) => write!(f, "ends of logical frames: {error}"),
            Self::NoSuchPayload { count } => {
                write!(f, "no payload of that number; there are {count}")
            }
        }
    }
}

impl core::error::Error for MessageError {}

/// The name of a codec as a header gives it: its first 16 bytes.
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

    /// The name, or the first 16 bytes of it.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
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

/// The words for a kind, for [`MessageErrorKind::EntryKind`].
pub(crate) const fn words(kind: Kind) -> &'static str {
    match kind {
        Kind::Nil => "nil",
        Kind::Bool => "a boolean",
        Kind::Integer => "an integer",
        Kind::Float => "a float",
        Kind::Str => "a str",
        Kind::Bin => "a bin",
        Kind::Array => "an array",
        Kind::Map => "a map",
        Kind::Ext => "an ext",
    }
}
