//! The result of a backup, in numbers that a person can check.

use byteback_client::WireBytes;
use byteback_model::{ByteString, DeviceId, Seq};
use serde::Serialize;

/// Why a file was sent whole instead of its changed ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WholeFiles {
    /// The file did not exist at the last backup.
    pub created: u64,
    /// There is no last backup to build on.
    pub no_mark: u64,
    /// The file changed while it was not tracked.
    pub untracked: u64,
    /// The daemon or the machine stopped while it was open for change.
    pub interrupted: u64,
    /// The file could not be saved last time.
    pub unsaved_before: u64,
    /// The log had dropped this backup, because it was not heard of for long or by order.
    pub dropped: u64,
    /// The log was damaged or taken away, and began anew.
    pub log_lost: u64,
}

/// A file that could not be saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnsavedFile {
    /// Its path, or its number where the path is unknown.
    pub path: ByteString,
    /// The reason.
    pub reason: String,
}

/// How long the phases took, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BackupDurations {
    /// Asking server and log, until the cut.
    pub prepare_ns: u64,
    /// The cut.
    pub cut_ns: u64,
    /// Reading and sending.
    pub transfer_ns: u64,
    /// Waiting for the server to apply the batch.
    pub commit_ns: u64,
    /// All.
    pub total_ns: u64,
}

/// Result of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BackupReport {
    /// Whether it was a dry run: nothing was sent.
    pub dry_run: bool,
    /// Why everything was reported instead of the changes since last time.
    pub everything_because: Option<String>,
    /// Nodes of the tree at the cut.
    pub tree_nodes: u64,
    /// Files that are new.
    pub files_new: u64,
    /// Files that were there and have new content or attributes.
    pub files_changed: u64,
    /// Directories that are new.
    pub dirs_new: u64,
    /// Directories that were there and have new attributes.
    pub dirs_changed: u64,
    /// Symlinks, pipes, sockets and devices that are new or changed.
    pub others: u64,
    /// Names that were added.
    pub names_added: u64,
    /// Names that were removed.
    pub names_removed: u64,
    /// Files sent whole, and why.
    pub whole: WholeFiles,
    /// Bytes of content that may have changed: what the log reports, clipped to the files' lengths.
    pub changed_bytes: u64,
    /// Bytes of content read from the folder's files.
    pub read_bytes: u64,
    /// Files that were looked for in the server's version of them, instead of being sent whole.
    pub examined_files: u64,
    /// Of these, files whose contents follow those of another file of the server: the one that they
    /// replaced, or, when everything had to be sent, the one at the same path.
    pub followed_files: u64,
    /// Bytes that were hashed to find the changes: none where the log knows them.
    pub hashed_bytes: u64,
    /// Bytes of examined files that the server has already: the saving by hashing.
    pub found_bytes: u64,
    /// Bytes of content that were sent, before compression. Holes are not sent.
    pub literal_bytes: u64,
    /// Growth of the server's store in bytes, as the server reports it.
    pub stored_bytes: u64,
    /// Bytes on the socket, headers included.
    pub wire: WireBytes,
    /// Old bytes that the daemon kept because programs overwrote them before they were read.
    pub kept_bytes: u64,
    /// CPU time of the folder's daemon, nanoseconds.
    pub daemon_cpu_ns: u64,
    /// Damaged frames of the server that were healed with bytes of this machine.
    pub healed_frames: u64,
    /// Files that are damaged at the server and can be healed only by sending them anew: by this
    /// backup if they had changed, else by the next one.
    pub damaged_files: u64,
    /// Files that could not be saved and will be tried again.
    pub unsaved: Vec<UnsavedFile>,
    /// The folder's sequence number now; none after a dry run of a first backup.
    pub seq: Option<Seq>,
    /// The snapshot.
    pub snapshot_id: Option<u64>,
    /// The device that made the backup.
    pub device: DeviceId,
    /// The batch; 0 if none was needed.
    pub counter: u64,
    /// Parts that were staged before the commit.
    pub parts: u32,
    /// Staged parts that an interrupted backup had sent already.
    pub parts_reused: u32,
    /// Bytes of the parts that were not sent again.
    pub reused_bytes: u64,
    /// Durations.
    pub durations: BackupDurations,
}

impl BackupReport {
    /// Whether everything was saved.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.unsaved.is_empty()
    }

    /// The report of this backup and another batch right after it.
    pub(super) fn followed_by(self, next: Self) -> Self {
        let has_changes = next.has_changes();
        let durations = BackupDurations {
            cut_ns: self.durations.cut_ns.saturating_add(next.durations.cut_ns),
            transfer_ns: self.durations.transfer_ns.saturating_add(next.durations.transfer_ns),
            commit_ns: self.durations.commit_ns.saturating_add(next.durations.commit_ns),
            ..self.durations
        };
        Self {
            files_changed: self.files_changed + next.files_changed,
            changed_bytes: self.changed_bytes + next.changed_bytes,
            read_bytes: self.read_bytes + next.read_bytes,
            literal_bytes: self.literal_bytes + next.literal_bytes,
            stored_bytes: self.stored_bytes + next.stored_bytes,
            kept_bytes: self.kept_bytes + next.kept_bytes,
            parts: self.parts + next.parts,
            parts_reused: self.parts_reused + next.parts_reused,
            reused_bytes: self.reused_bytes + next.reused_bytes,
            seq: next.seq.or(self.seq),
            snapshot_id: next.snapshot_id.or(self.snapshot_id),
            counter: if has_changes { next.counter } else { self.counter },
            daemon_cpu_ns: next.daemon_cpu_ns,
            unsaved: next.unsaved,
            durations,
            ..self
        }
    }

    /// Whether a batch was needed.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.counter != 0
    }
}
