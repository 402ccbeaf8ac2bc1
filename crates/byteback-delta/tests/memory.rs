//! The memory cost of a block, at its highest: the figures in the header of `find`. Counted in the
//! allocator; a test binary of its own with one test, so that nothing else is counted.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::convert::Infallible;

use byteback_delta::chunks::{ChunkList, ChunkParams, list_chunks};
use byteback_delta::crc::{BlockCrcs, CrcKind, CrcList, LastBlock};
use byteback_delta::find::{
    BlockIndex, CrcSums, ExtentSink, Known, ReverseFinder, SumKind, SumLayout, SumList, find_sky,
};
use byteback_delta::matches::MatchList;
use byteback_delta::signature::{Signature, SignatureParams, SignatureWriter};
use byteback_delta::strong::StrongKind;
use byteback_delta::weak::WeakKind;
use byteback_extents::ByteRange;
use byteback_heap::{CountingHeap, used_by};

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

const BLOCK_LEN: usize = 16;

/// The memory that does not grow with the number of blocks: pieces, windows and groups.
const FIXED: usize = 512 << 10;

/// A content whose blocks all differ.
fn content(blocks: usize) -> Vec<u8> {
    (0..blocks as u64)
        .flat_map(|block| {
            let low = (block + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            [low, low.rotate_left(23) ^ block].map(u64::to_le_bytes)
        })
        .flatten()
        .collect()
}

/// The blocks in reverse order, so that none follows its predecessor.
fn reversed(content: &[u8]) -> Vec<u8> {
    content.rchunks(BLOCK_LEN).flatten().copied().collect()
}

fn params(weak: WeakKind, strong: StrongKind) -> SignatureParams {
    SignatureParams {
        block_len_bytes: BLOCK_LEN as u32,
        weak,
        strong,
        strong_len_bytes: 32,
        seed: 7,
    }
}

fn stream(content: &[u8], params: SignatureParams) -> Vec<u8> {
    let mut writer = SignatureWriter::new(Vec::new(), params, content.len() as u64).unwrap();
    writer.push(content).unwrap();
    writer.finish().unwrap()
}

/// The memory cost of a structure.
struct Cost {
    what: &'static str,
    count: usize,
    kept_bytes: usize,
    peak_bytes: usize,
}

fn cost<T>(what: &'static str, count: usize, work: impl FnOnce() -> T) -> (T, Cost) {
    let (made, used) = used_by(work);
    let cost = Cost {
        what,
        count,
        // Negative where more was freed than allocated.
        kept_bytes: usize::try_from(used.live_bytes).unwrap_or(0),
        peak_bytes: usize::try_from(used.peak_bytes).unwrap(),
    };
    (made, cost)
}

impl Cost {
    /// Checks the bytes per element: at most `kept` in the end and `peak` meanwhile.
    fn is(&self, kept: usize, peak: usize) {
        let Self {
            what,
            count,
            kept_bytes,
            peak_bytes,
        } = self;
        assert!(
            *kept_bytes <= kept * count + FIXED / 16,
            "{what} keeps {kept_bytes} bytes, {kept} for each of {count}"
        );
        assert!(
            *peak_bytes <= peak * count + FIXED,
            "{what} takes {peak_bytes} bytes, {peak} for each of {count}"
        );
    }
}

/// A sink that keeps nothing.
struct Nowhere;

impl ExtentSink for Nowhere {
    type Error = Infallible;

    fn literal(&mut self, _: u64, _: &[u8]) -> Result<(), Infallible> {
        Ok(())
    }

    fn copy(&mut self, _: ByteRange, _: u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn zero(&mut self, _: ByteRange) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Both sides of a search by a signature of `blocks` blocks.
fn searches(blocks: usize, table: usize) {
    let new = content(blocks);
    let base = reversed(&new);
    let sent = stream(&new, params(WeakKind::Rsync, StrongKind::Blake3));
    let (signature, read) = cost("signature", blocks, || Signature::read(&sent[..], u64::MAX).unwrap());
    read.is(36, 54);
    let (index, indexed) = cost("index", blocks, || BlockIndex::new(signature));
    indexed.is(table, table);
    let (list, found) = cost("search", blocks, || {
        let mut finder = ReverseFinder::new(&index);
        finder.push(&base);
        finder.finish().0
    });
    assert_eq!(list.runs().len(), blocks, "each block is a run of its own");
    found.is(24, 32);
    let mut answer = Vec::new();
    list.write(&mut answer).unwrap();
    drop((list, index));
    let (list, read) = cost("matches", blocks, || {
        MatchList::read(&answer[..], new.len() as u64, BLOCK_LEN as u32).unwrap()
    });
    read.is(24, 36);
    assert_eq!(list.runs().len(), blocks);
}

/// SkySync-F with `blocks` blocks.
fn sky(blocks: usize) {
    let base = content(blocks);
    let new = reversed(&base);
    let sent = stream(&base, params(WeakKind::Crc32c, StrongKind::Sha256));
    let signature = Signature::read(&sent[..], u64::MAX).unwrap();
    let (crcs, listed) = cost("CRCs", blocks, || {
        CrcList::of(&new, CrcKind::Crc32c, BLOCK_LEN as u32, LastBlock::AsItIs)
    });
    listed.is(5, 7);
    let layout = SumLayout {
        kind: SumKind::Sha256,
        sum_len_bytes: 32,
        block_len_bytes: BLOCK_LEN as u32,
        content_len_bytes: crcs.layout().content_len_bytes,
        last: LastBlock::AsItIs,
    };
    let (strong, listed) = cost("strong checksums", blocks, || {
        let mut strong = SumList::new(layout);
        new.chunks(BLOCK_LEN)
            .for_each(|block| strong.push(Some(&signature.hasher().of(block))));
        strong
    });
    listed.is(33, 49);
    let known = Known {
        crcs: Some(CrcSums(crcs)),
        strong: Some(strong).filter(|_| false),
    };
    let (stats, found) = cost("SkySync-F", blocks, || {
        find_sky(&signature, known, &new[..], new.len() as u64, Nowhere)
            .unwrap()
            .1
    });
    assert!(
        stats.copied_bytes == new.len() as u64 && stats.read_bytes > 0,
        "{stats:?}"
    );
    found.is(0, 23);
}

fn chunks(blocks: usize) {
    let new = content(blocks);
    let params = ChunkParams::new(64, 256, 512).unwrap();
    let (list, _) = list_chunks(&new[..], None, params, CrcKind::Crc32c).unwrap();
    let mut sent = Vec::new();
    list.write_to(&mut sent).unwrap();
    let (list, read) = cost("chunks", list.len(), || ChunkList::read(&sent[..], u64::MAX).unwrap());
    read.is(20, 30);
    drop(list);
}

#[test]
fn a_block_costs_as_many_bytes_as_is_said() {
    // Tables have a power of two of slots: the number of blocks for which that is least, and the
    // one for which it is most.
    for (blocks, table) in [(1 << 18, 18), ((1 << 18) + 1, 36)] {
        searches(blocks, table);
        sky(blocks);
        chunks(blocks);
    }
}
