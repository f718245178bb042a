//! Values in wire format.

use core::fmt;
use std::sync::Arc;

use bytes::Bytes;
use daskwire::Limits;
use daskwire::message::{
    BuildError, MessageBuilder, MessageError, Payload, PayloadHeader, PayloadKind, ReadOptions,
    SHARD_LEN, Serializer,
};
use daskwire::msgpack::Reader;
use daskwire_numpy::{
    DType, Description, ElementType, PayloadWriteError, ValueBuilder as _, WriteOptions, known,
};
use daskwire_pickle::tree::Tree;
use daskwire_pickle::{PickleBuffer, Protocol};

use super::families::FRAME_ENTRIES;
use super::source::Source;
use super::{Array, Budget, MAX_DEPTH, UnknownParts, Value, ValueError, pickled, records};
use crate::memory;
use crate::pickling::Pickling;
use crate::scratch::{self, Encode, MessageScratch};

/// The body of a message that consists of one payload.
const BODY: [&[u8]; 2] = [b"\x81\xae__Serialized__\x01", b"\x81\xab__Pickled__\x01"];

/// The header of an unsplit pickle without buffers, as Dask writes it: nearly all
/// pickles have it.
const PICKLE: &[u8] = b"\x86\xaaserializer\xa6pickle\xa9writeable\x90\
    \xb4split-num-sub-frames\x91\x01\xadsplit-offsets\x91\x00\
    \xabcompression\x91\xc0\xaenum-sub-frames\x01";

/// The header of a `__Pickled__` payload before the pickle.
const PICKLED_OBJ: &[u8] = b"\x83\xabpickled-obj";

/// The rest of it, after the pickle.
const PICKLED: &[u8] = b"\xabcompression\x90\xaenum-sub-frames\x00";

/// A value in wire format: its header and frames exactly as they were sent,
/// compressed or not. Cloning copies no data.
///
/// ```
/// use daskwire_value::{Serialized, Value};
/// let serialized = Serialized::of(&Value::from("some text"))?;
/// assert_eq!(serialized.to_string(), "<pickle of 23 bytes>");
/// assert_eq!(serialized.open()?, Value::from("some text"));
/// # Ok::<(), daskwire_value::ValueError>(())
/// ```
#[derive(Clone)]
pub struct Serialized {
    kind: PayloadKind,
    /// A message that consists of this payload: body, header, frames.
    message: Vec<Bytes>,
    /// The limits of the comm that received it, if they are not the default.
    limits: Option<Arc<Limits>>,
}

/// Payloads are equal if their kind and bytes are equal.
impl PartialEq for Serialized {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, &self.message) == (other.kind, &other.message)
    }
}

/// The default is a pickle of `None`.
impl Default for Serialized {
    fn default() -> Self {
        Self {
            kind: PayloadKind::Serialized,
            message: [
                BODY[0],
                b"\x83\xaaserializer\xa6pickle\xa9writeable\x90\xaenum-sub-frames\x01",
                b"\x80\x04N.",
            ]
            .map(Bytes::from_static)
            .into(),
            limits: None,
        }
    }
}

impl Serialized {
    const fn new(kind: PayloadKind, message: Vec<Bytes>) -> Self {
        Self {
            kind,
            message,
            limits: None,
        }
    }

    /// The same payload, opened within these limits. Default: [`Limits::HOST`].
    pub(crate) fn limited(mut self, limits: Option<Arc<Limits>>) -> Self {
        self.limits = limits;
        self
    }

    /// Serializes a value as Dask does: bytes and arrays in their own formats,
    /// everything else as a pickle with out-of-band arrays. Arrays and bytes are
    /// not copied. A value that is serialized already is returned unchanged.
    ///
    /// # Errors
    ///
    /// If a part of the value is serialized and cannot be opened.
    pub fn of(value: &Value) -> Result<Self, ValueError> {
        Self::with_pickling(value, Pickling::default())
    }

    /// Like [`of`](Self::of), with pickles that all readers of a cluster understand.
    ///
    /// # Errors
    ///
    /// If a value cannot be serialized, or a payload cannot be read.
    pub fn with_pickling(value: &Value, pickling: Pickling) -> Result<Self, ValueError> {
        let protocol = pickling.protocol;
        let built = match value {
            Value::Serialized(serialized) => return Ok(serialized.clone()),
            Value::Bytes(data) => Self::built(&[data], &Content::Bytes(data, protocol)),
            Value::ByteArray(data) => Self::built(&[data], &Content::ByteArray(data, protocol)),
            Value::Array(array) => match Self::of_array(array, protocol) {
                Some(serialized) => return Ok(serialized),
                None => return Self::of_pickle(value, pickling),
            },
            _ => return Self::of_pickle(value, pickling),
        };
        Ok(built.expect("buffers that grow"))
    }

    /// The payload of `bytes` that all releases of Python read from 3.4 on.
    pub fn of_bytes(bytes: &Bytes) -> Self {
        Self::built(&[bytes], &Content::Bytes(bytes, Protocol::V4)).expect("buffers that grow")
    }

    /// The payload for readers before 2021.11.0: the keys of a class are in the header
    /// itself, not in `sub-header`.
    // PROTOCOL HEADER-4
    pub fn flat(mut self) -> Self {
        let flat = flat_header(self.header());
        if let (Some(flat), Some(header)) = (flat, self.message.get_mut(1)) {
            *header = flat.into();
        }
        self
    }

    /// Serializes a value as a pickle.
    fn of_pickle(value: &Value, pickling: Pickling) -> Result<Self, ValueError> {
        let (pickle, arrays) = pickled::write(value, pickling)?;
        let pickle = Bytes::from(pickle);
        if arrays.is_empty() {
            return Ok(Self::of_written_pickle(pickle));
        }
        let mut sources = vec![&pickle];
        sources.extend(arrays.iter().map(|array| array.bytes()));
        let buffers = arrays.iter().map(|array| pickled::buffer(array)).collect();
        // Cannot fail: the buffers grow as needed.
        Ok(Self::built(&sources, &Content::Pickle(&pickle, buffers)).expect("buffers that grow"))
    }

    /// Wraps a complete pickle and its buffers, whose data `frames` own.
    pub(super) fn of_pickle_and_buffers(
        pickle: Bytes,
        frames: &[Bytes],
        buffers: Vec<PickleBuffer<'_>>,
    ) -> Self {
        if buffers.is_empty() {
            return Self::of_written_pickle(pickle);
        }
        let sources: Vec<&Bytes> = frames.iter().chain([&pickle]).collect();
        // Cannot fail: the buffers grow as needed.
        Self::built(&sources, &Content::Pickle(&pickle, buffers)).expect("buffers that grow")
    }

    /// Wraps a complete pickle without buffers.
    pub fn of_written_pickle(pickle: Bytes) -> Self {
        if pickle.len() > SHARD_LEN {
            return Self::built(&[&pickle], &Content::Pickle(&pickle, Vec::new()))
                .expect("buffers that grow");
        }
        Self::new(
            PayloadKind::Serialized,
            vec![
                Bytes::from_static(BODY[0]),
                Bytes::from_static(PICKLE),
                pickle,
            ],
        )
    }

    /// A payload of this header and these frames.
    pub(super) fn of_parts(header: Bytes, frames: Vec<Bytes>) -> Self {
        let body = Bytes::from_static(BODY[0]);
        let message = [body, header].into_iter().chain(frames);
        Self::new(PayloadKind::Serialized, message.collect())
    }

    /// Whether the payload is a `__Pickled__`.
    #[doc(hidden)]
    pub fn is_pickled(&self) -> bool {
        self.kind == PayloadKind::Pickled
    }

    /// The pickle, if the payload is a pickle without buffers, neither compressed
    /// nor split.
    #[doc(hidden)]
    pub fn plain_pickle(&self) -> Option<Bytes> {
        let pickle = self.as_plain_pickle()?;
        // The pickle is in the last frame, or in the header if there is none.
        Some(self.message.last()?.slice_ref(pickle))
    }

    /// Like [`plain_pickle`](Self::plain_pickle), borrowed.
    #[doc(hidden)]
    pub fn as_plain_pickle(&self) -> Option<&[u8]> {
        match (self.kind, &self.message[..]) {
            (PayloadKind::Serialized, [_, header, pickle]) if header == PICKLE => Some(pickle),
            (PayloadKind::Pickled, [_, header]) => {
                let mut reader = Reader::new(header.strip_prefix(PICKLED_OBJ)?);
                let pickle = reader.bin().ok()?;
                (reader.remaining() == PICKLED).then_some(pickle)
            }
            _ => None,
        }
    }

    /// A `__Pickled__` payload, which Python opens wherever it arrives, also in
    /// the scheduler.
    pub fn pickled(pickle: &[u8]) -> Self {
        Self::pickled_parts(&[pickle])
    }

    /// Like [`pickled`](Self::pickled), for a pickle in parts.
    pub fn pickled_parts(pickle: &[&[u8]]) -> Self {
        // The output of `MessageBuilder::pickled_payload`. A scheduler makes one for each task, and
        // keeps it: in one pass, and without spare capacity, for which `Bytes` would need more
        // memory.
        let len: usize = pickle.iter().map(|part| part.len()).sum();
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let [a, b, c, d] = len.to_be_bytes();
        let bin: &[u8] = match len {
            0..=0xff => &[0xc4, d],
            0x100..=0xffff => &[0xc5, c, d],
            _ => &[0xc6, a, b, c, d],
        };
        let rest_len = PICKLED_OBJ.len() + bin.len() + PICKLED.len();
        let mut header = Vec::with_capacity(rest_len + len as usize);
        header.extend_from_slice(PICKLED_OBJ);
        header.extend_from_slice(bin);
        pickle
            .iter()
            .for_each(|part| header.extend_from_slice(part));
        header.extend_from_slice(PICKLED);
        let message = vec![Bytes::from_static(BODY[1]), header.into()];
        Self::new(PayloadKind::Pickled, message)
    }

    fn of_array(array: &Array, protocol: Protocol) -> Option<Self> {
        Self::built(
            &[array.bytes()],
            &Content::Array(Box::new(array.view().ok()?), protocol),
        )
        .ok()
    }

    /// Builds the message of a payload whose frames are in `sources`.
    fn built(sources: &[&Bytes], content: &Content<'_>) -> Result<Self, BuildError> {
        let (kind, body) = match content {
            #[cfg(test)]
            Content::Pickled(_) => (PayloadKind::Pickled, BODY[1]),
            _ => (PayloadKind::Serialized, BODY[0]),
        };
        let owned = |frame: &&[u8]| {
            let inside = |source: &&&Bytes| {
                let range = source.as_ptr_range();
                let frame = frame.as_ptr_range();
                range.start <= frame.start && frame.end <= range.end
            };
            match sources.iter().find(inside) {
                Some(source) => source.slice_ref(frame),
                None => Bytes::copy_from_slice(frame),
            }
        };
        let message = MessageScratch::new().with_frames(content, |frames| {
            let rest = frames.iter().skip(1).map(owned);
            core::iter::once(Bytes::from_static(body))
                .chain(rest)
                .collect()
        })?;
        Ok(Self::new(kind, message))
    }

    /// The payload whose header is frame `index` of an opened message; `None` if
    /// there are too few frames.
    pub(crate) fn of_frames(frames: &[Bytes], index: usize, kind: PayloadKind) -> Option<Self> {
        let header = frames.get(index)?;
        let mut reader = Reader::new(header);
        let count = match reader.find("num-sub-frames") {
            Ok(true) => usize::try_from(reader.u64().ok()?).ok()?,
            _ => 0,
        };
        let end = index.checked_add(1)?.checked_add(count)?;
        let body = match kind {
            PayloadKind::Serialized => BODY[0],
            PayloadKind::Pickled => BODY[1],
        };
        let mut message = Vec::with_capacity(count.checked_add(2)?.min(frames.len() + 1));
        message.push(Bytes::from_static(body));
        message.extend_from_slice(frames.get(index..end)?);
        Some(Self::new(kind, message))
    }

    /// A message that consists of this payload: body, header, frames.
    pub fn message(&self) -> &[Bytes] {
        &self.message
    }

    /// The payload of a message that consists of one payload; `None` for other
    /// messages.
    pub fn of_message(message: Vec<Bytes>) -> Option<Self> {
        let kind = match message.first() {
            Some(body) if body == BODY[0] => PayloadKind::Serialized,
            Some(body) if body == BODY[1] => PayloadKind::Pickled,
            _ => return None,
        };
        (message.len() > 1).then(|| Self::new(kind, message))
    }

    /// The same payload with each frame replaced by the result of `place`.
    pub fn map_frames(&self, place: impl FnMut(&Bytes) -> Bytes) -> Self {
        let head = self.message.iter().take(2).cloned();
        Self {
            kind: self.kind,
            message: head.chain(self.frames().iter().map(place)).collect(),
            limits: self.limits.clone(),
        }
    }

    #[doc(hidden)]
    pub fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        let frames: Vec<&[u8]> = self.frames().iter().map(AsRef::as_ref).collect();
        to.payload_as_is(self.kind, self.header(), &frames, false)?;
        Ok(())
    }

    /// Whether the payload is `__Serialized__` or `__Pickled__`.
    pub const fn kind(&self) -> PayloadKind {
        self.kind
    }

    /// The header as it was sent: a MessagePack map.
    pub fn header(&self) -> &[u8] {
        self.message[1].as_ref()
    }

    /// The frames after the header, as they were sent.
    pub fn frames(&self) -> &[Bytes] {
        &self.message[2..]
    }

    /// The length of all frames, in bytes.
    pub fn len(&self) -> u64 {
        self.frames().iter().map(|frame| frame.len() as u64).sum()
    }

    /// Whether all frames are empty, or there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `read` with the payload as a borrowed view.
    ///
    /// # Errors
    ///
    /// If the header or the frames are malformed.
    pub fn with_payload<R>(
        &self,
        read: impl FnOnce(&Payload<'_, Bytes>) -> R,
    ) -> Result<R, ValueError> {
        self.with_payload_after(0, read)
    }

    /// Calls `read` with the payload, to which the limit of a message applies after
    /// `opened_len` bytes of other payloads.
    fn with_payload_after<R>(
        &self,
        opened_len: u64,
        read: impl FnOnce(&Payload<'_, Bytes>) -> R,
    ) -> Result<R, ValueError> {
        let mut options = self.read_options();
        let limit = &mut options.limits.decompressed_message_len;
        *limit = limit.saturating_sub(opened_len);
        let payload = Payload::at(&self.message, 1, self.kind, &options)?;
        Ok(read(&payload))
    }

    /// The limits for opening the payload: those of its comm, and of memory.
    fn read_options(&self) -> ReadOptions {
        let mut options = memory::read_options();
        if let Some(limits) = self.limits.as_deref() {
            let memory = options.limits;
            let of_message = limits.decompressed_message_len;
            options.limits = limits
                .with_message_len(limits.message_len.min(memory.message_len))
                .with_decompressed_len(limits.decompressed_len.min(memory.decompressed_len))
                .with_decompressed_message_len(of_message.min(memory.decompressed_message_len));
        }
        options
    }

    /// The frames after decompression and merging, as one.
    #[cfg(feature = "arrow-60")]
    pub(super) fn content(&self) -> Result<Bytes, ValueError> {
        self.with_payload(|payload| Ok(joined(&logical_frames(payload, &mut 0)?)))?
    }

    /// Deserializes the value. Bytes and arrays are not copied unless they were
    /// compressed or split. Items of lists, tuples, sets and dictionaries that have no
    /// counterpart in Rust, such as a DataFrame in a tuple, stay [`Value::Serialized`].
    ///
    /// # Errors
    ///
    /// * [`ValueError::Unknown`] if [`Value`] has no counterpart of the object itself;
    /// * other errors if the payload is malformed.
    pub fn open(&self) -> Result<Value, ValueError> {
        self.open_measuring(&mut 0)
    }

    /// Like [`open`](Self::open); adds to `copied_len` the bytes copied because
    /// they were compressed or split. Payloads that are opened with the same count are
    /// within one [`decompressed_message_len`](Limits::decompressed_message_len).
    ///
    /// # Errors
    ///
    /// If a value cannot be serialized, or a payload cannot be read.
    pub fn open_measuring(&self, copied_len: &mut u64) -> Result<Value, ValueError> {
        self.open_with(UnknownParts::Kept(self.limits.as_ref()), copied_len)
    }

    /// Like [`open`](Self::open), for a value with parts that have no counterpart in Rust.
    /// A mark replaces each of them, which only conversions with serde understand.
    #[cfg(feature = "serde")]
    pub(super) fn open_marking_unknown(&self) -> Result<Value, ValueError> {
        self.open_with(UnknownParts::Marked, &mut 0)
    }

    fn open_with(
        &self,
        unknown: UnknownParts<'_>,
        copied_len: &mut u64,
    ) -> Result<Value, ValueError> {
        if let Some(pickle) = self.plain_pickle() {
            return pickled::read(&pickle, &[], unknown);
        }
        self.with_payload_after(*copied_len, |payload| {
            let frames = logical_frames(payload, copied_len)?;
            value_of(payload.header(), self.kind, &frames, (MAX_DEPTH, unknown))
        })?
    }

    /// The elements of an array of objects, lists if it has several dimensions.
    pub(super) fn object_array(&self) -> Result<Vec<Value>, ValueError> {
        let (pickle, buffers) = self.pickle()?;
        pickled::object_array(&pickle, &buffers)
    }

    /// The elements of an array of objects or of records.
    ///
    /// # Errors
    ///
    /// [`ValueError::Unknown`] if it is none of these.
    pub(super) fn elements(&self) -> Result<Vec<Value>, ValueError> {
        match self.object_array() {
            Err(ValueError::Unknown { .. }) => self.records(),
            elements => elements,
        }
    }

    /// The records of an array, lists if it has several dimensions.
    fn records(&self) -> Result<Vec<Value>, ValueError> {
        let of_dask = self.with_payload(|payload| {
            if self.kind != PayloadKind::Serialized {
                return Ok(None);
            }
            let Description::Array(array) = Description::of(payload.header())? else {
                return Ok(None);
            };
            let frames = logical_frames(payload, &mut 0)?;
            let data = joined(&frames);
            let of_type = |pickle_len: usize, record: ElementType<'_>| match record {
                ElementType::Record(found) => {
                    let view = array.with_element_type(record).over(&data)?;
                    let len = data.len().saturating_add(pickle_len).saturating_mul(4);
                    let budget = Budget::new(len.saturating_add(1 << 16), len);
                    records::records(&view, &found, &budget).map(Some)
                }
                _ => Ok(None),
            };
            match array.element_type() {
                ElementType::Pickled(pickle) => {
                    let tree = Tree::new(pickle)?;
                    match known::element_type(&tree) {
                        Ok(found) => of_type(pickle.len(), found),
                        Err(_) => Ok(None),
                    }
                }
                found => of_type(0, found),
            }
        })?;
        match of_dask? {
            Some(records) => Ok(records),
            None => {
                let (pickle, buffers) = self.pickle()?;
                pickled::records(&pickle, &buffers)
            }
        }
    }

    /// The first name in the pickle: the class of an object that only Python reads.
    pub(super) fn described(&self) -> Option<String> {
        let (pickle, buffers) = self.pickle().ok()?;
        let tree = Tree::with_buffers(&pickle, &buffers).ok()?;
        Some(pickled::describe(tree.root()))
    }

    /// The pickle and its buffers, if the payload is a pickle.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn pickle(&self) -> Result<(Bytes, Vec<Bytes>), ValueError> {
        if let Some(pickle) = self.plain_pickle() {
            return Ok((pickle, Vec::new()));
        }
        self.with_payload(|payload| {
            let mut frames = logical_frames(payload, &mut 0)?;
            let header = payload.header();
            if self.kind == PayloadKind::Pickled {
                let pickle = header.pickled_object()?.unwrap_or_default();
                let header = self.message[1].clone();
                return Ok((header.slice_ref(pickle), frames));
            }
            match Description::of(header)? {
                Description::Pickle if !frames.is_empty() => Ok((frames.remove(0), frames)),
                // The form in which Python workers send exceptions.
                Description::Bytes => Ok((joined(&frames), Vec::new())),
                _ => Err(ValueError::Unknown {
                    what: "something that is not a pickle".to_owned(),
                }),
            }
        })?
    }
}

/// The content of a message to build. A `Protocol` is that of the pickle of the class.
enum Content<'v> {
    Bytes(&'v [u8], Protocol),
    ByteArray(&'v [u8], Protocol),
    Array(Box<daskwire_numpy::Array<'v>>, Protocol),
    Pickle(&'v [u8], Vec<PickleBuffer<'v>>),
    #[cfg(test)]
    Pickled(&'v [u8]),
}

impl Encode for Content<'_> {
    fn encode<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        let mut options = WriteOptions::default();
        let written = match self {
            Self::Bytes(data, protocol) => {
                options.protocol = *protocol;
                to.bytes_payload(data, &options)
            }
            Self::ByteArray(data, protocol) => {
                options.protocol = *protocol;
                to.bytearray_payload(data, &options)
            }
            Self::Array(array, protocol) => {
                options.protocol = *protocol;
                to.array_payload(array, &options)
            }
            Self::Pickle(pickle, buffers) => to.pickle_payload(pickle, buffers, &options),
            #[cfg(test)]
            Self::Pickled(pickle) => to.pickled_payload(pickle, &[]),
        };
        written.map_err(|error| match error {
            PayloadWriteError::Build(error) => error,
            _ => BuildError::NotConvertible {
                reason: "the value has no own payload format",
            },
        })?;
        Ok(())
    }
}

/// The header with the entries of its `sub-header` moved into the header itself; `None`
/// without a `sub-header`.
fn flat_header(header: &[u8]) -> Option<Vec<u8>> {
    let mut reader = Reader::new(header);
    let mut entries: Vec<(&[u8], &[u8])> = Vec::new();
    let mut inner = None;
    for _ in 0..reader.map().ok()? {
        let (key, value) = (reader.skip().ok()?, reader.skip().ok()?);
        match Reader::new(key).raw_str() {
            Ok(name) if name == "sub-header" => inner = Some(Reader::new(value)),
            _ => entries.push((key, value)),
        }
    }
    let mut inner = inner?;
    for _ in 0..inner.map().ok()? {
        let (key, value) = (inner.skip().ok()?, inner.skip().ok()?);
        match entries.iter_mut().find(|(other, _)| *other == key) {
            // `writeable` of an array is that of the class.
            Some(entry) => entry.1 = value,
            None => entries.push((key, value)),
        }
    }
    let mut flat = Vec::with_capacity(header.len());
    scratch::msgpack(&mut flat, |writer| {
        writer.map(u32::try_from(entries.len()).expect("few entries"));
        for (key, value) in &entries {
            writer.encoded(key).encoded(value);
        }
    });
    Some(flat)
}

/// The frames before compression and splitting. They are not copied if neither
/// was used.
pub(super) fn logical_frames(
    payload: &Payload<'_, Bytes>,
    copied_len: &mut u64,
) -> Result<Vec<Bytes>, ValueError> {
    let uncopied: Result<Option<Vec<Bytes>>, _> = payload
        .logical_frames()?
        .map(|frame| {
            let frame = frame?;
            if frame.is_compressed() {
                return Ok(None);
            }
            let mut filled = frame.parts().iter().filter(|part| !part.is_empty());
            let first = filled.next().cloned().unwrap_or_default();
            Ok(filled.next().is_none().then_some(first))
        })
        .collect();
    // Fails if `lengths` cut through a frame; merging handles that.
    if let Ok::<_, MessageError>(Some(frames)) = uncopied {
        return Ok(frames);
    }
    let (mut out, mut ends) = (Vec::new(), Vec::new());
    payload.merge_onto(&mut out, &mut ends)?;
    let out = Bytes::from(out);
    let mut start = 0;
    *copied_len = copied_len.saturating_add(out.len() as u64);
    let frames = ends.iter().map(|&end| {
        let frame = out.slice(start..end);
        start = end;
        frame
    });
    Ok(frames.collect())
}

fn joined(frames: &[Bytes]) -> Bytes {
    match frames {
        [] => Bytes::new(),
        [one] => one.clone(),
        many => many.concat().into(),
    }
}

/// The value of `frames` as described by `header`.
fn value_of(
    header: &PayloadHeader<'_>,
    kind: PayloadKind,
    frames: &[Bytes],
    (depth, unknown_parts): (usize, UnknownParts<'_>),
) -> Result<Value, ValueError> {
    if kind == PayloadKind::Pickled {
        let pickle = header.pickled_object()?.unwrap_or_default();
        return pickled::read(&Bytes::copy_from_slice(pickle), frames, unknown_parts);
    }
    Ok(match Description::of(header)? {
        Description::Bytes => Value::Bytes(joined(frames)),
        Description::ByteArray => Value::ByteArray(joined(frames)),
        Description::MemoryView(view) => {
            let data = joined(frames);
            let view = view.over(&data)?;
            Value::Array(Array::of_view(&view, data.slice_ref(view.bytes())))
        }
        Description::Array(array) => {
            // The type of void elements is pickled, as that of records is, but the
            // elements are plain.
            let plain = match array.element_type() {
                ElementType::Pickled(pickle) => plain_type(pickle),
                ElementType::Plain(dtype) => Some(dtype),
                _ => None,
            };
            let plain = plain.ok_or_else(|| unknown("an array of records"))?;
            let array = array.with_element_type(ElementType::Plain(plain));
            let data = joined(frames);
            let view = array.over(&data)?;
            Value::Array(Array::of_view(&view, data.slice_ref(view.bytes())))
        }
        Description::Pickle => match frames.split_first() {
            Some((pickle, buffers)) => pickled::read(pickle, buffers, unknown_parts)?,
            None => return Err(unknown("a pickle without a frame")),
        },
        Description::Collection => collection(header, frames, (depth, unknown_parts))?,
        Description::Family(Serializer::Msgpack) => {
            let document = [joined(frames)];
            Source::new(&document)
                .and_then(|mut source| Value::read(&mut source))
                .map_err(|_| unknown("a MessagePack document with an error"))?
        }
        Description::Family(Serializer::Error) => {
            let lines: Vec<_> = frames
                .iter()
                .map(|line| String::from_utf8_lossy(line))
                .collect();
            return Err(ValueError::NotSent {
                reason: lines.join("\n"),
            });
        }
        // Dask sends this subclass of `bytes` under its own name.
        Description::Other(class) if (class.module, class.name) == ("numpy", "bytes_") => {
            Value::Bytes(joined(frames))
        }
        Description::Other(class) => {
            return Err(unknown(&format!("{}.{}", class.module, class.name)));
        }
        Description::MaskedArray(_) | Description::Masked => {
            return Err(unknown("numpy.ma.MaskedArray"));
        }
        other => return Err(unknown(&format!("{other:?}"))),
    })
}

/// The type in the pickle of a `numpy.dtype`; `None` of records.
fn plain_type(pickle: &[u8]) -> Option<DType> {
    let tree = Tree::new(pickle).ok()?;
    match known::element_type(&tree) {
        Ok(ElementType::Plain(dtype)) => Some(dtype),
        _ => None,
    }
}

fn unknown(what: &str) -> ValueError {
    ValueError::Unknown {
        what: what.to_owned(),
    }
}

/// A list, tuple, set or dict whose elements have their own headers
/// (PROTOCOL HEADER-11).
fn collection(
    header: &PayloadHeader<'_>,
    mut frames: &[Bytes],
    (depth, unknown_parts): (usize, UnknownParts<'_>),
) -> Result<Value, ValueError> {
    let depth = depth.checked_sub(1).ok_or(ValueError::TooLarge)?;
    let damaged = || unknown("a collection without the frames of its elements");
    let headers = header.sub_headers()?.ok_or_else(damaged)?;
    let mut counts = header.list("frame-lengths")?.ok_or_else(damaged)?.numbers();
    let mut items = Vec::new();
    let mut keys = Vec::new();
    for element in headers {
        let element = element?;
        let count = counts.next().ok_or_else(damaged)??;
        let count = usize::try_from(count).map_err(|_| damaged())?;
        let (own, rest) = frames.split_at_checked(count).ok_or_else(damaged)?;
        frames = rest;
        if let Some(key) = element.key() {
            let document = [Bytes::copy_from_slice(key)];
            let key = Source::new(&document).and_then(|mut source| Value::read_key(&mut source));
            keys.push(key.map_err(|_| damaged())?);
        }
        let kind = PayloadKind::Serialized;
        let item = match value_of(&element, kind, own, (depth, unknown_parts)) {
            Err(
                error @ (ValueError::Unknown { .. }
                | ValueError::NotSent { .. }
                | ValueError::TooLarge),
            ) => match (unknown_parts, error) {
                (UnknownParts::Kept(_), ValueError::TooLarge) => Err(ValueError::TooLarge),
                (UnknownParts::Kept(limits), _) => Ok(Value::Serialized(
                    element_alone(&element, own).limited(limits.cloned()),
                )),
                (_, error) => unknown_parts.value(error),
            },
            item => item,
        };
        items.push(item.map_err(|error| match keys.last() {
            Some(key) => pickled::at(error, key),
            None => pickled::at(error, items.len()),
        })?);
    }
    let mut reader = header.get("type-serialized").map(Reader::new);
    let class = reader.as_mut().and_then(|reader| reader.str().ok());
    Ok(match class.map(|class| class.to_str()) {
        Some("list") => Value::List(items.into()),
        Some("tuple") => Value::Tuple(items.into()),
        Some("set") => Value::Set(items.into()),
        Some("dict") if keys.len() == items.len() => {
            Value::Dict(keys.into_iter().zip(items).collect())
        }
        _ => return Err(damaged()),
    })
}

/// An element of a collection as a payload of its own, of these frames.
fn element_alone(header: &PayloadHeader<'_>, frames: &[Bytes]) -> Serialized {
    let of_frames = |key: &[u8]| {
        Reader::new(key)
            .raw_str()
            .is_ok_and(|name| name == "key" || FRAME_ENTRIES.iter().any(|entry| name == *entry))
    };
    let kept = || header.entries().filter(|(key, _)| !of_frames(key));
    let mut alone = Vec::new();
    scratch::msgpack(&mut alone, |writer| {
        let count = kept().count().saturating_add(1);
        writer.map(u32::try_from(count).expect("few entries"));
        for (key, value) in kept() {
            writer.encoded(key).encoded(value);
        }
        writer.str("num-sub-frames").u64(frames.len() as u64);
    });
    Serialized::of_parts(alone.into(), frames.to_vec())
}

/// Formats as the header's description and the length.
impl fmt::Display for Serialized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.with_payload(|payload| {
            let header = payload.header();
            let class = header.type_name().ok().flatten().map(str::to_owned);
            class.or_else(|| match Description::of(header).ok()? {
                Description::Pickle => Some("pickle".to_owned()),
                Description::Collection => Some("collection".to_owned()),
                Description::Family(family) => Some(format!("{family:?}").to_lowercase()),
                _ => None,
            })
        });
        let what = match (self.kind, what) {
            (PayloadKind::Pickled, _) => "pickle for all peers".to_owned(),
            (_, what) => what.ok().flatten().unwrap_or_else(|| "payload".to_owned()),
        };
        write!(f, "<{what} of {} bytes>", self.len())
    }
}

impl fmt::Debug for Serialized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pickled_payloads_match_the_core() {
        for pickle in [&b"\x80\x04N."[..], &[7; 300]] {
            let built = Serialized::built(&[], &Content::Pickled(pickle));
            let pickled = Serialized::pickled(pickle);
            assert_eq!(pickled, built.expect("there is room"));
            assert_eq!(pickled.plain_pickle().as_deref(), Some(pickle));
        }
    }

    // PROTOCOL HEADER-4
    #[test]
    fn flat_headers_have_the_keys_of_their_class() {
        let array = Array::from_slice(&[2], &[1.5, 2.5]).expect("an array");
        for value in [
            Value::from(array),
            Value::bytes(vec![7; 300]),
            Value::from(7),
        ] {
            let nested = Serialized::of(&value).expect("a payload");
            let flat = nested.clone().flat();
            let has = |payload: &Serialized, name| {
                Reader::new(payload.header()).find(name).expect("a map")
            };
            assert!(!has(&flat, "sub-header"));
            assert_eq!(has(&flat, "strides"), matches!(value, Value::Array(_)));
            assert_eq!(flat.open().expect("a value"), value);
            if !has(&nested, "sub-header") {
                assert_eq!(flat, nested);
            }
        }
    }

    #[test]
    fn pickles_match_the_core() {
        for pickle in [&b"\x80\x04N."[..], &[7; 300]] {
            let built = Serialized::built(&[], &Content::Pickle(pickle, Vec::new()));
            let written = Serialized::of_written_pickle(Bytes::copy_from_slice(pickle));
            assert_eq!(written, built.expect("there is room"));
            assert_eq!(written.plain_pickle().as_deref(), Some(pickle));
        }
    }
}
