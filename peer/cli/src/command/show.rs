//! Results of tasks: printed as text or JSON, or written to a file.

use std::fmt::{self, Write as _};
use std::io::{IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use crate::inspect::{Hooks, tagged};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use daskwire_numpy::{ByteOrder, DType, Kind};
#[cfg(not(feature = "parquet"))]
use daskwire_peer::value::WrongType;
use daskwire_peer::value::{Serialized, ValueError};
use daskwire_peer::{Array, Key, Value};
use serde_json::{Map, Value as Json, json};

use crate::command::arguments::is_standard_stream;
use crate::command::failure::{Failure, Result};
#[cfg(feature = "parquet")]
use crate::command::tables;
use crate::command::{npy, terminal};
use crate::printable;

/// The options for showing a result.
#[derive(Debug, Args)]
pub(crate) struct ResultArguments {
    /// Write the result to a file: .npy for arrays, .csv for rows, tables and data frames,
    /// .parquet for tables and data frames, .json for other values; with any other name, or -
    /// for standard output, the bytes of bytes, strings and arrays, and other values as text
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print a string or bytes without quotes and escapes
    #[arg(long, conflicts_with_all = ["json", "output"])]
    raw: bool,
    /// Print one JSON document
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,
}

impl ResultArguments {
    /// Rejects output formats that would need another library, and files in missing folders, before
    /// the result is computed.
    ///
    /// # Errors
    ///
    /// A usage error.
    pub(crate) fn check(&self) -> Result {
        if let Some(file) = &self.output {
            let folder = file.parent().filter(|folder| *folder != Path::new(""));
            if folder.is_some_and(|folder| !folder.is_dir()) || file.is_dir() {
                return Err(Failure::usage(format_args!(
                    "--output {}: expected a file in an existing folder",
                    file.display()
                )));
            }
        }
        let extension = self.output.as_deref().map(extension);
        match extension.as_deref() {
            #[cfg(not(feature = "parquet"))]
            Some("parquet") => Err(Failure::usage(format_args!(
                "{NO_TABLES}, or use .npy, .csv or .json"
            ))),
            Some(format @ ("arrow" | "feather")) => Err(Failure::usage(format_args!(
                ".{format} is not supported; use .npy, .csv, .parquet or .json"
            ))),
            _ => Ok(()),
        }
    }

    /// Shows the result of a task.
    pub(crate) fn show(&self, key: &Key, result: &Value) -> Result {
        if let Some(file) = &self.output {
            return write(file, result);
        }
        if self.json {
            let document = document(key, result).map_err(|error| error.to_string())?;
            return Ok(terminal::print(printable::json(&document))?);
        }
        #[cfg(feature = "parquet")]
        if let Value::Serialized(_) | Value::Object(_) = result
            && let Ok(batches) = result.to_record_batches()
        {
            let shown = tables::preview(&batches).map_err(|error| error.to_string())?;
            return Ok(terminal::print(shown)?);
        }
        match result {
            Value::Str(string) if self.raw => print_raw(&[string.as_bytes(), b"\n"]),
            Value::Bytes(data) | Value::ByteArray(data) if self.raw => print_raw(&[data]),
            Value::Array(array) => Ok(terminal::print(preview(array)?)?),
            other => Ok(terminal::print(other)?),
        }
    }
}

/// The document of a result, described in `JSON.md`.
fn document(key: &Key, result: &Value) -> Result<Json, NotJson> {
    let mut document = Map::new();
    document.insert("key".into(), key_json(key));
    document.insert("type".into(), result.type_name().into());
    let value = match result {
        Value::Array(array) => {
            document.insert("dtype".into(), array.dtype().type_string().as_str().into());
            document.insert("shape".into(), array.shape().into());
            array_json(array)?
        }
        result => value_json(result)?,
    };
    document.insert("value".into(), value);
    Ok(Json::Object(document))
}

/// Converts a key to JSON: a string, an integer, or a list of keys.
pub(crate) fn key_json(key: &Key) -> Json {
    let key = tagged(key.as_msgpack(), Hooks::None, true, 0);
    // A key's own document is complete.
    key.unwrap_or_default()
}

/// Prints bytes unchanged, unless standard output is a terminal: data of a peer is
/// escaped there.
fn print_raw(parts: &[&[u8]]) -> Result {
    let print = |out: &mut dyn Write| {
        parts.iter().try_for_each(|part| out.write_all(part))?;
        out.flush()
    };
    let printed = if std::io::stdout().is_terminal() {
        print(&mut terminal::stdout())
    } else {
        print(&mut std::io::stdout().lock())
    };
    Ok(terminal::outcome(printed)?)
}

/// Checks that an array does not repeat a few bytes so often that its elements fill the memory.
fn check_repetition(result: &Value) -> Result<(), String> {
    let Value::Array(array) = result else {
        return Ok(());
    };
    let checked = array.view().and_then(|view| view.check_repetition());
    checked.map_err(|error| error.to_string())
}

/// The extension of a file in lower case; empty if it has none.
pub(crate) fn extension(file: &Path) -> String {
    let extension = file.extension().unwrap_or_default();
    extension.to_string_lossy().to_lowercase()
}

/// What is said in place of reading or writing a table.
#[cfg(not(feature = "parquet"))]
pub(crate) const NO_TABLES: &str =
    "tables are not part of this build: install daskwire-cli with its feature parquet";

fn write(file: &Path, result: &Value) -> Result {
    let extension = extension(file);
    let name = file.display();
    if let "npy" | "csv" = &*extension {
        check_repetition(result).map_err(|error| format!("{name}: {error}"))?;
    }
    let string;
    let bytes = match &*extension {
        "npy" => &npy::write(result).map_err(|error| format!("{name}: {error}"))?[..],
        "csv" => {
            string = csv(result).map_err(|error| format!("{name}: {error}"))?;
            string.as_bytes()
        }
        #[cfg(feature = "parquet")]
        "parquet" => &tables::parquet(result).map_err(|error| format!("{name}: {error}"))?[..],
        "json" => {
            let document = value_json(result).map_err(|error| format!("{name}: {error}"))?;
            string = document.to_string() + "\n";
            string.as_bytes()
        }
        _ => match result {
            Value::Bytes(data) | Value::ByteArray(data) => &data[..],
            Value::Array(array) => array.bytes(),
            Value::Str(string) => string.as_bytes(),
            other => {
                check_readable(other).map_err(|error| format!("{name}: {error}"))?;
                string = format!("{other}\n");
                string.as_bytes()
            }
        },
    };
    if is_standard_stream(file) {
        return print_raw(&[bytes]);
    }
    Ok(std::fs::write(file, bytes).map_err(|error| format!("{name}: {error}"))?)
}

/// Maximum number of elements of an array that is printed in full, the same as in numpy.
const MAX_PRINTED: usize = 1000;

/// Number of elements printed at each end of a longer row.
const EDGE_LEN: usize = 3;

/// Maximum number of rows and elements that are printed of an array with many dimensions.
const MAX_SHOWN: usize = 10_000;

/// Formats the type and shape of an array, and its elements or those at its edges.
fn preview(array: &Array) -> Result<String, String> {
    let mut preview = String::new();
    let len = u64::try_from(array.bytes().len()).unwrap_or(u64::MAX);
    let shape: Vec<String> = array.shape().iter().map(ToString::to_string).collect();
    let _ = writeln!(
        preview,
        "array of {}, shape ({}), {}",
        array.dtype(),
        shape.join(", "),
        crate::format::bytes(len),
    );
    // The number of rows and elements, of which there may be rows without elements.
    let count_of = |len_of: fn(usize) -> usize| {
        let counts = array.shape().iter().scan(1_usize, |count, len| {
            *count = count.saturating_mul(len_of(*len));
            Some(*count)
        });
        counts.fold(0, usize::saturating_add)
    };
    let is_whole = array.len() <= MAX_PRINTED && count_of(|len| len) <= MAX_SHOWN;
    if is_whole || count_of(|len| len.min(2 * EDGE_LEN)) <= MAX_SHOWN {
        rows(array, &mut Vec::new(), is_whole, &mut preview)?;
    } else {
        preview.push_str("the elements are not shown: there are too many dimensions");
    }
    Ok(preview)
}

/// Formats the elements whose first indices are `indices`. Recurses once per dimension
/// of the array, of which there are at most 64.
fn rows(
    array: &Array,
    indices: &mut Vec<usize>,
    is_whole: bool,
    out: &mut String,
) -> Result<(), String> {
    let view = array.view().map_err(|error| error.to_string())?;
    let Some(&count) = array.shape().get(indices.len()) else {
        let bytes = view.item(indices).unwrap_or_default();
        let _ = write!(out, "{}", element(array.dtype(), bytes));
        return Ok(());
    };
    let is_row = indices.len() + 1 == array.shape().len();
    let gap = format!("\n{}", " ".repeat(indices.len() + 1));
    let gap = if is_row { " " } else { &gap };
    out.push('[');
    let mut index = 0;
    while index < count {
        if index > 0 {
            out.push(',');
            out.push_str(gap);
        }
        if !is_whole && index == EDGE_LEN && count > 2 * EDGE_LEN {
            out.push_str("...,");
            out.push_str(gap);
            index = count - EDGE_LEN;
        }
        indices.push(index);
        rows(array, indices, is_whole, out)?;
        indices.pop();
        index += 1;
    }
    out.push(']');
    Ok(())
}

/// Converts an element of an array to a value. Times are counts in the unit of the type,
/// and `None` if they are `NaT`.
fn element(dtype: DType, bytes: &[u8]) -> Value {
    // Scalars are at most 16 bytes long.
    let scalar = |bytes: &[u8]| -> [u8; 16] {
        let mut little = [0; 16];
        for (to, from) in little.iter_mut().zip(bytes) {
            *to = *from;
        }
        if dtype.order() == ByteOrder::Big {
            little[..bytes.len().min(16)].reverse();
        }
        little
    };
    let float = |bytes: &[u8]| -> Option<f64> {
        let number = scalar(bytes);
        Some(match bytes.len() {
            2 => half(u16::from_le_bytes(*number.first_chunk()?)),
            4 => f32::from_le_bytes(*number.first_chunk()?).into(),
            8 => f64::from_le_bytes(*number.first_chunk()?),
            _ => return None,
        })
    };
    let unsigned = || i128::from_le_bytes(scalar(bytes));
    let signed = || {
        let unused = 128 - 8 * u32::try_from(bytes.len().clamp(1, 16)).unwrap_or(16);
        unsigned() << unused >> unused
    };
    let known = match dtype.kind() {
        Kind::Bool => Some(Value::Bool(unsigned() != 0)),
        Kind::Int => Some(Value::Int(signed())),
        Kind::UInt => Some(Value::Int(unsigned())),
        Kind::Float => float(bytes).map(Value::Float),
        Kind::Complex => {
            let (real, imaginary) = bytes.split_at(bytes.len() / 2);
            let parts = float(real).zip(float(imaginary));
            parts.map(|(real, imaginary)| Value::Complex(real, imaginary))
        }
        Kind::Timedelta(_) | Kind::Datetime(_) => Some(match signed() {
            nat if nat == i128::from(i64::MIN) => Value::None,
            time => Value::Int(time),
        }),
        Kind::Bytes => {
            let end = bytes.iter().rposition(|byte| *byte != 0);
            let data = bytes.get(..end.map_or(0, |last| last + 1));
            Some(Value::bytes(data.unwrap_or_default().to_vec()))
        }
        Kind::Str => {
            let characters = bytes.chunks(4).map(|character| {
                let number = scalar(character);
                let number = number.first_chunk().copied().map(u32::from_le_bytes);
                number.and_then(char::from_u32).unwrap_or('\u{fffd}')
            });
            let string: String = characters.collect();
            Some(Value::from(string.trim_end_matches('\0')))
        }
        _ => None,
    };
    known.unwrap_or_else(|| Value::bytes(bytes.to_vec()))
}

/// Converts a float of 2 bytes, given as its bits.
fn half(bits: u16) -> f64 {
    let fraction = f64::from(bits & 0x3ff);
    let magnitude = match bits >> 10 & 0x1f {
        0 => fraction / 16_777_216.0,
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        exponent => (1024.0 + fraction) * f64::from(i32::from(exponent) - 25).exp2(),
    };
    if bits >> 15 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// The error of converting a value to JSON: a part of it has no form in `JSON.md`.
#[derive(Debug)]
pub(crate) struct NotJson {
    /// The part, and what to use instead.
    what: String,
    /// The indices and keys that lead to the part, the innermost first.
    path: Vec<String>,
}

impl NotJson {
    const fn new(what: String) -> Self {
        let path = Vec::new();
        Self { what, path }
    }

    /// The error for a value that is not readable without Python.
    fn unreadable(serialized: &Serialized) -> Self {
        let what = match serialized.open() {
            Err(ValueError::Unknown { what }) => what,
            _ => serialized.to_string(),
        };
        Self::new(format!(
            "only Python can read {what}; convert it on the cluster, for example with \
             builtins.str, or write a data frame or table as .parquet"
        ))
    }

    /// The error for elements of an array that only `.npy` preserves.
    fn elements(array: &Array) -> Self {
        Self::new(format!(
            "elements of type {} have no form in JSON; use .npy",
            array.dtype()
        ))
    }

    /// Adds the index or key of the part in a container.
    fn at(mut self, index: impl fmt::Display) -> Self {
        self.path.push(format!("[{index}]"));
        self
    }
}

impl fmt::Display for NotJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            f.write_str("at ")?;
            self.path
                .iter()
                .rev()
                .try_for_each(|step| f.write_str(step))?;
            f.write_str(": ")?;
        }
        f.write_str(&self.what)
    }
}

/// Converts a value to JSON, described in `JSON.md`.
///
/// # Errors
///
/// If the value, or a part of it, has no form there.
pub(crate) fn value_json(value: &Value) -> Result<Json, NotJson> {
    let list = |items: &[Value]| {
        let items = items.iter().enumerate();
        let items = items.map(|(index, item)| value_json(item).map_err(|error| error.at(index)));
        items.collect::<Result<Vec<Json>, _>>().map(Json::Array)
    };
    Ok(match value {
        Value::None => Json::Null,
        Value::Bool(value) => (*value).into(),
        Value::Int(value) => match (i64::try_from(*value), u64::try_from(*value)) {
            (Ok(value), _) => value.into(),
            (_, Ok(value)) => value.into(),
            _ => json!({"$int": value.to_string()}),
        },
        Value::LargeInt(_) => {
            let digits = value.to_string();
            // The size in place of the digits
            if digits.starts_with('<') {
                return Err(NotJson::new(format!("{digits} is too long for JSON")));
            }
            json!({"$int": digits})
        }
        Value::Float(number) if number.is_finite() => (*number).into(),
        Value::Float(_) => json!({"$float": value.to_string()}),
        Value::Complex(real, imaginary) => {
            let parts = [Value::Float(*real), Value::Float(*imaginary)];
            json!({"$complex": list(&parts)?})
        }
        Value::Str(string) => string.as_ref().into(),
        Value::Bytes(data) | Value::ByteArray(data) => json!({"$bytes": BASE64.encode(data)}),
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
            list(items)?
        }
        Value::Dict(entries) => {
            // A name that begins with a dollar sign would look like one of the forms here.
            let name = |key: &Value| {
                let name = key.as_str().filter(|name| !name.starts_with('$'));
                name.map(str::to_owned)
            };
            let names: Option<Vec<String>> = entries.iter().map(|(key, _)| name(key)).collect();
            let item = |key: &Value, item: &Value| value_json(item).map_err(|error| error.at(key));
            match names {
                Some(names) => {
                    let named = names.into_iter().zip(entries.iter());
                    let items = named.map(|(name, (key, value))| Ok((name, item(key, value)?)));
                    Json::Object(items.collect::<Result<_, _>>()?)
                }
                None => {
                    let pairs = entries.iter();
                    let pairs = pairs.map(|(key, value)| {
                        let name = value_json(key).map_err(|error| error.at(key))?;
                        Ok(Json::Array(vec![name, item(key, value)?]))
                    });
                    let pairs: Vec<Json> = pairs.collect::<Result<_, _>>()?;
                    json!({"$map": pairs})
                }
            }
        }
        Value::Array(array) => match array.dtype().kind() {
            // Their unit is in the type of the array only.
            Kind::Datetime(_) | Kind::Timedelta(_) => return Err(NotJson::elements(array)),
            _ => array_json(array)?,
        },
        Value::Object(object) => {
            let arguments = object.arguments();
            let mut document = Map::new();
            document.insert("class".into(), object.class().into());
            if object.fields().is_empty() {
                document.insert("arguments".into(), list(arguments)?);
            } else {
                let fields = object.fields().iter().zip(arguments);
                let fields = fields.map(|(name, value)| {
                    let value = value_json(value).map_err(|error| error.at(name));
                    Ok((name.clone(), value?))
                });
                let fields: Map<String, Json> = fields.collect::<Result<_, _>>()?;
                document.insert("attributes".into(), fields.into());
            }
            json!({"$object": document})
        }
        Value::Serialized(serialized) => return Err(NotJson::unreadable(serialized)),
        other => {
            let what = format!("a value of type {} has no form in JSON", other.type_name());
            return Err(NotJson::new(what));
        }
    })
}

/// Checks that a value has no parts that only Python can read, whose text only describes them.
fn check_readable(value: &Value) -> Result<(), NotJson> {
    let all = |items: &[Value]| {
        let mut items = items.iter().enumerate();
        items.try_for_each(|(index, item)| check_readable(item).map_err(|error| error.at(index)))
    };
    match value {
        Value::Serialized(serialized) => Err(NotJson::unreadable(serialized)),
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
            all(items)
        }
        Value::Object(object) => all(object.arguments()),
        Value::Dict(entries) => entries.iter().try_for_each(|(key, item)| {
            let checked = check_readable(key).and_then(|()| check_readable(item));
            checked.map_err(|error| error.at(key))
        }),
        _ => Ok(()),
    }
}

/// The elements of an array as nested lists. Times are counts in the unit of the array.
fn array_json(array: &Array) -> Result<Json, NotJson> {
    let view = array.view();
    let view = view.and_then(|view| view.check_repetition().map(|()| view));
    let view = view.map_err(|error| NotJson::new(error.to_string()))?;
    // Numbers that are longer than the longest float here are read as bytes.
    let is_long = match array.dtype().kind() {
        Kind::Float => array.dtype().item_len() > 8,
        Kind::Complex => array.dtype().item_len() > 16,
        _ => false,
    };
    if is_long {
        return Err(NotJson::elements(array));
    }
    fn nested(
        array: &Array,
        view: &daskwire_numpy::Array<'_>,
        indices: &mut Vec<usize>,
    ) -> Result<Json, NotJson> {
        let Some(&count) = array.shape().get(indices.len()) else {
            let bytes = view.item(indices).unwrap_or_default();
            return value_json(&element(array.dtype(), bytes));
        };
        let mut items = Vec::new();
        for index in 0..count {
            indices.push(index);
            let item = nested(array, view, indices);
            indices.pop();
            items.push(item?);
        }
        Ok(Json::Array(items))
    }
    nested(array, &view, &mut Vec::new())
}

/// Formats rows as comma-separated values (RFC 4180, with a line feed after each row).
/// A list of dictionaries with equal names gets a heading of these names.
fn csv(result: &Value) -> Result<String, String> {
    #[cfg(feature = "parquet")]
    if let Ok(batches) = result.to_record_batches() {
        return tables::csv(&batches).map_err(|error| error.to_string());
    }
    #[cfg(not(feature = "parquet"))]
    if let Value::Serialized(_) | Value::Object(_) = result {
        let class = WrongType::new("a table", result).found;
        if class.starts_with("pandas.") || class.starts_with("pyarrow.") {
            return Err(NO_TABLES.to_owned());
        }
    }
    let items: Vec<Value> = match result {
        Value::Array(array) => match array_rows(array) {
            Some(rows) => rows,
            None => {
                return Err(format!(
                    "an array with {} dimensions has no rows; use .npy or .json",
                    array.shape().len()
                ));
            }
        },
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
            items.to_vec()
        }
        scalar => vec![scalar.clone()],
    };
    let mut out = String::new();
    let mut names: Option<Vec<Value>> = None;
    for (index, item) in items.iter().enumerate() {
        match item {
            Value::Dict(entries) => {
                let own: Vec<Value> = entries.iter().map(|(name, _)| name.clone()).collect();
                if index == 0 {
                    csv_row(&own, &mut out)?;
                    names = Some(own);
                } else if names.as_ref() != Some(&own) {
                    return Err(format!(
                        "item {index} has other names than the first one; use .json"
                    ));
                }
                let values: Vec<Value> = entries.iter().map(|(_, value)| value.clone()).collect();
                csv_row(&values, &mut out)?;
            }
            _ if names.is_some() => {
                return Err(format!(
                    "item {index} has no names, unlike the first one; use .json"
                ));
            }
            Value::List(cells) | Value::Tuple(cells) => csv_row(cells, &mut out)?,
            cell => csv_row(core::slice::from_ref(cell), &mut out)?,
        }
    }
    Ok(out)
}

/// The rows of an array of up to two dimensions.
fn array_rows(array: &Array) -> Option<Vec<Value>> {
    let view = array.view().ok()?;
    let mut items = view.items().map(|item| element(array.dtype(), item));
    match *array.shape() {
        [] | [_] => Some(items.collect()),
        [row_count, len] => {
            let row = |_| Value::List(items.by_ref().take(len).collect());
            Some((0..row_count).map(row).collect())
        }
        _ => None,
    }
}

fn csv_row(cells: &[Value], out: &mut String) -> Result<(), String> {
    for (index, cell) in cells.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        match cell {
            Value::None => {}
            Value::Str(string) if string.contains([',', '"', '\n', '\r']) => {
                let _ = write!(out, "\"{}\"", string.replace('"', "\"\""));
            }
            Value::Str(string) => out.push_str(string),
            Value::Bool(_) | Value::Int(_) | Value::LargeInt(_) | Value::Float(_) => {
                let _ = write!(out, "{cell}");
            }
            other => {
                return Err(format!(
                    "a cell is of type {}; use .json",
                    other.type_name()
                ));
            }
        }
    }
    out.push('\n');
    Ok(())
}
