//! Read-only views: the names of a snapshot, the differences between two moments, and the changes
//! of a folder since its last backup.
//!
//! Items are handed on one at a time as they come, so that memory does not grow with the folder.

use crate::error::{BackupError, Result};
use crate::monitor::{Monitor, check_cancelled};
use crate::tree_reader::{TreeReader, join_path};
use byteback_api::FolderName;
use byteback_api::messages::DiffItem;
use byteback_client::ServerClient;
use byteback_control::{ChangesCursor, ContentChange, CutId, CutInfo, ErrorKind, ServiceError, TreeService};
use byteback_model::{ByteString, NodeId, NodeInfo, NodeKind, Seq};
use byteback_oplog::Epoch;
use serde::Serialize;
use std::collections::HashMap;

/// A name of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedEntry {
    /// Path below the snapshot's root.
    pub path: ByteString,
    /// The node that the name stands for.
    pub node: NodeInfo,
}

/// Hands the nodes at `path` of a moment to `each`: the entries of a directory (with `recursive`
/// also those below, a directory before its entries), or the one node that is not a directory.
///
/// # Errors
/// If the server cannot be asked or contradicts itself, or `each` fails.
pub fn list(
    server: &ServerClient,
    folder: &FolderName,
    at: Seq,
    path: &[u8],
    recursive: bool,
    monitor: &dyn Monitor,
    mut each: impl FnMut(ListedEntry) -> Result<()>,
) -> Result<()> {
    let path = trim_slashes(path);
    let mut tree = TreeReader::new(server, folder, at);
    let node = tree.node_at(path)?;
    if node.attributes.kind != NodeKind::Directory {
        return each(ListedEntry {
            path: ByteString::from(path),
            node,
        });
    }
    let mut dirs = vec![(node.id, path.to_vec())];
    while let Some((dir, dir_path)) = dirs.pop() {
        let mut below = Vec::new();
        tree.entries(dir, &dir_path, |entry| {
            check_cancelled(monitor)?;
            let path = join_path(&dir_path, entry.name.as_bytes());
            if recursive && entry.node.attributes.kind == NodeKind::Directory {
                below.push((entry.node.id, path.clone()));
            }
            each(ListedEntry {
                path: path.into(),
                node: entry.node,
            })
        })?;
        dirs.extend(below.into_iter().rev());
    }
    Ok(())
}

/// Hands the differences between two moments to `each`: names first, then nodes.
///
/// # Errors
/// If the server cannot be asked or contradicts itself, or `each` fails.
pub fn diff(
    server: &ServerClient,
    folder: &FolderName,
    from: Seq,
    to: Seq,
    monitor: &dyn Monitor,
    mut each: impl FnMut(DiffItem) -> Result<()>,
) -> Result<()> {
    let mut cursor: Option<String> = None;
    loop {
        check_cancelled(monitor)?;
        let page = server.diff_page(folder, from, to, cursor.as_deref())?;
        // Nodes that came and went between the moments are not reported, so a page may be empty.
        if page.next_cursor.is_some() && page.next_cursor == cursor {
            return Err(BackupError::hostile("the list of differences does not advance"));
        }
        for change in page.changes {
            each(change)?;
        }
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => return Ok(()),
        }
    }
}

/// The start and the size of a list of changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangesHeader {
    /// The first epoch after the listed changes.
    pub epoch: Epoch,
    /// The first epoch listed; `None`: everything there is, as nothing was saved before.
    pub since: Option<Epoch>,
    /// Changed nodes.
    pub nodes: u64,
    /// Changed names.
    pub names: u64,
    /// Bytes of content that a backup would have to read, as far as is known.
    pub content_bytes: u64,
}

/// A file or other node that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangedNode {
    /// Its path, where it has one.
    pub path: Option<ByteString>,
    /// Its number in the tree.
    pub node: NodeId,
    /// The kind of node.
    pub kind: byteback_model::NodeKind,
    /// The part of its content that may have changed.
    pub content: ContentChange,
    /// Whether the node did not exist before.
    pub is_new: bool,
}

/// A name that was added, or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangedName {
    /// The directory, where it still exists.
    pub dir: Option<ByteString>,
    /// The name.
    pub name: ByteString,
    /// The node that has the name at the cut; `None` if the name was removed.
    pub node: Option<NodeId>,
}

/// An item in the list of a folder's changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum TreeChange {
    /// The first line.
    Header(ChangesHeader),
    /// A node.
    Node(ChangedNode),
    /// A name.
    Name(ChangedName),
}

/// Hands the changes up to an open cut to `each`.
///
/// # Errors
/// If the tree cannot be asked, or `each` fails.
pub fn changes(
    tree: &dyn TreeService,
    info: &CutInfo,
    monitor: &dyn Monitor,
    mut each: impl FnMut(TreeChange) -> Result<()>,
) -> Result<()> {
    each(TreeChange::Header(ChangesHeader {
        epoch: info.epoch,
        since: info.since,
        nodes: info.nodes,
        names: info.names,
        content_bytes: info.content_bytes,
    }))?;
    list_changes(tree, info.cut, monitor, &mut each)
}

fn list_changes(
    tree: &dyn TreeService,
    cut: CutId,
    monitor: &dyn Monitor,
    each: &mut impl FnMut(TreeChange) -> Result<()>,
) -> Result<()> {
    let mut cursor = ChangesCursor::default();
    // Names of one directory come together.
    let mut dirs: HashMap<NodeId, Option<ByteString>> = HashMap::new();
    loop {
        let page = tree.changes(cut, &cursor)?;
        for change in page.nodes {
            check_cancelled(monitor)?;
            each(TreeChange::Node(ChangedNode {
                path: tree.path(cut, change.node)?,
                node: change.node,
                kind: change.kind,
                content: change.content,
                is_new: change.is_new,
            }))?;
        }
        for change in page.names {
            check_cancelled(monitor)?;
            let dir = match dirs.get(&change.parent) {
                Some(dir) => dir.clone(),
                None => {
                    dirs.clear();
                    let dir = tree.path(cut, change.parent)?;
                    dirs.insert(change.parent, dir.clone());
                    dir
                }
            };
            each(TreeChange::Name(ChangedName {
                dir,
                name: change.name,
                node: change.child,
            }))?;
        }
        match page.next {
            None => return Ok(()),
            Some(next) if next == cursor => {
                let message = "the folder's list of changes does not end; restart its daemon";
                return Err(ServiceError::new(ErrorKind::Protocol, message).into());
            }
            Some(next) => cursor = next,
        }
    }
}

/// A path below a root, without slashes around it.
pub(crate) fn trim_slashes(path: &[u8]) -> &[u8] {
    let mut path = path;
    while let Some(rest) = path.strip_prefix(b"/").or_else(|| path.strip_prefix(b"./")) {
        path = rest;
    }
    while let Some(rest) = path.strip_suffix(b"/") {
        path = rest;
    }
    if path == b"." { &[] } else { path }
}
