//! The items of containers, shared by clones.

use core::fmt;
use core::ops::Deref;
use std::collections::HashSet;
use std::sync::Arc;

use super::{MAX_DEPTH, Value};
use crate::brief::bounded;

/// The items of a list, tuple or set, or the entries of a dictionary.
///
/// An immutable, shared slice: cloning a value does not copy its contents.
/// Converts from and to a vector.
///
/// ```
/// use daskwire_value::Value;
/// use daskwire_value::Items;
/// let items = Items::from(vec![Value::from(1), Value::from(2)]);
/// let twice = Value::list([Value::List(items.clone()), Value::List(items)]);
/// assert_eq!(twice.to_string(), "[[1, 2], [1, 2]]");
/// ```
#[derive(Clone)]
pub struct Items<T: Item = Value>(Option<Arc<Shared<T>>>);

/// The data shared by clones of [`Items`].
struct Shared<T> {
    items: Vec<T>,
    totals: Totals,
}

/// Totals of items, computed once.
#[derive(Clone, Copy, Default)]
pub struct Totals {
    /// Levels of nested containers, including this one.
    pub(crate) depth: usize,
    /// Number of values, counted at each occurrence.
    pub(crate) count: u64,
    /// The sum of [`Value::nbytes`].
    pub(crate) nbytes: u64,
    /// Whether an instance of a class is among the values.
    pub has_objects: bool,
    /// Whether any of the values [needs a check](Value::needs_check).
    pub(crate) needs_check: bool,
}

impl Totals {
    fn and(self, value: &Value) -> Self {
        let of = value.totals().unwrap_or_default();
        let (depth, count) = (of.depth, of.count);
        Self {
            depth: self.depth.max(depth.saturating_add(1)),
            count: self.count.saturating_add(count).saturating_add(1),
            nbytes: self.nbytes.saturating_add(value.nbytes()),
            has_objects: self.has_objects || of.has_objects,
            needs_check: self.needs_check || value.needs_check(),
        }
    }
}

/// An element of [`Items`]: a [`Value`], or a key and a value.
pub trait Item: Sized + sealed::Sealed {
    /// The element's values.
    fn values(&self) -> impl Iterator<Item = &Value>;

    /// The element's values, owned.
    fn into_values(self) -> impl Iterator<Item = Value>;
}

impl Item for Value {
    fn values(&self) -> impl Iterator<Item = &Self> {
        core::iter::once(self)
    }

    fn into_values(self) -> impl Iterator<Item = Self> {
        core::iter::once(self)
    }
}

impl Item for (Value, Value) {
    fn values(&self) -> impl Iterator<Item = &Value> {
        [&self.0, &self.1].into_iter()
    }

    fn into_values(self) -> impl Iterator<Item = Value> {
        [self.0, self.1].into_iter()
    }
}

#[allow(unnameable_types, reason = "which is what it is for")]
mod sealed {
    use super::Value;

    pub trait Sealed {}

    impl Sealed for Value {}

    impl Sealed for (Value, Value) {}
}

impl<T: Item> Items<T> {
    /// The totals of the items.
    pub fn totals(&self) -> Totals {
        let empty = Totals {
            depth: 1,
            ..Totals::default()
        };
        self.0.as_ref().map_or(empty, |shared| shared.totals)
    }

    /// Whether both share the same data, rather than equal data.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }

    /// The address of the shared data, if it has other owners.
    pub(crate) fn shared_address(&self) -> Option<usize> {
        let shared = self.0.as_ref()?;
        (Arc::strong_count(shared) > 1).then(|| Arc::as_ptr(shared).addr())
    }

    /// Converts into a vector. Copies the items, but not their contents, if they
    /// are shared.
    pub fn into_vec(mut self) -> Vec<T>
    where
        T: Clone,
    {
        match self.0.take().map(Arc::try_unwrap) {
            None => Vec::new(),
            Some(Ok(shared)) => shared.items,
            Some(Err(shared)) => shared.items.clone(),
        }
    }
}

/// Drops nested containers without deep recursion.
impl<T: Item> Drop for Items<T> {
    fn drop(&mut self) {
        if self.totals().depth <= MAX_DEPTH {
            return;
        }
        let mut left = Vec::new();
        self.unnest(&mut left);
        while let Some(value) = left.pop() {
            match value {
                Value::List(mut items)
                | Value::Tuple(mut items)
                | Value::Set(mut items)
                | Value::FrozenSet(mut items) => items.unnest(&mut left),
                Value::Object(mut object) => object.arguments.unnest(&mut left),
                Value::Dict(mut entries) => entries.unnest(&mut left),
                _ => {}
            }
        }
    }
}

impl<T: Item> Items<T> {
    /// Moves the nested containers to `values`, unless the items are shared.
    fn unnest(&mut self, values: &mut Vec<Value>) {
        if let Some(shared) = self.0.take().and_then(Arc::into_inner) {
            let all = shared.items.into_iter().flat_map(Item::into_values);
            values.extend(all.filter(|value| value.totals().is_some()));
        }
    }
}

impl<T: Item> From<Vec<T>> for Items<T> {
    fn from(items: Vec<T>) -> Self {
        if items.is_empty() {
            return Self(None);
        }
        let all = items.iter().flat_map(Item::values);
        let totals = all.fold(Totals::default(), Totals::and);
        Self(Some(Arc::new(Shared { items, totals })))
    }
}

impl<T: Item, const N: usize> From<[T; N]> for Items<T> {
    fn from(items: [T; N]) -> Self {
        Vec::from(items).into()
    }
}

impl<T: Item + Clone> From<Items<T>> for Vec<T> {
    fn from(items: Items<T>) -> Self {
        items.into_vec()
    }
}

impl<T: Item> FromIterator<T> for Items<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Vec::from_iter(items).into()
    }
}

impl<T: Item> Default for Items<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Item> Deref for Items<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_ref().map_or(&[], |shared| &shared.items)
    }
}

impl<T: Item + Clone> IntoIterator for Items<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.into_vec().into_iter()
    }
}

impl<'a, T: Item> IntoIterator for &'a Items<T> {
    type Item = &'a T;
    type IntoIter = core::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Formats like a slice, at most 16 KiB; containers nested deeper than [`MAX_DEPTH`] as
/// `[..]`.
impl<T: Item + fmt::Debug> fmt::Debug for Items<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.totals().depth > MAX_DEPTH {
            return f.write_str("[..]");
        }
        bounded(f, |f| f.debug_list().entries(self.iter()).finish())
    }
}

/// Compares like slices, without recursion. As in Python, shared items are equal without
/// a comparison.
impl<T: Item> PartialEq for Items<T>
where
    Self: Compare,
{
    fn eq(&self, other: &Self) -> bool {
        let mut left = Vec::new();
        self.compare(other, &mut left) && rest_is_equal(left)
    }
}

/// Containers still to be compared.
pub(super) type Pairs<'v> = Vec<(&'v Value, &'v Value)>;

/// Comparison without recursion.
pub(super) trait Compare {
    /// Whether two values can be equal. Adds the containers that are still to be
    /// compared to `left`.
    fn compare<'v>(&'v self, other: &'v Self, left: &mut Pairs<'v>) -> bool;
}

impl<T: Item + Compare> Compare for Items<T> {
    fn compare<'v>(&'v self, other: &'v Self, left: &mut Pairs<'v>) -> bool {
        if self.is_same(other) {
            return true;
        }
        let (one, two) = (self.totals(), other.totals());
        self.len() == other.len()
            && one.depth == two.depth
            && one.count == two.count
            && self
                .iter()
                .zip(other)
                .all(|(one, other)| one.compare(other, left))
    }
}

impl Compare for (Value, Value) {
    fn compare<'v>(&'v self, other: &'v Self, left: &mut Pairs<'v>) -> bool {
        self.0.compare(&other.0, left) && self.1.compare(&other.1, left)
    }
}

impl Compare for Value {
    fn compare<'v>(&'v self, other: &'v Self, left: &mut Pairs<'v>) -> bool {
        match (self, other) {
            (Self::None, Self::None) => true,
            (Self::Bool(one), Self::Bool(other)) => one == other,
            (Self::Int(one), Self::Int(other)) => one == other,
            (Self::Float(one), Self::Float(other)) => one == other,
            (Self::Complex(a, b), Self::Complex(c, d)) => a == c && b == d,
            (Self::Str(one), Self::Str(other)) => one == other,
            (Self::LargeInt(one), Self::LargeInt(other))
            | (Self::Bytes(one), Self::Bytes(other))
            | (Self::ByteArray(one), Self::ByteArray(other)) => one == other,
            (Self::Array(one), Self::Array(other)) => one == other,
            (Self::Serialized(one), Self::Serialized(other)) => one == other,
            (Self::Object(one), Self::Object(other)) if !one.is_same_class(other) => false,
            (one, other) if core::mem::discriminant(one) != core::mem::discriminant(other) => false,
            containers => {
                left.push(containers);
                true
            }
        }
    }
}

impl Value {
    /// The address of a container's shared items, if they have other owners.
    pub(super) fn shared_address(&self) -> Option<usize> {
        match self {
            Self::List(items) | Self::Tuple(items) | Self::Set(items) | Self::FrozenSet(items) => {
                items.shared_address()
            }
            Self::Dict(entries) => entries.shared_address(),
            Self::Object(object) => object.arguments.shared_address(),
            _ => None,
        }
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        let mut left = Vec::new();
        self.compare(other, &mut left) && rest_is_equal(left)
    }
}

fn rest_is_equal(mut left: Pairs<'_>) -> bool {
    // Pairs of shared containers, which may occur again.
    let mut seen = HashSet::new();
    while let Some(pair) = left.pop() {
        if let (Some(one), Some(other)) = (pair.0.shared_address(), pair.1.shared_address())
            && !seen.insert((one, other))
        {
            continue;
        }
        let is_equal = match pair {
            (Value::Dict(one), Value::Dict(other)) => one.compare(other, &mut left),
            (Value::Object(one), Value::Object(other)) => {
                one.arguments.compare(&other.arguments, &mut left)
            }
            (
                Value::List(one) | Value::Tuple(one) | Value::Set(one) | Value::FrozenSet(one),
                Value::List(other)
                | Value::Tuple(other)
                | Value::Set(other)
                | Value::FrozenSet(other),
            ) => one.compare(other, &mut left),
            _ => false,
        };
        if !is_equal {
            return false;
        }
    }
    true
}
