//! Memory that a pickle can contain in band or out of band.

use core::fmt;

/// Whether a reader may change the memory that it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutability {
    /// The reader may not change it: in band it is `bytes`.
    ReadOnly,
    /// The reader may change it: in band it is a `bytearray`.
    Writable,
}

/// Whether a buffer is written in band.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// The bytes are copied into the stream.
    InBand,
    /// The caller transfers the bytes separately from the stream, in the order
    /// of the buffers.
    OutOfBand,
}

/// Contiguous memory that can be transferred out of band: `pickle.PickleBuffer`
/// of [PEP 574].
///
/// Only memory that is contiguous in C or Fortran order can be transferred
/// without a copy; [`with_strides`](Self::with_strides) refuses any other.
///
/// [PEP 574]: https://peps.python.org/pep-0574/
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PickleBuffer<'a> {
    data: &'a [u8],
    mutability: Mutability,
}

/// The error of [`PickleBuffer::with_strides`], a fault of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PickleBufferError {
    /// The elements are contiguous neither in C order nor in Fortran order.
    NotContiguous {
        /// The first axis, in C order, with a wrong stride.
        axis: usize,
    },
    /// The number of strides differs from the number of axes.
    StrideCount {
        /// The number of axes of the shape.
        axes: usize,
        /// The number of strides.
        strides: usize,
    },
    /// The length of the elements differs from the length of the memory.
    Length {
        /// Length of all elements, in bytes; `None` if it overflows.
        described: Option<usize>,
        /// Length of the memory, in bytes.
        available: usize,
    },
}

impl fmt::Display for PickleBufferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotContiguous { axis } => write!(
                f,
                "the buffer is not contiguous: the stride of axis {axis} leaves gaps or repeats; \
                 copy it first"
            ),
            Self::StrideCount { axes, strides } => {
                write!(f, "the buffer has {axes} axes and {strides} strides")
            }
            Self::Length {
                described: Some(described),
                available,
            } => write!(
                f,
                "the buffer has {available} bytes and its shape takes {described}"
            ),
            Self::Length {
                described: None,
                available,
            } => write!(
                f,
                "the buffer has {available} bytes and the length of its shape overflows"
            ),
        }
    }
}

impl core::error::Error for PickleBufferError {}

impl<'a> PickleBuffer<'a> {
    /// Creates a buffer of plain bytes.
    #[inline]
    pub const fn new(data: &'a [u8], mutability: Mutability) -> Self {
        Self { data, mutability }
    }

    /// Creates a buffer of an array: `shape` is the number of elements along
    /// each axis, `strides` the distance between them in bytes, and `item_len`
    /// the length of an element in bytes. `data` is the whole memory of the
    /// array.
    ///
    /// ```
    /// use daskwire_pickle::{Mutability, PickleBuffer, PickleBufferError};
    ///
    /// let data = [0; 24];
    /// let of = |strides: &[isize]| {
    ///     PickleBuffer::with_strides(&data, Mutability::Writable, 4, &[2, 3], strides)
    /// };
    /// assert!(of(&[12, 4]).is_ok()); // C order
    /// assert!(of(&[4, 8]).is_ok()); // Fortran order
    /// assert_eq!(of(&[24, 8]), Err(PickleBufferError::NotContiguous { axis: 1 }));
    /// ```
    ///
    /// # Errors
    ///
    /// * [`PickleBufferError::NotContiguous`], which `pickle.dumps` refuses
    ///   too;
    /// * [`PickleBufferError::StrideCount`] or [`PickleBufferError::Length`] if
    ///   the arguments contradict each other.
    pub fn with_strides(
        data: &'a [u8],
        mutability: Mutability,
        item_len: usize,
        shape: &[usize],
        strides: &[isize],
    ) -> Result<Self, PickleBufferError> {
        if shape.len() != strides.len() {
            return Err(PickleBufferError::StrideCount {
                axes: shape.len(),
                strides: strides.len(),
            });
        }
        // An empty array is contiguous with any strides.
        if item_len == 0 || shape.contains(&0) {
            return Self::of_length(data, mutability, Some(0));
        }
        let axes = || shape.iter().copied().zip(strides.iter().copied());
        let described = shape
            .iter()
            .try_fold(item_len, |len, count| len.checked_mul(*count));
        let described = Self::of_length(data, mutability, described)?;
        let c = first_apart(axes().rev(), item_len);
        if let Some(from_the_last) = c
            && first_apart(axes(), item_len).is_some()
        {
            return Err(PickleBufferError::NotContiguous {
                axis: shape.len().saturating_sub(1).saturating_sub(from_the_last),
            });
        }
        Ok(described)
    }

    const fn of_length(
        data: &'a [u8],
        mutability: Mutability,
        described: Option<usize>,
    ) -> Result<Self, PickleBufferError> {
        match described {
            Some(len) if len == data.len() => Ok(Self { data, mutability }),
            _ => Err(PickleBufferError::Length {
                described,
                available: data.len(),
            }),
        }
    }

    /// The bytes of the buffer.
    #[inline]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.data
    }

    /// Whether a reader may change the memory.
    #[inline]
    pub const fn mutability(&self) -> Mutability {
        self.mutability
    }
}

/// The first axis whose stride differs from the length of the axes before it.
/// `axes` begins with the fastest-varying axis. The stride of an axis with one
/// element is ignored.
fn first_apart(mut axes: impl Iterator<Item = (usize, isize)>, item_len: usize) -> Option<usize> {
    let mut filled = item_len;
    axes.position(|(count, stride)| {
        let apart = count > 1 && usize::try_from(stride) != Ok(filled);
        filled = filled.saturating_mul(count);
        apart
    })
}
