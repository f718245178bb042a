//! The measuring writer.

use crate::invariant::Ensured;
use core::fmt;

use super::{Mutability, Opcode, PickleBuffer, Placement};
use crate::BufferTooSmall;
use crate::measure::{append, put, short};

/// Writer for one pickle, with the same opcodes as CPython.
///
/// Values are written from the outside in, with their number of members first;
/// each method documents how many values must follow. The writer adds the
/// closing opcodes (`APPENDS`, `TUPLE2`, `REDUCE` and so on) and the marks of
/// the batches of 1,000 in which CPython writes long containers. It counts
/// members in levels that the caller supplies, one for each open value, so
/// neither the writer nor the caller needs recursion. Only
/// [`finish`](Self::finish) reports errors.
///
/// ```
/// use daskwire_pickle::{Level, WriteError, Writer};
///
/// let (mut buffer, mut levels) = ([0; 64], [Level::EMPTY; 4]);
/// let mut writer = Writer::new(&mut buffer, &mut levels);
/// // {"call": operator.add, "of": (1, [2, None])}
/// writer.dict(2);
/// writer.str("call").global("operator", "add");
/// writer.str("of").tuple(2).i64(1).list(2).i64(2).none();
/// assert_eq!(
///     writer.finish()?,
///     b"\x80\x05\x95\x27\0\0\0\0\0\0\0}(\
///       \x8c\x04call\x8c\x08operator\x8c\x03add\x93\
///       \x8c\x02ofK\x01](K\x02Ne\x86u."
/// );
/// # Ok::<(), WriteError>(())
/// ```
///
/// # Objects
///
/// An instance of a class is a call: [`reduce`](Self::reduce) takes the
/// callable and the tuple of its arguments, [`newobj`](Self::newobj) the class
/// and its arguments. Operations on the result are written around it, from the
/// outside in: [`build`](Self::build) sets its state, [`update`](Self::update)
/// its entries, [`extend`](Self::extend) its items.
///
/// ```
/// # use daskwire_pickle::{Level, WriteError, Writer};
/// # let (mut buffer, mut levels) = ([0; 64], [Level::EMPTY; 4]);
/// # let mut writer = Writer::new(&mut buffer, &mut levels);
/// // OrderedDict(a=1)
/// writer.update(1);
/// writer.reduce().global("collections", "OrderedDict").tuple(0);
/// writer.str("a").i64(1);
/// # assert!(writer.finish().is_ok());
/// ```
///
/// # Sharing
///
/// [`memoize`](Self::memoize) stores the value on top of the reader's stack,
/// and [`get`](Self::get) writes a reference to the same object. A list, dict
/// or set can be memoized as soon as it is begun, and can then contain itself.
/// Any other compound value must be complete, which [`end`](Self::end) ensures:
///
/// ```
/// # use daskwire_pickle::{Level, WriteError, Writer};
/// # let (mut buffer, mut levels) = ([0; 64], [Level::EMPTY; 4]);
/// # let mut writer = Writer::new(&mut buffer, &mut levels);
/// writer.list(2);
/// let list = writer.memoize();
/// writer.tuple(1).str("same").end();
/// let tuple = writer.memoize();
/// writer.list(2).get(tuple).get(list);
/// # assert!(writer.finish().is_ok());
/// ```
///
/// CPython memoizes every value that could be shared; `pickletools.optimize`
/// removes unused entries. The output of this writer is equal to that of
/// `optimize` if only values that are used again are memoized. Recursion
/// through a tuple, a frozen set or the arguments of a call cannot be written.
///
/// # Measuring
///
/// The writer keeps counting past the end of the buffer, so that an empty
/// buffer measures:
///
/// ```
/// # use daskwire_pickle::{Level, WriteError, Writer};
/// let mut measure = Writer::new(&mut [], &mut []);
/// measure.str("no need of levels");
/// assert_eq!(measure.measure()?, 31);
/// # Ok::<(), WriteError>(())
/// ```
#[derive(Debug)]
pub struct Writer<'b, 'l> {
    out: &'b mut [u8],
    /// Length of the pickle so far, in bytes, whether it fits or not.
    len: usize,
    /// The length from which on the frame is full. 0 if the frame has no header
    /// yet, since it may be too short for one.
    frame_full: usize,
    /// Offset of the contents of the frame.
    frame_start: usize,
    /// The innermost open value.
    level: Level,
    /// The open values around it.
    levels: &'l mut [Level],
    depth: usize,
    memo_count: u32,
    /// Whether the value on top of the reader's stack can be memoized.
    on_top: bool,
    options: Options,
    /// The first error.
    error: Option<WriteError>,
}

/// Options of a [`Writer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The version of the pickle protocol.
    pub protocol: Protocol,
    /// Whether the pickle is divided into frames.
    pub framing: Framing,
}

/// A version of the pickle protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// Protocol 4 of Python 3.4, without buffers.
    V4,
    /// Protocol 5 of Python 3.8.
    #[default]
    V5,
}

impl Protocol {
    /// The version number in PROTO.
    pub const fn number(self) -> u8 {
        match self {
            Self::V4 => 4,
            Self::V5 => 5,
        }
    }
}

/// The division of a pickle into frames.
///
/// Readers accept both. Frames save CPython small reads from files; they have
/// no effect for pickles in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Framing {
    /// Frames of about 64 KiB, and opcodes longer than 64 KiB between frames,
    /// as in `pickletools.optimize`.
    #[default]
    Frames,
    /// No frames.
    None,
}

/// The state of an open value in a [`Writer`].
#[derive(Clone, Copy, Debug)]
pub struct Level {
    /// Values left in the current batch.
    left: usize,
    /// Values after that batch.
    rest: usize,
    kind: Kind,
    batch: Batch,
}

impl Level {
    /// An unused level, to initialise arrays.
    pub const EMPTY: Self = Self::new(Kind::Root, 0, 0);

    const fn new(kind: Kind, left: usize, rest: usize) -> Self {
        Self {
            left,
            rest,
            kind,
            batch: Batch::None,
        }
    }

    const fn owed(&self) -> u64 {
        (self.left as u64).saturating_add(self.rest as u64)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The pickle itself.
    Root,
    /// A fixed number of values, then this opcode.
    Then(Opcode),
    List,
    Dict,
    Set,
    /// An object, then items to append.
    Extend,
    /// An object, then entries to set.
    Update,
}

/// The current batch of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Batch {
    None,
    /// One item or entry without a mark.
    One,
    /// Items or entries after a mark.
    Many,
    /// The maximum number of items, at the end of a container, in those cases
    /// in which CPython writes another, empty batch.
    Full,
}

/// The error of [`Writer::finish`]; the caller's. Offsets are those of the end of
/// the pickle before the call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteError {
    /// The buffer is too small for a pickle that is otherwise valid.
    BufferTooSmall(BufferTooSmall),
    /// Values are missing at the end of the pickle or at a call of
    /// [`Writer::end`].
    Unfinished {
        /// Offset in the pickle.
        at: usize,
        /// The number of values missing, over all open values.
        owed: u64,
    },
    /// More values were written than were declared, or [`Writer::end`] was
    /// called without an open value.
    TooMany {
        /// Offset in the pickle.
        at: usize,
    },
    /// More values were open at a time than the caller supplied levels for.
    TooDeep {
        /// Offset in the pickle.
        at: usize,
        /// The number of levels supplied.
        levels: usize,
    },
    /// An integer is longer than the format allows (2^31 - 1 bytes).
    TooLong {
        /// Offset in the pickle.
        at: usize,
        /// Its length, in bytes.
        len: usize,
    },
    /// The bytes of a string are not UTF-8, even allowing surrogates.
    NotUtf8 {
        /// Offset in the pickle.
        at: usize,
        /// The length of the valid part, in bytes.
        valid_len: usize,
    },
    /// A [`PickleBuffer`] was written to a pickle of protocol 4.
    NeedsProtocol5 {
        /// Offset in the pickle.
        at: usize,
    },
    /// There is no value to memoize: none was written, the value is not
    /// complete, or it is memoized already.
    NothingToMemoize {
        /// Offset in the pickle.
        at: usize,
    },
    /// More values were memoized than indices exist (2^32 - 1).
    MemoFull {
        /// Offset in the pickle.
        at: usize,
    },
    /// No value was memoized under this index.
    NotMemoized {
        /// Offset in the pickle.
        at: usize,
        /// The index requested.
        index: u32,
        /// The number of values memoized.
        count: u32,
    },
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::BufferTooSmall(error) => error.fmt(f),
            Self::Unfinished { at, owed } => write!(
                f,
                "the pickle is not finished at byte {at}: {owed} more values were declared"
            ),
            Self::TooMany { at } => write!(
                f,
                "more values were written or ended than were declared, at byte {at} of the pickle"
            ),
            Self::TooDeep { at, levels } => write!(
                f,
                "more than {levels} values are open at byte {at} of the pickle, \
                 which is how many levels were supplied"
            ),
            Self::TooLong { at, len } => write!(
                f,
                "an integer of {len} bytes, at byte {at} of the pickle, is longer than \
                 pickles allow (2147483647)"
            ),
            Self::NotUtf8 { at, valid_len } => write!(
                f,
                "the bytes of a string, at byte {at} of the pickle, are not UTF-8 after the first \
                 {valid_len}"
            ),
            Self::NeedsProtocol5 { at } => write!(
                f,
                "a buffer at byte {at} of the pickle needs protocol 5, and this is protocol 4"
            ),
            Self::NothingToMemoize { at } => write!(
                f,
                "there is no complete value to memoize at byte {at} of the pickle"
            ),
            Self::MemoFull { at } => write!(
                f,
                "more values were memoized than indices exist (4294967295), at byte {at} of the \
                 pickle"
            ),
            Self::NotMemoized { at, index, count } => write!(
                f,
                "no value was memoized under {index} at byte {at} of the pickle, only {count} \
                 values before it"
            ),
        }
    }
}

impl core::error::Error for WriteError {}

impl From<BufferTooSmall> for WriteError {
    fn from(error: BufferTooSmall) -> Self {
        Self::BufferTooSmall(error)
    }
}

impl<'b, 'l> Writer<'b, 'l> {
    /// Creates a writer to `out`, with protocol 5 and frames. With an empty
    /// buffer it measures.
    ///
    /// `levels` limits the number of values open at a time: 1 is enough for a
    /// list of numbers, 2 for a list of tuples of numbers.
    #[inline]
    pub fn new(out: &'b mut [u8], levels: &'l mut [Level]) -> Self {
        Self::with_options(out, levels, Options::default())
    }

    /// Creates a writer to `out` with options.
    pub fn with_options(out: &'b mut [u8], levels: &'l mut [Level], options: Options) -> Self {
        let protocol = options.protocol.number();
        let len = put(out, 0, [Opcode::Proto.byte(), protocol]);
        Self {
            out,
            len,
            frame_full: match options.framing {
                Framing::Frames => 0,
                Framing::None => usize::MAX,
            },
            frame_start: len,
            level: Level::new(Kind::Root, 1, 0),
            levels,
            depth: 0,
            memo_count: 0,
            on_top: false,
            options,
            error: None,
        }
    }

    /// The number of values missing before the pickle is complete.
    pub fn owed(&self) -> u64 {
        self.levels
            .iter()
            .take(self.depth)
            .fold(self.level.owed(), |owed, level| {
                owed.saturating_add(level.owed())
            })
    }

    /// The number of open values: begun and not ended. A complete value stays
    /// open until the next call that writes a value, or [`end`](Self::end).
    pub const fn depth(&self) -> usize {
        self.depth
    }

    /// Ends the values that are complete, instead of at the next call that
    /// writes a value. All values that are then open need more values.
    pub fn settle(&mut self) -> &mut Self {
        while self.error.is_none() && self.level.owed() == 0 && self.level.kind != Kind::Root {
            self.close();
        }
        self
    }

    /// Length of the pickle so far, in bytes, whether it fits or not, without
    /// the closing opcodes of the open values.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether no value has been written yet.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == HEADER_LEN
    }

    /// Ends the pickle and returns it.
    ///
    /// # Errors
    ///
    /// * The first error, any [`WriteError`];
    /// * [`WriteError::Unfinished`] if values are missing;
    /// * [`WriteError::BufferTooSmall`] if only the buffer is too small. Its
    ///   contents are then unspecified.
    #[inline]
    pub fn finish(self) -> Result<&'b [u8], WriteError> {
        self.finish_mut().map(|(pickle, _)| &*pickle)
    }

    /// Ends the pickle and returns it and the rest of the buffer.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    pub fn finish_mut(mut self) -> Result<(&'b mut [u8], &'b mut [u8]), WriteError> {
        self.stop()?;
        let available = self.out.len();
        self.out
            .split_at_mut_checked(self.len)
            .ok_or(WriteError::BufferTooSmall(BufferTooSmall {
                needed: self.len,
                available,
            }))
    }

    /// Ends the pickle, and returns its length in bytes, whether it fits or not.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish), but never [`WriteError::BufferTooSmall`].
    pub fn measure(mut self) -> Result<usize, WriteError> {
        self.stop()?;
        Ok(self.len)
    }

    /// Writes `None`.
    #[inline]
    pub fn none(&mut self) -> &mut Self {
        self.value();
        self.opcode(Opcode::None)
    }

    /// Writes `True` or `False`.
    #[inline]
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.value();
        self.opcode(if value {
            Opcode::NewTrue
        } else {
            Opcode::NewFalse
        })
    }

    /// Writes an integer with the opcode that CPython uses: `BININT1`,
    /// `BININT2`, `BININT`, or `LONG1` above 4 bytes.
    #[inline]
    pub fn i64(&mut self, value: i64) -> &mut Self {
        let Ok(value) = i32::try_from(value) else {
            return self.long(&value.to_le_bytes());
        };
        self.value();
        let [a, b, c, d] = value.to_le_bytes();
        match [b, c, d] {
            [0, 0, 0] => self.put([Opcode::BinInt1.byte(), a]),
            [_, 0, 0] => self.put([Opcode::BinInt2.byte(), a, b]),
            _ => self.put([Opcode::BinInt.byte(), a, b, c, d]),
        }
    }

    /// Writes a non-negative integer.
    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        match i64::try_from(value) {
            Ok(value) => self.i64(value),
            Err(_) => self.long(&i128::from(value).to_le_bytes()),
        }
    }

    /// Writes an integer.
    #[inline]
    pub fn i128(&mut self, value: i128) -> &mut Self {
        match i64::try_from(value) {
            Ok(value) => self.i64(value),
            Err(_) => self.long(&value.to_le_bytes()),
        }
    }

    /// Writes an integer of any size in little-endian two's complement. An
    /// empty slice is 0.
    pub fn int_bytes(&mut self, twos_complement: &[u8]) -> &mut Self {
        let bytes = shortest(twos_complement);
        match sign_extended(bytes) {
            Some(value) => self.i64(value),
            None => self.long(bytes),
        }
    }

    /// Writes an integer of any size, given as its sign and its little-endian
    /// magnitude. An empty slice is 0.
    ///
    /// ```
    /// # use daskwire_pickle::{Framing, Options, WriteError, Writer};
    /// # let options = Options { framing: Framing::None, ..Options::default() };
    /// # let mut buffer = [0; 32];
    /// # let mut writer = Writer::with_options(&mut buffer, &mut [], options);
    /// writer.int_magnitude(true, &0x80_u128.pow(8).to_le_bytes()); // -2^56
    /// assert_eq!(writer.finish()?, b"\x80\x05\x8a\x08\0\0\0\0\0\0\0\xff.");
    /// # Ok::<(), WriteError>(())
    /// ```
    pub fn int_magnitude(&mut self, negative: bool, magnitude: &[u8]) -> &mut Self {
        let mut magnitude = magnitude;
        while let [rest @ .., 0] = magnitude {
            magnitude = rest;
        }
        let Some((&top, below)) = magnitude.split_last() else {
            return self.i64(0);
        };
        let mut small = [0; 16];
        if let Some(place) = small.get_mut(..magnitude.len())
            && magnitude.len() < 16
        {
            crate::measure::copy(place, magnitude);
            let value = i128::from_le_bytes(small);
            return self.i128(if negative {
                value.wrapping_neg()
            } else {
                value
            });
        }
        // Whether the last byte has a bit left for the sign.
        let fits = top < 0x80 || (negative && top == 0x80 && below.iter().all(|byte| *byte == 0));
        let len = magnitude.len().saturating_add(usize::from(!fits));
        if !self.long_head(len) {
            return self;
        }
        let at = self.len;
        self.len = at.saturating_add(len);
        let Some(place) = self.out.get_mut(at..self.len) else {
            return self;
        };
        // Two's complement is the complement plus one.
        let mut carry = negative;
        let magnitude = magnitude.iter().copied().chain([0]);
        for (to, byte) in place.iter_mut().zip(magnitude) {
            let byte = if negative { !byte } else { byte };
            (*to, carry) = byte.overflowing_add(u8::from(carry));
        }
        self
    }

    /// Writes a float.
    #[inline]
    pub fn f64(&mut self, value: f64) -> &mut Self {
        self.value();
        let [a, b, c, d, e, f, g, h] = value.to_be_bytes();
        self.put([Opcode::BinFloat.byte(), a, b, c, d, e, f, g, h])
    }

    /// Writes a string.
    #[inline]
    pub fn str(&mut self, string: &str) -> &mut Self {
        self.value();
        self.string(string.as_bytes());
        self
    }

    /// Writes a string from UTF-8 bytes that may contain encoded surrogates.
    /// CPython writes strings with surrogates in this way (`surrogatepass`),
    /// for example file names that are not UTF-8.
    ///
    /// Other bytes give [`WriteError::NotUtf8`].
    pub fn str_bytes(&mut self, string: &[u8]) -> &mut Self {
        if let Err(valid_len) = check_string(string) {
            self.fail(WriteError::NotUtf8 {
                at: self.len,
                valid_len,
            });
        }
        self.value();
        self.string(string);
        self
    }

    /// Writes a `bytes` object.
    #[inline]
    pub fn bytes(&mut self, data: &[u8]) -> &mut Self {
        self.value();
        self.bytes_data(data);
        self
    }

    /// Writes a `bytearray`. In protocol 4, which has no opcode for it, writes
    /// a call of `bytearray` with a `bytes` object, as in CPython.
    pub fn bytearray(&mut self, data: &[u8]) -> &mut Self {
        self.value();
        match self.options.protocol {
            Protocol::V5 => {
                self.counted8(Opcode::ByteArray8, data);
            }
            Protocol::V4 => {
                self.global_opcodes("builtins", "bytearray");
                if data.is_empty() {
                    self.opcode(Opcode::EmptyTuple);
                } else {
                    self.bytes_data(data);
                    self.opcode(Opcode::Tuple1);
                }
                self.opcode(Opcode::Reduce);
            }
        }
        self
    }

    /// Writes a buffer in band or out of band. `decide` corresponds to
    /// CPython's `buffer_callback`: a caller that returns
    /// [`Placement::OutOfBand`] transfers the bytes separately.
    ///
    /// In band a read-only buffer is `bytes` and a writable one a `bytearray`.
    /// In protocol 4 any buffer gives [`WriteError::NeedsProtocol5`], and
    /// `decide` is not called. A writer that measures also calls `decide`, so
    /// measuring and then writing calls it twice.
    ///
    /// ```
    /// use daskwire_pickle::{Level, Mutability, PickleBuffer, Placement, WriteError, Writer};
    ///
    /// let pixels = [7; 1000];
    /// let mut beside = [None; 4];
    /// let mut free = beside.iter_mut();
    ///
    /// let (mut buffer, mut levels) = ([0; 64], [Level::EMPTY; 2]);
    /// let mut writer = Writer::new(&mut buffer, &mut levels);
    /// writer.reduce().global("builtins", "bytearray").tuple(1);
    /// let view = PickleBuffer::new(&pixels, Mutability::Writable);
    /// writer.buffer(view, |view| match free.next() {
    ///     Some(slot) => {
    ///         *slot = Some(view);
    ///         Placement::OutOfBand
    ///     }
    ///     None => Placement::InBand,
    /// });
    /// assert!(writer.finish()?.len() < 64);
    /// assert_eq!(beside[0].map(|view| view.as_bytes().as_ptr()), Some(pixels.as_ptr()));
    /// # Ok::<(), WriteError>(())
    /// ```
    pub fn buffer<'d>(
        &mut self,
        buffer: PickleBuffer<'d>,
        decide: impl FnOnce(PickleBuffer<'d>) -> Placement,
    ) -> &mut Self {
        if self.options.protocol < Protocol::V5 {
            self.fail(WriteError::NeedsProtocol5 { at: self.len });
            return self;
        }
        match (decide(buffer), buffer.mutability()) {
            (Placement::InBand, Mutability::ReadOnly) => self.bytes(buffer.as_bytes()),
            (Placement::InBand, Mutability::Writable) => self.bytearray(buffer.as_bytes()),
            (Placement::OutOfBand, mutability) => {
                self.value();
                self.opcode(Opcode::NextBuffer);
                if mutability == Mutability::ReadOnly {
                    self.opcode(Opcode::ReadOnlyBuffer);
                }
                self
            }
        }
    }

    /// Writes a global: a name in a module. The name may be dotted
    /// (`Expr._reconstruct`).
    pub fn global(&mut self, module: &str, name: &str) -> &mut Self {
        self.value();
        self.global_opcodes(module, name);
        self
    }

    /// Begins a global; takes 2 values: the module and the name. Unlike
    /// [`global`](Self::global) this allows either to be memoized or taken from
    /// the memo.
    #[inline]
    pub fn stack_global(&mut self) -> &mut Self {
        self.value();
        self.then(Opcode::StackGlobal, 2)
    }

    /// Begins a tuple of `count` values.
    #[inline]
    pub fn tuple(&mut self, count: usize) -> &mut Self {
        self.value();
        match count {
            0 => self.then(Opcode::EmptyTuple, 0),
            1 => self.then(Opcode::Tuple1, 1),
            2 => self.then(Opcode::Tuple2, 2),
            3 => self.then(Opcode::Tuple3, 3),
            _ => {
                self.opcode(Opcode::Mark);
                self.then(Opcode::Tuple, count)
            }
        }
    }

    /// Begins a frozen set of `count` values, which should be distinct.
    #[inline]
    pub fn frozenset(&mut self, count: usize) -> &mut Self {
        self.value();
        self.opcode(Opcode::Mark);
        self.then(Opcode::FrozenSet, count)
    }

    /// Begins a list of `count` values.
    #[inline]
    pub fn list(&mut self, count: usize) -> &mut Self {
        self.value();
        self.opcode(Opcode::EmptyList);
        self.open(Level::new(Kind::List, 0, count))
    }

    /// Begins a dictionary of `count` entries; takes twice as many values, each
    /// key before its value. Keys should be distinct.
    #[inline]
    pub fn dict(&mut self, count: usize) -> &mut Self {
        self.value();
        self.opcode(Opcode::EmptyDict);
        self.open(Level::new(Kind::Dict, 0, count.saturating_mul(2)))
    }

    /// Begins a set of `count` values, which should be distinct.
    #[inline]
    pub fn set(&mut self, count: usize) -> &mut Self {
        self.value();
        self.opcode(Opcode::EmptySet);
        self.open(Level::new(Kind::Set, 0, count))
    }

    /// Begins a call; takes 2 values: the callable, and a tuple of arguments.
    #[inline]
    pub fn reduce(&mut self) -> &mut Self {
        self.value();
        self.then(Opcode::Reduce, 2)
    }

    /// Begins an instance; takes 2 values: the class, and a tuple of arguments
    /// for its `__new__`.
    #[inline]
    pub fn newobj(&mut self) -> &mut Self {
        self.value();
        self.then(Opcode::NewObj, 2)
    }

    /// Begins an instance; takes 3 values: the class, and a tuple and a
    /// dictionary of arguments for its `__new__`.
    #[inline]
    pub fn newobj_ex(&mut self) -> &mut Self {
        self.value();
        self.then(Opcode::NewObjEx, 3)
    }

    /// Begins an object with a state; takes 2 values: the object, and the state
    /// for its `__setstate__` or `__dict__`.
    #[inline]
    pub fn build(&mut self) -> &mut Self {
        self.value();
        self.then(Opcode::Build, 2)
    }

    /// Begins an object with `count` items, such as a `deque`; takes
    /// `count + 1` values: the object, which has a method `append`, then its
    /// items.
    #[inline]
    pub fn extend(&mut self, count: usize) -> &mut Self {
        self.value();
        self.on_top = false;
        self.open(Level::new(Kind::Extend, 1, count))
    }

    /// Begins an object with `count` entries, such as a `defaultdict`; takes
    /// `2 * count + 1` values: the object, then each key before its value.
    #[inline]
    pub fn update(&mut self, count: usize) -> &mut Self {
        self.value();
        self.on_top = false;
        self.open(Level::new(Kind::Update, 1, count.saturating_mul(2)))
    }

    /// Ends the innermost open value, instead of at the next call that writes a
    /// value, so that it can be [memoized](Self::memoize). An incomplete value
    /// gives [`WriteError::Unfinished`].
    pub fn end(&mut self) -> &mut Self {
        if self.error.is_some() {
            return self;
        }
        if self.level.kind == Kind::Root {
            self.fail(WriteError::TooMany { at: self.len });
        } else if self.level.owed() > 0 {
            self.fail(WriteError::Unfinished {
                at: self.len,
                owed: self.level.owed(),
            });
        } else {
            self.close();
        }
        self
    }

    /// Memoizes the value that was last written, begun or [ended](Self::end),
    /// and returns its index for [`get`](Self::get). Indices count from 0.
    ///
    /// A tuple, a frozen set or a call can be memoized only after it has ended,
    /// see [above](Self#sharing).
    pub fn memoize(&mut self) -> u32 {
        let index = self.memo_count;
        if !self.on_top {
            self.fail(WriteError::NothingToMemoize { at: self.len });
        }
        match index.checked_add(1) {
            Some(count) => self.memo_count = count,
            None => self.fail(WriteError::MemoFull { at: self.len }),
        }
        self.on_top = false;
        self.opcode(Opcode::Memoize);
        index
    }

    /// Writes a reference to the value that was memoized under an index.
    pub fn get(&mut self, index: u32) -> &mut Self {
        if index >= self.memo_count {
            self.fail(WriteError::NotMemoized {
                at: self.len,
                index,
                count: self.memo_count,
            });
        }
        self.value();
        let [a, b, c, d] = index.to_le_bytes();
        match [b, c, d] {
            [0, 0, 0] => self.put([Opcode::BinGet.byte(), a]),
            _ => self.put([Opcode::LongBinGet.byte(), a, b, c, d]),
        }
    }

    // Structure: each level counts down its values.

    /// Counts one value that is about to be written.
    #[inline]
    fn value(&mut self) {
        if self.level.left == 0 {
            self.turn();
        }
        self.level.left = self.level.left.wrapping_sub(1);
        self.on_top = true;
    }

    /// Prepares for a value: ends complete values and begins a batch.
    #[inline(never)]
    fn turn(&mut self) {
        // After an error the levels are unspecified.
        while self.error.is_none() && self.level.left == 0 {
            if self.level.rest > 0 {
                self.end_batch();
                self.begin_batch();
            } else if self.level.kind == Kind::Root {
                self.fail(WriteError::TooMany { at: self.len });
            } else {
                self.close();
            }
        }
    }

    #[inline]
    fn open(&mut self, level: Level) -> &mut Self {
        if let Some(slot) = self.levels.get_mut(self.depth) {
            *slot = self.level;
            self.depth = self.depth.wrapping_add(1);
            self.level = level;
        } else {
            self.fail(WriteError::TooDeep {
                at: self.len,
                levels: self.levels.len(),
            });
        }
        self
    }

    /// Begins a value of `count` values that ends with this opcode.
    #[inline]
    fn then(&mut self, opcode: Opcode, count: usize) -> &mut Self {
        self.on_top = false;
        self.open(Level::new(Kind::Then(opcode), count, 0))
    }

    /// Ends the innermost level, which is complete and not the root.
    #[inline]
    fn close(&mut self) {
        if let Kind::Then(opcode) = self.level.kind {
            self.opcode(opcode);
        } else {
            self.end_batch();
        }
        self.on_top = true;
        if let Some(depth) = self.depth.checked_sub(1)
            && let Some(level) = self.levels.get(depth)
        {
            self.depth = depth;
            self.level = *level;
        }
    }

    fn begin_batch(&mut self) {
        let Level { rest, kind, .. } = self.level;
        let width = match kind {
            Kind::Dict | Kind::Update => 2,
            _ => 1,
        };
        // A single item has no mark. CPython checks the length of exact lists
        // and dictionaries, and looks ahead in iterators.
        let alone = match kind {
            Kind::List | Kind::Dict => self.level.batch == Batch::None,
            Kind::Extend | Kind::Update => true,
            _ => false,
        };
        let max_count = BATCH_COUNT.wrapping_mul(width);
        let batch_count = rest.min(max_count);
        self.level.left = batch_count;
        self.level.rest = rest.wrapping_sub(batch_count);
        self.level.batch = if alone && rest == width {
            Batch::One
        } else if rest == max_count && matches!(kind, Kind::Dict | Kind::Set) {
            Batch::Full
        } else {
            Batch::Many
        };
        if self.level.batch != Batch::One {
            self.opcode(Opcode::Mark);
        }
    }

    fn end_batch(&mut self) {
        let (one, many) = match self.level.kind {
            Kind::List | Kind::Extend => (Opcode::Append, Opcode::Appends),
            Kind::Dict | Kind::Update => (Opcode::SetItem, Opcode::SetItems),
            _ => (Opcode::AddItems, Opcode::AddItems),
        };
        match self.level.batch {
            Batch::None => {}
            Batch::One => {
                self.opcode(one);
            }
            Batch::Many => {
                self.opcode(many);
            }
            Batch::Full => {
                self.opcode(many).opcode(Opcode::Mark).opcode(many);
            }
        }
    }

    fn stop(&mut self) -> Result<(), WriteError> {
        self.settle();
        if let Some(error) = self.error {
            return Err(error);
        }
        let owed = self.owed();
        if owed > 0 {
            return Err(WriteError::Unfinished { at: self.len, owed });
        }
        self.opcode(Opcode::Stop);
        self.end_frame();
        Ok(())
    }

    #[cold]
    fn fail(&mut self, error: WriteError) {
        self.error.get_or_insert(error);
    }

    // Opcodes with their arguments.

    /// An integer that is longer than an `i32`.
    #[inline(never)]
    fn long(&mut self, twos_complement: &[u8]) -> &mut Self {
        let bytes = shortest(twos_complement);
        if self.long_head(bytes.len()) {
            self.len = append(self.out, self.len, bytes);
        }
        self
    }

    /// Writes the head of an integer; its bytes must follow at once.
    fn long_head(&mut self, len: usize) -> bool {
        let Ok(signed) = i32::try_from(len) else {
            self.fail(WriteError::TooLong { at: self.len, len });
            return false;
        };
        self.value();
        let [a, b, c, d] = signed.to_le_bytes();
        match [b, c, d] {
            [0, 0, 0] => self.head([Opcode::Long1.byte(), a], len),
            _ => self.head([Opcode::Long4.byte(), a, b, c, d], len),
        }
        true
    }

    #[inline]
    fn string(&mut self, string: &[u8]) {
        if let Ok(len) = u8::try_from(string.len()) {
            self.short(Opcode::ShortBinUnicode, len, string);
        } else if let Ok(len) = u32::try_from(string.len()) {
            self.counted4(Opcode::BinUnicode, len, string);
        } else {
            self.counted8(Opcode::BinUnicode8, string);
        }
    }

    #[inline]
    fn bytes_data(&mut self, data: &[u8]) {
        if let Ok(len) = u8::try_from(data.len()) {
            self.short(Opcode::ShortBinBytes, len, data);
        } else if let Ok(len) = u32::try_from(data.len()) {
            self.counted4(Opcode::BinBytes, len, data);
        } else {
            self.counted8(Opcode::BinBytes8, data);
        }
    }

    fn global_opcodes(&mut self, module: &str, name: &str) {
        self.string(module.as_bytes());
        self.string(name.as_bytes());
        self.opcode(Opcode::StackGlobal);
    }

    #[inline]
    fn opcode(&mut self, opcode: Opcode) -> &mut Self {
        self.put([opcode.byte()])
    }

    #[inline]
    fn put<const N: usize>(&mut self, opcode: [u8; N]) -> &mut Self {
        self.reserve(N);
        self.len = put(self.out, self.len, opcode);
        self
    }

    #[inline]
    fn short(&mut self, opcode: Opcode, len: u8, data: &[u8]) {
        self.reserve(data.len().wrapping_add(2));
        self.len = short(self.out, self.len, [opcode.byte(), len], data);
    }

    #[inline(never)]
    fn counted4(&mut self, opcode: Opcode, len: u32, data: &[u8]) {
        let [a, b, c, d] = len.to_le_bytes();
        self.long_data([opcode.byte(), a, b, c, d], data);
    }

    #[inline(never)]
    fn counted8(&mut self, opcode: Opcode, data: &[u8]) {
        let [a, b, c, d, e, f, g, h] = (data.len() as u64).to_le_bytes();
        self.long_data([opcode.byte(), a, b, c, d, e, f, g, h], data);
    }

    /// An opcode that may be too long for a frame.
    fn long_data<const N: usize>(&mut self, head: [u8; N], data: &[u8]) {
        self.head(head, data.len());
        self.len = append(self.out, self.len, data);
    }

    /// Writes the head of an opcode that has `data_len` bytes more.
    fn head<const N: usize>(&mut self, head: [u8; N], data_len: usize) {
        let opcode_len = data_len.saturating_add(N);
        if opcode_len > FRAME_LEN && self.options.framing == Framing::Frames {
            // Between two frames: the next frame begins after it.
            self.end_frame();
            self.frame_start = self.len.saturating_add(opcode_len);
        } else {
            self.reserve(opcode_len);
        }
        self.len = put(self.out, self.len, head);
    }

    // Frames: an opcode is either completely in a frame or between two.

    /// Called before each opcode with its length.
    #[inline]
    fn reserve(&mut self, opcode_len: usize) {
        if self.len >= self.frame_full {
            self.turn_frame(opcode_len);
        }
    }

    /// Ends a full frame, or writes the header of a frame that has become long
    /// enough for one.
    #[inline(never)]
    fn turn_frame(&mut self, opcode_len: usize) {
        if self.options.framing == Framing::None {
            return;
        }
        if self.frame_full > 0 {
            self.end_frame();
        }
        let start = self.frame_start;
        let before = self.len.saturating_sub(start);
        if before.saturating_add(opcode_len) < FRAME_LEN_MIN {
            return;
        }
        // The existing contents, at most 3 bytes, move after the header.
        let mut moved = [0; FRAME_LEN_MIN];
        let moved = moved.get_mut(..before).ensured();
        for (to, from) in moved.iter_mut().zip(self.out.iter().skip(start)) {
            *to = *from;
        }
        self.frame_start = put(
            self.out,
            start,
            [Opcode::Frame.byte(), 0, 0, 0, 0, 0, 0, 0, 0],
        );
        self.frame_full = self.frame_start.saturating_add(FRAME_LEN);
        self.len = append(self.out, self.frame_start, moved);
    }

    /// Ends the current frame, if any.
    fn end_frame(&mut self) {
        if self.options.framing == Framing::None {
            return;
        }
        if self.frame_full > 0 {
            let len = self.len.saturating_sub(self.frame_start) as u64;
            put(
                self.out,
                self.frame_start.saturating_sub(8),
                len.to_le_bytes(),
            );
        }
        self.frame_start = self.len;
        self.frame_full = 0;
    }
}

/// Removes the redundant sign bytes at the end.
fn shortest(twos_complement: &[u8]) -> &[u8] {
    let mut bytes = twos_complement;
    while let [rest @ .., before, last] = bytes
        && matches!((*before < 0x80, *last), (true, 0) | (false, 0xff))
    {
        bytes = bytes.get(..rest.len().wrapping_add(1)).ensured();
    }
    bytes
}

/// The value of at most 8 bytes.
fn sign_extended(twos_complement: &[u8]) -> Option<i64> {
    let negative = twos_complement.last().is_some_and(|last| *last >= 0x80);
    let mut value = [if negative { 0xff } else { 0 }; 8];
    crate::measure::copy(value.get_mut(..twos_complement.len())?, twos_complement);
    Some(i64::from_le_bytes(value))
}

/// Checks that bytes are UTF-8 that may contain encoded surrogates. The error
/// is the length of the valid part.
fn check_string(string: &[u8]) -> Result<(), usize> {
    let mut rest = string;
    while let Err(error) = core::str::from_utf8(rest) {
        let (_, tail) = rest.split_at_checked(error.valid_up_to()).ensured();
        let [0xed, 0xa0..=0xbf, 0x80..=0xbf, after @ ..] = tail else {
            return Err(string.len().wrapping_sub(tail.len()));
        };
        rest = after;
    }
    Ok(())
}

/// Length of `PROTO` with its argument, in bytes.
const HEADER_LEN: usize = 2;

/// Items or entries per batch: `BATCHSIZE` of CPython.
const BATCH_COUNT: usize = 1000;

/// Length at which a frame is full: `FRAME_SIZE_TARGET` of CPython.
const FRAME_LEN: usize = 64 << 10;

/// Minimum length of a frame with a header: `FRAME_SIZE_MIN` of CPython.
const FRAME_LEN_MIN: usize = 4;
