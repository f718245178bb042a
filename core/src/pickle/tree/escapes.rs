//! The escapes of old protocols, decoded as CPython does.
//!
//! What is decoded here was checked by a reader.

use alloc::borrow::Cow;
use alloc::vec::Vec;

/// The line of UNICODE, in UTF-8 with surrogates: Latin-1, and `\uXXXX` and
/// `\UXXXXXXXX` behind an even number of backslashes.
pub(super) fn raw_unicode(line: &[u8]) -> Cow<'_, [u8]> {
    if line.is_ascii() && !line.contains(&b'\\') {
        return Cow::Borrowed(line);
    }
    let mut out = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte != b'\\' {
            push(&mut out, byte.into());
            continue;
        }
        let Some((&kind, behind)) = rest.split_first() else {
            out.push(byte);
            break;
        };
        rest = behind;
        let len = match kind {
            b'u' => 4,
            b'U' => 8,
            _ => {
                out.push(byte);
                push(&mut out, kind.into());
                continue;
            }
        };
        let (digits, behind) = rest.split_at_checked(len).unwrap_or_default();
        rest = behind;
        push(&mut out, number(digits, 16));
    }
    Cow::Owned(out)
}

fn number(digits: &[u8], base: u32) -> u32 {
    digits.iter().fold(0_u32, |value, digit| {
        let digit = char::from(*digit).to_digit(base).unwrap_or(0);
        value.wrapping_mul(base).wrapping_add(digit)
    })
}

/// Appends a character, or a surrogate as if it were one.
fn push(out: &mut Vec<u8>, code: u32) {
    if let Some(character) = char::from_u32(code) {
        let mut bytes = [0; 4];
        out.extend_from_slice(character.encode_utf8(&mut bytes).as_bytes());
    } else {
        let [low, high, ..] = code.to_le_bytes();
        let middle = ((high << 2) & 0x3c) | (low >> 6);
        out.extend_from_slice(&[0xed, 0x80 | middle, 0x80 | (low & 0x3f)]);
    }
}

/// The line of STRING: what its quotes contain, with the escapes of a `bytes`
/// literal decoded.
pub(super) fn quoted(line: &[u8]) -> Cow<'_, [u8]> {
    let inner = match line {
        [b'"', inner @ .., b'"'] | [b'\'', inner @ .., b'\''] => inner,
        _ => &[],
    };
    if !inner.contains(&b'\\') {
        return Cow::Borrowed(inner);
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let Some((&kind, behind)) = rest.split_first() else {
            break;
        };
        rest = behind;
        let decoded = match kind {
            b'\n' => continue,
            b'\\' | b'\'' | b'"' => kind,
            b'a' => 7,
            b'b' => 8,
            b't' => b'\t',
            b'n' => b'\n',
            b'v' => 11,
            b'f' => 12,
            b'r' => b'\r',
            b'x' => {
                let (digits, behind) = rest.split_at_checked(2).unwrap_or_default();
                rest = behind;
                number(digits, 16).to_le_bytes()[0]
            }
            b'0'..=b'7' => {
                let more = behind.iter().take(2);
                let count = more
                    .take_while(|digit| matches!(digit, b'0'..=b'7'))
                    .count();
                let (digits, behind) = behind.split_at_checked(count).unwrap_or_default();
                rest = behind;
                // Python keeps the low 8 bits.
                let first = u32::from(kind & 7) << (3_usize.wrapping_mul(count) & 31);
                (first | number(digits, 8)).to_le_bytes()[0]
            }
            _ => {
                out.push(byte);
                kind
            }
        };
        out.push(decoded);
    }
    Cow::Owned(out)
}
