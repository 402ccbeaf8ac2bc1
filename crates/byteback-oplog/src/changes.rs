//! What a cut reports, read from the cut's own snapshot a page at a time.
//!
//! Memory follows the page, however many nodes there are. A [`ChangesCursor`] names what was told
//! last, so that a page costs what is in it and not what came before it; the snapshot stands still,
//! so that the pages of one list fit together whatever happens meanwhile.
//!
//! **Order.** Nodes by number, then names by directory and bytes: each once. The layers of several
//! epochs lie in the database epoch by epoch; they are read side by side and merged as they come,
//! eldest first for one node.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::ops::{Bound, ControlFlow};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use byteback_extents::ExtentSet;
use redb::ReadableTableMetadata;

use crate::cut::Cut;
use crate::database;
use crate::error::Result;
use crate::ids::Epoch;
use crate::keeper::layer_of_row;
use crate::layer::{Layer, WholeReason};
use crate::pending::Place;
use crate::record::NodeRecord;
use byteback_model::{NodeId, NodeKind};

/// How much of a node's content may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing; only its attributes may have.
    Unchanged,
    /// These ranges. They may lie beyond the file's end.
    Ranges(ExtentSet),
    /// All of it.
    Whole(WholeReason),
}

/// What happened to one node since a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeChange {
    /// The node. It still exists at the cut.
    pub node: NodeId,
    /// What it is.
    pub kind: NodeKind,
    /// Its content; always [`Content::Unchanged`] for whatever is not a file.
    pub content: Content,
    /// The consumer has never seen this node.
    pub is_new: bool,
}

/// What happened to one name since a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameChange {
    /// The directory.
    pub parent: NodeId,
    /// The name in it.
    pub name: OsString,
    /// What it stands for at the cut; `None`: nothing.
    pub child: Option<NodeId>,
}

/// What happened up to a cut, since a mark or ever. Holds the cut, hence a snapshot of the
/// database: drop it when done.
#[derive(Clone)]
pub struct ChangeList {
    cut: Cut,
    extent: Extent,
}

/// Which changes are in a list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Extent {
    /// All that there is, each file whole for this reason.
    Everything(WholeReason),
    /// Those of the epochs from `from` on; new are nodes born at or after `since`.
    Since { from: Epoch, since: Epoch },
}

/// What of a list was told last. The default one is the beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangesCursor {
    /// The last node.
    pub node: Option<NodeId>,
    /// The last name with its directory; then all nodes were told.
    pub name: Option<(NodeId, OsString)>,
}

/// How much a page holds at most.
#[derive(Clone, Copy, Debug)]
pub struct PageLimits {
    /// Nodes and names together.
    pub items: NonZeroUsize,
    /// Ranges; those of its last file may exceed it.
    pub ranges: NonZeroUsize,
}

/// A page of changes: no name comes before the last node.
#[derive(Clone, Debug, Default)]
pub struct ChangesPage {
    /// Nodes whose attributes or content may have changed, in order of their numbers.
    pub nodes: Vec<NodeChange>,
    /// Names that were added, removed, or stand for another node, in order of their directories'
    /// numbers and their bytes.
    pub names: Vec<NameChange>,
    /// Where the next page begins; it may turn out to be empty. `None`: this is the last.
    pub next: Option<ChangesCursor>,
}

/// How much is in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangesTotals {
    /// Nodes.
    pub nodes: u64,
    /// Names.
    pub names: u64,
    /// Bytes of the ranges of files that are not told whole.
    pub content_bytes: u64,
}

impl ChangesTotals {
    fn add(&mut self, change: &NodeChange) {
        self.nodes += 1;
        if let Content::Ranges(ranges) = &change.content {
            self.content_bytes = self.content_bytes.saturating_add(ranges.total_len_bytes());
        }
    }
}

impl ChangesPage {
    /// How much is in it.
    #[must_use]
    pub fn totals(&self) -> ChangesTotals {
        let mut totals = ChangesTotals::default();
        self.nodes.iter().for_each(|change| totals.add(change));
        totals.names = self.names.len() as u64;
        totals
    }
}

impl ChangeList {
    pub(crate) fn new(cut: Cut, extent: Extent) -> Self {
        Self { cut, extent }
    }

    /// The mark is unknown: this is all that there is now, and what is not in it may have been
    /// removed.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        matches!(self.extent, Extent::Everything(_))
    }

    /// How much is in it. Reads all of it, and keeps nothing.
    ///
    /// # Errors
    /// If the database cannot be read or is damaged.
    pub fn totals(&self) -> Result<ChangesTotals> {
        self.cut.damage.watch(self.count())
    }

    /// What comes behind `after`; at least one item, unless it is the last page.
    ///
    /// # Errors
    /// If the database cannot be read or is damaged.
    pub fn page(&self, after: &ChangesCursor, limits: PageLimits) -> Result<ChangesPage> {
        self.cut.damage.watch(self.read_page(after, limits))
    }

    fn count(&self) -> Result<ChangesTotals> {
        let mut totals = ChangesTotals::default();
        self.each_node(None, &mut |change| {
            totals.add(&change);
            ControlFlow::Continue(())
        })?;
        if self.is_everything() {
            totals.names = self.cut.snapshot.transaction().open_table(database::NAMES)?.len()?;
        } else {
            self.each_name(None, &mut |_| {
                totals.names += 1;
                ControlFlow::Continue(())
            })?;
        }
        Ok(totals)
    }

    fn read_page(&self, after: &ChangesCursor, limits: PageLimits) -> Result<ChangesPage> {
        let mut page = ChangesPage::default();
        let (mut items, mut ranges) = (0, 0);
        let until = |is_full: bool| match is_full {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        if after.name.is_none() {
            self.each_node(after.node, &mut |change| {
                items += 1;
                if let Content::Ranges(set) = &change.content {
                    ranges += set.len();
                }
                page.nodes.push(change);
                until(items >= limits.items.get() || ranges >= limits.ranges.get())
            })?;
        }
        let is_full = |items: usize| items >= limits.items.get() || ranges >= limits.ranges.get();
        if !is_full(items) {
            self.each_name(after.name.as_ref(), &mut |change| {
                items += 1;
                page.names.push(change);
                until(items >= limits.items.get())
            })?;
        }
        page.next = is_full(items).then(|| {
            let last_node = page.nodes.last().map(|change| change.node);
            let last_name = page.names.last().map(|change| (change.parent, change.name.clone()));
            ChangesCursor {
                node: last_node.or(after.node),
                name: last_name.or_else(|| after.name.clone()),
            }
        });
        Ok(page)
    }

    fn each_node(&self, after: Option<NodeId>, act: &mut dyn FnMut(NodeChange) -> ControlFlow<()>) -> Result<()> {
        let Some(first) = after.map_or(Some(0), |node| node.0.checked_add(1)) else {
            return Ok(());
        };
        let (from, since) = match self.extent {
            Extent::Everything(reason) => return self.each_node_there_is(first, reason, act),
            Extent::Since { from, since } => (from, since),
        };
        let table = self.cut.snapshot.transaction().open_table(database::LAYERS)?;
        let epochs = self.cut.epochs_with_layers()?;
        let range =
            epochs.partition_point(|epoch| *epoch < from.0)..epochs.partition_point(|epoch| *epoch < self.cut.end.0);
        let mut lists = Vec::new();
        for epoch in epochs.get(range).unwrap_or_default() {
            // Up to the greatest number that there can be, which no node has.
            let layers = table.range((*epoch, first)..(*epoch, u64::MAX))?;
            lists.push(layers.map(|entry| {
                let (place, layer) = entry?;
                let (epoch, node) = place.value();
                let layer = layer_of_row(self.cut.kept(), NodeId(node), Epoch(epoch), layer.value())?;
                Ok((NodeId(node), layer))
            }));
        }
        let mut merged = Merged::new(lists)?;
        while let Some((node, layer)) = merged.next_sum(|sum: &mut Layer, younger| sum.lay(&younger))? {
            // Gone meanwhile: its name says so.
            let Some(record) = self.cut.visible_record(node)? else {
                continue;
            };
            if act(node_change(node, &record, layer, since)).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn each_node_there_is(
        &self,
        first: u64,
        reason: WholeReason,
        act: &mut dyn FnMut(NodeChange) -> ControlFlow<()>,
    ) -> Result<()> {
        self.cut.snapshot.for_each_node_from(first, |node, record, has_place| {
            if !has_place {
                return ControlFlow::Continue(());
            }
            act(NodeChange {
                node,
                kind: record.kind,
                content: content_of(&record, Some(reason), ExtentSet::new()),
                is_new: true,
            })
        })
    }

    fn each_name(&self, after: Option<&Place>, act: &mut dyn FnMut(NameChange) -> ControlFlow<()>) -> Result<()> {
        let txn = self.cut.snapshot.transaction();
        let behind = after.map(|(parent, name)| (parent.0, name.as_bytes()));
        let from = match self.extent {
            Extent::Everything(_) => {
                let begin = behind.map_or(Bound::Unbounded, Bound::Excluded);
                let names = txn.open_table(database::NAMES)?;
                for entry in names.range::<(u64, &[u8])>((begin, Bound::Unbounded))? {
                    let (key, child) = entry?;
                    let (parent, name) = place_of(key.value());
                    let child = Some(NodeId(child.value()));
                    if act(NameChange { parent, name, child }).is_break() {
                        break;
                    }
                }
                return Ok(());
            }
            Extent::Since { from, .. } => from,
        };
        let table = txn.open_table(database::NAME_LAYERS)?;
        let mut lists = Vec::new();
        for epoch in database::epochs_with_name_layers(&table, from.0, self.cut.end.0)? {
            let begin = match behind {
                Some((parent, name)) => Bound::Excluded((epoch, parent, name)),
                None => Bound::Included((epoch, 0, &[][..])),
            };
            let end = Bound::Excluded((epoch, u64::MAX, &[][..]));
            let names = table.range::<(u64, u64, &[u8])>((begin, end))?;
            lists.push(names.map(|entry| {
                let (key, child) = entry?;
                let (_, parent, name) = key.value();
                let child = (child.value() != 0).then_some(NodeId(child.value()));
                Ok((place_of((parent, name)), child))
            }));
        }
        let mut merged = Merged::new(lists)?;
        while let Some(((parent, name), child)) = merged.next_sum(|child, younger| *child = younger)? {
            if act(NameChange { parent, name, child }).is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn place_of((parent, name): (u64, &[u8])) -> Place {
    (NodeId(parent), OsString::from_vec(name.to_vec()))
}

/// Lists in ascending order of their keys, read as one.
struct Merged<I, K, V> {
    lists: Vec<I>,
    /// The next of each list, with the list's number: the eldest list first where keys are the
    /// same.
    heads: BinaryHeap<Reverse<Head<K, V>>>,
}

struct Head<K, V> {
    key: K,
    list: usize,
    value: V,
}

impl<K: Ord, V> Ord for Head<K, V> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (&self.key, self.list).cmp(&(&other.key, other.list))
    }
}

impl<K: Ord, V> PartialOrd for Head<K, V> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<K: Ord, V> PartialEq for Head<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<K: Ord, V> Eq for Head<K, V> {}

impl<I: Iterator<Item = Result<(K, V)>>, K: Ord, V> Merged<I, K, V> {
    /// `lists`: the eldest first.
    fn new(mut lists: Vec<I>) -> Result<Self> {
        let mut heads = BinaryHeap::with_capacity(lists.len());
        for (list, items) in lists.iter_mut().enumerate() {
            if let Some((key, value)) = items.next().transpose()? {
                heads.push(Reverse(Head { key, list, value }));
            }
        }
        Ok(Self { lists, heads })
    }

    /// The next key, with what all lists have under it, added up from the eldest on.
    fn next_sum(&mut self, add: impl Fn(&mut V, V)) -> Result<Option<(K, V)>> {
        let Some((key, mut sum)) = self.pop()? else {
            return Ok(None);
        };
        while self.heads.peek().is_some_and(|Reverse(head)| head.key == key) {
            if let Some((_, younger)) = self.pop()? {
                add(&mut sum, younger);
            }
        }
        Ok(Some((key, sum)))
    }

    fn pop(&mut self) -> Result<Option<(K, V)>> {
        let Some(mut first) = self.heads.peek_mut() else {
            return Ok(None);
        };
        let list = first.0.list;
        let next = match self.lists.get_mut(list) {
            Some(items) => items.next().transpose()?,
            None => None,
        };
        let head = match next {
            Some((key, value)) => std::mem::replace(&mut first.0, Head { key, list, value }),
            None => PeekMut::pop(first).0,
        };
        Ok(Some((head.key, head.value)))
    }
}

/// What the sum of the layers since `since` says of a node.
pub(crate) fn node_change(node: NodeId, record: &NodeRecord, layer: Layer, since: Epoch) -> NodeChange {
    let is_new = record.born >= since;
    let whole = if is_new {
        Some(WholeReason::Created)
    } else {
        layer.whole
    };
    NodeChange {
        node,
        kind: record.kind,
        content: content_of(record, whole, layer.ranges),
        is_new,
    }
}

/// Nothing but files has content.
pub(crate) fn content_of(record: &NodeRecord, whole: Option<WholeReason>, ranges: ExtentSet) -> Content {
    match whole {
        _ if record.kind != NodeKind::File => Content::Unchanged,
        Some(reason) => Content::Whole(reason),
        None if ranges.is_empty() => Content::Unchanged,
        None => Content::Ranges(ranges),
    }
}

#[cfg(test)]
pub(crate) mod tests;
