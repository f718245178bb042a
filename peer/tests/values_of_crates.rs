//! Tests of conversions between values and types of other crates, with a real worker.

#[path = "support/client.rs"]
mod client;

use core::time::Duration;

use client::client_at;
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
