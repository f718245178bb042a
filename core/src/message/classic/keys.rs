//! Resolution of the paths of payloads in a body.

use core::cmp::Ordering;

use super::ClassicEntry;
use super::path::{Elements, compare_next, compare_tokens};
use crate::invariant::OrDefaultIfBug as _;
use crate::message::level::{Container, Nesting, VALIDATED};
use crate::message::open::Scan;
use crate::message::slot::{Slot, offset, span};
use crate::message::{MessageError, MessageErrorKind};
use crate::msgpack::{Reader, Token};

impl Scan<'_> {
    /// The payloads at and below the next value in `container`, which begins at
    /// `at` and is `depth` elements down the paths. A payload at the value itself is
    /// marked as present.
    pub(in crate::message) fn below(
        &self,
        container: &Container,
        range: (usize, usize),
        (at, depth): (usize, usize),
        slots: &mut [Slot],
    ) -> Result<(usize, usize), MessageError> {
        let found = self.matching(container, range, depth, slots);
        if let Some(Slot::Path(entry)) = slots.get_mut(found.0)
            && found.0 < found.1
            && Elements::new(span(self.paths, entry.path)).len() == depth
        {
            follow(entry, depth)?;
            entry.cursor = container.key;
            entry.target = offset(at);
            entry.present = true;
            entry.resolved = true;
            return Ok((0, 0));
        }
        Ok(found)
    }

    /// Marks the payloads directly in the container that `token` opens at `at`, and
    /// returns the range of payloads below it (PROTOCOL CLASSIC-5).
    pub(in crate::message) fn resolve(
        &self,
        token: Token<'_>,
        below: (usize, usize),
        (at, depth): (usize, usize),
        slots: &mut [Slot],
    ) -> Result<(usize, usize), MessageError> {
        let (low, high) = below;
        for slot in slots.get_mut(low..high).or_default_if_bug() {
            let Slot::Path(entry) = slot else {
                continue;
            };
            follow(entry, depth)?;
            let elements = Elements::new(span(self.paths, entry.path));
            // The next element.
            entry.cursor = match depth {
                0 => entry.path.0.saturating_add(offset(elements.position())),
                _ => {
                    let mut last = reader_at(self.paths, entry.cursor);
                    last.skip().or_default_if_bug();
                    entry.cursor.saturating_add(offset(last.position()))
                }
            };
            match (elements.len()).checked_sub(depth) {
                // The payload is the whole message.
                Some(0) => {
                    entry.resolved = true;
                    entry.present = true;
                    return Ok((0, 0));
                }
                Some(1) => {
                    entry.target = offset(at);
                    entry.resolved = match token {
                        Token::Map(_) => true,
                        // An index within the list.
                        Token::Array(count) => reader_at(self.paths, entry.cursor)
                            .u64()
                            .is_ok_and(|index| index < u64::from(count)),
                        _ => false,
                    };
                }
                _ => {}
            }
        }
        match token {
            Token::Map(_) | Token::Array(_) => Ok(below),
            _ if low == high => Ok(below),
            _ => Err(path_missing(slots, low)),
        }
    }

    /// The part of `range` whose paths lead to the next value in `container`.
    fn matching(
        &self,
        container: &Container,
        range: (usize, usize),
        depth: usize,
        slots: &[Slot],
    ) -> (usize, usize) {
        let order = |slot: &Slot| {
            slot.path().map_or(Ordering::Less, |entry| {
                self.element_order(container, depth, entry)
            })
        };
        let part = slots.get(range.0..range.1).or_default_if_bug();
        let low = part.partition_point(|slot| order(slot).is_lt());
        let rest = part.get(low..).or_default_if_bug();
        let len = rest.partition_point(|slot| order(slot).is_le());
        let low = range.0.saturating_add(low);
        (low, low.saturating_add(len))
    }

    /// Compares the next element of a path with the key or index of the next value,
    /// for binary search.
    fn element_order(&self, container: &Container, depth: usize, entry: &ClassicEntry) -> Ordering {
        let is_followed = entry.followed as usize > depth;
        if container.nesting == Nesting::Map {
            let document = if is_followed { self.body } else { self.paths };
            let mut element = reader_at(document, entry.cursor);
            return compare_next(&mut element, &mut reader_at(self.body, container.key));
        }
        // To an earlier value.
        if is_followed {
            return Ordering::Less;
        }
        let index = Token::UInt(container.index().into());
        let element = reader_at(self.paths, entry.cursor).token();
        element.map_or(Ordering::Less, |element| compare_tokens(element, index))
    }
}

/// Records for payloads in a value that the body has it at `key`, if in a map.
pub(in crate::message) fn leave(slots: &mut [Slot], (low, high): (usize, usize), key: u32) {
    for slot in slots.get_mut(low..high).or_default_if_bug() {
        if let Slot::Path(entry) = slot {
            entry.cursor = key;
        }
    }
}

/// The error for a payload whose path does not exist.
pub(in crate::message) fn path_missing(slots: &[Slot], payload: usize) -> MessageError {
    let entry = slots.get(payload).and_then(Slot::path);
    let at = entry.map_or(0, |entry| entry.path.0 as usize);
    MessageError::new(2, at, MessageErrorKind::PathMissing)
}

/// Records that `depth` elements of a path lead to a value. With a duplicate
/// key in a map they would lead to two values, each with the payloads below,
/// which is an error.
fn follow(entry: &mut ClassicEntry, depth: usize) -> Result<(), MessageError> {
    let followed = offset(depth).saturating_add(1);
    if entry.followed >= followed {
        let at = entry.path.0 as usize;
        return Err(MessageError::new(2, at, MessageErrorKind::PathAmbiguous));
    }
    entry.followed = followed;
    Ok(())
}

fn reader_at(document: &[u8], at: u32) -> Reader<'_> {
    Reader::with_limits(document.get(at as usize..).or_default_if_bug(), &VALIDATED)
}
