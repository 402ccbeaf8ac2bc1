//! A signature from anybody: read, written again, and searched for in a content, whatever it
//! claims.
#![no_main]

use byteback_delta::Source;
use byteback_delta::find::{BlockIndex, FixedFinder, FoundExtents, ReverseFinder, RollingFinder};
use byteback_delta::leaves::LeafKind;
use byteback_delta::matches::MatchList;
use byteback_delta::signature::{Signature, SignatureParams, SignatureWriter};
use byteback_delta::strong::StrongKind;
use byteback_delta::weak::WeakKind;

byteback_fuzz::target!(check, seeds);

const BLOCKS_MAX: u64 = 1 << 16;

fn check(data: &[u8]) {
    let Ok(signature) = Signature::read(data, BLOCKS_MAX) else {
        return;
    };
    let stream = written_again(&signature);
    assert!(data.starts_with(&stream), "another signature comes back");
    assert_eq!(
        signature.params().stream_len_bytes(signature.content_len_bytes()),
        stream.len() as u64
    );
    let index = BlockIndex::new(signature);
    // What it claims to be in the base cannot be judged here; that every byte is told exactly once
    // can.
    let mut rolling = RollingFinder::new(&index, FoundExtents::default());
    let mut fixed = FixedFinder::new(&index, FoundExtents::default());
    for piece in data.chunks(100) {
        let Ok(()) = rolling.push(piece);
        let Ok(()) = fixed.push(piece);
    }
    let Ok((found, _)) = rolling.finish();
    tells_all(data, &found);
    let Ok((found, _)) = fixed.finish();
    tells_all(data, &found);
    // As the server searches for it.
    let mut reverse = ReverseFinder::new(&index);
    reverse.push(data);
    let (list, _) = reverse.finish();
    let mut stream = Vec::new();
    list.write(&mut stream).expect("memory");
    let signature = index.signature();
    let again = MatchList::read(
        &stream[..],
        signature.content_len_bytes(),
        signature.params().block_len_bytes,
    );
    assert_eq!(again.ok(), Some(list), "other matches come back");
}

fn written_again(signature: &Signature) -> Vec<u8> {
    let params = *signature.params();
    let mut writer = SignatureWriter::new(Vec::new(), params, signature.content_len_bytes()).expect("it was read");
    for block in 0..signature.blocks() {
        let strong = signature.strong(block).expect("there is such a block");
        writer.push_sums(signature.weak()[block], strong).expect("memory");
    }
    writer.finish().expect("all blocks came")
}

fn tells_all(content: &[u8], found: &FoundExtents) {
    let mut end = 0;
    for (range, source) in &found.extents {
        assert_eq!(range.start(), end);
        end = range.end();
        if let Source::Literal(bytes) = source {
            assert_eq!(bytes[..], content[range.start() as usize..range.end() as usize]);
        }
    }
    assert_eq!(end, content.len() as u64);
}

fn seeds() -> Vec<Vec<u8>> {
    let content: Vec<u8> = (0..5000_u32).map(|at| ((at * at) >> 5) as u8).collect();
    let kinds = [
        (WeakKind::Rsync, StrongKind::Blake3, 700, 6),
        (WeakKind::Crc32c, StrongKind::Sha256, 64, 32),
        (WeakKind::Crc32cPadded, StrongKind::Blake2b256Padded, 4096, 20),
        (WeakKind::Crc32c, StrongKind::Tree(LeafKind::Sha256), 4096, 8),
    ];
    let seed = |(weak, strong, block_len_bytes, strong_len_bytes)| {
        let params = SignatureParams {
            block_len_bytes,
            weak,
            strong,
            strong_len_bytes,
            seed: 1,
        };
        written_again(&Signature::of(&content, params))
    };
    kinds
        .map(seed)
        .into_iter()
        .chain([written_again(&Signature::of(&[], SignatureParams::for_content(0, 0)))])
        .collect()
}
