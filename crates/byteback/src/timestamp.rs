//! Times as people and programs read them. Internally, a time is nanoseconds since 1970, in 64 bits
//! or, for times of files, in 128.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The current time.
pub(crate) fn now_ns() -> i64 {
    nanoseconds(Timestamp::now())
}

fn nanoseconds(time: Timestamp) -> i64 {
    // The year 2262 is far enough away.
    i64::try_from(time.as_nanosecond()).unwrap_or(i64::MAX)
}

fn timestamp(ns: impl Into<i128>) -> Timestamp {
    let ns = ns.into();
    // The library knows the years from -9999 to 9999.
    let nearest = if ns < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_nanosecond(ns).unwrap_or(nearest)
}

/// Present offset of the local time zone, in seconds east of UTC.
pub(crate) fn east_of_utc_s() -> i64 {
    Timestamp::now().to_zoned(TimeZone::system()).offset().seconds().into()
}

/// RFC 3339 in UTC, with nanoseconds where there are any: for programs.
pub(crate) fn rfc3339(ns: impl Into<i128>) -> String {
    timestamp(ns).to_string()
}

/// Date and time of day to the microsecond in the local time zone, rounded down: for people who
/// type it back in.
pub(crate) fn local_exact(ns: i64) -> String {
    let ns = ns.div_euclid(1000) * 1000;
    let time = timestamp(ns).to_zoned(TimeZone::system());
    time.strftime("%Y-%m-%d %H:%M:%S%.6f").to_string()
}

/// The current minute of the day in the local time zone.
pub(crate) fn minute_of_day() -> u16 {
    let now = Timestamp::now().to_zoned(TimeZone::system());
    // Neither is ever negative.
    u16::from(now.hour().unsigned_abs()) * 60 + u16::from(now.minute().unsigned_abs())
}

/// Date and time of day to the second in the local time zone: for people.
pub(crate) fn local(ns: impl Into<i128>) -> String {
    let time = timestamp(ns).to_zoned(TimeZone::system());
    time.strftime("%Y-%m-%d %H:%M:%S").to_string()
}
