//! The demo's result: two columns side by side, in human-readable units.

use std::fmt::Write as _;

#[cfg(test)]
mod tests;

/// A line: its label, and the value of each contender.
pub(super) type Row = (&'static str, String, String);

/// The rows under their headings, aligned.
pub(super) fn table(ours: &str, theirs: &str, rows: &[Row]) -> String {
    let all = || {
        rows.iter()
            .map(|(name, one, other)| (*name, one.as_str(), other.as_str()))
    };
    let width = |of: fn(&(&str, &str, &str)) -> usize, heading: usize| {
        all().map(|row| of(&row)).max().unwrap_or(0).max(heading)
    };
    let names = width(|row| row.0.chars().count(), 0);
    let one = width(|row| row.1.chars().count(), ours.len());
    let other = width(|row| row.2.chars().count(), theirs.len());
    let mut text = String::new();
    for (name, mine, yours) in std::iter::once(("", ours, theirs)).chain(all()) {
        // Writing to a String does not fail.
        let _ = writeln!(text, "  {name:names$}  {mine:>one$}  {yours:>other$}");
    }
    text
}

/// Bytes in a binary unit, with three significant digits.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    // Exact below 2^53, and only three digits are shown.
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", figures(value), UNITS[unit])
}

/// Seconds, or milliseconds below one.
pub(super) fn seconds(value: f64) -> String {
    if value < 0.9995 {
        format!("{} ms", figures(value * 1000.0))
    } else {
        format!("{} s", figures(value))
    }
}

fn figures(value: f64) -> String {
    match value {
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}
