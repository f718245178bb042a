//! Tasks in order of priority, most of which come first or last.

use core::cmp::Ordering;
use std::collections::VecDeque;

use super::model::{Priority, Queue, TaskId};

type Place = (Priority, TaskId);

/// Tasks in order of priority. One that comes before or after all others takes no search, as most do: those
/// of a graph are inserted and taken in their order.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Some tasks, in order. Those that were removed are marked as such; the first and the last are not.
    run: VecDeque<(Place, bool)>,
    /// All other tasks.
    rest: Queue,
}

/// Maximum number of tasks without a search: the memory of more would take long to move.
const MAX_RUN: usize = 1 << 14;

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.run.is_empty() && self.rest.is_empty()
    }

    /// Returns whether the task was not there.
    pub(super) fn insert(&mut self, place: Place) -> bool {
        let (first, last) = (self.run.front(), self.run.back());
        let has_room = self.run.len() < MAX_RUN;
        if has_room && last.is_none_or(|(last, _)| *last < place) {
            let is_new = self.rest.is_empty() || !self.rest.contains(&place);
            if is_new {
                self.run.push_back((place, true));
            }
            return is_new;
        }
        if has_room && first.is_some_and(|(first, _)| place < *first) {
            let is_new = self.rest.is_empty() || !self.rest.contains(&place);
            if is_new {
                self.run.push_front((place, true));
            }
            return is_new;
        }
        match self.find(&place) {
            Some(index) if self.run[index].1 => false,
            _ => self.rest.insert(place),
        }
    }

    /// Returns whether the task was there.
    pub(super) fn remove(&mut self, place: &Place) -> bool {
        let Some(index) = self.find(place).filter(|index| self.run[*index].1) else {
            return self.rest.remove(place);
        };
        self.run[index].1 = false;
        while self.run.front().is_some_and(|(_, is_there)| !is_there) {
            self.run.pop_front();
        }
        while self.run.back().is_some_and(|(_, is_there)| !is_there) {
            self.run.pop_back();
        }
        self.give_back();
        true
    }

    /// The index in the run of a task that is or was there.
    fn find(&self, place: &Place) -> Option<usize> {
        match self.run.front()?.0.cmp(place) {
            Ordering::Equal => Some(0),
            Ordering::Less => {
                let found = self.run.binary_search_by(|(known, _)| known.cmp(place));
                found.ok()
            }
            Ordering::Greater => None,
        }
    }

    /// Gives back memory of a long run.
    fn give_back(&mut self) {
        const LONG: usize = 1 << 10;
        if self.run.is_empty() && self.run.capacity() > LONG {
            self.run = VecDeque::new();
        }
    }

    pub(super) fn first(&self) -> Option<&Place> {
        let run = self.run.front().map(|(place, _)| place);
        match self.rest.first() {
            Some(first) => Some(run.map_or(first, |run| run.min(first))),
            None => run,
        }
    }

    pub(super) fn pop_first(&mut self) -> Option<Place> {
        let first = *self.first()?;
        self.remove(&first);
        Some(first)
    }

    #[cfg(any(test, feature = "checks"))]
    pub(super) fn contains(&self, place: &Place) -> bool {
        let index = self.find(place);
        index.is_some_and(|index| self.run[index].1) || self.rest.contains(place)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::next_random;

    #[test]
    fn behaves_as_a_set() {
        let mut random = 1;
        for round in 0..100 {
            let (mut line, mut set) = (Line::default(), BTreeSet::new());
            for number in 0..300_u32 {
                let next = next_random(&mut random);
                let order = match round % 3 {
                    0 => i64::from(number),
                    1 => -i64::from(number),
                    _ => (next % 64) as i64,
                };
                let place = (
                    Priority {
                        order: order - (next >> 20) as i64 % 3,
                        ..Priority::default()
                    },
                    (next >> 40) as TaskId % 4,
                );
                match (next >> 50) % 8 {
                    0 => assert_eq!(line.pop_first(), set.pop_first()),
                    1 | 2 => {
                        let at = (next >> 8) as usize % (set.len() + 1);
                        let place = set.iter().nth(at).copied().unwrap_or(place);
                        assert_eq!(line.remove(&place), set.remove(&place));
                        assert!(!line.contains(&place));
                    }
                    _ => {
                        assert_eq!(line.insert(place), set.insert(place));
                        assert!(line.contains(&place));
                    }
                }
                assert_eq!(line.first(), set.first());
                assert_eq!(line.is_empty(), set.is_empty());
            }
        }
    }
}
