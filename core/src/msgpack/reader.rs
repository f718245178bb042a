//! The pull reader.

use super::{Kind, Malformed, MalformedKind, RawStr, Text, Token};
use crate::Limits;

/// Reads one document, token by token, without copying or building anything.
///
/// A method that fails leaves the reader where it was. Every number that the
/// document announces is compared with the bytes that are left and with the
/// limits before anything is done with it. No method recurses.
///
/// Kinds are matched, widths are not: [`u64`](Self::u64) reads an integer of
/// any width, and [`f64`](Self::f64) a float of either.
///
/// # Common issues
///
/// * Dask's maps have keys that are not text: arrays (Python's tuples) and
///   numbers. Use [`token`](Self::token) or [`skip`](Self::skip) for keys.
/// * After the document, call [`finish`](Self::finish): bytes that follow it
///   are an error for every Dask release (PROTOCOL MSGPACK-8).
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// Length of the whole document, so that offsets need no counter.
    len: usize,
    items_left: u32,
    limits: ReaderLimits,
}

#[derive(Clone, Copy, Debug)]
struct ReaderLimits {
    depth: u32,
    items: u32,
}

/// Levels that [`Reader::skip`] keeps at hand; real messages have at most 6.
const SHALLOW: usize = 32;

impl<'a> Reader<'a> {
    /// Reads `document` under the limits of [`Limits::HOST`].
    pub const fn new(document: &'a [u8]) -> Self {
        Self::with_limits(document, &Limits::HOST)
    }

    /// Reads `document` under `limits`, of which `depth` and `items` count
    /// here. (`document_len` is for whoever provides the document.)
    pub const fn with_limits(document: &'a [u8], limits: &Limits) -> Self {
        let depth = if limits.depth < Limits::MAX_DEPTH {
            limits.depth
        } else {
            Limits::MAX_DEPTH
        };
        Self {
            rest: document,
            len: document.len(),
            items_left: limits.items,
            limits: ReaderLimits {
                depth,
                items: limits.items,
            },
        }
    }

    /// Offset of the next token in the document, in bytes.
    #[inline]
    pub const fn position(&self) -> usize {
        self.len.wrapping_sub(self.rest.len())
    }

    /// The bytes that have not been read yet.
    #[inline]
    pub const fn remaining(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether all has been read.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Moves to `rest`, which is the end part of the same document.
    pub(crate) const fn seek(&mut self, rest: &'a [u8]) {
        self.rest = rest;
    }

    /// Ends reading.
    ///
    /// # Errors
    ///
    /// [`MalformedKind::Trailing`] if there are bytes left.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(self.fault(MalformedKind::Trailing {
                len: self.rest.len(),
            }))
        }
    }

    /// Reads the next token: a whole scalar, or the head of an array or map.
    ///
    /// # Errors
    ///
    /// * [`MalformedKind::End`], [`MalformedKind::Reserved`] or
    ///   [`MalformedKind::Claim`] if there is no valid token;
    /// * [`MalformedKind::TooManyItems`] if a head announces more values than
    ///   the limit leaves.
    #[inline]
    pub fn token(&mut self) -> Result<Token<'a>, Malformed> {
        let Some((&marker, rest)) = self.rest.split_first() else {
            return Err(self.end(1));
        };
        let (token, rest) = match marker {
            0x00..=0x7f => (Token::UInt(u64::from(marker)), rest),
            0xe0..=0xff => (Token::Int(i64::from(marker.cast_signed())), rest),
            0xa0..=0xbf => {
                let (text, rest) = self.take(rest, usize::from(marker & 0x1f))?;
                (Token::Str(RawStr::new(text)), rest)
            }
            0x80..=0x8f => {
                let count = u32::from(marker & 0x0f);
                self.claim(rest, u64::from(count).wrapping_mul(2))?;
                (Token::Map(count), rest)
            }
            0x90..=0x9f => {
                let count = u32::from(marker & 0x0f);
                self.claim(rest, u64::from(count))?;
                (Token::Array(count), rest)
            }
            0xc0 => (Token::Nil, rest),
            0xc1 => return Err(self.fault(MalformedKind::Reserved)),
            0xc2 => (Token::Bool(false), rest),
            0xc3 => (Token::Bool(true), rest),
            0xc4..=0xc6 => {
                let (len, rest) = self.length(rest, marker & 3)?;
                let (data, rest) = self.take(rest, len)?;
                (Token::Bin(data), rest)
            }
            0xc7..=0xc9 => {
                let (len, rest) = self.length(rest, marker.wrapping_add(1) & 3)?;
                self.ext(rest, len)?
            }
            0xca => {
                let (bytes, rest) = self.number(rest)?;
                (Token::F32(f32::from_be_bytes(bytes)), rest)
            }
            0xcb => {
                let (bytes, rest) = self.number(rest)?;
                (Token::F64(f64::from_be_bytes(bytes)), rest)
            }
            0xcc => {
                let (bytes, rest) = self.number(rest)?;
                (Token::UInt(u64::from(u8::from_be_bytes(bytes))), rest)
            }
            0xcd => {
                let (bytes, rest) = self.number(rest)?;
                (Token::UInt(u64::from(u16::from_be_bytes(bytes))), rest)
            }
            0xce => {
                let (bytes, rest) = self.number(rest)?;
                (Token::UInt(u64::from(u32::from_be_bytes(bytes))), rest)
            }
            0xcf => {
                let (bytes, rest) = self.number(rest)?;
                (Token::UInt(u64::from_be_bytes(bytes)), rest)
            }
            0xd0 => {
                let (bytes, rest) = self.number(rest)?;
                (integer(i64::from(i8::from_be_bytes(bytes))), rest)
            }
            0xd1 => {
                let (bytes, rest) = self.number(rest)?;
                (integer(i64::from(i16::from_be_bytes(bytes))), rest)
            }
            0xd2 => {
                let (bytes, rest) = self.number(rest)?;
                (integer(i64::from(i32::from_be_bytes(bytes))), rest)
            }
            0xd3 => {
                let (bytes, rest) = self.number(rest)?;
                (integer(i64::from_be_bytes(bytes)), rest)
            }
            // 0xd4 is 1 byte, 0xd5 is 2, and so on to 16.
            0xd4..=0xd8 => self.ext(rest, 1 << (marker & 0x0f).wrapping_sub(4))?,
            0xd9..=0xdb => {
                let (len, rest) = self.length(rest, marker.wrapping_sub(1) & 3)?;
                let (text, rest) = self.take(rest, len)?;
                (Token::Str(RawStr::new(text)), rest)
            }
            0xdc..=0xdf => {
                let (count, rest) = if marker & 1 == 0 {
                    let (bytes, rest) = self.number(rest)?;
                    (u32::from(u16::from_be_bytes(bytes)), rest)
                } else {
                    let (bytes, rest) = self.number(rest)?;
                    (u32::from_be_bytes(bytes), rest)
                };
                let token = if marker < 0xde {
                    Token::Array(count)
                } else {
                    Token::Map(count)
                };
                self.claim(rest, token.child_count())?;
                (token, rest)
            }
        };
        self.rest = rest;
        Ok(token)
    }

    /// The token that [`token`](Self::token) would read, without moving.
    ///
    /// # Errors
    ///
    /// As [`token`](Self::token).
    #[inline]
    pub fn peek(&self) -> Result<Token<'a>, Malformed> {
        let mut ahead = *self;
        ahead.token()
    }

    /// Reads nil.
    ///
    /// # Errors
    ///
    /// [`MalformedKind::Unexpected`] if there is another value, or as
    /// [`token`](Self::token).
    #[inline]
    pub fn nil(&mut self) -> Result<(), Malformed> {
        self.expect(Kind::Nil, |token| match token {
            Token::Nil => Some(()),
            _ => None,
        })
    }

    /// Reads a boolean.
    ///
    /// # Errors
    ///
    /// As [`nil`](Self::nil).
    #[inline]
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        self.expect(Kind::Bool, |token| match token {
            Token::Bool(value) => Some(value),
            _ => None,
        })
    }

    /// Reads an integer of zero or more.
    ///
    /// # Errors
    ///
    /// [`MalformedKind::OutOfRange`] if it is negative, or as
    /// [`nil`](Self::nil).
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.expect(Kind::Integer, |token| match token {
            Token::UInt(value) => Some(value),
            _ => None,
        })
    }

    /// Reads an integer that may be negative.
    ///
    /// # Errors
    ///
    /// [`MalformedKind::OutOfRange`] above `i64::MAX`, or as
    /// [`nil`](Self::nil).
    #[inline]
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.expect(Kind::Integer, |token| match token {
            Token::UInt(value) => i64::try_from(value).ok(),
            Token::Int(value) => Some(value),
            _ => None,
        })
    }

    /// Reads a float of either width.
    ///
    /// # Errors
    ///
    /// As [`nil`](Self::nil); an integer is not a float.
    #[inline]
    pub fn f64(&mut self) -> Result<f64, Malformed> {
        self.expect(Kind::Float, |token| match token {
            Token::F64(value) => Some(value),
            Token::F32(value) => Some(f64::from(value)),
            _ => None,
        })
    }

    /// Reads text and checks that it is UTF-8.
    ///
    /// # Errors
    ///
    /// [`MalformedKind::NotUtf8`], or as [`nil`](Self::nil).
    #[inline]
    pub fn str(&mut self) -> Result<Text<'a>, Malformed> {
        let before = *self;
        let text = self.raw_str()?;
        match text.check() {
            Ok(text) => Ok(text),
            Err(error) => {
                *self = before;
                Err(self.fault(MalformedKind::NotUtf8 {
                    valid_len: error.valid_up_to(),
                }))
            }
        }
    }

    /// Reads text without checking it.
    ///
    /// # Errors
    ///
    /// As [`nil`](Self::nil).
    #[inline]
    pub fn raw_str(&mut self) -> Result<RawStr<'a>, Malformed> {
        // Most text in a message is shorter than 32 bytes.
        if let Some((&marker @ 0xa0..=0xbf, rest)) = self.rest.split_first()
            && let Some((text, rest)) = rest.split_at_checked(usize::from(marker & 0x1f))
        {
            self.rest = rest;
            return Ok(RawStr::new(text));
        }
        self.expect(Kind::Str, |token| match token {
            Token::Str(text) => Some(text),
            _ => None,
        })
    }

    /// Reads a byte string.
    ///
    /// # Errors
    ///
    /// As [`nil`](Self::nil); text is not a byte string.
    #[inline]
    pub fn bin(&mut self) -> Result<&'a [u8], Malformed> {
        self.expect(Kind::Bin, |token| match token {
            Token::Bin(data) => Some(data),
            _ => None,
        })
    }

    /// Reads the head of an array: how many elements follow.
    ///
    /// # Errors
    ///
    /// As [`nil`](Self::nil).
    #[inline]
    pub fn array(&mut self) -> Result<u32, Malformed> {
        self.expect(Kind::Array, |token| match token {
            Token::Array(count) => Some(count),
            _ => None,
        })
    }

    /// Reads the head of a map: how many pairs of key and value follow.
    ///
    /// # Errors
    ///
    /// As [`nil`](Self::nil).
    #[inline]
    pub fn map(&mut self) -> Result<u32, Malformed> {
        self.expect(Kind::Map, |token| match token {
            Token::Map(count) => Some(count),
            _ => None,
        })
    }

    /// Reads an extension type and its data.
    ///
    /// # Errors
    ///
    /// As [`nil`](Self::nil).
    #[inline]
    pub fn extension(&mut self) -> Result<(i8, &'a [u8]), Malformed> {
        self.expect(Kind::Ext, |token| match token {
            Token::Ext(code, data) => Some((code, data)),
            _ => None,
        })
    }

    /// Skips one value with all that is in it, and returns its bytes.
    ///
    /// The bytes are a document of their own, so that a value can be kept, or
    /// copied into another message, without being understood. Text in it is
    /// not checked.
    ///
    /// # Errors
    ///
    /// [`MalformedKind::TooDeep`], or as [`token`](Self::token).
    #[inline]
    pub fn skip(&mut self) -> Result<&'a [u8], Malformed> {
        let start = self.rest;
        self.skip_values(1)?;
        let len = start.len().wrapping_sub(self.rest.len());
        Ok(start.get(..len).unwrap_or_default())
    }

    /// Reads the head of a map and moves to the value of `key`.
    ///
    /// Returns whether the key is there. If it is, the value is next; the
    /// pairs before it have been scanned, those after it have not been looked
    /// at. If it is not, the reader is behind the map. Where a key occurs
    /// twice this finds the first one, and Python keeps the last one (no
    /// Dask release writes such a map).
    ///
    /// ```
    /// use daskwire::msgpack::Reader;
    /// let mut reader = Reader::new(b"\x82\xa1a\x01\xa2op\xa4ping");
    /// assert!(reader.find("op")?);
    /// assert_eq!(reader.str()?, "ping");
    /// # Ok::<(), daskwire::msgpack::Malformed>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map) and [`skip`](Self::skip).
    pub fn find(&mut self, key: &str) -> Result<bool, Malformed> {
        let before = *self;
        let found = self.find_or_fail(key);
        if found.is_err() {
            *self = before;
        }
        found
    }

    #[inline]
    fn find_or_fail(&mut self, key: &str) -> Result<bool, Malformed> {
        let pair_count = self.map()?;
        for _ in 0..pair_count {
            // Nearly every key is short text, which the head byte tells.
            if let Some((&marker @ 0xa0..=0xbf, rest)) = self.rest.split_first()
                && let Some((text, rest)) = rest.split_at_checked(usize::from(marker & 0x1f))
            {
                self.rest = rest;
                if text == key.as_bytes() {
                    return Ok(true);
                }
                self.skip_values(1)?;
                continue;
            }
            match self.peek()? {
                Token::Str(text) => {
                    self.token()?;
                    if text == key {
                        return Ok(true);
                    }
                    self.skip_values(1)?;
                }
                _ => self.skip_values(2)?,
            }
        }
        Ok(false)
    }

    /// Skips `count` values with all that is in them.
    #[inline]
    fn skip_values(&mut self, count: u32) -> Result<(), Malformed> {
        let before = *self;
        // A scalar needs no stack.
        let mut left = count;
        while left != 0 {
            let child_count = match self.step() {
                Ok(child_count) => child_count,
                Err(error) => {
                    *self = before;
                    return Err(error);
                }
            };
            if child_count != 0 {
                *self = before;
                return self.skip_nested(count);
            }
            left = left.wrapping_sub(1);
        }
        Ok(())
    }

    fn skip_nested(&mut self, count: u32) -> Result<(), Malformed> {
        let before = *self;
        let outcome = self.skip_stacked::<SHALLOW>(count);
        if outcome.is_ok() {
            return outcome;
        }
        *self = before;
        match outcome {
            Err(Malformed {
                kind: MalformedKind::TooDeep { .. },
                ..
            }) if self.limits.depth as usize > SHALLOW => {
                let outcome = self.skip_deep(count);
                if outcome.is_err() {
                    *self = before;
                }
                outcome
            }
            _ => outcome,
        }
    }

    /// Out of line, so that only documents that need it pay for its stack.
    #[cold]
    #[inline(never)]
    fn skip_deep(&mut self, count: u32) -> Result<(), Malformed> {
        self.skip_stacked::<{ Limits::MAX_DEPTH as usize }>(count)
    }

    /// May leave the reader anywhere if it fails.
    #[inline]
    fn skip_stacked<const LEVELS: usize>(&mut self, count: u32) -> Result<(), Malformed> {
        // What is owed to each container that is open; no container owes more
        // than the item limit, which is a u32.
        let mut outer = [0_u32; LEVELS];
        let mut depth = 0_usize;
        let mut owed = count;
        loop {
            while owed == 0 {
                let Some(above) = depth.checked_sub(1) else {
                    return Ok(());
                };
                depth = above;
                owed = outer.get(depth).copied().unwrap_or_default();
            }
            let before = *self;
            let child_count = self.step()?;
            owed = owed.wrapping_sub(1);
            if child_count != 0 {
                let too_deep = depth >= self.limits.depth as usize;
                match outer.get_mut(depth) {
                    Some(level) if !too_deep => *level = owed,
                    _ => {
                        return Err(before.fault(MalformedKind::TooDeep {
                            limit: self.limits.depth,
                        }));
                    }
                }
                depth = depth.wrapping_add(1);
                owed = child_count;
            }
        }
    }

    /// Moves past one head and, if it is a scalar, past its data. Returns how
    /// many values belong to it.
    #[inline]
    fn step(&mut self) -> Result<u32, Malformed> {
        let Some((&marker, rest)) = self.rest.split_first() else {
            return Err(self.end(1));
        };
        // Data that has its length in the head byte, which is most of it.
        let len = match marker {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => 0,
            0xa0..=0xbf => usize::from(marker & 0x1f),
            0xcc | 0xd0 => 1,
            0xcd | 0xd1 => 2,
            0xca | 0xce | 0xd2 => 4,
            0xcb | 0xcf | 0xd3 => 8,
            0x80..=0x8f => {
                let child_count = u32::from(marker & 0x0f).wrapping_mul(2);
                self.claim(rest, u64::from(child_count))?;
                self.rest = rest;
                return Ok(child_count);
            }
            0x90..=0x9f => {
                let child_count = u32::from(marker & 0x0f);
                self.claim(rest, u64::from(child_count))?;
                self.rest = rest;
                return Ok(child_count);
            }
            _ => {
                let token = self.token()?;
                // The items limit, which a head was checked against, is a u32.
                return Ok(u32::try_from(token.child_count()).unwrap_or(u32::MAX));
            }
        };
        let Some((_, rest)) = rest.split_at_checked(len) else {
            return Err(self.end((len as u64).wrapping_add(1)));
        };
        self.rest = rest;
        Ok(0)
    }

    #[inline]
    fn expect<T>(
        &mut self,
        expected: Kind,
        pick: impl FnOnce(Token<'a>) -> Option<T>,
    ) -> Result<T, Malformed> {
        let before = *self;
        let token = self.token()?;
        match pick(token) {
            Some(value) => Ok(value),
            None => {
                *self = before;
                Err(self.unexpected(expected, token.kind()))
            }
        }
    }

    /// The error for a value that is there but is not what was asked for.
    #[cold]
    fn unexpected(&self, expected: Kind, found: Kind) -> Malformed {
        self.fault(if expected == found {
            MalformedKind::OutOfRange
        } else {
            MalformedKind::Unexpected { expected, found }
        })
    }

    /// The data of a scalar: `len` bytes of `rest`.
    #[inline]
    fn take(&self, rest: &'a [u8], len: usize) -> Result<(&'a [u8], &'a [u8]), Malformed> {
        rest.split_at_checked(len).ok_or_else(|| {
            let head = self.rest.len().wrapping_sub(rest.len());
            self.end((head as u64).saturating_add(len as u64))
        })
    }

    #[inline]
    fn number<const N: usize>(&self, rest: &'a [u8]) -> Result<([u8; N], &'a [u8]), Malformed> {
        match rest.split_first_chunk() {
            Some((bytes, rest)) => Ok((*bytes, rest)),
            None => Err(self.end((N as u64).wrapping_add(1))),
        }
    }

    /// A length of 1, 2 or 4 bytes, for `width` 0, 1 or 2.
    #[inline]
    fn length(&self, rest: &'a [u8], width: u8) -> Result<(usize, &'a [u8]), Malformed> {
        let (len, rest) = match width {
            0 => {
                let (bytes, rest) = self.number(rest)?;
                (u32::from(u8::from_be_bytes(bytes)), rest)
            }
            1 => {
                let (bytes, rest) = self.number(rest)?;
                (u32::from(u16::from_be_bytes(bytes)), rest)
            }
            _ => {
                let (bytes, rest) = self.number(rest)?;
                (u32::from_be_bytes(bytes), rest)
            }
        };
        match usize::try_from(len) {
            Ok(len) => Ok((len, rest)),
            Err(_) => Err(self.end(u64::from(len))),
        }
    }

    #[inline]
    fn ext(&self, rest: &'a [u8], len: usize) -> Result<(Token<'a>, &'a [u8]), Malformed> {
        let (code, rest) = self.number(rest)?;
        let (data, rest) = self.take(rest, len)?;
        Ok((Token::Ext(i8::from_be_bytes(code), data), rest))
    }

    /// Checks that `count` values can follow at all: each takes a byte.
    #[inline]
    fn claim(&mut self, rest: &[u8], count: u64) -> Result<(), Malformed> {
        if count > rest.len() as u64 {
            return Err(self.fault(MalformedKind::Claim {
                count,
                available: rest.len(),
            }));
        }
        match u64::from(self.items_left)
            .checked_sub(count)
            .map(u32::try_from)
        {
            Some(Ok(left)) => {
                self.items_left = left;
                Ok(())
            }
            _ => Err(self.fault(MalformedKind::TooManyItems {
                limit: self.limits.items,
            })),
        }
    }

    #[cold]
    fn end(&self, needed: u64) -> Malformed {
        self.fault(MalformedKind::End {
            needed,
            available: self.rest.len(),
        })
    }

    #[cold]
    fn fault(&self, kind: MalformedKind) -> Malformed {
        Malformed {
            at: self.position(),
            kind,
        }
    }
}

#[inline]
fn integer<'a>(value: i64) -> Token<'a> {
    match u64::try_from(value) {
        Ok(value) => Token::UInt(value),
        Err(_) => Token::Int(value),
    }
}
