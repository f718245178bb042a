//! The workers and clients by their ids.

use core::ops::{Bound, Index};
use std::collections::BTreeMap;

use crate::steps::step;

/// Workers or clients by their ids. Each access counts as a step, in tests.
#[derive(Debug)]
pub(super) struct Members<K, V>(BTreeMap<K, V>);

impl<K, V> Default for Members<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, V> Members<K, V> {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn contains_key(&self, id: &K) -> bool {
        step();
        self.0.contains_key(id)
    }

    pub(super) fn get(&self, id: &K) -> Option<&V> {
        step();
        self.0.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &K) -> Option<&mut V> {
        step();
        self.0.get_mut(id)
    }

    pub(super) fn insert(&mut self, id: K, member: V) {
        step();
        self.0.insert(id, member);
    }

    pub(super) fn remove(&mut self, id: &K) -> Option<V> {
        step();
        self.0.remove(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().inspect(|_| step())
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(id, _)| id)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, member)| member)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.0.iter_mut().inspect(|_| step())
    }

    /// Those with ids after a bound.
    pub(super) fn range_after(&self, after: Bound<K>) -> impl Iterator<Item = (&K, &V)> {
        let range = self.0.range((after, Bound::Unbounded));
        range.inspect(|_| step())
    }
}

/// Ids are only kept while their members exist.
impl<K: Ord, V> Index<&K> for Members<K, V> {
    type Output = V;

    fn index(&self, id: &K) -> &V {
        self.get(id).expect("the member of an id exists")
    }
}
