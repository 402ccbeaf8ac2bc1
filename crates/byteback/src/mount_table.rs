//! The kernel's table of mounts, read without touching any of them: a dead mount would not answer.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The type of our mounts in the table.
const TYPE: &str = "fuse.byteback";

/// A mount of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    /// Where it is.
    pub(crate) point: PathBuf,
    /// Which directory it shows.
    pub(crate) directory: PathBuf,
}

/// Our mounts, living and dead, in the order in which they were made.
pub(crate) fn ours() -> std::io::Result<Vec<TableEntry>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

/// Our newest mount at `point`, which is absolute and without symlinks.
pub(crate) fn at(point: &Path) -> Option<TableEntry> {
    ours().ok()?.into_iter().rev().find(|mount| mount.point == point)
}

fn parse(table: &[u8]) -> Vec<TableEntry> {
    let lines = table.split(|byte| *byte == b'\n');
    lines.filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /point rw,noatime master:1 - type source options`, with any number of fields before the dash.
fn parse_line(line: &[u8]) -> Option<TableEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let point = fields.nth(4)?;
    let mut behind_dash = fields.skip_while(|field| *field != b"-").skip(1);
    let path = |field| PathBuf::from(OsString::from_vec(unescape(field)));
    (behind_dash.next()? == TYPE.as_bytes()).then_some(())?;
    Some(TableEntry {
        point: path(point),
        directory: path(behind_dash.next()?),
    })
}

/// Spaces and the like are written as three octal digits behind a backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind
            .get(..3)
            .filter(|digits| *first == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        let value = digits.map(|digits| {
            digits
                .iter()
                .fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'))
        });
        match value.and_then(|value| u8::try_from(value).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = behind.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests;
