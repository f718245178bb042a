//! Payloads of tasks in little memory.
//!
//! The tasks of one layer of a graph differ in their keys, indexes and a few arguments. Of all but one
//! of them, only the differences are kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Serialized;

/// Maximum length in bytes of a pickle that others are compared with. One is kept for each name of keys.
pub(super) const MAX_BASE_LEN: usize = 8 << 10;

/// The `run_spec` of a task, as a scheduler keeps it. Pickles that differ little share their memory.
#[derive(Clone, Debug)]
pub struct Payload(Form);

#[derive(Clone, Debug)]
enum Form {
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

/// The pickles that those of other tasks are compared with: the last of each length.
#[derive(Debug, Default)]
pub(super) struct Bases {
    by_len: BTreeMap<usize, Arc<[u8]>>,
    room: Vec<u8>,
}

impl Bases {
    /// Returns the payload [`Serialized::pickled`] of a pickle.
    pub(super) fn payload(&mut self, pickle: &[u8]) -> Payload {
        if let Some(base) = self.by_len.get(&pickle.len())
            && let Some(like) = Form::like(base, pickle, &mut self.room)
        {
            return Payload(like);
        }
        if pickle.len() > MAX_BASE_LEN {
            return Serialized::pickled(pickle).into();
        }
        let pickle: Arc<[u8]> = Arc::from(pickle);
        self.by_len.insert(pickle.len(), Arc::clone(&pickle));
        Payload(Form::Pickle(pickle))
    }
}

impl Payload {
    /// Keeps only what differs from `base`, the pickle of another task, if that is less than half of the
    /// pickle. Otherwise, the pickle becomes the base of others. Payloads of more than 8 KiB stay as they
    /// are.
    pub fn share(&mut self, base: &mut Option<Arc<[u8]>>) {
        let pickle = match &self.0 {
            Form::Whole(payload) => match payload.as_plain_pickle() {
                Some(pickle) if payload.is_pickled() && pickle.len() <= MAX_BASE_LEN => {
                    Arc::from(pickle)
                }
                _ => return,
            },
            Form::Pickle(pickle) => Arc::clone(pickle),
            Form::Like { base: own, .. } => {
                base.get_or_insert_with(|| Arc::clone(own));
                return;
            }
        };
        self.0 = match base
            .as_ref()
            .and_then(|base| Form::like(base, &pickle, &mut Vec::new()))
        {
            Some(like) => like,
            None => {
                *base = Some(Arc::clone(&pickle));
                Form::Pickle(pickle)
            }
        };
    }

    /// Returns the payload.
    pub fn to_serialized(&self) -> Serialized {
        match &self.0 {
            Form::Whole(payload) => payload.clone(),
            _ => Serialized::pickled(self.pickle(&mut Vec::new()).unwrap_or_default()),
        }
    }

    /// Returns the pickle, if the payload is one without buffers. `room` is for a pickle that is not kept
    /// as a whole.
    pub fn pickle<'p>(&'p self, room: &'p mut Vec<u8>) -> Option<&'p [u8]> {
        match &self.0 {
            Form::Whole(payload) => payload.as_plain_pickle(),
            Form::Pickle(pickle) => Some(pickle),
            Form::Like { base, changes } => {
                room.clear();
                room.extend_from_slice(base);
                apply(room, changes);
                Some(room)
            }
        }
    }

    /// The length of the pickle, or of the frames, in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Whole(payload) => match payload.as_plain_pickle() {
                Some(pickle) => pickle.len(),
                None => usize::try_from(payload.len()).unwrap_or(usize::MAX),
            },
            Form::Pickle(pickle) => pickle.len(),
            // The base may be kept for this task alone.
            Form::Like { base, .. } => base.len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Keeps the payload as it is.
impl From<Serialized> for Payload {
    fn from(payload: Serialized) -> Self {
        Self(Form::Whole(payload))
    }
}

/// Compares what Python opens.
impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.to_serialized() == other.to_serialized()
    }
}

impl Form {
    /// Returns a pickle by what differs, if that is less than half.
    fn like(base: &Arc<[u8]>, pickle: &[u8], room: &mut Vec<u8>) -> Option<Self> {
        room.clear();
        write_changes(base, pickle, room)?;
        Some(Self::Like {
            base: Arc::clone(base),
            changes: room.as_slice().into(),
        })
    }
}

/// Writes what differs between two pickles of the same length; `None` if that would take more than half of
/// the length.
fn write_changes(base: &[u8], pickle: &[u8], changes: &mut Vec<u8>) -> Option<()> {
    /// What a change takes besides its bytes.
    const OVERHEAD: usize = 2;
    if base.len() != pickle.len() {
        return None;
    }
    // The end of the last change.
    let mut end = 0;
    while let Some(same) = first_difference(base.get(end..)?, pickle.get(end..)?) {
        let place = end + same;
        // The last byte that differs, before as many equal ones as another change would take.
        let mut last = place;
        let most = pickle.len().min(place + usize::from(u8::MAX));
        for next in place + 1..most {
            if base.get(next) != pickle.get(next) {
                last = next;
            } else if next - last > OVERHEAD {
                break;
            }
        }
        let mut same = same;
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
    Some(())
}

/// The first place in which two slices of the same length differ.
fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    const STEP: usize = 8;
    let mut steps = one.chunks_exact(STEP).zip(other.chunks_exact(STEP));
    let same = steps.position(|(one, other)| one != other);
    let start = same.unwrap_or(one.len() / STEP) * STEP;
    let mut rest = one.iter().zip(other).skip(start);
    rest.position(|(one, other)| one != other)
        .map(|place| start + place)
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

    fn is_like(payload: &Payload) -> bool {
        matches!(payload.0, Form::Like { .. })
    }

    #[test]
    fn payloads_that_differ_a_little_are_kept_by_their_differences() {
        let text = |number: usize| format!("a task with the number {number:05} and more text");
        let (mut bases, mut base) = (Bases::default(), None);
        for number in 0..1000 {
            let text = text(number);
            let expected = Serialized::pickled(text.as_bytes());
            let mut later = Payload::from(expected.clone());
            later.share(&mut base);
            for payload in [bases.payload(text.as_bytes()), later] {
                assert_eq!(payload.to_serialized(), expected);
                assert_eq!(payload.len(), text.len());
                match payload.0 {
                    Form::Pickle(_) => assert_eq!(number, 0),
                    Form::Like { changes, .. } => assert!(changes.len() <= 6, "{changes:?}"),
                    Form::Whole(_) => panic!("not a pickle: {number}"),
                }
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
        let byte = |next: &mut dyn FnMut(usize) -> usize| u8::try_from(next(256)).unwrap_or(0);
        let (mut bases, mut base) = (Bases::default(), None);
        let mut pickle = Vec::new();
        let mut like_count = 0;
        for _ in 0..20_000 {
            match next(20) {
                0 => pickle = (0..next(2000)).map(|_| byte(&mut next)).collect(),
                _ => {
                    for _ in 0..next(30) {
                        let (start, len) = (next(pickle.len()), next(4).max(next(300)));
                        for place in pickle.iter_mut().skip(start).take(len) {
                            *place = byte(&mut next);
                        }
                    }
                }
            }
            let expected = Serialized::pickled(&pickle);
            let mut later = Payload::from(expected.clone());
            later.share(&mut base);
            for payload in [bases.payload(&pickle), later] {
                assert_eq!(payload.to_serialized(), expected);
                if let Form::Like { changes, .. } = payload.0 {
                    like_count += 1;
                    assert!(changes.len() <= pickle.len() / 2);
                }
            }
        }
        assert!(like_count > 1000, "{like_count}");
    }

    #[test]
    fn the_base_of_a_graph_is_that_of_later_tasks() {
        let mut bases = Bases::default();
        let mut base = None;
        for number in 0..2 {
            let pickle = format!("a task with the number {number}");
            bases.payload(pickle.as_bytes()).share(&mut base);
        }
        let mut later = Payload::from(Serialized::pickled(b"a task with the number 7"));
        later.share(&mut base);
        assert!(is_like(&later));
    }

    #[test]
    fn long_and_other_payloads_are_kept_whole() {
        let mut base = None;
        let long = vec![7; MAX_BASE_LEN + 1];
        let mut payload = Payload::from(Serialized::pickled(&long));
        payload.share(&mut base);
        assert_eq!(payload.pickle(&mut Vec::new()), Some(&long[..]));
        assert_eq!(base, None);
        let other = Serialized::default();
        let mut payload = Payload::from(other.clone());
        payload.share(&mut base);
        assert_eq!(payload.to_serialized(), other);
        assert_eq!(base, None);
        assert!(!is_like(&payload));
    }
}
