//! The message builder: writes a body with payloads as a list of slices to
//! send.

use core::fmt;

use super::classic::write_payload_header;
use super::convert::{ToClassic, ToModern};
use super::level::Level;
use super::scratch::{ScratchRef, Storage};
use super::slot::{Slot, offset};
use super::{EnumMember, Item, Layout, Message, MessageError, Payload, PayloadKind};
use crate::BufferTooSmall;
use crate::compression::{Codec, Compression, CompressionError, Policy};
use crate::invariant::OrDefaultIfBug as _;
use crate::msgpack::{Reader, Token, WriteError, Writer};

pub use crate::frame::SHARD_LEN;

/// The buffers of a [`MessageBuilder`], supplied by the caller.
#[derive(Debug)]
pub struct BuilderBuffers<'s, 'a> {
    /// The buffer for the body.
    pub body: &'a mut [u8],
    /// The buffer for headers of payloads that are not forwarded unchanged, and
    /// in the classic layout for the payload header.
    pub headers: &'a mut [u8],
    /// The list of frames: one for the body, one per payload header and one per
    /// frame (classic: three, and one per payload and per frame).
    pub slots: &'s mut [&'a [u8]],
}

/// The entries of a payload header that are not about frames, for
/// [`MessageBuilder::payload_from_pieces`].
#[derive(Clone, Copy)]
pub struct HeaderEntries<'e> {
    /// The number of entries.
    pub count: u32,
    /// Whether `writeable` is among them. Otherwise it is added in the layout that
    /// requires it.
    pub has_writeable: bool,
    /// Writes the entries. Called more than once, and must write the same each time.
    pub write: &'e dyn Fn(&mut Writer<'_>),
}

impl fmt::Debug for HeaderEntries<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeaderEntries")
            .field("count", &self.count)
            .field("has_writeable", &self.has_writeable)
            .finish_non_exhaustive()
    }
}

/// The compressor for frames of payloads, its policy and its buffers; see
/// [`MessageBuilder::with_compression`].
///
/// ```
/// # #[cfg(feature = "snappy")] {
/// use daskwire::compression::{Policy, Snappy};
/// use daskwire::message::{
///     BuilderBuffers, FrameCompressor, Layout, MessageBuilder, PayloadKind, SHARD_LEN,
/// };
///
/// let data = [7; 4000];
/// let (mut body, mut headers, mut slots) = ([0; 64], [0; 256], [&[][..]; 4]);
/// let (mut snappy, mut random, mut out) = (Snappy::new(), |_| 0, [0; 5000]);
/// let mut builder = MessageBuilder::new(Layout::Modern, BuilderBuffers {
///     body: &mut body, headers: &mut headers, slots: &mut slots,
/// })
/// .with_compression(FrameCompressor {
///     compression: &mut snappy,
///     policy: Policy::DASK.with_min_len(1000),
///     out: &mut out,
///     random: &mut random,
/// });
/// let entries: [(&str, &[u8]); 1] = [("serializer", b"\xa6pickle")];
/// builder.payload(PayloadKind::Serialized, &entries, &[&data], SHARD_LEN)?;
/// assert!(builder.finish()?[2].len() < 400);
/// # }
/// # Ok::<(), daskwire::message::BuildError>(())
/// ```
pub struct FrameCompressor<'s, 'a> {
    /// The compressor, of the codec that the
    /// [handshake](crate::handshake::Negotiated) agreed on.
    pub compression: &'s mut (dyn Compression + Send),
    /// The rule for whether to compress a frame.
    pub policy: Policy,
    /// The buffer for compressed frames. For each frame it needs
    /// [`Policy::scratch_len`] bytes, of which the compressed length stays in
    /// use.
    pub out: &'a mut [u8],
    /// Random numbers, as for [`Policy::maybe_compress`].
    pub random: &'s mut (dyn FnMut(u64) -> u64 + Send),
}

impl<'a> FrameCompressor<'_, 'a> {
    /// Returns the compressed frame, or the frame itself. `len` is the length of
    /// the whole buffer, for the length needed in all.
    fn compress(&mut self, frame: &'a [u8], len: usize) -> Result<&'a [u8], BuildError> {
        let used = len.saturating_sub(self.out.len());
        let packed = self
            .policy
            .maybe_compress(self.compression, frame, self.out, self.random);
        let packed = packed.map_err(|error| {
            BuildError::Compression(match error {
                CompressionError::BufferTooSmall(BufferTooSmall { needed, available }) => {
                    CompressionError::BufferTooSmall(BufferTooSmall {
                        needed: needed.saturating_add(used),
                        available: available.saturating_add(used),
                    })
                }
                error => error,
            })
        });
        let Some(len) = packed?.map(<[u8]>::len) else {
            return Ok(frame);
        };
        let (packed, rest) = core::mem::take(&mut self.out)
            .split_at_mut_checked(len)
            .or_default_if_bug();
        self.out = rest;
        Ok(packed)
    }
}

impl fmt::Debug for FrameCompressor<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameCompressor")
            .field("codec", &self.compression.codec())
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// Splits a frame as Dask does, into pieces of at most `shard_len` bytes and
/// whole items of `item_len` bytes: a frame that is not longer, even an empty
/// one, is one piece (PROTOCOL SPLIT-1, SPLIT-2).
///
/// ```
/// use daskwire::message::shards;
/// let lens = |shard_len, item_len| shards(&[0; 10], shard_len, item_len).map(<[u8]>::len);
/// assert!(lens(10, 1).eq([10]));
/// assert!(lens(4, 1).eq([4, 4, 2]));
/// assert!(lens(5, 2).eq([4, 4, 2]));
/// ```
pub fn shards(
    frame: &[u8],
    shard_len: usize,
    item_len: usize,
) -> impl Iterator<Item = &[u8]> + Clone {
    let item_len = item_len.max(1);
    let items = shard_len.checked_div(item_len).or_default_if_bug().max(1);
    let step = if frame.len() <= shard_len {
        frame.len().max(1)
    } else {
        items.saturating_mul(item_len)
    };
    let empty = frame.is_empty().then_some(frame);
    // `step` is at least 1, but only `max` removes the panic of `chunks`.
    frame.chunks(step.max(1)).chain(empty)
}

/// The error of building a message, a fault of the caller except for
/// [`BuildError::Payload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum BuildError {
    /// The body does not fit in its buffer or is not a document.
    Body(WriteError),
    /// The headers do not fit in their buffer.
    Headers(BufferTooSmall),
    /// There are too few slots; counted in slots.
    Slots(BufferTooSmall),
    /// The message has more payloads than the `PAYLOADS` of the
    /// [`Scratch`](super::Scratch), which the classic layout needs
    /// ([`with_scratch`](MessageBuilder::with_scratch)).
    TooFewPayloads(BufferTooSmall),
    /// The body is nested deeper than the `DEPTH` of the
    /// [`Scratch`](super::Scratch), in levels.
    TooFewLevels(BufferTooSmall),
    /// An entry of a header is not a MessagePack value.
    Entry,
    /// The header of a payload to be forwarded is invalid.
    Payload(MessageError),
    /// A frame cannot be compressed: the buffer of the [`FrameCompressor`] is
    /// too small. Nothing was written.
    Compression(CompressionError),
    /// A payload or a body cannot be converted to the other layout.
    NotConvertible {
        /// The reason, for error messages.
        reason: &'static str,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body(error) => write!(f, "body: {error}"),
            Self::Headers(error) => write!(f, "headers: {error}"),
            Self::Slots(error) => write!(f, "slots for frames: {error}"),
            Self::TooFewPayloads(error) => write!(f, "payloads (PAYLOADS): {error}"),
            Self::TooFewLevels(error) => write!(f, "levels of nesting (DEPTH): {error}"),
            Self::Entry => f.write_str(
                "the value of an entry of a header must be exactly one MessagePack value",
            ),
            Self::Payload(error) => write!(f, "the payload to be forwarded: {error}"),
            Self::Compression(error) => write!(f, "compressing a frame: {error}"),
            Self::NotConvertible { reason } => {
                write!(
                    f,
                    "the payload or body cannot be converted to the other layout: {reason}"
                )
            }
        }
    }
}

impl core::error::Error for BuildError {}

impl From<MessageError> for BuildError {
    fn from(error: MessageError) -> Self {
        Self::Payload(error)
    }
}

/// Builder for one message in either layout, as a list of frames.
///
/// Write the body with [`body`](Self::body), and call
/// [`payload`](Self::payload) or [`forward`](Self::forward) in place of a value
/// for a payload. The frames of payloads are never copied: the list has the
/// caller's slices.
///
/// ```
/// use daskwire::message::{BuilderBuffers, Layout, MessageBuilder, PayloadKind};
///
/// let (mut body, mut headers, mut slots) = ([0; 64], [0; 128], [&[][..]; 4]);
/// let mut builder = MessageBuilder::new(Layout::Modern, BuilderBuffers {
///     body: &mut body, headers: &mut headers, slots: &mut slots,
/// });
/// builder.body().map(2).str("status").str("OK").str("data");
/// // A pickle; {serializer: "pickle", writeable: []}
/// let entries: [(&str, &[u8]); 2] = [("serializer", b"\xa6pickle"), ("writeable", b"\x90")];
/// builder.payload(PayloadKind::Serialized, &entries, &[b"\x80\x04K\x07."], 64 << 20)?;
/// let frames = builder.finish()?;
/// assert_eq!(frames.len(), 3);
/// assert_eq!(frames[2], b"\x80\x04K\x07.");
/// # Ok::<(), daskwire::message::BuildError>(())
/// ```
#[derive(Debug)]
pub struct MessageBuilder<'s, 'a> {
    layout: Layout,
    body: Writer<'a>,
    headers: &'a mut [u8],
    /// Length of the headers so far, in bytes, for the length needed in all.
    headers_len: usize,
    slots: &'s mut [&'a [u8]],
    slot_count: usize,
    /// For the classic layout: one entry per payload, and the path to it.
    pending: Storage<'s, Slot>,
    pending_count: usize,
    levels: Storage<'s, Level>,
    compressor: Option<FrameCompressor<'s, 'a>>,
    /// Length of the whole buffer for compressed frames.
    compressor_len: usize,
    /// The number of values that the body owes when the outermost set is
    /// complete.
    owed_after_set: Option<u64>,
}

impl<'s, 'a> MessageBuilder<'s, 'a> {
    /// Creates a builder for a message in `layout`. For the classic one it also
    /// needs [`with_scratch`](Self::with_scratch).
    pub fn new(layout: Layout, buffers: BuilderBuffers<'s, 'a>) -> Self {
        Self {
            layout,
            body: Writer::new(buffers.body),
            headers: buffers.headers,
            headers_len: 0,
            slots: buffers.slots,
            slot_count: match layout {
                Layout::Modern => 1,
                Layout::Classic => 3,
            },
            pending: Storage::NONE,
            pending_count: 0,
            levels: Storage::NONE,
            compressor: None,
            compressor_len: 0,
            owed_after_set: None,
        }
    }

    /// Adds the memory for payloads in the classic layout, a `&mut`
    /// [`Scratch`](super::Scratch): `PAYLOADS` of them, and `DEPTH` levels of
    /// nesting of the body. The modern layout needs none.
    #[must_use]
    pub fn with_scratch(mut self, scratch: impl Into<ScratchRef<'s>>) -> Self {
        let scratch = scratch.into();
        (self.levels, self.pending) = (scratch.levels, scratch.slots);
        self
    }

    /// Compresses the frames of the payloads that follow, where it is
    /// worthwhile. Buffers of [`PayloadKind::Pickled`], which releases up to
    /// 2023.9.2 do not decompress, forwarded payloads, and those with an encoded
    /// header stay as they are.
    #[must_use]
    pub fn with_compression(mut self, compressor: FrameCompressor<'s, 'a>) -> Self {
        self.compressor_len = compressor.out.len();
        self.compressor = Some(compressor);
        self
    }

    /// The layout of the message.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// The writer of the body.
    pub const fn body(&mut self) -> &mut Writer<'a> {
        &mut self.body
    }

    /// Writes a payload of uncompressed frames as the next value of the body.
    ///
    /// `entries` are the entries of the header, with encoded values, as
    /// [`PayloadHeader`](super::PayloadHeader) reads them. The builder adds those about frames: their
    /// number (PROTOCOL MODERN-3, CLASSIC-8), their codecs
    /// (PROTOCOL COMPRESS-6) and their grouping (PROTOCOL SPLIT-3, CLASSIC-9).
    /// Frames longer than `shard_len` bytes are split, except those of
    /// [`PayloadKind::Pickled`]; see [`SHARD_LEN`]. For an array `shard_len`
    /// must be a multiple of its item size (PROTOCOL SPLIT-2); [`SHARD_LEN`] is
    /// a multiple of every smaller power of two.
    ///
    /// # Errors
    ///
    /// * [`BuildError::Headers`], [`BuildError::Slots`] or
    ///   [`BuildError::TooFewPayloads`] if a buffer is too small; nothing was
    ///   written then;
    /// * [`BuildError::Entry`] if a value is not one MessagePack value.
    pub fn payload(
        &mut self,
        kind: PayloadKind,
        entries: &[(&str, &[u8])],
        frames: &[&'a [u8]],
        shard_len: usize,
    ) -> Result<&mut Self, BuildError> {
        // PROTOCOL MODERN-4: buffers of a pickle are never split.
        let shard_len = match kind {
            PayloadKind::Serialized => shard_len,
            PayloadKind::Pickled => usize::MAX,
        };
        for (_, value) in entries {
            let mut reader = Reader::new(value);
            let whole = reader.skip().is_ok() && reader.is_empty();
            if !whole {
                self.refuse_pickled(kind)?;
                return Err(BuildError::Entry);
            }
        }
        let pieces = frames.iter().enumerate().flat_map(move |(index, frame)| {
            shards(frame, shard_len, 1).map(move |shard| (index, shard))
        });
        let write = |writer: &mut Writer<'_>| {
            for (key, value) in entries {
                writer.str(key).encoded(value);
            }
        };
        let entries = HeaderEntries {
            count: narrow(entries.len()),
            has_writeable: entries.iter().any(|(key, _)| *key == "writeable"),
            write: &write,
        };
        self.payload_from_pieces(kind, entries, frames.len(), pieces)
    }

    /// Writes a payload with an encoded header as the next value of the body.
    /// The caller ensures that the header is of this layout and matches the
    /// frames.
    ///
    /// # Errors
    ///
    /// As [`payload`](Self::payload), and [`BuildError::NotConvertible`] for
    /// [`PayloadKind::Pickled`] in the classic layout.
    pub fn payload_as_is(
        &mut self,
        kind: PayloadKind,
        header: &'a [u8],
        frames: &[&'a [u8]],
        bytestring: bool,
    ) -> Result<&mut Self, BuildError> {
        self.refuse_pickled(kind)?;
        self.room(frames.len())?;
        self.add_payload(kind, header, bytestring)?;
        for frame in frames {
            self.slot(frame)?;
        }
        Ok(self)
    }

    fn is_in_set(&self) -> bool {
        self.owed_after_set
            .is_some_and(|owed| self.body.owed() > owed)
    }

    const fn refuse_pickled(&self, kind: PayloadKind) -> Result<(), BuildError> {
        match (kind, self.layout) {
            (PayloadKind::Pickled, Layout::Classic) => {
                not_convertible("the classic layout has no __Pickled__")
            }
            _ => Ok(()),
        }
    }

    /// Writes a payload as [`payload`](Self::payload) does, from pieces of its frames
    /// and a function that writes the entries of the header.
    ///
    /// `pieces` are those of the `logical_count` frames in order, each with the
    /// index of its frame. A frame of [`PayloadKind::Pickled`] must be one piece
    /// (PROTOCOL MODERN-4).
    ///
    /// # Errors
    ///
    /// As [`payload`](Self::payload).
    pub fn payload_from_pieces(
        &mut self,
        kind: PayloadKind,
        entries: HeaderEntries<'_>,
        logical_count: usize,
        pieces: impl Iterator<Item = (usize, &'a [u8])> + Clone,
    ) -> Result<&mut Self, BuildError> {
        self.refuse_pickled(kind)?;
        let count = pieces.clone().count();
        let frames = FrameEntries {
            layout: self.layout,
            kind,
            logical_count,
            count,
            with_writeable: !entries.has_writeable,
        };
        self.room(count)?;
        // First the frames, after the slot for the header, since the header
        // says which of them are compressed.
        let first = self.slot_count.saturating_add(match self.layout {
            Layout::Modern => 1,
            Layout::Classic => 0,
        });
        for (index, (_, piece)) in pieces.clone().enumerate() {
            let sent = match &mut self.compressor {
                // PROTOCOL MODERN-4: some releases do not decompress the buffers of
                // `__Pickled__`.
                Some(compressor) if kind == PayloadKind::Serialized => {
                    compressor.compress(piece, self.compressor_len)?
                }
                _ => piece,
            };
            self.set_slot(first.saturating_add(index), sent)?;
        }
        let compressor = self.compressor.as_ref();
        let codec = compressor.map(|compressor| compressor.compression.codec());
        let slots = core::mem::take(&mut self.slots);
        let sent = slots.get(first..).or_default_if_bug();
        let pieces = pieces.zip(sent).map(|((index, plain), sent)| Piece {
            index,
            plain_len: plain.len() as u64,
            // A compressed piece is in another buffer.
            codec: codec.filter(|_| !core::ptr::eq(plain, *sent)),
        });
        let header = self.encode(|writer: &mut Writer<'_>| {
            writer.map(entries.count.saturating_add(narrow(frames.entry_count())));
            (entries.write)(writer);
            frames.write(writer, pieces.clone());
        });
        self.slots = slots;
        self.add_payload(kind, header?, false)?;
        self.slot_count = self.slot_count.saturating_add(count);
        Ok(self)
    }

    /// Forwards a received payload as the next value of the body. Its frames
    /// are not decoded, decompressed or copied.
    ///
    /// In the same layout the header is unchanged, so that the payload is
    /// forwarded byte for byte, with the compression of its origin
    /// (PROTOCOL FORWARD-1, FORWARD-2, FORWARD-3 and COMPRESS-10). For the
    /// other layout the header is converted (PROTOCOL FORWARD-5, FORWARD-6):
    /// the entries about frames are rewritten, and the entries of a type move
    /// to or from `sub-header`.
    ///
    /// # Errors
    ///
    /// * [`BuildError::NotConvertible`] if the other layout cannot express the
    ///   payload: masked arrays, collections of the modern layout and those in
    ///   each other more than 16 times, `lengths` that end inside a frame, zlib
    ///   frames whose length must be known;
    /// * [`BuildError::Payload`] if the header is invalid;
    /// * buffer sizes, as [`payload`](Self::payload).
    pub fn forward<T: AsRef<[u8]>>(
        &mut self,
        payload: &Payload<'a, T>,
    ) -> Result<&mut Self, BuildError> {
        let frames = payload.frames();
        let mut kind = payload.kind();
        let mut object: Option<&'a [u8]> = None;
        // A pickle in the header becomes a frame in the classic layout.
        let moved = kind == PayloadKind::Pickled && self.layout == Layout::Classic;
        self.room(frames.len().saturating_add(usize::from(moved)))?;
        let header = match (payload.layout(), self.layout) {
            (Layout::Modern, Layout::Modern) | (Layout::Classic, Layout::Classic) => {
                payload.header_bytes()
            }
            (Layout::Classic, Layout::Modern) => {
                let rewrite = ToModern::new(payload)?;
                self.encode(|writer| rewrite.write(writer))?
            }
            (Layout::Modern, Layout::Classic) => {
                if moved {
                    object = payload.header().pickled_object()?;
                    kind = PayloadKind::Serialized;
                }
                let rewrite = ToClassic::new(payload, object)?;
                self.encode(|writer| rewrite.write(writer))?
            }
        };
        self.add_payload(kind, header, payload.bytestring().unwrap_or(false))?;
        if let Some(object) = object {
            self.slot(object)?;
        }
        for frame in frames {
            self.slot(frame.as_ref())?;
        }
        Ok(self)
    }

    /// Writes one item of a received message: a token, a set or an enum member
    /// to the body, a payload with [`forward`](Self::forward).
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward), and [`BuildError::NotConvertible`]
    ///
    /// * for a payload in a set in the classic layout, whose paths cannot lead
    ///   into sets;
    /// * for the strings `__Serialized__` and `__Pickled__` from a classic in a
    ///   modern message. As keys (PROTOCOL BODY-5) they would form a
    ///   placeholder.
    pub fn item<T: AsRef<[u8]>>(
        &mut self,
        item: Item<'_>,
        message: &Message<'a, T>,
    ) -> Result<&mut Self, BuildError> {
        match item {
            Item::Token(token) => {
                let crosses = (message.layout(), self.layout) == (Layout::Classic, Layout::Modern);
                if crosses
                    && let Token::Str(string) = token
                    && (string == "__Serialized__" || string == "__Pickled__")
                {
                    // PROTOCOL BODY-5 and CLASSIC-13: it would be a placeholder.
                    return not_convertible("the body has a key that is reserved there");
                }
                self.body.token(token);
            }
            Item::Set(count) => {
                if self.owed_after_set.is_none() {
                    self.owed_after_set = self.body.owed().checked_sub(1);
                }
                // PROTOCOL BODY-3
                self.body.map(2).str("__Set__").bool(true);
                self.body.str("as-list").array(count);
            }
            Item::Enum(member) => enum_member(&mut self.body, member),
            Item::Payload(number) => {
                self.forward(&message.payload(number)?)?;
            }
        }
        if !self.is_in_set() {
            self.owed_after_set = None;
        }
        Ok(self)
    }

    /// Returns the frames of the message, to be sent after a prelude.
    ///
    /// # Errors
    ///
    /// * [`BuildError::Body`] if the body is incomplete or does not fit;
    /// * buffer sizes, as [`payload`](Self::payload), and
    ///   [`BuildError::TooFewLevels`].
    pub fn finish(mut self) -> Result<&'s [&'a [u8]], BuildError> {
        let body = core::mem::replace(&mut self.body, Writer::new(&mut []));
        let body = body.finish().map_err(BuildError::Body)?;
        if self.layout == Layout::Classic && self.pending_count == 0 {
            self.slot_count = 2;
        }
        self.check_slots(self.slot_count)?;
        match self.layout {
            Layout::Modern => self.set_slot(0, body)?,
            Layout::Classic => {
                self.set_slot(0, &[])?;
                self.set_slot(1, body)?;
                if self.pending_count != 0 {
                    let header = self.payload_header(body)?;
                    self.set_slot(2, header)?;
                }
            }
        }
        let count = self.slot_count;
        let slots: &'s [&'a [u8]] = self.slots;
        Ok(slots.get(..count).or_default_if_bug())
    }

    /// The payload header of the classic layout (PROTOCOL CLASSIC-4, CLASSIC-7).
    fn payload_header(&mut self, body: &[u8]) -> Result<&'a [u8], BuildError> {
        let measured = self.write_payload_header(body, Writer::new(&mut []))?;
        let space = self.reserve_header(measured.len())?;
        let written = self.write_payload_header(body, Writer::new(space))?;
        written.finish().map_err(BuildError::Body)
    }

    fn write_payload_header<'w>(
        &mut self,
        body: &[u8],
        mut writer: Writer<'w>,
    ) -> Result<Writer<'w>, BuildError> {
        let payloads = self
            .pending
            .as_slice()
            .get(..self.pending_count)
            .or_default_if_bug();
        let start = self.slots.len().saturating_sub(self.pending_count);
        let headers = self.slots.get(start..).or_default_if_bug();
        write_payload_header(&mut writer, body, payloads, headers, &mut self.levels)?;
        Ok(writer)
    }

    /// Encodes a header to the buffer for headers.
    fn encode(&mut self, write: impl Fn(&mut Writer<'_>)) -> Result<&'a [u8], BuildError> {
        let mut measure = Writer::new(&mut []);
        write(&mut measure);
        let space = self.reserve_header(measure.len())?;
        let mut writer = Writer::new(space);
        write(&mut writer);
        writer.finish().map_err(BuildError::Body)
    }

    /// Takes `len` bytes of the buffer for headers.
    fn reserve_header(&mut self, len: usize) -> Result<&'a mut [u8], BuildError> {
        let needed = self.headers_len.saturating_add(len);
        let available = self.headers_len.saturating_add(self.headers.len());
        if len > self.headers.len() {
            return Err(BuildError::Headers(BufferTooSmall { needed, available }));
        }
        let (space, rest) = core::mem::take(&mut self.headers)
            .split_at_mut_checked(len)
            .or_default_if_bug();
        self.headers = rest;
        self.headers_len = needed;
        Ok(space)
    }

    /// Checks the buffers and the path for a payload before anything is
    /// written.
    fn room(&mut self, frame_count: usize) -> Result<(), BuildError> {
        if self.layout == Layout::Classic && self.is_in_set() {
            return not_convertible("it is in a set, and paths cannot lead into sets");
        }
        let needed = self.pending_count.saturating_add(1);
        if self.layout == Layout::Classic && !self.pending.reserve(needed) {
            let available = self.pending.as_slice().len();
            let short = BufferTooSmall { needed, available };
            return Err(BuildError::TooFewPayloads(short));
        }
        // In the classic layout, the headers of earlier payloads occupy the end of the
        // slots until the body is complete.
        let needed = self
            .slot_count
            .saturating_add(frame_count)
            .saturating_add(self.pending_count)
            .saturating_add(1);
        self.check_slots(needed).map(drop)
    }

    fn check_slots(&mut self, needed: usize) -> Result<&mut [&'a [u8]], BuildError> {
        BufferTooSmall::check(self.slots, needed).map_err(BuildError::Slots)
    }

    /// Adds the placeholder to the body and the header to the list of frames.
    fn add_payload(
        &mut self,
        kind: PayloadKind,
        header: &'a [u8],
        bytestring: bool,
    ) -> Result<(), BuildError> {
        match self.layout {
            Layout::Modern => {
                // PROTOCOL MODERN-2, MODERN-5: the next free frame.
                let key: &[u8] = match kind {
                    PayloadKind::Serialized => b"\xae__Serialized__",
                    PayloadKind::Pickled => b"\xab__Pickled__",
                };
                let frame = self.slot_count as u64;
                self.slot(header)?;
                self.body.map(1).encoded(key).u64(frame);
            }
            Layout::Classic => {
                let start = offset(self.body.len());
                if let Some(slot) = self.pending.at(self.pending_count) {
                    *slot = Slot::Built { start, bytestring };
                }
                self.pending_count = self.pending_count.saturating_add(1);
                let index = self.slots.len().wrapping_sub(self.pending_count);
                self.set_slot(index, header)?;
                // PROTOCOL CLASSIC-6: a reader replaces the nil, also in a map,
                // where Dask writes no entry.
                self.body.nil();
            }
        }
        Ok(())
    }

    fn slot(&mut self, frame: &'a [u8]) -> Result<(), BuildError> {
        let index = self.slot_count;
        self.slot_count = index.saturating_add(1);
        self.set_slot(index, frame)
    }

    fn set_slot(&mut self, index: usize, frame: &'a [u8]) -> Result<(), BuildError> {
        if let Some(slot) = self.check_slots(index.saturating_add(1))?.last_mut() {
            *slot = frame;
        }
        Ok(())
    }
}

/// Converts a count to `u32`. Counts of 2^32 and more do not fit in a
/// MessagePack document and are refused there.
pub(super) fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn enum_member(writer: &mut Writer<'_>, member: EnumMember<'_>) {
    writer.map(4).str("__Enum__").bool(true);
    writer.str("name").str_bytes(member.name.as_bytes());
    writer.str("__module__").str_bytes(member.module.as_bytes());
    writer.str("__name__").str_bytes(member.class.as_bytes());
}

/// A piece of a frame, as the header describes it.
struct Piece {
    /// Index of the frame.
    index: usize,
    codec: Option<Codec>,
    plain_len: u64,
}

/// The entries of a header about frames.
struct FrameEntries {
    layout: Layout,
    kind: PayloadKind,
    logical_count: usize,
    count: usize,
    with_writeable: bool,
}

impl FrameEntries {
    const fn entry_count(&self) -> usize {
        match (self.layout, self.kind) {
            (Layout::Modern, PayloadKind::Serialized) => 4,
            (Layout::Modern, PayloadKind::Pickled) => 2,
            (Layout::Classic, _) if self.with_writeable => 4,
            (Layout::Classic, _) => 3,
        }
    }

    fn write(&self, writer: &mut Writer<'_>, pieces: impl Iterator<Item = Piece> + Clone) {
        let count = narrow(self.count);
        let logical_count = narrow(self.logical_count);
        // The number of pieces of each frame and their lengths, in one pass.
        let frames = || {
            let mut pieces = pieces.clone();
            let mut ahead = pieces.next();
            (0..self.logical_count).map(move |index| {
                let (mut count, mut len) = (0_u64, 0_u64);
                while let Some(piece) = ahead.take_if(|piece| piece.index == index) {
                    ahead = pieces.next();
                    count = count.saturating_add(1);
                    len = len.saturating_add(piece.plain_len);
                }
                (count, len)
            })
        };
        match self.layout {
            Layout::Modern => {
                if self.kind == PayloadKind::Serialized {
                    write_split(writer, self.logical_count, || {
                        frames().map(|(count, _)| count)
                    });
                }
            }
            Layout::Classic => {
                if self.with_writeable {
                    writer.str("writeable").array(logical_count);
                    for _ in 0..self.logical_count {
                        writer.nil();
                    }
                }
                writer.str("lengths").array(logical_count);
                for (_, len) in frames() {
                    writer.u64(len);
                }
            }
        }
        writer.str("compression").array(count);
        for piece in pieces {
            match piece.codec {
                Some(codec) => writer.str(codec.name()),
                None => writer.nil(),
            };
        }
        let key = match self.layout {
            Layout::Modern => "num-sub-frames",
            Layout::Classic => "count",
        };
        writer.str(key).u64(u64::from(count));
    }
}

/// Writes the grouping of frames in the modern layout (PROTOCOL SPLIT-3). `counts`
/// are the numbers of frames of the logical frames.
pub(super) fn write_split<I: Iterator<Item = u64>>(
    writer: &mut Writer<'_>,
    logical_count: usize,
    counts: impl Fn() -> I,
) {
    let logical_count = narrow(logical_count);
    writer.str("split-num-sub-frames").array(logical_count);
    for count in counts() {
        writer.u64(count);
    }
    writer.str("split-offsets").array(logical_count);
    let mut offset = 0_u64;
    for count in counts() {
        writer.u64(offset);
        offset = offset.saturating_add(count);
    }
}

pub(super) const fn not_convertible<R>(reason: &'static str) -> Result<R, BuildError> {
    Err(BuildError::NotConvertible { reason })
}
