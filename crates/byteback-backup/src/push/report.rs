//! Result of a push.

use crate::backup::UnsavedFile;
use byteback_client::WireBytes;
use byteback_model::Seq;
use serde::Serialize;

/// Result of a push, or with a dry run the expected one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PushReport {
    /// Whether it was a dry run: nothing was changed.
    pub dry_run: bool,
    /// Whether the folder did not exist before.
    pub folder_is_new: bool,
    /// Whether parts of an interrupted push were used.
    pub resumed: bool,
    /// The sequence number that was compared with.
    pub base_seq: Seq,
    /// The batch's number; none when nothing had changed.
    pub counter: Option<u64>,
    /// The sequence number that the batch got.
    pub seq: Option<Seq>,
    /// The snapshot that names it.
    pub snapshot_id: Option<u64>,
    /// Files that the server did not have.
    pub files_new: u64,
    /// Files with another content than at the server.
    pub files_changed: u64,
    /// Files with the content of a file at a path that is gone here.
    pub files_moved: u64,
    /// Further files with a content that the server had in another file.
    pub files_copied: u64,
    /// New directories.
    pub dirs_new: u64,
    /// Directories that had another path before; files in them count as what became of them.
    pub dirs_moved: u64,
    /// New links and special files, and further names of files.
    pub others_new: u64,
    /// Nodes of which only attributes changed.
    pub attributes_changed: u64,
    /// Names removed at the server whose nodes have not become others.
    pub removed: u64,
    /// Nodes that were the same on both ends.
    pub unchanged: u64,
    /// Lengths of the files whose content was sent.
    pub changed_bytes: u64,
    /// Bytes of local files that were read.
    pub read_bytes: u64,
    /// Bytes of local files that were hashed to find them at the server.
    pub hashed_bytes: u64,
    /// The hashed bytes that the server had.
    pub found_bytes: u64,
    /// Bytes of content that were sent, before compression.
    pub literal_bytes: u64,
    /// Bytes that the server stored.
    pub stored_bytes: u64,
    /// Parts that were staged before the commit.
    pub parts: u32,
    /// Staged parts that the server had from an interrupted push.
    pub parts_reused: u32,
    /// Bytes of those parts.
    pub reused_bytes: u64,
    /// Bytes on the socket.
    pub wire: WireBytes,
    /// Total duration, in nanoseconds.
    pub total_ns: u64,
    /// Files that could not be sent.
    pub unsaved: Vec<UnsavedFile>,
}

impl PushReport {
    /// Whether the server now has everything that is here.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.unsaved.is_empty()
    }

    /// Adds the counts of an earlier round of the same push.
    pub(super) fn absorb(&mut self, earlier: &Self) {
        self.folder_is_new |= earlier.folder_is_new;
        self.resumed |= earlier.resumed;
        self.counter = self.counter.or(earlier.counter);
        self.seq = self.seq.or(earlier.seq);
        self.snapshot_id = self.snapshot_id.or(earlier.snapshot_id);
        for (sum, more) in [
            (&mut self.files_new, earlier.files_new),
            (&mut self.files_changed, earlier.files_changed),
            (&mut self.files_moved, earlier.files_moved),
            (&mut self.files_copied, earlier.files_copied),
            (&mut self.dirs_new, earlier.dirs_new),
            (&mut self.dirs_moved, earlier.dirs_moved),
            (&mut self.others_new, earlier.others_new),
            (&mut self.attributes_changed, earlier.attributes_changed),
            (&mut self.removed, earlier.removed),
            (&mut self.changed_bytes, earlier.changed_bytes),
            (&mut self.read_bytes, earlier.read_bytes),
            (&mut self.hashed_bytes, earlier.hashed_bytes),
            (&mut self.found_bytes, earlier.found_bytes),
            (&mut self.literal_bytes, earlier.literal_bytes),
            (&mut self.stored_bytes, earlier.stored_bytes),
            (&mut self.reused_bytes, earlier.reused_bytes),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.parts = self.parts.saturating_add(earlier.parts);
        self.parts_reused = self.parts_reused.saturating_add(earlier.parts_reused);
    }

    /// Whether there was anything to change.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        let counts = [
            self.files_new,
            self.files_changed,
            self.files_moved,
            self.files_copied,
            self.dirs_new,
            self.dirs_moved,
            self.others_new,
            self.attributes_changed,
            self.removed,
        ];
        counts.iter().any(|count| *count > 0)
    }
}
