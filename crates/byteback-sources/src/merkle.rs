//! Hash trees over the blocks of a content, as fs-verity and dm-verity keep them: read from the
//! root down, and trusted only as far as each node matches the hash above it.
//!
//! Words: a *leaf* is the hash of one block of the content. A *node* is a block of the tree, with
//! the hashes of content blocks (level 0) or of nodes of the level below. The *root* is the hash of
//! the only node of the highest level or, for a content of one block, its leaf. The nodes of a
//! level are contiguous, the highest level first.
//!
//! Invariant: every returned hash follows from the root. With a root from a trusted place, the
//! nodes may be read from anywhere: nodes that are damaged, cut short or of another file are
//! [`SourceError::Malformed`].
//!
//! Two trees of the same layout are compared from the root down ([`compare`]): below two nodes with
//! the same hash nothing differs, and nothing is read.

use byteback_extents::{ByteRange, ExtentSet};

use byteback_checksums::source::{Layout, Result, SourceError, Summer, Tail};

/// Nodes of the lowest level that are read at once when all are wanted.
const NODES_AHEAD: u64 = 32;

/// The place where a tree's nodes are read.
pub trait ReadNodes {
    /// Fills `buffer` with the bytes of the tree from `offset` on.
    ///
    /// # Errors
    /// If the tree has fewer bytes, or they cannot be read.
    fn read_nodes(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()>;
}

/// The parameters of a tree: everything but its hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    layout: Layout,
    /// Bytes of the content.
    content_len: u64,
    node_len: usize,
    /// Bytes from one hash in a node to the next.
    slot_len: usize,
    /// The number of nodes of each level, and the place of the first one; the lowest level first.
    levels: Vec<Level>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    nodes: u64,
    offset: u64,
}

impl Shape {
    /// The shape for a content of `content_len` bytes, hashed as `layout` describes, with nodes of
    /// `node_len` bytes in which a hash takes `slot_len`. `None` if there is no such tree.
    pub(crate) fn new(layout: Layout, content_len: u64, node_len: u32, slot_len: usize) -> Option<Self> {
        let node_len = usize::try_from(node_len).ok()?;
        let per_node = node_len.checked_div(slot_len)? as u64;
        if slot_len < layout.kind.len_bytes() || per_node < 2 || layout.block_len == 0 {
            return None;
        }
        let mut levels = Vec::new();
        let mut below = content_len.div_ceil(u64::from(layout.block_len));
        while below > 1 {
            below = below.div_ceil(per_node);
            levels.push(Level {
                nodes: below,
                offset: 0,
            });
        }
        let mut offset = 0_u64;
        for level in levels.iter_mut().rev() {
            level.offset = offset;
            offset = offset.checked_add(level.nodes.checked_mul(node_len as u64)?)?;
        }
        Some(Self {
            layout,
            content_len,
            node_len,
            slot_len,
            levels,
        })
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The number of bytes of all nodes.
    #[cfg(test)]
    pub(crate) fn tree_len(&self) -> u64 {
        self.levels
            .first()
            .map_or(0, |lowest| lowest.offset + lowest.nodes * self.node_len as u64)
    }

    /// The number of leaves.
    fn leaves(&self) -> u64 {
        self.content_len.div_ceil(u64::from(self.layout.block_len))
    }

    fn per_node(&self) -> u64 {
        (self.node_len / self.slot_len) as u64
    }

    /// The number of hashes in the node.
    fn hashes_of(&self, level: usize, index: u64) -> u64 {
        let below = match level.checked_sub(1) {
            None => self.leaves(),
            Some(below) => self.levels.get(below).map_or(0, |level| level.nodes),
        };
        below
            .saturating_sub(index.saturating_mul(self.per_node()))
            .min(self.per_node())
    }
}

/// A tree whose nodes are read on demand.
#[derive(Debug)]
pub struct Tree<R> {
    reader: R,
    shape: Shape,
    root: Vec<u8>,
    nodes_read: u64,
}

impl<R: ReadNodes> Tree<R> {
    pub(crate) fn new(reader: R, shape: Shape, root: Vec<u8>) -> Self {
        Self {
            reader,
            shape,
            root,
            nodes_read: 0,
        }
    }

    /// The number of nodes read so far.
    #[must_use]
    pub fn nodes_read(&self) -> u64 {
        self.nodes_read
    }

    /// The number of bytes read so far.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.nodes_read.saturating_mul(self.shape.node_len as u64)
    }

    /// The layout of the checksums that are the leaves.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.shape.layout
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(crate) fn into_reader(self) -> R {
        self.reader
    }

    /// The length of the content, in bytes.
    #[must_use]
    pub fn content_len_bytes(&self) -> u64 {
        self.shape.content_len
    }

    /// The offset of the first of `count` nodes from `index` on, and their length in bytes.
    fn place(&self, level: usize, index: u64, count: u64) -> Result<(u64, usize)> {
        const NOWHERE: SourceError = SourceError::Malformed("a node beyond the hash tree");
        let level = self.shape.levels.get(level).ok_or(NOWHERE)?;
        if index.checked_add(count).is_none_or(|end| end > level.nodes) {
            return Err(NOWHERE);
        }
        let len = usize::try_from(count)
            .ok()
            .and_then(|count| count.checked_mul(self.shape.node_len));
        Ok((level.offset + index * self.shape.node_len as u64, len.ok_or(NOWHERE)?))
    }

    fn read(&mut self, level: usize, index: u64, count: u64, nodes: &mut Vec<u8>) -> Result<()> {
        let (offset, len) = self.place(level, index, count)?;
        nodes.clear();
        nodes.resize(len, 0);
        self.reader.read_nodes(offset, nodes)?;
        self.nodes_read += count;
        Ok(())
    }

    /// Reads a node that must have this hash.
    fn node(&mut self, level: usize, index: u64, hash: &[u8]) -> Result<Vec<u8>> {
        let mut node = Vec::new();
        self.read(level, index, 1, &mut node)?;
        self.check(&node, hash)?;
        Ok(node)
    }

    fn check(&self, node: &[u8], hash: &[u8]) -> Result<()> {
        let layout = Layout {
            tail: Tail::AsIs,
            ..self.shape.layout.clone()
        };
        let mut summer = Summer::new(&layout);
        let mut found = Vec::with_capacity(layout.kind.len_bytes());
        summer.push(node);
        summer.end_block(&mut found);
        match found == hash {
            true => Ok(()),
            false => Err(SourceError::Malformed(
                "a node of the hash tree that does not match the node above it",
            )),
        }
    }

    fn slot<'n>(&self, node: &'n [u8], slot: u64) -> Result<&'n [u8]> {
        let slot = usize::try_from(slot).unwrap_or(usize::MAX);
        let hash = node.get(slot.saturating_mul(self.shape.slot_len)..);
        hash.and_then(|hash| hash.get(..self.shape.layout.kind.len_bytes()))
            .ok_or(SourceError::Malformed("a node of the hash tree that is too short"))
    }
}

/// Reads all leaves of a tree in order, one node's leaves at a time.
#[derive(Debug)]
pub(crate) struct Leaves<R> {
    tree: Tree<R>,
    /// The nodes above the next one, the lowest (of level 1) first, with their numbers.
    path: Vec<Option<(u64, Vec<u8>)>>,
    /// Nodes of the lowest level that were read ahead and not processed yet, and the number of the
    /// first one.
    ahead: Vec<u8>,
    ahead_first: u64,
    /// The number of the next node of the lowest level.
    next: u64,
    sums: Vec<u8>,
}

impl<R: ReadNodes> Leaves<R> {
    pub(crate) fn new(tree: Tree<R>) -> Self {
        let above = tree.shape.levels.len().saturating_sub(1);
        Self {
            path: vec![None; above],
            ahead: Vec::new(),
            ahead_first: 0,
            next: 0,
            sums: Vec::new(),
            tree,
        }
    }

    pub(crate) fn tree(&self) -> &Tree<R> {
        &self.tree
    }

    pub(crate) fn into_tree(self) -> Tree<R> {
        self.tree
    }

    /// The next leaves, and the bytes of the content that they cover; `None` behind the last ones.
    pub(crate) fn next(&mut self) -> Result<Option<(ByteRange, &[u8])>> {
        let (index, nodes) = (self.next, self.nodes());
        if index >= nodes {
            return Ok(None);
        }
        self.fill(index, nodes - index)?;
        self.next += 1;
        let block_len = u64::from(self.tree.shape.layout.block_len);
        let len = self.tree.shape.per_node().saturating_mul(block_len);
        let start = index.saturating_mul(len);
        let end = start.saturating_add(len).min(self.tree.shape.content_len);
        let range = ByteRange::new(start, end).ok_or(SourceError::Malformed("a node without leaves"))?;
        Ok(Some((range, &self.sums)))
    }

    /// Appends the leaves of `blocks` blocks, beginning with block `first`.
    pub(crate) fn append(&mut self, first: u64, blocks: u64, sums: &mut Vec<u8>) -> Result<()> {
        let end = first.checked_add(blocks).filter(|end| *end <= self.tree.shape.leaves());
        let end = end.ok_or(SourceError::Malformed("blocks beyond the hash tree"))?;
        let (per_node, sum_len) = (self.tree.shape.per_node(), self.tree.shape.layout.kind.len_bytes());
        let mut at = first;
        while at < end {
            let index = at / per_node;
            self.fill(index, (end - 1) / per_node - index + 1)?;
            let next = end.min((index + 1).saturating_mul(per_node));
            // Always less than a node's slots.
            let place =
                |block: u64| usize::try_from(block - index * per_node).map_or(usize::MAX, |slot| slot * sum_len);
            let some = self.sums.get(place(at)..place(next));
            sums.extend_from_slice(some.ok_or(SourceError::Malformed("a node with too few leaves"))?);
            at = next;
        }
        Ok(())
    }

    /// The number of nodes that have leaves. The root of a content of one block is its leaf.
    fn nodes(&self) -> u64 {
        match self.tree.shape.levels.first() {
            Some(lowest) => lowest.nodes,
            None => u64::from(self.tree.shape.content_len > 0),
        }
    }

    /// Reads the leaves of a node of the lowest level, and reads ahead if more nodes will be
    /// wanted.
    fn fill(&mut self, index: u64, wanted: u64) -> Result<()> {
        self.sums.clear();
        if self.tree.shape.levels.is_empty() {
            self.sums.extend_from_slice(&self.tree.root);
            return Ok(());
        }
        let (per_node, node_len) = (self.tree.shape.per_node(), self.tree.shape.node_len);
        let mut hash = self.tree.root.clone();
        for above in (0..self.path.len()).rev() {
            let level = above + 1;
            let mut number = index;
            for _ in 0..level {
                number /= per_node;
            }
            let node = match self.path.get_mut(above).and_then(Option::take) {
                Some((at, node)) if at == number => node,
                _ => self.tree.node(level, number, &hash)?,
            };
            // The index of the next node on the way down.
            let mut below = index;
            for _ in 0..above {
                below /= per_node;
            }
            hash = self.tree.slot(&node, below % per_node)?.to_vec();
            if let Some(place) = self.path.get_mut(above) {
                *place = Some((number, node));
            }
        }
        let mut at = usize::try_from(index.wrapping_sub(self.ahead_first)).unwrap_or(usize::MAX);
        if self.ahead.len() / node_len <= at {
            let left = self.nodes().saturating_sub(index);
            self.tree
                .read(0, index, wanted.min(left).min(NODES_AHEAD), &mut self.ahead)?;
            (self.ahead_first, at) = (index, 0);
        }
        let node = self.ahead.get(at * node_len..(at + 1) * node_len).unwrap_or_default();
        self.tree.check(node, &hash)?;
        for slot in 0..self.tree.shape.hashes_of(0, index) {
            self.sums.extend_from_slice(self.tree.slot(node, slot)?);
        }
        Ok(())
    }
}

/// The byte ranges of the new content that differ, or may differ, from the same place in the old
/// one: whole blocks, and everything behind the old content's end. Parts that are equal in both
/// trees are not read in either.
///
/// # Errors
/// [`SourceError::NotHere`] if the trees have different layouts (function, salt, block lengths);
/// errors of reading the nodes, and [`SourceError::Malformed`] for nodes that do not follow from
/// their roots.
pub fn compare<A: ReadNodes, B: ReadNodes>(old: &mut Tree<A>, new: &mut Tree<B>) -> Result<ExtentSet> {
    let (one, other) = (&old.shape, &new.shape);
    if (&one.layout, one.node_len, one.slot_len) != (&other.layout, other.node_len, other.slot_len) {
        return Err(SourceError::NotHere("the two hash trees have different shapes"));
    }
    let (old_len, new_len) = (one.content_len, other.content_len);
    let (old_height, new_height) = (one.levels.len(), other.levels.len());
    let mut differing = ExtentSet::new();
    if let Some(appended) = ByteRange::new(old_len, new_len) {
        differing.insert(appended);
    }
    if old_len > 0 && new_len > 0 {
        // The part of the higher tree that lies over the lower one begins at its first leaf.
        let (mut old_hash, mut new_hash) = (old.root.clone(), new.root.clone());
        for height in (new_height + 1..=old_height).rev() {
            let node = old.node(height - 1, 0, &old_hash)?;
            old_hash = old.slot(&node, 0)?.to_vec();
        }
        for height in (old_height + 1..=new_height).rev() {
            let node = new.node(height - 1, 0, &new_hash)?;
            new_hash = new.slot(&node, 0)?.to_vec();
        }
        let mut comparison = Comparison {
            old,
            new,
            differing: &mut differing,
        };
        comparison.descend(old_height.min(new_height), 0, &old_hash, &new_hash)?;
    }
    differing.truncate(new_len);
    Ok(differing)
}

struct Comparison<'c, A, B> {
    old: &'c mut Tree<A>,
    new: &'c mut Tree<B>,
    differing: &'c mut ExtentSet,
}

impl<A: ReadNodes, B: ReadNodes> Comparison<'_, A, B> {
    /// Compares the subtrees below two hashes; the depth of the recursion is the trees' height.
    fn descend(&mut self, height: usize, index: u64, old_hash: &[u8], new_hash: &[u8]) -> Result<()> {
        if old_hash == new_hash {
            return Ok(());
        }
        let block_len = u64::from(self.new.shape.layout.block_len);
        let Some(level) = height.checked_sub(1) else {
            self.note(index * block_len, (index + 1).saturating_mul(block_len));
            return Ok(());
        };
        let old_node = self.old.node(level, index, old_hash)?;
        let new_node = self.new.node(level, index, new_hash)?;
        let in_both = self
            .old
            .shape
            .hashes_of(level, index)
            .min(self.new.shape.hashes_of(level, index));
        let per_node = self.new.shape.per_node();
        for slot in 0..in_both {
            let (old_hash, new_hash) = (self.old.slot(&old_node, slot)?, self.new.slot(&new_node, slot)?);
            let (old_hash, new_hash) = (old_hash.to_vec(), new_hash.to_vec());
            self.descend(level, index * per_node + slot, &old_hash, &new_hash)?;
        }
        // Blocks that only the new content has lie behind the old one's end, and are already in the
        // result.
        Ok(())
    }

    fn note(&mut self, start: u64, end: u64) {
        if let Some(range) = ByteRange::new(start, end) {
            self.differing.insert(range);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
