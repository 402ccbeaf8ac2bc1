//! The changes that a cut reports, read from the cut's own snapshot a page at a time.
//!
//! Memory follows the page, not the number of nodes. A [`ChangesCursor`] names the last item that
//! was reported, so a page costs what it contains and not what came before it. The snapshot never
//! changes, so the pages of one list fit together whatever happens meanwhile.
//!
//! **Order.** Nodes by number, then names by directory and bytes, each once. The database stores
//! layers epoch by epoch; the epochs are read side by side and merged on the fly, oldest first for
//! each node.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::num::NonZeroUsize;
use std::ops::{Bound, ControlFlow};
use std::sync::OnceLock;

use byteback_extents::ExtentSet;

use crate::cut::Cut;
use crate::database::{self, meta};
use crate::error::Result;
use crate::ids::Epoch;
use crate::keeper::layer_of_row;
use crate::layer::{Layer, WholeReason};
use crate::packed::Row;
use crate::record::NodeRecord;
use byteback_model::{ByteString, NameChange, NodeId, NodeKind};
use serde::{Deserialize, Serialize};

/// How much of a node's content may have changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentChange {
    /// Nothing; at most the attributes changed.
    Unchanged,
    /// Byte ranges, which may extend beyond the file's end. In JSON a list of offsets and lengths.
    #[serde(with = "ranges_as_pairs")]
    Ranges(ExtentSet),
    /// The whole content.
    Whole(WholeReason),
}

/// The changes of one node since a mark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeChange {
    /// The node, which exists at the cut.
    pub node: NodeId,
    /// The node's kind.
    pub kind: NodeKind,
    /// Changes of the content; always [`ContentChange::Unchanged`] unless the node is a file.
    pub content: ContentChange,
    /// True if the consumer has never seen this node.
    pub is_new: bool,
}

/// All changes up to a cut, since a mark or from the beginning. Holds the cut, hence a snapshot of
/// the database: drop it when done.
#[derive(Clone)]
pub struct ChangeList {
    cut: Cut,
    extent: Extent,
    /// The epochs of the list in which names changed, once they were asked for.
    name_epochs: OnceLock<Vec<u64>>,
}

/// The changes that are in a list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Extent {
    /// Everything that exists, each file whole for this reason.
    Everything(WholeReason),
    /// Changes of the epochs from `from` on; nodes born at or after `since` are new.
    Since { from: Epoch, since: Epoch },
}

/// The last item that was reported from a list. The default is the beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesCursor {
    /// The last node reported.
    #[serde(default)]
    pub node: Option<NodeId>,
    /// The last name reported, with its directory; if present, all nodes were reported.
    #[serde(default)]
    pub name: Option<(NodeId, ByteString)>,
}

/// The maximum size of a page.
#[derive(Clone, Copy, Debug)]
pub struct PageLimits {
    /// Nodes and names together.
    pub items: NonZeroUsize,
    /// Ranges; those of the page's last file may exceed the limit.
    pub ranges: NonZeroUsize,
}

/// A page of changes: no name precedes the last node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesPage {
    /// Nodes whose attributes or content may have changed, in order of their numbers.
    pub nodes: Vec<NodeChange>,
    /// Names that were added, removed, or stand for another node, in order of their directories'
    /// numbers and their bytes.
    pub names: Vec<NameChange<NodeId>>,
    /// The start of the next page, which may turn out to be empty. `None`: this is the last page.
    pub next: Option<ChangesCursor>,
}

/// The size of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangesTotals {
    /// Nodes.
    pub nodes: u64,
    /// Names.
    pub names: u64,
    /// Bytes of the ranges of files that are not reported whole.
    pub content_bytes: u64,
}

impl ChangesTotals {
    fn add(&mut self, change: &NodeChange) {
        self.nodes += 1;
        if let ContentChange::Ranges(ranges) = &change.content {
            self.content_bytes = self.content_bytes.saturating_add(ranges.total_len_bytes());
        }
    }
}

impl ChangesPage {
    /// The totals of this page.
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
        Self {
            cut,
            extent,
            name_epochs: OnceLock::new(),
        }
    }

    /// Whether the mark is unknown: the list then holds everything that exists now, and nodes
    /// missing from it may have been removed.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        matches!(self.extent, Extent::Everything(_))
    }

    /// The totals of the list. Reads all of it and keeps nothing.
    ///
    /// # Errors
    /// If the database cannot be read or is damaged.
    pub fn totals(&self) -> Result<ChangesTotals> {
        self.cut.damage.watch(self.count())
    }

    /// The page that follows `after`; has at least one item unless it is the last page.
    ///
    /// # Errors
    /// If the database cannot be read or is damaged.
    pub fn page(&self, after: &ChangesCursor, limits: PageLimits) -> Result<ChangesPage> {
        self.cut.damage.watch(self.read_page(after, limits))
    }

    /// The node for which a name stood where the list begins, if the name changed since then:
    /// mostly the file that another one replaced when it was saved. Exact from a mark on; from
    /// another epoch on it may be an older one, if layers before and after it are merged.
    ///
    /// # Errors
    /// If the database cannot be read or is damaged.
    pub fn stood_for(&self, directory: NodeId, name: &[u8]) -> Result<Option<NodeId>> {
        self.cut.damage.watch(self.read_stood_for(directory, name))
    }

    fn read_stood_for(&self, directory: NodeId, name: &[u8]) -> Result<Option<NodeId>> {
        let Extent::Since { from, .. } = self.extent else {
            return Ok(None);
        };
        let table = self.cut.snapshot.transaction().open_table(database::NAME_LAYERS)?;
        let epochs = match self.name_epochs.get() {
            Some(epochs) => epochs,
            None => {
                let epochs = database::epochs_with_name_layers(&table, from.0, self.cut.end.0)?;
                self.name_epochs.get_or_init(|| epochs)
            }
        };
        for epoch in epochs {
            if let Some(row) = table.get((*epoch, directory.0, name))? {
                return Ok(some_node(row.value().1));
            }
        }
        Ok(None)
    }

    fn count(&self) -> Result<ChangesTotals> {
        let mut totals = ChangesTotals::default();
        self.each_node(None, &mut |change| {
            totals.add(&change);
            ControlFlow::Continue(())
        })?;
        if self.is_everything() {
            totals.names = self.cut.snapshot.number(meta::NAMES)?;
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
                if let ContentChange::Ranges(set) = &change.content {
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
            Extent::Everything(reason) => return self.for_each_existing_node(first, reason, act),
            Extent::Since { from, since } => (from, since),
        };
        let table = self.cut.snapshot.transaction().open_table(database::LAYERS)?;
        let epochs = self.cut.epochs_with_layers()?;
        let range =
            epochs.partition_point(|epoch| *epoch < from.0)..epochs.partition_point(|epoch| *epoch < self.cut.end.0);
        let mut lists = Vec::new();
        for epoch in epochs.get(range).unwrap_or_default() {
            // Up to the greatest possible number, which no node has.
            let layers = table.range((*epoch, first)..(*epoch, u64::MAX))?;
            lists.push(layers.map(|entry| {
                let (place, layer) = entry?;
                let (epoch, node) = place.value();
                let layer = layer_of_row(self.cut.kept(), NodeId(node), Epoch(epoch), layer.value())?;
                Ok((NodeId(node), layer))
            }));
        }
        let mut merged = Merged::new(lists)?;
        while let Some((node, layer)) = merged.next_sum(|sum: &mut Layer, newer| sum.overlay(&newer))? {
            // The node is gone meanwhile; the change of its name reports that.
            let Some(record) = self.cut.visible_record(node)? else {
                continue;
            };
            if act(node_change(node, &record, layer, since)).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn for_each_existing_node(
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

    fn each_name(
        &self,
        after: Option<&(NodeId, ByteString)>,
        act: &mut dyn FnMut(NameChange<NodeId>) -> ControlFlow<()>,
    ) -> Result<()> {
        let txn = self.cut.snapshot.transaction();
        let behind = after.map(|(parent, name)| (parent.0, name.as_bytes()));
        let from = match self.extent {
            Extent::Everything(_) => {
                let names = txn.open_table(database::NAMES)?;
                for row in self
                    .cut
                    .snapshot
                    .packs()
                    .names
                    .rows_from(&names, &behind.unwrap_or((0, &[])))?
                {
                    let row = row?;
                    if behind == Some(row.key()) {
                        continue;
                    }
                    let (parent, name) = place_of(row.key());
                    let child = Some(row.child);
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
                let (key, row) = entry?;
                let (_, parent, name) = key.value();
                Ok((place_of((parent, name)), some_node(row.value().0)))
            }));
        }
        let mut merged = Merged::new(lists)?;
        while let Some(((parent, name), child)) = merged.next_sum(|child, newer| *child = newer)? {
            if act(NameChange { parent, name, child }).is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// The node of a row of `name_layers`.
fn some_node(number: u64) -> Option<NodeId> {
    (number != 0).then_some(NodeId(number))
}

fn place_of((parent, name): (u64, &[u8])) -> (NodeId, ByteString) {
    (NodeId(parent), ByteString::from(name))
}

/// Lists in ascending order of their keys, merged into one.
struct Merged<I, K, V> {
    lists: Vec<I>,
    /// The next entry of each list, with the list's number: for equal keys the oldest list comes
    /// first.
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
    /// `lists`: oldest first.
    fn new(mut lists: Vec<I>) -> Result<Self> {
        let mut heads = BinaryHeap::with_capacity(lists.len());
        for (list, items) in lists.iter_mut().enumerate() {
            if let Some((key, value)) = items.next().transpose()? {
                heads.push(Reverse(Head { key, list, value }));
            }
        }
        Ok(Self { lists, heads })
    }

    /// The next key, with the sum of its values in all lists, added from the oldest on.
    fn next_sum(&mut self, add: impl Fn(&mut V, V)) -> Result<Option<(K, V)>> {
        let Some((key, mut sum)) = self.pop()? else {
            return Ok(None);
        };
        while self.heads.peek().is_some_and(|Reverse(head)| head.key == key) {
            if let Some((_, newer)) = self.pop()? {
                add(&mut sum, newer);
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

/// The change of a node according to `layer`, the sum of its layers since `since`.
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

/// Only files have content.
pub(crate) fn content_of(record: &NodeRecord, whole: Option<WholeReason>, ranges: ExtentSet) -> ContentChange {
    match whole {
        _ if record.kind != NodeKind::File => ContentChange::Unchanged,
        Some(reason) => ContentChange::Whole(reason),
        None if ranges.is_empty() => ContentChange::Unchanged,
        None => ContentChange::Ranges(ranges),
    }
}

/// Ranges in JSON, as offsets and lengths. Read are only ranges that are not empty, ascend and do
/// not touch: the other end may be any program.
mod ranges_as_pairs {
    use byteback_extents::{ByteRange, ExtentSet};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(ranges: &ExtentSet, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(ranges.iter().map(|range| (range.start(), range.len_bytes())))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ExtentSet, D::Error> {
        let pairs = Vec::<(u64, u64)>::deserialize(deserializer)?;
        let mut set = ExtentSet::new();
        let mut end = None;
        for (offset, len_bytes) in pairs {
            let range = ByteRange::from_offset_len(offset, len_bytes)
                .filter(|range| end.is_none_or(|end| range.start() > end))
                .ok_or_else(|| D::Error::custom("ranges are empty, too long or not in ascending order"))?;
            end = Some(range.end());
            set.insert(range);
        }
        Ok(set)
    }
}

#[cfg(test)]
pub(crate) mod tests;
