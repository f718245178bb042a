//! Conversion between values and pickles. Only a fixed set of Python names is supported;
//! other names lead to [`ValueError::Unknown`].

use core::cell::{Cell, OnceCell, RefCell};
use core::fmt;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use daskwire_numpy::known::{self, Known, KnownValue, convert};
use daskwire_numpy::{Order, pickle_array};
use daskwire_pickle::tree::{self, Int, Node, Registry, Tree};
use daskwire_pickle::{Mutability, PickleBuffer, Placement, Protocol, Writer};

use super::instance::is_container;
use super::object::{Class, Kind, Object, Origin};
use super::part::{Part, changed_by_dropped_calls};
use super::{Array, Budget, Items, MAX_DEPTH, Serialized, UnknownParts, Value, ValueError};
use crate::pickling::Pickling;
use crate::scratch;

/// Pickles a value; returns the pickle and the arrays whose data is out of band,
/// which protocol 4 does not have.
///
/// # Errors
///
/// [`ValueError::Unknown`] if a part of the value is serialized and cannot be
/// opened.
pub(crate) fn write(
    value: &Value,
    pickling: Pickling,
) -> Result<(Vec<u8>, Vec<&Array>), ValueError> {
    let mut out_of_band = Vec::new();
    let mut twice = Repeated::of(value);
    let pickle = scratch::pickle(pickling.options(), |writer| {
        out_of_band.clear();
        twice.forget();
        let out_of_band = (pickling.protocol >= Protocol::V5).then_some(&mut out_of_band);
        value.write_pickle(writer, out_of_band, &mut twice, pickling)
    })?;
    Ok((pickle, out_of_band))
}

/// Parts that occur more than once in a value. They are written once and
/// referenced from the memo after that.
#[derive(Default)]
struct Repeated(HashMap<Identity, Option<u32>>);

/// The identity of a part that may be shared.
#[derive(PartialEq, Eq, Hash)]
enum Identity {
    /// Data or items: kind, address, and length.
    One(core::mem::Discriminant<Value>, usize, usize),
    /// A payload: address and length of its header and of each frame. Payloads
    /// may share frames.
    Payload(Vec<(usize, usize)>),
}

/// Minimum length of shared data. Writing shorter data again costs less than a lookup.
const SHARED_LEN: usize = 64;

impl Repeated {
    /// Visits each part once, however often it occurs.
    fn of(value: &Value) -> Self {
        let mut seen: HashMap<Identity, bool> = HashMap::new();
        let mut left = vec![value];
        while let Some(value) = left.pop() {
            if let Some(identity) = value.identity() {
                match seen.entry(identity) {
                    Entry::Occupied(mut again) => {
                        again.insert(true);
                        continue;
                    }
                    Entry::Vacant(first) => {
                        first.insert(false);
                    }
                }
            }
            match value {
                Value::List(items)
                | Value::Tuple(items)
                | Value::Set(items)
                | Value::FrozenSet(items)
                | Value::Object(Object {
                    arguments: items, ..
                }) => left.extend(items.iter().rev().filter(can_repeat)),
                Value::Dict(entries) => {
                    let all = entries.iter().flat_map(|(key, value)| [key, value]);
                    left.extend(all.filter(can_repeat));
                }
                _ => {}
            }
        }
        let repeated = seen.into_iter().filter(|(_, again)| *again);
        Self(repeated.map(|(place, _)| (place, None)).collect())
    }

    /// Forgets the memo entries, for the next pickle.
    fn forget(&mut self) {
        self.0.values_mut().for_each(|index| *index = None);
    }

    fn entry(&mut self, value: &Value) -> Option<&mut Option<u32>> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get_mut(&value.identity()?)
    }
}

/// Whether the value, or a part of it, may have other owners.
fn can_repeat(value: &&Value) -> bool {
    value.totals().is_some() || value.identity().is_some()
}

/// The data of an array as an out-of-band buffer.
pub(crate) fn buffer(array: &Array) -> PickleBuffer<'_> {
    let mutability = match array.writeable() {
        Some(false) => Mutability::ReadOnly,
        _ => Mutability::Writable,
    };
    PickleBuffer::new(array.bytes(), mutability)
}

/// A step of writing. Pending steps are kept in a vector, so that nesting needs no
/// recursion.
enum Step<'v> {
    Value(&'v Value),
    /// The name of an attribute.
    Name(&'v str),
    /// Ends a value at this depth of the pickle, and memoizes it if it occurs
    /// again.
    End(&'v Value, usize),
}

impl Value {
    /// Writes the value as the next one of a pickle, with all data in band.
    #[doc(hidden)]
    pub fn pickle_in_band(
        &self,
        writer: &mut Writer<'_, '_>,
        pickling: Pickling,
    ) -> Result<(), ValueError> {
        self.write_pickle(writer, None, &mut Repeated::of(self), pickling)
    }

    /// Writes the value as the next one of a pickle. Appends arrays whose data
    /// can be out of band to `out_of_band`.
    fn write_pickle<'a>(
        &'a self,
        writer: &mut Writer<'_, '_>,
        mut out_of_band: Option<&mut Vec<&'a Array>>,
        repeated: &mut Repeated,
        pickling: Pickling,
    ) -> Result<(), ValueError> {
        let mut left = vec![Step::Value(self)];
        if !repeated.0.is_empty() {
            writer.end_complete();
        }
        while let Some(step) = left.pop() {
            let value = match step {
                Step::Value(value) => value,
                Step::Name(name) => {
                    writer.str(name);
                    continue;
                }
                Step::End(value, depth) => {
                    for _ in depth..writer.depth() {
                        writer.end();
                    }
                    if let Some(index) = repeated.entry(value) {
                        *index = Some(writer.memoize());
                    }
                    continue;
                }
            };
            if let Some(Some(index)) = repeated.entry(value) {
                writer.get(*index);
                continue;
            }
            if !repeated.0.is_empty() {
                left.push(Step::End(value, writer.depth()));
            }
            match value {
                Self::List(items) => {
                    writer.list(items.len());
                    left.extend(items.iter().rev().map(Step::Value));
                }
                Self::Tuple(items) => {
                    writer.tuple(items.len());
                    left.extend(items.iter().rev().map(Step::Value));
                }
                Self::Set(items) => {
                    writer.set(items.len());
                    left.extend(items.iter().rev().map(Step::Value));
                }
                Self::FrozenSet(items) => {
                    writer.frozenset(items.len());
                    left.extend(items.iter().rev().map(Step::Value));
                }
                Self::Object(object) => {
                    let arguments = object.begin(writer)?.iter().enumerate();
                    let has_attributes = object.origin() == Origin::Attributes;
                    for (index, argument) in arguments.rev() {
                        left.push(Step::Value(argument));
                        if has_attributes && let Some(name) = object.fields().get(index) {
                            left.push(Step::Name(name));
                        }
                    }
                }
                Self::Dict(entries) => {
                    writer.dict(entries.len());
                    let entries = entries.iter().rev();
                    left.extend(entries.flat_map(|(key, value)| [value, key].map(Step::Value)));
                }
                Self::Array(array) => match &mut out_of_band {
                    Some(out_of_band) if is_contiguous(array) => {
                        let view = array.view()?;
                        pickle_array(writer, &view, pickling.numpy, |_| Placement::OutOfBand)?;
                        out_of_band.push(array);
                    }
                    _ => {
                        let copy = contiguous(array)?;
                        let view = copy.view()?;
                        pickle_array(writer, &view, pickling.numpy, |_| Placement::InBand)?;
                    }
                },
                // A pickle cannot hold the frames of a payload, so the payload's
                // value is written.
                Self::Serialized(serialized) => match serialized.open() {
                    Ok(value) => value.pickle_in_band(writer, pickling)?,
                    Err(error @ ValueError::Unknown { .. }) => {
                        write_unknown(serialized, writer, pickling).map_err(|_| error)?;
                    }
                    Err(error) => return Err(error),
                },
                plain => plain.pickle_plain(writer),
            }
        }
        Ok(())
    }

    /// The identity of the value, if it may be shared and is long enough to
    /// matter.
    fn identity(&self) -> Option<Identity> {
        let of = |data: &[u8]| (data.len() >= SHARED_LEN).then(|| data.as_ptr().addr());
        let (at, len) = match self {
            Self::Str(string) if Arc::strong_count(string) > 1 => {
                (of(string.as_bytes())?, string.len())
            }
            Self::Bytes(data) | Self::ByteArray(data) => (of(data)?, data.len()),
            Self::Array(array) => (of(array.bytes())?, array.properties_address()),
            Self::Serialized(serialized) => {
                let parts = serialized.message();
                of(parts.last()?)?;
                let place = |part: &Bytes| (part.as_ptr().addr(), part.len());
                return Some(Identity::Payload(parts.iter().map(place).collect()));
            }
            Self::List(items) | Self::Tuple(items) | Self::Set(items) | Self::FrozenSet(items) => {
                (items.shared_address()?, items.len())
            }
            Self::Dict(entries) => (entries.shared_address()?, entries.len()),
            Self::Object(object) => object.shared_address()?,
            _ => return None,
        };
        Some(Identity::One(core::mem::discriminant(self), at, len))
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
            Self::Str(string) => writer.str(string),
            Self::Bytes(data) => writer.bytes(data),
            Self::ByteArray(data) => writer.bytearray(data),
            _ => writer.none(),
        };
    }
}

impl Object {
    /// Begins the object in a pickle; returns the arguments that are to follow.
    fn begin(&self, writer: &mut Writer<'_, '_>) -> Result<&[Value], ValueError> {
        if !self.is_importable() {
            let class = self.class();
            return Err(ValueError::Unsupported {
                what: format!("an instance of {class}, which other processes cannot import,"),
            });
        }
        match self.origin() {
            Origin::New => writer.newobj(),
            Origin::Attributes => {
                writer.build().newobj().global(self.module(), self.name());
                writer.tuple(0).dict(self.arguments().len());
                return Ok(self.arguments());
            }
            // Other origins are not importable.
            _ => writer.reduce(),
        };
        let arguments = self.arguments();
        match (self.kind(), arguments) {
            // The classes themselves take other arguments.
            (Kind::Timestamp, [_, Value::None, _, Value::Int(_)]) => {
                let module = "pandas._libs.tslibs.timestamps";
                writer.global(module, "_unpickle_timestamp")
            }
            (Kind::Timedelta, [Value::Int(_), Value::Int(_)]) => {
                writer.global("pandas._libs.tslibs.timedeltas", "_timedelta_unpickle")
            }
            _ => writer.global(self.module(), self.name()),
        };
        let folded = match (self.kind(), arguments) {
            (Kind::DefaultDict, [Value::Str(factory), entries]) => {
                writer.tuple(2).global("builtins", factory);
                return Ok(core::slice::from_ref(entries));
            }
            // The constructor takes the fold by keyword only, the state has it in a bit.
            (Kind::Time, [_, _, _, _, zone, Value::Int(1)]) => self.folded_time().zip(Some(zone)),
            (Kind::DateTime, [_, _, _, _, _, _, _, zone, Value::Int(1)]) => {
                self.folded_date_time().zip(Some(zone))
            }
            _ => None,
        };
        if let Some((state, zone)) = folded {
            let zone = match zone {
                Value::None => &[],
                zone => core::slice::from_ref(zone),
            };
            writer.tuple(zone.len().saturating_add(1)).bytes(&state);
            return Ok(zone);
        }
        writer.tuple(arguments.len());
        Ok(arguments)
    }
}

pub(super) fn is_contiguous(array: &Array) -> bool {
    array
        .view()
        .is_ok_and(|view| view.order().is_some() && !view.is_broadcast())
}

/// Converts an array to row-major order.
fn contiguous(array: &Array) -> Result<Array, ValueError> {
    if is_contiguous(array) {
        return Ok(array.clone());
    }
    let view = array.view()?;
    if view.check_repetition().is_err() {
        return Err(ValueError::TooLarge);
    }
    let data: Vec<u8> = view.items().flatten().copied().collect();
    let data = Bytes::from(data);
    Ok(Array::from_bytes(
        array.dtype(),
        array.shape(),
        Order::C,
        data,
    )?)
}

/// The Python names that are supported.
fn names() -> &'static Registry<Known> {
    static NAMES: OnceLock<Registry<Known>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let mut registry = Registry::new();
        registry.allow_all(known::BUILTINS).allow_all(known::NUMPY);
        registry
    })
}

/// Reads a pickle. Array data is not copied.
pub(super) fn read(
    pickle: &Bytes,
    buffers: &[Bytes],
    unknown: UnknownParts<'_>,
) -> Result<Value, ValueError> {
    let tree = Tree::with_buffers(pickle, buffers)?;
    let mut reader = TreeReader::new(pickle, buffers);
    reader.has_all_classes = true;
    reader.unknown = unknown;
    reader
        .keeps_parts
        .set(matches!(unknown, UnknownParts::Kept(_)));
    reader.value(tree.root(), MAX_DEPTH.saturating_add(1))
}

/// Reads the elements of an array of objects; those of an array with several dimensions are lists.
/// Records with objects are tuples. An element without a counterpart in Rust stays serialized.
pub(super) fn object_array(pickle: &Bytes, buffers: &[Bytes]) -> Result<Vec<Value>, ValueError> {
    let tree = Tree::with_buffers(pickle, buffers)?;
    let Ok(KnownValue::ObjectArray(objects)) = convert(names(), tree.root()) else {
        return Err(unknown(&describe(tree.root())));
    };
    let mut reader = TreeReader::new(pickle, buffers);
    reader.has_all_classes = true;
    reader.unknown = UnknownParts::Kept(None);
    reader.keeps_parts.set(true);
    let items = objects.items().map(|item| reader.part(item, MAX_DEPTH));
    let mut items = items.collect::<Result<Vec<_>, _>>()?;
    let shape = objects.shape();
    if shape.is_empty() {
        return Err(unknown("an array without dimensions"));
    }
    for axis in (1..shape.len()).rev() {
        let counts = shape[..axis]
            .iter()
            .try_fold(1_usize, |count, len| count.checked_mul(*len));
        let count = counts.ok_or(ValueError::TooLarge)?;
        // There may be many rows without elements.
        reader.budget.spend(count)?;
        let mut left = items.into_iter();
        let row = |_| Value::List(left.by_ref().take(shape[axis]).collect());
        items = (0..count).map(row).collect();
    }
    Ok(items)
}

/// Reads the records of an array, as [`records`](super::records::records) does.
pub(super) fn records(pickle: &Bytes, buffers: &[Bytes]) -> Result<Vec<Value>, ValueError> {
    let tree = Tree::with_buffers(pickle, buffers)?;
    let found = convert(names(), tree.root());
    if let Ok(KnownValue::Array(array)) = &found
        && let daskwire_numpy::ElementType::Record(record) = array.element_type()
    {
        let (steps, bytes) = budget_of(pickle, buffers);
        return super::records::records(&array.array(), &record, &Budget::new(steps, bytes));
    }
    Err(unknown(&describe(tree.root())))
}

/// Writes an object without a counterpart in Rust as the next value of a pickle, with
/// its buffers in band.
fn write_unknown(
    serialized: &Serialized,
    writer: &mut Writer<'_, '_>,
    pickling: Pickling,
) -> Result<(), ValueError> {
    let (pickle, buffers) = serialized.pickle()?;
    if protocol_of(&pickle).is_none() {
        return Err(unknown("a pickle of an old protocol"));
    }
    let tree = Tree::with_buffers(&pickle, &buffers)?;
    let changed = changed_by_dropped_calls(&tree);
    let (steps, bytes) = budget_of(&pickle, &buffers);
    let part = Part::of(tree.root(), &changed, &Budget::new(steps, bytes))?;
    let part = part.ok_or_else(|| unknown(&describe(tree.root())))?;
    part.write(writer, pickling.protocol, |_| Placement::InBand)
}

/// The protocol in which parts of a pickle are written; `None` before protocol 3, which
/// has the names of Python 2.
fn protocol_of(pickle: &[u8]) -> Option<Protocol> {
    match pickle {
        [0x80, 3 | 4, ..] => Some(Protocol::V4),
        [0x80, 5, ..] => Some(Protocol::V5),
        _ => None,
    }
}

/// The steps and the bytes that may be spent on a pickle.
fn budget_of(pickle: &Bytes, buffers: &[Bytes]) -> (usize, usize) {
    // A value that is not shared takes at least one byte.
    let own = pickle.len().saturating_mul(4);
    let (values, bytes) = SHARED;
    let in_band = buffers.iter().map(Bytes::len);
    let in_band = in_band.fold(own, usize::saturating_add);
    (own.saturating_add(values), in_band.saturating_add(bytes))
}

/// Makes values of the nodes of a tree. Nodes shared in the tree become shared
/// values.
pub struct TreeReader<'b> {
    names: &'static Registry<Known>,
    pickle: &'b Bytes,
    buffers: &'b [Bytes],
    by_address: OnceCell<Vec<&'b Bytes>>,
    /// Whether instances of any class are converted to values, or only instances of
    /// known classes.
    pub has_all_classes: bool,
    unknown: UnknownParts<'b>,
    /// Whether unknown items of the containers that are read now stay unopened. Those of
    /// containers that belong to an object do not: the object is unknown.
    pub(super) keeps_parts: Cell<bool>,
    /// The parts that stay unopened, by the index of their node.
    kept: RefCell<HashMap<usize, Value>>,
    /// The budget for writing these.
    kept_budget: Budget,
    /// The nodes that [`changed_by_dropped_calls`] finds.
    changed: OnceCell<HashSet<usize>>,
    /// The remaining budget.
    pub budget: Budget,
    made: RefCell<Cache>,
    /// The classes of instances, by the index of their node.
    pub(super) classes: RefCell<HashMap<usize, Arc<Class>>>,
}

/// The values of nodes that may occur again.
#[derive(Default)]
struct Cache {
    /// One bit for each node that was converted before.
    once: Vec<u64>,
    /// The values of nodes that occur more than once.
    values: HashMap<usize, Value>,
}

impl Cache {
    /// Whether a node is converted for the first time.
    fn is_first(&mut self, index: usize) -> bool {
        let (word, bit) = (index / 64, 1 << (index % 64));
        if self.once.len() <= word {
            self.once.resize(word.saturating_add(1), 0);
        }
        let Some(word) = self.once.get_mut(word) else {
            return false;
        };
        let is_first = *word & bit == 0;
        *word |= bit;
        is_first
    }
}

/// The minimum budget for shared nodes: steps and copied bytes, however short the
/// pickle is.
const SHARED: (usize, usize) = (1 << 18, 1 << 26);

impl<'b> TreeReader<'b> {
    /// Returns a reader of a pickle and its out-of-band buffers.
    pub fn new(pickle: &'b Bytes, buffers: &'b [Bytes]) -> Self {
        // A value that is not shared takes at least one byte.
        let own = pickle.len().saturating_mul(4);
        let (values, bytes) = SHARED;
        let (steps, kept_bytes) = budget_of(pickle, &[]);
        Self {
            names: names(),
            pickle,
            buffers,
            by_address: OnceCell::new(),
            has_all_classes: false,
            unknown: UnknownParts::Refused,
            keeps_parts: Cell::new(false),
            kept: RefCell::default(),
            kept_budget: Budget::new(steps, kept_bytes),
            changed: OnceCell::new(),
            budget: Budget::new(own.saturating_add(values), own.saturating_add(bytes)),
            made: RefCell::default(),
            classes: RefCell::default(),
        }
    }

    /// Length of the pickle and its buffers, in bytes.
    pub fn input_len(&self) -> usize {
        let out_of_band = self.buffers.iter().map(Bytes::len);
        out_of_band.fold(self.pickle.len(), usize::saturating_add)
    }

    /// The value of a node with at most `depth` levels of containers.
    ///
    /// # Errors
    ///
    /// If the node has no counterpart in Rust, or more levels, or the budget is spent.
    pub fn value(&self, node: Node<'_, '_>, depth: usize) -> Result<Value, ValueError> {
        self.budget.spend(1)?;
        let value = match depth.checked_sub(1) {
            Some(depth) => self.value_within(node, depth),
            None => Err(ValueError::TooLarge),
        };
        match value {
            Err(error @ ValueError::Unknown { .. }) => self.unknown.value(error),
            // A container one level too deep.
            Err(error @ ValueError::TooLarge) if depth == 1 => self.unknown.value(error),
            Ok(value) if depth == 1 && self.unknown.are_marked() && value.totals().is_some() => {
                self.unknown.value(ValueError::TooLarge)
            }
            value => value,
        }
    }

    /// The value of an item of a container, which stays unopened if it has no counterpart
    /// in Rust.
    pub(super) fn part(&self, node: Node<'_, '_>, depth: usize) -> Result<Value, ValueError> {
        let UnknownParts::Kept(limits) = self.unknown else {
            return self.value(node, depth);
        };
        if !self.keeps_parts.get() {
            return self.value(node, depth);
        }
        // The header and the list of frames, of each copy.
        const KEPT_LEN: usize = 512;
        let is_affordable = || self.kept_budget.spend_copy(KEPT_LEN).is_ok();
        if let Some(value) = self.kept.borrow().get(&node.index())
            && is_affordable()
        {
            self.budget.spend(1)?;
            return Ok(value.clone());
        }
        match self.value(node, depth) {
            Err(error @ ValueError::Unknown { .. }) if is_affordable() => {
                let Ok(Some(serialized)) = self.unopened(node) else {
                    return Err(error);
                };
                let value = Value::Serialized(serialized.limited(limits.cloned()));
                self.kept.borrow_mut().insert(node.index(), value.clone());
                Ok(value)
            }
            value => value,
        }
    }

    /// The payload of a node; `None` if it has no pickle of its own.
    fn unopened(&self, node: Node<'_, '_>) -> Result<Option<Serialized>, ValueError> {
        let Some(protocol) = protocol_of(self.pickle) else {
            return Ok(None);
        };
        let changed = self
            .changed
            .get_or_init(|| changed_by_dropped_calls(node.tree()));
        let Some(part) = Part::of(node, changed, &self.kept_budget)? else {
            return Ok(None);
        };
        let mut buffers = Vec::new();
        let options = Pickling {
            protocol,
            ..Pickling::default()
        };
        let pickle = scratch::pickle(options.options(), |writer| {
            buffers.clear();
            part.write(writer, protocol, |buffer| {
                buffers.push(buffer);
                Placement::OutOfBand
            })
        })?;
        let frames: Vec<Bytes> = buffers
            .iter()
            .map(|buffer| self.bytes(buffer.as_bytes()))
            .collect();
        Ok(Some(Serialized::of_pickle_and_buffers(
            pickle.into(),
            &frames,
            buffers,
        )))
    }

    fn value_within(&self, node: Node<'_, '_>, depth: usize) -> Result<Value, ValueError> {
        Ok(match node.value() {
            tree::Value::None => Value::None,
            tree::Value::Bool(value) => Value::Bool(value),
            tree::Value::Int(value) => self.integer(value)?,
            tree::Value::Float(value) => Value::Float(value),
            tree::Value::Bytes(data) => Value::Bytes(self.bytes(data)),
            tree::Value::ByteArray { data, .. } => Value::ByteArray(self.bytes(data)),
            tree::Value::Buffer {
                data,
                read_only: true,
                ..
            } => Value::Bytes(self.bytes(data)),
            tree::Value::Buffer { data, .. } => Value::ByteArray(self.bytes(data)),
            tree::Value::Str(string @ tree::Str::Utf8(utf8))
                if utf8.as_bytes().len() < SHARED_LEN =>
            {
                self.string(string)?
            }
            _ => return self.shared(node, depth),
        })
    }

    /// The value of a node that may occur more than once. It is kept from its
    /// second occurrence on.
    fn shared(&self, node: Node<'_, '_>, depth: usize) -> Result<Value, ValueError> {
        let index = node.index();
        let is_first = self.made.borrow_mut().is_first(index);
        if !is_first && let Some(value) = self.made.borrow().values.get(&index) {
            // The value may be nested deeper here than at its first occurrence; the
            // caller checks the depth of the whole value.
            return Ok(value.clone());
        }
        let many = |items: tree::Items<'_, '_>| {
            let items = items.enumerate();
            let items = items.map(|(index, item)| {
                let value = self.part(item, depth);
                value.map_err(|error| self.at(error, index))
            });
            items.collect::<Result<Items, _>>()
        };
        let value = match node.value() {
            tree::Value::Str(string) => self.string(string)?,
            tree::Value::ByteString(string) => Value::Bytes(string.to_bytes().into_owned().into()),
            tree::Value::Tuple(items) => Value::Tuple(many(items)?),
            tree::Value::List(items) => Value::List(many(items)?),
            tree::Value::Set(items) => Value::Set(many(items)?),
            tree::Value::FrozenSet(items) => Value::FrozenSet(many(items)?),
            tree::Value::Dict(entries) => {
                let pairs = entries.map(|(key, value)| {
                    let key = self.value(key, depth)?;
                    match self.part(value, depth) {
                        Ok(value) => Ok((key, value)),
                        Err(error) => Err(self.at(error, key)),
                    }
                });
                Value::Dict(pairs.collect::<Result<_, ValueError>>()?)
            }
            _ => self.object(node, depth, &many)?,
        }
        .checked()?;
        if !is_first {
            self.made.borrow_mut().values.insert(index, value.clone());
        }
        Ok(value)
    }

    /// Adds the index or the key in a container to an error about a part of a whole value.
    fn at(&self, error: ValueError, index: impl fmt::Display) -> ValueError {
        match self.has_all_classes {
            true => at(error, index),
            false => error,
        }
    }

    fn object<'t, 'p>(
        &self,
        node: Node<'t, 'p>,
        depth: usize,
        many: &dyn Fn(tree::Items<'_, '_>) -> Result<Items, ValueError>,
    ) -> Result<Value, ValueError> {
        let Ok(converted) = convert(self.names, node) else {
            let keeps_parts = self.keeps_parts.get();
            self.keeps_parts.set(keeps_parts && is_container(node));
            let value = self.instance(node, depth);
            self.keeps_parts.set(keeps_parts);
            return value;
        };
        Ok(match converted {
            KnownValue::Complex { real, imaginary } => Value::Complex(real, imaginary),
            KnownValue::Set(items) => Value::Set(many(items)?),
            KnownValue::FrozenSet(items) => Value::FrozenSet(many(items)?),
            KnownValue::ByteArray(data) => {
                self.budget.spend_copy(data.len())?;
                Value::ByteArray(self.bytes(&data))
            }
            KnownValue::Bytes(data) => {
                self.budget.spend_copy(data.len())?;
                Value::Bytes(self.bytes(&data))
            }
            KnownValue::Array(array) => Value::Array(self.array(&array)?),
            KnownValue::Scalar(scalar) => self.scalar(&scalar)?,
            _ => return Err(unknown(&describe(node))),
        })
    }

    /// The bytes of a node. Not copied if they are in the pickle or its buffers.
    fn bytes(&self, data: &[u8]) -> Bytes {
        let range = data.as_ptr_range();
        let has_data = |source: &Bytes| {
            let all = source.as_ptr_range();
            all.start <= range.start && range.end <= all.end
        };
        if data.is_empty() {
            return Bytes::new();
        }
        if has_data(self.pickle) {
            return self.pickle.slice_ref(data);
        }
        // There may be as many buffers as values, so they are searched by
        // address.
        let sorted = self.by_address.get_or_init(|| {
            let mut sorted: Vec<&Bytes> = self.buffers.iter().collect();
            sorted.sort_unstable_by_key(|buffer| buffer.as_ptr());
            sorted
        });
        let end = sorted.partition_point(|buffer| buffer.as_ptr() <= range.start);
        let source = end.checked_sub(1).and_then(|index| sorted.get(index));
        match source.filter(|source| has_data(source)) {
            Some(source) => source.slice_ref(data),
            None => Bytes::copy_from_slice(data),
        }
    }
}

/// Adds the index or the key in a container to an error about an unknown part of it.
pub(super) fn at(error: ValueError, index: impl fmt::Display) -> ValueError {
    /// A longer key is not shown.
    const MAX_KEY: usize = 64;
    let what = match error {
        ValueError::Unknown { what } => what,
        other => return other,
    };
    let mut index = index.to_string();
    if index.len() > MAX_KEY {
        "…".clone_into(&mut index);
    }
    let place = " at [";
    unknown(&match what.split_once(place) {
        Some((what, path)) => format!("{what}{place}{index}][{path}"),
        None => format!("{what}{place}{index}]"),
    })
}

fn unknown(what: &str) -> ValueError {
    ValueError::Unknown {
        what: what.to_owned(),
    }
}

/// Describes an object by the first name that its pickle mentions.
pub fn describe(node: Node<'_, '_>) -> String {
    const STEPS: usize = 64;
    for event in node.walk(STEPS) {
        let Ok(tree::WalkEvent::Enter(inner)) = event else {
            continue;
        };
        if let Some(global) = inner.as_global() {
            return global.to_string();
        }
    }
    "an object".to_owned()
}

impl TreeReader<'_> {
    fn string(&self, string: tree::Str<'_>) -> Result<Value, ValueError> {
        let string = string
            .to_str()
            .ok_or_else(|| unknown("a string with half a surrogate pair"))?;
        self.budget.spend_copy(string.len())?;
        Ok(Value::from(&*string))
    }

    fn integer(&self, value: Int<'_>) -> Result<Value, ValueError> {
        match (value.to_i128(), value) {
            (Some(value), _) => Ok(Value::Int(value)),
            (None, Int::Big(value)) => Ok(Value::LargeInt(self.bytes(value.as_bytes()))),
            // A decimal number with more digits than Dask ever writes.
            (None, other) => Ok(Value::from(format!("{other:?}"))),
        }
    }

    pub(super) fn array(&self, found: &known::NdArray<'_, '_>) -> Result<Array, ValueError> {
        if !matches!(found.element_type(), daskwire_numpy::ElementType::Plain(_)) {
            return Err(unknown("an array of records"));
        }
        let view = found.array();
        let data = self.bytes(view.bytes());
        // Arrays may share encoded data, of which each gets a copy.
        if data.as_ptr() != view.bytes().as_ptr() {
            self.budget.spend_copy(data.len())?;
        }
        Ok(Array::of_view(&view, data))
    }

    /// A numpy scalar: as the value of Python that its `item()` is, a time as an
    /// object, anything else as an array without dimensions.
    fn scalar(&self, found: &known::Scalar<'_, '_>) -> Result<Value, ValueError> {
        let daskwire_numpy::ElementType::Plain(dtype) = found.element_type() else {
            return Err(unknown("a numpy record"));
        };
        Ok(match (dtype.kind(), dtype.item_len()) {
            (daskwire_numpy::Kind::Bool, _) => Value::Bool(found.value()?),
            (daskwire_numpy::Kind::Int, 1) => Value::from(found.value::<i8>()?),
            (daskwire_numpy::Kind::Int, 2) => Value::from(found.value::<i16>()?),
            (daskwire_numpy::Kind::Int, 4) => Value::from(found.value::<i32>()?),
            (daskwire_numpy::Kind::Int, 8) => Value::from(found.value::<i64>()?),
            (daskwire_numpy::Kind::UInt, 1) => Value::from(found.value::<u8>()?),
            (daskwire_numpy::Kind::UInt, 2) => Value::from(found.value::<u16>()?),
            (daskwire_numpy::Kind::UInt, 4) => Value::from(found.value::<u32>()?),
            (daskwire_numpy::Kind::UInt, 8) => Value::from(found.value::<u64>()?),
            (daskwire_numpy::Kind::Float, 4) => Value::from(found.value::<f32>()?),
            (daskwire_numpy::Kind::Float, 8) => Value::from(found.value::<f64>()?),
            (daskwire_numpy::Kind::Complex, 16) => {
                let [real, imaginary] = found.value()?;
                Value::Complex(real, imaginary)
            }
            _ => {
                self.budget.spend_copy(found.bytes().len())?;
                match super::array::element(dtype, found.bytes()) {
                    Ok(value) => value,
                    Err(_) => {
                        let view = found.array();
                        let data = self.bytes(view.bytes());
                        Value::Array(Array::of_view(&view, data))
                    }
                }
            }
        })
    }
}
