//! The change of one file, named by its path, for programs that keep an older copy of what was at
//! that path.
//!
//! **The path decides, not the file.** Our own backups follow a file through renames. A program
//! that holds a copy under a path must be told that all of it changed if the path leads to another
//! file than at the mark, even if that file was never written to: after `mv other image`, not one
//! byte of `other` has changed, and all of `image` has. So no name on the way may have changed
//! since the mark; names of directories count as much as the file's own.

use std::collections::HashSet;

use byteback_control::{ChangesCursor, ContentChange, CutInfo, ErrorKind, ServiceError, TreeService};
use byteback_extents::ExtentSet;
use byteback_model::{ByteString, NodeId, NodeKind};
use byteback_oplog::WholeReason;

use crate::error::Result;

/// The part of a path's content that may differ from the content at the mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileContent {
    /// These ranges; if empty, nothing. They may lie beyond the file's end; every other byte of the
    /// file was at the same offset then.
    Ranges(ExtentSet),
    /// The whole file.
    Whole(WholeFileReason),
}

/// Why all of a file counts as changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeFileReason {
    /// The log's own reason.
    Log(WholeReason),
    /// The path led elsewhere at the mark, or may have.
    Renamed,
}

/// A file at a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChange {
    /// The file.
    pub node: NodeId,
    /// The changed part of its content.
    pub content: FileContent,
}

/// The change of the file at `path` up to an open cut; `None` if there is no file of that name.
/// Costs as much as there are changes.
///
/// # Errors
/// If the tree cannot be asked.
pub fn file_change(tree: &dyn TreeService, cut: &CutInfo, path: &ByteString) -> Result<Option<FileChange>> {
    let Some((node, names)) = way_to(tree, cut, path)? else {
        return Ok(None);
    };
    let kind = tree.names(cut.cut, &[node])?.first().and_then(|names| names.kind);
    if kind != Some(NodeKind::File) {
        return Ok(None);
    }
    let whole = |reason| FileContent::Whole(WholeFileReason::Log(reason));
    if cut.since.is_none() {
        let content = whole(WholeReason::NoMark);
        return Ok(Some(FileChange { node, content }));
    }
    let mut content = FileContent::Ranges(ExtentSet::new());
    let mut is_renamed = false;
    let mut cursor = ChangesCursor::default();
    loop {
        let page = tree.changes(cut.cut, &cursor)?;
        if let Some(change) = page.nodes.into_iter().find(|change| change.node == node) {
            content = match change.content {
                ContentChange::Unchanged => content,
                ContentChange::Whole(reason) => whole(reason),
                ContentChange::Ranges(ranges) => FileContent::Ranges(ranges),
            };
        }
        is_renamed |= page
            .names
            .into_iter()
            .any(|change| names.contains(&(change.parent, change.name)));
        match page.next {
            None => break,
            Some(next) if next == cursor => {
                let message = "the folder's list of changes does not end; restart its daemon";
                return Err(ServiceError::new(ErrorKind::Protocol, message).into());
            }
            Some(next) => cursor = next,
        }
    }
    if is_renamed && matches!(content, FileContent::Ranges(_)) {
        content = FileContent::Whole(WholeFileReason::Renamed);
    }
    Ok(Some(FileChange { node, content }))
}

/// Names, each with its directory.
type Names = HashSet<(NodeId, ByteString)>;

/// The node at a path, and the names that lead to it.
fn way_to(tree: &dyn TreeService, cut: &CutInfo, path: &ByteString) -> Result<Option<(NodeId, Names)>> {
    let path = path.as_bytes();
    let mut names = HashSet::new();
    let mut node = NodeId::ROOT;
    let ends = path
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'/')
        .map(|(at, _)| at);
    let mut start = 0;
    for end in ends.chain([path.len()]) {
        names.insert((node, ByteString::from(&path[start..end])));
        match tree.find(cut.cut, &ByteString::from(&path[..end]))? {
            Some(found) => node = found,
            None => return Ok(None),
        }
        start = end + 1;
    }
    Ok(Some((node, names)))
}
