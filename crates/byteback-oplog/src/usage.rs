//! The cost of a log, for `status`, hence quick with a million nodes. Nothing here reads layers or
//! records.

use serde::{Deserialize, Serialize};

use crate::database::meta;
use crate::error::Result;
use crate::log::Log;
use crate::pending::PendingNode;

/// The cost of a log, and the gaps in its knowledge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Length of the database's file.
    pub database_bytes: u64,
    /// Length of the intents' file; 0 if layers are kept beside the files, which need none.
    pub intents_bytes: u64,
    /// Extents in memory: logged, and not yet in the database.
    pub pending_extents: u64,
    /// Nodes about which anything is in memory.
    pub pending_nodes: u64,
    /// Heap memory of the extents, as counted, not estimated.
    pub extent_bytes: u64,
    /// The most memory that the database's pages take.
    pub cache_bytes_max: u64,
    /// Files that are reported whole because their changes were not seen (not because they are
    /// new). A file may count once for each mark that this applies to.
    pub unknown_files: u64,
    /// Why the log is known to be damaged; the next start begins a new one, and until then backups
    /// may fail.
    pub damage: Option<String>,
}

impl Log {
    /// The present cost of the log.
    ///
    /// # Errors
    /// If its files cannot be looked at.
    pub fn usage(&self) -> Result<Usage> {
        let mut usage = Usage {
            database_bytes: self.database.len_bytes()?,
            intents_bytes: match &self.intents {
                Some(intents) => intents.len_bytes()?,
                None => 0,
            },
            cache_bytes_max: crate::database::CACHE_BYTES as u64,
            damage: self.damage().map(str::to_owned),
            ..Usage::default()
        };
        let durable = self.database.snapshot()?.number_if_any(meta::UNKNOWN_LAYERS)?;
        usage.unknown_files = durable.unwrap_or(0);
        let state = self.state.lock();
        for pending in state.layers() {
            usage.pending_nodes += pending.nodes.len() as u64;
            for node in pending.nodes.values() {
                if let PendingNode::Changed { layer, .. } = node {
                    usage.pending_extents += layer.ranges.len() as u64;
                    usage.extent_bytes += layer.ranges.heap_bytes() as u64;
                    usage.unknown_files += u64::from(layer.is_unknown());
                }
            }
        }
        Ok(usage)
    }
}
