//! Invalid proofs, and the fate of batches that have them.

use byteback_host::random::noise;

use super::lab::{Lab, attributes, patch};
use byteback_delta::leaves::{LeafDigest, LeafKind};
use byteback_delta::{ContentDigest, DIGEST_LEN, DeltaWriter, WriterOptions};
use byteback_extents::ByteRange;
use byteback_model::{ContentBase, ContentChange, FileId, NodeKind, NodeRecord, Totals};
use byteback_store::StoreError;
use byteback_store::model::{Proof, ProofOf};
use byteback_store::stage::PartWriter;

const FILE: FileId = FileId(2);

fn digest(bytes: &[u8]) -> [u8; DIGEST_LEN] {
    let mut digest = ContentDigest::new(bytes.len() as u64);
    digest.push(bytes);
    digest.finish().unwrap()
}

fn file(size: u64, deltas: u32, base: ContentBase) -> NodeRecord {
    NodeRecord {
        id: FILE,
        attributes: attributes(NodeKind::File, size),
        content: Some(ContentChange { deltas, base }),
    }
}

/// A batch of one file that is to have 1000 bytes, made by `fill` from a manifest on.
fn commit(lab: &Lab, counter: u64, totals: Totals, fill: impl FnOnce(&mut PartWriter)) -> Result<u64, StoreError> {
    let mut part = lab.part(counter);
    part.manifest(lab.manifest(counter, Some(1))).unwrap();
    fill(&mut part);
    part.end(totals).unwrap();
    lab.store.commit(part, 0).map(|applied| applied.seq)
}

fn totals(deltas: u64, proofs: u64) -> Totals {
    Totals {
        nodes: 1,
        entries: 0,
        deltas,
        proofs,
        directory_times: 0,
    }
}

/// The second half before the first half.
fn swapped() -> Vec<u8> {
    let options = WriterOptions {
        copies: true,
        ..WriterOptions::default()
    };
    let mut writer = DeltaWriter::new(Vec::new(), 1000, 1000, options).unwrap();
    writer.copy(ByteRange::new(0, 500).unwrap(), 500).unwrap();
    writer.copy(ByteRange::new(500, 1000).unwrap(), 0).unwrap();
    writer.finish().unwrap().0
}

#[test]
fn proof_is_accepted_if_right_else_the_folder_stays_as_it_is() {
    let lab = Lab::new(1 << 20);
    let base = noise(1, 1000);
    lab.first(&[(FILE.0, &base)]);
    let mut new = base.clone();
    new.rotate_left(500);
    let refused = |what: &str, result: Result<u64, StoreError>| {
        match (what, result) {
            ("mismatch", Err(StoreError::ContentMismatch { files })) => assert_eq!(files, [FILE]),
            ("invalid", Err(StoreError::InvalidBatch(_))) => {}
            (_, other) => panic!("{what}: {other:?}"),
        }
        assert_eq!(lab.store.folder("f").unwrap().seq, 1);
        assert_eq!(lab.read(FILE.0, 1).unwrap(), base);
    };
    let swap = |part: &mut PartWriter, digests: &[[u8; DIGEST_LEN]]| {
        part.node(file(1000, 1, ContentBase::Previous)).unwrap();
        part.delta(FILE, &swapped()[..]).unwrap();
        for digest in digests {
            part.proof(FILE, *digest).unwrap();
        }
    };
    refused(
        "mismatch",
        commit(&lab, 2, totals(1, 1), |part| swap(part, &[digest(&base)])),
    );
    // Repeated proofs, even if both are right; fewer or more than announced.
    for (announced, digests) in [
        (2, vec![digest(&new); 2]),
        (2, vec![digest(&new)]),
        (0, vec![digest(&new)]),
        (1, vec![]),
    ] {
        refused(
            "invalid",
            commit(&lab, 3, totals(1, announced), |part| swap(part, &digests)),
        );
    }
    // Proofs of a file that the batch does not mention, or only by its attributes.
    refused(
        "invalid",
        commit(&lab, 4, totals(1, 1), |part| {
            swap(part, &[]);
            part.proof(FileId(77), digest(&new)).unwrap();
        }),
    );
    refused(
        "invalid",
        commit(&lab, 5, totals(0, 1), |part| {
            let node = NodeRecord {
                content: None,
                ..file(1000, 0, ContentBase::Previous)
            };
            part.node(node).unwrap();
            part.proof(FILE, digest(&base)).unwrap();
        }),
    );
    // Announced deltas that do not arrive, and one too many.
    for (announced, sent) in [(2, 1), (1, 2)] {
        refused(
            "invalid",
            commit(&lab, 6, totals(sent, 1), |part| {
                part.node(file(1000, announced, ContentBase::Previous)).unwrap();
                for _ in 0..sent {
                    part.delta(FILE, &swapped()[..]).unwrap();
                }
                part.proof(FILE, digest(&new)).unwrap();
            }),
        );
    }
    // Copies from contents of another length than the file has: the sender was given a wrong one.
    refused(
        "mismatch",
        commit(&lab, 7, totals(2, 1), |part| {
            part.node(file(1000, 2, ContentBase::Previous)).unwrap();
            part.delta(FILE, &patch(1000, 999, &[])[..]).unwrap();
            part.delta(FILE, &swapped()[..]).unwrap();
            part.proof(FILE, digest(&new)).unwrap();
        }),
    );
    assert_eq!(
        commit(&lab, 8, totals(1, 1), |part| swap(part, &[digest(&new)])).unwrap(),
        2
    );
    assert_eq!(lab.read(FILE.0, 2).unwrap(), new);
    // A repeated batch gets the same result, whatever it says now.
    assert_eq!(
        commit(&lab, 8, totals(1, 1), |part| swap(part, &[digest(&base)])).unwrap(),
        2
    );
}

#[test]
fn literals_that_were_appended_first_are_put_in_their_places() {
    // As a client does for a file of many literals: it appends them, then takes everything from the
    // result.
    let lab = Lab::new(1 << 20);
    let base = noise(1, 1000);
    lab.first(&[(FILE.0, &base)]);
    let literals = noise(2, 600);
    let new = [&literals[..300], &base[..500], &literals[300..], &base[500..]].concat();
    let options = WriterOptions {
        copies: true,
        ..WriterOptions::default()
    };
    let mut last = DeltaWriter::new(Vec::new(), 1600, 1600, options).unwrap();
    for (start, end, from) in [(0, 300, 1000), (300, 800, 0), (800, 1100, 1300), (1100, 1600, 500)] {
        last.copy(ByteRange::new(start, end).unwrap(), from).unwrap();
    }
    let last = last.finish().unwrap().0;
    let seq = commit(&lab, 2, totals(3, 1), |part| {
        part.node(file(1600, 3, ContentBase::Previous)).unwrap();
        part.delta(FILE, &patch(1000, 1300, &[(1000, &literals[..300])])[..])
            .unwrap();
        part.delta(FILE, &patch(1300, 1600, &[(1300, &literals[300..])])[..])
            .unwrap();
        part.delta(FILE, &last[..]).unwrap();
        part.proof(FILE, digest(&new)).unwrap();
    });
    assert_eq!(seq.unwrap(), 2);
    assert_eq!(lab.read(FILE.0, 2).unwrap(), new);
    assert_eq!(lab.read(FILE.0, 1).unwrap(), base);
}

fn by_sums(kind: LeafKind, bytes: &[u8]) -> Proof {
    let mut digest = LeafDigest::new(kind, bytes.len() as u64);
    digest.push(bytes);
    Proof {
        digest: digest.finish().unwrap(),
        of: ProofOf::Leaves(kind),
    }
}

#[test]
fn a_proof_by_sums_is_worth_as_much() {
    let lab = Lab::new(1 << 20);
    let base = noise(1, 1000);
    lab.first(&[(FILE.0, &base)]);
    let new = [&base[500..], &base[..500]].concat();
    let mut counter = 1;
    let mut commit = |proof: Proof| {
        counter += 1;
        commit(&lab, counter, totals(1, 1), |part| {
            part.node(file(1000, 1, ContentBase::Previous)).unwrap();
            part.delta(FILE, &swapped()[..]).unwrap();
            part.proof(FILE, proof).unwrap();
        })
    };
    for kind in LeafKind::ALL {
        let right = by_sums(kind, &new);
        let other = LeafKind::ALL.into_iter().find(|other| *other != kind);
        for wrong in [
            by_sums(kind, &base),
            Proof {
                of: ProofOf::Bytes,
                ..right.clone()
            },
            Proof {
                of: other.map_or(ProofOf::Bytes, ProofOf::Leaves),
                ..right
            },
        ] {
            assert!(
                matches!(commit(wrong), Err(StoreError::ContentMismatch { .. })),
                "{kind:?}"
            );
        }
    }
    assert_eq!(commit(by_sums(LeafKind::Sha256, &new)).unwrap(), 2);
    assert_eq!(lab.read(FILE.0, 2).unwrap(), new);
}

/// A proof of these ranges of a content.
fn of_ranges(ranges: &[(u64, u64)], content: &[u8]) -> Proof {
    let ranges: Vec<ByteRange> = ranges
        .iter()
        .map(|(start, end)| ByteRange::new(*start, *end).unwrap())
        .collect();
    let mut digest = ContentDigest::new(ranges.iter().map(|range| range.len_bytes()).sum());
    for range in &ranges {
        digest.push(&content[range.start() as usize..range.end() as usize]);
    }
    Proof {
        digest: digest.finish().unwrap(),
        of: ProofOf::Ranges(ranges),
    }
}

#[test]
fn proof_of_ranges_is_compared_within_them_alone() {
    let lab = Lab::new(1 << 20);
    let base = noise(1, 1000);
    lab.first(&[(FILE.0, &base)]);
    let new = [&base[500..], &base[..500]].concat();
    let mut other = new.clone();
    other[700] ^= 1;
    let mut counter = 1;
    let mut commit = |proof: Proof| {
        counter += 1;
        commit(&lab, counter, totals(1, 1), |part| {
            part.node(file(1000, 1, ContentBase::Previous)).unwrap();
            part.delta(FILE, &swapped()[..]).unwrap();
            part.proof(FILE, proof).unwrap();
        })
    };
    let mut longer = new.clone();
    longer.push(0);
    for wrong in [
        of_ranges(&[(0, 1000)], &other),
        of_ranges(&[(0, 10), (700, 701)], &other),
        of_ranges(&[(0, 10), (20, 1001)], &longer),
        of_ranges(&[(400, 600)], &base),
    ] {
        assert!(matches!(commit(wrong), Err(StoreError::ContentMismatch { .. })));
    }
    // Nothing is said of the byte that differs.
    assert_eq!(
        commit(of_ranges(&[(0, 10), (20, 700), (701, 1000)], &other)).unwrap(),
        2
    );
    assert_eq!(lab.read(FILE.0, 2).unwrap(), new);
}
