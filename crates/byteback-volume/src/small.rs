//! Pages that are stored in less than a block: as deltas, or compressed (DeltaFS section 4).
//!
//! | room | what it is for |
//! |---|---|
//! | [`deltas`] | overwritten pages that are not written (section 4.1) |
//! | [`main_deltas`] | several deltas in one block (section 4.2) |
//! | `delta_list` | files with such deltas, and restoring their pages in idle time |
//! | `clusters` | several pages in one block, compressed |
//! | `inode_pages` | pages that lie in the inode, compressed |
//! | `attempts` | which overwritten pages are compared, to be kept as deltas |
//! | [`hotness`] | which files are written and read much (section 4.2.1) |

pub(crate) mod attempts;
pub(crate) mod clusters;
pub(crate) mod delta_list;
pub(crate) mod deltas;
pub(crate) mod hotness;
pub(crate) mod inode_pages;
pub(crate) mod main_deltas;

use crate::format::Nid;
use attempts::Attempts;
use clusters::Clusters;
use deltas::{Costs, DeltaCounts, DeltaMode};
use hotness::Hotness;
use main_deltas::MainDeltas;

/// Pages that are stored in less than a block: what is known of them, and what decides which are.
pub(crate) struct Small {
    /// Blocks that hold several compressed pages.
    pub(crate) clusters: Clusters,
    /// Whether pages may be compressed.
    pub(crate) is_compressed: bool,
    /// Where pages that are overwritten are kept as deltas.
    pub(crate) delta_mode: DeltaMode,
    /// Least number of addresses in an inode that leave it for deltas.
    pub(crate) moved_slots_min: u32,
    /// Fewest deltas in a compact page.
    pub(crate) packed_min: usize,
    /// Most bytes used of a block of an index of deltas.
    pub(crate) delta_index_len_bytes_max: usize,
    /// Deltas in the main area, in memory.
    pub(crate) main: MainDeltas,
    /// Head of the list of files with deltas in the main area.
    pub(crate) delta_list: Nid,
    /// Files that are written and read much.
    pub(crate) hotness: Hotness,
    /// Success of comparing overwritten pages, by file.
    pub(crate) attempts: Attempts,
    /// Costs of deltas and of pages, in time.
    pub(crate) costs: Costs,
    /// Statistics of deltas.
    pub(crate) delta_counts: DeltaCounts,
}
