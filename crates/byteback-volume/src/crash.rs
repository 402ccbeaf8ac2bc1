//! Durable states of the volume, and the way back to one after a crash.
//!
//! | room | what it is for |
//! |---|---|
//! | [`checkpoint`] | the moment that a crash returns to |
//! | `sync` | one file, durable without a checkpoint |
//! | [`name_changes`] | names that such a file depends on |
//! | [`recovery`] | what a start makes of checkpoint and later blocks |
//! | [`written_pages`] | pages that a sync without a checkpoint vouches for |
//! | [`lost_writes`] | changed pages that cannot be written, as nodes that lead to them are lost |

pub(crate) mod checkpoint;
pub(crate) mod lost_writes;
pub(crate) mod name_changes;
pub(crate) mod recovery;
pub(crate) mod sync;
pub(crate) mod written_pages;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::{Result, VolumeError};
use crate::format::Nid;
use crate::inside::Companion;
use name_changes::NameChanges;
use written_pages::WrittenPages;

/// Changes of names since the last checkpoint. A file can be recovered without a new checkpoint
/// only if nothing happened to it but its creation.
#[derive(Debug, Default)]
pub(crate) struct SinceCheckpoint {
    /// Files that were made.
    pub(crate) made: BTreeSet<Nid>,
    /// Created files that were synced: a crash leaves them with their names.
    pub(crate) synced: BTreeSet<Nid>,
    /// Names that changed by that.
    pub(crate) names: NameChanges,
    /// Directories of which something else changed than names.
    pub(crate) attributes_of: BTreeSet<Nid>,
    /// Files that got or lost a name otherwise.
    pub(crate) renamed: BTreeSet<Nid>,
    /// Pages of files that were written.
    pub(crate) pages: BTreeMap<Nid, WrittenPages>,
    /// A name that stood for one file may stand for another, and the first one have another name.
    pub(crate) names_moved: bool,
    /// Whether anything may have changed.
    pub(crate) is_changed: bool,
}

/// The last checkpoint, what differs from it, and whether another one may be written.
pub(crate) struct Durability {
    /// Version of the last checkpoint.
    pub(crate) version: u64,
    /// Number of the pack with the last checkpoint: 0 or 1.
    pub(crate) pack: u32,
    /// Changes of names and pages since the last checkpoint.
    pub(crate) since: SinceCheckpoint,
    /// Companion, which keeps internal files in step with those of programs.
    pub(crate) companion: Option<Arc<dyn Companion>>,
    /// Files with changed pages that could not be written, and the error, until it is reported.
    lost_writes: BTreeMap<Nid, VolumeError>,
    /// Whether the volume may be changed.
    pub(crate) is_writable: bool,
    /// Error after which nothing is written any more.
    stopped: Option<String>,
}

impl Durability {
    /// A volume that may be changed, as a checkpoint left it.
    pub(crate) fn new(version: u64, pack: u32) -> Self {
        Self {
            version,
            pack,
            since: SinceCheckpoint::default(),
            companion: None,
            lost_writes: BTreeMap::new(),
            is_writable: true,
            stopped: None,
        }
    }

    /// Refuses any change if the volume is stopped or read-only.
    pub(crate) fn check_writable(&self) -> Result<()> {
        match &self.stopped {
            Some(reason) => Err(VolumeError::Stopped(reason.clone())),
            None if self.is_writable => Ok(()),
            None => Err(VolumeError::ReadOnly),
        }
    }

    /// A failed write leaves memory and device in disagreement: nothing more is written. A lack of
    /// room is no such failure.
    pub(crate) fn stop_after<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && self.stopped.is_none()
        {
            self.stopped = Some(error.to_string());
        }
        result
    }

    /// Error after which nothing is written any more.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// Reports the pages of a file that were lost since the last call.
    pub(crate) fn take_lost_writes(&mut self, ino: Nid) -> Result<()> {
        self.lost_writes.remove(&ino).map_or(Ok(()), Err)
    }

    /// Forgets what is known of a file, which is removed.
    pub(crate) fn forget_file(&mut self, ino: Nid) {
        self.since.made.remove(&ino);
        self.since.synced.remove(&ino);
        self.since.attributes_of.remove(&ino);
        self.since.renamed.remove(&ino);
        self.since.pages.remove(&ino);
        self.lost_writes.remove(&ino);
    }

    /// Most blocks that the companion may have to write.
    pub(crate) fn companion_blocks(&self) -> u32 {
        self.companion
            .as_ref()
            .map_or(0, |companion| companion.waiting_blocks())
    }
}
