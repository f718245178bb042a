//! Formats of tables, numbers and durations.

/// Maximum number of characters of a cell that sets the width of its column. A peer may
/// send names of any length, and each row is padded to the longest.
#[cfg(feature = "command")]
const MAX_CELL: usize = 80;

/// Formats rows, the first of which is the heading. The first `left` columns are
/// aligned to the left, the others to the right. Cells must be printable. Long cells are
/// cut, except those at the end of a line that need no padding.
#[cfg(feature = "command")]
pub(crate) fn aligned(rows: &[impl AsRef<[String]>], left: usize) -> String {
    let mut out = String::new();
    let rows = rows.iter().map(AsRef::as_ref);
    let mut widths = Vec::new();
    for row in rows.clone() {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().take(MAX_CELL).count().max(*width);
        }
    }
    let is_unpadded = |column| column < left && column + 1 == widths.len();
    for row in rows {
        let start = out.len();
        out.push_str("  ");
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            if column > 0 {
                out.push_str("  ");
            }
            let cell = match is_unpadded(column) {
                true => cell.as_str().into(),
                false => cut(cell, MAX_CELL),
            };
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
            let parts: [&str; 2] = match column < left {
                true => [&cell, &padding],
                false => [&padding, &cell],
            };
            out.extend(parts);
        }
        let len = out[start..].trim_end().len();
        out.truncate(start + len);
        out.push('\n');
    }
    out
}

/// A string of at most `max_count` characters: the string, or its start and an ellipsis.
#[cfg(feature = "command")]
fn cut(string: &str, max_count: usize) -> std::borrow::Cow<'_, str> {
    let mut ends = string.char_indices().map(|(at, _)| at).skip(max_count - 1);
    match (ends.next(), ends.next()) {
        (Some(last), Some(_)) => format!("{}…", &string[..last]).into(),
        _ => string.into(),
    }
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

    #[cfg(feature = "command")]
    #[test]
    fn rows_of_long_cells_do_not_grow_with_the_longest() {
        let len = |count: usize| {
            let row = |name: &str, step: &str| [name, step].map(str::to_owned);
            let mut rows = vec![row("name", "step")];
            // Longer than the largest width that `format!` accepts.
            rows.push(row(
                &"n".repeat(70_000 * count),
                &"s".repeat(70_000 * count),
            ));
            rows.extend((0..100 * count).map(|_| row("a", "b")));
            super::aligned(&rows, 2).len() + super::aligned(&rows, 1).len()
        };
        let (once, twice) = (len(1), len(2));
        assert!(twice <= 2 * once, "{once} bytes, then {twice}");
        let rows =
            ["é".repeat(80), "é".repeat(81), "x".to_owned()].map(|name| [name, "1".to_owned()]);
        let whole = "é".repeat(79);
        assert_eq!(
            super::aligned(&rows, 1),
            format!("  {whole}é  1\n  {whole}…  1\n  x{}  1\n", " ".repeat(79))
        );
    }

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
