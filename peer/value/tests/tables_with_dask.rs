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
#[path = "../../examples/web.rs"]
#[allow(dead_code, reason = "its main is that of the example")]
mod web;

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Date32Type, Float64Type, Int8Type, Int64Type};
use arrow_array::{
    Array as _, ArrayRef, DictionaryArray, Float64Array, Int64Array, LargeStringArray, RecordBatch,
    StringArray, TimestampMicrosecondArray,
};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use client::client_at;
use daskwire_peer::client::TaskFuture;
#[cfg(target_os = "linux")]
use daskwire_peer::cluster::LocalCluster;
use daskwire_peer::graph::{Argument, Arguments as _};
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

    // A record batch is an argument as it is, and is scattered as it is.
    let sent = client.submit("copy.copy", batch.clone());
    let sent = sent.expect("submitted");
    let sent = RecordBatch::try_from(result(&sent).await).expect("a table");
    assert_eq!(sent, batch);
    let scattered = client.scatter([batch.clone()]).await.expect("scattered");
    let scattered = RecordBatch::try_from(result(&scattered[0]).await).expect("a table");
    assert_eq!(scattered, batch);

    // Two batches are two arguments.
    let batches = vec![batch.clone(), batch.clone()];
    assert_eq!(batches.into_arguments().len(), 2);

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

/// A frame of Polars.
const POLARS: &str = "pl.DataFrame({'id': [1, 2, None], 'share': [0.5, float('nan'), -0.0], \
    'name': ['ß', None, 'a name of more than 12 bytes'], \
    'day': [datetime.date(2026, 11, 30)] * 3, 'tags': [['x'], [], None]})";

/// Checks that record batches are [`POLARS`].
fn check_polars(batches: &[RecordBatch]) {
    let [batch] = batches else {
        panic!("{} batches", batches.len());
    };
    let schema = batch.schema();
    let names = schema.fields().iter().map(|field| field.name().as_str());
    let names: Vec<&str> = names.collect();
    assert_eq!(names, ["id", "share", "name", "day", "tags"]);
    let ids = batch.column(0).as_primitive::<Int64Type>();
    let ids: Vec<Option<i64>> = ids.iter().collect();
    assert_eq!(ids, [Some(1), Some(2), None]);
    // In Polars, a number that is none is not null.
    let shares = batch.column(1).as_primitive::<Float64Type>();
    assert!(shares.null_count() == 0 && shares.value(1).is_nan());
    let names = batch.column(2).as_string::<i64>();
    let names: Vec<Option<&str>> = names.iter().collect();
    assert_eq!(
        names,
        [Some("ß"), None, Some("a name of more than 12 bytes")]
    );
    let days = batch.column(3).as_primitive::<Date32Type>();
    assert_eq!(days.value(0), 20_787, "days since 1970");
    let tags = batch.column(4).as_list::<i64>();
    assert_eq!((tags.null_count(), tags.value(0).len()), (1, 1));
}

/// Frames of Polars come and go as the guide says: as tables of pyarrow, and in the streaming
/// format, which Polars in Rust writes and reads with the code that Polars in Python calls.
#[tokio::test]
async fn frames_of_polars_go_through_arrow() {
    let python = daskwire_testing::python_with_libraries();
    let scheduler = daskwire_testing::scheduler_in(&python, "tcp", 1);
    let client = client_at(scheduler.address()).await;
    // Evaluates an expression in which `x` is an argument.
    let eval = |expression: &str, x: Value| {
        let code = format!(
            "(lambda pl, io, datetime: {expression})(*map(__import__, ['polars', 'io', 'datetime']))"
        );
        let call = client.call("builtins.eval").argument(code.as_str());
        let call = call.argument(Value::dict([("x", x)]));
        call.submit().expect("submitted")
    };
    let is_same = format!("pl.from_arrow(x).equals({POLARS})");

    // As a table of pyarrow.
    let table = eval(&format!("{POLARS}.to_arrow()"), Value::None);
    let batches = result(&table).await.to_record_batches().expect("a table");
    check_polars(&batches);
    let table = Value::from_record_batches(&batches).expect("a table");
    assert_eq!(result(&eval(&is_same, table)).await, Value::from(true));

    // With the newer type of strings.
    let newest = "compat_level=pl.CompatLevel.newest()";
    let table = eval(&format!("{POLARS}.to_arrow({newest})"), Value::None);
    let batches = result(&table).await.to_record_batches().expect("a table");
    let names = batches[0].column(2).as_string_view();
    assert_eq!(names.value(2), "a name of more than 12 bytes");
    let table = Value::from_record_batches(&batches).expect("a table");
    assert_eq!(result(&eval(&is_same, table)).await, Value::from(true));

    // In the streaming format.
    let oldest = "compat_level=pl.CompatLevel.oldest()";
    let stream =
        format!("[file := io.BytesIO(), {POLARS}.write_ipc_stream(file, {oldest})][0].getvalue()");
    let stream = bytes::Bytes::try_from(result(&eval(&stream, Value::None)).await).expect("bytes");
    let stream = StreamReader::try_new(&*stream, None).expect("a stream");
    let batches: Vec<RecordBatch> = stream.collect::<Result<_, _>>().expect("record batches");
    check_polars(&batches);
    let mut writer = StreamWriter::try_new(Vec::new(), &batches[0].schema()).expect("a stream");
    writer.write(&batches[0]).expect("it is written");
    let stream = writer.into_inner().expect("it ends");
    let is_same = format!("pl.read_ipc_stream(x).equals({POLARS})");
    let same = eval(&is_same, Value::Bytes(stream.into()));
    assert_eq!(result(&same).await, Value::from(true));

    // As it is.
    let frame = result(&eval(POLARS, Value::None)).await;
    assert!(matches!(frame, Value::Serialized(_)), "{frame:?}");
    let error = RecordBatch::try_from(frame.clone()).expect_err("no table");
    assert!(error.to_string().contains("polars"), "{error}");
    let is_same = format!("x.equals({POLARS})");
    assert_eq!(result(&eval(&is_same, frame)).await, Value::from(true));
    client.close().await.expect("it closes");
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
    "pd.DataFrame({'a': [1, 2], 'b': ['x', None]}).set_index(['b', 'a'], drop=False)",
    "pd.DataFrame({'a': [1]}, index=pd.MultiIndex.from_tuples([(1, True)], names=['x', None]))",
    "pd.DataFrame({'k': list('xyx'), 'l': [1, 2, 2], 'v': [1.0, 2.0, 3.0]})\
     .groupby(['k', 'l']).agg({'v': ['sum', 'mean']})",
    "pd.DataFrame({'i': pd.array([1, None], dtype='int64[pyarrow]'), \
     's': pd.array(['x', None], dtype='string[pyarrow]'), \
     't': pd.array([1, None], dtype='timestamp[us, tz=UTC][pyarrow]'), \
     'b': pd.array([True, None], dtype='bool[pyarrow]')})",
    "pd.DataFrame({'l': pd.Series([[1], [2, 3]], dtype=pd.ArrowDtype(pa.list_(pa.int64()))), \
     's': pd.Series([{'a': 1}, None], dtype=pd.ArrowDtype(pa.struct([('a', pa.int8())])))})",
    "pd.DataFrame({'d': [__import__('decimal').Decimal(text) for text in ['1.5', '-10.25', '1E+2', 'NaN']]})",
    "pd.DataFrame({'l': [[1], [2, 3], None], 'n': [np.array([1.5]), np.array([]), None]})",
    "pd.DataFrame({'d': [__import__('datetime').date(*date) for date in \
     [(2026, 11, 29), (1969, 12, 31), (2024, 2, 29), (1, 1, 1), (9999, 12, 31)]]})",
    "pd.DataFrame({'m': pd.Series([1, 1.5], dtype=object)})",
    "pd.DataFrame({'a': [1, 2]})['a']",
    "pd.Series(['x', None, 'y'], name='n', index=['p', 'q', 'r'])",
    "pd.Series([1.5, np.nan])",
    "pd.DataFrame({'k': list('xyx'), 'v': [1, 2, 3]}).groupby('k')['v'].sum()",
    "pd.Series(['x', 'y', 'x'], name='k').value_counts()",
    "pd.Index([1, 2])",
    "pd.Index(['x'], name='n')",
    "pd.RangeIndex(3)",
    "pd.date_range('2026', periods=2)",
    "pd.MultiIndex.from_tuples([(1, 'a'), (2, 'b'), (1, None)], names=['x', None])",
    "pa.array([1, None, 2])[1:]",
    "pa.array([True, None, False])[1:]",
    "pa.chunked_array([['x'], ['y', None]])",
    "pa.array([{'a': 1, 'b': 'x'}, None])",
    "pa.array(['a', 'b', 'a']).dictionary_encode()",
    "pa.array([[1, 2], None], pa.list_(pa.int8(), 2))",
    "pa.array([b'ab', None], pa.binary(2))",
    "pa.array(['a string that is too long to be inline', 'b'], pa.string_view())",
    "pa.array([1, None], pa.timestamp('ns', 'Europe/Berlin'))",
    "pa.array([1], pa.duration('ms'))",
    "pa.array([1], pa.time32('s'))",
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
             pd.RangeIndex(len(df))) else None))((lambda x: x.to_frame(index=False) if isinstance(x, \
             pd.Index) else x.to_frame() if isinstance(x, pd.Series) else x)({expression}))"
        );
        let by_pyarrow = format!(
            "(lambda x: pa.table({{'0': x}}) if isinstance(x, (pa.Array, pa.ChunkedArray)) \
             else {by_pyarrow})({expression})"
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
            "pd.DataFrame({'a': [1]}, index=pd.interval_range(0, 1))",
            "an index",
        ),
        (
            "pd.Series([{}])",
            "the column \"0\", objects of the type dict,",
        ),
        (
            "pd.Timestamp",
            "expected a table or data frame, found pandas.Timestamp",
        ),
        ("pd.DataFrame(index=range(5, 1 << 40))", "more than"),
        ("[1]", "expected a table or data frame, found list"),
    ] {
        let value = result(&eval(&client, expression)).await;
        let error: TableError = RecordBatch::try_from(value).expect_err("no counterpart");
        assert!(error.to_string().contains(reason), "{expression}: {error}");
    }
}

/// Evaluates Python code that sets `result`.
fn run(client: &Client, code: &str) -> TaskFuture {
    let code = Value::from(code);
    let expression = format!("(lambda names: (exec({code}, names), names['result'])[1])({{}})");
    submit(client, "builtins.eval", expression.as_str())
}

#[tokio::test]
async fn frames_in_containers_convert_where_they_are() {
    let python = daskwire_testing::python_with_libraries();
    let scheduler = daskwire_testing::scheduler_in(&python, "tcp", 1);
    let client = client_at(scheduler.address()).await;
    let frame = "pd.DataFrame({'a': [1, 2]})";
    let column = |batch: &RecordBatch| Int64Array::from(batch.column(0).to_data());
    let expected = Int64Array::from(vec![1, 2]);

    let value = result(&eval(&client, &format!("({frame}, 5)"))).await;
    let (batch, number) = <(RecordBatch, i64)>::try_from(value).expect("a tuple");
    assert_eq!((column(&batch), number), (expected.clone(), 5));
    for list in [
        format!("(lambda df: [df, df])({frame})"),
        format!("({frame}, pa.table({{'a': [1, 2]}}), {frame}['a'])"),
        "[pa.table({'a': [1, 2]}), pa.record_batch({'a': [1, 2]})]".to_owned(),
    ] {
        let value = result(&eval(&client, &list)).await;
        let batches = Vec::<RecordBatch>::try_from(value).unwrap_or_else(|error| {
            panic!("{list}: {error}");
        });
        assert!(
            batches.iter().all(|batch| column(batch) == expected),
            "{list}"
        );
    }
    let value = result(&eval(&client, &format!("{{'x': {frame}, 'y': {frame}}}"))).await;
    let map = BTreeMap::<String, RecordBatch>::try_from(value).expect("a map");
    assert_eq!(
        map.into_values()
            .map(|batch| column(&batch))
            .collect::<Vec<_>>(),
        [expected.clone(), expected.clone()]
    );
    let value = result(&eval(&client, &format!("{{'a': 1, 'frame': {frame}}}"))).await;
    assert_eq!(value.get("a"), Some(&Value::from(1)));
    let frame = value.get("frame").cloned().expect("a frame");
    assert_eq!(
        column(&RecordBatch::try_from(frame).expect("a frame")),
        expected
    );
    let error = BTreeMap::<String, i64>::try_from(value).expect_err("a frame");
    let error = error.to_string();
    assert_eq!(error, "expected i64, found pandas.DataFrame at ['frame']");
}

/// Values with parts that only Python reads.
const PARTS: &str = "
import array, collections, functools, re, types
import numpy as np, pandas as pd, pyarrow as pa
deque = collections.deque()
deque.append(deque)
frame = pd.DataFrame({'a': [1, 2], 'b': ['x', None]})
result = [
    [re.compile('a+'), {'p': (re.compile('b'), 1)}],
    (collections.deque([1, 2], 3), deque),
    [functools.partial(int, base=2), array.array('i', [1, 2])],
    {'n': types.SimpleNamespace(a=[1])},
    [1, np.zeros(3, 'i4,f8'), np.arange(1000).view('i4,i4')],
    collections.OrderedDict(a=re.compile('z')),
    {re.compile('q'), 3},
    {'f': len, 't': int},
    (frame, 5),
    {'a': frame['a'], 'b': [frame.index, frame.T]},
    (5, pa.table({'a': [1]})),
]
";

#[tokio::test]
async fn parts_that_only_python_reads_go_back_as_they_were() {
    let python = daskwire_testing::python_with_libraries();
    let scheduler = daskwire_testing::scheduler_in(&python, "tcp", 1);
    let client = client_at(scheduler.address()).await;
    let made = run(&client, PARTS);
    let Value::List(values) = result(&made).await else {
        panic!("a list");
    };
    let shown = submit(&client, "builtins.repr", &made);
    let shown = result(&shown).await;
    let back = submit(&client, "builtins.repr", Value::List(values.clone()));
    assert_eq!(result(&back).await, shown);
    // Each part by itself, with its own buffers.
    let mut parts: Vec<Value> = values.to_vec();
    let mut count = 0;
    while let Some(part) = parts.pop() {
        match part {
            Value::List(items) | Value::Tuple(items) | Value::Set(items) => {
                parts.extend(items.iter().cloned());
            }
            Value::Dict(entries) => parts.extend(entries.iter().map(|(_, value)| value.clone())),
            part @ Value::Serialized(_) => {
                let scattered = client.scatter([part.clone()]).await.expect("scattered");
                let direct = submit(&client, "builtins.repr", &scattered[0]);
                let in_list = submit(&client, "builtins.repr", Value::list([part]));
                let direct = result(&direct).await.to_unquoted();
                let in_list = result(&in_list).await.to_unquoted();
                assert_eq!(in_list, format!("[{direct}]"));
                count += 1;
            }
            _ => {}
        }
    }
    assert!(count >= 17, "{count} parts");
}

/// The reply of a web server.
async fn requested(address: std::net::SocketAddr, path: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let stream = tokio::net::TcpStream::connect(address).await;
    let mut stream = stream.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\n\r\n");
    let sent = stream.write_all(request.as_bytes()).await;
    sent.expect("it reads");
    let mut reply = String::new();
    let read = stream.read_to_string(&mut reply).await;
    read.expect("it replies");
    reply
}

#[tokio::test]
async fn examples_work_with_a_real_cluster() {
    let python = daskwire_testing::python_with_libraries();
    let scheduler = daskwire_testing::scheduler_in(&python, "tcp", 2);
    run_examples(scheduler.address()).await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn examples_work_with_a_local_cluster() {
    let python = daskwire_testing::python_with_libraries();
    let cluster = LocalCluster::builder().python(python).start().await;
    let cluster = cluster.expect("it starts");
    run_examples(&cluster.address().to_string()).await;
    cluster.close().await;
}

async fn run_examples(scheduler: &str) {
    let (score, labels) = learn::run(scheduler).await.expect("it works");
    assert!(score > 0.95, "{score}");
    assert_eq!(labels, [true, false]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let scheduler_address = scheduler.to_owned();
    let serving = tokio::spawn(async move { web::serve(&scheduler_address, listener).await });
    for (path, expected) in [
        ("/0.9,0.8", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n1"),
        ("/0.1,0.1", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n0"),
        ("/0.1", "HTTP/1.1 400 Bad Request\r\n"),
        ("/here", "HTTP/1.1 400 Bad Request\r\n"),
    ] {
        let reply = requested(address, path).await;
        assert!(reply.starts_with(expected), "{path}: {reply}");
    }
    serving.abort();
    let turnovers = tables::run(scheduler).await.expect("it works");
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

#[tokio::test]
async fn arrays_of_objects_convert_to_vectors() {
    let python = daskwire_testing::python_with_libraries();
    let scheduler = daskwire_testing::scheduler_in(&python, "tcp", 1);
    let client = client_at(scheduler.address()).await;
    let list = |items: &[Value]| Value::list(items.to_vec());
    for (expression, expected) in [
        (
            "np.array([1, None, 'a'], dtype=object)",
            vec![1.into(), Value::None, "a".into()],
        ),
        (
            "np.array([[1, 'a'], [2, None]], dtype=object)",
            vec![
                list(&[1.into(), "a".into()]),
                list(&[2.into(), Value::None]),
            ],
        ),
        ("np.array([], dtype=object)", Vec::new()),
        ("np.empty((2, 0), dtype=object)", vec![list(&[]), list(&[])]),
    ] {
        let future = eval(&client, expression);
        let value = result(&future).await;
        let read = Vec::<Value>::try_from(value.clone());
        assert_eq!(read.expect(expression), expected, "{expression}");
        // Python gets the array that it has sent.
        let text = submit(&client, "builtins.repr", value);
        let sent = submit(&client, "builtins.repr", &future);
        assert_eq!(result(&text).await, result(&sent).await, "{expression}");
    }
    let future = eval(
        &client,
        "[np.array(['a', {'b': pd.NA}, pd.NA], dtype=object)]",
    );
    let [values]: [Vec<Value>; 1] = result(&future).await.try_into().expect("an array");
    assert!(
        matches!(
            &values[..],
            [Value::Str(_), Value::Dict(_), Value::Serialized(_)]
        ),
        "{values:?}"
    );
    for expression in ["np.array(None, dtype=object)", "pd.NA"] {
        let value = result(&eval(&client, expression)).await;
        let error = Vec::<Value>::try_from(value).expect_err(expression);
        assert!(
            error.to_string().starts_with("expected a sequence, found "),
            "{error}"
        );
    }
    client.close().await.expect("the scheduler is there");
    assert_eq!(scheduler.warnings(), [""; 0]);
}

/// What tasks in Python return, in groups.
const RETURNED: &[(&str, &[&str])] = &[
    (
        "scalars",
        &[
            "None",
            "True",
            "42",
            "2**100",
            "1.5",
            "float('nan')",
            "1j",
            "'text'",
            "b'bytes'",
            "bytearray(b'bytes')",
            "memoryview(b'bytes')",
        ],
    ),
    (
        "containers",
        &[
            "[1, 'a']",
            "(1, 'a')",
            "{1, 2}",
            "frozenset([1])",
            "{'a': 1, 2: 'b'}",
            "range(3)",
            "slice(1, 5)",
            "__import__('collections').namedtuple('Point', 'x y')(1, 2)",
            "__import__('collections').OrderedDict(a=1)",
            "__import__('collections').Counter('aab')",
            "__import__('collections').deque([1, 2])",
            "{'a': 1, 'frame': pd.DataFrame({'n': [1]})}",
            "(pd.DataFrame({'n': [1]}), 5)",
            "[pd.DataFrame({'n': [1]}), pd.DataFrame({'n': [2]})]",
        ],
    ),
    (
        "dates and numbers of the standard library",
        &[
            "__import__('datetime').date(2026, 8, 1)",
            "__import__('datetime').datetime(2026, 8, 1, 12)",
            "__import__('datetime').datetime(2026, 8, 1, tzinfo=__import__('datetime').timezone.utc)",
            "__import__('datetime').time(12, 30)",
            "__import__('datetime').timedelta(seconds=90)",
            "__import__('decimal').Decimal('0.10')",
            "__import__('fractions').Fraction(1, 3)",
            "__import__('uuid').UUID(int=1)",
            "__import__('pathlib').PurePosixPath('/tmp/x')",
            "__import__('enum').Enum('Color', 'RED', module='colors').RED",
        ],
    ),
    (
        "numpy",
        &[
            "np.int64(42)",
            "np.float32(0.5)",
            "np.bool_(True)",
            "np.str_('a')",
            "np.datetime64('2026-08-01', 'D')",
            "np.timedelta64(90, 's')",
            "np.arange(3)",
            "np.ones((2, 3))",
            "np.array([True])",
            "np.array(['a', 'bc'])",
            "np.array(['2026-08-01'], 'M8[ns]')",
            "np.array([1 + 2j])",
            "np.zeros(0)",
            "np.array([{'a': 1}, None], dtype=object)",
            "np.array([[1, 'a'], [2, None]], dtype=object)",
            "np.array([(1, 2.0)], dtype=[('n', 'i8'), ('x', 'f8')])",
            "np.ma.masked_array([1, 2], [False, True])",
            "np.dtype('f8')",
        ],
    ),
    (
        "pandas",
        &[
            "pd.DataFrame({'n': [1, 2], 'name': ['a', None]})",
            "pd.DataFrame({'n': [1, 2]})['n']",
            "pd.DataFrame({'g': ['a', 'a'], 'n': [1, 2]}).groupby('g').sum()",
            "pd.Series(['a', 'b', 'a']).value_counts()",
            "pd.DataFrame({'n': pd.array([1, None], dtype='int64[pyarrow]')})",
            "pd.Series(pd.Categorical(['a', 'b']))",
            "pd.Index([1, 2])",
            "pd.date_range('2026-08-01', periods=2)",
            "pd.MultiIndex.from_tuples([(1, 'a')])",
            "pd.DataFrame({'i': pd.interval_range(0, 2)})",
            "pd.Timestamp('2026-08-01')",
            "pd.Timedelta('90s')",
            "pd.NaT",
            "pd.NA",
        ],
    ),
    (
        "pyarrow and xarray",
        &[
            "pa.table({'n': [1, 2]})",
            "pa.record_batch({'n': [1]})",
            "pa.array([1, None])",
            "pa.chunked_array([[1], [2]])",
            "pa.scalar(1)",
            "__import__('xarray').DataArray(np.ones(2), dims='x')",
            "__import__('xarray').Dataset({'a': ('x', np.ones(2))})",
        ],
    ),
    (
        "objects",
        &[
            "type('Own', (), {})()",
            "__import__('types').SimpleNamespace(a=1)",
            "__import__('re').compile('x')",
            "operator.neg",
            "len",
            "int",
            "lambda x: x",
            "ValueError('wrong')",
            "__import__('sklearn.linear_model').linear_model.LinearRegression()",
        ],
    ),
];

/// What Rust gets of a result.
fn received(value: &Value) -> String {
    let variant = match value {
        Value::Serialized(_) => "Serialized".to_owned(),
        Value::Object(object) => format!("Object `{}`", object.class()),
        Value::Array(array) => format!("Array of `{}`", array.dtype()).replace('|', "\\|"),
        other => {
            let debug = format!("{other:?}");
            let end = debug.find(|letter: char| !letter.is_alphanumeric());
            debug[..end.unwrap_or(debug.len())].to_owned()
        }
    };
    let mut also = Vec::new();
    if let Ok(batches) = value.to_record_batches() {
        let schema = batches.first().map(RecordBatch::schema);
        let fields = schema.iter().flat_map(|schema| schema.fields());
        let fields = fields.map(|field| format!("{}: {}", field.name(), field.data_type()));
        also.push(format!(
            "`RecordBatch` ({})",
            fields.collect::<Vec<_>>().join(", ")
        ));
    }
    macro_rules! convert {
        ($($type:ty),* $(,)?) => {$(
            if <$type>::try_from(value.clone()).is_ok() {
                also.push(format!("`{}`", stringify!($type).replace(" ", "").replace("chrono_04", "chrono")));
            }
        )*};
    }
    convert!(
        i64,
        f64,
        bool,
        String,
        Duration,
        bytes::Bytes,
        chrono_04::NaiveDate,
        chrono_04::NaiveTime,
        chrono_04::NaiveDateTime,
        chrono_04::DateTime<chrono_04::Utc>,
        rust_decimal::Decimal,
        uuid::Uuid,
        Vec<i64>,
        Vec<f64>,
        Vec<String>,
        Vec<Value>,
        BTreeMap<String, Value>,
        Vec<RecordBatch>,
    );
    match also.is_empty() {
        true => variant,
        false => format!("{variant}; {}", also.join(", ")),
    }
}

/// The table of `docs/src/python-types.md`. With `DASKWIRE_WRITE` in the environment, the test writes
/// it.
#[tokio::test]
async fn the_table_of_python_types_is_current() {
    let python = daskwire_testing::python_with_libraries();
    let scheduler = daskwire_testing::scheduler_in(&python, "tcp", 1);
    let client = client_at(scheduler.address()).await;
    let mut table = String::new();
    for (group, expressions) in RETURNED {
        table.push_str(&format!(
            "\n## {}{}\n\n",
            group[..1].to_uppercase(),
            &group[1..]
        ));
        table.push_str("| Python | Rust |\n| --- | --- |\n");
        for expression in *expressions {
            let future = eval(
                &client,
                &expression.replace("operator.", "__import__('operator')."),
            );
            let value = result(&future).await;
            let cell = expression.replace('|', "\\|");
            table.push_str(&format!("| `{cell}` | {} |\n", received(&value)));
        }
    }
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/src/python-types.md"
    );
    let page = std::fs::read_to_string(path).expect("the page");
    let (text, old) = page.split_once("\n## ").expect("a heading");
    let old = format!("\n## {old}");
    if std::env::var_os("DASKWIRE_WRITE").is_some() {
        std::fs::write(path, format!("{text}{table}")).expect("the page can be written");
    } else {
        assert_eq!(
            old, table,
            "run this test with DASKWIRE_WRITE=1, and read what has changed"
        );
    }
    client.close().await.expect("the scheduler is there");
    assert_eq!(scheduler.warnings(), [""; 0]);
}
