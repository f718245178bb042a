//! Values as pickles, and back, by meaning alone: names stand for what is listed
//! here, and everything else is [`ValueError::Unknown`].

use std::sync::OnceLock;

use bytes::Bytes;
use daskwire::pickle::tree::known::{self, Known, Native, native};
use daskwire::pickle::tree::{self, Int, Node, Registry, Tree};
use daskwire::pickle::{Mutability, Options, PickleBuffer, Placement, Writer};
use daskwire::typed::{self, NumpyModules, Order, pickle_array};

use super::{Array, Budget, DEPTH, Value, ValueError};
use crate::growing;

/// The pickle of a value, and the arrays whose data is beside it.
///
/// # Errors
///
/// [`ValueError::Unknown`] if something in it cannot be opened, and so not be
/// part of another pickle.
pub(crate) fn write(value: &Value) -> Result<(Vec<u8>, Vec<&Array>), ValueError> {
    let mut beside = Vec::new();
    let pickle = growing::pickle(Options::default(), |writer| {
        beside.clear();
        value.pickle(writer, &mut beside)
    })?;
    Ok((pickle, beside))
}

/// The data of an array as what goes beside a pickle.
pub(crate) fn buffer(array: &Array) -> PickleBuffer<'_> {
    let mutability = match array.writeable() {
        Some(false) => Mutability::ReadOnly,
        _ => Mutability::Writable,
    };
    PickleBuffer::new(array.bytes(), mutability)
}

impl Value {
    /// Writes it as the next value of a pickle. Data of arrays goes into
    /// `beside`, in this order, where that is possible.
    pub(crate) fn pickle<'a>(
        &'a self,
        writer: &mut Writer<'_, '_>,
        beside: &mut Vec<&'a Array>,
    ) -> Result<(), ValueError> {
        match self {
            Self::List(items) => {
                writer.list(items.len());
                return items
                    .iter()
                    .try_for_each(|item| item.pickle(writer, beside));
            }
            Self::Tuple(items) => {
                writer.tuple(items.len());
                return items
                    .iter()
                    .try_for_each(|item| item.pickle(writer, beside));
            }
            Self::Set(items) => {
                writer.set(items.len());
                return items
                    .iter()
                    .try_for_each(|item| item.pickle(writer, beside));
            }
            Self::FrozenSet(items) => {
                writer.frozenset(items.len());
                return items
                    .iter()
                    .try_for_each(|item| item.pickle(writer, beside));
            }
            Self::Dict(entries) => {
                writer.dict(entries.len());
                return entries.iter().try_for_each(|(key, value)| {
                    key.pickle(writer, beside)?;
                    value.pickle(writer, beside)
                });
            }
            Self::Array(array) if is_contiguous(array) => {
                let view = array.view()?;
                let modules = NumpyModules::default();
                pickle_array(writer, &view, modules, |_| Placement::OutOfBand)?;
                beside.push(array);
            }
            Self::Array(array) => {
                let copy = contiguous(array)?;
                let modules = NumpyModules::default();
                pickle_array(writer, &copy.view()?, modules, |_| Placement::InBand)?;
            }
            // A pickle cannot hold the frames of another payload, but its value.
            Self::Serialized(serialized) => return serialized.open()?.pickle_in_band(writer),
            plain => plain.pickle_plain(writer),
        }
        Ok(())
    }

    /// The same with all data in the pickle.
    pub(crate) fn pickle_in_band(&self, writer: &mut Writer<'_, '_>) -> Result<(), ValueError> {
        let many = |writer: &mut Writer<'_, '_>, items: &[Self]| {
            items
                .iter()
                .try_for_each(|item| item.pickle_in_band(writer))
        };
        match self {
            Self::List(items) => many(writer.list(items.len()), items),
            Self::Tuple(items) => many(writer.tuple(items.len()), items),
            Self::Set(items) => many(writer.set(items.len()), items),
            Self::FrozenSet(items) => many(writer.frozenset(items.len()), items),
            Self::Dict(entries) => {
                writer.dict(entries.len());
                entries.iter().try_for_each(|(key, value)| {
                    key.pickle_in_band(writer)?;
                    value.pickle_in_band(writer)
                })
            }
            Self::Array(array) => {
                let copy = contiguous(array)?;
                let modules = NumpyModules::default();
                Ok(pickle_array(writer, &copy.view()?, modules, |_| {
                    Placement::InBand
                })?)
            }
            Self::Serialized(serialized) => serialized.open()?.pickle_in_band(writer),
            plain => {
                plain.pickle_plain(writer);
                Ok(())
            }
        }
    }

    fn pickle_plain(&self, writer: &mut Writer<'_, '_>) {
        match self {
            Self::Bool(value) => writer.bool(*value),
            Self::Int(value) => writer.i128(*value),
            Self::LargeInt(data) => writer.int_bytes(data),
            Self::Float(value) => writer.f64(*value),
            Self::Complex(real, imaginary) => {
                writer.reduce().global("builtins", "complex").tuple(2);
                writer.f64(*real).f64(*imaginary)
            }
            Self::Str(text) => writer.str(text),
            Self::Bytes(data) => writer.bytes(data),
            Self::ByteArray(data) => writer.bytearray(data),
            _ => writer.none(),
        };
    }
}

fn is_contiguous(array: &Array) -> bool {
    array
        .view()
        .is_ok_and(|view| view.order().is_some() && !view.is_broadcast())
}

/// The array with its elements in rows.
fn contiguous(array: &Array) -> Result<Array, ValueError> {
    if is_contiguous(array) {
        return Ok(array.clone());
    }
    let data: Vec<u8> = array.view()?.items().flatten().copied().collect();
    let data = Bytes::from(data);
    Ok(Array::from_bytes(
        array.dtype(),
        array.shape(),
        Order::C,
        data,
    )?)
}

/// The names whose meaning is known here.
fn names() -> &'static Registry<Known> {
    static NAMES: OnceLock<Registry<Known>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let mut registry = Registry::new();
        registry.allow_all(known::BUILTINS).allow_all(known::NUMPY);
        registry
    })
}

/// The value of a pickle, with data of arrays where it lies.
pub(crate) fn read(pickle: &Bytes, buffers: &[Bytes]) -> Result<Value, ValueError> {
    let tree = Tree::with_buffers(pickle, buffers)?;
    Reading::new(pickle, buffers).value(tree.root(), DEPTH)
}

/// Makes values of the nodes of a tree.
pub(crate) struct Reading<'b> {
    names: &'static Registry<Known>,
    pickle: &'b Bytes,
    buffers: &'b [Bytes],
    /// How much may still be made.
    pub(crate) budget: Budget,
}

/// How many values may be made of shared nodes, and how many bytes of them may be
/// copied, however short the pickle is.
const SHARED: (usize, usize) = (1 << 18, 1 << 26);

impl<'b> Reading<'b> {
    pub(crate) fn new(pickle: &'b Bytes, buffers: &'b [Bytes]) -> Self {
        // A value that is not shared takes a byte at least.
        let own = pickle.len().saturating_mul(4);
        let (values, bytes) = SHARED;
        Self {
            names: names(),
            pickle,
            buffers,
            budget: Budget::new(own.saturating_add(values), own.saturating_add(bytes)),
        }
    }

    /// Length of the pickle and of what is beside it, in bytes.
    pub(crate) fn len(&self) -> usize {
        let beside = self.buffers.iter().map(Bytes::len);
        beside.fold(self.pickle.len(), usize::saturating_add)
    }

    /// The value of a node.
    pub(crate) fn value(&self, node: Node<'_, '_>, depth: usize) -> Result<Value, ValueError> {
        let depth = depth.checked_sub(1).ok_or(ValueError::TooLarge)?;
        self.budget.spend(1)?;
        let many = |items: tree::Items<'_, '_>| {
            items
                .map(|item| self.value(item, depth))
                .collect::<Result<Vec<_>, _>>()
        };
        Ok(match node.value() {
            tree::Value::None => Value::None,
            tree::Value::Bool(value) => Value::Bool(value),
            tree::Value::Int(value) => {
                if let Int::Big(value) = value {
                    self.budget.spend_copy(value.as_bytes().len())?;
                }
                integer(value)
            }
            tree::Value::Float(value) => Value::Float(value),
            tree::Value::Str(text) => match text.to_str() {
                Some(text) => {
                    self.budget.spend_copy(text.len())?;
                    Value::Str(text.into_owned())
                }
                None => return Err(unknown("a text with half a surrogate pair")),
            },
            tree::Value::ByteString(text) => {
                let bytes = text.to_bytes();
                self.budget.spend_copy(bytes.len())?;
                Value::Bytes(bytes.into_owned().into())
            }
            tree::Value::Bytes(data) => Value::Bytes(self.bytes(data)),
            tree::Value::ByteArray { data, .. } => Value::ByteArray(self.bytes(data)),
            tree::Value::Buffer {
                data,
                read_only: true,
                ..
            } => Value::Bytes(self.bytes(data)),
            tree::Value::Buffer { data, .. } => Value::ByteArray(self.bytes(data)),
            tree::Value::Tuple(items) => Value::Tuple(many(items)?),
            tree::Value::List(items) => Value::List(many(items)?),
            tree::Value::Set(items) => Value::Set(many(items)?),
            tree::Value::FrozenSet(items) => Value::FrozenSet(many(items)?),
            tree::Value::Dict(entries) => {
                let pairs = entries
                    .map(|(key, value)| Ok((self.value(key, depth)?, self.value(value, depth)?)));
                Value::Dict(pairs.collect::<Result<_, ValueError>>()?)
            }
            _ => self.object(node, &many)?,
        })
    }

    fn object<'t, 'p>(
        &self,
        node: Node<'t, 'p>,
        many: &dyn Fn(tree::Items<'_, '_>) -> Result<Vec<Value>, ValueError>,
    ) -> Result<Value, ValueError> {
        let Ok(native) = native(self.names, node) else {
            return Err(unknown(&describe(node)));
        };
        Ok(match native {
            Native::Complex { real, imaginary } => Value::Complex(real, imaginary),
            Native::Set(items) => Value::Set(many(items)?),
            Native::FrozenSet(items) => Value::FrozenSet(many(items)?),
            Native::ByteArray(data) => {
                self.budget.spend_copy(data.len())?;
                Value::ByteArray(self.bytes(&data))
            }
            Native::Bytes(data) => {
                self.budget.spend_copy(data.len())?;
                Value::Bytes(self.bytes(&data))
            }
            Native::Array(array) => Value::Array(self.array(&array)?),
            Native::Scalar(scalar) => self.scalar(&scalar)?,
            _ => return Err(unknown(&describe(node))),
        })
    }

    /// Bytes that lie in the pickle or beside it without a copy, others copied.
    fn bytes(&self, data: &[u8]) -> Bytes {
        let sources = core::iter::once(self.pickle).chain(self.buffers);
        let range = data.as_ptr_range();
        for source in sources {
            let all = source.as_ptr_range();
            if all.start <= range.start && range.end <= all.end {
                return source.slice_ref(data);
            }
        }
        Bytes::copy_from_slice(data)
    }
}

fn integer(value: Int<'_>) -> Value {
    match value.to_i128() {
        Some(value) => Value::Int(value),
        None => match value {
            Int::Big(value) => Value::LargeInt(Bytes::copy_from_slice(value.as_bytes())),
            // More digits than any number that Dask writes.
            other => Value::Str(format!("{other:?}")),
        },
    }
}

fn unknown(what: &str) -> ValueError {
    ValueError::Unknown {
        what: what.to_owned(),
    }
}

/// What an object is, for people: the first name that its pickle takes.
pub(crate) fn describe(node: Node<'_, '_>) -> String {
    const STEPS: usize = 64;
    for event in node.walk(STEPS) {
        let Ok(tree::Event::Enter(inner)) = event else {
            continue;
        };
        if let Some(global) = inner.as_global() {
            return global.to_string();
        }
    }
    "an object".to_owned()
}

impl Reading<'_> {
    fn array(&self, found: &known::NdArray<'_, '_>) -> Result<Array, ValueError> {
        if !matches!(found.element_type(), typed::ElementType::Plain(_)) {
            return Err(unknown("an array of records"));
        }
        let view = found.array();
        let data = self.bytes(view.bytes());
        Ok(Array::of_view(&view, &data))
    }

    /// A number of numpy as a number, anything else as an array without
    /// dimensions.
    fn scalar(&self, found: &known::Scalar<'_, '_>) -> Result<Value, ValueError> {
        let typed::ElementType::Plain(dtype) = found.element_type() else {
            return Err(unknown("a record of numpy"));
        };
        Ok(match (dtype.kind(), dtype.item_len()) {
            (typed::Kind::Bool, _) => Value::Bool(found.value()?),
            (typed::Kind::Int, 1) => Value::from(found.value::<i8>()?),
            (typed::Kind::Int, 2) => Value::from(found.value::<i16>()?),
            (typed::Kind::Int, 4) => Value::from(found.value::<i32>()?),
            (typed::Kind::Int, 8) => Value::from(found.value::<i64>()?),
            (typed::Kind::UInt, 1) => Value::from(found.value::<u8>()?),
            (typed::Kind::UInt, 2) => Value::from(found.value::<u16>()?),
            (typed::Kind::UInt, 4) => Value::from(found.value::<u32>()?),
            (typed::Kind::UInt, 8) => Value::from(found.value::<u64>()?),
            (typed::Kind::Float, 4) => Value::from(found.value::<f32>()?),
            (typed::Kind::Float, 8) => Value::from(found.value::<f64>()?),
            (typed::Kind::Complex, 16) => {
                let [real, imaginary] = found.value()?;
                Value::Complex(real, imaginary)
            }
            _ => {
                let view = found.array();
                let data = self.bytes(view.bytes());
                Value::Array(Array::of_view(&view, &data))
            }
        })
    }
}
