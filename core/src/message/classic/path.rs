//! Paths of payloads in the classic layout, and their order.
//!
//! A payload's path is an array of map keys and list indices, or a single key.
//! Sorting payloads by path makes those below one value of the body adjacent,
//! so that a walk of the body only needs ranges.

use core::cmp::Ordering;

use crate::msgpack::{Reader, Token};

/// The elements of a path, each as its encoded bytes.
///
/// The path has been validated before, so errors cannot occur; an error would
/// end the path.
#[derive(Clone)]
pub(in crate::message) struct Elements<'a> {
    reader: Reader<'a>,
    left: u32,
}

impl<'a> Elements<'a> {
    pub(in crate::message) fn new(path: &'a [u8]) -> Self {
        let mut reader = Reader::new(path);
        match reader.peek() {
            Ok(Token::Array(count)) => {
                let _ = reader.token();
                Self {
                    reader,
                    left: count,
                }
            }
            // A single key (PROTOCOL CLASSIC-5).
            _ => Self { reader, left: 1 },
        }
    }

    pub(in crate::message) const fn len(&self) -> usize {
        self.left as usize
    }

    /// Offset of the next element in the path.
    pub(super) const fn position(&self) -> usize {
        self.reader.position()
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        self.reader.skip().ok()
    }
}

/// Orders paths so that a path comes directly before those that it is a prefix
/// of.
pub(in crate::message) fn compare_paths(a: &[u8], b: &[u8]) -> Ordering {
    let (mut a, mut b) = (Elements::new(a), Elements::new(b));
    loop {
        match (a.left.checked_sub(1), b.left.checked_sub(1)) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(a_left), Some(b_left)) => match compare_next(&mut a.reader, &mut b.reader) {
                Ordering::Equal => (a.left, b.left) = (a_left, b_left),
                other => return other,
            },
        }
    }
}

/// Whether `start` is a prefix of `path`.
pub(in crate::message) fn begins_with(path: &[u8], start: &[u8]) -> bool {
    let (mut path, mut start) = (Elements::new(path), Elements::new(start));
    start.len() <= path.len()
        && (0..start.len()).all(|_| compare_next(&mut path.reader, &mut start.reader).is_eq())
}

/// A total order of encoded values: integers by value regardless of width, all
/// others by kind and content. Reads equal values, and of others no more than the
/// shorter.
pub(super) fn compare_next(a: &mut Reader<'_>, b: &mut Reader<'_>) -> Ordering {
    let mut owed = 1_u64;
    while owed != 0 {
        let (a, b) = match (a.token(), b.token()) {
            (Ok(a), Ok(b)) => (a, b),
            // Neither was a value.
            (Err(_), Err(_)) => return Ordering::Equal,
            (Err(_), Ok(_)) => return Ordering::Less,
            (Ok(_), Err(_)) => return Ordering::Greater,
        };
        match compare_tokens(a, b) {
            Ordering::Equal => {}
            other => return other,
        }
        owed = owed.wrapping_sub(1).saturating_add(a.child_count());
    }
    Ordering::Equal
}

pub(super) fn compare_tokens(a: Token<'_>, b: Token<'_>) -> Ordering {
    match (a, b) {
        (Token::Bool(a), Token::Bool(b)) => a.cmp(&b),
        (Token::UInt(a), Token::UInt(b)) => a.cmp(&b),
        (Token::Int(a), Token::Int(b)) => a.cmp(&b),
        (Token::F32(a), Token::F32(b)) => a.total_cmp(&b),
        (Token::F64(a), Token::F64(b)) => a.total_cmp(&b),
        (Token::Str(a), Token::Str(b)) => a.cmp(&b),
        (Token::Bin(a), Token::Bin(b)) => a.cmp(b),
        (Token::Array(a), Token::Array(b)) | (Token::Map(a), Token::Map(b)) => a.cmp(&b),
        (Token::Ext(a, x), Token::Ext(b, y)) => (a, x).cmp(&(b, y)),
        (a, b) => rank(a).cmp(&rank(b)),
    }
}

/// The order of tokens of different variants.
const fn rank(token: Token<'_>) -> (u8, bool) {
    let is_second_of_kind = matches!(token, Token::Int(_) | Token::F64(_));
    (token.kind() as u8, is_second_of_kind)
}
