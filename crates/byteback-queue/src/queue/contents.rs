//! Contents: writes gathered in nodes, bytes put aside before they are lost, and writes replaced by
//! deltas.

use byteback_extents::{ByteRange, ExtentSet};

use crate::ids::{Position, Version};
use crate::operation::NameOperation;
use crate::queue::{Change, Content, ContentSource, Effect, Event, FoldScope, Queue, QueueNode, Relation, count_down};
use byteback_model::NodeId;

/// Bytes of a file that must be put aside before they change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Save {
    /// The node of the queue that needs them.
    pub position: Position,
    /// The bytes.
    pub range: ByteRange,
}

/// Two contents that are to be compared: that of `new` as of `up_to` and that of `base` as it is
/// now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOrder {
    /// The file with the new content. Bytes of it that were saved for its nodes count, not those in
    /// the file.
    pub new: NodeId,
    /// Its last content node.
    pub up_to: Position,
    /// The file with the old content.
    pub base: NodeId,
    /// The version of the old content; `None`: the one that the caller knows the server to have.
    pub base_version: Option<Version>,
    /// The node of the queue that makes the old content, if that is not sent yet.
    pub(crate) base_at: Option<Position>,
}

/// A delta that was encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedDelta {
    /// Where the caller finds it; without meaning here.
    pub stamp: u64,
    /// How long it is, in bytes.
    pub len_bytes: u64,
    /// The version of the old content, as far as known.
    pub base_version: Option<Version>,
}

impl Queue {
    pub(super) fn wrote(&mut self, node: NodeId, range: ByteRange, size: u64, base: Option<Version>, now_ns: u64) {
        // A content being compared changes: the delta would be of a content that is gone.
        self.end_relations_if(|relation, new| relation.order.is_some() && (new == node || relation.base == node));
        if let Some(position) = self.open.get(&node).copied() {
            self.with_content(position, |content| {
                content.size_bytes = size;
                if let ContentSource::Ranges { ranges, .. } = &mut content.source {
                    ranges.insert(range);
                }
            });
            self.touch(position, now_ns);
            return;
        }
        let base = self
            .latest_version(node)
            .or(base.filter(|_| !self.is_version_open(node)));
        let content = Content {
            node,
            base,
            size_bytes: size,
            is_packed: false,
            source: ContentSource::Ranges {
                ranges: [range].into_iter().collect(),
                saved: ExtentSet::new(),
            },
        };
        self.enqueue(self.position, Change::Content(content), now_ns);
        self.open.insert(node, self.position);
        // The base for its comparison must not be removed in an earlier group of its own.
        if let Some(removal) = self
            .relations
            .get(&node)
            .and_then(|relation| self.waiting_removal(relation.base))
        {
            self.join(removal);
        }
    }

    pub(super) fn attributes(&mut self, node: NodeId, stamp: u64, now_ns: u64) {
        if let Some(position) = self.attributes.get(&node).copied() {
            if let Some(QueueNode {
                change: Change::Attributes { stamp: kept, .. },
                ..
            }) = self.nodes.get_mut(&position)
            {
                *kept = stamp;
            }
            self.touch(position, now_ns);
            return;
        }
        self.enqueue(self.position, Change::Attributes { node, stamp }, now_ns);
        self.attributes.insert(node, self.position);
    }

    pub(super) fn closed(&mut self, node: NodeId) {
        self.pack(node);
        let has_content = self.waiting_about(node).iter().any(|at| self.content_at(*at).is_some());
        if !has_content {
            self.end_relation(node);
        }
    }

    fn touch(&mut self, position: Position, now_ns: u64) {
        if let Some(node) = self.nodes.get_mut(&position) {
            node.touched_ns = node.touched_ns.max(now_ns);
        }
        self.join(position);
    }

    /// The content of `node` takes no more writes (section III-B: packed when closed, renamed,
    /// deleted).
    pub(super) fn pack(&mut self, node: NodeId) {
        if let Some(position) = self.open.remove(&node) {
            self.with_content(position, |content| content.is_packed = true);
        }
    }

    /// The version of a file after all that is in the queue of it; `None` if that is not known
    /// before it is sent.
    pub(super) fn latest_version(&self, node: NodeId) -> Option<Version> {
        if let Some(last) = self.last_content(node) {
            return self.nodes.get(&last).map(|node| node.version);
        }
        match &self.groups.front()?.fold {
            Some((FoldScope::Items { contents, .. }, version)) if contents.contains_key(&node) => Some(*version),
            _ => None,
        }
    }

    /// Whether the version that a caller knows of a file now is not the one that the server will
    /// have.
    pub(super) fn is_version_open(&self, node: NodeId) -> bool {
        let fold = self.groups.front().and_then(|group| group.fold.as_ref());
        self.last_content(node).is_none() && fold.is_some_and(|(scope, _)| *scope == FoldScope::Everything)
    }

    fn last_content(&self, node: NodeId) -> Option<Position> {
        let about = self.subjects.get(&node)?.iter().rev();
        about.copied().find(|at| self.content_at(*at).is_some())
    }

    /// The bytes that must be put aside before `range` of a file changes.
    #[must_use]
    pub fn saves_before(&self, node: NodeId, range: ByteRange) -> Vec<Save> {
        self.saves(node, range, self.open.get(&node).copied())
    }

    /// The bytes that must be put aside before a file loses its last name and is not kept aside.
    #[must_use]
    pub fn saves_before_removal(&self, node: NodeId) -> Vec<Save> {
        match ByteRange::from_start(0) {
            Some(all) => self.saves(node, all, None),
            None => Vec::new(),
        }
    }

    fn saves(&self, node: NodeId, range: ByteRange, except: Option<Position>) -> Vec<Save> {
        let mut saves = Vec::new();
        for position in self.about(node, self.first_readable()) {
            let Some(content) = self.content_at(position).filter(|_| except != Some(position)) else {
                continue;
            };
            let ContentSource::Ranges { ranges, saved } = &content.source else {
                continue;
            };
            let below = ByteRange::new(0, content.size_bytes).and_then(|all| all.intersect(range));
            for piece in below.into_iter().flat_map(|below| ranges.iter_within(below)) {
                saves.extend(saved.gaps_within(piece).map(|range| Save { position, range }));
            }
        }
        saves
    }

    /// Whether a file that is about to lose its last name may still be read for the queue: it must
    /// be kept aside until [`Effect::Free`], or [`Queue::saves_before_removal`] be put aside. The
    /// operation itself may take its contents out; it is not known before.
    #[must_use]
    pub fn needs_file(&self, node: NodeId) -> bool {
        self.reads(node)
    }

    /// The bytes of [`Queue::saves_before`] were put aside.
    pub fn saved(&mut self, save: Save) {
        self.with_content(save.position, |content| {
            if let ContentSource::Ranges { saved, .. } = &mut content.source {
                saved.insert(save.range);
            }
        });
    }

    /// How long a file is as far as the queue knows, and whether all of `range` is to be sent
    /// anyway; `None` if its next write is the first of a new content, or is folded.
    #[must_use]
    pub fn open_content(&self, node: NodeId, range: ByteRange) -> Option<(u64, bool)> {
        let content = self.content_at(*self.open.get(&node)?)?;
        let covers = matches!(&content.source, ContentSource::Ranges { ranges, .. } if ranges.covers(range));
        Some((content.size_bytes, covers))
    }

    /// The content of a file that takes writes, and the ranges of the file that it covers; `None`
    /// if its next write is the first of a new content, or is folded.
    #[must_use]
    pub fn open_ranges(&self, node: NodeId) -> Option<(Position, &ExtentSet)> {
        let position = *self.open.get(&node)?;
        match &self.content_at(position)?.source {
            ContentSource::Ranges { ranges, .. } => Some((position, ranges)),
            ContentSource::Delta { .. } => None,
        }
    }

    /// The positions of a file's contents that wait or are in flight, oldest first.
    #[must_use]
    pub fn contents_of(&self, node: NodeId) -> Vec<Position> {
        let about = self.subjects.get(&node).into_iter().flatten().copied();
        about.filter(|at| self.content_at(*at).is_some()).collect()
    }

    /// The bytes that were put aside for the content at this position.
    #[must_use]
    pub fn saved_of(&self, position: Position) -> Option<&ExtentSet> {
        match &self.content_at(position)?.source {
            ContentSource::Ranges { saved, .. } => Some(saved),
            ContentSource::Delta { .. } => None,
        }
    }

    /// The content of a removed file is about to change without an event: nothing is compared with
    /// it any more, nor it with anything.
    pub fn not_compared(&mut self, node: NodeId) {
        self.end_relations_if(|relation, new| relation.base == node || new == node);
        self.settle();
    }

    /// Whether content of a file waits to be sent.
    #[must_use]
    pub fn has_unsent_content(&self, node: NodeId) -> bool {
        self.waiting_about(node).iter().any(|at| self.content_at(*at).is_some())
    }

    /// The content of `new` is worth comparing with that of `base`; to be called before the event
    /// of the operation that shows it. Replaces an earlier relation of `new`. `is_base_removed`:
    /// the base lost its last name by an earlier operation.
    pub fn relate(&mut self, new: NodeId, base: NodeId, is_base_removed: bool) {
        self.unrelate_quietly(new);
        // A removed base serves until its removal was sent to the server, and only if the server
        // has the content of the file.
        let is_there = self.waiting_removal(base).is_some() && !self.outdated.contains(&base);
        let is_lost = is_base_removed && !is_there;
        if is_lost || self.fold.is_some() {
            self.effects.push(Effect::Unrelated(new));
            return;
        }
        self.begin_relation(new, base);
    }

    fn begin_relation(&mut self, new: NodeId, base: NodeId) {
        self.relations.insert(new, Relation { base, order: None });
        *self.bases.entry(base).or_default() += 1;
        // A content written after the base was removed is to be sent with that removal: afterwards
        // the base would be gone.
        let removal = self.waiting_removal(base);
        let content = self.last_content(new).filter(|content| *content > self.frozen);
        if let (Some(removal), Some(content)) = (removal, content)
            && removal < content
        {
            self.spans_join(removal, content);
        }
    }

    /// The content of `new` is not to be compared, or was not worth it.
    pub fn unrelate(&mut self, new: NodeId) {
        self.end_relation(new);
        self.settle();
    }

    /// Relations whose base is `node`, which vanishes unsent, get the base of `node` itself: of a
    /// file that is saved again and again within the delay only the last state is sent.
    pub(super) fn pass_relations_on(&mut self, node: NodeId) {
        let base = self.relations.get(&node).map(|relation| relation.base);
        let of_node = self.relations.iter().filter(|(_, relation)| relation.base == node);
        for new in of_node.map(|(new, _)| *new).collect::<Vec<_>>() {
            let is_circle = |base: NodeId| base == new || self.relations.get(&base).is_some_and(|it| it.base == new);
            match base.filter(|base| !is_circle(*base)) {
                Some(base) => {
                    self.unrelate_quietly(new);
                    self.begin_relation(new, base);
                    self.effects.push(Effect::Rebased { new, base });
                }
                None => self.end_relation(new),
            }
        }
    }

    pub(super) fn end_relation(&mut self, new: NodeId) {
        if self.unrelate_quietly(new) {
            self.effects.push(Effect::Unrelated(new));
        }
    }

    fn unrelate_quietly(&mut self, new: NodeId) -> bool {
        let Some(relation) = self.relations.remove(&new) else {
            return false;
        };
        count_down(&mut self.bases, relation.base);
        self.freed.push(relation.base);
        true
    }

    pub(super) fn end_relations_if(&mut self, which: impl Fn(&Relation, NodeId) -> bool) {
        let ended = self.relations.iter().filter(|(new, relation)| which(relation, **new));
        for new in ended.map(|(new, _)| *new).collect::<Vec<_>>() {
            self.end_relation(new);
        }
    }

    pub(super) fn end_relations(&mut self) {
        self.end_relations_if(|_, _| true);
    }

    /// The comparison to make before `new` is sent; ends a relation that is not worth it.
    pub(super) fn order(&mut self, new: NodeId) -> Option<EncodeOrder> {
        let relation = *self.relations.get(&new)?;
        let contents = self
            .waiting_about(new)
            .into_iter()
            .filter(|at| self.content_at(*at).is_some());
        let contents = contents.collect::<Vec<_>>();
        let bytes = contents
            .iter()
            .filter_map(|at| self.content_at(*at))
            .map(Content::len_bytes);
        let is_worth_it = bytes.sum::<u64>() >= self.options.delta_bytes_min;
        let Some(up_to) = contents.last().copied().filter(|_| is_worth_it) else {
            self.end_relation(new);
            return None;
        };
        self.pack(new);
        self.pack(relation.base);
        let base_at = self.last_content(relation.base);
        let order = EncodeOrder {
            new,
            up_to,
            base: relation.base,
            base_version: self.latest_version(relation.base),
            base_at,
        };
        self.relations.insert(
            new,
            Relation {
                order: Some(order),
                ..relation
            },
        );
        Some(order)
    }

    /// Answers an order of [`super::Poll::Encode`]. `None`: it could not be encoded, and is sent as
    /// it is. Whether the delta is taken.
    pub fn encoded(&mut self, order: &EncodeOrder, delta: Option<EncodedDelta>) -> bool {
        // Otherwise something changed meanwhile.
        let is_current = self
            .relations
            .get(&order.new)
            .is_some_and(|relation| relation.order == Some(*order));
        if !is_current {
            return false;
        }
        let is_taken = delta.is_some_and(|delta| self.take_delta(order, delta));
        self.unrelate(order.new);
        is_taken
    }

    fn take_delta(&mut self, order: &EncodeOrder, delta: EncodedDelta) -> bool {
        let waiting = self.waiting_about(order.new);
        let contents = waiting
            .into_iter()
            .filter(|at| self.content_at(*at).is_some())
            .collect::<Vec<_>>();
        let len = |at: &Position| self.content_at(*at).map(Content::len_bytes);
        let len_bytes = contents.iter().filter_map(len).sum::<u64>();
        let (Some(&first), Some(&last)) = (contents.first(), contents.last()) else {
            return false;
        };
        if last != order.up_to || delta.len_bytes >= len_bytes {
            return false;
        }
        let base_version = order.base_version.or(delta.base_version);
        let base = self.content_at(first).and_then(|content| content.base);
        let removal = self.waiting_removal(order.base);
        // The base must be what it was when it was compared: behind its own content and creation.
        let created = self.waiting_about(order.base).into_iter().find(|at| {
            let change = self.change_at(*at);
            matches!(change, Some(Change::Name(NameOperation::Created { node, .. })) if node.node == order.base)
        });
        let after = order.base_at.max(created).unwrap_or_default();
        let is_in_place = first == last && after < last;
        if !is_in_place && self.is_version_used(order.new) {
            return false;
        }
        let mut end = first;
        for at in &contents {
            end = *at;
            let Some(mut node) = self.remove(*at) else { continue };
            if *at != last {
                continue;
            }
            if after > last {
                self.position.0 += 1;
                end = self.position;
            }
            if let Change::Content(content) = &mut node.change {
                content.base = base;
                content.is_packed = true;
                content.source = ContentSource::Delta {
                    base: order.base,
                    base_version,
                    stamp: delta.stamp,
                    len_bytes: delta.len_bytes,
                };
            }
            self.insert(end, node);
        }
        if end != first {
            self.spans_join(first, end);
        }
        if let Some(removal) = removal.filter(|removal| *removal < end) {
            self.spans_join(removal, end);
        }
        true
    }

    /// Whether a delta, or one that is being made, copies from a certain version of `node`: then
    /// all its versions stay, where they are.
    pub(super) fn is_version_used(&self, node: NodeId) -> bool {
        let of_node = || self.relations.values().filter(|relation| relation.base == node);
        let deltas = self.bases.get(&node).copied().unwrap_or(0) - of_node().count();
        deltas > 0 || of_node().any(|relation| relation.order.is_some())
    }

    fn spans_join(&mut self, first: Position, last: Position) {
        #[cfg(test)]
        if self.ignores_backindex {
            return;
        }
        self.spans.join(first, last);
        self.join_files(first, last);
    }
}

impl Event {
    /// The event that bytes of a file changed from an old length to a new one.
    #[must_use]
    pub fn resized(node: NodeId, old_bytes: u64, new_bytes: u64, base: Option<Version>) -> Option<Self> {
        Some(Self::Wrote {
            node,
            range: ByteRange::new(old_bytes.min(new_bytes), old_bytes.max(new_bytes))?,
            size_bytes: new_bytes,
            base,
        })
    }
}
