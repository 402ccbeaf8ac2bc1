//! Ranges with values, where later ranges overlay earlier ones: the extent tree.
//!
//! Words: an *entry* is one range with its value; a *leaf* is a sorted array of at most
//! [`LEAF_BYTES_MAX`]; *separators* are the first offsets of all leaves but the first.
//!
//! Two levels of sorted arrays instead of a B-tree: a search is two binary searches over dense
//! memory, an insert moves at most one leaf (2 KiB for a set), and an extent of a set costs its 16
//! bytes plus the slack of its leaf. A million extents make some ten thousand leaves, whose
//! separators still fit the second-level cache; splitting a leaf shifts the upper level, at most
//! once in some sixty inserts. Measured beside `rangemap` by `byteback-bench extents`.
//!
//! Invariants (checked by `check_invariants` after every step of the property tests):
//! - entries are not empty, ascend and do not overlap; no two neighbours could be merged
//!   (`ExtentValue::continues`);
//! - no leaf is empty or holds more than `LEAF_ENTRIES_MAX` entries; `separators[i]` is the first
//!   offset of `leaves[i + 1]`;
//! - `len` and `covered_bytes` equal what a count would give.
//!
//! The *last-touched cache* is the place of the entry that the last insert made or extended. It is
//! only a hint: it may be stale after other changes, and every use checks it against the entry and
//! its neighbours. A write that extends that entry in either direction, without reaching the
//! neighbour, is O(1) (SolFS section 3.2.1, "mlog pointer cache").

mod iter;
mod splice;

#[cfg(test)]
mod tests;

use std::fmt;

pub use iter::{Gaps, Iter, Pieces, Tiles};

use crate::range::ByteRange;
use crate::value::ExtentValue;

/// The most bytes in a leaf: an insert moves half a leaf on average, and the larger leaves are, the
/// more rarely the upper level moves. Twice the size took the same time and held more memory where
/// extents merge; half the size took a tenth longer on ascending ranges (`byteback-bench extents`).
/// The costly case is a cold leaf, which a search crosses in some five dependent cache misses:
/// thousands of maps of hundreds of extents, each written to once in a while.
const LEAF_BYTES_MAX: usize = 2048;

/// An extent with its value.
#[derive(Clone, PartialEq, Eq)]
struct Entry<V> {
    start: u64,
    end: u64,
    value: V,
}

impl<V> Entry<V> {
    fn len_bytes(&self) -> u64 {
        self.end - self.start
    }

    fn range(&self) -> Option<ByteRange> {
        ByteRange::new(self.start, self.end)
    }
}

type Leaf<V> = Vec<Entry<V>>;

/// A place in the tree: that of an entry, or the one after a leaf's last entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Place {
    leaf: usize,
    index: usize,
}

/// A map from ranges of bytes to values, in which later insertions overlay earlier ones and
/// neighbours whose values continue each other are merged into one extent.
///
/// ```
/// use byteback_extents::{ByteRange, ExtentMap, ExtentValue};
///
/// /// The version that wrote a range.
/// #[derive(Clone, Debug, PartialEq)]
/// struct Version(u32);
///
/// impl ExtentValue for Version {
///     fn advance(&self, _by_bytes: u64) -> Self {
///         self.clone()
///     }
///
///     fn continues(&self, _len_bytes: u64, next: &Self) -> bool {
///         self == next
///     }
/// }
///
/// let range = |start, end| ByteRange::new(start, end).unwrap();
/// let mut versions = ExtentMap::new();
/// versions.insert(range(0, 100), Version(1));
/// versions.insert(range(40, 60), Version(2));
/// assert_eq!(versions.get(50), Some((range(40, 60), &Version(2))));
/// assert_eq!(versions.len(), 3);
/// versions.insert(range(40, 60), Version(1));
/// assert_eq!(versions.len(), 1);
/// ```
#[derive(Clone)]
pub struct ExtentMap<V> {
    leaves: Vec<Leaf<V>>,
    separators: Vec<u64>,
    len: usize,
    covered_bytes: u64,
    last: Place,
}

impl<V> ExtentMap<V> {
    /// The most entries in a leaf; 128 for a set. Small under test, so that a few entries already
    /// make many leaves.
    const LEAF_ENTRIES_MAX: usize = if cfg!(test) {
        8
    } else if size_of::<Entry<V>>() > LEAF_BYTES_MAX / 32 {
        32
    } else {
        LEAF_BYTES_MAX / size_of::<Entry<V>>()
    };

    /// An empty map; allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            leaves: Vec::new(),
            separators: Vec::new(),
            len: 0,
            covered_bytes: 0,
            last: Place { leaf: 0, index: 0 },
        }
    }

    /// The number of extents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no byte has a value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of bytes that have a value; O(1).
    #[must_use]
    pub fn covered_bytes(&self) -> u64 {
        self.covered_bytes
    }

    /// The range from the first to the last byte that has a value.
    #[must_use]
    pub fn hull(&self) -> Option<ByteRange> {
        let first = self.leaves.first()?.first()?;
        let last = self.leaves.last()?.last()?;
        ByteRange::new(first.start, last.end)
    }

    /// Removes everything and frees the memory.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// The heap memory that the map holds for its entries, in bytes, without memory that the values
    /// themselves hold.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.leaves
            .iter()
            .map(|leaf| leaf.capacity() * size_of::<Entry<V>>())
            .sum::<usize>()
            + self.leaves.capacity() * size_of::<Leaf<V>>()
            + self.separators.capacity() * size_of::<u64>()
    }

    /// Frees memory that is reserved for growth.
    pub fn shrink_to_fit(&mut self) {
        for leaf in &mut self.leaves {
            leaf.shrink_to_fit();
        }
        self.leaves.shrink_to_fit();
        self.separators.shrink_to_fit();
    }

    /// The extent that holds the byte at `offset`, with its value; the value belongs to the
    /// extent's first byte.
    #[must_use]
    pub fn get(&self, offset: u64) -> Option<(ByteRange, &V)> {
        let (range, value) = self.iter_from(offset).next()?;
        range.contains(offset).then_some((range, value))
    }

    /// All extents with their values, ascending.
    #[must_use]
    pub fn iter(&self) -> Iter<'_, V> {
        Iter::new(&self.leaves, 0)
    }

    /// The extents that end after `offset`, whole and ascending. To resume after an interruption,
    /// pass the end of the last extent handled; the map may have changed in between.
    #[must_use]
    pub fn iter_from(&self, offset: u64) -> Iter<'_, V> {
        let leaf_index = self.leaf_for(offset);
        let Some(leaf) = self.leaves.get(leaf_index) else {
            return Iter::new(&[], 0);
        };
        Iter::new(
            &self.leaves[leaf_index..],
            leaf.partition_point(|entry| entry.end <= offset),
        )
    }

    /// The parts of `range` that have no value, ascending.
    #[must_use]
    pub fn gaps(&self, range: ByteRange) -> Gaps<'_, V> {
        Gaps::new(self.iter_from(range.start()), range)
    }

    /// The leaf in which an entry beginning at `offset` belongs; 0 if there is none.
    fn leaf_for(&self, offset: u64) -> usize {
        self.separators.partition_point(|&first| first <= offset)
    }
}

impl<V: ExtentValue> ExtentMap<V> {
    /// The parts of the extents that lie inside `range`, each with the value of its first byte,
    /// ascending.
    #[must_use]
    pub fn pieces(&self, range: ByteRange) -> Pieces<'_, V> {
        Pieces::new(self.iter_from(range.start()), range)
    }

    /// All of `range` in ascending pieces: those with a value as [`Self::pieces`] gives them, and
    /// the gaps with `None`.
    #[must_use]
    pub fn tiles(&self, range: ByteRange) -> Tiles<'_, V> {
        Tiles::new(self.iter_from(range.start()), range)
    }

    /// Lays `range` with `value` over the existing extents. O(1) if it continues the extent that
    /// was inserted last, in either direction, and does not reach that extent's neighbour.
    pub fn insert(&mut self, range: ByteRange, value: V) {
        if let Some(value) = self.extend_last(range, value) {
            self.overlay_entry(range, value);
        }
    }

    /// Removes the values of all bytes in `range`.
    pub fn remove(&mut self, range: ByteRange) {
        self.cut_out(range);
    }

    /// Removes the values of all bytes from `at_offset` on.
    pub fn truncate(&mut self, at_offset: u64) {
        if let Some(range) = ByteRange::from_start(at_offset) {
            self.remove(range);
        }
    }

    /// Lays all extents of `newer` over this map.
    pub fn overlay(&mut self, newer: &Self) {
        if self.is_empty() {
            self.clone_from(newer);
            return;
        }
        for (range, value) in newer.iter() {
            self.insert(range, value.clone());
        }
    }

    /// The O(1) path: extends the last-touched entry if nothing else needs to change; otherwise
    /// returns the value.
    fn extend_last(&mut self, range: ByteRange, value: V) -> Option<V> {
        let Place {
            leaf: leaf_index,
            index,
        } = self.last;
        let Some(leaf) = self.leaves.get(leaf_index) else {
            return Some(value);
        };
        let Some(entry) = leaf.get(index) else {
            return Some(value);
        };
        if entry.start <= range.start() {
            if range.start() > entry.end || !entry.value.continues(range.start() - entry.start, &value) {
                return Some(value);
            }
            if range.end() <= entry.end {
                return None;
            }
            let next_start = leaf
                .get(index + 1)
                .map(|next| next.start)
                .or_else(|| self.separators.get(leaf_index).copied());
            if next_start.is_some_and(|next_start| range.end() >= next_start) {
                return Some(value);
            }
            self.covered_bytes += range.end() - entry.end;
            self.leaves[leaf_index][index].end = range.end();
            return None;
        }
        if range.end() < entry.start
            || range.end() > entry.end
            || !value.continues(entry.start - range.start(), &entry.value)
        {
            return Some(value);
        }
        let previous = match (index.checked_sub(1), leaf_index.checked_sub(1)) {
            (Some(before), _) => leaf.get(before),
            (None, Some(leaf_before)) => self.leaves[leaf_before].last(),
            (None, None) => None,
        };
        if previous.is_some_and(|previous| previous.end >= range.start()) {
            return Some(value);
        }
        self.covered_bytes += entry.start - range.start();
        let entry = &mut self.leaves[leaf_index][index];
        entry.start = range.start();
        entry.value = value;
        if index == 0 && leaf_index > 0 {
            self.separators[leaf_index - 1] = range.start();
        }
        None
    }

    /// Checks the invariants; for tests of this crate and of others.
    ///
    /// # Errors
    /// The broken invariant, as text.
    #[doc(hidden)]
    pub fn check_invariants(&self) -> Result<(), String> {
        if self.separators.len() + 1 != self.leaves.len().max(1) {
            return Err(format!(
                "{} leaves but {} separators",
                self.leaves.len(),
                self.separators.len()
            ));
        }
        let mut previous: Option<&Entry<V>> = None;
        let (mut len, mut covered_bytes) = (0, 0_u64);
        for (leaf_index, leaf) in self.leaves.iter().enumerate() {
            if leaf.is_empty() || leaf.len() > Self::LEAF_ENTRIES_MAX {
                return Err(format!("leaf {leaf_index} holds {} entries", leaf.len()));
            }
            if leaf_index > 0 && self.separators[leaf_index - 1] != leaf[0].start {
                return Err(format!(
                    "leaf {leaf_index} begins at {}, not at its separator",
                    leaf[0].start
                ));
            }
            for entry in leaf {
                if entry.start >= entry.end {
                    return Err(format!("empty entry {}..{}", entry.start, entry.end));
                }
                if let Some(previous) = previous {
                    if previous.end > entry.start {
                        return Err(format!(
                            "{}..{} overlaps {}..{}",
                            previous.start, previous.end, entry.start, entry.end
                        ));
                    }
                    if previous.end == entry.start && previous.value.continues(previous.len_bytes(), &entry.value) {
                        return Err(format!(
                            "{}..{} and {}..{} are not merged",
                            previous.start, previous.end, entry.start, entry.end
                        ));
                    }
                }
                len += 1;
                covered_bytes += entry.len_bytes();
                previous = Some(entry);
            }
        }
        if (len, covered_bytes) != (self.len, self.covered_bytes) {
            return Err(format!(
                "counted {len} entries of {covered_bytes} bytes, but recorded {} and {}",
                self.len, self.covered_bytes
            ));
        }
        Ok(())
    }
}

impl<V> Default for ExtentMap<V> {
    fn default() -> Self {
        Self::new()
    }
}

/// Maps are equal if they have the same extents with equal values, however their leaves are filled.
impl<V: PartialEq> PartialEq for ExtentMap<V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<V: Eq> Eq for ExtentMap<V> {}

impl<V: fmt::Debug> fmt::Debug for ExtentMap<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<V: ExtentValue> Extend<(ByteRange, V)> for ExtentMap<V> {
    fn extend<I: IntoIterator<Item = (ByteRange, V)>>(&mut self, extents: I) {
        for (range, value) in extents {
            self.insert(range, value);
        }
    }
}

impl<V: ExtentValue> FromIterator<(ByteRange, V)> for ExtentMap<V> {
    fn from_iter<I: IntoIterator<Item = (ByteRange, V)>>(extents: I) -> Self {
        let mut map = Self::new();
        map.extend(extents);
        map
    }
}

impl<'a, V> IntoIterator for &'a ExtentMap<V> {
    type Item = (ByteRange, &'a V);
    type IntoIter = Iter<'a, V>;

    fn into_iter(self) -> Iter<'a, V> {
        self.iter()
    }
}
