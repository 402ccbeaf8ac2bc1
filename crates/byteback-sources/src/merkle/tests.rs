//! Trees of random contents, compared with naively built ones, and with damage.

use byteback_host::random::SplitMix64;

use super::*;
use byteback_checksums::source::Kind;

/// A tree built by the definition, level by level.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) shape: Shape,
    pub(crate) root: Vec<u8>,
    pub(crate) nodes: Vec<u8>,
    leaves: Vec<Vec<u8>>,
}

pub(crate) fn sum(layout: &Layout, bytes: &[u8]) -> Vec<u8> {
    let mut sum = Vec::new();
    layout.append_sum(bytes, &mut sum);
    sum
}

impl Made {
    pub(crate) fn new(layout: &Layout, content: &[u8], node_len: u32, slot_len: usize) -> Self {
        let leaves: Vec<_> = content
            .chunks(layout.block_len as usize)
            .map(|block| sum(layout, block))
            .collect();
        let mut levels: Vec<Vec<u8>> = Vec::new();
        let mut hashes = leaves.clone();
        let of_nodes = Layout {
            block_len: node_len,
            tail: Tail::ZeroPadded,
            ..layout.clone()
        };
        while hashes.len() > 1 {
            let mut level = Vec::new();
            let mut above = Vec::new();
            for hashes in hashes.chunks(node_len as usize / slot_len) {
                let mut node: Vec<u8> = hashes
                    .iter()
                    .flat_map(|hash| {
                        let mut slot = hash.clone();
                        slot.resize(slot_len, 0);
                        slot
                    })
                    .collect();
                node.resize(node_len as usize, 0);
                above.push(sum(&of_nodes, &node));
                level.extend(node);
            }
            levels.push(level);
            hashes = above;
        }
        levels.reverse();
        Self {
            shape: Shape::new(layout.clone(), content.len() as u64, node_len, slot_len).unwrap(),
            root: hashes.pop().unwrap_or_default(),
            nodes: levels.concat(),
            leaves,
        }
    }

    fn tree(&self) -> Tree<&[u8]> {
        Tree::new(&self.nodes[..], self.shape.clone(), self.root.clone())
    }

    /// All leaves as returned, and the end of the bytes that they cover.
    fn reported(&self) -> Result<(Vec<u8>, u64)> {
        let mut leaves = Leaves::new(self.tree());
        let (mut sums, mut end) = (Vec::new(), 0);
        while let Some((range, more)) = leaves.next()? {
            assert_eq!(range.start(), end);
            let count = range.len_bytes().div_ceil(u64::from(self.shape.layout.block_len));
            assert_eq!(more.len() as u64, count * self.shape.layout.kind.len_bytes() as u64);
            sums.extend_from_slice(more);
            end = range.end();
        }
        Ok((sums, end))
    }
}

impl ReadNodes for &[u8] {
    fn read_nodes(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let from = self.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(from.ok_or(SourceError::Malformed("cut short"))?);
        Ok(())
    }
}

/// The parameters of trees in a test: few hashes in a node make high trees of short contents.
fn drawn(random: &mut SplitMix64) -> (Layout, u32, usize) {
    let kind = [Kind::Sha256, Kind::Sha512][random.below(2) as usize];
    let salt = vec![7; random.below(9) as usize];
    let tail = [Tail::ZeroPadded, Tail::AsIs][random.below(2) as usize];
    let layout = Layout {
        kind,
        salt,
        block_len: 1 << (4 + random.below(3)),
        tail,
    };
    let slot_len = kind.len_bytes() << random.below(2);
    (layout, (slot_len as u32) << (1 + random.below(3)), slot_len)
}

fn content(random: &mut SplitMix64, layout: &Layout) -> Vec<u8> {
    let blocks = [0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 63, 64, 65, 90][random.below(14) as usize];
    let len = (blocks * layout.block_len as usize + random.below(3) as usize).saturating_sub(1);
    random.bytes(len)
}

fn seeds() -> impl Iterator<Item = u64> {
    let first = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    let count = if std::env::var("BYTEBACK_SEED").is_ok() { 1 } else { 400 };
    (first..first + count).inspect(|seed| println!("BYTEBACK_SEED={seed}"))
}

#[test]
fn leaves_of_random_contents_are_those_of_the_definition() {
    for seed in seeds() {
        let mut random = SplitMix64::new(seed);
        let (layout, node_len, slot_len) = drawn(&mut random);
        let content = content(&mut random, &layout);
        let made = Made::new(&layout, &content, node_len, slot_len);
        assert_eq!(made.shape.tree_len(), made.nodes.len() as u64);
        let (sums, end) = made.reported().unwrap();
        assert_eq!(sums, made.leaves.concat());
        assert_eq!(end, content.len() as u64);
        // Some of them, in any order.
        let (mut leaves, sum_len) = (Leaves::new(made.tree()), layout.kind.len_bytes());
        for _ in 0..8 {
            let first = random.below(made.leaves.len() as u64 + 1);
            let blocks = random.below(made.leaves.len() as u64 - first + 1);
            let mut some = b"before".to_vec();
            leaves.append(first, blocks, &mut some).unwrap();
            let range = first as usize * sum_len..(first + blocks) as usize * sum_len;
            assert_eq!(some[6..], sums[range]);
        }
        let behind = leaves.append(made.leaves.len() as u64, 1, &mut Vec::new());
        assert!(matches!(behind, Err(SourceError::Malformed(_))));
    }
}

#[test]
fn a_tree_with_any_other_byte_or_length_is_not_believed() {
    for seed in seeds() {
        let mut random = SplitMix64::new(seed);
        let (layout, node_len, slot_len) = drawn(&mut random);
        let content = content(&mut random, &layout);
        let made = Made::new(&layout, &content, node_len, slot_len);
        if made.nodes.is_empty() {
            continue;
        }
        let mut spoiled = made.clone();
        let at = random.below(made.nodes.len() as u64) as usize;
        spoiled.nodes[at] ^= 1 << random.below(8);
        assert!(
            matches!(spoiled.reported(), Err(SourceError::Malformed(_))),
            "byte {at}"
        );
        let mut short = made.clone();
        short.nodes.truncate(at);
        assert!(matches!(short.reported(), Err(SourceError::Malformed(_))), "{at} bytes");
        let mut other_root = made.clone();
        let at = random.below(made.root.len() as u64) as usize;
        other_root.root[at] ^= 0x80;
        assert!(matches!(other_root.reported(), Err(SourceError::Malformed(_))));
    }
}

/// The differing blocks, found by comparing all of them.
fn naive(layout: &Layout, old: &[u8], new: &[u8]) -> ExtentSet {
    let mut differing = ExtentSet::new();
    let block_len = layout.block_len as usize;
    for start in (0..new.len()).step_by(block_len) {
        let block = |content: &[u8]| content[start.min(content.len())..content.len().min(start + block_len)].to_vec();
        if sum(layout, &block(old)) != sum(layout, &block(new)) || start >= old.len() {
            let end = new.len().min(start + block_len);
            differing.insert(ByteRange::new(start as u64, end as u64).unwrap());
        }
    }
    if let Some(appended) = ByteRange::new(old.len() as u64, new.len() as u64) {
        differing.insert(appended);
    }
    differing
}

/// The number of node pairs that must be compared: those above differing blocks, where both trees
/// have one.
fn nodes_above(differing: &ExtentSet, made: &Made, other: &Made) -> u64 {
    let mut width = u64::from(made.shape.layout.block_len);
    let (mut count, mut levels) = (0, made.shape.levels.len().min(other.shape.levels.len()));
    let len = made.shape.content_len.min(other.shape.content_len);
    while levels > 0 {
        width *= made.shape.per_node();
        let nodes = len.div_ceil(width);
        let touched = |node: &u64| {
            // A node also differs where one of the trees has more behind the common part.
            let range = ByteRange::from_offset_len(node * width, width).unwrap();
            let ends = |content: u64| range.start() < content && content <= range.end();
            differing.intersects(range)
                || (made.shape.content_len != other.shape.content_len
                    && (ends(made.shape.content_len) || ends(other.shape.content_len)))
        };
        count += (0..nodes).filter(touched).count() as u64;
        levels -= 1;
    }
    count
}

#[test]
fn random_changes_are_found_and_what_is_equal_is_not_read() {
    for seed in seeds() {
        let mut random = SplitMix64::new(seed);
        let (layout, node_len, slot_len) = drawn(&mut random);
        let old = content(&mut random, &layout);
        let mut new = old.clone();
        for _ in 0..random.below(4) {
            if !new.is_empty() {
                let at = random.below(new.len() as u64) as usize;
                new[at] ^= 1;
            }
        }
        match random.below(4) {
            0 => new.truncate(random.below(new.len() as u64 + 1) as usize),
            1 => {
                let more = random.below(1500) as usize;
                new.extend(random.bytes(more));
            }
            2 => new.resize(new.len() + random.below(70) as usize, 0),
            _ => {}
        }
        let (one, other) = (
            Made::new(&layout, &old, node_len, slot_len),
            Made::new(&layout, &new, node_len, slot_len),
        );
        let (mut old_tree, mut new_tree) = (one.tree(), other.tree());
        let found = compare(&mut old_tree, &mut new_tree).unwrap();
        let expected = naive(&layout, &old, &new);
        assert_eq!(found.iter().collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
        // Everything outside of the reported ranges is equal.
        for gap in found.gaps_within(ByteRange::new(0, (new.len() as u64).max(1)).unwrap()) {
            let gap = gap.start() as usize..(gap.end() as usize).min(new.len());
            assert_eq!(new[gap.clone()], old[gap]);
        }
        let most = nodes_above(&expected, &one, &other);
        let over =
            |tree: &Made| (tree.shape.levels.len() - one.shape.levels.len().min(other.shape.levels.len())) as u64;
        assert!(
            old_tree.nodes_read() <= most + over(&one),
            "{} > {most}",
            old_tree.nodes_read()
        );
        assert!(
            new_tree.nodes_read() <= most + over(&other),
            "{} > {most}",
            new_tree.nodes_read()
        );
        // Damage is noticed, or was not read.
        let mut spoiled = other.clone();
        if !spoiled.nodes.is_empty() {
            let at = random.below(spoiled.nodes.len() as u64) as usize;
            spoiled.nodes[at] ^= 4;
            match compare(&mut one.tree(), &mut spoiled.tree()) {
                Ok(found) => assert_eq!(found.iter().collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>()),
                Err(error) => assert!(matches!(error, SourceError::Malformed(_))),
            }
        }
    }
}

#[test]
fn trees_that_are_made_differently_are_not_compared() {
    let layout = |salt: &[u8], block_len| Layout {
        kind: Kind::Sha256,
        salt: salt.to_vec(),
        block_len,
        tail: Tail::ZeroPadded,
    };
    let made = |salt: &[u8], block_len, node_len| Made::new(&layout(salt, block_len), &[1; 999], node_len, 32);
    let plain = made(b"", 64, 128);
    for other in [made(b"s", 64, 128), made(b"", 32, 128), made(b"", 64, 256)] {
        let found = compare(&mut plain.tree(), &mut other.tree());
        assert!(matches!(found, Err(SourceError::NotHere(_))));
    }
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let layout = |block_len| Layout {
        kind: Kind::Sha256,
        salt: Vec::new(),
        block_len,
        tail: Tail::AsIs,
    };
    assert!(Shape::new(layout(0), 1, 64, 32).is_none());
    assert!(Shape::new(layout(64), 1, 32, 32).is_none());
    assert!(Shape::new(layout(64), 1, 64, 16).is_none());
    assert!(Shape::new(layout(64), 1, 64, 0).is_none());
    assert!(Shape::new(layout(1), u64::MAX, 4096, 32).is_none());
    assert!(Shape::new(layout(4096), u64::MAX, 4096, 32).is_some());
}
