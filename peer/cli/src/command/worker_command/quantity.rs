//! Sizes, durations, ports and resources, in the syntax of Dask's commands.

use std::time::Duration;

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

/// Parses a size: `500MB`, `4GiB`, `1e9`.
pub(super) fn size(input: &str) -> Result<u64, String> {
    let size = parts(input).and_then(|(number, unit)| {
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
        Some(number * base.powi(power))
    });
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is positive, and casts saturate"
    )]
    size.map(|size| size as u64)
        .ok_or_else(|| "expected a size such as 4GiB or 500MB".to_owned())
}

/// Parses a duration: `30`, `1.5 minutes`, `200ms`.
pub(crate) fn duration(input: &str) -> Result<Duration, String> {
    let duration = parts(input).and_then(|(number, unit)| {
        let is_unit = |(short, long, _): &&(&str, &str, f64)| {
            unit == *short || unit.strip_suffix('s').unwrap_or(&unit) == *long
        };
        let factor = match unit.as_str() {
            "" => 1.0,
            _ => DURATIONS.iter().find(is_unit)?.2,
        };
        Duration::try_from_secs_f64(number * factor).ok()
    });
    duration.ok_or_else(|| "expected a duration such as 60s or 5 minutes".to_owned())
}

/// The value of `--memory-limit`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum MemoryLimit {
    /// `auto`: the fraction of the machine's memory that equals the worker's fraction of
    /// the processors.
    Auto,
    /// A fraction of the machine's memory.
    Fraction(f64),
    /// A number of bytes.
    Len(u64),
    /// `0`: no limit.
    None,
}

/// Parses a memory limit: `auto`, `0`, `0.5`, `4GiB`.
pub(super) fn memory_limit(input: &str) -> Result<MemoryLimit, String> {
    let input = input.trim();
    if input == "auto" {
        return Ok(MemoryLimit::Auto);
    }
    match (input.parse::<f64>(), size(input)) {
        (Ok(fraction), _) if fraction > 0.0 && fraction <= 1.0 => {
            Ok(MemoryLimit::Fraction(fraction))
        }
        (_, Ok(0)) => Ok(MemoryLimit::None),
        (_, Ok(len)) => Ok(MemoryLimit::Len(len)),
        _ => Err("expected auto, 0, a fraction such as 0.5, or a size such as 4GiB".to_owned()),
    }
}

/// Parses a port, or the first and last of a range: `9000`, `9000:9010`.
pub(super) fn ports(input: &str) -> Result<Vec<u16>, String> {
    let port = |input: &str| input.trim().parse::<u16>().ok();
    let ports = match input.split_once(':') {
        None => port(input).map(|port| vec![port]),
        Some((first, last)) => port(first)
            .zip(port(last))
            .filter(|(first, last)| first < last)
            .map(|(first, last)| (first..=last).collect()),
    };
    ports.ok_or_else(|| "expected a port, or a range such as 9000:9010".to_owned())
}

/// Parses resources: `GPU=2,MEM=1e9`, also with spaces instead of commas.
pub(super) fn resources(input: &str) -> Result<Vec<(String, f64)>, String> {
    let pairs = input.split([',', ' ']).filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| {
        let (name, amount) = pair.split_once('=')?;
        let amount = amount.parse::<f64>().ok()?;
        (!name.is_empty() && amount.is_finite()).then(|| (name.to_owned(), amount))
    });
    let pairs: Option<Vec<_>> = pairs.collect();
    pairs.ok_or_else(|| "expected resources such as GPU=2,MEM=1e9".to_owned())
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
            assert_eq!(size(input), Ok(len), "{input}");
        }
        for input in ["", "-1", "4 apples", "nan", "inf", "4i"] {
            assert!(size(input).is_err(), "{input}");
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
                Ok(Duration::from_secs_f64(seconds)),
                "{input}"
            );
        }
        for input in ["", "-1", "5 parsecs", "s5"] {
            assert!(duration(input).is_err(), "{input}");
        }
    }

    #[test]
    fn memory_limits_are_fractions_up_to_one() {
        for (input, limit) in [
            ("auto", MemoryLimit::Auto),
            ("0", MemoryLimit::None),
            ("0.0", MemoryLimit::None),
            ("0.5", MemoryLimit::Fraction(0.5)),
            ("1", MemoryLimit::Fraction(1.0)),
            ("2", MemoryLimit::Len(2)),
            ("4GiB", MemoryLimit::Len(4 << 30)),
        ] {
            assert_eq!(memory_limit(input), Ok(limit), "{input}");
        }
        assert!(memory_limit("most").is_err());
    }

    #[test]
    fn ports_are_one_or_a_range() {
        assert_eq!(ports("9000"), Ok(vec![9000]));
        assert_eq!(ports("9000:9002"), Ok(vec![9000, 9001, 9002]));
        for input in ["", "x", "65536", "9001:9000", "9000:9000", "9000:"] {
            assert!(ports(input).is_err(), "{input}");
        }
    }

    #[test]
    fn resources_are_names_with_numbers() {
        let expected = vec![("GPU".to_owned(), 2.0), ("MEM".to_owned(), 1e9)];
        for input in ["GPU=2,MEM=1e9", "GPU=2 MEM=1e9", " GPU=2, MEM=1e9 "] {
            assert_eq!(resources(input), Ok(expected.clone()), "{input}");
        }
        for input in ["GPU", "GPU=", "=2", "GPU=two", "GPU=nan"] {
            assert!(resources(input).is_err(), "{input}");
        }
    }
}
