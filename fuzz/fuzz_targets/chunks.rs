//! dsync's exchange: a list of chunks from anybody, and an answer to a list from anybody.
#![no_main]

use byteback_delta::Source;
use byteback_delta::chunks::{ChunkList, ChunkLister, ChunkParams, MatchAnswer, MatchParams, list_chunks};
use byteback_delta::crc::CrcKind;
use byteback_delta::find::{ChunkFinder, FoundExtents, match_chunks, prove_matches};

byteback_fuzz::target!(check, seeds);

const CHUNKS_MAX: u64 = 1 << 16;

fn check(data: &[u8]) {
    let Some((which, stream)) = data.split_first() else {
        return;
    };
    match which % 2 {
        0 => list(stream),
        _ => answer(stream),
    }
}

/// The server's side: it is read, and chunks of the base are paired with it.
fn list(stream: &[u8]) {
    let Ok(list) = ChunkList::read(stream, CHUNKS_MAX) else {
        return;
    };
    let mut again = Vec::new();
    list.write_to(&mut again).expect("memory");
    assert_eq!(
        ChunkList::read(&again[..], CHUNKS_MAX).as_ref().ok(),
        Some(&list),
        "another list comes back"
    );
    let Ok((of_base, _)) = list_chunks(stream, None, list.params(), list.kind()) else {
        return;
    };
    let runs = match_chunks(&list, &of_base);
    let (answer, read_bytes) = prove_matches(&list, &runs, stream, MatchParams::new(1)).expect("the base is in memory");
    assert!(
        read_bytes <= 4 * stream.len() as u64,
        "a list made the server read its base again and again"
    );
    let mut bytes = Vec::new();
    answer.write_to(&list, &mut bytes).expect("memory");
    assert_eq!(
        MatchAnswer::read(&bytes[..], &list).ok(),
        Some(answer),
        "another answer comes back"
    );
}

/// The client's side: whatever the answer says, every byte is told once, and what is a literal is
/// that.
fn answer(stream: &[u8]) {
    let content = content();
    let list = list_of(&content);
    let Ok(answer) = MatchAnswer::read(stream, &list) else {
        return;
    };
    let mut again = Vec::new();
    answer.write_to(&list, &mut again).expect("memory");
    assert_eq!(
        MatchAnswer::read(&again[..], &list).as_ref().ok(),
        Some(&answer),
        "another answer comes back"
    );
    let mut finder = ChunkFinder::new(&list, &answer, FoundExtents::default());
    for piece in content.chunks(777) {
        let Ok(()) = finder.push(piece);
    }
    let Ok((found, _)) = finder.finish();
    let mut end = 0;
    for (range, source) in &found.extents {
        assert_eq!(range.start(), end);
        end = range.end();
        match source {
            Source::Literal(bytes) => assert_eq!(bytes[..], content[range.start() as usize..range.end() as usize]),
            Source::Copy { base_offset } => assert!(base_offset + range.len_bytes() <= answer.base_len_bytes()),
            Source::Zero => panic!("nobody spoke of a hole"),
        }
    }
    assert_eq!(end, content.len() as u64);
}

fn content() -> Vec<u8> {
    (0..6000_u32).map(|at| (at.wrapping_mul(at) >> 5) as u8).collect()
}

fn list_of(content: &[u8]) -> ChunkList {
    let params = ChunkParams::new(64, 256, 512).expect("lengths of chunks");
    let mut lister = ChunkLister::new(params, CrcKind::Crc32c);
    lister.push(content);
    lister.finish().0
}

fn seeds() -> Vec<Vec<u8>> {
    let content = content();
    let list = list_of(&content);
    let mut lists = vec![0];
    list.write_to(&mut lists).expect("memory");
    let mut with_gaps = ChunkLister::new(list.params(), CrcKind::Crc64Nvme);
    with_gaps.push(&content[..1000]);
    with_gaps.skip(5000);
    with_gaps.push(&content[..500]);
    let mut gaps = vec![0];
    with_gaps.finish().0.write_to(&mut gaps).expect("memory");
    let mut seeds = vec![lists, gaps];
    let mut base = content[1500..].to_vec();
    base.extend_from_slice(&content[..1500]);
    let runs = match_chunks(&list, &list_of(&base));
    for params in [MatchParams::new(3), MatchParams::for_whole_proof(3)] {
        let mut answer = vec![1];
        let (proven, _) = prove_matches(&list, &runs, &base[..], params).expect("the base is in memory");
        proven.write_to(&list, &mut answer).expect("memory");
        seeds.push(answer);
    }
    seeds
}
