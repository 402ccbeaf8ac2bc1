//! Summaries: the owner of each block of a segment, and the checksum of its bytes.
//!
//! The cleaner uses them to find the node that refers to a block; a reader of a file's block
//! compares its checksum.

use super::{Block, Nid, chunk_at, put, put_u8, put_u16, put_u32, u8_at, u16_at, u32_at};

/// Summaries in a block.
pub const SUMMARIES_PER_BLOCK: u32 = 256;

/// Summary of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// For a node: its own number. For a file's block: the node that refers to it. 0: nothing was
    /// written there.
    pub nid: Nid,
    /// Version of that node, as in the node table: a reused number belongs to something else.
    pub version: u8,
    /// For a file's block: the slot of the node that refers to it.
    pub slot: u16,
    /// For a file's block: the CRC-32C of its bytes.
    pub checksum: u32,
}

impl Summary {
    /// Length of a summary, in bytes.
    pub const LEN_BYTES: usize = 11;

    /// From its bytes.
    #[must_use]
    pub fn of_bytes(bytes: &[u8; Self::LEN_BYTES]) -> Self {
        Self {
            nid: Nid(u32_at(bytes, 0)),
            version: u8_at(bytes, 4),
            slot: u16_at(bytes, 5),
            checksum: u32_at(bytes, 7),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; Self::LEN_BYTES] {
        let mut bytes = [0; Self::LEN_BYTES];
        put_u32(&mut bytes, 0, self.nid.0);
        put_u8(&mut bytes, 4, self.version);
        put_u16(&mut bytes, 5, self.slot);
        put_u32(&mut bytes, 7, self.checksum);
        bytes
    }

    fn at(index: u32) -> usize {
        usize::try_from(index % SUMMARIES_PER_BLOCK).unwrap_or(0) * Self::LEN_BYTES
    }

    /// The summary of the segment's block `index`, which `block` contains.
    #[must_use]
    pub fn read(block: &Block, index: u32) -> Self {
        Self::of_bytes(&chunk_at(block, Self::at(index)))
    }

    /// Writes it.
    pub fn write(&self, block: &mut Block, index: u32) {
        put(block, Self::at(index), &self.bytes());
    }
}
