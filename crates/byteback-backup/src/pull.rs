//! Pull: makes a directory of this machine equal to a place at a server, without a mount, a log or
//! any state of its own.
//!
//! A pull is a restore that looks first. A node with the same path, kind, length and modification
//! time is taken for unchanged (with [`PullOptions::checksum`], one with the same content);
//! contents that differ are put together from local and fetched bytes (`restore/near`). Nothing
//! gets its name before it is whole and durable.
//!
//! *Paths.* The content of a directory at the server becomes the content of the target, which is
//! made if it is missing; anything else goes into the target under its own name. Names that are one
//! file at the server become names of one inode.
//!
//! *Interrupted.* A file of 64 KiB and more is made under the name `.byteback-partial-` and 32
//! hexadecimal digits, in its own directory. The next pull goes on from there. Such names are
//! neither pushed nor pulled.
//!
//! Out of scope: writing into a file in place (its old content stays until the new one is whole, so
//! there must be room for both).

use crate::error::{BackupError, Result};
use crate::exclude::Exclude;
use crate::monitor::{Event, Monitor, Phase};
use crate::restore::{Origin, RestoreReport, Wishes};
use byteback_api::FolderName;
use byteback_client::ServerClient;
use byteback_client::{ServerError, ServerErrorKind};
use serde::Serialize;
use std::path::Path;

/// How to pull.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// Only report what would be changed.
    pub dry_run: bool,
    /// Remove local nodes that the server does not have.
    pub delete: bool,
    /// Compare the contents of files of the same length and time, too.
    pub checksum: bool,
    /// Make immutable and append-only flags the same, too, and change local nodes that have them:
    /// needs privilege.
    pub flags: bool,
    /// Paths that are neither fetched nor removed.
    pub exclude: Exclude,
    /// Number of files fetched at the same time.
    pub jobs: usize,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self {
            dry_run: false,
            delete: false,
            checksum: false,
            flags: false,
            exclude: Exclude::default(),
            jobs: 4,
        }
    }
}

/// Result of a pull, or with a dry run the expected one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PullReport {
    /// Whether it was a dry run: nothing was changed.
    pub dry_run: bool,
    /// Names that did not exist here.
    pub new: u64,
    /// Nodes of another kind or with another content.
    pub changed: u64,
    /// Nodes of which only attributes changed.
    pub attributes_changed: u64,
    /// Bytes taken from files that were here.
    pub found_bytes: u64,
    /// Bytes left by an interrupted pull.
    pub resumed_bytes: u64,
    /// The remaining numbers, as of any restore.
    #[serde(flatten)]
    pub restored: RestoreReport,
}

impl PullReport {
    /// Whether there was anything to change.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.new > 0 || self.changed > 0 || self.attributes_changed > 0 || self.restored.removed > 0
    }
}

/// Makes `target` equal to `path` in the newest state of a folder.
///
/// # Errors
/// A server that fails or is not to be trusted, an unusable target or a full disk; files that are
/// whole by then are in their place. A failure that concerns one file only is no error: see
/// [`RestoreReport::not_restored`].
pub fn pull(
    server: &ServerClient,
    folder: &FolderName,
    path: &[u8],
    target: &Path,
    options: &PullOptions,
    monitor: &dyn Monitor,
) -> Result<PullReport> {
    let clock = server.clock();
    let started_ns = clock.monotonic_ns();
    let wire_before = server.wire_bytes();
    monitor.event(Event::Phase(Phase::Preparing));
    let info = server.folder(folder)?;
    if info.seq == 0 {
        return Err(BackupError::Server(ServerError {
            kind: ServerErrorKind::NotFound,
            request: "pull".to_owned(),
            message: format!("folder '{folder}' is empty: nothing has been saved in it yet"),
            next: "Push something into it first.".to_owned(),
            problem: None,
            source: None,
        }));
    }
    let origin = Origin {
        server,
        folder,
        at: info.seq,
        path,
    };
    let wishes = Wishes {
        exclude: &options.exclude,
        delete: options.delete,
        checksum: options.checksum,
        flags: options.flags,
        jobs: options.jobs,
    };
    let (mut restored, pulled) = match options.dry_run {
        true => origin.look_at(target, &wishes, monitor)?,
        false => origin.pull_into(target, &wishes, monitor)?,
    };
    restored.wire = server.wire_bytes().since(wire_before);
    restored.total_ns = clock.monotonic_ns().saturating_sub(started_ns);
    Ok(PullReport {
        dry_run: options.dry_run,
        new: pulled.new,
        changed: pulled.changed,
        attributes_changed: pulled.attributes_changed,
        found_bytes: pulled.found_bytes,
        resumed_bytes: pulled.resumed_bytes,
        restored,
    })
}
