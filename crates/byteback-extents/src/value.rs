//! The operations of an extent's value by which extents can be cut and joined.

/// A value that describes all bytes of an extent at once, such as "the bytes from this place in
/// that segment on".
///
/// Laws, for values `a`, `b`, `c` and lengths `m`, `n`; the map relies on them, and the property
/// tests check them for the implementations of this workspace:
///
/// - `a.advance(0)` describes the same bytes as `a`, and `a.advance(m).advance(n)` the same as
///   `a.advance(m + n)`.
/// - `a.continues(n, &a.advance(n))` holds, even for `n == 0`.
/// - If `a.continues(m, &b)`, then `b.continues(n, &c)` equals `a.continues(m + n, &c)`.
///
/// `a.continues(0, &b)` therefore means "the same bytes".
pub trait ExtentValue: Clone {
    /// The value of the tail that begins `by_bytes` after the first byte that `self` describes.
    #[must_use]
    fn advance(&self, by_bytes: u64) -> Self;

    /// Whether `next` describes exactly the bytes that follow the first `len_bytes` of `self`, so
    /// that two extents can be merged into one.
    fn continues(&self, len_bytes: u64, next: &Self) -> bool;
}

/// The value of a set: any two extents that touch are merged.
impl ExtentValue for () {
    fn advance(&self, _by_bytes: u64) -> Self {}

    fn continues(&self, _len_bytes: u64, _next: &Self) -> bool {
        true
    }
}
