//! Receives messages, as a whole or in pieces.

use daskwire::Limits;
use daskwire::frame::{FrameBuffers, FrameDecoder, FrameError, Prefix, Wanted};
use daskwire::handshake::Handshake;
use daskwire::invariant::Ensured as _;
use daskwire::message::{Layout, Message, Payload, PayloadKind, ReadOptions, Scratch};
use daskwire::msgpack::{Reader, Token};

use super::shift;

/// The maximum number of frames of a message that is read as a whole.
const MAX_FRAMES: usize = 16;

/// The space that the lengths of as many frames take, in bytes.
pub(crate) const LENGTHS_LEN: usize = 8 * MAX_FRAMES;

/// The maximum nesting of a body. A batch of tasks has five levels.
const MAX_DEPTH: u32 = 10;

/// The maximum length of a message that is read in pieces, in bytes.
pub(super) const MAX_LEN_IN_PIECES: u64 = 1 << 20;

/// The message being received.
pub(crate) struct Incoming<'b> {
    pub(super) decoder: FrameDecoder<&'b mut [u8]>,
    window: Window<'b>,
    pub(super) limits: Limits,
    pub(super) in_pieces: bool,
    /// The frame at the start of the window, and the number of its bytes that
    /// have been taken.
    frame: usize,
    taken: usize,
    /// The number of values left in the body; `None` before its head is read.
    values_left: Option<u32>,
}

/// The received bytes of frames that are not taken yet.
struct Window<'b> {
    bytes: &'b mut [u8],
    len: usize,
}

impl FrameBuffers for Window<'_> {
    fn buffer(&mut self, _: usize, _: usize, _: usize) -> Option<&mut [u8]> {
        self.bytes.get_mut(self.len..)
    }
}

impl Window<'_> {
    fn filled(&self) -> &[u8] {
        self.bytes.get(..self.len).ensured()
    }
}

/// The next piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// The piece has not been received completely.
    Incomplete,
    /// A value of the array that is the body, or a body that is not an array.
    Value(&'a [u8]),
    /// Another frame.
    Frame(usize, &'a [u8]),
    /// Part of a frame that is longer than the window.
    Part(usize, &'a [u8]),
    /// The end of the message.
    End,
    /// The message is not valid, or a value of its body is too long.
    Invalid,
}

impl<'b> Incoming<'b> {
    pub(super) const fn new(table: &'b mut [u8], bytes: &'b mut [u8]) -> Self {
        let len = bytes.len() as u64;
        let limits = Limits {
            frame_count: (table.len() / 8) as u64,
            frame_len: len,
            message_len: len,
            document_len: len,
            depth: MAX_DEPTH,
            items: 4096,
            decompressed_len: 0,
        };
        Self {
            decoder: FrameDecoder::new(Prefix::U64, table, Limits::HANDSHAKE),
            window: Window { bytes, len: 0 },
            limits,
            in_pieces: false,
            frame: 0,
            taken: 0,
            values_left: None,
        }
    }

    pub(super) fn restart(&mut self, limits: Limits) {
        self.decoder.restart(Prefix::U64, limits);
        self.begin();
    }

    fn begin(&mut self) {
        self.window.len = 0;
        (self.frame, self.taken) = (0, 0);
        self.values_left = None;
    }

    pub(super) fn space(&mut self) -> Result<&mut [u8], FrameError> {
        let is_full = self.window.len == self.window.bytes.len();
        if self.in_pieces && is_full {
            return Ok(&mut []);
        }
        self.decoder.space(&mut self.window)
    }

    pub(super) fn received(&mut self, count: usize) -> Result<(), FrameError> {
        if matches!(self.decoder.wanted(), Ok(Wanted::Frame { .. })) {
            self.window.len = self.window.len.saturating_add(count);
        }
        self.decoder.advance(count)
    }

    /// The next piece of a message that is read in pieces. The same piece is
    /// returned until it is [taken](Self::take).
    pub(crate) fn piece(&mut self) -> Piece<'_> {
        loop {
            let Some(prelude) = self.decoder.prelude() else {
                return Piece::Incomplete;
            };
            let Some(len) = prelude.length(self.frame) else {
                return Piece::End;
            };
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let left = len.saturating_sub(self.taken);
            let arrived = self.window.len.min(left);
            let is_whole = arrived == left;
            let is_full = self.window.len == self.window.bytes.len();
            if self.frame != 0 {
                let frame = self.frame;
                let bytes = self.window.filled().get(..arrived).ensured();
                return match (is_whole, is_full) {
                    (true, _) if self.taken == 0 => Piece::Frame(frame, bytes),
                    (true, _) | (_, true) => Piece::Part(frame, bytes),
                    _ => Piece::Incomplete,
                };
            }
            let bytes = self.window.filled().get(..arrived).ensured();
            let mut reader = Reader::with_limits(bytes, &self.limits);
            let incomplete = if is_whole || is_full {
                Piece::Invalid
            } else {
                Piece::Incomplete
            };
            let head_len = match self.values_left {
                None => match reader.peek() {
                    Ok(Token::Array(count)) => {
                        let _ = reader.token();
                        self.values_left = Some(count);
                        reader.position()
                    }
                    Ok(_) => {
                        self.values_left = Some(1);
                        0
                    }
                    Err(_) => return incomplete,
                },
                // Trailing bytes of a body are an error (PROTOCOL MSGPACK-1).
                Some(0) if left != 0 => return Piece::Invalid,
                Some(0) => {
                    (self.frame, self.taken) = (1, 0);
                    continue;
                }
                Some(_) => {
                    let Ok(value) = reader.skip() else {
                        return incomplete;
                    };
                    let value_len = value.len();
                    let bytes = self.window.filled();
                    return Piece::Value(bytes.get(..value_len).ensured());
                }
            };
            self.remove(head_len);
        }
    }

    /// Takes the next piece, which has this length.
    pub(crate) fn take(&mut self, len: usize) {
        self.remove(len);
        if self.frame == 0 {
            self.values_left = self.values_left.map(|left| left.saturating_sub(1));
            return;
        }
        let frame_len = self
            .decoder
            .prelude()
            .and_then(|prelude| prelude.length(self.frame));
        if frame_len.is_some_and(|len| self.taken as u64 >= len) {
            self.frame = self.frame.saturating_add(1);
            self.taken = 0;
        }
    }

    fn remove(&mut self, len: usize) {
        shift(self.window.bytes, len, self.window.len, 0);
        self.window.len = self.window.len.saturating_sub(len);
        self.taken = self.taken.saturating_add(len);
    }

    /// Checks that the message is a handshake. Its codec does not matter: our
    /// handshake names none, so that nothing is compressed (PROTOCOL HANDSHAKE-3).
    pub(super) fn check_handshake(&self) -> Option<()> {
        let mut slots = [&[][..]; 2];
        let frames = self
            .decoder
            .prelude()?
            .split(self.window.filled(), &mut slots);
        let handshake = Handshake::from_frames(frames.ok()?, &Limits::HANDSHAKE);
        matches!(handshake, Ok((_, Layout::Modern))).then_some(())
    }

    /// Reads the received message. It remains until it is [discarded](Self::discard_message).
    /// `None` if it is not valid.
    pub(crate) fn message<R>(&self, read: impl FnOnce(&Received<'_>) -> R) -> Option<R> {
        let mut frames = [&[][..]; MAX_FRAMES];
        let frames = self
            .decoder
            .prelude()?
            .split(self.window.filled(), &mut frames);
        let options = ReadOptions {
            limits: self.limits,
            ..ReadOptions::default()
        };
        let mut scratch = Scratch::<{ MAX_DEPTH as usize }, MAX_FRAMES>::new();
        let message = Message::open(frames.ok()?, Layout::Modern, &options, &mut scratch);
        Some(read(&Received {
            message: message.ok()?,
            options,
        }))
    }

    /// Discards the received message, so that the next one can be received.
    pub(crate) fn discard_message(&mut self) {
        self.decoder.reset();
        self.begin();
    }
}

/// A received message.
pub(crate) struct Received<'a> {
    message: Message<'a, &'a [u8]>,
    options: ReadOptions,
}

impl<'a> Received<'a> {
    /// A reader at the start of the body.
    pub(crate) fn reader(&self) -> Reader<'a> {
        self.message.reader()
    }

    /// The payload of the placeholder that the reader is at.
    pub(crate) fn payload(&self, at: Reader<'a>) -> Option<Payload<'a, &'a [u8]>> {
        let pickled = field(at, "__Pickled__");
        let (index, kind) = match pickled {
            Some(index) => (index, PayloadKind::Pickled),
            None => (field(at, "__Serialized__")?, PayloadKind::Serialized),
        };
        let index = usize::try_from({ index }.u64().ok()?).ok()?;
        Payload::at(self.message.frames(), index, kind, &self.options).ok()
    }
}

/// A reader at the value of a key of the map that `map` is at.
pub(crate) fn field<'a>(mut map: Reader<'a>, key: &str) -> Option<Reader<'a>> {
    matches!(map.peek(), Ok(Token::Map(_))).then_some(())?;
    map.find(key).ok()?.then_some(map)
}

/// The string at a key of a map.
pub(crate) fn str_field<'a>(map: Reader<'a>, key: &str) -> Option<&'a str> {
    Some(field(map, key)?.str().ok()?.to_str())
}

/// The items of the array or the set that a reader is at, each as it is encoded;
/// none if it is something else.
pub(crate) fn items(mut reader: Reader<'_>) -> impl Iterator<Item = &[u8]> {
    // PROTOCOL BODY-3
    if let Some(list) = field(reader, "as-list") {
        reader = list;
    }
    let count = reader.array().unwrap_or_default();
    (0..count).map_while(move |_| reader.skip().ok())
}
