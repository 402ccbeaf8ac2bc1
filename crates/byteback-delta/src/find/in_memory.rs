//! Comparison of two contents that are in memory, down to short matches: rows that a database
//! moves within its pages, lines that a program adds to each of many mails.
//!
//! [`super::find_local`] compares contents of any length, sums blocks of the base that grow with
//! it, and finds what is longer than two of them. Here every [`STEP`]th position of the base is in
//! a table by the [`SEED_LEN`] bytes that follow, and matches of [`MATCH_LEN_MIN`] bytes are found
//! wherever they are, unless very much of the base repeats.
//!
//! At each position of the new content, the shift of the last match is tried first: mostly it goes
//! on after a few bytes that differ. Then the longest match counts among the first positions in the
//! table, and it is extended in both directions, byte by byte.
//!
//! *Memory*: about a byte for each byte of the base. *Crafted contents* cost [`CHAIN_MAX`]
//! comparisons for each byte that is not found, each of at most [`MATCH_LEN_MIN`] bytes.

use byteback_extents::ByteRange;

use super::{ExtentSink, FindStats};

/// Number of bytes by which positions are looked up.
const SEED_LEN: usize = 16;

/// The distance of the positions of the base in the table.
const STEP: usize = 8;

/// The shortest match worth an extent of its own. Shorter ones were found in databases, and cost
/// more than the compressed bytes that they saved.
const MATCH_LEN_MIN: usize = 32;

/// Most positions that are compared at one position of the new content.
const CHAIN_MAX: usize = 16;

/// A match of this length ends the search for a longer one.
const MATCH_LEN_ENOUGH: usize = 4096;

/// A content in memory in which others are found.
pub struct InMemoryFinder<'b> {
    base: &'b [u8],
    table: SeedTable,
}

impl<'b> InMemoryFinder<'b> {
    /// Prepares to find contents in `base`.
    #[must_use]
    pub fn new(base: &'b [u8]) -> Self {
        Self {
            base,
            table: SeedTable::of(base),
        }
    }

    /// Finds `new` in the base. Returns the sink and the statistics.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn find<S: ExtentSink>(&self, new: &[u8], mut sink: S) -> Result<(S, FindStats), S::Error> {
        let mut stats = FindStats {
            examined_bytes: new.len() as u64,
            ..FindStats::default()
        };
        let mut last = Match::default();
        let (mut done, mut at) = (0, 0);
        while at < new.len() {
            let Some(found) = self.best_match(new, (done, at), last) else {
                at += 1;
                continue;
            };
            if found.new_at > done {
                sink.literal(done as u64, new.get(done..found.new_at).unwrap_or_default())?;
                stats.literal_bytes += (found.new_at - done) as u64;
            }
            if let Some(range) = ByteRange::from_offset_len(found.new_at as u64, found.len as u64) {
                sink.copy(range, found.base_at as u64)?;
                stats.copied_bytes += range.len_bytes();
            }
            done = found.new_at + found.len;
            at = done;
            last = found;
        }
        if done < new.len() {
            sink.literal(done as u64, new.get(done..).unwrap_or_default())?;
            stats.literal_bytes += (new.len() - done) as u64;
        }
        Ok((sink, stats))
    }

    /// The longest match that begins at `at` in the new content, or before it and not before
    /// `done`, if it is long enough.
    fn best_match(&self, new: &[u8], (done, at): (usize, usize), last: Match) -> Option<Match> {
        let seed = seed_at(new, at)?;
        let candidates = self.table.positions(seed).take(CHAIN_MAX);
        let mut best: Option<Match> = None;
        for base_at in last.same_shift(at).into_iter().chain(candidates) {
            let found = Match::at(self.base, new, base_at, at);
            // Others only share the bucket.
            if found.len < SEED_LEN {
                continue;
            }
            let found = found.extended_back(self.base, new, done);
            if found.len >= MATCH_LEN_MIN && best.is_none_or(|best| found.len > best.len) {
                best = Some(found);
            }
            if found.len >= MATCH_LEN_ENOUGH {
                break;
            }
        }
        best
    }
}

/// Equal bytes of both contents.
#[derive(Clone, Copy, Default)]
struct Match {
    new_at: usize,
    base_at: usize,
    len: usize,
}

impl Match {
    /// The match from these positions on.
    fn at(base: &[u8], new: &[u8], base_at: usize, new_at: usize) -> Self {
        let (base, new) = (base.get(base_at..), new.get(new_at..));
        let len = base.zip(new).map_or(0, |(base, new)| common_prefix(base, new));
        Self { new_at, base_at, len }
    }

    /// The position of the base that lies at the same shift.
    fn same_shift(self, new_at: usize) -> Option<usize> {
        self.base_at.checked_add(new_at - self.new_at)
    }

    /// The match with the equal bytes before it, down to `done` of the new content.
    fn extended_back(self, base: &[u8], new: &[u8], done: usize) -> Self {
        let new_before = new.get(done..self.new_at).unwrap_or_default().iter().rev();
        let base_before = base.get(..self.base_at).unwrap_or_default().iter().rev();
        let more = new_before.zip(base_before).take_while(|(a, b)| a == b).count();
        Self {
            new_at: self.new_at - more,
            base_at: self.base_at - more,
            len: self.len + more,
        }
    }
}

/// The number of equal bytes at the start.
fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    let at = 8 * words.take_while(|(a, b)| a == b).count();
    let rest = a
        .get(at..)
        .unwrap_or_default()
        .iter()
        .zip(b.get(at..).unwrap_or_default());
    at + rest.take(8).take_while(|(a, b)| a == b).count()
}

/// The bytes by which a position is looked up, if there are as many.
fn seed_at(content: &[u8], at: usize) -> Option<u128> {
    let bytes = content.get(at..)?.first_chunk::<SEED_LEN>()?;
    Some(u128::from_ne_bytes(*bytes))
}

/// The positions of a content by their seeds.
struct SeedTable {
    /// The first position of each bucket, as its step plus one; 0 in an empty bucket.
    heads: Vec<u32>,
    /// The one behind each position, in the same way.
    behind: Vec<u32>,
    shift: u32,
}

impl SeedTable {
    fn of(base: &[u8]) -> Self {
        let positions = base.len().checked_sub(SEED_LEN).map_or(0, |last| last / STEP + 1);
        let buckets = positions.next_power_of_two().max(2);
        let mut table = Self {
            heads: vec![0; buckets],
            behind: vec![0; positions],
            shift: u64::BITS - buckets.trailing_zeros(),
        };
        // Positions beyond 2^32 steps are not found.
        for step in (0..positions).rev() {
            let (Some(seed), Ok(number)) = (seed_at(base, step * STEP), u32::try_from(step + 1)) else {
                continue;
            };
            let bucket = table.bucket(seed);
            if let (Some(head), Some(behind)) = (table.heads.get_mut(bucket), table.behind.get_mut(step)) {
                *behind = std::mem::replace(head, number);
            }
        }
        table
    }

    fn bucket(&self, seed: u128) -> usize {
        let (low, high) = (seed as u64, (seed >> 64) as u64);
        let mixed = (low ^ high.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> self.shift) as usize
    }

    /// The positions with this seed, and others in its bucket, in ascending order.
    fn positions(&self, seed: u128) -> impl Iterator<Item = usize> + '_ {
        let mut number = self.heads.get(self.bucket(seed)).copied().unwrap_or(0);
        std::iter::from_fn(move || {
            let step = (number as usize).checked_sub(1)?;
            number = self.behind.get(step).copied().unwrap_or(0);
            Some(step * STEP)
        })
    }
}

#[cfg(test)]
mod tests;
