//! Payloads of tasks in little memory.
//!
//! The tasks of one layer of a graph differ in their keys, indexes and a few arguments. Of all but one
//! of them, only the differences are kept.

use std::sync::Arc;

use daskwire_messages::Serialized;

/// Maximum length in bytes of a pickle that others are compared with. It stays as long as there are
/// tasks whose keys have the same name.
const MAX_BASE_LEN: usize = 8 << 10;

/// The payload of a task, its `run_spec`.
#[derive(Clone, Debug)]
pub(super) enum Payload {
    /// Anything.
    Whole(Serialized),
    /// A pickle, as the payloads of most tasks are.
    Pickle(Arc<[u8]>),
    /// A pickle of the same length as `base`.
    Like {
        base: Arc<[u8]>,
        /// What differs: how many bytes are the same, how many follow that are not, and these, and so
        /// on. Both numbers are a byte each.
        changes: Box<[u8]>,
    },
}

impl Payload {
    /// Keeps a payload, only what differs from `base` if that is less than half of it. Becomes the base
    /// of others otherwise.
    pub(super) fn new(payload: Serialized, base: &mut Option<Arc<[u8]>>) -> Self {
        let pickle = match payload.is_pickled() {
            true => payload.as_plain_pickle(),
            false => None,
        };
        let Some(pickle) = pickle else {
            return Self::Whole(payload);
        };
        if let Some(base) = base
            && let Some(changes) = changes(base, pickle)
        {
            return Self::Like {
                base: Arc::clone(base),
                changes: changes.into(),
            };
        }
        let pickle = Arc::from(pickle);
        if payload_len(&payload) <= MAX_BASE_LEN {
            *base = Some(Arc::clone(&pickle));
        }
        Self::Pickle(pickle)
    }

    /// Returns the payload.
    pub(super) fn to_serialized(&self) -> Serialized {
        match self {
            Self::Whole(payload) => payload.clone(),
            _ => Serialized::pickled(self.pickle(&mut Vec::new()).unwrap_or_default()),
        }
    }

    /// Returns the pickle, if the payload is one that Python opens wherever it arrives. `room` is for a
    /// pickle that is not kept as a whole.
    pub(super) fn pickle<'p>(&'p self, room: &'p mut Vec<u8>) -> Option<&'p [u8]> {
        match self {
            Self::Whole(_) => None,
            Self::Pickle(pickle) => Some(pickle),
            Self::Like { base, changes } => {
                room.clear();
                room.extend_from_slice(base);
                apply(room, changes);
                Some(room)
            }
        }
    }

    /// The length of the payload in bytes, as [`payload_len`] returns it.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Whole(payload) => payload_len(payload),
            Self::Pickle(pickle) => pickle.len(),
            // The base may be that of this task alone.
            Self::Like { base, .. } => base.len(),
        }
    }
}

/// The length of a payload in bytes: that of its pickle, or of its frames.
pub(super) fn payload_len(payload: &Serialized) -> usize {
    let frames = || usize::try_from(payload.len()).unwrap_or(usize::MAX);
    payload.as_plain_pickle().map_or_else(frames, <[u8]>::len)
}

/// Returns what differs between two pickles of the same length; `None` if that would take more than half
/// of the length.
fn changes(base: &[u8], pickle: &[u8]) -> Option<Vec<u8>> {
    /// What a change takes besides its bytes.
    const OVERHEAD: usize = 2;
    if base.len() != pickle.len() {
        return None;
    }
    let mut changes = Vec::new();
    let mut pairs = base.iter().zip(pickle).enumerate().peekable();
    // The end of the last change.
    let mut end = 0_usize;
    while let Some((place, (one, other))) = pairs.next() {
        if one == other {
            continue;
        }
        // The last byte that differs, before as many equal ones as another change would take.
        let mut last = place;
        while let Some((next, (one, other))) = pairs.peek().copied()
            && next - last <= OVERHEAD
            && next - place < usize::from(u8::MAX)
        {
            pairs.next();
            if one != other {
                last = next;
            }
        }
        let mut same = place - end;
        while same > usize::from(u8::MAX) {
            changes.extend([u8::MAX, 0]);
            same -= usize::from(u8::MAX);
        }
        let changed = pickle.get(place..=last)?;
        let len = u8::try_from(changed.len()).ok()?;
        changes.extend([u8::try_from(same).ok()?, len]);
        changes.extend_from_slice(changed);
        end = last + 1;
        if changes.len() > pickle.len() / 2 {
            return None;
        }
    }
    Some(changes)
}

/// Applies changes to a copy of the base.
fn apply(mut copy: &mut [u8], mut changes: &[u8]) {
    while let [same, len, rest @ ..] = changes {
        let len = usize::from(*len);
        let (Some((changed, left)), Some((_, after))) = (
            rest.split_at_checked(len),
            copy.split_at_mut_checked(usize::from(*same)),
        ) else {
            return;
        };
        let Some((place, after)) = after.split_at_mut_checked(len) else {
            return;
        };
        place.copy_from_slice(changed);
        (changes, copy) = (left, after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pickled(pickle: &[u8]) -> Serialized {
        Serialized::pickled(pickle)
    }

    #[test]
    fn payloads_that_differ_a_little_are_kept_by_their_differences() {
        let mut base = None;
        let text = |number: usize| format!("a task with the number {number:05} and more text");
        for number in 0..1000 {
            let payload = pickled(text(number).as_bytes());
            let kept = Payload::new(payload.clone(), &mut base);
            assert_eq!(kept.to_serialized(), payload);
            assert_eq!(kept.len(), text(number).len());
            match kept {
                Payload::Pickle(_) => assert_eq!(number, 0),
                Payload::Like { changes, .. } => assert!(changes.len() <= 6, "{changes:?}"),
                Payload::Whole(_) => panic!("not a pickle: {number}"),
            }
        }
    }

    #[test]
    fn payloads_are_as_they_were() {
        // A generator of random numbers, so that the test is the same in each run.
        let mut random = 1_u64;
        let mut next = |limit: usize| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(random >> 33).unwrap_or(0) % limit.max(1)
        };
        let mut base = None;
        let mut pickle = Vec::new();
        let mut like_count = 0;
        for _ in 0..20_000 {
            match next(20) {
                0 => pickle = (0..next(2000)).map(|_| next(256) as u8).collect(),
                _ => {
                    for _ in 0..next(30) {
                        let (start, len) = (next(pickle.len()), next(4).max(next(300)));
                        for byte in pickle.iter_mut().skip(start).take(len) {
                            *byte = next(256) as u8;
                        }
                    }
                }
            }
            let payload = pickled(&pickle);
            let kept = Payload::new(payload.clone(), &mut base);
            assert_eq!(kept.to_serialized(), payload);
            if let Payload::Like { changes, .. } = kept {
                like_count += 1;
                assert!(changes.len() <= pickle.len() / 2);
            }
        }
        assert!(like_count > 1000, "{like_count}");
    }

    #[test]
    fn long_and_other_payloads_are_kept_whole() {
        let mut base = None;
        let long = vec![7; MAX_BASE_LEN + 1];
        let kept = Payload::new(pickled(&long), &mut base);
        assert!(matches!(&kept, Payload::Pickle(pickle) if pickle[..] == long[..]));
        assert_eq!(base, None);
        let other = Serialized::default();
        let kept = Payload::new(other.clone(), &mut base);
        assert!(matches!(&kept, Payload::Whole(whole) if *whole == other));
        assert_eq!(base, None);
    }
}
