//! Strings and numbers in the encodings of a pickle, and their validation.

use core::fmt;
use daskwire_compression::invariant::OrDefaultIfBug;

/// A string in UTF-8 that may contain surrogates.
///
/// Python encodes the strings of pickles with the error handler
/// `surrogatepass`: a surrogate takes three bytes, like a character. All else
/// is as in UTF-8. Only a [`Reader`](super::Reader) creates values of this
/// type, so they are always valid in this sense.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PyStr<'p>(&'p [u8]);

impl<'p> PyStr<'p> {
    /// Validates the bytes. The error is the length of the valid part.
    #[inline]
    pub(super) fn new(bytes: &'p [u8]) -> Result<Self, usize> {
        #[cfg(test)]
        bytes.iter().for_each(|_| crate::steps::step());
        // Fast path: most strings are ASCII.
        if bytes.is_ascii() {
            return Ok(Self(bytes));
        }
        Self::not_ascii(bytes)
    }

    fn not_ascii(bytes: &'p [u8]) -> Result<Self, usize> {
        let mut rest = bytes;
        while let Err(error) = core::str::from_utf8(rest) {
            let after = rest.get(error.valid_up_to()..).or_default_if_bug();
            match after.split_first_chunk() {
                Some(([0xed, 0xa0..=0xbf, 0x80..=0xbf], after)) => rest = after,
                _ => return Err(bytes.len().wrapping_sub(after.len())),
            }
        }
        Ok(Self(bytes))
    }

    /// Wraps bytes that a reader has validated before.
    #[cfg(feature = "alloc")]
    pub(super) const fn known(bytes: &'p [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes of the string.
    pub const fn as_bytes(self) -> &'p [u8] {
        self.0
    }

    /// The string, if it has no surrogates.
    ///
    /// # Errors
    ///
    /// The error of [`core::str::from_utf8`] at the first surrogate.
    pub const fn to_str(self) -> Result<&'p str, core::str::Utf8Error> {
        core::str::from_utf8(self.0)
    }

    /// The length of the string, in bytes.
    pub const fn len(self) -> usize {
        self.0.len()
    }

    /// Whether the string is empty.
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

impl PartialEq<str> for PyStr<'_> {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for PyStr<'_> {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl fmt::Debug for PyStr<'_> {
    /// Formats the string in quotes and escaped, on one line; surrogates as
    /// `\u{d800}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        let mut rest = self.0;
        loop {
            let (good, after) = match core::str::from_utf8(rest) {
                Ok(good) => (good, &[][..]),
                Err(error) => {
                    let (good, after) = rest
                        .split_at_checked(error.valid_up_to())
                        .or_default_if_bug();
                    (core::str::from_utf8(good).or_default_if_bug(), after)
                }
            };
            write!(f, "{}", good.escape_debug())?;
            let Some(([_, second, third], after)) = after.split_first_chunk() else {
                break;
            };
            let low = (u16::from(second & 0x3f) << 6) | u16::from(third & 0x3f);
            write!(f, "\\u{{{:x}}}", 0xd000 | low)?;
            rest = after;
        }
        f.write_str("\"")
    }
}

/// An integer of any size: little-endian two's complement, without redundant
/// sign bytes.
///
/// Conversions read at most 16 bytes. There is no conversion to decimal digits,
/// since it takes quadratic time: a pickle of some megabytes would take
/// minutes.
///
/// ```
/// use daskwire_pickle::{Argument, Reader};
/// let token = Reader::new(b"\x8a\x09\0\0\0\0\0\0\0\x80\0.").next_token()?;
/// let Some(Argument::BigInt(value)) = token.map(|token| token.argument) else { panic!() };
/// assert_eq!((value.to_i64(), value.to_u64()), (None, Some(1 << 63)));
/// # Ok::<(), daskwire_pickle::PickleError>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct BigInt<'p>(&'p [u8]);

impl<'p> BigInt<'p> {
    pub(super) fn new(mut bytes: &'p [u8]) -> Self {
        loop {
            #[cfg(test)]
            crate::steps::step();
            bytes = match bytes {
                [shorter @ .., 0] if !is_negative(shorter) => shorter,
                [shorter @ .., 0xff] if is_negative(shorter) => shorter,
                _ => return Self(bytes),
            };
        }
    }

    /// Wraps bytes without redundant sign bytes.
    #[cfg(feature = "alloc")]
    pub(super) const fn known(bytes: &'p [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes; empty for 0.
    pub const fn as_bytes(self) -> &'p [u8] {
        self.0
    }

    /// Whether the integer is negative.
    pub const fn is_negative(self) -> bool {
        is_negative(self.0)
    }

    /// The value, if it fits in the type.
    pub fn to_i128(self) -> Option<i128> {
        let mut bytes = [if self.is_negative() { 0xff } else { 0 }; 16];
        daskwire_compression::copy(bytes.get_mut(..self.0.len())?, self.0);
        Some(i128::from_le_bytes(bytes))
    }

    /// The value, if it fits in the type.
    pub fn to_i64(self) -> Option<i64> {
        self.to_i128()?.try_into().ok()
    }

    /// The value, if it fits in the type.
    pub fn to_u64(self) -> Option<u64> {
        self.to_i128()?.try_into().ok()
    }
}

const fn is_negative(bytes: &[u8]) -> bool {
    matches!(bytes, [.., 0x80..=0xff])
}

impl fmt::Debug for BigInt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_i128() {
            Some(value) => value.fmt(f),
            None => write!(
                f,
                "{} integer of {} bytes",
                if self.is_negative() {
                    "negative"
                } else {
                    "positive"
                },
                self.0.len()
            ),
        }
    }
}

/// An integer of any size in decimal digits, as protocols 0 and 1 write it.
///
/// The syntax is that of Python's `int`: an optional sign, and digits with
/// optional single underscores between them. By default Python refuses more
/// than 4300 digits; here any number is accepted, since the value is only
/// computed on request.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decimal<'p>(&'p [u8]);

impl<'p> Decimal<'p> {
    /// Parses a line as Python's `int` does, ignoring white space at both ends.
    pub(super) fn new(line: &'p [u8]) -> Option<Self> {
        let number = trim(line);
        let (_, unsigned) = sign(number);
        match digits(unsigned)? {
            (1.., []) => Some(Self(number)),
            _ => None,
        }
    }

    /// The digits, with an optional sign and underscores.
    pub const fn as_bytes(self) -> &'p [u8] {
        self.0
    }

    /// The value, if it fits in the type.
    pub fn to_i128(self) -> Option<i128> {
        let (is_negative, digits) = sign(self.0);
        let mut value = 0_i128;
        for &byte in digits.iter().filter(|&&byte| byte != b'_') {
            let digit = i128::from(byte.checked_sub(b'0')?);
            value = value.checked_mul(10)?;
            value = if is_negative {
                value.checked_sub(digit)?
            } else {
                value.checked_add(digit)?
            };
        }
        Some(value)
    }

    /// The value, if it fits in the type.
    pub fn to_i64(self) -> Option<i64> {
        self.to_i128()?.try_into().ok()
    }

    /// The value, if it fits in the type.
    pub fn to_u64(self) -> Option<u64> {
        self.to_i128()?.try_into().ok()
    }
}

impl fmt::Debug for Decimal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

const fn sign(number: &[u8]) -> (bool, &[u8]) {
    match number {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        _ => (false, number),
    }
}

/// Removes white space at both ends, as Python's `int` and `float` do for
/// bytes.
fn trim(mut line: &[u8]) -> &[u8] {
    while let [b' ' | b'\t'..=b'\r', inner @ ..] | [inner @ .., b' ' | b'\t'..=b'\r'] = line {
        line = inner;
    }
    line
}

/// A float in decimal digits, as protocol 0 writes it.
///
/// The syntax is that of Python's `float`: an optional sign, then decimal
/// digits with an optional point, exponent and single underscores between
/// digits, or `inf`, `infinity` or `nan` in any case.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DecimalFloat<'p>(&'p [u8]);

/// The size of the buffer for removing underscores from a float, in bytes.
/// Python never writes any.
const UNDERSCORED_LEN: usize = 512;

impl<'p> DecimalFloat<'p> {
    /// Parses a line as Python's `float` does, ignoring white space at both
    /// ends.
    pub(super) fn new(line: &'p [u8]) -> Option<Self> {
        let number = trim(line);
        let (_, unsigned) = sign(number);
        let is_word = |word: &[u8]| unsigned.eq_ignore_ascii_case(word);
        if is_word(b"inf") || is_word(b"infinity") || is_word(b"nan") {
            return Some(Self(number));
        }
        let (whole_count, rest) = digits(unsigned)?;
        let (part_count, rest) = match rest {
            [b'.', rest @ ..] => digits(rest)?,
            _ => (0, rest),
        };
        let exponent = match rest {
            [b'e' | b'E', exponent @ ..] => digits(sign(exponent).1)?,
            _ => (1, rest),
        };
        let is_number = whole_count | part_count != 0 && exponent.0 != 0 && exponent.1.is_empty();
        is_number.then_some(Self(number))
    }

    /// The line: a decimal number or a word, with an optional sign and
    /// underscores.
    pub const fn as_bytes(self) -> &'p [u8] {
        self.0
    }

    /// The nearest float. `None` only if the line has underscores and more than
    /// 512 bytes.
    ///
    /// Links the parser of the standard library, some kilobytes of code.
    pub fn to_f64(self) -> Option<f64> {
        if !self.0.contains(&b'_') {
            return core::str::from_utf8(self.0).ok()?.parse().ok();
        }
        let mut buffer = [0; UNDERSCORED_LEN];
        let mut len = 0_usize;
        for &byte in self.0.iter().filter(|&&byte| byte != b'_') {
            *buffer.get_mut(len)? = byte;
            len = len.wrapping_add(1);
        }
        core::str::from_utf8(buffer.get(..len)?).ok()?.parse().ok()
    }
}

impl fmt::Debug for DecimalFloat<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// The number of leading digits and underscores, and the rest. `None` if an
/// underscore is not between two digits.
fn digits(line: &[u8]) -> Option<(usize, &[u8])> {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'_');
    let count = line.iter().take_while(|byte| is_digit(byte)).count();
    let (digits, rest) = line.split_at_checked(count)?;
    let mut before = b'_';
    for &byte in digits {
        if byte == b'_' && before == b'_' {
            return None;
        }
        before = byte;
    }
    (before != b'_' || count == 0).then_some((count, rest))
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::{BigInt, Decimal, DecimalFloat, PyStr};
    use crate::steps::steps_of;

    #[test]
    fn only_surrogates_are_accepted_besides_utf8() {
        for good in [
            &b""[..],
            b"a\xed\xa0\x80b",
            b"\xed\xa0\xbd\xed\xb2\x80",
            b"\xed\x9f\xbf",
        ] {
            assert!(PyStr::new(good).is_ok());
        }
        for (bad, valid_len) in [
            (&b"ab\xff"[..], 2),
            (b"\xed\xa0\x80\xed\xa0", 3),
            (b"\xc0\x80", 0),
            (b"a\xf4\x90\x80\x80", 1),
            (b"\xed\xa0\x80x\xed\xa0a", 4),
        ] {
            assert_eq!(PyStr::new(bad), Err(valid_len));
        }
    }

    #[test]
    fn big_ints_drop_redundant_sign_bytes() {
        for (bytes, short, value) in [
            (&[][..], &[][..], 0),
            (&[0, 0, 0], &[], 0),
            (&[0xff; 40], &[0xff], -1),
            (&[0xff, 0], &[0xff, 0], 255),
            (&[0x80], &[0x80], -128),
            (&[0x80, 0xff, 0xff], &[0x80], -128),
            (&[0, 0xff], &[0, 0xff], -256),
            (&[1, 0], &[1], 1),
        ] {
            let integer = BigInt::new(bytes);
            assert_eq!(
                (integer.as_bytes(), integer.to_i128()),
                (short, Some(value))
            );
        }
        let mut large = [0; 17];
        if let Some(last) = large.last_mut() {
            *last = 1;
        }
        assert_eq!(BigInt::new(&large).to_i128(), None);
    }

    #[test]
    #[cfg(feature = "alloc")]
    fn visiting_values_again_does_not_read_their_data() {
        use alloc::vec::Vec;
        let steps = |opcode: u8, count: usize| {
            let mut pickle = Vec::from(b"\x80\x04]".as_slice());
            pickle.push(opcode);
            pickle.extend(u32::try_from(count).unwrap_or_default().to_le_bytes());
            pickle.resize(pickle.len() + count, 0);
            pickle.extend(b"\x94(");
            pickle.extend(b"h\0".repeat(count));
            pickle.extend(b"t.");
            steps_of(|| {
                let tree = crate::tree::Tree::new(&pickle);
                for node in tree.iter().flat_map(|tree| tree.root().items()) {
                    node.value();
                }
            })
        };
        for opcode in [b'\x8b', b'X'] {
            let (once, twice) = (steps(opcode, 1000), steps(opcode, 2000));
            assert!(once > 0);
            assert!(twice <= once * 9 / 4, "{once}, then {twice} steps");
        }
    }

    #[test]
    fn decimals_match_python_int() {
        for (line, value) in [
            (&b" 12_3 "[..], 123),
            (b"-0", 0),
            (b"+7\r", 7),
            (b"0_1", 1),
            (b"170141183460469231731687303715884105727", i128::MAX),
            (b"-170141183460469231731687303715884105728", i128::MIN),
        ] {
            let value_found = Decimal::new(line).and_then(Decimal::to_i128);
            assert_eq!(value_found, Some(value));
        }
        for bad in [
            &b""[..],
            b"_1",
            b"1_",
            b"1__0",
            b"+-1",
            b"1 2",
            b"0x1",
            b"\x1c1",
            b"-",
        ] {
            assert_eq!(Decimal::new(bad), None);
        }
        let too_large = Decimal::new(b"170141183460469231731687303715884105728");
        assert_eq!(too_large.and_then(Decimal::to_i128), None);
    }

    #[test]
    fn floats_match_python_float() {
        let float = |line| DecimalFloat::new(line).and_then(DecimalFloat::to_f64);
        for (line, value) in [
            (&b"1_0.5"[..], 10.5),
            (b" 1e400\t", f64::INFINITY),
            (b"InFinity", f64::INFINITY),
            (b".5e3", 500.0),
            (b"1.", 1.0),
            (b"-0.0", -0.0),
            (b"+1_2e-0_1", 1.2),
            (b"-iNf", f64::NEG_INFINITY),
        ] {
            assert_eq!(float(line).map(f64::to_bits), Some(value.to_bits()));
        }
        assert!(float(b"-nan").is_some_and(f64::is_nan));
        // One byte more than the buffer holds, not counting underscores.
        let mut long = [b'1'; 514];
        long[1] = b'_';
        assert!(DecimalFloat::new(&long).is_some() && float(&long).is_none());
        assert_eq!(
            long.get(1..).and_then(float),
            None,
            "it begins with an underscore"
        );
        assert!(long.get(..513).and_then(float).is_some());
        for bad in [
            &b""[..],
            b".",
            b"1e",
            b"1_e5",
            b"1_.0",
            b"_1",
            b"1_",
            b"0x1p3",
            b"1\0",
            b"\xff",
        ] {
            assert_eq!(float(bad), None);
        }
    }
}
