//! The naive reference of the tests: contents are arrays of bytes, and a delta is the list of
//! operations applied to them.

use byteback_extents::{ByteRange, ExtentValue};
use proptest::prelude::*;

use crate::map::DeltaMap;
use crate::source::Source;

/// The largest content in random tests.
pub(crate) const LEN_MAX: u64 = 150;

/// A literal: the bytes of a pseudo-random stream from a position on. `continues` recognises two
/// literals that are adjacent in one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lit {
    pub(crate) stream: u8,
    pub(crate) at: u64,
}

impl Lit {
    pub(crate) fn byte(self, index: u64) -> u8 {
        let mut x = (self.at + index + (u64::from(self.stream) << 56)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= x >> 29;
        x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        // Never zero, so that a literal is never taken for a hole.
        (x >> 40) as u8 | 1
    }

    pub(crate) fn fill(self, buffer: &mut [u8]) {
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = self.byte(index as u64);
        }
    }
}

impl ExtentValue for Lit {
    fn advance(&self, by_bytes: u64) -> Self {
        Self {
            stream: self.stream,
            at: self.at + by_bytes,
        }
    }

    fn continues(&self, len_bytes: u64, next: &Self) -> bool {
        self.stream == next.stream && self.at + len_bytes == next.at
    }
}

/// Bytes that do not compress.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(2).wrapping_add(1);
    std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    })
    .take(len)
    .collect()
}

/// A step in making a delta.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Literal(u64, u64, Lit),
    Copy(u64, u64, u64),
    Zero(u64, u64),
    Keep(u64, u64),
    SetLen(u64),
}

pub(crate) fn op(copies: bool) -> impl Strategy<Value = Op> {
    let span = || (0..LEN_MAX, 1..40_u64);
    prop_oneof![
        6 => (span(), 0..3_u8, 0..50_u64).prop_map(|((start, len), stream, at)| {
            // Half of the literals are placed by offset, so that neighbours continue each other.
            let at = if at < 25 { start } else { at };
            Op::Literal(start, len, Lit { stream, at })
        }),
        if copies { 5 } else { 0 } => (span(), 0..LEN_MAX + 10).prop_map(|((start, len), from)| Op::Copy(start, len, from)),
        3 => span().prop_map(|(start, len)| Op::Zero(start, len)),
        2 => span().prop_map(|(start, len)| Op::Keep(start, len)),
        1 => (0..LEN_MAX).prop_map(Op::SetLen),
    ]
}

pub(crate) fn content() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![3 => 1..=255_u8, 1 => Just(0_u8)], 0..LEN_MAX as usize)
}

/// A byte of a content; zero past its end.
fn at(content: &[u8], offset: u64) -> u8 {
    content.get(offset as usize).copied().unwrap_or(0)
}

/// Applies the same operations to a delta and to plain bytes, and checks the delta's invariants
/// after each step.
pub(crate) fn build(base: &[u8], new_len: u64, ops: &[Op]) -> (DeltaMap<Lit>, Vec<u8>) {
    let mut map = DeltaMap::new(base.len() as u64, new_len);
    let mut new: Vec<u8> = (0..new_len).map(|offset| at(base, offset)).collect();
    for op in ops {
        let mut put = |start: u64, len: u64, byte: &dyn Fn(u64) -> u8| {
            for (index, to) in (0..len).zip(new.iter_mut().skip(start as usize)) {
                *to = byte(index);
            }
            ByteRange::from_offset_len(start, len).unwrap()
        };
        match *op {
            Op::Literal(start, len, lit) => {
                let range = put(start, len, &|index| lit.byte(index));
                map.literal(range, lit);
            }
            Op::Copy(start, len, from) => {
                let range = put(start, len, &|index| at(base, from + index));
                map.copy(range, from);
            }
            Op::Zero(start, len) => {
                let range = put(start, len, &|_| 0);
                map.zero(range);
            }
            Op::Keep(start, len) => {
                let range = put(start, len, &|index| at(base, start + index));
                map.keep(range);
            }
            Op::SetLen(len) => {
                new.resize(len as usize, 0);
                map.set_new_len(len);
            }
        }
        if let Err(error) = map.check_invariants() {
            panic!("after {op:?}: {error} in {map:?}");
        }
    }
    (map, new)
}

/// The new content that a delta describes, resolved byte by byte.
pub(crate) fn materialize(map: &DeltaMap<Lit>, base: &[u8]) -> Vec<u8> {
    assert_eq!(map.base_len_bytes(), base.len() as u64);
    let mut new = Vec::new();
    let Some(all) = ByteRange::new(0, map.new_len_bytes()) else {
        return new;
    };
    for (range, source) in map.resolve(all) {
        assert_eq!(range.start(), new.len() as u64, "the pieces follow each other");
        match source {
            Source::Literal(lit) => new.extend((0..range.len_bytes()).map(|index| lit.byte(index))),
            Source::Copy { base_offset } => {
                let start = base_offset as usize;
                new.extend_from_slice(&base[start..start + range.len_bytes() as usize]);
            }
            Source::Zero => new.resize(range.end() as usize, 0),
        }
    }
    new
}
