//! A payload: its header and its frames, decoded on request.

use core::ops::Range;

use super::header::ItemList;
use super::open::codec_entry;
use super::slot::{Slot, span};
use super::{Layout, Message, MessageError, MessageErrorKind, PayloadHeader, ReadOptions};
use crate::BufferTooSmall;
use crate::compression::{self, Codec, CompressionError};
use crate::invariant::OrDefaultIfBug as _;

/// The kind of a payload's placeholder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PayloadKind {
    /// A value serialized by a family, see [`Serializer`](super::Serializer):
    /// all payloads of the classic layout, and `__Serialized__` in the modern
    /// one.
    Serialized,
    /// A pickle in the header, with its out-of-band buffers as frames:
    /// `__Pickled__`, since 2022.4.0. Every Python process that receives it
    /// unpickles it, the scheduler included.
    Pickled,
}

/// One payload of a message.
///
/// Its header has been parsed, its frames have not. To forward it use
/// [`MessageBuilder::forward`](super::MessageBuilder::forward).
#[derive(Debug)]
pub struct Payload<'a, T> {
    layout: Layout,
    kind: PayloadKind,
    header: PayloadHeader<'a>,
    frames: &'a [T],
    first_frame: usize,
    bytestring: Option<bool>,
    path: Option<&'a [u8]>,
    options: ReadOptions,
}

impl<T> Clone for Payload<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Payload<'_, T> {}

impl<'a, T: AsRef<[u8]>> Message<'a, T> {
    /// Returns payload `number`, counted from 0 in the order of the body
    /// (modern) or of `keys` (classic).
    ///
    /// # Errors
    ///
    /// * [`MessageErrorKind::NoSuchPayload`] if `number` is not less than
    ///   [`payload_count`](Self::payload_count);
    /// * a fault in its header, or [`MessageErrorKind::FramesMissing`] if the
    ///   message has fewer frames than the header declares, or
    ///   [`MessageErrorKind::FramesShared`] if another payload begins among
    ///   them. Two payloads of a message never share a frame.
    pub fn payload(&self, number: usize) -> Result<Payload<'a, T>, MessageError> {
        let count = self.payloads.len();
        let none = MessageError::new(0, 0, MessageErrorKind::NoSuchPayload { count });
        match self.payloads.get(number).ok_or(none)? {
            Slot::Placeholder {
                frame, limit, kind, ..
            } => {
                let (frame, limit) = (*frame as usize, *limit as usize);
                Payload::within(self.frames, frame, limit, *kind, &self.options)
            }
            Slot::Path(entry) if self.layout.is_classic() => {
                let slot = self.payloads.get(entry.by_number as usize);
                let entry = slot.and_then(|slot| slot.path()).ok_or(none)?;
                let document = self.frames.get(2).map(AsRef::as_ref).or_default_if_bug();
                let header = span(document, entry.header);
                let first_frame = entry.first_frame as usize;
                let end = first_frame.saturating_add(entry.frame_count as usize);
                Ok(Payload {
                    layout: self.layout,
                    kind: PayloadKind::Serialized,
                    header: PayloadHeader::validated(header, 2, entry.header.0 as usize)?,
                    frames: self.frames.get(first_frame..end).or_default_if_bug(),
                    first_frame,
                    bytestring: entry.bytestring,
                    path: Some(span(document, entry.path)),
                    options: self.options,
                })
            }
            _ => Err(none),
        }
    }

    /// The exclusive upper bound of a payload's frame indices: the start of
    /// another payload or the end of the message. `None` unless the placeholder
    /// of a payload begins at this offset of the body.
    pub fn frame_limit(&self, offset: usize) -> Option<usize> {
        let found = self
            .payloads
            .binary_search_by(|slot| (slot.start() as usize).cmp(&offset));
        let found = found.ok()?;
        match *self.payloads.get(found)? {
            Slot::Placeholder { limit, .. } => Some(limit as usize),
            _ => None,
        }
    }

    /// All payloads, in the order of their indices.
    pub fn payloads(
        &self,
    ) -> impl ExactSizeIterator<Item = Result<Payload<'a, T>, MessageError>> + use<'a, T> {
        let message = *self;
        (0..self.payloads.len()).map(move |number| message.payload(number))
    }

    /// Validates the header of every payload and the lists in it, which opening
    /// does not read. Nothing is decompressed.
    ///
    /// # Errors
    ///
    /// The fault of the first invalid payload.
    pub fn check(&self) -> Result<(), MessageError> {
        self.payloads().try_for_each(|payload| payload?.check())
    }

    /// The length that the compressed frames of all payloads declare to decompress to, in
    /// bytes, for programs that keep all of them decompressed. Frames that declare no length
    /// (zlib) or an invalid one count as empty.
    ///
    /// # Errors
    ///
    /// * [`MessageErrorKind::DecompressedTooLong`] if it exceeds the limit;
    /// * the fault of the first invalid header.
    pub fn decompressed_len(&self) -> Result<u64, MessageError> {
        let mut decompressed = 0;
        for payload in self.payloads() {
            for frame in payload?.sub_frames()? {
                let frame = frame?;
                let len = frame.plain_len(&self.options).ok().flatten();
                frame.count(len, &mut decompressed, &self.options)?;
            }
        }
        Ok(decompressed)
    }
}

impl<'a, T: AsRef<[u8]>> Payload<'a, T> {
    /// Returns the payload whose header is frame `index`, without reading the
    /// body, for payloads of the modern layout that are stored separately.
    ///
    /// # Errors
    ///
    /// As [`Message::payload`].
    pub fn at(
        frames: &'a [T],
        index: usize,
        kind: PayloadKind,
        options: &ReadOptions,
    ) -> Result<Self, MessageError> {
        Self::within(frames, index, frames.len(), kind, options)
    }

    /// Like [`at`](Self::at), if another payload begins with frame `limit`.
    fn within(
        frames: &'a [T],
        index: usize,
        limit: usize,
        kind: PayloadKind,
        options: &ReadOptions,
    ) -> Result<Self, MessageError> {
        let document = frames.get(index).map(AsRef::as_ref).unwrap_or_default();
        super::open::check_len(index, document, options)?;
        let header = PayloadHeader::parse(document, &options.limits, index, 0)?;
        if kind == PayloadKind::Pickled {
            // PROTOCOL MODERN-4
            header
                .pickled_object()?
                .ok_or_else(|| header.missing_entry("pickled-obj"))?;
        }
        // PROTOCOL MODERN-3
        let needed = header
            .number("num-sub-frames")?
            .ok_or_else(|| header.missing_entry("num-sub-frames"))?;
        let first_frame = index.saturating_add(1);
        let after = frames.get(first_frame..).unwrap_or_default();
        let frames = usize::try_from(needed)
            .ok()
            .and_then(|count| after.get(..count))
            .ok_or_else(|| {
                let available = after.len();
                header.fault(MessageErrorKind::FramesMissing { needed, available })
            })?;
        if first_frame.saturating_add(frames.len()) > limit {
            return Err(MessageError::new(limit, 0, MessageErrorKind::FramesShared));
        }
        Ok(Self {
            layout: Layout::Modern,
            kind,
            header,
            frames,
            first_frame,
            bytestring: None,
            path: None,
            options: *options,
        })
    }

    /// The layout of the payload's message and header.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// The kind of the payload's placeholder.
    pub const fn kind(&self) -> PayloadKind {
        self.kind
    }

    /// The header.
    pub const fn header(&self) -> &PayloadHeader<'a> {
        &self.header
    }

    /// The header as received, a MessagePack map.
    pub const fn header_bytes(&self) -> &'a [u8] {
        self.header.document()
    }

    /// The frames as received: compressed and split.
    pub const fn frames(&self) -> &'a [T] {
        self.frames
    }

    /// Index in the message of the first of [`frames`](Self::frames).
    pub const fn first_frame(&self) -> usize {
        self.first_frame
    }

    /// Whether the value is plain bytes, sent as a payload only because of
    /// their length (PROTOCOL CLASSIC-11, CLASSIC-12); `None` if unknown
    /// (modern layout, and 1.14.0 and 1.14.1).
    pub const fn bytestring(&self) -> Option<bool> {
        self.bytestring
    }

    /// The encoded path of the payload in the message: an array of keys and
    /// indices, or a single key. `None` in the modern layout.
    pub const fn path(&self) -> Option<&'a [u8]> {
        self.path
    }

    /// The frame index and byte offset of the header.
    pub const fn header_location(&self) -> (usize, usize) {
        self.header.location()
    }

    /// Checks the lists in the header against the frames, and the lengths as
    /// far as possible without decompression.
    ///
    /// # Errors
    ///
    /// The fault of the first invalid list.
    pub fn check(&self) -> Result<(), MessageError> {
        if !self.layout.is_classic() {
            self.header.refuse_placeholders()?;
        }
        let mut known = Some(0_u64);
        for frame in self.sub_frames()? {
            let frame = frame?;
            let len = frame.plain_len(&self.options).ok().flatten();
            known = known.zip(len).and_then(|(sum, len)| sum.checked_add(len));
        }
        match self.grouping()? {
            Grouping::Single => {}
            Grouping::Split(split) => split.check()?,
            Grouping::Lengths(_) if !self.layout.is_classic() => {}
            Grouping::Lengths(lengths) => {
                let declared = sum(lengths.numbers())?;
                if let Some(actual) = known
                    && declared != Some(actual)
                {
                    return Err(self.lengths_differ(declared, actual));
                }
            }
        }
        Ok(())
    }

    fn lengths_differ(&self, declared: Option<u64>, actual: u64) -> MessageError {
        let kind = MessageErrorKind::LengthsDiffer {
            declared: declared.unwrap_or(u64::MAX),
            actual,
        };
        self.header.fault(kind)
    }

    /// The frames with their codecs.
    fn sub_frames(&self) -> Result<SubFrames<'a, T>, MessageError> {
        let compression = self.header.list("compression")?;
        if let Some(list) = &compression
            && list.count_left() as usize != self.frames.len()
        {
            // PROTOCOL COMPRESS-6
            let kind = MessageErrorKind::ListLength {
                key: "compression",
                found: u64::from(list.count_left()),
                expected: self.frames.len() as u64,
            };
            return Err(self.header.fault(kind));
        }
        Ok(SubFrames {
            frames: self.frames,
            compression,
            index: self.first_frame,
        })
    }

    /// The grouping of frames to logical frames
    /// (PROTOCOL SPLIT-3, CLASSIC-9 and CLASSIC-10).
    fn grouping(&self) -> Result<Grouping<'a>, MessageError> {
        if self.kind == PayloadKind::Pickled {
            return Ok(Grouping::Single);
        }
        let header = &self.header;
        if let Some(counts) = header.list("split-num-sub-frames")? {
            let offsets = header
                .list("split-offsets")?
                .ok_or_else(|| header.missing_entry("split-offsets"))?;
            return Ok(Grouping::Split(Split {
                counts,
                offsets,
                frame_count: self.frames.len() as u64,
                location: header.location(),
            }));
        }
        if header.list("split-offsets")?.is_some() {
            return Err(header.missing_entry("split-num-sub-frames"));
        }
        if !self.layout.is_classic() {
            // PROTOCOL SPLIT-4
            return Ok(Grouping::Single);
        }
        match header.list("lengths")? {
            Some(lengths) => Ok(Grouping::Lengths(lengths)),
            None if self.options.lengths_optional => Ok(Grouping::Single),
            None => Err(header.missing_entry("lengths")),
        }
    }

    /// The number of logical frames: the frames before splitting and
    /// compression.
    ///
    /// # Errors
    ///
    /// A fault in the header.
    pub fn logical_count(&self) -> Result<usize, MessageError> {
        Ok(self.group_count(&self.grouping()?))
    }

    const fn group_count(&self, grouping: &Grouping<'a>) -> usize {
        match grouping {
            Grouping::Single => self.frames.len(),
            Grouping::Split(split) => split.counts.count_left() as usize,
            Grouping::Lengths(lengths) => lengths.count_left() as usize,
        }
    }

    /// The length of all logical frames in bytes, or `None` if it is unknown
    /// without decompression (zlib).
    ///
    /// # Errors
    ///
    /// * a fault in the header;
    /// * [`MessageErrorKind::Compression`] if the declared length of a frame is
    ///   implausible or exceeds the limits, [`MessageErrorKind::UnknownCodec`];
    /// * [`MessageErrorKind::DecompressedTooLong`].
    pub fn merged_len(&self) -> Result<Option<u64>, MessageError> {
        let (mut total, mut decompressed) = (Some(0_u64), 0);
        self.for_each_part(self.grouping()?, &mut |part| {
            if let Part::Frame(frame) = part {
                let len = frame.plain_len(&self.options)?;
                frame.count(len, &mut decompressed, &self.options)?;
                total = total.zip(len).and_then(|(sum, len)| sum.checked_add(len));
            }
            Ok(())
        })?;
        Ok(total)
    }

    /// Decompresses and merges the frames, in this order (PROTOCOL SPLIT-5):
    /// writes the logical frames back to back to the start of `out`, and the
    /// end of each to `ends`.
    ///
    /// `out` needs [`merged_len`](Self::merged_len) bytes and `ends`
    /// [`logical_count`](Self::logical_count) entries. Uncompressed frames are
    /// copied; [`logical_frames`](Self::logical_frames) avoids that.
    ///
    /// # Errors
    ///
    /// * a fault in the header;
    /// * [`MessageErrorKind::Compression`], [`MessageErrorKind::UnknownCodec`],
    ///   [`MessageErrorKind::LengthsDiffer`] if the frames do not match the
    ///   header; the contents of `out` are then unspecified;
    /// * [`MessageErrorKind::DataBuffer`] if `out` is too small, and
    ///   [`MessageErrorKind::TooFewEnds`] if `ends` is.
    pub fn merge_into<'o>(
        &self,
        out: &'o mut [u8],
        ends: &'o mut [usize],
    ) -> Result<LogicalFrames<'o>, MessageError> {
        let ends = BufferTooSmall::check(ends, self.logical_count()?)
            .map_err(|short| self.header.fault(MessageErrorKind::TooFewEnds(short)))?;
        let mut places = ends.iter_mut();
        let bytes = self.write_all(out, |end| {
            if let Some(place) = places.next() {
                *place = end;
            }
        })?;
        Ok(LogicalFrames { bytes, ends })
    }

    /// Like [`merge_into`](Self::merge_into), but appends to `out`, which grows
    /// frame by frame as
    /// [`decompress_onto`](crate::compression::decompress_onto) says. `ends`
    /// receives the end of each logical frame, relative to the former end of `out`.
    ///
    /// # Errors
    ///
    /// As [`merge_into`](Self::merge_into), except for buffer sizes, and:
    ///
    /// * [`MessageErrorKind::DecompressedTooLong`] if all frames together decompress to
    ///   more than [`decompressed_message_len`](crate::Limits::decompressed_message_len);
    /// * [`CompressionError::OutOfMemory`] if the allocator refuses.
    #[cfg(feature = "alloc")]
    pub fn merge_onto(
        &self,
        out: &mut alloc::vec::Vec<u8>,
        ends: &mut alloc::vec::Vec<usize>,
    ) -> Result<(), MessageError> {
        let start = out.len();
        ends.clear();
        let limits = self.options.limits;
        let mut decompressed = 0_u64;
        let write = |frame: SubFrame<'a>| {
            let filled = out.len();
            let left = limits.decompressed_message_len.saturating_sub(decompressed);
            let declared = frame.plain_len(&self.options)?;
            let mut after = decompressed;
            frame.count(declared, &mut after, &self.options)?;
            let mut options = self.options;
            options.limits.decompressed_len = limits.decompressed_len.min(left);
            let merged = filled.saturating_sub(start) as u64;
            let left_of_message = limits.message_len.saturating_sub(merged);
            if let Err(kind) = frame.write_onto(out, &options, left_of_message) {
                // PROTOCOL COMPRESS-3: the length of zlib is known only afterwards.
                let is_too_long = matches!(
                    kind,
                    MessageErrorKind::Compression(CompressionError::OverLimit { .. })
                );
                if is_too_long && declared.is_none() && left < limits.decompressed_len {
                    frame.count(Some(left.saturating_add(1)), &mut after, &self.options)?;
                }
                return Err(frame.fault(kind));
            }
            if declared.is_none() {
                let len = out.len().saturating_sub(filled) as u64;
                frame.count(Some(len), &mut after, &self.options)?;
            }
            decompressed = after;
            Ok(out.len().saturating_sub(start))
        };
        let merged = self.merge(write, |end| ends.push(end));
        if merged.is_err() {
            out.truncate(start);
        }
        merged.map(|_| ())
    }

    /// Decompresses and merges all logical frames to the start of `out` and
    /// returns them as one slice: [`merge_into`](Self::merge_into) without the
    /// ends.
    ///
    /// # Errors
    ///
    /// As [`merge_into`](Self::merge_into), without
    /// [`MessageErrorKind::TooFewEnds`].
    pub fn join_into<'o>(&self, out: &'o mut [u8]) -> Result<&'o [u8], MessageError> {
        self.write_all(out, |_| ())
    }

    fn write_all<'o>(
        &self,
        out: &'o mut [u8],
        end: impl FnMut(usize),
    ) -> Result<&'o [u8], MessageError> {
        let mut filled = 0_usize;
        let write = |frame: SubFrame<'a>| {
            let space = out.get_mut(filled..).or_default_if_bug();
            let len = frame
                .write_to(space, &self.options)
                .map_err(|error| self.in_all(error, filled))?;
            filled = filled.saturating_add(len);
            Ok(filled)
        };
        let len = self.merge(write, end)?;
        Ok(out.get(..len).or_default_if_bug())
    }

    /// Calls `write` for the frames in logical order, which returns the number
    /// of bytes written so far, and `end` with the end of each logical frame.
    /// Returns the number of bytes written.
    fn merge(
        &self,
        mut write: impl FnMut(SubFrame<'a>) -> Result<usize, MessageError>,
        mut end: impl FnMut(usize),
    ) -> Result<usize, MessageError> {
        let grouping = self.grouping()?;
        let mut filled = 0;
        let lengths = match &grouping {
            Grouping::Lengths(lengths) if self.layout.is_classic() => Some(lengths.clone()),
            _ => None,
        };
        self.for_each_part(grouping, &mut |part| {
            match part {
                Part::Frame(frame) => filled = write(frame)?,
                Part::End => end(filled),
            }
            Ok(())
        })?;
        if let Some(lengths) = lengths {
            let mut sum = Some(0_u64);
            for length in lengths.numbers() {
                let length = length?;
                sum = sum.and_then(|sum| sum.checked_add(length));
                let at = sum.and_then(|sum| usize::try_from(sum).ok());
                end(at.unwrap_or(usize::MAX));
            }
            if sum != Some(filled as u64) {
                return Err(self.lengths_differ(sum, filled as u64));
            }
        }
        Ok(filled)
    }

    /// Calls `visit` for the frames in logical order and for the end of each
    /// logical frame, except with `lengths`.
    fn for_each_part(
        &self,
        grouping: Grouping<'a>,
        visit: &mut dyn FnMut(Part<'a>) -> Result<(), MessageError>,
    ) -> Result<(), MessageError> {
        let mut frames = self.sub_frames()?;
        let Grouping::Split(mut split) = grouping else {
            let is_single = matches!(grouping, Grouping::Single);
            return frames.try_for_each(|frame| {
                visit(Part::Frame(frame?))?;
                match is_single {
                    true => visit(Part::End),
                    false => Ok(()),
                }
            });
        };
        split.check()?;
        let mut by_index = ByIndex::new(frames);
        for _ in 0..split.counts.count_left() {
            for index in split.next_range()? {
                if let Some(frame) = by_index.frame(index) {
                    visit(Part::Frame(frame?))?;
                }
            }
            visit(Part::End)?;
        }
        Ok(())
    }

    /// Converts an error about the buffer after `filled` bytes to one about the
    /// whole buffer.
    #[cold]
    fn in_all(&self, error: MessageError, filled: usize) -> MessageError {
        let MessageErrorKind::Compression(CompressionError::BufferTooSmall(short)) = error.kind
        else {
            return error;
        };
        let needed = match self.merged_len() {
            Ok(Some(len)) => usize::try_from(len).unwrap_or(usize::MAX),
            _ => short.needed.saturating_add(filled),
        };
        let available = short.available.saturating_add(filled);
        let kind = MessageErrorKind::DataBuffer(BufferTooSmall { needed, available });
        MessageError { kind, ..error }
    }

    /// The logical frames without copying, each as a list of frames.
    ///
    /// # Errors
    ///
    /// A fault in the header. Items can be errors too:
    ///
    /// * [`MessageErrorKind::LengthsInsideFrame`] if `lengths` end inside a frame,
    ///   which only [`merge_into`](Self::merge_into) supports;
    /// * [`MessageErrorKind::UnknownCodec`] if the length of a frame with an
    ///   unknown codec is needed.
    ///
    /// The parts may be compressed; see [`LogicalFrame::is_compressed`].
    pub fn logical_frames(
        &self,
    ) -> Result<
        impl Iterator<Item = Result<LogicalFrame<'a, T>, MessageError>> + use<'a, T>,
        MessageError,
    > {
        self.check()?;
        let frames = self.frames;
        let mut by_index = ByIndex::new(self.sub_frames()?);
        Ok(self.groups()?.map(move |group| {
            let group = group?;
            let parts = frames.get(group.clone()).or_default_if_bug();
            let mut compressed = false;
            for index in group {
                if let Some(frame) = by_index.frame(index) {
                    compressed |= !matches!(frame?.codec, Ok(None));
                }
            }
            Ok(LogicalFrame { parts, compressed })
        }))
    }

    /// The frames of each logical frame, by index, if `lengths` match the frames.
    /// After an error all later items fail too.
    pub(super) fn groups(
        &self,
    ) -> Result<impl Iterator<Item = Result<Range<usize>, MessageError>> + use<'a, T>, MessageError>
    {
        let grouping = self.grouping()?;
        let count = self.group_count(&grouping);
        let mut groups = Groups {
            payload: *self,
            grouping,
            next: 0,
            sub_frames: self.sub_frames()?,
        };
        let mut fault = Ok(());
        Ok((0..count).map(move |_| {
            fault?;
            let group = groups.next_group();
            fault = group.as_ref().map(drop).map_err(|error| *error);
            group
        }))
    }

    /// The decompressed length of each frame, `None` if it is not declared.
    pub(super) fn plain_lens(
        &self,
    ) -> Result<impl Iterator<Item = Result<Option<u64>, MessageError>> + use<'a, T>, MessageError>
    {
        let options = self.options;
        let frames = self.sub_frames()?;
        Ok(frames.map(move |frame| frame?.plain_len(&options)))
    }
}

/// The grouping of frames to logical frames.
#[derive(Clone)]
enum Grouping<'a> {
    /// Each frame is a logical frame.
    Single,
    Split(Split<'a>),
    /// The concatenated frames are divided by these lengths.
    Lengths(ItemList<'a>),
}

/// The groups of frames that are logical frames.
struct Groups<'a, T> {
    payload: Payload<'a, T>,
    grouping: Grouping<'a>,
    next: usize,
    sub_frames: SubFrames<'a, T>,
}

impl<'a, T: AsRef<[u8]>> Groups<'a, T> {
    /// The frames of the next logical frame.
    fn next_group(&mut self) -> Result<Range<usize>, MessageError> {
        let (payload, first) = (&self.payload, self.next);
        match &mut self.grouping {
            Grouping::Single => self.next = first.saturating_add(1),
            Grouping::Split(split) => return split.next_range(),
            // Only the classic layout has `lengths`.
            Grouping::Lengths(_) if !payload.layout.is_classic() => {}
            Grouping::Lengths(lengths) => {
                let fault = payload.header.fault(MessageErrorKind::LengthsInsideFrame);
                let wanted = lengths.number().ok_or(fault)?;
                let last = lengths.count_left() == 0;
                let mut have = 0_u64;
                let mut count = 0_usize;
                // An empty logical frame is one empty frame, as Dask writes it.
                while have < wanted || (count == 0 && next_is_empty(&self.sub_frames, payload)) {
                    let Some(frame) = self.sub_frames.next() else {
                        return Err(fault);
                    };
                    let frame = frame?;
                    count = count.saturating_add(1);
                    match frame.plain_len(&payload.options)? {
                        Some(len) => have = have.saturating_add(len),
                        // No declared length: only the last logical frame can
                        // be determined, by the remaining bytes.
                        None if last => {
                            count = count.saturating_add(self.sub_frames.frames.len());
                            self.sub_frames.frames = &[];
                            have = wanted;
                        }
                        None if self.sub_frames.frames.len() == lengths.count_left() as usize => {
                            have = wanted;
                        }
                        None => return Err(fault),
                    }
                }
                if have != wanted {
                    return Err(fault);
                }
                // Trailing empty frames belong to the last logical frame.
                while last && next_is_empty(&self.sub_frames, payload) {
                    self.sub_frames.next();
                    count = count.saturating_add(1);
                }
                self.next = first.saturating_add(count);
            }
        }
        Ok(first..self.next)
    }
}

/// Whether the next frame is known to be empty.
fn next_is_empty<T: AsRef<[u8]>>(sub_frames: &SubFrames<'_, T>, payload: &Payload<'_, T>) -> bool {
    let next = sub_frames.clone().next().and_then(Result::ok);
    next.is_some_and(|frame| frame.plain_len(&payload.options) == Ok(Some(0)))
}

struct Split<'a> {
    counts: ItemList<'a>,
    offsets: ItemList<'a>,
    frame_count: u64,
    /// The location of the header.
    location: (usize, usize),
}

impl Clone for Split<'_> {
    // Out of line, since it is large and done in several places.
    #[inline(never)]
    fn clone(&self) -> Self {
        Self {
            counts: self.counts.clone(),
            offsets: self.offsets.clone(),
            ..*self
        }
    }
}

/// The maximum number of logical frames out of order, since their cost is
/// quadratic. Dask writes them in order.
const MAX_OUT_OF_ORDER: u32 = 64;

impl Split<'_> {
    fn fault(&self, kind: MessageErrorKind) -> MessageError {
        MessageError::new(self.location.0, self.location.1, kind)
    }

    /// The sub-frames of the next logical frame.
    #[inline(never)]
    fn next_range(&mut self) -> Result<Range<usize>, MessageError> {
        if let (Some(count), Some(offset)) = (self.counts.number(), self.offsets.number())
            && let Some(end) = offset.checked_add(count)
            && end <= self.frame_count
        {
            // Both fit, since the number of frames is a usize.
            let (first, end) = (usize::try_from(offset), usize::try_from(end));
            return Ok(first.or_default_if_bug()..end.or_default_if_bug());
        }
        Err(self.fault(MessageErrorKind::SplitLists))
    }

    /// Checks that each frame is used at most once, and that all exist
    /// (PROTOCOL SPLIT-6).
    fn check(&self) -> Result<(), MessageError> {
        if self.counts.count_left() != self.offsets.count_left() {
            return Err(self.fault(MessageErrorKind::ListLength {
                key: "split-offsets",
                found: u64::from(self.offsets.count_left()),
                expected: u64::from(self.counts.count_left()),
            }));
        }
        let count = self.counts.count_left();
        let mut split = self.clone();
        let mut end = 0;
        let mut in_order = true;
        for _ in 0..count {
            let range = split.next_range()?;
            in_order &= range.start >= end || range.is_empty();
            end = end.max(range.end);
        }
        if in_order {
            return Ok(());
        }
        let overlap = self.fault(MessageErrorKind::SplitLists);
        if count > MAX_OUT_OF_ORDER {
            return Err(overlap);
        }
        let mut ones = self.clone();
        for index in 0..count {
            let one = ones.next_range()?;
            let mut others = self.clone();
            for _ in 0..index {
                let other = others.next_range()?;
                // The intersection of two ranges; empty if one of them is
                // empty.
                if one.start.max(other.start) < one.end.min(other.end) {
                    return Err(overlap);
                }
            }
        }
        Ok(())
    }
}

enum Part<'a> {
    Frame(SubFrame<'a>),
    End,
}

/// Iterator over the frames of a payload with their codecs.
struct SubFrames<'a, T> {
    frames: &'a [T],
    compression: Option<ItemList<'a>>,
    index: usize,
}

impl<T> Clone for SubFrames<'_, T> {
    fn clone(&self) -> Self {
        Self {
            compression: self.compression.clone(),
            ..*self
        }
    }
}

impl<'a, T: AsRef<[u8]>> Iterator for SubFrames<'a, T> {
    type Item = Result<SubFrame<'a>, MessageError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (frame, rest) = self.frames.split_first()?;
        self.frames = rest;
        let index = self.index;
        self.index = index.saturating_add(1);
        let list = self.compression.as_mut();
        let (place, entry) = match list.map(|list| ((list.frame(), list.at()), list.next())) {
            Some((place, entry)) => (Some(place), entry),
            None => (None, None),
        };
        let codec = entry.map_or(Ok(None), codec_entry);
        // Only the data of a frame with an unknown codec is unavailable.
        if let (Err(kind), Some((frame, at))) = (codec, place)
            && !matches!(kind, MessageErrorKind::UnknownCodec { .. })
        {
            return Some(Err(MessageError::new(frame, at, kind)));
        }
        Some(Ok(SubFrame {
            bytes: frame.as_ref(),
            codec,
            index,
        }))
    }
}

/// Access to frames by index. The list of codecs can only be read in order, so
/// ascending indices cost least: one step each.
struct ByIndex<'a, T> {
    all: SubFrames<'a, T>,
    ahead: SubFrames<'a, T>,
    next: usize,
}

impl<'a, T: AsRef<[u8]>> ByIndex<'a, T> {
    fn new(all: SubFrames<'a, T>) -> Self {
        Self {
            ahead: all.clone(),
            all,
            next: 0,
        }
    }

    fn frame(&mut self, index: usize) -> Option<Result<SubFrame<'a>, MessageError>> {
        if index < self.next {
            self.ahead = self.all.clone();
            self.next = 0;
        }
        let skip = index.saturating_sub(self.next);
        self.next = index.saturating_add(1);
        self.ahead.nth(skip)
    }
}

/// One frame with its codec.
#[derive(Clone, Copy)]
struct SubFrame<'a> {
    bytes: &'a [u8],
    codec: Result<Option<Codec>, MessageErrorKind>,
    index: usize,
}

impl SubFrame<'_> {
    fn fault(&self, kind: MessageErrorKind) -> MessageError {
        MessageError::new(self.index, 0, kind)
    }

    fn compression_fault(&self, error: CompressionError) -> MessageError {
        self.fault(MessageErrorKind::Compression(error))
    }

    fn codec(&self) -> Result<Option<Codec>, MessageError> {
        self.codec.map_err(|kind| self.fault(kind))
    }

    /// Adds the length after decompression of a compressed frame to that of the frames
    /// before it, within the limit.
    fn count(
        &self,
        len: Option<u64>,
        decompressed: &mut u64,
        options: &ReadOptions,
    ) -> Result<(), MessageError> {
        let Some(len) = len.filter(|_| matches!(self.codec, Ok(Some(_)))) else {
            return Ok(());
        };
        let limit = options.limits.decompressed_message_len;
        let len = decompressed.saturating_add(len);
        if len > limit {
            return Err(self.fault(MessageErrorKind::DecompressedTooLong { len, limit }));
        }
        *decompressed = len;
        Ok(())
    }

    /// The length after decompression, if it is declared.
    fn plain_len(&self, options: &ReadOptions) -> Result<Option<u64>, MessageError> {
        match self.codec()? {
            None => Ok(Some(self.bytes.len() as u64)),
            Some(codec) => {
                compression::decompressed_len(codec, self.bytes, options.limits.decompressed_len)
                    .map_err(|error| self.compression_fault(error))
            }
        }
    }

    fn write_to(&self, space: &mut [u8], options: &ReadOptions) -> Result<usize, MessageError> {
        match self.codec()? {
            Some(codec) => {
                compression::decompress(codec, self.bytes, space, options.limits.decompressed_len)
                    .map_err(|error| self.compression_fault(error))
            }
            None => {
                let place = BufferTooSmall::check(space, self.bytes.len())
                    .map_err(|short| self.compression_fault(short.into()))?;
                crate::copy(place, self.bytes);
                Ok(place.len())
            }
        }
    }
}

#[cfg(feature = "alloc")]
impl SubFrame<'_> {
    /// Appends the decompressed frame: at most `left` bytes.
    fn write_onto(
        &self,
        out: &mut alloc::vec::Vec<u8>,
        options: &ReadOptions,
        left: u64,
    ) -> Result<(), MessageErrorKind> {
        let needed = self.bytes.len();
        let result = match self.codec? {
            Some(codec) => compression::decompress_onto(
                codec,
                self.bytes,
                out,
                options.limits.decompressed_len,
            )
            .map(|_| ()),
            None if needed as u64 > left => Err(CompressionError::OverLimit { limit: left }),
            None => match out.try_reserve(needed) {
                Ok(()) => {
                    out.extend_from_slice(self.bytes);
                    Ok(())
                }
                Err(_) => Err(CompressionError::OutOfMemory {
                    needed: needed as u64,
                }),
            },
        };
        result.map_err(MessageErrorKind::Compression)
    }
}

fn sum(
    mut numbers: impl Iterator<Item = Result<u64, MessageError>>,
) -> Result<Option<u64>, MessageError> {
    numbers.try_fold(Some(0_u64), |sum, number| {
        number.map(|number| sum.and_then(|sum| sum.checked_add(number)))
    })
}

/// The logical frames in a buffer, see [`Payload::merge_into`].
#[derive(Clone, Copy, Debug)]
pub struct LogicalFrames<'o> {
    bytes: &'o [u8],
    ends: &'o [usize],
}

impl<'o> LogicalFrames<'o> {
    /// All logical frames, back to back.
    pub const fn bytes(&self) -> &'o [u8] {
        self.bytes
    }

    /// Iterates over the logical frames.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'o [u8]> + use<'o> {
        let bytes = self.bytes;
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let frame = bytes.get(start..end).or_default_if_bug();
            start = end;
            frame
        })
    }
}

/// A logical frame as a list of frames.
#[derive(Debug)]
pub struct LogicalFrame<'a, T> {
    parts: &'a [T],
    compressed: bool,
}

impl<'a, T: AsRef<[u8]>> LogicalFrame<'a, T> {
    /// The frames of the logical frame.
    pub const fn parts(&self) -> &'a [T] {
        self.parts
    }

    /// Whether any of the frames is compressed.
    pub const fn is_compressed(&self) -> bool {
        self.compressed
    }

    /// The bytes, if no frame is compressed and at most one is not empty.
    pub fn as_slice(&self) -> Option<&'a [u8]> {
        if self.compressed {
            return None;
        }
        let mut filled = self
            .parts
            .iter()
            .map(AsRef::as_ref)
            .filter(|part| !part.is_empty());
        let first = filled.next().unwrap_or_default();
        filled.next().is_none().then_some(first)
    }
}
