//! Searches in stored contents: reported matches are there, existing matches are found, and lists
//! of any kind cost bounded work.

use std::cell::Cell;
use std::io::Read;

use byteback_delta::chunks::{ChunkList, ChunkLister, ChunkParams, MatchAnswer};
use byteback_delta::crc::CrcKind;
use byteback_delta::find::{ChunkFinder, FoundExtents, MatchedContent};
use byteback_delta::leaves::{LEAF_LEN_BYTES, LeafKind};
use byteback_delta::matches::MatchList;
use byteback_delta::signature::{SignatureParams, SignatureWriter};
use byteback_delta::strong::StrongKind;
use byteback_delta::weak::WeakKind;
use byteback_delta::{DeltaWriter, Source, WriterOptions};
use byteback_extents::ByteRange;
use byteback_host::random::{SplitMix64, noise};
use byteback_model::{ContentBase, FileId};
use byteback_store::StoreError;
use byteback_store::search::{CHUNKS_MAX, STREAM_LEN_MAX, SoughtBlocks, SoughtChunks};

use crate::lab::{Batch, Lab};

const FILE: FileId = FileId(2);
const LEN: usize = 300_000;

fn signature(content: &[u8], params: SignatureParams) -> Vec<u8> {
    let mut writer = SignatureWriter::new(Vec::new(), params, content.len() as u64).unwrap();
    writer.push(content).unwrap();
    writer.finish().unwrap()
}

fn chunks(content: &[u8], params: ChunkParams) -> (ChunkList, Vec<u8>) {
    let mut lister = ChunkLister::new(params, CrcKind::Crc32c);
    lister.push(content);
    let (list, _) = lister.finish();
    let mut bytes = Vec::new();
    list.write_to(&mut bytes).unwrap();
    (list, bytes)
}

fn small() -> ChunkParams {
    ChunkParams::new(64, 256, 400).unwrap()
}

/// The new content, assembled from the base and the matches; and its number of literal bytes.
fn compose(base: &[u8], found: &FoundExtents) -> (Vec<u8>, usize) {
    let (mut new, mut literal) = (Vec::new(), 0);
    for (range, source) in &found.extents {
        let len = range.len_bytes() as usize;
        match source {
            Source::Literal(bytes) => {
                literal += len;
                new.extend_from_slice(bytes);
            }
            Source::Copy { base_offset } => new.extend_from_slice(&base[*base_offset as usize..][..len]),
            Source::Zero => new.resize(new.len() + len, 0),
        }
    }
    (new, literal)
}

/// Finds `new` in the version `seq`, whose bytes are `base`, by each search; returns the literal
/// bytes of each.
fn find(lab: &Lab, seq: u64, base: &[u8], new: &[u8]) -> [usize; 3] {
    let params = SignatureParams::for_content(new.len() as u64, 5);
    let sought = SoughtBlocks::read(&signature(new, params)[..]).unwrap();
    let found = lab.store.find_blocks("f", FILE, Some(seq), &sought, &|| true);
    let mut bytes = Vec::new();
    found.unwrap().unwrap().write(&mut bytes).unwrap();
    let list = MatchList::read(&bytes[..], new.len() as u64, params.block_len_bytes).unwrap();
    assert_eq!(list.base_len_bytes(), base.len() as u64);
    let mut content = MatchedContent::new(&list, FoundExtents::default());
    content.push(0, new).unwrap();
    let (by_blocks, literal) = compose(base, &content.finish().unwrap().0);
    assert_eq!(by_blocks, new);
    look_up(lab, seq, base, new);
    let [proven, unproven] = [false, true].map(|has_unproven| {
        let (list, sent) = chunks(new, small());
        let sought = SoughtChunks::read(&sent[..]).unwrap();
        let found = lab
            .store
            .find_chunks("f", FILE, Some(seq), sought, has_unproven, &|| true);
        let mut bytes = Vec::new();
        found.unwrap().unwrap().write(&mut bytes).unwrap();
        let answer = MatchAnswer::read(&bytes[..], &list).unwrap();
        assert_eq!(answer.base_len_bytes(), base.len() as u64);
        let mut finder = ChunkFinder::new(&list, &answer, FoundExtents::default());
        finder.push(new).unwrap();
        let (by_chunks, literal) = compose(base, &finder.finish().unwrap().0);
        assert_eq!(by_chunks, new);
        literal
    });
    [literal, proven, unproven]
}

#[test]
fn search_results_make_the_new_content_at_every_moment() {
    let seed = std::env::var("BYTEBACK_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(3);
    eprintln!("BYTEBACK_SEED={seed}");
    let mut random = SplitMix64::new(seed);
    let lab = Lab::new(1 << 20);
    let mut versions = vec![noise(1, LEN)];
    lab.first(&[(2, &versions[0])]);
    for seq in 1..12_u64 {
        let mut bytes = versions.last().unwrap().clone();
        let at = random.below(LEN as u64 - 70_000);
        let len = 1 + random.below(70_000);
        let range = ByteRange::from_offset_len(at, len).unwrap();
        let place = at as usize..(at + len) as usize;
        let options = WriterOptions {
            copies: true,
            ..WriterOptions::default()
        };
        let mut writer = DeltaWriter::new(Vec::new(), LEN as u64, LEN as u64, options).unwrap();
        match random.below(3) {
            0 => {
                writer.zero(range).unwrap();
                bytes[place].fill(0);
            }
            1 => {
                let from = random.below(LEN as u64 - 70_000);
                writer.copy(range, from).unwrap();
                bytes.copy_within(from as usize..(from + len) as usize, at as usize);
            }
            _ => {
                bytes[place.clone()].copy_from_slice(&noise(seq, len as usize));
                writer.literal(range, &bytes[place]).unwrap();
            }
        }
        let batch = Batch::default()
            .file(2, LEN as u64, 1, ContentBase::Previous)
            .delta(2, writer.finish().unwrap().0);
        lab.send(seq + 1, Some(seq), &batch).unwrap();
        versions.push(bytes);
    }
    for _ in 0..20 {
        let [old, young] = [(); 2].map(|()| random.below(versions.len() as u64) as usize);
        let mut new = versions[young].clone();
        let at = random.below(LEN as u64) as usize;
        new.splice(at..at, noise(random.next_u64(), 100));
        find(&lab, old as u64 + 1, &versions[old], &new);
        if old == young {
            let [blocks, proven, unproven] = find(&lab, old as u64 + 1, &versions[old], &new);
            assert!(blocks < 100 + 2 * 700, "{blocks}");
            assert!(
                proven < 100 + 5 * 400 && unproven < 100 + 5 * 400,
                "{proven} {unproven}"
            );
        }
    }
    let same = find(&lab, 5, &versions[4], &versions[4]);
    assert_eq!(same, [0, 0, 0]);
}

#[test]
fn a_list_in_any_order_has_the_content_read_twice_and_no_more() {
    let lab = Lab::new(1 << 24);
    let base = noise(1, 8 << 20);
    lab.first(&[(2, &base)]);
    // Pieces of it in random order: a reader that follows the list's order decodes frames of 256
    // KiB again and again.
    let mut pieces: Vec<&[u8]> = base.chunks(5000).collect();
    let mut random = SplitMix64::new(4);
    for last in (1..pieces.len()).rev() {
        pieces.swap(last, random.below(last as u64 + 1) as usize);
    }
    let new = pieces.concat();
    let (list, sent) = chunks(&new, small());
    let before = lab.disk.counters().bytes_read;
    let sought = SoughtChunks::read(&sent[..]).unwrap();
    let found = lab.store.find_chunks("f", FILE, None, sought, false, &|| true);
    let found = found.unwrap().unwrap();
    let read = lab.disk.counters().bytes_read - before;
    let len = base.len() as u64;
    assert!((len..2 * len + len / 4).contains(&read), "{read} bytes of {len}");
    assert!(found.searched_bytes <= 2 * len, "{}", found.searched_bytes);
    let mut bytes = Vec::new();
    found.write(&mut bytes).unwrap();
    let answer = MatchAnswer::read(&bytes[..], &list).unwrap();
    let mut finder = ChunkFinder::new(&list, &answer, FoundExtents::default());
    finder.push(&new).unwrap();
    let (composed, literal) = compose(&base, &finder.finish().unwrap().0);
    assert!(composed == new && literal < new.len() / 4, "{literal}");
}

/// Looks the blocks of `new` up in the version `seq`, whose bytes are `base`: all that the base has
/// at multiples of their length are found, apart from zeros. Returns their bytes.
fn look_up(lab: &Lab, seq: u64, base: &[u8], new: &[u8]) -> usize {
    let block_len = LEAF_LEN_BYTES as usize;
    let params = SignatureParams {
        weak: WeakKind::Crc32c,
        strong: StrongKind::Tree(LeafKind::Blake3),
        ..SignatureParams::with_block_len(base.len().max(new.len()) as u64, LEAF_LEN_BYTES, 9)
    };
    let sought = SoughtBlocks::read(&signature(new, params)[..]).unwrap();
    let found = lab.store.find_blocks("f", FILE, Some(seq), &sought, &|| true);
    let mut bytes = Vec::new();
    found.unwrap().unwrap().write(&mut bytes).unwrap();
    let list = MatchList::read(&bytes[..], new.len() as u64, LEAF_LEN_BYTES).unwrap();
    assert_eq!(list.base_len_bytes(), base.len() as u64);
    let mut found = vec![false; new.len().div_ceil(block_len)];
    for run in list.runs() {
        let (start, end) = (run.range.start() as usize, run.range.end() as usize);
        assert!(new[start..end] == base[run.base_offset as usize..][..end - start]);
        found[start / block_len..end / block_len].fill(true);
    }
    let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let mut found_bytes = 0;
    for (block, is_found) in new.chunks_exact(block_len).zip(found) {
        let is_there = base.chunks_exact(block_len).any(|other| other == block);
        assert!(is_zero(block) || is_found == is_there);
        found_bytes += if is_found { block_len } else { 0 };
    }
    found_bytes
}

#[test]
fn lookup_reads_what_changed_since_the_last_one() {
    let lab = Lab::new(1 << 24);
    let mut content = noise(1, 1 << 20);
    let len = content.len() as u64;
    lab.first(&[(2, &content)]);
    let blocks = |content: &[u8]| {
        [
            &content[8192..16_384],
            &noise(5, 4096),
            &content[500 * 1024..600 * 1024],
        ]
        .concat()
    };
    let read = || lab.store.sums_cost().signature_read_bytes;
    let before = read();
    assert_eq!(look_up(&lab, 1, &content, &blocks(&content)), 8192 + 100 * 1024);
    assert_eq!(read() - before, len);
    let before = read();
    assert_eq!(look_up(&lab, 1, &content, &blocks(&content)), 8192 + 100 * 1024);
    assert_eq!(read() - before, 0);
    content[300_000] ^= 1;
    let changed = content[300_000..300_001].to_vec();
    lab.send(2, Some(1), &Batch::default().patch(2, len, &[(300_000, &changed)]))
        .unwrap();
    let before = read();
    assert_eq!(look_up(&lab, 2, &content, &blocks(&content)), 8192 + 100 * 1024);
    assert_eq!(read() - before, 4096);
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>, says: &str) {
    match result {
        Err(StoreError::InvalidSearch(what)) => assert!(what.contains(says), "{what}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn search_refuses_malformed_or_greedy_lists_before_it_begins() {
    let content = noise(1, LEN);
    let good = SignatureParams::with_block_len(LEN as u64, 256, 1);
    assert!(SoughtBlocks::read(&signature(&content, good)[..]).is_ok());
    let with = |change: &dyn Fn(&mut SignatureParams)| {
        let mut params = good;
        change(&mut params);
        SoughtBlocks::read(&signature(&content, params)[..])
    };
    refused(with(&|params| params.block_len_bytes = 255), "at least 256 bytes");
    refused(with(&|params| params.weak = WeakKind::Crc32c), "rolling checksums");
    refused(with(&|params| params.strong = StrongKind::Sha256), "keyed BLAKE3");
    // A false length: more blocks than are accepted, announced by 48 bytes.
    let huge = SignatureParams::with_block_len(1 << 40, 256, 1);
    let mut bytes = signature(&content, good);
    let mut head = Vec::new();
    let mut writer = SignatureWriter::new(&mut head, huge, 1 << 40).unwrap();
    writer.push(&[0; 1000]).unwrap();
    drop(writer);
    refused(SoughtBlocks::read(&head[..]), "more than");
    for cut in [0, 1, 20, 60, bytes.len() / 2, bytes.len() - 1] {
        refused(SoughtBlocks::read(&bytes[..cut]), "");
    }
    bytes.push(0);
    refused(SoughtBlocks::read(&bytes[..]), "bytes follow");

    let (_, mut bytes) = chunks(&content, small());
    refused(SoughtBlocks::read(&bytes[..]), "");
    for cut in [0, 1, 20, 60, bytes.len() / 2, bytes.len() - 1] {
        refused(SoughtChunks::read(&bytes[..cut]), "");
    }
    for at in (0..bytes.len()).step_by(97) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        refused(SoughtChunks::read(&damaged[..]), "");
    }
    bytes.push(0);
    refused(SoughtChunks::read(&bytes[..]), "bytes follow");
    refused(SoughtChunks::read(std::io::repeat(0).take(1 << 20)), "not a chunk list");

    // The longest accepted lists fit the limit of their bodies.
    let longest = SignatureParams {
        strong_len_bytes: 32,
        ..good
    };
    assert!(longest.stream_len_bytes(256 * byteback_store::search::BLOCKS_MAX) < STREAM_LEN_MAX);
}

#[test]
fn a_content_of_too_many_chunks_is_not_listed() {
    let lab = Lab::new(1 << 24);
    let piece = noise(1, 1 << 18);
    lab.first(&[(2, &piece)]);
    let pieces = ((256 * CHUNKS_MAX) >> 18) + 4;
    let options = WriterOptions {
        copies: true,
        ..WriterOptions::default()
    };
    let mut writer = DeltaWriter::new(Vec::new(), 1 << 18, pieces << 18, options).unwrap();
    for piece in 1..pieces {
        writer
            .copy(ByteRange::from_offset_len(piece << 18, 1 << 18).unwrap(), 0)
            .unwrap();
    }
    let batch = Batch::default()
        .file(2, pieces << 18, 1, ContentBase::Previous)
        .delta(2, writer.finish().unwrap().0);
    lab.send(2, Some(1), &batch).unwrap();
    let params = ChunkParams::new(64, 256, 256).unwrap();
    let (_, sent) = chunks(&piece, params);
    let sought = SoughtChunks::read(&sent[..]).unwrap();
    match lab.store.find_chunks("f", FILE, None, sought, true, &|| true) {
        Err(StoreError::InvalidParameter(what)) => assert!(what.contains("more than"), "{what}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_search_ends_when_nobody_waits_for_it() {
    let lab = Lab::new(1 << 24);
    let base = noise(1, 1 << 20);
    lab.first(&[(2, &base)]);
    for allowed in 0..14 {
        let asked = Cell::new(0);
        let is_wanted = || {
            asked.set(asked.get() + 1);
            asked.get() <= allowed
        };
        let params = SignatureParams::for_content(base.len() as u64, 5);
        let sought = SoughtBlocks::read(&signature(&base, params)[..]).unwrap();
        let found = lab.store.find_blocks("f", FILE, None, &sought, &is_wanted).unwrap();
        // The content has four frames.
        assert_eq!(found.is_some(), allowed >= 4, "{allowed}");
        assert!(asked.get() <= allowed + 1);
        asked.set(0);
        let sought = SoughtChunks::read(&chunks(&base, small()).1[..]).unwrap();
        let found = lab
            .store
            .find_chunks("f", FILE, None, sought, false, &is_wanted)
            .unwrap();
        assert!(found.is_none() || allowed >= 8, "{allowed}");
        // Once more after the proofs were given up, to learn why.
        assert!(asked.get() <= allowed + 2);
    }
}
