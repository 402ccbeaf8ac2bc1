//! Ranges of a file that the server cannot read: requested, checked, and put into words.

use crate::error::{BackupError, Result};
use crate::monitor::{Monitor, check_cancelled};
use byteback_api::FolderName;
use byteback_api::messages::DamagedRange;
use byteback_client::ServerClient;
use byteback_extents::ByteRange;
use byteback_model::{FileId, Seq};

/// Ranges of one file that are kept in memory; a file with more is reported as damaged from there
/// on.
const RANGES_MAX: usize = 1 << 20;

/// Ranges named in a message.
const NAMED_MAX: usize = 3;

/// The ranges of a file of `size` bytes that the server cannot read at a moment, ascending, not
/// touching each other. The server reads the whole file for this.
///
/// # Errors
/// As every call; also if the server names ranges that the file does not have.
pub(crate) fn damaged_ranges(
    server: &ServerClient,
    folder: &FolderName,
    (id, at, size): (FileId, Seq, u64),
    monitor: &dyn Monitor,
) -> Result<Vec<ByteRange>> {
    let mut ranges: Vec<ByteRange> = Vec::new();
    let mut cursor: Option<String> = None;
    let hostile = || BackupError::hostile(format!("the damaged ranges of file {id} lie outside it or do not end"));
    loop {
        check_cancelled(monitor)?;
        let page = server.damage_page(folder, id, at, cursor.as_deref())?;
        for DamagedRange { offset, len } in page.ranges {
            let range = ByteRange::from_offset_len(offset, len).filter(|range| range.end() <= size);
            let range = range.ok_or_else(hostile)?;
            match ranges.last_mut() {
                Some(last) if last.end() > range.start() => return Err(hostile()),
                Some(last) if last.end() == range.start() => *last = last.hull(range),
                _ => ranges.push(range),
            }
        }
        if ranges.len() >= RANGES_MAX {
            if let Some(rest) = ranges.last().and_then(|last| ByteRange::new(last.start(), size)) {
                ranges.pop();
                ranges.push(rest);
            }
            return Ok(ranges);
        }
        match page.next_cursor {
            None => return Ok(ranges),
            // Cursors are offsets and grow; a repeated one would loop forever.
            Some(next) if Some(&next) == cursor.as_ref() => return Err(hostile()),
            next => cursor = next,
        }
    }
}

/// The gaps between ranges of a file of `size` bytes.
pub(crate) fn between(ranges: &[ByteRange], size: u64) -> Vec<ByteRange> {
    let mut between = Vec::new();
    let mut from = 0;
    for range in ranges {
        between.extend(ByteRange::new(from, range.start()));
        from = range.end();
    }
    between.extend(ByteRange::new(from, size));
    between
}

/// "bytes 0 to 10, 20 to 30 and 2 more ranges (44 bytes)".
pub(crate) fn named(ranges: &[ByteRange]) -> String {
    let named: Vec<String> = ranges
        .iter()
        .take(NAMED_MAX)
        .map(|range| format!("{} to {}", range.start(), range.end()))
        .collect();
    let total: u64 = ranges.iter().map(|range| range.len_bytes()).sum();
    let more = match ranges.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        1 => " and 1 more range".to_owned(),
        more => format!(" and {more} more ranges"),
    };
    format!("bytes {}{more} ({total} in all)", named.join(", "))
}

#[cfg(test)]
mod tests;
