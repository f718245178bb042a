//! Sizes and durations, in the syntax of Dask's settings and arguments.

use core::time::Duration;

use crate::Value;

/// Units of durations in seconds. The long names may have a plural s.
const DURATIONS: [(&str, &str, f64); 8] = [
    ("s", "second", 1.0),
    ("ms", "millisecond", 1e-3),
    ("us", "microsecond", 1e-6),
    ("ns", "nanosecond", 1e-9),
    ("m", "minute", 60.0),
    ("h", "hour", 3600.0),
    ("d", "day", 86_400.0),
    ("w", "week", 604_800.0),
];

/// Parses a size in bytes, such as `500MB`, `4GiB` or `1e9`, as `dask.utils.parse_bytes`. `None` for others.
pub fn size(input: &str) -> Option<u64> {
    let (number, unit) = parts(input)?;
    // The B of bytes is optional.
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let (base, letter) = match unit.strip_suffix('i') {
        Some(letter) => (1024.0_f64, letter),
        None => (1000.0, unit),
    };
    let power = match letter {
        "" if base < 1024.0 => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return None,
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is positive, and casts saturate"
    )]
    let size = (number * base.powi(power)) as u64;
    Some(size)
}

/// Parses a duration, such as `30`, `1.5 minutes` or `200ms`, as `dask.utils.parse_timedelta`.
/// `None` for others, and for those that are too long.
pub fn duration(input: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds(input)?).ok()
}

/// The seconds of a duration in a message: a number, or a string as for [`duration`]. `None` for
/// others.
pub fn seconds_of(value: &Value) -> Option<f64> {
    match value {
        Value::Str(text) => seconds(text),
        other => f64::try_from(other.clone()).ok(),
    }
}

/// Like [`seconds_of`], without durations that are negative, too long or not a number.
pub fn duration_of(value: &Value) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds_of(value)?).ok()
}

fn seconds(input: &str) -> Option<f64> {
    let (number, unit) = parts(input)?;
    let is_unit = |(short, long, _): &&(&str, &str, f64)| {
        unit == *short || unit.strip_suffix('s').unwrap_or(&unit) == *long
    };
    let factor = match unit.as_str() {
        "" => 1.0,
        _ => DURATIONS.iter().find(is_unit)?.2,
    };
    Some(number * factor)
}

/// Splits a quantity into a number and the unit in lower case. The number is 1 if only
/// a unit is given.
fn parts(input: &str) -> Option<(f64, String)> {
    let input: String = input.split_whitespace().collect();
    let number = input.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = input[number.len()..].to_lowercase();
    let number = match number {
        "" if unit.is_empty() => return None,
        "" => 1.0,
        number => number.parse::<f64>().ok()?,
    };
    Some((number, unit)).filter(|(number, _)| number.is_finite() && *number >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_dask_reads_them() {
        for (input, len) in [
            ("1", 1),
            ("0", 0),
            ("500MB", 500_000_000),
            ("100M", 100_000_000),
            ("4GiB", 4 << 30),
            ("1.5 kib", 1536),
            ("2Gi", 2 << 30),
            ("1e9", 1_000_000_000),
            ("1e6 kB", 1_000_000_000),
            ("MB", 1_000_000),
        ] {
            assert_eq!(size(input), Some(len), "{input}");
        }
        for input in ["", "-1", "4 apples", "nan", "inf", "4i"] {
            assert_eq!(size(input), None, "{input}");
        }
    }

    #[test]
    fn durations_are_as_dask_reads_them() {
        for (input, seconds) in [
            ("3", 3.0),
            ("3.5 seconds", 3.5),
            ("300ms", 0.3),
            ("5 minutes", 300.0),
            ("1h", 3600.0),
            ("2 Days", 172_800.0),
            ("minute", 60.0),
            ("0 seconds", 0.0),
        ] {
            assert_eq!(
                duration(input),
                Some(Duration::from_secs_f64(seconds)),
                "{input}"
            );
        }
        for input in ["", "-1", "5 parsecs", "s5"] {
            assert_eq!(duration(input), None, "{input}");
        }
    }

    #[test]
    fn durations_in_messages_are_numbers_or_strings() {
        assert_eq!(seconds_of(&Value::from("200 ms")), Some(0.2));
        assert_eq!(seconds_of(&Value::from(-2)), Some(-2.0));
        assert_eq!(seconds_of(&Value::from("x y")), None);
        assert_eq!(seconds_of(&Value::None), None);
        let half = Duration::from_millis(500);
        assert_eq!(duration_of(&Value::from(0.5)), Some(half));
        assert_eq!(duration_of(&Value::from(-1)), None);
    }
}
