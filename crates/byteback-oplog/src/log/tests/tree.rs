//! A file tree in memory, as unreliable as real ones are: after a power loss each piece of a file
//! is old or new, its times and size are old or new apart from that, and the newest changes of
//! names may be undone.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;

use byteback_host::random::SplitMix64;
use byteback_host::tree::{Identity, InodeFlags, Stat};
use byteback_model::NodeKind;

use crate::scan::TreeView;

/// The kernel stamps times in these steps, where the file system keeps all of them.
const KERNEL_TICK_NS: i64 = 4_000_000;
/// Each piece of a file of this size reaches the disk by itself.
const PIECE_BYTES: usize = 8;
const DEVICE: u64 = 77;

/// The identity of an inode in the test; never used twice, unlike its number.
pub(super) type Uid = u64;
pub(super) const ROOT: Uid = 0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inode {
    pub(super) number: u64,
    birth_ns: Option<i64>,
    pub(super) is_dir: bool,
    pub(super) bytes: Vec<u8>,
    pub(super) mode: u32,
    mtime_ns: i64,
    ctime_ns: i64,
}

type Names = BTreeMap<(Uid, String), Uid>;

#[derive(Clone, Debug)]
pub(super) struct FakeTree {
    pub(super) inodes: BTreeMap<Uid, Inode>,
    pub(super) names: Names,
    /// The durable state of each inode, if any.
    durable: RefCell<HashMap<Uid, Inode>>,
    /// The names after each change since the last time that all of them were durable, oldest first.
    names_on_disk: Vec<Names>,
    next_uid: Uid,
    has_births: bool,
    /// Times are stamped in steps of this.
    pub(super) tick_ns: i64,
    pub(super) now_ns: i64,
    /// Directories that cannot be listed.
    pub(super) unreadable: BTreeSet<Uid>,
}

impl FakeTree {
    pub(super) fn new(has_births: bool, now_ns: i64) -> Self {
        let mut tree = Self {
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            durable: RefCell::default(),
            names_on_disk: vec![Names::new()],
            next_uid: ROOT,
            has_births,
            tick_ns: KERNEL_TICK_NS,
            now_ns,
            unreadable: BTreeSet::new(),
        };
        tree.new_inode(true);
        tree.settle(ROOT);
        tree
    }

    fn stamp(&self) -> i64 {
        self.now_ns / self.tick_ns * self.tick_ns
    }

    fn new_inode(&mut self, is_dir: bool) -> Uid {
        let uid = self.next_uid;
        self.next_uid += 1;
        // The lowest free number, as ext4 does: reuse is the rule.
        let taken: BTreeSet<u64> = self.inodes.values().map(|inode| inode.number).collect();
        let number = (2..).find(|number| !taken.contains(number)).unwrap();
        let stamp = self.stamp();
        let birth_ns = self.has_births.then_some(self.now_ns);
        let inode = Inode {
            number,
            birth_ns,
            is_dir,
            bytes: Vec::new(),
            mode: 0o644,
            mtime_ns: stamp,
            ctime_ns: stamp,
        };
        self.inodes.insert(uid, inode);
        uid
    }

    fn names_changed(&mut self, dirs: &[Uid], changed: &[Uid]) {
        let stamp = self.stamp();
        for dir in dirs {
            let inode = self.inodes.get_mut(dir).unwrap();
            (inode.mtime_ns, inode.ctime_ns) = (stamp, stamp);
        }
        for uid in changed {
            self.inodes.get_mut(uid).unwrap().ctime_ns = stamp;
        }
        self.names_on_disk.push(self.names.clone());
    }

    /// Drops inodes that nothing holds: neither a name nor `open`.
    pub(super) fn drop_unnamed(&mut self, open: &[Uid]) {
        let named: BTreeSet<Uid> = self
            .names
            .values()
            .copied()
            .chain([ROOT])
            .chain(open.iter().copied())
            .collect();
        self.inodes.retain(|uid, _| named.contains(uid));
    }

    pub(super) fn links(&self, uid: Uid) -> u64 {
        self.names.values().filter(|child| **child == uid).count() as u64
    }

    pub(super) fn child(&self, dir: Uid, name: &str) -> Option<Uid> {
        self.names.get(&(dir, name.to_owned())).copied()
    }

    pub(super) fn is_empty_dir(&self, uid: Uid) -> bool {
        self.names.keys().all(|(parent, _)| *parent != uid)
    }

    /// Whether `dir` is `above` or lies below it.
    pub(super) fn is_below(&self, dir: Uid, above: Uid) -> bool {
        let mut at = dir;
        loop {
            if at == above {
                return true;
            }
            match self.names.iter().find(|(_, child)| **child == at) {
                Some(((parent, _), _)) => at = *parent,
                None => return false,
            }
        }
    }

    pub(super) fn create(&mut self, dir: Uid, name: &str, is_dir: bool) -> Uid {
        let uid = self.new_inode(is_dir);
        self.names.insert((dir, name.to_owned()), uid);
        self.names_changed(&[dir], &[uid]);
        uid
    }

    pub(super) fn link(&mut self, dir: Uid, name: &str, uid: Uid) {
        self.names.insert((dir, name.to_owned()), uid);
        self.names_changed(&[dir], &[uid]);
    }

    pub(super) fn unlink(&mut self, dir: Uid, name: &str) {
        let uid = self.names.remove(&(dir, name.to_owned())).unwrap();
        self.names_changed(&[dir], &[uid]);
    }

    pub(super) fn rename(&mut self, from: (Uid, &str), to: (Uid, &str)) {
        let uid = self.names.remove(&(from.0, from.1.to_owned())).unwrap();
        let over = self.names.insert((to.0, to.1.to_owned()), uid);
        let changed: Vec<Uid> = [Some(uid), over].into_iter().flatten().collect();
        self.names_changed(&[from.0, to.0], &changed);
    }

    pub(super) fn exchange(&mut self, one: (Uid, &str), other: (Uid, &str)) {
        let (one, other) = ((one.0, one.1.to_owned()), (other.0, other.1.to_owned()));
        let (first, second) = (self.names[&one], self.names[&other]);
        self.names.insert(one.clone(), second);
        self.names.insert(other.clone(), first);
        self.names_changed(&[one.0, other.0], &[first, second]);
    }

    pub(super) fn write(&mut self, uid: Uid, at: usize, data: &[u8]) {
        let stamp = self.stamp();
        let inode = self.inodes.get_mut(&uid).unwrap();
        if inode.bytes.len() < at + data.len() {
            inode.bytes.resize(at + data.len(), 0);
        }
        inode.bytes[at..at + data.len()].copy_from_slice(data);
        (inode.mtime_ns, inode.ctime_ns) = (stamp, stamp);
    }

    pub(super) fn truncate(&mut self, uid: Uid, len: usize) {
        let stamp = self.stamp();
        let inode = self.inodes.get_mut(&uid).unwrap();
        inode.bytes.resize(len, 0);
        (inode.mtime_ns, inode.ctime_ns) = (stamp, stamp);
    }

    pub(super) fn chmod(&mut self, uid: Uid, mode: u32) {
        let stamp = self.stamp();
        let inode = self.inodes.get_mut(&uid).unwrap();
        inode.mode = mode;
        inode.ctime_ns = stamp;
    }

    /// `fsync`.
    pub(super) fn settle(&mut self, uid: Uid) {
        if let Some(inode) = self.inodes.get(&uid) {
            self.durable.get_mut().insert(uid, inode.clone());
        }
    }

    pub(super) fn sync_names(&mut self) {
        self.names_on_disk = vec![self.names.clone()];
    }

    /// The power is cut: what is left.
    pub(super) fn crash(&mut self, random: &mut SplitMix64) {
        let kept = random.below(self.names_on_disk.len() as u64) as usize;
        self.names = self.names_on_disk[kept].clone();
        if random.coin() {
            self.mix_names(random);
        }
        let named: BTreeSet<Uid> = self.names.values().copied().chain([ROOT]).collect();
        let mut inodes = BTreeMap::new();
        for uid in named {
            // An inode that is gone from memory but whose removal is undone is what was on the disk
            // of it.
            let live = self.inodes.get(&uid);
            let durable = self.durable.get_mut().get(&uid);
            let survivor = match (live, durable) {
                (Some(live), Some(durable)) => survive(durable, live, random),
                (Some(live), None) => {
                    let empty = Inode {
                        bytes: Vec::new(),
                        ..live.clone()
                    };
                    survive(&empty, live, random)
                }
                (None, Some(durable)) => durable.clone(),
                (None, None) => {
                    self.names.retain(|_, child| *child != uid);
                    continue;
                }
            };
            inodes.insert(uid, survivor);
        }
        // An inode that an undone removal brings back may have a number that another has by now.
        let mut taken = BTreeSet::new();
        inodes.retain(|_, inode| taken.insert(inode.number));
        self.names
            .retain(|(parent, _), child| inodes.contains_key(parent) && inodes.contains_key(child));
        self.inodes = inodes;
        self.drop_unnamed(&[]);
        self.durable = RefCell::new(self.inodes.iter().map(|(uid, inode)| (*uid, inode.clone())).collect());
        self.sync_names();
    }

    /// Journals that keep what was synced apart from the rest mix the order of names: each name of
    /// a file is as at any moment.
    fn mix_names(&mut self, random: &mut SplitMix64) {
        let is_dir = |uid: Option<&Uid>| uid.is_some_and(|uid| self.inodes.get(uid).is_none_or(|inode| inode.is_dir));
        let places: BTreeSet<(Uid, String)> = self
            .names_on_disk
            .iter()
            .flat_map(|names| names.keys().cloned())
            .collect();
        let mut names = self.names.clone();
        for place in places {
            let moment = &self.names_on_disk[random.below(self.names_on_disk.len() as u64) as usize];
            let child = moment.get(&place);
            if is_dir(child) || is_dir(names.get(&place)) {
                continue;
            }
            match child {
                Some(child) => names.insert(place, *child),
                None => names.remove(&place),
            };
        }
        self.names = names;
    }

    pub(super) fn stat(&self, uid: Uid) -> Stat {
        let inode = &self.inodes[&uid];
        Stat {
            kind: if inode.is_dir {
                NodeKind::Directory
            } else {
                NodeKind::File
            },
            mode: inode.mode,
            nlink: if inode.is_dir { 2 } else { self.links(uid) },
            uid: 0,
            gid: 0,
            rdev: 0,
            size: inode.bytes.len() as u64,
            blocks: 0,
            block_size: 4096,
            dev: DEVICE,
            ino: inode.number,
            mount_id: None,
            btime_ns: inode.birth_ns,
            atime_ns: 0,
            mtime_ns: inode.mtime_ns.into(),
            ctime_ns: inode.ctime_ns,
            inode_flags: InodeFlags::NONE,
        }
    }

    pub(super) fn identity(&self, uid: Uid) -> Identity {
        self.stat(uid).identity()
    }
}

fn survive(old: &Inode, new: &Inode, random: &mut SplitMix64) -> Inode {
    let mut left = if random.coin() { old.clone() } else { new.clone() };
    let len = if random.coin() {
        old.bytes.len()
    } else {
        new.bytes.len()
    };
    left.bytes = vec![0; len];
    for (index, piece) in left.bytes.chunks_mut(PIECE_BYTES).enumerate() {
        let source = if random.coin() { old } else { new };
        for (offset, byte) in piece.iter_mut().enumerate() {
            *byte = source.bytes.get(index * PIECE_BYTES + offset).copied().unwrap_or(0);
        }
    }
    left
}

impl TreeView for FakeTree {
    type Dir = Uid;

    fn root(&self) -> io::Result<(Uid, Stat)> {
        Ok((ROOT, self.stat(ROOT)))
    }

    fn sync(&self) -> Option<i64> {
        let live = self.inodes.iter().map(|(uid, inode)| (*uid, inode.clone()));
        self.durable.borrow_mut().extend(live);
        Some(self.now_ns)
    }

    fn enter(&self, dir: &Uid, name: &OsStr) -> io::Result<Uid> {
        self.child(*dir, name.to_str().unwrap())
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn entries(&self, dir: &Uid) -> io::Result<Vec<(OsString, Stat)>> {
        if self.unreadable.contains(dir) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let entries = self.names.iter().filter(|((parent, _), _)| parent == dir);
        Ok(entries
            .map(|((_, name), uid)| (OsString::from(name), self.stat(*uid)))
            .collect())
    }
}
