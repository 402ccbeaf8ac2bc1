//! The record of a folder's last backup: the consumer's state in the folder's log, and the few
//! fields of the engine's note that users want to see.

use byteback_control::{ConsumerStatus, TreeStatus};
use byteback_model::Seq;
use serde::Deserialize;

/// The last backup of a folder; see the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastBackup<'a> {
    consumer: &'a ConsumerStatus,
}

#[derive(Deserialize)]
struct Note {
    snapshot_id: Option<u64>,
    seq: Seq,
}

impl<'a> LastBackup<'a> {
    /// Finds the last of the backups of this consumer.
    pub(crate) fn find(status: &'a TreeStatus, consumer: &str) -> Option<Self> {
        let consumer = status.consumers.iter().find(|known| known.name == consumer)?;
        Some(Self { consumer })
    }

    /// When the backup was made; `None` if none was ever completed.
    pub(crate) fn saved_at_ns(self) -> Option<i64> {
        self.consumer.mark.map(|_| self.consumer.saved_at_ns)
    }

    /// The snapshot that the backup made.
    pub(crate) fn snapshot_id(self) -> Option<u64> {
        self.note()?.snapshot_id
    }

    /// The folder's sequence number at that time.
    pub(crate) fn seq(self) -> Option<Seq> {
        Some(self.note()?.seq)
    }

    /// Whether a later backup did not complete: the next one asks the server for its outcome.
    pub(crate) fn has_pending(self) -> bool {
        self.consumer.pending.is_some()
    }

    fn note(self) -> Option<Note> {
        serde_json::from_slice(&self.consumer.note).ok()
    }
}
