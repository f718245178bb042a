//! The handshake: the first message of a comm, one from each side.
//!
//! Both sides send a small map and read the other's. A listener of any release
//! sends its own before it reads, as does a connector since 2023.8.0; connectors
//! up to 2023.7.1 read first. So a listener must not wait for the connector
//! (PROTOCOL HANDSHAKE-1). What the two agree on holds for the life of the comm
//! ([`Handshake::negotiate`]).
//!
//! | key | kind | required | meaning |
//! | --- | --- | --- | --- |
//! | `compression` | nil or str | yes | the codec this side would like to use |
//! | `python` | array of 3 integers | no | informational |
//! | `pickle-protocol` | integer | yes | the highest pickle protocol this side reads |
//!
//! Source: `distributed/comm/core.py`, `Comm.handshake_info` and
//! `Comm.handshake_configuration`, the same from 2.23.0 to 2026.8.0. Releases
//! before 2.23.0 have no handshake at all: their first message is already a
//! request or a reply, which this module reports as an error (a key is
//! missing), and whoever wants to talk to them must not send one.
//!
//! Nothing in the handshake says which release the peer is, how it lays out
//! its messages, or whether a `u64` stands in front of them. All of that can
//! be seen, though, from how the handshake itself arrives:
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
    /// The name of the codec that this side would like to use, `None` for no
    /// compression. Names in use: `lz4`, `snappy`, `zlib`, `zstd`; until
    /// 2022.4.0 `blosc`.
    pub compression: Option<&'a str>,
    /// The version of Python: major, minor, micro. No release of distributed
    /// looks at it. Parsing gives `None` unless it is there and three integers
    /// of zero or more.
    pub python: Option<[u64; 3]>,
    /// The highest pickle protocol that this side reads. Python's newest is 5
    /// (since 3.8); 4 asks the other side to write no out-of-band buffers.
    pub pickle_protocol: u8,
}

/// What two sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Negotiated<'a> {
    /// The codec for what is worth compressing, `None` for no compression.
    ///
    /// This binds the writer alone (PROTOCOL COMPRESS-9). Payloads that a peer
    /// passes on arrive as they were compressed elsewhere, whatever was
    /// negotiated here (PROTOCOL COMPRESS-10).
    pub compression: Option<&'a str>,
    /// The pickle protocol to write.
    pub pickle_protocol: u8,
}

const COMPRESSION: &str = "compression";
const PYTHON: &str = "python";
const PICKLE_PROTOCOL: &str = "pickle-protocol";

impl<'a> Handshake<'a> {
    /// What this crate says of itself: pickle protocol 5, and `[3, 8, 0]` for
    /// `python`.
    ///
    /// There is no Python here. 3.8 is the oldest one that reads protocol 5,
    /// so a peer that should ever draw conclusions from the number draws
    /// modest ones.
    ///
    /// Name only a codec that you have: two sides that name the same one will
    /// use it.
    pub const fn new(compression: Option<&'a str>) -> Self {
        Self {
            compression,
            python: Some([3, 8, 0]),
            pickle_protocol: 5,
        }
    }

    /// Takes the compression back if the two ends of the connection have the
    /// same network address, as Dask does since 2023.5.0: between processes of
    /// one host it costs more than it saves (PROTOCOL HANDSHAKE-4).
    ///
    /// Compare the addresses of the two ends of the socket, without ports. A
    /// host that is not on the loopback has the same address at both ends too
    /// when it talks to itself.
    #[must_use]
    pub const fn same_host(mut self, same_host: bool) -> Self {
        if same_host {
            self.compression = None;
        }
        self
    }

    /// Reads the document of a handshake.
    ///
    /// Keys that are not known are ignored, and of a key that occurs twice the
    /// last one counts, as in Python. `false` for `compression` means none:
    /// releases up to 2023.4.1 write it when so configured.
    ///
    /// # Errors
    ///
    /// * [`HandshakeError::TooLong`] if it is longer than
    ///   [`document_len`](Limits::document_len);
    /// * [`HandshakeError::NotAMap`] if it is another value;
    /// * [`HandshakeError::Missing`], [`HandshakeError::WrongKind`] or
    ///   [`HandshakeError::OutOfRange`] if a key that is required is not there
    ///   or its value is of no use;
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
        let Token::Map(pair_count) = reader.peek()? else {
            let found = reader.token()?.kind();
            return Err(HandshakeError::NotAMap { found });
        };
        reader.token()?;
        // Readers that stand at the last value of each key: the values that
        // later ones replace may be anything.
        let (mut compression, mut python, mut pickle_protocol) = (None, None, None);
        for _ in 0..pair_count {
            let key = match reader.peek()? {
                Token::Str(key) => Some(key),
                _ => None,
            };
            reader.skip()?;
            let value = reader;
            reader.skip()?;
            // PROTOCOL HANDSHAKE-2, HANDSHAKE-5
            if key.is_some_and(|key| key == COMPRESSION) {
                compression = Some(value);
            } else if key.is_some_and(|key| key == PYTHON) {
                python = Some(value);
            } else if key.is_some_and(|key| key == PICKLE_PROTOCOL) {
                pickle_protocol = Some(value);
            }
        }
        reader.finish()?;
        let missing = |key| HandshakeError::Missing { key };
        let compression = compression.ok_or_else(|| missing(Key::Compression))?;
        let pickle_protocol = pickle_protocol.ok_or_else(|| missing(Key::PickleProtocol))?;
        Ok(Self {
            compression: parse_compression(compression)?,
            python: python.and_then(parse_python),
            pickle_protocol: parse_pickle_protocol(pickle_protocol)?,
        })
    }

    /// Reads a handshake from the frames of a message, and tells the layout
    /// that the peer uses by them (PROTOCOL FRAME-13).
    ///
    /// One frame is the modern layout. Two frames are the classic one (2.23.0
    /// to 2021.3.0), where a header comes first; it is empty, or a map for a
    /// message that is compressed, which no handshake is long enough to be.
    ///
    /// # Errors
    ///
    /// * [`HandshakeError::FrameCount`] if there are none, or more than two;
    /// * [`HandshakeError::Header`] if there are two and the first is no header;
    /// * [`HandshakeError::Compressed`] if the header announces compression;
    /// * as [`parse`](Self::parse).
    pub fn from_frames<T: AsRef<[u8]>>(
        frames: &'a [T],
        limits: &Limits,
    ) -> Result<(Self, Layout), HandshakeError> {
        match frames {
            [document] => {
                let handshake = Self::parse(document.as_ref(), limits)?;
                Ok((handshake, Layout::Modern))
            }
            [header, document] => {
                check_header(header.as_ref(), limits)?;
                let handshake = Self::parse(document.as_ref(), limits)?;
                Ok((handshake, Layout::Classic))
            }
            _ => Err(HandshakeError::FrameCount {
                count: frames.len(),
            }),
        }
    }

    /// Writes the document: the keys in Dask's order, and so, for the same
    /// values, the bytes that Dask writes.
    ///
    /// In the modern layout it is the only frame of its message; in the
    /// classic one an empty frame goes before it.
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

    /// What this side and its peer agree on: the lower pickle protocol, and
    /// compression if both name the same codec (PROTOCOL HANDSHAKE-3).
    ///
    /// A name that is not ours is no error, it means no compression. It does
    /// not matter which of the two calls this, both get the same.
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
            key: Key::Compression,
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
    let (key, at) = (Key::PickleProtocol, value.position());
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
    let whole = Reader::with_limits(header, limits);
    let mut ahead = whole;
    let is_map =
        matches!(whole.peek(), Ok(Token::Map(_))) && ahead.skip().is_ok() && ahead.finish().is_ok();
    if !is_map {
        return Err(HandshakeError::Header);
    }
    let mut reader = whole;
    match reader.find(COMPRESSION) {
        Ok(true) if reader.nil().is_err() => Err(HandshakeError::Compressed),
        _ => Ok(()),
    }
}

/// Tells from the first 8 bytes of a stream whether a `u64` stands in front of
/// its messages; to be asked for the handshake alone (PROTOCOL FRAME-13).
///
/// A bare message begins with its frame count, which is 2 for a handshake.
/// With a leading number the count comes later: the number covers the count
/// and one length at least, so it is 16 or more. No handshake has 16 frames.
/// `None` if the bytes are 0, with which no message begins.
///
/// A connector that serves both kinds reads 8 bytes, calls this, and gives them
/// to a [`FrameDecoder`](crate::frame::FrameDecoder) for that prefix: the
/// listeners of every release send first. A listener has to send before it can
/// know, because old connectors read first; a bare handshake is understood up to
/// 2021.2.0 only, a prefixed one since 2021.3.0 only.
///
/// What is no handshake at all (another protocol, a browser) mostly begins
/// with a large number; the decoder then refuses its frame count.
pub const fn detect_prefix(first: &[u8; 8]) -> Option<Prefix> {
    match u64::from_le_bytes(*first) {
        0 => None,
        1..=15 => Some(Prefix::None),
        16.. => Some(Prefix::U64),
    }
}

/// A key that every handshake has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Key {
    /// `compression`
    Compression,
    /// `pickle-protocol`
    PickleProtocol,
}

impl Key {
    /// The key as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Compression => COMPRESSION,
            Self::PickleProtocol => PICKLE_PROTOCOL,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A first message that is not a handshake, or not a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The message has another number of frames than 1 (modern layout) or 2
    /// (classic layout).
    FrameCount {
        /// Its number of frames.
        count: usize,
    },
    /// The message has two frames, but the first is not a header of the
    /// classic layout: neither empty nor a map.
    Header,
    /// The header of the classic layout says that the handshake is compressed.
    Compressed,
    /// The document is longer than [`document_len`](Limits::document_len).
    TooLong {
        /// Its length, in bytes.
        len: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The document is not a map.
    NotAMap {
        /// What it is.
        found: Kind,
    },
    /// A key is missing that every handshake has.
    Missing {
        /// Which one.
        key: Key,
    },
    /// A key has a value of the wrong kind.
    WrongKind {
        /// The key.
        key: Key,
        /// Offset of the value in the document, in bytes.
        at: usize,
        /// The kind of the value.
        found: Kind,
    },
    /// A key has a number that makes no sense: a pickle protocol below 0 or
    /// above 255.
    OutOfRange {
        /// The key.
        key: Key,
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
                "a handshake has 1 frame (2 from releases before 2021.3.1), this message has {count}"
            ),
            Self::Header => f.write_str(
                "a message of 2 frames whose first is neither empty nor a map is no handshake",
            ),
            Self::Compressed => {
                f.write_str("the handshake is compressed, before any codec was agreed on")
            }
            Self::TooLong { len, limit } => write!(
                f,
                "the handshake has {len} bytes, the limit is {limit}; a usual one has about 50"
            ),
            Self::NotAMap { found } => write!(f, "a handshake is a map, this is {found}"),
            Self::Missing { key } => write!(
                f,
                "the first message of the peer has no `{key}`, so it is not the handshake that \
                 distributed sends since 2.23.0"
            ),
            Self::WrongKind { key, at, found } => {
                let expected = match key {
                    Key::Compression => "nil or a str",
                    Key::PickleProtocol => "an integer",
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
