//! Helpers for the tests of all finders: contents, random edits of them, and the reassembly of
//! found extents.

use byteback_extents::ByteRange;
use proptest::prelude::*;

use super::IntoDelta;
use crate::apply::apply_to_new;
use crate::model::noise;
use crate::read::DeltaReader;
use crate::signature::SignatureParams;
use crate::source::Source;
use crate::strong::StrongKind;
use crate::weak::WeakKind;
use crate::write::{DeltaWriter, WriterOptions};

/// An extent as [`super::FoundExtents`] keeps it.
pub(crate) type Found = (ByteRange, Source<Vec<u8>>);

/// A content in pieces: bytes, or a hole.
pub(crate) enum Part<'a> {
    Bytes(&'a [u8]),
    Hole(u64),
}

/// A piece of a content by its range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) is_hole: bool,
    pub(crate) range: ByteRange,
}

impl Place {
    pub(crate) fn of(self, content: &[u8]) -> Part<'_> {
        match self.is_hole {
            true => Part::Hole(self.range.len_bytes()),
            false => Part::Bytes(&content[self.range.start() as usize..self.range.end() as usize]),
        }
    }
}

/// A content of pieces of these lengths, with zeros in the holes, and the places of the pieces.
pub(crate) fn content_with_holes(seed: u64, lens: &[(bool, u64)]) -> (Vec<u8>, Vec<Place>) {
    let (mut content, mut places) = (Vec::new(), Vec::new());
    for (index, &(is_hole, len)) in lens.iter().enumerate() {
        let Some(range) = ByteRange::from_offset_len(content.len() as u64, len) else {
            continue;
        };
        places.push(Place { is_hole, range });
        match is_hole {
            true => content.resize(content.len() + len as usize, 0),
            false => content.extend(noise(seed ^ index as u64, len as usize)),
        }
    }
    (content, places)
}

/// The new content made from a base and the found extents; checks that nothing is left out.
pub(crate) fn compose(base: &[u8], extents: &[Found]) -> Vec<u8> {
    let mut new = Vec::new();
    for (range, source) in extents {
        assert_eq!(range.start(), new.len() as u64, "without gaps");
        match source {
            Source::Literal(bytes) => {
                assert_eq!(bytes.len() as u64, range.len_bytes());
                new.extend_from_slice(bytes);
            }
            Source::Copy { base_offset } => {
                new.extend_from_slice(&base[*base_offset as usize..][..range.len_bytes() as usize]);
            }
            Source::Zero => new.resize(range.end() as usize, 0),
        }
    }
    new
}

/// A change of a content; places are taken modulo its length.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    Insert(usize, Vec<u8>),
    Delete(usize, usize),
    Overwrite(usize, Vec<u8>),
    Move(usize, usize, usize),
    Duplicate(usize, usize, usize),
    Zeros(usize, usize),
}

fn apply_edit(content: &mut Vec<u8>, edit: &Edit) {
    let at = |offset: usize, len: usize| if len == 0 { 0 } else { offset % (len + 1) };
    let cut = |content: &[u8], from: usize, len: usize| {
        let from = at(from, content.len());
        from..(from + len).min(content.len())
    };
    match edit {
        Edit::Insert(offset, bytes) => {
            let offset = at(*offset, content.len());
            content.splice(offset..offset, bytes.iter().copied());
        }
        Edit::Delete(from, len) => {
            let range = cut(content, *from, *len);
            content.drain(range);
        }
        Edit::Overwrite(from, bytes) => {
            let range = cut(content, *from, bytes.len());
            let len = range.len();
            content[range].copy_from_slice(&bytes[..len]);
        }
        Edit::Move(from, len, to) => {
            let range = cut(content, *from, *len);
            let moved: Vec<u8> = content.drain(range).collect();
            let to = at(*to, content.len());
            content.splice(to..to, moved);
        }
        Edit::Duplicate(from, len, to) => {
            let range = cut(content, *from, *len);
            let copied = content[range].to_vec();
            let to = at(*to, content.len());
            content.splice(to..to, copied);
        }
        Edit::Zeros(from, len) => {
            let range = cut(content, *from, *len);
            content[range].fill(0);
        }
    }
}

/// A content with these changes, one after the other.
pub(crate) fn edited(base: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut new = base.to_vec();
    edits.iter().for_each(|edit| apply_edit(&mut new, edit));
    new
}

/// Lets `find` pass a new content to the writer of a delta, and checks that base and delta make
/// that content.
pub(crate) fn through_a_delta(base: &[u8], new: &[u8], find: impl FnOnce(IntoDelta<'_, Vec<u8>>)) {
    let options = WriterOptions {
        copies: true,
        ..WriterOptions::default()
    };
    let mut writer = DeltaWriter::new(Vec::new(), base.len() as u64, new.len() as u64, options).unwrap();
    find(IntoDelta(&mut writer));
    let (stream, _) = writer.finish().unwrap();
    let mut target = Vec::new();
    apply_to_new(base, &mut DeltaReader::new(&stream[..]).unwrap(), &mut target).unwrap();
    assert!(target == new, "base and delta do not make the content");
}

/// Parameters for a signature of blocks of this length, with rsync's weak checksums.
pub(crate) fn params(block_len: u32) -> SignatureParams {
    SignatureParams {
        block_len_bytes: block_len,
        weak: WeakKind::Rsync,
        strong: StrongKind::Blake3,
        strong_len_bytes: 16,
        seed: 42,
    }
}

pub(crate) fn edit() -> impl Strategy<Value = Edit> {
    let at = || 0..20_000_usize;
    let bytes = || prop::collection::vec(any::<u8>(), 0..300);
    prop_oneof![
        (at(), bytes()).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        (at(), 0..2000_usize).prop_map(|(at, len)| Edit::Delete(at, len)),
        (at(), bytes()).prop_map(|(at, bytes)| Edit::Overwrite(at, bytes)),
        (at(), 0..4000_usize, at()).prop_map(|(from, len, to)| Edit::Move(from, len, to)),
        (at(), 0..4000_usize, at()).prop_map(|(from, len, to)| Edit::Duplicate(from, len, to)),
        (at(), 0..4000_usize).prop_map(|(from, len)| Edit::Zeros(from, len)),
    ]
}

/// Contents of different kinds: noise, few values, one value, a short period.
pub(crate) fn base() -> impl Strategy<Value = Vec<u8>> {
    let len = prop_oneof![0..10_usize, 60..70_usize, 120..140_usize, 0..20_000_usize];
    (any::<u64>(), len, 0..4_u8).prop_map(|(seed, len, kind)| match kind {
        0 => noise(seed, len),
        1 => noise(seed, len).iter().map(|byte| byte & 1).collect(),
        2 => vec![seed as u8 & 1; len],
        _ => noise(seed, 7).into_iter().cycle().take(len).collect(),
    })
}
