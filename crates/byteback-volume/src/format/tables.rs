//! The node address table and the segment table.
//!
//! Each has two copies of each block; a bit of the checkpoint pack selects the valid one. A changed
//! block is written to the other place, and counts with the next checkpoint: so a table is always
//! that of a checkpoint, whole.

use super::{Address, Block, Nid, SEALED_LEN_BYTES, put, put_u8, put_u32, put_u64, u8_at, u32_at, u64_at};

/// Entries of the node table in a block.
pub const NODES_PER_BLOCK: u32 = 454;

const NODE_LEN_BYTES: usize = 9;

/// The place of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeEntry {
    /// Its block; [`Address::NONE`] if the number is free.
    pub address: Address,
    /// The node's file.
    pub ino: Nid,
    /// How often the number was given away, modulo 256.
    pub version: u8,
}

impl NodeEntry {
    /// Length of an entry outside of a table, in bytes.
    pub const LEN_BYTES: usize = NODE_LEN_BYTES;

    /// Reads an entry from its bytes.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self {
            address: Address(u32_at(bytes, 0)),
            ino: Nid(u32_at(bytes, 4)),
            version: u8_at(bytes, 8),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; NODE_LEN_BYTES] {
        let mut bytes = [0; NODE_LEN_BYTES];
        put_u32(&mut bytes, 0, self.address.0);
        put_u32(&mut bytes, 4, self.ino.0);
        put_u8(&mut bytes, 8, self.version);
        bytes
    }

    fn at(index: u32) -> usize {
        usize::try_from(index % NODES_PER_BLOCK).unwrap_or(0) * NODE_LEN_BYTES
    }

    /// The entry of the node `nid`, which `block` contains.
    #[must_use]
    pub fn read(block: &Block, nid: Nid) -> Self {
        Self::of_bytes(block.get(Self::at(nid.0)..).unwrap_or_default())
    }

    /// Writes it.
    pub fn write(&self, block: &mut Block, nid: Nid) {
        put(block, Self::at(nid.0), &self.bytes());
    }
}

/// State of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentEntry {
    /// The log that writes or wrote to it, as its place in [`super::LOGS`].
    pub log: u8,
    /// Time of the last write to it, in seconds since 1970.
    pub modified_s: u64,
    /// One bit for each block: whether something refers to it. The lowest bit of the first byte is
    /// the first block.
    pub valid: Vec<u8>,
}

impl SegmentEntry {
    const AT_VALID: usize = 9;

    /// Length of an entry, in bytes.
    #[must_use]
    pub fn len_bytes(segment_blocks: u32) -> usize {
        Self::AT_VALID + usize::try_from(segment_blocks / 8).unwrap_or(0)
    }

    /// Entries in a block.
    #[must_use]
    pub fn per_block(segment_blocks: u32) -> u32 {
        u32::try_from(SEALED_LEN_BYTES / Self::len_bytes(segment_blocks)).unwrap_or(1)
    }

    /// Reads an entry from its bytes.
    #[must_use]
    pub fn of_bytes(bytes: &[u8], segment_blocks: u32) -> Self {
        let valid = bytes.get(Self::AT_VALID..Self::len_bytes(segment_blocks));
        Self {
            log: u8_at(bytes, 0),
            modified_s: u64_at(bytes, 1),
            valid: valid.unwrap_or_default().to_vec(),
        }
    }

    /// Writes it to bytes that are long enough.
    pub fn put(&self, bytes: &mut [u8]) {
        put_u8(bytes, 0, self.log);
        put_u64(bytes, 1, self.modified_s);
        put(bytes, Self::AT_VALID, &self.valid);
    }

    fn at(segment: u32, segment_blocks: u32) -> usize {
        let index = segment % Self::per_block(segment_blocks);
        usize::try_from(index).unwrap_or(0) * Self::len_bytes(segment_blocks)
    }

    /// The entry of a segment, which `block` contains.
    #[must_use]
    pub fn read(block: &Block, segment: u32, segment_blocks: u32) -> Self {
        let bytes = block.get(Self::at(segment, segment_blocks)..).unwrap_or_default();
        Self::of_bytes(bytes, segment_blocks)
    }

    /// Writes it.
    pub fn write(&self, block: &mut Block, segment: u32, segment_blocks: u32) {
        self.put(block.get_mut(Self::at(segment, segment_blocks)..).unwrap_or_default());
    }

    /// Whether something refers to a block.
    #[must_use]
    pub fn is_valid(&self, index: u32) -> bool {
        let byte = usize::try_from(index / 8).ok().and_then(|byte| self.valid.get(byte));
        byte.is_some_and(|byte| byte >> (index % 8) & 1 == 1)
    }

    /// Sets whether something refers to a block; returns the previous value.
    pub fn set_valid(&mut self, index: u32, is_valid: bool) -> bool {
        let was = self.is_valid(index);
        if let Some(byte) = usize::try_from(index / 8)
            .ok()
            .and_then(|byte| self.valid.get_mut(byte))
        {
            let bit = 1 << (index % 8);
            *byte = if is_valid { *byte | bit } else { *byte & !bit };
        }
        was
    }

    /// Number of blocks that something refers to.
    #[must_use]
    pub fn valid_blocks(&self) -> u32 {
        self.valid.iter().map(|byte| byte.count_ones()).sum()
    }
}
