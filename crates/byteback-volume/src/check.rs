//! Independent check of a volume: whether everything in its last checkpoint fits together.
//!
//! The check knows the format ([`crate::format`] and `docs/formats/volume.md`) and nothing of how
//! this program writes it, so it should see whatever the rest of the crate does wrong. It changes
//! nothing, and it looks at the last checkpoint as it is, without what was synced after it: that is
//! recovered when the volume is opened.
//!
//! | room | what it is for |
//! |---|---|
//! | `image` | superblocks, checkpoint packs, tables, summaries |
//! | `files` | from each inode to its nodes and pages; who owns which block |
//! | `clusters` | pages that are compressed, several in a block |
//! | `names` | the tree of directories, and what is not in it |
//! | `totals` | bitmaps, counters and logs against what was found |
//! | `problem` | what can be wrong |
//!
//! Memory follows the number of files and of blocks (a bit each), not their contents. A block that
//! cannot be read is damaged.

mod clusters;
mod files;
mod image;
mod names;
mod problem;
mod totals;

use std::collections::BTreeMap;

use byteback_host::block::BlockDevice;

pub use problem::{Problem, Trouble};

use crate::error::Result;
use crate::format::Nid;
pub(crate) use files::{Files, Known};
pub(crate) use image::Image;
pub(crate) use names::{Names, WrongEntry};

/// Most problems described; further ones are only counted.
const PROBLEMS_MAX: usize = 10_000;

/// Most problems kept for a repair.
const TROUBLES_MAX: usize = 1_000_000;

/// Thoroughness of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    /// Whether the contents of files are read, and compared with their checksums. Everything else
    /// is read in any case.
    pub reads_contents: bool,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { reads_contents: true }
    }
}

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The first problems found, up to a limit.
    pub problems: Vec<Problem>,
    /// Number of all problems.
    pub problem_count: u64,
    /// Whether the volume was closed cleanly. If not, it is recovered when it is opened.
    pub is_closed: bool,
    /// Files of any type, directories included.
    pub files: u64,
    /// Directories among them.
    pub directories: u64,
    /// Blocks of 4 KiB that are in use.
    pub used_blocks: u64,
    /// Pages of contents and directories among these.
    pub pages: u64,
    /// Pages kept as deltas.
    pub deltas: u64,
    /// Deltas among these that are in the main area.
    pub main_deltas: u64,
    /// Blocks that hold deltas of the main area.
    pub compact_pages: u64,
    /// Pages that are compressed, several in one block.
    pub compressed_pages: u64,
    /// The volume's label.
    pub label: Vec<u8>,
    /// Length of the volume, in blocks of 4 KiB.
    pub len_blocks: u64,
}

impl Report {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0
    }
}

/// Problems, collected as they are found.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    found: Vec<Trouble>,
    count: u64,
}

impl Problems {
    pub(crate) fn add(&mut self, trouble: Trouble) {
        self.count += 1;
        if self.found.len() < TROUBLES_MAX {
            self.found.push(trouble);
        }
    }
}

/// Everything learned by a check, for a repair.
pub(crate) struct Findings<'a> {
    pub(crate) image: Image<'a>,
    pub(crate) files: Files,
    pub(crate) names: Names,
    pub(crate) troubles: Vec<Trouble>,
    pub(crate) report: Report,
}

/// Checks the volume on a device.
///
/// # Errors
/// There is no volume, it has a later version, it is cut off, or neither of its checkpoints is
/// whole.
pub fn check(device: &dyn BlockDevice, options: CheckOptions) -> Result<Report> {
    Ok(find(device, options)?.report)
}

/// As [`check`], with everything that was learned.
pub(crate) fn find(device: &dyn BlockDevice, options: CheckOptions) -> Result<Findings<'_>> {
    let mut problems = Problems::default();
    let mut image = Image::read(device, &mut problems)?;
    let files = Files::walk(&mut image, options, &mut problems);
    let names = Names::walk(&mut image, &files, &mut problems);
    totals::compare(&image, &files, &names, &mut problems);
    let Problems { found, count } = problems;
    let described = found.iter().take(PROBLEMS_MAX).map(|trouble| Problem {
        path: trouble.nid().and_then(|nid| names.path(nid)),
        trouble: trouble.clone(),
    });
    let report = Report {
        problems: described.collect(),
        problem_count: count,
        is_closed: image.pack.is_clean,
        files: files.known.len() as u64,
        directories: files.known.values().filter(|known| known.is_directory()).count() as u64,
        used_blocks: u64::from(files.used_blocks()),
        pages: files.pages,
        deltas: files.deltas + files.main_deltas,
        main_deltas: files.main_deltas,
        compact_pages: files.compact_pages,
        compressed_pages: files.compressed_pages,
        label: image.superblock.label.clone(),
        len_blocks: u64::from(image.superblock.areas.len_blocks),
    };
    Ok(Findings {
        image,
        files,
        names,
        troubles: found,
        report,
    })
}

/// A set of small numbers, one bit each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    fn of(count: u64) -> Self {
        Self(vec![0; usize::try_from(count.div_ceil(64)).unwrap_or(0)])
    }

    /// Sets a bit; returns whether it was set before.
    fn set(&mut self, at: u32) -> bool {
        let Some(word) = self.0.get_mut((at / 64) as usize) else {
            return false;
        };
        let was_set = *word >> (at % 64) & 1 == 1;
        *word |= 1 << (at % 64);
        was_set
    }

    pub(crate) fn is_set(&self, at: u32) -> bool {
        self.0
            .get((at / 64) as usize)
            .is_some_and(|word| word >> (at % 64) & 1 == 1)
    }
}

/// Numbers, each with how often it was met.
type Counted = BTreeMap<Nid, u32>;

#[cfg(test)]
mod tests;
