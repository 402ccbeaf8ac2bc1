//! The changes since the last checkpoint, in memory: a small log that is laid over the database.
//!
//! All of it belongs to one epoch. The gate adds to the *current* one; a checkpoint takes it away
//! whole and writes it to the database, and until that is durable it is still asked, as the
//! *flushing* one, before the database.
//!
//! *Memory.* The ranges of all files together are bounded: past the bound the closest neighbours of
//! all files are joined until a sixteenth is free again, as within one file ([`Layer`]).
//!
//! A node that is born and gone within the same pending log leaves nothing behind: temporary files
//! cost no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use byteback_extents::{ByteRange, ExtentSet, gap_to_fill};
use foldhash::HashMap;

use crate::ids::Epoch;
use crate::layer::{Bounds, Layer, WholeReason};
use crate::record::{DiskKey, NodeRecord};
use byteback_model::NodeId;

/// A directory entry's place.
pub(crate) type Place = (NodeId, OsString);

/// The change of one node.
#[derive(Clone, Debug)]
pub(crate) enum PendingNode {
    /// The node exists and was changed.
    Changed {
        /// Its record, where that is new.
        record: Option<NodeRecord>,
        layer: Layer,
    },
    /// Its last name is gone.
    Gone,
}

#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) epoch: Epoch,
    pub(crate) bounds: Bounds,
    pub(crate) nodes: HashMap<NodeId, PendingNode>,
    /// The number of ranges of all nodes, or more: what went otherwise than by joining is still
    /// counted.
    extents: usize,
    /// The most ranges of all nodes, and the number at which they are next brought below that: it
    /// is higher if there is nothing to join.
    extents_max: usize,
    joins_at: usize,
    /// The present node of each changed name.
    pub(crate) names: BTreeMap<Place, Option<NodeId>>,
    /// The other way round, for names that were added.
    places: HashMap<NodeId, BTreeSet<Place>>,
    /// Keys of nodes that were born or replaced.
    pub(crate) keys: HashMap<DiskKey, Option<NodeId>>,
    /// Files that were written, and such that only changed otherwise, by their inodes: for who
    /// keeps layers beside files. Empty without one.
    written: HashMap<u64, NodeId>,
    touched: HashMap<u64, NodeId>,
    /// A transaction with part of this failed, and may have arrived all the same.
    pub(crate) may_be_durable: bool,
}

impl Pending {
    pub(crate) fn new(epoch: Epoch, bounds: Bounds, extents_max: usize) -> Self {
        Self {
            epoch,
            bounds,
            nodes: HashMap::default(),
            extents: 0,
            extents_max,
            joins_at: extents_max,
            names: BTreeMap::new(),
            places: HashMap::default(),
            keys: HashMap::default(),
            written: HashMap::default(),
            touched: HashMap::default(),
            may_be_durable: false,
        }
    }

    /// An empty one with the same bounds.
    pub(crate) fn next(&self, epoch: Epoch) -> Self {
        Self::new(epoch, self.bounds, self.extents_max)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.names.is_empty() && self.keys.is_empty()
    }

    pub(crate) fn born(&mut self, node: NodeId, record: NodeRecord) {
        self.keys.insert(record.key, Some(node));
        self.nodes.insert(
            node,
            PendingNode::Changed {
                record: Some(record),
                layer: Layer::default(),
            },
        );
    }

    /// Says that something about `node` changed, be it only an attribute.
    pub(crate) fn touch(&mut self, node: NodeId) {
        self.layer(node);
    }

    pub(crate) fn wrote(&mut self, node: NodeId, range: ByteRange) {
        let bounds = self.bounds;
        if let Some(layer) = self.layer(node) {
            let before = layer.ranges.len();
            layer.touched(range, bounds);
            let after = layer.ranges.len();
            self.extents = (self.extents + after).saturating_sub(before);
            if self.extents > self.joins_at {
                self.keep_within();
            }
        }
    }

    /// The ranges of all nodes.
    fn ranges(&self) -> impl Iterator<Item = &ExtentSet> {
        self.nodes.values().filter_map(|change| match change {
            PendingNode::Changed { layer, .. } => Some(&layer.ranges),
            PendingNode::Gone => None,
        })
    }

    /// Joins the closest ranges of all nodes if there are more than the bound allows.
    fn keep_within(&mut self) {
        self.extents = self.ranges().map(ExtentSet::len).sum();
        if self.extents <= self.extents_max {
            self.joins_at = self.extents_max;
            return;
        }
        let room = self.extents_max / 16;
        let surplus = self.extents - (self.extents_max - room);
        // With fewer gaps than that, each node keeps one range.
        let gap = gap_to_fill(self.ranges(), surplus).unwrap_or(u64::MAX);
        for change in self.nodes.values_mut() {
            if let PendingNode::Changed { layer, .. } = change {
                layer.ranges.join_within(gap);
            }
        }
        self.extents = self.ranges().map(ExtentSet::len).sum();
        // A sixteenth more, so that looking at all of them costs little for each that comes.
        self.joins_at = self.extents_max.max(self.extents + self.extents / 16);
    }

    /// Says which inode a node is that was written.
    pub(crate) fn wrote_inode(&mut self, node: NodeId, inode: u64) {
        self.written.insert(inode, node);
    }

    /// Says which inode a node is of which anything changed.
    pub(crate) fn touched_inode(&mut self, node: NodeId, inode: u64) {
        self.touched.insert(inode, node);
    }

    /// The inodes of files that changed, each once.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = u64> {
        let touched = self.touched.keys().filter(|inode| !self.written.contains_key(inode));
        self.written.keys().chain(touched).copied()
    }

    /// How many files were written.
    pub(crate) fn written_inodes(&self) -> usize {
        self.written.len()
    }

    /// The node that is this inode, and what is logged of it.
    pub(crate) fn layer_of_inode(&self, inode: u64) -> Option<(NodeId, &Layer)> {
        let node = *self.written.get(&inode).or_else(|| self.touched.get(&inode))?;
        match self.nodes.get(&node)? {
            PendingNode::Changed { layer, .. } => Some((node, layer)),
            PendingNode::Gone => None,
        }
    }

    /// Whether all of `range` is said to have changed.
    pub(crate) fn has_written(&self, node: NodeId, range: ByteRange) -> bool {
        match self.nodes.get(&node) {
            Some(PendingNode::Changed { layer, .. }) => layer.whole.is_some() || layer.ranges.covers(range),
            Some(PendingNode::Gone) | None => false,
        }
    }

    pub(crate) fn mark_whole(&mut self, node: NodeId, reason: WholeReason) {
        if let Some(layer) = self.layer(node) {
            layer.mark_whole(reason);
        }
    }

    fn layer(&mut self, node: NodeId) -> Option<&mut Layer> {
        let entry = self.nodes.entry(node).or_insert_with(|| PendingNode::Changed {
            record: None,
            layer: Layer::default(),
        });
        match entry {
            PendingNode::Changed { layer, .. } => Some(layer),
            PendingNode::Gone => None,
        }
    }

    pub(crate) fn set_name(&mut self, parent: NodeId, name: &OsStr, child: Option<NodeId>) {
        let place = (parent, name.to_owned());
        if let Some(child) = child {
            self.places.entry(child).or_default().insert(place.clone());
        }
        if let Some(Some(before)) = self.names.insert(place.clone(), child)
            && Some(before) != child
            && let Some(places) = self.places.get_mut(&before)
        {
            places.remove(&place);
        }
    }

    /// Forgets a node whose last name is gone.
    pub(crate) fn gone(&mut self, node: NodeId) {
        self.places.remove(&node);
        let born_here = self.record(node).flatten().map(|record| record.key);
        if let Some(key) = born_here
            && self.keys.get(&key) == Some(&Some(node))
        {
            self.keys.remove(&key);
        }
        if born_here.is_some() && !self.may_be_durable {
            self.nodes.remove(&node);
        } else {
            self.nodes.insert(node, PendingNode::Gone);
        }
    }

    pub(crate) fn record(&self, node: NodeId) -> Option<Option<&NodeRecord>> {
        match self.nodes.get(&node)? {
            PendingNode::Changed { record, .. } => record.as_ref().map(Some),
            PendingNode::Gone => Some(None),
        }
    }

    pub(crate) fn places_of(&self, node: NodeId) -> impl Iterator<Item = &Place> {
        self.places.get(&node).into_iter().flatten()
    }

    /// Lays `newer` over this, after a checkpoint failed and both have to wait for the next. Both
    /// are of the same epoch, or this one's epoch is over, and then everything counts to the newer
    /// one: a change reported for a later epoch than its own is reported to more marks, never to
    /// fewer.
    pub(crate) fn overlay(&mut self, newer: Self) {
        self.epoch = newer.epoch;
        for (node, change) in newer.nodes {
            match change {
                PendingNode::Gone => {
                    self.nodes.insert(node, PendingNode::Gone);
                }
                PendingNode::Changed { record, layer } => {
                    match self.nodes.entry(node).or_insert_with(|| PendingNode::Changed {
                        record: None,
                        layer: Layer::default(),
                    }) {
                        PendingNode::Changed {
                            record: old,
                            layer: below,
                        } => {
                            *old = record.or(old.take());
                            below.overlay(&layer);
                            below.keep_within(self.bounds);
                        }
                        PendingNode::Gone => {}
                    }
                }
            }
        }
        self.names.extend(newer.names);
        for (node, places) in newer.places {
            self.places.entry(node).or_default().extend(places);
        }
        let names = &self.names;
        for (node, places) in &mut self.places {
            places.retain(|place| names.get(place) == Some(&Some(*node)));
        }
        self.keys.extend(newer.keys);
        self.written.extend(newer.written);
        self.touched.extend(newer.touched);
        self.keep_within();
    }
}

#[cfg(test)]
mod tests;
