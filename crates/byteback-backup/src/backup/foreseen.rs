//! The amount of work of a backup, before it begins: the total that progress is measured by.
//!
//! The log knows which ranges of a file changed. It does not know the size of a file that is new to
//! it, or to the server: the tree is asked.

use super::Job;
use super::changes::{ATTRIBUTES_PER_CALL, for_each_page};
use crate::error::Result;
use crate::monitor::check_cancelled;
use byteback_control::{ContentChange, CutInfo, NodeChange};
use byteback_model::NodeId;

/// Beyond this number of nodes, sizes are not asked for beforehand: an unmounted tree syncs its
/// file system for each list of attributes.
const SIZED_NODES_MAX: u64 = 10_000;

/// Bytes of content behind the nodes of a cut; `None`: too many to ask, or no answer. It serves
/// progress alone, so an error is left to the transfer, which meets it again.
pub(super) fn foreseen_bytes(job: &Job<'_>, cut: &CutInfo) -> Option<u64> {
    if cut.nodes > SIZED_NODES_MAX {
        return None;
    }
    added_up(job, cut).ok()
}

/// Sums the log's ranges, and the sizes of files that are sent whole.
fn added_up(job: &Job<'_>, cut: &CutInfo) -> Result<u64> {
    let mut bytes = cut.content_bytes;
    for_each_page(job.tree, cut, |page| {
        let is_whole = |change: &&NodeChange| matches!(change.content, ContentChange::Whole(_));
        let whole: Vec<NodeId> = page.nodes.iter().filter(is_whole).map(|change| change.node).collect();
        for some in whole.chunks(ATTRIBUTES_PER_CALL) {
            check_cancelled(job.monitor)?;
            for attributes in job.tree.attributes(cut.cut, some)?.into_iter().flatten() {
                bytes = bytes.saturating_add(attributes.size);
            }
        }
        Ok(())
    })?;
    Ok(bytes)
}

/// The same for one node.
pub(super) fn foreseen_bytes_of(content: &ContentChange, size_bytes: u64) -> u64 {
    match content {
        ContentChange::Unchanged => 0,
        ContentChange::Whole(_) => size_bytes,
        ContentChange::Ranges(ranges) => ranges.total_len_bytes(),
    }
}
