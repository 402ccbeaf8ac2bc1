//! A cache of the nodes of recently used inodes: each change begins with this lookup, which takes
//! most of a microsecond in the database.
//!
//! Invariant: the cache agrees with the pending log and the database. Hence a key is forgotten when
//! it is given to another node, a node when its last name goes, and an answer of the database is
//! taken only if nothing moved into the database since it was asked ([`crate::log::State::learn`]).

use foldhash::HashMap;

use crate::record::DiskKey;
use byteback_model::NodeId;

/// About 100 KiB. Programs that change more files than this at a time wait for the files anyway.
const KNOWN_MAX: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct KnownNodes {
    by_key: HashMap<DiskKey, NodeId>,
    keys: HashMap<NodeId, DiskKey>,
}

impl KnownNodes {
    pub(crate) fn node_of(&self, key: DiskKey) -> Option<NodeId> {
        self.by_key.get(&key).copied()
    }

    pub(crate) fn learn(&mut self, key: DiskKey, node: NodeId) {
        if self.by_key.len() >= KNOWN_MAX {
            // No order of use is kept: entries in use return after one lookup each.
            self.clear();
        }
        self.forget(node);
        self.forget_key(key);
        self.by_key.insert(key, node);
        self.keys.insert(node, key);
    }

    pub(crate) fn forget(&mut self, node: NodeId) {
        if let Some(key) = self.keys.remove(&node) {
            self.by_key.remove(&key);
        }
    }

    pub(crate) fn forget_key(&mut self, key: DiskKey) {
        if let Some(node) = self.by_key.remove(&key) {
            self.keys.remove(&node);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.by_key.clear();
        self.keys.clear();
    }
}
