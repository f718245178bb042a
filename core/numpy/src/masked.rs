//! Masked arrays.

use super::{
    Array, ArrayHeader, DType, Description, Dimensions, DimensionsError, Element, Kind,
    MAX_DIMENSIONS, NumpyError, NumpyErrorKind,
};
use daskwire::message::{MessageErrorKind, PayloadHeader};
use daskwire::msgpack::{Reader, Token};

/// The header of a masked array (PROTOCOL TYPED-9), with the headers of the
/// data and of the mask, which are parsed on request.
#[derive(Clone, Copy, Debug)]
pub struct MaskedHeader<'a> {
    own: PayloadHeader<'a>,
    is_masked: bool,
    data_frame_count: u64,
}

impl PartialEq for MaskedHeader<'_> {
    /// Compares the encoded headers.
    fn eq(&self, other: &Self) -> bool {
        self.own.entries().eq(other.own.entries())
    }
}

/// The fill value for masked elements.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum FillValue<'a> {
    /// A boolean.
    Bool(bool),
    /// A signed or unsigned integer of 64 bits.
    Int(i128),
    /// A float.
    Float(f64),
    /// Anything else, as a pickle.
    Pickled(&'a [u8]),
}

impl<'a> MaskedHeader<'a> {
    pub(super) fn read(header: &PayloadHeader<'a>) -> Result<Self, NumpyError> {
        let own = header.type_header()?;
        let key = "nframes";
        let value = own.get(key).ok_or(own.missing_entry(key))?;
        let this = Self {
            own,
            is_masked: own.map_entry("mask-header")?.is_some(),
            data_frame_count: Reader::new(value).u64().map_err(|_| {
                let expected = "an integer of 0 or more";
                entry_kind(&own, key, expected)
            })?,
        };
        Ok(this)
    }

    /// The description of the data: an array, or the pickle of an array of
    /// objects.
    ///
    /// # Errors
    ///
    /// A fault in its header.
    pub fn data(&self) -> Result<Description<'a>, NumpyError> {
        self.data_sized()
    }

    pub(super) fn data_sized<const MAX: usize>(&self) -> Result<Description<'a, MAX>, NumpyError> {
        let key = "data-header";
        let header = self
            .own
            .map_entry(key)?
            .ok_or(self.own.missing_entry(key))?;
        ArrayHeader::describe(&header)
    }

    /// The header of the mask, if any: booleans in the shape of the data; for
    /// records, records with a boolean per field.
    ///
    /// # Errors
    ///
    /// A fault in its header.
    pub fn mask(&self) -> Result<Option<ArrayHeader<'a>>, NumpyError> {
        self.mask_sized()
    }

    pub(super) fn mask_sized<const MAX: usize>(
        &self,
    ) -> Result<Option<ArrayHeader<'a, MAX>>, NumpyError> {
        let key = "mask-header";
        let Some(header) = self.own.map_entry(key)? else {
            return Ok(None);
        };
        match ArrayHeader::describe(&header)? {
            Description::Array(header) => Ok(Some(header)),
            _ => Err(entry_kind(&self.own, key, "a map that describes an array")),
        }
    }

    /// Whether there is a mask.
    pub const fn has_mask(&self) -> bool {
        self.is_masked
    }

    /// The number of logical frames of the data; those of the mask follow.
    pub const fn data_frame_count(&self) -> u64 {
        self.data_frame_count
    }

    /// The fill value for masked elements.
    ///
    /// # Errors
    ///
    /// [`NumpyErrorKind::Message`] if the entry is missing or invalid.
    pub fn fill_value(&self) -> Result<FillValue<'a>, NumpyError> {
        let key = "fill-value";
        let value = self.own.get(key).ok_or(self.own.missing_entry(key))?;
        let wrong = entry_kind(&self.own, key, "false and a number, or true and a pickle");
        let mut reader = Reader::new(value);
        if reader.array() != Ok(2) {
            return Err(wrong);
        }
        let is_pickled = reader.bool().map_err(|_| wrong)?;
        Ok(match reader.token().map_err(|_| wrong)? {
            Token::Bin(pickle) if is_pickled => FillValue::Pickled(pickle),
            _ if is_pickled => return Err(wrong),
            Token::Bool(value) => FillValue::Bool(value),
            Token::UInt(value) => FillValue::Int(value.into()),
            Token::Int(value) => FillValue::Int(value.into()),
            Token::F32(value) => FillValue::Float(value.into()),
            Token::F64(value) => FillValue::Float(value),
            _ => return Err(wrong),
        })
    }

    pub(super) fn fault(&self, kind: NumpyErrorKind) -> NumpyError {
        let (frame, at) = self.own.entry_location("data-header");
        NumpyError { frame, at, kind }
    }
}

fn entry_kind(own: &PayloadHeader<'_>, key: &'static str, expected: &'static str) -> NumpyError {
    let (frame, at) = own.entry_location(key);
    let kind = NumpyErrorKind::Message(MessageErrorKind::EntryKind { key, expected });
    NumpyError { frame, at, kind }
}

/// A masked array: an array, and a mask of the same shape.
///
/// ```
/// use daskwire_numpy::{Array, DType, MaskedArray, Order, NumpyError};
///
/// let data = Array::new(DType::U8, &[3], Order::C, &[10, 20, 30])?;
/// let mask = Array::new(DType::BOOL, &[3], Order::C, &[0, 1, 0])?;
/// let masked = MaskedArray::new(data, Some(mask))?;
/// assert!(masked.elements::<u8>()?.eq([Some(10), None, Some(30)]));
/// # Ok::<(), NumpyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaskedArray<'d, const MAX: usize = MAX_DIMENSIONS> {
    data: Array<'d, MAX>,
    mask: Option<Array<'d, MAX>>,
}

impl<'d, const MAX: usize> MaskedArray<'d, MAX> {
    /// Creates a masked array; without a mask if no element is masked.
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::OtherType`] if the elements of the mask are not
    ///   booleans (for records: not records);
    /// * [`NumpyErrorKind::Dimensions`] with [`DimensionsError::ShapesDiffer`].
    pub fn new(data: Array<'d, MAX>, mask: Option<Array<'d, MAX>>) -> Result<Self, NumpyError> {
        if let Some(mask) = &mask {
            let found = mask.dtype();
            let is_record = |dtype: DType| dtype.kind() == Kind::Record;
            if found != DType::BOOL && !(is_record(found) && is_record(data.dtype())) {
                let wanted = DType::BOOL;
                let kind = NumpyErrorKind::OtherType { wanted, found };
                return Err(NumpyError::of_value(kind));
            }
            if mask.shape() != data.shape() {
                return Err(NumpyError::of_value(DimensionsError::ShapesDiffer.into()));
            }
        }
        Ok(Self { data, mask })
    }

    /// All elements, including masked ones.
    pub const fn data(&self) -> &Array<'d, MAX> {
        &self.data
    }

    /// The mask; `None` if no element is masked. For records it has records of
    /// booleans.
    pub const fn mask(&self) -> Option<&Array<'d, MAX>> {
        self.mask.as_ref()
    }

    /// The shape and strides of the data.
    pub const fn dimensions(&self) -> &Dimensions<MAX> {
        self.data.dimensions()
    }

    /// Whether the element with these indices is masked, for a record whether
    /// all of its fields are; `None` if the indices are out of bounds.
    pub fn is_masked(&self, indices: &[usize]) -> Option<bool> {
        self.data.item(indices)?;
        match &self.mask {
            None => Some(false),
            Some(mask) => mask.item(indices).map(is_true),
        }
    }

    /// The elements in C order, `None` for masked ones.
    ///
    /// # Errors
    ///
    /// [`NumpyErrorKind::OtherType`] if `E` is not the type of the elements.
    pub fn elements<E: Element>(
        &self,
    ) -> Result<impl ExactSizeIterator<Item = Option<E>> + Clone + use<'d, E, MAX>, NumpyError>
    {
        let mut mask = self.mask.as_ref().map(Array::items);
        let elements = self.data.elements::<E>()?;
        Ok(elements.map(move |element| {
            let flag = mask.as_mut().and_then(Iterator::next);
            (!flag.is_some_and(is_true)).then_some(element)
        }))
    }
}

fn is_true(flags: &[u8]) -> bool {
    !flags.is_empty() && flags.iter().all(|flag| *flag != 0)
}
