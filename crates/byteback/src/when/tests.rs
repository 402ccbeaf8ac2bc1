//! Times and amounts as people write them, and texts that are neither.

use super::*;

const MINUTE: i64 = 60_000_000_000;

fn at(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().as_nanosecond().try_into().unwrap()
}

#[test]
fn times_of_the_past() {
    let now = at("2026-11-21T14:00:00Z");
    let zone = TimeZone::fixed(jiff::tz::offset(1));
    let past = |text: &str| past(text, now, &zone).unwrap();
    assert_eq!(past("now"), now);
    for text in ["20 minutes ago", "20m", "20 min ago", " 20m ago ", "20 minutes"] {
        assert_eq!(past(text), now - 20 * MINUTE, "{text}");
    }
    assert_eq!(past("2h"), now - 120 * MINUTE);
    assert_eq!(past("1 day ago"), now - 24 * 60 * MINUTE);
    assert_eq!(past("1h 30m"), now - 90 * MINUTE);
    // It is 15:00 in this time zone.
    assert_eq!(past("14:30"), now - 30 * MINUTE);
    assert_eq!(past("15:30"), now + 30 * MINUTE - 24 * 60 * MINUTE, "yesterday");
    assert_eq!(past("2026-11-21 14:30"), now - 30 * MINUTE);
    assert_eq!(past("2026-11-21T13:30:00Z"), now - 30 * MINUTE);
    assert_eq!(past("2026-11-21T13:30:00.123456789Z"), now - 30 * MINUTE + 123_456_789);
    assert_eq!(past("2026-11-21T14:30:00+01:00"), now - 30 * MINUTE);
}

#[test]
fn what_is_no_time_is_told_with_examples() {
    for text in ["", "yesterday-ish", "-20m", "0s", "25:99", "20", "latest", "ago"] {
        let error = past(text, 0, &TimeZone::UTC).unwrap_err();
        assert!(error.contains("20 minutes ago"), "{text}: {error}");
    }
}

#[test]
fn durations_and_amounts() {
    assert_eq!(duration("30m").unwrap(), 30 * MINUTE);
    assert_eq!(duration("1d").unwrap(), 24 * 60 * MINUTE);
    assert!(duration("0m").is_err() && duration("-5m").is_err() && duration("5").is_err());
    assert_eq!(amount("1G").unwrap(), 1 << 30);
    assert_eq!(amount("500 MiB").unwrap(), 500 << 20);
    assert_eq!(amount("1.5k").unwrap(), 1536);
    assert_eq!(amount("4096").unwrap(), 4096);
    assert!(amount("").is_err() && amount("G").is_err() && amount("1X").is_err() && amount("99999999999T").is_err());
}
