//! Leaves and their CRCs, from consecutive bytes and zeros.

use super::chunk::LeafSum;
use byteback_delta::crc::CrcKind;
use byteback_delta::leaves::{LEAF_LEN_BYTES, LeafKind};

const LEAF_LEN: usize = LEAF_LEN_BYTES as usize;

/// Sums blocks of 4 KiB; the last one may be shorter.
#[derive(Debug)]
pub(super) struct LeafHasher {
    kind: LeafKind,
    /// Bytes of a block that is not yet whole.
    block: Vec<u8>,
    /// Finished sums that were not taken yet.
    made: Vec<LeafSum>,
    zeros: LeafSum,
}

impl LeafHasher {
    pub(super) fn new(kind: LeafKind) -> Self {
        Self {
            kind,
            block: Vec::new(),
            made: Vec::new(),
            zeros: sum_of(kind, &[0; LEAF_LEN]),
        }
    }

    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.block.is_empty()
                && let Some((block, rest)) = bytes.split_at_checked(LEAF_LEN)
            {
                self.made.push(sum_of(self.kind, block));
                bytes = rest;
                continue;
            }
            let (now, later) = bytes.split_at((LEAF_LEN - self.block.len()).min(bytes.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            if self.block.len() == LEAF_LEN {
                self.end_block();
            }
        }
    }

    pub(super) fn push_zeros(&mut self, mut len_bytes: u64) {
        while len_bytes > 0 {
            if self.block.is_empty() && len_bytes >= LEAF_LEN as u64 {
                self.made.push(self.zeros);
                len_bytes -= LEAF_LEN as u64;
                continue;
            }
            // At most one block.
            let now = len_bytes.min((LEAF_LEN - self.block.len()) as u64) as usize;
            self.block.resize(self.block.len() + now, 0);
            len_bytes -= now as u64;
            if self.block.len() == LEAF_LEN {
                self.end_block();
            }
        }
    }

    /// The sums since the last call; a shorter block ends here.
    pub(super) fn take(&mut self) -> std::vec::Drain<'_, LeafSum> {
        if !self.block.is_empty() {
            self.end_block();
        }
        self.made.drain(..)
    }

    fn end_block(&mut self) {
        self.made.push(sum_of(self.kind, &self.block));
        self.block.clear();
    }
}

fn sum_of(kind: LeafKind, block: &[u8]) -> LeafSum {
    LeafSum {
        // A CRC of 32 bits.
        crc: CrcKind::Crc32c.of(block) as u32,
        leaf: kind.leaf(block),
    }
}
