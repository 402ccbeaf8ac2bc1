//! Cyclic redundancy checks, and arithmetic on them in place of the bytes that they summarise.
//!
//! Storage keeps CRCs of fixed blocks (CRC-32C: btrfs, HDFS, Ceph; CRC-32: MooseFS, HDFS;
//! CRC-64/NVME: S3). A CRC is linear over GF(2), so that the CRC of a range follows from those of
//! its parts without the bytes (SkySync, section 3.2.1): for a content AB, `crc(AB) = shift(crc(A),
//! len(B)) ^ crc(B)`, where `shift` appends zeros, that is, multiplies by x^(8 len(B)) modulo the
//! polynomial (`field`). Solved for either part, the same equation removes a known beginning or end
//! again.
//!
//! Words:
//! - *ordinary* CRC: reflected, started with all ones, all bits inverted at the end; the convention
//!   of every kind here. The inversions at both ends cancel out in the equation above.
//! - CRCs of all kinds are `u64`; those of 32 bits are in the lower half.
//!
//! | module | task |
//! |---|---|
//! | `field` | multiplication modulo the polynomial, powers of x |
//! | `ranges` | the CRC of any range of a content whose blocks' CRCs are known, reading bytes beside block borders only |
//!
//! A CRC proves nothing: the author of a content can give it any CRC. CRCs find candidates; a
//! strong checksum decides.
//!
//! Bytes are summed by the `crc-fast` crate, because it is well maintained and has all kinds with
//! vector instructions: on the development machine, in blocks of 4 KiB, it does 40 GB/s for CRC-32C
//! and 23 and 24 GB/s for the others.

mod field;
mod ranges;

use field::Field;

pub use ranges::{BlockCrcs, BlockLayout, CrcList, LastBlock, RangeCrcs};

/// The polynomial of a CRC, always in its ordinary convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CrcKind {
    /// CRC-32C (Castagnoli; also CRC-32/ISCSI).
    Crc32c,
    /// CRC-32 (IEEE 802.3, zlib; also CRC-32/ISO-HDLC).
    Crc32,
    /// CRC-64/NVME.
    Crc64Nvme,
}

impl CrcKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Crc32c, Self::Crc32, Self::Crc64Nvme];

    /// The length of a CRC, in bytes.
    #[must_use]
    pub const fn len_bytes(self) -> usize {
        match self {
            Self::Crc32c | Self::Crc32 => 4,
            Self::Crc64Nvme => 8,
        }
    }

    /// The CRC of `bytes`.
    #[must_use]
    pub fn of(self, bytes: &[u8]) -> u64 {
        match self {
            Self::Crc32c => u64::from(crc_fast::crc32_iscsi(bytes)),
            Self::Crc32 => u64::from(crc_fast::crc32_iso_hdlc(bytes)),
            Self::Crc64Nvme => crc_fast::crc64_nvme(bytes),
        }
    }

    /// The CRC of a content with the CRC `crc` followed by `bytes`.
    #[must_use]
    pub fn append(self, crc: u64, bytes: &[u8]) -> u64 {
        self.combine(crc, self.of(bytes), bytes.len() as u64)
    }

    /// The CRC of `len_bytes` zeros, in constant time.
    #[must_use]
    pub fn of_zeros(self, len_bytes: u64) -> u64 {
        self.shift(self.ones(), len_bytes) ^ self.ones()
    }

    /// The CRC of AB, from those of A and B and the length of B.
    #[must_use]
    pub fn combine(self, crc_a: u64, crc_b: u64, len_b_bytes: u64) -> u64 {
        self.shift(crc_a, len_b_bytes) ^ crc_b
    }

    /// The CRC of B, from those of AB and A and the length of B.
    #[must_use]
    pub fn without_prefix(self, crc_ab: u64, crc_a: u64, len_b_bytes: u64) -> u64 {
        self.shift(crc_a, len_b_bytes) ^ crc_ab
    }

    /// The CRC of A, from those of AB and B and the length of B.
    #[must_use]
    pub fn without_suffix(self, crc_ab: u64, crc_b: u64, len_b_bytes: u64) -> u64 {
        let field = Field::of(self);
        field.multiply(crc_ab ^ crc_b, field.inverse_power(len_b_bytes))
    }

    /// The CRC of a content, from its CRC with `zeros_len_bytes` zeros appended, as btrfs and Ceph
    /// sum the last block of a file.
    #[must_use]
    pub fn without_zeros(self, crc: u64, zeros_len_bytes: u64) -> u64 {
        self.without_suffix(crc, self.of_zeros(zeros_len_bytes), zeros_len_bytes)
    }

    /// `crc` times x^(8 `len_bytes`).
    fn shift(self, crc: u64, len_bytes: u64) -> u64 {
        if len_bytes == 0 {
            return crc;
        }
        let field = Field::of(self);
        field.multiply(crc, field.power(len_bytes))
    }

    const fn ones(self) -> u64 {
        match self {
            Self::Crc32c | Self::Crc32 => 0xffff_ffff,
            Self::Crc64Nvme => u64::MAX,
        }
    }
}

/// [`CrcKind::combine`] for one length of B that occurs often: a table lookup per byte of the CRC
/// instead of a multiplication.
#[derive(Clone)]
pub struct Combiner {
    /// For each byte of a CRC, lowest first, and each value of that byte: its contribution to the
    /// shifted CRC.
    tables: Box<[[u64; 256]]>,
}

impl std::fmt::Debug for Combiner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Combiner").finish_non_exhaustive()
    }
}

impl Combiner {
    /// A combiner for a B of `len_b_bytes`.
    #[must_use]
    pub fn new(kind: CrcKind, len_b_bytes: u64) -> Self {
        let field = Field::of(kind);
        let power = field.power(len_b_bytes);
        let table = |byte: usize| {
            let mut table = [0; 256];
            for bit in 0..8 {
                let image = field.multiply(1 << (8 * byte + bit), power);
                for low in 0..1 << bit {
                    table[(1 << bit) | low] = table[low] ^ image;
                }
            }
            table
        };
        Self {
            tables: (0..kind.len_bytes()).map(table).collect(),
        }
    }

    /// The CRC of A followed by zeros of B's length, inversions apart: [`Self::combine`] adds B's
    /// CRC to it.
    #[inline]
    #[must_use]
    pub fn shift(&self, crc_a: u64) -> u64 {
        let bytes = crc_a.to_le_bytes();
        let mut shifted = 0;
        for (table, byte) in self.tables.iter().zip(bytes) {
            shifted ^= table[usize::from(byte)];
        }
        shifted
    }

    /// The CRC of AB.
    #[inline]
    #[must_use]
    pub fn combine(&self, crc_a: u64, crc_b: u64) -> u64 {
        self.shift(crc_a) ^ crc_b
    }

    /// The CRC of B; the same sum as in [`Self::combine`].
    #[inline]
    #[must_use]
    pub fn without_prefix(&self, crc_ab: u64, crc_a: u64) -> u64 {
        self.shift(crc_a) ^ crc_ab
    }
}

#[cfg(test)]
mod tests;
