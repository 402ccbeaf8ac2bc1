//! Sums of groups from a client, and the answer of a server to them.
#![no_main]

use byteback_delta::find::{FoundExtents, find_gathered};
use byteback_delta::groups::{EqualGroups, GroupAnswer, ListedGroups};
use byteback_delta::leaves::{LeafDigest, LeafKind, TreeSums};
use byteback_delta::signature::SignatureWriter;

byteback_fuzz::target!(check, seeds);

const GROUPS_MAX: u64 = 64;
const BLOCKS_MAX: u64 = 1 << 14;

fn check(data: &[u8]) {
    if let Ok(list) = ListedGroups::read(data, GROUPS_MAX) {
        let mut again = Vec::new();
        list.write(&mut again).expect("memory");
        assert!(data.starts_with(&again), "another list comes back");
    }
    // About which content it is, a client knows; here it may say so itself.
    let field = |at: usize| Some(u64::from_le_bytes(data.get(at..at + 8)?.try_into().ok()?));
    let (Some(&kind), Some(new_len)) = (data.get(10), field(12)) else {
        return;
    };
    let Some(kind) = LeafKind::from_code(kind).filter(|_| new_len <= GROUPS_MAX << 20) else {
        return;
    };
    let Ok(answer) = GroupAnswer::read(data, kind, new_len, BLOCKS_MAX) else {
        return;
    };
    let (base_len, equal_len) = (answer.base_len_bytes(), answer.gathering().equal_len_bytes());
    assert!(equal_len <= base_len.min(new_len));
    assert_eq!(answer.left_len_bytes() + equal_len, new_len);
    if new_len > 3 << 20 {
        return;
    }
    // A client that believes it tells every byte once, in order.
    let new = vec![1; new_len as usize];
    let known = TreeSums::new(answer.signature().params(), answer.left_len_bytes()).expect("the kinds were checked");
    let (found, stats) =
        find_gathered(&answer, known.finish(), &new[..], FoundExtents::default()).expect("memory can be read");
    assert_eq!(stats.copied_bytes + stats.literal_bytes + stats.zero_bytes, new_len);
    let mut end = 0;
    for (range, source) in &found.extents {
        assert_eq!(range.start(), end);
        end = range.end();
        if let byteback_delta::Source::Copy { base_offset } = source {
            assert!(base_offset + range.len_bytes() <= base_len);
        }
    }
    assert_eq!(end, new_len);
}

fn seeds() -> Vec<Vec<u8>> {
    let contents = [vec![], vec![1; 5000], vec![1; (2 << 20) + 9]];
    let mut seeds = Vec::new();
    for (number, content) in (0..).zip(contents) {
        let len = content.len() as u64;
        let kind = LeafKind::ALL[number % 3];
        let mut digest = LeafDigest::with_groups(kind, len);
        digest.push(&content);
        let (_, list) = digest.finish_with_groups().expect("all of it came");
        let mut stream = Vec::new();
        list.write(&mut stream).expect("memory");
        seeds.push(stream);
        let mut equal = EqualGroups::new(&list.listed(), len);
        equal.set(number as u64 % 2);
        let mut stream = Vec::new();
        equal.write(&mut stream).expect("memory");
        let left = equal.gathering().left_len_bytes(len);
        let mut writer = SignatureWriter::new(stream, equal.params(1), left).expect("memory");
        writer.push_zeros(left).expect("memory");
        seeds.push(writer.finish().expect("memory"));
    }
    seeds
}
