//! Dates and times as strings, and the time zones of dates.

use super::Value;
use super::object::{Kind, Object, date_time_text};

/// A time zone.
pub(super) enum Zone<'o> {
    None,
    /// Seconds east of UTC.
    Offset(i64),
    /// The name of a `zoneinfo.ZoneInfo`.
    Name(&'o str),
}

impl Object {
    /// The time zone of a `datetime.datetime` or `pandas.Timestamp`.
    pub(super) fn zone(&self) -> Option<Zone<'_>> {
        let index = match self.kind() {
            Kind::Timestamp => 2,
            _ => 7,
        };
        match self.arguments.get(index) {
            None | Some(Value::None) => Some(Zone::None),
            Some(Value::Object(zone)) => match (zone.kind(), zone.arguments()) {
                (Kind::ZoneInfo, [Value::Str(name)]) => Some(Zone::Name(name)),
                _ => zone.zone_offset().map(Zone::Offset),
            },
            Some(_) => None,
        }
    }

    /// The string form of a date, a time, a fraction or a time zone, as
    /// ISO 8601 or Python's `str()` has it; `None` for other objects.
    pub(super) fn text(&self) -> Option<String> {
        let clock = |[hour, minute, second, micro]: [i64; 4]| {
            let mut text = format!("{hour:02}:{minute:02}:{second:02}");
            if micro != 0 {
                text.push_str(&format!(".{micro:06}"));
            }
            text
        };
        Some(match self.kind() {
            Kind::Date => {
                let [year, month, day] = self.integers()?;
                format!("{year:04}-{month:02}-{day:02}")
            }
            Kind::Time => clock(self.integers()?),
            Kind::DateTime => {
                let [year, month, day, rest @ ..] = self.integers::<7>()?;
                let text = format!("{year:04}-{month:02}-{day:02}T{}", clock(rest));
                match self.zone()? {
                    Zone::None => text,
                    Zone::Offset(seconds) => format!("{text}{}", offset_text(seconds)),
                    Zone::Name(name) => format!("{text}[{name}]"),
                }
            }
            Kind::DateTime64 => date_time_text(self.nanoseconds()?),
            Kind::Timestamp => {
                let nanoseconds = self.nanoseconds()?;
                match self.zone()? {
                    Zone::None => date_time_text(nanoseconds),
                    Zone::Offset(seconds) => {
                        let local = i128::from(seconds).checked_mul(1_000_000_000)?;
                        let local = nanoseconds.checked_add(local)?;
                        format!("{}{}", date_time_text(local), offset_text(seconds))
                    }
                    Zone::Name(_) => format!("{}Z", date_time_text(nanoseconds)),
                }
            }
            Kind::Fraction => {
                let [Value::Int(numerator), Value::Int(denominator)] = self.arguments() else {
                    return None;
                };
                format!("{numerator}/{denominator}")
            }
            Kind::ZoneInfo => self.arguments().first()?.as_str()?.to_owned(),
            Kind::TimeZone => offset_text(self.zone_offset()?),
            _ => return None,
        })
    }

    /// The object as Python's `str()` formats it; `None` if it formats it as `repr()` does, or
    /// if the format is not known.
    fn python_str(&self) -> Option<String> {
        match (self.kind(), self.arguments()) {
            (Kind::Decimal | Kind::Uuid | Kind::Path, [Value::Str(string)]) => {
                Some(string.as_ref().to_owned())
            }
            (Kind::Fraction, [numerator, Value::Int(1)]) => Some(numerator.to_string()),
            (Kind::Fraction | Kind::Date | Kind::ZoneInfo, _) => self.text(),
            (Kind::Time, [_, _, _, _]) => self.text(),
            (Kind::DateTime, _) if !matches!(self.zone()?, Zone::Name(_)) => {
                Some(self.text()?.replacen('T', " ", 1))
            }
            (Kind::DateTime64, _) => self.numpy_text(),
            _ => None,
        }
    }
}

impl Value {
    /// Formats like Python's `str()`, except arrays and some classes, which are formatted like
    /// `repr()`.
    #[doc(hidden)]
    pub fn to_python_str(&self) -> String {
        let own = match self {
            Self::Str(string) => Some(string.as_ref().to_owned()),
            Self::Object(object) => object.python_str(),
            _ => None,
        };
        own.unwrap_or_else(|| self.to_string())
    }
}

/// An offset from UTC, such as `+02:00`.
fn offset_text(seconds: i64) -> String {
    let sign = if seconds < 0 { '-' } else { '+' };
    let seconds = seconds.unsigned_abs();
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match rest {
        0 => format!("{sign}{hours:02}:{minutes:02}"),
        rest => format!("{sign}{hours:02}:{minutes:02}:{rest:02}"),
    }
}
