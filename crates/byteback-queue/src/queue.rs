//! The sync queue: the changes to be sent, their order, and which of them belong together (DeltaCFS
//! sections III-B, III-C, III-E).
//!
//! The gate reports each event ([`Queue::event`]), in order; each event has a *position*, its
//! number. The change to be sent because of it is a [`QueueNode`] at that position. Writes to a
//! file are gathered in one node until it is *packed*: when the file is closed, renamed, removed,
//! or its turn comes. A file that is removed before it was sent is taken out again, with all that
//! was only about it. So the order is broken on purpose, and a *span* (the paper's backindex) says
//! from where to where it only counts as a whole; spans that overlap are one. The head of the
//! queue, as far as its span reaches, becomes a [`Group`]: one transaction on the server. Later
//! nodes that are due as well go with it, up to a bound: nothing waits for that, and the cost of
//! many small changes lies in the transactions.
//!
//! **The promise.** When a group is applied, the server has exactly the state that the origin had
//! after the event at [`Group::up_to`]; and these positions only grow. The tests' `checker` proves
//! it for recorded histories.
//!
//! **Bytes** are not in the queue, only which ones: they are read from the file when it is sent. So
//! before a file is changed the caller asks [`Queue::saves_before`] which bytes of packed nodes
//! must be put aside, and says so by [`Queue::saved`] before it performs the change. A file that is
//! about to lose its last name is kept aside as a whole, if [`Queue::needs_file`], until
//! [`Effect::Free`], or [`Queue::saves_before_removal`] are put aside. If neither can be done:
//! [`Queue::abandon`].
//!
//! **Deltas** (III-A). [`Queue::relate`] says which new content is worth comparing with which old
//! one. When the new one is due, [`Queue::poll`] answers [`Poll::Encode`]; the delta
//! ([`Queue::encoded`]) takes the place of the writes. In the paper it is appended at the tail, and
//! a backindex makes one transaction of all between. Here it stands where the last of these writes
//! stood, because it makes the same content: then nothing is out of order. Only if its base was
//! changed or removed in between, a span is needed. A file that is removed again before it is due
//! is never compared, and nothing is compared twice.
//!
//! **Bounds.** Past [`QueueOptions`]' bounds all that waits is *folded*: it becomes one node that
//! says what is to be taken from the operation log, and takes in all that follows, in constant
//! memory, until its turn comes. Then [`Poll::Cut`] asks for a cut of the log with the gate held,
//! [`Queue::cut`] ends the fold in the same moment, and what is read as of the cut is one group.
//!
//! **In flight** nothing changes any more: not the nodes of a group, nor its number. Groups are
//! answered in their order. The server stops at the first that it refuses; those behind it were not
//! applied, are in the queue again, and get other numbers.
//!
//! **Crashes.** The state is a function of the calls: a [`crate::persist::Input`] each, which can
//! be written down and applied again. A group must be durable before it is sent (its number stands
//! for this content), all else may be lost: after a stop that was not clean, events may be missing,
//! so [`Queue::abandon`] folds all into *everything since the mark*, and has the server asked about
//! the groups in flight. After a clean stop [`Queue::resume`] goes on.
//!
//! Invariants, held by [`Queue::check`]: nodes at or before `frozen` belong to groups, in order and
//! without gaps; an open content or attributes node waits; the indexes say what a search would; the
//! bounds are kept.

mod contents;
mod fold;
mod groups;
mod names;
mod node;
mod presence;
#[cfg(test)]
mod saves;
mod spans;
#[cfg(test)]
mod tests;
mod together;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::{ClientId, GroupId, Position, Version};
use byteback_model::NodeId;
pub use contents::{EncodeOrder, EncodedDelta, Save};
pub use groups::{Poll, Resolution};
pub use node::{Change, Content, ContentSource, Event, FoldScope, Group, GroupState, QueueNode};
pub(crate) use node::{nodes_before, places};
pub use presence::{Presence, Unsent};
pub(crate) use spans::Spans;
pub use together::FileSet;
pub(crate) use together::Together;

/// When things are sent, and how much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// How long a group must have been left alone before it is sent, in nanoseconds. 0: at once.
    pub delay_ns: u64,
    /// A group that is changed all the time is sent after this time, in nanoseconds.
    pub delay_max_ns: u64,
    /// Groups in flight at most.
    pub groups_in_flight_max: usize,
    /// The most nodes in one group of changes that are due anyway: a transaction costs the same for
    /// one change as for a thousand. A span, which only counts as a whole, may have more.
    pub group_nodes_max: usize,
    /// The same in bytes of content: a longer content is one group by itself.
    pub group_bytes_max: u64,
    /// Nodes at most, those in flight aside.
    pub nodes_max: usize,
    /// Extents of ranges at most, those in flight aside: they and the nodes are the memory.
    pub extents_max: usize,
    /// Bytes of content that may wait at most: what saving them could take on the disk.
    pub bytes_max: u64,
    /// Files and names that a fold lists one by one; beyond it, the fold is everything since the
    /// mark.
    pub fold_items_max: usize,
    /// The longest atomic operation, of which all files are in conflict if one is, in nanoseconds.
    /// A longer one does not count as atomic: a server within reach would have got it in several
    /// groups.
    pub together_ns_max: u64,
    /// A new content of fewer bytes is sent as it is, not compared.
    pub delta_bytes_min: u64,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            delay_ns: 3_000_000_000,
            delay_max_ns: 30_000_000_000,
            groups_in_flight_max: 256,
            group_nodes_max: 4096,
            group_bytes_max: 8 << 20,
            nodes_max: 20_000,
            extents_max: 200_000,
            bytes_max: 4 << 30,
            fold_items_max: 10_000,
            together_ns_max: 30_000_000_000,
            delta_bytes_min: 1024,
        }
    }
}

/// A consequence for the caller, which keeps files and bytes for the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// No relation of this new content is left: see [`crate::relation::RelationTable::finish`].
    Unrelated(NodeId),
    /// The base of this new content vanished unsent, and another one takes its place: see
    /// [`crate::relation::RelationTable::rebase`].
    Rebased {
        /// The file with the new content.
        new: NodeId,
        /// The file with the old content.
        base: NodeId,
    },
    /// The bytes saved for the node at this position are no longer needed.
    DropSaved(Position),
    /// The delta with this stamp is no longer needed.
    DropDelta(u64),
    /// The file lost its last name, and the queue no longer needs it.
    Free(NodeId),
    /// All before this epoch is applied: the log's mark may move to it.
    Mark(u64),
}

/// The reason why a call is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Answers come in the order of the groups.
    #[error("group {0} is not the oldest one waiting for this answer; answer the groups in order")]
    NotOldest(GroupId),
    /// A cut is for a fold whose turn has come.
    #[error("no fold is waiting for a cut; ask `poll` what to do next")]
    NoFold,
}

/// A new content and the base that it is worth comparing with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Relation {
    base: NodeId,
    /// The comparison that the caller is making.
    order: Option<EncodeOrder>,
}

/// A fold that takes in later events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fold {
    pub(crate) first: Position,
    pub(crate) enqueued_ns: u64,
    /// When something was added to it last.
    pub(crate) touched_ns: u64,
    pub(crate) scope: FoldScope,
}

/// Numbers of a queue that are used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Of versions.
    pub counter: u64,
    /// Of groups.
    pub group: GroupId,
    /// Of events.
    pub position: Position,
}

/// See the module.
///
/// ```
/// use byteback_extents::ByteRange;
/// use byteback_model::{NodeId, NodeKind, Place};
/// use byteback_queue::queue::{Event, Poll, Queue, QueueOptions};
/// use byteback_queue::{ClientId, Moved, NameOperation};
///
/// let mut queue = Queue::new(ClientId(7), QueueOptions::default());
/// let node = NodeId(2);
/// let created = NameOperation::Created {
///     at: Place::new(NodeId::ROOT, b"notes".as_slice()),
///     node: Moved { node, kind: NodeKind::File },
/// };
/// queue.event(&Event::Name(created), 0);
/// let range = ByteRange::new(0, 10).unwrap();
/// queue.event(&Event::Wrote { node, range, size_bytes: 10, base: None }, 0);
///
/// // A group is sent when it was left alone for a while.
/// let wake_ns = QueueOptions::default().delay_ns;
/// assert_eq!(queue.poll(0), Poll::Idle { wake_ns: Some(wake_ns) });
/// let Poll::Send(group) = queue.poll(wake_ns) else { panic!("the group is due") };
/// // Here the caller sends it, and the server applies it.
/// queue.applied(group)?;
/// assert!(queue.is_empty());
/// # Ok::<(), byteback_queue::queue::QueueError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Queue {
    pub(crate) options: QueueOptions,
    pub(crate) client: ClientId,
    /// The last version number given.
    pub(crate) counter: u64,
    /// The last group number given.
    pub(crate) last_group: u64,
    /// The last event.
    pub(crate) position: Position,
    /// Up to here all is in groups.
    pub(crate) frozen: Position,
    pub(crate) nodes: BTreeMap<Position, QueueNode>,
    pub(crate) spans: Spans,
    pub(crate) together: Together,
    pub(crate) groups: VecDeque<Group>,
    pub(crate) fold: Option<Fold>,
    pub(crate) marks: BTreeMap<Position, u64>,
    /// Files without a name whose bytes are still needed.
    pub(crate) nameless: BTreeSet<NodeId>,
    /// Removed files whose last contents were taken out unsent: their content differs from the
    /// server's.
    pub(crate) outdated: BTreeSet<NodeId>,
    relations: BTreeMap<NodeId, Relation>,
    /// The time of the last event.
    pub(crate) now_ns: u64,
    /// How many relations and deltas copy from a node.
    bases: BTreeMap<NodeId, usize>,
    /// The content node of a file that takes writes.
    open: BTreeMap<NodeId, Position>,
    /// The attributes node of a node that takes changes.
    attributes: BTreeMap<NodeId, Position>,
    /// The nodes of the queue that are about a node.
    subjects: BTreeMap<NodeId, BTreeSet<Position>>,
    /// How many names of a directory are changed by nodes of the queue.
    parents: BTreeMap<NodeId, usize>,
    /// How many waiting nodes send the time of a directory.
    timed: BTreeMap<NodeId, usize>,
    /// The size of the waiting nodes.
    waiting: Load,
    /// Bytes of contents that were compared although others come first, since the last group: the
    /// caller comes back to nothing else meanwhile.
    compared_ahead_bytes: u64,
    /// Nodes that may have ceased to be read by the last call.
    freed: Vec<NodeId>,
    effects: Vec<Effect>,
    /// For tests of the checker: forget what belongs together.
    #[cfg(test)]
    pub(crate) ignores_backindex: bool,
}

/// How much waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    nodes: usize,
    extents: usize,
    bytes: u64,
}

impl Queue {
    /// An empty queue of this client.
    #[must_use]
    pub fn new(client: ClientId, options: QueueOptions) -> Self {
        Self {
            options,
            client,
            counter: 0,
            last_group: 0,
            position: Position(0),
            frozen: Position(0),
            nodes: BTreeMap::new(),
            spans: Spans::default(),
            together: Together::default(),
            groups: VecDeque::new(),
            fold: None,
            marks: BTreeMap::new(),
            nameless: BTreeSet::new(),
            outdated: BTreeSet::new(),
            relations: BTreeMap::new(),
            now_ns: 0,
            bases: BTreeMap::new(),
            open: BTreeMap::new(),
            attributes: BTreeMap::new(),
            subjects: BTreeMap::new(),
            parents: BTreeMap::new(),
            timed: BTreeMap::new(),
            waiting: Load::default(),
            compared_ahead_bytes: 0,
            freed: Vec::new(),
            effects: Vec::new(),
            #[cfg(test)]
            ignores_backindex: false,
        }
    }

    /// An empty queue whose numbers go on behind those of an earlier one, of which nothing else is
    /// known.
    #[must_use]
    pub fn starting_after(client: ClientId, options: QueueOptions, numbers: Numbers) -> Self {
        Self {
            counter: numbers.counter,
            last_group: numbers.group.0,
            position: numbers.position,
            frozen: numbers.position,
            ..Self::new(client, options)
        }
    }

    /// Groups up to this one got their numbers elsewhere: this queue does not give them.
    pub fn skip_groups(&mut self, up_to: GroupId) {
        self.last_group = self.last_group.max(up_to.0);
    }

    /// The last numbers that were given: no queue of this client may give them again.
    #[must_use]
    pub fn numbers(&self) -> Numbers {
        Numbers {
            counter: self.counter,
            group: GroupId(self.last_group),
            position: self.position,
        }
    }

    /// Takes note of an event at `now_ns`. Returns its position.
    pub fn event(&mut self, event: &Event, now_ns: u64) -> Position {
        self.position.0 += 1;
        self.now_ns = now_ns;
        if let Event::Mark { epoch } = event {
            self.mark(*epoch);
        } else if self.fold.is_some() {
            self.absorb(event, now_ns);
        } else {
            match event {
                Event::Name(operation) => self.name(operation, now_ns),
                Event::Wrote {
                    node,
                    range,
                    size_bytes,
                    base,
                } => self.wrote(*node, *range, *size_bytes, *base, now_ns),
                Event::Attributes { node, stamp } => self.attributes(*node, *stamp, now_ns),
                Event::Closed { node } => self.closed(*node),
                Event::Mark { .. } => {}
            }
            self.keep_within(now_ns);
        }
        self.settle();
        self.position
    }

    /// Marks with nothing to be sent between them are one.
    fn mark(&mut self, epoch: u64) {
        let node = self.nodes.keys().next_back().copied();
        let fold = self.fold.as_ref().map(|fold| fold.first);
        let group = self.groups.back().map(|group| group.up_to);
        let last = [node, fold, group].into_iter().flatten().max().unwrap_or_default();
        if let Some((&before, _)) = self.marks.last_key_value()
            && before > last
        {
            self.marks.remove(&before);
        }
        self.marks.insert(self.position, epoch);
    }

    /// The consequences for the caller, since it asked last.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The position of the last event.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// Something happened of which nothing is to be sent: answers a position that no mark of before
    /// has passed.
    pub fn pass(&mut self) -> Position {
        self.position.0 += 1;
        self.position
    }

    /// Whether nothing waits and nothing is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.groups.is_empty() && self.fold.is_none()
    }

    /// Whether all that waits is folded.
    #[must_use]
    pub fn is_folded(&self) -> bool {
        self.fold.is_some()
    }

    /// Whether anything that waits or is in flight is about this node, those in a fold aside.
    #[must_use]
    pub fn is_about(&self, node: NodeId) -> bool {
        self.subjects.contains_key(&node)
    }

    /// How many bytes of content wait, those in flight and those of a fold aside.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting.bytes
    }

    /// How many nodes wait, those in flight and those of a fold aside.
    #[must_use]
    pub fn waiting_nodes(&self) -> usize {
        self.waiting.nodes
    }

    /// The files without a name that are still read, so that they must be kept aside over a
    /// restart.
    pub fn nameless_files(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nameless.iter().copied()
    }

    /// The groups that were handed out, oldest first.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter()
    }

    /// The nodes of a group, in the order in which they are to be applied.
    pub fn nodes_of(&self, group: &Group) -> impl Iterator<Item = (Position, &QueueNode)> {
        self.nodes
            .range(group.first..=group.up_to.max(group.first))
            .map(|(position, node)| (*position, node))
    }

    /// A number for the change of a node.
    fn next_version(&mut self) -> Version {
        self.counter += 1;
        Version {
            client: self.client,
            counter: self.counter,
        }
    }

    fn enqueue(&mut self, position: Position, change: Change, now_ns: u64) {
        let node = QueueNode {
            version: self.next_version(),
            enqueued_ns: now_ns,
            touched_ns: now_ns,
            change,
        };
        self.insert(position, node);
    }

    pub(crate) fn insert(&mut self, position: Position, node: QueueNode) {
        for subject in node.change.subjects() {
            self.subjects.entry(subject).or_default().insert(position);
        }
        for parent in node.change.parents() {
            *self.parents.entry(parent).or_default() += 1;
        }
        if let Change::Content(Content {
            source: ContentSource::Delta { base, .. },
            ..
        }) = &node.change
        {
            *self.bases.entry(*base).or_default() += 1;
        }
        if position > self.frozen {
            self.waits(&node.change);
        }
        self.nodes.insert(position, node);
    }

    fn waits(&mut self, change: &Change) {
        self.waiting.add(change);
        for directory in change.times() {
            *self.timed.entry(directory).or_default() += 1;
        }
    }

    fn waits_no_more(&mut self, change: &Change) {
        self.waiting.subtract(change);
        for directory in change.times() {
            count_down(&mut self.timed, directory);
        }
    }

    /// Takes a node out, and all that was kept for it alone.
    fn remove(&mut self, position: Position) -> Option<QueueNode> {
        let node = self.nodes.remove(&position)?;
        for subject in node.change.subjects() {
            if let Some(positions) = self.subjects.get_mut(&subject) {
                positions.remove(&position);
                if positions.is_empty() {
                    self.subjects.remove(&subject);
                }
            }
        }
        for parent in node.change.parents() {
            count_down(&mut self.parents, parent);
        }
        if let Some(content) = node.change.content() {
            if content.has_saved() {
                self.effects.push(Effect::DropSaved(position));
            }
            self.freed.push(content.node);
            if let ContentSource::Delta { base, stamp, .. } = content.source {
                count_down(&mut self.bases, base);
                self.freed.push(base);
                self.effects.push(Effect::DropDelta(stamp));
            }
            if self.open.get(&content.node) == Some(&position) {
                self.open.remove(&content.node);
            }
        }
        if let Change::Attributes { node, .. } = &node.change
            && self.attributes.get(node) == Some(&position)
        {
            self.attributes.remove(node);
        }
        if let Some(removed) = node.change.last_removal() {
            self.outdated.remove(&removed);
        }
        if position > self.frozen {
            self.waits_no_more(&node.change);
        }
        Some(node)
    }

    /// Exchanges what the node at `position` does, as part of the operation at `self.position`.
    fn replace(&mut self, position: Position, change: Option<Change>) {
        let removed = self.change_at(position).and_then(Change::last_removal);
        let is_outdated = removed.is_some_and(|removed| self.outdated.contains(&removed));
        let Some(mut node) = self.remove(position) else { return };
        self.join(position);
        if let Some(change) = change {
            if let Some(removed) = change.last_removal().filter(|_| is_outdated) {
                self.outdated.insert(removed);
            }
            node.change = change;
            self.insert(position, node);
        }
    }

    /// From `first` to the present event, all counts only as a whole (the backindex).
    fn join(&mut self, first: Position) {
        #[cfg(test)]
        if self.ignores_backindex {
            return;
        }
        self.spans.join(first, self.position);
        self.join_files(first, self.position);
    }

    /// Positions of the nodes that are about `node`, oldest first, from `from` on.
    fn about(&self, node: NodeId, from: Position) -> Vec<Position> {
        match self.subjects.get(&node) {
            Some(positions) => positions.range(from..).copied().collect(),
            None => Vec::new(),
        }
    }

    fn first_waiting(&self) -> Position {
        Position(self.frozen.0 + 1)
    }

    /// Waiting nodes about `node`.
    fn waiting_about(&self, node: NodeId) -> Vec<Position> {
        self.about(node, self.first_waiting())
    }

    fn change_at(&self, position: Position) -> Option<&Change> {
        self.nodes.get(&position).map(|node| &node.change)
    }

    fn content_at(&self, position: Position) -> Option<&Content> {
        self.change_at(position).and_then(Change::content)
    }

    /// Changes a waiting content.
    fn with_content<T>(&mut self, position: Position, with: impl FnOnce(&mut Content) -> T) -> Option<T> {
        let node = self.nodes.get_mut(&position)?;
        let is_waiting = position > self.frozen;
        if is_waiting {
            self.waiting.subtract(&node.change);
        }
        let done = match &mut node.change {
            Change::Content(content) => Some(with(content)),
            _ => None,
        };
        if is_waiting {
            self.waiting.add(&node.change);
        }
        done
    }

    /// Drops what became superfluous by the last call: empty spans, marks that are reached, files
    /// that are no longer read.
    fn settle(&mut self) {
        while let Some((first, last)) = self.spans.first() {
            if self.nodes.range(first..=last).next().is_some() {
                break;
            }
            self.spans.forget_to(first);
        }
        let nodes = self.nodes.keys().next().copied();
        let span = self.spans.first().map(|(first, _)| first);
        let fold = self.fold.as_ref().map(|fold| fold.first);
        let group = self.groups.front().map(|group| group.first);
        let pending = [nodes, span, fold, group].into_iter().flatten().min();
        while let Some((&at, &epoch)) = self.marks.first_key_value() {
            if pending.is_some_and(|pending| pending <= at) {
                break;
            }
            self.marks.remove(&at);
            self.effects.push(Effect::Mark(epoch));
        }
        for node in std::mem::take(&mut self.freed) {
            if self.nameless.contains(&node) && !self.reads(node) {
                self.nameless.remove(&node);
                self.effects.push(Effect::Free(node));
            }
        }
    }

    /// From here on nodes may still be sent; earlier ones are at most asked about.
    fn first_readable(&self) -> Position {
        let asked = self.groups.iter().rfind(|group| group.state == GroupState::Unknown);
        asked.map_or(Position(0), |group| Position(group.up_to.0 + 1))
    }

    /// Whether bytes of this file may still be read for the queue.
    fn reads(&self, node: NodeId) -> bool {
        self.bases.contains_key(&node)
            || self.about(node, self.first_readable()).into_iter().any(|position| {
                self.content_at(position)
                    .is_some_and(|content| matches!(content.source, ContentSource::Ranges { .. }))
            })
    }

    /// The relations with the comparisons under way, as they are stored.
    pub(crate) fn relations_to_keep(&self) -> BTreeMap<NodeId, (NodeId, Option<EncodeOrder>)> {
        let relations = self.relations.iter();
        relations
            .map(|(new, relation)| (*new, (relation.base, relation.order)))
            .collect()
    }

    /// The attributes nodes that take changes.
    pub(crate) fn open_attributes(&self) -> &BTreeMap<NodeId, Position> {
        &self.attributes
    }

    /// Makes what a snapshot does not hold, and takes what it holds of this.
    pub(crate) fn reopen(
        &mut self,
        relations: BTreeMap<NodeId, (NodeId, Option<EncodeOrder>)>,
        attributes: BTreeMap<NodeId, Position>,
    ) {
        for (position, node) in self.nodes.range(self.first_waiting()..) {
            if let Some(content) = node.change.content().filter(|content| !content.is_packed) {
                self.open.insert(content.node, *position);
            }
        }
        self.attributes = attributes;
        for (new, (base, order)) in relations {
            self.relations.insert(new, Relation { base, order });
            *self.bases.entry(base).or_default() += 1;
        }
    }

    /// Checks the invariants; for tests of this crate and of others.
    ///
    /// # Errors
    /// Says what does not hold.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), String> {
        if self.waiting.nodes > self.options.nodes_max || self.waiting.extents > self.options.extents_max {
            return Err("more is waiting than allowed".to_owned());
        }
        self.check_structure()
    }

    pub(crate) fn check_structure(&self) -> Result<(), String> {
        let mut twin = Self::new(self.client, self.options);
        twin.frozen = self.frozen;
        for (position, node) in &self.nodes {
            twin.insert(*position, node.clone());
        }
        for relation in self.relations.values() {
            *twin.bases.entry(relation.base).or_default() += 1;
        }
        let names = |queue: &Self| (queue.parents.clone(), queue.timed.clone());
        let indexes = |queue: &Self| (queue.subjects.clone(), names(queue), queue.bases.clone());
        if indexes(self) != indexes(&twin) || self.waiting != twin.waiting {
            return Err("an index differs from what a search finds".to_owned());
        }
        for (node, &position) in self.open.iter().chain(&self.attributes) {
            if position <= self.frozen || !self.about(*node, position).contains(&position) {
                return Err(format!("{node} is open at {position}, where nothing waits"));
            }
        }
        let unpacked = self.nodes.iter().filter_map(|(position, node)| {
            let content = node.change.content().filter(|content| !content.is_packed)?;
            Some((content.node, *position))
        });
        let unpacked = unpacked.collect::<Vec<_>>();
        if unpacked.len() != self.open.len() || unpacked.iter().any(|(node, at)| self.open.get(node) != Some(at)) {
            return Err("a content takes writes and is packed".to_owned());
        }
        if let Some(node) = self.nameless.iter().find(|node| !self.reads(**node)) {
            return Err(format!("{node} has no name and is not read"));
        }
        let mut before = Position(0);
        for group in &self.groups {
            if group.first <= before || group.up_to < group.first {
                return Err(format!("group {} is out of order", group.id));
            }
            before = group.up_to;
        }
        let is_in_a_group = |position: Position| {
            let mut groups = self.groups.iter();
            groups.any(|group| group.first <= position && position <= group.up_to)
        };
        if let Some((position, _)) = self.nodes.range(..=self.frozen).find(|(at, _)| !is_in_a_group(**at)) {
            return Err(format!("the node at {position} is in no group"));
        }
        if before > self.frozen || (self.fold.is_some() && self.waiting.nodes > 0) {
            return Err("something waits and is in flight at once".to_owned());
        }
        Ok(())
    }
}

impl Load {
    fn add(&mut self, change: &Change) {
        self.nodes += 1;
        if let Some(content) = change.content() {
            self.extents += content.extents();
            self.bytes = self.bytes.saturating_add(content.queued_bytes());
        }
    }

    fn subtract(&mut self, change: &Change) {
        self.nodes -= 1;
        if let Some(content) = change.content() {
            self.extents -= content.extents();
            self.bytes = self.bytes.saturating_sub(content.queued_bytes());
        }
    }
}

fn count_down(counts: &mut BTreeMap<NodeId, usize>, node: NodeId) {
    if let Some(count) = counts.get_mut(&node) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&node);
        }
    }
}
