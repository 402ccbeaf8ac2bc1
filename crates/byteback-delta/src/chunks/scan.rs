//! The rolling hash that borders depend on, and the search for the next window that may end a
//! chunk.
//!
//! With x the bytes of a window of 32, its hash is the sum of x\[i\] M^(31 - i), less a constant,
//! modulo 2^16 (Rabin and Karp), and a window is a *candidate* if that is below a limit: `limit`
//! windows in 65,536 are. FastCDC's gear hash is the same sum with M = 2 and a table in front of
//! it. An odd M lets all bits depend on all 32 bytes, hence 16 bits suffice; and sums of windows
//! can be had without rolling: those of 4 bytes from bytes, of 16 from those of 4, of 32 from those
//! of 16, for many windows at once, by multiplications and additions of vectors. The compiler makes
//! these of plain loops.
//!
//! More than 16 bits are needed where averages are long: then a candidate counts only if a second
//! hash of its window has zeros at its end.
//!
//! Candidates are a property of 32 bytes alone, wherever chunks begin. The constant is chosen so
//! that 32 equal bytes are no candidate for averages of 1 KiB and more: a run of one byte is cut at
//! the longest length.
//!
//! Vector units of 256 bits are used where the processor has them; the results are the same. (Those
//! of 512 were slower.)

use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a window.
pub(super) const WINDOW_LEN: usize = 32;

/// Windows that are hashed in one go: their hashes stay in the processor's nearest cache.
const BLOCK: usize = 1024;

/// Bytes that these windows lie in, and room for sums that are no window's.
const BLOCK_LEN: usize = BLOCK + WINDOW_LEN;

/// Fewer windows than this are hashed one by one.
const FEW: usize = 32;

/// Windows among which a candidate is looked for in one go.
const GROUP: usize = 64;

/// Congruent to 5 modulo 8, so that its powers have the longest period.
const MULTIPLIER: u16 = 0x6b8d;

/// What is taken off a hash.
const TARGET: u16 = 0x1357;

/// Which windows are candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// So many hashes of 65,536 are.
    limit: u16,
    /// And of these one in so many; a power of two, less one.
    mask: u64,
}

impl Rule {
    /// One window in `distance`, a power of two from 64 on.
    pub(super) const fn one_in(distance: u32) -> Self {
        // Averages of 8 KiB: limits of 8 and, behind the average, 32.
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

/// The first of the `windows` windows of `bytes`, by where it begins, that is a candidate. `bytes`
/// are `windows + 31`.
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

/// The hash of one window, byte by byte: what the other way is compared with.
fn hash_of(window: &[u8]) -> u16 {
    let sum = window.iter().fold(0, |hash: u16, &byte| {
        hash.wrapping_mul(MULTIPLIER).wrapping_add(u16::from(byte))
    });
    sum.wrapping_sub(TARGET)
}

/// The hashes of [`BLOCK`] windows, each beginning a byte behind the one before.
struct Block {
    hashes: [u16; BLOCK_LEN],
    /// The least of each group.
    least: [u16; BLOCK / GROUP],
}

impl Block {
    const EMPTY: Self = Self {
        hashes: [0; BLOCK_LEN],
        least: [0; BLOCK / GROUP],
    };

    /// The first allowed hash from `from` on.
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
        // Sums of 4 bytes become those of 16. What is read lies ahead of what is written: one array
        // suffices.
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
        // A loop of its own: both together are no vector code.
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
