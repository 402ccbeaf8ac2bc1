//! The format on the device; `docs/formats/volume.md` describes it for authors of other readers.
//!
//! All numbers are little-endian. A block other than a file's content is *sealed*: its last four
//! bytes are a CRC-32C of the volume's id, the block's address, its kind, and the bytes before. So
//! a block of another volume, one written to a wrong place, or one of another kind is told from a
//! good one just like one with a flipped bit.
//!
//! This module holds offsets, sizes and limits, and types that read and write them. A type that is
//! a view of a block ([`Inode`], for one) trusts nothing in it: whatever the bytes are, it returns
//! something, and never panics. Out of scope: any I/O; deciding what to write.

mod cluster;
mod delta_places;
mod directory;
mod main_deltas;
mod node;
mod pack;
mod summary;
mod superblock;
mod tables;

use std::fmt;

use byteback_host::block::BLOCK_LEN_BYTES;

pub use cluster::{CLUSTER_PAGES_MAX, CLUSTER_SLOT, Cluster, cluster_checksum};
pub use delta_places::DeltaPlaces;
pub use directory::{DENTRY_NAME_LEN_BYTES, Dentry, DentryArea, DirectoryBlock, INLINE_DENTRIES, Slots};
pub use main_deltas::{
    COMPACT_HEAD_LEN_BYTES, COMPACT_LEN_BYTES, COMPACT_SLOT, CompactPage, DeltaIndex, DeltaPlace, INDEX_HEAD_LEN_BYTES,
    INDEX_LEN_BYTES, INDEX_SLOT, PAGE_LEN_BYTES, PLACE_LEN_BYTES_MAX, compact_page_ino, fill_compact_page,
};
pub use node::{
    DELTA_HEAD_LEN_BYTES, DELTA_LEN_BYTES_MAX, DIRECT_SLOTS, Footer, INDIRECT_NODES, INLINE_LEN_BYTES, INODE_SLOTS,
    Inode, InodeFlags, MAX_FILE_BLOCKS, NodeBlock, NodeFlags, Time, XATTR_INLINE_LEN_BYTES,
};
pub use pack::{
    Journal, LOGS, LogHead, OPEN_SUMMARY_BLOCKS_MAX, ORPHANS_PER_BLOCK, PackHeader, bitmap_blocks, bits_of,
    open_summaries_of, open_summary_blocks, orphan_blocks, orphans_of,
};
pub use summary::{SUMMARIES_PER_BLOCK, Summary};
pub use superblock::{Areas, FEATURE_COMPRESSION, Found, KNOWN_FEATURES, Superblock, VERSION};
pub use tables::{NODES_PER_BLOCK, NodeEntry, SegmentEntry};

/// A block.
pub type Block = [u8; BLOCK_LEN_BYTES];

/// The address of a block, counted in blocks from the beginning of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u32);

impl Address {
    /// No block: a hole, or a node that does not exist.
    pub const NONE: Self = Self(0);
    /// A page that has room reserved and reads as zeros.
    pub const RESERVED: Self = Self(u32::MAX);

    /// Whether the address is that of a block.
    #[must_use]
    pub fn is_block(self) -> bool {
        self != Self::NONE && self != Self::RESERVED
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a node; an inode's is the number of its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nid(pub u32);

impl Nid {
    /// No node.
    pub const NONE: Self = Self(0);
    /// The root directory.
    pub const ROOT: Self = Self(1);
    /// The first number that is given to a file.
    pub const FIRST: Self = Self(2);
}

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identity of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VolumeId(pub [u8; 16]);

/// Kind of a sealed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The superblock.
    Superblock = 1,
    /// The first block of a checkpoint pack.
    PackHeader = 2,
    /// The last block of a checkpoint pack.
    PackFooter = 3,
    /// Bits that select the valid copies of the tables' blocks.
    PackBitmaps = 4,
    /// Changes of the tables that are not in their blocks yet.
    PackJournal = 5,
    /// Inodes without a name.
    PackOrphans = 6,
    /// Summaries of the segments that logs have open.
    PackSummaries = 14,
    /// The owners of a segment's blocks.
    Summary = 7,
    /// A block of the node address table.
    NodeTable = 8,
    /// A block of the segment table.
    SegmentTable = 9,
    /// An inode, a direct or indirect node, or one of extended attributes.
    Node = 10,
    /// Entries of a directory.
    Directory = 11,
    /// The index of a file's deltas in the main area (DeltaFS section 5).
    DeltaMeta = 12,
    /// Deltas of a file in the main area.
    DeltaCompact = 13,
    /// An older part of such an index.
    DeltaLeaf = 15,
    /// Several pages of a file, compressed.
    Cluster = 16,
}

impl Kind {
    /// The name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::PackHeader
            | Self::PackFooter
            | Self::PackBitmaps
            | Self::PackJournal
            | Self::PackOrphans
            | Self::PackSummaries => "checkpoint",
            Self::Summary => "segment summary",
            Self::NodeTable => "node address table",
            Self::SegmentTable => "segment table",
            Self::Node => "node",
            Self::Directory => "directory",
            Self::DeltaMeta => "index of deltas",
            Self::DeltaCompact => "deltas",
            Self::DeltaLeaf => "older part of an index of deltas",
            Self::Cluster => "compressed pages",
        }
    }
}

/// Contribution of a page, written to `address` with this checksum, to [`Inode::pages_sum`]. Pages
/// and nodes of a synced file become durable together, in any order: after a crash the sum shows
/// whether all pages exist that the nodes name.
#[must_use]
pub fn page_sum(address: Address, checksum: u32) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(&checksum.to_le_bytes(), u64::from(address.0))
}

/// The checksum of a page of a file: CRC-32C, as everywhere. It uses the code that is fastest for a
/// page, except for fuzzing, which replaces `crc32c`.
#[must_use]
pub fn page_checksum(page: &[u8]) -> u32 {
    match cfg!(feature = "fuzzing") {
        true => crc32c::crc32c(page),
        false => crc_fast::crc32_iscsi(page),
    }
}

/// Room in a sealed block, in bytes.
pub const SEALED_LEN_BYTES: usize = BLOCK_LEN_BYTES - 4;

/// A block of zeros.
#[must_use]
pub fn zeros() -> Box<Block> {
    Box::new([0; BLOCK_LEN_BYTES])
}

impl VolumeId {
    fn checksum(self, block: &Block, kind: Kind, address: Address) -> u32 {
        let mut head = [0; 21];
        let (id, rest) = head.split_at_mut(16);
        id.copy_from_slice(&self.0);
        put_u32(rest, 0, address.0);
        put_u8(rest, 4, kind as u8);
        let body = block.first_chunk::<SEALED_LEN_BYTES>();
        crc32c::crc32c_append(crc32c::crc32c(&head), body.map_or(&[], |body| &body[..]))
    }

    /// Seals a block that is to be written at `address`.
    pub fn seal(self, block: &mut Block, kind: Kind, address: Address) {
        let sum = self.checksum(block, kind, address);
        put_u32(block, SEALED_LEN_BYTES, sum);
    }

    /// Whether a block read from `address` was written there as this kind.
    #[must_use]
    pub fn is_sealed(self, block: &Block, kind: Kind, address: Address) -> bool {
        u32_at(block, SEALED_LEN_BYTES) == self.checksum(block, kind, address)
    }
}

/// The bytes at an offset; zeros beyond the end, which no offset of this module reaches.
fn chunk_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes
        .get(at..)
        .and_then(|bytes| bytes.first_chunk())
        .copied()
        .unwrap_or([0; N])
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at.saturating_add(value.len())) {
        place.copy_from_slice(value);
    }
}

fn u8_at(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(chunk_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(chunk_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(chunk_at(bytes, at))
}

fn i64_at(bytes: &[u8], at: usize) -> i64 {
    i64::from_le_bytes(chunk_at(bytes, at))
}

fn put_u8(bytes: &mut [u8], at: usize, value: u8) {
    put(bytes, at, &[value]);
}

fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    put(bytes, at, &value.to_le_bytes());
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, &value.to_le_bytes());
}

fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    put(bytes, at, &value.to_le_bytes());
}

fn put_i64(bytes: &mut [u8], at: usize, value: i64) {
    put(bytes, at, &value.to_le_bytes());
}

#[cfg(test)]
mod tests;
