//! A flat table from weak checksums to blocks, with four slots per bucket and two buckets per
//! checksum (SkySync, section 3.2.2).
//!
//! Both buckets follow from the checksum itself, which is evenly distributed, being a CRC: no
//! second hash is computed. A lookup examines two buckets, without pointers. Where both are full,
//! an insertion moves an entry to that entry's other bucket, and so on (cuckoo hashing). The number
//! of buckets is a power of two, chosen by equation 5.
//!
//! *Where this differs from the paper.* Its second bucket is the first one with the highest bit
//! flipped (equation 4). The two are then each other's second bucket: entries of such a pair can
//! only move within it, so moving never makes room, and the table behaves like one with 8-slot
//! buckets, which overflow early (test `closed_pairs_overflow_long_before_they_are_full`: at a load
//! of a quarter, not at 0.85 to 0.91). Here the highest bit is flipped as well, so that the two lie
//! in different halves, but the bits below come from the checksum's other end. That fills up to
//! 0.95 and more.
//!
//! *Crafted checksums.* All checksums of a list may fall into the same two buckets, or be equal. An
//! insertion moves at most [`MOVES_MAX`] entries; an entry without a place then goes into an
//! ordered list, where a lookup takes logarithmic time. Of the entries with one checksum, the first
//! [`EQUAL_MAX`] of the input are kept; the others are merely not found.

/// The most entries kept for one checksum.
pub const EQUAL_MAX: usize = 8;

/// The number of slots in a bucket.
const SLOTS: usize = 4;

/// The most entries that one insertion moves.
const MOVES_MAX: usize = 256;

/// Once the overflow list has this many entries, insertions move nothing.
const OVERFLOW_SEARCHED: usize = 4096;

/// The load that equation 5 aims at; the next power of two is taken, so that the real one is
/// between half of it and this.
const LOAD_FACTOR: f64 = 0.85;

/// 2^64 divided by the golden ratio, odd.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// A checksum that can be a key: CRCs of 32 and of 64 bits.
pub trait WeakSum: Copy + Ord + sealed::Sealed {
    /// The checksum as a number.
    fn number(self) -> u64;

    /// The checksum whose lower bits are `bucket` and whose other bits are zero.
    fn of_bucket(bucket: usize) -> Self;
}

impl WeakSum for u32 {
    #[inline(always)]
    fn number(self) -> u64 {
        u64::from(self)
    }

    fn of_bucket(bucket: usize) -> Self {
        bucket as u32
    }
}

impl WeakSum for u64 {
    #[inline(always)]
    fn number(self) -> u64 {
        self
    }

    fn of_bucket(bucket: usize) -> Self {
        bucket as u64
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

/// Four entries. An empty slot holds a checksum that belongs to another bucket (see
/// [`CuckooTable::vacant`]), so that a lookup need not ask whether a slot is empty.
#[derive(Clone, Copy, Debug)]
struct Bucket<W, V> {
    weak: [W; SLOTS],
    values: [V; SLOTS],
}

/// Computes the two buckets of a checksum.
#[derive(Clone, Copy, Debug)]
struct Places {
    /// The number of buckets, less one.
    mask: usize,
    /// The highest bit of a bucket's number.
    half: usize,
    shift: u32,
}

impl Places {
    /// Sizes a table for `entries` (equation 5).
    fn for_entries(entries: usize) -> Self {
        let buckets = (entries as f64 / SLOTS as f64 / LOAD_FACTOR).ceil() as usize;
        // Four at least, as `vacant` needs a lower bit than the highest; 2^31 at most, so that a
        // checksum of 32 bits has two.
        Self::with_bits(buckets.next_power_of_two().trailing_zeros().clamp(2, 31))
    }

    fn with_bits(bits: u32) -> Self {
        Self {
            mask: (1 << bits) - 1,
            half: 1 << (bits - 1),
            shift: u64::BITS - bits,
        }
    }

    /// The first bucket (equation 3).
    #[inline(always)]
    fn first(self, weak: u64) -> usize {
        weak as usize & self.mask
    }

    /// The second bucket, in the other half; see the module's header.
    #[inline(always)]
    fn second(self, weak: u64) -> usize {
        let mixed = (weak.wrapping_mul(MIX) >> self.shift) as usize;
        (mixed & (self.half - 1)) | ((weak as usize & self.half) ^ self.half)
    }

    fn other(self, weak: u64, bucket: usize) -> usize {
        let first = self.first(weak);
        if first == bucket { self.second(weak) } else { first }
    }
}

/// The table. `V` is the value of an entry: `u32` for the number of a block whose strong checksum
/// lies elsewhere, `()` where only weak checksums are compared (the paper's Entry2 and Entry1).
#[derive(Clone, Debug)]
pub struct CuckooTable<W, V> {
    buckets: Vec<Bucket<W, V>>,
    places: Places,
    /// The entries that found no slot, ascending by checksum.
    overflow: Vec<(W, V)>,
    len: usize,
}

impl<W: WeakSum, V: Copy + Default> CuckooTable<W, V> {
    /// A table of these entries, sized for the expected number. Of entries with equal checksums,
    /// the first ones are kept.
    #[must_use]
    pub fn build(expected_entries: usize, entries: impl Iterator<Item = (W, V)>) -> Self {
        Self::build_at(Places::for_entries(expected_entries), entries)
    }

    fn build_at(places: Places, entries: impl Iterator<Item = (W, V)>) -> Self {
        let mut table = Self {
            buckets: (0..=places.mask)
                .map(|bucket| Bucket {
                    weak: [Self::vacant(places, bucket); SLOTS],
                    values: [V::default(); SLOTS],
                })
                .collect(),
            places,
            overflow: Vec::new(),
            len: 0,
        };
        for (weak, value) in entries {
            table.insert(weak, value);
        }
        table.overflow.sort_by_key(|&(weak, _)| weak);
        table.cut_equal();
        table
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The share of slots that are in use, from 0 to 1.
    #[must_use]
    pub fn load(&self) -> f64 {
        (self.len - self.overflow.len()) as f64 / (self.buckets.len() * SLOTS) as f64
    }

    /// The number of entries outside the buckets.
    #[cfg(test)]
    fn overflowed(&self) -> usize {
        self.overflow.len()
    }

    /// Whether there is an entry with this checksum.
    #[inline(always)]
    #[must_use]
    pub fn contains(&self, weak: W) -> bool {
        let number = weak.number();
        let in_bucket = |bucket: usize| {
            // The mask shows the compiler that the bucket exists.
            self.buckets[bucket & (self.buckets.len() - 1)]
                .weak
                .iter()
                .fold(false, |found, &at| found | (at == weak))
        };
        // Both are loaded before anything depends on either, so that the two loads overlap.
        in_bucket(self.places.first(number)) | in_bucket(self.places.second(number)) || self.has_overflowed(weak)
    }

    /// The entries with this checksum, in no particular order, at most twice [`EQUAL_MAX`].
    /// Examines two buckets, and the ordered list if there is one.
    pub fn get(&self, weak: W) -> impl Iterator<Item = V> + '_ {
        let number = weak.number();
        let (first, second) = (self.places.first(number), self.places.second(number));
        let from = self.overflow.partition_point(|&(at, _)| at < weak);
        let outside = self.overflow[from..].iter().take_while(move |&&(at, _)| at == weak);
        [first, second]
            .into_iter()
            .flat_map(|bucket| {
                let Bucket { weak, values } = &self.buckets[bucket];
                weak.iter().zip(values)
            })
            .filter(move |&(&at, _)| at == weak)
            .map(|(_, &value)| value)
            .chain(outside.map(|&(_, value)| value))
    }

    #[inline(never)]
    #[cold]
    fn search_overflow(&self, weak: W) -> bool {
        self.overflow.binary_search_by_key(&weak, |&(at, _)| at).is_ok()
    }

    #[inline(always)]
    fn has_overflowed(&self, weak: W) -> bool {
        !self.overflow.is_empty() && self.search_overflow(weak)
    }

    /// The checksum that marks an empty slot of this bucket: the neighbour's number. Its first
    /// bucket is the neighbour, in the same half, and its second one lies in the other half. So it
    /// is never looked up in this bucket.
    fn vacant(places: Places, bucket: usize) -> W {
        W::of_bucket((bucket ^ 1) & places.mask)
    }

    /// Whether a slot is empty. Entries of this bucket have their first bucket either here or in
    /// the other half, hence never in the neighbour.
    fn is_vacant(&self, bucket: usize, slot: usize) -> bool {
        self.places.first(self.buckets[bucket].weak[slot].number()) == bucket ^ 1
    }

    fn insert(&mut self, weak: W, value: V) {
        let number = weak.number();
        let (first, second) = (self.places.first(number), self.places.second(number));
        let equal = [first, second]
            .into_iter()
            .flat_map(|bucket| self.buckets[bucket].weak)
            .filter(|&at| at == weak)
            .count();
        if equal == EQUAL_MAX {
            return;
        }
        self.len += 1;
        for bucket in [first, second] {
            if self.put(bucket, weak, value) {
                return;
            }
        }
        let (mut weak, mut value, mut bucket) = (weak, value, first);
        // Once many entries have found no slot, the input is crafted, and searching for one is not
        // worth the time.
        let moves = if self.overflow.len() < OVERFLOW_SEARCHED {
            MOVES_MAX
        } else {
            0
        };
        for step in 0..moves {
            // Pseudo-random, so that no two entries evict each other for ever.
            let slot = (weak.number().wrapping_mul(MIX) >> (step % 62)) as usize % SLOTS;
            let Bucket { weak: sums, values } = &mut self.buckets[bucket];
            std::mem::swap(&mut sums[slot], &mut weak);
            std::mem::swap(&mut values[slot], &mut value);
            bucket = self.places.other(weak.number(), bucket);
            if self.put(bucket, weak, value) {
                return;
            }
        }
        self.overflow.push((weak, value));
    }

    fn put(&mut self, bucket: usize, weak: W, value: V) -> bool {
        for slot in 0..SLOTS {
            if self.is_vacant(bucket, slot) {
                self.buckets[bucket].weak[slot] = weak;
                self.buckets[bucket].values[slot] = value;
                return true;
            }
        }
        false
    }

    /// Cuts the overflow list to [`EQUAL_MAX`] entries for each checksum.
    fn cut_equal(&mut self) {
        let before = self.overflow.len();
        let (mut last, mut equal) = (None, 0);
        self.overflow.retain(|&(weak, _)| {
            equal = if last == Some(weak) { equal + 1 } else { 0 };
            last = Some(weak);
            equal < EQUAL_MAX
        });
        self.len -= before - self.overflow.len();
        self.overflow.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests;
