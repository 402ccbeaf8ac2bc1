//! Numbers in words: sizes, counts, durations.

/// A size in binary units with one decimal: `1.0 MiB`. Exact bytes below 1 KiB.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // Tenths of a unit, rounded to the nearest; u128 has room for ten times any u64.
    let mut divisor: u128 = 1024;
    for unit in UNITS {
        let tenths = (u128::from(bytes) * 10 + divisor / 2) / divisor;
        if tenths < 10_240 || unit == "EiB" {
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
        divisor *= 1024;
    }
    format!("{bytes} B")
}

/// A size, followed by the exact number of bytes if `exact`.
pub(crate) fn size_exact(bytes: u64, exact: bool) -> String {
    if exact && bytes >= 1024 {
        format!("{} ({bytes} bytes)", size(bytes))
    } else {
        size(bytes)
    }
}

/// `1 file`, `2 files`, `1,204 files`.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

/// Counts with their names in the singular or the plural; zero counts are left out.
pub(crate) fn counts(counts: &[(u64, &str, &str)]) -> Vec<String> {
    let some = counts.iter().filter(|(count, ..)| *count > 0);
    some.map(|&(count, one, many)| counted(count, one, many)).collect()
}

/// A count of nodes of a tree.
pub(crate) fn nodes(count: u64) -> String {
    counted(count, "file or directory", "files and directories")
}

/// A number with its digits in groups of three.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration in words: `0.42 s`, `12 s`, `3 min 5 s`, `2 h 10 min`.
pub(crate) fn duration(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0..10 => {
            let hundredths = ns / 10_000_000;
            format!("{}.{:02} s", hundredths / 100, hundredths % 100)
        }
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// A rough age: `a moment`, `5 minutes`, `3 days`.
pub(crate) fn age(from_ns: i64, now_ns: i64) -> String {
    let seconds = u64::try_from(now_ns.saturating_sub(from_ns)).unwrap_or(0) / 1_000_000_000;
    match seconds {
        0..2 => "a moment".to_owned(),
        2..60 => counted(seconds, "second", "seconds"),
        60..3600 => counted(seconds / 60, "minute", "minutes"),
        3600..172_800 => counted(seconds / 3600, "hour", "hours"),
        _ => counted(seconds / 86_400, "day", "days"),
    }
}

/// Parts joined as in a sentence: `a`, `a and b`, `a, b and c`.
pub(crate) fn listed(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Permission bits as `ls` shows them, without the letter of the kind.
pub(crate) fn permissions(mode: u32) -> String {
    let bit = |bit: u32, letter: char| if mode & bit != 0 { letter } else { '-' };
    let special = |execute: u32, set: u32, both: char, only: char| match (mode & execute != 0, mode & set != 0) {
        (true, true) => both,
        (false, true) => only,
        (true, false) => 'x',
        (false, false) => '-',
    };
    [
        bit(0o400, 'r'),
        bit(0o200, 'w'),
        special(0o100, 0o4000, 's', 'S'),
        bit(0o040, 'r'),
        bit(0o020, 'w'),
        special(0o010, 0o2000, 's', 'S'),
        bit(0o004, 'r'),
        bit(0o002, 'w'),
        special(0o001, 0o1000, 't', 'T'),
    ]
    .iter()
    .collect()
}

#[cfg(test)]
mod tests;
