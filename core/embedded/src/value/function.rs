//! The interface of functions: arguments, a result or an exception.

use core::fmt::Write as _;

use daskwire::invariant::OrDefaultIfBug as _;
use daskwire_pickle::{Writer as PickleWriter, WriterLevel};

use super::array::array_len;
use super::{ARRAY, BYTES, ElementType, FALSE, FLOAT, INT, MAX_DIMENSIONS, NONE, STR, TRUE, Value};
use crate::fixed_string::FixedString;
use crate::pickle_tree::TreeError;

/// The arguments of a function.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    pub(crate) values: &'a [Value<'a>],
}

impl<'a> Args<'a> {
    /// The number of arguments.
    pub const fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no arguments.
    pub const fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// All arguments.
    pub const fn values(&self) -> &'a [Value<'a>] {
        self.values
    }

    /// The arguments, if there are exactly `N`.
    ///
    /// # Errors
    ///
    /// A `TypeError`, as Python raises it for a wrong number of arguments.
    pub fn exactly<const N: usize>(&self) -> Result<&'a [Value<'a>; N], Failure> {
        let values = self.values.try_into();
        values
            .map_err(|_| Failure::type_error("the function takes a different number of arguments"))
    }

    /// The arguments as floats, if there are exactly `N` numbers.
    ///
    /// # Errors
    ///
    /// A `TypeError`.
    pub fn floats<const N: usize>(&self) -> Result<[f64; N], Failure> {
        let values = self.exactly::<N>()?;
        let mut floats = [0.0; N];
        for (place, value) in floats.iter_mut().zip(values) {
            let float = value.to_f64();
            *place = float.ok_or(Failure::type_error("the function takes numbers"))?;
        }
        Ok(floats)
    }
}

/// The result of a function. A second result replaces the first; without one
/// it is `None`.
#[derive(Debug)]
pub struct Out<'o> {
    buffer: &'o mut [u8],
    len: usize,
    /// The type of the value of an [`UNSUPPORTED_TYPE`].
    pub(crate) refused: TypeName,
}

/// The name of a type that is not supported. Empty if it is long.
pub(crate) type TypeName = FixedString<64>;

impl<'o> Out<'o> {
    pub(crate) fn new(buffer: &'o mut [u8]) -> Result<Self, Failure> {
        let mut out = Self {
            buffer,
            len: 0,
            refused: TypeName::new(),
        };
        out.none()?;
        Ok(out)
    }

    /// The length of the stored value.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns `None`.
    ///
    /// # Errors
    ///
    /// A `MemoryError` if the worker has no room; so do all methods here.
    pub fn none(&mut self) -> Result<(), Failure> {
        self.put(&[NONE], 0).map(drop)
    }

    /// Returns a `bool`.
    ///
    /// # Errors
    ///
    /// A `MemoryError`.
    pub fn bool(&mut self, value: bool) -> Result<(), Failure> {
        self.put(&[if value { TRUE } else { FALSE }], 0).map(drop)
    }

    /// Returns an `int`.
    ///
    /// # Errors
    ///
    /// A `MemoryError`.
    pub fn int(&mut self, value: i64) -> Result<(), Failure> {
        let space = self.put(&[INT], 8)?;
        crate::copy(space, &value.to_le_bytes());
        Ok(())
    }

    /// Returns a `float`.
    ///
    /// # Errors
    ///
    /// A `MemoryError`.
    pub fn float(&mut self, value: f64) -> Result<(), Failure> {
        let space = self.put(&[FLOAT], 8)?;
        crate::copy(space, &value.to_le_bytes());
        Ok(())
    }

    /// Returns a `str`, of at most [`MAX_STR`] bytes.
    ///
    /// # Errors
    ///
    /// A `MemoryError`.
    pub fn str(&mut self, string: &str) -> Result<(), Failure> {
        if string.len() > MAX_STR {
            return Err(NO_ROOM);
        }
        let space = self.put(&[STR], string.len())?;
        crate::copy(space, string.as_bytes());
        Ok(())
    }

    /// Returns `bytes`.
    ///
    /// # Errors
    ///
    /// A `MemoryError`.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let space = self.put(&[BYTES], bytes.len())?;
        crate::copy(space, bytes);
        Ok(())
    }

    /// Returns a numpy array, whose elements the caller writes to the bytes
    /// returned, in row-major order. They are not initialised.
    ///
    /// # Errors
    ///
    /// A `MemoryError`.
    pub fn array(
        &mut self,
        element_type: ElementType,
        shape: &[u32],
    ) -> Result<&mut [u8], Failure> {
        let len = array_len(element_type, shape).ok_or(NO_ROOM)?;
        let mut head = [0; 4 + 4 * MAX_DIMENSIONS];
        let count = u8::try_from(shape.len()).map_err(|_| NO_ROOM)?;
        let fixed = [ARRAY, element_type.kind, element_type.len, count];
        let lens = shape.iter().flat_map(|len| len.to_le_bytes());
        let mut head_len = 0_usize;
        for (place, byte) in head.iter_mut().zip(fixed.into_iter().chain(lens)) {
            *place = byte;
            head_len = head_len.wrapping_add(1);
        }
        self.put(head.get(..head_len).or_default_if_bug(), len)
    }

    /// Returns an array of one dimension with these elements, as `float64`.
    ///
    /// # Errors
    ///
    /// A `MemoryError`.
    pub fn floats(&mut self, values: impl ExactSizeIterator<Item = f64>) -> Result<(), Failure> {
        let count = u32::try_from(values.len()).map_err(|_| NO_ROOM)?;
        let space = self.array(ElementType::F64, &[count])?;
        for (place, value) in space.as_chunks_mut().0.iter_mut().zip(values) {
            *place = value.to_le_bytes();
        }
        Ok(())
    }

    /// The bytes of a result of [`bytes`](Self::bytes), to be changed in place;
    /// empty for other results.
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        match self.buffer.get_mut(..self.len).or_default_if_bug() {
            [BYTES, bytes @ ..] => bytes,
            _ => &mut [],
        }
    }

    /// Begins a value with its head; returns space for the rest of it.
    fn put(&mut self, head: &[u8], len: usize) -> Result<&mut [u8], Failure> {
        let end = head.len().checked_add(len).ok_or(NO_ROOM)?;
        let space = self.buffer.get_mut(..end).ok_or(NO_ROOM)?;
        self.len = end;
        crate::copy(space, head);
        Ok(space.get_mut(head.len()..).or_default_if_bug())
    }
}

/// The maximum length of a `str` that a function may return, in bytes.
pub const MAX_STR: usize = 200;

pub(crate) const NO_ROOM: Failure = Failure {
    class: "MemoryError",
    message: "the task or its result does not fit in the memory of the role: use larger constants for its Memory",
};

/// The failure for a value of a type that functions cannot take.
pub(crate) const UNSUPPORTED_TYPE: Failure =
    Failure::type_error("a value has a type that this worker does not support");

/// The maximum length of the message of a [`Failure`], in bytes. The rest of a
/// longer one is not sent.
pub const MAX_MESSAGE: usize = 160;

/// An exception for Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Failure {
    /// The class of the exception, one of Python's own.
    pub class: &'static str,
    /// The message, of which the first [`MAX_MESSAGE`] bytes are sent.
    pub message: &'static str,
}

impl Failure {
    /// A `TypeError`.
    pub const fn type_error(message: &'static str) -> Self {
        Self {
            class: "TypeError",
            message,
        }
    }

    /// A `ValueError`.
    pub const fn value_error(message: &'static str) -> Self {
        Self {
            class: "ValueError",
            message,
        }
    }

    /// The message, or the start of it.
    pub(crate) fn message(&self) -> &'static str {
        let mut end = self.message.len().min(MAX_MESSAGE);
        while !self.message.is_char_boundary(end) {
            end = end.saturating_sub(1);
        }
        self.message.get(..end).or_default_if_bug()
    }

    /// The message, with the type of the value that was refused.
    pub(crate) fn message_with(&self, refused: &TypeName) -> FixedString<{ MAX_MESSAGE + 66 }> {
        let mut message = FixedString::new();
        // Both fit.
        let _ = message.write_str(self.message());
        if *self == UNSUPPORTED_TYPE && !refused.is_empty() {
            let _ = message.write_str(": ");
            let _ = message.write_str(refused.as_str());
        }
        message
    }

    /// Writes the pickle of the exception with another message to `out`.
    pub(crate) fn pickle_with<'o>(&self, message: &str, out: &'o mut [u8]) -> &'o [u8] {
        let mut levels = [WriterLevel::EMPTY; 4];
        let mut writer = PickleWriter::new(out, &mut levels);
        writer.reduce().global("builtins", self.class);
        writer.tuple(1).str(message);
        writer.finish().unwrap_or_default()
    }
}

impl From<TreeError> for Failure {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::Malformed => {
                Self::type_error("this worker does not understand the pickle of the task")
            }
            TreeError::TooLarge => Self {
                class: "MemoryError",
                message: "the pickle of the task has more parts than this worker has room for",
            },
        }
    }
}
