//! Out-of-band buffers.

use super::{Argument, Opcode, PickleError, PickleErrorKind, Reader, Token};

/// Reads a pickle together with its out-of-band buffers ([PEP 574]).
///
/// Each NEXT_BUFFER takes the next of the buffers; when STOP is read, none may
/// be left. Data that lies in the pickle and data that came beside it look
/// alike, see [`Item::data`]. Nothing is copied.
///
/// In a payload of Dask the pickle is the first frame and the buffers are the
/// others.
///
/// # Read-only buffers
///
/// READONLY_BUFFER makes whatever is on top of the stack read-only. CPython
/// writes it right behind the NEXT_BUFFER that it is about, and there it is
/// seen in [`Data::read_only`] of that item. A pickle may have it elsewhere:
///
/// * right behind a `bytearray` or `bytes` object in the stream: the same;
/// * where a value that is no buffer has just been pushed, or nothing has:
///   [`PickleErrorKind::NoBuffer`];
/// * where it depends on values that would have to be built, such as behind
///   BINGET or REDUCE, or behind MEMOIZE (the memo keeps the buffer as it was):
///   the item has no data, and it is up to whoever builds values to apply it.
///
/// ```
/// use daskwire_pickle::{Buffers, Reader};
///
/// // pickle.dumps([PickleBuffer(b"out"), bytearray(b"in")], 5, buffer_callback=...)
/// let pickle = b"\x80\x05](\x97\x98\x96\x02\0\0\0\0\0\0\0ine.";
/// let frames = [b"out"];
/// let mut items = Buffers::new(Reader::new(pickle), &frames);
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
pub struct Buffers<'p, T> {
    reader: Reader<'p>,
    buffers: &'p [T],
    used_count: usize,
    top: Top,
}

/// What is known of the top of the stack.
#[derive(Clone, Copy, Debug)]
enum Top {
    Buffer,
    NoBuffer,
    Unknown,
}

/// One opcode, and the data that it brings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item<'p> {
    /// The opcode with its argument.
    pub token: Token<'p>,
    /// The data of a `bytes` or `bytearray` object, or of a buffer; `None` for
    /// all other opcodes.
    pub data: Option<Data<'p>>,
}

/// Data in the pickle or beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data<'p> {
    /// The bytes where they lie: in the pickle, or in the buffer.
    pub bytes: &'p [u8],
    /// Whether the object is read-only: a `bytes` object, or made so by
    /// READONLY_BUFFER right behind it.
    pub read_only: bool,
    /// Which buffer it is, from 0; `None` if the data lies in the pickle.
    pub buffer: Option<usize>,
}

impl<T> Clone for Buffers<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Buffers<'_, T> {}

impl<'p, T: AsRef<[u8]>> Buffers<'p, T> {
    /// Reads on with `reader`, taking `buffers` in order.
    pub const fn new(reader: Reader<'p>, buffers: &'p [T]) -> Self {
        Self {
            reader,
            buffers,
            used_count: 0,
            top: Top::NoBuffer,
        }
    }

    /// The reader, for its position and what it left.
    pub const fn reader(&self) -> &Reader<'p> {
        &self.reader
    }

    /// How many buffers have been taken.
    pub const fn used_count(&self) -> usize {
        self.used_count
    }

    /// Reads the next opcode, `None` after STOP.
    ///
    /// When it fails, nothing has moved, and it fails again.
    ///
    /// # Errors
    ///
    /// * what [`Reader::next_token`] says;
    /// * [`PickleErrorKind::TooFewBuffers`] at a NEXT_BUFFER that finds none;
    /// * [`PickleErrorKind::TooManyBuffers`] at STOP if some are left;
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
            // The top may be anything that was there or in the memo before, or
            // that a name or an id stands for, or that a call returns.
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
            // Objects of any kind can have these methods; and a `str` of
            // Python 2 is loaded as `bytes` by `encoding="bytes"`.
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
