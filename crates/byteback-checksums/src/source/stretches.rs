//! The checksums of a whole file in memory, stretch after stretch.
//!
//! Invariant: stretches added by [`Stretches::take`] obey the contract of [`Run`], whatever their
//! source. They follow each other without gaps, each has as many checksums as blocks, and none lies
//! behind the end. So readers of them need not check again.

use byteback_extents::ByteRange;

use super::{Layout, Run, Unknown};

/// The knowledge about a stretch of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Index of the first byte of its checksums.
    Sums(usize),
    /// Chunks of many lengths.
    Chunks {
        /// Index of the first chunk's end.
        first_end: usize,
        /// Index of the first byte of the first chunk's checksum.
        first_sum: usize,
        /// Number of chunks.
        count: usize,
    },
    /// The stretch holds zeros.
    Zeros,
    /// Nothing is known, for this reason.
    Unknown(Unknown),
}

/// Stretches of a file from byte 0 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretches {
    /// The kind and the length of checksums, and the blocks that they are of.
    pub layout: Layout,
    /// The stretches, ascending and without gaps.
    pub runs: Vec<(ByteRange, Known)>,
    /// The checksums of all stretches, one after the other.
    pub sums: Vec<u8>,
    /// Ends of the chunks.
    ends: Vec<u64>,
}

impl Stretches {
    /// No stretch yet.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            runs: Vec::new(),
            sums: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Appends a stretch of zeros or of unknown content, or lengthens the last one.
    pub fn push(&mut self, start: u64, end: u64, known: Known) {
        let Some(range) = ByteRange::new(start, end) else {
            return;
        };
        match self.runs.last_mut() {
            Some((last, own)) if *own == known => *last = last.hull(range),
            Some((last, Known::Sums(_))) if matches!(known, Known::Sums(_)) => *last = last.hull(range),
            _ => self.runs.push((range, known)),
        }
    }

    /// Appends the checksums of one or more blocks, or lengthens the last stretch by them.
    pub fn push_sums(&mut self, start: u64, end: u64, sums: &[u8]) {
        self.push(start, end, Known::Sums(self.sums.len()));
        self.sums.extend_from_slice(sums);
    }

    /// The end of the last stretch.
    pub(super) fn end(&self) -> u64 {
        self.runs.last().map_or(0, |(range, _)| range.end())
    }

    /// Appends a stretch as reported for a file of `len_bytes`.
    ///
    /// # Errors
    /// The way in which the stretch breaks the contract, in words.
    pub(super) fn take(&mut self, run: Run<'_>, len_bytes: u64) -> Result<(), &'static str> {
        let range = run.range();
        if range.start() != self.end() || range.end() > len_bytes {
            return Err("runs of a file that are not contiguous");
        }
        let block_len = u64::from(self.layout.block_len);
        let sum_len = self.layout.kind.len_bytes() as u64;
        let known = match run {
            Run::Zeros { .. } => Known::Zeros,
            Run::Unknown { why, .. } => Known::Unknown(why),
            Run::Sums { sums, .. } => {
                let ends_with_block = range.end() == len_bytes || range.end().is_multiple_of(block_len);
                if !range.start().is_multiple_of(block_len) || !ends_with_block {
                    return Err("misaligned blocks");
                }
                if self.layout.block_count(range).checked_mul(sum_len) != Some(sums.len() as u64) {
                    return Err("more or fewer checksums than blocks");
                }
                let first = self.sums.len();
                self.sums.extend_from_slice(sums);
                Known::Sums(first)
            }
            Run::Chunks { ends, sums, .. } => {
                let mut start = range.start();
                for end in ends {
                    if *end <= start || *end - start > block_len {
                        return Err("a chunk that is empty or too long");
                    }
                    start = *end;
                }
                if start != range.end() {
                    return Err("chunks that do not end where their run does");
                }
                if (ends.len() as u64).checked_mul(sum_len) != Some(sums.len() as u64) {
                    return Err("more or fewer checksums than chunks");
                }
                let (first_end, first_sum) = (self.ends.len(), self.sums.len());
                self.ends.extend_from_slice(ends);
                self.sums.extend_from_slice(sums);
                Known::Chunks {
                    first_end,
                    first_sum,
                    count: ends.len(),
                }
            }
        };
        self.runs.push((range, known));
        Ok(())
    }

    /// The stretch with this index.
    pub fn run(&self, number: usize) -> Option<Run<'_>> {
        let (range, known) = *self.runs.get(number)?;
        Some(match known {
            Known::Zeros => Run::Zeros { range },
            Known::Unknown(why) => Run::Unknown { range, why },
            Known::Sums(first) => Run::Sums {
                range,
                sums: self.sums_from(first, self.layout.block_count(range)),
            },
            Known::Chunks {
                first_end,
                first_sum,
                count,
            } => Run::Chunks {
                range,
                ends: part(&self.ends, first_end, count),
                sums: self.sums_from(first_sum, count as u64),
            },
        })
    }

    fn sums_from(&self, first: usize, count: u64) -> &[u8] {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        part(&self.sums, first, count.saturating_mul(self.layout.kind.len_bytes()))
    }
}

fn part<T>(all: &[T], first: usize, count: usize) -> &[T] {
    all.get(first..first.saturating_add(count)).unwrap_or_default()
}
