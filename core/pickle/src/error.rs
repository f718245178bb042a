//! Errors of reading a pickle.

use core::fmt;

use super::Opcode;

/// A fault in a pickle and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PickleError {
    /// Offset in the pickle of the faulty opcode, in bytes.
    pub offset: usize,
    /// The kind of fault.
    pub kind: PickleErrorKind,
}

/// The kind of a [`PickleError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PickleErrorKind {
    /// The pickle ends before STOP.
    MissingStop,
    /// The pickle ends inside an opcode's argument.
    Truncated {
        /// The opcode.
        opcode: Opcode,
        /// The length of the opcode and its argument as far as it is known, in
        /// bytes.
        needed: u64,
        /// The number of bytes left.
        available: usize,
    },
    /// The pickle ends before the line feed that ends an opcode's argument.
    MissingLineFeed {
        /// The opcode.
        opcode: Opcode,
    },
    /// A byte is not an opcode of protocols 0 to 5.
    UnknownOpcode {
        /// The byte.
        byte: u8,
    },
    /// The protocol is newer than 5.
    UnknownProtocol {
        /// The version in PROTO.
        version: u8,
    },
    /// An opcode with a text argument, which only protocols 0 and 1 write, and
    /// which the caller did not allow.
    TextOpcode {
        /// The opcode.
        opcode: Opcode,
    },
    /// A length is negative.
    NegativeCount {
        /// The opcode.
        opcode: Opcode,
        /// The length.
        count: i32,
    },
    /// FRAME declares more bytes than are left.
    FrameTooLong {
        /// The length declared, in bytes.
        len: u64,
        /// The number of bytes left.
        available: usize,
    },
    /// A string is not UTF-8. Surrogates are valid where Python accepts them.
    NotUtf8 {
        /// The opcode.
        opcode: Opcode,
        /// The length of the valid part, in bytes.
        valid_len: usize,
    },
    /// An argument is not ASCII or does not decode to ASCII.
    NotAscii {
        /// The opcode.
        opcode: Opcode,
    },
    /// The argument of STRING does not begin and end with the same quote.
    NotQuoted,
    /// A backslash in an argument does not begin a valid escape.
    BadEscape {
        /// The opcode.
        opcode: Opcode,
    },
    /// An argument is not a decimal integer.
    NotAnInteger {
        /// The opcode.
        opcode: Opcode,
    },
    /// The argument of FLOAT is not a decimal number.
    NotAFloat,
    /// A memo index is negative or does not fit in 64 bits.
    MemoIndex {
        /// The opcode.
        opcode: Opcode,
    },
    /// There are more opcodes than [`opcode_count`](crate::Limits::opcode_count).
    TooManyOpcodes {
        /// The limit, in opcodes.
        limit: u32,
    },
    /// The pickle uses more out-of-band buffers than were supplied.
    TooFewBuffers {
        /// The number of buffers supplied.
        buffer_count: usize,
    },
    /// The pickle uses fewer out-of-band buffers than were supplied.
    TooManyBuffers {
        /// The number of buffers used.
        used_count: usize,
        /// The number of buffers supplied.
        buffer_count: usize,
    },
    /// READONLY_BUFFER is used without a buffer on top of the stack.
    NoBuffer,
    /// The stack above the topmost mark has too few values for an opcode. This kind
    /// and those below it occur only when a tree is built.
    StackUnderflow {
        /// The opcode.
        opcode: Opcode,
    },
    /// There is no mark on the stack.
    NoMark {
        /// The opcode.
        opcode: Opcode,
    },
    /// The memo has no value at an index.
    NotMemoized {
        /// The index.
        index: u64,
    },
    /// The last key has no value.
    OddItems {
        /// The opcode.
        opcode: Opcode,
        /// The number of keys and values.
        count: usize,
    },
    /// A value on the stack is of the wrong kind for the opcode.
    WrongOperand {
        /// The opcode.
        opcode: Opcode,
        /// The kind required.
        expected: Operand,
    },
    /// An extension code is less than 1.
    ExtensionCode {
        /// The code.
        code: i32,
    },
    /// The tree has more values than
    /// [`value_count`](crate::Limits::value_count), or than fit in 30 bits.
    TooManyValues {
        /// The limit, in values.
        limit: u32,
    },
    /// There are more values and marks on the stack than
    /// [`stack_count`](crate::Limits::stack_count).
    StackTooLarge {
        /// The limit, in values and marks.
        limit: u32,
    },
    /// There are more values in the memo than
    /// [`memo_count`](crate::Limits::memo_count).
    MemoTooLarge {
        /// The limit, in values.
        limit: u32,
    },
}

/// The kind of value that an opcode needs on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operand {
    /// A string.
    Str,
    /// A list, or an object.
    List,
    /// A dictionary, or an object.
    Dict,
    /// A set, or an object.
    Set,
    /// A tuple, or an object.
    Tuple,
    /// A callable: an object.
    Callable,
    /// An object: the result of a name, an id or a call.
    Object,
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Str => "a string",
            Self::List => "a list or an object",
            Self::Dict => "a dictionary or an object",
            Self::Set => "a set or an object",
            Self::Tuple => "a tuple or an object",
            Self::Callable => "a callable",
            Self::Object => "an object",
        })
    }
}

impl PickleError {
    /// Whether the caller supplied too few or too many buffers. All other errors
    /// are faults in the pickle.
    pub const fn is_caller_fault(&self) -> bool {
        matches!(
            self.kind,
            PickleErrorKind::TooFewBuffers { .. } | PickleErrorKind::TooManyBuffers { .. }
        )
    }
}

impl fmt::Display for PickleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: {}", self.offset, self.kind)
    }
}

impl fmt::Display for PickleErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::MissingStop => f.write_str("the pickle ends without STOP"),
            Self::Truncated {
                opcode,
                needed,
                available,
            } => write!(
                f,
                "the pickle ends inside {opcode}, which takes {needed} bytes; {available} are left"
            ),
            Self::MissingLineFeed { opcode } => {
                write!(f, "the pickle ends inside {opcode}; expected a line feed")
            }
            Self::UnknownOpcode { byte } => {
                write!(
                    f,
                    "the byte {byte:#04x} is not an opcode of protocols 0 to 5"
                )
            }
            Self::UnknownProtocol { version } => {
                write!(f, "the pickle is of protocol {version}; expected 0 to 5")
            }
            Self::TextOpcode { opcode } => write!(
                f,
                "{opcode} is a text opcode of protocol {}, which is not allowed here",
                opcode.protocol()
            ),
            Self::NegativeCount { opcode, count } => {
                write!(f, "{opcode} announces {count} bytes; expected 0 or more")
            }
            Self::FrameTooLong { len, available } => write!(
                f,
                "FRAME declares {len} bytes, but only {available} are left"
            ),
            Self::NotUtf8 { opcode, valid_len } => write!(
                f,
                "the string of {opcode} is not UTF-8: its first {valid_len} bytes are valid, \
                 the next is not"
            ),
            Self::NotAscii { opcode } => write!(f, "the argument of {opcode} is not ASCII"),
            Self::NotQuoted => {
                f.write_str("the argument of STRING does not begin and end with the same quote")
            }
            Self::BadEscape { opcode } => {
                write!(f, "the argument of {opcode} has an invalid escape")
            }
            Self::NotAnInteger { opcode } => {
                write!(f, "the argument of {opcode} is not a decimal integer")
            }
            Self::NotAFloat => f.write_str("the argument of FLOAT is not a decimal number"),
            Self::MemoIndex { opcode } => write!(
                f,
                "the index of {opcode} is out of range; expected 0 to {}",
                u64::MAX
            ),
            Self::TooManyOpcodes { limit } => {
                write!(f, "more opcodes than the limit of {limit}")
            }
            Self::TooFewBuffers { buffer_count } => write!(
                f,
                "NEXT_BUFFER needs one more out-of-band buffer than the {buffer_count} supplied"
            ),
            Self::TooManyBuffers {
                used_count,
                buffer_count,
            } => write!(
                f,
                "the pickle uses {used_count} of {buffer_count} out-of-band buffers; \
                 expected all to be used"
            ),
            Self::NoBuffer => f.write_str("READONLY_BUFFER needs a buffer on top of the stack"),
            Self::StackUnderflow { opcode } => {
                write!(f, "{opcode} takes more values than the stack has")
            }
            Self::NoMark { opcode } => write!(f, "{opcode} needs a mark, but the stack has none"),
            Self::NotMemoized { index } => write!(f, "the memo has no value at {index}"),
            Self::OddItems { opcode, count } => write!(
                f,
                "{opcode} has {count} keys and values, an odd number; expected a value for each key"
            ),
            Self::WrongOperand { opcode, expected } => {
                write!(
                    f,
                    "{opcode} needs another kind of value on the stack; expected {expected}"
                )
            }
            Self::ExtensionCode { code } => {
                write!(f, "the code of an extension is {code}; expected 1 or more")
            }
            Self::TooManyValues { limit } => write!(f, "more values than the limit of {limit}"),
            Self::StackTooLarge { limit } => write!(
                f,
                "more values and marks on the stack than the limit of {limit}"
            ),
            Self::MemoTooLarge { limit } => {
                write!(f, "more values in the memo than the limit of {limit}")
            }
        }
    }
}

impl core::error::Error for PickleError {}
