//! The superblock: the sizes of the areas, and the volume's identity. It is written once, to the
//! first and to the last block. `docs/volume-format.md` has a table of its bytes.

use super::{Address, Block, Kind, VolumeId, chunk_at, i64_at, put, put_i64, put_u32, put_u64, u32_at, u64_at, zeros};

/// The magic number of a volume.
const MAGIC: [u8; 8] = *b"BYBTKVOL";

/// Format version: the only one that this program writes and reads.
pub const VERSION: u32 = 1;

/// Pages of files may be compressed: clusters, and deltas in inodes that are longer and of pages
/// without a block.
pub const FEATURE_COMPRESSION: u64 = 1;

/// Features that this program knows.
pub const KNOWN_FEATURES: u64 = FEATURE_COMPRESSION;

/// Blocks of a segment: a power of two.
const SEGMENT_BLOCKS: std::ops::RangeInclusive<u32> = 64..=512;

/// Positions of the areas, in blocks.
///
/// ```text
/// superblock | checkpoint packs (2) | segment table (2) | node table (2) | summaries
///     | main area | superblock
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Areas {
    /// The length of the volume.
    pub len_blocks: u32,
    /// The length of a segment.
    pub segment_blocks: u32,
    /// The first of the two checkpoint packs; the other one follows.
    pub packs_first: u32,
    /// Most blocks of a pack.
    pub pack_blocks: u32,
    /// The first of the two copies of the segment table; the other one follows.
    pub segment_table_first: u32,
    /// The length of one of them.
    pub segment_table_blocks: u32,
    /// The first of the two copies of the node table; the other one follows.
    pub node_table_first: u32,
    /// The length of one copy.
    pub node_table_blocks: u32,
    /// The summaries of all segments, in order.
    pub summaries_first: u32,
    /// The segments.
    pub main_first: u32,
    /// Segments in the main area.
    pub main_segments: u32,
    /// Segments reserved for the cleaner.
    pub reserved_segments: u32,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity of the volume.
    pub id: VolumeId,
    /// Incompatible features: a program that does not know one of them must not open the volume.
    pub features: u64,
    /// Positions of the areas.
    pub areas: Areas,
    /// Creation time, in seconds since 1970.
    pub created_s: i64,
    /// Seed for the hashes of names in directories.
    pub hash_seed: u64,
    /// Label: up to 64 bytes.
    pub label: Vec<u8>,
}

/// Longest label.
const LABEL_LEN_MAX: usize = 64;

/// Result of reading a block as a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A superblock.
    Superblock(Superblock),
    /// A superblock of a later version.
    Newer(u32),
    /// A damaged superblock.
    Damaged,
    /// Something else.
    Nothing,
}

impl Areas {
    /// Summary blocks of each segment.
    #[must_use]
    pub fn summary_blocks(&self) -> u32 {
        self.segment_blocks.div_ceil(super::SUMMARIES_PER_BLOCK)
    }

    /// The first block of a segment.
    #[must_use]
    pub fn segment_first(&self, segment: u32) -> Address {
        Address(
            self.main_first
                .saturating_add(segment.saturating_mul(self.segment_blocks)),
        )
    }

    /// The segment of a block of the main area, and the block's number in it.
    #[must_use]
    pub fn segment_of(&self, address: Address) -> Option<(u32, u32)> {
        let at = address.0.checked_sub(self.main_first)?;
        let segment = at.checked_div(self.segment_blocks)?;
        (segment < self.main_segments).then(|| (segment, at % self.segment_blocks))
    }

    /// The first summary block of a segment.
    #[must_use]
    pub fn summary_of(&self, segment: u32) -> Address {
        Address(
            self.summaries_first
                .saturating_add(segment.saturating_mul(self.summary_blocks())),
        )
    }

    /// Whether all areas lie on the volume, in order, and are large enough.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let end = |first: u32, count: u32, times: u32| first.checked_add(count.checked_mul(times)?);
        let lies = || {
            let packs_end = end(self.packs_first, self.pack_blocks, 2)?;
            let segments_end = end(self.segment_table_first, self.segment_table_blocks, 2)?;
            let nodes_end = end(self.node_table_first, self.node_table_blocks, 2)?;
            let summaries_end = end(self.summaries_first, self.summary_blocks(), self.main_segments)?;
            let main_end = end(self.main_first, self.segment_blocks, self.main_segments)?;
            let is_ordered = self.packs_first > 0
                && packs_end <= self.segment_table_first
                && segments_end <= self.node_table_first
                && nodes_end <= self.summaries_first
                && summaries_end <= self.main_first
                && main_end < self.len_blocks;
            let segments_per_block = super::SegmentEntry::per_block(self.segment_blocks);
            let has_room = self.segment_table_blocks >= self.main_segments.div_ceil(segments_per_block)
                && self.node_table_blocks > 0
                && u64::from(self.node_table_blocks) * u64::from(super::NODES_PER_BLOCK) < u64::from(u32::MAX)
                && self.reserved_segments < self.main_segments;
            Some(is_ordered && has_room)
        };
        self.segment_blocks.is_power_of_two() && SEGMENT_BLOCKS.contains(&self.segment_blocks) && lies() == Some(true)
    }

    const FIELDS: usize = 12;

    fn fields(&self) -> [u32; Self::FIELDS] {
        [
            self.len_blocks,
            self.segment_blocks,
            self.packs_first,
            self.pack_blocks,
            self.segment_table_first,
            self.segment_table_blocks,
            self.node_table_first,
            self.node_table_blocks,
            self.summaries_first,
            self.main_first,
            self.main_segments,
            self.reserved_segments,
        ]
    }

    fn of_fields(fields: [u32; Self::FIELDS]) -> Self {
        let [
            len_blocks,
            segment_blocks,
            packs_first,
            pack_blocks,
            segment_table_first,
            segment_table_blocks,
            node_table_first,
            node_table_blocks,
            summaries_first,
            main_first,
            main_segments,
            reserved_segments,
        ] = fields;
        Self {
            len_blocks,
            segment_blocks,
            packs_first,
            pack_blocks,
            segment_table_first,
            segment_table_blocks,
            node_table_first,
            node_table_blocks,
            summaries_first,
            main_first,
            main_segments,
            reserved_segments,
        }
    }
}

const AT_VERSION: usize = 8;
const AT_ID: usize = 16;
const AT_FEATURES: usize = 32;
const AT_CREATED: usize = 40;
const AT_HASH_SEED: usize = 48;
const AT_AREAS: usize = 64;
const AT_LABEL_LEN: usize = 124;
const AT_LABEL: usize = 128;

impl Superblock {
    /// The block, to be written at `address`.
    #[must_use]
    pub fn block(&self, address: Address) -> Box<Block> {
        let mut block = zeros();
        put(&mut *block, 0, &MAGIC);
        put_u32(&mut *block, AT_VERSION, VERSION);
        put(&mut *block, AT_ID, &self.id.0);
        put_u64(&mut *block, AT_FEATURES, self.features);
        put_i64(&mut *block, AT_CREATED, self.created_s);
        put_u64(&mut *block, AT_HASH_SEED, self.hash_seed);
        for (index, field) in self.areas.fields().into_iter().enumerate() {
            put_u32(&mut *block, AT_AREAS + 4 * index, field);
        }
        let label = self.label.get(..LABEL_LEN_MAX).unwrap_or(&self.label);
        put_u32(&mut *block, AT_LABEL_LEN, u32::try_from(label.len()).unwrap_or(0));
        put(&mut *block, AT_LABEL, label);
        self.id.seal(&mut block, Kind::Superblock, address);
        block
    }

    /// Reads a block from `address` as a superblock.
    #[must_use]
    pub fn find(block: &Block, address: Address) -> Found {
        if chunk_at(block, 0) != MAGIC {
            return Found::Nothing;
        }
        let version = u32_at(block, AT_VERSION);
        if version > VERSION {
            return Found::Newer(version);
        }
        let id = VolumeId(chunk_at(block, AT_ID));
        let mut fields = [0; Areas::FIELDS];
        for (index, field) in fields.iter_mut().enumerate() {
            *field = u32_at(block, AT_AREAS + 4 * index);
        }
        let areas = Areas::of_fields(fields);
        let label_len = usize::try_from(u32_at(block, AT_LABEL_LEN)).unwrap_or(usize::MAX);
        let label = block.get(AT_LABEL..).and_then(|bytes| bytes.get(..label_len));
        match label {
            Some(label) if id.is_sealed(block, Kind::Superblock, address) && areas.is_sound() && version == VERSION => {
                Found::Superblock(Self {
                    id,
                    features: u64_at(block, AT_FEATURES),
                    areas,
                    created_s: i64_at(block, AT_CREATED),
                    hash_seed: u64_at(block, AT_HASH_SEED),
                    label: label.to_vec(),
                })
            }
            _ => Found::Damaged,
        }
    }
}
