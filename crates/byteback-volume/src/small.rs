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
