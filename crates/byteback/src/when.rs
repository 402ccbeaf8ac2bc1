//! Times and amounts as people write them: `20 minutes ago`, `2h`, `14:30`, RFC 3339; `30m`; `1G`.

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};

/// Parses a moment of the past, in nanoseconds since 1970. A duration counts back from `now_ns`,
/// with or without the word "ago"; a time of day is its last occurrence in the local time zone
/// `zone`.
pub(crate) fn past(text: &str, now_ns: i64, zone: &TimeZone) -> Result<i64, String> {
    let text = text.trim();
    let failed = || {
        format!(
            "'{text}' is not a time; write for example '20 minutes ago', 2h, 14:30, '2026-11-21 14:30' or 2026-11-21T14:30:00Z"
        )
    };
    let ns = |time: Timestamp| i64::try_from(time.as_nanosecond()).map_err(|_| failed());
    let now = Timestamp::from_nanosecond(i128::from(now_ns)).map_err(|_| failed())?;
    if text == "now" {
        return Ok(now_ns);
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return ns(time);
    }
    if let Ok(length) = duration(text.strip_suffix("ago").unwrap_or(text)) {
        return Ok(now_ns.saturating_sub(length));
    }
    let local = |time: DateTime| time.to_zoned(zone.clone()).map_err(|_| failed());
    // Tried before a date with a time, which may begin like a time of day.
    if let (Ok(time), false) = (text.parse::<Time>(), text.contains('-') || !text.contains(':')) {
        let today = now.to_zoned(zone.clone()).date();
        let last = local(today.to_datetime(time))?;
        let last = if last.timestamp() <= now {
            last
        } else {
            local(today.yesterday().map_err(|_| failed())?.to_datetime(time))?
        };
        return ns(last.timestamp());
    }
    let time = text.parse::<DateTime>().map_err(|_| failed())?;
    ns(local(time)?.timestamp())
}

/// Parses a duration in nanoseconds, more than zero: `90s`, `30m`, `2 hours`, `1d 12h`.
pub(crate) fn duration(text: &str) -> Result<i64, String> {
    let failed = || {
        format!(
            "'{}' is not a duration; write for example 90s, 30m, 2h or 1d",
            text.trim()
        )
    };
    let span: Span = text.trim().parse().map_err(|_| failed())?;
    let length: SignedDuration = span
        .to_duration(SpanRelativeTo::days_are_24_hours())
        .map_err(|_| failed())?;
    match i64::try_from(length.as_nanos()) {
        Ok(ns) if ns > 0 => Ok(ns),
        _ => Err(failed()),
    }
}

/// Parses an amount in bytes: `500M`, `1G`, `1.5GiB`; units are powers of 1024.
pub(crate) fn amount(text: &str) -> Result<u64, String> {
    let failed = || format!("'{text}' is not an amount; write for example 500M or 1G");
    let text = text.trim();
    let digits = text
        .find(|char: char| !char.is_ascii_digit() && char != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_uppercase();
    let shift = match unit
        .strip_suffix("IB")
        .or_else(|| unit.strip_suffix('B'))
        .unwrap_or(&unit)
    {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(failed()),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().map_err(|_| failed())?;
    // Thousandths are finer than any use needs.
    let thousandths: u64 = format!("{part:0<3}")
        .get(..3)
        .unwrap_or("000")
        .parse()
        .map_err(|_| failed())?;
    let bytes = whole
        .checked_mul(1 << shift)
        .and_then(|bytes| bytes.checked_add((thousandths << shift) / 1000));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(failed)
}

#[cfg(test)]
mod tests;
