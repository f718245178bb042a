//! Values that differ in numbers, strings and bytes only.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::build::to_usize;
use super::{Kind, Node, Op, Slot, Tree};

/// The structure of a value, by which later values of the same tree are found that differ from it in
/// numbers, strings and bytes only.
///
/// Programs pickle many values that are alike, such as calls of one function with other arguments. What was
/// found out about the structure of one of them holds for the others.
///
/// ```
/// use daskwire_pickle::tree::{Pattern, Tree};
///
/// // pickle.dumps([(len, 1), (len, 2), (len, 3), (len, None)])
/// let pickle = b"\x80\x04]\x94(\x8c\x08builtins\x94\x8c\x03len\x94\x93\x94K\x01\x86\x94\
///     h\x03K\x02\x86\x94h\x03K\x03\x86\x94h\x03N\x86\x94e.";
/// let tree = Tree::new(pickle)?;
/// let items: Vec<_> = tree.root().items().collect();
/// let pattern = Pattern::of(items[0], items[1]).0.ok_or("they differ")?;
/// assert!(pattern.fits(items[2]));
/// assert!(!pattern.fits(items[3]));
/// let numbers = pattern.own().map(|part| pattern.counterpart(part, items[2]).as_i64());
/// assert_eq!(numbers.flatten().collect::<Vec<_>>(), [3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pattern<'t, 'p> {
    root: Node<'t, 'p>,
    /// The ids of the parts that are not shared with other values, in ascending order.
    own: Vec<u32>,
    kinds: Vec<Kind>,
    /// What these refer to: see [`links`]. And whether this is one of them.
    links: Vec<(u32, bool)>,
    /// The highest id of a part.
    last: u32,
}

impl<'t, 'p> Pattern<'t, 'p> {
    /// The pattern of `other`, if it is like `one`, which was created before, and the number of their parts that
    /// were compared.
    ///
    /// An object must have at most one batch of operations, and a list, set or dictionary one batch of items.
    /// What `other` has for itself was created after `one`, and is not also in what both have.
    pub fn of(one: Node<'t, 'p>, other: Node<'t, 'p>) -> (Option<Self>, usize) {
        let mut parts = BTreeMap::new();
        let pattern = Self::compared(one, other, &mut parts);
        (pattern, parts.len())
    }

    /// As [`of`](Self::of). Adds to `parts`, by the id, whether a part of `other` is its own.
    fn compared(
        one: Node<'t, 'p>,
        other: Node<'t, 'p>,
        parts: &mut BTreeMap<u32, bool>,
    ) -> Option<Self> {
        /// Of larger values, few are alike.
        const MAX_COUNT: usize = 1 << 12;
        let tree = other.tree;
        let before = one.id;
        let shift = other.id.checked_sub(one.id).filter(|shift| *shift > 0)?;
        let mut left = Vec::from([(one.id, other.id)]);
        while let Some((one, other)) = left.pop() {
            let is_own = one != other;
            // Parts of its own that are older would be those of several values.
            if is_own && (one.checked_add(shift) != Some(other) || other <= before) {
                return None;
            }
            match parts.insert(other, is_own) {
                Some(known) if known != is_own => return None,
                Some(_) => continue,
                None => {}
            }
            if parts.len() > MAX_COUNT || tree.kind(one) != tree.kind(other) {
                return None;
            }
            if !is_own && tree.kind(one).is_opaque() {
                continue;
            }
            let known = links(tree, tree.slot(one))?;
            for (one, other) in known.into_iter().zip(links(tree, tree.slot(other))?) {
                if one.head != other.head || one.ids.len() != other.ids.len() {
                    return None;
                }
                left.extend(one.ids.iter().copied().zip(other.ids.iter().copied()));
            }
        }
        let last = *parts.last_key_value()?.0;
        let is_own = |id: &u32| parts.get(id).copied().unwrap_or(false);
        let own: Vec<u32> = parts.keys().copied().filter(is_own).collect();
        let mut of_all = Vec::new();
        for id in &own {
            let slot = tree.slot(*id);
            if slot.kind().is_leaf() {
                continue;
            }
            for part in links(tree, slot)? {
                of_all.push((part.head, false));
                of_all.extend(part.ids.iter().map(|id| (*id, is_own(id))));
            }
        }
        Some(Self {
            root: other,
            kinds: own.iter().map(|id| tree.kind(*id)).collect(),
            own,
            links: of_all,
            last,
        })
    }

    /// The value that it was made of.
    pub const fn root(&self) -> Node<'t, 'p> {
        self.root
    }

    /// The parts of [`root`](Self::root) that are not also parts of the value before it, each once.
    pub fn own(&self) -> impl Iterator<Item = Node<'t, 'p>> {
        self.own.iter().map(|id| self.root.of(*id))
    }

    /// Whether [`own`](Self::own) has a value.
    pub fn has(&self, part: Node<'t, 'p>) -> bool {
        // Nearly all of them have consecutive ids.
        let first = self.own.first().copied().unwrap_or(0);
        let place = part.id.checked_sub(first).map(to_usize);
        let is_there = place.is_some_and(|place| self.own.get(place) == Some(&part.id));
        is_there || self.own.binary_search(&part.id).is_ok()
    }

    /// Whether a value that was created later is like it: apart from numbers, strings and bytes, which are of the
    /// same types, it has the same parts in the same places, or parts of its own that are like them and shared
    /// within it in the same way.
    pub fn fits(&self, node: Node<'t, 'p>) -> bool {
        let tree = self.root.tree;
        let first = self.own.first().copied().unwrap_or(0);
        let Some(shift) = node.id.checked_sub(self.root.id) else {
            return false;
        };
        // Its own parts are none of those that are the same.
        if first.saturating_add(shift) <= self.last || !core::ptr::eq(tree, node.tree) {
            return false;
        }
        let mut expected = &self.links[..];
        for (id, kind) in self.own.iter().zip(&self.kinds) {
            let slot = tree.slot(id.saturating_add(shift));
            if slot.kind() != *kind {
                return false;
            }
            if kind.is_leaf() {
                continue;
            }
            let Some(parts) = links(tree, slot) else {
                return false;
            };
            for part in parts {
                let len = part.ids.len().saturating_add(1);
                let Some((known, rest)) = expected.split_at_checked(len) else {
                    return false;
                };
                let (head, ids) = known.split_first().unwrap_or((&(0, false), &[]));
                let is_same = |(id, known): (&u32, &(u32, bool))| {
                    id.wrapping_sub(known.0) == if known.1 { shift } else { 0 }
                };
                if head.0 != part.head || !part.ids.iter().zip(ids).all(is_same) {
                    return false;
                }
                expected = rest;
            }
        }
        expected.is_empty()
    }

    /// The number of parts that [`fits`](Self::fits) compares at most.
    pub fn part_count(&self) -> usize {
        self.own.len()
    }

    /// What a value that fits has in the place of a part of [`root`](Self::root). Of another value, it is any
    /// part of the tree.
    pub fn counterpart(&self, part: Node<'t, 'p>, of: Node<'t, 'p>) -> Node<'t, 'p> {
        match self.has(part) {
            true => of.of(part.id.wrapping_add(of.id.wrapping_sub(self.root.id))),
            false => part,
        }
    }
}

/// A part of a value: what is the same in all that are like it, such as the number of items, and the ids.
struct Links<'t> {
    head: u32,
    ids: &'t [u32],
}

impl Kind {
    /// Whether a value has no parts and no state.
    const fn is_leaf(self) -> bool {
        matches!(
            self,
            Self::None
                | Self::True
                | Self::False
                | Self::Int
                | Self::Float
                | Self::Str
                | Self::Bytes
        )
    }

    /// Whether a value of which there are no patterns has no parts.
    const fn is_opaque(self) -> bool {
        matches!(
            self,
            Self::ByteString
                | Self::ByteArray
                | Self::ReadOnlyByteArray
                | Self::Buffer
                | Self::ReadOnlyBuffer
        )
    }
}

/// What a value refers to, and its state; `None` for those of which there are no patterns.
fn links<'t>(tree: &'t Tree<'_>, slot: Slot) -> Option<[Links<'t>; 2]> {
    const NOTHING: Links<'_> = Links { head: 0, ids: &[] };
    let segment = |last: u32| match last {
        0 => Some(NOTHING),
        // The only segment is also the first.
        last if tree.word(last) == last => {
            let head = tree.word(last.saturating_add(1));
            let (_, count) = Op::unpack(head);
            let ids = tree.words(last.saturating_add(2), count);
            Some(Links { head, ids })
        }
        _ => None,
    };
    let after = slot.link.saturating_add(1);
    Some(match slot.kind() {
        kind if kind.is_leaf() => [NOTHING, NOTHING],
        Kind::Tuple | Kind::FrozenSet => {
            let head = match slot.link {
                0 => 0,
                link => tree.word(link),
            };
            let ids = tree.words(after, to_usize(head));
            [Links { head, ids }, NOTHING]
        }
        Kind::List | Kind::Set | Kind::Dict => [segment(slot.link)?, NOTHING],
        kind @ (Kind::StackGlobal | Kind::Call | Kind::New | Kind::NewWithKeywords) => {
            let ids = tree.words(after, kind.operand_count());
            [Links { head: 0, ids }, segment(tree.word(slot.link))?]
        }
        _ => return None,
    })
}
