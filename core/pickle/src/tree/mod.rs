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

use crate::invariant::Ensured;
use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::fmt;

use super::escapes::quoted;
use super::{BigInt, Decimal, Opcode, PickleError, PyStr, Reader, Unescaped};
use crate::Limits;
use build::{Builder, to_usize};

mod build;
mod compare;
mod registry;
mod show;
mod walk;

pub use registry::{Made, Object, Registry};
pub use show::Escaped;
pub use walk::{BudgetExceeded, Event, Walk};

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
    place_low: u32,
    /// The kind, then the high 24 bits of the offset.
    kind_and_place_high: u32,
    /// An index into the words, or 0; of a buffer its index.
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
    StackGlobal, Call, New, NewWithKeywords, Instance, ObjectOf, Persistent, ReadOnly,
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
            Self::StackGlobal | Self::Call | Self::New | Self::ObjectOf => 2,
            Self::Instance | Self::Persistent | Self::ReadOnly => 1,
            _ => 0,
        }
    }
}

impl Slot {
    fn new(kind: Kind, place: usize, link: u32) -> Self {
        let place = u64::try_from(place).unwrap_or(u64::MAX);
        let [a, b, c, d, e, f, g, _] = place.to_le_bytes();
        Self {
            place_low: u32::from_le_bytes([a, b, c, d]),
            kind_and_place_high: u32::from_le_bytes([e, f, g, kind as u8]),
            link,
        }
    }

    fn kind(self) -> Kind {
        let [_, _, _, kind] = self.kind_and_place_high.to_le_bytes();
        Kind::ALL
            .get(usize::from(kind))
            .copied()
            .unwrap_or(Kind::None)
    }

    fn place(self) -> usize {
        let [a, b, c, d] = self.place_low.to_le_bytes();
        let [e, f, g, _] = self.kind_and_place_high.to_le_bytes();
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
            place_low: 0,
            kind_and_place_high: 0,
            link: 0,
        };
        self.slots.get(to_usize(id)).copied().unwrap_or(NOTHING)
    }

    fn kind(&self, id: u32) -> Kind {
        self.slot(id).kind()
    }

    fn word(&self, place: u32) -> u32 {
        self.words.get(to_usize(place)).copied().unwrap_or(0)
    }

    fn words(&self, start: u32, count: usize) -> &[u32] {
        let start = to_usize(start);
        let words = self.words.get(start..start.saturating_add(count));
        words.ensured()
    }

    /// The opcode of a value and the bytes after it.
    fn opcode_at(&self, slot: Slot) -> (Opcode, &'p [u8]) {
        let rest = self.pickle.get(slot.place()..).ensured();
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

/// A reference to one value of a tree.
#[derive(Clone, Copy)]
pub struct Node<'t, 'p> {
    tree: &'t Tree<'p>,
    id: u32,
}

/// The contents of a [`Node`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Value<'t, 'p> {
    /// `None`.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer of any size.
    Int(Int<'p>),
    /// A float. One in decimal digits with underscores and more than 512 bytes,
    /// which Python never writes, is returned as NaN.
    Float(f64),
    /// A `str`.
    Str(Str<'p>),
    /// A `str` of Python 2, which Python 3 decodes as ASCII by default.
    ByteString(ByteString<'p>),
    /// A `bytes` object.
    Bytes(&'p [u8]),
    /// A `bytearray`, or a read-only view of one.
    ByteArray {
        /// Its data in the pickle.
        data: &'p [u8],
        /// Whether it is a read-only view.
        read_only: bool,
    },
    /// An out-of-band buffer.
    Buffer {
        /// Its data, out of band.
        data: &'p [u8],
        /// Index of the buffer.
        index: usize,
        /// Whether READONLY_BUFFER was applied to it.
        read_only: bool,
    },
    /// A tuple.
    Tuple(Items<'t, 'p>),
    /// A list.
    List(Items<'t, 'p>),
    /// A set: its items in the order in which they were added, including
    /// duplicates.
    Set(Items<'t, 'p>),
    /// A frozen set: its items in the order in which they were added, including
    /// duplicates.
    FrozenSet(Items<'t, 'p>),
    /// A dictionary: its keys and values in the order in which they were set.
    /// Python keeps the last value of equal keys.
    Dict(Entries<'t, 'p>),
    /// A global: a name in a module.
    Global(Global<'p>),
    /// The object registered with `copyreg` under a code.
    Extension(i32),
    /// The object with a persistent id that is a line.
    PersistentLine(&'p str),
    /// The object with a persistent id that is a value.
    Persistent(Node<'t, 'p>),
    /// The result of a call.
    Call {
        /// The callable, which is an object.
        callable: Node<'t, 'p>,
        /// A tuple, or an object.
        arguments: Node<'t, 'p>,
    },
    /// The result of `__new__` of a class.
    New {
        /// The class, which is an object.
        class: Node<'t, 'p>,
        /// A tuple, or an object.
        arguments: Node<'t, 'p>,
        /// A dictionary, or an object.
        keywords: Option<Node<'t, 'p>>,
    },
    /// An instance of a class, created by INST.
    Instance {
        /// The class.
        class: Global<'p>,
        /// A tuple.
        arguments: Node<'t, 'p>,
    },
    /// An instance of a class, created by OBJ.
    ObjectOf {
        /// The class, which is an object.
        class: Node<'t, 'p>,
        /// A tuple.
        arguments: Node<'t, 'p>,
    },
    /// A read-only view of an object.
    ReadOnly(Node<'t, 'p>),
}

/// An operation on an object after its creation.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Operation<'t, 'p> {
    /// Items are appended.
    Append(Items<'t, 'p>),
    /// Items are set.
    Set(Entries<'t, 'p>),
    /// Items are added, as to a set.
    Add(Items<'t, 'p>),
    /// The state is set.
    State(State<'t, 'p>),
}

/// The state of an object.
#[derive(Clone, Copy, Debug)]
pub struct State<'t, 'p>(Items<'t, 'p>);

impl<'t, 'p> State<'t, 'p> {
    /// The value that is the state.
    pub fn node(self) -> Node<'t, 'p> {
        let Self(Items { tree, ids, .. }) = self;
        Node {
            tree,
            id: ids.first().copied().unwrap_or(0),
        }
    }
}

/// An integer in its encoding in the pickle.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Int<'p> {
    /// An integer that fits in 32 bits.
    Small(i64),
    /// An integer of any size.
    Big(BigInt<'p>),
    /// An integer of any size in decimal digits.
    Decimal(Decimal<'p>),
}

impl Int<'_> {
    /// The value, if it fits in the type.
    pub fn to_i128(self) -> Option<i128> {
        match self {
            Self::Small(value) => Some(value.into()),
            Self::Big(value) => value.to_i128(),
            Self::Decimal(value) => value.to_i128(),
        }
    }

    /// The value, if it fits in the type.
    pub fn to_i64(self) -> Option<i64> {
        self.to_i128()?.try_into().ok()
    }

    /// The value, if it fits in the type.
    pub fn to_u64(self) -> Option<u64> {
        self.to_i128()?.try_into().ok()
    }
}

impl fmt::Debug for Int<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Small(value) => value.fmt(f),
            Self::Big(value) => value.fmt(f),
            Self::Decimal(value) => match value.to_i128() {
                Some(value) => value.fmt(f),
                None => write!(f, "integer of {} digits", value.as_bytes().len()),
            },
        }
    }
}

/// A string in its encoding in the pickle.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Str<'p> {
    /// UTF-8 that may contain surrogates.
    Utf8(PyStr<'p>),
    /// Latin-1 with raw-unicode-escapes, from UNICODE.
    Escaped(&'p [u8]),
    /// A `str` of Python 2 in a name.
    ByteString(ByteString<'p>),
}

impl<'p> Str<'p> {
    /// The string, borrowed from the pickle. `None` if it has surrogates or, in
    /// an old protocol, escapes or non-ASCII characters.
    pub fn as_str(self) -> Option<&'p str> {
        match self.to_bytes() {
            Cow::Borrowed(bytes) => core::str::from_utf8(bytes).ok(),
            Cow::Owned(_) => None,
        }
    }

    /// The string, decoded if necessary. `None` if it has surrogates.
    pub fn to_str(self) -> Option<Cow<'p, str>> {
        match self.to_bytes() {
            Cow::Borrowed(bytes) => Some(Cow::Borrowed(core::str::from_utf8(bytes).ok()?)),
            Cow::Owned(bytes) => Some(Cow::Owned(alloc::string::String::from_utf8(bytes).ok()?)),
        }
    }

    /// The string in UTF-8 that may contain surrogates, as in [`PyStr`]. A copy
    /// of up to twice the length if it has, in an old protocol, escapes or
    /// non-ASCII characters.
    pub fn to_bytes(self) -> Cow<'p, [u8]> {
        match self {
            Self::Utf8(string) => Cow::Borrowed(string.as_bytes()),
            Self::Escaped(line) if line.is_ascii() && !line.contains(&b'\\') => Cow::Borrowed(line),
            Self::Escaped(line) => Cow::Owned(Unescaped::unicode(line).collect()),
            Self::ByteString(string) => string.to_bytes(),
        }
    }
}

impl PartialEq<str> for Str<'_> {
    fn eq(&self, other: &str) -> bool {
        *self.to_bytes() == *other.as_bytes()
    }
}

/// A `str` of Python 2 in its encoding in the pickle.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ByteString<'p> {
    /// Its bytes.
    Raw(&'p [u8]),
    /// Its bytes in quotes and with escapes.
    Quoted(&'p [u8]),
}

impl<'p> ByteString<'p> {
    /// The bytes; a copy if there are escapes.
    pub fn to_bytes(self) -> Cow<'p, [u8]> {
        match self {
            Self::Raw(bytes) => Cow::Borrowed(bytes),
            Self::Quoted(line) => match quoted(line).unwrap_or_default() {
                inner if inner.contains(&b'\\') => Cow::Owned(Unescaped::string(line).collect()),
                inner => Cow::Borrowed(inner),
            },
        }
    }
}

/// A name in a module.
#[derive(Clone, Copy, Debug)]
pub struct Global<'p> {
    /// The module.
    pub module: Str<'p>,
    /// The name, dotted for nested names.
    pub name: Str<'p>,
}

impl Global<'_> {
    /// Whether this is exactly the given module and name.
    pub fn is(&self, module: &str, name: &str) -> bool {
        self.module == *module && self.name == *name
    }
}

impl fmt::Display for Global<'_> {
    /// Formats as `module.name`, escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (module, name) = (self.module.to_bytes(), self.name.to_bytes());
        write!(f, "{}.{}", Escaped(&module), Escaped(&name))
    }
}

impl<'t, 'p> Node<'t, 'p> {
    /// The tree of the value.
    pub const fn tree(self) -> &'t Tree<'p> {
        self.tree
    }

    /// The contents of the value.
    pub fn value(self) -> Value<'t, 'p> {
        let slot = self.slot();
        match slot.kind() {
            Kind::None => Value::None,
            Kind::True => Value::Bool(true),
            Kind::False => Value::Bool(false),
            Kind::Int => Value::Int(match self.tree.argument_at(slot) {
                super::Argument::BigInt(value) => Int::Big(value),
                super::Argument::Decimal(value) => Int::Decimal(value),
                super::Argument::Int(value) => Int::Small(value),
                _ => Int::Small(0),
            }),
            Kind::Float => Value::Float(match self.tree.argument_at(slot) {
                super::Argument::Float(value) => value,
                super::Argument::DecimalFloat(string) => string.to_f64().unwrap_or(f64::NAN),
                _ => f64::NAN,
            }),
            Kind::Str => Value::Str(self.string(slot)),
            Kind::ByteString => Value::ByteString(self.byte_string(slot)),
            Kind::Bytes => Value::Bytes(self.data(slot)),
            kind @ (Kind::ByteArray | Kind::ReadOnlyByteArray) => Value::ByteArray {
                data: self.data(slot),
                read_only: matches!(kind, Kind::ReadOnlyByteArray),
            },
            kind @ (Kind::Buffer | Kind::ReadOnlyBuffer) => {
                let index = to_usize(slot.link);
                Value::Buffer {
                    data: self.tree.buffers.get(index).copied().ensured(),
                    index,
                    read_only: matches!(kind, Kind::ReadOnlyBuffer),
                }
            }
            Kind::Tuple => Value::Tuple(self.items()),
            Kind::FrozenSet => Value::FrozenSet(self.items()),
            Kind::List => Value::List(self.items()),
            Kind::Set => Value::Set(self.items()),
            Kind::Dict => Value::Dict(self.entries()),
            Kind::Global => Value::Global(self.named(slot)),
            Kind::StackGlobal => Value::Global(self.stack_named(slot)),
            Kind::Extension => Value::Extension(match self.tree.argument_at(slot) {
                super::Argument::Code(code) => code,
                _ => 0,
            }),
            Kind::PersistentLine => Value::PersistentLine(match self.tree.argument_at(slot) {
                super::Argument::Line(line) => core::str::from_utf8(line).ensured(),
                _ => "",
            }),
            Kind::Persistent => Value::Persistent(self.operands(slot)[0]),
            Kind::ReadOnly => Value::ReadOnly(self.operands(slot)[0]),
            Kind::Call => {
                let [callable, arguments, _] = self.operands(slot);
                Value::Call {
                    callable,
                    arguments,
                }
            }
            Kind::New => {
                let [class, arguments, _] = self.operands(slot);
                Value::New {
                    class,
                    arguments,
                    keywords: None,
                }
            }
            Kind::NewWithKeywords => {
                let [class, arguments, keywords] = self.operands(slot);
                Value::New {
                    class,
                    arguments,
                    keywords: Some(keywords),
                }
            }
            Kind::Instance => Value::Instance {
                class: self.named(slot),
                arguments: self.operands(slot)[0],
            },
            Kind::ObjectOf => {
                let [class, arguments, _] = self.operands(slot);
                Value::ObjectOf { class, arguments }
            }
        }
    }

    /// Offset in the pickle of the opcode that created the value, in bytes.
    pub fn offset(self) -> usize {
        self.slot().place().saturating_add(self.tree.base)
    }

    /// Index in [`Tree::nodes`]; it identifies the value.
    pub fn index(self) -> usize {
        to_usize(self.id)
    }

    /// Whether both are the same value, not only equal.
    pub fn is_same(self, other: Self) -> bool {
        core::ptr::eq(self.tree, other.tree) && self.id == other.id
    }

    /// Whether the value is `None`.
    pub fn is_none(self) -> bool {
        matches!(self.slot().kind(), Kind::None)
    }

    /// Whether the value is an object: the result of a name, an id or a call.
    pub fn is_object(self) -> bool {
        self.slot().kind().is_object()
    }

    /// The boolean.
    pub fn as_bool(self) -> Option<bool> {
        match self.slot().kind() {
            Kind::True => Some(true),
            Kind::False => Some(false),
            _ => None,
        }
    }

    /// The integer, if it fits.
    pub fn as_i64(self) -> Option<i64> {
        match self.value() {
            Value::Int(value) => value.to_i64(),
            _ => None,
        }
    }

    /// The integer, if it fits.
    pub fn as_u64(self) -> Option<u64> {
        match self.value() {
            Value::Int(value) => value.to_u64(),
            _ => None,
        }
    }

    /// The float. `None` for integers.
    pub fn as_f64(self) -> Option<f64> {
        match self.value() {
            Value::Float(value) => Some(value),
            _ => None,
        }
    }

    /// The string, if it can be borrowed, see [`Str::as_str`].
    pub fn as_str(self) -> Option<&'p str> {
        match self.value() {
            Value::Str(string) => string.as_str(),
            _ => None,
        }
    }

    /// The data of a `bytes` object, of a `bytearray` or of a buffer.
    pub fn as_bytes(self) -> Option<&'p [u8]> {
        match self.value() {
            Value::Bytes(data) | Value::ByteArray { data, .. } | Value::Buffer { data, .. } => {
                Some(data)
            }
            _ => None,
        }
    }

    /// The name.
    pub fn as_global(self) -> Option<Global<'p>> {
        let slot = self.slot();
        match slot.kind() {
            Kind::Global => Some(self.named(slot)),
            Kind::StackGlobal => Some(self.stack_named(slot)),
            _ => None,
        }
    }

    /// The items of a tuple, list, set or frozen set; empty for other values.
    pub fn items(self) -> Items<'t, 'p> {
        let slot = self.slot();
        match slot.kind() {
            Kind::Tuple | Kind::FrozenSet => self.block(slot.link),
            Kind::List | Kind::Set => Items::segments(self.tree, slot.link),
            _ => self.block(0),
        }
    }

    /// The keys and values of a dictionary; empty for other values.
    pub fn entries(self) -> Entries<'t, 'p> {
        let slot = self.slot();
        Entries(match slot.kind() {
            Kind::Dict => Items::segments(self.tree, slot.link),
            _ => self.block(0),
        })
    }

    /// The last value of a string key in a dictionary.
    pub fn get(self, key: &str) -> Option<Self> {
        let entries = self.entries();
        let found = entries.filter(|(at, _)| matches!(at.value(), Value::Str(at) if at == *key));
        found.last().map(|(_, value)| value)
    }

    /// The operations on an object after its creation, in order; empty for
    /// other values.
    pub fn operations(self) -> Operations<'t, 'p> {
        let slot = self.slot();
        let last = match slot.kind() {
            kind if kind.has_operands() => self.tree.word(slot.link),
            kind if kind.is_object() => slot.link,
            _ => 0,
        };
        Operations {
            tree: self.tree,
            segments: Segments::new(self.tree, last),
        }
    }

    /// Iterates over this value and all values in it within a budget, see
    /// [`Walk`].
    pub fn walk(self, budget: usize) -> Walk<'t, 'p> {
        Walk::new(self, budget)
    }

    fn slot(self) -> Slot {
        self.tree.slot(self.id)
    }

    const fn of(self, id: u32) -> Self {
        Self {
            tree: self.tree,
            id,
        }
    }

    /// The items of a tuple or frozen set, which are contiguous.
    fn block(self, link: u32) -> Items<'t, 'p> {
        let count = match link {
            0 => 0,
            link => to_usize(self.tree.word(link)),
        };
        Items {
            tree: self.tree,
            ids: self.tree.words(link.saturating_add(1), count),
            segments: Segments::new(self.tree, 0),
        }
    }

    /// The operands of an object; unused ones are the value itself.
    fn operands(self, slot: Slot) -> [Self; 3] {
        let count = slot.kind().operand_count();
        let ids = self.tree.words(slot.link.saturating_add(1), count);
        core::array::from_fn(|index| ids.get(index).map_or(self, |id| self.of(*id)))
    }

    /// The data of a value with a length, borrowed from the pickle.
    fn data(self, slot: Slot) -> &'p [u8] {
        let (opcode, rest) = self.tree.opcode_at(slot);
        counted(opcode, rest)
    }

    fn string(self, slot: Slot) -> Str<'p> {
        let (opcode, rest) = self.tree.opcode_at(slot);
        match opcode {
            Opcode::Unicode => Str::Escaped(line(rest).0),
            _ => Str::Utf8(PyStr::known(counted(opcode, rest))),
        }
    }

    fn byte_string(self, slot: Slot) -> ByteString<'p> {
        let (opcode, rest) = self.tree.opcode_at(slot);
        match opcode {
            Opcode::String => ByteString::Quoted(line(rest).0),
            _ => ByteString::Raw(counted(opcode, rest)),
        }
    }

    /// The string of a node in a name.
    fn name_str(self) -> Str<'p> {
        let slot = self.slot();
        match slot.kind() {
            Kind::Str => self.string(slot),
            Kind::ByteString => Str::ByteString(self.byte_string(slot)),
            _ => Str::Escaped(&[]),
        }
    }

    fn stack_named(self, slot: Slot) -> Global<'p> {
        let [module, name, _] = self.operands(slot);
        Global {
            module: module.name_str(),
            name: name.name_str(),
        }
    }

    fn named(self, slot: Slot) -> Global<'p> {
        let (module, rest) = line(self.tree.opcode_at(slot).1);
        let (name, _) = line(rest);
        Global {
            module: Str::Utf8(PyStr::known(module)),
            name: Str::Utf8(PyStr::known(name)),
        }
    }
}

/// The data after a length that a reader has validated.
fn counted(opcode: Opcode, rest: &[u8]) -> &[u8] {
    let super::Form::Counted(len) = opcode.form() else {
        return &[];
    };
    let (head, rest) = rest.split_at_checked(len.into()).ensured();
    let mut count = [0; 8];
    for (to, from) in count.iter_mut().zip(head) {
        *to = *from;
    }
    let count = usize::try_from(u64::from_le_bytes(count)).unwrap_or(usize::MAX);
    rest.get(..count).ensured()
}

/// A line that a reader has validated, and the bytes after it.
fn line(rest: &[u8]) -> (&[u8], &[u8]) {
    let mut parts = rest.splitn(2, |byte| *byte == b'\n');
    (parts.next().ensured(), parts.next().ensured())
}

/// The items of a value, in order.
#[derive(Clone, Copy)]
pub struct Items<'t, 'p> {
    tree: &'t Tree<'p>,
    ids: &'t [u32],
    segments: Segments,
}

/// The rest of a circular list of segments.
#[derive(Clone, Copy)]
struct Segments {
    /// 0 at the end.
    next: u32,
    last: u32,
}

impl Segments {
    fn new(tree: &Tree<'_>, last: u32) -> Self {
        let next = match last {
            0 => 0,
            last => tree.word(last),
        };
        Self { next, last }
    }

    #[inline]
    fn take<'t>(&mut self, tree: &'t Tree<'_>) -> Option<(Op, &'t [u32])> {
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
    fn segments(tree: &'t Tree<'p>, last: u32) -> Self {
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
pub struct Entries<'t, 'p>(Items<'t, 'p>);

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
    tree: &'t Tree<'p>,
    segments: Segments,
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
