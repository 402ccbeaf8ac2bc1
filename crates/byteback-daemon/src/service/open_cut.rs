//! A cut that is being read.
//!
//! Memory does not follow the number of changes: they are read from the cut's snapshot page by page
//! as they are requested, and are kept only if all of them fit in one page. The part of them that a
//! picture is passed is bounded in the same way.

use byteback_model::{ByteString, NodeId, NodeKind};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use byteback_control::{
    ChangesCursor, ChangesPage, ContentChange, CutRequest, DirEntry, ErrorKind, HELD_BLOCK_BYTES, NodeNames, Result,
    SYNC_CONSUMER, ServiceError,
};
use byteback_extents::{ByteRange, ExtentSet};
use byteback_mount::live::LiveTree;
use byteback_mount::picture::{Needed, Picture};
use byteback_oplog::{ChangeList, ChangesTotals, Cut, Epoch, Fence, PageLimits};
use parking_lot::Mutex;

use super::{is_file, log_failed};

/// Entries of a directory in one page, and by default nodes or names: a page of the longest names
/// stays far below the limit of a frame.
const PAGE_ITEMS: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();
/// Ranges in one page.
const PAGE_RANGES: NonZeroUsize = NonZeroUsize::new(500_000).unwrap();

/// The limits of a page of changes, unless others are chosen.
pub const PAGE_LIMITS: PageLimits = PageLimits {
    items: PAGE_ITEMS,
    ranges: PAGE_RANGES,
};

/// Most pages of changed nodes for which a picture is passed the ranges that are needed, at some
/// hundred bytes a node. With more pages it is passed only the nodes' numbers, and whatever of them
/// is overwritten before it was read costs a copy.
const RESTRICTED_PAGES_MAX: u64 = 5;

/// Names of a file for which an earlier file is looked up.
const NAMES_LOOKED_UP_MAX: usize = 4;

pub(super) struct OpenCut {
    /// The consumer whose mark moves; `None`: no mark moves.
    pub(super) consumer: Option<String>,
    pub(super) cut: Cut,
    /// Since when changes are reported, where what was there then is the server's version.
    pub(super) since: Option<Epoch>,
    list: ChangeList,
    totals: ChangesTotals,
    /// All changes, where they fit in one page.
    only_page: Option<ChangesPage>,
    limits: PageLimits,
    pub(super) picture: Option<Arc<Picture>>,
    /// Whether no mount holds the files still.
    pub(super) is_unprotected: bool,
    /// CPU time of this process when the cut was ordered.
    pub(super) cpu_ns: u64,
    /// The fences of files when their attributes were read, and whether they prove anything about
    /// later changes; only where the files are unprotected.
    seen: Mutex<HashMap<NodeId, (Fence, bool)>>,
}

impl OpenCut {
    /// Opens a cut by counting its `list`. Its content can only be read once it gets a picture.
    pub(super) fn of(cut: Cut, list: ChangeList, limits: PageLimits) -> Result<Self> {
        let first = list.page(&ChangesCursor::default(), limits).map_err(log_failed)?;
        let only_page = Some(first).filter(|page| page.next.is_none());
        let totals = match &only_page {
            Some(page) => page.totals(),
            None => list.totals().map_err(log_failed)?,
        };
        Ok(Self {
            consumer: None,
            cut,
            since: None,
            list,
            totals,
            only_page,
            limits,
            picture: None,
            is_unprotected: false,
            cpu_ns: 0,
            seen: Mutex::default(),
        })
    }

    /// Notes for which consumer the cut is, and since when its changes are reported.
    pub(super) fn is_of(&mut self, request: &CutRequest, since: Option<Epoch>) {
        self.consumer = (!request.anonymous).then(|| request.consumer.clone());
        // Sync sends more than the log knows of: its mark is not what its server has.
        let is_of_mark = request.consumer != SYNC_CONSUMER && !self.is_everything();
        self.since = since.filter(|_| is_of_mark);
    }

    /// How much changed.
    pub(super) fn totals(&self) -> ChangesTotals {
        self.totals
    }

    /// Whether all that there is counts as changed.
    pub(super) fn is_everything(&self) -> bool {
        self.list.is_everything()
    }

    fn each_page(&self, mut act: impl FnMut(&ChangesPage)) -> Result<()> {
        if let Some(page) = &self.only_page {
            act(page);
            return Ok(());
        }
        let mut cursor = Some(ChangesCursor::default());
        while let Some(at) = cursor {
            let page = self.list.page(&at, self.limits).map_err(log_failed)?;
            // Nodes come before names.
            cursor = page.next.clone().filter(|next| next.name.is_none());
            act(&page);
        }
        Ok(())
    }

    /// Restricts the picture to what the cut's owner will read. A backup reads what changed, or
    /// whole files that did; a cut without a consumer may read anything.
    pub(super) fn restrict(&self, picture: &Picture, request: &CutRequest) -> Result<()> {
        if request.anonymous || self.is_everything() {
            picture.ends_with(self.cut.last_node().map_err(log_failed)?);
        } else if self.totals.nodes <= RESTRICTED_PAGES_MAX * self.limits.items.get() as u64 {
            let needed = |content: &ContentChange| match content {
                ContentChange::Unchanged => Needed::Ranges(ExtentSet::new()),
                ContentChange::Ranges(_) if request.whole_files => Needed::All,
                // A comparison of blocks reads the rest of each block as well.
                ContentChange::Ranges(ranges) => Needed::Ranges(ranges.aligned_out(HELD_BLOCK_BYTES)),
                ContentChange::Whole(_) => Needed::All,
            };
            let mut nodes = HashMap::new();
            self.each_page(|page| {
                nodes.extend(page.nodes.iter().map(|change| (change.node, needed(&change.content))));
            })?;
            picture.restrict(nodes);
        } else {
            let mut numbers = ExtentSet::new();
            self.each_page(|page| {
                let nodes = page.nodes.iter().map(|change| change.node.0);
                nodes
                    .filter_map(|number| ByteRange::from_offset_len(number, 1))
                    .for_each(|number| numbers.insert(number));
            })?;
            picture.restrict_to(numbers);
        }
        Ok(())
    }

    pub(super) fn picture(&self) -> Result<&Arc<Picture>> {
        let message = "this cut was made only to list changes; its content cannot be read";
        self.picture
            .as_ref()
            .ok_or_else(|| ServiceError::new(ErrorKind::Protocol, message))
    }

    pub(super) fn page(&self, cursor: &ChangesCursor) -> Result<ChangesPage> {
        if let Some(page) = self.only_page.as_ref().filter(|_| *cursor == ChangesCursor::default()) {
            return Ok(page.clone());
        }
        self.list.page(cursor, self.limits).map_err(log_failed)
    }

    /// All names of a node. The log alone knows of copies.
    pub(super) fn names(&self, node: NodeId) -> Result<NodeNames> {
        let kind = self.cut.kind(node).map_err(log_failed)?;
        let names = match kind {
            Some(_) => self.cut.places_of(node).map_err(log_failed)?,
            None => Vec::new(),
        };
        let names: Vec<(NodeId, ByteString)> = names
            .into_iter()
            .map(|(directory, name)| (directory, ByteString::from(name.into_vec())))
            .collect();
        let mut stood_for = None;
        if kind == Some(NodeKind::File) {
            for (directory, name) in names.iter().take(NAMES_LOOKED_UP_MAX) {
                let before = self.list.stood_for(*directory, name.as_bytes()).map_err(log_failed)?;
                stood_for = before.filter(|before| *before != node);
                if stood_for.is_some() {
                    break;
                }
            }
        }
        Ok(NodeNames {
            kind,
            names,
            stood_for,
            copied_from: None,
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
            if page.len() == PAGE_ITEMS.get() {
                break;
            }
            // A name without a node is damage that backups report; it cannot be listed here.
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

    /// Remembers the fences of unprotected files before they are read. `before_ns`: the time when
    /// the look began. `is_synced`: their content was made durable after the look.
    pub(super) fn record_seen(&self, files: Vec<(NodeId, Fence)>, before_ns: i64, is_synced: bool) {
        let proves = |fence: &Fence| is_synced && fence.proves_at(before_ns);
        let files = files.into_iter().map(|(node, fence)| (node, (fence, proves(&fence))));
        self.seen.lock().extend(files);
    }

    /// Whether a file still looks as it did when its attributes were read.
    pub(super) fn is_unchanged(&self, live: &LiveTree, node: NodeId) -> bool {
        let Some((before, _)) = self.seen.lock().get(&node).copied() else {
            return false;
        };
        matches!(live.find(node), Ok(Some((_, stat))) if Fence::of(&stat) == before)
    }

    /// The fences of the files that are saved now. A file that had been changed within the last
    /// tick when it was looked at could be changed again without showing it, so it gets none and is
    /// saved once more next time.
    pub(super) fn proven_fences(&self, unsaved: &[NodeId]) -> Result<Vec<(NodeId, Option<Fence>)>> {
        let unsaved: HashSet<NodeId> = unsaved.iter().copied().collect();
        let seen = self.seen.lock();
        let mut fences = Vec::new();
        // Only what was reported as changed: the fence of another file may be what shows a change.
        self.each_page(|page| {
            let files = page.nodes.iter().filter(|change| is_file(change.kind));
            let saved = files.filter(|change| !unsaved.contains(&change.node));
            fences.extend(saved.filter_map(|change| {
                let (fence, proves) = *seen.get(&change.node)?;
                Some((change.node, proves.then_some(fence)))
            }));
        })?;
        Ok(fences)
    }
}

/// CPU time of this process, all threads.
pub(super) fn process_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
