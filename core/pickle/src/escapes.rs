//! Decoding of the escapes in lines of old protocols, as in CPython.

use core::{array, iter};

/// Iterator over the decoded bytes of a line of STRING or UNICODE.
///
/// A [`Reader`](super::Reader) validates such lines and returns them undecoded
/// in [`Argument::Line`](super::Argument::Line). For any other line the
/// iterator stops at an invalid escape.
///
/// ```
/// use daskwire_pickle::{Argument, Reader, Unescaped};
///
/// let token = Reader::new(b"V\\u00e4\xf6\n.").text_opcodes(true).next_token()?;
/// let Some(Argument::Line(line)) = token.map(|token| token.argument) else { panic!() };
/// assert!(Unescaped::unicode(line).eq("äö".bytes()));
///
/// assert!(Unescaped::string(b"'a\\x41\\n'").eq(*b"aA\n"));
/// # Ok::<(), daskwire_pickle::PickleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Unescaped<'p> {
    line: &'p [u8],
    decode: Decode,
    /// The bytes of the last decoded piece that have not been returned yet.
    decoded: Piece,
}

/// Up to four bytes.
type Piece = iter::Take<array::IntoIter<u8, 4>>;

/// Decodes the first character or escape of a line that is not empty. `None`
/// for an invalid escape.
type Decode = fn(&[u8]) -> Option<(Piece, &[u8])>;

impl<'p> Unescaped<'p> {
    /// The bytes of a line of STRING: the contents of its quotes, with the
    /// escapes of a `bytes` literal. Empty if it has no quotes.
    pub fn string(line: &'p [u8]) -> Self {
        Self::new(quoted(line).unwrap_or_default(), decode_string)
    }

    /// The string of a line of UNICODE, in UTF-8, in which a surrogate takes
    /// three bytes as in [`PyStr`](super::PyStr). The line is Latin-1, with
    /// `\uXXXX` and `\UXXXXXXXX` after an even number of backslashes.
    pub fn unicode(line: &'p [u8]) -> Self {
        Self::new(line, decode_unicode)
    }

    fn new(line: &'p [u8], decode: Decode) -> Self {
        Self {
            line,
            decode,
            decoded: piece(&[]),
        }
    }
}

impl Iterator for Unescaped<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        loop {
            if let Some(byte) = self.decoded.next() {
                return Some(byte);
            }
            if self.line.is_empty() {
                return None;
            }
            (self.decoded, self.line) = (self.decode)(self.line).unwrap_or((piece(&[]), &[]));
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // A Latin-1 character takes at most two bytes, and no escape decodes to
        // more bytes than it has.
        let max_len = self.line.len().saturating_mul(2);
        (0, max_len.checked_add(self.decoded.len()))
    }
}

impl iter::FusedIterator for Unescaped<'_> {}

/// A fault in the line of STRING.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StringFault {
    NotQuoted,
    BadEscape,
    NotAscii,
}

/// Checks that `pickletools` can read this line as the argument of STRING:
/// quoted, with escapes that decode to ASCII.
pub(super) fn check_string(line: &[u8]) -> Result<(), StringFault> {
    let mut rest = quoted(line).ok_or(StringFault::NotQuoted)?;
    let mut is_ascii = true;
    while !rest.is_empty() {
        let (mut bytes, after) = decode_string(rest).ok_or(StringFault::BadEscape)?;
        is_ascii &= bytes.all(|byte| byte.is_ascii());
        rest = after;
    }
    if is_ascii {
        Ok(())
    } else {
        Err(StringFault::NotAscii)
    }
}

/// Whether all `\u` and `\U` in a line are raw-unicode-escapes of Python.
pub(super) fn check_unicode(line: &[u8]) -> bool {
    let mut rest = line;
    while !rest.is_empty() {
        let Some((_, after)) = decode_unicode(rest) else {
            return false;
        };
        rest = after;
    }
    true
}

/// The bytes between the quotes.
pub(super) const fn quoted(line: &[u8]) -> Option<&[u8]> {
    match line {
        // pickletools accepts a single quote as both the start and the end.
        [b'"'] | [b'\''] => Some(&[]),
        [b'"', inner @ .., b'"'] | [b'\'', inner @ .., b'\''] => Some(inner),
        _ => None,
    }
}

fn piece(bytes: &[u8]) -> Piece {
    let mut piece = [0; 4];
    piece
        .iter_mut()
        .zip(bytes)
        .for_each(|(place, byte)| *place = *byte);
    piece.into_iter().take(bytes.len())
}

fn decode_string(line: &[u8]) -> Option<(Piece, &[u8])> {
    let (byte, rest) = match line {
        [b'\\', escape @ ..] => match escape {
            [b'\n', rest @ ..] => return Some((piece(&[]), rest)),
            [kind @ (b'\\' | b'\'' | b'"'), rest @ ..] => (*kind, rest),
            [b'a', rest @ ..] => (0x07, rest),
            [b'b', rest @ ..] => (0x08, rest),
            [b't', rest @ ..] => (b'\t', rest),
            [b'n', rest @ ..] => (b'\n', rest),
            [b'v', rest @ ..] => (0x0b, rest),
            [b'f', rest @ ..] => (0x0c, rest),
            [b'r', rest @ ..] => (b'\r', rest),
            [b'x', digits @ ..] => {
                let (value, rest) = hexadecimal(digits, 2)?;
                (value.to_le_bytes()[0], rest)
            }
            [b'0'..=b'7', ..] => octal(escape),
            // Not an escape: both bytes are literal.
            [_, ..] => (b'\\', escape),
            [] => return None,
        },
        [byte, rest @ ..] => (*byte, rest),
        [] => return None,
    };
    Some((piece(&[byte]), rest))
}

fn decode_unicode(line: &[u8]) -> Option<(Piece, &[u8])> {
    let (code, rest) = match line {
        [b'\\', b'u', digits @ ..] => hexadecimal(digits, 4)?,
        [b'\\', b'U', digits @ ..] => hexadecimal(digits, 8)?,
        // The second byte may also be a backslash, which then does not begin an
        // escape.
        [b'\\', byte @ 0x80..=0xff, rest @ ..] => {
            let bytes = [b'\\', 0xc0 | (byte >> 6), 0x80 | (byte & 0x3f)];
            return Some((piece(&bytes), rest));
        }
        [b'\\', byte, rest @ ..] => return Some((piece(&[b'\\', *byte]), rest)),
        [byte, rest @ ..] => (u32::from(*byte), rest),
        [] => return None,
    };
    Some((utf8(code)?, rest))
}

/// The UTF-8 of a code point, surrogates included. (`char::encode_utf8` can
/// panic.)
fn utf8(code: u32) -> Option<Piece> {
    let low = |shift: u32| {
        let [byte, ..] = (code >> shift).to_le_bytes();
        byte
    };
    let tail = |shift: u32| 0x80 | (low(shift) & 0x3f);
    Some(match code {
        0..=0x7f => piece(&[low(0)]),
        0x80..=0x7ff => piece(&[0xc0 | low(6), tail(0)]),
        0x800..=0xffff => piece(&[0xe0 | low(12), tail(6), tail(0)]),
        0x1_0000..=0x10_ffff => piece(&[0xf0 | low(18), tail(12), tail(6), tail(0)]),
        _ => return None,
    })
}

/// The value of `count` hexadecimal digits; at most 8.
fn hexadecimal(line: &[u8], count: usize) -> Option<(u32, &[u8])> {
    let (digits, rest) = line.split_at_checked(count)?;
    let value = digits.iter().try_fold(0_u32, |value, digit| {
        Some((value << 4) | char::from(*digit).to_digit(16)?)
    })?;
    Some((value, rest))
}

/// The low 8 bits of up to three octal digits, as in Python.
fn octal(line: &[u8]) -> (u8, &[u8]) {
    let mut value = 0_u8;
    let mut rest = line;
    for _ in 0..3 {
        let [digit @ b'0'..=b'7', after @ ..] = rest else {
            break;
        };
        value = (value << 3) | (digit & 7);
        rest = after;
    }
    (value, rest)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::{StringFault, Unescaped, check_string, check_unicode};

    fn is<const N: usize>(unescaped: Unescaped<'_>, expected: &[u8; N]) -> bool {
        let (min_len, max_len) = unescaped.size_hint();
        assert!(min_len <= N && N <= max_len.unwrap_or(0));
        unescaped.eq(*expected)
    }

    #[test]
    fn string_escapes_match_python() {
        // Python: codecs.escape_decode(LINE[1:-1])
        assert!(is(Unescaped::string(b"''"), b""));
        assert!(is(Unescaped::string(b"'a\"b'"), b"a\"b"));
        assert!(is(
            Unescaped::string(br#""\\\'\"\a\b\t\n\v\f\r""#),
            b"\\'\"\x07\x08\t\n\x0b\x0c\r"
        ));
        assert!(is(Unescaped::string(br"'\x41\x7fg'"), b"A\x7fg"));
        assert!(is(Unescaped::string(br"'\0\18\1018'"), b"\0\x018A8"));
        assert!(is(Unescaped::string(br"'\400\777'"), b"\0\xff"));
        assert!(is(Unescaped::string(br"'\q\u0041\N'"), br"\q\u0041\N"));
        assert!(is(Unescaped::string(b"'a\\\nb'"), b"ab"));
        // pickletools accepts these as quoted.
        assert!(is(Unescaped::string(b"'"), b""));
        for (bad, fault) in [
            (&b""[..], StringFault::NotQuoted),
            (b"a", StringFault::NotQuoted),
            (b"'a\"", StringFault::NotQuoted),
            (br"'\'", StringFault::BadEscape),
            (br"'\x4'", StringFault::BadEscape),
            (br"'\xg0'", StringFault::BadEscape),
            (br"'\xff\x'", StringFault::BadEscape),
            (br"'\xff'", StringFault::NotAscii),
            (br"'\200'", StringFault::NotAscii),
            (b"'\xe4'", StringFault::NotAscii),
        ] {
            assert_eq!(check_string(bad), Err(fault));
        }
        assert!(is(Unescaped::string(br"'ab\xg0c'"), b"ab"));
        assert!(is(Unescaped::string(b"no quotes"), b""));
    }

    #[test]
    fn unicode_escapes_match_python() {
        // Python: LINE.decode("raw-unicode-escape").encode("utf-8", "surrogatepass")
        for (line, expected) in [
            (&b""[..], &b""[..]),
            (b"\\", b"\\"),
            (b"\\\\u12", b"\\\\u12"),
            (b"\\\\\\u0041", b"\\\\A"),
            (b"\\x\xff", b"\\x\xc3\xbf"),
            (b"\\\xe4", b"\\\xc3\xa4"),
            (b"\xe4\\u00E4", "ää".as_bytes()),
            (b"\\n\\", b"\\n\\"),
            (b"\\ud800\\uDFFF", b"\xed\xa0\x80\xed\xbf\xbf"),
            (b"\\U0000ffff", b"\xef\xbf\xbf"),
            (b"\\U0010fFff", b"\xf4\x8f\xbf\xbf"),
            (b"\\u20aca", "€a".as_bytes()),
        ] {
            assert!(check_unicode(line));
            assert!(Unescaped::unicode(line).eq(expected.iter().copied()));
            let (_, max_len) = Unescaped::unicode(line).size_hint();
            assert!(max_len >= Some(expected.len()));
        }
        for bad in [
            &b"a\\u12"[..],
            b"a\\u12g4",
            b"a\\U00110000",
            b"a\\U01000000",
            b"a\\Uffffffff",
            b"a\\U0010fff",
        ] {
            assert!(!check_unicode(bad));
            assert!(Unescaped::unicode(bad).eq(*b"a"));
        }
    }
}
