//! The changes of a cut, page by page, and their count for the report of a backup.

use super::report::BackupReport;
use crate::error::Result;
use byteback_control::{
    ChangesCursor, ChangesPage, ContentChange, CutInfo, ErrorKind, NodeChange, ServiceError, TreeService,
};
use byteback_extents::ByteRange;
use byteback_model::{NameChange, NodeId, NodeKind};
use byteback_oplog::WholeReason;

/// Nodes whose attributes are asked for at once.
pub(super) const ATTRIBUTES_PER_CALL: usize = 512;

/// Goes through a cut that is only looked at, and counts.
pub(super) fn count(tree: &dyn TreeService, cut: &CutInfo, report: &mut BackupReport) -> Result<()> {
    for_each_page(tree, cut, |page| {
        for change in &page.nodes {
            count_node(change, report);
        }
        for change in &page.names {
            count_name(change, report);
        }
        Ok(())
    })
}

/// Reads all changes of a cut, in order.
pub(super) fn for_each_page(
    tree: &dyn TreeService,
    cut: &CutInfo,
    mut each: impl FnMut(ChangesPage) -> Result<()>,
) -> Result<()> {
    let mut cursor = ChangesCursor::default();
    loop {
        let mut page = tree.changes(cut.cut, &cursor)?;
        let next = page.next.take();
        let is_empty = page.nodes.is_empty() && page.names.is_empty();
        each(page)?;
        match next {
            None => return Ok(()),
            Some(next) if is_empty || next == cursor => {
                let message = "the folder's list of changes does not end; restart its daemon";
                return Err(ServiceError::new(ErrorKind::Protocol, message).into());
            }
            Some(next) => cursor = next,
        }
    }
}

/// Bytes of a file that may have changed.
pub(super) fn changed_bytes(content: &ContentChange, size_bytes: u64) -> u64 {
    match content {
        ContentChange::Unchanged => 0,
        ContentChange::Whole(_) => size_bytes,
        ContentChange::Ranges(ranges) => {
            let within = |range: ByteRange| range.end().min(size_bytes).saturating_sub(range.start());
            ranges.iter().map(within).sum()
        }
    }
}

/// Counts a changed node.
pub(super) fn count_node(change: &NodeChange, report: &mut BackupReport) {
    let counter = match (change.kind, change.is_new) {
        (NodeKind::File, true) => &mut report.files_new,
        (NodeKind::File, false) => &mut report.files_changed,
        (NodeKind::Directory, true) => &mut report.dirs_new,
        (NodeKind::Directory, false) => &mut report.dirs_changed,
        _ => &mut report.others,
    };
    *counter += 1;
    if let ContentChange::Whole(reason) = &change.content {
        count_whole(*reason, report);
    }
}

fn count_whole(reason: WholeReason, report: &mut BackupReport) {
    let counter = match reason {
        WholeReason::Created => &mut report.whole.created,
        WholeReason::NoMark => &mut report.whole.no_mark,
        WholeReason::Untracked => &mut report.whole.untracked,
        WholeReason::Interrupted => &mut report.whole.interrupted,
        WholeReason::Unsaved => &mut report.whole.unsaved_before,
        WholeReason::Dropped => &mut report.whole.dropped,
        WholeReason::LogLost => &mut report.whole.log_lost,
    };
    *counter += 1;
}

/// Counts a changed name.
pub(super) fn count_name(change: &NameChange<NodeId>, report: &mut BackupReport) {
    match change.child {
        Some(_) => report.names_added += 1,
        None => report.names_removed += 1,
    }
}
