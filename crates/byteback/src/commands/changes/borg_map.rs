//! The range map that `borg create --map` of Borg 2 reads: `START LENGTH data|zero|same`, without a
//! gap, over the whole file.
//!
//! *same*: as in the archive that was made at the mark; *zero*: a hole; *data*: to be read. Borg
//! trusts the map and refuses one that does not have the file's length.
//!
//! The order makes the map right for a file that is being written to: the length and the holes are
//! taken first, then the changes are listed. A write in between is listed as changed, so it is not
//! called *same*. A write into a hole that was already seen is listed again next time, because the
//! consumer's moment is older.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use byteback_backup::{FileContent, file_change};
use byteback_extents::{ByteRange, ExtentSet};
use byteback_model::ByteString;
use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;

use super::Asked;
use crate::error::{CommandError, Result};
use crate::output::written;
use crate::settings::Settings;

pub(super) fn print(asked: &Asked<'_>, file: &Path, path: &ByteString, settings: &Settings) -> Result<()> {
    let failed = |error: &io::Error| CommandError::file("read", file, error);
    let opened = open(file).map_err(|error| failed(&error))?;
    let metadata = opened.metadata().map_err(|error| failed(&error))?;
    let no_file = || {
        CommandError::new(format!("{} is not a regular file", file.display()))
            .next("A Borg map describes the content of one file; for whole folders use --format paths or files.")
    };
    if !metadata.is_file() {
        return Err(no_file());
    }
    let len_bytes = metadata.len();
    let holes = holes(&opened, len_bytes).map_err(|error| failed(&error))?;
    let change = asked
        .look(settings, |info| Ok(file_change(asked.tree, info, path)?))?
        .ok_or_else(no_file)?;
    let changed = match change.content {
        FileContent::Ranges(changed) => changed,
        FileContent::Whole(_) => ByteRange::new(0, len_bytes).into_iter().collect(),
    };
    if len_bytes == 0 {
        settings
            .output
            .warn("the file is empty, and Borg accepts no map of an empty file: save it without a map");
    }
    let mut out = BufWriter::new(io::stdout().lock());
    for (range, state) in map(len_bytes, &changed, &holes) {
        written(writeln!(out, "{} {} {state}", range.start(), range.len_bytes()))?;
    }
    written(out.flush())
}

/// Opens a path that may be a file. Does not wait for a writer if it is a FIFO.
pub(in crate::commands) fn open(file: &Path) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    File::options().read(true).custom_flags(nonblocking).open(file)
}

/// The map of a file: ascending, without gaps.
fn map(len_bytes: u64, changed: &ExtentSet, holes: &ExtentSet) -> Vec<(ByteRange, &'static str)> {
    let Some(all) = ByteRange::new(0, len_bytes) else {
        return Vec::new();
    };
    let mut map: Vec<_> = changed.gaps_within(all).map(|same| (same, "same")).collect();
    for changed in changed.iter_within(all) {
        map.extend(holes.iter_within(changed).map(|zero| (zero, "zero")));
        map.extend(holes.gaps_within(changed).map(|data| (data, "data")));
    }
    map.sort_unstable_by_key(|(range, _)| range.start());
    map
}

/// The holes of a file. On a file system without holes there are none.
pub(in crate::commands) fn holes(file: &File, len_bytes: u64) -> io::Result<ExtentSet> {
    let mut holes = ExtentSet::new();
    let mut at = 0;
    while at < len_bytes {
        let start = match seek(file, SeekFrom::Hole(at)) {
            Ok(start) => start.min(len_bytes),
            Err(Errno::INVAL | Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = match seek(file, SeekFrom::Data(start)) {
            Ok(end) => end.min(len_bytes),
            // No data up to the end.
            Err(Errno::NXIO) => len_bytes,
            Err(error) => return Err(error.into()),
        };
        if let Some(hole) = ByteRange::new(start, end) {
            holes.insert(hole);
        }
        at = end.max(at + 1);
    }
    Ok(holes)
}

#[cfg(test)]
mod tests;
