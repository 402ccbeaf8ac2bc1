//! All finders: whatever base and new content are, what they find makes the new content, in memory
//! and as a stream.
#![no_main]

use byteback_delta::chunks::{ChunkParams, MatchAnswer, MatchParams, list_chunks, list_chunks_with_crcs};
use byteback_delta::crc::{BlockCrcs, CrcKind, CrcList, LastBlock, RangeCrcs};
use byteback_delta::find::{
    BlockIndex, ChunkFinder, CrcSums, FixedFinder, Known, MatchedContent, ReverseFinder, RollingFinder, SumKind,
    SumLayout, SumList, find_local, find_sky, match_chunks, prove_matches,
};
use byteback_delta::leaves::{LEAF_LEN_BYTES, LeafBlocks, LeafDigest, LeafKind, TreeSums};
use byteback_delta::matches::MatchList;
use byteback_delta::signature::{Signature, SignatureParams, SignatureWriter};
use byteback_delta::strong::{StrongHasher, StrongKind};
use byteback_delta::weak::WeakKind;
use byteback_fuzz::contents::{self, Input, Made, base_and_new};

byteback_fuzz::target!(check, seeds, costly);

fn check(data: &[u8]) {
    let mut input = Input(data);
    let (finder, block_len, piece_len) = (input.byte(), input.byte(), input.number() % 5000 + 1);
    let block_len = [1, 7, 64, 700, 4096, 8192][usize::from(block_len) % 6];
    let known = input.byte();
    let (base, new) = base_and_new(&mut input);
    let made = match finder % 7 {
        0 | 1 => by_signature(&base, &new, block_len, piece_len, finder % 7 == 0),
        2 => reverse(&base, &new, block_len),
        3 => chunked(&base, &new, piece_len, known),
        4 => sky(&base, &new, block_len, known),
        5 => sky_of_leaves(&base, &new, block_len, piece_len, known),
        _ => {
            let Ok((made, _)) = find_local(&base[..], &new[..], Made::new(&base, new.len())) else {
                unreachable!()
            };
            made
        }
    };
    made.check(&new);
}

fn params(block_len_bytes: u32, weak: WeakKind, strong: StrongKind) -> SignatureParams {
    SignatureParams {
        block_len_bytes,
        weak,
        strong,
        strong_len_bytes: 32,
        seed: 42,
    }
}

fn by_signature<'b>(base: &'b [u8], new: &[u8], block_len: u32, piece_len: usize, is_rolling: bool) -> Made<'b> {
    let params = params(block_len, WeakKind::Rsync, StrongKind::Blake3);
    let index = BlockIndex::new(Signature::of(base, params));
    let made = Made::new(base, new.len());
    let Ok((made, _)) = if is_rolling {
        let mut finder = RollingFinder::new(&index, made);
        for piece in new.chunks(piece_len) {
            let Ok(()) = finder.push(piece);
        }
        finder.finish()
    } else {
        let mut finder = FixedFinder::new(&index, made);
        for piece in new.chunks(piece_len) {
            let Ok(()) = finder.push(piece);
        }
        finder.finish()
    };
    made
}

fn reverse<'b>(base: &'b [u8], new: &[u8], block_len: u32) -> Made<'b> {
    let params = params(block_len, WeakKind::Rsync, StrongKind::Blake3);
    let mut answer = Vec::new();
    {
        let index = BlockIndex::new(Signature::of(new, params));
        let mut finder = ReverseFinder::new(&index);
        finder.push(base);
        let (list, _) = finder.finish();
        list.write(&mut answer).expect("memory");
    }
    // What the server had in memory, the client has not.
    let list = MatchList::read(&answer[..], new.len() as u64, block_len).expect("ours");
    let mut content = MatchedContent::new(&list, Made::new(base, new.len()));
    for range in list.missing() {
        let bytes = &new[range.start() as usize..range.end() as usize];
        content.push(range.start(), bytes).expect("it is missing");
    }
    content.finish().expect("all of it came").0
}

fn chunked<'b>(base: &'b [u8], new: &[u8], piece_len: usize, known: u8) -> Made<'b> {
    let params = match known % 2 {
        0 => ChunkParams::new(64, 256, 512).expect("lengths of chunks"),
        _ => ChunkParams::for_content(new.len() as u64),
    };
    let (list, _) = list_chunks(new, None, params, CrcKind::Crc32c).expect("it is in memory");
    if known & 2 != 0 {
        // As SkySync-C lists them, from the CRCs of aligned blocks.
        let blocks = CrcList::of(new, CrcKind::Crc32c, 4096, LastBlock::ZeroPadded);
        let mut crcs = RangeCrcs::new(blocks);
        let (from_crcs, _) = list_chunks_with_crcs(new, None, params, &mut crcs).expect("it is in memory");
        assert_eq!(from_crcs, list, "from CRCs of blocks, another list comes");
    }
    let (of_base, _) = list_chunks(base, None, params, CrcKind::Crc32c).expect("it is in memory");
    let runs = match_chunks(&list, &of_base);
    let (answer, _) = prove_matches(&list, &runs, base, MatchParams::new(7)).expect("it is in memory");
    let mut bytes = Vec::new();
    answer.write_to(&list, &mut bytes).expect("memory");
    let answer = MatchAnswer::read(&bytes[..], &list).expect("ours");
    let mut finder = ChunkFinder::new(&list, &answer, Made::new(base, new.len()));
    for piece in new.chunks(piece_len) {
        let Ok(()) = finder.push(piece);
    }
    let Ok((made, _)) = finder.finish();
    made
}

/// With CRCs and strong checksums of some blocks of the new content; `known` says of which.
fn sky<'b>(base: &'b [u8], new: &[u8], block_len: u32, known: u8) -> Made<'b> {
    let signature = Signature::of(
        base,
        params(block_len, WeakKind::Crc32cPadded, StrongKind::Sha256Padded),
    );
    let is_known = |block: u64, shift: u8| known >> (shift + (block % 3) as u8) & 1 == 0;
    let all = CrcList::of(new, CrcKind::Crc32c, block_len, LastBlock::ZeroPadded);
    let mut all = all;
    let mut crcs = CrcList::new(all.layout());
    for block in 0..all.layout().blocks() {
        let crc = all.crc(block).filter(|_| is_known(block, 0));
        // A wrong CRC costs time, and nothing else.
        crcs.push(crc.map(|crc| crc ^ u64::from(known & 0x80 != 0)));
    }
    let hasher = StrongHasher::for_blocks(StrongKind::Sha256Padded, 0, block_len as usize);
    let mut strong = SumList::new(SumLayout {
        kind: SumKind::Sha256,
        sum_len_bytes: 32,
        block_len_bytes: block_len,
        content_len_bytes: new.len() as u64,
        last: LastBlock::ZeroPadded,
    });
    for (block, bytes) in (0..).zip(new.chunks(block_len as usize)) {
        strong.push(is_known(block, 3).then_some(&hasher.of(bytes)[..]));
    }
    let known = Known {
        crcs: Some(CrcSums(crcs)),
        strong: (known & 0x40 == 0).then_some(strong),
    };
    let len = new.len() as u64;
    let Ok((made, stats)) = find_sky(&signature, known, new, len, Made::new(base, new.len())) else {
        unreachable!()
    };
    assert_eq!(stats.read_bytes + stats.unread_bytes, len);
    made
}

/// With checksums of blocks that are made of leaves at both ends, and the digest of all leaves.
fn sky_of_leaves<'b>(base: &'b [u8], new: &[u8], block_len: u32, piece_len: usize, known: u8) -> Made<'b> {
    let kind = LeafKind::ALL[usize::from(known) % 3];
    let params = SignatureParams {
        strong_len_bytes: 6 + known % 27,
        ..params(
            block_len.next_multiple_of(LEAF_LEN_BYTES),
            WeakKind::Crc32c,
            StrongKind::Tree(kind),
        )
    };
    // The server's signature follows from its leaves, and is the one that its bytes have.
    let len = base.len() as u64;
    let mut blocks = LeafBlocks::new(&params, len).expect("a tree kind");
    let mut writer = SignatureWriter::new(Vec::new(), params, len).expect("possible lengths");
    for leaf in base.chunks(LEAF_LEN_BYTES as usize) {
        let crc = CrcKind::Crc32c.of(leaf) as u32;
        if let Some(block) = blocks.push(Some(crc), Some(&kind.leaf(leaf))) {
            let (weak, strong) = block.weak.zip(block.strong).expect("all leaves are known");
            writer.push_sums(weak, &strong).expect("there is such a block");
        }
    }
    let from_leaves = writer.finish().expect("all blocks came");
    let mut writer = SignatureWriter::new(Vec::new(), params, len).expect("possible lengths");
    writer.push(base).expect("memory");
    assert_eq!(
        writer.finish().expect("all came"),
        from_leaves,
        "leaves make another signature"
    );
    let signature = Signature::read(&from_leaves[..], u64::MAX).expect("ours");

    // The client's checksums and digest; of zeros without their bytes.
    let len = new.len() as u64;
    let mut sums = TreeSums::new(&params, len).expect("a tree kind and CRCs");
    let (mut of_leaves, mut of_bytes) = (LeafDigest::new(kind, len), LeafDigest::new(kind, len));
    for (number, leaf) in new.chunks(LEAF_LEN_BYTES as usize).enumerate() {
        of_leaves.push_leaf(&kind.leaf(leaf));
        let is_known = known >> (number % 8) & 1 == 0;
        match leaf.iter().all(|byte| *byte == 0) {
            true => sums.push_zeros(1),
            false => {
                let crc = CrcKind::Crc32c.of(leaf) as u32;
                sums.push(Some(crc), is_known.then(|| kind.leaf(leaf)).as_ref());
            }
        }
    }
    for piece in new.chunks(piece_len) {
        match piece.iter().all(|byte| *byte == 0) {
            true => of_bytes.push_zeros(piece.len() as u64),
            false => of_bytes.push(piece),
        }
    }
    let digest = of_leaves.finish();
    assert!(
        digest.is_some() && digest == of_bytes.finish(),
        "leaves make another digest"
    );
    let Ok((made, _)) = find_sky(&signature, sums.finish(), new, len, Made::new(base, new.len())) else {
        unreachable!()
    };
    made
}

fn seeds() -> Vec<Vec<u8>> {
    (0..7)
        .flat_map(|finder| contents::seeds(&[finder, 2 + finder % 3, 3, 0, finder * 9]))
        .collect()
}

/// What takes most memory, of each finder.
fn costly() -> Vec<Vec<u8>> {
    let longest = (0..7).map(|finder| contents::longest(&[finder, 0, 3, 0, 0]));
    longest.chain([blocks_for_the_server()]).collect()
}

/// Blocks of one byte, 65,536 in 51,368 runs, for the search on the server: with lists that had
/// room to spare, and what was found kept in memory, this took 9 MB.
fn blocks_for_the_server() -> Vec<u8> {
    let mut input = vec![2, 6, 3, 0, 54, 2, 0, 30, 0, 3, 3];
    input.extend([0xbf; 99]);
    input.extend([10, 60, 0, 0, 30, 0, 3, 3, 9, 255, 255, 255, 255, 250, 0, 5, 2, 0]);
    input
}
