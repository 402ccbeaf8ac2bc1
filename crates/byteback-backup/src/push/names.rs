//! Files that have further names at the server which this push does not compare: outside the place,
//! excluded, or gone here without removing.
//!
//! Such a name is not the push's to change. A file at the server is all its names, so one that
//! changed here becomes a file of its own under the names that are compared; the others keep the
//! old content. An unchanged file stays one file with them.
//!
//! The server reports of a file that it has several names, and how many. Only when such a file
//! changed, the server's tree below the place is listed to see how many of them are there.

use super::Job;
use crate::error::Result;
use crate::monitor::check_cancelled;
use crate::tree_reader::{TreeReader, join_path};
use byteback_host::tree;
use byteback_model::{FileId, NAMES_COUNTED_MAX, NodeInfo, NodeKind};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The number of compared names of each file with several.
#[derive(Debug, Default)]
pub(super) struct ComparedNames(HashMap<FileId, u32>);

impl ComparedNames {
    /// Counts below a directory of the server, which a local one becomes.
    pub(super) fn below(job: &Job<'_>, reader: &mut TreeReader<'_>, dir: FileId, local: impl AsFd) -> Result<Self> {
        let mut counts: HashMap<FileId, u32> = HashMap::new();
        let mut to_do = vec![(dir, Vec::new())];
        while let Some((dir, path)) = to_do.pop() {
            reader.entries(dir, &path, |entry| {
                check_cancelled(job.monitor)?;
                let path = join_path(&path, entry.name.as_bytes());
                let is_directory = entry.node.attributes.kind == NodeKind::Directory;
                if job.options.exclude.is_excluded(&path, is_directory) {
                    return Ok(());
                }
                if is_directory {
                    to_do.push((entry.node.id, path));
                } else if entry.node.names.is_some() {
                    let is_here = || tree::open_beneath(&local, Path::new(OsStr::from_bytes(&path))).is_ok();
                    if job.options.delete || is_here() {
                        *counts.entry(entry.node.id).or_default() += 1;
                    }
                }
                Ok(())
            })?;
        }
        Ok(Self(counts))
    }

    /// Whether a file has names that are not compared; `own` of them are, whatever was counted.
    pub(super) fn leave_out_some_of(&self, node: &NodeInfo, own: u32) -> bool {
        let Some(names) = node.names else { return false };
        let compared = self.0.get(&node.id).copied().unwrap_or(0).max(own);
        compared < names || names >= NAMES_COUNTED_MAX
    }
}
