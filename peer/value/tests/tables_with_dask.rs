//! Tests of record batches with a real worker: tables of pyarrow and data frames of pandas
//! in both directions; and of the examples that need Python libraries.

#[path = "../../tests/it/support/client.rs"]
mod client;
#[path = "../../examples/learn.rs"]
#[allow(dead_code, reason = "its main is that of the example")]
mod learn;
#[path = "../examples/tables.rs"]
#[allow(dead_code, reason = "its main is that of the example")]
mod tables;

use core::time::Duration;
use std::sync::Arc;

use arrow_array::types::Int8Type;
use arrow_array::{
    ArrayRef, DictionaryArray, Float64Array, Int64Array, LargeStringArray, RecordBatch,
    StringArray, TimestampMicrosecondArray,
};
use client::client_at;
use daskwire_peer::client::TaskFuture;
use daskwire_peer::graph::Argument;
use daskwire_peer::value::TableError;
use daskwire_peer::{Client, Value};

/// Timeout of a single step; the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(120);

async fn result(future: &TaskFuture) -> Value {
    let result = future.result_within(TIMEOUT).await;
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn submit(client: &Client, function: &str, argument: impl Into<Argument>) -> TaskFuture {
    client.submit(function, [argument]).expect("submitted")
}

/// Evaluates an expression that uses `pd`, `np` and `pa`.
fn eval(client: &Client, expression: &str) -> TaskFuture {
    let expression = format!(
        "(lambda pd, np, pa: {expression})(__import__('pandas'), __import__('numpy'), \
         __import__('pyarrow'))"
    );
    submit(client, "builtins.eval", expression.as_str())
}

fn sample() -> RecordBatch {
    let categories: DictionaryArray<Int8Type> = [Some("x"), None, Some("y")].into_iter().collect();
    let columns: [(&str, ArrayRef); 5] = [
        ("numbers", Arc::new(Int64Array::from(vec![1, 2, i64::MIN]))),
        (
            "floats",
            Arc::new(Float64Array::from(vec![Some(1.5), None, Some(-0.0)])),
        ),
        (
            "names",
            Arc::new(StringArray::from(vec![Some("ß"), Some(""), None])),
        ),
        (
            "times",
            Arc::new(
                TimestampMicrosecondArray::from(vec![Some(5), None, Some(-5)]).with_timezone("UTC"),
            ),
        ),
        ("categories", Arc::new(categories)),
    ];
    RecordBatch::try_from_iter(columns).expect("as long")
}

#[tokio::test]
async fn record_batches_go_to_python_and_back() {
    let python = daskwire_testing::python_with_libraries();
    let scheduler = daskwire_testing::scheduler_in(&python, "tcp", 1);
    let client = client_at(scheduler.address()).await;
    let batch = sample();
    let table = Value::from_record_batches(&[batch.clone(), batch.clone()]).expect("one schema");
    assert_eq!(
        table.to_record_batches().expect("a table"),
        [batch.clone(), batch.clone()]
    );

    // The worker receives a table of pyarrow.
    let copied = submit(&client, "copy.copy", table.clone());
    let class = submit(&client, "builtins.type", &copied);
    let class = submit(&client, "builtins.repr", &class);
    assert_eq!(
        result(&class).await,
        Value::from("<class 'pyarrow.lib.Table'>")
    );
    let read = result(&copied).await.to_record_batches().expect("a table");
    assert_eq!(read, [batch.clone(), batch.clone()]);
    let both = RecordBatch::try_from(result(&copied).await).expect("a table");
    assert_eq!(both.num_rows(), 6);

    // A conversion to a data frame, and back.
    let frame = Value::data_frame(core::slice::from_ref(&batch)).expect("one schema");
    let frame = submit(&client, "copy.copy", frame);
    let class = submit(&client, "builtins.type", &frame);
    let class = submit(&client, "builtins.repr", &class);
    let class = String::try_from(result(&class).await).expect("a string");
    assert!(class.contains("DataFrame"), "{class}");
    let read = RecordBatch::try_from(result(&frame).await).expect("a data frame");
    assert_eq!(read.num_rows(), 3);
    assert_eq!(read.column(0), batch.column(0));
    assert_eq!(read.column(1), batch.column(1));
    assert_eq!(read.column(3), batch.column(3));

    // An empty table keeps its schema. A record batch of pyarrow is converted, too.
    let empty = eval(&client, "pa.table({'a': pa.array([], 'int8')})");
    let empty = RecordBatch::try_from(result(&empty).await).expect("a table");
    assert_eq!(
        (empty.num_rows(), empty.schema().field(0).name().as_str()),
        (0, "a")
    );
    let single = eval(&client, "pa.record_batch({'a': [1, None]})");
    let single = RecordBatch::try_from(result(&single).await).expect("a record batch");
    assert_eq!(single.column(0).null_count(), 1);
}

/// Expressions that create data frames.
const FRAMES: &[&str] = &[
    "pd.DataFrame({'a': [1, 2], 'b': [1.5, np.nan], 'c': [3, 4], 'd': [True, False]})",
    "pd.DataFrame({'a': np.arange(6, dtype='f4'), 'b': np.arange(6, dtype='u2'), \
     'c': np.arange(6, dtype='i1'), 'd': np.arange(6, dtype='u8'), 'e': np.arange(6, dtype='f2')})",
    "pd.DataFrame({'s': ['x', None, 'ß'], 't': ['', 'a', 'b']})",
    "pd.DataFrame({'s': pd.array(['x', None], dtype='string[python]')})",
    "pd.DataFrame({'s': pd.Series(['x', None, 'y'], dtype=object)})",
    "pd.DataFrame({'s': pd.Series([b'x', None], dtype=object), 'i': pd.Series([1, None], dtype=object)})",
    "pd.DataFrame({'t': pd.to_datetime(['2026-11-22T01:02:03.5', None])})",
    "pd.DataFrame({'t': pd.to_datetime(['2026-11-22']).as_unit('ns'), \
     'u': pd.to_datetime(['2026-11-22']).tz_localize('UTC'), \
     'v': pd.to_datetime(['2026-11-22']).tz_localize('Europe/Berlin').as_unit('s')})",
    "pd.DataFrame({'t': pd.to_timedelta([1, None], 'us')})",
    "pd.DataFrame({'c': pd.Categorical(['x', None, 'x', 'y']), 'd': pd.Categorical([1, 2, 1, 3])})",
    "pd.DataFrame({'i': pd.array([1, None], dtype='Int64'), 'b': pd.array([None, True], dtype='boolean'), \
     'f': pd.array([1.5, None], dtype='Float32')})",
    "pd.DataFrame({'a': [1, 2]}, index=[5, 6])",
    "pd.DataFrame({'a': [1, 2]}, index=pd.Index(['x', 'y'], name='k'))",
    "pd.DataFrame({'a': [1, 2]}, index=pd.date_range('2026', periods=2))",
    "pd.DataFrame({'a': range(10), 'b': range(10)}).iloc[::2]",
    "pd.DataFrame({'a': range(10), 'b': range(10), 'c': list('abcdefghij')}).iloc[3:6][['c', 'a']]",
    "pd.DataFrame({'a': []})",
    "pd.DataFrame({0: [1], 1: [2]})",
    "pd.DataFrame(index=range(3))",
];

#[tokio::test]
async fn data_frames_are_read_as_pyarrow_reads_them() {
    let python = daskwire_testing::python_with_libraries();
    let scheduler = daskwire_testing::scheduler_in(&python, "tcp", 1);
    let client = client_at(scheduler.address()).await;
    for expression in FRAMES {
        let frame = result(&eval(&client, expression)).await;
        let found =
            RecordBatch::try_from(frame).unwrap_or_else(|error| panic!("{expression}: {error}"));
        // pyarrow stores a range index in the metadata; here it becomes a column.
        let by_pyarrow = format!(
            "(lambda df: pa.Table.from_pandas(df, preserve_index=True if not df.index.equals(\
             pd.RangeIndex(len(df))) else None))({expression})"
        );
        let expected = RecordBatch::try_from(result(&eval(&client, &by_pyarrow)).await);
        let expected = expected.expect("a table");
        assert_eq!(found.num_rows(), expected.num_rows(), "{expression}");
        assert_eq!(found.num_columns(), expected.num_columns(), "{expression}");
        let (schema, expected_schema) = (found.schema(), expected.schema());
        for (index, column) in found.columns().iter().enumerate() {
            assert_eq!(
                schema.field(index).name(),
                expected_schema.field(index).name()
            );
            assert_eq!(column, expected.column(index), "{expression}");
        }
    }
    for (expression, reason) in [
        (
            "pd.DataFrame({'o': [{}, 1]})",
            "the column \"o\", objects of the type dict,",
        ),
        (
            "pd.DataFrame({'x': [1], 'p': pd.period_range('2026', periods=1)})",
            "the column \"p\"",
        ),
        (
            "pd.DataFrame({'a': [1]}, index=pd.MultiIndex.from_tuples([(1, 2)]))",
            "an index",
        ),
        (
            "pd.Series([1])",
            "expected a table or data frame, found pandas.Series",
        ),
        ("pd.DataFrame(index=range(5, 1 << 40))", "more than"),
        ("[1]", "expected a table or data frame, found list"),
    ] {
        let value = result(&eval(&client, expression)).await;
        let error: TableError = RecordBatch::try_from(value).expect_err("no counterpart");
        assert!(error.to_string().contains(reason), "{expression}: {error}");
    }
}

#[tokio::test]
async fn examples_work_with_the_libraries() {
    let python = daskwire_testing::python_with_libraries();
    let scheduler = daskwire_testing::scheduler_in(&python, "tcp", 2);
    let (score, labels) = learn::run(scheduler.address()).await.expect("it works");
    assert!(score > 0.95, "{score}");
    assert_eq!(labels, [true, false]);
    let turnovers = tables::run(scheduler.address()).await.expect("it works");
    let expected: [(&str, ArrayRef); 2] = [
        ("turnover", Arc::new(Float64Array::from(vec![4.5, 8.0]))),
        (
            "city",
            Arc::new(LargeStringArray::from(vec!["Bonn", "Köln"])),
        ),
    ];
    let expected = RecordBatch::try_from_iter(expected).expect("as long");
    assert_eq!(turnovers.columns(), expected.columns());
    let names = turnovers.schema().fields().clone();
    assert_eq!(names[0].name(), "turnover");
    assert_eq!(names[1].name(), "city");
}
