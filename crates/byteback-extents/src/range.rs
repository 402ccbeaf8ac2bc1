//! A half-open range of byte offsets that is never empty.
//!
//! Emptiness is excluded by construction: a write of no bytes changes nothing, so a caller that
//! would build an empty range has nothing to record, and handles `None` instead. No operation here
//! can overflow or panic.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Range;

#[cfg(test)]
mod tests;

/// The bytes from `start` up to, but not including, `end`; `start < end` always holds.
///
/// Ordered by `start`, then by `end`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteRange {
    start: u64,
    end: u64,
}

impl ByteRange {
    /// The range `start..end`; `None` if that is empty or reversed.
    #[must_use]
    pub const fn new(start: u64, end: u64) -> Option<Self> {
        if start < end { Some(Self { start, end }) } else { None }
    }

    /// The `len_bytes` bytes from `offset` on; `None` if `len_bytes` is 0 or the end exceeds
    /// `u64::MAX`.
    #[must_use]
    pub const fn from_offset_len(offset: u64, len_bytes: u64) -> Option<Self> {
        match offset.checked_add(len_bytes) {
            Some(end) => Self::new(offset, end),
            None => None,
        }
    }

    /// Everything from `start` on, for truncations and unknown ends; `None` only for `u64::MAX`.
    #[must_use]
    pub const fn from_start(start: u64) -> Option<Self> {
        Self::new(start, u64::MAX)
    }

    /// The offset of the first byte.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// The offset after the last byte.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// The number of bytes, at least 1.
    #[must_use]
    pub const fn len_bytes(self) -> u64 {
        self.end - self.start
    }

    /// Whether the byte at `offset` lies inside.
    #[must_use]
    pub const fn contains(self, offset: u64) -> bool {
        self.start <= offset && offset < self.end
    }

    /// Whether every byte of `other` lies inside.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether the two have a byte in common.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The bytes in common, if any.
    #[must_use]
    pub fn intersect(self, other: Self) -> Option<Self> {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// The smallest range that covers both, with the gap between them if there is one.
    #[must_use]
    pub fn hull(self, other: Self) -> Self {
        Self {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }

    /// The bytes of `self` that lie before and after `other`.
    #[must_use]
    pub fn subtract(self, other: Self) -> (Option<Self>, Option<Self>) {
        (
            Self::new(self.start, self.end.min(other.start)),
            Self::new(self.start.max(other.end), self.end),
        )
    }

    /// The bytes before `offset` and those from `offset` on.
    #[must_use]
    pub fn split_at(self, offset: u64) -> (Option<Self>, Option<Self>) {
        (
            Self::new(self.start, self.end.min(offset)),
            Self::new(self.start.max(offset), self.end),
        )
    }

    /// The smallest range that covers this one and begins and ends at multiples of
    /// `granularity_bytes`.
    ///
    /// An end that would exceed `u64::MAX` becomes `u64::MAX`.
    #[must_use]
    pub fn align_out(self, granularity_bytes: NonZeroU64) -> Self {
        let granularity = granularity_bytes.get();
        Self {
            start: self.start - self.start % granularity,
            end: self.end.checked_next_multiple_of(granularity).unwrap_or(u64::MAX),
        }
    }
}

impl fmt::Debug for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl From<ByteRange> for Range<u64> {
    fn from(range: ByteRange) -> Self {
        range.start..range.end
    }
}
