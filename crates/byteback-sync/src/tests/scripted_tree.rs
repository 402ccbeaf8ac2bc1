//! A tree in memory behind [`TreeService`]. Its log keeps each epoch's changes in plain maps and
//! never forgets one, so that it is right by its simplicity.

mod content;
mod leaves;
mod picture;

use byteback_control::{
    ChangesCursor, ChangesPage, ConsumerStatus, ContentChange, CutId, CutInfo, CutRequest, DirEntry, ErrorKind,
    FinishReport, HELD_BLOCK_BYTES, LeafOffer, LeafPiece, LeafRequest, LeavesTold, NodeChange, NodeNames, Outcome,
    Piece, Result, ServiceError, TreeService, TreeStatus,
};
use byteback_extents::{ByteRange, ExtentSet};
use byteback_host::random::SplitMix64;
use byteback_model::{Attributes, ByteString, NameChange, NodeId, NodeKind, Xattr};
use byteback_oplog::{Epoch, TreeId, WholeReason};
use content::Content;
use picture::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

pub(super) use leaves::Leaves;
pub(super) use picture::{Picture, assert_restored};

/// Nodes and names of one page of changes.
const PAGE_LEN: usize = 7;

#[derive(Clone, Debug, Default)]
struct Changed {
    ranges: ExtentSet,
    whole: Option<WholeReason>,
    is_new: bool,
}

#[derive(Clone, Debug, Default)]
struct EpochLog {
    nodes: BTreeMap<NodeId, Changed>,
    names: BTreeSet<(NodeId, Vec<u8>)>,
}

struct OpenCut {
    consumer: String,
    look_only: bool,
    whole_files: bool,
    epoch: u64,
    picture: Picture,
    nodes: Vec<NodeChange>,
    names: Vec<NameChange<NodeId>>,
    /// Bytes that were read, and are held still no more.
    given_up: BTreeMap<NodeId, ExtentSet>,
    /// Nodes that were peeked at.
    peeked: BTreeSet<NodeId>,
}

impl OpenCut {
    /// After a reading, a program may have changed every byte of it.
    fn give_up(&mut self, node: NodeId, asked: &[(u64, u64)]) {
        let given_up = self.given_up.entry(node).or_default();
        for (offset, len) in asked {
            if let Some(range) = ByteRange::from_offset_len(*offset, *len) {
                given_up.insert(range);
            }
        }
    }

    /// Asserts that these bytes are held still: those reported as changed, widened to blocks; or
    /// whole files that changed, if that was asked for.
    fn assert_held(&self, node: NodeId, asked: &[(u64, u64)]) {
        for (offset, len) in asked {
            let is_given_up = |range| {
                self.given_up
                    .get(&node)
                    .is_some_and(|given_up| given_up.intersects(range))
            };
            if let Some(range) = ByteRange::from_offset_len(*offset, *len) {
                assert!(!is_given_up(range), "{range} of a file is read again");
            }
        }
        let change = self.nodes.iter().find(|change| change.node == node);
        let Some(NodeChange {
            content: ContentChange::Ranges(ranges),
            ..
        }) = change.filter(|_| !self.whole_files)
        else {
            assert!(change.is_some(), "a file is read that did not change");
            return;
        };
        let range = |(offset, len): &(u64, u64)| ByteRange::from_offset_len(*offset, *len);
        let changed: ExtentSet = ranges.iter().filter_map(range).collect();
        let held = changed.aligned_out(HELD_BLOCK_BYTES);
        for asked in asked.iter().filter_map(range) {
            assert!(
                held.covers(asked),
                "{asked:?} of a file is read, of which {held:?} is held"
            );
        }
    }
}

pub(super) struct State {
    /// The number of the log, and with it of all identities at servers.
    tree: TreeId,
    pub(super) now: Picture,
    epoch: u64,
    next_node: u64,
    next_time: i64,
    log: BTreeMap<u64, EpochLog>,
    consumers: BTreeMap<String, ConsumerStatus>,
    cuts: BTreeMap<u64, OpenCut>,
    next_cut: u64,
    /// Files that fail after this number of bytes.
    pub(super) failing: BTreeMap<NodeId, usize>,
    /// Nodes whose attributes cannot be read.
    pub(super) nameless: BTreeSet<NodeId>,
    read_bytes: u64,
    /// The reported leaves.
    pub(super) leaves: Leaves,
}

pub(super) struct ScriptedTree {
    pub(super) state: Mutex<State>,
    /// Contents are handed out in pieces of this length.
    pub(super) chunk_len: AtomicUsize,
    /// Whether peeking shows other bytes than reading then, as where contents are not held still.
    pub(super) is_peek_wrong: AtomicBool,
}

fn attributes(kind: NodeKind, time: i64) -> Attributes {
    Attributes {
        kind,
        mode: if kind == NodeKind::Directory { 0o750 } else { 0o640 },
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        size: 0,
        mtime_ns: time.into(),
        rdev: 0,
        inode_flags: 0,
        target: None,
        xattrs: Vec::new(),
        user: None,
        group: None,
    }
}

impl ScriptedTree {
    pub(super) fn new(seed: u64) -> Self {
        let mut now = Picture::default();
        let root = Node {
            attributes: attributes(NodeKind::Directory, 1_000_000_000),
            content: Content::default(),
        };
        now.nodes.insert(NodeId::ROOT, root);
        Self {
            state: Mutex::new(State {
                tree: TreeId(0xabcd),
                now,
                epoch: 1,
                next_node: 2,
                next_time: 1_600_000_000_123_456_789 + i64::try_from(seed % 1000).unwrap(),
                log: BTreeMap::new(),
                consumers: BTreeMap::new(),
                cuts: BTreeMap::new(),
                next_cut: 1,
                failing: BTreeMap::new(),
                nameless: BTreeSet::new(),
                leaves: Leaves::default(),
                read_bytes: 0,
            }),
            chunk_len: AtomicUsize::new(1500),
            is_peek_wrong: AtomicBool::new(false),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn picture(&self) -> Picture {
        self.lock().now.clone()
    }

    /// Ends the life of the client that held cuts: they stay pending, as after its crash.
    pub(super) fn forget_cuts(&self) {
        self.lock().cuts.clear();
    }
}

impl State {
    fn changed(&mut self, node: NodeId) -> &mut Changed {
        let epoch = self.epoch;
        self.log.entry(epoch).or_default().nodes.entry(node).or_default()
    }

    fn touch(&mut self, node: NodeId) {
        self.next_time += 1_000_003;
        let time = self.next_time;
        self.changed(node);
        self.now.nodes.get_mut(&node).unwrap().attributes.mtime_ns = time.into();
    }

    fn set_name(&mut self, parent: NodeId, name: &[u8], child: Option<NodeId>) {
        let key = (parent, name.to_vec());
        let epoch = self.epoch;
        self.log.entry(epoch).or_default().names.insert(key.clone());
        match child {
            Some(child) => self.now.names.insert(key, child),
            None => self.now.names.remove(&key),
        };
        self.touch(parent);
        self.drop_nameless();
    }

    fn drop_nameless(&mut self) {
        let named: BTreeSet<NodeId> = self.now.names.values().copied().collect();
        self.now
            .nodes
            .retain(|node, _| *node == NodeId::ROOT || named.contains(node));
        let nodes = &self.now.nodes;
        let gone: Vec<_> = self
            .now
            .names
            .keys()
            .filter(|(parent, _)| !nodes.contains_key(parent))
            .cloned()
            .collect();
        for key in &gone {
            self.now.names.remove(key);
            // A directory is emptied before it goes.
            let epoch = self.epoch;
            self.log.entry(epoch).or_default().names.insert(key.clone());
        }
        if !gone.is_empty() {
            self.drop_nameless();
        }
    }

    pub(super) fn create(&mut self, parent: NodeId, name: &[u8], kind: NodeKind) -> NodeId {
        let node = NodeId(self.next_node);
        self.next_node += 1;
        let mut made = attributes(kind, self.next_time);
        if kind == NodeKind::Symlink {
            made.mode = 0o777;
            made.target = Some(ByteString::from(format!("to/{}", node.0)));
        }
        self.now.nodes.insert(
            node,
            Node {
                attributes: made,
                content: Content::default(),
            },
        );
        self.changed(node).is_new = true;
        self.set_name(parent, name, Some(node));
        node
    }

    pub(super) fn write(&mut self, node: NodeId, offset: u64, bytes: &[u8]) {
        self.touch(node);
        let file = self.now.nodes.get_mut(&node).unwrap();
        let old_len = file.content.len();
        file.content.write(offset, bytes);
        file.attributes.size = file.content.len();
        // A write behind the end also makes the gap before it.
        if let Some(range) = ByteRange::new(offset.min(old_len), offset + bytes.len() as u64) {
            self.changed(node).ranges.insert(range);
        }
    }

    pub(super) fn truncate(&mut self, node: NodeId, len: u64) {
        self.touch(node);
        let file = self.now.nodes.get_mut(&node).unwrap();
        let old_len = file.content.len();
        file.content.set_len(len);
        file.attributes.size = len;
        // Truncated bytes are a change, too, beyond the end.
        if let Some(range) = ByteRange::new(old_len.min(len), old_len.max(len)) {
            self.changed(node).ranges.insert(range);
        }
    }

    pub(super) fn punch(&mut self, node: NodeId, range: ByteRange) {
        self.touch(node);
        let file = self.now.nodes.get_mut(&node).unwrap();
        file.content.punch(range);
        if let Some(range) = range.split_at(file.content.len()).0 {
            self.changed(node).ranges.insert(range);
        }
    }

    pub(super) fn link(&mut self, node: NodeId, parent: NodeId, name: &[u8]) {
        self.touch(node);
        self.set_name(parent, name, Some(node));
    }

    /// Renames the node `from` to `to`; a node that had that name loses it.
    pub(super) fn rename(&mut self, from: &(NodeId, Vec<u8>), to: &(NodeId, Vec<u8>)) {
        let node = self.now.names[from];
        // First the new name, so that the node is never without one.
        self.set_name(to.0, &to.1, Some(node));
        self.set_name(from.0, &from.1, None);
    }

    /// Lets two names change places.
    pub(super) fn exchange(&mut self, one: &(NodeId, Vec<u8>), other: &(NodeId, Vec<u8>)) {
        let (first, second) = (self.now.names[one], self.now.names[other]);
        // Neither may be nameless meanwhile: the maps are changed first and noted after.
        self.now.names.insert(one.clone(), second);
        self.now.names.insert(other.clone(), first);
        self.set_name(one.0, &one.1, Some(second));
        self.set_name(other.0, &other.1, Some(first));
    }

    pub(super) fn unlink(&mut self, parent: NodeId, name: &[u8]) {
        self.set_name(parent, name, None);
    }

    pub(super) fn mark_whole(&mut self, node: NodeId, reason: WholeReason) {
        self.changed(node).whole = Some(reason);
    }

    pub(super) fn set_mode(&mut self, node: NodeId, mode: u32) {
        self.changed(node);
        self.now.nodes.get_mut(&node).unwrap().attributes.mode = mode;
    }

    pub(super) fn set_owner(&mut self, node: NodeId, uid: u32, gid: u32) {
        self.changed(node);
        let attributes = &mut self.now.nodes.get_mut(&node).unwrap().attributes;
        (attributes.uid, attributes.gid) = (uid, gid);
    }

    pub(super) fn set_time(&mut self, node: NodeId, mtime_ns: i64) {
        self.changed(node);
        self.now.nodes.get_mut(&node).unwrap().attributes.mtime_ns = mtime_ns.into();
    }

    pub(super) fn set_xattr(&mut self, node: NodeId, name: &str, value: &[u8]) {
        self.changed(node);
        let attributes = &mut self.now.nodes.get_mut(&node).unwrap().attributes;
        attributes
            .xattrs
            .retain(|xattr| xattr.name.as_bytes() != name.as_bytes());
        attributes.xattrs.push(Xattr {
            name: name.into(),
            value: value.into(),
        });
        attributes.xattrs.sort();
    }

    fn is_below(&self, node: NodeId, above: NodeId) -> bool {
        let mut at = node;
        while at != above {
            match self.now.names.iter().find(|(_, child)| **child == at) {
                Some(((parent, _), _)) => at = *parent,
                None => return false,
            }
        }
        true
    }

    /// Makes a random change.
    pub(super) fn change(&mut self, random: &mut SplitMix64) {
        let pick = |random: &mut SplitMix64, len: usize| random.below(len as u64) as usize;
        let of_kind = |state: &Self, kind: NodeKind| -> Vec<NodeId> {
            let of_kind = state.now.nodes.iter().filter(|(_, node)| node.attributes.kind == kind);
            of_kind.map(|(id, _)| *id).collect()
        };
        let dirs = of_kind(self, NodeKind::Directory);
        let files = of_kind(self, NodeKind::File);
        let nodes: Vec<NodeId> = self.now.nodes.keys().copied().collect();
        let names: Vec<(NodeId, Vec<u8>)> = self.now.names.keys().cloned().collect();
        let dir = dirs[pick(random, dirs.len())];
        let name = match random.below(12) {
            0 => vec![0xff, b'0' + random.below(9) as u8],
            1 => format!("{}{}", "long".repeat(63), random.below(9)).into_bytes(),
            _ => format!("name-{}", random.below(30)).into_bytes(),
        };
        let is_free = !self.now.names.contains_key(&(dir, name.clone()));
        let bytes: Vec<u8> = {
            let len = random.below(6000) as usize;
            // Some compress, some do not.
            if random.coin() {
                vec![random.next_u64() as u8; len]
            } else {
                (0..len).map(|_| random.next_u64() as u8).collect()
            }
        };
        let any = nodes[pick(random, nodes.len())];
        let file = (!files.is_empty()).then(|| files[pick(random, files.len())]);
        let len = file.map_or(0, |file| self.now.nodes[&file].content.len());
        match (random.below(21), file) {
            (0 | 1, _) | (_, None) if is_free => {
                let file = self.create(dir, &name, NodeKind::File);
                // Some stay empty.
                if random.below(5) > 0 {
                    self.write(file, 0, &bytes);
                }
            }
            (2 | 3, _) if is_free && self.now.nodes.len() < 80 => {
                self.create(dir, &name, NodeKind::Directory);
            }
            (4, _) if is_free => {
                let kinds = [NodeKind::Symlink, NodeKind::Fifo, NodeKind::Socket];
                self.create(dir, &name, kinds[pick(random, 3)]);
            }
            (5..=7, Some(file)) => self.write(file, random.below(len.min(100_000) + 5000), &bytes),
            (8, Some(file)) if random.below(4) == 0 => {
                self.write(file, 5_000_000_000 + random.below(1 << 32), &bytes);
            }
            (8, Some(file)) => self.truncate(file, random.below(len * 2 + 1).min(1 << 40)),
            (9, Some(file)) => {
                if let Some(range) = ByteRange::from_offset_len(random.below(len + 1), random.below(20_000) + 1) {
                    self.punch(file, range);
                }
            }
            (10, Some(file)) if is_free => self.link(file, dir, &name),
            (11, _) if !names.is_empty() => {
                let key = names[pick(random, names.len())].clone();
                self.unlink(key.0, &key.1);
            }
            // Even over an existing node: a file, or a folder with all its entries.
            (12 | 13, _) if !names.is_empty() => {
                let key = names[pick(random, names.len())].clone();
                let child = self.now.names[&key];
                let replaced = self.now.names.get(&(dir, name.clone())).copied();
                let is_possible = key != (dir, name.clone())
                    && replaced != Some(child)
                    && !self.is_below(dir, child)
                    && replaced.is_none_or(|replaced| !self.is_below(key.0, replaced) && !self.is_below(dir, replaced));
                if is_possible {
                    self.rename(&key, &(dir, name));
                }
            }
            (14, _) if names.len() > 1 => {
                let (one, other) = (&names[pick(random, names.len())], &names[pick(random, names.len())]);
                let (first, second) = (self.now.names[one], self.now.names[other]);
                if first != second && !self.is_below(other.0, first) && !self.is_below(one.0, second) {
                    self.exchange(one, other);
                }
            }
            // A name becomes another kind of node.
            (15, _) if !names.is_empty() => {
                let key = names[pick(random, names.len())].clone();
                let was = self.now.nodes[&self.now.names[&key]].attributes.kind;
                self.unlink(key.0, &key.1);
                if self.now.nodes.contains_key(&key.0) {
                    let kind = match was {
                        NodeKind::Directory => NodeKind::File,
                        NodeKind::File => [NodeKind::Directory, NodeKind::Symlink][pick(random, 2)],
                        _ => NodeKind::Directory,
                    };
                    self.create(key.0, &key.1, kind);
                }
            }
            (16, Some(file)) => self.mark_whole(file, WholeReason::Untracked),
            (17, _) if self.now.nodes[&any].attributes.kind != NodeKind::Symlink => {
                let mode = if self.now.nodes[&any].attributes.kind == NodeKind::Directory {
                    [0o700, 0o1777, 0o2755, 0o500][pick(random, 4)]
                } else {
                    [0o600, 0o4755, 0o444, 0o000][pick(random, 4)]
                };
                self.set_mode(any, mode);
            }
            (18, _) if rustix::process::geteuid().is_root() => {
                self.set_owner(any, random.below(3) as u32 * 1000, random.below(3) as u32 * 1000);
            }
            (19, _) => self.set_time(any, [-1, -1_000_000_001, 0, 999_999_999, 1 << 60][pick(random, 5)]),
            (_, _)
                if matches!(
                    self.now.nodes[&any].attributes.kind,
                    NodeKind::File | NodeKind::Directory
                ) =>
            {
                let name = ["user.note", "user.other"][pick(random, 2)];
                self.set_xattr(any, name, &bytes[..bytes.len().min(200)]);
            }
            _ => {}
        }
    }
}

impl ScriptedTree {
    fn pieces(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let (file, mut left) = {
            let state = self.lock();
            let open = &state.cuts[&cut.0];
            assert!(!open.look_only);
            open.assert_held(node, ranges);
            let file = open.picture.nodes[&node].clone();
            (file, state.failing.get(&node).copied().unwrap_or(usize::MAX))
        };
        for (offset, len) in ranges {
            let end = (offset + len).min(file.attributes.size);
            let Some(range) = ByteRange::new(*offset, end) else {
                continue;
            };
            for (piece, is_hole) in file.content.pieces(range) {
                if is_hole {
                    sink(Piece::Hole(piece))?;
                    continue;
                }
                let mut bytes = vec![0; piece.len_bytes() as usize];
                file.content.read(piece.start(), &mut bytes);
                for (index, chunk) in bytes.chunks(self.chunk_len.load(Ordering::Relaxed)).enumerate() {
                    if left < chunk.len() {
                        return Err(ServiceError::new(ErrorKind::Node, "the disk is broken here"));
                    }
                    left -= chunk.len();
                    self.lock().read_bytes += chunk.len() as u64;
                    sink(Piece::Data {
                        offset: piece.start() + (index * self.chunk_len.load(Ordering::Relaxed)) as u64,
                        bytes: chunk,
                    })?;
                }
            }
        }
        Ok(())
    }
}

impl TreeService for ScriptedTree {
    fn status(&self) -> Result<TreeStatus> {
        let state = self.lock();
        Ok(TreeStatus {
            path: "/scripted".into(),
            mounted_at: None,
            mode: None,
            tree: state.tree,
            epoch: Epoch(state.epoch),
            nodes: state.now.nodes.len() as u64,
            open_nodes: 0,
            pid: 0,
            consumers: state.consumers.values().cloned().collect(),
            ledger: Vec::new(),
            usage: byteback_oplog::Usage::default(),
            sync: None,
            damaged: Vec::new(),
            detached: None,
            volume_failure: None,
        })
    }

    fn resolve_pending(&self, consumer: &str, saved: Option<Vec<u8>>) -> Result<()> {
        let mut state = self.lock();
        if let Some(consumer) = state.consumers.get_mut(consumer)
            && let Some((epoch, _)) = consumer.pending.take()
            && let Some(note) = saved
        {
            consumer.mark = Some(epoch);
            consumer.note = note;
        }
        Ok(())
    }

    fn drop_consumer(&self, consumer: &str) -> Result<bool> {
        Ok(self.lock().consumers.remove(consumer).is_some())
    }

    fn cut(&self, request: &CutRequest) -> Result<CutInfo> {
        let mut state = self.lock();
        let ended = state.epoch;
        state.epoch += 1;
        let epoch = state.epoch;
        let consumer = state
            .consumers
            .entry(request.consumer.clone())
            .or_insert_with(|| ConsumerStatus {
                name: request.consumer.clone(),
                ..ConsumerStatus::default()
            });
        assert!(
            consumer.pending.is_none() || request.look_only,
            "a pending cut has to be settled first"
        );
        if !request.look_only {
            consumer.pending = Some((Epoch(epoch), 0));
        }
        let since = request.since.or(consumer.mark).filter(|_| !request.everything);
        let picture = state.now.clone();
        let mut nodes: BTreeMap<NodeId, Changed> = BTreeMap::new();
        let mut names: BTreeSet<(NodeId, Vec<u8>)> = BTreeSet::new();
        match since {
            Some(since) => {
                for (_, log) in state.log.range(since.0..=ended) {
                    for (node, changed) in &log.nodes {
                        let sum = nodes.entry(*node).or_default();
                        sum.ranges.union_with(&changed.ranges);
                        sum.whole = changed.whole.or(sum.whole);
                        sum.is_new |= changed.is_new;
                    }
                    names.extend(log.names.iter().cloned());
                }
            }
            None => {
                for node in picture.nodes.keys() {
                    let whole = Some(WholeReason::NoMark);
                    nodes.insert(
                        *node,
                        Changed {
                            whole,
                            is_new: true,
                            ..Changed::default()
                        },
                    );
                }
                names.extend(picture.names.keys().cloned());
            }
        }
        let mut content_bytes = 0;
        let nodes: Vec<NodeChange> = nodes
            .into_iter()
            .filter_map(|(node, changed)| {
                let there = picture.nodes.get(&node)?;
                let content = match (there.attributes.kind, changed.whole) {
                    (NodeKind::File, _) if changed.is_new && since.is_some() => {
                        ContentChange::Whole(WholeReason::Created)
                    }
                    (NodeKind::File, Some(reason)) => ContentChange::Whole(reason),
                    (NodeKind::File, None) if !changed.ranges.is_empty() => {
                        let ranges = changed.ranges.iter();
                        ContentChange::Ranges(ranges.map(|range| (range.start(), range.len_bytes())).collect())
                    }
                    _ => ContentChange::Unchanged,
                };
                if let ContentChange::Ranges(ranges) = &content {
                    content_bytes += ranges.iter().map(|(_, len)| len).sum::<u64>();
                }
                Some(NodeChange {
                    node,
                    kind: there.attributes.kind,
                    content,
                    is_new: changed.is_new,
                })
            })
            .collect();
        let names: Vec<NameChange<NodeId>> = names
            .into_iter()
            .map(|(parent, name)| NameChange {
                parent,
                child: picture.names.get(&(parent, name.clone())).copied(),
                name: name.into(),
            })
            .collect();
        let id = state.next_cut;
        state.next_cut += 1;
        let info = CutInfo {
            cut: CutId(id),
            tree: state.tree,
            epoch: Epoch(epoch),
            since,
            nodes: nodes.len() as u64,
            names: names.len() as u64,
            content_bytes,
            tree_nodes: picture.nodes.len() as u64,
            unreadable: Vec::new(),
        };
        let cut = OpenCut {
            consumer: request.consumer.clone(),
            look_only: request.look_only,
            whole_files: request.whole_files,
            epoch,
            picture,
            nodes,
            names,
            given_up: BTreeMap::new(),
            peeked: BTreeSet::new(),
        };
        state.cuts.insert(id, cut);
        Ok(info)
    }

    fn changes(&self, cut: CutId, cursor: &ChangesCursor) -> Result<ChangesPage> {
        let state = self.lock();
        let cut = &state.cuts[&cut.0];
        let told_node = |last: NodeId| cut.nodes.iter().position(|change| change.node == last).unwrap() + 1;
        let told_name = |(parent, name): &(NodeId, ByteString)| {
            let is_last = |change: &NameChange<NodeId>| change.parent == *parent && change.name == *name;
            cut.names.iter().position(is_last).unwrap() + 1
        };
        let node = cursor.node.map_or(0, told_node);
        let name = cursor.name.as_ref().map_or(0, told_name);
        let nodes: Vec<_> = cut.nodes.iter().skip(node).take(PAGE_LEN).cloned().collect();
        let left = PAGE_LEN - nodes.len();
        let names: Vec<_> = cut.names.iter().skip(name).take(left).cloned().collect();
        let is_last = node + nodes.len() == cut.nodes.len() && name + names.len() == cut.names.len();
        let last_name = names.last().map(|change| (change.parent, change.name.clone()));
        let next = ChangesCursor {
            node: nodes.last().map(|change| change.node).or(cursor.node),
            name: last_name.or_else(|| cursor.name.clone()),
        };
        Ok(ChangesPage {
            nodes,
            names,
            next: (!is_last).then_some(next),
        })
    }

    fn attributes(&self, cut: CutId, nodes: &[NodeId]) -> Result<Vec<Result<Attributes>>> {
        let state = self.lock();
        let cut = &state.cuts[&cut.0];
        let attributes = nodes.iter().map(|node| {
            if state.nameless.contains(node) {
                return Err(ServiceError::new(ErrorKind::Node, "no attributes for you"));
            }
            Ok(cut.picture.nodes[node].attributes.clone())
        });
        Ok(attributes.collect())
    }

    fn read(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut is_other =
            self.is_peek_wrong.load(Ordering::Relaxed) && self.lock().cuts[&cut.0].peeked.contains(&node);
        let read = self.pieces(cut, node, ranges, &mut |piece| match piece {
            Piece::Data { offset, bytes } if is_other => {
                is_other = false;
                let mut bytes = bytes.to_vec();
                bytes[0] ^= 1;
                sink(Piece::Data { offset, bytes: &bytes })
            }
            piece => sink(piece),
        });
        if let Some(open) = self.lock().cuts.get_mut(&cut.0) {
            open.give_up(node, ranges);
        }
        read
    }

    fn peek(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        if let Some(open) = self.lock().cuts.get_mut(&cut.0) {
            open.peeked.insert(node);
        }
        self.pieces(cut, node, ranges, sink)
    }

    fn leaf_offer(&self, cut: CutId, node: NodeId) -> Result<LeafOffer> {
        let state = self.lock();
        let _ = state.cuts[&cut.0]
            .picture
            .nodes
            .get(&node)
            .ok_or_else(leaves::no_file)?;
        state.leaves.offer()
    }

    fn leaf_sums(
        &self,
        cut: CutId,
        node: NodeId,
        request: LeafRequest,
        sink: &mut dyn FnMut(LeafPiece<'_>) -> Result<()>,
    ) -> Result<LeavesTold> {
        let (leaves, file, is_failing) = {
            let state = self.lock();
            let file = state.cuts[&cut.0].picture.nodes[&node].clone();
            (state.leaves, file, state.failing.contains_key(&node))
        };
        let told = leaves.tell(&file.content, request, sink)?;
        self.lock().read_bytes += told.read_bytes;
        match is_failing {
            true => Err(leaves::no_file()),
            false => Ok(told),
        }
    }

    fn path(&self, cut: CutId, node: NodeId) -> Result<Option<ByteString>> {
        let state = self.lock();
        Ok(state.cuts[&cut.0].picture.path_of(node).map(ByteString::from))
    }

    fn names(&self, cut: CutId, nodes: &[NodeId]) -> Result<Vec<NodeNames>> {
        let state = self.lock();
        let picture = &state.cuts[&cut.0].picture;
        let names = |node: &NodeId| NodeNames {
            kind: picture.nodes.get(node).map(|node| node.attributes.kind),
            names: picture
                .names
                .iter()
                .filter(|(_, child)| *child == node)
                .map(|((parent, name), _)| (*parent, name.as_slice().into()))
                .collect(),
        };
        Ok(nodes.iter().map(names).collect())
    }

    fn entries(&self, cut: CutId, directory: NodeId, after: Option<&ByteString>) -> Result<Vec<DirEntry>> {
        let state = self.lock();
        let picture = &state.cuts[&cut.0].picture;
        let behind = picture
            .names_in(directory)
            .filter(|(name, _)| after.is_none_or(|after| *name > after.as_bytes()));
        let entry = |(name, node): (&[u8], NodeId)| DirEntry {
            name: name.into(),
            node,
            kind: picture.nodes[&node].attributes.kind,
        };
        Ok(behind.take(PAGE_LEN).map(entry).collect())
    }

    fn find(&self, cut: CutId, path: &ByteString) -> Result<Option<NodeId>> {
        let state = self.lock();
        let picture = &state.cuts[&cut.0].picture;
        let mut node = NodeId::ROOT;
        for name in path.as_bytes().split(|byte| *byte == b'/') {
            match picture.names.get(&(node, name.to_vec())) {
                Some(child) => node = *child,
                None => return Ok(None),
            }
        }
        Ok(Some(node))
    }

    fn note_batch(&self, cut: CutId, batch: u64) -> Result<()> {
        let mut state = self.lock();
        let name = state.cuts[&cut.0].consumer.clone();
        let consumer = state.consumers.get_mut(&name).unwrap();
        consumer.pending = consumer.pending.map(|(epoch, _)| (epoch, batch));
        Ok(())
    }

    fn finish(&self, cut: CutId, outcome: &Outcome) -> Result<FinishReport> {
        let mut state = self.lock();
        let cut = state.cuts.remove(&cut.0).unwrap();
        if !cut.look_only {
            let consumer = state.consumers.get_mut(&cut.consumer).unwrap();
            match outcome {
                Outcome::Saved { note, unsaved } => {
                    consumer.pending = None;
                    consumer.mark = Some(Epoch(cut.epoch));
                    consumer.note.clone_from(note);
                    for node in unsaved {
                        if state.now.nodes.contains_key(node) {
                            state.mark_whole(*node, WholeReason::Unsaved);
                        }
                    }
                }
                Outcome::Abandoned => consumer.pending = None,
                Outcome::Unknown => {}
            }
        }
        let read_bytes = std::mem::take(&mut state.read_bytes);
        Ok(FinishReport {
            read_bytes,
            kept_bytes: 0,
            cpu_ns: 0,
        })
    }

    fn unmount(&self) -> Result<()> {
        Err(ServiceError::new(ErrorKind::Protocol, "it is not mounted"))
    }
}

impl State {
    /// Loses the log; another one begins, which gives other numbers to all but the root. Returns
    /// the new number of each old one.
    pub(super) fn lose_log(&mut self, random: &mut SplitMix64) -> BTreeMap<NodeId, NodeId> {
        assert!(self.cuts.is_empty(), "whoever holds a cut would notice");
        let old: Vec<NodeId> = self.now.nodes.keys().copied().collect();
        let mut order: Vec<(u64, NodeId)> = old
            .iter()
            .filter(|node| **node != NodeId::ROOT)
            .map(|node| (random.next_u64(), *node))
            .collect();
        order.sort();
        let mut renamed = BTreeMap::from([(NodeId::ROOT, NodeId::ROOT)]);
        self.next_node = 2;
        for (_, node) in order {
            renamed.insert(node, NodeId(self.next_node));
            self.next_node += 1;
        }
        self.tree = TreeId(random.next_u64());
        let before = std::mem::take(&mut self.now);
        self.now.nodes = before
            .nodes
            .into_iter()
            .map(|(id, node)| (renamed[&id], node))
            .collect();
        self.now.names = before
            .names
            .into_iter()
            .map(|((parent, name), child)| ((renamed[&parent], name), renamed[&child]))
            .collect();
        self.failing.clear();
        self.nameless.clear();
        self.log.clear();
        self.consumers.clear();
        self.epoch = 1;
        renamed
    }

    /// The state of a copy of the machine: everything but the open cuts.
    pub(super) fn duplicate(&self) -> Self {
        Self {
            tree: self.tree,
            now: self.now.clone(),
            epoch: self.epoch,
            next_node: self.next_node,
            next_time: self.next_time,
            log: self.log.clone(),
            consumers: self.consumers.clone(),
            cuts: BTreeMap::new(),
            next_cut: self.next_cut,
            failing: self.failing.clone(),
            nameless: self.nameless.clone(),
            leaves: self.leaves,
            read_bytes: 0,
        }
    }
}
