//! A set of bytes: the mergeable operation log tree ("mlog tree") of SolFS, section 3.2.1.
//!
//! A write is inserted as its range; ranges that overlap or touch are merged, so that a simple
//! change needs only a small set. The set is an [`ExtentMap`] without values; the last-touched
//! cache that makes appends and sequential writes O(1) (the paper's "mlog pointer cache") lives
//! there.

use std::fmt;

use crate::map::{self, ExtentMap};
use crate::range::ByteRange;

#[cfg(test)]
mod tests;

/// A set of bytes, kept as the fewest possible ranges, in ascending order.
///
/// ```
/// use byteback_extents::{ByteRange, ExtentSet};
///
/// let range = |start, end| ByteRange::new(start, end).unwrap();
/// let mut written = ExtentSet::new();
/// written.insert(range(0, 512));
/// written.insert(range(512, 1024));
/// written.insert(range(4096, 8192));
/// assert_eq!(written.len(), 2);
/// assert_eq!(written.total_len_bytes(), 1024 + 4096);
/// assert_eq!(written.gaps_within(range(0, 8192)).collect::<Vec<_>>(), [range(1024, 4096)]);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ExtentSet {
    map: ExtentMap<()>,
}

impl ExtentSet {
    /// An empty set; allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { map: ExtentMap::new() }
    }

    /// Adds the bytes of `range`. O(1) if the range overlaps or touches the extent that was
    /// inserted last, as appends and sequential writes in either direction do.
    pub fn insert(&mut self, range: ByteRange) {
        self.map.insert(range, ());
    }

    /// Removes the bytes of `range`.
    pub fn remove(&mut self, range: ByteRange) {
        self.map.remove(range);
    }

    /// Removes all bytes from `at_offset` on, as truncating a file to that length does.
    pub fn truncate(&mut self, at_offset: u64) {
        self.map.truncate(at_offset);
    }

    /// Removes everything and frees the memory.
    pub fn clear(&mut self) {
        self.map.clear();
    }

    /// Whether the byte at `offset` is in the set.
    #[must_use]
    pub fn contains(&self, offset: u64) -> bool {
        self.map.get(offset).is_some()
    }

    /// Whether all bytes of `range` are in the set.
    #[must_use]
    pub fn covers(&self, range: ByteRange) -> bool {
        self.map
            .get(range.start())
            .is_some_and(|(extent, ())| extent.covers(range))
    }

    /// Whether any byte of `range` is in the set.
    #[must_use]
    pub fn intersects(&self, range: ByteRange) -> bool {
        self.iter_from(range.start())
            .next()
            .is_some_and(|extent| extent.intersects(range))
    }

    /// The number of extents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether no byte is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The number of bytes in the set; O(1).
    #[must_use]
    pub fn total_len_bytes(&self) -> u64 {
        self.map.covered_bytes()
    }

    /// The range from the first to the last byte in the set.
    #[must_use]
    pub fn hull(&self) -> Option<ByteRange> {
        self.map.hull()
    }

    /// The heap memory that the set holds, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.map.heap_bytes()
    }

    /// Frees memory that is reserved for growth.
    pub fn shrink_to_fit(&mut self) {
        self.map.shrink_to_fit();
    }

    /// All extents, ascending.
    #[must_use]
    pub fn iter(&self) -> Ranges<'_> {
        Ranges { iter: self.map.iter() }
    }

    /// The extents that end after `offset`, whole and ascending. To resume after an interruption,
    /// pass the end of the last extent handled; the set may have changed in between.
    #[must_use]
    pub fn iter_from(&self, offset: u64) -> Ranges<'_> {
        Ranges {
            iter: self.map.iter_from(offset),
        }
    }

    /// The parts of the extents that lie inside `range`, ascending.
    #[must_use]
    pub fn iter_within(&self, range: ByteRange) -> RangesWithin<'_> {
        RangesWithin {
            pieces: self.map.pieces(range),
        }
    }

    /// The parts of `range` that are not in the set, ascending.
    #[must_use]
    pub fn gaps_within(&self, range: ByteRange) -> map::Gaps<'_, ()> {
        self.map.gaps(range)
    }

    /// Adds all bytes of `other`.
    pub fn union_with(&mut self, other: &Self) {
        self.map.overlay(&other.map);
    }

    /// Removes all bytes of `other`.
    pub fn subtract(&mut self, other: &Self) {
        if self.is_empty() {
            return;
        }
        for range in other.iter() {
            self.remove(range);
        }
    }

    /// The bytes that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (fewer, more) = if self.len() <= other.len() {
            (self, other)
        } else {
            (other, self)
        };
        fewer.iter().flat_map(|range| more.iter_within(range)).collect()
    }

    /// Checks the invariants; for tests of this crate and of others.
    ///
    /// # Errors
    /// The broken invariant, as text.
    #[doc(hidden)]
    pub fn check_invariants(&self) -> Result<(), String> {
        self.map.check_invariants()
    }
}

impl fmt::Debug for ExtentSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Extend<ByteRange> for ExtentSet {
    fn extend<I: IntoIterator<Item = ByteRange>>(&mut self, ranges: I) {
        for range in ranges {
            self.insert(range);
        }
    }
}

impl FromIterator<ByteRange> for ExtentSet {
    fn from_iter<I: IntoIterator<Item = ByteRange>>(ranges: I) -> Self {
        let mut set = Self::new();
        set.extend(ranges);
        set
    }
}

impl<'a> IntoIterator for &'a ExtentSet {
    type Item = ByteRange;
    type IntoIter = Ranges<'a>;

    fn into_iter(self) -> Ranges<'a> {
        self.iter()
    }
}

/// The extents of an [`ExtentSet`], ascending.
#[derive(Clone)]
pub struct Ranges<'a> {
    iter: map::Iter<'a, ()>,
}

impl Iterator for Ranges<'_> {
    type Item = ByteRange;

    fn next(&mut self) -> Option<ByteRange> {
        self.iter.next().map(|(range, ())| range)
    }
}

/// The parts of an [`ExtentSet`]'s extents that lie inside a range, ascending.
#[derive(Clone)]
pub struct RangesWithin<'a> {
    pieces: map::Pieces<'a, ()>,
}

impl Iterator for RangesWithin<'_> {
    type Item = ByteRange;

    fn next(&mut self) -> Option<ByteRange> {
        self.pieces.next().map(|(range, ())| range)
    }
}
