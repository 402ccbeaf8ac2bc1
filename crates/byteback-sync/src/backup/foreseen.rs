//! How much a backup is about, before it begins: the whole that progress is measured by.
//!
//! The log knows which ranges of a file changed. Of a file that is new to it, or to the server, it knows no size: the tree is asked.

use byteback_control::{ContentChange, CutInfo, NodeChange, TreeService};
use byteback_oplog::NodeId;

use super::transfer::{ATTRIBUTES_PER_CALL, for_each_page};
use crate::error::Result;

/// Of more nodes the sizes are not asked for beforehand, which takes as long as to ask for them later.
const SIZED_NODES_MAX: u64 = 100_000;

/// How many bytes of files the nodes of a cut stand for; `None`: too many to ask. The log knows what changed in a file, and of a new one nothing.
pub(super) fn foreseen_bytes(tree: &dyn TreeService, cut: &CutInfo) -> Result<Option<u64>> {
    if cut.nodes > SIZED_NODES_MAX {
        return Ok(None);
    }
    let mut bytes = cut.content_bytes;
    for_each_page(tree, cut, |page| {
        let is_whole = |change: &&NodeChange| matches!(change.content, ContentChange::Whole(_));
        let whole: Vec<NodeId> = page.nodes.iter().filter(is_whole).map(|change| change.node).collect();
        for some in whole.chunks(ATTRIBUTES_PER_CALL) {
            // Whoever sends it says why it cannot be read.
            for attributes in tree.attributes(cut.cut, some)?.into_iter().flatten() {
                bytes = bytes.saturating_add(attributes.size);
            }
        }
        Ok(())
    })?;
    Ok(Some(bytes))
}

/// The same of one node.
pub(super) fn foreseen_bytes_of(content: &ContentChange, size_bytes: u64) -> u64 {
    match content {
        ContentChange::Unchanged => 0,
        ContentChange::Whole(_) => size_bytes,
        ContentChange::Ranges(ranges) => ranges.iter().map(|(_, len)| len).sum(),
    }
}
