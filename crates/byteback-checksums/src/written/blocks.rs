//! Sums of blocks, and how a sum follows a change of a part of its block.
//!
//! The sum of a block is the CRC-32C of its 4,096 bytes; bytes behind the end of the file count as
//! zeros, so that lengthening a file changes no sum. The CRC is linear: the sums of two blocks
//! differ by a value that depends on their difference alone. So a change of a part needs the old
//! bytes of that part and the old sum, never the rest of the block. Damage in the rest of the block
//! stays noticed.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use byteback_extents::{ByteRange, ExtentSet};

/// Bytes of a block.
pub const BLOCK_LEN: u64 = 4096;
const BLOCK: usize = BLOCK_LEN as usize;

/// Blocks whose sums lie in one row.
pub(super) const CHUNK_BLOCKS: u64 = 256;
const CHUNK: usize = CHUNK_BLOCKS as usize;

static ZEROS: [u8; BLOCK] = [0; BLOCK];

/// The sum of a block of zeros.
pub(super) fn zero_sum() -> u32 {
    static SUM: OnceLock<u32> = OnceLock::new();
    *SUM.get_or_init(|| crc32c::crc32c(&ZEROS))
}

fn zeros(len: usize) -> &'static [u8] {
    ZEROS.get(..len.min(BLOCK)).unwrap_or_default()
}

/// The sum of a block that begins with `bytes` and continues with zeros.
pub(super) fn sum_of(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(bytes), zeros(BLOCK.saturating_sub(bytes.len())))
}

/// The sum of a block after its `len` bytes at `at` become `new` (`None`: zeros). They were `old`,
/// which may be shorter: zeros follow.
pub(super) fn patched(sum: u32, at: usize, old: &[u8], new: Option<&[u8]>, len: usize) -> u32 {
    let missing = zeros(len.saturating_sub(old.len()));
    let before = crc32c::crc32c_append(crc32c::crc32c(old), missing);
    let after = crc32c::crc32c(new.unwrap_or(zeros(len)));
    let behind = zeros(BLOCK.saturating_sub(at.saturating_add(len)));
    // The difference's contribution, moved to its place.
    sum ^ crc32c::crc32c_append(before ^ after, behind) ^ crc32c::crc32c_append(0, behind)
}

/// A set of blocks of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bits([u64; CHUNK / 64]);

impl Bits {
    const ALL: Self = Self([u64::MAX; CHUNK / 64]);

    fn has(&self, index: usize) -> bool {
        self.0.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    fn put(&mut self, index: usize, is_in: bool) {
        if let Some(word) = self.0.get_mut(index / 64) {
            *word = *word & !(1 << (index % 64)) | u64::from(is_in) << (index % 64);
        }
    }
}

/// The sums of the blocks of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Blocks whose sums are in memory; for the others the row below counts.
    touched: Bits,
    known: Bits,
    sums: Box<[u32; CHUNK]>,
    /// The file's version when this was last changed.
    pub(super) version: u64,
    /// The row in the database is out of date.
    pub(super) is_dirty: bool,
}

impl Chunk {
    /// A chunk that overrides no block of its row.
    fn untouched() -> Self {
        Self {
            touched: Bits::default(),
            known: Bits::default(),
            sums: Box::new([0; CHUNK]),
            version: 0,
            is_dirty: false,
        }
    }

    /// A chunk with no known blocks.
    pub(super) fn unknown() -> Self {
        Self {
            touched: Bits::ALL,
            ..Self::untouched()
        }
    }

    /// A chunk of zeros only.
    fn zero() -> Self {
        Self {
            touched: Bits::ALL,
            known: Bits::ALL,
            sums: Box::new([zero_sum(); CHUNK]),
            ..Self::untouched()
        }
    }

    pub(super) fn put(&mut self, index: usize, sum: Option<u32>) {
        self.touched.put(index, true);
        self.known.put(index, sum.is_some());
        if let Some(place) = self.sums.get_mut(index) {
            *place = sum.unwrap_or(0);
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<u32> {
        self.sums.get(index).copied().filter(|_| self.known.has(index))
    }

    fn is_complete(&self) -> bool {
        self.touched == Bits::ALL
    }

    fn lay_over(&mut self, below: &Self) {
        for index in (0..CHUNK).filter(|index| !self.touched.has(*index)).collect::<Vec<_>>() {
            self.put(index, below.get(index));
        }
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.known == Bits::default()
    }

    pub(super) fn is_zero(&self) -> bool {
        self.known == Bits::ALL && self.sums.iter().all(|sum| *sum == zero_sum())
    }
}

/// Finds the row of a chunk whose sums are not in memory, if there is one.
pub(super) type Rows<'a> = &'a dyn Fn(u64) -> Option<Chunk>;

/// The sums of a file: those in memory, over the rows of the database.
///
/// The sums of a chunk are those in memory; else, unless it is void, those of its row; else those
/// of zeros, if it is among `zeros`; else unknown. No chunk among `zeros` has a row that is not
/// void. Blocks behind the end of the file are zeros.
#[derive(Debug, Default)]
pub(super) struct FileSums {
    pub(super) chunks: BTreeMap<u64, Chunk>,
    /// Chunks whose rows no longer count.
    pub(super) void: ExtentSet,
    /// Void chunks whose rows are being removed.
    pub(super) leaving: ExtentSet,
    /// Chunks without a row that are zeros.
    pub(super) zeros: ExtentSet,
    /// The version of the latest change.
    pub(super) version: u64,
}

/// All chunks that a file can have.
pub(super) const EVERY_CHUNK: ByteRange = match ByteRange::new(0, u64::MAX) {
    Some(all) => all,
    None => unreachable!(),
};

/// New sums of the blocks at both ends of a change that are changed in part; `None` if unknown from
/// now on.
pub(super) type Edges = Vec<(u64, Option<u32>)>;

fn place(block: u64) -> (u64, usize) {
    (block / CHUNK_BLOCKS, usize::try_from(block % CHUNK_BLOCKS).unwrap_or(0))
}

/// The blocks that lie wholly within a range of bytes, from the first to behind the last.
pub(super) fn blocks_within(range: ByteRange) -> (u64, u64) {
    let first = range.start().div_ceil(BLOCK_LEN);
    (first, (range.end() / BLOCK_LEN).max(first))
}

impl FileSums {
    fn below(&self, chunk: u64, rows: Rows<'_>) -> Chunk {
        if self.zeros.contains(chunk) {
            return Chunk::zero();
        }
        if self.void.contains(chunk) || self.leaving.contains(chunk) {
            return Chunk::unknown();
        }
        rows(chunk).unwrap_or_else(Chunk::unknown)
    }

    /// The chunk, completed from its row.
    pub(super) fn complete(&mut self, chunk: u64, rows: Rows<'_>) -> &mut Chunk {
        let below = match self.chunks.get(&chunk) {
            Some(known) if known.is_complete() => None,
            _ => Some(self.below(chunk, rows)),
        };
        let known = self.chunks.entry(chunk).or_insert_with(Chunk::untouched);
        if let Some(below) = below {
            known.lay_over(&below);
        }
        known
    }

    /// The sum of a block.
    pub(super) fn get(&mut self, block: u64, rows: Rows<'_>) -> Option<u32> {
        let (chunk, index) = place(block);
        match self.chunks.get(&chunk) {
            Some(known) if known.touched.has(index) => known.get(index),
            // A chunk of zeros, or one that is unknown as a whole, need not be loaded.
            None if self.zeros.contains(chunk) => Some(zero_sum()),
            None if self.void.contains(chunk) => None,
            _ => self.complete(chunk, rows).get(index),
        }
    }

    pub(super) fn set(&mut self, block: u64, sum: Option<u32>) {
        let (chunk, index) = place(block);
        let version = self.version;
        let known = self.chunks.entry(chunk).or_insert_with(Chunk::untouched);
        known.put(index, sum);
        known.version = version;
        known.is_dirty = true;
    }

    /// Marks the blocks from `first` up to, not including, `end` as zeros or unknown.
    fn set_all(&mut self, first: u64, end: u64, is_zero: bool) {
        let sum = is_zero.then(zero_sum);
        let to = match end {
            u64::MAX => u64::MAX,
            end => end / CHUNK_BLOCKS,
        };
        let from = first.div_ceil(CHUNK_BLOCKS);
        let Some(whole) = ByteRange::new(from, to) else {
            (first..end).for_each(|block| self.set(block, sum));
            return;
        };
        (first..from.saturating_mul(CHUNK_BLOCKS)).for_each(|block| self.set(block, sum));
        (to.saturating_mul(CHUNK_BLOCKS)..end).for_each(|block| self.set(block, sum));
        let gone: Vec<u64> = self.chunks.range(from..to).map(|(chunk, _)| *chunk).collect();
        for chunk in gone {
            self.chunks.remove(&chunk);
        }
        self.void.insert(whole);
        match is_zero {
            true => self.zeros.insert(whole),
            false => self.zeros.remove(whole),
        }
    }

    /// Marks blocks as unknown.
    pub(super) fn unknown(&mut self, first: u64, end: u64) {
        self.set_all(first, end, false);
    }

    /// Marks blocks as zeros.
    pub(super) fn zero(&mut self, first: u64, end: u64) {
        self.set_all(first, end, true);
    }

    /// Forgets everything but the file's end at `len_bytes`; even that, if it is not known.
    pub(super) fn forget(&mut self, len_bytes: Option<u64>) {
        self.chunks.clear();
        self.void.insert(EVERY_CHUNK);
        self.zeros.clear();
        if let Some(len_bytes) = len_bytes {
            self.zero(len_bytes.div_ceil(BLOCK_LEN), u64::MAX);
        }
    }

    /// The new sums of blocks that lie partly in `range`, when its bytes become `new` (`None`:
    /// zeros). `old` reads the old bytes: fewer at the end of the file, `None` if they cannot be
    /// read.
    pub(super) fn edges(
        &mut self,
        range: ByteRange,
        new: Option<&[u8]>,
        rows: Rows<'_>,
        old: &mut dyn FnMut(u64, &mut [u8]) -> Option<usize>,
    ) -> Edges {
        let (first, last) = (range.start() / BLOCK_LEN, (range.end() - 1) / BLOCK_LEN);
        let mut edges = Edges::new();
        let mut buffer = [0; BLOCK];
        for block in [Some(first), Some(last).filter(|last| *last != first)]
            .into_iter()
            .flatten()
        {
            let Some(whole) = ByteRange::from_offset_len(block.saturating_mul(BLOCK_LEN), BLOCK_LEN) else {
                continue;
            };
            let Some(part) = whole.intersect(range).filter(|part| *part != whole) else {
                continue;
            };
            let sum = self.get(block, rows).and_then(|sum| {
                let len = usize::try_from(part.len_bytes()).ok()?;
                let before = buffer.get_mut(..len)?;
                let count = old(part.start(), before)?;
                let from = usize::try_from(part.start() - range.start()).ok()?;
                let after = match new {
                    Some(new) => Some(new.get(from..from.checked_add(len)?)?),
                    None => None,
                };
                let at = usize::try_from(part.start() - whole.start()).ok()?;
                Some(patched(sum, at, before.get(..count)?, after, len))
            });
            edges.push((block, sum));
        }
        edges
    }

    pub(super) fn put_edges(&mut self, edges: Edges) {
        for (block, sum) in edges {
            self.set(block, sum);
        }
    }
}

#[cfg(test)]
mod tests;
