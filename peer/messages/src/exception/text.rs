//! Strings of pickles in a text of limited length.

use core::cell::Cell;
use core::fmt::{self, Write as _};

use daskwire_pickle::tree;

use crate::value;

/// The end of a shortened message.
pub(super) const SHORTENED: &str = "… (shortened)";

/// The code points of a string in UTF-8 that may contain surrogates.
pub(super) fn code_points(string: &[u8]) -> impl Iterator<Item = u32> {
    let starts = string.iter().enumerate();
    let starts = starts.filter(|(_, byte)| **byte & 0xc0 != 0x80);
    starts.map(|(at, first)| {
        let (bits, len) = match first {
            0..0x80 => (first & 0x7f, 0),
            0x80..0xe0 => (first & 0x1f, 1),
            0xe0..0xf0 => (first & 0x0f, 2),
            _ => (first & 0x07, 3),
        };
        let rest = string.iter().skip(at).skip(1).take(len);
        rest.fold(u32::from(bits), |code, byte| {
            code << 6 | u32::from(byte & 0x3f)
        })
    })
}

/// Writes a string, and surrogates as Python escapes them on a terminal.
pub(super) fn write_string(to: &mut Limited<'_>, string: tree::Str<'_>) -> fmt::Result {
    let bytes = string.to_bytes();
    if let Ok(string) = core::str::from_utf8(&bytes) {
        return to.write_str(string);
    }
    code_points(&bytes).try_for_each(|code| match char::from_u32(code) {
        Some(character) => to.write_char(character),
        None => write!(to, "\\u{code:04x}"),
    })
}

/// Writes a string as `repr()` formats it.
pub(super) fn write_quoted(to: &mut Limited<'_>, string: &[u8]) -> fmt::Result {
    let quote = value::quote_of(string);
    to.write_char(quote)?;
    for code in code_points(string) {
        match char::from_u32(code) {
            Some(character) => value::write_escaped(to, character, quote)?,
            None => write!(to, "\\u{code:04x}")?,
        }
    }
    to.write_char(quote)
}

/// A string of limited length.
pub(super) struct Limited<'l> {
    pub(super) string: String,
    pub(super) left: &'l Cell<usize>,
}

impl fmt::Write for Limited<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let left = self.left.get();
        let mut len = part.len().min(left);
        while !part.is_char_boundary(len) {
            len = len.saturating_sub(1);
        }
        self.left.set(left.saturating_sub(len));
        self.string.push_str(&part[..len]);
        if len == part.len() {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}
