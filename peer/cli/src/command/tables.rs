//! Tables and data frames: files of Parquet and CSV, and text.

use std::fmt::Write as _;
use std::io::Cursor;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use bytes::Bytes;
use daskwire_peer::Value;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use crate::format::{aligned, count};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Encodes a table or data frame as a Parquet file, compressed by snappy as in pandas.
pub(crate) fn parquet(result: &Value) -> Result<Vec<u8>> {
    let batches = result.to_record_batches()?;
    let Some(first) = batches.first() else {
        return Err("a table without batches has no schema".into());
    };
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
    let mut writer = ArrowWriter::try_new(Vec::new(), first.schema(), Some(properties.build()))?;
    for batch in &batches {
        writer.write(batch)?;
    }
    Ok(writer.into_inner()?)
}

/// Reads a Parquet file as a `pyarrow.Table`.
pub(crate) fn read_parquet(file: Vec<u8>) -> Result<Value> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(file))?;
    let schema = Arc::clone(reader.schema());
    let mut batches = reader
        .build()?
        .collect::<std::result::Result<Vec<_>, _>>()?;
    if batches.is_empty() {
        batches.push(RecordBatch::new_empty(schema));
    }
    Ok(Value::from_record_batches(&batches)?)
}

/// Reads comma-separated values with a line of names as a `pyarrow.Table`. A column has the first
/// of these types that all its values have: integers, floats, booleans, dates, times, text.
pub(crate) fn read_csv(file: &[u8]) -> Result<Value> {
    let format = arrow_csv::reader::Format::default().with_header(true);
    let (schema, _) = format.infer_schema(Cursor::new(file), None)?;
    let schema = Arc::new(schema);
    let reader = arrow_csv::ReaderBuilder::new(Arc::clone(&schema)).with_header(true);
    let reader = reader.build(Cursor::new(file))?;
    let mut batches = reader.collect::<std::result::Result<Vec<_>, _>>()?;
    if batches.is_empty() {
        batches.push(RecordBatch::new_empty(schema));
    }
    Ok(Value::from_record_batches(&batches)?)
}

/// Formats a table or data frame as comma-separated values with a line of names.
pub(crate) fn csv(batches: &[RecordBatch]) -> Result<String> {
    let mut out = Vec::new();
    let mut writer = arrow_csv::WriterBuilder::new()
        .with_header(true)
        .build(&mut out);
    for batch in batches {
        writer.write(batch)?;
    }
    drop(writer);
    Ok(String::from_utf8(out)?)
}

/// Formats the first and last rows of a table or data frame, as pandas does.
pub(crate) fn preview(batches: &[RecordBatch]) -> Result<String> {
    /// Maximum number of rows that are printed in full.
    const MAX_ROWS: usize = 60;
    /// Number of rows printed at each end of a longer table.
    const EDGE_LEN: usize = 5;
    let Some(first) = batches.first() else {
        return Ok("a table without columns".to_owned());
    };
    let options = FormatOptions::default().with_null("null");
    let row_count: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let schema = first.schema();
    let names = schema.fields().iter().map(|field| escaped(field.name()));
    let mut rows: Vec<Vec<String>> = vec![names.collect()];
    let mut start = 0;
    for batch in batches {
        let columns = batch.columns().iter();
        let columns = columns.map(|column| ArrayFormatter::try_new(column, &options));
        let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let place = start + row;
            if row_count > MAX_ROWS && (EDGE_LEN..row_count - EDGE_LEN).contains(&place) {
                if place == EDGE_LEN {
                    rows.push(vec!["...".to_owned(); columns.len()]);
                }
                continue;
            }
            let cells = columns.iter();
            let cells = cells.map(|column| Ok(escaped(&column.value(row).try_to_string()?)));
            rows.push(cells.collect::<Result<_>>()?);
        }
        start += batch.num_rows();
    }
    let mut out = aligned(&rows, 0);
    let columns = count(schema.fields().len(), "column");
    let _ = write!(out, "{}, {columns}", count(row_count, "row"));
    Ok(out)
}

/// The text of a cell on a terminal, in one line and not too long.
fn escaped(text: &str) -> String {
    const MAX_LEN: usize = 60;
    let mut short: String = text.chars().take(MAX_LEN).collect();
    if text.chars().nth(MAX_LEN).is_some() {
        short.push_str("...");
    }
    daskwire::display::Printable(&short).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_values_become_tables() {
        let table = read_csv(b"n,name,x\n1,\"a, b\",0.5\n2,,1\n").expect("a table");
        let batches = table.to_record_batches().expect("a table");
        assert_eq!(
            csv(&batches).expect("text"),
            "n,name,x\n1,\"a, b\",0.5\n2,,1.0\n"
        );
        let shown = preview(&batches).expect("text");
        let lines: Vec<&str> = shown.lines().map(str::trim_end).collect();
        assert_eq!(lines.last(), Some(&"2 rows, 3 columns"), "{shown}");
        let file = parquet(&table).expect("a file");
        assert_eq!(
            read_parquet(file)
                .expect("a table")
                .to_record_batches()
                .expect("a table"),
            batches
        );
    }

    #[test]
    fn long_tables_are_shown_in_part() {
        let lines: String = (0..100).map(|n| format!("{n}\n")).collect();
        let table = read_csv(format!("n\n{lines}").as_bytes()).expect("a table");
        let shown = preview(&table.to_record_batches().expect("a table")).expect("text");
        let lines: Vec<&str> = shown.lines().map(str::trim).collect();
        let expected = [
            "n",
            "0",
            "1",
            "2",
            "3",
            "4",
            "...",
            "95",
            "96",
            "97",
            "98",
            "99",
            "100 rows, 1 column",
        ];
        assert_eq!(lines, expected);
    }
}
