//! The encoding of records, which journals and recordings share: a byte for the kind, the length of the
//! content, and the content. Numbers are LEB128; byte strings follow their length.

use core::fmt;

use bytes::Bytes;
use daskwire::msgpack::Reader as Document;
use daskwire_messages::graph::Calls;
use daskwire_messages::protocol::{Body, Opener};
use daskwire_messages::scratch::MessageScratch;
use daskwire_messages::{Key, Serialized, Value};

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

daskwire::kinds! {
    RecordError: |_| ErrorKind::Invalid;
}

/// Writes the content of a record.
pub(crate) struct Writer<'o> {
    out: &'o mut Vec<u8>,
}

impl<'o> Writer<'o> {
    /// A writer that appends to `out`.
    pub(crate) const fn appending(out: &'o mut Vec<u8>) -> Self {
        Self { out }
    }
}

impl Writer<'_> {
    /// Appends a record of a kind.
    pub(crate) fn record(out: &mut Vec<u8>, code: u8, content: impl FnOnce(&mut Writer<'_>)) {
        out.push(code);
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

    pub(crate) fn number(&mut self, mut number: u64) {
        while number > 0x7f {
            self.out.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.out.push(number as u8);
    }

    /// Writes a number so that small ones of either sign are short.
    pub(crate) fn signed(&mut self, number: i64) {
        self.number(((number << 1) ^ (number >> 63)) as u64);
    }

    pub(crate) fn float(&mut self, number: f64) {
        self.out.extend_from_slice(&number.to_le_bytes());
    }

    /// Writes bytes whose length is known to the reader.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    pub(crate) fn strings(&mut self, strings: &[impl AsRef<str>]) {
        self.number(strings.len() as u64);
        for string in strings {
            self.bytes(string.as_ref().as_bytes());
        }
    }

    pub(crate) fn key(&mut self, key: &Key) {
        self.bytes(key.as_msgpack());
    }

    pub(crate) fn keys(&mut self, keys: &[Key]) {
        let keys: Vec<u8> = keys.iter().flat_map(Key::as_msgpack).copied().collect();
        self.bytes(&keys);
    }

    pub(crate) fn calls(&mut self, calls: Calls) {
        let Calls {
            native,
            python,
            replaceable,
        } = calls;
        self.number(u64::from(native) | u64::from(python) << 1 | u64::from(replaceable) << 2);
    }

    pub(crate) fn payload(&mut self, payload: &Serialized) {
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
    pub(crate) fn value(&mut self, value: &Value) {
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

/// The content of a record that is left to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content<'r> {
    rest: &'r [u8],
    at: usize,
}

/// A record, whose content is read field by field.
pub(crate) struct Record<'r> {
    pub(crate) code: u8,
    pub(crate) content: Content<'r>,
    /// The record as it was written.
    pub(crate) raw: &'r [u8],
}

/// What is expected instead of a record of an unknown kind.
pub(crate) const LATER: &str = "a kind of record that this version knows; a later version wrote it";

impl<'r> Content<'r> {
    /// Reads a record; `None` at the end.
    pub(crate) fn record(&mut self) -> Result<Option<Record<'r>>, RecordError> {
        let all = self.rest;
        let start = self.at;
        let Some(code) = all.first() else {
            return Ok(None);
        };
        self.take(1, "a kind of record")?;
        let at = self.len_at()?;
        let content = self.bytes()?;
        Ok(Some(Record {
            code: *code,
            content: Content { rest: content, at },
            raw: &all[..self.at - start],
        }))
    }

    /// The offset of what is left.
    pub(crate) const fn position(&self) -> usize {
        self.at
    }

    /// What is left.
    pub(crate) const fn rest(&self) -> &'r [u8] {
        self.rest
    }

    /// The number of bytes that are left.
    pub(crate) const fn len(&self) -> usize {
        self.rest.len()
    }

    pub(crate) const fn of(bytes: &'r [u8]) -> Self {
        Self { rest: bytes, at: 0 }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn expected(&self, expected: &'static str) -> RecordError {
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

    pub(crate) fn take(
        &mut self,
        len: usize,
        expected: &'static str,
    ) -> Result<&'r [u8], RecordError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| self.expected(expected))?;
        self.rest = rest;
        self.at += len;
        Ok(taken)
    }

    pub(crate) fn number(&mut self) -> Result<u64, RecordError> {
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

    pub(crate) fn signed(&mut self) -> Result<i64, RecordError> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    pub(crate) fn float(&mut self) -> Result<f64, RecordError> {
        let bytes = self.take(8, "a float of 8 bytes")?;
        let float = f64::from_le_bytes(bytes.try_into().unwrap_or_default());
        if float.is_nan() {
            return Err(self.expected("a float that is a number"));
        }
        Ok(float)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'r [u8], RecordError> {
        let len = self.number()?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.take(len, "as many bytes as the length says")
    }

    pub(crate) fn string(&mut self) -> Result<&'r str, RecordError> {
        let at = *self;
        core::str::from_utf8(self.bytes()?).map_err(|_| at.expected("a string in UTF-8"))
    }

    /// Reads the length of a list whose items have at least one byte each.
    pub(crate) fn count(&mut self) -> Result<usize, RecordError> {
        let at = *self;
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        match count <= self.rest.len() {
            true => Ok(count),
            false => Err(at.expected("a number of items that fit into the record")),
        }
    }

    pub(crate) fn strings(&mut self) -> Result<Vec<String>, RecordError> {
        let count = self.count()?;
        (0..count).map(|_| Ok(self.string()?.to_owned())).collect()
    }

    pub(crate) fn key(&mut self) -> Result<Key, RecordError> {
        let at = *self;
        let mut document = Document::new(self.bytes()?);
        let key = Key::read(&mut document).ok();
        key.filter(|_| document.finish().is_ok())
            .ok_or_else(|| at.expected("a key"))
    }

    /// Reads keys that follow each other, to the end of a byte string.
    pub(crate) fn keys(&mut self) -> Result<Vec<Key>, RecordError> {
        let at = *self;
        let keys = Self::of(self.bytes()?).keys_to_end();
        keys.map_err(|_| at.expected("keys"))
    }

    /// Reads keys that follow each other, to the end.
    pub(crate) fn keys_to_end(self) -> Result<Vec<Key>, RecordError> {
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

    pub(crate) fn calls(&mut self) -> Result<Calls, RecordError> {
        let bits = self.number()?;
        Ok(Calls {
            native: bits & 1 != 0,
            python: bits & 2 != 0,
            replaceable: bits & 4 != 0,
        })
    }

    fn parts(&mut self, count: usize) -> Result<Serialized, RecordError> {
        let at = *self;
        let mut message = Vec::with_capacity(count);
        for _ in 0..count {
            message.push(Bytes::copy_from_slice(self.bytes()?));
        }
        Serialized::of_message(message).ok_or_else(|| at.expected("a payload"))
    }

    pub(crate) fn payload(&mut self) -> Result<Serialized, RecordError> {
        let count = self.count()?;
        self.parts(count)
    }

    pub(crate) fn value(&mut self) -> Result<Value, RecordError> {
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

    pub(crate) fn finish(self) -> Result<(), RecordError> {
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
