//! The streams against every kind of damage, and the mapping between contents and their rests
//! against a naive one.

use proptest::prelude::*;

use super::*;
use crate::leaves::{LEAF_LEN_BYTES, LeafDigest};
use crate::model::noise;
use crate::signature::{SignatureParams, SignatureWriter};
use byteback_extents::ByteRange;

const MIB: u64 = 1 << 20;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn list(kind: LeafKind, content: &[u8]) -> GroupList {
    let mut digest = LeafDigest::with_groups(kind, content.len() as u64);
    digest.push(content);
    digest.finish_with_groups().unwrap().1
}

/// The answer of the end with the base, computed from the bytes.
fn answer(list: &GroupList, base: &[u8]) -> Vec<u8> {
    let list = list.listed();
    let mut equal = EqualGroups::new(&list, base.len() as u64);
    let mut left = Vec::new();
    for (group, bytes) in (0..).zip(base.chunks(MIB as usize)) {
        let mut of_base = LeafDigest::with_groups(list.kind(), bytes.len() as u64);
        of_base.push(bytes);
        let sum = of_base.finish_with_groups().unwrap().1.sums()[0];
        match list.is_equal(group, &sum, base.len() as u64) {
            true => equal.set(group),
            false => left.extend_from_slice(bytes),
        }
    }
    let mut stream = Vec::new();
    equal.write(&mut stream).unwrap();
    assert_eq!(stream.len() as u64, equal.stream_len_bytes());
    let mut writer = SignatureWriter::new(stream, equal.params(77), left.len() as u64).unwrap();
    writer.push(&left).unwrap();
    writer.finish().unwrap()
}

fn stream(list: &GroupList) -> Vec<u8> {
    let mut stream = Vec::new();
    list.write(&mut stream).unwrap();
    assert_eq!(stream.len() as u64, list.stream_len_bytes());
    stream
}

#[test]
fn golden_bytes_of_version_1() {
    let list = list(LeafKind::Sha256, b"byteback");
    assert_eq!(
        hex(&stream(&list)),
        "8942424752500d0a010006000800000000000000e70fc364\
         9232e106ea54c9602865df5d2c55f009701b644d"
    );
    let same = answer(&list, b"byteback");
    assert_eq!(
        hex(&same[..37]),
        "8942424752410d0a01000600080000000000000008000000000000008033e69f018d55a9b6"
    );
    assert_eq!(same.len(), 32 + 1 + 4 + 40);
}

#[test]
fn a_list_comes_back_and_is_of_the_content() {
    for len in [0, 1, 4096, MIB - 1, MIB, MIB + 1, 3 * MIB + 5000] {
        let content = noise(len, len as usize);
        for kind in LeafKind::ALL {
            let list = list(kind, &content);
            assert_eq!(list.sums().len() as u64, group_count(len));
            assert_eq!(ListedGroups::read(&stream(&list)[..], 4).unwrap(), list.listed());
            // The digest is made of the same sums.
            let mut by_groups = LeafDigest::new(kind, len);
            list.sums().iter().for_each(|sum| by_groups.push_group(sum));
            let mut by_bytes = LeafDigest::new(kind, len);
            by_bytes.push(&content);
            assert_eq!(by_groups.finish(), by_bytes.finish());
        }
    }
    // More than one part of sums.
    let mut long = GroupList::new(LeafKind::Blake3, 2500 * MIB - 7);
    (0..2600_u32).for_each(|n| long.push(blake3::hash(&n.to_le_bytes()).as_bytes()));
    assert_eq!(long.sums().len(), 2500);
    assert_eq!(ListedGroups::read(&stream(&long)[..], 2500).unwrap(), long.listed());
    // The same for zeros, however they arrive.
    let mut zeros = LeafDigest::with_groups(LeafKind::Blake3, 3 * MIB + 1);
    zeros.push_zeros(3 * MIB + 1);
    assert_eq!(
        zeros.finish_with_groups().unwrap().1,
        list(LeafKind::Blake3, &vec![0; 3 * MIB as usize + 1])
    );
}

#[test]
fn every_flipped_bit_and_every_truncation_of_a_list_is_noticed() {
    let list = list(LeafKind::Blake3, &noise(1, 2 * MIB as usize + 1));
    let whole = stream(&list);
    for at in 0..whole.len() {
        let cut = ListedGroups::read(&whole[..at], 8);
        assert!(matches!(cut, Err(GroupsError::Truncated)), "{at}");
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            assert!(ListedGroups::read(&damaged[..], 8).is_err(), "{at} {bit}");
        }
    }
}

#[test]
fn lists_that_cannot_be_are_refused_before_anything_is_reserved() {
    let made = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = stream(&list(LeafKind::Blake3, b"some bytes"));
        change(&mut bytes);
        let crc = crc32c::crc32c(&bytes[..20]);
        bytes[20..24].copy_from_slice(&crc.to_le_bytes());
        ListedGroups::read(&bytes[..], 100).unwrap_err()
    };
    let len = |len: u64| move |bytes: &mut Vec<u8>| bytes[12..20].copy_from_slice(&len.to_le_bytes());
    assert!(matches!(made(&len(u64::MAX)), GroupsError::Impossible(_)));
    let too_many = made(&len(101 * MIB));
    assert!(matches!(too_many, GroupsError::TooMany { groups: 101, .. }));
    assert!(matches!(made(&len(100 * MIB)), GroupsError::Truncated));
    assert!(matches!(made(&|bytes| bytes[8] = 2), GroupsError::Version(2)));
    assert!(matches!(made(&|bytes| bytes[10] = 1), GroupsError::Kind(1)));
    assert!(matches!(made(&|bytes| bytes[11] = 1), GroupsError::Impossible(_)));
    assert!(matches!(made(&|bytes| bytes[0] = 1), GroupsError::NotGroups));
    // An incomplete list is not written either.
    let short = GroupList::new(LeafKind::Blake3, 1);
    assert_eq!(short.write(Vec::new()).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn group_answer_notices_every_flipped_bit_and_truncation() {
    let base = noise(1, 3 * MIB as usize + 10_000);
    let mut new = base.clone();
    new[2 * MIB as usize + 5] ^= 1;
    let list = list(LeafKind::Blake3, &new);
    let whole = answer(&list, &base);
    let read = |bytes: &[u8]| GroupAnswer::read(bytes, LeafKind::Blake3, new.len() as u64, 1 << 20);
    let reported = read(&whole).unwrap();
    assert_eq!(reported.gathering().equal_len_bytes(), 2 * MIB + 10_000);
    assert_eq!((reported.signature().blocks(), reported.left_len_bytes()), (256, MIB));
    for at in 0..whole.len() {
        assert!(read(&whole[..at]).is_err(), "{at}");
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(read(&damaged).is_err(), "{at}");
    }
}

#[test]
fn answers_that_cannot_be_are_refused() {
    let new = noise(1, 2 * MIB as usize + 10);
    let list = list(LeafKind::Blake3, &new);
    let base = [&noise(2, MIB as usize)[..], &noise(3, MIB as usize + 4000)].concat();
    let whole = answer(&list, &base);
    let read = |bytes: &[u8]| GroupAnswer::read(bytes, LeafKind::Blake3, new.len() as u64, 1 << 20).map(drop);
    read(&whole).unwrap();
    let made = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        let crc = crc32c::crc32c(&bytes[..28]);
        bytes[28..32].copy_from_slice(&crc.to_le_bytes());
        let bits_crc = part_crc(crc, 0, &bytes[32..33]);
        bytes[33..37].copy_from_slice(&bits_crc.to_le_bytes());
        read(&bytes).unwrap_err()
    };
    let is_impossible = |error| matches!(error, GroupsError::Impossible(_));
    // The signature covers more than the remaining rest.
    assert!(is_impossible(made(&|bytes| bytes[32] = 1)));
    // Groups of 10 bytes and of 4000.
    assert!(is_impossible(made(&|bytes| bytes[32] = 4)));
    assert!(is_impossible(made(&|bytes| bytes[32] = 8)));
    assert!(is_impossible(made(&|bytes| bytes[12] ^= 1)));
    assert!(is_impossible(made(&|bytes| bytes[27] = 0x80)));
    assert!(matches!(made(&|bytes| bytes[10] = 6), GroupsError::Kind(6)));
    assert!(matches!(made(&|bytes| bytes[9] = 1), GroupsError::Version(_)));
    // A signature of other parameters.
    for params in [
        SignatureParams::for_content(base.len() as u64, 1),
        SignatureParams::for_groups(LeafKind::Sha256, base.len() as u64, 0, 1),
        SignatureParams {
            block_len_bytes: 3 * LEAF_LEN_BYTES,
            ..SignatureParams::for_groups(LeafKind::Blake3, base.len() as u64, 0, 1)
        },
    ] {
        let mut writer = SignatureWriter::new(whole[..37].to_vec(), params, base.len() as u64).unwrap();
        writer.push(&base).unwrap();
        assert!(is_impossible(read(&writer.finish().unwrap()).unwrap_err()));
    }
    let too_many = GroupAnswer::read(&whole[..], LeafKind::Blake3, new.len() as u64, 512);
    assert!(matches!(too_many, Err(GroupsError::Signature(_))));
}

#[test]
fn blocks_grow_with_what_is_left_and_always_divide_a_group() {
    let of = |len| SignatureParams::for_groups(LeafKind::Blake3, len, len, 1).block_len_bytes;
    assert_eq!([of(0), of(100_000_000), of(1 << 28)], [4096; 3]);
    assert_eq!((of(1 << 30), of(1 << 34), of(1 << 37)), (8192, 32768, 131_072));
    assert_eq!(of(1 << 40), 1 << 20);
    for shift in 0..41 {
        let len = (1 << shift) + 12_345;
        assert!(MIB.is_multiple_of(u64::from(of(len))) && of(len) >= LEAF_LEN_BYTES);
        assert!(len > 1 << 40 || len.div_ceil(u64::from(of(len))) <= crate::signature::BLOCKS_MAX);
    }
    // Little of the new content is left: it was truncated.
    let of = |base, new| SignatureParams::for_groups(LeafKind::Blake3, base, new, 1).block_len_bytes;
    assert_eq!(
        (of(1 << 26, 1_000_000), of(1 << 36, 1_000_000), of(5 * MIB, 0)),
        (8192, 1 << 20, 1 << 20)
    );
    // The new content may be longer than the base.
    let few = SignatureParams::for_groups(LeafKind::Blake3, 4096, 1 << 40, 1);
    assert!(few.strong_len_bytes > SignatureParams::for_groups(LeafKind::Blake3, 4096, 4096, 1).strong_len_bytes);
}

/// The place in the content of each byte of the rest.
fn places(equal: &[ByteRange], len: u64) -> Vec<u64> {
    let is_left = |at: &u64| !equal.iter().any(|range| range.start() <= *at && *at < range.end());
    (0..len).filter(is_left).collect()
}

proptest! {
    #[test]
    fn gathering_maps_the_rest_to_its_original_offsets(cuts in prop::collection::btree_set(0..300_u64, 0..12), from in 0..300_u64, len in 1..200_u64) {
        let cuts: Vec<u64> = cuts.into_iter().collect();
        let equal: Vec<ByteRange> = cuts.as_chunks::<2>().0.iter().filter_map(|&[from, to]| ByteRange::new(from, to)).collect();
        let gathering = Gathering::without(equal.iter().copied());
        let places = places(&equal, 1000);
        prop_assert_eq!(gathering.left_len_bytes(1000), places.len() as u64);
        let range = ByteRange::from_offset_len(from, len).unwrap();
        let mut at = from as usize;
        for part in gathering.in_content(range) {
            for place in part.start()..part.end() {
                prop_assert_eq!(place, places[at]);
                at += 1;
            }
        }
        prop_assert_eq!(at as u64, range.end());
    }

    #[test]
    fn bytes_of_anybody_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for magic in [&b""[..], &LIST_MAGIC, &ANSWER_MAGIC] {
            let stream = [magic, &bytes].concat();
            let _ = ListedGroups::read(&stream[..], 10);
            let _ = GroupAnswer::read(&stream[..], LeafKind::Blake3, 10 * MIB, 10);
        }
    }
}

#[test]
fn neighbours_that_are_taken_out_are_one() {
    let range = |from, to| ByteRange::new(from, to).unwrap();
    let gathering = Gathering::without([range(0, 10), range(10, 20), range(30, 40)]);
    assert_eq!(gathering.equal(), [range(0, 20), range(30, 40)]);
    assert_eq!(gathering.equal_len_bytes(), 30);
    let all: Vec<ByteRange> = gathering.in_content(range(0, 15)).collect();
    assert_eq!(all, [range(20, 30), range(40, 45)]);
}
