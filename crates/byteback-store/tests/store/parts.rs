//! Staged parts: which of them the server has, abandoning them, and space that is freed.

use crate::lab::{Batch, Lab, ROOT};
use byteback_host::random::noise;
use byteback_model::NodeKind;
use byteback_store::StoreError;
use sha2::{Digest as _, Sha256};

fn stored_len(lab: &Lab) -> u64 {
    use byteback_store::segments::Segments as _;
    lab.frames.list().unwrap().iter().map(|segment| segment.len_bytes).sum()
}

fn digest_of(digests: &[[u8; 32]]) -> [u8; 32] {
    Sha256::digest(digests.concat()).into()
}

/// A manifest and a root, in a part of its own.
fn stage_first(lab: &Lab, counter: u64, digest: [u8; 32]) {
    let mut part = lab.part(counter);
    part.manifest(lab.manifest(counter, None)).unwrap();
    part.node(Batch::default().node(ROOT, NodeKind::Directory, 0, None).nodes[0].clone())
        .unwrap();
    part.set_digest(digest);
    lab.store.stage(part, 1).unwrap();
}

#[test]
fn commit_of_other_parts_than_are_staged_applies_nothing() {
    let lab = Lab::new(1 << 20);
    let commit = |parts_digest: [u8; 32]| {
        let mut last = lab.part(1);
        let batch = Batch::default().new_file(2, b"file", b"bytes");
        last.node(batch.nodes[0].clone()).unwrap();
        last.entry(batch.entries[0].clone()).unwrap();
        last.delta(batch.deltas[0].0, &batch.deltas[0].1[..]).unwrap();
        last.end(byteback_model::Totals {
            nodes: 2,
            entries: 1,
            deltas: 1,
            proofs: 0,
            directory_times: 0,
        })
        .unwrap();
        last.expect_parts(parts_digest);
        lab.store.commit(last, 1)
    };
    stage_first(&lab, 1, [1; 32]);
    let status = lab.store.batch_status("f", lab.device, 1).unwrap();
    assert_eq!((status.staged_parts, status.digests), (vec![1], vec![Some([1; 32])]));
    // A delayed part comes last.
    stage_first(&lab, 1, [2; 32]);
    let refused = commit(digest_of(&[[1; 32]]));
    assert!(matches!(refused, Err(StoreError::PartsMissing { .. })), "{refused:?}");
    assert_eq!(lab.store.folder("f").unwrap().seq, 0);
    assert_eq!(commit(digest_of(&[[2; 32]])).unwrap().seq, 1);
    assert_eq!(lab.read(2, 1).unwrap(), b"bytes");
}

#[test]
fn a_batch_that_is_given_up_gives_its_segments_back() {
    let lab = Lab::new(1 << 20);
    lab.first(&[(2, b"stays")]);
    let before = stored_len(&lab);
    for number in 1..5 {
        let mut part = lab.part(9);
        let batch = Batch::default().new_file(3, b"x", &noise(number, 1_100_000));
        part.delta(batch.deltas[0].0, &batch.deltas[0].1[..]).unwrap();
        lab.store.stage(part, u32::try_from(number).unwrap()).unwrap();
    }
    assert!(stored_len(&lab) > before + 4_000_000);
    lab.store.abandon("f", lab.device, 9).unwrap();
    assert!(
        lab.store
            .batch_status("f", lab.device, 9)
            .unwrap()
            .staged_parts
            .is_empty()
    );
    // Except space that shares a segment with something that stays, or the active segment.
    assert!(stored_len(&lab) < before + 2_300_000, "{}", stored_len(&lab));
    assert_eq!(lab.read(2, 1).unwrap(), b"stays");
}

#[test]
fn a_piece_that_comes_to_nothing_gives_its_room_back() {
    let lab = Lab::new(8 << 20);
    lab.first(&[(2, b"stays")]);
    let before = stored_len(&lab);
    let begin = |bytes: &[u8]| {
        let mut part = lab.part(7);
        let batch = Batch::default().new_file(3, b"x", bytes);
        part.delta(batch.deltas[0].0, &batch.deltas[0].1[..]).unwrap();
        part
    };
    drop(begin(&noise(1, 300_000)));
    assert_eq!(stored_len(&lab), before);
    // Frames that others wrote behind it, or before, stay.
    let first = begin(&noise(2, 300_000));
    let second = begin(&noise(3, 300_000));
    lab.send(2, Some(1), &Batch::default().new_file(4, b"y", &noise(4, 50_000)))
        .unwrap();
    drop(first);
    drop(second);
    assert!(lab.read(4, 2).unwrap() == noise(4, 50_000));
    let third = begin(&noise(5, 100_000));
    lab.store.stage(third, 1).unwrap();
    assert!(lab.read(4, 2).unwrap() == noise(4, 50_000) && lab.read(2, 1).unwrap() == b"stays");
    let disk = lab.disk.crash(1);
    let lab = lab.reopen(disk);
    assert!(
        lab.read(4, 2).unwrap() == noise(4, 50_000),
        "what was acknowledged is there"
    );
}
