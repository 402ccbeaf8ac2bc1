//! Flags that forbid changes (immutable, append-only), where they are to be restored.
//!
//! While an inode has them nothing of it can be changed, nor a name in such a directory. So all
//! other work comes first: flags are only noted ([`Restore::note_flags`]), removed from nodes that
//! have to be changed ([`Force::unprotect`](super::place::Force::unprotect)), and set when
//! everything is in its place, those of files before those of directories, and of these the deepest
//! first. A restore that ends early sets none of the new ones, but gives back those that it took
//! from directories.

use super::Restore;
use super::place::unprotect;
use super::report::NotRestoredKind;
use crate::error::Result;
use crate::monitor::check_cancelled;
use byteback_host::tree::{self, InodeFlags};
use byteback_model::{FileId, NodeInfo, NodeKind};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// A path from the target, and the flags that belong there.
type Flagged = (Vec<u8>, InodeFlags);

/// Flags to set at the end.
#[derive(Default)]
pub(super) struct LastFlags {
    /// Files, with their first names.
    files: Vec<(FileId, Flagged)>,
    /// Directories in the order in which they were met, parents first.
    directories: Vec<Flagged>,
    /// Directories that had flags before this restore.
    taken: Vec<Flagged>,
}

impl Restore<'_> {
    /// Notes the flags that the node at `path` is to have in the end.
    pub(super) fn note_flags(&self, path: &[u8], node: &NodeInfo) {
        let flags = InodeFlags::from_bits(node.attributes.inode_flags);
        if !self.options.flags || flags.is_empty() {
            return;
        }
        let mut last = super::lock(&self.last_flags);
        match node.attributes.kind {
            NodeKind::Directory => last.directories.push((path.to_vec(), flags)),
            _ => last.files.push((node.id, (path.to_vec(), flags))),
        }
    }

    /// Removes the flags of a directory in which names are to change, if this restore handles
    /// flags.
    pub(super) fn unprotect_directory(&self, path: &[u8], dir: impl AsFd) -> io::Result<()> {
        if self.options.flags {
            let had = unprotect(dir)?;
            if !had.is_empty() {
                super::lock(&self.last_flags).taken.push((path.to_vec(), had));
            }
        }
        Ok(())
    }

    /// Sets the noted flags; all other work is done.
    pub(super) fn set_last_flags(&self) -> Result<()> {
        let (files, directories) = {
            let mut last = super::lock(&self.last_flags);
            (std::mem::take(&mut last.files), std::mem::take(&mut last.directories))
        };
        // A file that could not be restored was reported, and another node may have its name.
        let is_restored = |file: &FileId| self.tally.first_place(*file).is_some();
        let files = files.into_iter().filter(|(file, _)| is_restored(file));
        let files = files.map(|(_, flagged)| flagged);
        for (path, flags) in files.chain(directories.into_iter().rev()) {
            check_cancelled(self.monitor)?;
            if let Err(error) = self.set_flags(&path, flags) {
                self.tally
                    .not_restored(NotRestoredKind::Flags, &path, &error.to_string());
            }
        }
        Ok(())
    }

    /// Gives directories their former flags back: the restore does not come to its end.
    pub(super) fn protect_again(&self) {
        let taken = std::mem::take(&mut super::lock(&self.last_flags).taken);
        for (path, flags) in taken.into_iter().rev() {
            // A directory that is gone, or not ours, needs none.
            let _ = self.set_flags(&path, flags);
        }
    }

    fn set_flags(&self, path: &[u8], flags: InodeFlags) -> io::Result<()> {
        tree::set_inode_flags(self.open_named(path)?, flags).map(|_| ())
    }

    /// An `O_PATH` descriptor of the node at a path, whatever its kind.
    fn open_named(&self, path: &[u8]) -> io::Result<OwnedFd> {
        if path.is_empty() {
            return self.target.try_clone();
        }
        let (above, name) = above_and_name(path);
        tree::open_path_at(self.open_dir(above)?, OsStr::from_bytes(name))
    }

    /// Names the flags as the reason why the node at `path` could not be changed, if they or those
    /// of its directory are.
    pub(super) fn told_with_flags(&self, path: &[u8], error: io::Error) -> io::Error {
        let is_refused = error.raw_os_error() == Some(Errno::PERM.raw_os_error());
        let is_protected = |path: &[u8]| {
            let flags = self.open_named(path).and_then(tree::inode_flags);
            flags.is_ok_and(|flags| !flags.is_empty())
        };
        if !self.options.flags && is_refused && (is_protected(path) || is_protected(above_and_name(path).0)) {
            let message = "it or its directory is immutable or append-only here (lsattr); --flags replaces it";
            return io::Error::new(error.kind(), message);
        }
        error
    }
}

/// The path of a node's directory, and the node's name there.
fn above_and_name(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        None => (b"", path),
        Some(end) => (
            path.get(..end).unwrap_or_default(),
            path.get(end.saturating_add(1)..).unwrap_or_default(),
        ),
    }
}
