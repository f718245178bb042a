//! Working memory for messages, of fixed size or on the heap.

#[cfg(feature = "alloc")]
use alloc::vec::Vec;

use super::level::Level;
use super::slot::Slot;

/// Working memory of fixed size for one message that is opened, walked or
/// built.
///
/// * `DEPTH`: the levels of nested arrays and maps to accept. Six are enough
///   for every message of a real scheduler.
/// * `PAYLOADS`: the payloads, sets and enum members to accept. None are needed
///   to walk a message.
/// * `BODY`: the length of a decompressed body, in bytes. Only messages of the
///   classic layout have one, and only if they are long.
///
/// With too little memory [`Message::open`](super::Message::open) fails with an
/// error that has the required number. The contents are private to each call, so
/// that one scratch serves any number of messages, one after another. It needs no
/// initialisation: keep it in a `static`, or on the stack of the task that reads.
///
/// ```
/// use daskwire::message::{Layout, Message, ReadOptions, Scratch};
///
/// let mut scratch = Scratch::<8, 4>::new();
/// let frames = [b"\x81\xa2op\xa4ping"];
/// let options = ReadOptions::default();
/// let message = Message::open(&frames, Layout::Modern, &options, &mut scratch)?;
/// assert!(message.op().is_some_and(|op| op == "ping"));
/// # Ok::<(), daskwire::message::MessageError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Scratch<const DEPTH: usize, const PAYLOADS: usize = 0, const BODY: usize = 0> {
    levels: [Level; DEPTH],
    slots: [Slot; PAYLOADS],
    body: [u8; BODY],
}

impl<const DEPTH: usize, const PAYLOADS: usize, const BODY: usize> Scratch<DEPTH, PAYLOADS, BODY> {
    const UNUSED: Self = Self {
        levels: [Level::Free; DEPTH],
        slots: [Slot::Free; PAYLOADS],
        body: [0; BODY],
    };

    /// Unused memory.
    #[inline]
    pub const fn new() -> Self {
        Self::UNUSED
    }
}

impl<const DEPTH: usize, const PAYLOADS: usize, const BODY: usize> Default
    for Scratch<DEPTH, PAYLOADS, BODY>
{
    fn default() -> Self {
        Self::new()
    }
}

/// Working memory on the heap: a [`Scratch`] that grows as needed, and is passed in
/// the same way.
///
/// Its size is bounded by the [`Limits`](crate::Limits) of a message and grows
/// with the frames, not with declared sizes. Reuse one workspace for all
/// messages.
#[cfg(feature = "alloc")]
#[derive(Debug, Default)]
pub struct Workspace {
    levels: Vec<Level>,
    slots: Vec<Slot>,
    body: Vec<u8>,
    /// Whether the workspace never grows.
    is_fixed: bool,
}

#[cfg(feature = "alloc")]
impl Workspace {
    /// Creates an empty workspace; it allocates on first use.
    pub const fn new() -> Self {
        Self {
            levels: Vec::new(),
            slots: Vec::new(),
            body: Vec::new(),
            is_fixed: false,
        }
    }

    /// Creates a workspace that allocates here and never grows, for programs
    /// that allocate when they start. The numbers are those of a [`Scratch`].
    pub fn fixed(depth: usize, payloads: usize, body_len: usize) -> Self {
        Self {
            levels: alloc::vec![Level::Free; depth],
            slots: alloc::vec![Slot::Free; payloads],
            body: alloc::vec![0; body_len],
            is_fixed: true,
        }
    }
}

/// A reference to a [`Scratch`], or with feature `alloc` to a `Workspace`.
///
/// Methods take `impl Into<ScratchRef>`: pass `&mut scratch`.
#[derive(Debug)]
pub struct ScratchRef<'s> {
    pub(super) levels: Storage<'s, Level>,
    pub(super) slots: Storage<'s, Slot>,
    pub(super) body: Storage<'s, u8>,
}

impl<'s, const DEPTH: usize, const PAYLOADS: usize, const BODY: usize>
    From<&'s mut Scratch<DEPTH, PAYLOADS, BODY>> for ScratchRef<'s>
{
    #[inline]
    fn from(scratch: &'s mut Scratch<DEPTH, PAYLOADS, BODY>) -> Self {
        Self {
            levels: Storage::Fixed(&mut scratch.levels),
            slots: Storage::Fixed(&mut scratch.slots),
            body: Storage::Fixed(&mut scratch.body),
        }
    }
}

#[cfg(feature = "alloc")]
impl<'s> From<&'s mut Workspace> for ScratchRef<'s> {
    fn from(workspace: &'s mut Workspace) -> Self {
        let Workspace {
            levels,
            slots,
            body,
            is_fixed,
        } = workspace;
        if *is_fixed {
            return Self {
                levels: Storage::Fixed(levels),
                slots: Storage::Fixed(slots),
                body: Storage::Fixed(body),
            };
        }
        Self {
            levels: Storage::Growing(levels),
            slots: Storage::Growing(slots),
            body: Storage::Growing(body),
        }
    }
}

/// Items in memory of fixed size, or on the heap, where more are added as they
/// are needed.
#[derive(Debug)]
pub(super) enum Storage<'s, T> {
    Fixed(&'s mut [T]),
    #[cfg(feature = "alloc")]
    Growing(&'s mut Vec<T>),
}

impl<'s, T: Clone + Default> Storage<'s, T> {
    pub(super) const NONE: Self = Self::Fixed(&mut []);

    #[inline]
    pub(super) fn as_slice(&self) -> &[T] {
        match self {
            Self::Fixed(items) => items,
            #[cfg(feature = "alloc")]
            Self::Growing(items) => items,
        }
    }

    #[inline]
    pub(super) fn as_mut(&mut self) -> &mut [T] {
        match self {
            Self::Fixed(items) => items,
            #[cfg(feature = "alloc")]
            Self::Growing(items) => items,
        }
    }

    #[inline]
    pub(super) fn into_slice(self) -> &'s mut [T] {
        match self {
            Self::Fixed(items) => items,
            #[cfg(feature = "alloc")]
            Self::Growing(items) => items,
        }
    }

    /// Item `index`, which is at most one more than are in use.
    #[inline]
    pub(super) fn at(&mut self, index: usize) -> Option<&mut T> {
        #[cfg(feature = "alloc")]
        self.reserve(index.saturating_add(1));
        self.as_mut().get_mut(index)
    }

    /// Makes room for `count` items. Returns whether there is room for them.
    #[inline]
    pub(super) fn reserve(&mut self, count: usize) -> bool {
        match self {
            Self::Fixed(items) => items.len() >= count,
            #[cfg(feature = "alloc")]
            Self::Growing(items) => {
                if items.len() < count {
                    items.resize(count, T::default());
                }
                true
            }
        }
    }
}
