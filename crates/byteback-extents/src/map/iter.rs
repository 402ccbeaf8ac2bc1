//! Walks over an extent map: whole extents, parts within a range, gaps, and both together.
//!
//! All iterators ascend, allocate nothing, and start with one search.

use std::slice;

use super::{Entry, Leaf};
use crate::range::ByteRange;
use crate::value::ExtentValue;

/// The extents of an [`ExtentMap`](super::ExtentMap) with their values, ascending.
pub struct Iter<'a, V> {
    entries: slice::Iter<'a, Entry<V>>,
    leaves: slice::Iter<'a, Leaf<V>>,
}

impl<V> Clone for Iter<'_, V> {
    fn clone(&self) -> Self {
        Self {
            entries: self.entries.clone(),
            leaves: self.leaves.clone(),
        }
    }
}

impl<'a, V> Iter<'a, V> {
    /// Begins with the entry `index` of the first of `leaves`; `index` may be the leaf's length.
    pub(super) fn new(leaves: &'a [Leaf<V>], index: usize) -> Self {
        let mut leaves = leaves.iter();
        let entries = leaves.next().map_or(&[][..], |leaf| &leaf[index..]).iter();
        Self { entries, leaves }
    }
}

impl<'a, V> Iterator for Iter<'a, V> {
    type Item = (ByteRange, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Some((entry.range()?, &entry.value));
            }
            self.entries = self.leaves.next()?.iter();
        }
    }
}

/// The parts of an [`ExtentMap`](super::ExtentMap)'s extents that lie inside a range, each with the
/// value of its first byte.
pub struct Pieces<'a, V> {
    iter: Iter<'a, V>,
    within: ByteRange,
}

impl<V> Clone for Pieces<'_, V> {
    fn clone(&self) -> Self {
        Self {
            iter: self.iter.clone(),
            within: self.within,
        }
    }
}

impl<'a, V> Pieces<'a, V> {
    /// `iter` begins with the first extent that ends after the start of `within`.
    pub(super) fn new(iter: Iter<'a, V>, within: ByteRange) -> Self {
        Self { iter, within }
    }
}

impl<V: ExtentValue> Iterator for Pieces<'_, V> {
    type Item = (ByteRange, V);

    fn next(&mut self) -> Option<Self::Item> {
        let (range, value) = self.iter.next()?;
        let part = range.intersect(self.within)?;
        let value = if part.start() == range.start() {
            value.clone()
        } else {
            value.advance(part.start() - range.start())
        };
        Some((part, value))
    }
}

/// The parts of a range that have no value in an [`ExtentMap`](super::ExtentMap), ascending.
pub struct Gaps<'a, V> {
    iter: Iter<'a, V>,
    /// The offset from which gaps are still to be reported, up to `end`.
    position: u64,
    end: u64,
}

impl<V> Clone for Gaps<'_, V> {
    fn clone(&self) -> Self {
        Self {
            iter: self.iter.clone(),
            position: self.position,
            end: self.end,
        }
    }
}

impl<'a, V> Gaps<'a, V> {
    /// `iter` begins with the first extent that ends after the start of `within`.
    pub(super) fn new(iter: Iter<'a, V>, within: ByteRange) -> Self {
        Self {
            iter,
            position: within.start(),
            end: within.end(),
        }
    }
}

impl<V> Iterator for Gaps<'_, V> {
    type Item = ByteRange;

    fn next(&mut self) -> Option<ByteRange> {
        while self.position < self.end {
            let (gap_end, position) = match self.iter.next() {
                Some((range, _)) => (range.start().min(self.end), range.end()),
                None => (self.end, self.end),
            };
            let gap = ByteRange::new(self.position, gap_end);
            self.position = position;
            if gap.is_some() {
                return gap;
            }
        }
        None
    }
}

/// All of a range in ascending pieces, those without a value in an [`ExtentMap`](super::ExtentMap)
/// as `None`.
pub struct Tiles<'a, V> {
    pieces: Pieces<'a, V>,
    /// The piece after the gap that was reported last.
    pending: Option<(ByteRange, V)>,
    position: u64,
}

impl<V: Clone> Clone for Tiles<'_, V> {
    fn clone(&self) -> Self {
        Self {
            pieces: self.pieces.clone(),
            pending: self.pending.clone(),
            position: self.position,
        }
    }
}

impl<'a, V> Tiles<'a, V> {
    /// `iter` begins with the first extent that ends after the start of `within`.
    pub(super) fn new(iter: Iter<'a, V>, within: ByteRange) -> Self {
        Self {
            pieces: Pieces::new(iter, within),
            pending: None,
            position: within.start(),
        }
    }
}

impl<V: ExtentValue> Iterator for Tiles<'_, V> {
    type Item = (ByteRange, Option<V>);

    fn next(&mut self) -> Option<Self::Item> {
        let end = self.pieces.within.end();
        let piece = self.pending.take().or_else(|| self.pieces.next());
        let Some((range, value)) = piece else {
            let gap = ByteRange::new(self.position, end)?;
            self.position = end;
            return Some((gap, None));
        };
        if let Some(gap) = ByteRange::new(self.position, range.start()) {
            self.position = range.start();
            self.pending = Some((range, value));
            return Some((gap, None));
        }
        self.position = range.end();
        Some((range, Some(value)))
    }
}
