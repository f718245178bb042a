//! The opcodes of all protocols.

use core::fmt;

/// The encoding of an opcode's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ArgumentForm {
    /// No argument.
    None,
    /// The given number of bytes, little-endian (a float: big-endian).
    Bytes(u8),
    /// A little-endian length of the given number of bytes, then the data. The
    /// 4-byte length of [`Opcode::Long4`] and [`Opcode::BinString`] is signed.
    Counted(u8),
    /// The bytes up to and including the next line feed.
    Line,
    /// Two lines.
    TwoLines,
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $variant:ident = $byte:literal, $name:literal, $protocol:literal,
       $form:ident $(($len:literal))?;)*) => {
        /// One of the 68 opcodes of pickle protocols 0 to 5.
        ///
        /// Sources: `pickletools.opcodes` of CPython, and [PEP 574] for
        /// protocol 5. The names are those of CPython without underscores.
        ///
        /// [PEP 574]: https://peps.python.org/pep-0574/
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Opcode {
            $($(#[$doc])* $variant = $byte,)*
        }

        impl Opcode {
            /// All opcodes, in the order of `pickletools.opcodes`.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name in CPython, such as `SHORT_BINUNICODE`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The first protocol with this opcode.
            pub const fn protocol(self) -> u8 {
                match self {
                    $(Self::$variant => $protocol,)*
                }
            }

            /// The encoding of its argument.
            #[inline]
            pub const fn argument_form(self) -> ArgumentForm {
                match self {
                    $(Self::$variant => ArgumentForm::$form $(($len))?,)*
                }
            }
        }
    };
}

opcodes! {
    /// An integer, or a boolean as `00` or `01`, in decimal digits to the end of the line.
    Int = b'I', "INT", 0, Line;
    /// A signed integer of 4 bytes.
    BinInt = b'J', "BININT", 1, Bytes(4);
    /// An unsigned integer of 1 byte.
    BinInt1 = b'K', "BININT1", 1, Bytes(1);
    /// An unsigned integer of 2 bytes.
    BinInt2 = b'M', "BININT2", 1, Bytes(2);
    /// An integer of any size in decimal digits to the end of the line.
    Long = b'L', "LONG", 0, Line;
    /// An integer in two's complement, preceded by its length in 1 byte.
    Long1 = 0x8a, "LONG1", 2, Counted(1);
    /// An integer in two's complement, preceded by its length in 4 bytes.
    Long4 = 0x8b, "LONG4", 2, Counted(4);
    /// A byte string of Python 2, quoted and escaped, to the end of the line.
    String = b'S', "STRING", 0, Line;
    /// A byte string of Python 2, preceded by its length in 4 bytes.
    BinString = b'T', "BINSTRING", 1, Counted(4);
    /// A byte string of Python 2, preceded by its length in 1 byte.
    ShortBinString = b'U', "SHORT_BINSTRING", 1, Counted(1);
    /// A `bytes` object, preceded by its length in 4 bytes.
    BinBytes = b'B', "BINBYTES", 3, Counted(4);
    /// A `bytes` object, preceded by its length in 1 byte.
    ShortBinBytes = b'C', "SHORT_BINBYTES", 3, Counted(1);
    /// A `bytes` object, preceded by its length in 8 bytes.
    BinBytes8 = 0x8e, "BINBYTES8", 4, Counted(8);
    /// A `bytearray` object in the stream, preceded by its length in 8 bytes.
    ByteArray8 = 0x96, "BYTEARRAY8", 5, Counted(8);
    /// The next out-of-band buffer.
    NextBuffer = 0x97, "NEXT_BUFFER", 5, None;
    /// Makes the buffer on top of the stack read-only.
    ReadOnlyBuffer = 0x98, "READONLY_BUFFER", 5, None;
    /// `None`.
    None = b'N', "NONE", 0, None;
    /// `True`.
    NewTrue = 0x88, "NEWTRUE", 2, None;
    /// `False`.
    NewFalse = 0x89, "NEWFALSE", 2, None;
    /// A string with raw-unicode-escapes, to the end of the line.
    Unicode = b'V', "UNICODE", 0, Line;
    /// A string in UTF-8, preceded by its length in 1 byte.
    ShortBinUnicode = 0x8c, "SHORT_BINUNICODE", 4, Counted(1);
    /// A string in UTF-8, preceded by its length in 4 bytes.
    BinUnicode = b'X', "BINUNICODE", 1, Counted(4);
    /// A string in UTF-8, preceded by its length in 8 bytes.
    BinUnicode8 = 0x8d, "BINUNICODE8", 4, Counted(8);
    /// A float in decimal digits to the end of the line.
    Float = b'F', "FLOAT", 0, Line;
    /// A float of 8 bytes, big-endian.
    BinFloat = b'G', "BINFLOAT", 1, Bytes(8);
    /// An empty list.
    EmptyList = b']', "EMPTY_LIST", 1, None;
    /// Appends the topmost value to the list below it.
    Append = b'a', "APPEND", 0, None;
    /// Appends the values above the topmost mark to the list below it.
    Appends = b'e', "APPENDS", 1, None;
    /// A list of the values above the topmost mark.
    List = b'l', "LIST", 0, None;
    /// An empty tuple.
    EmptyTuple = b')', "EMPTY_TUPLE", 1, None;
    /// A tuple of the values above the topmost mark.
    Tuple = b't', "TUPLE", 0, None;
    /// A tuple of the topmost value.
    Tuple1 = 0x85, "TUPLE1", 2, None;
    /// A tuple of the two topmost values.
    Tuple2 = 0x86, "TUPLE2", 2, None;
    /// A tuple of the three topmost values.
    Tuple3 = 0x87, "TUPLE3", 2, None;
    /// An empty dictionary.
    EmptyDict = b'}', "EMPTY_DICT", 1, None;
    /// A dictionary of the keys and values above the topmost mark.
    Dict = b'd', "DICT", 0, None;
    /// Puts the topmost value into the dictionary below, at the key between them.
    SetItem = b's', "SETITEM", 0, None;
    /// Puts the keys and values above the topmost mark into the dictionary below it.
    SetItems = b'u', "SETITEMS", 1, None;
    /// An empty set.
    EmptySet = 0x8f, "EMPTY_SET", 4, None;
    /// Adds the values above the topmost mark to the set below it.
    AddItems = 0x90, "ADDITEMS", 4, None;
    /// A frozen set of the values above the topmost mark.
    FrozenSet = 0x91, "FROZENSET", 4, None;
    /// Discards the topmost value or mark.
    Pop = b'0', "POP", 0, None;
    /// Duplicates the topmost value.
    Dup = b'2', "DUP", 0, None;
    /// A mark.
    Mark = b'(', "MARK", 0, None;
    /// Discards everything from the topmost mark on.
    PopMark = b'1', "POP_MARK", 1, None;
    /// The memo entry at an index in decimal digits, to the end of the line.
    Get = b'g', "GET", 0, Line;
    /// The memo entry at an index of 1 byte.
    BinGet = b'h', "BINGET", 1, Bytes(1);
    /// The memo entry at an index of 4 bytes.
    LongBinGet = b'j', "LONG_BINGET", 1, Bytes(4);
    /// Puts the topmost value into the memo, at an index in decimal digits to the end of the line.
    Put = b'p', "PUT", 0, Line;
    /// Puts the topmost value into the memo, at an index of 1 byte.
    BinPut = b'q', "BINPUT", 1, Bytes(1);
    /// Puts the topmost value into the memo, at an index of 4 bytes.
    LongBinPut = b'r', "LONG_BINPUT", 1, Bytes(4);
    /// Puts the topmost value into the memo, at the index equal to its number
    /// of entries.
    Memoize = 0x94, "MEMOIZE", 4, None;
    /// The object registered with `copyreg` under a code of 1 byte.
    Ext1 = 0x82, "EXT1", 2, Bytes(1);
    /// The object registered with `copyreg` under a code of 2 bytes.
    Ext2 = 0x83, "EXT2", 2, Bytes(2);
    /// The object registered with `copyreg` under a code of 4 bytes.
    Ext4 = 0x84, "EXT4", 2, Bytes(4);
    /// A global: a module to the end of the line, and a name to the end of the
    /// next line.
    Global = b'c', "GLOBAL", 0, TwoLines;
    /// A global: the module is below the top of the stack, the name on top.
    StackGlobal = 0x93, "STACK_GLOBAL", 4, None;
    /// The result of calling the callable below the top with the tuple on top.
    Reduce = b'R', "REDUCE", 0, None;
    /// Sets the state of the object below the top to the value on top.
    Build = b'b', "BUILD", 0, None;
    /// An instance of a class, named as for GLOBAL, from the values above the topmost mark.
    Inst = b'i', "INST", 0, TwoLines;
    /// An instance of the class above the topmost mark, from the values above that.
    Obj = b'o', "OBJ", 1, None;
    /// The result of `__new__` of the class below the top with the tuple on
    /// top.
    NewObj = 0x81, "NEWOBJ", 2, None;
    /// As NEWOBJ, with a dictionary of keyword arguments on top of the tuple.
    NewObjEx = 0x92, "NEWOBJ_EX", 4, None;
    /// The version of the protocol, 1 byte; the first opcode of protocol 2 and later.
    Proto = 0x80, "PROTO", 2, Bytes(1);
    /// The end: the topmost value is the result.
    Stop = b'.', "STOP", 0, None;
    /// The start of a frame, which a reader may read at once, preceded by its length in 8
    /// bytes.
    Frame = 0x95, "FRAME", 4, Bytes(8);
    /// The object with the persistent id in the rest of the line.
    PersId = b'P', "PERSID", 0, Line;
    /// The object with the persistent id on top of the stack.
    BinPersId = b'Q', "BINPERSID", 1, None;
}

/// The opcode of each byte.
#[expect(
    clippy::indexing_slicing,
    reason = "evaluated at compile time, and a byte is below 256"
)]
static OPCODES: [Option<Opcode>; 256] = {
    let mut table = [None; 256];
    let mut rest = Opcode::ALL;
    while let Some((opcode, after)) = rest.split_first() {
        table[*opcode as usize] = Some(*opcode);
        rest = after;
    }
    table
};

impl Opcode {
    /// The opcode with this byte.
    #[inline]
    pub fn from_byte(byte: u8) -> Option<Self> {
        *OPCODES.get(usize::from(byte))?
    }

    /// The byte of the opcode.
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// Whether its argument is text: one or two lines.
    pub const fn is_text(self) -> bool {
        matches!(
            self.argument_form(),
            ArgumentForm::Line | ArgumentForm::TwoLines
        )
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
