//! Where the content of a node is read from, beside what was kept of it.

use std::collections::VecDeque;
use std::io;

use byteback_host::tree::Inode;
use byteback_model::NodeId;
use parking_lot::Mutex;

use super::{NodeState, Picture, PictureError};
use crate::live::{LiveTree, open_for_reading};

/// Descriptors that are kept of files that were found.
const FOUND_MAX: usize = 512;

/// Where a node's content comes from, beside what was kept.
#[derive(Debug)]
pub(super) enum Source {
    /// From nowhere: all was kept.
    Kept,
    File(Inode),
}

/// Descriptors of files whose attributes were read, for the reader of their contents: the log is
/// not asked again for their names. They are the files themselves, whatever becomes of the names.
/// There are at most [`FOUND_MAX`], and none of a picture that is lost.
#[derive(Debug, Default)]
pub(super) struct FoundInodes(Mutex<VecDeque<(NodeId, Inode)>>);

impl FoundInodes {
    pub(super) fn keep(&self, node: NodeId, fd: Inode) {
        let mut found = self.0.lock();
        found.retain(|(other, _)| *other != node);
        if found.len() == FOUND_MAX {
            found.pop_front();
        }
        found.push_back((node, fd));
    }

    pub(super) fn take(&self, node: NodeId) -> Option<Inode> {
        let mut found = self.0.lock();
        // Contents are mostly read in the order of the attributes: it is near the front.
        let place = found.iter().position(|(other, _)| *other == node)?;
        found.remove(place).map(|(_, fd)| fd)
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

impl Picture {
    /// Where the content of a node is read from. Looking for the file may wait for changes under
    /// way, and these for the node's lock: it is not held meanwhile.
    pub(super) fn source(
        &self,
        live: &LiveTree,
        shared: &Mutex<NodeState>,
        node: NodeId,
    ) -> Result<Source, PictureError> {
        let failed = |source| PictureError::Node { source };
        let saved = || {
            let state = shared.lock();
            match &state.fd {
                _ if state.is_kept_whole => Ok(Some(Source::Kept)),
                Some(fd) => fd.try_clone().map(|fd| Some(Source::File(fd))),
                None => Ok(None),
            }
        };
        let found = match saved().map_err(failed)? {
            Some(saved) => saved,
            None => {
                let found = self.found.take(node).map_or_else(|| find(live, node), Ok);
                match saved().map_err(failed)? {
                    // Removed meanwhile.
                    Some(saved) => saved,
                    None => Source::File(found?),
                }
            }
        };
        match found {
            Source::Kept => Ok(Source::Kept),
            Source::File(fd) => open_for_reading(&fd).map(Source::File).map_err(failed),
        }
    }
}

/// A descriptor of a node, by its name.
pub(super) fn find(live: &LiveTree, node: NodeId) -> Result<Inode, PictureError> {
    let failed = |source| PictureError::Node { source };
    match live.find(node).map_err(failed)? {
        Some((fd, _)) => Ok(fd),
        None => Err(failed(io::Error::new(
            io::ErrorKind::NotFound,
            "it was removed, and its content was not kept",
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_inodes_are_taken_once_and_forgotten_at_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "file").unwrap();
        let inode = || Inode::from(std::fs::File::open(&path).unwrap());
        let found = FoundInodes::default();
        let numbers = 0..FOUND_MAX as u64 + 2;
        for number in numbers {
            found.keep(NodeId(number), inode());
        }
        assert!(found.take(NodeId(1)).is_none(), "it was the oldest");
        assert!(found.take(NodeId(3)).is_some());
        assert!(found.take(NodeId(3)).is_none(), "it was taken");
        assert!(found.take(NodeId(2)).is_some(), "others stay");
        found.keep(NodeId(5), inode());
        assert!(found.take(NodeId(5)).is_some() && found.take(NodeId(5)).is_none());
        found.clear();
        assert!(found.take(NodeId(6)).is_none());
    }
}
