//! Sizes, durations, ports and resources, in the syntax of Dask's commands.

use std::time::Duration;

use daskwire_messages::quantity;
use serde_json::json;

use super::machine;
use crate::command::terminal;

/// Parses a size: `500MB`, `4GiB`, `1e9`.
pub(crate) fn size(input: &str) -> Result<u64, String> {
    quantity::size(input).ok_or_else(|| "expected a size such as 4GiB or 500MB".to_owned())
}

/// Parses a duration: `30`, `1.5 minutes`, `200ms`.
pub(crate) fn duration(input: &str) -> Result<Duration, String> {
    quantity::duration(input)
        .ok_or_else(|| "expected a duration such as 60s or 5 minutes".to_owned())
}

/// The value of `--memory-limit`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MemoryLimit {
    /// `auto`: a fraction of the machine's memory that the command determines.
    Auto,
    /// A fraction of the machine's memory.
    Fraction(f64),
    /// A number of bytes.
    Len(u64),
    /// `0`: no limit.
    None,
}

impl MemoryLimit {
    /// The limit in bytes; `auto` is the fraction of the machine's memory that stands for `auto`.
    pub(crate) fn bytes(self, auto: f64) -> Option<u64> {
        let Some(memory) = machine::memory() else {
            return match self {
                Self::Len(len) => Some(len),
                _ => None,
            };
        };
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a fraction of memory need not be exact, and casts saturate"
        )]
        let part = |fraction: f64| (memory as f64 * fraction) as u64;
        match self {
            Self::None => None,
            Self::Auto => Some(part(auto)),
            Self::Fraction(fraction) => Some(part(fraction)),
            Self::Len(len) if len > memory => {
                terminal::event(
                    "notice",
                    format_args!(
                        "this machine has {} MiB of memory, which is less than the memory limit: \
                         they are the limit",
                        memory >> 20
                    ),
                    json!({}),
                );
                Some(memory)
            }
            Self::Len(len) => Some(len),
        }
    }
}

/// Parses a memory limit: `auto`, `0`, `0.5`, `4GiB`.
pub(crate) fn memory_limit(input: &str) -> Result<MemoryLimit, String> {
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
