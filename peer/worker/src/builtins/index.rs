//! Lookup of values by Python equality.

use core::hash::{BuildHasher, Hash, Hasher};
use std::collections::HashMap;
use std::hash::RandomState;

use daskwire_messages::Value;

use super::container::equal;
use super::number::{Number, number, whole};

/// A table of values in insertion order, with lookup in constant time.
#[derive(Default)]
pub(super) struct Index<'v> {
    state: RandomState,
    items: Vec<&'v Value>,
    /// The last item with each hash.
    last: HashMap<u64, usize>,
    /// For each item, the previous item with the same hash.
    before: Vec<Option<usize>>,
    /// The number of comparisons made so far.
    #[cfg(test)]
    pub(super) comparisons: core::cell::Cell<usize>,
}

impl<'v> Index<'v> {
    /// Builds a table; of equal items, the first is kept.
    pub(super) fn of(items: impl Iterator<Item = &'v Value>) -> Self {
        let mut index = Self::default();
        items.for_each(|item| {
            index.insert(item);
        });
        index
    }

    /// Returns the position of the item that equals a value.
    pub(super) fn find(&self, value: &Value) -> Option<usize> {
        self.find_hashed(value, self.hash(value)?)
    }

    fn find_hashed(&self, value: &Value, hash: u64) -> Option<usize> {
        let mut next = self.last.get(&hash).copied();
        while let Some(position) = next {
            #[cfg(test)]
            self.comparisons.set(self.comparisons.get() + 1);
            if self
                .items
                .get(position)
                .is_some_and(|item| equal(item, value))
            {
                return Some(position);
            }
            next = self.before.get(position).copied().flatten();
        }
        None
    }

    /// Adds an item unless an equal one exists. Returns its position, and whether
    /// it was added.
    pub(super) fn insert(&mut self, item: &'v Value) -> (usize, bool) {
        let hash = self.hash(item);
        if let Some(position) = hash.and_then(|hash| self.find_hashed(item, hash)) {
            return (position, false);
        }
        let position = self.items.len();
        self.items.push(item);
        self.before
            .push(hash.and_then(|hash| self.last.insert(hash, position)));
        (position, true)
    }

    /// Returns a hash that is the same for equal values; `None` for values that equal
    /// no value, such as NaN.
    fn hash(&self, value: &Value) -> Option<u64> {
        let mut hasher = self.state.build_hasher();
        match value {
            Value::Str(string) => (0, &string[..]).hash(&mut hasher),
            Value::Bytes(data) | Value::ByteArray(data) => (1, &data[..]).hash(&mut hasher),
            Value::LargeInt(data) => (2, &data[..]).hash(&mut hasher),
            Value::List(items) => self.hash_all(3, &items[..], &mut hasher)?,
            Value::Tuple(items) => self.hash_all(4, &items[..], &mut hasher)?,
            // Independent of the order of items.
            Value::Set(items) | Value::FrozenSet(items) => {
                let mut sum = 0_u64;
                for item in &items[..] {
                    sum = sum.wrapping_add(self.hash(item)?);
                }
                (5, sum).hash(&mut hasher);
            }
            Value::Dict(entries) => {
                let mut sum = 0_u64;
                for (key, _) in &entries[..] {
                    sum = sum.wrapping_add(self.hash(key)?);
                }
                (6, sum).hash(&mut hasher);
            }
            value => match number(value) {
                Some(number) => hash_number(number, &mut hasher)?,
                // These have few distinct values, and in sets only `None` occurs.
                None => 8.hash(&mut hasher),
            },
        }
        Some(hasher.finish())
    }

    fn hash_all(&self, kind: u8, items: &[Value], hasher: &mut impl Hasher) -> Option<()> {
        kind.hash(hasher);
        for item in items {
            self.hash(item)?.hash(hasher);
        }
        Some(())
    }
}

/// Hashes a number: equal integers, floats and complex numbers hash the same.
fn hash_number(number: Number, hasher: &mut impl Hasher) -> Option<()> {
    let (real, imaginary) = match number {
        Number::Int(value) => {
            value.hash(hasher);
            return Some(());
        }
        number => number.to_complex(),
    };
    if real.is_nan() || imaginary.is_nan() {
        return None;
    }
    match whole(real) {
        Some(real) => real.hash(hasher),
        None => real.to_bits().hash(hasher),
    }
    if imaginary != 0.0 {
        imaginary.to_bits().hash(hasher);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_equal_values() {
        let tuple = |items: [Value; 2]| Value::Tuple(items.into());
        let frozen = |items: [Value; 2]| Value::FrozenSet(items.into());
        for (a, b) in [
            (Value::from(1), Value::from(1.0)),
            (Value::from(true), Value::Complex(1.0, 0.0)),
            (Value::from(0), Value::from(-0.0)),
            (Value::Int(1 << 100), Value::from(2.0_f64.powi(100))),
            (
                Value::from(f64::INFINITY),
                Value::Complex(f64::INFINITY, -0.0),
            ),
            (Value::from("a"), Value::from("a")),
            (
                tuple([1.into(), "x".into()]),
                tuple([1.0.into(), "x".into()]),
            ),
            (
                frozen([1.into(), 2.into()]),
                frozen([2.into(), true.into()]),
            ),
            (
                Value::dict([("a", 1), ("b", 2)]),
                Value::dict([("b", 2), ("a", 1)]),
            ),
        ] {
            assert!(equal(&a, &b));
            assert_eq!(Index::of([&a].into_iter()).find(&b), Some(0), "{a:?} {b:?}");
        }
        let nan = Value::from(f64::NAN);
        assert_eq!(Index::of([&nan].into_iter()).find(&nan), None);
        assert_eq!(Index::of([&nan, &nan].into_iter()).items.len(), 2);
    }

    #[test]
    fn compares_only_equal_items() {
        let comparisons = |count: usize| {
            let numbers = (0..count).map(|number| Value::Int(number as i128));
            let floats = (0..count).map(|number| Value::from(number as f64 + 0.5));
            let strings = (0..count).map(|number| Value::from(number.to_string()));
            let tuples = (0..count).map(|number| Value::tuple([number, number + 1]));
            let nans = (0..count).map(|_| Value::from(f64::NAN));
            let repeated = (0..count).map(|number| Value::from((number % 7) as f64));
            let all: Vec<Value> = numbers
                .chain(floats)
                .chain(strings)
                .chain(tuples)
                .chain(nans)
                .chain(repeated)
                .collect();
            let index = Index::of(all.iter());
            assert_eq!(index.items.len(), 5 * count);
            index.comparisons.get()
        };
        assert_eq!(comparisons(1000), 1000);
        assert_eq!(comparisons(2000), 2000);
    }
}
