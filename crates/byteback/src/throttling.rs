//! The rate limits and pauses of a folder's sync: their form on the command line, their record in
//! the folder's state, and how the process that keeps the folder in sync learns of a change.

use std::fs::File;
use std::sync::Arc;

use byteback_client::throttle::{MINUTES_PER_DAY, PartOfDay, RateLimit, RateLimits, Throttle, Wish};
use byteback_control::{ErrorKind, ServiceError, TreeService};
use byteback_daemon::StateFolder;
use byteback_host::durable::RealDir;
use rustix::fs::{FlockOperation, flock};

use crate::error::{CommandError, Result};
use crate::timestamp;
use crate::tracked_folder;
use crate::when;
use crate::wording::size;

/// Name of continuous sync's directory in the state folder.
pub(crate) const DIR_NAME: &str = "sync";

/// Lowest rate: a slower connection would be taken for a dead one.
const RATE_BYTES_MIN: u64 = 8 << 10;

/// Parses a rate, such as `500K` or `2MiB/s`, in bytes per second.
pub(crate) fn rate(text: &str) -> Result<u64> {
    let bytes = when::amount(text.trim_end_matches("/s")).map_err(CommandError::new)?;
    if bytes < RATE_BYTES_MIN {
        return Err(CommandError::new(format!("a limit of {text} is too low"))
            .next("It must be at least 8K (bytes per second); slower connections count as dead."));
    }
    Ok(bytes)
}

/// Parses `HH:MM`, as minutes since midnight.
fn minute(text: &str) -> Option<u16> {
    let (hours, minutes) = text.trim().split_once(':')?;
    let number = |text: &str| match text.len() {
        1 | 2 if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse::<u16>().ok(),
        _ => None,
    };
    let (hours, minutes) = (number(hours)?, number(minutes).filter(|minutes| *minutes < 60)?);
    Some(hours * 60 + minutes).filter(|minute| *minute <= MINUTES_PER_DAY)
}

fn limit(text: &str) -> Result<RateLimit> {
    let (during, rate_text) = match text.split_once('=') {
        None => (None, text),
        Some((part, rate_text)) => {
            let minutes = part
                .split_once('-')
                .and_then(|(from, to)| PartOfDay::new(minute(from)?, minute(to)?));
            let part = minutes.ok_or_else(|| {
                CommandError::new(format!("'{part}' is not a valid time of day range"))
                    .next("Write for example 08:00-18:00=200K, or 22:00-06:00=unlimited across midnight.")
            })?;
            (Some(part), rate_text)
        }
    };
    let bytes_per_second_max = match rate_text.trim() {
        "unlimited" => None,
        "pause" => Some(0),
        rate_text => Some(rate(rate_text)?),
    };
    Ok(RateLimit {
        during,
        bytes_per_second_max,
    })
}

/// Parses limits: `1MiB`, `08:00-18:00=200K`, `12:00-13:00=unlimited`, `08:00-18:00=pause`.
pub(crate) fn limits(texts: &[String]) -> Result<RateLimits> {
    let limits = texts.iter().map(|text| limit(text)).collect::<Result<Vec<_>>>()?;
    if limits
        .iter()
        .any(|limit| limit.during.is_none() && limit.bytes_per_second_max == Some(0))
    {
        return Err(
            CommandError::new("a limit of 'pause' at all times would never send anything")
                .next("To pause until 'byteback resume': byteback pause DIR"),
        );
    }
    let is_none = limits.iter().all(|limit| limit.bytes_per_second_max.is_none());
    Ok(RateLimits(if is_none { Vec::new() } else { limits }))
}

/// Limits in the form that [`limits`] parses.
pub(crate) fn reported(limits: &RateLimits) -> Vec<String> {
    let reported = |limit: &RateLimit| {
        let rate = match limit.bytes_per_second_max {
            None => "unlimited".to_owned(),
            Some(0) => "pause".to_owned(),
            Some(bytes) => rate_told(bytes),
        };
        match limit.during {
            Some(during) => format!("{during}={rate}"),
            None => rate,
        }
    };
    limits.0.iter().map(reported).collect()
}

/// Limits for people: `1 MiB/s; 200 KiB/s from 08:00 to 18:00`.
pub(crate) fn in_words(limits: &RateLimits) -> String {
    let words = |limit: &RateLimit| {
        let rate = match limit.bytes_per_second_max {
            None => "unlimited".to_owned(),
            Some(0) => "paused".to_owned(),
            Some(bytes) => rate_in_words(bytes),
        };
        match limit.during {
            Some(during) => format!("{rate} {during:#}"),
            None => rate,
        }
    };
    limits.0.iter().map(words).collect::<Vec<_>>().join("; ")
}

/// An exact rate for people: `200 KiB/s`.
fn rate_in_words(bytes: u64) -> String {
    let reported = rate_told(bytes);
    let digits = reported.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = reported.split_at(digits);
    format!("{number} {unit}")
}

/// An exact rate in the form that [`rate`] parses.
fn rate_told(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB/s"), (1 << 20, "MiB/s"), (1 << 10, "KiB/s")];
    let unit = UNITS.into_iter().find(|(unit, _)| bytes.is_multiple_of(*unit));
    unit.map_or_else(
        || format!("{bytes}B/s"),
        |(unit, name)| format!("{}{name}", bytes / unit),
    )
}

/// The present rate, in words.
pub(crate) fn current_rate_text(bytes_per_second_max: Option<u64>) -> String {
    match bytes_per_second_max {
        None => "unlimited now".to_owned(),
        Some(0) => "nothing is transferred now".to_owned(),
        Some(bytes) => format!("{}/s now", size(bytes)),
    }
}

fn unusable(error: impl std::fmt::Display, folder: &StateFolder) -> CommandError {
    CommandError::new(format!("{error}")).next(format!("The file is in {}", folder.path().join(DIR_NAME).display()))
}

fn directory(folder: &StateFolder) -> Result<(RealDir, File)> {
    let path = folder.path().join(DIR_NAME);
    let failed = |error: std::io::Error| CommandError::file("open the directory", &path, &error);
    let dir = RealDir::create(&path).map_err(failed)?;
    let lock = File::open(&path).map_err(failed)?;
    Ok((dir, lock))
}

/// The recorded wish for a folder.
pub(crate) fn noted(folder: &StateFolder) -> Result<Wish> {
    let (dir, _) = directory(folder)?;
    Wish::read(&dir).map_err(|error| unusable(error, folder))
}

/// The same, for the process that keeps the folder in sync when another process asks it.
pub(crate) fn noted_for_others(folder: &StateFolder) -> std::result::Result<Wish, ServiceError> {
    noted(folder).map_err(|error| {
        let why = match error {
            CommandError::Failed(failure) => failure.message,
            _ => "cannot read the recorded limits".to_owned(),
        };
        ServiceError::new(ErrorKind::Refused, why)
    })
}

/// Changes the recorded wish for a folder, and notifies the process that keeps it in sync. Returns
/// the new wish, and whether there is such a process.
pub(crate) fn change(folder: &StateFolder, change: impl FnOnce(&mut Wish)) -> Result<(Wish, bool)> {
    let (dir, lock) = directory(folder)?;
    // Of two concurrent commands, neither undoes the other's change.
    flock(&lock, FlockOperation::LockExclusive)
        .map_err(|error| CommandError::file("lock", &folder.path().join(DIR_NAME), &std::io::Error::from(error)))?;
    let mut wish = Wish::read(&dir).map_err(|error| unusable(error, folder))?;
    change(&mut wish);
    wish.write(&dir).map_err(|error| unusable(error, folder))?;
    let is_heard = match tracked_folder::daemon(folder)? {
        Some(daemon) => daemon.sync_wishes_changed()?,
        None => false,
    };
    Ok((wish, is_heard))
}

/// A throttle for the start, which never blocks: it has the rate allowed at this moment and no
/// pause, until [`Throttle::set`]. Also returns whether nothing may move at this moment; if so, the
/// throttle must not be used before that.
pub(crate) fn for_the_start(wish: &Wish) -> (Arc<Throttle>, bool) {
    let throttle = Throttle::new(wish.clone(), timestamp::minute_of_day);
    let now = throttle.bytes_per_second_max();
    let is_still = now == Some(0);
    if !is_still {
        throttle.set(Wish {
            paused_since_ns: None,
            limits: RateLimits(vec![RateLimit {
                during: None,
                bytes_per_second_max: now,
            }]),
        });
    }
    (Arc::new(throttle), is_still)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_in_words() {
        for (written, words) in [
            (
                &["1MiB", "08:00-18:00=200KiB"][..],
                "1 MiB/s; 200 KiB/s from 08:00 to 18:00",
            ),
            (
                &["22:00-06:30=unlimited", "10000"],
                "unlimited from 22:00 to 06:30; 10000 B/s",
            ),
            (&["00:00-24:00=pause"], "paused from 00:00 to 24:00"),
        ] {
            let written: Vec<String> = written.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!(in_words(&limits(&written).unwrap()), words);
        }
    }

    #[test]
    fn throttle_limits_are_read_and_shown_as_people_write_them() {
        for (written, told_as) in [
            (&["1MiB"][..], &["1MiB/s"][..]),
            (&["1m/s", "8:00-18:00=200KiB"], &["1MiB/s", "08:00-18:00=200KiB/s"]),
            (
                &["22:00-06:30=unlimited", "10000"],
                &["22:00-06:30=unlimited", "10000B/s"],
            ),
            (&["00:00-24:00=pause"], &["00:00-24:00=pause"]),
            (&["unlimited"], &[]),
        ] {
            let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            let read = limits(&owned(written)).unwrap();
            assert_eq!(reported(&read), owned(told_as));
            assert_eq!(limits(&reported(&read)).unwrap(), read);
        }
        for wrong in [
            "",
            "fast",
            "4K",
            "08:00=1M",
            "8-18=1M",
            "08:00-08:00=1M",
            "08:00-25:00=1M",
            "08:60-09:00=1M",
            "+8:00-09:00=1M",
            "pause",
            "0",
        ] {
            limits(&[wrong.to_owned()]).unwrap_err();
        }
    }
}
