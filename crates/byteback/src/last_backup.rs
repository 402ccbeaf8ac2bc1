//! What is remembered of the last backup of a folder: the consumer's state in the folder's log, and
//! the few fields of the engine's note that people want to see.

use byteback_control::{ConsumerStatus, TreeStatus};
use byteback_model::Seq;
use serde::Deserialize;

/// See the module.
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
    /// Of the backups that are known under this name.
    pub(crate) fn find(status: &'a TreeStatus, consumer: &str) -> Option<Self> {
        let consumer = status.consumers.iter().find(|known| known.name == consumer)?;
        Some(Self { consumer })
    }

    /// When it was made, if one ever ended.
    pub(crate) fn saved_at_ns(self) -> Option<i64> {
        self.consumer.mark.map(|_| self.consumer.saved_at_ns)
    }

    /// The snapshot that it made.
    pub(crate) fn snapshot_id(self) -> Option<u64> {
        self.note()?.snapshot_id
    }

    /// The folder's sequence number then.
    pub(crate) fn seq(self) -> Option<Seq> {
        Some(self.note()?.seq)
    }

    /// Whether a later one did not end: the next one asks the server what became of it.
    pub(crate) fn has_pending(self) -> bool {
        self.consumer.pending.is_some()
    }

    fn note(self) -> Option<Note> {
        serde_json::from_slice(&self.consumer.note).ok()
    }
}
