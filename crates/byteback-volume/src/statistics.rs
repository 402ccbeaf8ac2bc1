//! Statistics since a volume was opened, as plain numbers, for measurements.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::small::deltas::DeltaCounts;

/// Kind of a written block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// Content of a file.
    Data = 0,
    /// Entries of a directory.
    Directory = 1,
    /// A page that was moved by cleaning.
    Moved = 2,
    /// A node.
    Node = 3,
    /// Checkpoints, tables, summaries, superblocks.
    Tables = 4,
    /// Deltas in the main area.
    Compact = 5,
    /// Indexes of these deltas.
    Index = 6,
}

const KINDS: usize = 7;

/// Counts blocks as they are written.
#[derive(Debug, Default)]
pub(crate) struct WrittenCounters([AtomicU64; KINDS]);

impl WrittenCounters {
    pub(crate) fn add(&self, what: Written, blocks: u64) {
        if let Some(counter) = self.0.get(what as usize) {
            counter.fetch_add(blocks, Ordering::Relaxed);
        }
    }

    fn get(&self, what: Written) -> u64 {
        self.0
            .get(what as usize)
            .map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    /// The counts so far.
    pub(crate) fn blocks(&self) -> WrittenBlocks {
        WrittenBlocks {
            data: self.get(Written::Data),
            directories: self.get(Written::Directory),
            moved: self.get(Written::Moved),
            nodes: self.get(Written::Node),
            tables: self.get(Written::Tables),
            compact_pages: self.get(Written::Compact),
            delta_indexes: self.get(Written::Index),
        }
    }
}

/// Blocks of 4 KiB that were written to the device, by what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenBlocks {
    /// Contents of files.
    pub data: u64,
    /// Entries of directories.
    pub directories: u64,
    /// Pages that were moved by cleaning.
    pub moved: u64,
    /// Nodes.
    pub nodes: u64,
    /// Checkpoints, tables and summaries.
    pub tables: u64,
    /// Compact pages: deltas in the main area.
    pub compact_pages: u64,
    /// Indexes that say where these are.
    pub delta_indexes: u64,
}

impl WrittenBlocks {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.data + self.directories + self.moved + self.nodes + self.tables + self.compact_pages + self.delta_indexes
    }
}

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// Counts of deltas.
    pub deltas: DeltaCounts,
    /// Counts of written blocks.
    pub written: WrittenBlocks,
    /// Deltas that lie in the main area and count.
    pub deltas_in_main: u64,
    /// Compact pages that they lie in.
    pub compact_pages: u64,
    /// Files that are written much and read little now, compared with the others (DeltaFS section
    /// 4.2.1).
    pub write_hot_files: u64,
}
