//! Reading of pickles with out-of-band buffers.

use super::{Argument, Opcode, PickleError, PickleErrorKind, Reader, Token};

/// Reader for a pickle and its out-of-band buffers ([PEP 574]).
///
/// Each NEXT_BUFFER takes the next buffer; at STOP, none may be left. Data in
/// band and out of band are returned in the same way, see [`Item::data`].
/// Nothing is copied.
///
/// In a payload of Dask the pickle is the first frame and the buffers are the
/// others.
///
/// # Read-only buffers
///
/// READONLY_BUFFER makes the value on top of the stack read-only. CPython
/// writes it directly after the NEXT_BUFFER that it applies to, where it sets
/// [`Data::read_only`] of that item. A pickle can have it elsewhere:
///
/// * directly after a `bytearray` or `bytes` object in the stream: the same;
/// * directly after a value that is not a buffer, or on an empty stack:
///   [`PickleErrorKind::NoBuffer`];
/// * after an opcode whose result depends on values that this reader does not
///   build, such as BINGET or REDUCE, or after MEMOIZE (the memo keeps the
///   buffer unchanged): the item has no data, and the caller that builds the
///   values applies it.
///
/// ```
/// use daskwire_pickle::{OutOfBandReader, Reader};
///
/// // pickle.dumps([PickleBuffer(b"out"), bytearray(b"in")], 5, buffer_callback=...)
/// let pickle = b"\x80\x05](\x97\x98\x96\x02\0\0\0\0\0\0\0ine.";
/// let frames = [b"out"];
/// let mut items = OutOfBandReader::new(Reader::new(pickle), &frames);
/// let mut found = Vec::new();
/// while let Some(item) = items.next_item()? {
///     if let Some(data) = item.data {
///         found.push((data.bytes, data.read_only, data.buffer));
///     }
/// }
/// assert_eq!(found, [(&b"out"[..], true, Some(0)), (b"in", false, None)]);
/// # Ok::<(), daskwire_pickle::PickleError>(())
/// ```
///
/// [PEP 574]: https://peps.python.org/pep-0574/
#[derive(Debug)]
pub struct OutOfBandReader<'p, T> {
    reader: Reader<'p>,
    buffers: &'p [T],
    used_count: usize,
    top: Top,
}

/// The known properties of the value on top of the stack.
#[derive(Clone, Copy, Debug)]
enum Top {
    Buffer,
    NoBuffer,
    Unknown,
}

/// One opcode and its data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item<'p> {
    /// The opcode with its argument.
    pub token: Token<'p>,
    /// The data of a `bytes` or `bytearray` object, or of a buffer; `None` for
    /// all other opcodes.
    pub data: Option<Data<'p>>,
}

/// In-band or out-of-band data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data<'p> {
    /// The bytes, borrowed from the pickle or from the buffer.
    pub bytes: &'p [u8],
    /// Whether the object is read-only: a `bytes` object, or one directly
    /// before READONLY_BUFFER.
    pub read_only: bool,
    /// Index of the buffer; `None` for in-band data.
    pub buffer: Option<usize>,
}

impl<T> Clone for OutOfBandReader<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for OutOfBandReader<'_, T> {}

impl<'p, T: AsRef<[u8]>> OutOfBandReader<'p, T> {
    /// Creates a reader that continues with `reader` and takes `buffers` in
    /// order.
    pub const fn new(reader: Reader<'p>, buffers: &'p [T]) -> Self {
        Self {
            reader,
            buffers,
            used_count: 0,
            top: Top::NoBuffer,
        }
    }

    /// The underlying reader, for its position and the trailing bytes.
    pub const fn reader(&self) -> &Reader<'p> {
        &self.reader
    }

    /// The number of buffers used so far.
    pub const fn used_count(&self) -> usize {
        self.used_count
    }

    /// Reads the next opcode, `None` after STOP.
    ///
    /// After an error the position is unchanged, and the next call returns the
    /// same error.
    ///
    /// # Errors
    ///
    /// * as [`Reader::next_token`];
    /// * [`PickleErrorKind::TooFewBuffers`] at a NEXT_BUFFER without a buffer
    ///   left;
    /// * [`PickleErrorKind::TooManyBuffers`] at STOP with buffers left;
    /// * [`PickleErrorKind::NoBuffer`] at a READONLY_BUFFER without a buffer.
    pub fn next_item(&mut self) -> Result<Option<Item<'p>>, PickleError> {
        let mut reader = self.reader;
        let Some(token) = reader.next_token()? else {
            return Ok(None);
        };
        let error = |kind| PickleError {
            offset: token.offset,
            kind,
        };
        let is_made_read_only = reader.remaining().first() == Some(&Opcode::ReadOnlyBuffer.byte());
        let in_band = |bytes, read_only| Data {
            bytes,
            read_only,
            buffer: None,
        };
        let data = match (token.opcode, token.argument) {
            (_, Argument::Bytes(bytes)) => Some(in_band(bytes, true)),
            (_, Argument::ByteArray(bytes)) => Some(in_band(bytes, is_made_read_only)),
            (Opcode::NextBuffer, _) => {
                let buffer = self.buffers.get(self.used_count);
                let buffer = buffer.ok_or(error(PickleErrorKind::TooFewBuffers {
                    buffer_count: self.buffers.len(),
                }))?;
                Some(Data {
                    bytes: buffer.as_ref(),
                    read_only: is_made_read_only,
                    buffer: Some(self.used_count),
                })
            }
            (Opcode::ReadOnlyBuffer, _) if matches!(self.top, Top::NoBuffer) => {
                return Err(error(PickleErrorKind::NoBuffer));
            }
            (Opcode::Stop, _) if self.used_count < self.buffers.len() => {
                return Err(error(PickleErrorKind::TooManyBuffers {
                    used_count: self.used_count,
                    buffer_count: self.buffers.len(),
                }));
            }
            _ => None,
        };
        self.top = self.top.after(token.opcode);
        if matches!(token.opcode, Opcode::NextBuffer) {
            self.used_count = self.used_count.saturating_add(1);
        }
        self.reader = reader;
        Ok(Some(Item { token, data }))
    }
}

impl Top {
    const fn after(self, opcode: Opcode) -> Self {
        match opcode {
            Opcode::NextBuffer
            | Opcode::ReadOnlyBuffer
            | Opcode::BinBytes
            | Opcode::ShortBinBytes
            | Opcode::BinBytes8
            | Opcode::ByteArray8 => Self::Buffer,
            // These leave the stack as it is.
            Opcode::Proto
            | Opcode::Frame
            | Opcode::Memoize
            | Opcode::Put
            | Opcode::BinPut
            | Opcode::LongBinPut => self,
            // The top is an older value of the stack or the memo, or the result
            // of a name, an id or a call: any value.
            Opcode::Pop
            | Opcode::PopMark
            | Opcode::Dup
            | Opcode::Get
            | Opcode::BinGet
            | Opcode::LongBinGet
            | Opcode::Ext1
            | Opcode::Ext2
            | Opcode::Ext4
            | Opcode::Global
            | Opcode::StackGlobal
            | Opcode::Reduce
            | Opcode::Build
            | Opcode::Inst
            | Opcode::Obj
            | Opcode::NewObj
            | Opcode::NewObjEx
            | Opcode::PersId
            | Opcode::BinPersId
            // Objects of any class can have these methods, and with
            // `encoding="bytes"` a `str` of Python 2 is loaded as `bytes`.
            | Opcode::Append
            | Opcode::Appends
            | Opcode::SetItem
            | Opcode::SetItems
            | Opcode::AddItems
            | Opcode::String
            | Opcode::BinString
            | Opcode::ShortBinString => Self::Unknown,
            Opcode::Int
            | Opcode::BinInt
            | Opcode::BinInt1
            | Opcode::BinInt2
            | Opcode::Long
            | Opcode::Long1
            | Opcode::Long4
            | Opcode::None
            | Opcode::NewTrue
            | Opcode::NewFalse
            | Opcode::Unicode
            | Opcode::ShortBinUnicode
            | Opcode::BinUnicode
            | Opcode::BinUnicode8
            | Opcode::Float
            | Opcode::BinFloat
            | Opcode::EmptyList
            | Opcode::List
            | Opcode::EmptyTuple
            | Opcode::Tuple
            | Opcode::Tuple1
            | Opcode::Tuple2
            | Opcode::Tuple3
            | Opcode::EmptyDict
            | Opcode::Dict
            | Opcode::EmptySet
            | Opcode::FrozenSet
            | Opcode::Mark
            | Opcode::Stop => Self::NoBuffer,
        }
    }
}
