//! The rest of contents from which ranges that are equal in place were taken out.

use byteback_extents::ByteRange;

/// The mapping between a content and its rest after some ranges were taken out: *left* offsets
/// count the bytes of the rest alone.
///
/// The mapping is the same for both contents, even past the end of the shorter one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gathering {
    /// The ranges taken out, ascending, with gaps between them.
    equal: Vec<ByteRange>,
    /// The parts of the rest: one before the first range, if that leaves any bytes, and one after
    /// each range. The last part has no end.
    parts: Vec<Part>,
}

/// A contiguous part of the rest, up to the next part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// The start of the part in the rest.
    left: u64,
    /// The start of the part in the content.
    content: u64,
}

impl Gathering {
    /// The rest without these ranges, which must ascend.
    #[must_use]
    pub fn without(ranges: impl IntoIterator<Item = ByteRange>) -> Self {
        let mut equal: Vec<ByteRange> = Vec::new();
        for range in ranges {
            match equal.last_mut() {
                Some(last) if last.end() >= range.start() => *last = last.hull(range),
                _ => equal.push(range),
            }
        }
        let (mut left, mut content) = (0, 0);
        let mut parts = Vec::new();
        for range in &equal {
            if range.start() > content {
                parts.push(Part { left, content });
                left += range.start() - content;
            }
            content = range.end();
        }
        parts.push(Part { left, content });
        Self { equal, parts }
    }

    /// The ranges taken out, ascending.
    #[must_use]
    pub fn equal(&self) -> &[ByteRange] {
        &self.equal
    }

    /// The number of bytes taken out.
    #[must_use]
    pub fn equal_len_bytes(&self) -> u64 {
        self.equal.iter().map(|range| range.len_bytes()).sum()
    }

    /// The length of the rest of a content of `content_len_bytes`, which must contain all ranges
    /// taken out.
    #[must_use]
    pub fn left_len_bytes(&self, content_len_bytes: u64) -> u64 {
        content_len_bytes.saturating_sub(self.equal_len_bytes())
    }

    /// The first piece of `range`, a range of the rest, that is contiguous in the content: its
    /// range in the content, and the remainder of `range` after it.
    #[must_use]
    pub fn first_of(&self, range: ByteRange) -> (ByteRange, Option<ByteRange>) {
        let next = self.parts.partition_point(|part| part.left <= range.start());
        let part = next.checked_sub(1).and_then(|at| self.parts.get(at));
        let end = self.parts.get(next).map_or(u64::MAX, |part| part.left);
        let (now, later) = range.split_at(end);
        let now = now.unwrap_or(range);
        let moved = part.map_or(0, |part| part.content - part.left);
        let start = now.start().saturating_add(moved);
        (ByteRange::from_offset_len(start, now.len_bytes()).unwrap_or(now), later)
    }

    /// The ranges of the content that make up `range`, a range of the rest.
    pub fn in_content(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> {
        let mut rest = Some(range);
        std::iter::from_fn(move || {
            let (first, later) = self.first_of(rest?);
            rest = later;
            Some(first)
        })
    }
}
