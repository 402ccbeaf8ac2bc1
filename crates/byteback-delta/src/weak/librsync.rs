//! The weak checksums of librsync's signatures (librsync's `rollsum.h` and `rabinkarp.h` are their
//! only description).
//!
//! - [`Rollsum`]: rsync's two sums, with 31 added to each byte. That adds 31 n to the first sum and
//!   31 n (n + 1) / 2 to the second, n being the window's length, so it is rsync's checksum with
//!   two constants.
//! - [`RabinKarp`]: a polynomial in a fixed multiplier, modulo 2^32, that starts with 1: for bytes
//!   x\[0\] to x\[n-1\] it is m^n + m^(n-1) x\[0\] + ... + x\[n-1\]. Its values are spread better
//!   than those of the sums.

use super::{Rolling, RollingSum};

/// The number that librsync adds to each byte.
const BYTE_OFFSET: u32 = 31;

/// librsync's older weak checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollsum(RollingSum);

impl Rolling for Rollsum {
    #[inline]
    fn of(window: &[u8]) -> Self {
        Self(RollingSum::of(window))
    }

    #[inline(always)]
    fn roll(&mut self, leaving: u8, coming: u8) {
        self.0.roll(leaving, coming);
    }

    #[inline(always)]
    fn shorten(&mut self, leaving: u8) {
        self.0.shorten(leaving);
    }

    #[inline(always)]
    fn value(self) -> u32 {
        let len = self.0.len;
        // n (n + 1) / 2 without losing the upper bit: one of the two is even.
        let triangle = if len.is_multiple_of(2) {
            (len / 2).wrapping_mul(len.wrapping_add(1))
        } else {
            len.wrapping_mul((len / 2).wrapping_add(1))
        };
        let a = self.0.a.wrapping_add(BYTE_OFFSET.wrapping_mul(len));
        let b = self.0.b.wrapping_add(BYTE_OFFSET.wrapping_mul(triangle));
        (b << 16) | (a & 0xffff)
    }
}

/// The multiplier m.
const MULTIPLIER: u32 = 0x0810_4225;

/// The inverse of m, modulo 2^32.
const INVERSE: u32 = 0x98f0_09ad;

/// A byte x that leaves a window of n removes m^(n-1) x, and the leading m^n becomes m^(n-1):
/// together m^(n-1) (x + m - 1).
const LEAVING: u32 = MULTIPLIER - 1;

/// The number of bytes summed in one go; the compiler vectorises this.
const LANES: usize = 16;

/// m^15, m^14, ... 1.
const POWERS: [u32; LANES] = {
    let mut powers = [1_u32; LANES];
    let mut at = LANES - 1;
    while at > 0 {
        powers[at - 1] = powers[at].wrapping_mul(MULTIPLIER);
        at -= 1;
    }
    powers
};

/// librsync's newer weak checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RabinKarp {
    hash: u32,
    /// m to the power of the window's length.
    power: u32,
}

impl Rolling for RabinKarp {
    #[inline]
    fn of(window: &[u8]) -> Self {
        let (mut hash, mut power) = (1_u32, 1_u32);
        let (chunks, rest) = window.as_chunks::<LANES>();
        let by_chunk = POWERS[0].wrapping_mul(MULTIPLIER);
        for chunk in chunks {
            let mut sum = 0_u32;
            for (&byte, factor) in chunk.iter().zip(POWERS) {
                sum = sum.wrapping_add(u32::from(byte).wrapping_mul(factor));
            }
            hash = hash.wrapping_mul(by_chunk).wrapping_add(sum);
            power = power.wrapping_mul(by_chunk);
        }
        for &byte in rest {
            hash = hash.wrapping_mul(MULTIPLIER).wrapping_add(u32::from(byte));
            power = power.wrapping_mul(MULTIPLIER);
        }
        Self { hash, power }
    }

    #[inline(always)]
    fn roll(&mut self, leaving: u8, coming: u8) {
        let left = self.power.wrapping_mul(u32::from(leaving).wrapping_add(LEAVING));
        let coming = u32::from(coming).wrapping_sub(left);
        self.hash = self.hash.wrapping_mul(MULTIPLIER).wrapping_add(coming);
    }

    #[inline(always)]
    fn shorten(&mut self, leaving: u8) {
        self.power = self.power.wrapping_mul(INVERSE);
        let left = self.power.wrapping_mul(u32::from(leaving).wrapping_add(LEAVING));
        self.hash = self.hash.wrapping_sub(left);
    }

    #[inline(always)]
    fn value(self) -> u32 {
        self.hash
    }
}
