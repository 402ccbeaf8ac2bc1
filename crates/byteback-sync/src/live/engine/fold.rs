//! What was folded, sent from its cut through a backup's own transfer: the tree as that sees it tells only what the fold is about, and keeps what is
//! read, because no answer may come and the same has to be sent again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use byteback_api::{Attributes, ByteString};
use byteback_control::{
    ChangesCursor, ChangesPage, ContentChange, CutId, CutInfo, CutRequest, DirEntry, FinishReport, LeafOffer,
    LeafPiece, LeafRequest, LeavesTold, LiveFold, LiveScope, NameChange, NodeChange, NodeNames, Outcome, Piece, Result,
    TreeService, TreeStatus,
};
use byteback_oplog::{Epoch, NodeId};

/// A tree of which a fold is told.
pub(super) struct FoldedTree<'a> {
    tree: &'a dyn TreeService,
    fold: &'a LiveFold,
    /// Names of the fold that the log has not told so far.
    untold: Mutex<BTreeMap<(NodeId, ByteString), Option<NodeId>>>,
}

impl<'a> FoldedTree<'a> {
    pub(super) fn new(tree: &'a dyn TreeService, fold: &'a LiveFold) -> Self {
        Self {
            tree,
            fold,
            untold: Mutex::default(),
        }
    }

    /// A page of everything, and behind the last the names that the log does not tell of though groups changed them.
    fn everything(&self, cut: CutId, cursor: &ChangesCursor, names: &[NameChange]) -> Result<ChangesPage> {
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

    /// What of a change belongs to the fold.
    fn within(&self, change: NodeChange) -> Option<NodeChange> {
        match &self.fold.scope {
            LiveScope::Everything { .. } => Some(change),
            LiveScope::Items { contents, .. } if contents.contains_key(&change.node) => Some(change),
            // The server has its content, or it is new and has none; the log may reach further back than what the server has.
            LiveScope::Items { attributes, .. } => attributes.contains(&change.node).then_some(NodeChange {
                content: ContentChange::Unchanged,
                is_new: false,
                ..change
            }),
        }
    }
}

impl TreeService for FoldedTree<'_> {
    fn changes(&self, cut: CutId, cursor: &ChangesCursor) -> Result<ChangesPage> {
        let names = match &self.fold.scope {
            // Everything there is needs nothing beside it.
            LiveScope::Everything { .. } if self.fold.cut.since.is_none() => return self.tree.changes(cut, cursor),
            LiveScope::Everything { names } => return self.everything(cut, cursor, names),
            LiveScope::Items { names, .. } => names,
        };
        let mut told = ChangesPage::default();
        let mut cursor = cursor.clone();
        loop {
            let page = self.tree.changes(cut, &cursor)?;
            told.nodes
                .extend(page.nodes.into_iter().filter_map(|change| self.within(change)));
            match page.next {
                // Nodes come before names, of which the fold has its own.
                Some(next) if next.name.is_none() && next != cursor => {
                    if !told.nodes.is_empty() {
                        told.next = Some(next);
                        return Ok(told);
                    }
                    cursor = next;
                }
                _ => {
                    told.names.clone_from(names);
                    return Ok(told);
                }
            }
        }
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
    ) -> Result<LeavesTold> {
        self.tree.leaf_sums(cut, node, request, sink)
    }

    fn path(&self, cut: CutId, node: NodeId) -> Result<Option<ByteString>> {
        self.tree.path(cut, node)
    }

    fn names(&self, cut: CutId, nodes: &[NodeId]) -> Result<Vec<NodeNames>> {
        self.tree.names(cut, nodes)
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
