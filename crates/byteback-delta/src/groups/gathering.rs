//! What is left of contents when ranges that are equal in place are taken out of them.

use byteback_extents::ByteRange;

/// The way between a content and what is left of it when some ranges are taken out: *left* offsets
/// count what is left alone.
///
/// The same for both contents, also behind the end of the shorter one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gathering {
    /// What is taken out, ascending, with gaps between.
    equal: Vec<ByteRange>,
    /// Where what is left goes on: before the first range if anything is there, and behind each.
    /// The last part has no end.
    parts: Vec<Part>,
}

/// Some of what is left, up to the next part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Where it begins in what is left.
    left: u64,
    /// Where it begins in the content.
    content: u64,
}

impl Gathering {
    /// What is left without these ranges, which ascend.
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

    /// What was taken out, ascending.
    #[must_use]
    pub fn equal(&self) -> &[ByteRange] {
        &self.equal
    }

    /// Bytes that were taken out.
    #[must_use]
    pub fn equal_len_bytes(&self) -> u64 {
        self.equal.iter().map(|range| range.len_bytes()).sum()
    }

    /// How much is left of a content of so many bytes, in which all that is taken out lies.
    #[must_use]
    pub fn left_len_bytes(&self, content_len_bytes: u64) -> u64 {
        content_len_bytes.saturating_sub(self.equal_len_bytes())
    }

    /// The part of `range`, which is one of what is left, that begins with it and is one range of
    /// the content; that one, and what remains of `range` behind it.
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

    /// The ranges of the content that `range`, which is one of what is left, is.
    pub fn in_content(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> {
        let mut rest = Some(range);
        std::iter::from_fn(move || {
            let (first, later) = self.first_of(rest?);
            rest = later;
            Some(first)
        })
    }
}
