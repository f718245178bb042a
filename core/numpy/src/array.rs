//! Arrays over bytes that lie somewhere else.

use super::dimensions::Offsets;
use super::{
    DType, Dimensions, DimensionsError, Element, Field, Kind, Order, TypedError, TypedErrorKind,
};
use daskwire::BufferTooSmall;

/// An array: bytes, and what they mean. Nothing is copied.
///
/// The same type is what was read and what is to be written.
///
/// ```
/// use daskwire_numpy::{Array, DType, Order, TypedError};
///
/// let bytes = [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0];
/// let array = Array::new(DType::U16, &[2, 3], Order::C, &bytes)?;
/// assert_eq!(array.item(&[1, 0]), Some(&[4, 0][..]));
/// assert!(array.elements::<u16>()?.eq([1, 2, 3, 4, 5, 6]));
/// assert!(array.elements::<f64>().is_err());
/// # Ok::<(), TypedError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'d> {
    bytes: &'d [u8],
    dtype: DType,
    dimensions: Dimensions,
    writeable: Option<bool>,
    is_matrix: bool,
}

impl<'d> Array<'d> {
    /// Elements that lie one behind the other in `order`, writeable.
    ///
    /// # Errors
    ///
    /// [`TypedErrorKind::Dimensions`]: there are too many dimensions, or `bytes`
    /// are not as long as such elements.
    pub fn new(
        dtype: DType,
        shape: &[usize],
        order: Order,
        bytes: &'d [u8],
    ) -> Result<Self, TypedError> {
        Dimensions::contiguous(shape, order, dtype.item_len())
            .and_then(|dimensions| Self::check(dtype, dimensions, bytes))
            .map_err(|error| TypedError::of_value(error.into()))
    }

    /// Elements that lie in `bytes` as `dimensions` say, writeable.
    ///
    /// # Errors
    ///
    /// [`TypedErrorKind::Dimensions`] if `bytes` are not as long as the elements,
    /// each of those that are repeated counted once, or an element lies outside
    /// of them.
    pub fn with_dimensions(
        dtype: DType,
        dimensions: Dimensions,
        bytes: &'d [u8],
    ) -> Result<Self, TypedError> {
        Self::check(dtype, dimensions, bytes).map_err(|error| TypedError::of_value(error.into()))
    }

    /// PROTOCOL TYPED-3: as many bytes as elements, and no element outside.
    pub(crate) fn check(
        dtype: DType,
        dimensions: Dimensions,
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
        // So that elements can be counted.
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

    /// What has been checked before.
    #[cfg(feature = "alloc")]
    pub(crate) const fn known(dtype: DType, dimensions: Dimensions, bytes: &'d [u8]) -> Self {
        Self {
            bytes,
            dtype,
            dimensions,
            writeable: Some(true),
            is_matrix: false,
        }
    }

    /// The same array, which a reader may change or not.
    #[must_use]
    pub const fn with_writeable(mut self, writeable: bool) -> Self {
        self.writeable = Some(writeable);
        self
    }

    /// One field of all records, where it lies: elements that are as far apart as
    /// the records. A field that is an array adds its dimensions behind those of
    /// the records; one of records is again an array of them.
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
    /// * [`TypedErrorKind::OtherType`] if these are no records, or shorter ones;
    /// * [`TypedErrorKind::NotPlain`] if the type of the field is not known here;
    /// * [`TypedErrorKind::Dimensions`] if there are too many of them.
    pub fn field(&self, field: &Field<'_>) -> Result<Self, TypedError> {
        let dtype = field.dtype();
        let dtype = dtype.ok_or(TypedError::of_value(TypedErrorKind::NotPlain))?;
        let wrong = |error: DimensionsError| TypedError::of_value(error.into());
        let len = field.dimensions.len(dtype.item_len()).map_err(wrong)?;
        let end = field.offset.checked_add(len);
        let fits = end.filter(|end| *end <= self.dtype.item_len());
        let wanted = DType::record(end.unwrap_or(usize::MAX));
        if fits.is_none() || !matches!(self.dtype.kind(), Kind::Record | Kind::Void) {
            return Err(TypedError::of_value(TypedErrorKind::OtherType {
                wanted,
                found: self.dtype,
            }));
        }
        let mut dimensions = self.dimensions;
        for (count, stride) in field.shape().iter().zip(field.dimensions.strides()) {
            dimensions.push(*count, *stride).map_err(wrong)?;
        }
        let needed = dimensions.end(dtype.item_len()).map_err(wrong)?;
        // Within the records, of which there is none if there is no element.
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

    /// The bytes as they lie, from the first element to the end of the last: of a
    /// [field](Self::field) of records what lies in between too.
    pub const fn bytes(&self) -> &'d [u8] {
        self.bytes
    }

    /// The type of the elements.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape and strides.
    pub const fn dimensions(&self) -> &Dimensions {
        &self.dimensions
    }

    /// How many elements there are along each dimension.
    pub fn shape(&self) -> &[usize] {
        self.dimensions.shape()
    }

    /// How many bytes apart elements lie along each dimension.
    pub fn strides(&self) -> &[usize] {
        self.dimensions.strides()
    }

    /// The order in which the elements lie one behind the other, if they do.
    pub fn order(&self) -> Option<Order> {
        self.dimensions.order(self.dtype.item_len())
    }

    /// Whether one element stands for many along some dimension.
    pub fn is_broadcast(&self) -> bool {
        self.dimensions.is_broadcast()
    }

    /// Whether a reader may change it; `None` where the sender did not say
    /// (before 2.23.0).
    pub const fn writeable(&self) -> Option<bool> {
        self.writeable
    }

    /// Whether it is a `numpy.matrix`.
    pub const fn is_matrix(&self) -> bool {
        self.is_matrix
    }

    /// The bytes of the element with these indices, one for each dimension.
    pub fn item(&self, indices: &[usize]) -> Option<&'d [u8]> {
        let offset = self.dimensions.offset(indices)?;
        let end = offset.checked_add(self.dtype.item_len())?;
        self.bytes.get(offset..end)
    }

    /// The bytes of each element, in the order of C whatever the order they lie
    /// in. What is repeated comes many times.
    pub fn items(&self) -> impl ExactSizeIterator<Item = &'d [u8]> + Clone + use<'d> {
        let (bytes, item_len) = (self.bytes, self.dtype.item_len());
        Offsets::new(self.dimensions).map(move |offset| {
            let end = offset.saturating_add(item_len);
            bytes.get(offset..end).unwrap_or_default()
        })
    }

    /// Each element, in the order of C whatever the order they lie in.
    ///
    /// # Errors
    ///
    /// [`TypedErrorKind::OtherType`] if `E` is not what the elements are.
    pub fn elements<E: Element>(
        &self,
    ) -> Result<impl ExactSizeIterator<Item = E> + Clone + use<'d, E>, TypedError> {
        self.expect::<E>()?;
        let order = self.dtype.order();
        Ok(self.items().map(move |bytes| {
            // The items are as long as the elements: `expect` has compared.
            E::read(bytes, order).unwrap_or(E::ZERO)
        }))
    }

    /// Each element as they lie, whichever order that is, in one pass over the
    /// bytes; what is repeated comes once.
    ///
    /// # Errors
    ///
    /// * [`TypedErrorKind::OtherType`] if `E` is not what the elements are;
    /// * [`TypedErrorKind::Dimensions`] with [`DimensionsError::NotContiguous`] if
    ///   something else lies between them, as between fields of records.
    pub fn memory_elements<E: Element>(
        &self,
    ) -> Result<impl ExactSizeIterator<Item = E> + Clone + use<'d, E>, TypedError> {
        let elements = elements(self.dtype, self.bytes)?;
        let len = self.dimensions.stored().len(self.dtype.item_len());
        if len == Ok(self.bytes.len()) {
            return Ok(elements);
        }
        Err(TypedError::of_value(DimensionsError::NotContiguous.into()))
    }

    fn expect<E: Element>(&self) -> Result<(), TypedError> {
        expect::<E>(self.dtype).map_err(TypedError::of_value)
    }

    /// Decodes the elements into `out`, in the order of C, and returns them.
    ///
    /// # Errors
    ///
    /// * [`TypedErrorKind::OtherType`] if `E` is not what the elements are;
    /// * [`TypedErrorKind::BufferTooSmall`], counted in elements.
    pub fn decode_into<'o, E: Element>(&self, out: &'o mut [E]) -> Result<&'o [E], TypedError> {
        self.expect::<E>()?;
        let (needed, available) = (self.items().len(), out.len());
        let places = out.get_mut(..needed).ok_or({
            let short = BufferTooSmall { needed, available };
            TypedError::of_value(TypedErrorKind::BufferTooSmall(short))
        })?;
        if self.order() == Some(Order::C) {
            let order = self.dtype.order();
            let items = self.bytes.chunks_exact(self.dtype.item_len().max(1));
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

    /// A copy of the elements in the order of C, at the front of `out`; what is
    /// repeated is repeated there.
    ///
    /// # Errors
    ///
    /// [`TypedErrorKind::BufferTooSmall`], and [`TypedErrorKind::Dimensions`] if
    /// the copy would be larger than memory can be.
    pub fn copy_into<'o>(&self, out: &'o mut [u8]) -> Result<Array<'o>, TypedError> {
        let item_len = self.dtype.item_len();
        let dimensions = Dimensions::contiguous(self.shape(), Order::C, item_len)
            .and_then(|dimensions| Ok((dimensions, dimensions.len(item_len)?)));
        let (dimensions, needed) =
            dimensions.map_err(|error| TypedError::of_value(error.into()))?;
        let available = out.len();
        let bytes = out.get_mut(..needed).ok_or({
            let short = BufferTooSmall { needed, available };
            TypedError::of_value(TypedErrorKind::BufferTooSmall(short))
        })?;
        let places = bytes.chunks_exact_mut(item_len.max(1));
        for (place, item) in places.zip(self.items()) {
            crate::copy(place, item);
        }
        Array::with_dimensions(self.dtype, dimensions, bytes)
            .map(|array| array.described(self.writeable, self.is_matrix))
    }
}

fn expect<E: Element>(dtype: DType) -> Result<(), TypedErrorKind> {
    if E::is_of(dtype) {
        return Ok(());
    }
    Err(TypedErrorKind::OtherType {
        wanted: E::dtype(super::ByteOrder::Little),
        found: dtype,
    })
}

/// The elements of `dtype` that `bytes` are, one behind the other: all of an
/// array in one slice, or a part of it. Bytes behind the last whole element are
/// left out.
///
/// # Errors
///
/// [`TypedErrorKind::OtherType`] if `E` is not what elements of `dtype` are.
pub fn elements<'d, E: Element>(
    dtype: DType,
    bytes: &'d [u8],
) -> Result<impl ExactSizeIterator<Item = E> + Clone + use<'d, E>, TypedError> {
    expect::<E>(dtype).map_err(TypedError::of_value)?;
    let order = dtype.order();
    let items = bytes.chunks_exact(dtype.item_len().max(1));
    Ok(items.map(move |bytes| E::read(bytes, order).unwrap_or(E::ZERO)))
}

/// Writes elements one behind the other at the front of `out`, least
/// significant byte first, and returns their bytes: data for an [`Array`] of
/// [`Element::dtype`].
///
/// ```
/// use daskwire_numpy::{Array, DType, Order, TypedError, encode_into};
///
/// let mut bytes = [0; 16];
/// let bytes = encode_into(&[1.5, -2.0], &mut bytes)?;
/// let array = Array::new(DType::F64, &[2], Order::C, bytes)?;
/// assert!(array.elements::<f64>()?.eq([1.5, -2.0]));
/// # Ok::<(), TypedError>(())
/// ```
///
/// # Errors
///
/// [`TypedErrorKind::BufferTooSmall`].
pub fn encode_into<'o, E: Element>(
    elements: &[E],
    out: &'o mut [u8],
) -> Result<&'o [u8], TypedError> {
    let item_len = E::dtype(super::ByteOrder::Little).item_len();
    let needed = elements.len().saturating_mul(item_len);
    let available = out.len();
    let bytes = out.get_mut(..needed).ok_or({
        let short = BufferTooSmall { needed, available };
        TypedError::of_value(TypedErrorKind::BufferTooSmall(short))
    })?;
    for (place, element) in bytes.chunks_exact_mut(item_len.max(1)).zip(elements) {
        element.write(place, super::ByteOrder::Little);
    }
    Ok(bytes)
}
