//! One comm of a role without its stream: the handshake, a buffer for the
//! message that arrives, and a buffer for the messages to send.

use daskwire::Limits;
use daskwire::frame::{FrameBuffers, FrameDecoder, FrameError, Prefix, Wanted, encode_prelude};
use daskwire::handshake::Handshake;
use daskwire::message::{Layout, Level, Message, Payload, PayloadKind, PayloadSlot, ReadOptions};
use daskwire::msgpack::{Reader, Token, Writer};

/// The maximum number of frames of a message that is read as a whole.
const MAX_FRAMES: usize = 16;

/// The length of the table of lengths for these.
pub(crate) const TABLE_LEN: usize = 8 * MAX_FRAMES;

/// The maximum nesting of a body. A batch of tasks has five levels.
const MAX_DEPTH: u32 = 10;

/// The buffers of one link.
pub(crate) struct LinkBuffers<const TABLE: usize, const IN: usize, const OUT: usize> {
    table: [u8; TABLE],
    incoming: [u8; IN],
    outgoing: [u8; OUT],
}

impl<const TABLE: usize, const IN: usize, const OUT: usize> LinkBuffers<TABLE, IN, OUT> {
    /// Unused buffers.
    pub(crate) const EMPTY: Self = Self {
        table: [0; TABLE],
        incoming: [0; IN],
        outgoing: [0; OUT],
    };

    /// A link with messages that fit in the buffers.
    pub(crate) fn link(&mut self) -> Link<'_> {
        Link::new(&mut self.table, &mut self.incoming, &mut self.outgoing)
    }

    /// A link with messages that are read in pieces.
    pub(crate) fn link_in_pieces(&mut self) -> Link<'_> {
        Link::in_pieces(&mut self.table, &mut self.incoming, &mut self.outgoing)
    }
}

/// A comm that is driven by hand.
pub(crate) struct Link<'b> {
    state: State,
    /// The message that arrives.
    pub(crate) incoming: Incoming<'b>,
    /// The messages to send.
    pub(crate) outgoing: Outgoing<'b>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no connection.
    Closed,
    Handshake,
    Open,
    /// Nothing more is read; closes once everything is sent.
    Closing,
    /// The peer has sent something invalid, or more than fits.
    Failed,
}

impl<'b> Link<'b> {
    /// A closed link with its buffers: for the lengths of the frames of a message
    /// of the peer, for its frames, and for the messages to send.
    pub(crate) const fn new(
        table: &'b mut [u8],
        incoming: &'b mut [u8],
        outgoing: &'b mut [u8],
    ) -> Self {
        Self {
            state: State::Closed,
            incoming: Incoming::new(table, incoming),
            outgoing: Outgoing {
                bytes: outgoing,
                start: 0,
                end: 0,
            },
        }
    }

    /// A closed link whose messages are read in pieces, so that they may be
    /// longer than the buffer.
    pub(crate) const fn in_pieces(
        table: &'b mut [u8],
        incoming: &'b mut [u8],
        outgoing: &'b mut [u8],
    ) -> Self {
        let mut link = Self::new(table, incoming, outgoing);
        link.incoming.in_pieces = true;
        link.incoming.limits.frame_len = MAX_LEN_IN_PIECES;
        link.incoming.limits.message_len = MAX_LEN_IN_PIECES;
        link
    }

    /// Begins a comm on a connection that has just been established. Both sides
    /// send their handshakes first (PROTOCOL HANDSHAKE-1).
    pub(crate) fn open(&mut self) {
        self.reset();
        self.state = State::Handshake;
        self.outgoing
            .send(|writer| Handshake::new(None).encode(writer));
    }

    /// Forgets the connection, with everything received and unsent.
    pub(crate) fn reset(&mut self) {
        self.state = State::Closed;
        self.incoming.restart(Limits::HANDSHAKE);
        (self.outgoing.start, self.outgoing.end) = (0, 0);
    }

    /// Closes the comm after the unsent messages.
    pub(crate) fn close(&mut self) {
        if matches!(self.state, State::Handshake | State::Open) {
            self.state = State::Closing;
        }
    }

    /// Closes the comm at once, because of what the peer has sent.
    pub(crate) fn fail(&mut self) {
        if !self.is_closed() {
            self.state = State::Failed;
        }
    }

    /// Whether there is no connection.
    pub(crate) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Whether the connection should be closed now.
    pub(crate) fn wants_close(&self) -> bool {
        match self.state {
            State::Failed => true,
            State::Closing => self.outgoing.is_empty(),
            State::Closed | State::Handshake | State::Open => false,
        }
    }

    /// Whether the connection is closed once everything is sent.
    pub(crate) fn is_closing(&self) -> bool {
        self.state == State::Closing
    }

    /// Whether the handshake is done and messages may be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether the comm is open and between messages in both directions.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_open() && self.incoming.decoder.is_idle() && self.outgoing.is_empty()
    }

    /// Whether messages of this length can be sent now.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.is_open() && self.outgoing.room() >= len
    }

    /// Space for the next bytes of the peer. Empty while a message waits to be
    /// [taken](Incoming::done).
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if !matches!(self.state, State::Handshake | State::Open) {
            return &mut [];
        }
        match self.incoming.space() {
            Ok(space) => space,
            Err(_) => {
                self.state = State::Failed;
                &mut []
            }
        }
    }

    /// Records that `count` bytes were written to [`space`](Self::space).
    pub(crate) fn received(&mut self, count: usize) {
        let incoming = &mut self.incoming;
        if incoming.received(count).is_err() {
            self.state = State::Failed;
        } else if self.state == State::Handshake && incoming.decoder.is_complete() {
            self.state = match incoming.check_handshake() {
                Some(()) => State::Open,
                None => State::Failed,
            };
            incoming.restart(incoming.limits);
        }
    }

    /// Whether a message has arrived.
    pub(crate) fn has_message(&self) -> bool {
        self.is_open() && self.incoming.decoder.is_complete()
    }

    /// The bytes to send.
    pub(crate) fn unsent(&self) -> &[u8] {
        let outgoing = &self.outgoing;
        let unsent = outgoing.bytes.get(outgoing.start..outgoing.end);
        unsent.unwrap_or_default()
    }

    /// Records that `count` bytes were sent.
    pub(crate) fn sent(&mut self, count: usize) {
        let outgoing = &mut self.outgoing;
        outgoing.start = outgoing.start.saturating_add(count).min(outgoing.end);
        if outgoing.is_empty() {
            (outgoing.start, outgoing.end) = (0, 0);
        }
    }
}

/// The maximum length of a message that is read in pieces, in bytes.
const MAX_LEN_IN_PIECES: u64 = 1 << 20;

/// The message that arrives.
pub(crate) struct Incoming<'b> {
    decoder: FrameDecoder<&'b mut [u8]>,
    window: Window<'b>,
    limits: Limits,
    in_pieces: bool,
    /// The frame at the start of the window, and the number of its bytes that
    /// have been taken.
    frame: usize,
    taken: usize,
    /// The number of values left in the body; `None` before its head is read.
    values_left: Option<u32>,
}

/// The bytes of frames that have arrived and are not taken yet.
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
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// The next piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// More has to arrive first.
    Incomplete,
    /// A value of the array that is the body, or a body that is no array.
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
    const fn new(table: &'b mut [u8], bytes: &'b mut [u8]) -> Self {
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

    fn restart(&mut self, limits: Limits) {
        self.decoder.restart(Prefix::U64, limits);
        self.begin();
    }

    fn begin(&mut self) {
        self.window.len = 0;
        (self.frame, self.taken) = (0, 0);
        self.values_left = None;
    }

    fn space(&mut self) -> Result<&mut [u8], FrameError> {
        let is_full = self.window.len == self.window.bytes.len();
        if self.in_pieces && is_full {
            return Ok(&mut []);
        }
        self.decoder.space(&mut self.window)
    }

    fn received(&mut self, count: usize) -> Result<(), FrameError> {
        if matches!(self.decoder.wanted(), Ok(Wanted::Frame { .. })) {
            self.window.len = self.window.len.saturating_add(count);
        }
        self.decoder.advance(count)
    }

    /// The next piece of a message that is read in pieces. It is next until it
    /// is [taken](Self::take).
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
                let bytes = self.window.filled().get(..arrived).unwrap_or_default();
                return match (is_whole, is_full) {
                    (true, _) if self.taken == 0 => Piece::Frame(frame, bytes),
                    (true, _) | (_, true) => Piece::Part(frame, bytes),
                    _ => Piece::Incomplete,
                };
            }
            let bytes = self.window.filled().get(..arrived).unwrap_or_default();
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
                    return Piece::Value(bytes.get(..value_len).unwrap_or_default());
                }
            };
            self.remove(head_len);
        }
    }

    /// Takes the piece that is next, which has this length.
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

    /// Without a codec in our handshake nothing is compressed, whatever the peer
    /// offers (PROTOCOL HANDSHAKE-3).
    fn check_handshake(&self) -> Option<()> {
        let mut slots = [&[][..]; 2];
        let frames = self
            .decoder
            .prelude()?
            .split(self.window.filled(), &mut slots);
        let handshake = Handshake::from_frames(frames.ok()?, &Limits::HANDSHAKE);
        matches!(handshake, Ok((_, Layout::Modern))).then_some(())
    }

    /// Reads the message that has arrived. It remains until it is
    /// [taken](Self::done). `None` if it is not valid.
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
        let mut levels = [Level::EMPTY; MAX_DEPTH as usize];
        let mut slots = [PayloadSlot::EMPTY; MAX_FRAMES];
        let message = Message::open(
            frames.ok()?,
            Layout::Modern,
            &options,
            &mut levels,
            &mut slots,
            &mut [],
        );
        Some(read(&Received {
            message: message.ok()?,
            options,
        }))
    }

    /// Discards the message that has arrived; the next one can arrive then.
    pub(crate) fn done(&mut self) {
        self.decoder.reset();
        self.begin();
    }
}

/// A message that has arrived.
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

/// The messages to send.
pub(crate) struct Outgoing<'b> {
    bytes: &'b mut [u8],
    /// The unsent part of `bytes`.
    start: usize,
    end: usize,
}

impl Outgoing<'_> {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Free space, in bytes.
    pub(crate) fn room(&self) -> usize {
        let unsent = self.end.wrapping_sub(self.start);
        self.bytes.len().saturating_sub(unsent)
    }

    /// Sends a message without payloads. Returns false, and sends nothing, if
    /// there is no room for it.
    pub(crate) fn send(&mut self, write: impl FnOnce(&mut Writer<'_>)) -> bool {
        const PRELUDE_LEN: usize = 24;
        let Some((prelude, body)) = self.free().split_at_mut_checked(PRELUDE_LEN) else {
            return false;
        };
        let mut writer = Writer::new(body);
        write(&mut writer);
        let Ok(body) = writer.finish() else {
            return false;
        };
        let len = body.len();
        if encode_prelude(Prefix::U64, [len as u64], prelude).is_err() {
            return false;
        }
        self.wrote(PRELUDE_LEN.saturating_add(len));
        true
    }

    /// Sends the prelude of a message whose frames follow by
    /// [`append`](Self::append). Returns false if there is no room for it.
    pub(crate) fn send_prelude<I>(&mut self, lengths: I) -> bool
    where
        I: ExactSizeIterator<Item = u64> + Clone,
    {
        let Ok(len) = encode_prelude(Prefix::U64, lengths, self.free()) else {
            return false;
        };
        self.wrote(len);
        true
    }

    /// Sends as many bytes of a frame as there is room for, and returns their
    /// number.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> usize {
        let free = self.free();
        let len = free.len().min(bytes.len());
        crate::copy(free, bytes);
        self.wrote(len);
        len
    }

    /// The free space, in one piece.
    fn free(&mut self) -> &mut [u8] {
        if self.start != 0 {
            shift(self.bytes, self.start, self.end, 0);
            self.end = self.end.wrapping_sub(self.start);
            self.start = 0;
        }
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    fn wrote(&mut self, len: usize) {
        self.end = self.end.saturating_add(len).min(self.bytes.len());
    }
}

/// Moves `bytes[from..end]` to an earlier offset `to`.
pub(crate) fn shift(bytes: &mut [u8], from: usize, end: usize, to: usize) {
    let gap = from.saturating_sub(to);
    if gap == 0 {
        return;
    }
    for at in from..end {
        let byte = bytes.get(at).copied().unwrap_or_default();
        if let Some(target) = bytes.get_mut(at.wrapping_sub(gap)) {
            *target = byte;
        }
    }
}
