//! Record batches of Arrow, from and to tables of pyarrow and data frames of
//! pandas.

use core::fmt;
use std::io::Cursor;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, Field, Schema};
use bytes::Bytes;
use daskwire_numpy::Description;
use daskwire_pickle::tree::Tree;

use super::convert::options;
use super::into_value::into_value;
use super::object::{Kind, Object};
use super::{Serialized, Value, ValueError, WrongType, pandas};

/// The error of converting a value from or to record batches.
#[derive(Debug)]
#[non_exhaustive]
pub enum TableError {
    /// The value is neither a table nor a data frame.
    NotATable {
        /// The type of the value.
        found: String,
    },
    /// A column of the data frame has a type without a supported counterpart in
    /// Arrow.
    Column {
        /// The name of the column.
        name: String,
        /// The data of the column, such as `pandas.arrays.IntervalArray`.
        what: String,
    },
    /// Another part of the data frame has no supported counterpart in Arrow.
    Unsupported {
        /// The part, such as an index of intervals.
        what: String,
    },
    /// The payload is damaged.
    Value(ValueError),
    /// The Arrow data is malformed, or cannot be written.
    Arrow(ArrowError),
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotATable { found } => write!(f, "expected a table or data frame, found {found}"),
            Self::Column { name, what } => write!(
                f,
                "the column {name:?}, {what}, cannot be converted to Arrow"
            ),
            Self::Unsupported { what } => write!(f, "{what} cannot be converted to Arrow"),
            Self::Value(error) => error.fmt(f),
            Self::Arrow(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for TableError {}

daskwire::kinds! {
    TableError: |error| match error {
        Self::Value(error) => error.kind(),
        Self::NotATable { .. }
        | Self::Column { .. }
        | Self::Unsupported { .. }
        | Self::Arrow(_) => ErrorKind::Value,
    };
}

impl From<ValueError> for TableError {
    fn from(error: ValueError) -> Self {
        Self::Value(error)
    }
}

impl From<ArrowError> for TableError {
    fn from(error: ArrowError) -> Self {
        Self::Arrow(error)
    }
}

/// The error of a table in a container.
impl From<TableError> for WrongType {
    fn from(error: TableError) -> Self {
        let (wanted, found) = match error {
            TableError::NotATable { found } => ("a table or data frame", found),
            TableError::Column { name, what } => (
                "columns with a counterpart in Arrow",
                format!("{what} as the column {name:?}"),
            ),
            TableError::Unsupported { what } => ("a data frame with a counterpart in Arrow", what),
            TableError::Value(error) => ("a table or data frame", format!("bad data: {error}")),
            TableError::Arrow(error) => ("a table or data frame", format!("bad data: {error}")),
        };
        Self {
            wanted: wanted.into(),
            found: found.into(),
            path: String::new(),
        }
    }
}

impl Value {
    /// Makes a `pyarrow.Table` of record batches, which have the same schema.
    ///
    /// The value is a call of pyarrow's reader of the Arrow streaming format, so
    /// that workers need pyarrow.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use arrow_array::{Int64Array, RecordBatch};
    /// use daskwire_value::Value;
    /// let column = Arc::new(Int64Array::from(vec![1, 2, 3]));
    /// let batch = RecordBatch::try_from_iter([("n", column as _)])?;
    /// let table = Value::from_record_batches(&[batch.clone()])?;
    /// assert_eq!(table.to_record_batches()?, [batch]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TableError::Arrow`] if `batches` is empty, or if the schemas differ.
    pub fn from_record_batches(batches: &[RecordBatch]) -> Result<Self, TableError> {
        let schema = batches.first().map_or_else(
            || {
                let message = "expected at least one record batch, for the schema".to_owned();
                Err(ArrowError::InvalidArgumentError(message))
            },
            |batch| Ok(batch.schema()),
        )?;
        let mut stream = StreamWriter::try_new(Vec::new(), &schema)?;
        for batch in batches {
            if batch.schema() != schema {
                let message = "the record batches have different schemas".to_owned();
                return Err(ArrowError::SchemaError(message).into());
            }
            stream.write(batch)?;
        }
        let stream = Self::bytes(stream.into_inner()?);
        let reader = Object::new("pyarrow.ipc", "open_stream", [stream]);
        Ok(Object::new("pyarrow.lib", "RecordBatchReader.read_all", [reader]).into())
    }

    /// Makes a `pandas.DataFrame` of record batches, as `to_pandas` of
    /// `pyarrow.Table` does it. Workers need pandas and pyarrow.
    ///
    /// # Errors
    ///
    /// As [`from_record_batches`](Self::from_record_batches).
    pub fn data_frame(batches: &[RecordBatch]) -> Result<Self, TableError> {
        let table = Self::from_record_batches(batches)?;
        Ok(Object::new("pyarrow.lib", "Table.to_pandas", [table]).into())
    }

    /// Converts a `pyarrow.Table` or `RecordBatch` to its record batches, or a
    /// `pandas.DataFrame`, `Series`, `Index` or an array of pyarrow to one, without running
    /// Python.
    ///
    /// Columns of a data frame become what `pyarrow.Table.from_pandas` makes of
    /// them: `NaN` and `NaT` are null, the levels of an index that is not the default one
    /// are columns at the end. Columns of objects are read if these are strings, bytes,
    /// booleans, numbers, dates, decimal numbers, or lists of these. A series is read as
    /// `series.to_frame()`, an index as `index.to_frame(index=False)`; a column without a
    /// name is called `0`.
    ///
    /// # Errors
    ///
    /// * [`TableError::NotATable`] if the value is something else;
    /// * [`TableError::Column`] names a column of another type;
    /// * [`TableError::Unsupported`] for an index of another type, or a data frame of a
    ///   release of pandas before 2.0;
    /// * other errors if the payload is damaged, or represents far more data than it
    ///   contains.
    pub fn to_record_batches(&self) -> Result<Vec<RecordBatch>, TableError> {
        match self {
            Self::Serialized(serialized) => of_serialized(serialized),
            Self::Object(object) => match (object.kind(), object.arguments()) {
                (Kind::TableReader, [Self::Object(reader)]) => match reader.arguments() {
                    [Self::Bytes(stream)] if reader.kind() == Kind::IpcStream => of_stream(stream),
                    _ => Err(not_a_table(self)),
                },
                (Kind::TableToPandas, [table]) => table.to_record_batches(),
                _ => Err(not_a_table(self)),
            },
            _ => Err(not_a_table(self)),
        }
    }
}

fn not_a_table(value: &Value) -> TableError {
    TableError::NotATable {
        found: value.type_name().to_owned(),
    }
}

/// Converts a table or data frame; several batches become one.
impl TryFrom<Value> for RecordBatch {
    type Error = TableError;

    fn try_from(value: Value) -> Result<Self, TableError> {
        let batches = value.to_record_batches()?;
        match <[Self; 1]>::try_from(batches) {
            Ok([batch]) => Ok(batch),
            Err(batches) => {
                let schema = batches.first().map(Self::schema);
                // `of_stream` returns at least one batch, which may be empty.
                let schema = schema.unwrap_or_else(|| Arc::new(Schema::empty()));
                Ok(arrow_select::concat::concat_batches(&schema, &batches)?)
            }
        }
    }
}

/// Converts to a `pyarrow.Table`, see [`Value::from_record_batches`].
impl TryFrom<RecordBatch> for Value {
    type Error = TableError;

    fn try_from(batch: RecordBatch) -> Result<Self, TableError> {
        Self::from_record_batches(&[batch])
    }
}

options! { {} RecordBatch; }
into_value! { {} RecordBatch; }

/// Reads the Arrow streaming format.
fn of_stream(stream: &Bytes) -> Result<Vec<RecordBatch>, TableError> {
    let reader = StreamReader::try_new(Cursor::new(stream), None)?;
    let schema = reader.schema();
    let mut batches = reader.collect::<Result<Vec<_>, _>>()?;
    if batches.is_empty() {
        batches.push(RecordBatch::new_empty(schema));
    }
    Ok(batches)
}

fn of_serialized(serialized: &Serialized) -> Result<Vec<RecordBatch>, TableError> {
    let is_table = serialized.with_payload(|payload| {
        let found = Description::of(payload.header());
        let Ok(Description::Other(class)) = found else {
            return false;
        };
        class.module == "pyarrow.lib" && matches!(class.name, "Table" | "RecordBatch")
    })?;
    if is_table {
        return of_stream(&serialized.content()?);
    }
    let not_a_table = || TableError::NotATable {
        found: serialized.to_string(),
    };
    let (pickle, buffers) = serialized.pickle().map_err(|error| match error {
        ValueError::Unknown { .. } => not_a_table(),
        error => error.into(),
    })?;
    let tree = Tree::with_buffers(&pickle, &buffers).map_err(ValueError::from)?;
    match pandas::columns(&tree, &pickle, &buffers)? {
        Some(columns) => Ok(vec![batch(columns)?]),
        None => Err(TableError::NotATable {
            found: super::describe(tree.root()),
        }),
    }
}

fn batch(columns: pandas::Columns) -> Result<RecordBatch, TableError> {
    let fields: Vec<Field> = columns
        .columns
        .iter()
        .map(|(name, column)| Field::new(name, column.data_type().clone(), true))
        .collect();
    let options = RecordBatchOptions::new().with_row_count(Some(columns.row_count));
    let columns = columns.columns.into_iter().map(|(_, column)| column);
    let schema = Arc::new(Schema::new(fields));
    Ok(RecordBatch::try_new_with_options(
        schema,
        columns.collect(),
        &options,
    )?)
}
