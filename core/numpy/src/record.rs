//! Records: numpy's structured types.

use super::{DType, DTypeError, Dimensions, Order};
#[cfg(feature = "alloc")]
use crate::known::{TreeFields, TreeRecord};
use daskwire::invariant::OrDefaultIfBug;
use daskwire::msgpack::{Malformed, Reader, Token};

/// The maximum depth of nested records.
pub(crate) const MAX_DEPTH: u8 = 16;

pub(crate) const TOO_DEEP: &str = "records in at most 16 levels";
pub(crate) const TOO_LARGE: &str = "lengths that do not overflow";
#[cfg(feature = "alloc")]
pub(crate) const OUTSIDE: &str = "a field within its record";

/// The type of the elements of an array or of a field of a record.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ElementType<'a> {
    /// A plain type.
    Plain(DType),
    /// Records.
    Record(RecordType<'a>),
    /// The pickle of a `numpy.dtype`, as headers have it for records and void
    /// elements. With the feature `alloc`, `known::element_type` reads its tree.
    Pickled(&'a [u8]),
}

impl<'a> ElementType<'a> {
    /// The type as a [`DType`], which has only the length for records; `None` if it is
    /// unknown.
    pub const fn dtype(&self) -> Option<DType> {
        match self {
            Self::Plain(dtype) => Some(*dtype),
            Self::Record(record) => Some(record.dtype()),
            Self::Pickled(_) => None,
        }
    }
}

/// The type of records: fields of any type at any offset (PROTOCOL TYPED-8).
///
/// It borrows a list of fields or the tree of a pickle, and parses it again for
/// each access to a field.
///
/// ```
/// use daskwire_numpy::{Array, DType, Order, RecordType};
///
/// // [["n", "<u4"], ["x", "<f8"]] in MessagePack
/// let record = RecordType::from_list(b"\x92\x92\xa1n\xa3<u4\x92\xa1x\xa3<f8")?;
/// assert_eq!((record.field_count(), record.item_len()), (2, 12));
///
/// let bytes = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 64];
/// let array = Array::new(record.dtype(), &[2], Order::C, &bytes)?;
/// let x = record.field("x")?.ok_or("there is no x")?;
/// assert_eq!((x.offset(), x.dtype()), (4, Some(DType::F64)));
/// assert!(array.field(&x)?.elements::<f64>()?.eq([2.0, 3.0]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A field may have records again, in up to 16 levels, and a pickle may share a
/// type: a few hundred bytes are enough for an astronomical number of nested
/// fields. Use a budget to visit all of them.
///
/// Names are borrowed, so those of protocol 0 must be ASCII.
///
/// Two types are equal if their encodings are equal, and those of trees if the
/// trees are equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordType<'a> {
    source: Source<'a>,
    field_count: usize,
    item_len: usize,
    /// The levels of records allowed in it.
    depth: u8,
}

/// The source of the fields.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source<'a> {
    /// The list at offset `at` in a `numpy.dtype.descr` in MessagePack.
    List { list: &'a [u8], at: usize },
    /// The tree of the pickle of a `numpy.dtype`.
    #[cfg(feature = "alloc")]
    Tree(TreeRecord<'a>),
}

impl<'a> RecordType<'a> {
    /// Parses `numpy.dtype.descr` in MessagePack: a list with `[name, type]` or
    /// `[name, type, shape]` per field, where the name may be `[title, name]`
    /// and the type a nested list of fields.
    ///
    /// A field with an empty name is padding, although numpy invents a name for
    /// it.
    ///
    /// # Errors
    ///
    /// [`DTypeError`] if the list is invalid.
    pub fn from_list(list: &'a [u8]) -> Result<Self, DTypeError> {
        let mut whole = Reader::new(list);
        let checked = whole.skip().and_then(|_| whole.finish());
        checked.map_err(|error| malformed(0, error))?;
        Self::list_at(list, 0, MAX_DEPTH)
    }

    fn list_at(list: &'a [u8], at: usize, depth: u8) -> Result<Self, DTypeError> {
        let (field_count, item_len) = measure(list, at, depth)?;
        Ok(Self {
            source: Source::List { list, at },
            field_count,
            item_len,
            depth,
        })
    }

    #[cfg(feature = "alloc")]
    pub(crate) const fn tree(
        record: TreeRecord<'a>,
        field_count: usize,
        item_len: usize,
        depth: u8,
    ) -> Self {
        Self {
            source: Source::Tree(record),
            field_count,
            item_len,
            depth,
        }
    }

    /// The number of fields, not counting nested ones.
    pub const fn field_count(&self) -> usize {
        self.field_count
    }

    /// The length of a record, in bytes.
    pub const fn item_len(&self) -> usize {
        self.item_len
    }

    /// The element type of an [`Array`](super::Array) of such records.
    pub const fn dtype(&self) -> DType {
        DType::record(self.item_len)
    }

    /// The fields in order. The iterator ends after an error.
    pub fn fields(&self) -> Fields<'a> {
        Fields {
            walk: match self.source {
                Source::List { list, at } => Walk::list(list, at),
                #[cfg(feature = "alloc")]
                Source::Tree(record) => Walk::Tree(record.fields()),
            },
            left: self.field_count,
            #[cfg(feature = "alloc")]
            item_len: self.item_len,
            depth: self.depth,
        }
    }

    /// The field with this name or title, as in numpy.
    ///
    /// # Errors
    ///
    /// [`DTypeError`] if this field or an earlier one is invalid.
    pub fn field(&self, name: &str) -> Result<Option<Field<'a>>, DTypeError> {
        let mut titled = None;
        for field in self.fields() {
            let field = field?;
            if field.name == name {
                return Ok(Some(field));
            }
            if field.title == Some(name) && titled.is_none() {
                titled = Some(field);
            }
        }
        Ok(titled)
    }
}

/// A field of records.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field<'a> {
    pub(crate) name: &'a str,
    pub(crate) title: Option<&'a str>,
    pub(crate) offset: usize,
    pub(crate) element_type: ElementType<'a>,
    pub(crate) dimensions: Dimensions,
}

impl<'a> Field<'a> {
    /// The name of the field.
    pub const fn name(&self) -> &'a str {
        self.name
    }

    /// The title of the field, if it is a string.
    pub const fn title(&self) -> Option<&'a str> {
        self.title
    }

    /// The offset of the field in the record, in bytes.
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// The type of the field; for an array, the type of its elements.
    pub const fn element_type(&self) -> ElementType<'a> {
        self.element_type
    }

    /// The type as a [`DType`], see [`ElementType::dtype`].
    pub const fn dtype(&self) -> Option<DType> {
        self.element_type.dtype()
    }

    /// The shape and strides of a field that is an array, which is contiguous
    /// in C order. Other fields have no dimensions.
    pub const fn dimensions(&self) -> &Dimensions {
        &self.dimensions
    }

    /// The shape of a field that is an array; empty for other fields.
    pub fn shape(&self) -> &[usize] {
        self.dimensions.shape()
    }
}

/// Iterator over the fields of records, see [`RecordType::fields`].
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    walk: Walk<'a>,
    left: usize,
    #[cfg(feature = "alloc")]
    item_len: usize,
    depth: u8,
}

#[derive(Clone, Debug)]
enum Walk<'a> {
    List {
        list: &'a [u8],
        /// Offset of the next field in the list.
        at: usize,
        /// Offset of the next field in the record.
        offset: usize,
    },
    #[cfg(feature = "alloc")]
    Tree(TreeFields<'a>),
}

impl<'a> Walk<'a> {
    fn list(list: &'a [u8], at: usize) -> Self {
        let mut reader = Reader::new(list.get(at..).or_default_if_bug());
        // The list has been validated before.
        let _ = reader.array();
        Self::List {
            list,
            at: at.saturating_add(reader.position()),
            offset: 0,
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, DTypeError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let found = match &mut self.walk {
            Walk::List { list, at, offset } => listed(list, at, offset, self.depth),
            #[cfg(feature = "alloc")]
            Walk::Tree(fields) => fields.next(self.depth, self.item_len),
        };
        if found.is_err() {
            self.left = 0;
        }
        Some(found)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left > 0), Some(self.left))
    }
}

impl core::iter::FusedIterator for Fields<'_> {}

const LIST: &str = "[name, type] or [name, type, shape] of a field, in MessagePack";

fn malformed(at: usize, error: Malformed) -> DTypeError {
    DTypeError {
        at: at.saturating_add(error.at),
        expected: LIST,
    }
}

/// The number of fields in the list at `at`, and their total length.
fn measure(list: &[u8], at: usize, depth: u8) -> Result<(usize, usize), DTypeError> {
    /// A list that is not complete yet.
    #[derive(Clone, Copy, Default)]
    struct Open {
        left: u32,
        len: usize,
        /// Whether a shape follows the list.
        has_shape: bool,
    }
    let mut levels = [Open::default(); MAX_DEPTH as usize];
    let mut open_count = 0_usize;
    let mut reader = Reader::new(list.get(at..).or_default_if_bug());
    let fault = |error| malformed(at, error);
    let field_count = reader.array().map_err(fault)?;
    let mut now = Open {
        left: field_count,
        ..Open::default()
    };
    loop {
        let here = |reader: &Reader<'_>, expected| DTypeError {
            at: at.saturating_add(reader.position()),
            expected,
        };
        // The length of an element, and whether a shape follows.
        let (len, has_shape) = match now.left.checked_sub(1) {
            Some(left) => {
                let part_count = reader.array().map_err(fault)?;
                if !matches!(part_count, 2 | 3) {
                    return Err(here(&reader, LIST));
                }
                reader.skip().map_err(fault)?;
                now.left = left;
                let has_shape = part_count == 3;
                match reader.peek().map_err(fault)? {
                    Token::Array(_) => {
                        if open_count.saturating_add(1) >= usize::from(depth) {
                            return Err(here(&reader, TOO_DEEP));
                        }
                        let left = reader.array().map_err(fault)?;
                        if let Some(place) = levels.get_mut(open_count) {
                            *place = now;
                            open_count = open_count.saturating_add(1);
                        }
                        now = Open {
                            left,
                            len: 0,
                            has_shape,
                        };
                        continue;
                    }
                    _ => (plain(&mut reader, at)?.item_len(), has_shape),
                }
            }
            None => {
                let Some(outer) = open_count.checked_sub(1) else {
                    return Ok((field_count as usize, now.len));
                };
                let done = now;
                now = levels.get(outer).copied().or_default_if_bug();
                open_count = outer;
                (done.len, done.has_shape)
            }
        };
        let shape = sub_shape(&mut reader, at, has_shape)?;
        let sum = shape.len(len).ok().and_then(|len| now.len.checked_add(len));
        now.len = sum.ok_or(here(&reader, TOO_LARGE))?;
    }
}

fn plain(reader: &mut Reader<'_>, at: usize) -> Result<DType, DTypeError> {
    let string = reader.raw_str().map_err(|error| malformed(at, error))?;
    let string = string.as_bytes();
    let end = at.saturating_add(reader.position());
    DType::from_bytes(string).map_err(|error| DTypeError {
        at: end.saturating_sub(string.len()).saturating_add(error.at),
        ..error
    })
}

/// Parses an optional shape or single number; all strides are 0.
fn sub_shape(
    reader: &mut Reader<'_>,
    at: usize,
    has_shape: bool,
) -> Result<Dimensions, DTypeError> {
    const SHAPE: &str = "the shape of a field, in numbers of 0 or more";
    let mut shape = Dimensions::SCALAR;
    if !has_shape {
        return Ok(shape);
    }
    let error = DTypeError {
        at: at.saturating_add(reader.position()),
        expected: SHAPE,
    };
    let count = match reader.peek().map_err(|_| error)? {
        Token::Array(_) => reader.array().map_err(|_| error)?,
        _ => 1,
    };
    for _ in 0..count {
        let count = reader.u64().map_err(|_| error)?;
        let count = usize::try_from(count).map_err(|_| error)?;
        shape.push(count, 0).map_err(|_| error)?;
    }
    Ok(shape)
}

/// Reads the field at `at` of a validated list and advances `at` past it.
fn listed<'a>(
    list: &'a [u8],
    at: &mut usize,
    offset: &mut usize,
    depth: u8,
) -> Result<Field<'a>, DTypeError> {
    let base = *at;
    let mut reader = Reader::new(list.get(base..).or_default_if_bug());
    let fault = |error| malformed(base, error);
    let part_count = reader.array().map_err(fault)?;
    let title = match reader.peek().map_err(fault)? {
        Token::Array(2) => {
            reader.array().map_err(fault)?;
            Some(reader.str().map_err(fault)?.to_str())
        }
        _ => None,
    };
    let name = reader.str().map_err(fault)?.to_str();
    let (element_type, item_len) = match reader.peek().map_err(fault)? {
        Token::Array(_) => {
            let at = base.saturating_add(reader.position());
            let expected = TOO_DEEP;
            let depth = depth.checked_sub(1).ok_or(DTypeError { at, expected })?;
            let record = RecordType::list_at(list, at, depth)?;
            reader.skip().map_err(fault)?;
            (ElementType::Record(record), record.item_len)
        }
        _ => {
            let dtype = plain(&mut reader, base)?;
            (ElementType::Plain(dtype), dtype.item_len())
        }
    };
    let shape = sub_shape(&mut reader, base, part_count == 3)?;
    let too_large = DTypeError {
        at: base,
        expected: TOO_LARGE,
    };
    let dimensions =
        Dimensions::contiguous(shape.shape(), Order::C, item_len).map_err(|_| too_large)?;
    let len = dimensions.len(item_len).map_err(|_| too_large)?;
    let field = Field {
        name,
        title,
        offset: *offset,
        element_type,
        dimensions,
    };
    *offset = offset.saturating_add(len);
    *at = base.saturating_add(reader.position());
    Ok(field)
}
