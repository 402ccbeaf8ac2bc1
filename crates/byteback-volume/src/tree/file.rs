//! Contents of files: reading, writing, truncating, reserving room, and holes.
//!
//! A content of at most [`INLINE_LEN_BYTES`] lies in the inode. A page that is written for the
//! first time has its room reserved at once, so that there is enough when it goes to the device;
//! until then its slot says [`Address::RESERVED`].

use std::collections::BTreeSet;

use byteback_host::block::BLOCK_LEN_BYTES;

use crate::error::{Result, VolumeError};
use crate::format::{
    Address, Block, CLUSTER_SLOT, INLINE_LEN_BYTES, Kind, MAX_FILE_BLOCKS, Nid, Summary, page_checksum, zeros,
};
use crate::log::segments::LogKind;
use crate::small::deltas::{DeltaMode, KeepOutcome};
use crate::state::State;
use crate::statistics::Written;
use crate::tree::PAGE;
use crate::tree::attributes::{DIRECTORY, REGULAR, TYPE};
use crate::tree::map::Slot;
use crate::tree::reading::{DIRECT_PAGES_MIN, DirectRead};

/// Adjacent pages read from the device at once: no more than are kept in memory in any case.
pub(crate) const READ_AT_ONCE_PAGES: u64 = 32;

/// Pages for which room is reserved at once: some 65 nodes hold their addresses.
const ALLOCATED_AT_ONCE_PAGES: u64 = 1 << 16;

/// The longest file, in bytes.
pub(crate) const LEN_BYTES_MAX: u64 = MAX_FILE_BLOCKS * PAGE;

/// Operations of `fallocate` on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Reserve room; the file becomes as long as the end of the range.
    Room,
    /// Reserve room, also behind the end; the length stays.
    RoomKeepingLength,
    /// Punch a hole.
    Punch,
    /// Make the range read as zeros, with room; the file becomes as long as the end of the range.
    Zero,
    /// The same; the length stays.
    ZeroKeepingLength,
}

/// Pages of a file in adjacent blocks, to be written.
#[derive(Debug)]
struct PendingRun {
    first: Address,
    pages: Vec<u64>,
}

impl Default for PendingRun {
    fn default() -> Self {
        Self {
            first: Address::NONE,
            pages: Vec::new(),
        }
    }
}

impl PendingRun {
    /// The address behind the last page.
    fn end(&self) -> Option<Address> {
        let count = u32::try_from(self.pages.len()).ok().filter(|count| *count > 0)?;
        self.first.0.checked_add(count).map(Address)
    }
}

/// A piece of a page: the page, the offset in it, and the length.
struct Piece {
    page: u64,
    at: usize,
    len: usize,
}

/// The page of a byte, and the byte's offset in it.
fn page_at(offset: u64) -> (u64, usize) {
    (offset / PAGE, usize::try_from(offset % PAGE).unwrap_or(0))
}

/// The log of a file's pages, and the kind under which they are counted.
pub(crate) fn log_of(is_directory: bool) -> (LogKind, Written) {
    match is_directory {
        true => (LogKind::HotData, Written::Directory),
        false => (LogKind::WarmData, Written::Data),
    }
}

fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut offset = offset;
    let mut left = len;
    std::iter::from_fn(move || {
        let at = usize::try_from(offset % PAGE).unwrap_or(0);
        let piece = Piece {
            page: offset / PAGE,
            at,
            len: left.min(BLOCK_LEN_BYTES - at),
        };
        left -= piece.len;
        offset += piece.len as u64;
        (piece.len > 0).then_some(piece)
    })
}

impl State {
    /// A page in memory, read if needed; `None` for a hole.
    pub(crate) fn page(&mut self, ino: Nid, page: u64) -> Result<Option<&Block>> {
        if self.tree.pages.get((ino, page)).is_none() {
            let address = self.address_of(ino, page)?;
            let Some(block) = self.stored_page(ino, page, address)? else {
                return Ok(None);
            };
            self.tree.pages.keep((ino, page), block);
        }
        Ok(self.tree.pages.get((ino, page)))
    }

    /// Reads those of these pages that are not in memory, adjacent ones at once. Damaged pages are
    /// left to the read that needs them.
    pub(crate) fn read_ahead(&mut self, ino: Nid, first: u64, end: u64) -> Result<()> {
        let mut run: (u64, Address, u32) = (first, Address::NONE, 0);
        let are_kept = self.tree.pages.are_kept(ino, first, end);
        if are_kept.iter().all(|is_kept| *is_kept) {
            return Ok(());
        }
        let addresses = self.addresses_of(ino, first, end)?;
        for ((page, address), is_kept) in (first..).zip(addresses).zip(are_kept) {
            let address = if is_kept { Address::NONE } else { address };
            let is_next = address.is_block() && run.2 > 0 && run.1.0.checked_add(run.2) == Some(address.0);
            if is_next {
                run.2 += 1;
                continue;
            }
            self.read_run(ino, run)?;
            run = (page, address, u32::from(address.is_block()));
        }
        self.read_run(ino, run)
    }

    fn read_run(&mut self, ino: Nid, (first, address, count): (u64, Address, u32)) -> Result<()> {
        // A single page is read when it is needed.
        if count < 2 {
            return Ok(());
        }
        let mut bytes = vec![0; BLOCK_LEN_BYTES * usize::try_from(count).unwrap_or(0)];
        if self.media.device.read_blocks(u64::from(address.0), &mut bytes).is_err() {
            return Ok(());
        }
        for (index, bytes) in (0..).zip(bytes.chunks(BLOCK_LEN_BYTES)) {
            let checksum = self.space.checksum_of(&self.media, Address(address.0 + index));
            if !checksum.is_ok_and(|checksum| page_checksum(bytes) == checksum) {
                continue;
            }
            let mut block = zeros();
            block.copy_from_slice(bytes);
            let page = first + u64::from(index);
            if self.restore(ino, page, &mut block).is_ok() {
                self.tree.pages.keep((ino, page), block);
            }
        }
        Ok(())
    }

    /// A page as it was last written, without its delta.
    pub(crate) fn read_page(&mut self, ino: Nid, page: u64, address: Address) -> Result<Box<Block>> {
        let Summary { checksum, slot, .. } = self.space.summary_at(&self.media, address)?;
        if slot == CLUSTER_SLOT && self.small.is_compressed {
            return self.read_from_cluster(ino, page, address);
        }
        let block = self.media.read(address)?;
        match page_checksum(&block[..]) == checksum {
            true => Ok(block),
            false => Err(VolumeError::Damaged { address, what: "page" }),
        }
    }

    /// A page to be changed: it has a slot and room, and counts as changed.
    pub(crate) fn page_mut(&mut self, ino: Nid, page: u64, is_overwritten: bool) -> Result<&mut Block> {
        let key = (ino, page);
        let slot = self.make_slot(ino, page)?;
        let address = self.address_in(slot)?;
        if address == Address::NONE {
            // First: without room nothing changes, in memory either.
            self.space.take_room(&self.media.areas, 1)?;
            self.set_address(slot, Address::RESERVED)?;
            self.change_inode(ino, |inode| inode.set_blocks(inode.blocks() + 1))?;
        }
        self.change_slots_of(ino, page, page + 1)?;
        if self.tree.pages.get(key).is_none() {
            let stored = match is_overwritten {
                true => {
                    // First: zeros that are not overwritten are not the page.
                    self.end_unknown_place(ino, page)?;
                    None
                }
                false => self.stored_page(ino, page, address)?,
            };
            self.tree.pages.keep(key, stored.unwrap_or_else(zeros));
        }
        self.end_unknown_place(ino, page)?;
        // The page is written from memory, so no delta of it needs to be packed.
        self.forget_waiting(ino, page, page + 1);
        self.tree.pages.mark_dirty(key);
        let lost = || VolumeError::Stopped("a page was lost in memory".to_owned());
        self.tree.pages.get_mut(key).ok_or_else(lost)
    }

    pub(crate) fn read(&mut self, ino: Nid, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let (len, direct) = self.begin_read(ino, offset, buffer)?;
        if !direct.perform(&self.media, buffer) {
            self.read_by_pages(ino, offset, buffer.get_mut(..len).unwrap_or_default())?;
        }
        Ok(len)
    }

    /// Begins a read: returns its length in bytes, and the part that is still to be read, see
    /// `reading`.
    pub(crate) fn begin_read(&mut self, ino: Nid, offset: u64, buffer: &mut [u8]) -> Result<(usize, DirectRead)> {
        let inode = self.inode(ino)?;
        let len_bytes = inode.len_bytes();
        let left = usize::try_from(len_bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = left.min(buffer.len());
        let wanted = buffer.get_mut(..len).unwrap_or_default();
        if inode.flags().has_inline_data {
            let at = usize::try_from(offset).unwrap_or(usize::MAX);
            let inline = inode.inline().get(at..).unwrap_or_default();
            wanted.fill(0);
            wanted.iter_mut().zip(inline).for_each(|(to, from)| *to = *from);
            return Ok((len, DirectRead::default()));
        }
        let pages = (offset + len as u64).div_ceil(PAGE).saturating_sub(offset / PAGE);
        self.small.hotness.read(ino, pages);
        if pages < DIRECT_PAGES_MIN {
            self.read_by_pages(ino, offset, wanted)?;
            return Ok((len, DirectRead::default()));
        }
        let (direct, others) = self.find_direct(ino, offset, wanted)?;
        for page in others {
            let start = (page * PAGE).max(offset);
            let end = ((page + 1) * PAGE).min(offset + len as u64);
            let place =
                usize::try_from(start - offset).unwrap_or(usize::MAX)..usize::try_from(end - offset).unwrap_or(0);
            self.read_by_pages(ino, start, wanted.get_mut(place).unwrap_or_default())?;
        }
        Ok((len, direct))
    }

    /// Reads by pages kept in memory. The range ends before the end of the file, and the content
    /// does not lie in the inode.
    pub(crate) fn read_by_pages(&mut self, ino: Nid, offset: u64, wanted: &mut [u8]) -> Result<()> {
        let len = wanted.len();
        let mut rest = wanted;
        let end = (offset + len as u64).div_ceil(PAGE);
        for Piece { page, at, len } in pieces(offset, len) {
            if (page - offset / PAGE).is_multiple_of(READ_AT_ONCE_PAGES) {
                self.read_ahead(ino, page, end.min(page + READ_AT_ONCE_PAGES))?;
            }
            let (now, later) = std::mem::take(&mut rest).split_at_mut(len);
            match self.page(ino, page)?.and_then(|block| block.get(at..at + len)) {
                Some(bytes) => now.copy_from_slice(bytes),
                None => now.fill(0),
            }
            rest = later;
        }
        Ok(())
    }

    /// Writes; fewer bytes than asked only if room runs out. `is_first`: this does not continue the
    /// same call of a program.
    pub(crate) fn write(&mut self, ino: Nid, offset: u64, data: &[u8], is_first: bool) -> Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        let end = offset.saturating_add(data.len() as u64);
        if end > LEN_BYTES_MAX {
            return Err(VolumeError::FileTooLarge(LEN_BYTES_MAX));
        }
        let now = self.now();
        let is_inline = self.inode(ino)?.flags().has_inline_data;
        let (written, failed) = if is_inline && end <= INLINE_LEN_BYTES as u64 {
            let at = usize::try_from(offset).unwrap_or(usize::MAX);
            self.change_inode(ino, |inode| {
                let place = inode.inline_mut().get_mut(at..at + data.len());
                place.map(|place| place.copy_from_slice(data))
            })?;
            (data.len(), None)
        } else {
            if is_inline {
                self.move_out(ino)?;
            }
            if is_first {
                self.small.attempts.begin(ino);
            }
            self.small
                .hotness
                .wrote(ino, end.div_ceil(PAGE).saturating_sub(offset / PAGE));
            self.write_pieces(ino, offset, data)
        };
        match failed {
            Some(error) if written == 0 => Err(error),
            _ => {
                let end = offset + written as u64;
                self.change_inode(ino, |inode| {
                    inode.set_len_bytes(inode.len_bytes().max(end));
                    inode.set_modified(now);
                    inode.set_changed(now);
                })?;
                Ok(written)
            }
        }
    }

    /// Writes by pages; whole pages at once if they are many and none is compressed. Returns the
    /// number of bytes written, and the error that prevented more.
    fn write_pieces(&mut self, ino: Nid, offset: u64, data: &[u8]) -> (usize, Option<VolumeError>) {
        let is_long = data.len() as u64 >= DIRECT_PAGES_MIN * PAGE && !self.small.is_compressed;
        let mut written = 0;
        while written < data.len() {
            let rest = data.get(written..).unwrap_or_default();
            let (page, at) = page_at(offset + written as u64);
            let whole = rest.len() - rest.len() % BLOCK_LEN_BYTES;
            let (count, done) = match rest.get(..whole) {
                Some(pages) if is_long && at == 0 && whole > 0 => self.write_whole_pages(ino, page, pages),
                _ => {
                    let piece = rest.get(..rest.len().min(BLOCK_LEN_BYTES - at)).unwrap_or_default();
                    match self.write_to_page(ino, page, at, piece) {
                        Ok(()) => (piece.len(), Ok(())),
                        Err(error) => (0, Err(error)),
                    }
                }
            };
            written += count;
            if let Err(error) = done {
                return (written, Some(error));
            }
        }
        (written, None)
    }

    /// Writes to a part of a page: the change may be kept as a delta.
    fn write_to_page(&mut self, ino: Nid, page: u64, at: usize, bytes: &[u8]) -> Result<()> {
        let is_overwritten = bytes.len() == BLOCK_LEN_BYTES;
        let put = |block: &mut Block| {
            if let Some(place) = block.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        };
        if self.small.delta_mode != DeltaMode::Off
            && self.address_of(ino, page)?.is_block()
            && !self.tree.pages.is_dirty((ino, page))
            && self.small.is_to_be_compared(ino)
        {
            let before = match self.page_before(ino, page, 1) {
                Ok(before) => Some(before.map_or_else(zeros, |block| Box::new(*block))),
                // Overwriting all of a damaged page heals it.
                Err(error) if is_overwritten && error.is_loss() => None,
                Err(error) => return Err(error),
            };
            if let Some(mut new) = before {
                put(&mut new);
                if self.keep_as_delta(ino, page, &new)? == KeepOutcome::AsDelta {
                    return Ok(());
                }
            }
        }
        put(self.page_mut(ino, page, is_overwritten)?);
        Ok(())
    }

    /// Moves a content out of its inode, into a page.
    fn move_out(&mut self, ino: Nid) -> Result<()> {
        let inode = self.inode(ino)?;
        let content = inode.inline().to_vec();
        let len = usize::try_from(inode.len_bytes())
            .unwrap_or(usize::MAX)
            .min(content.len());
        if len > 0 {
            // Before the slots become slots: without room everything stays as it was.
            self.space.take_room(&self.media.areas, 1)?;
        }
        self.change_inode(ino, |inode| {
            let mut flags = inode.flags();
            flags.has_inline_data = false;
            inode.set_flags(flags);
            inode.inline_mut().fill(0);
        })?;
        if len > 0 {
            self.space.give_room(1);
            let block = self.page_mut(ino, 0, true)?;
            for (to, from) in block.iter_mut().zip(content.get(..len).unwrap_or_default()) {
                *to = *from;
            }
        }
        Ok(())
    }

    /// Writes zeros to a part of a page, unless it is a hole.
    fn clear_part(&mut self, ino: Nid, page: u64, part: std::ops::Range<usize>) -> Result<()> {
        if part.is_empty() || self.page(ino, page)?.is_none() {
            return Ok(());
        }
        let block = self.page_mut(ino, page, false)?;
        block.get_mut(part).unwrap_or_default().fill(0);
        Ok(())
    }

    /// Truncates a file, or lengthens it with a hole.
    pub(crate) fn set_len(&mut self, ino: Nid, len_bytes: u64) -> Result<()> {
        if len_bytes > LEN_BYTES_MAX {
            return Err(VolumeError::FileTooLarge(LEN_BYTES_MAX));
        }
        let inode = self.inode(ino)?;
        if inode.flags().has_inline_data {
            if len_bytes > INLINE_LEN_BYTES as u64 {
                self.move_out(ino)?;
            } else {
                let at = usize::try_from(len_bytes).unwrap_or(INLINE_LEN_BYTES);
                self.change_inode(ino, |inode| {
                    inode.inline_mut().get_mut(at..).unwrap_or_default().fill(0)
                })?;
            }
        } else if len_bytes < inode.len_bytes() {
            let kept = len_bytes.div_ceil(PAGE);
            let at = usize::try_from(len_bytes % PAGE).unwrap_or(0);
            if at > 0 {
                self.clear_part(ino, len_bytes / PAGE, at..BLOCK_LEN_BYTES)?;
            }
            self.free_pages(ino, kept, MAX_FILE_BLOCKS)?;
        }
        let now = self.now();
        self.change_inode(ino, |inode| {
            if inode.len_bytes() != len_bytes {
                inode.set_modified(now);
            }
            inode.set_len_bytes(len_bytes);
            inode.set_changed(now);
        })
    }

    /// Reserves room, or gives it up, as `how` says, for `len` bytes from `offset` on; a limited
    /// amount of room per call, as each node changed waits to be written. Returns the page before
    /// which the work is done and from which the next call goes on, or `None` if all of it is done.
    pub(crate) fn allocate(
        &mut self,
        ino: Nid,
        how: Allocate,
        (offset, len): (u64, u64),
        done: Option<u64>,
    ) -> Result<Option<u64>> {
        let end = offset.checked_add(len).filter(|end| *end <= LEN_BYTES_MAX);
        let end = end.ok_or(VolumeError::FileTooLarge(LEN_BYTES_MAX))?;
        if done.is_none() {
            self.begin_to_allocate(ino, how, offset, end)?;
        }
        if how != Allocate::Punch {
            let from = done.unwrap_or(offset / PAGE);
            let behind = end.div_ceil(PAGE).min(from.saturating_add(ALLOCATED_AT_ONCE_PAGES));
            self.set_aside(ino, from, behind)?;
            if behind < end.div_ceil(PAGE) {
                return Ok(Some(behind));
            }
        }
        let now = self.now();
        self.change_inode(ino, |inode| {
            if matches!(how, Allocate::Room | Allocate::Zero) {
                inode.set_len_bytes(inode.len_bytes().max(end));
            }
            inode.set_modified(now);
            inode.set_changed(now);
        })?;
        Ok(None)
    }

    /// The part before room is reserved: refuses what there is no room for, and makes holes of
    /// ranges that are to become holes or zeros.
    fn begin_to_allocate(&mut self, ino: Nid, how: Allocate, offset: u64, end: u64) -> Result<()> {
        let len = end - offset;
        if len == 0 {
            return Err(VolumeError::Invalid("the range is empty"));
        }
        if self.inode(ino)?.mode() & TYPE != REGULAR {
            return Err(VolumeError::Invalid("space can be reserved only for a regular file"));
        }
        if self.inode(ino)?.flags().has_inline_data {
            self.move_out(ino)?;
        }
        if how != Allocate::Punch {
            let free = u64::from(self.space.free_blocks(&self.media.areas));
            if self.missing_blocks(ino, offset / PAGE, end.div_ceil(PAGE), free)? > free {
                return Err(VolumeError::Full);
            }
        }
        match how {
            Allocate::Punch | Allocate::Zero | Allocate::ZeroKeepingLength => self.punch(ino, offset, end),
            Allocate::Room | Allocate::RoomKeepingLength => Ok(()),
        }
    }

    fn punch(&mut self, ino: Nid, offset: u64, end: u64) -> Result<()> {
        let in_page = |byte: u64| usize::try_from(byte % PAGE).unwrap_or(0);
        let (first, last) = (offset / PAGE, end / PAGE);
        if first == last {
            return self.clear_part(ino, first, in_page(offset)..in_page(end));
        }
        if in_page(offset) > 0 {
            self.clear_part(ino, first, in_page(offset)..BLOCK_LEN_BYTES)?;
        }
        self.clear_part(ino, last, 0..in_page(end))?;
        self.free_pages(ino, offset.div_ceil(PAGE), last)
    }

    /// The first byte at or after `offset` that is data or, if not `is_data`, in a hole; `None` if
    /// there is none before the end. The end counts as a hole.
    pub(crate) fn seek(&mut self, ino: Nid, offset: u64, is_data: bool) -> Result<Option<u64>> {
        let inode = self.inode(ino)?;
        let len_bytes = inode.len_bytes();
        if offset >= len_bytes {
            return Ok(None);
        }
        if inode.flags().has_inline_data {
            return Ok(Some(if is_data { offset } else { len_bytes }));
        }
        let (page, end) = (offset / PAGE, len_bytes.div_ceil(PAGE));
        let mut found = page;
        while found < end {
            found = self.next_page(ino, found, end, |address| (address != Address::NONE) == is_data)?;
            // A page that has room but was never written reads as zeros.
            let is_reserved = found < end
                && is_data
                && self.tree.pages.get((ino, found)).is_none()
                && self.address_of(ino, found)? == Address::RESERVED
                && !self.is_in_inode(ino, found)?;
            if !is_reserved {
                break;
            }
            found += 1;
        }
        match (found < end, is_data) {
            (true, _) => Ok(Some(offset.max(found * PAGE))),
            (false, true) => Ok(None),
            (false, false) => Ok(Some(len_bytes)),
        }
    }

    /// Writes the changed pages of a file, as far as the nodes that lead to them are not lost.
    pub(crate) fn write_pages(&mut self, ino: Nid) -> Result<()> {
        let is_directory = match self.inode(ino) {
            Ok(inode) => inode.mode() & TYPE == DIRECTORY,
            Err(error) if error.is_loss() => {
                self.give_up_pages(ino, error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let started_ns = self.clock.monotonic_ns();
        let main_write = self.choose_packing(ino)?;
        let dirty = self.tree.pages.dirty_of(ino);
        let dirty = self.writable_pages(ino, dirty)?;
        let count = dirty.len() as u64;
        let writes_index = match self.small.is_compressed {
            true => self.write_units(ino, dirty, is_directory, main_write.is_some())?,
            false => self.write_runs(ino, &dirty, is_directory, main_write.is_some())?,
        };
        if count > 0 {
            self.small
                .costs
                .wrote(count, self.clock.monotonic_ns().saturating_sub(started_ns));
        }
        if writes_index || self.is_main_over(ino)? {
            self.write_main_deltas(ino, main_write.unwrap_or_default())?;
        }
        self.space.write_filled(&self.media)
    }

    /// Writes these pages of a file where none is compressed. `writes_index` and the result:
    /// whether the index of its deltas is to be written, too.
    fn write_runs(&mut self, ino: Nid, dirty: &[u64], is_directory: bool, writes_index: bool) -> Result<bool> {
        let (log, what) = log_of(is_directory);
        let mut writes_index = writes_index;
        // Adjacent pages are written at once.
        let mut pending = PendingRun::default();
        let mut rest = dirty;
        while let Some(first) = rest.first().copied() {
            let slot = self.make_slot(ino, first)?;
            // No checksum is computed twice.
            let held = u64::from(self.slots_beside(slot)?.min(self.space.segments.left_in_segment(log)));
            let beside = (first..first + held).zip(rest);
            let beside = beside.take_while(|(expected, page)| expected == *page).count();
            let pages = first..first + beside as u64;
            let Some(summaries) = self.summaries_of_pages(ino, slot, pages)? else {
                rest = rest.get(1..).unwrap_or_default();
                continue;
            };
            let (address, taken, _) = self.space.segments.allocate_run(log, &summaries, self.now_s())?;
            let pages = first..first + u64::from(taken);
            let mut checksums: Vec<u32> = summaries.iter().map(|summary| summary.checksum).collect();
            checksums.truncate(usize::try_from(taken).unwrap_or(usize::MAX));
            if is_directory {
                self.seal_pages(ino, first, address, &mut checksums);
            }
            if pending.end() != Some(address) {
                self.write_pending(ino, &mut pending, what)?;
                pending.first = address;
            }
            pending.pages.extend(pages.clone());
            let old = self.set_addresses(slot, address, taken)?;
            self.pages_moved(ino, &old, address, &checksums);
            if self.may_have_deltas(ino)? {
                for page in pages {
                    writes_index = self.end_delta(ino, page, writes_index)?;
                }
            }
            rest = rest.get(checksums.len()..).unwrap_or_default();
        }
        self.write_pending(ino, &mut pending, what)?;
        Ok(writes_index)
    }

    /// Summaries of pages whose slots follow each other: of the first ones, as many as are in
    /// memory; `None` if the first is not.
    fn summaries_of_pages(
        &mut self,
        ino: Nid,
        slot: Slot,
        pages: std::ops::Range<u64>,
    ) -> Result<Option<Vec<Summary>>> {
        let version = self.space.table.get(&self.media, slot.reported)?.version;
        let checksums = pages.map_while(|page| self.tree.pages.checksum_of((ino, page)));
        let summaries: Vec<Summary> = (slot.slot..)
            .zip(checksums)
            .map(|(slot_number, checksum)| Summary {
                nid: slot.reported,
                version,
                slot: u16::try_from(slot_number).unwrap_or(u16::MAX),
                checksum,
            })
            .collect();
        Ok(Some(summaries).filter(|summaries| !summaries.is_empty()))
    }

    /// Seals pages of a directory for their future addresses.
    fn seal_pages(&mut self, ino: Nid, first: u64, address: Address, checksums: &mut [u32]) {
        for ((page, at), checksum) in (first..).zip(address.0..).zip(checksums.iter_mut()) {
            if let Some(block) = self.tree.pages.get_mut((ino, page)) {
                self.media.id.seal(block, Kind::Directory, Address(at));
                *checksum = page_checksum(block);
            }
        }
        self.space.segments.correct_checksums(address, checksums);
    }

    /// Writes pages of a file in adjacent blocks; then memory and device agree.
    fn write_pending(&mut self, ino: Nid, pending: &mut PendingRun, what: Written) -> Result<()> {
        let pages = std::mem::take(&mut pending.pages);
        if pages.is_empty() {
            return Ok(());
        }
        if let Some(blocks) = self.tree.pages.take_passing(ino, &pages) {
            let spare = self.media.write_owned(pending.first, blocks, what)?;
            self.tree.pages.add_spare(spare);
            return Ok(());
        }
        let blocks = pages
            .iter()
            .map(|page| self.tree.pages.get((ino, *page)).map(|block| &block[..]));
        let lost = || VolumeError::Stopped("a page was lost in memory".to_owned());
        let blocks: Vec<&[u8]> = blocks.collect::<Option<_>>().ok_or_else(lost)?;
        self.media.write_vectored(pending.first, &blocks, what)?;
        for page in pages {
            self.tree.pages.mark_clean((ino, page));
        }
        Ok(())
    }

    /// Records new addresses of pages of a file: from `first` on, adjacent.
    fn pages_moved(&mut self, ino: Nid, old: &[Address], first: Address, checksums: &[u32]) {
        let written = self.durability.since.pages.entry(ino).or_default();
        let mut rest = old;
        while let Some(address) = rest.first().copied() {
            let beside = (address.0..).map(Address).zip(rest);
            let count = match address.is_block() {
                true => beside.take_while(|(expected, old)| expected == *old).count(),
                false => 1,
            };
            if address.is_block() {
                let count = u32::try_from(count).unwrap_or(u32::MAX);
                self.space.segments.release_run(address, count);
                (address.0..address.0.saturating_add(count)).for_each(|old| written.remove(Address(old)));
            }
            rest = rest.get(count..).unwrap_or_default();
        }
        for (address, checksum) in (first.0..).zip(checksums) {
            written.add(Address(address), *checksum);
        }
    }

    /// Records the new address of a page of a file.
    pub(crate) fn page_moved(&mut self, ino: Nid, old: Address, new: Address, checksum: u32) {
        self.page_gone(ino, old);
        self.durability.since.pages.entry(ino).or_default().add(new, checksum);
    }

    /// Records that a page of a file has no address any more.
    pub(crate) fn page_gone(&mut self, ino: Nid, old: Address) {
        if old.is_block() {
            self.space.segments.release(old);
            self.small.clusters.forget(old);
        }
        if let Some(pages) = self.durability.since.pages.get_mut(&ino) {
            pages.remove(old);
        }
    }

    /// Writes the changed pages of all files.
    pub(crate) fn write_back(&mut self) -> Result<()> {
        let mut files: BTreeSet<Nid> = self.tree.pages.dirty_files().into_iter().collect();
        files.extend(self.small.main.unwritten_files());
        for ino in files {
            let written = self.write_pages(ino);
            self.durability.stop_after(written)?;
        }
        Ok(())
    }
}
