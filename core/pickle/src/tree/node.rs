//! References to the values of a tree.

use super::build::to_usize;
use super::{
    ByteString, Entries, Global, Int, Items, Kind, Operations, Segments, Slot, Str, Tree, Value,
    Walk,
};
use crate::{Argument, BigInt, Opcode, PyStr};
use daskwire_compression::invariant::OrDefaultIfBug;

/// A reference to one value of a tree.
#[derive(Clone, Copy)]
pub struct Node<'t, 'p> {
    pub(super) tree: &'t Tree<'p>,
    pub(super) id: u32,
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
            Kind::Int => Value::Int(self.int(slot)),
            Kind::Float => Value::Float(match self.tree.argument_at(slot) {
                Argument::Float(value) => value,
                Argument::DecimalFloat(string) => string.to_f64().unwrap_or(f64::NAN),
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
                    data: self.tree.buffers.get(index).copied().or_default_if_bug(),
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
                Argument::Code(code) => code,
                _ => 0,
            }),
            Kind::PersistentLine => Value::PersistentLine(match self.tree.argument_at(slot) {
                Argument::Line(line) => core::str::from_utf8(line).or_default_if_bug(),
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
            Kind::InstanceOf => {
                let [class, arguments, _] = self.operands(slot);
                Value::InstanceOf { class, arguments }
            }
        }
    }

    /// Offset in the pickle of the opcode that created the value, in bytes.
    pub fn offset(self) -> usize {
        self.slot().offset().saturating_add(self.tree.base)
    }

    /// The opcode that created a number, a string or bytes, with its argument; `None` for other values, and for
    /// text opcodes.
    pub fn encoded(self) -> Option<&'p [u8]> {
        let slot = self.slot();
        if !matches!(
            slot.kind(),
            Kind::Int | Kind::Float | Kind::Str | Kind::Bytes
        ) {
            return None;
        }
        let (opcode, rest) = self.tree.opcode_at(slot);
        let len = match opcode.argument_form() {
            crate::ArgumentForm::Bytes(len) => usize::from(len),
            crate::ArgumentForm::Counted(len) => {
                usize::from(len).checked_add(counted(opcode, rest).len())?
            }
            _ => return None,
        };
        let all = self.tree.pickle.get(slot.offset()..)?;
        all.get(..len.checked_add(1)?)
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

    /// The callable and the arguments of a call.
    pub fn as_call(self) -> Option<(Self, Items<'t, 'p>)> {
        match self.value() {
            Value::Call {
                callable,
                arguments,
            } => Some((callable, arguments.items())),
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

    pub(super) fn slot(self) -> Slot {
        self.tree.slot(self.id)
    }

    pub(super) const fn of(self, id: u32) -> Self {
        Self {
            tree: self.tree,
            id,
        }
    }

    /// The items of a tuple or frozen set, which are contiguous.
    pub(super) fn block(self, link: u32) -> Items<'t, 'p> {
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
    pub(super) fn operands(self, slot: Slot) -> [Self; 3] {
        let count = slot.kind().operand_count();
        let ids = self.tree.words(slot.link.saturating_add(1), count);
        core::array::from_fn(|index| ids.get(index).map_or(self, |id| self.of(*id)))
    }

    /// The data of a value with a length, borrowed from the pickle.
    fn data(self, slot: Slot) -> &'p [u8] {
        let (opcode, rest) = self.tree.opcode_at(slot);
        counted(opcode, rest)
    }

    fn int(self, slot: Slot) -> Int<'p> {
        let (opcode, rest) = self.tree.opcode_at(slot);
        if let Opcode::Long1 | Opcode::Long4 = opcode {
            let bytes = counted(opcode, rest).get(..to_usize(slot.link));
            return Int::Big(BigInt::known(bytes.or_default_if_bug()));
        }
        match self.tree.argument_at(slot) {
            Argument::Decimal(value) => Int::Decimal(value),
            Argument::Int(value) => Int::Small(value),
            _ => Int::Small(0),
        }
    }

    fn string(self, slot: Slot) -> Str<'p> {
        const SHORT: u8 = Opcode::ShortBinUnicode.byte();
        // Nearly all strings are.
        let rest = self.tree.pickle.get(slot.offset()..).or_default_if_bug();
        if let [SHORT, len, rest @ ..] = rest
            && let Some(string) = rest.get(..usize::from(*len))
        {
            return Str::Utf8(PyStr::known(string));
        }
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
    let crate::ArgumentForm::Counted(len) = opcode.argument_form() else {
        return &[];
    };
    let (head, rest) = rest.split_at_checked(len.into()).or_default_if_bug();
    let count = match head {
        [count] => u64::from(*count),
        _ => {
            let mut count = [0; 8];
            for (to, from) in count.iter_mut().zip(head) {
                *to = *from;
            }
            u64::from_le_bytes(count)
        }
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    rest.get(..count).or_default_if_bug()
}

/// A line that a reader has validated, and the bytes after it.
fn line(rest: &[u8]) -> (&[u8], &[u8]) {
    let mut parts = rest.splitn(2, |byte| *byte == b'\n');
    (
        parts.next().or_default_if_bug(),
        parts.next().or_default_if_bug(),
    )
}
