//! The measuring writer.

use core::fmt;

use super::Token;
use crate::BufferTooSmall;
use crate::compression::measure::{append, head, short};

/// Writer for one document, with the encoding of msgpack-python: every integer
/// and every length in the shortest form, a Python `float` as
/// [`f64`](Self::f64), `bytes` as [`bin`](Self::bin).
///
/// Only [`finish`](Self::finish) reports errors. The writer keeps counting past
/// the end of the buffer, so that an empty buffer measures:
///
/// ```
/// use daskwire::msgpack::{WriteError, Writer};
///
/// fn status(writer: &mut Writer<'_>) {
///     writer.map(1).str("status").str("OK");
/// }
/// let mut measure = Writer::new(&mut []);
/// status(&mut measure);
/// assert_eq!(measure.len(), 11);
///
/// let mut buffer = [0; 11];
/// let mut writer = Writer::new(&mut buffer);
/// status(&mut writer);
/// assert_eq!(writer.finish()?, b"\x81\xa6status\xa2OK");
/// # Ok::<(), WriteError>(())
/// ```
#[derive(Debug)]
pub struct Writer<'b> {
    out: &'b mut [u8],
    /// Length of the document so far, in bytes, whether it fits or not.
    len: usize,
    /// Values still owed to the document and its open containers. Negative once
    /// a value too many was written, and from then on.
    owed: i64,
    /// A length over the maximum, or 0.
    too_long: u64,
}

/// The error of [`Writer::finish`], a fault of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum WriteError {
    /// The buffer is too small for a document that is otherwise valid.
    BufferTooSmall(BufferTooSmall),
    /// Values are missing: an array or a map declared more than were written,
    /// or the document is empty.
    Unfinished {
        /// The number of values missing.
        owed: u64,
    },
    /// More values were written than their arrays and maps declared.
    TooMany,
    /// A string, byte string, array or map is longer than the format allows
    /// (2^32 - 1).
    TooLong {
        /// Its length.
        len: u64,
    },
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BufferTooSmall(error) => write!(f, "the document: {error}"),
            Self::Unfinished { owed } => write!(
                f,
                "the document is not finished: {owed} more values were declared"
            ),
            Self::TooMany => f.write_str("more values were written than their containers declared"),
            Self::TooLong { len } => write!(
                f,
                "a value of length {len} is longer than MessagePack allows (4294967295)"
            ),
        }
    }
}

impl core::error::Error for WriteError {}

impl<'b> Writer<'b> {
    /// Creates a writer to `out`. With an empty buffer it measures.
    #[inline]
    pub const fn new(out: &'b mut [u8]) -> Self {
        Self {
            out,
            len: 0,
            owed: 1,
            too_long: 0,
        }
    }

    /// Length of the document so far, in bytes, whether it fits or not.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing has been written yet.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of values missing before the document is complete.
    #[inline]
    pub const fn owed(&self) -> u64 {
        if self.owed < 0 {
            0
        } else {
            self.owed.cast_unsigned()
        }
    }

    /// Returns the document.
    ///
    /// # Errors
    ///
    /// * [`WriteError::TooMany`], [`WriteError::TooLong`] or
    ///   [`WriteError::Unfinished`] if the calls did not form a document;
    /// * [`WriteError::BufferTooSmall`] if they did, but the buffer is too
    ///   small. The contents of the buffer are then unspecified.
    #[inline]
    pub fn finish(self) -> Result<&'b [u8], WriteError> {
        if self.owed < 0 {
            return Err(WriteError::TooMany);
        }
        if self.too_long != 0 {
            return Err(WriteError::TooLong { len: self.too_long });
        }
        if self.owed != 0 {
            return Err(WriteError::Unfinished { owed: self.owed() });
        }
        let (needed, out) = (self.len, self.out as &[u8]);
        let available = out.len();
        let short = BufferTooSmall { needed, available };
        out.get(..needed).ok_or(WriteError::BufferTooSmall(short))
    }

    /// Writes nil.
    #[inline]
    pub fn nil(&mut self) -> &mut Self {
        self.scalar().put([0xc0])
    }

    /// Writes a boolean.
    #[inline]
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.scalar().put([0xc2 | u8::from(value)])
    }

    /// Writes a non-negative integer.
    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        // PROTOCOL MSGPACK-3: the shortest form, always unsigned.
        self.scalar();
        if let Ok(small @ 0..=0x7f) = u8::try_from(value) {
            return self.put([small]);
        }
        self.len = wide_u64(self.out, self.len, value);
        self
    }

    /// Writes an integer.
    #[inline]
    pub fn i64(&mut self, value: i64) -> &mut Self {
        if let Ok(value) = u64::try_from(value) {
            return self.u64(value);
        }
        self.scalar();
        if let Ok(small @ -32..=-1) = i8::try_from(value) {
            return self.put(small.to_be_bytes());
        }
        self.len = wide_i64(self.out, self.len, value);
        self
    }

    /// Writes a single-precision float. Dask reads these but never writes them.
    #[inline]
    pub fn f32(&mut self, value: f32) -> &mut Self {
        let [a, b, c, d] = value.to_be_bytes();
        self.scalar().put([0xca, a, b, c, d])
    }

    /// Writes a double-precision float.
    #[inline]
    pub fn f64(&mut self, value: f64) -> &mut Self {
        // PROTOCOL MSGPACK-4
        self.scalar();
        self.len = head(self.out, self.len, 0xcb, value.to_be_bytes());
        self
    }

    /// Writes a string.
    ///
    /// A string that is known at compile time, such as a key, is written as one
    /// constant, including its head.
    #[inline(always)]
    pub fn str(&mut self, string: &str) -> &mut Self {
        self.str_bytes(string.as_bytes())
    }

    /// Writes a string from bytes. The caller ensures that they are UTF-8.
    #[inline(always)]
    pub fn str_bytes(&mut self, string: &[u8]) -> &mut Self {
        self.scalar();
        self.len = str_data(self.out, self.len, string, &mut self.too_long);
        self
    }

    /// Writes a byte string.
    #[inline(always)]
    pub fn bin(&mut self, data: &[u8]) -> &mut Self {
        self.scalar();
        self.len = match u8::try_from(data.len()) {
            Ok(len) => short(self.out, self.len, [0xc4, len], data),
            Err(_) => long_data(
                self.out,
                self.len,
                [0xc4, 0xc5, 0xc6],
                data,
                &mut self.too_long,
            ),
        };
        self
    }

    /// Writes the head of an array; `count` values must follow.
    #[inline]
    pub fn array(&mut self, count: u32) -> &mut Self {
        self.container(u64::from(count));
        self.container_head(count, 0x90, [0xdc, 0xdd])
    }

    /// Writes the head of a map; `count` key-value pairs must follow.
    #[inline]
    pub fn map(&mut self, count: u32) -> &mut Self {
        self.container(u64::from(count).wrapping_mul(2));
        self.container_head(count, 0x80, [0xde, 0xdf])
    }

    /// Writes an extension value.
    #[inline]
    pub fn extension(&mut self, code: i8, data: &[u8]) -> &mut Self {
        self.scalar();
        let Ok(len) = u32::try_from(data.len()) else {
            self.too_long = data.len() as u64;
            return self;
        };
        self.len = match len {
            1 => append(self.out, self.len, &[0xd4]),
            2 => append(self.out, self.len, &[0xd5]),
            4 => append(self.out, self.len, &[0xd6]),
            8 => append(self.out, self.len, &[0xd7]),
            16 => append(self.out, self.len, &[0xd8]),
            _ => long_head(self.out, self.len, [0xc7, 0xc8, 0xc9], len),
        };
        self.put(code.to_be_bytes()).append(data)
    }

    /// Writes a token that [`Reader::token`](super::Reader::token) returned.
    ///
    /// The value is written with the shortest width; floats keep theirs.
    #[inline]
    pub fn token(&mut self, token: Token<'_>) -> &mut Self {
        match token {
            Token::Nil => self.nil(),
            Token::Bool(value) => self.bool(value),
            Token::UInt(value) => self.u64(value),
            Token::Int(value) => self.i64(value),
            Token::F32(value) => self.f32(value),
            Token::F64(value) => self.f64(value),
            Token::Str(string) => self.str_bytes(string.as_bytes()),
            Token::Bin(data) => self.bin(data),
            Token::Array(count) => self.array(count),
            Token::Map(count) => self.map(count),
            Token::Ext(code, data) => self.extension(code, data),
        }
    }

    /// Copies one encoded value, for example one that
    /// [`Reader::skip`](super::Reader::skip) returned, or a key that is known
    /// at compile time:
    ///
    /// ```
    /// # use daskwire::msgpack::Writer;
    /// let mut buffer = [0; 16];
    /// let mut writer = Writer::new(&mut buffer);
    /// writer.map(1).encoded(b"\xa2op").str("ping");
    /// assert_eq!(writer.finish()?, b"\x81\xa2op\xa4ping");
    /// # Ok::<(), daskwire::msgpack::WriteError>(())
    /// ```
    ///
    /// The caller ensures that it is exactly one value.
    #[inline]
    pub fn encoded(&mut self, value: &[u8]) -> &mut Self {
        self.scalar().append(value)
    }

    /// Counts one value that is about to be written.
    #[inline]
    const fn scalar(&mut self) -> &mut Self {
        self.owed = self.owed.wrapping_sub(1);
        self
    }

    /// Counts one value that is about to be written and its `child_count`
    /// children. `child_count` is less than 2^33, so `owed` cannot overflow
    /// before 2^30 calls.
    #[inline]
    const fn container(&mut self, child_count: u64) {
        self.scalar();
        if self.owed >= 0 {
            self.owed = self.owed.saturating_add_unsigned(child_count);
        }
    }

    #[inline]
    fn container_head(&mut self, count: u32, short: u8, long: [u8; 2]) -> &mut Self {
        if let Ok(small @ 0..=15) = u8::try_from(count) {
            return self.put([short | small]);
        }
        self.len = long_head(self.out, self.len, [0, long[0], long[1]], count);
        self
    }

    #[inline]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) -> &mut Self {
        self.len = append(self.out, self.len, &bytes);
        self
    }

    #[inline]
    fn append(&mut self, bytes: &[u8]) -> &mut Self {
        self.len = append(self.out, self.len, bytes);
        self
    }
}

// The functions below take the length so far and return the new one. They do
// not take the writer, so that a run of calls keeps it in registers.

/// Writes a string; one that is known at compile time becomes a constant.
#[inline]
fn str_data(out: &mut [u8], at: usize, string: &[u8], too_long: &mut u64) -> usize {
    // PROTOCOL MSGPACK-5: the smallest head.
    match u8::try_from(string.len()) {
        Ok(len @ 0..=31) => short(out, at, [0xa0 | len], string),
        Ok(len) => short(out, at, [0xd9, len], string),
        Err(_) => long_data(out, at, [0xd9, 0xda, 0xdb], string, too_long),
    }
}

#[inline(never)]
fn long_data(
    out: &mut [u8],
    at: usize,
    markers: [u8; 3],
    data: &[u8],
    too_long: &mut u64,
) -> usize {
    let Ok(len) = u32::try_from(data.len()) else {
        *too_long = data.len() as u64;
        return at;
    };
    let at = long_head(out, at, markers, len);
    append(out, at, data)
}

/// Out of line: a call costs less than the code size in every caller.
#[inline(never)]
fn wide_u64(out: &mut [u8], at: usize, value: u64) -> usize {
    if let Ok(value) = u8::try_from(value) {
        append(out, at, &[0xcc, value])
    } else if let Ok(value) = u16::try_from(value) {
        head(out, at, 0xcd, value.to_be_bytes())
    } else if let Ok(value) = u32::try_from(value) {
        head(out, at, 0xce, value.to_be_bytes())
    } else {
        head(out, at, 0xcf, value.to_be_bytes())
    }
}

#[inline(never)]
fn wide_i64(out: &mut [u8], at: usize, value: i64) -> usize {
    if let Ok(value) = i8::try_from(value) {
        append(out, at, &[0xd0, value.cast_unsigned()])
    } else if let Ok(value) = i16::try_from(value) {
        head(out, at, 0xd1, value.to_be_bytes())
    } else if let Ok(value) = i32::try_from(value) {
        head(out, at, 0xd2, value.to_be_bytes())
    } else {
        head(out, at, 0xd3, value.to_be_bytes())
    }
}

/// Writes the head of a container or of data, with the shortest of three markers. A
/// marker of 0 is absent.
#[inline(never)]
fn long_head(out: &mut [u8], at: usize, markers: [u8; 3], len: u32) -> usize {
    match (u8::try_from(len), u16::try_from(len)) {
        (Ok(len), _) if markers[0] != 0 => append(out, at, &[markers[0], len]),
        (_, Ok(len)) => head(out, at, markers[1], len.to_be_bytes()),
        _ => head(out, at, markers[2], len.to_be_bytes()),
    }
}
