//! The values that tasks take and return: numbers, strings, bytes and arrays.

mod array;
mod function;
#[cfg(test)]
mod tests;

use core::fmt::Write as _;

use daskwire::invariant::OrDefaultIfBug as _;
use daskwire::message::{Payload, PayloadKind, Serializer};
use daskwire::msgpack::{Token, Writer};
use daskwire_pickle::{Writer as PickleWriter, WriterLevel};

use crate::pickle_tree::{Call, Id, Node, Tree};
use array::{element, row_major};

pub(crate) use function::{NO_ROOM, TypeName, UNSUPPORTED_TYPE};

pub use array::{Array, ElementType, MAX_DIMENSIONS};
pub use function::{Args, Failure, MAX_MESSAGE, MAX_STR, Out};

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
    /// A numpy array.
    Array(Array<'a>),
}

/// The name of the type of a value that functions cannot take.
fn type_name(tree: &Tree<'_>, id: Id) -> TypeName {
    let mut name = TypeName::new();
    let global = match tree.get(id) {
        Node::Call(call) => tree.get(call.callable),
        node => node,
    };
    // A name that is too long is not written.
    let _ = match global {
        Node::Items(_) => name.write_str("a tuple, list or set"),
        Node::Dict(_) => name.write_str("dict"),
        Node::Global { module, .. } if module.starts_with("numpy") => {
            name.write_str("a numpy array or scalar of another element type or layout")
        }
        Node::Global { module, name: own } if module.len().saturating_add(own.len()) < 64 => {
            let parts = [module, ".", own];
            parts.iter().try_for_each(|part| name.write_str(part))
        }
        _ => Ok(()),
    };
    name
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

    /// Parses a stored value; `None` if the bytes are not one.
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

    /// Writes the value in the form in which it is stored.
    pub(crate) fn store(&self, out: &mut Out<'_>) -> Result<(), Failure> {
        match *self {
            Self::None => out.none(),
            Self::Bool(value) => out.bool(value),
            Self::Int(value) => out.int(value),
            Self::Float(value) => out.float(value),
            Self::Str(string) => out.str(string),
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
        refused: &mut TypeName,
    ) -> Result<Self, Failure> {
        let mut refused = || {
            *refused = type_name(tree, id);
            UNSUPPORTED_TYPE
        };
        Ok(match tree.get(id) {
            Node::None => Self::None,
            Node::Bool(value) => Self::Bool(value),
            Node::Int(value) => Self::Int(value),
            Node::Float(value) => Self::Float(value),
            Node::Str(string) => Self::Str(string),
            Node::Bytes(bytes) => Self::Bytes(bytes),
            Node::Call(call) => {
                let is = |module, name| tree.is_global(call.callable, module, name);
                // An alias has its own key, then the key of another task.
                if is(SPEC, "TaskRef") || is(SPEC, "Alias") {
                    let key = tree.items(call.arguments).last().ok_or_else(&mut refused)?;
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
        let refused = UNSUPPORTED_TYPE;
        let header = payload.header();
        let frames = payload.frames();
        if payload.kind() == PayloadKind::Pickled {
            let pickle = header.pickled_object().ok().flatten().ok_or(refused)?;
            return Self::store_pickle(pickle, frames, out);
        }
        // It has a serializer for each element, and the frames of all.
        if header.is_collection().map_err(|_| refused)? {
            let kind = header.type_serialized().ok().flatten();
            let kind = kind.and_then(|kind| core::str::from_utf8(kind).ok());
            // One that is too long is not named.
            let _ = out.refused.write_str(kind.unwrap_or_default());
            return Err(refused);
        }
        match header.serializer().map_err(|_| refused)? {
            Serializer::Pickle => {
                let (pickle, buffers) = frames.split_first().ok_or(refused)?;
                Self::store_pickle(pickle, buffers, out)
            }
            Serializer::Dask => {
                // Data that the sender has split is too long to fit.
                let name = header.type_name().ok().flatten();
                // One that is too long is not named.
                let _ = out.refused.write_str(name.unwrap_or_default());
                let [data] = frames else { return Err(refused) };
                let value = match header.type_name().ok().flatten() {
                    Some("bytes" | "builtins.bytes") => Some(Value::Bytes(data)),
                    Some("bytearray" | "builtins.bytearray") => Some(Value::Bytes(data)),
                    Some("numpy.ndarray") => {
                        let own = header.type_header().map_err(|_| refused)?;
                        let dtype = own.dtype().ok().flatten().and_then(ElementType::parse);
                        let mut shape = [0; MAX_DIMENSIONS];
                        let mut count = 0_usize;
                        let lengths = own.shape().ok().flatten().ok_or(refused)?;
                        for length in lengths.numbers() {
                            let length = length.ok().and_then(|length| length.try_into().ok());
                            *shape.get_mut(count).ok_or(refused)? = length.ok_or(refused)?;
                            count = count.wrapping_add(1);
                        }
                        let shape = shape.get(..count).or_default_if_bug();
                        let strides = own.strides().ok().flatten().ok_or(refused)?;
                        let dtype = dtype.ok_or(refused)?;
                        if strides.count_left() as usize != shape.len() {
                            return Err(refused);
                        }
                        let found = strides.signed_numbers().map(Result::ok);
                        let mut axes = shape.iter().zip(found).zip(row_major(dtype, shape));
                        // Strides that lead to no element have any value.
                        let fits = |((len, found), expected): ((&u32, _), _)| {
                            *len == 1 || found == Some(expected)
                        };
                        if !shape.contains(&0) && !axes.all(fits) {
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
        Value::from_pickle(&tree, tree.root(), &|_, _| None, &mut out.refused)?.store(out)
    }

    /// The length of the value, in bytes, for the scheduler.
    pub(crate) fn nbytes(&self) -> usize {
        match self {
            Self::Str(string) => string.len(),
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
        let mut levels = [WriterLevel::EMPTY; 2];
        let mut writer = PickleWriter::new(out, &mut levels);
        match self {
            Self::None => writer.reduce().global("builtins", "type").tuple(1).none(),
            Self::Array(_) => writer.global("numpy", "ndarray"),
            _ => writer.global("builtins", self.type_name()),
        };
        writer.finish().or_default_if_bug()
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
                let dtype = array.element_type.name();
                writer.str("dtype").array(2).u64(0).str_bytes(&dtype);
                let count = u32::try_from(array.shape().len()).or_default_if_bug();
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
            Self::Str(string) => writer.str(string),
            Self::Bytes(bytes) => writer.bytes(bytes),
            Self::Array(array) => {
                writer.reduce().global("numpy._core.numeric", "_frombuffer");
                writer.tuple(4).bytes(array.bytes);
                writer.reduce().global("numpy", "dtype");
                writer.tuple(1).str_bytes(&array.element_type.name());
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

/// A numpy scalar.
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

/// Writes the key of a pickle as MessagePack, the form in which keys are stored.
/// `None` for values that are not keys, and for a tuple in a tuple.
pub(crate) fn write_key(tree: &Tree<'_>, id: Id, writer: &mut Writer<'_>) -> Option<()> {
    let scalar = |id, writer: &mut Writer<'_>| {
        let token = match tree.get(id) {
            Node::Str(string) => {
                writer.str(string);
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
