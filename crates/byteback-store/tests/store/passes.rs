//! The cost of reading a content of many versions, frame by frame.
//!
//! A content that was changed everywhere again and again lies in the frames of all its versions, a
//! little of it in each. A frame is read and decoded as a whole, so one pass over the content costs
//! all these frames, several times the content's bytes; but each only once, and a request makes
//! exactly the passes that it documents.

use crate::lab::{Batch, Lab};
use byteback_delta::chunks::{ChunkLister, ChunkParams};
use byteback_delta::crc::CrcKind;
use byteback_delta::find::{BlockIndex, FoundExtents, RollingFinder};
use byteback_delta::leaves::LeafKind;
use byteback_delta::signature::{Signature, SignatureParams, SignatureRequest};
use byteback_delta::strong::StrongKind;
use byteback_delta::weak::WeakKind;
use byteback_delta::{ContentDigest, DeltaWriter, FRAME_RAW_LEN_MAX, Source, WriterOptions};
use byteback_host::random::{SplitMix64, noise};
use byteback_model::{ContentBase, FileId};
use byteback_store::model::Proof;
use byteback_store::search::SoughtChunks;

const FILE: FileId = FileId(2);
const LEN: usize = 8 << 20;
const VERSIONS: u64 = 14;
const PIECE_LEN: usize = 256;

/// Number of changed pieces: enough to make two blocks of five differ, as in the measurement of
/// docs/benchmarks.md.
const PIECES: usize = 1200;

/// `old` with pieces inverted in place, or inserted.
fn edited(old: &[u8], is_inserted: bool, rng: &mut SplitMix64) -> Vec<u8> {
    let mut places: Vec<usize> = (0..PIECES)
        .map(|_| rng.below((old.len() - PIECE_LEN) as u64) as usize)
        .collect();
    places.sort_unstable();
    let (mut new, mut done) = (Vec::new(), 0);
    for place in places {
        if place < done {
            continue;
        }
        new.extend_from_slice(&old[done..place]);
        if is_inserted {
            new.extend(noise(rng.next_u64(), PIECE_LEN));
            done = place;
        } else {
            new.extend(old[place..place + PIECE_LEN].iter().map(|byte| !byte));
            done = place + PIECE_LEN;
        }
    }
    new.extend_from_slice(&old[done..]);
    new
}

/// The delta that rsync's finder finds.
fn found(old: &[u8], new: &[u8]) -> Vec<u8> {
    let index = BlockIndex::new(Signature::of(old, SignatureParams::for_content(old.len() as u64, 5)));
    let mut finder = RollingFinder::new(&index, FoundExtents::default());
    finder.push(new).unwrap();
    let (found, _) = finder.finish().unwrap();
    let options = WriterOptions {
        copies: true,
        compress: false,
    };
    let mut writer = DeltaWriter::new(Vec::new(), old.len() as u64, new.len() as u64, options).unwrap();
    for (range, source) in &found.extents {
        match source {
            Source::Copy { base_offset } => writer.copy(*range, *base_offset).unwrap(),
            Source::Literal(bytes) => writer.literal(*range, &bytes[..]).unwrap(),
            Source::Zero => writer.zero(*range).unwrap(),
        }
    }
    writer.finish().unwrap().0
}

/// Frames that were read since the last call, their bytes, and the highest number of reads of one
/// frame.
fn passes(lab: &Lab) -> (usize, u64, u32) {
    let reads = lab.frames.take();
    let bytes = reads.keys().map(|frame| u64::from(frame.stored_len)).sum();
    (reads.len(), bytes, reads.values().copied().max().unwrap_or(0))
}

#[test]
fn pass_over_a_content_of_many_versions_reads_each_frame_once() {
    let lab = Lab::new(64 << 20);
    let mut content = noise(1, LEN);
    lab.first(&[(2, &content)]);
    let mut rng = SplitMix64::new(1);
    for version in 2..=VERSIONS {
        let new = edited(&content, version > VERSIONS / 2, &mut rng);
        let batch = Batch::default()
            .file(2, new.len() as u64, 1, ContentBase::Previous)
            .delta(2, found(&content, &new));
        let batch = match version {
            VERSIONS => batch.proof(2, proof_of(&new)),
            _ => batch,
        };
        lab.frames.take();
        lab.send(version, Some(version - 1), &batch).unwrap();
        content = new;
    }
    let (frames, bytes, most) = passes(&lab);
    assert_eq!(most, 1, "the proof");
    // The reason for the cost: nearly every frame of every version holds a part of the last one.
    assert!(bytes > 3 * content.len() as u64, "{bytes} bytes in {frames} frames");
    let ideal = content.len() / FRAME_RAW_LEN_MAX as usize;
    assert!(
        frames > 3 * ideal,
        "{frames} frames where {ideal} would hold the content"
    );

    assert!(lab.read(2, VERSIONS).unwrap() == content);
    assert_eq!(passes(&lab), (frames, bytes, 1), "reading");

    let by_leaves = SignatureRequest {
        weak: vec![WeakKind::Crc32c],
        strong: vec![StrongKind::Tree(LeafKind::Sha256)],
        ..SignatureRequest::default()
    };
    for (what, request) in [("rolling", SignatureRequest::default()), ("leaves", by_leaves)] {
        let reader = lab.store.signature("f", FILE, None, &request).unwrap();
        reader.write(std::io::sink()).unwrap().unwrap();
        assert_eq!(passes(&lab), (frames, bytes, 1), "signature: {what}");
    }

    // Chunks take two: one to cut the content, one to prove what was found.
    let mut lister = ChunkLister::new(ChunkParams::for_content(content.len() as u64), CrcKind::Crc32c);
    lister.push(&edited(&content, true, &mut rng));
    let mut list = Vec::new();
    lister.finish().0.write_to(&mut list).unwrap();
    let sought = SoughtChunks::read(&list[..]).unwrap();
    let answer = lab.store.find_chunks("f", FILE, None, sought, true, &|| true);
    answer.unwrap().unwrap().write(std::io::sink()).unwrap();
    let (of_chunks, _, most) = passes(&lab);
    assert_eq!((of_chunks, most), (frames, 2), "chunks");
}

fn proof_of(content: &[u8]) -> Proof {
    let mut digest = ContentDigest::new(content.len() as u64);
    digest.push(content);
    digest.finish().unwrap().into()
}
