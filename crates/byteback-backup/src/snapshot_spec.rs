//! Specifications of a snapshot: `latest`, `latest~N` (the N-th before the latest), its number, or
//! `@N` for any moment of the folder by its sequence number.

use crate::error::{BackupError, Result};
use byteback_api::FolderName;
use byteback_client::ServerClient;
use byteback_model::{Seq, Snapshot, SnapshotLabel};
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// Names one snapshot of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SnapshotSpec {
    /// The N-th before the newest; 0 is the newest.
    Latest(u32),
    /// The snapshot of this number.
    Id(u64),
    /// The folder after this batch, whether a snapshot names it or not.
    Moment(Seq),
}

impl Default for SnapshotSpec {
    fn default() -> Self {
        Self::Latest(0)
    }
}

/// A text that names no snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a snapshot; write 'latest', 'latest~1' for the one before, a number from 'snapshots', or @ and a \
     number from 'versions'"
)]
pub struct ParseSnapshotSpecError(String);

impl FromStr for SnapshotSpec {
    type Err = ParseSnapshotSpecError;

    fn from_str(text: &str) -> Result<Self, ParseSnapshotSpecError> {
        let wrong = || ParseSnapshotSpecError(text.to_owned());
        // `parse` also accepts a plus sign, which nobody means.
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if text == "latest" {
            return Ok(Self::Latest(0));
        }
        if let Some(back) = text.strip_prefix("latest~") {
            return match digits(back).then(|| back.parse()) {
                Some(Ok(back)) => Ok(Self::Latest(back)),
                _ => Err(wrong()),
            };
        }
        if let Some(seq) = text.strip_prefix('@') {
            return match digits(seq).then(|| seq.parse()) {
                Some(Ok(seq)) => Ok(Self::Moment(seq)),
                _ => Err(wrong()),
            };
        }
        match digits(text).then(|| text.parse()) {
            Some(Ok(id)) => Ok(Self::Id(id)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for SnapshotSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest(0) => f.write_str("latest"),
            Self::Latest(back) => write!(f, "latest~{back}"),
            Self::Id(id) => id.fmt(f),
            Self::Moment(seq) => write!(f, "@{seq}"),
        }
    }
}

/// Hands all snapshots of a folder to `each`, oldest first.
///
/// # Errors
/// If the server cannot be asked, or its pages do not end.
pub fn snapshots(
    server: &ServerClient,
    folder: &FolderName,
    mut each: impl FnMut(Snapshot) -> Result<()>,
) -> Result<()> {
    let mut cursor: Option<String> = None;
    let mut last_id = None;
    loop {
        let page = server.snapshot_page(folder, cursor.as_deref())?;
        if page.snapshots.is_empty() && page.next_cursor.is_some() {
            return Err(BackupError::hostile("an empty page of snapshots announces another one"));
        }
        for snapshot in page.snapshots {
            // Ascending numbers also rule out pages that go in circles.
            if last_id >= Some(snapshot.id) {
                return Err(BackupError::hostile(format!(
                    "snapshot {} is listed out of order",
                    snapshot.id
                )));
            }
            last_id = Some(snapshot.id);
            each(snapshot)?;
        }
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => return Ok(()),
        }
    }
}

/// Finds the snapshot that `spec` names. A moment without a snapshot is returned with the number 0
/// and an empty label.
///
/// # Errors
/// [`BackupError::NoSuchSnapshot`], or if the server cannot be asked.
pub fn resolve_snapshot(server: &ServerClient, folder: &FolderName, spec: SnapshotSpec) -> Result<Snapshot> {
    let none = || BackupError::NoSuchSnapshot {
        spec: spec.to_string(),
        folder: folder.to_string(),
    };
    if let SnapshotSpec::Moment(seq) = spec {
        let is_there = (1..=server.folder(folder)?.seq).contains(&seq);
        // A moment has no number of its own.
        let label = SnapshotLabel {
            time_ns: 0,
            host: "".into(),
            path: "".into(),
            tags: Vec::new(),
        };
        return is_there.then_some(Snapshot { id: 0, seq, label }).ok_or_else(none);
    }
    let keep = match spec {
        SnapshotSpec::Latest(back) => usize::try_from(back).unwrap_or(usize::MAX).saturating_add(1),
        SnapshotSpec::Id(_) | SnapshotSpec::Moment(_) => 1,
    };
    let mut newest = VecDeque::new();
    snapshots(server, folder, |snapshot| {
        if let SnapshotSpec::Id(id) = spec
            && snapshot.id != id
        {
            return Ok(());
        }
        if newest.len() == keep {
            newest.pop_front();
        }
        newest.push_back(snapshot);
        Ok(())
    })?;
    if newest.len() < keep {
        return Err(none());
    }
    newest.pop_front().ok_or_else(none)
}

#[cfg(test)]
mod tests;
