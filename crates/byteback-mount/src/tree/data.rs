//! Data: opening, reading, writing, allocating, copying, syncing.

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use byteback_checksums::written::BLOCK_LEN;
use byteback_extents::ByteRange;
use byteback_host::tree::FallocateFlags;
use byteback_model::NodeId;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Tree;
use super::attributes::set_id_to_drop;
use crate::credentials::Caller;
use crate::handles::{OpenFile, backing_flags};
use crate::inodes::InodeNumber;
use crate::integrity::Integrity;
use crate::tracked::{Origin, Written};

thread_local! {
    /// Each serving thread reads into one buffer, grown to the largest read so far.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn not_open() -> io::Error {
    Errno::BADF.into()
}

/// Reads whole blocks into `buffer` and answers where in it what was asked for is.
fn read_verified(
    integrity: &Integrity,
    node: NodeId,
    file: &OpenFile,
    (offset, len_bytes): (u64, usize),
    buffer: &mut Vec<u8>,
) -> io::Result<Range<usize>> {
    let Some(asked) = ByteRange::from_offset_len(offset, len_bytes as u64) else {
        return Ok(0..0);
    };
    let (read, fault) = integrity.check(node, file, asked, buffer)?;
    if fault.is_some_and(|fault| fault.ranges.iter().any(|range| range.intersects(asked))) {
        return Err(Errno::IO.into());
    }
    let skipped = usize::try_from(offset % BLOCK_LEN).unwrap_or(0).min(read.len_bytes);
    Ok(skipped..read.len_bytes.min(skipped.saturating_add(len_bytes)))
}

impl Tree {
    /// Opens the regular file `node` with the program's `flags`. If it is to be emptied, that is
    /// asked for separately.
    pub(crate) fn open(&self, node: InodeNumber, caller: Caller, flags: OFlags) -> io::Result<(u64, Arc<OpenFile>)> {
        // Until the handle is known: a landing that takes the last name away asks whether any
        // program can write the file.
        let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
        let mut refused = None;
        for got in backing_flags(flags) {
            let (fd, identity) = match self.open_node(node, got) {
                Ok(opened) => opened,
                Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                    refused = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let own = self.own_threads().contains(&caller.pid);
            let file = Arc::new(OpenFile::new(fd, node, identity, flags, got, own));
            let handle = self.handles.insert(Arc::clone(&file));
            return Ok((handle, file));
        }
        Err(refused.unwrap_or_else(|| Errno::ACCESS.into()))
    }

    pub(crate) fn release(&self, handle: u64) {
        // The descriptor closes here, or with the last request that is still using it.
        match self.handles.get(handle) {
            Some(file) if file.for_writing() => self.tracked.close(&file.identity(), || {
                self.handles.remove(handle);
                !self.handles.has_writer(file.node())
            }),
            _ => {
                self.handles.remove(handle);
            }
        }
    }

    pub(crate) fn open_file(&self, handle: u64) -> io::Result<Arc<OpenFile>> {
        self.handles.get(handle).ok_or_else(not_open)
    }

    /// The kernel reads or writes through this handle in a way that may leave bytes in its page
    /// cache. Called before the bytes are read or written.
    pub(crate) fn note_pages(&self, handle: u64) {
        if let Some(file) = self.handles.get(handle)
            && !file.pages_noted().load(Ordering::Relaxed)
        {
            self.inodes().note_pages(file.node());
            file.pages_noted().store(true, Ordering::Relaxed);
        }
    }

    /// Whether the kernel may hold bytes of `node` that it read before this call, or is reading
    /// some. Called after the bytes below were changed: every earlier reader has called
    /// [`Self::note_pages`] before.
    pub(crate) fn may_have_pages(&self, node: InodeNumber) -> bool {
        self.inodes().has_pages(node)
    }

    /// Reads up to `len_bytes` at `offset` and hands them to `deliver`: fewer only at the end of
    /// the file.
    pub(crate) fn read<T>(
        &self,
        handle: u64,
        (offset, len_bytes): (u64, usize),
        is_into_pages: bool,
        deliver: impl FnOnce(io::Result<&[u8]>) -> T,
    ) -> T {
        let file = match self.open_file(handle) {
            Ok(file) => file,
            Err(error) => return deliver(Err(error)),
        };
        if let Some((integrity, node)) = self.tracked.verifying(&file.identity()) {
            return READ_BUFFER.with_borrow_mut(|buffer| {
                let read = read_verified(integrity, node, &file, (offset, len_bytes), buffer);
                let read = read.map(|window| match is_into_pages && window.len() < len_bytes {
                    true => self.with_cut_off(&file, offset, window, len_bytes, buffer),
                    false => window,
                });
                deliver(read.map(|window| buffer.get(window).unwrap_or_default()))
            });
        }
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < len_bytes {
                buffer.resize(len_bytes, 0);
            }
            let window = buffer.get_mut(..len_bytes).unwrap_or_default();
            let (mut filled, mut is_at_end) = (0usize, false);
            while let Some(rest) = window.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                match file.read_at(offset.saturating_add(filled as u64), rest) {
                    Ok(0) => {
                        is_at_end = true;
                        break;
                    }
                    Ok(count) => filled = filled.saturating_add(count),
                    Err(_) if filled > 0 => break,
                    Err(error) => return deliver(Err(error)),
                }
            }
            // An error is no end: nothing old stands in for what cannot be read.
            let window = match is_into_pages && is_at_end {
                true => self.with_cut_off(&file, offset, 0..filled, len_bytes, buffer),
                false => 0..filled,
            };
            deliver(Ok(buffer.get(window).unwrap_or_default()))
        })
    }

    /// Adds to bytes that were read at `offset`, up to the file's end, the old bytes that lay
    /// behind that end until something that lands cut them off: the kernel may not have heard of
    /// that yet, and fills up its pages with zeros. `window` is where the bytes lie in `buffer`.
    fn with_cut_off(
        &self,
        file: &OpenFile,
        offset: u64,
        window: Range<usize>,
        len_bytes: usize,
        buffer: &mut Vec<u8>,
    ) -> Range<usize> {
        let end = window.start.saturating_add(len_bytes);
        if buffer.len() < end {
            buffer.resize(end, 0);
        }
        let at = offset.saturating_add(window.len() as u64);
        let rest = buffer.get_mut(window.end..end).unwrap_or_default();
        let count = self.tracked.read_cut_off(&file.identity(), at, rest);
        window.start..window.end.saturating_add(count)
    }

    /// Writes all of `data` at `offset`, as far as the disk has room. `clear_set_id` is the
    /// kernel's word that the writer may not keep set-id bits.
    ///
    /// **Append-only files.** What comes through a descriptor that only appends goes to where the
    /// file below ends, and that range is logged: one write at a time, so that the end does not
    /// move in between. It is where the kernel believes the end to be unless the file was changed
    /// below.
    pub(crate) fn write(
        &self,
        handle: u64,
        offset: u64,
        data: &[u8],
        origin: Origin,
        clear_set_id: bool,
    ) -> io::Result<Written> {
        let mut file = self.open_file(handle)?;
        if origin == Origin::PageCache && file.only_appends() {
            // The kernel hands pages on through any open file that can be written. These were
            // written through one that was open before the file became append-only.
            file = self.handles.writer_anywhere(file.node()).ok_or(Errno::PERM)?;
        }
        let (offset, _appending) = match file.only_appends() {
            true => {
                let appending = self.appending.lock().unwrap_or_else(PoisonError::into_inner);
                let end = file.stat()?.size;
                if offset > end {
                    // Collected writes of another program lie in between, and have not come yet.
                    return Err(Errno::PERM.into());
                }
                (end, Some(appending))
            }
            false => (offset, None),
        };
        let mut is_cleared_below = false;
        if clear_set_id && self.switch_user {
            self.drop_set_id_always(Self::object_of_file(&file), &file)?;
        } else if clear_set_id {
            is_cleared_below = set_id_to_drop(&file)?.1 != 0;
        }
        let written = self.tracked.write(&file, offset, data, origin)?;
        if is_cleared_below {
            self.attributes_changed(file.node());
        }
        Ok(written)
    }

    pub(crate) fn allocate(
        &self,
        handle: u64,
        caller: Caller,
        mode: FallocateFlags,
        offset: u64,
        len_bytes: u64,
    ) -> io::Result<()> {
        let file = self.open_file(handle)?;
        self.tracked.allocate(&file, mode, offset, len_bytes)?;
        self.drop_set_id(Self::object_of_file(&file), &file, caller)
    }

    pub(crate) fn copy_range(
        &self,
        caller: Caller,
        from: (u64, u64),
        to: (u64, u64),
        len_bytes: usize,
    ) -> io::Result<usize> {
        let (source, target) = (self.open_file(from.0)?, self.open_file(to.0)?);
        let copied = self.tracked.copy_range(&source, from.1, &target, to.1, len_bytes)?;
        self.drop_set_id(Self::object_of_file(&target), &target, caller)?;
        Ok(copied)
    }

    /// The stat of an open file.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn open_file_stat(&self, handle: u64) -> io::Result<byteback_host::tree::Stat> {
        self.open_file(handle)?.stat()
    }

    pub(crate) fn sync(&self, handle: u64, data_only: bool) -> io::Result<()> {
        let file = self.open_file(handle)?;
        if file.own() {
            return Ok(());
        }
        let needs_times = self.tracked.must_sync_times(&file.identity());
        file.sync(data_only && !needs_times)
    }

    /// Makes the names in the directory `node` durable.
    pub(crate) fn sync_directory(&self, node: InodeNumber, data_only: bool) -> io::Result<()> {
        let dir = {
            let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
            self.directory(node)?
        };
        let readable = dir.reopen(OFlags::RDONLY | OFlags::DIRECTORY)?;
        readable.sync(data_only)
    }
}
