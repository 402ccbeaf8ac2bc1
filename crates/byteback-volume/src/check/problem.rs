//! Kinds of problems of a volume.

use std::fmt;

use crate::format::{Address, Nid};

/// A problem, and the path of the file concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// One of the file's names, from the root on and without a leading slash; `None` if it has
    /// none, or if no file is concerned.
    pub path: Option<Vec<u8>>,
    /// The problem itself.
    pub trouble: Trouble,
}

/// A fault of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// A copy of the superblock is damaged, or differs from the other one.
    Superblock(Address),
    /// A checkpoint that was complete is damaged: only the one before it is left.
    Checkpoint {
        /// Its version.
        version: u64,
        /// Whether the one before it is of another state.
        is_lost: bool,
    },
    /// A block of the segment table is damaged.
    SegmentTable(Address),
    /// A block of the node table is damaged.
    NodeTable(Address),
    /// The node table has an impossible entry of a node.
    NodeEntry(Nid),
    /// A node cannot be read, or its block holds another one.
    Node {
        /// The node.
        nid: Nid,
        /// Its file.
        ino: Nid,
        /// Where it should be.
        address: Address,
    },
    /// A file refers to a node that is missing, another file's, or of another place.
    Reference {
        /// The file.
        ino: Nid,
        /// The node.
        nid: Nid,
    },
    /// A node that no file refers to.
    StrayNode {
        /// The node.
        nid: Nid,
        /// The file that it names as its own.
        ino: Nid,
    },
    /// An inode has an impossible field.
    Inode {
        /// The file.
        ino: Nid,
        /// Description of the fault.
        what: &'static str,
    },
    /// A page of a file is damaged.
    Page {
        /// The file.
        ino: Nid,
        /// The page, of 4 KiB.
        page: u64,
        /// Where it is.
        address: Address,
    },
    /// A page of a file has an impossible address.
    PageAddress {
        /// The file.
        ino: Nid,
        /// The page.
        page: u64,
        /// The address.
        address: Address,
    },
    /// The delta of a page is malformed.
    Delta {
        /// The file.
        ino: Nid,
        /// The page.
        page: u64,
    },
    /// The index of a file's deltas in the main area is lost, so it is unknown which pages have
    /// one: none of the file's pages can be read.
    DeltaIndex {
        /// The file.
        ino: Nid,
        /// Where the index should be.
        address: Address,
    },
    /// Deltas of a file in the main area are lost: their pages cannot be read.
    DeltaPage {
        /// The file.
        ino: Nid,
        /// The compact page that held them.
        address: Address,
    },
    /// The list of files with deltas in the main area does not hold exactly these files.
    DeltaList,
    /// A block belongs to two files, or to one file twice.
    Shared {
        /// The file that was met later.
        ino: Nid,
        /// The block.
        address: Address,
    },
    /// A page of a directory is damaged: the names in it are lost.
    DirectoryPage {
        /// The directory.
        dir: Nid,
        /// The page.
        page: u64,
    },
    /// An entry of a directory is wrong.
    Entry {
        /// The directory.
        dir: Nid,
        /// The name.
        name: Vec<u8>,
        /// Description of the fault.
        what: &'static str,
    },
    /// A file has no name, and is not listed as an orphan.
    Lost(Nid),
    /// An entry of the list of orphans has a name, or is no file.
    Orphan(Nid),
    /// A file has another number of names than its inode states.
    Links {
        /// The file.
        ino: Nid,
        /// Number of names found.
        found: u32,
        /// Number of names stated.
        said: u32,
    },
    /// A directory states the wrong parent.
    Parent {
        /// The directory.
        dir: Nid,
        /// The parent found.
        found: Nid,
        /// The parent stated.
        said: Nid,
    },
    /// A file has another number of blocks than its inode states.
    Blocks {
        /// The file.
        ino: Nid,
        /// Number of blocks found.
        found: u64,
        /// Number of blocks stated.
        said: u64,
    },
    /// The summaries of a segment are damaged.
    Summaries(u32),
    /// The summary of a block names the wrong owner.
    Summary(Address),
    /// A block is in use, but marked free.
    Unmarked(Address),
    /// Blocks of a segment are marked as in use, and nothing refers to them.
    Marked {
        /// The segment.
        segment: u32,
        /// Number of these blocks.
        blocks: u32,
    },
    /// A log has an impossible position to go on from.
    Log(usize),
    /// A counter of the checkpoint is wrong.
    Counter {
        /// Name of the counter.
        what: &'static str,
        /// The value found.
        found: u32,
        /// The value stated.
        said: u32,
    },
}

impl Trouble {
    /// A short and stable name, for programs.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Superblock(_) => "superblock",
            Self::Checkpoint { .. } => "checkpoint",
            Self::SegmentTable(_) => "segment_table",
            Self::NodeTable(_) => "node_table",
            Self::NodeEntry(_) => "node_entry",
            Self::Node { .. } => "node",
            Self::Reference { .. } => "reference",
            Self::StrayNode { .. } => "stray_node",
            Self::Inode { .. } => "inode",
            Self::Page { .. } => "page",
            Self::PageAddress { .. } => "page_address",
            Self::Delta { .. } => "delta",
            Self::DeltaIndex { .. } => "delta_index",
            Self::DeltaPage { .. } => "delta_page",
            Self::DeltaList => "delta_list",
            Self::Shared { .. } => "shared",
            Self::DirectoryPage { .. } => "directory_page",
            Self::Entry { .. } => "entry",
            Self::Lost(_) => "lost",
            Self::Orphan(_) => "orphan",
            Self::Links { .. } => "links",
            Self::Parent { .. } => "parent",
            Self::Blocks { .. } => "blocks",
            Self::Summaries(_) => "summaries",
            Self::Summary(_) => "summary",
            Self::Unmarked(_) => "unmarked",
            Self::Marked { .. } => "marked",
            Self::Log(_) => "log",
            Self::Counter { .. } => "counter",
        }
    }

    /// The file concerned.
    #[must_use]
    pub fn nid(&self) -> Option<Nid> {
        match self {
            Self::Node { ino, .. }
            | Self::Reference { ino, .. }
            | Self::StrayNode { ino, .. }
            | Self::Inode { ino, .. }
            | Self::Page { ino, .. }
            | Self::PageAddress { ino, .. }
            | Self::Delta { ino, .. }
            | Self::DeltaIndex { ino, .. }
            | Self::DeltaPage { ino, .. }
            | Self::Shared { ino, .. }
            | Self::Links { ino, .. }
            | Self::Blocks { ino, .. }
            | Self::Lost(ino)
            | Self::Orphan(ino) => Some(*ino),
            Self::DirectoryPage { dir, .. } | Self::Entry { dir, .. } | Self::Parent { dir, .. } => Some(*dir),
            _ => None,
        }
    }

    /// Whether bytes of a file or a name are lost by it. Any other problem can be repaired.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::Checkpoint { is_lost: true, .. }
                | Self::NodeEntry(_)
                | Self::Node { .. }
                | Self::Reference { .. }
                | Self::Inode { .. }
                | Self::Page { .. }
                | Self::PageAddress { .. }
                | Self::Delta { .. }
                | Self::DeltaIndex { .. }
                | Self::DeltaPage { .. }
                | Self::Shared { .. }
                | Self::DirectoryPage { .. }
        )
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock(address) => write!(
                f,
                "the superblock at block {address} is damaged; the other copy is intact"
            ),
            Self::Checkpoint { version, is_lost: true } => {
                write!(
                    f,
                    "checkpoint {version} is damaged: changes since the previous checkpoint are lost"
                )
            }
            Self::Checkpoint { version, .. } => {
                write!(
                    f,
                    "checkpoint {version} is damaged; the previous one has the same state"
                )
            }
            Self::SegmentTable(address) => write!(f, "the segment table is damaged at block {address}"),
            Self::NodeTable(address) => write!(f, "the node table is damaged at block {address}"),
            Self::NodeEntry(nid) => write!(f, "the node table has an impossible entry for node {nid}"),
            Self::Node { nid, address, .. } => {
                write!(f, "node {nid} at block {address} is damaged: its contents are lost")
            }
            Self::Reference { nid, .. } => write!(f, "node {nid} is missing: its contents are lost"),
            Self::StrayNode { nid, .. } => write!(f, "node {nid} belongs to no file"),
            Self::Inode { what, .. } => write!(f, "the inode is malformed: {what}"),
            Self::Page { page, address, .. } => {
                write!(
                    f,
                    "4096 bytes at offset {} (block {address}) are damaged",
                    page.saturating_mul(4096)
                )
            }
            Self::PageAddress { page, address, .. } => {
                write!(
                    f,
                    "4096 bytes at offset {} are lost: block {address} does not hold them",
                    page.saturating_mul(4096)
                )
            }
            Self::Delta { page, .. } => {
                write!(
                    f,
                    "the delta of the 4096 bytes at offset {} is damaged",
                    page.saturating_mul(4096)
                )
            }
            Self::DeltaIndex { address, .. } => write!(
                f,
                "the index of its deltas at block {address} is damaged: no page can be read until it is overwritten"
            ),
            Self::DeltaPage { address, .. } => {
                write!(f, "the deltas in block {address} are lost: their pages cannot be read")
            }
            Self::DeltaList => write!(f, "the list of files with deltas in the main area is wrong"),
            Self::Shared { address, .. } => write!(f, "block {address} is used twice"),
            Self::DirectoryPage { page, .. } => {
                write!(f, "page {page} of the directory is damaged: its names are lost")
            }
            Self::Entry { name, what, .. } => write!(f, "entry '{}': {what}", String::from_utf8_lossy(name)),
            Self::Lost(ino) => write!(f, "file {ino} has no name"),
            Self::Orphan(ino) => write!(f, "file {ino} is wrongly listed as having no name"),
            Self::Links { found, said, .. } => write!(f, "has {found} links, but its inode says {said}"),
            Self::Parent { found, said, .. } => write!(f, "is in directory {found}, but its inode says {said}"),
            Self::Blocks { found, said, .. } => write!(f, "has {found} blocks, but its inode says {said}"),
            Self::Summaries(segment) => write!(
                f,
                "the summaries of segment {segment} are damaged: its pages cannot be verified"
            ),
            Self::Summary(address) => write!(f, "the summary of block {address} names another owner"),
            Self::Unmarked(address) => write!(f, "block {address} is in use, but marked as free"),
            Self::Marked { segment, blocks } => write!(
                f,
                "{blocks} blocks of segment {segment} are marked as in use, but are free"
            ),
            Self::Log(index) => write!(f, "log {index} continues at an impossible position"),
            Self::Counter { what, found, said } => {
                write!(f, "the checkpoint counts {said} {what}, but there are {found}")
            }
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.path, self.trouble.nid()) {
            (Some(path), _) => write!(f, "/{}: {}", String::from_utf8_lossy(path), self.trouble),
            (None, Some(nid)) => write!(f, "file {nid}: {}", self.trouble),
            (None, None) => self.trouble.fmt(f),
        }
    }
}
