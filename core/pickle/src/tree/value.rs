//! The contents of nodes.

use alloc::borrow::Cow;
use core::fmt;

use super::{Entries, Escaped, Items, Node};
use crate::escapes::quoted;
use crate::{BigInt, Decimal, PyStr, Unescaped};

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
    InstanceOf {
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
pub struct State<'t, 'p>(pub(super) Items<'t, 'p>);

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

    /// The length of the encoding in the pickle.
    pub(super) const fn encoded_len(self) -> usize {
        match self {
            Self::Utf8(string) => string.as_bytes().len(),
            Self::Escaped(line)
            | Self::ByteString(ByteString::Raw(line) | ByteString::Quoted(line)) => line.len(),
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
        match self {
            // The form of all recent protocols, without the detour of a `Cow`.
            Self::Utf8(string) => string.as_bytes() == other.as_bytes(),
            _ => *self.to_bytes() == *other.as_bytes(),
        }
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
