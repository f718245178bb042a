//! Receives messages, as a whole or in pieces.
//!
//! Not by a `Receiver`, which stores the lengths of all frames: a batch of a scheduler
//! may have any number of them. A `Receiver` that stores only the first ones was tried: its
//! checks and errors, which the roles do not report, take 4.5 kB of flash.

use daskwire::Limits;
use daskwire::invariant::OrDefaultIfBug as _;
use daskwire::message::{Layout, Message, Payload, PayloadKind, ReadOptions, Scratch};
use daskwire::msgpack::{Reader, Token};

use super::shift;
use super::skip::{Skip, head};

/// The maximum number of frames of a message that is read as a whole.
pub(crate) const MAX_FRAMES: usize = 16;

/// The maximum nesting of a body. A batch of tasks has five levels.
const MAX_DEPTH: u32 = 10;

/// The length of the read hint and the number of frames, in bytes.
const HEAD_LEN: u64 = 16;

/// The limits of documents; the lengths of messages are limited by the buffers.
const LIMITS: Limits = Limits::HOST
    .with_frame_count(MAX_FRAMES as u64)
    .with_frame_len(u64::MAX)
    .with_message_len(u64::MAX)
    .with_document_len(u64::MAX)
    .with_depth(MAX_DEPTH)
    .with_items(4096)
    .with_decompressed_len(0)
    .with_decompressed_message_len(0);

/// The message being received.
pub(crate) struct Incoming<'b> {
    /// The lengths of the first frames.
    lengths: &'b mut [u32],
    window: Window<'b>,
    /// Whether a message may be longer than the buffers: it is then taken in pieces.
    pub(super) in_pieces: bool,
    part: Part,
    /// The number of bytes of this part that have not been received.
    missing: u64,
    /// The number of frames whose lengths are stored.
    known: usize,
    /// The length of all other frames, in bytes.
    rest_len: u64,
    /// The frame at the start of the window, and the number of its bytes that
    /// have been taken.
    frame: usize,
    taken: u64,
    /// The number of values left in the body; `None` before its head is read.
    values_left: Option<u64>,
    /// What is left of the value that has been taken.
    skipping: Option<Skip>,
}

/// The part of a message that is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The read hint and the number of frames.
    Head,
    /// The lengths of the frames.
    Lengths,
    Frames,
}

/// The received bytes that are not taken yet.
struct Window<'b> {
    bytes: &'b mut [u8],
    start: usize,
    end: usize,
}

impl Window<'_> {
    fn filled(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).or_default_if_bug()
    }

    fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    fn is_full(&self) -> bool {
        self.filled().len() == self.bytes.len()
    }

    fn remove(&mut self, len: usize) {
        self.start = self.start.saturating_add(len).min(self.end);
        if self.start == self.end {
            self.clear();
        }
    }

    /// The free space. Empty only if the window is full.
    fn free(&mut self) -> &mut [u8] {
        if self.end == self.bytes.len() {
            shift(self.bytes, self.start, self.end, 0);
            (self.start, self.end) = (0, self.end.saturating_sub(self.start));
        }
        self.bytes.get_mut(self.end..).or_default_if_bug()
    }
}

/// The next piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// The piece has not been received completely.
    Incomplete,
    /// A value of the array that is the body, or a body that is not an array.
    Value(&'a [u8]),
    /// The start of such a value, which is longer than the window or nested too deeply.
    /// The rest of it is skipped.
    Start(&'a [u8]),
    /// Another frame.
    Frame(usize, &'a [u8]),
    /// Part of a frame that is longer than the window, or of the frames after those
    /// whose lengths are stored.
    Part(usize, &'a [u8]),
    /// The end of the message.
    End,
    /// The message is not valid.
    Invalid,
}

impl<'b> Incoming<'b> {
    pub(super) const fn new(lengths: &'b mut [u32], bytes: &'b mut [u8]) -> Self {
        Self {
            lengths,
            window: Window {
                bytes,
                start: 0,
                end: 0,
            },
            in_pieces: false,
            part: Part::Head,
            missing: HEAD_LEN,
            known: 0,
            rest_len: 0,
            frame: 0,
            taken: 0,
            values_left: None,
            skipping: None,
        }
    }

    /// Waits for a message, and forgets the one that was being received.
    #[inline(never)]
    pub(super) fn restart(&mut self) {
        self.window.clear();
        self.begin(Part::Head, HEAD_LEN);
        (self.known, self.rest_len) = (0, 0);
        (self.frame, self.taken) = (0, 0);
        (self.values_left, self.skipping) = (None, None);
    }

    fn begin(&mut self, part: Part, len: u64) {
        self.part = part;
        self.missing = len;
    }

    /// Whether a message has been received as a whole.
    pub(super) fn is_complete(&self) -> bool {
        self.part == Part::Frames && self.missing == 0
    }

    /// Whether no byte of a message has been received.
    pub(super) fn is_idle(&self) -> bool {
        self.part == Part::Head && self.missing == HEAD_LEN
    }

    /// Space for the next bytes. Empty if the message is complete, and while the window
    /// is full.
    pub(super) fn space(&mut self) -> &mut [u8] {
        let missing = usize::try_from(self.missing).unwrap_or(usize::MAX);
        let free = match missing {
            0 => &mut [],
            _ => self.window.free(),
        };
        let len = free.len().min(missing);
        free.get_mut(..len).or_default_if_bug()
    }

    /// Records that `count` bytes were written to [`space`](Self::space). `None` if the
    /// message is not valid or does not fit in the buffers.
    pub(super) fn received(&mut self, count: usize) -> Option<()> {
        self.window.end = self.window.end.saturating_add(count);
        self.missing = self.missing.checked_sub(count as u64)?;
        match self.part {
            Part::Head if self.missing == 0 => {
                // The hint is not needed: the lengths decide (PROTOCOL FRAME-7).
                let count = self
                    .window
                    .filled()
                    .last_chunk()
                    .copied()
                    .or_default_if_bug();
                let count = u64::from_le_bytes(count);
                // PROTOCOL FRAME-10
                if count == 0 || (!self.in_pieces && count > self.lengths.len() as u64) {
                    return None;
                }
                self.window.clear();
                self.begin(Part::Lengths, count.checked_mul(8)?);
            }
            Part::Lengths => {
                self.read_lengths()?;
                if self.missing == 0 {
                    let lengths = self.lengths.get(..self.known).or_default_if_bug();
                    let len = lengths
                        .iter()
                        .try_fold(self.rest_len, |sum, len| sum.checked_add(u64::from(*len)))?;
                    if !self.in_pieces && len > self.window.bytes.len() as u64 {
                        return None;
                    }
                    self.begin(Part::Frames, len);
                }
            }
            Part::Head | Part::Frames => {}
        }
        Some(())
    }

    /// Stores the lengths that have arrived, as far as there is room.
    fn read_lengths(&mut self) -> Option<()> {
        let (words, _) = self.window.filled().as_chunks::<8>();
        for word in words {
            let len = u64::from_le_bytes(*word);
            let place = self.lengths.get_mut(self.known);
            match (u32::try_from(len), place) {
                (Ok(len), Some(place)) if self.rest_len == 0 => {
                    *place = len;
                    self.known = self.known.saturating_add(1);
                }
                _ => self.rest_len = self.rest_len.checked_add(len)?,
            }
        }
        self.window.remove(words.len().saturating_mul(8));
        Some(())
    }

    /// The number of frames whose lengths are stored. Only these are read; the rest of
    /// the message is skipped.
    pub(crate) fn known_count(&self) -> usize {
        self.known
    }

    /// The length of a frame. All frames after the known ones count as one.
    fn len(&self, frame: usize) -> Option<u64> {
        if frame == self.known && self.rest_len != 0 {
            return Some(self.rest_len);
        }
        let lengths = self.lengths.get(..self.known).or_default_if_bug();
        lengths.get(frame).map(|len| u64::from(*len))
    }

    /// The next piece of a message that is read in pieces. The same piece is
    /// returned until it is taken.
    pub(crate) fn piece(&mut self) -> Piece<'_> {
        loop {
            if self.part != Part::Frames {
                return Piece::Incomplete;
            }
            let Some(len) = self.len(self.frame) else {
                return Piece::End;
            };
            let left = len.saturating_sub(self.taken);
            let window_len = self.window.filled().len();
            let (arrived, is_whole) = match usize::try_from(left) {
                Ok(left) if left <= window_len => (left, true),
                _ => (window_len, false),
            };
            let is_full = self.window.is_full();
            let bytes = self.window.filled().get(..arrived).or_default_if_bug();
            if self.frame != 0 {
                let frame = self.frame;
                let is_known = frame < self.known;
                let bytes = self.window.filled().get(..arrived).or_default_if_bug();
                return match (is_whole, is_full) {
                    (true, _) if self.taken == 0 && is_known => Piece::Frame(frame, bytes),
                    (true, _) | (_, true) => Piece::Part(frame, bytes),
                    _ => Piece::Incomplete,
                };
            }
            // No more of a value can arrive before some of it is taken.
            let is_cut = is_whole || is_full;
            if let Some(skip) = &mut self.skipping {
                let skipped = skip.advance(bytes);
                let is_done = skip.is_done();
                self.remove(skipped);
                if !is_done {
                    return match is_whole || (is_full && skipped == 0) {
                        true => Piece::Invalid,
                        false => Piece::Incomplete,
                    };
                }
                self.skipping = None;
                self.values_left = self.values_left.map(|left| left.saturating_sub(1));
                continue;
            }
            match self.values_left {
                None => {
                    self.values_left = match head(bytes) {
                        Some(head) if head.is_array => {
                            self.remove(head.len);
                            Some(head.value_count)
                        }
                        Some(_) => Some(1),
                        None if is_cut => return Piece::Invalid,
                        None => return Piece::Incomplete,
                    };
                }
                // Trailing bytes of a body are an error (PROTOCOL MSGPACK-1).
                Some(0) if left != 0 => return Piece::Invalid,
                Some(0) => (self.frame, self.taken) = (1, 0),
                Some(_) => {
                    let value = Reader::with_limits(bytes, &LIMITS).skip();
                    let value_len = value.ok().map(<[u8]>::len);
                    return match value_len {
                        Some(len) => {
                            Piece::Value(self.window.filled().get(..len).or_default_if_bug())
                        }
                        None if is_cut => {
                            Piece::Start(self.window.filled().get(..arrived).or_default_if_bug())
                        }
                        None => Piece::Incomplete,
                    };
                }
            }
        }
    }

    /// Takes the next piece, which is a value or the start of one.
    pub(crate) fn take_value(&mut self) {
        self.skipping = Some(Skip::value());
    }

    /// Takes the next piece, which is a frame of this length, or part of one.
    pub(crate) fn take(&mut self, len: usize) {
        self.remove(len);
        if self.len(self.frame).is_some_and(|len| self.taken >= len) {
            self.frame = self.frame.saturating_add(1);
            self.taken = 0;
        }
    }

    fn remove(&mut self, len: usize) {
        self.window.remove(len);
        self.taken = self.taken.saturating_add(len as u64);
    }

    /// The frames of a message that was received as a whole.
    pub(super) fn frames<'f, 's>(&'f self, slots: &'s mut [&'f [u8]]) -> Option<&'s [&'f [u8]]> {
        let slots = slots.get_mut(..self.known)?;
        let mut rest = self.window.filled();
        for (slot, len) in slots.iter_mut().zip(&*self.lengths) {
            (*slot, rest) = rest.split_at_checked(usize::try_from(*len).ok()?)?;
        }
        rest.is_empty().then_some(slots)
    }

    /// Reads the received message. It remains until it is [discarded](Self::discard_message).
    /// `None` if it is not valid.
    pub(crate) fn message<R>(&self, read: impl FnOnce(&Received<'_>) -> R) -> Option<R> {
        let mut slots = [&[][..]; MAX_FRAMES];
        let frames = self.frames(&mut slots)?;
        let options = ReadOptions::new(LIMITS);
        let mut scratch = Scratch::<{ MAX_DEPTH as usize }, MAX_FRAMES>::new();
        let message = Message::open(frames, Layout::Modern, &options, &mut scratch);
        Some(read(&Received {
            message: message.ok()?,
            options,
        }))
    }

    /// Discards the received message, so that the next one can be received.
    pub(crate) fn discard_message(&mut self) {
        self.restart();
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
