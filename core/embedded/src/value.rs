//! The values that tasks take and return: numbers, strings, bytes and arrays.

use daskwire::message::{Payload, PayloadKind, Serializer};
use daskwire::msgpack::{Token, Writer};
use daskwire_pickle::{Level, Writer as PickleWriter};

use crate::pickle_tree::{Call, Id, Node, Tree, TreeError};

/// The maximum number of dimensions of an array.
pub const MAX_DIMENSIONS: usize = 4;

/// The maximum number of out-of-band buffers of a pickle.
pub(crate) const MAX_BUFFERS: usize = 4;

/// A value of Python, borrowed.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// `None`.
    None,
    /// A `bool`.
    Bool(bool),
    /// An `int` of 64 bits.
    Int(i64),
    /// A `float`.
    Float(f64),
    /// A `str`.
    Str(&'a str),
    /// `bytes` or a `bytearray`.
    Bytes(&'a [u8]),
    /// An array of numpy.
    Array(Array<'a>),
}

/// The type of the elements of an array: little-endian numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementType {
    kind: u8,
    len: u8,
}

impl ElementType {
    /// `float64`.
    pub const F64: Self = Self { kind: b'f', len: 8 };
    /// `float32`.
    pub const F32: Self = Self { kind: b'f', len: 4 };
    /// `int64`.
    pub const I64: Self = Self { kind: b'i', len: 8 };
    /// `int32`.
    pub const I32: Self = Self { kind: b'i', len: 4 };
    /// `int16`.
    pub const I16: Self = Self { kind: b'i', len: 2 };
    /// `int8`.
    pub const I8: Self = Self { kind: b'i', len: 1 };
    /// `uint32`.
    pub const U32: Self = Self { kind: b'u', len: 4 };
    /// `uint16`.
    pub const U16: Self = Self { kind: b'u', len: 2 };
    /// `uint8`.
    pub const U8: Self = Self { kind: b'u', len: 1 };
    /// `bool`.
    pub const BOOL: Self = Self { kind: b'b', len: 1 };

    const ALL: [Self; 10] = [
        Self::F64,
        Self::F32,
        Self::I64,
        Self::I32,
        Self::I16,
        Self::I8,
        Self::U32,
        Self::U16,
        Self::U8,
        Self::BOOL,
    ];

    /// The length of an element, in bytes.
    pub const fn item_len(self) -> usize {
        self.len as usize
    }

    /// The type that numpy calls so, such as `<f8`; without the byte order in
    /// pickles.
    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix(['<', '|', '=']).unwrap_or(text);
        let [kind, len] = *text.as_bytes() else {
            return None;
        };
        let this = Self {
            kind,
            len: len.wrapping_sub(b'0'),
        };
        Self::ALL.contains(&this).then_some(this)
    }

    /// The name of the type in numpy.
    const fn text(self) -> [u8; 3] {
        let order = if self.len == 1 { b'|' } else { b'<' };
        [order, self.kind, self.len.wrapping_add(b'0')]
    }
}

/// An array of numpy in row-major order.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    element_type: ElementType,
    shape: [u32; MAX_DIMENSIONS],
    dimensions: u8,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// An array over its elements. `None` if the length of `bytes` does not
    /// match, or there are more dimensions than [`MAX_DIMENSIONS`].
    pub fn new(element_type: ElementType, shape: &[u32], bytes: &'a [u8]) -> Option<Self> {
        if array_len(element_type, shape)? != bytes.len() {
            return None;
        }
        let mut stored = [0; MAX_DIMENSIONS];
        for (place, len) in stored.iter_mut().zip(shape) {
            *place = *len;
        }
        Some(Self {
            element_type,
            shape: stored,
            dimensions: u8::try_from(shape.len()).ok()?,
            bytes,
        })
    }

    /// The type of the elements.
    pub const fn element_type(&self) -> ElementType {
        self.element_type
    }

    /// The length in each dimension.
    pub fn shape(&self) -> &[u32] {
        let count = usize::from(self.dimensions);
        self.shape.get(..count).unwrap_or_default()
    }

    /// The elements as they are in memory.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        let item_len = self.element_type.item_len();
        self.bytes.len().checked_div(item_len).unwrap_or_default()
    }

    /// Whether there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All elements in row-major order, converted to `f64`.
    pub fn to_f64s(&self) -> impl ExactSizeIterator<Item = f64> + Clone + use<'a> {
        let element_type = self.element_type;
        let items = self.bytes.chunks_exact(element_type.item_len().max(1));
        items.map(move |item| element(element_type, item).to_f64().unwrap_or_default())
    }
}

/// The length of an array in bytes.
fn array_len(element_type: ElementType, shape: &[u32]) -> Option<usize> {
    if shape.len() > MAX_DIMENSIONS {
        return None;
    }
    let mut len = element_type.item_len();
    for dimension in shape {
        len = len.checked_mul(usize::try_from(*dimension).ok()?)?;
    }
    Some(len)
}

/// One element of an array as a number.
fn element(element_type: ElementType, item: &[u8]) -> Value<'static> {
    let mut bytes = [0; 8];
    crate::copy(&mut bytes, item);
    let raw = u64::from_le_bytes(bytes);
    // Shifted up and down again, to extend the sign.
    let unused = 64_u32.saturating_sub(u32::from(element_type.len).wrapping_mul(8));
    let signed = raw.wrapping_shl(unused).cast_signed().wrapping_shr(unused);
    match (element_type.kind, element_type.len) {
        (b'f', 4) => {
            let [a, b, c, d, ..] = bytes;
            Value::Float(f32::from_le_bytes([a, b, c, d]).into())
        }
        (b'f', _) => Value::Float(f64::from_le_bytes(bytes)),
        (b'b', _) => Value::Bool(raw != 0),
        (b'i', _) => Value::Int(signed),
        // At most 32 bits.
        _ => Value::Int(raw.cast_signed()),
    }
}

// The tags of stored values.
const NONE: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const INT: u8 = 3;
const FLOAT: u8 = 4;
const STR: u8 = 5;
const BYTES: u8 = 6;
const ARRAY: u8 = 7;

impl<'a> Value<'a> {
    /// The value as a float: a `float`, an `int` or a `bool`.
    #[allow(clippy::cast_precision_loss)] // as in Python
    pub const fn to_f64(&self) -> Option<f64> {
        match *self {
            Self::Float(value) => Some(value),
            Self::Int(value) => Some(value as f64),
            Self::Bool(value) => Some(if value { 1.0 } else { 0.0 }),
            _ => None,
        }
    }

    /// The value as an integer: an `int` or a `bool`.
    pub const fn to_i64(&self) -> Option<i64> {
        match *self {
            Self::Int(value) => Some(value),
            Self::Bool(value) => Some(value as i64),
            _ => None,
        }
    }

    /// The value of a stored one; `None` if it is not one.
    pub(crate) fn parse(stored: &'a [u8]) -> Option<Self> {
        let (tag, rest) = stored.split_first()?;
        Some(match *tag {
            NONE => Self::None,
            FALSE => Self::Bool(false),
            TRUE => Self::Bool(true),
            INT => Self::Int(i64::from_le_bytes(*rest.first_chunk()?)),
            FLOAT => Self::Float(f64::from_le_bytes(*rest.first_chunk()?)),
            STR => Self::Str(core::str::from_utf8(rest).ok()?),
            BYTES => Self::Bytes(rest),
            ARRAY => {
                let ([kind, len, count], mut rest) = rest.split_first_chunk()?;
                let element_type = ElementType {
                    kind: *kind,
                    len: *len,
                };
                let mut shape = [0; MAX_DIMENSIONS];
                let shape = shape.get_mut(..usize::from(*count))?;
                for place in shape.iter_mut() {
                    let (len, after) = rest.split_first_chunk()?;
                    *place = u32::from_le_bytes(*len);
                    rest = after;
                }
                Self::Array(Array::new(element_type, shape, rest)?)
            }
            _ => return None,
        })
    }

    /// Writes the value as it is stored.
    pub(crate) fn store(&self, out: &mut Out<'_>) -> Result<(), Failure> {
        match *self {
            Self::None => out.none(),
            Self::Bool(value) => out.bool(value),
            Self::Int(value) => out.int(value),
            Self::Float(value) => out.float(value),
            Self::Str(text) => out.str(text),
            Self::Bytes(bytes) => out.bytes(bytes),
            Self::Array(array) => {
                let space = out.array(array.element_type, array.shape())?;
                crate::copy(space, array.bytes);
                Ok(())
            }
        }
    }

    /// Reads a value of a pickle. `input` has the values of other tasks, by key.
    pub(crate) fn from_pickle<'p: 'a>(
        tree: &Tree<'p>,
        id: Id,
        input: &dyn Fn(&Tree<'p>, Id) -> Option<Self>,
    ) -> Result<Self, Failure> {
        let refused = || Failure::type_error("a value has a type that this worker does not have");
        Ok(match tree.get(id) {
            Node::None => Self::None,
            Node::Bool(value) => Self::Bool(value),
            Node::Int(value) => Self::Int(value),
            Node::Float(value) => Self::Float(value),
            Node::Str(text) => Self::Str(text),
            Node::Bytes(bytes) => Self::Bytes(bytes),
            Node::Call(call) => {
                let is = |module, name| tree.is_global(call.callable, module, name);
                // An alias has its own key, and that of another task.
                if is(SPEC, "TaskRef") || is(SPEC, "Alias") {
                    let key = tree.items(call.arguments).last().ok_or_else(refused)?;
                    return input(tree, key).ok_or(Failure {
                        class: "KeyError",
                        message: "an argument refers to a task that is not an input",
                    });
                }
                let found = if is(NUMERIC, "_frombuffer") {
                    frombuffer(tree, call)
                } else if is(MULTIARRAY, "_reconstruct") {
                    reconstruct(tree, call)
                } else if is(MULTIARRAY, "scalar") {
                    scalar(tree, call)
                } else {
                    None
                };
                found.ok_or_else(refused)?
            }
            _ => return Err(refused()),
        })
    }

    /// Stores the value of a payload.
    pub(crate) fn store_payload(
        payload: &Payload<'_, &[u8]>,
        out: &mut Out<'_>,
    ) -> Result<(), Failure> {
        let refused = Failure::type_error("a value has a type that this worker does not have");
        let header = payload.header();
        let frames = payload.frames();
        if payload.kind() == PayloadKind::Pickled {
            let pickle = header.pickled_object().ok().flatten().ok_or(refused)?;
            return Self::store_pickle(pickle, frames, out);
        }
        match header.serializer().map_err(|_| refused)? {
            Serializer::Pickle => {
                let (pickle, buffers) = frames.split_first().ok_or(refused)?;
                Self::store_pickle(pickle, buffers, out)
            }
            Serializer::Dask => {
                // Data that the sender has split is longer than fits here.
                let [data] = frames else { return Err(refused) };
                let value = match header.type_name().ok().flatten() {
                    Some("bytes" | "builtins.bytes") => Some(Value::Bytes(data)),
                    Some("bytearray" | "builtins.bytearray") => Some(Value::Bytes(data)),
                    Some("numpy.ndarray") => {
                        let own = header.own().map_err(|_| refused)?;
                        let dtype = own.dtype().ok().flatten().and_then(ElementType::parse);
                        let mut shape = [0; MAX_DIMENSIONS];
                        let mut count = 0_usize;
                        let lengths = own.shape().ok().flatten().ok_or(refused)?;
                        for length in lengths.numbers() {
                            let length = length.ok().and_then(|length| length.try_into().ok());
                            *shape.get_mut(count).ok_or(refused)? = length.ok_or(refused)?;
                            count = count.wrapping_add(1);
                        }
                        let shape = shape.get(..count).unwrap_or_default();
                        let strides = own.strides().ok().flatten().ok_or(refused)?;
                        let dtype = dtype.ok_or(refused)?;
                        let found = strides.signed_numbers().map(Result::ok);
                        if !found.eq(row_major(dtype, shape).map(Some)) {
                            return Err(refused);
                        }
                        Array::new(dtype, shape, data).map(Value::Array)
                    }
                    _ => None,
                };
                value.ok_or(refused)?.store(out)
            }
            _ => Err(refused),
        }
    }

    fn store_pickle(pickle: &[u8], buffers: &[&[u8]], out: &mut Out<'_>) -> Result<(), Failure> {
        let mut tree = Tree::new();
        tree.read(pickle, buffers)?;
        Value::from_pickle(&tree, tree.root(), &|_, _| None)?.store(out)
    }

    /// The length of the value, in bytes, for the scheduler.
    pub(crate) fn nbytes(&self) -> usize {
        match self {
            Self::Str(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Array(array) => array.bytes.len(),
            _ => 8,
        }
    }

    /// The name of the type in Python.
    pub(crate) const fn type_name(&self) -> &'static str {
        match self {
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::Bytes(_) => "bytes",
            Self::Array(_) => "ndarray",
        }
    }

    /// Writes the pickle of the type to `out`.
    pub(crate) fn pickle_type<'o>(&self, out: &'o mut [u8]) -> &'o [u8] {
        let mut levels = [Level::EMPTY; 2];
        let mut writer = PickleWriter::new(out, &mut levels);
        match self {
            Self::None => writer.reduce().global("builtins", "type").tuple(1).none(),
            Self::Array(_) => writer.global("numpy", "ndarray"),
            _ => writer.global("builtins", self.type_name()),
        };
        writer.finish().unwrap_or_default()
    }

    /// Writes the header of the payload with this value.
    pub(crate) fn write_header(&self, writer: &mut Writer<'_>) {
        let mut class = [0; 48];
        let class = self.pickle_type(&mut class);
        match self {
            Self::Bytes(_) => {
                writer.map(5).str("sub-header").map(0);
                writer.str("type").str("bytes");
            }
            Self::Array(array) => {
                writer.map(5).str("sub-header").map(4);
                let dtype = array.element_type.text();
                writer.str("dtype").array(2).u64(0).str_bytes(&dtype);
                let count = u32::from(array.dimensions);
                writer.str("shape").array(count);
                for len in array.shape() {
                    writer.u64((*len).into());
                }
                writer.str("strides").array(count);
                for stride in row_major(array.element_type, array.shape()) {
                    writer.i64(stride);
                }
                writer.str("writeable").array(1).bool(true);
                writer.str("type").str("numpy.ndarray");
            }
            _ => {
                writer.map(3).str("serializer").str("pickle");
                writer.str("writeable").array(0);
                writer.str("num-sub-frames").u64(1);
                return;
            }
        }
        writer.str("type-serialized").bin(class);
        writer.str("serializer").str("dask");
        writer.str("num-sub-frames").u64(1);
    }

    /// The frame of the payload with this value: the data, which is not copied,
    /// or a pickle, which is written to `out`. `None` if it does not fit.
    pub(crate) fn frame<'f>(&self, out: &'f mut [u8]) -> Option<&'f [u8]>
    where
        'a: 'f,
    {
        match *self {
            Self::Bytes(bytes) => return Some(bytes),
            Self::Array(array) => return Some(array.bytes),
            _ => {}
        }
        let mut pickle = PickleWriter::new(out, &mut []);
        self.write_pickle(&mut pickle);
        pickle.finish().ok()
    }

    /// Writes the value to a pickle.
    pub(crate) fn write_pickle(&self, writer: &mut PickleWriter<'_, '_>) {
        match *self {
            Self::None => writer.none(),
            Self::Bool(value) => writer.bool(value),
            Self::Int(value) => writer.i64(value),
            Self::Float(value) => writer.f64(value),
            Self::Str(text) => writer.str(text),
            Self::Bytes(bytes) => writer.bytes(bytes),
            Self::Array(array) => {
                writer.reduce().global("numpy._core.numeric", "_frombuffer");
                writer.tuple(4).bytes(array.bytes);
                writer.reduce().global("numpy", "dtype");
                writer.tuple(1).str_bytes(&array.element_type.text());
                writer.tuple(array.shape().len());
                for len in array.shape() {
                    writer.u64((*len).into());
                }
                writer.str("C")
            }
        };
    }
}

/// Dask's module of tasks.
pub(crate) const SPEC: &[&str] = &["dask._task_spec"];
const NUMERIC: &[&str] = &["numpy._core.numeric", "numpy.core.numeric"];
const MULTIARRAY: &[&str] = &["numpy._core.multiarray", "numpy.core.multiarray"];

/// The strides of an array in row-major order.
fn row_major(element_type: ElementType, shape: &[u32]) -> impl Iterator<Item = i64> + use<'_> {
    let item_len = i64::from(element_type.len);
    (1..=shape.len()).map(move |after| {
        let inner = shape.get(after..).unwrap_or_default();
        inner
            .iter()
            .fold(item_len, |stride, len| stride.saturating_mul((*len).into()))
    })
}

/// An array with its data out of band or in a `bytearray`.
fn frombuffer<'p>(tree: &Tree<'p>, call: Call) -> Option<Value<'p>> {
    let [data, dtype, shape, order] = tree.exactly(call.arguments)?;
    let is_row_major = matches!(tree.get(order), Node::Str("C"));
    array(tree, dtype, shape, is_row_major, data)
}

/// An array with its data in the pickle, before protocol 5.
fn reconstruct<'p>(tree: &Tree<'p>, call: Call) -> Option<Value<'p>> {
    let [_, shape, dtype, fortran, data] = tree.exactly(call.state?)?;
    let is_row_major = tree.get(fortran) == Node::Bool(false);
    array(tree, dtype, shape, is_row_major, data)
}

/// A number of numpy.
fn scalar<'p>(tree: &Tree<'p>, call: Call) -> Option<Value<'p>> {
    let [dtype, data] = tree.exactly(call.arguments)?;
    let Node::Bytes(bytes) = tree.get(data) else {
        return None;
    };
    Some(element(element_type(tree, dtype)?, bytes))
}

fn array<'p>(
    tree: &Tree<'p>,
    dtype: Id,
    shape: Id,
    is_row_major: bool,
    data: Id,
) -> Option<Value<'p>> {
    let mut lens = [0; MAX_DIMENSIONS];
    let items = tree.items(shape);
    let lens = lens.get_mut(..items.len())?;
    for (place, item) in lens.iter_mut().zip(items) {
        let Node::Int(len) = tree.get(item) else {
            return None;
        };
        *place = len.try_into().ok()?;
    }
    let Node::Bytes(bytes) = tree.get(data) else {
        return None;
    };
    if !is_row_major && lens.len() > 1 {
        return None;
    }
    Array::new(element_type(tree, dtype)?, lens, bytes).map(Value::Array)
}

/// The type of a `numpy.dtype` object, whose byte order is in its state.
fn element_type(tree: &Tree<'_>, dtype: Id) -> Option<ElementType> {
    let Node::Call(call) = tree.get(dtype) else {
        return None;
    };
    if !tree.is_global(call.callable, &["numpy"], "dtype") {
        return None;
    }
    let Node::Str(name) = tree.get(tree.items(call.arguments).next()?) else {
        return None;
    };
    let order = tree.items(call.state?).nth(1)?;
    match tree.get(order) {
        Node::Str("<" | "|" | "=") => ElementType::parse(name),
        _ => None,
    }
}

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
        values.map_err(|_| Failure::type_error("the function takes another number of arguments"))
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
}

impl<'o> Out<'o> {
    pub(crate) fn new(buffer: &'o mut [u8]) -> Result<Self, Failure> {
        let mut out = Self { buffer, len: 0 };
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
    pub fn str(&mut self, text: &str) -> Result<(), Failure> {
        if text.len() > MAX_STR {
            return Err(NO_ROOM);
        }
        let space = self.put(&[STR], text.len())?;
        crate::copy(space, text.as_bytes());
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

    /// Returns an array of numpy, whose elements the caller writes to the bytes
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
        self.put(head.get(..head_len).unwrap_or_default(), len)
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
        match self.buffer.get_mut(..self.len).unwrap_or_default() {
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
        Ok(space.get_mut(head.len()..).unwrap_or_default())
    }
}

/// The maximum length of a `str` that a function may return, in bytes.
pub const MAX_STR: usize = 200;

pub(crate) const NO_ROOM: Failure = Failure {
    class: "MemoryError",
    message: "no memory left for the task or its result",
};

/// An exception for Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The class of the exception, one of Python's own.
    pub class: &'static str,
    /// The message.
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

    /// Writes the pickle of the exception to `out`.
    pub(crate) fn pickle<'o>(&self, out: &'o mut [u8]) -> &'o [u8] {
        let mut levels = [Level::EMPTY; 4];
        let mut writer = PickleWriter::new(out, &mut levels);
        writer.reduce().global("builtins", self.class);
        writer.tuple(1).str(self.message);
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

/// Writes the key of a pickle as MessagePack, as keys are stored. `None` for
/// what is not a key, or a tuple in a tuple.
pub(crate) fn write_key(tree: &Tree<'_>, id: Id, writer: &mut Writer<'_>) -> Option<()> {
    let scalar = |id, writer: &mut Writer<'_>| {
        let token = match tree.get(id) {
            Node::Str(text) => {
                writer.str(text);
                return Some(());
            }
            Node::Int(value) => {
                writer.i64(value);
                return Some(());
            }
            Node::Float(value) => Token::F64(value),
            Node::Bytes(bytes) => Token::Bin(bytes),
            _ => return None,
        };
        writer.token(token);
        Some(())
    };
    let Node::Items(_) = tree.get(id) else {
        return scalar(id, writer);
    };
    let items = tree.items(id);
    writer.array(u32::try_from(items.len()).ok()?);
    for item in items {
        scalar(item, writer)?;
    }
    Some(())
}
