//! The rolling hash that determines borders, and the search for the next window that may end a
//! chunk.
//!
//! With x the bytes of a window of 32, its hash is the sum of x\[i\] M^(31 - i), less a constant,
//! modulo 2^16 (Rabin and Karp), and a window is a *candidate* if its hash is below a limit, as
//! `limit` in 65,536 windows are. FastCDC's gear hash is the same sum with M = 2 and a table in
//! front of it. An odd M lets all bits depend on all 32 bytes, hence 16 bits suffice. And the sums
//! of many windows can be computed at once without rolling, by vector multiplications and
//! additions: sums of 4 bytes from bytes, of 16 from those of 4, of 32 from those of 16. The
//! compiler vectorises plain loops for this.
//!
//! Long averages need more than 16 bits: a candidate then counts only if a second hash of its
//! window ends in enough zero bits.
//!
//! Candidates are a property of 32 bytes alone, wherever chunks begin. The constant is chosen so
//! that 32 equal bytes are no candidate for averages of 1 KiB and more: a run of one byte is cut at
//! the maximum length.
//!
//! Vector units of 256 bits are used where the processor has them; the results are the same. (Units
//! of 512 bits were slower.)

use xxhash_rust::xxh3::xxh3_64;

/// The length of a window, in bytes.
pub(super) const WINDOW_LEN: usize = 32;

/// The number of windows hashed in one go: their hashes stay in the L1 cache.
const BLOCK: usize = 1024;

/// The bytes that these windows span, and room for intermediate sums that belong to no window.
const BLOCK_LEN: usize = BLOCK + WINDOW_LEN;

/// Fewer windows than this are hashed one by one.
const FEW: usize = 32;

/// The number of windows searched for a candidate in one go.
const GROUP: usize = 64;

/// The multiplier M; congruent to 5 modulo 8, so that its powers have the longest period.
const MULTIPLIER: u16 = 0x6b8d;

/// The constant subtracted from a hash.
const TARGET: u16 = 0x1357;

/// The rule by which windows are candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// The number of candidate hashes among 65,536.
    limit: u16,
    /// The bits that must be zero in a candidate's second hash; a power of two, less one.
    mask: u64,
}

impl Rule {
    /// The rule that makes one window in `distance` a candidate; `distance` is a power of two, at
    /// least 64.
    pub(super) const fn one_in(distance: u32) -> Self {
        // With an average of 8 KiB, the limits are 8 and, after the average, 32.
        match 65_536 / distance {
            limit if limit >= 8 => Self {
                limit: limit as u16,
                mask: 0,
            },
            _ => Self {
                limit: 8,
                mask: distance as u64 / 8192 - 1,
            },
        }
    }

    fn allows(self, hash: u16) -> bool {
        hash < self.limit
    }

    fn allows_window(self, window: &[u8]) -> bool {
        self.mask == 0 || xxh3_64(window) & self.mask == 0
    }
}

/// The start of the first candidate among the first `windows` windows of `bytes`, whose length is
/// `windows + 31`.
pub(super) fn first_candidate(bytes: &[u8], windows: usize, rule: Rule) -> Option<usize> {
    if windows < FEW {
        return (0..windows).find(|&at| is_candidate(bytes.get(at..at + WINDOW_LEN), rule));
    }
    let mut padded = [0; BLOCK_LEN];
    let mut block = Block::EMPTY;
    let mut start = 0;
    while start < windows {
        let rest = bytes.get(start..).unwrap_or_default();
        let bytes: &[u8; BLOCK_LEN] = match rest.first_chunk() {
            Some(bytes) => bytes,
            None => {
                padded[..rest.len()].copy_from_slice(rest);
                padded[rest.len()..].fill(0);
                &padded
            }
        };
        block.hash(bytes);
        let count = BLOCK.min(windows - start);
        let mut from = 0;
        while let Some(at) = block.first_allowed(from, rule).filter(|&at| at < count) {
            if rule.allows_window(&bytes[at..at + WINDOW_LEN]) {
                return Some(start + at);
            }
            from = at + 1;
        }
        start += BLOCK;
    }
    None
}

fn is_candidate(window: Option<&[u8]>, rule: Rule) -> bool {
    window.is_some_and(|window| rule.allows(hash_of(window)) && rule.allows_window(window))
}

/// The hash of one window, byte by byte: the reference for the vector code.
fn hash_of(window: &[u8]) -> u16 {
    let sum = window.iter().fold(0, |hash: u16, &byte| {
        hash.wrapping_mul(MULTIPLIER).wrapping_add(u16::from(byte))
    });
    sum.wrapping_sub(TARGET)
}

/// The hashes of [`BLOCK`] windows, each beginning one byte after the previous one.
struct Block {
    hashes: [u16; BLOCK_LEN],
    /// The smallest hash of each group.
    least: [u16; BLOCK / GROUP],
}

impl Block {
    const EMPTY: Self = Self {
        hashes: [0; BLOCK_LEN],
        least: [0; BLOCK / GROUP],
    };

    /// The index of the first allowed hash from `from` on.
    fn first_allowed(&self, from: usize, rule: Rule) -> Option<usize> {
        (from / GROUP..BLOCK / GROUP)
            .filter(|&group| rule.allows(self.least[group]))
            .flat_map(|group| group * GROUP..(group + 1) * GROUP)
            .find(|&at| at >= from && rule.allows(self.hashes[at]))
    }

    /// Hashes the windows that begin at each of the first [`BLOCK`] bytes.
    fn hash(&mut self, bytes: &[u8; BLOCK_LEN]) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the function is safe code that was compiled for processors with AVX2, and
            // this is one.
            return unsafe { self.hash_avx2(bytes) };
        }
        self.hash_anywhere(bytes);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn hash_avx2(&mut self, bytes: &[u8; BLOCK_LEN]) {
        self.hash_anywhere(bytes);
    }

    #[inline(always)]
    fn hash_anywhere(&mut self, bytes: &[u8; BLOCK_LEN]) {
        let hashes = &mut self.hashes;
        for at in 0..BLOCK_LEN - 3 {
            hashes[at] = u16::from(bytes[at])
                .wrapping_mul(power(3))
                .wrapping_add(u16::from(bytes[at + 1]).wrapping_mul(power(2)))
                .wrapping_add(u16::from(bytes[at + 2]).wrapping_mul(power(1)))
                .wrapping_add(u16::from(bytes[at + 3]));
        }
        // Sums of 4 bytes become those of 16. Reads stay ahead of writes, so one array suffices.
        for at in 0..BLOCK_LEN - 12 {
            hashes[at] = hashes[at]
                .wrapping_mul(power(12))
                .wrapping_add(hashes[at + 4].wrapping_mul(power(8)))
                .wrapping_add(hashes[at + 8].wrapping_mul(power(4)))
                .wrapping_add(hashes[at + 12]);
        }
        for at in 0..BLOCK {
            hashes[at] = hashes[at]
                .wrapping_mul(power(16))
                .wrapping_add(hashes[at + 16])
                .wrapping_sub(TARGET);
        }
        // A loop of its own: the compiler does not vectorise both together.
        let (groups, _) = hashes.as_chunks::<GROUP>();
        for (group, least) in groups.iter().zip(&mut self.least) {
            *least = group.iter().fold(u16::MAX, |least, &hash| least.min(hash));
        }
    }
}

/// A power of the multiplier.
const fn power(exponent: u32) -> u16 {
    MULTIPLIER.wrapping_pow(exponent)
}

#[cfg(test)]
mod tests;
