//! Objects pickled by numpy: element types, arrays, scalars and masked arrays
//! (PROTOCOL TYPED-7, TYPED-8, TYPED-9, TYPED-10).

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{
    Context, ConvertError, ConvertErrorKind, ConvertResult, Known, encoded_ascii, expected, fail,
    invalid, list, unsupported,
};
use crate::{
    Array, ByteOrder, DType, DTypeError, Dimensions, DimensionsError, Element, ElementType, Field,
    Kind, MAX_DEPTH, NumpyError, OUTSIDE, Order, RecordType, TOO_DEEP, TOO_LARGE, TimeUnit,
};
use daskwire_pickle::tree::{
    ByteString, Entries, Global, Items, Node, Object, Operation, Origin, Str, Value,
};

/// The maximum number of dictionary entries visited, and of times 64 bytes of names
/// read, to find all fields of a type.
const BUDGET: u32 = 1 << 22;

/// A numpy array in a pickle. Its data is borrowed from the pickle or a buffer,
/// or copied for protocols 0 to 2.
///
/// ```
/// use daskwire_numpy::known;
/// use daskwire_pickle::tree::{Registry, Tree};
/// use daskwire_numpy::DType;
///
/// // pickle.dumps(numpy.array([1.5]), 5, buffer_callback=buffers.append)
/// let pickle = b"\x80\x05\x8c\x13numpy._core.numeric\x8c\x0b_frombuffer\x93(\x97\
///     \x8c\x05numpy\x8c\x05dtype\x93\x8c\x02f8\x89\x88\x87R(K\x03\x8c\x01<NNN\
///     J\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tbK\x01\x85\x8c\x01CtR.";
/// let buffers = [1.5_f64.to_le_bytes()];
/// let tree = Tree::with_buffers(pickle, &buffers)?;
/// let mut registry = Registry::new();
/// registry.allow_all(known::NUMPY);
/// let known::KnownValue::Array(found) = known::convert(&registry, tree.root())? else {
///     return Err("no array".into());
/// };
///
/// let array = found.array();
/// assert_eq!((array.dtype(), array.shape()), (DType::F64, &[1][..]));
/// assert!(array.elements::<f64>()?.eq([1.5]));
/// assert_eq!(array.bytes().as_ptr(), buffers[0].as_ptr()); // never copied
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct NdArray<'t, 'p> {
    element_type: ElementType<'t>,
    dtype: DType,
    /// The shape and strides; boxed because of their size.
    dimensions: Box<Dimensions>,
    data: Cow<'p, [u8]>,
    is_read_only: bool,
    is_matrix: bool,
}

impl<'t, 'p> NdArray<'t, 'p> {
    /// The array.
    pub fn array(&self) -> Array<'_> {
        self.over(&self.data)
    }

    /// The array over the pickle or a buffer; `None` if its data is a copy, as
    /// in protocols 0 to 2.
    pub fn borrowed(&self) -> Option<Array<'p>> {
        match self.data {
            Cow::Borrowed(data) => Some(self.over(data)),
            Cow::Owned(_) => None,
        }
    }

    fn over<'d>(&self, data: &'d [u8]) -> Array<'d> {
        Array::known(self.dtype, *self.dimensions, data)
            .described(Some(!self.is_read_only), self.is_matrix)
    }

    /// The type of the elements, including the fields of records.
    pub const fn element_type(&self) -> ElementType<'t> {
        self.element_type
    }
}

/// A numpy scalar.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar<'t, 'p> {
    element_type: ElementType<'t>,
    dtype: DType,
    data: Cow<'p, [u8]>,
}

impl<'t> Scalar<'t, '_> {
    /// The scalar as an array without dimensions.
    pub fn array(&self) -> Array<'_> {
        Array::known(self.dtype, Dimensions::SCALAR, &self.data)
    }

    /// The type of the scalar, including the fields of a record.
    pub const fn element_type(&self) -> ElementType<'t> {
        self.element_type
    }

    /// The type of the scalar.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// The bytes of the scalar.
    pub fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// The value of the scalar.
    ///
    /// # Errors
    ///
    /// [`NumpyErrorKind::OtherType`](crate::NumpyErrorKind::OtherType) if `E`
    /// is not its type.
    pub fn value<E: Element>(&self) -> Result<E, NumpyError> {
        let element = self.array().elements::<E>()?.next();
        // An array without dimensions has one element.
        Ok(element.unwrap_or(E::ZERO))
    }
}

/// An array of objects: references, or records that contain some.
#[derive(Clone, Debug)]
pub struct ObjectArray<'t, 'p> {
    element_type: ElementType<'t>,
    shape: Vec<usize>,
    items: Items<'t, 'p>,
}

impl<'t, 'p> ObjectArray<'t, 'p> {
    /// The number of objects along each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The objects in C order; their number matches the shape. Records are
    /// tuples.
    pub const fn items(&self) -> Items<'t, 'p> {
        self.items
    }

    /// The type of the elements.
    pub const fn element_type(&self) -> ElementType<'t> {
        self.element_type
    }
}

/// A numpy masked array in a pickle.
#[derive(Clone, Debug)]
pub struct MaskedArray<'t, 'p> {
    data: MaskedData<'t, 'p>,
    mask_type: DType,
    mask_dimensions: Box<Dimensions>,
    mask: Cow<'p, [u8]>,
    fill_value: Option<Node<'t, 'p>>,
}

/// The data of a masked array.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MaskedData<'t, 'p> {
    /// An array.
    Array(NdArray<'t, 'p>),
    /// An array of objects.
    Objects(ObjectArray<'t, 'p>),
}

impl<'t, 'p> MaskedArray<'t, 'p> {
    /// The masked array; `None` for objects.
    pub fn array(&self) -> Option<crate::MaskedArray<'_>> {
        match &self.data {
            MaskedData::Array(data) => {
                crate::MaskedArray::new(data.array(), Some(self.mask())).ok()
            }
            MaskedData::Objects(_) => None,
        }
    }

    /// All elements, including masked ones.
    pub const fn data(&self) -> &MaskedData<'t, 'p> {
        &self.data
    }

    /// The mask: booleans; for records, records with a boolean for each element
    /// of each field, without gaps.
    pub fn mask(&self) -> Array<'_> {
        Array::known(self.mask_type, *self.mask_dimensions, &self.mask)
    }

    /// The fill value for masked elements, an array without dimensions, if it
    /// is not numpy's default.
    pub const fn fill_value(&self) -> Option<Node<'t, 'p>> {
        self.fill_value
    }
}

impl From<DTypeError> for ConvertError {
    fn from(error: DTypeError) -> Self {
        Self {
            offset: error.at,
            kind: ConvertErrorKind::Expected {
                what: error.expected,
            },
        }
    }
}

fn wrong(node: Node<'_, '_>) -> impl Fn(DimensionsError) -> ConvertError {
    let offset = node.offset();
    move |error| ConvertError {
        offset,
        kind: ConvertErrorKind::Dimensions(error),
    }
}

/// The state of an array:
/// `(1, shape, type, whether it is in Fortran order, data)` and further items.
struct State<'t, 'p, const N: usize> {
    node: Node<'t, 'p>,
    element_type: ElementType<'t>,
    dtype: DType,
    shape: Dimensions,
    order: Order,
    data: Node<'t, 'p>,
    rest: [Node<'t, 'p>; N],
}

impl<'t, 'p> Context<'_, 't, 'p> {
    /// An element type, and the shape of elements that are arrays.
    pub(super) fn any_dtype(
        self,
        object: &Object<'t, 'p>,
    ) -> ConvertResult<(ElementType<'t>, Dimensions)> {
        let found = read_type(object.node, object.global, MAX_DEPTH, true)?;
        Ok((found.element_type, found.dimensions))
    }

    fn dtype_of(self, node: Node<'t, 'p>) -> ConvertResult<(ElementType<'t>, DType)> {
        let object = self.object_of(node, Known::DType)?;
        let found = read_type(node, object.global, MAX_DEPTH, false)?.element_type;
        match found.dtype() {
            Some(dtype) => Ok((found, dtype)),
            None => unsupported(node, "this type of elements"),
        }
    }

    /// `scalar(TYPE, BYTES)`.
    pub(super) fn scalar(
        self,
        dtype: Node<'t, 'p>,
        data: Node<'t, 'p>,
    ) -> ConvertResult<Scalar<'t, 'p>> {
        let (element_type, dtype) = self.dtype_of(dtype)?;
        if dtype.kind() == Kind::Object {
            return unsupported(data, "a scalar that is an object");
        }
        let bytes = self.data(data)?;
        if bytes.len() != dtype.item_len() {
            return invalid(data, "the data of the scalar is not of its type's length");
        }
        Ok(Scalar {
            element_type,
            dtype,
            data: bytes,
        })
    }

    /// `_frombuffer(BUFFER, TYPE, SHAPE, ORDER)`, with the order of the axes if
    /// ORDER is neither `C` nor `F`.
    pub(super) fn frombuffer(self, object: &Object<'t, 'p>) -> ConvertResult<NdArray<'t, 'p>> {
        let node = object.node;
        let mut arguments = object.arguments;
        let mut next = || arguments.next().unwrap_or(node);
        let [buffer, dtype, shape, order] = [(); 4].map(|()| next());
        let (buffer, is_read_only) = match buffer.value() {
            Value::ReadOnly(inner) => (inner, true),
            Value::Bytes(_) => (buffer, true),
            Value::ByteArray { read_only, .. } | Value::Buffer { read_only, .. } => {
                (buffer, read_only)
            }
            _ => (buffer, false),
        };
        let data = self.data(buffer)?;
        let (element_type, dtype) = self.dtype_of(dtype)?;
        let shape = shape_of(shape)?;
        let item_len = dtype.item_len();
        let order = match keyword(order) {
            Some("C" | "K") => (Order::C, keyword(order) == Some("K")),
            Some("F") => (Order::Fortran, false),
            _ => return expected(node, "an order of axes"),
        };
        let mut dimensions =
            Dimensions::contiguous(shape.shape(), order.0, item_len).map_err(wrong(node))?;
        if order.1 {
            dimensions = transposed(&dimensions, &shape_of(next())?).ok_or(ConvertError {
                offset: node.offset(),
                kind: ConvertErrorKind::Invalid {
                    what: "the order of the axes does not have each of them once",
                },
            })?;
        }
        self.over(node, element_type, dtype, dimensions, data)
            .map(|array| NdArray {
                is_read_only,
                ..array
            })
    }

    fn over(
        self,
        node: Node<'t, 'p>,
        element_type: ElementType<'t>,
        dtype: DType,
        dimensions: Dimensions,
        data: Cow<'p, [u8]>,
    ) -> ConvertResult<NdArray<'t, 'p>> {
        if dtype.kind() == Kind::Object {
            return unsupported(node, "an array of objects as bytes");
        }
        Array::check(dtype, dimensions, &data).map_err(wrong(node))?;
        Ok(NdArray {
            element_type,
            dtype,
            dimensions: Box::new(dimensions),
            data,
            is_read_only: false,
            is_matrix: false,
        })
    }

    /// The meaning of a class of arrays.
    fn class(self, node: Node<'t, 'p>, wanted: &[Known]) -> ConvertResult<Known> {
        match self.registry.object(node) {
            Some((known, object)) if wanted.contains(&known) => match object.origin {
                Origin::Name => Ok(known),
                _ => expected(node, "a class of arrays"),
            },
            _ => fail(node, ConvertErrorKind::NotAllowed),
        }
    }

    fn state<const N: usize>(self, object: &Object<'t, 'p>) -> ConvertResult<State<'t, 'p, N>> {
        let node = object.node;
        let mut operations = object.operations();
        let (Some(Operation::State(state)), None) = (operations.next(), operations.next()) else {
            return expected(node, "an array with a state");
        };
        let mut parts = state.node().items();
        let mut next = || match parts.next() {
            Some(part) => Ok(part),
            None => expected(node, "the state of an array"),
        };
        let [_version, shape, dtype] = [next()?, next()?, next()?];
        let (is_fortran, data) = (next()?, next()?);
        let mut rest = [node; N];
        for place in &mut rest {
            *place = next()?;
        }
        if parts.next().is_some() {
            return expected(node, "the state of an array");
        }
        let (element_type, dtype) = self.dtype_of(dtype)?;
        // Protocol 0 has an integer.
        let is_fortran = is_fortran
            .as_bool()
            .unwrap_or(is_fortran.as_i64() == Some(1));
        Ok(State {
            node,
            element_type,
            dtype,
            shape: shape_of(shape)?,
            order: if is_fortran { Order::Fortran } else { Order::C },
            data,
            rest,
        })
    }

    /// The data of a state: bytes, or a list of objects.
    fn state_data<const N: usize>(
        self,
        state: &State<'t, 'p, N>,
    ) -> ConvertResult<MaskedData<'t, 'p>> {
        let node = state.node;
        if matches!(state.data.value(), Value::List(_)) {
            let items = list(state.data)?;
            let count = state.shape.item_count();
            if count != Some(items.count_left()) {
                return invalid(node, "there are not as many objects as the shape says");
            }
            return Ok(MaskedData::Objects(ObjectArray {
                element_type: state.element_type,
                shape: state.shape.shape().to_vec(),
                items,
            }));
        }
        let dimensions =
            Dimensions::contiguous(state.shape.shape(), state.order, state.dtype.item_len());
        let dimensions = dimensions.map_err(wrong(node))?;
        let data = self.data(state.data)?;
        self.over(node, state.element_type, state.dtype, dimensions, data)
            .map(MaskedData::Array)
    }

    /// `_reconstruct(ndarray, (0,), b"b")` and its state.
    pub(super) fn reconstructed(
        self,
        object: &Object<'t, 'p>,
    ) -> ConvertResult<MaskedData<'t, 'p>> {
        let class = object.arguments.clone().next().unwrap_or(object.node);
        let class = self.class(class, &[Known::NdArray, Known::Matrix])?;
        let state = self.state::<0>(object)?;
        Ok(match self.state_data(&state)? {
            MaskedData::Array(array) => MaskedData::Array(NdArray {
                is_matrix: class == Known::Matrix,
                ..array
            }),
            objects => objects,
        })
    }

    /// `_mareconstruct(MaskedArray, ndarray, (0,), "b")`, and the state with
    /// the mask and the fill value after the data.
    pub(super) fn masked(self, object: &Object<'t, 'p>) -> ConvertResult<MaskedArray<'t, 'p>> {
        let node = object.node;
        let mut arguments = object.arguments;
        let mut next = || arguments.next().unwrap_or(node);
        let (class, base) = (next(), next());
        self.class(class, &[Known::MaskedArray])?;
        let base = self.class(base, &[Known::NdArray, Known::Matrix])?;
        let state = self.state::<2>(object)?;
        let mut data = self.state_data(&state)?;
        if let MaskedData::Array(array) = &mut data {
            array.is_matrix = base == Known::Matrix;
        }
        let [mask, fill_value] = state.rest;
        let mask = self.data(mask)?;
        let count = state.shape.item_count().unwrap_or(usize::MAX);
        let mask_type = match state.dtype.kind() {
            // The length of a mask record is not declared.
            Kind::Record => DType::record(mask.len().checked_div(count).unwrap_or_default()),
            _ => DType::BOOL,
        };
        let shape = state.shape.shape();
        let dimensions = Dimensions::contiguous(shape, state.order, mask_type.item_len())
            .map_err(wrong(node))?;
        Array::check(mask_type, dimensions, &mask).map_err(wrong(node))?;
        Ok(MaskedArray {
            data,
            mask_type,
            mask_dimensions: Box::new(dimensions),
            mask,
            fill_value: Some(fill_value).filter(|value| !value.is_none()),
        })
    }
}

/// A shape, with strides of 0.
fn shape_of(node: Node<'_, '_>) -> ConvertResult<Dimensions> {
    let mut shape = Dimensions::SCALAR;
    for count in node.items() {
        match count.as_u64().and_then(|count| usize::try_from(count).ok()) {
            Some(count) => shape.push(count, 0).map_err(wrong(node))?,
            None => return expected(count, "a number of elements"),
        }
    }
    match node.value() {
        Value::Tuple(_) | Value::List(_) => Ok(shape),
        _ => expected(node, "a shape"),
    }
}

/// Reorders the axes, if `axes` is a permutation.
fn transposed(dimensions: &Dimensions, axes: &Dimensions) -> Option<Dimensions> {
    let axes = axes.shape();
    let (shape, strides) = (dimensions.shape(), dimensions.strides());
    if axes.len() != shape.len() || !(0..axes.len()).all(|axis| axes.contains(&axis)) {
        return None;
    }
    let mut found = Dimensions::SCALAR;
    for axis in axes {
        found.push(*shape.get(*axis)?, *strides.get(*axis)?).ok()?;
    }
    Some(found)
}

/// An element type, and the shape of elements that are arrays.
struct Type<'a> {
    element_type: ElementType<'a>,
    dimensions: Dimensions,
}

type DTypeResult<T> = Result<T, DTypeError>;

fn error(node: Node<'_, '_>, expected: &'static str) -> DTypeError {
    DTypeError {
        at: node.offset(),
        expected,
    }
}

/// The string of a name, borrowed from the pickle.
fn name_str<'p>(node: Node<'_, 'p>) -> Option<&'p str> {
    match node.value() {
        Value::ByteString(string) => match string.to_bytes() {
            Cow::Borrowed(bytes) => core::str::from_utf8(bytes)
                .ok()
                .filter(|string| string.is_ascii()),
            Cow::Owned(_) => None,
        },
        _ => node.as_str(),
    }
}

/// The string of a keyword. Long strings, which values may share, are not read.
pub(super) fn keyword<'p>(node: Node<'_, 'p>) -> Option<&'p str> {
    match name_len(node)? {
        0..=64 => name_str(node),
        _ => None,
    }
}

/// The length of a name without escapes, without reading it.
fn name_len(node: Node<'_, '_>) -> Option<usize> {
    match node.value() {
        Value::Str(Str::Utf8(string)) => Some(string.len()),
        Value::Str(Str::Escaped(line)) => Some(line.len()),
        Value::ByteString(ByteString::Raw(bytes)) => Some(bytes.len()),
        // In quotes. Names with escapes are not borrowed.
        Value::ByteString(ByteString::Quoted(line)) => line.len().checked_sub(2),
        _ => None,
    }
}

/// `dtype(NAME, False, True)` and its state: the version, the order of bytes,
/// type and shape of elements that are arrays, the names and types of fields,
/// the length of an element, its alignment, flags, and the metadata of times.
///
/// Nested types use the same name, which the caller has allowed.
fn read_type<'t>(
    node: Node<'t, 't>,
    dtype_name: Global<'t>,
    depth: u8,
    may_be_array: bool,
) -> DTypeResult<Type<'t>> {
    const STATE: &str = "the state of a type as numpy pickles it";
    let Value::Call {
        callable,
        arguments,
    } = node.value()
    else {
        return Err(error(node, "a type as numpy pickles it"));
    };
    let is_by = |global: Global<'_>| {
        global.module.to_bytes() == dtype_name.module.to_bytes()
            && global.name.to_bytes() == dtype_name.name.to_bytes()
    };
    if !callable.as_global().is_some_and(is_by) || callable.operations().next().is_some() {
        return Err(error(
            callable,
            "numpy.dtype under the name that is allowed",
        ));
    }
    let Some([name, _, _]) = arguments.items().exactly() else {
        return Err(error(node, "the name of a type of elements"));
    };
    let name = match name.as_global() {
        Some(global) if is_record_class(global) => "",
        Some(_) => return Err(error(name, "the name of a type of elements")),
        None => keyword(name).ok_or(error(name, "the name of a type of elements"))?,
    };
    let mut operations = node.operations();
    let state = match (operations.next(), operations.next()) {
        (Some(Operation::State(state)), None) => state.node(),
        // numpy.dtype("f8", False, True) has the order of the machine.
        (None, _) => {
            let order = if ByteOrder::NATIVE == ByteOrder::Little {
                "<"
            } else {
                ">"
            };
            return plain(node, name, order, None, None);
        }
        _ => return Err(error(node, STATE)),
    };
    let mut parts = state.items();
    let mut next = || parts.next().ok_or(error(state, STATE));
    let [version, order, array, names, fields, len, _, _] = [
        next()?,
        next()?,
        next()?,
        next()?,
        next()?,
        next()?,
        next()?,
        next()?,
    ];
    let extra = parts.next();
    if !matches!(version.as_i64(), Some(3 | 4)) || parts.next().is_some() {
        return Err(error(state, STATE));
    }
    if !array.is_none() {
        let [element, shape] = array.items().exactly().ok_or(error(array, STATE))?;
        if !may_be_array {
            return Err(error(array, "a type whose elements are not arrays"));
        }
        let found = read_type(element, dtype_name, depth, false)?;
        let dtype = found.element_type.dtype().ok_or(error(element, STATE))?;
        let shape = shape_of(shape).map_err(|_| error(shape, "a shape"))?;
        let dimensions = Dimensions::contiguous(shape.shape(), Order::C, dtype.item_len());
        return Ok(Type {
            dimensions: dimensions.map_err(|_| error(array, TOO_LARGE))?,
            ..found
        });
    }
    let len = match len.as_i64() {
        Some(-1) => None,
        Some(len) => Some(usize::try_from(len).map_err(|_| error(node, TOO_LARGE))?),
        None => return Err(error(state, "the length of an element, or -1")),
    };
    if !names.is_none() {
        let (Value::Tuple(names), Value::Dict(_)) = (names.value(), fields.value()) else {
            return Err(error(state, "names and fields"));
        };
        if !name.is_empty() && !name.starts_with('V') {
            return Err(error(state, STATE));
        }
        let depth = depth.checked_sub(1).ok_or(error(node, TOO_DEEP))?;
        let len = len.ok_or(error(state, STATE))?;
        let record = TreeRecord { node, dtype_name };
        let record = RecordType::tree(record, names.count_left(), len, depth);
        return Ok(Type {
            element_type: ElementType::Record(record),
            dimensions: Dimensions::SCALAR,
        });
    }
    let order = keyword(order).ok_or(error(state, "an order of bytes"))?;
    let is_time = name.starts_with(['m', 'M']);
    let unit = match extra.filter(|_| is_time) {
        Some(extra) => Some(date_unit(extra).ok_or(error(state, "the unit of a time"))?),
        None => None,
    };
    plain(node, name, order, len, unit)
}

fn plain<'t>(
    node: Node<'t, 't>,
    name: &str,
    order: &str,
    len: Option<usize>,
    unit: Option<TimeUnit>,
) -> DTypeResult<Type<'t>> {
    let dtype = DType::from_state(name, order, len, unit);
    let dtype = dtype.map_err(|expected| error(node, expected))?;
    Ok(Type {
        element_type: ElementType::Plain(dtype),
        dimensions: Dimensions::SCALAR,
    })
}

/// Whether this is the scalar class of `numpy.recarray`, which represents its
/// type.
fn is_record_class(global: Global<'_>) -> bool {
    ["numpy", "numpy.rec", "numpy.core.records"]
        .into_iter()
        .any(|module| global.is(module, "record"))
}

/// `(None or a dictionary, (UNIT, COUNT, 1, 1))`.
fn date_unit(node: Node<'_, '_>) -> Option<TimeUnit> {
    let [_, parts] = node.items().exactly()?;
    let [unit, count, above, below] = parts.items().exactly()?;
    let count = count.as_i64()?;
    let name = match unit.as_bytes() {
        Some(unit) => unit,
        None => keyword(unit).or_else(|| encoded_ascii(unit))?.as_bytes(),
    };
    let is_one = (above.as_i64(), below.as_i64()) == (Some(1), Some(1));
    TimeUnit::from_parts(name, count).filter(|_| is_one)
}

/// A type with fields in a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeRecord<'a> {
    node: Node<'a, 'a>,
    dtype_name: Global<'a>,
}

impl PartialEq for TreeRecord<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.node == other.node
    }
}

impl<'a> TreeRecord<'a> {
    pub(crate) fn fields(self) -> TreeFields<'a> {
        let state = self
            .node
            .operations()
            .find_map(|operation| match operation {
                Operation::State(state) => Some(state.node()),
                _ => None,
            });
        // Cannot fail: it was read before.
        let mut parts = state.unwrap_or(self.node).items().skip(3);
        let [names, fields] = [(); 2].map(|()| parts.next().unwrap_or(self.node));
        TreeFields {
            dtype_name: self.dtype_name,
            node: self.node,
            names: names.items(),
            first: fields.entries(),
            next: fields.entries(),
            budget: BUDGET,
        }
    }
}

/// The fields of a type in a tree, in the order of their names.
#[derive(Clone, Debug)]
pub(crate) struct TreeFields<'a> {
    dtype_name: Global<'a>,
    node: Node<'a, 'a>,
    names: Items<'a, 'a>,
    first: Entries<'a, 'a>,
    /// The position after the field found last.
    next: Entries<'a, 'a>,
    budget: u32,
}

impl<'a> TreeFields<'a> {
    /// Takes the cost of a name of this length from the budget, since entries may
    /// share a long one.
    fn charge(&mut self, len: usize) -> DTypeResult<()> {
        let cost = u32::try_from(len / 64).unwrap_or(u32::MAX);
        let left = self.budget.checked_sub(cost.saturating_add(1));
        self.budget = left.ok_or(error(self.node, "fields in the order of their names"))?;
        Ok(())
    }

    pub(crate) fn next(&mut self, depth: u8, record_len: usize) -> DTypeResult<Field<'a>> {
        let missing = error(self.node, "a name with a field");
        let key = self.names.next().ok_or(missing)?;
        let name = name_str(key).ok_or(error(key, "the name of a field, which is a string"))?;
        self.charge(name.len())?;
        // One full round: numpy orders the entries by name, except for
        // additional entries by title.
        let mut is_around = false;
        let value = loop {
            let Some((at, value)) = self.next.next() else {
                if is_around {
                    return Err(missing);
                }
                is_around = true;
                self.next = self.first;
                continue;
            };
            self.charge(0)?;
            if at.is_same(key) {
                break value;
            }
            if name_len(at) == Some(name.len()) {
                self.charge(name.len())?;
                if name_str(at) == Some(name) {
                    break value;
                }
            }
        };
        let wrong = error(value, "a type, an offset and perhaps a title");
        let mut parts = value.items();
        let (Some(dtype), Some(offset)) = (parts.next(), parts.next()) else {
            return Err(wrong);
        };
        let title = match parts.next() {
            Some(title) => Some(name_str(title).ok_or(error(title, "a title that is a string"))?),
            None => None,
        };
        self.charge(title.map_or(0, str::len))?;
        let outside = error(value, OUTSIDE);
        let offset = offset.as_u64().and_then(|offset| offset.try_into().ok());
        let offset: usize = offset.ok_or(outside)?;
        if parts.next().is_some() {
            return Err(wrong);
        }
        let found = read_type(dtype, self.dtype_name, depth, true)?;
        let item_len = found.element_type.dtype().map_or(0, DType::item_len);
        let len = found.dimensions.len(item_len).ok();
        let end = len.and_then(|len| offset.checked_add(len));
        if end.is_none_or(|end| end > record_len) {
            return Err(outside);
        }
        Ok(Field {
            name,
            title,
            offset,
            element_type: found.element_type,
            dimensions: found.dimensions,
        })
    }
}
