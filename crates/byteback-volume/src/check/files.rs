//! Walks from each inode to its nodes and pages, and records which file owns which block.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use byteback_delta::apply_page_delta;
use byteback_host::block::BLOCK_LEN_BYTES;

use super::{Bits, CheckOptions, Image, Problems, Trouble};
use crate::format::{
    Address, Block, COMPACT_SLOT, Cluster, DIRECT_SLOTS, DeltaPlaces, Footer, INDEX_SLOT, INDIRECT_NODES,
    INLINE_LEN_BYTES, INODE_SLOTS, Inode, InodeFlags, Kind, Nid, NodeBlock, NodeEntry, Summary, compact_page_ino,
    page_checksum, zeros,
};

const TYPE: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;

/// Nodes of a subtree by level, its top included: a direct node, an indirect one, one that leads to
/// indirect ones.
const SIZES: [u32; 3] = [1, 1 + DIRECT_SLOTS, 1 + DIRECT_SLOTS * (1 + DIRECT_SLOTS)];

/// The levels of an inode's nodes.
const LEVELS: [usize; INDIRECT_NODES] = [0, 0, 1, 1, 2];

/// Properties of a file found by the check.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) parent: Nid,
    pub(crate) flags: InodeFlags,
    pub(crate) levels: u8,
    /// Whether the file has deltas in the main area, or had some that are lost.
    pub(crate) has_delta_index: bool,
    pub(crate) delta_next: Nid,
    pub(crate) delta_previous: Nid,
}

impl Known {
    /// File type in the form of directory entries.
    pub(crate) fn sort(&self) -> u32 {
        (self.mode & TYPE) >> 12
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.mode & TYPE == DIRECTORY
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Files whose inode is whole.
    pub(crate) known: BTreeMap<Nid, Known>,
    /// The pages of directories.
    pub(crate) directory_pages: BTreeMap<Nid, Vec<(u64, Address)>>,
    /// Blocks of the main area that have an owner.
    pub(crate) owned: Bits,
    /// Nodes that were visited.
    reached: Bits,
    /// Blocks whose summaries are damaged or name another owner, with the right summary; without
    /// checksums of pages.
    pub(crate) unproven: Vec<(Address, Summary)>,
    /// Pages whose address is impossible, or is a block of another owner.
    pub(crate) to_clear: Vec<(Nid, u64)>,
    /// Nodes that files refer to and that are not theirs: file and node.
    pub(crate) missing: Vec<(Nid, Nid)>,
    /// Files whose delta index is damaged, impossible, or owned by another file.
    pub(crate) lost_indexes: BTreeSet<Nid>,
    owned_blocks: u32,
    pub(super) reserved_pages: u32,
    /// Blocks that are clusters, each owned by the one file that it names.
    pub(super) clusters: Bits,
    /// Pages in clusters.
    pub(crate) compressed_pages: u64,
    pub(crate) nodes: u32,
    pub(crate) pages: u64,
    pub(crate) deltas: u64,
    pub(crate) main_deltas: u64,
    pub(crate) compact_pages: u64,
}

impl Files {
    /// Blocks in use, reserved ones included.
    pub(crate) fn used_blocks(&self) -> u32 {
        self.owned_blocks.saturating_add(self.reserved_pages)
    }

    /// Looks at all files.
    pub(crate) fn walk(image: &mut Image<'_>, options: CheckOptions, problems: &mut Problems) -> Self {
        let areas = *image.areas();
        let main_blocks = u64::from(areas.main_segments) * u64::from(areas.segment_blocks);
        let mut walk = Walk {
            reads_contents: options.reads_contents,
            problems,
            later: Vec::new(),
            last_cluster: None,
            files: Self {
                owned: Bits::of(main_blocks),
                clusters: Bits::of(main_blocks),
                reached: Bits::of(u64::from(u32::MAX).min(main_blocks + u64::from(crate::format::NODES_PER_BLOCK) + 1)),
                ..Self::default()
            },
            image,
        };
        let entries: Vec<(Nid, NodeEntry)> = walk.image.nodes.iter().map(|(nid, entry)| (*nid, *entry)).collect();
        for (ino, entry) in entries.iter().filter(|(nid, entry)| *nid == entry.ino) {
            walk.file(*ino, *entry);
        }
        // A block without proof of its owner goes to the file that refers to it, unless another
        // owns it.
        for later in std::mem::take(&mut walk.later) {
            if walk.claim(later.ino, later.address) {
                continue;
            }
            match later.what {
                What::Node => {}
                What::Page(page) => walk.files.to_clear.push((later.ino, page)),
                What::Deltas => drop(walk.files.lost_indexes.insert(later.ino)),
            }
        }
        for (nid, entry) in &entries {
            if !walk.files.reached.is_set(nid.0) {
                walk.problems.add(Trouble::StrayNode {
                    nid: *nid,
                    ino: entry.ino,
                });
            }
        }
        walk.files
    }
}

/// A cluster and its content.
pub(super) struct Opened {
    pub(super) cluster: Cluster,
    pub(super) checksum: u32,
    /// Contents of all its pages; `None` if they were not asked for or cannot be read.
    pub(super) contents: Option<Vec<u8>>,
}

pub(super) struct Walk<'w, 'a> {
    pub(super) image: &'w mut Image<'a>,
    pub(super) reads_contents: bool,
    pub(super) problems: &'w mut Problems,
    pub(super) files: Files,
    /// Claims to decide when every file has claimed the blocks that are proven to be its own.
    later: Vec<Later>,
    /// The last cluster visited: several pages of a file lead there.
    pub(super) last_cluster: Option<(Address, Option<Rc<Opened>>)>,
}

/// A block that a file refers to.
struct Later {
    ino: Nid,
    what: What,
    address: Address,
}

/// Role of a block.
#[derive(Clone, Copy, Debug)]
enum What {
    Node,
    Page(u64),
    /// A delta index or a compact page.
    Deltas,
}

/// State of the walk through one file.
pub(super) struct File {
    pub(super) ino: Nid,
    pub(super) version: u8,
    pub(super) is_directory: bool,
    /// Length of the file; the rest of its last page is zeros.
    pub(super) len_bytes: u64,
    /// Pages with deltas, and whether the base block of the delta was met.
    deltas: BTreeMap<u64, bool>,
    /// Pages that may lie wholly in the inode, and whether they are zero behind the end of the
    /// file.
    in_inode: BTreeMap<u64, bool>,
    /// More pages may have deltas, as the index is lost.
    pub(super) has_unknown_deltas: bool,
    blocks: u64,
}

impl Walk<'_, '_> {
    /// Gives a block its owner; false if it has one already.
    fn claim(&mut self, ino: Nid, address: Address) -> bool {
        let is_free = self.claim_uncounted(ino, address);
        self.files.owned_blocks += u32::from(is_free);
        is_free
    }

    /// The same for a block whose pages are counted in its stead.
    pub(super) fn claim_uncounted(&mut self, ino: Nid, address: Address) -> bool {
        let areas = self.image.areas();
        let Some((segment, index)) = areas.segment_of(address) else {
            return false;
        };
        let at = segment * areas.segment_blocks + index;
        if self.files.owned.set(at) {
            self.problems.add(Trouble::Shared { ino, address });
            return false;
        }
        true
    }

    /// Reads a node of a file, if it is the right one.
    fn node(&mut self, ino: Nid, nid: Nid, place: u32) -> Option<(NodeEntry, Box<Block>)> {
        let entry = self.image.nodes.get(&nid).copied().filter(|entry| entry.ino == ino);
        let Some(entry) = entry.filter(|_| !self.files.reached.is_set(nid.0)) else {
            self.problems.add(Trouble::Reference { ino, nid });
            self.files.missing.push((ino, nid));
            return None;
        };
        self.files.reached.set(nid.0);
        self.files.nodes += 1;
        let block = self.image.sealed(entry.address, Kind::Node);
        let is_it = |block: &Block| {
            let footer = Footer::read(block);
            (footer.nid, footer.ino, footer.place) == (nid, ino, place) && footer.checkpoint <= self.image.pack.version
        };
        let Some(block) = block.filter(|block| is_it(block)) else {
            let address = entry.address;
            self.later.push(Later {
                ino,
                what: What::Node,
                address,
            });
            self.problems.add(Trouble::Node { nid, ino, address });
            return None;
        };
        self.claim(ino, entry.address);
        let summary = self.image.summary_of(entry.address);
        if summary.is_none_or(|summary| (summary.nid, summary.version) != (nid, entry.version)) {
            let version = entry.version;
            let right = Summary {
                nid,
                version,
                ..Summary::default()
            };
            self.is_unproven(entry.address, right, summary.is_some());
        }
        Some((entry, block))
    }

    /// Records that the summary of a block is damaged, or is there and names another owner.
    pub(super) fn is_unproven(&mut self, address: Address, right: Summary, is_there: bool) {
        self.files.unproven.push((address, right));
        if is_there {
            self.problems.add(Trouble::Summary(address));
        } else if let Some((segment, _)) = self.image.areas().segment_of(address) {
            let trouble = Trouble::Summaries(segment);
            // Once for a whole segment of damaged summaries.
            if !self.problems.found.contains(&trouble) {
                self.problems.add(trouble);
            }
        }
    }

    fn file(&mut self, ino: Nid, entry: NodeEntry) {
        let Some((_, block)) = self.node(ino, ino, 0) else {
            return;
        };
        let inode = Inode(block.into());
        let flags = inode.flags();
        let is_directory = inode.mode() & TYPE == DIRECTORY;
        let mut file = File {
            ino,
            version: entry.version,
            is_directory,
            len_bytes: inode.len_bytes(),
            deltas: BTreeMap::new(),
            in_inode: BTreeMap::new(),
            has_unknown_deltas: false,
            blocks: 1,
        };
        if let Some(what) = malformed(&inode, flags) {
            self.problems.add(Trouble::Inode { ino, what });
        }
        if flags.is_compressed && !self.image.is_compressed() {
            let what = "its pages may be compressed, but the volume has no compression";
            self.problems.add(Trouble::Inode { ino, what });
        }
        if !flags.has_inline_data && !flags.has_inline_entries {
            self.deltas(&inode, &mut file);
            self.main_deltas(&inode, entry.version, &mut file);
            for slot in 0..inode.address_slots().min(INODE_SLOTS) {
                let address = Inode::slot(&inode.0, slot);
                self.page(&mut file, (ino, entry.version), u64::from(slot), slot, address);
            }
            if let Some(node) = inode.moved_slots() {
                self.moved_slots(&mut file, node, entry.version);
            }
            let (mut place, mut first) = (1, u64::from(INODE_SLOTS));
            for (index, level) in LEVELS.into_iter().enumerate() {
                let nid = inode.node(index);
                if nid != Nid::NONE {
                    self.below(&mut file, nid, place, level, first);
                }
                place += SIZES.get(level).copied().unwrap_or(0);
                first += u64::from(DIRECT_SLOTS).pow(level as u32 + 1);
            }
        }
        for (page, has_base) in &file.deltas {
            if !has_base {
                self.problems.add(Trouble::Delta { ino, page: *page });
            }
        }
        let xattrs = inode.xattr_node();
        if xattrs != Nid::NONE {
            file.blocks += 1;
            if let Some((_, block)) = self.node(ino, xattrs, Footer::XATTRS)
                && !are_xattrs(NodeBlock::body(&block))
            {
                let what = "its extended attributes are truncated";
                self.problems.add(Trouble::Inode { ino, what });
            }
        } else if !are_xattrs(inode.xattrs()) {
            let what = "its extended attributes are truncated";
            self.problems.add(Trouble::Inode { ino, what });
        }
        if file.blocks != inode.blocks() {
            let (found, said) = (file.blocks, inode.blocks());
            self.problems.add(Trouble::Blocks { ino, found, said });
        }
        let known = Known {
            mode: inode.mode(),
            links: inode.links(),
            parent: inode.parent(),
            flags,
            levels: inode.levels(),
            has_delta_index: inode.delta_meta() != Address::NONE,
            delta_next: inode.delta_next(),
            delta_previous: inode.delta_previous(),
        };
        self.files.known.insert(ino, known);
    }

    fn deltas(&mut self, inode: &Inode, file: &mut File) {
        let (mut count, mut len_bytes) = (0u16, 0);
        let mut malformed = Vec::new();
        let mut marks = 0;
        for (page, delta) in inode.deltas_of() {
            let page = u64::from(page);
            count += 1;
            marks += u64::from(delta.is_empty());
            len_bytes += inode.delta_head_len_bytes() + delta.len();
            let mut content = zeros();
            let is_sound = apply_page_delta(&mut content[..], delta).is_ok();
            if inode.flags().is_compressed && self.image.is_compressed() && !delta.is_empty() {
                let is_zero = is_zero_behind(&content[..], page, file.len_bytes);
                file.in_inode.insert(page, is_zero);
            }
            if file.deltas.insert(page, false).is_some() || !is_sound || file.is_directory {
                malformed.push(page);
            }
        }
        for page in malformed {
            self.problems.add(Trouble::Delta { ino: file.ino, page });
        }
        let is_whole = (count, len_bytes) == (inode.deltas(), usize::from(inode.delta_bytes()));
        if !is_whole || len_bytes > INLINE_LEN_BYTES {
            let what = "its deltas do not match their recorded number and length";
            self.problems.add(Trouble::Inode { ino: file.ino, what });
        }
        self.files.deltas += u64::from(count).saturating_sub(marks);
    }

    /// Checks the index of a file's deltas in the main area, and the compact pages.
    fn main_deltas(&mut self, inode: &Inode, version: u8, file: &mut File) {
        let address = inode.delta_meta();
        if address == Address::NONE {
            return;
        }
        file.blocks += u64::from(address.is_block());
        let areas = *self.image.areas();
        let found = match file.is_directory {
            true => Err(address),
            false => DeltaPlaces::read((file.ino, address), &areas, |at, kind| {
                self.delta_block((file.ino, version), at, kind)
            }),
        };
        let found = match found {
            Ok(found) => found,
            Err(address) => {
                file.has_unknown_deltas = true;
                self.files.lost_indexes.insert(file.ino);
                let ino = file.ino;
                return self.problems.add(Trouble::DeltaIndex { ino, address });
            }
        };
        file.blocks += found.leaves.len() as u64;
        for (page, delta) in &found.own {
            self.main_delta(inode, file, *page, Some(delta));
        }
        for (address, places) in found.by_compact_page() {
            file.blocks += 1;
            self.files.compact_pages += 1;
            let block = self.delta_block((file.ino, version), address, Kind::DeltaCompact);
            let block = block.filter(|block| compact_page_ino(block) == file.ino);
            if block.is_none() {
                let ino = file.ino;
                self.problems.add(Trouble::DeltaPage { ino, address });
            }
            for place in places {
                let delta = block
                    .as_deref()
                    .map(|block| block.get(place.range()).unwrap_or_default());
                self.main_delta(inode, file, place.page, delta);
            }
        }
    }

    /// Checks a delta in the main area, if its block is whole.
    fn main_delta(&mut self, inode: &Inode, file: &mut File, page: u32, delta: Option<&[u8]>) {
        let page = u64::from(page);
        // A delta in the inode takes precedence.
        if inode.delta_of(page).is_some() {
            return;
        }
        self.files.main_deltas += 1;
        if delta.is_some_and(|delta| apply_page_delta(&mut zeros()[..], delta).is_err()) {
            self.problems.add(Trouble::Delta { ino: file.ino, page });
        }
        file.deltas.insert(page, false);
    }

    /// Reads a block of a file's deltas in the main area, if it is whole and the file's own.
    fn delta_block(&mut self, (ino, version): (Nid, u8), address: Address, kind: Kind) -> Option<Box<Block>> {
        let slot = match kind {
            Kind::DeltaCompact => COMPACT_SLOT,
            _ => INDEX_SLOT,
        };
        let summary = self.image.summary_of(address);
        let is_own = |summary: &Summary| (summary.nid, summary.version, summary.slot) == (ino, version, slot);
        let block = self.image.sealed(address, kind);
        match summary.filter(is_own) {
            Some(summary) => {
                if !self.claim(ino, address) {
                    self.files.lost_indexes.insert(ino);
                    return None;
                }
                block.filter(|block| page_checksum(&block[..]) == summary.checksum)
            }
            None => {
                let what = What::Deltas;
                self.later.push(Later { ino, what, address });
                let right = Summary {
                    nid: ino,
                    version,
                    slot,
                    checksum: 0,
                };
                self.is_unproven(address, right, summary.is_some());
                block
            }
        }
    }

    /// Checks the node that holds an inode's slots: summaries name the inode.
    fn moved_slots(&mut self, file: &mut File, node: Nid, version: u8) {
        file.blocks += 1;
        let Some((_, block)) = self.node(file.ino, node, Footer::MOVED_SLOTS) else {
            return;
        };
        for slot in 0..INODE_SLOTS {
            let address = Address(NodeBlock::slot(&block, slot));
            self.page(file, (file.ino, version), u64::from(slot), slot, address);
        }
        if (INODE_SLOTS..DIRECT_SLOTS).any(|slot| NodeBlock::slot(&block, slot) != 0) {
            let what = "its moved slots are followed by other addresses";
            self.problems.add(Trouble::Inode { ino: file.ino, what });
        }
    }

    /// Checks a node and the nodes and pages below it. `first` is its first page.
    fn below(&mut self, file: &mut File, nid: Nid, place: u32, level: usize, first: u64) {
        file.blocks += 1;
        let Some((entry, block)) = self.node(file.ino, nid, place) else {
            return;
        };
        let Some(level_below) = level.checked_sub(1) else {
            for slot in 0..DIRECT_SLOTS {
                let address = Address(NodeBlock::slot(&block, slot));
                self.page(file, (nid, entry.version), first + u64::from(slot), slot, address);
            }
            return;
        };
        let size = SIZES.get(level_below).copied().unwrap_or(0);
        let pages_each = u64::from(DIRECT_SLOTS).pow(level as u32);
        for slot in 0..DIRECT_SLOTS {
            let below = Nid(NodeBlock::slot(&block, slot));
            if below != Nid::NONE {
                let first = first + u64::from(slot) * pages_each;
                self.below(file, below, place + 1 + slot * size, level_below, first);
            }
        }
    }

    fn page(&mut self, file: &mut File, (node, version): (Nid, u8), page: u64, slot: u32, address: Address) {
        let ino = file.ino;
        if address == Address::NONE {
            return;
        }
        file.blocks += 1;
        if address == Address::RESERVED {
            self.files.reserved_pages = self.files.reserved_pages.saturating_add(1);
            // The page may lie in the inode, as a delta of zeros.
            if let Some(is_zero) = file.in_inode.get(&page) {
                file.deltas.insert(page, true);
                self.files.compressed_pages += 1;
                if !is_zero {
                    let what = "bytes beyond its end are not zero";
                    self.problems.add(Trouble::Inode { ino, what });
                }
            }
            return;
        }
        if self.image.areas().segment_of(address).is_none() {
            self.problems.add(Trouble::PageAddress { ino, page, address });
            self.files.to_clear.push((ino, page));
            return;
        }
        self.files.pages += 1;
        let has_delta = file.deltas.get_mut(&page).map(|has_base| *has_base = true).is_some();
        if file.is_directory {
            self.files.directory_pages.entry(ino).or_default().push((page, address));
        }
        let summary = self.image.summary_of(address);
        let is_own =
            |summary: &Summary| (summary.nid, summary.version, u32::from(summary.slot)) == (node, version, slot);
        if !summary.as_ref().is_some_and(is_own) && self.is_cluster_of(file, address, summary) {
            return self.clustered_page(file, page, address, summary, has_delta);
        }
        let Some(proven) = summary.filter(is_own) else {
            self.later.push(Later {
                ino,
                what: What::Page(page),
                address,
            });
            let right = Summary {
                nid: node,
                version,
                slot: u16::try_from(slot).unwrap_or(u16::MAX),
                checksum: 0,
            };
            return self.is_unproven(address, right, summary.is_some());
        };
        if !self.claim(ino, address) || !self.reads_contents || file.is_directory {
            return;
        }
        match self.image.block(address) {
            Some(block) if page_checksum(&block[..]) == proven.checksum => {
                let may_have_delta = has_delta || file.has_unknown_deltas;
                if !may_have_delta && !is_zero_behind(&block[..], page, file.len_bytes) {
                    let what = "bytes beyond its end are not zero";
                    self.problems.add(Trouble::Inode { ino, what });
                }
            }
            _ => self.problems.add(Trouble::Page { ino, page, address }),
        }
    }
}

/// Whether a page is zero behind the end of its file. Anything else would become visible if the
/// file grew.
pub(super) fn is_zero_behind(block: &[u8], page: u64, len_bytes: u64) -> bool {
    let start = page.saturating_mul(BLOCK_LEN_BYTES as u64);
    let kept = usize::try_from(len_bytes.saturating_sub(start)).unwrap_or(usize::MAX);
    block.iter().skip(kept).all(|byte| *byte == 0)
}

fn malformed(inode: &Inode, flags: InodeFlags) -> Option<&'static str> {
    let has_nodes = (0..INDIRECT_NODES).any(|index| inode.node(index) != Nid::NONE);
    let len_bytes = usize::try_from(inode.len_bytes()).unwrap_or(usize::MAX);
    if (flags.has_inline_data || flags.has_inline_entries) && inode.delta_meta() != Address::NONE {
        return Some("it has deltas, but no pages");
    }
    if flags.has_moved_slots && (flags.has_inline_data || flags.has_inline_entries || inode.mode() & TYPE != REGULAR) {
        return Some("only a regular file with pages may have moved slots");
    }
    match inode.mode() & TYPE {
        DIRECTORY if flags.has_inline_data => return Some("a directory cannot have inline data"),
        DIRECTORY | REGULAR | SYMLINK => {}
        0 => return Some("its mode has no file type"),
        _ if flags.has_inline_data || flags.has_inline_entries || len_bytes > 0 => {
            return Some("a special file cannot have content");
        }
        _ => {}
    }
    if flags.has_inline_entries && inode.mode() & TYPE != DIRECTORY {
        return Some("inline entries in a non-directory");
    }
    if flags.has_inline_data {
        let behind = inode.inline().get(len_bytes..);
        return match behind {
            _ if has_nodes => Some("it has both inline data and nodes of pages"),
            None => Some("its inline data is longer than the space for it"),
            Some(behind) if behind.iter().any(|byte| *byte != 0) => Some("bytes beyond its end are not zero"),
            Some(_) => None,
        };
    }
    (flags.has_inline_entries && has_nodes).then_some("it has both inline entries and nodes of pages")
}

/// Whether bytes are a sequence of `name_len u8, value_len u16, name, value`, up to a zero or the
/// end.
fn are_xattrs(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while let Some(([name_len, low, high], behind)) = rest.split_first_chunk()
        && *name_len > 0
    {
        let len = usize::from(*name_len) + usize::from(u16::from_le_bytes([*low, *high]));
        match behind.get(len..) {
            Some(behind) => rest = behind,
            None => return false,
        }
    }
    true
}
