//! The measuring writer.

mod error;
mod framing;
mod levels;
mod values;

use crate::{BufferTooSmall, Opcode};
use daskwire_compression::measure::append;

pub use error::WriteError;

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
/// use daskwire_pickle::{WriteError, Writer, WriterLevel};
///
/// let (mut buffer, mut levels) = ([0; 64], [WriterLevel::EMPTY; 4]);
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
/// # use daskwire_pickle::{WriteError, Writer, WriterLevel};
/// # let (mut buffer, mut levels) = ([0; 64], [WriterLevel::EMPTY; 4]);
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
/// # use daskwire_pickle::{WriteError, Writer, WriterLevel};
/// # let (mut buffer, mut levels) = ([0; 64], [WriterLevel::EMPTY; 4]);
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
/// # use daskwire_pickle::{WriteError, Writer, WriterLevel};
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
    level: WriterLevel,
    /// The open values around it.
    levels: &'l mut [WriterLevel],
    depth: usize,
    memo_count: u32,
    /// Whether the value on top of the reader's stack can be memoized.
    can_memoize: bool,
    options: WriterOptions,
    /// The first error.
    error: Option<WriteError>,
}

/// Options of a [`Writer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterOptions {
    /// The version of the pickle protocol.
    pub protocol: Protocol,
    /// Whether the pickle is divided into frames.
    pub framing: Framing,
}

impl WriterOptions {
    /// Creates options with the newest protocol and with frames.
    pub const fn new() -> Self {
        Self {
            protocol: Protocol::V5,
            framing: Framing::Frames,
        }
    }

    with_fields! {
        with_protocol(protocol: Protocol);
        with_framing(framing: Framing);
    }
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
pub struct WriterLevel {
    /// Values left in the current batch.
    left: usize,
    /// Values after that batch.
    rest: usize,
    kind: Kind,
    batch: Batch,
}

impl WriterLevel {
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
    Fixed(Opcode),
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

impl<'b, 'l> Writer<'b, 'l> {
    /// Creates a writer to `out`, with protocol 5 and frames. With an empty
    /// buffer it measures.
    ///
    /// `levels` limits the number of values open at a time: 1 is enough for a
    /// list of numbers, 2 for a list of tuples of numbers.
    #[inline]
    pub fn new(out: &'b mut [u8], levels: &'l mut [WriterLevel]) -> Self {
        Self::with_options(out, levels, WriterOptions::default())
    }

    /// Creates a writer to `out` with options.
    pub fn with_options(
        out: &'b mut [u8],
        levels: &'l mut [WriterLevel],
        options: WriterOptions,
    ) -> Self {
        let protocol = options.protocol.number();
        let len = append(out, 0, &[Opcode::Proto.byte(), protocol]);
        Self {
            out,
            len,
            frame_full: match options.framing {
                Framing::Frames => 0,
                Framing::None => usize::MAX,
            },
            frame_start: len,
            level: WriterLevel::new(Kind::Root, 1, 0),
            levels,
            depth: 0,
            memo_count: 0,
            can_memoize: false,
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
    pub fn end_complete(&mut self) -> &mut Self {
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
        if !self.can_memoize {
            self.fail(WriteError::NothingToMemoize { at: self.len });
        }
        match index.checked_add(1) {
            Some(count) => self.memo_count = count,
            None => self.fail(WriteError::MemoFull { at: self.len }),
        }
        self.can_memoize = false;
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

    fn stop(&mut self) -> Result<(), WriteError> {
        self.end_complete();
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
}

/// Length of `PROTO` with its argument, in bytes.
const HEADER_LEN: usize = 2;
