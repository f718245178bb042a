//! Opening of a classic message: its body and the paths of its payloads.

use super::ClassicEntry;
use super::path::{begins_with, compare_paths};
use crate::compression::{self, CompressionError};
use crate::invariant::OrDefaultIfBug as _;
use crate::message::open::{check_len, codec_entry, no_body};
use crate::message::scratch::Storage;
use crate::message::slot::{Slot, keep, offset, sort, span};
use crate::message::{Layout, MessageError, MessageErrorKind, PayloadHeader, ReadOptions};
use crate::msgpack::{Malformed, MalformedKind, Reader, Token};

/// The body of a classic message, decompressed to `storage` if necessary
/// (PROTOCOL CLASSIC-1, CLASSIC-2 and CLASSIC-3).
pub(in crate::message) fn open_body<'a, T: AsRef<[u8]>>(
    frames: &'a [T],
    options: &ReadOptions,
    mut storage: Storage<'a, u8>,
) -> Result<&'a [u8], MessageError> {
    let modern = || {
        let likely = Layout::Modern;
        MessageError::new(0, 0, MessageErrorKind::WrongLayout { likely })
    };
    let (header, body) = match frames {
        [header, body, ..] => (header.as_ref(), body.as_ref()),
        [body] if !body.as_ref().is_empty() => return Err(modern()),
        _ => return Err(no_body(frames.len())),
    };
    check_len(0, header, options)?;
    if header.is_empty() {
        return Ok(body);
    }
    let malformed = MessageError::malformed(0);
    let mut reader = Reader::with_limits(header, &options.limits);
    let first = reader.peek();
    if let Ok(Token::Array(_)) = first {
        return Err(modern());
    }
    let [value] = reader.values(["compression"]).map_err(&malformed)?;
    reader.finish().map_err(&malformed)?;
    // A header has no other key, so that this is the body of a message.
    if value.is_none() && first != Ok(Token::Map(0)) {
        return Err(modern());
    }
    let codec = value.map(|value| {
        let fault = |kind| MessageError::new(0, value.position(), kind);
        codec_entry(value.remaining()).map_err(fault)
    });
    let Some(Some(codec)) = codec.transpose()? else {
        return Ok(body);
    };
    let fault = |error| {
        let kind = match error {
            CompressionError::BufferTooSmall(error) => MessageErrorKind::BodyBuffer(error),
            error => MessageErrorKind::Compression(error),
        };
        MessageError::new(1, 0, kind)
    };
    let limits = &options.limits;
    let max_len = limits.decompressed_len.min(limits.document_len);
    loop {
        let out = storage.as_mut();
        match compression::decompress(codec, body, out, max_len) {
            Ok(len) => return Ok(storage.into_slice().get(..len).or_default_if_bug()),
            // Without a declared length (zlib) the next step is a guess.
            Err(CompressionError::BufferTooSmall(short))
                if storage.reserve(short.needed.max(short.available.saturating_mul(2))) => {}
            Err(error) => return Err(fault(error)),
        }
    }
}

/// The payload header of a classic message: the headers and paths of all payloads.
pub(in crate::message) struct ClassicHeader<'a> {
    document: &'a [u8],
    /// A reader at the first pair of `headers`.
    headers: Reader<'a>,
    pub(in crate::message) header_count: usize,
    /// A reader at the first path in `keys`.
    keys: Reader<'a>,
    pub(in crate::message) key_count: usize,
    bytestrings: Option<Reader<'a>>,
}

impl<'a> ClassicHeader<'a> {
    /// Parses the payload header; `None` if the message has none.
    pub(in crate::message) fn parse<T: AsRef<[u8]>>(
        frames: &'a [T],
        options: &ReadOptions,
    ) -> Result<Option<Self>, MessageError> {
        let Some(document) = frames.get(2).map(AsRef::as_ref) else {
            return Ok(None);
        };
        let malformed = MessageError::malformed(2);
        check_len(2, document, options)?;
        let mut reader = Reader::with_limits(document, &options.limits);
        let found = reader.values(["headers", "keys", "bytestrings"]);
        let [headers, keys, bytestrings] = found.map_err(&malformed)?;
        reader.finish().map_err(&malformed)?;
        let missing = |key| MessageError::new(2, 0, MessageErrorKind::EntryMissing { key });
        let mut headers = headers.ok_or(missing("headers"))?;
        let mut keys = keys.ok_or(missing("keys"))?;
        let header_count = headers.map().map_err(wrong_kind("headers", "a map"))?;
        let key_count = keys.array().map_err(wrong_kind("keys", "an array"))?;
        Ok(Some(Self {
            document,
            headers,
            header_count: header_count as usize,
            keys,
            key_count: key_count as usize,
            bytestrings,
        }))
    }

    /// Stores the payloads in `slots`, ordered by path; `slots` has one slot
    /// per header. Returns the number of payloads
    /// (PROTOCOL CLASSIC-4, CLASSIC-7 and CLASSIC-8).
    pub(in crate::message) fn store_payloads<T>(
        &self,
        frames: &[T],
        slots: &mut [Slot],
    ) -> Result<usize, MessageError> {
        let document = self.document;
        let malformed = MessageError::malformed(2);
        let fault = |at, kind| MessageError::new(2, at, kind);

        // First all headers, sorted by their paths.
        let mut headers = self.headers;
        let slots = slots.get_mut(..self.header_count).or_default_if_bug();
        for slot in slots.iter_mut() {
            let path = next_span(&mut headers).map_err(&malformed)?;
            let header = next_span(&mut headers).map_err(&malformed)?;
            *slot = Slot::Path(ClassicEntry {
                path,
                header,
                ..ClassicEntry::default()
            });
        }
        // Effectively stable: of two headers for one path the later one is used,
        // as in a Python dict.
        sort(slots, &|a, b| {
            compare_paths(path_of(document, a), path_of(document, b)).then_with(|| {
                let header = |slot: &Slot| slot.path().map(|entry| entry.header.0);
                header(b).cmp(&header(a))
            })
        });

        // Then the frames, in the order of keys.
        let mut keys = self.keys;
        let mut next_frame = 3_usize;
        for number in 0..offset(self.key_count) {
            let at = keys.position();
            let path = next_span(&mut keys).map_err(&malformed)?;
            check_path(span(document, path)).map_err(|kind| fault(at, kind))?;
            let position = slots.partition_point(|slot| {
                compare_paths(path_of(document, slot), span(document, path)).is_lt()
            });
            let entry = match slots.get_mut(position) {
                Some(Slot::Path(entry))
                    if compare_paths(span(document, entry.path), span(document, path)).is_eq() =>
                {
                    entry
                }
                _ => return Err(fault(at, MessageErrorKind::EntryMissing { key: "headers" })),
            };
            if entry.claimed {
                return Err(fault(at, MessageErrorKind::PathTwice));
            }
            let available = frames.len().saturating_sub(next_frame);
            let header = span(document, entry.header);
            let header = PayloadHeader::validated(header, 2, entry.header.0 as usize)?;
            let needed = header
                .number("count")?
                .ok_or(header.missing_entry("count"))?;
            let frame_count = match u32::try_from(needed) {
                Ok(count) if count as usize <= available => count,
                _ => {
                    return Err(header.fault(MessageErrorKind::FramesMissing { needed, available }));
                }
            };
            entry.claimed = true;
            entry.number = number;
            entry.first_frame = u32::try_from(next_frame).unwrap_or(u32::MAX);
            entry.frame_count = frame_count;
            next_frame = next_frame.saturating_add(frame_count as usize);
        }
        let left_over = frames.len().saturating_sub(next_frame);
        if left_over != 0 {
            let kind = MessageErrorKind::FramesLeftOver { count: left_over };
            return Err(MessageError::new(next_frame, 0, kind));
        }

        // Headers without a key belong to no payload.
        let count = keep(slots, |entry| {
            entry.path().is_some_and(|entry| entry.claimed)
        });
        let slots = slots.get_mut(..count).or_default_if_bug();
        for pair in slots.windows(2) {
            if let [shorter, longer] = pair
                && begins_with(path_of(document, longer), path_of(document, shorter))
            {
                let at = longer.path().map_or(0, |entry| entry.path.0 as usize);
                return Err(fault(at, MessageErrorKind::PathIntoPayload));
            }
        }
        if let Some(mut bytestrings) = self.bytestrings {
            mark_bytestrings(document, &mut bytestrings, slots)?;
        }
        Ok(count)
    }
}

/// Sets the positions of payloads by their numbers.
pub(in crate::message) fn set_numbers(slots: &mut [Slot]) {
    // Each number occurs once, so this fills every entry.
    for index in 0..slots.len() {
        let number = slots
            .get(index)
            .and_then(|slot| slot.path())
            .map(|entry| entry.number);
        if let Some(number) = number
            && let Some(Slot::Path(entry)) = slots.get_mut(number as usize)
        {
            entry.by_number = offset(index);
        }
    }
}

/// Marks the payloads that are plain bytes (PROTOCOL CLASSIC-11).
fn mark_bytestrings(
    document: &[u8],
    bytestrings: &mut Reader<'_>,
    slots: &mut [Slot],
) -> Result<(), MessageError> {
    for slot in slots.iter_mut() {
        if let Slot::Path(entry) = slot {
            entry.bytestring = Some(false);
        }
    }
    let count = bytestrings
        .array()
        .map_err(wrong_kind("bytestrings", "an array"))?;
    for _ in 0..count {
        let path = bytestrings.skip().map_err(MessageError::malformed(2))?;
        let position =
            slots.partition_point(|slot| compare_paths(path_of(document, slot), path).is_lt());
        if let Some(Slot::Path(entry)) = slots.get_mut(position)
            && compare_paths(span(document, entry.path), path).is_eq()
        {
            entry.bytestring = Some(true);
        }
    }
    Ok(())
}

fn path_of<'a>(document: &'a [u8], slot: &Slot) -> &'a [u8] {
    slot.path().map_or(&[], |entry| span(document, entry.path))
}

/// Checks that a path is an array of keys and indices, or a single key.
fn check_path(path: &[u8]) -> Result<(), MessageErrorKind> {
    match Reader::new(path).token() {
        Ok(Token::Array(_) | Token::Str(_)) => Ok(()),
        _ => Err(MessageErrorKind::EntryKind {
            key: "a path in keys",
            expected: "an array or a str",
        }),
    }
}

/// Converts the error of reading the entry `key`, which is not `expected`.
fn wrong_kind(key: &'static str, expected: &'static str) -> impl Fn(Malformed) -> MessageError {
    move |error| match error.kind {
        MalformedKind::Unexpected { .. } => {
            MessageError::new(2, error.at, MessageErrorKind::EntryKind { key, expected })
        }
        _ => MessageError::malformed(2)(error),
    }
}

fn next_span(reader: &mut Reader<'_>) -> Result<(u32, u32), Malformed> {
    let start = reader.position();
    reader.skip()?;
    Ok((offset(start), offset(reader.position())))
}
