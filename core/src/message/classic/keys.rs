//! Resolution of the paths of payloads in a body.

use core::cmp::Ordering;

use super::ClassicEntry;
use super::open::path_of;
use super::path::{Elements, IndexKey, compare_values};
use crate::invariant::Ensured as _;
use crate::message::level::Container;
use crate::message::open::Scan;
use crate::message::slot::{Slot, offset, span};
use crate::message::{MessageError, MessageErrorKind};
use crate::msgpack::{Reader, Token};

impl Scan<'_> {
    /// The payloads at and below the next value in `container`, which is `depth`
    /// elements down the paths. A payload at the value itself is marked as
    /// present.
    pub(in crate::message) fn below(
        &self,
        container: &Container,
        range: (usize, usize),
        depth: usize,
        slots: &mut [Slot],
    ) -> Result<(usize, usize), MessageError> {
        let mut index = IndexKey::default();
        let element = container.element(self.body, &mut index);
        let element_index = depth.saturating_sub(1);
        let found = matching(self.paths, slots, range, element_index, element);
        if let Some(Slot::Path(entry)) = slots.get_mut(found.0)
            && found.0 < found.1
            && Elements::new(span(self.paths, entry.path)).len() == depth
        {
            follow(entry, depth)?;
            entry.present = true;
            entry.resolved = true;
            return Ok((0, 0));
        }
        Ok(found)
    }

    /// Marks the payloads directly in the container that `token` opens, and
    /// returns the range of payloads below it (PROTOCOL CLASSIC-5).
    pub(in crate::message) fn resolve(
        &self,
        token: Token<'_>,
        below: (usize, usize),
        depth: usize,
        slots: &mut [Slot],
    ) -> Result<(usize, usize), MessageError> {
        let (low, high) = below;
        for slot in slots.get_mut(low..high).ensured() {
            let Slot::Path(entry) = slot else {
                continue;
            };
            follow(entry, depth)?;
            let elements = Elements::new(span(self.paths, entry.path));
            match (elements.len()).checked_sub(depth) {
                // The payload is the whole message.
                Some(0) => {
                    entry.resolved = true;
                    entry.present = true;
                }
                Some(1) => {
                    entry.resolved = match token {
                        Token::Map(_) => true,
                        Token::Array(count) => elements.last().is_some_and(|index| {
                            // An index within the list.
                            Reader::new(index)
                                .u64()
                                .is_ok_and(|index| index < u64::from(count))
                        }),
                        _ => false,
                    };
                }
                _ => {}
            }
        }
        Ok(match token {
            Token::Map(_) | Token::Array(_) => below,
            _ => (0, 0),
        })
    }
}

/// The part of `range` whose paths have `element` at position `index`.
pub(in crate::message) fn matching(
    paths: &[u8],
    slots: &[Slot],
    range: (usize, usize),
    index: usize,
    element: &[u8],
) -> (usize, usize) {
    let part = slots.get(range.0..range.1).ensured();
    let low = part.partition_point(|slot| element_order(paths, slot, index, element).is_lt());
    let rest = part.get(low..).ensured();
    let len = rest.partition_point(|slot| element_order(paths, slot, index, element).is_le());
    let low = range.0.saturating_add(low);
    (low, low.saturating_add(len))
}

/// Compares the element of a path with `element`, for binary search.
fn element_order(paths: &[u8], slot: &Slot, index: usize, element: &[u8]) -> Ordering {
    let mut elements = Elements::new(path_of(paths, slot));
    match elements.nth(index) {
        None => Ordering::Less,
        Some(other) => compare_values(other, element),
    }
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
