//! The digest of a content from its leaves.
//!
//! Two levels above the leaves: [`GROUP_LEAVES`] of them make a *group* (a MiB of the content; the
//! last one may be shorter), and the digest covers all groups, so that a MiB of zeros, or one whose
//! group sum is known, costs 32 bytes of hashing:
//!
//! ```text
//! digest = BLAKE3-derive(CONTEXT, kind u8 | content_len u64 LE | group*)
//! group = BLAKE3(leaf{1..256})
//! ```

use super::{LEAF_LEN_BYTES, Leaf, LeafKind, leaf_len_bytes};
use crate::digest::DIGEST_LEN;
use crate::groups::GroupList;

/// The number of leaves in a group.
pub const GROUP_LEAVES: u64 = 256;

/// The number of bytes of the content under a group; the last one may have fewer.
pub const GROUP_LEN_BYTES: u64 = GROUP_LEAVES * LEAF_LEN_BYTES as u64;

/// The length of a group's leaves, in bytes.
const GROUP_LEN: usize = GROUP_LEAVES as usize * size_of::<Leaf>();

/// The context string that separates this digest from all other uses of BLAKE3.
const CONTEXT: &str = "byteback 2026-11 digest of a content's block sums";

/// The checksum of a group of leaves.
pub type GroupSum = [u8; 32];

/// The checksum of a group, from its leaves in order.
#[must_use]
pub fn group_sum<'l>(leaves: impl IntoIterator<Item = &'l Leaf>) -> GroupSum {
    // All at once: leaf by leaf, BLAKE3 could not process several of its chunks in parallel.
    let mut group = Vec::with_capacity(GROUP_LEN);
    leaves.into_iter().for_each(|leaf| group.extend_from_slice(leaf));
    *blake3::hash(&group).as_bytes()
}

/// Computes the digest of a content that arrives in order, as bytes, zeros, leaves or groups of
/// leaves.
#[derive(Clone, Debug)]
pub struct LeafDigest {
    kind: LeafKind,
    /// The sums of the groups so far, if the caller wants them.
    groups: Option<GroupList>,
    root: blake3::Hasher,
    /// The leaves of an incomplete group, one after the other.
    group: Vec<u8>,
    /// The bytes of an incomplete block.
    block: Vec<u8>,
    /// The number of bytes so far, including those in `block`.
    len: u64,
    announced: u64,
    /// Whether a leaf or a group was added where none could stand.
    is_misfit: bool,
    /// The leaf of a block of zeros, and the sum of a group of these, once needed.
    zero_leaf: Option<Leaf>,
    zero_group: Option<GroupSum>,
}

impl LeafDigest {
    /// Begins the digest of a content of `len_bytes`.
    #[must_use]
    pub fn new(kind: LeafKind, len_bytes: u64) -> Self {
        let mut root = blake3::Hasher::new_derive_key(CONTEXT);
        root.update(&[kind.code()]);
        root.update(&len_bytes.to_le_bytes());
        Self {
            kind,
            groups: None,
            root,
            group: Vec::with_capacity(GROUP_LEN),
            block: Vec::new(),
            len: 0,
            announced: len_bytes,
            is_misfit: false,
            zero_leaf: None,
            zero_group: None,
        }
    }

    /// As [`Self::new`], and keeps the sums of all groups ([`Self::finish_with_groups`]).
    #[must_use]
    pub fn with_groups(kind: LeafKind, len_bytes: u64) -> Self {
        Self {
            groups: Some(GroupList::new(kind, len_bytes)),
            ..Self::new(kind, len_bytes)
        }
    }

    /// The kind of the leaves.
    #[must_use]
    pub fn kind(&self) -> LeafKind {
        self.kind
    }

    /// The number of bytes added so far.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len
    }

    /// Adds the next bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        self.len = self.len.saturating_add(bytes.len() as u64);
        let leaf_len = LEAF_LEN_BYTES as usize;
        while !bytes.is_empty() {
            if self.block.is_empty()
                && let Some((block, rest)) = bytes.split_at_checked(leaf_len)
            {
                self.add_leaf(&self.kind.leaf(block));
                bytes = rest;
                continue;
            }
            let (now, later) = bytes.split_at((leaf_len - self.block.len()).min(bytes.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            if self.block.len() == leaf_len {
                self.end_block();
            }
        }
    }

    /// Adds `len_bytes` zeros; a MiB of them costs a constant.
    pub fn push_zeros(&mut self, mut len_bytes: u64) {
        let (leaf_len, group_len) = (u64::from(LEAF_LEN_BYTES), GROUP_LEN_BYTES);
        while len_bytes > 0 {
            let now = if self.block.is_empty() && len_bytes >= leaf_len {
                let leaf = *self
                    .zero_leaf
                    .get_or_insert_with(|| self.kind.leaf_of_zeros(LEAF_LEN_BYTES));
                if self.group.is_empty() && len_bytes >= group_len {
                    let group = *self
                        .zero_group
                        .get_or_insert_with(|| group_sum(std::iter::repeat_n(&leaf, GROUP_LEAVES as usize)));
                    self.add_group(&group);
                    group_len
                } else {
                    self.add_leaf(&leaf);
                    leaf_len
                }
            } else {
                let room = (LEAF_LEN_BYTES as usize - self.block.len()) as u64;
                let now = room.min(len_bytes);
                // At most a block.
                self.block.resize(self.block.len() + now as usize, 0);
                if now == room {
                    self.end_block();
                }
                now
            };
            self.len = self.len.saturating_add(now);
            len_bytes -= now;
        }
    }

    /// Adds the next block by its leaf. If bytes of a block are pending, or no block is left, there
    /// will be no digest.
    pub fn push_leaf(&mut self, leaf: &Leaf) {
        let len_bytes = leaf_len_bytes(self.announced, self.len / u64::from(LEAF_LEN_BYTES));
        if !self.block.is_empty() || len_bytes == 0 || self.len >= self.announced {
            self.is_misfit = true;
            return;
        }
        self.len += u64::from(len_bytes);
        self.add_leaf(leaf);
    }

    /// As [`Self::push_leaf`] for several leaves, which is faster.
    pub fn push_leaves(&mut self, mut leaves: &[Leaf]) {
        while let Some((first, others)) = leaves.split_first() {
            let left = self.announced.saturating_sub(self.len);
            let whole_group = leaves.split_at_checked(GROUP_LEAVES as usize);
            leaves = match whole_group {
                Some((group, others)) if self.group.is_empty() && self.block.is_empty() && left >= GROUP_LEN_BYTES => {
                    self.len += GROUP_LEN_BYTES;
                    self.add_group(blake3::hash(group.as_flattened()).as_bytes());
                    others
                }
                _ => {
                    self.push_leaf(first);
                    others
                }
            };
        }
    }

    /// Adds the next [`GROUP_LEAVES`] blocks, or those up to the content's end if there are fewer,
    /// by the checksum of their leaves ([`group_sum`]). If part of a group is pending, or no group
    /// is left, there will be no digest.
    pub fn push_group(&mut self, group: &GroupSum) {
        let left = self.announced.saturating_sub(self.len);
        if !self.block.is_empty() || !self.group.is_empty() || left == 0 {
            self.is_misfit = true;
            return;
        }
        self.len += left.min(GROUP_LEN_BYTES);
        self.add_group(group);
    }

    /// The digest; `None` if the number of bytes is not the announced one, or a leaf or a group was
    /// added where none could stand.
    #[must_use]
    pub fn finish(mut self) -> Option<[u8; DIGEST_LEN]> {
        self.end()
    }

    /// The digest and the sums of all groups; `None` as [`Self::finish`], or if the sums were not
    /// kept.
    #[must_use]
    pub fn finish_with_groups(mut self) -> Option<([u8; DIGEST_LEN], GroupList)> {
        let digest = self.end()?;
        Some((digest, self.groups?))
    }

    fn end(&mut self) -> Option<[u8; DIGEST_LEN]> {
        if self.len != self.announced || self.is_misfit {
            return None;
        }
        if !self.block.is_empty() {
            self.end_block();
        }
        if !self.group.is_empty() {
            self.end_group();
        }
        Some(*self.root.finalize().as_bytes())
    }

    fn end_block(&mut self) {
        let leaf = self.kind.leaf(&self.block);
        self.block.clear();
        self.add_leaf(&leaf);
    }

    fn add_leaf(&mut self, leaf: &Leaf) {
        self.group.extend_from_slice(leaf);
        if self.group.len() == GROUP_LEN {
            self.end_group();
        }
    }

    fn end_group(&mut self) {
        let group = *blake3::hash(&self.group).as_bytes();
        self.group.clear();
        self.add_group(&group);
    }

    fn add_group(&mut self, group: &GroupSum) {
        self.root.update(group);
        if let Some(groups) = &mut self.groups {
            groups.push(group);
        }
    }
}
