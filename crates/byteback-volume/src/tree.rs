//! Files, directories and attributes: nodes and pages in memory, and what programs do with them.
//!
//! | room | what it is for |
//! |---|---|
//! | [`nodes`], [`pages`] | nodes and pages in memory |
//! | [`place`], [`map`] | from a page of a file to its block |
//! | [`file`], [`directory`], [`names`], [`attributes`], [`xattr`] | operations of programs |
//! | `reading`, `writing` | reading and writing much at once |

pub(crate) mod attributes;
pub(crate) mod directory;
pub(crate) mod file;
pub(crate) mod map;
pub(crate) mod names;
pub(crate) mod nodes;
pub(crate) mod pages;
pub(crate) mod place;
pub(crate) mod reading;
pub(crate) mod writing;
pub(crate) mod xattr;

use std::collections::{BTreeMap, BTreeSet};

use crate::format::Nid;
use byteback_host::block::BLOCK_LEN_BYTES;
use nodes::Nodes;
use pages::Pages;

/// The length of a page, in bytes.
pub(crate) const PAGE: u64 = BLOCK_LEN_BYTES as u64;

/// Nodes and pages in memory, and files that are open or have no name.
pub(crate) struct Tree {
    /// Nodes in memory.
    pub(crate) nodes: Nodes,
    /// Pages in memory.
    pub(crate) pages: Pages,
    /// Files without a name.
    pub(crate) orphans: BTreeSet<Nid>,
    /// Open files, with the number of times that each is held.
    pub(crate) held: BTreeMap<Nid, u64>,
    /// Seed for the hashes of names in directories.
    hash_seed: u64,
}

impl Tree {
    /// A tree of which only pages may be in memory, and no file is open.
    pub(crate) fn new(pages: Pages, orphans: BTreeSet<Nid>, hash_seed: u64) -> Self {
        Self {
            nodes: Nodes::default(),
            pages,
            orphans,
            held: BTreeMap::new(),
            hash_seed,
        }
    }
}
