//! Collections of as many values as there are tasks, which grow in parts: to move all values into a
//! larger memory takes so long that others wait.

use std::collections::HashMap;

use daskwire_messages::Key;

use super::model::TaskId;
use crate::steps::step;

/// Values by index. The index of a removed value is reused.
#[derive(Debug)]
pub(super) struct Table<T> {
    /// All but the last are full.
    parts: Vec<Vec<Option<T>>>,
    pub(super) free: Vec<u32>,
}

/// Number of values of a part.
const PART: usize = 1 << 10;

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            parts: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Table<T> {
    pub(super) fn insert(&mut self, value: T) -> u32 {
        if let Some(id) = self.free.pop() {
            self.parts[id as usize / PART][id as usize % PART] = Some(value);
            return id;
        }
        let len = self.slot_count();
        if len.is_multiple_of(PART) {
            let is_first = self.parts.is_empty();
            // A small table stays small.
            self.parts.push(match is_first {
                true => Vec::new(),
                false => Vec::with_capacity(PART),
            });
        }
        self.parts[len / PART].push(Some(value));
        u32::try_from(len).expect("memory is exhausted before 2^32 values")
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        let part = self.parts.get_mut(id as usize / PART)?;
        let value = part.get_mut(id as usize % PART)?.take()?;
        self.free.push(id);
        Some(value)
    }

    pub(super) fn get(&self, id: u32) -> Option<&T> {
        step();
        let part = self.parts.get(id as usize / PART)?;
        part.get(id as usize % PART)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        step();
        let part = self.parts.get_mut(id as usize / PART)?;
        part.get_mut(id as usize % PART)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        // An index fits: `insert` has checked it.
        let slots = (0..).zip(self.parts.iter().flatten());
        slots.filter_map(|(id, slot)| Some((id, slot.as_ref()?)))
    }

    pub(super) const fn part_count(&self) -> usize {
        self.parts.len()
    }

    /// The values of a part; those of one that does not exist are none.
    pub(super) fn part(&self, part: usize) -> impl Iterator<Item = &T> {
        let part = self.parts.get(part).map_or(&[][..], |part| part);
        part.iter().flatten()
    }

    /// The same with their indexes.
    pub(super) fn entries(&self, part: usize) -> impl Iterator<Item = (u32, &T)> {
        let first = u32::try_from(part * PART).unwrap_or(u32::MAX);
        let values = self.parts.get(part).map_or(&[][..], |part| part);
        let slots = (first..).zip(values);
        slots.filter_map(|(id, slot)| Some((id, slot.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let slots = (0..).zip(self.parts.iter_mut().flatten());
        slots.filter_map(|(id, slot)| Some((id, slot.as_mut()?)))
    }

    /// The number of indexes that are in use or were.
    pub(super) fn slot_count(&self) -> usize {
        self.parts
            .last()
            .map_or(0, |last| (self.parts.len() - 1) * PART + last.len())
    }
}

/// Ids are only kept while their values exist.
impl<T> core::ops::Index<u32> for Table<T> {
    type Output = T;

    fn index(&self, id: u32) -> &T {
        self.get(id).expect("the value of an id exists")
    }
}

impl<T> core::ops::IndexMut<u32> for Table<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        self.get_mut(id).expect("the value of an id exists")
    }
}

/// The ids of tasks by their keys.
#[derive(Debug)]
pub(super) struct KeyIndex {
    parts: Box<[HashMap<Key, TaskId>]>,
    len: usize,
}

/// Number of parts of the index, each of which grows by itself.
const KEY_PARTS: usize = 1 << 8;

impl Default for KeyIndex {
    fn default() -> Self {
        Self {
            parts: (0..KEY_PARTS).map(|_| HashMap::new()).collect(),
            len: 0,
        }
    }
}

impl KeyIndex {
    pub(super) fn get(&self, key: &Key) -> Option<&TaskId> {
        self.parts[part_of(key)].get(key)
    }

    pub(super) fn contains_key(&self, key: &Key) -> bool {
        self.get(key).is_some()
    }

    pub(super) fn insert(&mut self, key: Key, id: TaskId) {
        let before = self.parts[part_of(&key)].insert(key, id);
        self.len += usize::from(before.is_none());
    }

    pub(super) fn remove(&mut self, key: &Key) {
        let removed = self.parts[part_of(key)].remove(key);
        self.len -= usize::from(removed.is_some());
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    pub(super) fn id(&self, key: &str) -> TaskId {
        *self.get(&Key::from(key)).expect("the key is known")
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.parts.iter().flat_map(HashMap::keys)
    }
}

/// The part of the index that has a key. Most keys differ in their last bytes, and with keys that do
/// not, one part only takes longer to grow.
fn part_of(key: &Key) -> usize {
    let bytes = key.as_msgpack();
    let last = match bytes.last_chunk() {
        Some(last) => u64::from_le_bytes(*last),
        None => bytes
            .iter()
            .fold(0, |mixed, byte| (mixed << 8) | u64::from(*byte)),
    };
    // Fibonacci hashing: the high bits depend on all bits.
    let mixed = last.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize % KEY_PARTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_in_parts() {
        let mut table = Table::default();
        let mut index = KeyIndex::default();
        let key = |number: u32| Key::from(format!("x-{number}"));
        for number in 0..3 * 1024 + 5 {
            assert_eq!(table.insert(number), number);
            index.insert(key(number), number);
        }
        assert!(table.parts.iter().all(|part| part.capacity() <= PART));
        let longest = index.parts.iter().map(HashMap::len).max();
        assert!(longest.is_some_and(|longest| longest < 100), "{longest:?}");
        assert_eq!((table.slot_count(), index.len()), (3077, 3077));
        assert_eq!((table.get(3076), table.get(3077)), (Some(&3076), None));
        assert_eq!(index.get(&key(2050)), Some(&2050));
        assert_eq!((table.remove(1030), table.remove(1030)), (Some(1030), None));
        assert_eq!((table.insert(7), table[1030]), (1030, 7));
        index.remove(&key(5));
        assert!(!index.contains_key(&key(5)) && index.len() == 3076);
        assert_eq!(table.iter().count(), 3077);
    }
}
