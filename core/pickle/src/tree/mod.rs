//! Trees of inert values, built from a pickle.
//!
//! A [`Tree`] represents the value of a pickle: containers with their items,
//! and names, calls and states as data. Sharing is preserved: an object that
//! Python would have once is one [`Node`], and a list may contain itself.
//! Nothing is imported or called, and no data is copied.
//!
//! ```
//! use daskwire_pickle::tree::{Tree, Value};
//!
//! // pickle.dumps({"when": 1, "what": os.system}, 4)
//! let pickle = b"\x80\x04\x95\x28\0\0\0\0\0\0\0}\x94(\x8c\x04when\x94K\x01\
//!     \x8c\x04what\x94\x8c\x05posix\x94\x8c\x06system\x94\x93\x94u.";
//! let tree = Tree::new(pickle)?;
//! let root = tree.root();
//! assert_eq!(root.get("when").and_then(|when| when.as_i64()), Some(1));
//! let what = root.get("what").ok_or("nothing")?;
//! let Value::Global(global) = what.value() else { return Err("no name".into()) };
//! assert!(global.is("posix", "system"));
//! assert_eq!(tree.to_string(), r#"{"when": 1, "what": global posix.system}"#);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Memory
//!
//! A value takes 12 bytes, an item of another value 4; a batch of items, a
//! tuple or a call has a head of 4 to 8. While the tree is built, the stack and
//! the memo take 4 bytes per entry, and vectors may have twice the capacity
//! that they need. In total a pickle of `n` bytes with `k` buffers takes less
//! than `64 * n + 32 * k` bytes at any time, and most take less than `4 * n`;
//! memo indices that are not consecutive take about 24 bytes more each.
//!
//! # Refused pickles
//!
//! Everything that makes CPython's stack machine fail (see
//! [`PickleErrorKind`]), and operations on built-in values that always fail,
//! such as appending to a number or calling a string. Names are not looked up,
//! keys need not be hashable, and operations on objects are recorded for
//! objects of any class. Apart from the [`Limits`], three operations that
//! CPython loads but never writes are refused: BUILD on a value that is not an
//! object, SETITEM on a list, and APPEND on a `bytearray`.
//!
//! # Meaning
//!
//! A [`Registry`] maps the names that the caller allows to the caller's data.
//!
//! [`PickleErrorKind`]: super::PickleErrorKind

use alloc::vec::Vec;
use daskwire_compression::invariant::OrDefaultIfBug;

use super::{Opcode, PickleError, Reader};
use crate::Limits;
use build::{Builder, to_usize};
use items::Segments;

mod build;
mod compare;
mod display;
mod items;
mod node;
mod pattern;
mod registry;
mod value;
mod walk;

pub use display::Escaped;
pub use items::{Entries, Items, Operations};
pub use node::Node;
pub use pattern::Pattern;
pub use registry::{Object, Origin, Registry};
pub use value::{ByteString, Global, Int, Operation, State, Str, Value};
pub use walk::{BudgetExceeded, Walk, WalkEvent};

/// The value of a pickle, as data.
///
/// Two trees are equal if their values are, regardless of sharing and of the
/// opcodes used; sets and dictionaries must have the same order. Comparison
/// takes time proportional to the trees, even if values are shared or contain
/// themselves. Floats are compared by their bits.
#[derive(Clone)]
pub struct Tree<'p> {
    /// The pickle from the initial position of the reader on.
    pickle: &'p [u8],
    /// Length of the part that was read, in bytes.
    len: usize,
    /// Offset of `pickle` in the input of the reader.
    base: usize,
    slots: Vec<Slot>,
    /// The parts of values, each a `u32`:
    ///
    /// * of tuples and frozen sets: the number of items, then the items;
    /// * of objects with operands: the last segment or 0, then the operands;
    /// * segments of values that grow: the next segment (of the last one, the
    ///   first), the operation with the number of items, then the items.
    words: Vec<u32>,
    buffers: Vec<&'p [u8]>,
    root: u32,
}

/// A value: its kind, the offset of its opcode, and the index of its parts.
#[derive(Clone, Copy)]
struct Slot {
    offset_low: u32,
    /// The kind, then the high 24 bits of the offset.
    kind_and_offset_high: u32,
    /// An index into the words, or 0; of a buffer its index; of an integer of
    /// any size its length without redundant sign bytes, since searching for them
    /// at each visit takes quadratic time.
    link: u32,
}

macro_rules! kinds {
    ($($kind:ident),* $(,)?) => {
        /// The kind of a slot.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        enum Kind { $($kind),* }

        impl Kind {
            const ALL: &'static [Self] = &[$(Self::$kind),*];
        }
    };
}

kinds! {
    None, True, False, Int, Float, Str, ByteString, Bytes, ByteArray, ReadOnlyByteArray,
    Buffer, ReadOnlyBuffer, Tuple, FrozenSet, List, Set, Dict,
    // The kinds from here on are objects.
    Global, Extension, PersistentLine,
    // The kinds from here on have operands.
    StackGlobal, Call, New, NewWithKeywords, Instance, InstanceOf, Persistent, ReadOnly,
}

impl Kind {
    const fn is_object(self) -> bool {
        self as u8 >= Self::Global as u8
    }

    const fn has_operands(self) -> bool {
        self as u8 >= Self::StackGlobal as u8
    }

    const fn operand_count(self) -> usize {
        match self {
            Self::NewWithKeywords => 3,
            Self::StackGlobal | Self::Call | Self::New | Self::InstanceOf => 2,
            Self::Instance | Self::Persistent | Self::ReadOnly => 1,
            _ => 0,
        }
    }
}

impl Slot {
    fn new(kind: Kind, offset: usize, link: u32) -> Self {
        let offset = u64::try_from(offset).unwrap_or(u64::MAX);
        let [a, b, c, d, e, f, g, _] = offset.to_le_bytes();
        Self {
            offset_low: u32::from_le_bytes([a, b, c, d]),
            kind_and_offset_high: u32::from_le_bytes([e, f, g, kind as u8]),
            link,
        }
    }

    fn kind(self) -> Kind {
        let [_, _, _, kind] = self.kind_and_offset_high.to_le_bytes();
        Kind::ALL
            .get(usize::from(kind))
            .copied()
            .unwrap_or(Kind::None)
    }

    fn offset(self) -> usize {
        let [a, b, c, d] = self.offset_low.to_le_bytes();
        let [e, f, g, _] = self.kind_and_offset_high.to_le_bytes();
        usize::try_from(u64::from_le_bytes([a, b, c, d, e, f, g, 0])).unwrap_or(usize::MAX)
    }
}

/// An operation on a value that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Append,
    Set,
    Add,
    State,
}

impl Op {
    /// Packs the operation and a number of items into a word, if the number is
    /// not too large.
    fn with_count(self, count: usize) -> Option<u32> {
        let count = u32::try_from(count).ok()?;
        (count < 1 << 30).then_some((count << 2) | u32::from(self as u8))
    }

    fn unpack(word: u32) -> (Self, usize) {
        let op = match word & 3 {
            0 => Self::Append,
            1 => Self::Set,
            2 => Self::Add,
            _ => Self::State,
        };
        (op, to_usize(word >> 2))
    }
}

impl<'p> Tree<'p> {
    /// Builds the tree of a pickle without out-of-band buffers, with the limits
    /// of [`Limits::HOST`] and without text opcodes.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build).
    pub fn new(pickle: &'p [u8]) -> Result<Self, PickleError> {
        Self::build::<&[u8]>(Reader::new(pickle), &[], &Limits::HOST)
    }

    /// Builds the tree of a pickle with its out-of-band buffers.
    ///
    /// In a payload of Dask the pickle is the first frame and the buffers are
    /// the others.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build).
    pub fn with_buffers<T: AsRef<[u8]>>(
        pickle: &'p [u8],
        buffers: &'p [T],
    ) -> Result<Self, PickleError> {
        Self::build(Reader::new(pickle), buffers, &Limits::HOST)
    }

    /// Builds the tree of the pickle that `reader` is at the start of.
    ///
    /// Of the limits only `value_count`, `stack_count` and `memo_count` apply
    /// here; the reader has its own.
    ///
    /// # Errors
    ///
    /// * as [`Reader::next_token`];
    /// * [`PickleErrorKind::TooFewBuffers`] or
    ///   [`PickleErrorKind::TooManyBuffers`] if the number of buffers is wrong;
    /// * [`PickleErrorKind::StackUnderflow`], [`PickleErrorKind::NoMark`],
    ///   [`PickleErrorKind::NotMemoized`], [`PickleErrorKind::OddItems`],
    ///   [`PickleErrorKind::WrongOperand`], [`PickleErrorKind::ExtensionCode`]
    ///   or [`PickleErrorKind::NoBuffer`] if an opcode cannot be applied to the
    ///   stack;
    /// * [`PickleErrorKind::TooManyValues`], [`PickleErrorKind::StackTooLarge`] or
    ///   [`PickleErrorKind::MemoTooLarge`] if a limit is reached.
    ///
    /// [`PickleErrorKind::TooFewBuffers`]: super::PickleErrorKind::TooFewBuffers
    /// [`PickleErrorKind::TooManyBuffers`]: super::PickleErrorKind::TooManyBuffers
    /// [`PickleErrorKind::StackUnderflow`]: super::PickleErrorKind::StackUnderflow
    /// [`PickleErrorKind::NoMark`]: super::PickleErrorKind::NoMark
    /// [`PickleErrorKind::NotMemoized`]: super::PickleErrorKind::NotMemoized
    /// [`PickleErrorKind::OddItems`]: super::PickleErrorKind::OddItems
    /// [`PickleErrorKind::WrongOperand`]: super::PickleErrorKind::WrongOperand
    /// [`PickleErrorKind::ExtensionCode`]: super::PickleErrorKind::ExtensionCode
    /// [`PickleErrorKind::NoBuffer`]: super::PickleErrorKind::NoBuffer
    /// [`PickleErrorKind::TooManyValues`]: super::PickleErrorKind::TooManyValues
    /// [`PickleErrorKind::StackTooLarge`]: super::PickleErrorKind::StackTooLarge
    /// [`PickleErrorKind::MemoTooLarge`]: super::PickleErrorKind::MemoTooLarge
    pub fn build<T: AsRef<[u8]>>(
        reader: Reader<'p>,
        buffers: &'p [T],
        limits: &Limits,
    ) -> Result<Self, PickleError> {
        Builder::new(reader.remaining(), limits).run(reader, buffers)
    }

    /// The value of the pickle.
    pub const fn root(&self) -> Node<'_, 'p> {
        Node {
            tree: self,
            id: self.root,
        }
    }

    /// Length of the pickle with its STOP, in bytes. Bytes after that are not
    /// part of the pickle.
    pub const fn pickle_len(&self) -> usize {
        self.len
    }

    /// The number of values, including those that the root does not contain.
    pub const fn value_count(&self) -> usize {
        self.slots.len()
    }

    /// All values, each once, in the order of their creation, including those
    /// that the root does not contain.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = Node<'_, 'p>> {
        let count = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        (0..count).map(|id| Node { tree: self, id })
    }

    fn slot(&self, id: u32) -> Slot {
        const NOTHING: Slot = Slot {
            offset_low: 0,
            kind_and_offset_high: 0,
            link: 0,
        };
        self.slots.get(to_usize(id)).copied().unwrap_or(NOTHING)
    }

    fn kind(&self, id: u32) -> Kind {
        self.slot(id).kind()
    }

    fn word(&self, index: u32) -> u32 {
        self.words.get(to_usize(index)).copied().unwrap_or(0)
    }

    fn words(&self, start: u32, count: usize) -> &[u32] {
        let start = to_usize(start);
        match count {
            0 => &[],
            count => self
                .words
                .get(start..start.saturating_add(count))
                .or_default_if_bug(),
        }
    }

    /// The opcode of a value and the bytes after it.
    fn opcode_at(&self, slot: Slot) -> (Opcode, &'p [u8]) {
        let rest = self.pickle.get(slot.offset()..).or_default_if_bug();
        let (first, rest) = rest.split_first().unwrap_or((&0, &[]));
        (Opcode::from_byte(*first).unwrap_or(Opcode::None), rest)
    }

    fn argument_at(&self, slot: Slot) -> super::Argument<'p> {
        let (opcode, rest) = self.opcode_at(slot);
        match super::reader::argument(opcode, rest, true) {
            Ok((argument, _)) => argument,
            // Cannot fail: the opcode was read before.
            Err(_) => super::Argument::None,
        }
    }
}
