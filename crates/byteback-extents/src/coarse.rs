//! Fewer extents for a few bytes more: keeping a set within a bound (SolFS section 3.2.1, dynamic
//! granularity alignment).
//!
//! Both ways only ever add bytes. Joining the closest neighbours adds the fewest bytes possible for
//! a covering set with that number of extents: each extent less means one gap filled, and the
//! smallest gaps are filled. The paper aligns outwards to a unit instead; that fills small gaps,
//! too, but pays at both ends of every extent.

use std::cmp::Ordering;
use std::num::NonZeroU64;

use crate::range::ByteRange;
use crate::set::ExtentSet;

impl ExtentSet {
    /// Joins the neighbours with the smallest gaps until there are at most `extents_max` extents
    /// (at least one stays), and returns the number of bytes that were added. O(n); of equal gaps
    /// the first ones are filled.
    pub fn join_closest(&mut self, extents_max: usize) -> u64 {
        let extents_max = extents_max.max(1);
        let Some(surplus) = self.len().checked_sub(extents_max).filter(|surplus| *surplus > 0) else {
            return 0;
        };
        let mut ordered: Vec<u64> = self.gaps_bytes().collect();
        let (smaller, threshold, _) = ordered.select_nth_unstable(surplus - 1);
        let threshold = *threshold;
        // The number of gaps to fill among those as wide as the widest filled one.
        let mut ties = surplus - smaller.iter().filter(|gap| **gap < threshold).count();
        self.fill(|gap| match gap.cmp(&threshold) {
            Ordering::Less => true,
            Ordering::Equal if ties > 0 => {
                ties -= 1;
                true
            }
            Ordering::Equal | Ordering::Greater => false,
        })
    }

    /// Joins all neighbours with gaps of at most `gap_bytes_max`, and returns the number of bytes
    /// that were added. O(n).
    pub fn join_within(&mut self, gap_bytes_max: u64) -> u64 {
        self.fill(|gap| gap <= gap_bytes_max)
    }

    /// Lengths of the gaps between neighbours, ascending by place.
    fn gaps_bytes(&self) -> impl Iterator<Item = u64> {
        let starts = self.iter().skip(1).map(ByteRange::start);
        self.iter().zip(starts).map(|(range, next)| next - range.end())
    }

    /// Joins the neighbours with the gaps that `is_filled` picks.
    fn fill(&mut self, mut is_filled: impl FnMut(u64) -> bool) -> u64 {
        let before_bytes = self.total_len_bytes();
        let mut joined = Self::new();
        let mut open: Option<ByteRange> = None;
        for range in self.iter() {
            open = Some(match open {
                Some(last) if is_filled(range.start() - last.end()) => last.hull(range),
                Some(last) => {
                    joined.insert(last);
                    range
                }
                None => range,
            });
        }
        joined.extend(open);
        *self = joined;
        self.total_len_bytes() - before_bytes
    }

    /// The set with every extent aligned outwards to multiples of `granularity_bytes`; see
    /// [`ByteRange::align_out`].
    #[must_use]
    pub fn aligned_out(&self, granularity_bytes: NonZeroU64) -> Self {
        self.iter().map(|range| range.align_out(granularity_bytes)).collect()
    }
}

/// The gap for which [`ExtentSet::join_within`] on all of these sets leaves at least `surplus`
/// extents fewer, with as few bytes as such a bound allows; `None` if they have fewer gaps.
pub fn gap_to_fill<'a>(sets: impl Iterator<Item = &'a ExtentSet>, surplus: usize) -> Option<u64> {
    let mut gaps: Vec<u64> = sets.flat_map(ExtentSet::gaps_bytes).collect();
    let last = surplus.checked_sub(1).filter(|last| *last < gaps.len())?;
    Some(*gaps.select_nth_unstable(last).1)
}

#[cfg(test)]
mod tests;
