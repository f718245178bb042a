//! Conversion of payload headers between the layouts.

use super::builder::{BuildError, narrow, not_convertible, write_split};
use super::header::{ItemList, is_common, is_tagged_dtype};
use super::{MessageError, MessageErrorKind, Payload, PayloadHeader, Serializer};
use crate::invariant::OrDefaultIfBug;
use crate::msgpack::{Reader, Token, Writer};

/// Conversion of a classic header to the modern layout (PROTOCOL FORWARD-5).
pub(super) struct ToModern<'p, 'a, T> {
    payload: &'p Payload<'a, T>,
    logical_count: usize,
    /// `None` for a collection.
    value: Option<Single<'a>>,
}

impl<'p, 'a, T: AsRef<[u8]>> ToModern<'p, 'a, T> {
    pub(super) fn new(payload: &'p Payload<'a, T>) -> Result<Self, BuildError> {
        let header = payload.header();
        let is_collection = header.is_collection()?;
        if !is_collection {
            refuse_masked(header)?;
        }
        payload.check()?;
        let mut logical_count = 0_usize;
        for group in payload.groups()? {
            group.map_err(regrouped)?;
            logical_count = logical_count.saturating_add(1);
        }
        let value = if is_collection {
            check_elements(header, logical_count)?;
            None
        } else {
            Some(Single::new(header)?)
        };
        Ok(Self {
            payload,
            logical_count,
            value,
        })
    }

    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        let header = self.payload.header();
        // Split lists and num-sub-frames, then an optional entry.
        let count = 3_usize.saturating_add(usize::from(header.has("compression")));
        match &self.value {
            Some(value) => {
                let mut flags = header.writeable().ok().flatten();
                value.write(writer, count, &mut flags, self.logical_count);
                self.write_layout(writer);
            }
            None => {
                write_collection_start(writer, header, count);
                self.write_layout(writer);
                self.write_elements(writer);
            }
        }
    }

    /// Writes the entries of the layout.
    fn write_layout(&self, writer: &mut Writer<'_>) {
        let header = self.payload.header();
        let groups = || {
            let groups = self.payload.groups().ok();
            groups
                .into_iter()
                .flatten()
                .map(OrDefaultIfBug::or_default_if_bug)
        };
        if let Some(counts) = header.get("split-num-sub-frames")
            && let Some(offsets) = header.get("split-offsets")
        {
            // 2021.3.0 has them already, in any order.
            writer.str("split-num-sub-frames").encoded(counts);
            writer.str("split-offsets").encoded(offsets);
        } else {
            write_split(writer, self.logical_count, || {
                groups().map(|group| group.len() as u64)
            });
        }
        copy(writer, header, &["compression"]);
        writer
            .str("num-sub-frames")
            .u64(self.payload.frames().len() as u64);
    }

    /// Writes the headers of a collection's elements, its last entry.
    fn write_elements(&self, writer: &mut Writer<'_>) {
        let header = self.payload.header();
        // The outermost header has the flags of the frames of all elements.
        let mut shared = header.writeable().ok().flatten();
        write_elements_start(writer, header);
        // Both were checked before.
        let Ok(mut elements) = Elements::new(header) else {
            return;
        };
        while let Some((element, frame_count)) = elements.next().or_default_if_bug() {
            if element.is_collection().unwrap_or_default() {
                write_collection_start(writer, &element, 0);
                write_elements_start(writer, &element);
                continue;
            }
            let flags = element.writeable().ok().flatten();
            let mut flags = flags.or_else(|| shared.as_ref().map(|list| list.first(frame_count)));
            if let Ok(value) = Single::new(&element) {
                value.write(writer, 0, &mut flags, frame_count);
            }
            if let Some(list) = &mut shared {
                list.take(frame_count).for_each(drop);
            }
        }
    }
}

/// A value that is not a collection: a payload, or an element of a collection.
struct Single<'a> {
    header: PayloadHeader<'a>,
    serializer: Serializer<'a>,
    /// The module and name of the type, if its pickle must be created.
    class: Option<(&'a str, &'a str)>,
}

impl<'a> Single<'a> {
    fn new(header: &PayloadHeader<'a>) -> Result<Self, BuildError> {
        let serializer = header.serializer()?;
        let mut class = None;
        if serializer == Serializer::Dask && !header.has("type-serialized") {
            // Written since 1.23.0; before, only the name of the type.
            class = header.type_name()?.and_then(split_type_name);
            if class.is_none_or(|(module, name)| module.len() > 255 || name.len() > 255) {
                return not_convertible("its type is missing");
            }
        }
        Ok(Self {
            header: *header,
            serializer,
            class,
        })
    }

    /// Writes the header without the entries of the layout, for which the map has
    /// room.
    fn write(
        &self,
        writer: &mut Writer<'_>,
        layout_count: usize,
        flags: &mut Option<ItemList<'a>>,
        frame_count: usize,
    ) {
        let header = &self.header;
        let kept = present(header, &KEPT);
        let own_count = header.type_entries().count();
        let is_dask = self.serializer == Serializer::Dask;
        let is_pickle = self.serializer == Serializer::Pickle;
        // The serializer, then optional entries.
        let optional = [self.class.is_some(), is_pickle];
        let count = optional.into_iter().filter(|present| *present).count();
        let count = count.saturating_add(if is_dask { 1 } else { own_count });
        let count = count.saturating_add(kept).saturating_add(1);
        writer.map(narrow(count.saturating_add(layout_count)));
        writer.str("serializer").str(match self.serializer {
            Serializer::Dask => "dask",
            Serializer::Pickle => "pickle",
            Serializer::Msgpack => "msgpack",
            Serializer::Error => "error",
            Serializer::Other(name) => name,
        });
        copy(writer, header, &KEPT);
        if let Some((module, name)) = self.class {
            writer.str("type-serialized");
            write_class_pickle(writer, module, name);
        }
        if is_dask {
            // Since 2021.11.0 the entries of a type are in a separate map.
            let own_count = own_count.saturating_add(1);
            writer.str("sub-header").map(narrow(own_count));
            for (key, value) in header.type_entries() {
                // Before 1.17.0 the element type was a bare string.
                let bare = key == b"\xa5dtype"
                    && match Reader::new(value).token() {
                        Ok(Token::Str(_)) => true,
                        Ok(Token::Array(_)) => !is_tagged_dtype(value),
                        _ => false,
                    };
                if bare {
                    writer.encoded(key).array(2).u64(0).encoded(value);
                } else {
                    writer.encoded(key).encoded(value);
                }
            }
            writer.str("writeable");
            write_flags(writer, flags, frame_count);
        } else {
            copy_entries(writer, header.type_entries());
        }
        if is_pickle {
            // One flag per buffer, instead of one per frame, the pickle
            // included.
            if let Some(list) = flags
                && list.count_left() as usize == frame_count
            {
                list.next();
            }
            writer.str("writeable");
            write_flags(writer, flags, frame_count.saturating_sub(1));
        }
    }
}

/// Iterator over the elements of a collection and of the collections in it, each
/// after the one that it is in.
struct Elements<'a> {
    levels: [Option<(ItemList<'a>, ItemList<'a>)>; MAX_NESTING],
    depth: usize,
}

impl<'a> Elements<'a> {
    fn new(header: &PayloadHeader<'a>) -> Result<Self, BuildError> {
        let mut elements = Self {
            levels: [const { None }; MAX_NESTING],
            depth: 0,
        };
        elements.enter(header)?;
        Ok(elements)
    }

    fn enter(&mut self, header: &PayloadHeader<'a>) -> Result<(), BuildError> {
        let (Some(headers), Some(counts)) =
            (header.list("sub-headers")?, header.list("frame-lengths")?)
        else {
            return not_convertible("it is a collection without lists of its elements");
        };
        if headers.count_left() != counts.count_left() {
            return not_convertible("it is a collection with lists of different lengths");
        }
        let Some(level) = self.levels.get_mut(self.depth) else {
            return not_convertible("it is a collection that is nested too deeply");
        };
        *level = Some((headers, counts));
        self.depth = self.depth.saturating_add(1);
        Ok(())
    }

    /// The header of the next element, and the number of its logical frames.
    fn next(&mut self) -> Result<Option<(PayloadHeader<'a>, usize)>, BuildError> {
        while let Some(top) = self.depth.checked_sub(1)
            && let Some(Some((headers, counts))) = self.levels.get_mut(top)
        {
            let (frame, at) = (headers.frame(), headers.at());
            let Some(element) = headers.next() else {
                self.depth = top;
                continue;
            };
            let element = PayloadHeader::validated(element, frame, at)?;
            let count = counts.number().and_then(|count| count.try_into().ok());
            let Some(count) = count else {
                return not_convertible("it is a collection with a count that is not a number");
            };
            if element.is_collection()? {
                self.enter(&element)?;
            }
            return Ok(Some((element, count)));
        }
        Ok(None)
    }
}

/// Refuses a collection with an element that cannot be converted, or elements with
/// more frames than there are.
fn check_elements(header: &PayloadHeader<'_>, logical_count: usize) -> Result<(), BuildError> {
    let mut elements = Elements::new(header)?;
    let mut total = 0_usize;
    while let Some((element, count)) = elements.next()? {
        if element.is_collection()? {
            continue;
        }
        refuse_masked(&element)?;
        Single::new(&element)?;
        element.writeable()?;
        total = total.saturating_add(count);
    }
    if total > logical_count {
        return not_convertible("its elements have more frames than the collection");
    }
    Ok(())
}

/// The number of those of `keys` that the header has.
fn present(header: &PayloadHeader<'_>, keys: &[&str]) -> usize {
    keys.iter().filter(|key| header.has(key)).count()
}

/// Copies those of `keys` that the header has.
fn copy(writer: &mut Writer<'_>, header: &PayloadHeader<'_>, keys: &[&str]) {
    for key in keys {
        if let Some(value) = header.get(key) {
            writer.str(key).encoded(value);
        }
    }
}

fn copy_entries<'a>(writer: &mut Writer<'_>, entries: impl Iterator<Item = (&'a [u8], &'a [u8])>) {
    for (key, value) in entries {
        writer.encoded(key).encoded(value);
    }
}

/// Begins the header of a collection, which [`write_elements_start`] ends.
fn write_collection_start(
    writer: &mut Writer<'_>,
    header: &PayloadHeader<'_>,
    layout_count: usize,
) {
    const COPIED: [&str; 5] = [
        "type",
        "type-serialized",
        "key",
        "is-collection",
        "frame-lengths",
    ];
    let count = present(header, &COPIED).saturating_add(header.type_entries().count());
    writer.map(narrow(count.saturating_add(layout_count).saturating_add(1)));
    copy(writer, header, &COPIED);
    copy_entries(writer, header.type_entries());
}

/// Writes the last entry of the header of a collection, which its elements follow.
fn write_elements_start(writer: &mut Writer<'_>, header: &PayloadHeader<'_>) {
    let elements = header.list("sub-headers").ok().flatten();
    let count = elements.map_or(0, |list| list.count_left());
    writer.str("sub-headers").array(count);
}

/// Splits a full name at the last dot into module and class. `str::rsplit_once`
/// would leave panics in the binary.
fn split_type_name(full: &str) -> Option<(&str, &str)> {
    let dot = full.bytes().rposition(|byte| byte == b'.')?;
    Some((full.get(..dot)?, full.get(dot.checked_add(1)?..)?))
}

/// Writes the pickle of a class by its name: PROTO 4, two SHORT_BINUNICODE,
/// STACK_GLOBAL, STOP.
fn write_class_pickle(writer: &mut Writer<'_>, module: &str, name: &str) {
    let mut pickle = [0_u8; 2 + 2 * 257 + 2];
    let mut len = 0_usize;
    let mut put = |bytes: &[u8]| {
        let rest = pickle.get_mut(len..).or_default_if_bug();
        if let Some(place) = rest.get_mut(..bytes.len()) {
            crate::copy(place, bytes);
        }
        len = len.saturating_add(bytes.len());
    };
    put(b"\x80\x04");
    for string in [module, name] {
        // Both have been checked to be shorter than 256 bytes.
        put(&[0x8c, u8::try_from(string.len()).or_default_if_bug()]);
        put(string.as_bytes());
    }
    put(b"\x93.");
    writer.bin(pickle.get(..len).or_default_if_bug());
}

/// Writes `count` booleans. Default for missing flags: true.
fn write_flags(writer: &mut Writer<'_>, flags: &mut Option<ItemList<'_>>, count: usize) {
    writer.array(narrow(count));
    for _ in 0..count {
        match flags.as_mut().and_then(Iterator::next) {
            Some(flag) => match Reader::new(flag).bool() {
                Ok(flag) => writer.bool(flag),
                Err(_) => writer.nil(),
            },
            None => writer.bool(true),
        };
    }
}

/// Refuses masked arrays, whose header has two others in it.
fn refuse_masked(header: &PayloadHeader<'_>) -> Result<(), BuildError> {
    if header.type_header()?.has("data-header") {
        return not_convertible("it is a masked array with headers of its own");
    }
    Ok(())
}

/// Conversion of a modern header to the classic layout (PROTOCOL FORWARD-6).
pub(super) struct ToClassic<'p, 'a, T> {
    payload: &'p Payload<'a, T>,
    header: PayloadHeader<'a>,
    /// The pickle that becomes the first frame.
    object: Option<&'a [u8]>,
    is_pickle: bool,
    logical_count: usize,
}

impl<'p, 'a, T: AsRef<[u8]>> ToClassic<'p, 'a, T> {
    pub(super) fn new(
        payload: &'p Payload<'a, T>,
        object: Option<&'a [u8]>,
    ) -> Result<Self, BuildError> {
        let header = *payload.header();
        if header.is_collection()? {
            return not_convertible("it is a collection with a header for each element");
        }
        refuse_masked(&header)?;
        payload.check()?;
        let mut next = 0_usize;
        let logical_count = payload.logical_count()?;
        if let Some(offsets) = header.list("split-offsets")? {
            for (offset, group) in offsets.numbers().zip(payload.groups()?) {
                if offset? != next as u64 {
                    return not_convertible("its frames are not in order");
                }
                next = next.saturating_add(group?.len());
            }
            if next != payload.frames().len() {
                return not_convertible("some of its frames belong to no logical frame");
            }
        }
        for len in payload.plain_lens()? {
            if len?.is_none() {
                return not_convertible("a compressed frame does not declare its length");
            }
        }
        Ok(Self {
            payload,
            header,
            object,
            is_pickle: object.is_some() || header.serializer()? == Serializer::Pickle,
            logical_count,
        })
    }

    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        let header = &self.header;
        let object_count = usize::from(self.object.is_some());
        let logical_count = self.logical_count.saturating_add(object_count);
        let frame_count = self.payload.frames().len().saturating_add(object_count);
        let sub_header = header.get("sub-header").and(header.type_header().ok());
        let type_entries = || {
            let inner = sub_header.iter().flat_map(PayloadHeader::entries);
            header
                .type_entries()
                .chain(inner.filter(|(key, _)| !is_common(key)))
        };
        let kept = present(header, &KEPT);
        // serializer, writeable, lengths, compression, count.
        let count = kept
            .saturating_add(type_entries().count())
            .saturating_add(5);
        writer.map(narrow(count));
        match header.get("serializer") {
            Some(value) if self.object.is_none() => writer.str("serializer").encoded(value),
            _ => writer.str("serializer").str("pickle"),
        };
        copy(writer, header, &KEPT);
        copy_entries(writer, type_entries());
        writer.str("writeable").array(narrow(logical_count));
        let mut flags = header
            .writeable()
            .ok()
            .flatten()
            .into_iter()
            .flat_map(ItemList::flags);
        for index in 0..logical_count {
            // The pickle itself, and missing flags.
            let flag = if self.is_pickle && index == 0 {
                None
            } else {
                flags.next().flatten()
            };
            match flag {
                Some(flag) => writer.bool(flag),
                None => writer.nil(),
            };
        }
        writer.str("lengths").array(narrow(logical_count));
        if let Some(object) = self.object {
            writer.u64(object.len() as u64);
        }
        let mut lens = self
            .payload
            .plain_lens()
            .ok()
            .into_iter()
            .flatten()
            .map(|len| len.ok().flatten().or_default_if_bug());
        let groups = self.payload.groups().ok().into_iter().flatten();
        for group in groups.map(OrDefaultIfBug::or_default_if_bug) {
            let len = lens
                .by_ref()
                .take(group.len())
                .fold(0_u64, |sum, len| sum.saturating_add(len));
            writer.u64(len);
        }
        writer.str("compression").array(narrow(frame_count));
        if self.object.is_some() {
            writer.nil();
        }
        match header.list("compression").ok().flatten() {
            Some(list) => list.for_each(|value| {
                writer.encoded(value);
            }),
            None => (0..self.payload.frames().len()).for_each(|_| {
                writer.nil();
            }),
        }
        writer.str("count").u64(frame_count as u64);
    }
}

/// The error for `lengths` that end inside a frame.
fn regrouped(error: MessageError) -> BuildError {
    match error.kind {
        MessageErrorKind::LengthsInsideFrame => BuildError::NotConvertible {
            reason: "its lengths end inside a frame",
        },
        _ => BuildError::Payload(error),
    }
}

/// Entries that remain in the header in both layouts; all others move to or
/// from `sub-header` (PROTOCOL FORWARD-7).
const KEPT: [&str; 3] = ["type", "type-serialized", "key"];

/// The maximum depth of nested collections that are converted.
const MAX_NESTING: usize = 16;
