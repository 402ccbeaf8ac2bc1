//! A delta in memory: an extent map of sources between two lengths.
//!
//! The map describes the new content as a total function of the base: each byte below
//! `new_len_bytes` is a literal, a byte of the base (at the same offset if no extent says
//! otherwise), or zero. Bytes at and after `base_len_bytes` of the base read as zero. Bytes at and
//! after `new_len_bytes` do not exist; giving them a source has no effect.
//!
//! Invariants (checked by `check_invariants`): extents lie below `new_len_bytes`; a copy lies
//! wholly in the base and comes from another offset than its own; a zero lies below
//! `base_len_bytes`. Nothing is lost by them: an uncovered range already means a copy from its own
//! offset, or zeros past the base's end, and a copy from past the base's end is zero. Hence an
//! unchanged file has an empty map, and a whole new file is a map over an empty base.

use byteback_extents::{ByteRange, ExtentMap, ExtentValue, Iter, Tiles};

use crate::source::Source;

#[cfg(test)]
mod tests;

/// A delta: the new content of a file in terms of its base. The module's header says what uncovered
/// bytes mean.
///
/// The literals may be anything that can be cut and joined; `()` where only their length matters.
///
/// ```
/// use byteback_delta::{DeltaMap, Source};
/// use byteback_extents::ByteRange;
///
/// let range = |start, end| ByteRange::new(start, end).unwrap();
/// // Ten bytes are inserted in front of a content of a hundred.
/// let mut first = DeltaMap::new(100, 110);
/// first.literal(range(0, 10), ());
/// first.copy(range(10, 110), 0);
/// // Then the last twenty are cut off, and some in between become zeros.
/// let mut second = DeltaMap::new(110, 90);
/// second.zero(range(50, 60));
///
/// let both = first.then(&second)?;
/// let extents: Vec<_> = both.iter().map(|(range, source)| (range, *source)).collect();
/// assert_eq!(
///     extents,
///     [
///         (range(0, 10), Source::Literal(())),
///         (range(10, 50), Source::Copy { base_offset: 0 }),
///         (range(50, 60), Source::Zero),
///         (range(60, 90), Source::Copy { base_offset: 50 }),
///     ]
/// );
/// # Ok::<(), byteback_delta::ComposeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaMap<L> {
    base_len_bytes: u64,
    new_len_bytes: u64,
    extents: ExtentMap<Source<L>>,
}

/// Two deltas cannot be composed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the newer delta starts from {newer_base_len_bytes} bytes, but the older one leads to {older_new_len_bytes}: \
     they are not adjacent; compose adjacent versions only"
)]
pub struct ComposeError {
    /// The length of the content that the older delta leads to.
    pub older_new_len_bytes: u64,
    /// The length of the content that the newer delta starts from.
    pub newer_base_len_bytes: u64,
}

impl<L: ExtentValue> DeltaMap<L> {
    /// The delta that only changes the length: common bytes stay, added ones read as zero.
    #[must_use]
    pub const fn new(base_len_bytes: u64, new_len_bytes: u64) -> Self {
        Self {
            base_len_bytes,
            new_len_bytes,
            extents: ExtentMap::new(),
        }
    }

    /// The length of the base.
    #[must_use]
    pub fn base_len_bytes(&self) -> u64 {
        self.base_len_bytes
    }

    /// The length of the new content.
    #[must_use]
    pub fn new_len_bytes(&self) -> u64 {
        self.new_len_bytes
    }

    /// Whether the new content equals the base by construction.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        self.extents.is_empty() && self.base_len_bytes == self.new_len_bytes
    }

    /// Whether a copy takes bytes from another offset; without one, the delta can be applied in
    /// place.
    #[must_use]
    pub fn has_copies(&self) -> bool {
        self.extents
            .iter()
            .any(|(_, source)| matches!(source, Source::Copy { .. }))
    }

    /// The number of bytes that literals carry.
    #[must_use]
    pub fn literal_bytes(&self) -> u64 {
        self.extents
            .iter()
            .filter(|(_, source)| matches!(source, Source::Literal(_)))
            .map(|(range, _)| range.len_bytes())
            .sum()
    }

    /// The number of extents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// Whether there is no extent; the length may still change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// The extents that differ from the base, ascending: those that a stream carries.
    #[must_use]
    pub fn iter(&self) -> Iter<'_, Source<L>> {
        self.extents.iter()
    }

    /// Takes the bytes of `range` from `literal`.
    pub fn literal(&mut self, range: ByteRange, literal: L) {
        self.put(range, Source::Literal(literal));
    }

    /// Takes the bytes of `range` from the base at `base_offset`.
    pub fn copy(&mut self, range: ByteRange, base_offset: u64) {
        self.put(range, Source::Copy { base_offset });
    }

    /// Makes `range` a hole.
    pub fn zero(&mut self, range: ByteRange) {
        self.put(range, Source::Zero);
    }

    /// Takes the bytes of `range` from the base at their own offset, as if no extent had ever
    /// covered them.
    pub fn keep(&mut self, range: ByteRange) {
        self.extents.remove(range);
    }

    /// Gives the bytes of `range` a source, replacing any previous one.
    pub fn put(&mut self, range: ByteRange, source: Source<L>) {
        let (Some(range), _) = range.split_at(self.new_len_bytes) else {
            return;
        };
        match source {
            Source::Literal(literal) => self.extents.insert(range, Source::Literal(literal)),
            Source::Zero => {
                let (in_base, past_base) = range.split_at(self.base_len_bytes);
                if let Some(in_base) = in_base {
                    self.extents.insert(in_base, Source::Zero);
                }
                if let Some(past_base) = past_base {
                    self.extents.remove(past_base);
                }
            }
            Source::Copy { base_offset } => {
                let copied_bytes = self.base_len_bytes.saturating_sub(base_offset);
                let (copied, past_base) = range.split_at(range.start().saturating_add(copied_bytes));
                if let Some(copied) = copied {
                    if copied.start() == base_offset {
                        self.extents.remove(copied);
                    } else {
                        self.extents.insert(copied, Source::Copy { base_offset });
                    }
                }
                if let Some(past_base) = past_base {
                    self.put(past_base, Source::Zero);
                }
            }
        }
    }

    /// Changes the length of the new content as `ftruncate` does: bytes that are cut off are gone,
    /// even if it grows again.
    pub fn set_new_len(&mut self, new_len_bytes: u64) {
        let old_len_bytes = self.new_len_bytes;
        self.new_len_bytes = new_len_bytes;
        self.extents.truncate(new_len_bytes);
        if let Some(grown) = ByteRange::new(old_len_bytes, new_len_bytes) {
            self.zero(grown);
        }
    }

    /// The source of each byte of `range`, without gaps, ascending: uncovered bytes are reported as
    /// copies from their own offset or as zeros. Ends at the new length.
    #[must_use]
    pub fn resolve(&self, range: ByteRange) -> Resolve<'_, L> {
        Resolve {
            tiles: range
                .split_at(self.new_len_bytes)
                .0
                .map(|range| self.extents.tiles(range)),
            base_len_bytes: self.base_len_bytes,
            past_base: None,
        }
    }

    /// The delta from this one's base to `newer`'s new content. Costs time by the number of
    /// `newer`'s extents, or of both deltas' if `newer` has copies.
    ///
    /// # Errors
    /// If `newer` starts from another length than this one leads to.
    pub fn then(self, newer: &Self) -> Result<Self, ComposeError> {
        if newer.has_copies() {
            return compose(&self, newer);
        }
        self.overlay(None, newer)
    }

    /// Lays `newer` over `self`; copies refer to `older`, a clone of `self` before the change.
    fn overlay(mut self, older: Option<&Self>, newer: &Self) -> Result<Self, ComposeError> {
        if newer.base_len_bytes != self.new_len_bytes {
            return Err(ComposeError {
                older_new_len_bytes: self.new_len_bytes,
                newer_base_len_bytes: newer.base_len_bytes,
            });
        }
        self.set_new_len(newer.new_len_bytes);
        for (range, source) in newer.iter() {
            match (source, older) {
                (Source::Copy { base_offset }, Some(older)) => {
                    let Some(copied) = ByteRange::from_offset_len(*base_offset, range.len_bytes()) else {
                        continue;
                    };
                    for (part, source) in older.resolve(copied) {
                        let start = range.start() + (part.start() - copied.start());
                        if let Some(range) = ByteRange::from_offset_len(start, part.len_bytes()) {
                            self.put(range, source);
                        }
                    }
                }
                _ => self.put(range, source.clone()),
            }
        }
        Ok(self)
    }

    /// The same delta with literals named differently.
    ///
    /// # Errors
    /// The first error that `literal_to` returns.
    #[cfg(test)]
    pub(crate) fn try_map_literals<M: ExtentValue, E>(
        &self,
        mut literal_to: impl FnMut(ByteRange, &L) -> Result<M, E>,
    ) -> Result<DeltaMap<M>, E> {
        let mut mapped = DeltaMap::new(self.base_len_bytes, self.new_len_bytes);
        for (range, source) in self.iter() {
            let source = match source {
                Source::Literal(literal) => Source::Literal(literal_to(range, literal)?),
                Source::Copy { base_offset } => Source::Copy {
                    base_offset: *base_offset,
                },
                Source::Zero => Source::Zero,
            };
            mapped.extents.insert(range, source);
        }
        Ok(mapped)
    }

    /// Checks the invariants; for tests of this crate and of others.
    ///
    /// # Errors
    /// The broken invariant, as text.
    #[doc(hidden)]
    pub fn check_invariants(&self) -> Result<(), String> {
        self.extents.check_invariants()?;
        for (range, source) in self.iter() {
            if range.end() > self.new_len_bytes {
                return Err(format!("{range} reaches past the new length {}", self.new_len_bytes));
            }
            match source {
                Source::Copy { base_offset }
                    if *base_offset == range.start()
                        || base_offset
                            .checked_add(range.len_bytes())
                            .is_none_or(|end| end > self.base_len_bytes) =>
                {
                    return Err(format!("{range} copies from {base_offset} of {}", self.base_len_bytes));
                }
                Source::Zero if range.end() > self.base_len_bytes => {
                    return Err(format!("{range} is zero past the base's {} bytes", self.base_len_bytes));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The delta from `older`'s base to `newer`'s new content.
///
/// # Errors
/// If `newer` starts from another length than `older` leads to.
pub fn compose<L: ExtentValue>(older: &DeltaMap<L>, newer: &DeltaMap<L>) -> Result<DeltaMap<L>, ComposeError> {
    older.clone().overlay(Some(older), newer)
}

/// An iterator over the sources of a range: see [`DeltaMap::resolve`].
pub struct Resolve<'a, L> {
    tiles: Option<Tiles<'a, Source<L>>>,
    base_len_bytes: u64,
    /// The rest of an uncovered range that spans the base's end.
    past_base: Option<ByteRange>,
}

impl<L: ExtentValue> Iterator for Resolve<'_, L> {
    type Item = (ByteRange, Source<L>);

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(past_base) = self.past_base.take() {
            return Some((past_base, Source::Zero));
        }
        let (range, source) = self.tiles.as_mut()?.next()?;
        if let Some(source) = source {
            return Some((range, source));
        }
        match range.split_at(self.base_len_bytes) {
            (Some(kept), past_base) => {
                self.past_base = past_base;
                Some((
                    kept,
                    Source::Copy {
                        base_offset: kept.start(),
                    },
                ))
            }
            (None, _) => Some((range, Source::Zero)),
        }
    }
}
