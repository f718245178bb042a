//! The header of a payload, which describes its frames.

use super::error::words;
use super::{MessageError, MessageErrorKind};
use crate::Limits;
use crate::msgpack::{Kind, Malformed, MalformedKind, RawStr, Reader, Token};

/// The header of a payload, parsed on request.
///
/// Dask's own entries have methods; [`get`](Self::get) finds any entry. Missing
/// entries are `None`, since releases write different ones (PROTOCOL HEADER-1).
/// Some families have no specific entries: bytes (PROTOCOL HEADER-5), msgpack
/// (PROTOCOL HEADER-9) and errors (PROTOCOL HEADER-10). The same type is used
/// for the header of an element of a collection, see
/// [`sub_headers`](Self::sub_headers).
#[derive(Clone, Copy, Debug)]
pub struct PayloadHeader<'a> {
    map: Reader<'a>,
    pair_count: u32,
    /// The frame of the header, for errors.
    frame: usize,
    at: usize,
}

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

impl<'a> PayloadHeader<'a> {
    pub(super) fn parse(
        document: &'a [u8],
        limits: &Limits,
        frame: usize,
        at: usize,
    ) -> Result<Self, MessageError> {
        let mut map = Reader::with_limits(document, limits);
        let fault = |error: Malformed| {
            let kind = match error.kind {
                MalformedKind::Unexpected { .. } => MessageErrorKind::EntryKind {
                    key: "the header of a payload",
                    expected: "a map",
                },
                kind => MessageErrorKind::Malformed(kind),
            };
            MessageError::new(frame, at.saturating_add(error.at), kind)
        };
        let mut whole = map;
        whole.skip().map_err(fault)?;
        whole.finish().map_err(fault)?;
        let pair_count = map.map().map_err(fault)?;
        Ok(Self {
            map,
            pair_count,
            frame,
            at,
        })
    }

    /// Refuses a header with placeholders, which could be circular
    /// (PROTOCOL MODERN-9).
    pub(super) fn refuse_placeholders(&self) -> Result<(), MessageError> {
        /// The number of levels checked. Indices in headers are never followed,
        /// so deeper placeholders are harmless.
        const LEVELS: usize = 16;
        // The number of values owed to each open container, and whether it is a
        // map.
        let mut levels = [(0_u64, false); LEVELS];
        if let Some(level) = levels.first_mut() {
            *level = (u64::from(self.pair_count).saturating_mul(2), true);
        }
        let mut depth = 1_usize;
        let mut reader = self.map;
        // The header has been validated before, so reading does not fail.
        while let Some(top) = depth.checked_sub(1)
            && let Some((owed, is_map)) = levels.get_mut(top)
        {
            let Some(left) = owed.checked_sub(1) else {
                depth = top;
                continue;
            };
            let is_key = *is_map && *owed & 1 == 0;
            *owed = left;
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
                    *level = (token.child_count(), matches!(token, Token::Map(_)));
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
        let mut map = self.map;
        // The header has been validated before, so reading does not fail.
        (0..self.pair_count).map_while(move |_| Some((map.skip().ok()?, map.skip().ok()?)))
    }

    /// The encoded value of `key`. Of a duplicate key, the last value.
    pub fn get(&self, key: &str) -> Option<&'a [u8]> {
        self.find(key).map(|(value, _)| value)
    }

    /// A value, and its offset in the frame.
    fn find(&self, key: &str) -> Option<(&'a [u8], usize)> {
        let [found] = self.find_all([key]);
        found
    }

    /// Finds several keys in one pass.
    fn find_all<const N: usize>(&self, keys: [&str; N]) -> [Option<(&'a [u8], usize)>; N] {
        let mut map = self.map;
        let mut all = [None; N];
        for _ in 0..self.pair_count {
            let key = map.raw_str();
            // The header has been validated before, so reading does not fail.
            if key.is_err() && map.skip().is_err() {
                break;
            }
            let at = map.position();
            let Ok(value) = map.skip() else { break };
            if let Ok(key) = key
                && let Some(index) = keys.iter().position(|wanted| key == **wanted)
                && let Some(found) = all.get_mut(index)
            {
                *found = Some((value, self.at.saturating_add(at)));
            }
        }
        all
    }

    /// The lists about compression and splitting.
    pub(super) fn lists(&self) -> Lists<'a> {
        Lists {
            header: *self,
            found: self.find_all(Lists::KEYS),
        }
    }

    /// The frame index and byte offset of an entry, or of the header if there
    /// is no such entry.
    pub fn entry_location(&self, key: &str) -> (usize, usize) {
        (self.frame, self.find(key).map_or(self.at, |(_, at)| at))
    }

    fn entry<R>(
        &self,
        key: &'static str,
        expected: &'static str,
        read: impl FnOnce(&mut Reader<'a>) -> Result<R, Malformed>,
    ) -> Result<Option<R>, MessageError> {
        self.entry_at(self.find(key), key, expected, read)
    }

    fn entry_at<R>(
        &self,
        found: Option<(&'a [u8], usize)>,
        key: &'static str,
        expected: &'static str,
        read: impl FnOnce(&mut Reader<'a>) -> Result<R, Malformed>,
    ) -> Result<Option<R>, MessageError> {
        let Some((value, at)) = found else {
            return Ok(None);
        };
        let mut reader = Reader::new(value);
        match read(&mut reader) {
            Ok(value) => Ok(Some(value)),
            Err(Malformed {
                kind: MalformedKind::Unexpected { .. } | MalformedKind::OutOfRange,
                ..
            }) => Err(self.entry_kind(at, key, expected)),
            Err(error) => Err(MessageError::new(
                self.frame,
                at.saturating_add(error.at),
                MessageErrorKind::Malformed(error.kind),
            )),
        }
    }

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

    fn text(&self, key: &'static str) -> Result<Option<&'a str>, MessageError> {
        self.entry(key, words(Kind::Str), |reader| {
            reader.str().map(|text| text.to_str())
        })
    }

    fn number(&self, key: &'static str) -> Result<Option<u64>, MessageError> {
        self.entry(key, "an integer of 0 or more", Reader::u64)
    }

    fn list(&self, key: &'static str) -> Result<Option<ItemList<'a>>, MessageError> {
        self.list_at(self.find(key), key)
    }

    fn list_at(
        &self,
        found: Option<(&'a [u8], usize)>,
        key: &'static str,
    ) -> Result<Option<ItemList<'a>>, MessageError> {
        let list = self.entry_at(found, key, words(Kind::Array), |reader| {
            let left = reader.array()?;
            Ok((*reader, left))
        })?;
        Ok(list.map(|(reader, left)| ItemList {
            reader,
            left,
            key,
            frame: self.frame,
            at: found.map_or(self.at, |(_, at)| at),
        }))
    }

    /// The entry `key` as a nested header; `None` if it is missing.
    ///
    /// # Errors
    ///
    /// * [`MessageErrorKind::EntryKind`] if it is not a map;
    /// * [`MessageErrorKind::Malformed`] if it is not valid.
    pub fn map_entry(&self, key: &'static str) -> Result<Option<Self>, MessageError> {
        let Some((value, at)) = self.find(key) else {
            return Ok(None);
        };
        match Reader::new(value).map() {
            Ok(_) => Self::parse(value, &Limits::HOST, self.frame, at).map(Some),
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
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if it is not a string.
    pub fn serializer(&self) -> Result<Serializer<'a>, MessageError> {
        Ok(match self.text("serializer")? {
            Some("dask") => Serializer::Dask,
            Some("pickle") => Serializer::Pickle,
            Some("msgpack") => Serializer::Msgpack,
            Some("error") => Serializer::Error,
            Some(other) => Serializer::Other(other),
            None if self.get("type").is_some() => Serializer::Dask,
            None => Serializer::Pickle,
        })
    }

    /// The name of the type, such as `numpy.ndarray`; informational.
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if it is not a string.
    pub fn type_name(&self) -> Result<Option<&'a str>, MessageError> {
        self.text("type")
    }

    /// The value that selects the decoder (PROTOCOL HEADER-3): a pickled class,
    /// or for a collection (see [`is_collection`](Self::is_collection)) the
    /// bytes of `list`, `tuple`, `set` or `dict`.
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if it is neither bytes nor a string.
    pub fn type_serialized(&self) -> Result<Option<&'a [u8]>, MessageError> {
        self.entry("type-serialized", words(Kind::Bin), |reader| {
            match reader.peek()? {
                Token::Str(text) => Ok(text.as_bytes()),
                _ => reader.bin(),
            }
        })
    }

    /// The number of frames of the payload, in the modern layout.
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if it is not a non-negative integer.
    pub fn sub_frame_count(&self) -> Result<Option<u64>, MessageError> {
        self.number("num-sub-frames")
    }

    /// The number of frames of the payload, in the classic layout.
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if it is not a non-negative integer.
    pub fn count(&self) -> Result<Option<u64>, MessageError> {
        self.number("count")
    }

    /// The length of each logical frame in bytes, before splitting and
    /// compression, in the classic layout up to 2021.2.0.
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if it is not an array.
    pub fn lengths(&self) -> Result<Option<ItemList<'a>>, MessageError> {
        self.list("lengths")
    }

    /// The codec of each frame: nil or a string (PROTOCOL COMPRESS-6).
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if it is not an array.
    pub fn compression(&self) -> Result<Option<ItemList<'a>>, MessageError> {
        self.list("compression")
    }

    /// The number of sub-frames of each logical frame.
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if it is not an array.
    pub fn split_counts(&self) -> Result<Option<ItemList<'a>>, MessageError> {
        self.list("split-num-sub-frames")
    }

    /// The index of the first sub-frame of each logical frame.
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if it is not an array.
    pub fn split_offsets(&self) -> Result<Option<ItemList<'a>>, MessageError> {
        self.list("split-offsets")
    }

    /// Whether each buffer was writeable: booleans or nil. One for each
    /// out-of-band buffer of a pickle (for each frame in 2.23.0 to 2021.2.0;
    /// PROTOCOL HEADER-8).
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if it is not an array.
    pub fn writeable(&self) -> Result<Option<ItemList<'a>>, MessageError> {
        match self.map_entry("sub-header")? {
            Some(own) if own.get("writeable").is_some() => own.list("writeable"),
            _ => self.list("writeable"),
        }
    }

    /// The pickle of a `__Pickled__` payload; the frames are its out-of-band
    /// buffers.
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if it is not a byte string.
    pub fn pickled_object(&self) -> Result<Option<&'a [u8]>, MessageError> {
        self.entry("pickled-obj", words(Kind::Bin), Reader::bin)
    }

    /// Whether the payload is a collection with separately serialized elements
    /// (PROTOCOL HEADER-11).
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if it is not a boolean.
    pub fn is_collection(&self) -> Result<bool, MessageError> {
        let found = self.entry("is-collection", words(Kind::Bool), Reader::bool)?;
        Ok(found.unwrap_or_default())
    }

    /// The header of each element of a collection.
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if it is not an array of maps.
    pub fn sub_headers(
        &self,
    ) -> Result<Option<impl Iterator<Item = Result<Self, MessageError>> + use<'a>>, MessageError>
    {
        let frame = self.frame;
        Ok(self.list("sub-headers")?.map(move |list| {
            let at = list.at;
            list.map(move |header| Self::parse(header, &Limits::HOST, frame, at))
        }))
    }

    /// The number of logical frames of each element of a collection.
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if it is not an array.
    pub fn frame_lengths(&self) -> Result<Option<ItemList<'a>>, MessageError> {
        self.list("frame-lengths")
    }

    /// The encoded key of this element in its dict.
    pub fn key(&self) -> Option<&'a [u8]> {
        self.get("key")
    }

    /// The entries of the type: the map `sub-header` since 2021.11.0, among all
    /// others before (PROTOCOL HEADER-4).
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if `sub-header` is not a map.
    pub fn own(&self) -> Result<Self, MessageError> {
        Ok(self.map_entry("sub-header")?.unwrap_or(*self))
    }

    /// numpy's name of the element type, such as `<f8`.
    ///
    /// `None` for structured types, which are pickled or a list of fields: use
    /// [`get`](Self::get) on [`own`](Self::own).
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if `sub-header` is not a map.
    pub fn dtype(&self) -> Result<Option<&'a str>, MessageError> {
        let Some(value) = self.own()?.get("dtype") else {
            return Ok(None);
        };
        let mut reader = Reader::new(value);
        // `[0, "<f8"]` from 1.17.0 on, `"<f8"` before (PROTOCOL HEADER-6).
        if matches!(reader.peek(), Ok(Token::Array(2))) {
            let _ = (reader.token(), reader.token());
        }
        Ok(reader.str().ok().map(|text| text.to_str()))
    }

    /// The stored shape of an array, in elements. If [`own`](Self::own) has
    /// `broadcast_to`, the array is larger (PROTOCOL HEADER-7).
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if it is not an array.
    pub fn shape(&self) -> Result<Option<ItemList<'a>>, MessageError> {
        self.own()?.list("shape")
    }

    /// The strides of an array in bytes, or nil for C order.
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::EntryKind`] if it is neither nil nor an array.
    pub fn strides(&self) -> Result<Option<ItemList<'a>>, MessageError> {
        let own = self.own()?;
        match own.get("strides") {
            Some(&[0xc0]) => Ok(None),
            _ => own.list("strides"),
        }
    }
}

/// The lists in a header about compression and splitting, found in one pass.
/// Each is validated on access.
#[derive(Clone, Copy)]
pub(super) struct Lists<'a> {
    header: PayloadHeader<'a>,
    found: [Option<(&'a [u8], usize)>; 4],
}

impl<'a> Lists<'a> {
    const KEYS: [&'static str; 4] = [
        "compression",
        "split-num-sub-frames",
        "split-offsets",
        "lengths",
    ];

    pub(super) const fn header(&self) -> &PayloadHeader<'a> {
        &self.header
    }

    fn list(&self, index: usize) -> Result<Option<ItemList<'a>>, MessageError> {
        let found = self.found.get(index).copied().flatten();
        let key = Self::KEYS.get(index).copied().unwrap_or_default();
        self.header.list_at(found, key)
    }

    pub(super) fn compression(&self) -> Result<Option<ItemList<'a>>, MessageError> {
        self.list(0)
    }

    pub(super) fn split_counts(&self) -> Result<Option<ItemList<'a>>, MessageError> {
        self.list(1)
    }

    pub(super) fn split_offsets(&self) -> Result<Option<ItemList<'a>>, MessageError> {
        self.list(2)
    }

    pub(super) fn lengths(&self) -> Result<Option<ItemList<'a>>, MessageError> {
        self.list(3)
    }
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

    pub(super) const fn at(&self) -> usize {
        self.at
    }

    /// The number of entries left.
    pub const fn count_left(&self) -> u32 {
        self.left
    }

    /// The entries as non-negative integers: counts, lengths, offsets.
    ///
    /// An item of another kind gives [`MessageErrorKind::EntryKind`].
    pub fn numbers(self) -> impl Iterator<Item = Result<u64, MessageError>> + use<'a> {
        let (key, frame, at) = (self.key, self.frame, self.at);
        self.map(move |value| {
            Reader::new(value).u64().map_err(|_| {
                let kind = MessageErrorKind::EntryKind {
                    key,
                    expected: "an array of numbers of 0 or more",
                };
                MessageError::new(frame, at, kind)
            })
        })
    }

    /// The entries as signed integers: strides.
    ///
    /// An item of another kind gives [`MessageErrorKind::EntryKind`].
    pub fn signed_numbers(self) -> impl Iterator<Item = Result<i64, MessageError>> + use<'a> {
        let (key, frame, at) = (self.key, self.frame, self.at);
        self.map(move |value| {
            Reader::new(value).i64().map_err(|_| {
                let kind = MessageErrorKind::EntryKind {
                    key,
                    expected: "an array of numbers",
                };
                MessageError::new(frame, at, kind)
            })
        })
    }

    /// The entries as names of codecs: `None` for nil and false.
    ///
    /// An item of another kind gives [`MessageErrorKind::EntryKind`].
    pub fn codec_names(
        self,
    ) -> impl Iterator<Item = Result<Option<RawStr<'a>>, MessageError>> + use<'a> {
        let (key, frame, at) = (self.key, self.frame, self.at);
        self.map(move |value| match Reader::new(value).token() {
            Ok(Token::Nil | Token::Bool(false)) => Ok(None),
            Ok(Token::Str(name)) => Ok(Some(name)),
            _ => {
                let kind = MessageErrorKind::EntryKind {
                    key,
                    expected: "an array of names of codecs",
                };
                Err(MessageError::new(frame, at, kind))
            }
        })
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
