//! The shape and strides of an array.

use core::fmt;
use daskwire::invariant::OrDefaultIfBug;

/// The maximum number of dimensions, as in numpy 2; 32 before.
pub const MAX_DIMENSIONS: usize = 64;

/// The order of contiguous elements in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// C order: the last dimension varies fastest.
    C,
    /// Fortran order: the first dimension varies fastest.
    Fortran,
}

/// The number of elements of an array along each dimension, and their distance.
///
/// Element `(i, j, …)` begins at byte `i * strides[0] + j * strides[1] + …`. A
/// stride of 0 repeats one element, as in `numpy.broadcast_to`. Strides are
/// never negative, since the first element of an array that was sent is at the
/// start of its bytes. Strides that lead to no element may be negative in numpy;
/// here they have no sign.
///
/// There are at most `MAX` dimensions. Each takes two `usize` of memory, used or not,
/// and twice that while an array is read. Default: [`MAX_DIMENSIONS`], which is
/// enough for all numpy arrays. Where memory is short, choose fewer:
/// `PayloadValue::<_, 4>::read_sized` and the arrays that it returns have at most
/// four, and arrays with more are errors.
///
/// ```
/// use daskwire_numpy::{Dimensions, DimensionsError, Order};
///
/// let small = Dimensions::<2>::sized(&[2, 3], Order::C, 8)?;
/// assert_eq!(small.strides(), [24, 8]);
/// let error = Dimensions::<2>::sized(&[2, 3, 4], Order::C, 8);
/// assert_eq!(error, Err(DimensionsError::TooMany { count: 3, limit: 2 }));
/// assert!(size_of::<Dimensions<2>>() < 64 && size_of::<Dimensions>() > 512);
/// # Ok::<(), DimensionsError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Dimensions<const MAX: usize = MAX_DIMENSIONS> {
    count: usize,
    shape: [usize; MAX],
    strides: [usize; MAX],
}

/// A fault in a shape or in strides: of the caller who passed them, or of the peer in
/// the [`NumpyError`](crate::NumpyError) of a payload, where
/// [`is_caller_fault`](crate::NumpyError::is_caller_fault) distinguishes the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DimensionsError {
    /// There are more dimensions than [`Dimensions`] can store.
    TooMany {
        /// The number of dimensions.
        count: usize,
        /// The maximum, by default [`MAX_DIMENSIONS`].
        limit: usize,
    },
    /// The numbers of dimensions of a shape and of its strides or its broadcast
    /// shape differ.
    CountsDiffer {
        /// The number of dimensions of the shape.
        shape: usize,
        /// The other number of dimensions.
        other: usize,
    },
    /// The shapes of an array and its mask differ.
    ShapesDiffer,
    /// The stride of a dimension of more than one element is negative.
    NegativeStride {
        /// Index of the dimension.
        axis: usize,
        /// The stride, in bytes.
        stride: i64,
    },
    /// A repeated dimension does not have one element with a stride of 0.
    NotBroadcast {
        /// Index of the dimension.
        axis: usize,
        /// The number of elements stored along it.
        stored: usize,
        /// The number of elements in the broadcast shape.
        wanted: usize,
    },
    /// The number of elements or bytes overflows.
    TooLarge,
    /// The length of the elements differs from the length of the bytes.
    LengthDiffers {
        /// The length of the elements, in bytes.
        needed: usize,
        /// The number of bytes available.
        available: usize,
    },
    /// The strides lead to elements beyond the end of the bytes.
    OutOfBounds {
        /// The end of the last element, in bytes.
        needed: usize,
        /// The number of bytes available.
        available: usize,
    },
    /// The elements are not contiguous in either order.
    NotContiguous,
    /// A `memoryview` of several dimensions has no elements, which Dask refuses.
    NoElements,
    /// The array repeats few bytes so often that a copy of its elements would
    /// take far more memory than the array.
    Repetitive {
        /// The number of elements, without dimensions after an empty one.
        count: usize,
        /// The maximum number for an array of this length.
        limit: usize,
    },
}

impl fmt::Display for DimensionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooMany { count, limit } => write!(
                f,
                "the array has {count} dimensions; the maximum is {limit}"
            ),
            Self::CountsDiffer { shape, other } => write!(
                f,
                "the shape has {shape} dimensions, its counterpart has {other}"
            ),
            Self::ShapesDiffer => f.write_str("the mask has another shape than the array"),
            Self::NegativeStride { axis, stride } => write!(
                f,
                "the stride of dimension {axis} is {stride}; expected 0 or more"
            ),
            Self::NotBroadcast {
                axis,
                stored,
                wanted,
            } => write!(
                f,
                "dimension {axis} has {stored} elements and cannot be broadcast to {wanted}; \
                 expected one element and a stride of 0"
            ),
            Self::TooLarge => f.write_str("the length of the array overflows"),
            Self::LengthDiffers { needed, available } => write!(
                f,
                "the elements take {needed} bytes, {available} are available"
            ),
            Self::OutOfBounds { needed, available } => write!(
                f,
                "the strides lead to byte {needed}, {available} bytes are available"
            ),
            Self::NotContiguous => {
                f.write_str("the elements are not contiguous; copy them to C order first")
            }
            Self::NoElements => {
                f.write_str("Dask refuses memoryviews of several dimensions without elements")
            }
            Self::Repetitive { count, limit } => write!(
                f,
                "the array repeats its bytes for {count} elements; it is copied up to {limit}"
            ),
        }
    }
}

impl core::error::Error for DimensionsError {}

impl Dimensions {
    /// Creates the dimensions of contiguous elements of `item_len` bytes in
    /// `order`.
    ///
    /// If a dimension is empty, all strides are 0, as in numpy.
    ///
    /// # Errors
    ///
    /// [`DimensionsError::TooMany`] and [`DimensionsError::TooLarge`].
    pub fn contiguous(
        shape: &[usize],
        order: Order,
        item_len: usize,
    ) -> Result<Self, DimensionsError> {
        Self::sized(shape, order, item_len)
    }

    /// Creates dimensions with these strides.
    ///
    /// # Errors
    ///
    /// [`DimensionsError::TooMany`], [`DimensionsError::CountsDiffer`] and
    /// [`DimensionsError::NegativeStride`].
    pub fn with_strides(shape: &[usize], strides: &[isize]) -> Result<Self, DimensionsError> {
        Self::sized_with_strides(shape, strides)
    }
}

impl<const MAX: usize> Dimensions<MAX> {
    /// No dimensions: one element.
    pub const SCALAR: Self = Self {
        count: 0,
        shape: [0; MAX],
        strides: [0; MAX],
    };

    /// Like [`contiguous`](Dimensions::contiguous), for any `MAX`.
    ///
    /// # Errors
    ///
    /// As [`contiguous`](Dimensions::contiguous).
    pub fn sized(shape: &[usize], order: Order, item_len: usize) -> Result<Self, DimensionsError> {
        let mut dimensions = Self::of_shape(shape)?;
        let mut stride = item_len;
        dimensions.len(item_len)?;
        if shape.contains(&0) {
            return Ok(dimensions);
        }
        let places = dimensions.strides.iter_mut().zip(shape);
        let fill = |(place, count): (&mut usize, &usize)| {
            *place = stride;
            // Cannot overflow: the total length has been checked.
            stride = stride.saturating_mul(*count);
        };
        match order {
            Order::C => places.rev().for_each(fill),
            Order::Fortran => places.for_each(fill),
        }
        Ok(dimensions)
    }

    /// Like [`with_strides`](Dimensions::with_strides), for any `MAX`.
    ///
    /// # Errors
    ///
    /// As [`with_strides`](Dimensions::with_strides).
    pub fn sized_with_strides(shape: &[usize], strides: &[isize]) -> Result<Self, DimensionsError> {
        let mut dimensions = Self::of_shape(shape)?;
        if shape.len() != strides.len() {
            return Err(DimensionsError::CountsDiffer {
                shape: shape.len(),
                other: strides.len(),
            });
        }
        let stored = dimensions;
        let places = dimensions.strides.iter_mut().zip(strides);
        for (axis, (place, &stride)) in places.enumerate() {
            *place = stored.distance(axis, stride as i64)?;
        }
        Ok(dimensions)
    }

    /// The stride of a dimension as a distance. numpy ignores strides that lead
    /// to no element, in which slices leave any sign (PROTOCOL TYPED-3).
    pub(crate) fn distance(&self, axis: usize, stride: i64) -> Result<usize, DimensionsError> {
        let is_used = self.shape().get(axis) > Some(&1) && !self.shape().contains(&0);
        if is_used && stride < 0 {
            return Err(DimensionsError::NegativeStride { axis, stride });
        }
        usize::try_from(stride.saturating_abs()).map_err(|_| DimensionsError::TooLarge)
    }

    fn of_shape(shape: &[usize]) -> Result<Self, DimensionsError> {
        let mut dimensions = Self::SCALAR;
        let places = dimensions.shape.get_mut(..shape.len());
        let (count, limit) = (shape.len(), MAX);
        let places = places.ok_or(DimensionsError::TooMany { count, limit })?;
        for (place, extent) in places.iter_mut().zip(shape) {
            *place = *extent;
        }
        dimensions.count = shape.len();
        Ok(dimensions)
    }

    /// Adds a dimension, for parsers of lists.
    pub(crate) fn push(&mut self, count: usize, stride: usize) -> Result<(), DimensionsError> {
        let next = self.count.saturating_add(1);
        let error = DimensionsError::TooMany {
            count: next,
            limit: MAX,
        };
        *self.shape.get_mut(self.count).ok_or(error)? = count;
        *self.strides.get_mut(self.count).ok_or(error)? = stride;
        self.count = next;
        Ok(())
    }

    /// Broadcasts to `shape`, by repeating dimensions of one element with a
    /// stride of 0 (PROTOCOL TYPED-4).
    ///
    /// # Errors
    ///
    /// [`DimensionsError::CountsDiffer`] and [`DimensionsError::NotBroadcast`].
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Self, DimensionsError> {
        if self.count != shape.len() {
            return Err(DimensionsError::CountsDiffer {
                shape: self.count,
                other: shape.len(),
            });
        }
        for (axis, (stored, wanted)) in self.shape().iter().zip(shape).enumerate() {
            let repeats = *stored == 1 && self.strides().get(axis) == Some(&0);
            if stored != wanted && !repeats {
                return Err(DimensionsError::NotBroadcast {
                    axis,
                    stored: *stored,
                    wanted: *wanted,
                });
            }
        }
        let mut dimensions = Self::of_shape(shape)?;
        dimensions.strides = self.strides;
        Ok(dimensions)
    }

    /// The stored part of a broadcast array: one element along each dimension
    /// with a stride of 0.
    pub(super) fn stored(&self) -> Self {
        let mut stored = *self;
        for (count, stride) in stored.shape.iter_mut().zip(self.strides()) {
            if *stride == 0 {
                *count = (*count).min(1);
            }
        }
        stored
    }

    /// The number of elements along each dimension.
    pub fn shape(&self) -> &[usize] {
        self.shape.get(..self.count).or_default_if_bug()
    }

    /// The distance of elements along each dimension, in bytes.
    pub fn strides(&self) -> &[usize] {
        self.strides.get(..self.count).or_default_if_bug()
    }

    /// The total number of elements; `None` if it overflows.
    pub fn item_count(&self) -> Option<usize> {
        if self.shape().contains(&0) {
            return Some(0);
        }
        self.shape()
            .iter()
            .try_fold(1_usize, |product, count| product.checked_mul(*count))
    }

    /// The length of all elements, in bytes.
    pub(crate) fn len(&self, item_len: usize) -> Result<usize, DimensionsError> {
        self.item_count()
            .and_then(|count| count.checked_mul(item_len))
            .filter(|len| isize::try_from(*len).is_ok())
            .ok_or(DimensionsError::TooLarge)
    }

    /// The end of the last element in memory, in bytes; 0 if there are no
    /// elements.
    pub(super) fn end(&self, item_len: usize) -> Result<usize, DimensionsError> {
        if self.shape().contains(&0) {
            return Ok(0);
        }
        self.shape()
            .iter()
            .zip(self.strides())
            .try_fold(item_len, |end, (count, stride)| {
                let steps = count.saturating_sub(1);
                end.checked_add(steps.checked_mul(*stride)?)
            })
            .ok_or(DimensionsError::TooLarge)
    }

    /// Whether an element is repeated along some dimension.
    pub fn is_broadcast(&self) -> bool {
        let mut axes = self.shape().iter().zip(self.strides());
        axes.any(|(count, stride)| *count > 1 && *stride == 0)
    }

    /// Whether elements of `item_len` bytes are contiguous in `order`. An array
    /// of one dimension is contiguous in both.
    pub fn is_contiguous(&self, order: Order, item_len: usize) -> bool {
        if self.shape().contains(&0) {
            return true;
        }
        let mut filled = item_len;
        let axes = self.shape().iter().zip(self.strides());
        let mut fits = |(count, stride): (&usize, &usize)| {
            let fits = *count == 1 || *stride == filled;
            filled = filled.saturating_mul(*count);
            fits
        };
        match order {
            Order::C => axes.rev().all(fits),
            Order::Fortran => {
                let mut axes = axes;
                axes.all(&mut fits)
            }
        }
    }

    /// The order in which elements of `item_len` bytes are contiguous,
    /// [`Order::C`] if both apply.
    pub fn order(&self, item_len: usize) -> Option<Order> {
        [Order::C, Order::Fortran]
            .into_iter()
            .find(|order| self.is_contiguous(*order, item_len))
    }

    /// The offset of the element with these indices, in bytes.
    pub(super) fn offset(&self, indices: &[usize]) -> Option<usize> {
        if indices.len() != self.count {
            return None;
        }
        let mut axes = indices.iter().zip(self.shape()).zip(self.strides());
        axes.try_fold(0_usize, |offset, ((index, count), stride)| {
            if index >= count {
                return None;
            }
            offset.checked_add(index.checked_mul(*stride)?)
        })
    }
}

impl<const MAX: usize> fmt::Debug for Dimensions<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dimensions")
            .field("shape", &self.shape())
            .field("strides", &self.strides())
            .finish()
    }
}

impl<const MAX: usize> PartialEq for Dimensions<MAX> {
    fn eq(&self, other: &Self) -> bool {
        (self.shape(), self.strides()) == (other.shape(), other.strides())
    }
}

impl<const MAX: usize> Eq for Dimensions<MAX> {}

/// The offsets of all elements, in C order.
#[derive(Clone, Debug)]
pub(super) struct Offsets<const MAX: usize> {
    dimensions: Dimensions<MAX>,
    indices: [usize; MAX],
    next: usize,
    left: usize,
}

impl<const MAX: usize> Offsets<MAX> {
    /// `dimensions` must have been checked to be within some bytes.
    pub(super) fn new(dimensions: Dimensions<MAX>) -> Self {
        Self {
            dimensions,
            indices: [0; MAX],
            next: 0,
            left: dimensions.item_count().or_default_if_bug(),
        }
    }
}

impl<const MAX: usize> Iterator for Offsets<MAX> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let offset = self.next;
        let axes = self.dimensions.shape().iter();
        let axes = axes.zip(self.dimensions.strides());
        let indices = self.indices.get_mut(..self.dimensions.count);
        for ((count, stride), index) in axes.zip(indices.or_default_if_bug()).rev() {
            let next = index.saturating_add(1);
            if next < *count {
                *index = next;
                // Within the bytes, as checked before.
                self.next = self.next.saturating_add(*stride);
                break;
            }
            let back = index.saturating_mul(*stride);
            self.next = self.next.saturating_sub(back);
            *index = 0;
        }
        Some(offset)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<const MAX: usize> ExactSizeIterator for Offsets<MAX> {}
