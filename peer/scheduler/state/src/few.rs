//! Lists of mostly one item, of which there are as many as there are tasks.

use core::iter::Chain;
use core::ops::Deref;
use std::{option, slice, vec};

/// A list that rarely has more than one item, which then needs no memory of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Few<T> {
    #[default]
    None,
    One(T),
    Many(Vec<T>),
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::None => &[],
            Self::One(item) => slice::from_ref(item),
            Self::Many(items) => items,
        }
    }
}

impl<T: Copy> Few<T> {
    /// Inserts an item before that with this index, or at the end.
    pub(super) fn insert(&mut self, index: usize, item: T) {
        match self {
            Self::None => *self = Self::One(item),
            Self::One(first) => {
                let mut items = vec![*first];
                items.insert(index, item);
                *self = Self::Many(items);
            }
            Self::Many(items) => items.insert(index, item),
        }
    }

    /// Removes the item with this index.
    pub(super) fn remove(&mut self, index: usize) {
        if let Self::Many(items) = self {
            items.remove(index);
        } else {
            *self = Self::None;
        }
    }
}

impl<T> IntoIterator for Few<T> {
    type Item = T;
    type IntoIter = Chain<option::IntoIter<T>, vec::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, many) = match self {
            Self::None => (None, Vec::new()),
            Self::One(item) => (Some(item), Vec::new()),
            Self::Many(items) => (None, items),
        };
        one.into_iter().chain(many)
    }
}

impl<'f, T> IntoIterator for &'f Few<T> {
    type Item = &'f T;
    type IntoIter = slice::Iter<'f, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_as_a_vector_and_takes_no_more_memory() {
        assert_eq!(size_of::<Few<u64>>(), size_of::<Vec<u64>>());
        let (mut few, mut vector) = (Few::default(), Vec::new());
        let places = [0, 0, 1, 3, 2, 0];
        for (place, item) in places.into_iter().zip(0_u64..) {
            few.insert(place, item);
            vector.insert(place, item);
            assert_eq!(*few, vector[..]);
            assert!(few.clone().into_iter().eq(vector.iter().copied()));
        }
        for place in [5, 0, 2, 1, 1, 0] {
            few.remove(place);
            vector.remove(place);
            assert_eq!(*few, vector[..]);
            assert!((&few).into_iter().eq(&vector));
        }
    }
}
