//! A checkpoint pack: the state of the volume at one moment.
//!
//! ```text
//! header | bitmaps | journal | orphans | summaries of the open segments | footer
//! ```
//! The footer is the header once more. A pack counts if both are sealed and state the same version,
//! and everything between them is sealed; of two that count, the one with the greater version. The
//! footer is written after one flush and before another, so that everything that the pack names is
//! durable before it counts.

use super::{
    Block, Nid, NodeEntry, SEALED_LEN_BYTES, SegmentEntry, Summary, chunk_at, i64_at, put, put_i64, put_u16, put_u32,
    put_u64, u16_at, u32_at, u64_at, zeros,
};

/// Six logs: hot, warm and cold nodes; hot, warm and cold data.
pub const LOGS: usize = 6;

/// Summaries in a block of a pack, where they are concatenated: those of the first log's segment up
/// to where it goes on, and so on.
const SUMMARIES_PER_PACK_BLOCK: usize = SEALED_LEN_BYTES / Summary::LEN_BYTES;

/// Most summary blocks of the open segments.
pub const OPEN_SUMMARY_BLOCKS_MAX: u32 = (LOGS * 512).div_ceil(SUMMARIES_PER_PACK_BLOCK) as u32;

/// Orphans in a block.
pub const ORPHANS_PER_BLOCK: usize = SEALED_LEN_BYTES / 4 - 1;

/// The position at which a log goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogHead {
    /// Its segment.
    pub segment: u32,
    /// The next block in it; equal to a segment's length when it is full.
    pub next: u32,
    /// The segment that comes after it, chosen when this one is full; before that,
    /// [`LogHead::UNDECIDED`].
    pub upcoming: u32,
}

impl LogHead {
    /// The segment after this one is not chosen yet.
    pub const UNDECIDED: u32 = u32::MAX;
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackHeader {
    /// Increases by one with each checkpoint. Nodes written after it state it, too.
    pub version: u64,
    /// When it was written, in seconds since 1970.
    pub written_s: i64,
    /// Blocks in use, with those reserved for pages without any.
    pub used_blocks: u32,
    /// Nodes among them.
    pub nodes: u32,
    /// Inodes among these.
    pub inodes: u32,
    /// The number that was last given to a node.
    pub last_nid: Nid,
    /// The head of the list of files that have deltas in the main area (DeltaFS section 4.2).
    pub delta_list: Nid,
    /// Blocks of bitmaps: of the segment table's, then the node table's blocks.
    pub bitmap_blocks: u32,
    /// Blocks of the journal.
    pub journal_blocks: u32,
    /// Blocks with orphans.
    pub orphan_blocks: u32,
    /// Blocks with summaries.
    pub summary_blocks: u32,
    /// Nothing was written after it: there is nothing to recover.
    pub is_clean: bool,
    /// The position of each log.
    pub logs: [LogHead; LOGS],
}

const AT_LOGS: usize = 128;

impl PackHeader {
    /// Length of the pack in blocks.
    #[must_use]
    pub fn len_blocks(&self) -> u32 {
        [
            self.bitmap_blocks,
            self.journal_blocks,
            self.orphan_blocks,
            self.summary_blocks,
        ]
        .into_iter()
        .fold(2, u32::saturating_add)
    }

    /// Whether such a pack can exist: it fits its place, and each log has a segment of its own.
    #[must_use]
    pub fn is_possible(&self, pack_blocks: u32) -> bool {
        let segments: std::collections::BTreeSet<u32> = self.logs.iter().map(|log| log.segment).collect();
        self.len_blocks() <= pack_blocks && segments.len() == LOGS
    }

    /// Writes it.
    pub fn write(&self, block: &mut Block) {
        put_u64(block, 0, self.version);
        put_i64(block, 8, self.written_s);
        put_u32(block, 16, self.used_blocks);
        put_u32(block, 20, self.nodes);
        put_u32(block, 24, self.inodes);
        put_u32(block, 28, self.last_nid.0);
        put_u32(block, 32, self.delta_list.0);
        put_u32(block, 36, self.bitmap_blocks);
        put_u32(block, 40, self.journal_blocks);
        put_u32(block, 44, self.orphan_blocks);
        put_u32(block, 48, self.summary_blocks);
        put_u32(block, 52, u32::from(self.is_clean));
        for (index, log) in self.logs.iter().enumerate() {
            let at = AT_LOGS + 12 * index;
            put_u32(block, at, log.segment);
            put_u32(block, at + 4, log.next);
            put_u32(block, at + 8, log.upcoming);
        }
    }

    /// Reads it.
    #[must_use]
    pub fn read(block: &Block) -> Self {
        let mut logs = [LogHead::default(); LOGS];
        for (index, log) in logs.iter_mut().enumerate() {
            let at = AT_LOGS + 12 * index;
            log.segment = u32_at(block, at);
            log.next = u32_at(block, at + 4);
            log.upcoming = u32_at(block, at + 8);
        }
        Self {
            version: u64_at(block, 0),
            written_s: i64_at(block, 8),
            used_blocks: u32_at(block, 16),
            nodes: u32_at(block, 20),
            inodes: u32_at(block, 24),
            last_nid: Nid(u32_at(block, 28)),
            delta_list: Nid(u32_at(block, 32)),
            bitmap_blocks: u32_at(block, 36),
            journal_blocks: u32_at(block, 40),
            orphan_blocks: u32_at(block, 44),
            summary_blocks: u32_at(block, 48),
            is_clean: u32_at(block, 52) & 1 == 1,
            logs,
        }
    }
}

/// Blocks of bitmaps for a pack: one bit for each block of a table, set if the second copy is
/// valid.
#[must_use]
pub fn bitmap_blocks(bits: &[bool]) -> Vec<Box<Block>> {
    let each = bits.chunks(SEALED_LEN_BYTES * 8).map(|bits| {
        let mut block = zeros();
        for (index, _) in bits.iter().enumerate().filter(|(_, bit)| **bit) {
            if let Some(byte) = block.get_mut(index / 8) {
                *byte |= 1 << (index % 8);
            }
        }
        block
    });
    each.collect()
}

/// The bits in such blocks.
#[must_use]
pub fn bits_of(blocks: &[Box<Block>]) -> Vec<bool> {
    let sealed = blocks
        .iter()
        .filter_map(|block| block.first_chunk::<SEALED_LEN_BYTES>());
    let bits_of_byte = |byte: &u8| (0..8).map(|bit| byte >> bit & 1 == 1).collect::<Vec<_>>();
    sealed.flatten().flat_map(bits_of_byte).collect()
}

/// Changes of the tables in a pack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    /// Changes of the node table.
    pub nodes: Vec<(Nid, NodeEntry)>,
    /// Changes of the segment table.
    pub segments: Vec<(u32, SegmentEntry)>,
}

const JOURNAL_HEAD_LEN_BYTES: usize = 4;
const JOURNAL_NODE_LEN_BYTES: usize = 4 + NodeEntry::LEN_BYTES;

impl Journal {
    /// The blocks that hold it: `nodes u16, segments u16, (nid u32, entry)*, (segment u32, entry)*`
    /// each.
    #[must_use]
    pub fn blocks(&self, segment_blocks: u32) -> Vec<Box<Block>> {
        let segment_len = 4 + SegmentEntry::len_bytes(segment_blocks);
        let (mut nodes, mut segments) = (&self.nodes[..], &self.segments[..]);
        let mut blocks = Vec::new();
        while !nodes.is_empty() || !segments.is_empty() {
            let room = SEALED_LEN_BYTES - JOURNAL_HEAD_LEN_BYTES;
            let (now, later) = nodes.split_at(nodes.len().min(room / JOURNAL_NODE_LEN_BYTES));
            let room = (room - now.len() * JOURNAL_NODE_LEN_BYTES) / segment_len;
            let (of_segments, later_segments) = segments.split_at(segments.len().min(room));
            let mut block = zeros();
            put_u16(&mut *block, 0, u16::try_from(now.len()).unwrap_or(0));
            put_u16(&mut *block, 2, u16::try_from(of_segments.len()).unwrap_or(0));
            let mut at = JOURNAL_HEAD_LEN_BYTES;
            for (nid, entry) in now {
                put_u32(&mut *block, at, nid.0);
                put(&mut *block, at + 4, &entry.bytes());
                at += JOURNAL_NODE_LEN_BYTES;
            }
            for (segment, entry) in of_segments {
                put_u32(&mut *block, at, *segment);
                entry.put(block.get_mut(at + 4..).unwrap_or_default());
                at += segment_len;
            }
            blocks.push(block);
            (nodes, segments) = (later, later_segments);
        }
        blocks
    }

    /// Adds the content of a block.
    pub fn read(&mut self, block: &Block, segment_blocks: u32) {
        let segment_len = 4 + SegmentEntry::len_bytes(segment_blocks);
        let mut rest = block.get(JOURNAL_HEAD_LEN_BYTES..SEALED_LEN_BYTES).unwrap_or_default();
        for _ in 0..u16_at(block, 0) {
            let Some((bytes, behind)) = rest.split_at_checked(JOURNAL_NODE_LEN_BYTES) else {
                return;
            };
            let entry = NodeEntry::of_bytes(bytes.get(4..).unwrap_or_default());
            self.nodes.push((Nid(u32_at(bytes, 0)), entry));
            rest = behind;
        }
        for _ in 0..u16_at(block, 2) {
            let Some((bytes, behind)) = rest.split_at_checked(segment_len) else {
                return;
            };
            let entry = SegmentEntry::of_bytes(bytes.get(4..).unwrap_or_default(), segment_blocks);
            self.segments.push((u32_at(bytes, 0), entry));
            rest = behind;
        }
    }
}

/// The blocks that hold these orphans: `count u32, (nid u32)*` each.
#[must_use]
pub fn orphan_blocks(orphans: &[Nid]) -> Vec<Box<Block>> {
    let each = orphans.chunks(ORPHANS_PER_BLOCK).map(|orphans| {
        let mut block = zeros();
        put_u32(&mut *block, 0, u32::try_from(orphans.len()).unwrap_or(0));
        for (index, orphan) in orphans.iter().enumerate() {
            put_u32(&mut *block, 4 + 4 * index, orphan.0);
        }
        block
    });
    each.collect()
}

/// The orphans in such a block.
#[must_use]
pub fn orphans_of(block: &Block) -> Vec<Nid> {
    let count = usize::try_from(u32_at(block, 0)).unwrap_or(0).min(ORPHANS_PER_BLOCK);
    (0..count).map(|index| Nid(u32_at(block, 4 + 4 * index))).collect()
}

/// The blocks that hold summaries of the open segments.
#[must_use]
pub fn open_summary_blocks(summaries: &[Summary]) -> Vec<Box<Block>> {
    let each = summaries.chunks(SUMMARIES_PER_PACK_BLOCK).map(|summaries| {
        let mut block = zeros();
        for (index, summary) in summaries.iter().enumerate() {
            put(&mut *block, index * Summary::LEN_BYTES, &summary.bytes());
        }
        block
    });
    each.collect()
}

/// The summaries in such a block, including unused ones behind the last.
#[must_use]
pub fn open_summaries_of(block: &Block) -> Vec<Summary> {
    let at = |index: usize| Summary::of_bytes(&chunk_at(block, index * Summary::LEN_BYTES));
    (0..SUMMARIES_PER_PACK_BLOCK).map(at).collect()
}
