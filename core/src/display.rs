//! Formatting of any bytes as readable text.
//!
//! For logs and debuggers. Formatting never fails: valid input is shown, and at
//! a fault the output has the error with its offset.
//!
//! ```
//! use daskwire::display::Document;
//! let shown = |bytes: &'static [u8]| Document::new(bytes).to_string();
//! assert_eq!(shown(b"\x82\xa2op\xa4ping\x92x\x00\xc4\x03\x00a\xff"),
//!     r#"{"op": "ping", [120, 0]: b"\x00a\xff"}"#);
//! assert_eq!(shown(b"\x82\xa2op\xa4ping\xa5reply\xd9"),
//!     r#"{"op": "ping", "reply": <at byte 15: the document ends inside a value that takes 2 bytes; 1 are left>"#);
//! ```

use core::fmt;

use crate::Limits;
use crate::invariant::OrDefaultIfBug as _;
use crate::msgpack::{Malformed, MalformedKind, Reader, Token};

/// The maximum depth of nesting shown; deeper values are shown as their size.
const LEVELS: usize = 64;

/// The maximum length of a byte string shown, in bytes.
const MAX_BYTES: usize = 32;

/// Whether a terminal shows this character without other effects.
///
/// False for control characters (ESC and the rest of C0 and C1, DEL),
/// characters that change the order of others (bidirectional controls) or break
/// lines, and invisible characters (zero-width characters, tags).
pub fn is_printable(character: char) -> bool {
    match character {
        ' '..='~' => true,
        // Invisible marks and letters that Rust considers printable.
        '\u{34f}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{17b4}'
        | '\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{3164}'
        | '\u{ffa0}'
        | '\u{e0000}'..='\u{e0fff}' => false,
        // Combining marks are printable after another character, so test with
        // one.
        _ => {
            let mut buffer = [b'x'; 5];
            let [_, rest @ ..] = &mut buffer;
            character.encode_utf8(rest);
            let len = character.len_utf8().saturating_add(1);
            let string = buffer.get(..len).map(core::str::from_utf8);
            matches!(string, Some(Ok(string)) if string.escape_debug().count() == 2)
        }
    }
}

/// Formats a peer's string on one line: each character that is not
/// [printable](is_printable) is escaped, as `\n` or `\u{1b}`.
///
/// ```
/// use daskwire::display::Printable;
/// assert_eq!(Printable("naïve \x1b[31m\n").to_string(), r"naïve \u{1b}[31m\n");
/// ```
#[derive(Clone, Copy)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Debug for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(at) = rest.find(|character| !is_printable(character)) {
            let (plain, after) = rest.split_at_checked(at).or_default_if_bug();
            f.write_str(plain)?;
            let mut characters = after.chars();
            if let Some(character) = characters.next() {
                write!(f, "{}", character.escape_default())?;
            }
            rest = characters.as_str();
        }
        f.write_str(rest)
    }
}

/// Formats a MessagePack document, similar to Python's `repr`.
///
/// Long byte strings are truncated. Containers nested deeper than 64 levels are
/// shown as their size. Takes time proportional to the document.
#[derive(Clone, Copy)]
pub struct Document<'a>(&'a [u8]);

impl<'a> Document<'a> {
    /// Wraps any bytes.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Document<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Document<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = Limits::HOST.with_items(u32::MAX);
        let mut reader = Reader::with_limits(self.0, &limits);
        if let Err(fault) = value(&mut reader, f)? {
            return write!(f, "<{fault}>");
        }
        match reader.finish() {
            Ok(()) => Ok(()),
            Err(Malformed {
                at,
                kind: MalformedKind::Trailing { len },
            }) => write!(f, " <at byte {at}: {len} bytes after the document>"),
            Err(fault) => write!(f, " <{fault}>"),
        }
    }
}

/// Formats one value. The outer result is the formatter's, the inner one the
/// document's.
fn value(
    reader: &mut Reader<'_>,
    f: &mut fmt::Formatter<'_>,
) -> Result<Result<(), Malformed>, fmt::Error> {
    // The number of values owed to each open container, and whether it is a
    // map.
    let mut levels = [(0_u64, false); LEVELS];
    let mut depth = 0_usize;
    loop {
        let before = *reader;
        let token = match reader.token() {
            Ok(token) => token,
            Err(fault) => return Ok(Err(fault)),
        };
        let child_count = token.child_count();
        let is_map = matches!(token, Token::Map(_));
        match token {
            Token::Array(_) | Token::Map(_) if child_count != 0 => {
                if let Some(level) = levels.get_mut(depth) {
                    f.write_str(if is_map { "{" } else { "[" })?;
                    *level = (child_count, is_map);
                    depth = depth.saturating_add(1);
                    continue;
                }
                *reader = before;
                match reader.skip() {
                    Ok(bytes) => write!(f, "<{} bytes nested deeper>", bytes.len())?,
                    Err(fault) => return Ok(Err(fault)),
                }
            }
            token => scalar(token, f)?,
        }
        // After a value: the next separator, or the ends of the containers that
        // it completes.
        loop {
            let Some(level) = depth.checked_sub(1).and_then(|top| levels.get_mut(top)) else {
                return Ok(Ok(()));
            };
            level.0 = level.0.wrapping_sub(1);
            let (owed, is_map) = *level;
            if owed != 0 {
                f.write_str(if is_map && owed & 1 == 1 { ": " } else { ", " })?;
                break;
            }
            f.write_str(if is_map { "}" } else { "]" })?;
            depth = depth.wrapping_sub(1);
        }
    }
}

fn scalar(token: Token<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match token {
        Token::Nil => f.write_str("nil"),
        Token::Bool(value) => write!(f, "{value}"),
        Token::UInt(value) => write!(f, "{value}"),
        Token::Int(value) => write!(f, "{value}"),
        Token::F32(value) => write!(f, "{value:?}"),
        Token::F64(value) => write!(f, "{value:?}"),
        Token::Str(string) => match string.to_str() {
            Ok(string) => write!(f, "{string:?}"),
            Err(_) => write!(f, "<not UTF-8: {string:?}>"),
        },
        Token::Bin(data) => {
            f.write_str("b")?;
            bytes(data, f)
        }
        Token::Array(_) => f.write_str("[]"),
        Token::Map(_) => f.write_str("{}"),
        Token::Ext(code, data) => {
            write!(f, "ext({code}, ")?;
            bytes(data, f)?;
            f.write_str(")")
        }
    }
}

fn bytes(data: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match data.get(..MAX_BYTES) {
        Some(start) if data.len() > MAX_BYTES => {
            write!(f, "\"{}\"… {} bytes", start.escape_ascii(), data.len())
        }
        _ => write!(f, "\"{}\"", data.escape_ascii()),
    }
}
