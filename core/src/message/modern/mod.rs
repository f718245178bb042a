//! The modern layout, of distributed 2021.3.1 and later: placeholders in the
//! body refer to the frames of payloads.

use super::level::ScanLevel;
use super::slot::{Slot, offset, sort};
use super::{MessageError, MessageErrorKind, PayloadKind};

/// Limits the frames of each payload to those before the header of the next
/// one, so that no two payloads share a frame, regardless of their headers
/// (PROTOCOL MODERN-7).
pub(super) fn set_frame_limits(
    placeholders: &mut [Slot],
    frame_count: usize,
) -> Result<(), MessageError> {
    sort(placeholders, &|a, b| a.frame().cmp(&b.frame()));
    let mut end = offset(frame_count);
    for slot in placeholders.iter_mut().rev() {
        if let Slot::Placeholder { frame, limit, .. } = slot {
            if *frame == end {
                let kind = MessageErrorKind::FramesShared;
                return Err(MessageError::new(end as usize, 0, kind));
            }
            *limit = end;
            end = *frame;
        }
    }
    sort(placeholders, &|a, b| a.start().cmp(&b.start()));
    Ok(())
}

/// The placeholder for a map with one of the reserved keys. It may refer to any
/// frame; other keys are dropped (PROTOCOL MODERN-2, MODERN-6 and MODERN-8).
pub(super) fn placeholder(
    level: &ScanLevel,
    end: u32,
    frame_count: usize,
) -> Result<Option<Slot>, MessageErrorKind> {
    let (kind, reference) = match (level.serialized, level.pickled) {
        (Some(reference), _) => (PayloadKind::Serialized, reference),
        (None, Some(reference)) => (PayloadKind::Pickled, reference),
        (None, None) => return Ok(None),
    };
    if level.in_key {
        return Err(MessageErrorKind::PlaceholderInKey);
    }
    let index = reference
        .filter(|index| *index != 0)
        .ok_or(MessageErrorKind::PlaceholderNotFrame)?;
    match u32::try_from(index) {
        Ok(frame) if (frame as usize) < frame_count => Ok(Some(Slot::Placeholder {
            start: level.start,
            end,
            frame,
            limit: frame,
            kind,
        })),
        _ => Err(MessageErrorKind::PlaceholderPastEnd { index, frame_count }),
    }
}
