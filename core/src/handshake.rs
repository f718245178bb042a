//! The handshake: the first message of a comm, one from each side.
//!
//! Both sides send a small map and read the other's. Listeners of all releases
//! send before they read, as do connectors since 2023.8.0; connectors up to
//! 2023.7.1 read first. So a listener must not wait for the connector
//! (PROTOCOL HANDSHAKE-1). The result of [`Handshake::negotiate`] applies for
//! the life of the comm.
//!
//! | key | kind | required | meaning |
//! | --- | --- | --- | --- |
//! | `compression` | nil or str | yes | the codec this side would like to use |
//! | `python` | array of 3 integers | no | informational |
//! | `pickle-protocol` | integer | yes | the highest pickle protocol this side reads |
//!
//! Source: `distributed/comm/core.py`, `Comm.handshake_info` and
//! `Comm.handshake_configuration`, unchanged from 2.23.0 to 2026.8.0. Releases
//! before 2.23.0 have no handshake: their first message is a request or a
//! reply, which this module reports as an error (a missing key), and a peer of
//! such a release must not be sent one.
//!
//! The contents of the handshake do not identify the peer's release, the layout
//! of its messages or their prefix. These can be detected from the framing of
//! the handshake:
//!
//! ```
//! use daskwire::frame::{FramedMessage, Prefix};
//! use daskwire::handshake::{self, Handshake};
//! use daskwire::message::Layout;
//! use daskwire::Limits;
//!
//! let received = b"\x3d\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x2d\0\0\0\0\0\0\0\
//!     \x83\xabcompression\xa3lz4\xa6python\x93\x03\x0b\x07\xafpickle-protocol\x05";
//!
//! let prefix = handshake::detect_prefix(received.first_chunk().expect("8 bytes")).expect("a handshake");
//! assert_eq!(prefix, Prefix::U64);
//! let framed = FramedMessage::parse(received, prefix, &Limits::HANDSHAKE)?;
//! let mut slots = [&b""[..]; 2];
//! let frames = framed.prelude.split(framed.frames, &mut slots)?;
//! let (peer, layout) = Handshake::from_frames(frames, &Limits::HANDSHAKE)?;
//! assert_eq!(layout, Layout::Modern);
//!
//! let agreed = Handshake::new(Some("lz4")).negotiate(&peer);
//! assert_eq!(agreed.compression, Some("lz4"));
//! assert_eq!(agreed.pickle_protocol, 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use core::fmt;

use crate::Limits;
use crate::frame::Prefix;
use crate::message::Layout;
use crate::msgpack::{Kind, Malformed, Reader, Token, Writer};

/// The first message of a comm (PROTOCOL HANDSHAKE-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handshake<'a> {
    /// The name of the codec that this side prefers, `None` for no compression.
    /// Names in use: `lz4`, `snappy`, `zlib`, `zstd`; until 2022.4.0 `blosc`.
    pub compression: Option<&'a str>,
    /// The version of Python: major, minor, micro. No release of distributed
    /// uses it. `None` after parsing if the key is missing or not three
    /// non-negative integers.
    pub python: Option<[u64; 3]>,
    /// The highest pickle protocol that this side reads. Python's newest is 5
    /// (since 3.8); with 4 the other side writes no out-of-band buffers.
    pub pickle_protocol: u8,
}

/// The result of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Negotiated<'a> {
    /// The codec for sending compressed frames, `None` for no compression.
    ///
    /// It applies only to the writer (PROTOCOL COMPRESS-9). Payloads that a
    /// peer forwards keep the compression of their origin, regardless of the
    /// negotiation (PROTOCOL COMPRESS-10).
    pub compression: Option<&'a str>,
    /// The pickle protocol to write.
    pub pickle_protocol: u8,
}

const COMPRESSION: &str = "compression";
const PYTHON: &str = "python";
const PICKLE_PROTOCOL: &str = "pickle-protocol";

impl<'a> Handshake<'a> {
    /// Creates the handshake of this crate: pickle protocol 5, and `[3, 8, 0]`
    /// for `python`.
    ///
    /// 3.8 is the oldest version of Python that reads protocol 5, so it is the
    /// safest value should a peer ever use it.
    ///
    /// Name only a codec that is available: if both sides name the same codec,
    /// it is used. Name none if both ends of the socket have the same address
    /// without the port, as Dask does since 2023.5.0: within a host compression
    /// costs more than it saves (PROTOCOL HANDSHAKE-4).
    pub const fn new(compression: Option<&'a str>) -> Self {
        Self {
            compression,
            python: Some([3, 8, 0]),
            pickle_protocol: 5,
        }
    }

    /// Parses the document of a handshake.
    ///
    /// Unknown keys are ignored, and the last value of a duplicate key is used,
    /// as in Python. `false` for `compression` means none: releases up to
    /// 2023.4.1 write it if so configured.
    ///
    /// # Errors
    ///
    /// * [`HandshakeError::TooLong`] if the document is longer than
    ///   [`document_len`](Limits::document_len);
    /// * [`HandshakeError::NotAMap`] if it is not a map;
    /// * [`HandshakeError::Missing`], [`HandshakeError::WrongKind`] or
    ///   [`HandshakeError::OutOfRange`] if a required key is missing or its
    ///   value is invalid;
    /// * [`HandshakeError::Malformed`] if it is not one MessagePack document.
    pub fn parse(document: &'a [u8], limits: &Limits) -> Result<Self, HandshakeError> {
        let len = document.len() as u64;
        if len > limits.document_len {
            return Err(HandshakeError::TooLong {
                len,
                limit: limits.document_len,
            });
        }
        let mut reader = Reader::with_limits(document, limits);
        let found = reader.peek()?.kind();
        if found != Kind::Map {
            return Err(HandshakeError::NotAMap { found });
        }
        // PROTOCOL HANDSHAKE-2, HANDSHAKE-5. Earlier values of a duplicate key
        // are not validated.
        let [compression, python, pickle_protocol] =
            reader.values([COMPRESSION, PYTHON, PICKLE_PROTOCOL])?;
        reader.finish()?;
        let missing = |key| HandshakeError::Missing { key };
        let compression = compression.ok_or(missing(COMPRESSION))?;
        let pickle_protocol = pickle_protocol.ok_or(missing(PICKLE_PROTOCOL))?;
        Ok(Self {
            compression: parse_compression(compression)?,
            python: python.and_then(parse_python),
            pickle_protocol: parse_pickle_protocol(pickle_protocol)?,
        })
    }

    /// Parses a handshake from the frames of a message and detects the layout
    /// that the peer uses (PROTOCOL FRAME-13).
    ///
    /// One frame is the modern layout. Two frames are the classic layout
    /// (2.23.0 to 2021.3.0), which begins with a header: empty, or a map if the
    /// message is compressed, which a handshake is too short for.
    ///
    /// # Errors
    ///
    /// * [`HandshakeError::FrameCount`] if there are no frames or more than
    ///   two;
    /// * [`HandshakeError::Header`] if there are two frames and the first is
    ///   not a header;
    /// * [`HandshakeError::Compressed`] if the header declares compression;
    /// * as [`parse`](Self::parse).
    pub fn from_frames<T: AsRef<[u8]>>(
        frames: &'a [T],
        limits: &Limits,
    ) -> Result<(Self, Layout), HandshakeError> {
        let (document, layout) = match frames {
            [document] => (document, Layout::Modern),
            [header, document] => {
                check_header(header.as_ref(), limits)?;
                (document, Layout::Classic)
            }
            _ => {
                let count = frames.len();
                return Err(HandshakeError::FrameCount { count });
            }
        };
        Ok((Self::parse(document.as_ref(), limits)?, layout))
    }

    /// Writes the document with the keys in Dask's order. For the same values
    /// the bytes are equal to Dask's.
    ///
    /// In the modern layout it is the only frame of its message; in the classic
    /// layout an empty frame precedes it.
    ///
    /// ```
    /// use daskwire::{handshake::Handshake, msgpack::Writer};
    /// let mut buffer = [0; 64];
    /// let mut writer = Writer::new(&mut buffer);
    /// Handshake::new(None).encode(&mut writer);
    /// assert_eq!(
    ///     writer.finish()?,
    ///     b"\x83\xabcompression\xc0\xa6python\x93\x03\x08\x00\xafpickle-protocol\x05",
    /// );
    /// # Ok::<(), daskwire::msgpack::WriteError>(())
    /// ```
    pub fn encode(&self, writer: &mut Writer<'_>) {
        writer.map(if self.python.is_some() { 3 } else { 2 });
        writer.str(COMPRESSION);
        match self.compression {
            Some(name) => writer.str(name),
            None => writer.nil(),
        };
        if let Some(version) = self.python {
            writer.str(PYTHON).array(3);
            for number in version {
                writer.u64(number);
            }
        }
        writer
            .str(PICKLE_PROTOCOL)
            .u64(u64::from(self.pickle_protocol));
    }

    /// Computes the result of the handshake: the lower pickle protocol, and
    /// compression if both sides name the same codec (PROTOCOL HANDSHAKE-3).
    ///
    /// Different names are not an error and mean no compression. Both sides
    /// compute the same result.
    pub fn negotiate(&self, peer: &Handshake<'_>) -> Negotiated<'a> {
        Negotiated {
            compression: self
                .compression
                .filter(|name| peer.compression == Some(name)),
            pickle_protocol: self.pickle_protocol.min(peer.pickle_protocol),
        }
    }
}

fn parse_compression(mut value: Reader<'_>) -> Result<Option<&str>, HandshakeError> {
    let at = value.position();
    match value.peek()? {
        Token::Nil | Token::Bool(false) => Ok(None),
        Token::Str(_) => Ok(Some(value.str()?.to_str())),
        token => Err(HandshakeError::WrongKind {
            key: COMPRESSION,
            at,
            found: token.kind(),
        }),
    }
}

fn parse_python(mut value: Reader<'_>) -> Option<[u64; 3]> {
    if value.array() != Ok(3) {
        return None;
    }
    Some([value.u64().ok()?, value.u64().ok()?, value.u64().ok()?])
}

fn parse_pickle_protocol(value: Reader<'_>) -> Result<u8, HandshakeError> {
    let (key, at) = (PICKLE_PROTOCOL, value.position());
    match value.peek()? {
        Token::UInt(number) => {
            u8::try_from(number).map_err(|_| HandshakeError::OutOfRange { key, at })
        }
        Token::Int(_) => Err(HandshakeError::OutOfRange { key, at }),
        token => Err(HandshakeError::WrongKind {
            key,
            at,
            found: token.kind(),
        }),
    }
}

fn check_header(header: &[u8], limits: &Limits) -> Result<(), HandshakeError> {
    if header.is_empty() {
        return Ok(());
    }
    let mut reader = Reader::with_limits(header, limits);
    let values = reader.values([COMPRESSION]).ok();
    match values.filter(|_| reader.is_empty()) {
        Some([Some(codec)]) if codec.peek() != Ok(Token::Nil) => Err(HandshakeError::Compressed),
        Some(_) => Ok(()),
        None => Err(HandshakeError::Header),
    }
}

/// Detects the prefix of a stream from its first 8 bytes, which must be those
/// of a handshake (PROTOCOL FRAME-13).
///
/// A message without a prefix begins with its frame count, which is 2 for a
/// handshake. The prefix covers the count and at least one length, so it is 16
/// or more, and no handshake has 16 frames. `None` if the bytes are 0, since no
/// message begins with 0.
///
/// A connector that supports both reads 8 bytes, calls this function, and
/// pushes the bytes to a [`FrameDecoder`](crate::frame::FrameDecoder) with that
/// prefix: listeners of every release send first. A listener has to choose a
/// prefix before it can detect the peer's, because old connectors read first; a
/// handshake without a prefix is understood up to 2021.2.0 only, a prefixed one
/// since 2021.3.0 only.
///
/// Other protocols usually begin with a large number; the decoder then refuses the frame
/// count.
pub const fn detect_prefix(first: &[u8; 8]) -> Option<Prefix> {
    match u64::from_le_bytes(*first) {
        0 => None,
        1..=15 => Some(Prefix::None),
        16.. => Some(Prefix::U64),
    }
}

/// The error of parsing a handshake, a fault of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum HandshakeError {
    /// The number of frames is neither 1 (modern layout) nor 2 (classic
    /// layout).
    FrameCount {
        /// The number of frames.
        count: usize,
    },
    /// The message has two frames, but the first is not a header of the classic
    /// layout, which is empty or a map.
    Header,
    /// The header of the classic layout declares compression.
    Compressed,
    /// The document is longer than [`document_len`](Limits::document_len).
    TooLong {
        /// The length of the document, in bytes.
        len: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The document is not a map.
    NotAMap {
        /// The kind of the document.
        found: Kind,
    },
    /// A required key is missing.
    Missing {
        /// The missing key.
        key: &'static str,
    },
    /// A key has a value of the wrong kind.
    WrongKind {
        /// The key.
        key: &'static str,
        /// Offset of the value in the document, in bytes.
        at: usize,
        /// The kind of the value.
        found: Kind,
    },
    /// The pickle protocol is below 0 or above 255.
    OutOfRange {
        /// The key.
        key: &'static str,
        /// Offset of the number in the document, in bytes.
        at: usize,
    },
    /// The document is not MessagePack.
    Malformed(Malformed),
}

impl From<Malformed> for HandshakeError {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error)
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::FrameCount { count } => write!(
                f,
                "a handshake has 1 frame (2 from releases before 2021.3.1); this message has {count}"
            ),
            Self::Header => f.write_str(
                "the first of two frames of a handshake must be a header, which is empty or a map",
            ),
            Self::Compressed => {
                f.write_str("the handshake is compressed, but no codec has been agreed on yet")
            }
            Self::TooLong { len, limit } => write!(
                f,
                "the handshake has {len} bytes; the limit is {limit}, and Dask's handshakes have about 50"
            ),
            Self::NotAMap { found } => write!(f, "a handshake must be a map; this is {found}"),
            Self::Missing { key } => write!(
                f,
                "the first message of the peer has no `{key}`, so it is not the handshake that \
                 distributed sends since 2.23.0"
            ),
            Self::WrongKind { key, at, found } => {
                let expected = match key {
                    COMPRESSION => "nil or a str",
                    _ => "an integer",
                };
                write!(
                    f,
                    "at byte {at}: expected {expected} for `{key}`, found {found}"
                )
            }
            Self::OutOfRange { key, at } => {
                write!(f, "at byte {at}: `{key}` must be a number from 0 to 255")
            }
            Self::Malformed(error) => {
                write!(f, "the handshake is not a MessagePack document: {error}")
            }
        }
    }
}

impl core::error::Error for HandshakeError {}
