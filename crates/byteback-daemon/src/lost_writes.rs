//! A note that a volume lost what programs had written, because its device refused it.
//!
//! The note is in the state folder (file `lost-writes`), where an unmount and a request for the
//! state find it after the daemon is gone. The disk may be full at that very moment, and state and
//! image often lie on the same disk. So the file gets its length at the mount, and noting a loss
//! only writes over it.
//!
//! The file is one JSON object, padded with spaces: `{"version":1,"lost":null}` or
//! `{"version":1,"lost":{"at_ns":...,"volume":...,"reason":...}}`.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;

use byteback_model::ByteString;
use serde::{Deserialize, Serialize};

use crate::state_folder::StateFolder;

/// The file of the note in the state folder.
pub(crate) const LOST_NAME: &str = "lost-writes";
const VERSION: u32 = 1;
const LEN_BYTES: usize = 4096;
/// Longest reason that is kept, so that the rest fits.
const REASON_BYTES_MAX: usize = 1024;

/// Writes that a volume lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostWrites {
    /// When the loss was noticed, in nanoseconds since 1970.
    pub at_ns: i64,
    /// The file or device of the volume.
    pub volume: ByteString,
    /// The error of the device.
    pub reason: String,
}

#[derive(Serialize, Deserialize)]
struct Note {
    version: u32,
    lost: Option<LostWrites>,
}

impl StateFolder {
    /// The writes that the volume lost when it was mounted last, because its device refused them.
    #[must_use]
    pub fn lost_writes(&self) -> Option<LostWrites> {
        read(self)
    }
}

/// The loss that was noted, if any; a note that cannot be read counts as none.
fn read(folder: &StateFolder) -> Option<LostWrites> {
    let text = fs::read(folder.path().join(LOST_NAME)).ok()?;
    let note: Note = serde_json::from_slice(&text).ok()?;
    (note.version == VERSION).then_some(note.lost).flatten()
}

/// Reserves the room for a note; an existing note stays.
pub(crate) fn reserve(folder: &StateFolder) -> io::Result<()> {
    match read(folder) {
        Some(_) => Ok(()),
        None => write(folder, None),
    }
}

/// Notes that nothing is lost.
pub(crate) fn reset(folder: &StateFolder) -> io::Result<()> {
    write(folder, None)
}

/// Notes a loss, unless an earlier one is noted.
pub(crate) fn note(folder: &StateFolder, lost: LostWrites) -> io::Result<()> {
    match read(folder) {
        Some(_) => Ok(()),
        None => write(folder, Some(lost)),
    }
}

fn write(folder: &StateFolder, lost: Option<LostWrites>) -> io::Result<()> {
    let lost = lost.map(|mut lost| {
        let mut end = lost.reason.len().min(REASON_BYTES_MAX);
        while !lost.reason.is_char_boundary(end) {
            end -= 1;
        }
        lost.reason.truncate(end);
        lost
    });
    let mut text = serde_json::to_vec(&Note { version: VERSION, lost })?;
    // A longer note (with a very long path) is not cut off; it only needs room.
    text.resize(text.len().max(LEN_BYTES), b' ');
    let path = folder.path().join(LOST_NAME);
    let file = fs::File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    file.write_all_at(&text, 0)?;
    file.set_len(text.len() as u64)?;
    file.sync_all()
}

#[cfg(test)]
mod tests;
