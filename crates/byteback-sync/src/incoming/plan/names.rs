//! Names that a plan makes up: those of conflicts, which people read, and those of nodes on their
//! way, which programs should hardly ever see.

use byteback_model::{FileId, Place};
use std::fmt::Write as _;

/// Longest name that Linux takes, in bytes.
pub(super) const NAME_LEN_MAX: usize = 255;

/// Longest extension that is kept at the end of a conflict name, in bytes, its dot included.
const EXTENSION_LEN_MAX: usize = 16;

const HOST_LEN_MAX: usize = 64;

/// Prefix of a new file whose content may be incomplete, or a new directory in which something may
/// be missing.
const NEW: &str = ".byteback-landing-new-";

/// Prefix of a node that was here before.
const MOVED: &str = ".byteback-landing-moved-";

/// The folder of the mount itself, in the root.
const HIDDEN: &[u8] = b".byteback";

/// Label in a conflict name: from which host, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictLabel(String);

impl ConflictLabel {
    /// A label for a host and a time in seconds since the Unix epoch, as shown by clocks that are
    /// `east_of_utc_s` seconds ahead of UTC.
    #[must_use]
    pub fn new(host: &str, time_s: i64, east_of_utc_s: i64) -> Self {
        let local_s = time_s.saturating_add(east_of_utc_s);
        let (days, second) = (local_s.div_euclid(86_400), local_s.rem_euclid(86_400));
        let (year, month, day) = civil_date(days);
        let host: String = host
            .chars()
            .map(|c| if c == '/' || c.is_control() { '_' } else { c })
            .collect();
        let host = cut(host.as_bytes(), HOST_LEN_MAX);
        let host = String::from_utf8_lossy(host);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let date = format!("{year:04}-{month:02}-{day:02} {hour:02}.{minute:02}.{second:02}");
        Self(format!(" (conflict from {host}, {date}"))
    }

    /// Conflict name for a name, the `number`th of this time, from 1 on.
    pub(super) fn apply(&self, name: &[u8], number: u32) -> Vec<u8> {
        let mut inserted = self.0.clone();
        if number > 1 {
            // Writing to a string cannot fail.
            let _ = write!(inserted, ", {number}");
        }
        inserted.push(')');
        let (stem, extension) = split_extension(name);
        let room = NAME_LEN_MAX.saturating_sub(inserted.len() + extension.len());
        [cut(stem, room), inserted.as_bytes(), extension].concat()
    }
}

/// Year, month and day of a day counted from 1970-01-01 (proleptic Gregorian; after Howard
/// Hinnant's `civil_from_days`).
fn civil_date(days: i64) -> (i64, i64, i64) {
    let shifted = days.saturating_add(719_468);
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months are counted from March.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era.saturating_mul(400) + i64::from(month <= 2);
    (year, month, day)
}

/// Cuts a name to at most `len_max` bytes; never inside a character, if it is text.
fn cut(name: &[u8], len_max: usize) -> &[u8] {
    let Some(mut len) = (name.len() > len_max).then_some(len_max) else {
        return name;
    };
    let is_inside = |at: usize| name.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
    // A character has at most four bytes; a longer sequence is not text.
    for _ in 0..3 {
        if len == 0 || !is_inside(len) {
            break;
        }
        len -= 1;
    }
    let len = if is_inside(len) { len_max } else { len };
    name.get(..len).unwrap_or_default()
}

/// Splits a name before its extension: the last one, with `.tar` before it. A name that begins with
/// its only dot has none.
fn split_extension(name: &[u8]) -> (&[u8], &[u8]) {
    let none = (name, &[][..]);
    let Some(dot) = name.iter().rposition(|byte| *byte == b'.') else {
        return none;
    };
    let Some((mut stem, mut extension)) = name.split_at_checked(dot) else {
        return none;
    };
    if stem.iter().all(|byte| *byte == b'.')
        || extension.len() < 2
        || extension.len() > EXTENSION_LEN_MAX
        || extension.contains(&b' ')
    {
        return none;
    }
    if let Some(shorter) = stem.strip_suffix(b".tar")
        && !shorter.iter().all(|byte| *byte == b'.')
        && let Some(split) = name.split_at_checked(shorter.len())
    {
        (stem, extension) = split;
    }
    (stem, extension)
}

/// Name of a node on its way, in the root. A new node is incomplete until it has another one.
pub(crate) fn name_on_its_way(id: FileId, is_new: bool) -> Vec<u8> {
    let prefix = if is_new { NEW } else { MOVED };
    format!("{prefix}{id}").into_bytes()
}

/// Whether a name is one of a new node on its way.
pub(super) fn is_name_of_new(name: &[u8]) -> bool {
    name.starts_with(NEW.as_bytes()) && is_name_on_its_way(name)
}

/// Whether a name is one of a node on its way: not the user's, and never sent.
#[must_use]
pub fn is_name_on_its_way(name: &[u8]) -> bool {
    let id = [NEW, MOVED]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix.as_bytes()));
    id.and_then(|id| std::str::from_utf8(id).ok())
        .is_some_and(|id| id.parse::<FileId>().is_ok())
}

/// Reason why a tree cannot hold a name, if the name shows it.
pub(super) fn unfit(place: &Place<FileId>, root: FileId) -> Option<&'static str> {
    let name = place.name.as_bytes();
    match name {
        b"" | b"." | b".." => Some("it is not a valid file name"),
        _ if name.contains(&b'/') || name.contains(&0) => Some("it is not a valid file name"),
        _ if name.len() > NAME_LEN_MAX => Some("it is longer than 255 bytes"),
        HIDDEN if place.parent == root => Some("the mount's own folder has this name"),
        _ if place.parent == root && is_name_on_its_way(name) => Some("it is reserved for incoming files"),
        _ => None,
    }
}
