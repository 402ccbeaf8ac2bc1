//! Fewer extents for a few bytes more: keeping a set within a bound (SolFS section 3.2.1, dynamic
//! granularity alignment).
//!
//! Both ways only ever add bytes. Joining the closest neighbours adds the fewest bytes possible for
//! a covering set with that number of extents: each extent less means one gap filled, and the
//! smallest gaps are filled. The paper aligns outwards to a unit instead; that fills small gaps,
//! too, but pays at both ends of every extent.

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
        let before_bytes = self.total_len_bytes();
        let gaps = |set: &Self| -> Vec<u64> {
            let starts = set.iter().skip(1).map(|range| range.start());
            set.iter().zip(starts).map(|(range, next)| next - range.end()).collect()
        };
        let mut ordered = gaps(self);
        let (smaller, threshold, _) = ordered.select_nth_unstable(surplus - 1);
        let threshold = *threshold;
        // The number of gaps to fill among those as wide as the widest filled one.
        let mut ties = surplus - smaller.iter().filter(|gap| **gap < threshold).count();
        let mut joined = Self::new();
        let mut open: Option<ByteRange> = None;
        for range in self.iter() {
            let Some(last) = open else {
                open = Some(range);
                continue;
            };
            let gap = range.start() - last.end();
            let is_filled = gap < threshold || (gap == threshold && ties > 0);
            if is_filled {
                ties -= usize::from(gap == threshold);
                open = Some(last.hull(range));
            } else {
                joined.insert(last);
                open = Some(range);
            }
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

#[cfg(test)]
mod tests;
