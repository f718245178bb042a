//! Data frames of pandas, read from their pickles.

use std::sync::Arc;

use arrow_array::types::{
    ArrowDictionaryKeyType, ArrowPrimitiveType, DurationMicrosecondType, DurationMillisecondType,
    DurationNanosecondType, DurationSecondType, Float16Type, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array as _, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
    Float64Array, Int64Array, LargeStringArray, ListArray, NullArray, PrimitiveArray, StringArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use bytes::Bytes;
use daskwire_numpy::known::{self, Known, KnownValue};
use daskwire_numpy::{Element, Kind, NumpyError, TimeBase};
use daskwire_pickle::tree::{self, Node, Operation, Registry, Tree};

use super::arrow::TableError;
use super::object;
use super::pickled::{TreeReader, describe};
use super::{Array, Budget, MAX_DEPTH, Value};

/// The columns of a data frame.
pub(super) struct Columns {
    pub(super) columns: Vec<(String, ArrayRef)>,
    pub(super) row_count: usize,
}

pub(super) type Converted<T> = Result<T, TableError>;

pub(super) fn unsupported<T>(what: impl Into<String>) -> Converted<T> {
    Err(TableError::Unsupported { what: what.into() })
}

/// The columns of the data frame, series, index, table or array in a pickle; `None` if it
/// is another object.
pub(super) fn columns(
    tree: &Tree<'_>,
    pickle: &Bytes,
    buffers: &[Bytes],
) -> Converted<Option<Columns>> {
    let root = tree.root();
    let mut registry = Registry::new();
    registry.allow_all(known::NUMPY);
    let reader = TreeReader::new(pickle, buffers);
    // A short pickle may stand for much data: its parts may be shared, arrays
    // may repeat their elements, and a range of any length takes a few bytes.
    let len = reader.input_len();
    let steps = len.saturating_add(MIN_STEPS);
    let budget = Budget::new(steps, len.saturating_mul(16).saturating_add(MIN_BUDGET));
    let frame = Frame {
        reader,
        registry,
        budget,
    };
    if let Some(state) = instance(root, &["pandas.DataFrame", "pandas.core.frame.DataFrame"]) {
        return frame.data_frame(state).map(Some);
    }
    if let Some(state) = instance(root, &["pandas.Series", "pandas.core.series.Series"]) {
        return frame.series(state).map(Some);
    }
    let columns = if index_parts(root).is_some() {
        frame.index_columns(root)?
    } else if Frame::is_arrow_array(root) {
        vec![("0".to_owned(), frame.arrow_array(root)?)]
    } else if let Some(columns) = frame.table(root)? {
        columns
    } else {
        return Ok(None);
    };
    let row_count = columns.first().map_or(0, |(_, column)| column.len());
    if columns.iter().any(|(_, column)| column.len() != row_count) {
        return unsupported("columns of different lengths");
    }
    Ok(Some(Columns { columns, row_count }))
}

/// Adds the name of the column to an error.
fn named(name: &str, error: TableError) -> TableError {
    match error {
        TableError::Unsupported { what } => TableError::Column {
            name: name.to_owned(),
            what,
        },
        other => other,
    }
}

fn widened<T: Into<i64>>(codes: Result<Vec<T>, NumpyError>) -> Result<Vec<i64>, NumpyError> {
    Ok(codes?.into_iter().map(Into::into).collect())
}

/// The state of an instance of one of these classes without arguments.
fn instance<'t, 'p>(node: Node<'t, 'p>, classes: &[&str]) -> Option<Node<'t, 'p>> {
    let tree::Value::New { class, .. } = node.value() else {
        return None;
    };
    let name = class.as_global()?.to_string();
    classes.contains(&&*name).then_some(())?;
    state(node)
}

fn state<'t, 'p>(node: Node<'t, 'p>) -> Option<Node<'t, 'p>> {
    node.operations().find_map(|operation| match operation {
        Operation::State(state) => Some(state.node()),
        _ => None,
    })
}

/// The arguments of a call of one of these functions.
pub(super) fn call<'t, 'p>(node: Node<'t, 'p>, functions: &[&str]) -> Option<tree::Items<'t, 'p>> {
    let (callable, arguments) = node.as_call()?;
    let name = callable.as_global()?.to_string();
    functions.contains(&&*name).then_some(arguments)
}

/// Minimum budget for the columns of a data frame, in bytes, however short its
/// pickle is.
const MIN_BUDGET: usize = 1 << 26;

/// Minimum budget for types and arrays of pyarrow.
const MIN_STEPS: usize = 1 << 10;

pub(super) struct Frame<'b> {
    reader: TreeReader<'b>,
    registry: Registry<Known>,
    /// The arrays that may still be read, and the bytes that may still be copied to
    /// columns.
    pub(super) budget: Budget,
}

impl Frame<'_> {
    fn data_frame(&self, state: Node<'_, '_>) -> Converted<Columns> {
        let Some(manager) = state.get("_mgr") else {
            return unsupported("a data frame without a block manager");
        };
        let arguments = call(manager, &["pandas.core.internals.managers.BlockManager"]);
        let parts = arguments.and_then(tree::Items::exactly);
        let Some([blocks, axes]) = parts else {
            return unsupported("a data frame of a release of pandas before 2.0");
        };
        let Some([names, index]) = axes.items().exactly() else {
            return unsupported("a data frame with other than two axes");
        };
        self.columns(blocks, names, index)
    }

    /// The column of a series, and its index.
    fn series(&self, series: Node<'_, '_>) -> Converted<Columns> {
        let manager = series.get("_mgr").and_then(|manager| {
            instance(
                manager,
                &["pandas.core.internals.managers.SingleBlockManager"],
            )
        });
        // (AXES, BLOCKS, ITEMS, {...})
        let mut parts = manager.into_iter().flat_map(Node::items);
        let axes = parts.next().and_then(|axes| axes.items().exactly());
        let blocks = parts.next().and_then(|blocks| blocks.items().exactly());
        let (Some([index]), Some([values])) = (axes, blocks) else {
            return unsupported("a series of a release of pandas before 2.0");
        };
        let name = match series.get("_name").or_else(|| series.get("name")) {
            Some(name) if !name.is_none() => self.value(name)?.to_unquoted(),
            _ => "0".to_owned(),
        };
        let mut columns = Vec::new();
        for column in self.block(values, 1).map_err(|error| named(&name, error))? {
            columns.push((name.clone(), column));
        }
        let (rows, row_count) = self.index(index)?;
        columns.extend(rows);
        if columns.iter().any(|(_, column)| column.len() != row_count) {
            return unsupported("a series that is not as long as its index");
        }
        Ok(Columns { columns, row_count })
    }

    /// The levels of an index as columns, as of `index.to_frame(index=False)`.
    fn index_columns(&self, index: Node<'_, '_>) -> Converted<Vec<(String, ArrayRef)>> {
        if let Some(levels) = self.levels(index)? {
            let levels = levels.into_iter().enumerate();
            let level = |(place, (name, level)): (usize, Level)| {
                (name.unwrap_or_else(|| place.to_string()), level)
            };
            return Ok(levels.map(level).collect());
        }
        let name = self.index_name(index)?;
        let data = match self.index_data(index)? {
            IndexData::Range(range) => Arc::new(Int64Array::from(self.numbers(&range)?)),
            IndexData::Values(data) => data,
        };
        Ok(vec![(name.unwrap_or_else(|| "0".to_owned()), data)])
    }

    /// The names and labels of the levels of an index; `None` if it has a single level.
    fn levels(&self, index: Node<'_, '_>) -> Converted<Option<Vec<Level>>> {
        let parts = index_parts(index).and_then(|parts| {
            Some((
                parts.get("levels")?,
                parts.get("codes")?,
                parts.get("names"),
            ))
        });
        let Some((levels, codes, names)) = parts else {
            return Ok(None);
        };
        let mut names = names.into_iter().flat_map(Node::items);
        let mut all = Vec::new();
        for (level, codes) in levels.items().zip(codes.items()) {
            let name = names.next().filter(|name| !name.is_none());
            let name = name.map(|name| self.value(name)).transpose()?;
            let labels = match self.index_data(level)? {
                IndexData::Range(range) => Arc::new(Int64Array::from(self.numbers(&range)?)),
                IndexData::Values(data) => data,
            };
            let Ok(KnownValue::Array(codes)) = known::convert(&self.registry, codes) else {
                return unsupported("an index of several levels without codes");
            };
            let labels = self.labels(&labels, &self.array(&codes)?)?;
            all.push((name.map(|name| name.to_unquoted()), labels));
        }
        Ok(Some(all))
    }

    /// The labels that the codes of a level stand for; a negative code is a missing one.
    fn labels(&self, labels: &ArrayRef, codes: &Array) -> Converted<ArrayRef> {
        let codes: Vec<i64> = match codes.dtype().item_len() {
            1 => widened(codes.to_vec::<i8>()),
            2 => widened(codes.to_vec::<i16>()),
            4 => widened(codes.to_vec::<i32>()),
            _ => codes.to_vec::<i64>(),
        }
        .map_err(super::ValueError::from)?;
        let len_of = |index: usize| -> Option<usize> {
            if let Some(strings) = labels.as_any().downcast_ref::<LargeStringArray>() {
                (index < strings.len()).then(|| strings.value(index).len())
            } else if let Some(strings) = labels.as_any().downcast_ref::<StringArray>() {
                (index < strings.len()).then(|| strings.value(index).len())
            } else {
                labels.data_type().primitive_width()
            }
        };
        let is_bool = labels.data_type() == &arrow_schema::DataType::Boolean;
        let mut indices = Vec::with_capacity(codes.len());
        for code in codes {
            let index = usize::try_from(code).ok();
            // A short code may stand for a long label, so each one is charged.
            let len = match index {
                None => 0,
                Some(_) if is_bool => 1,
                Some(index) => match len_of(index) {
                    Some(len) => len,
                    None => {
                        let kind = labels.data_type();
                        return unsupported(format!("an index with a level of {kind}"));
                    }
                },
            };
            self.budget.spend_copy(len.saturating_add(8))?;
            indices.push((code >= 0).then_some(code));
        }
        let options = arrow_select::take::TakeOptions { check_bounds: true };
        let indices = Int64Array::from(indices);
        Ok(arrow_select::take::take(labels, &indices, Some(options))?)
    }

    /// The name of an index.
    fn index_name(&self, index: Node<'_, '_>) -> Converted<Option<String>> {
        let name = index_parts(index).and_then(|parts| parts.get("name"));
        let name = name.filter(|name| !name.is_none());
        let name = name.map(|name| self.value(name)).transpose()?;
        Ok(name.map(|name| name.to_unquoted()))
    }

    fn columns(
        &self,
        blocks: Node<'_, '_>,
        names: Node<'_, '_>,
        index: Node<'_, '_>,
    ) -> Converted<Columns> {
        let names = self.names(names)?;
        let mut found: Vec<Option<ArrayRef>> = vec![None; names.len()];
        for block in blocks.items() {
            let parts = call(block, &["pandas._libs.internals._unpickle_block"]);
            let Some([values, places, _]) = parts.and_then(tree::Items::exactly) else {
                return unsupported(format!("a block of columns, {},", describe(block)));
            };
            let places = self.places(places, names.len())?;
            let columns = self.block(values, places.len());
            let columns = columns.map_err(|error| {
                let name = places.first().and_then(|place| names.get(*place));
                match name {
                    Some(name) => named(name, error),
                    None => error,
                }
            })?;
            for (place, column) in places.into_iter().zip(columns) {
                if let Some(found) = found.get_mut(place) {
                    *found = Some(column);
                }
            }
        }
        let (mut rows, row_count) = self.index(index)?;
        // As in pyarrow, a level with the name of a column has none.
        for (place, (name, _)) in rows.iter_mut().enumerate() {
            if names.contains(name) {
                *name = format!("__index_level_{place}__");
            }
        }
        let mut columns = Vec::with_capacity(names.len());
        for (name, column) in names.into_iter().zip(found) {
            match column {
                Some(column) => columns.push((name, column)),
                None => {
                    let what = "a column without data".to_owned();
                    return Err(TableError::Column { name, what });
                }
            }
        }
        columns.extend(rows);
        if columns.iter().any(|(_, column)| column.len() != row_count) {
            return unsupported("a data frame whose columns are not as long as its index");
        }
        Ok(Columns { columns, row_count })
    }

    /// The indices of the columns of a block.
    fn places(&self, node: Node<'_, '_>, count: usize) -> Converted<Vec<usize>> {
        let mut places = Vec::new();
        match self.value(node)? {
            Value::Object(object) if object.kind() == object::Kind::Slice => {
                let Some([start, stop, step]) = object.integers() else {
                    return unsupported("a block of columns with an open slice");
                };
                let mut place = start;
                while step != 0 && (place < stop) == (step > 0) && place != stop {
                    if places.len() >= count {
                        break;
                    }
                    places.push(usize::try_from(place).unwrap_or(usize::MAX));
                    place = place.saturating_add(step);
                }
            }
            value => {
                let found = Vec::<usize>::try_from(value);
                places = match found {
                    Ok(found) => found,
                    Err(error) => return unsupported(format!("a block of columns: {error}")),
                };
            }
        }
        Ok(places)
    }

    pub(super) fn value(&self, node: Node<'_, '_>) -> Converted<Value> {
        Ok(self.reader.value(node, MAX_DEPTH.saturating_add(1))?)
    }

    /// The names of columns.
    fn names(&self, node: Node<'_, '_>) -> Converted<Vec<String>> {
        if let Some(levels) = self.levels(node)? {
            return self.tuples(&levels);
        }
        let data = match self.index_data(node)? {
            IndexData::Range(range) => {
                let values = self.numbers(&range)?;
                return Ok(values.iter().map(ToString::to_string).collect());
            }
            IndexData::Values(data) => data,
        };
        let mut names = Vec::with_capacity(data.len());
        if let Some(strings) = data.as_any().downcast_ref::<LargeStringArray>() {
            names.extend(strings.iter().map(|name| name.unwrap_or("None").to_owned()));
        } else if let Some(strings) = data.as_any().downcast_ref::<StringArray>() {
            names.extend(strings.iter().map(|name| name.unwrap_or("None").to_owned()));
        } else if let Some(numbers) = data.as_any().downcast_ref::<Int64Array>() {
            names.extend(numbers.values().iter().map(ToString::to_string));
        } else if !data.is_empty() {
            return unsupported(format!("names of columns that are {}", data.data_type()));
        }
        Ok(names)
    }

    /// The names of columns that have several levels, as Python shows the tuples.
    fn tuples(&self, levels: &[Level]) -> Converted<Vec<String>> {
        let count = levels.first().map_or(0, |(_, level)| level.len());
        let part = |level: &ArrayRef, index: usize| -> Converted<Value> {
            let all = level.as_any();
            if level.is_null(index) {
                return Ok(Value::Float(f64::NAN));
            }
            if let Some(strings) = all.downcast_ref::<LargeStringArray>() {
                return Ok(Value::from(strings.value(index)));
            }
            if let Some(strings) = all.downcast_ref::<StringArray>() {
                return Ok(Value::from(strings.value(index)));
            }
            match all.downcast_ref::<Int64Array>() {
                Some(numbers) => Ok(Value::from(numbers.value(index))),
                None => unsupported(format!("names of columns that are {}", level.data_type())),
            }
        };
        let mut names = Vec::with_capacity(count);
        for index in 0..count {
            let parts = levels.iter().filter(|(_, level)| index < level.len());
            let parts: Vec<Value> = parts
                .map(|(_, level)| part(level, index))
                .collect::<Converted<_>>()?;
            let name = Value::tuple(parts).to_string();
            self.budget.spend_copy(name.len())?;
            names.push(name);
        }
        Ok(names)
    }

    /// The levels of the index of the rows as columns, unless it is the default one; and
    /// its length.
    fn index(&self, node: Node<'_, '_>) -> Converted<(Vec<(String, ArrayRef)>, usize)> {
        if let Some(levels) = self.levels(node)? {
            let count = levels.first().map_or(0, |(_, level)| level.len());
            let levels = levels.into_iter().enumerate();
            let level = |(place, (name, level)): (usize, Level)| {
                (
                    name.unwrap_or_else(|| format!("__index_level_{place}__")),
                    level,
                )
            };
            return Ok((levels.map(level).collect(), count));
        }
        let name = self.index_name(node)?;
        let data = match self.index_data(node)? {
            IndexData::Range(range) if name.is_none() && range.start == 0 && range.step == 1 => {
                return Ok((Vec::new(), range.count));
            }
            IndexData::Range(range) => Arc::new(Int64Array::from(self.numbers(&range)?)),
            IndexData::Values(data) => data,
        };
        let count = data.len();
        let name = name.unwrap_or_else(|| "__index_level_0__".to_owned());
        Ok((vec![(name, data)], count))
    }

    fn index_data(&self, node: Node<'_, '_>) -> Converted<IndexData> {
        let Some(parts) = index_parts(node) else {
            return unsupported(format!("an index, {},", describe(node)));
        };
        if let Some(data) = parts.get("data") {
            let mut columns = self.block(data, 1)?;
            return match columns.pop() {
                Some(data) => Ok(IndexData::Values(data)),
                None => unsupported("an index without data"),
            };
        }
        let part = |name| parts.get(name).and_then(Node::as_i64);
        let (Some(start), Some(stop), Some(step)) = (part("start"), part("stop"), part("step"))
        else {
            return unsupported("an index of several levels");
        };
        let (distance, step_len) = match step {
            0 => return unsupported("an index that is a range without a step"),
            1.. => (i128::from(stop) - i128::from(start), i128::from(step)),
            _ => (i128::from(start) - i128::from(stop), -i128::from(step)),
        };
        let count = (distance.max(0) + step_len - 1) / step_len;
        Ok(IndexData::Range(Range {
            start,
            step,
            count: usize::try_from(count).unwrap_or(usize::MAX),
        }))
    }

    /// The numbers of a range.
    fn numbers(&self, range: &Range) -> Converted<Vec<i64>> {
        self.budget.spend_copy(range.count.saturating_mul(8))?;
        let mut next = range.start;
        let numbers = (0..range.count).map(|_| {
            let number = next;
            next = next.saturating_add(range.step);
            number
        });
        Ok(numbers.collect())
    }

    /// The columns of a block: an array of two dimensions has several, anything
    /// else is one.
    fn block(&self, node: Node<'_, '_>, count: usize) -> Converted<Vec<ArrayRef>> {
        if let Ok(converted) = known::convert(&self.registry, node) {
            return self.numpy(&converted, count, None);
        }
        if let Some(arguments) = call(node, &["pandas._libs.arrays.__pyx_unpickle_NDArrayBacked"]) {
            return self.backed(node, arguments, count);
        }
        let strings = [
            "pandas.arrays.ArrowStringArray",
            "pandas.arrays.ArrowExtensionArray",
        ];
        if let Some(state) = instance(node, &strings) {
            let data = state.get("_pa_array").or_else(|| state.get("_data"));
            return match data {
                Some(data) => Ok(vec![self.arrow_array(data)?]),
                None => unsupported("an array of pyarrow without data"),
            };
        }
        let masked = [
            "pandas.arrays.IntegerArray",
            "pandas.arrays.FloatingArray",
            "pandas.arrays.BooleanArray",
        ];
        if let Some(state) = instance(node, &masked)
            && let (Some(data), Some(mask)) = (state.get("_data"), state.get("_mask"))
            && let Ok(data) = known::convert(&self.registry, data)
            && let Ok(KnownValue::Array(mask)) = known::convert(&self.registry, mask)
        {
            let mask = self.array(&mask)?;
            let mask = mask.to_vec::<bool>().map_err(super::ValueError::from)?;
            return self.numpy(&data, 1, Some(&mask));
        }
        unsupported(describe(node))
    }

    /// An array of numpy as columns; elements that `mask` has are null.
    fn numpy(
        &self,
        converted: &KnownValue<'_, '_>,
        count: usize,
        mask: Option<&[bool]>,
    ) -> Converted<Vec<ArrayRef>> {
        match converted {
            KnownValue::Array(array) => columns_of(&self.array(array)?, count, mask, None),
            KnownValue::ObjectArray(objects) => {
                let row_count = objects.shape().last().copied().unwrap_or_default();
                let mut items = objects.items();
                let columns = (0..count).map(|_| {
                    let values = items.by_ref().take(row_count);
                    let values: Converted<Vec<Value>> =
                        values.map(|item| self.counted_object(item)).collect();
                    objects_of(&values?, MAX_LIST_LEVELS)
                });
                columns.collect()
            }
            _ => unsupported("an array that is neither of numbers nor of objects"),
        }
    }

    /// Reads an array, and charges the budget for its copy.
    fn array(&self, array: &known::NdArray<'_, '_>) -> Converted<Array> {
        let array = self.reader.array(array)?;
        let len = array.len().saturating_mul(array.dtype().item_len());
        self.budget.spend_copy(len)?;
        Ok(array)
    }

    /// An element of an array of objects. Charges the budget for its copy in a column: many elements
    /// may be one object, and one that is not shared has at least a sixteenth of this in the pickle.
    fn counted_object(&self, node: Node<'_, '_>) -> Converted<Value> {
        let value = self.object(node)?;
        let len = match &value {
            Value::Array(array) => array.len().saturating_mul(16),
            value => usize::try_from(value.nbytes() / 2).unwrap_or(usize::MAX),
        };
        self.budget.spend_copy(len)?;
        Ok(value)
    }

    /// An element of an array of objects; missing ones are `None`.
    fn object(&self, node: Node<'_, '_>) -> Converted<Value> {
        let is_na = node.as_global().is_some_and(|global| {
            global.is("pandas._libs.missing", "NA") || global.is("pandas", "NA")
        });
        let is_nat = call(node, &["pandas._libs.tslibs.nattype._nat_unpickle"]).is_some();
        if is_na || is_nat {
            return Ok(Value::None);
        }
        Ok(match self.value(node)? {
            Value::Float(value) if value.is_nan() => Value::None,
            value => value,
        })
    }

    /// `__pyx_unpickle_NDArrayBacked(CLASS, ...)` with the state
    /// `(DTYPE, ARRAY, ...)`.
    fn backed(
        &self,
        node: Node<'_, '_>,
        arguments: tree::Items<'_, '_>,
        count: usize,
    ) -> Converted<Vec<ArrayRef>> {
        let mut arguments = arguments;
        let class = arguments.next().and_then(Node::as_global);
        let class = class.map(|class| class.to_string()).unwrap_or_default();
        let mut state = state(node).map_or_else(|| node.items(), Node::items);
        let (Some(dtype), Some(data)) = (state.next(), state.next()) else {
            return unsupported(format!("{class} without data"));
        };
        let Ok(converted) = known::convert(&self.registry, data) else {
            return unsupported(format!("{class} over {}", describe(data)));
        };
        let (_, name) = class.rsplit_once('.').unwrap_or(("", &class));
        match (name, &converted) {
            ("DatetimeArray", KnownValue::Array(array)) => {
                let array = self.array(array)?;
                let zone =
                    instance(dtype, &["pandas.DatetimeTZDtype"]).and_then(|state| state.get("tz"));
                let zone = zone.map(|zone| self.zone(zone)).transpose()?;
                columns_of(&array, count, None, zone.as_deref())
            }
            ("TimedeltaArray" | "NumpyExtensionArray" | "StringArray", _) => {
                self.numpy(&converted, count, None)
            }
            ("Categorical", KnownValue::Array(codes)) => {
                let codes = self.array(codes)?;
                let categories = instance(dtype, &["pandas.CategoricalDtype"]);
                let categories = categories.and_then(|state| state.get("categories"));
                let Some(categories) = categories else {
                    return unsupported("a category without its values");
                };
                let values = match self.index_data(categories)? {
                    IndexData::Range(range) => {
                        Arc::new(Int64Array::from(self.numbers(&range)?)) as ArrayRef
                    }
                    IndexData::Values(values) => values,
                };
                Ok(vec![dictionary(&codes, values)?])
            }
            _ => unsupported(class),
        }
    }

    /// The name of a time zone as Arrow has it.
    pub(super) fn zone(&self, node: Node<'_, '_>) -> Converted<String> {
        if let Value::Object(object) = self.value(node)?
            && let Some(text) = object.text()
        {
            return Ok(match (object.kind(), &*text) {
                (object::Kind::TimeZone, "+00:00") => "UTC".to_owned(),
                _ => text,
            });
        }
        unsupported(format!("a time zone, {},", describe(node)))
    }
}

/// The labels of an axis.
enum IndexData {
    Range(Range),
    Values(ArrayRef),
}

/// The name of a level of an index, and its labels.
type Level = (Option<String>, ArrayRef);

/// A range of integers.
struct Range {
    start: i64,
    step: i64,
    count: usize,
}

/// The dictionary of `_new_Index(CLASS, {...})`.
fn index_parts<'t, 'p>(node: Node<'t, 'p>) -> Option<Node<'t, 'p>> {
    let arguments = call(
        node,
        &[
            "pandas.core.indexes.base._new_Index",
            "pandas.core.indexes.datetimes._new_DatetimeIndex",
        ],
    )?;
    let [_, parts] = arguments.exactly()?;
    Some(parts)
}

/// The columns of an array, each with its own elements.
fn columns_of(
    array: &Array,
    count: usize,
    mask: Option<&[bool]>,
    zone: Option<&str>,
) -> Converted<Vec<ArrayRef>> {
    let rows = match array.shape() {
        [rows] if count == 1 => *rows,
        [columns, rows] if *columns == count => *rows,
        shape => return unsupported(format!("a block of {count} columns of the shape {shape:?}")),
    };
    let dtype = array.dtype();
    let split = Split {
        array,
        count,
        rows,
        mask,
    };
    match (dtype.kind(), dtype.item_len()) {
        (Kind::Bool, _) => {
            let all = array.to_vec::<bool>().map_err(super::ValueError::from)?;
            let column = |index: usize| {
                let values = all.iter().skip(index.saturating_mul(rows)).take(rows);
                let is_null = |row: usize| mask.is_some_and(|mask| mask.get(row) == Some(&true));
                let values = values.enumerate();
                let values = values.map(|(row, value)| (!is_null(row)).then_some(*value));
                Arc::new(values.collect::<BooleanArray>()) as ArrayRef
            };
            Ok((0..count).map(column).collect())
        }
        (Kind::Int, 1) => split.numbers::<Int8Type>(|_| false),
        (Kind::Int, 2) => split.numbers::<Int16Type>(|_| false),
        (Kind::Int, 4) => split.numbers::<Int32Type>(|_| false),
        (Kind::Int, 8) => split.numbers::<Int64Type>(|_| false),
        (Kind::UInt, 1) => split.numbers::<UInt8Type>(|_| false),
        (Kind::UInt, 2) => split.numbers::<UInt16Type>(|_| false),
        (Kind::UInt, 4) => split.numbers::<UInt32Type>(|_| false),
        (Kind::UInt, 8) => split.numbers::<UInt64Type>(|_| false),
        (Kind::Float, 2) => split.numbers::<Float16Type>(|value| value.is_nan()),
        (Kind::Float, 4) => split.numbers::<Float32Type>(|value| value.is_nan()),
        (Kind::Float, 8) => split.numbers::<Float64Type>(|value| value.is_nan()),
        (Kind::Datetime(unit), _) if unit.count == 1 => match unit.base {
            TimeBase::Second => split.times::<TimestampSecondType>(zone),
            TimeBase::Millisecond => split.times::<TimestampMillisecondType>(zone),
            TimeBase::Microsecond => split.times::<TimestampMicrosecondType>(zone),
            TimeBase::Nanosecond => split.times::<TimestampNanosecondType>(zone),
            _ => unsupported(format!("an array of {dtype}")),
        },
        (Kind::Timedelta(unit), _) if unit.count == 1 => match unit.base {
            TimeBase::Second => split.numbers::<DurationSecondType>(is_nat),
            TimeBase::Millisecond => split.numbers::<DurationMillisecondType>(is_nat),
            TimeBase::Microsecond => split.numbers::<DurationMicrosecondType>(is_nat),
            TimeBase::Nanosecond => split.numbers::<DurationNanosecondType>(is_nat),
            _ => unsupported(format!("an array of {dtype}")),
        },
        _ => unsupported(format!("an array of {dtype}")),
    }
}

const fn is_nat(value: &i64) -> bool {
    *value == i64::MIN
}

/// An array whose rows become columns.
struct Split<'a> {
    array: &'a Array,
    count: usize,
    rows: usize,
    mask: Option<&'a [bool]>,
}

impl Split<'_> {
    fn arrays<T>(&self, is_null: impl Fn(&T::Native) -> bool) -> Converted<Vec<PrimitiveArray<T>>>
    where
        T: ArrowPrimitiveType<Native: Element>,
    {
        let all = self
            .array
            .to_vec::<T::Native>()
            .map_err(super::ValueError::from)?;
        let is_masked = |row: usize| self.mask.is_some_and(|mask| mask.get(row) == Some(&true));
        let column = |index: usize| {
            let start = index.saturating_mul(self.rows);
            let values = all.iter().skip(start).take(self.rows).enumerate();
            values
                .map(|(row, value)| (!is_masked(row) && !is_null(value)).then_some(*value))
                .collect::<PrimitiveArray<T>>()
        };
        Ok((0..self.count).map(column).collect())
    }

    fn numbers<T>(&self, is_null: impl Fn(&T::Native) -> bool) -> Converted<Vec<ArrayRef>>
    where
        T: ArrowPrimitiveType<Native: Element>,
    {
        let arrays = self.arrays::<T>(is_null)?.into_iter();
        Ok(arrays.map(|array| Arc::new(array) as ArrayRef).collect())
    }

    fn times<T>(&self, zone: Option<&str>) -> Converted<Vec<ArrayRef>>
    where
        T: arrow_array::types::ArrowTimestampType,
    {
        let arrays = self.arrays::<T>(is_nat)?.into_iter();
        let zoned = arrays.map(|array| Arc::new(array.with_timezone_opt(zone)) as ArrayRef);
        Ok(zoned.collect())
    }
}

/// Maximum levels of lists in a column of objects.
const MAX_LIST_LEVELS: usize = 8;

/// The last offset that an array of strings or bytes can have.
const MAX_DATA_LEN: usize = i32::MAX as usize;

/// Length of a string or of bytes.
fn data_len(value: &Value) -> usize {
    match value {
        Value::Str(string) => string.len(),
        Value::Bytes(data) => data.len(),
        _ => 0,
    }
}

/// A column of objects of one type.
fn objects_of(values: &[Value], levels: usize) -> Converted<ArrayRef> {
    let some = || values.iter().filter(|value| !matches!(value, Value::None));
    let Some(first) = some().next() else {
        return Ok(Arc::new(NullArray::new(values.len())));
    };
    fn all<'v, T, A: FromIterator<Option<T>>>(
        values: &'v [Value],
        read: impl Fn(&'v Value) -> Option<T>,
    ) -> Converted<A> {
        let items = values.iter().map(|value| match (value, read(value)) {
            (Value::None, _) => Ok(None),
            (_, Some(item)) => Ok(Some(item)),
            (other, None) => unsupported(format!(
                "objects of several types, {} among them",
                other.type_name()
            )),
        });
        items.collect()
    }
    Ok(match first {
        Value::Str(_) | Value::Bytes(_) if some().map(data_len).sum::<usize>() > MAX_DATA_LEN => {
            return unsupported("2 GiB of text or bytes in a column");
        }
        Value::Str(_) => {
            let column: StringArray = all(values, Value::as_str)?;
            Arc::new(column)
        }
        Value::Bytes(_) => {
            let column: BinaryArray = all(values, |value| match value {
                Value::Bytes(data) => Some(&**data),
                _ => None,
            })?;
            Arc::new(column)
        }
        Value::Bool(_) => {
            let column: BooleanArray = all(values, |value| match value {
                Value::Bool(value) => Some(*value),
                _ => None,
            })?;
            Arc::new(column)
        }
        Value::Int(_) if !some().any(|value| matches!(value, Value::Float(_))) => {
            let column: Int64Array = all(values, |value| match value {
                Value::Int(value) => i64::try_from(*value).ok(),
                _ => None,
            })?;
            Arc::new(column)
        }
        Value::Int(_) | Value::Float(_) => {
            let column: Float64Array = all(values, |value| match value {
                Value::Float(value) => Some(*value),
                Value::Int(value) => Some(super::convert::float(*value)),
                _ => None,
            })?;
            Arc::new(column)
        }
        Value::List(_) | Value::Tuple(_) | Value::Array(_) => lists(values, levels)?,
        Value::Object(object) => match object.kind() {
            object::Kind::Decimal => decimals(values)?,
            object::Kind::Date => {
                let column: Date32Array = all(values, |value| match value {
                    Value::Object(date) if date.kind() == object::Kind::Date => days(date),
                    _ => None,
                })?;
                Arc::new(column)
            }
            _ => return unsupported(format!("objects of the type {}", first.type_name())),
        },
        other => return unsupported(format!("objects of the type {}", other.type_name())),
    })
}

/// The number of days since 1970.
fn days(date: &object::Object) -> Option<i32> {
    let [year, month, day] = date.integers()?;
    if !(1..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years that begin in March have the leap day at their end.
    let (year, month) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    let days = year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468;
    i32::try_from(days).ok()
}

/// A column of lists, whose items are of one type.
fn lists(values: &[Value], levels: usize) -> Converted<ArrayRef> {
    let Some(levels) = levels.checked_sub(1) else {
        return unsupported("lists of so many levels");
    };
    let (mut items, mut offsets) = (Vec::new(), vec![0]);
    for value in values {
        match value {
            Value::None => {}
            Value::List(list) | Value::Tuple(list) => items.extend(list.iter().cloned()),
            Value::Array(array) => match array.to_value()? {
                Value::List(list) => items.extend(list.iter().cloned()),
                _ => return unsupported("arrays without dimensions"),
            },
            other => {
                return unsupported(format!(
                    "objects of several types, {} among them",
                    other.type_name()
                ));
            }
        }
        match i32::try_from(items.len()) {
            Ok(end) => offsets.push(end),
            Err(_) => return unsupported("lists of so many items"),
        }
    }
    let items = objects_of(&items, levels)?;
    let validity = values.iter().map(|value| !matches!(value, Value::None));
    let field = arrow_schema::Field::new("item", items.data_type().clone(), true);
    let offsets = OffsetBuffer::new(offsets.into());
    let validity: NullBuffer = validity.collect();
    Ok(Arc::new(ListArray::try_new(
        Arc::new(field),
        offsets,
        items,
        Some(validity).filter(|validity| validity.null_count() > 0),
    )?))
}

/// A column of decimal numbers, with the scale that all of them need.
fn decimals(values: &[Value]) -> Converted<ArrayRef> {
    let parsed = values.iter().map(|value| match value {
        Value::None => Ok(None),
        Value::Object(number) if number.kind() == object::Kind::Decimal => {
            let string = number.base().and_then(Value::as_str).unwrap_or_default();
            match string {
                "NaN" | "sNaN" => Ok(None),
                string => match decimal(string) {
                    Some(number) => Ok(Some(number)),
                    None => unsupported(format!("the decimal number {string:?}")),
                },
            }
        }
        other => unsupported(format!(
            "objects of several types, {} among them",
            other.type_name()
        )),
    });
    let parsed: Vec<Option<(i128, i32)>> = parsed.collect::<Converted<_>>()?;
    let all = || parsed.iter().flatten();
    let scale = all().map(|(_, exponent)| -exponent).fold(0, i32::max);
    let digits = |number: i128| {
        let digits = number.unsigned_abs().checked_ilog10();
        digits
            .and_then(|log| i32::try_from(log).ok())
            .map_or(1, |log| log + 1)
    };
    let whole = all().map(|(number, exponent)| digits(*number) + exponent);
    let precision = whole.fold(0, i32::max).saturating_add(scale).max(1);
    let (Ok(width @ ..=38), Ok(places)) = (u8::try_from(precision), i8::try_from(scale)) else {
        return unsupported("decimal numbers of more than 38 digits");
    };
    let scaled = parsed.iter().map(|number| {
        let (number, exponent) = (*number)?;
        let power = u32::try_from(exponent.saturating_add(scale)).ok()?;
        number.checked_mul(10_i128.checked_pow(power)?)
    });
    let column: Decimal128Array = scaled.collect();
    Ok(Arc::new(column.with_precision_and_scale(width, places)?))
}

/// The digits and the exponent of a decimal number; `None` if it is none, or has too many
/// digits.
fn decimal(string: &str) -> Option<(i128, i32)> {
    let (digits, exponent) = match string.split_once('E') {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
        None => (string, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let number = format!("{whole}{fraction}").parse().ok()?;
    let places = i32::try_from(fraction.len()).ok()?;
    let exponent = exponent.checked_sub(places)?;
    (-100..=100)
        .contains(&exponent)
        .then_some((number, exponent))
}

/// A column of categories, whose codes have the width that pandas chose.
fn dictionary(codes: &Array, values: ArrayRef) -> Converted<ArrayRef> {
    fn with<K>(codes: &Array, values: ArrayRef) -> Converted<ArrayRef>
    where
        K: ArrowDictionaryKeyType<Native: Element>,
    {
        let codes = codes
            .to_vec::<K::Native>()
            .map_err(super::ValueError::from)?;
        let zero = K::Native::default();
        let keys = codes.into_iter().map(|code| (code >= zero).then_some(code));
        let keys: PrimitiveArray<K> = keys.collect();
        Ok(Arc::new(DictionaryArray::try_new(keys, values)?))
    }
    match codes.dtype().item_len() {
        1 => with::<Int8Type>(codes, values),
        2 => with::<Int16Type>(codes, values),
        4 => with::<Int32Type>(codes, values),
        _ => with::<Int64Type>(codes, values),
    }
}
