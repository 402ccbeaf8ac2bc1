use byteback_host::random::SplitMix64;

use super::*;
use crate::layer::Granularity;

fn pending(extents_max: usize) -> Pending {
    let bounds = Bounds {
        extents_max: usize::MAX,
        granularity: Granularity::Byte,
    };
    Pending::new(Epoch(1), bounds, extents_max)
}

fn range(start: u64, len: u64) -> ByteRange {
    ByteRange::from_offset_len(start, len).unwrap()
}

/// Files of different density, and what was written into each.
struct Written {
    pending: Pending,
    exact: BTreeMap<NodeId, ExtentSet>,
    random: SplitMix64,
}

impl Written {
    fn new(seed: u64, extents_max: usize) -> Self {
        Self {
            pending: pending(extents_max),
            exact: BTreeMap::new(),
            random: SplitMix64::new(seed),
        }
    }

    fn write(&mut self) {
        let node = NodeId(1 + self.random.below(8));
        let range = range(self.random.below(1_000 << node.0), 1 + self.random.below(4));
        self.pending.wrote(node, range);
        self.exact.entry(node).or_default().insert(range);
    }

    fn extents(&self) -> usize {
        self.pending.ranges().map(ExtentSet::len).sum()
    }

    fn reported(&self, node: NodeId) -> &ExtentSet {
        match self.pending.nodes.get(&node) {
            Some(PendingNode::Changed { layer, .. }) => &layer.ranges,
            _ => panic!("nothing is known of {node}"),
        }
    }

    fn covers_all(&self) -> bool {
        let mut exact = self.exact.iter();
        exact.all(|(node, exact)| exact.iter().all(|range| self.reported(*node).covers(range)))
    }
}

#[test]
fn pending_stays_within_its_bound_and_covers_all_writes() {
    for seed in 0..40 {
        let extents_max = 20 + SplitMix64::new(seed).below(100) as usize;
        let mut written = Written::new(seed, extents_max);
        for _ in 0..2_000 {
            written.write();
            let extents = written.extents();
            assert!(extents <= extents_max, "seed {seed}: {extents} of {extents_max}");
        }
        assert!(written.covers_all(), "seed {seed}");
    }
}

#[test]
fn pending_joins_the_closest_ranges_of_all_files() {
    for seed in 0..40 {
        let mut written = Written::new(seed, usize::MAX);
        (0..500).for_each(|_| written.write());
        written.pending.extents_max = 20 + written.random.below(100) as usize;
        written.pending.keep_within();
        assert!(written.extents() <= written.pending.extents_max && written.covers_all());
        let (mut filled_max, mut open_min) = (0, u64::MAX);
        for (node, exact) in &written.exact {
            let starts = exact.iter().skip(1).map(ByteRange::start);
            for (range, next) in exact.iter().zip(starts) {
                let gap = ByteRange::new(range.end(), next).unwrap();
                match written.reported(*node).covers(gap) {
                    true => filled_max = filled_max.max(gap.len_bytes()),
                    false => open_min = open_min.min(gap.len_bytes()),
                }
            }
        }
        assert!(filled_max < open_min, "seed {seed}: {filled_max} {open_min}");
    }
}

#[test]
fn pending_of_many_files_with_a_range_each_is_exact() {
    let mut pending = pending(100);
    for node in 0..2_000 {
        pending.wrote(NodeId(node), range(7, 5));
        pending.wrote(NodeId(node), range(1_000, 5));
    }
    let joined = pending.nodes.values().filter(|change| match change {
        PendingNode::Changed { layer, .. } => layer.ranges.iter().eq([range(7, 998)]),
        PendingNode::Gone => false,
    });
    assert!(joined.count() > 1_800);
    // A file is gone, and the bound holds for the others as before.
    for node in 0..2_000 {
        pending.gone(NodeId(node));
    }
    for at in 0..90 {
        pending.wrote(NodeId(30_000), range(at * 10, 5));
    }
    assert_eq!(pending.ranges().map(ExtentSet::len).sum::<usize>(), 90);
}
