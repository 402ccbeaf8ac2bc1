//! Folded changes, sent from their cut through a backup's own transfer. The tree that the transfer
//! sees reports only what the fold is about. It keeps what is read, because no answer may come and
//! the same must then be sent again.
//!
//! It does not report withheld nodes, as they are ignored, nor [held](Held) ones, as others changed
//! them and they cannot be changed here.
//!
//! Beside that it reports nodes that the server does not have under their ID ([`Unsent`]): conflict
//! copies, directories that stay though others removed them, and nodes that were here when the
//! folder first met one that was not empty. These are new to the server with all their names,
//! whatever the log says.

use byteback_extents::ExtentSet;
use byteback_model::{Attributes, ByteString, FileId, NameChange, NodeId, NodeKind, Place};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Mutex, PoisonError};

use super::blocked::Held;
use super::ignoring::ReportedAs;
use crate::incoming::plan::is_name_on_its_way;
use byteback_control::{
    ChangesCursor, ChangesPage, ContentChange, CutId, CutInfo, CutRequest, DirEntry, FinishReport, LeafOffer,
    LeafPiece, LeafRequest, LeavesSummary, LiveFold, LiveScope, NodeChange, NodeNames, Outcome, Piece, Result,
    TreeService, TreeStatus,
};
use byteback_oplog::{Epoch, WholeReason};

/// Nodes that the server does not have under their ID, as they are at a cut.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    nodes: BTreeMap<NodeId, NodeChange>,
    names: BTreeMap<(NodeId, ByteString), Option<NodeId>>,
    /// Nodes that do not exist any more.
    pub(super) gone: Vec<NodeId>,
}

impl Unsent {
    /// Looks for `nodes` at a cut. `grew` says which of them grew from a content that the server
    /// has.
    pub(super) fn at(
        tree: &dyn TreeService,
        cut: CutId,
        nodes: &[NodeId],
        grew: &dyn Fn(NodeId) -> bool,
    ) -> Result<Self> {
        let mut untold = Self::default();
        for some in nodes.chunks(NODES_PER_CALL) {
            for (node, reported) in some.iter().zip(tree.names(cut, some)?) {
                let Some(kind) = reported.kind.filter(|_| !reported.names.is_empty()) else {
                    untold.gone.push(*node);
                    continue;
                };
                let content = match kind {
                    NodeKind::File if grew(*node) => ContentChange::Ranges(ExtentSet::new()),
                    NodeKind::File => ContentChange::Whole(WholeReason::Created),
                    _ => ContentChange::Unchanged,
                };
                let change = NodeChange {
                    node: *node,
                    kind,
                    content,
                    is_new: true,
                };
                untold.nodes.insert(*node, change);
                untold
                    .names
                    .extend(reported.names.into_iter().map(|name| (name, Some(*node))));
                if kind == NodeKind::Directory {
                    untold.list(tree, cut, *node)?;
                }
            }
        }
        if untold.nodes.keys().any(|node| grew(*node)) {
            untold.ask_log(tree, cut)?;
        }
        Ok(untold)
    }

    /// Adds the names in a directory.
    fn list(&mut self, tree: &dyn TreeService, cut: CutId, directory: NodeId) -> Result<()> {
        let mut after = None;
        loop {
            let page = tree.entries(cut, directory, after.as_ref())?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.name.clone());
            let entries = page.into_iter();
            self.names
                .extend(entries.map(|entry| ((directory, entry.name), Some(entry.node))));
        }
    }

    /// Asks the log where files differ from their origin: only where it knows of changes.
    fn ask_log(&mut self, tree: &dyn TreeService, cut: CutId) -> Result<()> {
        let mut cursor = ChangesCursor::default();
        loop {
            let page = tree.changes(cut, &cursor)?;
            for change in page.nodes {
                if let Some(reported) = self.nodes.get_mut(&change.node)
                    && matches!(reported.content, ContentChange::Ranges(_))
                    && change.content != ContentChange::Unchanged
                {
                    reported.content = change.content;
                }
            }
            match page.next {
                Some(next) if next.name.is_none() && next != cursor => cursor = next,
                _ => return Ok(()),
            }
        }
    }

    /// Reports these names of a directory as removed, unless they are there.
    pub(super) fn removed(&mut self, directory: NodeId, names: impl Iterator<Item = ByteString>) {
        for name in names {
            self.names.entry((directory, name)).or_insert(None);
        }
    }

    /// All of these nodes that are there.
    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.keys().copied()
    }
}

/// Names of a node that are looked up, for what they stood for before: others have many thousands.
const NAMES_LOOKED_UP_MAX: usize = 4;

/// Number of nodes in one request.
const NODES_PER_CALL: usize = 512;

/// Whether the server has a node, and whether a node is gone.
type Identified<'a> = (&'a (dyn Fn(NodeId) -> bool + Sync), &'a (dyn Fn(NodeId) -> bool + Sync));

/// Whether a node is withheld, and how a name is reported.
type Withheld<'a> = (
    &'a (dyn Fn(NodeId) -> bool + Sync),
    &'a (dyn Fn(&NameChange<NodeId>) -> ReportedAs + Sync),
);

/// A tree as its fold reports it.
pub(super) struct FoldedTree<'a> {
    tree: &'a dyn TreeService,
    fold: &'a LiveFold,
    unsent: &'a Unsent,
    /// Whether the server has a node that others made, or that it knows by another ID than the
    /// node's own.
    is_there: &'a (dyn Fn(NodeId) -> bool + Sync),
    /// Whether a node is gone, so that its file at the server may be another node here by now: a
    /// directory that was removed here and came back.
    is_forgotten: &'a (dyn Fn(NodeId) -> bool + Sync),
    /// Whether the server has a name that this tree does not hold: a removal of it in the log
    /// concerns another node.
    is_left_out: &'a (dyn Fn(NodeId, &ByteString) -> bool + Sync),
    /// Whether a node is not reported, or how a name is, as it is ignored.
    withheld: Withheld<'a>,
    /// Nodes and names that others changed and that cannot be changed here: they stay unsaved.
    held: &'a Held,
    /// Names that are reported again.
    reported_again: &'a [NameChange<NodeId>],
    /// Names of the fold that the log has not reported so far.
    untold: Mutex<BTreeMap<(NodeId, ByteString), Option<NodeId>>>,
    /// Files that the server has and this tree does not hold, when everything here is sent in place
    /// of all that is there.
    elsewhere: &'a Elsewhere,
    /// Unsaved nodes of an earlier fold, perhaps another engine's, and held nodes, of which this
    /// fold reports nothing.
    passed_over: Mutex<BTreeSet<NodeId>>,
}

/// Names of the server that this tree does not hold, and all that is below them.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    names: BTreeMap<(NodeId, ByteString), NodeId>,
    files: BTreeMap<NodeId, FileId>,
}

impl Elsewhere {
    /// Takes in a name of the server. Returns the number by which it is reported here, which no
    /// node of the tree has.
    pub(super) fn add(&mut self, parent: NodeId, name: ByteString, file: FileId) -> NodeId {
        let node = NodeId(u64::MAX.saturating_sub(self.files.len() as u64));
        self.files.insert(node, file);
        self.names.insert((parent, name), node);
        node
    }

    /// The file of the server behind such a number.
    pub(super) fn file_of(&self, node: NodeId) -> Option<FileId> {
        self.files.get(&node).copied()
    }
}

impl<'a> FoldedTree<'a> {
    pub(super) fn new(
        tree: &'a dyn TreeService,
        fold: &'a LiveFold,
        unsent: &'a Unsent,
        (is_there, is_forgotten): Identified<'a>,
        is_left_out: &'a (dyn Fn(NodeId, &ByteString) -> bool + Sync),
        (withheld, held, reported_again): (Withheld<'a>, &'a Held, &'a [NameChange<NodeId>]),
        elsewhere: &'a Elsewhere,
    ) -> Self {
        Self {
            tree,
            fold,
            unsent,
            is_there,
            is_forgotten,
            is_left_out,
            withheld,
            held,
            reported_again,
            untold: Mutex::default(),
            elsewhere,
            passed_over: Mutex::default(),
        }
    }

    /// Nodes that are held, or that the log calls unsaved, and of which the fold has reported
    /// nothing: they stay unsaved, or the mark would pass over them.
    pub(super) fn passed_over(&self) -> Vec<NodeId> {
        let passed_over = self.passed_over.lock().unwrap_or_else(PoisonError::into_inner);
        passed_over.iter().copied().collect()
    }

    /// Whether names came and went in a directory, and the fold reports nothing else of it.
    pub(super) fn sends_time_only(&self, node: NodeId) -> bool {
        let is_new = self.unsent.nodes.contains_key(&node);
        match &self.fold.scope {
            LiveScope::Items { attributes, times, .. } => {
                times.contains(&node) && !attributes.contains(&node) && !is_new
            }
            LiveScope::Everything { .. } => false,
        }
    }

    fn pass_over(&self, node: NodeId) {
        let mut passed_over = self.passed_over.lock().unwrap_or_else(PoisonError::into_inner);
        passed_over.insert(node);
    }

    /// A page of everything, and behind the last one the names that the log does not report though
    /// groups changed them.
    fn everything(&self, cut: CutId, cursor: &ChangesCursor, names: &[NameChange<NodeId>]) -> Result<ChangesPage> {
        let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        if *cursor == ChangesCursor::default() {
            let names = names.iter().cloned();
            *untold = names.map(|name| ((name.parent, name.name), name.child)).collect();
        }
        let mut page = self.tree.changes(cut, cursor)?;
        for name in &page.names {
            untold.remove(&(name.parent, name.name.clone()));
        }
        if page.next.is_none() {
            let rest = std::mem::take(&mut *untold).into_iter();
            let rest = rest.map(|((parent, name), child)| NameChange { parent, name, child });
            page.names.extend(rest);
        }
        Ok(page)
    }

    /// The part of a change that belongs to the fold.
    fn within(&self, change: NodeChange) -> Option<NodeChange> {
        // Regardless of the fold's scope: the log can mark only files as unsent.
        if self.held.was_left_out(change.node) {
            self.pass_over(change.node);
            return None;
        }
        match &self.fold.scope {
            LiveScope::Everything { .. } => Some(change),
            LiveScope::Items { contents, .. } if contents.contains_key(&change.node) => Some(change),
            LiveScope::Items { .. } if change.content == ContentChange::Whole(WholeReason::Unsaved) => {
                let (is_withheld, _) = self.withheld;
                if !self.unsent.nodes.contains_key(&change.node) && !is_withheld(change.node) {
                    self.pass_over(change.node);
                }
                None
            }
            // The server has its content, or it is new and has none; the log may reach back to
            // before what the server has.
            LiveScope::Items { attributes, times, .. }
                if attributes.contains(&change.node) || times.contains(&change.node) =>
            {
                Some(NodeChange {
                    content: ContentChange::Unchanged,
                    is_new: false,
                    ..change
                })
            }
            LiveScope::Items { .. } => None,
        }
    }

    fn folded(&self, cut: CutId, cursor: &ChangesCursor) -> Result<ChangesPage> {
        let names = match &self.fold.scope {
            // A fold of everything there is needs no other names.
            LiveScope::Everything { .. } if self.fold.cut.since.is_none() => return self.tree.changes(cut, cursor),
            LiveScope::Everything { names } => return self.everything(cut, cursor, names),
            LiveScope::Items { names, .. } => names,
        };
        let mut reported = ChangesPage::default();
        let mut cursor = cursor.clone();
        loop {
            let page = self.tree.changes(cut, &cursor)?;
            reported
                .nodes
                .extend(page.nodes.into_iter().filter_map(|change| self.within(change)));
            match page.next {
                // Nodes come before names, and the fold has names of its own.
                Some(next) if next.name.is_none() && next != cursor => {
                    if !reported.nodes.is_empty() {
                        reported.next = Some(next);
                        return Ok(reported);
                    }
                    cursor = next;
                }
                _ => {
                    reported.names.clone_from(names);
                    return Ok(reported);
                }
            }
        }
    }
}

impl TreeService for FoldedTree<'_> {
    fn changes(&self, cut: CutId, cursor: &ChangesCursor) -> Result<ChangesPage> {
        let mut page = self.folded(cut, cursor)?;
        let (is_withheld, reported_as) = self.withheld;
        page.nodes
            .retain(|change| !self.unsent.nodes.contains_key(&change.node) && !is_withheld(change.node));
        let is_reported = |name: &NameChange<NodeId>| self.unsent.names.contains_key(&(name.parent, name.name.clone()));
        let is_on_its_way =
            |name: &NameChange<NodeId>| name.parent == NodeId::ROOT && is_name_on_its_way(name.name.as_bytes());
        let is_left_out =
            |name: &NameChange<NodeId>| name.child.is_none() && (self.is_left_out)(name.parent, &name.name);
        let is_of_gone = |name: &NameChange<NodeId>| (self.is_forgotten)(name.parent);
        // A name of the server stays what it is there.
        let is_elsewhere = |name: &NameChange<NodeId>| {
            let name = (name.parent, name.name.clone());
            self.elsewhere.names.contains_key(&name)
        };
        page.names.retain(|name| {
            !is_reported(name) && !is_of_gone(name) && !is_on_its_way(name) && !is_left_out(name) && !is_elsewhere(name)
        });
        for change in &mut page.nodes {
            change.is_new &= !(self.is_there)(change.node);
        }
        // Nodes come before names.
        if *cursor == ChangesCursor::default() {
            page.nodes.splice(0..0, self.unsent.nodes.values().cloned());
        }
        if page.next.is_none() {
            let mut reported: HashSet<(NodeId, ByteString)> = HashSet::new();
            if !self.reported_again.is_empty() {
                reported.extend(page.names.iter().map(|name| (name.parent, name.name.clone())));
            }
            let is_new = |name: &&NameChange<NodeId>| {
                let place = (name.parent, name.name.clone());
                !reported.contains(&place) && !self.unsent.names.contains_key(&place) && !is_elsewhere(name)
            };
            page.names.extend(self.reported_again.iter().filter(is_new).cloned());
            let names = self.unsent.names.iter();
            page.names.extend(names.map(|((parent, name), child)| NameChange {
                parent: *parent,
                name: name.clone(),
                child: *child,
            }));
        }
        page.nodes.retain(|change| {
            let is_held = self.held.has(change.node);
            if is_held {
                self.pass_over(change.node);
            }
            !is_held
        });
        page.names.retain(|name| !self.held.has_name(name));
        page.names.retain_mut(|name| match reported_as(name) {
            ReportedAs::Itself => true,
            ReportedAs::Gone => {
                name.child = None;
                true
            }
            ReportedAs::Nothing => false,
        });
        if page.next.is_none() {
            // After ignored names are dropped: these are reported as what the server has.
            let elsewhere = self.elsewhere.names.iter();
            page.names.extend(elsewhere.map(|((parent, name), child)| NameChange {
                parent: *parent,
                name: name.clone(),
                child: Some(*child),
            }));
        }
        Ok(page)
    }

    fn read(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        self.tree.peek(cut, node, ranges, sink)
    }

    fn peek(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        self.tree.peek(cut, node, ranges, sink)
    }

    fn note_batch(&self, _cut: CutId, _batch: u64) -> Result<()> {
        // The group's number is durable since it was handed out.
        Ok(())
    }

    fn status(&self) -> Result<TreeStatus> {
        self.tree.status()
    }

    fn resolve_pending(&self, consumer: &str, saved: Option<Vec<u8>>) -> Result<()> {
        self.tree.resolve_pending(consumer, saved)
    }

    fn drop_consumer(&self, consumer: &str) -> Result<bool> {
        self.tree.drop_consumer(consumer)
    }

    fn cut(&self, request: &CutRequest) -> Result<CutInfo> {
        self.tree.cut(request)
    }

    fn attributes(&self, cut: CutId, nodes: &[NodeId]) -> Result<Vec<Result<Attributes>>> {
        self.tree.attributes(cut, nodes)
    }

    fn leaf_offer(&self, cut: CutId, node: NodeId) -> Result<LeafOffer> {
        self.tree.leaf_offer(cut, node)
    }

    fn leaf_sums(
        &self,
        cut: CutId,
        node: NodeId,
        request: LeafRequest,
        sink: &mut dyn FnMut(LeafPiece<'_>) -> Result<()>,
    ) -> Result<LeavesSummary> {
        self.tree.leaf_sums(cut, node, request, sink)
    }

    fn path(&self, cut: CutId, node: NodeId) -> Result<Option<ByteString>> {
        self.tree.path(cut, node)
    }

    fn names(&self, cut: CutId, nodes: &[NodeId]) -> Result<Vec<NodeNames>> {
        let mut reported = self.tree.names(cut, nodes)?;
        let LiveScope::Items { stood_for, .. } = &self.fold.scope else {
            return Ok(reported);
        };
        // The log tells of its mark; names may have changed in groups since then.
        for (node, names) in nodes.iter().zip(&mut reported) {
            let mut before = names
                .names
                .iter()
                .take(NAMES_LOOKED_UP_MAX)
                .filter_map(|(parent, name)| {
                    let place = Place {
                        parent: *parent,
                        name: name.clone(),
                    };
                    stood_for.get(&place)
                });
            if let Some(before) = before.next() {
                names.stood_for = before.filter(|before| before != node);
            }
        }
        Ok(reported)
    }

    fn entries(&self, cut: CutId, directory: NodeId, after: Option<&ByteString>) -> Result<Vec<DirEntry>> {
        self.tree.entries(cut, directory, after)
    }

    fn find(&self, cut: CutId, path: &ByteString) -> Result<Option<NodeId>> {
        self.tree.find(cut, path)
    }

    fn advance(&self, consumer: &str, cut: Epoch) -> Result<bool> {
        self.tree.advance(consumer, cut)
    }

    fn finish(&self, cut: CutId, outcome: &Outcome) -> Result<FinishReport> {
        self.tree.finish(cut, outcome)
    }

    fn unmount(&self) -> Result<()> {
        self.tree.unmount()
    }
}
