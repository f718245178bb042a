//! Arrays over borrowed bytes.

use core::marker::PhantomData;

use super::dimensions::Offsets;
use super::{
    ByteOrder, DType, Dimensions, DimensionsError, Element, Field, Kind, MAX_DIMENSIONS,
    NumpyError, NumpyErrorKind, Order,
};
use daskwire::BufferTooSmall;
use daskwire::invariant::OrDefaultIfBug;

/// An array over borrowed bytes, with its element type and dimensions.
///
/// Used for arrays that were read and for arrays to write. `MAX` is the largest
/// number of [dimensions](Dimensions). Default: all that numpy supports.
///
/// ```
/// use daskwire_numpy::{Array, DType, Order, NumpyError};
///
/// let bytes = [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0];
/// let array = Array::new(DType::U16, &[2, 3], Order::C, &bytes)?;
/// assert_eq!(array.item(&[1, 0]), Some(&[4, 0][..]));
/// assert!(array.elements::<u16>()?.eq([1, 2, 3, 4, 5, 6]));
/// assert!(array.elements::<f64>().is_err());
/// # Ok::<(), NumpyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'d, const MAX: usize = MAX_DIMENSIONS> {
    bytes: &'d [u8],
    dtype: DType,
    dimensions: Dimensions<MAX>,
    writeable: Option<bool>,
    is_matrix: bool,
}

impl<'d> Array<'d> {
    /// Creates a writeable array of contiguous elements in `order`.
    ///
    /// # Errors
    ///
    /// [`NumpyErrorKind::Dimensions`] if there are too many dimensions, or
    /// `bytes` does not have the length of the elements.
    pub fn new(
        dtype: DType,
        shape: &[usize],
        order: Order,
        bytes: &'d [u8],
    ) -> Result<Self, NumpyError> {
        Dimensions::contiguous(shape, order, dtype.item_len())
            .and_then(|dimensions| Self::check(dtype, dimensions, bytes))
            .map_err(|error| NumpyError::of_value(error.into()))
    }
}

impl<'d, const MAX: usize> Array<'d, MAX> {
    /// Creates a writeable array of the elements at `dimensions` in `bytes`.
    ///
    /// # Errors
    ///
    /// [`NumpyErrorKind::Dimensions`] if `bytes` does not have the length of
    /// the elements (repeated ones counted once), or an element is out of
    /// bounds.
    pub fn with_dimensions(
        dtype: DType,
        dimensions: Dimensions<MAX>,
        bytes: &'d [u8],
    ) -> Result<Self, NumpyError> {
        Self::check(dtype, dimensions, bytes).map_err(|error| NumpyError::of_value(error.into()))
    }

    /// Checks that the length matches, and that no element is out of bounds
    /// (PROTOCOL TYPED-3).
    pub(crate) fn check(
        dtype: DType,
        dimensions: Dimensions<MAX>,
        bytes: &'d [u8],
    ) -> Result<Self, DimensionsError> {
        let available = bytes.len();
        let needed = dimensions.stored().len(dtype.item_len())?;
        if needed != available {
            return Err(DimensionsError::LengthDiffers { needed, available });
        }
        let needed = dimensions.end(dtype.item_len())?;
        if needed > available {
            return Err(DimensionsError::OutOfBounds { needed, available });
        }
        // The number of elements must fit in a usize.
        dimensions.item_count().ok_or(DimensionsError::TooLarge)?;
        Ok(Self {
            bytes,
            dtype,
            dimensions,
            writeable: Some(true),
            is_matrix: false,
        })
    }

    pub(crate) const fn described(mut self, writeable: Option<bool>, is_matrix: bool) -> Self {
        self.writeable = writeable;
        self.is_matrix = is_matrix;
        self
    }

    /// Creates an array that has been checked before.
    #[cfg(feature = "alloc")]
    pub(crate) const fn known(dtype: DType, dimensions: Dimensions<MAX>, bytes: &'d [u8]) -> Self {
        Self {
            bytes,
            dtype,
            dimensions,
            writeable: Some(true),
            is_matrix: false,
        }
    }

    /// Sets whether a reader may change the array.
    #[must_use]
    pub const fn with_writeable(mut self, writeable: bool) -> Self {
        self.writeable = Some(writeable);
        self
    }

    /// A field of all records as an array without copying: its strides are
    /// those of the records. A field that is an array adds its dimensions after
    /// those of the records; a field of records gives an array of records.
    ///
    /// ```
    /// use daskwire_numpy::{Array, Order, RecordType};
    ///
    /// // [["key", "|S2"], ["at", "|u1", [2]]] in MessagePack
    /// let fields = b"\x92\x92\xa3key\xa3|S2\x93\xa2at\xa3|u1\x91\x02";
    /// let record = RecordType::from_list(fields)?;
    /// let array = Array::new(record.dtype(), &[2], Order::C, b"ab\x01\x02cd\x03\x04")?;
    ///
    /// let at = array.field(&record.field("at")?.ok_or("there is no such field")?)?;
    /// assert_eq!((at.shape(), at.strides()), (&[2, 2][..], &[4, 1][..]));
    /// assert!(at.elements::<u8>()?.eq([1, 2, 3, 4]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::OtherType`] if the elements are not records, or too
    ///   short;
    /// * [`NumpyErrorKind::NotPlain`] if the type of the field is unknown;
    /// * [`NumpyErrorKind::Dimensions`] if there are too many of them.
    pub fn field(&self, field: &Field<'_>) -> Result<Self, NumpyError> {
        let dtype = field.dtype();
        let dtype = dtype.ok_or(NumpyError::of_value(NumpyErrorKind::NotPlain))?;
        let wrong = |error: DimensionsError| NumpyError::of_value(error.into());
        let len = field.dimensions.len(dtype.item_len()).map_err(wrong)?;
        let end = field.offset.checked_add(len);
        let fits = end.filter(|end| *end <= self.dtype.item_len());
        let wanted = DType::record(end.unwrap_or(usize::MAX));
        if fits.is_none() || !matches!(self.dtype.kind(), Kind::Record | Kind::Void) {
            return Err(NumpyError::of_value(NumpyErrorKind::OtherType {
                wanted,
                found: self.dtype,
            }));
        }
        let mut dimensions = self.dimensions;
        for (count, stride) in field.shape().iter().zip(field.dimensions.strides()) {
            dimensions.push(*count, *stride).map_err(wrong)?;
        }
        let needed = dimensions.end(dtype.item_len()).map_err(wrong)?;
        // In bounds of the records; there are no bytes if there are no
        // elements.
        let bytes = self.bytes.get(field.offset..).unwrap_or_default();
        let bytes = bytes.get(..needed).ok_or({
            let available = bytes.len();
            wrong(DimensionsError::OutOfBounds { needed, available })
        })?;
        dimensions
            .item_count()
            .ok_or(wrong(DimensionsError::TooLarge))?;
        Ok(Self {
            bytes,
            dtype,
            dimensions,
            is_matrix: false,
            ..*self
        })
    }

    /// The bytes from the first element to the end of the last, for a
    /// [field](Self::field) of records including the bytes between them.
    pub const fn bytes(&self) -> &'d [u8] {
        self.bytes
    }

    /// The type of the elements.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape and strides.
    pub const fn dimensions(&self) -> &Dimensions<MAX> {
        &self.dimensions
    }

    /// The number of elements along each dimension.
    pub fn shape(&self) -> &[usize] {
        self.dimensions.shape()
    }

    /// The distance of elements along each dimension, in bytes.
    pub fn strides(&self) -> &[usize] {
        self.dimensions.strides()
    }

    /// The order of the elements, if they are contiguous.
    pub fn order(&self) -> Option<Order> {
        self.dimensions.order(self.dtype.item_len())
    }

    /// Whether an element is repeated along some dimension.
    pub fn is_broadcast(&self) -> bool {
        self.dimensions.is_broadcast()
    }

    /// Checks that a copy of all elements takes memory in proportion to the
    /// array: at most 65,536 elements more than the array has bytes. With a
    /// stride of 0, a few bytes that a peer sends can have any shape.
    ///
    /// Iterators over the elements have no such limit.
    ///
    /// # Errors
    ///
    /// [`NumpyErrorKind::Dimensions`] with [`DimensionsError::Repetitive`].
    pub fn check_repetition(&self) -> Result<(), NumpyError> {
        let limit = self.bytes.len().saturating_add(MAX_REPEATED);
        // The product up to each dimension, for lists of empty lists.
        let counts = self.shape().iter().scan(1_usize, |count, len| {
            *count = count.saturating_mul(*len);
            Some(*count)
        });
        match counts.max() {
            Some(count) if count > limit => {
                let error = DimensionsError::Repetitive { count, limit };
                Err(NumpyError::of_value(error.into()))
            }
            _ => Ok(()),
        }
    }

    /// Whether a reader may change the array; `None` if the sender did not
    /// declare it (before 2.23.0).
    pub const fn writeable(&self) -> Option<bool> {
        self.writeable
    }

    /// Whether the array is a `numpy.matrix`.
    pub const fn is_matrix(&self) -> bool {
        self.is_matrix
    }

    /// The bytes of the element with these indices, one per dimension.
    pub fn item(&self, indices: &[usize]) -> Option<&'d [u8]> {
        let offset = self.dimensions.offset(indices)?;
        let end = offset.checked_add(self.dtype.item_len())?;
        self.bytes.get(offset..end)
    }

    /// The bytes of each element in C order, regardless of the order in memory,
    /// with repetitions.
    pub fn items(&self) -> impl ExactSizeIterator<Item = &'d [u8]> + Clone + use<'d, MAX> {
        let (bytes, item_len) = (self.bytes, self.dtype.item_len());
        Offsets::new(self.dimensions).map(move |offset| {
            let end = offset.saturating_add(item_len);
            bytes.get(offset..end).or_default_if_bug()
        })
    }

    /// The elements in C order, regardless of the order in memory, with
    /// repetitions.
    ///
    /// # Errors
    ///
    /// [`NumpyErrorKind::OtherType`] if `E` is not the type of the elements.
    pub fn elements<E: Element>(
        &self,
    ) -> Result<impl ExactSizeIterator<Item = E> + Clone + use<'d, E, MAX>, NumpyError> {
        self.expect::<E>()?;
        let order = self.dtype.order();
        Ok(self.items().map(move |bytes| {
            // `expect` has checked the length of the items.
            E::read(bytes, order).unwrap_or(E::ZERO)
        }))
    }

    /// The elements in memory order, in one pass over the bytes, without
    /// repetitions.
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::OtherType`] if `E` is not the type of the elements;
    /// * [`NumpyErrorKind::Dimensions`] with [`DimensionsError::NotContiguous`]
    ///   if they are not adjacent, as fields of records.
    pub fn memory_elements<E: Element>(
        &self,
    ) -> Result<impl ExactSizeIterator<Item = E> + Clone + use<'d, E, MAX>, NumpyError> {
        let elements = elements(self.dtype, self.bytes)?;
        let len = self.dimensions.stored().len(self.dtype.item_len());
        if len == Ok(self.bytes.len()) {
            return Ok(elements);
        }
        Err(NumpyError::of_value(DimensionsError::NotContiguous.into()))
    }

    fn expect<E: Element>(&self) -> Result<(), NumpyError> {
        expect::<E>(self.dtype).map_err(NumpyError::of_value)
    }

    /// Decodes the elements in C order to `out` and returns them.
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::OtherType`] if `E` is not the type of the elements;
    /// * [`NumpyErrorKind::BufferTooSmall`], counted in elements.
    pub fn decode_into<'o, E: Element>(&self, out: &'o mut [E]) -> Result<&'o [E], NumpyError> {
        self.expect::<E>()?;
        let (needed, available) = (self.items().len(), out.len());
        let places = out.get_mut(..needed).ok_or({
            let short = BufferTooSmall { needed, available };
            NumpyError::of_value(NumpyErrorKind::BufferTooSmall(short))
        })?;
        if self.order() == Some(Order::C) {
            let order = self.dtype.order();
            let items = self.bytes.chunks_exact(item_len::<E>());
            for (place, item) in places.iter_mut().zip(items) {
                *place = E::read(item, order).unwrap_or(E::ZERO);
            }
        } else {
            for (place, element) in places.iter_mut().zip(self.elements::<E>()?) {
                *place = element;
            }
        }
        Ok(places)
    }

    /// Copies the elements in C order, with repetitions, to the start of `out`.
    ///
    /// # Errors
    ///
    /// [`NumpyErrorKind::BufferTooSmall`], and [`NumpyErrorKind::Dimensions`]
    /// if the length of the copy overflows.
    pub fn copy_into<'o>(&self, out: &'o mut [u8]) -> Result<Array<'o, MAX>, NumpyError> {
        let item_len = self.dtype.item_len();
        let dimensions = Dimensions::sized(self.shape(), Order::C, item_len)
            .and_then(|dimensions| Ok((dimensions, dimensions.len(item_len)?)));
        let (dimensions, needed) =
            dimensions.map_err(|error| NumpyError::of_value(error.into()))?;
        let available = out.len();
        let bytes = out.get_mut(..needed).ok_or({
            let short = BufferTooSmall { needed, available };
            NumpyError::of_value(NumpyErrorKind::BufferTooSmall(short))
        })?;
        let places = bytes.chunks_exact_mut(item_len.max(1));
        for (place, item) in places.zip(self.items()) {
            crate::copy(place, item);
        }
        Array::with_dimensions(self.dtype, dimensions, bytes)
            .map(|array| array.described(self.writeable, self.is_matrix))
    }
}

fn expect<E: Element>(dtype: DType) -> Result<(), NumpyErrorKind> {
    if E::is_of(dtype) {
        return Ok(());
    }
    Err(NumpyErrorKind::OtherType {
        wanted: E::dtype(ByteOrder::Little),
        found: dtype,
    })
}

/// The length of an element in bytes, at least 1. A constant, unlike that of a [`DType`]: the
/// compiler sees that no division by it panics.
#[inline(always)]
fn item_len<E: Element>() -> usize {
    const {
        let len = E::DTYPE.item_len();
        assert!(len != 0, "an element without bytes");
        len
    }
}

/// The contiguous elements of `dtype` in `bytes`, for example a part of an
/// array. Bytes after the last whole element are ignored.
///
/// # Errors
///
/// [`NumpyErrorKind::OtherType`] if `E` is not the type of elements of `dtype`.
pub fn elements<'d, E: Element>(
    dtype: DType,
    bytes: &'d [u8],
) -> Result<impl ExactSizeIterator<Item = E> + Clone + use<'d, E>, NumpyError> {
    expect::<E>(dtype).map_err(NumpyError::of_value)?;
    Ok(Contiguous {
        rest: bytes,
        order: dtype.order(),
        element: PhantomData,
    })
}

/// An iterator over contiguous elements.
///
/// `ChunksExact` divides by a length that the compiler may not know to be constant, and then
/// contains a panic.
struct Contiguous<'d, E> {
    rest: &'d [u8],
    order: ByteOrder,
    element: PhantomData<E>,
}

impl<E> Clone for Contiguous<'_, E> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<E: Element> Iterator for Contiguous<'_, E> {
    type Item = E;

    #[inline]
    fn next(&mut self) -> Option<E> {
        let (item, rest) = self.rest.split_at_checked(item_len::<E>())?;
        self.rest = rest;
        Some(E::read(item, self.order).unwrap_or(E::ZERO))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self
            .rest
            .len()
            .checked_div(item_len::<E>())
            .or_default_if_bug();
        (len, Some(len))
    }
}

impl<E: Element> ExactSizeIterator for Contiguous<'_, E> {}

/// Writes elements little-endian and contiguously to the start of `out` and
/// returns their bytes, as data for an [`Array`] of [`Element::dtype`].
///
/// ```
/// use daskwire_numpy::{Array, DType, Order, NumpyError, encode_into};
///
/// let mut bytes = [0; 16];
/// let bytes = encode_into(&[1.5, -2.0], &mut bytes)?;
/// let array = Array::new(DType::F64, &[2], Order::C, bytes)?;
/// assert!(array.elements::<f64>()?.eq([1.5, -2.0]));
/// # Ok::<(), NumpyError>(())
/// ```
///
/// # Errors
///
/// [`NumpyErrorKind::BufferTooSmall`].
pub fn encode_into<'o, E: Element>(
    elements: &[E],
    out: &'o mut [u8],
) -> Result<&'o [u8], NumpyError> {
    let needed = elements.len().saturating_mul(item_len::<E>());
    let available = out.len();
    let bytes = out.get_mut(..needed).ok_or({
        let short = BufferTooSmall { needed, available };
        NumpyError::of_value(NumpyErrorKind::BufferTooSmall(short))
    })?;
    for (place, element) in bytes.chunks_exact_mut(item_len::<E>()).zip(elements) {
        element.write(place, ByteOrder::Little);
    }
    Ok(bytes)
}

/// The number of elements that are copied however few bytes an array has.
const MAX_REPEATED: usize = 1 << 16;
