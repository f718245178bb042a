//! The table of payloads, sets and enum members of a message.

use core::cmp::Ordering;

use super::classic::ClassicEntry;
use super::scratch::Storage;
use super::{Layout, PayloadKind};
use crate::BufferTooSmall;
use crate::invariant::OrDefaultIfBug as _;

/// A payload, set or enum member of a body. Offsets in documents fit in 32 bits,
/// since [`Limits::document_len`](crate::Limits::document_len) is capped. The tag of
/// a free slot is zero, as that of an unused level.
#[derive(Clone, Copy, Debug, Default)]
#[repr(u8)]
pub(super) enum Slot {
    #[default]
    Free,
    /// A placeholder from `start` to `end` in the body. The payload's header is
    /// frame `frame`, and its frames end before frame `limit`.
    Placeholder {
        start: u32,
        end: u32,
        frame: u32,
        limit: u32,
        kind: PayloadKind,
    },
    /// A set, whose members are the array at `list`.
    Set { start: u32, end: u32, list: u32 },
    /// An enum member.
    Enum { start: u32, end: u32 },
    /// A payload with a path; offsets in the payload header.
    Path(ClassicEntry),
    /// A payload of a classic message that is built, in place of the nil at
    /// `start` in the body.
    Built { start: u32, bytestring: bool },
}

impl Slot {
    pub(super) const fn start(&self) -> u32 {
        match self {
            Self::Placeholder { start, .. }
            | Self::Set { start, .. }
            | Self::Enum { start, .. }
            | Self::Built { start, .. } => *start,
            Self::Path(entry) => entry.target,
            Self::Free => u32::MAX,
        }
    }

    pub(super) const fn is_bytestring(&self) -> bool {
        matches!(self, Self::Built { bytestring, .. } if *bytestring)
    }

    pub(super) const fn frame(&self) -> u32 {
        match self {
            Self::Placeholder { frame, .. } => *frame,
            _ => 0,
        }
    }

    pub(super) const fn is_special(&self) -> bool {
        matches!(self, Self::Set { .. } | Self::Enum { .. })
    }

    pub(super) const fn path(&self) -> Option<&ClassicEntry> {
        match self {
            Self::Path(entry) if Layout::Classic.is_classic() => Some(entry),
            _ => None,
        }
    }
}

/// The bytes of a span of a document.
pub(super) fn span(document: &[u8], (start, end): (u32, u32)) -> &[u8] {
    document
        .get(start as usize..end as usize)
        .or_default_if_bug()
}

/// A table that is filled from the start. It keeps counting when it is full, so
/// that the error has the number of entries needed.
pub(super) struct Table<'t, 's> {
    pub(super) slots: &'t mut Storage<'s, Slot>,
    pub(super) count: usize,
    /// The maximum number of entries so far.
    pub(super) max_count: usize,
    /// Whether some entries are free.
    has_free: bool,
}

impl<'t, 's> Table<'t, 's> {
    pub(super) const fn new(slots: &'t mut Storage<'s, Slot>, count: usize) -> Self {
        Self {
            slots,
            count,
            max_count: count,
            has_free: false,
        }
    }

    #[inline(never)]
    pub(super) fn push(&mut self, slot: Slot) {
        if let Some(place) = self.slots.at(self.count) {
            *place = slot;
        }
        self.count = self.count.saturating_add(1);
        self.max_count = self.max_count.max(self.count);
    }

    /// Drops the entries from `first` on except those in `kept`. Moves or frees
    /// the smaller part, so that the cost does not multiply with nesting.
    pub(super) fn retain(&mut self, first: usize, kept: core::ops::Range<usize>) {
        let slots = self.slots.as_mut();
        self.count = kept.end;
        if kept.len() > kept.start.saturating_sub(first) {
            for place in slots.iter_mut().take(kept.start).skip(first) {
                *place = Slot::Free;
                self.has_free = true;
            }
            return;
        }
        self.count = first;
        for from in kept {
            // The former contents are not used again.
            swap(slots, self.count, from);
            self.count = self.count.saturating_add(1);
        }
    }

    /// Moves the free entries to the end.
    pub(super) fn pack(&mut self) {
        if self.has_free {
            let entries = self
                .slots
                .as_mut()
                .get_mut(..self.count)
                .or_default_if_bug();
            self.count = keep(entries, |slot| !matches!(slot, Slot::Free));
        }
    }

    pub(super) fn check(&mut self) -> Result<(), BufferTooSmall> {
        BufferTooSmall::check(self.slots.as_mut(), self.max_count).map(drop)
    }
}

/// Moves the entries that satisfy `wanted` to the start, in order.
pub(super) fn keep(slots: &mut [Slot], wanted: impl Fn(&Slot) -> bool) -> usize {
    let mut kept = 0_usize;
    for index in 0..slots.len() {
        if slots.get(index).is_some_and(&wanted) {
            swap(slots, kept, index);
            kept = kept.saturating_add(1);
        }
    }
    kept
}

/// Sorts entries, which are mostly in order. A heap sort:
/// `slice::sort_unstable` panics for inconsistent orders, which would fail the
/// bare-metal test. Not generic over the order, so that there is one copy of it.
#[inline(never)]
pub(super) fn sort(slots: &mut [Slot], order: &dyn Fn(&Slot, &Slot) -> Ordering) {
    let before = |slots: &[Slot], one: usize, other: usize| match (slots.get(one), slots.get(other))
    {
        (Some(one), Some(other)) => order(one, other).is_lt(),
        _ => false,
    };
    if slots.is_sorted_by(|one, other| order(one, other).is_le()) {
        return;
    }
    // Moves an entry of the heap down to its position before `end`.
    let sift = |slots: &mut [Slot], mut at: usize, end: usize| loop {
        let mut child = at.saturating_mul(2).saturating_add(1);
        let second = child.saturating_add(1);
        if second < end && before(slots, child, second) {
            child = second;
        }
        if child >= end || !before(slots, at, child) {
            return;
        }
        swap(slots, at, child);
        at = child;
    };
    let len = slots.len();
    for at in (0..len / 2).rev() {
        sift(slots, at, len);
    }
    for end in (1..len).rev() {
        swap(slots, 0, end);
        sift(slots, 0, end);
    }
}

/// Swaps two different entries within bounds. `slice::swap` panics out of
/// bounds, which would fail the bare-metal test.
fn swap(slots: &mut [Slot], one: usize, other: usize) {
    if let Ok([one, other]) = slots.get_disjoint_mut([one, other]) {
        core::mem::swap(one, other);
    }
}

/// Converts an offset in a document, whose length has been checked to fit.
pub(super) fn offset(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}
