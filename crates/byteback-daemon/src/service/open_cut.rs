//! A cut that is being read.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use byteback_api::ByteString;
use byteback_control::{
    ChangesCursor, ChangesPage, ContentChange, DirEntry, ErrorKind, NameChange, NodeChange, NodeNames, Result,
    ServiceError,
};
use byteback_mount::live::LiveTree;
use byteback_mount::picture::Picture;
use byteback_oplog::{Changes, Content, Cut, Fence, NodeId};
use parking_lot::Mutex;

use super::{is_file, log_failed};

/// Nodes or names in one page: a page of the longest names stays far below the limit of a frame.
const PAGE_ITEMS: usize = 10_000;
/// Ranges in one page.
const PAGE_RANGES: usize = 500_000;

pub(super) struct OpenCut {
    /// Whose mark moves; `None`: nobody's.
    pub(super) consumer: Option<String>,
    pub(super) cut: Cut,
    changes: Changes,
    pub(super) picture: Option<Arc<Picture>>,
    /// No mount holds the files still.
    pub(super) is_unprotected: bool,
    /// CPU time of this process when the cut was ordered.
    pub(super) cpu_ns: u64,
    /// What files looked like when their attributes were read, and whether that proves anything about later changes; only
    /// where they are unprotected.
    seen: Mutex<HashMap<NodeId, (Fence, bool)>>,
}

impl OpenCut {
    pub(super) fn new(
        consumer: Option<String>,
        cut: Cut,
        changes: Changes,
        picture: Option<Arc<Picture>>,
        is_unprotected: bool,
        cpu_ns: u64,
    ) -> Self {
        Self {
            consumer,
            cut,
            changes,
            picture,
            is_unprotected,
            cpu_ns,
            seen: Mutex::default(),
        }
    }

    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    pub(super) fn picture(&self) -> Result<&Arc<Picture>> {
        let message = "this cut was only made to look at the changes; its content cannot be read";
        self.picture
            .as_ref()
            .ok_or_else(|| ServiceError::new(ErrorKind::Protocol, message))
    }

    pub(super) fn page(&self, cursor: ChangesCursor) -> ChangesPage {
        let skip = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let mut page = ChangesPage::default();
        let mut ranges = 0;
        for change in self.changes.nodes.iter().skip(skip(cursor.nodes)).take(PAGE_ITEMS) {
            if ranges >= PAGE_RANGES {
                break;
            }
            let content = match &change.content {
                Content::Unchanged => ContentChange::Unchanged,
                Content::Whole(reason) => ContentChange::Whole(*reason),
                Content::Ranges(set) => {
                    ranges += set.len();
                    ContentChange::Ranges(set.iter().map(|range| (range.start(), range.len_bytes())).collect())
                }
            };
            page.nodes.push(NodeChange {
                node: change.node,
                kind: change.kind,
                content,
                is_new: change.is_new,
            });
        }
        let nodes = cursor.nodes + page.nodes.len() as u64;
        if nodes >= self.changes.nodes.len() as u64 {
            let left = PAGE_ITEMS - page.nodes.len().min(PAGE_ITEMS);
            for change in self.changes.names.iter().skip(skip(cursor.names)).take(left) {
                let name = ByteString::from(change.name.clone().into_vec());
                page.names.push(NameChange {
                    parent: change.parent,
                    name,
                    child: change.child,
                });
            }
        }
        let names = cursor.names + page.names.len() as u64;
        let is_last = nodes >= self.changes.nodes.len() as u64 && names >= self.changes.names.len() as u64;
        page.next = (!is_last).then_some(ChangesCursor { nodes, names });
        page
    }

    /// All names of a node.
    pub(super) fn names(&self, node: NodeId) -> Result<NodeNames> {
        let kind = self.cut.kind(node).map_err(log_failed)?;
        let names = match kind {
            Some(_) => self.cut.places_of(node).map_err(log_failed)?,
            None => Vec::new(),
        };
        let names = names
            .into_iter()
            .map(|(directory, name)| (directory, ByteString::from(name.into_vec())));
        Ok(NodeNames {
            kind,
            names: names.collect(),
        })
    }

    /// A page of a directory's entries behind `after`.
    pub(super) fn entries(&self, directory: NodeId, after: Option<&ByteString>) -> Result<Vec<DirEntry>> {
        let entries = self.cut.entries(directory).map_err(log_failed)?;
        let rest = entries
            .into_iter()
            .filter(|(name, _)| after.is_none_or(|after| name.as_bytes() > after.as_bytes()));
        let mut page = Vec::new();
        for (name, node) in rest {
            if page.len() == PAGE_ITEMS {
                break;
            }
            // A name without a node is a damage that backups report; here it is nothing that could be listed.
            let Some(kind) = self.cut.kind(node).map_err(log_failed)? else {
                continue;
            };
            let name = ByteString::from(name.into_vec());
            page.push(DirEntry { name, node, kind });
        }
        Ok(page)
    }

    /// The node at a path.
    pub(super) fn find(&self, path: &ByteString) -> Result<Option<NodeId>> {
        let mut node = NodeId::ROOT;
        if path.as_bytes().is_empty() {
            return Ok(Some(node));
        }
        for name in path.as_bytes().split(|byte| *byte == b'/') {
            match self.cut.child(node, OsStr::from_bytes(name)).map_err(log_failed)? {
                Some(child) => node = child,
                None => return Ok(None),
            }
        }
        Ok(Some(node))
    }

    /// Remembers what unprotected files look like before they are read. `before_ns`: the time when the look began. `is_synced`:
    /// their content was made durable after the look.
    pub(super) fn saw(&self, files: Vec<(NodeId, Fence)>, before_ns: i64, is_synced: bool) {
        let proves = |fence: &Fence| is_synced && fence.proves_at(before_ns);
        let files = files.into_iter().map(|(node, fence)| (node, (fence, proves(&fence))));
        self.seen.lock().extend(files);
    }

    /// Whether a file still looks as it did.
    pub(super) fn is_unchanged(&self, live: &LiveTree, node: NodeId) -> bool {
        let Some((before, _)) = self.seen.lock().get(&node).copied() else {
            return false;
        };
        matches!(live.find(node), Ok(Some((_, stat))) if Fence::of(&stat) == before)
    }

    /// The fences of the files that are saved now. A file that had been changed within the last tick when it was looked at
    /// could be changed again without showing it, so it gets none and is saved once more next time.
    pub(super) fn proven_fences(&self, unsaved: &[NodeId]) -> Vec<(NodeId, Option<Fence>)> {
        let unsaved: HashSet<NodeId> = unsaved.iter().copied().collect();
        let seen = self.seen.lock();
        let files = self
            .changes
            .nodes
            .iter()
            .filter(|change| is_file(change.kind) && !unsaved.contains(&change.node));
        files
            .filter_map(|change| {
                let (fence, proves) = *seen.get(&change.node)?;
                Some((change.node, proves.then_some(fence)))
            })
            .collect()
    }
}

/// CPU time of this process, all threads.
pub(super) fn process_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
