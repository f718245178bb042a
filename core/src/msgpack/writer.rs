//! The measuring writer.

use core::fmt;

use super::{TIMESTAMP, Token};
use crate::BufferTooSmall;
use crate::measure::{append, head, put, short};

/// Writes one document into a buffer, as msgpack-python would write it: every
/// integer and every length in the shortest form, every Python `float` as
/// [`f64`](Self::f64), `bytes` as [`bin`](Self::bin).
///
/// No method fails; [`finish`](Self::finish) says how it went. A writer goes on
/// counting where the buffer ends, so an empty buffer measures:
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
    /// Bytes of the document so far, whether they fit or not.
    len: usize,
    /// Values still owed to open containers, and to the document itself. Less
    /// than none once there was a value that nobody asked for, and ever after.
    owed: i64,
    /// A length that was too long, or 0.
    too_long: u64,
}

/// Why a document could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteError {
    /// The buffer is too small; the rest of the document is right.
    BufferTooSmall(BufferTooSmall),
    /// Values are missing: an array or a map announced more than was written,
    /// or nothing was written at all.
    Unfinished {
        /// How many values are missing.
        owed: u64,
    },
    /// More values were written than the arrays and maps around them announced.
    TooMany,
    /// A text, byte string, array or map that is longer than the format allows
    /// (2^32 - 1).
    TooLong {
        /// Its length.
        len: u64,
    },
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BufferTooSmall(error) => error.fmt(f),
            Self::Unfinished { owed } => write!(
                f,
                "the document is not finished: {owed} more values were announced"
            ),
            Self::TooMany => {
                f.write_str("more values were written than the containers around them announced")
            }
            Self::TooLong { len } => write!(
                f,
                "a value of length {len} is longer than MessagePack allows (4294967295)"
            ),
        }
    }
}

impl core::error::Error for WriteError {}

impl From<BufferTooSmall> for WriteError {
    fn from(error: BufferTooSmall) -> Self {
        Self::BufferTooSmall(error)
    }
}

impl<'b> Writer<'b> {
    /// Writes into `out`. An empty buffer measures.
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

    /// Values that are still owed before the document is complete.
    #[inline]
    pub const fn owed(&self) -> u64 {
        if self.owed < 0 {
            0
        } else {
            self.owed.cast_unsigned()
        }
    }

    /// The document.
    ///
    /// # Errors
    ///
    /// * [`WriteError::TooMany`], [`WriteError::TooLong`] or
    ///   [`WriteError::Unfinished`] if no document came about;
    /// * [`WriteError::BufferTooSmall`] if one did, but the buffer does not
    ///   hold it. What the buffer contains then means nothing.
    #[inline]
    pub fn finish(self) -> Result<&'b [u8], WriteError> {
        self.finish_mut().map(|(document, _)| &*document)
    }

    /// The document, and what is left of the buffer.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    #[inline]
    pub fn finish_mut(self) -> Result<(&'b mut [u8], &'b mut [u8]), WriteError> {
        if self.owed < 0 {
            return Err(WriteError::TooMany);
        }
        if self.too_long != 0 {
            return Err(WriteError::TooLong { len: self.too_long });
        }
        if self.owed != 0 {
            return Err(WriteError::Unfinished { owed: self.owed() });
        }
        let available = self.out.len();
        self.out
            .split_at_mut_checked(self.len)
            .ok_or(WriteError::BufferTooSmall(BufferTooSmall {
                needed: self.len,
                available,
            }))
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

    /// Writes an integer of zero or more.
    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        // PROTOCOL MSGPACK-3: the smallest form, never one with a sign.
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

    /// Writes a float of single precision. Dask never does, and reads it.
    #[inline]
    pub fn f32(&mut self, value: f32) -> &mut Self {
        let [a, b, c, d] = value.to_be_bytes();
        self.scalar().put([0xca, a, b, c, d])
    }

    /// Writes a float of double precision.
    #[inline]
    pub fn f64(&mut self, value: f64) -> &mut Self {
        // PROTOCOL MSGPACK-4
        self.scalar();
        self.len = head(self.out, self.len, 0xcb, value.to_be_bytes());
        self
    }

    /// Writes text.
    ///
    /// Text that is known at compile time, such as a key, is written as one
    /// constant, head and all.
    #[inline(always)]
    pub fn str(&mut self, text: &str) -> &mut Self {
        self.str_bytes(text.as_bytes())
    }

    /// Writes text that is at hand as bytes; whether they are UTF-8 is the
    /// caller's affair.
    #[inline(always)]
    pub fn str_bytes(&mut self, text: &[u8]) -> &mut Self {
        self.scalar();
        self.len = str_data(self.out, self.len, text, &mut self.too_long);
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

    /// Writes the head of an array; `count` values are to follow.
    #[inline]
    pub fn array(&mut self, count: u32) -> &mut Self {
        self.container(u64::from(count));
        self.container_head(count, 0x90, [0xdc, 0xdd])
    }

    /// Writes the head of a map; `count` pairs of key and value are to follow.
    #[inline]
    pub fn map(&mut self, count: u32) -> &mut Self {
        self.container(u64::from(count).wrapping_mul(2));
        self.container_head(count, 0x80, [0xde, 0xdf])
    }

    /// Writes an extension type with its data.
    #[inline]
    pub fn extension(&mut self, code: i8, data: &[u8]) -> &mut Self {
        self.scalar();
        let Ok(len) = u32::try_from(data.len()) else {
            self.too_long = data.len() as u64;
            return self;
        };
        self.len = match len {
            1 => put(self.out, self.len, [0xd4]),
            2 => put(self.out, self.len, [0xd5]),
            4 => put(self.out, self.len, [0xd6]),
            8 => put(self.out, self.len, [0xd7]),
            16 => put(self.out, self.len, [0xd8]),
            _ => long_head(self.out, self.len, [0xc7, 0xc8, 0xc9], len),
        };
        self.put(code.to_be_bytes()).append(data)
    }

    /// Writes a timestamp: seconds since 1970, and nanoseconds below 10^9, in
    /// the shortest of the three forms of the specification.
    #[inline]
    pub fn timestamp(&mut self, seconds: i64, nanoseconds: u32) -> &mut Self {
        match (u32::try_from(seconds), u64::try_from(seconds)) {
            (Ok(seconds), _) if nanoseconds == 0 => {
                self.extension(TIMESTAMP, &seconds.to_be_bytes())
            }
            (_, Ok(small)) if small >> 34 == 0 && nanoseconds < 1 << 30 => {
                let packed = u64::from(nanoseconds) << 34 | small;
                self.extension(TIMESTAMP, &packed.to_be_bytes())
            }
            _ => {
                self.scalar().put([0xc7, 12]).put(TIMESTAMP.to_be_bytes());
                self.put(nanoseconds.to_be_bytes())
                    .put(seconds.to_be_bytes())
            }
        }
    }

    /// Writes a token as [`Reader::token`](super::Reader::token) gave it.
    ///
    /// The value stays the same; its width becomes the shortest, except for
    /// that of a float.
    #[inline]
    pub fn token(&mut self, token: Token<'_>) -> &mut Self {
        match token {
            Token::Nil => self.nil(),
            Token::Bool(value) => self.bool(value),
            Token::UInt(value) => self.u64(value),
            Token::Int(value) => self.i64(value),
            Token::F32(value) => self.f32(value),
            Token::F64(value) => self.f64(value),
            Token::Str(text) => self.str_bytes(text.as_bytes()),
            Token::Bin(data) => self.bin(data),
            Token::Array(count) => self.array(count),
            Token::Map(count) => self.map(count),
            Token::Ext(code, data) => self.extension(code, data),
        }
    }

    /// Copies one value that is encoded already, such as what
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
    /// That it is exactly one value is the caller's affair.
    #[inline]
    pub fn encoded(&mut self, value: &[u8]) -> &mut Self {
        self.scalar().append(value)
    }

    /// Accounts for one value that is about to be written.
    #[inline]
    const fn scalar(&mut self) -> &mut Self {
        self.owed = self.owed.wrapping_sub(1);
        self
    }

    /// Accounts for one value that is about to be written and brings
    /// `child_count` more: less than 2^33, of which an i64 holds 2^30.
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
        self.len = put(self.out, self.len, bytes);
        self
    }

    #[inline]
    fn append(&mut self, bytes: &[u8]) -> &mut Self {
        self.len = append(self.out, self.len, bytes);
        self
    }
}

// What follows takes the length so far and returns the new one. None of it
// takes the writer, so that a run of calls keeps the writer in registers.

/// Text that is known when a program is compiled becomes constants here.
#[inline]
fn str_data(out: &mut [u8], at: usize, text: &[u8], too_long: &mut u64) -> usize {
    // PROTOCOL MSGPACK-5: the smallest head.
    match u8::try_from(text.len()) {
        Ok(len @ 0..=31) => short(out, at, [0xa0 | len], text),
        Ok(len) => short(out, at, [0xd9, len], text),
        Err(_) => long_data(out, at, [0xd9, 0xda, 0xdb], text, too_long),
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

/// Out of line: a call costs less than what this would add to every caller.
#[inline(never)]
fn wide_u64(out: &mut [u8], at: usize, value: u64) -> usize {
    if let Ok(value) = u8::try_from(value) {
        put(out, at, [0xcc, value])
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
        put(out, at, [0xd0, value.cast_unsigned()])
    } else if let Ok(value) = i16::try_from(value) {
        head(out, at, 0xd1, value.to_be_bytes())
    } else if let Ok(value) = i32::try_from(value) {
        head(out, at, 0xd2, value.to_be_bytes())
    } else {
        head(out, at, 0xd3, value.to_be_bytes())
    }
}

/// The head of a container or of data, by the shortest of three markers. A
/// marker of 0 is none.
#[inline(never)]
fn long_head(out: &mut [u8], at: usize, markers: [u8; 3], len: u32) -> usize {
    match (u8::try_from(len), u16::try_from(len)) {
        (Ok(len), _) if markers[0] != 0 => put(out, at, [markers[0], len]),
        (_, Ok(len)) => head(out, at, markers[1], len.to_be_bytes()),
        _ => head(out, at, markers[2], len.to_be_bytes()),
    }
}
