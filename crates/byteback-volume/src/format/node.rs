//! Nodes: inodes, direct nodes, indirect nodes, and nodes of extended attributes.
//!
//! ```text
//! node   = body (4068 bytes) footer (24) seal (4)
//! inode  = attributes (112) name (256) extra (12) slots (867 * 4) pages' sum (8)
//!          inline xattrs (192) node numbers (5 * 4)
//! direct = 1017 addresses            indirect = 1017 node numbers
//! ```
//! *Slots* of an inode are the addresses of its first pages; the free ones at their end give room
//! for deltas (DeltaFS section 4.1.2), from the end towards the beginning. A small file's content,
//! or a small directory's entries, lie there instead of addresses.
//!
//! The footer states the node's file, the checkpoint after which it was written, and where the next
//! node of the same log will be: recovery follows these to what was synced since a checkpoint.

use std::sync::Arc;

use super::{
    Address, Block, Nid, SEALED_LEN_BYTES, i64_at, put, put_i64, put_u8, put_u16, put_u32, put_u64, u8_at, u16_at,
    u32_at, u64_at, zeros,
};

const BODY_LEN_BYTES: usize = 4068;

/// Addresses of a direct node, and node numbers of an indirect one.
pub const DIRECT_SLOTS: u32 = 1017;

/// Node numbers of an inode: two direct nodes, two indirect ones, and one that leads to indirect
/// ones.
pub const INDIRECT_NODES: usize = 5;

/// Addresses in an inode.
pub const INODE_SLOTS: u32 = 867;

/// Room in an inode for content or entries instead of addresses, in bytes.
pub const INLINE_LEN_BYTES: usize = 4 * 867;

/// Room for extended attributes in an inode, in bytes.
pub const XATTR_INLINE_LEN_BYTES: usize = 192;

/// Bytes of a delta beside itself: the page's number, and its length. One byte more in an inode
/// whose pages may be compressed.
pub const DELTA_HEAD_LEN_BYTES: usize = 3;

/// Longest delta in an inode, of a page with a block.
pub const DELTA_LEN_BYTES_MAX: usize = 255;

/// Pages of the longest file.
pub const MAX_FILE_BLOCKS: u64 = {
    let slots = DIRECT_SLOTS as u64;
    INODE_SLOTS as u64 + 2 * slots + 2 * slots * slots + slots * slots * slots
};

const AT_NAME_LEN: usize = 112;
const AT_NAME: usize = 113;
const AT_EXTRA: usize = 368;
const AT_SLOTS: usize = 380;
const AT_PAGES_SUM: usize = AT_SLOTS + INLINE_LEN_BYTES;
const AT_XATTRS: usize = AT_PAGES_SUM + 8;
const AT_NIDS: usize = AT_XATTRS + XATTR_INLINE_LEN_BYTES;

const _: () = assert!(AT_NIDS + 4 * INDIRECT_NODES == BODY_LEN_BYTES);
const _: () = assert!(BODY_LEN_BYTES + 24 == SEALED_LEN_BYTES && DIRECT_SLOTS as usize * 4 == BODY_LEN_BYTES);

/// Flags in a node's footer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeFlags {
    /// Whether this is the last node of a file's sync.
    pub is_synced: bool,
    /// The file has no entry in a directory of the checkpoint; the inode states where it belongs.
    pub is_new_name: bool,
}

/// The end of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// The node's number.
    pub nid: Nid,
    /// The number of its file.
    pub ino: Nid,
    /// Its place in the file: 0 is the inode, then come direct and indirect nodes in the order in
    /// which they are found; [`Footer::XATTRS`].
    pub place: u32,
    /// Flags, see [`NodeFlags`].
    pub flags: NodeFlags,
    /// The version of the checkpoint after which it was written.
    pub checkpoint: u64,
    /// Address of the next node of its log.
    pub next: Address,
}

impl Footer {
    /// The place of a node of extended attributes.
    pub const XATTRS: u32 = (1 << 29) - 1;

    /// The place of the node that has an inode's slots in its stead, see [`Inode::moved_slots`].
    pub const MOVED_SLOTS: u32 = (1 << 29) - 2;

    /// Reads it.
    #[must_use]
    pub fn read(block: &Block) -> Self {
        let packed = u32_at(block, BODY_LEN_BYTES + 8);
        Self {
            nid: Nid(u32_at(block, BODY_LEN_BYTES)),
            ino: Nid(u32_at(block, BODY_LEN_BYTES + 4)),
            place: packed >> 3,
            flags: NodeFlags {
                is_synced: packed & 1 != 0,
                is_new_name: packed & 2 != 0,
            },
            checkpoint: u64_at(block, BODY_LEN_BYTES + 12),
            next: Address(u32_at(block, BODY_LEN_BYTES + 20)),
        }
    }

    /// Writes it.
    pub fn write(&self, block: &mut Block) {
        let flags = u32::from(self.flags.is_synced) | u32::from(self.flags.is_new_name) << 1;
        put_u32(block, BODY_LEN_BYTES, self.nid.0);
        put_u32(block, BODY_LEN_BYTES + 4, self.ino.0);
        put_u32(block, BODY_LEN_BYTES + 8, self.place << 3 | flags);
        put_u64(block, BODY_LEN_BYTES + 12, self.checkpoint);
        put_u32(block, BODY_LEN_BYTES + 20, self.next.0);
    }
}

/// A direct or indirect node, or one of extended attributes.
#[derive(Clone, Copy, Debug)]
pub struct NodeBlock;

impl NodeBlock {
    /// The address or node number in a slot; of an inode's slots, see [`Inode::slot`].
    #[must_use]
    pub fn slot(block: &Block, slot: u32) -> u32 {
        u32_at(block, Self::at(slot))
    }

    /// Sets it.
    pub fn set_slot(block: &mut Block, slot: u32, value: u32) {
        put_u32(block, Self::at(slot), value);
    }

    /// Content of a node of extended attributes.
    #[must_use]
    pub fn body(block: &Block) -> &[u8] {
        block.get(..BODY_LEN_BYTES).unwrap_or_default()
    }

    /// The same, mutable.
    pub fn body_mut(block: &mut Block) -> &mut [u8] {
        block.get_mut(..BODY_LEN_BYTES).unwrap_or_default()
    }

    fn at(slot: u32) -> usize {
        usize::try_from(slot.min(DIRECT_SLOTS - 1)).unwrap_or(0) * 4
    }
}

/// A point in time, to the nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanoseconds: u32,
}

impl Time {
    /// The time `ns` nanoseconds after 1970 began.
    #[must_use]
    pub fn of_ns(ns: i64) -> Self {
        Self {
            seconds: ns.div_euclid(1_000_000_000),
            nanoseconds: u32::try_from(ns.rem_euclid(1_000_000_000)).unwrap_or(0),
        }
    }
}

/// Use of an inode's slots, and further properties of its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeFlags {
    /// The slots hold the file's content.
    pub has_inline_data: bool,
    /// The slots hold the directory's entries.
    pub has_inline_entries: bool,
    /// Deltas of the file are in the main area.
    pub has_main_deltas: bool,
    /// Appended pages are to be compressed.
    pub is_compressed: bool,
    /// The addresses of the first pages are in a node of their own: the first slot holds its
    /// number, and all others are room for deltas.
    pub has_moved_slots: bool,
}

/// An inode: a block that is read and written as a whole. A clone costs nothing; the bytes are
/// copied when one of two is changed.
#[derive(Clone, Debug)]
pub struct Inode(pub Arc<Block>);

impl Default for Inode {
    fn default() -> Self {
        Self(zeros().into())
    }
}

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident, $set:ident: $type:ty = $read:ident, $write:ident at $at:expr;)*) => {
        $(
            $(#[$doc])*
            #[must_use]
            pub fn $name(&self) -> $type {
                $read(&*self.0, $at)
            }

            /// Sets it.
            pub fn $set(&mut self, value: $type) {
                $write(&mut *Arc::make_mut(&mut self.0), $at, value);
            }
        )*
    };
}

fn time_at(bytes: &[u8], at: usize) -> Time {
    Time {
        seconds: i64_at(bytes, at),
        nanoseconds: u32_at(bytes, at + 8).min(999_999_999),
    }
}

fn put_time(bytes: &mut [u8], at: usize, time: Time) {
    put_i64(bytes, at, time.seconds);
    put_u32(bytes, at + 8, time.nanoseconds);
}

fn nid_at(bytes: &[u8], at: usize) -> Nid {
    Nid(u32_at(bytes, at))
}

fn put_nid(bytes: &mut [u8], at: usize, nid: Nid) {
    put_u32(bytes, at, nid.0);
}

fn address_at(bytes: &[u8], at: usize) -> Address {
    Address(u32_at(bytes, at))
}

fn put_address(bytes: &mut [u8], at: usize, address: Address) {
    put_u32(bytes, at, address.0);
}

impl Inode {
    fields! {
        /// Type and permissions, as in `st_mode`.
        mode, set_mode: u32 = u32_at, put_u32 at 0;
        /// The owner.
        uid, set_uid: u32 = u32_at, put_u32 at 8;
        /// The group.
        gid, set_gid: u32 = u32_at, put_u32 at 12;
        /// Number of names; of a directory, 2 and one for each subdirectory.
        links, set_links: u32 = u32_at, put_u32 at 16;
        /// Tells apart the files that had the same number one after the other.
        generation, set_generation: u32 = u32_at, put_u32 at 20;
        /// The length, in bytes.
        len_bytes, set_len_bytes: u64 = u64_at, put_u64 at 24;
        /// Blocks of its own, itself included.
        blocks, set_blocks: u64 = u64_at, put_u64 at 32;
        /// Last access.
        accessed, set_accessed: Time = time_at, put_time at 40;
        /// Last change of the content.
        modified, set_modified: Time = time_at, put_time at 52;
        /// Last change of content or attributes.
        changed, set_changed: Time = time_at, put_time at 64;
        /// Creation time.
        born, set_born: Time = time_at, put_time at 76;
        /// Device number of a device file.
        device, set_device: u32 = u32_at, put_u32 at 88;
        /// Flags as `chattr` sets them.
        attributes, set_attributes: u32 = u32_at, put_u32 at 92;
        /// The node with those extended attributes that do not fit here.
        xattr_node, set_xattr_node: Nid = nid_at, put_nid at 96;
        /// The directory in which it was created, or to which it was moved.
        parent, set_parent: Nid = nid_at, put_nid at 100;
        /// Levels of buckets of a directory.
        levels, set_levels: u8 = u8_at, put_u8 at 104;
        /// Number of deltas behind the slots.
        deltas, set_deltas: u16 = u16_at, put_u16 at 106;
        /// Bytes that they take.
        delta_bytes, set_delta_bytes: u16 = u16_at, put_u16 at 108;
        /// Sum over the file's pages written after the checkpoint, see [`super::page_sum`]. Only in
        /// an inode that was synced.
        pages_sum, set_pages_sum: u64 = u64_at, put_u64 at AT_PAGES_SUM;
        /// Address of the index of its deltas in the main area (`MID`, DeltaFS section 5).
        delta_meta, set_delta_meta: Address = address_at, put_address at AT_EXTRA;
        /// The next file with deltas in the main area.
        delta_next, set_delta_next: Nid = nid_at, put_nid at AT_EXTRA + 4;
        /// The previous such file.
        delta_previous, set_delta_previous: Nid = nid_at, put_nid at AT_EXTRA + 8;
    }

    /// Flags of the inode.
    #[must_use]
    pub fn flags(&self) -> InodeFlags {
        let bits = u32_at(&*self.0, 4);
        InodeFlags {
            has_inline_data: bits & 1 != 0,
            has_inline_entries: bits & 2 != 0,
            has_main_deltas: bits & 4 != 0,
            is_compressed: bits & 8 != 0,
            has_moved_slots: bits & 16 != 0,
        }
    }

    /// Sets it.
    pub fn set_flags(&mut self, flags: InodeFlags) {
        let bits = [
            flags.has_inline_data,
            flags.has_inline_entries,
            flags.has_main_deltas,
            flags.is_compressed,
            flags.has_moved_slots,
        ];
        let bits = bits.into_iter().rev().fold(0, |bits, bit| bits << 1 | u32::from(bit));
        put_u32(&mut *Arc::make_mut(&mut self.0), 4, bits);
    }

    /// The name in the directory `parent`, from when the file was created or moved; recovery uses
    /// it.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        let len = usize::from(u8_at(&*self.0, AT_NAME_LEN));
        self.0.get(AT_NAME..AT_NAME + len).unwrap_or_default()
    }

    /// Sets the name: at most 255 bytes.
    pub fn set_name(&mut self, name: &[u8]) {
        let block = Arc::make_mut(&mut self.0);
        put_u8(&mut *block, AT_NAME_LEN, u8::try_from(name.len()).unwrap_or(0));
        put(&mut *block, AT_NAME, name);
    }

    /// The address of one of the first pages, in the block of an inode.
    #[must_use]
    pub fn slot(block: &Block, slot: u32) -> Address {
        address_at(block, Self::at_slot(slot))
    }

    /// Sets it.
    pub fn set_slot(block: &mut Block, slot: u32, address: Address) {
        put_address(block, Self::at_slot(slot), address);
    }

    fn at_slot(slot: u32) -> usize {
        AT_SLOTS + usize::try_from(slot.min(INODE_SLOTS - 1)).unwrap_or(0) * 4
    }

    /// Number of slots that hold addresses: none if they hold content or entries, otherwise those
    /// that deltas have left.
    #[must_use]
    pub fn address_slots(&self) -> u32 {
        let flags = self.flags();
        if flags.has_inline_data || flags.has_inline_entries || flags.has_moved_slots {
            return 0;
        }
        let left = INLINE_LEN_BYTES.saturating_sub(usize::from(self.delta_bytes()));
        u32::try_from(left / 4).unwrap_or(0)
    }

    /// The node that has the addresses of the first pages, if the inode does not.
    #[must_use]
    pub fn moved_slots(&self) -> Option<Nid> {
        self.flags().has_moved_slots.then(|| Nid(Self::slot(&self.0, 0).0))
    }

    /// Sets that node. The inode holds no addresses, neither before nor after.
    pub fn set_moved_slots(&mut self, node: Option<Nid>) {
        let mut flags = self.flags();
        flags.has_moved_slots = node.is_some();
        self.set_flags(flags);
        let block = Arc::make_mut(&mut self.0);
        Self::set_slot(block, 0, Address(node.unwrap_or_default().0));
    }

    /// Number of slots in use, from the first to the last one that has an address; one if they were
    /// moved.
    #[must_use]
    pub fn used_slots(&self) -> u32 {
        if self.flags().has_moved_slots {
            return 1;
        }
        let mut slots = (0..self.address_slots()).rev();
        let last = slots.find(|slot| Self::slot(&self.0, *slot) != Address::NONE);
        last.map_or(0, |last| last + 1)
    }

    /// The deltas behind the slots, the newest first: the page, and the delta (DeltaFS section
    /// 4.1.2). Each takes two bytes for the page, one or two for its length, and itself.
    pub fn deltas_of(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let start = INLINE_LEN_BYTES.saturating_sub(usize::from(self.delta_bytes()));
        let mut rest = self.inline().get(start..).unwrap_or_default();
        let count = self.deltas();
        let head_len_bytes = self.delta_head_len_bytes();
        (0..count).map_while(move |_| {
            let (head, behind) = rest.split_at_checked(head_len_bytes)?;
            let len = match head_len_bytes {
                DELTA_HEAD_LEN_BYTES => u16::from(u8_at(head, 2)),
                _ => u16_at(head, 2),
            };
            let (delta, behind) = behind.split_at_checked(usize::from(len))?;
            rest = behind;
            Some((u16_at(head, 0), delta))
        })
    }

    /// The delta of a page.
    #[must_use]
    pub fn delta_of(&self, page: u64) -> Option<&[u8]> {
        let page = u16::try_from(page).ok()?;
        self.deltas_of().find(|(of, _)| *of == page).map(|(_, delta)| delta)
    }

    /// Bytes of a delta here beside itself.
    #[must_use]
    pub fn delta_head_len_bytes(&self) -> usize {
        DELTA_HEAD_LEN_BYTES + usize::from(self.flags().is_compressed)
    }

    /// Room for one more delta, in bytes, beside its head.
    #[must_use]
    pub fn delta_room(&self) -> usize {
        self.room_behind_slots().saturating_sub(self.delta_head_len_bytes())
    }

    fn room_behind_slots(&self) -> usize {
        let used = usize::try_from(self.used_slots())
            .unwrap_or(usize::MAX)
            .saturating_mul(4);
        INLINE_LEN_BYTES
            .saturating_sub(used)
            .saturating_sub(usize::from(self.delta_bytes()))
    }

    /// Keeps the delta of a page that has none; false if there is no room for it.
    pub fn put_delta(&mut self, page: u16, delta: &[u8]) -> bool {
        let head_len_bytes = self.delta_head_len_bytes();
        let is_short = delta.len() <= DELTA_LEN_BYTES_MAX || head_len_bytes > DELTA_HEAD_LEN_BYTES;
        let Some(len) = u16::try_from(delta.len()).ok().filter(|_| is_short) else {
            return false;
        };
        // An empty delta has a head, too.
        if head_len_bytes + delta.len() > self.room_behind_slots() {
            return false;
        }
        let taken = usize::from(self.delta_bytes()) + head_len_bytes + delta.len();
        let start = INLINE_LEN_BYTES.saturating_sub(taken);
        let place = self.inline_mut().get_mut(start..).unwrap_or_default();
        put_u16(place, 0, page);
        match u8::try_from(len) {
            Ok(len) if head_len_bytes == DELTA_HEAD_LEN_BYTES => put_u8(place, 2, len),
            _ => put_u16(place, 2, len),
        }
        put(place, head_len_bytes, delta);
        self.set_delta_bytes(u16::try_from(taken).unwrap_or(u16::MAX));
        self.set_deltas(self.deltas().saturating_add(1));
        true
    }

    /// Removes the deltas of these pages; the newer ones move up.
    pub fn remove_deltas(&mut self, is_of: impl Fn(u16) -> bool) {
        self.keep_deltas(|page, _| !is_of(page));
    }

    /// Removes empty deltas: marks of pages whose deltas in the main area are over.
    pub fn remove_empty_deltas(&mut self) {
        self.keep_deltas(|_, delta| !delta.is_empty());
    }

    fn keep_deltas(&mut self, is_kept: impl Fn(u16, &[u8]) -> bool) {
        let kept: Vec<(u16, Vec<u8>)> = self
            .deltas_of()
            .filter(|(page, delta)| is_kept(*page, delta))
            .map(|(page, delta)| (page, delta.to_vec()))
            .collect();
        if kept.len() == usize::from(self.deltas()) {
            return;
        }
        let start = INLINE_LEN_BYTES.saturating_sub(usize::from(self.delta_bytes()));
        self.inline_mut().get_mut(start..).unwrap_or_default().fill(0);
        self.set_delta_bytes(0);
        self.set_deltas(0);
        // The oldest first, so that their order stays.
        for (page, delta) in kept.into_iter().rev() {
            self.put_delta(page, &delta);
        }
    }

    /// The slots as bytes: content, entries, or addresses and deltas.
    #[must_use]
    pub fn inline(&self) -> &[u8] {
        self.0.get(AT_SLOTS..AT_PAGES_SUM).unwrap_or_default()
    }

    /// The same, mutable.
    pub fn inline_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.0)
            .get_mut(AT_SLOTS..AT_PAGES_SUM)
            .unwrap_or_default()
    }

    /// Extended attributes.
    #[must_use]
    pub fn xattrs(&self) -> &[u8] {
        self.0.get(AT_XATTRS..AT_NIDS).unwrap_or_default()
    }

    /// The same, mutable.
    pub fn xattrs_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.0)
            .get_mut(AT_XATTRS..AT_NIDS)
            .unwrap_or_default()
    }

    /// A node with further addresses: see [`INDIRECT_NODES`].
    #[must_use]
    pub fn node(&self, index: usize) -> Nid {
        nid_at(&*self.0, Self::at_node(index))
    }

    /// Sets it.
    pub fn set_node(&mut self, index: usize, nid: Nid) {
        put_nid(&mut *Arc::make_mut(&mut self.0), Self::at_node(index), nid);
    }

    fn at_node(index: usize) -> usize {
        AT_NIDS + index.min(INDIRECT_NODES - 1) * 4
    }
}
