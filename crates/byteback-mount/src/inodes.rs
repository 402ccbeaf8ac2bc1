//! The table of nodes: which node id stands for which inode of the backing directory, and by which
//! names it can be reached.
//!
//! The kernel speaks of nodes: 64-bit numbers that we choose. The number of a node is the inode
//! number of the backing file, so that programs see the same `st_ino` with and without the mount.
//! The root is node 1 by protocol. Inodes of other devices inside the tree (mounts, subvolumes) and
//! inodes whose number is taken get a *synthetic* number, derived from device and inode number, so
//! that it is the same each time it is asked for.
//!
//! No descriptor is kept per node: a tree of a million files must not cost a million descriptors.
//! The table keeps *links*, pairs of (parent node, name), most recent last; [`crate::tree`] walks
//! them with `openat`.
//!
//! Invariants:
//! - An entry lives while the kernel holds lookups on it, or while the link of another entry names
//!   it as parent.
//! - One live inode has one live node: two nodes for one inode would be two page caches.
//! - A link is a hint, not a promise: after opening one, compare the identity of the opened inode.
//! - `generation` differs between two inodes that had the same number one after the other, also
//!   where the file system keeps no birth time, as long as the first one's end or the second one's
//!   birth passed through the mount. Birth times alone do not tell them apart: clocks tick every
//!   few milliseconds, and a file that is removed leaves its number to the next one at once, before
//!   this table has heard of the removal.
//!
//! This module makes no system call.

use std::collections::{HashMap, hash_map};
use std::ffi::{OsStr, OsString};
use std::fmt;

use byteback_host::tree::Identity;
use byteback_model::NodeKind;

/// More names of one inode than this are not remembered: a file with ten thousand hard links must
/// not make each lookup search ten thousand names. A name that was forgotten is learned again by
/// its next lookup.
const LINKS_MAX: usize = 32;

/// Marks synthetic numbers, together with a cleared [`HIDDEN_BIT`]. Real inode numbers with this
/// bit set are legal; they only clash, which is handled.
const SYNTHETIC_BIT: u64 = 1 << 63;

/// Beside [`SYNTHETIC_BIT`] it marks what no backing inode stands for (see `hidden`): an inode with
/// such a number is given a synthetic one.
const HIDDEN_BIT: u64 = 1 << 62;

/// The bits of a hidden number that tell hidden ones apart.
pub(crate) const HIDDEN_NUMBER_MAX: u64 = HIDDEN_BIT - 1;

/// The number by which the kernel and we speak of one inode while the mount lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeNumber(u64);

impl InodeNumber {
    /// The root of the mount.
    pub const ROOT: Self = Self(1);

    /// The node with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number of this node.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The hidden node with this number, of which [`HIDDEN_NUMBER_MAX`] says how many bits count.
    pub(crate) const fn hidden(number: u64) -> Self {
        Self(SYNTHETIC_BIT | HIDDEN_BIT | (number & HIDDEN_NUMBER_MAX))
    }

    /// The number of the hidden node, if this is one.
    pub(crate) const fn hidden_number(self) -> Option<u64> {
        if self.0 >= SYNTHETIC_BIT | HIDDEN_BIT {
            Some(self.0 & HIDDEN_NUMBER_MAX)
        } else {
            None
        }
    }
}

impl fmt::Display for InodeNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "node {}", self.0)
    }
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) parent: InodeNumber,
    pub(crate) name: OsString,
}

/// The table's knowledge of a live node.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) identity: Identity,
    pub(crate) kind: NodeKind,
    /// Most recent first.
    pub(crate) links: Vec<Link>,
}

/// The reply to the kernel about a node that it looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interned {
    pub(crate) node: InodeNumber,
    pub(crate) generation: u64,
}

/// The bearer of a number at a moment; the number may have gone to another inode since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bearer {
    pub(crate) node: InodeNumber,
    generation: Option<u64>,
}

/// The number of inodes created through the mount up to a moment, see [`InodeTable::intern_seen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Births(u64);

#[derive(Debug)]
struct Entry {
    identity: Identity,
    kind: NodeKind,
    links: Vec<Link>,
    /// How often the kernel was told this node and has not forgotten it.
    lookups: u64,
    /// How many links of other entries name this node as their parent.
    children: u64,
    generation: u64,
    /// The last name was removed through the mount: the number may now come back with another
    /// inode.
    gone: bool,
    /// The kernel may hold pages of it, since it was first told this node.
    has_pages: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct InodeTable {
    entries: HashMap<InodeNumber, Entry>,
    root: Identity,
    /// Inodes that did not get the number they should have, because it was taken.
    displaced: HashMap<(u64, u64), InodeNumber>,
    births: Births,
}

impl InodeTable {
    pub(crate) fn new(root: Identity) -> Self {
        let entry = Entry {
            identity: root,
            kind: NodeKind::Directory,
            links: Vec::new(),
            lookups: 1,
            children: 0,
            generation: 0,
            gone: false,
            has_pages: false,
        };
        Self {
            entries: HashMap::from([(InodeNumber::ROOT, entry)]),
            root,
            displaced: HashMap::new(),
            births: Births(0),
        }
    }

    /// The number that this inode has or would get. Not a claim that it is live.
    pub(crate) fn node_of(&self, dev: u64, ino: u64) -> InodeNumber {
        if (dev, ino) == (self.root.dev, self.root.ino) {
            return InodeNumber::ROOT;
        }
        if let Some(node) = self.displaced.get(&(dev, ino)) {
            return *node;
        }
        let mut node = self.number_of(dev, ino);
        // Terminates: each step is taken by a different live entry.
        while let Some(entry) = self.entries.get(&node) {
            if (entry.identity.dev, entry.identity.ino) == (dev, ino) {
                break;
            }
            node = InodeNumber(((node.0 | SYNTHETIC_BIT).wrapping_add(1) | SYNTHETIC_BIT) & !HIDDEN_BIT);
        }
        node
    }

    /// The number that this inode has unless it is taken.
    fn number_of(&self, dev: u64, ino: u64) -> InodeNumber {
        let own = InodeNumber(ino);
        if dev == self.root.dev && own > InodeNumber::ROOT && own.hidden_number().is_none() {
            own
        } else {
            synthetic(dev, ino)
        }
    }

    /// Counts one lookup of `identity` under `name` in `parent`, and remembers the name.
    pub(crate) fn intern(&mut self, parent: InodeNumber, name: &OsStr, identity: Identity, kind: NodeKind) -> Interned {
        let node = self.number(identity);
        self.known_as(node, identity, false);
        self.look_up(node, parent, name, kind)
    }

    /// As [`Self::intern`], of an inode that was just created: the previous bearer of its number is
    /// no more, even if that is not known here yet.
    pub(crate) fn intern_new(
        &mut self,
        parent: InodeNumber,
        name: &OsStr,
        identity: Identity,
        kind: NodeKind,
    ) -> Interned {
        self.births = Births(self.births.0.wrapping_add(1));
        let node = self.number(identity);
        self.known_as(node, identity, true);
        self.look_up(node, parent, name, kind)
    }

    /// As [`Self::intern`], of what was found when `births` were counted, or later. `None` if
    /// something was created since: what was found may be no more, and its number be borne by
    /// another; look again.
    pub(crate) fn intern_seen(
        &mut self,
        births: Births,
        (parent, name): (InodeNumber, &OsStr),
        identity: Identity,
        kind: NodeKind,
    ) -> Option<Interned> {
        (self.births == births).then(|| self.intern(parent, name, identity, kind))
    }

    /// See [`Self::intern_seen`].
    pub(crate) fn births(&self) -> Births {
        self.births
    }

    /// The number for an inode that the kernel is told of now.
    fn number(&mut self, identity: Identity) -> InodeNumber {
        let node = self.node_of(identity.dev, identity.ino);
        if !self.entries.contains_key(&node) && node != self.number_of(identity.dev, identity.ino) {
            self.displaced.insert((identity.dev, identity.ino), node);
        }
        node
    }

    /// From now on `node` stands for `identity`; as another generation if it stood for something
    /// else before.
    fn known_as(&mut self, node: InodeNumber, identity: Identity, is_new: bool) {
        match self.entries.entry(node) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(Entry {
                    identity,
                    kind: NodeKind::File,
                    links: Vec::new(),
                    lookups: 0,
                    children: 0,
                    generation: generation_of(identity),
                    gone: false,
                    has_pages: false,
                });
            }
            hash_map::Entry::Occupied(mut occupied) => {
                let entry = occupied.get_mut();
                if !is_new && !entry.gone && entry.identity == identity {
                    return;
                }
                let reborn = generation_of(identity);
                entry.generation = if reborn > entry.generation {
                    reborn
                } else {
                    entry.generation.wrapping_add(1)
                };
                entry.identity = identity;
                entry.gone = false;
                let stale = std::mem::take(&mut entry.links);
                self.release_parents(stale);
            }
        }
    }

    fn look_up(&mut self, node: InodeNumber, parent: InodeNumber, name: &OsStr, kind: NodeKind) -> Interned {
        if let Some(entry) = self.entries.get_mut(&node) {
            entry.kind = kind;
            entry.lookups = entry.lookups.saturating_add(1);
        }
        self.add_link(node, parent, name);
        let generation = self.entries.get(&node).map_or(0, |entry| entry.generation);
        Interned { node, generation }
    }

    /// The kernel is about to be given bytes of a live node that it may keep.
    pub(crate) fn note_pages(&mut self, node: InodeNumber) {
        if let Some(entry) = self.entries.get_mut(&node) {
            entry.has_pages = true;
        }
    }

    /// Whether the kernel may have kept bytes of a node. A node that it has forgotten has no pages
    /// any more.
    pub(crate) fn has_pages(&self, node: InodeNumber) -> bool {
        self.entries.get(&node).is_some_and(|entry| entry.has_pages)
    }

    /// The present bearer of the number `node`.
    pub(crate) fn bearer(&self, node: InodeNumber) -> Bearer {
        Bearer {
            node,
            generation: self.entries.get(&node).map(|entry| entry.generation),
        }
    }

    /// The identity, kind and links of a live node.
    pub(crate) fn known(&self, node: InodeNumber) -> Option<Known> {
        self.entries.get(&node).map(|entry| Known {
            identity: entry.identity,
            kind: entry.kind,
            links: entry.links.iter().rev().cloned().collect(),
        })
    }

    /// The identity and kind of a live node.
    pub(crate) fn identity(&self, node: InodeNumber) -> Option<(Identity, NodeKind)> {
        self.entries.get(&node).map(|entry| (entry.identity, entry.kind))
    }

    /// The most recent name of a live node other than the root.
    pub(crate) fn latest_link(&self, node: InodeNumber) -> Option<(Link, Identity)> {
        let entry = self.entries.get(&node)?;
        entry.links.last().map(|link| (link.clone(), entry.identity))
    }

    /// How many entries live, the root included.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Remembers one more name of a live node, as its most recent one.
    pub(crate) fn add_link(&mut self, node: InodeNumber, parent: InodeNumber, name: &OsStr) {
        if node == InodeNumber::ROOT || !self.entries.contains_key(&parent) {
            return;
        }
        let Some(entry) = self.entries.get_mut(&node) else {
            return;
        };
        entry.gone = false;
        if let Some(last) = entry.links.last()
            && last.parent == parent
            && last.name == name
        {
            return;
        }
        let position = entry
            .links
            .iter()
            .position(|link| link.parent == parent && link.name == name);
        if let Some(position) = position {
            let link = entry.links.remove(position);
            entry.links.push(link);
            return;
        }
        // A directory has one name; an older one is where it was before something moved it below
        // us.
        let stale: Vec<Link> = if entry.kind == NodeKind::Directory {
            std::mem::take(&mut entry.links)
        } else if entry.links.len() >= LINKS_MAX {
            vec![entry.links.remove(0)]
        } else {
            Vec::new()
        };
        entry.links.push(Link {
            parent,
            name: name.to_owned(),
        });
        if let Some(parent) = self.entries.get_mut(&parent) {
            parent.children = parent.children.saturating_add(1);
        }
        self.release_parents(stale);
    }

    /// Forgets one name of what bore a number before the name was removed; `last` says that the
    /// inode has no other name left. Nothing if another inode bears that number by now.
    pub(crate) fn remove_link(&mut self, bearer: Bearer, parent: InodeNumber, name: &OsStr, last: bool) {
        let Some(entry) = self.entries.get_mut(&bearer.node) else {
            return;
        };
        if Some(entry.generation) != bearer.generation {
            return;
        }
        let stale: Vec<Link> = if last {
            entry.gone = true;
            std::mem::take(&mut entry.links)
        } else {
            entry
                .links
                .iter()
                .position(|link| link.parent == parent && link.name == name)
                .map(|position| entry.links.remove(position))
                .into_iter()
                .collect()
        };
        self.release_parents(stale);
    }

    /// The kernel dropped `count` of its lookups of `node`. Returns whether the node is now dead.
    pub(crate) fn forget(&mut self, node: InodeNumber, count: u64) -> bool {
        if node == InodeNumber::ROOT {
            return false;
        }
        let Some(entry) = self.entries.get_mut(&node) else {
            return false;
        };
        entry.lookups = entry.lookups.saturating_sub(count);
        self.bury_if_dead(node)
    }

    fn release_parents(&mut self, links: Vec<Link>) {
        for link in links {
            if let Some(parent) = self.entries.get_mut(&link.parent) {
                parent.children = parent.children.saturating_sub(1);
                self.bury_if_dead(link.parent);
            }
        }
    }

    /// Removes the entry if nothing holds it, then its ancestors as far as only it held them.
    fn bury_if_dead(&mut self, node: InodeNumber) -> bool {
        let mut dead = false;
        let mut to_check = vec![node];
        while let Some(node) = to_check.pop() {
            let alive = |entry: &Entry| entry.lookups > 0 || entry.children > 0;
            if node == InodeNumber::ROOT || self.entries.get(&node).is_none_or(alive) {
                continue;
            }
            if let Some(entry) = self.entries.remove(&node) {
                dead = true;
                self.displaced.remove(&(entry.identity.dev, entry.identity.ino));
                for link in entry.links {
                    if let Some(parent) = self.entries.get_mut(&link.parent) {
                        parent.children = parent.children.saturating_sub(1);
                        to_check.push(link.parent);
                    }
                }
            }
        }
        dead
    }
}

/// Two inodes that had one number after each other were born at different moments, so the birth
/// time tells them apart. Where none is kept, the caller counts.
fn generation_of(identity: Identity) -> u64 {
    identity.birth_ns.map_or(0, i64::cast_unsigned)
}

/// A number for an inode that cannot have its own: the same each time, and spread so that clashes
/// are rare.
fn synthetic(dev: u64, ino: u64) -> InodeNumber {
    // The finalizer of splitmix64: each input bit reaches each output bit.
    let mut mixed = ino.wrapping_add(dev.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    InodeNumber(((mixed ^ (mixed >> 31)) | SYNTHETIC_BIT) & !HIDDEN_BIT)
}

#[cfg(test)]
mod tests;
