//! What a pickle may leave out of its stream.

use core::fmt;

/// Whether a reader may change the memory that it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutability {
    /// It may not: in the stream it is `bytes`.
    ReadOnly,
    /// It may: in the stream it is a `bytearray`.
    Writable,
}

/// Where the bytes of a buffer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Into the stream: a copy.
    InBand,
    /// Not into the stream: whoever decided so hands them over beside it, in the
    /// order of the buffers.
    OutOfBand,
}

/// Memory that may travel beside a pickle: `pickle.PickleBuffer` of [PEP 574].
///
/// It is contiguous, in the order of C or of Fortran, because only such memory
/// can be handed over as it lies; [`with_strides`](Self::with_strides) refuses
/// any other.
///
/// [PEP 574]: https://peps.python.org/pep-0574/
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PickleBuffer<'a> {
    data: &'a [u8],
    mutability: Mutability,
}

/// Why memory is no [`PickleBuffer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PickleBufferError {
    /// The elements do not lie one after the other, neither in the order of C
    /// nor in that of Fortran.
    NotContiguous {
        /// The first axis, in the order of C, whose stride does not fit.
        axis: usize,
    },
    /// There are not as many strides as axes.
    StrideCount {
        /// How many axes the shape has.
        axes: usize,
        /// How many strides there are.
        strides: usize,
    },
    /// The elements are not as long as the memory.
    Length {
        /// Length of all elements, in bytes; `None` if no number is so large.
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
                "the buffer has {available} bytes and its shape takes more than there can be"
            ),
        }
    }
}

impl core::error::Error for PickleBufferError {}

impl<'a> PickleBuffer<'a> {
    /// Bytes that lie one after the other.
    #[inline]
    pub const fn new(data: &'a [u8], mutability: Mutability) -> Self {
        Self { data, mutability }
    }

    /// An array: `shape` counts the elements along each axis, `strides` the bytes
    /// from one to the next, and an element has `item_len` bytes. `data` is all
    /// of its memory.
    ///
    /// ```
    /// use daskwire_pickle::{Mutability, PickleBuffer, PickleBufferError};
    ///
    /// let data = [0; 24];
    /// let of = |strides: &[isize]| {
    ///     PickleBuffer::with_strides(&data, Mutability::Writable, 4, &[2, 3], strides)
    /// };
    /// assert!(of(&[12, 4]).is_ok()); // as C has it
    /// assert!(of(&[4, 8]).is_ok()); // as Fortran has it
    /// assert_eq!(of(&[24, 8]), Err(PickleBufferError::NotContiguous { axis: 1 }));
    /// ```
    ///
    /// # Errors
    ///
    /// * [`PickleBufferError::NotContiguous`], as `pickle.dumps` refuses it;
    /// * [`PickleBufferError::StrideCount`] or [`PickleBufferError::Length`] if
    ///   the description contradicts itself or `data`.
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
        // Without elements there is nothing to be apart.
        if item_len == 0 || shape.contains(&0) {
            return Self::of_length(data, mutability, Some(0));
        }
        let axes = || shape.iter().copied().zip(strides.iter().copied());
        let described = shape
            .iter()
            .try_fold(item_len, |len, count| len.checked_mul(*count));
        let described = Self::of_length(data, mutability, described)?;
        let c = first_apart(axes().rev(), item_len);
        if c.is_some() && first_apart(axes(), item_len).is_some() {
            let from_the_last = c.unwrap_or_default();
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

    /// Its bytes.
    #[inline]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.data
    }

    /// Whether a reader may change it.
    #[inline]
    pub const fn mutability(&self) -> Mutability {
        self.mutability
    }
}

/// The first of the axes, from the one whose elements are closest together, that
/// is not as far apart as the ones before fill. An axis of one element has no
/// distance.
fn first_apart(mut axes: impl Iterator<Item = (usize, isize)>, item_len: usize) -> Option<usize> {
    let mut filled = item_len;
    axes.position(|(count, stride)| {
        let apart = count > 1 && usize::try_from(stride) != Ok(filled);
        filled = filled.saturating_mul(count);
        apart
    })
}
