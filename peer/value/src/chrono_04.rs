//! Dates and times of chrono 0.4.

use chrono_04::{
    DateTime, FixedOffset, NaiveDate, NaiveDateTime, NaiveTime, Offset as _, TimeDelta, TimeZone,
    Utc,
};

use super::convert::options;
use super::into_value::into_value;
use super::object::{Kind, Object, from_object};
use super::text::Zone;
use super::{Value, WrongType};

/// Converts to a `datetime.date`.
///
/// ```
/// use chrono_04::NaiveDate;
/// use daskwire_value::Value;
/// let date = NaiveDate::from_ymd_opt(2026, 11, 22).ok_or("no date")?;
/// let value = Value::from(date);
/// assert_eq!(value.to_string(), "datetime.date(2026, 11, 22)");
/// assert_eq!(NaiveDate::try_from(value)?, date);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl From<NaiveDate> for Value {
    fn from(date: NaiveDate) -> Self {
        Object::new("datetime", "date", date_parts(&date)).into()
    }
}

/// Converts to a `datetime.time`, rounded down to microseconds.
impl From<NaiveTime> for Value {
    fn from(time: NaiveTime) -> Self {
        Object::new("datetime", "time", clock(&time)).into()
    }
}

/// Converts to a `datetime.datetime` without a time zone, rounded down to
/// microseconds.
impl From<NaiveDateTime> for Value {
    fn from(time: NaiveDateTime) -> Self {
        Object::date_time(date_parts(&time), clock(&time), None).into()
    }
}

/// Converts to a `datetime.datetime` with the offset from UTC, rounded down to
/// microseconds.
impl<Tz: TimeZone> From<DateTime<Tz>> for Value {
    fn from(time: DateTime<Tz>) -> Self {
        let offset = time.offset().fix().local_minus_utc();
        let local = time.naive_local();
        Object::date_time(date_parts(&local), clock(&local), Some(offset.into())).into()
    }
}

/// Converts to a `datetime.timedelta`, rounded towards zero to microseconds.
impl From<TimeDelta> for Value {
    fn from(delta: TimeDelta) -> Self {
        let nanoseconds =
            i128::from(delta.num_seconds()) * 1_000_000_000 + i128::from(delta.subsec_nanos());
        Object::time_delta(nanoseconds / 1_000).into()
    }
}

fn date_parts(date: &impl chrono_04::Datelike) -> [i64; 3] {
    [date.year().into(), date.month().into(), date.day().into()]
}

fn clock(time: &impl chrono_04::Timelike) -> [i64; 4] {
    // A leap second is shown as more than 999,999 microseconds.
    let microsecond = (time.nanosecond() / 1_000).min(999_999);
    [
        time.hour().into(),
        time.minute().into(),
        time.second().into(),
        microsecond.into(),
    ]
}

fn small<T: TryFrom<i64>>(part: i64) -> Option<T> {
    T::try_from(part).ok()
}

fn date([year, month, day]: [i64; 3]) -> Option<NaiveDate> {
    NaiveDate::from_ymd_opt(small(year)?, small(month)?, small(day)?)
}

fn time([hour, minute, second, microsecond]: [i64; 4]) -> Option<NaiveTime> {
    NaiveTime::from_hms_micro_opt(
        small(hour)?,
        small(minute)?,
        small(second)?,
        small(microsecond)?,
    )
}

/// The local time of a `datetime.datetime`.
fn local(object: &Object) -> Option<NaiveDateTime> {
    let [year, month, day, clock @ ..] = object.integers::<7>()?;
    Some(date([year, month, day])?.and_time(time(clock)?))
}

fn naive(object: &Object) -> Option<NaiveDateTime> {
    match (object.kind(), object.zone()) {
        (Kind::DateTime, Some(Zone::None)) => local(object),
        (Kind::DateTime64 | Kind::Timestamp, Some(Zone::None)) => {
            Some(instant(object)?.naive_utc())
        }
        _ => None,
    }
}

/// The time of a `numpy.datetime64` or `pandas.Timestamp`.
fn instant(object: &Object) -> Option<DateTime<Utc>> {
    let nanoseconds = object.nanoseconds()?;
    let seconds = i64::try_from(nanoseconds.div_euclid(1_000_000_000)).ok()?;
    let rest = u32::try_from(nanoseconds.rem_euclid(1_000_000_000)).ok()?;
    DateTime::from_timestamp(seconds, rest)
}

fn utc(object: &Object) -> Option<DateTime<Utc>> {
    match (object.kind(), object.zone()?) {
        (Kind::Timestamp, Zone::Offset(_) | Zone::Name(_)) => instant(object),
        _ => Some(fixed(object)?.to_utc()),
    }
}

fn fixed(object: &Object) -> Option<DateTime<FixedOffset>> {
    let offset = match object.zone()? {
        Zone::Offset(seconds) => small(seconds)?,
        Zone::Name("UTC") => 0,
        _ => return None,
    };
    let offset = FixedOffset::east_opt(offset)?;
    match object.kind() {
        Kind::DateTime => offset.from_local_datetime(&local(object)?).single(),
        Kind::Timestamp => Some(instant(object)?.with_timezone(&offset)),
        _ => None,
    }
}

from_object! {
    /// Converts a `datetime.date`.
    NaiveDate: "a datetime.date", |object| match object.kind() {
        Kind::Date => date(object.integers()?),
        _ => None,
    };
    /// Converts a `datetime.time` without a time zone.
    NaiveTime: "a datetime.time without a time zone", |object| {
        match (object.kind(), object.arguments().get(4)) {
            (Kind::Time, None | Some(Value::None)) => time(object.integers()?),
            _ => None,
        }
    };
    /// Converts a `datetime.datetime` or `pandas.Timestamp` without a time zone, or
    /// a `numpy.datetime64`.
    NaiveDateTime: "a datetime.datetime without a time zone", naive;
    /// Converts a `datetime.datetime` or `pandas.Timestamp` with an offset from UTC.
    DateTime<FixedOffset>: "a datetime.datetime with an offset from UTC", fixed;
    /// Converts a `datetime.datetime` with an offset from UTC, or a
    /// `pandas.Timestamp` with a time zone.
    DateTime<Utc>: "a datetime.datetime with an offset from UTC", utc;
    /// Converts a `datetime.timedelta`, `numpy.timedelta64` or `pandas.Timedelta`.
    TimeDelta: "a datetime.timedelta", |object| {
        let nanoseconds = object.duration()?;
        let seconds = i64::try_from(nanoseconds.div_euclid(1_000_000_000)).ok()?;
        let rest = u32::try_from(nanoseconds.rem_euclid(1_000_000_000)).ok()?;
        Self::new(seconds, rest)
    };
}

options! {
    {} NaiveDate, NaiveTime, NaiveDateTime, DateTime<FixedOffset>, DateTime<Utc>, TimeDelta;
}
into_value! {
    {} NaiveDate, NaiveTime, NaiveDateTime, TimeDelta;
    {Tz: TimeZone} DateTime<Tz>;
}
