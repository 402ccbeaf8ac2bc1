//! The kernel's table of mounts, read without touching any of them: a dead mount would not answer.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

const TABLE: &str = "/proc/self/mountinfo";

/// The type that `mount` and `/proc/mounts` show for our mounts.
pub(crate) const TYPE: &str = "fuse.byteback";

/// Begins the source of our mounts in the kernel's table; the directory follows. A bare path would
/// be looked at by programs that go through the table (mkfs.btrfs), and a folder that a user
/// mounted over itself refuses everybody else, root too.
pub(crate) const SOURCE_PREFIX: &str = "byteback:";

/// A mount of the table, ours or foreign.
struct Entry {
    id: u64,
    parent: u64,
    point: PathBuf,
    kind: Vec<u8>,
    source: OsString,
}

impl Entry {
    /// The directory that it shows, if it is one of ours.
    fn shown(&self) -> Option<PathBuf> {
        let source = self.source.as_bytes();
        let directory = source.strip_prefix(SOURCE_PREFIX.as_bytes())?;
        (self.kind == TYPE.as_bytes()).then(|| PathBuf::from(OsStr::from_bytes(directory)))
    }

    fn shows(&self, directory: &Path) -> bool {
        self.shown().is_some_and(|shown| shown == directory)
    }
}

/// A mount of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// Where it is.
    pub point: PathBuf,
    /// The directory that it shows.
    pub directory: PathBuf,
}

/// Our mounts, living and dead, in the order in which they were made.
///
/// # Errors
/// If the table cannot be read.
pub fn ours() -> std::io::Result<Vec<TableEntry>> {
    Ok(parse(&fs::read(TABLE)?))
}

/// Our newest mount at `point`, which is absolute and without symlinks.
#[must_use]
pub fn at(point: &Path) -> Option<TableEntry> {
    ours().ok()?.into_iter().rev().find(|mount| mount.point == point)
}

/// The mount points below `directory` that hide a part of it, the uppermost of each: what lies in
/// them is not tracked.
#[must_use]
pub fn hiding_below(directory: &Path) -> Vec<PathBuf> {
    // Without the table nothing is known, which is no reason to fail.
    let table = fs::read(TABLE).unwrap_or_default();
    parse_hiding(&table, directory)
}

fn parse_hiding(table: &[u8], directory: &Path) -> Vec<PathBuf> {
    let entries = parse_all(table);
    let ours: Vec<u64> = entries
        .iter()
        .filter(|entry| entry.shows(directory))
        .map(|entry| entry.id)
        .collect();
    let mut points: Vec<PathBuf> = Vec::new();
    for entry in &entries {
        let is_below = entry.point.starts_with(directory) && entry.point != directory;
        // A folder in the tracked folder, tracked by itself and mounted later: behind it is what it
        // shows.
        let is_transparent = ours.contains(&entry.parent) && entry.shows(&entry.point);
        if is_below && !is_transparent {
            points.push(entry.point.clone());
        }
    }
    points.sort();
    points.dedup_by(|below, above| below.starts_with(above));
    points
}

fn parse(table: &[u8]) -> Vec<TableEntry> {
    let entries = parse_all(table).into_iter();
    let ours = entries.filter_map(|entry| {
        let directory = entry.shown()?;
        let point = entry.point;
        Some(TableEntry { point, directory })
    });
    ours.collect()
}

fn parse_all(table: &[u8]) -> Vec<Entry> {
    let lines = table.split(|byte| *byte == b'\n');
    lines.filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /point rw,noatime master:1 - type source options`, with any number of fields
/// before the dash.
fn parse_line(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse::<u64>().ok();
    let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
    let point = fields.nth(2)?;
    let mut behind_dash = fields.skip_while(|field| *field != b"-").skip(1);
    let name = |field| OsString::from_vec(unescape(field));
    Some(Entry {
        id,
        parent,
        point: name(point).into(),
        kind: behind_dash.next()?.to_vec(),
        source: name(behind_dash.next()?),
    })
}

/// Spaces, tabs, newlines and backslashes are written as three octal digits behind a backslash.
pub(crate) fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, others)) = rest.split_first() {
        if let (b'\\', Some([a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..])) = (first, Some(others)) {
            plain.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
            rest = tail;
        } else {
            plain.push(*first);
            rest = others;
        }
    }
    plain
}

#[cfg(test)]
mod tests;
