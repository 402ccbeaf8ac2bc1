//! Directories on the way to nodes, kept open for the next that is asked for.
//!
//! A caller that asks for one node mostly asks for its neighbours next, and a chain of directories
//! would otherwise be walked from the root for each of its links: a user who makes one of 70,000
//! must not keep the daemon busy for hours.
//!
//! Invariant: the descriptor kept for a node is of the inode that the log's record of it names. A
//! descriptor goes on naming that inode through every rename, and a node never becomes another
//! inode, so nothing has to be forgotten.

use std::ffi::OsString;
use std::sync::Arc;

use byteback_host::tree::Inode;
use byteback_model::NodeId;
use parking_lot::Mutex;

/// Each costs a descriptor, and keeps a removed directory on the disk until others take its place.
const KEPT_MAX: usize = 64;

/// See the module. Newest last.
#[derive(Debug, Default)]
pub(super) struct KeptDirectories {
    kept: Mutex<Vec<(NodeId, Arc<Inode>)>>,
}

/// The way down to a node.
#[derive(Debug)]
pub(super) struct Way {
    /// Where it begins; `None`: at the root.
    pub(super) from: Option<Arc<Inode>>,
    /// The nodes on the way with their names, the one that was asked for last.
    pub(super) steps: Vec<(NodeId, OsString)>,
}

impl KeptDirectories {
    pub(super) fn keep(&self, node: NodeId, directory: Arc<Inode>) {
        let mut kept = self.kept.lock();
        kept.retain(|(known, _)| *known != node);
        if kept.len() >= KEPT_MAX {
            kept.remove(0);
        }
        kept.push((node, directory));
    }

    pub(super) fn get(&self, node: NodeId) -> Option<Arc<Inode>> {
        let mut kept = self.kept.lock();
        let at = kept.iter().position(|(known, _)| *known == node)?;
        let found = kept.remove(at);
        kept.push(found);
        kept.last().map(|(_, directory)| Arc::clone(directory))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.kept.lock().len()
    }

    /// The way to `node` from the nearest directory that is kept. `place_of` answers the directory
    /// and the name of a node; a node without one makes this `None`.
    pub(super) fn way_to<E>(
        &self,
        node: NodeId,
        place_of: impl Fn(NodeId) -> Result<Option<(NodeId, OsString)>, E>,
        depth_max: usize,
    ) -> Result<Option<Way>, WayError<E>> {
        let mut steps = Vec::new();
        let mut at = node;
        let mut from = None;
        while at != NodeId::ROOT {
            if steps.len() >= depth_max {
                return Err(WayError::TooDeep);
            }
            let Some((parent, name)) = place_of(at).map_err(WayError::Log)? else {
                return Ok(None);
            };
            steps.push((at, name));
            at = parent;
            from = self.get(at);
            if from.is_some() {
                break;
            }
        }
        steps.reverse();
        Ok(Some(Way { from, steps }))
    }
}

/// Why there is no way.
#[derive(Debug)]
pub(super) enum WayError<E> {
    Log(E),
    TooDeep,
}
