//! The encoding of records.

use core::fmt;

use bytes::Bytes;
use daskwire::msgpack::Reader as Document;
use daskwire_messages::graph::Calls;
use daskwire_messages::protocol::{Body, Opener};
use daskwire_messages::scratch::MessageScratch;
use daskwire_messages::{Key, Serialized, Value};

use super::shared::has_place;

/// The kinds of records, each with the content that follows its first number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(super) enum Kind {
    /// A client has joined, or holds results in its name: the name.
    Client = 1,
    /// A client has left, and wants nothing any more.
    ClientLeft = 2,
    /// Demands that tasks share: their fields.
    Demands = 3,
    /// A task: its fields, the numbers of its dependencies and of its demands.
    Task = 4,
    /// A task is forgotten.
    Forgotten = 5,
    /// A task is wanted: the number of the client.
    Wanted = 6,
    /// A task is wanted no more: the number of the client.
    Unwanted = 7,
    /// A failure that tasks share: its fields.
    Failure = 8,
    /// A task has failed: the number of the failure.
    Failed = 9,
    /// A failed task is to run again.
    Retried = 10,
    /// A task has other demands: their number.
    Moved = 11,
    /// A task makes an actor.
    Actor = 12,
    /// A worker has joined that can return: its address.
    Worker = 13,
    /// A worker has left.
    WorkerLeft = 14,
    /// Metadata was set; there is no number, but the path and the value. Without a value, it is
    /// forgotten.
    Metadata = 15,
    /// A client may return: the number of its graphs that were handled.
    Graphs = 16,
    // The others begin with the place of what they are about, see `shared`.
    /// A variable: its value.
    Variable = 17,
    /// An event that is set.
    Event = 18,
    /// A queue: its maximum number of values.
    Queue = 19,
    /// A queue with several users: their number.
    QueueUsers = 20,
    /// A value of a queue: the name of the queue, and the value. Its place is its number.
    Item = 21,
    /// A semaphore: its maximum number of leases, and their time-out.
    Semaphore = 22,
    /// A lease: its place is the name of the semaphore, and its id.
    Lease = 23,
    /// A holder of locks: their names.
    Locks = 24,
    /// A dataset: the keys of its tasks, and its data.
    Dataset = 25,
    /// A plugin that was registered: its place is its name.
    Plugin = 26,
}

impl Kind {
    const ALL: [Self; 26] = [
        Self::Client,
        Self::ClientLeft,
        Self::Demands,
        Self::Task,
        Self::Forgotten,
        Self::Wanted,
        Self::Unwanted,
        Self::Failure,
        Self::Failed,
        Self::Retried,
        Self::Moved,
        Self::Actor,
        Self::Worker,
        Self::WorkerLeft,
        Self::Metadata,
        Self::Graphs,
        Self::Variable,
        Self::Event,
        Self::Queue,
        Self::QueueUsers,
        Self::Item,
        Self::Semaphore,
        Self::Lease,
        Self::Locks,
        Self::Dataset,
        Self::Plugin,
    ];

    fn read(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }
}

/// A record that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordError {
    /// The offset in the bytes that were passed.
    pub at: usize,
    /// What was expected there.
    pub expected: &'static str,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: expected {}", self.at, self.expected)
    }
}

impl core::error::Error for RecordError {}

/// Writes the content of a record.
pub(super) struct Writer<'o> {
    out: &'o mut Vec<u8>,
}

impl Writer<'_> {
    /// Appends a record.
    pub(super) fn record(out: &mut Vec<u8>, kind: Kind, content: impl FnOnce(&mut Writer<'_>)) {
        out.push(kind as u8);
        // Most contents are shorter than 128 bytes, for whose length a byte is kept.
        let start = out.len() + 1;
        out.push(0);
        content(&mut Writer { out });
        let len = (out.len() - start) as u64;
        match u8::try_from(len) {
            Ok(short @ 0..=0x7f) => out[start - 1] = short,
            _ => {
                let mut encoded = Vec::with_capacity(10);
                Writer { out: &mut encoded }.number(len);
                out.splice(start - 1..start, encoded);
            }
        }
    }

    pub(super) fn number(&mut self, mut number: u64) {
        while number > 0x7f {
            self.out.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.out.push(number as u8);
    }

    /// Writes a number so that small ones of either sign are short.
    pub(super) fn signed(&mut self, number: i64) {
        self.number(((number << 1) ^ (number >> 63)) as u64);
    }

    pub(super) fn float(&mut self, number: f64) {
        self.out.extend_from_slice(&number.to_le_bytes());
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    pub(super) fn strings(&mut self, strings: &[impl AsRef<str>]) {
        self.number(strings.len() as u64);
        for string in strings {
            self.bytes(string.as_ref().as_bytes());
        }
    }

    pub(super) fn calls(&mut self, calls: Calls) {
        let Calls {
            native,
            python,
            replaceable,
        } = calls;
        self.number(u64::from(native) | u64::from(python) << 1 | u64::from(replaceable) << 2);
    }

    pub(super) fn payload(&mut self, payload: &Serialized) {
        self.number(payload.message().len() as u64);
        for part in payload.message() {
            self.bytes(part);
        }
    }

    /// Writes a value as the frames of a message, after another length that no payload has.
    fn document(&mut self, value: &Value) {
        self.number(0);
        let written = MessageScratch::new().with_frames(&Body(value), |frames| {
            self.number(frames.len() as u64);
            for frame in frames {
                self.bytes(frame);
            }
        });
        if written.is_err() {
            self.number(0);
        }
    }

    /// Writes a value: as it is if it is serialized already.
    pub(super) fn value(&mut self, value: &Value) {
        match value {
            Value::None => self.number(0),
            Value::Serialized(payload) => self.payload(payload),
            value => {
                // A length that no payload has.
                self.number(1);
                match Serialized::of(value) {
                    Ok(payload) => self.payload(&payload),
                    // A part of it is a payload that cannot be opened here.
                    Err(_) => self.document(value),
                }
            }
        }
    }
}

/// A record, whose content is read field by field.
pub(super) struct Record<'r> {
    pub(super) kind: Kind,
    /// The number that the record is about; 0 if it is about something that has none.
    pub(super) number: u64,
    pub(super) content: Content<'r>,
    /// The record as it was written.
    pub(super) raw: &'r [u8],
}

/// Reads the records of a journal.
pub(super) struct Records<'r> {
    content: Content<'r>,
}

impl<'r> Records<'r> {
    pub(super) fn new(records: &'r [u8]) -> Self {
        Self {
            content: Content {
                rest: records,
                at: 0,
            },
        }
    }

    /// Returns the next record; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Record<'r>>, RecordError> {
        let all = self.content;
        let Some((code, rest)) = all.rest.split_first() else {
            return Ok(None);
        };
        let kind = Kind::read(*code).ok_or_else(|| {
            all.expected("a kind of record that this version knows; a later version wrote it")
        })?;
        self.content = Content {
            rest,
            at: all.at + 1,
        };
        let start = self.content.len_at()?;
        let content = self.content.bytes()?;
        let mut content = Content {
            rest: content,
            at: start,
        };
        let raw = &all.rest[..self.content.at - all.at];
        let number = match kind {
            Kind::Metadata => 0,
            kind if has_place(kind) => 0,
            _ => content.number()?,
        };
        Ok(Some(Record {
            kind,
            number,
            content,
            raw,
        }))
    }
}

/// The content of a record that is left to read.
#[derive(Clone, Copy)]
pub(super) struct Content<'r> {
    rest: &'r [u8],
    at: usize,
}

impl<'r> Content<'r> {
    pub(super) const fn of(bytes: &'r [u8]) -> Self {
        Self { rest: bytes, at: 0 }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn expected(&self, expected: &'static str) -> RecordError {
        RecordError {
            at: self.at,
            expected,
        }
    }

    /// The offset of the bytes whose length comes next.
    fn len_at(&self) -> Result<usize, RecordError> {
        let mut copy = *self;
        copy.number()?;
        Ok(copy.at)
    }

    fn take(&mut self, len: usize, expected: &'static str) -> Result<&'r [u8], RecordError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| self.expected(expected))?;
        self.rest = rest;
        self.at += len;
        Ok(taken)
    }

    pub(super) fn number(&mut self) -> Result<u64, RecordError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1, "a number")?[0];
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(self.expected("a number of at most 64 bits"))
    }

    pub(super) fn signed(&mut self) -> Result<i64, RecordError> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    pub(super) fn float(&mut self) -> Result<f64, RecordError> {
        let bytes = self.take(8, "a float of 8 bytes")?;
        let float = f64::from_le_bytes(bytes.try_into().unwrap_or_default());
        if float.is_nan() {
            return Err(self.expected("a float that is a number"));
        }
        Ok(float)
    }

    pub(super) fn bytes(&mut self) -> Result<&'r [u8], RecordError> {
        let len = self.number()?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.take(len, "as many bytes as the length says")
    }

    pub(super) fn string(&mut self) -> Result<&'r str, RecordError> {
        let at = *self;
        core::str::from_utf8(self.bytes()?).map_err(|_| at.expected("a string in UTF-8"))
    }

    /// Reads the length of a list whose items have at least one byte each.
    pub(super) fn count(&mut self) -> Result<usize, RecordError> {
        let at = *self;
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        match count <= self.rest.len() {
            true => Ok(count),
            false => Err(at.expected("a number of items that fit into the record")),
        }
    }

    pub(super) fn strings(&mut self) -> Result<Vec<String>, RecordError> {
        let count = self.count()?;
        (0..count).map(|_| Ok(self.string()?.to_owned())).collect()
    }

    pub(super) fn key(&mut self) -> Result<Key, RecordError> {
        let at = *self;
        let mut document = Document::new(self.bytes()?);
        let key = Key::read(&mut document).ok();
        key.filter(|_| document.finish().is_ok())
            .ok_or_else(|| at.expected("a key"))
    }

    /// Reads keys that follow each other, to the end of a byte string.
    pub(super) fn keys(&mut self) -> Result<Vec<Key>, RecordError> {
        let at = *self;
        let keys = Self::of(self.bytes()?).keys_to_end();
        keys.map_err(|_| at.expected("keys"))
    }

    /// Reads keys that follow each other, to the end.
    pub(super) fn keys_to_end(self) -> Result<Vec<Key>, RecordError> {
        let at = self;
        let bytes = self.rest;
        let mut document = Document::new(bytes);
        let mut keys = Vec::new();
        while document.position() < bytes.len() {
            let key = Key::read(&mut document);
            keys.push(key.map_err(|_| at.expected("keys"))?);
        }
        Ok(keys)
    }

    fn parts(&mut self, count: usize) -> Result<Serialized, RecordError> {
        let at = *self;
        let mut message = Vec::with_capacity(count);
        for _ in 0..count {
            message.push(Bytes::copy_from_slice(self.bytes()?));
        }
        Serialized::of_message(message).ok_or_else(|| at.expected("a payload"))
    }

    pub(super) fn payload(&mut self) -> Result<Serialized, RecordError> {
        let count = self.count()?;
        self.parts(count)
    }

    pub(super) fn value(&mut self) -> Result<Value, RecordError> {
        let at = *self;
        Ok(match self.count()? {
            0 => Value::None,
            1 if self.rest.first() == Some(&0) => {
                self.number()?;
                let frames = (0..self.count()?).map(|_| self.bytes().map(Bytes::copy_from_slice));
                let frames = frames.collect::<Result<Vec<Bytes>, RecordError>>()?;
                let read = Opener::default().read(&frames, Value::read);
                read.map_err(|_| at.expected("a value"))?
            }
            1 => {
                let opened = self.payload()?.open();
                opened.map_err(|_| at.expected("a value"))?
            }
            count => Value::Serialized(self.parts(count)?),
        })
    }

    pub(super) fn finish(self) -> Result<(), RecordError> {
        match self.rest {
            [] => Ok(()),
            _ => Err(self.expected("the end of the record")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_the_same_again() {
        let damaged = Serialized::of_written_pickle(Bytes::from_static(b"no pickle"));
        let values = [
            Value::None,
            Value::from(1),
            Value::tuple([Value::from("x"), Value::Bytes(Bytes::from_static(b"y"))]),
            Value::Serialized(damaged.clone()),
            Value::list([Value::from(1), Value::Serialized(damaged)]),
        ];
        for value in values {
            let mut written = Vec::new();
            Writer { out: &mut written }.value(&value);
            let mut content = Content {
                rest: &written,
                at: 0,
            };
            assert_eq!(content.value(), Ok(value));
            assert_eq!(content.finish(), Ok(()));
        }
    }
}
