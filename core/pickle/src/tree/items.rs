//! Iterators over the parts of a value.

use core::fmt;

use super::{Node, Op, Operation, State, Tree};

/// The items of a value, in order.
#[derive(Clone, Copy)]
pub struct Items<'t, 'p> {
    pub(super) tree: &'t Tree<'p>,
    pub(super) ids: &'t [u32],
    pub(super) segments: Segments,
}

/// The rest of a circular list of segments.
#[derive(Clone, Copy)]
pub(super) struct Segments {
    /// The next segment; 0 at the end.
    pub(super) next: u32,
    pub(super) last: u32,
}

impl Segments {
    pub(super) fn new(tree: &Tree<'_>, last: u32) -> Self {
        let next = match last {
            0 => 0,
            last => tree.word(last),
        };
        Self { next, last }
    }

    #[inline]
    pub(super) fn take<'t>(&mut self, tree: &'t Tree<'_>) -> Option<(Op, &'t [u32])> {
        let segment = match self.next {
            0 => return None,
            segment => segment,
        };
        self.next = match segment {
            segment if segment == self.last => 0,
            segment => tree.word(segment),
        };
        let (op, count) = Op::unpack(tree.word(segment.saturating_add(1)));
        Some((op, tree.words(segment.saturating_add(2), count)))
    }
}

impl<'t, 'p> Items<'t, 'p> {
    pub(super) fn segments(tree: &'t Tree<'p>, last: u32) -> Self {
        Self {
            tree,
            ids: &[],
            segments: Segments::new(tree, last),
        }
    }

    /// The number of items left. Takes time proportional to the number of
    /// batches; CPython writes 1000 items per batch.
    pub fn count_left(&self) -> usize {
        let mut count = self.ids.len();
        let mut segments = self.segments;
        while let Some((_, ids)) = segments.take(self.tree) {
            count = count.saturating_add(ids.len());
        }
        count
    }

    /// The items left, if their number is exactly `N`.
    pub fn exactly<const N: usize>(self) -> Option<[Node<'t, 'p>; N]> {
        let mut items = self;
        let first = Node {
            tree: self.tree,
            id: 0,
        };
        let mut found = [first; N];
        for place in &mut found {
            *place = items.next()?;
        }
        items.next().is_none().then_some(found)
    }
}

impl<'t, 'p> Iterator for Items<'t, 'p> {
    type Item = Node<'t, 'p>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((&id, rest)) = self.ids.split_first() {
                self.ids = rest;
                return Some(Node {
                    tree: self.tree,
                    id,
                });
            }
            self.ids = self.segments.take(self.tree)?.1;
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.ids.len(), None)
    }
}

impl fmt::Debug for Items<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} items", self.count_left())
    }
}

/// The keys and values of a dictionary, in order.
#[derive(Clone, Copy)]
pub struct Entries<'t, 'p>(pub(super) Items<'t, 'p>);

impl<'t, 'p> Iterator for Entries<'t, 'p> {
    type Item = (Node<'t, 'p>, Node<'t, 'p>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        Some((self.0.next()?, self.0.next()?))
    }
}

impl Entries<'_, '_> {
    /// The number of entries left; takes time as [`Items::count_left`].
    pub fn count_left(&self) -> usize {
        self.0.count_left() >> 1
    }
}

impl fmt::Debug for Entries<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entries", self.count_left())
    }
}

/// The operations on an object, in order.
#[derive(Clone, Copy)]
pub struct Operations<'t, 'p> {
    pub(super) tree: &'t Tree<'p>,
    pub(super) segments: Segments,
}

impl<'t, 'p> Iterator for Operations<'t, 'p> {
    type Item = Operation<'t, 'p>;

    fn next(&mut self) -> Option<Self::Item> {
        let (op, ids) = self.segments.take(self.tree)?;
        let items = Items {
            tree: self.tree,
            ids,
            segments: Segments { next: 0, last: 0 },
        };
        Some(match op {
            Op::Append => Operation::Append(items),
            Op::Set => Operation::Set(Entries(items)),
            Op::Add => Operation::Add(items),
            Op::State => Operation::State(State(items)),
        })
    }
}

impl fmt::Debug for Operations<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}
