//! The pull reader.

use super::escapes::{StringFault, check_string, check_unicode};
use super::{BigInt, Decimal, DecimalFloat, Opcode, PickleError, PickleErrorKind, PyStr};
use crate::Limits;
use daskwire_compression::invariant::OrDefaultIfBug;

/// One opcode of a pickle, with its argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token<'p> {
    /// Offset of the opcode in the pickle, in bytes.
    pub offset: usize,
    /// Length of the opcode and its argument, in bytes.
    pub len: usize,
    /// The opcode.
    pub opcode: Opcode,
    /// Its argument.
    pub argument: Argument<'p>,
}

impl Token<'_> {
    /// An error at this opcode.
    #[cfg(feature = "alloc")]
    pub(super) const fn error(&self, kind: PickleErrorKind) -> PickleError {
        PickleError {
            offset: self.offset,
            kind,
        }
    }
}

/// The argument of an opcode, as a view of the pickle.
///
/// The opcode determines the variant; the two always match in a [`Token`] from
/// a [`Reader`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Argument<'p> {
    /// No argument.
    None,
    /// A boolean: INT with `00` or `01`.
    Bool(bool),
    /// An integer of BININT, BININT1 or BININT2.
    Int(i64),
    /// An integer of LONG1 or LONG4.
    BigInt(BigInt<'p>),
    /// An integer of INT or LONG.
    Decimal(Decimal<'p>),
    /// A float of BINFLOAT.
    Float(f64),
    /// A float of FLOAT.
    DecimalFloat(DecimalFloat<'p>),
    /// A `bytes` object of BINBYTES, SHORT_BINBYTES or BINBYTES8.
    Bytes(&'p [u8]),
    /// A `str` of Python 2, of BINSTRING or SHORT_BINSTRING.
    ByteString(&'p [u8]),
    /// A `bytearray` object of BYTEARRAY8.
    ByteArray(&'p [u8]),
    /// A string of BINUNICODE, SHORT_BINUNICODE or BINUNICODE8.
    Str(PyStr<'p>),
    /// The raw line of STRING (with its quotes), UNICODE or PERSID, without the
    /// line feed. [`Unescaped`](super::Unescaped) decodes its escapes.
    Line(&'p [u8]),
    /// The name in GLOBAL or INST.
    Global {
        /// The module.
        module: &'p str,
        /// The name in the module.
        name: &'p str,
    },
    /// An index of the memo: GET, BINGET, LONG_BINGET, PUT, BINPUT or LONG_BINPUT.
    Index(u64),
    /// The code of EXT1, EXT2 or EXT4. Python refuses to load codes below 1.
    Code(i32),
    /// The length of FRAME, in bytes.
    Length(u64),
    /// The version of PROTO.
    Version(u8),
}

/// Pull reader for the opcodes of one pickle.
///
/// It looks up no names, imports and calls nothing, and copies nothing:
/// arguments are slices of the pickle. Every length in the pickle is checked
/// against the bytes left before it is used. No method recurses or takes more
/// time than scanning the bytes.
///
/// Opcodes and arguments are equal to those of CPython's `pickletools.genops`
/// for every pickle that CPython loads, and pickles that `genops` refuses are
/// refused, except that:
///
/// * PROTO of a version after 5, FRAME beyond the end of the input, and
///   negative indexes of the memo are refused: CPython does not load them.
/// * Text opcodes, which Dask never writes, are refused unless
///   [`text_opcodes`](Self::text_opcodes) enables them.
/// * Names in GLOBAL and INST and the ids of PERSID are raw, as in CPython's
///   `Unpickler`; `genops` decodes escapes there, and refuses names that are
///   not ASCII, which CPython loads from GLOBAL.
/// * Decimal integers may have any number of digits.
///
/// The reader does not track the stack.
///
/// ```
/// use daskwire_pickle::{Argument, Opcode, Reader};
///
/// // pickle.dumps(os.system): the name is read, not looked up.
/// let pickle = b"\x80\x04\x95\x14\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.";
/// let mut reader = Reader::new(pickle);
/// let mut strings = [""; 2];
/// let mut count = 0;
/// while let Some(token) = reader.next_token()? {
///     match (token.opcode, token.argument) {
///         (_, Argument::Str(string)) => {
///             strings[count] = string.to_str()?;
///             count += 1;
///         }
///         (Opcode::StackGlobal, _) => assert_eq!((token.offset, strings), (28, ["posix", "system"])),
///         _ => {}
///     }
/// }
/// assert!(reader.trailing().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Reader<'p> {
    rest: &'p [u8],
    /// Length of the whole input, from which offsets are computed.
    len: usize,
    opcodes_left: u32,
    opcode_limit: u32,
    text_opcodes: bool,
    is_finished: bool,
}

impl<'p> Reader<'p> {
    /// Creates a reader with the limits of [`Limits::HOST`], without text
    /// opcodes.
    pub const fn new(pickle: &'p [u8]) -> Self {
        Self::with_limits(pickle, &Limits::HOST)
    }

    /// Creates a reader with `limits`, of which only `opcode_count` applies
    /// here.
    pub const fn with_limits(pickle: &'p [u8], limits: &Limits) -> Self {
        Self {
            rest: pickle,
            len: pickle.len(),
            opcodes_left: limits.opcode_count,
            opcode_limit: limits.opcode_count,
            text_opcodes: false,
            is_finished: false,
        }
    }

    /// Whether to accept opcodes with a text argument ([`Opcode::is_text`]),
    /// which protocols 0 and 1 use. Default: false, such an opcode is an error.
    #[must_use]
    pub const fn text_opcodes(mut self, allowed: bool) -> Self {
        self.text_opcodes = allowed;
        self
    }

    /// Offset of the next opcode in the pickle, in bytes; after STOP, the length
    /// of the pickle.
    #[inline]
    pub const fn position(&self) -> usize {
        self.len.wrapping_sub(self.rest.len())
    }

    /// The part of the pickle that has not been read.
    #[inline]
    pub const fn remaining(&self) -> &'p [u8] {
        self.rest
    }

    /// Whether STOP has been read.
    #[inline]
    pub const fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// The bytes after STOP, which are not part of the pickle; CPython ignores
    /// them. Empty until STOP has been read.
    pub const fn trailing(&self) -> &'p [u8] {
        if self.is_finished { self.rest } else { &[] }
    }

    /// Reads the next opcode with its argument, `None` after STOP.
    ///
    /// After an error the position is unchanged, and the next call returns the
    /// same error.
    ///
    /// # Errors
    ///
    /// * [`PickleErrorKind::MissingStop`], [`PickleErrorKind::Truncated`] or
    ///   [`PickleErrorKind::MissingLineFeed`] if the input ends too early;
    /// * [`PickleErrorKind::TooManyOpcodes`] if the limit is reached;
    /// * [`PickleErrorKind::TextOpcode`] for a text opcode that is not allowed;
    /// * another kind if the opcode or its argument is not valid.
    #[inline]
    pub fn next_token(&mut self) -> Result<Option<Token<'p>>, PickleError> {
        match self.next_opcode()? {
            Some(opcode) => self.take(opcode).map(Some),
            None => Ok(None),
        }
    }

    /// The next opcode, `None` after STOP.
    #[inline(always)]
    pub(super) fn next_opcode(&self) -> Result<Option<Opcode>, PickleError> {
        if self.is_finished {
            return Ok(None);
        }
        let kind = match self.rest.first() {
            None => PickleErrorKind::MissingStop,
            Some(&byte) => match Opcode::from_byte(byte) {
                None => PickleErrorKind::UnknownOpcode { byte },
                Some(_) if self.opcodes_left == 0 => PickleErrorKind::TooManyOpcodes {
                    limit: self.opcode_limit,
                },
                opcode => return Ok(opcode),
            },
        };
        Err(self.error(kind))
    }

    /// Reads the next opcode, which the caller knows to be `opcode`. If it is a
    /// constant, the compiler specialises the decoding of the argument.
    #[inline(always)]
    pub(super) fn take(&mut self, opcode: Opcode) -> Result<Token<'p>, PickleError> {
        let offset = self.position();
        let after = self.rest.get(1..).or_default_if_bug();
        match argument(opcode, after, self.text_opcodes) {
            Ok((argument, rest)) => {
                let len = self.rest.len().wrapping_sub(rest.len());
                self.rest = rest;
                self.opcodes_left = self.opcodes_left.wrapping_sub(1);
                self.is_finished = matches!(opcode, Opcode::Stop);
                Ok(Token {
                    offset,
                    len,
                    opcode,
                    argument,
                })
            }
            Err(kind) => Err(self.error(kind)),
        }
    }

    /// An error at the next opcode.
    const fn error(&self, kind: PickleErrorKind) -> PickleError {
        PickleError {
            offset: self.position(),
            kind,
        }
    }
}

pub(super) type Read<'p> = Result<(Argument<'p>, &'p [u8]), PickleErrorKind>;

#[inline]
pub(super) fn argument(opcode: Opcode, rest: &[u8], text_opcodes: bool) -> Read<'_> {
    use Argument as A;
    Ok(match opcode {
        Opcode::BinInt => {
            let (bytes, rest) = split_array(opcode, rest)?;
            (A::Int(i32::from_le_bytes(bytes).into()), rest)
        }
        Opcode::BinInt1 => {
            let (bytes, rest) = split_array(opcode, rest)?;
            (A::Int(u8::from_le_bytes(bytes).into()), rest)
        }
        Opcode::BinInt2 => {
            let (bytes, rest) = split_array(opcode, rest)?;
            (A::Int(u16::from_le_bytes(bytes).into()), rest)
        }
        Opcode::Long1 => {
            let (bytes, rest) = counted_1(opcode, rest)?;
            (A::BigInt(BigInt::new(bytes)), rest)
        }
        Opcode::Long4 => {
            let (bytes, rest) = counted_4_signed(opcode, rest)?;
            (A::BigInt(BigInt::new(bytes)), rest)
        }
        Opcode::BinFloat => {
            let (bytes, rest) = split_array(opcode, rest)?;
            (A::Float(f64::from_be_bytes(bytes)), rest)
        }
        Opcode::ShortBinString => {
            let (bytes, rest) = counted_1(opcode, rest)?;
            (A::ByteString(bytes), rest)
        }
        Opcode::BinString => {
            let (bytes, rest) = counted_4_signed(opcode, rest)?;
            (A::ByteString(bytes), rest)
        }
        Opcode::ShortBinBytes => {
            let (bytes, rest) = counted_1(opcode, rest)?;
            (A::Bytes(bytes), rest)
        }
        Opcode::BinBytes => {
            let (bytes, rest) = counted_4(opcode, rest)?;
            (A::Bytes(bytes), rest)
        }
        Opcode::BinBytes8 => {
            let (bytes, rest) = counted_8(opcode, rest)?;
            (A::Bytes(bytes), rest)
        }
        Opcode::ByteArray8 => {
            let (bytes, rest) = counted_8(opcode, rest)?;
            (A::ByteArray(bytes), rest)
        }
        Opcode::ShortBinUnicode => string(opcode, counted_1(opcode, rest)?)?,
        Opcode::BinUnicode => string(opcode, counted_4(opcode, rest)?)?,
        Opcode::BinUnicode8 => string(opcode, counted_8(opcode, rest)?)?,
        Opcode::BinGet | Opcode::BinPut => {
            let (bytes, rest) = split_array(opcode, rest)?;
            (A::Index(u8::from_le_bytes(bytes).into()), rest)
        }
        Opcode::LongBinGet | Opcode::LongBinPut => {
            let (bytes, rest) = split_array(opcode, rest)?;
            (A::Index(u32::from_le_bytes(bytes).into()), rest)
        }
        Opcode::Ext1 => {
            let (bytes, rest) = split_array(opcode, rest)?;
            (A::Code(u8::from_le_bytes(bytes).into()), rest)
        }
        Opcode::Ext2 => {
            let (bytes, rest) = split_array(opcode, rest)?;
            (A::Code(u16::from_le_bytes(bytes).into()), rest)
        }
        Opcode::Ext4 => {
            let (bytes, rest) = split_array(opcode, rest)?;
            (A::Code(i32::from_le_bytes(bytes)), rest)
        }
        Opcode::Proto => {
            let (bytes, rest) = split_array(opcode, rest)?;
            let version = u8::from_le_bytes(bytes);
            if version > 5 {
                return Err(PickleErrorKind::UnknownProtocol { version });
            }
            (A::Version(version), rest)
        }
        Opcode::Frame => {
            let (bytes, rest) = split_array(opcode, rest)?;
            let len = u64::from_le_bytes(bytes);
            // FRAME is a hint: the contents of a frame are read like any other
            // bytes.
            if usize::try_from(len).map_or(true, |len| len > rest.len()) {
                return Err(PickleErrorKind::FrameTooLong {
                    len,
                    available: rest.len(),
                });
            }
            (A::Length(len), rest)
        }
        _ if !opcode.is_text() => (A::None, rest),
        _ if !text_opcodes => return Err(PickleErrorKind::TextOpcode { opcode }),
        _ => return line_argument(opcode, rest),
    })
}

/// Parses the arguments that are lines. Validated as in `pickletools`, except
/// where it decodes escapes and the unpickler does not.
#[cold]
fn line_argument(opcode: Opcode, rest: &[u8]) -> Read<'_> {
    let (first, rest) = line(opcode, rest)?;
    let not_integer = PickleErrorKind::NotAnInteger { opcode };
    let argument = match opcode {
        Opcode::Int => match first {
            b"00" => Argument::Bool(false),
            b"01" => Argument::Bool(true),
            _ => Argument::Decimal(Decimal::new(first).ok_or(not_integer)?),
        },
        Opcode::Long => {
            let digits = first.strip_suffix(b"L").unwrap_or(first);
            Argument::Decimal(Decimal::new(digits).ok_or(not_integer)?)
        }
        Opcode::Get | Opcode::Put => {
            let index = Decimal::new(first).ok_or(not_integer)?;
            let index = index
                .to_u64()
                .ok_or(PickleErrorKind::MemoIndex { opcode })?;
            Argument::Index(index)
        }
        Opcode::Float => {
            Argument::DecimalFloat(DecimalFloat::new(first).ok_or(PickleErrorKind::NotAFloat)?)
        }
        Opcode::String => {
            check_string(first).map_err(|fault| match fault {
                StringFault::NotQuoted => PickleErrorKind::NotQuoted,
                StringFault::BadEscape => PickleErrorKind::BadEscape { opcode },
                StringFault::NotAscii => PickleErrorKind::NotAscii { opcode },
            })?;
            Argument::Line(first)
        }
        Opcode::Unicode => {
            if !check_unicode(first) {
                return Err(PickleErrorKind::BadEscape { opcode });
            }
            Argument::Line(first)
        }
        Opcode::Global | Opcode::Inst => {
            let (second, rest) = line(opcode, rest)?;
            let is_ascii = first.is_ascii() && second.is_ascii();
            if matches!(opcode, Opcode::Inst) && !is_ascii {
                return Err(PickleErrorKind::NotAscii { opcode });
            }
            let global = Argument::Global {
                module: utf8(opcode, first)?,
                name: utf8(opcode, second)?,
            };
            return Ok((global, rest));
        }
        // PERSID; all other opcodes have no text argument.
        _ => {
            if !first.is_ascii() {
                return Err(PickleErrorKind::NotAscii { opcode });
            }
            Argument::Line(first)
        }
    };
    Ok((argument, rest))
}

#[inline]
fn string<'p>(opcode: Opcode, (bytes, rest): (&'p [u8], &'p [u8])) -> Read<'p> {
    match PyStr::new(bytes) {
        Ok(string) => Ok((Argument::Str(string), rest)),
        Err(valid_len) => Err(PickleErrorKind::NotUtf8 { opcode, valid_len }),
    }
}

fn utf8(opcode: Opcode, bytes: &[u8]) -> Result<&str, PickleErrorKind> {
    core::str::from_utf8(bytes).map_err(|error| PickleErrorKind::NotUtf8 {
        opcode,
        valid_len: error.valid_up_to(),
    })
}

fn line(opcode: Opcode, rest: &[u8]) -> Result<(&[u8], &[u8]), PickleErrorKind> {
    let end = rest.iter().position(|&byte| byte == b'\n');
    end.and_then(|end| {
        let (line, after) = rest.split_at_checked(end)?;
        Some((line, after.split_first()?.1))
    })
    .ok_or(PickleErrorKind::MissingLineFeed { opcode })
}

#[inline]
fn split_array<const N: usize>(
    opcode: Opcode,
    rest: &[u8],
) -> Result<([u8; N], &[u8]), PickleErrorKind> {
    match rest.split_first_chunk() {
        Some((bytes, rest)) => Ok((*bytes, rest)),
        None => Err(end(opcode, N, 0, rest.len())),
    }
}

type Counted<'p> = Result<(&'p [u8], &'p [u8]), PickleErrorKind>;

#[inline]
fn counted_1(opcode: Opcode, rest: &[u8]) -> Counted<'_> {
    let (count, rest) = split_array(opcode, rest)?;
    counted::<1>(opcode, rest, u8::from_le_bytes(count).into())
}

#[inline]
fn counted_4(opcode: Opcode, rest: &[u8]) -> Counted<'_> {
    let (count, rest) = split_array(opcode, rest)?;
    counted::<4>(opcode, rest, u32::from_le_bytes(count).into())
}

#[inline]
fn counted_4_signed(opcode: Opcode, rest: &[u8]) -> Counted<'_> {
    let (count, rest) = split_array(opcode, rest)?;
    let count = i32::from_le_bytes(count);
    match u32::try_from(count) {
        Ok(count) => counted::<4>(opcode, rest, count.into()),
        Err(_) => Err(PickleErrorKind::NegativeCount { opcode, count }),
    }
}

#[inline]
fn counted_8(opcode: Opcode, rest: &[u8]) -> Counted<'_> {
    let (count, rest) = split_array(opcode, rest)?;
    counted::<8>(opcode, rest, u64::from_le_bytes(count))
}

/// The `count` bytes after a length of `N` bytes.
#[inline]
fn counted<const N: usize>(opcode: Opcode, rest: &[u8], count: u64) -> Counted<'_> {
    let parts = usize::try_from(count).ok();
    match parts.and_then(|count| rest.split_at_checked(count)) {
        Some(parts) => Ok(parts),
        None => Err(end(opcode, N, count, rest.len().saturating_add(N))),
    }
}

/// The error for an input that ends inside an opcode: the argument needs
/// `head_len` bytes of a fixed size and `count` more, and `available` bytes
/// follow the opcode.
#[cold]
fn end(opcode: Opcode, head_len: usize, count: u64, available: usize) -> PickleErrorKind {
    PickleErrorKind::Truncated {
        opcode,
        needed: (head_len as u64).saturating_add(1).saturating_add(count),
        available: available.saturating_add(1),
    }
}
