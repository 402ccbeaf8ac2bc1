//! Computation of the checksums that sources have, from bytes that come in pieces: a block may be
//! larger than memory (an S3 object that was sent in one part has one checksum).

use sha2::Digest;

use self::fletcher4::Fletcher4;
use super::{Kind, Layout, Tail};

mod fletcher4;

type Blake2b256 = blake2::Blake2b<blake2::digest::consts::U32>;

/// Zeros that are pushed at once.
const ZEROS: [u8; 4096] = [0; 4096];

/// Sums consecutive blocks of a content as a layout describes.
pub struct Summer {
    /// Bytes of a checksum.
    kind_len: usize,
    state: State,
    /// The state before the first byte of a block, salt included.
    fresh: State,
    /// The length up to which a shorter last block is padded with zeros; 0 for none.
    padded_len: u64,
    /// The number of bytes in the current block.
    len_bytes: u64,
}

impl std::fmt::Debug for Summer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Summer")
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}

#[derive(Clone)]
enum State {
    Crc32c(u32),
    CrcFast(crc_fast::Digest),
    Xxh64(xxhash_rust::xxh64::Xxh64),
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
    // Larger than the others by far.
    Sha512(Box<sha2::Sha512>),
    Sha512Of256(Box<sha2::Sha512_256>),
    Blake2b256(Box<Blake2b256>),
    Blake3(Box<blake3::Hasher>),
    Fletcher4(Fletcher4),
}

impl State {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Crc32c => Self::Crc32c(0),
            Kind::Crc32 => Self::CrcFast(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32IsoHdlc)),
            Kind::Crc64Nvme => Self::CrcFast(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme)),
            Kind::Xxh64 => Self::Xxh64(xxhash_rust::xxh64::Xxh64::new(0)),
            Kind::Sha1 => Self::Sha1(sha1::Sha1::new()),
            Kind::Sha256 => Self::Sha256(sha2::Sha256::new()),
            Kind::Sha512 => Self::Sha512(Box::default()),
            Kind::Sha512Of256 => Self::Sha512Of256(Box::default()),
            Kind::Blake2b256 => Self::Blake2b256(Box::default()),
            Kind::Blake3 => Self::Blake3(Box::default()),
            Kind::Fletcher4 => Self::Fletcher4(Fletcher4::default()),
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc32c(crc) => *crc = crc32c::crc32c_append(*crc, bytes),
            Self::CrcFast(digest) => digest.update(bytes),
            Self::Xxh64(hasher) => hasher.update(bytes),
            Self::Sha1(hasher) => hasher.update(bytes),
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
            Self::Sha512Of256(hasher) => hasher.update(bytes),
            Self::Blake2b256(hasher) => hasher.update(bytes),
            Self::Blake3(hasher) => {
                hasher.update(bytes);
            }
            Self::Fletcher4(sums) => sums.push(bytes),
        }
    }

    fn end(self, len_bytes: usize, sums: &mut Vec<u8>) {
        match self {
            Self::Crc32c(crc) => sums.extend_from_slice(&crc.to_le_bytes()),
            // Checksums of 32 bits are in the lower half.
            Self::CrcFast(digest) => sums.extend(digest.finalize().to_le_bytes().into_iter().take(len_bytes)),
            Self::Xxh64(hasher) => sums.extend_from_slice(&hasher.digest().to_le_bytes()),
            Self::Sha1(hasher) => sums.extend_from_slice(&hasher.finalize()),
            Self::Sha256(hasher) => sums.extend_from_slice(&hasher.finalize()),
            Self::Sha512(hasher) => sums.extend_from_slice(&hasher.finalize()),
            Self::Sha512Of256(hasher) => sums.extend_from_slice(&hasher.finalize()),
            Self::Blake2b256(hasher) => sums.extend_from_slice(&hasher.finalize()),
            Self::Blake3(hasher) => sums.extend_from_slice(hasher.finalize().as_bytes()),
            Self::Fletcher4(made) => sums.extend_from_slice(&made.end()),
        }
    }
}

impl Summer {
    /// A summer of blocks of this layout.
    #[must_use]
    pub fn new(layout: &Layout) -> Self {
        let mut fresh = State::new(layout.kind);
        fresh.push(&layout.salt);
        Self {
            kind_len: layout.kind.len_bytes(),
            state: fresh.clone(),
            fresh,
            padded_len: match layout.tail {
                Tail::AsIs => 0,
                Tail::ZeroPadded => u64::from(layout.block_len),
            },
            len_bytes: 0,
        }
    }

    /// Adds bytes to the current block.
    pub fn push(&mut self, bytes: &[u8]) {
        self.state.push(bytes);
        self.len_bytes += bytes.len() as u64;
    }

    /// Ends the current block, and appends its checksum to `sums`.
    pub fn end_block(&mut self, sums: &mut Vec<u8>) {
        let mut padding = self.padded_len.saturating_sub(self.len_bytes);
        while padding > 0 {
            let now = padding.min(ZEROS.len() as u64);
            self.state.push(ZEROS.get(..now as usize).unwrap_or_default());
            padding -= now;
        }
        self.len_bytes = 0;
        std::mem::replace(&mut self.state, self.fresh.clone()).end(self.kind_len, sums);
    }
}
