//! Opening a message: one pass over its body, in which everything that the
//! body refers to is checked and noted down.

use core::cmp::Ordering;

use super::path::{IndexKey, begins_with, compare_paths, compare_values};
use super::walk::{Level, Nesting, matching};
use super::{CodecName, Layout, Message, MessageError, MessageErrorKind, ReadOptions, path};
use crate::BufferTooSmall;
use crate::compression::{self, Codec, CompressionError};
use crate::msgpack::{Malformed, MalformedKind, Reader, Token};

/// Room to note down one payload, set or enum member of a body.
///
/// Its content is the business of [`Message`]; supply as many as the message
/// may have.
#[derive(Clone, Copy, Debug)]
pub struct PayloadSlot(pub(super) Location);

impl PayloadSlot {
    /// A place that is free.
    pub const EMPTY: Self = Self(Location::Free);
}

/// What a [`PayloadSlot`] notes down. Offsets are those of a document, of which
/// [`Limits::document_len`](crate::Limits::document_len) is below 2^32 here.
#[derive(Clone, Copy, Debug)]
pub(super) enum Location {
    Free,
    /// A placeholder, from `start` to `end` in the body, for the payload whose
    /// header is frame `frame` and whose frames end before frame `limit`.
    Placeholder {
        start: u32,
        end: u32,
        frame: u32,
        limit: u32,
        pickled: bool,
    },
    /// A set, whose members are the array at `list`.
    Set {
        start: u32,
        end: u32,
        list: u32,
    },
    /// An enum member.
    Enum {
        start: u32,
        end: u32,
    },
    /// A payload with a path; offsets in the payload header.
    Path(ClassicEntry),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ClassicEntry {
    pub(super) path: (u32, u32),
    pub(super) head: (u32, u32),
    pub(super) first_frame: u32,
    pub(super) frame_count: u32,
    /// Position in `keys`, which is the number of the payload.
    pub(super) number: u32,
    /// Where in the table the payload stands whose number is this entry's
    /// position.
    pub(super) by_number: u32,
    pub(super) claimed: bool,
    pub(super) bytestring: Option<bool>,
    /// The body has a value at this path, which the payload replaces.
    pub(super) present: bool,
    /// The path leads somewhere.
    pub(super) resolved: bool,
    /// How many elements of the path have been followed.
    followed: u32,
}

impl Location {
    pub(super) const fn start(&self) -> u32 {
        match self {
            Self::Placeholder { start, .. }
            | Self::Set { start, .. }
            | Self::Enum { start, .. } => *start,
            Self::Free | Self::Path(_) => u32::MAX,
        }
    }

    const fn frame(&self) -> u32 {
        match self {
            Self::Placeholder { frame, .. } => *frame,
            _ => 0,
        }
    }

    const fn is_special(&self) -> bool {
        matches!(self, Self::Set { .. } | Self::Enum { .. })
    }

    pub(super) const fn path(&self) -> Option<&ClassicEntry> {
        match self {
            Self::Path(spot) => Some(spot),
            _ => None,
        }
    }
}

/// The bytes of a span of a document.
pub(super) fn span(document: &[u8], (start, end): (u32, u32)) -> &[u8] {
    document
        .get(start as usize..end as usize)
        .unwrap_or_default()
}

/// A table that is filled from the front. Goes on counting where it is full, so
/// that the error can say how many entries are needed.
struct Table<'p> {
    places: &'p mut [PayloadSlot],
    count: usize,
    /// The most entries that there were at a time.
    most: usize,
    /// Some entries are free.
    has_free: bool,
}

impl<'p> Table<'p> {
    const fn new(places: &'p mut [PayloadSlot], count: usize) -> Self {
        Self {
            places,
            count,
            most: count,
            has_free: false,
        }
    }

    fn push(&mut self, spot: Location) {
        if let Some(place) = self.places.get_mut(self.count) {
            *place = PayloadSlot(spot);
        }
        self.count = self.count.saturating_add(1);
        self.most = self.most.max(self.count);
    }

    /// Drops the entries from `first` on but those of `kept`. Moves or frees the
    /// fewer of them, so that nested containers do not add up.
    fn retain(&mut self, first: usize, kept: core::ops::Range<usize>) {
        self.count = kept.end;
        if kept.len() > kept.start.saturating_sub(first) {
            for place in self.places.iter_mut().take(kept.start).skip(first) {
                *place = PayloadSlot::EMPTY;
                self.has_free = true;
            }
            return;
        }
        self.count = first;
        for from in kept {
            if let Some(&place) = self.places.get(from)
                && let Some(to) = self.places.get_mut(self.count)
            {
                *to = place;
            }
            self.count = self.count.saturating_add(1);
        }
    }

    /// Moves the entries that are free behind all others.
    fn pack(&mut self) {
        if self.has_free {
            let entries = self.places.get_mut(..self.count).unwrap_or_default();
            self.count = keep(entries, |spot| !matches!(spot, Location::Free));
        }
    }

    fn check(&self) -> Result<(), MessageErrorKind> {
        let available = self.places.len();
        if self.most > available {
            return Err(MessageErrorKind::TooFewPlaces(BufferTooSmall {
                needed: self.most,
                available,
            }));
        }
        Ok(())
    }
}

impl<'a, T: AsRef<[u8]>> Message<'a, T> {
    /// Opens the message that these frames are.
    ///
    /// Reads the body once, and in the classic layout the payload header;
    /// payloads are not looked at. What the caller supplies:
    ///
    /// * `levels`: as many as the body may be nested deep
    ///   (6 cover every message of a real scheduler);
    /// * `places`: one for each payload, set and enum member;
    /// * `scratch`: room for the decompressed body, which only the classic
    ///   layout compresses. May be empty otherwise.
    ///
    /// # Errors
    ///
    /// * what is wrong with the body, with a placeholder or with a path;
    /// * [`MessageErrorKind::FramesShared`] if two placeholders name the same
    ///   frame;
    /// * [`MessageErrorKind::TooFewLevels`], [`MessageErrorKind::TooFewPlaces`]
    ///   or [`MessageErrorKind::BodyBuffer`] if the caller supplied too little.
    pub fn open(
        frames: &'a [T],
        layout: Layout,
        options: &ReadOptions,
        levels: &mut [Level],
        places: &'a mut [PayloadSlot],
        scratch: &'a mut [u8],
    ) -> Result<Self, MessageError> {
        let mut heads = None;
        let (body_frame, body) = match layout {
            // PROTOCOL MODERN-1
            Layout::Modern => (0, frames.first().ok_or(no_body(0))?.as_ref()),
            Layout::Classic => {
                let body = classic_body(frames, options, scratch)?;
                heads = Heads::parse(frames, options)?;
                (1, body)
            }
        };
        check_len(body_frame, body, options)?;
        let mut path_count = 0;
        let mut table = Table::new(places, 0);
        if let Some(heads) = &heads {
            if heads.count <= table.places.len() {
                path_count = heads.note(frames, table.places)?;
                table.count = path_count;
            } else {
                // Read on only to tell how many places the message takes.
                table.count = heads.key_count;
            }
            table.most = heads.count.max(table.count);
        }
        Scan {
            layout,
            options,
            frame: body_frame,
            frame_count: frames.len(),
            body,
            paths: frames.get(2).map(AsRef::as_ref).unwrap_or_default(),
            path_count,
        }
        .run(levels, &mut table)?;

        table
            .check()
            .map_err(|kind| MessageError::new(body_frame, 0, kind))?;
        table.pack();
        let count = table.count;
        let places = places.get_mut(..count).unwrap_or_default();
        // The entries with paths are in order already and stay in front.
        if let Some(found) = places.get_mut(path_count..) {
            sort(found, |a, b| {
                let key = |place: &PayloadSlot| (place.0.is_special(), place.0.start());
                key(a).cmp(&key(b))
            });
        }
        let payload_count = places
            .iter()
            .position(|place| place.0.is_special())
            .unwrap_or(count);
        if layout == Layout::Modern
            && let Some(placeholders) = places.get_mut(..payload_count)
        {
            set_frame_limits(placeholders, frames.len())?;
        }
        let places: &'a [PayloadSlot] = places;
        let (payloads, specials) = places.split_at_checked(payload_count).unwrap_or_default();
        Ok(Self {
            layout,
            frames,
            body,
            payloads,
            specials,
            options: *options,
        })
    }
}

/// Ends the frames of each payload where the header of another one is, so that
/// no two payloads share a frame whatever their headers say (PROTOCOL MODERN-7).
fn set_frame_limits(
    placeholders: &mut [PayloadSlot],
    frame_count: usize,
) -> Result<(), MessageError> {
    sort(placeholders, |a, b| a.0.frame().cmp(&b.0.frame()));
    let mut behind = offset(frame_count);
    for place in placeholders.iter_mut().rev() {
        if let Location::Placeholder { frame, limit, .. } = &mut place.0 {
            if *frame == behind {
                let kind = MessageErrorKind::FramesShared;
                return Err(MessageError::new(behind as usize, 0, kind));
            }
            *limit = behind;
            behind = *frame;
        }
    }
    sort(placeholders, |a, b| a.0.start().cmp(&b.0.start()));
    Ok(())
}

const fn no_body(frame: usize) -> MessageError {
    MessageError::new(frame, 0, MessageErrorKind::NoBody)
}

/// Documents are addressed by `u32`, whatever the limit.
pub(super) fn check_len(
    frame: usize,
    document: &[u8],
    options: &ReadOptions,
) -> Result<(), MessageError> {
    let limit = options.limits.document_len.min(u64::from(u32::MAX));
    let len = document.len() as u64;
    if len > limit {
        let kind = MessageErrorKind::DocumentTooLong { len, limit };
        return Err(MessageError::new(frame, 0, kind));
    }
    Ok(())
}

/// The body of a classic message, decompressed into `scratch` if need be
/// (PROTOCOL CLASSIC-1, CLASSIC-2 and CLASSIC-3).
fn classic_body<'a, T: AsRef<[u8]>>(
    frames: &'a [T],
    options: &ReadOptions,
    scratch: &'a mut [u8],
) -> Result<&'a [u8], MessageError> {
    let [header, body, ..] = frames else {
        return Err(no_body(frames.len()));
    };
    let (header, body) = (header.as_ref(), body.as_ref());
    check_len(0, header, options)?;
    if header.is_empty() {
        return Ok(body);
    }
    let malformed = MessageError::malformed(0);
    let mut reader = Reader::with_limits(header, &options.limits);
    let mut codec = None;
    for _ in 0..reader.map().map_err(&malformed)? {
        let key = reader.skip().map_err(&malformed)?;
        let at = reader.position();
        let value = reader.skip().map_err(&malformed)?;
        if key == b"\xabcompression" {
            codec = codec_entry(value).map_err(|kind| MessageError::new(0, at, kind))?;
        }
    }
    reader.finish().map_err(&malformed)?;
    let Some(codec) = codec else {
        return Ok(body);
    };
    let fault = |error| {
        let kind = match error {
            CompressionError::BufferTooSmall(error) => MessageErrorKind::BodyBuffer(error),
            error => MessageErrorKind::Compression(error),
        };
        MessageError::new(1, 0, kind)
    };
    let mut limits = options.limits;
    limits.decompressed_len = limits.decompressed_len.min(limits.document_len);
    let len = compression::decompress(codec, body, scratch, &limits).map_err(fault)?;
    Ok(scratch.get(..len).unwrap_or_default())
}

/// A value of a `compression` entry: nil and false are none
/// (PROTOCOL COMPRESS-5, COMPRESS-6).
pub(super) fn codec_entry(value: &[u8]) -> Result<Option<Codec>, MessageErrorKind> {
    let mut reader = Reader::new(value);
    match reader.token() {
        Ok(Token::Nil | Token::Bool(false)) => Ok(None),
        Ok(Token::Str(name)) => match Codec::from_name(name.as_bytes()) {
            Some(codec) => Ok(Some(codec)),
            None => Err(MessageErrorKind::UnknownCodec {
                name: CodecName::new(name.as_bytes()),
            }),
        },
        _ => Err(MessageErrorKind::EntryKind {
            key: "compression",
            expected: "nil or the name of a codec",
        }),
    }
}

/// The entries of a classic payload header that matter for the whole message.
struct Heads<'a> {
    document: &'a [u8],
    /// The pairs of `headers`.
    heads: Reader<'a>,
    count: usize,
    /// The paths in `keys`.
    keys: Reader<'a>,
    key_count: usize,
    bytestrings: Option<Reader<'a>>,
}

impl<'a> Heads<'a> {
    /// `None` if the message has no payload header.
    fn parse<T: AsRef<[u8]>>(
        frames: &'a [T],
        options: &ReadOptions,
    ) -> Result<Option<Self>, MessageError> {
        let Some(document) = frames.get(2).map(AsRef::as_ref) else {
            return Ok(None);
        };
        let malformed = MessageError::malformed(2);
        check_len(2, document, options)?;
        let mut reader = Reader::with_limits(document, &options.limits);
        let (mut heads, mut keys, mut bytestrings) = (None, None, None);
        for _ in 0..reader.map().map_err(&malformed)? {
            let key = reader.skip().map_err(&malformed)?;
            let value = reader;
            reader.skip().map_err(&malformed)?;
            match key {
                b"\xa7headers" => heads = Some(value),
                b"\xa4keys" => keys = Some(value),
                b"\xabbytestrings" => bytestrings = Some(value),
                _ => {}
            }
        }
        reader.finish().map_err(&malformed)?;
        let missing = |key| MessageError::new(2, 0, MessageErrorKind::EntryMissing { key });
        let mut heads = heads.ok_or(missing("headers"))?;
        let mut keys = keys.ok_or(missing("keys"))?;
        let heads_at = heads.position();
        let count = heads.map().map_err(|error| {
            MessageError::new(2, heads_at, entry_kind("headers", "a map", error))
        })?;
        let keys_at = keys.position();
        let key_count = keys.array().map_err(|error| {
            MessageError::new(2, keys_at, entry_kind("keys", "an array", error))
        })?;
        Ok(Some(Self {
            document,
            heads,
            count: count as usize,
            keys,
            key_count: key_count as usize,
            bytestrings,
        }))
    }

    /// Notes down the payloads, ordered by path, in `places`, which hold as many
    /// as there are heads. Returns how many payloads there are (PROTOCOL
    /// CLASSIC-4, CLASSIC-7 and CLASSIC-8).
    fn note<T>(&self, frames: &[T], places: &mut [PayloadSlot]) -> Result<usize, MessageError> {
        let document = self.document;
        let malformed = MessageError::malformed(2);
        let fault = |at, kind| MessageError::new(2, at, kind);

        // First all heads, found by their paths.
        let mut heads = self.heads;
        let places = places.get_mut(..self.count).unwrap_or_default();
        for place in places.iter_mut() {
            let path = next_span(&mut heads).map_err(&malformed)?;
            let head = next_span(&mut heads).map_err(&malformed)?;
            *place = PayloadSlot(Location::Path(ClassicEntry {
                path,
                head,
                first_frame: 0,
                frame_count: 0,
                number: 0,
                by_number: 0,
                claimed: false,
                bytestring: None,
                present: false,
                resolved: false,
                followed: 0,
            }));
        }
        // Stable in effect: of two heads for one path the later one counts, as in
        // a Python dict.
        sort(places, |a, b| {
            compare_paths(path_of(document, a), path_of(document, b)).then_with(|| {
                let head = |place: &PayloadSlot| place.0.path().map(|spot| spot.head.0);
                head(b).cmp(&head(a))
            })
        });

        // Then the frames, in the order of keys.
        let mut keys = self.keys;
        let mut next_frame = 3_usize;
        for number in 0..offset(self.key_count) {
            let at = keys.position();
            let path = next_span(&mut keys).map_err(&malformed)?;
            check_path(span(document, path)).map_err(|kind| fault(at, kind))?;
            let place = places.partition_point(|place| {
                compare_paths(path_of(document, place), span(document, path)).is_lt()
            });
            let spot = match places.get_mut(place) {
                Some(PayloadSlot(Location::Path(spot)))
                    if compare_paths(span(document, spot.path), span(document, path)).is_eq() =>
                {
                    spot
                }
                _ => return Err(fault(at, MessageErrorKind::EntryMissing { key: "headers" })),
            };
            if spot.claimed {
                return Err(fault(at, MessageErrorKind::PathTwice));
            }
            let available = frames.len().saturating_sub(next_frame);
            let frame_count = head_count(document, spot.head)
                .map_err(|(at, kind)| fault(at, kind))
                .and_then(|needed| match u32::try_from(needed) {
                    Ok(count) if count as usize <= available => Ok(count),
                    _ => Err(fault(
                        spot.head.0 as usize,
                        MessageErrorKind::FramesMissing { needed, available },
                    )),
                })?;
            spot.claimed = true;
            spot.number = number;
            spot.first_frame = u32::try_from(next_frame).unwrap_or(u32::MAX);
            spot.frame_count = frame_count;
            next_frame = next_frame.saturating_add(frame_count as usize);
        }
        let left_over = frames.len().saturating_sub(next_frame);
        if left_over != 0 {
            let kind = MessageErrorKind::FramesLeftOver { count: left_over };
            return Err(MessageError::new(next_frame, 0, kind));
        }

        // Heads that no key asks for belong to no payload.
        let count = keep(places, |spot| spot.path().is_some_and(|spot| spot.claimed));
        let places = places.get_mut(..count).unwrap_or_default();
        for pair in places.windows(2) {
            if let [shorter, longer] = pair
                && begins_with(path_of(document, longer), path_of(document, shorter))
            {
                let at = longer.0.path().map_or(0, |spot| spot.path.0 as usize);
                return Err(fault(at, MessageErrorKind::PathIntoPayload));
            }
        }
        if let Some(mut bytestrings) = self.bytestrings {
            mark_bytestrings(document, &mut bytestrings, places)?;
        }
        // Each number is there once, so this fills every entry.
        for index in 0..count {
            let number = places
                .get(index)
                .and_then(|place| place.0.path())
                .map(|s| s.number);
            if let Some(number) = number
                && let Some(PayloadSlot(Location::Path(spot))) = places.get_mut(number as usize)
            {
                spot.by_number = u32::try_from(index).unwrap_or(u32::MAX);
            }
        }
        Ok(count)
    }
}

/// Takes note of the payloads that are plain bytes (PROTOCOL CLASSIC-11).
fn mark_bytestrings(
    document: &[u8],
    bytestrings: &mut Reader<'_>,
    places: &mut [PayloadSlot],
) -> Result<(), MessageError> {
    let at = bytestrings.position();
    let fault = |kind| MessageError::new(2, at, kind);
    for place in places.iter_mut() {
        if let Location::Path(spot) = &mut place.0 {
            spot.bytestring = Some(false);
        }
    }
    let count = bytestrings
        .array()
        .map_err(|error| fault(entry_kind("bytestrings", "an array", error)))?;
    for _ in 0..count {
        let path = bytestrings.skip().map_err(MessageError::malformed(2))?;
        let place =
            places.partition_point(|place| compare_paths(path_of(document, place), path).is_lt());
        if let Some(PayloadSlot(Location::Path(spot))) = places.get_mut(place)
            && compare_paths(span(document, spot.path), path).is_eq()
        {
            spot.bytestring = Some(true);
        }
    }
    Ok(())
}

fn path_of<'a>(document: &'a [u8], place: &PayloadSlot) -> &'a [u8] {
    place.0.path().map_or(&[], |spot| span(document, spot.path))
}

/// A path is an array of keys and indices, or a single key.
fn check_path(path: &[u8]) -> Result<(), MessageErrorKind> {
    match Reader::new(path).token() {
        Ok(Token::Array(_) | Token::Str(_)) => Ok(()),
        _ => Err(MessageErrorKind::EntryKind {
            key: "a path in keys",
            expected: "an array or a str",
        }),
    }
}

/// Moves the entries that `wanted` says yes to to the front, in order.
fn keep(places: &mut [PayloadSlot], wanted: impl Fn(&Location) -> bool) -> usize {
    let mut kept = 0_usize;
    for index in 0..places.len() {
        if places.get(index).is_some_and(|place| wanted(&place.0)) {
            swap(places, kept, index);
            kept = kept.saturating_add(1);
        }
    }
    kept
}

/// Sorts entries, which mostly are in order. A heap sort: `slice::sort_unstable`
/// has a panic for orders that are none, which the linker would find.
fn sort(places: &mut [PayloadSlot], order: impl Fn(&PayloadSlot, &PayloadSlot) -> Ordering) {
    let before = |places: &[PayloadSlot], one: usize, other: usize| match (
        places.get(one),
        places.get(other),
    ) {
        (Some(one), Some(other)) => order(one, other).is_lt(),
        _ => false,
    };
    if places.is_sorted_by(|one, other| order(one, other).is_le()) {
        return;
    }
    // Moves an entry of the heap in front of `end` down to its place.
    let sift = |places: &mut [PayloadSlot], mut at: usize, end: usize| loop {
        let mut child = at.saturating_mul(2).saturating_add(1);
        let second = child.saturating_add(1);
        if second < end && before(places, child, second) {
            child = second;
        }
        if child >= end || !before(places, at, child) {
            return;
        }
        swap(places, at, child);
        at = child;
    };
    let len = places.len();
    for at in (0..len / 2).rev() {
        sift(places, at, len);
    }
    for end in (1..len).rev() {
        swap(places, 0, end);
        sift(places, 0, end);
    }
}

/// Exchanges two entries, both of which are there. `slice::swap` has a panic for
/// when they are not, which the linker would find.
fn swap(places: &mut [PayloadSlot], one: usize, other: usize) {
    if let (Some(&first), Some(&second)) = (places.get(one), places.get(other)) {
        if let Some(place) = places.get_mut(one) {
            *place = second;
        }
        if let Some(place) = places.get_mut(other) {
            *place = first;
        }
    }
}

/// The error for an entry that should have been a container.
fn entry_kind(key: &'static str, expected: &'static str, error: Malformed) -> MessageErrorKind {
    match error.kind {
        MalformedKind::Unexpected { .. } => MessageErrorKind::EntryKind { key, expected },
        kind => MessageErrorKind::Malformed(kind),
    }
}

fn next_span(reader: &mut Reader<'_>) -> Result<(u32, u32), Malformed> {
    let start = reader.position();
    reader.skip()?;
    Ok((offset(start), offset(reader.position())))
}

/// An offset in a document, whose length has been checked to fit.
pub(super) fn offset(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// The `count` of a payload's head.
fn head_count(document: &[u8], head: (u32, u32)) -> Result<u64, (usize, MessageErrorKind)> {
    let start = head.0 as usize;
    let mut reader = Reader::new(span(document, head));
    let pairs = reader.map().map_err(|error| {
        let kind = entry_kind("the header of a payload", "a map", error);
        (start.saturating_add(error.at), kind)
    })?;
    let mut count = None;
    for _ in 0..pairs {
        let (Ok(key), at) = (reader.skip(), reader.position()) else {
            break;
        };
        let Ok(value) = reader.skip() else { break };
        if key == b"\xa5count" {
            count = Some((value, start.saturating_add(at)));
        }
    }
    let (value, at) = count.ok_or((start, MessageErrorKind::EntryMissing { key: "count" }))?;
    Reader::new(value).u64().map_err(|_| {
        let kind = MessageErrorKind::EntryKind {
            key: "count",
            expected: "a number of frames",
        };
        (at, kind)
    })
}

/// One pass over a body.
struct Scan<'s> {
    layout: Layout,
    options: &'s ReadOptions,
    frame: usize,
    frame_count: usize,
    body: &'s [u8],
    /// The payload header, for the paths in it.
    paths: &'s [u8],
    path_count: usize,
}

/// The keys that make a map something else (PROTOCOL BODY-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reserved {
    Serialized,
    Pickled,
    Set,
    List,
    Enum,
    /// One of the three names of an enum member.
    Name(usize),
}

impl Reserved {
    fn of(key: Token<'_>) -> Option<Self> {
        let Token::Str(key) = key else { return None };
        match key.as_bytes() {
            b"__Serialized__" => Some(Self::Serialized),
            b"__Pickled__" => Some(Self::Pickled),
            b"__Set__" => Some(Self::Set),
            b"as-list" => Some(Self::List),
            b"__Enum__" => Some(Self::Enum),
            b"name" => Some(Self::Name(0)),
            b"__module__" => Some(Self::Name(1)),
            b"__name__" => Some(Self::Name(2)),
            _ => None,
        }
    }
}

impl Scan<'_> {
    fn fault(&self, at: usize, kind: MessageErrorKind) -> MessageError {
        MessageError::new(self.frame, at, kind)
    }

    fn run(&self, levels: &mut [Level], table: &mut Table<'_>) -> Result<(), MessageError> {
        let malformed = MessageError::malformed(self.frame);
        let mut reader = Reader::with_limits(self.body, &self.options.limits);
        let mut depth = 0_usize;
        loop {
            let at = reader.position();
            let token = reader.token().map_err(&malformed)?;
            if let Token::Str(text) = token
                && let Err(error) = text.check()
            {
                let kind = MalformedKind::NotUtf8 {
                    valid_len: error.valid_up_to(),
                };
                return Err(self.fault(at, MessageErrorKind::Malformed(kind)));
            }
            let mut in_key = false;
            // The payloads whose paths go through this value.
            let below = match depth.checked_sub(1).and_then(|top| levels.get_mut(top)) {
                None => (0, self.path_count),
                Some(level) => {
                    let is_key = level.next_is_key();
                    in_key = level.in_key || is_key;
                    if is_key {
                        level.end_list(table.count);
                        level.key = offset(at);
                        level.reserved = Reserved::of(token);
                    } else {
                        level.note_value(at, token, table.count);
                    }
                    let range = level.range();
                    let below = if range.0 == range.1 || is_key {
                        (0, 0)
                    } else {
                        self.below(level, range, depth, table.places)?
                    };
                    level.owed = level.owed.wrapping_sub(1);
                    below
                }
            };
            let below = self.resolve(token, below, depth, table.places)?;
            let child_count = u32::try_from(token.child_count()).unwrap_or(u32::MAX);
            // An empty map that payloads go into is a level for who walks it.
            let opens = child_count != 0 || below.0 != below.1;
            if opens {
                if depth as u64 >= u64::from(self.options.limits.depth) {
                    let kind = MalformedKind::TooDeep {
                        limit: self.options.limits.depth,
                    };
                    return Err(self.fault(at, MessageErrorKind::Malformed(kind)));
                }
                let available = levels.len();
                let Some(level) = levels.get_mut(depth) else {
                    return Err(self.fault(at, MessageErrorKind::TooFewLevels { available }));
                };
                *level = Level::new(
                    match token {
                        Token::Map(_) => Nesting::Map,
                        _ => Nesting::Array,
                    },
                    offset(at),
                    child_count,
                    below,
                );
                level.first_place = offset(table.count);
                level.in_key = in_key;
                depth = depth.saturating_add(1);
            }
            // Close what is complete.
            while let Some(top) = depth.checked_sub(1)
                && let Some(level) = levels.get_mut(top)
                && level.owed == 0
            {
                level.end_list(table.count);
                self.close(level, reader.position(), table)?;
                depth = top;
            }
            if depth == 0 {
                break;
            }
        }
        reader.finish().map_err(&malformed)?;
        for place in table.places.iter().take(self.path_count) {
            if let Some(spot) = place.0.path()
                && !spot.resolved
            {
                let at = spot.path.0 as usize;
                return Err(MessageError::new(2, at, MessageErrorKind::PathMissing));
            }
        }
        Ok(())
    }

    /// The payloads at and below the value that comes next in `level`, which
    /// stands `depth` elements down the paths. A payload at the value itself is
    /// marked as being there.
    fn below(
        &self,
        level: &Level,
        range: (usize, usize),
        depth: usize,
        places: &mut [PayloadSlot],
    ) -> Result<(usize, usize), MessageError> {
        let index;
        let element = match level.nesting {
            Nesting::Map => {
                let mut key = Reader::new(self.body.get(level.key as usize..).unwrap_or_default());
                key.skip().unwrap_or_default()
            }
            _ => {
                index = IndexKey::new(level.index());
                index.as_bytes()
            }
        };
        let element_index = depth.saturating_sub(1);
        let found = matching(self.paths, places, range, element_index, element);
        if let Some(PayloadSlot(Location::Path(spot))) = places.get_mut(found.0)
            && found.0 < found.1
            && path::Elements::new(span(self.paths, spot.path)).len() == depth
        {
            follow(spot, depth)?;
            spot.present = true;
            spot.resolved = true;
            return Ok((0, 0));
        }
        Ok(found)
    }

    /// Marks the payloads that go right into the container that `token` opens,
    /// and returns the range that concerns it (PROTOCOL CLASSIC-5).
    fn resolve(
        &self,
        token: Token<'_>,
        below: (usize, usize),
        depth: usize,
        places: &mut [PayloadSlot],
    ) -> Result<(usize, usize), MessageError> {
        let (low, high) = below;
        for place in places.get_mut(low..high).unwrap_or_default() {
            let Location::Path(spot) = &mut place.0 else {
                continue;
            };
            follow(spot, depth)?;
            let elements = path::Elements::new(span(self.paths, spot.path));
            match (elements.len()).checked_sub(depth) {
                // The payload is the whole message.
                Some(0) => {
                    spot.resolved = true;
                    spot.present = true;
                }
                Some(1) => {
                    spot.resolved = match token {
                        Token::Map(_) => true,
                        Token::Array(count) => elements.last().is_some_and(|index| {
                            // An index of a list, and in it.
                            Reader::new(index)
                                .u64()
                                .is_ok_and(|index| index < u64::from(count))
                        }),
                        _ => false,
                    };
                }
                _ => {}
            }
        }
        Ok(match token {
            Token::Map(_) | Token::Array(_) => below,
            _ => (0, 0),
        })
    }

    /// Notes down what a container turned out to be.
    fn close(&self, level: &Level, end: usize, table: &mut Table<'_>) -> Result<(), MessageError> {
        if level.nesting != Nesting::Map || level.marks.is_none() {
            return Ok(());
        }
        let marks = level.marks;
        let (start, end) = (level.start, offset(end));
        let at = start as usize;
        // PROTOCOL BODY-2: in this order. PROTOCOL MODERN-2, MODERN-6 and MODERN-8:
        // any frame, other keys dropped. PROTOCOL CLASSIC-13: not in classic,
        // where `true` marks an inline payload, left in the body as the map that
        // it is (PROTOCOL BODY-5).
        if self.layout == Layout::Modern && (marks.serialized || marks.pickled) {
            if level.in_key {
                return Err(self.fault(at, MessageErrorKind::PlaceholderInKey));
            }
            let pickled = !marks.serialized;
            let reference = if pickled {
                level.pickled
            } else {
                level.serialized
            };
            let frame = reference
                .filter(|index| *index != 0)
                .ok_or_else(|| self.fault(at, MessageErrorKind::PlaceholderNotFrame))?;
            match u32::try_from(frame) {
                Ok(frame) if (frame as usize) < self.frame_count => {
                    table.count = level.first_place as usize;
                    table.push(Location::Placeholder {
                        start,
                        end,
                        frame,
                        limit: frame,
                        pickled,
                    });
                    return Ok(());
                }
                _ => {
                    let kind = MessageErrorKind::PlaceholderPastEnd {
                        index: frame,
                        frame_count: self.frame_count,
                    };
                    return Err(self.fault(at, kind));
                }
            }
        }
        if !self.options.sets_and_enums {
            return Ok(());
        }
        if marks.enumeration {
            // PROTOCOL BODY-4
            if marks.names != [true; 3] {
                return Err(self.fault(at, MessageErrorKind::EnumWithoutName));
            }
            table.count = level.first_place as usize;
            table.push(Location::Enum { start, end });
            return Ok(());
        }
        if marks.set {
            // PROTOCOL BODY-3
            if !marks.list {
                return Err(self.fault(at, MessageErrorKind::SetWithoutList));
            }
            // The set has no other content.
            let (first, last) = level.list_places;
            table.retain(level.first_place as usize, first as usize..last as usize);
            table.push(Location::Set {
                start,
                end,
                list: level.list,
            });
        }
        Ok(())
    }
}

/// Takes note that `depth` elements of a path lead to a value. Where a map has a
/// key twice they lead to two, and each payload below would stand in both.
fn follow(spot: &mut ClassicEntry, depth: usize) -> Result<(), MessageError> {
    let followed = offset(depth).saturating_add(1);
    if spot.followed >= followed {
        let at = spot.path.0 as usize;
        return Err(MessageError::new(2, at, MessageErrorKind::PathAmbiguous));
    }
    spot.followed = followed;
    Ok(())
}

/// Whether the value of an element equals `element`, for searching a range.
pub(super) fn element_order(
    paths: &[u8],
    place: &PayloadSlot,
    index: usize,
    element: &[u8],
) -> Ordering {
    let mut elements = path::Elements::new(path_of(paths, place));
    match elements.nth(index) {
        None => Ordering::Less,
        Some(other) => compare_values(other, element),
    }
}
