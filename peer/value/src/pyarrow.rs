//! Arrays and tables of pyarrow, read from their pickles.

use std::sync::Arc;

use arrow_array::{ArrayRef, make_array, new_empty_array};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, Fields, IntervalUnit, TimeUnit};
use daskwire_pickle::tree::{self, Node};

use super::Value;
use super::pandas::{Converted, Frame, call, unsupported};
use super::pickled::describe;

/// Maximum levels of lists and structs.
const MAX_LEVELS: usize = 16;

impl Frame<'_> {
    /// The columns of a table or record batch; `None` if it is another object.
    pub(super) fn table(&self, node: Node<'_, '_>) -> Converted<Option<Vec<(String, ArrayRef)>>> {
        let functions = [
            "pyarrow.lib._reconstruct_table",
            "pyarrow.lib._reconstruct_record_batch",
        ];
        let Some(arguments) = call(node, &functions) else {
            return Ok(None);
        };
        let Some([columns, schema]) = arguments.exactly() else {
            return unsupported("a table of pyarrow without a schema");
        };
        let fields = call(schema, &["pyarrow.lib.schema"]).and_then(|mut schema| schema.next());
        let fields = fields.into_iter().flat_map(Node::items);
        let mut named = Vec::new();
        for (field, column) in fields.zip(columns.items()) {
            self.budget.spend(1)?;
            let field = self.arrow_field(field, MAX_LEVELS)?;
            named.push((field.name().clone(), self.arrow_array(column)?));
        }
        if columns.items().count_left() != named.len() {
            return unsupported("a table of pyarrow with other columns than its schema");
        }
        Ok(Some(named))
    }

    /// Whether the value is an array or a chunked array of pyarrow.
    pub(super) fn is_arrow_array(node: Node<'_, '_>) -> bool {
        let functions = ["pyarrow.lib.chunked_array", "pyarrow.lib._restore_array"];
        call(node, &functions).is_some()
    }

    /// An array, or a chunked array as one.
    pub(super) fn arrow_array(&self, node: Node<'_, '_>) -> Converted<ArrayRef> {
        if let Some(mut arguments) = call(node, &["pyarrow.lib.chunked_array"]) {
            let (chunks, data_type) = (arguments.next(), arguments.next());
            let chunks = chunks.into_iter().flat_map(Node::items);
            let chunks: Vec<ArrayRef> = chunks
                .map(|chunk| self.one_arrow_array(chunk))
                .collect::<Converted<_>>()?;
            let all: Vec<&dyn arrow_array::Array> = chunks.iter().map(|chunk| &**chunk).collect();
            return Ok(match (&all[..], data_type) {
                ([], Some(data_type)) => new_empty_array(&self.arrow_type(data_type, MAX_LEVELS)?),
                ([], None) => return unsupported("a chunked array without a type"),
                (all, _) => {
                    let len = chunks
                        .iter()
                        .map(|chunk| chunk.get_buffer_memory_size())
                        .sum();
                    self.budget.spend_copy(len)?;
                    arrow_select::concat::concat(all)?
                }
            });
        }
        self.one_arrow_array(node)
    }

    fn one_arrow_array(&self, node: Node<'_, '_>) -> Converted<ArrayRef> {
        let parts = call(node, &["pyarrow.lib._restore_array"]).and_then(tree::Items::exactly);
        let Some([parts]) = parts else {
            return unsupported(format!("an array of pyarrow, {},", describe(node)));
        };
        Ok(make_array(self.arrow_data(parts, MAX_LEVELS)?))
    }

    /// The array of `(TYPE, LENGTH, NULL_COUNT, OFFSET, BUFFERS, CHILDREN, DICTIONARY)`.
    fn arrow_data(&self, parts: Node<'_, '_>, levels: usize) -> Converted<ArrayData> {
        self.budget.spend(1)?;
        let Some(levels) = levels.checked_sub(1) else {
            return unsupported("an array of pyarrow of so many levels");
        };
        let Some([kind, len, _, offset, buffers, children, dictionary]) = parts.items().exactly()
        else {
            return unsupported("an array of pyarrow without its parts");
        };
        let kind = self.arrow_type(kind, levels)?;
        let number = |node: Node<'_, '_>| usize::try_from(node.as_u64()?).ok();
        let (Some(len), Some(offset)) = (number(len), number(offset)) else {
            return unsupported("an array of pyarrow without a length");
        };
        // Not all arrays have buffers as long as they are.
        self.budget.spend_copy(len.saturating_add(offset))?;
        let mut found = buffers.items();
        let validity = match found.next() {
            Some(validity) => self.arrow_buffer(validity)?,
            None => None,
        };
        let mut data = ArrayData::builder(kind)
            .len(len)
            .offset(offset)
            .align_buffers(true)
            .null_bit_buffer(validity);
        for buffer in found {
            let buffer = self.arrow_buffer(buffer)?;
            data = data.add_buffer(buffer.unwrap_or_else(|| Buffer::from(&[0_u8; 0])));
        }
        for child in children.items() {
            data = data.add_child_data(self.arrow_data(child, levels)?);
        }
        if !dictionary.is_none() {
            data = data.add_child_data(self.arrow_data(dictionary, levels)?);
        }
        // Checks that the buffers have valid data of this type.
        Ok(data.build()?)
    }

    /// The bytes of `py_buffer(DATA)`, which are not copied.
    fn arrow_buffer(&self, node: Node<'_, '_>) -> Converted<Option<Buffer>> {
        if node.is_none() {
            return Ok(None);
        }
        let data = call(node, &["pyarrow.lib.py_buffer"]).and_then(|mut data| data.next());
        let Some(data) = data else {
            return unsupported(format!("a buffer of pyarrow, {},", describe(node)));
        };
        match self.value(data)? {
            Value::Bytes(data) | Value::ByteArray(data) => {
                self.budget.spend_copy(data.len())?;
                Ok(Some(Buffer::from(data)))
            }
            _ => unsupported("a buffer of pyarrow that is not bytes"),
        }
    }

    fn arrow_field(&self, node: Node<'_, '_>, levels: usize) -> Converted<Field> {
        let arguments = call(node, &["pyarrow.lib.field"]);
        let Some(mut arguments) = arguments else {
            return unsupported(format!("a field of pyarrow, {},", describe(node)));
        };
        let (name, kind, nullable) = (arguments.next(), arguments.next(), arguments.next());
        let (Some(name), Some(kind)) = (name.and_then(Node::as_str), kind) else {
            return unsupported("a field of pyarrow without a name");
        };
        self.budget.spend_copy(name.len())?;
        let nullable = nullable.and_then(Node::as_bool).unwrap_or(true);
        Ok(Field::new(name, self.arrow_type(kind, levels)?, nullable))
    }

    /// The items of lists: a field, or only its type.
    fn arrow_item(&self, node: Node<'_, '_>, levels: usize) -> Converted<Field> {
        if call(node, &["pyarrow.lib.field"]).is_some() {
            return self.arrow_field(node, levels);
        }
        Ok(Field::new("item", self.arrow_type(node, levels)?, true))
    }

    fn arrow_type(&self, node: Node<'_, '_>, levels: usize) -> Converted<DataType> {
        self.budget.spend(1)?;
        let Some(levels) = levels.checked_sub(1) else {
            return unsupported("a type of pyarrow of so many levels");
        };
        let of = |name: &str| call(node, &[name]);
        let number = |node: Option<Node<'_, '_>>| node.and_then(Node::as_i64).unwrap_or(i64::MAX);
        if let Some(alias) = of("pyarrow.lib.type_for_alias").and_then(first_str) {
            if let Some(kind) = alias_type(alias) {
                return Ok(kind);
            }
            return unsupported(format!("the type {alias} of pyarrow"));
        }
        if let Some(mut arguments) = of("pyarrow.lib.timestamp") {
            let unit = arguments.next().and_then(Node::as_str).and_then(time_unit);
            let zone = arguments.next().filter(|zone| !zone.is_none());
            let zone = zone.map(|zone| match zone.as_str() {
                Some(zone) => Ok(zone.into()),
                None => self.zone(zone).map(Arc::from),
            });
            let zone: Option<Arc<str>> = zone.transpose()?;
            let len = zone.as_ref().map_or(0, |zone| zone.len());
            self.budget.spend_copy(len)?;
            if let Some(unit) = unit {
                return Ok(DataType::Timestamp(unit, zone));
            }
        }
        if let Some(unit) = of("pyarrow.lib.duration")
            .and_then(first_str)
            .and_then(time_unit)
        {
            return Ok(DataType::Duration(unit));
        }
        let time = of("pyarrow.lib.time32").or_else(|| of("pyarrow.lib.time64"));
        if let Some(unit) = time.and_then(first_str).and_then(time_unit) {
            return Ok(time_type(unit));
        }
        for (function, max_precision) in [
            ("pyarrow.lib.decimal32", 9),
            ("pyarrow.lib.decimal64", 18),
            ("pyarrow.lib.decimal128", 38),
            ("pyarrow.lib.decimal256", 76),
        ] {
            let Some(mut arguments) = of(function) else {
                continue;
            };
            let precision = u8::try_from(number(arguments.next()));
            let scale = i8::try_from(number(arguments.next()));
            let (Ok(precision), Ok(scale)) = (precision, scale) else {
                break;
            };
            if (1..=max_precision).contains(&precision) && scale.unsigned_abs() <= max_precision {
                return Ok(match max_precision {
                    9 => DataType::Decimal32(precision, scale),
                    18 => DataType::Decimal64(precision, scale),
                    38 => DataType::Decimal128(precision, scale),
                    _ => DataType::Decimal256(precision, scale),
                });
            }
        }
        if let Some(mut arguments) = of("pyarrow.lib.binary")
            && let Ok(len @ 1..) = i32::try_from(number(arguments.next()))
        {
            return Ok(DataType::FixedSizeBinary(len));
        }
        if let Some(mut arguments) = of("pyarrow.lib.list_")
            && let Some(item) = arguments.next()
        {
            let item = Arc::new(self.arrow_item(item, levels)?);
            return match arguments.next().map(|len| i32::try_from(number(Some(len)))) {
                None | Some(Ok(-1)) => Ok(DataType::List(item)),
                Some(Ok(len @ 1..)) => Ok(DataType::FixedSizeList(item, len)),
                Some(_) => unsupported("lists of pyarrow of such a length"),
            };
        }
        if let Some(mut arguments) = of("pyarrow.lib.large_list")
            && let Some(item) = arguments.next()
        {
            return Ok(DataType::LargeList(Arc::new(
                self.arrow_item(item, levels)?,
            )));
        }
        if let Some(mut arguments) = of("pyarrow.lib.struct") {
            let fields = arguments.next().into_iter().flat_map(Node::items);
            let fields: Fields = fields
                .map(|field| self.arrow_field(field, levels))
                .collect::<Converted<_>>()?;
            return Ok(DataType::Struct(fields));
        }
        if let Some(mut arguments) = of("pyarrow.lib.dictionary")
            && let (Some(key), Some(value)) = (arguments.next(), arguments.next())
        {
            let key = self.arrow_type(key, levels)?;
            if key.is_dictionary_key_type() {
                let value = self.arrow_type(value, levels)?;
                return Ok(DataType::Dictionary(Box::new(key), Box::new(value)));
            }
        }
        unsupported(format!("a type of pyarrow, {},", describe(node)))
    }
}

fn first_str<'p>(mut arguments: tree::Items<'_, 'p>) -> Option<&'p str> {
    arguments.next().and_then(Node::as_str)
}

fn time_unit(name: &str) -> Option<TimeUnit> {
    Some(match name {
        "s" => TimeUnit::Second,
        "ms" => TimeUnit::Millisecond,
        "us" => TimeUnit::Microsecond,
        "ns" => TimeUnit::Nanosecond,
        _ => return None,
    })
}

/// The type of times of day: Arrow has one width for each unit.
const fn time_type(unit: TimeUnit) -> DataType {
    match unit {
        TimeUnit::Second | TimeUnit::Millisecond => DataType::Time32(unit),
        TimeUnit::Microsecond | TimeUnit::Nanosecond => DataType::Time64(unit),
    }
}

/// The type of a name that pyarrow displays.
fn alias_type(name: &str) -> Option<DataType> {
    let unit = |prefix: &str| {
        let unit = name.strip_prefix(prefix)?.strip_prefix('[')?;
        time_unit(unit.strip_suffix(']')?)
    };
    Some(match name {
        "null" => DataType::Null,
        "bool" => DataType::Boolean,
        "int8" => DataType::Int8,
        "int16" => DataType::Int16,
        "int32" => DataType::Int32,
        "int64" => DataType::Int64,
        "uint8" => DataType::UInt8,
        "uint16" => DataType::UInt16,
        "uint32" => DataType::UInt32,
        "uint64" => DataType::UInt64,
        "halffloat" => DataType::Float16,
        "float" => DataType::Float32,
        "double" => DataType::Float64,
        "string" => DataType::Utf8,
        "large_string" => DataType::LargeUtf8,
        "string_view" => DataType::Utf8View,
        "binary" => DataType::Binary,
        "large_binary" => DataType::LargeBinary,
        "binary_view" => DataType::BinaryView,
        "date32[day]" | "date32" => DataType::Date32,
        "date64[ms]" | "date64" => DataType::Date64,
        "month_day_nano_interval" => DataType::Interval(IntervalUnit::MonthDayNano),
        _ => {
            if let Some(unit) = unit("time32").or_else(|| unit("time64")) {
                time_type(unit)
            } else if let Some(unit) = unit("duration") {
                DataType::Duration(unit)
            } else {
                DataType::Timestamp(unit("timestamp")?, None)
            }
        }
    })
}
