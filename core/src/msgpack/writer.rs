//! The measuring writer.

use core::fmt;

use super::{TIMESTAMP, Token};
use crate::BufferTooSmall;

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
    /// Values still owed to open containers, and to the document itself.
    owed: u64,
    fault: Option<Fault>,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    TooMany,
    TooLong(u64),
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
            fault: None,
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
        self.owed
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
        match self.fault {
            None => {}
            Some(Fault::TooMany) => return Err(WriteError::TooMany),
            Some(Fault::TooLong(len)) => return Err(WriteError::TooLong { len }),
        }
        if self.owed != 0 {
            return Err(WriteError::Unfinished { owed: self.owed });
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
        self.value(0).put([0xc0])
    }

    /// Writes a boolean.
    #[inline]
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.value(0).put([0xc2 | u8::from(value)])
    }

    /// Writes an integer of zero or more.
    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.value(0);
        if let Ok(small) = u8::try_from(value) {
            if small < 0x80 {
                self.put([small])
            } else {
                self.put([0xcc, small])
            }
        } else if let Ok(value) = u16::try_from(value) {
            self.head(0xcd, value.to_be_bytes())
        } else if let Ok(value) = u32::try_from(value) {
            self.head(0xce, value.to_be_bytes())
        } else {
            self.head(0xcf, value.to_be_bytes())
        }
    }

    /// Writes an integer.
    #[inline]
    pub fn i64(&mut self, value: i64) -> &mut Self {
        if let Ok(value) = u64::try_from(value) {
            return self.u64(value);
        }
        self.value(0);
        if let Ok(small) = i8::try_from(value) {
            if small >= -32 {
                self.put(small.to_be_bytes())
            } else {
                self.head(0xd0, small.to_be_bytes())
            }
        } else if let Ok(value) = i16::try_from(value) {
            self.head(0xd1, value.to_be_bytes())
        } else if let Ok(value) = i32::try_from(value) {
            self.head(0xd2, value.to_be_bytes())
        } else {
            self.head(0xd3, value.to_be_bytes())
        }
    }

    /// Writes a float of single precision. Dask never does, and reads it.
    #[inline]
    pub fn f32(&mut self, value: f32) -> &mut Self {
        self.value(0).head(0xca, value.to_be_bytes())
    }

    /// Writes a float of double precision.
    #[inline]
    pub fn f64(&mut self, value: f64) -> &mut Self {
        self.value(0).head(0xcb, value.to_be_bytes())
    }

    /// Writes text.
    #[inline]
    pub fn str(&mut self, text: &str) -> &mut Self {
        self.str_bytes(text.as_bytes())
    }

    /// Writes text that is at hand as bytes; whether they are UTF-8 is the
    /// caller's affair.
    #[inline]
    pub fn str_bytes(&mut self, text: &[u8]) -> &mut Self {
        self.value(0);
        // Short text, head and all, is what messages are made of.
        if let Ok(len @ 0..=31) = u8::try_from(text.len()) {
            return self.put([0xa0 | len]).append(text);
        }
        self.long_head(text.len(), [0xd9, 0xda, 0xdb]).append(text)
    }

    /// Writes a byte string.
    #[inline]
    pub fn bin(&mut self, data: &[u8]) -> &mut Self {
        self.value(0)
            .long_head(data.len(), [0xc4, 0xc5, 0xc6])
            .append(data)
    }

    /// Writes the head of an array; `count` values are to follow.
    #[inline]
    pub fn array(&mut self, count: u32) -> &mut Self {
        self.value(u64::from(count));
        self.container_head(count, 0x90, [0xdc, 0xdd])
    }

    /// Writes the head of a map; `count` pairs of key and value are to follow.
    #[inline]
    pub fn map(&mut self, count: u32) -> &mut Self {
        self.value(u64::from(count).wrapping_mul(2));
        self.container_head(count, 0x80, [0xde, 0xdf])
    }

    /// Writes an extension type with its data.
    #[inline]
    pub fn extension(&mut self, code: i8, data: &[u8]) -> &mut Self {
        self.value(0);
        match data.len() {
            1 => self.put([0xd4]),
            2 => self.put([0xd5]),
            4 => self.put([0xd6]),
            8 => self.put([0xd7]),
            16 => self.put([0xd8]),
            len => self.long_head(len, [0xc7, 0xc8, 0xc9]),
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
                self.value(0).put([0xc7, 12]).put(TIMESTAMP.to_be_bytes());
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
        self.value(0).append(value)
    }

    /// Accounts for one value that is about to be written and brings
    /// `child_count` more.
    #[inline]
    fn value(&mut self, child_count: u64) -> &mut Self {
        match self.owed.checked_sub(1) {
            // Each array or map adds less than 2^33, so this cannot wrap
            // before 2^31 of them have been written.
            Some(owed) => self.owed = owed.saturating_add(child_count),
            None => self.too_many(),
        }
        self
    }

    #[cold]
    fn too_many(&mut self) {
        self.fault.get_or_insert(Fault::TooMany);
    }

    #[inline]
    fn container_head(&mut self, count: u32, short: u8, long: [u8; 2]) -> &mut Self {
        if let Ok(small @ 0..=15) = u8::try_from(count) {
            self.put([short | small])
        } else if let Ok(count) = u16::try_from(count) {
            self.head(long[0], count.to_be_bytes())
        } else {
            self.head(long[1], count.to_be_bytes())
        }
    }

    #[inline]
    fn long_head(&mut self, len: usize, markers: [u8; 3]) -> &mut Self {
        if let Ok(len) = u8::try_from(len) {
            self.put([markers[0], len])
        } else if let Ok(len) = u16::try_from(len) {
            self.head(markers[1], len.to_be_bytes())
        } else if let Ok(len) = u32::try_from(len) {
            self.head(markers[2], len.to_be_bytes())
        } else {
            self.fault.get_or_insert(Fault::TooLong(len as u64));
            self
        }
    }

    #[inline]
    fn head<const N: usize>(&mut self, marker: u8, bytes: [u8; N]) -> &mut Self {
        if let Some((first, rest)) = self
            .out
            .get_mut(self.len..)
            .and_then(<[u8]>::split_first_mut)
            && let Some(place) = rest.first_chunk_mut::<N>()
        {
            *first = marker;
            *place = bytes;
        }
        self.len = self.len.saturating_add(1).saturating_add(N);
        self
    }

    #[inline]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) -> &mut Self {
        if let Some(place) = self
            .out
            .get_mut(self.len..)
            .and_then(<[u8]>::first_chunk_mut::<N>)
        {
            *place = bytes;
        }
        self.len = self.len.saturating_add(N);
        self
    }

    #[inline]
    fn append(&mut self, bytes: &[u8]) -> &mut Self {
        if let Some(place) = self
            .out
            .get_mut(self.len..)
            .and_then(|space| space.get_mut(..bytes.len()))
        {
            place.copy_from_slice(bytes);
        }
        self.len = self.len.saturating_add(bytes.len());
        self
    }
}
