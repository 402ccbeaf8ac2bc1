//! Kept sums: signatures and proofs from them agree with the bytes, whatever happened to the file,
//! to the rows or to the batch; and their cost follows the change.

use crate::lab::{Batch, Lab, ROOT, attributes, patch};
use byteback_delta::leaves::{LeafDigest, LeafKind};
use byteback_delta::signature::{Signature, SignatureRequest};
use byteback_delta::strong::StrongKind;
use byteback_delta::weak::WeakKind;
use byteback_delta::{DeltaWriter, WriterOptions};
use byteback_extents::ByteRange;
use byteback_host::random::{SplitMix64, noise};
use byteback_host::sim::SimDisk;
use byteback_model::{ContentBase, ContentChange, FileId, NameChange, NodeKind, NodeRecord, Totals};
use byteback_store::model::{Proof, ProofOf};
use byteback_store::sums::SumsCost;
use byteback_store::{StoreError, StoreLimits};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

const MIB: usize = 1024 * 1024;
const FILE: FileId = FileId(2);

fn wanted(kind: LeafKind) -> SignatureRequest {
    SignatureRequest {
        weak: vec![WeakKind::Crc32c],
        strong: vec![StrongKind::Tree(kind)],
        ..SignatureRequest::default()
    }
}

fn signature(lab: &Lab, file: FileId, at: u64, kind: LeafKind) -> Signature {
    let reader = lab.store.signature("f", file, Some(at), &wanted(kind)).unwrap();
    let len = reader.stream_len_bytes();
    let mut stream = Vec::new();
    reader.write(&mut stream).unwrap().unwrap();
    assert_eq!(stream.len() as u64, len);
    Signature::read(&stream[..], u64::MAX).unwrap()
}

/// Whether the store's signature agrees with the bytes.
pub(crate) fn is_right(lab: &Lab, file: FileId, at: u64, kind: LeafKind, content: &[u8]) -> bool {
    let reported = signature(lab, file, at, kind);
    assert_eq!(reported.content_len_bytes(), content.len() as u64);
    let made = Signature::of(content, *reported.params());
    reported.weak() == made.weak() && (0..made.blocks()).all(|block| reported.strong(block) == made.strong(block))
}

pub(crate) fn by_sums(kind: LeafKind, content: &[u8]) -> Proof {
    let mut digest = LeafDigest::new(kind, content.len() as u64);
    digest.push(content);
    Proof {
        digest: digest.finish().unwrap(),
        of: ProofOf::Leaves(kind),
    }
}

/// A batch of [`FILE`], with a proof.
fn send_proven(
    lab: &Lab,
    counter: u64,
    base_seq: u64,
    content: (ContentBase, usize, &[Vec<u8>]),
    proof: Option<Proof>,
) -> Result<u64, StoreError> {
    send_proven_of(lab, FILE, (counter, base_seq), content, proof)
}

/// A batch of one file, with a proof; another one than [`FILE`] gets its number for a name.
fn send_proven_of(
    lab: &Lab,
    file: FileId,
    (counter, base_seq): (u64, u64),
    (base, size, streams): (ContentBase, usize, &[Vec<u8>]),
    proof: Option<Proof>,
) -> Result<u64, StoreError> {
    let mut part = lab.part(counter);
    part.manifest(lab.manifest(counter, Some(base_seq)))?;
    part.node(NodeRecord {
        id: file,
        attributes: attributes(NodeKind::File, size as u64),
        content: Some(ContentChange {
            deltas: streams.len() as u32,
            base,
        }),
    })?;
    for stream in streams {
        part.delta(file, &stream[..])?;
    }
    if let Some(proof) = &proof {
        part.proof(file, proof.clone())?;
    }
    let is_named = file != FILE;
    if is_named {
        part.entry(NameChange {
            parent: ROOT,
            name: file.0.to_string().into_bytes().into(),
            child: Some(file),
        })?;
    }
    part.end(Totals {
        nodes: 1,
        entries: u64::from(is_named),
        deltas: streams.len() as u64,
        proofs: u64::from(proof.is_some()),
        directory_times: 0,
    })?;
    lab.store.commit(part, 0).map(|applied| applied.seq)
}

pub(crate) fn cost_of(lab: &Lab, work: impl FnOnce()) -> SumsCost {
    let before = lab.store.sums_cost();
    work();
    let after = lab.store.sums_cost();
    SumsCost {
        signature_read_bytes: after.signature_read_bytes - before.signature_read_bytes,
        signature_unread_bytes: after.signature_unread_bytes - before.signature_unread_bytes,
        proof_read_bytes: after.proof_read_bytes - before.proof_read_bytes,
        proof_unread_bytes: after.proof_unread_bytes - before.proof_unread_bytes,
    }
}

pub(crate) fn sql(dir: &Path) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(dir.join("catalog.sqlite")).unwrap();
    connection.busy_timeout(Duration::from_secs(10)).unwrap();
    connection
}

fn rows(lab: &Lab) -> i64 {
    let count = "SELECT count(*) FROM sum_chunk";
    sql(lab.dir.path()).query_row(count, [], |row| row.get(0)).unwrap()
}

/// Number of files whose sums disagree with their bytes.
fn verify(lab: &Lab) -> u64 {
    let totals = lab.store.verify("f", None, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(totals.damaged_files, 0);
    totals.wrong_sums
}

#[test]
fn signature_of_a_gibibyte_rereads_only_the_changed_mebibyte() {
    let lab = Lab::new(64 << 20);
    let len = 1024 * MIB;
    // The content compresses, so that the test is quick, but no two blocks are alike.
    let mut content = vec![7; len];
    for (n, block) in (0_u32..).zip(content.chunks_mut(4096)) {
        block[..4].copy_from_slice(&n.to_le_bytes());
    }
    lab.first(&[(FILE.0, &content)]);
    let kind = LeafKind::Blake3;
    let first = cost_of(&lab, || assert!(is_right(&lab, FILE, 1, kind, &content)));
    assert_eq!(
        (first.signature_read_bytes, first.signature_unread_bytes),
        (len as u64, 0)
    );
    let again = cost_of(&lab, || assert!(is_right(&lab, FILE, 1, kind, &content)));
    assert_eq!(
        (again.signature_read_bytes, again.signature_unread_bytes),
        (0, len as u64)
    );
    // 256 blocks of noise, all over the file.
    let bytes = noise(1, 4096);
    let places: Vec<(u64, &[u8])> = (0..256).map(|n| (n * 4 * MIB as u64 + 8192, &bytes[..])).collect();
    for (at, bytes) in &places {
        content[*at as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    lab.send(2, Some(1), &Batch::default().patch(FILE.0, len as u64, &places))
        .unwrap();
    let disk = lab.disk.counters().bytes_read;
    let changed = cost_of(&lab, || assert!(is_right(&lab, FILE, 2, kind, &content)));
    assert_eq!(changed.signature_read_bytes, MIB as u64);
    let from_disk = lab.disk.counters().bytes_read - disk;
    assert!(
        from_disk < MIB as u64 + MIB as u64 / 20,
        "{from_disk} bytes of segments were read"
    );
    // A proof reads what its batch brings: a mebibyte of noise, moved by no multiple of anything.
    let brought = noise(2, MIB);
    let at = 100 * MIB + 77;
    content[at..at + MIB].copy_from_slice(&brought);
    let stream = patch(len as u64, len as u64, &[(at as u64, &brought)]);
    let proof = by_sums(kind, &content);
    let proven = cost_of(&lab, || {
        send_proven(&lab, 3, 2, (ContentBase::Previous, len, &[stream]), Some(proof)).unwrap();
    });
    assert_eq!(
        proven.proof_read_bytes,
        MIB as u64 + 4096,
        "and the two leaves at its ends"
    );
    let after = cost_of(&lab, || assert!(is_right(&lab, FILE, 3, kind, &content)));
    assert_eq!(after.signature_read_bytes, 0, "the proof's sums were kept");
    assert_eq!(verify(&lab), 0);
}

#[test]
fn kept_sums_of_a_refused_batch_are_dropped() {
    let lab = Lab::new(64 << 20);
    // More rows than are written at once.
    let len = 80 * MIB;
    let base = vec![3; len];
    lab.first(&[(FILE.0, &base)]);
    let kind = LeafKind::Sha256;
    let stream = || vec![patch(len as u64, len as u64, &[(5, b"new")])];
    let mut new = base.clone();
    new[5..8].copy_from_slice(b"new");
    let wrong = send_proven(
        &lab,
        2,
        1,
        (ContentBase::Previous, len, &stream()),
        Some(by_sums(kind, &base)),
    );
    assert!(matches!(wrong, Err(StoreError::ContentMismatch { .. })));
    assert_eq!(rows(&lab), 0);
    // The proof is right, but the batch comes too late.
    lab.send(
        3,
        Some(1),
        &Batch::default().patch(FILE.0, len as u64, &[(900_000, b"x")]),
    )
    .unwrap();
    let late = send_proven(
        &lab,
        4,
        1,
        (ContentBase::Previous, len, &stream()),
        Some(by_sums(kind, &new)),
    );
    assert!(matches!(late, Err(StoreError::Conflict { .. })));
    assert_eq!(rows(&lab), 0);
    new[900_000] = b'x';
    send_proven(
        &lab,
        5,
        2,
        (ContentBase::Previous, len, &stream()),
        Some(by_sums(kind, &new)),
    )
    .unwrap();
    assert_eq!(rows(&lab), 80, "it is committed");
    assert!(is_right(&lab, FILE, 3, kind, &new));
}

#[test]
fn kept_sums_stay_within_their_limit_oldest_first() {
    let limits = StoreLimits {
        // Rows of five MiB.
        sums_len_max: 5 * 9500,
        ..StoreLimits::default()
    };
    let lab = Lab::with(SimDisk::new(1), 64 << 20, limits);
    let files: Vec<Vec<u8>> = (2..5).map(|id| noise(id, 2 * MIB)).collect();
    let large = noise(9, 7 * MIB);
    lab.first(&[(2, &files[0]), (3, &files[1]), (4, &files[2]), (5, &large)]);
    let kind = LeafKind::Blake3;
    let read = |id: u128, content: &[u8]| {
        lab.clock.advance(Duration::from_secs(61));
        cost_of(&lab, || assert!(is_right(&lab, FileId(id), 1, kind, content))).signature_read_bytes / MIB as u64
    };
    assert_eq!((read(2, &files[0]), read(3, &files[1])), (2, 2));
    assert_eq!((read(2, &files[0]), read(3, &files[1]), rows(&lab)), (0, 0, 4));
    assert_eq!(read(2, &files[0]), 0, "used again, so that the other one is the oldest");
    assert_eq!(read(4, &files[2]), 2);
    assert_eq!((read(2, &files[0]), read(4, &files[2]), rows(&lab)), (0, 0, 4));
    assert_eq!(read(3, &files[1]), 2, "it had to go");
    // A file that needs more room than there is: its rest stays, and nothing else does.
    assert_eq!(read(5, &large), 7);
    assert!(rows(&lab) <= 5);
    assert!(is_right(&lab, FileId(5), 1, kind, &large));
    let none = StoreLimits {
        sums_len_max: 0,
        ..limits
    };
    let lab = Lab::with(SimDisk::new(1), 64 << 20, none);
    lab.first(&[(2, &files[0])]);
    assert!(is_right(&lab, FILE, 1, kind, &files[0]));
    assert_eq!(rows(&lab), 0);
}

#[test]
fn a_chunk_in_very_many_pieces_is_read_each_time_and_told_right() {
    let lab = Lab::new(64 << 20);
    let mut content = noise(1, 3 * MIB);
    lab.first(&[(FILE.0, &content)]);
    let kind = LeafKind::Sha256;
    assert!(is_right(&lab, FILE, 1, kind, &content));
    let places: Vec<(u64, &[u8])> = (0..5000).map(|n| (MIB as u64 + n * 200, &b"!"[..])).collect();
    places.iter().for_each(|(at, _)| content[*at as usize] = b'!');
    lab.send(2, Some(1), &Batch::default().patch(FILE.0, 3 * MIB as u64, &places))
        .unwrap();
    for _ in 0..2 {
        let cost = cost_of(&lab, || assert!(is_right(&lab, FILE, 2, kind, &content)));
        assert_eq!(cost.signature_read_bytes, MIB as u64);
        assert_eq!(cost.signature_unread_bytes, 2 * MIB as u64);
    }
    let proof = by_sums(kind, &content);
    let nothing = patch(3 * MIB as u64, 3 * MIB as u64, &[]);
    send_proven(&lab, 3, 2, (ContentBase::Previous, 3 * MIB, &[nothing]), Some(proof)).unwrap();
    assert_eq!(verify(&lab), 0);
}

#[test]
fn emptied_tables_of_kept_sums_are_filled_again() {
    let lab = Lab::new(64 << 20);
    let content = noise(1, MIB);
    lab.first(&[(FILE.0, &content)]);
    let disk = lab.disk.clone();
    sql(lab.dir.path())
        .execute_batch("DELETE FROM sum_chunk; DELETE FROM sums;")
        .unwrap();
    let lab = lab.reopen(disk);
    assert!(is_right(&lab, FILE, 1, LeafKind::Blake3, &content));
    assert_eq!(rows(&lab), 1);
}

/// A random delta of `base`, and its result.
pub(crate) fn delta(rng: &mut SplitMix64, base: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let new_len = match rng.below(8) {
        0 => rng.below(base.len() as u64 + 1) as usize,
        1 => base.len() + rng.below(1_500_000) as usize,
        2 => (base.len() + 4096 * rng.below(300) as usize).min(7 * MIB),
        3 => base.len().saturating_sub(4096 * rng.below(300) as usize),
        4 => 0,
        _ => base.len(),
    };
    let new_len = new_len.min(8 * MIB);
    let copies = rng.coin();
    let options = WriterOptions {
        copies,
        compress: rng.coin(),
    };
    let mut new = base.to_vec();
    new.resize(new_len, 0);
    let mut writer = DeltaWriter::new(Vec::new(), base.len() as u64, new_len as u64, options).unwrap();
    // Few large pieces, or very many small ones in one place.
    let is_dust = rng.below(10) == 0;
    let (pieces, gap_max, len_max) = if is_dust {
        (3000, 300, 20)
    } else {
        (rng.below(9), 1_500_000, 400_000)
    };
    let align = |rng: &mut SplitMix64, value: u64| if rng.coin() { value & !4095 } else { value };
    let mut at = if is_dust { rng.below(new_len as u64 + 1) } else { 0 };
    for _ in 0..pieces {
        let skip = 1 + rng.below(gap_max);
        let next = at + if is_dust { skip } else { align(rng, skip) };
        at = if is_dust { next } else { align(rng, next).max(at) };
        if at >= new_len as u64 {
            break;
        }
        let len = 1 + rng.below(len_max);
        let len = if is_dust { len } else { align(rng, len).max(1) }.min(new_len as u64 - at);
        let range = ByteRange::from_offset_len(at, len).unwrap();
        let place = at as usize..(at + len) as usize;
        match rng.below(4) {
            0 => {
                writer.zero(range).unwrap();
                new[place].fill(0);
            }
            1 | 2 if copies && len <= base.len() as u64 => {
                let from = rng.below(base.len() as u64 - len + 1);
                let from = align(rng, from);
                writer.copy(range, from).unwrap();
                new[place].copy_from_slice(&base[from as usize..(from + len) as usize]);
            }
            _ => {
                let bytes = match rng.below(3) {
                    0 => vec![0; len as usize],
                    _ => noise(rng.next_u64(), len as usize),
                };
                writer.literal(range, &bytes[..]).unwrap();
                new[place].copy_from_slice(&bytes);
            }
        }
        at += len;
    }
    (writer.finish().unwrap().0, new)
}

/// Damages rows behind the store's back.
fn harm(lab: &Lab, rng: &mut SplitMix64) {
    let connection = sql(lab.dir.path());
    let pick = "FROM sum_chunk ORDER BY random() LIMIT 1";
    match rng.below(4) {
        0 => connection.execute(
            &format!("DELETE FROM sum_chunk WHERE rowid = (SELECT rowid {pick})"),
            [],
        ),
        1 => connection.execute("DELETE FROM sums", []),
        // One row in the place of another.
        2 => connection.execute(
            &format!("UPDATE sum_chunk SET sums = (SELECT sums {pick}) WHERE rowid = (SELECT rowid {pick})"),
            [],
        ),
        _ => {
            let found = connection.query_row(&format!("SELECT rowid, sums {pick}"), [], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?))
            });
            let Ok((row, mut sums)) = found else { return };
            let at = rng.below(sums.len() as u64) as usize;
            sums[at] ^= 1 << rng.below(8);
            connection.execute("UPDATE sum_chunk SET sums = ?1 WHERE rowid = ?2", (sums, row))
        }
    }
    .unwrap();
}

fn life(seed: u64, rounds: u64, harms: bool) -> SumsCost {
    let mut rng = SplitMix64::new(seed);
    let mut lab = Lab::with(
        SimDisk::new(seed),
        4 << 20,
        StoreLimits {
            sums_len_max: if rng.below(3) == 0 { 40_000 } else { 1 << 30 },
            ..StoreLimits::default()
        },
    );
    let first = noise(seed, rng.below(5 * MIB as u64) as usize);
    let other = noise(!seed, 2 * MIB);
    lab.first(&[(FILE.0, &first), (3, &other)]);
    let mut versions = vec![first];
    let mut counter = 1;
    let mut cost = SumsCost::default();
    for round in 0..rounds {
        lab.clock.advance(Duration::from_secs(30));
        counter += 1;
        let seq = versions.len() as u64;
        let kind = LeafKind::ALL[rng.below(3) as usize];
        let base = if rng.below(12) == 0 {
            ContentBase::Empty
        } else {
            ContentBase::Previous
        };
        let mut content = match base {
            ContentBase::Previous => versions.last().unwrap().clone(),
            ContentBase::Empty | ContentBase::Of(_) | ContentBase::At { .. } => Vec::new(),
        };
        let mut streams = Vec::new();
        // Set back to an earlier content now and then.
        if rng.below(10) == 0 {
            let before = versions[rng.below(seq) as usize].clone();
            streams.push(patch(content.len() as u64, before.len() as u64, &[(0, &before)]));
            content = before;
        } else {
            for _ in 0..1 + rng.below(2) {
                let (stream, new) = delta(&mut rng, &content);
                streams.push(stream);
                content = new;
            }
        }
        let change = (base, content.len(), &streams[..]);
        let proof = rng.coin().then(|| by_sums(kind, &content));
        if let Some(right) = proof.clone().filter(|_| rng.below(3) == 0) {
            let mut wrong = right;
            wrong.digest[0] ^= 1;
            let refused = send_proven(&lab, 100_000 + counter, seq, change, Some(wrong));
            assert!(
                matches!(refused, Err(StoreError::ContentMismatch { .. })),
                "seed {seed} round {round}"
            );
        }
        let applied = send_proven(&lab, counter, seq, change, proof);
        assert!(applied.is_ok(), "seed {seed} round {round}: {applied:?}");
        versions.push(content);
        if rng.below(8) == 0 {
            cost = added(cost, lab.store.sums_cost());
            let disk = lab.disk.clone();
            lab = lab.reopen(disk);
        }
        if harms && rng.below(3) == 0 {
            harm(&lab, &mut rng);
        }
        let seq = versions.len() as u64;
        for _ in 0..rng.below(3) {
            // Mostly the newest moment.
            let at = if rng.below(3) == 0 { 1 + rng.below(seq) } else { seq };
            let kind = LeafKind::ALL[rng.below(3) as usize];
            let is_right = is_right(&lab, FILE, at, kind, &versions[at as usize - 1]);
            assert!(is_right, "seed {seed} round {round}: version {at} in {kind:?}");
        }
        if rng.below(4) == 0 {
            assert!(
                is_right(&lab, FileId(3), seq, kind, &other),
                "seed {seed} round {round}"
            );
        }
    }
    if !harms {
        assert_eq!(verify(&lab), 0, "seed {seed}");
    }
    added(cost, lab.store.sums_cost())
}

fn added(one: SumsCost, other: SumsCost) -> SumsCost {
    SumsCost {
        signature_read_bytes: one.signature_read_bytes + other.signature_read_bytes,
        signature_unread_bytes: one.signature_unread_bytes + other.signature_unread_bytes,
        proof_read_bytes: one.proof_read_bytes + other.proof_read_bytes,
        proof_unread_bytes: one.proof_unread_bytes + other.proof_unread_bytes,
    }
}

#[test]
fn kept_sums_are_those_of_the_bytes_in_random_lives() {
    let cost = match std::env::var("BYTEBACK_SEED") {
        Ok(seed) => life(seed.parse().unwrap(), 60, false),
        Err(_) => (0..6).fold(SumsCost::default(), |cost, seed| added(cost, life(seed, 40, false))),
    };
    // The kept sums saved reading.
    assert!(cost.signature_unread_bytes > cost.signature_read_bytes / 4, "{cost:?}");
    assert!(cost.proof_unread_bytes > cost.proof_read_bytes / 4, "{cost:?}");
}

#[test]
fn damaged_and_exchanged_rows_are_made_anew_in_random_lives() {
    let seeds = match std::env::var("BYTEBACK_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (100..104).collect(),
    };
    for seed in seeds {
        life(seed, 40, true);
    }
}

#[test]
fn verification_tells_of_rows_that_do_not_decode() {
    let lab = Lab::new(64 << 20);
    let content = noise(1, 2 * MIB);
    lab.first(&[(FILE.0, &content), (3, &content)]);
    let kind = LeafKind::Sha256;
    for file in [FILE, FileId(3)] {
        assert!(is_right(&lab, file, 1, kind, &content));
    }
    assert_eq!(verify(&lab), 0);
    let node = "(SELECT min(node) FROM sums)";
    let damage = format!("UPDATE sum_chunk SET sums = zeroblob(100) WHERE node = {node} AND chunk = 1");
    assert_eq!(sql(lab.dir.path()).execute(&damage, []).unwrap(), 1);
    assert_eq!(verify(&lab), 1);
    assert_eq!(rows(&lab), 2, "those of the other file");
    assert_eq!(verify(&lab), 0);
    assert!(is_right(&lab, FILE, 1, kind, &content));
    assert_eq!(rows(&lab), 4);
    let root = lab.store.node("f", ROOT, None).unwrap();
    assert_eq!(root.attributes.kind, NodeKind::Directory);
}

#[test]
fn sums_of_a_new_file_are_kept_by_its_proof() {
    let mut rng = SplitMix64::new(5);
    let lab = Lab::new(64 << 20);
    let mut content = noise(1, 3 * MIB);
    lab.first(&[(FILE.0, &content)]);
    // Saved by new files, each from the one before.
    let (mut from, mut kept) = (FILE, 0);
    for save in 1..=12 {
        let kind = LeafKind::ALL[(save % 3) as usize];
        let (stream, new) = delta(&mut rng, &content);
        let file = FileId(30 + u128::from(save));
        let change = (ContentBase::Of(from), new.len(), &[stream][..]);
        let sent = send_proven_of(&lab, file, (save + 1, save), change, Some(by_sums(kind, &new)));
        assert_eq!(sent.unwrap(), save + 1);
        let cost = cost_of(&lab, || assert!(is_right(&lab, file, save + 1, kind, &new)));
        // Shorter contents have no sums that are kept.
        if new.len() >= MIB / 4 {
            assert_eq!(cost.signature_read_bytes, 0, "save {save}");
            kept += 1;
        }
        (content, from) = (new, file);
    }
    assert!(kept > 6, "{kept} contents were long");
    assert_eq!(verify(&lab), 0);
}

#[test]
fn a_sum_that_is_wrong_costs_one_refusal() {
    let lab = Lab::new(64 << 20);
    let content = noise(1, 2 * MIB);
    lab.first(&[(FILE.0, &content), (3, &content)]);
    let kind = LeafKind::Sha256;
    for file in [FILE, FileId(3)] {
        assert!(is_right(&lab, file, 1, kind, &content));
    }
    let nothing = || vec![patch(2 * MIB as u64, 2 * MIB as u64, &[])];
    let send = |counter, proof| {
        send_proven(
            &lab,
            counter,
            1,
            (ContentBase::Previous, 2 * MIB, &nothing()),
            Some(proof),
        )
    };
    let mut wrong = by_sums(kind, &content);
    wrong.digest[0] ^= 1;
    assert!(matches!(send(2, wrong), Err(StoreError::ContentMismatch { .. })));
    assert_eq!(rows(&lab), 2, "the other file's");
    let cost = cost_of(&lab, || assert_eq!(send(3, by_sums(kind, &content)).unwrap(), 2));
    assert_eq!(cost.proof_read_bytes, 2 * MIB as u64);
    assert_eq!(rows(&lab), 4);
}

#[test]
fn a_full_disk_keeps_nothing_and_signatures_and_proofs_go_on() {
    let lab = Lab::new(64 << 20);
    let content = noise(1, 3 * MIB);
    lab.first(&[(FILE.0, &content)]);
    lab.catalog.limit_len(1).unwrap();
    for _ in 0..2 {
        let cost = cost_of(&lab, || assert!(is_right(&lab, FILE, 1, LeafKind::Blake3, &content)));
        assert_eq!(cost.signature_read_bytes, 3 * MIB as u64);
    }
    assert_eq!(rows(&lab), 0);
    lab.catalog.limit_len(u64::MAX).unwrap();
    assert!(is_right(&lab, FILE, 1, LeafKind::Blake3, &content));
    assert_eq!(rows(&lab), 3);
}

#[test]
fn many_at_once_are_told_right_while_batches_come() {
    let lab = Lab::with(
        SimDisk::new(1),
        4 << 20,
        StoreLimits {
            // Less than all rows take, so that some are evicted, too.
            sums_len_max: 60_000,
            ..StoreLimits::default()
        },
    );
    let mut versions = vec![noise(1, 4 * MIB)];
    let mut rng = SplitMix64::new(5);
    for _ in 0..30 {
        let mut next = versions.last().unwrap().clone();
        let at = rng.below(4 * MIB as u64 - 70_000) as usize;
        next[at..at + 70_000].copy_from_slice(&noise(rng.next_u64(), 70_000));
        versions.push(next);
    }
    lab.first(&[(FILE.0, &versions[0])]);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (lab, versions) = (&lab, &versions);
            scope.spawn(move || {
                let mut rng = SplitMix64::new(100 + thread);
                loop {
                    let seq = lab.store.folder("f").unwrap().seq;
                    let at = if rng.below(3) == 0 { 1 + rng.below(seq) } else { seq };
                    let kind = LeafKind::ALL[rng.below(2) as usize];
                    assert!(
                        is_right(lab, FILE, at, kind, &versions[at as usize - 1]),
                        "version {at}"
                    );
                    if seq == versions.len() as u64 {
                        break;
                    }
                }
            });
        }
        for (seq, pair) in (1..).zip(versions.windows(2)) {
            let first = pair[0]
                .iter()
                .zip(&pair[1])
                .position(|(before, after)| before != after)
                .unwrap();
            let stream = patch(
                4 * MIB as u64,
                4 * MIB as u64,
                &[(first as u64, &pair[1][first..first + 70_000])],
            );
            let proof = by_sums(LeafKind::ALL[(seq % 2) as usize], &pair[1]);
            send_proven(
                &lab,
                seq + 1,
                seq,
                (ContentBase::Previous, 4 * MIB, &[stream]),
                Some(proof),
            )
            .unwrap();
        }
    });
    assert_eq!(verify(&lab), 0);
}
