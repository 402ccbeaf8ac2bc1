//! Contents made of pieces, against a naive comparison of the pieces.

use std::cell::RefCell;

use byteback_extents::ExtentSet;

use super::*;
use crate::find::FoundExtents;
use crate::find::edits::{compose, through_a_delta};
use crate::model::noise;

fn named(kind: NameKind, pieces: &[Vec<u8>]) -> NamedChunks {
    let mut list = NamedChunks::new(kind);
    for piece in pieces {
        let name = blake3::hash(piece);
        let name: Vec<u8> = name.as_bytes().iter().copied().cycle().take(kind.len_bytes()).collect();
        assert!(list.push(piece.len() as u64, &name));
    }
    list
}

/// A content that records the ranges read.
struct Watched<'a>(&'a [u8], RefCell<ExtentSet>);

impl Base for Watched<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if let Some(range) = ByteRange::from_offset_len(offset, buffer.len() as u64) {
            self.1.borrow_mut().insert(range);
        }
        self.0.read_range(offset, buffer)
    }
}

/// Pieces of a few kinds, many of them alike, and three kinds of each length; now and then a long
/// one.
fn drawn(draw: &mut impl FnMut(usize) -> usize) -> Vec<Vec<u8>> {
    let kinds = 1 + draw(40);
    let count = draw(60);
    let each = (0..count).map(|_| {
        let kind = draw(kinds);
        let len = 20 + kind / 3 * 37 + if kind == 39 { 2 * READ_LEN as usize } else { 0 };
        noise(kind as u64, len)
    });
    each.collect()
}

#[test]
fn named_search_takes_all_pieces_of_the_base_and_reads_only_new() {
    let first = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    let count = if std::env::var("BYTEBACK_SEED").is_ok() { 1 } else { 500 };
    for seed in first..first + count {
        println!("BYTEBACK_SEED={seed}");
        let mut numbers = noise(seed, 4000).into_iter();
        let mut draw = |below: usize| numbers.next().map_or(0, |byte| usize::from(byte) % below);
        let (base_pieces, new_pieces) = (drawn(&mut draw), drawn(&mut draw));
        let kind = [NameKind::Sha256, NameKind::Sha512, NameKind::Blake3][draw(3)];
        let base_kind = if draw(5) == 0 { NameKind::Blake2b256 } else { kind };
        let (base, new) = (base_pieces.concat(), new_pieces.concat());
        let (base_list, new_list) = (named(base_kind, &base_pieces), named(kind, &new_pieces));
        let lens: Vec<u64> = new_pieces.iter().map(|piece| piece.len() as u64).collect();
        assert_eq!(new_list.lens().collect::<Vec<_>>(), lens);
        // Naively: pieces of the new content that the base does not have.
        let (mut wanted, mut offset) = (ExtentSet::new(), 0);
        for piece in &new_pieces {
            if base_kind != kind || !base_pieces.contains(piece) {
                wanted.insert(ByteRange::from_offset_len(offset, piece.len() as u64).unwrap());
            }
            offset += piece.len() as u64;
        }
        let watched = Watched(&new, RefCell::default());
        let (found, stats) = find_named(&base_list, &new_list, &watched, FoundExtents::default()).unwrap();
        assert!(compose(&base, &found.extents) == new, "another content");
        assert_eq!(*watched.1.borrow(), wanted, "other bytes were read");
        let literal = wanted.iter().map(ByteRange::len_bytes).sum::<u64>();
        assert_eq!((stats.literal_bytes, stats.read_bytes), (literal, literal));
        assert_eq!(
            (stats.copied_bytes, stats.unread_bytes),
            (new.len() as u64 - literal, new.len() as u64 - literal)
        );
        through_a_delta(&base, &new, |sink| {
            find_named(&base_list, &new_list, &new[..], sink).unwrap();
        });
    }
}

/// Of pieces that the base has several times, those that make few copies are taken.
#[test]
fn repeated_pieces_make_long_copies() {
    let [a, b, c] = [1, 2, 3].map(|kind| noise(kind, 100 + kind as usize));
    let base = [a.clone(), b.clone(), a.clone(), c.clone(), a.clone()];
    let new = [c, a.clone(), a.clone(), b, a.clone()];
    let list = |pieces| named(NameKind::Sha256, pieces);
    let content = new.concat();
    let (found, _) = find_named(&list(&base), &list(&new), &content[..], FoundExtents::default()).unwrap();
    assert!(compose(&base.concat(), &found.extents) == content);
    // c a; a b, which is the base's beginning; and a, which stayed in place, so that a delta leaves
    // it out.
    let from: Vec<_> = found.extents.iter().map(|(_, source)| source.clone()).collect();
    let of = |base_offset| crate::source::Source::Copy { base_offset };
    assert_eq!(from, [of(304), of(0), of(407)], "{found:?}");
    // A chunk that stays in place is taken from there.
    let (found, _) = find_named(&list(&base), &list(&base), &base.concat()[..], FoundExtents::default()).unwrap();
    assert_eq!(found.extents.len(), 1);
}

/// Names crafted to fall into the same slots: less is found, and nothing is wrong.
#[test]
fn crafted_names_cost_bytes_only() {
    let pieces: Vec<Vec<u8>> = (0..1000).map(|kind| noise(kind, 50)).collect();
    let mut list = NamedChunks::new(NameKind::Sha256);
    for piece in &pieces {
        let mut name = *blake3::hash(piece).as_bytes();
        name[..8].fill(7);
        assert!(list.push(50, &name));
    }
    let content = pieces.concat();
    let shifted = {
        let mut list = list.clone();
        list.ends.remove(0);
        list.names.drain(..32);
        list.ends.iter_mut().for_each(|end| *end -= 50);
        list
    };
    let (found, stats) = find_named(&list, &shifted, &content[50..], FoundExtents::default()).unwrap();
    assert!(compose(&content, &found.extents) == content[50..]);
    // After a match, the next piece is known without a lookup.
    assert_eq!(stats.copied_bytes, 999 * 50);
}

#[test]
fn lists_that_do_not_fit_are_refused() {
    let pieces = [noise(1, 10), noise(2, 20)];
    let list = named(NameKind::Sha512Of256, &pieces);
    for len in [0, 29, 31] {
        let content = noise(1, len);
        let done = find_named(&list, &list, &content[..], FoundExtents::default());
        let reported = (len as u64, 30);
        assert!(
            matches!(done, Err(NamedError::OtherLength { len_bytes, listed_bytes }) if (len_bytes, listed_bytes) == reported)
        );
    }
    let mut list = list;
    assert!(!list.push(0, &[0; 32]) && !list.push(1, &[0; 31]) && !list.push(u64::MAX - 29, &[0; 32]));
    assert_eq!(list.content_len_bytes(), 30);
    // Empty lists are lists, too.
    let empty = NamedChunks::new(NameKind::Sha256);
    let (found, _) = find_named(&list, &empty, &[][..], FoundExtents::default()).unwrap();
    assert!(found.extents.is_empty());
}

/// A content that cannot be read gives an error.
#[test]
fn a_content_that_fails_ends_the_finding() {
    struct Failing;
    impl Base for Failing {
        fn len_bytes(&self) -> io::Result<u64> {
            Ok(10)
        }
        fn read_range(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
    let new = named(NameKind::Sha256, &[noise(1, 10)]);
    let done = find_named(
        &NamedChunks::new(NameKind::Sha256),
        &new,
        &Failing,
        FoundExtents::default(),
    );
    assert!(matches!(done, Err(NamedError::Read { offset: 0, .. })));
}
