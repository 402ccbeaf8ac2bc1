//! Both ends with group sums, on contents of some MiB: the delta makes the new content, whatever is
//! known, and equal groups are not read.

use std::cell::RefCell;

use proptest::prelude::*;

use super::*;
use crate::crc::CrcKind;
use crate::find::FoundExtents;
use crate::find::edits::{compose, through_a_delta};
use crate::groups::{EqualGroups, GroupList, GroupsError, group_count};
use crate::leaves::{
    GROUP_LEAVES, GROUP_LEN_BYTES, LEAF_LEN_BYTES, Leaf, LeafBlocks, LeafDigest, LeafKind, TreeSums, group_sum,
};
use crate::model::noise;
use crate::signature::{Signature, SignatureParams, SignatureWriter};

const MIB: usize = 1 << 20;

/// The leaves and CRCs of a content.
struct Summed(Vec<(u32, Leaf)>);

impl Summed {
    fn of(kind: LeafKind, content: &[u8]) -> Self {
        let of = |block: &[u8]| (CrcKind::Crc32c.of(block) as u32, kind.leaf(block));
        Self(content.chunks(LEAF_LEN_BYTES as usize).map(of).collect())
    }

    fn groups(&self) -> impl Iterator<Item = &[(u32, Leaf)]> {
        self.0.chunks(GROUP_LEAVES as usize)
    }
}

/// The end with the base, which has its leaves.
fn answer(list: &GroupList, base_len: u64, summed: &Summed, lies: &[u64]) -> Result<GroupAnswer, GroupsError> {
    let list = list.listed();
    let mut equal = EqualGroups::new(&list, base_len);
    for (group, leaves) in (0..).zip(summed.groups()) {
        let sum = group_sum(leaves.iter().map(|(_, leaf)| leaf));
        if list.is_equal(group, &sum, base_len) || lies.contains(&group) {
            equal.set(group);
        }
    }
    let left_len = equal.gathering().left_len_bytes(base_len);
    let params = equal.params(5);
    let mut stream = Vec::new();
    equal.write(&mut stream).unwrap();
    let mut writer = SignatureWriter::new(stream, params, left_len).unwrap();
    let mut blocks = LeafBlocks::new(&params, left_len).unwrap();
    for (group, leaves) in (0..).zip(summed.groups()) {
        for (crc, leaf) in leaves.iter().filter(|_| !equal.contains(group)) {
            if let Some(block) = blocks.push(Some(*crc), Some(leaf)) {
                writer.push_sums(block.weak.unwrap(), &block.strong.unwrap()).unwrap();
            }
        }
    }
    let stream = writer.finish().unwrap();
    GroupAnswer::read(&stream[..], list.kind(), list.content_len_bytes(), 1 << 20)
}

/// A content that records the ranges read.
struct Noted<'a>(&'a [u8], RefCell<Vec<ByteRange>>);

impl Base for Noted<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.1
            .borrow_mut()
            .extend(ByteRange::from_offset_len(offset, buffer.len() as u64));
        self.0.read_range(offset, buffer)
    }
}

fn listed(kind: LeafKind, content: &[u8]) -> GroupList {
    let mut digest = LeafDigest::with_groups(kind, content.len() as u64);
    digest.push(content);
    digest.finish_with_groups().unwrap().1
}

/// Runs both ends, and checks the result. `has_crcs`, `has_leaves`: the checksums that the new
/// content's end knows beside the groups.
fn check(kind: LeafKind, base: &[u8], new: &[u8], has_crcs: bool, has_leaves: bool) -> (FindStats, GroupAnswer) {
    let of_new = Summed::of(kind, new);
    let answer = answer(&listed(kind, new), base.len() as u64, &Summed::of(kind, base), &[]).unwrap();
    let known = || {
        let mut sums = TreeSums::new(answer.signature().params(), answer.left_len_bytes()).unwrap();
        let equal = answer.gathering().equal();
        for (group, leaves) in (0..).zip(of_new.groups()) {
            let start = group * GROUP_LEN_BYTES;
            if equal.iter().any(|range| range.start() <= start && start < range.end()) {
                continue;
            }
            for (crc, leaf) in leaves {
                sums.push(has_crcs.then_some(*crc), has_leaves.then_some(leaf));
            }
        }
        sums.finish()
    };
    let content = Noted(new, RefCell::default());
    let (found, stats) = find_gathered(&answer, known(), &content, FoundExtents::default()).unwrap();
    assert!(
        compose(base, &found.extents) == new,
        "what was found is not the content"
    );
    for read in content.1.take() {
        assert!(
            answer
                .gathering()
                .equal()
                .iter()
                .all(|equal| equal.intersect(read).is_none()),
            "{read:?} is equal"
        );
    }
    assert_eq!(
        stats.literal_bytes + stats.copied_bytes + stats.zero_bytes,
        new.len() as u64
    );
    assert_eq!(stats.read_bytes + stats.unread_bytes, new.len() as u64);
    through_a_delta(base, new, |sink| {
        find_gathered(&answer, known(), new, sink).unwrap();
    });
    (stats, answer)
}

#[test]
fn an_unmodified_content_costs_a_list_of_groups_and_a_head() {
    for kind in LeafKind::ALL {
        for len in [1, 5000, MIB, 5 * MIB + 1] {
            let base = noise(1, len);
            let (stats, answer) = check(kind, &base, &base, true, true);
            assert_eq!((stats.read_bytes, stats.literal_bytes), (0, 0));
            assert_eq!((answer.signature().blocks(), answer.left_len_bytes()), (0, 0));
        }
    }
    // 100 MB.
    let list = listed(LeafKind::Blake3, &vec![7; 100_000_000]);
    let mut equal = EqualGroups::new(&list.listed(), 100_000_000);
    (0..group_count(100_000_000)).for_each(|group| equal.set(group));
    let signature = equal.params(1).stream_len_bytes(0);
    assert!(list.stream_len_bytes() + equal.stream_len_bytes() + signature < 1700);
}

#[test]
fn a_scattered_change_costs_a_leaf() {
    let base = noise(1, 6 * MIB + 777);
    let mut new = base.clone();
    // Changes in four of the groups, among them the last byte.
    let places = [3 * MIB, 3 * MIB + 4095, 3 * MIB + 9000, 5 * MIB + 1, 7, new.len() - 1];
    places.iter().for_each(|&at| new[at] ^= 1);
    for kind in LeafKind::ALL {
        let (stats, answer) = check(kind, &base, &new, false, true);
        assert_eq!(stats.literal_bytes, 4 * 4096 + 777);
        assert_eq!(stats.read_bytes, stats.literal_bytes);
        assert_eq!(answer.signature().blocks(), 3 * 256 + 1);
    }
}

#[test]
fn insertions_are_found_behind_the_first_one() {
    let base = noise(1, 5 * MIB);
    let mut new = base.clone();
    new.splice(2 * MIB + 100..2 * MIB + 100, noise(2, 1000));
    for (has_crcs, has_leaves) in [(true, true), (false, true), (true, false), (false, false)] {
        let (stats, _) = check(LeafKind::Blake3, &base, &new, has_crcs, has_leaves);
        assert!(stats.literal_bytes < 1000 + 2 * 4096, "{}", stats.literal_bytes);
        assert_eq!(stats.unread_bytes, 2 * MIB as u64);
    }
}

#[test]
fn gathered_search_finds_moves_between_left_groups_over_others() {
    let base = noise(1, 6 * MIB);
    let mut new = base.clone();
    // Groups 1 and 4 exchanged: both are found without reading, as their leaves show their places.
    new[MIB..2 * MIB].copy_from_slice(&base[4 * MIB..5 * MIB]);
    new[4 * MIB..5 * MIB].copy_from_slice(&base[MIB..2 * MIB]);
    let (stats, _) = check(LeafKind::Sha256, &base, &new, true, true);
    assert_eq!((stats.literal_bytes, stats.read_bytes), (0, 0));
    // A run that begins in one of them and ends in the other, not at leaf borders: the window moves
    // over the seam.
    let mut new = base.clone();
    new[MIB + 10..2 * MIB].copy_from_slice(&base[4 * MIB..5 * MIB - 10]);
    new[4 * MIB..5 * MIB].copy_from_slice(&noise(3, MIB));
    let (stats, _) = check(LeafKind::Sha256, &base, &new, false, false);
    assert!(stats.literal_bytes < MIB as u64 + 3 * 4096, "{}", stats.literal_bytes);
}

#[test]
fn lengths_that_differ_are_no_trouble() {
    let base = noise(1, 3 * MIB + 5000);
    for len in [0, 1, MIB, 2 * MIB + 1, 3 * MIB, 3 * MIB + 4999] {
        let (stats, answer) = check(LeafKind::Blake3, &base, &base[..len], true, true);
        assert!(stats.literal_bytes < 4096, "{len}");
        assert_eq!(answer.base_len_bytes(), base.len() as u64);
        let (stats, _) = check(LeafKind::Blake3, &base[..len], &base, true, true);
        assert!(stats.literal_bytes <= (base.len() - len) as u64 + 4096, "{len}");
    }
}

#[test]
fn a_wrong_equal_group_is_what_only_the_digest_shows() {
    let base = noise(1, 3 * MIB);
    let mut new = base.clone();
    new[MIB + 5] ^= 1;
    let kind = LeafKind::Blake3;
    let answer = answer(&listed(kind, &new), base.len() as u64, &Summed::of(kind, &base), &[1]).unwrap();
    let sums = TreeSums::new(answer.signature().params(), answer.left_len_bytes()).unwrap();
    let (found, _) = find_gathered(&answer, sums.finish(), &new[..], FoundExtents::default()).unwrap();
    let made = compose(&base, &found.extents);
    assert!(made == base && made != new);
    let digest = |content: &[u8]| {
        let mut digest = LeafDigest::new(kind, content.len() as u64);
        digest.push(content);
        digest.finish()
    };
    assert_ne!(digest(&made), digest(&new));
}

#[test]
fn a_signature_of_all_is_an_answer_without_equal_groups() {
    let base = noise(1, 2 * MIB);
    let params = SignatureParams::for_groups(LeafKind::Blake3, base.len() as u64, base.len() as u64, 3);
    let answer = GroupAnswer::of_all(Signature::of(&base, params), base.len() as u64);
    let known = TreeSums::new(&params, base.len() as u64).unwrap().finish();
    let (found, stats) = find_gathered(&answer, known, &base[..], FoundExtents::default()).unwrap();
    assert!(compose(&base, &found.extents) == base);
    assert_eq!(stats.copied_bytes, base.len() as u64);
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Turn { at: usize, len: usize },
    Insert { at: usize, len: usize },
    Cut { at: usize, len: usize },
    Zero { at: usize, len: usize },
    Move { at: usize, from: usize, len: usize },
    Truncate { at: usize },
}

fn change() -> impl Strategy<Value = Change> {
    let at = 0..4 * MIB;
    prop_oneof![
        4 => (at.clone(), 1..9000_usize).prop_map(|(at, len)| Change::Turn { at, len }),
        1 => (at.clone(), 1..9000_usize).prop_map(|(at, len)| Change::Insert { at, len }),
        1 => (at.clone(), 1..9000_usize).prop_map(|(at, len)| Change::Cut { at, len }),
        1 => (at.clone(), 1..300_000_usize).prop_map(|(at, len)| Change::Zero { at, len }),
        2 => (at.clone(), at.clone(), 1..300_000_usize).prop_map(|(at, from, len)| Change::Move { at, from, len }),
        1 => at.prop_map(|at| Change::Truncate { at }),
    ]
}

fn apply(content: &mut Vec<u8>, change: Change) {
    let end = content.len();
    let clamp = |at: usize, len: usize| at.min(end)..at.saturating_add(len).min(end).max(at.min(end));
    match change {
        Change::Turn { at, len } => content[clamp(at, len)].iter_mut().for_each(|byte| *byte = !*byte),
        Change::Insert { at, len } => drop(content.splice(at.min(end)..at.min(end), noise(at as u64, len))),
        Change::Cut { at, len } => drop(content.drain(clamp(at, len))),
        Change::Zero { at, len } => content[clamp(at, len)].fill(0),
        Change::Move { at, from, len } => {
            let bytes = content[clamp(from, len)].to_vec();
            let to = clamp(at, bytes.len());
            let len = to.len();
            content[to].copy_from_slice(&bytes[..len]);
        }
        // At the end of a block or a group, too.
        Change::Truncate { at } => content.truncate(at),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn random_changes_come_back(
        seed: u64,
        len in 0..4 * MIB,
        changes in prop::collection::vec(change(), 0..6),
        has_crcs: bool,
        has_leaves: bool,
        kind in 0..3_usize,
    ) {
        let base = noise(seed, len);
        let mut new = base.clone();
        changes.into_iter().for_each(|change| apply(&mut new, change));
        check(LeafKind::ALL[kind], &base, &new, has_crcs, has_leaves);
        check(LeafKind::ALL[kind], &new, &base, has_crcs, has_leaves);
    }
}
