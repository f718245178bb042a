//! What can be wrong with a pickle.

use core::fmt;

use super::Opcode;

/// A pickle that breaks the rules, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PickleError {
    /// Offset in the pickle, in bytes, of the opcode that is at fault.
    pub offset: usize,
    /// What is wrong with it.
    pub kind: PickleErrorKind,
}

/// What is wrong with a pickle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PickleErrorKind {
    /// The pickle ends before STOP.
    MissingStop,
    /// The pickle ends inside an opcode's argument.
    End {
        /// The opcode.
        opcode: Opcode,
        /// How many bytes the opcode and its argument need in all, as far as it
        /// is known.
        needed: u64,
        /// How many there are.
        available: usize,
    },
    /// The pickle ends before the line feed that ends an opcode's argument.
    MissingLineFeed {
        /// The opcode.
        opcode: Opcode,
    },
    /// A byte that is no opcode of protocols 0 to 5.
    UnknownOpcode {
        /// The byte.
        byte: u8,
    },
    /// A protocol that is newer than 5.
    UnknownProtocol {
        /// What PROTO says.
        version: u8,
    },
    /// An opcode whose argument is text, which only protocols 0 and 1 write, and
    /// which was not asked for.
    TextOpcode {
        /// The opcode.
        opcode: Opcode,
    },
    /// A count of bytes that is negative.
    NegativeCount {
        /// The opcode.
        opcode: Opcode,
        /// The count.
        count: i32,
    },
    /// FRAME announces more bytes than follow it.
    FrameTooLong {
        /// The bytes announced.
        len: u64,
        /// The bytes that follow.
        available: usize,
    },
    /// Text that is not UTF-8. Surrogates are no fault where Python lets them pass.
    NotUtf8 {
        /// The opcode.
        opcode: Opcode,
        /// How many bytes of the text are good.
        valid_len: usize,
    },
    /// Text that has to be ASCII, or stand for ASCII, and does not.
    NotAscii {
        /// The opcode.
        opcode: Opcode,
    },
    /// A string that does not begin and end with the same quote.
    NotQuoted,
    /// A backslash in text that begins no escape that the opcode has.
    BadEscape {
        /// The opcode.
        opcode: Opcode,
    },
    /// Text that is no decimal integer.
    NotAnInteger {
        /// The opcode.
        opcode: Opcode,
    },
    /// Text that is no decimal number.
    NotAFloat,
    /// An index of the memo that is negative or does not fit 64 bits.
    MemoIndex {
        /// The opcode.
        opcode: Opcode,
    },
    /// There are more opcodes than [`opcode_count`](crate::Limits::opcode_count).
    TooManyOpcodes {
        /// The limit, in opcodes.
        limit: u32,
    },
    /// The pickle asks for more out-of-band buffers than came with it.
    TooFewBuffers {
        /// How many came with it.
        buffer_count: usize,
    },
    /// More out-of-band buffers came with the pickle than it asks for.
    TooManyBuffers {
        /// How many it asks for.
        used_count: usize,
        /// How many came with it.
        buffer_count: usize,
    },
    /// READONLY_BUFFER where no buffer can be on top of the stack.
    NoBuffer,
    /// The stack, or what there is of it above the topmost mark, has too few
    /// values for an opcode. Only a tree looks at the stack, as all that follow.
    StackUnderflow {
        /// The opcode.
        opcode: Opcode,
    },
    /// There is no mark on the stack.
    NoMark {
        /// The opcode.
        opcode: Opcode,
    },
    /// Nothing is in the memo at an index.
    NotMemoized {
        /// The index.
        index: u64,
    },
    /// The last key has no value.
    OddItems {
        /// The opcode.
        opcode: Opcode,
        /// How many keys and values there are.
        count: usize,
    },
    /// A value on the stack is of a kind that the opcode cannot work on.
    WrongOperand {
        /// The opcode.
        opcode: Opcode,
        /// What it needs.
        expected: Operand,
    },
    /// A code of an extension that is less than 1.
    ExtensionCode {
        /// The code.
        code: i32,
    },
    /// A tree would have more values than
    /// [`value_count`](crate::Limits::value_count), or than can be
    /// counted in 30 bits.
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

/// What an opcode needs on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operand {
    /// Text.
    Text,
    /// A list, or an object.
    List,
    /// A dictionary, or an object.
    Dict,
    /// A set, or an object.
    Set,
    /// A tuple, or an object.
    Tuple,
    /// What may be called: an object.
    Callable,
    /// An object: what a name or an id stands for, or what a call returned.
    Object,
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::List => "a list or an object",
            Self::Dict => "a dictionary or an object",
            Self::Set => "a set or an object",
            Self::Tuple => "a tuple or an object",
            Self::Callable => "something that can be called",
            Self::Object => "an object",
        })
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
            Self::MissingStop => f.write_str("the pickle ends; expected an opcode, at last STOP"),
            Self::End {
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
                write!(f, "the byte {byte:#04x} is no opcode of protocols 0 to 5")
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
                "FRAME announces {len} bytes, but only {available} are left"
            ),
            Self::NotUtf8 { opcode, valid_len } => write!(
                f,
                "the text of {opcode} is not UTF-8: the first {valid_len} bytes of it are good, \
                 the next is not"
            ),
            Self::NotAscii { opcode } => write!(f, "the text of {opcode} is not ASCII"),
            Self::NotQuoted => {
                f.write_str("the text of STRING does not begin and end with the same quote")
            }
            Self::BadEscape { opcode } => {
                write!(f, "the text of {opcode} has a backslash that is no escape")
            }
            Self::NotAnInteger { opcode } => {
                write!(f, "the text of {opcode} is no decimal integer")
            }
            Self::NotAFloat => f.write_str("the text of FLOAT is no decimal number"),
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
                "NEXT_BUFFER asks for one more out-of-band buffer than the {buffer_count} there are"
            ),
            Self::TooManyBuffers {
                used_count,
                buffer_count,
            } => write!(
                f,
                "the pickle uses {used_count} of {buffer_count} out-of-band buffers; \
                 expected all to be used"
            ),
            Self::NoBuffer => f.write_str("READONLY_BUFFER without a buffer to make read-only"),
            Self::StackUnderflow { opcode } => {
                write!(f, "{opcode} takes more values than the stack has")
            }
            Self::NoMark { opcode } => write!(f, "{opcode} without a mark on the stack"),
            Self::NotMemoized { index } => write!(f, "nothing is in the memo at {index}"),
            Self::OddItems { opcode, count } => write!(
                f,
                "{opcode} has {count} keys and values; expected as many of each"
            ),
            Self::WrongOperand { opcode, expected } => {
                write!(
                    f,
                    "{opcode} finds another kind of value on the stack; expected {expected}"
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

/// A buffer that the caller supplied does not hold what has to go into it.
///
/// The contents of the buffer are unspecified; call again with at least `needed`
/// items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferTooSmall {
    /// How many items (bytes, unless the call says otherwise) are needed in all.
    pub needed: usize,
    /// How many the caller supplied.
    pub available: usize,
}

impl fmt::Display for BufferTooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the buffer supplied is too small: {} needed, {} available",
            self.needed, self.available
        )
    }
}

impl core::error::Error for BufferTooSmall {}
