//! Tests of conversions between values and types of other crates, with a real worker.

#[path = "../../tests/it/support/client.rs"]
mod client;
#[path = "../examples/matrices.rs"]
#[allow(dead_code, reason = "its main is that of the example")]
mod matrices;

use core::time::Duration;

use client::client_at;
use daskwire_peer::value::{IntoValue, Serde};
use daskwire_peer::worker::{Functions, Worker};
use daskwire_peer::{Client, Value};

/// Timeout of a single step; the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(120);

async fn called(client: &Client, function: &str, argument: Value) -> Value {
    let future = client.submit(function, [argument]).expect("submitted");
    let result = future.result_within(TIMEOUT).await;
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Checks that a Rust value equals the result of the expression in Python, and that both
/// are converted back to the Rust value.
async fn same<T>(client: &Client, value: T, expression: &str)
where
    T: Clone + core::fmt::Debug + PartialEq + TryFrom<Value, Error: core::fmt::Debug>,
    Value: From<T>,
{
    let made = called(client, "builtins.eval", expression.into()).await;
    assert_eq!(
        T::try_from(made).expect("of this type"),
        value,
        "{expression}"
    );
    let back = called(client, "copy.copy", Value::from(value.clone())).await;
    assert_eq!(T::try_from(back).expect("of this type"), value);
    let shown = called(client, "builtins.repr", Value::from(value)).await;
    let shown_there = format!("repr({expression})");
    let expected = called(client, "builtins.eval", shown_there.as_str().into()).await;
    assert_eq!(shown, expected);
}

/// A time with nanoseconds and a time zone.
const TIMESTAMP: &str = "__import__('pandas').Timestamp('2026-11-22T01:02:03.000000004', \
                         tz='Europe/Berlin')";

#[tokio::test]
async fn dates_and_times_of_chrono() {
    use chrono_04::{DateTime, FixedOffset, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Utc};
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;
    let date = NaiveDate::from_ymd_opt(2026, 2, 28).expect("a date");
    same(&client, date, "__import__('datetime').date(2026, 2, 28)").await;
    let time = NaiveTime::from_hms_micro_opt(1, 2, 3, 4).expect("a time");
    same(&client, time, "__import__('datetime').time(1, 2, 3, 4)").await;
    let both: NaiveDateTime = date.and_time(time);
    same(
        &client,
        both,
        "__import__('datetime').datetime(2026, 2, 28, 1, 2, 3, 4)",
    )
    .await;
    let utc: DateTime<Utc> = both.and_utc();
    let expression = "__import__('datetime').datetime(2026, 2, 28, 1, 2, 3, 4, \
                      __import__('datetime').timezone.utc)";
    same(&client, utc, expression).await;
    let offset = FixedOffset::west_opt(3_600).expect("an offset");
    let expression = "__import__('datetime').datetime(2026, 2, 28, 0, 2, 3, 4, \
                      __import__('datetime').timezone(__import__('datetime').timedelta(hours=-1)))";
    same(&client, utc.with_timezone(&offset), expression).await;
    let delta = TimeDelta::milliseconds(-90_061_001);
    same(
        &client,
        delta,
        "__import__('datetime').timedelta(milliseconds=-90061001)",
    )
    .await;
    same(
        &client,
        Some(date),
        "__import__('datetime').date(2026, 2, 28)",
    )
    .await;
    let numpy = "__import__('numpy').datetime64('1969-12-31T23:59:59.5')";
    let numpy = called(&client, "builtins.eval", numpy.into()).await;
    let half = NaiveDate::from_ymd_opt(1969, 12, 31)
        .and_then(|date| date.and_hms_milli_opt(23, 59, 59, 500));
    assert_eq!(NaiveDateTime::try_from(numpy).ok(), half);
    let pandas = called(&client, "builtins.eval", TIMESTAMP.into()).await;
    let expected = "2026-11-22T00:02:03.000000004Z".parse::<DateTime<Utc>>();
    assert_eq!(
        DateTime::<Utc>::try_from(pandas.clone()).ok(),
        expected.ok()
    );
    NaiveDateTime::try_from(pandas).expect_err("it has a time zone");
    let difference = "__import__('pandas').Timedelta(-5, 'ns')";
    let difference = called(&client, "builtins.eval", difference.into()).await;
    assert_eq!(
        TimeDelta::try_from(difference),
        Ok(TimeDelta::nanoseconds(-5))
    );
    let error = NaiveDate::try_from(Value::from(utc)).expect_err("a time is no date");
    assert_eq!(
        error.to_string(),
        "expected a datetime.date, found datetime.datetime"
    );
}

#[tokio::test]
async fn dates_and_times_of_jiff() {
    use jiff_02::civil::{date, time};
    use jiff_02::{SignedDuration, Timestamp, Zoned};
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;
    let day = date(2026, 2, 28);
    same(&client, day, "__import__('datetime').date(2026, 2, 28)").await;
    let clock = time(1, 2, 3, 4_000);
    same(&client, clock, "__import__('datetime').time(1, 2, 3, 4)").await;
    let both = day.to_datetime(clock);
    same(
        &client,
        both,
        "__import__('datetime').datetime(2026, 2, 28, 1, 2, 3, 4)",
    )
    .await;
    let timestamp: Timestamp = "2026-02-28T01:02:03.000004Z".parse().expect("a timestamp");
    let expression = "__import__('datetime').datetime(2026, 2, 28, 1, 2, 3, 4, \
                      __import__('datetime').timezone.utc)";
    same(&client, timestamp, expression).await;
    same(
        &client,
        SignedDuration::from_micros(-5),
        "__import__('datetime').timedelta(microseconds=-5)",
    )
    .await;
    let pandas = called(&client, "builtins.eval", TIMESTAMP.into()).await;
    let zoned = Zoned::try_from(pandas).expect("a time");
    assert_eq!(
        zoned.to_string(),
        "2026-11-22T01:02:03.000000004+01:00[Europe/Berlin]"
    );
    // Both times of the hour that occurs twice.
    for (fold, offset) in [(0, "+02"), (1, "+01")] {
        let zoned = format!("2026-10-25T02:30:00{offset}[Europe/Berlin]");
        let zoned: Zoned = zoned.parse().expect("a time");
        let expression = format!(
            "__import__('datetime').datetime(2026, 10, 25, 2, 30, fold={fold}, \
             tzinfo=__import__('zoneinfo').ZoneInfo('Europe/Berlin'))"
        );
        same(&client, zoned, &expression).await;
    }
}

#[tokio::test]
async fn decimal_numbers_and_uuids() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;
    let price = rust_decimal::Decimal::new(-12_345_678_901_234_567, 5);
    same(
        &client,
        price,
        "__import__('decimal').Decimal('-123456789012.34567')",
    )
    .await;
    let decimal = |text: &str| {
        let value = daskwire_peer::value::Object::new("decimal", "Decimal", [text]);
        rust_decimal::Decimal::try_from(Value::from(value))
    };
    assert_eq!(decimal("1.5E+3"), Ok(rust_decimal::Decimal::from(1500)));
    for refused in [
        "NaN",
        "Infinity",
        "1E+40",
        "1.23456789012345678901234567890123",
    ] {
        decimal(refused).expect_err("it does not fit");
    }
    let id = uuid::Uuid::from_u128(u128::MAX - 5);
    same(&client, id, "__import__('uuid').UUID(int=2**128 - 6)").await;
}

/// `half::f16`, by way of arrow.
type Half = <arrow_array::types::Float16Type as arrow_array::ArrowPrimitiveType>::Native;

#[tokio::test]
async fn arrays_of_ndarray() {
    use ndarray_017::{Array1, Array2, ArrayD, array};
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;
    let matrix = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
    // The values of elements do not depend on the order of the axes in memory.
    for matrix in [matrix.clone(), matrix.reversed_axes()] {
        let value = Value::try_from(matrix.clone()).expect("two dimensions");
        let doubled = called(&client, "numpy.positive", value).await;
        assert_eq!(
            Array2::<f64>::try_from(doubled.clone()).as_ref(),
            Ok(&matrix)
        );
        assert_eq!(
            ArrayD::<f64>::try_from(doubled.clone()),
            Ok(matrix.into_dyn())
        );
        let error = Array1::<f64>::try_from(doubled.clone()).expect_err("two dimensions");
        assert_eq!(
            error.to_string(),
            "expected an array of 1 dimensions, found array of 2 dimensions"
        );
        let error = Array2::<i8>::try_from(doubled).expect_err("floats");
        assert_eq!(
            error.to_string(),
            "expected an array of |i1, found array of <f8"
        );
    }
    let repeated = "__import__('numpy').broadcast_to(__import__('numpy').int8(1), (1 << 40,))";
    let repeated = called(&client, "builtins.eval", repeated.into()).await;
    let error = Array1::<i8>::try_from(repeated).expect_err("a terabyte");
    assert_eq!(
        error.to_string(),
        "expected an array, found array that repeats few elements"
    );
    macro_rules! types {
        ($($type:ty: $name:literal, $values:expr;)*) => {$({
            let values: Array1<$type> = array![$values[0], $values[1]];
            let value = Value::try_from(values.clone()).expect("one dimension");
            let list = called(&client, "numpy.asarray", value.clone()).await;
            let Value::Array(array) = &list else { panic!("an array") };
            assert_eq!(array.dtype().to_string().get(1..), Some($name));
            let back = called(&client, "numpy.copy", value).await;
            assert_eq!(Array1::<$type>::try_from(back), Ok(values), $name);
        })*};
    }
    types! {
        bool: "b1", [true, false];
        i8: "i1", [i8::MIN, 1];
        i16: "i2", [i16::MIN, 1];
        i32: "i4", [i32::MIN, 1];
        i64: "i8", [i64::MIN, 1];
        u8: "u1", [u8::MAX, 1];
        u16: "u2", [u16::MAX, 1];
        u32: "u4", [u32::MAX, 1];
        u64: "u8", [u64::MAX, 1];
        f32: "f4", [f32::MIN, 1.5];
        f64: "f8", [f64::MIN, 1.5];
        Half: "f2", [Half::MIN, Half::ONE];
        [f32; 2]: "c8", [[1.5, -2.0], [0.0, f32::MAX]];
        [f64; 2]: "c16", [[1.5, -2.0], [0.0, f64::MAX]];
    }
}

/// Arrays of numpy's times, and single times, in each unit, with missing values.
#[tokio::test]
async fn times_of_numpy() {
    use daskwire_peer::value::{Datetime64, Timedelta64, unit};
    use ndarray_017::{Array1, array};
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;
    macro_rules! units {
        ($type:ident $name:literal, $($unit:ident $short:literal;)*) => {$({
            type Time = $type<unit::$unit>;
            let dtype = concat!($name, "64[", $short, "]");
            let numpy = format!(
                "__import__('numpy').array([-3, 'NaT', 2**40], '{dtype}')"
            );
            let made = called(&client, "builtins.eval", numpy.as_str().into()).await;
            let times = array![Time::new(-3), Time::NAT, Time::new(1 << 40)];
            assert_eq!(Array1::<Time>::try_from(made), Ok(times.clone()), "{dtype}");
            // numpy's own view of the array that is sent.
            let value = Value::try_from(times).expect("one dimension");
            let given = called(&client, "numpy.array_repr", value).await;
            let expected = format!("__import__('numpy').array_repr({numpy})");
            let expected = called(&client, "builtins.eval", expected.as_str().into()).await;
            assert_eq!(given, expected, "{dtype}");
            for (time, number) in [(Time::new(-3), "-3"), (Time::NAT, "'NaT'")] {
                let numpy = format!("__import__('numpy').{}64({number}, '{}')", $name, $short);
                same(&client, time, &numpy).await;
            }
        })*};
    }
    units! {
        Datetime64 "datetime",
        Week "W"; Day "D"; Hour "h"; Minute "m"; Second "s"; Millisecond "ms"; Microsecond "us";
        Nanosecond "ns"; Picosecond "ps"; Femtosecond "fs"; Attosecond "as";
    }
    units! {
        Timedelta64 "timedelta",
        Year "Y"; Month "M"; Week "W"; Day "D"; Hour "h"; Minute "m"; Second "s";
        Millisecond "ms"; Microsecond "us"; Nanosecond "ns"; Picosecond "ps"; Femtosecond "fs";
        Attosecond "as";
    }
    let years = "__import__('numpy').array(['1969', 'NaT'], 'M8[Y]')";
    let years = called(&client, "builtins.eval", years.into()).await;
    let expected = array![Datetime64::<unit::Year>::new(-1), Datetime64::NAT];
    assert_eq!(Array1::try_from(years.clone()), Ok(expected));
    let error = Array1::<Datetime64<unit::Day>>::try_from(years).expect_err("years");
    assert_eq!(
        error.to_string(),
        "expected an array of <M8[D], found array of <M8[Y]"
    );
    let error = Datetime64::<unit::Day>::try_from(Value::from(1)).expect_err("a number");
    assert_eq!(error.to_string(), "expected numpy.datetime64[D], found int");
    let hours = Value::from(Timedelta64::<unit::Hour>::new(1));
    let error = Timedelta64::<unit::Day>::try_from(hours).expect_err("hours");
    assert_eq!(
        error.to_string(),
        "expected numpy.timedelta64[D], found numpy.timedelta64(1, \"h\")"
    );
}

#[tokio::test]
async fn complex_numbers_and_floats_of_16_bits() {
    use num_complex_04::Complex;
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;
    same(&client, Complex::new(1.5_f64, -2.0), "complex(1.5, -2.0)").await;
    same(&client, Some(Complex::new(0.5_f32, 0.0)), "complex(0.5)").await;
    same(&client, Half::from_f32(-1.5), "-1.5").await;
    for (numpy, expected) in [
        ("complex64(1 - 2j)", Complex::new(1.0, -2.0)),
        ("complex128(1j)", Complex::new(0.0, 1.0)),
        ("float32(2.5)", Complex::new(2.5, 0.0)),
        ("int8(-3)", Complex::new(-3.0, 0.0)),
    ] {
        let numpy = format!("__import__('numpy').{numpy}");
        let number = called(&client, "builtins.eval", numpy.as_str().into()).await;
        assert_eq!(Complex::<f64>::try_from(number), Ok(expected), "{numpy}");
    }
    let smallest = "__import__('numpy').finfo('float16').smallest_subnormal";
    let smallest = called(&client, "builtins.eval", smallest.into()).await;
    assert_eq!(Half::try_from(smallest), Ok(Half::from_bits(1)));
    let error = Half::try_from(Value::from("1")).expect_err("a string");
    assert_eq!(error.to_string(), "expected f16, found str");
    let error = Complex::<f32>::try_from(Value::from("1")).expect_err("a string");
    assert_eq!(error.to_string(), "expected a complex number, found str");
}

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Point {
    name: String,
    position: (f64, f64),
}

/// Each type of each feature is the argument and the result of a function.
#[tokio::test]
async fn functions_of_a_worker_take_and_return_the_types() {
    use std::collections::{BTreeMap, HashMap};

    use arrow_array::RecordBatch;
    use chrono_04::{DateTime, FixedOffset, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Utc};
    use daskwire_peer::value::{Datetime64, Timedelta64, unit};
    use jiff_02::civil::{Date, DateTime as CivilDateTime, Time};
    use jiff_02::{SignedDuration, Timestamp, Zoned};
    use ndarray_017::{Array1, Array2, ArrayD, Axis, IxDyn, array};
    use num_complex_04::Complex;

    let python = daskwire_testing::python_with_libraries();
    let scheduler = daskwire_testing::scheduler_in(&python, "tcp", 0);
    let client = client_at(scheduler.address()).await;
    let mut functions = Functions::new();
    let mut checks = Vec::new();
    macro_rules! types {
        ($($type:ty: $value:expr;)*) => {$(
            let name = stringify!($type);
            functions = functions.function(name, |value: $type| value);
            let result = |value: $type| Ok::<_, std::num::ParseIntError>(value);
            functions = functions.function(concat!("Result of ", stringify!($type)), result);
            let argument: Value = Value::try_from($value).expect("it converts");
            let is_same = |value: Value| <$type>::try_from(value).is_ok_and(|it| it == $value);
            checks.push((name, argument, is_same as fn(Value) -> bool));
        )*};
    }
    types! {
        NaiveDate: NaiveDate::from_ymd_opt(2026, 2, 28).expect("a date");
        NaiveTime: NaiveTime::from_hms_micro_opt(1, 2, 3, 4).expect("a time");
        NaiveDateTime: DateTime::UNIX_EPOCH.naive_utc();
        DateTime<Utc>: DateTime::UNIX_EPOCH;
        DateTime<FixedOffset>: DateTime::UNIX_EPOCH.fixed_offset();
        TimeDelta: TimeDelta::milliseconds(-90_061_001);
        Date: Date::constant(2026, 2, 28);
        Time: Time::constant(1, 2, 3, 4_000);
        CivilDateTime: CivilDateTime::constant(2026, 2, 28, 1, 2, 3, 4_000);
        Timestamp: Timestamp::UNIX_EPOCH;
        Zoned: Timestamp::UNIX_EPOCH.in_tz("Europe/Berlin").expect("a time zone");
        SignedDuration: SignedDuration::from_micros(-5);
        rust_decimal::Decimal: rust_decimal::Decimal::new(-12_345, 2);
        uuid::Uuid: uuid::Uuid::from_u128(5);
        Complex<f32>: Complex::new(1.5_f32, -2.0);
        Complex<f64>: Complex::new(0.1, 1e300);
        Half: Half::from_f32(0.5);
        Option<Half>: Some(Half::from_f32(0.5));
        Vec<Complex<f64>>: vec![Complex::new(0.1, 1e300)];
        Array1<bool>: array![true, false];
        Array1<Half>: array![Half::ONE, Half::MIN];
        Array2<Complex<f32>>: array![[Complex::new(1.5_f32, -2.0)]];
        ArrayD<f64>: array![[1.0, 2.0], [3.0, 4.0]].reversed_axes().into_dyn();
        Array1<Datetime64<unit::Nanosecond>>: array![Datetime64::<unit::Nanosecond>::new(5), Datetime64::NAT];
        Timedelta64<unit::Second>: Timedelta64::<unit::Second>::new(60);
        Option<Timedelta64<unit::Second>>: Some(Timedelta64::<unit::Second>::new(60));
        RecordBatch: record_batch();
    }
    // Parts that may fail to convert, in options, sequences, maps and tuples.
    macro_rules! containers {
        ($($type:ty: $value:expr;)*) => {$(
            let name = stringify!($type);
            functions = functions.function(name, |value: $type| value);
            let result = |value: $type| Ok::<_, std::num::ParseIntError>(value);
            functions = functions.function(concat!("Result of ", stringify!($type)), result);
            let argument = $value.into_value().expect("it converts");
            let is_same = |value: Value| <$type>::try_from(value).is_ok_and(|it| it == $value);
            checks.push((name, argument, is_same as fn(Value) -> bool));
        )*};
    }
    let nothing: fn() -> Option<Array1<f64>> = || None;
    functions = functions.function("no array", nothing);
    containers! {
        Option<Array1<f64>>: Some(array![0.5, 1.5]);
        Vec<Array1<i32>>: vec![array![1, 2], array![3]];
        [ArrayD<f64>; 1]: [array![[1.0, 2.0], [3.0, 4.0]].reversed_axes().into_dyn()];
        (Array2<f64>, String, Option<Array1<bool>>): (array![[1.0]], "b".to_owned(), None::<Array1<bool>>);
        BTreeMap<String, Vec<Array1<u8>>>: BTreeMap::from([("a".to_owned(), vec![array![1_u8]])]);
        HashMap<i64, (f64, Array1<f32>)>: HashMap::from([(1, (0.5, array![0.5_f32])), (-1, (2.5, array![]))]);
        Option<RecordBatch>: Some(record_batch());
        Vec<RecordBatch>: vec![record_batch(), record_batch()];
        (RecordBatch, Array1<i64>): (record_batch(), array![1_i64]);
    }
    functions = functions
        .function(
            "column",
            |batch: RecordBatch| -> Result<RecordBatch, String> {
                batch.project(&[1]).map_err(|error| error.to_string())
            },
        )
        .function("sums", |array: Array2<f64>| array.sum_axis(Axis(0)))
        .function("too many dimensions", || {
            ArrayD::<f64>::zeros(IxDyn(&[1; 65]))
        })
        .function("too many dimensions in a list", || {
            vec![(1, Some(ArrayD::<f64>::zeros(IxDyn(&[1; 65]))))]
        })
        .function("points", |Serde(point): Serde<Point>| {
            (vec![Serde(point.clone())], Some(Serde(point)))
        })
        .function("tables", |tables: Vec<RecordBatch>| tables.len())
        .function("mirrored", |Serde(point): Serde<Point>| {
            let position = (-point.position.0, point.position.1);
            Serde(Point { position, ..point })
        })
        .function("no key", || {
            Serde(BTreeMap::from([(Some(1_i32), Refusing)]))
        });
    let address = scheduler.address().parse().expect("an address");
    let worker = Worker::builder(address).functions(functions).start().await;
    let _worker = worker.expect("it starts");

    for (name, argument, is_same) in checks {
        for function in [format!("native:{name}"), format!("native:Result of {name}")] {
            let result = of_scattered(&client, &function, argument.clone()).await;
            let result = result.unwrap_or_else(|error| panic!("{function}: {error}"));
            assert!(is_same(result.clone()), "{function}: {result}");
            // The scheduler opens arguments that are not scattered, and writes a table in
            // a form that only pyarrow reads.
            if !name.contains("RecordBatch") {
                let result = called(&client, &function, argument.clone()).await;
                assert!(is_same(result.clone()), "{function}: {result}");
            }
        }
    }
    let batch = Value::try_from(record_batch()).expect("a table");
    let column = of_scattered(&client, "native:column", batch.clone()).await;
    let column = column.unwrap_or_else(|error| panic!("{error}"));
    let column = RecordBatch::try_from(column).expect("a table");
    assert_eq!(Ok(column), record_batch().project(&[1]).map_err(|_| ()));
    // Python scatters a table in the same way, and gets one back.
    let code = format!(
        "import operator, pyarrow\nfrom distributed import Client\n\
         client = Client('{}')\n\
         table = client.scatter(pyarrow.table({{'n': [1, None], 'name': ['a', 'b']}}))\n\
         column = client.submit(operator.methodcaller('native:column'), table).result()\n\
         assert column.to_pydict() == {{'name': ['a', 'b']}}, column\n",
        scheduler.address()
    );
    let running = tokio::task::spawn_blocking(move || {
        let mut python = std::process::Command::new(python);
        python
            .args(["-c", &code])
            .output()
            .expect("there is Python")
    });
    let ran = running.await.expect("no panic");
    let error = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{error}");
    let matrix = Value::try_from(array![[1.0, 2.0], [3.0, 4.0]]).expect("two dimensions");
    let sums = called(&client, "native:sums", matrix.clone()).await;
    assert_eq!(Array1::<f64>::try_from(sums), Ok(array![4.0, 6.0]));
    let point = Point {
        name: "here".to_owned(),
        position: (1.0, 2.0),
    };
    let argument = Value::from_serialize(&point).expect("it converts");
    let mirrored = called(&client, "native:mirrored", argument).await;
    let Serde(mirrored) = Serde::<Point>::try_from(mirrored).expect("a point");
    assert_eq!(mirrored.position, (-1.0, 2.0));
    let argument = Value::from_serialize(&point).expect("it converts");
    let points = called(&client, "native:points", argument.clone()).await;
    assert_eq!(
        points,
        Value::tuple([Value::list([argument.clone()]), argument])
    );
    let nothing = client.submit("native:no array", ()).expect("submitted");
    let nothing = nothing.result_within(TIMEOUT).await;
    assert_eq!(nothing.expect("no error"), Value::None);

    // An argument or a result that does not convert fails the task.
    for (function, argument, reason) in [
        ("sums", Some(batch), "expected an array"),
        (
            "column",
            Some(matrix),
            "expected a table or data frame, found",
        ),
        ("too many dimensions", None, "dimensions"),
        ("too many dimensions in a list", None, "dimensions"),
        (
            "tables",
            Some(Value::list([1])),
            "expected a table or data frame, found int at [0]",
        ),
        ("no key", None, "refused"),
    ] {
        let function = format!("native:{function}");
        let failed = match argument {
            Some(argument) => of_scattered(&client, &function, argument).await,
            None => {
                let future = client.submit(&*function, ()).expect("submitted");
                future.result_within(TIMEOUT).await
            }
        };
        let failed = failed.expect_err("it does not convert").to_string();
        assert!(failed.contains(reason), "{function}: {failed}");
    }
}

#[tokio::test]
async fn the_example_with_ndarray_works_with_a_real_cluster() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    run_example(scheduler.address()).await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn the_example_with_ndarray_works_with_a_local_cluster() {
    let python = daskwire_testing::python(daskwire_testing::Environment::Current);
    let cluster = daskwire_peer::cluster::LocalCluster::builder().python(python);
    let cluster = cluster.start().await.expect("it starts");
    run_example(&cluster.address().to_string()).await;
    cluster.close().await;
}

async fn run_example(scheduler: &str) {
    let solution = matrices::run(scheduler).await.expect("it works");
    assert!((solution[0] - 1.0 / 11.0).abs() < 1e-12, "{solution}");
    assert!((solution[1] - 7.0 / 11.0).abs() < 1e-12, "{solution}");
}

/// The partitions of a data frame of Dask are tables for a function in Rust, and the tables that it
/// returns are ones of pyarrow.
#[tokio::test]
async fn functions_of_a_worker_take_the_partitions_of_a_data_frame() {
    use std::sync::Arc;

    use arrow_array::types::Float64Type;
    use arrow_array::{ArrayRef, Float64Array, RecordBatch};
    use daskwire_peer::worker::Signature;

    type Result<T> = std::result::Result<T, Box<dyn core::error::Error + Send + Sync>>;

    /// A data frame of the column `x`, multiplied.
    fn scaled(table: RecordBatch, by: f64) -> Result<Value> {
        let x = table.column_by_name("x").ok_or("no column x")?;
        let x = x.as_any().downcast_ref::<Float64Array>();
        let x = x.ok_or("the column x has no floats")?;
        let x = x.unary::<_, Float64Type>(|x| x * by);
        let columns: [(&str, ArrayRef); 1] = [("x", Arc::new(x))];
        Ok(Value::data_frame(&[RecordBatch::try_from_iter(columns)?])?)
    }

    let python = daskwire_testing::python_with_libraries();
    // A worker in Python, which makes the partitions.
    let scheduler = daskwire_testing::scheduler_in(&python, "tcp", 1);
    let signature = Signature::new("scaled")
        .required("table")
        .optional("by", 2.0);
    let functions = Functions::new()
        .function(signature, scaled)
        .function("rows", |table: RecordBatch| table.num_rows());
    let address = scheduler.address().parse().expect("an address");
    let worker = Worker::builder(address).functions(functions).start().await;
    let _worker = worker.expect("it starts");
    let code = format!(
        "ADDRESS = {:?}\n{}",
        scheduler.address(),
        include_str!("partitions.py")
    );
    let running = tokio::task::spawn_blocking(move || {
        let mut python = std::process::Command::new(python);
        python
            .args(["-c", &code])
            .output()
            .expect("there is Python")
    });
    let ran = running.await.expect("no panic");
    let error = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{error}");
}

/// The result of a function for an argument that is scattered first.
async fn of_scattered(
    client: &Client,
    function: &str,
    argument: Value,
) -> Result<Value, daskwire_peer::client::TaskError> {
    let scattered = client.scatter([argument]).await.expect("stored");
    let future = client.submit(function, &scattered[..]).expect("submitted");
    future.result_within(TIMEOUT).await
}

/// A value that cannot be serialized.
struct Refusing;

impl serde::Serialize for Refusing {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("refused"))
    }
}

fn record_batch() -> arrow_array::RecordBatch {
    let numbers = arrow_array::Int64Array::from(vec![Some(1), None]);
    let names = arrow_array::StringArray::from(vec!["a", "b"]);
    let columns: [(&str, arrow_array::ArrayRef); 2] = [
        ("n", std::sync::Arc::new(numbers)),
        ("name", std::sync::Arc::new(names)),
    ];
    arrow_array::RecordBatch::try_from_iter(columns).expect("as long")
}
