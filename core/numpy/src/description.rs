//! Descriptions of values, parsed from payload headers.

use super::dimensions::{Dimensions, MAX_DIMENSIONS};
use super::{
    Array, Class, DType, DimensionsError, ElementType, MaskedHeader, NumpyError, NumpyErrorKind,
    Order, RecordType,
};
use daskwire::message::{MessageErrorKind, PayloadHeader, PayloadKind, Serializer};
use daskwire::msgpack::{Reader, Token};

/// The description of a payload or an element of a collection, from its header.
///
/// `MAX` is the largest number of [dimensions](Dimensions) of arrays. Default:
/// all that numpy supports.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Description<'a, const MAX: usize = MAX_DIMENSIONS> {
    /// `bytes`: all logical frames, joined (PROTOCOL HEADER-5).
    Bytes,
    /// A `bytearray`: all logical frames, joined.
    ByteArray,
    /// A `memoryview`.
    MemoryView(MemoryViewHeader<'a, MAX>),
    /// A numpy array in one logical frame.
    Array(ArrayHeader<'a, MAX>),
    /// A numpy masked array.
    MaskedArray(MaskedHeader<'a>),
    /// `numpy.ma.masked`, the value of a masked element.
    Masked,
    /// A pickle with its out-of-band buffers: of the family pickle, or a numpy
    /// array of objects. See [`PickledPayload`](super::PickledPayload).
    Pickle,
    /// A value of the dask family of an unsupported class.
    Other(Class<'a>),
    /// A collection with a header per element (PROTOCOL HEADER-11): see
    /// [`PayloadHeader::sub_headers`].
    Collection,
    /// A value of another family.
    Family(Serializer<'a>),
}

impl<'a> Description<'a> {
    /// Parses a header of the kind `Serialized`.
    ///
    /// # Errors
    ///
    /// A fault in the header, as a [`NumpyErrorKind`].
    pub fn of(header: &PayloadHeader<'a>) -> Result<Self, NumpyError> {
        Self::of_sized(header)
    }
}

impl<'a, const MAX: usize> Description<'a, MAX> {
    /// Like [`of`](Description::of), for any `MAX`.
    ///
    /// # Errors
    ///
    /// As [`of`](Description::of).
    pub fn of_sized(header: &PayloadHeader<'a>) -> Result<Self, NumpyError> {
        Self::of_kind(header, PayloadKind::Serialized)
    }

    pub(super) fn of_kind(
        header: &PayloadHeader<'a>,
        kind: PayloadKind,
    ) -> Result<Self, NumpyError> {
        if kind == PayloadKind::Pickled {
            return Ok(Self::Pickle);
        }
        if header.is_collection()? {
            return Ok(Self::Collection);
        }
        match header.serializer()? {
            Serializer::Dask => {}
            Serializer::Pickle => return Ok(Self::Pickle),
            family => return Ok(Self::Family(family)),
        }
        Ok(match Class::of(header)? {
            Class::BYTES => Self::Bytes,
            Class::BYTEARRAY => Self::ByteArray,
            Class::MEMORYVIEW => Self::MemoryView(MemoryViewHeader::read(header)?),
            class if class.is_array() => ArrayHeader::describe(header)?,
            Class {
                module: "numpy.ma" | "numpy.ma.core",
                name,
            } => match name {
                "MaskedArray" => Self::MaskedArray(MaskedHeader::read(header)?),
                "MaskedConstant" => Self::Masked,
                _ => Self::Other(Class::of(header)?),
            },
            class => Self::Other(class),
        })
    }
}

/// The header of a `memoryview`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryViewHeader<'a, const MAX: usize = MAX_DIMENSIONS> {
    format: &'a str,
    /// The shape, with strides of 0, since the length of an element is unknown.
    shape: Dimensions<MAX>,
    location: (usize, usize),
}

impl<'a, const MAX: usize> MemoryViewHeader<'a, MAX> {
    fn read(header: &PayloadHeader<'a>) -> Result<Self, NumpyError> {
        let own = header.type_header()?;
        let (frame, at) = own.entry_location("format");
        let wrong = |kind| NumpyError {
            frame,
            at,
            kind: NumpyErrorKind::Message(kind),
        };
        let key = "format";
        let value = own.get(key);
        let value = value.ok_or(wrong(MessageErrorKind::EntryMissing { key }))?;
        let format = Reader::new(value).str().map(|string| string.to_str());
        let format = format.map_err(|_| {
            let expected = "a str";
            wrong(MessageErrorKind::EntryKind { key, expected })
        })?;
        let shape = shape(&own, "shape")?;
        Ok(Self {
            format,
            shape,
            location: (frame, at),
        })
    }

    /// The format of the elements, as in Python's `struct`; see
    /// [`DType::from_format`].
    pub const fn format(&self) -> &'a str {
        self.format
    }

    /// The number of elements along each dimension.
    pub fn shape(&self) -> &[usize] {
        self.shape.shape()
    }

    /// Creates the array over the bytes, which are in C order.
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::Dimensions`] if the length of the bytes does not
    ///   match the shape;
    /// * [`NumpyErrorKind::NotPlain`] if the format is not that of a single
    ///   element.
    pub fn over<'d>(&self, bytes: &'d [u8]) -> Result<Array<'d, MAX>, NumpyError> {
        let (frame, at) = self.location;
        let error = |kind| NumpyError { frame, at, kind };
        let wrong = |kind: DimensionsError| error(kind.into());
        let count = self.shape.item_count();
        let count = count.ok_or(wrong(DimensionsError::TooLarge))?;
        // The element length of an empty view is unknown.
        let lens = [1_usize, 2, 4, 8];
        let item_len = match bytes.len().checked_div(count) {
            Some(len) => len,
            None => lens
                .into_iter()
                .find(|len| DType::from_format(self.format, *len).is_some())
                .ok_or(error(NumpyErrorKind::NotPlain))?,
        };
        let needed = item_len.saturating_mul(count);
        if needed != bytes.len() {
            let available = bytes.len();
            return Err(wrong(DimensionsError::LengthDiffers { needed, available }));
        }
        let dtype =
            DType::from_format(self.format, item_len).ok_or(error(NumpyErrorKind::NotPlain))?;
        Dimensions::sized(self.shape(), Order::C, item_len)
            .and_then(|dimensions| Array::check(dtype, dimensions, bytes))
            .map(|array| array.described(None, false))
            .map_err(wrong)
    }
}

/// The header of a numpy array (PROTOCOL HEADER-6 and HEADER-7).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArrayHeader<'a, const MAX: usize = MAX_DIMENSIONS> {
    element: ElementType<'a>,
    dimensions: Dimensions<MAX>,
    writeable: Option<bool>,
    is_matrix: bool,
    /// The location of `shape`, for errors.
    location: (usize, usize),
}

impl<'a, const MAX: usize> ArrayHeader<'a, MAX> {
    pub(super) fn describe(header: &PayloadHeader<'a>) -> Result<Description<'a, MAX>, NumpyError> {
        let own = header.type_header()?;
        let is_true = |key| own.get(key) == Some(&[0xc3]);
        if is_true("pickle") {
            return Ok(Description::Pickle);
        }
        let element = element_type(&own)?;
        let stored = shape::<MAX>(&own, "shape")?;
        let (frame, at) = own.entry_location("strides");
        let wrong = |error: DimensionsError| NumpyError {
            frame,
            at,
            kind: error.into(),
        };
        let mut dimensions = match own.strides()? {
            Some(strides) => {
                let mut dimensions = Dimensions::SCALAR;
                let mut counts = stored.shape().iter();
                let found = strides.count_left() as usize;
                for (axis, stride) in strides.signed_numbers().enumerate() {
                    let stride = stride?;
                    let count = counts.next().ok_or(wrong(DimensionsError::CountsDiffer {
                        shape: stored.shape().len(),
                        other: found,
                    }))?;
                    let distance = stored.distance(axis, stride).map_err(wrong)?;
                    dimensions.push(*count, distance).map_err(wrong)?;
                }
                if counts.next().is_some() {
                    return Err(wrong(DimensionsError::CountsDiffer {
                        shape: stored.shape().len(),
                        other: found,
                    }));
                }
                dimensions
            }
            None => match element.dtype() {
                Some(dtype) => {
                    Dimensions::sized(stored.shape(), Order::C, dtype.item_len()).map_err(wrong)?
                }
                None => return Err(header.missing_entry("strides").into()),
            },
        };
        // PROTOCOL TYPED-4: an empty list has no effect.
        if let Some(value) = own.get("broadcast_to")
            && !matches!(value, [0x90 | 0xc0])
        {
            let (frame, at) = own.entry_location("broadcast_to");
            let wrong = |error: DimensionsError| NumpyError {
                frame,
                at,
                kind: error.into(),
            };
            let wanted = shape::<MAX>(&own, "broadcast_to")?;
            dimensions = dimensions.broadcast_to(wanted.shape()).map_err(wrong)?;
        }
        let writeable = header.writeable()?;
        let writeable = writeable.and_then(|list| list.flags().next().flatten());
        Ok(Description::Array(Self {
            element,
            dimensions,
            writeable,
            is_matrix: is_true("matrix"),
            location: own.entry_location("shape"),
        }))
    }

    /// The type of the elements (PROTOCOL HEADER-6).
    pub const fn element_type(&self) -> ElementType<'a> {
        self.element
    }

    /// Sets the type that the pickle of its
    /// [`element_type`](Self::element_type) represents.
    pub const fn with_element_type<'e>(self, element: ElementType<'e>) -> ArrayHeader<'e, MAX> {
        ArrayHeader {
            element,
            dimensions: self.dimensions,
            writeable: self.writeable,
            is_matrix: self.is_matrix,
            location: self.location,
        }
    }

    /// The shape and strides.
    pub const fn dimensions(&self) -> &Dimensions<MAX> {
        &self.dimensions
    }

    /// The number of elements along each dimension.
    pub fn shape(&self) -> &[usize] {
        self.dimensions.shape()
    }

    /// Whether a reader may change the array; `None` if the sender did not
    /// declare it (before 2.23.0, and for elements of collections up to
    /// 2021.2.0).
    pub const fn writeable(&self) -> Option<bool> {
        self.writeable
    }

    /// Whether the array is a `numpy.matrix`.
    pub const fn is_matrix(&self) -> bool {
        self.is_matrix
    }

    /// The length of the elements in bytes; `None` if their type is unknown or
    /// the length overflows.
    pub(super) fn stored_len(&self) -> Option<usize> {
        let item_len = self.element.dtype()?.item_len();
        self.dimensions.stored().len(item_len).ok()
    }

    /// Creates the array over the bytes of its logical frame. For records
    /// [`element_type`](Self::element_type) has the fields.
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::NotPlain`] if the type of the elements is unknown;
    /// * [`NumpyErrorKind::Dimensions`] if the length of the bytes is wrong, or
    ///   elements are out of bounds.
    pub fn over<'d>(&self, bytes: &'d [u8]) -> Result<Array<'d, MAX>, NumpyError> {
        let (frame, at) = self.location;
        let error = |kind| NumpyError { frame, at, kind };
        let dtype = self.element.dtype();
        let dtype = dtype.ok_or(error(NumpyErrorKind::NotPlain))?;
        Array::check(dtype, self.dimensions, bytes)
            .map(|array| array.described(self.writeable, self.is_matrix))
            .map_err(|wrong| error(wrong.into()))
    }
}

fn shape<const MAX: usize>(
    own: &PayloadHeader<'_>,
    key: &'static str,
) -> Result<Dimensions<MAX>, NumpyError> {
    let (frame, at) = own.entry_location(key);
    let wrong = |error: DimensionsError| NumpyError {
        frame,
        at,
        kind: error.into(),
    };
    let list = own.list(key)?.ok_or(own.missing_entry(key))?;
    let mut dimensions = Dimensions::SCALAR;
    for count in list.numbers() {
        let count = usize::try_from(count?).map_err(|_| wrong(DimensionsError::TooLarge))?;
        dimensions.push(count, 0).map_err(wrong)?;
    }
    Ok(dimensions)
}

/// PROTOCOL TYPED-2: `"<f8"` or a list of fields before 1.17.0, `[0, …]` with
/// either or `[1, pickle]` since.
fn element_type<'a>(own: &PayloadHeader<'a>) -> Result<ElementType<'a>, NumpyError> {
    let (frame, at) = own.entry_location("dtype");
    let error = |kind| NumpyError { frame, at, kind };
    let value = own.get("dtype").ok_or(own.missing_entry("dtype"))?;
    let wrong = error(NumpyErrorKind::Message(MessageErrorKind::EntryKind {
        key: "dtype",
        expected: "a type string, a list of fields, or 0 or 1 with one of them or a pickle",
    }));
    let mut reader = Reader::new(value);
    let mut inner = value;
    let mut is_pickle = false;
    // A list of two fields also has two items, but no tag.
    if reader.array() == Ok(2) && !matches!(reader.peek(), Ok(Token::Array(_))) {
        is_pickle = match reader.token() {
            Ok(Token::UInt(0) | Token::Bool(false)) => false,
            Ok(Token::UInt(1) | Token::Bool(true)) => true,
            _ => return Err(wrong),
        };
        inner = reader.remaining();
    }
    let found = match Reader::new(inner).token() {
        Ok(Token::Bin(pickle)) if is_pickle => Ok(ElementType::Pickled(pickle)),
        Ok(Token::Str(string)) if !is_pickle => {
            DType::from_bytes(string.as_bytes()).map(ElementType::Plain)
        }
        Ok(Token::Array(_)) if !is_pickle => RecordType::from_list(inner).map(ElementType::Record),
        _ => return Err(wrong),
    };
    found.map_err(|kind| error(NumpyErrorKind::DType(kind)))
}
