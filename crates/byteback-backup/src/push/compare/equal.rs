//! Directories that are equal here and at the server, by one digest each
//! (`byteback_api::directory_digests`): they are not listed, so that a push of a large tree costs
//! what differs.
//!
//! The local tree is walked for the digests; then the server walks its own, as long as it is not
//! much larger. Equal means by names and attributes, as in the comparison of entries: so with
//! [`PushOptions::checksum`](super::super::PushOptions::checksum) nothing is skipped, nor is a
//! directory with a node of several names below it, here or there.
//!
//! Files in directories that were skipped may be what new files were copied from: they are listed
//! once more if that may pay (`late`).
//!
//! A server that has no such call, or fails, costs a listing. The next push finds what changes here
//! after the walk.

use super::{Comparison, Directory, names_in};
use crate::error::Result;
use crate::local_node::LocalNode;
use crate::monitor::{Event, check_cancelled};
use crate::tree_reader::join_path;
use byteback_api::directory_digests::{DigestedDirectory, DirectoryDigests, DirectoryEntries, PathKey, combine};
use byteback_host::tree::Descent;
use byteback_model::{FileId, NodeKind};
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// Fewest names here for which digests are asked for: fewer fit into one listing.
const NAMES_MIN: u64 = 16;

/// A server whose tree has more names than this many times those here, and some more, is listed:
/// its digests would take longer than they spare.
const NAMES_RATIO: u64 = 4;
const MORE_NAMES: u64 = 10_000;

/// Directories that need not be compared.
#[derive(Debug, Default)]
pub(super) struct EqualDirectories {
    /// By their paths, with the number of nodes below each.
    nodes_below: HashMap<Vec<u8>, u64>,
    /// Directories that were skipped, and their paths.
    pub(super) skipped: Vec<(FileId, Vec<u8>)>,
    /// Number of names in these.
    pub(super) skipped_names: u64,
}

impl EqualDirectories {
    /// The number of nodes below a directory, if it is equal at both ends.
    fn below(&self, path: &[u8]) -> Option<u64> {
        self.nodes_below.get(path).copied()
    }
}

/// A local directory.
struct Local {
    path: Vec<u8>,
    digested: DigestedDirectory,
    /// Names in it.
    names: u64,
}

impl Comparison<'_, '_, '_> {
    /// Finds out which directories are equal, from `top` at the server on, which is compared with
    /// the source.
    pub(super) fn find_equal(&mut self, root: &OwnedFd, top: FileId) -> Result<()> {
        let (job, base_seq) = (self.job, self.record.begun().base_seq);
        if job.options.checksum {
            return Ok(());
        }
        let locals = self.digest_local(root)?;
        let names: u64 = locals.iter().map(|local| local.names).sum();
        if names < NAMES_MIN {
            return Ok(());
        }
        let names_max = names.saturating_mul(NAMES_RATIO).saturating_add(MORE_NAMES);
        if let Ok(digests) = job.server.directory_digests(job.folder, top, base_seq, names_max) {
            self.equal.nodes_below = equal(locals, &digests);
        }
        Ok(())
    }

    /// Digests all directories here, in the order in which they are compared.
    fn digest_local(&self, root: &OwnedFd) -> Result<Vec<Local>> {
        let mut locals: Vec<Local> = Vec::new();
        let Ok(mut way) = Descent::new(root) else {
            return Ok(locals);
        };
        let mut to_do: Vec<(Vec<u8>, Option<usize>)> = vec![(Vec::new(), None)];
        while let Some((path, above)) = to_do.pop() {
            check_cancelled(self.job.monitor)?;
            let mut entries = DirectoryEntries::default();
            let mut names = 0;
            let first_below = to_do.len();
            match way.open(&path).and_then(|dir| Ok((names_in(&dir)?, dir))) {
                Ok((listed, dir)) => {
                    for name in listed {
                        let name_path = join_path(&path, name.as_bytes());
                        if let Some(is_directory) = self.digest_entry(&dir, &name, &name_path, &mut entries) {
                            names += 1;
                            if is_directory {
                                to_do.push((name_path, Some(locals.len())));
                            }
                        }
                    }
                }
                Err(_) => entries.give_up(),
            }
            to_do.get_mut(first_below..).unwrap_or_default().reverse();
            locals.push(Local {
                path,
                digested: DigestedDirectory {
                    above,
                    entries: entries.finish(),
                },
                names,
            });
        }
        Ok(locals)
    }

    /// Digests a name; returns whether it is a directory, or `None` if it is not compared.
    fn digest_entry(
        &self,
        dir: &OwnedFd,
        name: &OsString,
        path: &[u8],
        entries: &mut DirectoryEntries,
    ) -> Option<bool> {
        let opened = LocalNode::open(dir, name).and_then(|node| Ok((node.attributes()?, node)));
        let Ok((attributes, node)) = opened else {
            // It is reported when it is compared.
            entries.give_up();
            return None;
        };
        let is_directory = node.kind() == NodeKind::Directory;
        if self.is_left_alone(path, &node) {
            return None;
        }
        if !is_directory && node.stat.nlink > 1 {
            entries.give_up();
        }
        entries.push(name.as_bytes(), &attributes);
        Some(is_directory)
    }

    /// Whether a directory need not be compared; counts what is below it then.
    pub(super) fn skips(&mut self, directory: &Directory) -> bool {
        let is_same_path = directory.is_there && !directory.is_moved;
        let Some(below) = self.equal.below(&directory.path).filter(|_| is_same_path) else {
            return false;
        };
        self.report.unchanged += below;
        self.totals.0 += below;
        let (files, bytes) = self.totals;
        self.job.monitor.event(Event::Totals { files, bytes });
        for _ in 0..below {
            self.job.monitor.event(Event::FileDone { path: None });
        }
        self.equal.skipped_names += below;
        self.equal.skipped.push((directory.id, directory.path.clone()));
        true
    }
}

/// The directories whose digests agree, with the number of nodes below each.
fn equal(locals: Vec<Local>, digests: &DirectoryDigests) -> HashMap<Vec<u8>, u64> {
    let digested: Vec<DigestedDirectory> = locals.iter().map(|local| local.digested).collect();
    let combined = combine(&digested);
    let mut below: Vec<u64> = locals.iter().map(|local| local.names).collect();
    for (index, local) in locals.iter().enumerate().rev() {
        let own = below.get(index).copied().unwrap_or(0);
        if let Some(above) = local.digested.above.and_then(|above| below.get_mut(above)) {
            *above += own;
        }
    }
    let pairs = locals.into_iter().zip(combined).zip(below);
    pairs
        .filter_map(|((local, digest), below)| {
            let is_equal = digests.agree(PathKey::of(&local.path), &digest?);
            is_equal.then_some((local.path, below))
        })
        .collect()
}
