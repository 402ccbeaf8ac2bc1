//! Answers about stored contents, from held or fetched leaves, compared with those from the bytes;
//! and their cost.

use super::*;
use crate::tests::store_with;
use byteback_delta::groups::{GroupAnswer, GroupsError};
use byteback_delta::signature::Signature;
use byteback_host::random::{SplitMix64, noise};

const MIB: usize = 1 << 20;
const FILE: FileId = FileId(2);

fn list(kind: LeafKind, content: &[u8]) -> SoughtGroups {
    let mut digest = LeafDigest::with_groups(kind, content.len() as u64);
    digest.push(content);
    let mut stream = Vec::new();
    digest.finish_with_groups().unwrap().1.write(&mut stream).unwrap();
    SoughtGroups::read(&stream[..]).unwrap()
}

fn ask(store: &Store, sought: &SoughtGroups) -> Result<GroupAnswer, GroupsError> {
    let found = store.find_groups("f", FILE, None, sought, &|| true).unwrap().unwrap();
    let len = found.stream_len_bytes();
    let mut stream = Vec::new();
    found.write(&mut stream).unwrap().unwrap();
    assert_eq!(stream.len() as u64, len);
    GroupAnswer::read(&stream[..], sought.0.kind(), sought.0.content_len_bytes(), 1 << 20)
}

/// The groups of `base` that differ from those of `new`, by the bytes.
fn left(base: &[u8], new: &[u8]) -> Vec<u8> {
    let mut of_new = new.chunks(MIB);
    let differs = base.chunks(MIB).filter(|group| of_new.next() != Some(group));
    differs.flatten().copied().collect()
}

fn check(store: &Store, kind: LeafKind, base: &[u8], new: &[u8]) -> GroupAnswer {
    let answer = ask(store, &list(kind, new)).unwrap();
    assert_eq!(answer.base_len_bytes(), base.len() as u64);
    let reported = answer.signature();
    let expected = Signature::of(&left(base, new), *reported.params());
    assert_eq!(
        (reported.weak(), reported.content_len_bytes()),
        (expected.weak(), expected.content_len_bytes())
    );
    for block in 0..reported.blocks() {
        assert_eq!(reported.strong(block), expected.strong(block), "{block}");
    }
    answer
}

#[test]
fn groups_report_hold_or_refetch_what_is_left() {
    let mut random = SplitMix64::new(7);
    // The second content has more leaves than are held, and holes.
    for len in [3 * MIB + 5000, 7 * MIB + 1] {
        let mut base = noise(1, len);
        base[2 * MIB..3 * MIB].fill(0);
        if len > 6 * MIB {
            base[5 * MIB..].fill(0);
        }
        let (_dir, store) = store_with(&base);
        for kind in LeafKind::ALL {
            check(&store, kind, &base, &base);
            check(&store, kind, &base, b"");
            check(&store, kind, &base, &noise(2, len + 3 * MIB));
            check(&store, kind, &base, &vec![0; len]);
            check(&store, kind, &base, &base[..len - 1]);
            for _ in 0..5 {
                let mut new = base.clone();
                for _ in 0..random.below(4) {
                    let at = random.below(len as u64) as usize;
                    new[at] ^= 1;
                }
                new.truncate(len - random.below(2) as usize * random.below(len as u64) as usize);
                check(&store, kind, &base, &new);
            }
        }
    }
}

#[test]
fn an_unmodified_content_costs_no_reading_and_no_signature() {
    let base = noise(1, 5 * MIB + 100);
    let (_dir, store) = store_with(&base);
    let sought = list(LeafKind::Sha256, &base);
    let first = store.sums_cost();
    ask(&store, &sought).unwrap();
    let made = store.sums_cost();
    assert_eq!(
        made.signature_read_bytes - first.signature_read_bytes,
        base.len() as u64
    );
    for _ in 0..3 {
        let answer = ask(&store, &sought).unwrap();
        assert_eq!((answer.left_len_bytes(), answer.signature().blocks()), (0, 0));
    }
    assert_eq!(store.sums_cost().signature_read_bytes, made.signature_read_bytes);
    // Everything differs, and there are more leaves than are held: they are kept by now.
    check(&store, LeafKind::Sha256, &base, &noise(3, base.len()));
    assert_eq!(store.sums_cost().signature_read_bytes, made.signature_read_bytes);
}

#[test]
fn a_search_that_nobody_waits_for_ends() {
    let base = noise(1, 3 * MIB);
    let (_dir, store) = store_with(&base);
    let sought = list(LeafKind::Sha256, &base);
    let found = store.find_groups("f", FILE, None, &sought, &|| false).unwrap();
    assert!(found.is_none());
    assert!(store.sums_cost().signature_read_bytes <= MIB as u64);
}

#[test]
fn lists_that_go_on_or_are_none_are_refused() {
    let base = noise(1, 1000);
    let mut stream = Vec::new();
    list(LeafKind::Sha256, &base).0.write(&mut stream).unwrap();
    stream.push(0);
    for bytes in [&stream[..], &stream[..20], b"", b"something else that is long enough"] {
        let refused = SoughtGroups::read(bytes);
        assert!(matches!(refused, Err(StoreError::InvalidSearch(_))));
    }
}
