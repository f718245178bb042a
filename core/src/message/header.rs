//! The header of a payload, which describes its frames.

use super::level::{Container, VALIDATED};
use super::slot::offset;
use super::{MessageError, MessageErrorKind};
use crate::Limits;
use crate::invariant::OrDefaultIfBug as _;
use crate::msgpack::{Kind, Malformed, MalformedKind, RawStr, Reader, Token, pick};

/// The header of a payload.
///
/// The entries that Dask writes have methods; [`get`](Self::get) finds any entry. Missing
/// entries are `None`, since releases write different ones (PROTOCOL HEADER-1).
/// Some families have no specific entries: bytes (PROTOCOL HEADER-5), msgpack
/// (PROTOCOL HEADER-9) and errors (PROTOCOL HEADER-10). The same type is used
/// for the header of an element of a collection, see
/// [`sub_headers`](Self::sub_headers).
///
/// The map is scanned once, for the offsets of the entries that Dask writes;
/// each value is validated on access.
///
/// # Errors
///
/// * [`MessageErrorKind::EntryKind`] if an entry is not of the kind that its
///   method returns, or `sub-header` is not a map;
/// * [`MessageErrorKind::Malformed`] if a string is not UTF-8.
#[derive(Clone, Copy, Debug)]
pub struct PayloadHeader<'a> {
    document: &'a [u8],
    pair_count: u32,
    /// The offset of the value of each of [`KEYS`], 0 without such an entry.
    offsets: [u32; KEYS.len()],
    /// The frame of the header and its offset there, for errors.
    frame: usize,
    at: usize,
}

/// The entries whose offsets are recorded: first those common to all families
/// ([`COMMON_COUNT`]), then those of arrays, each in the order in which Dask
/// writes them.
const KEYS: [&str; 22] = [
    "sub-header",
    "type",
    "type-serialized",
    "serializer",
    "split-num-sub-frames",
    "split-offsets",
    "compression",
    "num-sub-frames",
    "writeable",
    "lengths",
    "count",
    "pickled-obj",
    "is-collection",
    "sub-headers",
    "frame-lengths",
    "key",
    "dtype",
    "shape",
    "strides",
    "broadcast_to",
    "pickle",
    "matrix",
];

const COMMON_COUNT: usize = 16;

/// The family of functions that serialized a payload and can deserialize it
/// (PROTOCOL HEADER-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Serializer<'a> {
    /// A function registered for the type: bytes, numpy arrays and others.
    Dask,
    /// Pickle or cloudpickle; with out-of-band buffers since 2.17.0.
    Pickle,
    /// MessagePack.
    Msgpack,
    /// Serialization failed: the frames are an error message and a traceback.
    Error,
    /// Another family, such as `cuda`.
    Other(&'a str),
}

#[allow(clippy::missing_errors_doc, reason = "the type says them")]
impl<'a> PayloadHeader<'a> {
    /// Validates a header and finds its entries.
    pub(super) fn parse(
        document: &'a [u8],
        limits: &Limits,
        frame: usize,
        at: usize,
    ) -> Result<Self, MessageError> {
        // The scan is not aware of the map around the entries.
        let depth = limits.depth.saturating_sub(1);
        if let Ok(header) = Self::scan(document, &Limits { depth, ..*limits }, frame, at)
            && (limits.depth != 0 || header.pair_count == 0)
        {
            return Ok(header);
        }
        let mut whole = Reader::with_limits(document, limits);
        whole
            .skip()
            .and_then(|_| whole.finish())
            .map_err(|error| MessageError {
                at: at.saturating_add(error.at),
                ..MessageError::malformed(frame)(error)
            })?;
        Err(not_a_map(frame, at))
    }

    /// Finds the entries of a header that has been validated.
    pub(super) fn validated(
        document: &'a [u8],
        frame: usize,
        at: usize,
    ) -> Result<Self, MessageError> {
        Self::scan(document, &VALIDATED, frame, at).map_err(|_| not_a_map(frame, at))
    }

    fn scan(
        document: &'a [u8],
        limits: &Limits,
        frame: usize,
        at: usize,
    ) -> Result<Self, Malformed> {
        let mut reader = Reader::with_limits(document, limits);
        let pair_count = reader.map()?;
        let mut offsets = [0; KEYS.len()];
        // Inlined `Reader::pairs`: faster when most keys are unknown.
        for _ in 0..pair_count {
            let place = match reader.raw_str() {
                Ok(key) => index_of(key.as_bytes()).and_then(|index| offsets.get_mut(index)),
                Err(_) => {
                    reader.skip()?;
                    None
                }
            };
            // Of a duplicate key, the last value.
            if let Some(place) = place {
                *place = offset(reader.position());
            }
            reader.skip()?;
        }
        reader.finish()?;
        Ok(Self {
            document,
            pair_count,
            offsets,
            frame,
            at,
        })
    }

    /// The header as a MessagePack map.
    pub(super) const fn document(&self) -> &'a [u8] {
        self.document
    }

    /// The frame index and byte offset of the header.
    pub(super) const fn location(&self) -> (usize, usize) {
        (self.frame, self.at)
    }

    /// A reader at the first key.
    fn pairs(&self) -> Reader<'a> {
        let mut reader = Reader::with_limits(self.document, &VALIDATED);
        // It has been read before.
        let _ = reader.map();
        reader
    }

    /// Refuses a header with placeholders, which could be circular
    /// (PROTOCOL MODERN-9).
    pub(super) fn refuse_placeholders(&self) -> Result<(), MessageError> {
        /// The number of levels checked. Indices in headers are never followed,
        /// so deeper placeholders are harmless.
        const LEVELS: usize = 16;
        let map = Token::Map(self.pair_count);
        let mut levels = [Container::of(map); LEVELS];
        let mut depth = 1_usize;
        let mut reader = self.pairs();
        // The header has been validated before, so reading does not fail.
        while let Some(top) = depth.checked_sub(1)
            && let Some(container) = levels.get_mut(top)
        {
            if container.owed == 0 {
                depth = top;
                continue;
            }
            let is_key = container.next_is_key();
            container.owed = container.owed.wrapping_sub(1);
            let before = reader;
            let Ok(token) = reader.token() else { break };
            if is_key
                && matches!(token, Token::Str(key) if key == "__Serialized__" || key == "__Pickled__")
                && matches!(reader.peek(), Ok(Token::UInt(_)))
            {
                let at = self.at.saturating_add(before.position());
                let kind = MessageErrorKind::PlaceholderInHeader;
                return Err(MessageError::new(self.frame, at, kind));
            }
            if token.child_count() == 0 {
                continue;
            }
            match levels.get_mut(depth) {
                Some(level) => {
                    *level = Container::of(token);
                    depth = depth.saturating_add(1);
                }
                None => {
                    reader = before;
                    if reader.skip().is_err() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// All entries, as encoded keys and values.
    pub fn entries(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let mut pairs = self.pairs();
        // The header has been validated before, so reading does not fail.
        (0..self.pair_count).map_while(move |_| Some((pairs.skip().ok()?, pairs.skip().ok()?)))
    }

    /// The entries that belong to a type and are not common to all families.
    pub(super) fn type_entries(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        self.entries().filter(|(key, _)| !is_common(key))
    }

    /// The encoded value of `key`. Of a duplicate key, the last value.
    pub fn get(&self, key: &str) -> Option<&'a [u8]> {
        self.value(self.find(key)?).skip().ok()
    }

    /// Whether there is an entry `key`.
    pub(super) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// The offset of a value in the document.
    fn find(&self, key: &str) -> Option<usize> {
        match index_of(key.as_bytes()) {
            Some(index) => {
                let offset = self.offsets.get(index).copied();
                offset
                    .filter(|offset| *offset != 0)
                    .map(|offset| offset as usize)
            }
            None => {
                let mut found = None;
                let note = &mut |_, value: &Reader<'a>| found = Some(value.position());
                // The header has been validated before, so reading does not fail.
                self.pairs().pairs(self.pair_count, &[key], note).ok()?;
                found
            }
        }
    }

    /// A reader at the value with this offset.
    fn value(&self, offset: usize) -> Reader<'a> {
        let rest = self.document.get(offset..).or_default_if_bug();
        Reader::with_limits(rest, &VALIDATED)
    }

    /// The frame index and byte offset of an entry, or of the header if there
    /// is no such entry.
    pub fn entry_location(&self, key: &str) -> (usize, usize) {
        let offset = self.find(key).unwrap_or(0);
        (self.frame, self.at.saturating_add(offset))
    }

    fn scalar<R>(
        &self,
        key: &'static str,
        expected: &'static str,
        pick: impl FnOnce(Token<'a>) -> Option<R>,
    ) -> Result<Option<R>, MessageError> {
        let Some(offset) = self.find(key) else {
            return Ok(None);
        };
        // The header has been validated before, so reading does not fail.
        match self.value(offset).token().ok().and_then(pick) {
            None => Err(self.entry_kind(self.at.saturating_add(offset), key, expected)),
            found => Ok(found),
        }
    }

    #[cold]
    #[inline(never)]
    fn entry_kind(&self, at: usize, key: &'static str, expected: &'static str) -> MessageError {
        MessageError::new(
            self.frame,
            at,
            MessageErrorKind::EntryKind { key, expected },
        )
    }

    /// The error for a missing required entry.
    pub const fn missing_entry(&self, key: &'static str) -> MessageError {
        MessageError::new(self.frame, self.at, MessageErrorKind::EntryMissing { key })
    }

    pub(super) const fn fault(&self, kind: MessageErrorKind) -> MessageError {
        MessageError::new(self.frame, self.at, kind)
    }

    fn string(&self, key: &'static str) -> Result<Option<&'a str>, MessageError> {
        let string = self.scalar(key, Kind::Str.name(), pick!(Token::Str(string) => string))?;
        string.map(RawStr::to_str).transpose().map_err(|error| {
            let (frame, at) = self.entry_location(key);
            let valid_len = error.valid_up_to();
            let kind = MessageErrorKind::Malformed(MalformedKind::NotUtf8 { valid_len });
            MessageError::new(frame, at, kind)
        })
    }

    /// The entry `key` as a number: `num-sub-frames` in the modern layout and
    /// `count` in the classic one are numbers of frames.
    pub fn number(&self, key: &'static str) -> Result<Option<u64>, MessageError> {
        self.scalar(
            key,
            "an integer of 0 or more",
            pick!(Token::UInt(number) => number),
        )
    }

    /// The entry `key` as a list, such as
    ///
    /// * `compression`: the codec of each frame, nil or a string
    ///   (PROTOCOL COMPRESS-6);
    /// * `split-num-sub-frames` and `split-offsets`: the number of sub-frames
    ///   of each logical frame, and the index of its first;
    /// * `lengths`: the length of each logical frame in bytes, before splitting
    ///   and compression, in the classic layout up to 2021.2.0;
    /// * `frame-lengths`: the number of logical frames of each element of a
    ///   collection.
    pub fn list(&self, key: &'static str) -> Result<Option<ItemList<'a>>, MessageError> {
        let Some(offset) = self.find(key) else {
            return Ok(None);
        };
        let (frame, at) = (self.frame, self.at.saturating_add(offset));
        let mut reader = self.value(offset);
        // The header has been validated before, so only the kind can be wrong.
        let Ok(left) = reader.array() else {
            return Err(self.entry_kind(at, key, Kind::Array.name()));
        };
        Ok(Some(ItemList {
            reader,
            left,
            key,
            frame,
            at,
        }))
    }

    /// The entry `key`, a map, as a nested header; `None` if it is missing.
    pub fn map_entry(&self, key: &'static str) -> Result<Option<Self>, MessageError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let (frame, at) = self.entry_location(key);
        match Self::validated(value, frame, at) {
            Ok(header) => Ok(Some(header)),
            Err(_) => Err(self.entry_kind(at, key, "a map")),
        }
    }

    /// The serializer family of the payload. Before 1.22.0 there was no such
    /// entry: a payload with a `type` was of the dask family, any other was
    /// pickled.
    ///
    /// Check [`is_collection`](Self::is_collection) first: a collection has no
    /// serializer either (PROTOCOL HEADER-2, HEADER-11), only its elements, and
    /// the result for it is meaningless.
    pub fn serializer(&self) -> Result<Serializer<'a>, MessageError> {
        Ok(match self.string("serializer")? {
            Some("dask") => Serializer::Dask,
            Some("pickle") => Serializer::Pickle,
            Some("msgpack") => Serializer::Msgpack,
            Some("error") => Serializer::Error,
            Some(other) => Serializer::Other(other),
            None if self.has("type") => Serializer::Dask,
            None => Serializer::Pickle,
        })
    }

    /// The name of the type, such as `numpy.ndarray`; informational.
    pub fn type_name(&self) -> Result<Option<&'a str>, MessageError> {
        self.string("type")
    }

    /// The value that selects the decoder (PROTOCOL HEADER-3): a pickled class,
    /// or for a collection (see [`is_collection`](Self::is_collection)) the
    /// bytes of `list`, `tuple`, `set` or `dict`.
    pub fn type_serialized(&self) -> Result<Option<&'a [u8]>, MessageError> {
        self.scalar("type-serialized", Kind::Bin.name(), |token| match token {
            Token::Str(string) => Some(string.as_bytes()),
            Token::Bin(bytes) => Some(bytes),
            _ => None,
        })
    }

    /// Whether each buffer was writeable: booleans or nil. One for each
    /// out-of-band buffer of a pickle (for each frame in 2.23.0 to 2021.2.0;
    /// PROTOCOL HEADER-8).
    pub fn writeable(&self) -> Result<Option<ItemList<'a>>, MessageError> {
        match self.map_entry("sub-header")? {
            Some(header) if header.has("writeable") => header.list("writeable"),
            _ => self.list("writeable"),
        }
    }

    /// The pickle of a `__Pickled__` payload; the frames are its out-of-band
    /// buffers.
    pub fn pickled_object(&self) -> Result<Option<&'a [u8]>, MessageError> {
        self.scalar(
            "pickled-obj",
            Kind::Bin.name(),
            pick!(Token::Bin(pickle) => pickle),
        )
    }

    /// Whether the payload is a collection with separately serialized elements
    /// (PROTOCOL HEADER-11).
    pub fn is_collection(&self) -> Result<bool, MessageError> {
        let found = self.scalar(
            "is-collection",
            Kind::Bool.name(),
            pick!(Token::Bool(value) => value),
        )?;
        Ok(found.unwrap_or_default())
    }

    /// The header of each element of a collection.
    pub fn sub_headers(
        &self,
    ) -> Result<Option<impl Iterator<Item = Result<Self, MessageError>> + use<'a>>, MessageError>
    {
        let frame = self.frame;
        Ok(self.list("sub-headers")?.map(move |mut list| {
            core::iter::from_fn(move || {
                let at = list.at();
                Some(Self::validated(list.next()?, frame, at))
            })
        }))
    }

    /// The encoded key of this element in its dict.
    pub fn key(&self) -> Option<&'a [u8]> {
        self.get("key")
    }

    /// The header with the entries of the type: the map `sub-header` since
    /// 2021.11.0, this header itself in earlier releases (PROTOCOL HEADER-4).
    pub fn type_header(&self) -> Result<Self, MessageError> {
        Ok(self.map_entry("sub-header")?.unwrap_or(*self))
    }

    /// numpy's name of the element type, such as `<f8`.
    ///
    /// `None` for structured types, which are pickled or a list of fields: use
    /// [`get`](Self::get) on [`type_header`](Self::type_header).
    pub fn dtype(&self) -> Result<Option<&'a str>, MessageError> {
        let Some(value) = self.type_header()?.get("dtype") else {
            return Ok(None);
        };
        let mut reader = Reader::new(value);
        // `[0, "<f8"]` from 1.17.0 on, `"<f8"` before (PROTOCOL HEADER-6).
        if is_tagged_dtype(value) {
            let _ = (reader.token(), reader.token());
        }
        Ok(reader.str().ok().map(|string| string.to_str()))
    }

    /// The stored shape of an array, in elements. If [`type_header`](Self::type_header) has
    /// `broadcast_to`, the array is larger (PROTOCOL HEADER-7).
    pub fn shape(&self) -> Result<Option<ItemList<'a>>, MessageError> {
        self.type_header()?.list("shape")
    }

    /// The strides of an array in bytes, or nil for C order.
    pub fn strides(&self) -> Result<Option<ItemList<'a>>, MessageError> {
        let header = self.type_header()?;
        match header.get("strides") {
            Some(&[0xc0]) => Ok(None),
            _ => header.list("strides"),
        }
    }
}

/// Whether an element type is `[0, type]` or `[1, pickle]`, not a list of fields.
pub(super) fn is_tagged_dtype(value: &[u8]) -> bool {
    let mut reader = Reader::new(value);
    reader.array() == Ok(2) && matches!(reader.token(), Ok(Token::UInt(_) | Token::Bool(_)))
}

/// The index of a key in [`KEYS`].
fn index_of(key: &[u8]) -> Option<usize> {
    KEYS.iter().position(|known| known.as_bytes() == key)
}

/// Whether an encoded key is common to all families.
pub(super) fn is_common(key: &[u8]) -> bool {
    // Keys of other kinds than strings are valid, and none of them is common.
    let index = Reader::new(key).raw_str();
    let index = index.ok().and_then(|key| index_of(key.as_bytes()));
    index.is_some_and(|index| index < COMMON_COUNT)
}

const fn not_a_map(frame: usize, at: usize) -> MessageError {
    let (key, expected) = ("the header of a payload", "a map");
    MessageError::new(frame, at, MessageErrorKind::EntryKind { key, expected })
}

/// Iterator over the encoded entries of an array in a header.
#[derive(Clone, Debug)]
pub struct ItemList<'a> {
    reader: Reader<'a>,
    left: u32,
    key: &'static str,
    frame: usize,
    at: usize,
}

impl<'a> ItemList<'a> {
    pub(super) const fn frame(&self) -> usize {
        self.frame
    }

    /// Offset of the next entry in the frame.
    pub(super) const fn at(&self) -> usize {
        self.at.saturating_add(self.reader.position())
    }

    /// The number of entries left.
    pub const fn count_left(&self) -> u32 {
        self.left
    }

    /// The first `count` entries, or all if there are fewer.
    pub(super) fn first(&self, count: usize) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            left: self.left.min(count),
            ..self.clone()
        }
    }

    /// The next entry, if it is a non-negative integer.
    #[inline(never)]
    pub(super) fn number(&mut self) -> Option<u64> {
        Reader::new(self.next()?).u64().ok()
    }

    /// The entries as non-negative integers: counts, lengths, offsets.
    ///
    /// An item of another kind gives [`MessageErrorKind::EntryKind`].
    pub fn numbers(self) -> impl Iterator<Item = Result<u64, MessageError>> + use<'a> {
        self.each("an array of numbers of 0 or more", |value| {
            Reader::new(value).u64().ok()
        })
    }

    /// The entries as signed integers: strides.
    ///
    /// An item of another kind gives [`MessageErrorKind::EntryKind`].
    pub fn signed_numbers(self) -> impl Iterator<Item = Result<i64, MessageError>> + use<'a> {
        self.each("an array of numbers", |value| Reader::new(value).i64().ok())
    }

    /// The entries as names of codecs: `None` for nil and false.
    ///
    /// An item of another kind gives [`MessageErrorKind::EntryKind`].
    pub fn codec_names(
        self,
    ) -> impl Iterator<Item = Result<Option<RawStr<'a>>, MessageError>> + use<'a> {
        self.each("an array of names of codecs", |value| {
            match Reader::new(value).token() {
                Ok(Token::Nil | Token::Bool(false)) => Some(None),
                Ok(Token::Str(name)) => Some(Some(name)),
                _ => None,
            }
        })
    }

    fn each<R>(
        self,
        expected: &'static str,
        read: fn(&'a [u8]) -> Option<R>,
    ) -> impl Iterator<Item = Result<R, MessageError>> + use<'a, R> {
        let (key, frame, at) = (self.key, self.frame, self.at);
        let fault = MessageError::new(frame, at, MessageErrorKind::EntryKind { key, expected });
        self.map(move |value| read(value).ok_or(fault))
    }

    /// The entries as booleans: `None` for nil.
    pub fn flags(self) -> impl Iterator<Item = Option<bool>> + use<'a> {
        self.map(|value| Reader::new(value).bool().ok())
    }
}

impl<'a> Iterator for ItemList<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        // The header has been validated before, so reading does not fail.
        self.reader.skip().ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}
