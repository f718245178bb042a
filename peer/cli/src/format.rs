//! Formats of tables, numbers and durations.

/// Formats rows, the first of which is the heading. The first `left` columns are
/// aligned to the left, the others to the right. Cells must be printable.
#[cfg(feature = "command")]
pub(crate) fn aligned(rows: &[impl AsRef<[String]>], left: usize) -> String {
    use core::fmt::Write as _;
    let mut out = String::new();
    let rows = rows.iter().map(AsRef::as_ref);
    let mut widths = Vec::new();
    for row in rows.clone() {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for row in rows {
        let cells = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, &width))| {
                if column < left {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
        let line: Vec<String> = cells.collect();
        let _ = writeln!(out, "  {}", line.join("  ").trim_end());
    }
    out
}

/// Formats a count with its noun, in the plural unless the count is 1.
pub(crate) fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// Formats a rounded size: exact below 10 kB, in binary units above.
pub(crate) fn bytes(len: u64) -> String {
    #[allow(clippy::cast_precision_loss)] // three digits are shown
    let scaled = |unit: u32| len as f64 / (1_u64 << unit) as f64;
    // As in Dask, a unit is used from a little less than one of it, so that no number has
    // more than three digits before the point.
    match len {
        0..10_000 => format!("{len} B"),
        10_000..1_000_000 => format!("{:.1} KiB", scaled(10)),
        1_000_000..1_000_000_000 => format!("{:.1} MiB", scaled(20)),
        1_000_000_000..1_000_000_000_000 => format!("{:.2} GiB", scaled(30)),
        _ => format!("{:.2} TiB", scaled(40)),
    }
}

/// Formats a rounded duration.
#[cfg(feature = "command")]
pub(crate) fn duration(seconds: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // clamped
    let seconds = seconds.clamp(0.0, 1e12) as u64;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_have_three_digits_before_the_point() {
        for (len, expected) in [
            (9_999, "9999 B"),
            (10_000, "9.8 KiB"),
            (999_999, "976.6 KiB"),
            (1_000_000, "1.0 MiB"),
            (1000 << 20, "0.98 GiB"),
            (999_999_999_999, "931.32 GiB"),
            (1000 << 30, "0.98 TiB"),
        ] {
            assert_eq!(bytes(len), expected);
        }
    }
}
