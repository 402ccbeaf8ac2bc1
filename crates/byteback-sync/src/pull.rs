//! Pull: a directory of this machine is made what a server has at a place, without a mount, a log
//! or any state of its own.
//!
//! It is a restore that looks first. What has the same path, kind, length and time of change is
//! taken for unchanged (with [`PullOptions::checksum`], what has the same content); contents that
//! differ are put together from what is here and what is fetched (`restore/near`). Nothing gets its
//! name before it is whole and durable.
//!
//! *Paths.* The content of a directory at the server becomes the content of the target, which is
//! made if it is missing; anything else goes into the target under its own name. Names that are one
//! file at the server become names of one inode.
//!
//! *Interrupted.* A file of 64 KiB and more is made under the name `.byteback-partial-` and 32
//! hexadecimal digits, in its own directory. The next pull goes on from there. Such names are
//! neither pushed nor pulled.
//!
//! Out of scope: write into a file in place (its old content stays until the new one is
//! whole, so there must be room for both).

use crate::error::{Result, ServerError, ServerErrorKind, SyncError};
use crate::exclude::Exclude;
use crate::monitor::{Event, Monitor, Phase};
use crate::restore::{Origin, RestoreReport, Wishes};
use crate::server_client::ServerClient;
use byteback_api::FolderName;
use serde::Serialize;
use std::path::Path;

/// How to pull.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// Only say what would be changed.
    pub dry_run: bool,
    /// Remove here what the server does not have.
    pub delete: bool,
    /// Look into files of the same length and time, too.
    pub checksum: bool,
    /// Make immutable and append-only flags the same, too, and change what has them here: needs
    /// privilege.
    pub flags: bool,
    /// What is neither fetched nor removed.
    pub exclude: Exclude,
    /// How many files are fetched at the same time.
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

/// What a pull did, or with a dry run would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PullReport {
    /// Nothing was changed: only looked at.
    pub dry_run: bool,
    /// Names that were not here.
    pub new: u64,
    /// Nodes that were something else, or had another content.
    pub changed: u64,
    /// Nodes of which only attributes changed.
    pub attributes_changed: u64,
    /// Bytes that were taken from files that were here.
    pub found_bytes: u64,
    /// Bytes that an interrupted pull had left.
    pub resumed_bytes: u64,
    /// All else that a restore tells.
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

/// Makes `target` what lies at `path` of the newest state of a folder.
///
/// # Errors
/// A server that fails or is not to be trusted, an unusable target or a full disk; what is whole by
/// then is in its place. What concerns one file only is no error: see
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
    let began_ns = clock.monotonic_ns();
    let wire_before = server.wire_bytes();
    monitor.event(Event::Phase(Phase::Preparing));
    let info = server.folder(folder)?;
    if info.seq == 0 {
        return Err(SyncError::Server(ServerError {
            kind: ServerErrorKind::NotFound,
            request: "pull".to_owned(),
            message: format!("folder '{folder}' is empty: nothing was ever saved in it"),
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
    restored.total_ns = clock.monotonic_ns().saturating_sub(began_ns);
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
