//! Durations in messages.

use core::time::Duration;

use daskwire_messages::Value;

/// Parses a duration in seconds as Dask does: a number, or a string such as `5s` or `200 ms`. `None`
/// for others.
pub(crate) fn seconds(duration: &Value) -> Option<f64> {
    let Value::Str(text) = duration else {
        return f64::try_from(duration.clone()).ok();
    };
    let text: String = text.split_whitespace().collect();
    let (number, unit) = text.split_at(text.rfind(|c: char| !c.is_alphabetic()).map_or(0, |at| {
        at + text[at..].chars().next().map_or(0, char::len_utf8)
    }));
    let number: f64 = if number.is_empty() {
        1.0
    } else {
        number.parse().ok()?
    };
    let unit = match &*unit.to_lowercase() {
        "" | "s" | "second" | "seconds" => 1.0,
        "ms" | "millisecond" | "milliseconds" => 1e-3,
        "us" | "microsecond" | "microseconds" => 1e-6,
        "ns" | "nanosecond" | "nanoseconds" => 1e-9,
        "m" | "min" | "minute" | "minutes" => 60.0,
        "h" | "hour" | "hours" => 3600.0,
        "d" | "day" | "days" => 86_400.0,
        "w" | "week" | "weeks" => 604_800.0,
        _ => return None,
    };
    Some(number * unit)
}

/// Like [`seconds`], without durations that are negative or not finite.
pub(crate) fn duration(value: &Value) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds(value)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_and_strings_with_units() {
        for (text, expected) in [
            ("5s", Some(5.0)),
            ("200 ms", Some(0.2)),
            ("1.5 Minutes", Some(90.0)),
            ("h", Some(3600.0)),
            ("7", Some(7.0)),
            ("1 year", None),
            ("x y", None),
            ("", Some(1.0)),
        ] {
            assert_eq!(seconds(&Value::from(text)), expected, "{text}");
        }
        assert_eq!(seconds(&Value::from(2)), Some(2.0));
        assert_eq!(seconds(&Value::None), None);
        assert_eq!(
            duration(&Value::from(0.5)),
            Some(Duration::from_millis(500))
        );
        assert_eq!(duration(&Value::from(-1)), None);
    }
}
