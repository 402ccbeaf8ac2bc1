//! Parts of contents, laid end to end for a finder: what is known of an old content, and what was
//! written of a new one. Its findings are led back to the contents themselves.
//!
//! A finder of packed contents sees neighbours that are none: an extent that it finds may be
//! several in the contents.

use std::io;

use byteback_extents::ByteRange;

use super::ExtentSink;

/// Ranges of a content, laid end to end.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    /// The start of each range in the packed content, and the range.
    ranges: Vec<(u64, ByteRange)>,
    len_bytes: u64,
}

impl Packed {
    /// The number of bytes of all ranges.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The number of ranges.
    #[must_use]
    pub fn range_count(&self) -> usize {
        self.ranges.len()
    }

    /// Where a range, by its number, starts in the packed content.
    #[must_use]
    pub fn start_of(&self, number: usize) -> Option<u64> {
        self.ranges.get(number).map(|(start, _)| *start)
    }

    /// The ranges of the content behind `len_bytes` of the packed one from `at` on, in order.
    pub fn real(&self, at: u64, len_bytes: u64) -> impl Iterator<Item = ByteRange> + '_ {
        let end = at.saturating_add(len_bytes);
        let first = self
            .ranges
            .partition_point(|(start, range)| start + range.len_bytes() <= at);
        let touched = self.ranges.get(first..).unwrap_or_default().iter();
        touched
            .take_while(move |(start, _)| *start < end)
            .filter_map(move |(start, range)| {
                let from = at.max(*start) - start;
                let to = end.min(start + range.len_bytes()) - start;
                ByteRange::new(range.start() + from, range.start() + to)
            })
    }

    /// Fills a buffer from `at` of the packed content on, by `read`, which fills a buffer from an
    /// offset of the content on.
    ///
    /// # Errors
    /// Those of `read`; `UnexpectedEof` at the end.
    pub fn fill(
        &self,
        at: u64,
        buffer: &mut [u8],
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut rest = buffer;
        for range in self.real(at, rest.len() as u64) {
            let len = usize::try_from(range.len_bytes()).map_err(io::Error::other)?;
            let (now, later) = rest.split_at_mut_checked(len).ok_or(io::ErrorKind::UnexpectedEof)?;
            read(range.start(), now)?;
            rest = later;
        }
        match rest.is_empty() {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl FromIterator<ByteRange> for Packed {
    /// The ranges ascend and do not overlap.
    fn from_iter<T: IntoIterator<Item = ByteRange>>(ranges: T) -> Self {
        let mut packed = Self::default();
        for range in ranges {
            packed.ranges.push((packed.len_bytes, range));
            packed.len_bytes = packed.len_bytes.saturating_add(range.len_bytes());
        }
        packed
    }
}

/// Passes what was found in packed contents on as extents of the contents: only of the new one's
/// ranges, with gaps between them.
#[derive(Debug)]
pub struct Unpacked<'a, S> {
    /// The recipient.
    pub sink: S,
    /// The old content, from which copies come.
    pub old: &'a Packed,
    /// The new content.
    pub new: &'a Packed,
}

impl<S: ExtentSink> ExtentSink for Unpacked<'_, S> {
    type Error = S::Error;

    fn literal(&mut self, offset: u64, bytes: &[u8]) -> Result<(), S::Error> {
        let mut rest = bytes;
        for range in self.new.real(offset, bytes.len() as u64) {
            let len = usize::try_from(range.len_bytes()).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at(len);
            self.sink.literal(range.start(), now)?;
            rest = later;
        }
        Ok(())
    }

    fn copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), S::Error> {
        let mut from = base_offset;
        for to in self.new.real(range.start(), range.len_bytes()) {
            let mut at = to.start();
            for source in self.old.real(from, to.len_bytes()) {
                if let Some(target) = ByteRange::from_offset_len(at, source.len_bytes()) {
                    self.sink.copy(target, source.start())?;
                }
                at += source.len_bytes();
            }
            from += to.len_bytes();
        }
        Ok(())
    }

    fn zero(&mut self, range: ByteRange) -> Result<(), S::Error> {
        for to in self.new.real(range.start(), range.len_bytes()) {
            self.sink.zero(to)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find::{FoundExtents, InMemoryFinder};
    use crate::model::noise;
    use crate::source::Source;

    fn ranges(ranges: &[(u64, u64)]) -> Packed {
        ranges
            .iter()
            .map(|(from, to)| ByteRange::new(*from, *to).unwrap())
            .collect()
    }

    #[test]
    fn packed_ranges_lead_back_to_the_content() {
        let packed = ranges(&[(10, 20), (100, 105), (1000, 1100)]);
        assert_eq!((packed.len_bytes(), packed.range_count()), (115, 3));
        let real = |at, len| {
            let ranges = packed.real(at, len).map(|range| (range.start(), range.end()));
            ranges.collect::<Vec<_>>()
        };
        assert_eq!(real(0, 10), [(10, 20)]);
        assert_eq!(real(9, 8), [(19, 20), (100, 105), (1000, 1002)]);
        assert_eq!(real(114, 50), [(1099, 1100)]);
        assert_eq!(real(115, 1), []);
        let mut buffer = [0; 4];
        let content: Vec<u8> = (0..=255).cycle().take(2000).collect();
        let read = |at: u64, buffer: &mut [u8]| {
            buffer.copy_from_slice(&content[at as usize..][..buffer.len()]);
            Ok(())
        };
        packed.fill(8, &mut buffer, read).unwrap();
        assert_eq!(buffer, [18, 19, 100, 101]);
        let past = packed.fill(113, &mut buffer, read).unwrap_err();
        assert_eq!(past.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn findings_in_packed_contents_are_split_at_their_borders() {
        // A run of bytes that lies in two old ranges comes back in two new ones.
        let (known, fresh) = (noise(1, 100), noise(2, 50));
        let old = ranges(&[(0, 60), (500, 540)]);
        let new = ranges(&[(200, 250), (300, 380), (700, 720)]);
        let content = [&fresh[..], &known[..]].concat();
        let sink = Unpacked {
            sink: FoundExtents::default(),
            old: &old,
            new: &new,
        };
        let (found, stats) = InMemoryFinder::new(&known).find(&content, sink).unwrap();
        assert_eq!((stats.literal_bytes, stats.copied_bytes), (50, 100));
        let copy = |start, end, base_offset| (ByteRange::new(start, end).unwrap(), Source::Copy { base_offset });
        let expected = vec![
            (ByteRange::new(200, 250).unwrap(), Source::Literal(fresh)),
            copy(300, 360, 0),
            copy(360, 380, 500),
            copy(700, 720, 520),
        ];
        assert_eq!(found.sink.extents, expected);
    }
}
