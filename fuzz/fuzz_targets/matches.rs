//! The list of matches that a search on the server answers.
#![no_main]

use byteback_delta::find::{BlockIndex, FoundExtents, MatchedContent, ReverseFinder};
use byteback_delta::matches::MatchList;
use byteback_delta::signature::{Signature, SignatureParams};

byteback_fuzz::target!(check, seeds);

fn check(data: &[u8]) {
    // Of which content it is, a client knows; here it may say so itself.
    let number = |at: usize, len: usize| {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(data.get(at..at + len)?);
        Some(u64::from_le_bytes(bytes))
    };
    let (Some(block_len), Some(new_len)) = (number(12, 4), number(16, 8)) else {
        return;
    };
    let Ok(list) = MatchList::read(data, new_len, block_len as u32) else {
        return;
    };
    let mut again = Vec::new();
    list.write(&mut again).expect("memory");
    assert_eq!(
        MatchList::read(&again[..], new_len, block_len as u32).as_ref().ok(),
        Some(&list),
        "another list comes back"
    );
    let mut end = 0;
    for run in list.runs() {
        assert!(end <= run.range.start() && run.range.end() <= new_len);
        assert!(run.base_offset + run.range.len_bytes() <= list.base_len_bytes());
        end = run.range.end();
    }
    if new_len > 1 << 16 {
        return;
    }
    // A client that believes it sends what is missing, and nothing twice.
    let mut content = MatchedContent::new(&list, FoundExtents::default());
    for range in list.missing() {
        let bytes = vec![1; range.len_bytes() as usize];
        content.push(range.start(), &bytes).expect("it was missing");
    }
    let (found, stats) = content.finish().expect("all of it came");
    assert_eq!(stats.copied_bytes + stats.literal_bytes, new_len);
    let mut end = 0;
    for (range, _) in &found.extents {
        assert_eq!(range.start(), end);
        end = range.end();
    }
    assert_eq!(end, new_len);
}

fn seeds() -> Vec<Vec<u8>> {
    let base: Vec<u8> = (0..9000_u32).map(|at| ((at * at) >> 5) as u8).collect();
    let mut new = base.clone();
    new.drain(100..130);
    new.extend_from_slice(&base[..2000]);
    [64, 700]
        .map(|block_len| {
            let params = SignatureParams::with_block_len(new.len() as u64, block_len, 1);
            let index = BlockIndex::new(Signature::of(&new, params));
            let mut finder = ReverseFinder::new(&index);
            finder.push(&base);
            let mut stream = Vec::new();
            finder.finish().0.write(&mut stream).expect("memory");
            stream
        })
        .into()
}
