//! The pull reader.

use super::{Kind, Malformed, MalformedKind, RawStr, Str, Token};
use crate::Limits;
use crate::invariant::OrDefaultIfBug as _;

/// Pull reader for one document. It copies and allocates nothing.
///
/// A method that fails does not move the reader. Every count and length in the
/// document is checked against the bytes left and the limits before it is used.
/// No method recurses.
///
/// The methods accept any encoded width: [`u64`](Self::u64) reads an integer of
/// any width, and [`f64`](Self::f64) a float of either.
///
/// # Errors
///
/// Each method for one kind of value, such as [`bool`](Self::bool), fails
///
/// * with [`MalformedKind::Unexpected`] if the next value is of another kind;
/// * with [`MalformedKind::OutOfRange`] if it is an integer that does not fit;
/// * as [`token`](Self::token).
///
/// # Common issues
///
/// * Dask's maps can have keys that are not strings: arrays (Python's tuples)
///   and numbers. Use [`token`](Self::token) or [`skip`](Self::skip) for keys.
/// * Call [`finish`](Self::finish) after the document: trailing bytes are an
///   error for every Dask release (PROTOCOL MSGPACK-1).
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// Length of the whole document, from which offsets are computed.
    len: usize,
    items_left: u32,
    limits: ReaderLimits,
}

#[derive(Clone, Copy, Debug)]
struct ReaderLimits {
    depth: u32,
    items: u32,
}

/// Evaluates an expression with the big-endian number at the start of `$rest`
/// and with the bytes after it as `$rest`. Returns `None` if there are too few.
macro_rules! number {
    ($rest:ident => $number:ident: $type:ty, $value:expr) => {{
        let (bytes, $rest) = $rest.split_first_chunk()?;
        let $number = <$type>::from_be_bytes(*bytes);
        $value
    }};
}

/// A function that returns the contents of a token of one kind.
macro_rules! pick {
    ($token:pat => $contents:expr) => {
        |token| match token {
            $token => Some($contents),
            _ => None,
        }
    };
}
pub(crate) use pick;

/// Levels of nesting for which [`Reader::skip`] uses a small stack; real
/// messages have at most 6.
const SHALLOW: usize = 32;

#[allow(clippy::missing_errors_doc, reason = "the type says them")]
impl<'a> Reader<'a> {
    /// Creates a reader with the limits of [`Limits::HOST`].
    pub const fn new(document: &'a [u8]) -> Self {
        Self::with_limits(document, &Limits::HOST)
    }

    /// Creates a reader with `limits`, of which only `depth` and `items` apply
    /// here. The code that provides the document checks `document_len`.
    pub const fn with_limits(document: &'a [u8], limits: &Limits) -> Self {
        let depth = if limits.depth < Limits::MAX_DEPTH {
            limits.depth
        } else {
            Limits::MAX_DEPTH
        };
        let items = limits.items;
        Self {
            rest: document,
            len: document.len(),
            items_left: items,
            limits: ReaderLimits { depth, items },
        }
    }

    /// Offset of the next token in the document, in bytes.
    #[inline]
    pub const fn position(&self) -> usize {
        self.len.wrapping_sub(self.rest.len())
    }

    /// The part of the document that has not been read.
    #[inline]
    pub const fn remaining(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether the whole document has been read.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Moves to `rest`, a suffix of the same document.
    pub(crate) const fn seek(&mut self, rest: &'a [u8]) {
        self.rest = rest;
    }

    /// Checks that the whole document has been read.
    ///
    /// # Errors
    ///
    /// [`MalformedKind::Trailing`] if there are bytes left.
    pub fn finish(self) -> Result<(), Malformed> {
        // PROTOCOL MSGPACK-1
        if self.rest.is_empty() {
            Ok(())
        } else {
            let len = self.rest.len();
            Err(self.malformed(MalformedKind::Trailing { len }))
        }
    }

    /// Reads the next token: a whole scalar, or the head of an array or map.
    ///
    /// # Errors
    ///
    /// * [`MalformedKind::Truncated`], [`MalformedKind::Reserved`] or
    ///   [`MalformedKind::CountTooLarge`] if the next token is not valid;
    /// * [`MalformedKind::TooManyItems`] if a head declares more values than
    ///   the limit allows.
    #[inline]
    pub fn token(&mut self) -> Result<Token<'a>, Malformed> {
        match self.next_token() {
            Some(token) => Ok(token),
            None => Err(self.diagnose()),
        }
    }

    /// Reads a token; `None` for any error. [`diagnose`](Self::diagnose) then
    /// finds the reason.
    #[inline]
    fn next_token(&mut self) -> Option<Token<'a>> {
        #[cfg(test)]
        crate::steps::step();
        let (&marker, rest) = self.rest.split_first()?;
        let (token, rest) = match marker {
            0x00..=0x7f => (Token::UInt(u64::from(marker)), rest),
            0xa0..=0xbf => string(rest, usize::from(marker & 0x1f))?,
            0xd9 => number!(rest => len: u8, string(rest, usize::from(len))?),
            0xe0..=0xff => (Token::Int(i64::from(marker.cast_signed())), rest),
            0x80..=0x8f => {
                let count = u32::from(marker & 0x0f);
                self.items_left = claim(self.items_left, rest, u64::from(count).wrapping_mul(2))?;
                (Token::Map(count), rest)
            }
            0x90..=0x9f => {
                let count = u32::from(marker & 0x0f);
                self.items_left = claim(self.items_left, rest, u64::from(count))?;
                (Token::Array(count), rest)
            }
            0xc0 => (Token::Nil, rest),
            // PROTOCOL MSGPACK-10
            0xc1 => return None,
            0xc2 => (Token::Bool(false), rest),
            0xc3 => (Token::Bool(true), rest),
            0xc4 => number!(rest => len: u8, bin(rest, usize::from(len))?),
            0xc5 => number!(rest => len: u16, bin(rest, usize::from(len))?),
            0xc6 => number!(rest => len: u32, bin(rest, usize::try_from(len).ok()?)?),
            // PROTOCOL MSGPACK-9
            0xc7 => number!(rest => len: u8, ext(rest, usize::from(len))?),
            0xc8 => number!(rest => len: u16, ext(rest, usize::from(len))?),
            0xc9 => number!(rest => len: u32, ext(rest, usize::try_from(len).ok()?)?),
            // PROTOCOL MSGPACK-4
            0xca => number!(rest => value: f32, (Token::F32(value), rest)),
            0xcb => number!(rest => value: f64, (Token::F64(value), rest)),
            // PROTOCOL MSGPACK-3: any width, with or without sign.
            0xcc => number!(rest => value: u8, (Token::UInt(u64::from(value)), rest)),
            0xcd => number!(rest => value: u16, (Token::UInt(u64::from(value)), rest)),
            0xce => number!(rest => value: u32, (Token::UInt(u64::from(value)), rest)),
            0xcf => number!(rest => value: u64, (Token::UInt(value), rest)),
            0xd0 => number!(rest => value: i8, (integer(i64::from(value)), rest)),
            0xd1 => number!(rest => value: i16, (integer(i64::from(value)), rest)),
            0xd2 => number!(rest => value: i32, (integer(i64::from(value)), rest)),
            0xd3 => number!(rest => value: i64, (integer(value), rest)),
            // 0xd4 is 1 byte, 0xd5 is 2, and so on to 16.
            0xd4..=0xd8 => ext(rest, 1 << (marker & 0x0f).wrapping_sub(4))?,
            // PROTOCOL MSGPACK-5: any head, not just the smallest.
            0xda => number!(rest => len: u16, string(rest, usize::from(len))?),
            0xdb => number!(rest => len: u32, string(rest, usize::try_from(len).ok()?)?),
            0xdc | 0xde => {
                let (token, rest) =
                    number!(rest => count: u16, (container(marker, u32::from(count)), rest));
                self.items_left = claim(self.items_left, rest, token.child_count())?;
                (token, rest)
            }
            0xdd | 0xdf => {
                let (token, rest) = number!(rest => count: u32, (container(marker, count), rest));
                self.items_left = claim(self.items_left, rest, token.child_count())?;
                (token, rest)
            }
        };
        self.rest = rest;
        Some(token)
    }

    /// Returns the next token without moving the reader.
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
    #[inline]
    pub fn nil(&mut self) -> Result<(), Malformed> {
        if self.take_nil() {
            return Ok(());
        }
        self.expect(Kind::Nil, pick!(Token::Nil => ()))
    }

    /// Skips the next value if it is nil and returns whether it was, for
    /// optional values.
    ///
    /// ```
    /// use daskwire::msgpack::Reader;
    /// let mut reader = Reader::new(b"\x93\xc0\xc2\xc0");
    /// assert_eq!(reader.array()?, 3);
    /// assert!(reader.take_nil());
    /// assert!(!reader.take_nil());
    /// assert!(!reader.bool()?);
    /// # Ok::<(), daskwire::msgpack::Malformed>(())
    /// ```
    #[inline]
    pub const fn take_nil(&mut self) -> bool {
        if let Some((0xc0, rest)) = self.rest.split_first() {
            self.rest = rest;
            return true;
        }
        false
    }

    /// Reads a boolean.
    #[inline]
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        if let Some((&marker @ 0xc2..=0xc3, rest)) = self.rest.split_first() {
            self.rest = rest;
            return Ok(marker == 0xc3);
        }
        self.expect(Kind::Bool, pick!(Token::Bool(value) => value))
    }

    /// Reads a non-negative integer.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        if let Some((value, rest)) = unsigned(self.rest) {
            self.rest = rest;
            return Ok(value);
        }
        self.expect(Kind::Integer, pick!(Token::UInt(value) => value))
    }

    /// Reads a signed integer of up to `i64::MAX`.
    #[inline]
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.expect(Kind::Integer, |token| match token {
            Token::UInt(value) => i64::try_from(value).ok(),
            Token::Int(value) => Some(value),
            _ => None,
        })
    }

    /// Reads a float of either width; an integer is not one.
    #[inline]
    pub fn f64(&mut self) -> Result<f64, Malformed> {
        if let Some((0xcb, rest)) = self.rest.split_first()
            && let Some((bytes, rest)) = rest.split_first_chunk()
        {
            self.rest = rest;
            return Ok(f64::from_be_bytes(*bytes));
        }
        self.expect(Kind::Float, |token| match token {
            Token::F64(value) => Some(value),
            Token::F32(value) => Some(f64::from(value)),
            _ => None,
        })
    }

    /// Reads a string and validates its UTF-8.
    ///
    /// # Errors
    ///
    /// [`MalformedKind::NotUtf8`], or as any method for one kind.
    #[inline]
    pub fn str(&mut self) -> Result<Str<'a>, Malformed> {
        let before = self.rest;
        let string = self.raw_str()?;
        match string.check() {
            Ok(string) => Ok(string),
            // PROTOCOL MSGPACK-6
            Err(error) => {
                self.rest = before;
                let valid_len = error.valid_up_to();
                Err(self.malformed(MalformedKind::NotUtf8 { valid_len }))
            }
        }
    }

    /// Reads a string without validating its UTF-8.
    #[inline]
    pub fn raw_str(&mut self) -> Result<RawStr<'a>, Malformed> {
        if let Some(string) = self.short_str() {
            return Ok(string);
        }
        self.expect(Kind::Str, pick!(Token::Str(string) => string))
    }

    /// Reads a string, if the next value is one of up to 255 bytes.
    #[inline]
    pub(crate) fn short_str(&mut self) -> Option<RawStr<'a>> {
        let (string, rest) = short_string(self.rest)?;
        self.rest = rest;
        Some(RawStr::new(string))
    }

    /// Reads a byte string; a string is not one.
    #[inline]
    pub fn bin(&mut self) -> Result<&'a [u8], Malformed> {
        if let Some(([0xc4, len], rest)) = self.rest.split_first_chunk()
            && let Some((data, rest)) = rest.split_at_checked(usize::from(*len))
        {
            self.rest = rest;
            return Ok(data);
        }
        self.expect(Kind::Bin, pick!(Token::Bin(data) => data))
    }

    /// Reads the head of an array and returns its number of elements. Python's
    /// lists and tuples are both arrays (PROTOCOL MSGPACK-7).
    #[inline]
    pub fn array(&mut self) -> Result<u32, Malformed> {
        if let Some((&marker @ 0x90..=0x9f, rest)) = self.rest.split_first() {
            let count = u32::from(marker & 0x0f);
            if let Some(items_left) = claim(self.items_left, rest, u64::from(count)) {
                self.items_left = items_left;
                self.rest = rest;
                return Ok(count);
            }
        }
        self.expect(Kind::Array, pick!(Token::Array(count) => count))
    }

    /// Reads the head of a map and returns its number of key-value pairs.
    #[inline]
    pub fn map(&mut self) -> Result<u32, Malformed> {
        if let Some((&marker @ 0x80..=0x8f, rest)) = self.rest.split_first() {
            let count = u32::from(marker & 0x0f);
            if let Some(items_left) = claim(self.items_left, rest, u64::from(count).wrapping_mul(2))
            {
                self.items_left = items_left;
                self.rest = rest;
                return Ok(count);
            }
        }
        self.expect(Kind::Map, pick!(Token::Map(count) => count))
    }

    /// Reads an extension value: its type code and its data.
    #[inline]
    pub fn extension(&mut self) -> Result<(i8, &'a [u8]), Malformed> {
        self.expect(Kind::Ext, pick!(Token::Ext(code, data) => (code, data)))
    }

    /// Skips one value with its children and returns its bytes.
    ///
    /// The bytes are a complete document, so that a value can be stored or
    /// copied into another message without being decoded. Strings in it are not
    /// validated.
    ///
    /// # Errors
    ///
    /// [`MalformedKind::TooDeep`], or as [`token`](Self::token).
    #[inline]
    pub fn skip(&mut self) -> Result<&'a [u8], Malformed> {
        let start = self.rest;
        self.skip_values(1)?;
        let len = start.len().wrapping_sub(self.rest.len());
        Ok(start.get(..len).or_default_if_bug())
    }

    /// Reads the head of a map and moves to the value of `key`.
    ///
    /// Returns whether the map has the key. If it has, the value is next, and
    /// the pairs after it have not been read. If it has not, the reader is
    /// after the map. Of a key that occurs twice this finds the first, whereas
    /// Python keeps the last (no Dask release writes such a map).
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
    #[inline]
    pub fn find(&mut self, key: &str) -> Result<bool, Malformed> {
        let mut ahead = *self;
        let mut found = false;
        // PROTOCOL MSGPACK-8: keys of any kind, in any order.
        for _ in 0..ahead.map()? {
            if let Some((&marker @ 0xa0..=0xbf, rest)) = ahead.rest.split_first()
                && let Some((string, rest)) = rest.split_at_checked(usize::from(marker & 0x1f))
            {
                ahead.rest = rest;
                found = string == key.as_bytes();
            } else {
                found = ahead.take_key(key);
                if !found {
                    ahead.skip_values(1)?;
                }
            }
            if found {
                break;
            }
            ahead.skip_values(1)?;
        }
        *self = ahead;
        Ok(found)
    }

    /// Reads the head of a map with known keys; see [`Fields`].
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    #[inline]
    pub fn fields(&mut self) -> Result<Fields<'_, 'a>, Malformed> {
        let pairs_left = self.map()?;
        Ok(Fields {
            reader: self,
            pairs_left,
            taken: true,
        })
    }

    /// Reads a map and returns a reader at the value of each of `keys`. Of a
    /// duplicate key, the last value. After an error the position is
    /// unspecified.
    pub(crate) fn values<const N: usize>(
        &mut self,
        keys: [&str; N],
    ) -> Result<[Option<Self>; N], Malformed> {
        let mut values = [None; N];
        let count = self.map()?;
        self.pairs(count, &keys, &mut |index, value| {
            if let Some(place) = values.get_mut(index) {
                *place = Some(*value);
            }
        })?;
        Ok(values)
    }

    /// Reads `count` pairs of a map and calls `found` with the index of each key
    /// that is among `keys` and a reader at its value. After an error the position
    /// is unspecified. Not generic, so that there is one copy.
    #[inline(never)]
    pub(crate) fn pairs(
        &mut self,
        count: u32,
        keys: &[&str],
        found: &mut dyn FnMut(usize, &Self),
    ) -> Result<(), Malformed> {
        for _ in 0..count {
            let index = match self.raw_str() {
                Ok(key) => keys.iter().position(|known| key == **known),
                Err(_) => {
                    self.skip()?;
                    None
                }
            };
            if let Some(index) = index {
                found(index, self);
            }
            self.skip()?;
        }
        Ok(())
    }

    /// The number of levels of nested arrays and maps in the next value.
    pub(crate) fn levels(self) -> Result<usize, Malformed> {
        Ok(self.skip_deep(1)?.1)
    }

    /// Skips the next value if it is the string `key`.
    #[inline]
    fn take_key(&mut self, key: &str) -> bool {
        let Some((&marker, rest)) = self.rest.split_first() else {
            return false;
        };
        // All known writers use the shortest head.
        if let Ok(len @ 0..=31) = u8::try_from(key.len())
            && marker & 0xe0 == 0xa0
        {
            return marker == 0xa0 | len
                && match rest.split_at_checked(key.len()) {
                    Some((string, rest)) if string == key.as_bytes() => {
                        self.rest = rest;
                        true
                    }
                    _ => false,
                };
        }
        if !matches!(marker, 0xa0..=0xbf | 0xd9..=0xdb) {
            return false;
        }
        match self.after_key(key) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// [`take_key`](Self::take_key) for a string with any other head.
    #[cold]
    #[inline(never)]
    fn after_key(mut self, key: &str) -> Option<&'a [u8]> {
        match self.next_token()? {
            Token::Str(string) if string == key => Some(self.rest),
            _ => None,
        }
    }

    /// Skips `count` values with their children.
    #[inline(always)]
    fn skip_values(&mut self, count: u32) -> Result<(), Malformed> {
        if let Some((rest, items_left)) = self.skipped(count) {
            self.rest = rest;
            self.items_left = items_left;
            return Ok(());
        }
        *self = self.skip_nested(count)?;
        Ok(())
    }

    /// Returns the rest of the document after `count` values. `None` if they
    /// are malformed or contain so many arrays and maps that they could be
    /// nested too deep. Without a depth to track, the number of values still
    /// owed replaces a stack.
    #[inline(always)]
    fn skipped(&self, count: u32) -> Option<(&'a [u8], u32)> {
        // Not a copy of the reader, which the compiler keeps in memory.
        let (mut rest, mut items_left) = (self.rest, self.items_left);
        let mut owed = u64::from(count);
        let mut levels_left = self.limits.depth;
        while owed != 0 {
            #[cfg(test)]
            crate::steps::step();
            if let [marker, second, ..] = *rest
                && let Some(&[len @ 1..=0xff, second_is_len]) = SHAPES.get(usize::from(marker))
            {
                // Scalars share one path: a branch on their kind would often be
                // mispredicted.
                let len = usize::from(len).wrapping_add(usize::from(second & second_is_len));
                rest = rest.get(len..)?;
                owed = owed.wrapping_sub(1);
                continue;
            }
            let child_count = match rest.split_first()? {
                (&marker @ 0x80..=0x9f, after) => {
                    let count = u64::from(marker & 0x0f);
                    let is_map = marker < 0x90;
                    let count = if is_map { count.wrapping_mul(2) } else { count };
                    items_left = claim(items_left, after, count)?;
                    rest = after;
                    count
                }
                _ => {
                    let count;
                    (count, rest, items_left) = self.after_rare_token(rest, items_left)?;
                    count
                }
            };
            if child_count != 0 {
                levels_left = levels_left.checked_sub(1)?;
            }
            // At most the item limit, a u32, plus `count`.
            owed = owed.wrapping_add(child_count).wrapping_sub(1);
        }
        Some((rest, items_left))
    }

    /// The number of children of the first token of `rest`, and the bytes and the
    /// item limit left after it. Out of line, so that the loop around it stays
    /// small.
    #[inline(never)]
    fn after_rare_token(&self, rest: &'a [u8], items_left: u32) -> Option<(u64, &'a [u8], u32)> {
        let mut ahead = Self {
            rest,
            items_left,
            ..*self
        };
        let child_count = ahead.next_token()?.child_count();
        Some((child_count, ahead.rest, ahead.items_left))
    }

    /// Skips `count` values in a document that is malformed, or that may be
    /// nested too deep.
    #[cold]
    #[inline(never)]
    fn skip_nested(self, count: u32) -> Result<Self, Malformed> {
        let mut ahead = self;
        match ahead.skip_stacked(&mut [0; SHALLOW], count) {
            Ok(_) => Ok(ahead),
            Err(Malformed {
                kind: MalformedKind::TooDeep { .. },
                ..
            }) if self.limits.depth as usize > SHALLOW => Ok(self.skip_deep(count)?.0),
            Err(error) => Err(error),
        }
    }

    /// Out of line, so that only documents that need it pay for its stack.
    #[cold]
    #[inline(never)]
    fn skip_deep(mut self, count: u32) -> Result<(Self, usize), Malformed> {
        let levels = self.skip_stacked(&mut [0; Limits::MAX_DEPTH as usize], count)?;
        Ok((self, levels))
    }

    /// Skips `count` values with a stack: the number of values owed to each open
    /// container, at most the item limit, a `u32`. Returns the number of levels of
    /// nesting. After an error the position of the reader is unspecified.
    #[inline(never)]
    fn skip_stacked(&mut self, outer: &mut [u32], count: u32) -> Result<usize, Malformed> {
        let (mut depth, mut deepest) = (0_usize, 0);
        let mut owed = count;
        loop {
            while owed == 0 {
                let Some(above) = depth.checked_sub(1) else {
                    return Ok(deepest);
                };
                depth = above;
                owed = outer.get(depth).copied().or_default_if_bug();
            }
            let at = self.position();
            // `token` has checked the count against the item limit, a u32.
            let child_count = u32::try_from(self.token()?.child_count()).unwrap_or(u32::MAX);
            owed = owed.wrapping_sub(1);
            // PROTOCOL MSGPACK-11
            if child_count != 0 {
                let limit = self.limits.depth;
                match outer.get_mut(depth) {
                    Some(level) if depth < limit as usize => *level = owed,
                    _ => {
                        let kind = MalformedKind::TooDeep { limit };
                        return Err(Malformed { at, kind });
                    }
                }
                depth = depth.wrapping_add(1);
                deepest = deepest.max(depth);
                owed = child_count;
            }
        }
    }

    /// Reads a token of one kind in the encodings that the fast paths above do
    /// not handle. `pick` returns `None` for other kinds, and for integers that
    /// are out of range.
    #[inline(never)]
    fn expect<T>(
        &mut self,
        expected: Kind,
        pick: impl FnOnce(Token<'a>) -> Option<T>,
    ) -> Result<T, Malformed> {
        let before = (self.rest, self.items_left);
        if let Some(value) = self.next_token().and_then(pick) {
            return Ok(value);
        }
        (self.rest, self.items_left) = before;
        Err(self.unexpected(expected))
    }

    /// The error for the next token, which is not of the expected kind.
    #[cold]
    #[inline(never)]
    fn unexpected(&self, expected: Kind) -> Malformed {
        match self.peek().map(|token| token.kind()) {
            Err(error) => error,
            Ok(found) if found == expected => self.malformed(MalformedKind::OutOfRange),
            Ok(found) => self.malformed(MalformedKind::Unexpected { expected, found }),
        }
    }

    /// Returns the error of the next token, which is known to be invalid.
    #[cold]
    #[inline(never)]
    fn diagnose(self) -> Malformed {
        let available = self.rest.len();
        let end = |needed: usize| {
            let needed = needed as u64;
            self.malformed(MalformedKind::Truncated { needed, available })
        };
        let Some((&marker, rest)) = self.rest.split_first() else {
            return end(1);
        };
        // The bytes of a length or count after the marker, and what else the head
        // has: the code of an extension, or a number.
        let (width, more): (u8, u8) = match marker {
            0xc4 | 0xd9 => (1, 0),
            0xc5 | 0xda | 0xdc | 0xde => (2, 0),
            0xc6 | 0xdb | 0xdd | 0xdf => (4, 0),
            0xc7 => (1, 1),
            0xc8 => (2, 1),
            0xc9 => (4, 1),
            0xcc | 0xd0 | 0xd4..=0xd8 => (0, 1),
            0xcd | 0xd1 => (0, 2),
            0xca | 0xce | 0xd2 => (0, 4),
            0xcb | 0xcf | 0xd3 => (0, 8),
            _ => (0, 0),
        };
        let head_len = usize::from(width.wrapping_add(more));
        let Some((head, rest)) = rest.split_at_checked(head_len) else {
            return end(head_len.wrapping_add(1));
        };
        let announced = match marker {
            0x80..=0x9f => u64::from(marker & 0x0f),
            0xa0..=0xbf => u64::from(marker & 0x1f),
            0xd4..=0xd8 => 1 << (marker & 0x0f).wrapping_sub(4),
            _ => {
                let bytes = head.iter().take(usize::from(width));
                bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
            }
        };
        let count = match marker {
            0xc1 => return self.malformed(MalformedKind::Reserved),
            0x90..=0x9f | 0xdc | 0xdd => announced,
            0x80..=0x8f | 0xde | 0xdf => announced.wrapping_mul(2),
            _ => {
                let needed = announced.wrapping_add(head_len as u64).wrapping_add(1);
                return self.malformed(MalformedKind::Truncated { needed, available });
            }
        };
        let (available, limit) = (rest.len(), self.limits.items);
        self.malformed(if count > available as u64 {
            MalformedKind::CountTooLarge { count, available }
        } else {
            MalformedKind::TooManyItems { limit }
        })
    }

    /// The error for the next value.
    #[cold]
    const fn malformed(&self, kind: MalformedKind) -> Malformed {
        Malformed {
            at: self.position(),
            kind,
        }
    }
}

/// The entries of a map with known keys; created by [`Reader::fields`].
///
/// [`take`](Self::take) the keys in the order in which they are usually
/// written: each then costs one comparison. Keys in any other order are found
/// in further rounds of the loop, and a pair that is not taken is skipped.
///
/// ```
/// use daskwire::msgpack::Reader;
///
/// let mut reader = Reader::new(b"\x83\xa2op\xa4ping\xa3new\xc0\xa2to\x07");
/// let (mut op, mut to) = (None, None);
/// let mut fields = reader.fields()?;
/// while fields.more()? {
///     if let Some(value) = fields.take("op") {
///         op = Some(value.str()?);
///     }
///     if let Some(value) = fields.take("to") {
///         to = Some(value.u64()?);
///     }
/// }
/// assert_eq!(op.unwrap(), "ping");
/// assert_eq!(to, Some(7));
/// # Ok::<(), daskwire::msgpack::Malformed>(())
/// ```
///
/// # Common issues
///
/// * Exactly one value must be read for each key that was taken; otherwise the
///   next value is read as a key.
/// * A key that occurs twice is taken twice. Python keeps the last value, as
///   does a loop that assigns.
#[derive(Debug)]
pub struct Fields<'r, 'a> {
    reader: &'r mut Reader<'a>,
    pairs_left: u32,
    /// Whether a key has been taken in this round.
    taken: bool,
}

impl<'a> Fields<'_, 'a> {
    /// Whether there are more entries. Skips the current pair if its key was
    /// not taken since the last call.
    ///
    /// # Errors
    ///
    /// As [`Reader::skip`].
    #[inline]
    pub fn more(&mut self) -> Result<bool, Malformed> {
        if self.pairs_left == 0 {
            return Ok(false);
        }
        if !self.taken {
            self.reader.skip_values(2)?;
            self.pairs_left = self.pairs_left.wrapping_sub(1);
        }
        self.taken = false;
        Ok(self.pairs_left != 0)
    }

    /// If `key` is the next key, skips it and returns the reader, from which
    /// the caller must read its value.
    #[inline]
    pub fn take(&mut self, key: &str) -> Option<&mut Reader<'a>> {
        if self.pairs_left == 0 || !self.reader.take_key(key) {
            return None;
        }
        self.pairs_left = self.pairs_left.wrapping_sub(1);
        self.taken = true;
        Some(self.reader)
    }
}

/// The item limit left after `count` more values. `None` if the limit or the
/// input is too short for them; each takes at least one byte of `rest`.
#[inline]
fn claim(items_left: u32, rest: &[u8], count: u64) -> Option<u32> {
    // PROTOCOL MSGPACK-12
    if count > rest.len() as u64 {
        return None;
    }
    u32::try_from(u64::from(items_left).checked_sub(count)?).ok()
}

#[inline]
fn string(rest: &[u8], len: usize) -> Option<(Token<'_>, &[u8])> {
    let (string, rest) = rest.split_at_checked(len)?;
    Some((Token::Str(RawStr::new(string)), rest))
}

#[inline]
fn bin(rest: &[u8], len: usize) -> Option<(Token<'_>, &[u8])> {
    let (data, rest) = rest.split_at_checked(len)?;
    Some((Token::Bin(data), rest))
}

#[inline]
fn ext(rest: &[u8], len: usize) -> Option<(Token<'_>, &[u8])> {
    let (&code, rest) = rest.split_first()?;
    let (data, rest) = rest.split_at_checked(len)?;
    Some((Token::Ext(code.cast_signed(), data), rest))
}

#[inline]
fn container<'a>(marker: u8, count: u32) -> Token<'a> {
    if marker < 0xde {
        Token::Array(count)
    } else {
        Token::Map(count)
    }
}

#[inline]
fn integer<'a>(value: i64) -> Token<'a> {
    match u64::try_from(value) {
        Ok(value) => Token::UInt(value),
        Err(_) => Token::Int(value),
    }
}

/// A string of up to 255 bytes, which nearly all are.
#[inline]
fn short_string(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    match rest.split_first()? {
        (&marker @ 0xa0..=0xbf, rest) => rest.split_at_checked(usize::from(marker & 0x1f)),
        (0xd9, rest) => {
            let (&len, rest) = rest.split_first()?;
            rest.split_at_checked(usize::from(len))
        }
        _ => None,
    }
}

/// An integer in one of the unsigned encodings.
#[inline]
fn unsigned(rest: &[u8]) -> Option<(u64, &[u8])> {
    let (&marker, rest) = rest.split_first()?;
    match marker {
        0x00..=0x7f => Some((u64::from(marker), rest)),
        0xcc => number!(rest => value: u8, Some((u64::from(value), rest))),
        0xcd => number!(rest => value: u16, Some((u64::from(value), rest))),
        0xce => number!(rest => value: u32, Some((u64::from(value), rest))),
        0xcf => number!(rest => value: u64, Some((value, rest))),
        _ => None,
    }
}

/// The length of a scalar by its first byte: the length of the head plus data
/// of a fixed length, and all ones if the second byte is the length of the data
/// that follows. Zero for all other values.
static SHAPES: [[u8; 2]; 256] = {
    let mut shapes = [[0; 2]; 256];
    let mut marker = 0_u8;
    loop {
        let shape = match marker {
            0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => [1, 0],
            0xa0..=0xbf => [(marker & 0x1f).wrapping_add(1), 0],
            0xc4 | 0xd9 => [2, 0xff],
            0xc7 => [3, 0xff],
            0xcc | 0xd0 => [2, 0],
            0xcd | 0xd1 | 0xd4 => [3, 0],
            0xca | 0xce | 0xd2 => [5, 0],
            0xcb | 0xcf | 0xd3 => [9, 0],
            0xd5 => [4, 0],
            0xd6 => [6, 0],
            0xd7 => [10, 0],
            0xd8 => [18, 0],
            _ => [0, 0],
        };
        #[allow(clippy::indexing_slicing, reason = "a byte indexes 256 entries")]
        {
            shapes[marker as usize] = shape;
        }
        match marker.checked_add(1) {
            Some(next) => marker = next,
            None => break,
        }
    }
    shapes
};
