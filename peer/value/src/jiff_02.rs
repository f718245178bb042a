//! Dates and times of jiff 0.2.

use jiff_02::civil::{Date, DateTime, Time};
use jiff_02::tz::{Offset, TimeZone};
use jiff_02::{SignedDuration, Timestamp, Zoned};

use super::convert::options;
use super::into_value::into_value;
use super::object::{Kind, Object, from_object};
use super::text::Zone;
use super::{Value, WrongType};

/// Converts to a `datetime.date`.
///
/// ```
/// use daskwire_value::Value;
/// use jiff_02::civil::{Date, date};
/// let value = Value::from(date(2026, 11, 22));
/// assert_eq!(value.to_string(), "datetime.date(2026, 11, 22)");
/// assert_eq!(Date::try_from(value)?, date(2026, 11, 22));
/// # Ok::<(), daskwire_value::WrongType>(())
/// ```
impl From<Date> for Value {
    fn from(date: Date) -> Self {
        Object::new("datetime", "date", date_parts(date)).into()
    }
}

/// Converts to a `datetime.time`, rounded down to microseconds.
impl From<Time> for Value {
    fn from(time: Time) -> Self {
        Object::new("datetime", "time", clock(time)).into()
    }
}

/// Converts to a `datetime.datetime` without a time zone, rounded down to
/// microseconds.
impl From<DateTime> for Value {
    fn from(time: DateTime) -> Self {
        Object::date_time(date_parts(time.date()), clock(time.time()), None).into()
    }
}

/// Converts to a `datetime.datetime` in UTC, rounded down to microseconds.
impl From<Timestamp> for Value {
    fn from(timestamp: Timestamp) -> Self {
        let time = Offset::UTC.to_datetime(timestamp);
        Object::date_time(date_parts(time.date()), clock(time.time()), Some(0)).into()
    }
}

/// Converts to a `datetime.datetime` with a `zoneinfo.ZoneInfo`, or with an
/// offset if the time zone has no name; rounded down to microseconds.
impl From<Zoned> for Value {
    fn from(time: Zoned) -> Self {
        let (date, clock) = (date_parts(time.date()), clock(time.time()));
        let Some(name) = time.time_zone().iana_name() else {
            let offset = time.offset().seconds();
            return Object::date_time(date, clock, Some(offset.into())).into();
        };
        // Whether this is the second of two equal local times, which has fold 1.
        let ambiguous = time.time_zone().to_ambiguous_zoned(time.datetime());
        let is_second =
            ambiguous.is_ambiguous() && ambiguous.later().is_ok_and(|later| later == time);
        let zone = Object::new("zoneinfo", "ZoneInfo", [name]);
        let mut parts: Vec<Self> = date.into_iter().chain(clock).map(Into::into).collect();
        parts.push(zone.into());
        if is_second {
            parts.push(Self::from(1));
        }
        Object::new("datetime", "datetime", parts).into()
    }
}

/// Converts to a `datetime.timedelta`, rounded towards zero to microseconds.
impl From<SignedDuration> for Value {
    fn from(duration: SignedDuration) -> Self {
        Object::time_delta(duration.as_micros()).into()
    }
}

fn date_parts(date: Date) -> [i64; 3] {
    [date.year().into(), date.month().into(), date.day().into()]
}

fn clock(time: Time) -> [i64; 4] {
    let microsecond = time.subsec_nanosecond() / 1_000;
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

fn date([year, month, day]: [i64; 3]) -> Option<Date> {
    Date::new(small(year)?, small(month)?, small(day)?).ok()
}

fn time([hour, minute, second, microsecond]: [i64; 4]) -> Option<Time> {
    let nanosecond = microsecond.checked_mul(1_000)?;
    Time::new(
        small(hour)?,
        small(minute)?,
        small(second)?,
        small(nanosecond)?,
    )
    .ok()
}

/// The local time of a `datetime.datetime`.
fn local(object: &Object) -> Option<DateTime> {
    let [year, month, day, clock @ ..] = object.integers::<7>()?;
    Some(DateTime::from_parts(
        date([year, month, day])?,
        time(clock)?,
    ))
}

fn timestamp(nanoseconds: i128) -> Option<Timestamp> {
    Timestamp::from_nanosecond(nanoseconds).ok()
}

fn naive(object: &Object) -> Option<DateTime> {
    match (object.kind(), object.zone()) {
        (Kind::DateTime, Some(Zone::None)) => local(object),
        (Kind::DateTime64 | Kind::Timestamp, Some(Zone::None)) => {
            Some(Offset::UTC.to_datetime(timestamp(object.nanoseconds()?)?))
        }
        _ => None,
    }
}

fn zoned(object: &Object) -> Option<Zoned> {
    let zone = match object.zone()? {
        Zone::Offset(seconds) => TimeZone::fixed(Offset::from_seconds(small(seconds)?).ok()?),
        Zone::Name("UTC") => TimeZone::UTC,
        Zone::Name(name) => TimeZone::get(name).ok()?,
        Zone::None => return None,
    };
    match object.kind() {
        Kind::Timestamp => return Some(timestamp(object.nanoseconds()?)?.to_zoned(zone)),
        Kind::DateTime => {}
        _ => return None,
    }
    let ambiguous = zone.to_ambiguous_zoned(local(object)?);
    match object.arguments().get(8) {
        Some(Value::Int(1)) => ambiguous.later().ok(),
        _ => ambiguous.compatible().ok(),
    }
}

from_object! {
    /// Converts a `datetime.date`.
    Date: "a datetime.date", |object| match object.kind() {
        Kind::Date => date(object.integers()?),
        _ => None,
    };
    /// Converts a `datetime.time` without a time zone.
    Time: "a datetime.time without a time zone", |object| {
        match (object.kind(), object.arguments().get(4)) {
            (Kind::Time, None | Some(Value::None)) => time(object.integers()?),
            _ => None,
        }
    };
    /// Converts a `datetime.datetime` or `pandas.Timestamp` without a time zone, or
    /// a `numpy.datetime64`.
    DateTime: "a datetime.datetime without a time zone", naive;
    /// Converts a `datetime.datetime` or `pandas.Timestamp` with a time zone.
    Timestamp: "a datetime.datetime with a time zone", |object| {
        Some(zoned(object)?.timestamp())
    };
    /// Converts a `datetime.datetime` or `pandas.Timestamp` with a time zone: an
    /// offset from UTC, or one that the time zone database of the machine has.
    Zoned: "a datetime.datetime with a known time zone", zoned;
    /// Converts a `datetime.timedelta`, `numpy.timedelta64` or `pandas.Timedelta`.
    SignedDuration: "a datetime.timedelta", |object| {
        let nanoseconds = object.duration()?;
        let seconds = i64::try_from(nanoseconds / 1_000_000_000).ok()?;
        let rest = i32::try_from(nanoseconds % 1_000_000_000).ok()?;
        Some(Self::new(seconds, rest))
    };
}

options! { {} Date, Time, DateTime, Timestamp, Zoned, SignedDuration; }
into_value! { {} Date, Time, DateTime, Timestamp, Zoned, SignedDuration; }
