//! A tree in memory behind [`TreeService`]. Its log keeps each epoch's changes in plain maps and
//! never forgets one, so that it is right by its simplicity.

mod content;
mod leaves;
mod picture;
mod service;

use byteback_control::{ConsumerStatus, ContentChange, HELD_BLOCK_BYTES, NodeChange};
use byteback_extents::{ByteRange, ExtentSet};
use byteback_host::random::SplitMix64;
use byteback_model::{Attributes, ByteString, NameChange, NodeId, NodeKind, Xattr};
use byteback_oplog::{TreeId, WholeReason};
use content::Content;
use picture::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, MutexGuard};

pub use leaves::Leaves;
pub use picture::{Picture, assert_restored};

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
    /// The node for which each changed name stood before.
    names: BTreeMap<(NodeId, Vec<u8>), Option<NodeId>>,
}

/// How much the tree knows of the bytes that changed since a mark, as they were then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KnownBefore {
    #[default]
    Nothing,
    All,
    /// Every other 1000 bytes.
    Half,
    /// All, but the server has something else.
    Wrong,
    /// All, and behind the end something that was written now.
    Longer,
}

struct OpenCut {
    consumer: String,
    /// The tree at the mark, where changes are reported since one.
    before: Option<Picture>,
    look_only: bool,
    whole_files: bool,
    epoch: u64,
    picture: Picture,
    nodes: Vec<NodeChange>,
    names: Vec<NameChange<NodeId>>,
    /// The nodes for which changed names stood at the mark.
    stood_for: BTreeMap<(NodeId, Vec<u8>), NodeId>,
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
        let held = ranges.aligned_out(HELD_BLOCK_BYTES);
        for asked in asked.iter().filter_map(range) {
            assert!(
                held.covers(asked),
                "{asked:?} of a file is read, of which {held:?} is held"
            );
        }
    }
}

pub struct State {
    /// The number of the log, and with it of all identities at servers.
    tree: TreeId,
    pub now: Picture,
    epoch: u64,
    next_node: u64,
    next_time: i64,
    log: BTreeMap<u64, EpochLog>,
    consumers: BTreeMap<String, ConsumerStatus>,
    cuts: BTreeMap<u64, OpenCut>,
    next_cut: u64,
    /// Files that fail after this number of bytes.
    pub failing: BTreeMap<NodeId, usize>,
    /// Files that are said to be copies, and of which.
    pub copied_from: BTreeMap<NodeId, NodeId>,
    /// Nodes whose attributes cannot be read.
    pub nameless: BTreeSet<NodeId>,
    read_bytes: u64,
    /// How much is known of bytes that changed.
    pub known_before: KnownBefore,
    /// The tree at each cut.
    moments: BTreeMap<u64, Picture>,
    /// The reported leaves.
    pub leaves: Leaves,
}

pub struct ScriptedTree {
    pub state: Mutex<State>,
    /// Contents are handed out in pieces of this length.
    pub chunk_len: AtomicUsize,
    /// Whether peeking shows other bytes than reading then, as where contents are not held still.
    pub is_peek_wrong: AtomicBool,
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
    pub fn new(seed: u64) -> Self {
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
                copied_from: BTreeMap::new(),
                nameless: BTreeSet::new(),
                leaves: Leaves::default(),
                known_before: KnownBefore::default(),
                moments: BTreeMap::new(),
                read_bytes: 0,
            }),
            chunk_len: AtomicUsize::new(1500),
            is_peek_wrong: AtomicBool::new(false),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn picture(&self) -> Picture {
        self.lock().now.clone()
    }

    /// Ends the life of the client that held cuts: they stay pending, as after its crash.
    pub fn forget_cuts(&self) {
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
        self.name_changes(&key);
        match child {
            Some(child) => self.now.names.insert(key, child),
            None => self.now.names.remove(&key),
        };
        self.touch(parent);
        self.drop_nameless();
    }

    /// Logs that a name is about to change.
    fn name_changes(&mut self, key: &(NodeId, Vec<u8>)) {
        let was = self.now.names.get(key).copied();
        let log = self.log.entry(self.epoch).or_default();
        log.names.entry(key.clone()).or_insert(was);
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
            // A directory is emptied before it goes.
            self.name_changes(key);
            self.now.names.remove(key);
        }
        if !gone.is_empty() {
            self.drop_nameless();
        }
    }

    pub fn create(&mut self, parent: NodeId, name: &[u8], kind: NodeKind) -> NodeId {
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

    pub fn write(&mut self, node: NodeId, offset: u64, bytes: &[u8]) {
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

    pub fn truncate(&mut self, node: NodeId, len: u64) {
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

    pub fn punch(&mut self, node: NodeId, range: ByteRange) {
        self.touch(node);
        let file = self.now.nodes.get_mut(&node).unwrap();
        file.content.punch(range);
        if let Some(range) = range.split_at(file.content.len()).0 {
            self.changed(node).ranges.insert(range);
        }
    }

    pub fn link(&mut self, node: NodeId, parent: NodeId, name: &[u8]) {
        self.touch(node);
        self.set_name(parent, name, Some(node));
    }

    /// Renames the node `from` to `to`; a node that had that name loses it.
    pub fn rename(&mut self, from: &(NodeId, Vec<u8>), to: &(NodeId, Vec<u8>)) {
        let node = self.now.names[from];
        // First the new name, so that the node is never without one.
        self.set_name(to.0, &to.1, Some(node));
        self.set_name(from.0, &from.1, None);
    }

    /// Lets two names change places.
    pub fn exchange(&mut self, one: &(NodeId, Vec<u8>), other: &(NodeId, Vec<u8>)) {
        let (first, second) = (self.now.names[one], self.now.names[other]);
        self.name_changes(one);
        self.name_changes(other);
        // Neither may be nameless meanwhile.
        self.now.names.insert(one.clone(), second);
        self.now.names.insert(other.clone(), first);
        self.set_name(one.0, &one.1, Some(second));
        self.set_name(other.0, &other.1, Some(first));
    }

    pub fn unlink(&mut self, parent: NodeId, name: &[u8]) {
        self.set_name(parent, name, None);
    }

    pub fn mark_whole(&mut self, node: NodeId, reason: WholeReason) {
        self.changed(node).whole = Some(reason);
    }

    pub fn set_mode(&mut self, node: NodeId, mode: u32) {
        self.changed(node);
        self.now.nodes.get_mut(&node).unwrap().attributes.mode = mode;
    }

    pub fn set_owner(&mut self, node: NodeId, uid: u32, gid: u32) {
        self.changed(node);
        let attributes = &mut self.now.nodes.get_mut(&node).unwrap().attributes;
        (attributes.uid, attributes.gid) = (uid, gid);
    }

    pub fn set_time(&mut self, node: NodeId, mtime_ns: i64) {
        self.changed(node);
        self.now.nodes.get_mut(&node).unwrap().attributes.mtime_ns = mtime_ns.into();
    }

    pub fn set_xattr(&mut self, node: NodeId, name: &str, value: &[u8]) {
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
    pub fn change(&mut self, random: &mut SplitMix64) {
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

impl State {
    /// Loses the log; another one begins, which gives other numbers to all but the root. Returns
    /// the new number of each old one.
    pub fn lose_log(&mut self, random: &mut SplitMix64) -> BTreeMap<NodeId, NodeId> {
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
    pub fn duplicate(&self) -> Self {
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
            copied_from: self.copied_from.clone(),
            nameless: self.nameless.clone(),
            known_before: self.known_before,
            moments: self.moments.clone(),
            leaves: self.leaves,
            read_bytes: 0,
        }
    }
}
