//! Equality of trees, in time proportional to their size.

use alloc::vec;
use alloc::vec::Vec;

use super::build::to_usize;
use super::{Int, Items, Kind, Node, Op, Segments, Tree, Value};

impl PartialEq for Tree<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.root() == other.root()
    }
}

impl Eq for Tree<'_> {}

impl PartialEq for Node<'_, '_> {
    /// Compares like [`Tree`]. Values that contain themselves are equal if they
    /// are equal at every depth.
    fn eq(&self, other: &Self) -> bool {
        equal(*self, *other)
    }
}

impl Eq for Node<'_, '_> {}

/// Union-find classes of nodes: two nodes under comparison are assumed equal,
/// and two nodes of a class are not compared again. So all but `n - 1`
/// comparisons of `n` nodes end at once (Hopcroft and Karp, 1971).
struct Classes {
    /// The parent of each node in its class, or itself.
    above: Vec<u32>,
    split: usize,
}

impl Classes {
    fn find(&mut self, mut at: u32) -> u32 {
        loop {
            let above = self.above.get(to_usize(at)).copied().unwrap_or(at);
            if above == at {
                return at;
            }
            // Path halving.
            let next = self.above.get(to_usize(above)).copied().unwrap_or(above);
            if let Some(place) = self.above.get_mut(to_usize(at)) {
                *place = next;
            }
            at = next;
        }
    }

    /// Joins two classes and returns whether they were different.
    fn join(&mut self, left: u32, right: u32) -> bool {
        let right = u32::try_from(self.split)
            .unwrap_or(u32::MAX)
            .saturating_add(right);
        let (left, right) = (self.find(left), self.find(right));
        // The smaller index becomes the parent, which keeps paths short on
        // average.
        let (low, high) = (left.min(right), left.max(right));
        if let Some(place) = self.above.get_mut(to_usize(high)) {
            *place = low;
        }
        low != high
    }
}

fn equal(left: Node<'_, '_>, right: Node<'_, '_>) -> bool {
    // Comparing scalars allocates nothing.
    if !left.slot().kind().is_compound() {
        return same_head(left, right);
    }
    let split = left.tree.slots.len();
    let count = split.saturating_add(right.tree.slots.len());
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let mut classes = Classes {
        above: (0..count).collect(),
        split,
    };
    let mut pending = vec![(left.id, right.id)];
    while let Some((left_id, right_id)) = pending.pop() {
        let (left, right) = (left.of(left_id), right.of(right_id));
        // Scalars too, since a long string may be shared.
        if !classes.join(left_id, right_id) {
            continue;
        }
        let is_same = match names(left, right) {
            Some(names) => {
                pending.extend(names);
                true
            }
            None => same_head(left, right),
        };
        if !is_same || !add(&mut pending, left.parts(), right.parts()) {
            return false;
        }
        let mut left_operations = Flat::new(left);
        let mut right_operations = Flat::new(right);
        loop {
            match (left_operations.next(), right_operations.next()) {
                (None, None) => break,
                (Some((left_op, left)), Some((right_op, right))) if left_op == right_op => {
                    pending.push((left, right));
                }
                _ => return false,
            }
        }
    }
    true
}

/// The strings of two globals, which may be shared, in pairs to compare. `None` if
/// these are not of the same kinds.
fn names(left: Node<'_, '_>, right: Node<'_, '_>) -> Option<[(u32, u32); 2]> {
    let strings = |node: Node<'_, '_>| {
        let slot = node.slot();
        let [module, name, _] = node.operands(slot);
        let found = [module, name].map(|node| (node.id, node.slot().kind()));
        (slot.kind() == Kind::StackGlobal).then_some(found)
    };
    let ([module, name], [other_module, other_name]) = (strings(left)?, strings(right)?);
    (module.1 == other_module.1 && name.1 == other_name.1)
        .then_some([(module.0, other_module.0), (name.0, other_name.0)])
}

/// Adds all pairs of items. Returns false if the numbers of items differ.
fn add(pending: &mut Vec<(u32, u32)>, left: Items<'_, '_>, mut right: Items<'_, '_>) -> bool {
    for left in left {
        let Some(right) = right.next() else {
            return false;
        };
        pending.push((left.id, right.id));
    }
    right.next().is_none()
}

/// The operations of an object item by item, regardless of batches.
struct Flat<'t, 'p> {
    tree: &'t Tree<'p>,
    segments: Segments,
    op: Op,
    ids: &'t [u32],
}

impl<'t, 'p> Flat<'t, 'p> {
    fn new(node: Node<'t, 'p>) -> Self {
        let operations = node.operations();
        Self {
            tree: operations.tree,
            segments: operations.segments,
            op: Op::Append,
            ids: &[],
        }
    }

    fn next(&mut self) -> Option<(Op, u32)> {
        loop {
            if let Some((&id, rest)) = self.ids.split_first() {
                self.ids = rest;
                return Some((self.op, id));
            }
            (self.op, self.ids) = self.segments.take(self.tree)?;
        }
    }
}

impl Kind {
    const fn is_compound(self) -> bool {
        self.is_object() || self as u8 >= Self::Tuple as u8
    }
}

/// Whether two nodes are equal except for their parts.
fn same_head(left: Node<'_, '_>, right: Node<'_, '_>) -> bool {
    use Value as V;
    match (left.value(), right.value()) {
        (V::Bool(left), V::Bool(right)) => left == right,
        (V::Int(left), V::Int(right)) => same_int(left, right),
        (V::Float(left), V::Float(right)) => left.to_bits() == right.to_bits(),
        (V::Str(left), V::Str(right)) => left.to_bytes() == right.to_bytes(),
        (V::ByteString(left), V::ByteString(right)) => left.to_bytes() == right.to_bytes(),
        (V::Bytes(left), V::Bytes(right)) => left == right,
        (
            V::ByteArray { data, read_only },
            V::ByteArray {
                data: other,
                read_only: other_read_only,
            },
        )
        | (
            V::Buffer {
                data, read_only, ..
            },
            V::Buffer {
                data: other,
                read_only: other_read_only,
                ..
            },
        ) => data == other && read_only == other_read_only,
        (V::Global(left), V::Global(right))
        | (V::Instance { class: left, .. }, V::Instance { class: right, .. }) => {
            left.module.to_bytes() == right.module.to_bytes()
                && left.name.to_bytes() == right.name.to_bytes()
        }
        (V::Extension(left), V::Extension(right)) => left == right,
        (V::PersistentLine(left), V::PersistentLine(right)) => left == right,
        (
            V::New { keywords: left, .. },
            V::New {
                keywords: right, ..
            },
        ) => left.is_some() == right.is_some(),
        (V::None, V::None)
        | (V::Tuple(_), V::Tuple(_))
        | (V::List(_), V::List(_))
        | (V::Set(_), V::Set(_))
        | (V::FrozenSet(_), V::FrozenSet(_))
        | (V::Dict(_), V::Dict(_))
        | (V::Persistent(_), V::Persistent(_))
        | (V::Call { .. }, V::Call { .. })
        | (V::InstanceOf { .. }, V::InstanceOf { .. })
        | (V::ReadOnly(_), V::ReadOnly(_)) => true,
        _ => false,
    }
}

/// Integers beyond 128 bits are compared in their encoding: decimal digits
/// never equal two's complement.
fn same_int(left: Int<'_>, right: Int<'_>) -> bool {
    match (left.to_i128(), right.to_i128()) {
        (Some(left), Some(right)) => left == right,
        (None, None) => match (left, right) {
            (Int::Big(left), Int::Big(right)) => left == right,
            (Int::Decimal(left), Int::Decimal(right)) => {
                decimal_digits(left.as_bytes()).eq(decimal_digits(right.as_bytes()))
            }
            _ => false,
        },
        _ => false,
    }
}

/// The significant digits, after the sign if it is negative.
fn decimal_digits(digits: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let is_negative = digits.first() == Some(&b'-');
    let digits = digits.iter().copied().filter(u8::is_ascii_digit);
    let digits = digits.skip_while(|digit| *digit == b'0');
    is_negative.then_some(b'-').into_iter().chain(digits)
}
