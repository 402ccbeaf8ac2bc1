//! A simulated btrfs with one file: trees, addresses that are reused as soon as the format allows,
//! transactions, dirty pages. Anything that may happen between two calls of a program happens
//! between two calls.
//!
//! Content is a number per sector (0: zeros), and its checksum is that number. Everything is
//! counted in sectors.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use byteback_host::clock::{Clock, SimClock};
use byteback_host::random::SplitMix64;
use byteback_host::tree::{InodeFlags, Stat};
use byteback_model::NodeKind;

use crate::btrfs::items::FS_INFO_LEN;
use crate::btrfs::kernel::{Kernel, Query};

pub(super) const SECTOR: u64 = 4096;
pub(super) const INODE: u64 = 257;
const TICK_NS: i64 = 10_000_000;

/// An item of the file: a part of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The extent's first sector on the disk.
    disk: u64,
    /// The part of the extent before this piece.
    offset: u64,
    len: u64,
    generation: u64,
    is_preallocated: bool,
}

type Pieces = BTreeMap<u64, Piece>;

/// An act that changes the world.
type Act = fn(&mut World);

/// See the module.
pub(super) struct World {
    pub(super) clock: Rc<SimClock>,
    pub(super) random: SplitMix64,
    /// The probability, in percent, that something happens before a call.
    pub(super) bustle: u64,
    /// An act to perform once, before the next search of this tree.
    pub(super) before_search: Option<(u64, Act)>,
    size: u64,
    mtime_ns: i64,
    pub(super) ctime_ns: i64,
    generation: u64,
    pieces: Pieces,
    snapshot: Pieces,
    /// Extents of this file and its snapshot, and their lengths.
    extents: BTreeMap<u64, u64>,
    /// Extents of other files.
    others: BTreeMap<u64, u64>,
    /// The checksum tree, with the content on the disk.
    sums: BTreeMap<u64, u32>,
    /// Free addresses; `pinned` ones become free after this transaction.
    free: Vec<u64>,
    pinned: Vec<u64>,
    disk_end: u64,
    dirty: BTreeMap<u64, u32>,
    /// Stores into mapped pages that have changed the times already, and not yet the content.
    stores: Vec<(u64, u32)>,
    next_content: u32,
    /// The file's content at its last flush.
    pub(super) flushed: Vec<u32>,
    answer: Vec<u8>,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let clock = Rc::new(SimClock::new(1_000_000_000_000));
        Self {
            random: SplitMix64::new(seed),
            bustle: 0,
            before_search: None,
            size: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            generation: 10,
            pieces: Pieces::new(),
            snapshot: Pieces::new(),
            extents: BTreeMap::new(),
            others: BTreeMap::new(),
            sums: BTreeMap::new(),
            free: Vec::new(),
            pinned: Vec::new(),
            disk_end: 1000,
            dirty: BTreeMap::new(),
            stores: Vec::new(),
            next_content: 1,
            flushed: Vec::new(),
            answer: Vec::new(),
            clock,
        }
    }

    /// The content as a program reads it.
    pub(super) fn content(&self) -> Vec<u32> {
        let mut content = vec![0; self.size.div_ceil(SECTOR) as usize];
        for (start, piece) in &self.pieces {
            for at in 0..piece.len {
                if let Some(sector) = content.get_mut((start + at) as usize)
                    && !piece.is_preallocated
                {
                    *sector = self.sums[&(piece.disk + piece.offset + at)];
                }
            }
        }
        for (sector, value) in &self.dirty {
            if let Some(sector) = content.get_mut(*sector as usize) {
                *sector = *value;
            }
        }
        content
    }

    fn stamp(&mut self) {
        self.ctime_ns = self.clock.now_ns() / TICK_NS * TICK_NS;
        self.mtime_ns = self.ctime_ns;
    }

    fn new_content(&mut self) -> u32 {
        self.next_content += 1;
        self.next_content
    }

    /// Allocates `len` sectors at the lowest free address, so that addresses are reused as soon as
    /// possible.
    fn allocate(&mut self, len: u64) -> u64 {
        self.free.sort_unstable();
        let found = self
            .free
            .windows(len as usize)
            .position(|run| run[run.len() - 1] - run[0] == len - 1);
        if let Some(at) = found {
            let start = self.free[at];
            self.free.drain(at..at + len as usize);
            return start;
        }
        self.disk_end += len + self.random.below(3) * self.random.below(2000);
        self.disk_end - len
    }

    fn cut_out(pieces: &mut Pieces, start: u64, end: u64) {
        let touched: Vec<(u64, Piece)> = pieces.range(..end).map(|(at, piece)| (*at, *piece)).collect();
        for (at, piece) in touched.into_iter().filter(|(at, piece)| at + piece.len > start) {
            pieces.remove(&at);
            if at < start {
                let len = start - at;
                pieces.insert(at, Piece { len, ..piece });
            }
            if at + piece.len > end {
                let (offset, len) = (piece.offset + (end - at), at + piece.len - end);
                pieces.insert(end, Piece { offset, len, ..piece });
            }
        }
    }

    /// Extents without references become free after the transaction.
    fn collect(&mut self) {
        let is_used = |disk: u64| {
            self.pieces
                .values()
                .chain(self.snapshot.values())
                .any(|piece| piece.disk == disk)
        };
        let unused: Vec<u64> = self.extents.keys().copied().filter(|disk| !is_used(*disk)).collect();
        for disk in unused {
            let len = self.extents.remove(&disk).unwrap();
            self.release(disk, len);
        }
    }

    fn release(&mut self, disk: u64, len: u64) {
        for address in disk..disk + len {
            self.sums.remove(&address);
            self.pinned.push(address);
        }
    }

    pub(super) fn write_back(&mut self) {
        let dirty = std::mem::take(&mut self.dirty);
        let mut dirty: Vec<(u64, u32)> = dirty.into_iter().filter(|(at, _)| at * SECTOR < self.size).collect();
        while !dirty.is_empty() {
            let len = dirty.windows(2).take_while(|pair| pair[1].0 == pair[0].0 + 1).count() as u64 + 1;
            let start = dirty[0].0;
            let disk = self.allocate(len);
            for (index, (_, value)) in dirty.drain(..len as usize).enumerate() {
                self.sums.insert(disk + index as u64, value);
            }
            self.extents.insert(disk, len);
            Self::cut_out(&mut self.pieces, start, start + len);
            let piece = Piece {
                disk,
                offset: 0,
                len,
                generation: self.generation,
                is_preallocated: false,
            };
            self.pieces.insert(start, piece);
        }
        self.collect();
    }

    fn range(&mut self) -> (u64, u64) {
        let sectors = self.size / SECTOR + 4;
        let start = self.random.below(sectors);
        let len_max = [2, 8, 60][self.random.below(3) as usize];
        (start, start + 1 + self.random.below(len_max))
    }

    /// Sets new content for these sectors, in memory.
    pub(super) fn write(&mut self, start: u64, end: u64) {
        self.stamp();
        self.size = self.size.max(end * SECTOR);
        for sector in start..end {
            let value = self.new_content();
            self.dirty.insert(sector, value);
        }
    }

    /// Ends a transaction.
    pub(super) fn commit(&mut self) {
        self.generation += 1;
        self.free.append(&mut self.pinned);
    }

    /// Moves an extent, for all files that share it. Returns its new address.
    pub(super) fn balance(&mut self, disk: u64) -> u64 {
        let len = self.extents.remove(&disk).unwrap();
        let target = self.allocate(len);
        for at in 0..len {
            if let Some(sum) = self.sums.get(&(disk + at)).copied() {
                self.sums.insert(target + at, sum);
            }
        }
        self.extents.insert(target, len);
        let pieces = self.pieces.values_mut().chain(self.snapshot.values_mut());
        for piece in pieces.filter(|piece| piece.disk == disk) {
            piece.disk = target;
        }
        self.release(disk, len);
        target
    }

    /// Allocates an extent of another file. Returns its address.
    pub(super) fn write_elsewhere(&mut self, len: u64) -> u64 {
        let disk = self.allocate(len);
        for at in disk..disk + len {
            let value = self.new_content();
            self.sums.insert(at, value);
        }
        self.others.insert(disk, len);
        disk
    }

    pub(super) fn remove_elsewhere(&mut self, disk: u64) {
        let len = self.others.remove(&disk).unwrap();
        self.release(disk, len);
    }

    /// The address of the file's first extent.
    pub(super) fn first_disk(&self) -> u64 {
        self.pieces.values().next().unwrap().disk
    }

    /// Performs a random act.
    pub(super) fn happen(&mut self) {
        match self.random.below(16) {
            0..=2 => {
                let (start, end) = self.range();
                self.stamp();
                self.size = self
                    .size
                    .max(end * SECTOR - self.random.below(2) * self.random.below(SECTOR));
                for sector in start..end {
                    let value = self.new_content();
                    self.dirty.insert(sector, value);
                }
            }
            // A page fault: the times change now, the store comes later.
            3 if self.size > 0 => {
                self.stamp();
                let store = (self.random.below(self.size.div_ceil(SECTOR)), self.new_content());
                self.stores.push(store);
            }
            4 | 5 => {
                if let Some((sector, value)) = self.stores.pop()
                    && sector * SECTOR < self.size
                {
                    self.dirty.insert(sector, value);
                }
            }
            6 => self.write_back(),
            7 | 8 => self.commit(),
            9 => {
                if let Some((disk, _)) = self.pick(|world| &world.extents) {
                    self.balance(disk);
                }
            }
            10 | 11 => {
                let len = 1 + self.random.below(6);
                self.write_elsewhere(len);
            }
            12 => {
                if let Some((disk, _)) = self.pick(|world| &world.others) {
                    self.remove_elsewhere(disk);
                }
            }
            // Takes a snapshot, or restores the file from it.
            13 => {
                self.write_back();
                if self.random.coin() {
                    self.snapshot = self.pieces.clone();
                } else {
                    self.stamp();
                    self.pieces = self.snapshot.clone();
                    self.pieces.retain(|at, _| at * SECTOR < self.size);
                }
                self.collect();
            }
            14 => {
                let (start, end) = self.range();
                self.stamp();
                self.dirty.retain(|sector, _| !(start..end).contains(sector));
                Self::cut_out(&mut self.pieces, start, end);
                if self.random.coin() {
                    let disk = self.allocate(end - start);
                    self.extents.insert(disk, end - start);
                    let piece = Piece {
                        disk,
                        offset: 0,
                        len: end - start,
                        generation: self.generation,
                        is_preallocated: true,
                    };
                    self.pieces.insert(start, piece);
                } else {
                    // Truncate behind it instead.
                    self.size = self.size.min(start * SECTOR);
                    self.dirty.split_off(&start);
                    Self::cut_out(&mut self.pieces, start, u64::MAX >> 20);
                }
                self.collect();
            }
            _ => {
                let ms = self.random.below(40);
                self.clock.advance(Duration::from_millis(ms));
            }
        }
    }

    fn pick(&mut self, of: impl Fn(&Self) -> &BTreeMap<u64, u64>) -> Option<(u64, u64)> {
        let count = of(self).len() as u64;
        let at = (count > 0).then(|| self.random.below(count))?;
        of(self).iter().nth(at as usize).map(|(disk, len)| (*disk, *len))
    }

    fn before_call(&mut self) {
        while self.random.below(100) < self.bustle {
            self.happen();
        }
    }

    fn put_item(&mut self, objectid: u64, item_type: u32, offset: u64, body: &[u8]) {
        for number in [self.generation, objectid, offset] {
            self.answer.extend(number.to_ne_bytes());
        }
        self.answer.extend(item_type.to_ne_bytes());
        self.answer.extend((body.len() as u32).to_ne_bytes());
        self.answer.extend(body);
    }

    fn search(&mut self, query: &Query) -> u32 {
        if let Some((_, act)) = self
            .before_search
            .take_if(|(tree, _)| *tree == query.tree && query.objectid != u64::MAX)
        {
            act(self);
        }
        self.answer.clear();
        let count_max = 1 + self.random.below(5) as usize;
        if query.tree == 0 {
            assert_eq!(query.item_type, 108);
            let pieces = self.pieces.iter().map(|(at, piece)| (at * SECTOR, *piece));
            let wanted = |at: &u64| query.objectid == INODE && (query.offset_min..=query.offset_max).contains(at);
            let pieces: Vec<_> = pieces.filter(|(at, _)| wanted(at)).take(count_max).collect();
            for (at, piece) in &pieces {
                let mut body = piece.generation.to_le_bytes().to_vec();
                body.extend((piece.len * SECTOR).to_le_bytes());
                body.extend([0, 0, 0, 0, if piece.is_preallocated { 2 } else { 1 }]);
                let disk_len = self.extents[&piece.disk];
                for number in [piece.disk, disk_len, piece.offset, piece.len] {
                    body.extend((number * SECTOR).to_le_bytes());
                }
                self.put_item(INODE, 108, *at, &body);
            }
            return pieces.len() as u32;
        }
        assert_eq!((query.tree, query.objectid, query.item_type), (7, u64::MAX - 9, 128));
        // Neighbours are in one item, which may begin anywhere.
        let mut items: Vec<(u64, Vec<u8>)> = Vec::new();
        for (address, sum) in &self.sums {
            match items.last_mut() {
                Some((start, sums)) if start.wrapping_add(sums.len() as u64 / 4) == *address && sums.len() < 5 * 4 => {
                    sums.extend(sum.to_le_bytes());
                }
                _ => items.push((*address, sum.to_le_bytes().to_vec())),
            }
        }
        items.retain(|(start, _)| (query.offset_min..=query.offset_max).contains(&(start * SECTOR)));
        items.truncate(count_max);
        for (start, sums) in &items {
            self.put_item(query.objectid, 128, start * SECTOR, sums);
        }
        items.len() as u32
    }
}

/// A program's view of the world.
pub(super) struct SimKernel {
    pub(super) world: Rc<RefCell<World>>,
    answer: Vec<u8>,
}

impl SimKernel {
    pub(super) fn new(world: &Rc<RefCell<World>>) -> Self {
        Self {
            world: world.clone(),
            answer: Vec::new(),
        }
    }
}

impl Kernel for SimKernel {
    fn stat(&self) -> io::Result<Stat> {
        let mut world = self.world.borrow_mut();
        world.before_call();
        Ok(Stat {
            kind: NodeKind::File,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: world.size,
            blocks: 0,
            block_size: 4096,
            dev: 1,
            ino: INODE,
            mount_id: None,
            btime_ns: Some(5),
            atime_ns: 0,
            mtime_ns: world.mtime_ns.into(),
            ctime_ns: world.ctime_ns,
            inode_flags: InodeFlags::NONE,
        })
    }

    fn fs_info(&self) -> io::Result<[u8; FS_INFO_LEN]> {
        let mut world = self.world.borrow_mut();
        world.before_call();
        let mut bytes = [0; FS_INFO_LEN];
        bytes[32..36].copy_from_slice(&512_u32.to_ne_bytes());
        bytes[36..40].copy_from_slice(&4096_u32.to_ne_bytes());
        bytes[46..48].copy_from_slice(&4_u16.to_ne_bytes());
        bytes[48..56].copy_from_slice(&3_u64.to_ne_bytes());
        bytes[56..64].copy_from_slice(&world.generation.to_ne_bytes());
        Ok(bytes)
    }

    fn flush(&self) -> io::Result<()> {
        let mut world = self.world.borrow_mut();
        world.before_call();
        world.write_back();
        world.flushed = world.content();
        Ok(())
    }

    fn search(&mut self, query: &Query) -> io::Result<(u32, &[u8])> {
        let mut world = self.world.borrow_mut();
        world.before_call();
        let count = world.search(query);
        self.answer.clone_from(&world.answer);
        Ok((count, &self.answer))
    }
}
