//! Weak checksums: cheap to move on by one byte, so that a block can be searched for at every
//! offset.
//!
//! Our own signatures use rsync's (Tridgell, "Efficient Algorithms for Sorting and
//! Synchronization", section 3.3.1), two sums of 16 bits. With x the bytes of a window of n: a =
//! sum of x\[i\], b = sum of (n - i) x\[i\], both modulo 2^16; the checksum is b << 16 | a. The
//! files of librsync use others (`librsync`). Storage keeps CRCs, which signatures take over
//! unchanged (SkySync).
//!
//! Equal weak checksums prove nothing, and a sender can forge any number of them: code that uses
//! them must bound the work that a match causes.

mod librsync;

use crate::crc::{CrcKind, LastBlock};

pub use librsync::{RabinKarp, Rollsum};

/// The kind of a weak checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeakKind {
    /// rsync's two sums; see the module's header.
    Rsync,
    /// CRC-32C of the block's bytes (HDFS).
    Crc32c,
    /// CRC-32C, with a shorter last block padded with zeros (btrfs, Ceph).
    Crc32cPadded,
    /// CRC-32 of the block's bytes (HDFS).
    Crc32,
    /// CRC-32, with a shorter last block padded with zeros (MooseFS).
    Crc32Padded,
    /// librsync's older checksum, [`Rollsum`]. Only files of librsync have it, our own signatures
    /// do not.
    LibrsyncRollsum,
    /// librsync's newer checksum, [`RabinKarp`]. Only files of librsync have it, our own signatures
    /// do not.
    LibrsyncRabinKarp,
}

impl WeakKind {
    /// The number that stands for the kind in a signature.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Rsync => 1,
            Self::Crc32c => 2,
            Self::Crc32cPadded => 3,
            Self::Crc32 => 4,
            Self::Crc32Padded => 5,
            Self::LibrsyncRollsum => 0xf0,
            Self::LibrsyncRabinKarp => 0xf1,
        }
    }

    /// The kind that a number in one of our own signatures stands for.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Rsync),
            2 => Some(Self::Crc32c),
            3 => Some(Self::Crc32cPadded),
            4 => Some(Self::Crc32),
            5 => Some(Self::Crc32Padded),
            _ => None,
        }
    }

    /// The polynomial and the treatment of a shorter last block, if the kind is a CRC.
    #[must_use]
    pub const fn crc(self) -> Option<(CrcKind, LastBlock)> {
        match self {
            Self::Crc32c => Some((CrcKind::Crc32c, LastBlock::AsItIs)),
            Self::Crc32cPadded => Some((CrcKind::Crc32c, LastBlock::ZeroPadded)),
            Self::Crc32 => Some((CrcKind::Crc32, LastBlock::AsItIs)),
            Self::Crc32Padded => Some((CrcKind::Crc32, LastBlock::ZeroPadded)),
            Self::Rsync | Self::LibrsyncRollsum | Self::LibrsyncRabinKarp => None,
        }
    }

    /// The checksum of a block among blocks of `block_len` bytes; a shorter block is the last one.
    #[must_use]
    pub fn of_block(self, block: &[u8], block_len: usize) -> u32 {
        match self.crc() {
            Some((kind, LastBlock::ZeroPadded)) if block.len() < block_len => {
                let zeros = (block_len - block.len()) as u64;
                // A CRC of 32 bits.
                kind.combine(kind.of(block), kind.of_zeros(zeros), zeros) as u32
            }
            _ => self.of(block),
        }
    }

    /// The checksum of a whole block.
    #[must_use]
    pub fn of(self, block: &[u8]) -> u32 {
        match self {
            // CRCs of 32 bits.
            Self::Crc32c | Self::Crc32cPadded => CrcKind::Crc32c.of(block) as u32,
            Self::Crc32 | Self::Crc32Padded => CrcKind::Crc32.of(block) as u32,
            Self::Rsync => RollingSum::of(block).value(),
            Self::LibrsyncRollsum => Rollsum::of(block).value(),
            Self::LibrsyncRabinKarp => RabinKarp::of(block).value(),
        }
    }
}

/// A weak checksum of a window that moves on byte by byte.
pub trait Rolling: Copy {
    /// The checksum of a whole window.
    fn of(window: &[u8]) -> Self;

    /// Moves the window on by one byte.
    fn roll(&mut self, leaving: u8, coming: u8);

    /// Drops the window's first byte, so that the window is one byte shorter.
    fn shorten(&mut self, leaving: u8);

    /// The checksum's value.
    fn value(self) -> u32;
}

/// The number of bytes summed in one go; the compiler vectorises this.
const LANES: usize = 32;

/// rsync's checksum of a window that moves on byte by byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RollingSum {
    /// Both sums are kept modulo 2^32 and cut in [`Rolling::value`]: 2^16 divides 2^32.
    a: u32,
    b: u32,
    /// The length of the window, modulo 2^32.
    len: u32,
}

impl Rolling for RollingSum {
    #[inline]
    fn of(window: &[u8]) -> Self {
        let (mut a, mut b) = (0_u32, 0_u32);
        let (chunks, rest) = window.as_chunks::<LANES>();
        for chunk in chunks {
            let (mut sum, mut weighted) = (0_u32, 0_u32);
            for (index, &byte) in chunk.iter().enumerate() {
                sum += u32::from(byte);
                // At most 32 * 255 * 32.
                weighted += u32::from(byte) * (LANES - index) as u32;
            }
            b = b.wrapping_add(a.wrapping_mul(LANES as u32)).wrapping_add(weighted);
            a = a.wrapping_add(sum);
        }
        for &byte in rest {
            a = a.wrapping_add(u32::from(byte));
            b = b.wrapping_add(a);
        }
        Self {
            a,
            b,
            // A window is a block, whose length fits.
            len: window.len() as u32,
        }
    }

    #[inline(always)]
    fn roll(&mut self, leaving: u8, coming: u8) {
        let leaving = u32::from(leaving);
        self.a = self.a.wrapping_sub(leaving).wrapping_add(u32::from(coming));
        self.b = self.b.wrapping_sub(self.len.wrapping_mul(leaving)).wrapping_add(self.a);
    }

    #[inline(always)]
    fn shorten(&mut self, leaving: u8) {
        let leaving = u32::from(leaving);
        self.a = self.a.wrapping_sub(leaving);
        self.b = self.b.wrapping_sub(self.len.wrapping_mul(leaving));
        self.len = self.len.wrapping_sub(1);
    }

    #[inline(always)]
    fn value(self) -> u32 {
        (self.b << 16) | (self.a & 0xffff)
    }
}

#[cfg(test)]
mod tests;
