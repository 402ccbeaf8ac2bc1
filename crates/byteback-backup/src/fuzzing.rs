//! Entry points of the fuzz targets (`fuzz/`): the readers of the client's own files, which are
//! private. Compiled for tests, which call them with the seeds, and with the feature `fuzzing`.

pub use crate::decisions::fuzzing::{decisions, decisions_seeds};

use crate::backup::note::Note;
use crate::snapshot_spec::SnapshotSpec;

/// Reads any bytes as the note of a backup and as the name of a snapshot; what is understood is
/// written as the same again.
pub fn note(data: &[u8]) {
    if let Some(note) = Note::from_bytes(data) {
        assert_eq!(
            Note::from_bytes(&note.to_bytes()),
            Some(note),
            "another note comes back"
        );
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(spec) = text.parse::<SnapshotSpec>()
    {
        assert_eq!(spec.to_string().parse(), Ok(spec), "another snapshot comes back");
    }
}

/// Notes and names of snapshots.
#[must_use]
pub fn note_seeds() -> Vec<Vec<u8>> {
    let note = r#"{"version":1,"server":"s","folder":"f","device":1,"counter":2,"seq":3,"snapshot_id":null,"root":"00000000000000000000000000000001","missing":[1],"left_out":[{"parent":1,"name":"n","child":2}],"everything_next":false}"#;
    [note, "latest", "latest~2", "17"]
        .map(|seed| seed.as_bytes().to_vec())
        .into()
}

#[cfg(test)]
mod tests;
